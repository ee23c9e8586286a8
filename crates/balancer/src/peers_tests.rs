// SPDX-License-Identifier: Apache-2.0
//! Engines of several balancers whose datagrams arrive at once, on one clock of the test's own.

use std::collections::HashSet;
use std::io::Write as _;

use causeway_api::balancer::RealChange;
use causeway_core::health::HealthState;
use causeway_dataplane::RealId;

use super::tests::{Bench, MS, WEB};

/// Each interval's latencies by member and real; `None`: no requests.
type Latencies<'a> = &'a dyn Fn(usize) -> [Option<f64>; 4];

const IDLE: Latencies<'_> = &|_| [None; 4];

struct Fleet {
    benches: Vec<Bench>,
    /// Members whose datagrams reach no other one.
    cut: HashSet<usize>,
}

impl Fleet {
    fn of(members: usize, vip: &str) -> Self {
        let digits = "7".repeat(32);
        let mut keys = tempfile::NamedTempFile::new().unwrap();
        write!(
            keys,
            "current = 0\nkey0 = \"{digits}\"\nreports0 = \"{digits}\"\n"
        )
        .unwrap();
        let address = |n: usize| format!("\"10.8.0.{}:9473\"", n + 1);
        let all: Vec<String> = (0..members).map(address).collect();
        let bench = |own: usize| {
            Bench::new(&format!(
                "[peers]\nlisten = {}\nkeys = \"{}\"\nmembers = [{}]\n{vip}",
                address(own),
                keys.path().display(),
                all.join(", ")
            ))
        };
        let mut fleet = Self {
            benches: (0..members).map(bench).collect(),
            cut: HashSet::new(),
        };
        fleet.run(12, IDLE, &[]);
        fleet
    }

    /// Lets intervals pass; probes fail of these members and reals. Gives who was probed by whom.
    fn run(
        &mut self,
        intervals: usize,
        latencies: Latencies<'_>,
        failing: &[(usize, RealId)],
    ) -> HashSet<(usize, RealId)> {
        let mut probed = HashSet::new();
        for _ in 0..intervals {
            for (own, bench) in self.benches.iter_mut().enumerate() {
                for (real, latency_ms) in (0..).zip(latencies(own)) {
                    if let Some(latency_ms) = latency_ms {
                        let samples = if latency_ms > 50.0 { 10 } else { 50 };
                        bench.plane.state().respond(real, latency_ms, samples);
                    }
                }
                bench.now.monotonic_ns += 100 * MS;
                bench.now.realtime_ns += 100 * MS;
                let now_ns = bench.now.monotonic_ns;
                let (orders, _) = bench.engine.poll_health(now_ns);
                for order in orders {
                    probed.insert((own, order.real));
                    let outcome = match failing.contains(&(own, order.real)) {
                        true => Err("refused".to_owned()),
                        false => Ok("connected".to_owned()),
                    };
                    let engine = &mut bench.engine;
                    engine.health_outcome(now_ns, order.real, order.number, outcome);
                }
                bench.engine.tick(bench.now).unwrap();
            }
            self.exchange();
        }
        probed
    }

    fn exchange(&self) {
        for from in 0..self.benches.len() {
            let bench = &self.benches[from];
            let link = bench.engine.peers().link().expect("peers").clone();
            let round = link.exchange().transmits(bench.now.monotonic_ns);
            for (to, datagram) in round {
                self.deliver(from, to, &datagram);
            }
        }
    }

    fn deliver(&self, from: usize, to: std::net::SocketAddr, datagram: &[u8]) {
        let text = to.ip().to_string();
        let to: usize = text.rsplit('.').next().unwrap().parse().unwrap();
        let to = to - 1;
        if self.cut.contains(&from) || self.cut.contains(&to) {
            return;
        }
        let bench = &self.benches[to];
        let link = bench.engine.peers().link().expect("peers").clone();
        let (_, answer) = link
            .exchange()
            .handle_datagram(datagram, bench.now.monotonic_ns);
        if let Some((back, answer)) = answer {
            self.deliver(to, back, &answer);
        }
    }

    fn shares(&self, own: usize) -> [f64; 4] {
        [0, 1, 2, 3].map(|real| self.benches[own].plane.state().share(0, real))
    }

    fn states(&self, own: usize) -> [HealthState; 4] {
        [0, 1, 2, 3].map(|real| self.benches[own].engine.health(real).unwrap())
    }
}

#[test]
fn a_balancer_without_a_client_steers_by_what_the_others_see() {
    let mut fleet = Fleet::of(3, WEB);
    let seen: Latencies<'_> = &|own| match own {
        0 => [Some(5.0), Some(5.0), Some(5.0), Some(100.0)],
        1 => [Some(5.0), Some(5.0), None, None],
        _ => [None; 4],
    };
    fleet.run(40, seen, &[]);
    let first = fleet.shares(0);
    assert!(first[3] < 0.05, "{first:?}");
    for own in 1..3 {
        for (found, first) in fleet.shares(own).iter().zip(first) {
            assert!((found - first).abs() < 0.02, "{own}: {found} {first}");
        }
    }
    let now_ns = fleet.benches[2].now.monotonic_ns;
    let view = fleet.benches[2].engine.peers_view(now_ns);
    assert_eq!(view.own.as_deref(), Some("10.8.0.3:9473"));
    for member in &view.members {
        assert!(
            member.live && member.reals == 4 && member.received > 30,
            "{member:?}"
        );
        assert!(member.weights_apart.unwrap() < 0.1, "{member:?}");
    }
    // One that is cut off goes on with the weights that it has.
    fleet.cut.insert(2);
    fleet.run(15, IDLE, &[]);
    let now_ns = fleet.benches[2].now.monotonic_ns;
    let view = fleet.benches[2].engine.peers_view(now_ns);
    assert!(view.members.iter().all(|of| !of.live && of.reals == 0));
    assert!(fleet.shares(2)[3] < 0.05);
}

const CHECK: &str = "health = { interval = \"1s\", timeout = \"500ms\", rise = 2, fall = 2 }";

fn checked() -> String {
    WEB.replace(
        "scheduler = \"latency\"",
        &format!("scheduler = \"maglev\"\n{CHECK}"),
    )
}

#[test]
fn three_members_probe_a_real_and_all_go_by_what_they_find() {
    let mut fleet = Fleet::of(5, &checked());
    fleet.run(30, IDLE, &[]);
    let probed = fleet.run(10, IDLE, &[]);
    for real in 0..4 {
        let by = probed.iter().filter(|(_, of)| *of == real).count();
        assert_eq!(by, 3, "{probed:?}");
    }
    for own in 0..5 {
        assert_eq!(fleet.states(own), [HealthState::Up; 4]);
    }
    let everyone: Vec<_> = (0..5).map(|own| (own, 1)).collect();
    fleet.run(30, IDLE, &everyone);
    for own in 0..5 {
        assert_eq!(fleet.states(own)[1], HealthState::Down, "{own}");
        assert_eq!(fleet.shares(own)[1], 0.0);
    }
    fleet.run(30, IDLE, &[]);
    for own in 0..5 {
        assert_eq!(fleet.states(own), [HealthState::Up; 4]);
    }
}

/// One whose path to a real is broken takes the real from its own clients, and from no other member's.
#[test]
fn a_broken_path_is_its_members_own_fault() {
    let mut fleet = Fleet::of(5, &checked());
    let probed = fleet.run(30, IDLE, &[]);
    let broken = probed.iter().find(|(_, real)| *real == 2).unwrap().0;
    let all: Vec<_> = (0..4).map(|real| (broken, real)).collect();
    fleet.run(40, IDLE, &all);
    for own in (0..5).filter(|own| *own != broken) {
        assert_eq!(fleet.states(own), [HealthState::Up; 4], "{own}");
    }
    assert_eq!(fleet.states(broken)[2], HealthState::Down);
    let votes = fleet.benches[broken].engine.peers().votes(2).unwrap();
    assert_eq!((votes.up, votes.down, votes.voters), (2, 0, 3));
    assert!(votes.probed_here);
}

#[test]
fn a_member_that_is_left_alone_probes_all_and_decides_alone() {
    let mut fleet = Fleet::of(5, &checked());
    fleet.run(30, IDLE, &[]);
    fleet.cut.insert(0);
    fleet.run(12, IDLE, &[]);
    let probed = fleet.run(10, IDLE, &[(0, 3)]);
    for real in 0..4 {
        assert!(probed.contains(&(0, real)));
        let by = probed.iter().filter(|(own, of)| *own > 0 && *of == real);
        assert_eq!(by.count(), 3);
    }
    fleet.run(20, IDLE, &[(0, 3)]);
    assert_eq!(fleet.states(0)[3], HealthState::Down);
    for own in 1..5 {
        assert_eq!(fleet.states(own), [HealthState::Up; 4]);
    }
}

/// Their votes go with them, what they have found does not: one that is down would get connections, and
/// one that is up would not count, until that is found once more.
#[test]
fn what_was_found_holds_when_those_that_found_it_fall_silent() {
    use HealthState::{Down, Up};
    let everyone: Vec<_> = (0..7).map(|own| (own, 1)).collect();
    // Of those that probe it all, some or none are cut off, and one that does not.
    for probers_cut in 0..=3 {
        let mut fleet = Fleet::of(7, &checked());
        fleet.run(30, IDLE, &[]);
        let probed = fleet.run(10, IDLE, &[]);
        let probes = |own: &usize| probed.contains(&(*own, 1));
        fleet.run(30, IDLE, &everyone);
        let other = (0..7).find(|own| !probes(own)).unwrap();
        fleet.cut = (0..7).filter(probes).take(probers_cut).collect();
        fleet.cut.insert(other);
        for interval in 0..60 {
            fleet.run(1, IDLE, &everyone);
            for own in 0..7 {
                let found = fleet.states(own);
                let when = format!("{own}, {interval}, {probers_cut} cut");
                assert_eq!(found, [Up, Down, Up, Up], "{when}");
            }
        }
        // It is found up by those that are left alone, too.
        fleet.run(40, IDLE, &[]);
        for own in 0..7 {
            assert_eq!(fleet.states(own), [Up; 4], "{own}, {probers_cut} cut");
        }
        fleet.cut.clear();
        fleet.run(40, IDLE, &[]);
        for own in 0..7 {
            assert_eq!(fleet.states(own), [Up; 4], "{own}");
        }
    }
}

#[test]
fn what_was_found_before_a_maintenance_says_nothing_behind_it() {
    let mut fleet = Fleet::of(5, &checked());
    fleet.run(30, IDLE, &[]);
    for maintenance in [true, false] {
        let change = RealChange {
            maintenance: Some(maintenance),
            ..RealChange::default()
        };
        for bench in &mut fleet.benches {
            let engine = &mut bench.engine;
            engine.change_real("web", "10.0.0.2", &change, 1).unwrap();
        }
        fleet.run(if maintenance { 20 } else { 1 }, IDLE, &[]);
    }
    for own in 0..5 {
        assert_eq!(fleet.states(own)[1], HealthState::Unknown, "{own}");
    }
}

/// A member that counts its own connections alone would send all of them to the server that the others
/// have filled.
#[test]
fn open_connections_of_all_are_a_reals_load() {
    let vip = WEB.replace("\"latency\"", "\"least-loaded\"\nload = \"connections\"");
    let mut fleet = Fleet::of(2, &vip);
    for real in 0..3 {
        let mut state = fleet.benches[0].plane.state();
        state.totals.entry(real).or_default().conns_opened += 40;
    }
    fleet.run(3, IDLE, &[]);
    let loads: Vec<_> = fleet.benches[1].engine.pools()[0]
        .members()
        .map(|(_, member)| member.load)
        .collect();
    assert_eq!(loads, [Some(40.0), Some(40.0), Some(40.0), Some(0.0)]);
    assert!(fleet.shares(1)[3] > 0.9, "{:?}", fleet.shares(1));
}

#[test]
fn a_real_that_has_the_id_of_one_that_is_gone_has_no_votes() {
    let mut fleet = Fleet::of(3, &checked());
    let everyone: Vec<_> = (0..3).map(|own| (own, 3)).collect();
    fleet.run(30, IDLE, &everyone);
    assert_eq!(fleet.states(0)[3], HealthState::Down);
    fleet.benches[0].give_last_id_to_another();
    let engine = &fleet.benches[0].engine;
    assert!(engine.peers().votes(3).is_none());
    assert_eq!(engine.health(3), None, "not down, as its predecessor");
}

/// What an operator tries on one of them is to move no client on the others.
#[test]
fn weights_of_a_balancer_that_only_observes_are_no_other_s() {
    let mut fleet = Fleet::of(2, WEB);
    let observes = WEB.replace("scheduler = ", "control = \"observe\"\nscheduler = ");
    let observes = observes.replace("\"latency\"", "\"maglev\"");
    let observed = Fleet::of(2, &observes);
    let [acting, _] = &fleet.benches[..] else {
        panic!("two");
    };
    assert!(
        acting.engine.pools()[0]
            .relative_weights()
            .iter()
            .all(Option::is_some)
    );
    let observing = observed.benches.into_iter().nth(1).unwrap();
    assert_eq!(observing.engine.pools()[0].relative_weights(), [None; 4]);
    // One that acts, beside one that observes.
    fleet.benches[1] = observing;
    fleet.benches[1].now = fleet.benches[0].now;
    let slow: Latencies<'_> = &|_| [Some(5.0), Some(5.0), Some(5.0), Some(100.0)];
    fleet.run(40, slow, &[]);
    let view = |own: usize| {
        let now_ns = fleet.benches[own].now.monotonic_ns;
        fleet.benches[own].engine.peers_view(now_ns)
    };
    assert!(view(0).members[0].live, "{:?}", view(0));
    assert_eq!(view(0).members[0].weights_apart, None);
    assert!(fleet.shares(0)[3] < 0.05, "{:?}", fleet.shares(0));
}
