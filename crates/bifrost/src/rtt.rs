// SPDX-License-Identifier: Apache-2.0

//! Round-trip times of a path: smoothed with deviation (RFC 6298, section 2), and the
//! lowest of two spans of time.

use crate::config::Rto;

/// After this long a path's lowest RTT is measured anew.
const LONG_NS: u64 = 5_000_000_000;
/// Over this span the lowest RTT shows the queue of others, not one's own bursts.
const RECENT_NS: u64 = 10_000_000;
/// Before the first sample.
const INITIAL_NS: u64 = 1_000_000;
/// A sample counts as no more than this above what an answer hardly takes longer than. One
/// datagram that straggles must not stretch timeouts to its own delay; a path that has
/// become longer is known by the samples that follow.
const SURPRISE_NS: u64 = 4_000_000;

/// A minimum over the last one to two spans.
#[derive(Clone, Copy, Debug)]
struct Floor {
    span_ns: u64,
    since_ns: u64,
    current: u64,
    before: u64,
}

impl Floor {
    fn new(span_ns: u64) -> Floor {
        Floor {
            span_ns,
            since_ns: 0,
            current: u64::MAX,
            before: u64::MAX,
        }
    }

    fn sample(&mut self, now_ns: u64, value: u64) {
        let age = now_ns.saturating_sub(self.since_ns);
        if age >= self.span_ns {
            self.before = if age < 2 * self.span_ns {
                self.current
            } else {
                u64::MAX
            };
            self.current = u64::MAX;
            self.since_ns = now_ns;
        }
        self.current = self.current.min(value);
    }

    fn get(&self, now_ns: u64) -> Option<u64> {
        let age = now_ns.saturating_sub(self.since_ns);
        let value = if age < self.span_ns {
            self.current.min(self.before)
        } else if age < 2 * self.span_ns {
            self.current
        } else {
            u64::MAX
        };
        (value != u64::MAX).then_some(value)
    }
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    smoothed_ns: u64,
    deviation_ns: u64,
    long: Floor,
    recent: Floor,
    /// The last known lowest, when both spans have run out.
    lowest_ns: u64,
    /// So far; two stand for more.
    samples: u8,
}

impl Rtt {
    pub(crate) fn new() -> Rtt {
        Rtt {
            smoothed_ns: INITIAL_NS,
            deviation_ns: INITIAL_NS / 2,
            long: Floor::new(LONG_NS),
            recent: Floor::new(RECENT_NS),
            lowest_ns: INITIAL_NS,
            samples: 0,
        }
    }

    pub(crate) fn sample(&mut self, now_ns: u64, rtt_ns: u64) {
        let straggled_first = self.samples == 1 && rtt_ns < self.smoothed_ns / 2;
        if self.samples > 0 && !straggled_first {
            let counted_ns = rtt_ns.min(self.spread_ns() + SURPRISE_NS);
            let error = self.smoothed_ns.abs_diff(counted_ns);
            self.deviation_ns = (3 * self.deviation_ns + error) / 4;
            self.smoothed_ns = (7 * self.smoothed_ns + counted_ns) / 8;
            self.samples = 2;
        } else {
            self.smoothed_ns = rtt_ns;
            self.deviation_ns = rtt_ns / 2;
            self.samples = 1;
        }
        self.long.sample(now_ns, rtt_ns);
        self.recent.sample(now_ns, rtt_ns);
        self.lowest_ns = self.long.get(now_ns).unwrap_or(rtt_ns);
    }

    pub(crate) fn is_known(&self) -> bool {
        self.samples > 0
    }

    pub(crate) fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    pub(crate) fn deviation_ns(&self) -> u64 {
        self.deviation_ns
    }

    /// What an answer hardly takes longer than: srtt + 4 var (RFC 6298, section 2.3).
    pub(crate) fn spread_ns(&self) -> u64 {
        self.smoothed_ns + 4 * self.deviation_ns
    }

    /// The lowest of the last 5 to 10 s.
    pub(crate) fn lowest_ns(&self) -> u64 {
        self.lowest_ns
    }

    /// The lowest of the last 10 to 20 ms, or else the lowest there is: a path that has
    /// not been used lately is worth a try.
    pub(crate) fn recent_ns(&self, now_ns: u64) -> u64 {
        self.recent.get(now_ns).unwrap_or(self.lowest_ns)
    }

    /// The path itself has become longer: forget what it was.
    pub(crate) fn relearn(&mut self, now_ns: u64) {
        let recent = self.recent_ns(now_ns);
        self.long = Floor::new(LONG_NS);
        self.long.sample(now_ns, recent);
        self.lowest_ns = recent;
    }

    /// The retransmission timeout, without backing off, when the acknowledgement may
    /// take longer than the RTT by `delay_ns`.
    pub(crate) fn timeout_ns(&self, rto: Rto, delay_ns: u64) -> u64 {
        match rto {
            Rto::Fixed(ns) => ns,
            Rto::Adaptive => {
                let spread = self.spread_ns();
                (spread + 500_000 + delay_ns)
                    .min(spread.max(4_000_000))
                    .max(1_000_000)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_is_forgotten_after_its_span() {
        let mut rtt = Rtt::new();
        rtt.sample(1, 100);
        assert_eq!((rtt.recent_ns(1), rtt.lowest_ns()), (100, 100));
        rtt.sample(RECENT_NS * 3, 900);
        assert_eq!((rtt.recent_ns(RECENT_NS * 3), rtt.lowest_ns()), (900, 100));
        assert_eq!(rtt.recent_ns(RECENT_NS * 6), 100, "unused: worth a try");
        rtt.relearn(RECENT_NS * 4);
        assert_eq!(rtt.lowest_ns(), 900);
    }

    #[test]
    fn one_that_straggles_does_not_stretch_the_timeout() {
        let mut rtt = Rtt::new();
        for step in 0..20 {
            rtt.sample(step, 200_000);
        }
        rtt.sample(20, 60_000_000);
        assert!(rtt.timeout_ns(Rto::Adaptive, 0) < 6_000_000, "{rtt:?}");
        // A path that has become longer is learnt within a few.
        for step in 21..30 {
            rtt.sample(step, 60_000_000);
        }
        assert!(rtt.spread_ns() > 60_000_000, "{rtt:?}");
        // Nor does the first one, if a second tells otherwise.
        let mut rtt = Rtt::new();
        rtt.sample(1, 60_000_000);
        assert_eq!(rtt.smoothed_ns(), 60_000_000);
        rtt.sample(2, 300_000);
        assert_eq!((rtt.smoothed_ns(), rtt.deviation_ns()), (300_000, 150_000));
    }

    #[test]
    fn timeouts_keep_their_bounds() {
        let mut rtt = Rtt::new();
        for step in 0..100 {
            rtt.sample(step, 100_000);
        }
        assert_eq!(rtt.timeout_ns(Rto::Adaptive, 200_000), 1_000_000);
        for step in 100..200 {
            rtt.sample(step, 3_600_000);
        }
        let spread = rtt.smoothed_ns() + 4 * rtt.deviation_ns();
        assert_eq!(
            rtt.timeout_ns(Rto::Adaptive, 200_000),
            spread.max(4_000_000)
        );
        assert_eq!(rtt.timeout_ns(Rto::Fixed(4_000_000), 200_000), 4_000_000);
    }
}
