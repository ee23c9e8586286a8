// SPDX-License-Identifier: Apache-2.0
//! A balancer's end: takes each datagram once, and holds the newest of what changes.

use std::collections::HashMap;
use std::net::IpAddr;

use super::datagram::{
    AgentReport, Body, Boot, ConnectionNotice, ServerLoad, ServiceLatency, VERSION,
};
use super::keys::{ReportKeys, Speaker, octets};
use crate::cookie::{CookieKey, siphash};

/// How long a load holds.
pub const LOAD_FRESH_NS: u64 = 1_000_000_000;
/// How long a latency holds: three seconds, for two of its datagrams may get lost.
pub const LATENCY_FRESH_NS: u64 = 3_000_000_000;
/// Least time between two questions to an agent.
const ASK_EVERY_NS: u64 = 900_000_000;
/// A challenge holds until the end of the next period of so many bits of nanoseconds: 4 to 9 s.
const CHALLENGE_BITS: u32 = 32;

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reception {
    /// It counts.
    Taken,
    /// Overtaken by a newer one on its way; of load and latency only the newest counts.
    Late,
    /// It came before, or is too old to tell.
    Replayed,
    /// Of a boot that has yet to respond to a challenge.
    Unproven,
    /// Its tag is not by the key that it names.
    Forged,
    /// The balancer has no such key.
    NoKey,
    /// More than one version away.
    Version,
    /// Shorter than it says.
    Truncated,
    /// No report at all.
    Malformed,
}

impl Reception {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Taken,
        Self::Late,
        Self::Replayed,
        Self::Unproven,
        Self::Forged,
        Self::NoKey,
        Self::Version,
        Self::Truncated,
        Self::Malformed,
    ];

    /// The counter's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Late => "late",
            Self::Replayed => "replayed",
            Self::Unproven => "unproven",
            Self::Forged => "forged",
            Self::NoKey => "no_key",
            Self::Version => "version",
            Self::Truncated => "truncated",
            Self::Malformed => "malformed",
        }
    }
}

/// What is known by agents. Times are of the receiver's own clock.
#[derive(Debug)]
pub struct ReportReceiver {
    /// By which challenges are made: nothing is kept of who has not responded.
    secret: CookieKey,
    senders: HashMap<IpAddr, Sender>,
    counts: [u64; Reception::ALL.len()],
}

/// What a datagram that was taken says of connections.
#[derive(Debug, PartialEq)]
pub struct ReceivedReport {
    head: AgentReport,
    /// These are open.
    pub opened: Vec<ConnectionNotice>,
    /// These have closed.
    pub closed: Vec<ConnectionNotice>,
}

#[derive(Debug)]
struct Sender {
    boot: Boot,
    window: Window,
    asked_ns: Option<u64>,
    load: Option<Newest<ServerLoad>>,
    latency: Option<Newest<Vec<ServiceLatency>>>,
}

/// Sequence numbers that were taken (as IPsec's, RFC 4303, section 3.4.3).
#[derive(Debug)]
struct Window {
    newest: u64,
    /// Bit n: `newest - n` was.
    taken: u64,
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
            secret,
            senders: HashMap::new(),
            counts: [0; Reception::ALL.len()],
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
        let result = AgentReport::decode(datagram, Speaker::Agent, keys)
            .and_then(|datagram| self.take(datagram, now_ns));
        let outcome = result.as_ref().err().copied().unwrap_or(Reception::Taken);
        self.counts[outcome as usize] += 1;
        result
    }

    fn take(
        &mut self,
        mut datagram: AgentReport,
        now_ns: u64,
    ) -> Result<ReceivedReport, Reception> {
        self.admit(&datagram, now_ns)?;
        let bodies = std::mem::take(&mut datagram.bodies);
        let sender = self.senders.get_mut(&datagram.sender);
        let sender = sender.ok_or(Reception::Unproven)?;
        let mut received = ReceivedReport {
            head: datagram,
            opened: Vec::new(),
            closed: Vec::new(),
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
                // It has had its effect.
                Body::Response(_) => true,
                // A balancer's words to agents.
                Body::Ask | Body::Challenge(_) => continue,
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
        let (boot, sequence) = (datagram.boot, datagram.sequence);
        if let Some(sender) = self.senders.get_mut(&datagram.sender)
            && sender.boot == boot
        {
            return match sender.window.take(sequence) {
                true => Ok(()),
                false => Err(Reception::Replayed),
            };
        }
        let period = now_ns >> CHALLENGE_BITS;
        let responds = |period| {
            let response = Body::Response(self.challenge_of(datagram, period));
            datagram.bodies.contains(&response)
        };
        if !responds(period) && !period.checked_sub(1).is_some_and(responds) {
            return Err(Reception::Unproven);
        }
        let window = Window {
            newest: sequence,
            taken: 1,
        };
        let sender = Sender {
            boot,
            window,
            asked_ns: None,
            load: None,
            latency: None,
        };
        self.senders.insert(datagram.sender, sender);
        Ok(())
    }

    /// The number that a boot of a server is to repeat in a period.
    fn challenge_of(&self, head: &AgentReport, period: u64) -> u64 {
        let sender = u128::from_le_bytes(octets(head.sender));
        let boot = u64::from(head.boot.time_s) << 32 | u64::from(head.boot.id);
        let words = [sender as u64, (sender >> 64) as u64, boot, period];
        siphash(&words, &self.secret)
    }

    /// The answer to a datagram that was [`Reception::Unproven`].
    pub fn challenge(&self, datagram: &[u8], keys: &ReportKeys, now_ns: u64) -> Option<Vec<u8>> {
        let mut head = AgentReport::decode(datagram, Speaker::Agent, Some(keys)).ok()?;
        let number = self.challenge_of(&head, now_ns >> CHALLENGE_BITS);
        head.bodies = vec![Body::Challenge(number)];
        Some(head.encode_as(VERSION, Speaker::Balancer, keys))
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
        Some(question.encode_as(VERSION, Speaker::Balancer, keys))
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

    /// What became of datagrams since the start.
    pub fn counts(&self) -> impl Iterator<Item = (Reception, u64)> {
        Reception::ALL.into_iter().zip(self.counts)
    }
}

impl ReceivedReport {
    /// The server that says so.
    pub fn server(&self) -> IpAddr {
        self.head.sender
    }
}

impl Window {
    /// Whether a number is new; it is not any more.
    fn take(&mut self, sequence: u64) -> bool {
        if let Some(ahead) = sequence.checked_sub(self.newest).filter(|ahead| *ahead > 0) {
            let shifted = u32::try_from(ahead).ok();
            let shifted = shifted.and_then(|ahead| self.taken.checked_shl(ahead));
            self.taken = shifted.unwrap_or(0) | 1;
            self.newest = sequence;
            return true;
        }
        let behind = u32::try_from(self.newest - sequence).ok();
        let bit = behind.and_then(|behind| 1_u64.checked_shl(behind));
        let is_new = bit.is_some_and(|bit| self.taken & bit == 0);
        self.taken |= bit.unwrap_or(0);
        is_new
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
