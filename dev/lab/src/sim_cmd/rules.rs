// SPDX-License-Identifier: Apache-2.0
//! `causeway-lab sim rules`: the rules of a fleet in every order of events.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use causeway_report::table::TextTable;
use causeway_sim::races::{Race, explore};
use causeway_sim::rules::{FleetRules, models, planted};
use serde::Serialize;

/// Arguments of `causeway-lab sim rules`.
#[derive(Debug, clap::Args)]
pub(super) struct RulesArgs {
    /// Plant faults, too: all of them must be found
    #[arg(long)]
    planted: bool,
    /// All models: a minute or two
    #[arg(long)]
    long: bool,
    /// Write the figures as JSON to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Row {
    model: &'static str,
    balancers: usize,
    troubles: String,
    /// Empty: as the product is.
    planted: &'static str,
    states: usize,
    /// Moves to the farthest state.
    depth: usize,
    wrong: Option<&'static str>,
    /// The shortest way to it.
    way: Vec<String>,
}

fn row(rules: &FleetRules) -> Row {
    let explored = explore(rules);
    let (way, wrong) = explored.fault.unzip();
    Row {
        model: rules.name(),
        balancers: rules.members,
        troubles: rules.budget.to_string(),
        planted: rules.planted.as_str(),
        states: explored.states,
        depth: explored.depth,
        wrong,
        way: way.unwrap_or_default(),
    }
}

impl RulesArgs {
    /// Runs the command; it fails if a rule has a fault, or a planted one is not found.
    pub(super) fn run(self) -> Result<ExitCode> {
        let mut all = models(self.long);
        if self.planted {
            all.extend(planted());
        }
        let rows: Vec<Row> = all.iter().map(row).collect();
        let columns = ["model", "troubles", "planted", ">states", ">depth", "fault"];
        let mut table = TextTable::new(&columns);
        for row in &rows {
            let fault = row
                .wrong
                .map(|wrong| format!("{wrong}: {}", row.way.join(", ")));
            table.push(vec![
                format!("{} ({})", row.model, row.balancers),
                row.troubles.clone(),
                row.planted.to_owned(),
                row.states.to_string(),
                row.depth.to_string(),
                fault.unwrap_or_default(),
            ]);
        }
        print!("{}", table.to_text());
        if let Some(path) = &self.json {
            let text = serde_json::to_string_pretty(&rows)?;
            std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
        }
        let wrong = |row: &Row| row.wrong.is_some() == row.planted.is_empty();
        Ok(match rows.iter().any(wrong) {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        })
    }
}
