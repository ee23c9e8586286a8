// SPDX-License-Identifier: Apache-2.0
//! Requests to the balancer's daemon on this machine, by its Unix socket.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use causeway_api::Problem;
use causeway_api::balancer::Difference;
use causeway_service::exchange;
use http_body_util::Full;
use hyper::{Method, Request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::api_server::BODY_MAX;
use crate::wanted::InForce;

/// How long it may take to answer.
const TIMEOUT: Duration = exchange::RELOAD_TIMEOUT;

/// The daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalBalancer {
    /// Its socket.
    pub socket: PathBuf,
}

/// Of its answers, what is looked at: they have all counters of each real.
#[derive(Deserialize)]
struct Status {
    config_file: PathBuf,
}

#[derive(Deserialize)]
struct Vip {
    name: String,
    reals: Vec<Real>,
}

#[derive(Deserialize)]
struct Real {
    address: IpAddr,
}

/// Why it did not do something.
#[derive(Debug)]
pub enum BalancerError {
    /// It says no, in one sentence.
    Refused(String),
    /// It does not answer.
    Failed(anyhow::Error),
}

impl fmt::Display for BalancerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(sentence) => f.write_str(sentence),
            Self::Failed(error) => write!(f, "the balancer does not answer: {error:#}"),
        }
    }
}

impl From<anyhow::Error> for BalancerError {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

impl LocalBalancer {
    /// The file that it goes by.
    pub async fn config_file(&self) -> Result<PathBuf, BalancerError> {
        let status: Status = self.ask(Method::GET, "/v1/status", String::new()).await?;
        Ok(status.config_file)
    }

    /// The VIPs that it has, with their reals.
    pub async fn in_force(&self) -> Result<InForce, BalancerError> {
        let vips: Vec<Vip> = self.ask(Method::GET, "/v1/vips", String::new()).await?;
        let reals = |vip: Vip| vip.reals.into_iter().map(|real| real.address).collect();
        let names: Vec<String> = vips.iter().map(|vip| vip.name.clone()).collect();
        Ok(names.into_iter().zip(vips.into_iter().map(reals)).collect())
    }

    /// Whether it would take a file with this text.
    pub async fn check(&self, text: String) -> Result<(), BalancerError> {
        let summary: Result<String, _> = self.ask(Method::POST, "/v1/check", text).await;
        summary.map(drop)
    }

    /// Why a file with this text can come into force at a start only; `None` if a reload is enough.
    pub async fn waits_for_start(&self, text: String) -> Result<Option<String>, BalancerError> {
        let difference: Difference = self.ask(Method::POST, "/v1/diff", text).await?;
        let mut changes = difference.changes.iter();
        if changes.any(|change| change.needs_unload) {
            // A restart alone is not enough, and it says what is.
            return Ok(Some(difference.refused.join("; ")));
        }
        let changes = difference.changes.iter().filter(|of| of.needs_restart);
        let keys: Vec<&str> = changes.filter_map(|of| of.key.as_deref()).collect();
        let has = if keys.len() == 1 { "has" } else { "have" };
        let sentence = || format!("restart causeway-lb: `{}` {has} changed", keys.join("`, `"));
        Ok((!keys.is_empty()).then(sentence))
    }

    /// Has it read its file again.
    pub async fn reload(&self) -> Result<String, BalancerError> {
        self.ask(Method::POST, "/v1/reload", String::new()).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<T, BalancerError> {
        let socket = self.socket.display();
        let asked = async {
            let request = Request::builder().method(method).uri(path);
            let request = request.header("host", "causeway").body(Full::from(body))?;
            let stream = UnixStream::connect(&self.socket).await;
            let stream = stream.with_context(|| format!("cannot connect to {socket}"))?;
            let answer = exchange::send(stream, request).await?;
            let status = answer.status;
            Ok::<_, anyhow::Error>((status, answer.read(BODY_MAX).await?))
        };
        let answer = timeout(TIMEOUT, asked).await;
        let silent = |_| anyhow!("nothing from {socket} within {} s", TIMEOUT.as_secs());
        let (status, body) = answer.map_err(silent)??;
        if !status.is_success() {
            let problem: Problem = serde_json::from_slice(&body).context(status.to_string())?;
            return Err(BalancerError::Refused(problem.error));
        }
        let read = serde_json::from_slice(&body);
        Ok(read.context("the balancer is of another version: its answer is not understood")?)
    }
}
