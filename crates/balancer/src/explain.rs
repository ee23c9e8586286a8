// SPDX-License-Identifier: Apache-2.0
//! Why a real has the weight that it has, for `causeway explain`.

use causeway_api::Moment;
use causeway_api::balancer::{Explanation, LatencyView};

use super::by_hand::find_real;
use super::engine::{Engine, EngineError};
use super::real_counters::RealCounters;
use crate::config::{Control, RealConfig, VipConfig};

/// Who wants a real to get no new connections, and since when, as far as that is known.
fn why_unwanted(engine: &Engine, vip: &VipConfig, real: &RealConfig) -> String {
    let what = match real.maintenance {
        true => "is under maintenance",
        false => "drains",
    };
    let in_file = engine.file.vips.iter().find(|own| own.key() == vip.key());
    let in_file = in_file.and_then(|own| {
        let mut reals = own.reals.iter();
        reals.find(|own| own.address == real.address)
    });
    let by_file = in_file.is_some_and(|own| match real.maintenance {
        true => own.maintenance,
        false => own.drain,
    });
    let who = match (by_file, real.found) {
        _ if real.gone && !real.maintenance => {
            "because its discovery no longer finds it".to_owned()
        }
        (true, true) => "by the answer that it is discovered from".to_owned(),
        (true, false) => "by the file".to_owned(),
        (false, _) => {
            let set = engine.by_hand.of(&vip.endpoint(), real.address);
            let now_ns = Moment::now().realtime_ns;
            let since = set.map_or_else(String::new, |set| {
                let s = now_ns.saturating_sub(set.since_ns) / 1_000_000_000;
                match s {
                    0..120 => format!(" {s} s ago"),
                    120..7200 => format!(" {} min ago", s / 60),
                    _ => format!(" {} h ago", s / 3600),
                }
            });
            format!("by hand (a command, or the API){since}")
        }
    };
    format!("takes no new connections: {what} {who}")
}

/// Why a real has the weight that it has.
pub(crate) fn explain(engine: &Engine, vip: &str, real: &str) -> Result<Explanation, EngineError> {
    let pool = engine.pool(vip)?;
    let name = pool.vip().name.clone();
    let at = find_real(pool.vip(), real)?;
    let found = pool.members().nth(at);
    let (own, member) = found.ok_or_else(|| {
        EngineError::NotFound(format!("real {real} of vip {name} is not at work"))
    })?;
    let control = pool.vip().control;
    Ok(Explanation {
        vip: name,
        real: own.address.to_string(),
        scheduler: pool.vip().scheduler.to_string(),
        control: control.to_string(),
        law: match control {
            Control::Off => None,
            _ => pool
                .decision()
                .map(|decision| decision.law.word().to_owned()),
        },
        weight: own.weight,
        effective_weight: member.weight,
        state: match (own.is_wanted(), member.fit) {
            (false, _) => why_unwanted(engine, pool.vip(), own),
            (true, false) => "down by its health".to_owned(),
            (true, true) if member.waits_for_probe() => "waits for its first probe".to_owned(),
            (true, true) if member.standby => "waits for others to fail".to_owned(),
            (true, true) => "active".to_owned(),
        },
        connections_active: engine.active(member.id),
        latency: pool.vip().latency.to_string(),
        latency_fallbacks: pool.in_force().fallbacks,
        takes_low: pool.in_force().takes_low,
        measured: engine
            .counters(member.id)
            .map_or_else(LatencyView::default, RealCounters::latency),
        report_age_s: engine
            .last_tick()
            .and_then(|now| {
                engine
                    .reports()
                    .latency_age_ns(own.address, now.monotonic_ns)
            })
            .map(|ns| ns as f64 / 1e9),
        decisions: member.past().decisions.views(),
    })
}
