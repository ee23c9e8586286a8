// SPDX-License-Identifier: Apache-2.0

//! What goes in and out of the engine.

use std::fmt;

/// The number of a path, the same at both ends, below [`PathId::LIMIT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub u8);

impl PathId {
    /// Paths that a tunnel can have.
    pub const LIMIT: usize = 16;

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A range of bytes in a slot of the caller's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The caller's name for the slot; the engine only hands it back.
    pub slot: u32,
    /// First byte.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

/// Whether the engine has taken a reference to a datagram's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "`Taken` is a reference to the slot that the caller has to count"]
pub enum SlotReference {
    /// One reference is taken; it comes back by `poll_release` or `poll_deliver`.
    Taken,
    /// Nothing of the datagram is needed any more.
    NotTaken,
}

/// References to a slot that the engine gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The slot.
    pub slot: u32,
    /// References, at least one.
    pub count: u32,
}

/// Names a delivery until its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryToken(pub(crate) u64);

/// A whole frame, next in its flow's order, for one `writev` to the TUN.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// To be given to [`crate::TransportEngine::delivered`].
    pub token: DeliveryToken,
    /// The flow's number at the sender. Frames of one flow must be written in the
    /// order in which they are polled; a flow never leaves its writer.
    pub flow: u16,
    /// Bytes in all spans, virtio header included.
    pub len: u32,
    /// The frame's pieces in order, at most 64; the references are the caller's now.
    pub spans: &'a [Span],
}

/// What the vNIC did with a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryVerdict {
    /// Taken: it will reach the guest.
    Ok,
    /// Dropped, no room. The sender is asked to retransmit the frame, and the flow's
    /// later frames wait for it.
    Full,
}
