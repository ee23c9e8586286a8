// SPDX-License-Identifier: Apache-2.0
//! How many of a real's connections are measured.
//!
//! What an estimate costs is paid by packet, and what it is worth depends on its samples
//! alone. So of a busy real 1 in 2^k connections is measured, by a hash that every packet
//! of a connection has in common: k is chosen so that an interval brings the samples that
//! the controller asks for. See docs/decisions/114-sampling.md.

/// The greatest k: 1 in 1,024 connections.
pub const SAMPLING_MAX: u8 = 10;

/// For so long a connection keeps the fate that it had when it opened, ns: most have ended
/// by then. Those of another rate than now cost a look for so long, too.
const LATE_NS: u64 = 60_000_000_000;
/// Weight of the newest interval in what is known of a real's requests.
const SMOOTHING: f64 = 0.2;
/// Fewer connections are measured when this many times the samples would come of them that
/// are wanted, for so long: a rate that goes to and fro has more connections looked for.
const SPARE: f64 = 1.25;
const SPARE_NS: u64 = 1_000_000_000;

/// Of which connections of a real 1 in 2^k is measured, as the data plane has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sampling {
    /// k of those that open now.
    pub opening: u8,
    /// The least k in recent use.
    pub least: u8,
    /// The greatest one.
    pub most: u8,
}

impl Sampling {
    /// What holds for connections of either.
    pub fn with(self, other: Self) -> Self {
        Self {
            opening: self.opening.min(other.opening),
            least: self.least.min(other.least),
            most: self.most.max(other.most),
        }
    }
}

/// What an interval brought of a real.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SampledInterval {
    /// Requests of all connections, estimated from those of measured ones.
    pub requests: u64,
    /// Requests of measured connections.
    pub requests_seen: u64,
    /// Samples of latency, doubled.
    pub weight_halves: u64,
}

/// Chooses one real's k, from interval to interval.
#[derive(Debug, Clone, Default)]
pub struct ConnectionSampler {
    sampling: Sampling,
    /// Until when connections of each k are looked for; 0: it never was in force.
    until_ns: [u64; SAMPLING_MAX as usize + 1],
    /// Whether `until_ns` knows of `sampling`.
    begun: bool,
    /// Per interval, smoothed: requests of all connections, of measured ones, and samples.
    requests: f64,
    seen: f64,
    samples: f64,
    /// Since when fewer connections would do.
    spare_since_ns: Option<u64>,
}

impl ConnectionSampler {
    /// Goes on from what the data plane has.
    pub fn resumed(sampling: Sampling) -> Self {
        Self {
            sampling,
            ..Self::default()
        }
    }

    /// What is in force.
    pub fn sampling(&self) -> Sampling {
        self.sampling
    }

    /// Takes in an interval that ended at `now_ns`; of its samples `wanted` would do.
    pub fn follow(&mut self, now_ns: u64, interval: &SampledInterval, wanted: f64) -> Sampling {
        let smooth = |old: f64, new: u64| old + SMOOTHING * (new as f64 - old);
        self.requests = smooth(self.requests, interval.requests);
        self.seen = smooth(self.seen, interval.requests_seen);
        self.samples = smooth(self.samples, interval.weight_halves);
        let yields = self.samples / 2.0 / self.seen.max(f64::MIN_POSITIVE);
        // By requests, whose estimate no change of the rate disturbs.
        let all = self.requests * yields.min(1.0);
        let k = self.sampling.opening;
        let (enough, spare) = (sufficient(all, wanted), sufficient(all, wanted * SPARE));
        if spare <= k {
            self.spare_since_ns = None;
        }
        let next = if enough < k {
            enough
        } else if spare > k {
            let since_ns = *self.spare_since_ns.get_or_insert(now_ns);
            match now_ns.saturating_sub(since_ns) >= SPARE_NS {
                true => spare,
                false => k,
            }
        } else {
            k
        };
        self.fix(now_ns, next)
    }

    /// Sets k by hand.
    pub fn fix(&mut self, now_ns: u64, k: u8) -> Sampling {
        let k = k.min(SAMPLING_MAX);
        let until_ns = now_ns.saturating_add(LATE_NS);
        if !self.begun {
            self.begun = true;
            for known in [
                self.sampling.least,
                self.sampling.opening,
                self.sampling.most,
            ] {
                self.until_ns[usize::from(known.min(SAMPLING_MAX))] = until_ns;
            }
        }
        if k != self.sampling.opening {
            self.spare_since_ns = None;
        }
        self.until_ns[usize::from(k)] = until_ns;
        let mut late =
            (0..=SAMPLING_MAX).filter(|&of| self.until_ns[usize::from(of)] >= now_ns.max(1));
        self.sampling = Sampling {
            opening: k,
            least: late.next().unwrap_or(k),
            most: late.next_back().unwrap_or(k).max(k),
        };
        self.sampling
    }
}

/// The greatest k at which 1 in 2^k of `all` samples are as many as `wanted`.
fn sufficient(all: f64, wanted: f64) -> u8 {
    let times = (all / wanted.max(1.0)).max(1.0);
    (times.log2() as u8).min(SAMPLING_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL_NS: u64 = 100_000_000;

    /// Intervals of a real to which `requests` come, half of which give a sample. What is
    /// counted is what the connections that are measured have.
    fn run(
        sampler: &mut ConnectionSampler,
        now_ns: &mut u64,
        requests: u64,
        intervals: u64,
    ) -> Sampling {
        for _ in 0..intervals {
            *now_ns += INTERVAL_NS;
            let k = sampler.sampling().opening;
            let seen = requests >> k;
            let interval = SampledInterval {
                requests: seen << k,
                requests_seen: seen,
                weight_halves: seen,
            };
            sampler.follow(*now_ns, &interval, 100.0);
        }
        sampler.sampling()
    }

    #[test]
    fn few_connections_are_all_measured_and_many_are_not() {
        for (requests, k) in [
            (0, 0),
            (150, 0),
            (1_100, 2),
            (22_000, 6),
            (1 << 30, SAMPLING_MAX),
        ] {
            let (mut sampler, mut now_ns) = (ConnectionSampler::default(), 0);
            let found = run(&mut sampler, &mut now_ns, requests, 100);
            assert_eq!(found.opening, k, "{requests}");
            // As many samples as are wanted, and not three times as many.
            let samples = (requests >> k) / 2;
            assert!(
                requests < 200 || k == SAMPLING_MAX || (100..300).contains(&samples),
                "{samples}"
            );
        }
    }

    #[test]
    fn fates_last_for_a_minute() {
        let (mut sampler, mut now_ns) = (ConnectionSampler::default(), 0);
        let busy = run(&mut sampler, &mut now_ns, 22_000, 100);
        assert_eq!((busy.opening, busy.least, busy.most), (6, 0, 6));
        let busy = run(&mut sampler, &mut now_ns, 22_000, 600);
        assert_eq!((busy.opening, busy.least, busy.most), (6, 6, 6));
        // Few come: more of them are measured soon, and none from the middle.
        let calm = run(&mut sampler, &mut now_ns, 1_100, 30);
        assert_eq!((calm.opening, calm.least, calm.most), (2, 2, 6));
        let calm = run(&mut sampler, &mut now_ns, 1_100, 610);
        assert_eq!((calm.opening, calm.least, calm.most), (2, 2, 2));
    }

    #[test]
    fn a_rate_does_not_go_to_and_fro() {
        let (mut sampler, mut now_ns) = (ConnectionSampler::default(), 0);
        run(&mut sampler, &mut now_ns, 1_700, 100);
        let mut changes = 0;
        for turn in 0..1_000 {
            let before = sampler.sampling().opening;
            // A tenth around the bound of k = 3.
            let requests = if turn % 10 < 5 { 1_520 } else { 1_680 };
            let after = run(&mut sampler, &mut now_ns, requests, 3).opening;
            changes += u32::from(before != after);
        }
        assert!(changes <= 1, "{changes}");
    }

    #[test]
    fn what_the_data_plane_has_goes_on() {
        let was = Sampling {
            opening: 4,
            least: 3,
            most: 5,
        };
        let mut sampler = ConnectionSampler::resumed(was);
        assert_eq!(sampler.fix(1_000, 4), was);
        assert_eq!(
            sampler.fix(1_000 + LATE_NS + 1, 4),
            Sampling {
                opening: 4,
                least: 4,
                most: 4
            }
        );
    }
}
