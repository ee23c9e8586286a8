// SPDX-License-Identifier: Apache-2.0
//! What a silence does to a connection, by how the server's timestamps carry its cookie: the
//! product's clock, and beside it the encoding of Cheetah's paper (appendix C).
//!
//! The client has RFC 7323's rules in their order: what is older than TS.Recent is rejected (R1),
//! then what lies outside of the window (R2), and only what is left renews TS.Recent (R3). So a
//! server's keepalive probe renews nothing: its sequence number is below the window.

use causeway_core::cookie::{Clock, Kind};

const SECOND_MS: u64 = 1000;
/// A client keeps a timestamp for so long (section 5.5).
const RECENT_MS: u64 = 24 * 86_400 * SECOND_MS;
/// The server's first timeout, and how long one gets at most.
const RTO_MS: u64 = 200;
const RTO_MAX_MS: u64 = 120 * SECOND_MS;
/// Linux gives a connection up behind so many retransmissions (`tcp_retries2`).
const RETRIES: u32 = 15;

/// A client's half of PAWS.
#[derive(Default)]
pub(crate) struct Recent {
    tsval: u32,
    at_ms: Option<u64>,
}

impl Recent {
    /// Whether a segment within the window is taken; it is the newest then.
    pub(crate) fn takes(&mut self, now_ms: u64, tsval: u32) -> bool {
        let holds = self.at_ms.is_some_and(|at| now_ms - at < RECENT_MS);
        if holds && (tsval.wrapping_sub(self.tsval) as i32) < 0 {
            return false;
        }
        (self.tsval, self.at_ms) = (tsval, Some(now_ms));
        true
    }
}

/// What a server's timestamps read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// The kernel's own, in milliseconds.
    Kernel,
    /// The product's: the cookie below a clock that follows what is sent.
    Timestamp,
    /// The product's without state: the cookie in place of the kernel's low bits.
    Light,
    /// The paper's: above the kernel's low 16 bits the cookie, and above it the bit that says which
    /// of two versions of the replaced bits these belong to.
    Msb,
}

impl Encoding {
    pub const ALL: [Self; 4] = [Self::Kernel, Self::Timestamp, Self::Light, Self::Msb];

    pub fn word(self) -> &'static str {
        match self {
            Self::Kernel => "none",
            Self::Timestamp => "timestamp",
            Self::Light => "timestamp-light",
            Self::Msb => "timestamp-msb",
        }
    }
}

const COOKIE: u32 = 0x155;
const BITS: u8 = 16;
const LIGHT_BITS: u8 = 10;

struct Server {
    encoding: Encoding,
    clock: Clock,
}

impl Server {
    fn new(encoding: Encoding, now_ms: u64) -> Self {
        let o = now_ms as u32;
        let clock = Clock::start(o, o & u32::MAX >> BITS, 1, BITS);
        Self { encoding, clock }
    }

    fn tsval(&mut self, now_ms: u64, kind: Kind) -> u32 {
        let o = now_ms as u32;
        match self.encoding {
            Encoding::Kernel => o,
            Encoding::Timestamp => self.clock.stamp_kind(o, kind) << BITS | COOKIE,
            Encoding::Light => o >> LIGHT_BITS << LIGHT_BITS | COOKIE,
            Encoding::Msb => (o >> 16 & 1) << 31 | COOKIE << 16 | o & 0xffff,
        }
    }

    fn is_echoed(&mut self, tsecr: u32, now_ms: u64) {
        if self.encoding == Encoding::Timestamp {
            self.clock.echo(tsecr >> BITS, now_ms as u32);
        }
    }
}

/// What became of the data that a server sends behind a silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// How often the client rejected it.
    pub rejected: u32,
    /// When a retransmission was taken, after the first attempt. `None`: the connection ended.
    pub ms: Option<u64>,
}

/// A connection on which the server has sent at `begin_ms` of its clock, was silent for `silence_ms`
/// but for probes each `probes_ms`, and sends then.
pub fn stall(encoding: Encoding, begin_ms: u64, silence_ms: u64, probes_ms: Option<u64>) -> Stall {
    let (mut server, mut client) = (Server::new(encoding, begin_ms), Recent::default());
    let tsval = server.tsval(begin_ms, Kind::Data);
    client.takes(begin_ms, tsval);
    server.is_echoed(client.tsval, begin_ms);
    let end_ms = begin_ms + silence_ms;
    if let Some(every_ms) = probes_ms {
        for now_ms in (begin_ms + every_ms..end_ms).step_by(every_ms as usize) {
            server.tsval(now_ms, Kind::Ack);
            // The client answers, by what it knew before.
            server.is_echoed(client.tsval, now_ms);
        }
    }
    let (mut now_ms, mut rto_ms, mut kind) = (end_ms, RTO_MS, Kind::Data);
    for rejected in 0..=RETRIES {
        let tsval = server.tsval(now_ms, kind);
        if client.takes(now_ms, tsval) {
            let ms = Some(now_ms - end_ms);
            return Stall { rejected, ms };
        }
        now_ms += rto_ms;
        rto_ms = (2 * rto_ms).min(RTO_MAX_MS);
        kind = Kind::Moves;
    }
    Stall {
        rejected: RETRIES + 1,
        ms: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGINS_MS: [u64; 4] = [10_000, 65_535, 1 << 31, (1 << 32) - 40_000];
    const PROBES_MS: [Option<u64>; 3] = [None, Some(25_000), Some(1000)];

    fn rejected(encoding: Encoding, silence_s: u64) -> Vec<bool> {
        let all = BEGINS_MS.into_iter().flat_map(|begin_ms| {
            PROBES_MS.map(|probes_ms| {
                stall(encoding, begin_ms, silence_s * SECOND_MS, probes_ms).rejected > 0
            })
        });
        all.collect()
    }

    #[test]
    fn connections_outlive_every_silence_by_the_encodings_of_the_product() {
        for encoding in [Encoding::Kernel, Encoding::Timestamp, Encoding::Light] {
            for silence_s in (1..400).chain([3600, 86_400]) {
                let rejected = rejected(encoding, silence_s);
                assert!(!rejected.contains(&true), "{encoding:?}, {silence_s} s");
            }
        }
    }

    /// What was kept of the clock are 17 bits of milliseconds: 131.1 s, of which one half is the past.
    #[test]
    fn the_papers_encoding_stalls_connections_every_other_66_seconds_with_probes_or_without() {
        for silence_s in 1..400 {
            let is_past = (silence_s * SECOND_MS) >> 16 & 1 == 1;
            let rejected = rejected(Encoding::Msb, silence_s);
            assert!(!rejected.contains(&!is_past), "{silence_s} s");
        }
        let stalls = [70, 100, 131].map(|silence_s| {
            let stall = stall(Encoding::Msb, 10_000, silence_s * SECOND_MS, Some(25_000));
            stall.ms
        });
        assert_eq!(stalls, [Some(102_200), Some(51_000), Some(200)]);
    }
}
