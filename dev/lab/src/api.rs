// SPDX-License-Identifier: Apache-2.0
//! What the lab reads of the daemon's API (docs/reference/api.md): as any outside program
//! would, by HTTP and JSON, on the Unix socket.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;

const TIMEOUT: Duration = Duration::from_secs(5);

/// The daemon's totals: `GET /v1/stats`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Stats {
    /// Every exit of the data plane.
    pub verdicts: Vec<Verdict>,
    /// Every VIP; an agent has none.
    #[serde(default)]
    pub vips: Vec<Vip>,
}

/// Packets by what was done with them.
#[derive(Debug, Clone, Deserialize)]
pub struct Verdict {
    /// Word.
    pub verdict: String,
    /// Packets since the data plane was loaded.
    pub packets: u64,
}

/// A VIP.
#[derive(Debug, Clone, Deserialize)]
pub struct Vip {
    /// Address.
    pub address: String,
    /// Whether as many servers are up as it needs.
    #[serde(default)]
    pub ready: bool,
    /// Its servers.
    pub reals: Vec<Real>,
    /// What cookies and connection ids led to.
    #[serde(default)]
    pub cookie: Cookie,
}

/// A VIP's cookies.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Cookie {
    /// Packets by what became of them; empty without cookies.
    pub results: Vec<CookieResult>,
}

/// Packets by what their cookies led to.
#[derive(Debug, Clone, Deserialize)]
pub struct CookieResult {
    /// Word.
    pub result: String,
    /// Packets since the VIP was made.
    pub packets: u64,
}

/// A server of a VIP.
#[derive(Debug, Clone, Deserialize)]
pub struct Real {
    /// Address.
    pub address: String,
    /// `active`, `drain` or `down`.
    pub state: String,
    /// What its probes say.
    pub health: Option<Health>,
    /// Packets since the real was made.
    pub packets: u64,
    /// Connections that picked it.
    pub connections_opened: u64,
    /// Requests.
    pub requests: u64,
}

/// What the probes of a server say.
#[derive(Debug, Clone, Deserialize)]
pub struct Health {
    /// `unknown`, `up` or `down`.
    pub state: String,
    /// What the last probe saw.
    pub reason: String,
}

/// Measurements over time: `GET /v1/history`.
#[derive(Debug, Clone, Deserialize)]
pub struct History {
    /// One series per VIP and real.
    pub series: Vec<Series>,
    /// Where the next page begins, CLOCK_MONOTONIC.
    pub next_since_monotonic_ns: Option<u64>,
}

/// One real over time.
#[derive(Debug, Clone, Deserialize)]
pub struct Series {
    /// Name of the VIP.
    pub vip: String,
    /// Address of the real.
    pub real: String,
    /// Oldest first.
    pub epochs: Vec<Epoch>,
}

/// One epoch of one real.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct Epoch {
    /// Start, CLOCK_MONOTONIC.
    pub start_monotonic_ns: u64,
    /// Mean latency of the epoch's samples.
    pub estimate_us: Option<f64>,
    /// Samples; halves occur.
    pub samples: f64,
    /// Weight in force.
    pub weight: f64,
    /// Configured weight.
    #[serde(default)]
    pub configured: f64,
    /// Connections that picked the real.
    #[serde(default)]
    pub opened: u64,
}

/// `GET /v1/stats`.
pub fn stats(socket: &Path) -> Result<Stats> {
    get(socket, "/v1/stats")
}

/// `GET /v1/history`, all its pages.
pub fn history(socket: &Path) -> Result<History> {
    history_since(socket, 0)
}

/// The same from the epoch on that starts at or after `since_ns`, CLOCK_MONOTONIC.
pub fn history_since(socket: &Path, since_ns: u64) -> Result<History> {
    let path = format!("/v1/history?since_monotonic_ns={since_ns}");
    let mut whole: History = get(socket, &path)?;
    while let Some(next) = whole.next_since_monotonic_ns {
        let path = format!("/v1/history?since_monotonic_ns={next}");
        whole.append(get(socket, &path)?);
    }
    Ok(whole)
}

/// One GET, its answer read as `T`.
pub fn get<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T> {
    let body = get_text(socket, path)?;
    serde_json::from_str(&body).with_context(|| format!("GET {path} gave {body}"))
}

/// Enough HTTP for a local API: one request per connection, whose end is the
/// body's.
pub fn get_text(socket: &Path, path: &str) -> Result<String> {
    let mut stream = UnixStream::connect(socket).context("the daemon's socket")?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    ensure!(
        status == "200",
        "GET {path}: {} {body}",
        head.lines().next().unwrap_or_default()
    );
    Ok(body.to_owned())
}

impl History {
    /// Adds the page that follows.
    fn append(&mut self, page: Self) {
        self.next_since_monotonic_ns = page.next_since_monotonic_ns;
        for more in page.series {
            let same = |known: &&mut Series| known.vip == more.vip && known.real == more.real;
            match self.series.iter_mut().find(same) {
                Some(known) => known.epochs.extend(more.epochs),
                None => self.series.push(more),
            }
        }
    }
}

impl Stats {
    /// Packets that left by one verdict.
    pub fn verdict(&self, word: &str) -> u64 {
        self.verdicts
            .iter()
            .find(|v| v.verdict == word)
            .map_or(0, |v| v.packets)
    }

    /// Verdicts that occurred.
    pub fn verdicts(&self) -> BTreeMap<&str, u64> {
        let occurred = self.verdicts.iter().filter(|v| v.packets > 0);
        occurred.map(|v| (v.verdict.as_str(), v.packets)).collect()
    }

    /// Packets by any verdict.
    pub fn packets(&self) -> u64 {
        self.verdicts.iter().map(|v| v.packets).sum()
    }

    /// Servers of all VIPs.
    pub fn reals(&self) -> impl Iterator<Item = &Real> {
        self.vips.iter().flat_map(|vip| &vip.reals)
    }

    /// Whether no counter is behind where it was.
    ///
    /// # Errors
    /// Names the first that is.
    pub fn ensure_continues(&self, before: &Self) -> Result<()> {
        for old in &before.verdicts {
            let (word, now) = (&old.verdict, self.verdict(&old.verdict));
            ensure!(
                now >= old.packets,
                "counter {word} fell from {} to {now}",
                old.packets
            );
        }
        for old in before.reals() {
            let name = &old.address;
            let now = self.reals().find(|r| r.address == *name);
            let now = now.with_context(|| format!("real {name} is gone"))?;
            ensure!(
                now.packets >= old.packets
                    && now.connections_opened >= old.connections_opened
                    && now.requests >= old.requests,
                "the counters of {name} fell from {old:?} to {now:?}"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(next: Option<u64>, series: &[(&str, &str, u64)]) -> History {
        let series = series
            .iter()
            .map(|&(vip, real, start_monotonic_ns)| Series {
                vip: vip.to_owned(),
                real: real.to_owned(),
                epochs: vec![Epoch {
                    start_monotonic_ns,
                    weight: 1.0,
                    ..Epoch::default()
                }],
            });
        History {
            series: series.collect(),
            next_since_monotonic_ns: next,
        }
    }

    #[test]
    fn pages_of_history_are_put_together() {
        let mut whole = page(Some(5), &[("web", "a", 1), ("web6", "a", 2)]);
        whole.append(page(
            None,
            &[("web6", "a", 6), ("web", "b", 7), ("web", "a", 8)],
        ));
        let starts: Vec<Vec<u64>> = whole
            .series
            .iter()
            .map(|s| s.epochs.iter().map(|e| e.start_monotonic_ns).collect())
            .collect();
        assert_eq!(starts, [vec![1, 8], vec![2, 6], vec![7]]);
        assert_eq!(whole.next_since_monotonic_ns, None);
    }
}
