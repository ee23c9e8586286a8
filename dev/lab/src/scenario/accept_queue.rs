// SPDX-License-Identifier: Apache-2.0
//! How long an accept queue should be (Certes, section 5.3): the usual rule, which keeps
//! the time at the server at a goal, against the agent's, which goes by client
//! latency. Both servers meet the same arrivals, in bursts.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use causeway_api::agent::ClientTotals;
use causeway_core::certes::Trial;
use causeway_report::chart::{Chart, Scale, Series};
use causeway_sim::certes::QueueingRule;
use serde_json::{Value, json};

use super::certes::{CertesRun, Net, RunningCertes, Score, steady};
use super::{Context, Scenario, param};

/// Limits that both rules keep within.
const LIMITS: std::ops::RangeInclusive<u32> = 16..=2048;
/// The limit that both begin with.
const BEGIN: u32 = 128;

pub(super) const ACCEPT_QUEUE: Scenario = Scenario {
    name: "accept-queue",
    about: "an accept queue by client latency against one by the time at the server",
    params: &[
        param("seconds", "60", "length that counts"),
        param(
            "warm_up_s",
            "40",
            "what is left out before: the rules settle",
        ),
        param("period_s", "10", "how long a limit is tried"),
        param(
            "goal_ms",
            "300",
            "the usual rule's goal for the time at the server",
        ),
        param(
            "burst",
            "1.6",
            "arrivals in a burst, as a share of what the server can do",
        ),
        param("between", "0.4", "the same between bursts"),
        param(
            "load",
            "bursts",
            "bursts of arrivals; or paper: 1000 clients that begin anew, 152 ms away (figure 21)",
        ),
        param("patience_s", "21", "how long a client tries to connect"),
        param(
            "seeds",
            "1",
            "pairs of servers side by side, each pair with arrivals of its own",
        ),
        param("svg", "", "write the first pair's plot to FILE"),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let warm_up = Duration::from_secs(context.param("warm_up_s")?);
    let counts = Duration::from_secs(context.param("seconds")?);
    let seeds: u64 = context.param("seeds")?;
    ensure!(seeds > 0, "there must be one seed at least");
    let mut pairs = (0..seeds)
        .map(|number| Pair::start(context, number, warm_up + counts))
        .collect::<Result<Vec<_>>>()?;
    context.say(format!(
        "{} servers for {} s",
        2 * seeds,
        (warm_up + counts).as_secs()
    ));
    steer(context, &mut pairs, warm_up + counts)?;
    let outcomes = pairs
        .into_iter()
        .map(|pair| pair.finish(context, warm_up, counts))
        .collect::<Result<Vec<_>>>()?;
    let svg: String = context.param("svg")?;
    if !svg.is_empty() {
        std::fs::write(&svg, outcomes[0].plot()).with_context(|| format!("writing {svg}"))?;
    }
    let mean =
        |of: fn(&Outcome) -> f64| outcomes.iter().map(of).sum::<f64>() / outcomes.len() as f64;
    let (by_clients, by_queueing) = (
        mean(|of| of.by_clients.truth_mean_s),
        mean(|of| of.by_queueing.truth_mean_s),
    );
    let lower_pct = 100.0 * (1.0 - by_clients / by_queueing);
    let better = outcomes.iter().filter(|of| of.lower_pct() > 0.0).count();
    context.say(format!(
        "by client latency: {by_clients:.3} s, by the time at the server: {by_queueing:.3} s, {lower_pct:.0} % lower; lower with {better} of {seeds} seeds"
    ));
    Ok(json!({
        "client_rule_mean_s": by_clients,
        "queueing_rule_mean_s": by_queueing,
        "lower_pct": lower_pct,
        "seeds_lower": better,
        "seeds": outcomes.iter().map(Outcome::json).collect::<Vec<_>>(),
    }))
}

/// Two servers that meet the same arrivals, one under each rule.
struct Pair {
    seed: u64,
    by_clients: RunningCertes,
    by_queueing: RunningCertes,
    rule: QueueingRule,
    /// Connections completed and their SYN-to-END, seconds, when the rule was last asked.
    before: (f64, f64),
    limits: Vec<Limits>,
}

impl Pair {
    fn start(context: &Context, number: u64, length: Duration) -> Result<Self> {
        let seed = context.seed + number;
        let name = |rule: &str| format!("{rule}-{number}");
        let managed = "accept_queue = \"manage\"\n";
        let goal_ms: f64 = context.param("goal_ms")?;
        Ok(Self {
            seed,
            by_clients: start(context, name("by-clients"), managed, length, seed)?,
            by_queueing: start(context, name("by-queueing"), "", length, seed)?,
            rule: QueueingRule::new(LIMITS, BEGIN, goal_ms / 1000.0),
            before: (0.0, 0.0),
            limits: Vec::new(),
        })
    }

    /// Applies the usual rule to its server, and notes both limits.
    fn step(&mut self, at_s: f64) -> Result<()> {
        let live = self.by_queueing.agent().clients()?;
        let first = live.categories.first();
        let totals = first.map_or_else(ClientTotals::default, |of| of.totals);
        let now = (totals.completed as f64, totals.server_s);
        let limit = self.rule.step(Trial {
            completed: now.0 - self.before.0,
            served_s: now.1 - self.before.1,
            ..Trial::default()
        });
        self.before = now;
        self.by_queueing.set_backlog(limit)?;
        let live = self.by_clients.agent().clients()?;
        self.limits.push(Limits {
            at_s,
            by_clients: live.accept_queues.first().map_or(0, |of| of.limit),
            by_queueing: limit,
        });
        Ok(())
    }

    fn finish(self, context: &Context, warm_up: Duration, counts: Duration) -> Result<Outcome> {
        let outcome = Outcome {
            seed: self.seed,
            by_clients: self.by_clients.finish(warm_up, counts)?,
            by_queueing: self.by_queueing.finish(warm_up, counts)?,
            limits: self.limits,
        };
        context.say(outcome.by_clients.sentence());
        context.say(outcome.by_queueing.sentence());
        Ok(outcome)
    }
}

/// What came of a pair.
struct Outcome {
    seed: u64,
    by_clients: Score,
    by_queueing: Score,
    limits: Vec<Limits>,
}

impl Outcome {
    fn lower_pct(&self) -> f64 {
        100.0 * (1.0 - self.by_clients.truth_mean_s / self.by_queueing.truth_mean_s)
    }

    fn json(&self) -> Value {
        let limit = |of: &Limits| {
            json!({
                "at_s": of.at_s, "by_clients": of.by_clients, "by_queueing": of.by_queueing,
            })
        };
        json!({
            "seed": self.seed,
            "lower_pct": self.lower_pct(),
            "limits": self.limits.iter().map(limit).collect::<Vec<_>>(),
            "runs": [self.by_clients, self.by_queueing],
        })
    }

    /// Client latency and what the servers saw, second by second, and the limits.
    fn plot(&self) -> String {
        let of_limits = |of: fn(&Limits) -> u32| {
            let limits = self.limits.iter();
            limits.map(move |limit| (limit.at_s, f64::from(of(limit)).log2()))
        };
        let (by_clients, by_queueing) = (&self.by_clients, &self.by_queueing);
        Chart::new(
            "Client response time under two rules for the accept queue",
            (Scale::Linear, "seconds"),
            (Scale::FromZero, "seconds; limits: log2"),
            vec![
                Series::new("clients, by clients", by_clients.client_latency.clone()),
                Series::new("clients, by queueing", by_queueing.client_latency.clone()),
                Series::new("server's view, by queueing", by_queueing.served.clone()),
                Series::new("limit, by clients", of_limits(|of| of.by_clients)),
                Series::new("limit, by queueing", of_limits(|of| of.by_queueing)),
            ],
        )
        .file()
    }
}

/// Both limits at one time.
struct Limits {
    at_s: f64,
    by_clients: u32,
    by_queueing: u32,
}

fn start(
    context: &Context,
    name: String,
    agent: &str,
    length: Duration,
    seed: u64,
) -> Result<RunningCertes> {
    let base = CertesRun {
        name,
        backlog: vec![BEGIN as i32],
        patience: vec![Duration::from_secs(context.param("patience_s")?)],
        // Most clients' stacks double their timeouts from the first.
        linear_timeouts: Some(0),
        ..steady()
    };
    let capacity = base.workers as f64 / base.service.as_secs_f64();
    let (burst, between): (f64, f64) = (context.param("burst")?, context.param("between")?);
    let period: u64 = context.param("period_s")?;
    let run = match context.param::<String>("load")?.as_str() {
        "bursts" => CertesRun {
            clients: 4000,
            on_off: Some((Duration::from_secs(4), Duration::from_secs(6))),
            arrivals: Some((burst * capacity, between * capacity)),
            ..base
        },
        "paper" => CertesRun {
            clients: 1000,
            workers: 64,
            round_trip_us: 152_000,
            ..base
        },
        other => bail!("the load is bursts or paper, not {other:?}"),
    };
    let run = CertesRun {
        agent: (
            agent.to_owned(),
            format!(
                "backlog = [{}, {}]\nbacklog_period = \"{period}s\"\n",
                LIMITS.start(),
                LIMITS.end()
            ),
        ),
        ..run
    };
    let net = Net::build(context.sandbox, &run, seed)?;
    run.start(&context.binary, net, length, seed)
}

/// Steps all pairs once a period.
fn steer(context: &Context, pairs: &mut [Pair], length: Duration) -> Result<()> {
    let period = Duration::from_secs(context.param("period_s")?);
    let begin = Instant::now();
    let mut next = period;
    while next < length {
        std::thread::sleep(next.saturating_sub(begin.elapsed()));
        for pair in pairs.iter_mut() {
            pair.step(begin.elapsed().as_secs_f64())?;
        }
        next += period;
    }
    Ok(())
}
