// SPDX-License-Identifier: Apache-2.0
//! What the clients of a run saw, second by second.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::load::log::ConnectionFault;

/// Counts of one run; shared by its clients.
#[derive(Debug)]
pub(in crate::scenario) struct Tally {
    start: Instant,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    connections: u64,
    broken_connections: u64,
    moves: u64,
    /// Requests that ended in each second: all, and those of them that broke.
    seconds: Vec<(u64, u64)>,
    faults: BTreeMap<&'static str, u64>,
    kinds: BTreeMap<&'static str, ConnectionKind>,
}

/// Connections of one kind of client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(in crate::scenario) struct ConnectionKind {
    /// All of them.
    pub connections: u64,
    /// Those that broke.
    pub broken: u64,
}

/// A run's result, in the words of the JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(in crate::scenario) struct Totals {
    /// Connections that clients opened or tried to.
    pub connections: u64,
    /// Those that ended otherwise than by the client's wish.
    pub broken_connections: u64,
    /// Requests that were sent.
    pub requests: u64,
    /// Those without a whole answer.
    pub broken_requests: u64,
    /// How often clients changed their address.
    pub client_moves: u64,
    /// Share of broken requests among those that ended in the worst second in which new
    /// connections came. Afterwards only who was silent asks, one client in many a second.
    pub worst_second_broken_pct: f64,
    /// Broken connections by reason.
    pub faults: BTreeMap<&'static str, u64>,
    /// Connections by kind of client.
    pub kinds: BTreeMap<&'static str, ConnectionKind>,
    /// Requests that ended in each second, and those of them that broke.
    pub seconds: Vec<(u64, u64)>,
}

impl Tally {
    /// Empty; seconds count from now.
    pub(in crate::scenario) fn new() -> Self {
        Self {
            start: Instant::now(),
            counts: Mutex::default(),
        }
    }

    /// A connection of a client of this kind has begun.
    pub(in crate::scenario) fn connection(&self, kind: &'static str) {
        let mut counts = self.lock();
        counts.connections += 1;
        counts.kinds.entry(kind).or_default().connections += 1;
    }

    /// A connection's client has another address.
    pub(in crate::scenario) fn moved(&self) {
        self.lock().moves += 1;
    }

    /// A request was answered in whole.
    pub(in crate::scenario) fn answered(&self) {
        self.lock().ended(self.start, false);
    }

    /// A request and its connection broke.
    pub(in crate::scenario) fn broke(&self, kind: &'static str, fault: ConnectionFault) {
        let mut counts = self.lock();
        counts.ended(self.start, true);
        counts.broken_connections += 1;
        counts.kinds.entry(kind).or_default().broken += 1;
        *counts.faults.entry(fault.name()).or_default() += 1;
    }

    /// Requests and broken ones so far.
    pub(in crate::scenario) fn so_far(&self) -> (u64, u64) {
        let counts = self.lock();
        let seconds = counts.seconds.iter();
        seconds.fold((0, 0), |sum, second| (sum.0 + second.0, sum.1 + second.1))
    }

    /// The result so far of a load that lasts this long.
    pub(in crate::scenario) fn totals(&self, lasts: Duration) -> Totals {
        let (requests, broken_requests) = self.so_far();
        let counts = self.lock();
        let share = |&(all, broken): &(u64, u64)| match all {
            0 => 0.0,
            _ => 100.0 * broken as f64 / all as f64,
        };
        let loaded = counts.seconds.iter().take(lasts.as_secs().max(1) as usize);
        Totals {
            connections: counts.connections,
            broken_connections: counts.broken_connections,
            requests,
            broken_requests,
            client_moves: counts.moves,
            worst_second_broken_pct: loaded.map(share).fold(0.0, f64::max),
            faults: counts.faults.clone(),
            kinds: counts.kinds.clone(),
            seconds: counts.seconds.clone(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn ended(&mut self, start: Instant, broken: bool) {
        let second = start.elapsed().as_secs() as usize;
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, (0, 0));
        }
        self.seconds[second].0 += 1;
        self.seconds[second].1 += u64::from(broken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_second_is_a_share_of_what_ended_in_it() {
        let tally = Tally::new();
        tally.connection("web");
        tally.connection("idle");
        for _ in 0..3 {
            tally.answered();
        }
        tally.broke("idle", ConnectionFault::Reset);
        let totals = tally.totals(Duration::from_secs(5));
        assert_eq!((totals.connections, totals.broken_connections), (2, 1));
        assert_eq!((totals.requests, totals.broken_requests), (4, 1));
        assert_eq!(
            totals.kinds["idle"],
            ConnectionKind {
                connections: 1,
                broken: 1
            }
        );
        assert_eq!(totals.faults["reset"], 1);
        // All within one second, or over the turn of one.
        assert!((25.0..=100.0).contains(&totals.worst_second_broken_pct));
    }

    #[test]
    fn a_second_after_the_load_is_not_the_worst() {
        let tally = Tally::new();
        tally.lock().seconds = vec![(100, 0), (80, 4), (100, 1), (1, 1)];
        assert_eq!(
            tally.totals(Duration::from_secs(3)).worst_second_broken_pct,
            5.0
        );
        assert_eq!(
            tally.totals(Duration::from_secs(4)).worst_second_broken_pct,
            100.0
        );
    }
}
