// SPDX-License-Identifier: Apache-2.0

//! Why a frame or a datagram goes no further. Every loss inside the engine is one of
//! these, is counted once, and its name is the metric's label.

use std::fmt;

use crate::wire::Malformed;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal,)*) => {
        /// The reason for a drop.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[must_use]
        pub enum DropReason {
            $($(#[doc = $doc])* $variant,)*
        }

        impl DropReason {
            /// All reasons, in the order of the counters.
            pub const ALL: &[DropReason] = &[$(DropReason::$variant,)*];

            /// The counter's, metric's and command's word.
            pub fn name(self) -> &'static str {
                match self { $(DropReason::$variant => $name,)* }
            }
        }
    };
}

reasons! {
    /// Frame: the peer has not answered yet, or no path is alive.
    NoPeer = "no-peer",
    /// Frame: this end or the peer holds as much as it may; `can_accept` was not asked.
    Backpressure = "backpressure",
    /// Frame: its flow has as much under way as a flow may have.
    FlowFull = "flow-full",
    /// Frame: too short for a virtio header and an IP header.
    FrameShort = "frame-short",
    /// Frame: more than 64 chunks at the paths' MTU.
    FrameLong = "frame-long",
    /// Frame: its lifetime is over, or a chunk of it was sent as often as allowed.
    Abandoned = "abandoned",
    /// Frame: under way when the peer was restarted. Chunk: held then until its turn.
    PeerRestart = "peer-restart",
    /// Datagram: for a path that is not configured, or on another than it names.
    Path = "path",
    /// Datagram: not from the path's peer address.
    Address = "address",
    /// Datagram: of another session: of an earlier instance, of an unknown one, or early.
    Epoch = "epoch",
    /// Datagram: sealed with an unknown key, not sealed, or sealed without need.
    Key = "key",
    /// Datagram: its tag does not fit: forged or damaged.
    Forged = "forged",
    /// Datagram: of another version of the wire format.
    Version = "version",
    /// Datagram: too short, of unknown kind, or its fields contradict
    /// each other.
    Malformed = "malformed",
    /// Chunk: its packet number has been seen.
    Duplicate = "duplicate",
    /// Chunk: its packet number lies behind the bitmap. Reply: to a probe of long ago, or to
    /// one that has been answered.
    Old = "old",
    /// Chunk: arrived twice, under two packet numbers: retransmitted without need.
    Redundant = "redundant",
    /// Chunk: of a frame that was delivered or skipped.
    Late = "late",
    /// Chunk: of a frame that was segmented again since, for a smaller MTU.
    Resegmented = "resegmented",
    /// Chunk: beyond its flow's window.
    FlowWindow = "flow-window",
    /// Chunk: the tunnel holds as much as it may, or its memory runs short.
    MemoryCap = "memory-cap",
    /// Chunk: the frame's virtio header or IP header would not be safe to write.
    Virtio = "virtio",
    /// Chunk: of an unfinished frame that was skipped, so that the flow goes on.
    Skipped = "skipped",
    /// Chunk: of a frame that the vNIC dropped; its retransmission is asked for.
    VnicFull = "vnic-full",
    /// Probe: more than can be answered at once. Probe, reply: of more unknown instances than keys
    /// are derived for.
    Flood = "flood",
}

impl From<Malformed> for DropReason {
    fn from(_: Malformed) -> DropReason {
        DropReason::Malformed
    }
}

impl DropReason {
    pub(crate) const COUNT: usize = DropReason::ALL.len();
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One counter for each reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DropCounters([u64; DropReason::COUNT]);

impl Default for DropCounters {
    fn default() -> Self {
        DropCounters([0; DropReason::COUNT])
    }
}

impl DropCounters {
    pub(crate) fn add(&mut self, reason: DropReason, n: u64) {
        self.0[reason as usize] += n;
    }

    pub(crate) fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }
}
