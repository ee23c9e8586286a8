// SPDX-License-Identifier: Apache-2.0
//! A flood of whole frames, sent out of one interface at a set rate past the kernel's
//! queues: what reaches the other end of a veth pair is what was sent.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{io, mem, ptr};

use anyhow::{Context as _, Result};

use crate::background::Background;
use crate::clock;
use crate::netns::Netns;

/// Room for a frame.
pub const FRAME_MAX: usize = 1514;
/// Frames of one system call.
const BATCH: usize = 32;
/// A sender that falls behind sends no more than this at once.
const BURST_MAX: u64 = 2000;
const TICK: Duration = Duration::from_micros(500);

/// Writes frame number `n` into the buffer and returns its length.
pub type FrameMaker = Box<dyn FnMut(u64, &mut [u8; FRAME_MAX]) -> usize + Send>;

/// A flood that is under way.
pub struct FrameFlood(Background<SentFrames>);

/// What was sent.
#[derive(Debug, Clone, Copy)]
pub struct SentFrames {
    /// Frames that the device took.
    pub frames: u64,
    /// From the first to the last.
    pub seconds: f64,
    /// CPU time of the sender and of all that the kernel did on its back.
    pub cpu_s: f64,
}

impl FrameFlood {
    /// Starts to send `rate` frames a second out of `device` of `netns`.
    pub fn start(netns: &Netns, device: &str, rate: u64, frame: FrameMaker) -> Self {
        let device = device.to_owned();
        Self(Background::spawn_in(netns, move |stop| {
            run(&device, rate, frame, stop)
        }))
    }

    /// Ends it.
    pub fn finish(self) -> Result<SentFrames> {
        self.0.finish()
    }
}

fn run(device: &str, rate: u64, mut frame: FrameMaker, stop: &AtomicBool) -> Result<SentFrames> {
    let socket = open(device).with_context(|| format!("opening a packet socket on {device}"))?;
    let mut buffers = vec![[0; FRAME_MAX]; BATCH];
    let start = Instant::now();
    let (mut number, mut frames) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let due = (start.elapsed().as_secs_f64() * rate as f64) as u64;
        let end = due.min(number + BURST_MAX);
        while number < end {
            let count = (end - number).min(BATCH as u64) as usize;
            let mut lengths = [0; BATCH];
            for (i, buffer) in buffers[..count].iter_mut().enumerate() {
                lengths[i] = frame(number + i as u64, buffer);
            }
            frames += send(&socket, &mut buffers[..count], &lengths[..count])?;
            number += count as u64;
        }
        // A sender that has fallen behind does not catch up.
        number = due;
        sleep(TICK);
    }
    Ok(SentFrames {
        frames,
        seconds: start.elapsed().as_secs_f64(),
        cpu_s: clock::thread_cpu_ns() as f64 / 1e9,
    })
}

fn open(device: &str) -> io::Result<OwnedFd> {
    let socket = packet_socket(device, 0)?;
    let yes: libc::c_int = 1;
    // SAFETY: the option's value is one integer, which lives through the call.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_QDISC_BYPASS,
            (&raw const yes).cast(),
            mem::size_of_val(&yes) as u32,
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// A packet socket bound to a device; `protocol` (host order) is what it receives, 0 nothing.
pub(crate) fn packet_socket(device: &str, protocol: u16) -> io::Result<OwnedFd> {
    // SAFETY: socket(2) with constants.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: sockaddr_ll is plain data; all zeroes is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = nix::net::if_::if_nametoindex(device)? as i32;
    // SAFETY: the address lives through the call, and the length is its own.
    let rc = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            mem::size_of_val(&address) as u32,
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// Sends the frames; how many the device took.
fn send(socket: &OwnedFd, frames: &mut [[u8; FRAME_MAX]], lengths: &[usize]) -> Result<u64> {
    let mut parts: Vec<libc::iovec> = frames
        .iter_mut()
        .zip(lengths)
        .map(|(frame, &length)| libc::iovec {
            iov_base: frame.as_mut_ptr().cast(),
            iov_len: length,
        })
        .collect();
    let mut messages: Vec<libc::mmsghdr> = parts
        .iter_mut()
        .map(|part| {
            // SAFETY: mmsghdr is plain data; all zeroes is a valid value.
            let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
            message.msg_hdr.msg_iov = ptr::from_mut(part);
            message.msg_hdr.msg_iovlen = 1;
            message
        })
        .collect();
    let (mut at, mut taken) = (0, 0);
    while at < messages.len() {
        let rest = &mut messages[at..];
        // SAFETY: headers, parts and frames live through the call.
        let sent =
            unsafe { libc::sendmmsg(socket.as_raw_fd(), rest.as_mut_ptr(), rest.len() as u32, 0) };
        if sent > 0 {
            at += sent as usize;
            taken += sent as u64;
            continue;
        }
        match io::Error::last_os_error() {
            // The device's ring is full: the frame is lost, as it would be on a wire.
            error if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EAGAIN)) => at += 1,
            error => return Err(error).context("sending frames"),
        }
    }
    Ok(taken)
}
