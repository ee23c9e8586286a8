// SPDX-License-Identifier: Apache-2.0
//! What clients wait for, as agents report it, for VIPs with `latency = "client"`.
//!
//! A server that drops SYNs answers those that it takes as fast as ever: by the packets
//! that a balancer sees, it is a fast one. Its agent knows better (docs/explanation/syn-loss.md).

use causeway_core::agent_report::ServiceLatency;
use causeway_core::control::Reading;
use tracing::{info, warn};

use super::agent_reports::AgentReports;
use super::pool::{Latency, Pool, configured};
use crate::config::{Control, LatencySource};

/// What a VIP's controller goes by in this interval: `responses`, the latencies of
/// responses, or in their place those of clients, where the VIP wants that and agents of
/// all reals that get new connections tell. Where one is silent, all go by responses: what
/// its clients wait for cannot be compared with what others' servers take.
pub(crate) fn readings(
    pool: &mut Pool,
    reports: &AgentReports,
    now_ns: u64,
    interval_ns: u64,
    responses: Vec<Reading>,
) -> Vec<Reading> {
    let before = pool.latency();
    if pool.vip().latency != LatencySource::Client || pool.vip().control == Control::Off {
        let latency = Latency {
            by_clients: false,
            ..before
        };
        pool.set_latency(latency, now_ns);
        return responses;
    }
    let clients = reported(pool, reports, now_ns);
    let silent = silent(pool, &clients);
    let by_clients = silent.is_none();
    if by_clients != before.by_clients {
        let name = &pool.vip().name;
        match silent.and_then(|index| pool.vip().reals.get(index)) {
            None => info!("{name}: goes by the latency of clients"),
            Some(real) => warn!(
                "{name}: goes by responses' latency, because no agent tells of {}'s clients",
                real.address
            ),
        }
    }
    let latency = Latency {
        by_clients,
        fallbacks: before.fallbacks + u64::from(!by_clients),
    };
    pool.set_latency(latency, now_ns);
    match by_clients {
        true => of_clients(pool, &clients, interval_ns, responses),
        false => responses,
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
    responses: Vec<Reading>,
) -> Vec<Reading> {
    let share = (interval_ns as f64 / 1e9).min(1.0);
    let members = pool.members_mut().zip(clients).zip(responses);
    members
        .map(|(((_, member), clients), responses)| {
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
                ..responses
            }
        })
        .collect()
}
