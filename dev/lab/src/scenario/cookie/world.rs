// SPDX-License-Identifier: Apache-2.0
//! Balancer, agents and services of the cookie scenarios: everything that they break and repair.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use super::service::{self, Connection};
use super::{Counters, Counts};
use crate::api;
use crate::link;
use crate::netns::Netns;
use crate::scenario::Context;
use crate::topology::{BACK_MTU, BACK_NETWORKS, DEVICE, Node, Shape, Topology, vip4, vip6};

const START_TIMEOUT: Duration = Duration::from_secs(20);

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
    binary: PathBuf,
    directory: TempDir,
    cookies: Cookies,
    /// Services take MPTCP, and each server has a port of the VIPs for itself.
    multipath: bool,
    balancer: Option<Child>,
    agents: Vec<Option<Child>>,
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
        let mut world = Self {
            agents: (0..servers).map(|_| None).collect(),
            topology,
            binary: context.binary.clone(),
            directory: tempfile::Builder::new().prefix("cookie-").tempdir()?,
            cookies,
            multipath,
            balancer: None,
        };
        world.causeway(&["cookie", "new-keys", &world.path("keys")])?;
        // Ids are given for all servers, so that every agent can have its own.
        world.configure(&members(0..servers))?;
        world.start_balancer()?;
        for i in 0..servers {
            world.configure_agent(i)?;
            world.start_agent(i)?;
        }
        world.configure(pool)?;
        world.reload_balancer()?;
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

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// Runs `causeway` on the balancer's machine; its standard output.
    pub(super) fn causeway(&self, arguments: &[&str]) -> Result<String> {
        run(
            self.topology.balancer.netns.command(&self.binary),
            arguments,
        )
    }

    /// The balancer's socket.
    pub(super) fn socket(&self) -> String {
        self.path("lb.sock")
    }

    /// Writes the balancer's file; the process does not know yet.
    pub(super) fn configure(&self, pool: &[Member]) -> Result<()> {
        self.write_config(pool, None)
    }

    /// The same with an id that the file names for one server, on the IPv4 VIP.
    pub(super) fn configure_with_id(&self, pool: &[Member], server: usize, id: u16) -> Result<()> {
        self.write_config(pool, Some((server, id)))
    }

    fn write_config(&self, pool: &[Member], named: Option<(usize, u16)>) -> Result<()> {
        let node = &self.topology.balancer;
        let mut text = format!(
            "interface = \"{DEVICE}\"\npin_dir = \"/sys/fs/bpf/lb\"\n\
             state_dir = \"{}\"\nsocket = \"{}\"\nhttp = false\nhash_key = \"{}\"\n\
             [encap]\nsource = \"{}\"\nsource6 = \"{}\"\nmtu = {BACK_MTU}\n\
             [cookie]\nkeys = \"{}\"\n[measure]\nenabled = {}\n\
             [flow_table]\nipv4 = 65536\nipv6 = 65536\n",
            self.path("state"),
            self.path("lb.sock"),
            "5e".repeat(16),
            node.ipv4,
            node.ipv6,
            self.path("keys"),
            self.cookies.measure
        );
        for vip in vips() {
            write!(
                text,
                "[[vip]]\nname = \"{vip}\"\naddress = \"{vip}\"\nport = {}\ncookie = \"{}\"\n",
                service::PORT,
                self.cookies.mode
            )?;
            if let Some(bits) = self.cookies.bits {
                writeln!(text, "cookie_bits = {bits}")?;
            }
            let is_named = |server| named.filter(|(named, _)| *named == server && vip.is_ipv4());
            self.write_pool(&mut text, vip, pool, |server| {
                is_named(server).map(|(_, id)| id)
            })?;
            write!(
                text,
                "[[vip]]\nname = \"{vip}-plain\"\naddress = \"{vip}\"\nport = {}\ncookie = \"none\"\n",
                service::PLAIN_PORT
            )?;
            self.write_pool(&mut text, vip, pool, |_| None)?;
        }
        if self.multipath {
            for server in 0..self.topology.servers.len() {
                for vip in vips() {
                    let (port, real) = (service::join_port(server), self.address(server, vip));
                    write!(
                        text,
                        "[[vip]]\nname = \"{vip}-{server}\"\naddress = \"{vip}\"\nport = {port}\n\
                         cookie = \"none\"\nreal = [{{ address = \"{real}\" }}]\n"
                    )?;
                }
            }
        }
        Ok(fs::write(self.path("lb.toml"), text)?)
    }

    /// The reals of a VIP's entry.
    fn write_pool(
        &self,
        text: &mut String,
        vip: IpAddr,
        pool: &[Member],
        id: impl Fn(usize) -> Option<u16>,
    ) -> Result<()> {
        for member in pool {
            write!(
                text,
                "[[vip.real]]\naddress = \"{}\"\nweight = {}\ndrain = {}\n",
                self.address(member.server, vip),
                member.weight,
                member.drain
            )?;
            if let Some(id) = id(member.server) {
                writeln!(text, "id = {id}")?;
            }
        }
        Ok(())
    }

    fn address(&self, server: usize, vip: IpAddr) -> IpAddr {
        let node = &self.topology.servers[server];
        match vip {
            IpAddr::V4(_) => node.ipv4.into(),
            IpAddr::V6(_) => node.ipv6.into(),
        }
    }

    fn start_balancer(&mut self) -> Result<()> {
        let child = self.spawn(&self.topology.balancer, "lb")?;
        self.balancer = Some(child);
        self.await_socket("lb")
    }

    /// Replaces the balancer by one that knows nothing but its configuration.
    pub(super) fn swap_balancer(&mut self) -> Result<()> {
        end(&mut self.balancer)?;
        self.causeway(&["lb", "unload", "--yes", "-c", &self.path("lb.toml")])?;
        self.start_balancer()
    }

    /// SIGHUP to the balancer; waits until it has reloaded.
    pub(super) fn reload_balancer(&self) -> Result<()> {
        self.reload(&self.balancer, "lb")
    }

    /// The same, for a file that is to be refused; the reason that it gives.
    pub(super) fn refused_reload(&self) -> Result<String> {
        hang_up(&self.balancer)?;
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            let status: Value = api::get(Path::new(&self.path("lb.sock")), "/v1/status")?;
            if let Some(error) = status["last_reload_error"].as_str() {
                return Ok(error.to_owned());
            }
            sleep(Duration::from_millis(10));
        }
        bail!("the balancer took a file that it should refuse")
    }

    fn reload(&self, child: &Option<Child>, name: &str) -> Result<()> {
        let log = self.path(&format!("{name}.log"));
        let count =
            || -> Result<usize> { Ok(fs::read_to_string(&log)?.matches("reloaded: ").count()) };
        let before = count()?;
        hang_up(child)?;
        let deadline = Instant::now() + START_TIMEOUT;
        while count()? == before {
            ensure!(
                Instant::now() < deadline,
                "{name} did not reload: {}",
                fs::read_to_string(&log)?
            );
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// What a server's agent needs to know, by the balancer's own words.
    fn configure_agent(&self, server: usize) -> Result<()> {
        let node = &self.topology.servers[server];
        let mut text = format!(
            "[agent]\ninterface = \"{DEVICE}\"\naddresses = [\"{}\", \"{}\"]\n\
             vips = [\"{}\", \"{}\"]\nbalancers = {BACK_NETWORKS:?}\npin_dir = \"/sys/fs/bpf/server{server}\"\n\
             socket = \"{}\"\nhttp = false\n",
            node.ipv4,
            node.ipv6,
            vips()[0],
            vips()[1],
            self.path(&format!("server{server}.sock")),
        );
        if self.cookies.mode == "none" {
            write!(text, "[agent.cookie]\nkeys = \"{}\"\n", self.path("keys"))?;
        } else {
            let (keys, socket) = (self.path("keys"), self.path("lb.sock"));
            for (i, vip) in vips().into_iter().enumerate() {
                let real = self.address(server, vip).to_string();
                let said = self.causeway(&[
                    "cookie", "agent", &real, "--keys", &keys, "--socket", &socket,
                ])?;
                // The head is the same for both addresses.
                let entries = said.find("[[agent").context("no entry for the real")?;
                text += if i == 0 { &said } else { &said[entries..] };
            }
        }
        Ok(fs::write(self.path(&format!("server{server}.toml")), text)?)
    }

    pub(super) fn start_agent(&mut self, server: usize) -> Result<()> {
        let name = format!("server{server}");
        let child = self.spawn(&self.topology.servers[server], &name)?;
        self.agents[server] = Some(child);
        self.await_socket(&name)
    }

    /// SIGKILL; its programs go on.
    pub(super) fn kill_agent(&mut self, server: usize) -> Result<()> {
        end(&mut self.agents[server])
    }

    /// Takes everything off a server that the agent has put there.
    pub(super) fn detach_agent(&mut self, server: usize) -> Result<()> {
        end(&mut self.agents[server])?;
        let file = self.path(&format!("server{server}.toml"));
        let command = self.topology.servers[server].netns.command(&self.binary);
        run(command, &["agent", "unload", "--yes", "-c", &file]).map(drop)
    }

    /// Has balancer and agents keep connections in another way, from now on.
    pub(super) fn set_cookies(&mut self, cookies: Cookies) -> Result<()> {
        self.cookies = cookies;
        self.configure(&members(0..self.agents.len()))?;
        self.reload_balancer()?;
        for i in 0..self.agents.len() {
            self.configure_agent(i)?;
        }
        self.reload_agents()
    }

    /// Has every agent read the keys again.
    pub(super) fn reload_agents(&self) -> Result<()> {
        for (i, agent) in self.agents.iter().enumerate() {
            self.reload(agent, &format!("server{i}"))?;
        }
        Ok(())
    }

    /// A step of a rotation, on both ends.
    pub(super) fn rotate(&self, step: &str) -> Result<()> {
        self.causeway(&["cookie", "rotate", step, &self.path("keys")])?;
        self.reload_balancer()?;
        self.reload_agents()
    }

    /// Packets by what their cookies said, over all VIPs.
    pub(super) fn results(&self) -> Result<BTreeMap<String, u64>> {
        let stats: Value = api::get(Path::new(&self.path("lb.sock")), "/v1/stats")?;
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
        for i in 0..self.agents.len() {
            let socket = self.path(&format!("server{i}.sock"));
            let stats: Value = api::get(Path::new(&socket), "/v1/stats")?;
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

    fn spawn(&self, node: &Node, name: &str) -> Result<Child> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path(&format!("{name}.log")))?;
        let verb = if name == "lb" { "lb" } else { "agent" };
        node.netns
            .command(&self.binary)
            .args([verb, "-c", &self.path(&format!("{name}.toml"))])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot run {}", self.binary.display()))
    }

    fn await_socket(&self, name: &str) -> Result<()> {
        let socket = self.path(&format!("{name}.sock"));
        let deadline = Instant::now() + START_TIMEOUT;
        while api::get::<Value>(Path::new(&socket), "/v1/stats").is_err() {
            ensure!(
                Instant::now() < deadline,
                "{name} does not answer: {}",
                fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default()
            );
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for child in self.agents.iter_mut().chain([&mut self.balancer]) {
            let _ = end(child);
        }
    }
}

/// The VIPs, IPv4 and IPv6.
pub(super) fn vips() -> [IpAddr; 2] {
    [vip4(0).into(), vip6(0).into()]
}

fn end(child: &mut Option<Child>) -> Result<()> {
    if let Some(mut child) = child.take() {
        child.kill()?;
        child.wait()?;
    }
    Ok(())
}

fn hang_up(child: &Option<Child>) -> Result<()> {
    let child = child.as_ref().context("the process does not run")?;
    Ok(kill(Pid::from_raw(child.id() as i32), Signal::SIGHUP)?)
}

fn run(mut command: Command, arguments: &[&str]) -> Result<String> {
    let output = command.args(arguments).stdin(Stdio::null()).output()?;
    ensure!(
        output.status.success(),
        "causeway {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
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
