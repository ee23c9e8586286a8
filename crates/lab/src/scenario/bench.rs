// SPDX-License-Identifier: Apache-2.0
//! What most scenarios stand on: a topology with nginx on every server.

use std::path::{Path, PathBuf};

use anyhow::Result;
use causeway_io::{Decapsulator, DecapsulatorOptions, XdpMode};

use crate::agent::Agent;
use crate::balancer::{Balancer, Forwarding, Real, Settings, Vip};
use crate::load::{self, LoadConfig, Running};
use crate::netns::Netns;
use crate::nginx::Nginx;
use crate::sandbox::Sandbox;
use crate::topology::{self, Shape, Topology};

/// Port of every service.
pub const PORT: u16 = 80;

/// Clients, router, balancer's place and servers with nginx running.
pub struct Bench {
    pub sandbox: Sandbox,
    pub topology: Topology,
    /// One nginx per server, in order.
    pub servers: Vec<Nginx>,
}

impl Bench {
    /// Builds it. Servers name themselves by their IPv4 address.
    pub fn build(sandbox: Sandbox, clients: usize, servers: usize) -> Result<Self> {
        crate::nginx::available()?;
        let topology = Topology::build(sandbox, Shape { clients, servers })?;
        let start =
            |node: &topology::Node| Nginx::start(&node.netns, &node.ipv4.to_string(), PORT, 1);
        let nginx = topology.servers.iter().map(start).collect::<Result<_>>()?;
        topology.servers.iter().try_for_each(decapsulate)?;
        Ok(Self {
            sandbox,
            topology,
            servers: nginx,
        })
    }

    /// The `i`-th IPv4 VIP with all servers.
    pub fn vip4(&self, i: usize, scheduler: &str, forwarding: Forwarding) -> Vip {
        self.vip(topology::vip4(i).into(), scheduler, forwarding)
    }

    /// The `i`-th IPv6 VIP with all servers.
    pub fn vip6(&self, i: usize, scheduler: &str, forwarding: Forwarding) -> Vip {
        self.vip(topology::vip6(i).into(), scheduler, forwarding)
    }

    fn vip(&self, address: std::net::IpAddr, scheduler: &str, forwarding: Forwarding) -> Vip {
        Vip {
            address,
            port: PORT,
            scheduler: scheduler.to_owned(),
            forwarding,
            reals: self
                .topology
                .servers
                .iter()
                .map(|s| Real::of(s, address))
                .collect(),
        }
    }

    /// Starts `causeway lb`.
    pub fn balancer(&self, binary: &Path, settings: &Settings) -> Result<Balancer> {
        Balancer::start(binary, &self.topology.balancer, settings)
    }

    /// Starts `causeway agent` on every server: it takes over what decapsulates.
    pub fn agents(&self, binary: &Path) -> Result<Vec<Agent>> {
        let servers = self.topology.servers.iter();
        servers
            .map(|server| Agent::start(binary, server, &pin_dir(server)))
            .collect()
    }

    /// Starts a load from all clients.
    pub fn load(&self, config: &LoadConfig) -> Result<Running> {
        let clients: Vec<Netns> = self
            .topology
            .clients
            .iter()
            .map(|c| c.netns.clone())
            .collect();
        load::start(&clients, config)
    }

    /// Servers by the names that they and Causeway use for them, in order.
    pub fn real_names4(&self) -> Vec<String> {
        self.topology
            .servers
            .iter()
            .map(|s| s.ipv4.to_string())
            .collect()
    }
}

/// Where a server's decapsulation is pinned.
fn pin_dir(server: &topology::Node) -> PathBuf {
    Path::new("/sys/fs/bpf").join(server.netns.name())
}

/// Undoes the balancer's encapsulation on a server, for all its addresses. It is
/// pinned and needs no process.
fn decapsulate(server: &topology::Node) -> Result<()> {
    let options = DecapsulatorOptions {
        interface: topology::DEVICE.to_owned(),
        pin_dir: pin_dir(server),
        xdp_mode: XdpMode::Auto,
        gue_port: causeway_io::Gue::default().port,
    };
    let addresses = [server.ipv4.into(), server.ipv6.into()].into();
    server.netns.run(move || {
        let (decapsulator, _) = Decapsulator::start(&options)?;
        Ok(decapsulator.set_addresses(&addresses)?)
    })
}
