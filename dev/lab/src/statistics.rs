// SPDX-License-Identifier: Apache-2.0
//! Order statistics of a few values.

use std::f64::consts::FRAC_PI_2;

/// The value that a share `q` of the values does not exceed; NaN of none.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    let rank = (q * last as f64).round() as usize;
    sorted.get(rank).copied().unwrap_or(f64::NAN)
}

/// The middle one, or the mean of the two in the middle; NaN of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The standard error of these values' median, were they normally distributed: that of the mean
/// times the root of pi/2. NaN for a single one.
pub fn standard_error(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (count - 1.0) / count * FRAC_PI_2).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_lie_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn quantiles_are_values() {
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.0), 1.0);
        assert_eq!(quantile(&[3.0, 1.0, 2.0, 9.0], 0.99), 9.0);
    }
}
