// SPDX-License-Identifier: Apache-2.0
//! The load generator against a real nginx, and against wrk. Needs root.

use std::collections::BTreeSet;

use anyhow::{Result, bail, ensure};
use causeway_lab::load::log::Log;
use causeway_lab::load::{self, LoadConfig, report, wrk};
use causeway_lab::nginx::Nginx;
use causeway_lab::sandbox::{self, Sandbox};
use causeway_lab::topology::{Shape, Topology};

/// Rounds of which one has to show what is asked of times: other load of the machine is uneven.
const ROUNDS: usize = 24;

struct Bench {
    topology: Topology,
    _nginx: Nginx,
    config: LoadConfig,
}

/// Clients and one server, without a balancer between them.
fn bench(sandbox: Sandbox) -> Result<Bench> {
    let topology = Topology::build(
        sandbox,
        Shape {
            clients: 2,
            servers: 1,
        },
    )?;
    let server = &topology.servers[0];
    let nginx = Nginx::start(&server.netns, "server0", 80, 1)?;
    let config = LoadConfig {
        duration_ms: 4_000,
        slots: 16,
        max_age_ms: 1_500,
        ..LoadConfig::new((server.ipv4, 80).into(), 1)
    };
    Ok(Bench {
        topology,
        _nginx: nginx,
        config,
    })
}

fn run(bench: &Bench, config: &LoadConfig) -> Result<Log> {
    let clients: Vec<_> = bench
        .topology
        .clients
        .iter()
        .map(|c| c.netns.clone())
        .collect();
    load::start(&clients, config)?.finish()
}

#[test]
fn logs_the_truth_about_nginx() {
    sandbox::run_test("logs_the_truth_about_nginx", |sandbox| {
        let bench = bench(sandbox)?;
        let mut slow = Vec::new();
        for _ in 0..ROUNDS {
            let log = run(&bench, &bench.config)?;
            let all = report::summary(&log, 0, u64::MAX);
            println!("{}", serde_json::to_string_pretty(&all)?);
            ensure!(all.broken_connections == 0, "{:?}", all.faults);
            ensure!(log.reals == ["server0"]);
            // Service takes 5 ms or more, and nginx's timers may be 1 ms early.
            let fastest = log.responses.iter().map(|r| r.latency_ns()).min();
            ensure!(fastest.is_some_and(|ns| ns > 3_900_000), "{fastest:?} ns");
            let seconds = bench.config.duration_ms as f64 / 1000.0;
            let offered = bench.config.offered_rps() * seconds;
            let ages = log.connections.iter().map(|c| c.close_ns - c.open_ns);
            let oldest_ms = ages.max().unwrap_or(0) / 1_000_000;
            // A generator that is slow by itself is so in every round.
            if all.requests as f64 > 0.8 * offered
                && all.generator.cpu_us_per_request < 200.0
                && all.generator.send_delay_p50_us < 500.0
                && oldest_ms < bench.config.max_age_ms + 500
            {
                return Ok(());
            }
            slow.push((all.requests, offered, oldest_ms, all.generator));
        }
        bail!("requests, offered, the oldest connection in ms, what it took: {slow:?}");
    });
}

#[test]
fn the_same_seed_asks_for_the_same() {
    sandbox::run_test("the_same_seed_asks_for_the_same", |sandbox| {
        let bench = bench(sandbox)?;
        let config = LoadConfig {
            duration_ms: 1_500,
            slots: 10,
            ..bench.config.clone()
        };
        let asked = |log: &Log| {
            let slot = |r: &load::log::LoggedResponse| log.connections[r.connection as usize].slot;
            let mut all: Vec<_> = log
                .responses
                .iter()
                .map(|r| (slot(r), r.page, r.id, r.size))
                .collect();
            all.sort_unstable();
            all
        };
        let (first, second) = (asked(&run(&bench, &config)?), asked(&run(&bench, &config)?));
        // A slot that could not keep to its timetable has begun fewer pages.
        let pages = |of: &[(u32, u32, u32, u32)]| -> BTreeSet<(u32, u32)> {
            of.iter().map(|&(slot, page, ..)| (slot, page)).collect()
        };
        let of_both = &pages(&first) & &pages(&second);
        let shared = |of: Vec<(u32, u32, u32, u32)>| -> Vec<_> {
            let of = of.into_iter();
            of.filter(|&(slot, page, ..)| of_both.contains(&(slot, page)))
                .collect()
        };
        ensure!(of_both.len() >= config.slots, "{of_both:?}");
        ensure!(shared(first) == shared(second));
        Ok(())
    });
}

/// One request at a time, so that wrk and we ask the same of nginx. One that measured otherwise
/// would do so in every round.
#[test]
fn wrk_agrees() {
    sandbox::run_test("wrk_agrees", |sandbox| {
        let bench = bench(sandbox)?;
        let mut config = LoadConfig {
            outstanding: 1,
            ..bench.config.clone()
        };
        config.page.service_median_us = 8_000.0;
        config.page.service_sigma = 0.0;
        config.page.size_sigma = 0.0;
        let url = format!("http://{}/r/3072/8000", config.target);
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let ours = report::summary(&run(&bench, &config)?, 0, u64::MAX);
            let theirs = wrk::run(&bench.topology.clients[0].netns, &url, 10, 2)?;
            ensure!(
                theirs.socket_errors == 0 && theirs.bad_status == 0,
                "{theirs:?}"
            );
            rounds.push((ours.p50_ms, theirs.p50_ms));
            if (ours.p50_ms / theirs.p50_ms - 1.0).abs() < 0.1 {
                return Ok(());
            }
        }
        bail!("p50 in ms, ours and wrk's: {rounds:?}");
    });
}

#[test]
fn faults_have_names() {
    sandbox::run_test("faults_have_names", |sandbox| {
        let bench = bench(sandbox)?;
        let mut config = LoadConfig {
            duration_ms: 1_000,
            slots: 4,
            ..bench.config.clone()
        };
        config.target.set_port(81);
        let faults = run(&bench, &config)?.faults();
        ensure!(faults.keys().eq([&"refused"]), "nobody listens: {faults:?}");

        config.target = (bench.topology.router.ipv4.octets(), 80).into();
        config.target.set_ip("10.40.0.1".parse()?);
        config.timeout_ms = 2_000;
        let faults = run(&bench, &config)?.faults();
        // The router sends few ICMP errors; a SYN without one times out.
        ensure!(faults.contains_key("unreachable"), "no route: {faults:?}");
        ensure!(
            faults
                .keys()
                .all(|f| ["unreachable", "connect_timeout"].contains(f))
        );

        config.target = bench.config.target;
        config.timeout_ms = 1_000;
        config.page.service_min_us = 5_000_000;
        let faults = run(&bench, &config)?.faults();
        ensure!(
            faults.keys().eq([&"response_timeout"]),
            "too slow: {faults:?}"
        );
        Ok(())
    });
}
