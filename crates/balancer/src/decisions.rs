// SPDX-License-Identifier: Apache-2.0
//! What the controller decided about each real, for `causeway explain`.
//!
//! Every interval brings a decision, most of them like the one before. Those in a row
//! that have the same reason and change nothing are kept as one, with their number.

use std::collections::VecDeque;

use causeway_api::Moment;
use causeway_api::balancer::DecisionView;
use causeway_core::control::{Decision, RealDecision};

use crate::config::LatencySource;

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

    /// They, oldest first.
    pub(crate) fn views(&self) -> Vec<DecisionView> {
        self.0.iter().cloned().collect()
    }
}
