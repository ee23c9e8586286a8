// SPDX-License-Identifier: Apache-2.0
//! The guest's side of a tunnel: a bounded ring of whole frames in front of the TUN
//! write. A frame that the guest's kernel cannot take now, because it has no room or its
//! device is down, waits in it; what does not fit is refused, and the engine has it retransmitted:
//! a loss in front of the guest is a loss like any other. What is in the ring has been
//! acknowledged, and is lost for good if it is dropped.

use std::io::{self, IoSlice};

use causeway_bifrost::{DeliveryVerdict, Span, TransportEngine};

use super::memory::Memory;

/// Pieces of a frame at most (64 chunks).
const PIECES: usize = 64;
/// While the guest's kernel takes nothing, a frame waits so long, the age at which its sender would
/// have abandoned it, and is dropped.
const STUCK_NS: u64 = 200_000_000;

/// Frames on their way up.
#[derive(Debug)]
pub(crate) struct Vnic {
    spans: Vec<Span>,
    /// Where each frame's spans end, and when it came.
    ends: Vec<(usize, u64)>,
    capacity: usize,
    /// When the guest's kernel last took a frame.
    took_ns: u64,
    counts: GuestCounts,
}

/// What became of frames at the guest's kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GuestCounts {
    /// It took them.
    pub taken: u64,
    /// It rejected them.
    pub refused: u64,
    /// It had no room for them for too long, or its device was down.
    pub stuck: u64,
}

impl Vnic {
    /// A ring for `capacity` frames.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            spans: Vec::new(),
            ends: Vec::new(),
            capacity,
            took_ns: 0,
            counts: GuestCounts::default(),
        }
    }

    /// Changes how many frames it takes.
    pub(crate) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// What became of frames so far.
    pub(crate) fn counts(&self) -> GuestCounts {
        self.counts
    }

    /// Whether frames wait for the guest's kernel.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Writes all that the engine has to deliver by `write`, in order, by turns with filling
    /// the ring. Whether something was written.
    pub(crate) fn pass(
        &mut self,
        now_ns: u64,
        engine: &mut TransportEngine,
        memory: &mut Memory,
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<()>,
    ) -> bool {
        let mut wrote = false;
        loop {
            let more = self.fill(now_ns, engine, memory);
            wrote |= self.drain(now_ns, memory, &mut write);
            if !more {
                return wrote;
            }
            if self.is_full(memory) {
                refuse_all(now_ns, engine, memory);
                return wrote;
            }
        }
    }

    /// Takes what the engine has to deliver as far as there is room. Whether there may be
    /// more.
    fn fill(&mut self, now_ns: u64, engine: &mut TransportEngine, memory: &Memory) -> bool {
        while !self.is_full(memory) {
            let Some(delivery) = engine.poll_deliver() else {
                return false;
            };
            let token = delivery.token;
            self.spans.extend_from_slice(delivery.spans);
            self.ends.push((self.spans.len(), now_ns));
            engine.delivered(now_ns, token, DeliveryVerdict::Ok);
        }
        true
    }

    /// What waits must leave sockets the memory that they are read into.
    fn is_full(&self, memory: &Memory) -> bool {
        self.ends.len() >= self.capacity || (self.is_waiting() && memory.is_short_of_large())
    }

    /// Writes frames until the guest's kernel cannot take one now. Whether it took any.
    fn drain(
        &mut self,
        now_ns: u64,
        memory: &mut Memory,
        write: &mut impl FnMut(&[IoSlice<'_>]) -> io::Result<()>,
    ) -> bool {
        let (mut begin, mut done, before) = (0, 0, self.counts.taken);
        for (end, came_ns) in &self.ends {
            let spans = &self.spans[begin..*end];
            let mut pieces: [IoSlice<'_>; PIECES] = std::array::from_fn(|_| IoSlice::new(&[]));
            for (piece, span) in pieces.iter_mut().zip(spans) {
                *piece = IoSlice::new(memory.bytes(*span));
            }
            match write(&pieces[..spans.len().min(PIECES)]) {
                Ok(()) => {
                    self.counts.taken += 1;
                    self.took_ns = now_ns;
                }
                Err(error) if !may_pass(&error) => self.counts.refused += 1,
                Err(_) if now_ns < self.took_ns.max(*came_ns) + STUCK_NS => break,
                Err(_) => self.counts.stuck += 1,
            }
            memory.release_all(spans);
            (begin, done) = (*end, done + 1);
        }
        self.spans.drain(..begin);
        self.ends.drain(..done);
        self.ends.iter_mut().for_each(|(end, _)| *end -= begin);
        self.counts.taken > before
    }
}

/// The ring is full: the engine gets a refusal for each frame, and has it retransmitted.
fn refuse_all(now_ns: u64, engine: &mut TransportEngine, memory: &mut Memory) {
    while let Some(delivery) = engine.poll_deliver() {
        let token = delivery.token;
        memory.release_all(delivery.spans);
        engine.delivered(now_ns, token, DeliveryVerdict::Full);
    }
}

/// Whether the guest's kernel has no room, no memory or its device down (EIO), and may take the same
/// frame soon.
fn may_pass(error: &io::Error) -> bool {
    let passing = [libc::EAGAIN, libc::ENOBUFS, libc::ENOMEM, libc::EIO];
    error
        .raw_os_error()
        .is_some_and(|number| passing.contains(&number))
}

#[cfg(test)]
mod tests;
