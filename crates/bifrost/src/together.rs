// SPDX-License-Identifier: Apache-2.0

//! Datagrams that come in merged. Chunks of one frame that left together are taken together;
//! whatever is special about them, one by one, by `receive.rs`.

use std::net::SocketAddr;

use crate::engine::Engine;
use crate::reorder::Drops;
use crate::types::{Kept, PathId, Span};
use crate::virtio::{MIN_FRAME_LEN, is_safe};
use crate::wire::{DATA_HEADER_LEN, Data, Kind, Prefix};

impl Engine {
    /// Takes datagrams that came in together, as GRO merges them: `bytes` holds them one after
    /// the other, all of `segment` bytes (at least 1) but for the last, which may have fewer.
    /// `span` is where they lie, all in one slot. Gives how many references to the slot are
    /// taken. What is dropped is counted; otherwise as [`Engine::handle_datagram`].
    pub fn handle_datagrams(
        &mut self,
        now_ns: u64,
        path: PathId,
        from: SocketAddr,
        (bytes, segment): (&mut [u8], usize),
        span: Span,
    ) -> u32 {
        self.clock_ns = now_ns;
        let segment = segment.max(1);
        let (mut held, mut begin) = (0, 0);
        while begin < bytes.len() {
            let rest = &mut bytes[begin..];
            let at = |begin: usize, len: usize| Span {
                slot: span.slot,
                offset: span.offset + begin as u32,
                len: len as u32,
            };
            let first = self.first_of_run(path, from, &rest[..segment.min(rest.len())]);
            let count = first.map_or(1, |data| run_length(rest, segment, &data));
            let len = rest.len().min(usize::from(count) * segment);
            let together = first.filter(|_| count > 1).is_some_and(|data| {
                self.take_run(now_ns, path, (&data, count), segment, at(begin, len))
            });
            if together {
                held += u32::from(count);
            } else {
                for (nth, datagram) in rest[..len].chunks_mut(segment).enumerate() {
                    let span = at(begin + nth * segment, datagram.len());
                    let taken = self.handle_datagram(now_ns, path, from, datagram, span);
                    held += u32::from(taken == Ok(Kept::Held));
                }
            }
            begin += len;
        }
        held
    }

    /// The header of a chunk that others of its frame may follow, if nothing about it is
    /// special: it is of this conversation, in clear, and newer than all before.
    fn first_of_run(&self, path: PathId, from: SocketAddr, datagram: &[u8]) -> Option<Data> {
        if self.config.keys.sealed() {
            return None;
        }
        let prefix = Prefix::parse(datagram).ok()?;
        let known = self.paths.get(path.index())?.as_ref()?;
        let window = &known.receiving.window;
        if prefix.kind != Kind::Data
            || prefix.key != 0
            || known.config.peer != from
            || usize::from(prefix.path) != path.index()
            || self.check_epoch(&prefix).is_err()
            || window.expand(prefix.number) <= window.largest()
        {
            return None;
        }
        let data = Data::parse(prefix, datagram).ok()?;
        let payload = &datagram[DATA_HEADER_LEN..];
        let frame_len = data.frame_len();
        let whole = data.index() + 1 < data.chunks() && payload.len() == usize::from(data.size);
        let safe = frame_len >= MIN_FRAME_LEN && (data.index() > 0 || is_safe(payload, frame_len));
        (whole && safe).then_some(data)
    }

    /// Takes a run of datagrams of `segment` bytes that begins at `span`; or none of them.
    fn take_run(
        &mut self,
        now_ns: u64,
        path: PathId,
        (data, count): (&Data, u8),
        segment: usize,
        span: Span,
    ) -> bool {
        let piece = Span {
            offset: span.offset + DATA_HEADER_LEN as u32,
            ..span
        };
        let bounds = self.bounds();
        let mut drops = Drops {
            counters: &mut self.metrics.refused,
            released: &mut self.released,
        };
        let run = (count, segment as u32);
        if !self
            .reorder
            .arrive_together(now_ns, data, run, piece, &bounds, &mut drops)
        {
            return false;
        }
        if let Some(path) = &mut self.paths[path.index()] {
            let number = path.receiving.window.expand(data.prefix.number);
            path.receiving
                .note_run(now_ns, number, count, data.stamp_us);
            path.stats.received_chunks += u64::from(count);
            path.stats.received_bytes += u64::from(span.len);
            self.metrics.chunks_received += u64::from(count);
        }
        self.acknowledge_in_batch(now_ns, path.index());
        self.hear(now_ns);
        true
    }
}

/// How many of the datagrams are chunks of one frame that left together, the first included,
/// whose header is `data`.
fn run_length(bytes: &[u8], segment: usize, data: &Data) -> u8 {
    let mut datagrams = bytes.chunks(segment);
    let Some(first) = datagrams.next().and_then(<[u8]>::first_chunk) else {
        return 1;
    };
    let (size, last) = (usize::from(data.size), data.chunks() - 1);
    let last_len = data.frame_len() - last * size;
    let mut count = 1;
    for next in datagrams.take(last - data.index()) {
        let is_last = data.index() + usize::from(count) == last;
        // The last one may be padded to the others' size.
        let fits = next
            .len()
            .checked_sub(DATA_HEADER_LEN)
            .is_some_and(|payload| payload == size || (is_last && payload == last_len));
        let follows = |header| Data::follows(header, first, count);
        if !fits || !next.first_chunk().is_some_and(follows) {
            break;
        }
        count += 1;
    }
    count
}
