// SPDX-License-Identifier: Apache-2.0
//! Feedback from measured latency to the weights of a VIP's reals.
//!
//! [`Watermark`] is the law of the paper (section 4) as a state machine: once
//! per interval it takes what the data plane counted ([`Reading`]) and gives
//! back new weights with the reason of each ([`Decision`]). It holds no clock
//! and no map; whoever drives it decides whether to apply the weights
//! (`control = "watermark"`) or only to show them (`control = "observe"`).
//!
//! What the paper leaves open, and what an operator must be able to rely on,
//! is in docs/control.md.

mod decision;
mod params;
mod share;
mod tracker;
mod watermark;

pub use decision::{Decision, RealDecision, Reason};
pub use params::Params;
pub use watermark::{Member, Watermark};

/// What the data plane counted for one real during one interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    /// Sum of the latency samples, in half nanoseconds (`mean = sum2 / count2`).
    pub latency_sum2_ns: u64,
    /// Number of samples, doubled.
    pub latency_count2: u64,
    /// Requests that went in.
    pub requests: u64,
    /// Connections open at the interval's end.
    pub active: u64,
}
