// SPDX-License-Identifier: Apache-2.0
//! The agent on a server: takes the outer header off the balancers' packets, writes cookies
//! into what the server answers, and measures client latency.
//!
//! [`AgentConfig`] is what a file says, [`Agent`] the state behind its API, [`run`] the
//! daemon from start to end. It reports to balancers by datagrams, receives a fleet's book in their
//! answers, and otherwise knows nothing of them.

mod agent;
mod book;
mod client_metrics;
pub mod clients;
pub mod config;
mod join;
mod metrics;
mod report;
mod run;
#[cfg(test)]
#[path = "../../dataplane/tests/sandbox/mod.rs"]
mod sandbox;

pub use agent::{Agent, openapi};
pub use config::AgentConfig;
pub use join::join;
pub use run::{run, unload};
