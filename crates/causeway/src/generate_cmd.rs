// SPDX-License-Identifier: Apache-2.0
//! `causeway generate`: shell completions and man pages, for packages and for those who build
//! it themselves, and APIs.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Command, Subcommand};
use clap_complete::Shell;

use crate::config_cmd::Daemon;
use crate::manual;

/// Arguments of `causeway generate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Write a completion script to standard output
    Completions {
        /// For which shell
        shell: Shell,
    },
    /// Write what a daemon's API answers to standard output, in OpenAPI's words
    Openapi {
        /// Whose
        daemon: Daemon,
    },
    /// Write a man page for every command
    Man {
        /// Directory to write to
        dir: PathBuf,
    },
}

impl Args {
    /// Runs the command, about the whole of `causeway`.
    pub(crate) fn run(self, mut causeway: Command) -> anyhow::Result<ExitCode> {
        match self.what {
            What::Completions { shell } => {
                let mut out = std::io::stdout().lock();
                clap_complete::generate(shell, &mut causeway, "causeway", &mut out);
            }
            What::Openapi { daemon } => print!(
                "{}",
                match daemon {
                    Daemon::Balancer => causeway_balancer::openapi(),
                    Daemon::Agent => causeway_agent::openapi(),
                    Daemon::Tunnel => causeway_tunnel::openapi(),
                }
            ),
            What::Man { dir } => {
                manual::write_pages(causeway, &dir)
                    .with_context(|| format!("cannot write man pages to {}", dir.display()))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn completions_know_the_commands() {
        let mut script = Vec::new();
        clap_complete::generate(Shell::Bash, &mut Cli::command(), "causeway", &mut script);
        let script = String::from_utf8(script).unwrap();
        assert!(script.contains("unload") && script.contains("--socket"));
    }
}
