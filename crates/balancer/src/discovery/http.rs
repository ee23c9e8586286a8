// SPDX-License-Identifier: Apache-2.0
//! A page with a list of reals.

use anyhow::{Context as _, Result, ensure};
use causeway_service::exchange::send;
use http_body_util::Full;
use hyper::header::{ACCEPT, CONNECTION, HOST, USER_AGENT};
use hyper::{Request, Uri};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::TEXT_MAX;
use crate::config::Authorities;
use crate::probe::tls;

/// The page's text.
pub(super) async fn get(url: &str, authorities: Option<&Authorities>) -> Result<String> {
    let uri: Uri = url.parse()?;
    let authority = uri.authority().context("the URL has no host")?;
    let default = if authorities.is_some() { 443 } else { 80 };
    let host = authority.host().trim_matches(['[', ']']);
    let place = (host, authority.port_u16().unwrap_or(default));
    let stream = TcpStream::connect(place).await?;
    match authorities {
        Some(authorities) => {
            let stream = tls::wrap(stream, authority.host(), "http/1.1", authorities).await?;
            read(stream, &uri).await
        }
        None => read(stream, &uri).await,
    }
}

async fn read(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    uri: &Uri,
) -> Result<String> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::get(path)
        .header(
            HOST,
            uri.authority().map_or("", |authority| authority.as_str()),
        )
        .header(USER_AGENT, "causeway")
        .header(ACCEPT, "application/json")
        .header(CONNECTION, "close")
        .body(Full::default())?;
    let answer = send(stream, request).await?;
    let status = answer.status;
    ensure!(status.is_success(), "status {}", status.as_u16());
    let body = answer.read(TEXT_MAX).await?;
    String::from_utf8(body.to_vec()).context("the page is not UTF-8 text")
}
