// SPDX-License-Identifier: Apache-2.0
//! `causeway lb`: the balancer daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use causeway_balancer::{BalancerConfig, detach, run};
use causeway_service::process::Process;

/// Run the balancer
///
/// Loads the data plane or takes over the running one, then serves until SIGTERM or
/// SIGINT; the data plane forwards on without the process. SIGHUP reads the configuration
/// again.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Configuration file
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "/etc/causeway/causeway.toml"
    )]
    config: PathBuf,

    /// Take the data plane down instead: packets go to the kernel again
    #[arg(long)]
    detach: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let process = Process::begin()?;
        let config = match BalancerConfig::load(&self.config) {
            Ok(config) => config,
            Err(errors) => {
                eprintln!("{errors}");
                return Ok(ExitCode::FAILURE);
            }
        };
        match self.detach {
            true => detach(&config)?,
            false => run(process, self.config, config)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
