// SPDX-License-Identifier: Apache-2.0
//! Four balancers behind a router that spreads packets over them, while everything
//! happens that happens to a fleet: which connections break.
//!
//! The router learns its routes by BGP from BIRD on each balancer and takes all of them
//! at once, by the hash of addresses and ports; a route that comes or goes moves
//! connections between balancers. Three kinds of clients: TCP with timestamps, whose
//! cookies name their server; QUIC, whose connection ids do; and TCP without timestamps,
//! for which there are tables and hashes alone.
//!
//! The balancers share a book in etcd, which is stopped, and wiped, and back; files reach them in any
//! order. Servers' agents get ids, keys and configurations of connection ids from any balancer, and
//! have none in files; QUIC servers follow what their agents write.

mod bgp;
mod etcd;
mod members;
mod plan;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use self::bgp::Bird;
use self::etcd::Etcd;
use self::members::{Fleet, Pool, agents_address};
use self::plan::{Event, FleetPlan};
use super::connections::{ConnectionLoad, RunningClients, SharedKeys, Tally};
use super::{Context, Scenario, bench, param};
use crate::agent::AgentProcess;
use crate::modelled_servers::{self, ModelledServers};
use crate::quic::modelled_servers::QuicModelledServers;
use crate::topology::{self, Shape, Topology};

const BALANCERS: usize = 4;
/// The number of the key that `causeway cookie new-keys` makes.
const FIRST_KEY: u64 = 2;
/// How long after the last event all balancers and agents may take to come to it.
const SETTLES: Duration = Duration::from_secs(60);
/// How often a change is retried that had to wait for a balancer that lags.
const RETRY: Duration = Duration::from_millis(250);

pub(super) const FLEET: Scenario = Scenario {
    name: "fleet",
    about: "four balancers behind a router come, go, lag and change: which connections break",
    params: &[
        param("seconds", "240", "how long new connections come"),
        param("servers", "6", "servers at the start"),
        param(
            "low",
            "20",
            "lowest rate of new connections per second with timestamps",
        ),
        param("high", "40", "highest rate of them"),
        param(
            "other",
            "",
            "binary of another build to upgrade to; the same by default",
        ),
    ],
    run,
    table: |result| {
        let clients = result["interface"]["clients"].as_array()?;
        let lines = clients.iter().map(|row| {
            format!(
                "{:<12} {:>6} of {:>6} connections broken",
                row["kind"].as_str().unwrap_or_default(),
                row["broken_connections"],
                row["connections"]
            )
        });
        Some(lines.collect::<Vec<_>>().join("\n"))
    },
};

/// A kind of clients. All of one share a namespace.
struct ClientKind {
    name: &'static str,
    quic: bool,
    timestamps: bool,
    /// Part of the rate of those with timestamps.
    share: f64,
    /// What carries the server's id, if anything does.
    has_cookies: bool,
}

const KINDS: [ClientKind; 3] = [
    ClientKind {
        name: "timestamps",
        quic: false,
        timestamps: true,
        share: 1.0,
        has_cookies: true,
    },
    ClientKind {
        name: "plain",
        quic: false,
        timestamps: false,
        share: 0.6,
        has_cookies: false,
    },
    // Each costs two handshakes with cryptography and a socket of its own.
    ClientKind {
        name: "quic",
        quic: true,
        timestamps: true,
        share: 0.3,
        has_cookies: true,
    },
];

fn run(context: &Context) -> Result<Value> {
    let plan = FleetPlan::read(context)?;
    modelled_servers::raise_fd_limit(16_384)?;
    let (topology, nodes) = build(context, plan.servers_at_most())?;
    let keys = SharedKeys::new(&context.binary)?;
    keys.make_cookies()?;
    let _web = ModelledServers::start(&topology.servers, bench::PORT)?;
    let silence = plan.lasts * 2;
    let agents = start_agents(&context.binary, &topology, &keys, &nodes)?;
    let servers = &topology.servers;
    let vips = [topology::vip4(0).into(), topology::vip6(0).into()];
    let files = agents.iter().map(AgentProcess::quic_ids);
    let _quic =
        QuicModelledServers::start_by_files(servers, bench::QUIC_PORT, silence, vips, files)?;
    let _router = Bird::on_router(&topology.router, &nodes)?;
    let pool = Pool {
        known: plan.servers,
        drained: 0,
        quic_configs: 1,
    };
    let store = Etcd::start(&topology.router)?;
    let fleet = Fleet::start(&context.binary, &topology, &nodes, &keys, store, pool)?;
    let other: String = context.param("other")?;
    let mut run = FleetRun {
        context,
        plan: &plan,
        fleet,
        agents,
        keys: &keys,
        other: match other.as_str() {
            "" => context.binary.clone(),
            path => PathBuf::from(path),
        },
        pool,
        key: FIRST_KEY,
        waits: false,
        issues: false,
        restarted: 0,
        start: Instant::now(),
        tallies: Vec::new(),
        events: Vec::new(),
    };
    wait_routed(&topology)?;
    run.fleet.wait_for_agents()?;
    let running: Vec<_> = KINDS
        .iter()
        .zip(&topology.clients)
        .map(|(kind, node)| {
            let tally = Arc::new(Tally::new());
            let load = load(context, &plan, kind);
            let clients = std::slice::from_ref(&node.netns);
            (kind, RunningClients::start(clients, &load, &tally), tally)
        })
        .collect();
    run.tallies = running
        .iter()
        .map(|(.., tally)| Arc::clone(tally))
        .collect();
    run.start = Instant::now();
    let happened = run.happen();
    let mut clients = Vec::new();
    let mut broken = 0;
    for (kind, running, tally) in running {
        running.finish()?;
        let totals = tally.totals(plan.lasts);
        ensure!(totals.requests > 0, "no {} client was served", kind.name);
        if kind.has_cookies {
            broken += totals.broken_connections;
        }
        context.say(format!(
            "{}: {} of {} connections broken {:?}",
            kind.name, totals.broken_connections, totals.connections, totals.faults
        ));
        clients.push(json!({
            "kind": kind.name, "connections": totals.connections,
            "broken_connections": totals.broken_connections, "requests": totals.requests,
            "faults": totals.faults, "client_moves": totals.client_moves,
        }));
    }
    happened?;
    let events = std::mem::take(&mut run.events);
    if broken > 0 {
        // Where packets went that broke them.
        for (name, verdicts) in run.fleet.verdicts()? {
            context.say(format!("{name}: {verdicts:?}"));
        }
    }
    run.fleet.stop()?;
    ensure!(
        broken == 0,
        "{broken} connections with cookies broke: {}",
        json!(clients)
    );
    Ok(json!({ "interface": { "clients": clients, "events": events } }))
}

/// The machines; the router spreads by addresses and ports.
fn build(context: &Context, servers: usize) -> Result<(Topology, Vec<topology::Node>)> {
    let shape = Shape {
        clients: KINDS.len(),
        servers,
    };
    let mut topology = Topology::build(context.sandbox, shape)?;
    let mut nodes = vec![topology.balancer.clone()];
    for _ in 1..BALANCERS {
        nodes.push(topology.add_balancer(context.sandbox)?);
    }
    let router = &topology.router.netns;
    router.ip(&format!(
        "route del {}\nroute del {}\n",
        topology::vip4(0),
        topology::vip6(0)
    ))?;
    for family in ["ipv4", "ipv6"] {
        router.sysctl(&format!("net/{family}/fib_multipath_hash_policy"), "1")?;
    }
    for (kind, node) in KINDS.iter().zip(&topology.clients) {
        if !kind.timestamps {
            node.netns.sysctl("net/ipv4/tcp_timestamps", "0")?;
        }
    }
    Ok((topology, nodes))
}

/// Each agent is given one of the balancers, and learns the others.
fn start_agents(
    binary: &Path,
    topology: &Topology,
    keys: &SharedKeys,
    balancers: &[topology::Node],
) -> Result<Vec<AgentProcess>> {
    let servers = topology.servers.iter().enumerate();
    servers
        .map(|(index, server)| {
            let balancer = &balancers[index % balancers.len()];
            let cookies = keys.book_of_agent(server, agents_address(balancer))?;
            AgentProcess::start_with(binary, server, &bench::pin_dir(server), &cookies)
        })
        .collect()
}

/// The router's routes to a VIP, by IPv4 and IPv6.
fn routes(router: &topology::Node) -> Result<[String; 2]> {
    let show = |flag, vip: &str| {
        let mut command = router.netns.command("ip");
        let output = command.args([flag, "route", "show", vip]).output()?;
        anyhow::Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    Ok([
        show("-4", &topology::vip4(0).to_string())?,
        show("-6", &topology::vip6(0).to_string())?,
    ])
}

/// Waits until the router has a route over every balancer.
fn wait_routed(topology: &Topology) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let mut missing = routes(&topology.router)?.to_vec();
        missing.retain(|routes| routes.matches("via ").count() < BALANCERS);
        if missing.is_empty() {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "the router does not have {BALANCERS} routes: {missing:?}"
        );
        sleep(Duration::from_millis(50));
    }
}

fn load(context: &Context, plan: &FleetPlan, kind: &ClientKind) -> ConnectionLoad {
    let port = match kind.quic {
        true => bench::QUIC_PORT,
        false => bench::PORT,
    };
    ConnectionLoad {
        targets: vec![
            (topology::vip4(0), port).into(),
            (topology::vip6(0), port).into(),
        ],
        quic: kind.quic,
        lasts: plan.lasts,
        rates: (plan.rates.0 * kind.share, plan.rates.1 * kind.share),
        streams: (40.0 * kind.share) as usize,
        idlers: (30.0 * kind.share) as usize,
        idle: (plan.lasts / 4, plan.lasts / 2),
        seed: context.seed,
    }
}

struct FleetRun<'a> {
    context: &'a Context,
    plan: &'a FleetPlan,
    fleet: Fleet<'a>,
    agents: Vec<AgentProcess>,
    keys: &'a SharedKeys,
    /// What a balancer is upgraded to.
    other: PathBuf,
    pool: Pool,
    /// The number of the key of cookies that is to be issued.
    key: u64,
    /// A change that not all balancers have made yet.
    waits: bool,
    /// It is a new key, which is issued once they have.
    issues: bool,
    restarted: usize,
    start: Instant,
    /// What the clients have seen.
    tallies: Vec<Arc<Tally>>,
    events: Vec<Value>,
}

impl FleetRun<'_> {
    /// Everything of the plan, in its time.
    fn happen(&mut self) -> Result<()> {
        for (at, event) in self.plan.events() {
            self.wait_until(at)?;
            self.step(&format!("{event:?}"), |run| run.one(event))?;
        }
        self.wait_until(self.plan.lasts)?;
        // On a busy machine the last events come late.
        let deadline = Instant::now() + SETTLES;
        while self.waits {
            ensure!(
                Instant::now() < deadline,
                "balancers do not agree {SETTLES:?} after the end of the run"
            );
            self.wait_until(self.start.elapsed() + RETRY)?;
        }
        Ok(())
    }

    /// Waits, and meanwhile does what had to wait as soon as it may be done.
    fn wait_until(&mut self, at: Duration) -> Result<()> {
        loop {
            if self.waits && self.is_ready()? {
                self.step("what waited", Self::settle)?;
            }
            let left = at.saturating_sub(self.start.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            sleep(left.min(RETRY));
        }
    }

    /// Whether what waits may be done: all balancers have what it needs.
    fn is_ready(&self) -> Result<bool> {
        Ok(self.fleet.agrees()? && self.fleet.is_settled(self.key, self.pool)?)
    }

    fn step(&mut self, what: &str, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let began = self.start.elapsed();
        let broken: u64 = self.tallies.iter().map(|tally| tally.so_far().1).sum();
        self.context.say(format!(
            "{:.0} s, {broken} broken so far: {what}",
            began.as_secs_f64()
        ));
        body(self).with_context(|| what.to_owned())?;
        let took = self.start.elapsed() - began;
        self.events.push(json!({
            "event": what, "at_s": began.as_secs_f64(), "took_s": took.as_secs_f64(),
            "broken_before": broken,
        }));
        Ok(())
    }

    fn one(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Grow => {
                self.pool.known += 1;
                self.change()
            }
            Event::Shrink => {
                self.pool.drained += 1;
                self.change()
            }
            Event::RotateKeys => {
                self.keys.rotate_cookies("--prepare")?;
                self.key += 1;
                self.pool.quic_configs += 1;
                self.issues = true;
                self.change()
            }
            Event::RestartAgents => {
                let mut half = self.agents.iter_mut().skip(self.restarted % 2).step_by(2);
                self.restarted += 1;
                half.try_for_each(AgentProcess::restart)
            }
            Event::Crash(index) => self.fleet.crash(index),
            Event::Join(index) => self.fleet.join(index, self.pool),
            Event::Leave(index) => self.fleet.leave(index),
            Event::Lag(index) => self.fleet.lag(index, true),
            Event::CatchUp(index) => {
                self.fleet.lag(index, false)?;
                self.fleet.apply(self.pool)
            }
            Event::StopStore => {
                self.fleet.store.stop();
                Ok(())
            }
            Event::StartStore => self.fleet.store.again(),
            Event::StartEmptyStore => self.fleet.store.again_empty(),
            Event::Upgrade(index) => {
                let other = self.other.clone();
                self.fleet.upgrade(index, &other)
            }
            Event::Kill(index) => self.fleet.kill(index),
            Event::ReloadAll => self.fleet.reload(),
        }
    }

    fn change(&mut self) -> Result<()> {
        self.waits = true;
        self.fleet.apply(self.pool)
    }

    /// All balancers have made the change.
    fn settle(&mut self) -> Result<()> {
        self.waits = false;
        if std::mem::take(&mut self.issues) {
            self.keys.rotate_cookies("--switch")?;
            self.fleet.reload()?;
        }
        Ok(())
    }
}
