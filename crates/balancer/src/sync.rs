// SPDX-License-Identifier: Apache-2.0
//! Makes the data plane follow a configuration, or leaves it as it was.
//!
//! What is new is added beside what is there, rings are swapped, and only then
//! does the engine take the new state and remove what is gone. Until the swap
//! every step can be taken back, and the engine still holds all it has learnt.

use std::collections::{HashMap, HashSet};

use causeway_dataplane::{Forwarding, Real, RealId, Vip, VipId, VipOptions, VipRings};
use causeway_service::log_fault;
use tracing::warn;

use super::engine::Engine;
use super::next_hop::Way;
use super::plane::Ids;
use super::pool::{Pool, meant, takes_weights};
use super::real_counters::RealCounters;
use super::rings;
use super::state_dir::Down;
use crate::config::{
    Affinity, BalancerConfig, FlowLimitConfig, ForwardingMode, Fragments, RealConfig, RealRole,
    SharedVip, VipConfig,
};

/// VIPs whose rings are set at a time: those of 10,000 would take a gigabyte.
const RINGS_AT_A_TIME: usize = 256;

/// What a change has done to the data plane so far.
#[derive(Default)]
struct Done {
    way: bool,
    keys: bool,
    vips: Vec<VipId>,
    /// VIPs that were there, with the ids that their reals had.
    cookies: Vec<(VipId, Ids)>,
    /// VIPs whose options may be others, and how they pick.
    options: HashSet<VipId>,
    reals: Vec<RealId>,
    /// Reals that packets reached in another way, with that.
    ways: Vec<Real>,
    /// VIPs whose rings may have been swapped.
    rings: HashSet<VipId>,
    /// Those of client prefixes, too.
    sources: bool,
}

/// A state to come, of the VIPs that do not stay as they are.
struct Staged {
    pools: Vec<Pool>,
    counters: Vec<(RealId, RealCounters)>,
}

impl Engine {
    /// Takes `config` into force, or leaves everything as it was. With
    /// `resume_at`, weights are read off the rings of a daemon that ended.
    pub(super) fn sync(
        &mut self,
        config: BalancerConfig,
        resume_at: Option<u64>,
    ) -> anyhow::Result<()> {
        let resolver = self.plane.resolver();
        let former = resume_at.map(|_| self.plane.gateways()).transpose()?;
        let way = self.next_hops.find(&config, resolver.as_ref(), former)?;
        let mut done = Done::default();
        match self.stage(&config, way.as_ref(), resume_at, &mut done) {
            Ok(staged) => {
                self.commit(config, way, staged);
                self.finish();
                Ok(())
            }
            Err(error) => match self.take_back(done) {
                Ok(()) => Err(error),
                Err(undo) => {
                    self.may_hold_others = true;
                    Err(error.context(format!(
                        "and the former state could not be restored: {undo:#}"
                    )))
                }
            },
        }
    }

    /// The VIPs of `config` that stay as they are, with all that they go by.
    pub(super) fn unchanged(&self, config: &BalancerConfig) -> HashSet<Vip> {
        let same = config.control == self.config.control
            && config.law == self.config.law
            && config.cookies == self.config.cookies;
        if !same {
            return HashSet::new();
        }
        let running: HashMap<Vip, &Pool> = self
            .pools
            .iter()
            .map(|pool| (pool.vip().key(), pool))
            .collect();
        let stays = |vip: &&SharedVip| {
            let pool = running.get(&vip.key());
            pool.is_some_and(|pool| pool.shared_vip() == *vip)
        };
        let vips = config.vips.iter().filter(stays);
        vips.map(|vip| vip.key()).collect()
    }

    /// Does what follows a change that is in force, and can refuse it no more: what fails is
    /// logged, and tried again with each interval.
    pub(super) fn finish(&mut self) {
        type Step = fn(&mut Engine) -> anyhow::Result<()>;
        let steps: [(&str, Step); 3] = [
            ("loads are not counted yet", Self::begin_loads),
            ("a vip still has its former cookies", Self::end_cookies),
            ("what was removed is still there", Self::remove_others),
        ];
        let faults: Vec<String> = steps
            .into_iter()
            .filter_map(|(what, step)| {
                let error = step(self).err()?;
                Some(format!("{what}: {error:#}"))
            })
            .collect();
        let unfinished = (!faults.is_empty()).then(|| faults.join("; "));
        log_fault!(
            self.unfinished,
            unfinished,
            "the change is in force, but {}",
            "the last change is complete now"
        );
    }

    fn stage(
        &mut self,
        config: &BalancerConfig,
        way: Option<&Way>,
        resume_at: Option<u64>,
        done: &mut Done,
    ) -> anyhow::Result<Staged> {
        self.check_ids(config)?;
        // Probes that nothing encapsulates would come back, and all reals be down.
        if config.vips.iter().any(|vip| vip.health.is_some()) {
            self.plane.prepare_probes()?;
        }
        if let Some(way) = way {
            done.way = true;
            self.plane.set_next_hop(&way.next_hop)?;
        }
        done.keys = true;
        self.stage_cookie_keys(config)?;
        let unchanged = self.unchanged(config);
        let changed = config.vips.iter();
        let changed = changed.filter(|vip| !unchanged.contains(&vip.key()));
        // A VIP drops packets from when it is there until it has a ring. So the
        // rings of new ones are built first, and new ones come last.
        let (new, known): (Vec<&SharedVip>, Vec<&SharedVip>) =
            changed.partition(|vip| self.plane.vip_id(&vip.key()).is_none());
        let mut staged = Staged {
            pools: Vec::with_capacity(new.len() + known.len()),
            counters: Vec::new(),
        };
        let mut rings = Vec::new();
        for vips in known.chunks(RINGS_AT_A_TIME) {
            let pools = vips.iter().map(|vip| self.stage_pool(config, vip, done));
            let mut pools = pools.collect::<anyhow::Result<Vec<_>>>()?;
            if let Some(now_ns) = resume_at {
                self.resume(&mut pools, now_ns);
            }
            for (pool, _) in pools {
                if pool.ring_is_stale() {
                    rings.push(pool.stale_rings());
                }
                staged.pools.push(pool);
            }
            self.set_staged(&mut rings, RINGS_AT_A_TIME, done)?;
        }
        for vips in new.chunks(RINGS_AT_A_TIME) {
            let first_rings: Vec<_> = vips
                .iter()
                .map(|vip| rings::first(vip, &meant(vip, |_| true), self.seed))
                .collect();
            for (vip, of_indices) in vips.iter().zip(first_rings) {
                let (pool, _) = self.stage_pool(config, vip, done)?;
                let ids: Vec<RealId> = pool.members().map(|(_, member)| member.id).collect();
                let [ring, plain] = of_indices.map(|ring| {
                    let ring = ring.into_iter();
                    ring.map(|index| ids[index as usize]).collect()
                });
                rings.push(VipRings {
                    vip: pool.id(),
                    ring,
                    plain: Some(plain),
                });
                staged.pools.push(pool);
            }
            self.set_staged(&mut rings, RINGS_AT_A_TIME, done)?;
        }
        staged.counters = self.new_counters(config, &staged.pools, resume_at)?;
        self.set_staged(&mut rings, 1, done)?;
        done.sources = true;
        for pool in &mut staged.pools {
            self.plane.set_sources(pool.id(), &pool.source_rings())?;
            if done.rings.contains(&pool.id()) {
                pool.ring_is_set();
            }
        }
        Ok(staged)
    }

    /// Sets rings once there are so many.
    fn set_staged(
        &mut self,
        rings: &mut Vec<VipRings>,
        from: usize,
        done: &mut Done,
    ) -> anyhow::Result<()> {
        if rings.len() < from {
            return Ok(());
        }
        done.rings.extend(rings.iter().map(|rings| rings.vip));
        self.plane.set_rings(rings)?;
        rings.clear();
        Ok(())
    }

    /// A VIP with its reals in the data plane, and those of them that were there before.
    fn stage_pool(
        &mut self,
        config: &BalancerConfig,
        vip: &SharedVip,
        done: &mut Done,
    ) -> anyhow::Result<(Pool, HashSet<RealId>)> {
        let address = vip.key();
        let known = self.plane.vip_id(&address);
        let id = self.plane.set_vip(address)?;
        match known {
            Some(id) => done.cookies.push((id, self.plane.cookie_ids(id)?)),
            None => done.vips.push(id),
        }
        self.plane.set_vip_options(id, vip_options(vip))?;
        done.options.insert(id);
        let mut reals = Vec::with_capacity(vip.reals.len());
        let mut were_there = HashSet::new();
        for real in &vip.reals {
            let wanted = real_spec(id, vip.forwarding, real);
            let before = self.plane.real_at(id, wanted.address);
            let real = self.plane.set_real(wanted)?;
            match before {
                None => done.reals.push(real),
                Some((_, before)) => {
                    were_there.insert(real);
                    if before != wanted {
                        done.ways.push(before);
                    }
                }
            }
            reals.push(real);
        }
        self.stage_cookies(config, vip, id, &reals)?;
        let same = |pool: &&Pool| pool.id() == id && pool.vip().key() == address;
        let former = self.pools.iter().find(same);
        let rules = (&config.control, config.law);
        let pool = Pool::new(vip.clone(), id, &reals, rules, former, self.seed);
        self.plane.set_picking(id, pool.picking())?;
        Ok((pool, were_there))
    }

    /// Goes on where a daemon that ended was: with the weights of its rings, and without the
    /// reals that it had out of them. Of each pool it says which reals were there.
    fn resume(&mut self, pools: &mut [(Pool, HashSet<RealId>)], now_ns: u64) {
        let ids: Vec<VipId> = pools.iter().map(|(pool, _)| pool.id()).collect();
        let rings = self.plane.rings(&ids).unwrap_or_else(|error| {
            let names = pools.iter().map(|(pool, _)| pool.vip().name.as_str());
            warn!(
                "the rings of {} are not read: their weights are learnt again, and a real that was down gets connections until its probes fail: {error:#}",
                names.collect::<Vec<_>>().join(", ")
            );
            vec![Vec::new(); ids.len()]
        });
        for ((pool, were_there), ring) in pools.iter_mut().zip(rings) {
            self.resume_with(pool, now_ns, were_there, &ring);
        }
    }

    fn resume_with(
        &mut self,
        pool: &mut Pool,
        now_ns: u64,
        were_there: &HashSet<RealId>,
        ring: &[RealId],
    ) {
        let in_ring: HashSet<RealId> = ring.iter().copied().collect();
        let out = self.were_out(pool, &in_ring, were_there);
        pool.set_unfit(&out, |_| true);
        if !ring.is_empty() {
            // One that has said 0 gets nothing before it says something else.
            let asks = takes_weights(pool.vip());
            pool.let_wait(|id| !were_there.contains(&id) || asks && !in_ring.contains(&id));
        }
        self.begin_down.extend(out);
        let asks = takes_weights(pool.vip());
        if asks && pool.ring_has_all() && !ring.is_empty() {
            pool.resume_told(ring);
        }
        if pool.follows_latency() && !ring.is_empty() {
            // What is said cannot be told from what latency has made of it.
            if !asks {
                pool.resume(now_ns, ring);
            }
            let interval_ns = self.config.control.interval_ns;
            pool.visits.look_on(now_ns, interval_ns);
        }
    }

    /// Reals that are probed, could be in the ring, and were not; or of which it is known
    /// that they were down. If all reals were down, the ring had all, and shows nothing. Nor does it
    /// where reals say their weights: one that is up may have said 0.
    fn were_out(
        &self,
        pool: &Pool,
        in_ring: &HashSet<RealId>,
        were_there: &HashSet<RealId>,
    ) -> HashSet<RealId> {
        let vip = pool.vip();
        if vip.health.is_none() {
            return HashSet::new();
        }
        let ring_tells = pool.ring_has_all() && !in_ring.is_empty() && !takes_weights(vip);
        // Only reals of one role were in it, and those that would have come before were down.
        let role_in_ring = RealRole::ORDER.into_iter().position(|role| {
            let mut members = pool.members();
            members.any(|(real, member)| real.role == role && in_ring.contains(&member.id))
        });
        let could_be = |role: RealRole| {
            let rank = RealRole::ORDER.iter().position(|known| *known == role);
            role != RealRole::Sorry && rank <= role_in_ring
        };
        let members = pool.members().filter(|(real, member)| {
            let was_there = were_there.contains(&member.id);
            let takes_part =
                real.configured_weight() > 0.0 && !vip.is_reserved(real) && could_be(real.role);
            let known_down = || {
                self.former_down.contains(&Down {
                    vip: vip.endpoint(),
                    real: real.address,
                })
            };
            let left_out = ring_tells && takes_part && !in_ring.contains(&member.id);
            was_there && !real.maintenance && (left_out || known_down())
        });
        members.map(|(_, member)| member.id).collect()
    }

    /// Counters of the reals of these VIPs that have none yet. With many reals, those of VIPs to
    /// which no packet has come get theirs with the first.
    fn new_counters(
        &self,
        config: &BalancerConfig,
        pools: &[Pool],
        begun_ns: Option<u64>,
    ) -> anyhow::Result<Vec<(RealId, RealCounters)>> {
        let reals = config.vips.iter().map(|vip| vip.reals.len()).sum();
        let all = self.turns.are_few(reals);
        let totals = match all || pools.is_empty() {
            true => Vec::new(),
            false => self.plane.vip_totals()?,
        };
        let has_packets = |pool: &Pool| {
            let at = totals.binary_search_by_key(&pool.id(), |(id, _)| *id);
            at.is_ok_and(|at| totals[at].1.packets > 0)
        };
        let counted = pools.iter().filter(|pool| all || has_packets(pool));
        let new = real_ids(counted).filter(|id| self.counters.get(*id).is_none());
        let new: Vec<RealId> = new.collect();
        let age = self.plane.age();
        let totals = self.plane.real_stats(&new)?.into_iter();
        totals
            .map(|(id, totals)| {
                let counters = RealCounters::new(totals, self.plane.histogram(id)?, age);
                let counters = counters.begun_at(begun_ns);
                Ok((id, counters.sampled(self.plane.sampling(id)?)))
            })
            .collect()
    }

    /// Takes the new state; nothing here can fail.
    fn commit(&mut self, config: BalancerConfig, way: Option<Way>, staged: Staged) {
        if config.reconcile != self.config.reconcile {
            self.may_hold_others = true;
        }
        let by_key = |pool: Pool| (pool.vip().key(), pool);
        let mut former: HashMap<Vip, Pool> = std::mem::take(&mut self.pools)
            .into_iter()
            .map(by_key)
            .collect();
        let mut staged_pools: HashMap<Vip, Pool> = staged.pools.into_iter().map(by_key).collect();
        for vip in &config.vips {
            let address = vip.key();
            self.gone.remove(&address);
            let before = former.remove(&address);
            let Some(mut pool) = staged_pools.remove(&address) else {
                self.pools.extend(before);
                continue;
            };
            if let Some(before) = before {
                self.gone_reals.extend(real_ids([&before]));
                pool.take_history(before);
            }
            for id in real_ids([&pool]) {
                self.gone_reals.remove(&id);
            }
            self.pools.push(pool);
        }
        for id in real_ids(former.values()).chain(self.gone_reals.iter().copied()) {
            self.counters.remove(id);
            // The next real may have the id before anybody asks whom to probe.
            self.checks.remove(&id);
            self.silences.remove(&id);
            self.begin_down.remove(&id);
            self.peers.forget(id);
        }
        self.gone.extend(former.into_keys());
        for (id, counters) in staged.counters {
            self.counters.insert(id, counters);
        }
        self.reals = config.vips.iter().map(|vip| vip.reals.len()).sum();
        let reports = config.agent_reports.as_ref();
        self.reports
            .set_keys(reports.map(|reports| reports.keys.clone()));
        self.peers.follow(config.peers.as_ref());
        self.config = config;
        if let Some(way) = way {
            self.next_hops.set_way(way);
        }
    }

    /// Takes back what a refused change has done. What it changed and cannot
    /// restore, the next intervals try again.
    fn take_back(&mut self, done: Done) -> anyhow::Result<()> {
        if let Some(way) = self.next_hops.way().filter(|_| done.way) {
            self.plane.set_next_hop(&way.next_hop)?;
        }
        if done.keys {
            self.stage_cookie_keys(&self.config.clone())?;
        }
        for real in done.ways {
            self.plane.set_real(real)?;
        }
        self.restore_cookies(&done.cookies)?;
        for pool in &self.pools {
            if done.options.contains(&pool.id()) {
                let options = vip_options(pool.vip());
                self.plane.set_vip_options(pool.id(), options)?;
                self.plane.set_picking(pool.id(), pool.picking())?;
            }
        }
        let swapped = self
            .pools
            .iter_mut()
            .filter(|pool| done.rings.contains(&pool.id()));
        let mut former: Vec<&mut Pool> = swapped.collect();
        let rings: Vec<_> = former.iter().map(|pool| pool.rings_set()).collect();
        let set = match rings.is_empty() {
            true => Ok(()),
            false => self.plane.set_rings(&rings),
        };
        if let Err(error) = set {
            former.iter_mut().for_each(|pool| pool.ring_is_unknown());
            return Err(error);
        }
        let changed = |pool: &&Pool| done.sources && done.options.contains(&pool.id());
        for pool in self.pools.iter().filter(changed) {
            self.plane.set_sources(pool.id(), &pool.source_rings())?;
        }
        for id in &done.vips {
            self.plane.remove_vip(*id)?;
        }
        let left: HashSet<RealId> = self.plane.reals()?.into_iter().map(|(id, _)| id).collect();
        for id in done.reals.into_iter().filter(|id| left.contains(id)) {
            self.plane.remove_real(id)?;
        }
        Ok(())
    }

    /// Removes the VIPs and reals that are gone.
    fn remove_others(&mut self) -> anyhow::Result<()> {
        if self.may_hold_others {
            self.find_others()?;
            self.may_hold_others = false;
        }
        for vip in self.gone.iter().copied().collect::<Vec<_>>() {
            if let Some(id) = self.plane.vip_id(&vip) {
                self.plane.remove_vip(id)?;
            }
            self.gone.remove(&vip);
            // Its reals went with it.
            if !self.gone_reals.is_empty() {
                let left: HashSet<RealId> =
                    self.plane.reals()?.into_iter().map(|(id, _)| id).collect();
                self.gone_reals.retain(|id| left.contains(id));
            }
        }
        for id in self.gone_reals.iter().copied().collect::<Vec<_>>() {
            self.plane.remove_real(id)?;
            self.gone_reals.remove(&id);
        }
        Ok(())
    }

    /// Finds the reals that our VIPs no longer have and, when the file is to be the whole truth,
    /// every VIP that it does not name.
    fn find_others(&mut self) -> anyhow::Result<()> {
        if self.config.reconcile {
            let wanted: HashSet<Vip> = self.config.vips.iter().map(|vip| vip.key()).collect();
            let present = self.plane.vips()?.into_iter().map(|(_, vip)| vip);
            self.gone
                .extend(present.filter(|vip| !wanted.contains(vip)));
        }
        let ours: HashSet<VipId> = self.pools.iter().map(Pool::id).collect();
        let used: HashSet<RealId> = real_ids(&self.pools).collect();
        let present = self.plane.reals()?.into_iter();
        let others = present.filter(|(id, real)| ours.contains(&real.vip) && !used.contains(id));
        self.gone_reals = others.map(|(id, _)| id).collect();
        Ok(())
    }
}

/// The reals of these pools.
pub(super) fn real_ids<'p>(
    pools: impl IntoIterator<Item = &'p Pool>,
) -> impl Iterator<Item = RealId> {
    let members = pools.into_iter().flat_map(Pool::members);
    members.map(|(_, member)| member.id)
}

fn vip_options(vip: &VipConfig) -> VipOptions {
    VipOptions {
        fragments: vip.fragments == Fragments::Forward,
        by_address: vip.fragments != Fragments::Forward && vip.affinity == Affinity::Client,
        stateful: vip.stateful,
        limit: vip.limit.and_then(FlowLimitConfig::in_force),
        second_chance: vip.second_chance,
    }
}

fn real_spec(vip: VipId, forwarding: ForwardingMode, real: &RealConfig) -> Real {
    Real {
        vip,
        address: real.address,
        forwarding: match (forwarding, real.mac) {
            (ForwardingMode::Gue, _) => Forwarding::Gue,
            (_, Some(mac)) => Forwarding::L2(mac.0),
            (_, None) => Forwarding::Ipip,
        },
    }
}
