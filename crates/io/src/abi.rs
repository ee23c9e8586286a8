// SPDX-License-Identifier: Apache-2.0
//! The structs and verdicts of `bpf/shared/abi.h`, as Rust sees them.
//!
//! Structs are written by hand, because map values carry no generated types; a
//! test compares every size, field and offset with the object's BTF. Verdicts and
//! numbers are generated from the C headers by the build script. Fields named `*_be` hold bytes
//! in network order; IPv4 addresses in 16-byte fields are IPv4-mapped.

use std::net::{IpAddr, Ipv6Addr};
use std::ptr;

use causeway_core::cookie::quic::Route;
use causeway_core::cookie::{Epoch, Format, Keys};

/// What XDP does with a packet after a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Action {
    /// The packet is dropped.
    Drop = 1,
    /// The packet goes on to the kernel.
    Pass = 2,
    /// The packet leaves through the interface that it came from.
    Tx = 3,
}

include!(concat!(env!("OUT_DIR"), "/verdicts.rs"));

/// The numbers of `bpf/shared`, by their names there.
pub(crate) mod c {
    include!(concat!(env!("OUT_DIR"), "/constants.rs"));
}

/// A struct of plain integers without padding that is the same in C.
///
/// # Safety
/// `#[repr(C)]`, no padding, and every bit pattern is a value.
pub unsafe trait Plain: Copy + Default {
    /// The value's bytes, as the kernel takes them.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: the trait's contract: no padding, so every byte is initialised.
        unsafe { std::slice::from_raw_parts(ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// The value's bytes, for the kernel to write.
    fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; every bit pattern is a value, so any write keeps it one.
        unsafe { std::slice::from_raw_parts_mut(ptr::from_mut(self).cast(), size_of::<Self>()) }
    }

    /// The value of `bytes`; `None` if they are not exactly as long.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // SAFETY: the trait's contract: every bit pattern is a value; the length is checked.
        (bytes.len() == size_of::<Self>())
            .then(|| unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

// SAFETY: integers have no padding and no invalid values.
unsafe impl Plain for u32 {}

// SAFETY: as above.
unsafe impl Plain for u64 {}

impl From<&Format> for CookieFormat {
    fn from(format: &Format) -> Self {
        Self {
            mode: format.mode() as u8,
            bits: format.bits(),
            id_bits: format.id_bits(),
            shift: format.shift(),
        }
    }
}

/// `CookieFormat::mode` of a VIP whose cookies are QUIC connection ids.
pub const COOKIE_QUIC: u8 = c::COOKIE_QUIC;
/// `Ctl::cookies`: a VIP of TCP has cookies.
pub const COOKIES_TCP: u8 = c::COOKIES_TCP;
/// `Ctl::cookies`: a VIP of UDP has connection ids.
pub const COOKIES_UDP: u8 = c::COOKIES_UDP;
/// Entries of `quic_configs` for each VIP.
pub const QUIC_CODEPOINTS: u32 = c::QUIC_CODEPOINTS;

impl From<&Route> for QuicLbConfig {
    fn from(route: &Route) -> Self {
        let raw = route.raw();
        Self {
            algorithm: raw.algorithm,
            server_id_len: raw.server_id_len,
            nonce_len: raw.nonce_len,
            pad: raw.pad,
            siphash_key: raw.siphash_key,
            aes_rounds: std::array::from_fn(|round| {
                std::array::from_fn(|column| raw.aes_rounds[4 * round + column])
            }),
        }
    }
}

impl From<Option<&Keys>> for CookieKeys {
    fn from(keys: Option<&Keys>) -> Self {
        let mut value = Self::default();
        let Some(keys) = keys else {
            return value;
        };
        value.current = keys.current().index();
        for epoch in Epoch::ALL {
            if let Some(key) = keys.get(epoch) {
                value.key[epoch.index() as usize] = key.words();
                value.present |= 1 << epoch.index();
            }
        }
        value
    }
}

macro_rules! plain {
    ($($(#[$doc:meta])* $c:literal $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty,)* })*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }

        // SAFETY: repr(C) of integers; the size equals the sum of the fields' sizes.
        unsafe impl Plain for $name {}
        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$ty>())*, "implicit padding");)*

        /// C name, size and (field, offset, size) of every mirrored struct.
        #[cfg(test)]
        fn layouts() -> Vec<(&'static str, usize, Vec<(&'static str, usize, usize)>)> {
            vec![$(($c, size_of::<$name>(), vec![$((
                stringify!($field),
                std::mem::offset_of!($name, $field),
                size_of::<$ty>(),
            )),*])),*]
        }
    };
}

plain! {
    /// What one category of clients did in one slot of time.
    "syn_slot" SynSlot {
        /// Time / length of a slot.
        number: u64,
        /// Sums over the completed connections, nanoseconds.
        syn_to_end_ns: u64,
        /// SYN-ACK to ACK.
        rtt_ns: u64,
        /// First SYN to the one that was answered.
        conn_fail_ns: u64,
        /// Sum over the stalled: first SYN to end.
        stalled_ns: u64,
        /// SYNs by retry, from 0.
        offered: [u32; 16],
        /// Of those the ones that were answered.
        accepted: [u32; 16],
        /// SYNs answered with a RST; not in `offered`.
        refused: u32,
        /// SYNs that had been answered.
        duplicates: u32,
        /// Clients whose first ACK came.
        established: u32,
        /// Of those the ones that took more than one SYN-ACK.
        established_late: u32,
        /// Connections that ended.
        completed: u32,
        /// Connections that ended without ever being served.
        stalled: u32,
        /// Attempts that their clients ended.
        abandoned: u32,
        /// Of the first SYNs those whose client was heard of again.
        heard: u32,
        /// Of those the ones that had been answered.
        heard_answered: u32,
        /// Connections of which the server was first seen to know.
        served: u32,
        /// Of those the ones whose first SYN was answered.
        served_first: u32,
        /// Of the established.
        established_first: u32,
    }
    /// The same behind its lock.
    "syn_slot_locked" SynSlotLocked {
        /// Not for user space.
        lock: u32,
        /// Zero.
        pad: u32,
        /// The counts.
        slot: SynSlot,
    }
    /// Connections completed in a slot by when their SYN was accepted.
    "syn_origin" SynOrigin {
        /// The slot of completion.
        number: u64,
        /// The category.
        category: u32,
        /// How many slots before its SYN was accepted.
        slots_ago: u32,
    }
    /// When a retry came that was answered.
    "syn_retry_time" SynRetryTime {
        /// Which retry, from 1.
        retry: u32,
        /// After the first SYN, hundredths of a second.
        at_cs: u32,
    }
    /// One connection attempt, see `bpf/shared/syn_track.h`.
    "syn_conn" SynConn {
        /// When its first SYN came.
        first_syn_ns: u64,
        /// When its last SYN came.
        last_syn_ns: u64,
        /// When it was answered, or when its client said that it would send no more,
        /// or by a RST that nobody was there any more.
        turn_ns: u64,
        /// The server's last data; until then the last SYN since it was answered; 0: none.
        last_data_ns: u64,
        /// Sequence number of the SYN.
        isn: u32,
        /// First SYN-ACK to first ACK, microseconds.
        rtt_us: u32,
        /// 1: not answered so far.
        state: u8,
        /// SYNs after the first.
        retry: u8,
        /// SYN-ACKs before the client's ACK.
        answers: u8,
        /// Whether the server has sent more than SYN-ACKs.
        served: u8,
        /// 1: the client has sent more than its first SYN. 2: its end is counted.
        marks: u32,
    }
    /// An attempt or a connection in the kernel's tables.
    "syn_entry" SynEntry {
        /// What became of it.
        conn: SynConn,
        /// Sequence number of the latest SYN-ACK.
        server_isn: u32,
        /// The category that it is counted in.
        category: u32,
    }
    /// Key of client prefixes.
    "syn_prefix" SynPrefix {
        /// Bits.
        length: u32,
        /// IPv4 as IPv4-mapped.
        addr: [u8; 16],
    }
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
    "flow" Flow {
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
        /// Zero.
        pad: u8,
        /// What its timestamps end in, in stateful mode.
        word: u16,
        /// Packets after the SYN, in stateful mode.
        packets: u32,
        /// Zero.
        pad2: u32,
        /// The estimator's state, `struct wc_state`.
        chain: [u64; 16],
    }
    /// One cache line for 16 flows, see `bpf/lib/table.h`.
    "flow_bucket" FlowBucket {
        /// Fingerprint and standing of each.
        word: [u32; 16],
    }
    /// Key of `vips`.
    "vip_key" VipKey {
        /// The VIP's address, IPv4 as IPv4-mapped.
        addr: [u8; 16],
        /// Its port; 0 is all ports.
        port_be: [u8; 2],
        /// IP protocol; 0 with port 0 marks the address alone.
        proto: u8,
        /// 0, or [`VIP_OF_FRAGMENTS`].
        kind: u8,
    }
    /// Entry of a server's `word_events`.
    "word_event" WordEvent {
        /// Client to VIP; IPv4 as IPv4-mapped.
        key: FlowKey6,
        /// What its timestamps end in.
        word: u32,
        /// 0: it has ended.
        opened: u32,
    }
    /// Key of a server's `own_addresses`.
    "address" Address {
        /// The address, IPv4 as IPv4-mapped.
        bytes: [u8; 16],
    }
    /// Value of `vips`.
    "vip" Vip {
        /// Index into `rings` and `vip_stats`.
        id: u32,
        /// Entries of the VIP's ring; 0: no real.
        ring_size: u32,
        /// See `enum vip_flags`.
        flags: u32,
        /// See `enum vip_pick`.
        pick: u32,
        /// Slot of the VIP's id 0 in `cookie_slots`.
        cookie_base: u32,
        /// How its cookies are made; mode 0: it has none.
        cookie: CookieFormat,
    }
    /// How a VIP's cookies are made.
    "cookie_format" CookieFormat {
        /// `enum cookie_mode`; 0: none.
        mode: u8,
        /// Bits of the cookie, the epoch included.
        bits: u8,
        /// Bits of the id.
        id_bits: u8,
        /// Lowest bit of the cookie in the timestamp.
        shift: u8,
    }
    /// The keys of cookies.
    "cookie_keys" CookieKeys {
        /// SipHash keys, by epoch.
        key: [[u64; 2]; 2],
        /// Bit e: `key[e]` is set.
        present: u32,
        /// Epoch of new connections.
        current: u32,
    }
    /// One configuration of a VIP's QUIC connection ids.
    "quic_lb_config" QuicLbConfig {
        /// `enum quic_lb_algorithm`; 0: this codepoint has no configuration.
        algorithm: u8,
        /// Octets of the server id.
        server_id_len: u8,
        /// Octets of the nonce.
        nonce_len: u8,
        /// Zero.
        pad: [u8; 5],
        /// The key, for SipHash.
        siphash_key: [u64; 2],
        /// The expanded key, for AES.
        aes_rounds: [[u32; 4]; 11],
    }
    /// Packets of one VIP's cookies on one CPU.
    "cookie_counts" CookieCounts {
        /// By `enum cookie_result`.
        packets: [u64; 32],
    }
    /// A client prefix of a VIP.
    "source_key" SourceKey {
        /// Bits that count: the VIP's 32, and the prefix's, of 128.
        length: u32,
        /// The VIP's id.
        vip: u32,
        /// The address, IPv4 as IPv4-mapped.
        addr: [u8; 16],
    }
    /// The reals of some client prefixes.
    "source_group" SourceGroup {
        /// Slots of its ring; 0: none of the reals is there.
        ring_size: u32,
        /// Without reals: no real at all, instead of the VIP's ring.
        strict: u32,
    }
    /// How many new flows a client prefix may have at a VIP.
    "vip_limit" VipLimit {
        /// Time that each takes, in units of 1024 ns; 0: no limit.
        interval: u32,
        /// Time that a prefix may be ahead.
        tolerance: u32,
        /// Bits of an IPv4 client's address that count.
        prefix4: u8,
        /// The same of IPv6.
        prefix6: u8,
        /// Zero.
        pad: [u8; 6],
    }
    /// What a server needs to know of a VIP.
    "server_vip" ServerVip {
        /// The server's own id.
        id: u32,
        /// How the VIP's cookies are made.
        cookie: CookieFormat,
    }
    /// Which real has an id.
    "cookie_slot" CookieSlot {
        /// Index into `reals`, plus one; 0: nobody has this id.
        real: u32,
        /// Seconds since 1970 when the id was taken away; 0: never.
        freed_s: u32,
        /// Address of the real that has or had it.
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
    /// Value of `turns`.
    "turns" Turns {
        /// Turns taken.
        taken: u64,
        /// Zero.
        pad: [u64; 7],
    }
    /// Value of `reals`.
    "real" Real {
        /// [`REAL_PRESENT`], [`REAL_L2`], [`REAL_GUE`].
        flags: u8,
        /// 4 or 6.
        family: u8,
        /// Changes whenever the slot is used again.
        r#gen: u16,
        /// Destination MAC of l2 forwarding.
        mac: [u8; 6],
        /// Id of the VIP that it serves; user space alone reads it.
        vip: u16,
        /// Zero.
        pad: [u8; 4],
        /// The real's address, IPv4 as IPv4-mapped.
        addr: [u8; 16],
    }
    /// Value of `ctl`: next hop and outer header.
    "ctl" Ctl {
        /// MAC of the gateway; zero: not known.
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
        /// Of which protocols VIPs have cookies, see `enum ctl_cookies`.
        cookies: u8,
        /// SipHash key of the pick.
        hash_key: [u64; 2],
        /// Of this balancer's flow table alone.
        table_seed: u64,
        /// Source of IP-in-IP headers that end in a connection's word; 0: none.
        word4_be: [u8; 4],
        /// The same for outer IPv6 headers.
        word6_be: [u8; 16],
        /// Another one after each change of a VIP: CPUs keep copies.
        vips_version: u32,
        /// Own IPv4 address where tunnels of a first tier end; 0: none do.
        tunnel4_be: [u8; 4],
        /// The same over IPv6.
        tunnel6_be: [u8; 16],
        /// Zero.
        pad3: [u32; 5],
    }
    /// A counter of packets and of whole frames' bytes.
    "packets_bytes" PacketsBytes {
        /// Packets.
        packets: u64,
        /// Bytes of whole frames as received.
        bytes: u64,
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
        /// Data packets that start a burst or follow a short one.
        requests: u64,
        /// Sum of latency samples in half samples, ns.
        latency_sum2_ns: u64,
        /// Number of half samples.
        latency_count2: u64,
        /// Packet time of the last sample, ns.
        latency_at_ns: u64,
    }
    /// One packet that the sampler of `causeway rtt` took.
    "rtt_record" RttRecord {
        /// The kernel's monotonic clock.
        t_ns: u64,
        /// Address of the interface's host, IPv4 as IPv4-mapped.
        local: [u8; 16],
        /// Address of the other end.
        remote: [u8; 16],
        /// Port here.
        local_port_be: [u8; 2],
        /// Port there.
        remote_port_be: [u8; 2],
        /// Sequence number.
        seq: u32,
        /// Acknowledgement number.
        ack: u32,
        /// Timestamp.
        tsval: u32,
        /// Timestamp echoed.
        tsecr: u32,
        /// Bytes from the IP header on.
        ip_len: u32,
        /// Bytes behind the TCP header.
        payload_len: u32,
        /// TCP flags.
        tcp_flags: u8,
        /// See `enum rtt_bits`.
        bits: u8,
        /// Zero.
        pad: [u8; 2],
    }
    /// Head of a flow of the meter; the estimator's state follows.
    "meter_sums" MeterSums {
        /// Packets of the flow.
        packets: u64,
        /// The epoch that the sums are of: time / length of an epoch.
        epoch: u64,
        /// Sum of latency samples in half samples, ns.
        sum2_ns: u64,
        /// Number of half samples.
        count2: u64,
        /// How much of `count2` are upper bounds only.
        bound2: u32,
        /// The largest window of requests inferred; 0: unknown.
        window: u8,
        /// Zero.
        pad: [u8; 3],
    }
    /// Latencies of one flow in one epoch, or a part of them.
    "meter_record" MeterRecord {
        /// The flow, from client to server; IPv4 as IPv4-mapped.
        key: FlowKey6,
        /// Time / length of an epoch.
        epoch: u64,
        /// Sum of latency samples in half samples, ns.
        sum2_ns: u64,
        /// Number of half samples.
        count2: u64,
        /// How much of `count2` are upper bounds only.
        bound2: u32,
        /// The largest window of requests inferred; 0: unknown.
        window: u8,
        /// Which of the meter's estimators, in their order.
        slot: u8,
        /// Zero.
        pad: u16,
    }
    /// A server, for the meter's histograms.
    "meter_server" MeterServer {
        /// Its address; IPv4 as IPv4-mapped.
        addr_be: [u8; 16],
        /// Its port.
        port_be: [u8; 2],
        /// IP protocol number.
        proto: u8,
        /// As in `MeterRecord`.
        slot: u8,
    }
    /// Whether somebody looks at packets, and at which.
    "tap_ctl" TapCtl {
        /// Monotonic clock, ns; 0: nobody looks.
        until_ns: u64,
        /// Bit mask of the verdicts that are wanted.
        verdicts: u64,
        /// Process that looks.
        owner: u32,
        /// Bytes of a frame that are copied.
        snap: u32,
        /// A random number up to this samples a packet.
        threshold: u32,
        /// Packets handed on in a window, by all CPUs.
        taken_max: u32,
        /// Packets looked at in a window, by each CPU.
        looked_max: u32,
        /// Address of the VIP; IPv4 as IPv4-mapped.
        vip_be: [u8; 16],
        /// Network of the clients; IPv4 as IPv4-mapped.
        client_be: [u8; 16],
        /// Its mask.
        client_mask_be: [u8; 16],
        /// Port of the VIP; 0: any.
        vip_port_be: [u8; 2],
        /// Protocol of the VIP; 0: any.
        vip_proto: u8,
        /// See `enum tap_flags`.
        flags: u8,
    }
    /// A packet that went through a tapped program; the frame before and after follow.
    "tap_record" TapRecord {
        /// Monotonic clock as it came.
        t_ns: u64,
        /// Bytes of the frame that came.
        before_len: u32,
        /// Bytes of the frame that left; 0: neither sent nor changed in length.
        after_len: u32,
        /// Id of the VIP; all ones: none.
        vip: u32,
        /// Bytes of the first that follow.
        before_snap: u16,
        /// Bytes of the second that follow them.
        after_snap: u16,
        /// Number of the verdict.
        verdict: u8,
        /// See `enum cookie_result`; 255: none.
        result: u8,
        /// Zero.
        pad: [u8; 6],
    }
    /// What a tap did with packets since its program was loaded first.
    "tap_counts" TapCounts {
        /// Packets that came while somebody looked.
        seen: u64,
        /// Of those, wanted by address.
        matched: u64,
        /// Of those, not looked at: too many a second on their CPU.
        unlooked: u64,
        /// Wanted, but more than are handed on in a second.
        over_rate: u64,
        /// No room: they were not read in time.
        lost: u64,
        /// Handed on.
        taken: u64,
    }
}

/// The mark of a health probe's packets, beside the real's id.
pub const PROBE_MARK: u32 = c::PROBE_MARK;
/// Where the real's id stands in that mark.
pub const PROBE_REAL_MASK: u32 = c::PROBE_REAL_MASK;
/// `Vip::flags`: no flow is remembered.
pub const VIP_FORGET: u32 = c::VIP_FORGET;
/// `Vip::flags`: new flows add to their real's load.
pub const VIP_COUNT_LOAD: u32 = c::VIP_COUNT_LOAD;
/// `Vip::pick`: the slot of the tuple's hash.
pub const PICK_HASH: u32 = c::PICK_HASH;
/// `Vip::pick`: the next slot.
pub const PICK_TURN: u32 = c::PICK_TURN;
/// `Vip::pick`: of two slots that with less load.
pub const PICK_TWO: u32 = c::PICK_TWO;
/// `Real::flags`: the slot is in use.
pub const REAL_PRESENT: u8 = c::REAL_PRESENT;
/// `Real::flags`: forward by rewriting MAC addresses instead of IP in IP.
pub const REAL_L2: u8 = c::REAL_L2;
/// `Real::flags`: forward in UDP (GUE) instead of IP in IP.
pub const REAL_GUE: u8 = c::REAL_GUE;
/// `RttRecord::bits`: from the interface's host to the other end.
pub const RTT_OUTGOING: u8 = c::RTT_OUTGOING;
/// `RttRecord::bits`: chosen by the sampling.
pub const RTT_SAMPLED: u8 = c::RTT_SAMPLED;
/// `RttRecord::bits`: the timestamps are valid.
pub const RTT_TIMESTAMP: u8 = c::RTT_TIMESTAMP;
/// `TapCtl::flags`: packets to one VIP alone.
pub const TAP_BY_VIP: u8 = c::TAP_BY_VIP;
/// `TapCtl::flags`: packets from one network alone.
pub const TAP_BY_CLIENT: u8 = c::TAP_BY_CLIENT;
/// `VipKey::kind`: the VIP that takes its address's fragments.
pub const VIP_OF_FRAGMENTS: u8 = c::VIP_OF_FRAGMENTS;
/// `Vip::flags`: picks by the client's address alone.
pub const VIP_PICK_BY_ADDRESS: u32 = c::VIP_PICK_BY_ADDRESS;
/// `Vip::flags`: connections with timestamps get a place of their own.
pub const VIP_STATEFUL: u32 = c::VIP_STATEFUL;
/// `Vip::flags`: some clients have reals of their own.
pub const VIP_SOURCES: u32 = c::VIP_SOURCES;
/// `Vip::flags`: new flows of a client prefix are limited.
pub const VIP_LIMITED: u32 = c::VIP_LIMITED;
/// Groups of client prefixes that have rings.
pub const SOURCE_GROUPS: u32 = c::SOURCE_GROUPS;
/// `Ctl::gue_checksum`: the UDP checksum of GUE over IPv4 is filled in.
pub const GUE_CHECKSUM_4: u8 = c::GUE_CHECKSUM_4;
/// `Ctl::gue_checksum`: the same over IPv6.
pub const GUE_CHECKSUM_6: u8 = c::GUE_CHECKSUM_6;

/// `addr` in the 16 bytes of a key or of a real.
pub fn addr_bytes(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The address in 16 bytes of a key or of a real.
pub fn addr_from_bytes(bytes: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(bytes).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::btf::HasSize as _;
    use libbpf_rs::btf::types::{Array, Composite, Int, MemberAttr, Struct};
    use libbpf_rs::btf::{Btf, BtfType};

    fn size_of_type(ty: BtfType<'_>) -> usize {
        let ty = ty.skip_mods_and_typedefs();
        if let Ok(int) = Int::try_from(ty) {
            usize::from(int.bits) / 8
        } else if let Ok(array) = Array::try_from(ty) {
            array.capacity() * size_of_type(array.contained_type())
        } else {
            Composite::try_from(ty)
                .expect("integer, array or struct")
                .size()
        }
    }

    #[test]
    fn mirrors_have_the_layout_of_the_object() {
        let objects = [
            concat!(env!("OUT_DIR"), "/lb.bpf.o"),
            concat!(env!("OUT_DIR"), "/server.bpf.o"),
            concat!(env!("OUT_DIR"), "/meter.bpf.o"),
            concat!(env!("OUT_DIR"), "/rtt.bpf.o"),
            concat!(env!("OUT_DIR"), "/syn.bpf.o"),
        ]
        .map(|path| Btf::from_path(path).expect("BTF of the object"));
        for (name, size, fields) in layouts() {
            let (btf, c) = objects
                .iter()
                .find_map(|btf| Some((btf, btf.type_by_name::<Struct<'_>>(name)?)))
                .unwrap_or_else(|| panic!("struct {name} is in no object"));
            let composite = Composite::try_from(*c).expect("composite");
            let theirs: Vec<_> = composite
                .iter()
                .map(|member| {
                    let MemberAttr::Normal { offset } = member.attr else {
                        panic!("bit field in {name}")
                    };
                    let ty: BtfType<'_> = btf.type_by_id(member.ty).expect("member type");
                    let field = member.name.expect("name").to_str().expect("utf-8");
                    (field.to_owned(), offset as usize / 8, size_of_type(ty))
                })
                .collect();
            let ours: Vec<_> = fields
                .into_iter()
                .map(|(field, offset, size)| {
                    (field.trim_start_matches("r#").to_owned(), offset, size)
                })
                .collect();
            assert_eq!(size, composite.size(), "size of {name}");
            assert_eq!(ours, theirs, "fields of {name}");
        }
    }

    #[test]
    fn verdicts_keep_order_and_words() {
        for (index, verdict) in Verdict::ALL.into_iter().enumerate() {
            assert_eq!(verdict as usize, index);
        }
        assert_eq!(Verdict::ALL[0].as_str(), "established");
        assert_eq!(Verdict::Established.action(), Action::Tx);
        assert_eq!(Verdict::NotVip.action(), Action::Pass);
    }

    #[test]
    fn addresses_round_trip() {
        for text in ["192.0.2.1", "2001:db8::1"] {
            let addr: IpAddr = text.parse().unwrap();
            assert_eq!(addr_from_bytes(addr_bytes(addr)), addr);
        }
    }
}
