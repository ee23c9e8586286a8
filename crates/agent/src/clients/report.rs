// SPDX-License-Identifier: Apache-2.0
//! Tells balancers once a second what clients felt (`latency = "client"` there).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use causeway_core::certes::Estimate;
use causeway_core::certes::report::{Felt, Report};
use causeway_core::cookie::Keys;

use crate::notices::open_socket;

/// Sends reports. What does not arrive is not missed: a report holds for three seconds.
pub struct Reporter {
    balancers: Vec<SocketAddr>,
    servers: Vec<IpAddr>,
    keys: Keys,
    boot: u64,
    /// By whether it is for IPv6.
    sockets: BTreeMap<bool, UdpSocket>,
}

impl Reporter {
    /// Tells these balancers of a server that they know by these addresses.
    pub fn new(balancers: Vec<SocketAddr>, servers: Vec<IpAddr>, keys: Keys, boot: u64) -> Self {
        Self {
            balancers,
            servers,
            keys,
            boot,
            sockets: BTreeMap::new(),
        }
    }

    /// Goes on with other addresses and keys.
    pub fn set(&mut self, servers: Vec<IpAddr>, keys: Keys) {
        (self.servers, self.keys) = (servers, keys);
    }

    /// Tells what a second was like.
    pub fn tell(&mut self, second: u64, services: &[Felt]) {
        for &server in &self.servers {
            let report = Report {
                server,
                boot: self.boot,
                second,
                services: services.to_vec(),
            };
            let datagram = report.encode(&self.keys);
            for &balancer in &self.balancers {
                let socket = match self.sockets.get(&balancer.is_ipv6()) {
                    Some(socket) => socket,
                    None => match open_socket(balancer.is_ipv6()) {
                        Ok(socket) => self.sockets.entry(balancer.is_ipv6()).or_insert(socket),
                        Err(_) => continue,
                    },
                };
                // A balancer that is not there goes by what it sees itself.
                let _ = socket.send_to(&datagram, balancer);
            }
        }
    }
}

/// A service's part of a report.
pub(super) fn felt(address: Option<IpAddr>, port: u16, of: &Estimate) -> Felt {
    let transactions = of.transactions();
    Felt {
        address,
        port,
        transactions_milli: (transactions * 1e3).round() as u64,
        response_ns: (of.mean_s().unwrap_or(0.0) * transactions * 1e9).round() as u64,
    }
}
