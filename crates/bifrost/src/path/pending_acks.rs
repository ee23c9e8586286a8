// SPDX-License-Identifier: Apache-2.0

//! What has arrived on a path and is not yet acknowledged.

use super::replay_window::{ReplayWindow, expand};
use crate::config::{Rto, TransportConfig};
use crate::wire::FIRST_NUMBER;

/// Acknowledgements in a row that were piggybacked on data, after which the next one is
/// expected to be, too: it then waits this much longer. The peer's timeout has 0.5 ms to
/// spare. A thread that is woken every 200 us of a ping-pong, for nothing, delays messages.
const PIGGYBACKED_IN_A_ROW: u8 = 8;
const PIGGYBACK_NS: u64 = 300_000;
/// Not with a fixed timeout that is shorter: each would retransmit what has arrived. Both
/// ends are taken to have the same.
const PIGGYBACK_MIN_RTO_NS: u64 = 1_000_000;

/// What has arrived on a path and is not yet acknowledged.
#[derive(Debug)]
pub(crate) struct PendingAcks {
    pub window: ReplayWindow,
    /// Largest number of a control datagram.
    pub(super) control_seen: u64,
    /// Data packets, and when the first of them came.
    pub pending: u16,
    pending_ns: u64,
    /// Something is missing, or was asked for.
    pub urgent: bool,
    /// Acknowledgements piggybacked since the last one that was not.
    piggybacked: u8,
    echo_us: u32,
    echo_ns: u64,
}

impl PendingAcks {
    pub(super) fn new(window: ReplayWindow, control_seen: u64) -> PendingAcks {
        PendingAcks {
            window,
            control_seen,
            pending: 0,
            pending_ns: 0,
            urgent: false,
            piggybacked: 0,
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

    /// The peer has probed: it gets an acknowledgement, unless it has sent nothing.
    pub(crate) fn repeat(&mut self, now_ns: u64) {
        if self.window.largest() >= FIRST_NUMBER {
            if self.pending == 0 {
                (self.pending, self.pending_ns) = (1, now_ns);
            }
            self.urgent = true;
        }
    }

    /// An acknowledgement has been written.
    pub(crate) fn acknowledged(&mut self, now_ns: u64, config: &TransportConfig) {
        if self.has_waited(now_ns, config) {
            self.piggybacked = 0;
        }
        (self.pending, self.urgent) = (0, false);
    }

    /// The acknowledgement travels with data.
    pub(crate) fn on_piggybacked(&mut self) {
        self.piggybacked = self.piggybacked.saturating_add(1);
    }

    /// Whether it has waited for data to travel with for as long as it may.
    fn has_waited(&self, now_ns: u64, config: &TransportConfig) -> bool {
        self.pending > 0 && now_ns >= self.pending_ns + self.delay_ns(config)
    }

    /// When the acknowledgement is due, if nothing else comes.
    pub(super) fn deadline(&self, config: &TransportConfig) -> Option<u64> {
        (self.pending > 0).then(|| self.pending_ns + self.delay_ns(config))
    }

    /// How long an acknowledgement waits for data to travel with.
    fn delay_ns(&self, config: &TransportConfig) -> u64 {
        let allowed = match config.rto {
            Rto::Adaptive => true,
            Rto::Fixed(ns) => ns >= PIGGYBACK_MIN_RTO_NS,
        };
        let expected = self.piggybacked >= PIGGYBACKED_IN_A_ROW && allowed;
        config.ack_delay_ns + if expected { PIGGYBACK_NS } else { 0 }
    }

    /// Whether an acknowledgement must not wait.
    pub(crate) fn is_urgent(&self, config: &TransportConfig) -> bool {
        self.pending > 0 && (self.urgent || self.pending >= config.ack_every)
    }

    /// Whether an acknowledgement is due.
    pub(crate) fn is_due(&self, now_ns: u64, config: &TransportConfig) -> bool {
        self.has_waited(now_ns, config) || self.is_urgent(config)
    }

    pub(crate) fn expand_control(&self, low: u32) -> u64 {
        expand(self.control_seen, low)
    }

    /// Whether no acknowledgement has had this number or a later one.
    pub(crate) fn is_newest_control(&self, number: u64) -> bool {
        number > self.control_seen
    }

    /// Notes the number of an acknowledgement; says whether none was newer.
    pub(crate) fn note_control(&mut self, number: u64) -> bool {
        let newest = self.is_newest_control(number);
        self.control_seen = self.control_seen.max(number);
        newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_that_will_be_piggybacked_waits_longer() {
        let config = TransportConfig::default();
        let delay_ns = config.ack_delay_ns;
        let mut acks = PendingAcks::new(ReplayWindow::new(), FIRST_NUMBER - 1);
        let arrive = |acks: &mut PendingAcks, now_ns| {
            acks.note(now_ns, acks.window.largest() + 1, 0);
        };
        for nth in 0..u64::from(PIGGYBACKED_IN_A_ROW) {
            arrive(&mut acks, nth);
            assert!(acks.is_due(nth + delay_ns, &config), "{nth}");
            acks.acknowledged(nth, &config);
            acks.on_piggybacked();
        }
        arrive(&mut acks, 100);
        assert!(!acks.is_due(100 + delay_ns, &config));
        let late_ns = 100 + delay_ns + PIGGYBACK_NS;
        assert!(acks.is_due(late_ns, &config));
        acks.acknowledged(late_ns, &config);
        arrive(&mut acks, late_ns);
        assert!(acks.is_due(late_ns + delay_ns, &config), "none came");
        // Not where a timeout would come before it.
        acks.piggybacked = PIGGYBACKED_IN_A_ROW;
        let config = TransportConfig {
            rto: Rto::Fixed(PIGGYBACK_MIN_RTO_NS - 1),
            ..config
        };
        assert!(acks.is_due(late_ns + delay_ns, &config));
    }
}
