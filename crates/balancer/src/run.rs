// SPDX-License-Identifier: Apache-2.0
//! The balancer's process from start to end.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use causeway_api::Moment;
use causeway_api::balancer::Status;
use causeway_core::fleet::Removal;
use causeway_dataplane::{LoadBalancer, Started};
use causeway_service::config::{self, ConfigErrors};
use causeway_service::last_good::{
    Attempt, CopyName, LastGood, StartConfig, or_without_api_files, serve_or_by_copy,
};
use causeway_service::memory::give_back_memory;
use causeway_service::privileges::give_up_sys_admin;
use causeway_service::process::{Listeners, Process};
use tracing::{info, warn};

use crate::agent_reports::ReportListener;
use crate::config::{BalancerConfig, ConfigReader, FleetConfig};
use crate::engine::Engine;
use crate::fleet::{self, Fleet, FleetOrders};
use crate::kernel::KernelPlane;
use crate::peers::PeerSocket;
use crate::shared::Shared;
use crate::state_dir::StateDir;
use crate::{announce, serve};

/// Where the copy of a balancer's file is.
const COPY: CopyName = CopyName {
    name: "last-good.toml",
    key: &["state_dir"],
};

/// The copy of a balancer's file in its `state_dir`.
pub(crate) fn copy_of(file: &Path, state_dir: &Path) -> LastGood {
    LastGood::new(COPY, file, state_dir)
}

/// A balancer's configuration to start with.
pub struct LoadedConfig {
    start: StartConfig<BalancerConfig>,
    /// It knows the VIPs of that.
    reader: ConfigReader,
    /// What it takes away from a fleet, for which it is refused.
    held: Vec<Removal>,
}

#[cfg(test)]
impl LoadedConfig {
    /// How many reals its first VIP has.
    pub(crate) fn reals(&self) -> usize {
        self.start.config.vips[0].reals.len()
    }

    /// Why the file was refused, if it was.
    pub(crate) fn refused(&self) -> Option<String> {
        self.start.text.as_ref().err().map(ToString::to_string)
    }

    /// What is wrong with the files of `[api]`, if the rest is in force without them.
    pub(crate) fn api_errors(&self) -> Option<String> {
        self.start.api_errors.as_ref().map(ToString::to_string)
    }
}

fn read_to_start(
    reader: &mut ConfigReader,
    path: &Path,
    text: &str,
) -> Result<(BalancerConfig, Option<ConfigErrors>), ConfigErrors> {
    or_without_api_files(reader.of_balancer(path, text), || {
        BalancerConfig::without_api_files(path, text)
    })
}

/// Reads a file. If it is refused, there may be a copy of how it was last in force: without a
/// daemon no real is probed and no weight follows latency.
pub fn load(file: &Path) -> Result<LoadedConfig, ConfigErrors> {
    let text = config::read(file);
    let mut reader = ConfigReader::default();
    let parsed = text.as_ref().map_err(Clone::clone);
    let parsed = parsed.and_then(|text| read_to_start(&mut reader, file, text));
    let held = parsed.as_ref();
    let held = held.map_or_else(|_| Vec::new(), |(config, _)| fleet::held_at_start(config));
    let errors = match parsed {
        Ok(_) if !held.is_empty() => {
            ConfigErrors::of_file(file, fleet::refusal(&held).to_string())
        }
        Ok((config, _)) if loses_vips(file, &config) => ConfigErrors::of_file(
            file,
            "the file has no [[vip]], and those that were in force would go: if that is meant, set allow_empty = true under [reload]"
                .to_owned(),
        ),
        Ok((config, api_errors)) => {
            return Ok(LoadedConfig {
                start: StartConfig {
                    config,
                    text,
                    api_errors,
                },
                reader,
                held,
            });
        }
        Err(errors) => errors,
    };
    by_copy(file, text, held, errors)
}

/// The configuration that is in force, for what looks at a data plane or takes it down: a fault in
/// the file is no reason not to.
pub fn in_force(file: &Path) -> Result<BalancerConfig, ConfigErrors> {
    let loaded = load(file)?;
    loaded.start.log_refusal(file);
    Ok(loaded.start.config)
}

/// Whether the file was cut short, or made of an empty template: a reload refuses to lose all
/// VIPs, and so must a start.
fn loses_vips(file: &Path, config: &BalancerConfig) -> bool {
    let copy = copy_of(file, &config.state_dir);
    config.vips.is_empty()
        && !config.allow_empty
        && config.fleet.is_none()
        && copy.read().is_some_and(|kept| {
            let of_copy = BalancerConfig::without_api_files(copy.path(), &kept);
            of_copy.is_ok_and(|of_copy| !of_copy.vips.is_empty())
        })
}

/// The copy of a file that is refused for `errors`; these, if there is none that can be read.
fn by_copy(
    file: &Path,
    text: Result<String, ConfigErrors>,
    held: Vec<Removal>,
    errors: ConfigErrors,
) -> Result<LoadedConfig, ConfigErrors> {
    let mut reader = ConfigReader::default();
    let start = StartConfig::of_copy(COPY, file, text, errors, |path, copy| {
        read_to_start(&mut reader, path, copy)
    })?;
    // A file may be in force and held: others have changed the book since it was taken.
    let held = if start.text.is_ok() { Vec::new() } else { held };
    Ok(LoadedConfig {
        start,
        reader,
        held,
    })
}

/// Takes the data plane down: routes first, then program, maps and pins.
pub fn unload(file: &Path, config: &BalancerConfig) -> anyhow::Result<()> {
    if UnixStream::connect(&config.socket).is_ok() {
        bail!(
            "the daemon at {} runs; stop it first",
            config.socket.display()
        );
    }
    if let Some(announce) = &config.announce
        && let Err(error) = announce::withdraw(announce)
    {
        warn!("routers may go on sending packets for the VIPs here: {error:#}");
    }
    let detached = LoadBalancer::detach(&config.pin_dir)?;
    // Nothing is in force any more: a file without VIPs may be meant.
    let copy = copy_of(file, &config.state_dir);
    copy.forget().context("the last good copy of the file")?;
    println!("{}", detached.describe(&config.interface, &config.pin_dir));
    Ok(())
}

/// Loads the data plane or takes over the running one, then serves until SIGTERM or SIGINT.
pub fn run(process: Process, file: PathBuf, loaded: LoadedConfig) -> anyhow::Result<()> {
    let copy = |error| {
        let mut reader = ConfigReader::default();
        let start = StartConfig::instead(COPY, &file, error, |path, copy| {
            read_to_start(&mut reader, path, copy)
        })?;
        Some(LoadedConfig {
            start,
            reader,
            held: Vec::new(),
        })
    };
    let copy = loaded.start.text.is_ok().then_some(copy);
    serve_or_by_copy(process, loaded, copy, |process, loaded| {
        attempt(process, &file, loaded)
    })
}

fn attempt(process: Process, file: &Path, loaded: LoadedConfig) -> anyhow::Result<Attempt> {
    let LoadedConfig {
        start,
        reader,
        held,
    } = loaded;
    start.log_refusal(file);
    start.log_api_errors();
    let refusal = start.refusal();
    let StartConfig { config, text, .. } = start;
    let shown = text.as_ref().ok();
    if let Some(shown) = shown.and_then(|text| BalancerConfig::open_secret(file, text)) {
        warn!("{shown}");
    }
    let fleet = config.fleet.as_ref();
    if let Some(shown) = fleet.and_then(FleetConfig::clear_password) {
        warn!("{shown}");
    }
    let listeners = Listeners::bind(
        (&config.socket, config.socket_group.as_ref()),
        config.http,
        config.api.as_ref(),
    )?;
    // Before anything is attached: what prevents a start leaves nothing behind.
    let reports = config.agent_reports.as_ref();
    let reports = reports.map(|reports| ReportListener::bind(reports.listen));
    let reports = reports.transpose()?;
    let peers = config.peers.as_ref();
    let peers = peers.map(|peers| PeerSocket::bind(peers.listen));
    let peers = peers.transpose()?;
    let (mut plane, started) = match KernelPlane::start(&config) {
        Ok(started) => started,
        Err(error) => return Ok(Attempt::Refused(process, error)),
    };
    // Only of agents is there something to learn.
    let learning = match reports {
        Some(_) => config.stateful.learn_period,
        None => Duration::ZERO,
    };
    let slots = plane.take_slots(learning)?;
    let mut status = status(file, &config, &started);
    status.last_good = text.is_err();
    status.last_reload_error.clone_from(&refusal);
    let state = StateDir::new(&config.state_dir, &config.pin_dir);
    let kept = state.load();
    let copy = copy_of(file, &config.state_dir);
    let fleet = config.fleet.as_ref();
    let fleet = fleet.map(|fleet| Fleet::open(&config, fleet, &kept.by_hand));
    let (fleet, membership) = fleet.transpose()?.unzip();
    let plane = Box::new(plane);
    let pin_dir = config.pin_dir.clone();
    let engine = Engine::succeed(plane, config, kept, membership, Moment::now());
    let mut engine = match engine {
        Ok(engine) => engine,
        Err(error) => {
            // If nothing ran before, nothing half-made must run now.
            if !started.took_over {
                LoadBalancer::detach(&pin_dir)?;
            }
            return Ok(Attempt::Refused(process, error));
        }
    };
    // It was for reading the rings that the kernel has.
    give_up_sys_admin().context("give up CAP_SYS_ADMIN")?;
    let config = engine.config();
    // Not before: what is refused is followed by another attempt, which has slots of its own.
    if let Some(slots) = &slots {
        slots.begin(config.stateful.idle)?;
    }
    started.log(&config.interface, config.xdp_mode, &config.summary());
    listeners.announce();
    if let Some(reports) = reports {
        reports.serve(engine.reports().clone(), slots.clone())?;
    }
    if let (Some(peers), Some(link)) = (peers, engine.peers().link()) {
        peers.serve(link)?;
    }
    if refusal.is_some() {
        engine.note_reload(None);
    }
    if text.is_err() {
        engine.set_held(held);
    }
    let (orders, inbox) = fleet.is_some().then(FleetOrders::new).unzip();
    let shared = Shared::new(engine, status, file.to_owned());
    let shared = Arc::new(
        shared
            .with_reader(reader)
            .with_slots(slots)
            .with_state(state, copy)
            .with_doors(listeners.doors())
            .with_fleet(orders),
    );
    if let Ok(text) = text {
        shared.keep_config(&text);
    }
    give_back_memory();
    serve::serve(process, shared, listeners, fleet.zip(inbox))?;
    info!(
        "stopped; the data plane goes on forwarding from {}; `causeway lb unload -c {} --yes` takes it down",
        pin_dir.display(),
        file.display()
    );
    Ok(Attempt::Stopped)
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
        last_good: false,
        unfinished: None,
        state_error: None,
        data_plane_error: None,
        held_vips: Vec::new(),
    }
}
