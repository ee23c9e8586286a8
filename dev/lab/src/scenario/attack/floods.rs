// SPDX-License-Identifier: Apache-2.0
//! The frames of each flood, as an attacker without keys would write them.

use std::net::Ipv4Addr;

use crate::load::frame_flood::{FRAME_MAX, FrameMaker};
use crate::scenario::bench::{PORT, QUIC_PORT};
use crate::topology::{ROUTER_MAC, vip4};

/// Where frames claim to come from (RFC 2544's network for benchmarks), 2^17 hosts.
pub(super) const SOURCES: &str = "198.18.0.0/15";
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
const TRANSPORT: usize = ETHERNET + 20;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;

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
        let field: u16 = if n % 2 == 0 { 0x2000 } else { 0x2000 | 185 };
        frame[ETHERNET + 6..ETHERNET + 8].copy_from_slice(&field.to_be_bytes());
        seal_ip(frame);
        length
    }),
    made("icmp-echo", &["echo_answered"], |plan, n, frame| {
        plan.icmp(frame, n, (8, 0), &plan.random(n).to_be_bytes(), &[])
    }),
    made(
        "icmp-too-big",
        &["icmp_error", "cookie_unknown"],
        |plan, n, frame| plan.icmp(frame, n, (3, 4), &[0, 0, 2, 64], &plan.quote(n)),
    ),
    made(
        "icmp-unreachable",
        &["icmp_error", "cookie_unknown"],
        |plan, n, frame| plan.icmp(frame, n, (3, 1), &[0; 4], &plan.quote(n)),
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

    /// One frame for ever.
    pub(super) fn replay(packet: Vec<u8>) -> FrameMaker {
        let length = packet.len().min(FRAME_MAX);
        Box::new(move |_, buffer| {
            buffer[..length].copy_from_slice(&packet[..length]);
            length
        })
    }

    /// The control: as many frames as long, which the balancer drops at its first look.
    pub(super) fn unserved(self, length: usize) -> FrameMaker {
        let payload = vec![0; length.saturating_sub(TRANSPORT + 8)];
        Box::new(move |n, buffer| self.udp(buffer, n, (TABLE, UNSERVED_PORT), &payload))
    }

    /// ACKs of tuples that fall into a thousandth of the table's buckets, if it had this seed.
    pub(super) fn collisions(self, count: usize) -> FrameMaker {
        let tuples = colliding_tuples(self.seed, count);
        Box::new(move |n, buffer| {
            let (source, port) = tuples[n as usize % tuples.len()];
            let from = (Ipv4Addr::from(source), port);
            self.tcp_from(buffer, from, TABLE, self.numbers(n), ACK, None)
        })
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
        self.tcp_from(frame, source(flow), vip, numbers, flags, timestamps)
    }

    fn tcp_from(
        &self,
        frame: &mut [u8; FRAME_MAX],
        from: (Ipv4Addr, u16),
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
        let to = vip4(vip);
        self.ip(frame, TCP, from.0, to, length);
        let tcp = &mut frame[TRANSPORT..TRANSPORT + length];
        tcp[..2].copy_from_slice(&from.1.to_be_bytes());
        tcp[2..4].copy_from_slice(&PORT.to_be_bytes());
        tcp[4..8].copy_from_slice(&numbers.0.to_be_bytes());
        tcp[8..12].copy_from_slice(&numbers.1.to_be_bytes());
        tcp[12..20].copy_from_slice(&[(length as u8 / 4) << 4, flags, 0xfa, 0xf0, 0, 0, 0, 0]);
        tcp[20..].copy_from_slice(&options);
        let pseudo = sum(&from.0.octets()) + sum(&to.octets()) + u32::from(TCP) + length as u32;
        let checksum = !fold(pseudo + sum(tcp));
        tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
        TRANSPORT + length
    }

    /// Without a checksum, as IPv4 allows.
    fn udp(
        &self,
        frame: &mut [u8; FRAME_MAX],
        flow: u64,
        to: (usize, u16),
        payload: &[u8],
    ) -> usize {
        let from = source(flow);
        let length = 8 + payload.len();
        self.ip(frame, UDP, from.0, vip4(to.0), length);
        let udp = &mut frame[TRANSPORT..TRANSPORT + length];
        udp[..2].copy_from_slice(&from.1.to_be_bytes());
        udp[2..4].copy_from_slice(&to.1.to_be_bytes());
        udp[4..6].copy_from_slice(&(length as u16).to_be_bytes());
        udp[6..8].fill(0);
        udp[8..].copy_from_slice(payload);
        TRANSPORT + length
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
        self.ip(frame, ICMP, source(flow).0, vip4(any_tcp(flow)), length);
        let icmp = &mut frame[TRANSPORT..TRANSPORT + length];
        icmp[..4].copy_from_slice(&[kind, code, 0, 0]);
        icmp[4..8].copy_from_slice(rest);
        icmp[8..].copy_from_slice(quote);
        let checksum = !fold(sum(icmp));
        icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
        TRANSPORT + length
    }

    /// The packet that an ICMP error invents: from the VIP to a client, with timestamps.
    fn quote(&self, flow: u64) -> [u8; 52] {
        let (vip, client) = (vip4(any_tcp(flow)), source(flow));
        let mut quote = [0; 52];
        quote[..12].copy_from_slice(&[0x45, 0, 5, 220, 0, 0, 0x40, 0, 63, TCP, 0, 0]);
        quote[12..16].copy_from_slice(&vip.octets());
        quote[16..20].copy_from_slice(&client.0.octets());
        let checksum = !fold(sum(&quote[..20]));
        quote[10..12].copy_from_slice(&checksum.to_be_bytes());
        quote[20..22].copy_from_slice(&PORT.to_be_bytes());
        quote[22..24].copy_from_slice(&client.1.to_be_bytes());
        quote[24..32].copy_from_slice(&self.random64(flow).to_be_bytes());
        quote[32..36].copy_from_slice(&[8 << 4, ACK, 1, 1]);
        quote[40..44].copy_from_slice(&[1, 1, 8, 10]);
        quote[44..].copy_from_slice(&self.random64(flow + 1).to_be_bytes());
        quote
    }

    fn ip(
        &self,
        frame: &mut [u8; FRAME_MAX],
        proto: u8,
        from: Ipv4Addr,
        to: Ipv4Addr,
        payload: usize,
    ) {
        frame[..6].copy_from_slice(&self.balancer_mac);
        frame[6..12].copy_from_slice(&ROUTER_MAC);
        frame[12..14].copy_from_slice(&[8, 0]);
        let ip = &mut frame[ETHERNET..TRANSPORT];
        ip.copy_from_slice(&[
            0x45, 0, 0, 0, 0, 0, 0, 0, 63, proto, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ]);
        ip[2..4].copy_from_slice(&(20 + payload as u16).to_be_bytes());
        ip[12..16].copy_from_slice(&from.octets());
        ip[16..20].copy_from_slice(&to.octets());
        seal_ip(frame);
    }
}

/// Another tuple for each of the first 2^17 * 60,000 flows.
fn source(flow: u64) -> (Ipv4Addr, u16) {
    let host = flow as u32 & ((1 << SOURCE_BITS) - 1);
    let port = 1024 + ((flow >> SOURCE_BITS) % 60_000) as u16;
    (Ipv4Addr::from(FIRST_SOURCE + host), port)
}

fn seal_ip(frame: &mut [u8; FRAME_MAX]) {
    let ip = &mut frame[ETHERNET..TRANSPORT];
    ip[10..12].fill(0);
    let checksum = !fold(sum(ip));
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
fn table_hash(words: [u64; 2], seed: u64) -> u64 {
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

/// Tuples whose hash begins with ten zeroes: a thousandth of the buckets, however many.
fn colliding_tuples(seed: u64, count: usize) -> Vec<(u32, u16)> {
    let vip = u32::from_ne_bytes(vip4(TABLE).octets());
    let tuples = (0u64..).map(|n| {
        let (host, port) = source(n);
        (u32::from(host), port)
    });
    let collides = |&(host, port): &(u32, u16)| {
        // struct flow_key4: addresses, ports, protocol.
        let addresses = u64::from(host.swap_bytes()) | u64::from(vip) << 32;
        let ports = u64::from(port.swap_bytes()) | u64::from(PORT.swap_bytes()) << 16;
        table_hash([addresses, ports | u64::from(TCP) << 32], seed) >> 54 == 0
    };
    tuples.filter(collides).take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan = Plan {
        balancer_mac: [2, 0, 0, 0, 0, 2],
        seed: 7,
    };

    fn frames(kind: &FloodKind) -> Vec<Vec<u8>> {
        let Frames::Made(make) = kind.frames else {
            return Vec::new();
        };
        let one = |n| {
            let mut buffer = [0; FRAME_MAX];
            let length = make(&PLAN, n, &mut buffer);
            buffer[..length].to_vec()
        };
        (0..200).map(one).collect()
    }

    #[test]
    fn frames_are_sound_and_differ() {
        for kind in FLOODS {
            let all = frames(kind);
            let different: std::collections::HashSet<_> = all.iter().collect();
            assert_eq!(different.len(), all.len(), "{}", kind.name);
            for frame in &all {
                let (ip, rest) = frame[ETHERNET..].split_at(20);
                assert_eq!(fold(sum(ip)), 0xffff, "{}", kind.name);
                assert_eq!(
                    usize::from(u16::from_be_bytes([ip[2], ip[3]])),
                    20 + rest.len()
                );
                let pseudo = sum(&ip[12..]) + u32::from(ip[9]) + rest.len() as u32;
                match ip[9] {
                    TCP => assert_eq!(fold(pseudo + sum(rest)), 0xffff, "{}", kind.name),
                    ICMP => assert_eq!(fold(sum(rest)), 0xffff, "{}", kind.name),
                    _ => assert_eq!(
                        usize::from(u16::from_be_bytes([rest[4], rest[5]])),
                        rest.len()
                    ),
                }
            }
        }
    }

    #[test]
    fn the_control_is_as_long_as_its_flood() {
        for kind in FLOODS {
            for frame in frames(kind) {
                let mut buffer = [0; FRAME_MAX];
                let control = PLAN.unserved(frame.len())(0, &mut buffer);
                assert_eq!(control, frame.len(), "{}", kind.name);
            }
        }
    }
}
