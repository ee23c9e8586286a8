// SPDX-License-Identifier: Apache-2.0

//! A path: what is in flight on it, what has arrived on it, and whether it works.

use crate::config::{Config, MIN_MTU, PathConfig, Rto};
use crate::congestion::Congestion;
use crate::doubt::Doubt;
use crate::metrics::{PathMetrics, PathState};
use crate::rtt::Rtt;
use crate::sending::Sending;
use crate::window::{Window, expand};
use crate::wire::FIRST_NUMBER;

/// Probes of a path that does not answer.
const PROBE_NS: u64 = 10_000_000;
/// The same while no path is alive and all traffic waits, for as long as it may.
const ALONE_PROBE_NS: u64 = 2_000_000;
const URGENT_NS: u64 = 1_000_000_000;
/// After a path has been dead for `PATIENT_NS`.
const SLOW_PROBE_NS: u64 = 50_000_000;
const PATIENT_NS: u64 = 10_000_000_000;
/// A living path without traffic is probed this often.
const KEEPALIVE_NS: u64 = 100_000_000;
/// An idle path that leaves this many probes unanswered is dead.
const UNANSWERED: u32 = 3;
/// Replies that revive a dead path.
const REVIVING: u32 = 2;
/// Probes for strangers to answer come no closer: theirs may be small and forged, and
/// this is what the peer's address gets for them.
const CHALLENGE_NS: u64 = 1_000_000;
/// So many acknowledgements in a row have found data to ride on: the next one is expected to,
/// and its own time comes this much later. The peer's timeout has 0.5 ms to spare. A thread
/// that is woken every 200 us of a ping-pong, for nothing, makes each message wait.
const RIDES: u8 = 8;
const RIDE_NS: u64 = 300_000;
/// But for a fixed timeout that is shorter: each would send again what has arrived. Both ends
/// are taken to have the same.
const RIDE_RTO_NS: u64 = 1_000_000;
/// After a shrink that nobody announced, the configured MTU is tried this often.
const RAISE_NS: u64 = 10_000_000_000;

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

/// What has arrived and is not yet acknowledged.
#[derive(Debug)]
pub(crate) struct Receiving {
    pub window: Window,
    control_seen: u64,
    pub pending: u16,
    pub pending_ns: u64,
    pub urgent: bool,
    /// Acknowledgements since the last one that found nothing to ride on.
    rides: u8,
    echo_us: u32,
    echo_ns: u64,
}

impl Receiving {
    fn new(numbers: &Numbers) -> Receiving {
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
    fn patience_ns(&self, config: &Config) -> u64 {
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

/// Probing.
#[derive(Debug)]
pub(crate) struct Health {
    /// When the next probe is due.
    pub next_ns: u64,
    /// Probes since the last sign of life; one more when it was asked for a reason.
    unanswered: u32,
    /// When the last of them was sent.
    probed_ns: u64,
    /// Last acknowledgement that brought something, or reply.
    evidence_ns: u64,
    /// When the path became what it is.
    since_ns: u64,
    /// Replies since then to probes of full size, and to smaller ones.
    replies: u32,
    small_replies: u32,
    /// Stamp of the newest probe that was answered.
    answered_us: Option<u32>,
    probes: u32,
    raise_ns: u64,
    /// Earliest time of the next challenge.
    challenge_ns: u64,
}

/// What a reply has changed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Change {
    pub revived: bool,
    pub mtu: Option<u16>,
    /// The reply is newer than all before.
    pub fresh: bool,
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

    pub(crate) fn note_progress(&mut self, now_ns: u64) {
        self.health.evidence_ns = now_ns;
        self.health.unanswered = 0;
        self.doubt = None;
    }

    /// A timeout: probe it at once.
    pub(crate) fn suspect(&mut self, now_ns: u64) {
        self.health.next_ns = now_ns;
        self.health.unanswered = self.health.unanswered.max(1);
    }

    /// Probes it at once, unless a probe is under way.
    pub(crate) fn ask(&mut self, now_ns: u64) {
        if self.health.unanswered == 0 {
            self.suspect(now_ns);
        }
    }

    /// Whether two timeouts and a probe have brought nothing.
    pub(crate) fn is_silent(&self) -> bool {
        self.sending.backoff() >= 2 && self.health.unanswered >= 2
    }

    /// The path changes to `state`, and is probed from now on.
    pub(crate) fn become_state(&mut self, now_ns: u64, state: PathState) {
        let answered_us = self.health.answered_us;
        self.state = state;
        self.doubt = None;
        self.health = Health::new(now_ns);
        self.health.answered_us = answered_us;
    }

    /// A probe is due: gives its size in bytes, IP header included. Or the path has
    /// left too many unanswered. `alone`: no path is alive.
    pub(crate) fn probe_due(
        &mut self,
        now_ns: u64,
        timeout_ns: u64,
        alone: bool,
    ) -> Result<Option<u16>, Silent> {
        let health = &mut self.health;
        if self.state == PathState::Down || now_ns < health.next_ns {
            return Ok(None);
        }
        if self.state == PathState::Alive {
            let quiet = now_ns.saturating_sub(health.evidence_ns) >= KEEPALIVE_NS;
            let raise = self.mtu < self.config.mtu && now_ns >= health.raise_ns;
            if health.unanswered == 0 && !quiet && !raise {
                health.next_ns = health.evidence_ns + KEEPALIVE_NS;
                return Ok(None);
            }
            if health.unanswered > UNANSWERED {
                return Err(Silent);
            }
            // A raise that fails says nothing about the path.
            if raise && health.unanswered == 0 && !quiet {
                health.raise_ns = now_ns + RAISE_NS;
                health.next_ns = now_ns + PROBE_NS;
                return Ok(Some(self.config.mtu));
            }
            health.unanswered += 1;
            health.probed_ns = now_ns;
            health.next_ns = now_ns + timeout_ns.max(PROBE_NS / 2);
            return Ok(Some(self.mtu));
        }
        health.probes = health.probes.wrapping_add(1);
        health.next_ns = now_ns
            + match now_ns.saturating_sub(health.since_ns) {
                dead_ns if dead_ns > PATIENT_NS => SLOW_PROBE_NS,
                dead_ns if alone && dead_ns < URGENT_NS => ALONE_PROBE_NS,
                _ => PROBE_NS,
            };
        // Each third one is small: the path may have become narrow, not dead.
        let small = health.probes.is_multiple_of(3);
        Ok(Some(if small { MIN_MTU } else { self.config.mtu }))
    }

    /// A probe, in bytes, for an instance that is not the peer's, to answer.
    pub(crate) fn challenge(&mut self, now_ns: u64) -> Option<u16> {
        if self.state == PathState::Down || now_ns < self.health.challenge_ns {
            return None;
        }
        self.health.challenge_ns = now_ns + CHALLENGE_NS;
        Some(self.mtu)
    }

    /// The path's MTU is known; whether it has changed.
    pub(crate) fn set_mtu(&mut self, now_ns: u64, mtu: u16) -> bool {
        self.health.raise_ns = now_ns + RAISE_NS;
        self.mtu_known_ns = now_ns;
        std::mem::replace(&mut self.mtu, mtu) != mtu
    }

    /// A reply to a probe of `size` bytes that was sent at `stamp_us`, `age_ns` ago.
    pub(crate) fn on_reply(
        &mut self,
        now_ns: u64,
        age_ns: u64,
        stamp_us: u32,
        size: u16,
    ) -> Change {
        let health = &mut self.health;
        let newer = |last: u32| (stamp_us.wrapping_sub(last) as i32) > 0;
        if !health.answered_us.is_none_or(newer) {
            return Change::default();
        }
        health.answered_us = Some(stamp_us);
        health.evidence_ns = now_ns;
        health.unanswered = 0;
        self.doubt = None;
        let mut change = Change {
            fresh: true,
            ..Change::default()
        };
        if size >= self.mtu {
            health.replies += 1;
        } else {
            health.small_replies += 1;
        }
        // What passed before it became narrower says nothing.
        let since = now_ns.saturating_sub(age_ns) >= self.mtu_known_ns;
        if size > self.mtu && size <= self.config.mtu && since {
            self.mtu = size;
            change.mtu = Some(size);
        }
        let wanted = match self.state {
            PathState::Probing => 1,
            PathState::Dead => REVIVING,
            PathState::Alive | PathState::Down => return change,
        };
        if health.replies >= wanted {
            change.revived = true;
        } else if health.small_replies >= REVIVING && health.replies == 0 && self.mtu > MIN_MTU {
            self.mtu = MIN_MTU;
            change.mtu = Some(MIN_MTU);
            change.revived = true;
            health.raise_ns = now_ns + RAISE_NS;
        }
        if change.revived {
            let raise_ns = self.health.raise_ns;
            self.become_state(now_ns, PathState::Alive);
            self.health.raise_ns = raise_ns;
            self.note_progress(now_ns);
        } else {
            // The confirming probe follows at once.
            self.health.next_ns = now_ns;
        }
        change
    }
}

/// A living path that answers no probes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silent;

impl Health {
    /// When the probe was sent that a living path has not answered.
    pub(crate) fn unanswered_since(&self) -> Option<u64> {
        (self.unanswered > 0 && self.probed_ns > 0).then_some(self.probed_ns)
    }

    fn new(now_ns: u64) -> Health {
        Health {
            next_ns: now_ns,
            unanswered: 0,
            probed_ns: 0,
            evidence_ns: now_ns,
            since_ns: now_ns,
            replies: 0,
            small_replies: 0,
            answered_us: None,
            probes: 0,
            raise_ns: 0,
            challenge_ns: 0,
        }
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

    #[test]
    fn two_replies_revive_a_dead_path() {
        let config = PathConfig {
            peer: ([192, 0, 2, 1], 7000).into(),
            mtu: 1500,
        };
        let mut path = Path::new(1, config, &Config::default(), &Numbers::new());
        assert!(path.on_reply(2, 0, 1, 1500).revived, "a new one needs one");
        path.become_state(3, PathState::Dead);
        assert!(!path.on_reply(4, 0, 2, 1500).revived);
        assert!(!path.on_reply(5, 0, 2, 1500).revived, "the same once more");
        assert!(path.on_reply(6, 0, 3, 1500).revived);
        assert!(path.is_alive());
    }
}
