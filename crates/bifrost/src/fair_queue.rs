// SPDX-License-Identifier: Apache-2.0

//! Frames that wait for a path's window. Flows take turns, so that one request does not
//! wait for all that a bulk flow has put in front of it: deficit round robin (Shreedhar and
//! Varghese, SIGCOMM 1995), with flows that had nothing waiting served first, as FQ-CoDel
//! has it (RFC 8290, section 4.2). Nothing is dropped when the queue is long: the TUN is then
//! not read.

use std::collections::VecDeque;

use crate::send_buffer::FrameRef;
use crate::virtio::MAX_FRAME_LEN;

/// Queues, a power of two: flows with the same number modulo this one share a turn.
const QUEUES: usize = 1024;
/// Bytes of a turn: the longest frame, so that a frame goes whole.
const QUANTUM: i64 = MAX_FRAME_LEN as i64;

/// Frames of the flows that share a turn, in the order in which they came.
#[derive(Clone, Debug, Default)]
struct Queue {
    frames: VecDeque<FrameRef>,
    /// Bytes that it may still send in its turn.
    credit: i64,
    /// Whether it stands in `fresh` or `served`.
    is_queued: bool,
}

/// Frames of all flows that wait.
#[derive(Debug)]
pub(crate) struct FairQueue {
    queues: Vec<Queue>,
    /// Queues that were empty before: they come first.
    fresh: VecDeque<u16>,
    /// Those that have had a turn, or lost the rest of one.
    served: VecDeque<u16>,
    /// Frames in all of them.
    len: usize,
}

impl FairQueue {
    pub(crate) fn new() -> FairQueue {
        FairQueue {
            queues: vec![Queue::default(); QUEUES],
            fresh: VecDeque::new(),
            served: VecDeque::new(),
            len: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Frames, those that are gone meanwhile included.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// A frame at the end of its flow's queue.
    pub(crate) fn push(&mut self, flow: u16, at: FrameRef) {
        let number = queue_of(flow);
        self.queues[usize::from(number)].frames.push_back(at);
        self.len += 1;
        self.activate(number);
    }

    /// A frame in front of its flow's queue.
    pub(crate) fn push_front(&mut self, flow: u16, at: FrameRef) {
        let number = queue_of(flow);
        self.queues[usize::from(number)].frames.push_front(at);
        self.len += 1;
        self.activate(number);
    }

    fn activate(&mut self, number: u16) {
        let queue = &mut self.queues[usize::from(number)];
        if !queue.is_queued {
            (queue.is_queued, queue.credit) = (true, QUANTUM);
            self.fresh.push_back(number);
        }
    }

    /// The frame whose turn it is; it stays until [`FairQueue::pop`].
    pub(crate) fn front(&mut self) -> Option<FrameRef> {
        loop {
            let is_fresh = !self.fresh.is_empty();
            let line = if is_fresh {
                &mut self.fresh
            } else {
                &mut self.served
            };
            let number = *line.front()?;
            let queue = &mut self.queues[usize::from(number)];
            if let Some(at) = queue.frames.front()
                && queue.credit > 0
            {
                return Some(*at);
            }
            line.pop_front();
            if !queue.frames.is_empty() {
                queue.credit += QUANTUM;
                self.served.push_back(number);
            } else if is_fresh && !self.served.is_empty() {
                // Else a flow with one frame at a time would always be the first.
                self.served.push_back(number);
            } else {
                queue.is_queued = false;
            }
        }
    }

    /// Takes the frame out that [`FairQueue::front`] gave, when its `bytes` have been sent, or
    /// 0 of them.
    pub(crate) fn pop(&mut self, bytes: u32) {
        let line = self.fresh.front().or(self.served.front());
        let Some(queue) = line.map(|number| &mut self.queues[usize::from(*number)]) else {
            return;
        };
        if queue.frames.pop_front().is_some() {
            queue.credit -= i64::from(bytes);
            self.len -= 1;
        }
    }

    /// The frame that follows the one in front, of `bytes`, if nothing comes in between: that
    /// of the same queue as long as it has credit and where no other waits, or the next one's.
    pub(crate) fn second(&self, bytes: u32) -> Option<FrameRef> {
        let mut line = self.fresh.iter().chain(&self.served);
        let first = &self.queues[usize::from(*line.next()?)];
        let own = || first.frames.get(1).copied();
        if first.credit > i64::from(bytes) && own().is_some() {
            return own();
        }
        let next = line.find_map(|number| self.queues[usize::from(*number)].frames.front());
        next.copied().or_else(own)
    }

    /// All frames, flow by flow.
    pub(crate) fn iter(&self) -> impl Iterator<Item = FrameRef> {
        let lines = self.fresh.iter().chain(&self.served);
        lines.flat_map(|number| self.queues[usize::from(*number)].frames.iter().copied())
    }

    /// Keeps those that `keep` says.
    pub(crate) fn retain(&mut self, keep: impl Fn(FrameRef) -> bool) {
        for number in self.fresh.iter().chain(&self.served) {
            let frames = &mut self.queues[usize::from(*number)].frames;
            let before = frames.len();
            frames.retain(|at| keep(*at));
            self.len -= before - frames.len();
        }
    }

    pub(crate) fn clear(&mut self) {
        self.retain(|_| false);
    }
}

fn queue_of(flow: u16) -> u16 {
    flow & (QUEUES as u16 - 1)
}

#[cfg(test)]
mod tests;
