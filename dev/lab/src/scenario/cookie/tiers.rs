// SPDX-License-Identifier: Apache-2.0
//! Two tiers of balancers: a first tier that keeps nothing sends each packet to the
//! stateful balancer whose number its timestamp carries. First the first tier is
//! replaced, then one of two second-tier balancers, then the servers change; no
//! connection may break.

use std::net::IpAddr;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Map, Value, json};

use super::service::{self, Connection, PORT};
use super::world::vips;
use crate::agent::AgentProcess;
use crate::api;
use crate::balancer::{Balancer, BalancerSettings, RealEntry, ServerForwarding, VipEntry};
use crate::scenario::connections::{SharedKeys, server_id};
use crate::scenario::{Context, Scenario, bench, param};
use crate::topology::{BACK_NETWORKS, Node, Shape, Topology};

/// Where agents report to second-tier balancers.
const REPORTS_PORT: u16 = 9472;
/// Until when an empty one has learnt what is open (docs/explanation/cookies.md).
const LEARNING: Duration = Duration::from_millis(5_000);

pub(crate) const TIERS: Scenario = Scenario {
    name: "tiers",
    about: "a stateless first tier before stateful balancers, both replaced under connections",
    params: &[
        param("connections", "8", "connections to each VIP at each step"),
        param("forwarding", "ipip", "of the first tier: ipip or gue"),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let mut world = World::build(context)?;
    world.step("opened")?;
    world.first_tier_is_replaced()?;
    world.step("first tier replaced")?;
    world.second_tier_is_replaced()?;
    world.step("second tier replaced")?;
    world.server_is_drained()?;
    world.step("server drains")?;
    world.plain_clients()?;
    world.step("all")?;
    world.finish()
}

/// The second-tier balancers of a moment, by number; the first tier before them.
struct World<'a> {
    context: &'a Context,
    /// Of the first tier.
    forwarding: ServerForwarding,
    topology: Topology,
    keys: SharedKeys,
    /// Two for each tier, and one for the second tier's second number.
    nodes: Vec<Node>,
    first: Option<Balancer>,
    second: Vec<Balancer>,
    second_at: [usize; 2],
    _agents: Vec<AgentProcess>,
    drained: usize,
    each: usize,
    connections: Vec<Connection>,
    steps: Map<String, Value>,
}

impl<'a> World<'a> {
    fn build(context: &'a Context) -> Result<Self> {
        let forwarding = context.forwarding([ServerForwarding::Ipip, ServerForwarding::Gue])?;
        let shape = Shape {
            clients: 1,
            servers: 3,
        };
        let mut topology = Topology::build(context.sandbox, shape)?;
        let mut nodes = vec![topology.balancer.clone()];
        for _ in 1..5 {
            nodes.push(topology.add_balancer(context.sandbox)?);
        }
        for (i, server) in topology.servers.iter().enumerate() {
            service::serve(&server.netns, &format!("server{i}"), &vips(), false)?;
        }
        let mut world = Self {
            context,
            forwarding,
            topology,
            keys: SharedKeys::with_cookies(&context.binary)?,
            nodes,
            first: None,
            second: Vec::new(),
            second_at: [2, 3],
            _agents: Vec::new(),
            drained: 0,
            each: context.param("connections")?,
            connections: Vec::new(),
            steps: Map::new(),
        };
        world._agents = world.agents()?;
        for number in 0..2 {
            let node = &world.nodes[world.second_at[number]];
            let settings = world.second_settings(node, number, false);
            let balancer = Balancer::start(&context.binary, node, &settings)?;
            world.second.push(balancer);
        }
        world.first = Some(world.start_first(0)?);
        Ok(world)
    }

    fn agents(&self) -> Result<Vec<AgentProcess>> {
        let reports: Vec<String> = self.nodes[2..]
            .iter()
            .map(|node| format!("{}:{REPORTS_PORT}", node.ipv4))
            .collect();
        let servers = self.topology.servers.iter().enumerate();
        servers
            .map(|(index, server)| {
                let lines = format!(
                    "[agent.report]\nconnections = true\nto = {reports:?}\n{}",
                    self.keys.cookies_of_agent(index)
                );
                let pins = bench::pin_dir(server);
                AgentProcess::start_with(&self.context.binary, server, &pins, &lines)
            })
            .collect()
    }

    /// A first-tier balancer on a node; the VIPs are routed there.
    fn start_first(&self, node: usize) -> Result<Balancer> {
        let node = &self.nodes[node];
        let balancer = Balancer::start(&self.context.binary, node, &self.first_settings()?)?;
        self.topology.route_vips(node)?;
        Ok(balancer)
    }

    fn first_settings(&self) -> Result<BalancerSettings> {
        let vip = |address: IpAddr| VipEntry {
            keys: vec!["cookie = \"tier\"".to_owned()],
            forwarding: self.forwarding,
            reals: (0..2)
                .map(|number| RealEntry {
                    keys: vec![format!("id = {number}")],
                    ..RealEntry::of(&self.nodes[self.second_at[number]], address)
                })
                .collect(),
            ..vip(address)
        };
        Ok(BalancerSettings {
            vips: vips().map(vip).to_vec(),
            head: vec![
                SharedKeys::hash_key_line(),
                "[stateful]\nbalancers = 2".to_owned(),
            ],
            ..BalancerSettings::default()
        })
    }

    /// Of the second-tier balancer `number` on `node`.
    fn second_settings(&self, node: &Node, number: usize, adopts: bool) -> BalancerSettings {
        let vip = |address: IpAddr| VipEntry {
            keys: vec![
                "stateful = true".to_owned(),
                "cookie = \"timestamp\"".to_owned(),
            ],
            forwarding: ServerForwarding::Gue,
            reals: self
                .topology
                .servers
                .iter()
                .enumerate()
                .map(|(index, server)| RealEntry {
                    drain: index < self.drained,
                    keys: vec![format!("id = {}", server_id(index))],
                    ..RealEntry::of(server, address)
                })
                .collect(),
            ..vip(address)
        };
        let adopt = if adopts { 10 } else { 0 };
        BalancerSettings {
            vips: vips().map(vip).to_vec(),
            head: vec![
                SharedKeys::hash_key_line(),
                self.keys.balancer_lines(),
                format!(
                    "[agent_reports]\nlisten = \"0.0.0.0:{REPORTS_PORT}\"\n\
                     [stateful]\nconnections = \"128Ki\"\nbalancers = 2\nnumber = {number}\n\
                     learn_period = \"{adopt}s\""
                ),
            ],
            encap: vec![
                format!("tunnel_ends = [\"{}\", \"{}\"]", node.ipv4, node.ipv6),
                format!("tunnel_sources = {BACK_NETWORKS:?}"),
            ],
            ..BalancerSettings::default()
        }
    }

    /// Asks every connection who answers, and opens more. None may be broken.
    fn step(&mut self, name: &str) -> Result<()> {
        let asked = self.connections.len();
        let mut broken = 0;
        for connection in &mut self.connections {
            broken += usize::from(!connection.is_whole());
        }
        ensure!(
            broken == 0,
            "{name}: {broken} of {asked} connections are broken"
        );
        for vip in vips() {
            for _ in 0..self.each {
                let client = &self.topology.clients[0].netns;
                self.connections.push(Connection::open(client, vip)?);
            }
        }
        self.context
            .say(format!("{name}: {asked} connections kept"));
        self.steps.insert(name.to_owned(), json!(asked));
        Ok(())
    }

    /// It has no state: another one with the same file is as good.
    fn first_tier_is_replaced(&mut self) -> Result<()> {
        let new = self.start_first(1)?;
        if let Some(old) = self.first.replace(new) {
            sleep(Duration::from_millis(100));
            old.end()?;
        }
        Ok(())
    }

    /// An empty balancer learns from agents what is open, and then takes the number.
    fn second_tier_is_replaced(&mut self) -> Result<()> {
        self.second_at[1] = 4;
        let node = &self.nodes[4];
        let settings = self.second_settings(node, 1, true);
        let new = Balancer::start(&self.context.binary, node, &settings)?;
        sleep(LEARNING);
        let settings = self.first_settings()?;
        if let Some(first) = &self.first {
            first.apply(&settings)?;
        }
        let old = std::mem::replace(&mut self.second[1], new);
        sleep(Duration::from_millis(100));
        old.end()
    }

    fn server_is_drained(&mut self) -> Result<()> {
        self.drained = 1;
        for (number, balancer) in self.second.iter().enumerate() {
            let node = &self.nodes[self.second_at[number]];
            // Whether it adopts cannot change as it runs.
            balancer.apply(&self.second_settings(node, number, number == 1))?;
        }
        Ok(())
    }

    /// Clients that offer no timestamps go by hash, at both tiers.
    fn plain_clients(&mut self) -> Result<()> {
        let client = self.topology.clients[0].netns.clone();
        client.sysctl("net/ipv4/tcp_timestamps", "0")?;
        self.step("clients without timestamps")?;
        client.sysctl("net/ipv4/tcp_timestamps", "1")
    }

    fn finish(self) -> Result<Value> {
        let mut found = Map::new();
        if let Some(first) = &self.first {
            let results = results(first)?;
            ensure!(results["tier"] != 0, "no packet was led by its number");
            ensure!(
                results["tier_other"] == 0,
                "numbers without a balancer: {results}"
            );
            found.insert("first".to_owned(), results);
        }
        for (number, balancer) in self.second.iter().enumerate() {
            let path = "/v1/connections?count=0&ms=1";
            let places: Value = api::get(&balancer.socket(), path)?;
            ensure!(
                places["open"].as_u64().unwrap_or_default() > 0,
                "balancer {number} has no connection: {places}"
            );
            let results = results(balancer)?;
            ensure!(results["forged"] == 0, "forged cookies: {results}");
            found.insert(
                format!("second{number}"),
                json!({ "results": results, "places": places }),
            );
        }
        Ok(json!({ "steps": self.steps, "packets": found }))
    }
}

fn vip(address: IpAddr) -> VipEntry {
    VipEntry {
        address,
        port: PORT,
        protocol: causeway_dataplane::Protocol::Tcp,
        scheduler: "maglev".to_owned(),
        keys: Vec::new(),
        forwarding: ServerForwarding::Ipip,
        reals: Vec::new(),
    }
}

/// Packets by what their cookies said, over all VIPs.
fn results(balancer: &Balancer) -> Result<Value> {
    let stats: Value = api::get(&balancer.socket(), "/v1/stats")?;
    let mut sums: Map<String, Value> = Map::new();
    for vip in stats["vips"].as_array().into_iter().flatten() {
        let results = vip["cookie"]["results"].as_array();
        for result in results.into_iter().flatten() {
            let word = result["result"].as_str().unwrap_or_default();
            let packets = result["packets"].as_u64().unwrap_or_default();
            let before = sums.get(word).and_then(Value::as_u64).unwrap_or_default();
            sums.insert(word.to_owned(), json!(before + packets));
        }
    }
    Ok(Value::Object(sums))
}
