// SPDX-License-Identifier: Apache-2.0
//! Whether a real is fit to serve, from probes that succeed or fail.
//!
//! A [`Check`] is the state machine of one real. Its owner asks
//! [`poll_probe`](Check::poll_probe) when it is time, sends what that says, and reports the outcome
//! by [`handle_outcome`](Check::handle_outcome); a probe without outcome
//! fails at its deadline, which [`handle_timeout`](Check::handle_timeout) looks after. One that could
//! not be sent says nothing of the real: [`handle_unsent`](Check::handle_unsent).
//! [`poll_timeout`](Check::poll_timeout) gives the next moment at which there is
//! something to do, [`poll_event`](Check::poll_event) what has changed.
//!
//! A real whose state is not known yet takes part like one that is up: a balancer that
//! starts must not empty the pool of one that ran. It does not count for what the
//! service needs. One that a former balancer had out of its ring may begin down, and one that is
//! added to others that serve may [wait](Check::waiting) for its first probe.

mod answer;
mod silence;
mod vote;

use std::collections::VecDeque;
use std::fmt;

pub use answer::{
    Echo, PostgresError, dns_code, endpoint_weight, grpc_request, grpc_serves, redis_serves,
};
pub use silence::{Silence, SilenceCounts};
pub use vote::{PROBERS, Votes, probes};

/// How often to probe and what to conclude.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthParams {
    /// From the beginning of one probe to that of the next, ns.
    pub interval_ns: u64,
    /// A probe that takes longer has failed, ns; at most the interval.
    pub timeout_ns: u64,
    /// Successes in a row that make a real up.
    pub rise: u32,
    /// Failures in a row that make it down.
    pub fall: u32,
}

impl Default for HealthParams {
    /// Every 2 s; down within 6 s, up within 4.
    fn default() -> Self {
        Self {
            interval_ns: 2_000_000_000,
            timeout_ns: 1_000_000_000,
            rise: 2,
            fall: 3,
        }
    }
}

/// What is known of a real.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HealthState {
    /// Too few probes yet.
    Unknown,
    /// Fit.
    Up,
    /// Not fit.
    Down,
}

impl HealthState {
    /// The word for tables and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

impl fmt::Display for HealthState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// A probe to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Distinguishes its outcome from that of others.
    pub number: u64,
    /// When it fails if there was no answer, ns.
    pub deadline_ns: u64,
}

/// A change of state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthEvent {
    /// When, ns.
    pub at_ns: u64,
    /// Before.
    pub from: HealthState,
    /// From now on.
    pub to: HealthState,
    /// What the last probe said.
    pub reason: String,
}

/// The health of one real.
#[derive(Clone, Debug)]
pub struct Check {
    params: HealthParams,
    state: HealthState,
    since_ns: u64,
    /// Outcomes in a row like the last one.
    row: u32,
    last_failed: bool,
    reason: String,
    next_ns: u64,
    number: u64,
    /// The probe that is out.
    out: Option<Probe>,
    events: VecDeque<HealthEvent>,
    succeeded: u64,
    failed: u64,
    /// Until then a probe that succeeds says nothing: a passive sign spoke against it.
    doubted_until_ns: u64,
    /// Until then, or a probe that succeeds, it waits to take part; 0: it does not.
    waits_until_ns: u64,
}

/// What is said of the last probe while the first is out.
pub const FIRST_PROBE_OUT: &str = "the first probe is not answered yet";
/// How it begins what is said of a probe that could not be sent.
pub const PROBE_UNSENT: &str = "this host could not send it: ";
/// What is said of it before there was one.
const NOT_PROBED: &str = "not probed yet";

impl Check {
    /// Begins at `now_ns`. The first probe goes out within one interval, at a moment
    /// that `seed` chooses: not all reals are probed at once.
    pub fn new(params: HealthParams, now_ns: u64, seed: u64) -> Self {
        let phase = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        Self {
            params,
            state: HealthState::Unknown,
            since_ns: now_ns,
            row: 0,
            last_failed: false,
            reason: NOT_PROBED.to_owned(),
            next_ns: now_ns + phase % params.interval_ns.max(1),
            number: 0,
            out: None,
            events: VecDeque::new(),
            succeeded: 0,
            failed: 0,
            doubted_until_ns: 0,
            waits_until_ns: 0,
        }
    }

    /// The same, probed at once, and waiting for that to take part: one that is new among others
    /// that serve. It waits for no longer than one that is dead is found to be so in.
    #[must_use]
    pub fn waiting(mut self, now_ns: u64) -> Self {
        let HealthParams {
            interval_ns,
            timeout_ns,
            fall,
            ..
        } = self.params;
        let found_ns = interval_ns.saturating_mul(fall.max(1).into());
        self.waits_until_ns = now_ns.saturating_add(found_ns).saturating_add(timeout_ns);
        self.next_ns = now_ns;
        self
    }

    /// Whether it waits for a probe that succeeds.
    pub fn waits(&self) -> bool {
        self.waits_until_ns > 0 && self.state == HealthState::Unknown
    }

    /// The same, down until probes say otherwise.
    #[must_use]
    pub fn beginning_down(mut self, reason: &str) -> Self {
        self.state = HealthState::Down;
        reason.clone_into(&mut self.reason);
        self
    }

    /// What is known.
    pub fn state(&self) -> HealthState {
        self.state
    }

    /// Since when, ns.
    pub fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// What the last probe said.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether the last probe could not be sent.
    pub fn is_unsent(&self) -> bool {
        self.reason.starts_with(PROBE_UNSENT)
    }

    /// Probes that succeeded and failed so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.succeeded, self.failed)
    }

    /// Changes the rules; what is known stays.
    pub fn set_params(&mut self, params: HealthParams, now_ns: u64) {
        self.params = params;
        self.next_ns = self.next_ns.min(now_ns + params.interval_ns);
    }

    /// The next moment at which there is something to do.
    pub fn poll_timeout(&self) -> u64 {
        match self.out {
            Some(probe) => probe.deadline_ns,
            None => self.next_ns,
        }
    }

    /// A probe to send now, if it is time and none is out.
    pub fn poll_probe(&mut self, now_ns: u64) -> Option<Probe> {
        if self.out.is_some() || now_ns < self.next_ns {
            return None;
        }
        self.number += 1;
        let probe = Probe {
            number: self.number,
            deadline_ns: now_ns + self.params.timeout_ns,
        };
        self.out = Some(probe);
        if self.reason == NOT_PROBED {
            FIRST_PROBE_OUT.clone_into(&mut self.reason);
        }
        // After a stall the rhythm begins again: what was missed is not made up for.
        let due_ns = self.next_ns + self.params.interval_ns;
        self.next_ns = match due_ns > now_ns {
            true => due_ns,
            false => now_ns + self.params.interval_ns,
        };
        Some(probe)
    }

    /// Takes the outcome of a probe; that of one that is not out is too late and
    /// counts no more. `Ok` and `Err` say in a few words what was seen.
    pub fn handle_outcome(&mut self, now_ns: u64, number: u64, outcome: Result<String, String>) {
        if self.out.is_none_or(|probe| probe.number != number) {
            return;
        }
        self.out = None;
        if outcome.is_ok() && now_ns < self.doubted_until_ns {
            return;
        }
        self.conclude(now_ns, outcome);
    }

    /// Takes that a probe could not be sent, by no fault of the real: it counts neither way, and
    /// what is known stays.
    pub fn handle_unsent(&mut self, number: u64, reason: &str) {
        if self.out.take_if(|probe| probe.number == number).is_some() {
            self.reason = format!("{PROBE_UNSENT}{reason}");
        }
    }

    /// Fails the probe that is out if its time is over.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.out.is_some_and(|probe| probe.deadline_ns <= now_ns) {
            self.out = None;
            let waited_ms = self.params.timeout_ns / 1_000_000;
            self.conclude(now_ns, Err(format!("no answer within {waited_ms} ms")));
        }
        if self.waits_until_ns <= now_ns {
            self.waits_until_ns = 0;
        }
    }

    /// Takes a sign from elsewhere that the real is not fit, like a failed probe. Probes
    /// that succeed do not count against it for the next `doubt_ns`.
    pub fn handle_passive(&mut self, now_ns: u64, doubt_ns: u64, reason: &str) {
        self.doubted_until_ns = now_ns + doubt_ns;
        self.conclude(now_ns, Err(reason.to_owned()));
    }

    /// What has changed, oldest first.
    pub fn poll_event(&mut self) -> Option<HealthEvent> {
        self.events.pop_front()
    }

    fn conclude(&mut self, now_ns: u64, outcome: Result<String, String>) {
        let failed = outcome.is_err();
        self.row = match self.row > 0 && failed == self.last_failed {
            true => self.row.saturating_add(1),
            false => 1,
        };
        self.last_failed = failed;
        match failed {
            true => self.failed += 1,
            false => {
                self.succeeded += 1;
                self.waits_until_ns = 0;
            }
        }
        self.reason = outcome.unwrap_or_else(|reason| reason);
        let (needed, to) = match failed {
            true => (self.params.fall, HealthState::Down),
            false => (self.params.rise, HealthState::Up),
        };
        if self.row >= needed.max(1) && self.state != to {
            self.events.push_back(HealthEvent {
                at_ns: now_ns,
                from: self.state,
                to,
                reason: self.reason.clone(),
            });
            self.state = to;
            self.since_ns = now_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: u64 = 1_000_000_000;

    fn check() -> Check {
        Check::new(HealthParams::default(), 0, 0)
    }

    /// Sends the next probe and gives it this outcome half a second later.
    fn probe(check: &mut Check, ok: bool) {
        let now = check.poll_timeout();
        let probe = check.poll_probe(now).expect("it is time");
        let outcome = if ok {
            Ok("fine".into())
        } else {
            Err("refused".into())
        };
        check.handle_outcome(now + S / 2, probe.number, outcome);
    }

    #[test]
    fn rise_and_fall_take_as_many_in_a_row() {
        let mut check = check();
        probe(&mut check, true);
        assert_eq!(check.state(), HealthState::Unknown);
        probe(&mut check, true);
        assert_eq!(check.state(), HealthState::Up);
        for ok in [false, false, true, false, false] {
            probe(&mut check, ok);
            assert_eq!(check.state(), HealthState::Up);
        }
        probe(&mut check, false);
        assert_eq!(check.state(), HealthState::Down);
        probe(&mut check, true);
        assert_eq!(check.state(), HealthState::Down);
        probe(&mut check, true);
        assert_eq!(check.state(), HealthState::Up);
        let events: Vec<_> = std::iter::from_fn(|| check.poll_event()).collect();
        let steps: Vec<_> = events.iter().map(|e| (e.from, e.to)).collect();
        assert_eq!(
            steps,
            [
                (HealthState::Unknown, HealthState::Up),
                (HealthState::Up, HealthState::Down),
                (HealthState::Down, HealthState::Up)
            ]
        );
        assert_eq!(events[1].reason, "refused");
        assert_eq!(check.counts(), (5, 5));
    }

    #[test]
    fn a_dead_real_is_down_after_fall_intervals_and_a_timeout() {
        let mut check = check();
        let mut now = 0;
        while check.state() != HealthState::Down {
            now = check.poll_timeout();
            check.handle_timeout(now);
            check.poll_probe(now);
            assert!(now <= 6 * S, "still {} at {now}", check.state());
        }
        assert_eq!(now, 2 * 2 * S + S);
        assert_eq!(check.reason(), "no answer within 1000 ms");
    }

    #[test]
    fn late_outcomes_do_not_count() {
        let mut check = check();
        let first = check.poll_probe(0).expect("it is time");
        assert_eq!(check.poll_probe(S / 2), None);
        check.handle_timeout(S);
        check.handle_outcome(S + 1, first.number, Ok("late".into()));
        assert_eq!(check.counts(), (0, 1));
        let second = check.poll_probe(2 * S).expect("it is time");
        check.handle_outcome(2 * S, first.number, Ok("very late".into()));
        check.handle_outcome(2 * S, second.number, Ok("fine".into()));
        assert_eq!(check.counts(), (1, 1));
    }

    #[test]
    fn a_probe_that_is_not_sent_counts_neither_way() {
        let mut check = check();
        for _ in 0..2 {
            probe(&mut check, false);
        }
        for _ in 0..9 {
            let now = check.poll_timeout();
            let number = check.poll_probe(now).expect("it is time").number;
            check.handle_unsent(number - 1, "of another");
            assert!(!check.reason().contains("another"));
            check.handle_unsent(number, "no port");
            assert_eq!(check.poll_timeout(), now + 2 * S);
            check.handle_timeout(now + S);
        }
        assert_eq!(
            (check.state(), check.counts()),
            (HealthState::Unknown, (0, 2))
        );
        assert_eq!(check.reason(), "this host could not send it: no port");
        assert!(check.is_unsent());
        probe(&mut check, false);
        assert_eq!(check.state(), HealthState::Down);
        assert!(!check.is_unsent());
    }

    #[test]
    fn the_rhythm_holds_and_a_stall_is_not_made_up_for() {
        let mut check = check();
        for round in 0..5 {
            assert_eq!(check.poll_timeout(), round * 2 * S);
            probe(&mut check, true);
        }
        let late = 100 * S;
        let number = check.poll_probe(late).expect("it is time").number;
        check.handle_outcome(late, number, Ok("fine".into()));
        assert_eq!(check.poll_probe(late + S), None);
        assert_eq!(check.poll_timeout(), late + 2 * S);
    }

    #[test]
    fn reals_are_not_probed_all_at_once() {
        let at = |seed| Check::new(HealthParams::default(), 0, seed).poll_timeout();
        let phases: std::collections::BTreeSet<u64> = (0..100).map(|s| at(s) / (S / 10)).collect();
        assert!(phases.len() > 15, "{phases:?}");
        assert!((0..100).all(|seed| at(seed) < 2 * S));
    }

    #[test]
    fn signs_from_elsewhere_count_as_failures() {
        let mut check = check();
        for _ in 0..3 {
            check.handle_passive(S, 0, "nobody sent anything");
        }
        assert_eq!(check.state(), HealthState::Down);
        assert_eq!(check.reason(), "nobody sent anything");
    }

    #[test]
    fn a_probe_that_succeeds_does_not_outvote_the_clients() {
        let mut check = check();
        for _ in 0..2 {
            let now = check.poll_timeout();
            check.handle_passive(now, 2 * S, "nobody sent anything");
            probe(&mut check, true);
        }
        assert_eq!(check.state(), HealthState::Unknown);
        check.handle_passive(check.poll_timeout(), 2 * S, "nobody sent anything");
        assert_eq!(check.state(), HealthState::Down);
        // The clients have gone elsewhere, and probes alone say when it is well again.
        probe(&mut check, true);
        for _ in 0..2 {
            assert_eq!(check.state(), HealthState::Down);
            probe(&mut check, true);
        }
        assert_eq!(check.state(), HealthState::Up);
    }

    #[test]
    fn one_that_waits_is_probed_at_once_until_a_probe_succeeds() {
        let late = |seed| Check::new(HealthParams::default(), S, seed).poll_timeout() > S;
        let seed = (0..).find(|seed| late(*seed)).expect("one");
        let waiting = || Check::new(HealthParams::default(), S, seed).waiting(S);
        let mut well = waiting();
        assert_eq!((well.waits(), well.poll_timeout()), (true, S));
        assert_eq!(well.reason(), "not probed yet");
        let first = well.poll_probe(S).expect("at once");
        assert_eq!(well.reason(), FIRST_PROBE_OUT);
        assert!(well.waits());
        well.handle_outcome(S, first.number, Ok("fine".into()));
        assert_eq!((well.waits(), well.state()), (false, HealthState::Unknown));
        // One that is dead waits until it is found to be.
        let mut dead = waiting();
        while dead.state() == HealthState::Unknown {
            assert!(dead.waits());
            probe(&mut dead, false);
        }
        assert!(!dead.waits());
        // And one that is not probed here for no longer.
        let mut silent = waiting();
        silent.handle_timeout(7 * S);
        assert!(silent.waits());
        silent.handle_timeout(8 * S);
        assert!(!silent.waits());
    }

    #[test]
    fn one_that_begins_down_takes_as_many_successes_as_any() {
        let mut check = check().beginning_down("out of the ring");
        assert_eq!(
            (check.state(), check.reason()),
            (HealthState::Down, "out of the ring")
        );
        probe(&mut check, true);
        assert_eq!(check.state(), HealthState::Down);
        probe(&mut check, true);
        assert_eq!(check.state(), HealthState::Up);
    }

    proptest! {
        /// Against the obvious rule: the last `rise` or `fall` outcomes agree.
        #[test]
        fn the_state_is_what_the_last_outcomes_say(
            outcomes in prop::collection::vec(any::<bool>(), 0..60),
            rise in 1..5_u32,
            fall in 1..5_u32,
        ) {
            let params = HealthParams { rise, fall, ..HealthParams::default() };
            let mut check = Check::new(params, 0, 0);
            let mut expected = HealthState::Unknown;
            for at in 0..outcomes.len() {
                probe(&mut check, outcomes[at]);
                let agree = |count: u32, wanted: bool| {
                    let count = count as usize;
                    at + 1 >= count && outcomes[at + 1 - count..=at].iter().all(|ok| *ok == wanted)
                };
                if agree(rise, true) {
                    expected = HealthState::Up;
                } else if agree(fall, false) {
                    expected = HealthState::Down;
                }
                prop_assert_eq!(check.state(), expected);
            }
        }
    }
}
