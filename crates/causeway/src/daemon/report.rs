// SPDX-License-Identifier: Apache-2.0
//! From the engine's state to the API's types.

use std::collections::HashMap;

use super::clock::Moment;
use super::engine::Engine;
use super::meter::Meter;
use super::plane::{RealTotals, Traffic, VipId};
use super::pool::{Pool, PoolMember};
use super::view::{History, LatencyView, Moves, RealView, Series, Stats, VerdictView, VipView};
use crate::config::{Control, Real};

/// Everything that `causeway stats` shows.
pub fn stats(engine: &Engine, at: Moment) -> anyhow::Result<Stats> {
    let verdicts = engine.plane().verdicts()?.into_iter();
    Ok(Stats {
        at,
        verdicts: verdicts
            .map(|verdict| VerdictView {
                verdict: verdict.word.to_owned(),
                action: verdict.action.to_owned(),
                packets: verdict.traffic.packets,
                bytes: verdict.traffic.bytes,
            })
            .collect(),
        vips: vips(engine)?,
    })
}

/// The VIPs with their reals.
pub fn vips(engine: &Engine) -> anyhow::Result<Vec<VipView>> {
    let traffic: HashMap<VipId, Traffic> = engine.plane().vip_totals()?.into_iter().collect();
    let pools = engine.pools().iter();
    Ok(pools
        .map(|pool| {
            let traffic = traffic.get(&pool.id()).copied().unwrap_or_default();
            vip(engine, pool, traffic)
        })
        .collect())
}

fn vip(engine: &Engine, pool: &Pool, traffic: Traffic) -> VipView {
    let vip = pool.vip();
    VipView {
        name: vip.name.clone(),
        id: pool.id(),
        address: vip.address.to_string(),
        port: vip.port,
        protocol: vip.protocol.to_string(),
        scheduler: vip.scheduler.to_string(),
        forwarding: vip.forwarding.to_string(),
        control: vip.control.to_string(),
        packets: traffic.packets,
        bytes: traffic.bytes,
        reals: pool
            .members()
            .enumerate()
            .map(|(index, (config, member))| real(engine, pool, index, config, member))
            .collect(),
    }
}

fn real(
    engine: &Engine,
    pool: &Pool,
    index: usize,
    config: &Real,
    member: &PoolMember,
) -> RealView {
    let meter = engine.meter(member.id);
    let totals = meter.map_or_else(RealTotals::default, |meter| *meter.totals());
    let decision = pool.decision().and_then(|all| all.reals.get(index));
    let idle = match pool.vip().control {
        Control::Off => ("off", "no controller"),
        _ => ("unknown", "no interval yet"),
    };
    RealView {
        id: member.id,
        address: config.address.to_string(),
        mac: config.mac.map(|mac| mac.to_string()),
        state: if config.drain { "drain" } else { "active" }.to_owned(),
        weight: config.weight,
        effective_weight: member.weight,
        wanted_weight: decision.map_or(member.weight, |own| own.weight),
        reason: decision.map_or(idle.0, |own| own.reason.word()).to_owned(),
        reason_text: decision.map_or_else(|| idle.1.to_owned(), |own| own.reason.to_string()),
        packets: totals.traffic.packets,
        bytes: totals.traffic.bytes,
        connections_opened: totals.opened,
        connections_closed: totals.closed,
        connections_active: meter.map_or(0, Meter::active),
        requests: totals.requests,
        latency: meter.map_or_else(LatencyView::default, Meter::latency),
    }
}

/// The history of every real, from the epoch that starts at or after
/// `since_ns` (CLOCK_REALTIME) on.
pub fn history(engine: &Engine, since_ns: u64) -> History {
    let mut series = Vec::new();
    for pool in engine.pools() {
        for (config, member) in pool.members() {
            let first = member
                .history
                .partition_point(|epoch| epoch.start_ns < since_ns);
            series.push(Series {
                vip: pool.vip().name.clone(),
                id: member.id,
                real: config.address.to_string(),
                epochs: member.history.range(first..).copied().collect(),
            });
        }
    }
    History {
        epoch_ns: engine.config().control.interval_ns,
        series,
    }
}

/// Recent changes of weight.
pub fn moves(engine: &Engine) -> Moves {
    Moves {
        moves: engine.moves().cloned().collect(),
    }
}
