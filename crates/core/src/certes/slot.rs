// SPDX-License-Identifier: Apache-2.0
//! What a server counts in one slot of time.

use super::{Count, SECOND_NS, ServerTime, TrackedEvent};

/// Connections that were accepted in one slot and completed in another
/// (ACCEPTED[p, i] of Certes, eq. 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// How many slots before the slot of completion they were accepted.
    pub slots_ago: u32,
    /// How many.
    pub completed: u64,
}

/// Counters of one slot. Sums are of the transactions completed in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// SYNs that came and had not been answered before.
    pub offered: u64,
    /// Of those the ones that were answered.
    pub accepted: u64,
    /// Transactions that ended, of those that began with a SYN: the first of each connection.
    pub completed: u64,
    /// Of those that began with a request on an open connection.
    pub later: u64,
    /// From these requests to the server's last data, nanoseconds.
    pub later_ns: u64,
    /// From the SYN that was answered to the server's last data, nanoseconds; and what
    /// retransmitted data makes of those that had completed before.
    pub syn_to_end_ns: u64,
    /// SYN-ACK to ACK, once for each transaction, nanoseconds.
    pub rtt_ns: u64,
    /// First SYN to the SYN that was answered, as tracked, nanoseconds.
    pub conn_fail_ns: u64,
    /// SYNs that were first of their attempt, as tracked.
    pub first_offered: u64,
    /// Of those the ones that were answered.
    pub first_accepted: u64,
    /// Of the first SYNs those whose client sent more: a retry or an ACK.
    pub heard: u64,
    /// Of those the ones that had been answered.
    pub heard_answered: u64,
    /// Clients whose first ACK came.
    pub established: u64,
    /// Of those the ones that needed more than one SYN-ACK: a round trip was lost.
    pub established_late: u64,
    /// Connections that ended without ever being served.
    pub stalled: u64,
    /// What their clients had waited from the first SYN on, nanoseconds.
    pub stalled_ns: u64,
    /// Of the established those whose first SYN was answered.
    pub established_first: u64,
    /// Connections of which the server was first seen to know: by anything but a SYN-ACK.
    pub served: u64,
    /// Of those the ones whose first SYN was answered.
    pub served_first: u64,
    /// Transactions of which it is known what the server took, from the request on.
    pub timed: u64,
    /// That, nanoseconds.
    pub server_ns: u64,
    /// Those for which it is unknown.
    pub overlapping: u64,
    /// When the completed ones were accepted; empty where it was not kept.
    pub origins: Vec<Origin>,
}

impl Slot {
    /// A sum over all completed connections, of a mean by how many slots ago they were
    /// accepted (eq. 12). Where no origin is known, all are taken to be as old as the mean
    /// SYN-to-END says (eq. 31); where some are missing, like the others: the table that
    /// they are counted in is of fixed size.
    pub fn by_origin(&self, slot_s: f64, mean: impl Fn(usize) -> f64) -> f64 {
        let completed = self.completed as f64;
        let known: u64 = self.origins.iter().map(|origin| origin.completed).sum();
        if self.completed == 0 {
            return 0.0;
        }
        if known == 0 {
            let mean_s = self.syn_to_end_ns as f64 / SECOND_NS / completed;
            return completed * mean((mean_s / slot_s).round() as usize);
        }
        let origins = self.origins.iter();
        let sum: f64 = origins
            .map(|origin| origin.completed as f64 * mean(origin.slots_ago as usize))
            .sum();
        sum * completed / known as f64
    }

    /// SYNs that came and were not answered.
    pub fn dropped(&self) -> u64 {
        self.offered.saturating_sub(self.accepted)
    }

    /// First SYNs that nothing more came after: no retry and no ACK.
    pub fn silent(&self) -> u64 {
        self.first_offered.saturating_sub(self.heard)
    }

    /// Of the silent ones those that had been answered.
    pub fn silent_answered(&self) -> u64 {
        self.first_accepted.saturating_sub(self.heard_answered)
    }

    /// Counts that the client of a first SYN of this slot sent more.
    pub fn count_heard(&mut self, outcome: &TrackedEvent) {
        self.heard += 1;
        let answered = outcome.count != Count::Offered && outcome.retry == 0;
        self.heard_answered += u64::from(answered);
    }

    /// Counts an outcome that belongs to this slot. Origins, and that a client sent more, are for
    /// the caller, who knows the numbers of slots.
    pub fn count(&mut self, outcome: &TrackedEvent) {
        let first = outcome.retry == 0;
        match outcome.server {
            ServerTime::Known(server_ns) => {
                self.timed += 1;
                self.server_ns += server_ns;
            }
            ServerTime::Overlaps => self.overlapping += 1,
            ServerTime::None => {}
        }
        match outcome.count {
            Count::Offered => {
                self.offered += 1;
                self.first_offered += u64::from(first);
            }
            Count::Accepted => {
                self.accepted += 1;
                self.first_accepted += u64::from(first);
            }
            Count::Completed => {
                self.completed += 1;
                self.syn_to_end_ns += outcome.syn_to_end_ns;
                self.rtt_ns += outcome.rtt_ns;
                self.conn_fail_ns += outcome.conn_fail_ns;
            }
            Count::Later => {
                self.later += 1;
                self.later_ns += outcome.syn_to_end_ns;
                self.rtt_ns += outcome.rtt_ns;
            }
            Count::Served => {
                self.served += 1;
                self.served_first += u64::from(first);
            }
            Count::Resent => self.syn_to_end_ns += outcome.syn_to_end_ns,
            Count::Established => {
                self.established += 1;
                self.established_first += u64::from(first);
                self.established_late += u64::from(outcome.answers > 1);
            }
            Count::Stalled => {
                self.stalled += 1;
                self.stalled_ns += outcome.conn_fail_ns;
            }
            Count::Refused => {
                self.offered = self.offered.saturating_sub(1);
                self.first_offered = self.first_offered.saturating_sub(u64::from(first));
            }
            Count::Nothing | Count::Duplicate | Count::Abandoned | Count::Unused => {}
        }
    }
}
