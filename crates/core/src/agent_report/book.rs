// SPDX-License-Identifier: Apache-2.0
//! What a balancer sends an agent of the fleet's book, and the position that the agent says it
//! follows.
//!
//! An agent says with every sign of life where it has come ([`AgentFollows`]). A balancer that is
//! ahead sends it all that concerns that server ([`AgentOrders`]), in as many datagrams as it
//! takes: parts of one text, which is a sequence of bodies as a datagram's are. Datagrams are
//! signed and not encrypted, so keys are in it under the server's own secret.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use aes_kw::cipher::consts::U16;
use aes_kw::{KeyInit as _, KwAes128};
use causeway_quic_lb::{Algorithm, CidConfig, CidKey};
use serde::{Deserialize, Serialize};

use super::keys::{EpochSecrets, ReportKeys};
use crate::cookie::{CookieKey, CookieLayout, Digest, KeyEpoch};
use crate::envelope::{self, BODY_HEAD, DATAGRAM_MAX, HEAD, Reception, address, number, octets};
use crate::fleet::{AgentBook, CidForm, Generation, KeyNumber, KeyPhases, Position, pairs};

/// Bytes of the text in one datagram.
const PART: usize = (DATAGRAM_MAX - HEAD - BODY_HEAD - PART_HEAD) / 8 * 8;
pub(super) const PART_HEAD: usize = 16;
/// A text of this many parts has room for ten thousand services.
const PARTS_MAX: u16 = 256;

const POSITION: u8 = 1;
const KEYS: u8 = 2;
const SECRETS: u8 = 3;
const SERVICES: u8 = 4;
const BALANCERS: u8 = 5;
const TUNNELS: u8 = 6;
const CIDS: u8 = 7;

/// Algorithms of connection ids.
const PLAIN: u8 = 0;
const SIPHASH: u8 = 1;
const AES: u8 = 2;

/// Bytes of an entry of [`CIDS`].
const CID: usize = 56;
/// Bytes of an acknowledgement.
pub(super) const FOLLOWS: usize = 64;

/// What an agent goes by, and the keys that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentFollows {
    /// Of the book.
    pub position: Position,
    /// Of all that it was sent: [`AgentOrders::digest`].
    pub digest: u64,
    /// The keys of cookies that it accepts, with a mark that distinguishes each.
    pub keys: BTreeMap<KeyNumber, u64>,
}

/// What a book and its fleet are to one server. As a text it lacks `keys` and `secrets`: who keeps
/// them says where. The keys of connection ids are in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentOrders {
    /// Which book it is of.
    pub position: Position,
    /// The key of new connections.
    pub issued: KeyNumber,
    /// All keys of cookies that balancers accept, by number.
    #[serde(skip)]
    pub keys: BTreeMap<KeyNumber, CookieKey>,
    /// What this server's reports are signed with, by epoch.
    #[serde(skip)]
    pub secrets: EpochSecrets,
    /// The VIPs that it is a real of.
    #[serde(with = "pairs")]
    pub services: BTreeMap<ServiceKey, ServiceId>,
    /// Of those of them over QUIC, the configurations of connection ids.
    #[serde(with = "pairs")]
    pub cids: BTreeMap<ServiceKey, ServiceCids>,
    /// Where the balancers listen for agents.
    pub balancers: BTreeSet<SocketAddr>,
    /// Networks that the balancers' tunnels come from.
    pub tunnels: BTreeSet<(IpAddr, u8)>,
}

/// A VIP: address, port (0: every port), and IP's number of the protocol.
pub type ServiceKey = (IpAddr, u16, u8);

/// A server's id in a VIP, and how its connections' cookies are made, if they have any.
pub type ServiceId = (u16, Option<CookieLayout>);

/// The configurations of a VIP's connection ids.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceCids {
    /// Which of them servers issue ids by; [`CIDS_OF_FILES`](crate::fleet::CIDS_OF_FILES): none of
    /// them yet.
    pub issued: KeyNumber,
    /// Those that balancers accept, as the book counts them.
    pub configs: BTreeMap<KeyNumber, CidConfig>,
}

/// Distinguishes keys of cookies, and reveals nothing of them.
pub fn key_mark(number: KeyNumber, key: &CookieKey) -> u64 {
    let digest = Digest::of("cookie-key").number(number).secret(key);
    digest.value()
}

impl AgentOrders {
    /// The book that it is of, to an agent.
    pub fn book(&self) -> AgentBook {
        let since = self.position;
        let other = self.keys.keys().find(|number| **number != self.issued);
        let phases = |(service, own): (&ServiceKey, &ServiceCids)| {
            let mut numbers = own.configs.keys();
            let phases = KeyPhases {
                issued: own.issued,
                other: numbers.find(|number| **number != own.issued).copied(),
                since,
            };
            (vip_name(service).into(), phases)
        };
        AgentBook {
            position: self.position,
            keys: KeyPhases {
                issued: self.issued,
                other: other.copied(),
                since,
            },
            ids: self
                .services
                .iter()
                .map(|(service, (id, _))| (vip_name(service).into(), *id))
                .collect(),
            cids: self.cids.iter().map(phases).collect(),
        }
    }

    /// What an agent that goes by this acknowledges.
    pub fn follows(&self) -> AgentFollows {
        let keys = self.keys.iter();
        AgentFollows {
            position: self.position,
            digest: self.digest(),
            keys: keys.map(|(of, key)| (*of, key_mark(*of, key))).collect(),
        }
    }

    /// Distinguishes this from other orders of the same book.
    pub fn digest(&self) -> u64 {
        let mut digest = Digest::of("agent-orders").number(self.issued);
        for (of, key) in &self.keys {
            digest = digest.number(*of).secret(key);
        }
        for secret in self.secrets {
            digest = match secret {
                Some(secret) => digest.secret(&secret),
                None => digest.number(0),
            };
        }
        for ((vip, port, protocol), (id, layout)) in &self.services {
            let layout = layout.map_or([0; 3], <[u8; 3]>::from);
            digest = digest.text(&format!("{vip} {port} {protocol} {id} {layout:?}"));
        }
        for ((vip, port, protocol), own) in &self.cids {
            digest = digest.text(&format!("cids {vip} {port} {protocol} {}", own.issued));
            for (of, config) in &own.configs {
                digest = digest.number(*of).number(CidForm::of(config).mark);
            }
        }
        digest = digest.text("balancers");
        for balancer in &self.balancers {
            digest = digest.text(&balancer.to_string());
        }
        digest = digest.text("tunnels");
        for (network, length) in &self.tunnels {
            digest = digest.text(&format!("{network}/{length}"));
        }
        digest.value()
    }

    /// Takes in what another balancer says of the same book. Balancers and tunnels add up, as
    /// each balancer may know some; says whether anything is new.
    pub fn add(&mut self, other: &Self) -> bool {
        let before = self.digest();
        self.balancers.extend(&other.balancers);
        self.tunnels.extend(&other.tunnels);
        for (own, others) in self.secrets.iter_mut().zip(other.secrets) {
            *own = own.or(others);
        }
        before != self.digest()
    }

    /// Its text in parts, keys under what this server's reports are signed with in an epoch; none if
    /// there is no such secret.
    pub(super) fn parts(
        &self,
        server: IpAddr,
        keys: &ReportKeys,
        epoch: KeyEpoch,
    ) -> Vec<BookPart> {
        let Some(by) = keys.of_server(server, epoch) else {
            return Vec::new();
        };
        let text = self.text(&wrapping(&by), epoch);
        let of = siphash_of(&text);
        let chunks = text.chunks(PART);
        let count = chunks.len() as u16;
        chunks
            .zip(0..)
            .map(|(chunk, index)| BookPart {
                of,
                index,
                count,
                bytes: chunk.to_vec(),
            })
            .collect()
    }

    fn text(&self, by: &CookieKey, epoch: KeyEpoch) -> Vec<u8> {
        let mut text = Vec::new();
        let position = [
            u64::from(self.position.generation.count),
            self.position.generation.by,
            self.position.revision,
            self.issued,
            u64::from(epoch.index()),
        ];
        section(
            &mut text,
            POSITION,
            40,
            [position.map(u64::to_be_bytes).concat()],
        );
        let wrapped =
            |of: u64, key: &CookieKey| [of.to_be_bytes().to_vec(), wrap(key, by)].concat();
        let keys = self.keys.iter().map(|(of, key)| wrapped(*of, key));
        section(&mut text, KEYS, 32, keys);
        let secrets = self.secrets.iter().zip(0..);
        let secrets = secrets.filter_map(|(key, epoch)| Some(wrapped(epoch, key.as_ref()?)));
        section(&mut text, SECRETS, 32, secrets);
        let services = self
            .services
            .iter()
            .map(|((vip, port, protocol), (id, layout))| {
                let mut entry = octets(*vip).to_vec();
                entry.extend(port.to_be_bytes());
                entry.extend(id.to_be_bytes());
                entry.push(*protocol);
                entry.extend(layout.map_or([0; 3], <[u8; 3]>::from));
                entry
            });
        section(&mut text, SERVICES, 24, services);
        let balancers = self.balancers.iter().map(|balancer| {
            let mut entry = octets(balancer.ip()).to_vec();
            entry.extend(u64::from(balancer.port()).to_be_bytes());
            entry
        });
        section(&mut text, BALANCERS, 24, balancers);
        let tunnels = self.tunnels.iter().map(|(network, length)| {
            let mut entry = octets(*network).to_vec();
            entry.extend(u64::from(*length).to_be_bytes());
            entry
        });
        section(&mut text, TUNNELS, 24, tunnels);
        let cids = self.cids.iter();
        let cids =
            cids.flat_map(|(service, own)| own.configs.iter().map(move |c| (service, own, c)));
        let cids = cids.map(|(service, own, (of, config))| {
            encode_cid(service, (*of, *of == own.issued), config, by)
        });
        section(&mut text, CIDS, CID as u16, cids);
        text
    }

    /// Reads a text, by the secrets of a server's reports.
    fn of_text(text: &[u8], server: IpAddr, keys: &ReportKeys) -> Result<Self, Reception> {
        let word = |entry: &[u8], at| number(entry, at).map(u64::from_be_bytes);
        let mut orders = None;
        let mut by = None;
        for body in envelope::bodies(text)? {
            if body.kind == POSITION {
                let entry = body.entries().next().ok_or(Reception::Malformed)?;
                let epoch = word(entry, 32)?;
                let mut epochs = KeyEpoch::ALL.into_iter();
                let epoch = epochs.find(|one| u64::from(one.index()) == epoch);
                let secret = epoch.and_then(|epoch| keys.of_server(server, epoch));
                by = Some(wrapping(&secret.ok_or(Reception::NoKey)?));
                orders = Some(Self {
                    position: Position {
                        generation: Generation {
                            count: word(entry, 0)? as u32,
                            by: word(entry, 8)?,
                        },
                        revision: word(entry, 16)?,
                    },
                    issued: word(entry, 24)?,
                    keys: BTreeMap::new(),
                    secrets: EpochSecrets::default(),
                    services: BTreeMap::new(),
                    cids: BTreeMap::new(),
                    balancers: BTreeSet::new(),
                    tunnels: BTreeSet::new(),
                });
                continue;
            }
            let (Some(orders), Some(by)) = (&mut orders, &by) else {
                return Err(Reception::Malformed);
            };
            for entry in body.entries() {
                let whom = || address(entry, 0).ok_or(Reception::Malformed);
                match body.kind {
                    KEYS => {
                        let key = unwrap(entry, 8, by)?;
                        orders.keys.insert(word(entry, 0)?, key);
                    }
                    SECRETS => {
                        let epoch = usize::try_from(word(entry, 0)?).unwrap_or(usize::MAX);
                        let slot = orders.secrets.get_mut(epoch);
                        *slot.ok_or(Reception::Malformed)? = Some(unwrap(entry, 8, by)?);
                    }
                    SERVICES => {
                        let port = number(entry, 16).map(u16::from_be_bytes)?;
                        let id = number(entry, 18).map(u16::from_be_bytes)?;
                        let [protocol, mode, bits, id_bits] = number(entry, 20)?;
                        let layout = (mode != 0)
                            .then(|| CookieLayout::try_from([mode, bits, id_bits]))
                            .transpose()
                            .map_err(|_| Reception::Malformed)?;
                        let service = (whom()?, port, protocol);
                        orders.services.insert(service, (id, layout));
                    }
                    BALANCERS => {
                        let port = u16::try_from(word(entry, 16)?);
                        let port = port.map_err(|_| Reception::Malformed)?;
                        orders.balancers.insert((whom()?, port).into());
                    }
                    TUNNELS => {
                        let length = u8::try_from(word(entry, 16)?);
                        let length = length.map_err(|_| Reception::Malformed)?;
                        orders.tunnels.insert((whom()?, length));
                    }
                    CIDS => {
                        let (service, of, is_issued, config) = decode_cid(entry, by)?;
                        let own = orders.cids.entry(service).or_default();
                        own.configs.insert(of, config);
                        if is_issued {
                            own.issued = of;
                        }
                    }
                    // Of a later version.
                    _ => {}
                }
            }
        }
        let orders = orders.ok_or(Reception::Malformed)?;
        match orders.keys.contains_key(&orders.issued) || orders.keys.is_empty() {
            true => Ok(orders),
            false => Err(Reception::Malformed),
        }
    }
}

/// What the book calls a VIP.
pub fn vip_name((address, port, protocol): &ServiceKey) -> String {
    let protocol = if *protocol == 17 { "udp" } else { "tcp" };
    format!("{}/{protocol}", SocketAddr::from((*address, *port)))
}

fn encode_cid(
    (vip, port, protocol): &ServiceKey,
    (of, is_issued): (KeyNumber, bool),
    config: &CidConfig,
    by: &CookieKey,
) -> Vec<u8> {
    let (algorithm, key) = match config.algorithm() {
        Algorithm::Plain => (PLAIN, CidKey::new([0; 16])),
        Algorithm::SipHash(key) => (SIPHASH, key),
        Algorithm::Aes128(key) => (AES, key),
    };
    let mut entry = octets(*vip).to_vec();
    entry.extend(port.to_be_bytes());
    entry.extend([*protocol, config.number(), algorithm]);
    entry.extend([config.server_id_len() as u8, config.nonce_len() as u8]);
    entry.push(is_issued.into());
    entry.extend(of.to_be_bytes());
    entry.extend(wrap(&CookieKey::from_bytes(key.octets()), by));
    entry
}

/// A VIP, which of its configurations this is, whether it is issued, and what it is.
type DecodedCid = (ServiceKey, KeyNumber, bool, CidConfig);

fn decode_cid(entry: &[u8], by: &CookieKey) -> Result<DecodedCid, Reception> {
    let vip = address(entry, 0).ok_or(Reception::Malformed)?;
    let port = number(entry, 16).map(u16::from_be_bytes)?;
    let [
        protocol,
        config,
        algorithm,
        server_id_len,
        nonce_len,
        issued,
    ] = number(entry, 18)?;
    let of = number(entry, 24).map(u64::from_be_bytes)?;
    let key = CidKey::new(bytes_of(&unwrap(entry, 32, by)?));
    let algorithm = match algorithm {
        PLAIN => Algorithm::Plain,
        SIPHASH => Algorithm::SipHash(key),
        AES => Algorithm::Aes128(key),
        _ => return Err(Reception::Malformed),
    };
    let config = CidConfig::new(config, server_id_len, nonce_len, algorithm);
    let config = config.map_err(|_| Reception::Malformed)?;
    Ok(((vip, port, protocol), of, issued != 0, config))
}

/// A body of any length.
fn section(
    text: &mut Vec<u8>,
    kind: u8,
    entry_len: u16,
    entries: impl IntoIterator<Item = Vec<u8>>,
) {
    let entries: Vec<_> = entries.into_iter().collect();
    text.extend([kind, 0]);
    text.extend(entry_len.to_be_bytes());
    text.extend((entries.len() as u16).to_be_bytes());
    text.extend([0; 2]);
    text.extend(entries.concat());
}

fn siphash_of(text: &[u8]) -> u64 {
    let (words, _) = text.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_be_bytes(*word));
    words.fold(Digest::of("agent-text"), Digest::number).value()
}

/// What hides keys that are sent to a server.
fn wrapping(secret: &CookieKey) -> CookieKey {
    secret.derive(*b"wrapping", [0; 16])
}

/// A key under another, by AES key wrap (RFC 3394), which needs no nonce.
fn wrap(key: &CookieKey, by: &CookieKey) -> Vec<u8> {
    let by = KwAes128::new(&bytes_of(by).into());
    by.wrap_fixed_key::<U16>(&bytes_of(key).into()).to_vec()
}

/// The key that stands in an entry.
fn unwrap(entry: &[u8], at: usize, by: &CookieKey) -> Result<CookieKey, Reception> {
    let wrapped: [u8; 24] = number(entry, at)?;
    let by = KwAes128::new(&bytes_of(by).into());
    match by.unwrap_fixed_key::<U16>(&wrapped.into()) {
        Ok(key) => Ok(CookieKey::from_bytes(key.into())),
        Err(_) => Err(Reception::Forged),
    }
}

fn bytes_of(key: &CookieKey) -> [u8; 16] {
    let [low, high] = key.words().map(u128::from);
    (low | high << 64).to_le_bytes()
}

/// A piece of what a balancer sends an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookPart {
    /// Which text it is of.
    of: u64,
    index: u16,
    count: u16,
    bytes: Vec<u8>,
}

impl BookPart {
    pub(super) fn encode(&self) -> Vec<Vec<u8>> {
        let mut bytes = self.of.to_be_bytes().to_vec();
        bytes.extend(self.index.to_be_bytes());
        bytes.extend(self.count.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(&self.bytes);
        bytes.chunks(8).map(<[u8]>::to_vec).collect()
    }

    pub(super) fn decode<'a>(entries: impl Iterator<Item = &'a [u8]>) -> Result<Self, Reception> {
        let all: Vec<u8> = entries.flatten().copied().collect();
        let part = Self {
            of: number(&all, 0).map(u64::from_be_bytes)?,
            index: number(&all, 8).map(u16::from_be_bytes)?,
            count: number(&all, 10).map(u16::from_be_bytes)?,
            bytes: all.get(PART_HEAD..).unwrap_or_default().to_vec(),
        };
        match part.index < part.count && part.count <= PARTS_MAX {
            true => Ok(part),
            false => Err(Reception::Malformed),
        }
    }
}

/// Puts parts together, by server: of each the text that was begun last.
#[derive(Debug, Default)]
pub struct BookParts(BTreeMap<IpAddr, Begun>);

/// Which text, and its parts so far.
type Begun = (u64, Vec<Option<Vec<u8>>>);

impl BookParts {
    /// Takes one in; gives the whole once nothing is missing. What cannot be read is as if it had
    /// not come: the balancer sends it again.
    pub fn take(
        &mut self,
        server: IpAddr,
        part: BookPart,
        keys: &ReportKeys,
    ) -> Option<AgentOrders> {
        let count = usize::from(part.count);
        let begun = self.0.entry(server).or_insert((part.of, Vec::new()));
        if begun.0 != part.of || begun.1.len() != count {
            *begun = (part.of, vec![None; count]);
        }
        begun.1[usize::from(part.index)] = Some(part.bytes);
        let whole: Option<Vec<_>> = begun.1.iter().map(Option::as_deref).collect();
        let text = whole?.concat();
        self.0.remove(&server);
        AgentOrders::of_text(&text, server, keys).ok()
    }
}

impl AgentFollows {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut words = vec![
            u64::from(self.position.generation.count),
            self.position.generation.by,
            self.position.revision,
            self.digest,
        ];
        let keys = self.keys.iter().take(2);
        words.extend(keys.flat_map(|(of, mark)| [*of, *mark]));
        words.resize(FOLLOWS / 8, 0);
        words.into_iter().flat_map(u64::to_be_bytes).collect()
    }

    pub(super) fn decode(entry: &[u8]) -> Result<Self, Reception> {
        let word = |at: usize| number(entry, at * 8).map(u64::from_be_bytes);
        let mut keys = BTreeMap::new();
        for at in [4, 6] {
            if word(at)? != 0 {
                keys.insert(word(at)?, word(at + 1)?);
            }
        }
        Ok(Self {
            position: Position {
                generation: Generation {
                    count: word(0)? as u32,
                    by: word(1)?,
                },
                revision: word(2)?,
            },
            digest: word(3)?,
            keys,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent_report::{Body, Boot, ReportReceiver, ReportSecrets, ReportSender};
    use crate::cookie::CookieMode;

    fn key(byte: u8) -> CookieKey {
        CookieKey::from_bytes([byte; 16])
    }

    fn server() -> IpAddr {
        IpAddr::from([10, 0, 0, 1])
    }

    fn keys() -> ReportKeys {
        ReportKeys {
            current: KeyEpoch::One,
            secrets: ReportSecrets::Root([None, Some(key(9))]),
        }
    }

    fn h3() -> ServiceKey {
        (IpAddr::from([192, 0, 2, 1]), 443, 17)
    }

    fn cids() -> ServiceCids {
        let config = |number, algorithm| CidConfig::new(number, 2, 8, algorithm).unwrap();
        let key = |byte| CidKey::new([byte; 16]);
        ServiceCids {
            issued: 3,
            configs: [
                (2, config(6, Algorithm::Plain)),
                (3, config(0, Algorithm::SipHash(key(4)))),
                (4, config(1, Algorithm::Aes128(key(5)))),
            ]
            .into(),
        }
    }

    fn orders(services: u16) -> AgentOrders {
        let position = Position {
            generation: Generation { count: 1, by: 77 },
            revision: 12,
        };
        let layout = CookieLayout::default_of(CookieMode::Timestamp);
        let vip = |port| {
            (
                (IpAddr::from([192, 0, 2, 1]), port, 6),
                (port, Some(layout)),
            )
        };
        AgentOrders {
            position,
            issued: 3,
            keys: [(2, key(2)), (3, key(3))].into(),
            secrets: [None, keys().of_server(server(), KeyEpoch::One)],
            services: (0..services).map(vip).collect(),
            cids: [(h3(), cids())].into(),
            balancers: [SocketAddr::from(([10, 0, 0, 254], 9472))].into(),
            tunnels: [(IpAddr::from([10, 9, 0, 0]), 16)].into(),
        }
    }

    /// An agent's datagram to a balancer, and the orders in the answer.
    fn heard(tell: impl Fn(&mut Vec<Vec<u8>>)) -> Option<AgentOrders> {
        heard_by(&keys(), &keys().for_server(&[server()]), tell)
    }

    /// The same by the keys of both.
    fn heard_by(
        keys: &ReportKeys,
        own: &ReportKeys,
        tell: impl Fn(&mut Vec<Vec<u8>>),
    ) -> Option<AgentOrders> {
        let mut sender = ReportSender::new(Boot { time_s: 1, id: 1 }, 0);
        let mut receiver = ReportReceiver::new(key(1));
        let first = sender.datagram(server(), vec![Body::Follows(None)], own);
        let challenge = match receiver.receive(&first, Some(keys), 0) {
            Err(Reception::Unproven) => receiver.challenge(&first, keys, 0),
            other => panic!("{other:?}"),
        };
        let balancer = ([10, 0, 0, 254], 9472).into();
        let question = sender.question(&challenge.unwrap(), balancer, &[server()], own);
        let Some(crate::agent_report::Question::Challenge(_, response)) = question else {
            panic!("{question:?}");
        };
        let bodies = vec![Body::Response(response), Body::Follows(None)];
        let report = sender.datagram(server(), bodies, own);
        let received = receiver.receive(&report, Some(keys), 0).unwrap();
        assert_eq!(received.follows, Some(None));
        let asked = receiver.ask(&received, keys, 0).unwrap();
        let asked = sender.question(&asked, balancer, &[server()], own);
        assert_eq!(asked, Some(crate::agent_report::Question::Open));
        let mut told = received.tell(&orders(1000), keys);
        assert!(told.len() > 20, "{}", told.len());
        tell(&mut told);
        let mut parts = BookParts::default();
        let mut whole = None;
        for datagram in &told {
            assert!(datagram.len() <= DATAGRAM_MAX);
            let part = sender.book_part(datagram, &[server()], own);
            let Some((server, part)) = part else { continue };
            whole = whole.or(parts.take(server, part, own));
        }
        whole
    }

    #[test]
    fn orders_of_any_length_come_whole_or_not_at_all_and_keys_are_hidden() {
        assert_eq!(heard(|_| ()), Some(orders(1000)));
        assert_eq!(heard(|told| told.reverse()), Some(orders(1000)));
        assert_eq!(heard(|told| drop(told.remove(3))), None);
        assert_eq!(heard(|told| told[3][60] ^= 1), None);
        let by = wrapping(&key(9));
        let text = orders(1).text(&by, KeyEpoch::One);
        for secret in [key(2), key(3), key(4), key(5)] {
            let secret = bytes_of(&secret);
            assert!(!text.windows(4).any(|piece| piece == &secret[..4]));
        }
        let wrapped = [vec![0; 8], wrap(&key(3), &by)].concat();
        assert_eq!(unwrap(&wrapped, 8, &by), Ok(key(3)));
        assert_eq!(unwrap(&wrapped, 8, &key(8)), Err(Reception::Forged));
    }

    /// One that was away from before a rotation's beginning until after its switch.
    #[test]
    fn an_agent_that_has_the_former_secret_alone_hears_until_that_is_retired() {
        let root = |current, digits: [u8; 2]| ReportKeys {
            current,
            secrets: ReportSecrets::Root(digits.map(|digit| (digit > 0).then(|| key(digit)))),
        };
        let own = root(KeyEpoch::Zero, [8, 0]).for_server(&[server()]);
        let switched = root(KeyEpoch::One, [8, 9]);
        assert_eq!(heard_by(&switched, &own, |_| ()), Some(orders(1000)));
        let retired = root(KeyEpoch::One, [0, 9]);
        let mut sender = ReportSender::new(Boot { time_s: 1, id: 1 }, 0);
        let report = sender.datagram(server(), Vec::new(), &own);
        let mut receiver = ReportReceiver::new(key(1));
        let refused = receiver.receive(&report, Some(&retired), 0);
        assert_eq!(refused, Err(Reception::NoKey));
    }

    #[test]
    fn what_an_agent_follows_is_read_as_it_was_written() {
        let follows = orders(2).follows();
        assert_eq!(AgentFollows::decode(&follows.encode()), Ok(follows.clone()));
        assert_eq!(follows.keys.len(), 2);
        let mut other = orders(2);
        other.keys.insert(3, key(4));
        assert_ne!(other.follows().keys, follows.keys);
        assert_ne!(other.digest(), follows.digest);
        let mut other = orders(2);
        other.cids.get_mut(&h3()).unwrap().issued = 2;
        assert_ne!(other.digest(), follows.digest);
    }

    #[test]
    fn two_balancers_of_one_book_add_up() {
        let mut one = orders(1);
        let mut two = orders(1);
        two.balancers = [SocketAddr::from(([10, 0, 0, 253], 9472))].into();
        assert!(one.add(&two));
        assert_eq!(one.balancers.len(), 2);
        assert!(!one.add(&two), "it has all of it");
        let book = one.book();
        assert_eq!(book.keys.other, Some(2));
        assert_eq!(book.ids.get("192.0.2.1:0/tcp"), Some(&0));
        let h3 = book.cids.get("192.0.2.1:443/udp").expect("configurations");
        assert_eq!((h3.issued, h3.other), (3, Some(2)));
    }
}
