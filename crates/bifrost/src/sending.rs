// SPDX-License-Identifier: Apache-2.0

//! What one path has in flight, by packet number. Numbers are never used twice, so an
//! acknowledgement tells exactly which transmission arrived, and how long it took.
//!
//! An entry that is taken for lost stays until it has left the bitmap: if it is
//! acknowledged after all, its chunk need not be sent again, and the path is known to
//! reorder.

use std::collections::VecDeque;

use crate::frames::FrameRef;
use crate::window::WIDTH;
use crate::wire::FIRST_NUMBER;

/// Later packets that must have arrived before one is taken for lost; at most so many.
const MIN_THRESHOLD: u32 = 3;
const MAX_THRESHOLD: u32 = 192;
/// Entries in the ring, at most. Bounds memory where lost ones pile up.
const MAX_ENTRIES: usize = 16_384;
/// A lost entry is kept this long for its late acknowledgement.
const KEEP_LOST_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Flying,
    Lost,
    Done,
}

/// A chunk on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub frame: FrameRef,
    pub at_ns: u64,
    /// Bytes in flight when it left, itself included.
    ahead: u32,
    /// Bytes of the datagram.
    pub len: u16,
    /// Which chunk of the frame.
    pub index: u8,
    /// How often it was sent, this time included.
    pub tries: u8,
    state: State,
}

/// A chunk that was acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acked {
    pub frame: FrameRef,
    pub index: u8,
}

/// What an acknowledgement brought.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub chunks: u32,
    pub bytes: u64,
    /// Of the chunks, those that had been taken for lost.
    pub spurious: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Sending {
    entries: VecDeque<Sent>,
    /// Number of the first entry.
    base: u64,
    /// No entry before this number is flying.
    head: u64,
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

impl Sending {
    pub(crate) fn new(first: u64) -> Sending {
        Sending {
            entries: VecDeque::new(),
            base: first,
            head: first,
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

    /// Of a conversation that begins.
    pub(crate) fn fresh() -> Sending {
        Sending::new(FIRST_NUMBER)
    }

    pub(crate) fn next(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    pub(crate) fn inflight(&self) -> u64 {
        self.inflight
    }

    pub(crate) fn threshold(&self) -> u32 {
        self.threshold
    }

    pub(crate) fn has_room(&self) -> bool {
        self.entries.len() < MAX_ENTRIES
    }

    /// Timeouts in a row without progress.
    pub(crate) fn backoff(&self) -> u32 {
        self.backoff
    }

    pub(crate) fn push(&mut self, now_ns: u64, frame: FrameRef, index: u8, tries: u8, len: u16) {
        self.inflight += u64::from(len);
        self.entries.push_back(Sent {
            frame,
            at_ns: now_ns,
            ahead: u32::try_from(self.inflight).unwrap_or(u32::MAX),
            len,
            index,
            tries,
            state: State::Flying,
        });
        self.flying += 1;
    }

    /// Bytes that were in flight when this packet left, itself included; 0 when it is
    /// forgotten.
    pub(crate) fn ahead_of(&self, number: u64) -> u64 {
        let place = number.checked_sub(self.base);
        let entry = place.and_then(|place| self.entries.get(place as usize));
        entry.map_or(0, |entry| entry.ahead.into())
    }

    /// When the oldest packet in flight was sent.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        (self.flying > 0).then(|| self.entries[(self.head - self.base) as usize].at_ns)
    }

    /// Takes in an acknowledgement of `largest`, which must have been sent; appends
    /// what it acknowledges to `acked`.
    pub(crate) fn acknowledge(
        &mut self,
        now_ns: u64,
        largest: u64,
        bits: &[u64; 4],
        acked: &mut Vec<Acked>,
    ) -> Progress {
        let mut progress = Progress::default();
        let first = self.base.max(largest.saturating_sub(WIDTH - 1));
        for number in first..=largest {
            let back = largest - number;
            if bits[(back / 64) as usize] >> (back % 64) & 1 == 0 {
                continue;
            }
            let entry = &mut self.entries[(number - self.base) as usize];
            match entry.state {
                State::Done => continue,
                State::Flying => {
                    self.inflight -= u64::from(entry.len);
                    self.flying -= 1;
                }
                State::Lost => {
                    progress.spurious += 1;
                    let distance = self.largest_acked.saturating_sub(number) as u32 + 1;
                    self.threshold = self.threshold.max(distance.min(MAX_THRESHOLD));
                    self.relaxed_ns = now_ns;
                }
            }
            entry.state = State::Done;
            progress.chunks += 1;
            progress.bytes += u64::from(entry.len);
            acked.push(Acked {
                frame: entry.frame,
                index: entry.index,
            });
        }
        self.largest_acked = self.largest_acked.max(largest);
        self.overtaken = self.overtaken.max(largest);
        if progress.chunks > 0 {
            self.timer_from_ns = now_ns;
            self.backoff = 0;
        }
        self.trim(now_ns);
        progress
    }

    /// Appends to `lost` what enough later packets have overtaken.
    pub(crate) fn lose_overtaken(&mut self, now_ns: u64, lost: &mut Vec<Sent>) {
        if now_ns.saturating_sub(self.relaxed_ns) > KEEP_LOST_NS {
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
    pub(crate) fn answered(&mut self, now_ns: u64, probe_ns: u64) {
        self.backoff = 0;
        let earlier = self.entries.partition_point(|entry| entry.at_ns < probe_ns);
        self.overtaken = self.overtaken.max(self.base + earlier as u64);
        self.note_gap(now_ns);
    }

    fn note_gap(&mut self, now_ns: u64) {
        let gap = self.flying > 0 && self.head < self.overtaken;
        self.gap_since_ns = gap.then(|| self.gap_since_ns.unwrap_or(now_ns));
    }

    /// When the gap that too few packets have overtaken counts as a loss.
    pub(crate) fn gap_deadline(&self, wait_ns: u64) -> Option<u64> {
        let factor = if self.threshold > MIN_THRESHOLD { 4 } else { 1 };
        Some(self.gap_since_ns? + factor * wait_ns)
    }

    /// That time has come.
    pub(crate) fn lose_gap(&mut self, lost: &mut Vec<Sent>) {
        self.lose_before(self.overtaken, usize::MAX, lost);
        self.gap_since_ns = None;
    }

    /// When the oldest packet times out.
    pub(crate) fn timeout(&self, rto_ns: u64) -> Option<u64> {
        let from = self.oldest_ns()?.max(self.timer_from_ns);
        Some(from + (rto_ns << self.backoff.min(6)))
    }

    /// It has: the next one comes after twice the time.
    pub(crate) fn back_off(&mut self, now_ns: u64) {
        self.timer_from_ns = now_ns;
        self.backoff += 1;
    }

    /// The timeout is believed: the two oldest are taken for lost, the others are waited
    /// for.
    pub(crate) fn lose_oldest(&mut self, lost: &mut Vec<Sent>) {
        self.lose_before(self.next(), 2, lost);
    }

    /// The path is dead.
    pub(crate) fn lose_all(&mut self, lost: &mut Vec<Sent>) {
        self.lose_before(self.next(), usize::MAX, lost);
        self.gap_since_ns = None;
        self.backoff = 0;
    }

    fn lose_before(&mut self, end: u64, most: usize, lost: &mut Vec<Sent>) {
        let mut count = 0;
        while self.flying > 0 && self.head < end && count < most {
            let entry = &mut self.entries[(self.head - self.base) as usize];
            if entry.state == State::Flying {
                entry.state = State::Lost;
                self.inflight -= u64::from(entry.len);
                self.flying -= 1;
                lost.push(*entry);
                count += 1;
            }
            self.head += 1;
        }
        self.advance_head();
    }

    /// Keeps `head` on a flying entry, or at the end.
    fn advance_head(&mut self) {
        let flying = |entry: &Sent| entry.state == State::Flying;
        while self
            .entries
            .get((self.head - self.base) as usize)
            .is_some_and(|e| !flying(e))
        {
            self.head += 1;
        }
    }

    fn trim(&mut self, now_ns: u64) {
        while let Some(entry) = self.entries.front() {
            let gone = match entry.state {
                State::Flying => false,
                State::Done => true,
                State::Lost => {
                    self.base + WIDTH <= self.largest_acked || entry.at_ns + KEEP_LOST_NS < now_ns
                }
            };
            if !gone {
                break;
            }
            self.entries.pop_front();
            self.base += 1;
        }
        self.head = self.head.max(self.base);
        self.advance_head();
    }

    /// Forgets what nobody can acknowledge any more; from time to time.
    pub(crate) fn tidy(&mut self, now_ns: u64) {
        self.trim(now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::Frames;
    use crate::types::Span;

    #[test]
    fn three_later_packets_make_a_loss_and_two_do_not() {
        let at = Frames::new(1).insert(0, Span::default(), 0, 100, 8);
        let mut sending = Sending::fresh();
        for index in 0..4 {
            sending.push(0, at, index, 1, 100);
        }
        let (mut acked, mut lost) = (Vec::new(), Vec::new());
        for (later, bits, losses) in [(2, 0b011, 0), (3, 0b111, 1)] {
            sending.acknowledge(later, FIRST_NUMBER + later, &[bits, 0, 0, 0], &mut acked);
            sending.lose_overtaken(later, &mut lost);
            assert_eq!(lost.len(), losses, "{later} later ones have arrived");
        }
        assert_eq!((lost[0].index, acked.len(), sending.inflight()), (0, 3, 0));
    }
}
