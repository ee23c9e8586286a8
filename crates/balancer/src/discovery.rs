// SPDX-License-Identifier: Apache-2.0
//! Reals that the file does not name: where they are asked for, and how they come into force.
//!
//! They are applied like changes by the API: settings made by hand stay, and reals that are no
//! longer in the answers drain first. The last answers are kept for the next daemon, which could
//! not distinguish an empty pool from one that it has not asked for yet.

mod dns;
mod found;
mod http;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use causeway_api::Moment;
use causeway_api::balancer::DiscoveryView;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::config::{
    self, BalancerConfig, Discover, RealConfig, RealsOrigin, SharedVip, VipConfig,
};
use crate::engine::{Engine, EngineError};
use crate::plane::Route;
use crate::shared::Shared;
use crate::state_dir::{KeptReal, SetByHand};

pub(crate) use found::{FoundReal, FoundReals};

/// How late a new configuration, an answer or the end of a drain is noticed.
const NAP: Duration = Duration::from_millis(250);
/// How often a file is looked at.
const FILE_EVERY: Duration = Duration::from_secs(1);
/// A source that has not answered by then has failed.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most of a file or a page that is read.
const TEXT_MAX: usize = 1 << 20;

/// What was answered, and after what time to ask again, if the answer says.
type Told = (Vec<Value>, Option<Duration>);

/// Puts what has been found into a file's configuration.
pub(super) fn over(
    mut file: BalancerConfig,
    found: &HashMap<String, FoundReals>,
) -> BalancerConfig {
    for vip in file.vips.iter_mut().filter(|vip| vip.discover.is_some()) {
        let found = found.get(&vip.endpoint());
        put(vip, found);
    }
    file
}

/// Gives a VIP the reals that were found in the place of those it had.
fn put(vip: &mut VipConfig, found: Option<&FoundReals>) {
    vip.reals.retain(|real| !real.found);
    let found = found.map(|found| found.configs(&vip.reals));
    vip.reals.extend(found.unwrap_or_default());
}

/// What a former daemon knew, of the VIPs that the file still has asked for.
pub(super) fn resume(
    file: &BalancerConfig,
    kept: Vec<KeptReal>,
    now: Moment,
) -> HashMap<String, FoundReals> {
    let mut by_vip: HashMap<String, Vec<FoundReal>> = HashMap::new();
    for kept in kept {
        let mut vips = file.vips.iter();
        let is_it = |vip: &&SharedVip| vip.endpoint() == kept.vip;
        let Some(vip) = vips.find(is_it) else {
            continue;
        };
        let Some(rules) = &vip.discover else {
            continue;
        };
        let drain_ns = u64::try_from(rules.drain.as_nanos()).unwrap_or(u64::MAX);
        // The clock may have been set since: a drain began neither in time to come nor longer ago
        // than it lasts.
        let gone =
            |since_ns: u64| now.before(now.realtime_ns.saturating_sub(since_ns).min(drain_ns));
        match config::reals_from_json(vip, vec![kept.real]) {
            Ok(reals) => by_vip
                .entry(kept.vip)
                .or_default()
                .extend(reals.into_iter().map(|real| FoundReal {
                    real,
                    gone: kept.gone_ns.map(gone),
                })),
            Err(error) => warn!(
                "{}: a real that was found before is left out: {error}",
                vip.name
            ),
        }
    }
    let found = by_vip.into_iter();
    found
        .map(|(vip, reals)| (vip, FoundReals::kept(reals)))
        .collect()
}

/// What is known of the VIPs of a new file: reals that the file before had of a VIP which asks for them
/// from now on stay until the first answer.
pub(super) fn with_former(
    file: &BalancerConfig,
    former: &BalancerConfig,
    found: &HashMap<String, FoundReals>,
) -> HashMap<String, FoundReals> {
    let mut all = found.clone();
    let asks = |vip: &&SharedVip| vip.discover.is_some() && file.fleet.is_none();
    for vip in file.vips.iter().filter(asks) {
        let endpoint = vip.endpoint();
        let before = former.vips.iter().find(|of| of.endpoint() == endpoint);
        let Some(before) = before.filter(|of| of.discover.is_none()) else {
            continue;
        };
        let reals = before.reals.iter().map(|real| FoundReal {
            real: RealConfig {
                found: true,
                ..real.clone()
            },
            gone: None,
        });
        all.entry(endpoint)
            .or_insert_with(|| FoundReals::kept(reals.collect()));
    }
    all
}

impl Engine {
    /// The VIPs whose reals are asked for, as the file has them.
    pub fn asked_for(&self) -> Vec<SharedVip> {
        let vips = self.file.vips.iter();
        vips.filter(|vip| vip.discover.is_some()).cloned().collect()
    }

    /// Takes an answer about the reals of a VIP, by its address, port and protocol.
    pub fn handle_found(
        &mut self,
        now: Moment,
        vip: &str,
        answer: Result<Vec<RealConfig>, String>,
    ) -> Result<(), EngineError> {
        let before = self.found.get(vip).cloned().unwrap_or_default();
        let outcome = self.change_found(vip, |found, rules, named| {
            found.handle_answer(now, answer, rules, named)
        });
        let mut vips = self.file.vips.iter();
        let name = vips.find(|of| of.endpoint() == vip).map(|of| &of.name);
        let (Some(name), Some(found)) = (name, self.found.get_mut(vip)) else {
            return outcome;
        };
        if let Err(error) = &outcome {
            found.refuse(format!("the answer cannot be put in force: {error}"));
        }
        if found.error() != before.error() {
            match found.error() {
                Some(error) => warn!("{name}: its reals stay as they are: {error}"),
                None => info!("{name}: there are answers about its reals again"),
            }
        }
        if let Some(removed) = found.held().filter(|_| before.held() != found.held()) {
            warn!(
                "{name}: an answer that takes away {removed} reals is held: `causeway vip accept` takes it"
            );
        }
        outcome
    }

    /// Takes the answer that is held for a VIP.
    pub fn accept_found(&mut self, now: Moment, vip: &str) -> Result<(), EngineError> {
        let vip = &self.config.vips[self.find_vip(vip)?];
        let (name, endpoint) = (vip.name.clone(), vip.endpoint());
        let held = self.found.get(&endpoint).and_then(FoundReals::held);
        if held.is_none() {
            return Err(EngineError::Conflict(format!(
                "no answer is held for vip {name}"
            )));
        }
        self.change_found(&endpoint, |found, _, _| found.accept(now) == Some(true))
    }

    /// Lets reals go whose time is over at `now_ns`, CLOCK_MONOTONIC; and why those of some VIPs
    /// stay.
    pub fn expire_found(&mut self, now_ns: u64) -> Vec<String> {
        let vips: Vec<String> = self.found.keys().cloned().collect();
        let expire = |vip: String| {
            let expired =
                self.change_found(&vip, |found, rules, _| found.handle_timeout(now_ns, rules));
            expired.err().map(|error| format!("{vip}: {error}"))
        };
        vips.into_iter().filter_map(expire).collect()
    }

    /// Changes what was found of a VIP, and brings it into force; or leaves all as it was.
    fn change_found(
        &mut self,
        vip: &str,
        change: impl FnOnce(&mut FoundReals, &Discover, usize) -> bool,
    ) -> Result<(), EngineError> {
        let is_it = |of: &SharedVip| of.endpoint() == vip;
        let Some(at) = self.file.vips.iter().position(is_it) else {
            return Ok(());
        };
        let of_file = &self.file.vips[at];
        let Some(rules) = &of_file.discover else {
            return Ok(());
        };
        let named = of_file.reals.iter().filter(|real| !real.found).count();
        let before = self.found.get(vip).cloned().unwrap_or_default();
        let mut found = before.clone();
        let changed = change(&mut found, rules, named);
        self.found.insert(vip.to_owned(), found);
        if !changed {
            return Ok(());
        }
        let mut file = self.file.clone();
        put(&mut file.vips[at], self.found.get(vip));
        let (config, by_hand) = match self.config_with_found(&file, at) {
            Ok(of) => of,
            Err(error) => {
                self.found.insert(vip.to_owned(), before);
                return Err(error);
            }
        };
        if let Err(error) = self.replace(config) {
            self.found.insert(vip.to_owned(), before);
            return Err(error);
        }
        (self.file, self.by_hand) = (file, by_hand);
        self.tell_fleet();
        Ok(())
    }

    /// What is to be in force with a file whose VIP number `at` has other reals.
    fn config_with_found(
        &self,
        file: &BalancerConfig,
        at: usize,
    ) -> Result<(BalancerConfig, Vec<SetByHand>), EngineError> {
        let (over, by_hand) = self.in_force(file, &self.by_hand)?;
        if self.fleet.is_some() {
            // A fleet's API adds and removes nothing.
            return Ok((over, by_hand));
        }
        let mut config = self.config.clone();
        let endpoint = file.vips[at].endpoint();
        // What the API has added to the file's, or removed of them, stays so.
        let mut vips = config.vips.iter_mut();
        if let Some(in_force) = vips.find(|of| of.endpoint() == endpoint) {
            in_force.reals.retain(|real| !real.found);
            let known: Vec<_> = in_force.reals.iter().map(|real| real.address).collect();
            let found = over.vips[at].reals.iter();
            let found = found.filter(|real| real.found && !known.contains(&real.address));
            in_force.reals.extend(found.cloned());
        }
        Ok((config, by_hand))
    }

    /// What was found, for the next daemon.
    pub(super) fn kept_found(&self) -> Vec<KeptReal> {
        let mut kept: Vec<KeptReal> = self
            .found
            .iter()
            .flat_map(|(vip, found)| {
                found.reals().iter().map(move |found| KeptReal {
                    vip: vip.clone(),
                    real: config::real_to_json(&found.real),
                    gone_ns: found.gone.map(|gone| gone.realtime_ns),
                })
            })
            .collect();
        kept.sort_by(|a, b| a.vip.cmp(&b.vip));
        kept
    }

    /// The state of the reals that are discovered.
    pub(super) fn discovery(&self, vip: &VipConfig) -> Option<DiscoveryView> {
        let discover = vip.discover.as_ref()?;
        let found = self.found.get(&vip.endpoint()).cloned().unwrap_or_default();
        let gone = found.reals().iter().filter(|found| found.gone.is_some());
        let draining = gone.count();
        Some(DiscoveryView {
            origin: origin(discover),
            found: found.reals().len() - draining,
            draining,
            last_answer_ns: found.last_ns(),
            error: found.error().map(str::to_owned),
            held: found.held(),
        })
    }
}

fn origin(discover: &Discover) -> String {
    match &discover.origin {
        RealsOrigin::Dns { name, record, .. } => format!("dns {record} {name}"),
        RealsOrigin::File(path) => format!("file {}", path.display()),
        RealsOrigin::Http { url, .. } => url.clone(),
    }
}

/// When a VIP's reals are asked for next.
struct Asking {
    discover: Discover,
    next: Instant,
    is_out: bool,
}

/// Asks for as long as it is polled; it ends by a panic alone.
pub(crate) async fn run(shared: Arc<Shared>) {
    let (done, mut answers) = mpsc::unbounded_channel();
    let mut asking: HashMap<String, Asking> = HashMap::new();
    let mut left: Vec<String> = Vec::new();
    loop {
        let vips = shared.aside(|shared| shared.engine().asked_for());
        let Ok(vips) = vips.await else { return };
        asking.retain(|known, _| vips.iter().any(|vip| vip.endpoint() == *known));
        let now = Instant::now();
        for vip in vips {
            let Some(discover) = vip.discover.clone() else {
                continue;
            };
            let endpoint = vip.endpoint();
            let of = asking.entry(endpoint.clone()).or_insert_with(|| Asking {
                discover: discover.clone(),
                next: now,
                is_out: false,
            });
            if of.discover != discover {
                (of.discover, of.next) = (discover.clone(), now);
            }
            if of.is_out || of.next > now {
                continue;
            }
            of.is_out = true;
            let done = done.clone();
            tokio::spawn(async move {
                let answer = timeout(TIMEOUT, ask(&vip, &discover)).await;
                let answer = answer.unwrap_or_else(|_| {
                    Err(format!(
                        "{}: no answer within {} s",
                        origin(&discover),
                        TIMEOUT.as_secs()
                    ))
                });
                let _ = done.send((endpoint, discover, answer));
            });
        }
        tokio::select! {
            () = sleep(NAP) => {}
            Some((vip, asked, answer)) = answers.recv() => {
                let Some(of) = asking.get_mut(&vip) else { continue };
                of.is_out = false;
                if asked != of.discover {
                    continue;
                }
                let told = answer.as_ref().ok().and_then(|(_, after)| *after);
                let every = match of.discover.origin {
                    RealsOrigin::File(_) => FILE_EVERY,
                    _ => of.discover.interval,
                };
                of.next = Instant::now() + told.unwrap_or(every);
                bring(&shared, &vip, asked, answer.map(|(reals, _)| reals)).await;
            }
        }
        let now_ns = Moment::now().monotonic_ns;
        let errors = shared.aside(move |shared| shared.engine().expire_found(now_ns));
        let Ok(errors) = errors.await else { return };
        for error in errors.iter().filter(|error| !left.contains(*error)) {
            warn!("cannot remove reals that are no longer in the answers: {error}");
        }
        left = errors;
    }
}

/// Brings an answer of whom was asked into force.
async fn bring(
    shared: &Arc<Shared>,
    vip: &str,
    asked: Discover,
    answer: Result<Vec<RealConfig>, String>,
) {
    let of = vip.to_owned();
    let brought = shared.aside(move |shared| {
        let answer = answer.and_then(|reals| {
            let addresses: Vec<_> = reals.iter().map(|real| real.address).collect();
            let way = shared.find_way(|| addresses, Route::of);
            way.map_err(|error| error.to_string())?;
            Ok(reals)
        });
        let now = Moment::now();
        let mut engine = shared.engine();
        // A reload may have changed whom to ask meanwhile.
        let mut vips = engine.asked_for().into_iter();
        if vips.any(|vip| vip.endpoint() == of && vip.discover.as_ref() == Some(&asked)) {
            // It says itself why an answer is not in force.
            let _ = engine.handle_found(now, &of, answer);
        }
    });
    if let Err(error) = brought.await {
        warn!("{vip}: reals that were found are not in force: {error}");
    }
}

/// Asks once.
async fn ask(
    vip: &VipConfig,
    discover: &Discover,
) -> Result<(Vec<RealConfig>, Option<Duration>), String> {
    let of_origin = |error: String| format!("{}: {error}", origin(discover));
    let (reals, after) = match &discover.origin {
        RealsOrigin::Dns {
            name,
            record,
            resolver,
        } => {
            let told = dns::ask(name, *record, vip, *resolver).await;
            told.map_err(|error| of_origin(format!("{error:#}")))?
        }
        RealsOrigin::File(path) => (file(path).await.map_err(of_origin)?, None),
        RealsOrigin::Http { url, tls } => {
            let text = http::get(url, tls.as_ref()).await;
            let text = text.map_err(|error| of_origin(format!("{error:#}")))?;
            (list(&text).map_err(of_origin)?, None)
        }
    };
    let reals = config::reals_from_json(vip, reals).map_err(of_origin)?;
    Ok((reals, after))
}

async fn file(path: &Path) -> Result<Vec<Value>, String> {
    let unread = |error: std::io::Error| format!("cannot be read: {error}");
    // A pipe would have it wait.
    let about = tokio::fs::metadata(path).await.map_err(unread)?;
    if !about.is_file() {
        return Err("it is not a file".to_owned());
    }
    let file = tokio::fs::File::open(path).await.map_err(unread)?;
    let mut text = String::new();
    let mut file = file.take(TEXT_MAX as u64 + 1);
    file.read_to_string(&mut text).await.map_err(unread)?;
    match text.len() <= TEXT_MAX {
        true => list(&text),
        false => Err("it is longer than 1 MiB".to_owned()),
    }
}

/// A list of reals: JSON, or an address in each line, with its weight behind it.
fn list(text: &str) -> Result<Vec<Value>, String> {
    let text = text.trim();
    if text.starts_with(['[', '{']) {
        let value: Value =
            serde_json::from_str(text).map_err(|error| format!("it is not valid JSON: {error}"))?;
        let reals = match value {
            Value::Array(reals) => Some(reals),
            Value::Object(mut object) => match object.remove("reals") {
                Some(Value::Array(reals)) => Some(reals),
                _ => None,
            },
            _ => None,
        };
        let reals = reals.ok_or("it is not a list of reals, and has none under `reals`")?;
        // An address alone stands for a real with it.
        let real = |real| match real {
            Value::String(address) => serde_json::json!({ "address": address }),
            other => other,
        };
        return Ok(reals.into_iter().map(real).collect());
    }
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim());
    let real = |line: &str| {
        let mut words = line.split_whitespace();
        let mut real = serde_json::json!({ "address": words.next() });
        if let Some(weight) = words.next() {
            let number: Result<u32, _> = weight.parse();
            real["weight"] = number
                .map_err(|_| {
                    format!(
                        "`{line}` is not a valid real; write an address, and a weight behind it"
                    )
                })?
                .into();
        }
        match words.next() {
            None => Ok(real),
            Some(_) => Err(format!(
                "`{line}` is not a valid real; write an address, and a weight behind it"
            )),
        }
    };
    lines.filter(|line| !line.is_empty()).map(real).collect()
}
