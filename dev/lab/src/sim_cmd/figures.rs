// SPDX-License-Identifier: Apache-2.0
//! The paper's figures, redone.

use anyhow::Result;
use causeway_report::chart::{Chart, Scale, Series};
use causeway_sim::certes::workload::{Backlog, SynSchedule, Workload, table_ii};
use causeway_sim::certes::world::{self, Second};
use causeway_sim::certes::{CertesMethod, Evaluation, Forecast, evaluate_by, queueing_mean_s};

use super::certes::{Table, errors, in_parallel};

/// A plot with what it shows.
pub(super) struct Figure {
    /// Its number in the paper, or what it is.
    pub title: String,
    /// What is drawn, under what to look for.
    pub chart: Chart,
}

/// Seconds shown of runs over time.
const SHOWN_S: usize = 300;

/// All figures. Those of table II come from its tables; the others run here.
pub(super) fn all(seed: u64, seconds: u32, tables: &[Table]) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for table in tables {
        let row = |name: &str| table.rows.iter().find(|row| row.name == name);
        let schedule = table.schedule.name();
        for name in ["D", "G"] {
            figures.extend(row(name).map(|row| distribution(schedule, row)));
        }
        for name in ["A", "G"] {
            figures.extend(row(name).map(|row| {
                over_time(
                    &format!("Figure 18, {schedule}: workload {name} over time"),
                    row,
                    &[
                        CertesMethod::Exact,
                        CertesMethod::Model,
                        CertesMethod::SynToEnd,
                        CertesMethod::Application,
                    ],
                )
            }));
        }
        if let Some(row) = row("J") {
            figures.push(over_time(
                &format!("Figure 19, {schedule}: on and off load (J)"),
                row,
                &[
                    CertesMethod::Exact,
                    CertesMethod::Model,
                    CertesMethod::SynToEnd,
                ],
            ));
            figures.push(over_time(
                &format!("Figures 23 and 24, {schedule}: simpler models on J"),
                row,
                &[
                    CertesMethod::Model,
                    CertesMethod::Queueing,
                    CertesMethod::SlidingWindow,
                ],
            ));
            figures.push(forecast(schedule, row));
        }
    }
    figures.push(drop_rate_alone());
    let mut jobs: Vec<Job> = Vec::new();
    for schedule in SynSchedule::ALL {
        let named = |name: &str| {
            let of = table_ii(schedule).into_iter().find(|of| of.name == name);
            of.map(|of| Workload {
                duration_s: f64::from(seconds.min(600)),
                ..of
            })
        };
        let (Some(a), Some(j)) = (named("A"), named("J")) else {
            continue;
        };
        let short = Workload {
            backlog: Backlog::Fixed(512),
            ..a.clone()
        };
        let last = a.clone();
        jobs.push(Box::new(move || {
            in_the_middle("Figure 25", schedule, &short, 600, seed)
        }));
        jobs.push(Box::new(move || {
            in_the_middle("Figure 26", schedule, &j, 575, seed)
        }));
        jobs.push(Box::new(move || queue_limits(schedule, &a, seed)));
        jobs.push(Box::new(move || slot_lengths(schedule, &last, seed)));
    }
    figures.extend(in_parallel(&jobs, |job| job())?);
    Ok(figures)
}

type Job = Box<dyn Fn() -> Result<Figure> + Send + Sync>;

/// What the figures that run here need: all but the full model.
const METHODS: [CertesMethod; 4] = [
    CertesMethod::Exact,
    CertesMethod::Model,
    CertesMethod::PaperModel,
    CertesMethod::SynToEnd,
];

fn means(seconds: &[Second], from: usize, to: usize) -> Vec<(f64, f64)> {
    let mean = |second: &Second| {
        if second.count > 0.0 {
            second.sum_s / second.count
        } else {
            f64::NAN
        }
    };
    let shown = seconds
        .iter()
        .enumerate()
        .skip(from)
        .take(to.saturating_sub(from));
    shown
        .map(|(at, second)| (at as f64, mean(second)))
        .collect()
}

fn chart(title: impl Into<String>, x_label: &str, y_label: &str, series: Vec<Series>) -> Chart {
    let (x, y) = ((Scale::Linear, x_label), (Scale::FromZero, y_label));
    Chart::new(title, x, y, series)
}

fn over_time(title: &str, row: &Evaluation, methods: &[CertesMethod]) -> Figure {
    let to = row.truth.len().min(45 + SHOWN_S);
    let mut series = vec![Series::new("clients", means(&row.truth, 45, to))];
    for (place, method) in (1..).zip(methods) {
        if let Some(of) = row.of(*method) {
            let means = means(&of.seconds, 45, to);
            series.push(Series::new(method.name(), means).coloured(place));
        }
    }
    let said: Vec<String> = methods
        .iter()
        .map(|method| format!("{} {:+.1} %", method.name(), errors(row, *method).0))
        .collect();
    Figure {
        title: title.to_owned(),
        chart: chart(
            format!(
                "Mean response time of each second. Over the whole run: {}.",
                said.join(", ")
            ),
            "seconds",
            "seconds",
            series,
        ),
    }
}

fn forecast(schedule: &str, row: &Evaluation) -> Figure {
    let shown = row.retries.iter().enumerate().skip(45).take(SHOWN_S);
    let points = |of: fn(&Forecast) -> f64| -> Vec<(f64, f64)> {
        let seconds = shown.clone();
        seconds
            .map(|(at, second)| (at as f64, of(second)))
            .collect()
    };
    Figure {
        title: format!(
            "Section 6, {schedule}: retries that come, and that were expected a second before ({})",
            row.name
        ),
        chart: chart(
            format!(
                "SYNs of each second that were not first ones. Off by {:.1} % of all over the whole run.",
                row.forecast_error_pct
            ),
            "seconds",
            "SYNs",
            vec![
                Series::new("came", points(|of| of.came)),
                Series::new("expected", points(|of| of.expected)),
            ],
        ),
    }
}

fn distribution(schedule: &str, row: &Evaluation) -> Figure {
    let of = &row.distribution;
    let cumulated = |shares: &[f64]| {
        let mut sum = 0.0;
        let points = shares.iter().enumerate().map(|(bin, share)| {
            sum += share;
            ((bin + 1) as f64 * of.bin_s, 100.0 * sum)
        });
        points.collect::<Vec<_>>()
    };
    Figure {
        title: format!(
            "Figure 17, {schedule}: distribution of response times, workload {}",
            row.name
        ),
        chart: chart(
            "Share of transactions that took no longer. Those who gave up are the last step.",
            "seconds",
            "percent",
            vec![
                Series::new("clients", cumulated(&of.truth)),
                Series::new("model", cumulated(&of.model)),
                Series::new("syn_to_end", cumulated(&of.syn_to_end)),
            ],
        ),
    }
}

fn drop_rate_alone() -> Figure {
    let points = (0..=100).map(|pct| {
        (
            f64::from(pct),
            queueing_mean_s(0.01, f64::from(pct) / 100.0),
        )
    });
    Figure {
        title: "Figure 22: what a drop rate costs, if it never changed".to_owned(),
        chart: chart(
            "M/M/1 (eq. 32) with 10 ms of service and queueing; retries at 3, 9 and 21 s.",
            "SYNs dropped, percent",
            "seconds",
            vec![Series::new("mean response time", points)],
        ),
    }
}

/// A model that begins in the middle of a run sees retries as first SYNs.
fn in_the_middle(
    title: &str,
    schedule: SynSchedule,
    of: &Workload,
    slot: usize,
    seed: u64,
) -> Result<Figure> {
    let from_s = slot as f64 * of.slot_s;
    let to_s = from_s + 60.0;
    // However short the runs of the tables are, this one reaches the slot and what is shown.
    let of = &Workload {
        duration_s: of.duration_s.max(to_s),
        ..of.clone()
    };
    let found = evaluate_by(&METHODS, of, &world::run(of, seed), from_s)?;
    let (from, to) = ((from_s - 10.0).max(0.0) as usize, to_s as usize);
    let model = found
        .of(CertesMethod::Model)
        .map(|of| means(&of.seconds, from_s as usize, to))
        .unwrap_or_default();
    let drawn = chart(
        "It knows nothing of the SYNs before; what it made of them fades after the clients' patience.",
        "seconds",
        "seconds",
        vec![
            Series::new("clients", means(&found.truth, from, to)),
            Series::new("model", model),
        ],
    );
    Ok(Figure {
        title: format!(
            "{title}, {}: the model begins in slot {slot}",
            schedule.name()
        ),
        chart: drawn.marked(from_s, "begins"),
    })
}

/// Figures 20 and 21: the accept queue's limit changes every 10 s.
fn queue_limits(schedule: SynSchedule, a: &Workload, seed: u64) -> Result<Figure> {
    let of = Workload {
        clients: 1000,
        rtt_s: 0.152,
        jitter_s: 0.004,
        backlog: Backlog::Cycle {
            period_s: 10.0,
            limits: vec![2048, 512, 128, 32, 64, 256, 1024],
        },
        ..a.clone()
    };
    let found = evaluate_by(&METHODS, &of, &world::run(&of, seed), 0.0)?;
    let mut figure = over_time(
        &format!(
            "Figures 20 and 21, {}: the accept queue's limit goes from 2048 to 32 and back, 10 s each",
            schedule.name()
        ),
        &found,
        &[
            CertesMethod::Exact,
            CertesMethod::Model,
            CertesMethod::SynToEnd,
        ],
    );
    figure
        .chart
        .title
        .push_str(" A short queue makes SYN-to-END short and clients wait.");
    Ok(figure)
}

/// Figure 9's argument: events fall out of short slots.
fn slot_lengths(schedule: SynSchedule, a: &Workload, seed: u64) -> Result<Figure> {
    let mut points = Vec::new();
    for slot_s in [0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0] {
        let of = Workload {
            slot_s,
            duration_s: a.duration_s.min(300.0),
            ..a.clone()
        };
        let found = evaluate_by(&METHODS, &of, &world::run(&of, seed), 0.0)?;
        points.push((slot_s, errors(&found, CertesMethod::PaperModel).1));
    }
    Ok(Figure {
        title: format!(
            "Figure 9, {}: how long a slot should be (workload A)",
            schedule.name()
        ),
        chart: chart(
            "Mean error of the seconds under the paper's hypothesis. Retry gaps are split over two slots here, so that short slots lose less than with whole ones.",
            "slot, seconds",
            "percent",
            vec![Series::new("error", points)],
        ),
    })
}
