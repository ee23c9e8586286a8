// SPDX-License-Identifier: Apache-2.0
//! Figures 3, 5, 6, 7, 9, 10 and 11 of PIRATE on this machine: each workload is
//! recorded as in the accuracy matrix, and every curve of the paper's is redone
//! with window-chain and with the paper's own Algorithm 2 beside it.
//!
//! Figures 1, 2, 4 and 8 are left out: figure 1 is figure 5 (c) again, figure 2
//! shows a made-up distribution, figure 4 classifies errors of PIRATE's, and
//! figure 8 is the load balancer's (`causeway-lab run degrade`).

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

    /// A figure whose lines are drawn as they are; the table shows their values.
    fn of_lines(number: &'static str, title: &str, x_label: &str, lines: Vec<Series>) -> Self {
        let by_value = |line: &Series| {
            let values: Vec<_> = line.points.iter().map(|p| (p.1, 1.0)).collect();
            curves::line(&line.name, &values)
        };
        let distributions = lines.iter().map(by_value).collect();
        let figure = Self::of_distributions(number, title, "ms", false, distributions);
        Self {
            chart: Chart {
                x: (Scale::Linear, x_label.to_owned()),
                y: (Scale::FromZero, "ms".to_owned()),
                series: lines,
                ..figure.chart
            },
            ..figure
        }
    }
}

pub(super) const PAPER: Scenario = Scenario {
    name: "paper",
    about: "figures 3, 5, 6, 7, 9, 10 and 11 of the PIRATE paper, redone as plots and tables",
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
        }
    }
    Some(text)
}
