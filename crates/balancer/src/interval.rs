// SPDX-License-Identifier: Apache-2.0
//! The control interval: what the engine does ten times a second, for the VIPs that are due.

use std::time::Duration;

use causeway_api::Moment;
use causeway_api::balancer::Move;
use causeway_core::control::{MeasuredInterval, Sampling};
use causeway_core::hist::Histogram;
use causeway_core::peer::{DRAW, RealOfAll};
use causeway_dataplane::{RealId, RealStats};
use tracing::{debug, info};

use super::engine::Engine;
use super::plane::Draining;
use super::pool::{self, Pool};
use super::pool_member::Epoch;
use super::real_counters::RealCounters;
use super::timeline::Standing;
use super::visits::Looks;
use super::{health, latency_source, loads, samples, timeline};
use crate::config::Control;

/// How long a UDP flow stays on a real that is down while others are not, at most.
pub(super) const UDP_DOWN: Duration = Duration::from_secs(10);

/// Changes of weight that are remembered.
const MOVES_MAX: usize = 1000;
/// Epochs that are remembered over all reals: about 300 MB.
const EPOCHS_MAX: usize = 4 << 20;
/// Changes of weight below this part of the configured weight are not recorded.
const MOVE_MIN: f64 = 0.001;

impl Engine {
    /// Ends an interval at `now`: reads counters, lets the controllers decide,
    /// sets rings, records history.
    pub fn tick(&mut self, now: Moment) -> anyhow::Result<()> {
        self.tick_with(now, |_, _| {})
    }

    /// The same with what `add` adds to the counters that the data plane has.
    pub fn tick_with(
        &mut self,
        now: Moment,
        mut add: impl FnMut(RealId, &mut RealStats),
    ) -> anyhow::Result<()> {
        let interval_ns = match self.last_tick {
            Some(last) => now.monotonic_ns.saturating_sub(last.monotonic_ns),
            None => self.config.control.interval_ns,
        };
        if self.unfinished.is_some() {
            self.finish();
        }
        let has_looked = self.sweep_flows(now.monotonic_ns);
        let looks = self.choose(now.monotonic_ns, interval_ns)?;
        self.count_due()?;
        let totals = self
            .plane
            .real_stats(&self.due_reals().collect::<Vec<_>>())?;
        if looks.begins {
            self.round.begin(now.monotonic_ns);
        }
        self.read_histograms()?;
        // An interval that could not be read is part of the next one.
        self.last_tick = Some(now);
        for (id, mut totals) in totals {
            add(id, &mut totals);
            if let Some(counters) = self.counters.get_mut(id) {
                counters.advance(now.monotonic_ns, interval_ns, totals);
            }
        }
        self.take_open(now.monotonic_ns, has_looked);
        let due = self.pools.iter_mut().filter(|pool| pool.visits.is_due());
        due.for_each(|pool| pool.visits.end(now.monotonic_ns));
        self.record(now, looks.reals);
        self.step(now, looks);
        // One that returned within a long interval was not there for all of it.
        self.warm(interval_ns.min(self.config.control.interval_ns))?;
        self.decide(now);
        self.sample(now.monotonic_ns)?;
        self.follow_loads(now.monotonic_ns)?;
        self.set_rings()
    }

    /// Chooses the VIPs that an interval looks at: those with packets lately, and those whose
    /// weights move without any; of more than a turn is for, those whose turn it is.
    fn choose(&mut self, now_ns: u64, interval_ns: u64) -> anyhow::Result<Looks> {
        // Other balancers are told of each real in each interval.
        let tells_others = self.peers.link().is_some();
        let all = tells_others || self.turns.are_few(self.reals);
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
            let wanted = all || pool.moves_without_packets();
            if pool.visits.choose(now_ns, interval_ns, wanted) {
                reals += pool.vip().reals.len();
            }
        }
        let vips = self.pools.iter_mut().map(|pool| {
            let reals = pool.vip().reals.len();
            (&mut pool.visits, reals)
        });
        Ok(self.turns.choose(reals, tells_others, vips))
    }

    /// Has counters for the reals that the interval looks at. Those that have none had no packet.
    fn count_due(&mut self) -> anyhow::Result<()> {
        let new = self.due_reals();
        let new = new.filter(|id| self.counters.get(*id).is_none());
        for id in new.collect::<Vec<_>>() {
            let none = RealCounters::new(RealStats::default(), Histogram::new(), Duration::ZERO);
            let counters = none.sampled(self.plane.sampling(id)?);
            self.counters.insert(id, counters);
        }
        Ok(())
    }

    /// The reals that the interval looks at.
    fn due_reals(&self) -> impl Iterator<Item = RealId> + '_ {
        let due = self.pools.iter().filter(|pool| pool.visits.is_due());
        due.flat_map(Pool::members).map(|(_, member)| member.id)
    }

    /// Gives the data plane the rings that it lacks.
    pub(super) fn set_rings(&mut self) -> anyhow::Result<()> {
        let stale = self.pools.iter().filter(|pool| pool.ring_is_stale());
        let rings: Vec<_> = stale.map(Pool::stale_rings).collect();
        if !rings.is_empty() {
            self.plane.set_rings(&rings)?;
        }
        for pool in &mut self.pools {
            if !pool.ring_is_stale() {
                pool.ring_is_known();
                continue;
            }
            let sources = pool.source_rings();
            if !sources.is_empty() {
                self.plane.set_sources(pool.id(), &sources)?;
            }
            pool.ring_is_set();
            if pool.begins_anew() {
                self.plane.set_turn(pool.id(), 0)?;
            }
        }
        self.rings_set.0 += rings.len() as u64;
        self.rings_set.1 += rings
            .iter()
            .map(|rings| rings.ring.len() as u64)
            .sum::<u64>();
        Ok(())
    }

    /// Whether a look at the whole flow table has ended.
    fn sweep_flows(&mut self, now_ns: u64) -> bool {
        let not_all_take = |pool: &&Pool| pool.has_draining() || !pool.all_fit();
        let pools = self.pools.iter().filter(not_all_take);
        let idle = &self.config.flow_idle;
        let draining = pools.flat_map(|pool| left_by_flows(pool, idle.udp_drain));
        let draining: Vec<Draining> = draining.collect();
        let swept = self.plane.sweep_flows(now_ns, idle, &draining);
        for (real, connections) in swept.unheard {
            if let Some(counters) = self.counters.get_mut(real) {
                counters.give_up(connections, idle.ended);
            }
        }
        let Some(open) = swept.open else {
            return false;
        };
        self.open_flows = (self.open_flows.0 + 1, open);
        true
    }

    /// Tells reals which connections the flow table holds, once after each look at all of it. Counters
    /// of VIPs that are looked at in another turn lack what has come since theirs, and ids of a new VIP's
    /// reals may have been others' when the table was looked at.
    fn take_open(&mut self, now_ns: u64, has_looked: bool) {
        let (look, held) = &self.open_flows;
        let pools = self.pools.iter_mut();
        let visited = pools.filter(|pool| pool.visits.is_due() || !pool.visits.is_wanted());
        let pools: Vec<&mut Pool> = visited
            .filter(|pool| pool.held_look != Some(*look))
            .collect();
        if pools.is_empty() {
            return;
        }
        // A full table evicts flows. Each of its two parts has a quarter more slots than flows.
        let flows = self.plane.flow_totals();
        let has_room = flows.flows * 5 <= flows.slots * 2;
        for pool in pools {
            let is_new = pool.held_look.replace(*look).is_none();
            if is_new && !has_looked {
                continue;
            }
            let all = has_room && pool.is_remembered();
            for (_, member) in pool.members() {
                if let Some(counters) = self.counters.get_mut(member.id) {
                    let open = held.get(&member.id).copied().unwrap_or(0);
                    counters.handle_open(now_ns, open, all);
                }
            }
        }
    }

    fn read_histograms(&mut self) -> anyhow::Result<()> {
        if !self.round.reads_histograms() {
            return Ok(());
        }
        let histograms: Vec<_> = self
            .due_reals()
            .map(|id| self.plane.histogram(id).map(|histogram| (id, histogram)))
            .collect::<anyhow::Result<_>>()?;
        for (id, histogram) in histograms {
            let Some(counters) = self.counters.get_mut(id) else {
                continue;
            };
            counters.observe_histogram(histogram);
            if self.round.begins_window() {
                counters.rotate();
            }
        }
        Ok(())
    }

    /// Writes what a look has seen into the history, with the weights that were in force since the
    /// look before. `due` reals are looked at in turn.
    fn record(&mut self, now: Moment, due: usize) {
        let epochs = self.config.history.as_nanos() / u128::from(self.config.control.interval_ns);
        let keep = (epochs as usize).clamp(1, (EPOCHS_MAX / due.max(1)).max(1));
        for pool in self.pools.iter_mut().filter(|pool| pool.visits.is_due()) {
            let start = now.before(pool.visits.interval_ns());
            for (real, member) in pool.members_mut() {
                let Some(counters) = self.counters.get(member.id) else {
                    continue;
                };
                let delta = counters.delta();
                let latencies = delta.latencies();
                let tally = samples::tally(delta);
                let narrow = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
                let epoch = Epoch {
                    start,
                    sum_halves_ns: latencies.sum_halves_ns,
                    weight_halves: narrow(latencies.weight_halves),
                    low_halves: narrow(tally.bound_halves),
                    requests: narrow(delta.requests),
                    opened: narrow(delta.conns_opened),
                    active: narrow(counters.active(now.monotonic_ns)),
                    quality: samples::grade(&tally),
                    configured: real.configured_weight(),
                    weight: member.weight,
                };
                member.past_mut().record(epoch, keep);
            }
        }
    }

    /// Ends a step of the timelines if it is time.
    fn step(&mut self, now: Moment, looks: Looks) {
        if !self.round.ends_step() {
            return;
        }
        if looks.begins {
            // What cannot be read now is part of the next step: nothing rests on it.
            if let Ok(verdicts) = self.plane.verdicts() {
                self.drops.end(now, verdicts);
            }
            self.round.begin_step(now.monotonic_ns);
            if !self.round.ends_step() {
                return;
            }
        }
        let keep = timeline::kept(looks.reals);
        let due = self.pools.iter().filter(|pool| pool.visits.is_due());
        for (real, member) in due.flat_map(Pool::members) {
            if let Some(counters) = self.counters.get_mut(member.id) {
                let standing = Standing {
                    configured: real.configured_weight(),
                    weight: member.weight,
                    state: pool::state(real, member),
                    active: counters.active(now.monotonic_ns),
                };
                counters.step(now, standing, keep);
            }
        }
    }

    /// Has the data plane measure as many connections as the controllers ask for, hardly more.
    fn sample(&mut self, now_ns: u64) -> anyhow::Result<()> {
        if !self.config.measure {
            return Ok(());
        }
        for pool in self.pools.iter_mut().filter(|pool| pool.visits.is_due()) {
            let (fixed, wanted) = (pool.vip().sampling, pool.samples_wanted());
            let takes_low = pool.in_force().takes_low;
            let mut any: Option<Sampling> = None;
            for (_, member) in pool.members() {
                let Some(counters) = self.counters.get_mut(member.id) else {
                    continue;
                };
                let before = counters.sampling();
                let sampling = counters.sample(now_ns, fixed, wanted, takes_low);
                if sampling != before {
                    self.plane.set_sampling(member.id, sampling)?;
                }
                any = Some(any.map_or(sampling, |any| any.with(sampling)));
            }
            // A call to the kernel for each VIP and interval, of which hardly one would change it.
            let any = any.unwrap_or_default();
            if pool.sampling != Some(any) {
                self.plane.set_vip_sampling(pool.id(), any)?;
                pool.sampling = Some(any);
            }
        }
        Ok(())
    }

    /// Gives reals that have returned recently more of their weight.
    fn warm(&mut self, interval_ns: u64) -> anyhow::Result<()> {
        for pool in self.pools.iter_mut().filter(|pool| pool.visits.is_wanted()) {
            if pool.warm(interval_ns) && pool.counts_connections() {
                loads::weigh_connections(self.plane.as_mut(), pool)?;
            }
        }
        Ok(())
    }

    /// What an interval has brought of the reals of each pool that is due, at all balancers of
    /// them. With other balancers all are due.
    fn measured(&mut self, now_ns: u64) -> Vec<Vec<MeasuredInterval>> {
        let due = self.pools.iter().filter(|pool| pool.visits.is_due());
        let measured = due.map(|pool| {
            let members = pool.members();
            let each = members.map(|(_, member)| self.counters.get(member.id));
            each.map(|of| of.map(RealCounters::measured).unwrap_or_default())
                .collect()
        });
        let mut measured: Vec<Vec<MeasuredInterval>> = measured.collect();
        let (pools, checks) = (&self.pools, &mut self.checks);
        let Some(of_all) = self.peers.exchange(now_ns, pools, checks, &measured) else {
            return measured;
        };
        self.apply_health();
        let mut of_all = of_all.iter();
        for (pool, measured) in self.pools.iter_mut().zip(&mut measured) {
            let of_all: Vec<&RealOfAll> = of_all.by_ref().take(measured.len()).collect();
            for (measured, of_all) in measured.iter_mut().zip(&of_all) {
                *measured = of_all.measured;
            }
            let weights: Vec<Option<f64>> = of_all.iter().map(|of| of.weight).collect();
            pool.draw(&weights, DRAW);
        }
        measured
    }

    fn decide(&mut self, now: Moment) {
        let measured = self.measured(now.monotonic_ns);
        let due = self.pools.iter_mut().filter(|pool| pool.visits.is_due());
        for (pool, measured) in due.zip(measured) {
            let readings = latency_source::readings(
                pool,
                &self.reports,
                now.monotonic_ns,
                pool.visits.interval_ns(),
                &measured,
            );
            let reasons = reasons(pool);
            pool.tick(now, &readings);
            for (index, change) in moves(pool, now) {
                let line = format!(
                    "{} {}: weight {:.3} -> {:.3}: {}{}",
                    change.vip,
                    change.real,
                    change.before,
                    change.after,
                    change.reason_text,
                    if change.observed { " (observed)" } else { "" }
                );
                // The first of a row of moves is news, the rest is detail; so is what a
                // move of one real means for all others.
                let follows = matches!(change.reason.as_str(), "received" | "gave" | "regressed");
                match follows || reasons.get(index) == Some(&change.reason) {
                    true => debug!("{line}"),
                    false => info!("{line}"),
                }
                while self.moves.len() >= MOVES_MAX {
                    self.moves.pop_front();
                }
                self.moves.push_back(change);
            }
        }
    }
}

/// The reals that UDP flows are to leave, and after what time: those that an operator drains, and
/// those that are down while others serve.
fn left_by_flows(pool: &Pool, udp_drain: Option<Duration>) -> impl Iterator<Item = Draining> {
    let serves = health::serves(pool);
    let udp_down = udp_drain.map_or(UDP_DOWN, |drain| drain.min(UDP_DOWN));
    pool.members().filter_map(move |(real, member)| {
        let after = match serves && !member.fit {
            true => Some(udp_down),
            false if real.is_wanted() => return None,
            false => udp_drain,
        };
        Some((member.id, after))
    })
}

/// The words of the last decision, by real.
fn reasons(pool: &Pool) -> Vec<String> {
    let reals = pool.decision().map(|decision| &decision.reals[..]);
    let words = reals.unwrap_or_default().iter();
    words.map(|real| real.reason.word().to_owned()).collect()
}

/// The changes of weight of the last decision, with the real's index.
fn moves(pool: &Pool, at: Moment) -> Vec<(usize, Move)> {
    let Some(decision) = pool.decision() else {
        return Vec::new();
    };
    let mut moves = Vec::new();
    for (index, ((real, _), own)) in pool.members().zip(&decision.reals).enumerate() {
        if (own.weight - own.before).abs() <= MOVE_MIN * own.configured {
            continue;
        }
        let change = Move {
            at,
            vip: pool.vip().name.clone(),
            real: real.address.to_string(),
            before: own.before,
            after: own.weight,
            latency_us: own.latency_ns.map(|ns| ns / 1e3),
            reason: own.reason.word().to_owned(),
            reason_text: own.reason.to_string(),
            observed: pool.vip().control == Control::Observe,
        };
        moves.push((index, change));
    }
    moves
}
