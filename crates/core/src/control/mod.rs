// SPDX-License-Identifier: Apache-2.0
//! Feedback from measured latency to the weights of a VIP's reals.
//!
//! [`Controller`] is a state machine: once per interval it takes what the data plane
//! counted ([`Reading`]) and gives back new weights with the reason of each
//! ([`Decision`]), by one of several laws ([`Law`]). It holds no clock and no map;
//! whoever drives it decides whether to apply the weights or only to show them
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
pub mod merge;
mod params;
mod share;
mod survey;
mod tracker;
mod watermark;

pub use controller::{Controller, Member};
pub use decision::{Decision, RealDecision, Reason};
pub use law::Law;
pub use params::ControlParams;

/// What the data plane counted for one real during one interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    /// Sum of the latency samples, in half nanoseconds (`mean = sum_halves / weight_halves`).
    pub latency_sum_halves_ns: u64,
    /// Number of samples, doubled.
    pub latency_weight_halves: u64,
    /// Requests that went in.
    pub requests: u64,
    /// Connections open at the interval's end.
    pub active: u64,
}
