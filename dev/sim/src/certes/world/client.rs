// SPDX-License-Identifier: Apache-2.0
//! What clients do: they begin, try again, give up, ask, and are answered.

use causeway_core::certes::Tracker;
use rand::Rng as _;

use super::{
    Attempt, CertesWorld, Client, Completion, DATA_RTO_S, DATA_TRIES, Event, FLOOD_CLIENT, Id,
    SECOND_NS, STALLED_S, ns, pick_class,
};

impl<'a> CertesWorld<'a> {
    /// The client's next transaction: after its think time, when its time is on.
    pub(super) fn think(&mut self, client: u32) {
        let think_s = self.exponential(self.of.think_s);
        self.queue.after(ns(think_s), Event::Begin { client });
    }

    pub(super) fn begin(&mut self, client: u32) {
        let now_ns = self.queue.now_ns();
        if let Some((on_s, off_s)) = self.of.on_off_s {
            let phase_s = now_ns as f64 / SECOND_NS % (on_s + off_s);
            if phase_s > on_s {
                let wait_s = on_s + off_s - phase_s + self.rng.random_range(0.0..0.5);
                self.queue.after(ns(wait_s), Event::Begin { client });
                return;
            }
        }
        let attempt = Attempt {
            generation: 0,
            client,
            class: pick_class(self.of, self.rng.random()),
            began_ns: now_ns,
            isn: self.rng.random(),
            sent: 0,
            state: Client::Trying,
            answered: false,
            queued: false,
            late_s: self.rng.random_range(0.0..0.004),
            answered_ns: 0,
            answers: 0,
            connected_ns: 0,
            data_tries: 0,
            tracker: Tracker::default(),
            completion: Completion::default(),
        };
        let patience_s = self.of.clients_are[attempt.class].fto_s;
        let id = self.keep(attempt);
        self.queue.after(ns(patience_s), Event::GiveUp(id));
        self.send_syn(id);
    }

    pub(super) fn send_syn(&mut self, id: Id) {
        let workload = self.of;
        let Some(attempt) = self
            .live(id)
            .filter(|attempt| attempt.state == Client::Trying)
        else {
            return;
        };
        let class = &workload.clients_are[attempt.class];
        let late_s = attempt.late_s * (attempt.sent + 1) as f64;
        let next = class
            .retries_s
            .get(attempt.sent)
            .map(|at_s| attempt.began_ns + ns(at_s + late_s));
        attempt.sent += 1;
        if let Some(at_ns) = next {
            self.queue.at(at_ns, Event::SendSyn(id));
        }
        self.send(Event::SynArrives(id));
    }

    pub(super) fn give_up(&mut self, id: Id) {
        let now_ns = self.queue.now_ns();
        let workload = self.of;
        let Some(attempt) = self
            .live(id)
            .filter(|attempt| attempt.state == Client::Trying)
        else {
            return;
        };
        attempt.state = Client::Gone;
        let (client, seen) = (attempt.client, attempt.tracker != Tracker::default());
        let patience_s = workload.clients_are[attempt.class].fto_s;
        let second = self.second(now_ns);
        self.out.truth[second].add(patience_s);
        // The tracker knows an attempt from its first SYN that arrived, and takes
        // silence after the last retry of a class for the end of its patience.
        if seen {
            self.out.exact[second].add(patience_s);
        }
        if self.is_warm() {
            self.out.gave_up_s.push(patience_s);
        }
        self.forget_later(id);
        self.think(client);
    }

    pub(super) fn syn_ack_arrives(&mut self, id: Id) {
        let now_ns = self.queue.now_ns();
        let Some(attempt) = self
            .live(id)
            .filter(|attempt| attempt.state != Client::Gone)
        else {
            return;
        };
        if attempt.client == FLOOD_CLIENT {
            return;
        }
        let new = attempt.state == Client::Trying;
        attempt.state = Client::Connected;
        if new {
            attempt.connected_ns = now_ns;
        }
        self.send(Event::AckArrives(id));
        if new {
            self.send_data_later(id);
        }
    }

    /// Only the next time, as with SYN-ACKs: timeouts double.
    pub(super) fn send_data_later(&mut self, id: Id) {
        let first_s = DATA_RTO_S + self.of.rtt_s;
        let Some(attempt) = self
            .live(id)
            .filter(|attempt| attempt.data_tries < DATA_TRIES)
        else {
            return;
        };
        attempt.data_tries += 1;
        let at_s = first_s * f64::from(2_i32.pow(attempt.data_tries as u32) - 1);
        let at_ns = attempt.connected_ns + ns(at_s);
        self.queue.at(at_ns, Event::DataAgain(id));
    }

    pub(super) fn data_again(&mut self, id: Id) {
        let waiting =
            |attempt: &&mut Attempt| !attempt.queued && attempt.state == Client::Connected;
        let Some(attempt) = self.live(id).filter(waiting) else {
            return;
        };
        let (first, connected_ns) = (attempt.data_tries == 1, attempt.connected_ns);
        if first {
            self.queue
                .at(connected_ns + ns(STALLED_S), Event::Stalled(id));
        }
        self.send(Event::AckArrives(id));
        self.send_data_later(id);
    }

    /// A connected client that was not served goes away and begins again.
    pub(super) fn stalled(&mut self, id: Id) {
        let Some(attempt) = self.live(id) else { return };
        if attempt.queued || attempt.state != Client::Connected {
            return;
        }
        attempt.state = Client::Gone;
        let client = attempt.client;
        self.out.stalled += 1;
        self.forget_later(id);
        self.think(client);
    }

    pub(super) fn received(&mut self, id: Id) {
        let now_ns = self.queue.now_ns();
        let Some(attempt) = self.live(id) else { return };
        if attempt.state == Client::Gone {
            return;
        }
        attempt.state = Client::Gone;
        let took_s = (now_ns - attempt.began_ns) as f64 / SECOND_NS;
        let (client, completion) = (attempt.client, attempt.completion);
        let second = self.second(now_ns);
        self.out.truth[second].add(took_s);
        if self.is_warm() {
            self.out.completions.push(Completion {
                took_s: took_s as f32,
                ..completion
            });
        }
        self.forget_later(id);
        self.think(client);
    }

    /// A SYN of the flood, and the time of the next.
    pub(super) fn flood(&mut self) {
        let gap_s = self.exponential(1.0 / self.of.flood_pps);
        self.queue.after(ns(gap_s), Event::Flood);
        let attempt = Attempt {
            generation: 0,
            client: FLOOD_CLIENT,
            class: 0,
            began_ns: self.queue.now_ns(),
            isn: self.rng.random(),
            sent: 1,
            state: Client::Trying,
            answered: false,
            queued: false,
            late_s: 0.0,
            answered_ns: 0,
            answers: 0,
            connected_ns: 0,
            data_tries: 0,
            tracker: Tracker::default(),
            completion: Completion::default(),
        };
        let id = self.keep(attempt);
        self.forget_later(id);
        self.syn_arrives(id);
    }
}
