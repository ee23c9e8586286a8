// SPDX-License-Identifier: Apache-2.0
//! The balancer that is there before Causeway is.

use std::net::SocketAddrV4;

use anyhow::{Result, bail};

use super::haproxy::{self, Haproxy};
use super::ipvs::{self, Ipvs, Way};
use crate::topology::{Node, Topology};

/// Which one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Haproxy,
    Ipvs(Way),
}

impl Kind {
    /// By the parameter's word.
    pub(super) fn of_word(word: &str) -> Result<Self> {
        Ok(match word {
            "haproxy" => Self::Haproxy,
            "ipvs-masquerading" => Self::Ipvs(Way::Masquerading),
            "ipvs-tunnel" => Self::Ipvs(Way::Tunnel),
            _ => bail!("existing is haproxy, ipvs-masquerading or ipvs-tunnel, not {word}"),
        })
    }

    /// Whether this machine has it.
    ///
    /// # Errors
    /// With what is missing.
    pub(super) fn available(self) -> Result<()> {
        match self {
            Self::Haproxy => haproxy::available(),
            Self::Ipvs(_) => ipvs::available(),
        }
    }
}

/// It, before all servers.
pub(super) struct Existing<'a> {
    runs: Runs<'a>,
    topology: &'a Topology,
    front: SocketAddrV4,
    servers: Vec<SocketAddrV4>,
}

enum Runs<'a> {
    Haproxy(Haproxy),
    Ipvs(Ipvs<'a>),
}

impl<'a> Existing<'a> {
    pub(super) fn start(
        kind: Kind,
        balance: &str,
        (topology, spare): (&'a Topology, &'a Node),
        front: SocketAddrV4,
    ) -> Result<Self> {
        let servers = topology.servers.iter();
        let servers: Vec<SocketAddrV4> = servers
            .map(|server| SocketAddrV4::new(server.ipv4, front.port()))
            .collect();
        let runs = match kind {
            Kind::Haproxy => {
                let netns = &topology.balancer.netns;
                netns.ip(&format!("addr add {}/32 dev lo\n", front.ip()))?;
                Runs::Haproxy(Haproxy::start(netns, front, balance, &servers)?)
            }
            Kind::Ipvs(way) => Runs::Ipvs(Ipvs::start(topology, spare, front, way, &servers)?),
        };
        Ok(Self {
            runs,
            topology,
            front,
            servers,
        })
    }

    /// The last server gets no new connections, and may finish what it has.
    pub(super) fn take_out_last(&mut self) -> Result<()> {
        let last = self.servers.pop();
        match (&mut self.runs, last) {
            (Runs::Haproxy(haproxy), _) => haproxy.reload(&self.servers),
            (Runs::Ipvs(ipvs), Some(last)) => ipvs.take_out(last),
            (Runs::Ipvs(_), None) => Ok(()),
        }
    }

    /// Another takes its place, which knows none of the connections.
    pub(super) fn replace(&mut self) -> Result<()> {
        match &mut self.runs {
            Runs::Haproxy(haproxy) => haproxy.replace(&self.servers),
            Runs::Ipvs(ipvs) => ipvs.replace(),
        }
    }

    /// Leaves addresses and routes as they were.
    pub(super) fn end(self) -> Result<()> {
        match self.runs {
            Runs::Haproxy(haproxy) => {
                drop(haproxy);
                let netns = &self.topology.balancer.netns;
                netns.ip(&format!("addr del {}/32 dev lo\n", self.front.ip()))
            }
            Runs::Ipvs(ipvs) => ipvs.end(),
        }
    }
}
