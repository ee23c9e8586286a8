// SPDX-License-Identifier: Apache-2.0
//! One of four servers becomes slow half-way; the same load under two
//! schedulers. What `causeway-lab demo` shows.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use causeway_api::balancer::History;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::bench::{Bench, PORT};
use super::client_timestamps::ClientTimestamps;
use super::connections::{SharedKeys, with_ids};
use super::{Context, Scenario, param};
use crate::agent::AgentProcess;
use crate::api;
use crate::balancer::{Balancer, BalancerSettings, ServerForwarding};
use crate::cgroup::Cgroup;
use crate::cpu::CpuMeter;
use crate::load::log::Log;
use crate::load::{LoadConfig, RunningLoad, report};
use crate::nginx::Nginx;
use crate::outcome::{DegradeOutcome, Run, RunConditions};
use crate::sandbox::Sandbox;
use crate::topology::{Node, vip4};
use crate::{clock, series};

/// Period of a CPU quota; long periods would make the server stand still.
const QUOTA_PERIOD: Duration = Duration::from_millis(10);

/// Everything that makes the experiment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DegradeConfig {
    /// Source of all chance.
    pub seed: u64,
    /// Length of each of the two runs.
    pub run_s: f64,
    /// When the server becomes slow.
    pub degrade_at_s: f64,
    /// Requests count from this long after.
    pub settle_s: f64,
    /// Interval of estimates and truths.
    pub epoch_s: f64,
    /// How many balancers share the packets, and their measurements.
    pub balancers: usize,
    /// How many servers; the last one becomes slow.
    pub servers: usize,
    /// Its service times are multiplied by this.
    pub factor: f64,
    /// Share of one CPU that it keeps, if that is to be limited too.
    pub quota: Option<f64>,
    /// The load, but for its target, seed and length.
    pub slots: usize,
    /// Time between the pages of a user.
    pub page_interval_ms: u64,
    /// Requests per connection.
    pub outstanding: usize,
    /// Connections live at most this long.
    pub max_age_ms: u64,
    /// The two schedulers, in order.
    pub schedulers: [String; 2],
    /// How packets reach servers.
    pub forwarding: ServerForwarding,
    /// Lines for the `[control]` table.
    pub control: Vec<String>,
    /// How the clients' timestamps are.
    pub timestamps: ClientTimestamps,
    /// Round trip between clients and router.
    pub path_ms: u64,
    /// What the latency-aware run goes by, as the VIP's `latency`; empty: its default.
    pub latency: String,
    /// Which connections are measured, as the VIP's `sampling`; empty: its default.
    pub sampling: String,
}

impl Default for DegradeConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            run_s: 20.0,
            degrade_at_s: 10.0,
            settle_s: 2.0,
            epoch_s: 0.5,
            balancers: 1,
            servers: 4,
            factor: 8.0,
            quota: None,
            slots: 40,
            page_interval_ms: 1_000,
            outstanding: 4,
            max_age_ms: 2_000,
            schedulers: ["maglev".into(), "latency".into()],
            forwarding: ServerForwarding::Ipip,
            control: Vec::new(),
            timestamps: ClientTimestamps::On,
            path_ms: 0,
            latency: String::new(),
            sampling: String::new(),
        }
    }
}

/// What is to be seen while a run is under way.
#[derive(Debug, Clone)]
pub struct Live {
    /// The scheduler of this run.
    pub scheduler: String,
    /// Since the run's start.
    pub at_s: f64,
    /// Whether the slow server is slow already.
    pub degraded: bool,
    /// Answers per second since the last call.
    pub requests_per_s: f64,
    /// Mean latency of these.
    pub mean_ms: f64,
    /// Broken connections so far.
    pub broken: u64,
}

/// Runs both schedulers and returns everything. `progress` is called about once
/// per second.
pub fn run(
    sandbox: Sandbox,
    binary: &std::path::Path,
    config: &DegradeConfig,
    progress: &dyn Fn(&Live),
) -> Result<DegradeOutcome> {
    ensure!(
        config.degrade_at_s + config.settle_s < config.run_s,
        "a run must be longer than the time to its degradation and settling"
    );
    ensure!(
        (1..=8).contains(&config.balancers),
        "balancers={}: there can be one to eight",
        config.balancers
    );
    let mut bench = Bench::build(sandbox, 2, config.servers)?;
    let mut nodes = vec![bench.topology.balancer.clone()];
    for _ in 1..config.balancers {
        nodes.push(bench.topology.add_balancer(sandbox)?);
    }
    bench.topology.spread_vips(&nodes)?;
    let switch = u8::from(config.timestamps != ClientTimestamps::Off).to_string();
    for client in bench.client_namespaces() {
        client.sysctl("net/ipv4/tcp_timestamps", &switch)?;
    }
    let mut lines = Vec::new();
    if config.path_ms > 0 {
        for client in 0..bench.topology.clients.len() {
            lines.push(bench.lengthen(client, config.path_ms, config.seed)?);
        }
    }
    let keys = SharedKeys::with_cookies(binary)?;
    let agents = agents(&bench, &nodes, binary, config, &keys)?;
    let [first, second] = &config.schedulers;
    let run = |scheduler| run_once(&bench, &nodes, binary, config, &keys, scheduler, progress);
    let (baseline, latency_aware) = (run(first)?, run(second)?);
    drop((agents, lines));
    Ok(DegradeOutcome {
        baseline,
        latency_aware,
        conditions: conditions(config, &bench),
    })
}

/// Agents on all servers, where cookies or reports of theirs are wanted.
fn agents(
    bench: &Bench,
    balancers: &[Node],
    binary: &std::path::Path,
    config: &DegradeConfig,
    keys: &SharedKeys,
) -> Result<Vec<AgentProcess>> {
    let cookies = config.timestamps == ClientTimestamps::Cookie;
    let reports = matches!(config.latency.as_str(), "agent" | "client");
    if !cookies && !reports {
        return Ok(Vec::new());
    }
    let vip = vip4(0);
    let start = |index| {
        let mut file = String::new();
        if cookies {
            file += &keys.cookies_for(index, &[(vip, PORT).into()]);
        }
        if reports {
            file += &format!(
                "[agent.clients]\nservices = [\"{vip}:{PORT}\"]\nothers = false\nhistory = \"\"\n\
                 [agent.report]\nclient_latency = true\nto = [\"{}\"]\nkeys = \"{}\"\n",
                list(balancers, reports_at),
                keys.cookies().display()
            );
        }
        bench.agent(binary, index, &file)
    };
    (0..bench.topology.servers.len()).map(start).collect()
}

/// Where agents report.
fn reports_at(balancer: &Node) -> String {
    format!("{}:9472", balancer.ipv4)
}

/// Where other balancers send their measurements.
fn peers_at(balancer: &Node) -> String {
    format!("{}:9473", balancer.ipv4)
}

/// What lets balancers of the same VIPs steer as one.
fn peer_lines(node: &Node, nodes: &[Node], keys: &SharedKeys) -> String {
    format!(
        "[peers]\nlisten = \"{}\"\nmembers = [\"{}\"]\nkeys = \"{}\"",
        peers_at(node),
        list(nodes, peers_at),
        keys.cookies().display()
    )
}

/// The inside of an array of strings.
fn list(nodes: &[Node], what: fn(&Node) -> String) -> String {
    nodes.iter().map(what).collect::<Vec<_>>().join("\", \"")
}

fn run_once(
    bench: &Bench,
    nodes: &[Node],
    binary: &std::path::Path,
    config: &DegradeConfig,
    keys: &SharedKeys,
    scheduler: &str,
    progress: &dyn Fn(&Live),
) -> Result<Run> {
    let mut vip = bench.vip4(0, scheduler, config.forwarding);
    let target = (vip.address, vip.port).into();
    if config.timestamps == ClientTimestamps::Cookie {
        vip = with_ids(vip);
    }
    let by_agents = !config.latency.is_empty() && scheduler == "latency";
    if by_agents {
        vip.keys.push(format!("latency = \"{}\"", config.latency));
    }
    if !config.sampling.is_empty() {
        vip.keys.push(format!("sampling = \"{}\"", config.sampling));
    }
    let start = |node: &Node| {
        let mut head = Vec::new();
        if nodes.len() > 1 {
            head.push(SharedKeys::hash_key_line());
            head.push(peer_lines(node, nodes, keys));
        }
        if config.timestamps == ClientTimestamps::Cookie {
            head.push(keys.balancer_lines());
        }
        if by_agents {
            head.push(format!(
                "[agent_reports]\nlisten = \"{}\"\nkeys = \"{}\"",
                reports_at(node),
                keys.cookies().display()
            ));
        }
        let settings = BalancerSettings {
            vips: vec![vip.clone()],
            head,
            control: config.control.clone(),
            ..BalancerSettings::default()
        };
        Balancer::start(binary, node, &settings)
    };
    let balancers = nodes.iter().map(start).collect::<Result<Vec<_>>>()?;
    let load = LoadConfig {
        duration_ms: (config.run_s * 1000.0) as u64,
        slots: config.slots,
        page_interval_ms: config.page_interval_ms,
        outstanding: config.outstanding,
        max_age_ms: config.max_age_ms,
        ..LoadConfig::new(target, config.seed)
    };
    let slow = bench.servers.last().context("no server")?;
    slow.set_factor(1.0)?;
    let cpu = CpuMeter::start()?;
    let running = bench.load(&load)?;
    let cgroup = watch(bench, config, scheduler, &running, slow, progress)?;
    let log = running.finish()?;
    let history = api::history(&balancers[0].socket())?;
    let cpu_busy_pct = cpu.share()? * 100.0;
    drop(cgroup);
    slow.set_factor(1.0)?;
    for balancer in balancers {
        balancer.end()?;
    }
    Ok(assemble(
        bench,
        config,
        scheduler,
        &log,
        &history,
        cpu_busy_pct,
    ))
}

/// Degrades the slow server when its time has come, and reports.
fn watch(
    bench: &Bench,
    config: &DegradeConfig,
    scheduler: &str,
    running: &RunningLoad,
    slow: &Nginx,
    progress: &dyn Fn(&Live),
) -> Result<Option<Cgroup>> {
    let mut cgroup = None;
    let mut degraded = false;
    let (mut last_at_s, mut last_requests, mut last_latency_ns) = (0.0, 0, 0);
    while running.is_active() {
        let now = clock::monotonic_ns();
        let at_s = now.saturating_sub(running.start_ns()) as f64 / 1e9;
        if !degraded && at_s >= config.degrade_at_s {
            slow.set_factor(config.factor)?;
            cgroup = limit(bench, config, slow)?;
            degraded = true;
        }
        if at_s - last_at_s >= 1.0 {
            let (requests, latency_ns) = (
                running.progress().requests(),
                running.progress().latency_ns(),
            );
            let new = (requests - last_requests) as f64;
            progress(&Live {
                scheduler: scheduler.to_owned(),
                at_s,
                degraded,
                requests_per_s: new / (at_s - last_at_s),
                mean_ms: (latency_ns - last_latency_ns) as f64 / 1e6 / new.max(1.0),
                broken: running.progress().broken(),
            });
            (last_at_s, last_requests, last_latency_ns) = (at_s, requests, latency_ns);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(cgroup)
}

fn limit(bench: &Bench, config: &DegradeConfig, slow: &Nginx) -> Result<Option<Cgroup>> {
    let Some(quota) = config.quota else {
        return Ok(None);
    };
    let group = Cgroup::create(bench.sandbox)?;
    group.set_cpu(Some(quota), QUOTA_PERIOD)?;
    slow.join(&group)?;
    Ok(Some(group))
}

fn assemble(
    bench: &Bench,
    config: &DegradeConfig,
    scheduler: &str,
    log: &Log,
    history: &History,
    cpu_busy_pct: f64,
) -> Run {
    let from_ns = log.start_ns + ((config.degrade_at_s + config.settle_s) * 1e9) as u64;
    let epoch_ns = (config.epoch_s * 1e9) as u64;
    let counted = report::summary(log, from_ns, log.end_ns);
    Run {
        scheduler: scheduler.to_owned(),
        p50_ms: counted.p50_ms,
        p90_ms: counted.p90_ms,
        p99_ms: counted.p99_ms,
        requests: counted.requests,
        requests_per_s: counted.rps,
        broken_connections: counted.broken_connections,
        cpu_busy_pct,
        client_cpu_pct: counted.generator.cores * 100.0,
        send_delay_p50_us: counted.generator.send_delay_p50_us,
        seconds: report::seconds(log),
        quantiles: report::quantiles(log, from_ns, log.end_ns),
        reals: series::tracks(log, history, &bench.real_names4(), epoch_ns),
    }
}

fn conditions(config: &DegradeConfig, bench: &Bench) -> RunConditions {
    let names = bench.real_names4();
    let slow = names.last().cloned().unwrap_or_default();
    let quota = config
        .quota
        .map(|q| format!(" and it keeps {:.0} % of one CPU", q * 100.0))
        .unwrap_or_default();
    let load = LoadConfig {
        slots: config.slots,
        page_interval_ms: config.page_interval_ms,
        ..LoadConfig::new(([0, 0, 0, 0], 0).into(), config.seed)
    };
    RunConditions {
        seed: config.seed,
        degradation: format!(
            "service times of {slow} are multiplied by {} from {} s on{quota}",
            config.factor, config.degrade_at_s
        ),
        degraded_real: slow,
        factor: config.factor,
        load: format!(
            "{} users, each a page of {} to {} objects every {} ms (about {:.0} requests/s in \
             all), at most {} requests outstanding per connection, connections of at most {} ms, \
             service of {:.0} ms (median; at least {:.0} ms), balancers: {}",
            load.slots,
            load.page.objects.0,
            load.page.objects.1,
            load.page_interval_ms,
            load.offered_rps(),
            config.outstanding,
            config.max_age_ms,
            load.page.service_median_us / 1000.0,
            f64::from(load.page.service_min_us) / 1000.0,
            config.balancers,
        ),
        run_s: config.run_s,
        degraded_at_s: config.degrade_at_s,
        settle_s: config.settle_s,
        epoch_s: config.epoch_s,
    }
}

pub const DEGRADE: Scenario = Scenario {
    name: "degrade",
    about: "one of four servers becomes slow half-way; the same load under two schedulers",
    params: &[
        param("run_s", "20", "length of each of the two runs, seconds"),
        param(
            "degrade_at_s",
            "10",
            "when the last server becomes slow, seconds",
        ),
        param(
            "settle_s",
            "2",
            "requests count from this long after, seconds",
        ),
        param(
            "epoch_s",
            "0.5",
            "interval of estimates and truths, seconds",
        ),
        param(
            "balancers",
            "1",
            "balancers that share packets and measurements",
        ),
        param("servers", "4", "nginx servers"),
        param(
            "factor",
            "8",
            "service times of the slow server are multiplied by this",
        ),
        param(
            "quota",
            "1",
            "share of one CPU that the slow server keeps; 1: no limit",
        ),
        param("slots", "40", "users of the load generator"),
        param("interval_ms", "1000", "time between the pages of a user"),
        param("outstanding", "4", "requests per connection"),
        param("max_age_ms", "2000", "longest life of a connection"),
        param("first", "maglev", "scheduler of the first run"),
        param("second", "latency", "scheduler of the second run"),
        param("forwarding", "ipip", "ipip or l2"),
        param(
            "control",
            "",
            "lines for the [control] table, with ; between them",
        ),
        param(
            "timestamps",
            "on",
            "the clients' TCP timestamps: on, off, or cookie (on, and the VIP has cookies)",
        ),
        param(
            "path_ms",
            "0",
            "round trip between clients and router, milliseconds",
        ),
        param(
            "latency",
            "",
            "what the controller goes by: server, response, agent, client; empty: the default",
        ),
        param(
            "sampling",
            "",
            "of how many connections one is measured, as 1/8; empty: what the controller chooses",
        ),
    ],
    run: run_scenario,
    table: |_| None,
};

fn run_scenario(context: &Context) -> Result<Value> {
    let quota: f64 = context.param("quota")?;
    let control: String = context.param("control")?;
    let lines = control.split(';').map(str::trim).filter(|l| !l.is_empty());
    let config = DegradeConfig {
        seed: context.seed,
        run_s: context.param("run_s")?,
        degrade_at_s: context.param("degrade_at_s")?,
        settle_s: context.param("settle_s")?,
        epoch_s: context.param("epoch_s")?,
        balancers: context.param("balancers")?,
        servers: context.param("servers")?,
        factor: context.param("factor")?,
        quota: (quota < 1.0).then_some(quota),
        slots: context.param("slots")?,
        page_interval_ms: context.param("interval_ms")?,
        outstanding: context.param("outstanding")?,
        max_age_ms: context.param("max_age_ms")?,
        schedulers: [context.param("first")?, context.param("second")?],
        forwarding: context.forwarding([ServerForwarding::Ipip, ServerForwarding::L2])?,
        control: lines.map(str::to_owned).collect(),
        timestamps: context.param("timestamps")?,
        path_ms: context.param("path_ms")?,
        latency: context.param("latency")?,
        sampling: context.param("sampling")?,
    };
    let outcome = run(context.sandbox, &context.binary, &config, &|live| {
        context.say(format!(
            "{:<8} {:5.1} s  {:6.0} requests/s  mean {:6.1} ms  broken {}{}",
            live.scheduler,
            live.at_s,
            live.requests_per_s,
            live.mean_ms,
            live.broken,
            if live.degraded { "  (degraded)" } else { "" }
        ));
    })?;
    Ok(serde_json::json!({ "summary": outcome.summary(), "outcome": outcome }))
}
