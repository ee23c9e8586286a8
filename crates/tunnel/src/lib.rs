// SPDX-License-Identifier: Apache-2.0
//! The tunnel daemon: one end of the multipath transport of `bifrost`, between a TUN device
//! and UDP sockets.
//!
//! [`TunnelConfig`] is what a file says, [`Tunnel`] the threads, which share nothing, and
//! what starts, changes, watches and ends them; [`run`] is the daemon from start to end. It
//! knows the transport and sockets, and nothing of load balancing.

pub mod config;
mod memory;
mod metrics;
mod outbox;
#[cfg(test)]
mod pair;
mod paths;
mod run;
mod shard;
mod tunnel;
pub mod view;
mod vnic;

pub use config::TunnelConfig;
pub use run::run;
pub use tunnel::{Tunnel, openapi};
