// SPDX-License-Identifier: Apache-2.0
//! `causeway-lab sim fleet`: which connections break and how evenly they lie, in large pools.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use causeway_report::chart::{Chart, Scale, Series};
use causeway_report::page;
use causeway_report::table::TextTable;
use causeway_sim::fleet::completion::{RequestPick, RequestWork, p99_s};
use causeway_sim::fleet::world::{Leaving, run};
use causeway_sim::fleet::{CookiePick, FleetFigures, FleetRun, WayKind, ideal_hash_imbalance};
use maud::html;
use serde::Serialize;

use super::certes::in_parallel;

/// Arguments of `causeway-lab sim fleet`.
#[derive(Debug, clap::Args)]
pub(super) struct FleetArgs {
    /// Only these parts: updates (figure 2a of Cheetah), balance (2b), dynamic (2c), balancers,
    /// ids, sizes, completion (figures 6 and 8), jet (the published run of JET's simulation), large (10,000 servers, 100
    /// balancers, 10 million connections)
    #[arg(
        long,
        value_name = "PART,...",
        value_delimiter = ',',
        default_value = "updates,balance,dynamic,balancers,ids,sizes,completion"
    )]
    parts: Vec<String>,
    /// Virtual length of a run, seconds
    #[arg(long, value_name = "S", default_value_t = 400, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    seconds: u32,
    /// Connections at a time, where they do not vary
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..=10_000_000))]
    active: u32,
    /// The connections of a server that leaves end with it; else it serves them to their end
    #[arg(long)]
    servers_die: bool,
    /// Source of all chance; `jet` has eight runs from it on
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the figures as JSON to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write tables and plots to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the plots to DIR, as fleet-updates.svg and others by their parts
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
}

const PARTS: [&str; 8] = [
    "updates",
    "balance",
    "dynamic",
    "balancers",
    "ids",
    "sizes",
    "jet",
    "large",
];
/// The part that has no connections to break.
const COMPLETION: &str = "completion";
/// Parts of the time that servers work.
const LOADS: [f64; 7] = [0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9];
/// Servers of figures 6 and 8.
const SERVERS: u32 = 64;

/// What SilkRoad saw in 95 % of its clusters: 1.5 to 80 updates a minute.
const UPDATES: [f64; 6] = [1.5, 5.0, 10.0, 20.0, 40.0, 80.0];
const ACTIVE: [u32; 6] = [20_000, 40_000, 70_000, 100_000, 150_000, 200_000];
const THRESHOLDS: [f64; 4] = [0.1, 0.2, 0.3, 0.4];
/// A part of the servers that may come, as in JET's published run.
const HORIZON: u32 = 70;

/// One run, in the words of the JSON.
#[derive(Debug, Clone, Serialize)]
struct Row {
    part: &'static str,
    way: String,
    servers: u32,
    balancers: u16,
    active: u32,
    updates_per_min: f64,
    seed: u64,
    connections: u64,
    broken: u64,
    imbalance: f64,
    imbalance_at_end: f64,
    packet_imbalance: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_at_s: Option<f64>,
    /// Time of a CPU for an event or for the question where a packet goes, on the mean.
    ns_per_step: f64,
    seconds_taken: f64,
}

#[derive(Serialize)]
struct Output<'a> {
    /// What no hash can be better than, by connections at a time.
    ideal_hash: Vec<(u32, f64)>,
    rows: &'a [Row],
    completion: &'a [CompletionRow],
}

/// How long requests take, in the words of the JSON.
#[derive(Debug, Clone, Serialize)]
struct CompletionRow {
    work: &'static str,
    load: f64,
    scheduler: &'static str,
    p99_ms: f64,
}

impl FleetArgs {
    /// Runs the command.
    pub(super) fn run(self) -> Result<ExitCode> {
        for part in &self.parts {
            ensure!(
                PARTS.contains(&part.as_str()) || part == COMPLETION,
                "there is no part `{part}`; there are {COMPLETION}, {}",
                PARTS.join(", ")
            );
        }
        let mut rows = Vec::new();
        for part in PARTS
            .iter()
            .filter(|part| self.parts.iter().any(|of| of == *part))
        {
            let runs = self.runs(part);
            let row = |of: &FleetRun| Ok(row(part, of));
            // What is to say how long it takes runs alone.
            let of_part = match *part {
                "sizes" | "large" => runs.iter().map(row).collect::<Result<Vec<_>>>()?,
                _ => in_parallel(&runs, row)?,
            };
            println!("{part}");
            print!("{}", table(&of_part).to_text());
            println!();
            rows.extend(of_part);
        }
        let completion = match self.parts.iter().any(|of| of == COMPLETION) {
            true => self.completion()?,
            false => Vec::new(),
        };
        let ideal = ACTIVE.map(|active| (active, ideal_hash_imbalance(468, active)));
        if let Some(path) = &self.json {
            let output = Output {
                ideal_hash: ideal.to_vec(),
                rows: &rows,
                completion: &completion,
            };
            let text = serde_json::to_string_pretty(&output)?;
            std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        let charts = charts(&rows, &ideal, &completion);
        if let Some(path) = &self.html {
            std::fs::write(path, report(&rows, &charts))
                .with_context(|| format!("writing {}", path.display()))?;
        }
        if let Some(dir) = &self.svg {
            for (part, chart) in &charts {
                let path = dir.join(format!("fleet-{part}.svg"));
                std::fs::write(&path, chart.file())
                    .with_context(|| format!("writing {}", path.display()))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Figures 6 and 8; prints them.
    fn completion(&self) -> Result<Vec<CompletionRow>> {
        let mut runs = Vec::new();
        for work in RequestWork::ALL {
            for load in LOADS {
                runs.extend(RequestPick::ALL.map(|pick| (work, load, pick)));
            }
        }
        let seconds = f64::from(self.seconds);
        let rows = in_parallel(&runs, |(work, load, pick)| {
            Ok(CompletionRow {
                work: work.name(),
                load: *load,
                scheduler: pick.name(),
                p99_ms: 1e3 * p99_s(*pick, *work, SERVERS, *load, seconds, self.seed),
            })
        })?;
        let mut table = TextTable::new(&["WORK", "LOAD", "SCHEDULER", "P99 ms"]);
        for row in &rows {
            table.push(vec![
                row.work.to_owned(),
                row.load.to_string(),
                row.scheduler.to_owned(),
                format!("{:.1}", row.p99_ms),
            ]);
        }
        println!("{COMPLETION}");
        print!("{}", table.to_text());
        Ok(rows)
    }

    fn runs(&self, part: &str) -> Vec<FleetRun> {
        let seconds = f64::from(self.seconds);
        let of = |way, active, updates| FleetRun {
            seed: self.seed,
            leaving: match self.servers_die {
                true => Leaving::Dies,
                false => Leaving::Drains,
            },
            ..FleetRun::cheetah(way, active, updates, seconds)
        };
        let many = self.active;
        match part {
            "updates" => UPDATES
                .iter()
                .flat_map(|&updates| ways(many).map(move |way| of(way, many, updates)))
                .collect(),
            "balance" => ACTIVE
                .iter()
                .flat_map(|&active| PICKS.map(|way| of(way, active, 0.0)))
                .collect(),
            "dynamic" => THRESHOLDS
                .map(|threshold| of(WayKind::Dynamic(threshold), 70_000, 0.0))
                .to_vec(),
            "balancers" => ways(many)
                .map(|way| FleetRun {
                    balancers: 8,
                    balancer_every_s: 40.0,
                    ..of(way, many, 10.0)
                })
                .collect(),
            "ids" => UPDATES
                .iter()
                .map(|&updates| FleetRun {
                    renewed: true,
                    seconds: 6.0 * 3600.0,
                    ..of(WayKind::Cookie(CookiePick::Turn), 100, updates)
                })
                .collect(),
            "sizes" => [10_000, 100_000, 1_000_000]
                .map(|active| FleetRun {
                    seconds: 30.0,
                    ..of(WayKind::Cookie(CookiePick::Turn), active, 10.0)
                })
                .to_vec(),
            "jet" => (self.seed..self.seed + 8)
                .flat_map(|seed| {
                    let entries = many as usize / 4;
                    [
                        WayKind::AnchorTable(entries),
                        WayKind::Jet(entries, HORIZON),
                    ]
                    .map(|way| FleetRun::jet(way, many, seed))
                })
                .collect(),
            // What is asked of an estate: ten services, each with as many ids as it needs.
            _ => [WayKind::Cookie(CookiePick::Turn), WayKind::DaisyChain]
                .map(|way| FleetRun {
                    vips: 10,
                    servers: 1000,
                    balancers: 100,
                    balancer_every_s: 20.0,
                    seconds: 60.0,
                    ..of(way, 10_000_000, 10.0)
                })
                .to_vec(),
        }
    }
}

/// The ways that figure 2a compares. Tables hold all connections.
fn ways(active: u32) -> impl Iterator<Item = WayKind> {
    let entries = 2 * active as usize;
    [
        WayKind::Hash,
        WayKind::Consistent,
        WayKind::Maglev,
        WayKind::DaisyChain,
        WayKind::MaglevTable(entries),
        WayKind::Jet(entries, HORIZON),
        WayKind::Table,
        WayKind::Cookie(CookiePick::Turn),
        WayKind::Stateful,
    ]
    .into_iter()
}

/// Those of figure 2b.
const PICKS: [WayKind; 7] = [
    WayKind::Hash,
    WayKind::Consistent,
    WayKind::Maglev,
    WayKind::Cookie(CookiePick::Turn),
    WayKind::Cookie(CookiePick::Two),
    WayKind::Cookie(CookiePick::Plan),
    WayKind::Cookie(CookiePick::Least),
];

fn row(part: &'static str, of: &FleetRun) -> Row {
    let start = Instant::now();
    let found: FleetFigures = run(of);
    let seconds_taken = start.elapsed().as_secs_f64();
    let updates = 2.0 * of.removals_per_min;
    Row {
        part,
        way: of.way.name(),
        servers: of.vips * of.servers,
        balancers: of.balancers,
        active: of.active,
        updates_per_min: updates,
        seed: of.seed,
        connections: found.connections,
        broken: found.broken,
        imbalance: found.imbalance,
        imbalance_at_end: found.imbalance_at_end,
        packet_imbalance: found.packet_imbalance,
        refused_at_s: found.refused_at_s,
        ns_per_step: seconds_taken * 1e9 / (found.events + found.asked).max(1) as f64,
        seconds_taken,
    }
}

fn table(rows: &[Row]) -> TextTable {
    let mut table = TextTable::new(&[
        "WAY",
        "SERVERS",
        "BALANCERS",
        "ACTIVE",
        "UPDATES/MIN",
        "CONNECTIONS",
        "BROKEN",
        "BROKEN %",
        "IMBALANCE %",
        "AT END %",
        "PACKETS %",
        "OUT OF IDS",
        "NS A STEP",
    ]);
    for row in rows {
        let pct = |part: f64| format!("{:.1}", 100.0 * part);
        table.push(vec![
            row.way.clone(),
            row.servers.to_string(),
            row.balancers.to_string(),
            row.active.to_string(),
            row.updates_per_min.to_string(),
            row.connections.to_string(),
            row.broken.to_string(),
            format!(
                "{:.3}",
                100.0 * row.broken as f64 / row.connections.max(1) as f64
            ),
            pct(row.imbalance),
            pct(row.imbalance_at_end),
            pct(row.packet_imbalance),
            row.refused_at_s.map_or_else(
                || "-".to_owned(),
                |at| format!("after {:.0} min", at / 60.0),
            ),
            format!("{:.0}", row.ns_per_step),
        ]);
    }
    table
}

/// A plot for each part that was run and has one.
fn charts(
    rows: &[Row],
    ideal: &[(u32, f64)],
    completion: &[CompletionRow],
) -> Vec<(&'static str, Chart)> {
    let broken = |row: &Row| 100.0 * row.broken as f64 / row.connections.max(1) as f64;
    let mut charts = Vec::new();
    let updates = series(rows, "updates", |row| row.updates_per_min, broken);
    if !updates.is_empty() {
        let chart = Chart::new(
            "Connections that break (Cheetah, figure 2a); ways that break none have no line",
            (Scale::FromZero, "updates a minute"),
            (Scale::Log, "percent"),
            updates,
        );
        charts.push(("updates", chart));
    }
    let mut balance = series(
        rows,
        "balance",
        |row| f64::from(row.active),
        |row| 100.0 * row.imbalance,
    );
    if !balance.is_empty() {
        let points = ideal
            .iter()
            .map(|(active, part)| (f64::from(*active), 100.0 * part));
        balance.push(Series::new("ideal hash, computed", points).faint());
        let chart = Chart::new(
            "How much more than the mean the fullest server has (Cheetah, figure 2b)",
            (Scale::FromZero, "connections at a time"),
            (Scale::FromZero, "percent"),
            balance,
        );
        charts.push(("balance", chart));
    }
    for (work, figure) in [(RequestWork::Uniform, 6), (RequestWork::Bimodal, 8)] {
        let work = work.name();
        let rows = completion.iter().filter(|row| row.work == work);
        let rows: Vec<&CompletionRow> = rows.collect();
        let lines = RequestPick::ALL.iter().map(|pick| {
            let points = rows.iter().filter(|row| row.scheduler == pick.name());
            Series::new(
                pick.name(),
                points.map(|row| (100.0 * row.load, row.p99_ms)),
            )
        });
        if !rows.is_empty() {
            let chart = Chart::new(
                format!("p99 of completion times, {work} work (Cheetah, figure {figure})"),
                (Scale::FromZero, "percent of the servers' capacity"),
                (Scale::Log, "ms"),
                lines.collect(),
            );
            charts.push((work, chart));
        }
    }
    charts
}

fn report(rows: &[Row], charts: &[(&str, Chart)]) -> String {
    let body = html! {
        h1 { "Connections in large pools" }
        @for (_, chart) in charts {
            (page::figure(chart))
        }
        h2 { "All runs" }
        pre { (table(rows).to_text()) }
    };
    page::page("Causeway: connections in large pools", &body)
}

/// A line for each way of a part.
fn series(
    rows: &[Row],
    part: &str,
    x: impl Fn(&Row) -> f64,
    y: impl Fn(&Row) -> f64,
) -> Vec<Series> {
    let of_part: Vec<&Row> = rows.iter().filter(|row| row.part == part).collect();
    let mut ways: Vec<&str> = Vec::new();
    for row in &of_part {
        if !ways.contains(&row.way.as_str()) {
            ways.push(&row.way);
        }
    }
    let line = |way: &&str| {
        let points = of_part.iter().filter(|row| row.way == **way);
        Series::new(*way, points.map(|row| (x(row), y(row))))
    };
    ways.iter().map(line).collect()
}
