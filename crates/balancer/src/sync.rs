// SPDX-License-Identifier: Apache-2.0
//! Makes the data plane follow a configuration, or leaves it as it was.
//!
//! What is new is added beside what is there, rings are swapped, and only then
//! does the engine take the new state and remove what is gone. Until the swap
//! every step can be taken back, and the engine still holds all it has learnt.

use std::collections::{HashMap, HashSet};

use causeway_dataplane::{Forwarding, Real, RealId, Vip, VipId, VipOptions, VipRings};
use causeway_netio::NextHop;
use tracing::{info, warn};

use super::cookies::Ids;
use super::engine::{Engine, GATEWAY_PATIENCE};
use super::plane::Route;
use super::pool::{Pool, configured};
use super::real_counters::RealCounters;
use super::rings;
use super::state_dir::Down;
use crate::config::{
    Affinity, BalancerConfig, FlowLimitConfig, ForwardingMode, Fragments, RealConfig, RealRole,
    VipConfig,
};

/// The way to the reals in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// What was wanted.
    pub route: Route,
    /// What was found for it.
    pub next_hop: NextHop,
}

/// What a change has done to the data plane so far.
#[derive(Default)]
struct Done {
    way: bool,
    keys: bool,
    vips: Vec<VipId>,
    /// VIPs that were there, with the ids that their reals had.
    cookies: Vec<(VipId, Ids)>,
    /// VIPs whose options may be others.
    options: Vec<VipId>,
    reals: Vec<RealId>,
    /// Reals that packets reached in another way, with that.
    ways: Vec<Real>,
    /// VIPs that were there and may pick otherwise now.
    picking: bool,
    /// VIPs whose rings may have been swapped.
    rings: Vec<VipId>,
    /// Rings of client prefixes, too.
    sources: bool,
}

/// A state to come.
struct Staged {
    pools: Vec<Pool>,
    counters: HashMap<RealId, RealCounters>,
}

/// What the data plane holds before a change.
struct Present {
    vips: HashMap<Vip, VipId>,
    reals: HashMap<(VipId, std::net::IpAddr), (RealId, Real)>,
}

impl Engine {
    /// Takes `config` into force, or leaves everything as it was. With
    /// `resume_at`, weights are read off the rings of a daemon that ended.
    pub(super) fn sync(
        &mut self,
        config: BalancerConfig,
        resume_at: Option<u64>,
    ) -> anyhow::Result<()> {
        let way = self.find_way(&config)?;
        let mut done = Done::default();
        match self.stage(&config, way.as_ref(), resume_at, &mut done) {
            Ok(staged) => {
                self.commit(config, way, staged);
                self.finish();
                Ok(())
            }
            Err(error) => match self.take_back(done) {
                Ok(()) => Err(error),
                Err(undo) => Err(error.context(format!(
                    "and the former state could not be restored: {undo:#}"
                ))),
            },
        }
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
        if unfinished != self.unfinished {
            match &unfinished {
                Some(faults) => warn!("the change is in force, but {faults}"),
                None => info!("the last change is complete now"),
            }
        }
        self.unfinished = unfinished;
    }

    /// The way for `config`, if it is another than that in force.
    fn find_way(&mut self, config: &BalancerConfig) -> anyhow::Result<Option<Way>> {
        let route = Route::of(config);
        if self.way.as_ref().is_some_and(|way| way.route == route) {
            return Ok(None);
        }
        if let Some(way) = self.offered.take_if(|way| way.route == route) {
            return Ok(Some(way));
        }
        let reals = config.encapsulated_reals();
        let resolver = self.plane.resolver();
        let next_hop = resolver.look(&route, &reals, GATEWAY_PATIENCE)?.next_hop?;
        Ok(Some(Way { route, next_hop }))
    }

    fn stage(
        &mut self,
        config: &BalancerConfig,
        way: Option<&Way>,
        resume_at: Option<u64>,
        done: &mut Done,
    ) -> anyhow::Result<Staged> {
        let present = self.present()?;
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
        let mut pools = Vec::with_capacity(config.vips.len());
        let mut rings = Vec::new();
        // A VIP drops packets from when it is there until it has a ring. So the
        // rings of new ones are built first, and new ones come last.
        let is_new = |vip: &&VipConfig| !present.vips.contains_key(&vip.key());
        let first_rings: Vec<_> = config
            .vips
            .iter()
            .filter(is_new)
            .map(|vip| rings::first(vip, self.seed))
            .collect();
        for vip in config.vips.iter().filter(|vip| !is_new(vip)) {
            let mut pool = self.stage_pool(config, vip, &present, done)?;
            if let Some(now_ns) = resume_at {
                self.resume(&mut pool, now_ns, &present);
            }
            if pool.ring_is_stale() {
                rings.push(pool.stale_rings());
            }
            pools.push(pool);
        }
        for (vip, of_indices) in config.vips.iter().filter(is_new).zip(first_rings) {
            let pool = self.stage_pool(config, vip, &present, done)?;
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
            pools.push(pool);
        }
        let counters = self.new_counters(&pools)?;
        if !rings.is_empty() {
            done.rings = rings.iter().map(|rings| rings.vip).collect();
            self.plane.set_rings(&rings)?;
        }
        done.sources = true;
        for pool in &mut pools {
            self.plane.set_sources(pool.id(), &pool.source_rings())?;
            if done.rings.contains(&pool.id()) {
                pool.ring_is_set();
            }
        }
        let order: HashMap<Vip, usize> = config.vips.iter().map(VipConfig::key).zip(0..).collect();
        pools.sort_by_key(|pool| order.get(&pool.vip().key()).copied());
        Ok(Staged { pools, counters })
    }

    fn present(&self) -> anyhow::Result<Present> {
        let vips = self.plane.vips()?.into_iter();
        let reals = self.plane.reals()?.into_iter();
        Ok(Present {
            vips: vips.map(|(id, vip)| (vip, id)).collect(),
            reals: reals
                .map(|(id, real)| ((real.vip, real.address), (id, real)))
                .collect(),
        })
    }

    fn stage_pool(
        &mut self,
        config: &BalancerConfig,
        vip: &VipConfig,
        present: &Present,
        done: &mut Done,
    ) -> anyhow::Result<Pool> {
        let address = vip.key();
        let id = self.plane.set_vip(address)?;
        match present.vips.contains_key(&address) {
            true => done.cookies.push((id, self.plane.cookie_ids(id)?)),
            false => done.vips.push(id),
        }
        self.plane.set_vip_options(id, vip_options(vip))?;
        done.options.push(id);
        let mut reals = Vec::with_capacity(vip.reals.len());
        for real in &vip.reals {
            let wanted = real_spec(id, vip.forwarding, real);
            let real = self.plane.set_real(wanted)?;
            match present.reals.get(&(id, wanted.address)) {
                None => done.reals.push(real),
                Some((_, before)) if *before != wanted => done.ways.push(*before),
                Some(_) => {}
            }
            reals.push(real);
        }
        self.stage_cookies(config, vip, id, &reals)?;
        let same = |pool: &&Pool| pool.vip().key() == address;
        let former = self.pools.iter().find(same);
        let rules = (&config.control, config.law);
        let pool = Pool::new(vip.clone(), id, &reals, rules, former, self.seed);
        done.picking = true;
        self.plane.set_picking(id, pool.picking())?;
        Ok(pool)
    }

    /// Goes on where a daemon that ended was: with the weights of its ring, and without the
    /// reals that it had out of it.
    fn resume(&mut self, pool: &mut Pool, now_ns: u64, present: &Present) {
        let ring = match self.plane.ring(pool.id()) {
            Ok(ring) => ring,
            Err(error) => {
                let name = &pool.vip().name;
                warn!(
                    "the ring of {name} is not read: its weights are learnt again, and a real that was down gets connections until its probes fail: {error:#}"
                );
                Vec::new()
            }
        };
        let out = self.were_out(pool, &ring, present);
        pool.set_unfit(&out);
        self.begin_down.extend(out);
        if pool.follows_latency() && !ring.is_empty() {
            pool.resume(now_ns, &ring);
        }
    }

    /// Reals that are probed, could be in the ring, and were not; or of which it is known
    /// that they were down. If all reals were down, the ring had all, and shows nothing.
    fn were_out(&self, pool: &Pool, ring: &[RealId], present: &Present) -> HashSet<RealId> {
        let vip = pool.vip();
        if vip.health.is_none() {
            return HashSet::new();
        }
        let in_ring: HashSet<RealId> = ring.iter().copied().collect();
        let ring_tells = pool.ring_has_all() && !ring.is_empty();
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
            let was_there = present.reals.contains_key(&(pool.id(), real.address));
            let takes_part =
                configured(real) > 0.0 && !vip.is_reserved(real) && could_be(real.role);
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

    /// Counters of the reals that have none yet.
    fn new_counters(&self, pools: &[Pool]) -> anyhow::Result<HashMap<RealId, RealCounters>> {
        let totals: HashMap<_, _> = self.plane.real_stats()?.into_iter().collect();
        let former: HashSet<RealId> = real_ids(&self.pools).collect();
        let age = self.plane.age();
        real_ids(pools)
            .filter(|id| !former.contains(id))
            .map(|id| {
                let totals = totals.get(&id).copied().unwrap_or_default();
                let counters = RealCounters::new(totals, self.plane.histogram(id)?, age);
                Ok((id, counters.sampled(self.plane.sampling(id)?)))
            })
            .collect()
    }

    /// Takes the new state; nothing here can fail.
    fn commit(&mut self, config: BalancerConfig, way: Option<Way>, mut staged: Staged) {
        let mut former: HashMap<Vip, Pool> = std::mem::take(&mut self.pools)
            .into_iter()
            .map(|pool| (pool.vip().key(), pool))
            .collect();
        for pool in &mut staged.pools {
            let address = pool.vip().key();
            self.gone.remove(&address);
            if let Some(former) = former.remove(&address) {
                pool.take_history(former);
            }
        }
        self.gone.extend(former.into_keys());
        self.counters.extend(staged.counters);
        let used: HashSet<RealId> = real_ids(&staged.pools).collect();
        self.counters.retain(|id, _| used.contains(id));
        self.pools = staged.pools;
        let reports = config.agent_reports.as_ref();
        self.reports
            .set_keys(reports.map(|reports| reports.keys.clone()));
        self.peers.follow(config.peers.as_ref());
        self.config = config;
        if let Some(way) = way {
            self.way = Some(way);
        }
    }

    /// Takes back what a refused change has done. What it changed and cannot
    /// restore, the next intervals try again.
    fn take_back(&mut self, done: Done) -> anyhow::Result<()> {
        if let Some(way) = self.way.as_ref().filter(|_| done.way) {
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
            }
        }
        for pool in self.pools.iter().filter(|_| done.picking) {
            self.plane.set_picking(pool.id(), pool.picking())?;
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
        for pool in self.pools.iter().filter(|_| done.sources) {
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

    /// Removes the VIPs that are gone, the reals that our VIPs no longer have and,
    /// when the file is to be the whole truth, every VIP that it does not name.
    fn remove_others(&mut self) -> anyhow::Result<()> {
        let wanted: HashSet<Vip> = self.config.vips.iter().map(VipConfig::key).collect();
        for (id, vip) in self.plane.vips()? {
            if self.gone.contains(&vip) || (self.config.reconcile && !wanted.contains(&vip)) {
                self.plane.remove_vip(id)?;
            }
        }
        self.gone.clear();
        let ours: HashSet<VipId> = self.pools.iter().map(Pool::id).collect();
        let used: HashSet<RealId> = real_ids(&self.pools).collect();
        for (id, real) in self.plane.reals()? {
            if ours.contains(&real.vip) && !used.contains(&id) {
                self.plane.remove_real(id)?;
            }
        }
        Ok(())
    }
}

/// The reals of these pools.
pub(super) fn real_ids(pools: &[Pool]) -> impl Iterator<Item = RealId> {
    let members = pools.iter().flat_map(Pool::members);
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
