// SPDX-License-Identifier: Apache-2.0
//! IPVS's words, which ipvsadm and keepalived share: schedulers, forwarding methods, persistence.

use std::net::IpAddr;

use crate::ImportContext;
use crate::draft::{Real, Service};

/// How a real gets its packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Method {
    /// `-m`, NAT.
    Masquerade,
    /// `-g`, DR, Route.
    #[default]
    Direct,
    /// `-i`, TUN, with IPVS's default of a plain header.
    Ipip,
    /// `-i --tun-type gue`.
    Gue,
    /// `-i --tun-type gre`.
    Gre,
}

impl Method {
    /// As keepalived has it.
    pub(crate) fn of_kind(word: &str) -> Option<Self> {
        match word {
            "NAT" => Some(Self::Masquerade),
            "DR" => Some(Self::Direct),
            "TUN" => Some(Self::Ipip),
            _ => None,
        }
    }
}

/// A real of IPVS.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) real: Real,
    pub(crate) port: u16,
    pub(crate) method: Method,
}

impl Server {
    pub(crate) fn new(line: usize, address: IpAddr, port: u16) -> Self {
        Self {
            real: Real::new(line, address, 1),
            port,
            method: Method::Direct,
        }
    }

    /// Bounds of connections, which turn a real off and on again.
    pub(crate) fn threshold(&mut self, word: &str, connections: u32) {
        if connections > 0 {
            self.real.remark(
                format!("{word} {connections}, left out"),
                "reals have no bound of connections: use scheduler = \"least-loaded\", and weights as large as servers",
            );
        }
    }
}

/// Puts the servers into the service, with the forwarding that fits all of them.
pub(crate) fn take_servers(service: &mut Service, servers: Vec<Server>, beside: &ImportContext) {
    let mac = |server: &Server| match server.method {
        Method::Direct => beside.macs.get(&server.real.address).cloned(),
        _ => None,
    };
    let all = |method| !servers.is_empty() && servers.iter().all(|s| s.method == method);
    let by_mac = servers.iter().all(|server| mac(server).is_some());
    let forwarding = match by_mac && all(Method::Direct) {
        true => "l2",
        false if all(Method::Gue) => "gue",
        false => "ipip",
    };
    service.settings.forwarding = forwarding;
    for mut server in servers {
        if forwarding == "l2" {
            server.real.mac = mac(&server);
        }
        service.check_port(&mut server.real, server.port);
        let told = match server.method {
            Method::Ipip => None,
            Method::Gue if forwarding == "gue" => None,
            Method::Direct if forwarding == "l2" => None,
            Method::Masquerade => Some((
                "masquerading, written as ipip",
                "addresses are not rewritten: the server holds the VIP and answers clients itself",
            )),
            Method::Direct => Some((
                "direct routing, written as ipip",
                "by MAC address: --neighbours with what `ip neighbour show` prints, or forwarding = \"l2\" and `mac` in each real",
            )),
            Method::Gue => Some((
                "a GUE tunnel beside other methods, written as ipip",
                "forwarding is the VIP's: use \"gue\" for all of its reals",
            )),
            Method::Gre => Some((
                "a GRE tunnel, written as ipip",
                "have the server take ipip, or gue, in the place of GRE",
            )),
        };
        if let Some((what, instead)) = told {
            server.real.remark(what, instead);
        }
        service.reals.push(server.real);
    }
}

/// Sets the scheduler that is nearest to IPVS's, once the reals are known.
pub(crate) fn scheduler(service: &mut Service, line: usize, word: &str, flags: &[String]) {
    let has = |flag: &str, bit: &str| flags.iter().any(|f| f == flag || f == bit);
    // In sh and mh, the second flag: by port, too.
    let by_port = has(&format!("{word}-port"), "flag-2");
    let mut told = None;
    let settings = &mut service.settings;
    settings.scheduler = match word {
        "rr" => "round-robin",
        "wrr" => "weighted-round-robin",
        "wlc" | "lc" => "least-loaded",
        "sh" | "mh" => {
            settings.by_client = !by_port;
            "maglev"
        }
        "twos" => "p2c",
        "sed" | "nq" => {
            told = Some(
                "least-loaded is the nearest: fewest connections for the weight; where they are alike, another may be picked",
            );
            "least-loaded"
        }
        "lblc" | "lblcr" => {
            told = Some(
                "it keeps a destination on one server, and a VIP is one destination; least-loaded spreads it",
            );
            "least-loaded"
        }
        "dh" => {
            told = Some(
                "it goes by destination, and a VIP is one destination; maglev goes by connection",
            );
            "maglev"
        }
        "fo" | "ovf" => {
            told = Some(
                "no scheduler fills one real before the next; give standby servers weight 0 and raise it by `causeway real weight`",
            );
            "weighted-round-robin"
        }
        _ => {
            told = Some("no scheduler is called so; maglev is the default");
            "maglev"
        }
    };
    if word == "lc" {
        // It does not look at weights.
        for real in service.reals.iter_mut().filter(|real| real.weight > 0) {
            real.weight = 1;
        }
    }
    if let Some(instead) = told {
        service.remark(line, format!("scheduler {word}"), instead);
    }
}

/// What comes next to a client's connections going to one real for a time.
pub(crate) const ONE_REAL_A_CLIENT: &str = "connections are picked one by one: for one real a client, scheduler = \"maglev\" with affinity = \"client\", as long as the pool stays";

/// A client's connections go to one real for a time.
pub(crate) fn persistence(service: &mut Service, line: usize, what: String) {
    service.remark(line, format!("{what}, left out"), ONE_REAL_A_CLIENT);
}
