// SPDX-License-Identifier: Apache-2.0
//! What an interval brought of one real, before it is settled which latency counts.

use super::{Reading, ServerLatency};

/// Latencies of one grade.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GradedLatencies {
    /// Sum of the samples, in half nanoseconds.
    pub sum_halves_ns: u64,
    /// Number of samples, doubled.
    pub weight_halves: u64,
    /// What servers added, over samples whose path is known.
    pub server_sum_halves_ns: u64,
    /// Round trips of these samples' paths.
    pub path_sum_halves_ns: u64,
    /// Number of these samples, doubled.
    pub path_weight_halves: u64,
}

/// What the data plane has reported of one real's interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MeasuredInterval {
    /// Latencies but those graded low.
    pub good: GradedLatencies,
    /// Those of connections that are all off alike.
    pub low: GradedLatencies,
    /// Weight of upper bounds, which are in no sum.
    pub bound_halves: u64,
    /// All else.
    pub counts: Reading,
}

impl GradedLatencies {
    /// The same with those of `other`.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let add = u64::saturating_add;
        Self {
            sum_halves_ns: add(self.sum_halves_ns, other.sum_halves_ns),
            weight_halves: add(self.weight_halves, other.weight_halves),
            server_sum_halves_ns: add(self.server_sum_halves_ns, other.server_sum_halves_ns),
            path_sum_halves_ns: add(self.path_sum_halves_ns, other.path_sum_halves_ns),
            path_weight_halves: add(self.path_weight_halves, other.path_weight_halves),
        }
    }
}

impl MeasuredInterval {
    /// The latencies that count.
    pub fn samples(&self, takes_low: bool) -> GradedLatencies {
        match takes_low {
            true => self.good.and(self.low),
            false => self.good,
        }
    }

    /// By whole responses, or by what servers added to them.
    pub fn reading(&self, takes_low: bool, by_servers: bool) -> Reading {
        let samples = self.samples(takes_low);
        let low_halves = if takes_low { 0 } else { self.low.weight_halves };
        let responses = Reading {
            latency_sum_halves_ns: samples.sum_halves_ns,
            latency_weight_halves: samples.weight_halves,
            low_weight_halves: self.bound_halves.saturating_add(low_halves),
            ..self.counts
        };
        let server = ServerLatency {
            sum_halves_ns: samples.server_sum_halves_ns,
            path_sum_halves_ns: samples.path_sum_halves_ns,
            weight_halves: samples.path_weight_halves,
        };
        match by_servers {
            true => server.in_place_of_responses(responses),
            false => responses,
        }
    }

    /// The same with what another balancer measured in its interval.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let (own, of) = (self.counts, other.counts);
        Self {
            good: self.good.and(other.good),
            low: self.low.and(other.low),
            bound_halves: self.bound_halves.saturating_add(other.bound_halves),
            counts: Reading {
                requests: own.requests.saturating_add(of.requests),
                all_requests: own.all_requests.saturating_add(of.all_requests),
                active: own.active.saturating_add(of.active),
                late_weight_halves: own.late_weight_halves.saturating_add(of.late_weight_halves),
                answers_acked: own.answers_acked.saturating_add(of.answers_acked),
                ..own
            },
        }
    }
}
