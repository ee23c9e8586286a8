// SPDX-License-Identifier: Apache-2.0
//! How far the estimator is off: a former one's figures, which are up to three times those of
//! docs/design/accuracy.md, so that laws are judged by no better estimates than there are.

use rand::Rng;
use rand_distr::{Distribution, StandardNormal};
use rand_pcg::Pcg64Mcg;

/// Standard deviations from the median to the 90th percentile of a normal distribution.
const TO_P90: f64 = 1.281_55;

/// The error of an epoch's estimate, and how many requests give a sample.
///
/// The errors of epochs are drawn from two half normals that meet at zero and have this 10th and
/// 90th percentile: an estimator is often too low by much and
/// rarely too high, or the other way round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Noise {
    pub name: &'static str,
    /// 10th percentile of the signed relative error, below zero.
    pub p10: f64,
    /// 90th percentile.
    pub p90: f64,
    /// Samples per request.
    pub yields: f64,
}

impl Noise {
    /// Web pages, four requests outstanding (row `web` of "The matrix": -4.4 and 2.2 %).
    pub const WEB: Self = Self {
        name: "web",
        p10: -0.08,
        p90: 0.0232,
        yields: 0.8,
    };
    /// The same with 1 % of the packets lost (row `w4_loss1`: -6.2 and 3.0 %).
    pub const LOSS: Self = Self {
        name: "loss",
        p10: -0.2092,
        p90: 0.0119,
        yields: 0.7,
    };
    /// Web pages that come in bursts to servers with quotas: the estimator gives a sample for
    /// a burst more than for a request, as the lab's `control` has it.
    pub const BURSTS: Self = Self {
        name: "bursts",
        yields: 0.3,
        ..Self::WEB
    };
    pub const NONE: Self = Self {
        name: "none",
        p10: 0.0,
        p90: 0.0,
        yields: 1.0,
    };

    /// What an epoch's latency is multiplied by.
    pub fn factor(&self, rng: &mut Pcg64Mcg) -> f64 {
        let normal: f64 = StandardNormal.sample(rng);
        let far = if normal < 0.0 { -self.p10 } else { self.p90 };
        (1.0 + normal / TO_P90 * far).max(0.05)
    }

    /// Whether a response gives a sample.
    pub fn samples(&self, rng: &mut Pcg64Mcg) -> bool {
        self.yields >= 1.0 || rng.random_bool(self.yields)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn draws_have_their_percentiles() {
        for noise in [Noise::WEB, Noise::LOSS] {
            let mut rng = Pcg64Mcg::seed_from_u64(1);
            let mut errors: Vec<f64> = (0..20_000).map(|_| noise.factor(&mut rng) - 1.0).collect();
            errors.sort_by(f64::total_cmp);
            assert!((errors[2_000] - noise.p10).abs() < 0.02, "{}", noise.name);
            assert!((errors[18_000] - noise.p90).abs() < 0.02, "{}", noise.name);
        }
    }
}
