// SPDX-License-Identifier: Apache-2.0

//! Packets on their way to a meter, which may be on another core: a cache line each.
//!
//! The thread that reads packets hashes them too, since it has their addresses at hand; what
//! estimates takes the hash along to its table.

use super::key::Packed;
use super::{FlowKey, FlowState, Headers, Hint, Observation};
use crate::estimate;
use crate::wire::{Stamped, proto};

/// Where a packet's flow belongs: in a table, and among the shares of several threads.
#[derive(Clone, Copy, Debug)]
pub struct HashedFlow {
    name: Packed,
    pub(super) hash: u64,
    pub(super) swapped: bool,
}

impl HashedFlow {
    /// The place of a packet's flow, the same for both directions.
    #[inline(always)]
    pub fn of(key: &FlowKey, hash: &FlowState) -> Self {
        Self::new(key.name(hash))
    }

    /// [`HashedFlow::of`] a frame's key.
    #[inline(always)]
    pub fn of_stamped(frame: &Stamped<'_>, hash: &FlowState) -> Self {
        Self::new(Packed::of(
            frame.addresses(),
            frame.ports(),
            proto::TCP,
            hash,
        ))
    }

    #[inline(always)]
    fn new((name, hash, swapped): (Packed, u64, bool)) -> Self {
        Self {
            name,
            hash,
            swapped,
        }
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
    pub(super) name: Packed,
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

impl Record {
    /// Stands where none has been written yet.
    fn none() -> Self {
        Self {
            packet: estimate::Packet::default(),
            name: Packed::default(),
            hash: 0,
            after: 0,
            tsval: 0,
            hint: Hint::None,
            swapped: false,
            first_byte: None,
        }
    }
}

/// Packets in the order of capture, each with its number in it.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The first `len` of them are the packets, and there is always room for one more. A
    /// record is written where it stays, field by field.
    records: Vec<Record>,
    len: usize,
    /// Addresses of IPv6.
    wide: Vec<[[u64; 2]; 2]>,
    /// Number of the first packet.
    first: u64,
}

impl Default for Batch {
    fn default() -> Self {
        Self::with_capacity(0)
    }
}

impl Batch {
    /// An empty batch with room for this many packets.
    pub fn with_capacity(packets: usize) -> Self {
        Self {
            records: vec![Record::none(); packets + 1],
            len: 0,
            wide: Vec::new(),
            first: 0,
        }
    }

    /// Packets in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets all packets, but keeps the room.
    pub fn clear(&mut self) {
        self.len = 0;
        self.wide.clear();
    }

    /// Adds the packet with number `index`, which is less than 2^32 above the first one's.
    /// Its place was made with the seed of the meter that the batch is for.
    #[inline(always)]
    pub fn push(&mut self, index: u64, seen: &Observation, place: HashedFlow) {
        let name = seen.key.pack(place.name, &mut self.wide);
        let (after, record) = self.next(index);
        *record = Record {
            packet: seen.packet,
            name,
            hash: place.hash as u32,
            after,
            tsval: seen.tsval,
            hint: seen.hint,
            swapped: place.swapped,
            first_byte: seen.first_byte,
        };
        self.written();
    }

    /// [`Batch::push`] of what [`Observation::of_frame`] gives, straight from the frame.
    #[inline(always)]
    pub fn push_stamped(
        &mut self,
        index: u64,
        frame: &Stamped<'_>,
        time_ns: u64,
        headers: Headers,
        place: HashedFlow,
    ) {
        let (after, record) = self.next(index);
        // One by one, so that none waits in a register, of which there are too few.
        record.name = place.name;
        record.hash = place.hash as u32;
        record.swapped = place.swapped;
        record.after = after;
        record.tsval = frame.timestamps().value;
        record.first_byte = None;
        record.packet.t_ns = time_ns;
        record.packet.ip_len = frame.ip_len();
        record.packet.payload_len = frame.payload_len();
        record.packet.seq = frame.seq();
        record.packet.ack = frame.ack();
        record.packet.tsecr = frame.timestamps().echo;
        record.packet.has_ts = true;
        record.packet.proto = proto::TCP;
        record.packet.opaque = headers == Headers::Opaque;
        record.packet.tcp_flags = frame.flags().0;
        record.hint = Hint::of_flags(frame.flags());
        self.written();
    }

    /// Where the next packet is to be written, and its number less that of the first.
    #[inline(always)]
    fn next(&mut self, index: u64) -> (u32, &mut Record) {
        if self.len == 0 {
            self.first = index;
        }
        let after = (index - self.first) as u32;
        (after, &mut self.records[self.len])
    }

    /// That has been written.
    #[inline(always)]
    fn written(&mut self) {
        self.len += 1;
        if self.len == self.records.len() {
            self.grow();
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let more = self.records.len().max(16);
        self.records
            .resize(self.records.len() + more, Record::none());
    }

    /// The packets as they were added.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Observation)> + '_ {
        self.records().iter().map(|record| {
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
        &self.records[..self.len]
    }

    #[inline]
    pub(super) fn index(&self, record: &Record) -> u64 {
        self.first + u64::from(record.after)
    }

    pub(super) fn key(&self, record: &Record) -> FlowKey {
        FlowKey::unpack(record.name, record.swapped, &self.wide)
    }
}
