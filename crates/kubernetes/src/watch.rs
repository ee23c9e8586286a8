// SPDX-License-Identifier: Apache-2.0
//! Follows all objects of a kind: a list, then a watch from where the list ends. A watch that ends
//! goes on from the last version that was heard of, bookmarks included; one that the server
//! no longer knows (410) begins with a list again.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use causeway_service::exchange::segment;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use crate::api_server::{ApiError, ApiServer};
use crate::cluster::WatchEvent;
use crate::lines::Lines;
use crate::objects::{ObjectKind, ObjectMeta};

/// Objects of one answer to a list.
const PAGE: usize = 250;
/// How long the server is to keep a watch open, and how long it is waited for in any case.
const WATCH_S: u64 = 300;
const WATCH_MAX: Duration = Duration::from_secs(WATCH_S + 30);
/// Pauses after failures.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(30);
const GONE: u16 = 410;

/// One page of a list.
#[derive(Deserialize)]
struct Page {
    metadata: ListMeta,
    #[serde(default)]
    items: Option<Vec<Value>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    next: String,
}

/// One line of a watch.
#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

/// Tells of all objects of a kind for as long as `tell` wants to hear.
pub async fn follow<K: ObjectKind>(
    server: &ApiServer,
    mut tell: impl FnMut(WatchEvent<K>) -> bool,
) {
    let mut pause = Pause::default();
    let mut version: Option<String> = None;
    loop {
        let mut held = false;
        let step = match &mut version {
            None => list::<K>(server).await.map(|(all, at)| {
                version = Some(at);
                tell(WatchEvent::All(all))
            }),
            Some(version) => watch::<K>(server, version, pause.last, &mut held, &mut tell).await,
        };
        match step {
            Ok(false) => return,
            Ok(true) => pause.end(K::PATH),
            Err(error) if error.is(GONE) => {
                info!(
                    "{}: the last version is no longer known; lists again",
                    K::PATH
                );
                // A server that has forgotten what it has just listed is not asked without a pause.
                version = None;
                sleep(pause.next()).await;
            }
            // Many proxies cut a connection on which nothing has come for a while.
            Err(error) if held => {
                debug!("{}: {error}", K::PATH);
                pause.end(K::PATH);
                sleep(pause.next()).await;
            }
            Err(error) => {
                pause.tell(K::PATH, error);
                sleep(pause.next()).await;
            }
        }
    }
}

/// Pauses that grow while attempts fail.
#[derive(Default)]
struct Pause {
    last: Duration,
    told: bool,
}

impl Pause {
    fn tell(&mut self, what: &str, error: ApiError) {
        match self.told {
            true => debug!("{what}: {error}"),
            false => warn!("{what} cannot be followed: {error}; tries again"),
        }
        self.told = true;
    }

    /// The one behind a further failure.
    fn next(&mut self) -> Duration {
        self.last = (self.last * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.last
    }

    fn end(&mut self, what: &str) {
        if self.told {
            info!("{what} is followed again");
        }
        *self = Self::default();
    }
}

async fn list<K: ObjectKind>(server: &ApiServer) -> Result<(Vec<K>, String), ApiError> {
    let mut all = Vec::new();
    let mut next = String::new();
    loop {
        let more = match next.is_empty() {
            true => String::new(),
            false => format!("&continue={next}"),
        };
        let page: Page = server
            .get(&format!("{}?limit={PAGE}{more}", K::PATH))
            .await?;
        let items = page.items.into_iter().flatten();
        all.extend(items.filter_map(understood::<K>));
        next = segment(&page.metadata.next);
        if next.is_empty() {
            return Ok((all, page.metadata.resource_version));
        }
    }
}

/// An object, if it is one: another that is not must not hinder it.
fn understood<K: ObjectKind>(object: Value) -> Option<K> {
    let name = object["metadata"]["name"].to_string();
    let read = serde_json::from_value(object);
    read.map_err(|error| warn!("{} {name} is left out: {error}", K::PATH))
        .ok()
}

/// Watches until the server ends it; whether `tell` wants to hear more. `held` is set once something was
/// heard, or the watch has lasted longer than the pause before it: what then fails is another fault.
async fn watch<K: ObjectKind>(
    server: &ApiServer,
    version: &mut String,
    paused: Duration,
    held: &mut bool,
    tell: &mut impl FnMut(WatchEvent<K>) -> bool,
) -> Result<bool, ApiError> {
    let path = format!(
        "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}&resourceVersion={version}",
        K::PATH
    );
    let mut lines = Lines::of(server.watch(&path).await?);
    let begun = Instant::now();
    let mut heard_any = false;
    loop {
        let line = timeout(WATCH_MAX, lines.next()).await;
        *held |= begun.elapsed() > paused.max(PAUSE_MIN);
        let line = line.map_err(|_| anyhow!("the watch is silent"))?;
        let Some(line) = line? else {
            // One that ends at once would else be asked again at once, for ever.
            return match heard_any {
                true => Ok(true),
                false => {
                    sleep(PAUSE_MIN).await;
                    Ok(true)
                }
            };
        };
        let line: Line = serde_json::from_slice(&line).context("not a line of a watch")?;
        heard_any = true;
        if line.kind == "ERROR" {
            let code = line.object["code"].as_u64().unwrap_or(0) as u16;
            let message = line.object["message"].as_str().unwrap_or("no reason given");
            return Err(ApiError::Refused {
                code,
                message: message.to_owned(),
            });
        }
        let meta = &line.object["metadata"];
        let at = meta["resourceVersion"].as_str();
        let at = at.context("an object without a version")?.to_owned();
        let heard = match line.kind.as_str() {
            "ADDED" | "MODIFIED" => understood(line.object).map(|of| WatchEvent::Put(Box::new(of))),
            "DELETED" => {
                let meta: ObjectMeta =
                    serde_json::from_value(meta.clone()).context("an object without metadata")?;
                Some(WatchEvent::Gone(meta.key()))
            }
            // A bookmark has a version and nothing else that counts.
            _ => None,
        };
        *version = at;
        *held = true;
        if heard.is_some_and(|heard| !tell(heard)) {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_bound_and_begin_anew() {
        let mut pause = Pause::default();
        let grown: Vec<u128> = (0..10).map(|_| pause.next().as_millis()).collect();
        assert_eq!(
            grown,
            [
                200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000
            ]
        );
        pause.end("nodes");
        assert_eq!(pause.next(), PAUSE_MIN);
    }
}
