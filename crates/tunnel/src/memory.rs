// SPDX-License-Identifier: Apache-2.0
//! Where payload lies: large buffers for what the kernel hands over in bulk, small ones
//! for single packets, so that a packet that waits does not hold 64 KiB.
//!
//! A frame from the guest is read in pieces of a chunk each, which leave room in front for the
//! header of the datagram that will carry it: datagrams then lie whole, one behind the other, and
//! the kernel takes a message of 45 of them as one range in place of 90.

use std::io::IoSliceMut;
use std::ops::Range;

use causeway_bifrost::wire::{DATA_HEADER_LEN, MAX_CHUNKS};
use causeway_bifrost::{DatagramParts, Limits, Span};
use causeway_netio::tunnel::{BUFFER_BYTES, BufferId, FRAME_MAX, Slab};

/// A packet up to this size is moved to a small buffer. Copying it costs less than the
/// cache misses of a fresh large buffer.
const SMALL_BYTES: usize = 2048;
/// Large buffers of each direction: what TUN and sockets fill, 35 MB.
const LARGE: usize = 512;
/// Large buffers that must be free before a batch keeps its own.
const RESERVE: usize = 32;

/// Room in front of each piece of a frame.
pub(crate) const HEADROOM: usize = DATA_HEADER_LEN;
/// Size of the pieces of a frame that lies in one.
const WHOLE: u32 = FRAME_MAX as u32;
/// The longest frame fits in as many pieces as there may be; TUN would cut it short.
const _: () = assert!(FRAME_MAX + MAX_CHUNKS * HEADROOM <= BUFFER_BYTES);

/// The slabs of one thread. A slot's number is its slab's number in the top four bits
/// and the buffer's below.
#[derive(Debug)]
pub(crate) struct Memory {
    slabs: [Slab; 4],
    /// Of each large buffer for frames: bytes of the pieces that its frame lies in.
    pieces: Vec<u32>,
}

/// A range of the bytes of a slot's buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Region {
    slot: u32,
    bytes: Range<usize>,
}

impl Region {
    /// Makes one of this and `next`, if that lies right behind it.
    pub(crate) fn join(&mut self, next: &Region) -> bool {
        let joins = self.slot == next.slot && self.bytes.end == next.bytes.start;
        if joins {
            self.bytes.end = next.bytes.end;
        }
        joins
    }
}

/// One of the slabs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlabKind {
    /// Frames as the TUN gave them.
    Frame = 0,
    /// Short ones.
    SmallFrame = 1,
    /// Merged datagrams as the socket gave them.
    Datagrams = 2,
    /// Single ones.
    SmallDatagram = 3,
}

const KINDS: [SlabKind; 4] = [
    SlabKind::Frame,
    SlabKind::SmallFrame,
    SlabKind::Datagrams,
    SlabKind::SmallDatagram,
];
const SHIFT: u32 = 28;

impl Memory {
    /// Room for all that an engine with these limits holds. Datagrams have at most
    /// `datagram_max` bytes.
    pub(crate) fn new(limits: &Limits, datagram_max: usize) -> Self {
        let (frames, chunks) = (limits.frames as usize, limits.chunks as usize);
        Self {
            slabs: [
                Slab::new(LARGE, BUFFER_BYTES),
                Slab::new(frames + 1, HEADROOM + SMALL_BYTES),
                Slab::new(LARGE, BUFFER_BYTES),
                Slab::new(chunks + 1, SMALL_BYTES.max(datagram_max)),
            ],
            pieces: vec![WHOLE; LARGE],
        }
    }

    /// One of the slabs.
    pub(crate) fn slab(&mut self, kind: SlabKind) -> &mut Slab {
        &mut self.slabs[kind as usize]
    }

    /// The name of a buffer for the engine.
    pub(crate) fn slot(kind: SlabKind, buffer: BufferId) -> u32 {
        (kind as u32) << SHIFT | buffer.0
    }

    fn buffer_of(slot: u32) -> (SlabKind, BufferId) {
        let kind = KINDS[(slot >> SHIFT) as usize & 3];
        (kind, BufferId(slot & ((1 << SHIFT) - 1)))
    }

    /// The bytes of a span of what a socket gave.
    pub(crate) fn bytes(&self, span: Span) -> &[u8] {
        let (kind, buffer) = Self::buffer_of(span.slot);
        debug_assert!(matches!(
            kind,
            SlabKind::Datagrams | SlabKind::SmallDatagram
        ));
        let from = span.offset as usize;
        &self.slabs[kind as usize].bytes(buffer)[from..from + span.len as usize]
    }

    /// Has a frame read into a buffer, in pieces of `chunk` bytes; those that are too small for
    /// a long frame, as 0 is, do not count. Gives what `read` gives.
    pub(crate) fn read_frame<T>(
        &mut self,
        buffer: BufferId,
        chunk: usize,
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> T,
    ) -> T {
        let is_enough = chunk > 0 && FRAME_MAX.div_ceil(chunk) <= MAX_CHUNKS;
        let size = if is_enough { chunk } else { WHOLE as usize };
        self.pieces[buffer.0 as usize] = size as u32;
        let bytes = self.slabs[SlabKind::Frame as usize].bytes_mut(buffer);
        let mut pieces: [IoSliceMut<'_>; MAX_CHUNKS] =
            std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let (mut left, mut count) = (FRAME_MAX, 0);
        for (piece, bytes) in pieces.iter_mut().zip(bytes.chunks_mut(HEADROOM + size)) {
            let end = (HEADROOM + left).min(bytes.len());
            *piece = IoSliceMut::new(&mut bytes[HEADROOM..end]);
            (left, count) = (left - (end - HEADROOM), count + 1);
            if left == 0 {
                break;
            }
        }
        debug_assert_eq!(left, 0, "a long frame would be cut short");
        read(&mut pieces[..count])
    }

    /// Bytes of the pieces that a slot's frame lies in.
    fn piece_bytes(&self, kind: SlabKind, buffer: BufferId) -> u32 {
        match kind {
            SlabKind::Frame => self.pieces[buffer.0 as usize],
            _ => WHOLE,
        }
    }

    /// Where the bytes of a frame's span lie, range by range.
    pub(crate) fn frame_regions(&self, span: Span) -> impl Iterator<Item = Region> + use<> {
        let (kind, buffer) = Self::buffer_of(span.slot);
        debug_assert!(matches!(kind, SlabKind::Frame | SlabKind::SmallFrame));
        let size = self.piece_bytes(kind, buffer);
        let (mut at, end) = (span.offset, span.offset + span.len);
        std::iter::from_fn(move || {
            let len = (size - at % size).min(end - at) as usize;
            let from = offset_in_buffer(at, size);
            at += len as u32;
            (len > 0).then_some(Region {
                slot: span.slot,
                bytes: from..from + len,
            })
        })
    }

    /// The first bytes of a frame, as many as lie side by side.
    pub(crate) fn head(&self, buffer: BufferId, length: usize) -> &[u8] {
        let end = length.min(self.piece_bytes(SlabKind::Frame, buffer) as usize);
        &self.slabs[SlabKind::Frame as usize].bytes(buffer)[HEADROOM..HEADROOM + end]
    }

    /// The bytes of a region.
    pub(crate) fn region(&self, region: &Region) -> &[u8] {
        let (kind, buffer) = Self::buffer_of(region.slot);
        &self.slabs[kind as usize].bytes(buffer)[region.bytes.clone()]
    }

    /// Puts a datagram's header and padding around its payload, and gives where it lies whole;
    /// `None`: there is no room for them.
    pub(crate) fn complete_datagram(
        &mut self,
        segment: &DatagramParts,
        header: &[u8; HEADROOM],
    ) -> Option<Region> {
        let (slot, padding) = (segment.payload.slot, usize::from(segment.padding));
        let (kind, buffer) = Self::buffer_of(slot);
        let size = self.piece_bytes(kind, buffer);
        let (at, len) = (segment.payload.offset, segment.payload.len as usize);
        let room = at % size == 0 && len + padding <= size as usize;
        if segment.retransmitted || !room {
            return None;
        }
        let from = offset_in_buffer(at, size);
        let bytes = from - HEADROOM..from + len + padding;
        let datagram = self.slabs[kind as usize]
            .bytes_mut(buffer)
            .get_mut(bytes.clone())?;
        *datagram.first_chunk_mut()? = *header;
        if padding > 0 {
            let end = datagram.len() - padding;
            datagram[end..].fill(0);
        }
        Some(Region { slot, bytes })
    }

    /// Takes references to a slot away.
    pub(crate) fn release(&mut self, slot: u32, count: u32) {
        let (kind, buffer) = Self::buffer_of(slot);
        self.slabs[kind as usize].release(buffer, count);
    }

    /// Takes the references away that a frame's pieces are; those of one slot lie side by side.
    pub(crate) fn release_all(&mut self, pieces: &[Span]) {
        for pieces in pieces.chunk_by(|a, b| a.slot == b.slot) {
            self.release(pieces[0].slot, pieces.len() as u32);
        }
    }

    /// Copies a datagram out of a large buffer into a small one; `None`: it does not fit, or
    /// there is none.
    pub(crate) fn copy_datagram(
        &mut self,
        buffer: BufferId,
        range: Range<usize>,
    ) -> Option<BufferId> {
        let [_, _, large, small] = &mut self.slabs;
        if range.len() > small.buffer_bytes() {
            return None;
        }
        let id = small.take()?;
        small.bytes_mut(id)[..range.len()].copy_from_slice(&large.bytes(buffer)[range]);
        Some(id)
    }

    /// The span of a frame that was read into a buffer: in a small one, if it is short.
    pub(crate) fn keep_frame(&mut self, buffer: BufferId, length: usize) -> Span {
        let mut frame = Span {
            slot: Self::slot(SlabKind::Frame, buffer),
            offset: 0,
            len: length as u32,
        };
        if Self::is_small(length)
            && let Some(small) = self.copy_frame(buffer, frame)
        {
            self.slab(SlabKind::Frame).release(buffer, 1);
            frame.slot = Self::slot(SlabKind::SmallFrame, small);
        }
        frame
    }

    /// Copies a frame into a small buffer, where it lies in one piece; `None`: there is none.
    fn copy_frame(&mut self, buffer: BufferId, frame: Span) -> Option<BufferId> {
        let regions = self.frame_regions(frame);
        let [large, small, ..] = &mut self.slabs;
        let (id, large) = (small.take()?, large.bytes(buffer));
        let mut rest = &mut small.bytes_mut(id)[HEADROOM..];
        for region in regions {
            let (now, later) = rest.split_at_mut(region.bytes.len());
            now.copy_from_slice(&large[region.bytes]);
            rest = later;
        }
        Some(id)
    }

    /// Whether a packet of this size is better off in a small buffer.
    pub(crate) fn is_small(length: usize) -> bool {
        length <= SMALL_BYTES
    }

    /// Whether large buffers of received datagrams run short.
    pub(crate) fn is_short_of_large(&self) -> bool {
        self.slabs[SlabKind::Datagrams as usize].available() < RESERVE
    }

    /// Bytes of the buffers in use.
    pub(crate) fn used_bytes(&self) -> u64 {
        let used = self
            .slabs
            .iter()
            .map(|slab| slab.used() * slab.buffer_bytes());
        used.sum::<usize>() as u64
    }
}

/// Where byte `at` of a frame lies, in pieces of `size` bytes with room in front of each.
fn offset_in_buffer(at: u32, size: u32) -> usize {
    at as usize + (at / size + 1) as usize * HEADROOM
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a frame whose bytes are known, in pieces of `chunk`.
    fn read(memory: &mut Memory, chunk: usize, length: usize) -> (u32, Vec<u8>) {
        let buffer = memory.slab(SlabKind::Frame).take().unwrap();
        let frame: Vec<u8> = (0..length).map(|at| (at * 7 + at / 251) as u8).collect();
        memory.slab(SlabKind::Frame).bytes_mut(buffer).fill(0xee);
        memory.read_frame(buffer, chunk, |pieces| {
            let mut rest = &frame[..];
            for piece in pieces {
                let (now, later) = rest.split_at(piece.len().min(rest.len()));
                piece[..now.len()].copy_from_slice(now);
                rest = later;
            }
            assert_eq!(rest, b"", "the frame does not fit");
        });
        let end = length.min(chunk.max(1025));
        assert_eq!(memory.head(buffer, end), &frame[..end]);
        (Memory::slot(SlabKind::Frame, buffer), frame)
    }

    fn segment(slot: u32, offset: usize, len: usize, padding: u8) -> DatagramParts {
        DatagramParts {
            header_len: HEADROOM as u16,
            payload: Span {
                slot,
                offset: offset as u32,
                len: len as u32,
            },
            padding,
            retransmitted: false,
        }
    }

    fn lies(memory: &Memory, span: Span) -> Vec<u8> {
        let regions = memory.frame_regions(span);
        regions.fold(Vec::new(), |mut all, region| {
            all.extend_from_slice(memory.region(&region));
            all
        })
    }

    #[test]
    fn a_frame_is_found_again_however_it_is_cut() {
        let mut memory = Memory::new(&Limits::default(), 1472);
        // In one piece (0, and those of which 64 would not hold a frame), and in several; the
        // last are those of paths with an MTU of 9,000 and of one that takes a whole frame.
        for chunk in [0, 1, 1024, 1025, 1382, 1418, 1444, 8194, 65_400] {
            for length in [1, 40, 1500, 29_022, 65_222, FRAME_MAX] {
                let (slot, frame) = read(&mut memory, chunk, length);
                for size in [1, 700, 1024, 1300, chunk.max(1), FRAME_MAX] {
                    for offset in (0..length).step_by(size.max(length / 70)) {
                        let len = size.min(length - offset);
                        let span = segment(slot, offset, len, 0).payload;
                        assert_eq!(lies(&memory, span), frame[offset..offset + len]);
                    }
                }
                memory.release(slot, 1);
            }
        }
    }

    #[test]
    fn a_datagram_lies_whole_with_its_header_and_padding() {
        let mut memory = Memory::new(&Limits::default(), 1472);
        let (slot, frame) = read(&mut memory, 1418, 65_222);
        let header = [5; HEADROOM];
        let mut all: Option<Region> = None;
        for index in 0..46 {
            let (offset, padding) = (index * 1418, if index == 45 { 6 } else { 0 });
            let end = (offset + 1418).min(frame.len());
            let segment = segment(slot, offset, end - offset, padding);
            let region = memory.complete_datagram(&segment, &header).unwrap();
            let mut wanted = header.to_vec();
            wanted.extend_from_slice(&frame[offset..end]);
            wanted.resize(HEADROOM + 1418, 0);
            assert_eq!(memory.region(&region), wanted);
            match &mut all {
                Some(all) => assert!(all.join(&region), "chunk {index} lies elsewhere"),
                None => all = Some(region),
            }
        }
        assert_eq!(memory.region(&all.unwrap()).len(), 46 * (HEADROOM + 1418));
        // The frame is what it was.
        let whole = segment(slot, 0, frame.len(), 0).payload;
        assert_eq!(lies(&memory, whole), frame);
    }

    #[test]
    fn a_header_goes_only_where_there_is_room_and_none_may_be_waiting() {
        let mut memory = Memory::new(&Limits::default(), 1472);
        let (slot, frame) = read(&mut memory, 1418, 65_222);
        let header = [5; HEADROOM];
        let fits = segment(slot, 1418, 1418, 0);
        let resent = DatagramParts {
            retransmitted: true,
            ..fits
        };
        let refused = [
            resent,
            // Cut again: begins within a piece, goes beyond its end, is padded beyond it.
            segment(slot, 1300, 1300, 0),
            segment(slot, 1418, 1419, 0),
            segment(slot, 1418, 1400, 19),
        ];
        for segment in refused {
            assert_eq!(
                memory.complete_datagram(&segment, &header),
                None,
                "{segment:?}"
            );
        }
        let whole = segment(slot, 0, frame.len(), 0).payload;
        assert_eq!(lies(&memory, whole), frame);
        assert!(memory.complete_datagram(&fits, &header).is_some());
    }

    #[test]
    fn short_frames_move_with_room_in_front_however_they_lie() {
        let mut memory = Memory::new(&Limits::default(), 1472);
        for length in [1, 62, 1418, 1419, 1438, 1510, 2048] {
            let (slot, frame) = read(&mut memory, 1418, length);
            let kept = memory.keep_frame(Memory::buffer_of(slot).1, length);
            assert_eq!(memory.slab(SlabKind::Frame).used(), 0, "{length}");
            assert_eq!(lies(&memory, kept), frame);
            let region =
                memory.complete_datagram(&segment(kept.slot, 0, length, 0), &[5; HEADROOM]);
            assert_eq!(memory.region(&region.unwrap())[HEADROOM..], frame);
            memory.release(kept.slot, 1);
        }
        let (slot, _) = read(&mut memory, 1418, 2049);
        assert_eq!(
            memory.keep_frame(Memory::buffer_of(slot).1, 2049).slot,
            slot
        );
    }

    #[test]
    fn slots_lead_back_to_their_bytes() {
        let mut memory = Memory::new(&Limits::default(), 1472);
        let large = memory.slab(SlabKind::Datagrams).take().unwrap();
        memory.slab(SlabKind::Datagrams).bytes_mut(large)[100..104].copy_from_slice(b"abcd");
        let small = memory.copy_datagram(large, 100..104).unwrap();
        for (kind, buffer, offset) in [
            (SlabKind::Datagrams, large, 101),
            (SlabKind::SmallDatagram, small, 1),
        ] {
            let slot = Memory::slot(kind, buffer);
            let span = Span {
                slot,
                offset,
                len: 3,
            };
            assert_eq!(memory.bytes(span), b"bcd");
            memory.release(slot, 1);
        }
        assert_eq!(memory.used_bytes(), 0);
        assert_eq!(memory.copy_datagram(large, 0..4096), None);
    }
}
