// SPDX-License-Identifier: Apache-2.0
//! The figures, one function each.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use causeway_report::chart::{Scale, Series};

use super::super::Context;
use super::super::accuracy::judge::{self, Estimates, Timed};
use super::super::accuracy::rig;
use super::super::accuracy::workload::{self, AccuracyWorkload, ServerKind};
use super::curves::{Recorded, line, ms};
use super::{PaperFigure, rtt};
use crate::timed_http_server::{Discipline, Drift, ServiceBehaviour};

/// Length of a time series. Milliseconds.
const WINDOW_MS: u64 = 400;
/// Connections of the load sweep of figure 7.
const SWEEP: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Shares of figure 6 and names of their namespaces: the paper shows one of each kind, and found
/// others similar.
const LOSSES: [(&str, f64); 5] = [
    ("loss01", 0.001),
    ("loss03", 0.003),
    ("loss1", 0.01),
    ("loss3", 0.03),
    ("loss5", 0.05),
];
const REORDERINGS: [(&str, f64); 4] = [
    ("reorder5", 0.05),
    ("reorder10", 0.1),
    ("reorder25", 0.25),
    ("reorder50", 0.5),
];
/// Bins of figure 2 in a decade.
const BINS: f64 = 12.0;
const TIME: (Scale, &str) = (Scale::Linear, "ms since its first quarter");
const MS: (Scale, &str) = (Scale::FromZero, "ms");

/// Draws every figure that was asked for.
pub(super) fn all(context: &Context) -> Result<Vec<PaperFigure>> {
    let asked: String = context.param("figures")?;
    type Draw = fn(&Context) -> Result<Vec<PaperFigure>>;
    // Figures of one recording are drawn together.
    let known: [(&[&str], Draw); 7] = [
        (&["2"], gaps),
        (&["3", "4", "11"], web),
        (&["1", "5"], round_trips),
        (&["6"], robustness),
        (&["7"], offered_load),
        (&["9"], quic),
        (&["10"], memcached),
    ];
    let wanted = |numbers: &[&str]| {
        asked.is_empty() || asked.split(',').any(|number| numbers.contains(&number))
    };
    let mut figures = Vec::new();
    for (numbers, draw) in known {
        if wanted(numbers) {
            let failed = || format!("figure {}", numbers.join(", "));
            figures.extend(draw(context).with_context(failed)?);
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

/// Figure 2: gaps where responses take the same time, with losses and idle times.
fn gaps(context: &Context) -> Result<Vec<PaperFigure>> {
    let mut workload = find(context, "w4_loss1")?;
    (workload.name, workload.about) = ("gaps", "W=4, constant service, 1 % lost, idle for seconds");
    workload.server = ServerKind::Timed(ServiceBehaviour {
        discipline: Discipline::Batch,
        drift: Drift::default(),
    });
    let page = &mut workload.page;
    (page.service_median_us, page.service_sigma) = (10_000.0, 0.0);
    page.service_min_us = 10_000;
    workload.idle_ms = 2_000.0;
    workload.connections = 16;
    context.say(workload.about);
    let recording = rig::record(context.sandbox, &workload)?;
    let gaps: Vec<f64> = rtt::gaps(&recording.pcap)?.into_iter().map(ms).collect();
    anyhow::ensure!(!gaps.is_empty(), "no gaps");
    let mut counts = BTreeMap::new();
    for gap in &gaps {
        let bin = (gap.max(1e-4).log10() * BINS).floor() as i32;
        *counts.entry(bin).or_insert(0_u32) += 1;
    }
    let (first, last) = (counts.first_key_value(), counts.last_key_value());
    let (first, last) = first.zip(last).map_or((0, 0), |(a, b)| (*a.0, *b.0));
    let points = (first..=last).map(|bin| {
        let share = counts.get(&bin).map_or(f64::NAN, |&count| f64::from(count));
        let middle = 10_f64.powf((f64::from(bin) + 0.5) / BINS);
        (middle, share * 100.0 / gaps.len() as f64)
    });
    let values: Vec<(f64, f64)> = gaps.iter().map(|gap| (*gap, 1.0)).collect();
    let title = "gaps between a client's packets: bursts, responses, losses, idle times";
    let name = "gaps";
    let mut figure =
        PaperFigure::of_distributions("2", title, "ms", true, vec![line(name, &values)]);
    figure.chart.y = (Scale::Log, "% of the gaps".to_owned());
    figure.chart.series = vec![Series::new(name, points)];
    Ok(vec![figure])
}

/// Figures 3, 4 and 11 share the web workload.
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
    figures.extend(error_classes(&recorded));
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

/// Figure 4, with classes that the clients' log tells apart.
fn error_classes(recorded: &Recorded) -> [PaperFigure; 2] {
    let classes = [
        ("window-chain", 0, "the client's delay"),
        ("window-chain", 0, "others"),
        ("Algorithm 2", 1, "the client's delay"),
        ("Algorithm 2", 1, "others"),
    ];
    let found = [recorded.erroneous(0), recorded.erroneous(1)];
    let lines = |part: usize| -> Vec<Series> {
        let of = |(n, (name, method, class)): (usize, &(&str, usize, &str))| {
            line(&format!("{name}: {class}"), &found[*method][n % 2][part])
        };
        classes.iter().enumerate().map(of).collect()
    };
    let draw =
        |number, title, part| PaperFigure::of_distributions(number, title, "%", false, lines(part));
    [
        draw(
            "4a",
            "samples more than 10 % from req-to-req, by connection",
            0,
        ),
        draw("4b", "mean error of these samples, by connection", 1),
    ]
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
        TIME,
        MS,
        lines,
    ));
    Ok(figures)
}

/// Figures 1 and 5: response latency against TCP's round-trip times, W = 1.
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
    let log = &recorded.recording.log;
    let own = responses
        .iter()
        .filter(|r| r.srtt_us > 0 && judge::flow_key(log, r.connection) == *key);
    let wall = |ns: u64| ns.wrapping_add_signed(log.wall_offset_ns);
    let own = own.map(|r| (wall(r.last_ns), f64::from(r.srtt_us) / 1e3));
    let own = own.filter(|r| within(r.0));
    let own = Series::new(
        "the client's TCP (srtt)",
        own.map(|(at, value)| (ms(at - start_ns), value)),
    );
    let handshake = flows.get(key).and_then(|f| f.handshake_ns);
    let handshake = handshake.into_iter().flat_map(|ns| {
        let ends = [0.0, WINDOW_MS as f64];
        ends.map(|at| (at, ms(ns)))
    });
    let handshake = Series::new("SYN to ACK", handshake);
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
    let times = vec![series[0].clone(), own, series[2].clone(), handshake];
    Ok(vec![
        PaperFigure::of_distributions(
            "5a",
            "latencies with one request at a time",
            "ms",
            true,
            lines,
        ),
        PaperFigure::of_lines("5b", "one connection over time", TIME, MS, series),
        PaperFigure::of_lines(
            "1",
            "one connection's responses and TCP's round-trip times",
            TIME,
            MS,
            times,
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
    let loss = Impaired {
        numbers: ["6a", "6c"],
        workload: "w4_loss1",
        what: "packets lost",
        rates: &LOSSES,
        set: |workload, rate| workload.path.loss = rate,
    };
    let reordering = Impaired {
        numbers: ["6b", "6d"],
        workload: "w4_reorder25",
        what: "packets reordered",
        rates: &REORDERINGS,
        set: |workload, rate| workload.path.reorder = rate,
    };
    let mut figures = loss.draw(context)?;
    figures.extend(reordering.draw(context)?);
    Ok(figures)
}

/// What strikes packets between client and vantage point, at several rates.
struct Impaired {
    /// Of the distribution at the workload's own rate, and of the errors at all.
    numbers: [&'static str; 2],
    workload: &'static str,
    what: &'static str,
    rates: &'static [(&'static str, f64)],
    set: fn(&mut AccuracyWorkload, f64),
}

impl Impaired {
    fn draw(&self, context: &Context) -> Result<Vec<PaperFigure>> {
        let own = find(context, self.workload)?;
        let names = [
            "req-to-req (clients)",
            "window-chain",
            "Algorithm 2, relative",
            "Algorithm 2, as published",
        ];
        let mut lines = names.map(|name| Series::new(name, []));
        let mut figures = Vec::new();
        for &(name, rate) in self.rates {
            let mut workload = own.clone();
            (workload.name, workload.about) = (name, self.what);
            (self.set)(&mut workload, rate);
            let percent = rate * 100.0;
            let recorded = Recorded::new(context, &workload)?;
            for (line, error) in lines.iter_mut().zip(recorded.medians()?) {
                line.points.push((percent, error));
            }
            if workload.path == own.path {
                let title = format!("{percent:.0} % of {}", self.what);
                let lines = recorded.distributions();
                figures.push(PaperFigure::of_distributions(
                    self.numbers[0],
                    &title,
                    "ms",
                    true,
                    lines,
                ));
            }
        }
        let title = format!("median error by epoch and share of {}", self.what);
        let x = format!("% of {}", self.what);
        figures.push(PaperFigure::of_sweep(
            self.numbers[1],
            &title,
            (Scale::Log, &x),
            (Scale::Log, "%"),
            lines.into(),
        ));
        Ok(figures)
    }
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
        PaperFigure::of_sweep(
            "7a",
            "mean latency by load",
            (Scale::Linear, "requests per second"),
            MS,
            lines,
        ),
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
