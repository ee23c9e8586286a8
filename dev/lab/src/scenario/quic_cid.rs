// SPDX-License-Identifier: Apache-2.0
//! QUIC connections on real stacks, whose ids carry their server's: clients move, NATs
//! give other ports, the pool changes, the balancer is swapped for an empty one, and
//! keys are rotated. Beside it the same load on the balancer's table and hash alone.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::bench::Bench;
use super::connections::{SharedKeys, cid};
use super::{Context, Scenario, param};
use crate::api;
use crate::balancer::{Balancer, BalancerSettings, ServerForwarding, VipEntry};
use crate::load::log::{ConnectionFault, Log};
use crate::load::{LoadConfig, RunningLoad, report};
use crate::quic::client::QuicClientOptions;
use crate::quic::{self, Cid, Server, ServerConfig, Stack};
use crate::scenario::bench::QUIC_PORT;
use crate::topology::Node;

const SERVERS: usize = 4;
/// How much longer than planned the changes may take.
const LONGEST: Duration = Duration::from_secs(300);

pub(super) const QUIC_CID: Scenario = Scenario {
    name: "quic-cid",
    about: "QUIC connections on quinn and quic-go stay on their servers, whatever changes",
    params: &[
        param("step_ms", "4000", "time between two changes"),
        param("slots", "12", "users of each of the three kinds of clients"),
        param(
            "servers",
            "quinn,quic-go",
            "stacks of the servers, by turns",
        ),
        param("algorithm", "siphash", "siphash, aes or plain"),
        param("beside", "true", "whether to run the same without ids"),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let mut bench = Bench::bare(context.sandbox, 3, SERVERS)?;
    let second = bench.topology.add_balancer(context.sandbox)?;
    let mut runs = vec![one(context, &bench, &second, true)?];
    let broken = |run: &Value| run["broken_connections"].as_u64().unwrap_or(u64::MAX);
    if context.param("beside")? {
        runs.push(one(context, &bench, &second, false)?);
        ensure!(
            broken(&runs[1]) > 0,
            "without ids nothing broke either: this shows nothing"
        );
    }
    ensure!(
        broken(&runs[0]) == 0,
        "broken connections: {}",
        runs[0]["broken_by"]
    );
    Ok(json!({ "runs": runs }))
}

/// The world of one run.
struct World<'a> {
    context: &'a Context,
    bench: &'a Bench,
    /// Where the empty balancer starts.
    second: &'a Node,
    stacks: Vec<Stack>,
    servers: Vec<Server>,
    /// The service over IPv4 and over IPv6.
    vips: [VipEntry; 2],
    algorithm: String,
    keys: SharedKeys,
    with_ids: bool,
}

fn one(context: &Context, bench: &Bench, second: &Node, with_ids: bool) -> Result<Value> {
    let mut vips = [
        bench.quic_vip4(0, "round-robin", ServerForwarding::Ipip),
        bench.quic_vip6(0, "round-robin", ServerForwarding::Ipip),
    ];
    for vip in &mut vips {
        for (id, real) in vip.reals.iter_mut().enumerate() {
            real.keys
                .extend(with_ids.then(|| format!("id = {}", id_of(id))));
        }
    }
    let servers: String = context.param("servers")?;
    let mut world = World {
        context,
        bench,
        second,
        stacks: servers.split(',').map(str::parse).collect::<Result<_>>()?,
        servers: Vec::new(),
        vips,
        algorithm: context.param("algorithm")?,
        keys: SharedKeys::new(&context.binary)?,
        with_ids,
    };
    world.start_servers()?;
    world.run()
}

/// Ids that have nothing to do with the order of servers.
fn id_of(server: usize) -> u16 {
    [700, 1, 1023, 12][server % SERVERS]
}

impl World<'_> {
    fn start_servers(&mut self) -> Result<()> {
        for (i, node) in self.bench.topology.servers.iter().enumerate() {
            let config = ServerConfig {
                cid: self.with_ids.then(|| self.cid(0, i)),
                ..ServerConfig::new(&node.ipv4.to_string(), QUIC_PORT)?
            };
            self.servers
                .push(Server::start(&node.netns, self.stack_of(i), &config)?);
        }
        Ok(())
    }

    fn stack_of(&self, server: usize) -> Stack {
        self.stacks[server % self.stacks.len()]
    }

    fn cid(&self, number: u8, server: usize) -> Cid {
        Cid {
            algorithm: self.algorithm.clone(),
            server: id_of(server).into(),
            ..cid(number, server)
        }
    }

    /// What the balancer gets: reals with their states, and these configurations.
    fn settings(
        &self,
        reals: usize,
        drained: Option<usize>,
        numbers: &[u8],
    ) -> Result<BalancerSettings> {
        let mut vips = self.vips.clone();
        let configs: Vec<String> = numbers
            .iter()
            .map(|&number| self.keys.quic_cid_by(number, &self.algorithm))
            .collect::<Result<_>>()?;
        for vip in &mut vips {
            vip.reals.truncate(reals);
            if let Some(drained) = drained {
                vip.reals[drained].drain = true;
            }
            if self.with_ids {
                vip.keys = vec![format!("quic_cid = [{}]", configs.join(", "))];
            }
        }
        Ok(BalancerSettings {
            vips: vips.to_vec(),
            // Then nothing but the ids knows where a connection is.
            measure: Some(false),
            ..BalancerSettings::default()
        })
    }

    fn run(&mut self) -> Result<Value> {
        let step = Duration::from_millis(self.context.param("step_ms")?);
        let name = if self.with_ids { "quic-cid" } else { "hash" };
        let say = |what: &str| self.context.say(format!("{name}: {what}"));
        let three = self.settings(SERVERS - 1, None, &[0])?;
        self.bench
            .topology
            .route_vips(&self.bench.topology.balancer)?;
        let mut balancer = self.balancer(&three)?;
        let mut loads = self.loads(step * 6)?;
        sleep(step);
        say("adding a server");
        balancer.apply(&self.settings(SERVERS, None, &[0])?)?;
        sleep(step);
        say("draining a server");
        let drained = self.settings(SERVERS, Some(0), &[0])?;
        balancer.apply(&drained)?;
        sleep(step);
        say("swapping the balancer for an empty one");
        // The empty one serves before the other ends: without any for as long as a busy machine
        // takes to start it, clients would run into their timeouts.
        let next = Balancer::start(&self.context.binary, self.second, &drained)?;
        self.bench.topology.route_vips(self.second)?;
        balancer.kill()?;
        balancer.detach()?;
        balancer = next;
        sleep(step);
        if self.with_ids {
            say("rotating keys");
            self.rotate(&balancer)?;
        }
        sleep(step * 2);
        loads.iter_mut().for_each(|(_, load)| load.stop());
        let mut log = Log::default();
        let mut broken = BTreeMap::new();
        for (kind, load) in loads {
            let part = load.finish()?;
            self.count_broken(&kind, &part, &mut broken);
            (log.start_ns, log.end_ns) = (part.start_ns, part.end_ns);
            log.append(part);
        }
        let stats = api::stats(&balancer.socket())?;
        let mut result = self.report(name, &log, &stats)?;
        result["broken_by"] = json!(broken);
        balancer.end()?;
        Ok(result)
    }

    /// Another configuration: the balancer learns it before servers issue by it.
    fn rotate(&mut self, balancer: &Balancer) -> Result<()> {
        balancer.write_config(&self.settings(SERVERS, Some(0), &[0, 1])?)?;
        balancer.reload_now()?;
        let next: Vec<Cid> = (0..SERVERS).map(|server| self.cid(1, server)).collect();
        let mut servers = self.servers.iter_mut().zip(&next);
        servers.try_for_each(|(server, cid)| server.rotate(cid))
    }

    /// Broken connections of a kind of clients, by their server's stack and the reason.
    fn count_broken(&self, kind: &str, log: &Log, broken: &mut BTreeMap<String, u64>) {
        let nodes = &self.bench.topology.servers;
        for connection in &log.connections {
            let Some(fault) = connection.fault else {
                continue;
            };
            let name = connection.real.and_then(|r| log.reals.get(usize::from(r)));
            let server = name.and_then(|n| nodes.iter().position(|s| s.ipv4.to_string() == *n));
            let stack = server.map_or("no server yet", |server| self.stack_of(server).name());
            *broken
                .entry(format!("{kind} to {stack}: {}", fault.name()))
                .or_default() += 1;
        }
    }

    fn balancer(&self, settings: &BalancerSettings) -> Result<Balancer> {
        self.bench.balancer(&self.context.binary, settings)
    }

    /// Clients of both stacks that migrate, and clients behind NATs; half of each by
    /// IPv6. Kinds have names.
    /// They go on until they are stopped: changes take their time on a busy machine.
    fn loads(&self, length: Duration) -> Result<Vec<(String, RunningLoad)>> {
        let namespaces = self.bench.client_namespaces();
        let kinds = [
            ("quinn that migrates", Stack::Quinn, Some(700), None),
            ("quinn behind a NAT", Stack::Quinn, None, Some(900)),
            ("quic-go that migrates", Stack::QuicGo, Some(800), None),
        ];
        let slots: usize = self.context.param("slots")?;
        ensure!(slots > 1, "at least two slots: one of each family");
        let mut loads = Vec::new();
        for (i, (kind, stack, migrate_ms, nat_ms)) in kinds.into_iter().enumerate() {
            for (family, vip) in ["IPv4", "IPv6"].into_iter().zip(&self.vips) {
                let config = LoadConfig {
                    duration_ms: (length + LONGEST).as_millis() as u64,
                    slots: slots / 2,
                    // Some live through every change, others are made after it.
                    max_age_ms: length.as_millis() as u64 * 2,
                    page_interval_ms: 400,
                    // While the balancer is swapped there is none for a moment, and a
                    // client's first packets are repeated after 1, 3 and 7 s.
                    timeout_ms: 10_000,
                    ..LoadConfig::new((vip.address, QUIC_PORT).into(), self.context.seed)
                };
                let options = QuicClientOptions { migrate_ms, nat_ms };
                let clients = std::slice::from_ref(&namespaces[i]);
                let load = quic::load(stack, clients, &config, &options)?;
                loads.push((format!("{kind}, {family}"), load));
            }
        }
        Ok(loads)
    }

    fn report(
        &self,
        name: &str,
        log: &Log,
        stats: &causeway_api::balancer::Stats,
    ) -> Result<Value> {
        let clients = report::summary(log, log.start_ns, log.end_ns);
        // The servers' ids live for two seconds, for a rotation to reach old connections:
        // with so short a life quinn breaks some of them, which has nothing to do with balancing.
        let by_servers = clients.faults.get(ConnectionFault::IdLimit.name());
        let by_servers = by_servers.copied().unwrap_or(0);
        let broken = clients.broken_connections - by_servers;
        let lost: u64 = log.connections.iter().map(|c| u64::from(c.lost)).sum();
        self.context.say(format!(
            "{name}: {} connections, {} moves, {broken} broken, {by_servers} with too many ids",
            clients.connections, log.migrations
        ));
        ensure!(
            log.migrations > 0 && clients.requests > 0,
            "nothing moved: {clients:?}"
        );
        let results: BTreeMap<_, _> = stats
            .vips
            .iter()
            .flat_map(|vip| &vip.cookie.results)
            .filter(|result| result.packets > 0)
            .map(|result| (&result.result, result.packets))
            .collect();
        Ok(json!({
            "name": name, "transport": "quic", "algorithm": self.algorithm,
            "connections": clients.connections,
            "broken_connections": broken, "ended_by_too_many_ids": by_servers,
            "requests": clients.requests, "broken_requests": lost,
            "client_moves": log.migrations, "faults": clients.faults,
            "p50_ms": clients.p50_ms, "p99_ms": clients.p99_ms,
            "verdicts": api::occurred(&stats.verdicts),
            "cookie_results": results,
        }))
    }
}
