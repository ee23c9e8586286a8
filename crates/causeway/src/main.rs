// SPDX-License-Identifier: Apache-2.0
//! `causeway`: the one binary. See `causeway --help`.

use std::process::ExitCode;

use clap::Parser;

mod agent;
mod agent_cmd;
mod agent_report;
mod bench;
mod capture;
mod cli;
mod client;
mod clients;
mod config;
mod config_cmd;
mod conns_cmd;
mod cookie_cmd;
mod daemon;
#[cfg(feature = "lab")]
mod demo;
mod examples;
mod explain_cmd;
mod generate_cmd;
#[cfg(feature = "lab")]
mod lab_cmd;
mod lb_cmd;
mod measure;
mod output;
mod report;
mod rtt;
mod sim;
mod stats_cmd;
mod top_cmd;
mod trace_cmd;
mod tunnel;
mod tunnel_cmd;
mod vip_cmd;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    cli::init_log(cli.verbose);
    match cli.run() {
        Ok(code) => code,
        Err(error) => {
            // One line: what failed, then each cause after a colon.
            eprintln!("causeway: {error:#}");
            ExitCode::FAILURE
        }
    }
}
