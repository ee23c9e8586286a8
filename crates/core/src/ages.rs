// SPDX-License-Identifier: Apache-2.0
//! How long entries of the data plane's tables have been silent, found out by looking at them
//! from time to time.

use std::time::Duration;

/// Looks in a row at which nothing was new: 24 bits, so that what is remembered of an entry of
/// a large table stays small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SilentRounds([u8; 3]);

impl SilentRounds {
    /// The most that is counted.
    pub const MAX: u32 = (1 << 24) - 1;

    /// As a number.
    pub fn get(self) -> u32 {
        let [low, middle, high] = self.0;
        u32::from_le_bytes([low, middle, high, 0])
    }

    /// One more.
    #[must_use]
    pub fn and_one(self) -> Self {
        let next = (self.get() + 1).min(Self::MAX);
        let [low, middle, high, _] = next.to_le_bytes();
        Self([low, middle, high])
    }

    /// After how many rounds of `round` so long a silence is over: one at least.
    pub fn of(length: Duration, round: Duration) -> u32 {
        let rounds = length.as_nanos().div_ceil(round.as_nanos().max(1));
        u32::try_from(rounds.max(1)).map_or(Self::MAX, |rounds| rounds.min(Self::MAX))
    }
}

/// When a connection's packets were last seen to have grown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotAge {
    packets: u32,
    /// Milliseconds modulo 2^32; 0: not looked at so far.
    since_ms: u32,
}

impl SlotAge {
    /// For how long there have been as many packets as now; `None` where there were fewer at
    /// the last look, or this is the first. `now` is on any clock that does not go back; asked less
    /// often than every 49 days, it says too little.
    pub fn silent(&mut self, now: Duration, packets: u32) -> Option<Duration> {
        let now_ms = now.as_millis() as u32;
        if self.since_ms == 0 || self.packets != packets {
            *self = Self {
                packets,
                since_ms: now_ms.max(1),
            };
            return None;
        }
        let silent_ms = now_ms.wrapping_sub(self.since_ms);
        Some(Duration::from_millis(silent_ms.into()))
    }
}
