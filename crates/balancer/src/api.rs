// SPDX-License-Identifier: Apache-2.0
//! The HTTP API, on the Unix socket and, read-only, on a loopback address.
//! docs/reference/api.md describes it for others.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use causeway_api::balancer::{
    Connections, Difference, Drops, Explanation, History, MoveConnection, Moves, Override,
    RealChange, Stats, Status, Timeline, VipChange, VipReal, VipView,
};
use causeway_api::fleet::{
    Agreement, FleetPush, FleetPushed, FleetRollback, FleetTokenOrder, FleetView, PassBy, PeersView,
};
use causeway_api::{Moment, haproxy};
use causeway_dataplane::RealId;
use causeway_service::access::Rules;
use causeway_service::http::{described, description, problem, with_description};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::by_hand::find_real;
use super::engine::{Engine, EngineError};
use super::fleet::FleetOrder;
use super::plane::Route;
use super::pool::Pool;
use super::report::Listed;
use super::shared::{Shared, no_fleet};
use super::slots::HEAVIEST_MAX;
use super::{metrics, page, report, streamed};
use crate::config::{self, Beside, VipConfig};

/// What holds for all of it (docs/reference/api.md).
const ABOUT: &str = "On the Unix socket, to read on a loopback address, and to other hosts by TLS with tokens. Units stand in the names. Fields may be added; none is renamed or changes its unit within /v1.";

/// What the routes ask of other hosts.
pub(crate) const RULES: Rules = Rules {
    operators: is_for_operators,
    open: &page::PATHS,
};

/// Most epochs in one answer: some 5 MB.
const HISTORY_EPOCHS: usize = 20_000;
/// Most steps of a timeline in one answer: some 8 MB.
const TIMELINE_STEPS: usize = 20_000;

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

/// Drains, maintenance, weights and connections: what is set back as easily.
fn is_for_operators(method: &Method, path: &str) -> bool {
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    match segments.as_slice() {
        ["v1", "vips", _, "reals", _] | ["v1", "reals", _] => method == Method::PATCH,
        ["v1", "vips", _, "discovery", "accept"] => method == Method::POST,
        ["v1", "overrides"] => method == Method::DELETE,
        ["v1", "connections", "move"] => method == Method::POST,
        _ => false,
    }
}

/// The longest file that is checked or compared.
const FILE_MAX: usize = 64 << 20;

/// Every route; other hosts have them by their roles.
pub(crate) fn router(shared: Arc<Shared>) -> Router {
    with_description(routes(), RULES)
        // Telegraf and Datadog add `/;csv` to what they are given.
        .route("/v1/haproxy/{*rest}", get(haproxy_csv))
        .merge(page::router())
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(shared)
}

/// The same for the Unix socket: the file of a million reals has 32 MB.
pub(crate) fn socket_router(shared: Arc<Shared>) -> Router {
    router(shared).layer(DefaultBodyLimit::max(FILE_MAX))
}

/// Every route of the API, with its description.
fn routes() -> OpenApiRouter<Arc<Shared>> {
    described("Causeway, balancer", ABOUT)
        .routes(routes!(status))
        .routes(routes!(stats))
        .routes(routes!(vips, add_vip))
        .routes(routes!(vip, change_vip, remove_vip))
        .routes(routes!(timeline))
        .routes(routes!(accept_found))
        .routes(routes!(add_real))
        .routes(routes!(change_real, remove_real))
        .routes(routes!(server, change_server))
        .routes(routes!(haproxy_csv))
        .routes(routes!(decisions))
        .routes(routes!(history))
        .routes(routes!(connections))
        .routes(routes!(move_connection))
        .routes(routes!(overrides, drop_overrides))
        .routes(routes!(moves))
        .routes(routes!(drops))
        .routes(routes!(agreement))
        .routes(routes!(fleet))
        .routes(routes!(found_fleet))
        .routes(routes!(join_fleet))
        .routes(routes!(leave_fleet))
        .routes(routes!(pass_member_by))
        .routes(routes!(make_token))
        .routes(routes!(push_to_fleet))
        .routes(routes!(roll_fleet_back))
        .routes(routes!(peers))
        .routes(routes!(reload))
        .routes(routes!(check))
        .routes(routes!(diff))
        .routes(routes!(metrics_page))
}

/// The API in OpenAPI's words.
pub fn openapi() -> String {
    description(routes().into_openapi(), RULES)
}

async fn no_route(request: Request) -> Response {
    let path = request.uri().path();
    problem(
        StatusCode::NOT_FOUND,
        format!(
            "there is nothing at {path}; see /v1/status, /v1/stats, /v1/vips, /v1/reals/ADDRESS, /v1/overrides, /v1/haproxy, /v1/history, /v1/moves, /v1/drops, /v1/agreement, /v1/fleet, /v1/peers, /metrics, or at / for people"
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
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
) -> Result<T, EngineError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| EngineError::Plane(error.into()))?
}

/// The daemon: what it runs on, and whether its configuration is in force
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = Status)))]
async fn status(State(shared): Api) -> Json<Status> {
    let mut status = shared.status().clone();
    status.state_error = shared.state_error();
    let engine = shared.engine();
    status.data_plane_error = engine.hold_error().map(str::to_owned);
    status.held_vips = engine.held_vips().to_vec();
    status.unfinished = engine.unfinished().map(str::to_owned);
    status.interval_ns = engine.config().control.interval_ns;
    Json(status)
}

/// Which VIPs and reals to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
struct StatsQuery {
    /// All reals of VIPs that are not ready; of the others only those that are not active or could not be probed.
    brief: bool,
    /// A part of the VIPs: from this one on, those that have 4,096 reals together.
    from: Option<usize>,
}

/// All counters, VIPs and reals
#[utoipa::path(
    get, path = "/v1/stats",
    params(StatsQuery),
    responses((status = 200, body = Stats)),
)]
async fn stats(
    State(shared): Api,
    Query(StatsQuery { brief, from }): Query<StatsQuery>,
) -> Result<Response, EngineError> {
    let listed = if brief { Listed::Amiss } else { Listed::All };
    let all = Arc::clone(&shared);
    let part = from.map(|from| blocking(move || Ok(streamed::part(&all, from))));
    let part = match part {
        Some(part) => Some(part.await?),
        None => None,
    };
    let head = move |engine: &Engine| -> anyhow::Result<String> {
        let stats = report::stats_without_vips(engine, Moment::now(), part)?;
        let text = serde_json::to_string(&stats)?;
        let head = text.strip_suffix("]}").context("stats end with VIPs")?;
        Ok(head.to_owned())
    };
    streamed::vips(shared, (listed, from), head, "]}").await
}

/// All VIPs with their reals
#[utoipa::path(get, path = "/v1/vips", responses((status = 200, body = Vec<VipView>)))]
async fn vips(State(shared): Api) -> Result<Response, EngineError> {
    streamed::vips(shared, (Listed::All, None), |_| Ok("[".to_owned()), "]").await
}

/// One VIP with its reals
#[utoipa::path(
    get, path = "/v1/vips/{vip}",
    params(("vip" = String, Path, description = "Name, or address:port")),
    responses((status = 200, body = VipView)),
)]
async fn vip(State(shared): Api, Path(name): Path<String>) -> Answer<VipView> {
    let view = blocking(move || view(&shared.engine(), &name));
    Ok(Json(view.await?))
}

/// One VIP, as it is answered.
fn view(engine: &Engine, name: &str) -> Result<VipView, EngineError> {
    let at = engine.find_vip(name)?;
    let mut views = report::vips_of(engine, at..at + 1, Listed::All)?;
    views
        .pop()
        .ok_or_else(|| EngineError::NotFound(format!("vip {name} is not at work")))
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct HistoryQuery {
    /// CLOCK_REALTIME.
    since_ns: Option<u64>,
    /// CLOCK_MONOTONIC; the later of both holds.
    since_monotonic_ns: Option<u64>,
    /// Most epochs of all series together.
    limit: Option<usize>,
}

/// Every control interval of every real, in pages
#[utoipa::path(
    get, path = "/v1/history",
    params(HistoryQuery),
    responses((status = 200, body = History)),
)]
async fn history(State(shared): Api, Query(query): Query<HistoryQuery>) -> Json<History> {
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
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
struct Since {
    /// CLOCK_MONOTONIC.
    since_monotonic_ns: u64,
}

/// The last quarter of an hour of each real of a VIP, in steps
#[utoipa::path(
    get, path = "/v1/vips/{vip}/timeline",
    params(("vip" = String, Path, description = "Name, or address:port"), Since),
    responses((status = 200, body = Timeline)),
)]
async fn timeline(
    State(shared): Api,
    Path(name): Path<String>,
    Query(since): Query<Since>,
) -> Answer<Timeline> {
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

/// What was dropped in the last quarter of an hour, by name
#[utoipa::path(get, path = "/v1/drops", params(Since), responses((status = 200, body = Drops)))]
async fn drops(State(shared): Api, Query(since): Query<Since>) -> Json<Drops> {
    Json(report::drops(&shared.engine(), since.since_monotonic_ns))
}

/// The last changes of weight
#[utoipa::path(get, path = "/v1/moves", params(Since), responses((status = 200, body = Moves)))]
async fn moves(State(shared): Api, Query(since): Query<Since>) -> Json<Moves> {
    Json(report::moves(&shared.engine(), since.since_monotonic_ns))
}

/// What balancers of the same VIPs must have alike, as digests to compare
#[utoipa::path(get, path = "/v1/agreement", responses((status = 200, body = Agreement)))]
async fn agreement(State(shared): Api) -> Answer<Agreement> {
    let agreement = blocking(move || Ok(super::agreement::agreement(&shared.engine())?));
    Ok(Json(agreement.await?))
}

/// How the fleet stands, as this balancer sees it
#[utoipa::path(get, path = "/v1/fleet", responses((status = 200, body = FleetView)))]
async fn fleet(State(shared): Api) -> Answer<FleetView> {
    let engine = shared.engine();
    let fleet = engine.fleet.as_ref().ok_or_else(no_fleet)?;
    Ok(Json(fleet.view.clone()))
}

/// Founds the fleet with what runs here, or puts its book back into a store that has lost it
#[utoipa::path(
    post, path = "/v1/fleet/found",
    responses((status = 200, body = String, content_type = "application/json")),
)]
async fn found_fleet(State(shared): Api) -> Answer<String> {
    blocking(move || shared.order(FleetOrder::Found))
        .await
        .map(Json)
}

/// Brings this balancer back after it left
#[utoipa::path(
    post, path = "/v1/fleet/join",
    responses((status = 200, body = String, content_type = "application/json")),
)]
async fn join_fleet(State(shared): Api) -> Answer<String> {
    blocking(move || shared.order(FleetOrder::Join))
        .await
        .map(Json)
}

/// Withdraws this balancer's routes, and has the fleet go on without it
#[utoipa::path(
    post, path = "/v1/fleet/leave",
    responses((status = 200, body = String, content_type = "application/json")),
)]
async fn leave_fleet(State(shared): Api) -> Answer<String> {
    blocking(move || shared.order(FleetOrder::Leave))
        .await
        .map(Json)
}

/// Has the fleet go on without another member, of which an operator knows that it gets no packets
#[utoipa::path(
    post, path = "/v1/fleet/pass-by",
    request_body(content = PassBy),
    responses((status = 200, body = String, content_type = "application/json")),
)]
async fn pass_member_by(State(shared): Api, body: String) -> Answer<String> {
    let PassBy { member } = parse_json(&body)?;
    let order = FleetOrder::PassBy(member);
    blocking(move || shared.order(order)).await.map(Json)
}

/// Makes a token by which the agent of a new server gets that server's keys file, once
///
/// The token is a secret.
#[utoipa::path(
    post, path = "/v1/fleet/token",
    request_body(content = FleetTokenOrder),
    responses((status = 200, body = String, content_type = "application/json")),
)]
async fn make_token(State(shared): Api, body: String) -> Answer<String> {
    let order = FleetOrder::Token(parse_json(&body)?);
    blocking(move || shared.order(order)).await.map(Json)
}

/// Reads the configuration again, and has the fleet have its VIPs and reals, and no others
#[utoipa::path(
    post, path = "/v1/fleet/push",
    request_body(content = FleetPush),
    responses((status = 200, body = FleetPushed)),
)]
async fn push_to_fleet(State(shared): Api, body: String) -> Answer<FleetPushed> {
    let order = parse_json(&body)?;
    blocking(move || shared.push(order)).await.map(Json)
}

/// Has the fleet have the VIPs and reals of a former revision
#[utoipa::path(
    post, path = "/v1/fleet/rollback",
    request_body(content = FleetRollback),
    responses((status = 200, body = FleetPushed)),
)]
async fn roll_fleet_back(State(shared): Api, body: String) -> Answer<FleetPushed> {
    let order = parse_json(&body)?;
    blocking(move || shared.rollback(order)).await.map(Json)
}

/// How the exchange with the balancers of the same VIPs stands
#[utoipa::path(get, path = "/v1/peers", responses((status = 200, body = PeersView)))]
async fn peers(State(shared): Api) -> Json<PeersView> {
    Json(shared.engine().peers_view(Moment::now().monotonic_ns))
}

/// Why a real has its weight
#[utoipa::path(
    get, path = "/v1/vips/{vip}/reals/{real}/decisions",
    params(("vip" = String, Path, description = "Name, or address:port"), ("real" = String, Path, description = "Address")),
    responses((status = 200, body = Explanation)),
)]
async fn decisions(
    State(shared): Api,
    Path((vip, real)): Path<(String, String)>,
) -> Answer<Explanation> {
    Ok(Json(super::decisions::explain(
        &shared.engine(),
        &vip,
        &real,
    )?))
}

/// Whose metrics.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
struct MetricsOf {
    /// Of this VIP and its reals alone: name, or address:port.
    vip: Option<String>,
}

/// Metrics for Prometheus; with more than 20,000 reals those of reals only where a VIP is named
#[utoipa::path(
    get, path = "/metrics",
    params(MetricsOf),
    responses((status = 200, content((String = "text/plain"), (String = "application/openmetrics-text"), (Vec<u8> = "application/vnd.google.protobuf")))),
)]
async fn metrics_page(
    State(shared): Api,
    Query(of): Query<MetricsOf>,
    headers: HeaderMap,
) -> Result<Response, EngineError> {
    blocking(move || {
        let state_kept = shared.state_error().is_none();
        let page = {
            let engine = shared.engine();
            let of = of.vip.map(|vip| engine.find_vip(&vip)).transpose()?;
            metrics::Page::of(&engine, of, state_kept, Moment::now())?
        };
        Ok(page.scraped().answer(&headers))
    })
    .await
}

/// The counters of VIPs and reals as HAProxy shows its own (CSV), for programs that read those
#[utoipa::path(
    get, path = "/v1/haproxy",
    responses((status = 200, body = String, content_type = "text/csv")),
)]
async fn haproxy_csv(State(shared): Api) -> Result<Response, EngineError> {
    blocking(move || {
        let stats = {
            let engine = shared.engine();
            if engine.reals > metrics::REALS_MAX {
                return Err(EngineError::Conflict(format!(
                    "{} reals are too many for one answer: `causeway stats --haproxy` prints them",
                    engine.reals
                )));
            }
            Stats {
                vips: report::vips_of(&engine, 0..engine.pools().len(), Listed::All)?,
                ..report::stats_without_vips(&engine, Moment::now(), None)?
            }
        };
        let kind = (header::CONTENT_TYPE, "text/csv; charset=utf-8");
        Ok(([kind], haproxy::csv(&stats)).into_response())
    })
    .await
}

/// Says what a reload of a file with this text would say; changes nothing
#[utoipa::path(
    post, path = "/v1/check",
    request_body(content = String),
    responses((status = 200, body = String, content_type = "application/json")),
)]
async fn check(State(shared): Api, text: String) -> Answer<String> {
    blocking(move || shared.check(&text)).await.map(Json)
}

/// Says what a reload of a file with this text would change; changes nothing
#[utoipa::path(
    post, path = "/v1/diff",
    request_body(content = String),
    responses((status = 200, body = Difference)),
)]
async fn diff(State(shared): Api, text: String) -> Answer<Difference> {
    blocking(move || shared.diff(&text)).await.map(Json)
}

/// Reads the configuration again, as SIGHUP does
#[utoipa::path(
    post, path = "/v1/reload",
    responses((status = 200, body = String, content_type = "application/json")),
)]
async fn reload(State(shared): Api) -> Answer<String> {
    blocking(move || shared.reload()).await.map(Json)
}

/// How many of the heaviest senders to name, and how long to watch for them.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
struct Heaviest {
    /// Most that are named; 20, and no more than 1000.
    count: usize,
    /// Milliseconds between the two looks; 1000.
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

/// The connections of stateful VIPs that send most
#[utoipa::path(
    get, path = "/v1/connections",
    params(Heaviest),
    responses((status = 200, body = Connections)),
)]
async fn connections(State(shared): Api, Query(wanted): Query<Heaviest>) -> Answer<Connections> {
    let Some(slots) = shared.slots() else {
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

/// Sends a connection of a stateful VIP to another real
#[utoipa::path(
    post, path = "/v1/connections/move",
    request_body(content = MoveConnection),
    responses((status = 204)),
)]
async fn move_connection(State(shared): Api, body: String) -> Result<StatusCode, EngineError> {
    let wanted: MoveConnection = parse_json(&body)?;
    let Some(slots) = shared.slots() else {
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
    let pool = of(wanted.vip.port()).or_else(|| of(0)).ok_or_else(|| {
        EngineError::NotFound(format!("{} is not a stateful vip here", wanted.vip))
    })?;
    let mut members = pool.members();
    let found = members.find(|(real, _)| real.address == wanted.real);
    found.map(|(_, member)| member.id).ok_or_else(|| {
        EngineError::NotFound(format!(
            "{} is not a real of vip {}; add it with weight 0 first",
            wanted.real,
            pool.vip().name
        ))
    })
}

/// Adds a VIP: a `[[vip]]` of the file as JSON, reals under `real`
#[utoipa::path(
    post, path = "/v1/vips",
    request_body(content = serde_json::Value),
    responses((status = 201, body = VipView)),
)]
async fn add_vip(State(shared): Api, body: String) -> Result<Response, EngineError> {
    let beside = Beside::of(shared.engine().config());
    let vip: VipConfig = parse_vip(&body, beside)?;
    let name = vip.name.clone();
    let view = blocking(move || {
        let reals = || vip.reals.iter().map(|real| real.address).collect();
        shared.find_way(reals, |config| {
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

/// Removes a VIP
#[utoipa::path(
    delete, path = "/v1/vips/{vip}",
    params(("vip" = String, Path, description = "Name, or address:port")),
    responses((status = 204)),
)]
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

/// Changes a VIP
#[utoipa::path(
    patch, path = "/v1/vips/{vip}",
    params(("vip" = String, Path, description = "Name, or address:port")),
    request_body(content = VipChange),
    responses((status = 200, body = VipView)),
)]
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

/// Takes the answer about a VIP's reals that is held because it takes away too many
#[utoipa::path(
    post, path = "/v1/vips/{vip}/discovery/accept",
    params(("vip" = String, Path, description = "Name, or address:port")),
    responses((status = 200, body = VipView)),
)]
async fn accept_found(State(shared): Api, Path(name): Path<String>) -> Answer<VipView> {
    let accepted = blocking(move || {
        let mut engine = shared.engine();
        engine.accept_found(Moment::now(), &name)?;
        view(&engine, &name)
    });
    Ok(Json(accepted.await?))
}

/// Adds a real: a `[[vip.real]]` of the file as JSON
#[utoipa::path(
    post, path = "/v1/vips/{vip}/reals",
    params(("vip" = String, Path, description = "Name, or address:port")),
    request_body(content = serde_json::Value),
    responses((status = 200, body = VipView)),
)]
async fn add_real(State(shared): Api, Path(name): Path<String>, body: String) -> Answer<VipView> {
    let value: serde_json::Value = parse_json(&body)?;
    changed(shared, name, move |vip| {
        let real = config::real_from_json(vip, value).map_err(EngineError::Invalid)?;
        vip.reals.push(real);
        Ok(())
    })
    .await
}

/// Whether the VIP may be left without a real.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
struct LastReal {
    /// Also where it is the VIP's last.
    last: bool,
}

/// Removes a real; its flows are picked again
#[utoipa::path(
    delete, path = "/v1/vips/{vip}/reals/{real}",
    params(("vip" = String, Path, description = "Name, or address:port"), ("real" = String, Path, description = "Address"), LastReal),
    responses((status = 204)),
)]
async fn remove_real(
    State(shared): Api,
    Path((name, real)): Path<(String, String)>,
    Query(may_be): Query<LastReal>,
) -> Result<StatusCode, EngineError> {
    let removed = changed(shared, name, move |vip| {
        let index = find_real(vip, &real)?;
        if vip.reals.len() == 1 && !may_be.last {
            return Err(EngineError::Conflict(format!(
                "{real} is the last real of {}; remove the vip, or drain the real",
                vip.name
            )));
        }
        if vip.reals[index].found {
            return Err(EngineError::Conflict(format!(
                "{real} is discovered, and the next answer would bring it back; drain it instead, or take it out of what {} is discovered from",
                vip.name
            )));
        }
        vip.reals.remove(index);
        Ok(())
    });
    removed.await.map(|_| StatusCode::NO_CONTENT)
}

/// Changes weight, drain or maintenance of a real
#[utoipa::path(
    patch, path = "/v1/vips/{vip}/reals/{real}",
    params(("vip" = String, Path, description = "Name, or address:port"), ("real" = String, Path, description = "Address")),
    request_body(content = RealChange),
    responses((status = 200, body = VipView)),
)]
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

/// A server in each VIP that has it
#[utoipa::path(
    get, path = "/v1/reals/{real}",
    params(("real" = String, Path, description = "Address")),
    responses((status = 200, body = Vec<VipReal>)),
)]
async fn server(State(shared): Api, Path(real): Path<String>) -> Answer<Vec<VipReal>> {
    let views = blocking(move || {
        let engine = shared.engine();
        let places = engine.places_of(&real)?;
        Ok(report::reals_at(&engine, &places)?)
    });
    Ok(Json(views.await?))
}

/// Changes weight, drain or maintenance of a server in each VIP that has it, or in none
#[utoipa::path(
    patch, path = "/v1/reals/{real}",
    params(("real" = String, Path, description = "Address")),
    request_body(content = RealChange),
    responses((status = 200, body = Vec<VipReal>)),
)]
async fn change_server(
    State(shared): Api,
    Path(real): Path<String>,
    body: String,
) -> Answer<Vec<VipReal>> {
    let change: RealChange = parse_json(&body)?;
    let views = blocking(move || {
        let views = {
            let mut engine = shared.engine();
            let places = engine.places_of(&real)?;
            engine.change_reals(&places, &change, Moment::now().realtime_ns)?;
            report::reals_at(&engine, &places)?
        };
        shared.keep();
        Ok(views)
    });
    Ok(Json(views.await?))
}

/// What is set by hand and differs from the file
#[utoipa::path(get, path = "/v1/overrides", responses((status = 200, body = Vec<Override>)))]
async fn overrides(State(shared): Api) -> Json<Vec<Override>> {
    Json(shared.engine().overrides())
}

/// Whose settings are to be dropped.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
struct OfReal {
    /// Of this VIP alone.
    vip: Option<String>,
    /// Of this real alone.
    real: Option<String>,
}

/// Drops what is set by hand: of one real, of one VIP, or of all
#[utoipa::path(
    delete, path = "/v1/overrides",
    params(OfReal),
    responses((status = 200, body = Vec<Override>)),
)]
async fn drop_overrides(State(shared): Api, Query(of): Query<OfReal>) -> Answer<Vec<Override>> {
    let dropped = blocking(move || {
        let (vip, real) = (of.vip.as_deref(), of.real.as_deref());
        let dropped = shared.engine().drop_overrides(vip, real)?;
        shared.keep();
        Ok(dropped)
    });
    Ok(Json(dropped.await?))
}
