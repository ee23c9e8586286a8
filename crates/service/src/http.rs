// SPDX-License-Identifier: Apache-2.0
//! Answers that every API gives.

use std::net::IpAddr;
use std::path::Path;

use axum::Json;
use axum::Router;
use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use causeway_api::Problem;
use utoipa::PartialSchema;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, Ref, RefOr,
    ResponseBuilder,
};
use utoipa_axum::router::OpenApiRouter;

use crate::access::Rules;

/// A refusal.
pub fn problem(code: StatusCode, error: String) -> Response {
    (code, Json(Problem { error })).into_response()
}

/// Does what may take a while where it keeps no other request waiting.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Response> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| problem(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
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

fn is_own_name(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else {
        return false;
    };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

/// A page of OpenMetrics for Prometheus; in the older text format for who does not ask for it.
pub fn metrics(headers: &HeaderMap, page: String) -> Response {
    let asked = headers.get_all(header::ACCEPT).iter();
    let mut asked = asked.filter_map(|value| value.to_str().ok());
    let (kind, page) = match asked.any(|kinds| kinds.contains("application/openmetrics-text")) {
        true => (
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            page,
        ),
        false => (
            "text/plain; version=0.0.4; charset=utf-8",
            text_format(&page),
        ),
    };
    ([(header::CONTENT_TYPE, kind)], page).into_response()
}

/// OpenMetrics in Prometheus' text format: a counter's family is called as its samples are, and
/// there are neither units nor an end.
fn text_format(page: &str) -> String {
    let mut lines = page.lines().peekable();
    let mut text = String::with_capacity(page.len());
    while let Some(line) = lines.next() {
        let is_counter = |line: &&str| line.ends_with(" counter");
        let words = line
            .strip_prefix("# ")
            .and_then(|line| line.split_once(' '));
        match words {
            None if line == "# EOF" => continue,
            Some(("UNIT", _)) => continue,
            Some(("HELP", rest)) if lines.peek().is_some_and(is_counter) => {
                let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
                text += &format!("# HELP {name}_total {help}");
            }
            Some(("TYPE", rest)) if is_counter(&line) => {
                let name = rest.trim_end_matches(" counter");
                text += &format!("# TYPE {name}_total counter");
            }
            _ => text += line,
        }
        text.push('\n');
    }
    text
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_in_the_format_that_is_asked_for() {
        let page = "# HELP x_seconds Help.\n# TYPE x_seconds counter\n# UNIT x_seconds seconds\n\
                    x_seconds_total{a=\"b c\"} 1\n# HELP y Gauge of # EOF\n# TYPE y gauge\ny 2\n# EOF\n";
        let kind = |accept: Option<&'static str>| {
            let accept = accept.map(|kinds| (header::ACCEPT, kinds.parse().expect("a value")));
            let answer = metrics(&accept.into_iter().collect(), page.to_owned());
            let kind = answer.headers()[header::CONTENT_TYPE].to_str();
            kind.expect("text").to_owned()
        };
        // As Prometheus asks.
        let first =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4";
        assert!(kind(Some(first)).starts_with("application/openmetrics-text; version=1.0.0"));
        for other in [None, Some("*/*"), Some("text/plain;version=0.0.4")] {
            assert!(kind(other).starts_with("text/plain; version=0.0.4"));
        }
        assert_eq!(
            text_format(page),
            "# HELP x_seconds_total Help.\n# TYPE x_seconds_total counter\n\
             x_seconds_total{a=\"b c\"} 1\n# HELP y Gauge of # EOF\n# TYPE y gauge\ny 2\n"
        );
    }
}
