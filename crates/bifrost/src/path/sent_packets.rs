// SPDX-License-Identifier: Apache-2.0

//! What one path has in flight, by packet number. Numbers are never used twice, so an
//! acknowledgement shows exactly which transmission arrived, and how long it took.
//!
//! Chunks of a frame that leave together are one entry, a run, and what has become of
//! each of them is a bit: bulk is pushed and acknowledged by the run.
//!
//! A chunk that is taken for lost stays until it has left the bitmap: if it is
//! acknowledged after all, it need not be retransmitted, and the path is known to
//! reorder.

use std::collections::VecDeque;

use super::replay_window::WIDTH;
use crate::send_buffer::FrameRef;

/// Later packets that must have arrived before one is taken for lost: at least, at most.
const MIN_THRESHOLD: u32 = 3;
const MAX_THRESHOLD: u32 = 192;
/// Packets that are remembered, at most. Bounds memory where lost ones pile up.
const MAX_PACKETS: u64 = 16_384;
/// A lost packet is kept this long for its late acknowledgement.
const LOST_KEPT_NS: u64 = 1_000_000_000;

/// Chunks of one frame that left together, with numbers that follow one another. Bit *n*
/// of a mask is the *n*th of them.
#[derive(Clone, Copy, Debug)]
struct Run {
    frame: FrameRef,
    /// Number of the first.
    number: u64,
    at_ns: u64,
    flying: u64,
    /// Taken for lost, and not acknowledged since.
    lost: u64,
    /// Bytes that were in flight before it left.
    ahead: u32,
    pub chunks: ChunkRun,
}

/// Chunks of a frame that follow one another, as datagrams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkRun {
    /// The first, and how many: 1 to 64.
    pub first: u8,
    pub count: u8,
    /// How often they were sent, this time included.
    pub transmissions: u8,
    /// Bytes of each datagram but the last, and of that one.
    pub len: u16,
    pub last_len: u16,
}

/// A chunk that was taken for lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostChunk {
    pub frame: FrameRef,
    /// Which chunk of the frame.
    pub index: u8,
    /// How often it was sent.
    pub transmissions: u8,
}

/// Chunks of a frame that were acknowledged, as a mask.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckedChunks {
    pub frame: FrameRef,
    pub chunks: u64,
}

/// What an acknowledgement brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub chunks: u32,
    pub bytes: u64,
    /// Of the chunks, those that had been taken for lost.
    pub spurious: u32,
}

impl ChunkRun {
    /// Bytes of the first `count` of them.
    fn bytes(&self, count: u32) -> u64 {
        let short = if count == u32::from(self.count) {
            self.len - self.last_len
        } else {
            0
        };
        u64::from(count) * u64::from(self.len) - u64::from(short)
    }

    /// Bytes of those in a mask.
    fn bytes_of(&self, mask: u64) -> u64 {
        let last = mask >> (self.count - 1) & 1;
        let short = last * u64::from(self.len - self.last_len);
        u64::from(mask.count_ones()) * u64::from(self.len) - short
    }
}

impl Run {
    /// The number after its last.
    fn end(&self) -> u64 {
        self.number + u64::from(self.chunks.count)
    }

    fn first_flying(&self) -> u64 {
        self.number + u64::from(self.flying.trailing_zeros())
    }
}

/// The packets of a path that are not settled yet.
#[derive(Debug)]
pub(crate) struct SentPackets {
    runs: VecDeque<Run>,
    /// The number that comes next.
    next: u64,
    /// No run before this place has anything flying.
    head: usize,
    inflight: u64,
    flying: u32,
    largest_acked: u64,
    /// Packets before this number were sent before something that has arrived.
    overtaken: u64,
    threshold: u32,
    relaxed_ns: u64,
    /// Since when something older than an acknowledged packet is missing.
    gap_since_ns: Option<u64>,
    /// The timeout runs from here, or from when its packet was sent if that is later.
    timer_from_ns: u64,
    backoff: u32,
}

impl SentPackets {
    pub(crate) fn new(first: u64) -> SentPackets {
        SentPackets {
            runs: VecDeque::new(),
            next: first,
            head: 0,
            inflight: 0,
            flying: 0,
            largest_acked: first - 1,
            overtaken: first,
            threshold: MIN_THRESHOLD,
            relaxed_ns: 0,
            gap_since_ns: None,
            timer_from_ns: 0,
            backoff: 0,
        }
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn inflight(&self) -> u64 {
        self.inflight
    }

    pub(crate) fn threshold(&self) -> u32 {
        self.threshold
    }

    /// Packets that may still be sent before the oldest one that is remembered has gone.
    pub(crate) fn packets_left(&self) -> u64 {
        let remembered = self.runs.front().map_or(0, |run| self.next - run.number);
        MAX_PACKETS.saturating_sub(remembered)
    }

    /// Timeouts in a row without progress.
    pub(crate) fn backoff(&self) -> u32 {
        self.backoff
    }

    /// These are on their way; the first one has the number [`SentPackets::next`].
    pub(crate) fn push(&mut self, now_ns: u64, frame: FrameRef, chunks: ChunkRun) {
        self.runs.push_back(Run {
            frame,
            number: self.next,
            at_ns: now_ns,
            flying: u64::MAX >> (64 - chunks.count),
            lost: 0,
            ahead: u32::try_from(self.inflight).unwrap_or(u32::MAX),
            chunks,
        });
        self.next += u64::from(chunks.count);
        self.inflight += chunks.bytes(chunks.count.into());
        self.flying += u32::from(chunks.count);
    }

    /// Bytes that were in flight when this packet left, itself included; 0 when it is
    /// forgotten.
    pub(crate) fn ahead_of(&self, number: u64) -> u64 {
        let place = self.runs.partition_point(|run| run.end() <= number);
        let run = self.runs.get(place).filter(|run| run.number <= number);
        run.map_or(0, |run| {
            let count = (number - run.number) as u32 + 1;
            u64::from(run.ahead) + run.chunks.bytes(count)
        })
    }

    /// When the oldest packet in flight was sent.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        (self.flying > 0).then(|| self.runs[self.head].at_ns)
    }

    /// Takes in an acknowledgement of `largest`, which must have been sent; appends
    /// what it acknowledges to `acked`.
    pub(crate) fn acknowledge(
        &mut self,
        now_ns: u64,
        largest: u64,
        bits: &[u64; 4],
        acked: &mut Vec<AckedChunks>,
    ) -> Progress {
        let mut progress = Progress::default();
        let first = largest.saturating_sub(WIDTH - 1);
        let place = self.runs.partition_point(|run| run.end() <= first);
        for run in self.runs.range_mut(place..) {
            if run.number > largest {
                break;
            }
            let arrived = arrived(run, largest, bits) & (run.flying | run.lost);
            if arrived == 0 {
                continue;
            }
            let (flying, late) = (arrived & run.flying, arrived & run.lost);
            self.inflight -= run.chunks.bytes_of(flying);
            self.flying -= flying.count_ones();
            if late != 0 {
                progress.spurious += late.count_ones();
                let oldest = run.number + u64::from(late.trailing_zeros());
                let distance = self.largest_acked.saturating_sub(oldest) as u32 + 1;
                self.threshold = self.threshold.max(distance.min(MAX_THRESHOLD));
                self.relaxed_ns = now_ns;
            }
            run.flying &= !arrived;
            run.lost &= !arrived;
            progress.chunks += arrived.count_ones();
            progress.bytes += run.chunks.bytes_of(arrived);
            acked.push(AckedChunks {
                frame: run.frame,
                chunks: arrived << run.chunks.first,
            });
        }
        self.largest_acked = self.largest_acked.max(largest);
        self.overtaken = self.overtaken.max(largest);
        if progress.chunks > 0 {
            self.timer_from_ns = now_ns;
            self.backoff = 0;
        }
        self.tidy(now_ns);
        progress
    }

    /// Appends to `lost` what enough later packets have overtaken.
    pub(crate) fn lose_overtaken(&mut self, now_ns: u64, lost: &mut Vec<LostChunk>) {
        if now_ns.saturating_sub(self.relaxed_ns) > LOST_KEPT_NS {
            self.relaxed_ns = now_ns;
            self.threshold = (self.threshold / 2).max(MIN_THRESHOLD);
        }
        let end = self
            .largest_acked
            .saturating_sub(u64::from(self.threshold) - 1);
        self.lose_before(end, usize::MAX, lost);
        self.note_gap(now_ns);
    }

    /// The path has answered a probe that was sent at `probe_ns`: it works, and what
    /// was sent before that and is not acknowledged soon is lost. The answer comes
    /// with an acknowledgement.
    pub(crate) fn on_probe_answered(&mut self, now_ns: u64, probe_ns: u64) {
        self.backoff = 0;
        let earlier = self.runs.partition_point(|run| run.at_ns < probe_ns);
        let number = self.runs.get(earlier).map_or(self.next, |run| run.number);
        self.overtaken = self.overtaken.max(number);
        self.note_gap(now_ns);
    }

    fn note_gap(&mut self, now_ns: u64) {
        let oldest = self.runs.get(self.head).filter(|_| self.flying > 0);
        let gap = oldest.is_some_and(|run| run.first_flying() < self.overtaken);
        self.gap_since_ns = gap.then(|| self.gap_since_ns.unwrap_or(now_ns));
    }

    /// When the gap that too few packets have overtaken counts as a loss.
    pub(crate) fn gap_deadline(&self, wait_ns: u64) -> Option<u64> {
        let factor = if self.threshold > MIN_THRESHOLD { 4 } else { 1 };
        Some(self.gap_since_ns? + factor * wait_ns)
    }

    /// That time has come.
    pub(crate) fn lose_gap(&mut self, lost: &mut Vec<LostChunk>) {
        self.lose_before(self.overtaken, usize::MAX, lost);
        self.gap_since_ns = None;
    }

    /// When the oldest packet times out.
    pub(crate) fn timeout(&self, rto_ns: u64) -> Option<u64> {
        let from = self.oldest_ns()?.max(self.timer_from_ns);
        Some(from + (rto_ns << self.backoff.min(6)))
    }

    /// The timeout has come: the next one comes after twice the time.
    pub(crate) fn back_off(&mut self, now_ns: u64) {
        self.timer_from_ns = now_ns;
        self.backoff += 1;
    }

    /// The timeout means loss: the two oldest are taken for lost, the others are waited
    /// for.
    pub(crate) fn lose_oldest(&mut self, lost: &mut Vec<LostChunk>) {
        self.lose_before(self.next, 2, lost);
    }

    /// The path is dead: all of it is lost.
    pub(crate) fn lose_all(&mut self, lost: &mut Vec<LostChunk>) {
        self.lose_before(self.next, usize::MAX, lost);
        self.gap_since_ns = None;
        self.backoff = 0;
    }

    fn lose_before(&mut self, end: u64, most: usize, lost: &mut Vec<LostChunk>) {
        let mut count = 0;
        while self.flying > 0 && count < most {
            let run = &mut self.runs[self.head];
            let nth = run.flying.trailing_zeros() as u8;
            if run.number + u64::from(nth) >= end {
                break;
            }
            let bit = 1 << nth;
            run.flying &= !bit;
            run.lost |= bit;
            self.inflight -= run.chunks.bytes_of(bit);
            self.flying -= 1;
            count += 1;
            lost.push(LostChunk {
                frame: run.frame,
                index: run.chunks.first + nth,
                transmissions: run.chunks.transmissions,
            });
            self.advance_head();
        }
    }

    /// Keeps `head` on a run with something flying, or at the end.
    fn advance_head(&mut self) {
        while self.runs.get(self.head).is_some_and(|run| run.flying == 0) {
            self.head += 1;
        }
    }

    /// Forgets what cannot be acknowledged any more.
    pub(crate) fn tidy(&mut self, now_ns: u64) {
        while let Some(run) = self.runs.front()
            && run.flying == 0
            && (run.lost == 0
                || run.end() + WIDTH <= self.largest_acked + 1
                || run.at_ns + LOST_KEPT_NS < now_ns)
        {
            self.runs.pop_front();
            self.head = self.head.saturating_sub(1);
        }
        self.advance_head();
    }
}

/// Which of a run the bitmap names.
fn arrived(run: &Run, largest: u64, bits: &[u64; 4]) -> u64 {
    let last = run.end() - 1;
    // Bit n of the bitmap is number largest - n: the run's last one comes first.
    let backward = match largest.checked_sub(last) {
        Some(back) => bits_from(bits, back),
        None => bits_from(bits, 0) << (last - largest),
    };
    let unused = 64 - u32::from(run.chunks.count);
    (backward << unused).reverse_bits()
}

/// 64 bits of the bitmap from bit `at` on; it is followed by zeroes.
fn bits_from(bits: &[u64; 4], at: u64) -> u64 {
    let (word, rest) = ((at / 64) as usize, at % 64);
    let word_at = |word: usize| bits.get(word).copied().unwrap_or(0);
    let low = word_at(word) >> rest;
    match rest {
        0 => low,
        rest => low | word_at(word + 1) << (64 - rest),
    }
}

#[cfg(test)]
mod tests;
