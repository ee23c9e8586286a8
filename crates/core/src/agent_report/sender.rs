// SPDX-License-Identifier: Apache-2.0
//! An agent's end: numbers what it sends, and takes each question once.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use super::book::BookPart;
use super::datagram::{AgentReport, Body};
use super::keys::{ReportKeys, Speaker};
use crate::envelope::Boot;

/// What a balancer wants of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Which connections are open.
    Open,
    /// This number back, in the name of this server: [`Body::Response`].
    Challenge(IpAddr, u64),
}

/// Numbers what an agent sends.
#[derive(Debug)]
pub struct ReportSender {
    boot: Boot,
    next: u64,
    /// By balancer and server: the report that its last question answered.
    answered: HashMap<(SocketAddr, IpAddr), u64>,
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
    pub fn datagram(&mut self, server: IpAddr, bodies: Vec<Body>, keys: &ReportKeys) -> Vec<u8> {
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

    /// A part of what a balancer sends of the fleet's book, for one of `servers`. It answers a
    /// report of this agent; which book is the newest, the book itself says.
    pub fn book_part(
        &self,
        datagram: &[u8],
        servers: &[IpAddr],
        keys: &ReportKeys,
    ) -> Option<(IpAddr, BookPart)> {
        let told = AgentReport::decode(datagram, Speaker::Balancer, Some(keys)).ok()?;
        let is_own = told.boot == self.boot
            && servers.contains(&told.sender)
            && (self.first..self.next).contains(&told.sequence);
        let mut bodies = told.bodies.into_iter().filter(|_| is_own);
        bodies.find_map(|body| match body {
            Body::Book(part) => Some((told.sender, part)),
            _ => None,
        })
    }

    /// What a balancer wants to know, by a datagram in answer to a report that is newer
    /// than what that balancer has answered before.
    pub fn question(
        &mut self,
        datagram: &[u8],
        balancer: SocketAddr,
        servers: &[IpAddr],
        keys: &ReportKeys,
    ) -> Option<Question> {
        let head = AgentReport::decode(datagram, Speaker::Balancer, Some(keys)).ok()?;
        let (server, sequence) = (head.sender, head.sequence);
        let answered = self.answered.get(&(balancer, server));
        let is_new = (self.first..self.next).contains(&sequence)
            && answered.is_none_or(|answered| sequence > *answered);
        if head.boot != self.boot || !servers.contains(&server) || !is_new {
            return None;
        }
        let challenge = head.bodies.iter().find_map(|body| match body {
            Body::Challenge(number) => Some(Question::Challenge(server, *number)),
            _ => None,
        });
        let asks = head.bodies.contains(&Body::Ask);
        let question = challenge.or(asks.then_some(Question::Open))?;
        self.answered.insert((balancer, server), sequence);
        Some(question)
    }
}
