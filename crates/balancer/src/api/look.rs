// SPDX-License-Identifier: Apache-2.0
//! What the daemon is, counts and has done.

use anyhow::Context as _;
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use causeway_api::balancer::{Drops, History, Moves, Stats, Status, Timeline};
use causeway_api::{Moment, haproxy};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, Api, Daemon, streamed};
use crate::engine::{Engine, EngineError};
use crate::metrics;
use crate::report::{self, Listed};

/// Most epochs in one answer: some 5 MB.
const HISTORY_EPOCHS: usize = 20_000;
/// Most steps of a timeline in one answer: some 8 MB.
const TIMELINE_STEPS: usize = 20_000;

/// The routes of this part.
pub(super) fn routes() -> OpenApiRouter<Daemon> {
    OpenApiRouter::new()
        .routes(routes!(status))
        .routes(routes!(stats))
        .routes(routes!(timeline))
        .routes(routes!(history))
        .routes(routes!(moves))
        .routes(routes!(drops))
        .routes(routes!(haproxy_csv))
        .routes(routes!(metrics_page))
}

/// The daemon: what it runs on, and whether its configuration is in force
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = Status)))]
async fn status(State(daemon): Api) -> Answer<Status> {
    let status = daemon.shared(|shared| {
        let mut status = shared.status().clone();
        status.state_error = shared.state_error();
        let engine = shared.engine();
        status.data_plane_error = engine.attachment().error().map(str::to_owned);
        status.held_vips = engine.vips_on_host().views().to_vec();
        status.unfinished = engine.unfinished().map(str::to_owned);
        status.interval_ns = engine.config().control.interval_ns;
        Ok(status)
    });
    status.await.map(Json)
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
    State(daemon): Api,
    Query(StatsQuery { brief, from }): Query<StatsQuery>,
) -> Result<Response, EngineError> {
    let listed = if brief { Listed::Amiss } else { Listed::All };
    let part = match from {
        Some(from) => Some(
            daemon
                .shared(move |shared| Ok(streamed::part(shared, from)))
                .await?,
        ),
        None => None,
    };
    let head = move |engine: &Engine| -> anyhow::Result<String> {
        let stats = report::stats_without_vips(engine, Moment::now(), part)?;
        let text = serde_json::to_string(&stats)?;
        let head = text.strip_suffix("]}").context("stats end with VIPs")?;
        Ok(head.to_owned())
    };
    streamed::vips(daemon, (listed, from), head, "]}").await
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
async fn history(State(daemon): Api, Query(query): Query<HistoryQuery>) -> Answer<History> {
    let history = daemon.engine(move |engine| {
        let since = query.since_ns.map_or(0, |ns| engine.monotonic(ns));
        let since = since.max(query.since_monotonic_ns.unwrap_or(0));
        let limit = query.limit.unwrap_or(HISTORY_EPOCHS).min(HISTORY_EPOCHS);
        Ok(report::history(engine, since, limit))
    });
    history.await.map(Json)
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
    State(daemon): Api,
    Path(name): Path<String>,
    Query(since): Query<Since>,
) -> Answer<Timeline> {
    let timeline = daemon.engine(move |engine| {
        let pool = engine.pool(&name)?;
        let since_ns = since.since_monotonic_ns;
        Ok(report::timeline(pool, engine, since_ns, TIMELINE_STEPS))
    });
    timeline.await.map(Json)
}

/// What was dropped in the last quarter of an hour, by name
#[utoipa::path(get, path = "/v1/drops", params(Since), responses((status = 200, body = Drops)))]
async fn drops(State(daemon): Api, Query(since): Query<Since>) -> Answer<Drops> {
    let drops = daemon.engine(move |engine| Ok(report::drops(engine, since.since_monotonic_ns)));
    drops.await.map(Json)
}

/// The last changes of weight
#[utoipa::path(get, path = "/v1/moves", params(Since), responses((status = 200, body = Moves)))]
async fn moves(State(daemon): Api, Query(since): Query<Since>) -> Answer<Moves> {
    let moves = daemon.engine(move |engine| Ok(report::moves(engine, since.since_monotonic_ns)));
    moves.await.map(Json)
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
    State(daemon): Api,
    Query(of): Query<MetricsOf>,
    headers: HeaderMap,
) -> Result<Response, EngineError> {
    let page = daemon.shared(move |shared| {
        let state_kept = shared.state_error().is_none();
        let page = {
            let engine = shared.engine();
            let of = of.vip.map(|vip| engine.find_vip(&vip)).transpose()?;
            metrics::Page::of(&engine, of, state_kept, Moment::now())?
        };
        Ok(page.scraped().answer(&headers))
    });
    page.await
}

/// The counters of VIPs and reals as HAProxy shows its own (CSV), for programs that read those
#[utoipa::path(
    get, path = "/v1/haproxy",
    responses((status = 200, body = String, content_type = "text/csv")),
)]
pub(super) async fn haproxy_csv(State(daemon): Api) -> Result<Response, EngineError> {
    let csv = daemon.shared(|shared| {
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
    });
    csv.await
}
