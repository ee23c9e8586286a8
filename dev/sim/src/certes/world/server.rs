// SPDX-License-Identifier: Apache-2.0
//! The listener, the workers behind it, and what the server counts.

use causeway_core::certes::{ConnectionEvent as Seen, Count, Origin};
use rand::Rng as _;

use super::{CertesWorld, Completion, Event, FLOOD_CLIENT, Id, SECOND_NS, SYN_ACK_AGAIN_S, ns};
use crate::certes::workload::Backlog;

impl<'a> CertesWorld<'a> {
    /// An event of the connection at the server's interface: into the counters.
    pub(super) fn measure(&mut self, id: Id, seen: Seen) {
        let now_ns = self.queue.now_ns();
        let Some(attempt) = self.live(id) else { return };
        let outcome = attempt.tracker.step(seen, now_ns);
        let slot = self.slot(outcome.at_ns);
        self.out.slots[slot].count(&outcome);
        if self.is_warm() {
            let of = &mut self.out.by_retry[usize::from(outcome.retry)];
            of.offered += u64::from(outcome.count == Count::Offered);
            of.accepted += u64::from(outcome.count == Count::Accepted);
        }
        if outcome.heard {
            let first = self.slot(outcome.first_syn_ns);
            self.out.slots[first].count_heard(&outcome);
        }
        if outcome.count == Count::Completed {
            self.complete(id, slot, &outcome);
        }
    }

    pub(super) fn complete(
        &mut self,
        id: Id,
        slot: usize,
        outcome: &causeway_core::certes::TrackedEvent,
    ) {
        let origin = self.slot(outcome.accepted_ns);
        came_from(&mut self.out.slots[slot].origins, (slot - origin) as u32);
        let second = self.second(self.queue.now_ns());
        let s = |ns: u64| ns as f64 / SECOND_NS;
        self.out.syn_to_end[second].add(s(outcome.syn_to_end_ns));
        let sum_s = s(outcome.conn_fail_ns) + s(outcome.syn_to_end_ns) + s(outcome.rtt_ns);
        self.out.exact[second].add(sum_s);
        if let Some(attempt) = self.live(id) {
            attempt.completion = Completion {
                accepted_slot: origin as u32,
                served_s: s(outcome.syn_to_end_ns) as f32,
                rtt_s: s(outcome.rtt_ns) as f32,
                took_s: 0.0,
            };
        }
    }

    pub(super) fn limit(&self) -> usize {
        match &self.of.backlog {
            Backlog::Fixed(limit) => *limit,
            Backlog::Cycle { period_s, limits } => {
                let turn = self.queue.now_ns() as f64 / SECOND_NS / period_s;
                limits[turn as usize % limits.len()]
            }
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.accept_queue.len() > self.limit()
    }

    pub(super) fn syn_arrives(&mut self, id: Id) {
        let Some(attempt) = self.live(id) else { return };
        let (isn, answered) = (attempt.isn, attempt.answered);
        self.measure(id, Seen::Syn(isn));
        let now_slot = self.slot(self.queue.now_ns());
        self.out.backlog[now_slot] = self.limit();
        if answered {
            return self.answer(id);
        }
        if self.is_full() || self.rng.random::<f64>() < self.of.policed {
            return;
        }
        let now_ns = self.queue.now_ns();
        if let Some(attempt) = self.live(id) {
            attempt.answered = true;
            attempt.answered_ns = now_ns;
        }
        self.answer(id);
        self.answer_again_later(id);
    }

    /// Only the next time: most attempts are through by then.
    pub(super) fn answer_again_later(&mut self, id: Id) {
        let Some(attempt) = self.live(id) else { return };
        let after_s = SYN_ACK_AGAIN_S.get(attempt.answers).copied();
        attempt.answers += 1;
        let answered_ns = attempt.answered_ns;
        if let Some(after_s) = after_s {
            self.queue
                .at(answered_ns + ns(after_s), Event::SynAckAgain(id));
        }
    }

    pub(super) fn answer(&mut self, id: Id) {
        self.measure(id, Seen::SynAck);
        self.send(Event::SynAckArrives(id));
    }

    pub(super) fn syn_ack_again(&mut self, id: Id) {
        if self
            .live(id)
            .is_some_and(|attempt| !attempt.queued && attempt.client != FLOOD_CLIENT)
        {
            self.answer(id);
            self.answer_again_later(id);
        }
    }

    pub(super) fn ack_arrives(&mut self, id: Id) {
        self.measure(id, Seen::Ack);
        self.measure(id, Seen::Request);
        let full = self.is_full();
        let Some(attempt) = self.live(id).filter(|attempt| !attempt.queued && !full) else {
            return;
        };
        attempt.queued = true;
        // The kernel acknowledges the request, before anything accepts the connection.
        self.measure(id, Seen::Served);
        self.accept_queue.push_back(id);
        self.serve();
    }

    pub(super) fn serve(&mut self) {
        while self.idle > 0 {
            let Some(id) = self.accept_queue.pop_front() else {
                return;
            };
            self.idle -= 1;
            let mut busy_s = 0.0;
            for _ in 0..self.of.requests {
                busy_s += self.exponential(self.of.service.mean_s);
            }
            let waits_s = self.of.rtt_s * f64::from(self.of.requests - 1);
            self.queue
                .after(ns(busy_s + waits_s), Event::Served { id, busy_s });
        }
    }

    pub(super) fn served(&mut self, id: Id, busy_s: f64) {
        self.idle += 1;
        self.measure(id, Seen::Data);
        self.measure(id, Seen::ServerFin);
        let second = self.second(self.queue.now_ns());
        self.out.application[second].add(busy_s);
        // Data is retransmitted within the connection; its loss is not modelled.
        self.queue
            .after(ns(self.of.rtt_s / 2.0), Event::Received(id));
        self.serve();
    }
}

/// Counts that one more connection of a slot was accepted `slots_ago`.
fn came_from(origins: &mut Vec<Origin>, slots_ago: u32) {
    match origins.iter_mut().find(|of| of.slots_ago == slots_ago) {
        Some(of) => of.completed += 1,
        None => origins.push(Origin {
            slots_ago,
            completed: 1,
        }),
    }
}
