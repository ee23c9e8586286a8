// SPDX-License-Identifier: Apache-2.0

//! The order of received flows: frames wait until it is their turn.
//!
//! A flow never waits for ever. It goes on without a frame when the sender says that
//! it has abandoned it (`behind`), when later frames do not fit the flow's window, and
//! when the oldest gap has been open for the reorder timeout.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::drop_reason::DropReason;
use crate::metrics::TunnelMetrics;
use crate::reassembly::{AssemblyRef, Reassembly};
use crate::release_queue::ReleaseQueue;
use crate::types::{Delivery, DeliveryToken, DeliveryVerdict, Span};
use crate::wire::{DataHeader, FIRST_SEQUENCE, FLOW_WINDOW, FlowReport, FlowReportKind};

/// A frame that the vNIC dropped is reported this long after it, so that the vNIC can make
/// room, and again after `REPEAT_NS` while the frame has not come.
const REPORT_NS: u64 = 500_000;
const REPEAT_NS: u64 = 4_000_000;
/// Frames that a flow with nothing held keeps memory for.
const IDLE_CAPACITY: usize = 32;

#[derive(Clone, Debug)]
struct ReceiveFlow {
    /// The frame whose turn it is.
    next: u32,
    /// Frames before this one are not waited for.
    skip_to: u32,
    /// When the frame whose turn it is began to be waited for.
    gap_ns: u64,
    /// From `next` on.
    held: VecDeque<Option<AssemblyRef>>,
    /// Whether the flow stands in `ready`, `gaps` and `dirty`.
    ready: bool,
    timed: bool,
    dirty: bool,
}

impl ReceiveFlow {
    fn new() -> ReceiveFlow {
        ReceiveFlow {
            next: FIRST_SEQUENCE,
            skip_to: FIRST_SEQUENCE,
            gap_ns: 0,
            held: VecDeque::new(),
            ready: false,
            timed: false,
            dirty: false,
        }
    }

    fn is_before(&self, sequence: u32) -> bool {
        (self.next.wrapping_sub(sequence) as i32) < 0
    }

    /// The frame whose turn it is, if something of it has come.
    fn first(&self) -> Option<AssemblyRef> {
        self.held.front().copied().flatten()
    }

    /// On to the next frame. What is skipped never lies behind it: in 2^31 frames it would
    /// come to lie ahead.
    fn advance(&mut self) {
        self.held.pop_front();
        self.next = self.next.wrapping_add(1);
        self.skip_to(self.next);
    }

    /// Frames before `sequence` are not waited for; whether that is news.
    fn skip_to(&mut self, sequence: u32) -> bool {
        let later = (self.skip_to.wrapping_sub(sequence) as i32) < 0;
        if later {
            self.skip_to = sequence;
        }
        later
    }
}

/// A frame that the vNIC dropped.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    flow: u16,
    sequence: u32,
    report_ns: u64,
}

/// A delivery that waits for its verdict.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    token: u64,
    flow: u16,
    at: AssemblyRef,
    len: u32,
}

/// Bounds and times that come from the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReorderLimits {
    pub chunks: u32,
    pub bytes: u64,
    pub timeout_ns: u64,
    pub frame_lifetime_ns: u64,
    /// Only frames whose turn it is may be held.
    pub only_first: bool,
}

impl ReorderLimits {
    /// Whether more may not be held. The chunk whose turn it is may use a reserve, or the
    /// flow could wait for a chunk that finds no room because the flow waits.
    fn is_exceeded(&self, held: (u32, u64), more: (u32, u32), first: bool) -> bool {
        let (chunks, bytes) = if first {
            (self.chunks, self.bytes)
        } else {
            (self.chunks - self.chunks / 4, self.bytes - self.bytes / 4)
        };
        let waits = self.only_first && !first;
        waits || held.0 + more.0 > chunks || held.1 + u64::from(more.1) > bytes
    }
}

/// Frames of all flows that have not been delivered.
#[derive(Debug, Default)]
pub(crate) struct Reorder {
    flows: Vec<ReceiveFlow>,
    frames: Reassembly,
    /// Flows whose next frame may be given out.
    ready: VecDeque<u16>,
    /// Deadlines of gaps, one entry for each flow that waits.
    gaps: BinaryHeap<Reverse<(u64, u16)>>,
    /// Flows whose watermark has moved since it was last reported.
    dirty: VecDeque<u16>,
    /// In the order in which they are to be reported.
    refusals: VecDeque<Refusal>,
    outstanding: Option<Outstanding>,
    deliveries: u64,
    reordered: u64,
    skipped: u64,
}

impl Reorder {
    /// Forgets everything, for a session that ends.
    pub(crate) fn clear(&mut self, released: &mut ReleaseQueue) {
        for flow in &self.flows {
            for at in flow.held.iter().flatten() {
                self.frames.release(*at, released);
            }
        }
        let chunks = self.frames.buffered().chunks.into();
        released.drops.add(DropReason::PeerRestart, chunks);
        self.frames.clear();
        *self = Reorder {
            frames: std::mem::take(&mut self.frames),
            deliveries: self.deliveries,
            reordered: self.reordered,
            skipped: self.skipped,
            ..Reorder::default()
        };
    }

    /// Takes `count` chunks of a frame that follow one another, `data` being the first's
    /// header, with pieces `stride` bytes apart. Header and lengths have been checked.
    ///
    /// # Errors
    /// None of them is kept. [`DropReason::FlowWindow`] and [`DropReason::MemoryCap`] mean
    /// that a chunk should be retransmitted; with all others the sender may stop. Several are to
    /// be given one by one then.
    pub(crate) fn arrive(
        &mut self,
        now_ns: u64,
        data: &DataHeader,
        (count, stride): (u8, u32),
        span: Span,
        limits: &ReorderLimits,
        released: &mut ReleaseQueue,
    ) -> Result<(), DropReason> {
        self.make_flow(data.flow);
        self.note_abandoned(data);
        let flow = &mut self.flows[usize::from(data.flow)];
        let ahead = data.sequence.wrapping_sub(flow.next);
        if (ahead as i32) < 0 {
            return Err(DropReason::Late);
        }
        if ahead >= FLOW_WINDOW {
            if count > 1 {
                return Err(DropReason::FlowWindow);
            }
            // What lies a window back is not coming any more.
            flow.skip_to(data.sequence.wrapping_sub(FLOW_WINDOW - 1));
            self.make_ready(data.flow);
            return Err(DropReason::FlowWindow);
        }
        let (index, size) = (data.index(), usize::from(data.size));
        let end = data.frame_len().min((index + usize::from(count)) * size);
        let bytes = (end - index * size) as u32;
        let (first, held) = (ahead == 0, self.frames.buffered());
        if limits.is_exceeded((held.chunks, held.bytes), (count.into(), bytes), first) {
            return Err(DropReason::MemoryCap);
        }
        let at = self.assembly(now_ns, data, ahead as usize, limits, released)?;
        match self.frames.add(at, (index, count), (span, stride), bytes) {
            None => return Err(DropReason::Redundant),
            Some(true) if first => self.make_ready(data.flow),
            Some(complete) => self.reordered += u64::from(complete),
        }
        Ok(())
    }

    fn make_flow(&mut self, flow: u16) {
        let len = usize::from(flow) + 1;
        if self.flows.len() < len {
            self.flows
                .resize(len.next_power_of_two(), ReceiveFlow::new());
        }
    }

    /// What the sender no longer has will not come.
    fn note_abandoned(&mut self, data: &DataHeader) {
        let flow = &mut self.flows[usize::from(data.flow)];
        let oldest = data.sequence.wrapping_sub(u32::from(data.behind));
        if data.behind < u16::MAX && flow.is_before(oldest) && flow.skip_to(oldest) {
            self.make_ready(data.flow);
        }
    }

    /// The assembly of a chunk's frame, begun if there is none.
    fn assembly(
        &mut self,
        now_ns: u64,
        data: &DataHeader,
        ahead: usize,
        limits: &ReorderLimits,
        released: &mut ReleaseQueue,
    ) -> Result<AssemblyRef, DropReason> {
        let flow = &mut self.flows[usize::from(data.flow)];
        if flow.held.len() <= ahead {
            flow.held.resize(ahead + 1, None);
        }
        if let Some(at) = flow.held[ahead] {
            self.frames.admit(at, data, released)?;
            return Ok(at);
        }
        if flow.held.len() == ahead + 1 && flow.held.iter().all(Option::is_none) {
            flow.gap_ns = now_ns;
        }
        if !flow.timed {
            flow.timed = true;
            let due_ns = now_ns + limits.timeout_ns;
            self.gaps.push(Reverse((due_ns, data.flow)));
        }
        let at = self.frames.begin(data);
        flow.held[ahead] = Some(at);
        Ok(at)
    }

    fn make_ready(&mut self, flow: u16) {
        let state = &mut self.flows[usize::from(flow)];
        if !state.ready {
            state.ready = true;
            self.ready.push_back(flow);
        }
    }

    /// The next frame in the order of its flow.
    pub(crate) fn poll_deliver(&mut self, released: &mut ReleaseQueue) -> Option<Delivery<'_>> {
        let (flow, at) = self.next_frame(released)?;
        let len = self.frames.len(at);
        self.deliveries += 1;
        self.outstanding = Some(Outstanding {
            token: self.deliveries,
            flow,
            at,
            len,
        });
        Some(Delivery {
            token: DeliveryToken(self.deliveries),
            flow,
            len,
            spans: self.frames.spans(at),
        })
    }

    /// The delivery that waits for its verdict.
    pub(crate) fn outstanding(&self) -> Option<DeliveryToken> {
        self.outstanding.map(|one| DeliveryToken(one.token))
    }

    /// The verdict on the delivery that waits for it.
    pub(crate) fn on_verdict(
        &mut self,
        now_ns: u64,
        token: DeliveryToken,
        verdict: DeliveryVerdict,
        released: &mut ReleaseQueue,
        metrics: &mut TunnelMetrics,
    ) {
        let Some(one) = self.outstanding.take_if(|one| one.token == token.0) else {
            return;
        };
        match verdict {
            DeliveryVerdict::Ok => {
                metrics.frames_out += 1;
                metrics.frame_bytes_out += u64::from(one.len);
                self.frames.finish(one.at);
                self.advance(one.flow);
                self.flows[usize::from(one.flow)].gap_ns = now_ns;
            }
            DeliveryVerdict::Full => {
                metrics.vnic_full += 1;
                let chunks = self.frames.refuse(one.at);
                let reason = DropReason::VnicFull;
                released.drops.add(reason, u64::from(chunks));
                self.note_refusal(now_ns, one.flow);
            }
        }
    }

    fn note_refusal(&mut self, now_ns: u64, index: u16) {
        let flow = &mut self.flows[usize::from(index)];
        flow.gap_ns = now_ns;
        // One for each flow: its next frame is the only one that the vNIC can drop.
        self.refusals.retain(|refusal| refusal.flow != index);
        let sequence = flow.next;
        self.plan_report(Refusal {
            flow: index,
            sequence,
            report_ns: now_ns + REPORT_NS,
        });
    }

    /// A first report comes sooner than one that is repeated.
    fn plan_report(&mut self, refusal: Refusal) {
        let earlier = |other: &Refusal| other.report_ns <= refusal.report_ns;
        let place = self.refusals.partition_point(earlier);
        self.refusals.insert(place, refusal);
    }

    fn next_frame(&mut self, released: &mut ReleaseQueue) -> Option<(u16, AssemblyRef)> {
        while let Some(&index) = self.ready.front() {
            if let Some(at) = self.next_of(index, released) {
                return Some((index, at));
            }
            self.flows[usize::from(index)].ready = false;
            self.ready.pop_front();
        }
        None
    }

    fn next_of(&mut self, index: u16, released: &mut ReleaseQueue) -> Option<AssemblyRef> {
        loop {
            let flow = &mut self.flows[usize::from(index)];
            let first = flow.first();
            if let Some(at) = first.filter(|at| self.frames.is_complete(*at)) {
                return Some(at);
            }
            if !flow.is_before(flow.skip_to) {
                return None;
            }
            self.skipped += 1;
            if flow.held.is_empty() {
                // Nothing is held: all that is missing is skipped at once.
                let missing = flow.skip_to.wrapping_sub(flow.next);
                self.skipped += u64::from(missing - 1);
                flow.next = flow.skip_to;
                self.mark_dirty(index);
                return None;
            }
            if let Some(at) = first {
                self.frames.discard(at, DropReason::Skipped, released);
            }
            self.advance(index);
        }
    }

    fn advance(&mut self, index: u16) {
        self.flows[usize::from(index)].advance();
        self.mark_dirty(index);
    }

    fn mark_dirty(&mut self, index: u16) {
        let flow = &mut self.flows[usize::from(index)];
        if !flow.dirty {
            flow.dirty = true;
            self.dirty.push_back(index);
        }
    }

    /// When [`Reorder::handle_timeout`] has something to do.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.gaps.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    /// Lets flows whose gap has been open too long go on.
    pub(crate) fn handle_timeout(&mut self, now_ns: u64, limits: &ReorderLimits) {
        while let Some(&Reverse((at_ns, index))) = self.gaps.peek()
            && at_ns <= now_ns
        {
            self.gaps.pop();
            let flow = &mut self.flows[usize::from(index)];
            if flow.held.is_empty() {
                flow.timed = false;
                // One wide gap does not justify keeping its memory for each flow for ever.
                flow.held.shrink_to(IDLE_CAPACITY);
                continue;
            }
            let due_ns = flow.gap_ns + limits.timeout_ns;
            let mut next_ns = due_ns;
            if due_ns <= now_ns {
                let is_complete =
                    |at: &Option<AssemblyRef>| at.is_some_and(|at| self.frames.is_complete(at));
                let complete = flow.held.iter().position(is_complete);
                // Without a whole frame to go on to, nothing waits: pieces are kept
                // until their sender must have abandoned them.
                let hopeless = now_ns >= due_ns + limits.frame_lifetime_ns;
                if let Some(skip) = complete.or(hopeless.then_some(flow.held.len())) {
                    flow.skip_to = flow.next.wrapping_add(skip as u32);
                    flow.gap_ns = now_ns;
                    self.make_ready(index);
                }
                next_ns = now_ns + limits.timeout_ns;
            }
            self.gaps.push(Reverse((next_ns, index)));
        }
    }

    /// Reports that an acknowledgement would carry now.
    pub(crate) fn reports_due(&self, now_ns: u64) -> usize {
        let due = |refusal: &&Refusal| refusal.report_ns <= now_ns;
        self.dirty.len() + self.refusals.iter().take_while(due).count()
    }

    /// When a frame that the vNIC dropped is to be reported.
    pub(crate) fn report_deadline(&self) -> Option<u64> {
        self.refusals.front().map(|refusal| refusal.report_ns)
    }

    /// The next report for an acknowledgement; it counts as sent.
    pub(crate) fn next_report(&mut self, now_ns: u64) -> Option<FlowReport> {
        let gap = self.next_refusal(now_ns);
        gap.or_else(|| self.next_watermark())
    }

    /// A flow whose watermark has moved.
    fn next_watermark(&mut self) -> Option<FlowReport> {
        let index = self.dirty.pop_front()?;
        let flow = &mut self.flows[usize::from(index)];
        flow.dirty = false;
        Some(FlowReport {
            kind: FlowReportKind::Delivered,
            flow: index,
            sequence: flow.next,
        })
    }

    /// A frame that is to be retransmitted.
    fn next_refusal(&mut self, now_ns: u64) -> Option<FlowReport> {
        while let Some(refusal) = self.refusals.front().copied()
            && refusal.report_ns <= now_ns
        {
            self.refusals.pop_front();
            let flow = &self.flows[usize::from(refusal.flow)];
            let is_refused = |at| self.frames.is_refused(at);
            if flow.next == refusal.sequence && flow.first().is_some_and(is_refused) {
                self.plan_report(Refusal {
                    report_ns: now_ns + REPEAT_NS,
                    ..refusal
                });
                return Some(FlowReport {
                    kind: FlowReportKind::Gap,
                    flow: refusal.flow,
                    sequence: refusal.sequence,
                });
            }
        }
        None
    }

    /// Adds what is held and was reordered to the tunnel's counters.
    pub(crate) fn add_metrics(&self, metrics: &mut TunnelMetrics) {
        let held = self.frames.buffered();
        metrics.chunks_held = held.chunks;
        metrics.chunk_bytes_held = held.bytes;
        metrics.chunks_held_peak = held.peak_chunks;
        metrics.frames_reordered = self.reordered;
        metrics.frames_skipped = self.skipped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{CommonHeader, PacketKind};

    #[test]
    fn a_flow_that_never_skips_goes_on_for_ever() {
        let mut flow = ReceiveFlow::new();
        for _ in 0..5 {
            // As after a quarter of all numbers without a gap.
            for step in [1 << 30, 1 << 30, 1 << 30, (1 << 30) - 3] {
                flow.advance();
                assert!(!flow.is_before(flow.skip_to), "{flow:?}");
                flow.next = flow.next.wrapping_add(step - 1);
                flow.advance();
                assert!(!flow.is_before(flow.skip_to), "{flow:?}");
            }
        }
    }

    const US: u64 = 1_000;
    const LIMITS: ReorderLimits = ReorderLimits {
        chunks: 1024,
        bytes: 1 << 20,
        timeout_ns: 25_000 * US,
        frame_lifetime_ns: 200_000 * US,
        only_first: false,
    };

    /// A frame of one chunk, the flow's nth.
    fn arrive(reorder: &mut Reorder, now_ns: u64, flow: u16, nth: u32) {
        let data = DataHeader {
            common: CommonHeader {
                kind: PacketKind::Data,
                path: 0,
                key: 0,
                extra: 0,
                epoch: 0,
                number: 0,
            },
            stamp_us: 0,
            sequence: FIRST_SEQUENCE + nth,
            flow,
            size: 100,
            len: 90,
            behind: 0,
        };
        let span = Span {
            len: 100,
            ..Span::default()
        };
        let released = &mut ReleaseQueue::default();
        let taken = reorder.arrive(now_ns, &data, (1, 0), span, &LIMITS, released);
        taken.expect("there is room");
    }

    #[test]
    fn a_report_that_is_repeated_does_not_hold_up_the_first_one_of_another_flow() {
        let mut reorder = Reorder::default();
        let refuse = |reorder: &mut Reorder, now_ns, flow| {
            arrive(reorder, now_ns, flow, 0);
            let (released, metrics) = (&mut ReleaseQueue::default(), &mut TunnelMetrics::default());
            let token = reorder
                .poll_deliver(released)
                .map(|delivery| delivery.token);
            let token = token.expect("its turn has come");
            reorder.on_verdict(now_ns, token, DeliveryVerdict::Full, released, metrics);
        };
        refuse(&mut reorder, 0, 1);
        let reported = |reorder: &mut Reorder, now_ns| {
            let report = reorder.next_refusal(now_ns);
            report.map(|report| report.flow)
        };
        assert_eq!(reported(&mut reorder, 500 * US), Some(1));
        refuse(&mut reorder, 600 * US, 2);
        assert_eq!(reorder.report_deadline(), Some(1100 * US));
        assert_eq!(reported(&mut reorder, 1100 * US), Some(2));
        assert_eq!(reorder.report_deadline(), Some(4500 * US));
        assert_eq!(reported(&mut reorder, 4500 * US), Some(1));
    }

    #[test]
    fn chunks_that_are_held_when_a_session_ends_are_counted() {
        let (mut reorder, released) = (Reorder::default(), &mut ReleaseQueue::default());
        // The first one has not come.
        arrive(&mut reorder, 0, 1, 1);
        reorder.clear(released);
        assert_eq!(released.drops.get(DropReason::PeerRestart), 1);
        assert!(released.pop().is_some(), "its reference comes back");
    }
}
