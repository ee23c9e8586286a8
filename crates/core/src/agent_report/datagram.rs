// SPDX-License-Identifier: Apache-2.0
//! The datagram: to bytes under a tag, and back.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::keys::{ReportKeys, Speaker, octets};
use super::receiver::Reception;
use crate::cookie::{CookieKey, KeyEpoch, siphash};

/// Bytes of the longest datagram: it fits into an IPv6 packet of 1,280 bytes.
pub const DATAGRAM_MAX: usize = 1232;
/// Notices of a datagram that has no other body.
pub const NOTICES_MAX: usize = (DATAGRAM_MAX - HEAD - BODY_HEAD) / NOTICE;
/// Services of a datagram, beside a server's load.
pub const SERVICES_MAX: usize = 18;
const _: () = assert!(HEAD + 2 * BODY_HEAD + LOAD + SERVICES_MAX * SERVICE <= DATAGRAM_MAX);

const MAGIC: [u8; 4] = *b"CWAR";
pub(super) const VERSION: u8 = 3;
const HEAD: usize = 48;
const TAG: std::ops::Range<usize> = 8..16;
const BODY_HEAD: usize = 8;
/// Bytes of the entries of this version.
const LOAD: usize = 8;
const SERVICE: usize = 64;
/// Of an agent that does not tell what its server took, as that of the version before.
const SERVICE_UNTIMED: usize = 40;
const NOTICE: usize = 40;
const CHALLENGE: usize = 8;

const KIND_LOAD: u8 = 1;
const KIND_LATENCY: u8 = 2;
const KIND_OPENED: u8 = 3;
const KIND_CLOSED: u8 = 4;
const KIND_ASK: u8 = 5;
const KIND_CHALLENGE: u8 = 6;
const KIND_RESPONSE: u8 = 7;

/// One datagram.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentReport {
    /// The server, by an address that balancers know it by.
    pub sender: IpAddr,
    /// Its boot.
    pub boot: Boot,
    /// Grows from datagram to datagram of a boot.
    pub sequence: u64,
    /// What it says.
    pub bodies: Vec<Body>,
}

/// A boot of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boot {
    /// When it was, seconds since 1970. By a clock that is set wrong, it may be any time.
    pub time_s: u32,
    /// A number by which it differs from others.
    pub id: u32,
}

/// One thing that a datagram says.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// The server's load.
    Load(ServerLoad),
    /// What clients of its services waited for in the last second.
    Latency(Vec<ServiceLatency>),
    /// These connections are open.
    Opened(Vec<ConnectionNotice>),
    /// These have closed, in both directions.
    Closed(Vec<ConnectionNotice>),
    /// From a balancer: all that are open, please, and for a while those that open.
    Ask,
    /// From a balancer that does not know whether this boot is alive: repeat this number.
    Challenge(u64),
    /// The number of that balancer's challenge.
    Response(u64),
}

/// A server's load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerLoad {
    /// Share of all its CPUs that was busy, thousandths.
    pub cpu_milli: u32,
    /// Connections whose client waits for an answer.
    pub in_flight: u32,
}

/// What clients of a service waited for in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServiceLatency {
    /// Where it listens; `None`: any address.
    pub address: Option<IpAddr>,
    /// 0: any port.
    pub port: u16,
    /// Transactions that ended, thousandths.
    pub transactions_milli: u64,
    /// Sum of their response times, lost connection attempts included, nanoseconds.
    pub response_ns: u64,
    /// What the server took for them; `None` from agents that do not tell.
    pub server: Option<ServerTimes>,
}

/// What a server took for transactions, from the request to its last data, the path left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerTimes {
    /// Transactions of which it is known, thousandths.
    pub timed_milli: u64,
    /// Sum over these, nanoseconds.
    pub sum_ns: u64,
    /// Those of which it cannot be told, as their clients asked before they had their answers,
    /// thousandths.
    pub overlapping_milli: u64,
}

impl ServerTimes {
    /// Both together.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            timed_milli: self.timed_milli.saturating_add(other.timed_milli),
            sum_ns: self.sum_ns.saturating_add(other.sum_ns),
            overlapping_milli: self
                .overlapping_milli
                .saturating_add(other.overlapping_milli),
        }
    }
}

/// A connection that a stateful balancer keeps a slot for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionNotice {
    /// The client.
    pub client: SocketAddr,
    /// The VIP.
    pub vip: SocketAddr,
    /// The connection's token, which its timestamps carry.
    pub token: u16,
    /// The server's id in the VIP.
    pub id: u16,
}

impl AgentReport {
    /// An agent's datagram, signed with the server's current key. Entries that do not fit
    /// are left out.
    pub fn encode(&self, keys: &ReportKeys) -> Vec<u8> {
        self.encode_as(VERSION, Speaker::Agent, keys)
    }

    /// The same of a speaker and a version.
    pub(super) fn encode_as(&self, version: u8, speaker: Speaker, keys: &ReportKeys) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(DATAGRAM_MAX);
        bytes.extend(MAGIC);
        bytes.extend([version, keys.current.index() as u8, 0, 0]);
        bytes.extend([0; 8]);
        bytes.extend(octets(self.sender));
        bytes.extend(self.boot.time_s.to_be_bytes());
        bytes.extend(self.boot.id.to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        for body in &self.bodies {
            body.encode(&mut bytes);
        }
        seal(&mut bytes, speaker, keys);
        bytes
    }

    /// Reads a speaker's datagram, or says why it is refused.
    pub(super) fn decode(
        bytes: &[u8],
        speaker: Speaker,
        keys: Option<&ReportKeys>,
    ) -> Result<Self, Reception> {
        if bytes.len() > DATAGRAM_MAX || !bytes.starts_with(&MAGIC) {
            return Err(Reception::Malformed);
        }
        let (head, bodies) = bytes.split_at_checked(HEAD).ok_or(Reception::Truncated)?;
        if head[4].abs_diff(VERSION) > 1 {
            return Err(Reception::Version);
        }
        match usize::from(u16::from_be_bytes([head[6], head[7]])) {
            length if length > bytes.len() => return Err(Reception::Truncated),
            length if length < bytes.len() || length % 8 != 0 => return Err(Reception::Malformed),
            _ => {}
        }
        let mut epochs = KeyEpoch::ALL.into_iter();
        let epoch = epochs.find(|epoch| epoch.index() == u32::from(head[5]));
        let sender = address(head, 16).ok_or(Reception::Malformed)?;
        let key = keys.zip(epoch);
        let key = key.and_then(|(keys, epoch)| keys.key(sender, epoch, speaker));
        if tag(bytes, &key.ok_or(Reception::NoKey)?).to_le_bytes() != head[TAG] {
            return Err(Reception::Forged);
        }
        Ok(Self {
            sender,
            boot: Boot {
                time_s: number(head, 32).map(u32::from_be_bytes)?,
                id: number(head, 36).map(u32::from_be_bytes)?,
            },
            sequence: number(head, 40).map(u64::from_be_bytes)?,
            bodies: decode_bodies(bodies)?,
        })
    }
}

impl Body {
    fn encode(&self, bytes: &mut Vec<u8>) {
        let (kind, entry_len, entries): (u8, usize, Vec<Vec<u8>>) = match self {
            Self::Load(load) => (KIND_LOAD, LOAD, vec![load.encode()]),
            Self::Latency(services) => {
                let timed = services.iter().all(|of| of.server.is_some());
                let entry_len = if timed { SERVICE } else { SERVICE_UNTIMED };
                let mut entries: Vec<_> = services.iter().map(ServiceLatency::encode).collect();
                entries
                    .iter_mut()
                    .for_each(|entry| entry.truncate(entry_len));
                (KIND_LATENCY, entry_len, entries)
            }
            Self::Opened(notices) => (KIND_OPENED, NOTICE, encode_all(notices)),
            Self::Closed(notices) => (KIND_CLOSED, NOTICE, encode_all(notices)),
            Self::Ask => (KIND_ASK, 0, Vec::new()),
            Self::Challenge(number) => (KIND_CHALLENGE, CHALLENGE, encode_number(*number)),
            Self::Response(number) => (KIND_RESPONSE, CHALLENGE, encode_number(*number)),
        };
        let Some(room) = DATAGRAM_MAX.checked_sub(bytes.len() + BODY_HEAD) else {
            return;
        };
        let count = entries.len().min(room.checked_div(entry_len).unwrap_or(0));
        bytes.extend([kind, 0]);
        bytes.extend((entry_len as u16).to_be_bytes());
        bytes.extend((count as u16).to_be_bytes());
        bytes.extend([0; 2]);
        bytes.extend(entries.into_iter().take(count).flatten());
    }
}

/// Bodies of kinds that this version does not know are skipped.
fn decode_bodies(mut bytes: &[u8]) -> Result<Vec<Body>, Reception> {
    let mut bodies = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes
            .split_at_checked(BODY_HEAD)
            .ok_or(Reception::Malformed)?;
        let entry_len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let count = usize::from(u16::from_be_bytes([head[4], head[5]]));
        let (entries, rest) = rest
            .split_at_checked(entry_len * count)
            .ok_or(Reception::Malformed)?;
        bytes = rest;
        let entries = || match entry_len {
            0 => [].chunks_exact(1),
            _ => entries.chunks_exact(entry_len),
        };
        bodies.push(match head[0] {
            KIND_LOAD => match entries().next() {
                Some(entry) => Body::Load(ServerLoad::decode(entry)?),
                None => continue,
            },
            KIND_LATENCY => Body::Latency(
                entries()
                    .map(ServiceLatency::decode)
                    .collect::<Result<_, _>>()?,
            ),
            KIND_OPENED => Body::Opened(decode_all(entries())?),
            KIND_CLOSED => Body::Closed(decode_all(entries())?),
            KIND_ASK => Body::Ask,
            kind @ (KIND_CHALLENGE | KIND_RESPONSE) => {
                let entry = entries().next().ok_or(Reception::Malformed)?;
                let challenge = number(entry, 0).map(u64::from_be_bytes)?;
                match kind {
                    KIND_CHALLENGE => Body::Challenge(challenge),
                    _ => Body::Response(challenge),
                }
            }
            _ => continue,
        });
    }
    Ok(bodies)
}

impl ServerLoad {
    fn encode(&self) -> Vec<u8> {
        [self.cpu_milli.to_be_bytes(), self.in_flight.to_be_bytes()].concat()
    }

    fn decode(entry: &[u8]) -> Result<Self, Reception> {
        Ok(Self {
            cpu_milli: number(entry, 0).map(u32::from_be_bytes)?,
            in_flight: number(entry, 4).map(u32::from_be_bytes)?,
        })
    }
}

impl ServiceLatency {
    fn encode(&self) -> Vec<u8> {
        let mut entry = Vec::with_capacity(SERVICE);
        entry.extend(self.address.map_or([0; 16], octets));
        entry.extend(self.port.to_be_bytes());
        entry.extend([0; 6]);
        let server = self.server.unwrap_or_default();
        for number in [
            self.transactions_milli,
            self.response_ns,
            server.timed_milli,
            server.sum_ns,
            server.overlapping_milli,
        ] {
            entry.extend(number.to_be_bytes());
        }
        entry
    }

    fn decode(entry: &[u8]) -> Result<Self, Reception> {
        let found = address(entry, 0).ok_or(Reception::Malformed)?;
        Ok(Self {
            address: (!found.is_unspecified()).then_some(found),
            port: number(entry, 16).map(u16::from_be_bytes)?,
            transactions_milli: number(entry, 24).map(u64::from_be_bytes)?,
            response_ns: number(entry, 32).map(u64::from_be_bytes)?,
            server: number(entry, 56).ok().map(|overlapping| ServerTimes {
                timed_milli: number(entry, 40).map_or(0, u64::from_be_bytes),
                sum_ns: number(entry, 48).map_or(0, u64::from_be_bytes),
                overlapping_milli: u64::from_be_bytes(overlapping),
            }),
        })
    }
}

impl ConnectionNotice {
    fn encode(&self) -> Vec<u8> {
        let mut entry = Vec::with_capacity(NOTICE);
        entry.extend(octets(self.client.ip()));
        entry.extend(octets(self.vip.ip()));
        for number in [self.client.port(), self.vip.port(), self.token, self.id] {
            entry.extend(number.to_be_bytes());
        }
        entry
    }

    fn decode(entry: &[u8]) -> Result<Self, Reception> {
        let end = |at, port_at| {
            let address = address(entry, at).ok_or(Reception::Malformed)?;
            let port = number(entry, port_at).map(u16::from_be_bytes)?;
            Ok(SocketAddr::from((address, port)))
        };
        Ok(Self {
            client: end(0, 32)?,
            vip: end(16, 34)?,
            token: number(entry, 36).map(u16::from_be_bytes)?,
            id: number(entry, 38).map(u16::from_be_bytes)?,
        })
    }
}

fn encode_number(number: u64) -> Vec<Vec<u8>> {
    vec![number.to_be_bytes().to_vec()]
}

fn encode_all(notices: &[ConnectionNotice]) -> Vec<Vec<u8>> {
    notices.iter().map(ConnectionNotice::encode).collect()
}

fn decode_all<'a>(
    entries: impl Iterator<Item = &'a [u8]>,
) -> Result<Vec<ConnectionNotice>, Reception> {
    entries.map(ConnectionNotice::decode).collect()
}

/// Writes length and tag into a datagram that is whole.
pub(super) fn seal(bytes: &mut [u8], speaker: Speaker, keys: &ReportKeys) {
    let length = bytes.len() as u16;
    bytes[6..8].copy_from_slice(&length.to_be_bytes());
    let sender = address(bytes, 16);
    if let Some(key) = sender.and_then(|sender| keys.key(sender, keys.current, speaker)) {
        let tag = tag(bytes, &key);
        bytes[TAG].copy_from_slice(&tag.to_le_bytes());
    }
}

/// The tag of a datagram, whatever stands in its place.
fn tag(bytes: &[u8], key: &CookieKey) -> u64 {
    let mut words = [0; DATAGRAM_MAX / 8];
    let (chunks, _) = bytes.as_chunks::<8>();
    let count = words.len().min(chunks.len());
    for (word, chunk) in words.iter_mut().zip(chunks) {
        *word = u64::from_le_bytes(*chunk);
    }
    words[TAG.start / 8] = 0;
    siphash(&words[..count], key)
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Reception> {
    let found = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    found.copied().ok_or(Reception::Malformed)
}

fn address(bytes: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 16] = *bytes.get(at..)?.first_chunk()?;
    Some(Ipv6Addr::from(octets).to_canonical())
}
