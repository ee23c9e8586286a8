// SPDX-License-Identifier: Apache-2.0
//! Reals, and what is set by hand of them.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use causeway_api::Moment;
use causeway_api::balancer::{Explanation, Override, RealChange, VipReal, VipView};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::vips::{changed, view};
use super::{Answer, Api, Daemon, parse_json};
use crate::by_hand::find_real;
use crate::engine::EngineError;
use crate::{config, explain, report};

/// The routes of this part.
pub(super) fn routes() -> OpenApiRouter<Daemon> {
    OpenApiRouter::new()
        .routes(routes!(add_real))
        .routes(routes!(change_real, remove_real))
        .routes(routes!(decisions))
        .routes(routes!(server, change_server))
        .routes(routes!(overrides, drop_overrides))
}

/// Adds a real: a `[[vip.real]]` of the file as JSON
#[utoipa::path(
    post, path = "/v1/vips/{vip}/reals",
    params(("vip" = String, Path, description = "Name, or address:port")),
    request_body(content = serde_json::Value),
    responses((status = 200, body = VipView)),
)]
async fn add_real(State(daemon): Api, Path(name): Path<String>, body: String) -> Answer<VipView> {
    let value: serde_json::Value = parse_json(&body)?;
    changed(daemon, name, move |vip| {
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
    State(daemon): Api,
    Path((name, real)): Path<(String, String)>,
    Query(may_be): Query<LastReal>,
) -> Result<StatusCode, EngineError> {
    let removed = changed(daemon, name, move |vip| {
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
    State(daemon): Api,
    Path((name, real)): Path<(String, String)>,
    body: String,
) -> Answer<VipView> {
    let change: RealChange = parse_json(&body)?;
    let view = daemon.shared(move |shared| {
        let view = {
            let mut engine = shared.engine();
            engine.change_real(&name, &real, &change, Moment::now().realtime_ns)?;
            view(&engine, &name)
        };
        shared.keep();
        view
    });
    view.await.map(Json)
}

/// Why a real has its weight
#[utoipa::path(
    get, path = "/v1/vips/{vip}/reals/{real}/decisions",
    params(("vip" = String, Path, description = "Name, or address:port"), ("real" = String, Path, description = "Address")),
    responses((status = 200, body = Explanation)),
)]
async fn decisions(
    State(daemon): Api,
    Path((vip, real)): Path<(String, String)>,
) -> Answer<Explanation> {
    let why = daemon.engine(move |engine| explain::explain(engine, &vip, &real));
    why.await.map(Json)
}

/// A server in each VIP that has it
#[utoipa::path(
    get, path = "/v1/reals/{real}",
    params(("real" = String, Path, description = "Address")),
    responses((status = 200, body = Vec<VipReal>)),
)]
async fn server(State(daemon): Api, Path(real): Path<String>) -> Answer<Vec<VipReal>> {
    let views = daemon.engine(move |engine| {
        let places = engine.members_at(&real)?;
        Ok(report::reals_at(engine, &places)?)
    });
    views.await.map(Json)
}

/// Changes weight, drain or maintenance of a server in each VIP that has it, or in none
#[utoipa::path(
    patch, path = "/v1/reals/{real}",
    params(("real" = String, Path, description = "Address")),
    request_body(content = RealChange),
    responses((status = 200, body = Vec<VipReal>)),
)]
async fn change_server(
    State(daemon): Api,
    Path(real): Path<String>,
    body: String,
) -> Answer<Vec<VipReal>> {
    let change: RealChange = parse_json(&body)?;
    let views = daemon.shared(move |shared| {
        let views = {
            let mut engine = shared.engine();
            let places = engine.members_at(&real)?;
            engine.change_reals(&places, &change, Moment::now().realtime_ns)?;
            report::reals_at(&engine, &places)?
        };
        shared.keep();
        Ok(views)
    });
    views.await.map(Json)
}

/// What is set by hand and differs from the file
#[utoipa::path(get, path = "/v1/overrides", responses((status = 200, body = Vec<Override>)))]
async fn overrides(State(daemon): Api) -> Answer<Vec<Override>> {
    let overrides = daemon.engine(|engine| Ok(engine.overrides()));
    overrides.await.map(Json)
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
async fn drop_overrides(State(daemon): Api, Query(of): Query<OfReal>) -> Answer<Vec<Override>> {
    let dropped = daemon.shared(move |shared| {
        let (vip, real) = (of.vip.as_deref(), of.real.as_deref());
        let dropped = shared.engine().drop_overrides(vip, real)?;
        shared.keep();
        Ok(dropped)
    });
    dropped.await.map(Json)
}
