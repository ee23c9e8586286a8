// SPDX-License-Identifier: Apache-2.0

//! The congestion window of a path, in bytes in flight. It aims at a queueing delay over the
//! lowest RTT, as Swift does (Kumar et al., SIGCOMM 2020, section 3.1): up by a constant
//! each round trip below the target, down in proportion to the excess above. The delay
//! of a round is the lowest of its samples, so that an endpoint that was not scheduled
//! for a while does not look like a queue; and of those alone that left with half the window
//! ahead of them, if there are any: the first datagram of a burst finds an empty queue
//! whatever the window is. A sender that is never idle would take its own queue for the lowest
//! RTT in the end, so it lets the queue drain when that has not been seen for some seconds (as
//! BBR does: Cardwell et al., ACM Queue 2016, "ProbeRTT"). Loss is what this transport is there to bear: it counts only
//! above 15 %.

use super::rtt::RttEstimator;

/// Datagrams: window at the start, how far delay may lower it, growth each round trip.
const INITIAL_DATAGRAMS: u64 = 32;
const FLOOR_DATAGRAMS: u64 = 16;
/// How far loss may lower it: a queue in the network may be shorter than the floor.
const LOSS_FLOOR_DATAGRAMS: u64 = 8;
const STEP_DATAGRAMS: u64 = 4;
/// The shortest round.
const MIN_ROUND_NS: u64 = 500_000;
/// At the floor for this many rounds and still slow: the path itself is.
const MAX_ROUNDS_AT_FLOOR: u32 = 8;
/// What stays in flight while the queue drains, at least.
const DRAIN_DATAGRAMS: u64 = 4;
/// The least time between two drains.
const DRAIN_GAP_NS: u64 = 4_000_000_000;
/// Fewer losses than this in a round say nothing.
const MIN_LOSSES: u32 = 8;

/// A queue is left to drain.
#[derive(Clone, Copy, Debug)]
struct Drain {
    until_ns: u64,
    /// What may be in flight, if that is more than a few datagrams.
    bytes: u64,
}

/// The congestion window of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Congestion {
    bytes: u64,
    drain: Option<Drain>,
    drained_ns: u64,
    datagram: u64,
    limit: u64,
    slow_start: bool,
    round_ns: u64,
    round_rtt_ns: u64,
    /// The same of what left with half a window in flight.
    round_full_ns: u64,
    acked: u32,
    lost: u32,
    rounds_at_floor: u32,
}

impl Congestion {
    pub(crate) fn new(mtu: u16, limit: u64) -> Congestion {
        let datagram = u64::from(mtu);
        Congestion {
            bytes: (INITIAL_DATAGRAMS * datagram).min(limit),
            drain: None,
            drained_ns: 0,
            datagram,
            limit,
            slow_start: true,
            round_ns: 0,
            round_rtt_ns: u64::MAX,
            round_full_ns: u64::MAX,
            acked: 0,
            lost: 0,
            rounds_at_floor: 0,
        }
    }

    /// What the path holds, as far as is known.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What may be in flight now.
    pub(crate) fn allowed(&self, now_ns: u64) -> u64 {
        let least = DRAIN_DATAGRAMS * self.datagram;
        match self.drain {
            Some(drain) if now_ns < drain.until_ns => drain.bytes.max(least).min(self.bytes),
            _ => self.bytes,
        }
    }

    /// The path's MTU has changed. A window for smaller datagrams might not let one through.
    pub(crate) fn set_mtu(&mut self, mtu: u16) {
        self.datagram = mtu.into();
        self.bytes = self.bytes.max(self.loss_floor());
    }

    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
        self.bytes = self.bytes.min(limit);
    }

    pub(crate) fn on_lost(&mut self, chunks: u32) {
        self.lost += chunks;
    }

    /// All that was sent for a while is lost: it begins again with little (RFC 9002, section 7.6.2).
    /// Rounds, which end with acknowledgements, would not lower it.
    pub(crate) fn on_all_lost(&mut self) {
        self.slow_start = true;
        self.bytes = self.bytes.min(self.loss_floor());
    }

    /// `acked.0` chunks of `acked.1` bytes were acknowledged. The one that `sample_ns` is of left
    /// when `ahead` bytes were in flight, itself included.
    pub(crate) fn on_ack(
        &mut self,
        now_ns: u64,
        rtt: &mut RttEstimator,
        sample_ns: Option<u64>,
        acked: (u32, u64),
        ahead: u64,
        target_ns: u64,
    ) {
        self.acked += acked.0;
        self.drain = self.drain.filter(|drain| now_ns < drain.until_ns);
        let Some(sample_ns) = sample_ns else { return };
        let full = 2 * ahead > self.bytes;
        self.round_rtt_ns = self.round_rtt_ns.min(sample_ns);
        if full {
            self.round_full_ns = self.round_full_ns.min(sample_ns);
        }
        let limit_ns = rtt.lowest_ns() + target_ns;
        if self.slow_start && full && sample_ns <= limit_ns {
            self.grow(acked.1);
        }
        if now_ns.saturating_sub(self.round_ns) >= rtt.smoothed_ns().max(MIN_ROUND_NS) {
            let used_ns = self.end_round(limit_ns);
            self.round_ns = now_ns;
            if let Some(delay_ns) = used_ns {
                self.begin_drain(now_ns, rtt, delay_ns);
            }
            if self.rounds_at_floor > MAX_ROUNDS_AT_FLOOR {
                self.rounds_at_floor = 0;
                rtt.forget_lowest(now_ns);
            }
        }
    }

    /// Lets the queue of a path that is in use drain, where its lowest RTT has not been seen
    /// lately: in one round trip what is in flight has come, in another one what follows has
    /// been acknowledged.
    fn begin_drain(&mut self, now_ns: u64, rtt: &RttEstimator, delay_ns: u64) {
        let lately = now_ns.saturating_sub(self.drained_ns) < DRAIN_GAP_NS;
        if lately || !rtt.lowest_fades(now_ns) {
            return;
        }
        self.drained_ns = now_ns;
        let round_ns = rtt.smoothed_ns().max(MIN_ROUND_NS);
        // Three quarters of what fits the path without a queue, if its lowest RTT still stands.
        let bytes = self.bytes * rtt.lowest_ns() / delay_ns.max(1) * 3 / 4;
        self.drain = Some(Drain {
            until_ns: now_ns + 2 * round_ns,
            bytes,
        });
    }

    /// The delay of the round, if the window was in use.
    fn end_round(&mut self, limit_ns: u64) -> Option<u64> {
        let lowest = std::mem::replace(&mut self.round_rtt_ns, u64::MAX);
        let full = std::mem::replace(&mut self.round_full_ns, u64::MAX);
        let used = full != u64::MAX;
        let delay = if used { full } else { lowest };
        let (acked, lost) = (
            std::mem::take(&mut self.acked),
            std::mem::take(&mut self.lost),
        );
        let floor = self.floor();
        if lost > MIN_LOSSES && lost * 100 > 15 * (acked + lost) {
            self.slow_start = false;
            self.bytes = (self.bytes * 7 / 10).max(self.loss_floor());
        } else if delay > limit_ns {
            self.slow_start = false;
            self.rounds_at_floor += u32::from(self.bytes <= floor);
            // At most 40 % at once.
            let cut = (self.bytes * (delay - limit_ns) / delay / 2).min(self.bytes * 2 / 5);
            self.bytes = (self.bytes - cut).max(floor.min(self.bytes));
        } else {
            self.rounds_at_floor = 0;
            if used && !self.slow_start {
                self.grow(STEP_DATAGRAMS * self.datagram);
            }
        }
        used.then_some(full)
    }

    fn floor(&self) -> u64 {
        (FLOOR_DATAGRAMS * self.datagram).min(self.limit)
    }

    fn loss_floor(&self) -> u64 {
        (LOSS_FLOOR_DATAGRAMS * self.datagram).min(self.limit)
    }

    fn grow(&mut self, by: u64) {
        self.bytes = (self.bytes + by).min(self.limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link with an endless queue, seen once a round.
    struct Link {
        /// Bytes a nanosecond.
        rate: f64,
        base_ns: u64,
        now_ns: u64,
        congestion: Congestion,
        rtt: RttEstimator,
    }

    impl Link {
        fn new(rate: f64, base_ns: u64) -> Link {
            let mut rtt = RttEstimator::new();
            // The probe's that found the path.
            rtt.sample(1, base_ns);
            Link {
                rate,
                base_ns,
                now_ns: 1,
                congestion: Congestion::new(1500, 1 << 30),
                rtt,
            }
        }

        /// All that may be in flight is; how long it takes.
        fn round(&mut self) -> u64 {
            let bytes = self.congestion.allowed(self.now_ns);
            let delay_ns = self.base_ns.max((bytes as f64 / self.rate) as u64);
            self.now_ns += delay_ns.max(MIN_ROUND_NS);
            self.rtt.sample(self.now_ns, delay_ns);
            let acked = ((bytes / 1500) as u32, bytes);
            let (rtt, sample) = (&mut self.rtt, Some(delay_ns));
            self.congestion
                .on_ack(self.now_ns, rtt, sample, acked, bytes, 1_000_000);
            delay_ns
        }
    }

    #[test]
    fn the_queue_settles_at_the_target() {
        // 1 Gbit/s and 10 Gbit/s, 200 us.
        for rate in [0.125, 1.25] {
            let mut link = Link::new(rate, 200_000);
            let delay = (0..400).map(|_| link.round()).last().unwrap_or_default();
            assert!(
                (900_000..1_600_000).contains(&delay),
                "{delay} ns at {rate}"
            );
        }
    }

    #[test]
    fn the_queue_does_not_grow_for_an_hour_of_bulk() {
        // 250 Mbit/s with 100 us, 1 Gbit/s with 20 ms; without drains the queue would be taken
        // for the path, again and again.
        for (rate, base_ns) in [(0.031_25, 100_000), (0.125, 20_000_000)] {
            let mut link = Link::new(rate, base_ns);
            let (mut highest_ns, mut rounds, mut drained) = (0, 0, 0);
            while link.now_ns < 3_600_000_000_000 {
                let delay_ns = link.round();
                // The first second is slow start's.
                if link.now_ns > 1_000_000_000 {
                    highest_ns = highest_ns.max(delay_ns);
                    rounds += 1;
                    drained += u32::from(link.congestion.drain.is_some());
                }
            }
            assert!(
                highest_ns - base_ns < 2_000_000,
                "{highest_ns} ns at {rate}"
            );
            assert!(drained * 50 < rounds, "{drained} of {rounds} at {rate}");
        }
    }

    #[test]
    fn a_drain_lets_datagrams_of_a_raised_mtu_through_and_ends_by_itself() {
        let mut congestion = Congestion::new(1280, 1 << 30);
        let mut rtt = RttEstimator::new();
        rtt.sample(1, 90_000);
        let now_ns = 6_000_000_000;
        congestion.begin_drain(now_ns, &rtt, 1_000_000);
        assert_eq!(congestion.allowed(now_ns), 4 * 1280);
        congestion.set_mtu(9000);
        assert_eq!(congestion.allowed(now_ns), 4 * 9000);
        // Nothing has been acknowledged meanwhile.
        assert_eq!(congestion.allowed(now_ns + 1_000_000), congestion.bytes());
    }

    #[test]
    fn bursts_into_an_empty_queue_do_not_raise_it_for_ever() {
        // 250 Mbit/s, 100 us; 55 kB at once, the next when all has come. The first of each
        // burst never waits.
        let mut congestion = Congestion::new(1500, 1 << 30);
        let mut rtt = RttEstimator::new();
        let mut start_ns = 1;
        for _ in 0..2000 {
            let mut now_ns = start_ns;
            for number in 1..=36 {
                let ahead = 1500 * number;
                now_ns = start_ns + 100_000 + ahead * 32;
                rtt.sample(now_ns, now_ns - start_ns);
                let sample = Some(now_ns - start_ns);
                congestion.on_ack(now_ns, &mut rtt, sample, (1, 1500), ahead, 1_000_000);
            }
            start_ns = now_ns;
        }
        // What stands half a window deep waits for the target at most: twice 31 kB.
        assert!(congestion.bytes() < 80_000, "{}", congestion.bytes());
    }

    #[test]
    fn loss_lowers_it_only_above_fifteen_percent() {
        for (lost, lowered) in [(10, false), (30, true)] {
            let mut congestion = Congestion::new(1500, 1 << 30);
            let mut rtt = RttEstimator::new();
            rtt.sample(1, 200_000);
            let mut ack = |congestion: &mut Congestion, now_ns, acked| {
                let inflight = congestion.bytes();
                congestion.on_ack(now_ns, &mut rtt, Some(200_000), acked, inflight, 1_000_000);
            };
            ack(&mut congestion, 2, (64, 96_000));
            let before = congestion.bytes();
            congestion.on_lost(lost);
            ack(&mut congestion, 10_000_000, (100 - 64 - lost, 0));
            assert_eq!(congestion.bytes() < before, lowered, "{lost} %");
        }
    }
}
