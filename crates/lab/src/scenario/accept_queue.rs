// SPDX-License-Identifier: Apache-2.0
//! How long an accept queue should be (Certes, section 5.3): the usual rule, which keeps
//! the time at the server at a goal, against the agent's, which goes by what clients
//! feel. Both servers meet the same arrivals, in bursts.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use causeway_core::certes::{QueueingRule, Trial};
use serde_json::{Value, json};

use super::certes::{Net, Run, Running, Score, steady};
use super::{Context, Param, Scenario, param};
use crate::plot::{Line, Plot};

/// Limits that both rules keep within.
const LIMITS: std::ops::RangeInclusive<u32> = 16..=2048;
/// The limit that both begin with.
const BEGIN: u32 = 128;

pub struct AcceptQueue;

impl Scenario for AcceptQueue {
    fn name(&self) -> &'static str {
        "accept-queue"
    }

    fn about(&self) -> &'static str {
        "an accept queue by what clients feel against one by the time at the server"
    }

    fn params(&self) -> &'static [Param] {
        const PARAMS: &[Param] = &[
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
            param("svg", "", "write the plot to FILE"),
        ];
        PARAMS
    }

    fn run(&self, context: &Context) -> Result<Value> {
        let warm_up = Duration::from_secs(context.param("warm_up_s")?);
        let counts = Duration::from_secs(context.param("seconds")?);
        let start = |name, agent| start(context, name, agent, warm_up + counts);
        let managed = "accept_queue = \"manage\"\n";
        let by_clients = start("by-clients", managed)?;
        let by_queueing = start("by-queueing", "")?;
        context.say(format!(
            "two servers for {} s",
            (warm_up + counts).as_secs()
        ));
        let limits = steer(context, &by_clients, &by_queueing, warm_up + counts)?;
        let mut scores = Vec::new();
        for run in [by_clients, by_queueing] {
            let score = run.finish(warm_up, counts)?;
            context.say(score.sentence());
            scores.push(score);
        }
        let svg: String = context.param("svg")?;
        if !svg.is_empty() {
            let drawn = plot(&scores, &limits)?;
            std::fs::write(&svg, drawn).with_context(|| format!("writing {svg}"))?;
        }
        let lower_pct = 100.0 * (1.0 - scores[0].truth_mean_s / scores[1].truth_mean_s);
        context.say(format!(
            "by what clients feel: {:.3} s, by the time at the server: {:.3} s, {lower_pct:.0} % lower",
            scores[0].truth_mean_s, scores[1].truth_mean_s
        ));
        Ok(json!({
            "client_rule_mean_s": scores[0].truth_mean_s,
            "queueing_rule_mean_s": scores[1].truth_mean_s,
            "lower_pct": lower_pct,
            "limits": limits.iter().map(|of| json!({
                "at_s": of.at_s, "by_clients": of.by_clients, "by_queueing": of.by_queueing,
            })).collect::<Vec<_>>(),
            "runs": scores,
        }))
    }
}

/// Both limits at one time.
struct Limits {
    at_s: f64,
    by_clients: u32,
    by_queueing: u32,
}

fn start(context: &Context, name: &'static str, agent: &str, length: Duration) -> Result<Running> {
    let base = Run {
        name,
        backlog: vec![BEGIN as i32],
        patience_s: vec![21],
        // Most clients' stacks double their timeouts from the first.
        linear_timeouts: Some(0),
        ..steady()
    };
    let capacity = base.workers as f64 / base.service.as_secs_f64();
    let (burst, between): (f64, f64) = (context.param("burst")?, context.param("between")?);
    let period: u64 = context.param("period_s")?;
    let run = match context.param::<String>("load")?.as_str() {
        "bursts" => Run {
            clients: 4000,
            on_off: Some((Duration::from_secs(4), Duration::from_secs(6))),
            arrivals: Some((burst * capacity, between * capacity)),
            ..base
        },
        "paper" => Run {
            clients: 1000,
            workers: 64,
            round_trip_us: 152_000,
            ..base
        },
        other => bail!("the load is bursts or paper, not {other:?}"),
    };
    let run = Run {
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
    let net = Net::build(context.sandbox, &run, context.seed)?;
    run.start(&context.binary, net, length, context.seed)
}

/// Applies the usual rule to one server, and notes both limits, once a period.
fn steer(
    context: &Context,
    by_clients: &Running,
    by_queueing: &Running,
    length: Duration,
) -> Result<Vec<Limits>> {
    let period = Duration::from_secs(context.param("period_s")?);
    let goal_ms: f64 = context.param("goal_ms")?;
    let mut rule = QueueingRule::new(LIMITS, BEGIN, goal_ms / 1000.0);
    let begin = Instant::now();
    let mut before = (0.0, 0.0);
    let mut limits = Vec::new();
    while begin.elapsed() + period < length {
        std::thread::sleep(period);
        let live = by_queueing.agent().clients()?;
        let totals = &live["categories"][0]["totals"];
        let of = |key: &str| totals[key].as_f64().unwrap_or(0.0);
        let now = (of("completed"), of("server_s"));
        let limit = rule.step(Trial {
            completed: now.0 - before.0,
            served_s: now.1 - before.1,
            ..Trial::default()
        });
        before = now;
        by_queueing.set_backlog(limit)?;
        let live = by_clients.agent().clients()?;
        limits.push(Limits {
            at_s: begin.elapsed().as_secs_f64(),
            by_clients: live["accept_queues"][0]["limit"].as_u64().unwrap_or(0) as u32,
            by_queueing: limit,
        });
    }
    Ok(limits)
}

/// What clients felt and what the servers saw, second by second, and the limits.
fn plot(scores: &[Score], limits: &[Limits]) -> Result<String> {
    let line = |name: &str, points: Vec<(f64, f64)>| Line {
        name: name.to_owned(),
        points,
    };
    let of_limits = |of: fn(&Limits) -> u32| -> Vec<(f64, f64)> {
        limits
            .iter()
            .map(|limit| (limit.at_s, f64::from(of(limit)).log2()))
            .collect()
    };
    Plot {
        title: "Client response time under two rules for the accept queue".to_owned(),
        x_label: "seconds".to_owned(),
        x_log: false,
        y_label: "seconds; limits: log2".to_owned(),
        lines: vec![
            line("clients, by clients", scores[0].felt.clone()),
            line("clients, by queueing", scores[1].felt.clone()),
            line("server's view, by queueing", scores[1].served.clone()),
            line("limit, by clients", of_limits(|of| of.by_clients)),
            line("limit, by queueing", of_limits(|of| of.by_queueing)),
        ],
    }
    .svg()
}
