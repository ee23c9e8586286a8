// SPDX-License-Identifier: Apache-2.0

//! Many seeds, on all CPUs.
#![allow(
    clippy::disallowed_methods,
    reason = "the engine is under test here, not under these rules"
)]

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::check::{Failure, Summary};
use super::plan::Case;

/// Without `SEEDS` in the environment.
const DEFAULT: Range<u64> = 0..10_000;
/// Clean runs from which on the bounds of all together are meaningful.
const MIN_CLEAN_RUNS: u64 = 80;

/// The seeds that the environment asks for: `FROM..TO`, or one.
pub(crate) fn wanted() -> Range<u64> {
    let Ok(text) = std::env::var("SEEDS") else {
        return DEFAULT;
    };
    let number = |text: &str| text.parse::<u64>().ok();
    let range = match text.split_once("..") {
        Some((from, to)) => number(from).zip(number(to)).map(|(from, to)| from..to),
        None => number(&text).map(|seed| seed..seed + 1),
    };
    range.unwrap_or_else(|| panic!("SEEDS={text}: give FROM..TO, such as 0..1000000, or a seed"))
}

/// What the runs of a case were like.
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
    /// The largest share of chunks retransmitted, in thousandths, and its seed.
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

/// The outcome of a range of seeds.
#[derive(Default)]
pub(crate) struct Played {
    cases: BTreeMap<Case, Totals>,
    pub failures: Vec<Failure>,
}

impl Played {
    /// Plays all of them.
    pub(crate) fn play(seeds: Range<u64>) -> Played {
        let next = AtomicU64::new(seeds.start);
        let played = Mutex::new(Played::default());
        let work = || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds.end {
                    return;
                }
                let outcome = super::run(seed);
                let mut played = played.lock().expect("no run panics while it is added");
                match outcome {
                    Ok(summary) => {
                        let totals = played.cases.entry(summary.case).or_default();
                        totals.add(seed, &summary);
                    }
                    Err(failure) => played.failures.push(failure),
                }
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            (0..threads).for_each(|_| drop(scope.spawn(work)));
        });
        let mut played = played.into_inner().expect("all threads have ended");
        played.failures.sort_by_key(|failure| failure.seed);
        played
    }

    /// One line each.
    pub(crate) fn failure_lines(&self) -> String {
        let lines: Vec<String> = self.failures.iter().map(Failure::to_string).collect();
        lines.join("\n")
    }

    /// One clean run's bound leaves room for a few retransmissions; all together must do
    /// with less.
    pub(crate) fn clean_bounds_hold(&self) {
        let Some(clean) = self.cases.get(&Case::Clean) else {
            return;
        };
        let (sent, resent, again) = (clean.sent, clean.resent, clean.again);
        if clean.runs < MIN_CLEAN_RUNS {
            return;
        }
        assert!(
            resent * 1000 < sent,
            "{resent} of {sent} retransmitted without loss"
        );
        assert!(
            again * 2000 < sent,
            "{again} of {sent} came twice without loss"
        );
    }
}

impl fmt::Display for Played {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<18} {:>6} {:>9} {:>8} {:>8} {:>8} {:>6} {:>9} {:>7} worst (seed)",
            "case", "runs", "chunks", "resent%", "again%", "frames", "lost", "slowest", "steps"
        )?;
        for (case, totals) in &self.cases {
            let percent = |part: u64| 100.0 * part as f64 / totals.sent.max(1) as f64;
            writeln!(
                f,
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
            )?;
        }
        let passed: u64 = self.cases.values().map(|totals| totals.runs).sum();
        write!(f, "{passed} seeds passed, {} failed", self.failures.len())
    }
}
