// SPDX-License-Identifier: Apache-2.0
//! A line with delay, loss and reordering: two TUN devices in two namespaces and
//! a thread that carries packets between them. TAP devices instead of them are a cable
//! between two bridges.
//!
//! Delay is half the round trip each way. Loss and reordering strike the way from
//! the near end (the client's) to the far end only: PIRATE, section 5.4, puts them
//! between client and vantage point, since what is lost on the way back never
//! shows in the requests.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use crate::background::Background;
use crate::clock;
use crate::load::poll::{Interest, Poll};
use crate::netns::Netns;

/// `TUNSETIFF`, linux/if_tun.h.
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
/// Largest IP packet.
const MAX_PACKET: usize = 65_536;
/// How often the thread looks whether it is to end.
const TICK_NS: u64 = 100_000_000;

/// What a line does to packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Impairment {
    /// Added to each round trip, half of it each way. Microseconds.
    pub round_trip_us: u64,
    /// Share of the client's packets that are dropped.
    pub loss: f64,
    /// Share of the client's packets that are held back by `hold_us`.
    pub reorder: f64,
    /// Longest time that a packet is held back, uniform from a tenth of it.
    pub hold_us: u64,
    /// Each packet of either end takes longer by up to this, uniform from 0. Microseconds.
    pub jitter_us: u64,
    /// Whether packets overtake each other by that; else they stay in line, as in a queue.
    pub overtake: bool,
}

impl Impairment {
    /// Whether it does anything.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// One end of a line: a TUN device, up, without an address.
#[derive(Debug, Clone)]
pub struct LinkEnd {
    /// Where the device lives.
    pub netns: Netns,
    /// Its name.
    pub device: String,
}

impl LinkEnd {
    /// The device of this name in a namespace.
    pub fn of(netns: &Netns, device: &str) -> Self {
        Self {
            netns: netns.clone(),
            device: device.to_owned(),
        }
    }
}

/// A line that is carrying; dropped, it stops.
#[derive(Debug)]
pub struct LinkEmulator {
    dropped: Arc<AtomicU64>,
    impairment: Arc<Mutex<Impairment>>,
    _thread: Background,
}

impl LinkEmulator {
    /// Makes both devices and starts to carry packets between them.
    pub fn start(near: &LinkEnd, far: &LinkEnd, impairment: Impairment, seed: u64) -> Result<Self> {
        Self::between(
            [open(near, Layer::Packets)?, open(far, Layer::Packets)?],
            impairment,
            seed,
        )
    }

    /// The same with devices for Ethernet frames (TAP), which may be ports of bridges.
    pub fn between_bridges(
        near: &LinkEnd,
        far: &LinkEnd,
        impairment: Impairment,
        seed: u64,
    ) -> Result<Self> {
        Self::between(
            [open(near, Layer::Frames)?, open(far, Layer::Frames)?],
            impairment,
            seed,
        )
    }

    fn between(ends: [File; 2], impairment: Impairment, seed: u64) -> Result<Self> {
        let impairment = Arc::new(Mutex::new(impairment));
        let dropped = Arc::new(AtomicU64::new(0));
        let mut carrier = Carrier {
            ends,
            impairment: impairment.clone(),
            last_due: [0; 2],
            rng: StdRng::seed_from_u64(seed),
            waiting: BinaryHeap::new(),
            number: 0,
            buffer: vec![0; MAX_PACKET],
            dropped: dropped.clone(),
        };
        Ok(Self {
            dropped,
            impairment,
            _thread: Background::spawn(move |stop| Ok(carrier.run(stop)?)),
        })
    }

    /// Changes what the line does to packets that come from now on.
    pub fn set(&self, impairment: Impairment) {
        *self
            .impairment
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = impairment;
    }

    /// Packets dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// What a device carries.
#[derive(Debug, Clone, Copy)]
enum Layer {
    /// IP packets (TUN).
    Packets,
    /// Ethernet frames (TAP).
    Frames,
}

fn open(end: &LinkEnd, layer: Layer) -> Result<File> {
    let device = end.device.clone();
    end.netns
        .run(move || tun(&device, layer).with_context(|| format!("TUN device {device}")))
}

fn tun(device: &str, layer: Layer) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    if device.len() >= libc::IFNAMSIZ {
        return Err(io::Error::from(ErrorKind::InvalidInput));
    }
    // SAFETY: ifreq is plain data; all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    let layer = match layer {
        Layer::Packets => libc::IFF_TUN,
        Layer::Frames => libc::IFF_TAP,
    };
    request.ifr_ifru.ifru_flags = (layer | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: an open descriptor and a live ifreq, as TUNSETIFF expects.
    if unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    crate::link::up(device)?;
    Ok(file)
}

/// A packet under way: when it is due, its number (equal times keep their
/// order), to which end, and its bytes.
type Waiting = Reverse<(u64, u64, usize, Vec<u8>)>;

struct Carrier {
    ends: [File; 2],
    impairment: Arc<Mutex<Impairment>>,
    /// When the last packet from each end is due.
    last_due: [u64; 2],
    rng: StdRng,
    waiting: BinaryHeap<Waiting>,
    number: u64,
    buffer: Vec<u8>,
    dropped: Arc<AtomicU64>,
}

impl Carrier {
    fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        // SAFETY: PR_SET_TIMERSLACK takes one integer.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        // A line waits for no processor that its ends keep busy.
        crate::cpu::go_first()?;
        let mut poll = Poll::new()?;
        for (token, end) in self.ends.iter().enumerate() {
            poll.add(end.as_raw_fd(), token, Interest::Read)?;
        }
        let mut ready = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let now = clock::monotonic_ns();
            let due = self.waiting.peek().map_or(u64::MAX, |Reverse(w)| w.0);
            poll.wait(due.saturating_sub(now).min(TICK_NS), &mut ready)?;
            for &from in &ready {
                self.take(from)?;
            }
            self.give(clock::monotonic_ns())?;
        }
        Ok(())
    }

    /// Reads all packets that wait at an end.
    fn take(&mut self, from: usize) -> io::Result<()> {
        let impairment = *self
            .impairment
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        loop {
            let length = match self.ends[from].read(&mut self.buffer) {
                Ok(length) => length,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            };
            let mut due = clock::monotonic_ns() + impairment.round_trip_us * 500;
            if impairment.jitter_us > 0 {
                due += self.rng.random_range(0..=impairment.jitter_us * 1000);
                if !impairment.overtake {
                    due = due.max(self.last_due[from]);
                }
                self.last_due[from] = due;
            }
            if from == 0 {
                let Some(held) = self.strike(impairment) else {
                    continue;
                };
                due += held;
            }
            self.number += 1;
            let packet = self.buffer[..length].to_vec();
            self.waiting
                .push(Reverse((due, self.number, 1 - from, packet)));
        }
    }

    /// How long a packet of the client is held back, in ns; `None`: it is lost.
    fn strike(&mut self, impairment: Impairment) -> Option<u64> {
        let Impairment {
            loss,
            reorder,
            hold_us,
            ..
        } = impairment;
        if loss > 0.0 && self.rng.random_bool(loss.min(1.0)) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        if reorder > 0.0 && self.rng.random_bool(reorder.min(1.0)) {
            let longest = hold_us * 1000;
            return Some(self.rng.random_range(longest / 10..=longest));
        }
        Some(0)
    }

    fn give(&mut self, now: u64) -> io::Result<()> {
        while self.waiting.peek().is_some_and(|Reverse(w)| w.0 <= now) {
            let Some(Reverse((_, _, to, packet))) = self.waiting.pop() else {
                return Ok(());
            };
            match self.ends[to].write(&packet) {
                Ok(_) => {}
                // A full queue drops, as a router would.
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.dropped.fetch_add(1, Ordering::Relaxed);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}
