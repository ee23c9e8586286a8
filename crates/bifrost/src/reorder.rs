// SPDX-License-Identifier: Apache-2.0

//! The receiving side of flows: chunks become frames, frames wait until it is their
//! turn. Only descriptors are kept and ordered; the payload stays where the network
//! put it.
//!
//! A flow never waits for ever. It goes on without a frame when the sender says that
//! it has given it up (`behind`), when later frames do not fit the flow's window, and
//! when the oldest gap has been open for the hold time.

mod arrive;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::refused::{Counters, Refused};
use crate::types::{Release, Span};
use crate::wire::{FIRST_SEQUENCE, MAX_CHUNKS};

const NONE: u32 = u32::MAX;

/// A frame on its way to being whole.
#[derive(Clone, Debug)]
struct Assembly {
    spans: [Span; MAX_CHUNKS],
    got: u64,
    bytes: u32,
    len: u32,
    size: u16,
    chunks: u8,
    /// The vNIC had no room for it; it is asked for again until it is whole.
    refused: bool,
}

impl Assembly {
    fn is_complete(&self) -> bool {
        self.got == u64::MAX >> (MAX_CHUNKS - usize::from(self.chunks))
    }
}

#[derive(Clone, Debug)]
struct FlowReceive {
    /// The frame whose turn it is.
    next: u32,
    /// Frames before this one are not waited for.
    skip_to: u32,
    /// When the frame whose turn it is began to be waited for.
    hole_ns: u64,
    /// From `next` on, an assembly or [`NONE`].
    held: VecDeque<u32>,
    ready: bool,
    timed: bool,
    dirty: bool,
}

impl FlowReceive {
    fn new() -> FlowReceive {
        FlowReceive {
            next: FIRST_SEQUENCE,
            skip_to: FIRST_SEQUENCE,
            hole_ns: 0,
            held: VecDeque::new(),
            ready: false,
            timed: false,
            dirty: false,
        }
    }

    fn is_before(&self, sequence: u32) -> bool {
        (self.next.wrapping_sub(sequence) as i32) < 0
    }
}

/// Counts that this module changes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    pub chunks: u32,
    pub bytes: u64,
    pub peak: u32,
    pub reordered: u64,
    pub skipped: u64,
}

/// A frame that the vNIC refused.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    flow: u16,
    sequence: u32,
    report_ns: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Reorder {
    flows: Vec<FlowReceive>,
    assemblies: Vec<Assembly>,
    free: Vec<u32>,
    /// Flows whose next frame may be given out.
    ready: VecDeque<u16>,
    /// Deadlines of gaps, one entry for each flow that waits.
    gaps: BinaryHeap<Reverse<(u64, u16)>>,
    /// Flows whose watermark has moved since it was last reported.
    dirty: VecDeque<u16>,
    refusals: VecDeque<Refusal>,
    pub held: Held,
}

/// Bounds and times that come from the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub chunks: u32,
    pub bytes: u64,
    pub hold_ns: u64,
    pub give_up_ns: u64,
}

/// A refusal is reported this long after it, so that the vNIC can make room, and again
/// after `REPEAT_NS` while the frame has not come.
const REPORT_NS: u64 = 500_000;
const REPEAT_NS: u64 = 4_000_000;
/// Places that a flow without frames keeps its memory for.
const IDLE_PLACES: usize = 32;

impl Reorder {
    pub(crate) fn new() -> Reorder {
        Reorder {
            flows: Vec::new(),
            assemblies: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            gaps: BinaryHeap::new(),
            dirty: VecDeque::new(),
            refusals: VecDeque::new(),
            held: Held::default(),
        }
    }

    /// Forgets everything, for a conversation that ends.
    pub(crate) fn clear(&mut self, mut released: impl FnMut(Release)) {
        for flow in &self.flows {
            for &at in flow.held.iter().filter(|at| **at != NONE) {
                let assembly = &self.assemblies[at as usize];
                bits(assembly.got).for_each(|index| released(one(assembly.spans[index])));
            }
        }
        let held = Held {
            chunks: 0,
            bytes: 0,
            ..self.held
        };
        *self = Reorder::new();
        self.held = held;
    }

    /// Drops the chunks of an assembly.
    fn empty(&mut self, at: u32, reason: Refused, drops: &mut Drops<'_>) {
        let assembly = &mut self.assemblies[at as usize];
        for index in bits(assembly.got) {
            drops.released.push(one(assembly.spans[index]));
        }
        let chunks = assembly.got.count_ones();
        drops.counters.add(reason, u64::from(chunks));
        self.held.chunks -= chunks;
        self.held.bytes -= u64::from(assembly.bytes);
        (assembly.got, assembly.bytes) = (0, 0);
    }

    fn make_ready(&mut self, flow: u16) {
        let state = &mut self.flows[usize::from(flow)];
        if !state.ready {
            state.ready = true;
            self.ready.push_back(flow);
        }
    }

    /// The next frame in the order of its flow: flow, sequence, bytes, pieces.
    pub(crate) fn next(&mut self, drops: &mut Drops<'_>) -> Option<(u16, u32, u32, u32)> {
        while let Some(&index) = self.ready.front() {
            if let Some((sequence, at)) = self.next_of(index, drops) {
                return Some((index, sequence, self.assemblies[at as usize].len, at));
            }
            self.flows[usize::from(index)].ready = false;
            self.ready.pop_front();
        }
        None
    }

    fn next_of(&mut self, index: u16, drops: &mut Drops<'_>) -> Option<(u32, u32)> {
        loop {
            let flow = &mut self.flows[usize::from(index)];
            let at = flow.held.front().copied();
            if let Some(at) = at.filter(|at| *at != NONE)
                && self.assemblies[at as usize].is_complete()
            {
                return Some((flow.next, at));
            }
            if !flow.is_before(flow.skip_to) {
                return None;
            }
            self.held.skipped += 1;
            if at.is_none() {
                // Nothing is held: all that is missing is skipped at once.
                let missing = flow.skip_to.wrapping_sub(flow.next);
                self.held.skipped += u64::from(missing - 1);
                flow.next = flow.skip_to;
                self.mark_dirty(index);
                return None;
            }
            if let Some(at) = at.filter(|at| *at != NONE) {
                self.empty(at, Refused::Skipped, drops);
                self.free.push(at);
            }
            self.advance(index);
        }
    }

    fn advance(&mut self, index: u16) {
        let flow = &mut self.flows[usize::from(index)];
        flow.held.pop_front();
        flow.next = flow.next.wrapping_add(1);
        self.mark_dirty(index);
    }

    fn mark_dirty(&mut self, index: u16) {
        let flow = &mut self.flows[usize::from(index)];
        if !flow.dirty {
            flow.dirty = true;
            self.dirty.push_back(index);
        }
    }

    /// The pieces of a frame that [`Reorder::next`] named.
    pub(crate) fn spans(&self, at: u32) -> &[Span] {
        let assembly = &self.assemblies[at as usize];
        &assembly.spans[..usize::from(assembly.chunks)]
    }

    /// The frame that [`Reorder::next`] named is with the caller now.
    pub(crate) fn delivered(&mut self, now_ns: u64, index: u16, at: u32) {
        self.hand_over(at);
        self.free.push(at);
        self.advance(index);
        self.flows[usize::from(index)].hole_ns = now_ns;
    }

    /// The vNIC has dropped it.
    pub(crate) fn refused(&mut self, now_ns: u64, index: u16, at: u32, drops: &mut Drops<'_>) {
        let chunks = self.hand_over(at);
        drops.counters.add(Refused::VnicFull, u64::from(chunks));
        self.assemblies[at as usize].refused = true;
        let flow = &mut self.flows[usize::from(index)];
        flow.hole_ns = now_ns;
        // One for each flow: its next frame is the only one that it can refuse.
        self.refusals.retain(|refusal| refusal.flow != index);
        self.refusals.push_back(Refusal {
            flow: index,
            sequence: flow.next,
            report_ns: now_ns + REPORT_NS,
        });
    }

    fn hand_over(&mut self, at: u32) -> u32 {
        let assembly = &mut self.assemblies[at as usize];
        let chunks = assembly.got.count_ones();
        self.held.chunks -= chunks;
        self.held.bytes -= u64::from(assembly.bytes);
        (assembly.got, assembly.bytes) = (0, 0);
        chunks
    }

    /// When the next gap is to be looked at.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.gaps.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    /// Lets flows whose gap has been open too long go on.
    pub(crate) fn handle_timeout(&mut self, now_ns: u64, bounds: &Bounds) {
        while let Some(&Reverse((at_ns, index))) = self.gaps.peek()
            && at_ns <= now_ns
        {
            self.gaps.pop();
            let flow = &mut self.flows[usize::from(index)];
            if flow.held.is_empty() {
                flow.timed = false;
                // A wide gap once is no reason to keep its memory for each flow for ever.
                flow.held.shrink_to(IDLE_PLACES);
                continue;
            }
            let due_ns = flow.hole_ns + bounds.hold_ns;
            let mut again_ns = due_ns;
            if due_ns <= now_ns {
                let complete = flow
                    .held
                    .iter()
                    .position(|at| *at != NONE && self.assemblies[*at as usize].is_complete());
                // Without a whole frame to go on to, nobody waits: pieces are kept
                // until their sender must have given them up.
                let hopeless = now_ns >= due_ns + bounds.give_up_ns;
                if let Some(skip) = complete.or(hopeless.then_some(flow.held.len())) {
                    flow.skip_to = flow.next.wrapping_add(skip as u32);
                    flow.hole_ns = now_ns;
                    self.make_ready(index);
                }
                again_ns = now_ns + bounds.hold_ns;
            }
            self.gaps.push(Reverse((again_ns, index)));
        }
    }

    /// Reports that an acknowledgement would carry now.
    pub(crate) fn reports_due(&self, now_ns: u64) -> usize {
        let due = |refusal: &&Refusal| refusal.report_ns <= now_ns;
        self.dirty.len() + self.refusals.iter().take_while(due).count()
    }

    /// A flow whose watermark has moved, for a report.
    pub(crate) fn next_watermark(&mut self) -> Option<(u16, u32)> {
        let index = self.dirty.pop_front()?;
        let flow = &mut self.flows[usize::from(index)];
        flow.dirty = false;
        Some((index, flow.next))
    }

    /// When the next refusal is to be reported.
    pub(crate) fn refusal_deadline(&self) -> Option<u64> {
        self.refusals.front().map(|refusal| refusal.report_ns)
    }

    /// A frame to ask for again.
    pub(crate) fn next_refusal(&mut self, now_ns: u64) -> Option<(u16, u32)> {
        while let Some(refusal) = self.refusals.front().copied()
            && refusal.report_ns <= now_ns
        {
            self.refusals.pop_front();
            let flow = &self.flows[usize::from(refusal.flow)];
            let waits = flow.next == refusal.sequence
                && flow
                    .held
                    .front()
                    .is_some_and(|at| *at != NONE && self.assemblies[*at as usize].refused);
            if waits {
                self.refusals.push_back(Refusal {
                    report_ns: now_ns + REPEAT_NS,
                    ..refusal
                });
                return Some((refusal.flow, refusal.sequence));
            }
        }
        None
    }
}

/// Where dropped chunks go.
pub(crate) struct Drops<'a> {
    pub counters: &'a mut Counters,
    pub released: &'a mut crate::released::Released,
}

fn one(span: Span) -> Release {
    Release {
        slot: span.slot,
        count: 1,
    }
}

fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (word != 0).then(|| {
            let bit = word.trailing_zeros() as usize;
            word &= word - 1;
            bit
        })
    })
}
