// SPDX-License-Identifier: Apache-2.0

//! Packets on their way to a meter, which may be on another core: a cache line each.
//!
//! Who reads packets hashes them too, since it has their addresses at hand; what
//! estimates takes the hash along to its table.

use super::key::Packed;
use super::{FlowKey, FlowState, Hint, Observation};
use crate::estimate;

/// Where a packet's flow belongs: in a table, and among the shares of several threads.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub(super) hash: u64,
    pub(super) swapped: bool,
}

impl Place {
    /// The place of a packet's flow, the same for both directions.
    #[inline(always)]
    pub fn of(key: &FlowKey, hash: &FlowState) -> Self {
        let (hash, swapped) = key.flow_hash(hash);
        Self { hash, swapped }
    }

    /// Which of `shares` parts the flow belongs to.
    #[inline]
    pub fn share(&self, shares: usize) -> usize {
        // The upper bits: a table goes by the lower ones.
        ((u128::from(self.hash) * shares as u128) >> 64) as usize
    }
}

/// A packet, without what others of the batch have in common.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Record {
    pub(super) packet: estimate::Packet,
    key: Packed,
    /// The lower half, all that a table looks at.
    pub(super) hash: u32,
    /// Its number, less that of the first.
    after: u32,
    tsval: u32,
    pub(super) hint: Hint,
    pub(super) swapped: bool,
    first_byte: Option<u8>,
}

// Written by one core and read by another.
const _: () = assert!(size_of::<Record>() == 64);

/// Packets in the order of capture, each with its number in it.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    records: Vec<Record>,
    /// Addresses of IPv6.
    wide: Vec<[[u64; 2]; 2]>,
    /// Number of the first packet.
    first: u64,
}

impl Batch {
    /// An empty batch with room for so many packets.
    pub fn with_capacity(packets: usize) -> Self {
        Self {
            records: Vec::with_capacity(packets),
            ..Self::default()
        }
    }

    /// Packets in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Forgets all packets, but keeps the room.
    pub fn clear(&mut self) {
        self.records.clear();
        self.wide.clear();
    }

    /// Adds the packet with number `index`, which is less than 2^32 above the first one's.
    /// Its place was made with the seed of the meter that the batch is for.
    #[inline(always)]
    pub fn push(&mut self, index: u64, seen: &Observation, place: Place) {
        if self.records.is_empty() {
            self.first = index;
        }
        self.records.push(Record {
            packet: seen.packet,
            key: seen.key.pack(&mut self.wide),
            hash: place.hash as u32,
            after: (index - self.first) as u32,
            tsval: seen.tsval,
            hint: seen.hint,
            swapped: place.swapped,
            first_byte: seen.first_byte,
        });
    }

    /// The packets as they were added.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Observation)> + '_ {
        self.records.iter().map(|record| {
            let seen = Observation {
                key: self.key(record),
                hint: record.hint,
                packet: record.packet,
                tsval: record.tsval,
                first_byte: record.first_byte,
            };
            (self.index(record), seen)
        })
    }

    #[inline]
    pub(super) fn records(&self) -> &[Record] {
        &self.records
    }

    #[inline]
    pub(super) fn index(&self, record: &Record) -> u64 {
        self.first + u64::from(record.after)
    }

    #[inline]
    pub(super) fn key(&self, record: &Record) -> FlowKey {
        FlowKey::unpack(record.key, &self.wide)
    }
}
