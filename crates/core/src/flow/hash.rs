// SPDX-License-Identifier: Apache-2.0

//! A fast seeded hash for flow keys.
//!
//! SipHash, the standard library's choice, costs as much as the rest of the
//! packet. This is the folded multiplication of wyhash: one 64 by 64 bit product
//! per word, high half xor low half. With a secret seed it keeps crafted
//! traffic from piling up in one bucket as far as a hash table needs; it is not a
//! cryptographic hash.

use std::hash::{BuildHasher, Hasher};

/// Odd constants with balanced bits (the digits of pi).
const K0: u64 = 0x243f_6a88_85a3_08d3;
const K1: u64 = 0x1319_8a2e_0370_7345;

/// Makes [`FlowHasher`]s from one seed.
#[derive(Clone, Copy, Debug)]
pub struct FlowState {
    seed: u64,
    /// What [`FlowState::of_two`] needs of it.
    second: u64,
}

impl FlowState {
    /// The hash family of `seed`. Equal seeds give equal hashes.
    pub const fn new(seed: u64) -> Self {
        Self {
            seed: seed ^ K0,
            second: seed.rotate_left(32) ^ K1,
        }
    }

    /// The hash of two words at once: one product for both, one to mix it.
    #[inline(always)]
    pub(super) fn of_two(&self, a: u64, b: u64) -> u64 {
        let both = fold(a ^ self.seed, b ^ self.second);
        fold(both ^ K1, K0)
    }
}

impl BuildHasher for FlowState {
    type Hasher = FlowHasher;

    #[inline]
    fn build_hasher(&self) -> FlowHasher {
        FlowHasher(self.seed)
    }
}

/// The running hash of one key.
#[derive(Clone, Copy, Debug)]
pub struct FlowHasher(u64);

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

impl Hasher for FlowHasher {
    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = fold(self.0 ^ word, K1).wrapping_add(K0);
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        fold(self.0 ^ K1, K0)
    }
}
