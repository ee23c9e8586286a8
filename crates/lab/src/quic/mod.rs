// SPDX-License-Identifier: Apache-2.0
//! HTTP/3 in the lab: servers, and clients that log what they felt.
//!
//! A server answers `GET /r/SIZE/SERVICE_US` as nginx does in this lab
//! ([`crate::nginx`]), over HTTP/3. There are two stacks: quinn with the h3 crate,
//! which is this executable in another role, and quic-go with its http3 package,
//! which is built from `crates/lab/go/quic` when a scenario asks for it. The load
//! is that of [`crate::load`]: the same pages from the same seed, the same log.
//! Here the requests of one connection run side by side, each on its stream, and
//! those that are sent in one moment may share a packet.

pub mod client;
pub mod clock;
pub mod serve;
pub mod server;
mod socket;
pub mod tls;

pub use server::{Order, Server, ServerConfig, Stack};
