// SPDX-License-Identifier: Apache-2.0
//! What the controller decided about each real, for `causeway explain`.
//!
//! Every interval brings a decision, most of them like the one before. Those in a row
//! that have the same reason and change nothing are kept as one, with their number.

use std::collections::VecDeque;

use causeway_api::Moment;
use causeway_api::balancer::{DecisionView, Explanation, LatencyView};
use causeway_core::control::{Decision, RealDecision};

use super::engine::{Engine, EngineError};
use super::real_counters::RealCounters;
use crate::config::{Control, LatencySource, RealConfig, VipConfig};

/// Decisions that are remembered for each real.
const KEPT: usize = 32;

/// The last decisions about one real, oldest first.
#[derive(Debug, Default)]
pub struct Decisions(VecDeque<DecisionView>);

impl Decisions {
    /// Of a real about which nothing was decided.
    pub(super) const NONE: Self = Self(VecDeque::new());

    /// Takes in what was decided at the end of an interval.
    pub fn note(
        &mut self,
        at: Moment,
        all: &Decision,
        own: &RealDecision,
        (observed, source): (bool, LatencySource),
    ) {
        let new = DecisionView {
            first: at,
            last: at,
            intervals: 1,
            law: all.law.word().to_owned(),
            before: own.before,
            after: own.weight,
            latency_us: own.latency_ns.map(|ns| ns / 1e3),
            latency_kind: source.to_string(),
            lowest_us: all.lowest_ns.map(|ns| ns / 1e3),
            samples: own.samples,
            error_pct: own.error().map(|error| error * 100.0),
            freshness: own.freshness,
            reason: own.reason.word().to_owned(),
            reason_text: own.reason.to_string(),
            observed,
        };
        match self.0.back_mut() {
            Some(last)
                if last.reason == new.reason
                    && last.law == new.law
                    && last.latency_kind == new.latency_kind
                    && !own.changed() =>
            {
                *last = DecisionView {
                    first: last.first,
                    intervals: last.intervals + 1,
                    before: last.before,
                    ..new
                };
            }
            _ => {
                while self.0.len() >= KEPT {
                    self.0.pop_front();
                }
                self.0.push_back(new);
            }
        }
    }
}

/// Who wants a real to get no new connections, and since when, as far as that is known.
fn why_unwanted(engine: &Engine, vip: &VipConfig, real: &RealConfig) -> String {
    let what = match real.maintenance {
        true => "is under maintenance",
        false => "drains",
    };
    let in_file = engine.file.vips.iter().find(|own| own.key() == vip.key());
    let in_file = in_file.and_then(|own| {
        let mut reals = own.reals.iter();
        reals.find(|own| own.address == real.address)
    });
    let by_file = in_file.is_some_and(|own| match real.maintenance {
        true => own.maintenance,
        false => own.drain,
    });
    let who = match (by_file, real.found) {
        _ if real.gone && !real.maintenance => {
            "because its discovery no longer finds it".to_owned()
        }
        (true, true) => "by the answer that it is discovered from".to_owned(),
        (true, false) => "by the file".to_owned(),
        (false, _) => {
            let mut sets = engine.by_hand.iter();
            let set = sets.find(|set| set.vip == vip.endpoint() && set.real == real.address);
            let now_ns = Moment::now().realtime_ns;
            let since = set.map_or_else(String::new, |set| {
                let s = now_ns.saturating_sub(set.since_ns) / 1_000_000_000;
                match s {
                    0..120 => format!(" {s} s ago"),
                    120..7200 => format!(" {} min ago", s / 60),
                    _ => format!(" {} h ago", s / 3600),
                }
            });
            format!("by hand (a command, or the API){since}")
        }
    };
    format!("takes no new connections: {what} {who}")
}

/// Why a real has the weight that it has.
pub(crate) fn explain(engine: &Engine, vip: &str, real: &str) -> Result<Explanation, EngineError> {
    let pool = engine.pool(vip)?;
    let name = pool.vip().name.clone();
    let address = real.parse().ok();
    let found = pool.members().find(|(own, _)| Some(own.address) == address);
    let (own, member) = found.ok_or_else(|| {
        let known: Vec<String> = pool
            .members()
            .map(|(real, _)| real.address.to_string())
            .collect();
        EngineError::NotFound(format!(
            "vip {name} has no real `{real}`; it has {}",
            known.join(", ")
        ))
    })?;
    let control = pool.vip().control;
    Ok(Explanation {
        vip: name,
        real: own.address.to_string(),
        scheduler: pool.vip().scheduler.to_string(),
        control: control.to_string(),
        law: match control {
            Control::Off => None,
            _ => pool
                .decision()
                .map(|decision| decision.law.word().to_owned()),
        },
        weight: own.weight,
        effective_weight: member.weight,
        state: match (own.is_wanted(), member.fit) {
            (false, _) => why_unwanted(engine, pool.vip(), own),
            (true, false) => "down by its health".to_owned(),
            (true, true) if member.is_held_back() => "waits for its first probe".to_owned(),
            (true, true) if member.standby => "waits for others to fail".to_owned(),
            (true, true) => "active".to_owned(),
        },
        connections_active: engine.active(member.id),
        latency: pool.vip().latency.to_string(),
        latency_fallbacks: pool.in_force().fallbacks,
        takes_low: pool.in_force().takes_low,
        measured: engine
            .counters(member.id)
            .map_or_else(LatencyView::default, RealCounters::latency),
        report_age_s: engine
            .last_tick()
            .and_then(|now| {
                engine
                    .reports()
                    .latency_age_ns(own.address, now.monotonic_ns)
            })
            .map(|ns| ns as f64 / 1e9),
        decisions: member.past().decisions.0.iter().cloned().collect(),
    })
}
