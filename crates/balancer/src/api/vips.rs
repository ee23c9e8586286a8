// SPDX-License-Identifier: Apache-2.0
//! VIPs.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use causeway_api::Moment;
use causeway_api::balancer::{VipChange, VipView};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, Api, Daemon, parse_json, streamed};
use crate::config::{self, Beside, VipConfig};
use crate::engine::{Engine, EngineError};
use crate::plane::Route;
use crate::report::{self, Listed};

/// The routes of this part.
pub(super) fn routes() -> OpenApiRouter<Daemon> {
    OpenApiRouter::new()
        .routes(routes!(vips, add_vip))
        .routes(routes!(vip, change_vip, remove_vip))
        .routes(routes!(accept_found))
}

/// All VIPs with their reals
#[utoipa::path(get, path = "/v1/vips", responses((status = 200, body = Vec<VipView>)))]
async fn vips(State(daemon): Api) -> Result<Response, EngineError> {
    streamed::vips(daemon, (Listed::All, None), |_| Ok("[".to_owned()), "]").await
}

/// One VIP with its reals
#[utoipa::path(
    get, path = "/v1/vips/{vip}",
    params(("vip" = String, Path, description = "Name, or address:port")),
    responses((status = 200, body = VipView)),
)]
async fn vip(State(daemon): Api, Path(name): Path<String>) -> Answer<VipView> {
    let view = daemon.engine(move |engine| view(engine, &name));
    view.await.map(Json)
}

/// One VIP, as it is answered.
pub(super) fn view(engine: &Engine, name: &str) -> Result<VipView, EngineError> {
    let at = engine.find_vip(name)?;
    let mut views = report::vips_of(engine, at..at + 1, Listed::All)?;
    views
        .pop()
        .ok_or_else(|| EngineError::NotFound(format!("vip {name} is not at work")))
}

/// Adds a VIP: a `[[vip]]` of the file as JSON, reals under `real`
#[utoipa::path(
    post, path = "/v1/vips",
    request_body(content = serde_json::Value),
    responses((status = 201, body = VipView)),
)]
async fn add_vip(State(daemon): Api, body: String) -> Result<Response, EngineError> {
    let vip = parse_json(&body)?;
    let view = daemon.shared(move |shared| {
        let beside = Beside::of(shared.engine().config());
        let vip = config::vip_from_json(vip, beside).map_err(EngineError::Invalid)?;
        let name = vip.name.clone();
        let reals = || vip.reals.iter().map(|real| real.address).collect();
        shared.find_way(reals, |config| {
            let mut route = Route::of(config);
            route.encapsulates |= vip.forwarding.encapsulates();
            route
        })?;
        let view = {
            let mut engine = shared.engine();
            engine.add_vip(vip)?;
            view(&engine, &name)
        };
        shared.keep();
        view
    });
    Ok((StatusCode::CREATED, Json(view.await?)).into_response())
}

/// Removes a VIP
#[utoipa::path(
    delete, path = "/v1/vips/{vip}",
    params(("vip" = String, Path, description = "Name, or address:port")),
    responses((status = 204)),
)]
async fn remove_vip(
    State(daemon): Api,
    Path(name): Path<String>,
) -> Result<StatusCode, EngineError> {
    let removed = daemon.engine(move |engine| engine.remove_vip(&name));
    removed.await.map(|()| StatusCode::NO_CONTENT)
}

/// Changes a VIP or its reals; what they are then.
pub(super) async fn changed(
    daemon: Daemon,
    name: String,
    change: impl FnOnce(&mut VipConfig) -> Result<(), EngineError> + Send + 'static,
) -> Answer<VipView> {
    let view = daemon.shared(move |shared| {
        let view = {
            let mut engine = shared.engine();
            engine.change_vip(&name, change)?;
            view(&engine, &name)
        };
        shared.keep();
        view
    });
    view.await.map(Json)
}

/// Changes a VIP
#[utoipa::path(
    patch, path = "/v1/vips/{vip}",
    params(("vip" = String, Path, description = "Name, or address:port")),
    request_body(content = VipChange),
    responses((status = 200, body = VipView)),
)]
async fn change_vip(State(daemon): Api, Path(name): Path<String>, body: String) -> Answer<VipView> {
    let change: VipChange = parse_json(&body)?;
    let change = serde_json::to_value(change)
        .map_err(|error| EngineError::Invalid(format!("no change of a vip: {error}")))?;
    changed(daemon, name, move |vip| {
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
async fn accept_found(State(daemon): Api, Path(name): Path<String>) -> Answer<VipView> {
    let accepted = daemon.engine(move |engine| {
        engine.accept_found(Moment::now(), &name)?;
        view(engine, &name)
    });
    accepted.await.map(Json)
}
