// SPDX-License-Identifier: Apache-2.0
//! `causeway lb`: the balancer daemon.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use causeway_io::{Detached, LoadBalancer, Mode, Started};
use tracing::{info, warn};

use crate::config::{Config, XdpMode};
use crate::daemon::agent_reports::ReportListener;
use crate::daemon::api::Shared;
use crate::daemon::clock::Moment;
use crate::daemon::engine::Engine;
use crate::daemon::kernel::KernelPlane;
use crate::daemon::serve::{self, Listeners, Process};
use crate::daemon::view::Status;

/// Run the balancer
///
/// Loads the data plane or takes over the running one, then serves until SIGTERM or
/// SIGINT; the data plane forwards on without the process. SIGHUP reads the configuration
/// again.
#[derive(Debug, clap::Args)]
pub struct Args {
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
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let process = Process::begin()?;
        let config = match Config::load(&self.config) {
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

fn detach(config: &Config) -> anyhow::Result<()> {
    let detached = LoadBalancer::detach(&config.pin_dir)?;
    println!(
        "{}",
        describe_detached(detached, &config.interface, &config.pin_dir)
    );
    Ok(())
}

/// What a removal did, in one sentence.
pub fn describe_detached(detached: Detached, interface: &str, pin_dir: &Path) -> String {
    let pin_dir = pin_dir.display();
    match (detached.was_attached, detached.pins) {
        (true, pins) => format!("detached from {interface}; {pins} pins removed from {pin_dir}"),
        (false, 0) => format!("nothing was attached: there are no pins in {pin_dir}"),
        (false, pins) => format!("no program was attached; {pins} pins removed from {pin_dir}"),
    }
}

fn run(process: Process, file: PathBuf, config: Config) -> anyhow::Result<()> {
    let listeners = Listeners::bind(&config.socket, config.http)?;
    let (plane, started) = KernelPlane::start(&config)?;
    let reports = config.agent_reports.as_ref();
    let reports = reports.map(|reports| ReportListener::bind(reports.listen));
    let reports = reports.transpose()?;
    // Only an empty balancer has something to learn, and only of agents.
    let learning = match started.took_over || reports.is_none() {
        true => Duration::ZERO,
        false => config.stateful.adopt,
    };
    let places = plane.keep_places(config.stateful.idle, learning)?;
    let status = status(&file, &config, &started);
    let engine = match Engine::start(Box::new(plane), config.clone(), Moment::now()) {
        Ok(engine) => engine,
        Err(error) if started.took_over => return Err(error),
        Err(error) => {
            // Nothing ran before; nothing half-made shall run now.
            LoadBalancer::detach(&config.pin_dir)?;
            return Err(error);
        }
    };
    announce_start(
        &started,
        &config.interface,
        config.xdp_mode,
        &config.summary(),
    );
    listeners.announce();
    if let Some(reports) = reports {
        reports.serve(engine.reports().clone(), places.clone(), learning)?;
    }
    let shared = Arc::new(Shared::new(engine, status, file.clone()).with_places(places));
    serve::serve(process, shared, listeners)?;
    info!(
        "stopped; the data plane goes on forwarding from {}; `causeway lb -c {} --detach` takes it down",
        config.pin_dir.display(),
        file.display()
    );
    Ok(())
}

/// Logs how a data plane came up.
pub fn announce_start(started: &Started, interface: &str, wanted: XdpMode, summary: &str) {
    let what = match started.took_over {
        true => "took over the running data plane of",
        false => "attached to",
    };
    info!(
        "{what} {interface} in {} mode: {summary}",
        mode(started.mode)
    );
    if wanted == XdpMode::Auto && started.mode == Mode::Generic {
        warn!(
            "the driver of {interface} has no native XDP: generic mode works, and costs more per packet"
        );
    }
}

/// The word for how a program runs.
pub fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Native => "native",
        Mode::Generic => "generic",
    }
}

fn status(file: &Path, config: &Config, started: &Started) -> Status {
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        interface: config.interface.clone(),
        mode: mode(started.mode).to_owned(),
        took_over: started.took_over,
        pid: std::process::id(),
        started: Moment::now(),
        interval_ns: config.control.interval_ns,
        config_file: file.display().to_string(),
        last_reload_error: None,
    }
}
