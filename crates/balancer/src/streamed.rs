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
use hyper::body::Frame;
use tokio::sync::mpsc;

use super::api::blocking;
use super::engine::{Engine, EngineError};
use super::report::{self, Listed};
use super::shared::Shared;

/// Parts of an answer that wait for the client.
const WAITING: usize = 2;

/// JSON that goes on with all VIPs: `head` says what stands before them, and `tail` follows them.
pub(crate) async fn vips(
    shared: Arc<Shared>,
    listed: Listed,
    head: impl FnOnce(&Engine) -> anyhow::Result<String> + Send + 'static,
    tail: &'static str,
) -> Result<Response, EngineError> {
    let (sender, receiver) = mpsc::channel(WAITING);
    let begun = blocking(move || {
        let mut parts = Parts {
            shared,
            listed,
            next: 0,
        };
        let mut text = head(&parts.shared.engine())?;
        text += &parts.more()?.unwrap_or_default();
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

/// The VIPs that have not been told yet.
struct Parts {
    shared: Arc<Shared>,
    listed: Listed,
    next: usize,
}

impl Parts {
    /// The next ones; `None` after the last.
    fn more(&mut self) -> anyhow::Result<Option<String>> {
        let engine = self.shared.engine();
        if self.next >= engine.pools().len() {
            return Ok(None);
        }
        // As many reals as an interval looks at, and at least one VIP.
        let from = self.next;
        let mut reals = 0;
        let fit = engine.pools()[from..].iter().take_while(|pool| {
            reals += pool.vip().reals.len();
            reals <= engine.few
        });
        self.next = from + fit.count().max(1);
        let views = report::vips_of(&engine, from..self.next, self.listed)?;
        drop(engine);
        let mut text = String::new();
        for (at, vip) in views.iter().enumerate() {
            let comma = if from + at > 0 { "," } else { "" };
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
