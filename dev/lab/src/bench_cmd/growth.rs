// SPDX-License-Identifier: Apache-2.0
//! `causeway-lab bench growth`: cost against flows, VIPs and reals, as rows and as plots.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use causeway_bench::dataplane::{Grows, GrowthPlan, GrowthRow, growth};
use causeway_report::chart::{Chart, Scale, Series};
use causeway_report::table::TextTable;

use super::write_json;

#[derive(Debug, clap::Args)]
pub(super) struct GrowthArgs {
    /// Write the rows to FILE, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write growth-flows.svg, growth-vips.svg and growth-reals.svg to DIR
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Numbers of flows; by default to ten million
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    flows: Option<Vec<u32>>,
    /// Numbers of VIPs
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=20_000))]
    vips: Option<Vec<u32>>,
    /// Numbers of reals
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=65_000))]
    reals: Option<Vec<u32>>,
    /// Measure little: to see that it runs, not for figures
    #[arg(long)]
    tiny: bool,
}

impl GrowthArgs {
    pub(super) fn run(self) -> Result<()> {
        let plan = match self.tiny {
            true => GrowthPlan::tiny(),
            false => GrowthPlan::full(),
        };
        let plan = GrowthPlan {
            flows: self.flows.unwrap_or(plan.flows),
            vips: self.vips.unwrap_or(plan.vips),
            reals: self.reals.unwrap_or(plan.reals),
            ..plan
        };
        let rows = growth(&plan, |grows, count| {
            eprintln!("measuring with {count} {}", grows.as_str());
        })?;
        if let Some(path) = &self.json {
            write_json(path, &rows)?;
        }
        if let Some(dir) = &self.svg {
            for grows in Grows::ALL {
                let path = dir.join(format!("growth-{}.svg", grows.as_str()));
                draw(&path, &chart(&rows, grows))?;
            }
        }
        print!("{}", table(&rows).to_text());
        Ok(())
    }
}

fn draw(path: &Path, chart: &Chart) -> Result<()> {
    std::fs::write(path, chart.file()).with_context(|| format!("cannot write {}", path.display()))
}

fn table(rows: &[GrowthRow]) -> TextTable {
    let mut table = TextTable::new(&["Grows", ">To", "Case", ">Net ns"]);
    for of in rows {
        table.push(vec![
            of.grows.as_str().to_owned(),
            of.count.to_string(),
            of.row.case.to_owned(),
            format!("{:.1}", of.row.net_ns),
        ]);
    }
    table
}

/// Net cost of each case; the first matters most.
fn chart(rows: &[GrowthRow], grows: Grows) -> Chart {
    let of: Vec<&GrowthRow> = rows.iter().filter(|of| of.grows == grows).collect();
    let mut cases: Vec<&str> = Vec::new();
    for row in &of {
        if !cases.contains(&row.row.case) {
            cases.push(row.row.case);
        }
    }
    let series = cases.iter().rev().map(|case| {
        let own = of.iter().filter(|of| of.row.case == *case);
        Series::new(*case, own.map(|of| (f64::from(of.count), of.row.net_ns)))
    });
    Chart::new(
        format!("Cost of a packet against the number of {}.", grows.as_str()),
        (Scale::Log, grows.as_str()),
        (Scale::FromZero, "ns, net"),
        series.collect(),
    )
}
