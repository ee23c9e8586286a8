// SPDX-License-Identifier: Apache-2.0
//! Ages the flow table (`bpf/lb/flow_table.h`) from user space: the data plane reads no
//! clock for a flow, and need not.
//!
//! A packet makes its flow's age class `live`. The sweep makes it `old`, and what is
//! still `old` when it comes again has been silent meanwhile. What has been silent for
//! long becomes `gone`: such slots are taken first, so that a table full of ended
//! flows does not make new ones evict each other. To the data plane a datagram of a flow
//! that is `gone` is a first one, and the VIP's scheduler picks; a TCP segment brings its
//! flow back to life.
//!
//! Slots are never emptied: what lies in a second bucket would not be found then.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use causeway_core::ages::SilentRounds;
use libbpf_rs::MapHandle;

use super::RealId;
use crate::abi;
use crate::abi::c::{
    AGE_GONE as GONE, AGE_LIVE as LIVE, AGE_MASK, AGE_NEW as NEW, AGE_OLD as OLD, FLOW_CLOSED,
    FLOW_HAS_TOKEN, FLOW_OPENED,
};
use crate::error::Result;
use crate::flow_table::WAYS;
use crate::mapped::{Mapped, Shared};

/// Looks at a slot in the shortest of the times after which something ends.
const LOOKS: u32 = 8;
/// The least time in which all slots are looked at once.
const ROUND_MIN: Duration = Duration::from_millis(250);
/// A slot that the data plane is writing.
const CLAIMED: u32 = LIVE;
/// Open connections are counted in rounds that begin so long behind each other at least: for each the
/// whole entry is read.
const COUNT_EVERY: Duration = Duration::from_secs(5);
const UDP: u8 = 17;

/// A `struct flow_bucket`.
#[repr(C)]
struct Bucket {
    tag: [AtomicU32; WAYS as usize],
}

/// A `struct flow`, as words.
#[repr(C)]
struct FlowSlot {
    key: [AtomicU64; 5],
    /// Real, its generation, VIP.
    route: AtomicU64,
    /// Sequence number of the SYN, bits, token.
    opening: AtomicU64,
    /// The packets, and the estimator's.
    _rest: [u64; 17],
}

// SAFETY: all fields are atomic.
unsafe impl Shared for Bucket {}
// SAFETY: all fields are atomic but those behind `opening`, which are not read.
unsafe impl Shared for FlowSlot {}
const _: () = assert!(size_of::<FlowSlot>() == size_of::<abi::FlowEntry>());

/// How long a flow is kept that is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowIdle {
    /// A UDP flow; its next datagram is a first one then.
    pub udp: Duration,
    /// A TCP connection that the client has ended, or of which only a SYN came.
    pub ended: Duration,
    /// Any other TCP connection. Only its slot is offered to others.
    pub tcp: Duration,
    /// A UDP flow on a real that drains, silent or not, since the sweep learnt of that; `None`
    /// lets it stay. Which reals those are, and how soon flows leave one that is down, the caller
    /// of [`FlowSweep::step`] says.
    pub udp_drain: Option<Duration>,
}

impl Default for FlowIdle {
    /// 2 min, 60 s (TIME_WAIT), 1 h, and never.
    fn default() -> Self {
        Self {
            udp: Duration::from_secs(120),
            ended: Duration::from_secs(60),
            tcp: Duration::from_secs(3600),
            udp_drain: None,
        }
    }
}

impl FlowIdle {
    /// In which time all slots are looked at once.
    fn round(&self) -> Duration {
        (self.udp.min(self.ended).min(self.tcp) / LOOKS).max(ROUND_MIN)
    }
}

/// What a flow table holds, and what became of flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowTotals {
    /// Slots, IPv4 and IPv6.
    pub slots: u64,
    /// Flows in the last round that was looked at whole, those that are gone left out.
    pub flows: u64,
    /// UDP flows that ended by silence, since the start of this process.
    pub udp_idle: u64,
    /// UDP flows taken off reals that drain or are down.
    pub udp_drained: u64,
    /// TCP connections whose slots were offered after they had ended, or had never
    /// been completed.
    pub tcp_ended: u64,
    /// TCP connections whose slots were offered after a long silence.
    pub tcp_idle: u64,
}

/// Open connections by real. Those of a real that had the id before are not its.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenFlows(HashMap<(RealId, u16), u64>);

impl OpenFlows {
    fn add(&mut self, of: Option<(RealId, u16)>) {
        if let Some(of) = of {
            *self.0.entry(of).or_default() += 1;
        }
    }

    /// One more than the largest id.
    pub(super) fn ids(&self) -> u32 {
        (self.0.keys().map(|(real, _)| real + 1).max()).unwrap_or_default()
    }

    /// Those of the reals that `is_in_force` says have this generation.
    pub(super) fn in_force(
        self,
        is_in_force: impl Fn(RealId, u16) -> bool,
    ) -> HashMap<RealId, u64> {
        let open = self.0.into_iter();
        open.filter(|((real, generation), _)| is_in_force(*real, *generation))
            .map(|((real, _), connections)| (real, connections))
            .collect()
    }
}

/// What is remembered of a slot.
#[derive(Clone, Copy, Default)]
struct Seen {
    tag: u32,
    /// Rounds without a packet.
    silent: SilentRounds,
    kind: Kind,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Unknown,
    Udp,
    Tcp,
}

/// One family's table.
struct Table {
    buckets: Mapped<Bucket>,
    flows: Mapped<FlowSlot>,
    seen: Vec<Seen>,
    /// Where the protocol lies in the key: word, and byte in it.
    proto_at: (usize, u32),
}

/// Ages both tables. One per balancer.
pub struct FlowSweep {
    tables: [Table; 2],
    /// The next bucket, over both tables.
    cursor: usize,
    /// Rounds so far, and flows seen in this one.
    round: u64,
    counted: u64,
    last: Option<Duration>,
    /// Buckets that the time since then asks for: parts of one are not forgotten.
    owed: f64,
    /// Since when reals drain, or are down, and after what time UDP flows are to leave them.
    drains: HashMap<RealId, (Duration, Option<Duration>)>,
    /// See [`take_unheard`](Self::take_unheard).
    unheard: HashMap<RealId, u64>,
    /// Open connections seen in this round, and in the last one that was looked at whole, see
    /// [`take_open`](Self::take_open).
    open: OpenFlows,
    open_of_round: Option<OpenFlows>,
    /// Whether this round counts them, and when the last one that does has begun.
    counts_open: bool,
    counted_at: Duration,
    totals: FlowTotals,
}

impl FlowSweep {
    pub(super) fn new(v4: [&MapHandle; 2], v6: [&MapHandle; 2]) -> Result<Self> {
        // struct flow_key4 and struct flow_key6.
        let tables = [Table::new(v4, (1, 4))?, Table::new(v6, (4, 4))?];
        let slots = tables.iter().map(|table| table.seen.len() as u64).sum();
        Ok(Self {
            tables,
            cursor: 0,
            round: 0,
            counted: 0,
            last: None,
            owed: 0.0,
            drains: HashMap::new(),
            unheard: HashMap::new(),
            open: OpenFlows::default(),
            open_of_round: None,
            counts_open: false,
            counted_at: Duration::ZERO,
            totals: FlowTotals {
                slots,
                ..FlowTotals::default()
            },
        })
    }

    /// What there is, and what became of flows so far.
    pub fn totals(&self) -> FlowTotals {
        self.totals
    }

    /// Connections of which only a SYN came, by real, that have ended since the last call: no
    /// packet has ended them, so that no counter of the data plane knows.
    pub fn take_unheard(&mut self) -> HashMap<RealId, u64> {
        std::mem::take(&mut self.unheard)
    }

    /// TCP connections that the table holds, whose opening was counted and whose end has not come,
    /// by real; those that were silent for too long are left out. `None` if no round has ended
    /// since the last call.
    pub fn take_open(&mut self) -> Option<OpenFlows> {
        self.open_of_round.take()
    }

    /// Those of the whole table, and how many flows it holds, at once: what a former daemon left.
    fn count_open(&self) -> (OpenFlows, u64) {
        let (mut open, mut flows) = (OpenFlows::default(), 0);
        for table in &self.tables {
            for bucket in 0..table.buckets.len() {
                for way in 0..WAYS as usize {
                    flows += u64::from(table.holds(bucket, way));
                    open.add(table.holds_open(bucket, way));
                }
            }
        }
        (open, flows)
    }

    /// Looks at the share of the table that the time since the last call asks for.
    /// `now` is on any clock that does not go back; `draining` are the reals that UDP flows are
    /// to leave, and after what time, if at all.
    pub fn step(
        &mut self,
        now: Duration,
        idle: &FlowIdle,
        draining: &[(RealId, Option<Duration>)],
    ) {
        // In one pass: where a rack is down, there are thousands.
        let before = std::mem::take(&mut self.drains);
        let begun = |real: &RealId| before.get(real).map_or(now, |(since, _)| *since);
        let drains = draining.iter();
        let drains = drains.map(|(real, after)| (*real, (begun(real), *after)));
        self.drains = drains.collect();
        let since = match self.last.replace(now) {
            Some(last) => now.saturating_sub(last),
            None => {
                let (open, flows) = self.count_open();
                self.open_of_round = Some(open);
                self.totals.flows = flows;
                (self.counts_open, self.counted_at) = (true, now);
                Duration::ZERO
            }
        };
        let buckets: usize = self.tables.iter().map(|table| table.buckets.len()).sum();
        let part = since.as_secs_f64() / idle.round().as_secs_f64();
        self.owed = (self.owed + part * buckets as f64).min(buckets as f64);
        let count = self.owed as usize;
        self.owed -= count as f64;
        let mut limits = Limits::of(idle, self.round);
        for _ in 0..count {
            self.look(now, &limits);
            self.cursor += 1;
            if self.cursor == buckets {
                (self.cursor, self.round) = (0, self.round + 1);
                self.totals.flows = std::mem::take(&mut self.counted);
                let open = std::mem::take(&mut self.open);
                if self.counts_open {
                    self.open_of_round = Some(open);
                }
                self.counts_open = now.saturating_sub(self.counted_at) >= COUNT_EVERY;
                if self.counts_open {
                    self.counted_at = now;
                }
                limits = Limits::of(idle, self.round);
            }
        }
    }

    fn look(&mut self, now: Duration, limits: &Limits) {
        let first = self.tables[0].buckets.len();
        let (table, bucket) = match self.cursor.checked_sub(first) {
            None => (&mut self.tables[0], self.cursor),
            Some(bucket) => (&mut self.tables[1], bucket),
        };
        let drained = |real: RealId| {
            let drain = self.drains.get(&real);
            let drain = drain.and_then(|(since, after)| Some((since, (*after)?)));
            drain.is_some_and(|(since, after)| now.saturating_sub(*since) >= after)
        };
        let has_drains = !self.drains.is_empty();
        for way in 0..WAYS as usize {
            match table.judge(bucket, way, limits, has_drains.then_some(&drained)) {
                Judged::Empty => {}
                Judged::Kept => {
                    self.counted += 1;
                    if self.counts_open {
                        self.open.add(table.holds_open(bucket, way));
                    }
                }
                Judged::UdpIdle => self.totals.udp_idle += 1,
                Judged::UdpDrained => self.totals.udp_drained += 1,
                Judged::TcpEnded => self.totals.tcp_ended += 1,
                Judged::TcpUnheard(real) => {
                    self.totals.tcp_ended += 1;
                    *self.unheard.entry(real).or_default() += 1;
                }
                Judged::TcpIdle => self.totals.tcp_idle += 1,
            }
        }
    }
}

/// Lengths of silence, in rounds.
struct Limits {
    udp: u32,
    ended: u32,
    tcp: u32,
    /// Whether live connections are to give a sign of life from now on.
    asks_tcp: bool,
}

impl Limits {
    /// In round number `round`.
    fn of(idle: &FlowIdle, round: u64) -> Self {
        let rounds = |length| SilentRounds::of(length, idle.round());
        // As seldom as will do: a sign of life is a write to the table.
        let apart = (u64::from(rounds(idle.tcp)) / u64::from(LOOKS)).max(1);
        Self {
            udp: rounds(idle.udp),
            ended: rounds(idle.ended),
            tcp: rounds(idle.tcp),
            asks_tcp: round.is_multiple_of(apart),
        }
    }
}

enum Judged {
    /// No flow's, or gone already.
    Empty,
    Kept,
    UdpIdle,
    UdpDrained,
    TcpEnded,
    /// Of the real's connection no packet but its SYN came.
    TcpUnheard(RealId),
    TcpIdle,
}

impl Table {
    fn new([buckets, flows]: [&MapHandle; 2], proto_at: (usize, u32)) -> Result<Self> {
        let (buckets, flows) = (Mapped::new(buckets)?, Mapped::new(flows)?);
        let seen = vec![Seen::default(); buckets.len() * WAYS as usize];
        Ok(Self {
            buckets,
            flows,
            seen,
            proto_at,
        })
    }

    /// Whether a slot holds a flow.
    fn holds(&self, bucket: usize, way: usize) -> bool {
        let tag = self.buckets[bucket].tag[way].load(Ordering::Acquire);
        tag != 0 && tag != CLAIMED && tag & AGE_MASK != GONE
    }

    /// The real, with its generation, of the open connection that a slot holds, if it does.
    fn holds_open(&self, bucket: usize, way: usize) -> Option<(RealId, u16)> {
        let flow = &self.flows[bucket * WAYS as usize + way];
        let is_open =
            self.holds(bucket, way) && flow.proto(self.proto_at) != UDP && flow.was_opened();
        is_open.then(|| (flow.real(), flow.generation()))
    }

    /// Looks at one slot.
    fn judge(
        &mut self,
        bucket: usize,
        way: usize,
        limits: &Limits,
        drained: Option<&impl Fn(RealId) -> bool>,
    ) -> Judged {
        let at = bucket * WAYS as usize + way;
        let slot = &self.buckets[bucket].tag[way];
        let tag = slot.load(Ordering::Acquire);
        let age = tag & AGE_MASK;
        if tag == 0 || tag == CLAIMED || age == GONE {
            self.seen[at] = Seen::default();
            return Judged::Empty;
        }
        let former = self.seen[at];
        let flow = &self.flows[at];
        // The kind is the flow's as long as the fingerprint is.
        let kind = match former.tag & !AGE_MASK == tag & !AGE_MASK {
            true => former.kind,
            false => Kind::Unknown,
        };
        let kind = match kind {
            Kind::Unknown if flow.proto(self.proto_at) == UDP => Kind::Udp,
            Kind::Unknown => Kind::Tcp,
            known => known,
        };
        // A live one may have been seen again, any number of times.
        let silent = match tag == former.tag && age != LIVE {
            true => former.silent.and_one(),
            false => SilentRounds::default(),
        };
        let closed = kind == Kind::Tcp && age != LIVE && flow.is_closed();
        let (limit, end) = match kind {
            Kind::Udp => (limits.udp, Judged::UdpIdle),
            _ if closed => (limits.ended, Judged::TcpEnded),
            _ if age == NEW && flow.is_open() => (limits.ended, Judged::TcpUnheard(flow.real())),
            _ if age == NEW => (limits.ended, Judged::TcpEnded),
            _ => (limits.tcp, Judged::TcpIdle),
        };
        let is_drained = kind == Kind::Udp && drained.is_some_and(|drained| drained(flow.real()));
        if is_drained || silent.get() >= limit {
            self.seen[at] = Seen::default();
            // A packet that comes this very moment wins.
            return match exchange(slot, tag, GONE) {
                false => Judged::Kept,
                true if is_drained => Judged::UdpDrained,
                true => end,
            };
        }
        // The next packet is to show: it makes a live flow live again, a closed one old.
        let asked = match (kind, age) {
            (Kind::Udp, LIVE) => OLD,
            (Kind::Tcp, LIVE) if limits.asks_tcp => OLD,
            (Kind::Tcp, OLD) if closed => NEW,
            _ => age,
        };
        let now = match asked == age || exchange(slot, tag, asked) {
            true => tag & !AGE_MASK | asked,
            false => 0,
        };
        self.seen[at] = Seen {
            tag: now,
            silent,
            kind,
        };
        Judged::Kept
    }
}

/// Gives a slot another age class, unless the data plane has just changed it.
fn exchange(slot: &AtomicU32, tag: u32, age: u32) -> bool {
    let wanted = tag & !AGE_MASK | age;
    slot.compare_exchange(tag, wanted, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

impl FlowSlot {
    fn proto(&self, (word, byte): (usize, u32)) -> u8 {
        let bytes = self.key[word].load(Ordering::Relaxed).to_ne_bytes();
        bytes[byte as usize]
    }

    fn real(&self) -> RealId {
        self.route.load(Ordering::Relaxed) as RealId
    }

    fn generation(&self) -> u16 {
        (self.route.load(Ordering::Relaxed) >> 32) as u16
    }

    fn bits(&self) -> u8 {
        (self.opening.load(Ordering::Relaxed) >> 32) as u8
    }

    fn is_closed(&self) -> bool {
        self.bits() & FLOW_CLOSED != 0
    }

    /// Whether its opening was counted, and no end.
    fn was_opened(&self) -> bool {
        self.bits() & (FLOW_OPENED | FLOW_CLOSED) == FLOW_OPENED
    }

    /// The same, and no slot tells more. Of a connection in a slot, what comes behind its
    /// SYN is told there.
    fn is_open(&self) -> bool {
        self.bits() & (FLOW_OPENED | FLOW_CLOSED | FLOW_HAS_TOKEN) == FLOW_OPENED
    }
}

#[cfg(test)]
mod tests;
