// SPDX-License-Identifier: Apache-2.0

//! What a seed stands for: one kind of trouble, with random strength.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::{Config, Key, Keys, Rto, Schedule};

use super::host::MIN_FRAME;
use super::link::LinkSettings;

const MS: u64 = 1_000_000;
const US: u64 = 1_000;

macro_rules! cases {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal,)*) => {
        /// The kinds of trouble.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Case { $($(#[doc = $doc])* $variant,)* }

        impl Case {
            /// All of them; seed `n` plays the one at `n` modulo their number.
            pub const ALL: &[Case] = &[$(Case::$variant,)*];

            /// The case's word.
            pub fn name(self) -> &'static str {
                match self { $(Case::$variant => $name,)* }
            }
        }
    };
}

cases! {
    /// None.
    Clean = "clean",
    /// Single datagrams are lost.
    RandomLoss = "random-loss",
    /// Several in a row.
    BurstLoss = "burst-loss",
    /// Heavy loss in both directions at once.
    DataAndAckLoss = "data-and-ack-loss",
    /// Only acknowledgements are lost.
    AckLoss = "ack-loss",
    /// All paths are down, and come back.
    AllDown = "all-down",
    /// Some paths pass nothing in one direction.
    OneWay = "one-way",
    /// A path goes down and up in step with the engine's timers.
    Flap = "flap",
    /// Paths become ten times longer, and short again.
    TenfoldRtt = "tenfold-rtt",
    /// Datagrams overtake each other within a path.
    Reordering = "reordering",
    /// An endpoint does nothing for 5 to 50 ms.
    Stall = "stall",
    /// The network duplicates.
    Duplicates = "duplicates",
    /// The clock on the wire wraps; sequence numbers do in every case.
    Wraps = "wraps",
    /// An endpoint is started anew.
    Restart = "restart",
    /// Guests' flows share the few numbers that there are for flows.
    Collision = "collision",
    /// Thousands of short flows use these numbers one after the other.
    Reuse = "reuse",
    /// More arrives at once than the bitmap covers.
    LargeBatch = "large-batch",
    /// Slow lines: the windows of all paths are full.
    WindowsFull = "windows-full",
    /// Short queues in the network overflow.
    QueueOverflow = "queue-overflow",
    /// The vNIC has no room.
    VnicFull = "vnic-full",
    /// The engine may hold little.
    MemoryCap = "memory-cap",
    /// Paths become narrower, and somebody says so.
    MtuShrink = "mtu-shrink",
    /// Nobody says so.
    SilentMtuShrink = "silent-mtu-shrink",
    /// An enemy sends all sorts of datagrams.
    Enemy = "enemy",
    /// Datagrams arrive after their frame was skipped.
    LateAfterSkip = "late-after-skip",
    /// Keys are rotated.
    Rotation = "rotation",
    /// Paths are taken away, added, and their links go down and up.
    PathChanges = "path-changes",
    /// Several of the above.
    Mixed = "mixed",
}

/// A frame of a guest.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// After the start.
    pub at_ns: u64,
    /// 0 or 1.
    pub host: usize,
    /// The guest's flow.
    pub flow: u32,
    /// Bytes, virtio header included.
    pub len: u32,
}

/// What happens to the world.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Path, sending host, what its link is like from now on.
    Link(usize, usize, LinkSettings),
    /// Host, for how long it does nothing.
    Stall(usize, u64),
    /// Host.
    Restart(usize),
    /// Host, path, the MTU that it hears of.
    Mtu(usize, usize, u16),
    /// Host, path, whether its link is up.
    LinkState(usize, usize, bool),
    /// Host, path.
    Remove(usize, usize),
    /// Host, path.
    Add(usize, usize),
    /// Host, its new settings.
    Config(usize, Box<Config>),
    /// So many datagrams of an enemy.
    Enemy(u32),
}

/// A vNIC's ring.
#[derive(Clone, Copy, Debug)]
pub struct VnicPlan {
    /// Frames that fit.
    pub frames: u64,
    /// The guest takes one in this time.
    pub frame_ns: u64,
}

/// What must hold in the end, beside what must always hold.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Every frame is delivered.
    pub lossless: bool,
    /// The slowest frame took no longer, from the guest to the other guest.
    pub slowest_ns: u64,
    /// Chunks sent again, in thousandths of those sent, and so many more.
    pub resent: (u64, u64),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where it came from.
    pub seed: u64,
    /// Its kind.
    pub case: Case,
    /// Settings of both ends.
    pub config: Config,
    /// The clock's first value.
    pub start_ns: u64,
    /// For each path, the link from host 0 and that from host 1.
    pub links: Vec<[LinkSettings; 2]>,
    /// What the guests send.
    pub offers: Vec<Offer>,
    /// What happens when, after the start.
    pub faults: Vec<(u64, Fault)>,
    /// The vNICs of both ends, if they can be full.
    pub vnic: Option<VnicPlan>,
    /// From here on there is no more trouble; every flow sends one more frame, which
    /// must arrive.
    pub quiet_ns: u64,
    /// The end.
    pub end_ns: u64,
    /// What must hold.
    pub expected: Expected,
}

/// A plan in the making.
struct Draft {
    rng: Pcg64Mcg,
    plan: Plan,
    /// Guests' frames are spread over this time.
    busy_ns: u64,
    frames: u32,
    flows: u32,
    largest: u32,
    /// Of ten frames, those of 16 KB and more.
    large: u32,
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Plan {
        let case = Case::ALL[(seed % Case::ALL.len() as u64) as usize];
        let mut draft = Draft::new(seed, case);
        draft.trouble();
        draft.finish()
    }
}

impl Draft {
    fn new(seed: u64, case: Case) -> Draft {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let mut config = Config {
            flows: 256,
            schedule: match rng.random_range(0..8) {
                0 => Schedule::LowestRtt,
                1 => Schedule::Spray,
                _ => Schedule::Completion,
            },
            ..Config::default()
        };
        if rng.random_bool(0.15) {
            config.rto = Rto::Fixed(4 * MS);
        }
        if rng.random_bool(0.2) {
            config.keys.send = Some(key(1));
        }
        let rate = *[31_250_000, 125_000_000, 1_250_000_000]
            .choose(&mut rng)
            .unwrap_or(&125_000_000);
        let base_ns = rng.random_range(20 * US..400 * US);
        let count = rng.random_range(2..=4);
        let links = (0..count).map(|_| {
            let settings = LinkSettings {
                rate,
                delay_ns: base_ns + rng.random_range(0..100 * US),
                ..LinkSettings::default()
            };
            [settings; 2]
        });
        let links = links.collect();
        let plan = Plan {
            seed,
            case,
            config,
            start_ns: rng.random_range(1..1_000 * MS),
            links,
            offers: Vec::new(),
            faults: Vec::new(),
            vnic: None,
            quiet_ns: 0,
            end_ns: 0,
            expected: Expected {
                lossless: true,
                slowest_ns: 100 * MS,
                resent: (1, 5),
            },
        };
        Draft {
            busy_ns: rng.random_range(4 * MS..30 * MS),
            frames: rng.random_range(20..120),
            flows: rng.random_range(1..8),
            largest: 65_545,
            large: 1,
            rng,
            plan,
        }
    }

    fn trouble(&mut self) {
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
            Case::Enemy => self.enemy(),
            Case::LateAfterSkip => self.late_after_skip(),
            Case::Rotation => self.rotation(),
            Case::PathChanges => self.path_changes(),
            Case::Mixed => self.mixed(),
        }
    }

    fn all_links(&mut self, change: impl Fn(&mut LinkSettings)) {
        self.plan.links.iter_mut().flatten().for_each(change);
    }

    /// Both links of a path change at a time.
    fn change(&mut self, at_ns: u64, path: usize, change: impl Fn(&mut LinkSettings)) {
        for side in 0..2 {
            let mut settings = self.plan.links[path][side];
            change(&mut settings);
            self.plan
                .faults
                .push((at_ns, Fault::Link(path, side, settings)));
        }
    }

    fn paths(&self) -> usize {
        self.plan.links.len()
    }

    /// A time while the guests send.
    fn meanwhile(&mut self) -> u64 {
        self.rng.random_range(2 * MS..self.busy_ns)
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
                let fault = Fault::Config(host, Box::new(small.clone()));
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
        // Large frames of which some chunks come late: they are cut anew while a part of
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

    fn enemy(&mut self) {
        if self.rng.random_bool(0.5) {
            self.plan.config.keys.send = Some(key(1));
        }
        for _ in 0..self.rng.random_range(2..20) {
            let (at_ns, count) = (self.meanwhile(), self.rng.random_range(1..60));
            self.plan.faults.push((at_ns, Fault::Enemy(count)));
        }
        self.plan.expected.resent = (10, 40);
    }

    fn late_after_skip(&mut self) {
        self.plan.config.hold_ns = self.rng.random_range(200 * US..MS);
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
            let keys = Keys {
                send: Some(key(send)),
                also,
            };
            Box::new(Config {
                keys,
                ..config.clone()
            })
        };
        let stages = [(1, Some(2)), (2, Some(1)), (2, None)];
        self.plan.config.keys.send = Some(key(1));
        for (stage, (send, also)) in stages.into_iter().enumerate() {
            for host in 0..2 {
                let at_ns = (1 + stage as u64) * 10 * MS + self.rng.random_range(0..2 * MS);
                let fault = Fault::Config(host, with(send, also.map(key)));
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
                let same = matches!(fault, Fault::Remove(h, p) | Fault::LinkState(h, p, _)
                    if (*h, *p) == (host, path));
                same && at.abs_diff(at_ns) < 10 * MS
            };
            if self.plan.faults.iter().any(taken) {
                continue;
            }
            let (down, up) = if self.rng.random_bool(0.5) {
                (Fault::Remove(host, path), Fault::Add(host, path))
            } else {
                (
                    Fault::LinkState(host, path, false),
                    Fault::LinkState(host, path, true),
                )
            };
            self.plan.faults.push((at_ns, down));
            self.plan.faults.push((until_ns, up));
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
        self.plan.faults.push((at_ns, Fault::Enemy(20)));
        if self.rng.random_bool(0.3) {
            self.vnic_full();
        }
        self.plan.expected = Expected {
            lossless: false,
            slowest_ns: 500 * MS,
            resent: (2_000, 400),
        };
    }

    fn finish(mut self) -> Plan {
        for _ in 0..self.frames {
            let kind = self.rng.random_range(0..10);
            let others = 10 - self.large;
            let len = if kind >= others {
                self.rng.random_range(16_000..=65_545)
            } else if kind < others * 2 / 3 {
                self.rng.random_range(MIN_FRAME..1_500)
            } else {
                self.rng.random_range(1_500..16_000)
            };
            self.plan.offers.push(Offer {
                at_ns: self.rng.random_range(0..self.busy_ns),
                host: self.rng.random_range(0..2),
                flow: self.rng.random_range(0..self.flows),
                len: len.min(self.largest),
            });
        }
        self.plan.offers.sort_by_key(|offer| offer.at_ns);
        let plan = &mut self.plan;
        plan.faults.sort_by_key(|(at_ns, _)| *at_ns);
        let last_ns = plan.faults.last().map_or(0, |(at_ns, fault)| {
            at_ns
                + if let Fault::Stall(_, ns) = fault {
                    *ns
                } else {
                    0
                }
        });
        plan.quiet_ns = plan.quiet_ns.max(last_ns).max(self.busy_ns) + 250 * MS;
        for host in 0..2 {
            for flow in 0..self.flows.min(8) {
                plan.offers.push(Offer {
                    at_ns: plan.quiet_ns,
                    host,
                    flow,
                    len: 2_000,
                });
            }
        }
        plan.end_ns = plan.quiet_ns + 450 * MS;
        self.plan
    }
}

fn key(id: u8) -> Key {
    Key {
        id,
        secret: [id; 32],
    }
}
