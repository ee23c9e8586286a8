// SPDX-License-Identifier: Apache-2.0
//! A member's lease, and how it is given up when the member leaves: by the clock alone.

use causeway_core::fleet::LeaseTerms;

use super::following::Service;

/// What a member holds, and since when it holds it no more.
#[derive(Debug)]
pub(super) struct Tenure {
    terms: LeaseTerms,
    /// Until when the lease is held, by this machine's clock.
    held_until_ns: u64,
    renewed_ns: Option<u64>,
    /// When the member left, until it has said so.
    left_ns: Option<u64>,
    /// Whether it has left and is announced still, after all others.
    prefers_others: bool,
}

impl Tenure {
    /// Without a lease; of one that had left before `left_ns` and has not said so yet.
    pub(super) fn new(terms: LeaseTerms, left_ns: Option<u64>) -> Self {
        Self {
            terms,
            held_until_ns: 0,
            renewed_ns: None,
            left_ns,
            prefers_others: false,
        }
    }

    /// Has `renew` renew the lease, if it is time for that.
    pub(super) fn renew<E>(
        &mut self,
        now_ns: u64,
        renew: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let every_ns = self.terms.ttl_ns / 3;
        let due = |renewed: u64| now_ns.saturating_sub(renewed) >= every_ns;
        if !self.renewed_ns.is_none_or(due) {
            return Ok(());
        }
        renew()?;
        self.renewed_ns = Some(now_ns);
        self.held_until_ns = self.terms.held_until(now_ns);
        Ok(())
    }

    /// Whether the lease is held for certain.
    pub(super) fn is_held(&self, now_ns: u64) -> bool {
        now_ns < self.held_until_ns
    }

    /// Until when it is held, if nothing renews it.
    pub(super) fn held_until_ns(&self) -> u64 {
        self.held_until_ns
    }

    /// Whether VIPs may be announced to routers, by one that the rules have in service or not, and
    /// that has not been before.
    pub(super) fn service(&self, in_service: bool, is_new: bool) -> Service {
        match (in_service, is_new) {
            (true, _) => Service::In,
            (false, _) if self.prefers_others => Service::Leaving,
            (false, true) => Service::AsBefore,
            (false, false) => Service::Out,
        }
    }

    /// The member leaves; if it was announced, it is so still for as long as routers take to
    /// prefer others.
    pub(super) fn leave(&mut self, now_ns: u64, was_in_service: bool) {
        self.left_ns = Some(now_ns);
        self.prefers_others = was_in_service;
    }

    /// It comes back.
    pub(super) fn come_back(&mut self) {
        self.left_ns = None;
        self.prefers_others = false;
    }

    /// Ends what is over by the time.
    pub(super) fn settle(&mut self, now_ns: u64) {
        let settling = |left_ns| now_ns < self.terms.gone_from(left_ns);
        self.prefers_others &= self.left_ns.is_some_and(settling);
    }

    /// Whether it has left, gets no packets any more, and has not said so: routers have had the
    /// time to prefer others, and then to take the withdrawal.
    pub(super) fn is_gone_untold(&self, now_ns: u64) -> bool {
        self.left_ns.is_some_and(|left_ns| {
            let withdrawn_ns = self.terms.gone_from(left_ns);
            now_ns >= self.terms.gone_from(withdrawn_ns)
        })
    }

    /// It has said so.
    pub(super) fn is_told(&mut self) {
        self.left_ns = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn tenure() -> Tenure {
        let terms = LeaseTerms {
            ttl_ns: 9 * S,
            settle_ns: 2 * S,
            drift_ppm: 0,
        };
        Tenure::new(terms, None)
    }

    #[test]
    fn a_lease_is_renewed_in_time_and_held_from_when_it_was_asked_for() {
        let mut tenure = tenure();
        assert!(!tenure.is_held(0));
        let mut asked = 0;
        let mut renew = |tenure: &mut Tenure, now_ns, outcome: Result<(), &'static str>| {
            tenure.renew(now_ns, || {
                asked += 1;
                outcome
            })
        };
        assert_eq!(renew(&mut tenure, 0, Ok(())), Ok(()));
        assert_eq!(renew(&mut tenure, 2 * S, Ok(())), Ok(()));
        // What fails is tried again, and holds nothing for longer.
        assert_eq!(renew(&mut tenure, 3 * S, Err("away")), Err("away"));
        assert!(tenure.is_held(9 * S - 1) && !tenure.is_held(9 * S));
        assert_eq!(renew(&mut tenure, 4 * S, Ok(())), Ok(()));
        assert_eq!(tenure.held_until_ns(), 13 * S);
        assert_eq!(asked, 3);
    }

    #[test]
    fn one_that_leaves_is_announced_after_others_then_withdrawn_and_then_gone() {
        let mut tenure = tenure();
        tenure.leave(10 * S, true);
        for (now_s, service, is_gone) in [
            (10, Service::Leaving, false),
            (11, Service::Leaving, false),
            (12, Service::Out, false),
            (13, Service::Out, false),
            (14, Service::Out, true),
        ] {
            tenure.settle(now_s * S);
            assert_eq!(tenure.service(false, false), service, "{now_s}");
            assert_eq!(tenure.is_gone_untold(now_s * S), is_gone, "{now_s}");
        }
        tenure.is_told();
        assert!(!tenure.is_gone_untold(20 * S));
        // One that was not announced is not announced now.
        tenure.leave(20 * S, false);
        assert_eq!(tenure.service(false, false), Service::Out);
        tenure.come_back();
        assert_eq!(tenure.service(false, true), Service::AsBefore);
        assert_eq!(tenure.service(true, false), Service::In);
    }
}
