// SPDX-License-Identifier: Apache-2.0
//! From the totals of one real to what happened lately.

use std::collections::VecDeque;
use std::time::Duration;

use causeway_api::Moment;
use causeway_api::balancer::{LatencyView, StepView};
use causeway_core::control::{
    ConnectionSampler, GradedLatencies, MeasuredInterval, Reading, SampledInterval, Sampling,
};
use causeway_core::estimate::Tally;
use causeway_core::hist::Histogram;
use causeway_dataplane::{LatencySums, RealId, RealStats};

use super::samples::{GRADED_WINDOW, mean_us, since};
use super::timeline::{Standing, Steps};

/// Span of the recent mean.
const RECENT_NS: u64 = 10_000_000_000;
/// Time after which a connection that the flow table does not hold counts as gone, on average: its
/// end may not come. The balancer sees no response and no server-side close.
pub(super) const CONNECTION_AGE_NS: f64 = 900e9;

/// One real's counters, made into differences.
#[derive(Debug)]
pub struct RealCounters {
    totals: RealStats,
    delta: RealStats,
    active: f64,
    /// When that was; `None`: it has not been looked at since it began.
    at_ns: Option<u64>,
    /// Whether the flow table has all of them: none of them ages, for it tells which are gone.
    holds_all: bool,
    /// Where it has some, they are no fewer than these.
    held: u64,
    /// Connections opened and ended since that was seen.
    opened: u64,
    ended: u64,
    /// Between these they are, where it was seen at this look.
    bounds: Option<(u64, u64)>,
    last_us: Option<f64>,
    /// Recent intervals with samples.
    recent: VecDeque<Recent>,
    /// The cumulative histogram at the start of the window in use and at the
    /// start of the one that follows it.
    window: Histogram,
    next_window: Histogram,
    latest: Histogram,
    steps: Steps,
    sampler: ConnectionSampler,
}

/// The counters of the reals that are counted, by id: ids are given out lowest first.
#[derive(Debug, Default)]
pub(crate) struct CountersOfReals(Vec<Option<Box<RealCounters>>>);

impl CountersOfReals {
    pub(crate) fn get(&self, id: RealId) -> Option<&RealCounters> {
        self.0.get(id as usize)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, id: RealId) -> Option<&mut RealCounters> {
        self.0.get_mut(id as usize)?.as_deref_mut()
    }

    pub(crate) fn insert(&mut self, id: RealId, counters: RealCounters) {
        let at = id as usize;
        if at >= self.0.len() {
            self.0.resize_with(at + 1, || None);
        }
        self.0[at] = Some(Box::new(counters));
    }

    pub(crate) fn remove(&mut self, id: RealId) {
        if let Some(counters) = self.0.get_mut(id as usize) {
            *counters = None;
        }
    }

    /// How many are counted.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.iter().flatten().count()
    }
}

/// The samples of an interval that ended at `at_ns`.
#[derive(Debug, Clone, Copy, Default)]
struct Recent {
    at_ns: u64,
    all: LatencySums,
    /// Of these the weight of those graded low.
    low_halves: u64,
    /// Beside these, in no sum.
    left_out_halves: u64,
}

impl RealCounters {
    /// Starts from the totals that the data plane has counted for `age`.
    pub fn new(totals: RealStats, histogram: Histogram, age: Duration) -> Self {
        let unended = totals.conns_opened.saturating_sub(totals.conns_closed) as f64;
        Self {
            totals,
            delta: RealStats::default(),
            active: unended * still_open(age.as_nanos() as f64),
            at_ns: None,
            holds_all: false,
            held: 0,
            opened: 0,
            ended: 0,
            bounds: None,
            last_us: None,
            recent: VecDeque::new(),
            window: histogram.clone(),
            next_window: histogram.clone(),
            steps: Steps::begin(totals, histogram.clone()),
            latest: histogram,
            sampler: ConnectionSampler::default(),
        }
    }

    /// They are of that time.
    #[must_use]
    pub(crate) fn begun_at(self, at_ns: Option<u64>) -> Self {
        Self { at_ns, ..self }
    }

    /// Goes on from how the data plane samples its connections.
    #[must_use]
    pub(crate) fn sampled(self, sampling: Sampling) -> Self {
        Self {
            sampler: ConnectionSampler::resumed(sampling),
            ..self
        }
    }

    /// Chooses which connections are measured from now on: 1 in 2^`fixed`, or as many as
    /// bring the samples that are wanted of an interval. Those graded low are some where the
    /// VIP `takes_low`.
    pub(crate) fn sample(
        &mut self,
        now_ns: u64,
        fixed: Option<u8>,
        wanted: f64,
        takes_low: bool,
    ) -> Sampling {
        let samples = match takes_low {
            true => self.delta.latencies(),
            false => self.delta.good,
        };
        let interval = SampledInterval {
            requests: self.delta.requests,
            requests_seen: self.delta.requests_seen,
            weight_halves: samples.weight_halves,
        };
        match fixed {
            Some(k) => self.sampler.fix(now_ns, k),
            None => self.sampler.follow(now_ns, &interval, wanted),
        }
    }

    /// Which connections are measured.
    pub(crate) fn sampling(&self) -> Sampling {
        self.sampler.sampling()
    }

    /// Takes in the totals at the end of an interval of `interval_ns`. Connections age since the
    /// last look, which may be longer ago: in between no packet came.
    pub fn advance(&mut self, now_ns: u64, interval_ns: u64, totals: RealStats) {
        self.delta = since(totals, self.totals);
        self.totals = totals;
        let elapsed_ns = self
            .at_ns
            .replace(now_ns)
            .map_or(interval_ns, |at_ns| now_ns.saturating_sub(at_ns));
        self.bounds = None;
        self.opened += self.delta.conns_opened;
        self.ended += self.delta.conns_closed;
        let kept = self.active * self.kept_after(elapsed_ns);
        self.active =
            (kept + self.delta.conns_opened as f64 - self.delta.conns_closed as f64).max(0.0);
        let all = self.delta.latencies();
        self.last_us = mean_us(all.sum_halves_ns, all.weight_halves).or(self.last_us);
        let left_out_halves = self.delta.bound_weight_halves;
        if all.weight_halves + left_out_halves > 0 {
            self.recent.push_back(Recent {
                at_ns: now_ns,
                all,
                low_halves: self.delta.low.weight_halves,
                left_out_halves,
            });
        }
        let oldest = now_ns.saturating_sub(RECENT_NS);
        while self.recent.front().is_some_and(|of| of.at_ns <= oldest) {
            self.recent.pop_front();
        }
    }

    /// The flow table holds `open` connections. Where it has `all` that there are, they are as many, but
    /// for those opened or ended since it was looked at last: so long does a look take.
    pub(crate) fn handle_open(&mut self, now_ns: u64, open: u64, all: bool) {
        let opened = std::mem::take(&mut self.opened);
        let ended = std::mem::take(&mut self.ended);
        let elapsed_ns = self.at_ns.map_or(0, |at_ns| now_ns.saturating_sub(at_ns));
        self.active *= self.kept_after(elapsed_ns);
        self.at_ns = Some(now_ns);
        let bounds = match all {
            true => (open.saturating_sub(ended), open + opened),
            false => (open, u64::MAX),
        };
        self.holds_all = all;
        self.held = if all { 0 } else { open };
        if all {
            self.active = self.active.clamp(bounds.0 as f64, bounds.1 as f64);
        }
        self.bounds = Some(bounds);
    }

    /// Whether they age.
    pub(crate) fn ages(&self) -> bool {
        !self.holds_all
    }

    /// Part of them that ageing leaves after this time.
    fn kept_after(&self, elapsed_ns: u64) -> f64 {
        match self.ages() {
            true => kept_after(elapsed_ns),
            false => 1.0,
        }
    }

    /// Between which numbers the connections are, if this look has seen it.
    pub(crate) fn bounds(&self) -> Option<(u64, u64)> {
        self.bounds
    }

    /// Connections that have been silent for so long since their SYN are no more: of each
    /// ageing has left the rest.
    pub fn give_up(&mut self, connections: u64, silent: Duration) {
        let each = self.kept_after(silent.as_nanos() as u64);
        self.ended += connections;
        self.active = (self.active - connections as f64 * each).max(0.0);
    }

    /// Takes in the cumulative histogram, without moving the window.
    pub fn observe_histogram(&mut self, histogram: Histogram) {
        self.latest = histogram;
    }

    /// Begins a new window: percentiles reach back to the start of the previous one.
    pub fn rotate(&mut self) {
        self.window = std::mem::replace(&mut self.next_window, self.latest.clone());
    }

    /// Ends a step of the timeline, in which at most `keep` are remembered.
    pub(crate) fn step(&mut self, end: Moment, standing: Standing, keep: usize) {
        let at = (&self.totals, &self.latest);
        self.steps.end(end, at, standing, keep);
    }

    /// The steps that ended after `since_ns`, of these the newest `most`.
    pub(crate) fn steps(&self, since_ns: u64, most: usize) -> Vec<StepView> {
        self.steps.views(since_ns, most)
    }

    /// What the controller wants to know of the last interval.
    pub(crate) fn measured(&self) -> MeasuredInterval {
        MeasuredInterval {
            good: graded(&self.delta.good),
            low: graded(&self.delta.low),
            bound_halves: self.delta.bound_weight_halves,
            counts: Reading {
                late_weight_halves: self.delta.late_weight_halves,
                answers_acked: self.delta.answers_acked,
                requests: self.delta.requests_seen,
                all_requests: self.delta.requests,
                active: self.active(self.at_ns.unwrap_or_default()),
                ..Reading::default()
            },
        }
    }

    /// The last interval's difference.
    pub fn delta(&self) -> &RealStats {
        &self.delta
    }

    /// Totals since the slot was made.
    pub fn totals(&self) -> &RealStats {
        &self.totals
    }

    /// The cumulative histogram as last read.
    pub fn histogram(&self) -> &Histogram {
        &self.latest
    }

    /// Estimate of open connections. They age also while none looks.
    pub fn active(&self, now_ns: u64) -> u64 {
        let elapsed_ns = self.at_ns.map_or(0, |at_ns| now_ns.saturating_sub(at_ns));
        let active = (self.active * self.kept_after(elapsed_ns)).round() as u64;
        active.max(self.held)
    }

    /// Latency for people.
    pub fn latency(&self) -> LatencyView {
        let sum = |part: fn(&Recent) -> u64| self.recent.iter().map(part).sum::<u64>();
        let weight_halves = sum(|of| of.all.weight_halves);
        let path_weight_halves = sum(|of| of.all.path_weight_halves);
        let (low_halves, left_out_halves) = (sum(|of| of.low_halves), sum(|of| of.left_out_halves));
        let lately = self.latest.since(&self.window);
        let quantile_us = |q| lately.quantile(q).map(|ns| ns as f64 / 1e3);
        let tally = Tally {
            sum_halves_ns: sum(|of| of.all.sum_halves_ns),
            weight_halves,
            bound_halves: low_halves + left_out_halves,
            window: GRADED_WINDOW,
            ..Tally::default()
        };
        LatencyView {
            last_us: self.last_us,
            mean_us: mean_us(tally.sum_halves_ns, weight_halves),
            samples: weight_halves / 2,
            low: low_halves / 2,
            bounds: left_out_halves / 2,
            quality: tally.confidence().quality.name().to_owned(),
            one_in: 1 << self.sampling().opening,
            server_us: mean_us(sum(|of| of.all.server_sum_halves_ns), path_weight_halves),
            path_us: mean_us(sum(|of| of.all.path_sum_halves_ns), path_weight_halves),
            path_samples: path_weight_halves / 2,
            p50_us: quantile_us(0.50),
            p90_us: quantile_us(0.90),
            p99_us: quantile_us(0.99),
        }
    }
}

fn graded(of: &LatencySums) -> GradedLatencies {
    GradedLatencies {
        sum_halves_ns: of.sum_halves_ns,
        weight_halves: of.weight_halves,
        server_sum_halves_ns: of.server_sum_halves_ns,
        path_sum_halves_ns: of.path_sum_halves_ns,
        path_weight_halves: of.path_weight_halves,
    }
}

/// Part of connections that ageing leaves after this time.
fn kept_after(elapsed_ns: u64) -> f64 {
    (-(elapsed_ns as f64) / CONNECTION_AGE_NS).exp()
}

/// Part of the connections without an end that ageing would have left by now, had
/// they come evenly over `age_ns`.
fn still_open(age_ns: f64) -> f64 {
    let ages = age_ns / CONNECTION_AGE_NS;
    match ages > 1e-6 {
        true => -(-ages).exp_m1() / ages,
        false => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn totals(opened: u64, closed: u64, sum_halves: u64, weight_halves: u64) -> RealStats {
        RealStats {
            conns_opened: opened,
            conns_closed: closed,
            good: LatencySums {
                sum_halves_ns: sum_halves,
                weight_halves,
                ..LatencySums::default()
            },
            ..RealStats::default()
        }
    }

    #[test]
    fn connections_of_which_only_a_syn_came_are_given_up() {
        let mut counters = RealCounters::new(totals(0, 0, 0, 0), Histogram::new(), Duration::ZERO);
        counters.advance(S, S, totals(5, 0, 0, 0));
        for second in 2..62 {
            counters.advance(second * S, S, totals(5, 0, 0, 0));
        }
        counters.give_up(2, Duration::from_secs(60));
        assert_eq!(counters.active(0), 3);
        counters.give_up(3, Duration::from_secs(60));
        assert_eq!(counters.active(0), 0);
        counters.give_up(1, Duration::from_secs(60));
        assert_eq!(counters.active(0), 0);
    }

    #[test]
    fn a_sum_that_goes_round_is_a_difference_all_the_same() {
        let before = totals(0, 0, u64::MAX - 5_999, 1 << 40);
        let mut counters = RealCounters::new(before, Histogram::new(), Duration::ZERO);
        counters.advance(S, S, totals(0, 0, 2_000, (1 << 40) + 4));
        assert_eq!(counters.delta().good.sum_halves_ns, 8_000);
        // A slot that was created again.
        counters.advance(2 * S, S, totals(0, 0, 1_000, 2));
        assert_eq!(counters.delta().good.sum_halves_ns, 1_000);
    }

    #[test]
    fn connections_are_opened_minus_closed_and_age() {
        let mut counters = RealCounters::new(totals(10, 4, 0, 0), Histogram::new(), Duration::ZERO);
        assert_eq!(counters.active(0), 6);
        counters.advance(S, S, totals(12, 5, 0, 0));
        assert_eq!(counters.active(0), 7);
        counters.advance(2 * S, S, totals(12, 30, 0, 0));
        assert_eq!(counters.active(0), 0);
        let mut counters =
            RealCounters::new(totals(100, 0, 0, 0), Histogram::new(), Duration::ZERO);
        counters.advance(1_800 * S, 1_800 * S, totals(100, 0, 0, 0));
        assert_eq!(counters.active(0), 14);
    }

    /// Ageing is for those whose end was not seen. Else a server with thousands would be taken for
    /// empty, and `drain --wait` would end.
    #[test]
    fn connections_that_the_flow_table_holds_do_not_age() {
        let mut counters =
            RealCounters::new(totals(6_000, 0, 0, 0), Histogram::new(), Duration::ZERO);
        // The first look is made at once, those behind it take 8 s each, and miss what was opened
        // meanwhile, or find what has ended meanwhile.
        let two_hours = 7_200;
        for second in 0..=two_hours {
            let seen = totals(6_000 + 100 * second, 100 * second, 0, 0);
            counters.advance(second * S, S, seen);
            match second {
                0 => counters.handle_open(0, 6_000, true),
                _ if second % 16 == 0 => counters.handle_open(second * S, 5_600, true),
                _ if second % 8 == 0 => counters.handle_open(second * S, 6_400, true),
                _ => {}
            }
            let active = counters.active(second * S);
            assert!((5_400..=6_600).contains(&active), "{second} {active}");
        }
        // One that begins to drain: at the end of each look there are no others.
        for (looks, left) in (1..).zip([4_000, 1_000, 1]) {
            let second = two_hours + 8 * looks;
            let seen = totals(726_000, 726_000 - left, 0, 0);
            counters.advance(second * S, 8 * S, seen);
            counters.handle_open(second * S, left, true);
            assert_eq!(counters.active(second * S), left);
        }
        // A burst that the look has missed is there all the same.
        let second = two_hours + 32;
        counters.advance(second * S, 8 * S, totals(727_000, 725_999, 0, 0));
        counters.handle_open(second * S, 1, true);
        assert_eq!(counters.active(second * S), 1_001);
        // Nor does what has ended come back by a look that had begun before.
        let second = second + 8;
        counters.advance(second * S, 8 * S, totals(727_000, 727_000, 0, 0));
        counters.handle_open(second * S, 700, true);
        assert_eq!(counters.active(second * S), 0);
        // A connection whose end was not seen is gone once the table has no place for it.
        let second = second + 8;
        counters.advance(second * S, 8 * S, totals(727_050, 727_000, 0, 0));
        counters.handle_open(second * S, 50, true);
        assert_eq!(counters.active((second + 7_200) * S), 50);
        counters.handle_open((second + 7_200) * S, 0, true);
        assert_eq!(counters.active((second + 7_200) * S), 0);
    }

    /// Thirty days of long ones: a share of what was opened would be none.
    #[test]
    fn a_start_knows_what_the_flow_table_holds() {
        let month = Duration::from_secs(30 * 86_400);
        let of_month = totals(1_000_000, 998_000, 0, 0);
        let mut counters = RealCounters::new(of_month, Histogram::new(), month);
        assert_eq!(counters.active(S), 1);
        counters.advance(S, S, of_month);
        counters.handle_open(S, 2_000, true);
        assert_eq!(counters.active(S), 2_000);
    }

    /// Of a VIP with cookies it has those that are measured, and those without timestamps.
    #[test]
    fn a_table_that_has_some_says_how_many_there_are_at_least() {
        let mut counters = RealCounters::new(totals(0, 0, 0, 0), Histogram::new(), Duration::ZERO);
        counters.advance(S, S, totals(900, 0, 0, 0));
        counters.handle_open(S, 30, false);
        assert_eq!(counters.active(S), 900);
        assert_eq!(counters.active(900 * S * 100), 30);
        counters.advance(2 * S, S, totals(900, 900, 0, 0));
        assert_eq!(counters.active(2 * S), 30);
        counters.handle_open(3 * S, 0, false);
        assert_eq!(counters.active(3 * S), 0);
    }

    #[test]
    fn connections_from_before_the_start_have_aged() {
        let active = |age_s| {
            let totals = totals(1_000_000, 100_000, 0, 0);
            RealCounters::new(totals, Histogram::new(), Duration::from_secs(age_s)).active(0)
        };
        assert_eq!(active(0), 900_000);
        assert_eq!(
            active(900),
            (900_000.0 * (1.0 - (-1.0f64).exp())).round() as u64
        );
        // What a daemon that had run all the month would say: 15 minutes' worth.
        let month_s = 30 * 86_400;
        assert_eq!(
            active(month_s),
            (900_000.0 * 900.0 / month_s as f64).round() as u64
        );
    }

    #[test]
    fn means_are_of_the_last_interval_and_of_ten_seconds() {
        let mut counters = RealCounters::new(totals(0, 0, 0, 0), Histogram::new(), Duration::ZERO);
        counters.advance(S, S, totals(0, 0, 8_000, 4));
        counters.advance(2 * S, S, totals(0, 0, 20_000, 6));
        assert_eq!(counters.latency().last_us, Some(6.0));
        assert_eq!(counters.latency().mean_us, Some(20_000.0 / 6.0 / 1e3));
        assert_eq!(counters.latency().samples, 3);
        counters.advance(11 * S, S, totals(0, 0, 20_000, 6));
        assert_eq!(counters.latency().mean_us, Some(6.0));
        counters.advance(12 * S, S, totals(0, 0, 20_000, 6));
        assert_eq!(counters.latency().mean_us, None);
    }

    #[test]
    fn bounds_lower_the_grade() {
        let grade = |bounds, low| {
            let none = RealStats::default();
            let mut counters = RealCounters::new(none, Histogram::new(), Duration::ZERO);
            let mut after = totals(0, 0, 2_000_000 * 1_000, 2_000);
            after.bound_weight_halves = bounds;
            after.low.weight_halves = low;
            after.low.sum_halves_ns = 1_000_000 * low;
            counters.advance(S, S, after);
            let of = counters.latency();
            (of.quality, of.samples, of.low, of.bounds)
        };
        assert_eq!(grade(0, 0), ("high".to_owned(), 1_000, 0, 0));
        assert_eq!(grade(20, 0), ("medium".to_owned(), 1_000, 0, 10));
        assert_eq!(grade(200, 0), ("low".to_owned(), 1_000, 0, 100));
        // Those that are off alike are in the sums.
        assert_eq!(grade(0, 2_000), ("low".to_owned(), 2_000, 1_000, 0));
    }

    /// Of a real whose samples are graded low no fewer connections are measured while its VIP
    /// waits for better ones.
    #[test]
    fn samples_graded_low_are_samples_where_they_count() {
        let one_in_2_to_the = |takes_low| {
            let none = RealStats::default();
            let mut counters = RealCounters::new(none, Histogram::new(), Duration::ZERO);
            let mut after = none;
            for interval in 1..=100 {
                after.requests += 10_000;
                after.requests_seen += 10_000;
                after.low.weight_halves += 20_000;
                counters.advance(interval * S / 10, S / 10, after);
                counters.sample(interval * S / 10, None, 100.0, takes_low);
            }
            counters.sampling().opening
        };
        assert_eq!((one_in_2_to_the(false), one_in_2_to_the(true)), (0, 6));
    }

    #[test]
    fn a_slot_made_anew_counts_from_zero() {
        let mut counters = RealCounters::new(totals(50, 0, 0, 0), Histogram::new(), Duration::ZERO);
        counters.advance(S, S, totals(3, 0, 0, 0));
        assert_eq!(counters.delta().conns_opened, 3);
    }

    #[test]
    fn percentiles_forget() {
        let mut histogram = Histogram::new();
        let mut counters =
            RealCounters::new(RealStats::default(), histogram.clone(), Duration::ZERO);
        histogram.record_n(1_000_000, 100);
        counters.observe_histogram(histogram.clone());
        let p50 = counters.latency().p50_us.unwrap();
        assert!((p50 - 1000.0).abs() < 50.0);
        counters.rotate();
        counters.rotate();
        assert_eq!(counters.latency().p50_us, None);
    }
}
