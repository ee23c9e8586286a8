// SPDX-License-Identifier: Apache-2.0

//! The congestion window of a path, in bytes in flight. It aims at a queueing delay over the
//! lowest RTT, as Swift does (Kumar et al., SIGCOMM 2020, section 3.1): up by a constant
//! each round trip below the target, down in proportion to the excess above. The delay
//! of a round is the lowest of its samples, so that an endpoint that was not scheduled
//! for a while does not look like a queue; and of those alone that left with half the window
//! ahead of them, if there are any: the first datagram of a burst finds an empty queue
//! whatever the window is. Loss is what this transport is there to bear: it counts only
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
/// Fewer losses than this in a round say nothing.
const MIN_LOSSES: u32 = 8;

/// The congestion window of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Congestion {
    bytes: u64,
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

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
        self.bytes = self.bytes.min(limit);
    }

    pub(crate) fn on_lost(&mut self, chunks: u32) {
        self.lost += chunks;
    }

    /// `acked.0` chunks of `acked.1` bytes were acknowledged. The one that `sample_ns` tells
    /// of left when `ahead` bytes were in flight, itself included.
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
            self.end_round(limit_ns);
            self.round_ns = now_ns;
            if self.rounds_at_floor > MAX_ROUNDS_AT_FLOOR {
                self.rounds_at_floor = 0;
                rtt.forget_lowest(now_ns);
            }
        }
    }

    fn end_round(&mut self, limit_ns: u64) {
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
            let floor = (LOSS_FLOOR_DATAGRAMS * self.datagram).min(self.limit);
            self.bytes = (self.bytes * 7 / 10).max(floor);
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
    }

    fn floor(&self) -> u64 {
        (FLOOR_DATAGRAMS * self.datagram).min(self.limit)
    }

    fn grow(&mut self, by: u64) {
        self.bytes = (self.bytes + by).min(self.limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link of `rate` bytes a nanosecond with an endless queue, seen once a round.
    fn settle(rate: f64, base_ns: u64, rounds: u32) -> (Congestion, u64) {
        let mut congestion = Congestion::new(1500, 1 << 30);
        let mut rtt = RttEstimator::new();
        let (mut now, mut delay) = (1, base_ns);
        for _ in 0..rounds {
            let bytes = congestion.bytes();
            delay = base_ns.max((bytes as f64 / rate) as u64);
            now += delay.max(MIN_ROUND_NS);
            rtt.sample(now, delay);
            let acked = ((bytes / 1500) as u32, bytes);
            congestion.on_ack(now, &mut rtt, Some(delay), acked, bytes, 1_000_000);
        }
        (congestion, delay)
    }

    #[test]
    fn the_queue_settles_at_the_target() {
        // 1 Gbit/s and 10 Gbit/s, 200 us.
        for rate in [0.125, 1.25] {
            let (_, delay) = settle(rate, 200_000, 400);
            assert!(
                (900_000..1_600_000).contains(&delay),
                "{delay} ns at {rate}"
            );
        }
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
