// SPDX-License-Identifier: Apache-2.0
//! Requests to the cluster's API server.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use causeway_service::exchange::{self, HttpAnswer, ServerUrl};
use causeway_service::tls::{self, ClientFiles};
use http_body_util::Full;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Method, Request};
use serde::de::DeserializeOwned;
use serde_json::Value;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a connection, the head of an answer, or a whole answer that is no watch may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A connection whose other end is gone is noticed after this and three probes.
const KEEPALIVE: Duration = Duration::from_secs(15);
const AGENT: &str = concat!("causeway-kubernetes/", env!("CARGO_PKG_VERSION"));

/// More in one answer is nothing that is waited for here.
pub(crate) const BODY_MAX: usize = 64 << 20;

/// Where the API server is.
pub(crate) fn server_url(text: &str) -> Result<ServerUrl, String> {
    ServerUrl::parse(text, "an API server", "\"https://10.0.0.10:6443\"")
}

/// The API server, and what shows who asks. Files are read for each request: tokens are replaced
/// while this runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServer {
    /// Where it is.
    pub url: ServerUrl,
    /// Whom to trust, and a certificate of one's own.
    pub files: ClientFiles,
    /// File with a token.
    pub token: Option<PathBuf>,
}

/// Why a request failed.
#[derive(Debug)]
pub enum ApiError {
    /// The server said no.
    Refused {
        /// HTTP's code.
        code: u16,
        /// What it said.
        message: String,
    },
    /// There was no answer.
    Failed(anyhow::Error),
}

impl ApiError {
    /// Whether the answer had this status.
    pub fn is(&self, of: u16) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == of)
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { code, message } => write!(f, "{code}: {message}"),
            Self::Failed(error) => write!(f, "{error:#}"),
        }
    }
}

impl From<anyhow::Error> for ApiError {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

impl ApiServer {
    /// `GET path`.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        self.whole(Method::GET, path, None).await
    }

    /// `POST path`.
    pub async fn post(&self, path: &str, body: &Value) -> Result<(), ApiError> {
        let made: Result<Value, _> = self.whole(Method::POST, path, Some(body)).await;
        made.map(drop)
    }

    /// `PUT path`.
    pub async fn put(&self, path: &str, body: &Value) -> Result<(), ApiError> {
        let made: Result<Value, _> = self.whole(Method::PUT, path, Some(body)).await;
        made.map(drop)
    }

    /// `PATCH path` by a merge patch (RFC 7386).
    pub async fn patch(&self, path: &str, body: &Value) -> Result<(), ApiError> {
        let made: Result<Value, _> = self.whole(Method::PATCH, path, Some(body)).await;
        made.map(drop)
    }

    async fn whole<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, ApiError> {
        let answer = async {
            let answer = self.send(method, path, body).await?;
            Ok::<_, ApiError>(answer.read(BODY_MAX).await?)
        };
        let body = timeout(TIMEOUT, answer).await.map_err(|_| silent())??;
        let read = serde_json::from_slice(&body);
        Ok(read.context("the API server's answer is not understood")?)
    }

    /// `GET path`, to read line by line for as long as it lasts.
    pub(crate) async fn watch(&self, path: &str) -> Result<HttpAnswer, ApiError> {
        let answer = timeout(TIMEOUT, self.send(Method::GET, path, None)).await;
        answer.map_err(|_| silent())?
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<HttpAnswer, ApiError> {
        let patched = method == Method::PATCH;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.url.authority.as_str())
            .header(USER_AGENT, AGENT)
            .header(ACCEPT, "application/json");
        if body.is_some() {
            let kind = match patched {
                true => "application/merge-patch+json",
                false => "application/json",
            };
            request = request.header(CONTENT_TYPE, kind);
        }
        if let Some(token) = self.token.as_deref().map(tls::bearer).transpose()? {
            request = request.header(AUTHORIZATION, token);
        }
        let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
        let request = request.body(Full::from(body)).context("not a request")?;
        let stream = TcpStream::connect((self.url.host.as_str(), self.url.port)).await;
        let stream = stream.with_context(|| format!("cannot connect to {}", self.url))?;
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE)
            .with_interval(KEEPALIVE);
        let kept = SockRef::from(&stream).set_tcp_keepalive(&keepalive.with_retries(3));
        kept.context("cannot set keepalive")?;
        let answer = match self.url.tls {
            true => {
                let stream = tls::connect(stream, &self.url.host, &self.files).await?;
                exchange::send(stream, request).await?
            }
            false => exchange::send(stream, request).await?,
        };
        if answer.status.is_success() {
            return Ok(answer);
        }
        let code = answer.status.as_u16();
        let body = answer.read(BODY_MAX).await?;
        let status: Option<Value> = serde_json::from_slice(&body).ok();
        let message = status
            .as_ref()
            .and_then(|status| status["message"].as_str());
        Err(ApiError::Refused {
            code,
            message: message
                .unwrap_or("the API server gives no reason")
                .to_owned(),
        })
    }
}

fn silent() -> ApiError {
    ApiError::Failed(anyhow!("no answer within {} s", TIMEOUT.as_secs()))
}
