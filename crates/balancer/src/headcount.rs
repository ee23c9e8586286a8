// SPDX-License-Identifier: Apache-2.0
//! How many members of a pool are not as most are.

use super::pool_member::PoolMember;
use crate::config::{RealConfig, VipConfig};

/// Of a pool's members as they are; to be taken anew when they change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Headcount {
    /// Whether some that do not wait for their first probe may get new connections.
    pub(super) others_take: bool,
    /// Those that are not fit or not known to be.
    pub(super) unfit: usize,
    /// Those that wait for their whole weight.
    pub(super) warming: usize,
    /// Those that an operator does not want to get new connections.
    pub(super) draining: usize,
    /// Those that count for what the VIP needs, when they are up.
    pub(super) counted: usize,
}

impl Headcount {
    /// Of these members, in the order of the VIP's reals.
    pub(super) fn of(vip: &VipConfig, members: &[PoolMember]) -> Self {
        let members = || vip.reals.iter().zip(members);
        let count = |is: &dyn Fn(&RealConfig, &PoolMember) -> bool| {
            members().filter(|(real, member)| is(real, member)).count()
        };
        let takes = |real: &RealConfig, member: &PoolMember| {
            let fit = member.fit && !member.waits;
            fit && real.configured_weight() > 0.0 && !vip.is_reserved(real)
        };
        Self {
            others_take: members().any(|(real, member)| takes(real, member)),
            unfit: count(&|_, member| !member.fit || member.waits),
            warming: count(&|_, member| member.warms_ns > 0),
            draining: count(&|real, _| !real.is_wanted()),
            counted: count(&|real, _| real.is_counted()),
        }
    }
}
