// SPDX-License-Identifier: Apache-2.0
//! One end of a tunnel: threads that share nothing, and what starts, changes, watches
//! and ends them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::{Json, Router};
use causeway_api::Moment;
use causeway_api::tunnel::TunnelStatus;
use causeway_bifrost::{self as bifrost, PathId, TransportEngine};
use causeway_netio::monotonic_ns;
use causeway_netio::tunnel::{Device, DeviceOptions, Waiter};
use causeway_service::config;
use causeway_service::http::{blocking, described, description, problem, with_description};
use causeway_service::last_good::{CopyKeeper, StartConfig, StartsByCopy as _};
use causeway_service::privileges::give_up_sys_admin;
use causeway_service::process::Doors;
use causeway_service::random;
use causeway_service::tokens::Rules;
use tokio::sync::oneshot;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::config::TunnelConfig;
use crate::memory::Memory;
use crate::paths::OpenPaths;
use crate::shard::{AddedPaths, Shard, ShardChange, ShardCommand, ShardHandle, ShardReport};
use crate::vnic::Vnic;
use crate::{metrics, view};

/// How long a thread may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a path waits for its address or its device to be looked for again.
const LOOK_PERIOD: Duration = Duration::from_secs(2);

/// A running end.
pub struct Tunnel {
    running: Mutex<Running>,
    handles: Vec<ShardHandle>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    merges_udp: bool,
    started: Moment,
    file: PathBuf,
    /// Held while the file is read again.
    reloading: Mutex<()>,
    refusal: Mutex<Refusal>,
    copy: CopyKeeper,
    /// Of other hosts, if they are served.
    doors: Doors,
}

/// What is wrong with the file, if something is.
struct Refusal {
    /// Why it was refused when it was read last.
    error: Option<String>,
    /// Whether the copy of the last good one is in force instead.
    last_good: bool,
}

/// What is in force.
struct Running {
    config: TunnelConfig,
    paths: OpenPaths,
}

impl Tunnel {
    /// Opens the device and the paths, and starts the threads. A path whose address or device is
    /// not there yet is opened later, if another can be opened now. `file` is where the
    /// configuration was read; a reload renews `doors`. The second value resolves when a thread ends by itself.
    pub fn start(
        start: StartConfig<TunnelConfig>,
        file: PathBuf,
        doors: Doors,
    ) -> anyhow::Result<(Arc<Self>, impl Future<Output = anyhow::Error>)> {
        let refusal = Refusal {
            error: start.refusal(),
            last_good: start.text.is_err(),
        };
        let StartConfig { config, text, .. } = start;
        let copy = CopyKeeper::new(config.copy_of(&file));
        config.engine.check()?;
        let device = Device::open(&device_options(&config))?;
        let engine_config = bifrost::TransportConfig {
            merges_udp: device.merges_udp,
            ..config.engine.clone()
        };
        let (open, added) = OpenPaths::at_start(&config)?;
        // It was for the network namespace that the device stands in. What can be refused is done:
        // another start in this process would need it, too.
        give_up_sys_admin().context("give up CAP_SYS_ADMIN")?;
        let mut handles = Vec::new();
        let mut shards = Vec::new();
        for ((number, tun), added) in device.queues.into_iter().enumerate().zip(added) {
            // Until the other end says that it takes that.
            tun.merge_udp(false)
                .context("cannot switch the merging of UDP off")?;
            let mut engine = TransportEngine::new(engine_config.clone(), instance()?)?;
            let mut paths = BTreeMap::new();
            let now = monotonic_ns();
            for (id, (path, socket)) in added {
                engine.add_path(now, PathId(id), path)?;
                paths.extend(socket.map(|socket| (id, socket)));
            }
            let waiter = Waiter::new()?;
            let (commands, inbox) = mpsc::channel();
            let waker = waiter.waker();
            handles.push(ShardHandle { commands, waker });
            shards.push(Shard {
                number,
                engine,
                tun,
                memory: Memory::new(&config.engine.limits, datagram_max(&config)),
                vnic: Vnic::new(config.vnic_queue),
                poll: config.poll,
                paths,
                waiter,
                inbox,
            });
        }
        let (ended, end) = oneshot::channel::<anyhow::Error>();
        let threads = spawn(shards, ended)?;
        let tunnel = Arc::new(Self {
            running: Mutex::new(Running {
                config,
                paths: open,
            }),
            handles,
            threads: Mutex::new(threads),
            merges_udp: device.merges_udp,
            started: Moment::now(),
            file,
            reloading: Mutex::new(()),
            refusal: Mutex::new(refusal),
            copy,
            doors,
        });
        if let Ok(text) = text {
            tunnel.copy.keep(text);
        }
        let failed = async {
            end.await
                .unwrap_or_else(|_| anyhow!("a thread of the tunnel has ended"))
        };
        Self::look_after_paths(&tunnel)?;
        Ok((tunnel, failed))
    }

    /// Opens paths as their addresses and devices come, and writes what the next daemon lacks, until
    /// the tunnel is gone.
    fn look_after_paths(tunnel: &Arc<Self>) -> anyhow::Result<()> {
        let tunnel = Arc::downgrade(tunnel);
        let look = move || {
            loop {
                std::thread::sleep(LOOK_PERIOD);
                let Some(tunnel) = tunnel.upgrade() else {
                    return;
                };
                tunnel.open_missing(&mut lock(&tunnel.running));
                tunnel.copy.keep_again();
            }
        };
        let thread = std::thread::Builder::new().name("paths".to_owned());
        thread.spawn(look).context("cannot start a thread")?;
        Ok(())
    }

    fn open_missing(&self, running: &mut Running) {
        let added = running.paths.open_missing(&running.config);
        if added.iter().any(|added| !added.is_empty()) {
            self.change(&running.config, &[], added);
        }
    }

    /// Has each thread take over the configuration, without the paths `gone` and with those
    /// `added`. Nothing of it can fail any more.
    fn change(&self, config: &TunnelConfig, gone: &[u8], added: Vec<AddedPaths>) {
        for (handle, add) in self.handles.iter().zip(added) {
            handle.send(ShardCommand::Change(Box::new(ShardChange {
                config: bifrost::TransportConfig {
                    merges_udp: self.merges_udp,
                    ..config.engine.clone()
                },
                vnic_queue: config.vnic_queue,
                poll: config.poll,
                remove: gone.to_vec(),
                add,
            })));
        }
    }

    /// Ends the threads. What is under way is lost, as on any link that goes down.
    pub fn stop(&self) {
        self.handles.iter().for_each(|h| h.send(ShardCommand::Stop));
        for thread in lock(&self.threads).drain(..) {
            // A panic in it has been printed.
            let _ = thread.join();
        }
    }

    /// Reads configuration and keys again. A bad file changes nothing, and the status
    /// says so until a good one comes.
    pub fn reload(&self) -> Result<String, String> {
        // The API and SIGHUP may ask at once: the last file that was read is to be in force.
        let _one_at_a_time = lock(&self.reloading);
        let outcome = self.try_reload();
        let outcome = outcome.map_err(|error| match self.doors.renew_files() {
            Some(renewed) => format!("{error}; {renewed}"),
            None => error,
        });
        let mut refusal = lock(&self.refusal);
        refusal.error = outcome.as_ref().err().cloned();
        refusal.last_good &= outcome.is_err();
        drop(refusal);
        outcome
    }

    fn try_reload(&self) -> Result<String, String> {
        let text = config::read(&self.file).map_err(|errors| errors.to_string())?;
        let wanted = TunnelConfig::parse(&self.file, &text).map_err(|errors| errors.to_string())?;
        let mut running = lock(&self.running);
        if let Some(key) = wanted.needs_restart(&running.config) {
            return Err(format!(
                "`{key}` cannot change while the tunnel runs; restart it"
            ));
        }
        wanted.engine.check().map_err(|error| error.to_string())?;
        // Everything that can fail comes before the first thread changes.
        let mut paths = running.paths.clone();
        let added = paths
            .change(&running.config, &wanted)
            .map_err(|error| format!("{error:#}"))?;
        let before = running.config.paths.keys().copied();
        let gone: Vec<u8> = before.filter(|id| !wanted.paths.contains_key(id)).collect();
        self.change(&wanted, &gone, added);
        *running = Running {
            config: wanted,
            paths,
        };
        self.open_missing(&mut running);
        let config = &running.config;
        self.doors
            .renew(config.socket_group.as_ref(), config.api.as_ref());
        let summary = config.summary();
        drop(running);
        self.copy.keep(text);
        Ok(summary)
    }

    fn reports(&self) -> anyhow::Result<Vec<ShardReport>> {
        let (reply, replies) = mpsc::channel();
        for handle in &self.handles {
            handle.send(ShardCommand::Report(reply.clone()));
        }
        drop(reply);
        let report = |_| replies.recv_timeout(ANSWER_TIMEOUT).ok();
        let reports: Option<Vec<ShardReport>> = self.handles.iter().map(report).collect();
        reports.context("a thread of the tunnel does not answer")
    }

    /// Whether every thread answers.
    pub(crate) fn answers(&self) -> bool {
        self.reports().is_ok()
    }

    /// The status over all threads.
    pub fn status(&self) -> anyhow::Result<TunnelStatus> {
        let reports = self.reports()?;
        let running = lock(&self.running);
        let config = &running.config;
        let key = config.engine.keys.send.as_ref();
        let refusal = lock(&self.refusal);
        Ok(TunnelStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started: self.started,
            at: Moment::now(),
            config_file: self.file.display().to_string(),
            last_reload_error: refusal.error.clone(),
            last_good: refusal.last_good,
            state_error: self.copy.error(),
            device: config.device.clone(),
            threads: config.threads,
            sealed: key.is_some(),
            key: key.map_or(0, |key| key.id),
            merges_udp: self.merges_udp && reports.iter().all(|one| one.peer_merges_udp),
            threads_cut_off: view::cut_off(&reports),
            totals: view::totals(&reports),
            paths: view::paths(config, running.paths.faults(), &reports),
            drops: view::drops(&reports),
        })
    }
}

fn spawn(
    shards: Vec<Shard>,
    ended: oneshot::Sender<anyhow::Error>,
) -> anyhow::Result<Vec<JoinHandle<()>>> {
    let ended = Arc::new(Mutex::new(Some(ended)));
    let mut threads = Vec::new();
    for shard in shards {
        let ended = Arc::clone(&ended);
        let thread = std::thread::Builder::new()
            .name(format!("tunnel{}", shard.number))
            .spawn(move || {
                // One thread that panics must not leave the others to carry on as if
                // all were well.
                let result = catch_unwind(AssertUnwindSafe(|| shard.run()));
                let error = match result {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => error,
                    Err(_) => anyhow!("a thread of the tunnel panicked"),
                };
                if let Some(ended) = lock(&ended).take() {
                    // There is no receiver once the daemon is about to end.
                    let _ = ended.send(error);
                }
            })
            .context("cannot start a thread")?;
        threads.push(thread);
    }
    Ok(threads)
}

fn device_options(config: &TunnelConfig) -> DeviceOptions {
    DeviceOptions {
        name: config.device.clone(),
        queues: config.threads,
        namespace: config.netns.clone(),
        mtu: config.mtu,
        queue_packets: config.queue,
        addresses: config.addresses.clone(),
        persist: config.persist,
        super_packets: true,
    }
}

/// 64 random bits, never 0.
fn instance() -> std::io::Result<u64> {
    loop {
        match u64::from_ne_bytes(random()?) {
            0 => {}
            instance => return Ok(instance),
        }
    }
}

/// The largest datagram that paths of this configuration bring, and those that a reload
/// may add.
fn datagram_max(config: &TunnelConfig) -> usize {
    const JUMBO: u16 = 9216;
    let mtus = config.paths.values().filter_map(|path| path.mtu);
    usize::from(mtus.max().unwrap_or(JUMBO).max(JUMBO))
}

/// What the locks guard is whole after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Api = State<Arc<Tunnel>>;
type Answer<T> = Result<T, Response>;

/// The tunnel's API.
pub(crate) fn router(tunnel: Arc<Tunnel>) -> Router {
    with_description(routes(), Rules::PLAIN)
        .fallback(no_route)
        .with_state(tunnel)
}

fn routes() -> OpenApiRouter<Arc<Tunnel>> {
    described(
        "Causeway, tunnel",
        "On the Unix socket, on a loopback address, and to other hosts by TLS with tokens.",
    )
    .routes(routes!(status))
    .routes(routes!(reload))
    .routes(routes!(metrics_page))
}

/// The API in OpenAPI's words.
pub fn openapi() -> String {
    description(routes().into_openapi(), Rules::PLAIN)
}

async fn no_route(request: Request) -> Response {
    let path = request.uri().path();
    problem(
        StatusCode::NOT_FOUND,
        format!("there is nothing at {path}; see /v1/status, /v1/reload, /metrics"),
    )
}

/// The tunnel, its paths, and what it dropped
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = TunnelStatus)))]
async fn status(State(tunnel): Api) -> Answer<Json<TunnelStatus>> {
    // Its threads answer within a turn of their loops, but that may be a while.
    let status = blocking(move || tunnel.status()).await?;
    status.map(Json).map_err(failed)
}

/// Reads configuration and keys again, as SIGHUP does
#[utoipa::path(
    post, path = "/v1/reload",
    responses((status = 200, body = String, content_type = "application/json")),
)]
async fn reload(State(tunnel): Api) -> Answer<Json<String>> {
    let reloaded = blocking(move || tunnel.reload()).await?;
    reloaded
        .map(Json)
        .map_err(|error| problem(StatusCode::UNPROCESSABLE_ENTITY, error))
}

/// Metrics for Prometheus
#[utoipa::path(
    get, path = "/metrics",
    responses((status = 200, content((String = "text/plain"), (String = "application/openmetrics-text"), (Vec<u8> = "application/vnd.google.protobuf")))),
)]
async fn metrics_page(State(tunnel): Api, headers: HeaderMap) -> Answer<Response> {
    let status = blocking(move || tunnel.status()).await?.map_err(failed)?;
    Ok(metrics::page(status).answer(&headers))
}

fn failed(error: anyhow::Error) -> Response {
    problem(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}"))
}
