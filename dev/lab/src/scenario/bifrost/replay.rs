// SPDX-License-Identifier: Apache-2.0
//! Rounds in which the machine's host took CPU time are played again.
//!
//! What decides is the share of stolen CPU time (`steal` of /proc/stat) and nothing that was
//! measured; the limit is the same for every carrier. Of a round of several runs that
//! are compared with one another the run counts from which most was stolen: a ratio is no better
//! than the worse of its two sides.
//!
//! Hosts take CPU time for minutes on end, so what is played again waits until all rounds of
//! its part have been played: at once it would meet the same neighbours. Rounds over the limit
//! are then played once more each, the worst first, and again, until each has a try below it,
//! has been played again as often as it may, or the time for this is used up. The try with
//! the least stolen time counts; all others are reported as discarded, with their figures.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::cpu::Steal;

/// When a round is played again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    /// More of all CPU time than this may not be stolen, in percent.
    pub limit_pct: f64,
    /// How often a round may be played again.
    pub replays: usize,
    /// What all that may take in a whole run.
    pub budget: Duration,
}

/// The try of a round that counts.
#[derive(Debug)]
pub(super) struct Counted<T> {
    pub figures: T,
    /// Whether more was stolen than the limit, in this try as in all others.
    pub over: bool,
}

/// What is played again in a run, and the outcome.
pub(super) struct Replays<'a> {
    rule: Rule,
    say: &'a dyn Fn(&str),
    /// Time since some moment.
    now: &'a dyn Fn() -> Duration,
    /// Parts to come with the length that is planned for them.
    to_come: Vec<(String, Duration)>,
    left: Duration,
    /// Of what is left, the part's that is being played.
    allotted: Duration,
    parts: Vec<Part>,
    discarded: Vec<Value>,
    over: Vec<Value>,
}

/// What is reported of a part.
#[derive(Debug, Clone, Default)]
struct Part {
    name: String,
    rounds: usize,
    /// Rounds that were played again, and how often.
    again: usize,
    tries_again: usize,
    over: usize,
    counted: Steal,
    played: Steal,
}

struct Try<T> {
    figures: T,
    steal: Steal,
    took: Duration,
}

impl<'a> Replays<'a> {
    /// `parts`: what will be played, in that order, with its planned length. Each has that share of
    /// the budget, and what those before it have left, so that the last ones do not go
    /// without.
    pub(super) fn new(
        rule: Rule,
        parts: Vec<(String, Duration)>,
        say: &'a dyn Fn(&str),
        now: &'a dyn Fn() -> Duration,
    ) -> Self {
        Self {
            rule,
            say,
            now,
            to_come: parts,
            left: rule.budget,
            allotted: rule.budget,
            parts: Vec::new(),
            discarded: Vec::new(),
            over: Vec::new(),
        }
    }

    /// From here on rounds are this part's.
    pub(super) fn begin(&mut self, name: &str) {
        self.parts.push(Part {
            name: name.to_owned(),
            ..Part::default()
        });
        let sum: Duration = self.to_come.iter().map(|(_, planned)| planned).sum();
        let found = self.to_come.iter().position(|(part, _)| part == name);
        let planned = found.map(|at| self.to_come.remove(at).1);
        self.allotted = match planned {
            Some(planned) if sum > Duration::ZERO => {
                self.left.mul_f64(planned.as_secs_f64() / sum.as_secs_f64())
            }
            _ => self.left,
        };
    }

    /// Plays rounds, and some of them again; in the end one try of each, in order. `play` is
    /// given a round's number and returns its figures with what was stolen meanwhile.
    pub(super) fn rounds<T: Serialize>(
        &mut self,
        names: &[String],
        mut play: impl FnMut(usize) -> Result<(T, Steal)>,
    ) -> Result<Vec<Counted<T>>> {
        let now = self.now;
        let mut once = |round| -> Result<Try<T>> {
            let begin = now();
            let (figures, steal) = play(round)?;
            let took = now().saturating_sub(begin);
            Ok(Try {
                figures,
                steal,
                took,
            })
        };
        let mut rounds = Vec::new();
        for round in 0..names.len() {
            rounds.push(vec![once(round)?]);
        }
        for _ in 0..self.rule.replays {
            for round in self.over_limit(&rounds) {
                let expected = rounds[round][0].took;
                if expected > self.allotted {
                    continue;
                }
                (self.say)(&format!(
                    "{}: {:.1} % of the CPUs stolen, played again",
                    self.title(&names[round]),
                    least(&rounds[round]).1
                ));
                let again = once(round)?;
                self.allotted = self.allotted.saturating_sub(again.took);
                self.left = self.left.saturating_sub(again.took);
                rounds[round].push(again);
            }
        }
        let all = names.iter().zip(rounds);
        Ok(all.map(|(name, tries)| self.count(name, tries)).collect())
    }

    /// Rounds without a try below the limit, the worst first.
    fn over_limit<T>(&self, rounds: &[Vec<Try<T>>]) -> Vec<usize> {
        let stolen = |round: &usize| least(&rounds[*round]).1;
        let all = 0..rounds.len();
        let mut over: Vec<usize> = all
            .filter(|round| stolen(round) > self.rule.limit_pct)
            .collect();
        over.sort_by(|a, b| stolen(b).total_cmp(&stolen(a)));
        over
    }

    /// Writes down what became of a round.
    fn count<T: Serialize>(&mut self, name: &str, tries: Vec<Try<T>>) -> Counted<T> {
        let (best, stolen_pct) = least(&tries);
        let over = stolen_pct > self.rule.limit_pct;
        let title = self.title(name);
        if self.parts.is_empty() {
            self.begin("");
        }
        let part = self.parts.last().map(|part| part.name.clone());
        if over {
            (self.say)(&format!(
                "{title}: {stolen_pct:.1} % of the CPUs stolen at least, over the limit"
            ));
            self.over.push(json!({
                "part": part, "round": name, "stolen_pct": stolen_pct, "tries": tries.len(),
            }));
        }
        for (number, one) in tries.iter().enumerate().filter(|(at, _)| *at != best) {
            self.discarded.push(json!({
                "part": part, "round": name, "try": number + 1,
                "stolen_pct": one.steal.worst_pct(), "figures": one.figures,
            }));
        }
        if let Some(part) = self.parts.last_mut() {
            part.rounds += 1;
            part.again += usize::from(tries.len() > 1);
            part.tries_again += tries.len() - 1;
            part.over += usize::from(over);
            part.counted = part.counted.and(tries[best].steal);
            let all = tries.iter().map(|one| one.steal);
            part.played = all.fold(part.played, Steal::and);
        }
        let mut tries = tries;
        Counted {
            figures: tries.swap_remove(best).figures,
            over,
        }
    }

    fn title(&self, round: &str) -> String {
        let part = self.parts.last().map_or("", |part| part.name.as_str());
        format!("{part}, {round}")
    }

    /// For the top of the report.
    pub(super) fn told(&self) -> Value {
        let sum = |of: fn(&Part) -> usize| self.parts.iter().map(of).sum::<usize>();
        let parts = self.parts.iter().map(|part| {
            let told = json!({
                "rounds": part.rounds, "played_again": part.again, "over_limit": part.over,
                "stolen_pct": part.counted.pct(), "stolen_pct_with_discarded": part.played.pct(),
            });
            (part.name.clone(), told)
        });
        json!({
            "limit_pct": self.rule.limit_pct,
            "rounds": sum(|part| part.rounds),
            "played_again": sum(|part| part.again),
            "tries_again": sum(|part| part.tries_again),
            "over_limit": sum(|part| part.over),
            "replayed_s": (self.rule.budget - self.left).as_secs_f64(),
            "parts": parts.collect::<Map<String, Value>>(),
        })
    }

    /// Tries that do not count, with their figures, and rounds over the limit.
    pub(super) fn details(&self) -> Value {
        json!({ "discarded": self.discarded, "over_limit": self.over })
    }
}

/// The try with the least stolen time, the first of equals, and its share in percent.
fn least<T>(tries: &[Try<T>]) -> (usize, f64) {
    let shares = tries.iter().map(|one| one.steal.worst_pct());
    let least = shares.enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
    least.unwrap_or((0, 0.0))
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rule(replays: usize, budget_s: u32) -> Rule {
        Rule {
            limit_pct: 1.0,
            replays,
            budget: budget_s * SECOND,
        }
    }

    /// Plays rounds of a second each, with these shares of stolen time, try after try.
    /// Returns the tries that count, those over the limit, the order of play, and the report.
    fn play(rule: Rule, stolen_pct: &[&[u64]]) -> (Vec<usize>, Vec<bool>, Vec<usize>, Value) {
        let clock = Cell::new(Duration::ZERO);
        let order = RefCell::new(Vec::new());
        let now = || clock.get();
        let said = RefCell::new(Vec::new());
        let say = |line: &str| said.borrow_mut().push(line.to_owned());
        let mut replays = Replays::new(rule, vec![("kept".to_owned(), SECOND)], &say, &now);
        replays.begin("kept");
        let names: Vec<String> = (0..stolen_pct.len())
            .map(|i| format!("round {i}"))
            .collect();
        let counted = replays.rounds(&names, |round| {
            let number = order.borrow().iter().filter(|one| **one == round).count();
            order.borrow_mut().push(round);
            clock.set(clock.get() + SECOND);
            Ok((number, Steal::of(stolen_pct[round][number], 100)))
        });
        let counted = counted.unwrap();
        let mut report = replays.told();
        report["details"] = replays.details();
        report["said"] = json!(*said.borrow());
        let tries = counted.iter().map(|one| one.figures).collect();
        let over = counted.iter().map(|one| one.over).collect();
        (tries, over, order.into_inner(), report)
    }

    #[test]
    fn rounds_below_the_limit_are_played_once() {
        let (tries, over, order, report) = play(rule(3, 100), &[&[0], &[1]]);
        assert_eq!((tries, over), (vec![0, 0], vec![false, false]));
        assert_eq!(order, [0, 1]);
        assert_eq!(report["played_again"], 0);
        assert_eq!(report["parts"]["kept"]["stolen_pct"], 0.5);
        assert_eq!(report["details"]["discarded"], json!([]));
    }

    #[test]
    fn rounds_over_the_limit_are_played_again_when_all_have_been() {
        let (tries, over, order, report) = play(rule(3, 100), &[&[5, 0], &[0], &[7, 2, 1]]);
        assert_eq!(tries, [1, 0, 2]);
        assert_eq!(over, [false; 3]);
        // The worst first.
        assert_eq!(order, [0, 1, 2, 2, 0, 2]);
        assert_eq!(report["played_again"], 2);
        assert_eq!(report["tries_again"], 3);
        assert_eq!(report["over_limit"], 0);
        assert_eq!(report["replayed_s"], 3.0);
        assert_eq!(report["parts"]["kept"]["stolen_pct_with_discarded"], 2.5);
        assert_eq!(
            report["details"]["discarded"],
            json!([
                { "part": "kept", "round": "round 0", "try": 1, "stolen_pct": 5.0, "figures": 0 },
                { "part": "kept", "round": "round 2", "try": 1, "stolen_pct": 7.0, "figures": 0 },
                { "part": "kept", "round": "round 2", "try": 2, "stolen_pct": 2.0, "figures": 1 },
            ])
        );
        assert_eq!(
            report["said"][0],
            "kept, round 2: 7.0 % of the CPUs stolen, played again"
        );
    }

    #[test]
    fn the_least_stolen_counts_where_all_are_over_the_limit() {
        let (tries, over, _, report) = play(rule(3, 100), &[&[9, 4, 3, 6]]);
        assert_eq!((tries, over), (vec![2], vec![true]));
        assert_eq!(report["over_limit"], 1);
        assert_eq!(report["details"]["over_limit"][0]["tries"], 4);
        assert_eq!(report["details"]["over_limit"][0]["stolen_pct"], 3.0);
        assert_eq!(report["details"]["discarded"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn nothing_is_played_again_without_time_or_leave() {
        let (tries, over, order, _) = play(rule(3, 2), &[&[9, 9], &[8, 8]]);
        assert_eq!((tries, over), (vec![0, 0], vec![true, true]));
        assert_eq!(
            order,
            [0, 1, 0, 1],
            "one each, of the two that there is time for"
        );
        let (_, over, order, report) = play(rule(0, 100), &[&[9]]);
        assert_eq!((over, order), (vec![true], vec![0]));
        assert_eq!(report["played_again"], 0);
    }

    #[test]
    fn each_part_has_its_share_of_the_time_and_what_is_left() {
        let clock = Cell::new(Duration::ZERO);
        let now = || clock.get();
        let parts = [("tails", 1), ("kept", 2), ("flap", 1)];
        let parts = parts.map(|(name, length)| (name.to_owned(), length * SECOND));
        let mut replays = Replays::new(rule(100, 8), parts.to_vec(), &|_| {}, &now);
        let mut play = |part: &str, stolen| {
            replays.begin(part);
            let names = ["round 0".to_owned()];
            let played = replays.rounds(&names, |_| {
                clock.set(clock.get() + SECOND);
                Ok(((), Steal::of(stolen, 100)))
            });
            assert_eq!(played.unwrap()[0].over, stolen > 1);
            replays.parts.last().unwrap().tries_again
        };
        assert_eq!(play("tails", 5), 2);
        assert_eq!(play("kept", 0), 0);
        assert_eq!(play("flap", 5), 6);
    }

    #[test]
    fn the_worst_run_of_a_round_decides() {
        let mut replays = Replays::new(rule(0, 0), Vec::new(), &|_| {}, &|| Duration::ZERO);
        let both = Steal::of(3, 100).and(Steal::of(0, 300));
        let counted = replays.rounds(&["round 0".to_owned()], |_| Ok(((), both)));
        assert!(counted.unwrap()[0].over, "0.75 % of both, 3 % of one");
    }
}
