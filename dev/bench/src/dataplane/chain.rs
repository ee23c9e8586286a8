// SPDX-License-Identifier: Apache-2.0
//! The meter before another program, as PIRATE's table 1 has it: what is forwarded or balanced
//! alone, behind a tail call, and behind a meter that makes the same call. Beside them the meter
//! that lets packets pass, and the balancer that measures by itself.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _};

use causeway_dataplane::abi::{MeterSums, MeterVerdict, Plain as _, Verdict};
use causeway_dataplane::skel::meter::{MeterSkel, MeterSkelBuilder};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, OpenObject};

use super::fixture::{Balancer, Counter, Measures, failed, packets};
use super::instrument::{Instrument, shuffled};
use super::{BenchError, BenchPlan, Case, Row, Shot, measure};

/// Flows that a meter is made for at least: its default.
const FLOWS: u32 = 1 << 16;

/// `bpf/meter.bpf.c` with window-chain, whose sums are of all time.
struct Meter<'o> {
    skel: MeterSkel<'o>,
}

impl<'o> Meter<'o> {
    /// Packets go on to `next`, or pass.
    fn load(
        storage: &'o mut MaybeUninit<OpenObject>,
        flows: u32,
        next: Option<i32>,
    ) -> Result<Self, BenchError> {
        let mut open = MeterSkelBuilder::default()
            .open(storage)
            .map_err(failed("opening meter.bpf.o"))?;
        // Some more than there are: what is evicted is not measured.
        open.maps
            .flows
            .set_max_entries(FLOWS.max(flows + flows / 4))
            .map_err(failed("sizing the tables"))?;
        let skel = open.load().map_err(failed("loading meter.bpf.o"))?;
        if let Some(next) = next {
            skel.maps
                .next
                .update(&0_u32.to_ne_bytes(), &next.to_ne_bytes(), MapFlags::ANY)
                .map_err(failed("setting a tail call"))?;
        }
        Ok(Self { skel })
    }

    fn program(&self) -> i32 {
        self.skel.progs.causeway_meter.as_fd().as_raw_fd()
    }

    fn case<'a>(&'a self, name: &'static str) -> Case<'a> {
        Case {
            measures: Some(self),
            ..Case::new(name, Shot::Tcp, self.program()).measuring(1)
        }
    }
}

impl Counter for Meter<'_> {
    fn count(&self, verdict: u32) -> Result<u64, BenchError> {
        packets(&self.skel.maps.verdicts, verdict)
    }
}

impl Measures for Meter<'_> {
    fn latencies(&self) -> Result<u64, BenchError> {
        // At once: a batch that ends with a bucket of the table would pass for the last one.
        let flows = &self.skel.maps.flows;
        let flows = flows
            .lookup_batch(flows.max_entries(), MapFlags::ANY, MapFlags::ANY)
            .map_err(failed("reading the meter's flows"))?;
        let sums = flows
            .filter_map(|(_, value)| MeterSums::from_bytes(value.get(..size_of::<MeterSums>())?));
        Ok(sums.map(|sums| sums.weight_halves).sum())
    }
}

/// The cases, at one number of clients.
pub(super) fn run(plan: &BenchPlan, flows: u32) -> Result<Vec<Row>, BenchError> {
    let mut storage: [MaybeUninit<OpenObject>; 6] = [const { MaybeUninit::uninit() }; 6];
    let [
        instrument,
        measured,
        plain,
        alone,
        before_redirect,
        before_balancer,
    ] = &mut storage;
    let mut instrument = Instrument::load(instrument)?;
    let measured = Balancer::load(measured)?;
    let plain = Balancer::unmeasured(plain, &measured)?;
    let redirect = instrument.macswap();
    let [tail_redirect, tail_balancer] = instrument.tails(redirect, plain.program())?;
    let alone = Meter::load(alone, flows, None)?;
    let before_redirect = Meter::load(before_redirect, flows, Some(redirect))?;
    let before_balancer = Meter::load(before_balancer, flows, Some(plain.program()))?;

    // Fill in one order, measure in another.
    let order: Vec<u32> = (0..flows).collect();
    instrument.set_clients(&order, &[])?;
    for program in [
        measured.program(),
        alone.program(),
        before_redirect.program(),
        before_balancer.program(),
    ] {
        instrument.fill(program, Shot::Tcp, flows)?;
    }
    instrument.set_clients(&shuffled(flows, 0x5eed), &[])?;

    let established = Verdict::Established;
    let balancer = |name, balancer| Case::of(name, Shot::Tcp, balancer, established);
    let counted = MeterVerdict::Measured;
    let mut cases = [
        Case::empty(Shot::Tcp, &instrument),
        Case::new("redirect", Shot::Tcp, redirect),
        Case::new("redirect_tail", Shot::Tcp, tail_redirect),
        before_redirect.case("redirect_meter"),
        balancer("balancer", &plain),
        Case {
            program: tail_balancer,
            ..balancer("balancer_tail", &plain)
        },
        before_balancer.case("balancer_meter").expecting(
            &plain,
            established as u32,
            established.as_str(),
        ),
        balancer("balancer_measured", &measured).measuring(1),
        alone
            .case("meter")
            .expecting(&alone, counted as u32, counted.as_str()),
    ];
    let rows = measure(&mut cases, &mut instrument, plan, flows)?;
    Ok(rows.into_iter().skip(1).collect())
}
