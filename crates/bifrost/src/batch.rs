// SPDX-License-Identifier: Apache-2.0

//! Filling a batch: what one `sendmsg` with UDP_SEGMENT takes.

use crate::types::{PathId, Segment, Transmit};
use crate::wire::{DATA_HEADER_LEN, MAX_CHUNKS};

/// Datagrams of a batch: UDP_MAX_SEGMENTS before Linux 6.10.
const MAX_SEGMENTS: usize = 64;
/// A frame's last chunk is padded to the size of the others with fewer zeroes than this: no
/// more are missing where chunks are equal.
pub(crate) const PADDING_LIMIT: u32 = MAX_CHUNKS as u32;
/// Bytes of a batch: what one UDP send takes, IPv6 header subtracted.
const MAX_BATCH: u32 = 65_400;

impl Transmit {
    pub(crate) fn clear(&mut self) {
        self.headers.clear();
        self.segments.clear();
        (self.segment_size, self.total, self.to_seal) = (0, 0, false);
    }

    /// Whether a datagram of `len` bytes on `path` may join. The last one before may
    /// not have been shorter than the others.
    pub(crate) fn has_room(&self, path: usize, len: u32) -> bool {
        let size = u32::from(self.segment_size);
        self.segments.is_empty()
            || (self.path.index() == path
                && self.segments.len() < MAX_SEGMENTS
                && self.total + len <= MAX_BATCH
                && len <= size
                && self.total == self.segments.len() as u32 * size)
    }

    /// Datagrams of `len` bytes that may join, once one may.
    pub(crate) fn room_for(&self, len: u32) -> u32 {
        if !self.segments.is_empty() && len != u32::from(self.segment_size) {
            return 1;
        }
        let datagrams = (MAX_SEGMENTS - self.segments.len()) as u32;
        datagrams.min((MAX_BATCH - self.total) / len)
    }

    /// Adds a datagram of `len` bytes, `padding` zeroes and the tag included.
    #[inline]
    pub(crate) fn push(
        &mut self,
        path: usize,
        len: u32,
        header: &[u8; DATA_HEADER_LEN],
        segment: Segment,
    ) {
        if self.segments.is_empty() {
            self.path = PathId(path as u8);
            self.segment_size = len as u16;
        }
        self.total += len;
        self.headers.extend_from_slice(header);
        self.segments.push(segment);
    }

    /// A datagram of the engine's own: it stands in `headers` already.
    pub(crate) fn set_own(&mut self, path: usize) {
        let len = self.headers.len();
        self.path = PathId(path as u8);
        (self.segment_size, self.total) = (len as u16, len as u32);
        self.segments.push(Segment {
            header_len: len as u16,
            ..Segment::default()
        });
    }
}
