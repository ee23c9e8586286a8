// SPDX-License-Identifier: Apache-2.0
//! `causeway config`: look at a configuration without touching the machine.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use crate::config;

/// Arguments of `causeway config`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Check a balancer's, an agent's or a tunnel's file; each fault is one line with its place and
    /// its mend
    Check {
        /// The file to check
        #[arg(default_value = "/etc/causeway/causeway.toml")]
        file: PathBuf,
    },
}

impl Args {
    /// Runs the command; a faulty file gives exit code 1.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Action::Check { file } = self.action;
        match config::check(&file) {
            Ok(summary) => {
                println!("{}: ok: {summary}", file.display());
                Ok(ExitCode::SUCCESS)
            }
            Err(errors) => {
                eprintln!("{errors}");
                Ok(ExitCode::FAILURE)
            }
        }
    }
}
