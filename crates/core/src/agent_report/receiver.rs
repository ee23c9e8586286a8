// SPDX-License-Identifier: Apache-2.0
//! A balancer's end: takes each datagram once, and holds the newest of what changes.

use std::collections::HashMap;
use std::net::IpAddr;

use super::book::{AgentFollows, AgentOrders};
use super::datagram::{AgentReport, Body, ConnectionNotice, ServerLoad, ServiceLatency};
use super::keys::{ReportKeys, Speaker};
use crate::cookie::{CookieKey, KeyEpoch};
use crate::envelope::{Boots, Reception, ReceptionCounts};

/// How long a load holds.
pub const LOAD_FRESH_NS: u64 = 1_000_000_000;
/// How long a latency holds: three seconds, for two of its datagrams may get lost.
pub const LATENCY_FRESH_NS: u64 = 3_000_000_000;
/// Least time between two questions to an agent.
const ASK_EVERY_NS: u64 = 900_000_000;

/// What is known by agents. Times are of the receiver's own clock.
#[derive(Debug)]
pub struct ReportReceiver {
    boots: Boots,
    senders: HashMap<IpAddr, Sender>,
    counts: ReceptionCounts,
}

/// What a datagram that was taken says of connections.
#[derive(Debug, PartialEq)]
pub struct ReceivedReport {
    head: AgentReport,
    /// Which its agent has a secret of.
    epoch: KeyEpoch,
    /// These are open.
    pub opened: Vec<ConnectionNotice>,
    /// These have closed.
    pub closed: Vec<ConnectionNotice>,
    /// What its agent follows of the fleet's book, if it follows any: `Some(None)`, nothing yet.
    pub follows: Option<Option<AgentFollows>>,
}

#[derive(Debug, Default)]
struct Sender {
    asked_ns: Option<u64>,
    load: Option<Newest<ServerLoad>>,
    latency: Option<Newest<Vec<ServiceLatency>>>,
    follows: Option<Newest<Option<AgentFollows>>>,
}

#[derive(Debug)]
struct Newest<T> {
    value: T,
    sequence: u64,
    at_ns: u64,
}

impl ReportReceiver {
    /// A receiver that knows nothing. The secret is random, so that no response that was
    /// recorded before fits a challenge of its.
    pub fn new(secret: CookieKey) -> Self {
        Self {
            boots: Boots::new(secret),
            senders: HashMap::new(),
            counts: ReceptionCounts::default(),
        }
    }

    /// Takes a datagram in, and gives back what is not kept here. Without keys none is
    /// believed.
    ///
    /// # Errors
    /// Why it was refused.
    pub fn receive(
        &mut self,
        datagram: &[u8],
        keys: Option<&ReportKeys>,
        now_ns: u64,
    ) -> Result<ReceivedReport, Reception> {
        let result = AgentReport::decode_signed(datagram, Speaker::Agent, keys)
            .and_then(|(datagram, epoch)| self.take(datagram, epoch, now_ns));
        let outcome = result.as_ref().err().copied().unwrap_or(Reception::Taken);
        self.counts.add(outcome);
        result
    }

    fn take(
        &mut self,
        mut datagram: AgentReport,
        epoch: KeyEpoch,
        now_ns: u64,
    ) -> Result<ReceivedReport, Reception> {
        self.admit(&datagram, now_ns)?;
        let bodies = std::mem::take(&mut datagram.bodies);
        let sender = self.senders.get_mut(&datagram.sender);
        let sender = sender.ok_or(Reception::Unproven)?;
        let mut received = ReceivedReport {
            head: datagram,
            epoch,
            opened: Vec::new(),
            closed: Vec::new(),
            follows: None,
        };
        let sequence = received.head.sequence;
        let (mut counts, mut late) = (bodies.is_empty(), false);
        for body in bodies {
            let is_newest = match body {
                Body::Load(load) => Newest::take(&mut sender.load, load, sequence, now_ns),
                Body::Latency(of) => Newest::take(&mut sender.latency, of, sequence, now_ns),
                Body::Opened(notices) => {
                    received.opened.extend(notices);
                    true
                }
                Body::Closed(notices) => {
                    received.closed.extend(notices);
                    true
                }
                Body::Follows(follows) => {
                    received.follows = Some(follows.clone());
                    Newest::take(&mut sender.follows, follows, sequence, now_ns)
                }
                // It has had its effect.
                Body::Response(_) => true,
                // A balancer's words to agents.
                Body::Ask | Body::Challenge(_) | Body::Book(_) => continue,
            };
            counts |= is_newest;
            late |= !is_newest;
        }
        match late && !counts {
            true => Err(Reception::Late),
            false => Ok(received),
        }
    }

    /// Whether a datagram is the first of its number, and of a boot that is alive.
    fn admit(&mut self, datagram: &AgentReport, now_ns: u64) -> Result<(), Reception> {
        let responds = |number| datagram.bodies.contains(&Body::Response(number));
        if self.boots.admit(&datagram.head(), now_ns, responds)? {
            self.senders.insert(datagram.sender, Sender::default());
        }
        Ok(())
    }

    /// The answer to a datagram that was [`Reception::Unproven`].
    pub fn challenge(&self, datagram: &[u8], keys: &ReportKeys, now_ns: u64) -> Option<Vec<u8>> {
        let signed = AgentReport::decode_signed(datagram, Speaker::Agent, Some(keys));
        let (mut head, epoch) = signed.ok()?;
        let number = self.boots.challenge(&head.head(), now_ns);
        head.bodies = vec![Body::Challenge(number)];
        Some(head.encode_answer(keys, epoch))
    }

    /// The answer to a datagram by which its agent is asked for all connections that are
    /// open, unless it was asked just now.
    pub fn ask(
        &mut self,
        received: &ReceivedReport,
        keys: &ReportKeys,
        now_ns: u64,
    ) -> Option<Vec<u8>> {
        let sender = self.senders.get_mut(&received.head.sender)?;
        let lately = |at_ns| now_ns.saturating_sub(at_ns) < ASK_EVERY_NS;
        if sender.asked_ns.is_some_and(lately) {
            return None;
        }
        sender.asked_ns = Some(now_ns);
        let question = AgentReport {
            bodies: vec![Body::Ask],
            ..received.head.clone()
        };
        Some(question.encode_answer(keys, received.epoch))
    }

    /// A server's load, as long as it holds.
    pub fn load(&self, server: IpAddr, now_ns: u64) -> Option<ServerLoad> {
        let newest = self.senders.get(&server)?.load.as_ref()?;
        (newest.age_ns(now_ns) <= LOAD_FRESH_NS).then_some(newest.value)
    }

    /// What clients of a service waited for at a server, as long as it holds: of that
    /// address and port, else of the address, else of the port, in which order agents
    /// look. Port 0 stands for all ports of the address. `None` where the agent does not
    /// count it.
    pub fn latency(
        &self,
        server: IpAddr,
        (address, port): (IpAddr, u16),
        now_ns: u64,
    ) -> Option<ServiceLatency> {
        let newest = self.senders.get(&server)?.latency.as_ref()?;
        let services = &newest.value;
        if newest.age_ns(now_ns) > LATENCY_FRESH_NS {
            return None;
        }
        if port == 0 {
            let of_address = services.iter().filter(|of| of.address == Some(address));
            return of_address.copied().reduce(|sum, of| ServiceLatency {
                address: Some(address),
                port,
                transactions_milli: sum.transactions_milli.saturating_add(of.transactions_milli),
                response_ns: sum.response_ns.saturating_add(of.response_ns),
                server: sum.server.zip(of.server).map(|(sum, of)| sum.plus(of)),
            });
        }
        let find = |wanted: (Option<IpAddr>, u16)| {
            let mut services = services.iter();
            services.find(|of| (of.address, of.port) == wanted).copied()
        };
        find((Some(address), port))
            .or_else(|| find((Some(address), 0)))
            .or_else(|| find((None, port)))
    }

    /// How long ago a server's latencies came.
    pub fn latency_age_ns(&self, server: IpAddr, now_ns: u64) -> Option<u64> {
        let newest = self.senders.get(&server)?.latency.as_ref()?;
        Some(newest.age_ns(now_ns))
    }

    /// What agents go by of the fleet's book, by server. A server whose boot is another than that
    /// which said so has said nothing.
    pub fn follows(&self) -> impl Iterator<Item = (IpAddr, &AgentFollows)> {
        let senders = self.senders.iter();
        senders.filter_map(|(server, own)| Some((*server, own.follows.as_ref()?.value.as_ref()?)))
    }

    /// What became of datagrams since the start.
    pub fn counts(&self) -> impl Iterator<Item = (Reception, u64)> {
        self.counts.each()
    }
}

impl ReceivedReport {
    /// The server that says so.
    pub fn server(&self) -> IpAddr {
        self.head.sender
    }

    /// The answers that bring its agent this server's part of the book.
    pub fn tell(&self, orders: &AgentOrders, keys: &ReportKeys) -> Vec<Vec<u8>> {
        let parts = orders.parts(self.server(), keys, self.epoch).into_iter();
        let datagram = |part| {
            let told = AgentReport {
                bodies: vec![Body::Book(part)],
                ..self.head.clone()
            };
            told.encode_answer(keys, self.epoch)
        };
        parts.map(datagram).collect()
    }
}

impl<T> Newest<T> {
    /// Takes a value if it is newer; whether it is.
    fn take(newest: &mut Option<Self>, value: T, sequence: u64, at_ns: u64) -> bool {
        let is_newer = newest.as_ref().is_none_or(|of| sequence > of.sequence);
        if is_newer {
            *newest = Some(Self {
                value,
                sequence,
                at_ns,
            });
        }
        is_newer
    }

    fn age_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.at_ns)
    }
}
