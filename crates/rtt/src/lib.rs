// SPDX-License-Identifier: Apache-2.0
//! `causeway rtt`: every way of measuring latency, at once and on one path, so
//! that one knows what each number means.
//!
//! [`RttArgs::run`] is the command; [`measure`] is its client for programs, and gives an
//! [`RttResult`]. Pairing, pacing and verdicts are `core`'s, and take no clock; here are sockets,
//! threads, the protocol between client and server, and the sampler that `dataplane` attaches. It
//! needs no balancer and no agent.

mod args;
mod client;
mod echoes;
mod hdr_log;
mod knocks;
mod observing;
mod output;
mod own;
pub mod page;
mod protocol;
mod records;
mod result;
mod serve;
mod session;
mod streams;
mod wait;

pub use args::ClientArgs;
pub use client::measure;
pub use protocol::PORT;
pub use result::RttResult;
pub use session::kernel;

use std::process::ExitCode;

use clap::Subcommand;

/// Measure latency to a host by every method at once: request/response, TCP's own, ping
///
/// One host runs `causeway rtt serve`, the other `causeway rtt HOST`. The flags and
/// output selectors are netperf's, the closing line of the echoes is ping's, the
/// names of the kernel's figures are those of `ss -i`.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct RttArgs {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    client: args::ClientArgs,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    Serve(serve::ServeArgs),
}

impl RttArgs {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Some(Command::Serve(args)) => args.run(),
            None => client::run(&self.client),
        }
    }
}
