// SPDX-License-Identifier: Apache-2.0
//! The experiments of the scenario `bifrost`.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::{Value, json};

use super::loads::{self, Ends, Latencies, Pace, Stack};
use super::tunnel::Tunnel;
use super::world::{GUESTS, Place, Shape, World};
use super::{Context, Plan, cases, machine, with_interface};
use crate::cpu::CpuMeter;
use crate::nginx::Nginx;

pub(super) const WEB: u16 = 80;
/// The web server that speaks MPTCP.
const WEB_MPTCP: u16 = 81;
pub(super) const ECHO: u16 = 7777;
pub(super) const BULK: u16 = 7778;
pub(super) const WARM_UP: Duration = Duration::from_secs(1);
/// Clients: stalls of a second at the usual rate leave most of them free.
pub(super) const CLIENTS: usize = 128;
/// Connections of the ping-pong.
pub(super) const PINGERS: usize = 32;
/// The path that flaps is down this long, this often. A period of 1 s would resonate
/// with the timeout of TCP's SYN.
const FLAP: (u64, u64) = (1_370_000_000, 100_000_000);

/// Runs what the plan wants.
pub fn all(context: &Context, plan: &Plan) -> Result<Value> {
    let mut interface = json!({ "seed": context.seed });
    let mut more = json!({ "paths": plan.paths, "mbit_per_path": plan.mbit });
    let set = |value: &mut Value, part: Value| merge(value, part);
    if ["tails", "kept", "flap", "more"]
        .iter()
        .any(|part| plan.wants(part))
    {
        let (parts, others) = rated(context, plan)?;
        set(&mut interface, parts);
        set(&mut more, others);
    }
    for (part, run) in cases::PARTS {
        if plan.wants(part) {
            let (rows, details) = run(context, plan)?;
            set(&mut interface, keyed(part, rows));
            set(&mut more, keyed(part, details));
        }
    }
    if plan.wants("cpu") {
        let (kept, details) = machine::cpu_bound(context, plan)?;
        set(&mut interface, json!({ "cpu_bound_kept_pct": kept }));
        set(&mut more, json!({ "cpu_bound": details }));
    }
    if plan.wants("gbps") || plan.wants("idle") {
        let (parts, others) = machine::fast(context, plan)?;
        set(&mut interface, parts);
        set(&mut more, others);
    }
    Ok(with_interface(interface, more))
}

fn keyed(key: &str, value: Value) -> Value {
    Value::Object([(key.to_owned(), value)].into_iter().collect())
}

pub(super) fn merge(into: &mut Value, from: Value) {
    if let (Some(into), Value::Object(from)) = (into.as_object_mut(), from) {
        into.extend(from);
    }
}

/// Who carries the load, where it runs.
#[derive(Debug, Clone)]
pub(super) struct Carrier {
    pub name: &'static str,
    pub ends: Ends,
    pub web: u16,
}

/// From host to host on a path, without a tunnel.
pub(super) fn hosts(world: &World, path: usize, stack: Stack) -> Ends {
    Ends {
        client: world.hosts[0].clone(),
        server: world.hosts[1].clone(),
        address: format!("10.9.{path}.2"),
        stack,
    }
}

pub(super) fn carriers(plan: &Plan, world: &World) -> Vec<Carrier> {
    let all = [
        ("plain", hosts(world, 0, Stack::Tcp), WEB),
        ("mptcp", hosts(world, 0, Stack::Mptcp), WEB_MPTCP),
        ("causeway", guests(world), WEB),
    ];
    let wanted = all.into_iter().filter(|(name, _, _)| plan.carries(name));
    wanted
        .map(|(name, ends, web)| Carrier { name, ends, web })
        .collect()
}

/// From guest to guest, through a tunnel.
pub fn guests(world: &World) -> Ends {
    Ends {
        client: world.guests[0].clone(),
        server: world.guests[1].clone(),
        address: GUESTS[1].to_owned(),
        stack: Stack::Tcp,
    }
}

/// What runs on paths with a rate: tails, throughput kept, flaps.
fn rated(context: &Context, plan: &Plan) -> Result<(Value, Value)> {
    let shape = Shape {
        paths: plan.paths,
        rate_mbit: Some(plan.mbit),
        offloads: false,
        mtu: 1500,
    };
    let world = World::build(context.sandbox, "rated", shape, &plan.congestion)?;
    let _host_web = Nginx::start(&world.hosts[1], "host", WEB, 1)?;
    let _guest_web = Nginx::start(&world.guests[1], "guest", WEB, 1)?;
    let carriers = carriers(plan, &world);
    let tunnel = match plan.carries("causeway") {
        true => Some(Tunnel::start(&world, &context.binary, &plan.setting)?),
        false => None,
    };
    if let Some(mptcp) = carriers.iter().find(|carrier| carrier.name == "mptcp") {
        world.enable_mptcp()?;
        loads::serve_web(&mptcp.ends, mptcp.web, CLIENTS)?;
    }
    let mut interface = json!({});
    let mut more = json!({});
    if plan.wants("tails") {
        let (short, rr, details) = tails(context, plan, &world, &carriers)?;
        merge(&mut interface, json!({ "short": short, "rr": rr }));
        merge(&mut more, json!({ "tails": details }));
    }
    let Some(tunnel) = tunnel else {
        return Ok((interface, more));
    };
    if plan.wants("kept") {
        let (parts, details) = kept(context, plan, &world, &tunnel)?;
        merge(&mut interface, parts);
        merge(&mut more, json!({ "kept": details }));
    }
    if plan.wants("flap") {
        let flap = flap(context, plan, &world)?;
        merge(&mut interface, json!({ "flap": flap }));
    }
    if plan.wants("more") {
        merge(&mut more, json!({ "cases": cases(context, plan, &world)? }));
    }
    merge(&mut more, json!({ "status": tunnel.ends[0].status()? }));
    Ok((interface, more))
}

pub(super) fn pace(plan: &Plan, clients: usize) -> Pace {
    Pace {
        rate: plan.rate,
        clients,
        lasts: plan.lasts,
    }
}

/// Short connections and ping-pong at each loss by each carrier, in an order that
/// turns from loss to loss.
fn tails(
    context: &Context,
    plan: &Plan,
    world: &World,
    carriers: &[Carrier],
) -> Result<(Vec<Value>, Vec<Value>, Value)> {
    let (mut short, mut rr) = (Vec::new(), Vec::new());
    let mut details = Vec::new();
    for (turn, loss) in plan.losses.iter().enumerate() {
        let injected = world.lose(loss / 100.0, Place::Network, context.seed)?;
        for (rows, load) in [(&mut short, "short"), (&mut rr, "rr")] {
            let mut row = json!({ "loss_pct": loss });
            for index in 0..carriers.len() {
                let carrier = &carriers[(index + turn) % carriers.len()];
                let times = match load {
                    "short" => {
                        loads::short(&carrier.ends, carrier.web, plan.bytes, pace(plan, CLIENTS))
                    }
                    _ => loads::ping_pong(&carrier.ends, ECHO, pace(plan, PINGERS)),
                }?;
                say(
                    context,
                    &format!("{load} {loss} % {}", carrier.name),
                    &times,
                );
                merge(&mut row, columns(carrier.name, &times));
                details.push(json!({
                    "load": load, "loss_pct": loss, "carrier": carrier.name, "times": times,
                }));
            }
            rows.push(row);
        }
        let counts = injected.counts();
        context.say(format!(
            "{loss} % loss: {} of {} packets lost",
            counts.lost, counts.packets
        ));
    }
    Ok((short, rr, json!(details)))
}

fn columns(carrier: &str, times: &Latencies) -> Value {
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

pub(super) fn say(context: &Context, what: &str, times: &Latencies) {
    context.say(format!(
        "{what:<24} p50 {:8.3} ms  p99 {:8.3} ms  p99.9 {:8.3} ms  {} requests, {} failed, \
         {:.3} ms late at p99, {:.1} % of the CPUs stolen",
        times.p50_ms,
        times.p99_ms,
        times.p999_ms,
        times.requests,
        times.failed,
        times.late_p99_ms,
        times.stolen_pct
    ));
}

/// Throughput at losses, as a part of that without in the same round, and what is sent again
/// without.
fn kept(context: &Context, plan: &Plan, world: &World, tunnel: &Tunnel) -> Result<(Value, Value)> {
    let ends = guests(world);
    let before = Counts::read(tunnel)?;
    let mut runs: Vec<(f64, f64)> = Vec::new();
    let mut losses = vec![0.0];
    losses.extend(plan.losses.iter().copied().filter(|loss| *loss >= 1.0));
    let mut no_loss = Counts::default();
    let mut runs_in_detail = Vec::new();
    for round in 0..plan.kept_rounds {
        for index in 0..losses.len() {
            let loss = losses[(index + round) % losses.len()];
            let begin = Counts::read(tunnel)?;
            let _injected =
                world.lose(loss / 100.0, Place::Network, context.seed + round as u64)?;
            let meter = CpuMeter::start()?;
            let gbps = loads::bulk(&ends, BULK, plan.flows, WARM_UP, plan.bulk)?;
            let (busy, stolen) = (meter.share()?, meter.stolen()?);
            let counts = Counts::read(tunnel)?.minus(begin);
            if loss == 0.0 {
                no_loss = no_loss.plus(counts);
            }
            context.say(format!(
                "bulk {loss} % loss: {gbps:.3} Gbit/s, {:.2} % sent again, {:.3} % twice, {:.0} % of the CPUs busy, {:.1} % stolen",
                counts.retransmit_pct(), counts.duplicate_pct(), 100.0 * busy, 100.0 * stolen
            ));
            runs.push((loss, gbps));
            runs_in_detail.push(json!({
                "loss_pct": loss, "gbps": gbps, "machine_busy": busy, "stolen": stolen,
                "retransmit_pct": counts.retransmit_pct(), "duplicate_pct": counts.duplicate_pct(),
            }));
        }
    }
    let (mut kept, mut errors) = (serde_json::Map::new(), serde_json::Map::new());
    for loss in &losses[1..] {
        let (middle, error) = (kept_pct(&runs, *loss), kept_error_pct(&runs, *loss));
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
        "runs": runs_in_detail, "standard_error_pct": errors, "chunks_sent": all.sent, "chunks_resent": all.resent,
    });
    Ok((interface, details))
}

/// Throughput at a loss in percent of that without, the median over the rounds. Each round is
/// compared with itself: a machine whose speed drifts from round to round (its host has other
/// guests) would else be taken for loss or gain. `runs`: loss and rate, round after round.
pub(super) fn kept_pct(runs: &[(f64, f64)], loss: f64) -> f64 {
    100.0 * median(kept_ratios(runs, loss).collect())
}

fn kept_ratios(runs: &[(f64, f64)], loss: f64) -> impl Iterator<Item = f64> {
    let at = move |loss: f64| runs.iter().filter(move |run| run.0 == loss);
    at(loss)
        .zip(at(0.0))
        .map(|(lossy, clean)| lossy.1 / clean.1)
}

/// The standard error of these ratios' mean, in percent: how far to trust [`kept_pct`]. NaN
/// for a single round.
fn kept_error_pct(runs: &[(f64, f64)], loss: f64) -> f64 {
    let count = kept_ratios(runs, loss).count() as f64;
    let mean = kept_ratios(runs, loss).sum::<f64>() / count;
    let squares: f64 = kept_ratios(runs, loss).map(|r| (r - mean).powi(2)).sum();
    100.0 * (squares / (count - 1.0) / count).sqrt()
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
            sent: tunnel.total("chunks_sent")?,
            resent: tunnel.total("chunks_resent")?,
            received: tunnel.total("chunks_received")?,
            twice: tunnel.refused("again")?
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

/// One path goes down and comes back, under ping-pong and short connections, in rounds: what
/// takes the CPU away for a moment decides over the p99 of a single one.
fn flap(context: &Context, plan: &Plan, world: &World) -> Result<Value> {
    let ends = guests(world);
    let timeouts = || -> Result<u64> {
        let mut guests = world.guests.iter();
        guests.try_fold(0, |sum, guest| Ok(sum + World::tcp_timeouts(guest)?))
    };
    let (period, down) = FLAP;
    let flapping = world.flap(0, period, down)?;
    let (mut rounds, mut before) = (Vec::new(), timeouts()?);
    for _ in 0..plan.flap_rounds {
        let rr = loads::ping_pong(&ends, ECHO, pace(plan, PINGERS))?;
        let short = loads::short(&ends, WEB, plan.bytes, pace(plan, CLIENTS))?;
        let now = timeouts()?;
        say(context, "flap rr", &rr);
        say(context, "flap short", &short);
        rounds.push(FlapRound {
            p99_ms: rr.p99_ms.max(short.p99_ms),
            inner_rtos: now - before,
            rr,
            short,
        });
        before = now;
    }
    let lost = flapping.counts().lost_down;
    let mut value = flap_summary(&rounds)?;
    merge(
        &mut value,
        json!({ "packets_lost": lost, "rounds": rounds }),
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
    rr: Latencies,
    short: Latencies,
}

/// The median of the rounds' p99s, the timeouts of all, and the round in the middle.
fn flap_summary(rounds: &[FlapRound]) -> Result<Value> {
    let mut by_p99: Vec<&FlapRound> = rounds.iter().collect();
    by_p99.sort_by(|a, b| a.p99_ms.total_cmp(&b.p99_ms));
    let middle = by_p99.get(by_p99.len() / 2).context("no round of flaps")?;
    Ok(json!({
        "p99_ms": median(rounds.iter().map(|round| round.p99_ms).collect()),
        "inner_rtos": rounds.iter().map(|round| round.inner_rtos).sum::<u64>(),
        "rr": middle.rr, "short": middle.short,
    }))
}

/// Further cases, for the tunnel alone.
fn cases(context: &Context, plan: &Plan, world: &World) -> Result<Value> {
    let ends = guests(world);
    let mut cases = serde_json::Map::new();
    let mut add = |name: &str, times: Latencies| {
        say(context, name, &times);
        cases.insert(name.to_owned(), json!(times));
    };
    {
        let _injected = world.lose(0.01, Place::Card, context.seed)?;
        add(
            "loss_at_card_1_pct",
            loads::ping_pong(&ends, ECHO, pace(plan, PINGERS))?,
        );
    }
    {
        world.shrink(1, 1400)?;
        add(
            "mtu_shrink",
            loads::short(&ends, WEB, 65_536, pace(plan, CLIENTS))?,
        );
        world.shrink(1, 1500)?;
    }
    // An elephant beside the ping-pong, over the same paths.
    let elephant = {
        let ends = ends.clone();
        let lasts = plan.lasts;
        std::thread::spawn(move || loads::bulk(&ends, BULK + 1, 1, Duration::ZERO, lasts))
    };
    add(
        "beside_an_elephant",
        loads::ping_pong(&ends, ECHO, pace(plan, PINGERS))?,
    );
    let gbps = elephant.join().ok().context("the elephant panicked")??;
    context.say(format!("the elephant had {gbps:.3} Gbit/s"));
    Ok(Value::Object(cases))
}

/// The one in the middle.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
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
        assert!((kept_error_pct(&runs, 1.0) - 10.0).abs() < 1e-9);
    }

    #[test]
    fn flaps_count_every_timeout_and_the_round_in_the_middle() {
        let round = |p99_ms, inner_rtos| FlapRound {
            p99_ms,
            inner_rtos,
            rr: Latencies {
                p99_ms,
                ..Latencies::default()
            },
            short: Latencies::default(),
        };
        let value = flap_summary(&[round(3.0, 1), round(40.0, 2), round(2.0, 0)]).unwrap();
        assert_eq!(value["p99_ms"], 3.0);
        assert_eq!(value["inner_rtos"], 3);
        assert_eq!(value["rr"]["p99_ms"], 3.0);
        assert!(flap_summary(&[]).is_err());
    }
}
