// SPDX-License-Identifier: Apache-2.0
//! Ring sizes: prime, so that every step through a ring visits all of it.

use thiserror::Error;

/// The least number of slots a real gets on average before the ring grows:
/// shares are then within about 1 % of the weights.
const SLOTS_PER_REAL: usize = 100;

/// The smallest primes above 2^14 and 2^16 ... 2^20. Few and far apart on purpose: a ring
/// of another size shares nothing with the old one, so a pool must be able to
/// grow for long without changing size. The first is what ten thousand VIPs can have.
const LADDER: [u32; 6] = [16_411, 65_537, 131_101, 262_147, 524_309, 1_048_583];

/// The number of slots of a ring: a prime from 2 to [`RingSize::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingSize(u32);

/// A number that cannot be a ring's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("ring size {0} is not a prime from 2 to {max}; 65537 suits up to 655 reals", max = RingSize::MAX.0)]
pub struct RingSizeError(pub u32);

impl RingSize {
    /// The least that pools have, 16411 (128 KiB a ring), good for up to 164 reals.
    pub const DEFAULT: Self = Self(LADDER[0]);
    /// The largest, 1048583 (8 MiB a ring).
    pub const MAX: Self = Self(LADDER[LADDER.len() - 1]);

    /// Checks that `slots` is a prime in range.
    pub fn new(slots: u32) -> Result<Self, RingSizeError> {
        let in_range = (2..=Self::MAX.0).contains(&slots);
        let mut divisors = (2..).take_while(|d| d * d <= slots);
        if in_range && divisors.all(|d| !slots.is_multiple_of(d)) {
            Ok(Self(slots))
        } else {
            Err(RingSizeError(slots))
        }
    }

    /// The default or, for large pools, the next size with at least 100 slots a
    /// real. Beyond 10,485 reals it stays at [`RingSize::MAX`].
    pub fn for_pool(reals: usize) -> Self {
        let wanted = reals.saturating_mul(SLOTS_PER_REAL);
        Self(
            LADDER
                .into_iter()
                .find(|&p| p as usize >= wanted)
                .unwrap_or(Self::MAX.0),
        )
    }

    /// The number of slots.
    pub const fn slots(self) -> usize {
        self.0 as usize
    }
}

impl Default for RingSize {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ladder_is_the_next_primes_above_powers_of_two() {
        for (power, size) in [14, 16, 17, 18, 19, 20].into_iter().zip(LADDER) {
            let power = 1 << power;
            let next = (power..).find(|&n| RingSize::new(n).is_ok());
            assert_eq!(next, Some(size));
        }
    }

    #[test]
    fn sizes_that_are_not_prime_or_too_large_are_refused() {
        for bad in [0, 1, 4, 65_536, 65_535, 1_048_589, 4_294_967_291] {
            assert_eq!(RingSize::new(bad), Err(RingSizeError(bad)));
        }
        for good in [2, 3, 251, 65_521, 65_537] {
            assert_eq!(RingSize::new(good).map(RingSize::slots), Ok(good as usize));
        }
    }

    #[test]
    fn the_size_follows_the_pool_up_to_the_cap() {
        assert_eq!(RingSize::for_pool(0), RingSize::DEFAULT);
        assert_eq!(RingSize::for_pool(164), RingSize::DEFAULT);
        assert_eq!(RingSize::for_pool(165).slots(), 65_537);
        assert_eq!(RingSize::for_pool(655).slots(), 65_537);
        assert_eq!(RingSize::for_pool(656).slots(), 131_101);
        assert_eq!(RingSize::for_pool(usize::MAX), RingSize::MAX);
    }
}
