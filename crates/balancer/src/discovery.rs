// SPDX-License-Identifier: Apache-2.0
//! Asks for the reals that the file does not name, and brings the answers to the engine.

mod dns;
mod http;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use causeway_api::Moment;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::config::{self, Discover, RealConfig, RealsOrigin, VipConfig};
use crate::found::origin;
use crate::plane::Route;
use crate::shared::Shared;

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

/// The same with the reals, or why there are none.
type Answer = Result<(Vec<RealConfig>, Option<Duration>), String>;

/// What came of asking for a VIP's reals.
struct Outcome {
    vip: String,
    discover: Discover,
    /// `None`: what did not answer in time has ended now.
    answer: Option<Answer>,
    is_out: bool,
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
                // Another source does not wait for the former one.
                of.is_out &= of.discover.origin == discover.origin;
                (of.discover, of.next) = (discover.clone(), now);
            }
            if of.is_out || of.next > now {
                continue;
            }
            of.is_out = true;
            let done = done.clone();
            tokio::spawn(async move {
                let tell = |answer, is_out| {
                    let _ = done.send(Outcome {
                        vip: endpoint.clone(),
                        discover: discover.clone(),
                        answer,
                        is_out,
                    });
                };
                tell_in_time(ask(&vip, &discover), TIMEOUT, &discover, tell).await;
            });
        }
        tokio::select! {
            () = sleep(NAP) => {}
            Some(outcome) = answers.recv() => {
                let Some(of) = asking.get_mut(&outcome.vip) else { continue };
                if outcome.discover.origin != of.discover.origin {
                    continue;
                }
                of.is_out = outcome.is_out;
                let answer = outcome.answer.filter(|_| outcome.discover == of.discover);
                let Some(answer) = answer else { continue };
                let told = answer.as_ref().ok().and_then(|(_, after)| *after);
                let every = match of.discover.origin {
                    RealsOrigin::File(_) => FILE_EVERY,
                    _ => of.discover.interval,
                };
                of.next = Instant::now() + told.unwrap_or(every);
                let reals = answer.map(|(reals, _)| reals);
                bring(&shared, &outcome.vip, outcome.discover, reals).await;
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

/// Tells an answer, or that there was none in `time`, and whether the asking goes on: nothing ends a
/// thread that reads a file, as one on a network that hangs. It is told when that has ended, so that
/// no more than one thread waits for each file.
async fn tell_in_time(
    asking: impl Future<Output = Answer>,
    time: Duration,
    discover: &Discover,
    tell: impl Fn(Option<Answer>, bool),
) {
    let lasts = matches!(discover.origin, RealsOrigin::File(_));
    let mut asking = pin!(asking);
    if let Ok(answer) = timeout(time, asking.as_mut()).await {
        return tell(Some(answer), false);
    }
    let source = origin(discover);
    let late = format!("{source}: no answer within {} s", time.as_secs());
    tell(Some(Err(late)), lasts);
    if lasts {
        let _ = asking.await;
        tell(None, false);
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
async fn ask(vip: &VipConfig, discover: &Discover) -> Answer {
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
