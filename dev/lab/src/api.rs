// SPDX-License-Identifier: Apache-2.0
//! Reads the daemons' API (docs/reference/api.md) as any outside program would, by HTTP and JSON on
//! the Unix socket.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use causeway_api::VerdictView;
use causeway_api::balancer::{History, RealHistory, RealView, Stats};
use serde::de::DeserializeOwned;

/// As many as ten balancers start at once, and beside compilers.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A balancer's `GET /v1/stats`.
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
        append(&mut whole, get(socket, &path)?);
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
    stream
        .read_to_string(&mut answer)
        .with_context(|| format!("GET {path}: reading the answer, for {TIMEOUT:?} at most"))?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    ensure!(
        status == "200",
        "GET {path}: {} {body}",
        head.lines().next().unwrap_or_default()
    );
    Ok(body.to_owned())
}

/// Adds the page that follows.
fn append(whole: &mut History, page: History) {
    whole.next_since_monotonic_ns = page.next_since_monotonic_ns;
    for more in page.series {
        let same = |known: &&mut RealHistory| known.vip == more.vip && known.real == more.real;
        match whole.series.iter_mut().find(same) {
            Some(known) => known.epochs.extend(more.epochs),
            None => whole.series.push(more),
        }
    }
}

/// Packets that left by one verdict.
pub fn verdict(verdicts: &[VerdictView], name: &str) -> u64 {
    let found = verdicts.iter().find(|v| v.verdict == name);
    found.map_or(0, |v| v.packets)
}

pub fn occurred(verdicts: &[VerdictView]) -> BTreeMap<&str, u64> {
    let occurred = verdicts.iter().filter(|v| v.packets > 0);
    occurred.map(|v| (v.verdict.as_str(), v.packets)).collect()
}

/// Packets by any verdict.
pub fn packets(verdicts: &[VerdictView]) -> u64 {
    verdicts.iter().map(|v| v.packets).sum()
}

/// Whether no counter of `now` is behind where it was.
///
/// # Errors
/// Names the first that is.
pub fn ensure_continues(now: &Stats, before: &Stats) -> Result<()> {
    for old in &before.verdicts {
        let (name, now) = (&old.verdict, verdict(&now.verdicts, &old.verdict));
        ensure!(
            now >= old.packets,
            "counter {name} fell from {} to {now}",
            old.packets
        );
    }
    for old in reals(before) {
        let name = &old.address;
        let now = reals(now).find(|r| r.address == *name);
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

fn reals(stats: &Stats) -> impl Iterator<Item = &RealView> {
    stats.vips.iter().flat_map(|vip| &vip.reals)
}

#[cfg(test)]
mod tests {
    use causeway_api::balancer::EpochView;

    use super::*;

    fn page(next: Option<u64>, series: &[(&str, &str, u64)]) -> History {
        let series = series
            .iter()
            .map(|&(vip, real, start_monotonic_ns)| RealHistory {
                vip: vip.to_owned(),
                id: 0,
                real: real.to_owned(),
                epochs: vec![EpochView {
                    start_monotonic_ns,
                    weight: 1.0,
                    ..EpochView::default()
                }],
            });
        History {
            epoch_ns: 0,
            series: series.collect(),
            next_since_monotonic_ns: next,
        }
    }

    #[test]
    fn pages_of_history_are_put_together() {
        let mut whole = page(Some(5), &[("web", "a", 1), ("web6", "a", 2)]);
        let more = [("web6", "a", 6), ("web", "b", 7), ("web", "a", 8)];
        append(&mut whole, page(None, &more));
        let starts: Vec<Vec<u64>> = whole
            .series
            .iter()
            .map(|s| s.epochs.iter().map(|e| e.start_monotonic_ns).collect())
            .collect();
        assert_eq!(starts, [vec![1, 8], vec![2, 6], vec![7]]);
        assert_eq!(whole.next_since_monotonic_ns, None);
    }
}
