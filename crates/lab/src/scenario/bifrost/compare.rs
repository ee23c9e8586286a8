// SPDX-License-Identifier: Apache-2.0
//! Loads by several carriers in one trouble: a row for each trouble and load.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use super::loads::{self, Ends, Latencies};
use super::redis;
use super::runs::{BULK, CLIENTS, Carrier, ECHO, PINGERS, WARM_UP, median, merge, pace, say};
use super::{Context, Plan};
use crate::cpu::CpuMeter;

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
    /// Between these, whoever carries the load.
    Foreign(Ends),
}

/// What makes life hard for a load.
#[derive(Debug, Clone)]
pub(super) struct Trouble {
    /// Its name in rows.
    pub case: &'static str,
    /// Packets lost; somebody else sees to that.
    pub loss_pct: f64,
    /// Bulk beside it.
    pub elephant: Elephant,
}

impl Trouble {
    /// A trouble without an elephant.
    pub fn new(case: &'static str, loss_pct: f64) -> Self {
        Self {
            case,
            loss_pct,
            elephant: Elephant::None,
        }
    }
}

/// Rows and runs so far.
pub(super) struct Comparison<'a> {
    context: &'a Context,
    plan: &'a Plan,
    rows: Vec<Value>,
    runs: Vec<Value>,
    turn: usize,
}

impl<'a> Comparison<'a> {
    pub fn new(context: &'a Context, plan: &'a Plan) -> Self {
        Self {
            context,
            plan,
            rows: Vec::new(),
            runs: Vec::new(),
            turn: 0,
        }
    }

    /// Has the carriers bear the load by turns, in rounds; the medians become their columns.
    pub fn run(&mut self, trouble: &Trouble, load: Load, carriers: &[Carrier]) -> Result<()> {
        let mut found = vec![Found::default(); carriers.len()];
        for _ in 0..self.plan.case_rounds {
            for index in 0..carriers.len() {
                let at = (index + self.turn) % carriers.len();
                self.once(trouble, load, &carriers[at], &mut found[at])?;
            }
            self.turn += 1;
        }
        for (carrier, found) in carriers.iter().zip(found) {
            self.note(trouble, load, found.columns(carrier.name));
        }
        Ok(())
    }

    fn once(
        &mut self,
        trouble: &Trouble,
        load: Load,
        carrier: &Carrier,
        found: &mut Found,
    ) -> Result<()> {
        let (plan, ends) = (self.plan, &carrier.ends);
        let mut run = json!({
            "case": trouble.case, "loss_pct": trouble.loss_pct, "load": load.name(),
            "carrier": carrier.name,
        });
        let what = format!(
            "{} {} % {} {}",
            trouble.case,
            trouble.loss_pct,
            load.name(),
            carrier.name
        );
        let elephant = match &trouble.elephant {
            Elephant::None => None,
            Elephant::Own => Some(ends.clone()),
            Elephant::Foreign(ends) => Some(ends.clone()),
        };
        let elephant = elephant.map(|ends| {
            let lasts = plan.lasts;
            let bulk = std::thread::spawn(move || loads::bulk(&ends, BULK + 1, 1, WARM_UP, lasts));
            // It is well under way when the load begins, and ends with it.
            std::thread::sleep(WARM_UP - Duration::from_millis(100));
            bulk
        });
        if load == Load::Bulk {
            let meter = CpuMeter::start()?;
            let gbps = loads::bulk(ends, BULK, plan.flows, WARM_UP, plan.bulk)?;
            self.context.say(format!(
                "{what}: {gbps:.3} Gbit/s, {:.1} % of the CPUs stolen",
                100.0 * meter.stolen()?
            ));
            found.gbps.push(gbps);
            merge(&mut run, json!({ "gbps": gbps }));
        } else {
            let times = match load {
                Load::Short => loads::short(ends, carrier.web, plan.bytes, pace(plan, CLIENTS)),
                Load::Redis => redis::gets(ends, pace(plan, PINGERS)),
                Load::Rr | Load::Bulk => loads::ping_pong(ends, ECHO, pace(plan, PINGERS)),
            }?;
            say(self.context, &what, &times);
            merge(&mut run, json!({ "times": times }));
            found.times.push(times);
        }
        if let Some(elephant) = elephant {
            let gbps = elephant.join().ok().context("the elephant panicked")??;
            self.context
                .say(format!("{what}: the elephant had {gbps:.3} Gbit/s"));
            found.elephant_gbps.push(gbps);
            merge(&mut run, json!({ "elephant_gbps": gbps }));
        }
        self.runs.push(run);
        Ok(())
    }

    /// Adds columns to the row of a trouble and load.
    pub fn note(&mut self, trouble: &Trouble, load: Load, columns: Value) {
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
    pub fn finish(self) -> (Value, Value) {
        (Value::Array(self.rows), Value::Array(self.runs))
    }
}

/// A carrier's runs.
#[derive(Debug, Clone, Default)]
struct Found {
    times: Vec<Latencies>,
    gbps: Vec<f64>,
    elephant_gbps: Vec<f64>,
}

impl Found {
    fn columns(self, carrier: &str) -> Value {
        let mut columns = Map::new();
        let mut set = |name: &str, value: Value| {
            columns.insert(format!("{carrier}_{name}"), value);
        };
        if !self.times.is_empty() {
            let middle =
                |of: fn(&Latencies) -> f64| json!(median(self.times.iter().map(of).collect()));
            let sum = |of: fn(&Latencies) -> usize| json!(self.times.iter().map(of).sum::<usize>());
            set("p50_ms", middle(|times| times.p50_ms));
            set("p99_ms", middle(|times| times.p99_ms));
            set("p999_ms", middle(|times| times.p999_ms));
            set("requests", sum(|times| times.requests));
            set("failed", sum(|times| times.failed));
        }
        for (name, values) in [("gbps", self.gbps), ("elephant_gbps", self.elephant_gbps)] {
            if !values.is_empty() {
                set(name, json!(median(values)));
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
        let round = |p99_ms| Latencies {
            requests: 10,
            failed: 1,
            p99_ms,
            ..Latencies::default()
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
