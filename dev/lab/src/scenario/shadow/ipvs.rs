// SPDX-License-Identifier: Apache-2.0
//! IPVS, the kernel's balancer, on the balancer's node and on one that can take its place, as
//! an operator would have it: by turns, without a daemon that tells the other its connections.

use std::net::SocketAddrV4;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::background::output_of;
use crate::topology::{DEVICE, Node, Topology};

/// How packets reach its servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// To the server's address; answers come back through IPVS.
    Masquerading,
    /// IP in IP; answers go past IPVS.
    Tunnel,
}

impl Way {
    /// How ipvsadm calls it.
    fn option(self) -> &'static str {
        match self {
            Self::Masquerading => "-m",
            Self::Tunnel => "-i",
        }
    }
}

/// Whether IPVS is there.
///
/// # Errors
/// With what is missing.
pub(super) fn available() -> Result<()> {
    let listed = Command::new("ipvsadm").arg("--list").output();
    let listed = listed.context("ipvsadm is not installed: run scripts/setup shadow")?;
    ensure!(
        listed.status.success(),
        "this kernel has no IPVS ({}): scripts/test-long ipvs has one",
        String::from_utf8_lossy(&listed.stderr).trim()
    );
    Ok(())
}

/// One service.
pub(super) struct Ipvs<'a> {
    topology: &'a Topology,
    /// Where packets go, and what would take its place.
    nodes: [&'a Node; 2],
    front: SocketAddrV4,
    way: Way,
}

impl<'a> Ipvs<'a> {
    /// Has it forward to `servers`.
    pub(super) fn start(
        topology: &'a Topology,
        spare: &'a Node,
        front: SocketAddrV4,
        way: Way,
        servers: &[SocketAddrV4],
    ) -> Result<Self> {
        let nodes = [&topology.balancer, spare];
        let ipvs = Self {
            topology,
            nodes,
            front,
            way,
        };
        for node in nodes {
            node.netns.sysctl("net/ipv4/ip_forward", "1")?;
            // Servers and clients are behind one link: servers must not learn to go past it.
            for of in ["all", DEVICE] {
                let key = format!("net/ipv4/conf/{of}/send_redirects");
                node.netns.sysctl(&key, "0")?;
            }
            let address = front.ip();
            node.netns
                .ip(&format!("addr replace {address}/32 dev lo\n"))?;
            ipvs.admin(node, &format!("-A -t {front} -s rr"))?;
            for server in servers {
                ipvs.admin(node, &format!("-a -t {front} -r {server} {}", way.option()))?;
            }
        }
        ipvs.lead_to(ipvs.nodes[0])?;
        Ok(ipvs)
    }

    /// This server gets no new connections.
    pub(super) fn take_out(&self, server: SocketAddrV4) -> Result<()> {
        let (front, option) = (self.front, self.way.option());
        let words = format!("-e -t {front} -r {server} {option} -w 0");
        self.nodes
            .iter()
            .try_for_each(|node| self.admin(node, &words))
    }

    /// Has the other machine take over, which knows none of the connections.
    pub(super) fn replace(&mut self) -> Result<()> {
        self.nodes.reverse();
        self.lead_to(self.nodes[0])
    }

    /// Packets of clients go there, and answers where the way wants them.
    fn lead_to(&self, node: &Node) -> Result<()> {
        if self.way == Way::Masquerading {
            self.servers_answer_by(&node.ipv4.to_string())?;
        }
        self.topology.route_vips(node)
    }

    fn servers_answer_by(&self, gateway: &str) -> Result<()> {
        let route = format!("route replace default via {gateway} dev {DEVICE}\n");
        let mut servers = self.topology.servers.iter();
        servers.try_for_each(|server| server.netns.ip(&route))
    }

    fn admin(&self, node: &Node, words: &str) -> Result<()> {
        output_of(node.netns.command("ipvsadm").args(words.split(' '))).map(drop)
    }

    /// Leaves addresses and routes as they were; the nodes go on to be routers.
    pub(super) fn end(self) -> Result<()> {
        for node in self.nodes {
            self.admin(node, "-C")?;
            let address = self.front.ip();
            node.netns.ip(&format!("addr del {address}/32 dev lo\n"))?;
        }
        self.servers_answer_by(&self.topology.router.ipv4.to_string())?;
        self.topology.route_vips(&self.topology.balancer)
    }
}
