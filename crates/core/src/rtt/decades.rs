// SPDX-License-Identifier: Apache-2.0
//! The histogram as netperf prints it: ten buckets for microseconds, ten for tens
//! of microseconds, and so on.

use super::RttLatencies;

/// netperf's names of the rows, with the width of a bucket in nanoseconds.
pub const DECADES: [(&str, u64); 8] = [
    ("UNIT_USEC", 1_000),
    ("TEN_USEC", 10_000),
    ("HUNDRED_USEC", 100_000),
    ("UNIT_MSEC", 1_000_000),
    ("TEN_MSEC", 10_000_000),
    ("HUNDRED_MSEC", 100_000_000),
    ("UNIT_SEC", 1_000_000_000),
    ("TEN_SEC", 10_000_000_000),
];

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decade {
    /// netperf's name of the row.
    pub name: &'static str,
    /// Width of a bucket: bucket `i` holds values from `i` widths on. The first
    /// bucket of every row but the first is empty: those values are in the row
    /// above.
    pub width_ns: u64,
    /// Counts.
    pub buckets: [u64; 10],
}

/// All rows, and the count of what is longer than the last (100 s).
pub fn decades(latencies: &RttLatencies) -> ([Decade; 8], u64) {
    let mut rows = DECADES.map(|(name, width_ns)| Decade {
        name,
        width_ns,
        buckets: [0; 10],
    });
    let mut longer = 0;
    for step in latencies.histogram().iter_recorded() {
        // The lower end of the fine bucket decides; it is 0.1 % wide.
        let ns = latencies
            .histogram()
            .lowest_equivalent(step.value_iterated_to());
        let count = step.count_since_last_iteration();
        match rows.iter_mut().find(|row| ns < 10 * row.width_ns) {
            Some(row) => row.buckets[(ns / row.width_ns) as usize] += count,
            None => longer += count,
        }
    }
    (rows, longer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_its_bucket() {
        let mut latencies = RttLatencies::new();
        let values = [
            500,
            1_000,
            9_990,
            10_000,
            95_000,
            133_000,
            39_000_000,
            39_900_000,
            3_200_000_000,
            99_000_000_000,
            400_000_000_000,
        ];
        values.iter().for_each(|&ns| latencies.record(ns));
        let (rows, longer) = decades(&latencies);
        let at = |name: &str, i: usize| {
            let row = rows.iter().find(|row| row.name == name).unwrap();
            row.buckets[i]
        };
        assert_eq!(at("UNIT_USEC", 0), 1);
        assert_eq!(at("UNIT_USEC", 1), 1);
        assert_eq!(at("UNIT_USEC", 9), 1);
        assert_eq!(at("TEN_USEC", 1), 1);
        assert_eq!(at("TEN_USEC", 9), 1);
        assert_eq!(at("HUNDRED_USEC", 1), 1);
        assert_eq!(at("TEN_MSEC", 3), 2);
        assert_eq!(at("UNIT_SEC", 3), 1);
        assert_eq!(at("TEN_SEC", 9), 1);
        assert_eq!(longer, 1);
        let counted: u64 = rows.iter().flat_map(|row| row.buckets).sum();
        assert_eq!(counted + longer, values.len() as u64);
        assert!(rows[1..].iter().all(|row| row.buckets[0] == 0));
    }
}
