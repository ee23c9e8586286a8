// SPDX-License-Identifier: Apache-2.0
//! A server that answers fast those whom it takes, and drops the SYNs of the others: a
//! balancer that goes by client latency sends it less. One that goes by responses leaves
//! it its weight: a connection has one request, and no packet that shows its response.

use std::net::SocketAddrV4;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use causeway_dataplane::Protocol;
use serde_json::{Value, json};

use super::connections::SharedKeys;
use super::{Context, Scenario, param};
use crate::accept_queue_server::{AcceptQueueConfig, AcceptQueueServer};
use crate::agent::AgentProcess;
use crate::api;
use crate::balancer::{Balancer, BalancerSettings, RealEntry, ServerForwarding, VipEntry};
use crate::clock::until;
use crate::impatient_clients::{ImpatientClients, ImpatientClientsConfig, Transaction};
use crate::topology::{Shape, Topology, vip4};

const PORT: u16 = 80;
/// Where agents report.
const REPORTS_PORT: u16 = 9472;
/// How often the weights are read.
const LOOKS_PER_S: u64 = 4;
/// Less than half of what each of three servers would have.
const RELIEVED: f64 = 0.5 / 3.0;
/// How often both are compared: what else runs differs from one to the other. What does not help
/// never does.
const TRIES: usize = 3;
/// How long the balancer may take to see that an agent is gone: a report holds for 3 s.
const SEEN: Duration = Duration::from_secs(60);

pub(super) const CLIENT_LATENCY: Scenario = Scenario {
    name: "client-latency",
    about: "a server that drops SYNs, weighed by its responses and by client latency",
    params: &[
        param("seconds", "15", "length that counts of each run"),
        param("warm_up_s", "8", "what is left out before: weights settle"),
        param("rate", "420", "connections a second, to three servers"),
    ],
    run: run_scenario,
    table: |_| None,
};

fn run_scenario(context: &Context) -> Result<Value> {
    let mut vain = Vec::new();
    while vain.len() < TRIES {
        let rows = ["response", "client"].map(|source| by(context, source, vain.len()));
        let [response, client] = rows;
        let rows = [response?, client?];
        // Not of the share by responses: where the machine is busy, the server's are late, too.
        if rows[1].share < RELIEVED && rows[1].felt_ms < rows[0].felt_ms {
            return Ok(json!({ "runs": rows, "vain": vain }));
        }
        vain.push(rows);
    }
    bail!("going by clients did not help: {vain:?}");
}

fn by(context: &Context, source: &'static str, attempt: usize) -> Result<Row> {
    let row = run(context, source, attempt)?;
    context.say(format!(
        "by {source}: client latency {:.0} ms, the server that drops has {:.2} of the weight, responses of it take {:.0} ms",
        row.felt_ms, row.share, row.response_ms
    ));
    Ok(row)
}

/// What one kind of latency led to.
#[derive(Debug, serde::Serialize)]
struct Row {
    name: &'static str,
    /// Mean over all transactions, and the share of those that lost a SYN or more.
    felt_ms: f64,
    retried_pct: f64,
    /// Weight of the server that drops, as a share of all, on the mean after the warm-up.
    share: f64,
    /// Its mean response latency, as the balancer measures it.
    response_ms: f64,
    /// Intervals by responses: before the first reports, and after an agent was killed.
    fallbacks_at_end: u64,
    fallbacks_without_agent: u64,
}

fn run(context: &Context, source: &'static str, attempt: usize) -> Result<Row> {
    let shape = Shape {
        clients: 1,
        servers: 3,
    };
    let topology = Topology::build_another(context.sandbox, shape, &format!("{source}{attempt}-"))?;
    let vip = SocketAddrV4::new(vip4(0), PORT);
    let shared = SharedKeys::with_cookies(&context.binary)?;
    let keys = shared.cookies();
    let listen = format!("{}:{REPORTS_PORT}", topology.balancer.ipv4);
    let mut agents = Vec::new();
    let mut servers = Vec::new();
    for (index, node) in topology.servers.iter().enumerate() {
        servers.push(AcceptQueueServer::start(
            &node.netns,
            server(vip, index, context.seed),
        )?);
        let lines = format!(
            "[agent.clients]\nservices = [\"{vip}\"]\nhistory = \"\"\n\
             [agent.report]\nclient_latency = true\nto = [\"{listen}\"]\nkeys = \"{}\"\n",
            keys.display()
        );
        let pins = Path::new("/sys/fs/bpf").join(node.netns.name());
        agents.push(AgentProcess::start_with(
            &context.binary,
            node,
            &pins,
            &lines,
        )?);
    }
    let settings = BalancerSettings {
        vips: vec![VipEntry {
            address: (*vip.ip()).into(),
            port: PORT,
            protocol: Protocol::Tcp,
            scheduler: "latency".to_owned(),
            keys: vec![format!("latency = \"{source}\"")],
            forwarding: ServerForwarding::Ipip,
            reals: topology
                .servers
                .iter()
                .map(|node| RealEntry::of(node, (*vip.ip()).into()))
                .collect(),
        }],
        head: vec![format!(
            "[agent_reports]\nlisten = \"{listen}\"\nkeys = \"{}\"",
            keys.display()
        )],
        ..BalancerSettings::default()
    };
    let balancer = Balancer::start(&context.binary, &topology.balancer, &settings)?;

    let (warm_up_s, seconds): (u64, u64) = (context.param("warm_up_s")?, context.param("seconds")?);
    let rate: f64 = context.param("rate")?;
    let clients = ImpatientClientsConfig {
        target: vip,
        clients: 4000,
        requests: 1,
        connect_timeouts: vec![Duration::from_secs(9)],
        on_off: None,
        arrivals: Some((rate, rate)),
        duration: Duration::from_secs(warm_up_s + seconds),
        service: Duration::ZERO,
        seed: context.seed,
    };
    let clients = ImpatientClients::start(&topology.clients[0].netns, clients);
    std::thread::sleep(Duration::from_secs(warm_up_s));
    // On the mean: where the server drops nothing for a while it gets weight back, until it
    // drops again.
    let looks = (seconds * LOOKS_PER_S).max(1);
    let (mut shares, mut response_ms) = (0.0, f64::NAN);
    for _ in 0..looks {
        std::thread::sleep(Duration::from_secs(1) / LOOKS_PER_S as u32);
        let (share, latency_ms) = first(&balancer)?;
        shares += share;
        response_ms = latency_ms;
    }
    let share = shares / looks as f64;
    let fallbacks_at_end = fallbacks(&balancer)?;
    let truth = clients.finish()?;
    drop(agents.pop());
    let fallbacks_without_agent = match source {
        "client" => wait_fallback(&balancer)?,
        _ => 0,
    };
    balancer.end()?;
    drop(servers);
    let (felt_ms, retried_pct) = client_latency(&truth, warm_up_s)?;
    Ok(Row {
        name: source,
        felt_ms,
        retried_pct,
        share,
        response_ms,
        fallbacks_at_end,
        fallbacks_without_agent,
    })
}

/// The first is fast and has room for three connections, the others are slower and have
/// room for all.
fn server(vip: SocketAddrV4, index: usize, seed: u64) -> AcceptQueueConfig {
    let (workers, service_ms, backlog) = match index {
        0 => (2, 10, 0),
        _ => (64, 40, 1024),
    };
    AcceptQueueConfig {
        address: vip,
        workers,
        service: Duration::from_millis(service_ms),
        backlog: vec![backlog],
        period: Duration::from_secs(60),
        seed: seed ^ index as u64,
    }
}

/// Weight of the first real as a share of all, and its response latency.
fn first(balancer: &Balancer) -> Result<(f64, f64)> {
    let stats = api::stats(&balancer.socket())?;
    let reals = stats.vips.first().map_or(&[][..], |vip| &vip.reals);
    let first = reals.first().context("no reals")?;
    let all: f64 = reals.iter().map(|real| real.effective_weight).sum();
    let latency_us = first.latency.mean_us.unwrap_or(f64::NAN);
    Ok((first.effective_weight / all, latency_us / 1e3))
}

fn fallbacks(balancer: &Balancer) -> Result<u64> {
    let stats = api::stats(&balancer.socket())?;
    let vip = stats.vips.first().context("no VIP")?;
    Ok(vip.latency_fallbacks)
}

/// Waits until the balancer goes by responses again; intervals that did.
fn wait_fallback(balancer: &Balancer) -> Result<u64> {
    let before = fallbacks(balancer)?;
    let more = until(SEEN, || {
        let more = fallbacks(balancer)? - before;
        Ok((more > 0).then_some(more))
    })?;
    more.with_context(|| {
        let messages = balancer.messages();
        format!("an agent is gone, and the balancer still goes by what it told: {messages}")
    })
}

/// Mean response time of what ended after the warm-up, milliseconds; percent that took
/// longer than the first retry.
fn client_latency(truth: &[Transaction], warm_up_s: u64) -> Result<(f64, f64)> {
    let begun = truth.iter().map(|of| of.begin_ns).min();
    let from_ns = begun.context("no client began")? + warm_up_s * 1_000_000_000;
    let took_s = truth.iter().filter(|of| of.end_ns >= from_ns);
    let took_s: Vec<f64> = took_s
        .map(|of| (of.end_ns - of.begin_ns) as f64 / 1e9)
        .collect();
    ensure!(!took_s.is_empty(), "nothing ended after the warm-up");
    let count = took_s.len() as f64;
    let retried = took_s.iter().filter(|s| **s > 1.0).count();
    Ok((
        1e3 * took_s.iter().sum::<f64>() / count,
        100.0 * retried as f64 / count,
    ))
}
