// SPDX-License-Identifier: Apache-2.0
//! Drives a balancer by the Services of a Kubernetes cluster.
//!
//! What follows from the cluster's objects is decided without I/O: [`claims`] (addresses and ports),
//! [`wanted`] (VIPs and reals), [`actions`] (what is written to the cluster), [`election`]. The
//! rest brings objects in by [`watch`] and the outcome out: into a file that the balancer reads,
//! and into statuses and Events. It believes of the balancer what its API says.

pub mod actions;
pub mod admit;
pub mod api_server;
pub mod balancer;
pub mod claims;
mod clock;
pub mod cluster;
pub mod election;
pub mod file;
mod lines;
mod news;
pub mod objects;
pub mod pool;
pub mod run;
pub mod settings;
mod speaker;
#[cfg(test)]
mod tests;
pub mod wanted;
pub mod watch;
