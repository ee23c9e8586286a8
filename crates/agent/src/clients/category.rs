// SPDX-License-Identifier: Apache-2.0
//! What is counted together, and what is shown and remembered of it.

use causeway_api::agent::{CategoryView, ClassView, ClientTotals, HistogramView};
use causeway_core::certes::{CategoryObserver, Estimate, Origin, RetryClass, Slot};
use causeway_dataplane::RESPONSE_BOUNDS_US;
use causeway_dataplane::abi::{SynResponses, SynSlot};

use super::history::Record;
use super::recent_times::RecentTimes;
use super::view;

/// A service, a group of clients, a device: what is counted together.
pub(super) struct Category {
    pub service: String,
    pub clients: String,
    pub device: String,
    pub observer: CategoryObserver,
    pub totals: ClientTotals,
    /// How long those waited that gave up. It begins anew with each agent, and what the kernel
    /// counts does not: a sum of both would fall in some buckets alone.
    pub gave_up: SynResponses,
    /// What the kernel counts of the others, as last read.
    pub responses: SynResponses,
    /// Both of the last seconds.
    pub recent_times: RecentTimes,
}

impl Category {
    /// A client gave up for good, having waited so long.
    pub(super) fn count_gave_up(&mut self, waited_s: f64) {
        self.totals.gave_up += 1;
        self.totals.lost_s += waited_s;
        let waited_us = (waited_s * 1e6).ceil() as u64;
        let bucket = RESPONSE_BOUNDS_US.partition_point(|&bound_us| bound_us < waited_us);
        self.gave_up.count[bucket] += 1;
        self.gave_up.sum_ns += (waited_s * 1e9) as u64;
    }

    /// Percentiles are of what has been counted by each of the last seconds.
    pub(super) fn remember_times(&mut self, second: u64) {
        let mut counts = self.responses.count;
        let gave_up = self.gave_up.count.iter();
        counts
            .iter_mut()
            .zip(gave_up)
            .for_each(|(count, gave_up)| *count += gave_up);
        self.recent_times.push(second, counts);
    }

    /// Whether anything was counted in it, by this agent or by the kernel before.
    pub(super) fn is_known(&self) -> bool {
        self.totals != ClientTotals::default() || self.responses != SynResponses::default()
    }

    /// In history, log and notifications.
    pub(super) fn name(&self) -> String {
        format!("{} {} {}", self.service, self.clients, self.device)
    }

    /// Both estimates of the last `slots`, SYNs offered and accepted in them.
    pub(super) fn window(&self, slots: usize) -> (Estimate, Estimate, u64, u64) {
        let mut sums = (Estimate::default(), Estimate::default(), 0, 0);
        for of in self.observer.recent().rev().take(slots) {
            sums.0 += of.exact;
            sums.1 += of.model;
            sums.2 += of.slot.offered;
            sums.3 += of.slot.accepted;
        }
        sums
    }

    /// What the history keeps of a second of the monotonic clock.
    pub(super) fn second(&self, second: u64, slot_ns: u64) -> Record {
        let standing = self.observer.standing();
        let mut record = Record {
            second,
            category: self.name(),
            flood: standing.flood,
            odds_ratio: standing.odds_ratio.unwrap_or(0.0),
            ..Record::default()
        };
        // A slot belongs to the second in which it begins.
        for of in self.observer.recent() {
            if of.number * slot_ns / 1_000_000_000 == second {
                record.offered += of.slot.offered;
                record.accepted += of.slot.accepted;
                record.exact += of.exact;
                record.model += of.model;
            }
        }
        record
    }

    /// What is shown, over the last `slots`.
    pub(super) fn view(&self, slots: usize, slot_s: f64) -> CategoryView {
        let standing = self.observer.standing();
        let (exact, model, offered, accepted) = self.window(slots);
        let second = 0..(1.0 / slot_s).round().max(1.0) as usize;
        CategoryView {
            service: self.service.clone(),
            clients: self.clients.clone(),
            device: self.device.clone(),
            totals: self.totals,
            syn_drop_pct: (offered > 0)
                .then(|| 100.0 * offered.saturating_sub(accepted) as f64 / offered as f64),
            exact: view::estimate(&exact),
            model: view::estimate(&model),
            syn_to_end_s: exact.syn_to_end_mean_s(),
            drops: standing.confidence.as_str().to_owned(),
            drop_odds_ratio: standing.odds_ratio,
            network_loss: standing.loss,
            flood_share: standing.flood,
            responses: histogram(&self.responses),
            gave_up: histogram(&self.gave_up),
            server: view::server_time(&exact),
            forecast_retries: second.map(|ahead| self.observer.forecast(ahead)).sum(),
        }
    }
}

fn histogram(of: &SynResponses) -> HistogramView {
    HistogramView {
        bounds_s: RESPONSE_BOUNDS_US.map(|us| us as f64 / 1e6).to_vec(),
        counts: of.count.to_vec(),
        sum_s: of.sum_ns as f64 / 1e9,
    }
}

/// A class of clients as it is shown.
pub(super) fn class_view(class: &RetryClass) -> ClassView {
    ClassView {
        name: class.name.clone(),
        share: class.weight,
        patience_s: class.fto_s,
    }
}

/// A slot as the kernel counts it, with where its accepted retries came from (eq. 12).
pub(super) fn to_slot(of: &SynSlot, origins: Option<Vec<Origin>>) -> Slot {
    let sum = |counts: &[u32]| counts.iter().map(|&n| u64::from(n)).sum();
    Slot {
        offered: sum(&of.offered),
        accepted: sum(&of.accepted),
        completed: of.completed.into(),
        later: of.later.into(),
        later_ns: of.later_ns,
        syn_to_end_ns: of.syn_to_end_ns,
        rtt_ns: of.rtt_ns,
        conn_fail_ns: of.conn_fail_ns,
        first_offered: of.offered[0].into(),
        first_accepted: of.accepted[0].into(),
        heard: of.heard.into(),
        heard_answered: of.heard_answered.into(),
        established: of.established.into(),
        established_late: of.established_late.into(),
        established_first: of.established_first.into(),
        served: of.served.into(),
        served_first: of.served_first.into(),
        stalled: of.stalled.into(),
        stalled_ns: of.stalled_ns,
        timed: of.timed.into(),
        server_ns: of.server_ns,
        overlapping: of.overlapping.into(),
        origins: origins.unwrap_or_default(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use causeway_core::certes::{LINUX_6_5_S, Mix};

    use super::*;

    /// One of clients with 9 s of patience, without connections.
    pub(in crate::clients) fn category(service: &str, clients: &str) -> Category {
        let mix = Mix::new([RetryClass::new("linux", LINUX_6_5_S, 9.0)]).unwrap();
        Category {
            service: service.to_owned(),
            clients: clients.to_owned(),
            device: "eth0".to_owned(),
            observer: CategoryObserver::new(0.25, &mix, 200).unwrap(),
            totals: ClientTotals::default(),
            gave_up: SynResponses::default(),
            responses: SynResponses::default(),
            recent_times: RecentTimes::default(),
        }
    }

    /// What the kernel counts outlives the agent: the next one must not show less of it.
    #[test]
    fn who_gave_up_is_not_among_what_the_kernel_counts() {
        let mut category = category("*:80", "all");
        assert!(!category.is_known());
        category.responses.count[3] = 5;
        category.responses.sum_ns = 40_000_000;
        assert!(category.is_known(), "also before this agent has counted");
        let before = category.view(4, 0.25).responses;
        category.count_gave_up(9.0);
        let view = category.view(4, 0.25);
        assert_eq!(view.responses, before);
        let bucket = view.gave_up.counts.iter().position(|&count| count > 0);
        assert_eq!(bucket.map(|at| view.gave_up.bounds_s[at]), Some(10.0));
        assert_eq!((view.gave_up.sum_s, view.totals.gave_up), (9.0, 1));
    }
}
