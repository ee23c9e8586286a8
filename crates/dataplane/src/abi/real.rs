// SPDX-License-Identifier: Apache-2.0
//! Reals, what is counted of them, and how all packets are sent.

use super::{Plain, SamplingValue, c, plain};

/// `Real::flags`: the slot is in use.
pub const REAL_PRESENT: u8 = c::REAL_PRESENT;
/// `Real::flags`: forward by rewriting MAC addresses instead of IP in IP.
pub const REAL_L2: u8 = c::REAL_L2;
/// `Real::flags`: forward in UDP (GUE) instead of IP in IP.
pub const REAL_GUE: u8 = c::REAL_GUE;
/// `Real::flags`: health finds it down while others serve: it keeps no SYN.
pub const REAL_DOWN: u8 = c::REAL_DOWN;
/// `Ctl::gue_checksum`: the UDP checksum of GUE over IPv4 is filled in.
pub const GUE_CHECKSUM_4: u8 = c::GUE_CHECKSUM_4;
/// `Ctl::gue_checksum`: the same over IPv6.
pub const GUE_CHECKSUM_6: u8 = c::GUE_CHECKSUM_6;
/// The mark of a health probe's packets, beside the real's id.
pub const PROBE_MARK: u32 = c::PROBE_MARK;
/// Where the real's id stands in that mark.
pub const PROBE_REAL_MASK: u32 = c::PROBE_REAL_MASK;

plain! {
    /// Value of `reals`.
    "real" RealValue {
        /// [`REAL_PRESENT`], [`REAL_L2`], [`REAL_GUE`], [`REAL_DOWN`].
        flags: u8,
        /// 4 or 6.
        family: u8,
        /// Changes whenever the slot is used again.
        r#gen: u16,
        /// Destination MAC of l2 forwarding.
        mac: [u8; 6],
        /// Id of the VIP that it serves; user space alone reads it.
        vip: u16,
        /// Which of its connections are measured.
        sampling: SamplingValue,
        /// Zero.
        pad: u8,
        /// The real's address, IPv4 as IPv4-mapped.
        addr: [u8; 16],
    }
    /// Value of `real_loads`.
    "real_load" RealLoad {
        /// How busy the real is.
        load: i64,
        /// Added by a new flow.
        rise: u32,
        /// Taken off by a flow's end.
        fall: u32,
        /// Relative capacity; 0 counts as 1.
        weight: u32,
        /// Zero.
        pad: [u32; 3],
    }
    /// Sums of latency samples, in half samples.
    "latency_sums" LatencySums {
        /// Sum of the samples, ns.
        sum_halves_ns: u64,
        /// Number of half samples.
        weight_halves: u64,
        /// Of samples whose path is known the sum of what the server added, ns.
        server_sum_halves_ns: u64,
        /// Of the same samples the sum of the path's round trips, ns.
        path_sum_halves_ns: u64,
        /// Number of their half samples.
        path_weight_halves: u64,
    }
    /// Counters of one real on one CPU.
    "real_stats" RealStats {
        /// Packets.
        packets: u64,
        /// Bytes of whole frames as received.
        bytes: u64,
        /// SYNs that picked this real.
        conns_opened: u64,
        /// Flows with a FIN or RST from the client.
        conns_closed: u64,
        /// Of `conns_opened` those that are measured.
        conns_measured: u64,
        /// Data packets that start a burst or follow a short one; an estimate, unless all
        /// connections are measured.
        requests: u64,
        /// Of the requests those that were seen, of measured connections.
        requests_seen: u64,
        /// Half samples in groups with upper bounds among them, which no sum has.
        bound_weight_halves: u64,
        /// Latencies but those graded low.
        good: LatencySums,
        /// Half samples of `good`, `low` and bounds that were over long before they were known: no
        /// sign that the real answers now.
        late_weight_halves: u64,
        /// Answers that clients acknowledged before they asked again, over TCP: a sign that it does.
        answers_acked: u64,
        /// Zero.
        pad: [u64; 1],
        /// Latencies of flows that are all off alike: graded low.
        low: LatencySums,
        /// Zero.
        pad2: [u64; 3],
    }
    /// Value of `ctl`: next hop and outer header.
    "ctl" Ctl {
        /// MAC of the gateway for outer IPv4; zero: not known.
        gateway_mac: [u8; 6],
        /// Longest IP packet the link carries, bytes; 0: 1500.
        mtu: u16,
        /// Source of outer IPv4 headers; 0: not known.
        outer4_be: [u8; 4],
        /// Bits of it that are filled from the flow's hash.
        outer4_entropy_be: [u8; 4],
        /// Source of outer IPv6 headers; 0: not known.
        outer6_be: [u8; 16],
        /// Bits of its last four bytes that are filled from the flow's hash.
        outer6_entropy_be: [u8; 4],
        /// UDP port of the reals' tunnel ends; 0: 6080.
        gue_port_be: [u8; 2],
        /// [`GUE_CHECKSUM_4`], [`GUE_CHECKSUM_6`].
        gue_checksum: u8,
        /// Whose packets have the VIP looked up first, see `enum ctl_vip_first`.
        vip_first: u8,
        /// SipHash key of the pick.
        hash_key: [u64; 2],
        /// Of this balancer's flow table alone.
        table_seed: u64,
        /// Source of IP-in-IP headers that end in a connection's token; 0: none.
        token4_be: [u8; 4],
        /// The same for outer IPv6 headers.
        token6_be: [u8; 16],
        /// Another one after each change of a VIP: CPUs keep copies.
        vips_version: u32,
        /// Own IPv4 address where tunnels of a first tier end; 0: none do.
        tunnel4_be: [u8; 4],
        /// The same over IPv6.
        tunnel6_be: [u8; 16],
        /// MAC of the gateway for outer IPv6; zero: `gateway_mac`.
        gateway6_mac: [u8; 6],
        /// MAC of the interface, source of all frames.
        own_mac: [u8; 6],
        /// Not 0: what is for a VIP's address and for no VIP goes to the kernel.
        pass_unserved: u8,
        /// Zero.
        pad3: [u8; 7],
    }
    /// A counter of packets and of whole frames' bytes.
    "packets_bytes" PacketsBytes {
        /// Packets.
        packets: u64,
        /// Bytes of whole frames as received.
        bytes: u64,
    }
}
