// SPDX-License-Identifier: Apache-2.0
//! The offline engine on live packets: an AF_PACKET socket, every technique, and
//! filter expressions in the kernel.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

use causeway_core::estimate::{Sample, Technique};
use causeway_core::flow::{
    Comparison, FlowEstimate, FlowKey, Headers, Measuring, MeterSettings, Observation, Sink,
};
use causeway_core::wire::{self, SkipCounts};
use causeway_netio::{Capture, Frame, SNAP_LEN, filter};

use super::super::args::{Filter, MeasureArgs};
use super::super::collect::Found;
use super::super::rows::Style;
use super::super::totals::Totals;
use super::{Counters, GRACE_NS, Source, State, now_ns};

/// Room for packets that wait to be looked at: some tenths of a second at a million
/// packets per second.
const RING_BYTES: usize = 64 << 20;

/// How often epochs are looked for that are over.
const LOOK_NS: u64 = 1_000_000_000;

/// A socket and the estimators.
pub(super) struct Socket {
    capture: Capture,
    meter: Comparison,
    found: Found,
    epoch_ns: u64,
    /// When epochs that are over were last looked for.
    looked_ns: u64,
    headers: Headers,
    filter: Filter,
    index: u64,
    filtered: u64,
    skipped: SkipCounts,
}

impl Socket {
    /// Opens the socket; packets arrive from now on.
    pub(super) fn open(
        args: &MeasureArgs,
        interface: &str,
        techniques: &[Technique],
        style: &Style,
    ) -> anyhow::Result<Self> {
        let capture = Capture::open(interface, RING_BYTES)?;
        if !args.expression.is_empty() {
            let expression = args.expression.join(" ");
            anyhow::ensure!(
                !filter::asks_for_vlan(&expression),
                "`vlan` would match nothing on {interface}, as Linux takes the tags off before: \
                 measure on the interface of the VLAN (such as -i {interface}.5), or pipe it in by \
                 `tcpdump -i {interface} -w - {expression} | causeway measure -r -`"
            );
            capture.filter(&filter::compile(&expression, capture.link(), SNAP_LEN)?)?;
        }
        let seed = RandomState::new().hash_one(0u8);
        let settings = MeterSettings {
            epoch_ns: args.epoch_ns(),
            methods: [],
            direction: args.direction(),
            max_flows: args.max_flows(),
            seed,
            early: true,
        };
        capture.start()?;
        Ok(Self {
            capture,
            meter: Comparison::new(settings, techniques.to_vec(), seed),
            found: Found::lines_alone(style, args.max_flows() as usize, seed),
            epoch_ns: args.epoch_ns(),
            looked_ns: 0,
            headers: args.headers(),
            filter: args.filter(),
            index: 0,
            filtered: 0,
            skipped: SkipCounts::default(),
        })
    }
}

/// Samples go into the totals at once, rows into lines.
struct Parted<'a> {
    found: &'a mut Found,
    totals: &'a mut Totals,
}

impl Sink for Parted<'_> {
    fn sample(&mut self, flow: &FlowKey, method: u8, sample: &Sample) {
        self.totals.sample(flow, method, sample);
        self.found.sample(flow, method, sample);
    }

    fn row(&mut self, row: &FlowEstimate) {
        self.found.row(row);
    }
}

impl Source for Socket {
    fn poll(&mut self, timeout: Duration, state: &mut State) -> anyhow::Result<()> {
        let Self {
            capture,
            meter,
            found,
            epoch_ns,
            looked_ns,
            headers,
            filter,
            index,
            filtered,
            skipped,
        } = self;
        let link = capture.link();
        let totals = &mut state.totals;
        capture.poll(timeout, |frame: Frame<'_>| {
            let datagram = wire::parse(link, frame.data, frame.wire_len);
            match datagram.and_then(|datagram| Observation::new(&datagram, frame.time_ns, *headers))
            {
                Ok(seen) if filter.passes(&seen.key) => {
                    let mut sink = Parted {
                        found: &mut *found,
                        totals: &mut *totals,
                    };
                    meter.observe(*index, &seen, &mut sink);
                    *index += 1;
                }
                Ok(_) => *filtered += 1,
                Err(skip) => skipped.add(skip),
            }
        })?;
        // Also when nothing comes. A clock that was put back is not waited for.
        let now_ns = now_ns();
        if now_ns.abs_diff(*looked_ns) >= LOOK_NS {
            *looked_ns = now_ns;
            let until_ns = now_ns.saturating_sub(epoch_ns.saturating_add(GRACE_NS));
            meter.hand_out(until_ns, &mut Parted { found, totals });
        }
        found
            .lines
            .drain(..)
            .try_for_each(|(_, line)| state.line(line))?;
        Ok(())
    }

    /// They are up to date: samples went there as they came.
    fn distributions(&mut self, _: &mut Totals) -> anyhow::Result<()> {
        Ok(())
    }

    fn finish(&mut self, state: &mut State) -> anyhow::Result<()> {
        // What the ring still holds belongs to the time that was asked for.
        let polled = self.poll(Duration::ZERO, state);
        let mut sink = Parted {
            found: &mut self.found,
            totals: &mut state.totals,
        };
        self.meter.finish(&mut sink);
        let lines = std::mem::take(&mut self.found.lines);
        lines
            .into_iter()
            .try_for_each(|(_, line)| state.line(line))?;
        polled
    }

    fn counters(&mut self) -> anyhow::Result<Counters> {
        let counts = self.meter.counts();
        let mut packets = vec![
            ("from clients".to_owned(), counts.from_clients),
            ("from servers".to_owned(), counts.from_servers),
            ("filtered out".to_owned(), self.filtered),
        ];
        let skipped = self.skipped.nonzero();
        packets.extend(skipped.map(|(skip, count)| (skip.name().to_owned(), count)));
        Ok(Counters {
            packets,
            lost: Some((
                self.capture.counts()?.dropped,
                "packets were dropped by the kernel: they came faster than they could be looked at",
            )),
            evicted: Some((
                counts.evicted,
                "flows were ended early to make room: raise --max-flows",
            )),
        })
    }
}
