// SPDX-License-Identifier: Apache-2.0
//! Loads by several carriers in one trouble: a row for each trouble and load.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::latencies::RequestTimes;
use super::loads::{self, Ends};
use super::replay::Replays;
use super::runs::{BULK, CLIENTS, Carrier, ECHO, PINGERS, WARM_UP, merge, pace, say};
use super::{BifrostPlan, Context, redis};
use crate::background::joined;
use crate::cpu::Steal;
use crate::statistics::median;

/// What is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// Short connections to a web server.
    Short,
    /// Ping-pong of 14 bytes.
    Rr,
    /// GETs of a small value.
    Redis,
    /// As much as goes.
    Bulk,
}

impl Load {
    fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Rr => "rr",
            Self::Redis => "redis",
            Self::Bulk => "bulk",
        }
    }
}

/// Bulk beside the load.
#[derive(Debug, Clone)]
pub(super) enum Elephant {
    /// None.
    None,
    /// By the carrier itself.
    Own,
    /// Between these, for every carrier.
    Foreign(Ends),
}

/// What makes life hard for a load.
#[derive(Debug, Clone)]
pub(super) struct CaseTrouble {
    /// Its name in rows.
    pub case: &'static str,
    /// Packets lost; the caller injects the loss.
    pub loss_pct: f64,
    /// Bulk beside it.
    pub elephant: Elephant,
}

impl CaseTrouble {
    /// A trouble without an elephant.
    pub(super) fn new(case: &'static str, loss_pct: f64) -> Self {
        Self {
            case,
            loss_pct,
            elephant: Elephant::None,
        }
    }

    fn title(&self, load: Load, carrier: &Carrier) -> String {
        let (case, loss) = (self.case, self.loss_pct);
        format!("{case} {loss} % {} {}", load.name(), carrier.name)
    }
}

/// Rows and runs so far.
pub(super) struct Comparison<'a, 'b> {
    context: &'a Context,
    plan: &'a BifrostPlan,
    replays: &'a mut Replays<'b>,
    rows: Vec<Value>,
    runs: Vec<Value>,
    turn: usize,
}

/// Counters by name, of now.
type Counts<'a> = &'a dyn Fn() -> Result<[(&'static str, u64); 3]>;

impl<'a, 'b> Comparison<'a, 'b> {
    pub(super) fn new(
        context: &'a Context,
        plan: &'a BifrostPlan,
        replays: &'a mut Replays<'b>,
    ) -> Self {
        Self {
            context,
            plan,
            replays,
            rows: Vec::new(),
            runs: Vec::new(),
            turn: 0,
        }
    }

    /// Has the carriers bear the load by turns, in rounds; the medians become their columns.
    /// A single run is what is played again: nothing is compared within a round.
    pub(super) fn run(
        &mut self,
        trouble: &CaseTrouble,
        load: Load,
        carriers: &[Carrier],
    ) -> Result<()> {
        self.play(trouble, load, carriers, None)?;
        Ok(())
    }

    /// The same, and what was counted meanwhile, in the runs that count, as further columns.
    pub(super) fn count(
        &mut self,
        trouble: &CaseTrouble,
        load: Load,
        carriers: &[Carrier],
        counts: Counts<'_>,
    ) -> Result<Value> {
        let columns = self.play(trouble, load, carriers, Some(counts))?;
        self.note(trouble, load, columns.clone());
        Ok(columns)
    }

    fn play(
        &mut self,
        trouble: &CaseTrouble,
        load: Load,
        carriers: &[Carrier],
        counts: Option<Counts<'_>>,
    ) -> Result<Value> {
        let (context, plan) = (self.context, self.plan);
        let mut order = Vec::new();
        for _ in 0..plan.case_rounds {
            order.extend((0..carriers.len()).map(|index| (index + self.turn) % carriers.len()));
            self.turn += 1;
        }
        let title = |at: usize| trouble.title(load, &carriers[at]);
        let names = order.iter().enumerate().map(|(number, &at)| {
            let round = 1 + number / carriers.len();
            format!("{}, round {round}", title(at))
        });
        let names: Vec<String> = names.collect();
        let counted = self.replays.rounds(&names, |round| {
            let begin = counts.map(|counts| counts()).transpose()?;
            let carrier = &carriers[order[round]];
            let mut run = once(context, plan, trouble, load, carrier)?;
            let end = counts.map(|counts| counts()).transpose()?;
            let both = begin.into_iter().flatten().zip(end.into_iter().flatten());
            run.counted = both.map(|(a, b)| (a.0, b.1 - a.1)).collect();
            let steal = run.steal;
            Ok((run, steal))
        })?;
        let over_limit = counted.iter().filter(|one| one.over).count();
        let mut found = vec![Found::default(); carriers.len()];
        let mut sums: Map<String, Value> = Map::new();
        for (&at, one) in order.iter().zip(counted) {
            let run = one.figures;
            for (name, count) in &run.counted {
                let sum = sums.entry(*name).or_insert(json!(0));
                *sum = json!(sum.as_u64().unwrap_or_default() + count);
            }
            self.runs.push(json!(run));
            found[at].add(run);
        }
        for (carrier, found) in carriers.iter().zip(found) {
            self.note(trouble, load, found.columns(carrier.name));
        }
        self.note(trouble, load, json!({ "over_limit": over_limit }));
        Ok(Value::Object(sums))
    }

    /// Adds columns to the row of a trouble and load.
    pub(super) fn note(&mut self, trouble: &CaseTrouble, load: Load, columns: Value) {
        let (case, loss, load) = (trouble.case, trouble.loss_pct, load.name());
        let found = self
            .rows
            .iter_mut()
            .find(|row| row["case"] == case && row["loss_pct"] == loss && row["load"] == load);
        if let Some(row) = found {
            return merge(row, columns);
        }
        let mut row = json!({ "case": case, "loss_pct": loss, "load": load });
        merge(&mut row, columns);
        self.rows.push(row);
    }

    /// Rows, and runs in detail.
    pub(super) fn finish(self) -> (Value, Value) {
        (Value::Array(self.rows), Value::Array(self.runs))
    }
}

/// One run of a load by a carrier.
#[derive(Debug, Clone, Serialize)]
struct Run {
    case: &'static str,
    loss_pct: f64,
    load: &'static str,
    carrier: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<RequestTimes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gbps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    elephant_gbps: Option<f64>,
    stolen_pct: f64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    counted: BTreeMap<&'static str, u64>,
    #[serde(skip)]
    steal: Steal,
}

fn once(
    context: &Context,
    plan: &BifrostPlan,
    trouble: &CaseTrouble,
    load: Load,
    carrier: &Carrier,
) -> Result<Run> {
    let (ends, title) = (&carrier.ends, trouble.title(load, carrier));
    let elephant = match &trouble.elephant {
        Elephant::None => None,
        Elephant::Own => Some(ends.clone()),
        Elephant::Foreign(ends) => Some(ends.clone()),
    };
    let elephant = elephant.map(|ends| {
        let lasts = [WARM_UP, plan.lasts];
        let bulk = std::thread::spawn(move || loads::bulk(&ends, BULK + 1, 1, lasts, &[]));
        // It is well under way when the load begins, and ends with it.
        std::thread::sleep(WARM_UP - Duration::from_millis(100));
        bulk
    });
    let (mut times, mut gbps, mut elephant_gbps) = (None, None, None);
    let steal = if load == Load::Bulk {
        let bulk = loads::bulk(ends, BULK, plan.flows, [WARM_UP, plan.bulk], &[])?;
        context.say(format!(
            "{title}: {:.3} Gbit/s, {:.1} % of the CPUs stolen",
            bulk.gbps,
            bulk.steal.pct()
        ));
        gbps = Some(bulk.gbps);
        bulk.steal
    } else {
        let had = match load {
            Load::Short => loads::short(ends, carrier.web, plan.bytes, pace(plan, CLIENTS)),
            Load::Redis => redis::gets(ends, pace(plan, PINGERS)),
            Load::Rr | Load::Bulk => loads::ping_pong(ends, ECHO, pace(plan, PINGERS)),
        }?;
        say(context, &title, &had);
        times.insert(had).steal()
    };
    if let Some(elephant) = elephant {
        let bulk = joined(elephant)?;
        context.say(format!("{title}: the elephant had {:.3} Gbit/s", bulk.gbps));
        elephant_gbps = Some(bulk.gbps);
    }
    Ok(Run {
        case: trouble.case,
        loss_pct: trouble.loss_pct,
        load: load.name(),
        carrier: carrier.name,
        times,
        gbps,
        elephant_gbps,
        stolen_pct: steal.pct(),
        counted: BTreeMap::new(),
        steal,
    })
}

/// A carrier's runs.
#[derive(Debug, Clone, Default)]
struct Found {
    times: Vec<RequestTimes>,
    gbps: Vec<f64>,
    elephant_gbps: Vec<f64>,
}

impl Found {
    fn add(&mut self, run: Run) {
        self.times.extend(run.times);
        self.gbps.extend(run.gbps);
        self.elephant_gbps.extend(run.elephant_gbps);
    }

    fn columns(self, carrier: &str) -> Value {
        let mut columns = Map::new();
        let mut set = |name: &str, value: Value| {
            columns.insert(format!("{carrier}_{name}"), value);
        };
        if !self.times.is_empty() {
            let middle = |of: fn(&RequestTimes) -> f64| {
                json!(median(&self.times.iter().map(of).collect::<Vec<_>>()))
            };
            let sum =
                |of: fn(&RequestTimes) -> usize| json!(self.times.iter().map(of).sum::<usize>());
            set("p50_ms", middle(|times| times.p50_ms));
            set("p99_ms", middle(|times| times.p99_ms));
            set("p999_ms", middle(|times| times.p999_ms));
            set("requests", sum(|times| times.requests));
            set("failed", sum(|times| times.failed));
        }
        for (name, values) in [("gbps", self.gbps), ("elephant_gbps", self.elephant_gbps)] {
            if !values.is_empty() {
                set(name, json!(median(&values)));
            }
        }
        Value::Object(columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_become_columns() {
        let round = |p99_ms| RequestTimes {
            requests: 10,
            failed: 1,
            p99_ms,
            ..RequestTimes::default()
        };
        let found = Found {
            times: vec![round(3.0), round(90.0), round(4.0)],
            gbps: vec![],
            elephant_gbps: vec![0.2, 0.1, 0.3],
        };
        let columns = found.columns("plain");
        assert_eq!(columns["plain_p99_ms"], 4.0);
        assert_eq!(columns["plain_requests"], 30);
        assert_eq!(columns["plain_failed"], 3);
        assert_eq!(columns["plain_elephant_gbps"], 0.2);
        assert!(columns.get("plain_gbps").is_none());
    }
}
