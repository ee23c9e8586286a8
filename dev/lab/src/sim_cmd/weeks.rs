// SPDX-License-Identifier: Apache-2.0
//! `causeway-lab sim weeks`: state machines with time in them, through weeks and past each wrap.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use causeway_sim::weeks::{MACHINES, Plan};
use serde::Serialize;

use super::planted;

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

impl planted::Row for Row {
    const HEADER: &'static [&'static str] = &[
        "machine", "planted", ">days", ">steps", ">wraps", ">s", "fault",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.machine.to_owned(),
            self.planted.to_owned(),
            format!("{:.1}", self.days),
            self.steps.to_string(),
            self.wraps.to_string(),
            format!("{:.1}", self.seconds),
            self.fault.clone().unwrap_or_default(),
        ]
    }

    fn planted(&self) -> &str {
        self.planted
    }

    fn has_fault(&self) -> bool {
        self.fault.is_some()
    }
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
        planted::tell(&rows, self.json.as_deref())
    }
}
