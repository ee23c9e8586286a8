// SPDX-License-Identifier: Apache-2.0
//! `causeway reload`: has a running daemon read its file again, and prints the outcome.

use std::process::ExitCode;

use causeway_report::table::{OutputFormat, TextTable};
use serde_json::json;

use crate::client::Target;
use crate::vip_cmd::print;

/// Arguments of `causeway reload`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

impl Args {
    /// Runs the command; a file that is refused gives exit code 1.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        run(&self.target, self.output)
    }
}

/// Has the daemon at `target` read its file again.
pub(crate) fn run(target: &Target, output: OutputFormat) -> anyhow::Result<ExitCode> {
    let summary = target.reload()?;
    let mut table = TextTable::new(&["reloaded"]);
    table.push(vec![summary.clone()]);
    match output {
        OutputFormat::Table => println!("reloaded: {summary}"),
        output => print(output, &json!({ "reloaded": summary }), &table)?,
    }
    Ok(ExitCode::SUCCESS)
}
