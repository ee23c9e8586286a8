// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeSet;

use causeway_bifrost::{DeliveryVerdict, Limits, PathId, Span, VNET_HEADER_LEN};

use super::super::memory::SlabKind;
use super::super::pair::{engines, peer};
use super::*;

/// Two engines that know each other, and the memory of the first.
struct Bench {
    ends: [TransportEngine; 2],
    memory: Memory,
    outbox: Outbox,
    now_ns: u64,
    /// Slots and what lies in them.
    frames: Vec<(u32, Vec<u8>)>,
    /// Of each message of data sent so far: its datagrams, and the ranges that it was made of.
    messages: Vec<(usize, usize)>,
    /// Sizes of datagrams of frames that were cut.
    sizes: BTreeSet<u16>,
}

impl Bench {
    fn new(paths: u8) -> Self {
        let mut bench = Self {
            ends: engines(paths),
            memory: Memory::new(&Limits::default(), 1472),
            outbox: Outbox::default(),
            now_ns: 0,
            frames: Vec::new(),
            messages: Vec::new(),
            sizes: BTreeSet::new(),
        };
        for _ in 0..4 {
            bench.send(|_| true);
            bench.answer();
        }
        bench
    }

    /// A frame of the guest's; whether it is taken.
    fn offer(&mut self, length: usize) -> bool {
        let number = self.frames.len();
        let Some(buffer) = self.memory.slab(SlabKind::Frame).take() else {
            return false;
        };
        let mut frame: Vec<u8> = (0..length).map(|at| (at * 7 + number) as u8).collect();
        let packet_len = (length - VNET_HEADER_LEN) as u16;
        frame[..VNET_HEADER_LEN].fill(0);
        frame[VNET_HEADER_LEN] = 0x45;
        frame[VNET_HEADER_LEN + 2..][..2].copy_from_slice(&packet_len.to_be_bytes());
        let chunk = self.ends[0].chunk_bytes();
        self.memory.read_frame(buffer, chunk, |pieces| {
            let mut rest = &frame[..];
            for piece in pieces {
                let (now, later) = rest.split_at(piece.len().min(rest.len()));
                piece[..now.len()].copy_from_slice(now);
                rest = later;
            }
        });
        let span = self.memory.keep_frame(buffer, length);
        let taken = self.ends[0].handle_frame(self.now_ns, span, 7).is_ok();
        match taken {
            true => self.frames.push((span.slot, frame)),
            false => self.memory.release(span.slot, 1),
        }
        taken
    }

    /// What is sent arrives as far as `passes` lets it, and is what the engine wants. The
    /// number of datagrams of data.
    fn send(&mut self, mut passes: impl FnMut(usize) -> bool) -> usize {
        self.now_ns += 20_000;
        self.ends[0].handle_timeout(self.now_ns);
        let mut count = 0;
        loop {
            let [sender, receiver] = &mut self.ends;
            let more = self.outbox.fill(self.now_ns, sender, &mut self.memory);
            // As `send` does: after all have been gathered.
            for batch in &self.outbox.batches[..self.outbox.used] {
                let wanted = wanted(batch, &self.frames);
                let (mut bytes, ranges) = sent(batch, &self.memory);
                assert!(bytes == wanted.concat(), "{:?}", batch.transmit);
                let size = batch.transmit.segment_size;
                let (last, others) = wanted.split_last().unwrap();
                let full = usize::from(size);
                assert!(others.iter().all(|datagram| datagram.len() == full));
                assert!(last.len() <= full && bytes.len() <= MESSAGE_MAX);
                let segment = if others.is_empty() { 0 } else { size };
                assert_eq!(batch.segment(bytes.len()), segment);
                if wanted.len() > 3 {
                    self.sizes.insert(size);
                }
                let is_data = batch.transmit.datagrams[0].payload.len > 0;
                if is_data {
                    self.messages.push((wanted.len(), ranges));
                }
                let mut rest = &mut bytes[..];
                for datagram in &wanted {
                    let (now, later) = rest.split_at_mut(datagram.len());
                    rest = later;
                    if is_data {
                        count += 1;
                    }
                    if !is_data || passes(count) {
                        let span = Span {
                            slot: u32::MAX,
                            offset: 0,
                            len: now.len() as u32,
                        };
                        let _ = receiver.handle_datagram(
                            self.now_ns,
                            batch.transmit.path,
                            peer(),
                            now,
                            span,
                        );
                    }
                }
            }
            if !more {
                break;
            }
        }
        while let Some(release) = self.ends[0].poll_release() {
            self.frames.retain(|(slot, _)| *slot != release.slot);
            self.memory.release(release.slot, release.count);
        }
        count
    }

    /// What the other end says arrives.
    fn answer(&mut self) {
        self.now_ns += 20_000;
        self.ends[1].handle_timeout(self.now_ns);
        while let Some(delivery) = self.ends[1].poll_deliver() {
            let token = delivery.token;
            self.ends[1].delivered(self.now_ns, token, DeliveryVerdict::Ok);
        }
        while self.ends[1].poll_release().is_some() {}
        let mut batch = Transmit::default();
        while self.ends[1].poll_transmit(self.now_ns, &mut batch) {
            let mut headers = batch.headers.clone();
            let _ = self.ends[0].handle_datagram(
                self.now_ns,
                batch.path,
                peer(),
                &mut headers,
                Span::default(),
            );
        }
    }
}

/// The datagrams of a batch, by the engine's account of it.
fn wanted(batch: &Batch, frames: &[(u32, Vec<u8>)]) -> Vec<Vec<u8>> {
    let mut headers = &batch.transmit.headers[..];
    let datagrams = batch.transmit.datagrams.iter().map(|segment| {
        let (header, rest) = headers.split_at(segment.header_len.into());
        headers = rest;
        let mut datagram = header.to_vec();
        let payload = segment.payload;
        if payload.len > 0 {
            let (_, frame) = frames
                .iter()
                .find(|(slot, _)| *slot == payload.slot)
                .unwrap();
            let from = payload.offset as usize;
            datagram.extend_from_slice(&frame[from..from + payload.len as usize]);
        }
        datagram.resize(datagram.len() + usize::from(segment.padding), 0);
        datagram
    });
    datagrams.collect()
}

/// What leaves for a batch, and how many ranges it is gathered from.
fn sent(batch: &Batch, memory: &Memory) -> (Vec<u8>, usize) {
    let ranges: Vec<&[u8]> = batch
        .parts
        .iter()
        .map(|part| match part {
            Part::Header(range) => &batch.transmit.headers[range.clone()],
            Part::Region(region) => memory.region(region),
            Part::Zeroes(count) => &ZEROES[..usize::from(*count)],
        })
        .collect();
    (ranges.concat(), ranges.len())
}

#[test]
fn bulk_leaves_in_few_ranges() {
    let mut bench = Bench::new(1);
    // The first is read before it is known how it will be cut, and the second is like it.
    for _ in 0..2 {
        bench.offer(65_222);
        bench.send(|_| true);
        bench.answer();
    }
    bench.messages.clear();
    for _ in 0..40 {
        while bench.ends[0].can_accept() && bench.offer(65_222) {}
        bench.send(|_| true);
        bench.answer();
    }
    let (datagrams, ranges) = bench
        .messages
        .iter()
        .fold((0, 0), |(d, r), (datagrams, ranges)| {
            (d + datagrams, r + ranges)
        });
    assert!(datagrams > 40 * 46, "{datagrams}");
    assert!(ranges * 15 < datagrams, "{datagrams} in {ranges} ranges");
}

#[test]
fn whatever_is_sent_has_the_frames_bytes() {
    let mut bench = Bench::new(3);
    let lengths = [
        65_222, 29_022, 65_222, 62, 1418, 1500, 2900, 40_000, FRAME, 200,
    ];
    for turn in 0..400 {
        if turn == 200 {
            // What is under way is cut again.
            bench.ends[0].set_path_mtu(bench.now_ns, PathId(1), 1300);
        }
        for step in 0..4 {
            if bench.ends[0].can_accept() {
                bench.offer(lengths[(turn + step) % lengths.len()]);
            }
        }
        // Some are lost, and retransmitted.
        bench.send(|count| (count + turn) % 11 != 0);
        bench.now_ns += 300_000;
        bench.answer();
    }
    let metrics = bench.ends[0].metrics();
    // Before and after the path became narrower.
    let narrow = bench.sizes.range(..=1272).count();
    assert!(
        narrow > 0 && narrow < bench.sizes.len(),
        "{:?}",
        bench.sizes
    );
    assert!(
        metrics.chunks_retransmitted > 100,
        "{}",
        metrics.chunks_retransmitted
    );
    assert!(metrics.frames_in > 400, "{}", metrics.frames_in);
}

/// What UDP's length field can say over IPv4.
const MESSAGE_MAX: usize = 65_507;
/// The longest frame.
const FRAME: usize = causeway_netio::tunnel::FRAME_MAX;
