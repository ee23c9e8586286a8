// SPDX-License-Identifier: Apache-2.0
//! The world of Certes: clients whose SYNs are dropped, and what a server can know.

mod comparators;
mod evaluate;
mod reference;
#[cfg(test)]
mod tests;
pub mod workload;
pub mod world;

pub use comparators::{QueueingRule, queueing_mean_s};
pub use evaluate::{
    CertesMethod, Distribution, EstimateErrors, Evaluation, Forecast, MethodSeries, evaluate,
    evaluate_by,
};
