// SPDX-License-Identifier: Apache-2.0
//! HTTP/3 in the lab: servers, and clients that log what they measured.
//!
//! A server answers `GET /r/SIZE/SERVICE_US` as nginx does in this lab
//! ([`crate::nginx`]), over HTTP/3. There are two stacks: quinn with the h3 crate,
//! which is this executable in another role, and quic-go with its http3 package,
//! which is built from `dev/lab/go/quic` when a scenario asks for it. The load
//! is that of [`crate::load`]: the same pages from the same seed, the same log.
//! Here the requests of one connection run side by side, each on its stream, and
//! those that are sent in one moment may share a packet.

pub mod client;
pub mod clock;
mod go_load;
pub(crate) mod gotool;
pub mod modelled_servers;
mod nat;
pub mod serve;
pub mod server;
pub mod session;
mod socket;
pub mod tls;

use anyhow::{Result, ensure};

use crate::load::{LoadConfig, RunningLoad};
use crate::netns::Netns;
pub use server::{Cid, Order, Server, ServerConfig, Stack};

/// Starts a load by clients of `stack`, slots dealt out over `clients` in turn.
///
/// # Errors
/// Without Go, when quic-go is asked for; and when its clients are to sit behind a NAT,
/// which they have none of here.
pub fn load(
    stack: Stack,
    clients: &[Netns],
    config: &LoadConfig,
    options: &client::QuicClientOptions,
) -> Result<RunningLoad> {
    match stack {
        Stack::Quinn => client::start(clients, config, options),
        Stack::QuicGo => {
            ensure!(
                options.nat_ms.is_none(),
                "clients on quic-go have no NAT here"
            );
            go_load::start(clients, config, options.migrate_ms)
        }
    }
}
