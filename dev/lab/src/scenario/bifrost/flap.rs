// SPDX-License-Identifier: Apache-2.0
//! One path goes down and comes back; and further cases for the tunnel alone, a run each.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::{Value, json};

use super::latencies::RequestTimes;
use super::replay::Replays;
use super::runs::{BULK, CLIENTS, ECHO, PINGERS, WEB, guests, merge, pace, rounds_named, say};
use super::world::{LossPoint, TunnelWorld};
use super::{BifrostPlan, Context, loads};
use crate::background::joined;
use crate::statistics::median;

/// The path that flaps is down this long, this often. A period of 1 s would resonate
/// with the timeout of TCP's SYN.
const FLAP: (u64, u64) = (1_370_000_000, 100_000_000);
/// The further cases.
const MORE: [&str; 3] = ["loss_at_card_1_pct", "mtu_shrink", "beside_an_elephant"];

/// One path goes down and comes back, under ping-pong and short connections, in rounds: what
/// takes the CPU away for a moment decides over the p99 of a single one.
pub(super) fn flap(
    context: &Context,
    plan: &BifrostPlan,
    replays: &mut Replays<'_>,
    world: &TunnelWorld,
) -> Result<Value> {
    let ends = guests(world);
    let timeouts = || -> Result<u64> {
        let mut guests = world.guests.iter();
        guests.try_fold(0, |sum, guest| Ok(sum + TunnelWorld::tcp_timeouts(guest)?))
    };
    let (period, down) = FLAP;
    let flapping = world.flap(0, period, down)?;
    let begun = timeouts()?;
    let counted = replays.rounds(&rounds_named(plan.flap_rounds), |_| {
        let before = timeouts()?;
        let rr = loads::ping_pong(&ends, ECHO, pace(plan, PINGERS))?;
        let short = loads::short(&ends, WEB, plan.bytes, pace(plan, CLIENTS))?;
        let inner_rtos = timeouts()? - before;
        say(context, "flap rr", &rr);
        say(context, "flap short", &short);
        let steal = rr.steal().and(short.steal());
        let round = FlapRound {
            p99_ms: rr.p99_ms.max(short.p99_ms),
            inner_rtos,
            rr,
            short,
        };
        Ok((round, steal))
    })?;
    let lost = flapping.counts().lost_down;
    let rounds: Vec<FlapRound> = counted.into_iter().map(|one| one.figures).collect();
    let mut value = flap_summary(&rounds)?;
    let all = timeouts()? - begun;
    merge(
        &mut value,
        json!({ "packets_lost": lost, "inner_rtos_with_discarded": all, "rounds": rounds }),
    );
    Ok(value)
}

/// A round of [`flap`].
#[derive(Debug, Clone, Serialize)]
struct FlapRound {
    /// The higher of both loads'.
    p99_ms: f64,
    /// Timeouts of the guests' TCP.
    inner_rtos: u64,
    rr: RequestTimes,
    short: RequestTimes,
}

/// The median of the rounds' p99s, the timeouts of all, and the round in the middle.
fn flap_summary(rounds: &[FlapRound]) -> Result<Value> {
    let mut by_p99: Vec<&FlapRound> = rounds.iter().collect();
    by_p99.sort_by(|a, b| a.p99_ms.total_cmp(&b.p99_ms));
    let middle = by_p99.get(by_p99.len() / 2).context("no round of flaps")?;
    Ok(json!({
        "p99_ms": median(&rounds.iter().map(|round| round.p99_ms).collect::<Vec<_>>()),
        "inner_rtos": rounds.iter().map(|round| round.inner_rtos).sum::<u64>(),
        "rr": middle.rr, "short": middle.short,
    }))
}

/// Further cases, for the tunnel alone.
pub(super) fn more(
    context: &Context,
    plan: &BifrostPlan,
    replays: &mut Replays<'_>,
    world: &TunnelWorld,
) -> Result<Value> {
    let names = MORE.map(str::to_owned);
    let counted = replays.rounds(&names, |case| {
        let times = one_more(context, plan, world, MORE[case])?;
        say(context, MORE[case], &times);
        let steal = times.steal();
        Ok((times, steal))
    })?;
    let all = MORE.into_iter().zip(counted);
    let cases = all.map(|(name, one)| (name.to_owned(), json!(one.figures)));
    Ok(Value::Object(cases.collect()))
}

fn one_more(
    context: &Context,
    plan: &BifrostPlan,
    world: &TunnelWorld,
    case: &str,
) -> Result<RequestTimes> {
    let ends = guests(world);
    let ping_pong = || loads::ping_pong(&ends, ECHO, pace(plan, PINGERS));
    match case {
        "loss_at_card_1_pct" => {
            let _injected = world.lose(0.01, LossPoint::Card, context.seed)?;
            ping_pong()
        }
        "mtu_shrink" => {
            world.shrink(1, 1400)?;
            let times = loads::short(&ends, WEB, 65_536, pace(plan, CLIENTS))?;
            world.shrink(1, 1500)?;
            Ok(times)
        }
        _ => {
            // An elephant beside the ping-pong, over the same paths.
            let elephant = {
                let (ends, lasts) = (ends.clone(), [Duration::ZERO, plan.lasts]);
                std::thread::spawn(move || loads::bulk(&ends, BULK + 1, 1, lasts, &[]))
            };
            let times = ping_pong()?;
            let bulk = joined(elephant)?;
            context.say(format!("the elephant had {:.3} Gbit/s", bulk.gbps));
            Ok(times)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flaps_count_every_timeout_and_the_round_in_the_middle() {
        let round = |p99_ms, inner_rtos| FlapRound {
            p99_ms,
            inner_rtos,
            rr: RequestTimes {
                p99_ms,
                ..RequestTimes::default()
            },
            short: RequestTimes::default(),
        };
        let value = flap_summary(&[round(3.0, 1), round(40.0, 2), round(2.0, 0)]).unwrap();
        assert_eq!(value["p99_ms"], 3.0);
        assert_eq!(value["inner_rtos"], 3);
        assert_eq!(value["rr"]["p99_ms"], 3.0);
        assert!(flap_summary(&[]).is_err());
    }
}
