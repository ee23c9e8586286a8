// SPDX-License-Identifier: Apache-2.0
//! `causeway generate`: shell completions and man pages, for packages, and APIs. Hidden:
//! builds of packages call it, operators do not need it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use anyhow::Context;
use clap::{CommandFactory, Subcommand};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::config_cmd::Daemon;

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
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            What::Completions { shell } => {
                let mut out = std::io::stdout().lock();
                clap_complete::generate(shell, &mut Cli::command(), "causeway", &mut out);
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
                write_pages(&dir)
                    .with_context(|| format!("cannot write man pages to {}", dir.display()))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes a man page for every command that is not hidden.
fn write_pages(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    clap_mangen::generate_to(Cli::command(), dir)?;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        // A directory of man pages has others' too.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("causeway") && name.ends_with(".1") {
            let text = fs::read_to_string(&path)?;
            if let Some(better) = with_examples(&text) {
                fs::write(&path, better)?;
            }
        }
    }
    Ok(())
}

/// The page with its examples under their own name and in lines of their own: what
/// stands behind a command's help comes out of clap_mangen as filled text. `None`: it
/// has none.
fn with_examples(page: &str) -> Option<String> {
    let (before, rest) = page.split_once(".SH EXTRA\nExamples:\n")?;
    let (examples, after) = rest.split_once("\n.SH ").unwrap_or((rest, "VERSION\n"));
    Some(format!(
        "{before}.SH EXAMPLES\n.nf\n{examples}\n.fi\n.SH {after}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_a_man_page() {
        let dir = tempfile::tempdir().unwrap();
        write_pages(dir.path()).unwrap();
        let read = |page: &str| fs::read_to_string(dir.path().join(page)).expect(page);
        for page in [
            "causeway.1",
            "causeway-lb.1",
            "causeway-agent.1",
            "causeway-tunnel.1",
            "causeway-measure.1",
            "causeway-real-drain.1",
            "causeway-shadow.1",
        ] {
            assert!(read(page).contains(".SH SYNOPSIS"), "{page}");
        }
        // Examples keep their lines.
        for page in [
            "causeway.1",
            "causeway-measure.1",
            "causeway-rtt.1",
            "causeway-rtt-serve.1",
        ] {
            let text = read(page);
            assert!(text.contains(".SH EXAMPLES\n.nf\n  "), "{page}: {text}");
            assert!(text.contains("\n.fi\n.SH VERSION\n"), "{page}: {text}");
            assert!(!text.contains("EXTRA"), "{page}");
        }
        assert!(!dir.path().join("causeway-generate.1").exists());
    }

    #[test]
    fn completions_know_the_commands() {
        let mut script = Vec::new();
        clap_complete::generate(Shell::Bash, &mut Cli::command(), "causeway", &mut script);
        let script = String::from_utf8(script).unwrap();
        assert!(script.contains("unload") && script.contains("--socket"));
    }
}
