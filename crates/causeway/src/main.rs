// SPDX-License-Identifier: Apache-2.0
//! `causeway`: the one binary. See `causeway --help`.

use std::process::ExitCode;

use causeway_service::log;
use clap::Parser;

mod agent_cmd;
mod capture;
mod cli;
mod client;
mod clients_table;
mod config_cmd;
mod confirm;
mod conns_cmd;
mod cookie_cmd;
mod doctor;
mod drain;
mod examples;
mod explain_cmd;
mod fleet_cmd;
mod generate_cmd;
mod import_cmd;
mod ipvs;
mod lb_cmd;
mod manual;
mod override_cmd;
mod reload_cmd;
mod stats_cmd;
mod status;
mod threshold_cmd;
mod token_cmd;
mod top_cmd;
mod trace_cmd;
mod tunnel_cmd;
mod version_cmd;
mod vip_cmd;
mod words_arg;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => cli::usual(error, std::env::args_os()).exit(),
    };
    log::init(cli.verbose, cli.quiet, cli.log_format);
    match cli.run() {
        Ok(code) => code,
        Err(error) => {
            // One line: what failed, then each cause after a colon.
            log::failure(&format!("causeway: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
