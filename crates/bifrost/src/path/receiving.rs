// SPDX-License-Identifier: Apache-2.0

//! What has arrived on a path and is not yet acknowledged.

use super::Numbers;
use crate::config::{Config, Rto};
use crate::window::{Window, expand};
use crate::wire::FIRST_NUMBER;

/// So many acknowledgements in a row have found data to ride on: the next one is expected to,
/// and its own time comes this much later. The peer's timeout has 0.5 ms to spare. A thread
/// that is woken every 200 us of a ping-pong, for nothing, makes each message wait.
const RIDES: u8 = 8;
const RIDE_NS: u64 = 300_000;
/// But for a fixed timeout that is shorter: each would send again what has arrived. Both ends
/// are taken to have the same.
const RIDE_RTO_NS: u64 = 1_000_000;

/// What has arrived and is not yet acknowledged.
#[derive(Debug)]
pub(crate) struct Receiving {
    pub window: Window,
    pub(super) control_seen: u64,
    pub pending: u16,
    pub pending_ns: u64,
    pub urgent: bool,
    /// Acknowledgements since the last one that found nothing to ride on.
    rides: u8,
    echo_us: u32,
    echo_ns: u64,
}

impl Receiving {
    pub(super) fn new(numbers: &Numbers) -> Receiving {
        Receiving {
            window: numbers.window,
            control_seen: numbers.control_seen,
            pending: 0,
            pending_ns: 0,
            urgent: false,
            rides: 0,
            echo_us: 0,
            echo_ns: 0,
        }
    }

    /// Notes a data packet.
    pub(crate) fn note(&mut self, now_ns: u64, number: u64, stamp_us: u32) {
        let newest = number > self.window.largest();
        self.window.mark(number);
        if self.pending == 0 {
            self.pending_ns = now_ns;
        }
        self.pending = self.pending.saturating_add(1);
        if newest {
            (self.echo_us, self.echo_ns) = (stamp_us, now_ns);
        }
        self.urgent |= self.window.has_fresh_gap();
    }

    /// Notes `count` data packets, 1 to 64, of which the first is newer than all before.
    pub(crate) fn note_run(&mut self, now_ns: u64, number: u64, count: u8, stamp_us: u32) {
        // A gap shows when the first has come, or not at all.
        self.note(now_ns, number, stamp_us);
        self.window.mark_next(u32::from(count) - 1);
        self.pending = self.pending.saturating_add(u16::from(count) - 1);
    }

    /// When the newest data packet came.
    pub(crate) fn newest_ns(&self) -> u64 {
        self.echo_ns
    }

    /// Stamp to echo, and microseconds since it came.
    pub(crate) fn echo(&self, now_ns: u64) -> (u32, u32) {
        let delay_us = now_ns.saturating_sub(self.echo_ns) / 1000;
        (self.echo_us, u32::try_from(delay_us).unwrap_or(u32::MAX))
    }

    /// The peer has asked: it gets an acknowledgement, unless it has sent nothing.
    pub(crate) fn say_again(&mut self, now_ns: u64) {
        if self.window.largest() >= FIRST_NUMBER {
            if self.pending == 0 {
                (self.pending, self.pending_ns) = (1, now_ns);
            }
            self.urgent = true;
        }
    }

    pub(crate) fn acknowledged(&mut self, now_ns: u64, config: &Config) {
        if self.has_waited(now_ns, config) {
            self.rides = 0;
        }
        (self.pending, self.urgent) = (0, false);
    }

    /// The acknowledgement rides on data.
    pub(crate) fn rode(&mut self) {
        self.rides = self.rides.saturating_add(1);
    }

    /// Whether nothing has come to ride on.
    fn has_waited(&self, now_ns: u64, config: &Config) -> bool {
        self.pending > 0 && now_ns >= self.pending_ns + self.patience_ns(config)
    }

    /// How long an acknowledgement waits for something to ride on.
    pub(super) fn patience_ns(&self, config: &Config) -> u64 {
        let bears = match config.rto {
            Rto::Adaptive => true,
            Rto::Fixed(ns) => ns >= RIDE_RTO_NS,
        };
        let expected = self.rides >= RIDES && bears;
        config.ack_delay_ns + if expected { RIDE_NS } else { 0 }
    }

    /// Whether an acknowledgement must not wait for anything.
    pub(crate) fn is_pressing(&self, config: &Config) -> bool {
        self.pending > 0 && (self.urgent || self.pending >= config.ack_every)
    }

    /// Whether an acknowledgement is due.
    pub(crate) fn is_due(&self, now_ns: u64, config: &Config) -> bool {
        self.has_waited(now_ns, config) || self.is_pressing(config)
    }

    pub(crate) fn expand_control(&self, low: u32) -> u64 {
        expand(self.control_seen, low)
    }

    /// Notes the number of an acknowledgement; says whether none was newer.
    pub(crate) fn note_control(&mut self, number: u64) -> bool {
        let newest = number > self.control_seen;
        self.control_seen = self.control_seen.max(number);
        newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_that_will_ride_waits_longer() {
        let config = Config::default();
        let delay_ns = config.ack_delay_ns;
        let mut receiving = Receiving::new(&Numbers::new());
        let arrive = |receiving: &mut Receiving, now_ns| {
            receiving.note(now_ns, receiving.window.largest() + 1, 0);
        };
        for ride in 0..u64::from(RIDES) {
            arrive(&mut receiving, ride);
            assert!(receiving.is_due(ride + delay_ns, &config), "ride {ride}");
            receiving.acknowledged(ride, &config);
            receiving.rode();
        }
        arrive(&mut receiving, 100);
        assert!(!receiving.is_due(100 + delay_ns, &config));
        let late_ns = 100 + delay_ns + RIDE_NS;
        assert!(receiving.is_due(late_ns, &config));
        receiving.acknowledged(late_ns, &config);
        arrive(&mut receiving, late_ns);
        assert!(receiving.is_due(late_ns + delay_ns, &config), "none came");
        // A timeout that would come before it does not bear it.
        receiving.rides = RIDES;
        let config = Config {
            rto: Rto::Fixed(RIDE_RTO_NS - 1),
            ..config
        };
        assert!(receiving.is_due(late_ns + delay_ns, &config));
    }
}
