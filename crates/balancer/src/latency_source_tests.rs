// SPDX-License-Identifier: Apache-2.0
//! What a controller goes by, on a data plane in memory: what servers add to the path, whole
//! responses, or what agents report.

use std::io::Write as _;
use std::net::IpAddr;

use causeway_core::agent_report::{AgentReport, Body, Boot, ServerTimes, ServiceLatency};

use super::explain;
use super::tests::{Bench, MS, WEB, config, report_keys};

const KEY: &str = "77777777777777777777777777777777";
const REALS: [&str; 4] = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"];

/// A balancer that is to go by what agents report, and the seconds of agents.
struct Told {
    bench: Bench,
    second: u64,
    /// What servers took, as agents say; `None`: they do not.
    server: Option<fn(f64) -> ServerTimes>,
}

impl Told {
    fn new() -> Self {
        Self::going_by("client")
    }

    fn going_by(latency: &str) -> Self {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write!(
            file,
            "current = 0\nkey0 = \"{KEY}\"\nreports0 = \"{KEY}\"\n"
        )
        .unwrap();
        let clients = format!(
            "[agent_reports]\nlisten = \"127.0.0.1:9472\"\nkeys = \"{}\"\n",
            file.path().display()
        );
        let of_vip = format!("\"latency\"\nlatency = \"{latency}\"");
        let vip = WEB.replace("\"latency\"", &of_vip);
        Self {
            bench: Bench::new(&(clients + &vip)),
            second: 1,
            server: None,
        }
    }

    fn report(&self, real: &str, latency_s: f64) -> AgentReport {
        AgentReport {
            sender: real.parse().unwrap(),
            boot: Boot { time_s: 1, id: 1 },
            sequence: self.second,
            bodies: vec![Body::Latency(vec![ServiceLatency {
                address: Some(IpAddr::from([192, 0, 2, 1])),
                port: 80,
                transactions_milli: 200_000,
                response_ns: (200.0 * latency_s * 1e9) as u64,
                server: self.server.map(|of| of(latency_s)),
            }])],
        }
    }

    /// Seconds in which servers answer within 5 ms, and clients wait this long; `None`: the
    /// agent says nothing.
    fn run(&mut self, seconds: usize, latencies_s: [Option<f64>; 4]) {
        for _ in 0..seconds {
            self.second += 1;
            for (real, latency_s) in REALS.iter().zip(latencies_s) {
                if let Some(latency_s) = latency_s {
                    let report = self.report(real, latency_s);
                    self.bench.hear(&report, &report_keys(KEY));
                }
            }
            self.bench.run(10, &[5.0; 4]);
        }
    }

    /// A second in which agents say this, and each real gets so many requests in each interval.
    fn second(&mut self, server: fn(f64) -> ServerTimes, requests: u64) {
        self.server = Some(server);
        self.second += 1;
        for real in REALS {
            let report = self.report(real, 0.05);
            self.bench.hear(&report, &report_keys(KEY));
        }
        self.bench.run_at(10, &[5.0; 4], |_| requests);
    }

    fn share(&self, real: u32) -> f64 {
        self.bench.plane.state().share(0, real)
    }

    /// Word and figure of the last decision about the first real, fallbacks so far.
    fn last(&self) -> (String, f64, u64) {
        let explained = explain::explain(&self.bench.engine, "web", REALS[0]).unwrap();
        let last = explained.decisions.last().unwrap();
        (
            last.latency_kind.clone(),
            last.latency_us.unwrap_or(0.0) / 1e3,
            explained.latency_fallbacks,
        )
    }
}

#[test]
fn a_real_that_drops_syns_loses_weight_although_it_answers_fast() {
    let mut told = Told::new();
    told.run(3, [Some(0.01); 4]);
    assert!((told.share(0) - 0.25).abs() < 0.01, "{}", told.share(0));
    told.run(5, [Some(1.2), Some(0.01), Some(0.01), Some(0.01)]);
    assert!(told.share(0) < 0.1, "{}", told.share(0));
    let (kind, latency_ms, fallbacks) = told.last();
    assert_eq!((kind.as_str(), fallbacks), ("client", 0));
    assert!((latency_ms - 1200.0).abs() < 60.0, "{latency_ms}");
    // The same servers by their answers alone: nothing is wrong with them.
    let mut alone = Bench::new(WEB);
    alone.run(80, &[5.0; 4]);
    assert!((alone.plane.state().share(0, 0) - 0.25).abs() < 0.01);
}

/// 150 transactions that took a tenth of what clients waited, and 50 that overlapped.
fn mostly_timed(latency_s: f64) -> ServerTimes {
    ServerTimes {
        timed_milli: 150_000,
        sum_ns: (150.0 * latency_s * 1e8) as u64,
        overlapping_milli: 50_000,
    }
}

/// As many transactions, of 5 ms each, and as many that overlapped.
fn transactions(timed: u64, overlapping: u64) -> ServerTimes {
    ServerTimes {
        timed_milli: timed * 1_000,
        sum_ns: timed * 5 * MS,
        overlapping_milli: overlapping * 1_000,
    }
}

#[test]
fn a_server_that_its_agent_sees_turn_slow_loses_weight_whatever_packets_show() {
    let mut told = Told::going_by("agent");
    told.server = Some(mostly_timed);
    told.run(3, [Some(0.05); 4]);
    assert!((told.share(0) - 0.25).abs() < 0.01, "{}", told.share(0));
    told.run(5, [Some(0.5), Some(0.05), Some(0.05), Some(0.05)]);
    assert!(told.share(0) < 0.1, "{}", told.share(0));
    let (kind, latency_ms, fallbacks) = told.last();
    assert_eq!((kind.as_str(), fallbacks), ("agent", 0));
    assert!((latency_ms - 50.0).abs() < 2.5, "{latency_ms}");
}

#[test]
fn agents_that_do_not_time_or_cannot_are_not_gone_by() {
    // Of the version before.
    let mut told = Told::going_by("agent");
    told.run(5, [Some(0.5), Some(0.05), Some(0.05), Some(0.05)]);
    let (kind, _, fallbacks) = told.last();
    assert_eq!((kind.as_str(), fallbacks > 0), ("server", true));
    assert!((told.share(0) - 0.25).abs() < 0.01, "{}", told.share(0));
    // All clients ask for several things at a time, and then hardly any.
    told.server = Some(|_| ServerTimes {
        overlapping_milli: 200_000,
        ..ServerTimes::default()
    });
    told.run(5, [Some(0.5), Some(0.05), Some(0.05), Some(0.05)]);
    assert_eq!(told.last().0, "server");
    assert!((told.share(0) - 0.25).abs() < 0.01, "{}", told.share(0));
    told.server = Some(mostly_timed);
    told.run(20, [Some(0.5), Some(0.05), Some(0.05), Some(0.05)]);
    assert_eq!(told.last().0, "agent");
    assert!(told.share(0) < 0.1, "{}", told.share(0));
}

/// An agent reports what its server answered after the end of a slot: the others' estimates are
/// newer than that.
#[test]
fn a_page_of_a_quiet_real_is_no_silence_before_its_agent_can_report_it() {
    let mut told = Told::going_by("agent");
    for _ in 0..3 {
        told.second(|_| transactions(200, 0), 20);
    }
    for _ in 0..2 {
        told.second(|_| transactions(0, 0), 0);
    }
    assert_eq!(told.last().0, "agent");
    told.bench.plane.state().respond(0, 5.0, 12);
    told.bench.run(3, &[]);
    told.second += 1;
    told.server = Some(|_| transactions(12, 0));
    let report = told.report(REALS[0], 0.05);
    told.bench.hear(&report, &report_keys(KEY));
    told.bench.run(7, &[]);
    let explained = explain::explain(&told.bench.engine, "web", REALS[0]).unwrap();
    let reasons: Vec<&str> = explained
        .decisions
        .iter()
        .map(|of| of.reason.as_str())
        .collect();
    assert!(!reasons.contains(&"suspect"), "{reasons:?}");
    assert!((told.share(0) - 0.25).abs() < 0.01, "{}", told.share(0));
}

/// Shares are of all transactions, also where an interval has but a part of one.
#[test]
fn a_few_transactions_a_second_are_shares_too() {
    let kind = |server: fn(f64) -> ServerTimes| {
        let mut told = Told::going_by("agent");
        for _ in 0..30 {
            told.second(server, 1);
        }
        told.last().0
    };
    assert_eq!(kind(|_| transactions(1, 4)), "agent");
    assert_eq!(kind(|_| transactions(0, 1)), "server");
}

/// Its clients ask for several things at a time, and the others' do not.
#[test]
fn a_real_that_its_agent_cannot_time_is_not_suspect() {
    let mut told = Told::going_by("agent");
    for _ in 0..40 {
        told.second(mostly_timed, 20);
        told.second += 1;
        told.server = Some(|_| transactions(0, 200));
        let report = told.report(REALS[0], 0.05);
        told.bench.hear(&report, &report_keys(KEY));
        told.bench.run_at(10, &[5.0; 4], |_| 20);
    }
    assert_eq!(told.last().0, "agent");
    assert!((told.share(0) - 0.25).abs() < 0.01, "{}", told.share(0));
}

#[test]
fn where_an_agent_is_silent_all_go_by_servers_and_it_shows() {
    let mut told = Told::new();
    told.run(5, [Some(1.2), Some(0.01), Some(0.01), Some(0.01)]);
    assert!(told.share(0) < 0.1);
    // A report holds for three seconds, then nothing of the clients' latency is left.
    told.run(2, [Some(1.2), Some(0.01), Some(0.01), None]);
    assert_eq!(told.last().0, "client");
    told.run(1, [Some(1.2), Some(0.01), Some(0.01), None]);
    let (kind, latency_ms, fallbacks) = told.last();
    assert_eq!((kind.as_str(), fallbacks > 0), ("server", true));
    assert!((latency_ms - 5.0).abs() < 0.5, "{latency_ms}");
    told.run(6, [Some(1.2), Some(0.01), Some(0.01), None]);
    assert!(told.share(0) > 0.2, "{}", told.share(0));
    // It speaks again.
    told.run(5, [Some(1.2), Some(0.01), Some(0.01), Some(0.01)]);
    assert_eq!(told.last().0, "client");
    assert!(told.share(0) < 0.1, "{}", told.share(0));
}

#[test]
fn a_silent_agent_of_a_real_that_gets_nothing_new_is_no_matter() {
    let mut told = Told::new();
    let drain = |vip: &mut crate::config::VipConfig| {
        vip.reals[3].drain = true;
        Ok(())
    };
    told.bench.engine.change_vip("web", drain).unwrap();
    told.run(5, [Some(1.2), Some(0.01), Some(0.01), None]);
    assert_eq!(told.last().0, "client");
    assert_eq!(told.last().2, 0);
}

#[test]
fn a_silent_agent_of_a_real_that_says_weight_0_is_no_matter() {
    let mut told = Told::new();
    let takes = "\"latency\"\nhealth = { probe = \"http\", to = \"real\", port = 30256, take_weight = true }";
    let health = config(&WEB.replace("\"latency\"", takes)).vips[0]
        .health
        .clone();
    let change = |vip: &mut crate::config::VipConfig| {
        vip.health = health.clone();
        Ok(())
    };
    told.bench.engine.change_vip("web", change).unwrap();
    told.run(3, [Some(0.01); 4]);
    told.bench.engine.handle_weight(3, Some(0));
    told.run(5, [Some(1.2), Some(0.01), Some(0.01), None]);
    assert_eq!((told.last().0.as_str(), told.last().2), ("client", 0));
    assert!(told.share(0) < 0.1, "{}", told.share(0));
}

#[test]
fn nobody_else_is_believed_and_nothing_twice() {
    let mut told = Told::new();
    told.run(2, [Some(0.01); 4]);
    let now_ns = told.bench.now.monotonic_ns;
    let reports = told.bench.engine.reports();
    let report = told.report(REALS[0], 9.0);
    for datagram in [
        report.encode(&report_keys(&"8".repeat(32))),
        b"no report".to_vec(),
        report.encode(&report_keys(KEY)),
    ] {
        assert_eq!(reports.receive(&datagram, now_ns), Err(None));
    }
    let mut counts = reports.counts();
    counts.retain(|_, count| *count > 0);
    let expected = [
        ("forged", 1),
        ("malformed", 1),
        ("replayed", 1),
        ("taken", 8),
        ("unproven", 4),
    ];
    let expected = expected.map(|(outcome, count)| (outcome.to_owned(), count));
    assert_eq!(counts, expected.into());
}

#[test]
fn a_vip_cannot_be_made_to_go_by_what_nobody_tells() {
    let mut bench = Bench::new(WEB);
    let change = |vip: &mut crate::config::VipConfig| {
        vip.latency = crate::config::LatencySource::Client;
        Ok(())
    };
    let error = bench.engine.change_vip("web", change).unwrap_err();
    assert!(
        error.to_string().contains("does not listen for them"),
        "{error}"
    );
    assert_eq!(bench.now.monotonic_ns, 1_000 * MS);
}

/// Seconds in which these servers add so much to a path of 50 ms; whether their clients'
/// handshakes are seen.
fn behind_a_path(bench: &mut Bench, seconds: usize, servers_ms: [f64; 4], seen: bool) {
    for _ in 0..10 * seconds {
        for (id, server_ms) in (0..).zip(servers_ms) {
            let mut state = bench.plane.state();
            match seen {
                true => state.respond_over(id, 50.0, server_ms, 20),
                false => state.respond_unseen(id, 50.0 + server_ms, 20),
            }
        }
        bench.run(1, &[]);
    }
}

fn explained(bench: &Bench) -> causeway_api::balancer::Explanation {
    explain::explain(&bench.engine, "web", REALS[0]).unwrap()
}

fn first_share(bench: &Bench) -> f64 {
    bench.plane.state().share(0, 0)
}

#[test]
fn behind_a_long_path_a_server_ten_times_slower_is_seen_and_not_by_responses() {
    let (even, slow) = ([2.0; 4], [20.0, 2.0, 2.0, 2.0]);
    let mut by_servers = Bench::new(WEB);
    behind_a_path(&mut by_servers, 5, even, true);
    assert!((first_share(&by_servers) - 0.25).abs() < 0.01);
    behind_a_path(&mut by_servers, 5, slow, true);
    assert!(
        first_share(&by_servers) < 0.05,
        "{}",
        first_share(&by_servers)
    );
    let said = explained(&by_servers);
    let last = said.decisions.last().unwrap();
    assert_eq!(
        (said.latency.as_str(), last.latency_kind.as_str()),
        ("server", "server")
    );
    let ratio = last.latency_us.unwrap() / last.lowest_us.unwrap();
    assert!((9.0..11.0).contains(&ratio), "{ratio}");
    let near = |us: Option<f64>, ms: f64| (us.unwrap() / 1e3 - ms).abs() < 0.01 * ms;
    assert!(near(said.measured.path_us, 50.0), "{:?}", said.measured);
    assert_eq!(said.latency_fallbacks, 0);

    // The ratio of whole responses, 70 to 52, is within the tolerance, for ever.
    let responses = WEB.replace("\"latency\"", "\"latency\"\nlatency = \"response\"");
    let mut by_responses = Bench::new(&responses);
    behind_a_path(&mut by_responses, 5, even, true);
    behind_a_path(&mut by_responses, 20, slow, true);
    assert!((first_share(&by_responses) - 0.25).abs() < 0.01);
    let said = explained(&by_responses);
    assert_eq!(said.decisions.last().unwrap().latency_kind, "response");
    assert_eq!(said.latency_fallbacks, 0);
}

/// Long-lived flows whose handshakes another balancer saw: they show that it answers.
#[test]
fn a_real_of_whose_answers_no_path_is_known_is_not_suspect() {
    let mut bench = Bench::new(WEB);
    for _ in 0..400 {
        let mut state = bench.plane.state();
        state.respond_unseen(0, 52.0, 20);
        (1..4).for_each(|real| state.respond_over(real, 50.0, 2.0, 20));
        drop(state);
        bench.run(1, &[]);
    }
    let said = explained(&bench);
    let last = said.decisions.last().unwrap();
    assert_eq!(
        (last.latency_kind.as_str(), last.reason.as_str()),
        ("server", "unknown")
    );
    assert!(
        (first_share(&bench) - 0.25).abs() < 0.01,
        "{}",
        first_share(&bench)
    );
}

#[test]
fn servers_that_add_next_to_nothing_are_alike() {
    let mut bench = Bench::new(WEB);
    behind_a_path(&mut bench, 10, [0.2, 0.02, 0.002, 0.1], true);
    assert!(
        (first_share(&bench) - 0.25).abs() < 0.01,
        "{}",
        first_share(&bench)
    );
}

#[test]
fn where_few_paths_are_known_all_go_by_responses_and_it_shows() {
    let mut bench = Bench::new(WEB);
    behind_a_path(&mut bench, 5, [2.0; 4], true);
    assert_eq!(explained(&bench).latency_fallbacks, 0);
    behind_a_path(&mut bench, 30, [2.0; 4], false);
    let said = explained(&bench);
    let last = said.decisions.last().unwrap();
    assert_eq!(last.latency_kind, "response");
    assert!((last.latency_us.unwrap() / 52e3 - 1.0).abs() < 0.01);
    assert!(said.latency_fallbacks > 0);
    // Paths are known again.
    behind_a_path(&mut bench, 30, [2.0; 4], true);
    assert_eq!(
        explained(&bench).decisions.last().unwrap().latency_kind,
        "server"
    );
}

/// Seconds in which servers answer over a path of 50 ms, `good` of the samples of each real's
/// interval and `low` of them graded low and five times too high.
fn by_grades(bench: &mut Bench, seconds: usize, servers_ms: [f64; 4], grades: [(u64, u64); 4]) {
    for _ in 0..10 * seconds {
        for (id, (server_ms, (good, low))) in (0..).zip(servers_ms.iter().zip(grades)) {
            let mut state = bench.plane.state();
            state.respond_over(id, 50.0, *server_ms, good);
            state.respond_low(id, 50.0, 5.0 * server_ms, low);
        }
        bench.run(1, &[]);
    }
}

#[test]
fn samples_graded_low_move_no_weight_beside_better_ones() {
    let mut bench = Bench::new(WEB);
    by_grades(
        &mut bench,
        20,
        [2.0; 4],
        [(10, 10), (20, 0), (20, 0), (20, 0)],
    );
    assert!(
        (first_share(&bench) - 0.25).abs() < 0.01,
        "{}",
        first_share(&bench)
    );
    let said = explained(&bench);
    let last = said.decisions.last().unwrap();
    assert!(
        (last.latency_us.unwrap() / 2e3 - 1.0).abs() < 0.01,
        "{last:?}"
    );
    assert!(!said.takes_low);
    // People see all of them, and how many are off.
    assert_eq!((said.measured.samples, said.measured.low), (2_000, 1_000));
    assert!((said.measured.server_us.unwrap() / 6e3 - 1.0).abs() < 0.01);
}

#[test]
fn a_real_with_hardly_any_but_low_samples_is_neither_suspect_nor_moved() {
    let mut bench = Bench::new(WEB);
    by_grades(
        &mut bench,
        40,
        [2.0; 4],
        [(0, 20), (20, 0), (20, 0), (20, 0)],
    );
    let said = explained(&bench);
    let last = said.decisions.last().unwrap();
    assert_eq!(last.reason, "low_quality", "{last:?}");
    assert!(
        last.reason_text.contains("100.0 % of its latencies"),
        "{last:?}"
    );
    assert!(
        (first_share(&bench) - 0.25).abs() < 0.01,
        "{}",
        first_share(&bench)
    );
}

#[test]
fn where_hardly_any_other_come_servers_are_compared_by_low_samples() {
    let mut bench = Bench::new(WEB);
    let (all_low, mixed) = ([(0, 20); 4], [(4, 16); 4]);
    by_grades(&mut bench, 5, [2.0; 4], all_low);
    assert!((first_share(&bench) - 0.25).abs() < 0.01);
    // What servers add is known of these samples, too.
    by_grades(&mut bench, 5, [20.0, 2.0, 2.0, 2.0], all_low);
    assert!(first_share(&bench) < 0.05, "{}", first_share(&bench));
    let said = explained(&bench);
    assert!(said.takes_low);
    assert_eq!(said.decisions.last().unwrap().latency_kind, "server");
    // Better ones come.
    by_grades(&mut bench, 20, [20.0, 2.0, 2.0, 2.0], mixed);
    let said = explained(&bench);
    assert!(!said.takes_low && first_share(&bench) < 0.05);
    let last_ms = said.decisions.last().unwrap().latency_us.unwrap() / 1e3;
    assert!((last_ms - 20.0).abs() < 1.0, "{last_ms}");
}

/// A sample in two seconds: the shares are of the last ones, however long they took.
#[test]
fn a_vip_with_hardly_any_samples_takes_low_ones_too() {
    let mut bench = Bench::new(WEB);
    let sparse = |bench: &mut Bench, times: usize, sample: fn(&mut Bench)| {
        for _ in 0..times {
            sample(bench);
            bench.run(20, &[]);
        }
    };
    sparse(&mut bench, 18, |bench| {
        bench.plane.state().respond_low(0, 50.0, 2.0, 1);
    });
    assert!(!explained(&bench).takes_low, "too few to tell");
    sparse(&mut bench, 6, |bench| {
        bench.plane.state().respond_low(0, 50.0, 2.0, 1);
    });
    assert!(explained(&bench).takes_low);
    sparse(&mut bench, 6, |bench| {
        bench.plane.state().respond_over(0, 50.0, 2.0, 1);
    });
    assert!(!explained(&bench).takes_low);
}
