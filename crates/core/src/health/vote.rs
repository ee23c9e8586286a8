// SPDX-License-Identifier: Apache-2.0
//! Which of a real's balancers probe it, and what they find together.
//!
//! Three of them do, chosen by rendezvous (Thaler and Ravishankar, IEEE/ACM Transactions on
//! Networking 6, 1998): each knows who without a word, and one that comes or goes changes the
//! duties of no other. A real is down where more than half of them find it down: one balancer's
//! broken path is not the real's fault. What a balancer finds itself it goes by all the same:
//! its own clients take its own path.

use std::net::IpAddr;

use super::HealthState;
use crate::cookie::{CookieKey, siphash};
use crate::envelope::octets;

/// So many balancers probe a real; all, where there are no more.
pub const PROBERS: usize = 3;

/// What the other balancers find.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Votes {
    /// Those that find the real up.
    pub up: usize,
    /// Those that find it down.
    pub down: usize,
    /// Balancers that are there, this one included: as many as this, and at most [`PROBERS`],
    /// are to vote.
    pub balancers: usize,
}

/// Whether `own` is one of those that probe a real, where the `others` are there, too. `real` is
/// its name.
pub fn probes(own: IpAddr, others: impl IntoIterator<Item = IpAddr>, real: u64) -> bool {
    let score = |member: IpAddr| {
        let words = u128::from_le_bytes(octets(member));
        let words = [words as u64, (words >> 64) as u64, real];
        // No secret: it is only to be spread evenly. Equal scores are ordered by address.
        (siphash(&words, &CookieKey::from_words([0, 0])), member)
    };
    let mine = score(own);
    let others = others.into_iter().filter(|other| *other != own);
    others.filter(|other| score(*other) > mine).count() < PROBERS
}

impl Votes {
    /// The state of a real of which a balancer has found out `own`. One that does not probe it
    /// has at most found it down, by its clients.
    pub fn decide(self, own: HealthState) -> HealthState {
        let voters = self.balancers.clamp(1, PROBERS);
        match own {
            HealthState::Down => HealthState::Down,
            _ if 2 * self.down > voters => HealthState::Down,
            HealthState::Unknown if self.up > 0 => HealthState::Up,
            own => own,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn members(count: u8) -> Vec<IpAddr> {
        (1..=count).map(|n| IpAddr::from([10, 0, 0, n])).collect()
    }

    fn probers(members: &[IpAddr], real: u64) -> HashSet<IpAddr> {
        let probes = |own: &&IpAddr| probes(**own, members.iter().copied(), real);
        members.iter().filter(probes).copied().collect()
    }

    #[test]
    fn three_probe_a_real_and_all_where_there_are_no_more() {
        for count in 1..20 {
            let members = members(count);
            let mut duties = vec![0; members.len()];
            for real in 0..1_000 {
                let chosen = probers(&members, real);
                assert_eq!(chosen.len(), PROBERS.min(members.len()));
                for (index, member) in members.iter().enumerate() {
                    duties[index] += usize::from(chosen.contains(member));
                }
            }
            let fair = 1_000 * PROBERS.min(members.len()) / members.len();
            assert!(
                duties.iter().all(|of| of.abs_diff(fair) <= fair / 3 + 1),
                "{duties:?}"
            );
        }
    }

    #[test]
    fn one_that_goes_is_replaced_where_it_probed_and_nowhere_else() {
        let all = members(9);
        let gone = all[4];
        let left: Vec<_> = all.iter().copied().filter(|one| *one != gone).collect();
        for real in 0..500 {
            let (before, after) = (probers(&all, real), probers(&left, real));
            let kept = before.iter().filter(|one| **one != gone);
            assert!(kept.clone().all(|one| after.contains(one)));
            assert_eq!(
                after.len() - kept.count(),
                usize::from(before.contains(&gone))
            );
        }
    }

    #[test]
    fn the_majority_decides_and_own_evidence_overrules_downward() {
        use HealthState::{Down, Unknown, Up};
        for (own, up, down, balancers, found) in [
            // Alone: as it finds itself.
            (Up, 0, 0, 1, Up),
            (Down, 0, 0, 1, Down),
            (Unknown, 0, 0, 1, Unknown),
            // Of two neither outvotes the other; each goes by what it finds.
            (Up, 0, 1, 2, Up),
            (Down, 1, 0, 2, Down),
            (Unknown, 0, 1, 2, Unknown),
            (Unknown, 1, 0, 2, Up),
            // Three probe.
            (Up, 1, 1, 3, Up),
            (Up, 0, 2, 3, Down),
            (Down, 2, 0, 3, Down),
            (Unknown, 1, 1, 3, Up),
            // It is none of the three.
            (Unknown, 3, 0, 20, Up),
            (Unknown, 1, 2, 20, Down),
            (Unknown, 2, 1, 20, Up),
            // Its clients connect and say nothing.
            (Down, 3, 0, 20, Down),
            // The others have died; one vote is not a majority.
            (Unknown, 0, 1, 20, Unknown),
            (Unknown, 0, 0, 20, Unknown),
        ] {
            let votes = Votes {
                up,
                down,
                balancers,
            };
            assert_eq!(votes.decide(own), found, "{own} with {votes:?}");
        }
    }
}
