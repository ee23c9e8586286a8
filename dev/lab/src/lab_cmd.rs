// SPDX-License-Identifier: Apache-2.0
//! `causeway-lab list` and `run`: experiments on real traffic in network namespaces.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use causeway_lab::sandbox;
use causeway_lab::scenario::{self, Request};

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Which scenario (see `causeway-lab list`)
    name: String,
    /// Source of all chance: same seed, same load
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the result to FILE instead of standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Set a parameter; may be given several times
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = parse_param)]
    params: Vec<(String, String)>,
}

impl RunArgs {
    /// Runs the scenario with `binary` under test.
    pub(crate) fn run(self, binary: PathBuf) -> Result<ExitCode> {
        // A typing error should not cost a sandbox.
        let scenario = scenario::find(&self.name)?;
        let sandbox = sandbox::enter()?;
        let report = scenario::execute(
            sandbox,
            Request {
                name: self.name,
                seed: self.seed,
                params: self.params,
                binary,
                progress: Box::new(|message| eprintln!("{message}")),
            },
        )?;
        let text = serde_json::to_string_pretty(&report)? + "\n";
        write_out(self.json.as_deref(), &text)?;
        if let Some(table) = (scenario.table)(&report.result) {
            match self.json {
                Some(_) => print!("{table}"),
                None => eprint!("{table}"),
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn write_out(file: Option<&Path>, text: &str) -> Result<()> {
    match file {
        Some(path) => {
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
        }
        None => {
            print!("{text}");
            Ok(())
        }
    }
}

/// Prints the scenarios.
pub(crate) fn list() -> Result<ExitCode> {
    for scenario in scenario::all() {
        println!("{:<14} {}", scenario.name, scenario.about);
        for p in scenario.params {
            println!(
                "{:<14}   {:<16} {}",
                "",
                format!("{}={}", p.name, p.default),
                p.about
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn parse_param(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}
