// SPDX-License-Identifier: Apache-2.0

//! Whether a path works: probes, what their replies say, and its MTU.

use crate::config::MIN_MTU;
use crate::metrics::PathState;

/// Probes of a path that does not answer.
const PROBE_NS: u64 = 10_000_000;
/// The same while no path is alive and all traffic waits, for up to `ALONE_FOR_NS`.
const ALONE_PROBE_NS: u64 = 2_000_000;
const ALONE_FOR_NS: u64 = 1_000_000_000;
/// After a path has been dead for `LONG_DEAD_NS`.
const SLOW_PROBE_NS: u64 = 50_000_000;
const LONG_DEAD_NS: u64 = 10_000_000_000;
/// A living path without traffic is probed this often.
const KEEPALIVE_NS: u64 = 100_000_000;
/// A path without traffic that leaves this many probes unanswered is dead.
const UNANSWERED: u32 = 3;
/// Replies that revive a dead path.
const REVIVING: u32 = 2;
/// Probes for an unknown instance to answer come no closer: its own may be small and forged,
/// and this is what the peer's address gets for them.
const CHALLENGE_NS: u64 = 1_000_000;
/// After a shrink without notice, the configured MTU is tried this often.
const RAISE_NS: u64 = 10_000_000_000;

/// The state of a path, its MTU, and what probes show of both.
#[derive(Debug)]
pub(crate) struct PathHealth {
    state: PathState,
    /// As configured.
    max_mtu: u16,
    /// In use; below the configured one after a shrink.
    mtu: u16,
    /// When it was last set from outside.
    mtu_set_ns: u64,
    /// When the next probe is due.
    next_ns: u64,
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
    /// When the newest probe that was answered was sent, in microseconds.
    answered_us: Option<u64>,
    probes: u32,
    raise_ns: u64,
    /// Earliest time of the next challenge.
    challenge_ns: u64,
    /// A dead path does not come back before.
    left_alone_until_ns: u64,
}

/// What a reply has changed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplyOutcome {
    pub revived: bool,
    pub mtu: Option<u16>,
    /// The reply is newer than all before.
    pub fresh: bool,
}

/// A living path that answers no probes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unresponsive;

impl PathHealth {
    pub(super) fn new(now_ns: u64, mtu: u16) -> PathHealth {
        PathHealth {
            state: PathState::Probing,
            max_mtu: mtu,
            mtu,
            mtu_set_ns: 0,
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
            left_alone_until_ns: 0,
        }
    }

    pub(super) fn state(&self) -> PathState {
        self.state
    }

    pub(super) fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Whether the path has been alive since then.
    pub(super) fn is_alive_since(&self, at_ns: u64) -> bool {
        self.state == PathState::Alive && self.since_ns <= at_ns
    }

    /// When the next probe is due.
    pub(super) fn deadline(&self) -> u64 {
        self.next_ns
    }

    /// A session begins: what was learnt of the path but its MTU is forgotten.
    pub(super) fn begin_session(&mut self, now_ns: u64) {
        *self = self.anew(now_ns, PathState::Probing);
    }

    /// The path changes to `state`, and is probed from now on.
    pub(super) fn become_state(&mut self, now_ns: u64, state: PathState) {
        let answered_us = self.answered_us;
        *self = PathHealth {
            answered_us,
            ..self.anew(now_ns, state)
        };
    }

    fn anew(&self, now_ns: u64, state: PathState) -> PathHealth {
        PathHealth {
            state,
            mtu: self.mtu,
            mtu_set_ns: self.mtu_set_ns,
            ..PathHealth::new(now_ns, self.max_mtu)
        }
    }

    /// The path, which is dead, does not come back before, so long as another one is alive.
    pub(super) fn leave_alone(&mut self, until_ns: u64) {
        self.left_alone_until_ns = until_ns;
    }

    /// An acknowledgement has brought something.
    pub(super) fn on_progress(&mut self, now_ns: u64) {
        self.evidence_ns = now_ns;
        self.unanswered = 0;
    }

    /// A timeout: it is probed at once.
    pub(super) fn suspect(&mut self, now_ns: u64) {
        self.next_ns = now_ns;
        self.unanswered = self.unanswered.max(1);
    }

    /// Probes it at once, unless a probe is under way.
    pub(super) fn request_probe(&mut self, now_ns: u64) {
        if self.unanswered == 0 {
            self.suspect(now_ns);
        }
    }

    /// Whether a probe has brought nothing.
    pub(super) fn is_silent(&self) -> bool {
        self.unanswered >= 2
    }

    /// When the probe was sent that a living path has not answered.
    pub(super) fn unanswered_since(&self) -> Option<u64> {
        (self.unanswered > 0 && self.probed_ns > 0).then_some(self.probed_ns)
    }

    /// The size in bytes of a probe that is due, IP header included. Or the path has
    /// left too many unanswered. `alone`: no path is alive.
    pub(super) fn probe_due(
        &mut self,
        now_ns: u64,
        timeout_ns: u64,
        alone: bool,
    ) -> Result<Option<u16>, Unresponsive> {
        if now_ns < self.next_ns {
            return Ok(None);
        }
        if self.state == PathState::Alive {
            let quiet = now_ns.saturating_sub(self.evidence_ns) >= KEEPALIVE_NS;
            let raise = self.mtu < self.max_mtu && now_ns >= self.raise_ns;
            if self.unanswered == 0 && !quiet && !raise {
                self.next_ns = self.evidence_ns + KEEPALIVE_NS;
                return Ok(None);
            }
            if self.unanswered > UNANSWERED {
                return Err(Unresponsive);
            }
            // A raise that fails says nothing about the path.
            if raise && self.unanswered == 0 && !quiet {
                self.raise_ns = now_ns + RAISE_NS;
                self.next_ns = now_ns + PROBE_NS;
                return Ok(Some(self.max_mtu));
            }
            self.unanswered += 1;
            self.probed_ns = now_ns;
            self.next_ns = now_ns + timeout_ns.max(PROBE_NS / 2);
            return Ok(Some(self.mtu));
        }
        if alone {
            self.left_alone_until_ns = 0;
        }
        self.probes = self.probes.wrapping_add(1);
        self.next_ns = now_ns
            + match now_ns.saturating_sub(self.since_ns) {
                dead_ns if dead_ns > LONG_DEAD_NS => SLOW_PROBE_NS,
                dead_ns if alone && dead_ns < ALONE_FOR_NS => ALONE_PROBE_NS,
                _ => PROBE_NS,
            };
        // Each third one is small: the path may have become narrow, not dead. One is as large as
        // what passed before: else a path that is below its setting would come back as narrow.
        Ok(Some(match self.probes % 3 {
            0 => MIN_MTU,
            1 => self.max_mtu,
            _ => self.mtu,
        }))
    }

    /// The size of a probe for an instance that is not the peer's, to answer.
    pub(super) fn challenge(&mut self, now_ns: u64) -> Option<u16> {
        if now_ns < self.challenge_ns {
            return None;
        }
        self.challenge_ns = now_ns + CHALLENGE_NS;
        Some(self.mtu)
    }

    /// The path may carry packets of this size, which is larger than configured so far.
    pub(super) fn raise(&mut self, now_ns: u64, mtu: u16) {
        self.max_mtu = mtu;
        self.raise_ns = now_ns;
        self.next_ns = self.next_ns.min(now_ns);
    }

    /// The path's MTU is known; whether it has changed.
    pub(super) fn set_mtu(&mut self, now_ns: u64, mtu: u16) -> bool {
        self.raise_ns = now_ns + RAISE_NS;
        self.mtu_set_ns = now_ns;
        std::mem::replace(&mut self.mtu, mtu) != mtu
    }

    /// A reply to a probe of `size` bytes that was sent `age_us` ago.
    pub(super) fn on_reply(&mut self, now_ns: u64, age_us: u32, size: u16) -> ReplyOutcome {
        // Not the stamp: those of two probes that lie 36 minutes apart cannot be compared.
        let sent_us = (now_ns / 1000).saturating_sub(age_us.into());
        if self.answered_us.is_some_and(|last_us| sent_us <= last_us) {
            return ReplyOutcome::default();
        }
        self.answered_us = Some(sent_us);
        self.on_progress(now_ns);
        let mut outcome = ReplyOutcome {
            fresh: true,
            ..ReplyOutcome::default()
        };
        if size >= self.mtu {
            self.replies += 1;
        } else {
            self.small_replies += 1;
        }
        // What passed before it became narrower says nothing.
        let since = now_ns.saturating_sub(u64::from(age_us) * 1000) >= self.mtu_set_ns;
        if size > self.mtu && size <= self.max_mtu && since {
            self.mtu = size;
            outcome.mtu = Some(size);
        }
        let wanted = match self.state {
            PathState::Probing => 1,
            PathState::Dead if now_ns < self.left_alone_until_ns => return outcome,
            PathState::Dead => REVIVING,
            PathState::Alive => return outcome,
        };
        if self.replies >= wanted {
            outcome.revived = true;
        } else if self.small_replies >= REVIVING && self.replies == 0 && self.mtu > MIN_MTU {
            self.mtu = MIN_MTU;
            outcome.mtu = Some(MIN_MTU);
            outcome.revived = true;
            self.raise_ns = now_ns + RAISE_NS;
        }
        if outcome.revived {
            let raise_ns = self.raise_ns;
            self.become_state(now_ns, PathState::Alive);
            self.raise_ns = raise_ns;
        } else {
            // The confirming probe follows at once.
            self.next_ns = now_ns;
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn two_replies_revive_a_dead_path() {
        let mut health = PathHealth::new(MS, 1500);
        assert!(
            health.on_reply(2 * MS, 500, 1500).revived,
            "a new one needs one"
        );
        health.become_state(3 * MS, PathState::Dead);
        assert!(!health.on_reply(4 * MS, 500, 1500).revived);
        let again = health.on_reply(5 * MS, 1500, 1500);
        assert!(!again.fresh, "the same once more");
        assert!(health.on_reply(6 * MS, 500, 1500).revived);
        assert_eq!(health.state(), PathState::Alive);
    }

    #[test]
    fn a_path_below_its_setting_comes_back_with_the_mtu_that_it_had() {
        for (lets_through, comes_back) in [(1500, 1500), (1400, MIN_MTU), (9000, 9000)] {
            for state in [PathState::Dead, PathState::Probing] {
                let mut health = PathHealth::new(MS, 9000);
                assert!(health.on_reply(2 * MS, 500, 9000).revived);
                health.set_mtu(3 * MS, 1500);
                health.become_state(4 * MS, state);
                let mut now_ns = 5 * MS;
                while health.state() == state {
                    if let Ok(Some(size)) = health.probe_due(now_ns, MS, true)
                        && size <= lets_through
                    {
                        health.on_reply(now_ns + MS / 2, 500, size);
                    }
                    now_ns += MS;
                    assert!(now_ns < 100 * MS, "{lets_through}: {state:?}");
                }
                assert_eq!(health.mtu(), comes_back, "{lets_through}: {state:?}");
            }
        }
    }

    #[test]
    fn a_path_whose_setting_is_raised_goes_on_and_takes_what_passes() {
        for passes in [true, false] {
            let mut health = PathHealth::new(MS, 1500);
            assert!(health.on_reply(2 * MS, 500, 1500).revived);
            health.raise(3 * MS, 9000);
            assert_eq!(health.probe_due(3 * MS, MS, false).ok(), Some(Some(9000)));
            if passes {
                assert_eq!(health.on_reply(4 * MS, 500, 9000).mtu, Some(9000));
            }
            assert_eq!(health.state(), PathState::Alive);
            assert_eq!(health.mtu(), if passes { 9000 } else { 1500 });
        }
    }

    #[test]
    fn a_path_revives_after_an_outage_of_any_length() {
        // Stamps are 32 bits of microseconds: they wrap after 71.6 minutes.
        for minutes in [1, 35, 36, 40, 60, 71, 72, 100, 107, 108, 60 * 24 * 30] {
            let mut health = PathHealth::new(MS, 1500);
            assert!(health.on_reply(2 * MS, 500, 1500).revived);
            health.become_state(3 * MS, PathState::Dead);
            let now_ns = minutes * 60_000 * MS;
            health.on_reply(now_ns, 500, 1500);
            let revived = health.on_reply(now_ns + MS, 500, 1500).revived;
            assert!(revived, "after {minutes} minutes");
        }
    }
}
