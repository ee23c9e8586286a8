// SPDX-License-Identifier: Apache-2.0
//! The figures, one function each.

use anyhow::{Context as _, Result};
use causeway_report::chart::Series;

use super::super::Context;
use super::super::accuracy::judge::{Estimates, Timed};
use super::super::accuracy::workload::{self, AccuracyWorkload};
use super::curves::{Recorded, line, ms};
use super::{PaperFigure, rtt};

/// Length of a time series. Milliseconds.
const WINDOW_MS: u64 = 400;
/// Connections of the load sweep of figure 7.
const SWEEP: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// Draws every figure that was asked for.
pub(super) fn all(context: &Context) -> Result<Vec<PaperFigure>> {
    let asked: String = context.param("figures")?;
    type Draw = fn(&Context) -> Result<Vec<PaperFigure>>;
    let known: [(&str, Draw); 6] = [
        ("3", web),
        ("5", round_trips),
        ("6", robustness),
        ("7", offered_load),
        ("9", quic),
        ("10", memcached),
    ];
    let wanted = |number: &str| {
        let alias = if number == "3" { "11" } else { number };
        asked.is_empty() || asked.split(',').any(|n| n == number || n == alias)
    };
    let mut figures = Vec::new();
    for (number, draw) in known {
        if wanted(number) {
            figures.extend(draw(context).with_context(|| format!("figure {number}"))?);
        }
    }
    anyhow::ensure!(!figures.is_empty(), "there is no figure {asked:?} here");
    Ok(figures)
}

fn find(context: &Context, name: &str) -> Result<AccuracyWorkload> {
    let all = workload::all(context.seed, context.param("seconds")?);
    all.into_iter()
        .find(|w| w.name == name)
        .with_context(|| format!("no workload {name}"))
}

/// Figures 3 and 11 share the web workload.
fn web(context: &Context) -> Result<Vec<PaperFigure>> {
    let recorded = Recorded::new(context, &find(context, "web")?)?;
    let [absolute, relative] = recorded.errors();
    let mut figures = vec![
        PaperFigure::of_distributions(
            "3a",
            "latencies of the web workload",
            "ms",
            true,
            recorded.distributions(),
        ),
        PaperFigure::of_distributions("3b", "absolute error by response", "ms", false, absolute),
        PaperFigure::of_distributions(
            "3c",
            "relative error by response",
            "%",
            false,
            clipped(relative, 100.0),
        ),
    ];
    figures.extend(heuristics(&recorded)?);
    Ok(figures)
}

/// Values beyond a limit are drawn at the limit.
fn clipped(mut lines: Vec<Series>, limit: f64) -> Vec<Series> {
    for point in lines.iter_mut().flat_map(|line| &mut line.points) {
        point.0 = point.0.clamp(-limit, limit);
    }
    lines
}

fn heuristics(recorded: &Recorded) -> Result<Vec<PaperFigure>> {
    let [with, without] = recorded.heuristics()?;
    let values = |estimates: &Estimates<1>| -> Vec<(f64, f64)> {
        let all = estimates.samples[0].values().flatten();
        all.map(|s| (s.mean_ns / 1e6, 1.0)).collect()
    };
    let mut lines = recorded.distributions();
    lines.truncate(2);
    lines.push(line("Algorithm 2", &values(&with)));
    lines.push(line("Algorithm 2, no heuristics", &values(&without)));
    let mut figures = vec![PaperFigure::of_distributions(
        "11a",
        "the two heuristics of section 3.4",
        "ms",
        true,
        lines,
    )];
    let (key, flow) = recorded.busiest().context("no flow")?;
    let start_ns = flow.responses[flow.responses.len() / 4].0;
    let within = |at: u64| at >= start_ns && at < start_ns + WINDOW_MS * 1_000_000;
    let series = |samples: &[Timed]| -> Vec<(f64, f64)> {
        let of = samples.iter().filter(|s| within(s.when_ns));
        of.map(|s| (ms(s.when_ns - start_ns), s.mean_ns / 1e6))
            .collect()
    };
    let proxy = flow.triggered.iter().filter(|t| within(t.0));
    let lines = vec![
        Series::new(
            "req-to-req (clients)",
            proxy.map(|t| (ms(t.0 - start_ns), ms(t.1))),
        ),
        Series::new(
            "window-chain",
            series(
                recorded.estimates.samples[0]
                    .get(key)
                    .map_or(&[][..], Vec::as_slice),
            ),
        ),
        Series::new(
            "Algorithm 2",
            series(with.samples[0].get(key).map_or(&[][..], Vec::as_slice)),
        ),
    ];
    figures.push(PaperFigure::of_lines(
        "11b",
        "one connection over time",
        "ms since its first quarter",
        lines,
    ));
    Ok(figures)
}

/// Figure 5: response latency against TCP's round-trip times, W = 1.
fn round_trips(context: &Context) -> Result<Vec<PaperFigure>> {
    let mut workload = find(context, "w1")?;
    workload.both_directions = true;
    workload.tcp_info = true;
    let recorded = Recorded::new(context, &workload)?;
    let flows = rtt::round_trips(&recorded.recording.both)?;
    let acked = flows.values().flat_map(|f| &f.acked);
    let acked: Vec<(f64, f64)> = acked.map(|a| (ms(a.1), 1.0)).collect();
    let handshakes = flows.values().filter_map(|f| f.handshake_ns);
    let handshakes: Vec<(f64, f64)> = handshakes.map(|ns| (ms(ns), 1.0)).collect();
    let responses = &recorded.recording.log.responses;
    let kernel = responses.iter().filter(|r| r.srtt_us > 0);
    let kernel: Vec<(f64, f64)> = kernel.map(|r| (f64::from(r.srtt_us) / 1e3, 1.0)).collect();
    let mut lines = recorded.distributions();
    lines.truncate(3);
    lines.push(line("seq/ack (both directions)", &acked));
    lines.push(line("the client's TCP (srtt)", &kernel));
    lines.push(line("SYN to ACK", &handshakes));
    let (key, flow) = recorded.busiest().context("no flow")?;
    let start_ns = flow.responses[flow.responses.len() / 4].0;
    let within = |at: u64| at >= start_ns && at < start_ns + WINDOW_MS * 1_000_000;
    let truth = flow.responses.iter().filter(|r| within(r.0));
    let samples = recorded.estimates.samples[0].get(key);
    let samples = samples.into_iter().flatten().filter(|s| within(s.when_ns));
    let acked = flows.get(key).into_iter().flat_map(|f| &f.acked);
    let series = vec![
        Series::new(
            "req-to-res (clients)",
            truth.map(|r| (ms(r.0 - start_ns), ms(r.1))),
        ),
        Series::new(
            "window-chain",
            samples.map(|s| (ms(s.when_ns - start_ns), s.mean_ns / 1e6)),
        ),
        Series::new(
            "seq/ack (both directions)",
            acked
                .filter(|a| within(a.0))
                .map(|a| (ms(a.0 - start_ns), ms(a.1))),
        ),
    ];
    Ok(vec![
        PaperFigure::of_distributions(
            "5a",
            "latencies with one request at a time",
            "ms",
            true,
            lines,
        ),
        PaperFigure::of_lines(
            "5b",
            "one connection over time",
            "ms since its first quarter",
            series,
        ),
    ])
}

fn distribution(
    context: &Context,
    number: &'static str,
    name: &str,
    title: &str,
) -> Result<PaperFigure> {
    let recorded = Recorded::new(context, &find(context, name)?)?;
    let lines = recorded.distributions();
    Ok(PaperFigure::of_distributions(
        number, title, "ms", true, lines,
    ))
}

fn robustness(context: &Context) -> Result<Vec<PaperFigure>> {
    Ok(vec![
        distribution(context, "6a", "w4_loss1", "1 % of packets lost")?,
        distribution(context, "6b", "w4_reorder25", "25 % of packets reordered")?,
    ])
}

/// Figure 7: a server with a fifth of a CPU, and more and more clients.
fn offered_load(context: &Context) -> Result<Vec<PaperFigure>> {
    let seconds: f64 = context.param("seconds")?;
    let mut lines: Vec<Series> = [
        "req-to-res (clients)",
        "req-to-req (clients)",
        "window-chain",
    ]
    .map(|name| Series::new(name, []))
    .into();
    let mut last = None;
    for connections in SWEEP {
        let mut workload = find(context, "w4_cpu10")?;
        workload.name = SWEEP_NAMES[SWEEP.iter().position(|&c| c == connections).unwrap_or(0)];
        workload.server = workload::ServerKind::Throttled {
            shares: (0.2, 0.2001),
            every_ms: 10_000,
        };
        workload.outstanding = 1;
        workload.connections = connections;
        workload.seconds = (seconds / 2.0).max(1.0);
        let recorded = Recorded::new(context, &workload)?;
        let rate = recorded.rate();
        for (line, mean) in lines.iter_mut().zip(recorded.means()) {
            line.points.push((rate, mean));
        }
        last = Some(recorded);
    }
    let last = last.context("no load")?;
    Ok(vec![
        PaperFigure::of_lines("7a", "mean latency by load", "requests per second", lines),
        PaperFigure::of_distributions(
            "7b",
            "error by connection at the highest load",
            "%",
            false,
            last.by_connection(),
        ),
    ])
}

/// Names of the namespaces of [`SWEEP`].
const SWEEP_NAMES: [&str; 6] = ["load1", "load2", "load4", "load8", "load16", "load32"];

fn quic(context: &Context) -> Result<Vec<PaperFigure>> {
    Ok(vec![
        distribution(context, "9-noack", "h3_w4_small", "HTTP/3, small responses")?,
        distribution(context, "9-ack", "h3_w4", "HTTP/3, responses of some kB")?,
    ])
}

fn memcached(context: &Context) -> Result<Vec<PaperFigure>> {
    Ok(vec![distribution(
        context,
        "10",
        "memcached_w1",
        "memcached, get and set 1:1",
    )?])
}
