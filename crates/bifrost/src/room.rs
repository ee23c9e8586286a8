// SPDX-License-Identifier: Apache-2.0

//! What an endpoint can hold of frames whose turn it is not yet.

use crate::config::Limits;
use crate::wire::MAX_CHUNKS;

/// How much an endpoint can hold: its peer has no more under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Chunks.
    pub chunks: u32,
    /// Their bytes, in units of 1024.
    pub kib: u32,
}

impl Room {
    pub(crate) const MOST: Room = Room {
        chunks: u32::MAX,
        kib: u32::MAX,
    };

    /// What is told to the peer. A quarter is a reserve: for what the peer has given up
    /// and this end has not, and for the chunk whose turn it is.
    pub(crate) fn of(limits: &Limits) -> Room {
        let kib = (limits.chunk_bytes - limits.chunk_bytes / 4) / 1024;
        Room {
            chunks: limits.chunks - limits.chunks / 4,
            kib: u32::try_from(kib).unwrap_or(u32::MAX),
        }
    }

    /// No less than a frame, whatever the peer says: it would wait for ever.
    pub(crate) fn at_least_a_frame(self) -> Room {
        Room {
            chunks: self.chunks.max(MAX_CHUNKS as u32),
            kib: self.kib.max(65),
        }
    }

    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.kib) * 1024
    }
}
