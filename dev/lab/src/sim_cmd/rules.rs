// SPDX-License-Identifier: Apache-2.0
//! `causeway-lab sim rules`: the rules of a fleet in every order of events.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use causeway_sim::races::{Race, explore};
use causeway_sim::rules::{FleetRules, models, planted};
use serde::Serialize;

use super::planted;

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

impl planted::Row for Row {
    const HEADER: &'static [&'static str] =
        &["model", "troubles", "planted", ">states", ">depth", "fault"];

    fn cells(&self) -> Vec<String> {
        let fault = self
            .wrong
            .map(|wrong| format!("{wrong}: {}", self.way.join(", ")));
        vec![
            format!("{} ({})", self.model, self.balancers),
            self.troubles.clone(),
            self.planted.to_owned(),
            self.states.to_string(),
            self.depth.to_string(),
            fault.unwrap_or_default(),
        ]
    }

    fn planted(&self) -> &str {
        self.planted
    }

    fn has_fault(&self) -> bool {
        self.wrong.is_some()
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
        planted::tell(&rows, self.json.as_deref())
    }
}
