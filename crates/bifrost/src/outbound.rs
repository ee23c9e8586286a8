// SPDX-License-Identifier: Apache-2.0

//! Frames from the TUN on their way to the peer: those that wait, those that are under way,
//! chunks to retransmit, and what becomes of a frame in the end.

use std::collections::VecDeque;

use crate::config::Limits;
use crate::drop_reason::DropReason;
use crate::fair_queue::FairQueue;
use crate::path::{AckedChunks, LostChunk};
use crate::release_queue::ReleaseQueue;
use crate::segmentation::{PADDING_LIMIT, segment};
use crate::send_buffer::{Frame, FrameRef, SendBuffer};
use crate::types::Span;
use crate::wire::Credit;

/// Frames that wait are looked through at most this often for those that are too old.
const SWEEP_NS: u64 = 10_000_000;
/// A frame that has arrived whole is kept this long, at least, for a report that it was dropped in
/// front of the guest.
const LINGER_NS: u64 = 100_000_000;
/// A frame that the vNIC dropped is retransmitted no more often than this.
const RETRANSMIT_WHOLE_NS: u64 = 1_000_000;

/// A chunk that is to be retransmitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retransmission {
    pub frame: FrameRef,
    pub index: u8,
    /// How often it was sent.
    pub transmissions: u8,
    /// The path that lost it, if one did.
    pub lost_on: Option<u8>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub frames: SendBuffer,
    /// Frames with chunks that were never sent.
    pending: FairQueue,
    /// Bytes of these chunks.
    pending_bytes: u64,
    retransmissions: VecDeque<Retransmission>,
    /// Frames that have arrived and are not known to be delivered; until when they are kept.
    lingering: VecDeque<(u64, FrameRef)>,
    sweep_ns: u64,
}

impl Outbound {
    pub(crate) fn new(flows: u32) -> Outbound {
        Outbound {
            frames: SendBuffer::new(flows),
            pending: FairQueue::new(),
            pending_bytes: 0,
            retransmissions: VecDeque::new(),
            lingering: VecDeque::new(),
            sweep_ns: 0,
        }
    }

    /// Whether another frame may be under way: neither this end nor the peer, which may
    /// have to keep all of it until an earlier frame of its flow has come, is full.
    pub(crate) fn accepts(&self, len: u32, chunks: u8, limits: &Limits, credit: Credit) -> bool {
        let frames = &self.frames;
        frames.held < limits.frames
            && frames.held_bytes < limits.frame_bytes
            && frames.held_bytes + u64::from(len) <= credit.bytes()
            && frames.held_chunks + u32::from(chunks) <= credit.chunks
    }

    /// Takes a frame in `chunks` of `size` bytes.
    pub(crate) fn push(&mut self, now_ns: u64, span: Span, flow: u16, (size, chunks): (u16, u8)) {
        let at = self.frames.insert(now_ns, span, flow, size, chunks);
        self.plan_sweep(now_ns);
        self.pending.push(flow, at);
        self.pending_bytes += u64::from(span.len);
    }

    /// Frames that wait, those that are gone meanwhile included.
    pub(crate) fn waiting_frames(&self) -> usize {
        self.pending.len()
    }

    /// Bytes that wait for a path, with chunks to retransmit as `chunk` bytes each.
    pub(crate) fn waiting_bytes(&self, chunk: u16) -> u64 {
        self.pending_bytes + self.retransmissions.len() as u64 * u64::from(chunk)
    }

    fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.retransmissions.is_empty()
    }

    /// Before something waits.
    fn plan_sweep(&mut self, now_ns: u64) {
        if self.is_idle() {
            self.sweep_ns = now_ns + SWEEP_NS;
        }
    }

    /// The next chunk to retransmit, which [`Outbound::take_retransmission`] takes. Those
    /// that are not needed any more are passed over, frames that must not be sent once more, for
    /// their age or for `most` transmissions, are abandoned.
    pub(crate) fn next_retransmission(
        &mut self,
        now_ns: u64,
        (lifetime_ns, most): (u64, u8),
        released: &mut ReleaseQueue,
    ) -> Option<(Retransmission, &Frame)> {
        let next = loop {
            let next = *self.retransmissions.front()?;
            let frame = self.frames.get(next.frame);
            if let Some(frame) = frame.filter(|frame| !frame.has(next.index)) {
                let old = now_ns.saturating_sub(frame.accepted_ns) > lifetime_ns;
                if !old && next.transmissions < most {
                    break next;
                }
                self.drop_frame(next.frame, DropReason::Abandoned, released);
            }
            self.retransmissions.pop_front();
        };
        Some((next, self.frames.get(next.frame)?))
    }

    pub(crate) fn take_retransmission(&mut self) {
        self.retransmissions.pop_front();
    }

    /// The frame whose turn it is to be sent, in whole or in part; frames that are too old are
    /// abandoned.
    pub(crate) fn next_pending(
        &mut self,
        now_ns: u64,
        lifetime_ns: u64,
        released: &mut ReleaseQueue,
    ) -> Option<FrameRef> {
        loop {
            let at = self.pending.front()?;
            let accepted_ns = self.frames.get(at).map(|frame| frame.accepted_ns);
            match accepted_ns {
                Some(at_ns) if now_ns.saturating_sub(at_ns) <= lifetime_ns => return Some(at),
                _ => self.pending.pop(0),
            }
            self.drop_frame(at, DropReason::Abandoned, released);
        }
    }

    /// The next `count` chunks of the frame that [`Outbound::next_pending`] gave are sent on
    /// path `path`. Gives the first of them.
    pub(crate) fn take_chunks(&mut self, at: FrameRef, count: u8) -> Option<u8> {
        let frame = self.frames.get_mut(at)?;
        let first = frame.begun;
        frame.begun += count;
        let from = u32::from(first) * u32::from(frame.size);
        let to = u32::from(frame.begun) * u32::from(frame.size);
        let bytes = to.min(frame.span.len) - from;
        let (flow, whole) = (usize::from(frame.flow), frame.begun == frame.chunks);
        let frame_len = frame.span.len;
        // Where paths are taken in turn nothing begins a group, and this goes on for ever.
        let flow = &mut self.frames.flows[flow];
        flow.left = flow.left.saturating_sub(bytes as i32);
        self.pending_bytes -= u64::from(bytes);
        if whole {
            self.pending.pop(frame_len);
        }
        Some(first)
    }

    /// Whether the frame that is sent next has chunks of the same size: then they can stand in
    /// one message with the frame's, if its last one is padded. Not if that takes more
    /// than what is left over by chunks that are equal.
    pub(crate) fn is_followed(&self, frame: &Frame) -> bool {
        let missing = u32::from(frame.chunks) * u32::from(frame.size) - frame.span.len;
        if frame.chunks == 1 || missing >= PADDING_LIMIT {
            return false;
        }
        let next = self
            .pending
            .second(frame.span.len)
            .and_then(|next| self.frames.get(next));
        next.is_some_and(|next| next.size == frame.size)
    }

    /// The peer has chunks. It may hold a frame for as long as `held_ns` before it reports it.
    pub(crate) fn on_acked(&mut self, now_ns: u64, held_ns: u64, acked: &[AckedChunks]) {
        let until_ns = now_ns + LINGER_NS.max(held_ns);
        for run in acked {
            if self.frames.acknowledge(run.frame, run.chunks) {
                self.lingering.push_back((until_ns, run.frame));
            }
        }
    }

    /// The peer has delivered or skipped the flow's frames before `sequence`.
    pub(crate) fn on_delivered(&mut self, flow: u16, sequence: u32, released: &mut ReleaseQueue) {
        while let Some(at) = self.frames.first_delivered(flow, sequence) {
            let unsent = self.frames.unsent(at);
            self.pending_bytes = self.pending_bytes.saturating_sub(unsent);
            match self.frames.remove(at) {
                Some(release) => released.push(release),
                None => break,
            }
        }
    }

    /// Lingering frames that are delivered need no timeout.
    pub(crate) fn forget_delivered(&mut self) {
        while let Some((_, at)) = self.lingering.front()
            && self.frames.get(*at).is_none()
        {
            self.lingering.pop_front();
        }
    }

    /// The peer dropped a frame in front of its guest: all of it is retransmitted, unless it
    /// is already. Whether it is.
    pub(crate) fn on_guest_drop(&mut self, now_ns: u64, flow: u16, sequence: u32) -> bool {
        let Some(at) = self.frames.find(flow, sequence) else {
            return false;
        };
        let Some(frame) = self.frames.get_mut(at) else {
            return false;
        };
        if !frame.is_complete() || now_ns < frame.retransmitted_ns + RETRANSMIT_WHOLE_NS {
            return false;
        }
        frame.retransmitted_ns = now_ns;
        frame.forget_acknowledgements();
        let chunks = 0..frame.chunks;
        self.retransmissions
            .extend(chunks.map(|index| Retransmission {
                frame: at,
                index,
                transmissions: 1,
                lost_on: None,
            }));
        true
    }

    /// Chunks that path `path` has lost are to be retransmitted, but for those that the peer
    /// has or whose frame is gone.
    pub(crate) fn on_lost(&mut self, now_ns: u64, path: u8, lost: &[LostChunk]) {
        self.plan_sweep(now_ns);
        for sent in lost {
            let missing = |frame: &Frame| !frame.has(sent.index);
            if self.frames.get(sent.frame).is_some_and(missing) {
                self.retransmissions.push_back(Retransmission {
                    frame: sent.frame,
                    index: sent.index,
                    transmissions: sent.transmissions,
                    lost_on: Some(path),
                });
            }
        }
    }

    /// When [`Outbound::handle_timeout`] has something to do.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let linger_ns = self.lingering.front().map(|(until_ns, _)| *until_ns);
        let sweep_ns = (!self.is_idle()).then_some(self.sweep_ns);
        linger_ns.into_iter().chain(sweep_ns).min()
    }

    /// Lets go of frames that lingered, and abandons those that have waited for too long.
    pub(crate) fn handle_timeout(
        &mut self,
        now_ns: u64,
        lifetime_ns: u64,
        released: &mut ReleaseQueue,
    ) {
        while let Some((until_ns, at)) = self.lingering.front().copied()
            && until_ns <= now_ns
        {
            self.lingering.pop_front();
            // One that is retransmitted as a whole comes back when it has arrived.
            if self.frames.get(at).is_some_and(Frame::is_complete)
                && let Some(release) = self.frames.remove(at)
            {
                released.push(release);
            }
        }
        if now_ns >= self.sweep_ns && !self.is_idle() {
            self.sweep(now_ns, lifetime_ns, released);
        }
    }

    fn sweep(&mut self, now_ns: u64, lifetime_ns: u64, released: &mut ReleaseQueue) {
        self.sweep_ns = now_ns + SWEEP_NS;
        let frames = &self.frames;
        let queued = self.retransmissions.iter().map(|chunk| chunk.frame);
        let old: Vec<FrameRef> = queued
            .chain(self.pending.iter())
            .filter(|at| {
                let accepted_ns = frames.get(*at).map(|frame| frame.accepted_ns);
                accepted_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) > lifetime_ns)
            })
            .collect();
        for at in old {
            self.drop_frame(at, DropReason::Abandoned, released);
        }
        self.forget_dropped();
    }

    /// Chunks may have at most `max_chunk` bytes: frames with longer ones are segmented again.
    pub(crate) fn resegment(&mut self, now_ns: u64, max_chunk: u16, released: &mut ReleaseQueue) {
        let mut anew = Vec::new();
        for at in self.frames.all() {
            let Some(frame) = self.frames.get(at) else {
                continue;
            };
            if frame.size <= max_chunk {
                continue;
            }
            let flow = frame.flow;
            match segment(frame.span.len, max_chunk) {
                Some((size, chunks)) => {
                    if let Some(at) = self.frames.resegment(at, size, chunks) {
                        anew.push((flow, at));
                    }
                }
                None => self.drop_frame(at, DropReason::FrameLong, released),
            }
        }
        self.forget_dropped();
        for (flow, at) in anew.into_iter().rev() {
            self.pending.push_front(flow, at);
        }
        self.pending_bytes = self.pending.iter().map(|at| self.frames.unsent(at)).sum();
        self.sweep_ns = now_ns + SWEEP_NS;
    }

    /// Takes out of the queues what is in the buffer no more.
    fn forget_dropped(&mut self) {
        let frames = &self.frames;
        self.retransmissions
            .retain(|chunk| frames.get(chunk.frame).is_some());
        self.pending.retain(|at| frames.get(at).is_some());
    }

    fn drop_frame(&mut self, at: FrameRef, reason: DropReason, released: &mut ReleaseQueue) {
        let unsent = self.frames.unsent(at);
        self.pending_bytes = self.pending_bytes.saturating_sub(unsent);
        if let Some(release) = self.frames.remove(at) {
            released.push(release);
            released.drops.add(reason, 1);
        }
    }

    /// Drops everything, for a session that ends.
    pub(crate) fn clear(&mut self, released: &mut ReleaseQueue) {
        let held = self.frames.held.into();
        released.drops.add(DropReason::PeerRestart, held);
        self.frames.clear(|release| released.push(release));
        self.pending.clear();
        self.pending_bytes = 0;
        self.retransmissions.clear();
        self.lingering.clear();
    }
}
