// SPDX-License-Identifier: Apache-2.0
//! What the parts of a running daemon share: the engine behind its lock, the file that it runs
//! with, and what is kept for the next daemon.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use causeway_api::Moment;
use causeway_api::balancer::{Difference, Status};
use causeway_api::fleet::{FleetPush, FleetPushed, FleetRollback};
use causeway_service::config::{ConfigErrors, plural};
use causeway_service::last_good::LastGood;
use causeway_service::log_fault;
use causeway_service::memory::give_back_memory;
use causeway_service::process::Doors;
use tokio::task::JoinError;

use super::engine::{Engine, EngineError};
use super::fleet::{FleetOrder, FleetOrders, HasEngine, no_fleet};
use super::next_hop::{GATEWAY_TIMEOUT, Way};
use super::plane::Route;
use super::slots::ConnectionSlots;
use super::state_dir::{KeptState, StateDir};
use crate::config::{BalancerConfig, ConfigReader};

/// What the API and the control loop share.
pub(crate) struct Shared {
    engine: Mutex<Engine>,
    status: Mutex<Status>,
    config_file: PathBuf,
    reader: Mutex<ConfigReader>,
    slots: Option<ConnectionSlots>,
    /// Of other hosts, if they are served.
    doors: Option<Doors>,
    /// To the member of a fleet, if this balancer is one.
    fleet: Option<FleetOrders>,
    /// Of one reload at a time.
    reloading: Mutex<()>,
    kept: Mutex<Keeping>,
    /// Why the state cannot be kept. Apart from it: a disk may be slow.
    keep_error: Mutex<Option<String>>,
}

/// What is kept for the next daemon, and where.
#[derive(Default)]
struct Keeping {
    dir: Option<StateDir>,
    copy: Option<LastGood>,
    saved: Option<KeptState>,
    /// The text of a file in force whose copy could not be written.
    unsaved_config: Option<String>,
}

impl Shared {
    /// The state of a daemon that was started with `config_file`.
    pub(crate) fn new(engine: Engine, status: Status, config_file: PathBuf) -> Self {
        Self {
            engine: Mutex::new(engine),
            status: Mutex::new(status),
            config_file,
            reader: Mutex::default(),
            slots: None,
            doors: None,
            fleet: None,
            reloading: Mutex::default(),
            kept: Mutex::default(),
            keep_error: Mutex::default(),
        }
    }

    /// With what has read the file.
    pub(crate) fn with_reader(self, reader: ConfigReader) -> Self {
        Self {
            reader: Mutex::new(reader),
            ..self
        }
    }

    /// With a directory for what is to outlive the daemon, and the copy of its file.
    pub(crate) fn with_state(self, dir: StateDir, copy: LastGood) -> Self {
        let kept = Keeping {
            dir: Some(dir),
            copy: Some(copy),
            ..Keeping::default()
        };
        Self {
            kept: Mutex::new(kept),
            ..self
        }
    }

    /// Writes down what is to outlive the daemon, if it has changed. A failure to write is logged;
    /// the daemon goes on.
    pub(crate) fn keep(&self) {
        let mut keeping = self.keeping();
        let kept = self.engine().kept();
        let Some(dir) = &keeping.dir else {
            return;
        };
        if keeping.saved.as_ref() == Some(&kept) && self.state_error().is_none() {
            return;
        }
        let error = dir.save(&kept).err();
        let config = keeping.copy.as_ref().zip(keeping.unsaved_config.as_ref());
        let config_error = config.and_then(|(copy, text)| copy.save(text).err());
        if config_error.is_none() {
            keeping.unsaved_config = None;
        }
        keeping.saved = error.is_none().then_some(kept);
        self.note_kept(error.or(config_error));
    }

    /// Keeps the text of the file that has been taken into force.
    pub(crate) fn keep_config(&self, text: &str) {
        let mut keeping = self.keeping();
        let Some(copy) = &keeping.copy else {
            return;
        };
        let error = copy.save(text).err();
        keeping.unsaved_config = error.is_some().then(|| text.to_owned());
        if error.is_some() {
            self.note_kept(error);
        }
    }

    /// Why the state cannot be kept, if so.
    pub(crate) fn state_error(&self) -> Option<String> {
        self.keep_error().clone()
    }

    fn keep_error(&self) -> MutexGuard<'_, Option<String>> {
        self.keep_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn note_kept(&self, error: Option<String>) {
        log_fault!(
            *self.keep_error(),
            error,
            "what is set by hand, health and the last good configuration would not outlive the daemon: {}",
            "the state is kept again"
        );
    }

    fn keeping(&self) -> MutexGuard<'_, Keeping> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With the slots of stateful VIPs' connections.
    pub(crate) fn with_slots(self, slots: Option<ConnectionSlots>) -> Self {
        Self { slots, ..self }
    }

    /// The slots of stateful VIPs' connections, if there are any.
    pub(crate) fn slots(&self) -> Option<ConnectionSlots> {
        self.slots.clone()
    }

    /// With who may use the sockets, which a reload renews.
    pub(crate) fn with_doors(self, doors: Doors) -> Self {
        Self {
            doors: Some(doors),
            ..self
        }
    }

    /// With what gives orders to the member of a fleet.
    pub(crate) fn with_fleet(self, fleet: Option<FleetOrders>) -> Self {
        Self { fleet, ..self }
    }

    /// Gives an order to the member of a fleet, and waits for its answer.
    pub(crate) fn order(&self, order: FleetOrder) -> Result<String, EngineError> {
        let fleet = self.fleet.as_ref().ok_or_else(no_fleet)?;
        fleet.give(order)
    }

    /// The engine. A thread that panicked while it held the lock left at worst
    /// an interval half done; forwarding and serving go on.
    pub(crate) fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what waits for the engine, a gateway or a disk on another thread than the runtime's
    /// two, which requests and the probes that are out need. It fails if `work` panics.
    pub(crate) async fn aside<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Self>) -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let shared = Arc::clone(self);
        tokio::task::spawn_blocking(move || work(&shared)).await
    }

    /// Reads the configuration file again. A bad one changes nothing, and the
    /// status says so until a good one comes.
    pub(crate) fn reload(&self) -> Result<String, EngineError> {
        self.reload_with(|| self.read_file(), Engine::reload)
    }

    fn reload_with(
        &self,
        read: impl FnOnce() -> Result<(String, BalancerConfig), EngineError>,
        take: impl FnOnce(&mut Engine, BalancerConfig) -> Result<(), EngineError>,
    ) -> Result<String, EngineError> {
        let _one = self
            .reloading
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let outcome = read().and_then(|file| self.take_file(file, take));
        let outcome = outcome.map_err(|error| {
            let doors = self.doors.as_ref();
            match doors.and_then(Doors::renew_files) {
                Some(renewed) => error.with_note(renewed),
                None => error,
            }
        });
        let taken_ns = outcome.is_ok().then(|| Moment::now().realtime_ns);
        self.engine().note_reload(taken_ns);
        let mut status = self.status();
        status.last_reload_error = outcome.as_ref().err().map(ToString::to_string);
        status.last_good &= outcome.is_err();
        outcome
    }

    /// Says what a reload of a file with this text would say, and changes nothing.
    pub(crate) fn check(&self, text: &str) -> Result<String, EngineError> {
        let config = self.parse(text)?;
        self.engine().check_reload(&config)?;
        Ok(config.summary())
    }

    /// Says what a reload of a file with this text would change, and changes nothing.
    pub(crate) fn diff(&self, text: &str) -> Result<Difference, EngineError> {
        let config = self.parse(text)?;
        Ok(self.engine().difference(&config))
    }

    /// Has the fleet have what the file has, by a reload: or says what that would change.
    pub(crate) fn push(&self, order: FleetPush) -> Result<FleetPushed, EngineError> {
        let file = self.read_file()?;
        let preview = self.engine().preview_push(&file.1)?;
        if order.dry_run {
            return Ok(preview);
        }
        confirm(&preview, order.confirmed, "push")?;
        self.engine().reaches_fleet()?;
        // What is written meanwhile has not been shown, and waits for another reload.
        self.reload_with(|| Ok(file), Engine::reload_confirmed)?;
        let done = self.order(FleetOrder::Push(order))?;
        Ok(FleetPushed {
            done: Some(done),
            ..preview
        })
    }

    /// Has the fleet have what it had at a revision, or says what that would change.
    pub(crate) fn rollback(&self, order: FleetRollback) -> Result<FleetPushed, EngineError> {
        // It may be given twice before it is carried out once.
        let order = self.engine().numbered(order)?;
        let preview = self.engine().preview_rollback(&order)?;
        if order.dry_run {
            return Ok(preview);
        }
        confirm(&preview, order.confirmed, "rollback")?;
        let done = self.order(FleetOrder::Rollback(order))?;
        Ok(FleetPushed {
            done: Some(done),
            ..preview
        })
    }

    fn read_file(&self) -> Result<(String, BalancerConfig), EngineError> {
        let text = causeway_service::config::read(&self.config_file).map_err(refused)?;
        let config = self.parse(&text)?;
        Ok((text, config))
    }

    fn parse(&self, text: &str) -> Result<BalancerConfig, EngineError> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        reader.of_balancer(&self.config_file, text).map_err(refused)
    }

    fn take_file(
        &self,
        (text, config): (String, BalancerConfig),
        take: impl FnOnce(&mut Engine, BalancerConfig) -> Result<(), EngineError>,
    ) -> Result<String, EngineError> {
        let mut summary = config.summary();
        self.find_way(|| config.encapsulated_reals(), |_| Route::of(&config))?;
        let (api, group) = (config.api.clone(), config.socket_group.clone());
        let by_hand = {
            let mut engine = self.engine();
            take(&mut engine, config)?;
            engine.overrides().len()
        };
        if let Some(doors) = &self.doors {
            doors.renew(group.as_ref(), api.as_ref());
        }
        self.keep_config(&text);
        self.keep();
        drop(text);
        give_back_memory();
        if by_hand > 0 {
            summary += &format!(
                "; {} set by hand in the place of the file's (`causeway override list`)",
                plural(by_hand, "value")
            );
        }
        Ok(summary)
    }

    /// Looks up the next hop that a change will want, before the engine is held: a
    /// gateway may take seconds to answer.
    pub(crate) fn find_way(
        &self,
        reals: impl FnOnce() -> Vec<IpAddr>,
        wanted: impl FnOnce(&BalancerConfig) -> Route,
    ) -> Result<(), EngineError> {
        let (route, resolver) = {
            let engine = self.engine();
            let route = wanted(engine.config());
            if engine.next_hops().has_way(&route) {
                return Ok(());
            }
            (route, engine.plane().resolver())
        };
        let found = resolver.look(&route, &reals(), GATEWAY_TIMEOUT)?;
        let next_hop = found.answering()?;
        self.engine().offer(Way { route, next_hop });
        Ok(())
    }

    pub(crate) fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HasEngine for Shared {
    fn engine(&self) -> MutexGuard<'_, Engine> {
        Self::engine(self)
    }
}

fn refused(errors: ConfigErrors) -> EngineError {
    EngineError::Invalid(errors.to_string())
}

/// Refuses what has to be confirmed, and is not.
fn confirm(preview: &FleetPushed, confirmed: bool, command: &str) -> Result<(), EngineError> {
    if confirmed || preview.held.is_empty() {
        return Ok(());
    }
    let held: Vec<String> = preview.held.iter().map(ToString::to_string).collect();
    Err(EngineError::Conflict(format!(
        "{}; `causeway fleet {command} --yes` confirms it",
        held.join("; ")
    )))
}
