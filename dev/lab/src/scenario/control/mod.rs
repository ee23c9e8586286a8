// SPDX-License-Identifier: Apache-2.0
//! Load that follows latency, on real servers: plain Maglev, the paper's law and the
//! default one by turns, under loads from light to heavy, and one by one what can go
//! wrong with a server.
//!
//! A request burns CPU time in nginx, and a control group gives each nginx a share of a
//! CPU that changes every second along a trace (`causeway-sim`'s, the same for all that
//! are compared). So queues, throttling and interference are real; the pool is made
//! small enough for two cores to hold it beside clients and balancer.

mod extras;
mod figures;
mod world;

use anyhow::{Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use self::figures::LoadFigures;
use self::world::ControlWorld;
use super::{Context, Scenario, param};

/// What is compared: name, and the arguments of `causeway vip set`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Way {
    Maglev,
    Paper,
    Causeway,
}

impl Way {
    const ALL: [Self; 3] = [Self::Maglev, Self::Paper, Self::Causeway];

    fn name(self) -> &'static str {
        match self {
            Self::Maglev => "maglev",
            Self::Paper => "paper",
            Self::Causeway => "causeway",
        }
    }
}

/// The parameters, checked.
struct Plan {
    seed: u64,
    loads: Vec<f64>,
    traces: u64,
    rounds: u64,
    steps: usize,
    noises: usize,
    seconds: f64,
    warm_up_s: f64,
    users: usize,
    work_us: f64,
    capacity: f64,
    max_age_ms: u64,
    law: String,
    scheduler: String,
    extras: bool,
}

impl Plan {
    fn read(context: &Context) -> Result<Self> {
        let loads: String = context.param("loads")?;
        let loads = loads.split(',').filter(|word| !word.trim().is_empty());
        let plan = Self {
            seed: context.seed,
            loads: loads
                .map(|word| Ok(word.trim().parse::<f64>()? / 100.0))
                .collect::<Result<_>>()?,
            traces: context.param("traces")?,
            rounds: context.param("rounds")?,
            steps: context.param("steps")?,
            noises: context.param("noises")?,
            seconds: context.param("seconds")?,
            warm_up_s: context.param("warm_up_s")?,
            users: context.param("users")?,
            work_us: context.param("work_us")?,
            capacity: context.param("capacity")?,
            max_age_ms: context.param("max_age_ms")?,
            law: context.param("law")?,
            scheduler: context.param("scheduler")?,
            extras: context.param::<u8>("extras")? != 0,
        };
        ensure!(
            plan.loads.iter().all(|load| (0.01..1.0).contains(load)),
            "loads are percents from 1 to 99: what asks for more than all never settles"
        );
        ensure!(
            plan.traces > 0 && plan.rounds > 0,
            "traces and rounds are at least 1 each: without a run there is nothing to compare"
        );
        ensure!(
            plan.seconds > plan.warm_up_s + 1.0,
            "a run must be a second longer than its warm-up"
        );
        ensure!(
            (0.05..=0.5).contains(&plan.capacity),
            "capacity lies between 0.05 and 0.5 of a CPU: four servers, clients and the balancer share the machine"
        );
        Ok(plan)
    }
}

pub(super) const CONTROL: Scenario = Scenario {
    name: "control",
    about: "p99 under plain Maglev, the paper's law and the default one, and how they react",
    params: &[
        param("loads", "30,45,60,75,90", "percents of the mean capacity"),
        param("traces", "2", "traces of capacities for each load"),
        param("rounds", "5", "runs of each way on each trace, by turns"),
        param("steps", "5", "runs in which a server becomes slow; 0: none"),
        param("noises", "5", "runs on equal servers; 0: none"),
        param(
            "seconds",
            "8",
            "requests count up to here; the load goes on for 3 s, so that all are answered",
        ),
        param("warm_up_s", "1.5", "requests count from here on, seconds"),
        param("users", "144", "users of the load generator"),
        param(
            "work_us",
            "350",
            "CPU time that a request asks for, microseconds",
        ),
        param(
            "capacity",
            "0.25",
            "share of a CPU of an undisturbed server",
        ),
        param("max_age_ms", "1000", "longest life of a connection"),
        param("law", "equalise", "the law that stands as causeway"),
        param(
            "scheduler",
            "latency",
            "what it drives there: latency, maglev or weighted-round-robin",
        ),
        param("extras", "1", "0: without step, noise, fail-fast, all slow"),
    ],
    run,
    table,
};

fn run(context: &Context) -> Result<Value> {
    let plan = Plan::read(context)?;
    let mut world = ControlWorld::build(context, &plan)?;
    let mut loads = Vec::new();
    for (index, &load) in plan.loads.iter().enumerate() {
        let mut figures = LoadFigures::new(load);
        for (round, number) in
            (0..plan.rounds).flat_map(|round| (0..plan.traces).map(move |number| (round, number)))
        {
            // A trace is its load's, pages are the round's, the order is another one
            // each time.
            let trace = plan.seed * 10_007 + index as u64 * 101 + number;
            let pages = trace * 1_009 + round;
            for turn in 0..Way::ALL.len() {
                let way = Way::ALL[(turn + (round + number) as usize) % Way::ALL.len()];
                let run = world.compared(&plan, way, load, trace, pages)?;
                context.say(format!(
                    "load {:2.0} %  trace {}  round {}  {:<8}  p50 {:6.1} ms  p99 {:7.1} ms  {:6} requests  machine {:.0} % busy",
                    load * 100.0, number + 1, round + 1, way.name(), run.p50_ms, run.p99_ms,
                    run.requests, run.cpu * 100.0
                ));
                figures.add(trace, way, run);
            }
        }
        loads.push(figures);
    }
    let mut result = figures::summary(&loads);
    if plan.extras {
        let extras = extras::run(context, &plan, &mut world)?;
        figures::add(&mut result, extras);
    }
    result["request_cpu_us"] = json!(world.request_cpu_us());
    world.end()?;
    Ok(json!({ "interface": result }))
}

fn table(result: &Value) -> Option<String> {
    Some(figures::table(&result["interface"]))
}
