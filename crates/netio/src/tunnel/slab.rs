// SPDX-License-Identifier: Apache-2.0
//! Memory for payload: buffers of one size, counted references, no copies.

use std::fmt;

/// Room for whatever a call can give: the largest frame with its virtio header, in pieces that leave
/// room for headers, and the largest batch of datagrams that the kernel merges (64 KiB).
pub const BUFFER_BYTES: usize = 68 * 1024;

/// A buffer of a [`Slab`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BufferId(pub u32);

/// Buffers that are made when first needed, kept, and never more than allowed.
pub struct Slab {
    buffers: Vec<Box<[u8]>>,
    references: Vec<u32>,
    free: Vec<BufferId>,
    max: usize,
    bytes: usize,
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab")
            .field("made", &self.buffers.len())
            .field("free", &self.free.len())
            .field("max", &self.max)
            .finish()
    }
}

impl Slab {
    /// At most `max` buffers of `bytes` each.
    pub fn new(max: usize, bytes: usize) -> Self {
        Self {
            bytes,
            buffers: Vec::new(),
            references: Vec::new(),
            free: Vec::new(),
            max,
        }
    }

    /// A buffer with one reference; `None` when all are in use.
    pub fn take(&mut self) -> Option<BufferId> {
        let id = match self.free.pop() {
            Some(id) => id,
            None if self.buffers.len() < self.max => {
                self.buffers.push(vec![0; self.bytes].into_boxed_slice());
                self.references.push(0);
                BufferId(self.buffers.len() as u32 - 1)
            }
            None => return None,
        };
        self.references[id.0 as usize] = 1;
        Some(id)
    }

    /// Adds references.
    pub fn retain(&mut self, id: BufferId, count: u32) {
        debug_assert!(self.references[id.0 as usize] > 0, "a free buffer");
        self.references[id.0 as usize] += count;
    }

    /// Takes references away; the last one frees the buffer.
    ///
    /// # Panics
    /// When there are fewer, as in a buffer that is free already: two owners would
    /// write to it.
    pub fn release(&mut self, id: BufferId, count: u32) {
        let references = &mut self.references[id.0 as usize];
        assert!(*references >= count, "buffer {} is released twice", id.0);
        let last = count > 0 && *references == count;
        *references -= count;
        if last {
            self.free.push(id);
        }
    }

    /// The bytes of a buffer.
    pub fn bytes(&self, id: BufferId) -> &[u8] {
        &self.buffers[id.0 as usize]
    }

    /// The bytes of a buffer, to be filled.
    pub fn bytes_mut(&mut self, id: BufferId) -> &mut [u8] {
        &mut self.buffers[id.0 as usize]
    }

    /// Buffers with a reference.
    pub fn used(&self) -> usize {
        self.buffers.len() - self.free.len()
    }

    /// Buffers that can still be taken.
    pub fn available(&self) -> usize {
        self.max - self.used()
    }

    /// Bytes of each buffer.
    pub fn buffer_bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_with_their_last_reference() {
        let mut slab = Slab::new(2, 64);
        let (a, b) = (slab.take().unwrap(), slab.take().unwrap());
        assert_eq!(slab.take(), None);
        slab.bytes_mut(a)[0] = 7;
        slab.retain(a, 2);
        slab.release(a, 1);
        slab.release(b, 1);
        assert_eq!((slab.used(), slab.available()), (1, 1));
        assert_eq!(slab.bytes(a)[0], 7);
        assert_eq!(slab.take(), Some(b));
        slab.release(a, 0);
        slab.release(a, 2);
        assert_eq!(slab.take(), Some(a));
    }

    #[test]
    #[should_panic(expected = "released twice")]
    fn a_buffer_has_no_two_owners() {
        let mut slab = Slab::new(1, 64);
        let a = slab.take().unwrap();
        slab.release(a, 1);
        slab.release(a, 1);
    }
}
