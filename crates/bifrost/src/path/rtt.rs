// SPDX-License-Identifier: Apache-2.0

//! Round-trip times of a path: smoothed with deviation (RFC 6298, section 2), and the
//! lowest of two spans of time.

use crate::config::Rto;

/// After this long a path's lowest RTT is measured again.
const LOWEST_SPAN_NS: u64 = 5_000_000_000;
/// Then is the time to look for it: before the span has passed since it was seen.
const LOWEST_FADES_NS: u64 = 4_000_000_000;
/// Over this span the lowest RTT shows other senders' queues, not bursts of this one.
const RECENT_SPAN_NS: u64 = 10_000_000;
/// Before the first sample.
const INITIAL_NS: u64 = 1_000_000;
/// A sample counts as no more than this above srtt + 4 var. One datagram that straggles
/// must not stretch timeouts to its own delay; a path that has become longer is known by
/// the samples that follow. As far below it, one may show what others waited for to be over.
const MAX_EXCESS_NS: u64 = 4_000_000;

/// A minimum over the last one to two spans.
#[derive(Clone, Copy, Debug)]
struct WindowedMin {
    span_ns: u64,
    since_ns: u64,
    current: u64,
    before: u64,
}

impl WindowedMin {
    fn new(span_ns: u64) -> WindowedMin {
        WindowedMin {
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

/// The round-trip time of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RttEstimator {
    smoothed_ns: u64,
    deviation_ns: u64,
    long: WindowedMin,
    recent: WindowedMin,
    /// The last known lowest, when both spans have run out.
    lowest_ns: u64,
    /// When it was last seen.
    lowest_seen_ns: u64,
    /// Samples so far; two stand for more.
    samples: u8,
}

impl RttEstimator {
    pub(crate) fn new() -> RttEstimator {
        RttEstimator {
            smoothed_ns: INITIAL_NS,
            deviation_ns: INITIAL_NS / 2,
            long: WindowedMin::new(LOWEST_SPAN_NS),
            recent: WindowedMin::new(RECENT_SPAN_NS),
            lowest_ns: INITIAL_NS,
            lowest_seen_ns: 0,
            samples: 0,
        }
    }

    pub(crate) fn sample(&mut self, now_ns: u64, rtt_ns: u64) {
        let straggled_first = self.samples == 1 && rtt_ns < self.smoothed_ns / 2;
        if self.samples > 0 && !straggled_first {
            let counted_ns = rtt_ns.min(self.spread_ns() + MAX_EXCESS_NS);
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
        if rtt_ns <= self.lowest_ns {
            self.lowest_seen_ns = now_ns;
        }
    }

    /// A sample of a probe that left while the path carried nothing. Where such have waited,
    /// they waited for the same and come in order, each after less time: the last one alone says
    /// what the path is like. So one that is far below the estimate begins anew.
    pub(crate) fn sample_of_unused(&mut self, now_ns: u64, rtt_ns: u64) {
        if rtt_ns + MAX_EXCESS_NS < self.smoothed_ns {
            self.samples = 0;
        }
        self.sample(now_ns, rtt_ns);
    }

    /// Whether the lowest is about to be forgotten without having been seen again.
    pub(crate) fn lowest_fades(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.lowest_seen_ns) >= LOWEST_FADES_NS
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

    /// srtt + 4 var (RFC 6298, section 2.3): an answer hardly takes longer.
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

    /// The path itself has become longer: its lowest RTT is learnt again.
    pub(crate) fn forget_lowest(&mut self, now_ns: u64) {
        let recent = self.recent_ns(now_ns);
        self.long = WindowedMin::new(LOWEST_SPAN_NS);
        self.long.sample(now_ns, recent);
        self.lowest_ns = recent;
        self.lowest_seen_ns = now_ns;
    }

    /// The retransmission timeout, without backing off, when the peer may wait for
    /// `ack_delay_ns` before it acknowledges (and 0.3 ms longer if it expects to piggyback), and
    /// what is under way may stand in queues for `queue_ns`.
    pub(crate) fn timeout_ns(&self, rto: Rto, ack_delay_ns: u64, queue_ns: u64) -> u64 {
        match rto {
            Rto::Fixed(ns) => ns,
            Rto::Adaptive => {
                let least = self.spread_ns() + 500_000 + ack_delay_ns;
                (least + queue_ns).min(least.max(4_000_000)).max(1_000_000)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_is_forgotten_after_its_span() {
        let mut rtt = RttEstimator::new();
        rtt.sample(1, 100);
        assert_eq!((rtt.recent_ns(1), rtt.lowest_ns()), (100, 100));
        rtt.sample(RECENT_SPAN_NS * 3, 900);
        assert_eq!(
            (rtt.recent_ns(RECENT_SPAN_NS * 3), rtt.lowest_ns()),
            (900, 100)
        );
        assert_eq!(
            rtt.recent_ns(RECENT_SPAN_NS * 6),
            100,
            "unused: worth a try"
        );
        rtt.forget_lowest(RECENT_SPAN_NS * 4);
        assert_eq!(rtt.lowest_ns(), 900);
    }

    #[test]
    fn one_that_straggles_does_not_stretch_the_timeout() {
        let mut rtt = RttEstimator::new();
        for step in 0..20 {
            rtt.sample(step, 200_000);
        }
        rtt.sample(20, 60_000_000);
        assert!(rtt.timeout_ns(Rto::Adaptive, 0, 0) < 6_000_000, "{rtt:?}");
        // A path that has become longer is learnt within a few.
        for step in 21..30 {
            rtt.sample(step, 60_000_000);
        }
        assert!(rtt.spread_ns() > 60_000_000, "{rtt:?}");
        // Nor does the first one, if a second contradicts it.
        let mut rtt = RttEstimator::new();
        rtt.sample(1, 60_000_000);
        assert_eq!(rtt.smoothed_ns(), 60_000_000);
        rtt.sample(2, 300_000);
        assert_eq!((rtt.smoothed_ns(), rtt.deviation_ns()), (300_000, 150_000));
    }

    #[test]
    fn of_samples_that_waited_for_the_same_the_last_one_stays() {
        let mut rtt = RttEstimator::new();
        for step in 0..20 {
            rtt.sample(step, 200_000);
        }
        for step in 0..300 {
            rtt.sample_of_unused(20 + step, (300 - step) * 10_000_000);
        }
        assert_eq!(
            (rtt.smoothed_ns(), rtt.deviation_ns()),
            (10_000_000, 5_000_000)
        );
        rtt.sample(320, 200_000);
        assert_eq!((rtt.smoothed_ns(), rtt.deviation_ns()), (200_000, 100_000));
    }

    #[test]
    fn timeouts_keep_their_bounds() {
        let mut rtt = RttEstimator::new();
        for step in 0..100 {
            rtt.sample(step, 100_000);
        }
        assert_eq!(rtt.timeout_ns(Rto::Adaptive, 200_000, 0), 1_000_000);
        // A queue does not raise it above 4 ms, and a delay that the peer may add does.
        for step in 100..200 {
            rtt.sample(step, 2_600_000);
        }
        assert_eq!(rtt.timeout_ns(Rto::Adaptive, 200_000, 2_000_000), 4_000_000);
        for step in 200..300 {
            rtt.sample(step, 9_000_000);
        }
        let spread = rtt.smoothed_ns() + 4 * rtt.deviation_ns();
        assert_eq!(
            rtt.timeout_ns(Rto::Adaptive, 200_000, 2_000_000),
            spread + 700_000
        );
        let fixed = Rto::Fixed(4_000_000);
        assert_eq!(rtt.timeout_ns(fixed, 200_000, 2_000_000), 4_000_000);
    }
}
