// SPDX-License-Identifier: Apache-2.0
//! `causeway override`: settings made by hand that override the file.

use std::process::ExitCode;

use anyhow::ensure;
use causeway_api::balancer::Override;
use causeway_report::table::{OutputFormat, TextTable};
use causeway_service::exchange::segment;
use clap::{ArgGroup, Subcommand};
use serde_json::json;

use crate::client::Target;
use crate::vip_cmd::print;

/// Arguments of `causeway override`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the drains, maintenances and weights that differ from the file
    List {
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Drop settings made by hand, so that the file's hold again
    #[command(group = ArgGroup::new("where").args(["vip", "all"]).required(true))]
    Drop {
        /// Name of a VIP, or address:port
        vip: Option<String>,
        /// Address of one of its servers; without it, all of them
        real: Option<String>,
        /// Of all VIPs
        #[arg(long)]
        all: bool,
    },
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::List { output } => {
                let overrides: Vec<Override> = self.target.get("/v1/overrides")?;
                match (output, overrides.is_empty()) {
                    (OutputFormat::Table, true) => println!("nothing is set by hand"),
                    _ => print(output, &json!(overrides), &table(&overrides))?,
                }
            }
            Action::Drop { vip, real, all: _ } => {
                let given = [("vip", vip), ("real", real)];
                let given = given.iter().filter_map(|(key, value)| {
                    let value = segment(value.as_deref()?);
                    Some(format!("{key}={value}"))
                });
                let query: Vec<String> = given.collect();
                let path = format!("/v1/overrides?{}", query.join("&"));
                let dropped: Vec<Override> = self.target.delete_for(&path)?;
                ensure!(!dropped.is_empty(), "nothing there is set by hand");
                for one in dropped {
                    println!(
                        "{} {}: {} is {} again",
                        one.vip, one.real, one.key, one.file
                    );
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn table(overrides: &[Override]) -> TextTable {
    let mut table = TextTable::new(&["VIP", "REAL", "KEY", "BY HAND", "FILE"]);
    for one in overrides {
        table.push(vec![
            one.vip.clone(),
            one.real.clone(),
            one.key.clone(),
            one.value.to_string(),
            one.file.to_string(),
        ]);
    }
    table
}
