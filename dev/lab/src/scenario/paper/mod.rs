// SPDX-License-Identifier: Apache-2.0
//! The figures of PIRATE on this machine but for figure 8, which is the load balancer's
//! (`causeway-lab run degrade`): each workload is recorded as in the accuracy matrix, and every
//! curve of the paper's is redone with window-chain and with the paper's own Algorithm 2 beside it.

mod curves;
mod figures;
mod rtt;

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use causeway_report::chart::{Chart, Scale, Series};
use serde::Serialize;
use serde_json::Value;

use super::{Context, Scenario, param};
use curves::quantile;

/// One plot with the figures that a table shows.
#[derive(Debug, Serialize)]
pub(super) struct PaperFigure {
    /// Number in the paper, with the part.
    pub number: &'static str,
    pub title: String,
    /// Unit of the values below.
    pub unit: &'static str,
    pub curves: Vec<CurveSummary>,
    #[serde(skip)]
    chart: Chart,
}

/// What a table says of one curve.
#[derive(Debug, Serialize)]
pub(super) struct CurveSummary {
    pub name: String,
    pub p10: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    /// Of a sweep: what was set, and the curve's value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<(f64, f64)>,
}

impl PaperFigure {
    /// A figure whose lines are cumulative distributions.
    fn of_distributions(
        number: &'static str,
        title: &str,
        unit: &'static str,
        x_log: bool,
        lines: Vec<Series>,
    ) -> Self {
        let curves = lines.iter().map(|line| {
            let at = |share| quantile(&line.points, share).unwrap_or(f64::NAN);
            CurveSummary {
                name: line.name.clone(),
                p10: at(0.1),
                p50: at(0.5),
                p90: at(0.9),
                p99: at(0.99),
                points: Vec::new(),
            }
        });
        Self {
            number,
            title: title.to_owned(),
            unit,
            curves: curves.collect(),
            chart: Chart::new(
                format!("{number}: {title}"),
                (if x_log { Scale::Log } else { Scale::Linear }, unit),
                (Scale::Share, "share"),
                lines,
            ),
        }
    }

    /// A figure whose lines are drawn as they are; the table shows their values, in `y`'s unit.
    fn of_lines(
        number: &'static str,
        title: &str,
        x: (Scale, &str),
        y: (Scale, &'static str),
        lines: Vec<Series>,
    ) -> Self {
        let by_value = |line: &Series| {
            let values: Vec<_> = line.points.iter().map(|p| (p.1, 1.0)).collect();
            curves::line(&line.name, &values)
        };
        let distributions = lines.iter().map(by_value).collect();
        let figure = Self::of_distributions(number, title, y.1, false, distributions);
        Self {
            chart: Chart {
                x: (x.0, x.1.to_owned()),
                y: (y.0, y.1.to_owned()),
                series: lines,
                ..figure.chart
            },
            ..figure
        }
    }

    /// A figure of a few runs with one thing changed: the table shows each.
    fn of_sweep(
        number: &'static str,
        title: &str,
        x: (Scale, &str),
        y: (Scale, &'static str),
        lines: Vec<Series>,
    ) -> Self {
        let points: Vec<_> = lines.iter().map(|line| line.points.clone()).collect();
        let mut figure = Self::of_lines(number, title, x, y, lines);
        for (curve, points) in figure.curves.iter_mut().zip(points) {
            curve.points = points;
        }
        figure
    }
}

pub(super) const PAPER: Scenario = Scenario {
    name: "paper",
    about: "the figures of the PIRATE paper but for figure 8, redone as plots and tables",
    params: &[
        param("seconds", "8", "length of each load"),
        param("out", "", "directory for the plots (SVG); empty: none"),
        param("figures", "", "numbers, comma-separated; empty: all"),
    ],
    run,
    table,
};

fn run(context: &Context) -> Result<Value> {
    let figures = figures::all(context)?;
    let out: String = context.param("out")?;
    if !out.is_empty() {
        let out = PathBuf::from(out);
        let failed = || format!("cannot write plots to {}", out.display());
        fs::create_dir_all(&out).with_context(failed)?;
        for figure in &figures {
            let file = format!("figure-{}.svg", figure.number);
            fs::write(out.join(file), figure.chart.file()).with_context(failed)?;
        }
    }
    Ok(serde_json::to_value(figures)?)
}

fn table(result: &Value) -> Option<String> {
    let mut text = String::new();
    for figure in result.as_array()? {
        let word = |name: &str| figure.get(name).and_then(Value::as_str);
        let (number, title, unit) = (word("number")?, word("title")?, word("unit")?);
        writeln!(text, "figure {number}: {title} [{unit}]").ok()?;
        writeln!(
            text,
            "  {:<28} {:>9} {:>9} {:>9} {:>9}",
            "", "p10", "p50", "p90", "p99"
        )
        .ok()?;
        for curve in figure.get("curves")?.as_array()? {
            let at = |name: &str| curve.get(name).and_then(Value::as_f64);
            write!(text, "  {:<28}", curve.get("name")?.as_str()?).ok()?;
            for name in ["p10", "p50", "p90", "p99"] {
                write!(text, " {:>9.3}", at(name).unwrap_or(f64::NAN)).ok()?;
            }
            text.push('\n');
            let points = curve.get("points").and_then(Value::as_array);
            for point in points.into_iter().flatten() {
                let at = |n: usize| point.get(n).and_then(Value::as_f64);
                writeln!(text, "    at {:<8.1} {:>9.3}", at(0)?, at(1)?).ok()?;
            }
        }
    }
    Some(text)
}
