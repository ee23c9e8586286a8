// SPDX-License-Identifier: Apache-2.0
//! The rows of the matrix.
//!
//! What a row is about (its window, its path, its kind of server) is fixed. Its
//! other parameters (service times and their spread, sizes, how pages branch) are
//! drawn from the seed, so that a new seed holds out parameters too.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use crate::line::Impairment;
use crate::load::page::PageShape;
use crate::load::protocol::Protocol;
use crate::quic::{Order, Stack};
use crate::web::{Behaviour, Discipline, Drift};

/// The server of a workload.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Server {
    /// The lab's own web server.
    Web(Behaviour),
    /// nginx under a CPU quota, handed out every 10 ms; the share of a CPU is
    /// drawn anew every so often, uniform between two bounds.
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
pub struct Target {
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
pub struct Workload {
    /// Place in the table.
    pub number: usize,
    /// The word for it.
    pub name: &'static str,
    /// A few words.
    pub about: &'static str,
    pub seed: u64,
    pub seconds: f64,
    pub server: Server,
    pub protocol: Protocol,
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

impl Workload {
    /// Epochs of the evaluation.
    pub fn epoch_ns(&self) -> u64 {
        200_000_000
    }
}

/// Draws rows.
struct Draw {
    seed: u64,
    seconds: f64,
    rows: Vec<Workload>,
}

const KB: f64 = 1024.0;

impl Draw {
    /// A row over HTTP/1.1 with W requests outstanding on four connections.
    fn web(&mut self, name: &'static str, about: &'static str, w: usize) -> &mut Workload {
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
        let behaviour = Behaviour {
            discipline: Discipline::Parallel,
            drift: Drift {
                sigma: rng.random_range(0.2..0.5),
                every_ms: rng.random_range(150.0..600.0),
            },
        };
        self.rows.push(Workload {
            number,
            name,
            about,
            seed: rng.random(),
            seconds: self.seconds,
            server: Server::Web(behaviour),
            protocol: Protocol::Http,
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

impl Workload {
    fn discipline(&mut self, discipline: Discipline) -> &mut Self {
        if let Server::Web(behaviour) = &mut self.server {
            behaviour.discipline = discipline;
        }
        self
    }

    fn drift(&mut self, drift: Drift) -> &mut Self {
        match &mut self.server {
            Server::Web(behaviour) => behaviour.drift = drift,
            Server::Quic { drift: of, .. } => *of = drift,
            _ => {}
        }
        self
    }

    /// The same over HTTP/3.
    fn quic(&mut self, stack: Stack, order: Order) -> &mut Self {
        if let Server::Web(Behaviour { drift, .. }) = self.server {
            self.server = Server::Quic {
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
    fn store(&mut self, server: Server, protocol: Protocol) -> &mut Self {
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

const fn round_trip(ms: u64) -> Impairment {
    Impairment {
        round_trip_us: ms * 1000,
        loss: 0.0,
        reorder: 0.0,
        hold_us: 0,
        jitter_us: 0,
        overtake: false,
    }
}

/// All rows, with parameters drawn from `seed`, each a load of `seconds`.
pub fn all(seed: u64, seconds: f64) -> Vec<Workload> {
    let mut draw = Draw {
        seed,
        seconds,
        rows: Vec::new(),
    };
    windows(&mut draw);
    disciplines(&mut draw);
    paths(&mut draw);
    offloads(&mut draw);
    stores(&mut draw);
    slow(&mut draw);
    http3(&mut draw);
    draw.rows
}

fn windows(draw: &mut Draw) {
    let web = draw.web(
        "web",
        "W=4, pages as a browser asks for them, connections of 1 to 2 s",
        4,
    );
    (web.max_age_ms, web.idle_ms, web.connections) = (2_000, 20.0, 8);
    web.target.signed_pct = Some(0.5);
    web.paper("median 0.63 % over all responses, tails beyond 15 %");
    draw.web("w1", "W=1", 1).within(0.1);
    draw.web("w2", "W=2, independent service times", 2);
    draw.web("w4_par", "W=4, independent service times", 4)
        .within(1.2)
        .mostly_within10()
        .paper("median 0.63 % over all responses");
    draw.web("w6_par", "W=6, independent service times", 6);
    draw.web("w8_par", "W=8, independent service times", 8)
        .within(2.0);
}

fn disciplines(draw: &mut Draw) {
    draw.web("w4_batch", "W=4, one service time for all that wait", 4)
        .discipline(Discipline::Batch)
        .within(1.0)
        .mostly_within10();
    draw.web("w2_seq", "W=2, served one after the other", 2)
        .discipline(Discipline::Serial);
    draw.web("w4_seq", "W=4, served one after the other", 4)
        .discipline(Discipline::Serial)
        .within(0.8)
        .mostly_within10();
    let cpu = draw.web(
        "w4_cpu10",
        "W=4, nginx with 8 to 25 % of a CPU, in 10 ms periods",
        4,
    );
    cpu.server = Server::Throttled {
        shares: (0.08, 0.25),
        every_ms: 400,
    };
    cpu.page.service_median_us = 0.0;
    cpu.page.service_min_us = 0;
    cpu.within(1.5).mostly_within10();
    draw.web("w1_idle", "W=1, idle between pages, 300 ms on the mean", 1)
        .within(1.0)
        .idle_ms = 300.0;
    draw.web("w4_idle", "W=4, idle between pages, 30 ms on the mean", 4)
        .within(1.0)
        .idle_ms = 30.0;
}

fn paths(draw: &mut Draw) {
    draw.web("w4_wan20", "W=4, 20 ms of path", 4)
        .path(round_trip(20))
        .within(1.0);
    draw.web("w6_wan40", "W=6, 40 ms of path", 6)
        .path(round_trip(40));
    draw.web("w4_wan80", "W=4, 80 ms of path", 4)
        .path(round_trip(80));
    let slow = draw.web("w4_wan20_slow", "W=4, 20 ms of path, service of 60 ms", 4);
    slow.path(round_trip(20)).page.service_median_us = 60_000.0;
    slow.page.service_sigma = 0.4;
    slow.connections = 8;
    draw.web("w1_loss1", "W=1, 1 % of the client's packets lost", 1)
        .path(Impairment {
            loss: 0.01,
            ..Impairment::default()
        })
        .within(1.2)
        .paper("robust (figure 6a)");
    draw.web("w4_loss1", "W=4, 1 % of the client's packets lost", 4)
        .path(Impairment {
            loss: 0.01,
            ..Impairment::default()
        })
        .within(1.2)
        .paper("robust (figure 6a)");
    draw.web(
        "w4_reorder25",
        "W=4, 25 % of the client's packets held back",
        4,
    )
    .discipline(Discipline::Batch)
    .path(Impairment {
        reorder: 0.25,
        hold_us: 400,
        ..Impairment::default()
    })
    .within(1.6)
    .paper("robust (figure 6b)");
}

fn offloads(draw: &mut Draw) {
    draw.web("w4_par_offload", "W=4, independent, TSO and GRO on", 4)
        .offloads = true;
    draw.web(
        "w4_batch_offload",
        "W=4, one time for all, TSO and GRO on",
        4,
    )
    .discipline(Discipline::Batch)
    .offloads = true;
}

fn stores(draw: &mut Draw) {
    for (name, about, w, offloads) in [
        ("memcached_w1", "memcached, get and set, W=1", 1, false),
        ("memcached_w4", "memcached, get and set, W=4", 4, false),
        ("memcached_w4_offload", "the same, TSO and GRO on", 4, true),
    ] {
        draw.web(name, about, w)
            .store(Server::Memcached, Protocol::Memcached)
            .paper("follows closely (figure 10)")
            .offloads = offloads;
    }
    for (name, about, w) in [
        ("redis_p4", "Redis, pipelines of 4 in one write", 4),
        ("redis_p16", "Redis, pipelines of 16 in one write", 16),
    ] {
        draw.web(name, about, w)
            .store(Server::Redis, Protocol::Redis)
            .pipeline = true;
    }
}

fn slow(draw: &mut Draw) {
    let rows: [(&'static str, &'static str, u32, f64, u32); 4] = [
        (
            "slow_250ms",
            "W=1, every response after 250 ms",
            250_000,
            0.0,
            0,
        ),
        (
            "slow_1s",
            "W=1, every response after 1 s",
            1_000_000,
            0.0,
            0,
        ),
        (
            "slow_5s",
            "W=1, every response after 5 s",
            5_000_000,
            0.0,
            0,
        ),
        (
            "slow_mixture",
            "W=1, 90 % after 0.3 ms, 10 % after 500 ms",
            300,
            0.1,
            500_000,
        ),
    ];
    for (name, about, us, share, slow_us) in rows {
        let row = draw
            .web(name, about, 1)
            .service(us, share, slow_us)
            .within(1.0);
        row.seconds = row.seconds.max(4.0 * f64::from(us) / 1e6);
    }
}

fn http3(draw: &mut Draw) {
    let quinn = Stack::Quinn;
    // The sizes are those of PIRATE, section 5.7: 30 to 130 bytes, and 1.6 to 15.1 kB.
    draw.web("h3_w1", "HTTP/3, 1 stream", 1)
        .quic(quinn, Order::Par)
        .within(1.6)
        .paper("close to the truth (figure 9)");
    draw.web("h3_w4_small", "HTTP/3, 4 streams, small responses", 4)
        .quic(quinn, Order::Par)
        .sizes(80.0, 0.4, 512)
        .within(1.6)
        .paper("close to the truth (figure 9, -noack)");
    draw.web("h3_w4", "HTTP/3, 4 streams, responses of some kB", 4)
        .quic(quinn, Order::Par)
        .sizes(6_000.0, 0.6, 15_360)
        .within(1.6)
        .paper("close to the truth (figure 9, -ack)");
    draw.web(
        "h3_w4_batch",
        "HTTP/3, 4 streams, one service time for all",
        4,
    )
    .quic(quinn, Order::Batch)
    .sizes(6_000.0, 0.6, 15_360)
    .within(1.6);
    for (name, about, w) in [
        ("h3_w8", "HTTP/3, 8 streams", 8),
        ("h3_w12", "HTTP/3, 12 streams", 12),
        ("h3_w16", "HTTP/3, 16 streams", 16),
    ] {
        let row = draw.web(name, about, w);
        row.quic(quinn, Order::Par).sizes(6_000.0, 0.6, 15_360);
        row.target.worst_flow_pct = Some(5.0);
    }
    draw.web("h3_w4_wan20", "HTTP/3, 4 streams, 20 ms of path", 4)
        .quic(quinn, Order::Par)
        .path(round_trip(20))
        .within(1.6);
    let idle = draw.web("h3_w4_idle", "HTTP/3, 4 streams, idle between pages", 4);
    idle.quic(quinn, Order::Par).within(1.6);
    idle.idle_ms = 300.0;
    for (name, about, w) in [
        ("h3_go_w1", "HTTP/3 on quic-go, 1 stream", 1),
        ("h3_go_w4", "HTTP/3 on quic-go, 4 streams", 4),
        ("h3_go_w8", "HTTP/3 on quic-go, 8 streams", 8),
    ] {
        let row = draw.web(name, about, w);
        row.quic(Stack::QuicGo, Order::Par)
            .sizes(6_000.0, 0.6, 15_360);
        match w {
            ..=4 => row.target.median_pct = Some(1.6),
            _ => row.target.worst_flow_pct = Some(5.0),
        }
    }
    let rows: [(&'static str, &'static str, u32, f64, u32); 4] = [
        (
            "h3_slow_250ms",
            "HTTP/3, 1 stream, every response after 250 ms",
            250_000,
            0.0,
            0,
        ),
        (
            "h3_slow_1s",
            "HTTP/3, 1 stream, every response after 1 s",
            1_000_000,
            0.0,
            0,
        ),
        (
            "h3_slow_5s",
            "HTTP/3, 1 stream, every response after 5 s",
            5_000_000,
            0.0,
            0,
        ),
        (
            "h3_slow_mixture",
            "HTTP/3, 90 % after 0.3 ms, 10 % after 500 ms",
            300,
            0.1,
            500_000,
        ),
    ];
    for (name, about, us, share, slow_us) in rows {
        let row = draw.web(name, about, 1);
        row.quic(quinn, Order::Par)
            .service(us, share, slow_us)
            .within(1.6);
        row.seconds = row.seconds.max(4.0 * f64::from(us) / 1e6);
    }
}
