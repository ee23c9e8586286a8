// SPDX-License-Identifier: Apache-2.0
//! `causeway agent`: a server's end of ipip forwarding.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use causeway_io::Decapsulator;
use tracing::info;

use crate::agent::{self, Agent, AgentStats};
use crate::client::Target;
use crate::config::AgentConfig;
use crate::daemon::serve::{self, Listeners, Routers};
use crate::lb_cmd::{announce_start, describe_detached};
use crate::output::{Format, Table};
use crate::stats_cmd::{self, View};

/// Arguments of `causeway agent`.
///
/// Without `--detach`: takes the outer header off the balancers' packets, in XDP,
/// until SIGTERM or SIGINT. The data plane works on without the agent.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,

    /// Configuration file
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "/etc/causeway/agent.toml"
    )]
    config: PathBuf,

    /// Take the data plane down instead: tunnel packets go to the kernel again
    #[arg(long)]
    detach: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show what a running agent counts
    Stats {
        /// Unix socket of the agent
        #[arg(
            short,
            long,
            value_name = "PATH",
            default_value = "/run/causeway/agent.sock",
            env = "CAUSEWAY_AGENT_SOCKET"
        )]
        socket: PathBuf,
        #[command(flatten)]
        view: View,
    },
}

impl Args {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(Action::Stats { socket, view }) = self.action {
            return stats(&Target::agent(socket), &view);
        }
        let config = match AgentConfig::load(&self.config) {
            Ok(config) => config,
            Err(errors) => {
                eprintln!("{errors}");
                return Ok(ExitCode::FAILURE);
            }
        };
        match self.detach {
            true => detach(&config)?,
            false => run(self.config, config)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn stats(target: &Target, view: &View) -> anyhow::Result<ExitCode> {
    view.show(|output, all| {
        let stats: AgentStats = target.get("/v1/stats")?;
        Ok(match output {
            Format::Table => [
                stats_cmd::verdicts(&stats.verdicts, all).to_text(),
                cookies(&stats, all),
            ]
            .concat(),
            Format::Json => serde_json::to_string_pretty(&stats)? + "\n",
            Format::Csv => stats_cmd::verdicts(&stats.verdicts, all).to_csv(),
        })
    })
}

/// One row per kind of event; nothing for a server without cookies.
fn cookies(stats: &AgentStats, all: bool) -> String {
    let mut table = Table::new(&["COOKIES", ">SEGMENTS"]);
    for event in &stats.cookies {
        if all || event.segments > 0 {
            table.push(vec![event.event.clone(), event.segments.to_string()]);
        }
    }
    match stats.cookies.is_empty() {
        true => String::new(),
        false => format!("\n{}", table.to_text()),
    }
}

fn detach(config: &AgentConfig) -> anyhow::Result<()> {
    let detached = Decapsulator::detach(&config.pin_dir)?;
    println!(
        "{}",
        describe_detached(detached, &config.interface, &config.pin_dir)
    );
    Ok(())
}

fn run(file: PathBuf, config: AgentConfig) -> anyhow::Result<()> {
    let listeners = Listeners::bind(&config.socket, config.http)?;
    let (agent, started) = Agent::start(config.clone(), file.clone())?;
    announce_start(
        &started,
        &config.interface,
        config.xdp_mode,
        &config.summary(),
    );
    agent::warn_of_missing_vips(&config);
    agent::warn_of_missing_timestamps(&config);
    listeners.announce();
    let agent = Arc::new(agent);
    let router = agent::router(Arc::clone(&agent));
    let routers = Routers {
        unix: router.clone(),
        tcp: router,
    };
    serve::serve_routers(
        routers,
        &listeners,
        || agent.reload(),
        std::future::pending(),
    )?;
    info!(
        "stopped; the data plane goes on decapsulating from {}; `causeway agent -c {} --detach` takes it down",
        config.pin_dir.display(),
        file.display()
    );
    Ok(())
}
