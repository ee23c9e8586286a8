// SPDX-License-Identifier: Apache-2.0

//! Frames under way: from the TUN until the peer says that they are delivered. A fixed
//! table with a free list, and for each flow the frames in its order.

use crate::types::{Release, Span};
use crate::wire::{FIRST_SEQUENCE, FLOW_WINDOW, MAX_CHUNKS};

const NONE: u32 = u32::MAX;

/// Names a frame in the table. A frame that is gone is recognised by its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameRef {
    index: u32,
    generation: u32,
}

/// A frame under way.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub span: Span,
    pub accepted_ns: u64,
    /// When it was last retransmitted as a whole.
    pub retransmitted_ns: u64,
    /// A bit for each chunk that the peer has.
    acked: u64,
    pub sequence: u32,
    generation: u32,
    before: u32,
    after: u32,
    pub flow: u16,
    /// Bytes of each chunk but the last.
    pub size: u16,
    pub chunks: u8,
    /// Chunks that have been sent once; the others wait in the queue.
    pub begun: u8,
    /// The path that its chunks are sent on.
    pub path: u8,
}

impl Frame {
    pub(crate) fn all(&self) -> u64 {
        u64::MAX >> (MAX_CHUNKS - usize::from(self.chunks))
    }

    pub(crate) fn has(&self, index: u8) -> bool {
        self.acked >> index & 1 == 1
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.acked == self.all()
    }

    /// The peer has dropped all of it.
    pub(crate) fn forget_acknowledgements(&mut self) {
        self.acked = 0;
    }

    /// The bytes of chunk `index`.
    pub(crate) fn chunk(&self, index: u8) -> Span {
        let offset = u32::from(index) * u32::from(self.size);
        Span {
            slot: self.span.slot,
            offset: self.span.offset + offset,
            len: (self.span.len - offset).min(u32::from(self.size)),
        }
    }
}

/// Sending side of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendFlow {
    /// The path of the current group; [`SendFlow::NO_PATH`] before the first.
    pub path: u8,
    /// Bytes that the group may still have.
    pub left: i32,
    next: u32,
    /// All frames before are delivered or skipped, says the peer.
    delivered: u32,
    first: u32,
    last: u32,
    frames: u32,
    bytes: u32,
}

impl SendFlow {
    pub(crate) const NO_PATH: u8 = u8::MAX;

    fn new() -> SendFlow {
        SendFlow {
            path: SendFlow::NO_PATH,
            left: 0,
            next: FIRST_SEQUENCE,
            delivered: FIRST_SEQUENCE,
            first: NONE,
            last: NONE,
            frames: 0,
            bytes: 0,
        }
    }
}

/// All frames under way.
#[derive(Debug)]
pub(crate) struct SendBuffer {
    table: Vec<Frame>,
    free: Vec<u32>,
    pub flows: Vec<SendFlow>,
    pub held: u32,
    pub held_bytes: u64,
    /// Chunks that they are cut into.
    pub held_chunks: u32,
}

impl SendBuffer {
    pub(crate) fn new(flows: u32) -> SendBuffer {
        SendBuffer {
            table: Vec::new(),
            free: Vec::new(),
            flows: vec![SendFlow::new(); flows as usize],
            held: 0,
            held_bytes: 0,
            held_chunks: 0,
        }
    }

    /// Whether the flow may have another frame of `len` bytes under way.
    pub(crate) fn flow_accepts(&self, flow: u16, len: u32, cap: u64) -> bool {
        let flow = &self.flows[usize::from(flow)];
        flow.frames < FLOW_WINDOW && u64::from(flow.bytes) + u64::from(len) <= cap
    }

    /// Bytes that the flow has under way.
    pub(crate) fn flow_holds(&self, flow: u16) -> u32 {
        self.flows[usize::from(flow)].bytes
    }

    /// Adds a frame at the end of its flow.
    pub(crate) fn insert(
        &mut self,
        now_ns: u64,
        span: Span,
        flow_index: u16,
        size: u16,
        chunks: u8,
    ) -> FrameRef {
        let flow = &mut self.flows[usize::from(flow_index)];
        let index = self.free.pop().unwrap_or(self.table.len() as u32);
        let generation = self
            .table
            .get(index as usize)
            .map_or(0, |old| old.generation);
        let frame = Frame {
            span,
            accepted_ns: now_ns,
            retransmitted_ns: now_ns,
            acked: 0,
            sequence: flow.next,
            generation,
            before: flow.last,
            after: NONE,
            flow: flow_index,
            size,
            chunks,
            begun: 0,
            path: SendFlow::NO_PATH,
        };
        flow.next = flow.next.wrapping_add(1);
        flow.frames += 1;
        flow.bytes += span.len;
        let before = std::mem::replace(&mut flow.last, index);
        if before == NONE {
            flow.first = index;
        } else {
            self.table[before as usize].after = index;
        }
        if index as usize == self.table.len() {
            self.table.push(frame);
        } else {
            self.table[index as usize] = frame;
        }
        self.held += 1;
        self.held_bytes += u64::from(span.len);
        self.held_chunks += u32::from(chunks);
        FrameRef { index, generation }
    }

    pub(crate) fn get(&self, at: FrameRef) -> Option<&Frame> {
        self.table
            .get(at.index as usize)
            .filter(|frame| frame.generation == at.generation)
    }

    pub(crate) fn get_mut(&mut self, at: FrameRef) -> Option<&mut Frame> {
        let frame = self.table.get_mut(at.index as usize)?;
        (frame.generation == at.generation).then_some(frame)
    }

    /// Whether the frame is the oldest of its flow.
    pub(crate) fn is_first(&self, at: FrameRef) -> bool {
        self.get(at)
            .is_some_and(|frame| self.flows[usize::from(frame.flow)].first == at.index)
    }

    /// Bytes of the frame that were never sent; 0 for one that is gone.
    pub(crate) fn unsent(&self, at: FrameRef) -> u64 {
        self.get(at).map_or(0, |frame| {
            let sent = u64::from(frame.begun) * u64::from(frame.size);
            u64::from(frame.span.len).saturating_sub(sent)
        })
    }

    /// How far back in its flow the oldest frame under way lies.
    pub(crate) fn behind(&self, frame: &Frame) -> u16 {
        let first = self.flows[usize::from(frame.flow)].first;
        let oldest = self.table[first as usize].sequence;
        let behind = frame.sequence.wrapping_sub(oldest);
        u16::try_from(behind).unwrap_or(u16::MAX)
    }

    /// The peer has these chunks. Gives whether the frame has just become complete.
    pub(crate) fn acknowledge(&mut self, at: FrameRef, chunks: u64) -> bool {
        let Some(frame) = self.get_mut(at) else {
            return false;
        };
        let before = frame.is_complete();
        frame.acked |= chunks & frame.all();
        !before && frame.is_complete()
    }

    /// Takes the frame out; its slot's reference goes back.
    pub(crate) fn remove(&mut self, at: FrameRef) -> Option<Release> {
        let frame = self.get_mut(at)?;
        frame.generation = frame.generation.wrapping_add(1);
        let (before, after, len) = (frame.before, frame.after, frame.span.len);
        let chunks = frame.chunks;
        let flow = usize::from(frame.flow);
        let release = Release {
            slot: frame.span.slot,
            count: 1,
        };
        let flow = &mut self.flows[flow];
        flow.frames -= 1;
        flow.bytes -= len;
        match before {
            NONE => flow.first = after,
            before => self.table[before as usize].after = after,
        }
        match after {
            NONE => flow.last = before,
            after => self.table[after as usize].before = before,
        }
        self.free.push(at.index);
        self.held -= 1;
        self.held_bytes -= u64::from(len);
        self.held_chunks -= u32::from(chunks);
        Some(release)
    }

    /// The flow's frames before `sequence` are delivered: gives the first of them, for
    /// [`SendBuffer::remove`], until none is left. Watermarks that lie outside of what was
    /// sent, or go back, say nothing.
    pub(crate) fn first_delivered(&mut self, flow: u16, sequence: u32) -> Option<FrameRef> {
        let flow = self.flows.get_mut(usize::from(flow))?;
        let sent = flow.next.wrapping_sub(flow.delivered);
        if sequence.wrapping_sub(flow.delivered) > sent {
            return None;
        }
        let frame = self.table.get(flow.first as usize)?;
        if (frame.sequence.wrapping_sub(sequence) as i32) < 0 {
            return Some(FrameRef {
                index: flow.first,
                generation: frame.generation,
            });
        }
        flow.delivered = sequence;
        None
    }

    /// The frame of a flow with this number, if it is still under way.
    pub(crate) fn find(&self, flow: u16, sequence: u32) -> Option<FrameRef> {
        let mut index = self.flows.get(usize::from(flow))?.first;
        while let Some(frame) = self.table.get(index as usize) {
            if frame.sequence == sequence {
                return Some(FrameRef {
                    index,
                    generation: frame.generation,
                });
            }
            index = frame.after;
        }
        None
    }

    /// Removes all frames, for a session that ends; flows begin again.
    pub(crate) fn clear(&mut self, mut released: impl FnMut(Release)) {
        for flow in &mut self.flows {
            let mut index = flow.first;
            while let Some(frame) = self.table.get_mut(index as usize) {
                frame.generation = frame.generation.wrapping_add(1);
                released(Release {
                    slot: frame.span.slot,
                    count: 1,
                });
                self.free.push(index);
                index = frame.after;
            }
            *flow = SendFlow::new();
        }
        (self.held, self.held_bytes, self.held_chunks) = (0, 0, 0);
    }

    /// Every frame under way.
    pub(crate) fn all(&self) -> Vec<FrameRef> {
        let mut all = Vec::new();
        for flow in &self.flows {
            let mut index = flow.first;
            while let Some(frame) = self.table.get(index as usize) {
                all.push(FrameRef {
                    index,
                    generation: frame.generation,
                });
                index = frame.after;
            }
        }
        all
    }

    /// Segments the frame again: chunks acknowledged and sent so far count for nothing. The
    /// generation changes, so that what is in flight no longer speaks of it.
    pub(crate) fn resegment(&mut self, at: FrameRef, size: u16, chunks: u8) -> Option<FrameRef> {
        let frame = self.get_mut(at)?;
        frame.generation = frame.generation.wrapping_add(1);
        frame.acked = 0;
        frame.begun = 0;
        let before = std::mem::replace(&mut frame.chunks, chunks);
        frame.size = size;
        let generation = frame.generation;
        self.held_chunks = self.held_chunks - u32::from(before) + u32::from(chunks);
        Some(FrameRef {
            index: at.index,
            generation,
        })
    }
}
