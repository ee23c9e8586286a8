// SPDX-License-Identifier: Apache-2.0
//! A flood of whole frames, sent out of one interface at a set rate as a driver's frames, past
//! sockets and queues: what reaches the other end of a veth pair is what was sent.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
pub use causeway_bench::flood::FRAME_MAX;
use causeway_bench::flood::{FRAMES, FloodPrograms};
use serde_json::Value;

use crate::background::{Background, output_of};
use crate::clock;
use crate::netns::Netns;

/// A sender that falls behind sends no more than this at once.
const BURST_MAX: u64 = 2000;
/// An interface for [`FloodPrograms::keep_at`].
const KEEPER: &str = "keeper";
const TICK: Duration = Duration::from_micros(500);

/// Writes frame number `n` into the buffer and returns its length.
pub type FrameMaker = Box<dyn FnMut(u64, &mut [u8; FRAME_MAX]) -> usize + Send>;

/// A flood that is under way.
pub struct FrameFlood {
    sender: Background<SentFrames>,
    port: (Netns, String),
    /// What the device had dropped before.
    dropped: u64,
}

/// What was sent.
#[derive(Debug, Clone, Copy)]
pub struct SentFrames {
    /// Frames that the device took.
    pub frames: u64,
    /// From the first to the last.
    pub seconds: f64,
    /// CPU time of the sender and of all that the kernel did on its back.
    pub cpu_s: f64,
    /// The part of it in which frames were made.
    pub making_s: f64,
}

impl SentFrames {
    /// CPU time of one frame, ns.
    pub fn cpu_ns(&self) -> u64 {
        (self.cpu_s * 1e9) as u64 / self.frames.max(1)
    }

    /// The part of it in which it was made.
    pub fn making_ns(&self) -> u64 {
        (self.making_s * 1e9) as u64 / self.frames.max(1)
    }
}

impl FrameFlood {
    /// Starts to send `rate` frames a second out of `device` of `netns`; it has begun when this
    /// returns.
    pub fn start(netns: &Netns, device: &str, rate: u64, frame: FrameMaker) -> Result<Self> {
        let port = (netns.clone(), device.to_owned());
        let dropped = dropped(&port)?;
        let device = device.to_owned();
        netns.ip(&format!(
            "link add {KEEPER} type veth peer name {KEEPER}-peer\n"
        ))?;
        let (ready, loaded) = channel();
        let sender =
            Background::spawn_in(netns, move |stop| run(&device, rate, frame, &ready, stop));
        // A sender that fails has said why by `finish`.
        let _ = loaded.recv();
        Ok(Self {
            sender,
            port,
            dropped,
        })
    }

    /// Ends it.
    pub fn finish(self) -> Result<SentFrames> {
        let mut sent = self.sender.finish()?;
        self.port.0.ip(&format!("link del {KEEPER}\n"))?;
        // The other end's ring was full: the frame is lost, as it would be on a wire.
        let lost = dropped(&self.port)?.saturating_sub(self.dropped);
        sent.frames = sent.frames.saturating_sub(lost);
        Ok(sent)
    }
}

fn run(
    device: &str,
    rate: u64,
    mut frame: FrameMaker,
    ready: &Sender<()>,
    stop: &AtomicBool,
) -> Result<SentFrames> {
    let mut flood = FloodPrograms::load(device)?;
    flood.keep_at(KEEPER)?;
    ready.send(())?;
    let (start, start_cpu_ns) = (Instant::now(), clock::thread_cpu_ns());
    let (mut number, mut frames, mut making_ns) = (0, 0, 0);
    while !stop.load(Ordering::Relaxed) {
        let due = (start.elapsed().as_secs_f64() * rate as f64) as u64;
        let end = due.min(number + BURST_MAX);
        while number < end {
            let count = (end - number).min(FRAMES as u64);
            let began_ns = clock::thread_cpu_ns();
            flood.fill(count as usize, |i, buffer| frame(number + i as u64, buffer))?;
            making_ns += clock::thread_cpu_ns() - began_ns;
            flood.send(count as usize)?;
            number += count;
            frames += count;
        }
        // A sender that has fallen behind does not catch up.
        number = due;
        sleep(TICK);
    }
    Ok(SentFrames {
        frames,
        seconds: start.elapsed().as_secs_f64(),
        cpu_s: (clock::thread_cpu_ns() - start_cpu_ns) as f64 / 1e9,
        making_s: making_ns as f64 / 1e9,
    })
}

/// Frames so far that a device did not take.
fn dropped((netns, device): &(Netns, String)) -> Result<u64> {
    let mut command = netns.command("ip");
    let shown = output_of(command.args(["-s", "-j", "link", "show", "dev", device]))?;
    let links: Value = serde_json::from_str(&shown)?;
    let dropped = &links[0]["stats64"]["tx"]["dropped"];
    dropped
        .as_u64()
        .context("ip shows no dropped frames of a device")
}
