// SPDX-License-Identifier: Apache-2.0

//! Why a frame or a datagram goes no further. Every loss inside the engine is one of
//! these, is counted once, and its name is the metric's label.

use std::fmt;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal,)*) => {
        /// The reason for a drop.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[must_use]
        pub enum Refused {
            $($(#[doc = $doc])* $variant,)*
        }

        impl Refused {
            /// All reasons, in the order of the counters.
            pub const ALL: &[Refused] = &[$(Refused::$variant,)*];

            /// The counter's, metric's and command's word.
            pub fn name(self) -> &'static str {
                match self { $(Refused::$variant => $name,)* }
            }
        }
    };
}

reasons! {
    /// Frame: the peer has not answered yet, or no path is alive.
    NoPeer = "no-peer",
    /// Frame: the windows or the frame table are full; `can_accept` was not asked.
    NoRoom = "no-room",
    /// Frame: its flow has as many frames under way as a flow may have.
    FlowFull = "flow-full",
    /// Frame: too short for a virtio header and an IP header.
    FrameShort = "frame-short",
    /// Frame: more than 64 chunks at the paths' MTU.
    FrameLong = "frame-long",
    /// Frame: given up after ten tries or 200 ms.
    GaveUp = "gave-up",
    /// Frame: under way when the peer was started anew.
    PeerRestart = "peer-restart",
    /// Datagram: for a path that is not configured, or on another than it names.
    Path = "path",
    /// Datagram: not from the path's peer address.
    Address = "address",
    /// Datagram: of another conversation: an old instance's, a stranger's, or early.
    Epoch = "epoch",
    /// Datagram: sealed with an unknown key, not sealed, or sealed without need.
    Key = "key",
    /// Datagram: its tag does not fit: forged or damaged.
    Forged = "forged",
    /// Datagram: too short, of unknown version or kind, or its fields contradict
    /// each other.
    Malformed = "malformed",
    /// Chunk: its packet number has been seen.
    Duplicate = "duplicate",
    /// Chunk: its packet number lies behind the bitmap. Reply: to a probe of long ago.
    Old = "old",
    /// Chunk: arrived twice, under two packet numbers: sent again without need.
    Again = "again",
    /// Chunk: of a frame that was delivered or skipped.
    Late = "late",
    /// Chunk: of a frame that was cut anew since, for a smaller MTU.
    Recut = "recut",
    /// Chunk: too far ahead in its flow.
    FlowWindow = "flow-window",
    /// Chunk: the tunnel holds as much as it may.
    MemoryCap = "memory-cap",
    /// Chunk: the frame's virtio header or IP header would not be safe to write.
    Virtio = "virtio",
    /// Chunk: of an unfinished frame that was skipped, so that the flow goes on.
    Skipped = "skipped",
    /// Chunk: of a frame that the vNIC had no room for; asked for again.
    VnicFull = "vnic-full",
    /// Probe: more than can be answered at once.
    Flood = "flood",
}

impl Refused {
    pub(crate) const COUNT: usize = Refused::ALL.len();
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One counter for each reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counters([u64; Refused::COUNT]);

impl Default for Counters {
    fn default() -> Self {
        Counters([0; Refused::COUNT])
    }
}

impl Counters {
    pub(crate) fn add(&mut self, reason: Refused, n: u64) {
        self.0[reason as usize] += n;
    }

    pub(crate) fn get(&self, reason: Refused) -> u64 {
        self.0[reason as usize]
    }
}
