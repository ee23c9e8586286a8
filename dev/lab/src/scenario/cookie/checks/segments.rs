// SPDX-License-Identifier: Apache-2.0
//! Steps about single segments that come late, again, large, or to no server.

use std::thread::{self, sleep};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use causeway_bench::loss::{LossInjector, LossRule, TcDirection};
use serde_json::json;

use super::super::service::Connection;
use super::super::world::vips;
use super::Checks;
use crate::background::joined;
use crate::clock::until;
use crate::netns::Netns;
use crate::topology::{DEVICE, format_mac};

/// Until what is bound to come has come.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a transfer from a server.
const DOWN: usize = 4_000_000;

impl Checks<'_> {
    /// SYN-ACKs wait at the servers until the SYN has come again and was answered
    /// again; then the client gets both, and takes the first. What it echoes is older
    /// than the server's last.
    pub(crate) fn late_syn_acks(&mut self) -> Result<()> {
        let topology = &self.world.topology;
        let (router, servers) = (topology.router.clone(), topology.servers.clone());
        let (gateway, mac) = (router.ipv4, format_mac(router.mac));
        // No host answers for the router's address: packets to it wait for that.
        router.netns.sysctl("net/ipv4/conf/all/arp_ignore", "8")?;
        for server in &servers {
            // They wait for as long as it takes until all SYNs have come again.
            let name = format!("net/ipv4/neigh/{DEVICE}/mcast_solicit");
            server.netns.sysctl(&name, "100")?;
            server
                .netns
                .ip(&format!("neigh del {gateway} dev {DEVICE}"))?;
        }
        let (before, results) = (self.world.counters()?, self.world.results()?);
        let (client, vip) = (self.world.client().clone(), vips()[0]);
        let opening: Vec<_> = (0..4)
            .map(|_| {
                let client = client.clone();
                thread::spawn(move || Connection::open(&client, vip))
            })
            .collect();
        let again = || {
            let again = self.world.results()?["syn_again"] - results["syn_again"];
            Ok((again >= 4).then_some(()))
        };
        until(TIMEOUT, again)?.context("not each of 4 SYNs was sent again")?;
        for server in &servers {
            server.netns.ip(&format!(
                "neigh replace {gateway} lladdr {mac} dev {DEVICE} nud permanent"
            ))?;
        }
        router.netns.sysctl("net/ipv4/conf/all/arp_ignore", "0")?;
        for thread in opening {
            let opened = joined(thread);
            self.connections.push(opened.context("a late SYN-ACK")?);
        }
        let half_open = self.half_open(vip)?;
        ensure!(half_open == 0, "{half_open} connections are half open");
        let after = self.world.counters()?;
        let opened = after.total("PassiveOpens") - before.total("PassiveOpens");
        ensure!(opened == 4, "4 connections were opened {opened} times");
        self.step("SYN-ACKs late")
    }

    /// The server's last ACK is lost, so that the client's FIN comes again to a socket
    /// in TIME_WAIT: its answer has to be one that the client takes.
    pub(crate) fn time_wait_answers(&mut self) -> Result<()> {
        let client = self.world.topology.clients[0].clone();
        let servers = self.world.topology.servers.clone();
        let answered = self.world.events()?["answered"];
        let mut connection = Connection::open(&client.netns, vips()[0])?;
        connection.end_of_server()?;
        let route = format!("blackhole {}/32", client.ipv4);
        for server in &servers {
            server.netns.ip(&format!("route add {route}"))?;
        }
        drop(connection);
        let patience = Duration::from_secs(60);
        let waits = || -> Result<bool> {
            let mut ss = client.netns.command("ss");
            let output = ss.args(["-Htn", "state", "last-ack"]).output()?;
            Ok(!output.stdout.is_empty())
        };
        let waiting = until(patience, || Ok(waits()?.then_some(())))?;
        waiting.context("the client's FIN was answered")?;
        for server in &servers {
            server.netns.ip(&format!("route del {route}"))?;
        }
        let answered_now = until(patience, || Ok((!waits()?).then_some(())))?;
        answered_now.context("the client's FIN stays unanswered")?;
        let now = self.world.events()?["answered"];
        ensure!(now > answered, "nothing was answered for TIME_WAIT");
        self.step("FIN in TIME_WAIT")
    }

    /// Transfers with and without the offloads of segmentation, of merging and of checksums.
    /// The agent meets large segments in any case: the kernel cuts them behind it where the
    /// device does not. What PAWS rejects of them is reported, not judged (`ensure_echoes`).
    pub(crate) fn offloads(&mut self) -> Result<()> {
        let client = self.world.client().clone();
        let rejected_before = self.world.counters()?.clients.of("PAWSEstab");
        let mut stamped = Vec::new();
        for on in [false, true] {
            self.world.set_offloads(on)?;
            let before = self.world.events()?["stamped"];
            for vip in vips() {
                let mut connection = Connection::open(&client, vip)?;
                connection.read(&format!("get {DOWN}"), DOWN)?;
                self.connections.push(connection);
            }
            stamped.push(self.world.events()?["stamped"] - before);
        }
        // The steps after this one are judged from here on.
        let rejected = self.world.counters()?.clients.of("PAWSEstab");
        self.before.clients.set("PAWSEstab", rejected);
        self.steps.insert(
            "segments of transfers".into(),
            json!({
                "without_offloads": stamped[0],
                "with": stamped[1],
                "rejected": rejected - rejected_before,
            }),
        );
        self.step("offloads")
    }

    /// The client's link loses all for longer than the clock's ring, while data flows.
    pub(crate) fn outage(&mut self, ring: Duration) -> Result<()> {
        let length = ring.mul_f64(1.2);
        let client = self.world.client().clone();
        let count = ((length.as_millis() + 2000) / 5) as usize;
        let readers = vips().map(|vip| {
            let client = client.clone();
            thread::spawn(move || {
                let mut connection = Connection::open(&client, vip)?;
                let silence = connection.read(&format!("tick {count} 5"), count)?;
                Ok::<_, anyhow::Error>((connection, silence))
            })
        });
        sleep(Duration::from_millis(500));
        // Nothing comes through, either way; a link that is down would lose its addresses.
        let router = &self.world.topology.router.netns;
        let all = LossRule {
            share: 1.0,
            ..LossRule::default()
        };
        let lose = |netns: &Netns, device: &'static str| {
            netns.run(move || LossInjector::attach(device, TcDirection::In, all))
        };
        let lost = [lose(router, "c0")?, lose(self.world.client(), DEVICE)?];
        sleep(length);
        drop(lost);
        let mut longest = Duration::ZERO;
        for reader in readers {
            let read = joined(reader);
            let (connection, silence) = read.context("after the outage")?;
            ensure!(silence >= length, "the outage lasted {silence:?} alone");
            // The server's next retransmission was due at most as long after it.
            ensure!(silence < 3 * length, "silence of {silence:?}");
            longest = longest.max(silence);
            self.connections.push(connection);
        }
        self.steps.insert(
            "outage".into(),
            json!({ "seconds": length.as_secs_f64(), "silence_ms": longest.as_millis() as u64 }),
        );
        self.step("after an outage")
    }
}
