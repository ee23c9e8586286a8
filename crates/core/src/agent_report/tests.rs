// SPDX-License-Identifier: Apache-2.0

use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::datagram::{VERSION, seal};
use super::keys::Speaker;
use super::*;
use crate::cookie::{CookieKey, KeyEpoch};

const S: u64 = 1_000_000_000;
const SERVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

/// A balancer's, of both epochs; "" for none.
fn keys(current: KeyEpoch, digits: [&str; 2]) -> ReportKeys {
    ReportKeys {
        current,
        secrets: ReportSecrets::Root(digits.map(|digit| digit.repeat(32).parse().ok())),
    }
}

fn ours() -> ReportKeys {
    keys(KeyEpoch::Zero, ["7", "8"])
}

fn decode(bytes: &[u8], keys: Option<&ReportKeys>) -> Result<AgentReport, Reception> {
    AgentReport::decode(bytes, Speaker::Agent, keys)
}

fn number_in(challenge: &[u8]) -> u64 {
    let read = AgentReport::decode(challenge, Speaker::Balancer, Some(&ours()));
    match read.expect("a balancer's datagram").bodies[..] {
        [Body::Challenge(number)] => number,
        ref bodies => panic!("{bodies:?}"),
    }
}

fn datagram(sequence: u64, bodies: Vec<Body>) -> AgentReport {
    AgentReport {
        sender: SERVER,
        boot: Boot {
            time_s: 1_000,
            id: 7,
        },
        sequence,
        bodies,
    }
}

fn load(cpu_milli: u32) -> Body {
    Body::Load(ServerLoad {
        cpu_milli,
        in_flight: 0x0102_0304,
    })
}

fn latency(count: usize) -> Body {
    let service = |n: usize| ServiceLatency {
        address: match n % 3 {
            0 => Some(IpAddr::from([192, 0, 2, n as u8])),
            1 => Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n as u16).into()),
            _ => None,
        },
        port: 80 + n as u16,
        transactions_milli: 1_500 * n as u64,
        response_ns: 7_000_000_000 * n as u64,
        server: Some(ServerTimes {
            timed_milli: n as u64,
            sum_ns: 5_000_000 * n as u64,
            overlapping_milli: 3,
        }),
    };
    Body::Latency((0..count).map(service).collect())
}

fn notices(count: usize) -> Vec<ConnectionNotice> {
    let ends = |n: u16| match n % 2 {
        0 => (
            SocketAddr::from(([192, 0, 2, n as u8], 1024 + n)),
            SocketAddr::from(([198, 51, 100, 1], 443)),
        ),
        _ => (
            SocketAddr::from((Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n), 1024)),
            SocketAddr::from((Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1), 443)),
        ),
    };
    (0..count as u16)
        .map(|n| ConnectionNotice {
            client: ends(n).0,
            vip: ends(n).1,
            token: 0x7fff - n,
            id: n,
        })
        .collect()
}

/// A receiver, and what it makes of datagrams at a time.
struct Balancer(ReportReceiver);

impl Default for Balancer {
    fn default() -> Self {
        Self(ReportReceiver::new(CookieKey::from_bytes([5; 16])))
    }
}

impl Balancer {
    fn receive(&mut self, bytes: &[u8], now_ns: u64) -> Reception {
        let received = self.0.receive(bytes, Some(&ours()), now_ns);
        received.err().unwrap_or(Reception::Taken)
    }

    /// Receives a datagram whose agent answers a challenge.
    fn take(&mut self, datagram: &AgentReport, now_ns: u64) -> Reception {
        let bytes = datagram.encode(&ours());
        match self.receive(&bytes, now_ns) {
            Reception::Unproven => {
                let answer = self.answer(datagram, now_ns);
                self.receive(&answer.encode(&ours()), now_ns)
            }
            outcome => outcome,
        }
    }

    /// A datagram with the response to the challenge that it is answered by.
    fn answer(&self, datagram: &AgentReport, now_ns: u64) -> AgentReport {
        let bytes = datagram.encode(&ours());
        let challenge = self.0.challenge(&bytes, &ours(), now_ns);
        let response = Body::Response(number_in(&challenge.expect("a challenge")));
        let mut answer = datagram.clone();
        answer.bodies.push(response);
        answer
    }

    fn cpu_milli(&self, now_ns: u64) -> Option<u32> {
        self.0.load(SERVER, now_ns).map(|load| load.cpu_milli)
    }

    /// Counters that are not zero, but for the beginning's.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = self.0.counts();
        let counts = counts.filter(|(of, count)| *count > 0 && *of != Reception::Unproven);
        counts
            .map(|(outcome, count)| (outcome.as_str(), count))
            .collect()
    }
}

#[test]
fn datagrams_are_read_as_they_were_written_by_either_key_and_no_other() {
    for bodies in [
        vec![],
        vec![load(750), latency(SERVICES_MAX)],
        vec![
            latency(0),
            Body::Ask,
            Body::Challenge(u64::MAX),
            Body::Response(7),
        ],
        vec![Body::Opened(notices(NOTICES_MAX))],
        vec![Body::Closed(notices(3)), Body::Opened(notices(2)), load(1)],
    ] {
        for sender in [SERVER, "2001:db8::1".parse().expect("an address")] {
            let sent = AgentReport {
                sender,
                ..datagram(9, bodies.clone())
            };
            let bytes = sent.encode(&ours());
            assert!(bytes.len() <= DATAGRAM_MAX);
            let switched = keys(KeyEpoch::One, ["7", "8"]);
            let read = decode(&bytes, Some(&switched));
            assert_eq!(read.as_ref(), Ok(&sent));
            let others = keys(KeyEpoch::Zero, ["8", "9"]);
            let read = decode(&bytes, Some(&others));
            assert_eq!(read, Err(Reception::Forged));
            assert_eq!(decode(&bytes, None), Err(Reception::NoKey));
            // It is an agent's word, and never a balancer's.
            let read = AgentReport::decode(&bytes, Speaker::Balancer, Some(&ours()));
            assert_eq!(read, Err(Reception::Forged));
        }
    }
    let one = keys(KeyEpoch::One, ["", "7"]);
    let bytes = datagram(9, vec![]).encode(&ours());
    let read = decode(&bytes, Some(&one));
    assert_eq!(read, Err(Reception::NoKey), "of an epoch without a key");
}

#[test]
fn a_server_signs_by_the_epoch_that_it_has_a_secret_of() {
    let other = IpAddr::from([10, 0, 0, 2]);
    let of = |server| KeyEpoch::ALL.map(|epoch| ours().of_server(server, epoch));
    let lags = ReportKeys {
        current: KeyEpoch::One,
        secrets: ReportSecrets::Own([(SERVER, of(SERVER)), (other, [of(other)[0], None])].into()),
    };
    for (sender, epoch) in [(SERVER, KeyEpoch::One), (other, KeyEpoch::Zero)] {
        assert_eq!(lags.signing_epoch(sender), epoch);
        let sent = AgentReport {
            sender,
            ..datagram(9, vec![load(750)])
        };
        let read = decode(&sent.encode(&lags), Some(&ours()));
        assert_eq!(read.as_ref(), Ok(&sent));
    }
}

#[test]
fn what_does_not_fit_is_left_out() {
    let sent = datagram(9, vec![load(1), Body::Closed(notices(100)), load(2)]);
    let bytes = sent.encode(&ours());
    assert!(bytes.len() <= DATAGRAM_MAX);
    let read = decode(&bytes, Some(&ours())).expect("a datagram");
    assert_eq!(read.bodies, [load(1), Body::Closed(notices(29))]);
}

#[test]
fn no_bit_can_be_changed_and_no_byte_added_or_left_out() {
    let bytes = datagram(9, vec![load(1), latency(1), Body::Closed(notices(1))]).encode(&ours());
    let mut balancer = Balancer::default();
    balancer.take(&datagram(1, vec![]), S);
    for bit in 0..bytes.len() * 8 {
        let mut other = bytes.clone();
        other[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(balancer.receive(&other, S), Reception::Taken, "bit {bit}");
    }
    for len in 4..bytes.len() {
        let outcome = balancer.receive(&bytes[..len], S);
        assert_eq!(outcome, Reception::Truncated, "{len} bytes");
    }
    for junk in [&b""[..], b"CWA", b"no report", &[0; 2 * DATAGRAM_MAX]] {
        assert_eq!(balancer.receive(junk, S), Reception::Malformed);
    }
    let longer = [&bytes[..], &[0; 8]].concat();
    assert_eq!(balancer.receive(&longer, S), Reception::Malformed);
    assert_eq!(balancer.0.load(SERVER, S), None);
}

#[test]
fn a_length_that_a_body_does_not_have_is_refused_although_it_is_signed() {
    for (at, value) in [(48 + 3, 9), (48 + 3, 0xff), (48 + 5, 2)] {
        let mut bytes = datagram(9, vec![load(1)]).encode(&ours());
        bytes[at] = value;
        seal(&mut bytes, KeyEpoch::Zero, Speaker::Agent, &ours());
        let read = decode(&bytes, Some(&ours()));
        assert_eq!(read, Err(Reception::Malformed), "{value} at {at}");
    }
}

#[test]
fn versions_one_apart_are_understood_with_what_they_add() {
    let mut balancer = Balancer::default();
    balancer.take(&datagram(0, vec![]), S);
    // A kind that is not known yet, and a longer entry of one that is.
    let mut bytes = datagram(1, vec![]).encode_as(VERSION + 1, Speaker::Agent, &ours());
    bytes.extend([200, 0, 0, 16, 0, 1, 0, 0]);
    bytes.extend([0xff; 16]);
    bytes.extend([1, 0, 0, 16, 0, 1, 0, 0]);
    bytes.extend([0, 0, 0, 5, 0, 0, 0, 6, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    seal(&mut bytes, KeyEpoch::Zero, Speaker::Agent, &ours());
    assert_eq!(balancer.receive(&bytes, S), Reception::Taken);
    assert_eq!(
        balancer.0.load(SERVER, S),
        Some(ServerLoad {
            cpu_milli: 5,
            in_flight: 6
        })
    );
    let older = datagram(2, vec![load(3)]).encode_as(VERSION - 1, Speaker::Agent, &ours());
    assert_eq!(balancer.receive(&older, S), Reception::Taken);
    let far = datagram(3, vec![load(4)]).encode_as(VERSION + 2, Speaker::Agent, &ours());
    assert_eq!(balancer.receive(&far, S), Reception::Version);
    assert_eq!(balancer.cpu_milli(S), Some(3));
    assert_eq!(balancer.counts(), [("taken", 3), ("version", 1)]);
}

#[test]
fn what_is_replayed_is_not_believed() {
    let mut balancer = Balancer::default();
    let first = datagram(100, vec![load(1)]);
    assert_eq!(balancer.take(&first, 0), Reception::Taken);
    assert_eq!(balancer.take(&first, 1), Reception::Replayed);
    // Too old to tell: the window has gone on.
    assert_eq!(balancer.take(&datagram(164, vec![]), 2), Reception::Taken);
    assert_eq!(
        balancer.take(&datagram(100, vec![load(2)]), 3),
        Reception::Replayed
    );
    assert_eq!(balancer.take(&datagram(0, vec![]), 3), Reception::Replayed);
    // Nor is it after a silence.
    assert_eq!(balancer.take(&first, 60 * S), Reception::Replayed);
    assert_eq!(
        balancer.take(&datagram(u64::MAX, vec![]), 60 * S),
        Reception::Taken
    );
    assert_eq!(
        balancer.take(&datagram(165, vec![]), 60 * S),
        Reception::Replayed
    );
    assert_eq!(balancer.counts(), [("taken", 3), ("replayed", 5)]);
}

#[test]
fn of_what_is_reordered_each_connection_counts_once_and_of_loads_the_newest() {
    let mut balancer = Balancer::default();
    let closed = |sequence| datagram(sequence, vec![Body::Closed(notices(1))]);
    assert_eq!(
        balancer.take(&datagram(10, vec![load(10)]), 0),
        Reception::Taken
    );
    assert_eq!(
        balancer.take(&datagram(8, vec![load(8)]), 1),
        Reception::Late
    );
    assert_eq!(balancer.take(&closed(7), 2), Reception::Taken);
    assert_eq!(balancer.take(&closed(7), 3), Reception::Replayed);
    // A latency that a load has overtaken is the newest of its kind.
    assert_eq!(
        balancer.take(&datagram(9, vec![latency(1)]), 4),
        Reception::Taken
    );
    assert_eq!(balancer.cpu_milli(5), Some(10));
    let counts = [("taken", 3), ("late", 1), ("replayed", 1)];
    assert_eq!(balancer.counts(), counts);
}

/// Against a set of all numbers that were taken.
#[test]
fn a_window_takes_each_number_once_in_any_order() {
    let mut balancer = Balancer::default();
    let (mut taken, mut newest) = (HashSet::new(), 0);
    let mut random: u64 = 1;
    for _ in 0..20_000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let sequence = (newest + (random >> 33) % 90).saturating_sub(75);
        let is_in_window = sequence > newest || newest - sequence < 64;
        let expected = match is_in_window && taken.insert(sequence) {
            true => Reception::Taken,
            false => Reception::Replayed,
        };
        let is_first = newest == 0 && taken.len() == 1;
        let outcome = balancer.take(&datagram(sequence, vec![]), 0);
        assert_eq!(outcome, expected, "{sequence} after {newest}");
        newest = match is_first {
            true => sequence,
            false => newest.max(sequence),
        };
    }
    assert!(taken.len() > 5_000);
}

#[test]
fn a_boot_counts_when_it_has_answered() {
    let mut balancer = Balancer::default();
    let boot = |time_s, id, cpu_milli| AgentReport {
        boot: Boot { time_s, id },
        ..datagram(5, vec![load(cpu_milli)])
    };
    assert_eq!(balancer.take(&boot(1_000, 1, 1), 0), Reception::Taken);
    let recorded = balancer.answer(&boot(1_000, 1, 9), 0).encode(&ours());
    // Its clock was ahead in the boot before.
    assert_eq!(balancer.take(&boot(10, 2, 2), 1), Reception::Taken);
    assert_eq!(balancer.cpu_milli(1), Some(2));
    // What was recorded in the former boot is worth nothing, however silent the server is.
    for (bytes, at_ns) in [
        (boot(1_000, 1, 3).encode(&ours()), 2),
        (recorded.clone(), 60 * S),
    ] {
        assert_eq!(balancer.receive(&bytes, at_ns), Reception::Unproven);
    }
    assert_eq!(balancer.cpu_milli(1), Some(2));
    // Nor is it to a balancer that has just been started.
    let other = ReportReceiver::new(CookieKey::from_bytes([6; 16]));
    assert_eq!(Balancer(other).receive(&recorded, 0), Reception::Unproven);
}

#[test]
fn a_challenge_holds_for_seconds() {
    let first = datagram(5, vec![load(1)]);
    for (at_ns, expected) in [
        (4 * S, Reception::Taken),
        (9 * S, Reception::Unproven),
        (3600 * S, Reception::Unproven),
    ] {
        let mut balancer = Balancer::default();
        let answer = balancer.answer(&first, 0);
        let outcome = balancer.receive(&answer.encode(&ours()), at_ns);
        assert_eq!(outcome, expected, "after {at_ns} ns");
    }
    // It is this server's, and of this boot.
    let mut balancer = Balancer::default();
    let answer = balancer.answer(&first, 0);
    let sender = IpAddr::from([10, 0, 0, 2]);
    let other = AgentReport {
        sender,
        ..answer.clone()
    };
    let boot = Boot {
        id: 8,
        ..answer.boot
    };
    let rebooted = AgentReport {
        boot,
        ..answer.clone()
    };
    for wrong in [other, rebooted] {
        let outcome = balancer.receive(&wrong.encode(&ours()), 0);
        assert_eq!(outcome, Reception::Unproven);
    }
}

/// All that a server holds is worth nothing to one that speaks for another.
#[test]
fn who_takes_a_server_speaks_for_that_server_alone() {
    let others = IpAddr::from([10, 0, 0, 2]);
    let stolen = ours().for_server(&[SERVER]);
    assert!(!stolen.are_the_balancers());
    let own = datagram(1, vec![load(1)]);
    assert_eq!(
        decode(&own.encode(&stolen), Some(&ours())).as_ref(),
        Ok(&own)
    );
    let forged = AgentReport {
        sender: others,
        ..own
    };
    assert_eq!(
        decode(&forged.encode(&stolen), Some(&ours())),
        Err(Reception::Forged)
    );
    // Nor by the secrets themselves, as if they were the balancers' or the other's.
    let secrets = KeyEpoch::ALL.map(|epoch| stolen.of_server(SERVER, epoch));
    for secrets in [
        ReportSecrets::Root(secrets),
        ReportSecrets::Own([(others, secrets)].into()),
    ] {
        let keys = ReportKeys {
            current: KeyEpoch::Zero,
            secrets,
        };
        assert_eq!(
            decode(&forged.encode(&keys), Some(&ours())),
            Err(Reception::Forged)
        );
    }
    // Nor can it ask another server in a balancer's name.
    let question = AgentReport {
        bodies: vec![Body::Ask],
        ..forged
    };
    let question = question.encode_as(VERSION, Speaker::Balancer, &stolen);
    let theirs = ours().for_server(&[others]);
    let read = AgentReport::decode(&question, Speaker::Balancer, Some(&theirs));
    assert_eq!(read, Err(Reception::Forged));
}

#[test]
fn loads_hold_for_a_second_and_latencies_for_three() {
    let mut balancer = Balancer::default();
    balancer.take(&datagram(1, vec![load(1), latency(1)]), 5);
    let service = (IpAddr::from([192, 0, 2, 0]), 80);
    let latency = |balancer: &Balancer, at| balancer.0.latency(SERVER, service, at).is_some();
    assert!(balancer.cpu_milli(5 + S).is_some() && balancer.cpu_milli(6 + S).is_none());
    assert!(latency(&balancer, 5 + 3 * S) && !latency(&balancer, 6 + 3 * S));
    assert_eq!(balancer.0.load(IpAddr::from([10, 0, 0, 2]), 5), None);
}

#[test]
fn a_service_is_found_as_agents_find_it() {
    let address = IpAddr::from([192, 0, 2, 1]);
    let other = IpAddr::from([192, 0, 2, 2]);
    let service = |address, port, transactions_milli| ServiceLatency {
        address,
        port,
        transactions_milli,
        response_ns: 10 * transactions_milli,
        server: Some(ServerTimes {
            timed_milli: transactions_milli,
            ..ServerTimes::default()
        }),
    };
    let services = vec![
        service(None, 80, 1),
        service(Some(address), 0, 2),
        service(Some(address), 80, 4),
    ];
    let mut balancer = Balancer::default();
    balancer.take(&datagram(1, vec![Body::Latency(services)]), 0);
    let of = |address, port| {
        let found = balancer.0.latency(SERVER, (address, port), 0);
        found.map(|of| of.transactions_milli)
    };
    assert_eq!(of(address, 80), Some(4));
    assert_eq!(of(address, 443), Some(2));
    assert_eq!(of(address, 0), Some(6));
    assert_eq!(of(other, 80), Some(1));
    assert_eq!(of(other, 443), None);
    assert_eq!(of(other, 0), None);
    let timed = |port| {
        let found = balancer.0.latency(SERVER, (address, port), 0);
        found.and_then(|of| of.server).map(|of| of.timed_milli)
    };
    assert_eq!((timed(80), timed(0)), (Some(4), Some(6)));
}

#[test]
fn an_agent_may_not_tell_what_its_server_took() {
    let Body::Latency(mut services) = latency(2) else {
        return;
    };
    services[1].server = None;
    let bytes = datagram(1, vec![Body::Latency(services.clone())]).encode(&ours());
    services[0].server = None;
    let read = decode(&bytes, Some(&ours())).expect("a datagram");
    assert_eq!(read.bodies, [Body::Latency(services)]);
    assert_eq!(bytes.len(), 48 + 8 + 2 * 40, "as long as before");
}

#[test]
fn an_agent_that_starts_again_goes_on_above_its_last_number() {
    let boot = Boot { time_s: 9, id: 9 };
    let mut balancer = Balancer::default();
    for start_ns in [5 * S, 6 * S, 7 * S] {
        let mut sender = ReportSender::new(boot, start_ns);
        prove(&mut sender, &mut balancer.0, start_ns);
        for _ in 0..100 {
            let bytes = sender.datagram(SERVER, vec![load(1)], &ours());
            assert_eq!(balancer.receive(&bytes, start_ns), Reception::Taken);
        }
    }
}

/// An agent's first report, whose challenge it answers.
fn prove(agent: &mut ReportSender, receiver: &mut ReportReceiver, now_ns: u64) {
    let balancer = SocketAddr::from(([10, 0, 1, 9], 9472));
    let report = agent.datagram(SERVER, vec![], &ours());
    if receiver.receive(&report, Some(&ours()), now_ns).is_ok() {
        return;
    }
    let challenge = receiver.challenge(&report, &ours(), now_ns);
    let challenge = challenge.expect("a challenge");
    let question = agent.question(&challenge, balancer, &[SERVER], &ours());
    let expected = Question::Challenge(SERVER, number_in(&challenge));
    assert_eq!(question, Some(expected));
    let response = vec![Body::Response(number_in(&challenge))];
    let response = agent.datagram(SERVER, response, &ours());
    assert!(receiver.receive(&response, Some(&ours()), now_ns).is_ok());
}

#[test]
fn a_question_answers_a_report_and_counts_once_for_each_balancer() {
    let boot = Boot { time_s: 9, id: 9 };
    let mut agent = ReportSender::new(boot, S);
    let [first, second] = [1, 2].map(|n| SocketAddr::from(([10, 0, 1, n], 9472)));
    let mut receiver = Balancer::default().0;
    prove(&mut agent, &mut receiver, 0);
    let mut question = |agent: &mut ReportSender, now_ns| {
        let report = agent.datagram(SERVER, vec![], &ours());
        let received = receiver.receive(&report, Some(&ours()), now_ns);
        receiver.ask(&received.expect("a report"), &ours(), now_ns)
    };
    let asked = question(&mut agent, 0).expect("a question");
    assert_eq!(question(&mut agent, S / 2), None, "it has just asked");
    let later = question(&mut agent, S).expect("another question");
    let servers = [SERVER];
    let mut is_asked = |bytes: &[u8], from, keys: &ReportKeys| {
        agent.question(bytes, from, &servers, keys) == Some(Question::Open)
    };
    assert!(!is_asked(&asked, first, &keys(KeyEpoch::Zero, ["8", "9"])));
    assert!(is_asked(&asked, first, &ours()));
    assert!(!is_asked(&asked, first, &ours()), "played again");
    assert!(is_asked(&later, first, &ours()));
    assert!(!is_asked(&asked, first, &ours()), "an older one");
    assert!(is_asked(&asked, second, &ours()));
    let others = [IpAddr::from([10, 0, 0, 9])];
    let stranger = &mut ReportSender::new(boot, 0);
    assert_eq!(stranger.question(&asked, first, &others, &ours()), None);
    // The agent that was there before sent that report.
    let successor = &mut ReportSender::new(boot, 2 * S);
    assert_eq!(successor.question(&later, first, &servers, &ours()), None);
    // A report asks nothing.
    let report = agent.datagram(SERVER, vec![], &ours());
    assert_eq!(agent.question(&report, first, &servers, &ours()), None);
}
