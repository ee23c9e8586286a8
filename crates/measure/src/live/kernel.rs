// SPDX-License-Identifier: Apache-2.0
//! Estimates that the kernel makes: its records become rows.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use causeway_core::estimate::{Method, Tally};
use causeway_core::flow::{FlowEstimate, FlowKey, Headers};
use causeway_core::hist::Latencies;
use causeway_dataplane::{DataPlaneError, KernelMeter, MeterHook, MeterOptions, MeterSample};

use super::super::args::{Filter, MeasureArgs};
use super::super::rows::{Line, Style};
use super::super::totals::Totals;
use super::super::words::Per;
use super::{Counters, GRACE_NS, Source, State, now_ns};

/// Servers whose distributions the kernel keeps: 3.5 KiB each, for each estimator.
const MAX_SERVERS: u32 = 1024;

/// The meter in the kernel.
pub(super) struct Kernel {
    meter: KernelMeter,
    epoch_ns: u64,
    filter: Filter,
    open: Epochs,
    /// Known at the end.
    evicted: Option<u64>,
}

/// Records on their way to rows: parts of one flow and epoch add up.
#[derive(Default)]
struct Epochs(BTreeMap<(u64, FlowKey, u8), Tally>);

impl Epochs {
    fn add(&mut self, sample: &MeterSample, flow: FlowKey) {
        let key = (sample.epoch_start_ns, flow, sample.slot);
        self.0.entry(key).or_default().merge(&sample.tally);
    }

    /// The epochs that began before `until_ns`, in their order.
    fn take_before(&mut self, until_ns: u64) -> impl Iterator<Item = FlowEstimate> {
        let mut taken = std::mem::take(&mut self.0);
        let least = FlowKey::new(0, [0, 0, 0, 0].into(), 0, [0, 0, 0, 0].into(), 0);
        if until_ns < u64::MAX {
            self.0 = taken.split_off(&(until_ns, least, 0));
        }
        taken
            .into_iter()
            .map(|((epoch_ns, flow, method), tally)| FlowEstimate {
                flow,
                method,
                epoch_ns,
                tally,
            })
    }
}

/// How far Unix time has moved against the meter's clock, which keeps its own: whole epochs,
/// so that theirs begin where all do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step(i64);

impl Step {
    fn new(moved_ns: i64, epoch_ns: u64) -> Self {
        let epoch_ns = i64::try_from(epoch_ns).unwrap_or(i64::MAX).max(1);
        let half = epoch_ns / 2 * moved_ns.signum();
        Self(moved_ns.saturating_add(half) / epoch_ns * epoch_ns)
    }

    /// A time of the meter's clock.
    fn unix_ns(self, meter_ns: u64) -> u64 {
        meter_ns.saturating_add_signed(self.0)
    }

    /// Epochs that began before this time of the meter's clock are over at a Unix time.
    fn over_ns(self, unix_ns: u64, epoch_ns: u64) -> u64 {
        let meter_ns = unix_ns.saturating_sub_signed(self.0);
        meter_ns.saturating_sub(epoch_ns.saturating_add(GRACE_NS))
    }
}

impl Kernel {
    /// Loads the meter and puts it on the interface.
    pub(super) fn start(
        args: &MeasureArgs,
        interface: &str,
        methods: &[Method],
        style: &Style,
    ) -> anyhow::Result<Self> {
        let Some((method, more)) = methods.split_first() else {
            anyhow::bail!("name an estimator");
        };
        let servers = matches!(style.grouping.per, Per::Server | Per::Vip);
        let options = MeterOptions {
            attach: args.attach.into(),
            method: method.clone(),
            more: more.to_vec(),
            opaque: args.headers() == Headers::Opaque,
            epoch: args.epoch,
            max_flows: args.max_flows_in_kernel(),
            max_servers: if servers { MAX_SERVERS } else { 0 },
            client_nets: args
                .client_net
                .iter()
                .map(|net| (net.address(), net.prefix_len()))
                .collect(),
            next: args.next_program.clone(),
            ..MeterOptions::new(interface)
        };
        Ok(Self {
            meter: KernelMeter::start(&options)?,
            epoch_ns: args.epoch_ns(),
            filter: args.filter(),
            open: Epochs::default(),
            evicted: None,
        })
    }

    /// Why it does not run as XDP, where a driver would not have it.
    pub(super) fn refused(&self) -> Option<String> {
        Some(match self.meter.refused()? {
            DataPlaneError::MeterRefused { cause, .. } => cause.to_string(),
            other => other.to_string(),
        })
    }

    /// Where the program runs.
    pub(super) fn hook(&self) -> MeterHook {
        self.meter.hook()
    }

    fn add(&mut self, samples: &[MeterSample]) {
        for sample in samples {
            let (client, server) = (sample.flow.client, sample.flow.server);
            let flow = FlowKey::new(
                sample.flow.proto,
                client.ip(),
                client.port(),
                server.ip(),
                server.port(),
            );
            if self.filter.passes(&flow) {
                self.open.add(sample, flow);
            }
        }
    }

    /// Writes the epochs that began before `until_ns` of the meter's clock, `step` behind
    /// which Unix time is.
    fn write_before(&mut self, until_ns: u64, step: Step, state: &mut State) -> io::Result<()> {
        self.open.take_before(until_ns).try_for_each(|row| {
            let row = FlowEstimate {
                epoch_ns: step.unix_ns(row.epoch_ns),
                ..row
            };
            state.line(Line {
                row,
                latencies: Latencies::default(),
            })
        })
    }
}

impl Source for Kernel {
    fn poll(&mut self, timeout: Duration, state: &mut State) -> anyhow::Result<()> {
        let samples = self.meter.poll(timeout)?;
        self.add(&samples);
        let step = Step::new(self.meter.clock_step_ns(), self.epoch_ns);
        let until_ns = step.over_ns(now_ns(), self.epoch_ns);
        Ok(self.write_before(until_ns, step, state)?)
    }

    fn distributions(&mut self, totals: &mut Totals) -> anyhow::Result<()> {
        totals.forget_latencies();
        for found in self.meter.servers()? {
            let (ip, port) = (found.server.ip(), found.server.port());
            let none: std::net::IpAddr = match ip.is_ipv4() {
                true => [0, 0, 0, 0].into(),
                false => [0u16; 8].into(),
            };
            let server = FlowKey::new(found.proto, none, 0, ip, port);
            if self.filter.passes(&server) {
                let latencies = Latencies::from(&found.histogram);
                totals.latencies(&server, found.slot, &latencies);
            }
        }
        Ok(())
    }

    fn finish(&mut self, state: &mut State) -> anyhow::Result<()> {
        self.meter.detach();
        let mut samples = self.meter.poll(Duration::ZERO)?;
        let open = self.meter.open_epochs()?;
        samples.extend(open.samples);
        self.evicted = Some(open.evicted);
        self.add(&samples);
        let step = Step::new(self.meter.clock_step_ns(), self.epoch_ns);
        Ok(self.write_before(u64::MAX, step, state)?)
    }

    fn counters(&mut self) -> anyhow::Result<Counters> {
        let verdicts = self.meter.verdicts()?;
        let packets = verdicts
            .iter()
            .map(|(verdict, count)| (verdict.as_str().to_owned(), count.packets));
        Ok(Counters {
            packets: packets.collect(),
            lost: Some((
                self.meter.lost_records(),
                "records were lost: too many flows for this epoch",
            )),
            evicted: self.evicted.map(|epochs| {
                (
                    epochs,
                    "epochs of flows are missing: more flows than are kept; raise --max-flows",
                )
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use causeway_dataplane::MeteredFlow;

    use super::*;

    #[test]
    fn a_clock_that_is_set_moves_rows_and_holds_up_none() {
        const HOUR_NS: i64 = 3_600_000_000_000;
        let (epoch_ns, start_ns) = (200_000_000, 10 * HOUR_NS as u64);
        for moved_ns in [0, HOUR_NS, -HOUR_NS, HOUR_NS + 90_000_000, 50_000_000] {
            let step = Step::new(moved_ns, epoch_ns);
            // Three seconds of the meter's clock later.
            let meter_ns = start_ns + 3_000_000_000;
            let unix_ns = meter_ns.saturating_add_signed(moved_ns);
            let over_ns = step.over_ns(unix_ns, epoch_ns);
            let expected_ns = meter_ns - epoch_ns - GRACE_NS;
            assert!(over_ns.abs_diff(expected_ns) <= epoch_ns / 2, "{moved_ns}");
            let label_ns = step.unix_ns(start_ns);
            let expected_ns = start_ns.saturating_add_signed(moved_ns);
            assert!(label_ns.abs_diff(expected_ns) <= epoch_ns / 2, "{moved_ns}");
            assert_eq!(label_ns % epoch_ns, 0);
        }
    }

    /// A day of records from flows that come and go: what is kept is what is open.
    #[test]
    fn memory_depends_on_open_epochs_alone() {
        let mut open = Epochs::default();
        let (epoch_ns, mut rows, mut samples) = (200_000_000, 0, 0);
        for epoch in 0..432_000u64 {
            let flow = FlowKey::new(
                6,
                [10, 0, 0, 1].into(),
                epoch as u16,
                [10, 0, 0, 2].into(),
                80,
            );
            let sample = MeterSample {
                flow: MeteredFlow {
                    proto: 6,
                    client: "10.0.0.1:1".parse().unwrap(),
                    server: "10.0.0.2:80".parse().unwrap(),
                },
                slot: 0,
                epoch_start_ns: epoch * epoch_ns,
                tally: Tally {
                    sum_halves_ns: 2_000_000,
                    weight_halves: 2,
                    ..Tally::default()
                },
            };
            // Each record comes in two parts.
            open.add(&sample, flow);
            open.add(&sample, flow);
            let until_ns = (epoch * epoch_ns).saturating_sub(epoch_ns + GRACE_NS);
            for row in open.take_before(until_ns) {
                assert!(row.epoch_ns < until_ns);
                (rows, samples) = (rows + 1, samples + row.tally.samples());
            }
            assert!(open.0.len() <= 8, "{} epochs are open", open.0.len());
        }
        rows += open.take_before(u64::MAX).count();
        assert_eq!(rows, 432_000);
        assert!(samples >= 2 * (432_000 - 8) && open.0.is_empty());
    }
}
