// SPDX-License-Identifier: Apache-2.0
//! Talks to a running daemon through its Unix socket.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use causeway_api::Problem;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

/// How long a daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where the daemon listens; part of every command that talks to it.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Target {
    /// Unix socket of the daemon
    #[arg(
        short,
        long,
        global = true,
        value_name = "PATH",
        default_value = "/run/causeway/lb.sock",
        env = "CAUSEWAY_SOCKET"
    )]
    pub socket: PathBuf,
    /// The command that starts what listens there.
    #[arg(skip = "lb")]
    command: &'static str,
}

impl Target {
    /// The balancer at `socket`.
    pub(crate) fn balancer(socket: PathBuf) -> Self {
        Self {
            socket,
            command: "lb",
        }
    }

    /// The agent at `socket`.
    pub(crate) fn agent(socket: PathBuf) -> Self {
        Self {
            socket,
            command: "agent",
        }
    }

    /// The tunnel at `socket`.
    pub(crate) fn tunnel(socket: PathBuf) -> Self {
        Self {
            socket,
            command: "tunnel",
        }
    }

    /// `GET path`.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        parse(&self.call(Method::GET, path, None)?)
    }

    /// `method path` with a JSON body; the answer is not looked at.
    pub(crate) fn send(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<()> {
        let body = serde_json::to_vec(body)?;
        self.call(method, path, Some(body)).map(drop)
    }

    /// `POST path` with this text.
    pub(crate) fn post<T: DeserializeOwned>(&self, path: &str, text: &str) -> anyhow::Result<T> {
        parse(&self.call(Method::POST, path, Some(text.into()))?)
    }

    /// `DELETE path`, whose answer tells what was there.
    pub(crate) fn delete_for<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        parse(&self.call(Method::DELETE, path, None)?)
    }

    /// `DELETE path`.
    pub(crate) fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.call(Method::DELETE, path, None).map(drop)
    }

    fn call(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> anyhow::Result<Bytes> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            match tokio::time::timeout(PATIENCE, call(self, method, path, body)).await {
                Ok(answer) => answer,
                Err(_) => bail!(
                    "the daemon at {} did not answer within {} s",
                    self.socket.display(),
                    PATIENCE.as_secs()
                ),
            }
        })
    }
}

async fn call(
    target: &Target,
    method: Method,
    path: &str,
    body: Option<Vec<u8>>,
) -> anyhow::Result<Bytes> {
    let stream = UnixStream::connect(&target.socket)
        .await
        .map_err(|error| unreachable_daemon(target, &error))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .context("cannot talk to the daemon")?;
    // Ends with the connection; what fails in it, fails in the request too.
    let driver = tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "causeway")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.unwrap_or_default())))?;
    let answer = sender
        .send_request(request)
        .await
        .context("the daemon closed the connection")?;
    let status = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    driver.abort();
    match status.is_success() {
        true => Ok(body),
        false => Err(refusal(status, &body)),
    }
}

fn unreachable_daemon(target: &Target, error: &std::io::Error) -> anyhow::Error {
    let (socket, command) = (target.socket.display(), target.command);
    match error.kind() {
        ErrorKind::NotFound => anyhow!(
            "no daemon runs at {socket}; start one with `causeway {command} -c FILE`, or name its socket with --socket"
        ),
        ErrorKind::ConnectionRefused => anyhow!(
            "the daemon at {socket} is gone (the data plane goes on without it); start it again with `causeway {command} -c FILE`"
        ),
        ErrorKind::PermissionDenied => {
            anyhow!("you may not use {socket}; run as root, or join the group that owns it")
        }
        _ => anyhow!("cannot connect to {socket}: {error}"),
    }
}

fn refusal(status: StatusCode, body: &[u8]) -> anyhow::Error {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => anyhow!("{}", problem.error),
        Err(_) => anyhow!("the daemon answered {status}"),
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> anyhow::Result<T> {
    serde_json::from_slice(body)
        .context("the daemon is of another version: its answer is not understood")
}

/// A path segment with everything but unreserved characters encoded (RFC 3986,
/// section 2.3).
pub(crate) fn segment(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_hold_any_name() {
        assert_eq!(segment("web"), "web");
        assert_eq!(segment("[::1]:80/tcp"), "%5B%3A%3A1%5D%3A80%2Ftcp");
    }

    #[test]
    fn a_missing_daemon_is_one_sentence_with_a_way_on() {
        let target = Target {
            socket: PathBuf::from("/nonexistent/lb.sock"),
            command: "lb",
        };
        let error = target.get::<Problem>("/v1/status").unwrap_err();
        assert_eq!(
            error.to_string(),
            "no daemon runs at /nonexistent/lb.sock; start one with `causeway lb -c FILE`, or name its socket with --socket"
        );
    }

    #[test]
    fn a_socket_without_a_daemon_says_that_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("lb.sock");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let error = Target::agent(socket)
            .get::<Problem>("/v1/status")
            .unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("is gone (the data plane goes on without it); start it again with `causeway agent -c FILE`")
        );
    }
}
