// SPDX-License-Identifier: Apache-2.0
//! QUIC connections on real stacks, whose ids carry their server's: clients move, NATs
//! give other ports, the pool changes, the balancer is swapped for an empty one, and
//! keys are rotated. Beside it the same load on the balancer's table and hash alone.

use std::collections::BTreeMap;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{Context, Param, Scenario, bench::Bench, param};
use crate::api;
use crate::balancer::{Balancer, Forwarding, Settings, Vip};
use crate::load::log::Log;
use crate::load::{LoadConfig, Running, report};
use crate::quic::client::Options;
use crate::quic::{self, Cid, Server, ServerConfig, Stack};
use crate::scenario::bench::QUIC_PORT;

const SERVERS: usize = 4;
/// Octets of the nonce: ids of all configurations have one length.
const NONCE: u8 = 8;

pub struct QuicCid;

impl Scenario for QuicCid {
    fn name(&self) -> &'static str {
        "quic-cid"
    }

    fn about(&self) -> &'static str {
        "QUIC connections on quinn and quic-go stay on their servers, whatever changes"
    }

    fn params(&self) -> &'static [Param] {
        const PARAMS: &[Param] = &[
            param("step_ms", "4000", "time between two changes"),
            param("slots", "12", "users of each of the three kinds of clients"),
            param("algorithm", "siphash", "siphash, aes or plain"),
            param("beside", "true", "whether to run the same without ids"),
        ];
        PARAMS
    }

    fn run(&self, context: &Context) -> Result<Value> {
        let bench = Bench::bare(context.sandbox, 3, SERVERS)?;
        let mut runs = vec![one(context, &bench, true)?];
        let broken = |run: &Value| run["broken_connections"].as_u64().unwrap_or(u64::MAX);
        if context.param("beside")? {
            runs.push(one(context, &bench, false)?);
            ensure!(
                broken(&runs[1]) > 0,
                "without ids nothing broke either: this shows nothing"
            );
        }
        ensure!(
            broken(&runs[0]) == 0,
            "broken connections: {}",
            runs[0]["faults"]
        );
        Ok(json!({ "runs": runs }))
    }
}

/// The world of one run.
struct World<'a> {
    context: &'a Context,
    bench: &'a Bench,
    servers: Vec<Server>,
    vip: Vip,
    algorithm: String,
    with_ids: bool,
}

fn one(context: &Context, bench: &Bench, with_ids: bool) -> Result<Value> {
    let mut vip = bench.quic_vip4(0, "round-robin", Forwarding::Ipip);
    for (id, real) in vip.reals.iter_mut().enumerate() {
        real.keys
            .extend(with_ids.then(|| format!("id = {}", id_of(id))));
    }
    let mut world = World {
        context,
        bench,
        servers: Vec::new(),
        vip,
        algorithm: context.param("algorithm")?,
        with_ids,
    };
    world.start_servers()?;
    world.run()
}

/// Ids that have nothing to do with the order of servers.
fn id_of(server: usize) -> u16 {
    [700, 1, 1023, 12][server % SERVERS]
}

/// A key of a configuration; any will do.
fn key_of(number: u8) -> String {
    format!("{:02x}", 0x51 + number).repeat(16)
}

impl World<'_> {
    fn start_servers(&mut self) -> Result<()> {
        for (i, node) in self.bench.topology.servers.iter().enumerate() {
            let config = ServerConfig {
                cid: self.with_ids.then(|| self.cid(0, i)),
                ..ServerConfig::new(&node.ipv4.to_string(), QUIC_PORT)?
            };
            let stack = Stack::ALL[i % 2];
            self.servers
                .push(Server::start(&node.netns, stack, &config)?);
        }
        Ok(())
    }

    fn cid(&self, number: u8, server: usize) -> Cid {
        Cid {
            number,
            algorithm: self.algorithm.clone(),
            server_id_len: 2,
            nonce_len: NONCE,
            key: key_of(number),
            server: id_of(server).into(),
        }
    }

    /// What the balancer gets: reals with their states, and these configurations.
    fn settings(&self, reals: usize, drained: Option<usize>, numbers: &[u8]) -> Result<Settings> {
        let mut vip = self.vip.clone();
        vip.reals.truncate(reals);
        if let Some(drained) = drained {
            vip.reals[drained].drain = true;
        }
        let configs: Vec<String> = numbers
            .iter()
            .map(|&number| self.quic_cid(number))
            .collect::<Result<_>>()?;
        if self.with_ids {
            vip.keys = vec![format!("quic_cid = [{}]", configs.join(", "))];
        }
        Ok(Settings {
            vips: vec![vip],
            // Then nothing but the ids knows where a connection is.
            measure: Some(false),
            ..Settings::default()
        })
    }

    fn quic_cid(&self, number: u8) -> Result<String> {
        let algorithm = &self.algorithm;
        let lengths = format!("server_id_length = 2, nonce_length = {NONCE}");
        if algorithm == "plain" {
            return Ok(format!(
                "{{ config = {number}, algorithm = \"plain\", {lengths} }}"
            ));
        }
        let file = std::env::temp_dir().join(format!("quic-{number}.key"));
        fs::write(&file, key_of(number))?;
        Ok(format!(
            "{{ config = {number}, algorithm = \"{algorithm}\", key = \"{}\", {lengths} }}",
            file.display()
        ))
    }

    fn run(&mut self) -> Result<Value> {
        let step = Duration::from_millis(self.context.param("step_ms")?);
        let name = if self.with_ids { "quic-cid" } else { "hash" };
        let say = |what: &str| self.context.say(format!("{name}: {what}"));
        let three = self.settings(SERVERS - 1, None, &[0])?;
        let mut balancer = self.balancer(&three)?;
        let loads = self.loads(step * 6)?;
        sleep(step);
        say("adding a server");
        balancer.apply(&self.settings(SERVERS, None, &[0])?)?;
        sleep(step);
        say("draining a server");
        let drained = self.settings(SERVERS, Some(0), &[0])?;
        balancer.apply(&drained)?;
        sleep(step);
        say("swapping the balancer for an empty one");
        balancer.kill()?;
        balancer.detach()?;
        balancer = self.balancer(&drained)?;
        sleep(step);
        say("rotating keys");
        balancer.apply(&self.settings(SERVERS, Some(0), &[0, 1])?)?;
        let next: Vec<Cid> = (0..SERVERS).map(|server| self.cid(1, server)).collect();
        for (server, cid) in self.servers.iter_mut().zip(&next) {
            if self.with_ids {
                server.rotate(cid)?;
            }
        }
        let mut log = Log::default();
        for load in loads {
            let part = load.finish()?;
            (log.start_ns, log.end_ns) = (part.start_ns, part.end_ns);
            log.append(part);
        }
        let stats = api::stats(&balancer.socket())?;
        let result = self.report(name, &log, &stats)?;
        balancer.terminate()?;
        balancer.detach()?;
        Ok(result)
    }

    fn balancer(&self, settings: &Settings) -> Result<Balancer> {
        self.bench.balancer(&self.context.binary, settings)
    }

    /// Clients that migrate, clients behind NATs, and clients of the other stack.
    fn loads(&self, length: Duration) -> Result<Vec<Running>> {
        let namespaces = self.bench.client_namespaces();
        let kinds = [
            (Stack::Quinn, Some(700), None),
            (Stack::Quinn, None, Some(900)),
            (Stack::QuicGo, None, None),
        ];
        let slots = self.context.param("slots")?;
        let start = |(i, (stack, migrate_ms, nat_ms))| {
            let config = LoadConfig {
                duration_ms: length.as_millis() as u64,
                slots,
                // Some live through every change, others are made after it.
                max_age_ms: length.as_millis() as u64 * 2,
                page_interval_ms: 400,
                timeout_ms: 6_000,
                ..LoadConfig::new((self.vip.address, QUIC_PORT).into(), self.context.seed)
            };
            let options = Options { migrate_ms, nat_ms };
            let clients = std::slice::from_ref(&namespaces[i]);
            quic::load(stack, clients, &config, &options)
        };
        kinds.into_iter().enumerate().map(start).collect()
    }

    fn report(&self, name: &str, log: &Log, stats: &api::Stats) -> Result<Value> {
        let clients = report::summary(log, log.start_ns, log.end_ns);
        let lost: u64 = log.connections.iter().map(|c| u64::from(c.lost)).sum();
        self.context.say(format!(
            "{name}: {} connections, {} moves, {} broken",
            clients.connections, log.migrations, clients.broken_connections
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
            "broken_connections": clients.broken_connections,
            "requests": clients.requests, "broken_requests": lost,
            "client_moves": log.migrations, "faults": clients.faults,
            "p50_ms": clients.p50_ms, "p99_ms": clients.p99_ms,
            "verdicts": stats.verdicts(),
            "cookie_results": results,
        }))
    }
}
