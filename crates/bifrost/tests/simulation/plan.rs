// SPDX-License-Identifier: Apache-2.0

//! What a seed stands for: one kind of fault, with random strength.

mod draft;
mod faults;

use causeway_bifrost::TransportConfig;

use super::link::LinkSettings;
use draft::Draft;

const MS: u64 = 1_000_000;
const US: u64 = 1_000;

macro_rules! cases {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal,)*) => {
        /// The kinds of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Case { $($(#[doc = $doc])* $variant,)* }

        impl Case {
            /// All of them; seed `n` plays the one at `n` modulo their number.
            pub(crate) const ALL: &[Case] = &[$(Case::$variant,)*];

            /// The case's word.
            pub(crate) fn name(self) -> &'static str {
                match self { $(Case::$variant => $name,)* }
            }
        }
    };
}

cases! {
    /// None.
    Clean = "clean",
    /// Single datagrams are lost.
    RandomLoss = "random-loss",
    /// Several in a row.
    BurstLoss = "burst-loss",
    /// Heavy loss in both directions at once.
    DataAndAckLoss = "data-and-ack-loss",
    /// Only acknowledgements are lost.
    AckLoss = "ack-loss",
    /// All paths are down, and come back.
    AllDown = "all-down",
    /// Some paths pass nothing in one direction.
    OneWay = "one-way",
    /// A path goes down and up in step with the engine's timers.
    Flap = "flap",
    /// Paths become ten times longer, and short again.
    TenfoldRtt = "tenfold-rtt",
    /// Datagrams overtake each other within a path.
    Reordering = "reordering",
    /// An endpoint does nothing for 5 to 50 ms.
    Stall = "stall",
    /// The network duplicates.
    Duplicates = "duplicates",
    /// The clock on the wire wraps; sequence numbers do in every case.
    Wraps = "wraps",
    /// An endpoint is restarted.
    Restart = "restart",
    /// Guests' flows share the few numbers that there are for flows.
    Collision = "collision",
    /// Thousands of short flows use these numbers one after the other.
    Reuse = "reuse",
    /// More arrives at once than the bitmap covers.
    LargeBatch = "large-batch",
    /// Slow lines: the windows of all paths are full.
    WindowsFull = "windows-full",
    /// Short queues in the network overflow.
    QueueOverflow = "queue-overflow",
    /// The vNIC has no room.
    VnicFull = "vnic-full",
    /// The engine may hold little.
    MemoryCap = "memory-cap",
    /// Paths become narrower, with notice.
    MtuShrink = "mtu-shrink",
    /// The same without notice.
    SilentMtuShrink = "silent-mtu-shrink",
    /// An attacker sends all sorts of datagrams.
    Attacker = "attacker",
    /// Datagrams arrive after their frame was skipped.
    LateAfterSkip = "late-after-skip",
    /// Keys are rotated.
    Rotation = "rotation",
    /// Paths are taken away, added, and their links go down and up.
    PathChanges = "path-changes",
    /// Several of the above.
    Mixed = "mixed",
}

/// A frame of a guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    /// After the start.
    pub at_ns: u64,
    /// 0 or 1.
    pub host: usize,
    /// The guest's flow.
    pub flow: u32,
    /// Bytes, virtio header included.
    pub len: u32,
}

/// What happens to the world.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Path, sending host, what its link is like from now on.
    Link(usize, usize, LinkSettings),
    /// Host, for how long it does nothing.
    Stall(usize, u64),
    /// Host.
    Restart(usize),
    /// Host, path, the MTU that is reported to it.
    Mtu(usize, usize, u16),
    /// Host, path.
    Remove(usize, usize),
    /// Host, path.
    Add(usize, usize),
    /// Host, its new settings.
    TransportConfig(usize, Box<TransportConfig>),
    /// This many datagrams of an attacker.
    Attacker(u32),
}

/// A vNIC's ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VnicPlan {
    /// Frames that fit.
    pub frames: u64,
    /// The guest takes one in this time.
    pub frame_ns: u64,
}

/// What must hold in the end, beside what must always hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    /// Every frame is delivered.
    pub lossless: bool,
    /// The slowest frame took no longer, from the guest to the other guest.
    pub slowest_ns: u64,
    /// Retransmissions: in thousandths of the chunks sent, and this many more.
    pub resent: (u64, u64),
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Where it came from.
    pub seed: u64,
    /// Its kind.
    pub case: Case,
    /// Settings of both ends.
    pub config: TransportConfig,
    /// The clock's first value.
    pub start_ns: u64,
    /// For each path, the link from host 0 and that from host 1.
    pub links: Vec<[LinkSettings; 2]>,
    /// What the guests send.
    pub offers: Vec<Offer>,
    /// What happens when, after the start.
    pub faults: Vec<(u64, Fault)>,
    /// The vNICs of both ends, if they can be full.
    pub vnic: Option<VnicPlan>,
    /// From here on there are no more faults; every flow sends one more frame, which
    /// must arrive.
    pub quiet_ns: u64,
    /// The end.
    pub end_ns: u64,
    /// What must hold.
    pub expected: Expected,
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Plan {
        let case = Case::ALL[(seed % Case::ALL.len() as u64) as usize];
        let mut draft = Draft::new(seed, case);
        draft.add_faults();
        draft.finish()
    }
}
