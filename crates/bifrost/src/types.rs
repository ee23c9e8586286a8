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
#[must_use = "`Held` is a reference to the slot that the caller has to count"]
pub enum Kept {
    /// One reference is taken; it comes back by `poll_release` or `poll_deliver`.
    Held,
    /// Nothing of the datagram is needed any more.
    Done,
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
pub struct Token(pub(crate) u64);

/// A whole frame, next in its flow's order, for one `writev` to the TUN.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// To be given to [`crate::Engine::delivered`].
    pub token: Token,
    /// The flow's number at the sender. Frames of one flow must be written in the
    /// order in which they are polled; a flow never leaves its writer.
    pub flow: u16,
    /// Bytes in all spans, virtio header included.
    pub len: u32,
    /// The frame's pieces in order, at most 64; the references are the caller's now.
    pub spans: &'a [Span],
}

/// What the vNIC said to a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Taken: it will reach the guest.
    Ok,
    /// Dropped, no room. The sender is asked to send the frame again, and the flow's
    /// later frames wait for it.
    Full,
}

/// One datagram of a batch: header bytes, then payload bytes, then zeroes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Bytes of [`Transmit::headers`] that are this datagram's, following those of
    /// the segment before.
    pub header_len: u16,
    /// What follows the header; `len` is 0 for datagrams of the engine's own, one of
    /// which may be the last of a batch of data.
    pub payload: Span,
    /// Zeroes that follow the payload: with them the last chunk of a frame has the size of the
    /// others, and the next frame's can follow in the same message.
    pub padding: u8,
    /// Whether these bytes are sent again for a loss: what was polled before them, perhaps with a
    /// header in front of the same bytes, may not have left yet. It must have left before
    /// anything is polled after the next `handle_*` or `set_*` call.
    pub resent: bool,
}

/// A batch for one `sendmsg`: datagrams on one path, equal in size but for the last,
/// which may be shorter. The caller keeps one and has it filled again and again.
#[derive(Clone, Debug)]
pub struct Transmit {
    /// The path to send on.
    pub path: PathId,
    /// Bytes of each datagram but the last, for `UDP_SEGMENT`; the AEAD tag included.
    pub segment_size: u16,
    /// Bytes in all.
    pub total: u32,
    /// Whether segments with a payload are to be encrypted: join header, payload and
    /// room for [`crate::wire::TAG_LEN`] bytes in a buffer, and have
    /// [`crate::Engine::seal`] do it. Those without payload are sent as they are.
    pub to_seal: bool,
    /// Headers of all segments, one after the other.
    pub headers: Vec<u8>,
    /// The datagrams, 1 to 64.
    pub segments: Vec<Segment>,
}

impl Default for Transmit {
    fn default() -> Self {
        Transmit {
            path: PathId(0),
            segment_size: 0,
            total: 0,
            to_seal: false,
            headers: Vec::new(),
            segments: Vec::new(),
        }
    }
}

/// What an operator wants to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer has answered: the tunnel can carry traffic.
    PeerUp,
    /// The peer answers as another instance: it was started anew. What was under way
    /// is dropped, both directions begin again.
    PeerRestarted,
    /// The path carries traffic.
    PathAlive(PathId),
    /// The path has stopped answering; what was in flight moves to the others.
    PathDead(PathId),
    /// The path lets through datagrams of this size in bytes, IP header included.
    PathMtu(PathId, u16),
}
