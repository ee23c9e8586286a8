// SPDX-License-Identifier: Apache-2.0
//! The balancer's process from start to end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use causeway_api::Moment;
use causeway_api::balancer::Status;
use causeway_io::{LoadBalancer, Started};
use causeway_service::process::{Listeners, Process};
use tracing::{info, warn};

use crate::api::Shared;
use crate::config::Config;
use crate::engine::Engine;
use crate::felt::Ear;
use crate::kernel::KernelPlane;
use crate::notices::Notices;
use crate::serve;

/// Takes the data plane down.
pub fn detach(config: &Config) -> anyhow::Result<()> {
    let detached = LoadBalancer::detach(&config.pin_dir)?;
    println!("{}", detached.describe(&config.interface, &config.pin_dir));
    Ok(())
}

/// Loads the data plane or takes over the running one, then serves until SIGTERM or SIGINT.
pub fn run(process: Process, file: PathBuf, config: Config) -> anyhow::Result<()> {
    let listeners = Listeners::bind(&config.socket, config.http)?;
    let (plane, started) = KernelPlane::start(&config)?;
    let ear = config.clients.as_ref();
    let ear = ear.map(|clients| Ear::bind(clients.listen)).transpose()?;
    let notices = config.stateful.listen.map(Notices::bind).transpose()?;
    if notices.is_some() && config.cookies.is_none() {
        warn!(
            "agents are heard by their signature, and there are no keys: name the keys file under [cookie], or places come back by ageing alone"
        );
    }
    // Only an empty balancer has something to learn, and only by notices.
    let adopting = match started.took_over || notices.is_none() {
        true => Duration::ZERO,
        false => config.stateful.adopt,
    };
    let places = plane.keep_places(config.stateful.idle, adopting)?;
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
    if let Some(ear) = ear {
        ear.serve(engine.reports().clone())?;
    }
    if let (Some(notices), Some(places)) = (notices, &places) {
        notices.serve(places.clone(), adopting)?;
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

fn status(file: &Path, config: &Config, started: &Started) -> Status {
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
