// SPDX-License-Identifier: Apache-2.0
//! `causeway-lab sim races`: every order of the steps of programs on several CPUs.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use causeway_report::table::TextTable;
use causeway_sim::races::{FlowTableRace, Race, RingSwap, SlotHandOut, explore};
use serde::Serialize;

/// Arguments of `causeway-lab sim races`.
#[derive(Debug, clap::Args)]
pub(super) struct RacesArgs {
    /// Plant the fault that each was tried with, too: all of them must be found
    #[arg(long)]
    planted: bool,
    /// Write the figures as JSON to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Row {
    race: &'static str,
    /// Empty: as the program is.
    planted: &'static str,
    states: usize,
    ends: usize,
    /// The shortest way to what must never be.
    fault: Option<String>,
}

fn row(race: &impl Race, planted: &'static str) -> Row {
    let explored = explore(race);
    let fault = explored.fault;
    Row {
        race: race.name(),
        planted,
        states: explored.states,
        ends: explored.ends,
        fault: fault.map(|(way, wrong)| format!("{wrong}: {}", way.join(", "))),
    }
}

impl RacesArgs {
    /// Runs the command; it fails if a race has a fault, or a planted one is not found.
    pub(super) fn run(self) -> Result<ExitCode> {
        let mut rows = Vec::new();
        for resets in [false, true] {
            let race = FlowTableRace {
                resets,
                ..FlowTableRace::default()
            };
            rows.push(row(&race, ""));
        }
        rows.push(row(&SlotHandOut::default(), ""));
        rows.push(row(&RingSwap::default(), ""));
        if self.planted {
            let race = FlowTableRace {
                resets: true,
                takes_any_tag: true,
                ..FlowTableRace::default()
            };
            rows.push(row(&race, "goes by any tag"));
            let race = SlotHandOut {
                does_not_wait: true,
                ..SlotHandOut::default()
            };
            rows.push(row(&race, "does not wait"));
            let race = RingSwap {
                does_not_wait: true,
                ..RingSwap::default()
            };
            rows.push(row(&race, "does not wait"));
        }
        let mut table = TextTable::new(&["race", "planted", ">states", ">ends", "fault"]);
        for row in &rows {
            table.push(vec![
                row.race.to_owned(),
                row.planted.to_owned(),
                row.states.to_string(),
                row.ends.to_string(),
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
