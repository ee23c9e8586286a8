// SPDX-License-Identifier: Apache-2.0
//! One VIP at work: its reals, its controller, its ring.

use std::collections::{HashMap, VecDeque};

use causeway_core::control::{Decision, Member, Params, Reading, Watermark};
use causeway_core::select::{self, RealKey, RingSize};

use super::plane::{RealId, VipId};
use super::view::Epoch;
use crate::config::{Control, Real, Scheduler, Vip};

/// Rings take whole numbers: one unit of configured weight is this many.
const RING_UNIT: f64 = 1000.0;
/// A ring is built anew when a weight is further from the one it was built
/// with, relative to the configured weight.
const RING_TOLERANCE: f64 = 0.01;

/// A VIP in the data plane.
#[derive(Debug)]
pub struct Pool {
    vip: Vip,
    id: VipId,
    members: Vec<PoolMember>,
    controller: Option<Watermark>,
    decision: Option<Decision>,
}

/// A real of a pool.
#[derive(Debug)]
pub struct PoolMember {
    /// Index in the data plane.
    pub id: RealId,
    /// Weight in force.
    pub weight: f64,
    /// Weight that the ring was built with; `None` before the first ring.
    in_ring: Option<f64>,
    /// What happened, oldest epoch first.
    pub history: VecDeque<Epoch>,
}

impl Pool {
    /// A pool of `vip`, whose reals have these ids, in the same order. `old` is
    /// the pool that it replaces: measurements and weights carry over.
    pub fn new(vip: Vip, id: VipId, reals: &[RealId], params: &Params, old: Option<Self>) -> Self {
        // The same reals under the same scheduler keep their ring as it is.
        let same_ring = old.as_ref().is_some_and(|old| {
            let ids = old.members.iter().map(|member| member.id);
            old.vip.scheduler == vip.scheduler && ids.eq(reals.iter().copied())
        });
        let (mut old_members, old_controller) = match old {
            Some(old) => (old.members, old.controller),
            None => (Vec::new(), None),
        };
        let members: Vec<PoolMember> = reals
            .iter()
            .zip(&vip.reals)
            .map(|(&id, real)| {
                let known = old_members.iter().position(|member| member.id == id);
                let known = known.map(|index| old_members.swap_remove(index));
                let in_ring = known.as_ref().and_then(|known| known.in_ring);
                PoolMember {
                    id,
                    weight: configured(real),
                    in_ring: in_ring.filter(|_| same_ring),
                    history: known.map(|known| known.history).unwrap_or_default(),
                }
            })
            .collect();
        let controller = (vip.control != Control::Off).then(|| {
            let mut controller = old_controller.unwrap_or_else(|| Watermark::new(params.clone()));
            controller.set_params(params.clone());
            let controlled: Vec<Member> = members
                .iter()
                .zip(&vip.reals)
                .map(|(member, real)| Member {
                    id: member.id,
                    configured: configured(real),
                })
                .collect();
            controller.set_members(&controlled);
            controller
        });
        let mut pool = Self {
            vip,
            id,
            members,
            controller,
            decision: None,
        };
        pool.take_weights();
        pool
    }

    /// The configured VIP.
    pub fn vip(&self) -> &Vip {
        &self.vip
    }

    /// Index in the data plane.
    pub fn id(&self) -> VipId {
        self.id
    }

    /// The reals, with their configuration.
    pub fn members(&self) -> impl Iterator<Item = (&Real, &PoolMember)> {
        self.vip.reals.iter().zip(&self.members)
    }

    /// The reals, to append to their history.
    pub fn members_mut(&mut self) -> impl Iterator<Item = (&Real, &mut PoolMember)> {
        self.vip.reals.iter().zip(&mut self.members)
    }

    /// The controller's last decision.
    pub fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// Lets the controller decide on an interval; weights change if it acts.
    pub fn tick(&mut self, now_ns: u64, readings: &[Reading]) {
        if let Some(controller) = &mut self.controller {
            self.decision = Some(controller.tick(now_ns, readings));
            self.take_weights();
        }
    }

    /// Whether the ring tells what a controller had found out.
    pub fn follows_latency(&self) -> bool {
        self.vip.control == Control::Watermark
    }

    /// Goes on with the weights that `ring` was built from by a daemon that ended.
    pub fn resume(&mut self, now_ns: u64, ring: &[RealId]) {
        let Some(controller) = &mut self.controller else {
            return;
        };
        let mut slots: HashMap<RealId, f64> = HashMap::new();
        for id in ring {
            *slots.entry(*id).or_default() += 1.0;
        }
        // Reals that are new begin as configured.
        let members = || self.vip.reals.iter().zip(&self.members);
        let known: f64 = members()
            .filter(|(_, member)| slots.contains_key(&member.id))
            .map(|(real, _)| configured(real))
            .sum();
        let taken: f64 = slots.values().sum();
        let weights: Vec<f64> = members()
            .map(|(real, member)| match slots.get(&member.id) {
                Some(slots) => slots / taken * known,
                None => configured(real),
            })
            .collect();
        controller.resume(now_ns, &weights);
        self.take_weights();
    }

    fn take_weights(&mut self) {
        let Some(controller) = &self.controller else {
            return;
        };
        if self.vip.control == Control::Watermark {
            for (member, (_, weight)) in self.members.iter_mut().zip(controller.weights()) {
                member.weight = weight;
            }
        }
    }

    /// Whether the weights are no longer those of the ring.
    pub fn ring_is_stale(&self) -> bool {
        self.members().any(|(real, member)| match member.in_ring {
            None => true,
            Some(in_ring) => {
                (member.weight - in_ring).abs() > RING_TOLERANCE * f64::from(real.weight)
            }
        })
    }

    /// Builds the ring for the weights in force; empty if no real takes connections.
    pub fn ring(&self) -> Vec<RealId> {
        let size = RingSize::for_pool(self.members.len());
        let pool: Vec<select::Member> = self
            .members()
            .map(|(real, member)| select::Member {
                key: RealKey::from(real.address),
                id: member.id,
                weight: (member.weight * RING_UNIT).round() as u32,
            })
            .collect();
        match self.vip.scheduler {
            Scheduler::Hash => select::uniform(&pool, size),
            Scheduler::Maglev | Scheduler::Latency => select::maglev(&pool, size),
        }
    }

    /// Notes that the data plane has the ring of the weights in force.
    pub fn ring_is_set(&mut self) {
        for member in &mut self.members {
            member.in_ring = Some(member.weight);
        }
    }
}

/// The weight that a real is meant to have: none while it drains.
pub fn configured(real: &Real) -> f64 {
    match real.drain {
        true => 0.0,
        false => f64::from(real.weight),
    }
}
