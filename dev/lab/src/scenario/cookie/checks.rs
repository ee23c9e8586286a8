// SPDX-License-Identifier: Apache-2.0
//! The steps of `cookie`. Each changes something, looks at every connection that was
//! opened so far, and opens new ones.

mod segments;

use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};

use super::service::{Connection, PORT};
use super::world::{World, members, vips};
use super::{Counters, ensure_unnoticed};
use crate::background::joined;
use crate::clock::until;
use crate::link;
use crate::scenario::Context;

/// A run of steps over one laboratory.
pub(super) struct Checks<'a> {
    context: &'a Context,
    world: World,
    /// To each VIP at each step.
    each: usize,
    connections: Vec<Connection>,
    before: Counters,
    steps: Map<String, Value>,
}

impl<'a> Checks<'a> {
    /// Opens the first connections.
    pub(super) fn new(context: &'a Context, world: World, each: usize) -> Result<Self> {
        let before = world.counters()?;
        let mut checks = Self {
            context,
            connections: Vec::new(),
            before,
            world,
            each,
            steps: Map::new(),
        };
        checks.step("opened")?;
        Ok(checks)
    }

    /// Asks every connection who answers, and opens more. None may be broken.
    fn step(&mut self, name: &str) -> Result<()> {
        let asked = self.connections.len();
        let broken: Vec<String> = self
            .connections
            .iter_mut()
            .filter_map(|connection| {
                let (vip, server) = (connection.vip, connection.server.clone());
                (!connection.is_whole()).then(|| format!("{vip} on {server}"))
            })
            .collect();
        ensure!(
            broken.is_empty(),
            "{name}: {} of {asked} connections broken: {broken:?}; {:?}",
            broken.len(),
            self.world.results()?
        );
        ensure_unnoticed(&self.before, &self.world.counters()?).context(name.to_owned())?;
        self.connections.extend(self.world.open(self.each)?);
        self.context
            .say(format!("{name}: {asked} connections kept"));
        self.steps
            .insert(name.to_owned(), json!({ "connections": asked }));
        Ok(())
    }

    /// How many of the newest step's connections are on a server.
    fn newest_on(&self, server: usize) -> usize {
        let newest = &self.connections[self.connections.len() - 2 * self.each..];
        let name = format!("server{server}");
        newest.iter().filter(|c| c.server == name).count()
    }

    /// A server comes, one drains and comes back, one goes for good; no other gets the id
    /// of the one that has gone.
    pub(super) fn pool_changes(&mut self) -> Result<()> {
        self.world.apply(&members(0..4))?;
        self.step("server added")?;
        let mut drained = members(0..4);
        drained[0].drain = true;
        self.world.apply(&drained)?;
        self.step("server drains")?;
        self.step("server has drained")?;
        ensure!(self.newest_on(0) == 0, "a draining server got a connection");
        self.world.apply(&members(0..4))?;
        self.step("server back")?;
        self.leave("server3");
        self.world.apply(&members(0..3))?;
        self.step("server removed")?;
        self.id_rests()?;
        // Its id is the same again: its agent has been configured once.
        self.world.apply(&members(0..4))?;
        self.step("removed server back")
    }

    /// Closes the connections to a server, and lets their ends arrive.
    fn leave(&mut self, server: &str) {
        self.connections.retain(|c| c.server != server);
        sleep(Duration::from_millis(300));
    }

    /// An id that was just taken away cannot be given to another server.
    fn id_rests(&mut self) -> Result<()> {
        self.world.apply(&members(0..4))?;
        let said = self.world.balancer.cli(&["cookie", "show"])?;
        let address = self.world.topology.servers[3].ipv4.to_string();
        let row = said.lines().find(|line| line.contains(&address));
        let id = row.and_then(|row| row.split(' ').next_back());
        let id: u16 = id.context("no id of the server")?.parse()?;
        self.leave("server3");
        self.world.apply(&members(0..2))?;
        self.world.configure_with_id(&members(0..3), 2, id)?;
        let reason = self.world.refused_reload()?;
        ensure!(reason.contains("rests for another"), "{reason}");
        // Connections of server 2 have waited without a route; it comes back as it was.
        self.world.apply(&members(0..3))?;
        self.step("id rests")
    }

    /// A key is replaced in two steps.
    pub(super) fn keys_rotate(&mut self) -> Result<()> {
        self.world.rotate("--prepare")?;
        self.step("key prepared")?;
        self.world.rotate("--switch")?;
        self.step("key switched")?;
        self.step("both epochs")?;
        let results = self.world.results()?;
        ensure!(
            results["epoch0"] > 0 && results["epoch1"] > 0,
            "both epochs should be in use: {results:?}"
        );
        Ok(())
    }

    /// The balancer is replaced by an empty one, then by one that would pick quite
    /// differently: as if the connections had come to another machine.
    pub(super) fn balancer_is_swapped(&mut self) -> Result<()> {
        self.world.swap_balancer()?;
        self.step("balancer empty")?;
        let mut other = members(0..4);
        other[0].drain = true;
        other[1].weight = 1;
        other[3].weight = 1000;
        other.reverse();
        self.world.configure(&other)?;
        self.world.swap_balancer()?;
        self.step("balancer with another pool")?;
        self.world.configure(&members(0..4))?;
        self.world.swap_balancer()?;
        self.step("balancer back")
    }

    /// Agents are killed and started; then one is taken down with all its programs, so
    /// that the next knows nothing of the connections and learns their clocks.
    pub(super) fn agents_restart(&mut self) -> Result<()> {
        for agent in &mut self.world.agents {
            agent.kill()?;
        }
        self.step("agents dead")?;
        for agent in &mut self.world.agents {
            agent.restart()?;
        }
        self.step("agents taken over")?;
        let agent = &mut self.world.agents[1];
        agent.kill()?;
        agent.detach()?;
        agent.restart()?;
        self.step("agent anew")?;
        self.step("agent anew, again")
    }

    /// A server that answers every SYN by a SYN cookie of its own.
    pub(super) fn syn_cookies(&mut self) -> Result<()> {
        let servers = self.world.topology.servers.clone();
        let set = |value: &str| -> Result<()> {
            servers
                .iter()
                .try_for_each(|s| s.netns.sysctl("net/ipv4/tcp_syncookies", value))
        };
        set("2")?;
        self.step("SYN cookies on")?;
        self.step("SYN cookies, used")?;
        set("1")
    }

    /// The first SYN-ACKs are lost: the retransmitted SYN reaches the same server,
    /// and no half-open connection is left anywhere else.
    pub(super) fn lost_syn_ack(&mut self) -> Result<()> {
        let router = self.world.topology.router.netns.clone();
        let ports: Vec<String> = (0..4).map(|i| format!("s{i}")).collect();
        let dropped = router.run(move || {
            let attach = |port: &String| link::attach_syn_ack_drop(port).context("XDP");
            ports.iter().map(attach).collect::<Result<Vec<_>>>()
        })?;
        let opened_before = self.world.counters()?;
        let client = self.world.client().clone();
        let vip = vips()[0];
        let opening: Vec<_> = (0..4)
            .map(|_| {
                let client = client.clone();
                std::thread::spawn(move || Connection::open(&client, vip))
            })
            .collect();
        sleep(Duration::from_millis(1300));
        // On a busy machine they may open later.
        until(Duration::from_secs(60), || {
            let results = self.world.results()?;
            Ok((results["syn_again"] > 0).then_some(()))
        })?;
        drop(dropped);
        let mut opened = Vec::new();
        for thread in opening {
            opened.push(joined(thread)?);
        }
        let results = self.world.results()?;
        ensure!(
            results["syn_again"] > 0,
            "no SYN was sent again: {results:?}"
        );
        let half_open: usize = self.half_open(vip)?;
        ensure!(half_open == 0, "{half_open} connections are half open");
        let after = self.world.counters()?;
        ensure!(
            after.total("PassiveOpens") - opened_before.total("PassiveOpens") == 4,
            "a connection was opened twice"
        );
        self.connections.extend(opened);
        self.step("SYN-ACK lost")
    }

    fn half_open(&self, vip: IpAddr) -> Result<usize> {
        let mut count = 0;
        for server in &self.world.topology.servers {
            let output = server
                .netns
                .command("ss")
                .args(["-Htn", "state", "syn-recv", "src", &vip.to_string()])
                .output()?;
            count += String::from_utf8_lossy(&output.stdout).lines().count();
        }
        Ok(count)
    }

    /// FIN and RST of clients and servers, with timestamps: no server keeps a socket.
    pub(super) fn ends_reach_the_server(&mut self) -> Result<()> {
        let mut ended = self.world.open(self.each)?;
        let (by_server, rest) = ended.split_at_mut(2);
        for connection in by_server {
            connection.end_of_server()?;
        }
        let resets = rest.len() / 2;
        for (i, connection) in ended.drain(..).enumerate() {
            if i >= 2 && i < 2 + resets {
                connection.reset()?;
            }
        }
        drop(ended);
        let wanted = self.connections.len();
        let ended = until(Duration::from_secs(60), || {
            Ok((self.established()? == wanted).then_some(()))
        })?;
        let open = self.established()?;
        ended.with_context(|| {
            format!("{open} sockets are open on the servers, {wanted} on the client")
        })?;
        self.step("connections ended")
    }

    fn established(&self) -> Result<usize> {
        let mut count = 0;
        let port = format!(":{PORT}");
        for server in &self.world.topology.servers {
            let output = server
                .netns
                .command("ss")
                .args(["-Htn", "state", "established", "sport", "=", &port])
                .output()?;
            count += String::from_utf8_lossy(&output.stdout).lines().count();
        }
        Ok(count)
    }

    /// Clients that offer no timestamps live by the flow table.
    pub(super) fn clients_without_timestamps(&mut self) -> Result<()> {
        let client = self.world.client().clone();
        client.sysctl("net/ipv4/tcp_timestamps", "0")?;
        self.step("clients without timestamps")?;
        client.sysctl("net/ipv4/tcp_timestamps", "1")?;
        let plain = self.world.results()?["plain"];
        ensure!(plain > 0, "no packet was without timestamps");
        let mut drained = members(0..4);
        drained[2].drain = true;
        self.world.apply(&drained)?;
        self.step("drain with clients without timestamps")?;
        self.world.apply(&members(0..4))
    }

    /// Idle for parts and multiples of the ring, with probes and without, a server that
    /// is silent first, and a stream through the wrap, all at a time.
    pub(super) fn idle_and_streaming(&mut self, ring: Duration) -> Result<()> {
        let client = self.world.client().clone();
        let mut threads = Vec::new();
        for (i, part) in [0.45, 0.55, 0.8, 1.02, 1.5].into_iter().enumerate() {
            for probes in [false, true] {
                let (client, vip) = (client.clone(), vips()[i % 2]);
                threads.push(std::thread::spawn(move || {
                    idle(&client, vip, ring.mul_f64(part), probes)
                }));
            }
        }
        let streaming = client.clone();
        let count = (ring.as_millis() as usize * 3 / 2) / 7;
        threads.push(std::thread::spawn(move || {
            let mut connection = Connection::open(&streaming, vips()[1])?;
            connection.read(&format!("tick {count} 7"), count)
        }));
        let silent = ring.mul_f64(1.3).as_millis();
        threads.push(std::thread::spawn(move || {
            let mut connection = Connection::open(&client, vips()[0])?;
            let start = Instant::now();
            connection.line(&format!("later {silent}"))?;
            Ok(start
                .elapsed()
                .saturating_sub(Duration::from_millis(silent as u64)))
        }));
        let mut longest = Duration::ZERO;
        for thread in threads {
            let stall = joined(thread)?;
            longest = longest.max(stall);
        }
        // A rejected segment is retransmitted after 200 ms at least, and then rejected too.
        self.context
            .say(format!("idle and streaming: longest stall {longest:?}"));
        self.steps.insert(
            "idle and streaming".into(),
            json!({ "longest_stall_ms": longest.as_millis() as u64 }),
        );
        self.step("after idling")
    }

    /// The kernels' counters and the whole result.
    pub(super) fn finish(self) -> Result<Value> {
        let kernels = ensure_unnoticed(&self.before, &self.world.counters()?)?;
        let results = self.world.results()?;
        ensure!(results["forged"] == 0, "forged cookies in {results:?}");
        Ok(json!({
            "steps": self.steps,
            "kernels": kernels,
            "packets": results,
            "segments": self.world.events()?,
        }))
    }
}

/// Idles and asks again; how long the answer took.
fn idle(
    client: &crate::netns::Netns,
    vip: IpAddr,
    length: Duration,
    probes: bool,
) -> Result<Duration> {
    let mut connection = Connection::open(client, vip)?;
    if probes {
        connection.line("keepalive 1")?;
    }
    sleep(length);
    let start = Instant::now();
    ensure!(
        connection.is_whole(),
        "broken after {length:?}, probes {probes}"
    );
    Ok(start.elapsed())
}
