// SPDX-License-Identifier: Apache-2.0
//! `causeway-lab sim control`: the controller's laws in closed loop, over many seeds.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use causeway_core::control::{ControlParams, Law};
use causeway_lab::statistics::quantile;
use causeway_report::table::TextTable;
use causeway_sim::control::cases::{self, Case, CaseFigure};
use causeway_sim::control::fleet::{self, SteeringFigures};
use causeway_sim::control::loads::{self, Course, Tail};
use causeway_sim::control::scenario::{Experiment, MS, Oracle, ServerPick};
use serde::Serialize;

/// Seeds of the comparison with hashing are fewer: its runs are long.
const LOAD_SEEDS_PART: u64 = 20;

/// Sizes of fleets that are compared.
const MEMBERS: [usize; 5] = [2, 4, 10, 30, 100];
/// Seeds of the fleets are fewer, too.
const FLEET_SEEDS_PART: u64 = 10;
/// What sharing must keep, for every size: weights no less steady than one balancer's with all
/// packets by more than this factor, moved no later than by so much, members so close together.
const FLEET_UNSTEADY: f64 = 1.5;
const FLEET_LATER_MS: f64 = 300.0;
const FLEET_APART: f64 = 0.15;

/// Arguments of `causeway-lab sim control`.
#[derive(Debug, clap::Args)]
pub(super) struct ControlArgs {
    /// Seeds for every case, from 1 on
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seeds: u64,
    /// These laws instead of the default one: watermark-paper, watermark, equalise
    #[arg(long, value_name = "LAW,...", value_delimiter = ',', value_parser = law)]
    laws: Vec<Law>,
    /// Only these cases; `loads` is the comparison with hashing, `fleet` that of several balancers
    /// with one
    #[arg(long, value_name = "CASE,...", value_delimiter = ',')]
    cases: Vec<String>,
    /// Virtual length of a run of the comparison with hashing, in seconds
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u32).range(10..=864_000))]
    seconds: u32,
    /// Try another constant: burst, tolerance, margin, smoothing, floor, cap, step,
    /// max_increase, max_decrease, confidence or interval_ms
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = constant)]
    set: Vec<(String, f64)>,
    /// Round trip of the users' paths in the cases, from half as much to half as much again
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=1000))]
    path_ms: Option<u32>,
    /// What the controllers of the cases go by: server or response
    #[arg(long, value_name = "LATENCY", default_value = "server", value_parser = ["server", "response"])]
    latency: String,
    /// Write the figures as JSON to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn law(word: &str) -> Result<Law, String> {
    let found = Law::ALL.into_iter().find(|law| law.word() == word);
    found.ok_or_else(|| {
        let known = Law::ALL.map(Law::word).join(", ");
        format!("there is no law `{word}`; choose of {known}")
    })
}

fn constant(text: &str) -> Result<(String, f64), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    let value: f64 = value
        .parse()
        .map_err(|_| format!("`{value}` is not a number"))?;
    apply(&mut ControlParams::default(), name, value)?;
    Ok((name.to_owned(), value))
}

fn apply(params: &mut ControlParams, name: &str, value: f64) -> Result<(), String> {
    let target = match name {
        "burst" => &mut params.burst,
        "tolerance" => &mut params.tolerance,
        "margin" => &mut params.margin,
        "smoothing" => &mut params.smoothing,
        "floor" => &mut params.floor,
        "cap" => &mut params.cap,
        "step" => &mut params.step,
        "max_increase" => &mut params.max_increase,
        "max_decrease" => &mut params.max_decrease,
        "confidence" => &mut params.confidence,
        "interval_ms" => {
            params.interval_ns = (value * 1e6) as u64;
            return match (10.0..=10_000.0).contains(&value) {
                true => Ok(()),
                false => Err("interval_ms lies between 10 and 10000".to_owned()),
            };
        }
        _ => return Err(format!("there is no constant `{name}`")),
    };
    if !value.is_finite() || value < 0.0 {
        return Err(format!("{name} = {value} makes no sense"));
    }
    *target = value;
    Ok(())
}

/// A figure of a case over all seeds.
#[derive(Debug, Clone, Serialize)]
struct CaseRow {
    case: &'static str,
    law: &'static str,
    figure: &'static str,
    at_most: f64,
    median_at_most: f64,
    median: f64,
    p99: f64,
    worst: f64,
    /// Share of the seeds within bounds.
    held: f64,
    required: f64,
}

impl CaseRow {
    fn holds(&self) -> bool {
        self.held >= self.required && self.median <= self.median_at_most
    }
}

/// The tail under one load and law, over all seeds.
#[derive(Debug, Clone, Serialize)]
struct LoadRow {
    load: f64,
    /// Capacities are quotas; else shares at every instant.
    quotas: bool,
    law: String,
    p50_ms: f64,
    p99_ms: f64,
    /// Median over the seeds of the ratio to hashing on the same seed.
    against_hashing: f64,
    /// From the lowest to the highest p99 of the seeds that share a trace of capacities, on
    /// the mean over the traces, as a part of hashing's.
    spread: f64,
    rings_per_s: f64,
}

/// How this many balancers steer one way.
#[derive(Debug, Clone, Serialize)]
struct FleetRow {
    members: usize,
    way: &'static str,
    /// Medians over the seeds; see [`SteeringFigures`].
    unsteady: f64,
    together: f64,
    apart: f64,
    moved_ms: f64,
    p99_ms: f64,
    /// Median over the seeds of p99 as a part of one balancer's on the same seed.
    against_one: f64,
}

impl FleetRow {
    fn of(
        members: usize,
        way: &'static str,
        runs: &[SteeringFigures],
        one: &[SteeringFigures],
    ) -> Self {
        let median = |of: fn(&SteeringFigures) -> f64| {
            let values: Vec<f64> = runs.iter().map(of).collect();
            quantile(&values, 0.5)
        };
        let ratios = runs.iter().zip(one);
        let ratios: Vec<f64> = ratios.map(|(run, one)| run.p99_ms / one.p99_ms).collect();
        Self {
            members,
            way,
            unsteady: median(|of| of.unsteady),
            together: median(|of| of.together),
            apart: median(|of| of.apart),
            moved_ms: median(|of| of.moved_ms),
            p99_ms: median(|of| of.p99_ms),
            against_one: quantile(&ratios, 0.5),
        }
    }

    /// Whether this way is as good as `one` balancer.
    fn holds(&self, one: &Self) -> bool {
        self.unsteady <= FLEET_UNSTEADY * one.unsteady
            && self.moved_ms <= one.moved_ms + FLEET_LATER_MS
            && self.apart <= FLEET_APART
    }
}

impl ControlArgs {
    /// Runs the command; it fails if the default law misses what is required.
    pub(super) fn run(self) -> Result<ExitCode> {
        let known = cases::ALL.iter().map(|case| case.name);
        for name in &self.cases {
            anyhow::ensure!(
                name == "loads" || name == "fleet" || known.clone().any(|known| known == name),
                "there is no case `{name}`; there are loads, fleet, {}",
                known.collect::<Vec<_>>().join(", ")
            );
        }
        let mut params = ControlParams::default();
        for (name, value) in &self.set {
            apply(&mut params, name, *value).map_err(anyhow::Error::msg)?;
        }
        let laws = match self.laws.is_empty() {
            true => vec![Law::default()],
            false => self.laws.clone(),
        };
        let mut rows = Vec::new();
        for case in cases::ALL.iter().filter(|case| self.wants(case.name)) {
            for &law in &laws {
                let run = |seed| case.run_in(seed, law, &params, |world| self.change(world));
                rows.extend(judge(case, law, &over(self.seeds, run)));
            }
        }
        print!("{}", case_table(&rows).to_text());
        let mut loads = Vec::new();
        if self.wants("loads") {
            loads = self.compare(&laws, &params);
            println!("\n{}", load_table(&loads).to_text());
        }
        let fleets = match self.wants("fleet") {
            true => self.fleets(&params),
            false => Vec::new(),
        };
        if !fleets.is_empty() {
            println!("\n{}", fleet_table(&fleets).to_text());
        }
        if let Some(path) = &self.json {
            let json = serde_json::json!({
                "seeds": self.seeds, "cases": rows, "loads": loads, "fleet": fleets,
            });
            std::fs::write(path, serde_json::to_string_pretty(&json)? + "\n")
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        let missed = rows
            .iter()
            .filter(|row| row.law == Law::default().word() && !row.holds());
        let missed = missed.map(|row| format!("{} ({})", row.case, row.figure));
        let missed: Vec<String> = missed.chain(fleet_faults(&fleets)).collect();
        if missed.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        eprintln!(
            "the default law misses what is required: {}",
            missed.join(", ")
        );
        Ok(ExitCode::FAILURE)
    }

    fn change(&self, world: &mut Experiment) {
        world.by_servers = self.latency == "server";
        if let Some(path_ms) = self.path_ms {
            let path_ns = u64::from(path_ms) * MS;
            world.path_ns = (path_ns / 2, path_ns * 3 / 2);
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|case| case == name)
    }

    fn fleets(&self, params: &ControlParams) -> Vec<FleetRow> {
        let seeds = self.seeds.div_ceil(FLEET_SEEDS_PART);
        let law = Law::default();
        let one = over(seeds, |seed| fleet::run(seed, law, params, None));
        let mut rows = vec![FleetRow::of(1, "one", &one, &one)];
        for members in MEMBERS {
            for way in &fleet::WAYS {
                let run = |seed| fleet::run(seed, law, params, Some(way.of(members)));
                rows.push(FleetRow::of(members, way.name, &over(seeds, run), &one));
            }
        }
        rows
    }

    fn compare(&self, laws: &[Law], params: &ControlParams) -> Vec<LoadRow> {
        let seeds = load_seeds(self.seeds);
        let mut rows = Vec::new();
        for (load, quotas) in loads::LOADS
            .into_iter()
            .flat_map(|load| [(load, false), (load, true)])
        {
            let course = |seed| Course {
                seed,
                load,
                seconds: self.seconds.into(),
                quotas,
            };
            let plain = over(seeds, |seed| loads::hashed(course(seed)));
            let mut add = |law: String, runs: &[Tail]| {
                rows.push(load_row(load, quotas, law, runs, &plain));
            };
            let run = |pick, law: Option<Law>| {
                let control = law.map(|law| (law, params.clone()));
                over(seeds, |seed| {
                    loads::run(course(seed), pick, control.clone())
                })
            };
            for (pick, name, by_capacity) in [
                (ServerPick::Hash, "maglev", "capacity known"),
                (ServerPick::Turn, "turns", "capacity known, turns"),
            ] {
                add(name.to_owned(), &run(pick, None));
                let known = over(seeds, |seed| {
                    loads::bound(course(seed), pick, Oracle::Capacity)
                });
                add(by_capacity.to_owned(), &known);
            }
            let known = over(seeds, |seed| {
                loads::bound(course(seed), ServerPick::Turn, Oracle::Backlog)
            });
            add("queues known".to_owned(), &known);
            for &law in laws {
                for (pick, name) in [
                    (ServerPick::Hash, format!("{law}, maglev")),
                    (ServerPick::Turn, format!("{law}, turns")),
                ] {
                    add(name, &run(pick, Some(law)));
                }
            }
        }
        rows
    }
}

/// Seeds of the comparison with hashing, so that each of its traces has all its runs.
fn load_seeds(seeds: u64) -> u64 {
    seeds.div_ceil(LOAD_SEEDS_PART * loads::RUNS_OF_A_TRACE) * loads::RUNS_OF_A_TRACE
}

fn judge(case: &Case, law: Law, runs: &[Vec<CaseFigure>]) -> Vec<CaseRow> {
    let figures = runs.first().map_or(0, Vec::len);
    let row = |index: usize| {
        let of = runs[0][index];
        let values: Vec<f64> = runs.iter().map(|run| run[index].value).collect();
        let held = runs.iter().filter(|run| run[index].holds()).count();
        CaseRow {
            case: case.name,
            law: law.word(),
            figure: of.name,
            at_most: of.at_most,
            median_at_most: of.median_at_most,
            median: quantile(&values, 0.5),
            p99: quantile(&values, 0.99),
            worst: quantile(&values, 1.0),
            held: held as f64 / runs.len() as f64,
            required: case.required,
        }
    };
    (0..figures).map(row).collect()
}

fn load_row(load: f64, quotas: bool, law: String, runs: &[Tail], plain: &[Tail]) -> LoadRow {
    let column = |of: fn(&Tail) -> f64| runs.iter().map(of).collect::<Vec<f64>>();
    // Seeds that share a trace follow each other. As many ranges are added up on both sides.
    let spread = |runs: &[Tail]| -> f64 {
        let traces = runs.chunks(loads::RUNS_OF_A_TRACE as usize);
        let ranges = traces.map(|runs| {
            let p99 = runs.iter().map(|tail| tail.p99_ms);
            let lowest = p99.clone().fold(f64::INFINITY, f64::min);
            p99.fold(0.0, f64::max) - lowest
        });
        ranges.sum()
    };
    let ratios: Vec<f64> = runs
        .iter()
        .zip(plain)
        .map(|(a, b)| a.p99_ms / b.p99_ms)
        .collect();
    LoadRow {
        load,
        quotas,
        law,
        p50_ms: quantile(&column(|tail| tail.p50_ms), 0.5),
        p99_ms: quantile(&column(|tail| tail.p99_ms), 0.5),
        against_hashing: quantile(&ratios, 0.5),
        spread: spread(runs) / spread(plain),
        rings_per_s: quantile(&column(|tail| tail.changes_per_s), 0.5),
    }
}

/// Runs seeds 1 to `seeds`, as many at a time as there are CPUs; results by seed.
fn over<T: Send>(seeds: u64, run: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let next = AtomicU64::new(1);
    let done = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > seeds {
                        return;
                    }
                    let result = run(seed);
                    let mut done = done.lock().unwrap_or_else(|broken| broken.into_inner());
                    done.push((seed, result));
                }
            });
        }
    });
    let mut done = done
        .into_inner()
        .unwrap_or_else(|broken| broken.into_inner());
    done.sort_by_key(|(seed, _)| *seed);
    done.into_iter().map(|(_, result)| result).collect()
}

fn case_table(rows: &[CaseRow]) -> TextTable {
    let mut table = TextTable::new(&[
        "CASE", "LAW", "FIGURE", ">BOUND", ">MEDIAN", ">P99", ">WORST", ">HELD", "",
    ]);
    for row in rows {
        table.push(vec![
            row.case.to_owned(),
            row.law.to_owned(),
            row.figure.to_owned(),
            format!("{}", row.at_most),
            format!("{:.2}", row.median),
            format!("{:.2}", row.p99),
            format!("{:.2}", row.worst),
            format!("{:.1} %", row.held * 100.0),
            if row.holds() { "" } else { "missed" }.to_owned(),
        ]);
    }
    table
}

/// What members that share miss, and the planted fault if it is not seen.
fn fleet_faults(rows: &[FleetRow]) -> Vec<String> {
    let Some((one, fleets)) = rows.split_first() else {
        return Vec::new();
    };
    let faults = fleets.iter().filter_map(|row| {
        let planted = row.way == fleet::WAYS[0].name;
        match (planted, row.holds(one)) {
            (false, false) => Some(format!("fleet of {} ({})", row.members, row.way)),
            (true, true) if row.members >= 4 => Some(format!(
                "fleet of {} ({} is planted, and not found)",
                row.members, row.way
            )),
            _ => None,
        }
    });
    faults.collect()
}

fn fleet_table(rows: &[FleetRow]) -> TextTable {
    let mut table = TextTable::new(&[
        ">BALANCERS",
        "WAY",
        ">WEIGHTS OFF",
        ">THEIR MEAN OFF",
        ">APART",
        ">MOVED MS",
        ">P99 MS",
        ">P99 AGAINST ONE",
    ]);
    for row in rows {
        table.push(vec![
            row.members.to_string(),
            row.way.to_owned(),
            format!("{:.1} %", row.unsteady * 100.0),
            format!("{:.1} %", row.together * 100.0),
            format!("{:.1} %", row.apart * 100.0),
            format!("{:.0}", row.moved_ms),
            format!("{:.1}", row.p99_ms),
            format!("{:.2}", row.against_one),
        ]);
    }
    table
}

fn load_table(rows: &[LoadRow]) -> TextTable {
    let mut table = TextTable::new(&[
        "LOAD",
        "SERVERS",
        "LAW",
        ">P50 MS",
        ">P99 MS",
        ">P99 AGAINST HASHING",
        ">SPREAD AGAINST IT",
        ">RINGS/S",
    ]);
    for row in rows {
        table.push(vec![
            format!("{:.0} %", row.load * 100.0),
            if row.quotas { "quotas" } else { "shares" }.to_owned(),
            row.law.clone(),
            format!("{:.1}", row.p50_ms),
            format!("{:.1}", row.p99_ms),
            format!("{:.2}", row.against_hashing),
            format!("{:.2}", row.spread),
            format!("{:.1}", row.rings_per_s),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_few_the_seeds_a_trace_has_all_its_runs() {
        let seeds = [1, 19, 100, 101, 1000].map(load_seeds);
        assert_eq!(seeds, [5, 5, 5, 10, 50]);
    }
}
