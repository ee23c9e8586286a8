// SPDX-License-Identifier: Apache-2.0
//! What most scenarios stand on: a topology with nginx on every server.

use std::path::{Path, PathBuf};

use anyhow::Result;
use causeway_dataplane::{Decapsulator, DecapsulatorOptions, Protocol, XdpMode};
use causeway_service::config::network;

use crate::agent::AgentProcess;
use crate::balancer::{Balancer, BalancerSettings, RealEntry, ServerForwarding, VipEntry};
use crate::link_emulator::{Impairment, LinkEmulator, LinkEnd};
use crate::load::{self, LoadConfig, RunningLoad};
use crate::netns::Netns;
use crate::nginx::Nginx;
use crate::quic::{self, Order, Stack};
use crate::sandbox::Sandbox;
use crate::topology::{self, DEVICE, Shape, Topology, vip4, vip6};

/// Port of every service over TCP.
pub(super) const PORT: u16 = 80;
/// Port of every service over QUIC.
pub(super) const QUIC_PORT: u16 = 443;

/// Clients, router, balancer's place and servers with nginx running.
pub(super) struct Bench {
    pub sandbox: Sandbox,
    pub topology: Topology,
    /// One nginx per server, in order; none on a bare bench.
    pub servers: Vec<Nginx>,
}

impl Bench {
    /// Builds it. Servers name themselves by their IPv4 address.
    pub(super) fn build(sandbox: Sandbox, clients: usize, servers: usize) -> Result<Self> {
        crate::nginx::available()?;
        let mut bench = Self::bare(sandbox, clients, servers)?;
        let start =
            |node: &topology::Node| Nginx::start(&node.netns, &node.ipv4.to_string(), PORT, 1);
        let nodes = bench.topology.servers.iter();
        bench.servers = nodes.map(start).collect::<Result<_>>()?;
        Ok(bench)
    }

    /// The same without a service on the servers.
    pub(super) fn bare(sandbox: Sandbox, clients: usize, servers: usize) -> Result<Self> {
        let topology = Topology::build(sandbox, Shape { clients, servers })?;
        topology.servers.iter().try_for_each(decapsulate)?;
        Ok(Self {
            sandbox,
            topology,
            servers: Vec::new(),
        })
    }

    /// A QUIC server on every server, in order, named as nginx is.
    pub(super) fn quic_servers(&self, stack: Stack, order: Order) -> Result<Vec<quic::Server>> {
        let start = |node: &topology::Node| {
            let config = quic::ServerConfig {
                order,
                ..quic::ServerConfig::new(&node.ipv4.to_string(), QUIC_PORT)?
            };
            quic::Server::start(&node.netns, stack, &config)
        };
        self.topology.servers.iter().map(start).collect()
    }

    /// The `i`-th IPv4 VIP with all servers.
    pub(super) fn vip4(&self, i: usize, scheduler: &str, forwarding: ServerForwarding) -> VipEntry {
        self.vip(topology::vip4(i).into(), scheduler, forwarding)
    }

    /// The `i`-th IPv6 VIP with all servers.
    pub(super) fn vip6(&self, i: usize, scheduler: &str, forwarding: ServerForwarding) -> VipEntry {
        self.vip(topology::vip6(i).into(), scheduler, forwarding)
    }

    /// The `i`-th IPv4 VIP for QUIC with all servers.
    pub(super) fn quic_vip4(
        &self,
        i: usize,
        scheduler: &str,
        forwarding: ServerForwarding,
    ) -> VipEntry {
        quic(self.vip4(i, scheduler, forwarding))
    }

    /// The `i`-th IPv6 VIP for QUIC with all servers.
    pub(super) fn quic_vip6(
        &self,
        i: usize,
        scheduler: &str,
        forwarding: ServerForwarding,
    ) -> VipEntry {
        quic(self.vip6(i, scheduler, forwarding))
    }

    fn vip(
        &self,
        address: std::net::IpAddr,
        scheduler: &str,
        forwarding: ServerForwarding,
    ) -> VipEntry {
        VipEntry {
            address,
            port: PORT,
            protocol: Protocol::Tcp,
            scheduler: scheduler.to_owned(),
            keys: Vec::new(),
            forwarding,
            reals: self
                .topology
                .servers
                .iter()
                .map(|s| RealEntry::of(s, address))
                .collect(),
        }
    }

    /// Starts `causeway lb`.
    pub(super) fn balancer(&self, binary: &Path, settings: &BalancerSettings) -> Result<Balancer> {
        Balancer::start(binary, &self.topology.balancer, settings)
    }

    /// Starts `causeway agent` on every server: it takes over what decapsulates.
    pub(super) fn agents(&self, binary: &Path) -> Result<Vec<AgentProcess>> {
        let servers = 0..self.topology.servers.len();
        servers.map(|index| self.agent(binary, index, "")).collect()
    }

    /// The same on one server, with further lines in its file.
    pub(super) fn agent(&self, binary: &Path, index: usize, more: &str) -> Result<AgentProcess> {
        let server = &self.topology.servers[index];
        AgentProcess::start_with(binary, server, &pin_dir(server), more)
    }

    /// Puts a line with delay, a round trip of `path_ms`, in place of a client's veth.
    pub(super) fn lengthen(&self, client: usize, path_ms: u64, seed: u64) -> Result<LinkEmulator> {
        let node = &self.topology.clients[client];
        let (near, router) = (&node.netns, &self.topology.router.netns);
        let port = format!("c{client}");
        router.ip(&format!("link del {port}\n"))?;
        let delay = Impairment {
            round_trip_us: path_ms * 1000,
            ..Impairment::default()
        };
        let ends = (LinkEnd::of(near, DEVICE), LinkEnd::of(router, &port));
        let link = LinkEmulator::start(&ends.0, &ends.1, delay, seed)?;
        // A queue that holds a window: the line is long, not narrow.
        router.ip(&format!(
            "addr add 10.10.{client}.1/24 dev {port}\nlink set {port} txqueuelen 10000 up\n"
        ))?;
        near.ip(&format!(
            "addr add {}/24 dev {DEVICE}\nlink set {DEVICE} txqueuelen 10000 up\n\
             route add default via 10.10.{client}.1\n",
            node.ipv4
        ))?;
        Ok(link)
    }

    /// Starts a load from all clients.
    pub(super) fn load(&self, config: &LoadConfig) -> Result<RunningLoad> {
        load::start(&self.client_namespaces(), config)
    }

    /// Where the clients run.
    pub(super) fn client_namespaces(&self) -> Vec<Netns> {
        let clients = self.topology.clients.iter();
        clients.map(|c| c.netns.clone()).collect()
    }

    /// Servers by the names that they and Causeway use for them, in order.
    pub(super) fn real_names4(&self) -> Vec<String> {
        self.topology
            .servers
            .iter()
            .map(|s| s.ipv4.to_string())
            .collect()
    }
}

/// The same service over QUIC.
fn quic(vip: VipEntry) -> VipEntry {
    VipEntry {
        port: QUIC_PORT,
        protocol: Protocol::Udp,
        ..vip
    }
}

/// Where a server's decapsulation is pinned.
pub(super) fn pin_dir(server: &topology::Node) -> PathBuf {
    Path::new("/sys/fs/bpf").join(server.netns.name())
}

/// Undoes the balancer's encapsulation on a server, for all its addresses. It is
/// pinned and needs no process.
pub(super) fn decapsulate(server: &topology::Node) -> Result<()> {
    let options = DecapsulatorOptions {
        interface: topology::DEVICE.to_owned(),
        pin_dir: pin_dir(server),
        xdp_mode: XdpMode::Auto,
        gue_port: causeway_netio::Gue::default().port,
        cookies: None,
        token_sources: (None, None),
        inner_mtu: None,
    };
    let addresses = [server.ipv4.into(), server.ipv6.into()].into();
    let vips = (0..topology::VIPS).flat_map(|i| [vip4(i).into(), vip6(i).into()]);
    let vips = vips.collect();
    let networks = topology::BACK_NETWORKS.map(network);
    let networks = networks.into_iter().collect::<Result<_, _>>();
    let networks = networks.map_err(anyhow::Error::msg)?;
    server.netns.run(move || {
        let (decapsulator, _) = Decapsulator::start(&options)?;
        decapsulator.set_tunnel_sources(&networks)?;
        Ok(decapsulator.set_addresses(&addresses, &vips)?)
    })
}
