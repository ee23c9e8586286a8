// SPDX-License-Identifier: Apache-2.0
//! The guest's side of a tunnel: a bounded ring of whole frames in front of the TUN
//! write. What does not fit is refused, and the engine has it sent again: a loss in
//! front of the guest is a loss like any other.

use std::io::IoSlice;

use causeway_bifrost::{Engine, Span, Verdict};
use causeway_io::tunnel::Tun;

use super::memory::Memory;

/// Pieces of a frame at most (64 chunks).
const PIECES: usize = 64;

/// Frames on their way up.
#[derive(Debug)]
pub struct Vnic {
    spans: Vec<Span>,
    /// Where each frame's spans end.
    ends: Vec<usize>,
    room: usize,
    written: u64,
    refused: u64,
}

impl Vnic {
    /// A ring for `room` frames.
    pub fn new(room: usize) -> Self {
        Self {
            spans: Vec::new(),
            ends: Vec::new(),
            room,
            written: 0,
            refused: 0,
        }
    }

    /// Changes the room.
    pub fn set_room(&mut self, room: usize) {
        self.room = room;
    }

    /// Frames that the guest's kernel took, and those that it refused.
    pub fn counts(&self) -> (u64, u64) {
        (self.written, self.refused)
    }

    /// Takes what the engine has to deliver, as far as there is room.
    pub fn fill(&mut self, now_ns: u64, engine: &mut Engine, memory: &mut Memory) {
        while let Some(delivery) = engine.poll_deliver() {
            let (token, begin) = (delivery.token, self.spans.len());
            self.spans.extend_from_slice(delivery.spans);
            let verdict = if self.ends.len() < self.room {
                self.ends.push(self.spans.len());
                Verdict::Ok
            } else {
                memory.release_all(&self.spans[begin..]);
                self.spans.truncate(begin);
                Verdict::Full
            };
            engine.delivered(now_ns, token, verdict);
        }
    }

    /// Writes all frames, in order. Whether there were any.
    pub fn drain(&mut self, tun: &Tun, memory: &mut Memory) -> bool {
        let any = !self.ends.is_empty();
        let mut begin = 0;
        for end in self.ends.drain(..) {
            let spans = &self.spans[begin..end];
            let mut pieces: [IoSlice<'_>; PIECES] = std::array::from_fn(|_| IoSlice::new(&[]));
            for (piece, span) in pieces.iter_mut().zip(spans) {
                *piece = IoSlice::new(memory.bytes(*span));
            }
            match tun.write(&pieces[..spans.len().min(PIECES)]) {
                Ok(()) => self.written += 1,
                // Not to the guest's kernel's liking, or the device is down.
                Err(_) => self.refused += 1,
            }
            memory.release_all(spans);
            begin = end;
        }
        self.spans.clear();
        any
    }
}
