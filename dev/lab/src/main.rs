// SPDX-License-Identifier: Apache-2.0
//! `causeway-lab`: the laboratory's command line. Development only; no package holds it.
//!
//! The product's binary is a process under test: `--binary`, else `causeway` beside this
//! program.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{ArgAction, Parser, Subcommand};
use nix::sys::signal::{SigHandler, Signal, signal};
use tracing_subscriber::EnvFilter;

mod bench_cmd;
mod demo;
mod lab_cmd;
mod sim_cmd;

/// Experiments on Causeway: real traffic in network namespaces, models in virtual time, and
/// what the data plane costs
#[derive(Debug, Parser)]
#[command(name = "causeway-lab", version, after_help = EXAMPLES)]
struct Cli {
    /// Log more: once for debug, twice for trace (CAUSEWAY_LOG takes filters)
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,

    /// The `causeway` binary under test [default: the one beside this program]
    #[arg(long, global = true, value_name = "FILE", env = "CAUSEWAY_BINARY")]
    binary: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  causeway-lab demo                               # as root, about a minute
  causeway-lab list                               # the scenarios and their parameters
  causeway-lab run takeover                       # as root
  causeway-lab run syn-flood --param seconds=3 --seed 7 --json flood.json
  causeway-lab rtt-study --html study.html        # as root, about five minutes
  causeway-lab sim control --cases loads --laws watermark,equalise
  causeway-lab sim fleet --parts updates,balance --html fleet.html
  causeway-lab bench dataplane --tiny";

#[derive(Debug, Subcommand)]
enum Command {
    /// See it all work on this machine: hashing against latency-aware balancing
    Demo(demo::DemoArgs),
    /// List the scenarios and what can be set
    List,
    /// Run a scenario; needs root, leaves nothing behind
    Run(lab_cmd::RunArgs),
    RttStudy(causeway_lab::rtt_study::StudyArgs),
    /// Run models in virtual time, without traffic and without root
    Sim(sim_cmd::SimArgs),
    /// Measure the cost of the data plane itself
    Bench(bench_cmd::BenchArgs),
}

impl Cli {
    fn run(self) -> Result<ExitCode> {
        let binary = || causeway_bench::product::find(self.binary.as_deref());
        match self.command {
            Command::Demo(args) => args.run(binary()?),
            Command::List => lab_cmd::list(),
            Command::Run(args) => args.run(binary()?),
            Command::RttStudy(args) => args.run(binary),
            Command::Sim(args) => args.run(),
            Command::Bench(args) => args.run(),
        }
    }
}

/// `causeway-lab list | head` ends quietly when its reader goes. Rust ignores SIGPIPE, and
/// printing then panics. Only what prints and does nothing else may end so: a scenario has
/// namespaces to take down.
fn end_with_reader() {
    // SAFETY: the default action runs no handler of ours.
    let restored = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
    debug_assert!(restored.is_ok(), "SIGPIPE is a signal that can be set");
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if matches!(cli.command, Command::List | Command::Sim(_)) {
        end_with_reader();
    }
    let level = match cli.verbose {
        0 => "info",
        1 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env("CAUSEWAY_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    match cli.run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("causeway-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::Cli;

    #[test]
    fn the_command_line_is_consistent_and_every_example_is_one() {
        Cli::command().debug_assert();
        let mut checked = 0;
        for line in super::EXAMPLES.lines().skip(1) {
            let words = line.split('#').next().unwrap_or_default();
            if let Err(error) = Cli::try_parse_from(words.split_whitespace()) {
                panic!("{line}: {error}");
            }
            checked += 1;
        }
        assert!(checked > 5, "{checked}");
    }
}
