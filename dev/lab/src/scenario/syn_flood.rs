// SPDX-License-Identifier: Apache-2.0
//! SYNs from invented addresses beside real clients: connections that are open keep
//! their servers and their latency, whatever remembers them.

use std::net::SocketAddrV4;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::bench::{Bench, PORT};
use super::connections::{SharedKeys, with_ids};
use super::{Context, Scenario, param};
use crate::agent::AgentProcess;
use crate::balancer::{Balancer, BalancerSettings, ServerForwarding};
use crate::clock::until;
use crate::load::flood::{self, Flood};
use crate::load::{LoadConfig, report};
use crate::{api, topology};

pub(super) const SYN_FLOOD: Scenario = Scenario {
    name: "syn-flood",
    about: "open connections under a flood of SYNs from invented addresses",
    params: &[
        param(
            "seconds",
            "6",
            "length of the load before the flood, and under it",
        ),
        param("rate", "120000", "SYNs per second"),
        param(
            "slots",
            "40",
            "users of the load generator, one connection each",
        ),
        param(
            "flows",
            "4096",
            "flows that the balancer's table is made for",
        ),
        param(
            "modes",
            "table+cookie+stateful",
            "what remembers connections, in turn",
        ),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let modes: String = context.param("modes")?;
    let modes: Result<Vec<Mode>> = modes.split('+').map(Mode::parse).collect();
    let bench = Bench::build(context.sandbox, 2, 3)?;
    prepare(&bench)?;
    let keys = SharedKeys::with_cookies(&context.binary)?;
    let runs: Result<Vec<Value>> = modes?
        .into_iter()
        .map(|mode| run_mode(context, &bench, &keys, mode))
        .collect();
    Ok(json!({ "runs": runs? }))
}

/// What remembers where a connection is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Table,
    Cookie,
    Stateful,
}

impl Mode {
    const ALL: [(&str, Self); 3] = [
        ("table", Self::Table),
        ("cookie", Self::Cookie),
        ("stateful", Self::Stateful),
    ];

    fn parse(word: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(name, _)| *name == word);
        let modes = || Self::ALL.map(|(name, _)| name).join(", ");
        found
            .map(|(_, mode)| *mode)
            .with_context(|| format!("no mode is called {word:?}; there are {}", modes()))
    }

    fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// A balancer in this mode, with the agents that it needs.
fn set_up(
    context: &Context,
    bench: &Bench,
    keys: &SharedKeys,
    mode: Mode,
) -> Result<(Balancer, Vec<AgentProcess>)> {
    let mut vip = bench.vip4(0, "maglev", ServerForwarding::Ipip);
    let (mut agents, mut head) = (Vec::new(), Vec::new());
    if mode != Mode::Table {
        let servers = 0..bench.servers.len();
        agents = servers
            .map(|index| {
                let lines = keys.cookies_for(index, &[(vip.address, vip.port).into()]);
                bench.agent(&context.binary, index, &lines)
            })
            .collect::<Result<_>>()?;
        vip = with_ids(vip);
        head.push(keys.balancer_lines());
    }
    if mode == Mode::Stateful {
        // The word goes with the SYN, in GUE's private data.
        vip.forwarding = ServerForwarding::Gue;
        vip.keys.push("stateful = true".to_owned());
        head.push(format!(
            // Else no connection of the first ten seconds gets a slot.
            "[stateful]\nconnections = \"{}\"\nlearn_period = \"0s\"",
            context.param::<u32>("flows")?
        ));
    }
    let settings = BalancerSettings {
        vips: vec![vip],
        flows: Some(context.param("flows")?),
        head,
        ..BalancerSettings::default()
    };
    Ok((bench.balancer(&context.binary, &settings)?, agents))
}

/// Answers to the invented addresses go to the first client, which drops them.
fn prepare(bench: &Bench) -> Result<()> {
    let sink = &bench.topology.clients[0];
    let router = &bench.topology.router.netns;
    router.ip(&format!("route add {} via {}", flood::SOURCES, sink.ipv4))?;
    router.sysctl("net/ipv4/conf/all/rp_filter", "0")?;
    sink.netns.sysctl("net/ipv4/ip_forward", "0")
}

fn run_mode(context: &Context, bench: &Bench, keys: &SharedKeys, mode: Mode) -> Result<Value> {
    let target = SocketAddrV4::new(topology::vip4(0), PORT);
    let seconds: u64 = context.param("seconds")?;
    let (balancer, _agents) = set_up(context, bench, keys, mode)?;
    let mode = mode.name();
    let config = LoadConfig {
        duration_ms: 2 * seconds * 1000 + 1000,
        slots: context.param("slots")?,
        // Opened once, before the flood; none of them opens again under it.
        max_age_ms: 3_600_000,
        ..LoadConfig::new(target.into(), context.seed)
    };
    let running = bench.load(&config)?;
    sleep(Duration::from_secs(seconds + 1));
    let calm = api::stats(&balancer.socket())?;
    let flood = Flood::start(
        &bench.topology.clients[0].netns,
        target,
        context.param("rate")?,
    );
    sleep(Duration::from_secs(seconds));
    let sent = flood.finish()?;
    // Those that a device on the way has dropped are none; what waits in a backlog comes.
    let opened = |stats: &causeway_api::balancer::Stats| {
        api::verdict(&stats.verdicts, "opened") - api::verdict(&calm.verdicts, "opened")
    };
    let mut before = 0;
    let have_come = || {
        let end = api::stats(&balancer.socket())?;
        let all = before == opened(&end);
        before = opened(&end);
        Ok(all.then_some(end))
    };
    let end = until(Duration::from_secs(60), have_come)?.context("SYNs do not end")?;
    let opened = opened(&end);
    ensure!(
        opened as f64 > 0.5 * sent as f64,
        "{mode}: {sent} SYNs sent, but only {opened} reached a real"
    );
    let log = running.finish()?;
    balancer.end()?;
    let from_ns = log.start_ns + 1_000_000_000;
    let flood_ns = from_ns + seconds * 1_000_000_000;
    let before = report::summary(&log, from_ns, flood_ns);
    let under = report::summary(&log, flood_ns, flood_ns + seconds * 1_000_000_000);
    let ratio = under.p99_ms / before.p99_ms;
    context.say(format!(
        "{mode}: {sent} SYNs, of which {opened} reached a real, p99 {:.2} ms before and {:.2} ms under the flood",
        before.p99_ms, under.p99_ms
    ));
    ensure!(
        under.broken_connections == 0,
        "{mode}: broken: {:?}",
        under.faults
    );
    Ok(json!({
        "mode": mode, "syns_sent": sent, "syns_per_second": sent / seconds, "opened": opened,
        "p99_ratio": ratio, "within_twice": ratio <= 2.0,
        "before": before, "under_flood": under, "verdicts": api::occurred(&end.verdicts),
    }))
}
