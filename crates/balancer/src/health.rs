// SPDX-License-Identifier: Apache-2.0
//! The reals' health in the engine: one check a real, whose verdict takes it out of
//! the ring or back into it.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use causeway_core::health::{Check, HealthState, Silence, SilenceCounts};
use causeway_dataplane::RealId;
use tracing::{info, warn};

use super::engine::Engine;
use super::loads;
use super::pool::Pool;
use crate::config::{Health, ProbeConfig, ProbeTo, Protocol, RealConfig};

/// Clients have at least so long to send something.
const WINDOW_MIN_NS: u64 = 2_000_000_000;

/// How long clients that connected are waited for.
fn window_ns(health: &Health) -> u64 {
    health.params.interval_ns.max(WINDOW_MIN_NS)
}

/// A probe to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeOrder {
    /// The real whose packets it is.
    pub real: RealId,
    /// Its number, for the outcome.
    pub number: u64,
    /// When it is too late, CLOCK_MONOTONIC.
    pub deadline_ns: u64,
    /// What it talks to: the VIP, or the real itself.
    pub target: SocketAddr,
    /// Which of both.
    pub to: ProbeTo,
    /// The VIP's.
    pub protocol: Protocol,
    /// The real's.
    pub address: IpAddr,
    /// What to do.
    pub probe: ProbeConfig,
}

impl Engine {
    /// Ends what is overdue at `now_ns` and gives the probes to send now, and when to
    /// ask again.
    pub fn poll_health(&mut self, now_ns: u64) -> (Vec<ProbeOrder>, u64) {
        self.follow_pools(now_ns);
        let mut orders = Vec::new();
        let mut next_ns = u64::MAX;
        for pool in &self.pools {
            let Some(health) = &pool.vip().health else {
                continue;
            };
            for (real, member) in pool.members() {
                let Some(check) = self.checks.get_mut(&member.id) else {
                    continue;
                };
                check.handle_timeout(now_ns);
                // A weight is told to who asks: each balancer does.
                let probes = health.take_weight || self.peers.probes(member.id, check.state());
                if let Some(counters) = self.counters.get(member.id).filter(|_| health.passive) {
                    let window_ns = window_ns(health);
                    let totals = counters.totals();
                    let counts = SilenceCounts {
                        // Requests of others are not seen.
                        opened: totals.conns_measured,
                        requests: totals.requests_seen,
                    };
                    let silence = self.silences.entry(member.id);
                    let silence =
                        silence.or_insert_with(|| Silence::new(now_ns, window_ns, counts));
                    if let Some(opened) = silence.handle_counts(now_ns, counts) {
                        let reason = format!("{opened} clients connected and none sent anything");
                        check.handle_passive(now_ns, window_ns, &reason);
                    }
                }
                if !probes {
                    continue;
                }
                if let Some(probe) = check.poll_probe(now_ns) {
                    let address = match health.to {
                        ProbeTo::Vip => pool.vip().address,
                        ProbeTo::Real => real.address,
                    };
                    orders.push(ProbeOrder {
                        real: member.id,
                        number: probe.number,
                        deadline_ns: probe.deadline_ns,
                        target: SocketAddr::new(address, health.port),
                        to: health.to,
                        protocol: pool.vip().protocol,
                        address: real.address,
                        probe: health.probe.clone(),
                    });
                }
                next_ns = next_ns.min(check.poll_timeout());
            }
        }
        self.apply_health();
        (orders, next_ns)
    }

    /// Takes the outcome of a probe.
    pub fn health_outcome(
        &mut self,
        now_ns: u64,
        real: RealId,
        number: u64,
        outcome: Result<String, String>,
    ) {
        let Some(check) = self.checks.get_mut(&real) else {
            return;
        };
        let before = (check.state(), check.waits());
        check.handle_outcome(now_ns, number, outcome);
        if (check.state(), check.waits()) == before {
            return;
        }
        let has_it = |pool: &Pool| pool.members().any(|(_, member)| member.id == real);
        if let Some(at) = self.pools.iter().position(has_it)
            && self.judge_members(at..at + 1)
        {
            self.set_down();
            self.follow_health();
        }
    }

    /// Takes that a probe could not be sent, and why: this host is to blame, and not the real.
    pub fn probe_unsent(&mut self, real: RealId, number: u64, reason: &str) {
        if let Some(check) = self.checks.get_mut(&real) {
            check.handle_unsent(number, reason);
        }
    }

    /// Takes the weight that a real's answer says, if its VIP goes by that.
    pub fn handle_weight(&mut self, real: RealId, told: Option<u32>) {
        let mut pools = self.pools.iter_mut();
        let Some(pool) = pools.find_map(|pool| pool.set_told(real, told).then_some(pool)) else {
            return;
        };
        if pool.counts_connections()
            && let Err(error) = loads::weigh_connections(self.plane.as_mut(), pool)
        {
            warn!("the loads do not follow the weights that reals say yet: {error:#}");
        }
        if let Err(error) = self.set_rings() {
            warn!("the rings do not follow the weights that reals say yet: {error:#}");
        }
    }

    /// The check of a real, if it has one.
    pub fn check(&self, real: RealId) -> Option<&Check> {
        self.checks.get(&real)
    }

    /// The state of a real that is probed: by its check here, and by the other balancers' vote.
    pub fn health(&self, real: RealId) -> Option<HealthState> {
        let check = self.checks.get(&real)?;
        Some(self.peers.decide(real, check.state()))
    }

    /// Reals of a pool that are up for certain, or all that could be where nothing is
    /// probed.
    pub fn reals_up(&self, pool: &Pool) -> usize {
        if pool.vip().health.is_none() {
            return pool.counted();
        }
        let is_up = |id| self.health(id) == Some(HealthState::Up);
        let members = pool.members().filter(|(real, _)| real.is_counted());
        members.filter(|(_, member)| is_up(member.id)).count()
    }

    /// Reals of a pool that are wanted and probed, and of which nothing is known yet.
    pub fn reals_unknown(&self, pool: &Pool) -> usize {
        if pool.vip().health.is_none() {
            return 0;
        }
        let is_unknown = |id| {
            let state = self.health(id);
            state.is_none_or(|state| state == HealthState::Unknown)
        };
        let members = pool.members().filter(|(real, _)| real.is_counted());
        members.filter(|(_, member)| is_unknown(member.id)).count()
    }

    /// The check of a real: also of one that is to be probed, before the prober has asked.
    pub(super) fn check_of(&self, health: &Health, id: RealId) -> Cow<'_, Check> {
        if let Some(check) = self.check(id) {
            return Cow::Borrowed(check);
        }
        let tick = self.last_tick().map(|now| now.monotonic_ns);
        let now_ns = tick.unwrap_or_else(causeway_netio::monotonic_ns);
        let begins_down = self.begin_down.contains(&id);
        Cow::Owned(first_check(health, now_ns, id, begins_down))
    }

    /// Has a check for every real that is to be probed, and for no other.
    fn follow_pools(&mut self, now_ns: u64) {
        let mut wanted: HashMap<RealId, &Health> = HashMap::new();
        let mut waiting = HashSet::new();
        for pool in &self.pools {
            if let Some(health) = &pool.vip().health {
                let members = pool.members().filter(|(real, _)| real.is_probed());
                for (_, member) in members {
                    wanted.insert(member.id, health);
                    waiting.extend(member.waits.then_some(member.id));
                }
            }
        }
        self.checks.retain(|id, _| wanted.contains_key(id));
        // A changed window starts again, as does what was not watched for a while.
        self.silences.retain(|id, silence| {
            wanted
                .get(id)
                .is_some_and(|health| health.passive && window_ns(health) == silence.window_ns())
        });
        for (id, health) in wanted {
            let begins_down = self.begin_down.remove(&id);
            self.checks
                .entry(id)
                .and_modify(|check| check.set_params(health.params, now_ns))
                .or_insert_with(|| {
                    let check = first_check(health, now_ns, id, begins_down);
                    match !begins_down && waiting.contains(&id) {
                        true => check.waiting(now_ns),
                        false => check,
                    }
                });
        }
    }

    /// Passes to the pools which members are fit, and logs what has changed. Rings
    /// follow at once; if that fails, with the next interval.
    pub(super) fn apply_health(&mut self) {
        let changed = self.judge_members(0..self.pools.len());
        self.set_down();
        if changed {
            self.follow_health();
        }
    }

    /// The first step of that, for some pools: with many reals it takes long. Whether members are fit now
    /// that were not, or the other way round.
    fn judge_members(&mut self, pools: Range<usize>) -> bool {
        self.peers
            .tell_votes(&self.pools[pools.clone()], &self.checks);
        let mut changed = false;
        for pool in &mut self.pools[pools] {
            if pool.vip().health.is_none() && pool.all_fit() {
                continue;
            }
            let mut unfit = HashSet::new();
            for (real, member) in pool.members() {
                let Some(check) = self.checks.get_mut(&member.id) else {
                    continue;
                };
                while let Some(event) = check.poll_event() {
                    let line = format!(
                        "{} {}: {} -> {}: {}",
                        pool.vip().name,
                        real.address,
                        event.from,
                        event.to,
                        event.reason
                    );
                    match event.to {
                        HealthState::Down => warn!("{line}"),
                        _ => info!("{line}"),
                    }
                }
                if self.peers.decide(member.id, check.state()) == HealthState::Down {
                    unfit.insert(member.id);
                }
            }
            let (checks, peers) = (&self.checks, &self.peers);
            let waits = |id: RealId| {
                let unknown = |check: &Check| {
                    check.waits() && peers.decide(id, check.state()) == HealthState::Unknown
                };
                checks.get(&id).is_none_or(unknown)
            };
            if !pool.set_unfit(&unfit, waits) {
                continue;
            }
            changed = true;
            if pool.counts_connections()
                && let Err(error) = loads::weigh_connections(self.plane.as_mut(), pool)
            {
                warn!("the loads do not follow the reals' health yet: {error:#}");
            }
        }
        changed
    }

    fn set_down(&mut self) {
        if let Err(error) = self.plane.set_down(&down_beside_others(&self.pools)) {
            warn!("SYNs that are sent again still go to reals that are down: {error:#}");
        }
    }

    fn follow_health(&mut self) {
        if let Err(error) = self.set_rings() {
            warn!("the rings do not follow the reals' health yet: {error:#}");
        }
    }
}

/// What is known of a real before it is probed.
fn first_check(health: &Health, now_ns: u64, id: RealId, begins_down: bool) -> Check {
    let check = Check::new(health.params, now_ns, u64::from(id));
    match begins_down {
        true => check.beginning_down("out of the ring when the daemon started"),
        false => check,
    }
}

/// Whether a pool has a real that is not down and takes what those leave that are. Where none does,
/// all are tried.
pub(super) fn serves(pool: &Pool) -> bool {
    let takes = |real: &RealConfig| real.configured_weight() > 0.0 && !pool.vip().is_reserved(real);
    let mut members = pool.members();
    members.any(|(real, member)| member.fit && takes(real))
}

/// The reals that are down while others of their VIPs get new connections.
fn down_beside_others(pools: &[Pool]) -> HashSet<RealId> {
    let pools = pools.iter();
    let pools = pools.filter(|pool| !pool.all_fit() && serves(pool));
    let down = pools.flat_map(Pool::members).filter(|(_, of)| !of.fit);
    down.map(|(_, member)| member.id).collect()
}
