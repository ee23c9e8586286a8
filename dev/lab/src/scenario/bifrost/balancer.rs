// SPDX-License-Identifier: Apache-2.0
//! A tunnel between a balancer and its servers: the balancer's gateway routes the
//! servers' addresses into a tunnel's device, whose other end is the servers' router.
//!
//! ```text
//!  clients --+                                                       +-- server0
//!            +-- near router, cw0 == host-a == paths == host-b == cw0, far router
//!  balancer -+                                                       +-- server1
//! ```
//!
//! Requests go to the balancer, which encapsulates them; the near router sends them
//! through the tunnel. Servers answer past the balancer, through the tunnel, too. Beside
//! it the same over one path without the tunnel.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use causeway_dataplane::Protocol;
use serde_json::{Value, json};

use super::latencies::RequestTimes;
use super::loads::{self, Ends, Pace, TcpStack};
use super::tunnel::{Setting, Tunnel};
use super::world::{DEVICE, GUESTS, LossPoint, TunnelShape, TunnelWorld};
use super::{Context, Scenario, param};
use crate::agent::AgentProcess;
use crate::balancer::{Balancer, BalancerSettings, RealEntry, ServerForwarding, VipEntry};
use crate::nginx::{self, Nginx};
use crate::scenario::bench::{PORT, decapsulate, pin_dir};
use crate::topology::{self, BACK_MTU, Topology};

const CLIENTS: usize = 64;
const PATHS: usize = 4;

pub(crate) const BIFROST_BALANCER: Scenario = Scenario {
    name: "bifrost-balancer",
    about: "a tunnel between a balancer and its servers, under loss, and one path without it",
    params: &[
        param("seconds", "3", "length of each run"),
        param("servers", "2", "nginx servers behind the tunnel"),
        param("rate", "300", "short connections per second"),
        param("bytes", "4096", "size of an answer"),
        param("loss_pct", "1", "loss on every path, beside none"),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let site = Site::build(context)?;
    let seconds: f64 = context.param("seconds")?;
    let pace = Pace {
        rate: context.param("rate")?,
        clients: CLIENTS,
        lasts: Duration::from_secs_f64(seconds),
    };
    let bytes = context.param("bytes")?;
    let lossy: f64 = context.param("loss_pct")?;
    let mut rows = Vec::new();
    for (vip, forwarding) in site.vips() {
        for (way, route) in [
            ("one path", Site::route_plain as fn(&Site) -> Result<()>),
            ("tunnel", Site::route_tunnel),
        ] {
            route(&site)?;
            for loss in [0.0, lossy] {
                let _injected = site
                    .world
                    .lose(loss / 100.0, LossPoint::Network, context.seed)?;
                let before = site.carried()?;
                let ends = site.ends(vip);
                let times = loads::short(&ends, PORT, bytes, pace)?;
                let carried = site.carried()? - before;
                site.check(way, &times, carried)?;
                context.say(format!(
                    "{forwarding:<5} {way:<9} {loss} % loss: p50 {:.2} ms  p99 {:.2} ms  p99.9 {:.2} ms  {} requests, {} failed",
                    times.p50_ms, times.p99_ms, times.p999_ms, times.requests, times.failed
                ));
                rows.push(json!({
                    "forwarding": forwarding, "way": way, "loss_pct": loss,
                    "frames_carried": carried, "times": times,
                }));
            }
        }
    }
    let decapsulated = site.decapsulated()?;
    ensure!(
        decapsulated.iter().all(|packets| *packets > 0),
        "a server has decapsulated nothing: {decapsulated:?}"
    );
    Ok(json!({ "runs": rows, "decapsulated": decapsulated }))
}

/// Both halves and what runs in them.
struct Site {
    near: Topology,
    far: Topology,
    world: TunnelWorld,
    tunnel: Tunnel,
    agents: Vec<AgentProcess>,
    vips: Vec<(VipEntry, &'static str)>,
    _balancer: Balancer,
    _servers: Vec<Nginx>,
}

impl Site {
    fn build(context: &Context) -> Result<Self> {
        nginx::available()?;
        let half = |clients, servers, prefix| {
            let shape = topology::Shape { clients, servers };
            Topology::build_another(context.sandbox, shape, prefix)
        };
        let near = half(1, 0, "near-")?;
        let far = half(0, context.param("servers")?, "far-")?;
        let routers = [near.router.netns.clone(), far.router.netns.clone()];
        let shape = TunnelShape {
            paths: PATHS,
            rate_mbit: Some(250),
            offloads: false,
            // A full packet with an outer header, for the run without a tunnel.
            mtu: BACK_MTU,
        };
        let world = TunnelWorld::between(context.sandbox, "site", shape, "bbr", routers)?;
        join(&near, &far, &world)?;
        let mut setting = Setting::plain(PATHS);
        setting.lines = vec![format!("mtu = {BACK_MTU}")];
        let tunnel = Tunnel::start(&world, &context.binary, &setting)?;
        let nodes = far.servers.iter();
        let servers = nodes
            .map(|node| Nginx::start(&node.netns, &node.ipv4.to_string(), PORT, 1))
            .collect::<Result<_>>()?;
        far.servers.iter().try_for_each(decapsulate)?;
        let agents = far.servers.iter();
        let agents = agents
            .map(|server| AgentProcess::start(&context.binary, server, &pin_dir(server)))
            .collect::<Result<_>>()?;
        let vips = [
            (ServerForwarding::Ipip, "ipip"),
            (ServerForwarding::Gue, "gue"),
        ];
        let vips: Vec<(VipEntry, &str)> = (0..)
            .zip(vips)
            .map(|(i, (forwarding, name))| (vip(&far, i, forwarding), name))
            .collect();
        let settings = BalancerSettings {
            vips: vips.iter().map(|(vip, _)| vip.clone()).collect(),
            ..BalancerSettings::default()
        };
        let balancer = Balancer::start(&context.binary, &near.balancer, &settings)?;
        Ok(Self {
            near,
            far,
            world,
            tunnel,
            agents,
            vips,
            _balancer: balancer,
            _servers: servers,
        })
    }

    fn vips(&self) -> impl Iterator<Item = (&VipEntry, &'static str)> {
        self.vips.iter().map(|(vip, name)| (vip, *name))
    }

    fn ends(&self, vip: &VipEntry) -> Ends {
        Ends {
            client: self.near.clients[0].netns.clone(),
            server: self.far.servers[0].netns.clone(),
            address: vip.address.to_string(),
            stack: TcpStack::Tcp,
        }
    }

    /// Frames that both ends of the tunnel have taken from their guests.
    fn carried(&self) -> Result<u64> {
        self.tunnel.total(|of| of.frames_in)
    }

    fn decapsulated(&self) -> Result<Vec<u64>> {
        let agents = self.agents.iter();
        agents.map(|agent| agent.verdict("decapsulated")).collect()
    }

    /// Servers and clients reach each other through the tunnel.
    fn route_tunnel(&self) -> Result<()> {
        let servers = self.far.servers.iter().map(|node| {
            let (address, gateway) = (node.ipv4, GUESTS[1]);
            format!("route replace {address}/32 via {gateway} dev {DEVICE}\n")
        });
        self.near.router.netns.ip(&servers.collect::<String>())?;
        self.far.router.netns.ip(&format!(
            "route replace 10.10.0.0/16 via {} dev {DEVICE}\n",
            GUESTS[0]
        ))
    }

    /// They do over the first path, as plain packets.
    fn route_plain(&self) -> Result<()> {
        let servers = self.far.servers.iter().map(|node| {
            let address = node.ipv4;
            format!("route replace {address}/32 via 10.6.0.2\n")
        });
        self.near.router.netns.ip(&servers.collect::<String>())?;
        self.far
            .router
            .netns
            .ip("route replace 10.10.0.0/16 via 10.6.0.5\n")
    }

    /// That the run was what it is said to be.
    fn check(&self, way: &str, times: &RequestTimes, carried: u64) -> Result<()> {
        let through = way == "tunnel";
        ensure!(
            through == (carried > times.requests as u64),
            "{way}: the tunnel has carried {carried} frames"
        );
        ensure!(
            !through || times.failed == 0,
            "{way}: {} of {} requests failed",
            times.failed,
            times.requests
        );
        Ok(())
    }
}

/// The service of all servers under the `i`-th VIP.
fn vip(far: &Topology, i: usize, forwarding: ServerForwarding) -> VipEntry {
    let address = topology::vip4(i).into();
    let reals = far.servers.iter().map(|node| RealEntry::of(node, address));
    VipEntry {
        address,
        port: PORT,
        protocol: Protocol::Tcp,
        scheduler: "maglev".to_owned(),
        keys: Vec::new(),
        forwarding,
        reals: reals.collect(),
    }
}

/// Links between routers and hosts, for the way without the tunnel.
fn join(near: &Topology, far: &Topology, world: &TunnelWorld) -> Result<()> {
    for (router, host, first) in [
        (&near.router.netns, &world.hosts[0], 1),
        (&far.router.netns, &world.hosts[1], 5),
    ] {
        host.sysctl("net/ipv4/ip_forward", "1")?;
        let (of_router, of_host) = match first {
            1 => (1, 2),
            _ => (6, 5),
        };
        host.ip(&format!(
            "link add guest mtu {BACK_MTU} type veth peer name host mtu {BACK_MTU} netns {}\n\
             link set guest up\naddr add 10.6.0.{of_host}/30 dev guest\n",
            router.name()
        ))
        .context("link to a router")?;
        router.ip(&format!(
            "link set host up\naddr add 10.6.0.{of_router}/30 dev host\n"
        ))?;
    }
    world.hosts[0]
        .ip("route add 10.20.0.0/24 via 10.9.0.2\nroute add 10.10.0.0/16 via 10.6.0.1\n")?;
    world.hosts[1].ip("route add 10.20.0.0/24 via 10.6.0.6\nroute add 10.10.0.0/16 via 10.9.0.1\n")
}
