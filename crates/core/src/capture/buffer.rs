// SPDX-License-Identifier: Apache-2.0

//! Bytes that arrived and were not yet used up.

/// Room for a good number of records. Larger ones make the buffer grow.
const CAPACITY: usize = 256 << 10;

/// A window onto a stream: bytes are added at its end and taken from its start.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Offset in the stream of the window's first byte.
    offset: u64,
    wanted: usize,
}

impl Buffer {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; CAPACITY],
            start: 0,
            end: 0,
            offset: 0,
            wanted: 0,
        }
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    #[inline]
    pub(super) fn window(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The next block needs this many bytes in one piece.
    pub(super) fn want(&mut self, count: usize) {
        self.wanted = count;
    }

    pub(super) fn space(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let needed = self.wanted.max(self.end + 1);
        if self.bytes.len() < needed {
            self.bytes.resize(needed.next_power_of_two(), 0);
        }
        &mut self.bytes[self.end..]
    }

    pub(super) fn filled(&mut self, count: usize) {
        debug_assert!(self.end + count <= self.bytes.len());
        self.end = (self.end + count).min(self.bytes.len());
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let space = self.space();
            let count = space.len().min(rest.len());
            space[..count].copy_from_slice(&rest[..count]);
            self.filled(count);
            rest = &rest[count..];
        }
    }

    /// Takes `count` bytes, which must be in the window.
    #[inline]
    pub(super) fn take(&mut self, count: usize) -> &[u8] {
        let from = self.start;
        self.start += count;
        self.offset += count as u64;
        &self.bytes[from..self.start]
    }

    /// Drops up to `count` bytes and says how many.
    pub(super) fn discard(&mut self, count: u64) -> u64 {
        let count = count.min(self.window().len() as u64);
        self.start += count as usize;
        self.offset += count;
        count
    }
}
