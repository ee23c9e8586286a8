// SPDX-License-Identifier: Apache-2.0
//! One VIP at work: its reals, its controller, its ring.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};

use causeway_api::Moment;
use causeway_api::balancer::RealState;
use causeway_core::control::{
    ControlParams, Controller, Decision, Law, Member, Reading, RealDecision, Sampling,
};
use causeway_core::select::{self, Awrr, Loaded, RealKey};
use causeway_dataplane::{Picking, Protocol, RealId, SourceRing, VipId, VipRings};

use super::headcount::Headcount;
use super::latency_in_force::InForce;
use super::pool_member::{Past, PoolMember};
use super::ring_in_force::{BuiltFrom, RingInForce, RingWeight};
use super::rings;
use super::visits::Visits;
use crate::config::{
    Control, Fallback, LoadSource, RealConfig, RealRole, Scheduler, SharedVip, Source, VipConfig,
};

/// Turns that a plan of the least loaded reals holds, as a multiple of the flows of
/// the last interval and of the number of reals, and at most.
const PLAN_AHEAD: usize = 4;
const PLAN_MAX: usize = 16_384;
/// Parts in which a real that returns gets its weight back. Each has a ring built.
const WARM_PARTS: u32 = 10;
/// Weights that no real has said yet are fractions: they are told apart to a thousandth.
const UNASKED_UNIT: f64 = 1000.0;
/// Largest number of a ratio.
const RATIO_MAX: f64 = (1 << 30) as f64;
/// Samples of an interval without a controller: ten seconds of them suffice for percentiles.
const SAMPLES_TO_SHOW: f64 = 100.0;

/// A VIP in the data plane.
#[derive(Debug)]
pub struct Pool {
    vip: SharedVip,
    id: VipId,
    members: Vec<PoolMember>,
    controller: Option<Controller>,
    decision: Option<Decision>,
    ring: RingInForce,
    /// How the data plane was set to sample its connections; `None`: not yet.
    pub(super) sampling: Option<Sampling>,
    /// What the controller goes by.
    in_force: InForce,
    /// When it was looked at.
    pub(super) visits: Visits,
    /// Which look at the flow table its reals have been told of.
    pub(super) held_look: Option<u64>,
    /// Whether its controller's last decision moved no weight.
    is_settled: bool,
    headcount: Headcount,
    /// Whether the end of a connection may lower loads in the data plane, though the VIP does not
    /// go by them.
    pub(super) may_lower: bool,
    /// Settles who begins in rings of turns.
    seed: u64,
    /// The digest of the configured weights, once a request has asked for it: it looks at every
    /// real, and the VIP does not change as long as the pool is there.
    weights_digest: OnceCell<String>,
}

impl Pool {
    /// The digest of the configured weights, which `of` makes of the VIP.
    pub(crate) fn weights_digest(&self, of: impl FnOnce(&VipConfig) -> String) -> &str {
        self.weights_digest.get_or_init(|| of(&self.vip))
    }

    /// A pool of `vip`, whose reals have these ids, in the same order. `former` is
    /// the pool that it is to replace: what its controller knows carries over; its
    /// history follows with [`take_history`](Self::take_history). `observed` is the law
    /// of a controller that only observes.
    pub fn new(
        vip: SharedVip,
        id: VipId,
        reals: &[RealId],
        (params, observed): (&ControlParams, Law),
        former: Option<&Self>,
        seed: u64,
    ) -> Self {
        let members: Vec<PoolMember> = reals
            .iter()
            .zip(&vip.reals)
            .map(|(&id, real)| (id, real, former.map(|former| former.warms(id, real, &vip))))
            .map(|(id, real, warms)| PoolMember {
                id,
                weight: real.configured_weight(),
                meant: real.configured_weight(),
                fit: former.is_none_or(|former| former.is_fit(id)),
                waits: former.is_some_and(|former| former.waits(id, real, &vip)),
                told: None,
                asked: false,
                prior: 1.0,
                standby: false,
                warms_ns: warms.map_or(0, |(warms_ns, _)| warms_ns),
                whole: warms.is_some_and(|(_, whole)| whole),
                load: None,
                latency_rest: 0.0,
                aged: 0.0,
                past: None,
            })
            .collect();
        let known = former.filter(|former| former.vip == vip);
        let weights_digest = known.map_or_else(OnceCell::new, |pool| pool.weights_digest.clone());
        let mut pool = Self {
            weights_digest,
            in_force: former.map_or_else(|| InForce::of(&vip), |former| former.in_force),
            headcount: Headcount::of(&vip, &members),
            vip,
            id,
            members,
            controller: None,
            decision: None,
            ring: RingInForce::after(former.map(|former| &former.ring)),
            sampling: None,
            visits: former.map_or_else(Visits::default, |former| former.visits),
            held_look: former.and_then(|former| former.held_look),
            is_settled: true,
            // A daemon that ended may have counted.
            may_lower: former.is_none_or(|of| of.may_lower || of.counts_connections()),
            seed,
        };
        if let Some(former) = former.filter(|_| takes_weights(&pool.vip)) {
            pool.members
                .iter_mut()
                .for_each(|member| former.tell(member));
        }
        if pool.vip.control != Control::Off {
            let law = pool.vip.control.law().unwrap_or(observed);
            let known = former.and_then(|former| former.controller.clone());
            let mut controller = known.unwrap_or_else(|| Controller::new(law, params.clone()));
            controller.set_params(params.clone());
            // A switch goes on with the weights and latencies that there are.
            if controller.law() != law {
                controller.set_law(law);
            }
            pool.controller = Some(controller);
        }
        pool.reset_weights();
        pool
    }

    fn count(&mut self) {
        self.headcount = Headcount::of(&self.vip, &self.members);
    }

    /// How many members count for what the VIP needs, when they are up.
    pub(crate) fn counted(&self) -> usize {
        self.headcount.counted
    }

    /// Whether its health lets all members get new connections, and none waits for that.
    pub(crate) fn all_fit(&self) -> bool {
        self.headcount.unfit == 0
    }

    /// Whether an operator wants a member to get no new connections.
    pub(crate) fn has_draining(&self) -> bool {
        self.headcount.draining > 0
    }

    /// Whether its weights may move though no packet comes: by time, or by what agents report.
    pub(crate) fn moves_without_packets(&self) -> bool {
        let told = matches!(self.vip.load, LoadSource::Cpu | LoadSource::InFlight);
        self.headcount.warming > 0
            || !self.is_settled
            || (told && self.vip.scheduler.follows_load())
    }

    /// Gives every member the weight it is meant to have; a controller goes on from
    /// what it knows.
    fn reset_weights(&mut self) {
        self.ring.may_differ();
        let in_the_end = self.meant_in_the_end();
        self.let_most_be_whole(&in_the_end);
        let meant = self.meant();
        let reals = self.vip.reals.iter().zip(in_the_end);
        for ((member, meant), (real, in_the_end)) in self.members.iter_mut().zip(&meant).zip(reals)
        {
            (member.weight, member.meant) = (*meant, *meant);
            let waits = in_the_end == 0.0 && member.told != Some(0);
            member.standby = member.fit && real.configured_weight() > 0.0 && waits && !member.waits;
        }
        if let Some(controller) = &mut self.controller {
            let controlled: Vec<Member> = self
                .members
                .iter()
                .zip(meant)
                .map(|(member, configured)| Member {
                    id: member.id,
                    configured,
                })
                .collect();
            controller.set_members(&controlled);
        }
        self.take_weights();
    }

    /// If those that have returned recently are most of the pool, all of them have the whole weight
    /// from now on: the few others would bear the load of those.
    fn let_most_be_whole(&mut self, in_the_end: &[f64]) {
        let members = self.members.iter().zip(in_the_end);
        let warming = members.filter(|(member, _)| member.warms_ns > 0);
        let warming: f64 = warming.map(|(_, meant)| meant).sum();
        if warming > in_the_end.iter().sum::<f64>() / 2.0 {
            for (member, meant) in self.members.iter_mut().zip(in_the_end) {
                member.whole |= member.warms_ns > 0 && *meant > 0.0;
            }
        }
    }

    /// The weight that each member is meant to have now: a part of it for those that have returned
    /// recently.
    fn meant(&self) -> Vec<f64> {
        let mut meant = self.meant_in_the_end();
        for (member, meant) in self.members.iter().zip(&mut meant) {
            *meant *= f64::from(self.parts(member)) / f64::from(WARM_PARTS);
        }
        meant
    }

    /// How many parts of its weight a member has.
    fn parts(&self, member: &PoolMember) -> u32 {
        if member.whole {
            return WARM_PARTS;
        }
        let whole_ns = slow_start_ns(&self.vip).max(1);
        let left = u128::from(member.warms_ns.min(whole_ns)) * u128::from(WARM_PARTS);
        let left = left.div_ceil(u128::from(whole_ns)) as u32;
        (WARM_PARTS - left + 1).min(WARM_PARTS)
    }

    /// What the member of the pool after this one has still to wait for its whole weight, and whether
    /// it has that before, if `real` is that member's configuration and `vip` that pool's. One that is
    /// new begins so, too, where all new connections go to the real with the fewest.
    fn warms(&self, id: RealId, real: &RealConfig, vip: &VipConfig) -> (u64, bool) {
        let former = self.members().find(|(_, member)| member.id == id);
        former.map_or(
            (slow_start_of_new_ns(vip), false),
            |(before, member)| match before.configured_weight() == 0.0
                && real.configured_weight() > 0.0
                && member.fit
            {
                true => (slow_start_ns(vip), false),
                false => (member.warms_ns.min(slow_start_ns(vip)), member.whole),
            },
        )
    }

    /// Lets time pass for members that have returned recently; whether weights changed.
    pub(crate) fn warm(&mut self, interval_ns: u64) -> bool {
        if self.headcount.warming == 0 {
            return false;
        }
        let before = self.meant();
        for member in &mut self.members {
            member.warms_ns = member.warms_ns.saturating_sub(interval_ns);
        }
        self.count();
        let changed = self.meant() != before;
        if changed {
            self.reset_weights();
        }
        changed
    }

    /// The weights that members are meant to have now in whole numbers, which compare with
    /// each other alone.
    pub(crate) fn meant_ratio(&self) -> Vec<u32> {
        let meant = self.meant();
        let unit = match meant == self.meant_in_the_end() {
            true => 1.0,
            false => f64::from(WARM_PARTS),
        };
        let is_whole = |meant: &f64| (meant * unit - (meant * unit).round()).abs() < 1e-6;
        let unit = match meant.iter().all(is_whole) {
            true => unit,
            false => {
                let most = meant.iter().copied().fold(1.0, f64::max);
                (RATIO_MAX / most).min(UNASKED_UNIT)
            }
        };
        let whole = |meant: f64| (meant * unit).round() as u32;
        meant.into_iter().map(whole).collect()
    }

    /// As configured, times what members say of themselves.
    fn meant_in_the_end(&self) -> Vec<f64> {
        let meant = meant(&self.vip, |at| self.may_take(at));
        let say = |member: &PoolMember| member.told.map_or(1.0, f64::from);
        let asked = self.members.iter().filter(|member| member.asked);
        let (said, prior) = asked.fold((0.0, 0.0), |(said, prior), member| {
            (said + say(member), prior + member.prior)
        });
        let of_unasked = match said > 0.0 && prior > 0.0 {
            true => said / prior,
            false => 1.0,
        };
        let told = self.members.iter().zip(&meant);
        let told: Vec<f64> = told
            .map(|(member, meant)| match member.asked {
                true => meant * say(member),
                false => meant * member.prior * of_unasked,
            })
            .collect();
        // If none wants any, somebody has to.
        match told.iter().any(|weight| *weight > 0.0) {
            true => told,
            false => meant,
        }
    }

    /// Takes the weight that a member says it should have; whether that changes anything.
    pub fn set_told(&mut self, id: RealId, told: Option<u32>) -> bool {
        // Each probe that succeeds asks all pools.
        if !takes_weights(&self.vip) {
            return false;
        }
        let member = self.members.iter_mut().find(|member| member.id == id);
        let is_new = |member: &&mut PoolMember| !member.asked || member.told != told;
        let Some(member) = member.filter(is_new) else {
            return false;
        };
        (member.told, member.asked) = (told, true);
        self.ring.drop_plan();
        self.reset_weights();
        true
    }

    /// Has the member of the pool after this one know what it has said here.
    fn tell(&self, after: &mut PoolMember) {
        if let Some(member) = self.members.iter().find(|member| member.id == after.id) {
            (after.told, after.asked, after.prior) = (member.told, member.asked, member.prior);
        }
    }

    /// Goes on with what members had said to a daemon that ended, as the ring shows it, until each
    /// is asked.
    pub(super) fn resume_told(&mut self, ring: &[RealId]) {
        let mut slots: HashMap<RealId, f64> = HashMap::new();
        for id in ring {
            *slots.entry(*id).or_default() += 1.0;
        }
        let reals = self.vip.reals.iter().zip(&self.members);
        let said: Vec<Option<f64>> = reals
            .map(|(real, member)| Some(slots.get(&member.id)? / real.configured_weight().max(1.0)))
            .collect();
        let known = said.iter().flatten();
        let mean = known.clone().sum::<f64>() / known.count().max(1) as f64;
        for (member, said) in self.members.iter_mut().zip(said) {
            member.prior = said.map_or(1.0, |said| said / mean);
        }
        self.reset_weights();
    }

    /// Whether the real at this place may get new connections, if it is of the role that does. One
    /// that waits for its first probe does so only while others take them.
    fn may_take(&self, at: usize) -> bool {
        let member = &self.members[at];
        member.fit && !(member.waits && self.headcount.others_take)
    }

    /// Whether a member of the pool after this one is to wait for its first probe, if `real` is that
    /// member's configuration and `vip` that pool's: one that is new, or was not probed.
    fn waits(&self, id: RealId, real: &RealConfig, vip: &VipConfig) -> bool {
        let former = self.members().find(|(_, member)| member.id == id);
        let is_new = former.is_none_or(|(before, member)| !before.is_probed() || member.waits);
        vip.health.is_some() && real.is_probed() && is_new
    }

    /// Has members that were not there before wait for their first probe.
    pub(super) fn let_wait(&mut self, is_new: impl Fn(RealId) -> bool) {
        if self.vip.health.is_none() {
            return;
        }
        let reals = self.vip.reals.iter().zip(&mut self.members);
        for (_, member) in reals.filter(|(real, _)| real.is_probed()) {
            member.waits |= is_new(member.id);
        }
        self.count();
        self.reset_weights();
    }

    fn is_fit(&self, id: RealId) -> bool {
        self.members
            .iter()
            .all(|member| member.id != id || member.fit)
    }

    /// Takes these members out of the pool, and all others back; `waits` says which go on
    /// waiting for their first probe. Whether that changed anything.
    pub fn set_unfit(&mut self, unfit: &HashSet<RealId>, waits: impl Fn(RealId) -> bool) -> bool {
        let mut changed = false;
        let slow_start_ns = slow_start_ns(&self.vip);
        let slow_start_of_new_ns = slow_start_of_new_ns(&self.vip);
        for member in &mut self.members {
            let fit = !unfit.contains(&member.id);
            changed |= fit != member.fit;
            if fit != member.fit {
                member.warms_ns = if fit { slow_start_ns } else { 0 };
                member.whole = false;
            }
            member.fit = fit;
            let still = member.waits && waits(member.id);
            if still != member.waits {
                changed = true;
                member.warms_ns = member.warms_ns.max(slow_start_of_new_ns);
            }
            member.waits = still;
        }
        if changed {
            self.count();
            self.ring.drop_plan();
            self.reset_weights();
        }
        changed
    }

    /// Takes over the history of the pool that this one replaces.
    pub fn take_history(&mut self, former: Self) {
        let members = former.members.into_iter();
        let mut known: HashMap<RealId, Box<Past>> = members
            .filter_map(|member| Some((member.id, member.past?)))
            .collect();
        for member in &mut self.members {
            member.past = known.remove(&member.id);
        }
    }

    /// The configured VIP.
    pub fn vip(&self) -> &VipConfig {
        &self.vip
    }

    /// The same, as others share it.
    pub(super) fn shared_vip(&self) -> &SharedVip {
        &self.vip
    }

    /// Index in the data plane.
    pub fn id(&self) -> VipId {
        self.id
    }

    /// The reals, with their configuration.
    pub fn members(&self) -> impl Iterator<Item = (&RealConfig, &PoolMember)> {
        self.vip.reals.iter().zip(&self.members)
    }

    /// The reals, to append to their history.
    pub fn members_mut(&mut self) -> impl Iterator<Item = (&RealConfig, &mut PoolMember)> {
        self.vip.reals.iter().zip(&mut self.members)
    }

    /// What the controller goes by.
    pub(crate) fn in_force(&self) -> InForce {
        self.in_force
    }

    /// Sets what the controller goes by from the interval on that ends now. Latencies of
    /// one kind say nothing about those of the other.
    pub(crate) fn set_in_force(&mut self, in_force: InForce, now_ns: u64) {
        let other = in_force.source != self.in_force.source
            || (in_force.takes_low != self.in_force.takes_low && !in_force.source.is_told());
        if other && let Some(controller) = &mut self.controller {
            controller.forget_latencies(now_ns);
        }
        self.in_force = in_force;
    }

    /// The controller's last decision.
    pub fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// Lets the controller decide on an interval; weights change if it acts.
    pub fn tick(&mut self, now: Moment, readings: &[Reading]) {
        if let Some(controller) = &mut self.controller {
            let decision = controller.tick(now.monotonic_ns, readings);
            let observed = self.vip.control == Control::Observe;
            for (member, own) in self.members.iter_mut().zip(&decision.reals) {
                let source = self.in_force.source;
                let decisions = &mut member.past_mut().decisions;
                decisions.note(now, &decision, own, (observed, source));
            }
            self.is_settled = !decision.reals.iter().any(RealDecision::changed);
            self.decision = Some(decision);
            self.take_weights();
        }
    }

    /// The weights that the controller gives, as parts of those that it begins with; none where
    /// there is no controller, or no such part. Those of one that only observes are on trial: no
    /// other balancer is to go by them.
    pub(super) fn relative_weights(&self) -> Vec<Option<f64>> {
        let acts = self.vip.control != Control::Observe;
        let Some(controller) = self.controller.as_ref().filter(|_| acts) else {
            return vec![None; self.members.len()];
        };
        let weights = controller.weights();
        weights
            .map(|(member, weight)| (member.configured > 0.0).then(|| weight / member.configured))
            .collect()
    }

    /// Moves the controller's weights a part of the way to those that all balancers give.
    pub(super) fn draw(&mut self, towards: &[Option<f64>], part: f64) {
        if let Some(controller) = &mut self.controller
            && towards.iter().any(Option::is_some)
        {
            controller.draw(towards, part);
        }
    }

    /// Samples that an interval is to bring of each real.
    pub(crate) fn samples_wanted(&self) -> f64 {
        self.controller
            .as_ref()
            .map_or(SAMPLES_TO_SHOW, Controller::samples_wanted)
    }

    /// How the data plane is to give out new flows.
    pub fn picking(&self) -> Picking {
        let scheduler = self.vip.scheduler;
        Picking {
            pick: rings::pick(&self.vip),
            remember: self.vip.flow_table,
            count_load: scheduler.counts_load() || self.counts_connections(),
        }
    }

    /// Whether the flow table has all of its connections.
    pub(super) fn is_remembered(&self) -> bool {
        // Flows of UDP do not end.
        let is_tcp = self.vip.protocol == Protocol::Tcp;
        is_tcp && self.vip.flow_table && self.vip.cookie.is_none() && !self.vip.stateful
    }

    /// Whether the data plane counts open connections for the scheduler.
    pub fn counts_connections(&self) -> bool {
        self.vip.scheduler.follows_load() && self.vip.load == LoadSource::Connections
    }

    /// Lets a scheduler that follows loads act on those of the members. A flow adds
    /// `rise`; `arrivals` flows came in the last interval.
    pub fn follow_loads(&mut self, rise: f64, arrivals: u64) {
        self.ring.may_differ();
        match self.vip.scheduler {
            Scheduler::Awrr => {
                let awrr = Awrr::default();
                let slots = awrr.slots(&self.loaded());
                let meant = self.meant();
                for ((member, meant), slots) in self.members.iter_mut().zip(meant).zip(slots) {
                    member.weight = meant * f64::from(slots) / awrr.slots;
                }
            }
            Scheduler::LeastLoaded => {
                let flows = self.members.len().max(arrivals as usize);
                let length = (PLAN_AHEAD * flows).min(PLAN_MAX);
                let plan = select::least_loaded(&self.loaded(), rise, length);
                self.ring.set_plan(plan, arrivals > 0);
            }
            _ => {}
        }
    }

    /// The members as configured, with their loads.
    fn loaded(&self) -> Vec<Loaded> {
        let members = self.members().zip(self.meant_ratio());
        members
            .map(|((real, member), weight)| Loaded {
                member: select::RingMember {
                    key: RealKey::from(real.address),
                    id: member.id,
                    weight,
                },
                load: member.load,
            })
            .collect()
    }

    /// Whether turns begin again with the ring.
    pub fn begins_anew(&self) -> bool {
        self.vip.scheduler.begins_anew()
    }

    /// Whether the ring holds every real that was fit for it.
    pub fn ring_has_all(&self) -> bool {
        self.vip.scheduler.ring_has_all()
    }

    /// Whether the ring shows what a controller had found out.
    pub fn follows_latency(&self) -> bool {
        self.vip.control.law().is_some()
    }

    /// Goes on with the weights that `ring` was built from by a daemon that ended.
    pub fn resume(&mut self, now_ns: u64, ring: &[RealId]) {
        if self.controller.is_none() {
            return;
        }
        let mut slots: HashMap<RealId, f64> = HashMap::new();
        for id in ring {
            *slots.entry(*id).or_default() += 1.0;
        }
        // Reals that are new begin as configured.
        let meant = meant(&self.vip, |at| self.may_take(at));
        let members = || meant.iter().zip(&self.members);
        let known: f64 = members()
            .filter(|(_, member)| slots.contains_key(&member.id))
            .map(|(meant, _)| meant)
            .sum();
        // Those of reals that have gone count for none.
        let taken: f64 = members()
            .filter_map(|(_, member)| slots.get(&member.id))
            .sum();
        let weights: Vec<f64> = members()
            .map(|(meant, member)| match slots.get(&member.id) {
                Some(slots) => slots / taken * known,
                None if member.fit => *meant,
                None => 0.0,
            })
            .collect();
        if let Some(controller) = &mut self.controller {
            controller.resume(now_ns, &weights);
        }
        self.take_weights();
    }

    fn take_weights(&mut self) {
        let Some(controller) = &self.controller else {
            return;
        };
        self.ring.may_differ();
        if self.vip.control.law().is_some() {
            for (member, (_, weight)) in self.members.iter_mut().zip(controller.weights()) {
                member.weight = weight;
            }
        }
    }

    /// Whether the data plane's ring is not that of the members and weights in force.
    pub fn ring_is_stale(&self) -> bool {
        self.ring.differs(|| self.wanted_ring())
    }

    /// Notes that the ring was compared, and is the wanted one.
    pub(super) fn ring_is_known(&mut self) {
        self.ring.is_known();
    }

    fn wanted_ring(&self) -> BuiltFrom {
        let members = self.members().zip(self.meant());
        let members = members.map(|((real, member), configured)| RingWeight {
            id: member.id,
            configured,
            weight: member.weight,
            reserved: self.vip.is_reserved(real),
        });
        BuiltFrom {
            scheduler: self.vip.scheduler,
            pick: self.picking().pick,
            members: members.collect(),
            plain: self.wanted_plain(),
        }
    }

    /// What the ring of such weights for all clients is built of.
    fn wanted_plain(&self) -> Vec<(RealId, f64)> {
        rings::for_all(&self.vip, self.plain_weights().into_iter()).collect()
    }

    /// The weights that other balancers give the reals, too: none that latency or load moves.
    /// Nothing where there is no such ring.
    fn plain_weights(&self) -> Vec<(RealId, f64)> {
        if !rings::has_plain(&self.vip) {
            return Vec::new();
        }
        let ids = self.members.iter().map(|member| member.id);
        ids.zip(self.meant_in_the_end()).collect()
    }

    /// The rings that the data plane is to get.
    pub fn stale_rings(&self) -> VipRings {
        let plain = || rings::plain_of_vip(&self.vip, self.plain_weights().into_iter());
        VipRings {
            vip: self.id,
            ring: self.ring(),
            plain: self.ring.plain_differs(&self.wanted_plain()).then(plain),
        }
    }

    /// Builds the ring for the weights in force; empty if no real takes connections.
    pub fn ring(&self) -> Vec<RealId> {
        if let Some(plan) = self.ring.plan() {
            return plan.to_vec();
        }
        let members = self.members.iter();
        let members = members.map(|member| (member.id, member.weight));
        rings::of_vip(&self.vip, members, self.seed)
    }

    /// The rings of client prefixes, for the weights in force.
    pub fn source_rings(&self) -> Vec<SourceRing> {
        let ring = |source: &Source| SourceRing {
            prefixes: source.from.clone(),
            ring: self.source_ring(source),
            plain: self.plain_source_ring(source),
            strict: source.fallback == Fallback::Drop,
        };
        self.vip.sources.iter().map(ring).collect()
    }

    fn source_ring(&self, source: &Source) -> Vec<RealId> {
        let own = |real: &RealConfig| source.reals.contains(&real.address);
        let members = self.members();
        let weights = members.map(|(real, member)| match own(real) {
            // One that its health forbids has no weight, unless all of the VIP have none.
            true => (member.id, member.weight),
            false => (member.id, 0.0),
        });
        rings::of_members(&self.vip, weights, self.seed)
    }

    fn plain_source_ring(&self, source: &Source) -> Vec<RealId> {
        let reals = self.vip.reals.iter().zip(self.plain_weights());
        let weights =
            reals.map(
                |(real, (id, weight))| match source.reals.contains(&real.address) {
                    true => (id, weight),
                    false => (id, 0.0),
                },
            );
        rings::plain_of_members(&self.vip, weights)
    }

    /// Builds the rings that were set last once more.
    pub fn rings_set(&self) -> VipRings {
        let Some(built) = self.ring.built() else {
            return self.stale_rings();
        };
        let members = built.members.iter();
        let members = members.map(|member| (member.id, member.weight));
        let plain = rings::plain_of_vip(&self.vip, built.plain.iter().copied());
        VipRings {
            vip: self.id,
            ring: rings::of_vip(&self.vip, members, self.seed),
            plain: Some(plain),
        }
    }

    /// Notes that the data plane has the ring of the weights in force.
    pub fn ring_is_set(&mut self) {
        self.ring.is_set(self.wanted_ring());
    }

    /// Notes that it is unknown which ring the data plane has.
    pub fn ring_is_unknown(&mut self) {
        self.ring.is_unknown();
    }
}

/// Time in which a real of this VIP that returns gets its weight back.
fn slow_start_ns(vip: &VipConfig) -> u64 {
    match vip.scheduler.has_weights() {
        true => u64::try_from(vip.slow_start.as_nanos()).unwrap_or(u64::MAX),
        false => 0,
    }
}

/// Time in which one that is new gets its weight.
fn slow_start_of_new_ns(vip: &VipConfig) -> u64 {
    match vip.scheduler {
        Scheduler::LeastLoaded => slow_start_ns(vip),
        _ => 0,
    }
}

/// Whether a VIP's reals say which weights they should have.
pub(super) fn takes_weights(vip: &VipConfig) -> bool {
    vip.health.as_ref().is_some_and(|health| health.take_weight)
}

/// The weights that a VIP's reals are meant to have, if those at these places are fit: as
/// configured for the first role that has a fit real, and none for all others. If none is fit,
/// the fault may be the probes', and nothing is lost by trying: then that counts for none.
pub(crate) fn meant(vip: &VipConfig, is_fit: impl Fn(usize) -> bool) -> Vec<f64> {
    let reals = || vip.reals.iter().enumerate();
    let has = |role: RealRole, tried: bool| {
        reals().any(|(at, real)| {
            real.role == role && real.configured_weight() > 0.0 && (tried || is_fit(at))
        })
    };
    let find = |tried| RealRole::ORDER.into_iter().find(|role| has(*role, tried));
    let fit = find(false);
    let role = fit.or_else(|| find(true));
    let weight = |(at, real): (usize, &RealConfig)| {
        let gets = Some(real.role) == role && (fit.is_none() || is_fit(at));
        if gets { real.configured_weight() } else { 0.0 }
    };
    reals().map(weight).collect()
}

/// Whether a real gets new connections, or why not.
pub(crate) fn state(real: &RealConfig, member: &PoolMember) -> RealState {
    match (real.is_wanted(), member.fit) {
        (false, _) if real.maintenance => RealState::Maintenance,
        (false, _) => RealState::Drain,
        (true, true) if member.waits_for_probe() => RealState::Waiting,
        (true, true) if member.standby => RealState::Standby,
        (true, true) => RealState::Active,
        (true, false) => RealState::Down,
    }
}
