// SPDX-License-Identifier: Apache-2.0

//! Plays many seeds of the simulation, or one: `soak --seeds 0..1000000`,
//! `soak --seed 17`. `--cases` prints what each case was like.
#![allow(
    clippy::disallowed_methods,
    reason = "the engine is under test here, not under these rules"
)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use causeway_bifrost::sim::{Case, Failure, Summary, run};

#[derive(Default)]
struct Totals {
    runs: u64,
    sent: u64,
    resent: u64,
    again: u64,
    frames: u64,
    lost: u64,
    slowest_ns: u64,
    steps: u64,
    worst: (u64, u64),
}

impl Totals {
    fn add(&mut self, seed: u64, summary: &Summary) {
        self.runs += 1;
        self.sent += summary.sent;
        self.resent += summary.resent;
        self.again += summary.again;
        self.frames += summary.accepted;
        self.lost += summary.lost;
        self.slowest_ns = self.slowest_ns.max(summary.slowest_ns);
        self.steps += summary.steps;
        let share = summary.resent * 1000 / summary.sent.max(1);
        self.worst = self.worst.max((share, seed));
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    if let Some(seed) = value("--seed").and_then(|seed| seed.parse().ok()) {
        return one(seed);
    }
    let range = value("--seeds").unwrap_or_else(|| "0..10000".into());
    let Some((from, to)) = range
        .split_once("..")
        .and_then(|(from, to)| Some((from.parse::<u64>().ok()?, to.parse::<u64>().ok()?)))
    else {
        eprintln!("soak: --seeds takes FROM..TO, such as 0..1000000, not {range:?}");
        return ExitCode::from(2);
    };
    many(
        from,
        to,
        arguments.iter().any(|argument| argument == "--cases"),
    )
}

fn one(seed: u64) -> ExitCode {
    match run(seed) {
        Ok(summary) => {
            println!("{summary:?}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn many(from: u64, to: u64, cases: bool) -> ExitCode {
    let next = AtomicU64::new(from);
    let totals = Mutex::new(BTreeMap::<Case, Totals>::new());
    let failures = Mutex::new(Vec::<Failure>::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= to {
                return;
            }
            match run(seed) {
                Ok(summary) => {
                    let mut totals = totals.lock().expect("no run panics while it adds");
                    totals.entry(summary.case).or_default().add(seed, &summary);
                }
                Err(failure) => {
                    eprintln!("{failure}");
                    failures
                        .lock()
                        .expect("no run panics while it adds")
                        .push(failure);
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    let totals = totals.into_inner().expect("all threads have ended");
    if cases {
        print(&totals);
    }
    let failed = failures.into_inner().expect("all threads have ended").len();
    let passed: u64 = totals.values().map(|totals| totals.runs).sum();
    println!("{passed} seeds passed, {failed} failed");
    ExitCode::from(u8::from(failed > 0))
}

fn print(totals: &BTreeMap<Case, Totals>) {
    println!(
        "{:<18} {:>6} {:>9} {:>8} {:>8} {:>8} {:>6} {:>9} {:>7} worst (seed)",
        "case", "runs", "chunks", "resent%", "again%", "frames", "lost", "slowest", "steps"
    );
    for (case, totals) in totals {
        let percent = |part: u64| 100.0 * part as f64 / totals.sent.max(1) as f64;
        println!(
            "{:<18} {:>6} {:>9} {:>8.3} {:>8.3} {:>8} {:>6} {:>7.1}ms {:>7} {:.1}% ({})",
            case.name(),
            totals.runs,
            totals.sent,
            percent(totals.resent),
            percent(totals.again),
            totals.frames,
            totals.lost,
            totals.slowest_ns as f64 / 1e6,
            totals.steps / totals.runs.max(1),
            totals.worst.0 as f64 / 10.0,
            totals.worst.1
        );
    }
}
