// SPDX-License-Identifier: Apache-2.0

//! A path: what is in flight on it, what has arrived on it, and whether it works.

mod health;
mod receiving;

use crate::config::{Config, PathConfig};
use crate::congestion::Congestion;
use crate::doubt::Doubt;
use crate::metrics::{PathMetrics, PathState};
use crate::rtt::Rtt;
use crate::sending::Sending;
use crate::window::Window;
use crate::wire::FIRST_NUMBER;
pub(crate) use health::Health;
pub(crate) use receiving::Receiving;

/// Numbers that outlive the path's configuration: with keys they must not come twice
/// in a conversation, those of probes not twice in the life of an instance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    pub data: u64,
    pub control: u64,
    pub probe: u64,
    pub window: Window,
    pub control_seen: u64,
}

impl Numbers {
    pub(crate) fn new() -> Numbers {
        Numbers {
            data: FIRST_NUMBER,
            control: FIRST_NUMBER,
            probe: 1,
            window: Window::new(),
            control_seen: FIRST_NUMBER - 1,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Path {
    pub config: PathConfig,
    /// In use; below the configured one after an unannounced shrink.
    pub mtu: u16,
    /// When somebody last told it.
    mtu_known_ns: u64,
    pub state: PathState,
    pub sending: Sending,
    pub receiving: Receiving,
    pub congestion: Congestion,
    pub rtt: Rtt,
    pub health: Health,
    pub doubt: Option<Doubt>,
    pub control: u64,
    pub probe: u64,
    pub stats: PathMetrics,
}

impl Path {
    pub(crate) fn new(now_ns: u64, path: PathConfig, config: &Config, numbers: &Numbers) -> Path {
        Path {
            config: path,
            mtu: path.mtu,
            mtu_known_ns: 0,
            state: PathState::Probing,
            sending: Sending::new(numbers.data),
            receiving: Receiving::new(numbers),
            congestion: Congestion::new(path.mtu, config.limits.path_window),
            rtt: Rtt::new(),
            health: Health::new(now_ns),
            doubt: None,
            control: numbers.control,
            probe: numbers.probe,
            stats: PathMetrics::default(),
        }
    }

    /// What to go on from, if the path comes back.
    pub(crate) fn numbers(&self) -> Numbers {
        Numbers {
            data: self.sending.next(),
            control: self.control,
            probe: self.probe,
            window: self.receiving.window,
            control_seen: self.receiving.control_seen,
        }
    }

    /// A conversation begins: everything but liveness of the link and the counters.
    pub(crate) fn begin(&mut self, now_ns: u64, config: &Config) {
        self.sending = Sending::fresh();
        self.doubt = None;
        let numbers = Numbers::new();
        self.receiving = Receiving::new(&numbers);
        self.control = numbers.control;
        self.congestion = Congestion::new(self.mtu, config.limits.path_window);
        self.rtt = Rtt::new();
        if self.state != PathState::Down {
            self.state = PathState::Probing;
            self.health = Health::new(now_ns);
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.state == PathState::Alive
    }

    /// Whether a datagram of `len` bytes may be sent now.
    pub(crate) fn has_room(&self, len: u64) -> bool {
        self.is_alive()
            && self.sending.inflight() + len <= self.congestion.bytes()
            && self.sending.room() > 0
    }

    /// Bytes that may be sent now.
    pub(crate) fn room(&self) -> u64 {
        if self.is_alive() && self.sending.room() > 0 {
            self.congestion
                .bytes()
                .saturating_sub(self.sending.inflight())
        } else {
            0
        }
    }

    /// Bytes that the window lets through in a time.
    pub(crate) fn sends_in(&self, time_ns: u64) -> u64 {
        // Below 2^32 bytes and 2^20 us: no overflow.
        let srtt_us = (self.rtt.smoothed_ns() / 1000).max(1);
        self.congestion.bytes() * (time_ns / 1000) / srtt_us
    }

    /// Expected time until something sent now is there, in ns: the RTT without a queue
    /// of our own, plus what is in flight over the rate, but no less than the age of
    /// the oldest packet that is not acknowledged. The rate is what the window lets
    /// through in a smoothed RTT.
    pub(crate) fn completion_ns(&self, now_ns: u64) -> u64 {
        // Below 2^32 bytes and 2^23 us: no overflow.
        let srtt_us = self.rtt.smoothed_ns() / 1000;
        let queue_us = self.sending.inflight() * srtt_us / self.congestion.bytes().max(1);
        let age = self
            .sending
            .oldest_ns()
            .map_or(0, |at| now_ns.saturating_sub(at));
        (self.rtt.recent_ns(now_ns) + 1000 * queue_us).max(age)
    }

    pub(crate) fn timeout_ns(&self, config: &Config) -> u64 {
        // A full window stands in a queue of the target's length, and so may the
        // acknowledgement on its way back.
        let queue_ns =
            2 * config.queue_target_ns * self.sending.inflight() / self.congestion.bytes().max(1);
        self.rtt
            .timeout_ns(config.rto, config.ack_delay_ns + queue_ns)
    }

    /// How long a gap that too few packets have overtaken is looked at.
    pub(crate) fn gap_wait_ns(&self) -> u64 {
        (self.rtt.smoothed_ns() / 4).max(200_000)
    }

    /// When something of this path is due, acknowledgements included.
    pub(crate) fn deadline(&self, config: &Config) -> Option<u64> {
        let receiving = &self.receiving;
        let ack =
            (receiving.pending > 0).then(|| receiving.pending_ns + receiving.patience_ns(config));
        let timeout = self.sending.timeout(self.timeout_ns(config));
        let gap = self.sending.gap_deadline(self.gap_wait_ns());
        let probe = (self.state != PathState::Down).then_some(self.health.next_ns);
        let doubt = self.doubt_deadline();
        [ack, timeout, gap, doubt, probe]
            .into_iter()
            .flatten()
            .min()
    }
}
