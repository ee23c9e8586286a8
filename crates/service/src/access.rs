// SPDX-License-Identifier: Apache-2.0
//! What stands between other hosts and the API: tokens and roles, and a line in the journal
//! for each change.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use causeway_api::Problem;
use nix::unistd::geteuid;
use rustls::ServerConfig;
use serde_json::Value;
use tracing::{info, warn};

use crate::api::{ApiConfig, Material};
use crate::http::problem;
use crate::tokens::{Failures, Identity, Role, Rules, key};

/// Longest body of a request from another host.
const BODY_MAX: usize = 2 << 20;
/// Most of a change's body in the journal.
const SHOWN_MAX: usize = 300;
/// Connections of one client at a time.
const CONNECTIONS_OF_ONE: usize = 16;
/// What carries no change, though it is not a GET.
const QUESTIONS: [&str; 2] = ["/v1/check", "/v1/diff"];

/// The client of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Peer {
    /// On the Unix socket, with the user's number.
    Socket(Option<u32>),
    /// By TCP.
    Host(SocketAddr),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(Some(user)) => write!(f, "user {user} on the socket"),
            Self::Socket(None) => write!(f, "the socket"),
            Self::Host(address) => write!(f, "{}", address.ip().to_canonical()),
        }
    }
}

/// The files of `[api]` in force, and who has tried what.
#[derive(Clone)]
pub struct Access(Arc<Inner>);

struct Inner {
    config: RwLock<ApiConfig>,
    failures: Mutex<Failures>,
    connections: Mutex<HashMap<IpAddr, usize>>,
}

/// A connection of a client, until it is dropped.
pub(crate) struct Entered {
    access: Access,
    client: IpAddr,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut connections = lock(&self.access.0.connections);
        if let Some(count) = connections.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                connections.remove(&self.client);
            }
        }
    }
}

/// Why a request is refused.
enum Refusal {
    NoToken,
    Unknown,
    Wait(Duration),
}

impl Access {
    /// By what a configuration names.
    pub fn new(config: &ApiConfig) -> Self {
        Self(Arc::new(Inner {
            config: RwLock::new(config.clone()),
            failures: Mutex::default(),
            connections: Mutex::default(),
        }))
    }

    /// Goes by the files as they are now: of connections and requests that come.
    pub fn replace(&self, config: &ApiConfig) {
        let mut own = self.0.config.write();
        **own.as_mut().unwrap_or_else(|error| error.get_mut()) = config.clone();
    }

    /// Reads the files again, under the names that they have. Says whether something is new, and
    /// what is wrong with those that stay as they were.
    pub(crate) fn read_again(&self) -> (bool, Vec<String>) {
        let before = self.config().clone();
        let (now, faults) = before.again();
        let is_new = now != before;
        if is_new {
            self.replace(&now);
        }
        (is_new, faults)
    }

    fn config(&self) -> RwLockReadGuard<'_, ApiConfig> {
        let config = self.0.config.read();
        config.unwrap_or_else(PoisonError::into_inner)
    }

    fn material(&self) -> Material {
        self.config().material.clone()
    }

    /// For a connection that begins; `None`: something is wrong with the files.
    pub(crate) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.material().tls
    }

    /// Lets a client in, unless it has as many connections as one may have.
    pub(crate) fn enter(&self, client: IpAddr) -> Option<Entered> {
        let client = key(client);
        let mut connections = lock(&self.0.connections);
        let count = connections.entry(client).or_insert(0);
        if *count >= CONNECTIONS_OF_ONE {
            return None;
        }
        *count += 1;
        drop(connections);
        Some(Entered {
            access: self.clone(),
            client,
        })
    }

    fn identify(&self, headers: &HeaderMap, peer: Peer, now: Instant) -> Result<Identity, Refusal> {
        let value = headers.get(header::AUTHORIZATION);
        let token = value.and_then(|value| bearer(value.as_bytes()));
        let token = token.ok_or(Refusal::NoToken)?;
        let Peer::Host(address) = peer else {
            return Err(Refusal::NoToken);
        };
        // Else the time of the answer would show a client whether a guess was right.
        if let Some(wait) = lock(&self.0.failures).wait(address.ip(), now) {
            return Err(Refusal::Wait(wait));
        }
        let found = self.material().tokens.find(token).cloned();
        found.ok_or_else(|| {
            if lock(&self.0.failures).note(address.ip(), now) {
                warn!(target: "audit", who = %peer, "refused: a token that is not known");
            }
            Refusal::Unknown
        })
    }
}

/// What the locks guard is whole after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then_some(token.trim_ascii())
}

/// The routes for other hosts: to each what its token's role may.
pub(crate) fn guarded(router: Router, access: Access, rules: Rules) -> Router {
    let guard = move |mut request: Request, next: Next| {
        let access = access.clone();
        async move {
            let (method, path) = (request.method(), request.uri().path());
            if rules.is_open(method, path) {
                return next.run(request).await;
            }
            let Some(peer) = request.extensions().get::<Peer>().copied() else {
                return refused(Refusal::NoToken);
            };
            let identity = match access.identify(request.headers(), peer, Instant::now()) {
                Ok(identity) => identity,
                Err(refusal) => return refused(refusal),
            };
            let needed = rules.role(method, path);
            if identity.role < needed {
                warn!(
                    target: "audit",
                    who = %format_args!("{} ({}) from {peer}", identity.name, identity.role),
                    what = %format_args!("{method} {path}"),
                    "refused: needs the role {needed}"
                );
                return problem(
                    StatusCode::FORBIDDEN,
                    format!(
                        "the token of {} has the role {}; this needs {needed}",
                        identity.name, identity.role
                    ),
                );
            }
            // Before the body is asked for (`Expect`); one without a length is cut off below.
            if length_of(&request) > BODY_MAX as u64 {
                return problem(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    format!("the body is longer than {BODY_MAX} bytes"),
                );
            }
            request.extensions_mut().insert(identity);
            next.run(request).await
        }
    };
    router
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(middleware::from_fn(guard))
}

/// What the request says that its body has.
fn length_of(request: &Request) -> u64 {
    let length = request.headers().get(header::CONTENT_LENGTH);
    length
        .and_then(|length| length.to_str().ok()?.parse().ok())
        .unwrap_or(0)
}

fn refused(refusal: Refusal) -> Response {
    let bearer = (header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    let (code, sentence, about) = match refusal {
        Refusal::NoToken => (
            StatusCode::UNAUTHORIZED,
            "a token is needed: the header `Authorization: Bearer TOKEN`, or --token-file of the causeway commands".to_owned(),
            bearer,
        ),
        Refusal::Unknown => (
            StatusCode::UNAUTHORIZED,
            "this token is not known here".to_owned(),
            bearer,
        ),
        Refusal::Wait(wait) => {
            let seconds = wait.as_secs() + 1;
            (
                StatusCode::TOO_MANY_REQUESTS,
                format!("too many unknown tokens came from this address; try again in {seconds} s"),
                (header::RETRY_AFTER, HeaderValue::from(seconds)),
            )
        }
    };
    let mut answer = problem(code, sentence);
    answer.headers_mut().insert(about.0, about.1);
    answer
}

/// The routes for the Unix socket: all of them for root and for the daemon's own user; for who is let in by
/// the socket's group, those of operators.
pub(crate) fn by_user(router: Router, rules: Rules) -> Router {
    let guard = move |request: Request, next: Next| async move {
        let peer = request.extensions().get::<Peer>().copied();
        let Some(peer @ Peer::Socket(user)) = peer else {
            return next.run(request).await;
        };
        let is_owner = user.is_some_and(|user| user == 0 || user == geteuid().as_raw());
        let (method, path) = (request.method(), request.uri().path());
        let needed = rules.role(method, path);
        if is_owner || needed <= Role::Operator {
            return next.run(request).await;
        }
        warn!(
            target: "audit",
            who = %peer,
            what = %format_args!("{method} {path}"),
            "refused: needs the role {needed}"
        );
        problem(
            StatusCode::FORBIDDEN,
            format!(
                "{peer} has the role {}; this needs {needed}: run it as root",
                Role::Operator
            ),
        )
    };
    router.layer(middleware::from_fn(guard))
}

/// Logs each change: who, what, with what, and the outcome.
pub(crate) fn audited(router: Router) -> Router {
    let audit = async |request: Request, next: Next| {
        let is_change = !matches!(*request.method(), Method::GET | Method::HEAD)
            && !QUESTIONS.contains(&request.uri().path());
        if !is_change {
            return next.run(request).await;
        }
        let peer = request.extensions().get::<Peer>().map(Peer::to_string);
        let peer = peer.unwrap_or_default();
        let who = match request.extensions().get::<Identity>() {
            Some(Identity { name, role }) => format!("{name} ({role}) from {peer}"),
            None => peer,
        };
        let target = request.uri().path_and_query().map(ToString::to_string);
        let what = format!("{} {}", request.method(), target.unwrap_or_default());
        let (parts, body) = request.into_parts();
        let Ok(body) = to_bytes(body, BODY_MAX).await else {
            return problem(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("a request has at most {BODY_MAX} bytes"),
            );
        };
        let with = shown(&body);
        let answer = next.run(Request::from_parts(parts, Body::from(body))).await;
        let result = answer.status().as_u16();
        if answer.status().is_success() {
            info!(target: "audit", %who, %what, %with, result, "changed");
            return answer;
        }
        let (parts, body) = answer.into_parts();
        let body = to_bytes(body, BODY_MAX).await.unwrap_or_default();
        let error = serde_json::from_slice::<Problem>(&body).map(|problem| problem.error);
        let error = error.unwrap_or_default();
        warn!(target: "audit", %who, %what, %with, result, %error, "not changed");
        Response::from_parts(parts, Body::from(body))
    };
    router.layer(middleware::from_fn(audit))
}

/// A body for the journal: JSON in one line, without its keys and not too long.
fn shown(body: &[u8]) -> String {
    let Ok(mut value) = serde_json::from_slice::<Value>(body) else {
        return match body.len() {
            0 => "nothing".to_owned(),
            bytes => format!("{bytes} bytes"),
        };
    };
    hide_keys(&mut value);
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_MAX) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

fn hide_keys(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                match name.ends_with("key") || name.ends_with("keys") {
                    true => *value = Value::from("…"),
                    false => hide_keys(value),
                }
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(hide_keys),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_follow_from_method_and_path() {
        let rules = Rules {
            operators: |method, path| *method == Method::PATCH && path == "/v1/a",
            open: &["/"],
        };
        for (method, path, role) in [
            (Method::GET, "/v1/a", Role::Viewer),
            (Method::HEAD, "/v1/b", Role::Viewer),
            (Method::PATCH, "/v1/a", Role::Operator),
            (Method::PATCH, "/v1/b", Role::Admin),
            (Method::POST, "/v1/a", Role::Admin),
            (Method::OPTIONS, "/v1/a", Role::Admin),
        ] {
            assert_eq!(rules.role(&method, path), role, "{method} {path}");
        }
        assert!(rules.is_open(&Method::GET, "/"));
        assert!(!rules.is_open(&Method::POST, "/") && !rules.is_open(&Method::GET, "/v1/a"));
    }

    #[test]
    fn the_journal_has_no_keys() {
        for (body, expected) in [
            ("", "nothing"),
            ("{\"drain\": true}", "{\"drain\":true}"),
            ("interface = 5", "13 bytes"),
            (
                "{\"quic\": [{\"key\": \"s\", \"name\": \"a\\n\"}], \"hash_key\": 5}",
                "{\"hash_key\":\"…\",\"quic\":[{\"key\":\"…\",\"name\":\"a\\n\"}]}",
            ),
        ] {
            assert_eq!(shown(body.as_bytes()), expected);
        }
        let long = shown(format!("\"{}\"", "ä".repeat(1000)).as_bytes());
        assert_eq!(long.chars().count(), SHOWN_MAX + 1);
    }

    #[test]
    fn a_bearer_is_read_as_http_has_it() {
        for (value, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Basic abc", None),
            ("Bearer", None),
        ] {
            assert_eq!(
                bearer(value.as_bytes()),
                expected.map(str::as_bytes),
                "{value}"
            );
        }
    }
}
