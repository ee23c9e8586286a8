// SPDX-License-Identifier: Apache-2.0
//! ICMP echo beside the requests, one a tick.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use causeway_core::rtt::RttMethod;
use causeway_core::rtt::explain::EchoHole;
use causeway_netio::rtt::{Pinger, clock};
use causeway_service::stop;

use super::records::Records;

/// Replies later than this are lost.
const LATE_NS: u64 = 5_000_000_000;
/// How long the last replies are waited for.
const LAST_NS: u64 = 1_000_000_000;
/// A sender that is this late leaves out what it has missed.
const BEHIND_NS: u64 = 1_000_000_000;
/// Requests without a reply that are remembered.
const OPEN: usize = 8192;

/// When to send.
pub(crate) struct Plan {
    /// When the first is due, CLOCK_MONOTONIC: a thread that begins late sends no fewer.
    pub start_ns: u64,
    /// Time between two requests.
    pub interval_ns: u64,
    /// No request after this time, CLOCK_MONOTONIC.
    pub end_ns: u64,
    /// Set when the requests' streams have ended: no more echoes.
    pub done: Arc<AtomicBool>,
}

impl Plan {
    /// When the next is due behind the one of `due_ns`. What a long stall has left out is not
    /// made up for all at once.
    pub(crate) fn after(&self, due_ns: u64, now_ns: u64) -> u64 {
        let behind_ns = now_ns.saturating_sub(due_ns);
        let missed = match behind_ns < BEHIND_NS {
            true => 0,
            false => behind_ns / self.interval_ns.max(1),
        };
        due_ns + (missed + 1) * self.interval_ns
    }
}

/// What became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Echoes {
    /// Requests sent.
    pub transmitted: u64,
    /// Replies received in time.
    pub received: u64,
    /// Requests that this host could not send.
    pub unsent: u64,
    /// From the first request to the last reply.
    pub elapsed_ns: u64,
    /// The longest time in which none came back.
    pub hole: EchoHole,
}

/// Looks for the longest run of requests without a reply.
#[derive(Debug)]
struct Holes {
    /// Number and time of the last request that was answered.
    last: (u64, u64),
    longest: EchoHole,
}

impl Holes {
    fn answered(&mut self, number: u64, sent_ns: u64) {
        // A reply that a later one has overtaken ends no hole.
        if sent_ns < self.last.1 {
            return;
        }
        let (last, last_ns) = std::mem::replace(&mut self.last, (number, sent_ns));
        let lost = number.saturating_sub(last).saturating_sub(1);
        if lost > self.longest.lost {
            self.longest = EchoHole {
                lost,
                ns: sent_ns - last_ns,
            };
        }
    }
}

/// Sends until the plan's end; round-trip times go to `records`.
pub(crate) fn start(pinger: Pinger, plan: Plan, records: Arc<Records>) -> JoinHandle<Echoes> {
    thread::spawn(move || {
        clock::set_least_timer_slack();
        let mut sender = Sender {
            pinger,
            records,
            open: VecDeque::new(),
            echoes: Echoes::default(),
            number: 0,
            holes: Holes {
                last: (0, plan.start_ns),
                longest: EchoHole::default(),
            },
        };
        let run = sender.run(&plan);
        let end_ns = *run.as_ref().unwrap_or(&clock::now_ns());
        if let Err(error) = run {
            tracing::warn!("ping ends: {error}");
        }
        // Up to the request that comes no more: the wait for the last replies is none.
        sender.holes.answered(sender.number + 1, end_ns);
        sender.echoes.hole = sender.holes.longest;
        sender.echoes.elapsed_ns = clock::now_ns() - plan.start_ns;
        sender.echoes
    })
}

struct Sender {
    pinger: Pinger,
    records: Arc<Records>,
    /// Number and time of requests without a reply, oldest first.
    open: VecDeque<(u64, u64)>,
    echoes: Echoes,
    /// Of the last request.
    number: u64,
    holes: Holes,
}

/// What an echo has of its number: it comes again every 65,536 requests, of which fewer are open.
fn sequence(number: u64) -> u16 {
    (number & 0xffff) as u16
}

impl Sender {
    /// Gives the time of the end, before the last replies.
    fn run(&mut self, plan: &Plan) -> io::Result<u64> {
        let mut due_ns = plan.start_ns;
        while due_ns < plan.end_ns && !plan.done.load(Ordering::Relaxed) && !stop::stopped() {
            self.send();
            due_ns = plan.after(due_ns, clock::now_ns());
            self.receive_until(due_ns, &plan.done)?;
        }
        let end_ns = clock::now_ns();
        let last_ns = end_ns + LAST_NS;
        while !self.open.is_empty() && clock::now_ns() < last_ns {
            self.receive(last_ns)?;
        }
        Ok(end_ns)
    }

    fn send(&mut self) {
        self.number += 1;
        match self.pinger.send(sequence(self.number)) {
            Ok(sent_ns) => {
                self.echoes.transmitted += 1;
                if self.open.len() == OPEN {
                    self.open.pop_front();
                }
                self.open.push_back((self.number, sent_ns));
            }
            Err(error) => {
                self.echoes.unsent += 1;
                tracing::debug!("an echo request could not be sent: {error}");
            }
        }
    }

    /// Takes replies until `until_ns`, looking now and then whether all is done.
    fn receive_until(&mut self, until_ns: u64, done: &AtomicBool) -> io::Result<()> {
        const LOOK_NS: u64 = 50_000_000;
        loop {
            let now = clock::now_ns();
            if now >= until_ns || done.load(Ordering::Relaxed) || stop::stopped() {
                return Ok(());
            }
            self.receive(until_ns.min(now + LOOK_NS))?;
        }
    }

    fn receive(&mut self, until_ns: u64) -> io::Result<()> {
        let Some((replied, received_ns)) = self.pinger.receive(until_ns)? else {
            return Ok(());
        };
        let mut open = self.open.iter();
        let found = open.position(|(number, _)| sequence(*number) == replied);
        // A duplicate, or a reply to a request long given up.
        let Some((number, sent_ns)) = found.and_then(|i| self.open.remove(i)) else {
            return Ok(());
        };
        let rtt_ns = received_ns - sent_ns;
        if rtt_ns <= LATE_NS {
            self.echoes.received += 1;
            self.holes.answered(number, sent_ns);
            self.records.record(RttMethod::Ping, rtt_ns, 1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_that_a_stall_has_missed_are_left_out() {
        let plan = Plan {
            start_ns: 0,
            interval_ns: 100_000_000,
            end_ns: u64::MAX,
            done: Arc::default(),
        };
        assert_eq!(plan.after(0, 10_000_000), 100_000_000);
        assert_eq!(plan.after(100_000_000, 990_000_000), 200_000_000);
        assert_eq!(plan.after(200_000_000, 10_240_000_000), 10_300_000_000);
    }

    #[test]
    fn the_longest_hole_is_known_across_the_end_of_the_numbers() {
        let mut holes = Holes {
            last: (0, 1_000),
            longest: EchoHole::default(),
        };
        for (number, sent_ns) in [(1, 1_000), (2, 1_100), (6, 1_500), (4, 1_300), (7, 1_600)] {
            holes.answered(number, sent_ns);
        }
        assert_eq!(holes.longest, EchoHole { lost: 3, ns: 400 });
        holes.last = (65_534, 9_000);
        holes.answered(65_539, 9_500);
        assert_eq!(holes.longest, EchoHole { lost: 4, ns: 500 });
        assert_eq!([65_534, 65_536, 65_539].map(sequence), [65_534, 0, 3]);
    }

    #[test]
    fn a_hole_may_be_longer_than_there_are_sequence_numbers() {
        let mut holes = Holes {
            last: (10, 1_000),
            longest: EchoHole::default(),
        };
        holes.answered(70_011, 9_000);
        let expected = EchoHole {
            lost: 70_000,
            ns: 8_000,
        };
        assert_eq!(holes.longest, expected);
    }
}
