// SPDX-License-Identifier: Apache-2.0
//! What a VIP does by the client's prefix: reals of their own, and a limit of new flows.

use std::collections::HashMap;
use std::net::IpAddr;

use causeway_dataplane::Prefix;
use causeway_service::config::{Faults, Spanned, Words as _, network, number_within, text};
use serde_json::{Value, json};

use super::raw::{RawLimit, RawSource, RawVip};
use super::{Fallback, RealConfig, Scheduler};

/// Groups of prefixes that the data plane has rings for, over all VIPs.
pub(super) const SOURCES_MAX: usize = causeway_dataplane::abi::SOURCE_GROUPS as usize;

/// Clients that have reals of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Their prefixes, of the VIP's family.
    pub from: Vec<Prefix>,
    /// The reals, which are among the VIP's.
    pub reals: Vec<IpAddr>,
    /// What becomes of them without these.
    pub fallback: Fallback,
    /// Whether these reals are for them alone.
    pub exclusive: bool,
}

/// How many new flows a client prefix may open.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlowLimitConfig {
    /// Flows per second; 0: no limit.
    pub rate: f64,
    /// Flows at once.
    pub burst: u32,
    /// Bits of an IPv4 client's address that count.
    pub prefix4: u8,
    /// The same of IPv6.
    pub prefix6: u8,
}

// The rate comes from a file and is not NaN.
impl Eq for FlowLimitConfig {}

impl FlowLimitConfig {
    /// As the data plane has it; `None` for no limit.
    pub fn in_force(self) -> Option<causeway_dataplane::FlowLimit> {
        causeway_dataplane::FlowLimit::new(self.rate, self.burst, self.prefix4, self.prefix6)
    }
}

pub(super) fn limit(
    raw: Option<&Spanned<RawLimit>>,
    faults: &mut Faults<'_>,
) -> Option<FlowLimitConfig> {
    let spanned = raw?;
    let raw = spanned.as_ref();
    let Some(rate) = &raw.rate else {
        faults.at(
            spanned.span(),
            "the limit has no `rate`, new flows per second of a client prefix; add for example rate = 100",
        );
        return None;
    };
    let rate_is = *rate.as_ref();
    if !(0.0..=causeway_dataplane::FlowLimit::RATE_MAX).contains(&rate_is) {
        faults.at(
            rate.span(),
            format!(
                "rate must lie between 0 (no limit) and {} new flows per second",
                causeway_dataplane::FlowLimit::RATE_MAX
            ),
        );
        return None;
    }
    let burst = number_within(raw.burst.as_ref(), "burst", 1..=1 << 24, faults);
    let prefix4 = number_within(raw.prefix4.as_ref(), "prefix4", 1..=32, faults);
    let prefix6 = number_within(raw.prefix6.as_ref(), "prefix6", 1..=128, faults);
    let limit = FlowLimitConfig {
        rate: rate_is,
        // A second's worth, and at least what a page load opens.
        burst: burst.unwrap_or((rate_is.ceil() as u32).max(10)),
        prefix4: prefix4.unwrap_or(32),
        prefix6: prefix6.unwrap_or(64),
    };
    if limit.rate > 0.0 && limit.in_force().is_none() {
        faults.at(
            spanned.span(),
            format!(
                "a burst of {} at {} per second takes more than {} s to be paid off; lower burst, or raise rate",
                limit.burst,
                limit.rate,
                causeway_dataplane::FlowLimit::BURST_SECONDS_MAX
            ),
        );
        return None;
    }
    (limit.rate > 0.0).then_some(limit)
}

pub(super) fn sources(
    raw: &RawVip,
    vip: Option<IpAddr>,
    scheduler: Scheduler,
    reals: &[RealConfig],
    faults: &mut Faults<'_>,
) -> Vec<Source> {
    let mut seen: HashMap<Prefix, usize> = HashMap::new();
    let mut sources = Vec::with_capacity(raw.source.len());
    for spanned in &raw.source {
        if scheduler == Scheduler::LeastLoaded {
            faults.at(
                spanned.span(),
                "scheduler = \"least-loaded\" plans for all clients alike; with `source` use p2c, awrr or another",
            );
        }
        let line = faults.line(&spanned.span());
        let source = source(spanned, vip, reals, faults);
        for prefix in &source.from {
            if let Some(first) = seen.insert(*prefix, line) {
                let (address, length) = prefix;
                faults.at(
                    spanned.span(),
                    format!("{address}/{length} is given twice, first on line {first}; a prefix has one set of reals"),
                );
            }
        }
        sources.push(source);
    }
    let exclusive = |real: &RealConfig| {
        let mut all = sources.iter();
        all.any(|source| source.exclusive && source.reals.contains(&real.address))
    };
    if let (Some(first), true) = (raw.source.first(), reals.iter().all(exclusive)) {
        faults.at(
            first.span(),
            "all reals are exclusive, and other clients have none; leave one to them",
        );
    }
    sources
}

fn source(
    spanned: &Spanned<RawSource>,
    vip: Option<IpAddr>,
    known: &[RealConfig],
    faults: &mut Faults<'_>,
) -> Source {
    let raw = spanned.as_ref();
    for (key, empty, example) in [
        ("from", raw.from.is_empty(), "from = [\"10.0.0.0/8\"]"),
        ("reals", raw.reals.is_empty(), "reals = [\"10.0.0.1\"]"),
    ] {
        if empty {
            faults.at(
                spanned.span(),
                format!("the source has no `{key}`; add for example {example}"),
            );
        }
    }
    let mut from = Vec::with_capacity(raw.from.len());
    for place in &raw.from {
        from.extend(text(Some(place), faults, |text| {
            let (address, length) = network(text)?;
            match vip.filter(|vip| vip.is_ipv4() != address.is_ipv4()) {
                None => Ok((address, length)),
                Some(vip) => Err(format!(
                    "`{text}` is of another family than {vip}; its clients cannot come to this vip"
                )),
            }
        }));
    }
    let mut reals = Vec::with_capacity(raw.reals.len());
    for place in &raw.reals {
        reals.extend(text(Some(place), faults, |text| {
            let address = text.parse().ok();
            let real = known.iter().find(|real| Some(real.address) == address);
            real.map(|real| real.address)
                .ok_or_else(|| format!("`{text}` is not a real of this vip; add it as one first"))
        }));
    }
    Source {
        from,
        reals,
        fallback: text(raw.fallback.as_ref(), faults, Fallback::from_word)
            .unwrap_or(Fallback::Pool),
        exclusive: raw.exclusive.unwrap_or(false),
    }
}

/// As a request has it.
pub(super) fn source_to_json(source: &Source) -> Value {
    let prefix = |(address, length): &Prefix| format!("{address}/{length}");
    let from: Vec<String> = source.from.iter().map(prefix).collect();
    let reals: Vec<String> = source.reals.iter().map(IpAddr::to_string).collect();
    json!({
        "from": from, "reals": reals,
        "fallback": source.fallback.to_string(), "exclusive": source.exclusive,
    })
}

/// The same of a limit.
pub(super) fn limit_to_json(limit: &FlowLimitConfig) -> Value {
    json!({
        "rate": limit.rate, "burst": limit.burst,
        "prefix4": limit.prefix4, "prefix6": limit.prefix6,
    })
}
