// SPDX-License-Identifier: Apache-2.0

//! What goes out: first the engine's own datagrams (`own.rs`), then chunks that were lost,
//! then new ones.

use crate::batch::PADDING_LIMIT;
use crate::config::Config;
use crate::engine::{Again, Engine};
use crate::frames::{FlowSend, Frame, FrameRef};
use crate::path::{Path, Receiving};
use crate::refused::Refused;
use crate::seal::Place;
use crate::sending::Chunks;
use crate::types::{PathId, Segment, Transmit};
use crate::window::expand;
use crate::wire::{ACK_LEN, DATA_HEADER_LEN, Data, Kind, MAX_REPORTS, Prefix, REPORT_LEN, TAG_LEN};

/// Chunks of a frame that are to be sent.
struct Chosen {
    first: u8,
    count: u8,
    /// How often they were sent, this time included.
    tries: u8,
    /// Whether the frame's last chunk gets the size of the others.
    padded: bool,
}

impl Engine {
    /// Fills `out` with the next batch to send, and says whether there is one. A batch
    /// that cannot be sent may be dropped: it counts as lost on the way.
    pub fn poll_transmit(&mut self, now_ns: u64, out: &mut Transmit) -> bool {
        out.clear();
        if self.send_control(now_ns, out) {
            return true;
        }
        // Also an acknowledgement that presses lets one batch go first: it may ride.
        let pressing = |of: &Receiving, config: &Config| of.is_pressing(config);
        if self.behind_data && self.send_ack(now_ns, out, pressing) {
            return true;
        }
        out.to_seal = self.config.keys.sealed();
        self.send_again(now_ns, out);
        if out.segments.is_empty() {
            self.send_pending(now_ns, out);
        }
        self.behind_data = !out.segments.is_empty();
        if self.behind_data {
            self.ride(now_ns, out);
            return true;
        }
        // Those whose time has come, and that found nothing to ride on.
        out.clear();
        self.send_ack(now_ns, out, |of, config| of.is_due(now_ns, config))
    }

    /// What has arrived on the batch's path is acknowledged with it, as its last
    /// datagram: that costs neither end a system call or a wake-up of its own.
    fn ride(&mut self, now_ns: u64, out: &mut Transmit) {
        let index = out.path.index();
        let due = |path: &Path| path.receiving.pending > 0;
        let reports = self.reorder.reports_due(now_ns);
        let len = ACK_LEN + reports * REPORT_LEN + self.tag_len();
        if !self.paths[index].as_ref().is_some_and(due)
            || reports > MAX_REPORTS
            || !out.has_room(index, len as u32)
        {
            return;
        }
        let Some(state) = self.ack_state(now_ns, index) else {
            return;
        };
        if let Some(path) = &mut self.paths[index] {
            path.receiving.rode();
        }
        let begin = out.headers.len();
        self.write_ack_on(now_ns, index, state, &mut out.headers);
        let len = out.headers.len() - begin;
        out.total += len as u32;
        out.segments.push(Segment {
            header_len: len as u16,
            ..Segment::default()
        });
    }

    /// Encrypts a data datagram of a batch with `to_seal`: header, payload, then
    /// [`crate::wire::TAG_LEN`] bytes for the tag. Must happen before the next
    /// `handle_*` call. Anything else than such a datagram stays as it is.
    pub fn seal(&self, datagram: &mut [u8]) {
        let Ok(prefix) = Prefix::parse(datagram) else {
            return;
        };
        let path = self
            .paths
            .get(usize::from(prefix.path))
            .and_then(Option::as_ref);
        if let (Some(sealer), Some(path)) = (&self.sealer, path)
            && datagram.len() >= DATA_HEADER_LEN + TAG_LEN
        {
            let at = Place {
                epoch: prefix.epoch,
                path: prefix.path,
                number: expand(path.sending.next(), prefix.number),
                clear: DATA_HEADER_LEN,
            };
            sealer.seal(at, datagram);
        }
    }

    pub(crate) fn tag_len(&self) -> usize {
        if self.config.keys.sealed() {
            TAG_LEN
        } else {
            0
        }
    }

    pub(crate) fn key_id(&self) -> u8 {
        self.config.keys.send.as_ref().map_or(0, |key| key.id)
    }

    /// Chunks that were lost, on another path than the one that lost them if there is
    /// one with room.
    fn send_again(&mut self, now_ns: u64, out: &mut Transmit) {
        while let Some(again) = self.again.front().copied() {
            let Some(frame) = self.frames.get(again.frame).filter(|f| !f.has(again.index)) else {
                self.again.pop_front();
                continue;
            };
            let old = now_ns.saturating_sub(frame.accepted_ns) > self.config.give_up_ns;
            if old || again.tries >= self.config.give_up_tries {
                self.again.pop_front();
                self.drop_frame(again.frame, Refused::GaveUp);
                continue;
            }
            let len = self.datagram_len(frame, again.index, false);
            let Some(index) = self.path_for_again(now_ns, &again, len) else {
                return;
            };
            if !out.has_room(index, len) {
                return;
            }
            self.again.pop_front();
            self.metrics.chunks_resent += 1;
            if let Some(path) = &mut self.paths[index] {
                path.stats.resent_chunks += 1;
            }
            let chunks = Chosen {
                first: again.index,
                count: 1,
                tries: again.tries + 1,
                padded: false,
            };
            self.emit(now_ns, again.frame, chunks, index, out);
        }
    }

    fn path_for_again(&self, now_ns: u64, again: &Again, len: u32) -> Option<usize> {
        let from = usize::from(again.from);
        let other = self
            .best_path(now_ns, len.into(), from)
            .map(|(index, _)| index);
        other.or_else(|| self.path_with_room(again.from, len.into()).map(|_| from))
    }

    fn send_pending(&mut self, now_ns: u64, out: &mut Transmit) {
        while let Some(at) = self.pending.front() {
            let Some(frame) = self.frames.get(at) else {
                self.pending.pop(0);
                continue;
            };
            if now_ns.saturating_sub(frame.accepted_ns) > self.config.give_up_ns {
                self.pending.pop(0);
                self.drop_frame(at, Refused::GaveUp);
                continue;
            }
            let (path, begun) = (frame.path, frame.begun > 0);
            let padded = self.is_followed(frame);
            let len = self.datagram_len(frame, frame.begun, padded);
            let index = match begun {
                true => self.path_for_rest(now_ns, path, len.into()),
                false => self.path_for(now_ns, at, len.into()),
            };
            let Some(index) = index else { return };
            let Some(path) = &self.paths[index] else {
                return;
            };
            let piece = self
                .piece_bytes(path)
                .map_or(u64::MAX, |bytes| bytes / u64::from(len));
            let Some(frame) = self.frames.get_mut(at) else {
                return;
            };
            frame.path = index as u8;
            if !out.has_room(index, len) {
                return;
            }
            let (first, left) = (frame.begun, frame.chunks - frame.begun);
            // Of the same length but for the last, for which there is room, too.
            let room = (path.room() / u64::from(len)).min(path.sending.room());
            let most = room.min(out.room_for(len).into()).min(piece).max(1);
            let count = left.min(u8::try_from(most).unwrap_or(u8::MAX));
            frame.begun += count;
            let from = u32::from(first) * u32::from(frame.size);
            let to = u32::from(frame.begun) * u32::from(frame.size);
            let bytes = to.min(frame.span.len) - from;
            let (flow, whole) = (usize::from(frame.flow), frame.begun == frame.chunks);
            let frame_len = frame.span.len;
            self.frames.flows[flow].left -= bytes as i32;
            self.pending_bytes -= u64::from(bytes);
            if whole {
                self.pending.pop(frame_len);
            }
            self.metrics.chunks_sent += u64::from(count);
            let tries = 1;
            let chunks = Chosen {
                first,
                count,
                tries,
                padded,
            };
            self.emit(now_ns, at, chunks, index, out);
        }
    }

    /// Whether the frame that is sent next has chunks of the same size: then they can stand in
    /// one message with the frame's, if its last one is padded. Not if that takes more
    /// than what is left over by chunks that are equal.
    fn is_followed(&self, frame: &Frame) -> bool {
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

    /// Bytes of a chunk's datagram; a frame's last one may be `padded` to the others' size.
    fn datagram_len(&self, frame: &Frame, chunk: u8, padded: bool) -> u32 {
        let overhead = (DATA_HEADER_LEN + self.tag_len()) as u32;
        match padded {
            true => overhead + u32::from(frame.size),
            false => overhead + frame.chunk(chunk).len,
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
            tries,
            padded,
        } = chunks;
        let (Some(frame), key, epoch) = (self.frames.get(at), self.key_id(), self.send_epoch)
        else {
            return;
        };
        let [len, last_len] =
            [first, first + count - 1].map(|chunk| self.datagram_len(frame, chunk, padded));
        let behind = self.frames.behind(frame);
        let Some(path) = &mut self.paths[index] else {
            return;
        };
        let number = path.sending.next();
        let data = Data {
            prefix: Prefix {
                kind: Kind::Data,
                path: index as u8,
                key,
                extra: first,
                epoch,
                number: number as u32,
            },
            stamp_us: micros(now_ns),
            sequence: frame.sequence,
            flow: frame.flow,
            size: frame.size,
            len: (frame.span.len as usize - crate::VNET_HEADER_LEN) as u16,
            behind,
        };
        let mut header = data.to_bytes();
        for nth in 0..count {
            Data::renumber(
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
            let segment = Segment {
                header_len: DATA_HEADER_LEN as u16,
                payload: piece,
                padding: padding as u8,
                resent: tries > 1,
            };
            out.push(index, len, &header, segment);
        }
        let chunks = Chunks {
            first,
            count,
            tries,
            len: len as u16,
            last_len: last_len as u16,
        };
        path.sending.push(now_ns, at, chunks);
        path.stats.sent_chunks += u64::from(count);
        path.stats.sent_bytes += u64::from(len) * u64::from(count - 1) + u64::from(last_len);
        let (inflight, window) = (path.sending.inflight(), path.congestion.bytes());
        if inflight * 1000 > window * u64::from(path.stats.inflight_peak_permille) {
            path.stats.inflight_peak_permille =
                inflight.saturating_mul(1000).div_ceil(window) as u32;
        }
    }
}

/// The clock on the wire.
pub(crate) fn micros(now_ns: u64) -> u32 {
    (now_ns / 1000) as u32
}

/// Needed by the type of [`FlowSend::NO_PATH`]: it names no path that exists.
const _: () = assert!(FlowSend::NO_PATH as usize >= PathId::LIMIT);
