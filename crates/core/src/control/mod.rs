// SPDX-License-Identifier: Apache-2.0
//! Feedback from measured latency to the weights of a VIP's reals.
//!
//! [`Controller`] is a state machine: once per interval it takes what the data plane
//! counted ([`Reading`]) and gives back new weights with the reason of each
//! ([`Decision`]), by one of several laws ([`Law`]). It holds no clock and no map;
//! its caller decides whether to apply the weights or only to show them
//! (`control = "observe"`). Several balancers in front of the same reals add up what
//! each has measured ([`merge`]).
//!
//! What the paper leaves open, the laws compared, and what an operator must be able to
//! rely on, is in docs/explanation/steering.md.

mod base;
mod controller;
mod decision;
mod equalise;
mod evidence;
mod law;
mod measured;
pub mod merge;
mod params;
mod sampling;
mod share;
mod survey;
mod tracker;
mod watermark;

pub use controller::{Controller, Member};
pub use decision::{Decision, RealDecision, Reason};
pub use law::Law;
pub use measured::{GradedLatencies, MeasuredInterval};
pub use params::ControlParams;
pub use sampling::{ConnectionSampler, SAMPLING_MAX, SampledInterval, Sampling};

/// What the data plane counted for one real during one interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    /// Sum of the latency samples, in half nanoseconds (`mean = sum_halves / weight_halves`).
    pub latency_sum_halves_ns: u64,
    /// Number of samples, doubled.
    pub latency_weight_halves: u64,
    /// Answers whose latency is graded low or an upper bound, doubled: they show that the real
    /// answers, and not how fast.
    pub low_weight_halves: u64,
    /// Answers of which the latency that counts is not known, doubled: their path is not, or they
    /// overlapped. They show that the real answers, too, and are no sign of low quality.
    pub untold_weight_halves: u64,
    /// Of all these the ones that were over long before they were known, doubled, as of clients that
    /// pause: no sign that the real answers now.
    pub late_weight_halves: u64,
    /// Answers that clients acknowledged before they asked again: a sign that it does.
    pub answers_acked: u64,
    /// Requests of measured connections that went in.
    pub requests: u64,
    /// Requests of all connections, by estimate; 0: all connections are measured.
    pub all_requests: u64,
    /// Connections open at the interval's end.
    pub active: u64,
    /// Time after which a response shows, besides that latency: the path's, on the mean, where the
    /// latency is the server's alone; that of reports, where agents tell it. 0 in an interval without
    /// samples: as before.
    pub path_ns: u64,
    /// Time in which all this came; what is shorter than the controller's interval counts as that.
    pub interval_ns: u64,
}

/// What of the responses' latency servers added, over samples whose path is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerLatency {
    /// Sum of what the server added, in half nanoseconds.
    pub sum_halves_ns: u64,
    /// Sum of the path's round trips, in half nanoseconds.
    pub path_sum_halves_ns: u64,
    /// Number of the samples, doubled.
    pub weight_halves: u64,
}

impl ServerLatency {
    /// What a server adds at least, as far as can be measured: two round trips of one path differ
    /// by some tens of microseconds, which two kernels take to wake up, and by some percent of
    /// a long path. Ratios of what is below would be those of such differences.
    pub const LEAST_NS: u64 = 100_000;
    /// This part of the path's round trip besides.
    pub const LEAST_OF_PATH: u64 = 32;

    /// The interval's reading with the servers' part in the latency's place.
    pub fn in_place_of_responses(self, reading: Reading) -> Reading {
        let path_ns = self.path_sum_halves_ns / self.weight_halves.max(1);
        let least_ns = Self::LEAST_NS + path_ns / Self::LEAST_OF_PATH;
        Reading {
            latency_sum_halves_ns: self.sum_halves_ns.max(least_ns * self.weight_halves),
            latency_weight_halves: self.weight_halves,
            untold_weight_halves: reading
                .latency_weight_halves
                .saturating_sub(self.weight_halves),
            path_ns,
            ..reading
        }
    }
}
