// SPDX-License-Identifier: Apache-2.0

//! Chunks become frames.

use std::cmp::Reverse;

use super::{Assembly, Bounds, Drops, FlowReceive, NONE, Reorder};
use crate::frames::FLOW_FRAMES;
use crate::refused::Refused;
use crate::types::Span;
use crate::wire::{Data, MAX_CHUNKS};

impl Reorder {
    /// Takes a chunk whose header and length have been checked.
    ///
    /// # Errors
    /// The chunk is not kept. [`Refused::FlowWindow`] and [`Refused::MemoryCap`] mean
    /// that it should come again; with all others the sender may stop.
    pub(crate) fn arrive(
        &mut self,
        now_ns: u64,
        data: &Data,
        span: Span,
        bounds: &Bounds,
        drops: &mut Drops<'_>,
    ) -> Result<(), Refused> {
        self.make_flow(data.flow);
        self.note_given_up(data);
        let flow = &mut self.flows[usize::from(data.flow)];
        let ahead = data.sequence.wrapping_sub(flow.next);
        if (ahead as i32) < 0 {
            return Err(Refused::Late);
        }
        if ahead >= FLOW_FRAMES {
            // Whatever lies a window back is not coming any more.
            let to = data.sequence.wrapping_sub(FLOW_FRAMES - 1);
            if (flow.skip_to.wrapping_sub(to) as i32) < 0 {
                flow.skip_to = to;
            }
            self.make_ready(data.flow);
            return Err(Refused::FlowWindow);
        }
        let place = ahead as usize;
        if self.is_full(1, span.len, place == 0, bounds) {
            return Err(Refused::MemoryCap);
        }
        let at = self.assembly(now_ns, data, place, bounds, drops)?;
        let assembly = &mut self.assemblies[at as usize];
        let index = data.index();
        if assembly.got >> index & 1 == 1 {
            return Err(Refused::Again);
        }
        assembly.spans[index] = span;
        self.keep(data.flow, place == 0, at, 1 << index, span.len);
        Ok(())
    }

    /// Takes `count` chunks of a frame that follow one another, `data` being the first's
    /// header, with pieces `stride` bytes apart. If that asks for more than keeping them,
    /// they are not taken, and are to arrive one by one.
    pub(crate) fn arrive_together(
        &mut self,
        now_ns: u64,
        data: &Data,
        (count, stride): (u8, u32),
        span: Span,
        bounds: &Bounds,
        drops: &mut Drops<'_>,
    ) -> bool {
        self.make_flow(data.flow);
        self.note_given_up(data);
        let flow = &self.flows[usize::from(data.flow)];
        let place = data.sequence.wrapping_sub(flow.next);
        let (index, size) = (data.index(), usize::from(data.size));
        let end = data.frame_len().min((index + usize::from(count)) * size);
        let bytes = (end - index * size) as u32;
        if place >= FLOW_FRAMES || self.is_full(count.into(), bytes, place == 0, bounds) {
            return false;
        }
        let Ok(at) = self.assembly(now_ns, data, place as usize, bounds, drops) else {
            return false;
        };
        let assembly = &mut self.assemblies[at as usize];
        let mask = u64::MAX >> (64 - count) << index;
        if assembly.got & mask != 0 {
            return false;
        }
        let mut piece = span;
        let mut left = bytes;
        for place in &mut assembly.spans[index..index + usize::from(count)] {
            piece.len = left.min(data.size.into());
            *place = piece;
            piece.offset += stride;
            left -= piece.len;
        }
        self.keep(data.flow, place == 0, at, mask, bytes);
        true
    }

    /// Chunks whose spans stand in the assembly are there.
    fn keep(&mut self, flow: u16, first: bool, at: u32, mask: u64, bytes: u32) {
        let assembly = &mut self.assemblies[at as usize];
        assembly.got |= mask;
        assembly.bytes += bytes;
        let complete = assembly.is_complete();
        assembly.refused &= !complete;
        self.held.chunks += mask.count_ones();
        self.held.bytes += u64::from(bytes);
        self.held.peak = self.held.peak.max(self.held.chunks);
        if complete && first {
            self.make_ready(flow);
        } else if complete {
            self.held.reordered += 1;
        }
    }

    fn make_flow(&mut self, flow: u16) {
        let len = usize::from(flow) + 1;
        if self.flows.len() < len {
            self.flows
                .resize(len.next_power_of_two(), FlowReceive::new());
        }
    }

    /// The chunk whose turn it is may use a reserve, or the flow could wait for a chunk
    /// that finds no room because the flow waits.
    fn is_full(&self, count: u32, len: u32, first: bool, bounds: &Bounds) -> bool {
        let (chunks, bytes) = if first {
            (bounds.chunks, bounds.bytes)
        } else {
            (
                bounds.chunks - bounds.chunks / 4,
                bounds.bytes - bounds.bytes / 4,
            )
        };
        self.held.chunks + count > chunks || self.held.bytes + u64::from(len) > bytes
    }

    /// What the sender no longer has will not come.
    fn note_given_up(&mut self, data: &Data) {
        let flow = &mut self.flows[usize::from(data.flow)];
        let oldest = data.sequence.wrapping_sub(u32::from(data.behind));
        if data.behind < u16::MAX
            && flow.is_before(oldest)
            && (flow.skip_to.wrapping_sub(oldest) as i32) < 0
        {
            flow.skip_to = oldest;
            self.make_ready(data.flow);
        }
    }

    /// The assembly of a chunk's frame, made if there is none.
    fn assembly(
        &mut self,
        now_ns: u64,
        data: &Data,
        place: usize,
        bounds: &Bounds,
        drops: &mut Drops<'_>,
    ) -> Result<u32, Refused> {
        let flow = &mut self.flows[usize::from(data.flow)];
        if flow.held.len() <= place {
            flow.held.resize(place + 1, NONE);
        }
        let at = flow.held[place];
        if at == NONE {
            if flow.held.len() == place + 1 && flow.held.iter().all(|at| *at == NONE) {
                flow.hole_ns = now_ns;
            }
            if !flow.timed {
                flow.timed = true;
                self.gaps
                    .push(Reverse((now_ns + bounds.hold_ns, data.flow)));
            }
            let at = self.new_assembly(data);
            self.flows[usize::from(data.flow)].held[place] = at;
            return Ok(at);
        }
        let assembly = &mut self.assemblies[at as usize];
        if usize::try_from(assembly.len) != Ok(data.frame_len()) || data.size > assembly.size {
            return Err(Refused::Recut);
        }
        if data.size < assembly.size && !assembly.is_complete() {
            // Cut anew for a smaller MTU: what came before is of no use.
            self.empty(at, Refused::Recut, drops);
            let assembly = &mut self.assemblies[at as usize];
            assembly.size = data.size;
            assembly.chunks = data.chunks() as u8;
        } else if data.size < assembly.size {
            return Err(Refused::Again);
        }
        Ok(at)
    }

    fn new_assembly(&mut self, data: &Data) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.assemblies.push(Assembly {
                spans: [Span::default(); MAX_CHUNKS],
                got: 0,
                bytes: 0,
                len: 0,
                size: 0,
                chunks: 1,
                refused: false,
            });
            self.assemblies.len() as u32 - 1
        });
        let assembly = &mut self.assemblies[at as usize];
        (assembly.got, assembly.bytes, assembly.refused) = (0, 0, false);
        assembly.len = data.frame_len() as u32;
        assembly.size = data.size;
        assembly.chunks = data.chunks() as u8;
        at
    }
}
