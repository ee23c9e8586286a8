// SPDX-License-Identifier: Apache-2.0
//! Agents beside members: what they are sent, and what waits for them.

use causeway_api::Moment;
use causeway_api::fleet::FleetTokenOrder;
use causeway_core::agent_report::{
    AgentOrders, Body, BookParts, Boot, JoinAnswer, JoinAttempt, JoinRefusal, JoinTicket, Question,
    ReportKeys, ReportSecrets, ReportSender,
};

use causeway_core::cookie::{CookieKey, KeyEpoch};
use causeway_service::config::KeysFile;
use causeway_service::seal::SealKeys;

use super::tests::{QUARANTINE_NS, World, keys_text};
use super::*;
use crate::engine::EngineError;

const HEARS: &str = "agents = true\n[agent_reports]\nlisten = \"10.0.0.254:9472\"\n";

/// A server's agent, as far as balancers see it.
struct Agent {
    server: IpAddr,
    keys: ReportKeys,
    sender: ReportSender,
    parts: BookParts,
    heard: Option<AgentOrders>,
}

impl Agent {
    fn new(last: u8) -> Self {
        let server = IpAddr::from([10, 0, 0, last]);
        let root = ["8", "9"].map(|digit| digit.repeat(32).parse().ok());
        let root = ReportKeys {
            current: KeyEpoch::Zero,
            secrets: ReportSecrets::Root(root),
        };
        let boot = Boot {
            time_s: 1,
            id: u32::from(last),
        };
        Self {
            server,
            keys: root.for_server(&[server]),
            sender: ReportSender::new(boot, 0),
            parts: BookParts::default(),
            heard: None,
        }
    }

    /// Reports its position to a member, and takes the answer.
    fn talk(&mut self, world: &World, at: usize) {
        let reports = world.members[at].engine().reports().clone();
        let mut response = None;
        for _ in 0..3 {
            let follows = self.heard.as_ref().map(AgentOrders::follows);
            let mut bodies = vec![Body::Follows(follows)];
            bodies.extend(response.take().map(Body::Response));
            let datagram = self.sender.datagram(self.server, bodies, &self.keys);
            let received = match reports.receive(&datagram, 0) {
                Ok(received) => received,
                Err(challenge) => {
                    let member = ([10, 0, 0, 254], at as u16 + 1).into();
                    let own = [self.server];
                    let challenge = challenge.expect("a challenge");
                    let asked = self.sender.question(&challenge, member, &own, &self.keys);
                    let Some(Question::Challenge(_, number)) = asked else {
                        panic!("{asked:?}");
                    };
                    response = Some(number);
                    continue;
                }
            };
            for told in reports.tell(&received) {
                let part = self.sender.book_part(&told, &[self.server], &self.keys);
                let (server, part) = part.expect("a part of the book");
                let whole = self.parts.take(server, part, &self.keys);
                self.heard = whole.or(self.heard.take());
            }
        }
    }

    /// Its id, the key that it issues, and those that it accepts.
    fn has(&self) -> (Option<u16>, KeyNumber, Vec<KeyNumber>) {
        let heard = self.heard.as_ref().expect("it has heard");
        let mut ids = heard.services.values();
        let keys = heard.keys.keys().copied().collect();
        (ids.next().map(|(id, _)| *id), heard.issued, keys)
    }
}

fn waits_for_agents(world: &World) -> Vec<String> {
    let waiting = world.members[0].view().waiting;
    waiting.into_iter().flat_map(|wait| wait.agents).collect()
}

#[test]
fn a_key_is_issued_once_every_agent_accepts_it() {
    let mut world = World::of(2, &[1, 2], HEARS, false);
    let mut agents = [Agent::new(1), Agent::new(2)];
    agents.iter_mut().for_each(|agent| agent.talk(&world, 0));
    assert_eq!(agents[0].has().1, 2);
    assert_eq!(
        agents[0].has().0,
        world.members[1].routes().get(&1).copied()
    );
    for at in 0..2 {
        world.members[at].has_keys(&keys_text(2, true, [Some('5'), Some('6')]));
        world.reload(at, &[1, 2]);
    }
    world.settle();
    assert_eq!(world.members[0].view().key_other, Some(3), "accepted");
    assert_eq!(world.members[0].view().key_issued, 2);
    assert_eq!(waits_for_agents(&world), ["10.0.0.1", "10.0.0.2"]);
    // One of them lags, and holds it back for all.
    agents[0].talk(&world, 1);
    world.settle();
    assert_eq!(agents[0].has().2, [2, 3]);
    let view = world.members[0].view();
    assert_eq!((view.key_issued, view.key_other), (2, Some(3)));
    agents[0].talk(&world, 0);
    world.settle();
    assert_eq!(waits_for_agents(&world), ["10.0.0.2"]);
    // The second balancer alone gets its reports.
    agents[1].talk(&world, 1);
    world.settle();
    assert_eq!(world.members[0].view().key_issued, 3);
    agents[1].talk(&world, 0);
    assert_eq!(agents[1].has().1, 3);
    let key: CookieKey = "6".repeat(32).parse().unwrap();
    assert_eq!(agents[1].heard.as_ref().unwrap().keys.get(&3), Some(&key));
}

#[test]
fn a_real_is_picked_once_its_agent_has_the_id() {
    let mut world = World::of(2, &[1], HEARS, false);
    world.reload(0, &[1, 2]);
    world.settle();
    for member in &world.members {
        assert_eq!(member.routes().len(), 2);
        assert_eq!(member.picks(), [1]);
    }
    assert_eq!(waits_for_agents(&world), ["10.0.0.2"]);
    let mut agent = Agent::new(2);
    agent.talk(&world, 1);
    world.settle();
    let mut stranger = Agent::new(9);
    stranger.talk(&world, 0);
    assert_eq!(stranger.has(), (None, 2, Vec::new()), "it is not a real");
    assert_eq!(world.members[0].picks(), [1, 2]);
    assert_eq!(agent.has().0, world.members[0].routes().get(&2).copied());
    assert_eq!(waits_for_agents(&world), Vec::<String>::new());
    // A real that is removed writes its cookies until its id has rested.
    world.reload(0, &[1]);
    world.settle();
    agent.talk(&world, 0);
    assert!(agent.has().0.is_some());
}

#[test]
fn a_server_is_not_believed_beyond_the_book_nor_with_another_key() {
    let mut world = World::of(1, &[1], HEARS, false);
    let mut agent = Agent::new(1);
    agent.talk(&world, 0);
    let book = world.members[0].view().book;
    let honest = agent.heard.clone().unwrap();
    let mut ahead = honest.clone();
    ahead.position.revision += 1000;
    agent.heard = Some(ahead);
    agent.talk(&world, 0);
    world.settle();
    assert_eq!(world.members[0].view().book, book, "nothing is put back");
    assert_eq!(world.members[0].view().agents[0].acknowledged, None);
    let mut other = honest.clone();
    other.keys.insert(2, CookieKey::from_bytes([1; 16]));
    let follows = Some(other.follows());
    let datagram = vec![Body::Follows(follows)];
    let datagram = agent.sender.datagram(agent.server, datagram, &agent.keys);
    let reports = world.members[0].engine().reports().clone();
    let received = reports.receive(&datagram, 0).unwrap();
    assert!(!reports.tell(&received).is_empty(), "it is told again");
    world.settle();
    assert_eq!(world.members[0].view().agents[0].acknowledged, None);
    agent.heard = Some(honest);
    agent.talk(&world, 0);
    world.settle();
    assert_eq!(world.members[0].view().agents[0].acknowledged, book);
}

#[test]
fn an_agent_is_told_anew_once_a_secret_of_reports_is_another() {
    let world = World::of(1, &[1], HEARS, false);
    let mut agent = Agent::new(1);
    agent.talk(&world, 0);
    let reports = world.members[0].engine().reports().clone();
    let mut told = || {
        let follows = agent.heard.as_ref().map(AgentOrders::follows);
        let datagram = vec![Body::Follows(follows)];
        let datagram = agent.sender.datagram(agent.server, datagram, &agent.keys);
        reports.tell(&reports.receive(&datagram, 0).unwrap()).len()
    };
    assert_eq!((told(), told()), (0, 0));
    let root = ["8", "7"].map(|digit| digit.repeat(32).parse().ok());
    reports.set_keys(Some(ReportKeys {
        current: KeyEpoch::Zero,
        secrets: ReportSecrets::Root(root),
    }));
    assert_ne!(told(), 0);
}

#[test]
fn agents_may_be_waited_for_later_than_the_fleet_is_founded() {
    let mut world = World::of(1, &[1], "", false);
    world.extra = HEARS;
    world.start(0, &[1]);
    world.settle();
    assert_eq!(world.members[0].picks(), [1], "it goes on");
    let view = world.members[0].view();
    assert_eq!(view.agents.len(), 1);
    assert_eq!(view.agents[0].acknowledged, None);
    // Without agents again, nothing waits for them.
    world.extra = "";
    world.start(0, &[1]);
    world.settle();
    assert_eq!(world.members[0].view().agents, []);
}

#[test]
fn an_old_file_that_names_agents_brings_nothing_back() {
    let more = "[[vip]]\nname = \"more\"\naddress = \"192.0.2.1\"\nport = 81\n\
                real = [{ address = \"10.0.0.3\" }]\n";
    let mut world = World::of(2, &[1, 2], more, false);
    world.extra = "";
    world.push(0, &[1], true).expect("a push");
    world.settle();
    // The file of the other has both still, and changes.
    world.extra = Box::leak(format!("{HEARS}{more}").into_boxed_str());
    world.start(1, &[1, 2]);
    world.settle();
    let view = world.members[0].view();
    assert_eq!(view.agents.len(), 1, "what is there is waited for");
    let in_use = view.ids.iter().filter(|id| id.phase != "resting");
    let in_use: Vec<_> = in_use.map(|id| id.real.as_str()).collect();
    assert_eq!(in_use, ["10.0.0.1"]);
    // What is added to it comes.
    world.reload(1, &[1, 2, 4]);
    world.settle();
    let view = world.members[0].view();
    let known = view.ids.iter().filter(|id| id.phase == "known");
    let known: Vec<_> = known.map(|id| id.real.as_str()).collect();
    assert_eq!(known, ["10.0.0.4"]);
}

/// A VIP over QUIC beside the other, with these configurations, each with a nonce of this length.
fn h3(configs: &[(u8, u8)]) -> &'static str {
    let config = |(number, nonce): &(u8, u8)| {
        format!(
            "[[vip.quic_cid]]\nconfig = {number}\nalgorithm = \"plain\"\nnonce_length = {nonce}\n"
        )
    };
    let configs: String = configs.iter().map(config).collect();
    let text = format!(
        "{HEARS}[[vip]]\nname = \"h3\"\naddress = \"192.0.2.1\"\nport = 443\nprotocol = \"udp\"\n\
         real = [{{ address = \"10.0.0.1\" }}]\n{configs}"
    );
    Box::leak(text.into_boxed_str())
}

impl Agent {
    /// The number of the configuration that its QUIC programs issue by, and how many balancers
    /// accept.
    fn issues(&self) -> (Option<u8>, usize) {
        let heard = self.heard.as_ref().expect("it has heard");
        let cids = heard.cids.values().next().expect("a VIP over QUIC");
        let issued = cids.configs.get(&cids.issued);
        (issued.map(|config| config.number()), cids.configs.len())
    }
}

fn whats(world: &World, at: usize) -> String {
    let waiting = world.members[at].view().waiting.into_iter();
    waiting.map(|wait| wait.what + "\n").collect()
}

#[test]
fn configurations_of_connection_ids_are_issued_once_all_accept_them() {
    let mut world = World::of(2, &[1], h3(&[(0, 8)]), false);
    let mut agent = Agent::new(1);
    agent.talk(&world, 0);
    assert_eq!(agent.issues(), (Some(0), 1));
    world.settle();
    world.extra = h3(&[(0, 8), (1, 8)]);
    world.reload(0, &[1]);
    world.settle();
    assert_eq!(world.members[0].quic_configs(), [0, 1]);
    assert_eq!(world.members[1].quic_configs(), [0]);
    let hold = world.members[1].view().hold.unwrap();
    let lacks = "configuration 1 of connection ids of vip h3";
    assert!(hold.contains(lacks), "{hold}");
    world.reload(1, &[1]);
    world.settle();
    assert_eq!(world.members[1].quic_configs(), [0, 1]);
    assert_eq!(waits_for_agents(&world), ["10.0.0.1"]);
    let view = world.members[0].view();
    assert_eq!(
        (view.quic_cids[0].issued, view.quic_cids[0].other),
        (Some(0), Some(1))
    );
    agent.talk(&world, 0);
    assert_eq!(agent.issues(), (Some(0), 2), "accepted");
    agent.talk(&world, 1);
    world.settle();
    agent.talk(&world, 0);
    assert_eq!(agent.issues(), (Some(1), 2));
    agent.talk(&world, 1);
    // The former one is retired once a file says so, and it has rested.
    world.settle();
    world.pass(2 * QUARANTINE_NS);
    world.settle();
    assert_eq!(world.members[0].quic_configs(), [0, 1]);
    world.extra = h3(&[(1, 8)]);
    world.reload(0, &[1]);
    world.settle();
    for member in &world.members {
        assert_eq!(member.quic_configs(), [1]);
        assert!(member.view().waiting.is_empty(), "{:?}", member.view());
    }
}

#[test]
fn a_restart_keeps_the_former_configuration_until_it_has_rested() {
    let mut world = World::of(1, &[1], h3(&[(0, 8)]), false);
    let mut agent = Agent::new(1);
    agent.talk(&world, 0);
    world.settle();
    world.extra = h3(&[(0, 8), (1, 8)]);
    world.reload(0, &[1]);
    world.settle();
    agent.talk(&world, 0);
    agent.talk(&world, 0);
    world.settle();
    let phases = |world: &World| {
        let cids = &world.members[0].view().quic_cids[0];
        (cids.issued, cids.other)
    };
    assert_eq!(phases(&world), (Some(1), Some(0)));
    world.extra = h3(&[(1, 8)]);
    world.start(0, &[1]);
    assert_eq!(world.members[0].quic_configs(), [0, 1]);
    world.settle();
    let view = world.members[0].view();
    assert!(view.in_service && view.hold.is_none(), "{view:?}");
    assert_eq!(phases(&world), (Some(1), Some(0)), "it rests");
    for _ in 0..2 {
        agent.talk(&world, 0);
        world.settle();
    }
    world.pass(2 * QUARANTINE_NS);
    world.settle();
    assert_eq!(phases(&world), (Some(1), None));
    assert_eq!(world.members[0].quic_configs(), [1]);
}

#[test]
fn a_configuration_needs_a_number_that_is_not_in_use() {
    let mut world = World::of(1, &[1], h3(&[(0, 8)]), false);
    world.extra = h3(&[(0, 9)]);
    world.reload(0, &[1]);
    world.settle();
    let expected = "configuration 0 of connection ids of 192.0.2.1:443/udp is accepted, once files give it another number: 0 is in use";
    assert!(whats(&world, 0).contains(expected), "{}", whats(&world, 0));
    assert_eq!(world.members[0].quic_configs(), [0]);
    assert!(world.members[0].view().quic_cids[0].other.is_none());
}

#[test]
fn a_fleet_is_founded_with_the_configurations_that_run() {
    let mut world = World::of(1, &[1], h3(&[(2, 8), (3, 8)]), false);
    let mut agent = Agent::new(1);
    agent.talk(&world, 0);
    assert_eq!(agent.issues(), (Some(3), 1), "the last one of the file");
    world.settle();
    assert_eq!(world.members[0].quic_configs(), [2, 3]);
    assert!(world.members[0].view().quic_cids[0].by_files);
    agent.talk(&world, 0);
    world.extra = h3(&[(3, 8)]);
    world.reload(0, &[1]);
    world.settle();
    world.pass(2 * QUARANTINE_NS);
    world.settle();
    assert_eq!(world.members[0].quic_configs(), [3]);
    assert!(!world.members[0].view().quic_cids[0].by_files);
}

#[test]
fn a_new_vip_s_reals_are_picked_once_their_agents_have_what_to_issue_by() {
    let mut world = World::of(1, &[1], HEARS, false);
    let mut agent = Agent::new(1);
    agent.talk(&world, 0);
    world.settle();
    world.extra = h3(&[(0, 8)]);
    world.reload(0, &[1]);
    world.settle();
    let live = |world: &World| {
        let ids = world.members[0].view().ids;
        ids.iter().filter(|id| id.phase == "live").count()
    };
    assert_eq!(live(&world), 1, "that of the other VIP");
    for _ in 0..3 {
        agent.talk(&world, 0);
        world.settle();
    }
    assert_eq!(agent.issues(), (Some(0), 1));
    assert_eq!(live(&world), 2);
}

/// The agent of a server without a keys file, which shows a token.
struct Newcomer {
    ticket: JoinTicket,
    own: Option<SealKeys>,
    attempt: JoinAttempt,
}

const NOW: Moment = Moment {
    monotonic_ns: 1 << 40,
    realtime_ns: 1_700_000_000_000_000_000,
};

impl Newcomer {
    fn new(text: &str, id: u32) -> Self {
        let own = SealKeys::new().expect("random numbers");
        let ticket: JoinTicket = text.parse().expect("a token");
        let boot = Boot { time_s: 1, id };
        let attempt = JoinAttempt::new(ticket, own.public(), server(9), boot);
        Self {
            ticket,
            own: Some(own),
            attempt,
        }
    }

    /// Asks a member until it is not challenged any more.
    fn ask(&mut self, world: &World, at: usize) -> Option<JoinAnswer> {
        let reports = world.members[at].engine().reports().clone();
        for _ in 0..3 {
            let answer = reports.answer_join(&self.attempt.ask(), server(9), NOW)?;
            match self.attempt.handle(&answer) {
                Some(JoinAnswer::Challenged) => {}
                other => return other,
            }
        }
        panic!("it is challenged for ever");
    }

    fn keys(&mut self, answer: Option<JoinAnswer>) -> KeysFile {
        let Some(JoinAnswer::Given(key, sealed)) = answer else {
            panic!("{answer:?}");
        };
        let own = self.own.take().expect("it opens one");
        let text = own.open(key, self.ticket.secret().salt(), &sealed);
        text.expect("it is for this one")
            .parse()
            .expect("a keys file")
    }
}

fn server(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn token(world: &mut World, at: usize) -> Result<String, EngineError> {
    let order = FleetTokenOrder {
        servers: vec![server(9)],
        lifetime_s: 3600,
    };
    let (fleet, engine) = world.members[at].daemon.as_mut().expect("a daemon");
    fleet.token(&*engine, &order, NOW)
}

#[test]
fn a_token_of_one_member_is_good_at_every_member_and_once() {
    let mut world = World::of(2, &[1], HEARS, false);
    let text = token(&mut world, 0).expect("a token");
    let (mut one, mut two) = (Newcomer::new(&text, 1), Newcomer::new(&text, 2));
    assert_eq!(one.ask(&world, 1), None, "this member has not read of it");
    world.settle();
    assert_eq!(world.members[1].view().tokens.len(), 1);
    // Two show it at once, each to another member.
    assert_eq!(one.ask(&world, 1), None);
    assert_eq!(two.ask(&world, 0), None);
    world.settle();
    let answers = [one.ask(&world, 0), two.ask(&world, 1)];
    let refused = Some(JoinAnswer::Refused(JoinRefusal::Used));
    let is_refused = answers.iter().filter(|answer| **answer == refused);
    assert_eq!(is_refused.count(), 1, "{answers:?}");
    let [first, second] = answers;
    let mut winner = match first == refused {
        true => (two, second),
        false => (one, first),
    };
    // The answer may be lost, and another member asked.
    assert!(matches!(
        winner.0.ask(&world, 1),
        Some(JoinAnswer::Given(..))
    ));
    let file = winner.0.keys(winner.1);
    let agent = Agent::new(9);
    assert_eq!(
        file.reports.as_ref(),
        Some(&agent.keys),
        "its own secrets alone"
    );
    assert!(world.members[0].view().tokens[0].is_used);
    let given: u64 = (0..2)
        .map(|at| world.members[at].engine().reports().join_counts())
        .map(|counts| counts["given"])
        .sum();
    assert_eq!(given, 2);
}

#[test]
fn nothing_is_given_without_the_store_and_no_token_outlives_its_loss() {
    let mut world = World::of(1, &[1], HEARS, false);
    let text = token(&mut world, 0).expect("a token");
    let mut agent = Newcomer::new(&text, 1);
    // The store is not asked meanwhile.
    assert_eq!(agent.ask(&world, 0), None);
    assert_eq!(agent.ask(&world, 0), None);
    world.wipe();
    world.settle();
    assert_eq!(world.members[0].view().tokens, []);
    assert_eq!(agent.ask(&world, 0), None);
    let counts = world.members[0].engine().reports().join_counts();
    assert_eq!((counts["given"], counts["unknown"]), (0, 1));
}

#[test]
fn a_token_is_refused_that_could_not_be_used() {
    let mut world = World::of(1, &[1], "", false);
    let error = token(&mut world, 0).expect_err("no reports").to_string();
    assert!(error.contains("[agent_reports]"), "{error}");
    world.extra = HEARS;
    world.start(0, &[1]);
    world.settle();
    let (fleet, engine) = world.members[0].daemon.as_mut().expect("a daemon");
    for (last, lifetime_s) in [(0, 3600), (1, 1), (1, 10_000_000), (60, 3600)] {
        let order = FleetTokenOrder {
            servers: (0..last).map(server).collect(),
            lifetime_s,
        };
        let refused = fleet.token(&*engine, &order, NOW);
        assert!(
            matches!(refused, Err(EngineError::Invalid(_))),
            "{refused:?}"
        );
    }
    assert!(token(&mut world, 0).is_ok());
}
