// SPDX-License-Identifier: Apache-2.0
//! Damaged captures through reader, parsers and estimators: nothing panics, and
//! no estimate is longer than the capture could show.
//!
//! The damage is a fixed sequence, so that a failure repeats.

#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs::File;
use std::path::Path;

use causeway_core::capture::{Poll, Reader};
use causeway_core::estimate::{FixedGapConfig, Method, ModesConfig};
use causeway_core::flow::{
    Direction, FlowEstimate, FlowMeter, Headers, MeterSettings, Observation, Sink,
};
use causeway_core::wire;

const VARIANTS: u64 = 400;

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

fn capture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../testdata/measure")
        .join(name);
    let mut bytes = zstd::decode_all(File::open(path).expect("the capture")).expect("zstd");
    bytes.truncate(40_000);
    bytes
}

/// Flips, overwrites, cuts out and doubles a few stretches.
fn damage(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..1 + rng.below(12) {
        let at = rng.below(bytes.len());
        let len = (1 + rng.below(40)).min(bytes.len() - at);
        match rng.below(5) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5)],
            2 => bytes[at..at + len]
                .iter_mut()
                .for_each(|byte| *byte = rng.next() as u8),
            3 => _ = bytes.drain(at..at + len),
            _ => {
                let copy = bytes[at..at + len].to_vec();
                bytes.splice(at..at, copy);
            }
        }
        if bytes.is_empty() {
            bytes.push(0);
        }
    }
}

#[derive(Default)]
struct Rows(Vec<FlowEstimate>);

impl Sink for Rows {
    fn row(&mut self, row: &FlowEstimate) {
        self.0.push(*row);
    }
}

/// All rows, and the earliest and latest time in the capture.
fn run(bytes: &[u8], headers: Headers) -> (Vec<FlowEstimate>, u64, u64) {
    let mut reader = Reader::new();
    reader.feed(bytes);
    reader.finish();
    let mut meter = FlowMeter::new(MeterSettings {
        epoch_ns: 200_000_000,
        methods: [
            Method::WindowChain,
            Method::FixedGap(FixedGapConfig::default()),
            Method::Modes(ModesConfig::default()),
        ],
        direction: Direction::default(),
        max_flows: 16,
        seed: 1,
        early: false,
    });
    let mut rows = Rows::default();
    let (mut index, mut first_ns, mut last_ns) = (0, u64::MAX, 0);
    while let Ok(Poll::Packet(packet)) = reader.poll() {
        let (Some(time_ns), Some(link)) = (packet.time_ns, packet.link) else {
            continue;
        };
        let datagram = wire::parse(link, packet.data, packet.wire_len);
        if let Ok(seen) = datagram.and_then(|d| Observation::new(&d, time_ns, headers)) {
            meter.observe(index, &seen, &mut rows);
            index += 1;
            first_ns = first_ns.min(time_ns);
            last_ns = last_ns.max(time_ns);
        }
    }
    meter.finish(&mut rows);
    (rows.0, first_ns, last_ns)
}

#[test]
fn damaged_captures_neither_panic_nor_give_impossible_latencies() {
    let mut rng = Rng(7);
    let mut measured = 0;
    for name in ["w4.pcap.zst", "h3.pcap.zst"] {
        let whole = capture(name);
        for _ in 0..VARIANTS {
            let mut bytes = whole.clone();
            damage(&mut bytes, &mut rng);
            for headers in [Headers::Clear, Headers::Opaque] {
                let (rows, first_ns, last_ns) = run(&bytes, headers);
                measured += rows.len();
                for row in rows {
                    assert!(row.tally.samples() > 0);
                    let mean_ns = row.tally.mean_ns().unwrap();
                    // A step of the ring is 131 us at its coarsest.
                    let limit_ns = (last_ns - first_ns) as f64 + 262_144.0;
                    assert!(mean_ns <= limit_ns, "{row:?} in {name}: {limit_ns}");
                }
            }
        }
    }
    assert!(
        measured > 1000,
        "only {measured} rows: the damage stops everything"
    );
}
