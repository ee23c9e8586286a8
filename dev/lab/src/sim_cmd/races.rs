// SPDX-License-Identifier: Apache-2.0
//! `causeway-lab sim races`: every order of the steps of programs on several CPUs.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use causeway_sim::races::{FlowTableRace, LentClock, Race, RingSwap, SlotHandOut, explore};
use serde::Serialize;

use super::planted;

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

impl planted::Row for Row {
    const HEADER: &'static [&'static str] = &["race", "planted", ">states", ">ends", "fault"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.race.to_owned(),
            self.planted.to_owned(),
            self.states.to_string(),
            self.ends.to_string(),
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
        rows.push(row(&LentClock::default(), ""));
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
            let race = LentClock {
                evicted_unclaimed: true,
                ..LentClock::default()
            };
            rows.push(row(&race, "takes a failed claim for an eviction"));
            let race = RingSwap {
                does_not_wait_behind_the_shrink: true,
                ..RingSwap::default()
            };
            rows.push(row(&race, "does not wait behind the shrink"));
        }
        planted::tell(&rows, self.json.as_deref())
    }
}
