// SPDX-License-Identifier: Apache-2.0
//! The HTTP API, on the Unix socket and, read-only, on a loopback address.
//! docs/reference/api.md describes it for others.
//!
//! Each file has a part of the routes; [`Daemon`] is how they reach the engine.

mod config;
mod connections;
mod daemon;
mod fleet;
mod look;
mod reals;
mod streamed;
mod vips;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use causeway_service::http::{self, described, description, no_route, problem, with_description};
use causeway_service::tokens::Rules;
use utoipa_axum::router::OpenApiRouter;

pub(crate) use self::daemon::Daemon;
use super::engine::EngineError;
use super::page;
use super::shared::Shared;

/// What holds for all of it (docs/reference/api.md).
const ABOUT: &str = "On the Unix socket, to read on a loopback address, and to other hosts by TLS with tokens. Units stand in the names. Fields may be added; none is renamed or changes its unit within /v1.";

/// What the routes ask of other hosts.
pub(crate) const RULES: Rules = Rules {
    operators: is_for_operators,
    open: &page::PATHS,
};

/// The longest file that is checked or compared.
const FILE_MAX: usize = 64 << 20;

type Api = State<Daemon>;
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

/// Every route; other hosts have them by their roles.
pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let routes = routes();
    let no_route = no_route(routes.get_openapi(), ", or at / for people");
    with_description(routes, RULES)
        // Telegraf and Datadog add `/;csv` to what they are given.
        .route("/v1/haproxy/{*rest}", get(look::haproxy_csv))
        .merge(page::router())
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(Daemon::new(shared))
}

/// The same for the Unix socket: the file of a million reals has 32 MB.
pub(crate) fn socket_router(shared: Arc<Shared>) -> Router {
    router(shared).layer(DefaultBodyLimit::max(FILE_MAX))
}

/// Every route of the API, with its description.
fn routes() -> OpenApiRouter<Daemon> {
    described("Causeway, balancer", ABOUT)
        .merge(look::routes())
        .merge(vips::routes())
        .merge(reals::routes())
        .merge(connections::routes())
        .merge(fleet::routes())
        .merge(config::routes())
}

/// The API in OpenAPI's words.
pub fn openapi() -> String {
    description(routes().into_openapi(), RULES)
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

fn parse_json<T: serde::de::DeserializeOwned>(body: &str) -> Result<T, EngineError> {
    http::parse_json(body).map_err(EngineError::Invalid)
}
