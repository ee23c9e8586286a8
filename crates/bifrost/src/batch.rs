// SPDX-License-Identifier: Apache-2.0

//! A batch of datagrams: what one `sendmsg` with UDP_SEGMENT takes.

use crate::types::{PathId, Span};
use crate::wire::DATA_HEADER_LEN;

/// Datagrams of a batch: UDP_MAX_SEGMENTS before Linux 6.10.
const MAX_DATAGRAMS: usize = 64;
/// Bytes of a batch: what one UDP send takes, IPv6 header subtracted.
const MAX_BATCH: u32 = 65_400;

/// One datagram of a batch: header bytes, then payload bytes, then zeroes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramParts {
    /// Bytes of [`Transmit::headers`] that are this datagram's, following those of
    /// the datagram before.
    pub header_len: u16,
    /// What follows the header; `len` is 0 for control datagrams, one of which may be the
    /// last of a batch of data.
    pub payload: Span,
    /// Zeroes that follow the payload: with them the last chunk of a frame has the size of the
    /// others, and the next frame's can follow in the same message.
    pub padding: u8,
    /// Whether these bytes are retransmitted: what was polled before them, perhaps with a
    /// header in front of the same bytes, may not have left yet. It must have left before
    /// anything is polled after the next `handle_*` or `set_*` call.
    pub retransmitted: bool,
}

/// A batch for one `sendmsg`: datagrams on one path, equal in size but for the last,
/// which may be shorter. The caller keeps one and has it filled each time.
#[derive(Clone, Debug)]
pub struct Transmit {
    /// The path to send on.
    pub path: PathId,
    /// Bytes of each datagram but the last, for `UDP_SEGMENT`; the AEAD tag included.
    pub segment_size: u16,
    /// Bytes in all.
    pub total: u32,
    /// Whether datagrams with a payload are to be encrypted: join header, payload and
    /// room for [`crate::wire::TAG_LEN`] bytes in a buffer, and have
    /// [`crate::TransportEngine::seal`] do it. Those without payload are sent as they are.
    pub to_seal: bool,
    /// Headers of all datagrams, one after the other.
    pub headers: Vec<u8>,
    /// The datagrams, 1 to 64.
    pub datagrams: Vec<DatagramParts>,
}

impl Default for Transmit {
    fn default() -> Self {
        Transmit {
            path: PathId(0),
            segment_size: 0,
            total: 0,
            to_seal: false,
            headers: Vec::new(),
            datagrams: Vec::new(),
        }
    }
}

impl Transmit {
    pub(crate) fn clear(&mut self) {
        self.headers.clear();
        self.datagrams.clear();
        (self.segment_size, self.total, self.to_seal) = (0, 0, false);
    }

    /// Whether a datagram of `len` bytes on `path` may join. The last one before may
    /// not have been shorter than the others.
    pub(crate) fn accepts(&self, path: usize, len: u32) -> bool {
        let size = u32::from(self.segment_size);
        self.datagrams.is_empty()
            || (self.path.index() == path
                && self.datagrams.len() < MAX_DATAGRAMS
                && self.total + len <= MAX_BATCH
                && len <= size
                && self.total == self.datagrams.len() as u32 * size)
    }

    /// How many datagrams of `len` bytes may join, once one may.
    pub(crate) fn accepts_count(&self, len: u32) -> u32 {
        if !self.datagrams.is_empty() && len != u32::from(self.segment_size) {
            return 1;
        }
        let datagrams = (MAX_DATAGRAMS - self.datagrams.len()) as u32;
        datagrams.min((MAX_BATCH - self.total) / len)
    }

    /// Adds a datagram of `len` bytes, `padding` zeroes and the tag included.
    #[inline]
    pub(crate) fn push(
        &mut self,
        path: usize,
        len: u32,
        header: &[u8; DATA_HEADER_LEN],
        parts: DatagramParts,
    ) {
        if self.datagrams.is_empty() {
            self.path = PathId(path as u8);
            self.segment_size = len as u16;
        }
        self.total += len;
        self.headers.extend_from_slice(header);
        self.datagrams.push(parts);
    }

    /// The batch is one control datagram, which stands in `headers` already.
    pub(crate) fn set_control(&mut self, path: usize) {
        let len = self.headers.len();
        self.path = PathId(path as u8);
        (self.segment_size, self.total) = (len as u16, len as u32);
        self.datagrams.push(DatagramParts {
            header_len: len as u16,
            ..DatagramParts::default()
        });
    }

    /// The last `len` bytes of `headers` are a control datagram that ends the batch.
    pub(crate) fn append_control(&mut self, len: usize) {
        self.total += len as u32;
        self.datagrams.push(DatagramParts {
            header_len: len as u16,
            ..DatagramParts::default()
        });
    }
}
