// SPDX-License-Identifier: Apache-2.0

//! What each kind of fault does to a plan, and what must hold nevertheless.

use rand::Rng;
use rand::seq::IndexedRandom;

use super::draft::{Draft, key};
use super::{Case, Expected, Fault, MS, US, VnicPlan};
use causeway_bifrost::{TransportConfig, TunnelKeys};

impl Draft {
    /// That of the plan's case.
    pub(super) fn add_faults(&mut self) {
        match self.plan.case {
            Case::Clean => {}
            Case::RandomLoss => self.random_loss(0.001, 0.05),
            Case::BurstLoss => self.burst_loss(),
            Case::DataAndAckLoss => self.random_loss(0.05, 0.2),
            Case::AckLoss => self.ack_loss(),
            Case::AllDown => self.all_down(),
            Case::OneWay => self.one_way(),
            Case::Flap => self.flap(),
            Case::TenfoldRtt => self.tenfold(),
            Case::Reordering => self.reordering(),
            Case::Stall => self.stall(),
            Case::Duplicates => {
                let duplicate = self.rng.random_range(0.05..0.5);
                self.all_links(|link| link.duplicate = duplicate);
            }
            Case::Wraps => {
                self.plan.start_ns = ((1 << 32) * US) - self.rng.random_range(0..20 * MS);
                self.random_loss(0.001, 0.02);
            }
            Case::Restart => self.restart(),
            Case::Collision => {
                self.plan.config.flows = 1 << self.rng.random_range(0..3);
                self.random_loss(0.001, 0.03);
            }
            Case::Reuse => {
                self.plan.config.flows = 1 << self.rng.random_range(1..5);
                (self.flows, self.frames, self.largest) = (5_000, 400, 3_000);
                self.random_loss(0.001, 0.03);
            }
            Case::LargeBatch => self.large_batch(),
            Case::WindowsFull => self.windows_full(),
            Case::QueueOverflow => self.queue_overflow(),
            Case::VnicFull => self.vnic_full(),
            Case::MemoryCap => self.memory_cap(),
            Case::MtuShrink => self.mtu_shrink(true),
            Case::SilentMtuShrink => self.mtu_shrink(false),
            Case::Attacker => self.attacker(),
            Case::LateAfterSkip => self.late_after_skip(),
            Case::Rotation => self.rotation(),
            Case::PathChanges => self.path_changes(),
            Case::Mixed => self.mixed(),
        }
    }

    /// Loss of data and, as often, of the acknowledgement; each lost acknowledgement of
    /// the last packet costs up to two chunks sent without need.
    fn random_loss(&mut self, from: f64, to: f64) {
        let loss = self.rng.random_range(from..to);
        self.all_links(|link| link.loss = loss);
        self.plan.expected.resent = ((loss * 2500.0) as u64, 25);
        if loss > 0.08 {
            self.plan.expected.lossless = false;
            self.plan.expected.slowest_ns = 300 * MS;
        }
    }

    fn burst_loss(&mut self) {
        let (burst, len) = (
            self.rng.random_range(0.001..0.01),
            self.rng.random_range(3.0..30.0),
        );
        self.all_links(|link| (link.burst, link.burst_len) = (burst, len));
        self.plan.expected.resent = ((burst * len * 4000.0) as u64, 150);
        self.plan.expected.slowest_ns = 300 * MS;
        self.plan.expected.lossless = burst * len < 0.06;
    }

    fn ack_loss(&mut self) {
        let loss = self.rng.random_range(0.2..0.9);
        let one = self.rng.random_bool(0.5);
        let paths = if one { 1 } else { self.paths() };
        for links in &mut self.plan.links[..paths] {
            links.iter_mut().for_each(|link| link.ack_loss = loss);
        }
        self.plan.expected.resent = (700, 100);
        let quiet_ns = self.busy_ns;
        (0..paths).for_each(|path| self.change(quiet_ns, path, |link| link.ack_loss = 0.0));
    }

    fn all_down(&mut self) {
        let from_ns = self.meanwhile();
        let long = self.rng.random_bool(0.2);
        let most = if long { 5_000 * MS } else { 300 * MS };
        let until_ns = from_ns + self.rng.random_range(5 * MS..most);
        for path in 0..self.paths() {
            self.change(from_ns, path, |link| link.down = true);
            self.change(until_ns, path, |link| link.down = false);
        }
        self.plan.expected = Expected {
            lossless: false,
            slowest_ns: until_ns + 100 * MS,
            resent: (1_200, 150),
        };
    }

    fn one_way(&mut self) {
        let from_ns = self.meanwhile();
        let until_ns = from_ns + self.rng.random_range(5 * MS..100 * MS);
        let side = self.rng.random_range(0..2);
        for path in 0..self.rng.random_range(1..self.paths()) {
            let mut settings = self.plan.links[path][side];
            settings.down = true;
            self.plan
                .faults
                .push((from_ns, Fault::Link(path, side, settings)));
            settings.down = false;
            self.plan
                .faults
                .push((until_ns, Fault::Link(path, side, settings)));
        }
        self.plan.expected.resent = (600, 150);
    }

    fn flap(&mut self) {
        let period_ns = *[2 * MS, 4 * MS, 8 * MS, 10 * MS, 20 * MS]
            .choose(&mut self.rng)
            .unwrap_or(&MS);
        let share = self.rng.random_range(0.2..0.8);
        let end_ns = self.busy_ns + 20 * MS;
        for from_ns in (self.meanwhile()..end_ns).step_by(period_ns as usize) {
            self.change(from_ns, 0, |link| link.down = true);
            let until_ns = from_ns + (period_ns as f64 * share) as u64;
            self.change(until_ns, 0, |link| link.down = false);
        }
        // A chunk may meet the path when it is up and lose it each time, until its
        // frame's flow waits no longer.
        self.plan.expected.lossless = false;
        self.plan.expected.resent = (600, 150);
    }

    fn tenfold(&mut self) {
        let (from_ns, until_ns) = (self.meanwhile(), self.busy_ns + 30 * MS);
        let all = self.rng.random_bool(0.5);
        for path in 0..if all { self.paths() } else { 1 } {
            let delay_ns = self.plan.links[path][0].delay_ns;
            self.change(from_ns, path, |link| link.delay_ns = 10 * delay_ns);
            self.change(until_ns, path, |link| link.delay_ns = delay_ns);
        }
        self.plan.expected.resent = (200, 60);
    }

    fn reordering(&mut self) {
        let jitter_ns = self.rng.random_range(10 * US..500 * US);
        self.all_links(|link| link.jitter_ns = jitter_ns);
        self.plan.expected.resent = (300, 100);
    }

    fn stall(&mut self) {
        for _ in 0..self.rng.random_range(1..4) {
            let (at_ns, host) = (self.meanwhile(), self.rng.random_range(0..2));
            let stall = Fault::Stall(host, self.rng.random_range(5 * MS..50 * MS));
            self.plan.faults.push((at_ns, stall));
        }
        self.plan.expected = Expected {
            lossless: false,
            slowest_ns: 400 * MS,
            resent: (1_000, 200),
        };
    }

    fn restart(&mut self) {
        let loss = self.rng.random_range(0.0..0.02);
        self.all_links(|link| link.loss = loss);
        // In every other plan the other end follows while answers to the first one are
        // on their way, some of them longer than others.
        let both = (self.plan.seed / Case::ALL.len() as u64).is_multiple_of(2);
        if both {
            for link in self.plan.links.iter_mut().flatten() {
                link.delay_ns *= self.rng.random_range(1..10);
            }
        }
        for _ in 0..self.rng.random_range(1..4) {
            let (at_ns, host) = (self.meanwhile(), self.rng.random_range(0..2));
            self.plan.faults.push((at_ns, Fault::Restart(host)));
            if both {
                let after_ns = at_ns + self.rng.random_range(0..2 * MS);
                self.plan.faults.push((after_ns, Fault::Restart(1 - host)));
            } else {
                // One that does not live long, and whose probes come when it is gone: some
                // die before anything that proves them has come.
                let after_ns = at_ns + self.rng.random_range(50 * US..5 * MS);
                self.plan.faults.push((after_ns, Fault::Restart(host)));
            }
        }
        if !both {
            let ns = self.rng.random_range(MS..8 * MS);
            self.all_links(|link| (link.straggler, link.straggler_ns) = (0.2, ns));
        }
        self.plan.expected = Expected {
            lossless: false,
            slowest_ns: 300 * MS,
            resent: (300, 150),
        };
    }

    fn large_batch(&mut self) {
        self.all_links(|link| (link.rate, link.queue) = (2_500_000_000, 8 << 20));
        (self.frames, self.busy_ns) = (self.rng.random_range(60..160), 6 * MS);
        for step in 0..self.rng.random_range(2..6) {
            let at_ns = (step + 1) * MS;
            let host = self.rng.random_range(0..2);
            let stall = Fault::Stall(host, self.rng.random_range(300 * US..900 * US));
            self.plan.faults.push((at_ns, stall));
        }
        self.plan.expected.resent = (10, 20);
    }

    fn windows_full(&mut self) {
        let rate = self.rng.random_range(4_000_000..15_000_000);
        self.all_links(|link| (link.rate, link.queue) = (rate, 1 << 20));
        (self.frames, self.largest) = (self.rng.random_range(40..120), 20_000);
        self.plan.expected.resent = (150, 60);
        self.plan.expected.slowest_ns = 3_000 * MS;
        self.plan.expected.lossless = false;
        self.plan.quiet_ns = 1_500 * MS;
    }

    fn queue_overflow(&mut self) {
        let queue = self.rng.random_range(12_000..60_000);
        self.all_links(|link| link.queue = queue);
        self.frames = self.rng.random_range(60..160);
        self.plan.expected.resent = (900, 150);
        self.plan.expected.lossless = false;
        self.plan.expected.slowest_ns = 500 * MS;
    }

    fn vnic_full(&mut self) {
        self.plan.vnic = Some(VnicPlan {
            frames: self.rng.random_range(1..8),
            frame_ns: self.rng.random_range(10 * US..150 * US),
        });
        self.plan.expected = Expected {
            lossless: false,
            slowest_ns: 300 * MS,
            resent: (2_000, 300),
        };
    }

    fn memory_cap(&mut self) {
        let limits = &mut self.plan.config.limits;
        (limits.frames, limits.frame_bytes) = (self.rng.random_range(8..64), 1 << 20);
        let mut small = self.plan.config.clone();
        (small.limits.chunks, small.limits.chunk_bytes) = (256, 1 << 18);
        self.random_loss(0.01, 0.06);
        if (self.plan.seed / Case::ALL.len() as u64).is_multiple_of(2) {
            // The cap comes while more than that may be under way.
            for host in 0..2 {
                let at_ns = self.meanwhile();
                let fault = Fault::TransportConfig(host, Box::new(small.clone()));
                self.plan.faults.push((at_ns, fault));
            }
        } else {
            self.plan.config = small;
        }
        (self.frames, self.large) = (self.rng.random_range(30..80), 3);
        self.plan.expected.lossless = false;
        self.plan.expected.resent = (1_500, 300);
        self.plan.expected.slowest_ns = 400 * MS;
    }

    fn mtu_shrink(&mut self, announced: bool) {
        // Large frames of which some chunks come late: they are cut again while a part of
        // them is acknowledged.
        (self.frames, self.large) = (self.rng.random_range(40..80), 5);
        self.random_loss(0.001, 0.03);
        let at_ns = self.meanwhile();
        let all = self.rng.random_bool(0.5);
        let mtu = self.rng.random_range(1280..1480);
        for path in 0..if all { self.paths() } else { 1 } {
            self.change(at_ns, path, |link| link.mtu = mtu);
            for host in 0..if announced { 2 } else { 0 } {
                let heard_ns = at_ns + self.rng.random_range(0..2 * MS);
                self.plan
                    .faults
                    .push((heard_ns, Fault::Mtu(host, path, mtu)));
            }
        }
        self.plan.expected.resent = (500, 200);
        if !announced {
            self.plan.quiet_ns = at_ns + 500 * MS;
            self.plan.expected.resent = (1_500, 400);
            self.plan.expected.lossless = false;
            self.plan.expected.slowest_ns = 600 * MS;
        }
    }

    fn attacker(&mut self) {
        if self.rng.random_bool(0.5) {
            self.plan.config.keys.send = Some(key(1));
        }
        for _ in 0..self.rng.random_range(2..20) {
            let (at_ns, count) = (self.meanwhile(), self.rng.random_range(1..60));
            self.plan.faults.push((at_ns, Fault::Attacker(count)));
        }
        self.plan.expected.resent = (10, 40);
    }

    fn late_after_skip(&mut self) {
        self.plan.config.reorder_timeout_ns = self.rng.random_range(200 * US..MS);
        let (straggler, ns) = (
            self.rng.random_range(0.005..0.05),
            self.rng.random_range(MS..60 * MS),
        );
        let loss = self.rng.random_range(0.0..0.05);
        self.all_links(|link| {
            (link.straggler, link.straggler_ns, link.loss) = (straggler, ns, loss);
        });
        self.plan.expected.lossless = false;
        self.plan.expected.resent = (500, 100);
    }

    fn rotation(&mut self) {
        let config = self.plan.config.clone();
        let with = |send, also| {
            let keys = TunnelKeys {
                send: Some(key(send)),
                also,
            };
            Box::new(TransportConfig {
                keys,
                ..config.clone()
            })
        };
        let stages = [(1, Some(2)), (2, Some(1)), (2, None)];
        self.plan.config.keys.send = Some(key(1));
        for (stage, (send, also)) in stages.into_iter().enumerate() {
            for host in 0..2 {
                let at_ns = (1 + stage as u64) * 10 * MS + self.rng.random_range(0..2 * MS);
                let fault = Fault::TransportConfig(host, with(send, also.map(key)));
                self.plan.faults.push((at_ns, fault));
            }
        }
        self.random_loss(0.0001, 0.02);
    }

    fn path_changes(&mut self) {
        for _ in 0..self.rng.random_range(1..6) {
            let (host, path) = (
                self.rng.random_range(0..2),
                self.rng.random_range(1..self.paths()),
            );
            let at_ns = 2 * MS + 10 * MS * self.rng.random_range(0..4) + path as u64 * MS;
            let until_ns = at_ns + self.rng.random_range(100 * US..9 * MS);
            let taken = |(at, fault): &(u64, Fault)| {
                let same = matches!(fault, Fault::Remove(h, p) if (*h, *p) == (host, path));
                same && at.abs_diff(at_ns) < 10 * MS
            };
            if self.plan.faults.iter().any(taken) {
                continue;
            }
            self.plan.faults.push((at_ns, Fault::Remove(host, path)));
            self.plan.faults.push((until_ns, Fault::Add(host, path)));
        }
        self.plan.expected.resent = (500, 200);
    }

    fn mixed(&mut self) {
        let rng = &mut self.rng;
        let (loss, duplicate) = (rng.random_range(0.0..0.05), rng.random_range(0.0..0.1));
        let jitter_ns = rng.random_range(0..300 * US);
        let straggler = rng.random_range(0.0..0.01);
        self.all_links(|link| {
            (link.loss, link.duplicate, link.jitter_ns) = (loss, duplicate, jitter_ns);
            (link.straggler, link.straggler_ns) = (straggler, 20 * MS);
        });
        self.flap();
        self.one_way();
        self.stall();
        let (at_ns, host) = (self.meanwhile(), self.rng.random_range(0..2));
        if self.rng.random_bool(0.3) {
            self.plan.faults.push((at_ns, Fault::Restart(host)));
        }
        if self.rng.random_bool(0.3) {
            self.plan.faults.push((at_ns, Fault::Mtu(host, 0, 1300)));
        }
        self.plan.faults.push((at_ns, Fault::Attacker(20)));
        if self.rng.random_bool(0.3) {
            self.vnic_full();
        }
        self.plan.expected = Expected {
            lossless: false,
            slowest_ns: 500 * MS,
            resent: (2_000, 400),
        };
    }
}
