// SPDX-License-Identifier: Apache-2.0
//! Balancer, agents and services of the cookie scenarios: everything that they break and repair.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use causeway_dataplane::Protocol;
use serde_json::Value;

use super::service::{self, Connection};
use super::{Counters, Counts};
use crate::agent::AgentProcess;
use crate::balancer::{Balancer, BalancerSettings, RealEntry, ServerForwarding, VipEntry};
use crate::clock::until;
use crate::netns::Netns;
use crate::scenario::connections::SharedKeys;
use crate::scenario::{Context, bench};
use crate::topology::{DEVICE, Node, Shape, Topology, vip4, vip6};
use crate::{api, link};

/// How long a balancer may take to refuse a file.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A server as the balancer's configuration has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    /// Index among the servers.
    pub server: usize,
    /// Takes no new connections.
    pub drain: bool,
    pub weight: u32,
}

/// These servers with equal weights.
pub(super) fn members(servers: std::ops::Range<usize>) -> Vec<Member> {
    servers
        .map(|server| Member {
            server,
            drain: false,
            weight: 10,
        })
        .collect()
}

/// How connections are kept.
#[derive(Debug, Clone)]
pub(super) struct Cookies {
    /// The VIPs' `cookie`.
    pub mode: String,
    /// Their `cookie_bits`, where they differ from the mode's own.
    pub bits: Option<u8>,
    /// Whether the balancer measures latency.
    pub measure: bool,
}

/// The laboratory.
pub(super) struct World {
    pub topology: Topology,
    pub balancer: Balancer,
    /// One for each server.
    pub agents: Vec<AgentProcess>,
    keys: SharedKeys,
    cookies: Cookies,
    /// Services take MPTCP, and each server has a port of the VIPs for itself.
    multipath: bool,
}

impl World {
    /// Builds it: a service on every server, the balancer with `pool`, and agents.
    pub(super) fn build(
        context: &Context,
        servers: usize,
        pool: &[Member],
        cookies: Cookies,
    ) -> Result<Self> {
        Self::build_for(context, servers, pool, cookies, false)
    }

    /// The same for clients of MPTCP.
    pub(super) fn build_multipath(
        context: &Context,
        servers: usize,
        pool: &[Member],
        cookies: Cookies,
    ) -> Result<Self> {
        Self::build_for(context, servers, pool, cookies, true)
    }

    fn build_for(
        context: &Context,
        servers: usize,
        pool: &[Member],
        cookies: Cookies,
        multipath: bool,
    ) -> Result<Self> {
        let topology = Topology::build(
            context.sandbox,
            Shape {
                clients: 1,
                servers,
            },
        )?;
        for (i, server) in topology.servers.iter().enumerate() {
            service::serve(&server.netns, &format!("server{i}"), &vips(), multipath)?;
        }
        let keys = SharedKeys::with_cookies(&context.binary)?;
        // Ids are given for all servers, so that every agent can have its own.
        let all = members(0..servers);
        let first = settings(&topology.servers, &all, None, &cookies, multipath, &keys);
        let mut world = Self {
            balancer: Balancer::start(&context.binary, &topology.balancer, &first)?,
            agents: Vec::new(),
            topology,
            keys,
            cookies,
            multipath,
        };
        for i in 0..servers {
            let lines = world.agent_lines(i)?;
            let server = &world.topology.servers[i];
            let pins = bench::pin_dir(server);
            let agent = AgentProcess::start_with(&context.binary, server, &pins, &lines)?;
            world.agents.push(agent);
        }
        world.apply(pool)?;
        Ok(world)
    }

    /// The namespace of the client.
    pub(super) fn client(&self) -> &Netns {
        &self.topology.clients[0].netns
    }

    /// Offloads of segmentation, of merging and of checksums, at both ends. What clients
    /// send has its checksum in any case: a veth that sends back loses the note that one is
    /// still to be written.
    pub(super) fn set_offloads(&self, on: bool) -> Result<()> {
        for server in &self.topology.servers {
            server
                .netns
                .run(move || link::set_offloads(DEVICE, on).context("a server's offloads"))?;
        }
        self.client().run(move || {
            link::set_segmentation(DEVICE, on)?;
            link::set_gro(DEVICE, on).context("the client's offloads")
        })
    }

    /// Opens `count` connections to each VIP.
    pub(super) fn open(&self, count: usize) -> Result<Vec<Connection>> {
        let mut connections = Vec::new();
        for vip in vips() {
            for _ in 0..count {
                connections.push(Connection::open(self.client(), vip)?);
            }
        }
        Ok(connections)
    }

    /// Has the balancer follow another pool.
    pub(super) fn apply(&self, pool: &[Member]) -> Result<()> {
        self.configure(pool)?;
        self.balancer.reload_now()
    }

    /// Writes the balancer's file; the process does not know yet.
    pub(super) fn configure(&self, pool: &[Member]) -> Result<()> {
        self.balancer.write_config(&self.settings(pool, None))
    }

    /// The same with an id that the file names for one server, on the IPv4 VIP.
    pub(super) fn configure_with_id(&self, pool: &[Member], server: usize, id: u16) -> Result<()> {
        let named = Some((server, id));
        self.balancer.write_config(&self.settings(pool, named))
    }

    fn settings(&self, pool: &[Member], named: Option<(usize, u16)>) -> BalancerSettings {
        let servers = &self.topology.servers;
        settings(
            servers,
            pool,
            named,
            &self.cookies,
            self.multipath,
            &self.keys,
        )
    }

    /// Replaces the balancer by one that knows nothing but its configuration.
    pub(super) fn swap_balancer(&mut self) -> Result<()> {
        self.balancer.kill()?;
        self.balancer.detach()?;
        self.balancer.restart()
    }

    /// Has the balancer read a file that it is to refuse; the reason that it gives.
    pub(super) fn refused_reload(&self) -> Result<String> {
        self.balancer.reload()?;
        let refused = until(TIMEOUT, || {
            let status: Value = api::get(&self.balancer.socket(), "/v1/status")?;
            Ok(status["last_reload_error"].as_str().map(str::to_owned))
        })?;
        refused.context("the balancer took a file that it should refuse")
    }

    /// What a server's agent needs to know, by the balancer's own words.
    fn agent_lines(&self, server: usize) -> Result<String> {
        let keys = self.keys.cookies().display().to_string();
        if self.cookies.mode == "none" {
            return Ok(format!("[agent.cookie]\nkeys = \"{keys}\"\n"));
        }
        let mut lines = String::new();
        for vip in vips() {
            let real = RealEntry::of(&self.topology.servers[server], vip).address;
            let arguments = ["cookie", "agent", &real.to_string(), "--keys", &keys];
            let said = self.balancer.cli(&arguments)?;
            // The head is the same for both addresses.
            let entries = said.find("[[agent").context("no entry for the real")?;
            lines += if lines.is_empty() {
                &said
            } else {
                &said[entries..]
            };
        }
        Ok(lines)
    }

    /// Has balancer and agents keep connections in another way, from now on.
    pub(super) fn set_cookies(&mut self, cookies: Cookies) -> Result<()> {
        self.cookies = cookies;
        self.apply(&members(0..self.agents.len()))?;
        for (i, agent) in self.agents.iter().enumerate() {
            agent.write_config(&self.agent_lines(i)?)?;
        }
        self.reload_agents()
    }

    /// Has every agent read its file and the keys again.
    fn reload_agents(&self) -> Result<()> {
        self.agents.iter().try_for_each(|agent| agent.reload_now())
    }

    /// A step of a rotation, on both ends.
    pub(super) fn rotate(&self, step: &str) -> Result<()> {
        self.keys.rotate_cookies(step)?;
        self.balancer.reload_now()?;
        self.reload_agents()
    }

    /// Packets by what their cookies said, over all VIPs.
    pub(super) fn results(&self) -> Result<BTreeMap<String, u64>> {
        let stats: Value = api::get(&self.balancer.socket(), "/v1/stats")?;
        let mut sums = BTreeMap::new();
        for vip in stats["vips"].as_array().context("vips")? {
            let Some(results) = vip["cookie"]["results"].as_array() else {
                continue; // a service without cookies
            };
            for result in results {
                let word = result["result"].as_str().context("result")?;
                let packets = result["packets"].as_u64().context("packets")?;
                *sums.entry(word.to_owned()).or_default() += packets;
            }
        }
        Ok(sums)
    }

    /// What agents did with timestamps, over all servers.
    pub(super) fn events(&self) -> Result<BTreeMap<String, u64>> {
        let mut sums = BTreeMap::new();
        for agent in &self.agents {
            let stats: Value = api::get(&agent.socket(), "/v1/stats")?;
            for event in stats["cookies"].as_array().context("cookies")? {
                let word = event["event"].as_str().context("event")?;
                let segments = event["segments"].as_u64().context("segments")?;
                *sums.entry(word.to_owned()).or_default() += segments;
            }
        }
        Ok(sums)
    }

    pub(super) fn counters(&self) -> Result<Counters> {
        Ok(Counters {
            clients: sum_of(&self.topology.clients)?,
            servers: sum_of(&self.topology.servers)?,
        })
    }
}

/// The VIPs, IPv4 and IPv6.
pub(super) fn vips() -> [IpAddr; 2] {
    [vip4(0).into(), vip6(0).into()]
}

/// The VIPs with cookies and without; `named` is a server with the id that the file names for it.
fn settings(
    servers: &[Node],
    pool: &[Member],
    named: Option<(usize, u16)>,
    cookies: &Cookies,
    multipath: bool,
    keys: &SharedKeys,
) -> BalancerSettings {
    let entry = |address: IpAddr, port, name: String, cookie: &str, reals| VipEntry {
        address,
        port,
        protocol: Protocol::Tcp,
        scheduler: "maglev".to_owned(),
        keys: vec![
            format!("name = \"{name}\""),
            format!("cookie = \"{cookie}\""),
        ],
        forwarding: ServerForwarding::Ipip,
        reals,
    };
    let mut entries = Vec::new();
    for vip in vips() {
        let plain: Vec<RealEntry> = pool
            .iter()
            .map(|member| RealEntry {
                weight: member.weight,
                drain: member.drain,
                ..RealEntry::of(&servers[member.server], vip)
            })
            .collect();
        let mut reals = plain.clone();
        if let Some((server, id)) = named.filter(|_| vip.is_ipv4()) {
            for (member, real) in pool.iter().zip(&mut reals) {
                if member.server == server {
                    real.keys.push(format!("id = {id}"));
                }
            }
        }
        let mut with = entry(vip, service::PORT, vip.to_string(), &cookies.mode, reals);
        with.keys
            .extend(cookies.bits.map(|bits| format!("cookie_bits = {bits}")));
        let name = format!("{vip}-plain");
        entries.extend([with, entry(vip, service::PLAIN_PORT, name, "none", plain)]);
        let joined = servers.iter().enumerate().filter(|_| multipath);
        entries.extend(joined.map(|(i, server)| {
            let (port, name) = (service::join_port(i), format!("{vip}-{i}"));
            entry(vip, port, name, "none", vec![RealEntry::of(server, vip)])
        }));
    }
    BalancerSettings {
        vips: entries,
        measure: Some(cookies.measure),
        head: vec![SharedKeys::hash_key_line(), keys.balancer_lines()],
        ..BalancerSettings::default()
    }
}

fn sum_of(nodes: &[Node]) -> Result<Counts> {
    let mut sum = Counts::default();
    for node in nodes {
        sum.add(&counters(&node.netns)?);
    }
    Ok(sum)
}

/// TcpExt and Tcp counters of a namespace (`nstat`).
pub(super) fn counters(netns: &Netns) -> Result<Counts> {
    netns.run(|| {
        let mut counters = BTreeMap::new();
        for file in ["netstat", "snmp"] {
            let text = fs::read_to_string(format!("/proc/thread-self/net/{file}"))?;
            let lines: Vec<&str> = text.lines().collect();
            for pair in lines.chunks_exact(2) {
                let names = pair[0].split(' ').skip(1);
                let values = pair[1].split(' ').skip(1);
                counters.extend(names.zip(values).filter_map(|(name, value)| {
                    Some((name.to_owned(), value.parse::<u64>().ok()?))
                }));
            }
        }
        Ok(Counts(counters))
    })
}
