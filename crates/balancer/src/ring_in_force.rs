// SPDX-License-Identifier: Apache-2.0
//! What the ring of a VIP in the data plane was built from, and whether another is wanted.

use causeway_dataplane::{Pick, RealId};

use crate::config::Scheduler;

/// A ring is rebuilt when a weight is further from the one it was built with, relative to the
/// configured weight.
const RING_TOLERANCE: f64 = 0.01;

/// What a VIP's rings are built from.
#[derive(Debug, Clone)]
pub(super) struct BuiltFrom {
    pub(super) scheduler: Scheduler,
    pub(super) pick: Pick,
    pub(super) members: Vec<RingWeight>,
    /// Of the ring of configured weights for all clients.
    pub(super) plain: Vec<(RealId, f64)>,
}

/// A member in a ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct RingWeight {
    pub(super) id: RealId,
    pub(super) configured: f64,
    pub(super) weight: f64,
    /// Whether some clients have it for themselves.
    pub(super) reserved: bool,
}

impl BuiltFrom {
    fn differs(&self, wanted: &Self) -> bool {
        let members = || wanted.members.iter().zip(&self.members);
        self.plain != wanted.plain
            || (wanted.scheduler, wanted.pick) != (self.scheduler, self.pick)
            || wanted.members.len() != self.members.len()
            || members().any(|(now, then)| {
                now.id != then.id
                    || now.configured != then.configured
                    || now.reserved != then.reserved
                    || (now.weight - then.weight).abs() > RING_TOLERANCE * now.configured
            })
    }
}

/// The ring that the data plane has.
#[derive(Debug)]
pub(super) struct RingInForce {
    /// `None` if it is not known: before the first, and after a change that failed.
    built: Option<BuiltFrom>,
    /// The next picks of the least loaded real, with [`Scheduler::LeastLoaded`].
    plan: Vec<RealId>,
    plan_is_new: bool,
    /// Whether it may be another than the wanted one.
    may_differ: bool,
}

impl RingInForce {
    /// That of a pool which replaces one that had this, if there was one.
    pub(super) fn after(former: Option<&Self>) -> Self {
        Self {
            built: former.and_then(|former| former.built.clone()),
            plan: Vec::new(),
            plan_is_new: false,
            may_differ: true,
        }
    }

    /// Notes that weights may have changed.
    pub(super) fn may_differ(&mut self) {
        self.may_differ = true;
    }

    /// Whether the wanted ring, which is asked for only if it may be so, is another.
    pub(super) fn differs(&self, wanted: impl FnOnce() -> BuiltFrom) -> bool {
        self.may_differ
            && self
                .built
                .as_ref()
                .is_none_or(|built| self.plan_is_new || built.differs(&wanted()))
    }

    /// Whether the ring of configured weights is another than this one.
    pub(super) fn plain_differs(&self, wanted: &[(RealId, f64)]) -> bool {
        let built = self.built.as_ref();
        built.is_none_or(|built| built.plain != wanted)
    }

    /// What it was built from, if that is known.
    pub(super) fn built(&self) -> Option<&BuiltFrom> {
        self.built.as_ref()
    }

    /// Notes that it was compared, and is the wanted one.
    pub(super) fn is_known(&mut self) {
        self.may_differ = false;
    }

    /// Notes that the data plane has the wanted one.
    pub(super) fn is_set(&mut self, wanted: BuiltFrom) {
        self.built = Some(wanted);
        self.plan_is_new = false;
        self.may_differ = false;
    }

    /// Notes that it is unknown which one the data plane has.
    pub(super) fn is_unknown(&mut self) {
        self.built = None;
        self.may_differ = true;
    }

    /// The planned picks, if there are any.
    pub(super) fn plan(&self) -> Option<&[RealId]> {
        (!self.plan.is_empty()).then_some(&self.plan)
    }

    /// Plans these picks; `used` says whether some of the former ones were made.
    pub(super) fn set_plan(&mut self, plan: Vec<RealId>, used: bool) {
        self.plan_is_new |= used || plan != self.plan;
        self.plan = plan;
    }

    /// Drops the plan: it is of other members.
    pub(super) fn drop_plan(&mut self) {
        self.plan.clear();
    }
}
