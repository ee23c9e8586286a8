// SPDX-License-Identifier: Apache-2.0
//! `causeway-lab sim weeks`: state machines with time in them, through weeks and past each wrap.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use causeway_report::table::TextTable;
use causeway_sim::weeks::{MACHINES, Plan};
use serde::Serialize;

/// Arguments of `causeway-lab sim weeks`.
#[derive(Debug, clap::Args)]
pub(super) struct WeeksArgs {
    /// Virtual days of each machine
    #[arg(long, value_name = "N", default_value_t = 30.0)]
    days: f64,
    /// Seed of all chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// These machines alone
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    machines: Vec<String>,
    /// Plant a fault into each machine, too: all of them must be found
    #[arg(long)]
    planted: bool,
    /// Write the figures as JSON to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Row {
    machine: &'static str,
    /// Empty: as the machine is.
    planted: &'static str,
    days: f64,
    /// After each of which the properties held.
    steps: u64,
    wraps: u64,
    seconds: f64,
    /// What was wrong first, and on which day.
    fault: Option<String>,
}

impl WeeksArgs {
    /// Runs the command; it fails if a machine has a fault, or a planted one is not found.
    pub(super) fn run(self) -> Result<ExitCode> {
        let mut rows = Vec::new();
        let known = |name: &String| MACHINES.iter().any(|machine| machine.name == name);
        if let Some(name) = self.machines.iter().find(|name| !known(name)) {
            anyhow::bail!("no machine is called {name}");
        }
        for machine in MACHINES {
            if !self.machines.is_empty() && !self.machines.iter().any(|of| of == machine.name) {
                continue;
            }
            for planted in [false, true] {
                if planted && !self.planted {
                    continue;
                }
                let begun = Instant::now();
                let lived = machine.run(Plan {
                    days: self.days,
                    seed: self.seed,
                    planted,
                });
                rows.push(Row {
                    machine: machine.name,
                    planted: if planted { machine.planted } else { "" },
                    days: lived.days,
                    steps: lived.steps,
                    wraps: lived.wraps,
                    seconds: begun.elapsed().as_secs_f64(),
                    fault: lived
                        .fault
                        .map(|fault| format!("day {:.2}: {}", fault.day, fault.what)),
                });
            }
        }
        let mut table = TextTable::new(&[
            "machine", "planted", ">days", ">steps", ">wraps", ">s", "fault",
        ]);
        for row in &rows {
            table.push(vec![
                row.machine.to_owned(),
                row.planted.to_owned(),
                format!("{:.1}", row.days),
                row.steps.to_string(),
                row.wraps.to_string(),
                format!("{:.1}", row.seconds),
                row.fault.clone().unwrap_or_default(),
            ]);
        }
        print!("{}", table.to_text());
        if let Some(path) = &self.json {
            let text = serde_json::to_string_pretty(&rows)?;
            std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
        }
        let wrong = |row: &Row| row.fault.is_some() == row.planted.is_empty();
        Ok(match rows.iter().any(wrong) {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        })
    }
}
