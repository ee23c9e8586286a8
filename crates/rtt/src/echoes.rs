// SPDX-License-Identifier: Apache-2.0
//! ICMP echo beside the requests, one a tick.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use causeway_core::rtt::RttMethod;
use causeway_netio::rtt::{Pinger, clock};
use causeway_service::stop;

use super::records::Records;

/// Replies later than this are lost.
const LATE_NS: u64 = 5_000_000_000;
/// How long the last replies are waited for.
const LAST_NS: u64 = 1_000_000_000;
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
            sequence: 0,
        };
        if let Err(error) = sender.run(&plan) {
            tracing::warn!("ping ends: {error}");
        }
        sender.echoes.elapsed_ns = clock::now_ns() - plan.start_ns;
        sender.echoes
    })
}

struct Sender {
    pinger: Pinger,
    records: Arc<Records>,
    /// Sequence number and time of requests without a reply, oldest first.
    open: VecDeque<(u16, u64)>,
    echoes: Echoes,
    sequence: u16,
}

impl Sender {
    fn run(&mut self, plan: &Plan) -> io::Result<()> {
        let mut due_ns = plan.start_ns;
        while due_ns < plan.end_ns && !plan.done.load(Ordering::Relaxed) && !stop::stopped() {
            self.send();
            due_ns += plan.interval_ns;
            self.receive_until(due_ns, &plan.done)?;
        }
        let last_ns = clock::now_ns() + LAST_NS;
        while !self.open.is_empty() && clock::now_ns() < last_ns {
            self.receive(last_ns)?;
        }
        Ok(())
    }

    fn send(&mut self) {
        self.sequence = self.sequence.wrapping_add(1);
        match self.pinger.send(self.sequence) {
            Ok(sent_ns) => {
                self.echoes.transmitted += 1;
                if self.open.len() == OPEN {
                    self.open.pop_front();
                }
                self.open.push_back((self.sequence, sent_ns));
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
        let Some((sequence, received_ns)) = self.pinger.receive(until_ns)? else {
            return Ok(());
        };
        let found = self.open.iter().position(|(s, _)| *s == sequence);
        // A duplicate, or a reply to a request long given up.
        let Some((_, sent_ns)) = found.and_then(|i| self.open.remove(i)) else {
            return Ok(());
        };
        let rtt_ns = received_ns - sent_ns;
        if rtt_ns <= LATE_NS {
            self.echoes.received += 1;
            self.records.record(RttMethod::Ping, rtt_ns, 1);
        }
        Ok(())
    }
}
