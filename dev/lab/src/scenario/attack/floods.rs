// SPDX-License-Identifier: Apache-2.0
//! The frames of each flood, as an attacker without keys would write them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::load::frame_flood::{FRAME_MAX, FrameMaker};
use crate::scenario::bench::{PORT, QUIC_PORT};
use crate::topology::{ROUTER_MAC, vip4, vip6};

/// Where frames claim to come from (the networks for benchmarks of RFC 2544 and RFC 5180), 2^17
/// hosts.
pub(super) const SOURCES: [&str; 2] = ["198.18.0.0/15", "2001:2::/48"];
const FIRST_SOURCE: u32 = 0xc612_0000;
const SOURCE_BITS: u32 = 17;

/// The VIPs, by what remembers their connections.
pub(super) const COOKIES: usize = 0;
pub(super) const TABLE: usize = 1;
pub(super) const STATEFUL: usize = 2;
pub(super) const QUIC: usize = 3;
/// A UDP service beside the QUIC one.
pub(super) const UDP_PORT: u16 = 53;
/// No VIP has it: what comes there is dropped first of all.
const UNSERVED_PORT: u16 = 9;

const ETHERNET: usize = 14;
const IPV4: [u8; 2] = [8, 0];
const IPV6: [u8; 2] = [0x86, 0xdd];
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const FRAGMENT: u8 = 44;
const ICMP6: u8 = 58;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 0x10;

/// The least that a QUIC client's first datagram has (RFC 9000, section 14.1).
const INITIAL_LEN: usize = 1200;

/// One flood of the campaign.
pub(super) struct FloodKind {
    pub name: &'static str,
    /// What may become of its packets. Those of live connections are `established` besides.
    pub verdicts: &'static [&'static str],
    pub frames: Frames,
}

/// Where a flood's frames come from.
#[derive(Clone, Copy)]
pub(super) enum Frames {
    /// Made from the number and the campaign's seed.
    Made(fn(&Plan, u64, &mut [u8; FRAME_MAX]) -> usize),
    /// A packet of a live connection to a VIP, again and again.
    ReplayOfClient,
    /// A report of an agent, again and again.
    ReplayOfReport,
    /// Tuples that share few buckets of the flow table under a guessed seed.
    Collisions,
}

/// What the frames of a run have in common.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub balancer_mac: [u8; 6],
    pub seed: u64,
    /// IPv6 in the place of IPv4.
    pub ipv6: bool,
    /// Of all its packets, and of no other.
    pub hop_limit: u8,
}

const WITHOUT_TABLE: &[&str] = &["cookie_forged", "cookie_unknown", "adopted", "established"];

pub(super) const FLOODS: &[FloodKind] = &[
    made("syn", &["opened", "syn_again"], |plan, n, frame| {
        let options = Some((n as u32, 0));
        plan.tcp(frame, n, any_tcp(n), (plan.random(n), 0), SYN, options)
    }),
    made("ack", &["adopted", "established"], |plan, n, frame| {
        plan.tcp(frame, n, any_tcp(n), plan.numbers(n), ACK, None)
    }),
    made(
        "ack-timestamps",
        &["adopted", "established"],
        |plan, n, frame| {
            let options = Some((n as u32, plan.random(n + 1)));
            plan.tcp(frame, n, TABLE, plan.numbers(n), ACK, options)
        },
    ),
    made("forged-cookies", WITHOUT_TABLE, |plan, n, frame| {
        let options = Some((n as u32, plan.random(n + 1)));
        plan.tcp(frame, n, with_cookies(n), plan.numbers(n), ACK, options)
    }),
    made("rst", &["adopted", "established"], |plan, n, frame| {
        plan.tcp(frame, n, any_tcp(n), plan.numbers(n), RST, None)
    }),
    made("fin", &["adopted", "established"], |plan, n, frame| {
        plan.tcp(frame, n, any_tcp(n), plan.numbers(n), FIN | ACK, None)
    }),
    // A SYN and what would end its handshake: the flow counts as live.
    made("pairs", PAIRS, |plan, n, frame| {
        let flow = n / 2;
        let (isn, options) = (plan.random(flow), Some((n as u32, 0)));
        match n % 2 {
            0 => plan.tcp(frame, flow, TABLE, (isn, 0), SYN, options),
            _ => plan.tcp(frame, flow, TABLE, (isn.wrapping_add(1), 1), ACK, options),
        }
    }),
    made("fragments", &["fragment", "malformed"], |plan, n, frame| {
        let length = plan.tcp(frame, n, any_tcp(n), plan.numbers(n), ACK, None);
        // Every other one is a first fragment, with ports.
        plan.fragment(frame, length, [0, 185][(n % 2) as usize], n as u32)
    }),
    made("icmp-echo", &["echo_answered"], |plan, n, frame| {
        let kind = plan.of_family((8, 0), (128, 0));
        plan.icmp(frame, n, kind, &plan.random(n).to_be_bytes(), &[])
    }),
    made(
        "icmp-too-big",
        &["icmp_error", "cookie_unknown"],
        |plan, n, frame| {
            let (kind, mtu) = plan.of_family(((3, 4), 576u32), ((2, 0), 1280));
            plan.icmp(frame, n, kind, &mtu.to_be_bytes(), &plan.quote(n))
        },
    ),
    made(
        "icmp-unreachable",
        &["icmp_error", "cookie_unknown"],
        |plan, n, frame| {
            let kind = plan.of_family((3, 1), (1, 3));
            plan.icmp(frame, n, kind, &[0; 4], &plan.quote(n))
        },
    ),
    made(
        "quic-initial",
        &["first_datagram", "established"],
        |plan, n, frame| {
            let mut payload = [0; INITIAL_LEN];
            payload[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
            payload[6..14].copy_from_slice(&plan.random64(n).to_be_bytes());
            plan.udp(frame, n, (QUIC, QUIC_PORT), &payload)
        },
    ),
    made(
        "quic-short",
        &[
            "cookie_unknown",
            "first_datagram",
            "established",
            "cookie_forged",
        ],
        |plan, n, frame| {
            let mut payload = [0; 40];
            for (i, octets) in payload.chunks_exact_mut(8).enumerate() {
                octets.copy_from_slice(&plan.random64(n * 8 + i as u64).to_be_bytes());
            }
            payload[0] = 0x40 | payload[0] & 0x3f;
            plan.udp(frame, n, (QUIC, QUIC_PORT), &payload)
        },
    ),
    made(
        "udp",
        &["first_datagram", "established"],
        |plan, n, frame| plan.udp(frame, n, (QUIC, UDP_PORT), &[0; 32]),
    ),
    FloodKind {
        name: "replay-client",
        verdicts: &["established"],
        frames: Frames::ReplayOfClient,
    },
    FloodKind {
        name: "replay-report",
        verdicts: &["not_vip"],
        frames: Frames::ReplayOfReport,
    },
    FloodKind {
        name: "collisions",
        verdicts: &["adopted", "established"],
        frames: Frames::Collisions,
    },
];

const PAIRS: &[&str] = &["opened", "syn_again", "adopted", "established"];

const fn made(
    name: &'static str,
    verdicts: &'static [&'static str],
    frame: fn(&Plan, u64, &mut [u8; FRAME_MAX]) -> usize,
) -> FloodKind {
    FloodKind {
        name,
        verdicts,
        frames: Frames::Made(frame),
    }
}

/// The three VIPs of TCP by turns.
fn any_tcp(n: u64) -> usize {
    [COOKIES, TABLE, STATEFUL][(n % 3) as usize]
}

fn with_cookies(n: u64) -> usize {
    [COOKIES, STATEFUL][(n % 2) as usize]
}

impl Plan {
    /// Frames that a function makes.
    pub(super) fn maker(self, frame: fn(&Self, u64, &mut [u8; FRAME_MAX]) -> usize) -> FrameMaker {
        Box::new(move |n, buffer| frame(&self, n, buffer))
    }

    /// Whether a frame is of a client that asks the VIP with cookies.
    pub(super) fn is_request(&self, frame: &[u8]) -> bool {
        let mut to = Vec::new();
        extend(&mut to, self.vip(COOKIES));
        let (proto_at, to_at) = self.of_family((9, 16), (6, 24));
        // With data.
        frame.len() > self.transport() + 66
            && frame[12..14] == self.of_family(IPV4, IPV6)
            && frame[ETHERNET + proto_at] == TCP
            && frame[ETHERNET + to_at..].starts_with(&to)
    }

    /// One frame for ever, with the flood's hop limit.
    pub(super) fn replay(self, mut packet: Vec<u8>) -> FrameMaker {
        packet.truncate(FRAME_MAX);
        if packet[12..14] == IPV6 {
            packet[ETHERNET + 7] = self.hop_limit;
        } else {
            packet[ETHERNET + 8] = self.hop_limit;
            seal_ip(&mut packet[ETHERNET..ETHERNET + 20]);
        }
        Box::new(move |_, buffer| {
            buffer[..packet.len()].copy_from_slice(&packet);
            packet.len()
        })
    }

    /// The control: as many frames as long, which the balancer drops at its first look.
    pub(super) fn unserved(self, length: usize) -> FrameMaker {
        let payload = vec![0; length.saturating_sub(self.transport() + 8)];
        Box::new(move |n, buffer| self.udp(buffer, n, (TABLE, UNSERVED_PORT), &payload))
    }

    /// ACKs of tuples that fall into a thousandth of the table's buckets, if it had this seed.
    pub(super) fn collisions(self, count: usize) -> FrameMaker {
        let tuples = self.colliding_tuples(count);
        Box::new(move |n, buffer| {
            let from = tuples[n as usize % tuples.len()];
            self.tcp_from(buffer, from, TABLE, self.numbers(n), ACK, None)
        })
    }

    /// Where the headers of TCP, UDP and ICMP begin.
    fn transport(&self) -> usize {
        ETHERNET + self.of_family(20, 40)
    }

    /// What is another thing in each family.
    fn of_family<T>(&self, ipv4: T, ipv6: T) -> T {
        if self.ipv6 { ipv6 } else { ipv4 }
    }

    /// A VIP's address.
    pub(super) fn vip(&self, vip: usize) -> IpAddr {
        if self.ipv6 {
            vip6(vip).into()
        } else {
            vip4(vip).into()
        }
    }

    /// Another tuple for each of the first 2^17 * 60,000 flows.
    fn source(&self, flow: u64) -> (IpAddr, u16) {
        let host = flow as u32 & ((1 << SOURCE_BITS) - 1);
        let port = 1024 + ((flow >> SOURCE_BITS) % 60_000) as u16;
        let (high, low) = ((host >> 16) as u16, host as u16);
        let address = if self.ipv6 {
            Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, high, low).into()
        } else {
            Ipv4Addr::from(FIRST_SOURCE + host).into()
        };
        (address, port)
    }

    fn random64(&self, n: u64) -> u64 {
        mix(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.seed)
    }

    fn random(&self, n: u64) -> u32 {
        (self.random64(n) >> 32) as u32
    }

    /// A sequence and an acknowledgement number.
    fn numbers(&self, n: u64) -> (u32, u32) {
        let both = self.random64(n);
        (both as u32, (both >> 32) as u32)
    }

    fn tcp(
        &self,
        frame: &mut [u8; FRAME_MAX],
        flow: u64,
        vip: usize,
        numbers: (u32, u32),
        flags: u8,
        timestamps: Option<(u32, u32)>,
    ) -> usize {
        let from = self.source(flow);
        self.tcp_from(frame, from, vip, numbers, flags, timestamps)
    }

    fn tcp_from(
        &self,
        frame: &mut [u8; FRAME_MAX],
        from: (IpAddr, u16),
        vip: usize,
        numbers: (u32, u32),
        flags: u8,
        timestamps: Option<(u32, u32)>,
    ) -> usize {
        let mut options = Vec::with_capacity(20);
        if flags == SYN {
            options.extend([2, 4, 5, 180]);
        }
        if let Some((value, echo)) = timestamps {
            options.extend([1, 1, 8, 10]);
            options.extend(value.to_be_bytes());
            options.extend(echo.to_be_bytes());
        }
        let length = 20 + options.len();
        let (tcp, pseudo) = self.ip(frame, TCP, from.0, vip, length);
        tcp[..2].copy_from_slice(&from.1.to_be_bytes());
        tcp[2..4].copy_from_slice(&PORT.to_be_bytes());
        tcp[4..8].copy_from_slice(&numbers.0.to_be_bytes());
        tcp[8..12].copy_from_slice(&numbers.1.to_be_bytes());
        tcp[12..20].copy_from_slice(&[(length as u8 / 4) << 4, flags, 0xfa, 0xf0, 0, 0, 0, 0]);
        tcp[20..].copy_from_slice(&options);
        let checksum = !fold(pseudo + sum(tcp));
        tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
        self.transport() + length
    }

    /// In IPv4 without a checksum, as it allows.
    fn udp(
        &self,
        frame: &mut [u8; FRAME_MAX],
        flow: u64,
        to: (usize, u16),
        payload: &[u8],
    ) -> usize {
        let from = self.source(flow);
        let length = 8 + payload.len();
        let (udp, pseudo) = self.ip(frame, UDP, from.0, to.0, length);
        udp[..2].copy_from_slice(&from.1.to_be_bytes());
        udp[2..4].copy_from_slice(&to.1.to_be_bytes());
        udp[4..6].copy_from_slice(&(length as u16).to_be_bytes());
        udp[6..8].fill(0);
        udp[8..].copy_from_slice(payload);
        if self.ipv6 {
            let checksum = match !fold(pseudo + sum(udp)) {
                0 => 0xffff, // which says the same, where zero says that there is none
                checksum => checksum,
            };
            udp[6..8].copy_from_slice(&checksum.to_be_bytes());
        }
        self.transport() + length
    }

    fn icmp(
        &self,
        frame: &mut [u8; FRAME_MAX],
        flow: u64,
        (kind, code): (u8, u8),
        rest: &[u8; 4],
        quote: &[u8],
    ) -> usize {
        let length = 8 + quote.len();
        let proto = self.of_family(ICMP, ICMP6);
        let from = self.source(flow).0;
        let (icmp, pseudo) = self.ip(frame, proto, from, any_tcp(flow), length);
        icmp[..4].copy_from_slice(&[kind, code, 0, 0]);
        icmp[4..8].copy_from_slice(rest);
        icmp[8..].copy_from_slice(quote);
        let checksum = !fold(self.of_family(0, pseudo) + sum(icmp));
        icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
        self.transport() + length
    }

    /// The packet that an ICMP error invents: from the VIP to a client, with timestamps.
    fn quote(&self, flow: u64) -> Vec<u8> {
        let (vip, client) = (self.vip(any_tcp(flow)), self.source(flow));
        let mut quote = Vec::with_capacity(40 + 32);
        if self.ipv6 {
            quote.extend([0x60, 0, 0, 0, 5, 180, TCP, 63]);
        } else {
            quote.extend([0x45, 0, 5, 220, 0, 0, 0x40, 0, 63, TCP, 0, 0]);
        }
        extend(&mut quote, vip);
        extend(&mut quote, client.0);
        if !self.ipv6 {
            seal_ip(&mut quote);
        }
        quote.extend(PORT.to_be_bytes());
        quote.extend(client.1.to_be_bytes());
        quote.extend(self.random64(flow).to_be_bytes());
        quote.extend([8 << 4, ACK, 1, 1, 0, 0, 0, 0, 1, 1, 8, 10]);
        quote.extend(self.random64(flow + 1).to_be_bytes());
        quote
    }

    /// Makes a packet a fragment of one, which begins at so many eights of octets and is not the
    /// last.
    fn fragment(&self, frame: &mut [u8; FRAME_MAX], length: usize, at: u16, id: u32) -> usize {
        let (ip, rest) = frame[ETHERNET..].split_at_mut(self.transport() - ETHERNET);
        if !self.ipv6 {
            ip[6..8].copy_from_slice(&(0x2000 | at).to_be_bytes());
            seal_ip(ip);
            return length;
        }
        let payload = length - self.transport();
        ip[4..6].copy_from_slice(&(payload as u16 + 8).to_be_bytes());
        ip[6] = FRAGMENT;
        rest.copy_within(..payload, 8);
        rest[..2].copy_from_slice(&[TCP, 0]);
        rest[2..4].copy_from_slice(&(at << 3 | 1).to_be_bytes());
        rest[4..8].copy_from_slice(&id.to_be_bytes());
        length + 8
    }

    /// Writes all in front of the payload; where that is, and what the addresses, the protocol and
    /// its length add to its checksum.
    fn ip<'f>(
        &self,
        frame: &'f mut [u8; FRAME_MAX],
        proto: u8,
        from: IpAddr,
        vip: usize,
        payload: usize,
    ) -> (&'f mut [u8], u32) {
        frame[..6].copy_from_slice(&self.balancer_mac);
        frame[6..12].copy_from_slice(&ROUTER_MAC);
        let (kind, ip) = frame[12..].split_at_mut(2);
        kind.copy_from_slice(&self.of_family(IPV4, IPV6));
        let (ip, rest) = ip.split_at_mut(self.transport() - ETHERNET);
        let addresses = if self.ipv6 {
            ip[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, proto, self.hop_limit]);
            ip[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
            &mut ip[8..]
        } else {
            ip[..12].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, self.hop_limit, proto, 0, 0]);
            ip[2..4].copy_from_slice(&(20 + payload as u16).to_be_bytes());
            &mut ip[12..]
        };
        let (source, destination) = addresses.split_at_mut(self.of_family(4, 16));
        put(source, from);
        put(destination, self.vip(vip));
        let pseudo = sum(source) + sum(destination) + u32::from(proto) + payload as u32;
        if !self.ipv6 {
            seal_ip(ip);
        }
        (&mut rest[..payload], pseudo)
    }

    /// Tuples whose hash begins with ten zeroes: a thousandth of the buckets, however many.
    fn colliding_tuples(&self, count: usize) -> Vec<(IpAddr, u16)> {
        let tuples = (0u64..).map(|n| self.source(n));
        let vip = self.vip(TABLE);
        let collides = |&(host, port): &(IpAddr, u16)| {
            // struct flow_key4 or flow_key6: addresses, ports, protocol.
            let mut key = [0; 40];
            let address = self.of_family(4, 16);
            let end = 2 * address + 8;
            put(&mut key[..address], host);
            put(&mut key[address..2 * address], vip);
            key[end - 8..end - 6].copy_from_slice(&port.to_be_bytes());
            key[end - 6..end - 4].copy_from_slice(&PORT.to_be_bytes());
            key[end - 4] = TCP;
            let (words, _) = key[..end].as_chunks();
            let words = words.iter().map(|word| u64::from_ne_bytes(*word));
            table_hash(words, self.seed) >> 54 == 0
        };
        tuples.filter(collides).take(count).collect()
    }
}

fn extend(octets: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => octets.extend(address.octets()),
        IpAddr::V6(address) => octets.extend(address.octets()),
    }
}

fn put(at: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(address) => at.copy_from_slice(&address.octets()),
        IpAddr::V6(address) => at.copy_from_slice(&address.octets()),
    }
}

/// The checksum of an IPv4 header.
pub(in crate::scenario) fn seal_ip(ip: &mut [u8]) {
    ip[10..12].fill(0);
    let checksum = !fold(sum(&ip[..20]));
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// The sum of 16-bit words, not folded; an odd last octet counts as the high one.
fn sum(octets: &[u8]) -> u32 {
    let words = octets.chunks(2);
    words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0)))
        .sum()
}

fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Stafford's variant 13.
fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// The hash of the flow table (bpf/shared/mix.h), as an attacker would write it down.
fn table_hash(words: impl Iterator<Item = u64>, seed: u64) -> u64 {
    let (mut sum, mut key) = (seed, seed);
    for word in words {
        key = key
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(0xd134_2543_de82_ef95);
        let low = (word as u32).wrapping_add((key >> 32) as u32);
        let high = ((word >> 32) as u32).wrapping_add((key ^ key >> 17) as u32);
        sum = sum.wrapping_add(u64::from(low).wrapping_mul(high.into()));
    }
    mix(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLANS: [Plan; 2] = [plan(false), plan(true)];

    const fn plan(ipv6: bool) -> Plan {
        Plan {
            balancer_mac: [2, 0, 0, 0, 0, 2],
            seed: 7,
            ipv6,
            hop_limit: 63,
        }
    }

    fn frames(plan: &Plan, kind: &FloodKind) -> Vec<Vec<u8>> {
        let Frames::Made(make) = kind.frames else {
            return Vec::new();
        };
        let one = |n| {
            let mut buffer = [0; FRAME_MAX];
            let length = make(plan, n, &mut buffer);
            buffer[..length].to_vec()
        };
        (0..200).map(one).collect()
    }

    #[test]
    fn frames_are_sound_and_differ() {
        for (plan, kind) in PLANS
            .iter()
            .flat_map(|p| FLOODS.iter().map(move |k| (p, k)))
        {
            let all = frames(plan, kind);
            let different: std::collections::HashSet<_> = all.iter().collect();
            assert_eq!(different.len(), all.len(), "{}", kind.name);
            for frame in &all {
                check(frame, kind.name);
            }
        }
    }

    fn check(frame: &[u8], name: &str) {
        let ipv6 = frame[12..14] == IPV6;
        let (ip, mut rest) = frame[ETHERNET..].split_at(if ipv6 { 40 } else { 20 });
        let length_at = if ipv6 { 4 } else { 2 };
        let length = u16::from_be_bytes([ip[length_at], ip[length_at + 1]]);
        let (mut proto, addresses) = if ipv6 {
            assert_eq!(usize::from(length), rest.len(), "{name}");
            (ip[6], &ip[8..])
        } else {
            assert_eq!(usize::from(length), 20 + rest.len(), "{name}");
            assert_eq!(fold(sum(ip)), 0xffff, "{name}");
            (ip[9], &ip[12..])
        };
        if proto == FRAGMENT {
            (proto, rest) = (rest[0], &rest[8..]);
        }
        let pseudo = sum(addresses) + u32::from(proto) + rest.len() as u32;
        match proto {
            ICMP => assert_eq!(fold(sum(rest)), 0xffff, "{name}"),
            UDP if !ipv6 => assert_eq!(rest[6..8], [0, 0], "{name}"),
            _ => assert_eq!(fold(pseudo + sum(rest)), 0xffff, "{name}"),
        }
        if proto == UDP {
            let length = u16::from_be_bytes([rest[4], rest[5]]);
            assert_eq!(usize::from(length), rest.len(), "{name}");
        }
    }

    #[test]
    fn a_repeated_packet_has_the_hop_limit_and_is_sound() {
        for plan in PLANS {
            let packet = frames(&plan, &FLOODS[0]).swap_remove(0);
            let other = Plan {
                hop_limit: 77,
                ..plan
            };
            let mut buffer = [0; FRAME_MAX];
            let length = other.replay(packet.clone())(5, &mut buffer);
            assert_eq!(length, packet.len());
            check(&buffer[..length], "replay");
            assert_eq!(buffer[ETHERNET + if plan.ipv6 { 7 } else { 8 }], 77);
        }
    }

    #[test]
    fn the_control_is_as_long_as_its_flood() {
        for (plan, kind) in PLANS
            .iter()
            .flat_map(|p| FLOODS.iter().map(move |k| (p, k)))
        {
            for frame in frames(plan, kind) {
                let mut buffer = [0; FRAME_MAX];
                let control = plan.unserved(frame.len())(0, &mut buffer);
                assert_eq!(
                    control,
                    frame.len().max(plan.transport() + 8),
                    "{}",
                    kind.name
                );
            }
        }
    }
}
