// SPDX-License-Identifier: Apache-2.0
//! Clients - router - balancer - servers, all veth.
//!
//! ```text
//!  client0 --+              +-- balancer   (10.20.0.2, fd20::2)
//!  client1 --+-- router ----+-- server0    (10.20.0.10, fd20::10)
//!      ...   |   (bridge)   +-- server1 ...
//! ```
//!
//! The router has one routed link per client (MTU 1500) and one bridge with
//! the balancer and the servers (MTU 1600, so that a full client packet and an
//! outer header fit). VIPs are routed to the balancer, which sends each packet
//! back out of the same interface: either in an outer header to its gateway,
//! the router (`ipip`), or straight to a server's MAC address (`l2`). Servers
//! hold the VIPs on their loopback interface and answer through the router, past
//! the balancer: it sees requests only.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;

use anyhow::{Context, Result};

use crate::link::{self, XdpPass};
use crate::netns::Netns;
use crate::sandbox::Sandbox;

/// Bytes of a packet towards clients.
pub const CLIENT_MTU: u32 = 1500;
/// Bytes of a packet between router, balancer and servers.
pub const BACK_MTU: u32 = 1600;
/// Networks of router, balancers and servers.
pub const BACK_NETWORKS: [&str; 2] = ["10.20.0.0/24", "fd20::/64"];
/// The device that leads out of every client, balancer and server namespace.
pub const DEVICE: &str = "eth0";
/// VIPs in every topology, in this order.
pub const VIPS: usize = 4;

/// How many namespaces to make.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Client namespaces, at most 200.
    pub clients: usize,
    /// Server namespaces, at most 200.
    pub servers: usize,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            clients: 2,
            servers: 4,
        }
    }
}

/// A node's addresses.
#[derive(Debug, Clone)]
pub struct Node {
    /// Where it lives.
    pub netns: Netns,
    /// IPv4 address of [`DEVICE`].
    pub ipv4: Ipv4Addr,
    /// IPv6 address of [`DEVICE`].
    pub ipv6: Ipv6Addr,
    /// MAC address of [`DEVICE`].
    pub mac: [u8; 6],
}

/// The namespaces and links of one laboratory.
#[derive(Debug)]
pub struct Topology {
    /// Where clients run.
    pub clients: Vec<Node>,
    /// The router; its addresses are those on the bridge.
    pub router: Node,
    /// Where `causeway lb` runs, on [`DEVICE`].
    pub balancer: Node,
    /// Where nginx runs.
    pub servers: Vec<Node>,
    /// What the names of its namespaces begin with.
    prefix: String,
    _pass: Vec<XdpPass>,
    _server_pass: Vec<XdpPass>,
}

/// The `i`-th VIP, IPv4.
pub fn vip4(i: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 30, 0, 1 + i as u8)
}

/// The `i`-th VIP, IPv6.
pub fn vip6(i: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd30, 0, 0, 0, 0, 0, 0, 1 + i as u16)
}

/// `02:00:00:00:00:01` form.
pub fn format_mac(mac: [u8; 6]) -> String {
    mac.map(|b| format!("{b:02x}")).join(":")
}

pub(crate) const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn back_node(netns: Netns, host: u8) -> Node {
    Node {
        netns,
        ipv4: Ipv4Addr::new(10, 20, 0, host),
        // The same digits as in IPv4, for the reader's sake.
        ipv6: Ipv6Addr::new(0xfd20, 0, 0, 0, 0, 0, 0, same_digits(host)),
        mac: [2, 0, 0, 0, 0, host],
    }
}

/// 42 becomes 0x42.
fn same_digits(n: u8) -> u16 {
    let n = u16::from(n);
    ((n / 100) << 8) | ((n / 10 % 10) << 4) | (n % 10)
}

fn client_node(netns: Netns, i: usize) -> Node {
    Node {
        netns,
        ipv4: Ipv4Addr::new(10, 10, i as u8, 2),
        ipv6: Ipv6Addr::new(0xfd10, 0, 0, i as u16, 0, 0, 0, 2),
        mac: [2, 0, 0, 1, i as u8, 2],
    }
}

impl Topology {
    /// Builds everything; addresses, routes and neighbours are ready to use.
    pub fn build(proof: Sandbox, shape: Shape) -> Result<Self> {
        Self::build_another(proof, shape, "")
    }

    /// One beside others: the names of its namespaces begin with `prefix`. Addresses
    /// are the same in all.
    pub fn build_another(proof: Sandbox, shape: Shape, prefix: &str) -> Result<Self> {
        anyhow::ensure!(
            shape.clients <= 200 && shape.servers <= 200,
            "at most 200 of each"
        );
        let make = |name: String| Netns::create(proof, &format!("{prefix}{name}"));
        let topology = Self {
            clients: (0..shape.clients)
                .map(|i| Ok(client_node(make(format!("client{i}"))?, i)))
                .collect::<Result<_>>()?,
            router: back_node(make("router".into())?, 1),
            balancer: back_node(make("balancer".into())?, 2),
            servers: (0..shape.servers)
                .map(|i| Ok(back_node(make(format!("server{i}"))?, 10 + i as u8)))
                .collect::<Result<_>>()?,
            prefix: prefix.to_owned(),
            _pass: Vec::new(),
            _server_pass: Vec::new(),
        };
        topology.build_router()?;
        for (i, client) in topology.clients.iter().enumerate() {
            build_client(client, i)?;
        }
        build_back(&topology.balancer)?;
        for server in &topology.servers {
            build_back(server)?;
            build_server(server)?;
        }
        topology.with_balancer_port()
    }

    fn build_router(&self) -> Result<()> {
        let router = &self.router.netns;
        for (key, value) in [
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
            ("net/ipv4/conf/all/rp_filter", "0"),
            ("net/ipv4/conf/default/rp_filter", "0"),
            // Packets from the balancer leave by the bridge they came from.
            ("net/ipv4/conf/all/send_redirects", "0"),
            ("net/ipv4/conf/default/send_redirects", "0"),
        ] {
            router.sysctl(key, value)?;
        }
        let mut s = String::new();
        writeln!(
            s,
            "link add br0 address {} type bridge mcast_snooping 0",
            format_mac(ROUTER_MAC)
        )?;
        writeln!(s, "link set br0 mtu {BACK_MTU} up")?;
        writeln!(s, "addr add {}/24 dev br0", self.router.ipv4)?;
        writeln!(s, "addr add {}/64 dev br0", self.router.ipv6)?;
        for (i, client) in self.clients.iter().enumerate() {
            writeln!(
                s,
                "link add c{i} mtu {CLIENT_MTU} type veth peer name {DEVICE} mtu {CLIENT_MTU} \
                 address {} netns {}",
                format_mac(client.mac),
                client.netns.name()
            )?;
            writeln!(s, "link set c{i} up")?;
            writeln!(s, "addr add 10.10.{i}.1/24 dev c{i}")?;
            writeln!(s, "addr add fd10:0:0:{i:x}::1/64 dev c{i}")?;
        }
        for (port, node) in self.back_ports() {
            write_back_port(&mut s, &port, node)?;
        }
        for i in 0..VIPS {
            writeln!(
                s,
                "route add {} via {} dev br0",
                vip4(i),
                self.balancer.ipv4
            )?;
            writeln!(
                s,
                "route add {} via {} dev br0",
                vip6(i),
                self.balancer.ipv6
            )?;
        }
        router.ip(&s)
    }

    /// Adds a place for another balancer; no VIP is routed there yet. At most seven.
    pub fn add_balancer(&mut self, proof: Sandbox) -> Result<Node> {
        let number = self._pass.len();
        anyhow::ensure!(number < 8, "at most eight balancers");
        let name = format!("{}balancer{number}", self.prefix);
        let node = back_node(Netns::create(proof, &name)?, 2 + number as u8);
        let port = format!("lb{number}");
        let mut s = String::new();
        write_back_port(&mut s, &port, &node)?;
        self.router.netns.ip(&s)?;
        build_back(&node)?;
        let pass = self.prepare_balancer_port(port)?;
        self._pass.push(pass);
        Ok(node)
    }

    /// Routes all VIPs to another balancer; no packet is lost.
    pub fn route_vips(&self, to: &Node) -> Result<()> {
        let mut s = String::new();
        for i in 0..VIPS {
            writeln!(s, "route replace {} via {} dev br0", vip4(i), to.ipv4)?;
            writeln!(s, "route replace {} via {} dev br0", vip6(i), to.ipv6)?;
        }
        self.router.netns.ip(&s)
    }

    /// Spreads the packets of all VIPs over several balancers, by addresses and ports.
    pub fn spread_vips(&self, over: &[Node]) -> Result<()> {
        let router = &self.router.netns;
        router.sysctl("net/ipv4/fib_multipath_hash_policy", "1")?;
        router.sysctl("net/ipv6/fib_multipath_hash_policy", "1")?;
        let mut s = String::new();
        for i in 0..VIPS {
            write!(s, "route replace {}", vip4(i))?;
            for to in over {
                write!(s, " nexthop via {} dev br0", to.ipv4)?;
            }
            write!(s, "\nroute replace {}", vip6(i))?;
            for to in over {
                write!(s, " nexthop via {} dev br0", to.ipv6)?;
            }
            writeln!(s)?;
        }
        router.ip(&s)
    }

    /// Lets servers send on what they do not know: the router's ports to them take what comes
    /// back by `XDP_TX`.
    pub fn take_back_from_servers(&mut self) -> Result<()> {
        let ports = (0..self.servers.len()).map(|i| format!("s{i}"));
        let pass = ports.map(|port| {
            self.router.netns.run(move || {
                link::set_gro(&port, true).context("gro on a server's port")?;
                link::attach_xdp_pass(&port).context("XDP on a server's port")
            })
        });
        self._server_pass = pass.collect::<Result<_>>()?;
        Ok(())
    }

    /// Recreates the balancer's link, as after [`DEVICE`] has been deleted there.
    pub fn renew_balancer_link(&mut self) -> Result<()> {
        let mut s = String::new();
        write_back_port(&mut s, "lb", &self.balancer)?;
        self.router.netns.ip(&s)?;
        build_back(&self.balancer)?;
        self._pass[0] = self.prepare_balancer_port("lb".to_owned())?;
        Ok(())
    }

    /// Has a program look at all that comes back from the balancer.
    pub fn run_behind_balancer(&self, program: BorrowedFd<'_>) -> Result<()> {
        let port = self._pass.first().context("no balancer's port")?;
        port.replace(program)
            .context("a program at the balancer's port")
    }

    /// Gives the balancer back the addresses and routes that a link loses while it is down.
    pub fn address_balancer(&self) -> Result<()> {
        address_back(&self.balancer)
    }

    fn back_ports(&self) -> impl Iterator<Item = (String, &Node)> {
        let servers = self
            .servers
            .iter()
            .enumerate()
            .map(|(i, n)| (format!("s{i}"), n));
        std::iter::once(("lb".to_owned(), &self.balancer)).chain(servers)
    }

    /// The router's port to the balancer: real checksums going in, and a program
    /// that takes what comes back by `XDP_TX`.
    fn with_balancer_port(mut self) -> Result<Self> {
        self._pass = vec![self.prepare_balancer_port("lb".to_owned())?];
        Ok(self)
    }

    fn prepare_balancer_port(&self, port: String) -> Result<XdpPass> {
        self.router.netns.run(move || {
            link::set_tx_checksum(&port, false).context("tx off on the balancer's port")?;
            link::set_gro(&port, true).context("gro on the balancer's port")?;
            link::attach_xdp_pass(&port).context("XDP on the balancer's port")
        })
    }
}

/// `ip` commands that join a node to the bridge.
fn write_back_port(s: &mut String, port: &str, node: &Node) -> Result<()> {
    let mac = format_mac(node.mac);
    writeln!(
        s,
        "link add {port} mtu {BACK_MTU} type veth peer name {DEVICE} mtu {BACK_MTU} \
         address {mac} netns {}",
        node.netns.name()
    )?;
    writeln!(s, "link set {port} master br0 up")?;
    writeln!(s, "neigh replace {} lladdr {mac} dev br0", node.ipv4)?;
    writeln!(s, "neigh replace {} lladdr {mac} dev br0", node.ipv6)?;
    Ok(())
}

fn build_client(node: &Node, i: usize) -> Result<()> {
    node.netns.ip(&format!(
        "link set {DEVICE} up\n\
         addr add {}/24 dev {DEVICE}\n\
         addr add {}/64 dev {DEVICE}\n\
         route add default via 10.10.{i}.1\n\
         route add default via fd10:0:0:{i:x}::1 dev {DEVICE}\n",
        node.ipv4, node.ipv6
    ))
}

fn build_back(node: &Node) -> Result<()> {
    node.netns.sysctl("net/ipv4/conf/all/rp_filter", "0")?;
    node.netns
        .sysctl(&format!("net/ipv4/conf/{DEVICE}/rp_filter"), "0")?;
    node.netns.ip(&format!("link set {DEVICE} up\n"))?;
    address_back(node)
}

/// Addresses, neighbours and routes of a node on the bridge, those that are missing.
fn address_back(node: &Node) -> Result<()> {
    let mac = format_mac(ROUTER_MAC);
    node.netns.ip(&format!(
        "addr replace {}/24 dev {DEVICE}\n\
         addr replace {}/64 dev {DEVICE}\n\
         neigh replace 10.20.0.1 lladdr {mac} dev {DEVICE}\n\
         neigh replace fd20::1 lladdr {mac} dev {DEVICE}\n\
         route replace default via 10.20.0.1\n\
         route replace default via fd20::1 dev {DEVICE}\n",
        node.ipv4, node.ipv6
    ))
}

/// VIPs on the loopback interface, never announced by ARP.
fn build_server(node: &Node) -> Result<()> {
    node.netns.sysctl("net/ipv4/conf/all/arp_ignore", "1")?;
    node.netns.sysctl("net/ipv4/conf/all/arp_announce", "2")?;
    node.netns.sysctl("net/ipv4/conf/default/rp_filter", "0")?;
    let mut s = String::new();
    for i in 0..VIPS {
        writeln!(s, "addr add {}/32 dev lo", vip4(i))?;
        writeln!(s, "addr add {}/128 dev lo", vip6(i))?;
    }
    node.netns.ip(&s)
}
