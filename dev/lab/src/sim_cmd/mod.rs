// SPDX-License-Identifier: Apache-2.0
//! `causeway-lab sim`: models in virtual time. No root, no traffic; the same seed gives
//! the same result on every machine.

mod certes;
mod control;
mod figures;
mod fleet;
mod page;
mod planted;
mod races;
mod rules;
mod silence;
mod weeks;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

/// Arguments of `causeway-lab sim`.
#[derive(Debug, clap::Args)]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    /// What clients lose before they are connected: the sixteen workloads of Certes
    Certes(certes::CertesArgs),
    /// The latency controller's laws in closed loop, against plain hashing
    Control(control::ControlArgs),
    /// Connections in large pools: which break, and how evenly they lie
    Fleet(fleet::FleetArgs),
    /// Every order of the steps by which CPUs and user space share a table
    Races(races::RacesArgs),
    /// The rules of a fleet in every order of events
    Rules(rules::RulesArgs),
    /// Which silences a connection survives, by the encoding of its cookie
    Silence(silence::SilenceArgs),
    /// Weeks of each state machine that has a time or a counter that wraps in it
    Weeks(weeks::WeeksArgs),
}

impl SimArgs {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.command {
            SimCommand::Certes(args) => args.run(),
            SimCommand::Control(args) => args.run(),
            SimCommand::Fleet(args) => args.run(),
            SimCommand::Races(args) => args.run(),
            SimCommand::Rules(args) => args.run(),
            SimCommand::Silence(args) => args.run(),
            SimCommand::Weeks(args) => args.run(),
        }
    }
}
