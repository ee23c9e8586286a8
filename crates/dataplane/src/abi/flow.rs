// SPDX-License-Identifier: Apache-2.0
//! Flows, and what is reported of them.

use super::{Plain, plain};

plain! {
    /// Key of an IPv4 flow.
    "flow_key4" FlowKey4 {
        /// Client's address.
        saddr_be: [u8; 4],
        /// VIP's address.
        daddr_be: [u8; 4],
        /// Client's port.
        sport_be: [u8; 2],
        /// VIP's port.
        dport_be: [u8; 2],
        /// IP protocol.
        proto: u8,
        /// Zero.
        pad: [u8; 3],
    }
    /// Key of an IPv6 flow.
    "flow_key6" FlowKey6 {
        /// Client's address.
        saddr_be: [u8; 16],
        /// VIP's address.
        daddr_be: [u8; 16],
        /// Client's port.
        sport_be: [u8; 2],
        /// VIP's port.
        dport_be: [u8; 2],
        /// IP protocol.
        proto: u8,
        /// Zero.
        pad: [u8; 3],
    }
    /// One connection.
    "flow" FlowEntry {
        /// Its tuple; of IPv4 a [`FlowKey4`] in its place, then zeros.
        key: FlowKey6,
        /// Index into `reals`.
        real: u32,
        /// The real's generation when it was picked.
        real_gen: u16,
        /// Index into `vip_stats`.
        vip: u16,
        /// Sequence number of the SYN.
        isn: u32,
        /// See `enum flow_bits`.
        bits: u8,
        /// k of its real when it was made, see [`SamplingValue`](super::SamplingValue).
        sampling: u8,
        /// What its timestamps end in, in stateful mode.
        token: u16,
        /// Packets after the SYN, in stateful mode.
        packets: u32,
        /// Zero.
        echo_ms: u32,
        /// The estimator's state, `struct wc_state`.
        chain: [u64; 16],
    }
    /// One cache line for 16 flows, see `bpf/lb/flow_table.h`.
    "flow_bucket" FlowBucket {
        /// Fingerprint and age class of each.
        tag: [u32; 16],
    }
    /// Entry of a server's `token_events`.
    "token_event" TokenEvent {
        /// Client to VIP; IPv4 as IPv4-mapped.
        key: FlowKey6,
        /// What its timestamps end in.
        token: u32,
        /// 0: it has ended.
        opened: u32,
    }
    /// Key of a server's `own_addresses`.
    "address" Address {
        /// The address, IPv4 as IPv4-mapped.
        bytes: [u8; 16],
    }
}
