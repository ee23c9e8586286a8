// SPDX-License-Identifier: Apache-2.0

//! What comes from the network to the daemons: agents' reports, a balancer's questions, what
//! balancers send each other, and answers to probes.

#![allow(deprecated, reason = "std has SipHash-2-4 under no other name")]

use std::collections::BTreeMap;
use std::hash::{Hasher as _, SipHasher};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use causeway_core::agent_report::{
    Body, BookParts, Boot, JoinAttempt, JoinContext, JoinDesk, JoinStep, JoinTicket, Question,
    Reception, ReportKeys, ReportReceiver, ReportSecrets, ReportSender,
};
use causeway_core::control::MeasuredInterval;
use causeway_core::cookie::{CookieKey, KeyEpoch};
use causeway_core::envelope::DATAGRAM_MAX;
use causeway_core::fleet::JoinToken;
use causeway_core::health::{
    Echo, PostgresError, dns_code, endpoint_weight, grpc_serves, redis_serves,
};
use causeway_core::peer::{PeerExchange, PeerKeys, RealInterval};

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const BALANCER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 9472);
const BOOT: Boot = Boot {
    time_s: 1000,
    id: 7,
};
const HEAD: usize = 48;

/// Datagrams, each behind two octets of length and one of flags: 1 signs it, 2 makes it one
/// of the known server's boot, 4 has it be a balancer's.
pub(crate) fn report(data: &[u8]) {
    let keys = keys();
    let Ok(secret) = "5".repeat(32).parse::<CookieKey>() else {
        return;
    };
    let mut receiver = ReportReceiver::new(secret);
    let mut agent = ReportSender::new(BOOT, 0);
    prove(&mut receiver, &mut agent, &keys);
    let mut parts = BookParts::default();
    let token = JoinToken {
        servers: [SERVER].into(),
        epoch: 0,
        until_s: 1,
        used_by: None,
    };
    let tokens = BTreeMap::from([(0, token.clone())]);
    let mut desk = JoinDesk::new(secret);
    let ticket = JoinTicket::new(&keys, 0, &token);
    let mut attempt = ticket.map(|ticket| JoinAttempt::new(ticket, [1; 32], SERVER, BOOT));
    let mut rest = data;
    let mut now_ns = 1_000_000;
    while let Some((&[high, low, flags], after)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes([high, low])).min(after.len());
        let (datagram, next) = after.split_at(length);
        rest = next;
        now_ns += u64::from(flags) << 20;
        let mut datagram = datagram.to_vec();
        let label = if flags & 4 == 0 {
            *b"agent   "
        } else {
            *b"balancer"
        };
        let secret = keys.of_server(SERVER, KeyEpoch::Zero);
        let key = secret.map(|secret| secret.derive(label, [0; 16]));
        sign(&mut datagram, flags, *b"CWAR", key);
        let first = receiver.receive(&datagram, Some(&keys), now_ns);
        if let Err(Reception::Unproven) = first {
            assert!(receiver.challenge(&datagram, &keys, now_ns).is_some());
        }
        // A replay counts for nothing.
        assert!(receiver.receive(&datagram, Some(&keys), now_ns).is_err());
        assert!(receiver.receive(&datagram, None, now_ns).is_err());
        let asked = agent.question(&datagram, BALANCER, &[SERVER], &keys);
        if asked.is_some() {
            assert_eq!(agent.question(&datagram, BALANCER, &[SERVER], &keys), None);
        }
        if let Some((server, part)) = agent.book_part(&datagram, &[SERVER], &keys) {
            let _ = parts.take(server, part, &keys);
        }
        let _ = receiver.load(SERVER, now_ns);
        // The key of a token is not to be guessed.
        let context = JoinContext {
            tokens: &tokens,
            keys: &keys,
            now_s: 0,
            now_ns,
        };
        assert_eq!(desk.handle(&datagram, SERVER, context), JoinStep::Nothing);
        assert!(
            attempt
                .iter_mut()
                .all(|own| own.handle(&datagram).is_none())
        );
    }
}

fn keys() -> ReportKeys {
    ReportKeys {
        current: KeyEpoch::Zero,
        secrets: ReportSecrets::Root(["7", "8"].map(|digit| digit.repeat(32).parse().ok())),
    }
}

/// The server's boot responds to a challenge, so that its datagrams count.
fn prove(receiver: &mut ReportReceiver, agent: &mut ReportSender, keys: &ReportKeys) {
    let hello = agent.datagram(SERVER, Vec::new(), keys);
    assert!(receiver.receive(&hello, Some(keys), 0).is_err());
    let challenge = receiver.challenge(&hello, keys, 0).unwrap_or_default();
    let question = agent.question(&challenge, BALANCER, &[SERVER], keys);
    let Some(Question::Challenge(server, number)) = question else {
        unreachable!("a challenge is asked by one");
    };
    let response = agent.datagram(server, vec![Body::Response(number)], keys);
    assert!(receiver.receive(&response, Some(keys), 0).is_ok());
}

/// Datagrams of another balancer, each behind two octets of length and one of flags: 1 signs it, 2
/// makes it one of a boot that has shown to be alive, and it comes the later the higher they are.
pub(crate) fn peers(data: &[u8]) {
    let keys = keys();
    let key = |from, to| {
        let root: CookieKey = "7".repeat(32).parse().ok()?;
        let octets = |of: Ipv4Addr| of.to_ipv6_mapped().octets();
        let member = root.derive(*b"member  ", octets(from));
        Some(member.derive(*b"to      ", octets(to)))
    };
    let (own, other) = (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1));
    let Some(mut members) = members([own, other], &keys) else {
        return;
    };
    let real = |name| RealInterval {
        name,
        measured: MeasuredInterval::default(),
        weight: Some(1.0),
        vote: Some(true),
    };
    let reals = [7, 8].map(real);
    let mut now_ns = 100 << 30;
    members[0].interval(now_ns, &reals);
    prove_peer(&mut members, now_ns);
    let [member, _] = &mut members;
    let mut rest = data;
    while let Some((&[high, low, flags], after)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes([high, low])).min(after.len());
        let (datagram, next) = after.split_at(length);
        rest = next;
        now_ns += u64::from(flags) << 24;
        let mut datagram = datagram.to_vec();
        sign(&mut datagram, flags, *b"CWPR", key(other, own));
        let (first, answer) = member.handle_datagram(&datagram, now_ns);
        assert!(answer.is_none() || first == Reception::Unproven);
        // A replay counts for nothing.
        assert_ne!(
            member.handle_datagram(&datagram, now_ns).0,
            Reception::Taken
        );
        for real in member.interval(now_ns, &reals) {
            assert!(real.weight.is_none_or(f64::is_finite));
        }
        let sent = member.transmits(now_ns);
        assert!(sent.iter().all(|(_, sent)| sent.len() <= DATAGRAM_MAX));
        let _ = (member.statuses(now_ns), member.left_out());
    }
}

/// Two balancers that exchange with each other.
fn members(addresses: [Ipv4Addr; 2], keys: &ReportKeys) -> Option<[PeerExchange; 2]> {
    let sockets = addresses.map(|address| SocketAddr::from((address, 9473)));
    let secret: CookieKey = "5".repeat(32).parse().ok()?;
    let keys = PeerKeys::of(keys)?;
    Some(addresses.map(|address| {
        let mut member = PeerExchange::new(address.into(), BOOT, secret);
        member.set_keys(Some(keys.clone()));
        member.set_members(&sockets);
        member
    }))
}

/// The second member's boot responds to the first one's challenge.
fn prove_peer([own, other]: &mut [PeerExchange; 2], now_ns: u64) {
    for expected in [Reception::Unproven, Reception::Taken] {
        for (_, datagram) in other.transmits(now_ns) {
            let (outcome, challenge) = own.handle_datagram(&datagram, now_ns);
            assert_eq!(outcome, expected);
            if let Some((_, challenge)) = challenge {
                assert_eq!(
                    other.handle_datagram(&challenge, now_ns).0,
                    Reception::Taken
                );
            }
        }
    }
}

/// Magic, version, length and tag as the flags want them.
fn sign(datagram: &mut [u8], flags: u8, magic: [u8; 4], key: Option<CookieKey>) {
    if datagram.len() < HEAD {
        return;
    }
    if flags & 2 != 0 {
        datagram[16..32].copy_from_slice(&Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets());
        datagram[32..36].copy_from_slice(&BOOT.time_s.to_be_bytes());
        datagram[36..40].copy_from_slice(&BOOT.id.to_be_bytes());
        datagram[40..46].fill(0);
    }
    if flags & 1 == 0 {
        return;
    }
    datagram[..4].copy_from_slice(&magic);
    datagram[5] = 0;
    let length = datagram.len() as u16;
    datagram[6..8].copy_from_slice(&length.to_be_bytes());
    datagram[8..16].fill(0);
    let Some(key) = key.map(|key| key.to_hex()) else {
        return;
    };
    let half = |digits: &str| u64::from_str_radix(digits, 16).unwrap_or(0).swap_bytes();
    let mut hasher = SipHasher::new_with_keys(half(&key[..16]), half(&key[16..]));
    let whole = datagram.len() / 8 * 8;
    hasher.write(&datagram[..whole]);
    let tag = hasher.finish();
    datagram[8..16].copy_from_slice(&tag.to_le_bytes());
}

/// An answer to a probe: of Redis, PostgreSQL, gRPC, ICMP, and of DNS to the question with its
/// first two octets.
pub(crate) fn answer(data: &[u8]) {
    assert!(endpoint_weight(data).is_none_or(|weight| weight <= 1000));
    assert!(!redis_serves(data) || data.starts_with(b"+") || data.starts_with(b"-"));
    if let Some(error) = PostgresError::parse(data) {
        assert_eq!(error.code.len(), 5);
    }
    // The message is whole: nothing may follow it.
    if grpc_serves(data).is_ok() {
        assert!(grpc_serves(&[data, b"\0"].concat()).is_err());
    }
    for ipv6 in [false, true] {
        let echo = Echo {
            ipv6,
            id: 1,
            sequence: 2,
        };
        assert!(!echo.is_replied_by(data) || data.len() >= 16);
    }
    if let Some((&id, _)) = data.split_first_chunk() {
        assert!(dns_code(data, id).is_none_or(|code| code < 16));
        assert_eq!(dns_code(data, [id[0], !id[1]]), None);
    }
}
