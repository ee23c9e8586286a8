// SPDX-License-Identifier: Apache-2.0

//! Any techniques side by side over many flows, those of both directions too.
//!
//! What [`FlowMeter`](super::FlowMeter) does for a number of estimators that is known
//! when compiling, at the speed of the reader, this does for a list, and it looks
//! at the packets from servers.

use super::meter::{Epochs, put_row};
use super::{
    Batch, Evicted, FlowKey, FlowMeterCounts, FlowTable, MeterSettings, Observation, Sender, Sink,
};
use crate::estimate::{Follower, Lineup, Packet, Samples, Segment, Side, Technique};

/// What feeds on observations and gives rows: [`FlowMeter`](super::FlowMeter) or
/// [`Comparison`]. The order of calls is that of the meter.
pub trait Measuring: Send {
    /// Takes packets in the order of capture, placed with the seed of the settings.
    fn observe_all(&mut self, packets: &Batch, sink: &mut impl Sink);
    /// Ends all flows, in the order of their first packets.
    fn finish(&mut self, sink: &mut impl Sink);
    /// Counts so far.
    fn counts(&self) -> FlowMeterCounts;
}

impl<const N: usize, L: Lineup<N> + Send> Measuring for super::FlowMeter<N, L> {
    #[inline]
    fn observe_all(&mut self, packets: &Batch, sink: &mut impl Sink) {
        self.observe_all(packets, sink);
    }

    fn finish(&mut self, sink: &mut impl Sink) {
        self.finish(sink);
    }

    fn counts(&self) -> FlowMeterCounts {
        self.counts()
    }
}

/// Runs a list of techniques over every flow. The `method` of a
/// [`FlowEstimate`](super::FlowEstimate) is the place in the list.
#[derive(Debug)]
pub struct Comparison {
    table: FlowTable<Flow>,
    techniques: Vec<Technique>,
    epoch_ns: u64,
    /// See [`MeterSettings::early`].
    early: bool,
    seed: u64,
    counts: FlowMeterCounts,
}

#[derive(Debug)]
struct Flow {
    lanes: Vec<(Follower, Epochs)>,
    /// The last packet of the client, and of the server.
    last: [Option<Segment>; 2],
    /// Start of the epoch of the last packet.
    epoch_ns: u64,
    /// Index of the first packet.
    born: u64,
}

impl Comparison {
    /// A comparison that has seen nothing. `sampling_seed` decides, with a flow's
    /// first packet, which packets a sampler picks.
    pub fn new(settings: MeterSettings<0>, techniques: Vec<Technique>, sampling_seed: u64) -> Self {
        Self {
            table: FlowTable::new(settings.direction, settings.max_flows, settings.seed),
            techniques,
            epoch_ns: settings.epoch_ns.max(1),
            early: settings.early,
            seed: sampling_seed,
            counts: FlowMeterCounts::default(),
        }
    }
}

impl Measuring for Comparison {
    fn observe_all(&mut self, packets: &Batch, sink: &mut impl Sink) {
        for (index, seen) in packets.iter() {
            self.observe(index, &seen, sink);
        }
    }

    fn finish(&mut self, sink: &mut impl Sink) {
        let mut flows: Vec<_> = self.table.drain().collect();
        flows.sort_by_key(|old| old.value.born);
        for old in flows {
            sink.ending(old.value.born);
            old.value.finish(&old.flow, self.epoch_ns, sink);
        }
    }

    fn counts(&self) -> FlowMeterCounts {
        FlowMeterCounts {
            evicted: self.table.evictions(),
            ..self.counts
        }
    }
}

impl Comparison {
    /// Takes the packet with number `index` of the capture.
    pub fn observe(&mut self, index: u64, seen: &Observation, sink: &mut impl Sink) {
        sink.packet(index);
        let Self {
            table,
            techniques,
            epoch_ns,
            early,
            seed,
            counts,
        } = self;
        let (epoch_ns, t_ns) = (*epoch_ns, seen.packet.t_ns);
        let found = table.look_up(
            &seen.key,
            seen.hint,
            t_ns,
            || {
                counts.flows += 1;
                Flow::new(techniques, index, t_ns - t_ns % epoch_ns, *seed)
            },
            |old: Evicted<Flow>| old.value.finish(&old.flow, epoch_ns, sink),
        );
        let from = match found.sender {
            Sender::Client => Side::Client,
            Sender::Server => Side::Server,
        };
        match from {
            Side::Client => counts.from_clients += 1,
            Side::Server => counts.from_servers += 1,
        }
        let segment = Segment {
            from,
            packet: seen.packet,
            tsval: seen.tsval,
            first_byte: seen.first_byte,
        };
        let flow = found.name.flow();
        found.value.packet(&flow, &segment, epoch_ns, sink);
        if *early && from == Side::Client && segment.packet.ends() {
            found.value.hand_out(&flow, epoch_ns, u64::MAX, sink);
        }
    }

    /// Hands out the epochs that began before `until_ns`, of flows whose clients have been
    /// silent since. A response that comes later yet is a row of its own.
    pub fn hand_out(&mut self, until_ns: u64, sink: &mut impl Sink) {
        let epoch_ns = self.epoch_ns;
        self.table.each(|key, flow| {
            if flow.epoch_ns < until_ns {
                flow.hand_out(&key, epoch_ns, until_ns, sink);
            }
        });
    }
}

impl Flow {
    fn new(techniques: &[Technique], born: u64, epoch_ns: u64, seed: u64) -> Self {
        let lane = |technique| (Follower::new(technique, seed ^ born), Epochs::default());
        Self {
            lanes: techniques.iter().map(lane).collect(),
            last: [None; 2],
            epoch_ns,
            born,
        }
    }

    fn packet(&mut self, flow: &FlowKey, segment: &Segment, epoch_ns: u64, sink: &mut impl Sink) {
        let t_ns = segment.packet.t_ns;
        // A little jitter at the edge of an epoch does not end it a second time.
        let since = t_ns.wrapping_sub(self.epoch_ns.saturating_sub(epoch_ns));
        // Estimators of the request direction have their epochs end with its
        // packets, as when they run alone.
        let ends = segment.from == Side::Client && since >= epoch_ns.saturating_mul(2);
        let last = &mut self.last[usize::from(segment.from == Side::Server)];
        let copied = last
            .replace(*segment)
            .is_some_and(|last| is_copy(segment, &last));
        for (method, (follower, epochs)) in self.lanes.iter_mut().enumerate() {
            if ends {
                add(flow, method, epochs, &follower.end_epoch(), epoch_ns, sink);
            }
            // The others tell by themselves what was sent before.
            if copied && !matches!(follower, Follower::Request(_)) {
                continue;
            }
            let samples = follower.packet(segment);
            add(flow, method, epochs, &samples, epoch_ns, sink);
        }
        if ends {
            self.epoch_ns = t_ns - t_ns % epoch_ns;
        }
    }

    /// Gives `sink` what is known of the epochs that began before `until_ns`.
    fn hand_out(&mut self, flow: &FlowKey, epoch_ns: u64, until_ns: u64, sink: &mut impl Sink) {
        for (method, (follower, epochs)) in self.lanes.iter_mut().enumerate() {
            add(flow, method, epochs, &follower.end_epoch(), epoch_ns, sink);
            epochs.hand_out(flow, method, until_ns, sink);
        }
    }

    fn finish(self, flow: &FlowKey, epoch_ns: u64, sink: &mut impl Sink) {
        for (method, (mut follower, mut epochs)) in self.lanes.into_iter().enumerate() {
            let samples = follower.finish();
            add(flow, method, &mut epochs, &samples, epoch_ns, sink);
            epochs.hand_out(flow, method, u64::MAX, sink);
        }
    }
}

/// A packet is in a capture twice where it passed twice: before and behind a balancer, or on a
/// bridge and its ports.
const COPIED_NS: u64 = 1_000_000;

/// Whether a segment of TCP is the `last` one of its side once more, and was not sent again.
fn is_copy(segment: &Segment, last: &Segment) -> bool {
    let (new, old) = (&segment.packet, &last.packet);
    let same = Segment {
        packet: Packet {
            t_ns: old.t_ns,
            ..*new
        },
        ..*segment
    };
    segment.is_tcp() && same == *last && new.t_ns.saturating_sub(old.t_ns) < COPIED_NS
}

fn add(
    flow: &FlowKey,
    method: usize,
    epochs: &mut Epochs,
    samples: &Samples,
    epoch_ns: u64,
    sink: &mut impl Sink,
) {
    for sample in samples.iter() {
        sink.sample(flow, method as u8, sample);
        if let Some((epoch_ns, tally)) = epochs.add(sample, epoch_ns) {
            put_row(flow, method, epoch_ns, tally, sink);
        }
    }
}
