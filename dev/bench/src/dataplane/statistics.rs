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
        let ran = instrument.run_empty(RUNS)?;
        Ok(ran.run_time_ns as f64 / ran.runs as f64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_another_program_of_the_same_name_do_not_count() {
        let ran = alone(|| {
            let mut storage = MaybeUninit::uninit();
            let others = Instrument::load(&mut storage)?;
            let _on = RunTimes::enable()?;
            others.run_empty(RUNS)?;
            alone(|| {
                let mut storage = MaybeUninit::uninit();
                Instrument::load(&mut storage)?.run_empty(7)
            })
        });
        assert_eq!(ran.expect("runs").runs, 7);
    }
}
