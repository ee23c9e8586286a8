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
use causeway_service::config::{self, ConfigErrors, no_api_files};
use causeway_service::memory::give_back_memory;
use causeway_service::privileges::give_up_sys_admin;
use causeway_service::process::{Listeners, Process};
use tracing::{error, info, warn};

use crate::agent_reports::ReportListener;
use crate::config::{BalancerConfig, ConfigReader, FleetConfig, STATE_DIR};
use crate::engine::Engine;
use crate::fleet::{self, Fleet, FleetOrders};
use crate::kernel::KernelPlane;
use crate::peers::PeerSocket;
use crate::shared::Shared;
use crate::state_dir::StateDir;
use crate::{announce, serve, state_dir};

/// A configuration to start with.
pub struct LoadedConfig {
    config: BalancerConfig,
    /// It knows the VIPs of that.
    reader: ConfigReader,
    /// The file's text; `None` if it was refused and its last good copy is here instead.
    text: Result<String, ConfigErrors>,
    /// What it takes away from a fleet, for which it is refused.
    held: Vec<Removal>,
    /// What is wrong with files of `[api]`, which it does without.
    api_errors: Option<ConfigErrors>,
}

impl LoadedConfig {
    fn log_refusal(&self, file: &Path) {
        if let Err(errors) = &self.text {
            error!(
                "{} is refused, and the copy of how it was last in force is used: correct it and reload\n{errors}",
                file.display()
            );
        }
    }
}

#[cfg(test)]
impl LoadedConfig {
    /// How many reals its first VIP has.
    pub(crate) fn reals(&self) -> usize {
        self.config.vips[0].reals.len()
    }

    /// Why the file was refused, if it was.
    pub(crate) fn refused(&self) -> Option<String> {
        self.text.as_ref().err().map(ToString::to_string)
    }

    /// What is wrong with the files of `[api]`, if the rest is in force without them.
    pub(crate) fn api_errors(&self) -> Option<String> {
        self.api_errors.as_ref().map(ToString::to_string)
    }
}

/// Reads the text of a file to start with. Where nothing but files of `[api]` is wrong, it is done
/// without them, as without a port that cannot be had: packets need the daemon, other hosts may wait.
fn read_to_start(
    reader: &mut ConfigReader,
    path: &Path,
    text: &str,
) -> Result<(BalancerConfig, Option<ConfigErrors>), ConfigErrors> {
    let errors = match reader.of_balancer(path, text) {
        Ok(config) => return Ok((config, None)),
        Err(errors) => errors,
    };
    match BalancerConfig::without_api_files(path, text) {
        Ok(config) => Ok((config, Some(errors))),
        Err(_) => Err(errors),
    }
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
                config,
                reader,
                text,
                held,
                api_errors,
            });
        }
        Err(errors) => errors,
    };
    last_good(file, text, held, errors)
}

/// The configuration that is in force, for what looks at a data plane or takes it down: a fault in
/// the file is no reason not to.
pub fn in_force(file: &Path) -> Result<BalancerConfig, ConfigErrors> {
    let loaded = load(file)?;
    loaded.log_refusal(file);
    Ok(loaded.config)
}

/// Whether the file was cut short, or made of an empty template: a reload refuses to lose all
/// VIPs, and so must a start.
fn loses_vips(file: &Path, config: &BalancerConfig) -> bool {
    config.vips.is_empty()
        && !config.allow_empty
        && config.fleet.is_none()
        && state_dir::last_good(&config.state_dir, file).is_some_and(|(path, copy)| {
            let of_copy = BalancerConfig::without_api_files(&path, &copy);
            of_copy.is_ok_and(|of_copy| !of_copy.vips.is_empty())
        })
}

/// The copy of a file that is refused for `errors`; these, if there is none that can be read.
fn last_good(
    file: &Path,
    text: Result<String, ConfigErrors>,
    held: Vec<Removal>,
    errors: ConfigErrors,
) -> Result<LoadedConfig, ConfigErrors> {
    let dir = config::top_level_text(text.as_deref().unwrap_or_default(), "state_dir");
    let dir = dir.unwrap_or_else(|| STATE_DIR.to_owned());
    let Some((path, copy)) = state_dir::last_good(Path::new(&dir), file) else {
        return Err(errors);
    };
    // Held though it is in force: others have changed the book since it was taken.
    let of_copy = copy.split_once('\n').map(|(_, of_file)| of_file);
    let is_in_force = text.as_ref().is_ok_and(|text| of_copy == Some(text));
    let mut reader = ConfigReader::default();
    match read_to_start(&mut reader, &path, &copy) {
        Ok((config, api_errors)) => Ok(LoadedConfig {
            config,
            reader,
            text: if is_in_force { text } else { Err(errors) },
            held: if is_in_force { Vec::new() } else { held },
            api_errors,
        }),
        Err(_) => Err(errors),
    }
}

/// Takes the data plane down: routes first, then program, maps and pins.
pub fn unload(config: &BalancerConfig) -> anyhow::Result<()> {
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
    state_dir::forget_last_good(&config.state_dir).context("the last good copy of the file")?;
    println!("{}", detached.describe(&config.interface, &config.pin_dir));
    Ok(())
}

/// Loads the data plane or takes over the running one, then serves until SIGTERM or SIGINT.
pub fn run(process: Process, file: PathBuf, loaded: LoadedConfig) -> anyhow::Result<()> {
    let is_file = loaded.text.is_ok();
    let (process, error) = match attempt(process, &file, loaded)? {
        Outcome::Stopped => return Ok(()),
        Outcome::Refused(process, error) => (process, error),
    };
    // What a reload would have refused must keep no daemon down, either.
    let refused = ConfigErrors::of_file(&file, format!("{error:#}"));
    let copy = last_good(&file, config::read(&file), Vec::new(), refused).ok();
    let Some(copy) = copy.filter(|copy| is_file && copy.text.is_err()) else {
        return Err(error);
    };
    match attempt(process, &file, copy)? {
        Outcome::Stopped => Ok(()),
        Outcome::Refused(..) => Err(error),
    }
}

/// How an attempt to serve ended.
enum Outcome {
    /// By a signal.
    Stopped,
    /// Before it served: the data plane cannot be what the configuration says.
    Refused(Process, anyhow::Error),
}

fn attempt(process: Process, file: &Path, loaded: LoadedConfig) -> anyhow::Result<Outcome> {
    loaded.log_refusal(file);
    let LoadedConfig {
        config,
        reader,
        text,
        held,
        api_errors,
    } = loaded;
    let api_errors = api_errors.as_ref().map(no_api_files);
    if let Some(told) = &api_errors {
        error!("{told}");
    }
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
        Err(error) => return Ok(Outcome::Refused(process, error)),
    };
    // Only of agents is there something to learn.
    let learning = match reports {
        Some(_) => config.stateful.learn_period,
        None => Duration::ZERO,
    };
    let slots = plane.keep_slots(config.stateful.idle, learning)?;
    let mut status = status(file, &config, &started);
    status.last_good = text.is_err();
    let refused = text.as_ref().err().map(ToString::to_string);
    status.last_reload_error = refused.or_else(|| api_errors.clone());
    let state = StateDir::new(&config.state_dir, &config.pin_dir);
    let kept = state.load();
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
            return Ok(Outcome::Refused(process, error));
        }
    };
    // It was for reading the rings that the kernel has.
    give_up_sys_admin().context("give up CAP_SYS_ADMIN")?;
    let config = engine.config();
    started.log(&config.interface, config.xdp_mode, &config.summary());
    listeners.announce();
    if let Some(reports) = reports {
        reports.serve(engine.reports().clone(), slots.clone())?;
    }
    if let (Some(peers), Some(link)) = (peers, engine.peers().link()) {
        peers.serve(link)?;
    }
    if api_errors.is_some() {
        engine.note_reload(None);
    }
    if text.is_err() {
        engine.note_reload(None);
        engine.set_held(held);
    }
    let (orders, inbox) = fleet.is_some().then(FleetOrders::new).unzip();
    let shared = Shared::new(engine, status, file.to_owned());
    let shared = Arc::new(
        shared
            .with_reader(reader)
            .with_slots(slots)
            .with_state(state)
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
    Ok(Outcome::Stopped)
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
