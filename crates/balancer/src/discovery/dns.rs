// SPDX-License-Identifier: Apache-2.0
//! Reals by their names: what name servers say of a name, and for how long.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;
use simple_dns::rdata::{OPT, RData};
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, TYPE};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::Told;
use crate::config::{RecordType, VipConfig};

const RESOLV_CONF: &str = "/etc/resolv.conf";
const DNS_PORT: u16 = 53;
/// Until a datagram is sent again that has had no answer: either of the two may be lost.
const AGAIN: Duration = Duration::from_millis(500);
/// Until the next server is asked.
const TIMEOUT: Duration = Duration::from_secs(2);
/// A name that leads to a name that leads to a name.
const ALIASES_MAX: usize = 8;
/// Names of an SRV answer that are looked up.
const TARGETS_MAX: usize = 256;
/// Longest answer by UDP: no path cuts it into fragments (DNS flag day 2020).
const UDP_MAX: u16 = 1232;
/// A message's head. In its fourth octet are four bits of the response code, which is 1 of who does
/// not understand the query.
const HEAD: usize = 12;
const RCODE_MASK: u8 = 0x0f;
const FORMAT_ERROR: u8 = 1;
/// However short or long an answer says that it holds.
const TTL_MIN: u32 = 1;
const TTL_MAX: u32 = 3600;

/// An address, or a service's target, with the seconds for which it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Record {
    Address(IpAddr),
    Service {
        priority: u16,
        weight: u16,
        port: u16,
        target: String,
    },
}

/// Asks for the reals of a VIP.
pub(super) async fn ask(
    name: &str,
    record: RecordType,
    vip: &VipConfig,
    resolver: Option<SocketAddr>,
) -> Result<Told> {
    let servers = match resolver {
        Some(resolver) => vec![resolver],
        None => servers(
            &tokio::fs::read_to_string(RESOLV_CONF)
                .await
                .unwrap_or_default(),
        ),
    };
    ask_of(servers, name, record, vip).await
}

/// The same of these name servers.
pub(super) async fn ask_of(
    mut servers: Vec<SocketAddr>,
    name: &str,
    record: RecordType,
    vip: &VipConfig,
) -> Result<Told> {
    let (records, mut ttl) = look_up(&mut servers, name, record).await?;
    if record != RecordType::Srv {
        let reals = records.into_iter().filter_map(|record| match record {
            Record::Address(address) => Some(json!({ "address": address.to_string() })),
            Record::Service { .. } => None,
        });
        return Ok((reals.collect(), ttl.map(seconds)));
    }
    ensure!(
        records.len() <= TARGETS_MAX,
        "the answer has {} names, more than {TARGETS_MAX}",
        records.len()
    );
    let of_family = match vip.address {
        IpAddr::V4(_) => RecordType::A,
        IpAddr::V6(_) => RecordType::Aaaa,
    };
    let priority = |record: &Record| match record {
        Record::Service { priority, .. } => Some(*priority),
        Record::Address(_) => None,
    };
    let first = records.iter().filter_map(priority).min();
    let mut targets: Vec<Target> = Vec::new();
    for record in &records {
        let Record::Service {
            priority,
            weight,
            port,
            target,
        } = record
        else {
            continue;
        };
        ensure!(
            *port == vip.port || vip.port == 0,
            "{target} serves at port {port}: ports are not rewritten, and the vip's is {}",
            vip.port
        );
        let (addresses, of_target) = look_up(&mut servers, target, of_family).await?;
        ttl = ttl.into_iter().chain(of_target).min();
        // 0 is for who is to be picked hardly ever (RFC 2782).
        let weight = u32::from((*weight).max(1));
        let is_first = Some(*priority) == first;
        for address in addresses {
            if let Record::Address(address) = address {
                put(&mut targets, address, weight, is_first);
            }
        }
    }
    let reals = targets.into_iter().map(|target| {
        let role = if target.is_first { "primary" } else { "backup" };
        let weight = target.weight.min(u16::MAX.into());
        json!({ "address": target.address.to_string(), "weight": weight, "role": role })
    });
    Ok((reals.collect(), ttl.map(seconds)))
}

/// Where a service is.
#[derive(Debug)]
struct Target {
    address: IpAddr,
    weight: u32,
    is_first: bool,
}

/// Two names may be one host's, and two ports one server's. Who is the first choice by one of them is it
/// with the weight of that one.
fn put(targets: &mut Vec<Target>, address: IpAddr, weight: u32, is_first: bool) {
    let known = targets.iter_mut().find(|target| target.address == address);
    match known {
        Some(target) if target.is_first == is_first => target.weight += weight,
        Some(target) if is_first => (target.weight, target.is_first) = (weight, true),
        Some(_) => {}
        None => targets.push(Target {
            address,
            weight,
            is_first,
        }),
    }
}

fn seconds(ttl: u32) -> Duration {
    Duration::from_secs(ttl.clamp(TTL_MIN, TTL_MAX).into())
}

/// The name servers of the system; as the C library, its own host without any.
fn servers(resolv_conf: &str) -> Vec<SocketAddr> {
    let words = resolv_conf.lines().map(str::split_whitespace);
    let servers = words.filter_map(|mut words| match words.next() {
        Some("nameserver") => words.next()?.parse().ok(),
        _ => None,
    });
    let mut servers: Vec<SocketAddr> = servers
        .map(|address: IpAddr| (address, DNS_PORT).into())
        .collect();
    if servers.is_empty() {
        servers.push((Ipv4Addr::LOCALHOST, DNS_PORT).into());
    }
    servers
}

/// Asks one server after the other, until one answers. That is the first from then on: one that is
/// dead is not waited for again.
async fn look_up(
    servers: &mut [SocketAddr],
    name: &str,
    record: RecordType,
) -> Result<(Vec<Record>, Option<u32>)> {
    let mut error = anyhow::anyhow!("no name server is known");
    for at in 0..servers.len() {
        let server = servers[at];
        let answer = timeout(TIMEOUT, exchange(server, name, record)).await;
        match answer {
            Ok(Ok(answer)) => {
                servers[..=at].rotate_right(1);
                return Ok(answer);
            }
            Ok(Err(of_server)) => error = of_server.context(server.to_string()),
            Err(_) => error = anyhow::anyhow!("{server} does not answer"),
        }
    }
    Err(error)
}

async fn exchange(
    server: SocketAddr,
    name: &str,
    record: RecordType,
) -> Result<(Vec<Record>, Option<u32>)> {
    let id: u16 = rand::random();
    let mut asked = query(id, name, record, true)?;
    let mut answer = by_udp(server, id, &asked).await?;
    if answer[3] & RCODE_MASK == FORMAT_ERROR {
        // It may know no EDNS.
        asked = query(id, name, record, false)?;
        answer = by_udp(server, id, &asked).await?;
    }
    match records(&answer, id, name, record)? {
        Some(records) => Ok(records),
        None => {
            let answer = by_tcp(server, &asked).await?;
            records(&answer, id, name, record)?.context("the answer is cut off")
        }
    }
}

async fn by_udp(server: SocketAddr, id: u16, query: &[u8]) -> Result<Vec<u8>> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut answer = vec![0; 4096];
    loop {
        let Ok(length) = timeout(AGAIN, socket.recv(&mut answer)).await else {
            socket.send(query).await?;
            continue;
        };
        let length = length?;
        // Another's, or none.
        if length >= HEAD && answer.starts_with(&id.to_be_bytes()) {
            answer.truncate(length);
            return Ok(answer);
        }
    }
}

async fn by_tcp(server: SocketAddr, query: &[u8]) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = (query.len() as u16).to_be_bytes();
    stream.write_all(&[&length, query].concat()).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; length.into()];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// With EDNS it says how long an answer may be. Without, some servers leave records out of an answer that
/// would be longer than 512 octets, and do not say so.
fn query(id: u16, name: &str, record: RecordType, edns: bool) -> Result<Vec<u8>> {
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(name.trim_end_matches('.'))?.into_owned();
    let of = match record {
        RecordType::Aaaa => TYPE::AAAA,
        RecordType::Srv => TYPE::SRV,
        _ => TYPE::A,
    };
    let question = Question::new(name, QTYPE::TYPE(of), QCLASS::CLASS(CLASS::IN), false);
    packet.questions.push(question);
    *packet.opt_mut() = edns.then(|| OPT {
        opt_codes: Vec::new(),
        udp_packet_size: UDP_MAX,
        version: 0,
    });
    Ok(packet.build_bytes_vec()?)
}

/// The records of an answer to this question, and the seconds for which all of them hold;
/// `None` if it is cut off. That a name has none is an answer. That there is no such name is none:
/// so look a wrong name and a zone that has lost it, too.
fn records(
    answer: &[u8],
    id: u16,
    name: &str,
    record: RecordType,
) -> Result<Option<(Vec<Record>, Option<u32>)>> {
    let answer = Packet::parse(answer).context("the answer is not the DNS'")?;
    let is_ours = answer.id() == id && answer.has_flags(PacketFlag::RESPONSE);
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let asked = answer
        .questions
        .first()
        .map(|question| plain(&question.qname));
    ensure!(
        is_ours && asked.is_none_or(|asked| asked == name),
        "the answer is to another question"
    );
    if answer.has_flags(PacketFlag::TRUNCATION) {
        return Ok(None);
    }
    match answer.rcode() {
        RCODE::NoError => {}
        RCODE::NameError => bail!("there is no name {name} (NXDOMAIN)"),
        other => bail!("the answer is {other:?}"),
    }
    // What the name is called in truth.
    let mut names = vec![name];
    for _ in 0..ALIASES_MAX {
        let alias = answer.answers.iter().find_map(|of| match &of.rdata {
            RData::CNAME(to) if names.last() == Some(&plain(&of.name)) => Some(plain(&to.0)),
            _ => None,
        });
        match alias {
            Some(alias) => names.push(alias),
            None => break,
        }
    }
    let mut ttl: Option<u32> = None;
    let mut found = Vec::new();
    for of in answer
        .answers
        .iter()
        .filter(|of| names.contains(&plain(&of.name)))
    {
        let of_record = match (&of.rdata, record) {
            (RData::A(a), RecordType::A) => Some(Record::Address(Ipv4Addr::from(a.address).into())),
            (RData::AAAA(a), RecordType::Aaaa) => {
                Some(Record::Address(Ipv6Addr::from(a.address).into()))
            }
            (RData::SRV(srv), RecordType::Srv) => Some(Record::Service {
                priority: srv.priority,
                weight: srv.weight,
                port: srv.port,
                target: plain(&srv.target),
            }),
            (RData::CNAME(_), _) => None,
            _ => continue,
        };
        ttl = Some(ttl.map_or(of.ttl, |ttl| ttl.min(of.ttl)));
        if let Some(record) = of_record.filter(|record| !found.contains(record)) {
            found.push(record);
        }
    }
    // A service that is decidedly not there (RFC 2782).
    found.retain(|record| !matches!(record, Record::Service { target, .. } if target.is_empty()));
    Ok(Some((found, ttl)))
}

fn plain(name: &Name<'_>) -> String {
    name.to_string().trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use simple_dns::ResourceRecord;
    use simple_dns::rdata::{A, CNAME, SRV};

    fn answer(
        name: &'static str,
        records: &[(&'static str, u32, RData<'static>)],
    ) -> Packet<'static> {
        let question = query(7, name, RecordType::A, false).unwrap();
        let mut packet = Packet::parse(&question).unwrap().into_reply();
        let questions = packet.questions.drain(..);
        let questions: Vec<_> = questions.map(|question| question.into_owned()).collect();
        let mut packet = Packet::new_reply(7);
        packet.questions = questions;
        for (name, ttl, rdata) in records {
            let name = Name::new(name).unwrap();
            packet
                .answers
                .push(ResourceRecord::new(name, CLASS::IN, *ttl, rdata.clone()));
        }
        packet
    }

    fn read(
        packet: &Packet<'_>,
        name: &str,
        record: RecordType,
    ) -> Result<Option<(Vec<Record>, Option<u32>)>> {
        records(&packet.build_bytes_vec().unwrap(), 7, name, record)
    }

    fn address(last: u8) -> RData<'static> {
        RData::A(A {
            address: Ipv4Addr::new(10, 0, 0, last).into(),
        })
    }

    #[test]
    fn addresses_are_read_by_way_of_aliases_for_the_shortest_time() {
        let alias = RData::CNAME(CNAME(Name::new("b.example").unwrap()));
        let packet = answer(
            "a.example",
            &[
                ("a.example", 60, alias),
                ("b.example", 30, address(1)),
                ("B.Example", 90, address(2)),
                ("b.example", 30, address(1)),
                ("other.example", 1, address(3)),
            ],
        );
        let (found, ttl) = read(&packet, "A.example.", RecordType::A).unwrap().unwrap();
        let address = |last| Record::Address(Ipv4Addr::new(10, 0, 0, last).into());
        assert_eq!((found, ttl), (vec![address(1), address(2)], Some(30)));
        assert!(read(&packet, "c.example", RecordType::A).is_err());
        let none = read(&packet, "a.example", RecordType::Aaaa)
            .unwrap()
            .unwrap();
        assert_eq!(none.0, []);
    }

    #[test]
    fn services_have_ports_and_may_decidedly_not_be_there() {
        let srv = |target: &'static str| {
            RData::SRV(SRV {
                priority: 1,
                weight: 2,
                port: 80,
                target: Name::new_unchecked(target),
            })
        };
        let packet = answer(
            "a.example",
            &[
                ("a.example", 5, srv("t.example")),
                ("a.example", 5, srv("")),
            ],
        );
        let (found, _) = read(&packet, "a.example", RecordType::Srv)
            .unwrap()
            .unwrap();
        let service = Record::Service {
            priority: 1,
            weight: 2,
            port: 80,
            target: "t.example".into(),
        };
        assert_eq!(found, [service]);
    }

    #[test]
    fn what_is_no_answer_is_a_failure_or_asked_for_again() {
        let mut packet = answer("a.example", &[]);
        *packet.rcode_mut() = RCODE::ServerFailure;
        assert!(read(&packet, "a.example", RecordType::A).is_err());
        *packet.rcode_mut() = RCODE::NameError;
        let error = read(&packet, "a.example", RecordType::A).unwrap_err();
        assert_eq!(error.to_string(), "there is no name a.example (NXDOMAIN)");
        *packet.rcode_mut() = RCODE::NoError;
        let (found, ttl) = read(&packet, "a.example", RecordType::A).unwrap().unwrap();
        assert_eq!((found, ttl), (vec![], None), "it has none");
        packet.set_flags(PacketFlag::TRUNCATION);
        assert_eq!(read(&packet, "a.example", RecordType::A).unwrap(), None);
        let query = query(7, "a.example", RecordType::A, true).unwrap();
        assert!(records(&query, 7, "a.example", RecordType::A).is_err());
        for bad in [&b""[..], b"\0\x07", &[0xff; 40], &query[..20]] {
            assert!(records(bad, 7, "a.example", RecordType::A).is_err());
        }
    }

    #[test]
    fn the_systems_servers_are_those_of_resolv_conf() {
        let text = "# nameserver 10.0.0.1\nsearch x\nnameserver 10.0.0.53\nnameserver ::1\nnameserver bad\n";
        let expected = ["10.0.0.53:53", "[::1]:53"].map(|target| target.parse().unwrap());
        assert_eq!(servers(text), expected);
        assert_eq!(servers(""), ["127.0.0.1:53".parse().unwrap()]);
    }
}
