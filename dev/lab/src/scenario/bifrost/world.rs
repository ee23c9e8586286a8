// SPDX-License-Identifier: Apache-2.0
//! Two hosts, a network of several paths between them, and a guest behind each host.
//!
//! ```text
//!             host-a             net               host-b
//!  guest-a    p0 10.9.0.1 --- a0 = b0 --- p0 10.9.0.2    guest-b
//!  cw0        p1 10.9.1.1 --- a1 = b1 --- p1 10.9.1.2    cw0
//!  10.5.0.1       ...        bridges           ...       10.5.0.2
//! ```
//!
//! The tunnel's device `cw0` stands in the guest, as a virtual machine's does. Comparators
//! without a tunnel run between the hosts' own TCP: that is in their favour. Rates are
//! limited in the network (token buckets on `aN` and `bN`), losses strike there or in
//! front of a host's card.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use causeway_bench::loss::{LossCounts, LossInjector, LossRule, TcDirection};

use crate::background::output_of;
use crate::link_emulator::{Impairment, LinkEmulator, LinkEnd};
use crate::netns::Netns;
use crate::sandbox::Sandbox;
use crate::{clock, link};

/// The guests' addresses.
pub(super) const GUESTS: [&str; 2] = ["10.5.0.1", "10.5.0.2"];
/// The tunnel's device in a guest.
pub(super) const DEVICE: &str = "cw0";

/// What the network is like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TunnelShape {
    /// How many paths.
    pub paths: usize,
    /// Rate of each, Mbit/s; `None`: as fast as the machine.
    pub rate_mbit: Option<u32>,
    /// Whether hosts hand whole buffers to their cards and cards cut them (USO, TSO),
    /// as real ones do. Without, every packet goes through the network by itself, which
    /// is what losses need.
    pub offloads: bool,
    /// Bytes of a packet on the paths.
    pub mtu: u32,
}

/// Where losses strike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LossPoint {
    /// Between the hosts, single packets.
    Network,
    /// In front of the hosts' cards: what a host hands over, which may be many packets.
    Card,
    /// Behind the hosts' cards, in front of the receiver: what the card hands up, which
    /// may be many packets, too (GRO).
    Receiver,
}

/// The namespaces.
pub(crate) struct TunnelWorld {
    /// The hosts, where tunnels run.
    pub hosts: [Netns; 2],
    pub guests: [Netns; 2],
    net: Netns,
    shape: TunnelShape,
    /// A congestion control that only routes can choose here.
    by_route: Option<String>,
}

/// Losses on every path, both ways, until dropped.
pub(crate) struct Losses(Vec<LossInjector>);

impl TunnelWorld {
    /// Builds it; nothing is lost yet.
    /// `tag` begins the namespaces' names: a sandbox may hold several worlds.
    pub(crate) fn build(
        proof: Sandbox,
        tag: &str,
        shape: TunnelShape,
        congestion: &str,
    ) -> Result<Self> {
        let make = |name: &str| Netns::create(proof, &format!("{tag}-{name}"));
        let guests = [make("guest-a")?, make("guest-b")?];
        Self::between(proof, tag, shape, congestion, guests)
    }

    /// The same with guests that exist.
    pub(crate) fn between(
        proof: Sandbox,
        tag: &str,
        shape: TunnelShape,
        congestion: &str,
        guests: [Netns; 2],
    ) -> Result<Self> {
        let make = |name: &str| Netns::create(proof, &format!("{tag}-{name}"));
        let mut world = Self {
            hosts: [make("host-a")?, make("host-b")?],
            guests,
            net: make("net")?,
            shape,
            by_route: None,
        };
        for path in 0..shape.paths {
            world.join(path)?;
        }
        for netns in world.hosts.iter().chain(&world.guests) {
            // Thousands of short connections an experiment, one experiment after another.
            netns.sysctl("net/ipv4/ip_local_port_range", "1024 65000")?;
            netns.sysctl("net/ipv4/tcp_tw_reuse", "1")?;
            netns.sysctl("net/ipv4/conf/all/rp_filter", "0")?;
            netns.sysctl("net/ipv4/conf/default/rp_filter", "0")?;
        }
        world.set_congestion(congestion)?;
        Ok(world)
    }

    /// TCP's congestion control, of hosts and guests.
    fn set_congestion(&mut self, name: &str) -> Result<()> {
        for netns in self.hosts.iter().chain(&self.guests) {
            // What one run learned about the network is nothing to the next.
            netns.sysctl("net/ipv4/tcp_no_metrics_save", "1")?;
            match netns.sysctl("net/ipv4/tcp_congestion_control", name) {
                // Namespaces may use what the machine's tcp_allowed_congestion_control has.
                Err(e) if is_not_permitted(&e) => self.by_route = Some(name.to_owned()),
                other => other?,
            }
        }
        let Some(name) = &self.by_route else {
            return Ok(());
        };
        for (number, host) in (1..).zip(&self.hosts) {
            for path in 0..self.shape.paths {
                host.ip(&format!(
                    "route replace 10.9.{path}.0/24 dev p{path} scope link \
                     src 10.9.{path}.{number} congctl {name}\n"
                ))?;
            }
        }
        Ok(())
    }

    /// The guests have their devices: what is left to be set on them.
    pub(crate) fn guests_connected(&self) -> Result<()> {
        let Some(name) = &self.by_route else {
            return Ok(());
        };
        for (guest, address) in self.guests.iter().zip(GUESTS) {
            guest.ip(&format!(
                "route replace 10.5.0.0/24 dev {DEVICE} scope link src {address} congctl {name}\n"
            ))?;
        }
        Ok(())
    }

    /// The file of a guest's namespace, for the tunnel's configuration.
    pub(crate) fn guest_file(&self, end: usize) -> PathBuf {
        PathBuf::from("/run/netns").join(self.guests[end].name())
    }

    /// The network's shape.
    pub(crate) fn shape(&self) -> TunnelShape {
        self.shape
    }

    fn join(&self, path: usize) -> Result<()> {
        let mtu = self.shape.mtu;
        let mut script = format!("link add br{path} type bridge\nlink set br{path} mtu {mtu} up\n");
        for (end, host) in [("a", &self.hosts[0]), ("b", &self.hosts[1])] {
            script += &format!(
                "link add {end}{path} mtu {mtu} type veth peer name p{path} mtu {mtu} netns {}\n\
                 link set {end}{path} master br{path} up\n",
                host.name()
            );
        }
        self.net.ip(&script)?;
        for (number, host) in (1..).zip(&self.hosts) {
            host.ip(&format!(
                "addr add 10.9.{path}.{number}/24 dev p{path}\nlink set p{path} up\n"
            ))?;
            let offloads = self.shape.offloads;
            host.run(move || {
                let port = format!("p{path}");
                if !offloads {
                    link::set_segmentation(&port, false).context("offloads of a path")?;
                }
                link::set_gro(&port, true).context("GRO of a path")
            })?;
        }
        for end in ["a", "b"] {
            if let Some(rate) = self.shape.rate_mbit {
                self.limit(&format!("{end}{path}"), rate)?;
            }
        }
        Ok(())
    }

    /// A token bucket with a queue of 4 ms, as shallow switches have.
    fn limit(&self, port: &str, mbit: u32) -> Result<()> {
        let queue = u64::from(mbit) * 1_000_000 / 8 * 4 / 1000;
        self.net.qdisc(&format!(
            "replace dev {port} root tbf rate {mbit}mbit burst 16kb limit {queue}"
        ))
    }

    /// Puts an emulated link with delay into a path, once: it joins two bridges. Losses
    /// strike in front of it, rates hold behind it.
    pub(crate) fn lengthen(
        &self,
        path: usize,
        impairment: Impairment,
        seed: u64,
    ) -> Result<LinkEmulator> {
        let near = LinkEnd::of(&self.net, &format!("t{path}"));
        let far = LinkEnd::of(&self.net, &format!("u{path}"));
        let link = LinkEmulator::between_bridges(&near, &far, impairment, seed)?;
        let mtu = self.shape.mtu;
        self.net.ip(&format!(
            "link add bx{path} type bridge\nlink set bx{path} mtu {mtu} up\n\
             link set t{path} mtu {mtu} master br{path}\n\
             link set u{path} mtu {mtu} master bx{path}\n\
             link set b{path} master bx{path}\n"
        ))?;
        Ok(link)
    }

    /// Packets that a guest's device dropped because its queue was full.
    pub(crate) fn device_drops(guest: &Netns) -> Result<u64> {
        guest.run(|| {
            let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
            let line = text
                .lines()
                .find_map(|line| line.trim().strip_prefix(DEVICE)?.strip_prefix(':'));
            // Eight fields of what came in; of what went out, bytes, packets, errors, drops.
            let field = line.and_then(|line| line.split_whitespace().nth(11));
            Ok(field.context("no tunnel device in the guest")?.parse()?)
        })
    }

    /// Lets MPTCP use every path: the client opens a subflow on each.
    pub(crate) fn enable_mptcp(&self) -> Result<()> {
        for (end, host) in self.hosts.iter().enumerate() {
            let mut commands = vec!["limits set subflow 8 add_addr_accepted 8".to_owned()];
            for path in 1..self.shape.paths {
                let kind = ["subflow", "signal"][end];
                commands.push(format!("endpoint add 10.9.{path}.{} {kind}", end + 1));
            }
            for command in commands {
                let mut ip = host.command("ip");
                output_of(ip.arg("mptcp").args(command.split(' ')))?;
            }
        }
        Ok(())
    }

    /// Loses packets on every path, both ways.
    pub(crate) fn lose(&self, share: f64, place: LossPoint, seed: u64) -> Result<Losses> {
        let mut injectors = Vec::new();
        for path in 0..self.shape.paths {
            for (number, end) in (0..).zip(["a", "b"]) {
                let seed = seed ^ ((path as u64) << 8) ^ (number << 16);
                let rule = LossRule {
                    share,
                    seed,
                    ..LossRule::default()
                };
                let (netns, port, way) = match place {
                    LossPoint::Network => (&self.net, format!("{end}{path}"), TcDirection::In),
                    LossPoint::Card => {
                        let host = &self.hosts[number as usize];
                        (host, format!("p{path}"), TcDirection::Out)
                    }
                    LossPoint::Receiver => {
                        let host = &self.hosts[number as usize];
                        (host, format!("p{path}"), TcDirection::In)
                    }
                };
                injectors.push(netns.run(move || LossInjector::attach(&port, way, rule))?);
            }
        }
        Ok(Losses(injectors))
    }

    /// Takes one path down, both ways, for `down_ns` of each period.
    pub(crate) fn flap(&self, path: usize, period_ns: u64, down_ns: u64) -> Result<Losses> {
        self.down(
            path,
            LossRule {
                period_ns,
                down_ns,
                start_ns: clock::monotonic_ns() + period_ns / 2,
                ..LossRule::default()
            },
        )
    }

    /// Takes one path down, both ways, until dropped.
    pub(crate) fn path_down(&self, path: usize) -> Result<Losses> {
        self.down(
            path,
            LossRule {
                period_ns: u64::MAX,
                down_ns: u64::MAX,
                start_ns: 0,
                ..LossRule::default()
            },
        )
    }

    fn down(&self, path: usize, rule: LossRule) -> Result<Losses> {
        let mut injectors = Vec::new();
        for end in ["a", "b"] {
            let port = format!("{end}{path}");
            injectors.push(
                self.net
                    .run(move || LossInjector::attach(&port, TcDirection::In, rule))?,
            );
        }
        Ok(Losses(injectors))
    }

    /// Takes every path down, both ways, until dropped.
    pub(crate) fn cut(&self) -> Result<Losses> {
        self.lose(1.0, LossPoint::Network, 0)
    }

    /// Makes every packet on the paths smaller, as when a route changes.
    pub(crate) fn shrink(&self, path: usize, mtu: u32) -> Result<()> {
        for host in &self.hosts {
            host.ip(&format!("link set p{path} mtu {mtu}\n"))?;
        }
        Ok(())
    }

    /// Retransmission timeouts of TCP in a guest or host, so far.
    pub(crate) fn tcp_timeouts(netns: &Netns) -> Result<u64> {
        netns.run(|| {
            let text = std::fs::read_to_string("/proc/thread-self/net/netstat")
                .context("/proc/net/netstat")?;
            let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
            let names = lines.next().unwrap_or_default().split_whitespace();
            let values = lines.next().unwrap_or_default().split_whitespace();
            let found = names.zip(values).find(|(name, _)| *name == "TCPTimeouts");
            let (_, value) = found.context("no TCPTimeouts in /proc/net/netstat")?;
            Ok(value.parse()?)
        })
    }
}

fn is_not_permitted(error: &anyhow::Error) -> bool {
    let source = error.downcast_ref::<std::io::Error>();
    source.is_some_and(|source| source.kind() == std::io::ErrorKind::PermissionDenied)
}

impl Losses {
    /// What has passed, over all paths and ways.
    pub(crate) fn counts(&self) -> LossCounts {
        let add = |sum: LossCounts, one: LossCounts| LossCounts {
            packets: sum.packets + one.packets,
            lost: sum.lost + one.lost,
            lost_down: sum.lost_down + one.lost_down,
        };
        let all = self.0.iter().map(LossInjector::counts);
        all.fold(LossCounts::default(), add)
    }
}
