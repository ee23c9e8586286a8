// SPDX-License-Identifier: Apache-2.0
//! One HTTP request on a connection of its own.

use anyhow::{Context as _, ensure};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

/// More in one answer is nothing that is waited for here.
const BODY_MAX: usize = 64 << 20;

/// An answer whose body has still to come; the connection ends with it.
pub(crate) struct Answer {
    /// Its status.
    pub(crate) status: StatusCode,
    /// Its body.
    pub(crate) body: Incoming,
    _connection: JoinSet<hyper::Result<()>>,
}

/// Sends a request.
pub(crate) async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<Answer> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let answer: Response<Incoming> = sender
        .send_request(request)
        .await
        .context("the connection was closed")?;
    Ok(Answer {
        status: answer.status(),
        body: answer.into_body(),
        _connection: driver,
    })
}

impl Answer {
    /// The whole body.
    pub(crate) async fn read(self) -> anyhow::Result<Bytes> {
        let body = Limited::new(self.body, BODY_MAX).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("the answer breaks off: {error}"))?;
        Ok(body.to_bytes())
    }
}

/// Splits a body into its lines, as they come.
pub(crate) struct Lines {
    answer: Answer,
    rest: Vec<u8>,
}

/// A longer line is no object: etcd takes 1.5 MiB.
const LINE_MAX: usize = 8 << 20;

impl Lines {
    /// The lines of an answer.
    pub(crate) fn of(answer: Answer) -> Self {
        Self {
            answer,
            rest: Vec::new(),
        }
    }

    /// The next line; `None` at the end. What comes after the last newline is cut off, and so no
    /// line. May be dropped and called again: nothing is lost.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let mut searched = 0;
        loop {
            let end = self.rest[searched..]
                .iter()
                .position(|octet| *octet == b'\n');
            if let Some(end) = end {
                let after = self.rest.split_off(searched + end + 1);
                return Ok(Some(std::mem::replace(&mut self.rest, after)));
            }
            searched = self.rest.len();
            ensure!(searched <= LINE_MAX, "a line is longer than 8 MiB");
            match self.answer.body.frame().await {
                Some(frame) => {
                    if let Some(data) = frame?.data_ref() {
                        self.rest.extend_from_slice(data);
                    }
                }
                None => return Ok(None),
            }
        }
    }
}
