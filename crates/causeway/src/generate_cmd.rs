// SPDX-License-Identifier: Apache-2.0
//! `causeway generate`: shell completions and man pages, for packages. Hidden:
//! whoever builds a package calls it, nobody else needs it.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Subcommand};
use clap_complete::Shell;

use crate::cli::Cli;

/// Arguments of `causeway generate`.
#[derive(Debug, clap::Args)]
pub struct Args {
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
    /// Write a man page for every command
    Man {
        /// Directory to write to
        dir: PathBuf,
    },
}

impl Args {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            What::Completions { shell } => {
                let mut out = std::io::stdout().lock();
                clap_complete::generate(shell, &mut Cli::command(), "causeway", &mut out);
            }
            What::Man { dir } => {
                fs::create_dir_all(&dir)
                    .and_then(|()| clap_mangen::generate_to(Cli::command(), &dir))
                    .with_context(|| format!("cannot write man pages to {}", dir.display()))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_a_man_page() {
        let dir = tempfile::tempdir().unwrap();
        clap_mangen::generate_to(Cli::command(), dir.path()).unwrap();
        for page in ["causeway.1", "causeway-lb.1", "causeway-real-drain.1"] {
            let text = fs::read_to_string(dir.path().join(page)).expect(page);
            assert!(text.contains(".SH SYNOPSIS"), "{page}");
        }
        assert!(!dir.path().join("causeway-generate.1").exists());
    }

    #[test]
    fn completions_know_the_commands() {
        let mut script = Vec::new();
        clap_complete::generate(Shell::Bash, &mut Cli::command(), "causeway", &mut script);
        let script = String::from_utf8(script).unwrap();
        assert!(script.contains("detach") && script.contains("--socket"));
    }
}
