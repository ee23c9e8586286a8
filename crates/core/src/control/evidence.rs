// SPDX-License-Identifier: Apache-2.0
//! What the law `equalise` remembers from interval to interval: how sure it is that reals
//! differ, and which of them give all that they have.

/// Time in which the certainty that reals differ halves.
const UNEVEN_HALVES_NS: f64 = 3e9;

/// How sure it is that the reals of a pool differ: from 0, when all latencies could be one
/// and chance, to 1.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unevenness(f64);

impl Unevenness {
    /// They surely differ.
    pub(super) const CERTAIN: Self = Self(1.0);

    /// From 0 to 1.
    pub(super) fn degree(self) -> f64 {
        self.0
    }

    /// Takes in how sure an interval makes it. It is forgotten slowly: when all latencies
    /// are alike because the weights are right, the weights are to stay.
    pub(super) fn step(&mut self, sure: f64, interval_ns: u64) {
        let kept = (-(interval_ns as f64) / UNEVEN_HALVES_NS).exp2();
        self.0 = sure.max(self.0 * kept);
    }
}

/// Intervals of evidence for which a real must have been slow, and the others able to bear
/// its load, before it gives all.
const SLOW_INTERVALS: u32 = 1;
/// By how many more intervals of evidence one that gave all must have been hardly slower than not:
/// of the few samples that it gets, one in four makes a server three times slower look so by chance.
const NEAR_INTERVALS: u32 = 10;
/// Part of the latency of a real that no other can help below which one that gave all is
/// wanted back.
const RECALLED: f64 = 0.5;

/// Whether a real that stays slow gives all that it has, and is wanted back.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Relief {
    /// Intervals of evidence in which it was slow and the others could have borne its load.
    slow_for: u32,
    /// Intervals of uncertain evidence in which it was hardly slower, less those in which it was.
    near_for: u32,
    /// The latency of the real that it is wanted back for.
    recalled_for_ns: Option<f64>,
}

impl Relief {
    /// Whether it has been slow for long enough to give all.
    pub(super) fn gives(&self) -> bool {
        self.slow_for > SLOW_INTERVALS
    }

    /// Whether there has been evidence.
    pub(super) fn has_begun(&self) -> bool {
        self.slow_for > 0
    }

    /// The latency of the real that it is wanted back for, if it is.
    pub(super) fn recalled_for_ns(&self) -> Option<f64> {
        self.recalled_for_ns
    }

    /// One that gave all is wanted back while another, which no other can help, is slower
    /// still.
    pub(super) fn recall(&mut self, helpless_ns: Option<f64>, own_ns: Option<f64>) {
        let gave = self.recalled_for_ns.is_some() || self.gives();
        self.recalled_for_ns = helpless_ns.filter(|helpless_ns| {
            gave && own_ns.is_some_and(|own_ns| own_ns < RECALLED * helpless_ns)
        });
    }

    /// An interval brought evidence.
    pub(super) fn observe_slow(&mut self) {
        self.slow_for = self.slow_for.saturating_add(1);
        self.near_for = 0;
    }

    /// An interval brought evidence of which it is not certain whether it is slow.
    pub(super) fn observe_uncertain(&mut self, is_near: bool) {
        self.near_for = match is_near {
            true => self.near_for + 1,
            false => self.near_for.saturating_sub(1),
        };
        if self.near_for > NEAR_INTERVALS {
            self.end();
        }
    }

    /// It is slow no longer, or is wanted back.
    pub(super) fn end(&mut self) {
        (self.slow_for, self.near_for) = (0, 0);
    }
}
