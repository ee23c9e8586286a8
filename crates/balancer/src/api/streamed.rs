// SPDX-License-Identifier: Apache-2.0
//! Answers that have every VIP. Where there are many, they are made and sent in parts, so that
//! neither the engine nor the memory is taken for as long as a million reals take.

use std::fmt::Write as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use causeway_api::balancer::PartView;
use hyper::body::Frame;
use tokio::sync::mpsc;

use super::Daemon;
use crate::engine::{Engine, EngineError};
use crate::report::{self, Listed};
use crate::shared::Shared;

/// Parts of an answer that wait for the client.
const WAITING: usize = 2;

/// JSON that goes on with all VIPs, or with one part from a place on: `head` says what stands before
/// them, and `tail` follows them.
pub(crate) async fn vips(
    daemon: Daemon,
    (listed, from): (Listed, Option<usize>),
    head: impl FnOnce(&Engine) -> anyhow::Result<String> + Send + 'static,
    tail: &'static str,
) -> Result<Response, EngineError> {
    let (sender, receiver) = mpsc::channel(WAITING);
    let begun = daemon.shared(move |shared| {
        let mut parts = Parts {
            shared: Arc::clone(shared),
            listed,
            begin: from.unwrap_or(0),
            next: from.unwrap_or(0),
            end: usize::MAX,
        };
        let mut text = head(&parts.shared.engine())?;
        text += &parts.more()?.unwrap_or_default();
        if from.is_some() {
            parts.end = parts.next;
        }
        Ok((parts, text))
    });
    // What fails by now is an answer of its own.
    let (mut parts, text) = begun.await?;
    tokio::task::spawn_blocking(move || {
        let mut text = text;
        loop {
            let more = parts.more();
            let is_last = matches!(more, Ok(None));
            if is_last {
                text += tail;
            }
            // Nobody reads on.
            if sender.blocking_send(Ok(Bytes::from(text))).is_err() {
                return;
            }
            text = match more {
                Ok(Some(more)) => more,
                Ok(None) => return,
                Err(error) => {
                    let _ = sender.blocking_send(Err(io::Error::other(error)));
                    return;
                }
            };
        }
    });
    let body = Body::new(Streamed(receiver));
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

/// What is said about a part of the VIPs, and of all which are not ready.
pub(crate) fn part(shared: &Shared, from: usize) -> PartView {
    let mut not_ready = Vec::new();
    let mut next = 0;
    loop {
        let engine = shared.engine();
        let total = engine.pools().len();
        next = add_not_ready(&engine, next, &mut not_ready);
        if next >= total {
            return PartView {
                from,
                total,
                not_ready,
            };
        }
    }
}

/// Adds the names of those that are not ready in the part that begins there, and says where it ends.
/// A reload may have left fewer VIPs than that since the part before.
fn add_not_ready(engine: &Engine, from: usize, not_ready: &mut Vec<String>) -> usize {
    let end = fit(engine, from);
    for pool in engine.pools().get(from..end).unwrap_or_default() {
        if engine.reals_up(pool) < pool.vip().min_healthy {
            not_ready.push(pool.vip().name.clone());
        }
    }
    end
}

/// Where a part ends that begins there: it has as many reals as an interval looks at, and at least
/// one VIP.
fn fit(engine: &Engine, from: usize) -> usize {
    let mut reals = 0;
    let pools = engine.pools().get(from..).unwrap_or_default();
    let fit = pools.iter().take_while(|pool| {
        reals += pool.vip().reals.len();
        engine.turns.are_few(reals)
    });
    (from + fit.count().max(1)).min(engine.pools().len())
}

/// The VIPs that have not been told yet.
struct Parts {
    shared: Arc<Shared>,
    listed: Listed,
    begin: usize,
    next: usize,
    end: usize,
}

impl Parts {
    /// The next ones; `None` after the last.
    fn more(&mut self) -> anyhow::Result<Option<String>> {
        let engine = self.shared.engine();
        if self.next >= self.end.min(engine.pools().len()) {
            return Ok(None);
        }
        let from = self.next;
        self.next = fit(&engine, from);
        let views = report::vips_of(&engine, from..self.next, self.listed)?;
        drop(engine);
        let mut text = String::new();
        for (at, vip) in views.iter().enumerate() {
            let comma = if from + at > self.begin { "," } else { "" };
            write!(text, "{comma}{}", serde_json::to_string(vip)?)?;
        }
        Ok(Some(text))
    }
}

/// What is sent as it is made.
struct Streamed(mpsc::Receiver<io::Result<Bytes>>);

impl hyper::body::Body for Streamed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let received = self.get_mut().0.poll_recv(context);
        received.map(|part| part.map(|part| part.map(Frame::data)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::add_not_ready;
    use crate::api_tests::Daemon;
    use crate::visits::tests::many;

    #[tokio::test]
    async fn a_part_behind_the_last_vip_is_empty() {
        let daemon = Daemon::new(&many());
        let beyond = daemon.get("/v1/stats?from=50").await;
        assert_eq!(beyond["vips"], json!([]));
        let mut not_ready = Vec::new();
        let end = add_not_ready(&daemon.shared.engine(), 50, &mut not_ready);
        assert_eq!((end, not_ready.len()), (40, 0));
    }
}
