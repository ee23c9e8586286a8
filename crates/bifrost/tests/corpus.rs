// SPDX-License-Identifier: Apache-2.0

//! The fuzz targets' entries on the committed corpus (`fuzz/corpus`), and on mutations
//! of it: a fixed number, from fixed seeds, so that a failure repeats. `make fuzz`
//! looks for new inputs.

#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]
#![allow(
    clippy::disallowed_methods,
    reason = "reads its inputs from files; the engine does not"
)]

use std::fs;
use std::path::Path;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

#[path = "../../../fuzz/tunnel.rs"]
mod entry;

/// Mutations of each input.
const VARIANTS: u64 = 1000;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut paths: Vec<_> = fs::read_dir(dir.join(target))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "no corpus for {target}");
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn mutate(bytes: &mut Vec<u8>, others: &[Vec<u8>], rng: &mut Pcg64Mcg) {
    for _ in 0..rng.random_range(1..5) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.random_range(0..bytes.len());
        let end = bytes.len().min(at + rng.random_range(1..40));
        match rng.random_range(0..6) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.random_range(0..5)],
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..end)),
            4 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => {
                let other = &others[rng.random_range(0..others.len())];
                let from = rng.random_range(0..=other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
}

fn run(target: &str, entry: fn(&[u8])) {
    let inputs = corpus(target);
    for (index, input) in inputs.iter().enumerate() {
        entry(input);
        for variant in 0..VARIANTS {
            let mut rng = Pcg64Mcg::seed_from_u64(variant << 16 | index as u64);
            let mut bytes = input.clone();
            mutate(&mut bytes, &inputs, &mut rng);
            entry(&bytes);
        }
    }
}

#[test]
fn the_codec_reads_what_it_writes() {
    run("wire", entry::wire);
}

#[test]
fn a_conversation_bears_any_datagram() {
    run("tunnel", entry::tunnel);
}
