// SPDX-License-Identifier: Apache-2.0
//! Until when a balancer counts on its lease, and from when others count on its end.

/// Nanoseconds of clocks that never step; a million parts.
const MILLION: u64 = 1_000_000;

/// The terms of leases: how the two sides, which share no clock, never overlap.
///
/// Assumed: clocks that cannot be set (CLOCK_MONOTONIC) run between `1 - drift` and
/// `1 + drift` of true time; and what a balancer's lease allowed it is over when its time is,
/// *whether its daemon lives or not*: routes are withdrawn by the daemon, by BIRD when it stops, or
/// by BFD, within `settle_ns` everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseTerms {
    /// How long the store keeps a lease that is not renewed, by its clock.
    pub ttl_ns: u64,
    /// How long routers may go on sending to a balancer that withdraws, true time.
    pub settle_ns: u64,
    /// How wrong a clock's rate may be, parts in a million, below a half.
    pub drift_ppm: u64,
}

impl LeaseTerms {
    /// The holder's side: until when, by its own clock, it holds a lease whose last answered
    /// renewal it *sent* at `sent_ns`.
    ///
    /// The store begins to count no earlier than that, and ends after `ttl / (1 + drift)` of true
    /// time at the soonest; the holder's clock then shows at least `ttl (1 - drift) / (1 + drift)`,
    /// which is more than `ttl (1 - 2 drift)`.
    pub fn held_until(&self, sent_ns: u64) -> u64 {
        let slack = parts(self.ttl_ns, 2 * self.drift_ppm);
        sent_ns.saturating_add(self.ttl_ns.saturating_sub(slack))
    }

    /// The others' side: from when, by its own clock, one that saw the lease's end in the store at
    /// `seen_ns` may pass the holder by.
    pub fn gone_from(&self, seen_ns: u64) -> u64 {
        let settle = self.settle_ns + parts(self.settle_ns, self.drift_ppm);
        seen_ns.saturating_add(settle)
    }

    /// From when, by its own clock, something has rested for `rest_ns` that began to rest before
    /// `seen_ns`.
    pub fn rested_from(&self, seen_ns: u64, rest_ns: u64) -> u64 {
        let rest = rest_ns + parts(rest_ns, self.drift_ppm);
        seen_ns.saturating_add(rest)
    }
}

/// So many millionths, rounded up.
fn parts(of_ns: u64, millionths: u64) -> u64 {
    let wide = u128::from(of_ns) * u128::from(millionths);
    wide.div_ceil(u128::from(MILLION)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a clock shows after so much true time.
    fn shown(rate: f64, true_ns: f64) -> f64 {
        rate * true_ns
    }

    #[test]
    fn the_holder_has_left_before_anybody_passes_it_by() {
        for drift_ppm in [0, 100, 10_000, 200_000] {
            let terms = LeaseTerms {
                ttl_ns: 5_000_000_000,
                settle_ns: 3_000_000_000,
                drift_ppm,
            };
            let drift = drift_ppm as f64 / 1e6;
            let rates = [1.0 - drift, 1.0, 1.0 + drift];
            for holder in rates {
                for store in rates {
                    for other in rates {
                        // The renewal is received as it is sent, and the end seen as it happens:
                        // any delay is on the safe side.
                        let left = terms.held_until(0) as f64 / holder + terms.settle_ns as f64;
                        let end = terms.ttl_ns as f64 / store;
                        let seen = shown(other, end);
                        let passed = terms.gone_from(seen as u64) as f64 / other;
                        assert!(left <= passed + 2.0, "{drift_ppm} {left} {passed}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_lease_is_of_use() {
        let terms = LeaseTerms {
            ttl_ns: 5_000_000_000,
            settle_ns: 3_000_000_000,
            drift_ppm: 10_000,
        };
        assert_eq!(terms.held_until(10), 4_900_000_010);
        assert_eq!(terms.gone_from(10), 3_030_000_010);
        assert_eq!(terms.rested_from(10, 900_000_000_000), 909_000_000_010);
        let endless = LeaseTerms {
            drift_ppm: 500_001,
            ..terms
        };
        assert_eq!(endless.held_until(10), 10, "no lease is worth anything");
    }
}
