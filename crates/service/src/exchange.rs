// SPDX-License-Identifier: Apache-2.0
//! HTTP requests: where to, and each on a connection of its own.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context as _;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

/// How long a daemon may take to read its file again, and be waited for: one with thousands of VIPs
/// takes a while.
pub const RELOAD_TIMEOUT: Duration = Duration::from_secs(90);

/// Where a server is whose requests have tokens: another host's by TLS alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    /// Name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Both as they are written.
    pub authority: String,
    /// Whether it is https.
    pub tls: bool,
}

impl ServerUrl {
    /// Reads one; `what` and `example` are for the sentence about a text that is none.
    pub fn parse(text: &str, what: &str, example: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is not the address of {what}; write for example {example}");
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let authority = uri.authority().ok_or_else(wrong)?;
        let (tls, port) = match uri.scheme_str() {
            Some("https") => (true, 443),
            Some("http") => (false, 80),
            _ => return Err(wrong()),
        };
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong());
        }
        let host = authority.host().trim_matches(['[', ']']);
        let is_loopback = |address: IpAddr| address.is_loopback();
        if !tls && host != "localhost" && !host.parse().is_ok_and(is_loopback) {
            return Err(format!(
                "{text} is another host: write https://, so that neither token nor answer is read on the way"
            ));
        }
        Ok(Self {
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(port),
            authority: authority.to_string(),
            tls,
        })
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority)
    }
}

/// A segment of a path, or a value of a query, with everything but unreserved characters encoded
/// (RFC 3986, section 2.3).
pub fn segment(text: &str) -> String {
    let encode = |octet: u8| match octet {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(octet).to_string()
        }
        _ => format!("%{octet:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// An answer whose body has still to come; the connection ends with it.
pub struct HttpAnswer {
    /// Its status.
    pub status: StatusCode,
    /// Its body.
    pub body: Incoming,
    _connection: JoinSet<hyper::Result<()>>,
}

/// Sends a request.
pub async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<HttpAnswer> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let answer = sender.send_request(request).await;
    let answer = answer.context("no answer to the request")?;
    Ok(HttpAnswer {
        status: answer.status(),
        body: answer.into_body(),
        _connection: driver,
    })
}

impl HttpAnswer {
    /// The whole body, of `max` bytes at most.
    pub async fn read(self, max: usize) -> anyhow::Result<Bytes> {
        let body = Limited::new(self.body, max).collect().await;
        let body = body.map_err(|error| match error.is::<LengthLimitError>() {
            true => anyhow::anyhow!("the answer is longer than {max} bytes"),
            false => anyhow::Error::from_boxed(error).context("the answer breaks off"),
        })?;
        Ok(body.to_bytes())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[test]
    fn tokens_go_by_tls_alone() {
        let of = |text: &str| ServerUrl::parse(text, "a daemon", "https://lb1.example:9470");
        let url = of("https://[2001:db8::1]:9470/").unwrap();
        assert_eq!(
            (url.host.as_str(), url.port, url.tls),
            ("2001:db8::1", 9470, true)
        );
        assert_eq!(url.authority, "[2001:db8::1]:9470");
        assert_eq!(url.to_string(), "https://[2001:db8::1]:9470");
        assert_eq!(of("https://lb1.example").unwrap().port, 443);
        for here in ["http://127.0.0.1:9470", "http://localhost:9470"] {
            assert!(!of(here).unwrap().tls, "{here}");
        }
        for wrong in [
            "http://lb1.example:9470",
            "http://10.0.0.1:9470",
            "lb1.example:9470",
            "/run/lb.sock",
            "https://lb1/v1",
            "ftp://a",
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn segments_hold_any_name() {
        assert_eq!(segment("web"), "web");
        assert_eq!(segment("[::1]:80/tcp"), "%5B%3A%3A1%5D%3A80%2Ftcp");
    }

    /// A daemon that never ends its answer would fill the memory of who asks.
    #[test]
    fn a_body_without_an_end_is_given_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let (ours, mut theirs) = duplex(1 << 16);
            let answers = tokio::spawn(async move {
                let _ = theirs.read(&mut [0; 1024]).await;
                let head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n";
                let _ = theirs.write_all(head).await;
                while theirs.write_all(&[b' '; 4096]).await.is_ok() {}
            });
            let request = Request::get("/").body(Full::default()).unwrap();
            let answer = send(ours, request).await.unwrap();
            assert_eq!(answer.status, StatusCode::OK);
            let error = answer.read(1 << 20).await.unwrap_err().to_string();
            assert!(error.contains("longer than 1048576 bytes"), "{error}");
            answers.await.unwrap();
        });
    }
}
