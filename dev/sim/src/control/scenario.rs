// SPDX-License-Identifier: Apache-2.0
//! What is simulated.

use causeway_core::control::{ControlParams, Law};

use super::fleet::FleetSpec;
use super::noise::Noise;
use super::trace;

/// A millisecond and a second.
pub const MS: u64 = 1_000_000;
/// See [`MS`].
pub const S: u64 = 1_000 * MS;

/// One server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServerSpec {
    /// Configured weight.
    pub weight: f64,
    /// What it has of a CPU when its neighbours are idle.
    pub capacity: f64,
    /// Requests that it works on at a time; they share the capacity evenly.
    pub workers: usize,
}

/// What is wrong with a server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TroubleKind {
    /// Every request takes this many times its work.
    Slow(f64),
    /// Every answer comes this many ns later, at no cost.
    Delay(u64),
    /// Answers come within 0.1 ms, and are of no use.
    FailFast,
    /// Its estimator gives no samples.
    Blind,
    /// Half of its estimates are this many times too high, and graded low: its clients pause, and
    /// nothing they send shows it.
    Low(f64),
}

/// Something that is wrong for some time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trouble {
    /// Which server; `None`: all.
    pub server: Option<usize>,
    /// From when.
    pub from_ns: u64,
    /// Until when.
    pub to_ns: u64,
    /// On and off for so long each, if above zero.
    pub period_ns: u64,
    /// What.
    pub kind: TroubleKind,
}

/// Steering by what no balancer can know: a bound for every law that moves new
/// connections only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Oracle {
    /// Weights follow the capacities of this very second.
    Capacity,
    /// A connection goes where its first request would be answered first.
    Backlog,
}

/// How a new connection gets its server, in proportion to the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerPick {
    /// By the hash of its tuple, as `maglev`: by chance.
    Hash,
    /// The next in turn, as `latency` and `weighted-round-robin`.
    Turn,
}

/// Where requests wait for one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// For a worker of the server.
    Workers,
    /// For those before them on their connection alone, as on a server that waits for
    /// others and has time for all, the demo's: `work_ns` is then what each takes, four
    /// fifths of it fixed, one exponential.
    Connection,
}

/// An experiment.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// Source of all chance.
    pub seed: u64,
    /// Source of the capacities' trace.
    pub trace: u64,
    /// Length.
    pub seconds: f64,
    /// Requests count from here on.
    pub warm_up_ns: u64,
    /// The pool.
    pub servers: Vec<ServerSpec>,
    /// Whether capacities follow a trace; else they stay.
    pub traced: bool,
    /// Period in which a worker gets its capacity as a quota: a whole CPU until that is spent,
    /// then nothing, as in a control group. `None`: its share at every instant.
    pub quota_ns: Option<u64>,
    /// Offered work as a part of the mean capacity.
    pub load: f64,
    /// Users, each with one connection at a time.
    pub users: usize,
    /// Requests that may wait on a connection.
    pub outstanding: usize,
    /// Round trip of a user's path, from and to.
    pub path_ns: (u64, u64),
    /// Whether the controller goes by what servers add to it; else by whole responses.
    pub by_servers: bool,
    /// Whether the controller goes by estimates graded better than low alone.
    pub by_grade: bool,
    /// Objects of a page, from and to.
    pub objects: (usize, usize),
    /// CPU time of a request, on the mean: half of it fixed, half exponential.
    pub work_ns: u64,
    /// What requests wait for.
    pub wait: Wait,
    /// Connections live between half of this and this long.
    pub max_age_ns: u64,
    /// What is wrong, and when.
    pub troubles: Vec<Trouble>,
    /// The estimator's errors.
    pub noise: Noise,
    /// The controller; `None`: plain hashing.
    pub control: Option<(Law, ControlParams)>,
    /// How the weights become servers.
    pub pick: ServerPick,
    /// Steering that knows all, in the controller's stead.
    pub oracle: Option<Oracle>,
    /// The first user's requests take this many times the work, one page after another.
    pub hog: Option<f64>,
    /// The balancers, where there are several.
    pub fleet: Option<FleetSpec>,
}

impl Default for Experiment {
    /// Four equal servers at 45 %, web-like users, nothing changes. The lab's `control`
    /// has the same.
    fn default() -> Self {
        let server = ServerSpec {
            weight: 1.0,
            capacity: 0.2,
            workers: 1,
        };
        Self {
            seed: 1,
            trace: 1,
            seconds: 20.0,
            warm_up_ns: 2 * S,
            servers: vec![server; 4],
            traced: false,
            quota_ns: None,
            load: 0.45,
            users: 144,
            outstanding: 4,
            path_ns: (0, 0),
            by_servers: true,
            by_grade: true,
            objects: (4, 12),
            work_ns: MS / 3,
            wait: Wait::Workers,
            max_age_ns: S,
            troubles: Vec::new(),
            noise: Noise::WEB,
            control: Some((Law::default(), ControlParams::default())),
            pick: ServerPick::Turn,
            oracle: None,
            hog: None,
            fleet: None,
        }
    }
}

impl Experiment {
    /// Capacity of one worker of a server in each second.
    pub fn capacity(&self, server: usize) -> Vec<f64> {
        let seconds = self.seconds.ceil() as usize + 1;
        let spec = self.servers[server];
        let full = spec.capacity / spec.workers as f64;
        match self.traced {
            true => trace::cpu(self.trace, server, seconds)
                .into_iter()
                .map(|share| share * full)
                .collect(),
            false => vec![full; seconds],
        }
    }

    /// Mean capacity of the pool, in CPUs.
    pub fn mean_capacity(&self) -> f64 {
        let full: f64 = self.servers.iter().map(|server| server.capacity).sum();
        match self.traced {
            true => full * trace::mean(),
            false => full,
        }
    }

    /// Time between a user's pages, from the load.
    pub fn page_interval_ns(&self) -> u64 {
        let objects = (self.objects.0 + self.objects.1) as f64 / 2.0;
        let work_ns = self.users as f64 * objects * self.work_ns as f64;
        (work_ns / (self.load * self.mean_capacity())) as u64
    }

    /// The same on servers with quotas, as the lab's are, with the samples that its estimator
    /// gives there: bursts are slow together.
    pub fn by_quotas(self) -> Self {
        Self {
            quota_ns: Some(10 * MS),
            noise: Noise::BURSTS,
            ..self
        }
    }

    /// The same without a controller: plain hashing.
    pub fn hashed(self) -> Self {
        Self {
            control: None,
            oracle: None,
            pick: ServerPick::Hash,
            ..self
        }
    }

    /// What is wrong with a server at a time.
    pub(super) fn troubles_at(&self, server: usize, now: u64) -> impl Iterator<Item = TroubleKind> {
        let here = move |trouble: &&Trouble| {
            trouble.server.is_none_or(|which| which == server)
                && (trouble.from_ns..trouble.to_ns).contains(&now)
                && (trouble.period_ns == 0
                    || ((now - trouble.from_ns) / trouble.period_ns).is_multiple_of(2))
        };
        self.troubles
            .iter()
            .filter(here)
            .map(|trouble| trouble.kind)
    }
}
