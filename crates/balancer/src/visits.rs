// SPDX-License-Identifier: Apache-2.0
//! Which VIPs an interval looks at: a million reals are too many for each, and most of them have
//! no traffic (docs/decisions/170-visits.md).

use super::engine::Engine;

/// As many reals are looked at in each interval, whether they have traffic or not.
pub(super) const FEW: usize = 4096;
/// A VIP is looked at for so long after its last packet, and for as many intervals: then all that
/// is remembered of its packets is as if none had come. The longest memory is that of which
/// connections are measured, a minute.
const QUIET_NS: u64 = 70_000_000_000;
const QUIET_INTERVALS: u64 = 40;

/// When a VIP was looked at, and how long that goes on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Visits {
    /// Packets to it, by the last interval; `None` before the first.
    packets: Option<u64>,
    /// It is looked at until then.
    until_ns: u64,
    looked_ns: Option<u64>,
    is_due: bool,
}

impl Visits {
    /// Takes in how many packets have come to the VIP by the end of an interval.
    fn handle_packets(&mut self, now_ns: u64, interval_ns: u64, packets: u64) {
        let before = self.packets.replace(packets);
        if before.is_some_and(|before| before != packets) {
            self.look_on(now_ns, interval_ns);
        }
    }

    /// Has the VIP looked at for as long as if a packet had come now.
    pub(crate) fn look_on(&mut self, now_ns: u64, interval_ns: u64) {
        self.until_ns = now_ns + QUIET_NS + QUIET_INTERVALS * interval_ns;
    }

    /// Whether the interval that ends looks at it.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Time since the look before the one that is made now; an interval if there was none.
    pub(crate) fn look(&mut self, now_ns: u64, interval_ns: u64) -> u64 {
        let before = self.looked_ns.replace(now_ns);
        before.map_or(interval_ns, |before| now_ns.saturating_sub(before))
    }
}

impl Engine {
    /// Whether all reals are looked at: they are few, or other balancers are told of each.
    pub(super) fn looks_at_all(&self) -> bool {
        self.reals <= self.few || self.peers.link().is_some()
    }

    /// Chooses the VIPs that an interval looks at: those with packets lately, and those whose
    /// weights move without any. Gives the number of their reals.
    pub(super) fn choose(&mut self, now_ns: u64, interval_ns: u64) -> anyhow::Result<usize> {
        let all = self.looks_at_all();
        let totals = match all {
            true => Vec::new(),
            false => self.plane.vip_totals()?,
        };
        let mut reals = 0;
        for pool in &mut self.pools {
            if let Ok(at) = totals.binary_search_by_key(&pool.id(), |(id, _)| *id) {
                let packets = totals[at].1.packets;
                pool.visits.handle_packets(now_ns, interval_ns, packets);
            }
            pool.visits.is_due =
                all || now_ns < pool.visits.until_ns || pool.moves_without_packets();
            if pool.visits.is_due {
                reals += pool.vip().reals.len();
            }
        }
        Ok(reals)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use causeway_api::Moment;
    use causeway_dataplane::Pick;

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
        bench.engine.few = 100;
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
        assert_eq!(bench.engine.counters(real).unwrap().active(), 1_000);
        bench.pass(900);
        // A quarter of an hour in which none looked.
        bench.now.monotonic_ns += 900_000 * MS;
        bench.plane.state().respond(real, 5.0, 50);
        assert_eq!(bench.pass(1), 10);
        let left = bench.engine.counters(real).unwrap().active();
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
