// SPDX-License-Identifier: Apache-2.0

//! What goes to the network: control datagrams first, then retransmissions, then new chunks.

use super::TransportEngine;
use crate::batch::{DatagramParts, Transmit};
use crate::config::TransportConfig;
use crate::control::{AckState, Control, ControlWriter};
use crate::path::{ChunkRun, PendingAcks, expand};
use crate::scheduler::Choice;
use crate::seal::AeadInput;
use crate::send_buffer::{Frame, FrameRef};
use crate::types::PathId;
use crate::wire::{CommonHeader, DATA_HEADER_LEN, DataHeader, PacketKind, TAG_LEN, stamp_us};

/// Chunks of a frame that are to be sent.
struct Chosen {
    first: u8,
    count: u8,
    /// How often they were sent, this time included.
    transmissions: u8,
    /// Whether the frame's last chunk gets the size of the others.
    padded: bool,
}

impl TransportEngine {
    /// Fills `out` with the next batch to send, and says whether there is one. A batch
    /// that cannot be sent may be dropped: it counts as lost on the way.
    pub fn poll_transmit(&mut self, now_ns: u64, out: &mut Transmit) -> bool {
        out.clear();
        while let Some(control) = self.control.pop() {
            if self.control_writer(now_ns).write(control, out) {
                return true;
            }
        }
        // An urgent acknowledgement, too, lets one batch go first: it may be piggybacked.
        if self.behind_data && self.send_ack(now_ns, out, |acks, config| acks.is_urgent(config)) {
            return true;
        }
        out.to_seal = self.session.is_sealed();
        self.send_retransmissions(now_ns, out);
        if out.datagrams.is_empty() {
            self.send_pending(now_ns, out);
        }
        self.behind_data = !out.datagrams.is_empty();
        if self.behind_data {
            self.piggyback_ack(now_ns, out);
            return true;
        }
        // Those whose time has come, and that found no data to travel with.
        out.clear();
        self.send_ack(now_ns, out, |acks, config| acks.is_due(now_ns, config))
    }

    fn control_writer(&mut self, now_ns: u64) -> ControlWriter<'_> {
        ControlWriter {
            now_ns,
            session: &self.session,
            paths: &mut self.paths,
            reorder: &mut self.reorder,
            config: &self.config,
        }
    }

    /// What is to be said of a path now; it counts as said.
    pub(super) fn take_ack(&mut self, now_ns: u64, index: usize) -> Option<AckState> {
        let acks = &mut self.paths.get_mut(index)?.acks;
        let state = AckState::of(now_ns, index as u8, acks);
        acks.acknowledged(now_ns, &self.config);
        Some(state)
    }

    /// Sends an acknowledgement that is due on some path, if one is.
    fn send_ack(
        &mut self,
        now_ns: u64,
        out: &mut Transmit,
        due: impl Fn(&PendingAcks, &TransportConfig) -> bool,
    ) -> bool {
        if !self.session.is_established() {
            return false;
        }
        let index = self.control_writer(now_ns).path_to_acknowledge(due);
        let state = index.and_then(|index| self.take_ack(now_ns, index));
        state.is_some_and(|state| {
            let mut writer = self.control_writer(now_ns);
            writer.write(Control::Ack(state), out)
        })
    }

    /// What has arrived on the batch's path is acknowledged with it, as its last
    /// datagram: that costs neither end a system call or a wake-up of its own.
    fn piggyback_ack(&mut self, now_ns: u64, out: &mut Transmit) {
        let index = out.path.index();
        let path = self.paths.get(index);
        if path.is_none_or(|path| path.acks.pending == 0) {
            return;
        }
        let len = self.control_writer(now_ns).ack_len();
        if !len.is_some_and(|len| out.accepts(index, len as u32)) {
            return;
        }
        let Some(state) = self.take_ack(now_ns, index) else {
            return;
        };
        if let Some(path) = self.paths.get_mut(index) {
            path.acks.on_piggybacked();
        }
        let mut writer = self.control_writer(now_ns);
        let len = writer.append_ack(state, index, &mut out.headers);
        out.append_control(len);
    }

    /// Encrypts a data datagram of a batch with `to_seal`: header, payload, then
    /// [`crate::wire::TAG_LEN`] bytes for the tag. Must happen before the next
    /// `handle_*` call. Anything else than such a datagram stays as it is.
    pub fn seal(&self, datagram: &mut [u8]) {
        let Ok(header) = CommonHeader::parse(datagram) else {
            return;
        };
        if let Some(path) = self.paths.get(header.path.into())
            && datagram.len() >= DATA_HEADER_LEN + TAG_LEN
        {
            let number = expand(path.next_number(), header.number);
            self.session
                .seal(AeadInput::data(&header, number), datagram);
        }
    }

    fn choice(&self, now_ns: u64, len: u32) -> Choice<'_> {
        Choice {
            paths: &self.paths,
            config: &self.config,
            now_ns,
            len: len.into(),
        }
    }

    /// Chunks that were lost.
    fn send_retransmissions(&mut self, now_ns: u64, out: &mut Transmit) {
        let bounds = (self.frame_lifetime_ns(), self.config.max_transmissions);
        loop {
            let released = &mut self.released;
            let next = self.outbound.next_retransmission(now_ns, bounds, released);
            let Some((chunk, frame)) = next else { return };
            let overhead = DATA_HEADER_LEN + self.session.tag_len();
            let len = datagram_len(frame, chunk.index, false, overhead);
            let choice = self.choice(now_ns, len);
            let Some(index) = choice.path_after_loss(chunk.lost_on, chunk.transmissions) else {
                return;
            };
            if !out.accepts(index, len) {
                return;
            }
            self.outbound.take_retransmission();
            self.metrics.chunks_retransmitted += 1;
            if let Some(path) = self.paths.get_mut(index) {
                path.stats.retransmitted_chunks += 1;
            }
            let chunks = Chosen {
                first: chunk.index,
                count: 1,
                transmissions: chunk.transmissions + 1,
                padded: false,
            };
            self.emit(now_ns, chunk.frame, chunks, index, out);
        }
    }

    fn send_pending(&mut self, now_ns: u64, out: &mut Transmit) {
        let lifetime_ns = self.frame_lifetime_ns();
        let overhead = DATA_HEADER_LEN + self.session.tag_len();
        while let Some(at) = self
            .outbound
            .next_pending(now_ns, lifetime_ns, &mut self.released)
        {
            let Some(frame) = self.outbound.frames.get(at) else {
                return;
            };
            let padded = self.outbound.is_followed(frame);
            let len = datagram_len(frame, frame.begun, padded, overhead);
            let left = frame.chunks - frame.begun;
            let choice = Choice {
                paths: &self.paths,
                config: &self.config,
                now_ns,
                len: len.into(),
            };
            let index = if frame.begun > 0 {
                choice.path_for_rest(frame.path)
            } else {
                let frames = &mut self.outbound.frames;
                let assigned = self.scheduler.path_for(&choice, frames, at);
                if let Some(left) = assigned.and_then(|assigned| assigned.left)
                    && let Some(path) = self.paths.get_mut(left.into())
                {
                    path.stats.switches += 1;
                }
                assigned.map(|assigned| assigned.index)
            };
            let Some(index) = index else { return };
            let Some(path) = self.paths.get(index) else {
                return;
            };
            let piece = self
                .choice(now_ns, len)
                .piece_bytes(path)
                .map_or(u64::MAX, |bytes| bytes / u64::from(len));
            if let Some(frame) = self.outbound.frames.get_mut(at) {
                frame.path = index as u8;
            }
            if !out.accepts(index, len) {
                return;
            }
            // Of the same length but for the last, for which there is room, too.
            let room = path.datagrams_left(now_ns, len);
            let most = room.min(out.accepts_count(len).into()).min(piece).max(1);
            let count = left.min(u8::try_from(most).unwrap_or(u8::MAX));
            let Some(first) = self.outbound.take_chunks(at, count) else {
                return;
            };
            self.metrics.chunks_sent += u64::from(count);
            let chunks = Chosen {
                first,
                count,
                transmissions: 1,
                padded,
            };
            self.emit(now_ns, at, chunks, index, out);
        }
    }

    /// Puts chunks of a frame into the batch and into flight.
    fn emit(
        &mut self,
        now_ns: u64,
        at: FrameRef,
        chunks: Chosen,
        index: usize,
        out: &mut Transmit,
    ) {
        let Chosen {
            first,
            count,
            transmissions,
            padded,
        } = chunks;
        let frames = &self.outbound.frames;
        let (Some(frame), Some(path)) = (frames.get(at), self.paths.get_mut(index)) else {
            return;
        };
        let overhead = DATA_HEADER_LEN + self.session.tag_len();
        let [len, last_len] =
            [first, first + count - 1].map(|chunk| datagram_len(frame, chunk, padded, overhead));
        let number = path.next_number();
        let data = DataHeader {
            common: CommonHeader {
                kind: PacketKind::Data,
                path: index as u8,
                key: self.session.key_id(),
                extra: first,
                epoch: self.session.send_epoch(),
                number: number as u32,
            },
            stamp_us: stamp_us(now_ns),
            sequence: frame.sequence,
            flow: frame.flow,
            size: frame.size,
            len: (frame.span.len as usize - crate::VNET_HEADER_LEN) as u16,
            behind: frames.behind(frame),
        };
        let mut header = data.to_bytes();
        for nth in 0..count {
            DataHeader::renumber(
                &mut header,
                first + nth,
                (number as u32).wrapping_add(nth.into()),
            );
            let len = if nth + 1 == count { last_len } else { len };
            let piece = frame.chunk(first + nth);
            let padding = if padded {
                frame.size - piece.len as u16
            } else {
                0
            };
            let parts = DatagramParts {
                header_len: DATA_HEADER_LEN as u16,
                payload: piece,
                padding: padding as u8,
                retransmitted: transmissions > 1,
            };
            out.push(index, len, &header, parts);
        }
        let chunks = ChunkRun {
            first,
            count,
            transmissions,
            len: len as u16,
            last_len: last_len as u16,
        };
        path.on_sent(now_ns, at, chunks);
    }
}

/// Bytes of a chunk's datagram; a frame's last one may be `padded` to the others' size.
fn datagram_len(frame: &Frame, chunk: u8, padded: bool, overhead: usize) -> u32 {
    match padded {
        true => overhead as u32 + u32::from(frame.size),
        false => overhead as u32 + frame.chunk(chunk).len,
    }
}

/// Needed by the type of [`crate::send_buffer::SendFlow::NO_PATH`]: it names no path that
/// exists.
const _: () = assert!(crate::send_buffer::SendFlow::NO_PATH as usize >= PathId::LIMIT);
