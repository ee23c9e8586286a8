// SPDX-License-Identifier: Apache-2.0
//! One real's latency, from intervals with many samples, few or none.

use super::{ControlParams, Reading};

/// Standard errors by which an interval must differ from the past for the past
/// to be forgotten. Three: one false alarm in some hundred intervals, which
/// costs nothing but smoothing.
const CHANGE_ERRORS: f64 = 3.0;

/// Weight of the newest interval in the number of answers.
const ANSWERED: f64 = 0.5;

/// Weight of the newest interval in what is known of the dispersion, once some thirty are known.
const VARIES: f64 = 0.03;
/// What is taken for known before the first, and as how many intervals. Too much costs a
/// slow server's connections a tenth of a second; too little moves weights for nothing.
const VARIES_PRIOR: f64 = 4.0;
const VARIES_PRIOR_WEIGHT: f64 = 4.0;
/// What one interval may say at most, however far off it was.
const VARIES_MOST: f64 = 30.0;
/// Time over which the part of answers graded low is taken.
const GRADED_NS: f64 = 10e9;
/// Answers in that time below which it says nothing.
const GRADED_LEAST: f64 = 20.0;
/// Part of the answers that are graded better below which there is next to nothing to go by.
const GOOD_LEAST: f64 = 0.01;
/// No more samples are asked for, however small the difference.
const SAMPLES_TO_TELL_MAX: f64 = 1e6;
/// Mean square of the distance of the middle one of three independent normal values from the
/// median of the three, as a part of their variance: `4/3 - sqrt(3)/pi`, from the moments of
/// order statistics.
const MEDIAN_OF_THREE: f64 = 0.782;

/// Smoothed latency and freshness of one real.
///
/// Latencies are compared in relative terms, as if they were exponentially
/// distributed: then one standard error is about `1 / sqrt(samples)`.
#[derive(Debug, Clone, Default)]
pub(super) struct Tracker {
    /// Mean latency and effective number of samples.
    estimate: Option<Estimate>,
    /// What the estimate was until the last interval, which differed from it.
    forgotten: Option<Estimate>,
    /// Samples that do not make an estimate yet.
    pending_sum_halves: u64,
    pending_weight_halves: u64,
    /// Requests since the last answer, and the time of the first of them.
    silent_requests: u64,
    silent_since_ns: Option<u64>,
    /// Smoothed numerator and denominator of the freshness.
    requests: f64,
    active: f64,
    samples_seen: f64,
    /// Requests of all connections for one of a measured one; 0 before the first.
    scale: f64,
    answered: f64,
    /// Recent answers that are not graded low, and those that are.
    good: f64,
    low: f64,
    last_sample_ns: u64,
    /// Time after which responses show besides their latency, by the last interval that told it.
    path_ns: u64,
    /// Intervals since the estimate was made or refined.
    waited: i32,
    /// The last two intervals' means, as logarithms, with their samples.
    last: [Option<(f64, f64)>; 2],
    dispersion: Dispersion,
}

/// How much the means of intervals vary, as a part of what means of as many independent
/// exponential samples would.
///
/// An interval between two others is compared with the median of the three: a peak between
/// two low ones counts, a step or a ramp does not, for that is what is to be seen.
#[derive(Debug, Clone, Copy)]
struct Dispersion {
    mean: f64,
    weight: f64,
}

impl Default for Dispersion {
    fn default() -> Self {
        Self {
            mean: VARIES_PRIOR,
            weight: VARIES_PRIOR_WEIGHT,
        }
    }
}

impl Dispersion {
    fn take(&mut self, before: f64, (middle, samples): (f64, f64), after: f64) {
        let median = before.max(after).min(before.min(after).max(middle));
        let squares = ((middle - median).exp() - 1.0).powi(2) * samples / MEDIAN_OF_THREE;
        self.weight += 1.0;
        self.mean += (squares.min(VARIES_MOST) - self.mean) * self.weight.recip().max(VARIES);
    }
}

/// A mean and what it rests on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Estimate {
    pub latency_ns: f64,
    pub samples: f64,
}

impl Estimate {
    /// Standard error of its logarithm, were its samples exponentially distributed.
    ///
    /// Two samples less than there are: the logarithm of a mean of few samples is
    /// skewed, and far too low a mean comes more often than the root law says.
    pub(super) fn error(self) -> f64 {
        (self.samples - 2.0).max(0.5).recip().sqrt()
    }

    /// The lowest true mean of which this one is not too high by chance.
    pub(super) fn surely_ns(self, errors: f64) -> f64 {
        let exact = Self {
            latency_ns: 1.0,
            samples: f64::INFINITY,
        };
        self.latency_ns / chance(self, exact, errors)
    }
}

/// What an interval did to the estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Too few samples: the estimate stands.
    Held,
    /// The estimate was refined.
    Refined,
    /// The latency differs from the past, which was forgotten.
    Changed,
}

impl Tracker {
    /// Takes in one interval that ended at `now_ns`.
    /// So many samples count as one, because those of one burst are alike.
    pub(super) fn absorb(
        &mut self,
        now_ns: u64,
        reading: &Reading,
        params: &ControlParams,
        alike: f64,
    ) -> Progress {
        self.freshen(reading, params);
        self.listen(now_ns, reading, params);
        self.pending_sum_halves = self
            .pending_sum_halves
            .saturating_add(reading.latency_sum_halves_ns);
        self.pending_weight_halves = self
            .pending_weight_halves
            .saturating_add(reading.latency_weight_halves);
        self.waited = self.waited.saturating_add(1);
        if self.pending_weight_halves < 2 * u64::from(params.min_samples.max(1)) {
            return Progress::Held;
        }
        let new = Estimate {
            latency_ns: (self.pending_sum_halves as f64 / self.pending_weight_halves as f64)
                .max(1.0),
            samples: self.pending_weight_halves as f64 / 2.0 / alike,
        };
        self.disperse(new.latency_ns.ln(), self.pending_weight_halves as f64 / 2.0);
        (self.pending_sum_halves, self.pending_weight_halves) = (0, 0);
        let kept = (1.0 - params.smoothing).powi(self.waited);
        self.waited = 0;
        let Some(old) = self.estimate else {
            self.estimate = Some(new);
            return Progress::Changed;
        };
        // One interval alone was a peak, if this one is again more like what was before it.
        let past = self.forgotten.take();
        let past = past.filter(|past| apart(new, *past) < apart(new, old));
        if let Some(past) = past {
            self.estimate = Some(blend(past, new, kept));
            return Progress::Changed;
        }
        if differs(old, new, CHANGE_ERRORS) {
            self.forgotten = Some(old);
            self.estimate = Some(new);
            return Progress::Changed;
        }
        self.estimate = Some(blend(old, new, kept));
        Progress::Refined
    }

    fn disperse(&mut self, log: f64, samples: f64) {
        if let [Some((before, _)), Some(middle)] = self.last {
            self.dispersion.take(before, middle, log);
        }
        self.last = [self.last[1], Some((log, samples))];
    }

    fn freshen(&mut self, reading: &Reading, params: &ControlParams) {
        let keep = 1.0 - params.smoothing;
        let smooth = |old: f64, new: u64| keep * old + params.smoothing * new as f64;
        if reading.requests > 0 {
            self.scale =
                reading.all_requests.max(reading.requests) as f64 / reading.requests as f64;
        }
        self.requests = smooth(self.requests, reading.requests);
        self.active = smooth(self.active, reading.active);
        // What is off has been answered, too.
        let answers = answers_halves(reading) / 2;
        self.samples_seen = smooth(self.samples_seen, answers);
        // A look that was late, or had to wait for its turn, has the answers of several intervals.
        let intervals = (reading.interval_ns as f64 / params.interval_ns as f64).max(1.0);
        let answered = answers as f64 * self.scale.max(1.0) / intervals;
        self.answered += ANSWERED * (answered - self.answered);
        let kept = (-(params.interval_ns as f64) / GRADED_NS).exp();
        let good_halves = answers_halves(reading).saturating_sub(reading.low_weight_halves);
        self.good = kept * self.good + good_halves as f64 / 2.0;
        self.low = kept * self.low + reading.low_weight_halves as f64 / 2.0;
    }

    fn listen(&mut self, now_ns: u64, reading: &Reading, params: &ControlParams) {
        if reading.latency_weight_halves > 0 {
            self.last_sample_ns = now_ns;
        }
        if reading.latency_weight_halves > 0 || reading.path_ns > 0 {
            self.path_ns = reading.path_ns;
        }
        let new_halves = answers_halves(reading).saturating_sub(reading.late_weight_halves);
        if new_halves > 0 || reading.answers_acked > 0 {
            self.silent_requests = 0;
            self.silent_since_ns = None;
        } else if reading.requests > 0 {
            self.silent_requests = self.silent_requests.saturating_add(reading.requests);
            let begin = now_ns.saturating_sub(params.interval_ns);
            self.silent_since_ns.get_or_insert(begin);
        }
    }

    /// The smoothed latency.
    pub(super) fn estimate(&self) -> Option<Estimate> {
        self.estimate
    }

    /// Whether the estimate is of one interval that differed from all before it.
    pub(super) fn is_new(&self) -> bool {
        self.forgotten.is_some()
    }

    /// The mean of the last interval that had samples enough.
    pub(super) fn newest(&self) -> Option<Estimate> {
        let (log, samples) = self.last[1]?;
        Some(Estimate {
            latency_ns: log.exp(),
            samples,
        })
    }

    /// Variance of intervals' means as a part of what means of as many independent exponential
    /// samples have; 1 as long as nothing is known.
    pub(super) fn dispersion(&self) -> f64 {
        self.dispersion.mean
    }

    /// Forgets an estimate that no sample has renewed for `age_ns`, and says so.
    pub(super) fn expire(&mut self, now_ns: u64, age_ns: u64) -> bool {
        let expired = now_ns.saturating_sub(self.last_sample_ns) > age_ns;
        if expired {
            (self.estimate, self.forgotten) = (None, None);
            (self.pending_sum_halves, self.pending_weight_halves) = (0, 0);
        }
        expired
    }

    /// A tracker of a real about which something was known until `now_ns`.
    pub(super) fn resumed(now_ns: u64) -> Self {
        Self {
            last_sample_ns: now_ns,
            ..Self::default()
        }
    }

    /// The mean of the samples that wait for more, if any.
    pub(super) fn waiting(&self) -> Option<Estimate> {
        let samples = self.pending_weight_halves as f64 / 2.0;
        (samples > 0.0).then(|| Estimate {
            latency_ns: self.pending_sum_halves as f64 / self.pending_weight_halves as f64,
            samples,
        })
    }

    /// Samples that wait for more.
    pub(super) fn pending(&self) -> u32 {
        u32::try_from(self.pending_weight_halves / 2).unwrap_or(u32::MAX)
    }

    /// Requests received per active connection and interval, smoothed.
    pub(super) fn freshness(&self) -> f64 {
        self.requests * self.scale.max(1.0) / self.active.max(1.0)
    }

    /// The part of its answers that is graded low, if that is next to all of them.
    pub(super) fn low_quality(&self) -> Option<f64> {
        let all = self.good + self.low;
        (all >= GRADED_LEAST && self.good < GOOD_LEAST * all).then(|| self.low / all)
    }

    /// Recent answers and requests, both smoothed.
    pub(super) fn yield_parts(&self) -> (f64, f64) {
        (self.samples_seen, self.requests)
    }

    /// Answers per interval, of the last few, were all connections measured.
    pub(super) fn answered(&self) -> f64 {
        self.answered
    }

    /// Requests since the last answer, and for how long the first of them has waited for more
    /// than the path.
    pub(super) fn silence(&self, now_ns: u64) -> (u64, u64) {
        match self.silent_since_ns {
            Some(since) => {
                let waited_ns = now_ns.saturating_sub(since);
                (self.silent_requests, waited_ns.saturating_sub(self.path_ns))
            }
            None => (0, 0),
        }
    }
}

/// How many times the second mean the first may be by chance alone, were both of
/// exponential samples with one mean: as seldom more as a normal value is `errors` standard errors
/// above its mean.
///
/// The ratio has an F distribution, whose quantiles these are by Wilson and Hilferty's cube
/// root (PNAS 17, 1931; Paulson, Annals of Mathematical Statistics 13, 1942). It is not
/// symmetric: of three samples a mean 3.6 times too high is as rare as one 14 times too low.
pub(super) fn chance(high: Estimate, low: Estimate, errors: f64) -> f64 {
    if errors <= 0.0 {
        return 1.0;
    }
    let (up, down) = ((9.0 * high.samples).recip(), (9.0 * low.samples).recip());
    let (a, b) = (1.0 - up, 1.0 - down);
    let squared = errors * errors;
    let divisor = b * b - squared * down;
    if a <= 0.0 || b <= 0.0 || divisor <= 0.0 {
        return f64::INFINITY;
    }
    let root = (a * b
        + (squared * (up * b * b + down * (a * a - squared * up)))
            .max(0.0)
            .sqrt())
        / divisor;
    root.powi(3).max(1.0)
}

/// Samples that each of two means needs for their difference to exceed chance by `errors` standard
/// errors, where one is `ratio` times the other.
pub(super) fn samples_to_tell(ratio: f64, errors: f64) -> f64 {
    let tells = |samples: f64| {
        let mean = Estimate {
            latency_ns: 1.0,
            samples,
        };
        chance(mean, mean, errors) <= ratio
    };
    let mut samples = 1.0;
    while samples < SAMPLES_TO_TELL_MAX && !tells(samples) {
        samples *= 1.1;
    }
    samples
}

/// Answers of an interval, doubled, whatever is known of their latencies.
fn answers_halves(reading: &Reading) -> u64 {
    reading
        .latency_weight_halves
        .saturating_add(reading.low_weight_halves)
        .saturating_add(reading.untold_weight_halves)
}

/// How far two latencies are from each other, as a logarithm.
fn apart(a: Estimate, b: Estimate) -> f64 {
    (a.latency_ns / b.latency_ns).ln().abs()
}

fn differs(old: Estimate, new: Estimate, errors: f64) -> bool {
    let (high, low) = match new.latency_ns > old.latency_ns {
        true => (new, old),
        false => (old, new),
    };
    high.latency_ns > low.latency_ns * chance(high, low, errors)
}

/// What is known when of the old samples a part counts beside the new ones.
fn blend(old: Estimate, new: Estimate, kept: f64) -> Estimate {
    let kept = kept * old.samples;
    let samples = kept + new.samples;
    Estimate {
        latency_ns: (kept * old.latency_ns + new.samples * new.latency_ns) / samples,
        samples,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(samples: f64) -> Estimate {
        Estimate {
            latency_ns: 1e6,
            samples,
        }
    }

    /// Quantiles of the gamma and the F distribution at the normal one's of 3 (0.99865).
    fn interval(tracker: &mut Tracker, now_ns: &mut u64, latency_ns: f64, samples: u64) {
        *now_ns += 100_000_000;
        let reading = Reading {
            latency_sum_halves_ns: (latency_ns * 2.0 * samples as f64) as u64,
            latency_weight_halves: 2 * samples,
            requests: samples,
            active: 1,
            ..Reading::default()
        };
        tracker.absorb(*now_ns, &reading, &ControlParams::default(), 1.0);
    }

    /// Means of independent exponential samples have a dispersion of 1, means of samples of
    /// which `alike` each are one and the same have `alike`.
    #[test]
    fn dispersion_tells_bursts_from_independent_samples() {
        for alike in [1_u64, 4] {
            let mut random = 1_u64;
            let mut exponential = || {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                -(((random >> 11) as f64 + 1.0) / (1_u64 << 53) as f64).ln()
            };
            let (mut tracker, mut now_ns, mut sum) = (Tracker::default(), 0, 0.0);
            for count in 0..3_000 {
                let bursts = 40 / alike;
                let total: f64 = (0..bursts).map(|_| exponential()).sum();
                interval(&mut tracker, &mut now_ns, 1e6 * total / bursts as f64, 40);
                sum += if count < 100 {
                    0.0
                } else {
                    tracker.dispersion()
                };
            }
            let found = sum / 2_900.0 / alike as f64;
            assert!((0.8..1.25).contains(&found), "{alike}: {found}");
        }
    }

    /// A step and a ramp are what is to be seen; a peak says that means are not to be trusted.
    #[test]
    fn dispersion_grows_by_peaks_and_not_by_steps_or_ramps() {
        let after = |latency: fn(u64) -> f64| {
            let (mut tracker, mut now_ns) = (Tracker::default(), 0);
            for index in 0..200 {
                interval(&mut tracker, &mut now_ns, latency(index), 10);
            }
            tracker.dispersion()
        };
        assert!(after(|_| 1e6) < 0.05);
        assert!(after(|index| if index < 190 { 1e6 } else { 20e6 }) < 0.05);
        assert!(after(|index| 1e6 * 1.02_f64.powi(index as i32)) < 0.05);
        let peaks = after(|index| if index % 10 == 9 { 4e6 } else { 1e6 });
        assert!((2.0..5.0).contains(&peaks), "{peaks}");
    }

    /// The estimate follows a peak at once and goes back when the next interval does; of what
    /// stays it is sure with the second interval.
    #[test]
    fn a_peak_of_one_interval_leaves_the_past_as_it_was() {
        let (mut tracker, mut now_ns) = (Tracker::default(), 0);
        for _ in 0..20 {
            interval(&mut tracker, &mut now_ns, 1e6, 10);
        }
        let estimate = |tracker: &Tracker| tracker.estimate().map_or(0.0, |of| of.latency_ns);
        interval(&mut tracker, &mut now_ns, 9e6, 10);
        assert!(tracker.is_new() && estimate(&tracker) == 9e6);
        interval(&mut tracker, &mut now_ns, 1.2e6, 4);
        assert!(!tracker.is_new() && estimate(&tracker) < 1.1e6);
        for _ in 0..2 {
            interval(&mut tracker, &mut now_ns, 9e6, 10);
        }
        assert!(!tracker.is_new() && estimate(&tracker) == 9e6);
    }

    #[test]
    fn chance_is_that_of_means_of_exponential_samples() {
        let exact = f64::INFINITY;
        for (high, low, expected) in [
            (1.0, exact, 6.608),
            (3.0, exact, 3.624),
            (10.0, exact, 2.218),
            (100.0, exact, 1.327),
            (exact, 4.0, 8.597),
            (exact, 10.0, 3.242),
            (10.0, 10.0, 4.098),
        ] {
            let found = chance(of(high), of(low), 3.0);
            assert!(
                (found / expected - 1.0).abs() < 0.15,
                "{high} {low}: {found}"
            );
        }
        assert_eq!(chance(of(3.0), of(3.0), 0.0), 1.0);
        assert_eq!(chance(of(5.0), of(0.5), 3.0), f64::INFINITY);
    }
}
