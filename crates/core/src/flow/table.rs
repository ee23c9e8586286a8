// SPDX-License-Identifier: Apache-2.0

//! A bounded table of flows.
//!
//! Both directions of a flow share one entry, found with one look-up: the index
//! holds each flow under its higher-port side first, which is also the usual
//! client, and the entry says when the client is the other side.
//!
//! A caller that knows packets in advance calls `prefetch_index` for all of them, then
//! `prefetch_entry` for all of them, and only then looks up the first, where that one
//! has guessed it.
//!
//! A full table gives up a flow that has been silent for long: of eight
//! entries in turn the one with the oldest packet. That is close to least
//! recently used without a list that every packet would have to re-link.

use super::index::{Index, prefetch_lines};
use super::key::Packed;
use super::{Direction, FlowKey, FlowState, HashedFlow, Hint};

/// Entries looked at to find one to give up.
const EVICTION_SAMPLE: usize = 8;

/// Cache lines of an entry that most packets need: the key, and the state of the
/// first estimator.
const PREFETCH_LINES: usize = 4;

/// The side that sent a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The client: the request direction.
    Client,
    /// The server: the response direction.
    Server,
}

/// What [`FlowTable::look_up`] found.
#[derive(Debug)]
pub struct Lookup<'a, V> {
    /// The side that sent this packet.
    pub sender: Sender,
    /// The flow's name.
    pub name: Name<'a>,
    /// The flow's value.
    pub value: &'a mut V,
}

/// The name of a flow as its entry holds it. Few packets need it.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    key: &'a FlowKey,
    flipped: bool,
}

impl<'a> Name<'a> {
    /// Of a flow, client first.
    pub(super) fn of(flow: &'a FlowKey) -> Self {
        Self {
            key: flow,
            flipped: false,
        }
    }

    /// The flow, client first.
    pub fn flow(&self) -> FlowKey {
        if self.flipped {
            self.key.reversed()
        } else {
            *self.key
        }
    }

    /// Gives the flow, client first, to `take`, without a copy where it stands so.
    #[inline]
    pub fn tell<R>(&self, take: impl FnOnce(&FlowKey) -> R) -> R {
        if self.flipped {
            take(&self.key.reversed())
        } else {
            take(self.key)
        }
    }
}

/// A flow that had to make room, or that a SYN turned around.
#[derive(Debug, PartialEq, Eq)]
pub struct Evicted<V> {
    /// The flow, client first.
    pub flow: FlowKey,
    /// Its value.
    pub value: V,
}

/// Where to look for a packet's flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    hash: u32,
    swapped: bool,
}

impl Probe {
    /// By the lower half of the hash, and whether the packet's name is the other one.
    #[inline]
    pub(super) fn new(hash: u32, swapped: bool) -> Self {
        Self { hash, swapped }
    }
}

/// As long as whole cache lines; the first one is all that other flows' packets
/// look at.
#[derive(Debug)]
#[repr(C, align(64))]
struct Entry<V> {
    key: FlowKey,
    last_ns: u64,
    /// The client is `key.dst`.
    flipped: bool,
    value: V,
}

impl<V> Entry<V> {
    /// A packet came at `now_ns`, under the other name where `swapped`.
    #[inline(always)]
    fn seen(&mut self, swapped: bool, now_ns: u64) -> Lookup<'_, V> {
        self.last_ns = now_ns;
        let sender = if self.flipped == swapped {
            Sender::Client
        } else {
            Sender::Server
        };
        Lookup {
            sender,
            name: Name {
                key: &self.key,
                flipped: self.flipped,
            },
            value: &mut self.value,
        }
    }

    fn flow(&self) -> FlowKey {
        if self.flipped {
            self.key.reversed()
        } else {
            self.key
        }
    }
}

/// Flows by five-tuple. The order of [`FlowTable::drain`] is that of first packets
/// as long as nothing was evicted.
#[derive(Debug)]
pub struct FlowTable<V> {
    index: Index,
    hash: FlowState,
    entries: Vec<Entry<V>>,
    direction: Direction,
    max_flows: usize,
    hand: usize,
    evictions: u64,
}

impl<V> FlowTable<V> {
    /// A table of at most `max_flows` (at least 1), hashed with `seed`.
    pub fn new(direction: Direction, max_flows: u32, seed: u64) -> Self {
        Self {
            index: Index::new(),
            hash: FlowState::new(seed),
            entries: Vec::new(),
            direction,
            max_flows: max_flows.max(1) as usize,
            hand: 0,
            evictions: 0,
        }
    }

    /// Flows in the table.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no flows.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Flows given up so far because the table was full.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Asks for the part of the index that a look-up by this hash needs.
    #[inline]
    pub(super) fn prefetch_index(&self, hash: u32) {
        self.index.prefetch(hash);
    }

    /// Guesses the place of the flow with this hash, and asks for the entry and the part of
    /// its value behind it that most packets need. [`u32::MAX`]: there is none.
    #[inline]
    pub(super) fn prefetch_entry(&self, hash: u32) -> u32 {
        // By the hash alone: to compare the keys would mean to wait.
        match self.index.find(hash, |_| true) {
            Some(slot) if let Some(entry) = self.entries.get(slot as usize) => {
                prefetch_lines(entry, PREFETCH_LINES);
                slot
            }
            _ => u32::MAX,
        }
    }

    /// Finds the flow of a packet sent at `now_ns`, and makes it with `new` if
    /// there is none. `evict` takes the flow that had to make room.
    ///
    /// A SYN from the side that was taken for the server turns the flow round:
    /// `evict` takes the old one and a new one begins.
    #[inline]
    pub fn look_up(
        &mut self,
        packet: &FlowKey,
        hint: Hint,
        now_ns: u64,
        new: impl FnOnce() -> V,
        evict: impl FnMut(Evicted<V>),
    ) -> Lookup<'_, V> {
        self.find(packet, self.probe(packet), hint, now_ns, new, evict)
    }

    /// Where to look for the flow of a packet.
    pub(super) fn probe(&self, packet: &FlowKey) -> Probe {
        let HashedFlow { hash, swapped, .. } = HashedFlow::of(packet, &self.hash);
        Probe::new(hash as u32, swapped)
    }

    /// [`FlowTable::look_up`] by a probe of the same packet.
    pub(super) fn find(
        &mut self,
        packet: &FlowKey,
        probe: Probe,
        hint: Hint,
        now_ns: u64,
        new: impl FnOnce() -> V,
        evict: impl FnMut(Evicted<V>),
    ) -> Lookup<'_, V> {
        let slot = self.search(packet, probe, hint, now_ns, new, evict);
        self.entries[slot].seen(probe.swapped, now_ns)
    }

    /// The flow of a packet, if it is the one that was guessed and the packet changes
    /// nothing in the table; of IPv6 that cannot be known.
    #[inline(always)]
    pub(super) fn guessed(
        &mut self,
        guess: u32,
        name: Packed,
        swapped: bool,
        hint: Hint,
        now_ns: u64,
    ) -> Option<Lookup<'_, V>> {
        // Flows may have come and gone since the guess; the name decides.
        let entry = self.entries.get_mut(guess as usize)?;
        let stays = hint != Hint::Opens || entry.flipped == swapped;
        (stays && entry.key.has_name(name)).then(|| entry.seen(swapped, now_ns))
    }

    /// Gives all flows to `visit`, client first.
    pub(super) fn each(&mut self, mut visit: impl FnMut(FlowKey, &mut V)) {
        for entry in &mut self.entries {
            visit(entry.flow(), &mut entry.value);
        }
    }

    /// Takes all flows out.
    pub fn drain(&mut self) -> impl Iterator<Item = Evicted<V>> + '_ {
        self.index.clear();
        self.hand = 0;
        self.entries.drain(..).map(|entry| Evicted {
            flow: entry.flow(),
            value: entry.value,
        })
    }

    /// Where the flow of a packet is, or is made.
    fn search(
        &mut self,
        packet: &FlowKey,
        probe: Probe,
        hint: Hint,
        now_ns: u64,
        new: impl FnOnce() -> V,
        evict: impl FnMut(Evicted<V>),
    ) -> usize {
        let known = self.index.find(probe.hash, |slot| {
            self.entries[slot as usize].key.is(packet, probe.swapped)
        });
        match known {
            Some(slot) if !self.turns_round(slot, probe.swapped, hint) => slot as usize,
            known => self.insert(packet, probe, known, hint, now_ns, new, evict),
        }
    }

    #[inline]
    fn turns_round(&self, slot: u32, swapped: bool, hint: Hint) -> bool {
        let from_client = self.entries[slot as usize].flipped == swapped;
        hint == Hint::Opens && !from_client
    }

    /// Makes the flow of a packet, in the `known` entry or in a new one.
    #[cold]
    #[expect(clippy::too_many_arguments, reason = "the cold half of `find`")]
    fn insert(
        &mut self,
        sent: &FlowKey,
        probe: Probe,
        known: Option<u32>,
        hint: Hint,
        now_ns: u64,
        new: impl FnOnce() -> V,
        mut evict: impl FnMut(Evicted<V>),
    ) -> usize {
        let client_sent = self.direction.sender_is_client(sent, hint);
        let entry = Entry {
            key: sent.canonical().0,
            flipped: probe.swapped == client_sent,
            last_ns: now_ns,
            value: new(),
        };
        let slot = match known {
            Some(slot) => slot as usize,
            None if self.entries.len() < self.max_flows => {
                self.index.insert(probe.hash, self.entries.len() as u32);
                self.entries.push(entry);
                return self.entries.len() - 1;
            }
            None => self.victim(),
        };
        let old = std::mem::replace(&mut self.entries[slot], entry);
        if known.is_none() {
            let (_, hash, _) = old.key.name(&self.hash);
            self.index.remove(hash as u32, slot as u32);
            self.index.insert(probe.hash, slot as u32);
            self.evictions += 1;
        }
        evict(Evicted {
            flow: old.flow(),
            value: old.value,
        });
        slot
    }

    /// Of the next entries in turn, the one silent for longest.
    fn victim(&mut self) -> usize {
        let len = self.entries.len();
        let sample = (0..EVICTION_SAMPLE.min(len)).map(|step| (self.hand + step) % len);
        let victim = sample
            .min_by_key(|&slot| self.entries[slot].last_ns)
            .unwrap_or(0);
        self.hand = (self.hand + EVICTION_SAMPLE) % len;
        victim
    }
}
