// SPDX-License-Identifier: Apache-2.0
//! The agent's process from start to end.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, bail};
use causeway_dataplane::Decapsulator;
use causeway_service::http::reading_only;
use causeway_service::last_good::{Attempt, StartConfig, StartsByCopy as _};
use causeway_service::process::{Listeners, Process, Routers, Work, serve_routers};
use tracing::info;

use crate::agent::{self, Agent};
use crate::clients::Clients;
use crate::{AgentConfig, report};

/// Takes the data plane down.
pub fn unload(file: &Path, config: &AgentConfig) -> anyhow::Result<()> {
    if UnixStream::connect(&config.socket).is_ok() {
        bail!(
            "the agent at {} runs; stop it first",
            config.socket.display()
        );
    }
    let counting = Clients::detach(&config.pin_dir)?;
    let decapsulation = Decapsulator::detach(&config.pin_dir)?;
    let detached = match config.decapsulates() {
        true => decapsulation,
        false => counting,
    };
    // Nothing is in force any more.
    let copy = config.copy_of(file);
    copy.forget().context("the last good copy of the file")?;
    println!("{}", detached.describe(&config.interface, &config.pin_dir));
    Ok(())
}

/// Serves until SIGTERM or SIGINT; the data plane works on without the process.
pub fn run(process: Process, file: PathBuf, start: StartConfig<AgentConfig>) -> anyhow::Result<()> {
    AgentConfig::serve(process, &file, start, attempt)
}

fn attempt(
    process: Process,
    file: &Path,
    start: StartConfig<AgentConfig>,
) -> anyhow::Result<Attempt> {
    let config = start.config.clone();
    let listeners = Listeners::bind(
        (&config.socket, config.socket_group.as_ref()),
        config.http,
        config.api.as_ref(),
    )?;
    let (agent, started) = match Agent::start(start, file.to_owned(), listeners.doors()) {
        Ok(started) => started,
        Err(error) => return Ok(Attempt::Refused(process, error)),
    };
    match &started {
        Some(started) => started.log(&config.interface, config.xdp_mode, &config.summary()),
        None => info!("measures clients; nothing is attached to XDP"),
    }
    agent::warn_of_missing_vips(&config);
    agent::warn_of_missing_timestamps(&config);
    agent::warn_of_balancers_keys(&config);
    listeners.announce();
    let agent = Arc::new(agent);
    report::start(Arc::clone(&agent))?;
    let router = agent::router(Arc::clone(&agent));
    let routers = Routers {
        tcp: reading_only(router.clone(), listeners.socket()),
        unix: router,
        rules: agent::RULES,
    };
    let stopped = AtomicBool::new(false);
    let reloaded = Arc::clone(&agent);
    std::thread::scope(|scope| {
        let measuring = scope.spawn(|| agent.measure(&stopped));
        let keeping = scope.spawn(|| agent.keep_attached(&stopped));
        let work = Work {
            reload: move || reloaded.reload(),
            works: || !agent.measures_clients() || !measuring.is_finished(),
            failed: std::future::pending(),
        };
        let served = serve_routers(process, routers, &listeners, work);
        stopped.store(true, Ordering::Relaxed);
        measuring.thread().unpark();
        keeping.thread().unpark();
        served
    })?;
    info!(
        "stopped; the data plane goes on {} from {}; `causeway agent unload -c {} --yes` takes it down",
        if started.is_some() {
            "decapsulating"
        } else {
            "counting"
        },
        config.pin_dir.display(),
        file.display()
    );
    Ok(Attempt::Stopped)
}
