// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;
use crate::send_buffer::SendBuffer;
use crate::types::Span;
use crate::wire::FIRST_NUMBER;

const LEN: u16 = 100;

fn chunks(first: u8, count: u8, last_len: u16) -> ChunkRun {
    ChunkRun {
        first,
        count,
        transmissions: 1,
        len: LEN,
        last_len,
    }
}

#[test]
fn three_later_packets_make_a_loss_and_two_do_not() {
    let at = SendBuffer::new(1).insert(0, Span::default(), 0, 100, 8);
    let mut sent = SentPackets::new(FIRST_NUMBER);
    sent.push(0, at, chunks(0, 4, LEN));
    let (mut acked, mut lost) = (Vec::new(), Vec::new());
    for (later, bits, losses) in [(2, 0b011, 0), (3, 0b111, 1)] {
        sent.acknowledge(later, FIRST_NUMBER + later, &[bits, 0, 0, 0], &mut acked);
        sent.lose_overtaken(later, &mut lost);
        assert_eq!(lost.len(), losses, "{later} later ones have arrived");
    }
    let arrived: Vec<u64> = acked.iter().map(|run| run.chunks).collect();
    assert_eq!(
        (lost[0].index, arrived, sent.inflight()),
        (0, vec![0b0110, 0b1000], 0)
    );
}

/// A packet as the model keeps it, for ever.
#[derive(Clone, Copy, Debug)]
struct Packet {
    chunk: u8,
    at_ns: u64,
    len: u64,
    ahead: u64,
    flying: bool,
    done: bool,
}

/// The same without runs: packet by packet, nothing forgotten.
#[derive(Debug, Default)]
struct Model {
    packets: Vec<Packet>,
    largest_acked: Option<usize>,
    threshold: usize,
}

impl Model {
    fn inflight(&self) -> u64 {
        self.flying().map(|(_, packet)| packet.len).sum()
    }

    fn flying(&self) -> impl Iterator<Item = (usize, &Packet)> {
        let all = self.packets.iter().enumerate();
        all.filter(|(_, packet)| packet.flying)
    }

    fn push(&mut self, at_ns: u64, chunks: ChunkRun) {
        for nth in 0..chunks.count {
            let last = nth + 1 == chunks.count;
            let len = u64::from(if last { chunks.last_len } else { chunks.len });
            let ahead = self.inflight() + len;
            self.packets.push(Packet {
                chunk: chunks.first + nth,
                at_ns,
                len,
                ahead,
                flying: true,
                done: false,
            });
        }
    }

    /// The chunks that have arrived, and what progress that is.
    fn acknowledge(&mut self, largest: usize, bits: &[u64; 4]) -> (Vec<u8>, Progress) {
        let (mut acked, mut progress) = (Vec::new(), Progress::default());
        for back in (0..=largest.min(255)).rev() {
            let packet = &mut self.packets[largest - back];
            if bits[back / 64] >> (back % 64) & 1 == 0 || packet.done {
                continue;
            }
            if !packet.flying {
                progress.spurious += 1;
                let before = self.largest_acked.map_or(0, |number| number + 1);
                let distance = before.saturating_sub(largest - back);
                self.threshold = self.threshold.max(distance.min(MAX_THRESHOLD as usize));
            }
            (packet.flying, packet.done) = (false, true);
            progress.chunks += 1;
            progress.bytes += packet.len;
            acked.push(packet.chunk);
        }
        self.largest_acked = self.largest_acked.max(Some(largest));
        (acked, progress)
    }

    fn lose_before(&mut self, end: usize, most: usize) -> Vec<u8> {
        let lost: Vec<usize> = self
            .flying()
            .map(|(number, _)| number)
            .take_while(|number| *number < end)
            .take(most)
            .collect();
        let chunk_of = |number: usize| self.packets[number].chunk;
        let chunks = lost.iter().map(|number| chunk_of(*number)).collect();
        for number in lost {
            self.packets[number].flying = false;
        }
        chunks
    }
}

#[derive(Clone, Debug)]
enum Step {
    Push { first: u8, count: u8, last_len: u16 },
    Acknowledge { ahead: usize, bits: [u64; 4] },
    LoseOldest,
    LoseAll,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u8..64, 1..=LEN).prop_flat_map(|(first, last_len)| {
            (1..=64 - first).prop_map(move |count| Step::Push { first, count, last_len })
        }),
        6 => (0_usize..100, any::<[u64; 4]>(), any::<[u64; 4]>(), any::<bool>()).prop_map(
            |(ahead, some, more, most)| {
                let both = |n: usize| if most { some[n] | more[n] } else { some[n] & more[n] };
                let bits = [0, 1, 2, 3].map(both);
                Step::Acknowledge { ahead, bits: [bits[0] | 1, bits[1], bits[2], bits[3]] }
            }
        ),
        1 => Just(Step::LoseOldest),
        1 => Just(Step::LoseAll),
    ]
}

fn chunks_of(acked: &[AckedChunks]) -> Vec<u8> {
    let bits = |mask: u64| (0..64).filter(move |bit| mask >> bit & 1 == 1);
    acked.iter().flat_map(|run| bits(run.chunks)).collect()
}

proptest! {
    /// Runs give what single packets give. Acknowledgements come in order: of what is
    /// forgotten, a late one would give the model more.
    #[test]
    fn runs_agree_with_single_packets(steps in prop::collection::vec(step(), 1..60)) {
        let at = SendBuffer::new(1).insert(0, Span::default(), 0, 100, 64);
        let mut sent = SentPackets::new(FIRST_NUMBER);
        let mut model = Model { threshold: MIN_THRESHOLD as usize, ..Model::default() };
        for (now_ns, step) in (0..).zip(steps) {
            let (mut acked, mut lost) = (Vec::new(), Vec::new());
            let mut expected = Vec::new();
            match step {
                Step::Push { first, count, last_len } => {
                    sent.push(now_ns, at, chunks(first, count, last_len));
                    model.push(now_ns, chunks(first, count, last_len));
                }
                Step::Acknowledge { ahead, bits } => {
                    let least = model.largest_acked.map_or(0, |largest| largest + 1);
                    let Some(most) = model.packets.len().checked_sub(1) else { continue };
                    let largest = (least + ahead).min(most);
                    let number = FIRST_NUMBER + largest as u64;
                    let known = sent.ahead_of(number);
                    prop_assert!(known == 0 || known == model.packets[largest].ahead);
                    let progress = sent.acknowledge(now_ns, number, &bits, &mut acked);
                    let (arrived, same) = model.acknowledge(largest, &bits);
                    prop_assert_eq!((chunks_of(&acked), progress), (arrived, same));
                    prop_assert_eq!(sent.threshold() as usize, model.threshold);
                    sent.lose_overtaken(now_ns, &mut lost);
                    let end = (model.largest_acked.unwrap() + 1).saturating_sub(model.threshold);
                    expected = model.lose_before(end, usize::MAX);
                    let gap = model.flying().next().is_some_and(|(n, _)| n < model.largest_acked.unwrap());
                    prop_assert_eq!(sent.gap_deadline(0).is_some(), gap);
                }
                Step::LoseOldest => {
                    sent.lose_oldest(&mut lost);
                    expected = model.lose_before(usize::MAX, 2);
                }
                Step::LoseAll => {
                    sent.lose_all(&mut lost);
                    expected = model.lose_before(usize::MAX, usize::MAX);
                }
            }
            let lost: Vec<u8> = lost.iter().map(|lost| lost.index).collect();
            prop_assert_eq!(lost, expected);
            prop_assert_eq!(sent.inflight(), model.inflight());
            let oldest = model.flying().next().map(|(_, packet)| packet.at_ns);
            prop_assert_eq!(sent.oldest_ns(), oldest);
            prop_assert_eq!(sent.next(), FIRST_NUMBER + model.packets.len() as u64);
        }
    }
}
