// SPDX-License-Identifier: Apache-2.0
//! One real behind several balancers: each writes what it has counted, all add it up.
//!
//! A [`Share`] holds one balancer's totals since it began to count. Totals only grow,
//! so the newer of two shares of one balancer knows all that the older one knew, and a
//! [`Merged`] is joined by keeping the newer of each: the order in which shares arrive,
//! and how often, does not matter. That is all a store has to offer: a key for each
//! balancer and real, and [`Share::to_bytes`] as its value.
//!
//! Sums and histograms add up without error; means and quantiles would not.

use std::collections::BTreeMap;

use thiserror::Error;

use super::Reading;
use crate::hist::{BUCKETS, Histogram};

/// First byte of an encoded share.
const FORMAT: u8 = 2;
/// Bytes before the histogram.
const HEAD: usize = 1 + 8 * 9;
/// Bytes of one bucket that holds something.
const BUCKET: usize = 2 + 8;

/// Names a balancer among those that share a store.
pub type BalancerId = u64;

/// What one balancer has counted for one real.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Share {
    /// Which counting this is: larger whenever the counters began at zero again.
    pub epoch: u64,
    /// When it was read, in ns of a clock that the balancers agree on to about a second.
    pub at_ns: u64,
    /// Sum of the latency samples, in half nanoseconds.
    pub latency_sum_halves_ns: u64,
    /// Number of samples, doubled.
    pub latency_weight_halves: u64,
    /// Answers whose latency is graded low or an upper bound, doubled; in no sum.
    pub low_weight_halves: u64,
    /// Requests that went in.
    pub requests: u64,
    /// Connections that picked the real.
    pub opened: u64,
    /// Estimate of connections that are open.
    pub active: u64,
    /// The weight that the balancer gives the real, in millionths.
    pub weight_millionths: u64,
    /// Distribution of the latencies.
    pub histogram: Histogram,
}

/// Bytes that are no share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadShare {
    /// Another program, or a later version of this one, wrote it.
    #[error("a share begins with {FORMAT}, not with {0}; is a newer balancer at the store?")]
    Format(u8),
    /// It ends too early or holds too much.
    #[error("a share of {0} bytes is incomplete or holds too much")]
    Length(usize),
    /// It counts in a bucket that does not exist.
    #[error("a latency histogram has {BUCKETS} buckets; there is no bucket {0}")]
    Bucket(u16),
}

impl Share {
    /// As bytes, for a store: little endian, of the histogram what is not zero.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + 32 * BUCKET);
        bytes.push(FORMAT);
        for number in self.numbers() {
            bytes.extend(number.to_le_bytes());
        }
        for (bucket, &count) in self.histogram.counts().iter().enumerate() {
            if count > 0 {
                bytes.extend((bucket as u16).to_le_bytes());
                bytes.extend(count.to_le_bytes());
            }
        }
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// # Errors
    /// When the bytes are none of that.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BadShare> {
        let (&format, rest) = bytes.split_first().ok_or(BadShare::Length(0))?;
        if format != FORMAT {
            return Err(BadShare::Format(format));
        }
        let short = BadShare::Length(bytes.len());
        let (head, buckets) = rest.split_at_checked(HEAD - 1).ok_or(short)?;
        let mut numbers = [0; 9];
        for (number, bytes) in numbers.iter_mut().zip(head.chunks_exact(8)) {
            *number = bytes
                .try_into()
                .map(u64::from_le_bytes)
                .map_err(|_| short)?;
        }
        let mut counts = [0; BUCKETS];
        for entry in buckets.chunks(BUCKET) {
            let (bucket, count) = entry.split_at_checked(2).ok_or(short)?;
            let bucket = bucket
                .try_into()
                .map(u16::from_le_bytes)
                .map_err(|_| short)?;
            let count = count
                .try_into()
                .map(u64::from_le_bytes)
                .map_err(|_| short)?;
            let place = counts.get_mut(usize::from(bucket));
            *place.ok_or(BadShare::Bucket(bucket))? = count;
        }
        let [
            epoch,
            at_ns,
            latency_sum_halves_ns,
            latency_weight_halves,
            low_weight_halves,
            requests,
            opened,
            active,
            weight,
        ] = numbers;
        let histogram = Histogram::from_counts(&counts).map_err(|_| short)?;
        Ok(Self {
            epoch,
            at_ns,
            latency_sum_halves_ns,
            latency_weight_halves,
            low_weight_halves,
            requests,
            opened,
            active,
            weight_millionths: weight,
            histogram,
        })
    }

    fn numbers(&self) -> [u64; 9] {
        [
            self.epoch,
            self.at_ns,
            self.latency_sum_halves_ns,
            self.latency_weight_halves,
            self.low_weight_halves,
            self.requests,
            self.opened,
            self.active,
            self.weight_millionths,
        ]
    }

    /// Whether this share knows all that `other` knew. Of two that were read at one
    /// time any order will do that is the same everywhere.
    fn is_newer(&self, other: &Self) -> bool {
        let order = |share: &Self| (share.numbers(), share.histogram.counts().to_vec());
        (self.epoch, self.at_ns) > (other.epoch, other.at_ns)
            || ((self.epoch, self.at_ns) == (other.epoch, other.at_ns)
                && order(self) > order(other))
    }
}

/// One real as all balancers see it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Merged {
    shares: BTreeMap<BalancerId, Share>,
}

impl Merged {
    /// Takes in a balancer's share, unless a newer one is there.
    pub fn put(&mut self, balancer: BalancerId, share: Share) {
        match self.shares.get(&balancer) {
            Some(known) if !share.is_newer(known) => {}
            _ => {
                self.shares.insert(balancer, share);
            }
        }
    }

    /// Takes in all that `other` knows.
    pub fn join(&mut self, other: &Self) {
        for (&balancer, share) in &other.shares {
            self.put(balancer, share.clone());
        }
    }

    /// Forgets balancers that have not written since `before_ns`: those that are gone.
    pub fn forget(&mut self, before_ns: u64) {
        self.shares.retain(|_, share| share.at_ns >= before_ns);
    }

    /// What happened since `earlier`, a former state of this: the controller's input.
    /// A balancer that began to count anew did so at zero; one that was not there
    /// before brings only what it counts from now on.
    pub fn since(&self, earlier: &Self) -> Reading {
        let mut reading = Reading::default();
        for (balancer, now) in &self.shares {
            reading.active = reading.active.saturating_add(now.active);
            let zero = Share::default();
            let then = match earlier.shares.get(balancer) {
                Some(then) if then.epoch == now.epoch => then,
                Some(_) => &zero,
                None => now,
            };
            let add = |sum: &mut u64, now: u64, then: u64| {
                *sum = sum.saturating_add(now.saturating_sub(then));
            };
            add(
                &mut reading.latency_sum_halves_ns,
                now.latency_sum_halves_ns,
                then.latency_sum_halves_ns,
            );
            add(
                &mut reading.latency_weight_halves,
                now.latency_weight_halves,
                then.latency_weight_halves,
            );
            add(
                &mut reading.low_weight_halves,
                now.low_weight_halves,
                then.low_weight_halves,
            );
            add(&mut reading.requests, now.requests, then.requests);
        }
        reading
    }

    /// The latencies of all balancers since each began to count.
    pub fn histogram(&self) -> Histogram {
        let mut sum = Histogram::new();
        for share in self.shares.values() {
            sum.merge(&share.histogram);
        }
        sum
    }

    /// How many balancers it holds.
    pub fn balancers(&self) -> usize {
        self.shares.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn share(epoch: u64, at_ns: u64, samples: u64, latency_ns: u64) -> Share {
        let mut histogram = Histogram::new();
        histogram.record_n(latency_ns, samples);
        Share {
            epoch,
            at_ns,
            latency_sum_halves_ns: 2 * samples * latency_ns,
            latency_weight_halves: 2 * samples,
            low_weight_halves: samples,
            requests: samples,
            opened: 3,
            active: 2,
            weight_millionths: 1_000_000,
            histogram,
        }
    }

    fn shares() -> impl Strategy<Value = Vec<(BalancerId, Share)>> {
        let one = (0u64..3, 0u64..3, 0u64..4, 0u64..50, 1_000u64..1_000_000);
        let one = one.prop_map(|(balancer, epoch, at, samples, ns)| {
            (balancer, share(epoch, at, samples, ns))
        });
        prop::collection::vec(one, 0..12)
    }

    fn merged(shares: &[(BalancerId, Share)]) -> Merged {
        let mut merged = Merged::default();
        for (balancer, share) in shares {
            merged.put(*balancer, share.clone());
        }
        merged
    }

    proptest! {
        #[test]
        fn order_and_repetition_do_not_matter(all in shares(), cut in 0usize..12) {
            let (a, b) = all.split_at(cut.min(all.len()));
            let mut one = merged(a);
            one.join(&merged(b));
            one.join(&merged(a));
            let mut other = merged(b);
            other.join(&merged(a));
            let backwards: Vec<_> = all.iter().rev().cloned().collect();
            prop_assert_eq!(&one, &other);
            prop_assert_eq!(&one, &merged(&backwards));
        }

        #[test]
        fn bytes_give_the_share_back_and_never_panic(all in shares(), noise in prop::collection::vec(any::<u8>(), 0..200)) {
            for (_, share) in &all {
                let bytes = share.to_bytes();
                prop_assert_eq!(&Share::from_bytes(&bytes), &Ok(share.clone()));
                for end in 0..bytes.len().min(HEAD) {
                    prop_assert!(Share::from_bytes(&bytes[..end]).is_err());
                }
            }
            let mut noise = noise;
            if let Some(first) = noise.first_mut() {
                *first = FORMAT;
            }
            let _ = Share::from_bytes(&noise);
        }
    }

    #[test]
    fn readings_add_up_over_balancers() {
        let before = merged(&[(1, share(7, 10, 100, 5_000)), (2, share(9, 10, 50, 5_000))]);
        let now = merged(&[
            (1, share(7, 20, 160, 5_000)),
            // Began anew: all that it has counted is new.
            (2, share(10, 20, 20, 8_000)),
            // Was not known before.
            (3, share(1, 20, 1_000, 9_000)),
        ]);
        let reading = now.since(&before);
        assert_eq!(reading.requests, 60 + 20);
        assert_eq!(
            (reading.latency_weight_halves, reading.low_weight_halves),
            (2 * 80, 80)
        );
        assert_eq!(reading.latency_sum_halves_ns, 2 * (60 * 5_000 + 20 * 8_000));
        assert_eq!(reading.active, 6);
        assert_eq!(now.histogram().count(), 1_180);
        let mut later = now;
        later.put(1, share(7, 30, 170, 5_000));
        later.forget(25);
        assert_eq!(later.balancers(), 1);
    }

    #[test]
    fn quantiles_of_the_sum_are_those_of_all_samples() {
        let merged = merged(&[
            (1, share(1, 1, 90, 1_000_000)),
            (2, share(1, 1, 10, 100_000_000)),
        ]);
        let quantile = |q| merged.histogram().quantile(q).unwrap_or(0) as f64;
        assert!((quantile(0.5) / 1e6 - 1.0).abs() < 0.04);
        assert!((quantile(0.95) / 1e8 - 1.0).abs() < 0.04);
    }

    #[test]
    fn strange_bytes_are_refused_with_a_reason() {
        assert_eq!(Share::from_bytes(&[]), Err(BadShare::Length(0)));
        assert_eq!(Share::from_bytes(&[9; 80]), Err(BadShare::Format(9)));
        let mut bytes = share(1, 1, 1, 5_000).to_bytes();
        bytes[HEAD..HEAD + 2].copy_from_slice(&9_999u16.to_le_bytes());
        assert_eq!(Share::from_bytes(&bytes), Err(BadShare::Bucket(9_999)));
    }
}
