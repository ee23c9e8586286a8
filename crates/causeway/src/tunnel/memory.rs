// SPDX-License-Identifier: Apache-2.0
//! Where payload lies: large buffers for what the kernel hands over in bulk, small ones
//! for single packets, so that a packet that waits does not hold 64 KiB.

use causeway_bifrost::{Limits, Span};
use causeway_io::tunnel::{BUFFER_BYTES, BufferId, Slab};

/// A packet up to this size is moved to a small buffer. Copying it costs less than the
/// cache misses of a fresh large buffer.
const SMALL_BYTES: usize = 2048;
/// Large buffers of each direction: what TUN and sockets fill, 35 MB.
const LARGE: usize = 512;
/// Large buffers that must be free before a batch keeps its own.
const RESERVE: usize = 32;

/// The slabs of one thread. A slot's number is its slab's number in the top four bits
/// and the buffer's below.
#[derive(Debug)]
pub struct Memory {
    slabs: [Slab; 4],
}

/// One of the slabs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Frames as the TUN gave them.
    Frame = 0,
    /// Short ones.
    SmallFrame = 1,
    /// Merged datagrams as the socket gave them.
    Datagrams = 2,
    /// Single ones.
    SmallDatagram = 3,
}

const PLACES: [Place; 4] = [
    Place::Frame,
    Place::SmallFrame,
    Place::Datagrams,
    Place::SmallDatagram,
];
const SHIFT: u32 = 28;

impl Memory {
    /// Room for all that an engine with these limits holds. Datagrams have at most
    /// `datagram_max` bytes.
    pub fn new(limits: &Limits, datagram_max: usize) -> Self {
        let (frames, chunks) = (limits.frames as usize, limits.chunks as usize);
        Self {
            slabs: [
                Slab::new(LARGE, BUFFER_BYTES),
                Slab::new(frames + 1, SMALL_BYTES),
                Slab::new(LARGE, BUFFER_BYTES),
                Slab::new(chunks + 1, SMALL_BYTES.max(datagram_max)),
            ],
        }
    }

    /// The slab of a place.
    pub fn slab(&mut self, place: Place) -> &mut Slab {
        &mut self.slabs[place as usize]
    }

    /// The name of a buffer for the engine.
    pub fn slot(place: Place, buffer: BufferId) -> u32 {
        (place as u32) << SHIFT | buffer.0
    }

    fn place(slot: u32) -> (Place, BufferId) {
        let place = PLACES[(slot >> SHIFT) as usize & 3];
        (place, BufferId(slot & ((1 << SHIFT) - 1)))
    }

    /// The bytes of a span.
    pub fn bytes(&self, span: Span) -> &[u8] {
        let (place, buffer) = Self::place(span.slot);
        let from = span.offset as usize;
        &self.slabs[place as usize].bytes(buffer)[from..from + span.len as usize]
    }

    /// Takes references to a slot away.
    pub fn release(&mut self, slot: u32, count: u32) {
        let (place, buffer) = Self::place(slot);
        self.slabs[place as usize].release(buffer, count);
    }

    /// Takes the references away that a frame's pieces are; those of one slot lie side by side.
    pub fn release_all(&mut self, pieces: &[Span]) {
        for pieces in pieces.chunk_by(|a, b| a.slot == b.slot) {
            self.release(pieces[0].slot, pieces.len() as u32);
        }
    }

    /// Copies bytes out of a large buffer into a small one; `None`: they do not fit, or
    /// there is none.
    pub fn copy_small(
        &mut self,
        from: Place,
        buffer: BufferId,
        range: std::ops::Range<usize>,
    ) -> Option<BufferId> {
        let to = match from {
            Place::Frame | Place::SmallFrame => Place::SmallFrame,
            Place::Datagrams | Place::SmallDatagram => Place::SmallDatagram,
        };
        let (first, second) = self.slabs.split_at_mut(to as usize);
        let small = second.first_mut()?;
        let length = range.len();
        if length > small.buffer_bytes() {
            return None;
        }
        let id = small.take()?;
        let source = &first.get(from as usize)?.bytes(buffer)[range];
        small.bytes_mut(id)[..length].copy_from_slice(source);
        Some(id)
    }

    /// Whether a packet of this size is better off in a small buffer.
    pub fn is_small(length: usize) -> bool {
        length <= SMALL_BYTES
    }

    /// Whether large buffers of received datagrams run short.
    pub fn is_short_of_large(&self) -> bool {
        self.slabs[Place::Datagrams as usize].available() < RESERVE
    }

    /// Bytes that somebody refers to, buffers counted whole.
    pub fn used_bytes(&self) -> u64 {
        let used = self
            .slabs
            .iter()
            .map(|slab| slab.used() * slab.buffer_bytes());
        used.sum::<usize>() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_lead_back_to_their_bytes() {
        let mut memory = Memory::new(&Limits::default(), 1472);
        let large = memory.slab(Place::Datagrams).take().unwrap();
        memory.slab(Place::Datagrams).bytes_mut(large)[100..104].copy_from_slice(b"abcd");
        let small = memory
            .copy_small(Place::Datagrams, large, 100..104)
            .unwrap();
        for (place, buffer, offset) in [
            (Place::Datagrams, large, 101),
            (Place::SmallDatagram, small, 1),
        ] {
            let slot = Memory::slot(place, buffer);
            let span = Span {
                slot,
                offset,
                len: 3,
            };
            assert_eq!(memory.bytes(span), b"bcd");
            memory.release(slot, 1);
        }
        assert_eq!(memory.used_bytes(), 0);
        assert_eq!(memory.copy_small(Place::Datagrams, large, 0..4096), None);
    }
}
