// SPDX-License-Identifier: Apache-2.0
//! The balancer daemon.
//!
//! [`BalancerConfig`] is what a file says, `plane` what the daemon needs of the kernel, `engine` its
//! state, `api` and `metrics` how others see it, `serve` the process around it. [`run`] is
//! the daemon from start to end. It knows the data plane, the control laws of `core` and
//! what daemons share; it knows neither agents' nor tunnels' daemons.

#[cfg(test)]
mod access_tests;
mod agent_reports;
mod agreement;
mod announce;
mod api;
#[cfg(test)]
mod api_tests;
mod attachment;
mod by_hand;
#[cfg(test)]
mod change_tests;
pub mod config;
mod cookies;
#[cfg(test)]
mod cookies_tests;
mod decisions;
mod discovery;
pub mod engine;
mod error;
mod explain;
#[cfg(test)]
mod fake;
mod fleet;
mod found;
mod headcount;
mod health;
#[cfg(test)]
mod health_tests;
mod interval;
mod joins;
pub mod kernel;
mod latency_in_force;
mod latency_source;
#[cfg(test)]
mod latency_source_tests;
mod loads;
#[cfg(test)]
mod loads_tests;
#[cfg(test)]
mod many_tests;
mod metrics;
mod next_hop;
mod page;
mod peers;
#[cfg(test)]
mod peers_tests;
mod plane;
mod pool;
mod pool_member;
mod probe;
#[cfg(test)]
mod prometheus_tests;
mod real_counters;
mod report;
mod ring_in_force;
mod rings;
mod run;
mod samples;
mod serve;
#[cfg(test)]
mod serve_tests;
mod shared;
pub mod slots;
pub mod state_dir;
mod sync;
#[cfg(test)]
mod tests;
mod timeline;
mod vips_on_host;
mod visits;
mod worker;

pub use api::openapi;
pub use config::BalancerConfig;
pub use run::{LoadedConfig, in_force, load, run, unload};
pub use samples::GRADED_WINDOW;
pub use vips_on_host::vips_on_host;
