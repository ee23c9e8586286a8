// SPDX-License-Identifier: Apache-2.0
//! The Feistel network of four passes (draft, section 5.4.2), on blocks of 5 to 19
//! octets. A block of an odd number of octets is cut in the middle of its middle one.

use std::hash::Hasher;

use aes::Aes128;
use aes::cipher::BlockCipherEncrypt;
use siphasher::sip::SipHasher13;

const HALF_MAX: usize = 10;

type Half = [u8; HALF_MAX];

/// The function of a pass: the first octets of what comes back are used.
pub(crate) trait Function {
    /// `input` has at most ten octets; `block_len` is the whole block's length.
    fn apply(&self, pass: u8, block_len: usize, input: &[u8]) -> Half;
}

impl Function for Aes128 {
    fn apply(&self, pass: u8, block_len: usize, input: &[u8]) -> Half {
        let mut expanded = [0; 16];
        expanded[..input.len()].copy_from_slice(input);
        expanded[14] = block_len as u8;
        expanded[15] = pass;
        let mut block = expanded.into();
        self.encrypt_block(&mut block);
        std::array::from_fn(|i| block[i])
    }
}

/// SipHash-1-3 under a key; for inputs of at most six octets.
pub(crate) struct Sip(pub [u8; 16]);

impl Function for Sip {
    fn apply(&self, pass: u8, block_len: usize, input: &[u8]) -> Half {
        let mut message = [0; 8];
        message[..input.len()].copy_from_slice(input);
        message[6] = block_len as u8;
        message[7] = pass;
        let mut hasher = SipHasher13::new_with_key(&self.0);
        hasher.write(&message);
        let mut half = [0; HALF_MAX];
        half[..8].copy_from_slice(&hasher.finish().to_le_bytes());
        half
    }
}

/// A block in two halves.
struct Halves {
    left: Half,
    right: Half,
    block_len: usize,
}

impl Halves {
    fn of(block: &[u8]) -> Self {
        let len = block.len();
        let half = len.div_ceil(2);
        let mut halves = Self {
            left: [0; HALF_MAX],
            right: [0; HALF_MAX],
            block_len: len,
        };
        halves.left[..half].copy_from_slice(&block[..half]);
        halves.right[..half].copy_from_slice(&block[len - half..]);
        halves.cut();
        halves
    }

    fn half(&self) -> usize {
        self.block_len.div_ceil(2)
    }

    /// Clears the four bits that a half of an odd block does not have.
    fn cut(&mut self) {
        if self.block_len % 2 == 1 {
            self.left[self.half() - 1] &= 0xf0;
            self.right[0] &= 0x0f;
        }
    }

    /// Odd passes change the right half, even ones the left half.
    fn pass(&mut self, function: &impl Function, pass: u8) {
        let half = self.half();
        let (input, output) = match pass % 2 {
            1 => (&self.left, &mut self.right),
            _ => (&self.right, &mut self.left),
        };
        let mask = function.apply(pass, self.block_len, &input[..half]);
        for (octet, mask) in output[..half].iter_mut().zip(mask) {
            *octet ^= mask;
        }
        self.cut();
    }

    fn store(&self, block: &mut [u8]) {
        let half = self.half();
        block.fill(0);
        block[..half].copy_from_slice(&self.left[..half]);
        let rest = &mut block[self.block_len - half..];
        for (octet, right) in rest.iter_mut().zip(self.right) {
            // Only the middle octet of an odd block has something already.
            *octet = if self.block_len % 2 == 1 {
                *octet | right
            } else {
                right
            };
        }
    }
}

pub(crate) fn encrypt(function: &impl Function, block: &mut [u8]) {
    let mut halves = Halves::of(block);
    (1..=4).for_each(|pass| halves.pass(function, pass));
    halves.store(block);
}

pub(crate) fn decrypt(function: &impl Function, block: &mut [u8]) {
    let mut halves = Halves::of(block);
    (1..=4).rev().for_each(|pass| halves.pass(function, pass));
    halves.store(block);
}
