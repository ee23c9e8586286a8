// SPDX-License-Identifier: Apache-2.0
//! Probes that ask by HTTP: for a page, and for a service's state by grpc.health.v1.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use causeway_core::health::{endpoint_weight, grpc_request, grpc_serves};
use http_body_util::{BodyExt as _, Empty, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, TE, USER_AGENT};
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{connect, tls};
use crate::config::{Authorities, StatusRanges};
use crate::health::ProbeOrder;

/// Most of a head that is read, and of a page or a message.
const HEAD_MAX: usize = 16 << 10;
const BODY_MAX: usize = 64 << 10;
/// How long a server may still write a page that no part of is asked for.
const REST_MAX: Duration = Duration::from_secs(1);
/// As the reason of a failure, what a server says of itself.
const WORDS_MAX: usize = 100;
const AGENT: &str = "causeway";
/// Where a server says which weight it should have: kube-proxy's, with the number of a Service's
/// endpoints on its node, and Google Cloud's name for it.
const WEIGHT: &str = "x-load-balancing-endpoint-weight";

/// A page to ask for, and what it has to be.
pub(super) struct Page<'a> {
    pub(super) path: &'a str,
    pub(super) host: &'a str,
    pub(super) status: &'a StatusRanges,
    pub(super) body: Option<&'a str>,
}

/// Asks for a page, and takes the weight of its answer.
pub(super) async fn page(
    order: &ProbeOrder,
    authorities: Option<&Authorities>,
    page: &Page<'_>,
    weight: &mut Option<u32>,
) -> Result<String> {
    let stream = connect(order).await?;
    match authorities {
        Some(authorities) => {
            let stream = tls::wrap(stream, page.host, "http/1.1", authorities).await?;
            get(stream, page, weight).await
        }
        None => get(stream, page, weight).await,
    }
}

async fn get(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    page: &Page<'_>,
    weight: &mut Option<u32>,
) -> Result<String> {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(HEAD_MAX);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    // Dropped with the probe, and the connection with it.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let request = Request::get(page.path)
        .header(HOST, page.host)
        .header(USER_AGENT, AGENT)
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await;
    let answer = answer.map_err(without_http)?;
    let told = answer.headers().get(WEIGHT);
    *weight = told.and_then(|told| endpoint_weight(told.as_bytes()));
    let got = answer.status().as_u16();
    ensure!(
        page.status.contains(got),
        "status {got} instead of {}",
        page.status
    );
    let Some(wanted) = page.body else {
        tokio::spawn(read_on(answer.into_body(), driver));
        return Ok(format!("status {got}"));
    };
    ensure!(
        has(answer, wanted.as_bytes()).await?,
        "status {got}, and the page does not have `{wanted}` in its first {} KiB",
        BODY_MAX >> 10
    );
    Ok(format!("status {got}, and the page has `{wanted}`"))
}

/// Reads the rest of an answer that is good: the reset at the end would be an error to a server
/// that still writes.
async fn read_on(body: Incoming, driver: JoinSet<hyper::Result<()>>) {
    let _ = timeout(REST_MAX, Limited::new(body, BODY_MAX).collect()).await;
    drop(driver);
}

/// Whether the beginning of a page has these octets.
async fn has(answer: Response<Incoming>, wanted: &[u8]) -> Result<bool> {
    let mut body = answer.into_body();
    let mut page: Vec<u8> = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.context("the page breaks off")?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        let known = page.len().saturating_sub(wanted.len());
        page.extend(&data[..data.len().min(BODY_MAX - page.len())]);
        if page[known..]
            .windows(wanted.len())
            .any(|part| part == wanted)
        {
            return Ok(true);
        }
        if page.len() == BODY_MAX {
            break;
        }
    }
    Ok(false)
}

fn without_http(error: hyper::Error) -> anyhow::Error {
    match error.is_parse() || error.is_incomplete_message() {
        true => anyhow::anyhow!("the answer is not HTTP"),
        false => error.into(),
    }
}

/// Asks for the state of a service, or of the server.
pub(super) async fn grpc(
    order: &ProbeOrder,
    authorities: Option<&Authorities>,
    host: &str,
    service: &str,
) -> Result<String> {
    let stream = connect(order).await?;
    match authorities {
        Some(authorities) => {
            let stream = tls::wrap(stream, host, "h2", authorities).await?;
            check(stream, "https", host, service).await
        }
        None => check(stream, "http", host, service).await,
    }
}

async fn check(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    scheme: &str,
    host: &str,
    service: &str,
) -> Result<String> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.max_header_list_size(HEAD_MAX as u32);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("{scheme}://{host}/grpc.health.v1.Health/Check"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(USER_AGENT, AGENT)
        .body(Full::new(Bytes::from(grpc_request(service))))?;
    let answer = sender.send_request(request).await;
    let answer = answer.context("no HTTP/2")?;
    let got = answer.status();
    ensure!(got.is_success(), "status {}", got.as_u16());
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, BODY_MAX).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("the answer breaks off: {error}"))?;
    // An error alone stands in the head.
    let trailers = body.trailers().cloned().unwrap_or(head.headers);
    let said = |name: &str| {
        let value = trailers
            .get(name)
            .map(|value| String::from_utf8_lossy(value.as_bytes()));
        value.map(|value| value.chars().take(WORDS_MAX).collect::<String>())
    };
    match said("grpc-status").as_deref() {
        Some("0") => {}
        Some("5") => bail!("the service is not known"),
        Some("12") => bail!("the server does not offer grpc.health.v1"),
        Some(code) => bail!(
            "gRPC code {code}: {}",
            said("grpc-message").unwrap_or_default()
        ),
        None => bail!("the answer is not gRPC"),
    }
    match grpc_serves(&body.to_bytes()) {
        Ok(()) => Ok("serving".to_owned()),
        Err(other) => bail!("{other}"),
    }
}
