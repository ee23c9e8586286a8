// SPDX-License-Identifier: Apache-2.0
//! Round-trip times from sampled packets, as a cloud's flow metrics have them.
//!
//! The sampler takes 1 in N packets, each direction by itself. It notes a sampled
//! data segment's end; the first sampled packet of the other direction that
//! acknowledges it gives a value. So both must have been sampled, and whichever
//! packet carries the ACK decides what is measured: the bare ACK of the receiving
//! kernel (the network), or, where that one was not sampled, the receiver's next
//! data (its application's time).

/// Segments of one flow that wait for their ACK.
const NOTED: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Noted {
    end_seq: u32,
    len: u32,
    t_ns: u64,
}

/// The sampler's memory of one flow and direction. Constant size.
#[derive(Clone, Debug)]
pub struct Pairs {
    lifetime_ns: u64,
    noted: [Option<Noted>; NOTED],
    next: usize,
}

impl Pairs {
    /// An empty memory that forgets a segment after `lifetime_ns`: one that never does would pair a
    /// segment with any later packet of an idle flow.
    pub fn new(lifetime_ns: u64) -> Self {
        Self {
            lifetime_ns,
            noted: [None; NOTED],
            next: 0,
        }
    }

    /// A data segment was sampled on its way out. A retransmitted segment keeps the
    /// time of its first sampled copy: a sampler cannot know of the others.
    pub fn data(&mut self, t_ns: u64, seq: u32, len: u32) {
        let end_seq = seq.wrapping_add(len);
        let again = |noted: &Noted| {
            noted.end_seq == end_seq && t_ns.saturating_sub(noted.t_ns) <= self.lifetime_ns
        };
        if len == 0 || self.noted.iter().flatten().any(again) {
            return;
        }
        self.noted[self.next] = Some(Noted { end_seq, len, t_ns });
        self.next = (self.next + 1) % NOTED;
    }

    /// A packet with this ACK number was sampled on its way in. Gives the time
    /// since the segment that it acknowledges, if that one was sampled.
    ///
    /// An ACK belongs to a segment if it covers the segment and less than another
    /// one of its length: receivers acknowledge every second segment. An ACK from
    /// further on belongs to later data, and the segment is forgotten.
    pub fn ack(&mut self, t_ns: u64, ack: u32) -> Option<u64> {
        let mut value = None;
        for slot in &mut self.noted {
            let Some(noted) = *slot else { continue };
            let age_ns = t_ns.saturating_sub(noted.t_ns);
            // Serial number arithmetic, RFC 1982.
            let beyond = ack.wrapping_sub(noted.end_seq);
            let covered = beyond < 1 << 31;
            if age_ns > self.lifetime_ns || covered {
                *slot = None;
            }
            if age_ns <= self.lifetime_ns && covered && beyond < noted.len {
                // Of several, the one sent last: the ACK's own.
                value = Some(value.map_or(age_ns, |best: u64| best.min(age_ns)));
            }
        }
        value
    }
}

/// The middle of the millisecond that `ns` lies in, in milliseconds: a metric with
/// buckets of 1 ms reports 0.5 for everything below 1 ms.
pub fn bucket_ms(ns: u64) -> f64 {
    (ns / 1_000_000) as f64 + 0.5
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const LIFETIME_NS: u64 = 2_000 * MS;

    #[test]
    fn a_value_needs_both_ends() {
        let mut pairs = Pairs::new(LIFETIME_NS);
        assert_eq!(pairs.ack(0, 100), None);
        pairs.data(MS, 100, 10);
        assert_eq!(pairs.ack(2 * MS, 100), None, "does not cover it");
        assert_eq!(pairs.ack(4 * MS, 110), Some(3 * MS));
        assert_eq!(pairs.ack(5 * MS, 110), None, "one value a segment");
    }

    #[test]
    fn the_next_data_gives_the_applications_time() {
        // The bare ACK at 1 ms was not sampled, the next request at 300 ms was.
        let mut pairs = Pairs::new(LIFETIME_NS);
        pairs.data(0, 7, 2);
        assert_eq!(pairs.ack(300 * MS, 9), Some(300 * MS));
    }

    #[test]
    fn an_ack_of_later_data_is_no_measure_of_earlier() {
        let mut pairs = Pairs::new(LIFETIME_NS);
        pairs.data(0, 7, 2);
        // Two more responses of two bytes have been acknowledged meanwhile.
        assert_eq!(pairs.ack(600 * MS, 13), None);
        assert_eq!(pairs.ack(601 * MS, 9), None, "forgotten");
        // One ACK for two full segments measures the second; the first is older.
        pairs.data(700 * MS, 100, 1448);
        pairs.data(701 * MS, 1548, 1448);
        assert_eq!(pairs.ack(702 * MS, 100 + 2 * 1448), Some(MS));
    }

    #[test]
    fn what_is_older_than_the_lifetime_is_forgotten() {
        let mut pairs = Pairs::new(LIFETIME_NS);
        pairs.data(0, 7, 2);
        assert_eq!(pairs.ack(3_000 * MS, 9), None);
        let mut pairs = Pairs::new(5_000 * MS);
        pairs.data(0, 7, 2);
        assert_eq!(pairs.ack(3_000 * MS, 9), Some(3_000 * MS));
    }

    #[test]
    fn a_retransmission_counts_from_the_first_sampled_copy() {
        let mut pairs = Pairs::new(LIFETIME_NS);
        pairs.data(0, 50, 5);
        pairs.data(200 * MS, 50, 5);
        assert_eq!(pairs.ack(201 * MS, 55), Some(201 * MS));
    }

    #[test]
    fn sequence_numbers_wrap_and_memory_does_not_grow() {
        let mut pairs = Pairs::new(LIFETIME_NS);
        pairs.data(0, u32::MAX - 1, 4);
        assert_eq!(pairs.ack(MS, 2), Some(MS));
        for i in 0..1000 {
            pairs.data(u64::from(i), i * 10, 10);
        }
        assert_eq!(pairs.ack(1000, 10 * 10), None, "the oldest gave way");
        assert_eq!(pairs.ack(1000, 9_990), Some(2));
    }

    #[test]
    fn buckets_of_a_millisecond_say_half_a_millisecond() {
        assert_eq!(bucket_ms(50_000), 0.5);
        assert_eq!(bucket_ms(999_999), 0.5);
        assert_eq!(bucket_ms(38_200_000), 38.5);
    }
}
