// SPDX-License-Identifier: Apache-2.0
//! Short connections and ping-pong at each loss by each carrier.
//!
//! What one carrier bears at one loss is one block, or several that take turns with the
//! others'. Percentiles are those of all blocks' requests together: the median of the blocks'
//! would leave out the worst of them for what it measured. A block is what is played again.

use anyhow::Result;
use serde_json::{Value, json};

use super::latencies::RequestTimes;
use super::loads::{self, Pace};
use super::replay::{Counted, Replays};
use super::runs::{CLIENTS, Carrier, ECHO, PINGERS, merge, pace, say};
use super::world::{LossPoint, Losses, TunnelWorld};
use super::{BifrostPlan, Context};

const LOADS: [&str; 2] = ["short", "rr"];

/// What one carrier bears at one loss, at a stretch.
#[derive(Debug, Clone, Copy)]
struct Block<'a> {
    loss_pct: f64,
    load: &'static str,
    carrier: &'a Carrier,
    round: usize,
}

/// Rows for short connections and for ping-pong, and every block that counts.
pub(super) fn tails(
    context: &Context,
    plan: &BifrostPlan,
    replays: &mut Replays<'_>,
    world: &TunnelWorld,
    carriers: &[Carrier],
) -> Result<(Vec<Value>, Vec<Value>, Value)> {
    let blocks = blocks(plan, carriers);
    let names: Vec<String> = blocks
        .iter()
        .map(|block| format!("{}, block {}", block.title(), block.round + 1))
        .collect();
    let mut injected: Option<(f64, Losses)> = None;
    let told = |injected: &Option<(f64, Losses)>| {
        if let Some((loss, losses)) = injected {
            let counts = losses.counts();
            context.say(format!(
                "{loss} % loss: {} of {} packets lost",
                counts.lost, counts.packets
            ));
        }
    };
    let counted = replays.rounds(&names, |number| {
        let block = blocks[number];
        if injected.as_ref().map(|(loss, _)| *loss) != Some(block.loss_pct) {
            told(&injected);
            // What was there goes before another comes.
            injected = None;
            let losses = world.lose(block.loss_pct / 100.0, LossPoint::Network, context.seed)?;
            injected = Some((block.loss_pct, losses));
        }
        let times = block.play(plan)?;
        say(context, &block.title(), &times);
        let steal = times.steal();
        Ok((times, steal))
    })?;
    told(&injected);
    rows(context, plan, carriers, &blocks, &counted)
}

impl Block<'_> {
    fn title(&self) -> String {
        format!("{} {} % {}", self.load, self.loss_pct, self.carrier.name)
    }

    fn play(&self, plan: &BifrostPlan) -> Result<RequestTimes> {
        let carrier = self.carrier;
        let pace = |clients| Pace {
            lasts: plan.lasts / plan.tail_rounds as u32,
            ..pace(plan, clients)
        };
        match self.load {
            "short" => loads::short(&carrier.ends, carrier.web, plan.bytes, pace(CLIENTS)),
            _ => loads::ping_pong(&carrier.ends, ECHO, pace(PINGERS)),
        }
    }
}

/// All in the order of play: who begins turns from round to round.
fn blocks<'a>(plan: &BifrostPlan, carriers: &'a [Carrier]) -> Vec<Block<'a>> {
    let mut blocks = Vec::new();
    for (turn, &loss_pct) in plan.losses.iter().enumerate() {
        for round in 0..plan.tail_rounds {
            for load in LOADS {
                let order = (0..carriers.len()).map(|i| (i + turn + round) % carriers.len());
                blocks.extend(order.map(|at| Block {
                    loss_pct,
                    load,
                    carrier: &carriers[at],
                    round,
                }));
            }
        }
    }
    blocks
}

fn rows(
    context: &Context,
    plan: &BifrostPlan,
    carriers: &[Carrier],
    blocks: &[Block<'_>],
    counted: &[Counted<RequestTimes>],
) -> Result<(Vec<Value>, Vec<Value>, Value)> {
    let mut details = Vec::new();
    let mut row = |load, loss_pct| -> Result<Value> {
        let mut row = json!({ "loss_pct": loss_pct });
        let mut over_limit = 0;
        for carrier in carriers {
            let found: Vec<&Counted<RequestTimes>> = blocks
                .iter()
                .zip(counted)
                .filter(|(block, _)| {
                    block.load == load
                        && block.loss_pct == loss_pct
                        && block.carrier.name == carrier.name
                })
                .map(|(_, counted)| counted)
                .collect();
            let each: Vec<&RequestTimes> = found.iter().map(|one| &one.figures).collect();
            let over = found.iter().filter(|one| one.over).count();
            over_limit += over;
            let times = RequestTimes::pooled(each.iter().copied())?;
            if each.len() > 1 {
                let title = format!("all {load} {loss_pct} % {}", carrier.name);
                say(context, &title, &times);
            }
            merge(&mut row, columns(carrier.name, &times));
            details.push(json!({
                "load": load, "loss_pct": loss_pct, "carrier": carrier.name, "times": times,
                "blocks": each, "blocks_over_limit": over,
            }));
        }
        merge(&mut row, json!({ "blocks_over_limit": over_limit }));
        Ok(row)
    };
    let mut all = |load| plan.losses.iter().map(|loss| row(load, *loss)).collect();
    let (short, rr): (Result<Vec<Value>>, _) = (all(LOADS[0]), all(LOADS[1]));
    Ok((short?, rr?, json!(details)))
}

fn columns(carrier: &str, times: &RequestTimes) -> Value {
    match carrier {
        "causeway" => json!({
            "causeway_p50_ms": times.p50_ms, "causeway_p99_ms": times.p99_ms,
            "causeway_p999_ms": times.p999_ms, "causeway_failed": times.failed,
        }),
        other => {
            let mut row = serde_json::Map::new();
            row.insert(format!("{other}_p50_ms"), json!(times.p50_ms));
            row.insert(format!("{other}_p99_ms"), json!(times.p99_ms));
            Value::Object(row)
        }
    }
}
