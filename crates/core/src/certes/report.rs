// SPDX-License-Identifier: Apache-2.0
//! What an agent tells balancers of its server's clients, once a second: a datagram of
//! means, under a SipHash-2-4 tag.
//!
//! Whoever forges one moves a service's weights, and a source address proves nothing;
//! hence the key. A replayed one would bring an old time back; hence boot and second, by
//! which [`Newest`] tells what is newer.

use std::net::{IpAddr, Ipv6Addr};

use crate::cookie::notice::{DATAGRAM_MAX, tag};
use crate::cookie::{Epoch, Keys};

/// Bytes of a head: magic, count, three of padding, tag, server, boot, second.
const HEAD: usize = 48;
/// Bytes of a service.
const ENTRY: usize = 40;
/// What a datagram begins with; its last digit is the version.
const MAGIC: [u8; 4] = *b"CWF1";
/// Services of a datagram, so that it fits into an IPv6 packet of 1,280 bytes.
pub const SERVICES_MAX: usize = 28;
/// Bytes of the longest datagram.
pub const REPORT_MAX: usize = HEAD + SERVICES_MAX * ENTRY;
const _: () = assert!(REPORT_MAX <= DATAGRAM_MAX, "all of it is signed");

/// What the clients of a service felt in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Felt {
    /// Where it listens; `None`: any address.
    pub address: Option<IpAddr>,
    /// 0: any port.
    pub port: u16,
    /// Transactions that ended, thousandths.
    pub transactions_milli: u64,
    /// Sum of their response times as clients felt them, nanoseconds.
    pub response_ns: u64,
}

/// A datagram.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The server, by the address that balancers know it by.
    pub server: IpAddr,
    /// Stands for the boot of the server.
    pub boot: u64,
    /// Its CLOCK_MONOTONIC, seconds.
    pub second: u64,
    /// At most [`SERVICES_MAX`].
    pub services: Vec<Felt>,
}

impl Report {
    /// The datagram, signed with the current key. Services above the most are left out.
    pub fn encode(&self, keys: &Keys) -> Vec<u8> {
        let services = &self.services[..self.services.len().min(SERVICES_MAX)];
        let mut bytes = Vec::with_capacity(HEAD + services.len() * ENTRY);
        bytes.extend(MAGIC);
        bytes.extend([services.len() as u8, 0, 0, 0]);
        bytes.extend([0; 8]);
        bytes.extend(octets(self.server));
        bytes.extend(self.boot.to_be_bytes());
        bytes.extend(self.second.to_be_bytes());
        for of in services {
            bytes.extend(of.address.map_or([0; 16], octets));
            bytes.extend(of.port.to_be_bytes());
            bytes.extend([0; 6]);
            bytes.extend(of.transactions_milli.to_be_bytes());
            bytes.extend(of.response_ns.to_be_bytes());
        }
        if let Some(key) = keys.get(keys.current()) {
            let tag = tag(&bytes, key);
            bytes[8..16].copy_from_slice(&tag);
        }
        bytes
    }

    /// Reads a datagram; `None` for one that is none of ours, or not by a key of ours.
    pub fn decode(bytes: &[u8], keys: &Keys) -> Option<Self> {
        let (head, entries) = bytes.split_at_checked(HEAD)?;
        let count = usize::from(head[4]);
        if head[..4] != MAGIC || count > SERVICES_MAX || entries.len() != count * ENTRY {
            return None;
        }
        let mut ours = Epoch::ALL.into_iter().filter_map(|epoch| keys.get(epoch));
        if !ours.any(|key| tag(bytes, key) == head[8..16]) {
            return None;
        }
        Some(Self {
            server: address(head, 16)?,
            boot: word(head, 32)?,
            second: word(head, 40)?,
            services: entries
                .chunks_exact(ENTRY)
                .map(felt)
                .collect::<Option<_>>()?,
        })
    }
}

fn felt(entry: &[u8]) -> Option<Felt> {
    let found = address(entry, 0)?;
    Some(Felt {
        address: (!found.is_unspecified()).then_some(found),
        port: u16::from_be_bytes([entry[16], entry[17]]),
        transactions_milli: word(entry, 24)?,
        response_ns: word(entry, 32)?,
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn address(bytes: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 16] = *bytes.get(at..)?.first_chunk()?;
    Some(Ipv6Addr::from(octets).to_canonical())
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The newest report of a server, and what may follow it.
#[derive(Clone, Debug)]
pub struct Newest {
    report: Report,
    at_ns: u64,
}

impl Newest {
    /// How long a report holds. Three seconds: two may get lost.
    pub const FRESH_NS: u64 = 3_000_000_000;

    /// A server's first report, which came at `now_ns` of the receiver's clock.
    pub fn new(report: Report, now_ns: u64) -> Self {
        Self {
            report,
            at_ns: now_ns,
        }
    }

    /// Takes a report in if it is newer; whether it is. Which of two boots is the newer
    /// nobody can tell: the one that speaks holds, until it has been silent.
    pub fn take(&mut self, report: Report, now_ns: u64) -> bool {
        let newer = match report.boot == self.report.boot {
            true => report.second > self.report.second,
            false => !self.is_fresh(now_ns),
        };
        if newer {
            *self = Self::new(report, now_ns);
        }
        newer
    }

    /// Whether it still holds.
    pub fn is_fresh(&self, now_ns: u64) -> bool {
        self.age_ns(now_ns) <= Self::FRESH_NS
    }

    /// How long ago it came.
    pub fn age_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.at_ns)
    }

    /// What it says of a service: of that address and port, else of the address, else of
    /// the port, in which order agents look. Port 0 stands for all ports of the address.
    /// `None` where the agent does not count it.
    pub fn of(&self, address: IpAddr, port: u16) -> Option<Felt> {
        let services = || self.report.services.iter();
        if port == 0 {
            let ours: Vec<&Felt> = services()
                .filter(|of| of.address == Some(address))
                .collect();
            let sum = |part: fn(&Felt) -> u64| {
                let parts = ours.iter().map(|of| part(of));
                parts.fold(0, u64::saturating_add)
            };
            return (!ours.is_empty()).then(|| Felt {
                address: Some(address),
                port,
                transactions_milli: sum(|of| of.transactions_milli),
                response_ns: sum(|of| of.response_ns),
            });
        }
        let find = |wanted: (Option<IpAddr>, u16)| {
            let found = services().find(|of| (of.address, of.port) == wanted);
            found.copied()
        };
        find((Some(address), port))
            .or_else(|| find((Some(address), 0)))
            .or_else(|| find((None, port)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(current: Epoch, digits: [&str; 2]) -> Keys {
        let [first, second] = digits.map(|digit| digit.repeat(32).parse().expect("a key"));
        Keys::new(current, first, Some(second))
    }

    fn report(boot: u64, second: u64, count: usize) -> Report {
        let service = |n: usize| Felt {
            address: match n % 3 {
                0 => Some(IpAddr::from([192, 0, 2, n as u8])),
                1 => Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n as u16).into()),
                _ => None,
            },
            port: 80 + n as u16,
            transactions_milli: 1_500 * n as u64,
            response_ns: 7_000_000_000 * n as u64,
        };
        Report {
            server: IpAddr::from([10, 0, 0, 1]),
            boot,
            second,
            services: (0..count).map(service).collect(),
        }
    }

    #[test]
    fn reports_are_read_as_they_were_written_by_either_key_and_no_other() {
        for count in [0, 1, SERVICES_MAX] {
            let report = report(7, 9, count);
            let bytes = report.encode(&keys(Epoch::Zero, ["7", "8"]));
            assert!(bytes.len() <= REPORT_MAX);
            let switched = keys(Epoch::One, ["8", "7"]);
            assert_eq!(Report::decode(&bytes, &switched), Some(report));
            let others = keys(Epoch::Zero, ["8", "9"]);
            assert_eq!(Report::decode(&bytes, &others), None);
        }
    }

    #[test]
    fn no_bit_can_be_changed_and_no_byte_left_out() {
        let keys = keys(Epoch::Zero, ["7", "8"]);
        let bytes = report(7, 9, 2).encode(&keys);
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Report::decode(&other, &keys), None, "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(Report::decode(&bytes[..len], &keys), None);
        }
    }

    #[test]
    fn what_is_replayed_is_not_believed() {
        const S: u64 = 1_000_000_000;
        let mut newest = Newest::new(report(1, 10, 1), 0);
        assert!(!newest.take(report(1, 10, 1), S), "the same");
        assert!(!newest.take(report(1, 9, 1), S), "older");
        assert!(newest.take(report(1, 11, 1), S));
        assert!(
            !newest.take(report(2, 99, 1), 4 * S),
            "this boot still speaks"
        );
        assert!(newest.is_fresh(4 * S) && !newest.is_fresh(4 * S + 1));
        assert!(newest.take(report(2, 1, 1), 4 * S + 1), "it was booted");
        assert!(!newest.take(report(1, 12, 1), 5 * S), "the former boot");
    }

    #[test]
    fn a_service_is_found_as_agents_find_it() {
        let address = IpAddr::from([192, 0, 2, 1]);
        let other = IpAddr::from([192, 0, 2, 2]);
        let felt = |address, port, transactions_milli| Felt {
            address,
            port,
            transactions_milli,
            response_ns: 10 * transactions_milli,
        };
        let services = vec![
            felt(None, 80, 1),
            felt(Some(address), 0, 2),
            felt(Some(address), 80, 4),
        ];
        let newest = Newest::new(
            Report {
                services,
                ..report(1, 1, 0)
            },
            0,
        );
        let of = |address, port| newest.of(address, port).map(|of| of.transactions_milli);
        assert_eq!(of(address, 80), Some(4));
        assert_eq!(of(address, 443), Some(2));
        assert_eq!(of(address, 0), Some(6));
        assert_eq!(of(other, 80), Some(1));
        assert_eq!(of(other, 443), None);
    }
}
