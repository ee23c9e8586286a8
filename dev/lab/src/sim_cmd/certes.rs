// SPDX-License-Identifier: Apache-2.0
//! `causeway-lab sim certes`: table II and the figures of Certes, in virtual time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, anyhow};
use causeway_sim::certes::workload::{SynSchedule, Workload, table_ii};
use causeway_sim::certes::{CertesMethod, Evaluation, evaluate, world};
use serde::Serialize;

use super::{figures, page};

/// Arguments of `causeway-lab sim certes`.
#[derive(Debug, clap::Args)]
pub(super) struct CertesArgs {
    /// Source of all chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long each workload runs, in virtual seconds (the paper's: 1200)
    #[arg(long, value_name = "S", default_value_t = 1200, value_parser = clap::value_parser!(u32).range(60..=86_400))]
    seconds: u32,
    /// Only these workloads of table II, by letter
    #[arg(long, value_name = "A,B,...", value_delimiter = ',', value_parser = letter)]
    workloads: Vec<String>,
    /// Write the figures as JSON to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write tables and plots (figures 9, 16 to 26) to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

fn letter(word: &str) -> Result<String, String> {
    let name = word.to_ascii_uppercase();
    match name.as_bytes() {
        [b'A'..=b'P'] => Ok(name),
        _ => Err("workloads are the letters A to P of table II".to_owned()),
    }
}

/// All workloads under one schedule of retries.
pub(super) struct Table {
    /// Which.
    pub schedule: SynSchedule,
    /// By workload.
    pub rows: Vec<Evaluation>,
}

impl CertesArgs {
    /// Runs the command.
    pub(super) fn run(self) -> Result<ExitCode> {
        let tables = SynSchedule::ALL
            .into_iter()
            .map(|schedule| {
                let table = Table {
                    schedule,
                    rows: simulate(&self.workloads(schedule), self.seed)?,
                };
                print(&table);
                Ok(table)
            })
            .collect::<Result<Vec<_>>>()?;
        if let Some(path) = &self.json {
            write(
                path,
                &serde_json::to_string_pretty(&json(self.seed, &tables))?,
            )?;
        }
        if let Some(path) = &self.html {
            let figures = figures::all(self.seed, self.seconds, &tables)?;
            write(
                path,
                &page::render(self.seed, self.seconds, &tables, &figures),
            )?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn workloads(&self, schedule: SynSchedule) -> Vec<Workload> {
        let wanted = |of: &Workload| self.workloads.is_empty() || self.workloads.contains(&of.name);
        table_ii(schedule)
            .into_iter()
            .filter(wanted)
            .map(|of| Workload {
                duration_s: f64::from(self.seconds),
                ..of
            })
            .collect()
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn simulate(workloads: &[Workload], seed: u64) -> Result<Vec<Evaluation>> {
    let run = |of: &Workload| Ok(evaluate(of, &world::run(of, seed), 0.0)?);
    in_parallel(workloads, run)
}

/// What `run` makes of each, in their order; as many at a time as there are CPUs.
pub(super) fn in_parallel<T: Sync, R: Send>(
    jobs: &[T],
    run: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(jobs.len()) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(number) else { return };
                    let found = run(job);
                    if let Ok(mut done) = done.lock() {
                        done.push((number, found));
                    }
                }
            });
        }
    });
    let mut done = done
        .into_inner()
        .map_err(|_| anyhow!("a simulation panicked"))?;
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, found)| found).collect()
}

/// A method's error of the mean and mean error of the seconds, in percent.
pub(super) fn errors(of: &Evaluation, method: CertesMethod) -> (f64, f64) {
    of.of(method).map_or((f64::NAN, f64::NAN), |series| {
        (series.errors.mean_pct, series.errors.per_second_pct)
    })
}

fn print(table: &Table) {
    let what = match table.schedule {
        SynSchedule::Paper => "retries at 3 and 9 s, patience 21 s",
        SynSchedule::Linux => "Linux 6.5 and newer: retries about every second, patience 9 s",
    };
    println!(
        "{}: {what}. Errors of the mean in percent; clients that gave up count with what they waited.",
        table.schedule.name()
    );
    println!(
        "{:8}{:>8}{:>8}{:>7}{:>7}  {:8}{:>7}{:>7}{:>8}{:>7}{:>7}{:>8}{:>7}{:>7}{:>8}",
        "WORKLOAD",
        "TRUTH s",
        "CONN/s",
        "DROP %",
        "GAVE %",
        "DROPS",
        "EXACT",
        "MODEL",
        "LEARNED",
        "PAPER",
        "REF",
        "SYN-END",
        "APP",
        "M/M/1",
        "SLIDING"
    );
    for row in &table.rows {
        let error = |method| errors(row, method).0;
        println!(
            "{:8}{:>8.2}{:>8.1}{:>7.1}{:>7.1}  {:8}{:>+7.1}{:>+7.1}{:>+8.1}{:>+7.1}{:>+7.1}{:>+8.1}{:>+7.1}{:>+7.1}{:>+8.1}",
            row.name,
            row.truth_mean_s,
            row.rate,
            row.syn_drop_pct,
            row.gave_up_pct,
            row.confidence.as_str(),
            error(CertesMethod::Exact),
            error(CertesMethod::Model),
            error(CertesMethod::Learned),
            error(CertesMethod::PaperModel),
            error(CertesMethod::Reference),
            error(CertesMethod::SynToEnd),
            error(CertesMethod::Application),
            error(CertesMethod::Queueing),
            error(CertesMethod::SlidingWindow),
        );
    }
    println!();
}

/// One workload, as other programs read it.
#[derive(Serialize)]
struct JsonRun<'a> {
    name: &'a str,
    truth_mean_s: f64,
    syn_drop_pct: f64,
    gave_up_pct: f64,
    exact_error_pct: f64,
    model_error_pct: f64,
    syn_to_end_error_pct: f64,
    application_error_pct: f64,
    exact_mae_pct: f64,
    model_mae_pct: f64,
    learned_error_pct: f64,
    paper_model_error_pct: f64,
    reference_error_pct: f64,
    mm1_error_pct: f64,
    sliding_window_error_pct: f64,
    drops: &'static str,
    drop_odds_ratio: Option<f64>,
    drop_pct_by_retry: &'a [f64],
    network_loss_pct: f64,
    forecast_error_pct: f64,
}

impl<'a> From<&'a Evaluation> for JsonRun<'a> {
    fn from(row: &'a Evaluation) -> Self {
        let mean = |method| errors(row, method).0;
        Self {
            name: &row.name,
            truth_mean_s: row.truth_mean_s,
            syn_drop_pct: row.syn_drop_pct,
            gave_up_pct: row.gave_up_pct,
            exact_error_pct: mean(CertesMethod::Exact),
            model_error_pct: mean(CertesMethod::Model),
            syn_to_end_error_pct: mean(CertesMethod::SynToEnd),
            application_error_pct: mean(CertesMethod::Application),
            exact_mae_pct: errors(row, CertesMethod::Exact).1,
            model_mae_pct: errors(row, CertesMethod::Model).1,
            learned_error_pct: mean(CertesMethod::Learned),
            paper_model_error_pct: mean(CertesMethod::PaperModel),
            reference_error_pct: mean(CertesMethod::Reference),
            mm1_error_pct: mean(CertesMethod::Queueing),
            sliding_window_error_pct: mean(CertesMethod::SlidingWindow),
            drops: row.confidence.as_str(),
            drop_odds_ratio: row.odds_ratio,
            drop_pct_by_retry: &row.drop_pct_by_retry,
            network_loss_pct: 100.0 * row.loss,
            forecast_error_pct: row.forecast_error_pct,
        }
    }
}

#[derive(Serialize)]
struct JsonTable<'a> {
    seed: u64,
    runs: Vec<JsonRun<'a>>,
}

/// `{"paper": {"seed", "runs": [...]}, "linux": {...}}`.
fn json(seed: u64, tables: &[Table]) -> BTreeMap<&'static str, JsonTable<'_>> {
    let mut schedules = BTreeMap::new();
    for table in tables {
        let runs = table.rows.iter().map(JsonRun::from).collect();
        schedules.insert(table.schedule.name(), JsonTable { seed, runs });
    }
    schedules
}
