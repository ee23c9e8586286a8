// SPDX-License-Identifier: Apache-2.0
//! Which of several controllers speaks: the holder of a Lease (coordination.k8s.io/v1).
//!
//! As other clients of leases do, it trusts no other host's clock: a lease is over when it has
//! not changed for its duration by the own, monotonic one. Its holder stops to speak before the
//! others may begin.

use serde::{Deserialize, Serialize};

const SECOND_NS: u64 = 1_000_000_000;
/// How long a lease lasts that is not renewed.
pub const LEASE_S: u64 = 15;
/// How often it is looked at, and renewed.
pub const RENEW_NS: u64 = 5 * SECOND_NS;
/// Before another may take it, the holder has stopped.
const SPEAKS_NS: u64 = (LEASE_S - 5) * SECOND_NS;

/// A lease as the API has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseSpec {
    /// Who has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder_identity: Option<String>,
    /// For how long after each renewal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_duration_seconds: Option<u64>,
    /// When it was renewed, RFC 3339, by its holder's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renew_time: Option<String>,
    /// How often it changed hands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_transitions: Option<u64>,
}

/// One candidate's view.
#[derive(Debug)]
pub struct Election {
    me: String,
    seen: Option<LeaseSpec>,
    /// When `seen` was another for the last time.
    changed_ns: u64,
    /// When the own renewal was begun that succeeded last.
    renewed_ns: Option<u64>,
}

impl Election {
    /// A candidate of this name, which no other has.
    pub fn new(me: String) -> Self {
        Self {
            me,
            seen: None,
            changed_ns: 0,
            renewed_ns: None,
        }
    }

    /// Takes the lease as it is read at `now_ns`, `None` if there is none; gives what to put in its
    /// place, if it is for this candidate to take or to renew. `now` is the time as the API
    /// writes it.
    pub fn handle_lease(
        &mut self,
        now_ns: u64,
        lease: Option<&LeaseSpec>,
        now: String,
    ) -> Option<LeaseSpec> {
        if self.seen.as_ref() != lease {
            (self.seen, self.changed_ns) = (lease.cloned(), now_ns);
        }
        let holder = lease.and_then(|lease| lease.holder_identity.as_deref());
        let holder = holder.filter(|holder| !holder.is_empty());
        let mine = holder == Some(&self.me);
        let lasts_s = lease.and_then(|lease| lease.lease_duration_seconds);
        let lasts_ns = lasts_s.unwrap_or(LEASE_S).saturating_mul(SECOND_NS);
        let over = now_ns.saturating_sub(self.changed_ns) >= lasts_ns;
        if !mine {
            self.renewed_ns = None;
        }
        if !mine && holder.is_some() && !over {
            return None;
        }
        let before = lease.and_then(|lease| lease.lease_transitions);
        Some(LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: Some(LEASE_S),
            renew_time: Some(now),
            lease_transitions: Some(before.unwrap_or(0) + u64::from(!mine && lease.is_some())),
        })
    }

    /// Notes that what was given has been written; its writing was begun at `begun_ns`.
    pub fn handle_written(&mut self, begun_ns: u64) {
        self.renewed_ns = Some(begun_ns);
    }

    /// Until when this one speaks; 0: it does not.
    pub fn leads_until(&self) -> u64 {
        self.renewed_ns.map_or(0, |ns| ns + SPEAKS_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> u64 {
        seconds * SECOND_NS
    }

    #[test]
    fn one_takes_it_and_the_other_waits_until_it_is_over_by_its_own_clock() {
        let (mut a, mut b) = (Election::new("a".into()), Election::new("b".into()));
        let lease = a.handle_lease(at(1), None, "t1".into()).unwrap();
        assert_eq!(a.leads_until(), 0, "not written yet");
        a.handle_written(at(1));
        assert_eq!(a.leads_until(), at(11));
        assert_eq!(b.handle_lease(at(2), Some(&lease), "t2".into()), None);
        let renewed = a.handle_lease(at(6), Some(&lease), "t6".into()).unwrap();
        assert_eq!(renewed.lease_transitions, Some(0));
        a.handle_written(at(6));
        assert_eq!(b.handle_lease(at(7), Some(&renewed), "t7".into()), None);
        // `a` is cut off: it stops before `b` begins.
        assert_eq!(a.leads_until(), at(16));
        assert_eq!(b.handle_lease(at(21), Some(&renewed), "t21".into()), None);
        let taken = b
            .handle_lease(at(22), Some(&renewed), "t22".into())
            .unwrap();
        assert_eq!(
            (taken.holder_identity.as_deref(), taken.lease_transitions),
            (Some("b"), Some(1))
        );
        b.handle_written(at(22));
        assert_eq!(b.leads_until(), at(32));
        // It comes back, and finds another there.
        assert_eq!(a.handle_lease(at(23), Some(&taken), "t23".into()), None);
        assert_eq!(a.leads_until(), 0);
    }

    #[test]
    fn one_that_was_given_up_is_free_at_once() {
        let mut a = Election::new("a".into());
        let free = LeaseSpec {
            holder_identity: Some(String::new()),
            ..LeaseSpec::default()
        };
        assert!(a.handle_lease(at(1), Some(&free), "t".into()).is_some());
    }
}
