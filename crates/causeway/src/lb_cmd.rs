// SPDX-License-Identifier: Apache-2.0
//! `causeway lb`: the balancer daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use causeway_balancer::{in_force, load, run, unload};
use causeway_service::config::ConfigErrors;
use causeway_service::log;
use causeway_service::process::Process;
use clap::Subcommand;

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
        global = true,
        value_name = "FILE",
        default_value = "/etc/causeway/causeway.toml"
    )]
    config: PathBuf,

    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Take the VIPs down: withdraw their routes, and remove program, flow table and pins
    ///
    /// After the daemon was stopped. Packets go to the kernel from then on, and connections are
    /// forgotten. A stop, a restart or an upgrade needs none of that.
    Unload {
        /// Confirm that VIPs are no longer to be served here
        #[arg(long)]
        yes: bool,
    },
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let Some(Action::Unload { yes }) = self.action else {
            let process = Process::begin()?;
            return match load(&self.config) {
                Ok(loaded) => run(process, self.config, loaded).map(|()| ExitCode::SUCCESS),
                Err(errors) => Ok(refused(&errors)),
            };
        };
        match in_force(&self.config) {
            Ok(config) if yes => unload(&self.config, &config).map(|()| ExitCode::SUCCESS),
            Ok(config) => bail!(
                "this takes {} down; say --yes if that is meant",
                config.summary()
            ),
            Err(errors) => Ok(refused(&errors)),
        }
    }
}

fn refused(errors: &ConfigErrors) -> ExitCode {
    log::failure(&errors.to_string());
    ExitCode::FAILURE
}
