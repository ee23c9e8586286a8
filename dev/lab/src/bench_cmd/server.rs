// SPDX-License-Identifier: Apache-2.0
//! `causeway-lab bench server`: the cost of a server's traffic control programs.

use std::path::PathBuf;

use anyhow::Result;
use causeway_bench::server::{ServerPlan, ServerRow, run};
use causeway_report::table::TextTable;

use super::write_json;

#[derive(Debug, clap::Args)]
pub(super) struct ServerBenchArgs {
    /// Write the rows to FILE, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Numbers of open connections [default: 1,32,10000]
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=20_000))]
    connections: Vec<u32>,
    /// Measure little: to see that it runs, not for figures
    #[arg(long)]
    tiny: bool,
}

impl ServerBenchArgs {
    pub(super) fn run(self) -> Result<()> {
        let mut plan = match self.tiny {
            true => ServerPlan::tiny(),
            false => ServerPlan::full(),
        };
        if !self.connections.is_empty() {
            plan.connections = self.connections;
        }
        let rows = run(&plan)?;
        if let Some(path) = &self.json {
            write_json(path, &rows)?;
        }
        print!("{}", table(&rows).to_text());
        Ok(())
    }
}

fn table(rows: &[ServerRow]) -> TextTable {
    let mut table = TextTable::new(&["Case", ">Connections", ">CPUs", ">Gross ns", ">Net ns"]);
    for row in rows {
        let connections = match row.connections {
            0 => "new".to_owned(),
            connections => connections.to_string(),
        };
        table.push(vec![
            row.case.to_owned(),
            connections,
            row.cpus.to_string(),
            format!("{:.1}", row.gross_ns),
            format!("{:.1}", row.net_ns),
        ]);
    }
    table
}
