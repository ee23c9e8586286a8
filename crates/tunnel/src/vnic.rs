// SPDX-License-Identifier: Apache-2.0
//! The guest's side of a tunnel: a bounded ring of whole frames in front of the TUN
//! write. A frame that the guest's kernel has no room for waits in it; what does not fit is
//! refused, and the engine has it retransmitted: a loss in front of the guest is a loss like
//! any other.

use std::io::{self, IoSlice};

use causeway_bifrost::{DeliveryVerdict, Span, TransportEngine};

use super::memory::Memory;

/// Pieces of a frame at most (64 chunks).
const PIECES: usize = 64;
/// A frame that the guest's kernel has had no room for during this time is dropped.
const STUCK_NS: u64 = 200_000_000;

/// Frames on their way up.
#[derive(Debug)]
pub(crate) struct Vnic {
    spans: Vec<Span>,
    /// Where each frame's spans end.
    ends: Vec<usize>,
    capacity: usize,
    /// Since when the guest's kernel has had no room for the first of them.
    stuck_ns: Option<u64>,
    written: u64,
    refused: u64,
}

impl Vnic {
    /// A ring for `capacity` frames.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            spans: Vec::new(),
            ends: Vec::new(),
            capacity,
            stuck_ns: None,
            written: 0,
            refused: 0,
        }
    }

    /// Changes how many frames it takes.
    pub(crate) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// Frames that the guest's kernel took, and those that it refused.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.written, self.refused)
    }

    /// Whether frames wait for room in the guest's kernel.
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
            self.ends.push(self.spans.len());
            engine.delivered(now_ns, token, DeliveryVerdict::Ok);
        }
        true
    }

    /// What waits must leave sockets the memory that they are read into.
    fn is_full(&self, memory: &Memory) -> bool {
        self.ends.len() >= self.capacity || (self.is_waiting() && memory.is_short_of_large())
    }

    /// Writes frames until the guest's kernel has no room for one. Whether it took any.
    fn drain(
        &mut self,
        now_ns: u64,
        memory: &mut Memory,
        write: &mut impl FnMut(&[IoSlice<'_>]) -> io::Result<()>,
    ) -> bool {
        let (mut begin, mut done, before) = (0, 0, self.written);
        for end in &self.ends {
            let spans = &self.spans[begin..*end];
            let mut pieces: [IoSlice<'_>; PIECES] = std::array::from_fn(|_| IoSlice::new(&[]));
            for (piece, span) in pieces.iter_mut().zip(spans) {
                *piece = IoSlice::new(memory.bytes(*span));
            }
            match write(&pieces[..spans.len().min(PIECES)]) {
                Ok(()) => self.written += 1,
                Err(error)
                    if is_full(&error)
                        && now_ns < *self.stuck_ns.get_or_insert(now_ns) + STUCK_NS =>
                {
                    break;
                }
                // The guest's kernel rejects it, it is too old, or the device is down.
                Err(_) => self.refused += 1,
            }
            memory.release_all(spans);
            (begin, done) = (*end, done + 1);
            self.stuck_ns = None;
        }
        self.spans.drain(..begin);
        self.ends.drain(..done);
        self.ends.iter_mut().for_each(|end| *end -= begin);
        self.written > before
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

/// Whether the guest's kernel has no room or no memory now, and may have some soon.
fn is_full(error: &io::Error) -> bool {
    let full = [libc::EAGAIN, libc::ENOBUFS, libc::ENOMEM];
    error
        .raw_os_error()
        .is_some_and(|number| full.contains(&number))
}

#[cfg(test)]
mod tests;
