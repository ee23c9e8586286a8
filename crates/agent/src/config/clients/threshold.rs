// SPDX-License-Identifier: Apache-2.0
//! `[[agent.clients.threshold]]`, and the same asked for at run time.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use causeway_api::agent::NewThreshold;
use causeway_service::config::{self, Faults, Spanned, text, units};

use super::ClientsConfig;
use crate::config::raw::RawThreshold;

/// What a threshold is called that has no name.
const NAME: &str = "client-response-time";
/// Bytes of a name that is given at run time.
const NAME_MAX: usize = 64;
/// How long each side has to last, unless given.
const LASTING: Duration = Duration::from_secs(5);
/// What statistics are of, unless given.
const WINDOW: Duration = Duration::from_secs(10);
/// The longest that they can be of: what the agent remembers of each category.
pub(crate) const WINDOW_MAX: Duration = Duration::from_secs(60);
const PERCENTILES: RangeInclusive<f64> = 1.0..=99.9;
/// Longest time in a request, seconds.
const SECONDS_MAX: f64 = 86_400.0;

/// What of the response times is compared with a limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Statistic {
    /// By the model, clients that will give up included.
    Mean,
    /// So many percent of the clients waited less.
    Percentile(f64),
}

impl Statistic {
    /// `mean`, `p50`, `p99.9`.
    fn from_word(word: &str) -> Result<Self, String> {
        let percent = word.strip_prefix('p').and_then(|text| text.parse().ok());
        match (word, percent) {
            ("mean", _) => Ok(Self::Mean),
            (_, Some(percent)) if PERCENTILES.contains(&percent) => Ok(Self::Percentile(percent)),
            _ => Err(format!(
                "`{word}` is not a statistic; write mean, or a percentile from p1 to p99.9, for example p99"
            )),
        }
    }
}

impl fmt::Display for Statistic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mean => f.pad("mean"),
            Self::Percentile(percent) => write!(f, "p{percent}"),
        }
    }
}

/// A client response time at which to notify.
#[derive(Debug, Clone, PartialEq)]
pub struct Threshold {
    /// What to call it.
    pub name: String,
    /// Name of the service; `None`: each of them.
    pub service: Option<String>,
    /// The group of clients, as categories have it; `None`: each of them.
    pub clients: Option<String>,
    /// What is compared.
    pub statistic: Statistic,
    /// Begins above this,
    pub above: Duration,
    /// and ends below this,
    pub below: Duration,
    /// each once it has held for so long.
    pub lasting: Duration,
    /// What the statistic is of.
    pub window: Duration,
    /// `http://` address that gets the event as JSON.
    pub webhook: Option<String>,
    /// Program with arguments that gets the event as JSON on its standard input.
    pub exec: Vec<String>,
}

impl Threshold {
    /// One that is asked for while the agent runs. The error is a sentence.
    pub(crate) fn asked(by: &NewThreshold, config: &ClientsConfig) -> Result<Self, String> {
        let name = by.name.as_deref().unwrap_or(NAME);
        if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
            return Err(format!(
                "the name `{}` is not valid; use 1 to {NAME_MAX} bytes without control characters",
                name.escape_debug()
            ));
        }
        let above = seconds("above_s", by.above_s)?;
        let or = |key, value: Option<f64>, default| {
            value.map_or(Ok(default), |value| seconds(key, value))
        };
        let statistic = by.statistic.as_deref().map(Statistic::from_word);
        let threshold = Self {
            name: name.to_owned(),
            service: by.service.clone(),
            clients: by.clients.as_deref().map(group).transpose()?,
            statistic: statistic.transpose()?.unwrap_or(Statistic::Mean),
            above,
            below: or("below_s", by.below_s, a_fifth_less(above))?,
            lasting: or("for_s", by.for_s, LASTING)?,
            window: or("window_s", by.window_s, WINDOW)?,
            webhook: None,
            exec: Vec::new(),
        };
        config.check_threshold(&threshold)?;
        Ok(threshold)
    }

    /// Whether it is about this service and these clients.
    pub(crate) fn is_about(&self, service: &str, clients: &str) -> bool {
        let is_one =
            |named: &Option<String>, one: &str| named.as_deref().is_none_or(|of| of == one);
        is_one(&self.service, service) && is_one(&self.clients, clients)
    }
}

fn a_fifth_less(above: Duration) -> Duration {
    above.mul_f64(0.8)
}

fn seconds(key: &str, value: f64) -> Result<Duration, String> {
    match (0.0..=SECONDS_MAX).contains(&value) {
        true => Ok(Duration::from_secs_f64(value)),
        false => Err(format!(
            "{key} {value} is out of range; write seconds from 0 to {SECONDS_MAX}"
        )),
    }
}

/// A group of clients as categories have it.
fn group(text: &str) -> Result<String, String> {
    match text {
        "others" => Ok(text.to_owned()),
        _ => config::network(text).map(|(address, length)| format!("{address}/{length}")),
    }
}

impl ClientsConfig {
    /// Whether there is what a threshold names, and it can begin and end. The error is a sentence.
    fn check_threshold(&self, of: &Threshold) -> Result<(), String> {
        let is_service = |name: &String| match name.as_str() {
            "others" => self.others,
            _ => self.services.iter().any(|(known, _, _)| known == name),
        };
        let is_group = |name: &String| match name.as_str() {
            "others" => !self.prefixes.is_empty(),
            _ => {
                let mut known = self.prefixes.iter();
                known.any(|(address, length)| format!("{address}/{length}") == *name)
            }
        };
        let unknown = |what: &str, name: &str, key: &str| {
            format!(
                "threshold {} is for the {what} `{name}`, which `{key}` does not name",
                of.name
            )
        };
        if let Some(name) = of.service.as_ref().filter(|name| !is_service(name)) {
            return Err(unknown("service", name, "services"));
        }
        if let Some(name) = of.clients.as_ref().filter(|name| !is_group(name)) {
            return Err(unknown("clients", name, "prefixes"));
        }
        if of.below > of.above {
            return Err("`below` is more than `above`: the threshold would never end".to_owned());
        }
        let range = Duration::from_secs(1)..=WINDOW_MAX;
        config::within(of.window, &range, "window", "1s", "60s").map(drop)
    }
}

/// One of the file, as far as it stands for itself.
fn alone(spanned: &Spanned<RawThreshold>, faults: &mut Faults<'_>) -> Option<Threshold> {
    let raw = spanned.as_ref();
    let above = text(raw.above.as_ref(), faults, units::duration);
    if raw.above.is_none() {
        faults.at(
            spanned.span(),
            "the threshold has no `above`; write for example above = \"2s\"",
        );
    }
    let above = above?;
    let webhook = text(raw.webhook.as_ref(), faults, |address| {
        let host = address
            .strip_prefix("http://")
            .and_then(|rest| rest.split('/').next());
        match host.is_some_and(|host| !host.is_empty()) {
            true => Ok(address.to_owned()),
            false => Err(format!(
                "`{address}` is not an http:// address; for TLS let `exec` call curl"
            )),
        }
    });
    let statistic = text(raw.statistic.as_ref(), faults, Statistic::from_word);
    let time = |value, default, faults: &mut Faults<'_>| {
        text(value, faults, units::duration).unwrap_or(default)
    };
    Some(Threshold {
        name: raw.name.clone().unwrap_or_else(|| NAME.to_owned()),
        service: raw.service.clone(),
        clients: text(raw.clients.as_ref(), faults, group),
        statistic: statistic.unwrap_or(Statistic::Mean),
        above,
        below: time(raw.below.as_ref(), a_fifth_less(above), faults),
        lasting: time(raw.lasting.as_ref(), LASTING, faults),
        window: time(raw.window.as_ref(), WINDOW, faults),
        webhook,
        exec: raw.exec.clone(),
    })
}

/// Those of the file, of what `config` has by now.
pub(super) fn thresholds(
    raw: &[Spanned<RawThreshold>],
    config: &ClientsConfig,
    faults: &mut Faults<'_>,
) -> Vec<Threshold> {
    let mut found = Vec::new();
    for spanned in raw {
        let Some(threshold) = alone(spanned, faults) else {
            continue;
        };
        if let Err(fault) = config.check_threshold(&threshold) {
            faults.at(spanned.span(), fault);
        }
        found.push(threshold);
    }
    found
}
