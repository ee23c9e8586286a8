// SPDX-License-Identifier: Apache-2.0
//! The balancer's process from start to end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use causeway_api::Moment;
use causeway_api::balancer::Status;
use causeway_dataplane::{LoadBalancer, Started};
use causeway_service::process::{Listeners, Process};
use tracing::info;

use crate::agent_reports::ReportListener;
use crate::api::Shared;
use crate::config::BalancerConfig;
use crate::engine::Engine;
use crate::kernel::KernelPlane;
use crate::serve;

/// Takes the data plane down.
pub fn detach(config: &BalancerConfig) -> anyhow::Result<()> {
    let detached = LoadBalancer::detach(&config.pin_dir)?;
    println!("{}", detached.describe(&config.interface, &config.pin_dir));
    Ok(())
}

/// Loads the data plane or takes over the running one, then serves until SIGTERM or SIGINT.
pub fn run(process: Process, file: PathBuf, config: BalancerConfig) -> anyhow::Result<()> {
    let listeners = Listeners::bind(&config.socket, config.http)?;
    let (plane, started) = KernelPlane::start(&config)?;
    let reports = config.agent_reports.as_ref();
    let reports = reports.map(|reports| ReportListener::bind(reports.listen));
    let reports = reports.transpose()?;
    // Only an empty balancer has something to learn, and only of agents.
    let learning = match started.took_over || reports.is_none() {
        true => Duration::ZERO,
        false => config.stateful.learn_period,
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
    started.log(&config.interface, config.xdp_mode, &config.summary());
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

fn status(file: &Path, config: &BalancerConfig, started: &Started) -> Status {
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        interface: config.interface.clone(),
        mode: started.mode.to_string(),
        took_over: started.took_over,
        pid: std::process::id(),
        started: Moment::now(),
        interval_ns: config.control.interval_ns,
        config_file: file.display().to_string(),
        last_reload_error: None,
    }
}
