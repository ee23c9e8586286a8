// SPDX-License-Identifier: Apache-2.0

//! Estimators over many flows: packets in, estimates per flow and epoch out.

use super::{
    Batch, Direction, Evicted, FlowKey, FlowTable, Hint, Name, Observation, Sender, table::Probe,
};
use crate::estimate::{
    self, EstimatorState, Lineup, Method, Sample, Samples, Tally, Three, ThreeConfigs,
};

/// Packets whose flows are fetched together: enough to hide a memory access behind
/// the work of the others, few enough for the first cache.
const AHEAD: usize = 16;

/// The estimate of one flow, one epoch and one method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEstimate {
    /// The flow, client first.
    pub flow: FlowKey,
    /// Index of the method in [`MeterSettings::methods`].
    pub method: u8,
    /// Start of the epoch: a multiple of its length since the Unix epoch. Nanoseconds.
    pub epoch_ns: u64,
    /// Its samples; always at least a whole one.
    pub tally: Tally,
}

/// Takes what the meter finds.
pub trait Sink {
    /// What follows is known since the packet with this number.
    fn packet(&mut self, _index: u64) {}

    /// A sample of `flow`, as soon as it is known.
    fn sample(&mut self, _flow: &FlowKey, _method: u8, _sample: &Sample) {}

    /// An epoch of a flow that is complete.
    fn row(&mut self, row: &FlowEstimate);

    /// [`FlowMeter::finish`] has come to the flow that began with this packet: what
    /// follows belongs to it.
    fn ending(&mut self, _born: u64) {}
}

/// What to measure, and how.
#[derive(Clone, Debug)]
pub struct MeterSettings<const N: usize> {
    /// Length of an epoch in nanoseconds, at least 1.
    pub epoch_ns: u64,
    /// The estimators to run side by side.
    pub methods: [Method; N],
    /// How to recognise the client.
    pub direction: Direction,
    /// Flows held at once; beyond that silent ones are ended.
    pub max_flows: u32,
    /// Seed of the flow table's hash.
    pub seed: u64,
    /// Hand out what a flow has as soon as its client closes the connection. Should more
    /// become known of the same epoch, it is a row of its own: for input without an end.
    pub early: bool,
}

/// Counts of a meter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowMeterCounts {
    /// Packets of the request direction.
    pub from_clients: u64,
    /// Packets of the response direction, which nothing looked at.
    pub from_servers: u64,
    /// Flows begun.
    pub flows: u64,
    /// Flows ended early because the table was full.
    pub evicted: u64,
}

impl FlowMeterCounts {
    /// Adds the counts of another meter.
    pub fn merge(&mut self, other: &FlowMeterCounts) {
        self.from_clients += other.from_clients;
        self.from_servers += other.from_servers;
        self.flows += other.flows;
        self.evicted += other.evicted;
    }
}

/// Runs `N` estimators over every flow.
///
/// Call [`FlowMeter::observe`] for each packet in the order of capture, then
/// [`FlowMeter::finish`] once. Rows come out as soon as a flow has samples two
/// epochs later, so that memory depends on the flows alone, and with
/// [`MeterSettings::early`] at the end of a connection; the rest comes with `finish`,
/// flows in the order of their first packets.
///
/// `L` holds their states: any of them, or all in their order as [`Three`], which takes
/// less time and room.
#[derive(Debug)]
pub struct FlowMeter<const N: usize, L: Lineup<N> = [EstimatorState; N]> {
    table: FlowTable<Flow<N, L>>,
    plan: L::Plan,
    clock: Clock,
    counts: FlowMeterCounts,
}

/// Divides time into epochs.
#[derive(Clone, Copy, Debug)]
struct Clock {
    epoch_ns: u64,
    /// Two epochs.
    two_ns: u64,
    /// See [`MeterSettings::early`].
    early: bool,
}

impl Clock {
    fn new(epoch_ns: u64, early: bool) -> Self {
        let epoch_ns = epoch_ns.max(1);
        Self {
            epoch_ns,
            two_ns: epoch_ns.saturating_mul(2),
            early,
        }
    }

    /// The start of the epoch before that of a time.
    fn before(&self, t_ns: u64) -> u64 {
        (t_ns - t_ns % self.epoch_ns).saturating_sub(self.epoch_ns)
    }
}

/// In the order of use: few packets complete a sample, which `epochs` is for.
#[derive(Debug)]
#[repr(C)]
struct Flow<const N: usize, L> {
    /// An epoch before the start of that of the last packet.
    before_ns: u64,
    states: L,
    epochs: [Epochs; N],
    /// Index of the first packet.
    born: u64,
}

impl<const N: usize> FlowMeter<N> {
    /// A meter that has seen nothing.
    pub fn new(settings: MeterSettings<N>) -> Self {
        let plan = settings.methods.clone();
        Self::with_lineup(settings, plan)
    }
}

impl FlowMeter<3, Three> {
    /// A meter of all three estimators of the request direction, in the order in which
    /// [`Method`] names them.
    pub fn of_three(settings: MeterSettings<0>, plan: ThreeConfigs) -> Self {
        Self::with_lineup(settings, plan)
    }
}

impl<const N: usize, L: Lineup<N>> FlowMeter<N, L> {
    fn with_lineup<const M: usize>(settings: MeterSettings<M>, plan: L::Plan) -> Self {
        Self {
            table: FlowTable::new(settings.direction, settings.max_flows, settings.seed),
            plan,
            clock: Clock::new(settings.epoch_ns, settings.early),
            counts: FlowMeterCounts::default(),
        }
    }

    /// Takes packets in the order of capture. The same as [`FlowMeter::observe`] for each,
    /// but faster: the flows of several packets are fetched from memory at the same time.
    pub fn observe_all(&mut self, packets: &Batch, sink: &mut impl Sink) {
        let mut guesses = [u32::MAX; AHEAD];
        for group in packets.records().chunks(AHEAD) {
            for record in group {
                self.table.prefetch_index(record.hash);
            }
            for (guess, record) in guesses.iter_mut().zip(group) {
                *guess = self.table.prefetch_entry(record.hash);
            }
            for (&guess, record) in guesses.iter().zip(group) {
                let index = packets.index(record);
                sink.packet(index);
                let (swapped, hint, t_ns) = (record.swapped, record.hint, record.packet.t_ns);
                let found = self.table.guessed(guess, record.name, swapped, hint, t_ns);
                let Some(found) = found else {
                    let seen = (packets.key(record), hint, &record.packet);
                    self.search(Probe::new(record.hash, swapped), index, seen, sink);
                    continue;
                };
                if found.sender == Sender::Server {
                    self.counts.from_servers += 1;
                    continue;
                }
                self.counts.from_clients += 1;
                let (flow, name) = (found.value, found.name);
                flow.packet(&self.plan, name, &record.packet, &self.clock, sink);
            }
        }
    }

    /// Takes the packet with number `index` of the capture.
    pub fn observe(&mut self, index: u64, seen: &Observation, sink: &mut impl Sink) {
        sink.packet(index);
        let probe = self.table.probe(&seen.key);
        self.search(probe, index, (seen.key, seen.hint, &seen.packet), sink);
    }

    /// Takes a packet whose flow was not guessed. Not a part of `observe_all`, which would
    /// lay out what the closures need for every packet.
    #[inline(never)]
    fn search(
        &mut self,
        probe: Probe,
        index: u64,
        (key, hint, packet): (FlowKey, Hint, &estimate::Packet),
        sink: &mut impl Sink,
    ) {
        let Self {
            table,
            plan,
            clock,
            counts,
        } = self;
        let t_ns = packet.t_ns;
        let found = table.find(
            &key,
            probe,
            hint,
            t_ns,
            || {
                counts.flows += 1;
                Flow::new(plan, index, clock.before(t_ns))
            },
            |old: Evicted<Flow<N, L>>| old.value.finish(plan, &old.flow, clock, sink),
        );
        match found.sender {
            Sender::Server => counts.from_servers += 1,
            Sender::Client => {
                counts.from_clients += 1;
                let (flow, name) = (found.value, found.name);
                flow.packet(plan, name, packet, clock, sink);
            }
        }
    }

    /// Ends all flows, in the order of their first packets.
    pub fn finish(&mut self, sink: &mut impl Sink) {
        let mut flows: Vec<_> = self.table.drain().collect();
        flows.sort_by_key(|old| old.value.born);
        for old in flows {
            sink.ending(old.value.born);
            old.value.finish(&self.plan, &old.flow, &self.clock, sink);
        }
    }

    /// Counts so far.
    pub fn counts(&self) -> FlowMeterCounts {
        FlowMeterCounts {
            evicted: self.table.evictions(),
            ..self.counts
        }
    }
}

impl<const N: usize, L: Lineup<N>> Flow<N, L> {
    fn new(plan: &L::Plan, born: u64, before_ns: u64) -> Self {
        Self {
            before_ns,
            states: L::new(plan),
            epochs: [Epochs::default(); N],
            born,
        }
    }

    #[inline(always)]
    fn packet(
        &mut self,
        plan: &L::Plan,
        name: Name<'_>,
        packet: &estimate::Packet,
        clock: &Clock,
        sink: &mut impl Sink,
    ) {
        // A little jitter at the edge of an epoch does not end it a second time.
        if packet.t_ns.wrapping_sub(self.before_ns) >= clock.two_ns {
            self.end_epoch(plan, name, packet.t_ns, clock, sink);
        }
        let Self { states, epochs, .. } = self;
        states.packet(plan, packet, |index, samples| {
            epochs[index].add_all(&name, index, samples, clock.epoch_ns, sink);
        });
        if clock.early && packet.ends() {
            self.hand_out(plan, name, clock, sink);
        }
    }

    /// Gives `sink` all that is known of a flow that its client closes.
    #[inline(never)]
    fn hand_out(&mut self, plan: &L::Plan, name: Name<'_>, clock: &Clock, sink: &mut impl Sink) {
        self.end_epochs(plan, name, clock, sink);
        for (index, epochs) in self.epochs.iter_mut().enumerate() {
            epochs.hand_out(&name.flow(), index, u64::MAX, sink);
        }
    }

    #[inline(never)]
    fn end_epoch(
        &mut self,
        plan: &L::Plan,
        name: Name<'_>,
        t_ns: u64,
        clock: &Clock,
        sink: &mut impl Sink,
    ) {
        self.end_epochs(plan, name, clock, sink);
        self.before_ns = clock.before(t_ns);
    }

    fn end_epochs(&mut self, plan: &L::Plan, name: Name<'_>, clock: &Clock, sink: &mut impl Sink) {
        for (index, epochs) in self.epochs.iter_mut().enumerate() {
            if let Some(samples) = self.states.end_epoch(index, plan) {
                epochs.add_all(&name, index, &samples, clock.epoch_ns, sink);
            }
        }
    }

    fn finish(mut self, plan: &L::Plan, flow: &FlowKey, clock: &Clock, sink: &mut impl Sink) {
        for (index, epochs) in self.epochs.iter_mut().enumerate() {
            if let Some(samples) = self.states.finish(index, plan) {
                epochs.add_all(&Name::of(flow), index, &samples, clock.epoch_ns, sink);
            }
            epochs.hand_out(flow, index, u64::MAX, sink);
        }
    }
}

pub(super) fn put_row(
    flow: &FlowKey,
    method: usize,
    epoch_ns: u64,
    tally: Tally,
    sink: &mut impl Sink,
) {
    if tally.samples() > 0 {
        sink.row(&FlowEstimate {
            flow: *flow,
            method: method as u8,
            epoch_ns,
            tally,
        });
    }
}

/// The two latest epochs of a flow that have samples. An estimator may add to
/// the one before the last, not to any older one; should the clock jump back,
/// the sample counts for the older of the two.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Epochs {
    older: (u64, Tally),
    newer: (u64, Tally),
}

impl Epochs {
    /// Adds a sample and gives the epoch that it completes.
    #[inline]
    pub(super) fn add(&mut self, sample: &Sample, epoch_ns: u64) -> Option<(u64, Tally)> {
        match self.add_to_newer(sample, epoch_ns) {
            true => None,
            false => self.add_elsewhere(sample, epoch_ns),
        }
    }

    /// Adds a sample if it is of the newer epoch, as nearly all are.
    #[inline(always)]
    fn add_to_newer(&mut self, sample: &Sample, epoch_ns: u64) -> bool {
        let is_newer = sample.when_ns.wrapping_sub(self.newer.0) < epoch_ns;
        if is_newer {
            self.newer.1.add(sample);
        }
        is_newer
    }

    #[inline(never)]
    fn add_elsewhere(&mut self, sample: &Sample, epoch_ns: u64) -> Option<(u64, Tally)> {
        let start = sample.when_ns - sample.when_ns % epoch_ns;
        if start < self.newer.0 {
            if self.older.1.weight_halves == 0 {
                self.older.0 = start;
            }
            self.older.1.add(sample);
            return None;
        }
        let done = std::mem::replace(&mut self.older, self.newer);
        self.newer = (start, Tally::default());
        self.newer.1.add(sample);
        Some(done)
    }

    /// Adds what became known of a flow, and gives `sink` the samples and what they
    /// complete.
    #[inline(always)]
    fn add_all(
        &mut self,
        name: &Name<'_>,
        method: usize,
        samples: &Samples,
        epoch_ns: u64,
        sink: &mut impl Sink,
    ) {
        for sample in samples.iter() {
            name.tell(|flow| sink.sample(flow, method as u8, sample));
            if !self.add_to_newer(sample, epoch_ns)
                && let Some((epoch_ns, tally)) = self.add_elsewhere(sample, epoch_ns)
            {
                put_row(&name.flow(), method, epoch_ns, tally, sink);
            }
        }
    }

    /// Gives `sink` what began before `until_ns`. Half a sample stays: it is no row yet.
    pub(super) fn hand_out(
        &mut self,
        flow: &FlowKey,
        method: usize,
        until_ns: u64,
        sink: &mut impl Sink,
    ) {
        for (epoch_ns, tally) in [&mut self.older, &mut self.newer] {
            if *epoch_ns < until_ns && tally.samples() > 0 {
                put_row(flow, method, *epoch_ns, std::mem::take(tally), sink);
            }
        }
    }
}
