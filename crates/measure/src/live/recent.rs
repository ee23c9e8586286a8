// SPDX-License-Identifier: Apache-2.0
//! The last minute of each group, second by second.

use std::collections::{HashMap, VecDeque};

use causeway_core::estimate::Tally;
use causeway_core::flow::{FlowEstimate, FlowKey};

use super::super::group::Grouping;

/// Ticks that are kept.
pub(super) const TICKS: usize = 60;
/// Ticks that "now" is the mean of.
const NOW: usize = 10;

/// What came in each of the last ticks. Groups silent for all of them are forgotten.
#[derive(Debug)]
pub(super) struct Recent {
    grouping: Grouping,
    groups: HashMap<(FlowKey, u8), VecDeque<Tally>>,
}

impl Recent {
    /// Nothing so far.
    pub(super) fn new(grouping: Grouping) -> Self {
        Self {
            grouping,
            groups: HashMap::new(),
        }
    }

    /// Adds a row to the open tick.
    pub(super) fn add(&mut self, row: &FlowEstimate) {
        let key = (self.grouping.key(&row.flow), row.method);
        let ticks = self.groups.entry(key).or_default();
        if ticks.is_empty() {
            ticks.push_back(Tally::default());
        }
        if let Some(open) = ticks.back_mut() {
            open.merge(&row.tally);
        }
    }

    /// Begins the next tick.
    pub(super) fn tick(&mut self) {
        self.groups.retain(|_, ticks| {
            ticks.push_back(Tally::default());
            if ticks.len() > TICKS {
                ticks.pop_front();
            }
            ticks.iter().any(|tally| tally.weight_halves > 0)
        });
    }

    /// The sum of the last ten ticks.
    pub(super) fn now(&self, key: &FlowKey, method: u8) -> Tally {
        let mut sum = Tally::default();
        if let Some(ticks) = self.groups.get(&(*key, method)) {
            ticks
                .iter()
                .rev()
                .take(NOW)
                .for_each(|tally| sum.merge(tally));
        }
        sum
    }

    /// The mean of each tick in ns, oldest first; `None` where there was nothing.
    pub(super) fn means(&self, key: &FlowKey, method: u8) -> Vec<Option<f64>> {
        let ticks = self.groups.get(&(*key, method));
        let means = ticks.into_iter().flatten().map(Tally::mean_ns);
        means.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Per;

    fn row(port: u16) -> FlowEstimate {
        FlowEstimate {
            flow: FlowKey::new(6, [10, 0, 0, 1].into(), port, [10, 0, 0, 2].into(), 80),
            method: 0,
            epoch_ns: 0,
            tally: Tally {
                sum_halves_ns: 8_000_000,
                weight_halves: 2,
                ..Tally::default()
            },
        }
    }

    /// Hours of ticks, with new flows in each.
    #[test]
    fn memory_is_bounded_by_what_was_seen_last() {
        let grouping = Grouping {
            per: Per::Flow,
            prefix: Default::default(),
        };
        let mut recent = Recent::new(grouping);
        for tick in 0..20_000u32 {
            recent.add(&row(tick as u16));
            recent.tick();
            assert!(recent.groups.len() <= TICKS);
        }
        assert!(recent.groups.values().all(|ticks| ticks.len() <= TICKS));
    }

    #[test]
    fn the_last_ten_ticks_are_now() {
        let grouping = Grouping {
            per: Per::Server,
            prefix: Default::default(),
        };
        let mut recent = Recent::new(grouping);
        let key = grouping.key(&row(1).flow);
        recent.add(&row(1));
        recent.add(&row(2));
        assert_eq!(recent.now(&key, 0).samples(), 2);
        (0..NOW).for_each(|_| recent.tick());
        assert_eq!(recent.now(&key, 0).samples(), 0);
        let means = recent.means(&key, 0);
        assert_eq!(
            (means[0], means[1], means.len()),
            (Some(4e6), None, NOW + 1)
        );
    }
}
