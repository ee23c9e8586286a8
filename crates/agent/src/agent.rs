// SPDX-License-Identifier: Apache-2.0
//! The agent on a server: owns the decapsulation and shows what it counts.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::Response;
use axum::{Extension, Json, Router};
use causeway_api::agent::{
    AgentStats, AgentStatus, ClientEvents, ClientsView, CookieEventView, LoadView, NewThreshold,
    ThresholdView,
};
use causeway_api::{Moment, VerdictView};
use causeway_core::agent_report::{AgentFollows, AgentOrders, ServerLoad, ServiceLatency};
use causeway_dataplane::{
    ConnTokens, CookieHooks, Decapsulator, DecapsulatorOptions, Protocol, Repairs, Started, Vip,
};
use causeway_service::config;
use causeway_service::http::{
    blocking, described, description, no_route, parse_json, problem, with_description,
};
use causeway_service::last_good::{CopyKeeper, StartConfig, StartsByCopy as _};
use causeway_service::log_fault;
use causeway_service::privileges::give_up_sys_admin;
use causeway_service::process::{DaemonEnd, Doors};
use causeway_service::tokens::Rules;
use serde::Deserialize;
use tracing::{info, warn};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::book::FollowedBook;
use crate::clients::{Clients, EventLog, LISTENERS_MAX, LatencySlot, ThresholdRefused};
use crate::config::{AgentConfig, AgentReportConfig};
use crate::metrics;

/// Between two looks at what keeps the data plane in the kernel.
const MEND_EVERY: Duration = Duration::from_secs(2);
/// How long a request may wait for events: a connection that is to end leaves it 15 s.
const WAIT_MAX_S: u64 = 10;
/// Where thresholds are set.
const THRESHOLDS: &str = "/v1/clients/thresholds";

/// What is reported, to whom, and of what.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportPlan {
    /// As the file has it.
    pub report: AgentReportConfig,
    /// This server as balancers know it.
    pub servers: Vec<IpAddr>,
    /// Addresses whose connections count.
    pub vips: BTreeSet<IpAddr>,
}

/// What an agent goes by.
struct Running {
    /// As the file has it.
    file: AgentConfig,
    /// What was received of the fleet's book.
    book: FollowedBook,
    /// The last of it that QUIC programs have, too: what balancers are told.
    acknowledged: FollowedBook,
    /// The file as the book has it.
    config: AgentConfig,
    /// What becomes of what the data plane has besides.
    rest: Rest,
}

/// What becomes of what a data plane has that its agent does not know of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    Removed,
    /// It was right when it was taken over, and what it was by is lost.
    Kept,
}

/// Of a data plane that was taken over without what was kept of the book.
const UNHEARD: &str = "nothing is known of the fleet's book, so the data plane serves on by what it was told before; a balancer of `[agent.report] to` that can be reached sends the book";

impl Rest {
    fn of(took_over: bool, file: &AgentConfig, book: &FollowedBook) -> Self {
        match took_over && file.follows_book() && !book.is_known(&file.addresses) {
            true => Self::Kept,
            false => Self::Removed,
        }
    }
}

/// A running agent.
pub struct Agent {
    /// `None` where clients alone are measured.
    decapsulator: Option<Decapsulator>,
    clients: Option<Mutex<Clients>>,
    /// What thresholds have told.
    events: Arc<EventLog>,
    running: Mutex<Running>,
    /// Held while the file is read again.
    reloading: Mutex<()>,
    /// Held while QUIC programs are given their ids: no other thread waits for that disk.
    giving: Mutex<()>,
    status: Mutex<AgentStatus>,
    load: Mutex<ServerLoad>,
    latencies: LatencySlot,
    file: PathBuf,
    copy: CopyKeeper,
    /// Of other hosts, if they are served.
    doors: Doors,
}

impl Agent {
    /// Attaches the data plane, or takes over the running one, and sets what
    /// `start` says. `file` is where the configuration was read; a reload renews `doors`.
    pub fn start(
        start: StartConfig<AgentConfig>,
        file: PathBuf,
        doors: Doors,
    ) -> anyhow::Result<(Self, Option<Started>)> {
        let last_reload_error = start.refusal();
        let StartConfig {
            config: from, text, ..
        } = start;
        let copy = CopyKeeper::new(from.copy_of(&file));
        let book = match from.follows_book() {
            true => FollowedBook::load(&from.state_dir).unwrap_or_else(|fault| {
                warn!(
                    "what was received of the fleet's book is lost until a balancer sends it again: {fault}"
                );
                FollowedBook::default()
            }),
            false => FollowedBook::default(),
        };
        let config = book.over(&from);
        let options = DecapsulatorOptions {
            interface: config.interface.clone(),
            pin_dir: config.pin_dir.clone(),
            xdp_mode: config.xdp_mode,
            gue_port: config.gue_port,
            cookies: config.cookies.as_ref().map(|cookies| CookieHooks {
                cgroup: cookies.cgroup.clone(),
            }),
            token_sources: config.token_sources(),
            inner_mtu: config.inner_mtu(),
        };
        let started = config
            .decapsulates()
            .then(|| Decapsulator::start(&options))
            .transpose()?;
        // It was for reading maps of another layout.
        give_up_sys_admin().context("give up CAP_SYS_ADMIN")?;
        let took_over = started.as_ref().is_some_and(|(_, of)| of.took_over);
        let rest = Rest::of(took_over, &from, &book);
        if rest == Rest::Kept {
            warn!("{UNHEARD}");
        }
        if let Some((decapsulator, _)) = &started {
            if config.cookies.is_some() && !decapsulator.sees_opening() {
                warn!(
                    "this machine has no control group of version 2: connections get their clock at the first segment that the server sends, not when they open"
                );
            }
            if let Err(error) = apply(decapsulator, &config, rest) {
                // If nothing ran before, nothing half-made must run now.
                if !took_over {
                    Decapsulator::detach(&config.pin_dir)?;
                }
                return Err(error.into());
            }
        }
        let (decapsulator, started) = started.unzip();
        let latencies = LatencySlot::default();
        let reported = config.report.as_ref();
        let reported = reported.is_some_and(|report| report.client_latency);
        let clients = config.clients.as_ref();
        let events = Arc::new(EventLog::new());
        let clients = clients
            .map(|clients| {
                Clients::start(
                    clients,
                    &config.pin_dir,
                    reported.then(|| latencies.clone()),
                    Arc::clone(&events),
                )
            })
            .transpose()?;
        take_down_the_unwanted(&config)?;
        let status = AgentStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            interface: config.interface.clone(),
            mode: started
                .as_ref()
                .map_or_else(|| "none".to_owned(), |started| started.mode.to_string()),
            took_over,
            pid: std::process::id(),
            started: Moment::now(),
            config_file: file.display().to_string(),
            last_reload_error,
            last_good: text.is_err(),
            state_error: None,
            data_plane_error: None,
            quic_ids_error: None,
            book_unheard: (rest == Rest::Kept).then(|| UNHEARD.to_owned()),
            vips_missing: Vec::new(),
        };
        let agent = Self {
            decapsulator,
            clients: clients.map(Mutex::new),
            events,
            reloading: Mutex::new(()),
            giving: Mutex::new(()),
            running: Mutex::new(Running {
                file: from,
                book,
                acknowledged: FollowedBook::default(),
                config,
                rest,
            }),
            status: Mutex::new(status),
            load: Mutex::default(),
            latencies,
            file,
            copy,
            doors,
        };
        if let Ok(text) = text {
            agent.copy.keep(text);
        }
        agent.give_quic_ids();
        Ok((agent, started))
    }

    /// Reads the configuration file again. A bad one changes nothing, and the
    /// status says so until a good one comes.
    pub fn reload(&self) -> Result<String, String> {
        // The API and SIGHUP may ask at once: the last file that was read is to be in force.
        let _one_at_a_time = lock(&self.reloading);
        let outcome = self.try_reload();
        let outcome = outcome.map_err(|error| match self.doors.renew_files() {
            Some(renewed) => format!("{error}; {renewed}"),
            None => error,
        });
        let mut status = lock(&self.status);
        status.last_reload_error = outcome.as_ref().err().cloned();
        status.last_good &= outcome.is_err();
        drop(status);
        outcome
    }

    fn try_reload(&self) -> Result<String, String> {
        let text = config::read(&self.file).map_err(|errors| errors.to_string())?;
        let wanted = AgentConfig::parse(&self.file, &text).map_err(|errors| errors.to_string())?;
        let mut running = lock(&self.running);
        if let Some(key) = wanted.needs_restart(&running.file) {
            let mend = match AgentConfig::needs_unload(key) {
                true => "stop it, `causeway agent unload --yes`, start it",
                false => "restart it",
            };
            return Err(format!(
                "`{key}` cannot change while the agent runs; {mend}"
            ));
        }
        let config = running.book.over(&wanted);
        let rest = Rest::of(running.rest == Rest::Kept, &wanted, &running.book);
        if let Some(decapsulator) = &self.decapsulator {
            apply(decapsulator, &config, rest).map_err(|error| error.to_string())?;
        }
        if let (Some(clients), Some(wanted)) = (&self.clients, &config.clients) {
            let reloaded = lock(clients).reload(wanted);
            reloaded.map_err(|error| format!("[agent.clients]: {error:#}"))?;
        }
        self.settle(&mut running, rest);
        warn_of_missing_vips(&config);
        warn_of_missing_timestamps(&config);
        warn_of_balancers_keys(&config);
        let summary = config.summary();
        self.doors
            .renew(wanted.socket_group.as_ref(), wanted.api.as_ref());
        (running.file, running.config) = (wanted, config);
        drop(running);
        self.copy.keep(text);
        self.give_quic_ids();
        Ok(summary)
    }

    /// Takes what a balancer sends of the fleet's book: on disk first, then into the data plane and
    /// to QUIC programs; what is acknowledged is in all of them. Says whether anything is new. For
    /// one thread, which alone waits for the disk.
    pub(crate) fn handle_orders(
        &self,
        server: IpAddr,
        orders: AgentOrders,
    ) -> anyhow::Result<bool> {
        let (mut book, file) = {
            let running = lock(&self.running);
            (running.book.clone(), running.file.clone())
        };
        if !book.handle_orders(server, orders) {
            return Ok(false);
        }
        // The next agent would not start with a book that has no room.
        if let Some(decapsulator) = &self.decapsulator {
            check_capacity(decapsulator, &book.over(&file))
                .context("this server has no room for the fleet's book")?;
        }
        let dir = &file.state_dir;
        book.save(dir)
            .with_context(|| format!("cannot write {}", crate::book::kept_in(dir).display()))?;
        self.follow(book)?;
        self.give_quic_ids();
        Ok(true)
    }

    fn follow(&self, book: FollowedBook) -> anyhow::Result<()> {
        let mut running = lock(&self.running);
        let config = book.over(&running.file);
        let rest = Rest::of(running.rest == Rest::Kept, &running.file, &book);
        if let Some(decapsulator) = &self.decapsulator {
            apply(decapsulator, &config, rest)?;
        }
        self.settle(&mut running, rest);
        if config.tunnelled_vips() != running.config.tunnelled_vips() {
            warn_of_missing_vips(&config);
        }
        (running.book, running.config) = (book, config);
        Ok(())
    }

    fn settle(&self, running: &mut Running, rest: Rest) {
        if running.rest != rest {
            info!("the data plane goes by the fleet's book again");
            lock(&self.status).book_unheard = None;
        }
        running.rest = rest;
    }

    /// Has QUIC programs issue connection ids by the book. Where that fails the rest of the
    /// book holds, and is not acknowledged.
    fn give_quic_ids(&self) {
        // The last that is given is the last that came.
        let _one_at_a_time = lock(&self.giving);
        let (book, file) = {
            let running = lock(&self.running);
            // Nor are ids taken away for a book that is lost.
            if running.rest == Rest::Kept {
                return;
            }
            (running.book.clone(), running.file.clone())
        };
        let fault = book.give_quic_ids(&file).err();
        let fault = fault.map(|error| format!("{error:#}"));
        if fault.is_none() {
            lock(&self.running).acknowledged = book;
        }
        let mut status = lock(&self.status);
        log_fault!(
            status.quic_ids_error,
            fault,
            "{}; the fleet is told that this server lags",
            "QUIC programs issue connection ids by the fleet's book again"
        );
    }

    /// What is acknowledged of the fleet's book in a server's name.
    pub(crate) fn follows(&self, server: IpAddr) -> Option<AgentFollows> {
        lock(&self.running).acknowledged.follows(server)
    }

    /// What it takes to report connections.
    pub fn tokens(&self) -> anyhow::Result<ConnTokens> {
        let decapsulator = self.decapsulator.as_ref();
        let decapsulator = decapsulator.context("connections are not tracked without cookies")?;
        Ok(decapsulator.tokens()?)
    }

    /// What to report, as the file has it now; nothing unless it says so.
    pub fn report_plan(&self) -> Option<ReportPlan> {
        let config = &lock(&self.running).config;
        Some(ReportPlan {
            report: config.report.clone()?,
            servers: config.addresses.iter().copied().collect(),
            vips: config.vips.clone(),
        })
    }

    /// What clients of services waited for in the last second, once.
    pub fn take_latencies(&self) -> Option<Vec<ServiceLatency>> {
        self.latencies.take()
    }

    /// Stores what balancers were sent.
    pub fn set_load(&self, load: ServerLoad) {
        *lock(&self.load) = load;
    }

    /// This server's id in a VIP.
    pub fn id_in(&self, vip: SocketAddr) -> Option<u16> {
        let config = &lock(&self.running).config;
        let vips = &config.cookies.as_ref()?.vips;
        let of_port = |port| {
            vips.get(&Vip {
                address: vip.ip(),
                port,
                protocol: Protocol::Tcp,
            })
        };
        let found = of_port(vip.port()).or_else(|| of_port(0));
        found.map(|(id, _)| *id)
    }

    fn cookies(&self) -> anyhow::Result<Vec<CookieEventView>> {
        let with_cookies = lock(&self.running).config.cookies.is_some();
        let Some(decapsulator) = self.decapsulator.as_ref().filter(|_| with_cookies) else {
            return Ok(Vec::new());
        };
        let events = decapsulator.cookie_events()?.into_iter();
        Ok(events
            .map(|(event, segments)| CookieEventView {
                event: event.as_str().to_owned(),
                segments,
            })
            .collect())
    }

    fn verdicts(&self) -> anyhow::Result<Vec<VerdictView>> {
        let verdicts = self.decapsulator.as_ref().map(Decapsulator::verdicts);
        let verdicts = verdicts.transpose()?.unwrap_or_default().into_iter();
        Ok(verdicts
            .map(|(verdict, counter)| VerdictView {
                verdict: verdict.as_str().to_owned(),
                action: verdict.action().as_str().to_owned(),
                meaning: verdict.meaning().to_owned(),
                packets: counter.packets,
                bytes: counter.bytes,
            })
            .collect())
    }

    /// The status but for what the kernel has to be asked.
    fn own_status(&self) -> AgentStatus {
        let state_error = self.copy.error();
        AgentStatus {
            state_error,
            ..lock(&self.status).clone()
        }
    }

    fn stats(&self) -> anyhow::Result<AgentStats> {
        Ok(AgentStats {
            at: Moment::now(),
            addresses: match &self.decapsulator {
                Some(decapsulator) => decapsulator.addresses()?,
                None => BTreeSet::new(),
            },
            verdicts: self.verdicts()?,
            cookies: self.cookies()?,
            clients: self.clients(),
            load: self.load(),
            books: lock(&self.running).book.view(),
        })
    }

    fn load(&self) -> Option<LoadView> {
        lock(&self.running).config.report.as_ref()?.load?;
        let load = *lock(&self.load);
        Some(LoadView {
            cpu: f64::from(load.cpu_milli) / 1000.0,
            in_flight: load.in_flight,
        })
    }

    /// Client latency; `None` where it is not measured.
    fn clients(&self) -> Option<ClientsView> {
        self.with_clients(|clients| clients.view())
    }

    /// Asks what measures clients; `None` where nothing does.
    fn with_clients<T>(&self, of: impl FnOnce(&mut Clients) -> T) -> Option<T> {
        self.clients.as_ref().map(|clients| of(&mut lock(clients)))
    }

    /// Whether clients are measured. Waits for a measurement in progress.
    pub(crate) fn measures_clients(&self) -> bool {
        self.clients.as_ref().map(lock).is_some()
    }

    /// Watches what keeps the data plane in the kernel until `stopped`: repairs what can be
    /// repaired, and logs what cannot. What QUIC programs and the next agent lack it tries to write
    /// again.
    pub fn keep_attached(&self, stopped: &AtomicBool) {
        while !stopped.load(Ordering::Relaxed) {
            thread::park_timeout(MEND_EVERY);
            self.copy.keep_again();
            if lock(&self.status).quic_ids_error.is_some() {
                self.give_quic_ids();
            }
            let Some(decapsulator) = &self.decapsulator else {
                continue;
            };
            let fault = match decapsulator.mend() {
                Ok(changes) => {
                    tell_of_mending(&changes);
                    None
                }
                Err(error) => Some(error.to_string()),
            };
            let mut status = lock(&self.status);
            log_fault!(
                status.data_plane_error,
                fault,
                "{}",
                "the data plane is on its interface and pinned again"
            );
        }
    }

    /// Follows what clients do until `stopped`; at once where nothing is measured.
    pub fn measure(&self, stopped: &AtomicBool) {
        let Some(clients) = &self.clients else { return };
        let mut last_error = None;
        while !stopped.load(Ordering::Relaxed) {
            let pause = lock(clients).next_tick();
            thread::park_timeout(pause);
            let error = lock(clients).tick().err().map(|error| format!("{error:#}"));
            log_fault!(
                last_error,
                error,
                "clients cannot be measured, what was counted waits in the kernel: {}",
                "clients are measured again"
            );
        }
    }
}

fn tell_of_mending(changes: &Repairs) {
    if let Some(interface) = &changes.attached {
        warn!(
            "{} was gone and has been recreated: it has the program, and tunnels are opened",
            interface.name
        );
    }
    if changes.filters > 0 {
        warn!("filters that write cookies were gone, and have been set again");
    }
    if changes.pinned > 0 {
        warn!(
            "pins of the data plane were gone, and {} have been made again: without them it would end with this process",
            changes.pinned
        );
    }
}

/// What the file has no more would go on in the kernel by what it was last told.
fn take_down_the_unwanted(config: &AgentConfig) -> anyhow::Result<()> {
    if !config.decapsulates() && Decapsulator::retire(&config.pin_dir)? {
        info!("the file has no tunnels and no cookies any more: their programs are taken down");
    }
    if config.clients.is_none() && Clients::detach(&config.pin_dir)?.was_attached {
        info!("the file has no [agent.clients] any more: the programs that counted are taken down");
    }
    Ok(())
}

/// Makes the data plane follow the configuration. Keys come before the VIPs whose
/// connections need them.
fn apply(
    decapsulator: &Decapsulator,
    config: &AgentConfig,
    rest: Rest,
) -> causeway_dataplane::Result<()> {
    check_capacity(decapsulator, config)?;
    let (sources, ends, vips) = (
        config.tunnel_sources(),
        &config.addresses,
        config.tunnelled_vips(),
    );
    let cookies = config.cookies.as_ref();
    let keys = cookies.map(|of| &of.keys.cookies);
    let without = BTreeMap::new();
    let cookie_vips = cookies.map_or(&without, |of| &of.vips);
    if rest == Rest::Kept {
        return decapsulator.add(&sources, ends, &vips, keys, cookie_vips);
    }
    decapsulator.set_tunnel_sources(&sources)?;
    decapsulator.set_addresses(ends, &vips)?;
    decapsulator.set_cookie_keys(keys)?;
    decapsulator.set_cookie_vips(cookie_vips)
}

fn check_capacity(
    decapsulator: &Decapsulator,
    config: &AgentConfig,
) -> causeway_dataplane::Result<()> {
    let addresses = config.tunnelled_vips();
    let cookies = config.cookies.as_ref();
    decapsulator.check_capacity(
        config.tunnel_sources().len(),
        addresses.union(&config.addresses).count(),
        cookies.map_or(0, |of| of.vips.len()),
    )
}

/// What the locks guard is whole after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One stolen server is enough, then, to speak for all.
pub(crate) fn warn_of_balancers_keys(config: &AgentConfig) {
    if config.has_balancers_keys() {
        warn!(
            "the keys file is the balancers': who takes this server can report for every other; give it the file that `causeway cookie server-keys` makes for it, and rotate the keys"
        );
    }
}

/// A packet to an address that the kernel does not hold is dropped without a word
/// once it is decapsulated: the fault that everybody meets once.
pub(crate) fn warn_of_missing_vips(config: &AgentConfig) {
    for vip in missing_vips(config) {
        let length = if vip.is_ipv4() { 32 } else { 128 };
        warn!(
            "this server does not hold the VIP {vip}, so the kernel will drop its packets; `ip addr add {vip}/{length} dev lo` adds it"
        );
    }
}

/// VIPs that are no addresses of this server, those with cookies too.
fn missing_vips(config: &AgentConfig) -> Vec<IpAddr> {
    let is_missing = |vip: &IpAddr| {
        let bound = UdpSocket::bind((*vip, 0));
        bound.is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable)
    };
    let vips = config.tunnelled_vips().into_iter();
    vips.filter(is_missing).collect()
}

/// Without timestamps there is nothing to carry a cookie.
pub(crate) fn warn_of_missing_timestamps(config: &AgentConfig) {
    let setting = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_timestamps");
    if config.cookies.is_some() && setting.is_ok_and(|value| value.trim() == "0") {
        warn!(
            "net.ipv4.tcp_timestamps is 0 here, so connections carry no cookies and balancers keep them by their flow tables; `sysctl net.ipv4.tcp_timestamps=1` turns them on"
        );
    }
}

type Api = State<Arc<Agent>>;
type Answer<T> = Result<T, Response>;

/// What the routes ask of other hosts.
pub(crate) const RULES: Rules = Rules {
    operators: is_for_operators,
    open: &[],
};

/// Thresholds, which are removed as easily.
fn is_for_operators(method: &Method, path: &str) -> bool {
    let is_change = [Method::POST, Method::DELETE].contains(method);
    let below = path.strip_prefix(THRESHOLDS);
    is_change && below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

/// The agent's API.
pub(crate) fn router(agent: Arc<Agent>) -> Router {
    let routes = routes();
    let no_route = no_route(routes.get_openapi(), "");
    with_description(routes, RULES)
        .fallback(no_route)
        .with_state(agent)
}

fn routes() -> OpenApiRouter<Arc<Agent>> {
    described(
        "Causeway, agent",
        "On the Unix socket, on a loopback address, and to other hosts by TLS with tokens.",
    )
    .routes(routes!(status))
    .routes(routes!(stats))
    .routes(routes!(clients))
    .routes(routes!(thresholds, add_threshold))
    .routes(routes!(remove_threshold))
    .routes(routes!(events))
    .routes(routes!(reload))
    .routes(routes!(metrics_page))
}

/// The API in OpenAPI's words.
pub fn openapi() -> String {
    description(routes().into_openapi(), RULES)
}

/// The agent: what it runs on
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = AgentStatus)))]
async fn status(State(agent): Api) -> Answer<Json<AgentStatus>> {
    let status = agent.own_status();
    // A socket for each VIP, of which there may be thousands.
    let vips_missing = blocking(move || {
        let config = lock(&agent.running).config.clone();
        missing_vips(&config)
    });
    let vips_missing = vips_missing.await?;
    Ok(Json(AgentStatus {
        vips_missing,
        ..status
    }))
}

/// All counters
#[utoipa::path(get, path = "/v1/stats", responses((status = 200, body = AgentStats)))]
async fn stats(State(agent): Api) -> Answer<Json<AgentStats>> {
    let stats = blocking(move || agent.stats()).await?;
    stats.map(Json).map_err(failed)
}

/// What clients wait for
#[utoipa::path(get, path = "/v1/clients", responses((status = 200, body = ClientsView)))]
async fn clients(State(agent): Api) -> Answer<Json<ClientsView>> {
    let clients = blocking(move || agent.clients()).await?;
    clients.map(Json).ok_or_else(not_measured)
}

fn not_measured() -> Response {
    problem(
        StatusCode::NOT_FOUND,
        "clients are not measured here; [agent.clients] in the agent's file turns it on".to_owned(),
    )
}

fn refused(refused: ThresholdRefused) -> Response {
    let code = match refused {
        ThresholdRefused::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
        ThresholdRefused::Full | ThresholdRefused::OfFile(_) => StatusCode::CONFLICT,
        ThresholdRefused::Unknown(_) => StatusCode::NOT_FOUND,
    };
    problem(code, refused.to_string())
}

/// The thresholds in force: the file's, and those that were set since
#[utoipa::path(get, path = "/v1/clients/thresholds", responses((status = 200, body = Vec<ThresholdView>)))]
async fn thresholds(State(agent): Api) -> Answer<Json<Vec<ThresholdView>>> {
    let thresholds = blocking(move || agent.with_clients(|of| of.thresholds())).await?;
    thresholds.map(Json).ok_or_else(not_measured)
}

/// Sets a threshold until it is removed or the agent ends
#[utoipa::path(
    post, path = "/v1/clients/thresholds",
    request_body = NewThreshold,
    responses((status = 201, body = ThresholdView)),
)]
async fn add_threshold(
    State(agent): Api,
    body: String,
) -> Answer<(StatusCode, Json<ThresholdView>)> {
    let wanted: NewThreshold =
        parse_json(&body).map_err(|error| problem(StatusCode::UNPROCESSABLE_ENTITY, error))?;
    let added = blocking(move || agent.with_clients(|of| of.add_threshold(&wanted))).await?;
    let added = added.ok_or_else(not_measured)?.map_err(refused)?;
    Ok((StatusCode::CREATED, Json(added)))
}

/// Removes a threshold that was set so
#[utoipa::path(
    delete, path = "/v1/clients/thresholds/{id}",
    params(("id" = u64, Path, description = "As `GET /v1/clients/thresholds` has it")),
    responses((status = 200, body = ThresholdView)),
)]
async fn remove_threshold(State(agent): Api, Path(id): Path<u64>) -> Answer<Json<ThresholdView>> {
    let removed = blocking(move || agent.with_clients(|of| of.remove_threshold(id))).await?;
    let removed = removed.ok_or_else(not_measured)?;
    removed.map(Json).map_err(refused)
}

/// Which events, and how long to wait for them.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
struct EventsQuery {
    /// Those after this one, `last` of an answer before; 0: all that are remembered. Without it none, but `last`.
    after: Option<u64>,
    /// Seconds to wait until there are some, 10 at most; 0.
    wait_s: u64,
}

/// What thresholds have told; waits for it if asked to
#[utoipa::path(
    get, path = "/v1/clients/events",
    params(EventsQuery),
    responses((status = 200, body = ClientEvents)),
)]
async fn events(
    State(agent): Api,
    end: Option<Extension<DaemonEnd>>,
    Query(EventsQuery { after, wait_s }): Query<EventsQuery>,
) -> Answer<Json<ClientEvents>> {
    if agent.clients.is_none() {
        return Err(not_measured());
    }
    if wait_s > WAIT_MAX_S {
        return Err(problem(
            StatusCode::UNPROCESSABLE_ENTITY,
            format!("wait_s {wait_s} is out of range; wait {WAIT_MAX_S} s at most, and ask again"),
        ));
    }
    let Some(from) = after.filter(|_| wait_s > 0) else {
        return Ok(Json(agent.events.after(after)));
    };
    let ended = async {
        match end {
            Some(Extension(end)) => end.come().await,
            None => std::future::pending().await,
        }
    };
    let found = tokio::select! {
        found = agent.events.wait(from, Duration::from_secs(wait_s)) => found,
        () = ended => Ok(agent.events.after(after)),
    };
    found.map(Json).map_err(|_| {
        problem(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{LISTENERS_MAX} requests wait for events already, as many as may: end one, or ask without wait_s"),
        )
    })
}

/// Reads the configuration again, as SIGHUP does
#[utoipa::path(
    post, path = "/v1/reload",
    responses((status = 200, body = String, content_type = "application/json")),
)]
async fn reload(State(agent): Api) -> Answer<Json<String>> {
    let reloaded = blocking(move || agent.reload()).await?;
    reloaded
        .map(Json)
        .map_err(|error| problem(StatusCode::UNPROCESSABLE_ENTITY, error))
}

/// Metrics for Prometheus
#[utoipa::path(
    get, path = "/metrics",
    responses((status = 200, content((String = "text/plain"), (String = "application/openmetrics-text"), (Vec<u8> = "application/vnd.google.protobuf")))),
)]
async fn metrics_page(State(agent): Api, headers: HeaderMap) -> Answer<Response> {
    let status = agent.own_status();
    let stats = blocking(move || agent.stats()).await?.map_err(failed)?;
    Ok(metrics::agent_page(stats, status).answer(&headers))
}

fn failed(error: anyhow::Error) -> Response {
    problem(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use causeway_dataplane::XdpMode;
    use causeway_service::process::Listeners;
    use causeway_service::tokens::Role;
    use serde_json::json;

    use super::*;
    use crate::book::tests::{file, orders, server};
    use crate::sandbox::{Sandbox, ip};

    /// One without a data plane.
    fn agent(dir: &Path, file: AgentConfig) -> Agent {
        let socket = dir.join("agent.sock");
        let listeners = Listeners::bind((&socket, None), None, None);
        let status = json!({
            "version": "0.1.0", "interface": "eth0", "mode": "none", "took_over": false, "pid": 8,
            "started": Moment::default(), "config_file": "agent.toml", "last_reload_error": null,
        });
        let copy = CopyKeeper::new(file.copy_of(&dir.join("agent.toml")));
        Agent {
            decapsulator: None,
            clients: None,
            events: Arc::new(EventLog::new()),
            running: Mutex::new(Running {
                book: FollowedBook::default(),
                acknowledged: FollowedBook::default(),
                config: file.clone(),
                file,
                rest: Rest::Removed,
            }),
            reloading: Mutex::default(),
            giving: Mutex::default(),
            status: Mutex::new(serde_json::from_value(status).expect("a status")),
            load: Mutex::default(),
            latencies: LatencySlot::default(),
            copy,
            file: dir.join("agent.toml"),
            doors: listeners.expect("a socket").doors(),
        }
    }

    #[test]
    fn what_quic_programs_cannot_be_given_withholds_the_acknowledgement_and_nothing_else() {
        let (dir, mut file) = (tempfile::tempdir().expect("a directory"), file());
        file.state_dir = dir.path().to_owned();
        // A directory is in its place.
        let path = dir.path().join("quic-ids.json");
        fs::create_dir(&path).expect("a directory");
        file.quic.file.clone_from(&path);
        let agent = agent(dir.path(), file);
        let fault = || lock(&agent.status).quic_ids_error.clone();
        for revision in [4, 5] {
            let is_new = agent.handle_orders(server(), orders(revision, 2, &[2]));
            assert!(is_new.expect("written"));
            let vip = "192.0.2.1:80".parse().expect("a VIP");
            assert_eq!(agent.id_in(vip), Some(5), "the book's");
            assert_eq!(agent.follows(server()), None);
            assert!(fault().expect("a fault").contains("[agent.quic] file"));
        }
        fs::remove_dir(&path).expect("room");
        agent.give_quic_ids();
        assert_eq!(fault(), None);
        assert!(path.exists());
        let follows = agent.follows(server()).expect("the book");
        assert_eq!(follows.position.revision, 5);
    }

    /// Needs root.
    #[test]
    fn a_book_that_has_no_room_on_this_server_is_not_kept() {
        Sandbox::run(|sandbox| {
            ip("link add lb0 type veth peer name peer0");
            ip("link set lb0 up");
            let (dir, mut file) = (tempfile::tempdir().expect("a directory"), file());
            file.state_dir = dir.path().to_owned();
            file.quic.file = dir.path().join("quic-ids.json");
            let options = DecapsulatorOptions {
                interface: "lb0".to_owned(),
                pin_dir: sandbox.pin_dir("server"),
                xdp_mode: XdpMode::Native,
                gue_port: file.gue_port,
                cookies: None,
                token_sources: (None, None),
                inner_mtu: None,
            };
            let (decapsulator, _) = Decapsulator::start(&options).expect("a decapsulator");
            let agent = Agent {
                decapsulator: Some(decapsulator),
                ..agent(dir.path(), file)
            };
            let fits = agent.handle_orders(server(), orders(4, 2, &[2]));
            assert!(fits.expect("room"));
            let kept = FollowedBook::load(dir.path()).expect("the book");
            let mut too_many = orders(5, 2, &[2]);
            let vip = IpAddr::from([192, 0, 2, 1]);
            let id = too_many.services[&(vip, 80, 6)];
            too_many.services = (1..=1025).map(|port| ((vip, port, 6), id)).collect();
            too_many.cids.clear();
            let error = agent.handle_orders(server(), too_many);
            let error = format!("{:#}", error.expect_err("no room"));
            assert!(error.contains("the number of VIPs with cookies"), "{error}");
            assert_eq!(FollowedBook::load(dir.path()), Ok(kept));
            let follows = agent.follows(server()).expect("the book");
            assert_eq!(follows.position.revision, 4);
        });
    }

    #[test]
    fn a_vip_with_a_cookie_that_this_server_does_not_hold_is_missing() {
        let mut file = file();
        let here = IpAddr::from([127, 0, 0, 1]);
        file.vips = [here].into();
        assert_eq!(missing_vips(&file), Vec::<IpAddr>::new());
        let (_, layout) = orders(1, 2, &[2]).services[&(IpAddr::from([192, 0, 2, 1]), 80, 6)];
        let layout = layout.expect("a cookie");
        let cookies = file.cookies.as_mut().expect("cookies");
        for address in [here, IpAddr::from([192, 0, 2, 7])] {
            let vip = Vip {
                address,
                port: 80,
                protocol: Protocol::Tcp,
            };
            cookies.vips.insert(vip, (5, layout));
        }
        assert_eq!(missing_vips(&file), [IpAddr::from([192, 0, 2, 7])]);
    }

    #[test]
    fn thresholds_are_for_operators_and_all_other_changes_for_admins() {
        for (method, path, role) in [
            (Method::GET, "/v1/clients/events", Role::Viewer),
            (Method::GET, THRESHOLDS, Role::Viewer),
            (Method::POST, THRESHOLDS, Role::Operator),
            (Method::DELETE, "/v1/clients/thresholds/7", Role::Operator),
            (Method::PATCH, "/v1/clients/thresholds/7", Role::Admin),
            (
                Method::POST,
                "/v1/clients/thresholds-of-another",
                Role::Admin,
            ),
            (Method::POST, "/v1/reload", Role::Admin),
        ] {
            assert_eq!(RULES.role(&method, path), role, "{method} {path}");
        }
    }

    /// A pipe without a writer stands for the disk.
    #[test]
    fn nobody_waits_for_the_disk_of_quic_ids_but_who_writes_them() {
        use std::sync::mpsc::channel;

        use nix::sys::stat::Mode;

        let (dir, mut file) = (tempfile::tempdir().expect("a directory"), file());
        file.state_dir = dir.path().to_owned();
        let path = dir.path().join("quic-ids.json");
        nix::unistd::mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).expect("a pipe");
        file.quic.file.clone_from(&path);
        let agent = Arc::new(agent(dir.path(), file));
        let (seen, see) = channel();
        let waiting = Arc::clone(&agent);
        let waiting = thread::spawn(move || waiting.handle_orders(server(), orders(4, 2, &[2])));
        let looking = Arc::clone(&agent);
        let vip = "192.0.2.1:80".parse().expect("a VIP");
        thread::spawn(move || {
            while looking.id_in(vip).is_none() {
                thread::yield_now();
            }
            seen.send(looking.follows(server())).expect("a reader");
        });
        let follows = see.recv_timeout(Duration::from_secs(60));
        assert_eq!(follows.expect("the book is in force"), None);
        // What is no file is replaced by one.
        fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .expect("the pipe");
        waiting.join().expect("no panic").expect("written");
        assert!(agent.follows(server()).is_some());
    }
}
