// SPDX-License-Identifier: Apache-2.0
//! What an agent tells balancers of its server's load, some times a second: a datagram
//! under a SipHash-2-4 tag.
//!
//! Whoever forges one draws connections to a server or away from it; hence the key. A
//! replayed one would bring an old time back; hence boot and time, by which [`Newest`]
//! tells what is newer.

use std::net::{IpAddr, Ipv6Addr};

use crate::cookie::notice::tag;
use crate::cookie::{Epoch, Keys};

/// Bytes of a datagram: magic, four of padding, tag, server, boot, time, CPU, in flight.
pub const LOAD_REPORT_LEN: usize = 56;
/// What a datagram begins with; its last digit is the version.
const MAGIC: [u8; 4] = *b"CWL1";

/// A server's load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerLoad {
    /// Share of all its CPUs that was busy, thousandths.
    pub cpu_milli: u32,
    /// Connections whose client waits for an answer.
    pub in_flight: u32,
}

/// A datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadReport {
    /// The server, by the address that balancers know it by.
    pub server: IpAddr,
    /// Stands for the boot of the server.
    pub boot: u64,
    /// Its CLOCK_MONOTONIC, nanoseconds.
    pub at_ns: u64,
    /// What it is about.
    pub load: ServerLoad,
}

impl LoadReport {
    /// The datagram, signed with the current key.
    pub fn encode(&self, keys: &Keys) -> Vec<u8> {
        let server = match self.server {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let mut bytes = Vec::with_capacity(LOAD_REPORT_LEN);
        bytes.extend(MAGIC);
        bytes.extend([0; 12]);
        bytes.extend(server.octets());
        bytes.extend(self.boot.to_be_bytes());
        bytes.extend(self.at_ns.to_be_bytes());
        bytes.extend(self.load.cpu_milli.to_be_bytes());
        bytes.extend(self.load.in_flight.to_be_bytes());
        if let Some(key) = keys.get(keys.current()) {
            let tag = tag(&bytes, key);
            bytes[8..16].copy_from_slice(&tag);
        }
        bytes
    }

    /// Reads a datagram; `None` for one that is none of ours, or not by a key of ours.
    pub fn decode(bytes: &[u8], keys: &Keys) -> Option<Self> {
        if bytes.len() != LOAD_REPORT_LEN || bytes[..4] != MAGIC {
            return None;
        }
        let mut ours = Epoch::ALL.into_iter().filter_map(|epoch| keys.get(epoch));
        if !ours.any(|key| tag(bytes, key) == bytes[8..16]) {
            return None;
        }
        let octets: [u8; 16] = *bytes.get(16..)?.first_chunk()?;
        let word = |at: usize| Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let half = |at: usize| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        Some(Self {
            server: Ipv6Addr::from(octets).to_canonical(),
            boot: word(32)?,
            at_ns: word(40)?,
            load: ServerLoad {
                cpu_milli: half(48)?,
                in_flight: half(52)?,
            },
        })
    }
}

/// The newest report of a server, and what may follow it.
#[derive(Clone, Copy, Debug)]
pub struct Newest {
    report: LoadReport,
    at_ns: u64,
}

impl Newest {
    /// How long a report holds. A load of a second ago says nothing any more.
    pub const FRESH_NS: u64 = 1_000_000_000;

    /// A server's first report, which came at `now_ns` of the receiver's clock.
    pub fn new(report: LoadReport, now_ns: u64) -> Self {
        Self {
            report,
            at_ns: now_ns,
        }
    }

    /// Takes a report in if it is newer; whether it is. Which of two boots is the newer
    /// nobody can tell: the one that speaks holds, until it has been silent.
    pub fn take(&mut self, report: LoadReport, now_ns: u64) -> bool {
        let newer = match report.boot == self.report.boot {
            true => report.at_ns > self.report.at_ns,
            false => !self.is_fresh(now_ns),
        };
        if newer {
            *self = Self::new(report, now_ns);
        }
        newer
    }

    /// Whether it still holds.
    pub fn is_fresh(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.at_ns) <= Self::FRESH_NS
    }

    /// What it says, as long as it holds.
    pub fn load(&self, now_ns: u64) -> Option<ServerLoad> {
        self.is_fresh(now_ns).then_some(self.report.load)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(current: Epoch, digits: [&str; 2]) -> Keys {
        let [first, second] = digits.map(|digit| digit.repeat(32).parse().expect("a key"));
        Keys::new(current, first, Some(second))
    }

    fn report(boot: u64, at_ns: u64) -> LoadReport {
        LoadReport {
            server: IpAddr::from([10, 0, 0, 1]),
            boot,
            at_ns,
            load: ServerLoad {
                cpu_milli: 750,
                in_flight: 0x0102_0304,
            },
        }
    }

    #[test]
    fn a_report_is_read_as_it_was_written_by_either_key_and_no_other() {
        let v6 = LoadReport {
            server: "2001:db8::1".parse().expect("an address"),
            ..report(7, 9)
        };
        for report in [report(7, 9), v6] {
            let bytes = report.encode(&keys(Epoch::Zero, ["7", "8"]));
            let switched = keys(Epoch::One, ["8", "7"]);
            assert_eq!(LoadReport::decode(&bytes, &switched), Some(report));
            let others = keys(Epoch::Zero, ["8", "9"]);
            assert_eq!(LoadReport::decode(&bytes, &others), None);
        }
    }

    #[test]
    fn no_bit_can_be_changed_and_no_byte_added_or_left_out() {
        let keys = keys(Epoch::Zero, ["7", "8"]);
        let bytes = report(7, 9).encode(&keys);
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(LoadReport::decode(&other, &keys), None, "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(LoadReport::decode(&bytes[..len], &keys), None);
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(LoadReport::decode(&longer, &keys), None);
    }

    #[test]
    fn old_reports_and_other_boots_do_not_count_until_the_newest_is_stale() {
        let mut newest = Newest::new(report(7, 9), 100);
        assert!(!newest.take(report(7, 9), 101) && !newest.take(report(7, 8), 101));
        assert!(!newest.take(report(6, 99), 101));
        assert!(newest.take(report(7, 10), 102));
        let stale = 102 + Newest::FRESH_NS + 1;
        assert!(newest.load(stale - 1).is_some() && newest.load(stale).is_none());
        assert!(newest.take(report(6, 1), stale));
        assert_eq!(newest.load(stale), Some(report(6, 1).load));
    }
}
