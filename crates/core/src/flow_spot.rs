// SPDX-License-Identifier: Apache-2.0
//! Where the balancer's tables have a connection, by the words of its key: those of IPv4 are two,
//! those of IPv6 five.

unsafe extern "C" {
    fn causeway_conn_partition(words: *const u64, count: u32, seed: u64, partitions: u32) -> u32;
    fn causeway_flow_spot(words: *const u64, count: u32, seed: u64, buckets: u32) -> FlowSpot;
}

/// `struct spot` of `bpf/shared/flow_spot.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct FlowSpot {
    /// The buckets that it may be in; the first one is preferred.
    pub buckets: [u32; 2],
    /// What its tag is, without the age class.
    pub fingerprint: u32,
}

impl FlowSpot {
    /// That of a flow in a table of so many buckets.
    pub fn of(words: &[u64], seed: u64, buckets: u32) -> Self {
        // SAFETY: the words are there to read.
        unsafe { causeway_flow_spot(words.as_ptr(), words.len() as u32, seed, buckets) }
    }
}

/// Which of several partitions of a stateful balancer's slots a connection falls into.
pub fn conn_partition(words: &[u64], seed: u64, partitions: u32) -> u32 {
    // SAFETY: the words are there to read.
    unsafe { causeway_conn_partition(words.as_ptr(), words.len() as u32, seed, partitions) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_spread_over_the_buckets_that_there_are() {
        let mut counts = [0_u32; 7];
        for n in 0..7000 {
            let spot = FlowSpot::of(&[n, 80], 5, 7);
            assert!(
                spot.fingerprint & 7 == 4,
                "bit 2 is set, the age class is not"
            );
            for bucket in spot.buckets {
                counts[bucket as usize] += 1;
            }
        }
        assert!(
            counts.iter().all(|count| count.abs_diff(2000) < 300),
            "{counts:?}"
        );
        assert_eq!(FlowSpot::of(&[1, 80], 5, 7), FlowSpot::of(&[1, 80], 5, 7));
        assert_ne!(FlowSpot::of(&[1, 80], 5, 7), FlowSpot::of(&[1, 80], 6, 7));
    }
}
