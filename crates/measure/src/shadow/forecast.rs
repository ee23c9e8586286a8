// SPDX-License-Identifier: Apache-2.0
//! From a recording to the report: what servers are today, and what they would be with
//! Causeway before them.

use std::net::SocketAddr;

use causeway_core::estimate::{Quality, Tally};
use causeway_core::flow::Cidr;
use causeway_core::hist::Latencies;
use causeway_core::select::{RealKey, RingMember, RingSize, maglev};

use super::existing::{ExistingBalancer, Kind, Method};
use super::queue::ServerModel;
use super::recording::{Connection, Recording, Request};
use super::replay::{Outcome, Pick, Visit, dealt_anew, replay};
use super::report::{
    Arrivals, Balancer, Broken, Forecast, LatencySlice, Percentiles, Report, Server, ServerShare,
};
use crate::totals::quantile_of;

/// Parts of the time that latencies are reported for.
const SLICES: u64 = 12;
/// How often the same is replayed, with another server to begin.
const REPLAYS: u64 = 8;
/// Requests replayed in all by which a p99 is known: of long recordings fewer replays say it.
const ENOUGH: u64 = 1_000_000;
/// How often today's requests are dealt out again to see whether the model reproduces today.
const CHECKS: u64 = 5;
/// Requests below which no p99 is reported.
const REQUESTS: u64 = 100;
/// Part of the connections whose requests must have been measured.
const COVERED: f64 = 0.8;
/// A controller has found its weights by then.
const LEAST_NS: u64 = 30_000_000_000;
/// How far the model's p99 of today may be from the measured one.
const CLOSE: f64 = 0.1;
const FAR: f64 = 0.25;

/// A server's part of the recording.
struct OfServer<'a> {
    address: SocketAddr,
    connections: Vec<&'a Connection>,
    requests: Vec<Request>,
    model: ServerModel,
    ranks: Vec<f64>,
}

/// What the recording says. `lost`: packets that the kernel dropped before they were seen.
pub(super) fn report(recording: &Recording, wanted: &[Cidr], source: String, lost: u64) -> Report {
    let pool = ExistingBalancer::find(recording, wanted);
    let servers: Vec<OfServer> = pool
        .servers
        .iter()
        .map(|&server| OfServer::new(&pool, recording, server))
        .collect();
    Report {
        source,
        lasted_s: recording.lasted_ns() as f64 / 1e9,
        packets: recording.packets,
        lost,
        balancer: Balancer {
            kind: pool.kind,
            method: pool.method,
            fronts: pool.fronts.clone(),
        },
        clients: clients(recording, &pool),
        arrivals: arrivals(recording, &servers),
        forecast: forecast(recording, &servers, lost),
        broken: broken(recording, &pool, &servers),
        servers: servers.iter().map(|of| of.report(recording)).collect(),
    }
}

impl<'a> OfServer<'a> {
    fn new(pool: &ExistingBalancer, recording: &'a Recording, address: SocketAddr) -> Self {
        let connections: Vec<&Connection> = pool.connections(recording, address).collect();
        let requests: Vec<Request> = connections
            .iter()
            .flat_map(|of| of.requests.iter().copied())
            .collect();
        let (model, ranks) = ServerModel::learn(&requests);
        Self {
            address,
            connections,
            requests,
            model,
            ranks,
        }
    }

    fn tally(&self) -> Tally {
        let mut sum = Tally::default();
        self.connections.iter().for_each(|of| sum.merge(&of.tally));
        sum
    }

    fn report(&self, recording: &Recording) -> Server {
        let tally = self.tally();
        let (percentiles, _) = percentiles(&self.requests);
        let slice_ns = (recording.lasted_ns() / SLICES).max(1);
        let slice = |index: u64| {
            let from_ns = recording.first_ns + index * slice_ns;
            let of_slice = |of: &&Request| (from_ns..from_ns + slice_ns).contains(&of.done_ns);
            let requests: Vec<Request> = self.requests.iter().filter(of_slice).copied().collect();
            LatencySlice {
                at_s: (index * slice_ns) as f64 / 1e9,
                latency: percentiles_of(&requests),
            }
        };
        Server {
            address: self.address,
            connections: self.connections.len() as u64,
            resets: self.connections.iter().filter(|of| of.reset).count() as u64,
            live: live(recording, self.connections.iter().copied()).0,
            latency: percentiles,
            quality: tally.confidence().quality,
            over_time: (0..SLICES).map(slice).collect(),
            workers: self.model.workers,
            most_at_once: self.model.most_at_once,
            service_ms: (!self.requests.is_empty()).then(|| self.model.mean_service_ns() / 1e6),
        }
    }

    fn visits(&self, index: usize, begin_ns: u64) -> impl Iterator<Item = Visit> + '_ {
        let mut from = 0;
        self.connections.iter().filter_map(move |connection| {
            let upto = from + connection.requests.len();
            let ranks = &self.ranks[from..upto];
            from = upto;
            (!ranks.is_empty()).then(|| Visit::of(connection, index, ranks, begin_ns))
        })
    }
}

fn latencies(requests: &[Request]) -> Latencies {
    let mut latencies = Latencies::default();
    for request in requests {
        latencies.record_n(request.latency_ns(), 1);
    }
    latencies
}

fn told(latencies: &Latencies) -> Percentiles {
    let requests = latencies.count();
    let ms = |quantile| quantile_of(latencies, requests, quantile).map(|ns| ns as f64 / 1e6);
    Percentiles {
        requests,
        p50_ms: ms(0.5),
        p99_ms: ms(0.99),
    }
}

fn percentiles_of(requests: &[Request]) -> Percentiles {
    told(&latencies(requests))
}

fn percentiles(requests: &[Request]) -> (Percentiles, Latencies) {
    let latencies = latencies(requests);
    (told(&latencies), latencies)
}

/// What clients wait for, where they were seen beside the servers.
fn clients(recording: &Recording, pool: &ExistingBalancer) -> Option<Percentiles> {
    let of_fronts = recording.connections.iter();
    let of_fronts = of_fronts.filter(|of| pool.fronts.contains(&of.server));
    let requests: Vec<Request> = of_fronts
        .flat_map(|of| of.requests.iter().copied())
        .collect();
    (!requests.is_empty()).then(|| percentiles_of(&requests))
}

/// Connections open at a time: on the mean, and most. One that did not end in the recording
/// lasts as long as that, and one whose begin was not seen began before.
fn live<'a>(
    recording: &Recording,
    connections: impl Iterator<Item = &'a Connection>,
) -> (f64, u64) {
    let mut changes = Vec::new();
    let mut sum_ns = 0.0;
    for connection in connections {
        let begin_ns = match connection.opened {
            true => connection.first_ns,
            false => recording.first_ns,
        };
        let end_ns = match connection.ended {
            true => connection.last_ns,
            false => recording.last_ns,
        };
        sum_ns += end_ns.saturating_sub(begin_ns) as f64;
        changes.extend([(begin_ns, 1_i64), (end_ns, -1)]);
    }
    changes.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    let mean = sum_ns / recording.lasted_ns().max(1) as f64;
    (mean, most as u64)
}

fn arrivals(recording: &Recording, servers: &[OfServer<'_>]) -> Arrivals {
    let connections = || servers.iter().flat_map(|of| of.connections.iter().copied());
    let opened = connections().filter(|of| of.opened).count() as f64;
    let requests: usize = servers.iter().map(|of| of.requests.len()).sum();
    let seconds = (recording.lasted_ns() as f64 / 1e9).max(1e-9);
    let (live_mean, live_most) = live(recording, connections());
    Arrivals {
        connections_per_s: opened / seconds,
        requests_per_s: requests as f64 / seconds,
        requests_per_connection: requests as f64 / connections().count().max(1) as f64,
        live_mean,
        live_most,
    }
}

fn forecast(recording: &Recording, servers: &[OfServer<'_>], lost: u64) -> Forecast {
    let requests: Vec<Request> = servers
        .iter()
        .flat_map(|of| of.requests.iter().copied())
        .collect();
    let (today, today_all) = percentiles(&requests);
    if let Some(why) = unknowable(servers, today_all.count()) {
        return Forecast::none(today, why);
    }
    let visits: Vec<Visit> = servers
        .iter()
        .enumerate()
        .flat_map(|(index, of)| of.visits(index, recording.first_ns))
        .collect();
    let addresses: Vec<SocketAddr> = servers.iter().map(|of| of.address).collect();
    let models: Vec<ServerModel> = servers.iter().map(|of| of.model.clone()).collect();
    let again =
        |visits: &[Visit], pick| replay(visits, &addresses, &models, recording.lasted_ns(), pick);
    let times = |most: u64| (ENOUGH / requests.len().max(1) as u64).clamp(1, most);
    let replays = times(REPLAYS);
    let outcomes: Vec<Outcome> = (0..replays)
        .map(|seed| again(&visits, Pick::Causeway(seed)))
        .collect();
    let mut with = Latencies::default();
    outcomes.iter().for_each(|of| with.merge(&of.latencies));
    // What the model makes of today: the same visits in another order.
    let mut modelled = Latencies::default();
    for check in 0..times(CHECKS) {
        let dealt = dealt_anew(&visits, check);
        modelled.merge(&again(&dealt, Pick::Recorded).latencies);
    }
    let modelled = told(&modelled);
    let share = |(index, server): (usize, &OfServer<'_>)| {
        let each = || outcomes.iter().map(move |of| of.servers[index]);
        let count = |of: u64| of as f64 / outcomes.len() as f64;
        ServerShare {
            address: server.address,
            weight: each().map(|of| of.weight).sum::<f64>() / outcomes.len() as f64,
            requests: count(each().map(|of| of.requests).sum()) as u64,
            most_at_once: each().map(|of| of.most_at_once).max().unwrap_or(0),
        }
    };
    let shares: Vec<ServerShare> = servers.iter().enumerate().map(share).collect();
    let (quality, reasons) = grade(recording, servers, &shares, lost, &today, &modelled);
    Forecast {
        today,
        modelled,
        causeway: Percentiles {
            requests: with.count() / replays,
            ..told(&with)
        },
        quality,
        reasons,
        servers: shares,
    }
}

/// Why there can be no forecast.
fn unknowable(servers: &[OfServer<'_>], requests: u64) -> Option<String> {
    if servers.len() < 2 {
        return Some(format!(
            "{} of the servers was seen: there is nothing to choose from (name them with --server)",
            if servers.is_empty() { "none" } else { "one" }
        ));
    }
    if requests < REQUESTS {
        return Some(format!(
            "{requests} requests were measured, and a p99 takes {REQUESTS}: watch for longer (--for)"
        ));
    }
    let silent = servers.iter().find(|of| of.requests.is_empty())?;
    Some(format!(
        "no request to {} could be measured: how fast it is cannot be known",
        silent.address
    ))
}

/// How far to trust it, and why not further.
fn grade(
    recording: &Recording,
    servers: &[OfServer<'_>],
    shares: &[ServerShare],
    lost: u64,
    today: &Percentiles,
    modelled: &Percentiles,
) -> (Quality, Vec<String>) {
    // Never higher: no recording knows what comes after it.
    let mut quality = Quality::Medium;
    let mut reasons = Vec::new();
    let mut lower = |to: Quality, why: String| {
        quality = quality.min(to);
        reasons.push(why);
    };
    if recording.lasted_ns() < LEAST_NS {
        lower(
            Quality::Low,
            format!(
                "{:.0} s are little for a controller to find its weights: watch for 30 s and more",
                recording.lasted_ns() as f64 / 1e9
            ),
        );
    }
    if lost + recording.left_out > recording.packets / 1000 {
        lower(
            Quality::Low,
            format!(
                "{} packets were lost or left out",
                lost + recording.left_out
            ),
        );
    }
    for (of, share) in servers.iter().zip(shares) {
        let asked = of.connections.len();
        let covered = of.connections.iter().filter(|of| !of.requests.is_empty());
        let covered = covered.count();
        if (covered as f64) < COVERED * asked as f64 {
            lower(
                Quality::Low,
                format!(
                    "of {}'s {asked} connections {covered} had a request that could be measured",
                    of.address
                ),
            );
        }
        let own = of.tally().confidence().quality;
        if own < Quality::High {
            lower(own, format!("{}'s latencies are graded {own}", of.address));
        }
        if of.model.workers.is_none() && share.most_at_once > of.model.most_at_once {
            lower(
                Quality::Low,
                format!(
                    "{} was never loaded enough to show its capacity: it had up to {} requests at a time, and would have up to {}",
                    of.address, of.model.most_at_once, share.most_at_once
                ),
            );
        }
    }
    if let (Some(today), Some(modelled)) = (today.p99_ms, modelled.p99_ms) {
        let off = (modelled / today - 1.0).abs();
        if off > CLOSE {
            let to = if off > FAR {
                Quality::Low
            } else {
                Quality::Medium
            };
            lower(
                to,
                format!(
                    "by the servers' queues as they were inferred, today's p99 would be {modelled:.1} ms; it is {today:.1}"
                ),
            );
        }
    }
    (quality, reasons)
}

/// What changes break, of the connections that live at a time.
fn broken(recording: &Recording, pool: &ExistingBalancer, servers: &[OfServer<'_>]) -> Vec<Broken> {
    if servers.is_empty() {
        return Vec::new();
    }
    let connections = || servers.iter().flat_map(|of| of.connections.iter().copied());
    let (live_all, _) = live(recording, connections());
    let per_server = live_all / servers.len() as f64;
    let astray = astray(recording, servers);
    let without = without_timestamps(recording, pool);
    let (replaced, replaced_why) = match pool.kind {
        Kind::Proxy => (Some(live_all), "a proxy's connections end with it"),
        Kind::Forwarder if pool.method == Method::Unknown => (None, "how it picks is unknown"),
        Kind::Forwarder if recording.tells_connections => (
            None,
            "it tells another machine its connections (IPVS, UDP port 8848)",
        ),
        Kind::Forwarder if pool.method == Method::Turns => (
            Some(live_all),
            "what goes by turns knows them by its table, of which nobody was told here",
        ),
        Kind::Forwarder => (None, "whether another machine has its table cannot be seen"),
        Kind::Unknown => (None, "whether it is a proxy is unknown"),
    };
    let (changed, changed_why) = match (pool.kind, pool.method) {
        (Kind::Proxy, _) => (
            Some(0.0),
            "a proxy keeps what it has, unless it is set to end sessions",
        ),
        (Kind::Forwarder, Method::Turns) => (
            Some(0.0),
            "what goes by turns must remember its connections",
        ),
        (Kind::Forwarder, _) => (None, "a hash without a memory and a table look alike"),
        (Kind::Unknown, _) => (None, "whether it is a proxy is unknown"),
    };
    let cookies = without.map(|part| part * astray);
    vec![
        Broken::new("pool_changed", changed, changed_why, Some(0.0), Some(0.0)),
        Broken::new(
            "server_failed",
            Some(per_server),
            "its own connections, whatever stands before it",
            Some(per_server),
            Some(per_server),
        ),
        Broken::new(
            "balancer_restarted",
            match pool.kind {
                Kind::Forwarder => Some(0.0),
                _ => replaced,
            },
            match pool.kind {
                Kind::Forwarder => "the kernel goes on forwarding",
                _ => replaced_why,
            },
            Some(0.0),
            Some(0.0),
        ),
        Broken::new(
            "balancer_replaced",
            replaced,
            replaced_why,
            cookies,
            Some(astray),
        ),
    ]
}

/// Connections that a balancer without a memory of them would send elsewhere: those that do
/// not happen to be where the ring of configured weights has them.
fn astray(recording: &Recording, servers: &[OfServer<'_>]) -> f64 {
    let members: Vec<RingMember> = (0..)
        .zip(servers)
        .map(|(id, of)| RingMember {
            key: RealKey::from(of.address.ip()),
            id,
            weight: 1,
        })
        .collect();
    let ring = maglev(&members, RingSize::for_pool(servers.len()));
    let elsewhere = |(id, of): (u32, &OfServer<'_>)| {
        let own = ring.iter().filter(|slot| **slot == id).count() as f64 / ring.len() as f64;
        live(recording, of.connections.iter().copied()).0 * (1.0 - own)
    };
    (0..).zip(servers).map(elsewhere).sum()
}

/// Part of the clients' connections that have no TCP timestamps for a cookie; `None`: no SYN
/// of a client was seen.
fn without_timestamps(recording: &Recording, pool: &ExistingBalancer) -> Option<f64> {
    let of_clients: &[SocketAddr] = match pool.kind {
        Kind::Proxy => &pool.fronts,
        Kind::Forwarder => &pool.servers,
        Kind::Unknown => return None,
    };
    let opened = || {
        let connections = recording.connections.iter();
        connections.filter(|of| of.opened && of.asked && of_clients.contains(&of.server))
    };
    let with = opened().filter(|of| of.timestamps).count() as f64;
    let all = opened().count() as f64;
    (all > 0.0).then(|| 1.0 - with / all)
}
