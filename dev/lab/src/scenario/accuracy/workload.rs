// SPDX-License-Identifier: Apache-2.0
//! The rows of the matrix.
//!
//! What a row is about (its window, its path, its kind of server) is fixed. Its
//! other parameters (service times and their spread, sizes, how pages branch) are
//! drawn from the seed, so that a new seed holds out parameters too.

mod rows;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use crate::link_emulator::Impairment;
use crate::load::page::PageShape;
use crate::load::protocol::AppProtocol;
use crate::quic::{Order, Stack};
use crate::timed_http_server::{Discipline, Drift, ServiceBehaviour};

/// The server of a workload.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ServerKind {
    /// The lab's own web server.
    #[serde(rename = "web")]
    Timed(ServiceBehaviour),
    /// nginx under a CPU quota, handed out every 10 ms; the share of a CPU is
    /// drawn again every `every_ms`, uniform between two bounds.
    Throttled { shares: (f64, f64), every_ms: u64 },
    /// memcached.
    Memcached,
    /// Redis.
    Redis,
    /// HTTP/3; its service times drift as the web server's do.
    Quic {
        stack: Stack,
        order: Order,
        drift: Drift,
    },
}

/// What spec and paper say about a row.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Target {
    /// Median of the absolute relative error of 200 ms epochs, in percent.
    pub median_pct: Option<f64>,
    /// Share of epochs within 10 %, in percent.
    pub within10_pct: Option<f64>,
    /// Over all responses, the size of the signed median, in percent; and 5th
    /// and 95th percentile within 10 %.
    pub signed_pct: Option<f64>,
    /// No flow's own median is above this, in percent.
    pub worst_flow_pct: Option<f64>,
    /// What the paper has on the same subject.
    pub paper: &'static str,
}

/// One row.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct AccuracyWorkload {
    /// Place in the table.
    pub number: usize,
    /// The word for it.
    pub name: &'static str,
    /// A few words.
    pub about: &'static str,
    pub seed: u64,
    pub seconds: f64,
    pub server: ServerKind,
    pub protocol: AppProtocol,
    pub path: Impairment,
    /// Whether one buffer may stand for several packets (TSO, GRO).
    pub offloads: bool,
    /// W: requests outstanding per connection.
    pub outstanding: usize,
    pub pipeline: bool,
    pub connections: usize,
    /// Life of a connection; 0: as long as the load.
    pub max_age_ms: u64,
    pub idle_ms: f64,
    pub page: PageShape,
    pub target: Target,
    /// Record both directions too, for estimators that need them.
    pub both_directions: bool,
    /// Clients log their TCP's own round-trip time.
    pub tcp_info: bool,
    /// It uses so little CPU that it may run beside others.
    pub mostly_waits: bool,
}

impl AccuracyWorkload {
    /// Epochs of the evaluation.
    pub(crate) fn epoch_ns(&self) -> u64 {
        200_000_000
    }
}

/// Draws rows.
struct Draw {
    seed: u64,
    seconds: f64,
    rows: Vec<AccuracyWorkload>,
}

const KB: f64 = 1024.0;

impl Draw {
    /// A row over HTTP/1.1 with W requests outstanding on four connections.
    fn web(&mut self, name: &'static str, about: &'static str, w: usize) -> &mut AccuracyWorkload {
        let number = self.rows.len();
        // Each row has a generator of its own: adding one changes no other.
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.seed.to_le_bytes());
        for (to, from) in key[8..].iter_mut().zip(name.bytes()) {
            *to = from;
        }
        let rng = &mut StdRng::from_seed(key);
        let median_us = rng.random_range(1_200.0..3_500.0);
        let page = PageShape {
            objects: (rng.random_range(6..12), rng.random_range(40..80)),
            fanout: (w as u32).max(rng.random_range(4..9)),
            size_median: rng.random_range(2.0 * KB..6.0 * KB),
            size_sigma: rng.random_range(0.8..1.3),
            service_median_us: median_us,
            service_sigma: rng.random_range(0.4..0.8),
            service_min_us: (median_us / 6.0) as u32,
            ..PageShape::default()
        };
        let behaviour = ServiceBehaviour {
            discipline: Discipline::Parallel,
            drift: Drift {
                sigma: rng.random_range(0.2..0.5),
                every_ms: rng.random_range(150.0..600.0),
            },
        };
        self.rows.push(AccuracyWorkload {
            number,
            name,
            about,
            seed: rng.random(),
            seconds: self.seconds,
            server: ServerKind::Timed(behaviour),
            protocol: AppProtocol::Http,
            path: Impairment::default(),
            offloads: false,
            outstanding: w,
            pipeline: false,
            connections: 4,
            max_age_ms: 0,
            idle_ms: 0.0,
            page,
            target: Target::default(),
            both_directions: false,
            tcp_info: false,
            mostly_waits: false,
        });
        &mut self.rows[number]
    }
}

impl AccuracyWorkload {
    fn discipline(&mut self, discipline: Discipline) -> &mut Self {
        if let ServerKind::Timed(behaviour) = &mut self.server {
            behaviour.discipline = discipline;
        }
        self
    }

    fn drift(&mut self, drift: Drift) -> &mut Self {
        match &mut self.server {
            ServerKind::Timed(behaviour) => behaviour.drift = drift,
            ServerKind::Quic { drift: of, .. } => *of = drift,
            _ => {}
        }
        self
    }

    /// The same over HTTP/3.
    fn quic(&mut self, stack: Stack, order: Order) -> &mut Self {
        if let ServerKind::Timed(ServiceBehaviour { drift, .. }) = self.server {
            self.server = ServerKind::Quic {
                stack,
                order,
                drift,
            };
        }
        self
    }

    /// Response sizes around a median.
    fn sizes(&mut self, median: f64, sigma: f64, max: u32) -> &mut Self {
        self.page.size_median = median;
        self.page.size_sigma = sigma;
        self.page.size_max = max;
        self
    }

    fn path(&mut self, path: Impairment) -> &mut Self {
        self.path = path;
        self
    }

    /// Service takes exactly this long, but for a share that takes `slow_us`.
    fn service(&mut self, us: u32, slow_share: f64, slow_us: u32) -> &mut Self {
        self.page.service_median_us = us.into();
        self.page.service_min_us = us;
        self.page.service_sigma = 0.0;
        self.page.slow_share = slow_share;
        self.page.slow_us = slow_us;
        self.mostly_waits = true;
        self.connections = 8;
        // A page is asked for to its end: many slow objects would never end.
        self.page.objects = if us > 100_000 { (1, 2) } else { (20, 40) };
        self.drift(Drift::default())
    }

    /// A key-value store: half the requests store a value.
    fn store(&mut self, server: ServerKind, protocol: AppProtocol) -> &mut Self {
        self.server = server;
        self.protocol = protocol;
        self.page.size_median = 2_000.0;
        self.page.size_max = 10_000;
        self.page.store_share = 0.5;
        // One thread plays all clients: with more it would be them that is slow.
        self.connections = 2;
        // Nothing waits for anything but the window.
        self.page.fanout = self.outstanding as u32;
        self.page.objects = (2_000, 4_000);
        self
    }

    fn within(&mut self, median_pct: f64) -> &mut Self {
        self.target.median_pct = Some(median_pct);
        self
    }

    fn mostly_within10(&mut self) -> &mut Self {
        self.target.within10_pct = Some(95.0);
        self
    }

    fn paper(&mut self, says: &'static str) -> &mut Self {
        self.target.paper = says;
        self
    }
}

/// All rows, with parameters drawn from `seed`, each a load of `seconds`.
pub(crate) fn all(seed: u64, seconds: f64) -> Vec<AccuracyWorkload> {
    let mut draw = Draw {
        seed,
        seconds,
        rows: Vec::new(),
    };
    rows::windows(&mut draw);
    rows::disciplines(&mut draw);
    rows::paths(&mut draw);
    rows::offloads(&mut draw);
    rows::stores(&mut draw);
    rows::slow(&mut draw);
    rows::http3(&mut draw);
    draw.rows
}
