// SPDX-License-Identifier: Apache-2.0
//! Who gave up: attempts of which no SYN came any more.
//!
//! A verdict can be wrong. Clients are more patient than the configuration says, and on a
//! busy machine a retry may be later than any timer allows. So an attempt that was judged is
//! looked at again: if its client came after all, what was estimated is taken back. Counters
//! cannot go back: one counts a client when no stack would send another SYN for it, however
//! patient ([`Judge::gone_for_good_s`]). Until then the kernel keeps the attempt.
//!
//! A client that came late may be served within milliseconds, and nothing in the kernel's tables
//! tells its attempt from an evicted one at the next look. But its last SYN is among the retries
//! that were answered, by number and time.

use std::collections::HashMap;

use causeway_core::certes::{AttemptFate, Judge};
use causeway_dataplane::abi::FlowKey6;
use causeway_dataplane::syn_meter::{Stage, Waiting};

use super::category::Category;

/// An attempt whose client was taken to have given up.
#[derive(Clone, Copy, Debug)]
struct Judged {
    category: usize,
    last_syn_ns: u64,
    /// Its last SYN as a retry: its number, and its seconds after the first SYN.
    last: (u8, f64),
    /// The second in which it gave up, on the monotonic clock.
    second: u64,
    waited_s: f64,
    /// The slot in which it counts; `None`: that is forgotten.
    slot: Option<u64>,
    /// Whether it is in the totals.
    counted: bool,
}

/// Attempts that were judged and are not counted or not in the history yet. They stay in the
/// kernel until then: an agent that is started meanwhile must find them.
#[derive(Debug)]
pub(super) struct GaveUp {
    judged: HashMap<(FlowKey6, u64), Judged>,
    slot_ns: u64,
    /// When this agent began: who was gone for good by then is in its predecessor's totals.
    begin_ns: u64,
    /// The last retries of those that were counted, until they are taken.
    retries: Vec<(u8, f64)>,
    /// Retries that were answered, as read at this look and at the one before.
    answered: [AnsweredRetries; 2],
    /// When the last look began.
    looked_ns: u64,
}

/// Retries that were answered between two readings.
#[derive(Debug, Default)]
pub(super) struct AnsweredRetries {
    /// Their numbers, and their seconds after the first SYN, rounded down to hundredths.
    pub(super) retries: Vec<(u32, f64)>,
    /// Until when attempts were read, which is before these were.
    pub(super) until_ns: u64,
}

impl GaveUp {
    /// For slots of this length, by an agent that began then.
    pub(super) fn new(slot_ns: u64, begin_ns: u64) -> Self {
        Self {
            judged: HashMap::new(),
            slot_ns,
            begin_ns,
            retries: Vec::new(),
            answered: Default::default(),
            looked_ns: begin_ns,
        }
    }

    /// Takes up which retries were answered, for the next look. They are to be read behind its
    /// attempts: the retry of one that is gone is then among them, or among those of the last look.
    pub(super) fn take_up(&mut self, answered: AnsweredRetries) {
        self.answered.swap(0, 1);
        self.answered[0] = answered;
    }

    /// Which retry was the last of a client that gave up, and when it came after its first SYN,
    /// seconds: of all that were counted since the last call.
    pub(super) fn take_retries(&mut self) -> Vec<(u8, f64)> {
        std::mem::take(&mut self.retries)
    }

    /// Looks at the attempts that wait, once a second. Gives back those that the kernel can
    /// forget: a SYN that comes of one from then on is a first one. With a history, those
    /// stay that gave up after the second `keep_after`. `answered` says of an attempt that no
    /// longer waits whether it was; if not, its tuple came again, or it was evicted.
    pub(super) fn review(
        &mut self,
        waiting: Vec<Waiting>,
        now_ns: u64,
        judge: &Judge,
        keep_after: Option<u64>,
        answered: impl Fn(&FlowKey6, u64) -> bool,
        categories: &mut [Category],
    ) -> Vec<Waiting> {
        let mut gone = Vec::new();
        let mut before = std::mem::take(&mut self.judged);
        for attempt in waiting {
            // Twice in the kernel's tables where its tuple came again between two readings.
            if self.judged.contains_key(&attempt.attempt()) {
                continue;
            }
            match before.remove(&attempt.attempt()) {
                Some(of) if of.last_syn_ns == attempt.last_syn_ns => {
                    if !of.counted && is_of_flood(&attempt, categories) {
                        take_back(&of, categories);
                        gone.push(attempt);
                        continue;
                    }
                    let age_s = seconds(now_ns, attempt.first_syn_ns);
                    let of = match age_s > judge.gone_for_good_s(of.last.1, loss(&of, categories)) {
                        true => self.count(of, categories),
                        false => of,
                    };
                    let kept = keep_after.is_some_and(|recorded| of.second > recorded);
                    match of.counted && !kept {
                        true => gone.push(attempt),
                        false => drop(self.judged.insert(attempt.attempt(), of)),
                    }
                    continue;
                }
                Some(of) => take_back(&of, categories),
                None => {}
            }
            let flood = is_of_flood(&attempt, categories);
            if let Some(category) = categories.get_mut(attempt.category as usize)
                && self.judge(&attempt, now_ns, judge, (category, flood))
            {
                gone.push(attempt);
            }
        }
        for ((key, first_syn_ns), of) in before {
            match answered(&key, first_syn_ns) || self.may_be_over(&of, first_syn_ns) {
                true => take_back(&of, categories),
                false => drop(self.count(of, categories)),
            }
        }
        self.looked_ns = now_ns;
        gone
    }

    /// Whether a retry was answered since the last look that can be of this attempt, which is in no
    /// table. Another client's can be, too: but then a flood had to evict this one.
    fn may_be_over(&self, of: &Judged, first_syn_ns: u64) -> bool {
        const ROUNDED_S: f64 = 0.01;
        let from_s = seconds(self.looked_ns, first_syn_ns) - ROUNDED_S;
        let until_s = seconds(self.answered[0].until_ns, first_syn_ns);
        let mut retries = self.answered.iter().flat_map(|of| &of.retries);
        retries.any(|&(retry, at_s)| retry > of.last.0.into() && (from_s..=until_s).contains(&at_s))
    }

    /// Judges an attempt; whether it can be forgotten at once.
    fn judge(
        &mut self,
        attempt: &Waiting,
        now_ns: u64,
        judge: &Judge,
        (category, flood): (&mut Category, bool),
    ) -> bool {
        let s = |to_ns| seconds(to_ns, attempt.first_syn_ns);
        let standing = category.observer.standing();
        let last_s = s(attempt.last_syn_ns);
        let waited_s = match (attempt.stage, judge.judge(last_s, s(now_ns), standing.loss)) {
            // What no patience explains is no client of ours, or was answered too late.
            (Stage::Left(at_ns), _) => match judge.left(last_s, s(at_ns), standing.loss) {
                Some(waited_s) => waited_s,
                None => return true,
            },
            (_, AttemptFate::GaveUp(waited_s)) => waited_s,
            (_, AttemptFate::Waits) => return false,
        };
        if flood {
            return true;
        }
        let ended_ns = attempt.first_syn_ns + (waited_s * 1e9) as u64;
        let slot = ended_ns / self.slot_ns;
        let judged = Judged {
            category: attempt.category as usize,
            last_syn_ns: attempt.last_syn_ns,
            last: (attempt.retry, last_s),
            second: ended_ns / 1_000_000_000,
            waited_s,
            slot: category.observer.gave_up(slot, waited_s),
            counted: s(self.begin_ns) > judge.gone_for_good_s(last_s, standing.loss),
        };
        self.judged.insert(attempt.attempt(), judged);
        false
    }

    /// No more events follow for it: it stays in the totals.
    fn count(&mut self, of: Judged, categories: &mut [Category]) -> Judged {
        if let Some(category) = categories.get_mut(of.category)
            && !of.counted
        {
            category.count_gave_up(of.waited_s);
            self.retries.push(of.last);
        }
        Judged {
            counted: true,
            ..of
        }
    }
}

fn seconds(to_ns: u64, from_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e9
}

fn loss(of: &Judged, categories: &[Category]) -> f64 {
    let category = categories.get(of.category);
    category.map_or(0.0, |of| of.observer.standing().loss)
}

/// SYNs of a flood never count as clients that gave up. A flood is recognised only when its first
/// SYNs are overdue, so that a verdict may be a moment older.
fn is_of_flood(attempt: &Waiting, categories: &[Category]) -> bool {
    let category = categories.get(attempt.category as usize);
    attempt.retry == 0 && category.is_some_and(|of| of.observer.standing().flood > 0.0)
}

fn take_back(of: &Judged, categories: &mut [Category]) {
    if let (Some(slot), Some(category)) = (of.slot, categories.get_mut(of.category)) {
        category.observer.take_back(slot, of.waited_s);
    }
}

#[cfg(test)]
mod tests {
    use causeway_core::certes::{
        BSD_S, CategoryObserver, LINUX_6_5_S, Mix, RFC_1122_S, RFC_6298_S, RetryClass, Slot,
    };

    use super::super::category::tests::category;
    use super::*;

    const S: u64 = 1_000_000_000;
    const SLOT: u64 = S / 4;
    /// When the attempts' first SYN came.
    const FIRST: u64 = 100 * S;

    /// Clients of Linux with 9 s of patience, and slots up to 120 s.
    struct Bench {
        gave_up: GaveUp,
        judge: Judge,
        categories: Vec<Category>,
        /// Whether those that wait no more were answered.
        answered: bool,
    }

    impl Bench {
        fn new() -> Self {
            let mix = Mix::new([RetryClass::new("linux", LINUX_6_5_S, 9.0)]).unwrap();
            let mut observer = CategoryObserver::new(0.25, &mix, 200).unwrap();
            let slots: Vec<(u64, Slot)> = (360..480).map(|n| (n, Slot::default())).collect();
            observer.feed(&slots, &[]).unwrap();
            Self {
                gave_up: GaveUp::new(SLOT, 0),
                judge: Judge::new(&mix, vec![LINUX_6_5_S.to_vec()]),
                categories: vec![Category {
                    observer,
                    ..category("*:80", "all")
                }],
                answered: true,
            }
        }

        /// Looks so long after the first SYN; how many can be forgotten.
        fn look(&mut self, at_s: f64, attempts: &[Waiting], keep_after: Option<u64>) -> usize {
            let answered = self.answered;
            let now_ns = FIRST + (at_s * 1e9) as u64;
            let gone = self.gave_up.review(
                attempts.to_vec(),
                now_ns,
                &self.judge,
                keep_after,
                |_, first_syn_ns| answered && first_syn_ns == FIRST,
                &mut self.categories,
            );
            gone.len()
        }

        /// Clients that gave up and what they waited: estimated, and in the totals.
        fn counts(&self) -> [(f64, f64); 2] {
            let category = &self.categories[0];
            let recent = category.observer.recent();
            let estimated = recent.fold((0.0, 0.0), |sum, of| {
                (sum.0 + of.exact.gave_up, sum.1 + of.exact.give_up_s)
            });
            let totals = (category.totals.gave_up as f64, category.totals.lost_s);
            [estimated, totals]
        }
    }

    fn attempt(port: u16, last_s: f64, retry: u8) -> Waiting {
        Waiting {
            key: FlowKey6 {
                sport_be: port.to_be_bytes(),
                ..FlowKey6::default()
            },
            category: 0,
            first_syn_ns: FIRST,
            last_syn_ns: FIRST + (last_s * 1e9) as u64,
            retry,
            stage: Stage::Offered,
        }
    }

    const NOBODY: [(f64, f64); 2] = [(0.0, 0.0); 2];

    #[test]
    fn who_stays_away_counts_at_once_in_the_estimate_and_in_the_totals_once_nobody_may_come() {
        let mut bench = Bench::new();
        let waits = [attempt(1, 7.13, 6)];
        assert_eq!(bench.look(9.0, &waits, Some(90)), 0);
        assert_eq!(bench.counts(), NOBODY);
        // Timeouts double at most: 7.13 s are followed by 17.26 s, and a twentieth more.
        for (at_s, total) in [(9.7, (0.0, 0.0)), (18.1, (0.0, 0.0)), (18.2, (1.0, 9.0))] {
            assert_eq!(
                bench.look(at_s, &waits, Some(90)),
                0,
                "not in the history yet"
            );
            assert_eq!(bench.counts(), [(1.0, 9.0), total], "{at_s}");
        }
        assert_eq!(bench.look(24.0, &waits, Some(109)), 1, "now it is");
        bench.answered = false;
        assert_eq!(bench.look(25.0, &[], Some(110)), 0);
        assert_eq!(bench.counts(), [(1.0, 9.0); 2], "and stays so");
    }

    #[test]
    fn who_was_gone_before_the_agent_began_is_in_its_predecessors_totals() {
        for (began_s, total) in [(20, (0.0, 0.0)), (10, (1.0, 9.0))] {
            let mut bench = Bench::new();
            bench.gave_up = GaveUp::new(SLOT, FIRST + began_s * S);
            let waits = [attempt(1, 7.13, 6)];
            assert_eq!(bench.look(21.0, &waits, Some(90)), 0);
            assert_eq!(
                bench.look(24.0, &waits, Some(109)),
                1,
                "it is in the history"
            );
            assert_eq!(bench.counts(), [(1.0, 9.0), total], "{began_s}");
        }
    }

    #[test]
    fn without_a_history_nobody_is_kept() {
        let mut bench = Bench::new();
        let waits = [attempt(1, 7.13, 6)];
        assert_eq!(bench.look(9.7, &waits, None), 0);
        assert_eq!(bench.look(18.2, &waits, None), 1);
        assert_eq!(bench.counts(), [(1.0, 9.0); 2]);
    }

    /// SYNs of one client that gets no answer, as stacks send them: patient Linux old and new,
    /// Windows as it comes and with more patience, BSD, clients of RFC 1122, and one of no
    /// known schedule. Each second the agent looks, with a history and without.
    #[test]
    fn a_client_gives_up_once_whatever_its_schedule() {
        let stacks: [(&str, &[f64], usize); 8] = [
            ("Linux 6.5", LINUX_6_5_S, 10),
            ("Linux 6.5, impatient", LINUX_6_5_S, 3),
            ("Linux before", RFC_6298_S, 6),
            ("Windows", RFC_6298_S, 4),
            ("BSD", BSD_S, 8),
            ("BSD, impatient", BSD_S, 5),
            ("RFC 1122", RFC_1122_S, 5),
            ("unknown", &[1.5, 4.5, 10.5, 22.5], 4),
        ];
        let classes = [
            ("linux", LINUX_6_5_S),
            ("rfc6298", RFC_6298_S),
            ("bsd", BSD_S),
        ];
        let mix = Mix::new(classes.map(|(name, retries_s)| RetryClass::new(name, retries_s, 21.0)));
        let all = [LINUX_6_5_S, RFC_6298_S, BSD_S, RFC_1122_S].map(<[f64]>::to_vec);
        for (name, retries_s, made) in stacks {
            for history in [false, true] {
                let mut bench = Bench::new();
                bench.judge = Judge::new(mix.as_ref().unwrap(), all.to_vec());
                // A forgotten attempt counts as new at its next SYN.
                let mut first_s = 0.0;
                let mut known = true;
                let mut sent = 0;
                for second in 0..300_u32 {
                    let at_s = f64::from(second) + 0.3;
                    let sent_by_now = retries_s[..made].iter().filter(|&&of| of < at_s).count();
                    if !known && sent_by_now > sent {
                        (first_s, known) = (retries_s[sent_by_now - 1], true);
                    }
                    sent = sent_by_now;
                    let last_s = sent.checked_sub(1).map_or(0.0, |last| retries_s[last]);
                    let attempt = Waiting {
                        first_syn_ns: FIRST + (first_s * 1e9) as u64,
                        last_syn_ns: FIRST + (last_s * 1e9) as u64,
                        ..attempt(1, 0.0, sent as u8)
                    };
                    let waits = known.then_some(attempt);
                    let keep_after = history.then_some(75 + second);
                    known &= bench.look(at_s, waits.as_slice(), keep_after.map(u64::from)) == 0;
                }
                let [_, (gave_up, lost_s)] = bench.counts();
                assert_eq!(gave_up, 1.0, "{name}, history {history}: {lost_s} s");
                let last_s = retries_s[made - 1];
                assert!(lost_s >= last_s, "{name}: {lost_s} s");
                assert_eq!(bench.gave_up.take_retries(), [(made as u8, last_s)]);
                assert!(!known, "{name}: the kernel can forget it");
            }
        }
    }

    /// The first retry is half a second late.
    #[test]
    fn who_comes_late_did_not_give_up() {
        let mut bench = Bench::new();
        bench.look(1.3, &[attempt(1, 0.0, 0)], Some(90));
        assert_eq!(bench.counts()[0], (1.0, 0.51), "midway to 1.02 s");
        bench.look(2.0, &[attempt(1, 1.5, 1)], Some(90));
        assert_eq!(bench.counts(), NOBODY, "it came again");
        bench.look(3.0, &[attempt(1, 1.5, 1)], Some(90));
        assert_eq!(bench.counts()[0].0, 1.0, "and now stays away");
        bench.look(4.0, &[], Some(90));
        assert_eq!(bench.counts(), NOBODY, "but was answered in the end");
    }

    #[test]
    fn of_a_flood_nobody_gives_up_also_before_it_is_known_for_one() {
        let mut bench = Bench::new();
        bench.look(1.3, &[attempt(1, 0.0, 0), attempt(2, 1.02, 1)], Some(90));
        assert_eq!(bench.counts()[0].0, 1.0);
        let silent = Slot {
            offered: 1000,
            first_offered: 1000,
            ..Slot::default()
        };
        let observer = &mut bench.categories[0].observer;
        observer.feed(&[(480, silent)], &[]).unwrap();
        let waits = [attempt(1, 0.0, 0), attempt(3, 0.0, 0), attempt(2, 1.02, 1)];
        assert_eq!(bench.look(2.3, &waits, Some(90)), 2, "forgotten");
        let [(estimated, _), (total, _)] = bench.counts();
        assert_eq!((estimated, total), (1.0, 0.0), "who had come again");
    }

    /// The kernel forgets a connection when it is over, which a short one is before the next look.
    #[test]
    fn who_was_served_between_two_looks_did_not_give_up() {
        // Which retry was answered, when, and whether the attempt's can be it.
        let cases = [
            (7, 9.7, true),
            (8, 10.7, true),
            (6, 10.0, false),
            (7, 9.69, false),
            (7, 10.9, false),
        ];
        for (retry, at_s, is_it) in cases {
            for read_early in [false, true] {
                let mut bench = Bench::new();
                bench.answered = false;
                let until = |s: f64| FIRST + (s * 1e9) as u64;
                let answered = |retries: &[(u32, f64)], until_s| AnsweredRetries {
                    retries: retries.to_vec(),
                    until_ns: until(until_s),
                };
                // At the first look it may be read behind the attempts already.
                let [early, late]: [&[_]; 2] = match read_early {
                    true => [&[(retry, at_s)], &[]],
                    false => [&[], &[(retry, at_s)]],
                };
                bench.gave_up.take_up(answered(early, 9.8));
                bench.look(9.705, &[attempt(1, 7.13, 6)], Some(90));
                assert_eq!(bench.counts(), [(1.0, 9.0), (0.0, 0.0)]);
                bench.gave_up.take_up(answered(late, 10.8));
                bench.look(10.7, &[], Some(90));
                let wanted = match is_it {
                    true => NOBODY,
                    false => [(1.0, 9.0); 2],
                };
                assert_eq!(bench.counts(), wanted, "retry {retry} at {at_s} s");
                let learnt = bench.gave_up.take_retries();
                assert_eq!(learnt.is_empty(), is_it, "patience");
            }
        }
    }

    /// Its last SYN was answered, and the network lost the answer.
    #[test]
    fn whose_answer_came_too_late_had_given_up() {
        let mut bench = Bench::new();
        let answered = Waiting {
            stage: Stage::Answered,
            ..attempt(1, 7.13, 6)
        };
        bench.look(8.0, &[answered], Some(90));
        assert_eq!(bench.counts(), NOBODY, "it may still connect");
        let left_at = |s: f64| Waiting {
            stage: Stage::Left(FIRST + (s * 1e9) as u64),
            ..answered
        };
        assert_eq!(bench.look(10.2, &[left_at(10.13)], Some(90)), 0);
        assert_eq!(bench.counts()[0], (1.0, 9.0));
        assert_eq!(bench.look(24.0, &[left_at(10.13)], Some(109)), 1);
        assert_eq!(bench.counts(), [(1.0, 9.0); 2]);
        // A port scanner answers with a RST at once, and with nothing else.
        let scan = Waiting {
            stage: Stage::Left(FIRST + S / 100),
            ..attempt(2, 0.0, 0)
        };
        assert_eq!(bench.look(25.0, &[scan], Some(110)), 1, "forgotten");
        assert_eq!(bench.counts(), [(1.0, 9.0); 2]);
    }

    /// Clients' ports come again before their former attempts are overdue.
    #[test]
    fn whose_tuple_came_again_early_had_given_up_once() {
        let mut bench = Bench::new();
        bench.answered = false;
        let waits = attempt(1, 7.13, 6);
        bench.look(9.1, &[waits], Some(90));
        assert_eq!(bench.counts(), NOBODY);
        let left = |s: f64| Waiting {
            stage: Stage::Left(FIRST + (s * 1e9) as u64),
            ..waits
        };
        // Read twice, as what moves from one table to the other may be.
        bench.look(9.6, &[left(9.3), left(9.3)], Some(90));
        assert_eq!(bench.counts()[0], (1.0, 9.0));
        bench.look(24.0, &[left(9.3)], Some(109));
        assert_eq!(bench.counts(), [(1.0, 9.0); 2]);
        // Less patient than any class: it had not come again when it should have.
        let early = Waiting {
            stage: Stage::Left(FIRST + 4 * S),
            ..attempt(3, 2.05, 2)
        };
        bench.look(24.0, &[early], Some(90));
        let (gave_up, lost_s) = bench.counts()[0];
        assert_eq!(gave_up, 2.0);
        assert!((lost_s - 9.0 - 2.56).abs() < 0.01, "{lost_s}");
    }

    /// Clients' ports come again before the history has their former attempts.
    #[test]
    fn whose_tuple_came_again_had_given_up() {
        let mut bench = Bench::new();
        bench.answered = false;
        bench.look(9.7, &[attempt(1, 7.13, 6)], Some(90));
        let another = Waiting {
            first_syn_ns: FIRST + 10 * S,
            last_syn_ns: FIRST + 10 * S,
            ..attempt(1, 0.0, 0)
        };
        for at_s in [10.7, 11.0] {
            bench.look(at_s, &[another], Some(90));
            assert_eq!(bench.counts(), [(1.0, 9.0); 2]);
        }
    }
}
