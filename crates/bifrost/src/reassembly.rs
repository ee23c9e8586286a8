// SPDX-License-Identifier: Apache-2.0

//! Chunks become frames. Only descriptors are kept; the payload stays where the network
//! put it.

use std::num::NonZeroU32;

use crate::drop_reason::DropReason;
use crate::release_queue::ReleaseQueue;
use crate::types::{Release, Span};
use crate::wire::{DataHeader, MAX_CHUNKS};

/// A frame on its way to being whole.
#[derive(Clone, Debug)]
struct Assembly {
    spans: [Span; MAX_CHUNKS],
    /// A bit for each chunk that is there.
    got: u64,
    bytes: u32,
    len: u32,
    size: u16,
    chunks: u8,
    /// The vNIC dropped it; its retransmission is asked for until it is whole.
    refused: bool,
}

impl Assembly {
    fn is_complete(&self) -> bool {
        self.got == u64::MAX >> (MAX_CHUNKS - usize::from(self.chunks))
    }
}

/// Names an assembly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AssemblyRef(NonZeroU32);

impl AssemblyRef {
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// What is held of frames whose turn it is not, or that are not whole.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Buffered {
    pub chunks: u32,
    pub bytes: u64,
    pub peak_chunks: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    assemblies: Vec<Assembly>,
    free: Vec<AssemblyRef>,
    held: Buffered,
}

impl Reassembly {
    pub(crate) fn buffered(&self) -> Buffered {
        self.held
    }

    fn get(&self, at: AssemblyRef) -> &Assembly {
        &self.assemblies[at.index()]
    }

    fn get_mut(&mut self, at: AssemblyRef) -> &mut Assembly {
        &mut self.assemblies[at.index()]
    }

    /// Begins the frame of a chunk.
    pub(crate) fn begin(&mut self, data: &DataHeader) -> AssemblyRef {
        let at = self.free.pop().unwrap_or_else(|| {
            self.assemblies.push(Assembly {
                spans: [Span::default(); MAX_CHUNKS],
                got: 0,
                bytes: 0,
                len: 0,
                size: 0,
                chunks: 1,
                refused: false,
            });
            AssemblyRef(NonZeroU32::MIN.saturating_add(self.assemblies.len() as u32 - 1))
        });
        let assembly = self.get_mut(at);
        (assembly.got, assembly.bytes, assembly.refused) = (0, 0, false);
        assembly.len = data.frame_len() as u32;
        assembly.size = data.size;
        assembly.chunks = data.chunks() as u8;
        at
    }

    /// Checks that a chunk belongs to a frame as it is segmented; drops what came before, if
    /// the frame was segmented again since.
    ///
    /// # Errors
    /// The chunk is of no use.
    pub(crate) fn admit(
        &mut self,
        at: AssemblyRef,
        data: &DataHeader,
        released: &mut ReleaseQueue,
    ) -> Result<(), DropReason> {
        let assembly = self.get(at);
        if usize::try_from(assembly.len) != Ok(data.frame_len()) || data.size > assembly.size {
            return Err(DropReason::Resegmented);
        }
        if data.size < assembly.size {
            if assembly.is_complete() {
                return Err(DropReason::Redundant);
            }
            // Segmented again for a smaller MTU: what came before is of no use.
            self.empty(at, DropReason::Resegmented, released);
            let assembly = self.get_mut(at);
            assembly.size = data.size;
            assembly.chunks = data.chunks() as u8;
        }
        Ok(())
    }

    /// Adds `count` chunks that follow one another from `index` on, with `bytes` in all and
    /// pieces `stride` bytes apart. `None`: there is one of them already, and none is added.
    /// Else whether the frame is whole now.
    pub(crate) fn add(
        &mut self,
        at: AssemblyRef,
        (index, count): (usize, u8),
        (mut piece, stride): (Span, u32),
        bytes: u32,
    ) -> Option<bool> {
        let assembly = &mut self.assemblies[at.index()];
        let mask = u64::MAX >> (64 - count) << index;
        if assembly.got & mask != 0 {
            return None;
        }
        let mut left = bytes;
        for span in &mut assembly.spans[index..index + usize::from(count)] {
            piece.len = left.min(assembly.size.into());
            *span = piece;
            piece.offset += stride;
            left -= piece.len;
        }
        assembly.got |= mask;
        assembly.bytes += bytes;
        let complete = assembly.is_complete();
        assembly.refused &= !complete;
        let held = &mut self.held;
        held.chunks += u32::from(count);
        held.bytes += u64::from(bytes);
        held.peak_chunks = held.peak_chunks.max(held.chunks);
        Some(complete)
    }

    pub(crate) fn is_complete(&self, at: AssemblyRef) -> bool {
        self.get(at).is_complete()
    }

    /// Whether the vNIC dropped the frame, and not all of its retransmission has come.
    pub(crate) fn is_refused(&self, at: AssemblyRef) -> bool {
        self.get(at).refused
    }

    /// Bytes of the frame.
    pub(crate) fn len(&self, at: AssemblyRef) -> u32 {
        self.get(at).len
    }

    /// The pieces of a whole frame.
    pub(crate) fn spans(&self, at: AssemblyRef) -> &[Span] {
        let assembly = self.get(at);
        &assembly.spans[..usize::from(assembly.chunks)]
    }

    /// The frame's references are the caller's; the assembly is gone.
    pub(crate) fn finish(&mut self, at: AssemblyRef) {
        self.forget(at);
        self.free.push(at);
    }

    /// The frame's references are the caller's, and it will come once more. Gives the number
    /// of its chunks.
    pub(crate) fn refuse(&mut self, at: AssemblyRef) -> u32 {
        self.get_mut(at).refused = true;
        self.forget(at)
    }

    /// Drops the frame.
    pub(crate) fn discard(
        &mut self,
        at: AssemblyRef,
        reason: DropReason,
        released: &mut ReleaseQueue,
    ) {
        self.empty(at, reason, released);
        self.free.push(at);
    }

    /// Drops the chunks of a frame.
    fn empty(&mut self, at: AssemblyRef, reason: DropReason, released: &mut ReleaseQueue) {
        self.release(at, released);
        let chunks = self.forget(at);
        released.drops.add(reason, u64::from(chunks));
    }

    /// Gives back the references of a frame's chunks.
    pub(crate) fn release(&self, at: AssemblyRef, released: &mut ReleaseQueue) {
        let assembly = self.get(at);
        for index in bits(assembly.got) {
            let slot = assembly.spans[index].slot;
            released.push(Release { slot, count: 1 });
        }
    }

    /// Nothing of a frame is held any more. Gives the number of its chunks.
    fn forget(&mut self, at: AssemblyRef) -> u32 {
        let assembly = &mut self.assemblies[at.index()];
        let chunks = assembly.got.count_ones();
        self.held.chunks -= chunks;
        self.held.bytes -= u64::from(assembly.bytes);
        (assembly.got, assembly.bytes) = (0, 0);
        chunks
    }

    /// Forgets all frames, whose references have been given back.
    pub(crate) fn clear(&mut self) {
        let peak_chunks = self.held.peak_chunks;
        *self = Reassembly::default();
        self.held.peak_chunks = peak_chunks;
    }
}

fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (word != 0).then(|| {
            let bit = word.trailing_zeros() as usize;
            word &= word - 1;
            bit
        })
    })
}
