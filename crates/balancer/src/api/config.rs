// SPDX-License-Identifier: Apache-2.0
//! The configuration.

use axum::Json;
use axum::extract::State;
use causeway_api::balancer::Difference;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, Api, Daemon};

/// The routes of this part.
pub(super) fn routes() -> OpenApiRouter<Daemon> {
    OpenApiRouter::new()
        .routes(routes!(reload))
        .routes(routes!(check))
        .routes(routes!(diff))
}

/// Says what a reload of a file with this text would say; changes nothing
#[utoipa::path(
    post, path = "/v1/check",
    request_body(content = String),
    responses((status = 200, body = String, content_type = "application/json")),
)]
async fn check(State(daemon): Api, text: String) -> Answer<String> {
    let told = daemon.shared(move |shared| shared.check(&text));
    told.await.map(Json)
}

/// Says what a reload of a file with this text would change; changes nothing
#[utoipa::path(
    post, path = "/v1/diff",
    request_body(content = String),
    responses((status = 200, body = Difference)),
)]
async fn diff(State(daemon): Api, text: String) -> Answer<Difference> {
    let told = daemon.shared(move |shared| shared.diff(&text));
    told.await.map(Json)
}

/// Reads the configuration again, as SIGHUP does
#[utoipa::path(
    post, path = "/v1/reload",
    responses((status = 200, body = String, content_type = "application/json")),
)]
async fn reload(State(daemon): Api) -> Answer<String> {
    daemon.shared(|shared| shared.reload()).await.map(Json)
}
