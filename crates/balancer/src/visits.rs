// SPDX-License-Identifier: Apache-2.0
//! Which VIPs an interval looks at: a million reals are too many for each, and most of them have
//! no traffic (docs/decisions/170-visits.md).

use std::time::Duration;

use super::timeline::STEP_NS;

/// As many reals are looked at in each interval, whether they have traffic or not.
const FEW: usize = 4096;
/// A VIP is looked at for so long after its last packet, and for as many intervals: then all that
/// is remembered of its packets is as if none had come. The longest memory is that of which
/// connections are measured, a minute.
const QUIET_NS: u64 = 70_000_000_000;
const QUIET_INTERVALS: u64 = 40;
/// Reals of a turn, until it is known how many half an interval is enough for.
const TURN: usize = 65_536;

/// How often histograms are read, and how long a window of percentiles is.
const HISTOGRAM_NS: u64 = 1_000_000_000;
const WINDOW_NS: u64 = 10_000_000_000;

/// When a VIP was looked at, and how long that goes on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Visits {
    /// Packets to it, by the last interval; `None` before the first.
    packets: Option<u64>,
    /// It is looked at until then.
    until_ns: u64,
    looked_ns: Option<u64>,
    /// When the interval began that its next look ends; `None`: none is to come.
    begun_ns: Option<u64>,
    is_due: bool,
    /// Of the look that is made now.
    interval_ns: u64,
}

/// What an interval looks at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Looks {
    /// How many reals all VIPs have that are looked at in turn.
    pub(super) reals: usize,
    /// Whether the first of them are.
    pub(super) begins: bool,
}

/// VIPs are looked at in turns where an interval is too short for all.
#[derive(Debug)]
pub(super) struct Turns {
    /// Up to how many reals all are looked at in each interval.
    few: usize,
    /// How many reals a turn looks at.
    reals_max: usize,
    /// The place of the VIP that the next turn begins with.
    next: usize,
    /// Turns that have been made of this round, and that the round before it took.
    made: usize,
    of_round: usize,
    /// Reals that the last one looked at.
    looked_at: usize,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            few: FEW,
            reals_max: TURN,
            next: 0,
            made: 0,
            of_round: 1,
            looked_at: 0,
        }
    }
}

impl Visits {
    /// Takes in how many packets have come to the VIP by the end of an interval.
    pub(crate) fn handle_packets(&mut self, now_ns: u64, interval_ns: u64, packets: u64) {
        let before = self.packets.replace(packets);
        if before.is_some_and(|before| before != packets) {
            self.look_on(now_ns, interval_ns);
        }
    }

    /// Has the interval that ends look at the VIP if packets have come lately, or it is `wanted` all
    /// the same; whether it does.
    pub(crate) fn choose(&mut self, now_ns: u64, interval_ns: u64, wanted: bool) -> bool {
        let is_due = wanted || now_ns < self.until_ns;
        let begun_ns = self.begun_ns;
        let begun_ns = begun_ns.unwrap_or(now_ns.saturating_sub(interval_ns));
        self.begun_ns = is_due.then_some(begun_ns);
        self.interval_ns = now_ns.saturating_sub(begun_ns);
        self.is_due = is_due;
        is_due
    }

    /// Has the VIP looked at for as long as if a packet had come now.
    pub(crate) fn look_on(&mut self, now_ns: u64, interval_ns: u64) {
        self.until_ns = now_ns + QUIET_NS + QUIET_INTERVALS * interval_ns;
    }

    /// Whether the interval that ends looks at it.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Whether it is looked at, now or in another turn.
    pub(crate) fn is_wanted(&self) -> bool {
        self.begun_ns.is_some()
    }

    /// Since the last look, or the interval's: what is seen now has come in that time.
    pub(crate) fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    /// The look is made.
    pub(crate) fn end(&mut self, now_ns: u64) {
        self.begun_ns = Some(now_ns);
    }

    /// Time since the look before the one that is made now; an interval if there was none.
    pub(crate) fn look(&mut self, now_ns: u64, interval_ns: u64) -> u64 {
        let before = self.looked_ns.replace(now_ns);
        before.map_or(interval_ns, |before| now_ns.saturating_sub(before))
    }
}

impl Turns {
    /// Whether so many reals are looked at in each interval, whether they have traffic or not.
    pub(super) fn are_few(&self, reals: usize) -> bool {
        reals <= self.few
    }

    /// Has so many reals be few.
    #[cfg(test)]
    pub(super) fn set_few(&mut self, few: usize) {
        self.few = few;
    }

    /// Chooses among all VIPs, each with the number of its reals, of which `reals` are due: where
    /// those are more than a turn is for, and may be looked at one after the other, only the VIPs
    /// whose turn it is stay due.
    pub(super) fn choose<'v>(
        &mut self,
        reals: usize,
        at_once: bool,
        vips: impl Iterator<Item = (&'v mut Visits, usize)>,
    ) -> Looks {
        let fits = reals <= self.reals_max || at_once;
        let begins = fits || self.next == 0;
        match fits {
            true => {
                *self = Self {
                    looked_at: reals,
                    reals_max: self.reals_max,
                    few: self.few,
                    ..Self::default()
                }
            }
            false => self.take(vips),
        }
        Looks { reals, begins }
    }

    fn take<'v>(&mut self, vips: impl Iterator<Item = (&'v mut Visits, usize)>) {
        self.looked_at = 0;
        let from = std::mem::take(&mut self.next);
        for (at, (visits, reals)) in vips.enumerate() {
            let is_over = at < from || self.next > 0;
            if !visits.is_due || is_over {
                visits.is_due = false;
            } else if self.looked_at > 0 && self.looked_at + reals > self.reals_max {
                visits.is_due = false;
                self.next = at;
            } else {
                self.looked_at += reals;
            }
        }
        self.made += 1;
        if self.next == 0 {
            self.of_round = std::mem::take(&mut self.made);
        }
    }

    /// Has a turn look at as many reals as half an interval is enough for, after one that `took` so
    /// long: the other half is for all else that wants the engine.
    pub(super) fn bound(&mut self, interval_ns: u64, took: Duration) {
        let half_ns = interval_ns / 2;
        let took_ns = took.as_nanos() as u64;
        if took_ns > half_ns {
            let fit = self.looked_at as f64 * half_ns as f64 / took_ns as f64;
            self.reals_max = (fit as usize).max(self.few);
        } else if took_ns < half_ns / 2 && self.looked_at > self.reals_max / 2 {
            // It may have been slow because others were busy.
            self.reals_max = self.reals_max.saturating_add(self.reals_max / 8);
        }
    }

    /// In how many intervals all VIPs that are looked at are, each once.
    pub(super) fn of_round(&self) -> usize {
        self.of_round
    }
}

/// What each turn of a round does beside its looks, and when it was done last.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Round {
    histograms: bool,
    window: bool,
    step: bool,
    last_histograms_ns: u64,
    last_window_ns: u64,
    /// When a step of the timelines ended; `None` before the first began.
    last_step_ns: Option<u64>,
}

impl Round {
    /// Settles that for a round which begins now.
    pub(super) fn begin(&mut self, now_ns: u64) {
        let is_time = |last_ns: u64, after_ns| now_ns.saturating_sub(last_ns) >= after_ns;
        self.histograms = is_time(self.last_histograms_ns, HISTOGRAM_NS);
        self.window = self.histograms && is_time(self.last_window_ns, WINDOW_NS);
        let is_step = self.last_step_ns.is_none_or(|ns| is_time(ns, STEP_NS));
        // Its histograms are of now.
        self.step = self.histograms && is_step;
        if self.histograms {
            self.last_histograms_ns = now_ns;
        }
        if self.window {
            self.last_window_ns = now_ns;
        }
    }

    /// Whether histograms are read.
    pub(super) fn reads_histograms(&self) -> bool {
        self.histograms
    }

    /// Whether a window of them begins.
    pub(super) fn begins_window(&self) -> bool {
        self.window
    }

    /// Whether a step of the timelines ends.
    pub(super) fn ends_step(&self) -> bool {
        self.step
    }

    /// A step begins now: before the first one, none has ended.
    pub(super) fn begin_step(&mut self, now_ns: u64) {
        self.step = self.last_step_ns.replace(now_ns).is_some();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use causeway_api::Moment;
    use causeway_dataplane::Pick;

    use super::{Turns, Visits};
    use crate::fake::FakePlane;
    use crate::real_counters::CountersOfReals;
    use crate::tests::{Bench, MS};

    /// 40 VIPs with ten reals each.
    pub(crate) fn many() -> String {
        let vip = |n: u32| {
            let reals: Vec<String> = (0..10)
                .map(|real| format!("{{ address = \"10.0.{n}.{}\" }}", real + 1))
                .collect();
            let reals = reals.join(", ");
            format!(
                "[[vip]]\nname = \"v{n}\"\naddress = \"192.0.2.{n}\"\nport = 80\nreal = [{reals}]\n"
            )
        };
        (1..=40).map(vip).collect()
    }

    /// Those, of an engine to which 100 reals are few.
    fn bench() -> Bench {
        let plane = FakePlane::default();
        plane.state().vip_packets = None;
        let mut bench = Bench::on(plane, &many());
        bench.engine.turns.set_few(100);
        bench.engine.counters = CountersOfReals::default();
        bench
    }

    impl Bench {
        /// Lets intervals pass; how many reals the last one has read.
        fn pass(&mut self, intervals: u64) -> usize {
            let mut read = 0;
            for _ in 0..intervals {
                let before = self.plane.state().reals_read;
                self.now = Moment {
                    monotonic_ns: self.now.monotonic_ns + 100 * MS,
                    realtime_ns: self.now.realtime_ns + 100 * MS,
                };
                self.engine.tick(self.now).unwrap();
                read = self.plane.state().reals_read - before;
            }
            read
        }
    }

    #[test]
    fn a_turn_ends_before_the_vip_that_is_too_much_for_it() {
        let mut turns = Turns {
            reals_max: 5,
            ..Turns::default()
        };
        let mut chosen = |at_once: bool| {
            let mut visits = [Visits::default(); 4];
            let wanted = [true, true, false, true];
            for (visits, wanted) in visits.iter_mut().zip(wanted) {
                visits.choose(0, 1, wanted);
            }
            let reals = [2, 2, 9, 7];
            let looks = turns.choose(11, at_once, visits.iter_mut().zip(reals));
            (looks.begins, visits.map(|of| of.is_due()))
        };
        assert_eq!(chosen(false), (true, [true, true, false, false]));
        // One that is more than a turn is for has one of its own.
        assert_eq!(chosen(false), (false, [false, false, false, true]));
        assert_eq!(chosen(false), (true, [true, true, false, false]));
        assert_eq!(chosen(true), (true, [true, true, false, true]));
        assert_eq!(turns.of_round(), 1, "all at once");
    }

    #[test]
    fn an_interval_reads_the_reals_of_vips_with_packets() {
        let mut bench = bench();
        assert_eq!(bench.pass(3), 0);
        assert_eq!(
            bench.engine.counters.len(),
            0,
            "nothing is kept of quiet reals"
        );
        let real = bench.plane.state().real("10.0.7.3");
        bench.plane.state().respond(real, 5.0, 50);
        assert_eq!(bench.pass(1), 10, "its VIP's");
        assert_eq!(bench.engine.counters.len(), 10);
        let counters = bench.engine.counters(real).unwrap();
        assert_eq!(
            (counters.delta().requests, counters.totals().requests),
            (50, 50)
        );
        // A second VIP joins it; the first is looked at for a while.
        let other = bench.plane.state().real("10.0.9.1");
        bench.plane.state().respond(other, 5.0, 50);
        assert_eq!(bench.pass(1), 20);
        assert_eq!(bench.pass(600), 20);
        assert_eq!(bench.pass(150), 0, "both are quiet again");
        // What came before the quiet is not counted again.
        bench.plane.state().respond(real, 5.0, 8);
        assert_eq!(bench.pass(1), 10);
        let counters = bench.engine.counters(real).unwrap();
        assert_eq!(
            (counters.delta().requests, counters.totals().requests),
            (8, 58)
        );
    }

    #[test]
    fn vips_are_looked_at_in_turns_where_an_interval_is_too_short_for_all() {
        let mut bench = bench();
        let respond = |bench: &Bench, times: u64| {
            for vip in 1..=40 {
                let real = bench.plane.state().real(&format!("10.0.{vip}.3"));
                bench.plane.state().respond(real, 5.0, times);
            }
        };
        bench.pass(1);
        respond(&bench, 50);
        assert_eq!(bench.pass(1), 400);
        // Of 200 ms, 50 are half the interval.
        bench.engine.bound_turns(Duration::from_millis(200));
        assert_eq!(bench.pass(1), 100);
        assert_eq!(bench.pass(3), 100);
        assert_eq!(bench.engine.control_turns(), 4);
        respond(&bench, 8);
        let seen = |bench: &Bench, vip: u32| {
            let real = bench.plane.state().real(&format!("10.0.{vip}.3"));
            let requests = bench.engine.counters(real).unwrap().totals().requests;
            let past = bench.engine.pools[vip as usize - 1]
                .members()
                .nth(2)
                .unwrap()
                .1
                .past();
            (requests, past.history.len())
        };
        bench.pass(2);
        assert_eq!(
            (seen(&bench, 1), seen(&bench, 20), seen(&bench, 21)),
            ((58, 3), (58, 3), (50, 2))
        );
        bench.pass(2);
        assert_eq!(seen(&bench, 40), (58, 3));
        // Each interval of a VIP begins where its last one ended.
        let past = bench.engine.pools[39].members().nth(2).unwrap().1.past();
        let starts: Vec<u64> = past
            .history
            .iter()
            .map(|epoch| epoch.start.monotonic_ns / MS)
            .collect();
        assert_eq!((starts[1] - starts[0], starts[2] - starts[1]), (100, 400));
        for _ in 0..40 {
            bench.pass(1);
            bench.engine.bound_turns(Duration::from_millis(1));
        }
        assert_eq!(bench.pass(1), 400);
        assert_eq!(bench.engine.control_turns(), 1);
    }

    #[test]
    fn connections_of_a_quiet_vip_age() {
        let mut bench = bench();
        bench.pass(1);
        let real = bench.plane.state().real("10.0.7.3");
        bench.plane.state().respond(real, 5.0, 50);
        let totals = |bench: &Bench, opened| {
            let mut state = bench.plane.state();
            state.totals.entry(real).or_default().conns_opened += opened;
        };
        totals(&bench, 1_000);
        bench.pass(1);
        assert_eq!(bench.engine.active(real), 1_000);
        bench.pass(900);
        // A quarter of an hour in which none looked.
        bench.now.monotonic_ns += 900_000 * MS;
        assert_eq!(bench.pass(1), 0);
        let told = bench.engine.active(real);
        assert!(told < 400, "a drain waits for {told}");
        bench.plane.state().respond(real, 5.0, 50);
        assert_eq!(bench.pass(1), 10);
        let left = bench.engine.active(real);
        let expected = 1_000.0 * (-(900.0 + 90.0) / 900.0_f64).exp();
        assert!((left as f64 - expected).abs() < 2.0, "{left} {expected}");
    }

    #[test]
    fn a_change_of_one_vip_leaves_the_others_alone() {
        let mut bench = bench();
        let swaps = bench.plane.state().ring_swaps;
        let set = bench.plane.state().vips_set;
        bench
            .engine
            .change_vip("v7", |vip| {
                vip.reals.remove(9);
                vip.reals[0].weight = 3;
                Ok(())
            })
            .unwrap();
        let state = bench.plane.state();
        assert_eq!((state.vips_set - set, state.ring_swaps - swaps), (1, 1));
        assert_eq!(state.reals.len(), 399);
        assert_eq!(state.picking[&6].pick, Pick::Hash);
        drop(state);
        // A file that is read again is the same but for one VIP, too.
        let mut file = bench.engine.file.clone();
        file.vips[3].reals[2].drain = true;
        let text_again: Vec<_> = file.vips.iter().map(|vip| (**vip).clone().into()).collect();
        file.vips = text_again;
        bench.engine.reload(file).unwrap();
        // The one that the API had changed, too.
        assert_eq!(bench.plane.state().vips_set - set, 3);
        assert_eq!(bench.plane.state().reals.len(), 400);
    }
}
