// SPDX-License-Identifier: Apache-2.0
//! An agent's end: numbers what it sends, and takes each question once.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use super::datagram::{AgentReport, Body, Boot};
use crate::cookie::Keys;

/// Numbers what an agent sends.
#[derive(Debug)]
pub struct ReportSender {
    boot: Boot,
    next: u64,
    /// By balancer: the report that its last question answered.
    answered: HashMap<SocketAddr, u64>,
    first: u64,
}

impl ReportSender {
    /// An agent that starts at `monotonic_ns` of its machine's clock since this boot. Its
    /// numbers are above those of an agent before it, which cannot have sent a datagram
    /// each microsecond.
    pub fn new(boot: Boot, monotonic_ns: u64) -> Self {
        let first = monotonic_ns / 1000;
        Self {
            boot,
            next: first,
            answered: HashMap::new(),
            first,
        }
    }

    /// The next datagram, about a server that balancers know by this address.
    pub fn datagram(&mut self, server: IpAddr, bodies: Vec<Body>, keys: &Keys) -> Vec<u8> {
        let sequence = self.next;
        self.next += 1;
        let datagram = AgentReport {
            sender: server,
            boot: self.boot,
            sequence,
            bodies,
        };
        datagram.encode(keys)
    }

    /// Whether a datagram from a balancer asks what is open, in answer to a report that
    /// is newer than what that balancer has asked by before.
    pub fn is_asked(
        &mut self,
        datagram: &[u8],
        balancer: SocketAddr,
        servers: &[IpAddr],
        keys: &Keys,
    ) -> bool {
        let Ok(question) = AgentReport::decode(datagram, Some(keys)) else {
            return false;
        };
        let sequence = question.sequence;
        let answered = self.answered.get(&balancer);
        let is_new = (self.first..self.next).contains(&sequence)
            && answered.is_none_or(|answered| sequence > *answered);
        let is_ours = question.boot == self.boot && servers.contains(&question.sender);
        let asks = question.bodies.contains(&Body::Ask) && is_ours && is_new;
        if asks {
            self.answered.insert(balancer, sequence);
        }
        asks
    }
}
