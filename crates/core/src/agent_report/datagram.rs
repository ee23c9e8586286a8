// SPDX-License-Identifier: Apache-2.0
//! The datagram: to bytes under a tag, and back.

use std::net::{IpAddr, SocketAddr};

use super::book::{AgentFollows, BookPart, FOLLOWS};
use super::keys::{ReportKeys, Speaker};
use crate::cookie::KeyEpoch;
use crate::envelope::{
    self, BODY_HEAD, Boot, DATAGRAM_MAX, Form, HEAD, Head, Reception, address, number, octets,
    push_body,
};

/// Notices of a datagram that has no other body.
pub const NOTICES_MAX: usize = (DATAGRAM_MAX - HEAD - BODY_HEAD) / NOTICE;
/// Services of a datagram, beside a server's load.
pub const SERVICES_MAX: usize = 18;
const _: () = assert!(HEAD + 2 * BODY_HEAD + LOAD + SERVICES_MAX * SERVICE <= DATAGRAM_MAX);

const MAGIC: [u8; 4] = *b"CWAR";
pub(super) const VERSION: u8 = 3;
/// Bytes of the entries of this version.
const LOAD: usize = 8;
const SERVICE: usize = 64;
/// Of an agent that does not report what its server took, as that of the version before.
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
const KIND_FOLLOWS: u8 = 8;
const KIND_BOOK: u8 = 9;

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
    /// What the agent goes by of the fleet's book; `None`: it has received none yet.
    Follows(Option<AgentFollows>),
    /// From a balancer: a part of what the book is to this server.
    Book(BookPart),
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
    /// What the server took for them; `None` from agents that do not report it.
    pub server: Option<ServerTimes>,
}

/// What a server took for transactions, from the request to its last data, the path left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerTimes {
    /// Transactions of which it is known, thousandths.
    pub timed_milli: u64,
    /// Sum over these, nanoseconds.
    pub sum_ns: u64,
    /// Those for which it is unknown, as their clients asked before they had their answers,
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
        self.encode_by(version, speaker, keys, keys.signing_epoch(self.sender))
    }

    /// A balancer's answer, signed by the epoch of what it answers: the agent may have no other.
    pub(super) fn encode_answer(&self, keys: &ReportKeys, epoch: KeyEpoch) -> Vec<u8> {
        self.encode_by(VERSION, Speaker::Balancer, keys, epoch)
    }

    fn encode_by(
        &self,
        version: u8,
        speaker: Speaker,
        keys: &ReportKeys,
        epoch: KeyEpoch,
    ) -> Vec<u8> {
        let form = Form {
            magic: MAGIC,
            version,
        };
        let mut bytes = self.head().begin(form, epoch);
        for body in &self.bodies {
            body.encode(&mut bytes);
        }
        seal(&mut bytes, epoch, speaker, keys);
        bytes
    }

    /// Reads a speaker's datagram, or says why it is refused.
    pub(super) fn decode(
        bytes: &[u8],
        speaker: Speaker,
        keys: Option<&ReportKeys>,
    ) -> Result<Self, Reception> {
        Ok(Self::decode_signed(bytes, speaker, keys)?.0)
    }

    /// The same with the epoch that it is signed by.
    pub(super) fn decode_signed(
        bytes: &[u8],
        speaker: Speaker,
        keys: Option<&ReportKeys>,
    ) -> Result<(Self, KeyEpoch), Reception> {
        let form = Form {
            magic: MAGIC,
            version: VERSION,
        };
        let mut signed = KeyEpoch::Zero;
        let (head, bodies) = envelope::open(bytes, form, |sender, epoch| {
            signed = epoch;
            keys?.key(sender, epoch, speaker)
        })?;
        let datagram = Self {
            sender: head.sender,
            boot: head.boot,
            sequence: head.sequence,
            bodies: decode_bodies(bodies)?,
        };
        Ok((datagram, signed))
    }

    pub(super) fn head(&self) -> Head {
        Head {
            sender: self.sender,
            boot: self.boot,
            sequence: self.sequence,
        }
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
            Self::Follows(follows) => {
                let entries = follows.iter().map(AgentFollows::encode);
                (KIND_FOLLOWS, FOLLOWS, entries.collect())
            }
            Self::Book(part) => (KIND_BOOK, 8, part.encode()),
        };
        push_body(bytes, kind, entry_len, entries.into_iter());
    }
}

/// Bodies of kinds that this version does not know are skipped.
fn decode_bodies(bytes: &[u8]) -> Result<Vec<Body>, Reception> {
    let mut bodies = Vec::new();
    for body in envelope::bodies(bytes)? {
        let mut entries = body.entries();
        bodies.push(match body.kind {
            KIND_LOAD => match entries.next() {
                Some(entry) => Body::Load(ServerLoad::decode(entry)?),
                None => continue,
            },
            KIND_LATENCY => Body::Latency(
                entries
                    .map(ServiceLatency::decode)
                    .collect::<Result<_, _>>()?,
            ),
            KIND_OPENED => Body::Opened(decode_all(entries)?),
            KIND_CLOSED => Body::Closed(decode_all(entries)?),
            KIND_ASK => Body::Ask,
            KIND_CHALLENGE => Body::Challenge(body.first_number()?),
            KIND_RESPONSE => Body::Response(body.first_number()?),
            KIND_FOLLOWS => Body::Follows(entries.next().map(AgentFollows::decode).transpose()?),
            KIND_BOOK => Body::Book(BookPart::decode(entries)?),
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
pub(super) fn seal(bytes: &mut [u8], epoch: KeyEpoch, speaker: Speaker, keys: &ReportKeys) {
    let sender = address(bytes, 16);
    let key = sender.and_then(|sender| keys.key(sender, epoch, speaker));
    envelope::seal(bytes, key.as_ref());
}
