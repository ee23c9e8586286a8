// SPDX-License-Identifier: Apache-2.0
//! The HTTP API, on the Unix socket and, read-only, on a loopback address.
//! docs/reference/api.md describes it for others.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Path, Query, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use causeway_api::Moment;
use causeway_api::balancer::{
    Connections, MoveConnection, Override, RealChange, Status, VipChange, VipView,
};
use causeway_dataplane::RealId;
use causeway_service::config::{ConfigErrors, plural};
use causeway_service::http::{openmetrics, problem};
use serde::Deserialize;
use tracing::{info, warn};

use super::by_hand::find_real;
use super::engine::{Engine, EngineError, GATEWAY_PATIENCE};
use super::plane::Route;
use super::pool::Pool;
use super::slots::{ConnectionSlots, HEAVIEST_MAX};
use super::state_dir::{KeptState, StateDir};
use super::sync::Way;
use super::{metrics, page, report};
use crate::config::{self, BalancerConfig, Beside, VipConfig};

/// Most epochs in one answer: some 5 MB.
const HISTORY_EPOCHS: usize = 20_000;
/// Most steps of a timeline in one answer: some 8 MB.
const TIMELINE_STEPS: usize = 20_000;

/// What the API and the control loop share.
pub(crate) struct Shared {
    engine: Mutex<Engine>,
    status: Mutex<Status>,
    config_file: PathBuf,
    slots: Option<ConnectionSlots>,
    /// Of one reload at a time.
    reloading: Mutex<()>,
    kept: Mutex<Keeping>,
}

/// What is kept for the next daemon, and where.
#[derive(Default)]
struct Keeping {
    dir: Option<StateDir>,
    saved: Option<KeptState>,
    error: Option<String>,
}

impl Shared {
    /// The state of a daemon that was started with `config_file`.
    pub(crate) fn new(engine: Engine, status: Status, config_file: PathBuf) -> Self {
        Self {
            engine: Mutex::new(engine),
            status: Mutex::new(status),
            config_file,
            slots: None,
            reloading: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// With a directory for what is to outlive the daemon.
    pub(crate) fn with_state(self, dir: StateDir) -> Self {
        let kept = Keeping {
            dir: Some(dir),
            ..Keeping::default()
        };
        Self {
            kept: Mutex::new(kept),
            ..self
        }
    }

    /// Writes down what is to outlive the daemon, if it has changed. That it cannot be written
    /// is told; the daemon goes on.
    pub(crate) fn keep(&self) {
        let mut keeping = self.keeping();
        let kept = self.engine().kept();
        let Some(dir) = &keeping.dir else {
            return;
        };
        if keeping.saved.as_ref() == Some(&kept) && keeping.error.is_none() {
            return;
        }
        let error = dir.save(&kept).err();
        keeping.saved = error.is_none().then_some(kept);
        keeping.note(error);
    }

    /// Keeps the text of the file that has been taken into force.
    pub(crate) fn keep_config(&self, text: &str) {
        let mut keeping = self.keeping();
        let Some(dir) = &keeping.dir else {
            return;
        };
        let error = dir.save_config(&self.config_file, text).err();
        if error.is_some() {
            keeping.note(error);
        }
    }

    fn keeping(&self) -> MutexGuard<'_, Keeping> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With the slots of stateful VIPs' connections.
    pub(crate) fn with_slots(self, slots: Option<ConnectionSlots>) -> Self {
        Self { slots, ..self }
    }

    /// The engine. A thread that panicked while it held the lock left at worst
    /// an interval half done; forwarding and serving go on.
    pub(crate) fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the configuration file again. A bad one changes nothing, and the
    /// status says so until a good one comes.
    pub(crate) fn reload(&self) -> Result<String, EngineError> {
        let _one = self
            .reloading
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let outcome = self.take_file();
        let taken_ns = outcome.is_ok().then(|| Moment::now().realtime_ns);
        self.engine().note_reload(taken_ns);
        let mut status = self.status();
        status.last_reload_error = outcome.as_ref().err().map(ToString::to_string);
        status.last_good &= outcome.is_err();
        outcome
    }

    /// Says what a reload of a file with this text would say, and changes nothing.
    fn check(&self, text: &str) -> Result<String, EngineError> {
        let config = BalancerConfig::of_balancer(&self.config_file, text)
            .map_err(|errors| EngineError::Invalid(errors.to_string()))?;
        self.engine().check_reload(&config)?;
        Ok(config.summary())
    }

    fn take_file(&self) -> Result<String, EngineError> {
        let refused = |errors: ConfigErrors| EngineError::Invalid(errors.to_string());
        let text = causeway_service::config::read(&self.config_file).map_err(refused)?;
        let config = BalancerConfig::of_balancer(&self.config_file, &text).map_err(refused)?;
        let mut summary = config.summary();
        self.find_way(&config.encapsulated_reals(), |_| Route::of(&config))?;
        let by_hand = {
            let mut engine = self.engine();
            engine.reload(config)?;
            engine.overrides().len()
        };
        self.keep_config(&text);
        self.keep();
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
    fn find_way(
        &self,
        reals: &[IpAddr],
        wanted: impl FnOnce(&BalancerConfig) -> Route,
    ) -> Result<(), EngineError> {
        let (route, resolver) = {
            let engine = self.engine();
            let route = wanted(engine.config());
            if engine.has_way(&route) {
                return Ok(());
            }
            (route, engine.plane().resolver())
        };
        let next_hop = resolver.look(&route, reals, GATEWAY_PATIENCE)?.next_hop?;
        self.engine().offer(Way { route, next_hop });
        Ok(())
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keeping {
    fn note(&mut self, error: Option<String>) {
        if error != self.error {
            match &error {
                Some(error) => warn!(
                    "what is set by hand, health and the last good configuration would not outlive the daemon: {error}"
                ),
                None => info!("the state is kept again"),
            }
        }
        self.error = error;
    }
}

type Api = State<Arc<Shared>>;
type Answer<T> = Result<Json<T>, EngineError>;

impl IntoResponse for EngineError {
    fn into_response(self) -> Response {
        let code = match self {
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Conflict(_) => StatusCode::CONFLICT,
            Self::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Plane(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        problem(code, self.to_string())
    }
}

/// Every route; for the Unix socket.
pub(crate) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/stats", get(stats))
        .route("/v1/vips", get(vips).post(add_vip))
        .route(
            "/v1/vips/{vip}",
            get(vip).patch(change_vip).delete(remove_vip),
        )
        .route("/v1/vips/{vip}/timeline", get(timeline))
        .route("/v1/vips/{vip}/reals", post(add_real))
        .route(
            "/v1/vips/{vip}/reals/{real}",
            delete(remove_real).patch(change_real),
        )
        .route("/v1/vips/{vip}/reals/{real}/decisions", get(decisions))
        .route("/v1/history", get(history))
        .route("/v1/connections", get(connections))
        .route("/v1/connections/move", post(move_connection))
        .route("/v1/overrides", get(overrides).delete(drop_overrides))
        .route("/v1/moves", get(moves))
        .route("/v1/drops", get(drops))
        .route("/v1/reload", post(reload))
        .route("/v1/check", post(check))
        .route("/metrics", get(metrics_page))
        .merge(page::router())
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(shared)
}

/// The same routes for a TCP address: whoever can reach it may look, not touch.
pub(crate) fn read_only_router(shared: Arc<Shared>, socket: &std::path::Path) -> Router {
    let sentence = format!(
        "this address is read-only; write through the Unix socket {} (curl --unix-socket, or the causeway commands)",
        socket.display()
    );
    router(shared).layer(middleware::from_fn(move |request: Request, next: Next| {
        let sentence = sentence.clone();
        async move {
            match *request.method() {
                Method::GET | Method::HEAD => next.run(request).await,
                _ => problem(StatusCode::METHOD_NOT_ALLOWED, sentence),
            }
        }
    }))
}

async fn no_route(request: Request) -> Response {
    let path = request.uri().path();
    problem(
        StatusCode::NOT_FOUND,
        format!(
            "there is nothing at {path}; see /v1/status, /v1/stats, /v1/vips, /v1/overrides, /v1/history, /v1/moves, /v1/drops, /metrics, or at / for people"
        ),
    )
}

async fn no_method(request: Request) -> Response {
    problem(
        StatusCode::METHOD_NOT_ALLOWED,
        format!(
            "{} does not take {}",
            request.uri().path(),
            request.method()
        ),
    )
}

/// Does what waits for the engine's work or for a gateway where it keeps no other request,
/// and no health probe, waiting.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
) -> Result<T, EngineError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| EngineError::Plane(error.into()))?
}

async fn status(State(shared): Api) -> Json<Status> {
    let mut status = shared.status().clone();
    status.state_error = shared.keeping().error.clone();
    let engine = shared.engine();
    status.unfinished = engine.unfinished().map(str::to_owned);
    status.interval_ns = engine.config().control.interval_ns;
    Json(status)
}

async fn stats(State(shared): Api) -> Answer<causeway_api::balancer::Stats> {
    let stats = blocking(move || Ok(report::stats(&shared.engine(), Moment::now())?));
    Ok(Json(stats.await?))
}

async fn vips(State(shared): Api) -> Answer<Vec<VipView>> {
    let vips = blocking(move || Ok(report::vips(&shared.engine())?));
    Ok(Json(vips.await?))
}

async fn vip(State(shared): Api, Path(name): Path<String>) -> Answer<VipView> {
    let view = blocking(move || view(&shared.engine(), &name));
    Ok(Json(view.await?))
}

/// One VIP, as it is answered.
fn view(engine: &Engine, name: &str) -> Result<VipView, EngineError> {
    let index = engine.find_vip(name)?;
    Ok(report::vips(engine)?.swap_remove(index))
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryQuery {
    /// CLOCK_REALTIME.
    since_ns: Option<u64>,
    /// CLOCK_MONOTONIC; the later of both holds.
    since_monotonic_ns: Option<u64>,
    limit: Option<usize>,
}

async fn history(
    State(shared): Api,
    Query(query): Query<HistoryQuery>,
) -> Json<causeway_api::balancer::History> {
    let engine = shared.engine();
    let since = query.since_ns.map_or(0, |ns| engine.monotonic(ns));
    let since = since.max(query.since_monotonic_ns.unwrap_or(0));
    let limit = query.limit.unwrap_or(HISTORY_EPOCHS).min(HISTORY_EPOCHS);
    let history = report::history(&engine, since, limit);
    // What follows is for the client to wait for, not for the engine.
    drop(engine);
    Json(history)
}

/// What ended before is left out.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Since {
    /// CLOCK_MONOTONIC.
    since_monotonic_ns: u64,
}

async fn timeline(
    State(shared): Api,
    Path(name): Path<String>,
    Query(since): Query<Since>,
) -> Answer<causeway_api::balancer::Timeline> {
    let engine = shared.engine();
    let pool = engine.pool(&name)?;
    let since_ns = since.since_monotonic_ns;
    Ok(Json(report::timeline(
        pool,
        &engine,
        since_ns,
        TIMELINE_STEPS,
    )))
}

async fn drops(
    State(shared): Api,
    Query(since): Query<Since>,
) -> Json<causeway_api::balancer::Drops> {
    Json(report::drops(&shared.engine(), since.since_monotonic_ns))
}

async fn moves(
    State(shared): Api,
    Query(since): Query<Since>,
) -> Json<causeway_api::balancer::Moves> {
    Json(report::moves(&shared.engine(), since.since_monotonic_ns))
}

async fn decisions(
    State(shared): Api,
    Path((vip, real)): Path<(String, String)>,
) -> Answer<causeway_api::balancer::Explanation> {
    Ok(Json(super::decisions::explain(
        &shared.engine(),
        &vip,
        &real,
    )?))
}

async fn metrics_page(State(shared): Api) -> Result<Response, EngineError> {
    let page = blocking(move || Ok(metrics::page(&shared.engine(), Moment::now())?));
    Ok(openmetrics(page.await?))
}

async fn check(State(shared): Api, text: String) -> Answer<String> {
    blocking(move || shared.check(&text)).await.map(Json)
}

async fn reload(State(shared): Api) -> Answer<String> {
    blocking(move || shared.reload()).await.map(Json)
}

/// How many of the heaviest senders to name, and how long to watch for them.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Heaviest {
    count: usize,
    ms: u64,
}

impl Default for Heaviest {
    fn default() -> Self {
        Self {
            count: 20,
            ms: 1000,
        }
    }
}

async fn connections(State(shared): Api, Query(wanted): Query<Heaviest>) -> Answer<Connections> {
    let Some(slots) = shared.slots.clone() else {
        let none = "no vip is stateful here, so that connections have no slots";
        return Err(EngineError::NotFound(none.to_owned()));
    };
    let apart = Duration::from_millis(wanted.ms);
    if wanted.count > HEAVIEST_MAX {
        return Err(EngineError::Invalid(format!(
            "count {} is out of range; at most {HEAVIEST_MAX} are named",
            wanted.count
        )));
    }
    let report = blocking(move || Ok(slots.heaviest(wanted.count, apart))).await?;
    let mut report = report.ok_or_else(|| {
        EngineError::Conflict(
            "another request looks at the connections; ask again when it has ended".to_owned(),
        )
    })?;
    let engine = shared.engine();
    for sender in &mut report.heaviest {
        let mut members = engine.pools().iter().flat_map(Pool::members);
        let real = members.find(|(_, member)| member.id == sender.real_id);
        sender.real = real.map_or_else(String::new, |(real, _)| real.address.to_string());
    }
    Ok(Json(report))
}

async fn move_connection(State(shared): Api, body: String) -> Result<StatusCode, EngineError> {
    let wanted: MoveConnection = parse_json(&body)?;
    let Some(slots) = shared.slots.clone() else {
        let none = "no vip is stateful here, so that connections have no slots";
        return Err(EngineError::NotFound(none.to_owned()));
    };
    let real = real_of(&shared.engine(), &wanted)?;
    // It looks at every slot, and must not keep other requests waiting.
    let moved = blocking(move || {
        let moved = slots.move_to(wanted.client, wanted.vip, real);
        moved.map_err(|error| EngineError::Plane(error.into()))
    });
    let moved = moved.await?;
    match moved {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(EngineError::NotFound(format!(
            "{} has no connection to {} with a slot here; `causeway conns top` shows some that have",
            wanted.client, wanted.vip
        ))),
    }
}

/// The real that a connection is to go to: one of the VIP's own.
fn real_of(engine: &Engine, wanted: &MoveConnection) -> Result<RealId, EngineError> {
    let of = |port: u16| {
        let mut pools = engine.pools().iter().filter(|pool| pool.vip().stateful);
        pools.find(|pool| pool.vip().address == wanted.vip.ip() && pool.vip().port == port)
    };
    let pool = of(wanted.vip.port())
        .or_else(|| of(0))
        .ok_or_else(|| EngineError::NotFound(format!("{} is no stateful vip here", wanted.vip)))?;
    let mut members = pool.members();
    let found = members.find(|(real, _)| real.address == wanted.real);
    found.map(|(_, member)| member.id).ok_or_else(|| {
        EngineError::NotFound(format!(
            "{} is no real of vip {}; add it with weight 0 first",
            wanted.real,
            pool.vip().name
        ))
    })
}

async fn add_vip(State(shared): Api, body: String) -> Result<Response, EngineError> {
    let beside = Beside::of(shared.engine().config());
    let vip: VipConfig = parse_vip(&body, beside)?;
    let name = vip.name.clone();
    let view = blocking(move || {
        let reals: Vec<IpAddr> = vip.reals.iter().map(|real| real.address).collect();
        shared.find_way(&reals, |config| {
            let mut route = Route::of(config);
            route.encapsulates |= vip.forwarding.encapsulates();
            route
        })?;
        let mut engine = shared.engine();
        engine.add_vip(vip)?;
        view(&engine, &name)
    });
    Ok((StatusCode::CREATED, Json(view.await?)).into_response())
}

fn parse_vip(body: &str, beside: Beside) -> Result<VipConfig, EngineError> {
    let value = parse_json(body)?;
    config::vip_from_json(value, beside).map_err(EngineError::Invalid)
}

fn parse_json<T: serde::de::DeserializeOwned>(body: &str) -> Result<T, EngineError> {
    serde_json::from_str(body)
        .map_err(|error| EngineError::Invalid(format!("the body is not what is expected: {error}")))
}

async fn remove_vip(
    State(shared): Api,
    Path(name): Path<String>,
) -> Result<StatusCode, EngineError> {
    blocking(move || shared.engine().remove_vip(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Changes a VIP or its reals; what they are then.
async fn changed(
    shared: Arc<Shared>,
    name: String,
    change: impl FnOnce(&mut VipConfig) -> Result<(), EngineError> + Send + 'static,
) -> Answer<VipView> {
    let view = blocking(move || {
        let mut engine = shared.engine();
        engine.change_vip(&name, change)?;
        view(&engine, &name)
    });
    Ok(Json(view.await?))
}

async fn change_vip(State(shared): Api, Path(name): Path<String>, body: String) -> Answer<VipView> {
    let change: VipChange = parse_json(&body)?;
    let change = serde_json::to_value(change)
        .map_err(|error| EngineError::Invalid(format!("no change of a vip: {error}")))?;
    changed(shared, name, move |vip| {
        *vip = config::changed_vip(vip, &change).map_err(EngineError::Invalid)?;
        Ok(())
    })
    .await
}

async fn add_real(State(shared): Api, Path(name): Path<String>, body: String) -> Answer<VipView> {
    let value: serde_json::Value = parse_json(&body)?;
    changed(shared, name, move |vip| {
        let real = config::real_from_json(vip, value).map_err(EngineError::Invalid)?;
        vip.reals.push(real);
        Ok(())
    })
    .await
}

async fn remove_real(
    State(shared): Api,
    Path((name, real)): Path<(String, String)>,
) -> Result<StatusCode, EngineError> {
    let removed = changed(shared, name, move |vip| {
        let index = find_real(vip, &real)?;
        if vip.reals.len() == 1 {
            return Err(EngineError::Conflict(format!(
                "{real} is the last real of {}; remove the vip, or drain the real",
                vip.name
            )));
        }
        vip.reals.remove(index);
        Ok(())
    });
    removed.await.map(|_| StatusCode::NO_CONTENT)
}

async fn change_real(
    State(shared): Api,
    Path((name, real)): Path<(String, String)>,
    body: String,
) -> Answer<VipView> {
    let change: RealChange = parse_json(&body)?;
    let view = blocking(move || {
        let view = {
            let mut engine = shared.engine();
            engine.change_real(&name, &real, &change, Moment::now().realtime_ns)?;
            view(&engine, &name)
        };
        shared.keep();
        view
    });
    Ok(Json(view.await?))
}

async fn overrides(State(shared): Api) -> Json<Vec<Override>> {
    Json(shared.engine().overrides())
}

/// Whose settings are to be dropped.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct OfReal {
    vip: Option<String>,
    real: Option<String>,
}

async fn drop_overrides(State(shared): Api, Query(of): Query<OfReal>) -> Answer<Vec<Override>> {
    let dropped = blocking(move || {
        let (vip, real) = (of.vip.as_deref(), of.real.as_deref());
        let dropped = shared.engine().drop_overrides(vip, real)?;
        shared.keep();
        Ok(dropped)
    });
    Ok(Json(dropped.await?))
}
