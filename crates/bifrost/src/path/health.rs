// SPDX-License-Identifier: Apache-2.0

//! Whether a path works: probes, what their replies say, and its MTU.

use super::Path;
use crate::config::MIN_MTU;
use crate::metrics::PathState;

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
/// After a shrink that nobody announced, the configured MTU is tried this often.
const RAISE_NS: u64 = 10_000_000_000;

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

impl Path {
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

    pub(super) fn new(now_ns: u64) -> Health {
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
    use super::super::Numbers;
    use super::*;
    use crate::config::{Config, PathConfig};

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
