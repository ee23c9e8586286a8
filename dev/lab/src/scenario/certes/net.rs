// SPDX-License-Identifier: Apache-2.0
//! The way from clients to a server: one veth, or a router with delay and loss.

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Context as _, Result};
use causeway_bench::loss::{LossInjector, LossRule, TcDirection};

use super::runs::CertesRun;
use crate::link::{self, SynPolice};
use crate::link_emulator::{Impairment, LinkEmulator, LinkEnd};
use crate::load::flood;
use crate::netns::Netns;
use crate::sandbox::Sandbox;
use crate::syn_timeout::SynTimeout;
use crate::topology::{DEVICE, Node};

/// Namespaces of one run.
pub(crate) struct Net {
    pub client: Netns,
    pub server: Node,
    _link: Option<LinkEmulator>,
    _loss: Vec<LossInjector>,
    _police: Option<SynPolice>,
    _router: Option<Netns>,
    _syn_timeout: Option<SynTimeout>,
}

impl Net {
    pub(crate) fn build(proof: Sandbox, run: &CertesRun, seed: u64) -> Result<Self> {
        let make = |what: &str| Netns::create(proof, &format!("{}-{what}", run.name));
        let (client, server) = (make("client")?, make("server")?);
        // Of a flood nothing comes back, and its sources are not checked.
        for netns in [&client, &server] {
            netns.sysctl("net/ipv4/conf/all/rp_filter", "0")?;
            netns.sysctl("net/ipv4/ip_forward", "0")?;
        }
        server.sysctl("net/core/somaxconn", "4096")?;
        if let Some(linear) = run.linear_timeouts {
            client.sysctl("net/ipv4/tcp_syn_linear_timeouts", &linear.to_string())?;
        }
        if let Some(ports) = run.ports {
            const FIRST: u16 = 32_768;
            let range = format!("{FIRST} {}", FIRST + ports - 1);
            client.sysctl("net/ipv4/ip_local_port_range", &range)?;
            client.sysctl("net/ipv4/tcp_tw_reuse", "1")?;
        }
        let mut net = Self {
            _link: None,
            _loss: Vec::new(),
            _police: None,
            _router: None,
            _syn_timeout: None,
            server: Node {
                netns: server.clone(),
                ipv4: Ipv4Addr::new(10, 51, 0, 2),
                ipv6: "fd51::2".parse()?,
                mac: [2, 0, 0, 0, 0, 2],
            },
            client: client.clone(),
        };
        if run.round_trip_us == 0 && run.loss == 0.0 {
            client.ip(&format!(
                "link add {DEVICE} type veth peer name {DEVICE} netns {}\n\
                 addr add 10.51.0.1/24 dev {DEVICE}\nlink set {DEVICE} up\n",
                server.name()
            ))?;
            server.ip(&format!(
                "addr add 10.51.0.2/24 dev {DEVICE}\nlink set {DEVICE} up\nroute add {} via 10.51.0.1\n",
                flood::SOURCES
            ))?;
        } else {
            net.route(make("router")?, run, seed)?;
        }
        if run.scale > 1 {
            net._syn_timeout = Some(SynTimeout::divide(&net.client, run.scale)?);
        }
        if run.policed > 0.0 {
            let share = run.policed;
            let police = server.run(move || {
                link::attach_syn_police(DEVICE, share).context("cannot police SYNs")
            })?;
            net._police = Some(police);
        }
        Ok(net)
    }

    /// A router in between: the line to the clients has the delay, both its ports lose.
    fn route(&mut self, router: Netns, run: &CertesRun, seed: u64) -> Result<()> {
        let delay = Impairment {
            round_trip_us: run.round_trip_us,
            ..Impairment::default()
        };
        router.sysctl("net/ipv4/ip_forward", "1")?;
        let (near, far) = (
            LinkEnd::of(&self.client, DEVICE),
            LinkEnd::of(&router, "c0"),
        );
        self._link = Some(LinkEmulator::start(&near, &far, delay, seed)?);
        let server = &self.server.netns;
        router.ip(&format!(
            "link add s0 type veth peer name {DEVICE} netns {}\n\
             addr add 10.50.0.1/24 dev c0\nlink set c0 up\n\
             addr add 10.51.0.1/24 dev s0\nlink set s0 up\n",
            server.name()
        ))?;
        self.client.ip(&format!(
            "addr add 10.50.0.2/24 dev {DEVICE}\nlink set {DEVICE} up\nroute add default dev {DEVICE} via 10.50.0.1\n"
        ))?;
        server.ip(&format!(
            "addr add 10.51.0.2/24 dev {DEVICE}\nlink set {DEVICE} up\nroute add default via 10.51.0.1\n"
        ))?;
        if run.loss > 0.0 {
            let share = run.loss;
            for (port, seed) in [("c0", seed), ("s0", !seed)] {
                let rule = LossRule {
                    share,
                    seed,
                    ..LossRule::default()
                };
                let attach = move || LossInjector::attach(port, TcDirection::In, rule);
                self._loss.push(router.run(attach)?);
            }
        }
        self._router = Some(router);
        Ok(())
    }

    /// Where the server listens.
    pub(crate) fn target(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.server.ipv4, 80)
    }
}
