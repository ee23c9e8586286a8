// SPDX-License-Identifier: Apache-2.0
//! A mean of client response times, in parts that add up.

use std::ops::AddAssign;

use super::{SECOND_NS, Slot};

/// The transactions that ended in a slot, or in several: their number and the sums
/// of their times. Sums add up over slots, servers and categories; means do not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Transactions that ended, on new connections and on open ones.
    pub completed: f64,
    /// Clients that gave up.
    pub gave_up: f64,
    /// How long clients that gave up had waited, seconds.
    pub give_up_s: f64,
    /// Connections that their clients had and the server never served.
    pub stalled: f64,
    /// What the clients of those had waited from the first SYN on, seconds.
    pub stalled_s: f64,
    /// What the completed ones lost before the SYN that was answered, seconds.
    pub conn_fail_s: f64,
    /// What they took from then on, or from their request on, at the server, seconds.
    pub syn_to_end_s: f64,
    /// One round trip each, seconds.
    pub rtt_s: f64,
    /// Of the completed ones those of which it is known what the server took, from the
    /// request to its last data.
    pub timed: f64,
    /// That, seconds.
    pub timed_s: f64,
    /// Those for which it is unknown: their clients asked before they had their answers.
    pub overlapping: f64,
}

/// Where a mean response time goes, in seconds; the parts add up to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parts {
    /// Lost before the connection: dropped SYNs, dropped final ACKs, and those who
    /// gave up.
    pub lost_connection_s: f64,
    /// At the server, kernel queues included.
    pub server_s: f64,
    /// On the network: one round trip.
    pub network_s: f64,
}

impl Estimate {
    /// The measured parts of a slot, without what was lost before the connection.
    pub fn measured(slot: &Slot) -> Self {
        Self {
            completed: (slot.completed + slot.later) as f64,
            stalled: slot.stalled as f64,
            stalled_s: slot.stalled_ns as f64 / SECOND_NS,
            syn_to_end_s: (slot.syn_to_end_ns + slot.later_ns) as f64 / SECOND_NS,
            rtt_s: slot.rtt_ns as f64 / SECOND_NS,
            timed: slot.timed as f64,
            timed_s: slot.server_ns as f64 / SECOND_NS,
            overlapping: slot.overlapping as f64,
            ..Self::default()
        }
    }

    /// The slot's figures by the tracker, with clients that were seen to give up
    /// (each with the time that it had waited, seconds).
    pub fn exact(slot: &Slot, gave_up_s: impl IntoIterator<Item = f64>) -> Self {
        let mut exact = Self {
            conn_fail_s: slot.conn_fail_ns as f64 / SECOND_NS,
            ..Self::measured(slot)
        };
        for waited_s in gave_up_s {
            exact.gave_up += 1.0;
            exact.give_up_s += waited_s;
        }
        exact
    }

    /// Completed transactions and clients that gave up (eq. 4's denominator), before
    /// they were connected or after.
    pub fn transactions(&self) -> f64 {
        self.completed + self.gave_up + self.stalled
    }

    /// What was lost before the connection, by all together, seconds.
    fn lost_s(&self) -> f64 {
        self.give_up_s + self.stalled_s + self.conn_fail_s
    }

    /// The mean client response time in seconds (eq. 4); `None` without transactions.
    pub fn mean_s(&self) -> Option<f64> {
        let sum_s = self.lost_s() + self.syn_to_end_s + self.rtt_s;
        (self.transactions() > 0.0).then(|| sum_s / self.transactions())
    }

    /// The mean as far as the server itself can see, in seconds: SYN-to-END.
    pub fn syn_to_end_mean_s(&self) -> Option<f64> {
        (self.completed > 0.0).then(|| self.syn_to_end_s / self.completed)
    }

    /// What the server took for a request on the mean, in seconds, the path left out; `None`
    /// where that is known of none.
    pub fn server_mean_s(&self) -> Option<f64> {
        (self.timed > 0.0).then(|| self.timed_s / self.timed)
    }

    /// Where the mean goes; `None` without transactions.
    pub fn parts(&self) -> Option<Parts> {
        let n = self.transactions();
        (n > 0.0).then(|| Parts {
            lost_connection_s: self.lost_s() / n,
            server_s: self.syn_to_end_s / n,
            network_s: self.rtt_s / n,
        })
    }
}

impl AddAssign for Estimate {
    fn add_assign(&mut self, other: Self) {
        self.completed += other.completed;
        self.gave_up += other.gave_up;
        self.give_up_s += other.give_up_s;
        self.stalled += other.stalled;
        self.stalled_s += other.stalled_s;
        self.conn_fail_s += other.conn_fail_s;
        self.syn_to_end_s += other.syn_to_end_s;
        self.rtt_s += other.rtt_s;
        self.timed += other.timed;
        self.timed_s += other.timed_s;
        self.overlapping += other.overlapping;
    }
}
