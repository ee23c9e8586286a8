// SPDX-License-Identifier: Apache-2.0
//! `causeway-lab bench`: the data plane's own cost. For developers, hence hidden.

mod control;
mod growth;
mod server;

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use causeway_bench::dataplane::{BenchPlan, Row, run};
use causeway_report::table::TextTable;
use clap::Subcommand;
use serde::Serialize;

/// Arguments of `causeway-lab bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Time of one packet in the balancer, and in programs that do less; needs root
    Dataplane(DataplaneArgs),
    /// Time of one packet against flows, VIPs and reals; needs root
    Growth(growth::GrowthArgs),
    /// Time of one segment in a server's programs; needs root
    Server(server::ServerBenchArgs),
    /// CPU time of the latency controller and what it writes, on real maps; needs root
    Control(control::ControlBenchArgs),
}

#[derive(Debug, clap::Args)]
struct DataplaneArgs {
    /// Write the rows to FILE, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Numbers of flows [default: 1,10000,1000000]
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    flows: Vec<u32>,
    /// Measure little: to see that it runs, not for figures
    #[arg(long)]
    tiny: bool,
}

impl BenchArgs {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.command {
            BenchCommand::Dataplane(args) => args.run()?,
            BenchCommand::Growth(args) => args.run()?,
            BenchCommand::Server(args) => args.run()?,
            BenchCommand::Control(args) => args.run()?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl DataplaneArgs {
    fn run(self) -> Result<()> {
        let mut plan = match self.tiny {
            true => BenchPlan::tiny(),
            false => BenchPlan::full(),
        };
        if !self.flows.is_empty() {
            plan.flows = self.flows;
        }
        let rows = run(&plan, |flows| eprintln!("measuring with {flows} flows"))?;
        if let Some(path) = &self.json {
            write_json(path, &rows)?;
        }
        print!("{}", table(&rows).to_text());
        Ok(())
    }
}

fn write_json(path: &Path, rows: &[impl Serialize]) -> Result<()> {
    let write = || -> Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        serde_json::to_writer_pretty(&mut file, rows)?;
        writeln!(file)?;
        Ok(file.flush()?)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Net also as a multiple of `min`, the least that a stateful balancer does.
fn table(rows: &[Row]) -> TextTable {
    let mut table = TextTable::new(&[
        "Case",
        ">Flows",
        ">Gross ns",
        ">Net ns",
        ">x min",
        ">Measured 1 in",
        "Verdict",
    ]);
    for row in rows {
        let min_ns = rows
            .iter()
            .find(|min| min.case == "min" && min.flows == row.flows)
            .map(|min| min.net_ns);
        let ratio = min_ns
            .filter(|min_ns| *min_ns > 0.0)
            .map(|min_ns| format!("{:.2}", row.net_ns / min_ns));
        table.push(vec![
            row.case.to_owned(),
            row.flows.to_string(),
            format!("{:.1}", row.gross_ns),
            format!("{:.1}", row.net_ns),
            ratio.unwrap_or_default(),
            row.one_in.to_string(),
            row.verdict.to_owned(),
        ]);
    }
    table
}
