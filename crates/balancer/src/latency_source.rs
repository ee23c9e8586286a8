// SPDX-License-Identifier: Apache-2.0
//! Which latency a VIP's controller goes by.
//!
//! Of what a response takes, the path to the client is none of the server's doing, and
//! behind a long one a server ten times slower looks a little slower: a controller goes by
//! what servers add. A server that drops SYNs answers those that it takes as fast as ever:
//! by the packets that a balancer sees, it is a fast one. Its agent knows better
//! (docs/explanation/syn-loss.md).

use causeway_core::agent_report::ServiceLatency;
use causeway_core::control::{Reading, ServerLatency};
use tracing::{info, warn};

use super::agent_reports::AgentReports;
use super::pool::{Pool, configured};
use crate::config::{Control, LatencySource, VipConfig};

/// Time over which the share of samples with a known path is taken.
const COVERAGE_NS: f64 = 10e9;
/// Samples in that time below which it says nothing.
const COVERAGE_SAMPLES: f64 = 20.0;
/// A VIP goes by responses below the first share, and by its servers again from the second on.
const COVERAGE_LEAVES: f64 = 0.25;
const COVERAGE_RETURNS: f64 = 0.5;

/// What the data plane has told of one real's interval.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Measured {
    /// By whole responses.
    pub(crate) responses: Reading,
    /// What the server added to them.
    pub(crate) server: ServerLatency,
}

/// What a controller goes by, and for how long it had to do without what it should.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct InForce {
    /// What the last interval went by.
    pub(crate) source: LatencySource,
    /// Intervals that went by another one than the configuration says.
    pub(crate) fallbacks: u64,
    coverage: Coverage,
}

impl InForce {
    /// What a VIP begins with.
    pub(crate) fn of(vip: &VipConfig) -> Self {
        Self {
            source: match vip.latency {
                LatencySource::Response => LatencySource::Response,
                // Until agents have told something.
                LatencySource::Server | LatencySource::Client => LatencySource::Server,
            },
            fallbacks: 0,
            coverage: Coverage::default(),
        }
    }
}

/// Samples of late, and those of them whose path was known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Coverage {
    known: f64,
    all: f64,
}

impl Coverage {
    fn after(self, measured: &[Measured], interval_ns: u64) -> Self {
        let kept = (-(interval_ns as f64) / COVERAGE_NS).exp();
        let sum = |halves: fn(&Measured) -> u64| measured.iter().map(halves).sum::<u64>() as f64;
        Self {
            known: self.known * kept + sum(|of| of.server.weight_halves) / 2.0,
            all: self.all * kept + sum(|of| of.responses.latency_weight_halves) / 2.0,
        }
    }

    /// Whether it suffices to go by servers, as `before` says was done so far.
    fn suffices(self, before: bool) -> bool {
        if self.all < COVERAGE_SAMPLES {
            return before;
        }
        let least = if before {
            COVERAGE_LEAVES
        } else {
            COVERAGE_RETURNS
        };
        self.known >= least * self.all
    }
}

/// What a VIP's controller goes by in this interval. Where agents of all reals that get new
/// connections tell, and the VIP wants that, it is the latency of clients; if one is silent,
/// it is none's, for what its clients wait for cannot be compared with what others' servers
/// take. In its place, and by default, it is what servers add, as long as the path of most
/// samples is known; else whole responses.
pub(crate) fn readings(
    pool: &mut Pool,
    reports: &AgentReports,
    now_ns: u64,
    interval_ns: u64,
    measured: &[Measured],
) -> Vec<Reading> {
    let before = pool.in_force();
    let coverage = before.coverage.after(measured, interval_ns);
    let wanted = pool.vip().latency;
    let by_packets = match wanted {
        LatencySource::Response => LatencySource::Response,
        _ if coverage.suffices(before.source != LatencySource::Response) => LatencySource::Server,
        _ => LatencySource::Response,
    };
    let steers = pool.vip().control != Control::Off;
    let asks_agents = wanted == LatencySource::Client && steers;
    let clients = asks_agents.then(|| reported(pool, reports, now_ns));
    let silent = clients.as_ref().and_then(|clients| silent(pool, clients));
    let source = match (&clients, silent) {
        (Some(_), None) => LatencySource::Client,
        _ => by_packets,
    };
    if source != before.source && steers {
        tell(pool, source, silent);
    }
    pool.set_in_force(
        InForce {
            source,
            fallbacks: before.fallbacks + u64::from(steers && source != wanted),
            coverage,
        },
        now_ns,
    );
    match (source, clients) {
        (LatencySource::Client, Some(clients)) => of_clients(pool, &clients, interval_ns, measured),
        (LatencySource::Server, _) => measured
            .iter()
            .map(|of| of.server.in_place_of_responses(of.responses))
            .collect(),
        _ => measured.iter().map(|of| of.responses).collect(),
    }
}

/// Says that from now on another latency counts, and why.
fn tell(pool: &Pool, source: LatencySource, silent: Option<usize>) {
    let name = &pool.vip().name;
    let silent = silent.and_then(|index| pool.vip().reals.get(index));
    match (source, silent) {
        (LatencySource::Client, _) => info!("{name}: goes by the latency of clients"),
        (_, Some(real)) => warn!(
            "{name}: goes by the {source} latency, because no agent tells of {}'s clients",
            real.address
        ),
        (LatencySource::Server, _) => info!("{name}: goes by what servers add to the path"),
        (LatencySource::Response, _) => warn!(
            "{name}: goes by responses' latency, because the path of most of them is not known: their connections' handshakes were not seen"
        ),
    }
}

/// What agents have reported of the VIP's clients, by real.
fn reported(pool: &Pool, reports: &AgentReports, now_ns: u64) -> Vec<Option<ServiceLatency>> {
    let service = (pool.vip().address, pool.vip().port);
    let members = pool.members();
    members
        .map(|(real, _)| reports.latency(real.address, service, now_ns))
        .collect()
}

/// The first real that gets new connections and whose agent does not tell.
fn silent(pool: &Pool, clients: &[Option<ServiceLatency>]) -> Option<usize> {
    let mut members = pool.members().zip(clients);
    members.position(|((real, member), clients)| {
        member.fit && configured(real) > 0.0 && clients.is_none()
    })
}

/// A report holds until the next one and is spread over the intervals meanwhile. After a
/// pause the last second is all that is known.
fn of_clients(
    pool: &mut Pool,
    clients: &[Option<ServiceLatency>],
    interval_ns: u64,
    measured: &[Measured],
) -> Vec<Reading> {
    let share = (interval_ns as f64 / 1e9).min(1.0);
    let members = pool.members_mut().zip(clients).zip(measured);
    members
        .map(|(((_, member), clients), measured)| {
            let clients = clients.as_ref().filter(|of| of.transactions_milli > 0);
            let (count, mean_ns) = clients.map_or((0.0, 0.0), |of| {
                let count = of.transactions_milli as f64 / 1e3;
                (count, of.response_ns as f64 / count)
            });
            let halves = 2.0 * count * share + member.latency_rest;
            member.latency_rest = halves.fract();
            Reading {
                latency_weight_halves: halves as u64,
                latency_sum_halves_ns: (halves.trunc() * mean_ns) as u64,
                // Agents tell of all clients.
                requests: measured.responses.all_requests,
                ..measured.responses
            }
        })
        .collect()
}
