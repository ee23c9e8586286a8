// SPDX-License-Identifier: Apache-2.0
//! Sums over the whole input, one for each group and estimator: what the closing
//! table, the comparison and the report are made of.

use std::collections::{BTreeMap, HashMap};

use causeway_core::estimate::{Sample, Tally};
use causeway_core::flow::{FlowEstimate, FlowKey, FlowState};
use causeway_core::hist::Latencies;

use super::group::Grouping;
use super::words::Per;

/// Points of a time series; beyond that, neighbours become one.
const MAX_POINTS: usize = 1024;

/// What the totals are to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// How flows fall into groups.
    pub grouping: Grouping,
    /// Distributions, for percentiles.
    pub latencies: bool,
    /// Means over time.
    pub series: bool,
    /// Groups at most; what comes later counts for the rest.
    pub max_groups: usize,
    /// Seed of the hash.
    pub seed: u64,
}

/// Sums. Those of several threads merge.
#[derive(Debug)]
pub(crate) struct Totals {
    wanted: Wanted,
    /// Groups at most before they merge.
    own_groups: usize,
    groups: HashMap<(FlowKey, u8), Total, FlowState>,
    /// Estimates of groups beyond the bound, by estimator.
    rest: BTreeMap<u8, Total>,
}

/// The sum of one group and estimator.
#[derive(Clone, Debug, Default)]
pub(crate) struct Total {
    /// All samples.
    pub tally: Tally,
    /// Mean of the fastest epoch of a flow.
    pub fastest_ns: f64,
    /// Mean of the slowest.
    pub slowest_ns: f64,
    /// Distribution of the samples, in half counts, if it was wanted.
    pub latencies: Latencies,
    /// Sums over time, if they were wanted.
    pub series: Series,
}

/// Sums by time, as many as a picture can show.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    points: BTreeMap<u64, Tally>,
    /// Least distance of two epochs so far.
    step_ns: u64,
    /// Length of a point once there were too many; 0: an epoch.
    point_ns: u64,
}

impl Series {
    fn add(&mut self, epoch_ns: u64, tally: &Tally) {
        if self.point_ns == 0
            && let Some((&before, _)) = self.points.range(..epoch_ns).next_back()
        {
            let distance_ns = epoch_ns - before;
            self.step_ns = match self.step_ns {
                0 => distance_ns,
                known => known.min(distance_ns),
            };
        }
        let at = epoch_ns - epoch_ns.checked_rem(self.point_ns).unwrap_or(0);
        self.points.entry(at).or_default().merge(tally);
        while self.points.len() > MAX_POINTS {
            self.coarsen();
        }
    }

    fn coarsen(&mut self) {
        let point_ns = self.point_ns.max(self.step_ns).max(1).saturating_mul(2);
        let mut points: BTreeMap<u64, Tally> = BTreeMap::new();
        for (at, tally) in &self.points {
            points.entry(at - at % point_ns).or_default().merge(tally);
        }
        (self.point_ns, self.points) = (point_ns, points);
    }

    /// Start in ns since the Unix epoch, and the mean there.
    pub(crate) fn points(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        let mean = |(&at, tally): (&u64, &Tally)| Some((at, tally.mean_ns()?));
        self.points.iter().filter_map(mean)
    }
}

impl Total {
    fn add_row(&mut self, row: &FlowEstimate, mean_ns: f64) {
        let first = self.tally.weight_halves == 0;
        self.tally.merge(&row.tally);
        self.slowest_ns = self.slowest_ns.max(mean_ns);
        self.fastest_ns = match first {
            true => mean_ns,
            false => self.fastest_ns.min(mean_ns),
        };
    }

    fn merge(&mut self, other: &Total) {
        if other.tally.weight_halves > 0 {
            self.fastest_ns = match self.tally.weight_halves {
                0 => other.fastest_ns,
                _ => self.fastest_ns.min(other.fastest_ns),
            };
            self.slowest_ns = self.slowest_ns.max(other.slowest_ns);
        }
        self.tally.merge(&other.tally);
        self.latencies.merge(&other.latencies);
        for (at, tally) in &other.series.points {
            self.series.add(*at, tally);
        }
    }

    /// The latency in ns that a share of `quantile` of the samples does not exceed.
    /// `None` where they are too few to tell: one at least must lie beyond it.
    pub(crate) fn quantile(&self, quantile: f64) -> Option<u64> {
        quantile_of(&self.latencies, self.tally.samples(), quantile)
    }
}

/// See [`Total::quantile`].
pub(crate) fn quantile_of(latencies: &Latencies, samples: u64, quantile: f64) -> Option<u64> {
    let told = samples as f64 * (1.0 - quantile) >= 1.0 - 1e-9;
    told.then(|| latencies.quantile(quantile)).flatten()
}

impl Totals {
    /// Nothing so far.
    pub(crate) fn new(wanted: Wanted) -> Self {
        Self {
            own_groups: wanted.max_groups,
            wanted,
            groups: HashMap::with_hasher(FlowState::new(wanted.seed)),
            rest: BTreeMap::new(),
        }
    }

    /// The same, one of so many that will merge. Flows are in one of them each, servers in many.
    pub(crate) fn of_shares(mut self, shares: usize) -> Self {
        if self.wanted.grouping.per == Per::Flow {
            self.own_groups = (self.wanted.max_groups / shares.max(1)).max(1);
        }
        self
    }

    /// Adds a sample to the distributions.
    pub(crate) fn sample(&mut self, flow: &FlowKey, method: u8, sample: &Sample) {
        if self.wanted.latencies && sample.weight_halves > 0 {
            self.total(flow, method).latencies.record(sample);
        }
    }

    /// Adds an epoch of a flow.
    pub(crate) fn row(&mut self, row: &FlowEstimate) {
        let Some(mean_ns) = row.tally.mean_ns() else {
            return;
        };
        let series = self.wanted.series;
        let total = self.total(&row.flow, row.method);
        total.add_row(row, mean_ns);
        if series {
            total.series.add(row.epoch_ns, &row.tally);
        }
    }

    /// Forgets the distributions, for callers that bring them again each time.
    pub(crate) fn forget_latencies(&mut self) {
        let totals = self.groups.values_mut().chain(self.rest.values_mut());
        totals.for_each(|total| total.latencies = Latencies::default());
    }

    /// Adds a distribution of one group.
    pub(crate) fn latencies(&mut self, flow: &FlowKey, method: u8, latencies: &Latencies) {
        self.total(flow, method).latencies.merge(latencies);
    }

    fn total(&mut self, flow: &FlowKey, method: u8) -> &mut Total {
        self.group((self.wanted.grouping.key(flow), method), self.own_groups)
    }

    fn group(&mut self, key: (FlowKey, u8), most: usize) -> &mut Total {
        if self.groups.len() >= most && !self.groups.contains_key(&key) {
            return self.rest.entry(key.1).or_default();
        }
        self.groups.entry(key).or_default()
    }

    /// Adds another thread's sums, within the bound on groups.
    pub(crate) fn merge(&mut self, other: Totals) {
        for (key, total) in other.groups {
            self.group(key, self.wanted.max_groups).merge(&total);
        }
        for (method, total) in other.rest {
            self.rest.entry(method).or_default().merge(&total);
        }
    }

    /// All groups with an estimate, ordered by their names, and their estimators.
    pub(crate) fn groups(&self) -> Vec<(FlowKey, u8, &Total)> {
        let whole = self
            .groups
            .iter()
            .filter(|(_, total)| total.tally.samples() > 0);
        let mut groups: Vec<_> = whole
            .map(|((key, method), total)| (*key, *method, total))
            .collect();
        groups.sort_by_key(|(key, method, _)| (*key, *method));
        groups
    }

    /// Estimates beyond the bound on groups, by estimator.
    pub(crate) fn rest(&self) -> impl Iterator<Item = (u8, &Total)> {
        self.rest.iter().map(|(method, total)| (*method, total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(max_groups: usize) -> Totals {
        Totals::new(Wanted {
            grouping: Grouping {
                per: Per::Flow,
                prefix: Default::default(),
            },
            latencies: true,
            series: true,
            max_groups,
            seed: 3,
        })
    }

    fn row(port: u16, epoch: u64, mean_us: u64) -> FlowEstimate {
        FlowEstimate {
            flow: FlowKey::new(6, [10, 0, 0, 1].into(), port, [10, 0, 0, 2].into(), 80),
            method: 0,
            epoch_ns: epoch * 1_000_000,
            tally: Tally {
                sum_halves_ns: mean_us * 20_000,
                weight_halves: 20,
                ..Tally::default()
            },
        }
    }

    /// Two threads' sums are those of one.
    #[test]
    fn merged_parts_are_the_whole() {
        let rows: Vec<FlowEstimate> = (0..5000)
            .map(|n| row(n % 7, n.into(), u64::from(n) * 37 % 1009 + 1))
            .collect();
        let (mut whole, mut parts) = (totals(100), [totals(100), totals(100)]);
        for (n, row) in rows.iter().enumerate() {
            for totals in [&mut whole, &mut parts[n % 2]] {
                totals.row(row);
                let mut latencies = Latencies::default();
                latencies.record_n(row.tally.mean_ns().unwrap() as u64, 20);
                totals.latencies(&row.flow, 0, &latencies);
            }
        }
        let [mut merged, other] = parts;
        merged.merge(other);
        let (whole, merged) = (whole.groups(), merged.groups());
        assert_eq!((whole.len(), merged.len()), (7, 7));
        for ((key, _, one), (same, _, both)) in whole.iter().zip(&merged) {
            assert_eq!(key, same);
            assert_eq!(one.tally, both.tally);
            assert_eq!(one.latencies, both.latencies);
            assert_eq!(
                (one.fastest_ns, one.slowest_ns),
                (both.fastest_ns, both.slowest_ns)
            );
            let sum = |total: &Total| {
                total
                    .series
                    .points
                    .values()
                    .map(|t| t.weight_halves)
                    .sum::<u64>()
            };
            assert_eq!(sum(one), sum(both));
        }
    }

    #[test]
    fn groups_and_points_are_bounded() {
        let mut totals = totals(3);
        for n in 0..100_000u64 {
            totals.row(&row((n % 10) as u16, n, 100));
        }
        assert_eq!(totals.groups().len(), 3);
        let (method, rest) = totals.rest().next().unwrap();
        assert_eq!((method, rest.tally.samples()), (0, 700_000));
        for (_, _, total) in totals.groups() {
            let points: Vec<_> = total.series.points().collect();
            assert!(
                (MAX_POINTS / 2..=MAX_POINTS).contains(&points.len()),
                "{}",
                points.len()
            );
            assert!(points.iter().all(|&(_, mean_ns)| mean_ns == 100_000.0));
        }
    }

    #[test]
    fn groups_of_all_parts_are_bounded_together() {
        let mut all = totals(5);
        for part in 0..4 {
            let mut one = totals(5);
            (0..10).for_each(|n| one.row(&row(part * 10 + n, 1, 100)));
            all.merge(one);
        }
        let whole = all
            .groups()
            .iter()
            .map(|(_, _, t)| t.tally.samples())
            .sum::<u64>();
        let rest = all.rest().map(|(_, t)| t.tally.samples()).sum::<u64>();
        assert_eq!((all.groups().len(), whole, rest), (5, 50, 350));
    }

    #[test]
    fn a_percentile_of_too_few_samples_is_none() {
        let mut latencies = Latencies::default();
        latencies.record_n(1_000_000, 2000);
        for (samples, quantile, told) in [
            (1, 0.5, false),
            (2, 0.5, true),
            (9, 0.9, false),
            (10, 0.9, true),
            (99, 0.99, false),
            (100, 0.99, true),
            (999, 0.999, false),
            (1000, 0.999, true),
        ] {
            let found = quantile_of(&latencies, samples, quantile);
            assert_eq!(found.is_some(), told, "p{quantile} of {samples}");
        }
    }
}
