// SPDX-License-Identifier: Apache-2.0

//! The packet numbers received on a path: the bitmap of acknowledgements, which is the
//! replay window as well (as in RFC 4303, section 3.4.3).

use crate::wire::FIRST_NUMBER;

/// Packet numbers that the bitmap covers.
pub(crate) const WIDTH: u64 = 256;

/// The 64-bit number that ends in `low` and is nearest to `near` (RFC 9000,
/// appendix A.3).
pub(crate) fn expand(near: u64, low: u32) -> u64 {
    let ahead = low.wrapping_sub(near as u32) as i32;
    near.wrapping_add_signed(i64::from(ahead))
}

/// What a packet number is to the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    New,
    Duplicate,
    Old,
}

/// The largest number received, and which of the 256 up to it have come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplayWindow {
    largest: u64,
    bits: [u64; 4],
}

impl ReplayWindow {
    /// Numbers before the first count as received.
    pub(crate) fn new() -> ReplayWindow {
        ReplayWindow {
            largest: FIRST_NUMBER - 1,
            bits: [u64::MAX; 4],
        }
    }

    pub(crate) fn largest(&self) -> u64 {
        self.largest
    }

    pub(crate) fn bits(&self) -> [u64; 4] {
        self.bits
    }

    pub(crate) fn expand(&self, low: u32) -> u64 {
        expand(self.largest, low)
    }

    pub(crate) fn check(&self, number: u64) -> Arrival {
        if number > self.largest {
            return Arrival::New;
        }
        let back = self.largest - number;
        if back >= WIDTH {
            Arrival::Old
        } else if self.bits[(back / 64) as usize] >> (back % 64) & 1 == 1 {
            Arrival::Duplicate
        } else {
            Arrival::New
        }
    }

    /// Notes a number that [`ReplayWindow::check`] called new.
    pub(crate) fn mark(&mut self, number: u64) {
        if number > self.largest {
            self.shift(number - self.largest);
            self.largest = number;
        }
        let back = self.largest - number;
        if back < WIDTH {
            self.bits[(back / 64) as usize] |= 1 << (back % 64);
        }
    }

    /// Notes the `count` numbers after the largest, at most 63.
    pub(crate) fn mark_next(&mut self, count: u32) {
        self.shift(count.into());
        self.largest += u64::from(count);
        self.bits[0] |= (1 << count) - 1;
    }

    /// Whether one of the last eight numbers is missing.
    pub(crate) fn has_fresh_gap(&self) -> bool {
        self.bits[0] & 0xff != 0xff
    }

    fn shift(&mut self, by: u64) {
        if by == 1 {
            for word in (1..4).rev() {
                self.bits[word] = self.bits[word] << 1 | self.bits[word - 1] >> 63;
            }
            self.bits[0] <<= 1;
            return;
        }
        let (words, rest) = ((by / 64).min(4) as usize, by % 64);
        let old = self.bits;
        for (word, new) in self.bits.iter_mut().enumerate() {
            let from = |at: Option<usize>| at.map_or(0, |at| old[at]);
            let low = word.checked_sub(words);
            let carried = low.and_then(|low| low.checked_sub(1));
            *new = from(low) << rest;
            if rest > 0 {
                *new |= from(carried) >> (64 - rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_expanded_over_the_wrap() {
        assert_eq!(expand(0xffff_ffff, 0), 0x1_0000_0000);
        assert_eq!(expand(0x1_0000_0000, 0xffff_ffff), 0xffff_ffff);
        assert_eq!(expand(0x5_8000_0000, 0x7fff_ffff), 0x5_7fff_ffff);
    }

    proptest! {
        /// Against a set of all numbers seen.
        #[test]
        fn agrees_with_a_set(steps in prop::collection::vec(-300i64..300, 1..400)) {
            let mut window = ReplayWindow::new();
            let mut seen = BTreeSet::new();
            for step in steps {
                let number = window.largest().wrapping_add_signed(step);
                let largest = window.largest();
                let expected = if number > largest {
                    Arrival::New
                } else if largest - number >= WIDTH {
                    Arrival::Old
                } else if number < FIRST_NUMBER || seen.contains(&number) {
                    Arrival::Duplicate
                } else {
                    Arrival::New
                };
                prop_assert_eq!(window.check(number), expected);
                if expected == Arrival::New {
                    window.mark(number);
                    seen.insert(number);
                }
            }
        }
    }
}
