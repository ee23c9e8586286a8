// SPDX-License-Identifier: Apache-2.0
//! The demo's closing table, as text.

use std::fmt::{self, Write};

use causeway_lab::outcome::{DegradeOutcome, DegradeSummary, RealTrack, RunSummary};

/// Columns of the weight history.
const WEIGHT_COLUMNS: usize = 10;

/// What both runs gave, for a terminal of 80 columns.
pub(super) fn render(outcome: &DegradeOutcome) -> Result<String, fmt::Error> {
    let summary = outcome.summary();
    let mut out = String::new();
    runs(&mut out, &summary)?;
    reals(&mut out, &summary)?;
    weights(&mut out, outcome)?;
    Ok(out)
}

fn runs(out: &mut String, summary: &DegradeSummary) -> fmt::Result {
    writeln!(
        out,
        "{:<12} {:>9} {:>9} {:>9} {:>9} {:>11} {:>8}",
        "scheduler", "p50 ms", "p90 ms", "p99 ms", "requests", "requests/s", "broken"
    )?;
    for run in [&summary.baseline, &summary.latency_aware] {
        one_run(out, run)?;
    }
    writeln!(
        out,
        "p99 under {} is {:.1} % lower; requests sent from {:.0} s after the slowdown count\n",
        summary.latency_aware.scheduler, summary.p99_reduction_pct, summary.conditions.settle_s
    )
}

fn one_run(out: &mut String, run: &RunSummary) -> fmt::Result {
    writeln!(
        out,
        "{:<12} {:>9.2} {:>9.2} {:>9.2} {:>9} {:>11.0} {:>8}",
        run.scheduler,
        run.p50_ms,
        run.p90_ms,
        run.p99_ms,
        run.requests,
        run.requests_per_s,
        run.broken_connections
    )
}

fn reals(out: &mut String, summary: &DegradeSummary) -> fmt::Result {
    writeln!(
        out,
        "{:<16} {:>12} {:>12} {:>9} {:>8}",
        "server", "estimate ms", "clients ms", "error %", "epochs"
    )?;
    for real in &summary.estimate.per_real {
        writeln!(
            out,
            "{:<16} {:>12.2} {:>12.2} {:>9.2} {:>8}",
            real.real, real.estimate_ms, real.client_ms, real.error_pct, real.epochs
        )?;
    }
    let estimate = &summary.estimate;
    write!(
        out,
        "Causeway's estimate is off by {:.2} % ({:.3} ms), median over servers and epochs",
        estimate.median_error_pct, estimate.median_error_ms
    )?;
    match estimate.proxy_floor_pct {
        Some(floor) => writeln!(out, ";\nits proxy measured at the clients: {floor:.2} %\n"),
        None => writeln!(out, "\n"),
    }
}

fn weights(out: &mut String, outcome: &DegradeOutcome) -> fmt::Result {
    let tracks = &outcome.latency_aware.reals;
    let at = columns(tracks);
    write!(out, "{:<16}", "weight at (s)")?;
    for epoch in &at {
        let seconds = tracks.first().map_or(0.0, |t| t.epochs[*epoch].at_s);
        write!(out, " {seconds:>5.0}")?;
    }
    writeln!(out)?;
    for track in tracks {
        write!(out, "{:<16}", track.real)?;
        for epoch in &at {
            match track.epochs.get(*epoch) {
                Some(epoch) => write!(out, " {:>5.0}", epoch.weight)?,
                None => write!(out, " {:>5}", "-")?,
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Epochs to show, spread evenly, first and last among them.
fn columns(tracks: &[RealTrack]) -> Vec<usize> {
    let Some(last) = tracks.first().and_then(|t| t.epochs.len().checked_sub(1)) else {
        return Vec::new();
    };
    let mut at: Vec<usize> = (0..WEIGHT_COLUMNS)
        .map(|i| i * last / (WEIGHT_COLUMNS - 1))
        .collect();
    at.dedup();
    at
}
