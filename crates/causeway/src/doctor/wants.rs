// SPDX-License-Identifier: Apache-2.0
//! What a configuration wants of the machine.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use causeway_agent::AgentConfig;
use causeway_balancer::BalancerConfig;
use causeway_balancer::config::{Unserved, XdpMode};
use causeway_dataplane::root_cgroup;
use causeway_netio::device_to;
use causeway_service::config::{ConfigErrors, read};
use causeway_tunnel::TunnelConfig;
use clap::ValueEnum;
use serde::Serialize;

/// Which daemon the machine is looked at for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// `causeway lb`
    #[default]
    Balancer,
    /// `causeway agent`
    Agent,
    /// `causeway tunnel`
    Tunnel,
}

/// What one daemon needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wants {
    pub(crate) role: Role,
    /// Interfaces that its packets come and go by.
    pub(crate) interfaces: BTreeSet<String>,
    /// How it attaches an XDP program; `None`: it has none.
    pub(crate) xdp: Option<XdpMode>,
    pub(crate) pin_dir: Option<PathBuf>,
    /// Whether its file has no VIP, so that nothing is known of the way to servers.
    pub(crate) lacks_vips: bool,
    /// Addresses of VIPs.
    pub(crate) vips: BTreeSet<IpAddr>,
    /// Hosts that outer headers go to.
    pub(crate) reals: Vec<IpAddr>,
    /// Bytes in front of a packet to a real, at most; 0: it is not encapsulated.
    pub(crate) overhead: u16,
    pub(crate) encap_mtu: Option<u16>,
    /// Servers that are reached by the MAC address that the file has.
    pub(crate) by_mac: BTreeSet<(IpAddr, [u8; 6])>,
    /// Whether the file has the next hop's MAC address.
    pub(crate) has_gateway: bool,
    /// Whether packets to other ports of VIPs go to the host.
    pub(crate) passes_unserved: bool,
    /// Whether answers to health probes come to the host.
    pub(crate) probes: bool,
    /// Whether connections carry cookies.
    pub(crate) cookies: bool,
    /// The control group that cookies' hooks hang on.
    pub(crate) cgroup: Option<PathBuf>,
    /// A tunnel's paths: device, the peer, and the MTU if the file has it.
    pub(crate) paths: Vec<(Option<String>, IpAddr, Option<u16>)>,
}

impl Wants {
    /// What the daemon of a role needs of these interfaces, without a file.
    pub(crate) fn bare(role: Role) -> Self {
        let xdp = role != Role::Tunnel;
        Self {
            role,
            xdp: xdp.then_some(XdpMode::Auto),
            pin_dir: xdp.then(|| "/sys/fs/bpf/causeway".into()),
            overhead: if role == Role::Balancer { 20 } else { 0 },
            ..Self::default()
        }
    }

    /// What the daemon of a file needs.
    pub(crate) fn of_file(path: &Path) -> Result<Self, ConfigErrors> {
        let text = read(path)?;
        if causeway_tunnel::config::is_tunnels(&text) {
            return TunnelConfig::parse(path, &text).map(|config| Self::of_tunnel(&config));
        }
        if causeway_agent::config::is_agents(&text) {
            return AgentConfig::parse(path, &text).map(|config| Self::of_agent(&config));
        }
        BalancerConfig::parse(path, &text).map(|config| Self::of_balancer(&config))
    }

    fn of_balancer(config: &BalancerConfig) -> Self {
        let overheads = config.vips.iter().map(|vip| {
            let v6 = vip.reals.iter().any(|real| real.address.is_ipv6());
            vip.forwarding.overhead(v6)
        });
        let l2 = config
            .vips
            .iter()
            .filter(|vip| !vip.forwarding.encapsulates());
        let by_mac = l2.flat_map(|vip| {
            let macs = vip.reals.iter();
            macs.filter_map(|real| Some((real.address, real.mac?.0)))
        });
        Self {
            role: Role::Balancer,
            interfaces: BTreeSet::from([config.interface.clone()]),
            xdp: Some(config.xdp_mode),
            pin_dir: Some(config.pin_dir.clone()),
            lacks_vips: config.vips.is_empty(),
            vips: config.vips.iter().map(|vip| vip.address).collect(),
            reals: config.encapsulated_reals(),
            by_mac: by_mac.collect(),
            overhead: overheads.max().unwrap_or(0),
            encap_mtu: config.encap.mtu,
            has_gateway: config.encap.gateway_mac.is_some() || !config.encapsulates(),
            passes_unserved: config.unserved == Unserved::Pass,
            probes: config.vips.iter().any(|vip| vip.health.is_some()),
            ..Self::default()
        }
    }

    fn of_agent(config: &AgentConfig) -> Self {
        let xdp = config.decapsulates();
        let cookies = config.cookies.as_ref();
        Self {
            role: Role::Agent,
            interfaces: BTreeSet::from([config.interface.clone()]),
            xdp: xdp.then_some(config.xdp_mode),
            pin_dir: xdp.then(|| config.pin_dir.clone()),
            vips: config.tunnelled_vips(),
            cookies: cookies.is_some(),
            cgroup: cookies.map(|cookies| {
                let root = || root_cgroup().unwrap_or_else(|| PathBuf::from("/sys/fs/cgroup"));
                cookies.cgroup.clone().unwrap_or_else(root)
            }),
            ..Self::default()
        }
    }

    fn of_tunnel(config: &TunnelConfig) -> Self {
        let paths = config.paths.values();
        let paths = paths.map(|path| (path.device.clone(), path.remote.ip(), path.mtu));
        Self {
            role: Role::Tunnel,
            paths: paths.collect(),
            ..Self::default()
        }
    }

    /// Gives paths without a device that of their route, and takes all as interfaces.
    pub(crate) fn route_paths(&mut self, name_of: impl Fn(u32) -> Option<String>) {
        for (device, peer, _) in &mut self.paths {
            if device.is_none() {
                let route = device_to(*peer).ok().flatten();
                *device = route.and_then(|(index, _)| name_of(index));
            }
            self.interfaces.extend(device.clone());
        }
    }

    /// Whether packets to reals get an outer header.
    pub(crate) fn encapsulates(&self) -> bool {
        self.overhead > 0
    }
}
