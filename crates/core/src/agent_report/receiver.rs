// SPDX-License-Identifier: Apache-2.0
//! A balancer's end: takes each datagram once, and holds the newest of what changes.

use std::collections::HashMap;
use std::net::IpAddr;

use super::datagram::{AgentReport, Body, Boot, ConnectionNotice, ServerLoad, ServiceLatency};
use crate::cookie::Keys;

/// How long a load holds.
pub const LOAD_FRESH_NS: u64 = 1_000_000_000;
/// How long a latency holds: three seconds, for two of its datagrams may get lost.
pub const LATENCY_FRESH_NS: u64 = 3_000_000_000;
/// A server that has sent nothing for so long may come back by what looks like a former
/// boot: its clock may have been set back.
const SILENT_NS: u64 = 3_000_000_000;
/// Least time between two questions to an agent.
const ASK_EVERY_NS: u64 = 900_000_000;
/// Servers that are remembered: more than a balancer has reals. The key's holders could
/// name others without end.
pub(super) const SENDERS_MAX: usize = 65_536;

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reception {
    /// It counts.
    Taken,
    /// Overtaken by a newer one on its way; of load and latency only the newest counts.
    Late,
    /// It came before, or is too old to tell.
    Replayed,
    /// Its server has been booted since.
    FormerBoot,
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
    /// Of one server too many.
    Full,
}

impl Reception {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Taken,
        Self::Late,
        Self::Replayed,
        Self::FormerBoot,
        Self::Forged,
        Self::NoKey,
        Self::Version,
        Self::Truncated,
        Self::Malformed,
        Self::Full,
    ];

    /// The counter's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Late => "late",
            Self::Replayed => "replayed",
            Self::FormerBoot => "former_boot",
            Self::Forged => "forged",
            Self::NoKey => "no_key",
            Self::Version => "version",
            Self::Truncated => "truncated",
            Self::Malformed => "malformed",
            Self::Full => "full",
        }
    }
}

/// What is known by agents. Times are of the receiver's own clock.
#[derive(Debug, Default)]
pub struct ReportReceiver {
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
    heard_ns: u64,
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
    /// Takes a datagram in, and gives back what is not kept here. Without keys none is
    /// believed.
    ///
    /// # Errors
    /// Why it was refused.
    pub fn receive(
        &mut self,
        datagram: &[u8],
        keys: Option<&Keys>,
        now_ns: u64,
    ) -> Result<ReceivedReport, Reception> {
        let result =
            AgentReport::decode(datagram, keys).and_then(|datagram| self.take(datagram, now_ns));
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
        let sender = sender.ok_or(Reception::Full)?;
        sender.heard_ns = now_ns;
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
                // A balancer's word to agents.
                Body::Ask => continue,
            };
            counts |= is_newest;
            late |= !is_newest;
        }
        match late && !counts {
            true => Err(Reception::Late),
            false => Ok(received),
        }
    }

    /// Whether a datagram is the first of its number, and of a boot that counts.
    fn admit(&mut self, datagram: &AgentReport, now_ns: u64) -> Result<(), Reception> {
        let (boot, sequence) = (datagram.boot, datagram.sequence);
        if let Some(sender) = self.senders.get_mut(&datagram.sender) {
            if sender.boot.id == boot.id {
                return match sender.window.take(sequence) {
                    true => Ok(()),
                    false => Err(Reception::Replayed),
                };
            }
            let is_silent = now_ns.saturating_sub(sender.heard_ns) > SILENT_NS;
            if boot.time_s <= sender.boot.time_s && !is_silent {
                return Err(Reception::FormerBoot);
            }
        } else if self.senders.len() >= SENDERS_MAX {
            let is_heard = |sender: &Sender| now_ns.saturating_sub(sender.heard_ns) <= SILENT_NS;
            self.senders.retain(|_, sender| is_heard(sender));
            if self.senders.len() >= SENDERS_MAX {
                return Err(Reception::Full);
            }
        }
        self.senders.insert(
            datagram.sender,
            Sender {
                boot,
                window: Window {
                    newest: sequence,
                    taken: 1,
                },
                heard_ns: now_ns,
                asked_ns: None,
                load: None,
                latency: None,
            },
        );
        Ok(())
    }

    /// The answer to a datagram by which its agent is asked for all connections that are
    /// open, unless it was asked just now.
    pub fn ask(&mut self, received: &ReceivedReport, keys: &Keys, now_ns: u64) -> Option<Vec<u8>> {
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
        Some(question.encode(keys))
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
