// SPDX-License-Identifier: Apache-2.0
//! What the sampler of `causeway rtt` costs a packet that it does not take.

use std::mem::MaybeUninit;

use causeway_dataplane::skel::rtt::RttSkelBuilder;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{ProgramInput, ProgramMut};

use crate::dataplane::{BenchError, failed, median};
use crate::skel::segments::SegmentsSkelBuilder;

/// Medians over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerCost {
    /// Nanoseconds of running a program that does nothing: what any costs.
    pub nothing_ns: f64,
    /// Nanoseconds of the sampler, the same included.
    pub not_sampled_ns: f64,
}

/// Lets the kernel run the sampler on a packet, over and over (BPF_PROG_TEST_RUN):
/// `rounds` of `repeat` runs each, in turns with a program that does nothing.
///
/// # Errors
/// No rights.
pub fn sampler_cost(rounds: u32, repeat: u32) -> Result<SamplerCost, BenchError> {
    let (mut storage, mut beside) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    let mut sampler = RttSkelBuilder::default()
        .open(&mut storage)
        .map_err(failed("opening the sampler"))?;
    if let Some(settings) = sampler.maps.rodata_data.as_deref_mut() {
        // One in 65,536 is taken, and looked at: that much is in the figure.
        settings.cfg_threshold = u32::MAX >> 16;
        settings.cfg_link_header = true;
        settings.cfg_port_be = 9472_u16.to_be();
    }
    let sampler = sampler.load().map_err(failed("loading the sampler"))?;
    let nothing = SegmentsSkelBuilder::default()
        .open(&mut beside)
        .and_then(|open| open.load())
        .map_err(failed("loading a program that does nothing"))?;
    // An Ethernet header, and an IP header that is none of ours.
    let mut frame = [0_u8; 64];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    let run = |program: &ProgramMut<'_>| {
        let input = ProgramInput {
            data_in: Some(&frame),
            repeat,
            ..ProgramInput::default()
        };
        let output = program
            .test_run(input)
            .map_err(failed("running a program"))?;
        Ok::<_, BenchError>(output.duration.as_nanos() as f64)
    };
    let (mut of_nothing, mut of_sampler) = (Vec::new(), Vec::new());
    for _ in 0..rounds.max(1) {
        of_nothing.push(run(&nothing.progs.bench_pass)?);
        of_sampler.push(run(&sampler.progs.causeway_rtt_out)?);
    }
    Ok(SamplerCost {
        nothing_ns: median(&mut of_nothing),
        not_sampled_ns: median(&mut of_sampler),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_measured() {
        let cost = sampler_cost(3, 20_000).expect("a cost; it needs root");
        println!("{cost:?}");
        assert!(
            cost.nothing_ns > 0.0 && cost.not_sampled_ns > 0.0,
            "{cost:?}"
        );
    }
}
