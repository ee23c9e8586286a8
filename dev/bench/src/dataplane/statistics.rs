// SPDX-License-Identifier: Apache-2.0
//! What the kernel's statistics of programs cost by themselves.

use std::mem::MaybeUninit;

use super::instrument::Instrument;
use super::{BenchError, alone};
use crate::run_time::RunTimes;

/// Runs that it is the mean of.
const RUNS: u32 = 200_000;

/// Nanoseconds that the kernel's statistics give a program that does nothing: to be
/// taken off what they give others.
pub fn statistics_floor() -> Result<f64, BenchError> {
    alone(|| {
        let mut storage = MaybeUninit::uninit();
        let instrument = Instrument::load(&mut storage)?;
        let _on = RunTimes::enable()?;
        instrument.run_empty(RUNS)?;
        // Others' benchmarks may have loaded theirs; this one is the newest that ran.
        let mut ran = RunTimes::of("bench_empty").into_iter();
        let own = ran.rfind(|time| time.runs >= u64::from(RUNS));
        Ok(own.map_or(f64::NAN, |time| time.run_time_ns as f64 / time.runs as f64))
    })
}
