// SPDX-License-Identifier: Apache-2.0
//! The world of Certes: clients whose SYNs are dropped, and what a server can know.

mod evaluate;
#[cfg(test)]
mod tests;
pub mod workload;
pub mod world;

pub use evaluate::{
    CertesMethod, Distribution, EstimateErrors, Evaluation, Forecast, MethodSeries, evaluate,
    evaluate_by,
};
