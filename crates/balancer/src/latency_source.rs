// SPDX-License-Identifier: Apache-2.0
//! Which latency a VIP's controller goes by.
//!
//! Of what a response takes, the path to the client is none of the server's doing, and
//! behind a long one a server ten times slower looks a little slower: a controller goes by
//! what servers add. A server that drops SYNs answers those that it takes as fast as ever:
//! by the packets that a balancer sees, it is a fast one. Its agent knows better
//! (docs/explanation/syn-loss.md). It also sees both directions, so that it times each response
//! without guessing, whether clients have timestamps or not.

use causeway_core::agent_report::ServiceLatency;
use causeway_core::control::{MeasuredInterval, Reading};
use tracing::{info, warn};

use super::agent_reports::AgentReports;
use super::latency_in_force::{BY_AGENT, BY_GRADE, BY_PATH, InForce};
use super::pool::Pool;
use crate::config::{Control, LatencySource};

/// How long after responses the reports of agents show most of them: the slot in which they are counted,
/// 250 ms unless configured otherwise, and 100 ms after its end. The last one of a client that does not
/// ask again is reported up to 3 s late; meanwhile that clients acknowledge responses ends a silence.
const TOLD_LATE_NS: u64 = 1_000_000_000;

/// What a VIP's controller goes by in this interval. If the agents of all reals that get new
/// connections report, and the VIP wants that, it is the latency of clients, or what servers took;
/// if one is silent, no agent's report is used, as what its clients wait for cannot be compared
/// with what others' servers take. Agents' reports are not used either if clients ask for so many
/// things at a time that hardly any can be timed. In its place, and by default, it is what servers
/// add, as long as the path of most samples is known; else whole responses.
///
/// Samples graded low show that a server answers, and not how fast: how far they are off
/// depends on its clients. Only where nearly all of a VIP's are, servers are compared by
/// them, all its servers alike: a controller that does nothing would be worse.
pub(crate) fn readings(
    pool: &mut Pool,
    reports: &AgentReports,
    now_ns: u64,
    interval_ns: u64,
    measured: &[MeasuredInterval],
) -> Vec<Reading> {
    let before = pool.in_force();
    let sum =
        |halves: &dyn Fn(&MeasuredInterval) -> u64| measured.iter().map(halves).sum::<u64>() as f64;
    let by_grade = before.by_grade.after(
        sum(&|of| of.good.weight_halves),
        sum(&|of| of.samples(true).weight_halves),
        interval_ns,
    );
    let takes_low = !by_grade.suffices(!before.takes_low, &BY_GRADE);
    let by_path = before.by_path.after(
        sum(&|of| of.samples(takes_low).path_weight_halves),
        sum(&|of| of.samples(takes_low).weight_halves),
        interval_ns,
    );
    let wanted = pool.vip().latency;
    let by_packets = match wanted {
        LatencySource::Response => LatencySource::Response,
        _ if by_path.suffices(before.source != LatencySource::Response, &BY_PATH) => {
            LatencySource::Server
        }
        _ => LatencySource::Response,
    };
    let steers = pool.vip().control != Control::Off;
    let asks_agents = wanted.is_told() && steers;
    let told = asks_agents.then(|| reported(pool, reports, wanted, now_ns));
    let silent = told.as_ref().and_then(|told| silent(pool, told));
    let of_all = |count: &dyn Fn(&Told) -> f64| {
        let told = told.iter().flatten().flatten();
        2.0 * share_of_second(interval_ns) * told.map(count).sum::<f64>()
    };
    let by_agent = before.by_agent.after(
        of_all(&|of| of.count),
        of_all(&|of| of.count + of.overlapping),
        interval_ns,
    );
    let timed = by_agent.is_small() || by_agent.suffices(before.source.is_told(), &BY_AGENT);
    let source = match (&told, silent) {
        (Some(_), None) if timed => wanted,
        _ => by_packets,
    };
    if source != before.source && steers {
        tell(pool, source, silent);
    }
    if takes_low != before.takes_low && steers {
        tell_grade(pool, takes_low);
    }
    pool.set_in_force(
        InForce {
            source,
            fallbacks: before.fallbacks + u64::from(steers && source != wanted),
            takes_low,
            low_intervals: before.low_intervals
                + u64::from(steers && takes_low && !source.is_told()),
            by_path,
            by_grade,
            by_agent,
        },
        now_ns,
    );
    match told {
        Some(told) if source.is_told() => by_told(pool, &told, interval_ns, measured),
        _ => {
            let by_servers = source == LatencySource::Server;
            let reading = |of: &MeasuredInterval| Reading {
                interval_ns,
                ..of.reading(takes_low, by_servers)
            };
            measured.iter().map(reading).collect()
        }
    }
}

/// Says that from now on samples graded low count, or do not.
fn tell_grade(pool: &Pool, takes_low: bool) {
    let name = &pool.vip().name;
    match takes_low {
        true => warn!(
            "{name}: steered by latencies graded low, because its clients give hardly any better ones"
        ),
        false => info!("{name}: steered by latencies graded better than low"),
    }
}

/// Says that from now on another latency counts, and why.
fn tell(pool: &Pool, source: LatencySource, silent: Option<usize>) {
    let name = &pool.vip().name;
    let silent = silent.and_then(|index| pool.vip().reals.get(index));
    match (source, silent) {
        (LatencySource::Client, _) => info!("{name}: steered by client latency"),
        (LatencySource::Agent, _) => {
            info!("{name}: steered by the servers' time, as their agents measure it")
        }
        (_, Some(real)) => warn!(
            "{name}: steered by {source} latency, because the agent of {} does not report",
            real.address
        ),
        _ if pool.vip().latency == LatencySource::Agent => warn!(
            "{name}: steered by {source} latency, because its clients have so many requests at a time that agents can time hardly any"
        ),
        (LatencySource::Server, _) => info!("{name}: steered by server latency, without the path"),
        (LatencySource::Response, _) if pool.vip().latency == LatencySource::Response => {
            info!("{name}: steered by response latency");
        }
        (LatencySource::Response, _) => warn!(
            "{name}: steered by response latency, because the path of most responses is unknown: the handshakes of their connections were not seen"
        ),
    }
}

/// What an agent reports of a second of its server's transactions.
#[derive(Debug, Clone, Copy)]
struct Told {
    /// Transactions with a known latency.
    count: f64,
    /// Sum over these.
    sum_ns: f64,
    /// Those without.
    overlapping: f64,
}

impl Told {
    /// The latency of this kind; `None`: the agent does not report it.
    fn of(source: LatencySource, service: &ServiceLatency) -> Option<Self> {
        match source {
            LatencySource::Agent => service.server.map(|of| Self {
                count: of.timed_milli as f64 / 1e3,
                sum_ns: of.sum_ns as f64,
                overlapping: of.overlapping_milli as f64 / 1e3,
            }),
            _ => Some(Self {
                count: service.transactions_milli as f64 / 1e3,
                sum_ns: service.response_ns as f64,
                overlapping: 0.0,
            }),
        }
    }
}

/// What agents have reported of this kind, by real.
fn reported(
    pool: &Pool,
    reports: &AgentReports,
    wanted: LatencySource,
    now_ns: u64,
) -> Vec<Option<Told>> {
    let service = (pool.vip().address, pool.vip().port);
    let latency = |address| reports.latency(address, service, now_ns);
    let members = pool.members();
    members
        .map(|(real, _)| Told::of(wanted, &latency(real.address)?))
        .collect()
}

/// The first real that gets new connections and whose agent does not report it.
fn silent(pool: &Pool, told: &[Option<Told>]) -> Option<usize> {
    let mut members = pool.members().zip(told);
    members.position(|((_, member), told)| member.meant > 0.0 && told.is_none())
}

/// After a pause the last second is all that is known.
fn share_of_second(interval_ns: u64) -> f64 {
    (interval_ns as f64 / 1e9).min(1.0)
}

/// A report holds until the next one and is spread over the intervals meanwhile.
fn by_told(
    pool: &mut Pool,
    told: &[Option<Told>],
    interval_ns: u64,
    measured: &[MeasuredInterval],
) -> Vec<Reading> {
    let share = share_of_second(interval_ns);
    let members = pool.members_mut().zip(told).zip(measured);
    members
        .map(|(((_, member), told), measured)| {
            let overlapping = told.map_or(0.0, |of| of.overlapping);
            let told = told.filter(|of| of.count > 0.0);
            let (count, mean_ns) = told.map_or((0.0, 0.0), |of| (of.count, of.sum_ns / of.count));
            let halves = 2.0 * count * share + member.latency_rest;
            member.latency_rest = halves.fract();
            Reading {
                latency_weight_halves: halves as u64,
                latency_sum_halves_ns: (halves.trunc() * mean_ns) as u64,
                // Few are some: they show that the real answers.
                untold_weight_halves: (2.0 * overlapping * share).ceil() as u64,
                path_ns: TOLD_LATE_NS,
                interval_ns: (share * 1e9) as u64,
                // What agents tell is of the last seconds.
                late_weight_halves: 0,
                // Agents report all clients.
                requests: measured.counts.all_requests,
                ..measured.counts
            }
        })
        .collect()
}
