// SPDX-License-Identifier: Apache-2.0
//! `[control]`: the controller's constants.

use std::ops::RangeInclusive;

use causeway_core::control::ControlParams;
use causeway_service::config::{Faults, number_within, time_within, within};

use super::raw::{Number, RawControl};

/// Intervals: shorter ones see no samples, longer ones no longer react.
const INTERVAL: [&str; 2] = ["10ms", "10s"];

/// A constant that is a plain number.
pub(super) struct Constant {
    pub key: &'static str,
    pub get: fn(&ControlParams) -> f64,
    set: fn(&mut ControlParams, f64),
    raw: fn(&RawControl) -> &Number,
    range: RangeInclusive<f64>,
}

macro_rules! constants {
    ($($key:ident in $range:expr,)*) => {
        &[$(Constant {
            key: stringify!($key),
            get: |params| params.$key,
            set: |params, value| params.$key = value,
            raw: |raw| &raw.$key,
            range: $range,
        }),*]
    };
}

/// Named as in the file and in [`ControlParams`].
pub(super) const CONSTANTS: &[Constant] = constants![
    alpha_high in 1.0..=100.0,
    alpha_low in 1.0..=100.0,
    step in 0.001..=1.0,
    max_decrease in 0.01..=0.9,
    max_increase in 0.01..=10.0,
    floor in 0.001..=1.0,
    cap in 1.0..=100.0,
    regress_rate in 0.0..=1.0,
    smoothing in 0.01..=1.0,
    confidence in 0.0..=10.0,
    burst in 0.1..=1000.0,
    tolerance in 0.0..=10.0,
    margin in 0.0..=10.0,
    return_rate in 0.0..=1.0,
];

pub(super) fn params(raw: &RawControl, faults: &mut Faults<'_>) -> ControlParams {
    let mut params = ControlParams::default();
    let interval = time_within(raw.interval.as_ref(), "control interval", INTERVAL, faults);
    if let Some(interval) = interval {
        params.interval_ns = interval.as_nanos() as u64;
    }
    for constant in CONSTANTS {
        let Some(value) = (constant.raw)(raw) else {
            continue;
        };
        let (low, high) = (constant.range.start(), constant.range.end());
        let (low, high) = (low.to_string(), high.to_string());
        match within(*value.as_ref(), &constant.range, constant.key, &low, &high) {
            Ok(number) => (constant.set)(&mut params, number),
            Err(message) => faults.at(value.span(), message),
        }
    }
    for (value, target, key) in [
        (
            &raw.regress_after,
            &mut params.regress_after,
            "regress_after",
        ),
        (&raw.min_samples, &mut params.min_samples, "min_samples"),
    ] {
        if let Some(number) = number_within(value.as_ref(), key, 1..=100_000, faults) {
            *target = number;
        }
    }
    if params.alpha_low > params.alpha_high {
        let place = raw.alpha_low.as_ref().or(raw.alpha_high.as_ref());
        let message = format!(
            "alpha_low ({}) is above alpha_high ({}); a real would give and receive at once",
            params.alpha_low, params.alpha_high
        );
        if let Some(place) = place {
            faults.at(place.span(), message);
        }
    }
    params
}
