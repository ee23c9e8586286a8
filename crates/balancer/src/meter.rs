// SPDX-License-Identifier: Apache-2.0
//! From the totals of one real to what happened lately.

use std::collections::VecDeque;
use std::time::Duration;

use causeway_api::balancer::LatencyView;
use causeway_core::control::Reading;
use causeway_core::hist::Histogram;

use super::plane::RealTotals;

/// Span of the recent mean.
const RECENT_NS: u64 = 10_000_000_000;
/// Time after which a connection whose end nobody saw counts as gone, on
/// average. The balancer sees no response and no server-side close.
pub(super) const CONNECTION_AGE_NS: f64 = 900e9;

/// One real's counters, made into differences.
#[derive(Debug)]
pub struct Meter {
    totals: RealTotals,
    delta: RealTotals,
    active: f64,
    last_us: Option<f64>,
    /// (time, sum2, count2) of recent intervals with samples.
    recent: VecDeque<(u64, u64, u64)>,
    /// The cumulative histogram at the start of the window in use and at the
    /// start of the one that follows it.
    window: Histogram,
    next_window: Histogram,
    latest: Histogram,
}

impl Meter {
    /// Starts from the totals that the data plane has counted for `age`.
    pub fn new(totals: RealTotals, histogram: Histogram, age: Duration) -> Self {
        let unended = totals.opened.saturating_sub(totals.closed) as f64;
        Self {
            totals,
            delta: RealTotals::default(),
            active: unended * still_open(age.as_nanos() as f64),
            last_us: None,
            recent: VecDeque::new(),
            window: histogram.clone(),
            next_window: histogram.clone(),
            latest: histogram,
        }
    }

    /// Takes in the totals at the end of an interval of `interval_ns`.
    pub fn advance(&mut self, now_ns: u64, interval_ns: u64, totals: RealTotals) {
        self.delta = since(totals, self.totals);
        self.totals = totals;
        let kept = self.active * (-(interval_ns as f64) / CONNECTION_AGE_NS).exp();
        self.active = (kept + self.delta.opened as f64 - self.delta.closed as f64).max(0.0);
        let (sum2, count2) = (self.delta.latency_sum2_ns, self.delta.latency_count2);
        if let Some(mean) = mean_us(sum2, count2) {
            self.last_us = Some(mean);
            self.recent.push_back((now_ns, sum2, count2));
        }
        let oldest = now_ns.saturating_sub(RECENT_NS);
        while self.recent.front().is_some_and(|entry| entry.0 <= oldest) {
            self.recent.pop_front();
        }
    }

    /// Takes in the cumulative histogram, without moving the window.
    pub fn observe_histogram(&mut self, histogram: Histogram) {
        self.latest = histogram;
    }

    /// Begins a new window: percentiles reach back to the start of the previous one.
    pub fn rotate(&mut self) {
        self.window = std::mem::replace(&mut self.next_window, self.latest.clone());
    }

    /// What the controller wants to know of the last interval.
    pub fn reading(&self) -> Reading {
        Reading {
            latency_sum2_ns: self.delta.latency_sum2_ns,
            latency_count2: self.delta.latency_count2,
            requests: self.delta.requests,
            active: self.active(),
        }
    }

    /// The last interval's difference.
    pub fn delta(&self) -> &RealTotals {
        &self.delta
    }

    /// Totals since the slot was made.
    pub fn totals(&self) -> &RealTotals {
        &self.totals
    }

    /// The cumulative histogram as last read.
    pub fn histogram(&self) -> &Histogram {
        &self.latest
    }

    /// Estimate of open connections.
    pub fn active(&self) -> u64 {
        self.active.round() as u64
    }

    /// Latency for people.
    pub fn latency(&self) -> LatencyView {
        let sums = self
            .recent
            .iter()
            .fold((0, 0), |sum, entry| (sum.0 + entry.1, sum.1 + entry.2));
        let lately = self.latest.since(&self.window);
        let quantile_us = |q| lately.quantile(q).map(|ns| ns as f64 / 1e3);
        LatencyView {
            last_us: self.last_us,
            mean_us: mean_us(sums.0, sums.1),
            samples: sums.1 / 2,
            p50_us: quantile_us(0.50),
            p90_us: quantile_us(0.90),
            p99_us: quantile_us(0.99),
        }
    }
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

/// Mean of samples that are counted in halves; `None` without samples.
pub fn mean_us(sum2_ns: u64, count2: u64) -> Option<f64> {
    (count2 > 0).then(|| sum2_ns as f64 / count2 as f64 / 1e3)
}

/// Differences; a counter that fell belongs to a slot that was made anew.
fn since(new: RealTotals, old: RealTotals) -> RealTotals {
    let minus = |new: u64, old: u64| new.checked_sub(old).unwrap_or(new);
    let mut delta = new;
    delta.traffic.packets = minus(new.traffic.packets, old.traffic.packets);
    delta.traffic.bytes = minus(new.traffic.bytes, old.traffic.bytes);
    delta.opened = minus(new.opened, old.opened);
    delta.closed = minus(new.closed, old.closed);
    delta.requests = minus(new.requests, old.requests);
    delta.latency_sum2_ns = minus(new.latency_sum2_ns, old.latency_sum2_ns);
    delta.latency_count2 = minus(new.latency_count2, old.latency_count2);
    delta
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn totals(opened: u64, closed: u64, sum2: u64, count2: u64) -> RealTotals {
        RealTotals {
            opened,
            closed,
            latency_sum2_ns: sum2,
            latency_count2: count2,
            ..RealTotals::default()
        }
    }

    #[test]
    fn connections_are_opened_minus_closed_and_age() {
        let mut meter = Meter::new(totals(10, 4, 0, 0), Histogram::new(), Duration::ZERO);
        assert_eq!(meter.active(), 6);
        meter.advance(S, S, totals(12, 5, 0, 0));
        assert_eq!(meter.active(), 7);
        meter.advance(2 * S, S, totals(12, 30, 0, 0));
        assert_eq!(meter.active(), 0);
        let mut meter = Meter::new(totals(100, 0, 0, 0), Histogram::new(), Duration::ZERO);
        meter.advance(1_800 * S, 1_800 * S, totals(100, 0, 0, 0));
        assert_eq!(meter.active(), 14);
    }

    #[test]
    fn connections_from_before_the_start_have_aged() {
        let active = |age_s| {
            let totals = totals(1_000_000, 100_000, 0, 0);
            Meter::new(totals, Histogram::new(), Duration::from_secs(age_s)).active()
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
        let mut meter = Meter::new(totals(0, 0, 0, 0), Histogram::new(), Duration::ZERO);
        meter.advance(S, S, totals(0, 0, 8_000, 4));
        meter.advance(2 * S, S, totals(0, 0, 20_000, 6));
        assert_eq!(meter.latency().last_us, Some(6.0));
        assert_eq!(meter.latency().mean_us, Some(20_000.0 / 6.0 / 1e3));
        assert_eq!(meter.latency().samples, 3);
        meter.advance(11 * S, S, totals(0, 0, 20_000, 6));
        assert_eq!(meter.latency().mean_us, Some(6.0));
        meter.advance(12 * S, S, totals(0, 0, 20_000, 6));
        assert_eq!(meter.latency().mean_us, None);
    }

    #[test]
    fn a_slot_made_anew_counts_from_zero() {
        let mut meter = Meter::new(totals(50, 0, 0, 0), Histogram::new(), Duration::ZERO);
        meter.advance(S, S, totals(3, 0, 0, 0));
        assert_eq!(meter.delta().opened, 3);
    }

    #[test]
    fn percentiles_forget() {
        let mut histogram = Histogram::new();
        let mut meter = Meter::new(RealTotals::default(), histogram.clone(), Duration::ZERO);
        histogram.record_n(1_000_000, 100);
        meter.observe_histogram(histogram.clone());
        let p50 = meter.latency().p50_us.unwrap();
        assert!((p50 - 1000.0).abs() < 50.0);
        meter.rotate();
        meter.rotate();
        assert_eq!(meter.latency().p50_us, None);
    }
}
