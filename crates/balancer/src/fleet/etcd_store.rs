// SPDX-License-Identifier: Apache-2.0
//! A store in etcd 3.4 or later, by its JSON gateway (etcd.io/docs/v3.4/dev-guide/api_grpc_gateway):
//! keys and values in base64, 64-bit numbers as text.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use causeway_service::tls;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::store::{Held, Store, StoreError};
use crate::config::EtcdConfig;

/// How long a server may take to answer, before another is asked.
const TIMEOUT: Duration = Duration::from_secs(3);
/// gRPC's code for a token that has expired.
const UNAUTHENTICATED: u64 = 16;
/// gRPC's code for a lease that is over.
const NOT_FOUND: u64 = 5;
/// What etcd says, by a code for many things, of a token that is signed (JWT), from before a user or
/// a role was changed.
const OLD_TOKEN: &str = "revision of auth store is old";
/// What etcd, or gRPC in it, says of a request that is too large.
const TOO_LARGE: [&str; 2] = ["request is too large", "received message larger than max"];

type Sender = SendRequest<Full<Bytes>>;

/// The keys of one fleet in etcd.
pub(crate) struct EtcdStore {
    config: EtcdConfig,
    /// How long an answer may take.
    timeout: Duration,
    /// `PREFIX/FLEET/`.
    prefix: String,
    runtime: Runtime,
    /// Which of the endpoints is asked.
    endpoint: usize,
    /// To that, while it lasts.
    connection: Option<Sender>,
    token: Option<String>,
    lease: Option<Lease>,
    /// That of the last reading.
    revision: u64,
    /// Reports changes, with the connection that it comes by.
    watch: Option<(Sender, Incoming)>,
}

/// The lease of this process's member.
#[derive(Clone)]
struct Lease {
    id: String,
    /// Whether etcd has the member's key with it, as far as is known.
    has_key: bool,
}

/// Why etcd did not do what it was asked.
enum Refusal {
    /// It cannot be reached, or answers what is not understood: another server may do.
    Away(String),
    /// It says so, with gRPC's code.
    Said(u64, String),
}

impl Refusal {
    /// Whether another token may help.
    fn is_of_token(&self) -> bool {
        match self {
            Self::Away(_) => false,
            Self::Said(code, text) => *code == UNAUTHENTICATED || text.contains(OLD_TOKEN),
        }
    }
}

impl EtcdStore {
    pub(crate) fn new(config: &EtcdConfig, fleet: &str) -> Result<Self, StoreError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        Ok(Self {
            config: config.clone(),
            timeout: TIMEOUT,
            prefix: format!("{}/{fleet}/", config.prefix),
            runtime: runtime.map_err(|error| StoreError::Refused(error.to_string()))?,
            endpoint: 0,
            connection: None,
            token: None,
            lease: None,
            revision: 0,
            watch: None,
        })
    }

    /// With another timeout.
    #[cfg(test)]
    pub(super) fn within(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// `POST /v3/path`, at one server after the other.
    fn call(&mut self, path: &str, body: &Value) -> Result<Value, Refusal> {
        let mut last = Refusal::Away("no server is named".to_owned());
        for _ in 0..self.config.endpoints.len() {
            last = match self.ask(path, body) {
                Err(refusal) if refusal.is_of_token() && self.token.take().is_some() => {
                    match self.ask(path, body) {
                        Err(refusal) => refusal,
                        answer => return answer,
                    }
                }
                Err(refusal) => refusal,
                answer => return answer,
            };
            match &last {
                // It would be no other at another server.
                Refusal::Said(..) => return Err(last),
                Refusal::Away(_) => {
                    self.connection = None;
                    // One that is cut off ends no connection: its watch would stay, and say nothing.
                    self.watch = None;
                    self.endpoint = (self.endpoint + 1) % self.config.endpoints.len();
                }
            }
        }
        Err(last)
    }

    /// The same at the server whose turn it is, with a token if there is a user.
    fn ask(&mut self, path: &str, body: &Value) -> Result<Value, Refusal> {
        if self.token.is_none()
            && let Some((user, password)) = &self.config.user
        {
            let body = json!({ "name": user, "password": password.0 });
            let answer = self.exchange("auth/authenticate", &body)?;
            self.token = answer["token"].as_str().map(str::to_owned);
        }
        self.exchange(path, body)
    }

    fn exchange(&mut self, path: &str, body: &Value) -> Result<Value, Refusal> {
        let Self {
            config,
            timeout,
            runtime,
            endpoint,
            connection,
            token,
            ..
        } = self;
        let server = &config.endpoints[*endpoint];
        let away = |error: String| Refusal::Away(format!("{server}: {error}"));
        let exchange = async {
            let mut sender = match connection.take().filter(|held| !held.is_closed()) {
                Some(held) => held,
                None => connect(config, server).await?,
            };
            let request = request(server, path, token.as_deref(), body)?;
            let answer = sender.send_request(request).await.map_err(told)?;
            let status = answer.status();
            let body = answer.into_body().collect().await.map_err(told)?.to_bytes();
            *connection = Some(sender);
            Ok::<_, String>((status, body))
        };
        let outcome = runtime.block_on(async { tokio::time::timeout(*timeout, exchange).await });
        let (status, body) = outcome
            .map_err(|_| away(format!("no answer within {} s", timeout.as_secs())))?
            .map_err(away)?;
        let value: Value = serde_json::from_slice(&body).unwrap_or_default();
        let error = || {
            let text = value["error"].as_str().or(value["message"].as_str());
            format!("{server}: {}", text.unwrap_or(status.as_str()))
        };
        match (status, number(&value["code"])) {
            (StatusCode::OK, _) if value.is_object() => Ok(value),
            // A server without a leader may come to have one, and another has one.
            (_, code @ (1..=13 | 15 | UNAUTHENTICATED)) => Err(Refusal::Said(code, error())),
            _ => Err(Refusal::Away(error())),
        }
    }

    fn of_cluster(&mut self, path: &str, body: &Value) -> Result<Value, StoreError> {
        self.call(path, body).map_err(StoreError::from)
    }

    fn key(&self, kind: &str, name: &str) -> String {
        encode(&format!("{}{kind}{name}", self.prefix))
    }

    /// All keys of the fleet.
    fn range(&self) -> (String, String) {
        // The byte after `/`, which ends the prefix.
        let end = format!("{}0", self.prefix.trim_end_matches('/'));
        (encode(&self.prefix), encode(&end))
    }

    /// Sets a key that lasts as long as the lease.
    fn put_alive(&mut self, member: &str, lease: &str) -> Result<(), Refusal> {
        let key = self.key("alive/", member);
        let body = json!({ "key": key, "value": encode("1"), "lease": lease });
        let outcome = self.call("kv/put", &body).map(drop);
        self.lease = Some(Lease {
            id: lease.to_owned(),
            has_key: outcome.is_ok(),
        });
        outcome
    }

    fn watch(&mut self) -> Result<(Sender, Incoming), Refusal> {
        let (key, end) = self.range();
        let body = json!({ "create_request": {
            "key": key, "range_end": end, "start_revision": (self.revision + 1).to_string(),
        }});
        let server = &self.config.endpoints[self.endpoint];
        let (config, token) = (&self.config, self.token.as_deref());
        let begin = async {
            let mut sender = connect(config, server).await?;
            let request = request(server, "watch", token, &body)?;
            let answer = sender.send_request(request).await.map_err(told)?;
            match answer.status() {
                StatusCode::OK => Ok((sender, answer.into_body())),
                status => Err(format!("a watch is refused ({status})")),
            }
        };
        let outcome = self
            .runtime
            .block_on(async { tokio::time::timeout(self.timeout, begin).await });
        let outcome = outcome.unwrap_or_else(|_| Err("no answer to a watch".to_owned()));
        outcome.map_err(|error| Refusal::Away(format!("{server}: {error}")))
    }
}

impl From<Refusal> for StoreError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Away(text) => Self::Away(format!("etcd at {text}")),
            Refusal::Said(_, text) => Self::Refused(format!("etcd at {text}")),
        }
    }
}

impl Store for EtcdStore {
    fn read(&mut self) -> Result<Held, StoreError> {
        let (key, end) = self.range();
        let answer = self.of_cluster("kv/range", &json!({ "key": key, "range_end": end }))?;
        let mut held = Held {
            cluster: number(&answer["header"]["cluster_id"]).to_string(),
            ..Held::default()
        };
        self.revision = number(&answer["header"]["revision"]);
        let pairs = answer["kvs"].as_array().map_or(&[][..], Vec::as_slice);
        if let Some(lease) = &mut self.lease {
            lease.has_key = pairs.iter().any(|pair| pair["lease"] == lease.id);
        }
        for pair in pairs {
            let (Some(key), Some(value)) = (decode(&pair["key"]), decode(&pair["value"])) else {
                continue;
            };
            let name = key.strip_prefix(&self.prefix).unwrap_or_default();
            match name.split_once('/') {
                None if name == "book" => held.book = Some((number(&pair["mod_revision"]), value)),
                Some(("acks", member)) => drop(held.acks.insert(member.to_owned(), value)),
                Some(("alive", member)) => drop(held.alive.insert(member.to_owned())),
                _ => {}
            }
        }
        Ok(held)
    }

    fn replace(&mut self, expected: Option<u64>, text: &str) -> Result<bool, StoreError> {
        let key = self.key("book", "");
        // That of a key that is not there is 0.
        let expected = expected.unwrap_or(0).to_string();
        let compare =
            json!({ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": expected });
        let put = json!({ "request_put": { "key": key, "value": encode(text) } });
        let body = json!({ "compare": [compare], "success": [put] });
        let answer = self.call("kv/txn", &body).map_err(|refusal| match refusal {
            Refusal::Said(code, said) if TOO_LARGE.iter().any(|words| said.contains(words)) => {
                let kib = text.len().div_ceil(1024);
                Refusal::Said(
                    code,
                    format!("{said}; the book has {kib} KiB: give etcd a larger --max-request-bytes, or the fleet fewer reals"),
                )
            }
            refusal => refusal,
        })?;
        Ok(answer["succeeded"] == true)
    }

    fn acknowledge(&mut self, member: &str, text: &str) -> Result<(), StoreError> {
        let body = json!({ "key": self.key("acks/", member), "value": encode(text) });
        self.of_cluster("kv/put", &body).map(drop)
    }

    fn renew(&mut self, member: &str, ttl: Duration) -> Result<(), StoreError> {
        if let Some(Lease { id, has_key }) = self.lease.clone() {
            let answer = self.of_cluster("lease/keepalive", &json!({ "ID": id }))?;
            // A lease that is over has no time left.
            if number(&answer["result"]["TTL"]) > 0 {
                // To set the key again would be one more revision of all keys, for ever.
                if has_key {
                    return Ok(());
                }
                match self.put_alive(member, &id) {
                    Err(Refusal::Said(NOT_FOUND, _)) => {}
                    outcome => return outcome.map_err(StoreError::from),
                }
            }
        }
        // What is asked for in whole seconds must not be less.
        let seconds = ttl.as_secs_f64().ceil();
        let answer = self.of_cluster("lease/grant", &json!({ "TTL": seconds.to_string() }))?;
        let Some(id) = answer["ID"].as_str() else {
            return Err(StoreError::Refused("etcd gave no lease".to_owned()));
        };
        self.put_alive(member, id).map_err(StoreError::from)
    }

    fn wait(&mut self, at_most: Duration) -> Result<bool, StoreError> {
        let (sender, mut body) = match self.watch.take() {
            Some(watch) => watch,
            None => self.watch()?,
        };
        let changed = async {
            loop {
                match body.frame().await {
                    Some(Ok(frame)) => {
                        let text = frame.into_data().unwrap_or_default();
                        let text = String::from_utf8_lossy(&text);
                        if text.contains("\"events\"") {
                            return true;
                        }
                        if text.contains("\"canceled\"") || text.contains("\"error\"") {
                            return false;
                        }
                    }
                    _ => return false,
                }
            }
        };
        let outcome = self
            .runtime
            .block_on(async { timeout(at_most, changed).await });
        // A watch that has ended is started again, after another reading.
        if outcome != Ok(false) {
            self.watch = Some((sender, body));
        }
        Ok(outcome.is_ok())
    }
}

async fn connect(config: &EtcdConfig, server: &str) -> Result<Sender, String> {
    let (scheme, authority) = server.split_once("://").unwrap_or(("http", server));
    let (host, port) = authority.rsplit_once(':').unwrap_or((authority, "2379"));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port: u16 = port.parse().map_err(|_| "it has no port".to_owned())?;
    let stream = TcpStream::connect((host, port)).await.map_err(told)?;
    if scheme == "https" {
        let stream = tls::connect(stream, host, &config.tls).await;
        let stream = stream.map_err(|error| format!("{error:#}"))?;
        shake_hands(stream).await
    } else {
        shake_hands(stream).await
    }
}

async fn shake_hands(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Sender, String> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(told)?;
    // What fails in it, fails in a request, too.
    tokio::spawn(connection);
    Ok(sender)
}

fn request(
    server: &str,
    path: &str,
    token: Option<&str>,
    body: &Value,
) -> Result<Request<Full<Bytes>>, String> {
    let authority = server.split_once("://").map_or(server, |(_, rest)| rest);
    let mut request = Request::post(format!("/v3/{path}")).header("host", authority);
    if let Some(token) = token {
        request = request.header("authorization", token);
    }
    let body = Full::new(Bytes::from(body.to_string()));
    request.body(body).map_err(told)
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn encode(text: &str) -> String {
    STANDARD.encode(text)
}

fn decode(value: &Value) -> Option<String> {
    let bytes = STANDARD.decode(value.as_str().unwrap_or_default()).ok()?;
    String::from_utf8(bytes).ok()
}

/// A number, which may be written as text; 0 is left out.
fn number(value: &Value) -> u64 {
    let text = value.as_str().and_then(|text| text.parse().ok());
    text.or(value.as_u64()).unwrap_or(0)
}
