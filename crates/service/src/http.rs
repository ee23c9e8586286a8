// SPDX-License-Identifier: Apache-2.0
//! Answers that every API gives.

use std::future::{Ready, ready};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use causeway_api::Problem;
use serde::de::DeserializeOwned;
use utoipa::PartialSchema;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, Ref, RefOr,
    ResponseBuilder,
};
use utoipa_axum::router::OpenApiRouter;

use crate::tokens::Rules;

/// A refusal.
pub fn problem(code: StatusCode, error: String) -> Response {
    (code, Json(Problem { error })).into_response()
}

/// What a body holds; else a sentence.
pub fn parse_json<T: DeserializeOwned>(body: &str) -> Result<T, String> {
    serde_json::from_str(body).map_err(|error| format!("the body is not what is expected: {error}"))
}

/// Does what may take a while where it keeps no other request waiting.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Response> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| problem(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

/// What answers where there is nothing: it names what there is, but not what is below a path that
/// it names, and then says `also`.
pub fn no_route(
    document: &OpenApi,
    also: &str,
) -> impl Fn(Request) -> Ready<Response> + Clone + Send + Sync + 'static {
    let mut paths: Vec<&str> = Vec::new();
    for path in document.paths.paths.keys() {
        let is_below = |above: &&str| {
            let rest = path.strip_prefix(*above);
            rest.is_some_and(|rest| rest.starts_with('/'))
        };
        if !paths.iter().any(is_below) {
            paths.push(path);
        }
    }
    let there: Arc<str> = format!("{}{also}", paths.join(", ")).into();
    move |request| {
        let path = request.uri().path();
        let sentence = format!("there is nothing at {path}; see {there}");
        ready(problem(StatusCode::NOT_FOUND, sentence))
    }
}

/// The same routes for a TCP address: a local user may read, not write.
pub fn reading_only(router: Router, socket: &Path) -> Router {
    let sentence = format!(
        "this address is read-only; write through the Unix socket {} (curl --unix-socket, or the causeway commands)",
        socket.display()
    );
    router.layer(middleware::from_fn(move |request: Request, next: Next| {
        let sentence = sentence.clone();
        async move {
            match *request.method() {
                Method::GET | Method::HEAD => next.run(request).await,
                _ => problem(StatusCode::METHOD_NOT_ALLOWED, sentence),
            }
        }
    }))
}

/// Answers only who asked for an address or for `localhost`. Else any web page could bind its own
/// name to 127.0.0.1 (DNS rebinding), and a browser on this machine would let it read along.
pub(crate) fn without_foreign_names(router: Router) -> Router {
    router.layer(middleware::from_fn(
        async |request: Request, next: Next| {
            let host = request.headers().get(header::HOST);
            let host = host.map(|host| host.to_str().unwrap_or_default());
            match host.is_none_or(is_own_name) {
                true => next.run(request).await,
                false => problem(
                    StatusCode::MISDIRECTED_REQUEST,
                    "the API answers to an address or `localhost` alone: let a proxy in front of it send one as Host".to_owned(),
                ),
            }
        },
    ))
}

/// Refuses what a web page of another origin asks for: a browser reaches the Unix socket where ssh
/// forwards a port to it. Programs send no `Origin`.
pub(crate) fn without_foreign_pages(router: Router) -> Router {
    router.layer(middleware::from_fn(
        async |request: Request, next: Next| match is_of_foreign_page(request.headers()) {
            false => next.run(request).await,
            true => problem(
                StatusCode::FORBIDDEN,
                "a web page of another origin may not use the API: remove the header Origin"
                    .to_owned(),
            ),
        },
    ))
}

fn is_of_foreign_page(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).map(|value| value.to_str().ok());
    match (text(header::ORIGIN), text(header::HOST)) {
        (None, _) => false,
        (Some(Some(origin)), Some(Some(host))) => {
            let authority = origin.split_once("://").map(|(_, authority)| authority);
            authority != Some(host) || !is_own_name(host)
        }
        _ => true,
    }
}

fn is_own_name(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else {
        return false;
    };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

/// A router whose routes are described as they are added.
pub fn described<S: Clone + Send + Sync + 'static>(title: &str, about: &str) -> OpenApiRouter<S> {
    let licence = LicenseBuilder::new().name("Apache-2.0").build();
    let info = InfoBuilder::new()
        .title(title)
        .description(Some(about))
        .version("v1")
        .license(Some(licence))
        .build();
    OpenApiRouter::with_openapi(OpenApiBuilder::new().info(info).build())
}

/// The routes, and their description at `/v1/openapi.json`.
pub fn with_description<S: Clone + Send + Sync + 'static>(
    routes: OpenApiRouter<S>,
    rules: Rules,
) -> Router<S> {
    let (router, document) = routes.split_for_parts();
    let text = description(document, rules);
    let answer = move || async move { ([(header::CONTENT_TYPE, "application/json")], text) };
    router.route("/v1/openapi.json", get(answer))
}

/// The description as it is served and committed: with refusals, which are alike everywhere,
/// and with the role that each route needs of other hosts.
pub fn description(mut document: OpenApi, rules: Rules) -> String {
    let refused = ResponseBuilder::new()
        .description("Refused, with one sentence")
        .content(
            "application/json",
            ContentBuilder::new()
                .schema(Some(Ref::from_schema_name("Problem")))
                .build(),
        )
        .build();
    for (path, item) in &mut document.paths.paths {
        let methods = [
            (Method::GET, &mut item.get),
            (Method::POST, &mut item.post),
            (Method::PATCH, &mut item.patch),
            (Method::DELETE, &mut item.delete),
        ];
        for (method, operation) in methods {
            let Some(operation) = operation else { continue };
            let role = rules.role(&method, path).to_string();
            // None on the Unix socket.
            let none = SecurityRequirement::default();
            operation.security = Some(vec![none, SecurityRequirement::new("token", [role])]);
            let responses = &mut operation.responses.responses;
            for response in responses.values_mut() {
                if let RefOr::T(response) = response {
                    response.description = "As asked for".to_owned();
                }
            }
            responses.insert("default".to_owned(), refused.clone().into());
        }
    }
    let components = document.components.get_or_insert_default();
    let schema = <Problem as PartialSchema>::schema();
    components.schemas.insert("Problem".to_owned(), schema);
    let mut token = Http::new(HttpAuthScheme::Bearer);
    token.description = Some("Of other hosts, with a role: viewer, operator or admin".to_owned());
    components.add_security_scheme("token", SecurityScheme::Http(token));
    // It holds names and texts of this program alone.
    document.to_pretty_json().unwrap_or_default() + "\n"
}
