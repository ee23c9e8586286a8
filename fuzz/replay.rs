// SPDX-License-Identifier: Apache-2.0

//! A target's corpus and mutations of it, a fixed number from fixed seeds, for the ordinary
//! tests of the crates that are fuzzed.

use std::fs;
use std::path::Path;

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end as u64) as usize
    }
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut paths: Vec<_> = fs::read_dir(dir.join(target))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn mutate(bytes: &mut Vec<u8>, others: &[Vec<u8>], rng: &mut Rng) {
    for _ in 0..1 + rng.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.below(bytes.len());
        match rng.below(6) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5)],
            2 => bytes.truncate(at),
            3 => _ = bytes.drain(at..bytes.len().min(at + 1 + rng.below(16))),
            4 => {
                let piece = bytes[at..bytes.len().min(at + 1 + rng.below(32))].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => {
                let other = &others[rng.below(others.len())];
                let from = rng.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
}

/// Runs a target's entry on each input and on this many mutations of it.
pub(crate) fn run(target: &str, variants: u64, entry: fn(&[u8])) {
    let inputs = corpus(target);
    assert!(inputs.len() >= 10, "{} inputs for {target}", inputs.len());
    for (index, input) in inputs.iter().enumerate() {
        entry(input);
        for variant in 0..variants {
            let mut rng = Rng(index as u64 * variants + variant);
            let mut bytes = input.clone();
            mutate(&mut bytes, &inputs, &mut rng);
            entry(&bytes);
        }
    }
}
