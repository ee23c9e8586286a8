// SPDX-License-Identifier: Apache-2.0
//! From the engine's state to the API's types.

use std::collections::HashMap;
use std::ops::Range;

use causeway_api::balancer::{
    AgentReportView, CookieView, Drops, FlowTableView, HealthView, History, LatencyView, Moves,
    PartView, RealHistory, RealState, RealTimeline, RealView, SourceView, Stats, Timeline, VipReal,
    VipView,
};
use causeway_api::{Moment, VerdictView};
use causeway_core::health::Check;
use causeway_core::hist::Histogram;
use causeway_dataplane::abi::PacketsBytes;
use causeway_dataplane::{CookieTotals, RealStats, VipId};

use super::cookies;
use super::engine::Engine;
use super::plane::Ids;
use super::pool::{self, Pool};
use super::pool_member::{Epoch, PoolMember};
use super::real_counters::RealCounters;
use super::timeline::STEP_NS;
use crate::config::{Control, RealConfig, Source};

/// Everything that `causeway stats` shows, but for the VIPs.
pub(crate) fn stats_without_vips(
    engine: &Engine,
    at: Moment,
    part: Option<PartView>,
) -> anyhow::Result<Stats> {
    let verdicts = engine.plane().verdicts()?.into_iter();
    Ok(Stats {
        at,
        verdicts: verdicts
            .map(|(verdict, counter)| VerdictView {
                verdict: verdict.as_str().to_owned(),
                action: verdict.action().as_str().to_owned(),
                meaning: verdict.meaning().to_owned(),
                packets: counter.packets,
                bytes: counter.bytes,
            })
            .collect(),
        flow_table: flow_table(engine),
        agent_reports: engine.reports().counts(),
        next_hop: engine.next_hops().views().to_vec(),
        control_turns: engine.control_turns(),
        part,
        vips: Vec::new(),
    })
}

fn flow_table(engine: &Engine) -> FlowTableView {
    let totals = engine.plane().flow_totals();
    FlowTableView {
        slots: totals.slots,
        flows: totals.flows,
        udp_idle: totals.udp_idle,
        udp_drained: totals.udp_drained,
        tcp_ended: totals.tcp_ended,
        tcp_idle: totals.tcp_idle,
    }
}

/// Which reals an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listed {
    All,
    /// All of VIPs that are not ready, of the others those that are not active or could not be
    /// probed.
    Amiss,
    None,
}

/// The VIPs at these places.
pub(crate) fn vips_of(
    engine: &Engine,
    places: Range<usize>,
    listed: Listed,
) -> anyhow::Result<Vec<VipView>> {
    let traffic: HashMap<VipId, PacketsBytes> = engine.plane().vip_totals()?.into_iter().collect();
    let totals: HashMap<VipId, CookieTotals> =
        engine.plane().cookie_totals()?.into_iter().collect();
    let pools = engine.pools()[places].iter();
    pools
        .map(|pool| {
            let traffic = traffic.get(&pool.id()).copied().unwrap_or_default();
            let ids = engine.plane().cookie_ids(pool.id())?;
            let cookie = cookies::view(pool.vip(), totals.get(&pool.id()));
            let picks = engine.plane().source_picks(pool.id())?;
            let sources = pool.vip().sources.iter().zip(picks);
            Ok(VipView {
                sources: sources
                    .map(|(source, picked)| source_view(source, picked))
                    .collect(),
                ..vip(engine, pool, traffic, cookie, (listed, &ids))
            })
        })
        .collect()
}

/// The reals at these places: of a VIP, and of one of its reals.
pub(crate) fn reals_at(engine: &Engine, places: &[(usize, usize)]) -> anyhow::Result<Vec<VipReal>> {
    let mut views = Vec::new();
    for &(vip, at) in places {
        let pool = &engine.pools()[vip];
        let ids = engine.plane().cookie_ids(pool.id())?;
        if let Some((config, member)) = pool.members().nth(at) {
            let real = RealView {
                cookie_ids: ids.of_real(member.id),
                ..real(engine, pool, at, config, member)
            };
            let vip = pool.vip().name.clone();
            views.push(VipReal { vip, real });
        }
    }
    Ok(views)
}

fn source_view(source: &Source, picked: u64) -> SourceView {
    let prefix = |(address, length): &(std::net::IpAddr, u8)| format!("{address}/{length}");
    SourceView {
        from: source.from.iter().map(prefix).collect(),
        reals: source.reals.iter().map(ToString::to_string).collect(),
        fallback: source.fallback.to_string(),
        exclusive: source.exclusive,
        picked,
    }
}

fn vip(
    engine: &Engine,
    pool: &Pool,
    traffic: PacketsBytes,
    cookie: CookieView,
    (listed, ids): (Listed, &Ids),
) -> VipView {
    let vip = pool.vip();
    let is_active = |(config, member): (&RealConfig, &PoolMember)| {
        pool::state(config, member) == RealState::Active
    };
    let is_unsent = |member: &PoolMember| engine.check(member.id).is_some_and(Check::is_unsent);
    let reals_up = engine.reals_up(pool);
    let ready = reals_up >= vip.min_healthy;
    let members = pool.members().enumerate();
    let listed = members.filter(|(_, of)| match listed {
        Listed::All => true,
        Listed::Amiss => !ready || !is_active(*of) || is_unsent(of.1),
        Listed::None => false,
    });
    VipView {
        name: vip.name.clone(),
        id: pool.id(),
        address: vip.address.to_string(),
        port: vip.port,
        protocol: vip.protocol.to_string(),
        scheduler: vip.scheduler.to_string(),
        affinity: vip.affinity.to_string(),
        fragments: vip.fragments.to_string(),
        load: vip.scheduler.follows_load().then(|| vip.load.to_string()),
        forwarding: vip.forwarding.to_string(),
        control: vip.control.to_string(),
        latency: vip.latency.to_string(),
        latency_fallbacks: pool.in_force().fallbacks,
        takes_low: pool.in_force().takes_low,
        low_grade_intervals: pool.in_force().low_intervals,
        reals_up,
        reals_unknown: engine.reals_unknown(pool),
        reals_active: pool.members().filter(|of| is_active(*of)).count(),
        min_healthy: vip.min_healthy,
        ready,
        announced: engine.is_announced(vip.address),
        packets: traffic.packets,
        bytes: traffic.bytes,
        cookie,
        limit: vip.limit.map(|limit| limit.rate),
        sources: Vec::new(),
        discovery: engine.found.view(vip),
        reals: listed
            .map(|(index, (config, member))| RealView {
                cookie_ids: ids.of_real(member.id),
                ..real(engine, pool, index, config, member)
            })
            .collect(),
    }
}

fn real(
    engine: &Engine,
    pool: &Pool,
    index: usize,
    config: &RealConfig,
    member: &PoolMember,
) -> RealView {
    let counters = engine.counters(member.id);
    let totals = counters.map_or_else(RealStats::default, |counters| *counters.totals());
    let decision = pool.decision().and_then(|all| all.reals.get(index));
    let idle = match pool.vip().control {
        Control::Off => ("off", "no controller"),
        _ => ("unknown", "no interval yet"),
    };
    RealView {
        id: member.id,
        address: config.address.to_string(),
        mac: config.mac.map(|mac| mac.to_string()),
        on_link: pool.vip().forwarding.encapsulates()
            && engine.next_hops().goes_by_gateway(config.address),
        cookie_ids: Vec::new(),
        role: config.role.to_string(),
        found: config.found,
        state: pool::state(config, member).word().to_owned(),
        health: health(engine, pool, config, member),
        weight: config.weight,
        meant_weight: member.meant,
        effective_weight: member.weight,
        wanted_weight: decision.map_or(member.weight, |own| own.weight),
        reason: decision.map_or(idle.0, |own| own.reason.word()).to_owned(),
        reason_text: decision.map_or_else(|| idle.1.to_owned(), |own| own.reason.to_string()),
        packets: totals.packets,
        bytes: totals.bytes,
        connections_opened: totals.conns_opened,
        connections_closed: totals.conns_closed,
        connections_active: engine.active(member.id),
        connections_estimated: counters.is_none_or(RealCounters::ages),
        load: member.load,
        requests: totals.requests,
        latency: counters.map_or_else(LatencyView::default, RealCounters::latency),
        latency_bounds: totals.bound_weight_halves / 2,
        latency_low: totals.low.weight_halves / 2,
        agent: agent(engine, pool, config),
        slow_start_s: member.warms().map(|left_ns| left_ns as f64 / 1e9),
    }
}

/// What probes say, from when on there are to be some.
fn health(
    engine: &Engine,
    pool: &Pool,
    config: &RealConfig,
    member: &PoolMember,
) -> Option<HealthView> {
    let health = pool.vip().health.as_ref();
    let health = health.filter(|_| config.is_probed())?;
    let check = engine.check_of(health, member.id);
    let state = engine.health(member.id).unwrap_or(check.state());
    Some(HealthView {
        state: state.word().to_owned(),
        since_monotonic_ns: check.since_ns(),
        reason: check.reason().to_owned(),
        succeeded: check.counts().0,
        failed: check.counts().1,
        weight: member.told,
        votes: engine.peers().votes(member.id),
    })
}

/// What the real's agent said last, if anything that holds.
fn agent(engine: &Engine, pool: &Pool, config: &RealConfig) -> Option<AgentReportView> {
    let now_ns = engine.last_tick()?.monotonic_ns;
    let reports = engine.reports();
    let service = (pool.vip().address, pool.vip().port);
    let load = reports.load(config.address, now_ns);
    let clients = reports.latency(config.address, service, now_ns);
    if load.is_none() && clients.is_none() {
        return None;
    }
    let mean_us = |of: causeway_core::agent_report::ServiceLatency| {
        (of.transactions_milli > 0).then(|| of.response_ns as f64 / of.transactions_milli as f64)
    };
    Some(AgentReportView {
        cpu: load.map(|load| f64::from(load.cpu_milli) / 1e3),
        in_flight: load.map(|load| load.in_flight),
        client_us: clients.and_then(mean_us),
        client_transactions: clients.map(|of| of.transactions_milli as f64 / 1e3),
        client_age_s: reports
            .latency_age_ns(config.address, now_ns)
            .map(|ns| ns as f64 / 1e9),
    })
}

/// The history of every real, from the epoch that starts at or after `since_ns`
/// (CLOCK_MONOTONIC) on: of all reals together at most `limit` epochs, or one of
/// each. What does not fit begins at `next_since_monotonic_ns`.
pub(crate) fn history(engine: &Engine, since_ns: u64, limit: usize) -> History {
    let members = || {
        let pools = engine.pools().iter();
        pools.flat_map(|pool| pool.members().map(move |member| (pool, member)))
    };
    let at = |member: &PoolMember, ns: u64| {
        let epochs = &member.past().history;
        epochs.partition_point(|epoch| epoch.start.monotonic_ns < ns)
    };
    // All series end at the same time, so that the next page misses nothing.
    let each = (limit / members().count().max(1)).max(1);
    let end_ns = members()
        .filter_map(|(_, (_, member))| member.past().history.get(at(member, since_ns) + each))
        .map(|epoch| epoch.start.monotonic_ns)
        .min();
    let series = members().map(|(pool, (config, member))| {
        let end = end_ns.map_or(member.past().history.len(), |end_ns| at(member, end_ns));
        let range = at(member, since_ns)..end;
        RealHistory {
            vip: pool.vip().name.clone(),
            id: member.id,
            real: config.address.to_string(),
            epochs: member
                .past()
                .history
                .range(range)
                .map(Epoch::view)
                .collect(),
        }
    });
    History {
        epoch_ns: engine.config().control.interval_ns,
        series: series.collect(),
        next_since_monotonic_ns: end_ns,
    }
}

/// Changes of weight after `since_ns` (CLOCK_MONOTONIC).
pub(crate) fn moves(engine: &Engine, since_ns: u64) -> Moves {
    let late = engine.moves();
    let late = late.filter(|of| of.at.monotonic_ns > since_ns);
    Moves {
        moves: late.cloned().collect(),
    }
}

/// The timeline of a VIP: the steps that ended after `since_ns` (CLOCK_MONOTONIC), of all
/// reals together the newest `limit`, or one of each.
pub(crate) fn timeline(pool: &Pool, engine: &Engine, since_ns: u64, limit: usize) -> Timeline {
    let each = (limit / pool.members().count().max(1)).max(1);
    let reals = pool.members().map(|(config, member)| {
        let counters = engine.counters(member.id);
        RealTimeline {
            real: config.address.to_string(),
            steps: counters.map_or_else(Vec::new, |counters| counters.steps(since_ns, each)),
        }
    });
    Timeline {
        at: Moment::now(),
        step_ns: STEP_NS,
        bucket_floors_us: Histogram::coarse_floors_ns()
            .map(|ns| ns as f64 / 1e3)
            .collect(),
        reals: reals.collect(),
    }
}

/// What was dropped after `since_ns` (CLOCK_MONOTONIC).
pub(crate) fn drops(engine: &Engine, since_ns: u64) -> Drops {
    Drops {
        step_ns: STEP_NS,
        steps: engine.drops(since_ns),
    }
}
