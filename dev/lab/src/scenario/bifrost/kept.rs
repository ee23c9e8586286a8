// SPDX-License-Identifier: Apache-2.0
//! Throughput kept under loss, in rounds of bulk runs with and without: each loss is compared
//! with none in the same round, and a round is played again as a whole.

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};

use super::replay::{Counted, Replays};
use super::runs::{BULK, WARM_UP, guests, rounds_named};
use super::tunnel::Tunnel;
use super::world::{LossPoint, TunnelWorld};
use super::{BifrostPlan, Context, loads};
use crate::cpu::Steal;
use crate::statistics::{median, standard_error};

/// A bulk run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct BulkRun {
    loss_pct: f64,
    gbps: f64,
    machine_busy: f64,
    stolen_pct: f64,
    retransmit_pct: f64,
    duplicate_pct: f64,
    #[serde(skip)]
    counts: Counts,
}

/// Rounds of bulk runs, one at each loss, in an order that turns from round to round.
pub(super) fn bulk_rounds(
    context: &Context,
    plan: &BifrostPlan,
    replays: &mut Replays<'_>,
    (world, tunnel): (&TunnelWorld, &Tunnel),
    (what, rounds): (&str, usize),
    losses: &[f64],
) -> Result<Vec<BulkRun>> {
    let ends = guests(world);
    let counted = replays.rounds(&rounds_named(rounds), |round| {
        let (mut runs, mut steal) = (Vec::new(), Steal::default());
        for index in 0..losses.len() {
            let loss = losses[(index + round) % losses.len()];
            let begin = Counts::read(tunnel)?;
            let _injected =
                world.lose(loss / 100.0, LossPoint::Network, context.seed + round as u64)?;
            let bulk = loads::bulk(&ends, BULK, plan.flows, [WARM_UP, plan.bulk], &[])?;
            let counts = Counts::read(tunnel)?.minus(begin);
            let run = BulkRun {
                loss_pct: loss,
                gbps: bulk.gbps,
                machine_busy: bulk.busy,
                stolen_pct: bulk.steal.pct(),
                retransmit_pct: counts.retransmit_pct(),
                duplicate_pct: counts.duplicate_pct(),
                counts,
            };
            context.say(format!(
                "{what} {loss} % loss: {:.3} Gbit/s, {:.2} % retransmitted, {:.3} % duplicated, {:.0} % of the CPUs busy, {:.1} % stolen",
                run.gbps, run.retransmit_pct, run.duplicate_pct, 100.0 * run.machine_busy, run.stolen_pct
            ));
            steal = steal.and(bulk.steal);
            runs.push(run);
        }
        Ok((runs, steal))
    })?;
    let runs = counted
        .into_iter()
        .flat_map(|Counted { figures, .. }| figures);
    Ok(runs.collect())
}

/// Throughput at losses, as a part of that without in the same round, and what is retransmitted
/// without.
pub(super) fn kept(
    context: &Context,
    plan: &BifrostPlan,
    replays: &mut Replays<'_>,
    world: &TunnelWorld,
    tunnel: &Tunnel,
) -> Result<(Value, Value)> {
    let before = Counts::read(tunnel)?;
    let losses = losses(plan);
    let what = ("bulk", plan.kept_rounds);
    let runs = bulk_rounds(context, plan, replays, (world, tunnel), what, &losses)?;
    let clean = runs.iter().filter(|run| run.loss_pct == 0.0);
    let no_loss = clean.fold(Counts::default(), |sum, run| sum.plus(run.counts));
    let rates = rates(&runs);
    let (mut kept, mut errors) = (serde_json::Map::new(), serde_json::Map::new());
    for loss in &losses[1..] {
        let (middle, error) = (kept_pct(&rates, *loss), kept_error_pct(&rates, *loss));
        context.say(format!(
            "kept at {loss} % loss: {middle:.1} %, standard error {error:.1} points, {} rounds",
            plan.kept_rounds
        ));
        kept.insert(loss.to_string(), json!(middle));
        errors.insert(loss.to_string(), json!(error));
    }
    let interface = json!({
        "kept_pct": kept,
        "retransmit_pct_no_loss": no_loss.retransmit_pct(),
        "duplicate_pct_no_loss": no_loss.duplicate_pct(),
    });
    let all = Counts::read(tunnel)?.minus(before);
    let details = json!({
        "runs": runs, "standard_error_pct": errors, "chunks_sent": all.sent, "chunks_resent": all.resent,
    });
    Ok((interface, details))
}

/// None, and those that a bulk run shows.
pub(super) fn losses(plan: &BifrostPlan) -> Vec<f64> {
    let lossy = plan.losses.iter().copied().filter(|loss| *loss >= 1.0);
    std::iter::once(0.0).chain(lossy).collect()
}

/// Loss and rate of each run.
pub(super) fn rates(runs: &[BulkRun]) -> Vec<(f64, f64)> {
    runs.iter().map(|run| (run.loss_pct, run.gbps)).collect()
}

/// Throughput at a loss in percent of that without, the median over the rounds. Each round is
/// compared with itself: a machine whose speed drifts from round to round (its host has other
/// guests) would else be taken for loss or gain. `runs`: loss and rate, round after round.
pub(super) fn kept_pct(runs: &[(f64, f64)], loss: f64) -> f64 {
    100.0 * median(&kept_ratios(runs, loss).collect::<Vec<_>>())
}

fn kept_ratios(runs: &[(f64, f64)], loss: f64) -> impl Iterator<Item = f64> {
    let at = move |loss: f64| runs.iter().filter(move |run| run.0 == loss);
    at(loss)
        .zip(at(0.0))
        .map(|(lossy, clean)| lossy.1 / clean.1)
}

/// How far to trust [`kept_pct`], in percent.
fn kept_error_pct(runs: &[(f64, f64)], loss: f64) -> f64 {
    let ratios: Vec<f64> = kept_ratios(runs, loss).collect();
    100.0 * standard_error(&ratios)
}

/// What the tunnel's ends count, together.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub sent: u64,
    pub resent: u64,
    received: u64,
    twice: u64,
}

impl Counts {
    pub(super) fn read(tunnel: &Tunnel) -> Result<Self> {
        Ok(Self {
            sent: tunnel.total(|of| of.chunks_sent)?,
            resent: tunnel.total(|of| of.chunks_retransmitted)?,
            received: tunnel.total(|of| of.chunks_received)?,
            twice: tunnel.refused("redundant")?
                + tunnel.refused("duplicate")?
                + tunnel.refused("late")?,
        })
    }

    fn minus(self, other: Self) -> Self {
        Self {
            sent: self.sent - other.sent,
            resent: self.resent - other.resent,
            received: self.received - other.received,
            twice: self.twice - other.twice,
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            resent: self.resent + other.resent,
            received: self.received + other.received,
            twice: self.twice + other.twice,
        }
    }

    fn retransmit_pct(&self) -> f64 {
        100.0 * self.resent as f64 / self.sent.max(1) as f64
    }

    fn duplicate_pct(&self) -> f64 {
        100.0 * self.twice as f64 / self.received.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::FRAC_PI_2;

    use super::*;

    #[test]
    fn counts_become_shares() {
        let counts = Counts {
            sent: 1000,
            resent: 5,
            received: 2000,
            twice: 1,
        };
        assert_eq!(
            (counts.retransmit_pct(), counts.duplicate_pct()),
            (0.5, 0.05)
        );
        // A machine that has become twice as fast in the second round.
        let runs = [
            (0.0, 10.0),
            (1.0, 9.0),
            (1.0, 18.0),
            (0.0, 20.0),
            (0.0, 5.0),
        ];
        assert_eq!(kept_pct(&runs, 1.0), 90.0);
        assert!(kept_error_pct(&runs, 1.0) < 1e-9, "both kept the same");
        let runs = [(0.0, 10.0), (1.0, 9.0), (0.0, 10.0), (1.0, 11.0)];
        let expected = 10.0 * FRAC_PI_2.sqrt();
        assert!((kept_error_pct(&runs, 1.0) - expected).abs() < 1e-9);
    }
}
