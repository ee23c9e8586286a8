// SPDX-License-Identifier: Apache-2.0
//! The latency controller in closed loop: users, servers whose capacity changes, an
//! estimator that errs, and the very code that the daemon runs.
//!
//! [`world::run`] runs one [`Experiment`]; [`cases`] are those that a law must pass on any
//! seed, [`loads`] the comparison with plain hashing, [`fleet`] several balancers. What it leaves out: packets, the
//! kernel's scheduling, the granularity of rings, and that errors of the estimator last
//! longer than an interval.

mod balancer;
pub mod cases;
pub mod fleet;
pub mod loads;
pub mod noise;
pub mod scenario;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod world;

pub use cases::{Case, CaseFigure};
pub use scenario::Experiment;
