// SPDX-License-Identifier: Apache-2.0
//! What is found out before any weight moves, whatever the law: who is slow, who
//! swallows requests, who is too fast to be true.

use super::base::{Bases, Doubt};
use super::controller::{Controlled, Controller};
use super::tracker::{Estimate, Progress, chance, samples_to_tell};
use super::{Law, Reading, Reason};

/// Estimates that a silent real should have given before it is suspect. If they
/// came independently, silence by chance would have probability e^-8.
const SUSPECT_EXPECTED: f64 = 8.0;
/// Shortest silence of a suspect, in intervals: requests of the interval's end
/// are answered in the next one.
const SUSPECT_INTERVALS: u64 = 2;
/// An estimate that nothing renewed for this long says nothing about now. Then
/// regression lets traffic back in, and the traffic brings an estimate.
const EXPIRE_NS: u64 = 30_000_000_000;

/// Where a real stands in one interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Standing {
    Drained,
    Unknown,
    Suspect {
        requests: u64,
        silent_ns: u64,
    },
    High,
    /// Was high, and is not known to be no longer.
    Lingering,
    Middle,
    Low,
    /// Much faster than any other real has been: it may be failing fast.
    TooFast,
}

/// What is found out before any weight moves.
pub(super) struct Survey {
    /// The real with the lowest latency that is hardly too fast.
    pub lowest: Option<(usize, Estimate)>,
    pub standings: Vec<Standing>,
    /// Whether this interval brought evidence about a real.
    pub renewed: Vec<bool>,
    /// Whether it brought samples, be they too few for an estimate.
    pub heard: Vec<bool>,
    /// Which reals are faster than any other has been, if not yet surely.
    pub doubtful: Vec<bool>,
    /// Answers per request among the reals that answer.
    pub yield_ratio: f64,
    /// How much latencies vary, as a part of what independent exponential ones do.
    pub dispersion: f64,
}

impl Controller {
    /// Updates every measurement and separates slow from fast.
    pub(super) fn survey(&mut self, now_ns: u64, readings: &[Reading]) -> Survey {
        self.stable_for = self.stable_for.saturating_add(1);
        let dispersion = self.dispersion();
        let alike = self.alike();
        let mut renewed = Vec::with_capacity(self.reals.len());
        for (index, real) in self.reals.iter_mut().enumerate() {
            let reading = readings.get(index).copied().unwrap_or_default();
            let progress = real.tracker.absorb(now_ns, &reading, &self.params, alike);
            if real.tracker.expire(now_ns, EXPIRE_NS) {
                real.slow = false;
            }
            if progress == Progress::Changed && real.member.configured > 0.0 {
                self.stable_for = 0;
            }
            renewed.push(progress != Progress::Held);
        }
        let heard = (0..self.reals.len()).map(|index| {
            let reading = readings.get(index);
            reading.is_some_and(|reading| reading.latency_weight_halves > 0)
        });
        let heard = heard.collect();
        self.judge(&renewed);
        let too_fast = self.too_fast(Doubt::Sure);
        let doubtful = self.too_fast(Doubt::Possible);
        for ((real, too_fast), renewed) in self.reals.iter_mut().zip(&too_fast).zip(&renewed) {
            // What may be an error is not an example of what is possible.
            if *renewed && !too_fast {
                let estimate = real.tracker.estimate();
                real.base.observe(estimate, self.params.interval_ns);
            }
        }
        // No real is slow by comparison with one that perhaps answers errors.
        let lowest = self.lowest(&doubtful).or_else(|| self.lowest(&too_fast));
        let yield_ratio = self.pool_yield(now_ns);
        let standings: Vec<Standing> = self
            .reals
            .iter()
            .zip(&too_fast)
            .map(
                |(real, too_fast)| match self.standing(real, now_ns, lowest, yield_ratio) {
                    Standing::Low | Standing::Middle if *too_fast => Standing::TooFast,
                    standing => standing,
                },
            )
            .collect();
        for ((renewed, standing), real) in renewed.iter_mut().zip(&standings).zip(&mut self.reals) {
            *renewed |= matches!(standing, Standing::Suspect { .. });
            real.slow = matches!(
                standing,
                Standing::Suspect { .. } | Standing::High | Standing::Lingering
            );
        }
        Survey {
            lowest,
            standings,
            renewed,
            heard,
            doubtful,
            yield_ratio,
            dispersion,
        }
    }

    /// How many samples count as one.
    fn alike(&self) -> f64 {
        match self.law {
            // It takes every interval as it is.
            Law::WatermarkPaper => 1.0,
            Law::Watermark | Law::Equalise => self.dispersion().max(1.0),
        }
    }

    /// Samples that an interval is to bring of each real: with that many in each, estimates rest on
    /// enough samples to distinguish a difference that has consequences from chance.
    pub fn samples_wanted(&self) -> f64 {
        let of = &self.params;
        let telling = match self.law {
            Law::Equalise => samples_to_tell(1.0 + of.tolerance, of.margin),
            Law::Watermark | Law::WatermarkPaper => samples_to_tell(of.alpha_high, of.confidence),
        };
        (telling * of.smoothing).max(of.min_samples.into()) * self.alike()
    }

    /// How much latencies vary: of the reals the lower median, as one may be in trouble.
    fn dispersion(&self) -> f64 {
        let reals = self.reals.iter();
        let mut each: Vec<f64> = reals
            .filter(|real| real.member.configured > 0.0)
            .map(|real| real.tracker.dispersion())
            .collect();
        each.sort_by(f64::total_cmp);
        let lower = each.get(each.len().saturating_sub(1) / 2);
        lower.copied().unwrap_or(1.0)
    }

    /// Counts the intervals in which reals were faster than any other ever has been.
    fn judge(&mut self, renewed: &[bool]) {
        let bases = Bases::of(self.reals.iter().map(|real| &real.base));
        for (index, real) in self.reals.iter_mut().enumerate() {
            let newest = real.tracker.newest().filter(|_| renewed[index]);
            if let Some(newest) = newest {
                let too_fast = bases.below(index, &real.base, newest, 0.0);
                real.base.judge(too_fast);
            }
        }
    }

    /// Which reals answer much faster than any other ever has. If most of the pool does, its
    /// work has changed, and none is.
    fn too_fast(&self, doubt: Doubt) -> Vec<bool> {
        let bases = Bases::of(self.reals.iter().map(|real| &real.base));
        let reals = self.reals.iter().enumerate();
        let mut too_fast: Vec<bool> = reals
            .map(|(index, real)| {
                let own = real.tracker.estimate();
                own.is_some_and(|own| bases.too_fast(index, &real.base, own, doubt))
            })
            .collect();
        let (mut all, mut flagged) = (0.0, 0.0);
        for (real, too_fast) in self.reals.iter().zip(&too_fast) {
            if real.tracker.estimate().is_some() {
                all += real.member.configured;
                flagged += real.member.configured * f64::from(u8::from(*too_fast));
            }
        }
        if flagged > all / 2.0 {
            too_fast.fill(false);
        }
        too_fast
    }

    /// The lowest latency, of those that are not said to be too fast.
    fn lowest(&self, too_fast: &[bool]) -> Option<(usize, Estimate)> {
        self.reals
            .iter()
            .enumerate()
            .filter(|(index, real)| real.member.configured > 0.0 && !too_fast[*index])
            .filter_map(|(index, real)| Some((index, real.tracker.estimate()?)))
            .min_by(|a, b| a.1.latency_ns.total_cmp(&b.1.latency_ns))
    }

    /// Answers per request among the reals that answer.
    fn pool_yield(&self, now_ns: u64) -> f64 {
        let (samples, requests) = self
            .reals
            .iter()
            .filter(|real| real.tracker.silence(now_ns).0 == 0)
            .map(|real| real.tracker.yield_parts())
            .fold((0.0, 0.0), |sum, parts| (sum.0 + parts.0, sum.1 + parts.1));
        match requests > 0.0 {
            true => (samples / requests).min(1.0),
            false => 0.0,
        }
    }

    fn standing(
        &self,
        real: &Controlled,
        now_ns: u64,
        lowest: Option<(usize, Estimate)>,
        yield_ratio: f64,
    ) -> Standing {
        if real.member.configured <= 0.0 {
            return Standing::Drained;
        }
        let Some((_, lowest)) = lowest else {
            return Standing::Unknown;
        };
        let high_ns = self.params.alpha_high * lowest.latency_ns;
        let (requests, silent_ns) = real.tracker.silence(now_ns);
        if requests as f64 * yield_ratio >= SUSPECT_EXPECTED
            && silent_ns >= SUSPECT_INTERVALS * self.params.interval_ns
            && silent_ns as f64 > high_ns
        {
            return Standing::Suspect {
                requests,
                silent_ns,
            };
        }
        let Some(own) = real.tracker.estimate() else {
            return match real.slow {
                true => Standing::Lingering,
                false => Standing::Unknown,
            };
        };
        let ratio = own.latency_ns / lowest.latency_ns;
        let margin = chance(own, lowest, self.params.confidence);
        if ratio > self.params.alpha_high * margin {
            Standing::High
        } else if ratio > self.params.alpha_high && real.slow {
            // A real at the floor has few samples and so a wide margin; it must
            // not be given weight back for that.
            Standing::Lingering
        } else if ratio < self.params.alpha_low {
            Standing::Low
        } else {
            Standing::Middle
        }
    }

    /// The reasons that hold if no weight moves.
    pub(super) fn first_reasons(&self, survey: &Survey) -> Vec<Reason> {
        let reals = self.reals.iter().zip(&survey.standings);
        reals
            .map(|(real, standing)| match standing {
                Standing::Drained => Reason::Drained,
                Standing::Unknown if real.tracker.pending() > 0 => self.few_samples(real),
                Standing::Unknown => match real.tracker.low_quality() {
                    Some(low) => Reason::LowQuality { low },
                    None => Reason::Unknown,
                },
                Standing::High | Standing::Lingering | Standing::Suspect { .. } => {
                    match real.headroom_down(&self.params) {
                        room if room <= 1e-9 * real.member.configured => Reason::Floor,
                        _ => self.few_samples(real),
                    }
                }
                Standing::Middle | Standing::Low => Reason::Steady,
                Standing::TooFast => Reason::LoneFast,
            })
            .collect()
    }

    fn few_samples(&self, real: &Controlled) -> Reason {
        Reason::FewSamples {
            have: real.tracker.pending(),
            need: self.params.min_samples,
        }
    }
}
