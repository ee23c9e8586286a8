// SPDX-License-Identifier: Apache-2.0
//! Draws from distributions.

use std::f64::consts::TAU;

use rand::Rng as _;
use rand::rngs::StdRng;

/// Exponential, of mean 1.
pub fn exponential(rng: &mut StdRng) -> f64 {
    -(1.0 - rng.random::<f64>()).ln()
}

/// Lognormal, by median and sigma of the logarithm: Box and Muller's transform, one of its two
/// values.
pub fn log_normal(rng: &mut StdRng, median: f64, sigma: f64) -> f64 {
    let u: f64 = 1.0 - rng.random::<f64>();
    let v: f64 = rng.random();
    median * (sigma * (-2.0 * u.ln()).sqrt() * (TAU * v).cos()).exp()
}
