// SPDX-License-Identifier: Apache-2.0
//! The engine against a data plane in memory.

use std::path::Path;

use causeway_api::Moment;
use causeway_core::agent_report::{AgentReport, Body, ReportKeys, ReportSecrets};
use causeway_core::control::Law;
use causeway_core::cookie::KeyEpoch;
use causeway_dataplane::Pick;
use serde_json::json;

use super::engine::{Engine, EngineError};
use super::explain;
use super::fake::FakePlane;
use super::plane::DataPlane;
use crate::config::{Affinity, BalancerConfig, Control, Fragments};

pub(crate) const MS: u64 = 1_000_000;

pub(crate) fn config(text: &str) -> BalancerConfig {
    let text = format!("interface = \"eth0\"\n{text}");
    BalancerConfig::parse(Path::new("lb.toml"), &text).unwrap()
}

pub(crate) const WEB: &str = r#"
[[vip]]
name = "web"
address = "192.0.2.1"
port = 80
scheduler = "latency"
real = [
  { address = "10.0.0.1" }, { address = "10.0.0.2" },
  { address = "10.0.0.3" }, { address = "10.0.0.4" },
]
"#;

/// When every engine of these tests starts.
pub(crate) const START: Moment = Moment {
    monotonic_ns: 1_000 * MS,
    realtime_ns: 1_700_000_000_000 * MS,
};

/// An engine with its data plane and a clock.
pub(crate) struct Bench {
    pub plane: FakePlane,
    pub engine: Engine,
    pub now: Moment,
}

/// The balancers' keys of reports: of a file with this as `reports0`.
pub(crate) fn report_keys(digits: &str) -> ReportKeys {
    ReportKeys {
        current: KeyEpoch::Zero,
        secrets: ReportSecrets::Root([Some(digits.parse().unwrap()), None]),
    }
}

impl Bench {
    /// Removes real 3 of `WEB` and then adds 10.0.0.5, which gets its id.
    pub(super) fn give_last_id_to_another(&mut self) {
        let remove = |vip: &mut crate::config::VipConfig| {
            vip.reals.pop();
            Ok(())
        };
        let add = |vip: &mut crate::config::VipConfig| {
            let mut real = vip.reals[0].clone();
            real.address = [10, 0, 0, 5].into();
            vip.reals.push(real);
            Ok(())
        };
        self.engine.change_vip("web", remove).unwrap();
        self.engine.change_vip("web", add).unwrap();
        assert_eq!(self.plane.state().real("10.0.0.5"), 3);
    }

    /// An agent's datagram arrives, and its agent answers what the balancer may ask.
    pub(crate) fn hear(&self, report: &AgentReport, keys: &ReportKeys) {
        let receive = |report: &AgentReport| {
            let datagram = report.encode(keys);
            let received = self
                .engine
                .reports()
                .receive(&datagram, self.now.monotonic_ns);
            received.err().flatten()
        };
        if let Some(challenge) = receive(report) {
            let mut answer = report.clone();
            let number = u64::from_be_bytes(*challenge.last_chunk().unwrap());
            answer.bodies.push(Body::Response(number));
            assert_eq!(receive(&answer), None);
        }
    }

    pub(crate) fn new(text: &str) -> Self {
        Self::on(FakePlane::default(), text)
    }

    pub(crate) fn on(plane: FakePlane, text: &str) -> Self {
        let engine = Engine::start(Box::new(plane.clone()), config(text), START).unwrap();
        Self {
            plane,
            engine,
            now: START,
        }
    }

    /// Runs intervals of 100 ms in which each real answers at its latency.
    /// Clients wait for a slow real, and ask it less.
    pub(crate) fn run(&mut self, intervals: usize, latencies_ms: &[f64]) {
        let samples = |latency_ms: f64| if latency_ms > 50.0 { 10 } else { 50 };
        self.run_at(intervals, latencies_ms, samples);
    }

    /// The same with this many responses of a real at its latency.
    pub(crate) fn run_at(
        &mut self,
        intervals: usize,
        latencies_ms: &[f64],
        samples: impl Fn(f64) -> u64,
    ) {
        for _ in 0..intervals {
            for (index, latency_ms) in latencies_ms.iter().enumerate() {
                self.plane
                    .state()
                    .respond(index as u32, *latency_ms, samples(*latency_ms));
            }
            self.now.monotonic_ns += 100 * MS;
            self.now.realtime_ns += 100 * MS;
            self.engine.tick(self.now).unwrap();
        }
    }
}

#[test]
fn a_start_fills_the_data_plane() {
    let bench = Bench::new(WEB);
    let state = bench.plane.state();
    assert_eq!(state.vips.len(), 1);
    assert_eq!(state.reals.len(), 4);
    for id in 0..4 {
        assert!((state.share(0, id) - 0.25).abs() < 0.01);
    }
}

#[test]
fn some_clients_have_rings_of_their_own() {
    let text = |health: &str| {
        format!(
            "[[vip]]\nname = \"web\"\naddress = \"192.0.2.1\"\nport = 80\nlimit = {{ rate = 5.0 }}\n\
             real = [{{ address = \"10.0.0.1\" }}, {{ address = \"10.0.0.2\" }}, {{ address = \"10.0.0.3\"{health} }}]\n\
             source = [{{ from = [\"10.1.0.0/16\"], reals = [\"10.0.0.3\"], exclusive = true }}]\n"
        )
    };
    let mut bench = Bench::new(&text(""));
    let of = |bench: &Bench, host: u8| bench.plane.state().real(&format!("10.0.0.{host}"));
    let own = of(&bench, 3);
    let sources = bench.plane.state().sources[&0].clone();
    assert_eq!(sources.len(), 1);
    assert!(sources[0].ring.iter().all(|real| *real == own) && !sources[0].ring.is_empty());
    // It is for them alone.
    assert_eq!(bench.plane.state().share(0, own), 0.0);
    let first = of(&bench, 1);
    assert!((bench.plane.state().share(0, first) - 0.5).abs() < 0.01);
    // Drained, it leaves that ring, too.
    bench
        .engine
        .reload(config(&text(", drain = true")))
        .unwrap();
    assert!(bench.plane.state().sources[&0][0].ring.is_empty());
    let vips = super::report::vips_of(&bench.engine, 0..1, super::report::Listed::All).unwrap();
    assert_eq!(vips[0].sources[0].from, ["10.1.0.0/16"]);
    assert_eq!(vips[0].limit, Some(5.0));
    let page = super::metrics::page(&bench.engine, true, bench.now).unwrap();
    let line = "causeway_vip_source_flows_total{vip=\"web\",from=\"10.1.0.0/16\"} 5";
    assert!(page.contains(line), "{page}");
}

/// All of thousands would be a label that some keepers of metrics refuse, and another series with each.
#[test]
fn reals_of_a_client_s_own_are_told_by_its_first_prefix() {
    let text = |prefixes: u32| {
        let from = (0..prefixes).map(|n| format!("\"10.{}.{}.0/24\"", n / 256, n % 256));
        let from = from.collect::<Vec<_>>().join(", ");
        format!(
            "{}source = [{{ from = [{from}], reals = [\"10.0.0.3\"] }}]\n",
            WEB.replace("\"latency\"", "\"maglev\"")
        )
    };
    let mut bench = Bench::new(&text(1_000));
    let label = |bench: &Bench| {
        let page = super::metrics::page(&bench.engine, true, bench.now).unwrap();
        let line = page
            .lines()
            .find(|line| line.starts_with("causeway_vip_source_flows_total{"));
        let (label, _) = line.expect("a source").rsplit_once(' ').unwrap();
        label.to_owned()
    };
    let before = label(&bench);
    assert!(
        before.ends_with("from=\"10.0.0.0/24\"}") && before.len() < 128,
        "{before}"
    );
    bench.engine.reload(config(&text(1_001))).unwrap();
    assert_eq!(label(&bench), before);
}

#[test]
fn states_and_settings_made_by_hand_are_metrics() {
    let mut bench = Bench::new(WEB);
    let has = |bench: &Bench, line: &str| {
        let page = super::metrics::page(&bench.engine, true, bench.now).unwrap();
        page.lines().any(|found| found == line)
    };
    let state = |real, state| {
        format!("causeway_real_state{{vip=\"web\",real=\"10.0.0.{real}\",state=\"{state}\"}} 1.0")
    };
    assert!(has(&bench, &state(1, "active")) && has(&bench, "causeway_overrides 0.0"));
    for (real, change) in [
        ("10.0.0.1", json!({ "drain": true })),
        ("10.0.0.2", json!({ "maintenance": true })),
    ] {
        let change = serde_json::from_value(change).unwrap();
        let since_ns = 5_000_000_000;
        bench
            .engine
            .change_real("web", real, &change, since_ns)
            .unwrap();
    }
    for line in [
        state(1, "drain").as_str(),
        state(2, "maintenance").as_str(),
        state(3, "active").as_str(),
        "causeway_overrides 2.0",
        "causeway_overrides_oldest_timestamp_seconds 5.0",
    ] {
        assert!(has(&bench, line), "{line}");
    }
}

#[test]
fn a_real_that_becomes_exclusive_leaves_the_rings_of_all_others_and_returns() {
    let text = |source: &str| {
        format!(
            "[[vip]]\nname = \"web\"\naddress = \"192.0.2.1\"\nport = 80\nscheduler = \"latency\"\n\
             real = [{{ address = \"10.0.0.1\" }}, {{ address = \"10.0.0.2\" }}, {{ address = \"10.0.0.3\" }}]\n\
             {source}"
        )
    };
    let source = |exclusive| {
        text(&format!(
            "source = [{{ from = [\"10.1.0.0/16\"], reals = [\"10.0.0.3\"], exclusive = {exclusive} }}]\n"
        ))
    };
    let mut bench = Bench::new(&source(false));
    // Of the VIP's own ring, and of the one of weights that do not move.
    let shares = |bench: &Bench| {
        let state = bench.plane.state();
        let own = state.real("10.0.0.3");
        let plain = &state.plain_rings[&0];
        let of_plain = plain.iter().filter(|id| **id == own).count() as f64 / plain.len() as f64;
        [state.share(0, own), of_plain].map(|share| (share * 100.0).round() / 100.0)
    };
    assert_eq!(shares(&bench), [0.33; 2]);
    bench.engine.reload(config(&source(true))).unwrap();
    assert_eq!(shares(&bench), [0.0; 2]);
    bench.engine.reload(config(&text(""))).unwrap();
    assert_eq!(shares(&bench), [0.33; 2]);
}

#[test]
fn each_interval_ages_the_flow_table_and_tells_it_who_drains() {
    let mut bench = Bench::new(WEB);
    bench.run(2, &[1.0; 4]);
    let second = bench.plane.state().real("10.0.0.2");
    bench
        .engine
        .change_vip("web", |vip| {
            vip.reals[1].drain = true;
            Ok(())
        })
        .unwrap();
    bench.run(1, &[1.0; 4]);
    let swept = bench.plane.state().swept.clone();
    let at = |n: u64| START.monotonic_ns + 100 * n * MS;
    assert_eq!(
        swept,
        [
            (at(1), vec![]),
            (at(2), vec![]),
            (at(3), vec![(second, None)])
        ]
    );
    let page = super::metrics::page(&bench.engine, true, bench.now).unwrap();
    for line in [
        "causeway_flow_table_slots 1024.0",
        "causeway_flow_table_flows 7.0",
        "causeway_flow_table_ended_total{reason=\"udp_idle\"} 3",
        "causeway_flow_table_ended_total{reason=\"tcp_ended\"} 0",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
}

/// Else a drain would wait a quarter of an hour for a client that has sent a SYN and gone.
#[test]
fn a_connection_of_which_only_a_syn_came_is_open_until_the_sweep_ends_it() {
    let mut bench = Bench::new(WEB);
    bench.run(2, &[1.0; 4]);
    let real = bench.plane.state().real("10.0.0.2");
    let active = |bench: &Bench| bench.engine.active(real);
    let before = active(&bench);
    bench
        .plane
        .state()
        .totals
        .entry(real)
        .or_default()
        .conns_opened += 3;
    bench.run(1, &[1.0; 4]);
    assert_eq!(active(&bench), before + 3);
    bench.plane.state().unheard.insert(real, 2);
    bench.run(1, &[1.0; 4]);
    assert_eq!(active(&bench), before + 1);
}

#[test]
fn a_slow_real_leaves_the_ring_and_returns() {
    let mut bench = Bench::new(WEB);
    bench.run(10, &[5.0; 4]);
    assert_eq!(bench.plane.state().ring_swaps, 1);
    bench.run(20, &[100.0, 5.0, 5.0, 5.0]);
    assert!(bench.plane.state().share(0, 0) < 0.03);
    let reasons: Vec<&str> = bench.engine.moves().map(|m| m.reason.as_str()).collect();
    assert!(
        reasons.contains(&"above") && reasons.contains(&"received"),
        "{reasons:?}"
    );
    bench.run(60, &[5.0; 4]);
    assert!((bench.plane.state().share(0, 0) - 0.25).abs() < 0.02);
}

#[test]
fn latency_gives_turns_and_fragments_want_a_hash() {
    let mut bench = Bench::new(WEB);
    assert_eq!(bench.plane.state().picking[&0].pick, Pick::Turn);
    let real = |bench: &Bench, slot: usize| bench.plane.state().rings[&0][slot];
    // One period of equal weights: no real comes twice in a row.
    assert!((0..3).all(|slot| real(&bench, slot) != real(&bench, slot + 1)));
    let change = |vip: &mut crate::config::VipConfig| {
        vip.fragments = Fragments::Forward;
        Ok(())
    };
    bench.engine.change_vip("web", change).unwrap();
    assert_eq!(bench.plane.state().picking[&0].pick, Pick::Hash);
    // The ring follows, though no weight has moved.
    assert!(bench.plane.state().rings[&0].len() > 16_000);
    let change = |vip: &mut crate::config::VipConfig| {
        (vip.fragments, vip.affinity) = (Fragments::Drop, Affinity::Client);
        Ok(())
    };
    bench.engine.change_vip("web", change).unwrap();
    assert_eq!(bench.plane.state().picking[&0].pick, Pick::Hash);
}

/// Where its requests do not become fewer, as in an open loop: all others together have no
/// more left than it takes, so it keeps what it can do beside them.
#[test]
fn a_slow_real_whose_load_nobody_can_bear_keeps_what_it_can_do() {
    let mut bench = Bench::new(WEB);
    // They vary as much as those of queues: with constant ones there is no queue.
    let mut run_varying = |intervals, latencies_ms: [f64; 4]| {
        for interval in 0..intervals {
            let factor = |real| if (interval + real) % 2 == 0 { 1.2 } else { 0.8 };
            let varied: [f64; 4] = std::array::from_fn(|real| latencies_ms[real] * factor(real));
            bench.run_at(1, &varied, |_| 50);
        }
    };
    run_varying(40, [5.0; 4]);
    run_varying(40, [100.0, 5.0, 5.0, 5.0]);
    let share = bench.plane.state().share(0, 0);
    assert!(share > 0.03 && share < 0.15, "{share}");
}

/// The requests of a second are not those of an interval: the others can bear a tenth of them.
#[test]
fn a_slow_real_is_relieved_though_intervals_are_late() {
    let mut bench = Bench::new(WEB);
    for _ in 0..30 {
        for (real, latency_ms) in (0..).zip([100.0, 10.0, 10.0, 10.0]) {
            bench.plane.state().respond(real, latency_ms, 70);
        }
        bench.now.monotonic_ns += 900 * MS;
        bench.run(1, &[]);
    }
    let share = bench.plane.state().share(0, 0);
    assert!(share < 0.01, "{share}");
}

#[test]
fn every_law_drives_every_scheduler_that_goes_by_weights() {
    for law in ["equalise", "watermark", "watermark-paper"] {
        for scheduler in ["latency", "maglev", "weighted-round-robin"] {
            let keys = format!("\"{scheduler}\"\ncontrol = \"{law}\"");
            let mut bench = Bench::new(&WEB.replace("\"latency\"", &keys));
            bench.run(10, &[5.0; 4]);
            bench.run(20, &[100.0, 5.0, 5.0, 5.0]);
            let share = bench.plane.state().share(0, 0);
            assert!(share < 0.1, "{law} {scheduler}: {share}");
        }
    }
}

#[test]
fn a_switch_of_law_goes_on_and_off_gives_the_configured_weights_back() {
    let mut bench = Bench::new(WEB);
    bench.run(10, &[5.0; 4]);
    bench.run(20, &[100.0, 5.0, 5.0, 5.0]);
    let switch = |bench: &mut Bench, control| {
        let change = |vip: &mut crate::config::VipConfig| {
            vip.control = control;
            Ok(())
        };
        bench.engine.change_vip("web", change).unwrap();
    };
    switch(&mut bench, Control::Watermark);
    assert!(bench.plane.state().share(0, 0) < 0.03);
    bench.run(1, &[100.0, 5.0, 5.0, 5.0]);
    let decision = bench.engine.pools()[0].decision().unwrap();
    assert_eq!(decision.law, Law::Watermark);
    assert!(decision.reals[0].samples > 10.0);
    switch(&mut bench, Control::Observe);
    bench.run(2, &[100.0, 5.0, 5.0, 5.0]);
    assert!((bench.plane.state().share(0, 0) - 0.25).abs() < 0.01);
}

#[test]
fn it_explains_why_a_real_has_its_weight() {
    let mut bench = Bench::new(WEB);
    bench.run(10, &[5.0; 4]);
    bench.run(20, &[100.0, 5.0, 5.0, 5.0]);
    let why = explain::explain(&bench.engine, "web", "10.0.0.1").unwrap();
    assert!(why.effective_weight < 0.1);
    assert_eq!(why.law.as_deref(), Some("equalise"));
    let moved: Vec<_> = why
        .decisions
        .iter()
        .filter(|d| d.reason == "above")
        .collect();
    assert!(!moved.is_empty() && moved.iter().all(|d| d.after < d.before));
    assert!(
        moved
            .iter()
            .all(|d| d.latency_us > d.lowest_us && d.error_pct.is_some())
    );
    let intervals: u64 = why.decisions.iter().map(|d| d.intervals).sum();
    assert_eq!(intervals, 30);
    let unknown = explain::explain(&bench.engine, "web", "10.0.0.99").unwrap_err();
    assert!(
        unknown
            .to_string()
            .starts_with("vip web has no real `10.0.0.99`; it has 10.0.0.1")
    );
}

#[test]
fn observe_computes_and_does_not_act() {
    let text = WEB.replace("\"latency\"", "\"maglev\"\ncontrol = \"observe\"");
    let mut bench = Bench::new(&text);
    bench.run(10, &[5.0; 4]);
    bench.run(20, &[100.0, 5.0, 5.0, 5.0]);
    assert_eq!(bench.plane.state().ring_swaps, 1);
    assert!((bench.plane.state().share(0, 0) - 0.25).abs() < 0.01);
    let decision = bench.engine.pools()[0].decision().unwrap();
    assert!(decision.reals[0].weight < 0.1);
    assert!(bench.engine.moves().all(|change| change.observed));
}

#[test]
fn a_restart_keeps_ids_and_removes_what_the_file_no_longer_names() {
    let bench = Bench::new(WEB);
    let mut plane = bench.plane.clone();
    drop(bench);
    let stray = causeway_dataplane::Real {
        vip: 0,
        address: "10.0.0.9".parse().unwrap(),
        forwarding: causeway_dataplane::Forwarding::Ipip,
    };
    plane.set_real(stray).unwrap();
    let third = plane.state().real("10.0.0.3");
    let text = WEB.replace("{ address = \"10.0.0.1\" },", "");
    Engine::start(Box::new(plane.clone()), config(&text), START).unwrap();
    let state = plane.state();
    assert_eq!(state.real("10.0.0.3"), third);
    assert_eq!(state.reals.len(), 3);
}

#[test]
fn a_restart_goes_on_with_the_weights_in_the_rings() {
    let mut bench = Bench::new(WEB);
    bench.run(10, &[5.0; 4]);
    bench.run(30, &[100.0, 5.0, 5.0, 5.0]);
    let before = bench.plane.state().share(0, 0);
    assert!(before < 0.03);
    bench.engine = Engine::start(Box::new(bench.plane.clone()), config(WEB), bench.now).unwrap();
    assert!((bench.plane.state().share(0, 0) - before).abs() < 0.002);
    // The slow one is silent: nothing says that it is well again.
    for _ in 0..30 {
        for id in 1..4 {
            bench.plane.state().respond(id, 5.0, 50);
        }
        bench.run(1, &[]);
    }
    assert!(bench.plane.state().share(0, 0) < 0.03);
    bench.run(60, &[5.0; 4]);
    assert!((bench.plane.state().share(0, 0) - 0.25).abs() < 0.02);
}

#[test]
fn reals_that_a_restart_brings_get_no_more_than_those_that_stay() {
    let mut bench = Bench::new(WEB);
    bench.run(10, &[5.0; 4]);
    let text = WEB
        .replace("10.0.0.3", "10.0.0.5")
        .replace("10.0.0.4", "10.0.0.6");
    bench.engine = Engine::start(Box::new(bench.plane.clone()), config(&text), bench.now).unwrap();
    let state = bench.plane.state();
    for real in ["10.0.0.1", "10.0.0.2", "10.0.0.5", "10.0.0.6"] {
        let share = state.share(0, state.real(real));
        assert!((share - 0.25).abs() < 0.01, "{real}: {share}");
    }
}

#[test]
fn without_reconcile_strangers_stay() {
    let mut plane = FakePlane::default();
    let stranger = causeway_dataplane::Vip {
        address: "192.0.2.9".parse().unwrap(),
        port: 9,
        protocol: causeway_dataplane::Protocol::Tcp,
    };
    plane.set_vip(stranger).unwrap();
    let text = format!("reconcile = false\n{WEB}");
    Engine::start(Box::new(plane.clone()), config(&text), START).unwrap();
    assert_eq!(plane.state().vips.len(), 2);
}

#[test]
fn a_reload_keeps_measurements_and_weights() {
    let mut bench = Bench::new(WEB);
    bench.run(10, &[5.0; 4]);
    bench.run(20, &[100.0, 5.0, 5.0, 5.0]);
    let text = WEB.replace(
        "{ address = \"10.0.0.4\" }",
        "{ address = \"10.0.0.4\" }, { address = \"10.0.0.5\" }",
    );
    bench.engine.reload(config(&text)).unwrap();
    assert!(bench.plane.state().share(0, 0) < 0.03);
    assert!(bench.plane.state().share(0, 4) > 0.15);
    let (_, member) = bench.engine.pools()[0].members().next().unwrap();
    assert_eq!(member.past().history.len(), 30);
}

#[test]
fn a_reload_that_fails_leaves_everything_as_it_was() {
    let mut bench = Bench::new(WEB);
    bench.plane.state().max_reals = Some(4);
    let before = bench.engine.config().clone();
    let text = WEB.replace("10.0.0.4", "10.0.0.5");
    let error = bench.engine.reload(config(&text)).unwrap_err();
    assert_eq!(error.to_string(), "the table of reals is full");
    assert_eq!(*bench.engine.config(), before);
    assert!((bench.plane.state().share(0, 3) - 0.25).abs() < 0.01);
    let text = format!("pin_dir = \"/sys/fs/bpf/other\"\n{WEB}");
    let error = bench.engine.reload(config(&text)).unwrap_err();
    assert!(matches!(error, EngineError::Conflict(_)));
    assert!(
        error
            .to_string()
            .starts_with("a change of `pin_dir` needs the data plane taken down")
    );
    let text = format!(
        "http = false\nmeasure.enabled = false\n{}",
        WEB.replace("latency", "maglev")
    );
    let error = bench.engine.check_reload(&config(&text)).unwrap_err();
    let sentence = error.to_string();
    assert!(
        sentence.starts_with("a change of `http`, `measure` needs"),
        "{sentence}"
    );
}

#[test]
fn draining_takes_a_real_out_of_the_ring_only() {
    let mut bench = Bench::new(WEB);
    bench
        .engine
        .change_vip("192.0.2.1:80", |vip| {
            vip.reals[1].drain = true;
            Ok(())
        })
        .unwrap();
    let state = bench.plane.state();
    assert_eq!(state.share(0, 1), 0.0);
    assert_eq!(state.reals.len(), 4);
}

#[test]
fn history_is_bounded_and_holds_the_epochs_figures() {
    let text = format!("history.length = \"1s\"\n{WEB}");
    let mut bench = Bench::new(&text);
    bench.run(15, &[5.0, 6.0, 7.0, 8.0]);
    let (_, member) = bench.engine.pools()[0].members().nth(1).unwrap();
    assert_eq!(member.past().history.len(), 10);
    let last = member.past().history.back().unwrap().view();
    assert_eq!(last.estimate_us, Some(6000.0));
    assert_eq!((last.samples, last.requests), (50.0, 50));
    assert_eq!(last.start_monotonic_ns, bench.now.monotonic_ns - 100 * MS);
    assert_eq!(last.start_ns, bench.now.realtime_ns - 100 * MS);
}

#[test]
fn vips_come_and_go_at_run_time() {
    let mut bench = Bench::new(WEB);
    let other = config(&WEB.replace("\"web\"", "\"api\"").replace("80", "81"));
    bench.engine.add_vip(other.vips[0].clone()).unwrap();
    assert_eq!(bench.plane.state().vips.len(), 2);
    assert_eq!(bench.plane.state().reals.len(), 8);
    assert_eq!(bench.plane.state().ring_swaps, 2);
    let twice = bench.engine.add_vip(other.vips[0].clone()).unwrap_err();
    assert!(twice.to_string().starts_with("vip api exists already"));
    bench.engine.remove_vip("api").unwrap();
    assert_eq!(bench.plane.state().vips.len(), 1);
    let none = bench.engine.remove_vip("api").unwrap_err();
    assert_eq!(
        none.to_string(),
        "there is no vip `api`; this balancer has web"
    );
}

#[test]
fn an_interval_that_cannot_be_read_is_part_of_the_next() {
    let mut bench = Bench::new(WEB);
    bench.run(1, &[5.0; 4]);
    let first = bench.now;
    bench.plane.state().respond(0, 5.0, 50);
    bench.plane.state().unreadable = true;
    bench.now.monotonic_ns += 100 * MS;
    bench.now.realtime_ns += 100 * MS;
    bench.engine.tick(bench.now).unwrap_err();
    bench.run(1, &[5.0; 4]);
    let (_, member) = bench.engine.pools()[0].members().next().unwrap();
    let last = member.past().history.back().unwrap();
    assert_eq!(last.start, first);
    assert_eq!((member.past().history.len(), last.requests), (2, 100));
}

#[test]
fn a_restart_does_not_take_old_connections_for_open_ones() {
    let bench = Bench::new(WEB);
    {
        let mut state = bench.plane.state();
        state.totals.get_mut(&0).unwrap().conns_opened = 96_000;
        state.age = std::time::Duration::from_secs(86_400);
    }
    let plane = bench.plane.clone();
    let bench = Bench::on(plane, WEB);
    assert_eq!(bench.engine.active(0), 1_000);
}

/// Two balancers with one file, one of which finds a server slow.
#[test]
fn plain_clients_are_given_out_alike_however_weights_have_moved() {
    let plain = |bench: &Bench| bench.plane.state().plain_rings[&0].clone();
    let shares = |bench: &Bench| [0, 1, 2, 3].map(|real| bench.plane.state().share(0, real));
    let [mut slow, mut level] = [WEB, WEB].map(Bench::new);
    let before = plain(&slow);
    assert!(!before.is_empty());
    slow.run(100, &[100.0, 5.0, 5.0, 5.0]);
    level.run(100, &[5.0; 4]);
    assert!(shares(&slow)[0] < 0.1 && shares(&level)[0] > 0.2);
    assert_eq!([plain(&slow), plain(&level)], [before.clone(), before]);
    // A server that drains is in neither ring.
    for bench in [&mut slow, &mut level] {
        let drain = |vip: &mut crate::config::VipConfig| {
            vip.reals[1].drain = true;
            Ok(())
        };
        bench.engine.change_vip("web", drain).unwrap();
    }
    assert_eq!(plain(&slow), plain(&level));
    assert!(!plain(&slow).contains(&1));
    // Where the own ring is of configured weights there is no other.
    let maglev = Bench::new(&WEB.replace("\"latency\"", "\"maglev\""));
    assert!(plain(&maglev).is_empty());
}

/// Backwards by an hour and by a second, forwards by a day, in the middle of a fault.
#[test]
fn a_time_of_day_that_is_set_changes_no_decision() {
    let decided = |step_ns: i64| {
        let mut bench = Bench::new(WEB);
        bench.run(10, &[5.0; 4]);
        bench.run(5, &[100.0, 5.0, 5.0, 5.0]);
        bench.now.realtime_ns = bench.now.realtime_ns.wrapping_add_signed(step_ns);
        bench.run(15, &[100.0, 5.0, 5.0, 5.0]);
        let slow = bench.plane.state().share(0, 0);
        bench.run(50, &[5.0; 4]);
        let members = bench.engine.pools()[0].members();
        let learnt: Vec<_> = members
            .map(|(_, member)| (member.weight, member.past().history.len()))
            .collect();
        (slow, learnt)
    };
    const SECOND: i64 = 1_000_000_000;
    for step_ns in [-SECOND, -3600 * SECOND, 24 * 3600 * SECOND] {
        assert_eq!(decided(step_ns), decided(0), "{step_ns}");
    }
}
