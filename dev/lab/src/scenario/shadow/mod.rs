// SPDX-License-Identifier: Apache-2.0
//! `causeway shadow` beside HAProxy or IPVS forecasts what Causeway would do; then Causeway takes
//! over, with the same clients, and the forecast is held against what they see.
//!
//! Servers work on one request at a time, some of them more slowly than the others. The
//! forecast is complete before Causeway is started.

mod clients;
mod existing;
mod haproxy;
mod ipvs;

use std::net::SocketAddrV4;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use self::clients::{RunningVisits, Seen, Visits};
use self::existing::{Existing, Kind};
use super::bench::{Bench, PORT};
use super::connections::{SharedKeys, with_ids};
use super::{Context, Scenario, param};
use crate::balancer::{Balancer, BalancerSettings, ServerForwarding};
use crate::modelled_servers::ModelledServers;
use crate::topology::{Node, vip4};

/// How far a forecast may be off.
const CLOSE: f64 = 0.1;
const CLIENTS: usize = 2;
/// What a change breaks has broken by then.
const SETTLES: Duration = clients::TIMEOUT.saturating_add(Duration::from_secs(2));

pub(super) const SHADOW: Scenario = Scenario {
    name: "shadow",
    about: "causeway shadow beside HAProxy or IPVS: its forecast, and then Causeway in their place",
    params: &[
        param("runs", "5", "seeds, from the given one on"),
        param(
            "existing",
            "haproxy",
            "what it watches: haproxy, ipvs-masquerading or ipvs-tunnel",
        ),
        param("balance", "roundrobin", "HAProxy's way to pick"),
        param(
            "scheduler",
            "latency",
            "Causeway's; the forecast is of latency",
        ),
        param("servers", "8", "servers"),
        param("slow", "2", "how many of them are slow"),
        param(
            "factor",
            "2",
            "how many times as long these work on a request",
        ),
        param("rate", "88", "visitors per second"),
        param("requests", "3", "requests of a visitor"),
        param("work_ms", "10", "mean work of a request"),
        param("holders", "300", "clients that hold a connection"),
        param("warm_up_s", "10", "time before what counts"),
        param("seconds", "60", "what is watched, and what counts"),
        param(
            "strict",
            "false",
            "also fail where a p99 was forecast more than a tenth off",
        ),
    ],
    run,
    table,
};

/// The parameters.
struct Plan {
    existing: Kind,
    balance: String,
    scheduler: String,
    servers: usize,
    visits: Visits,
    warm_up: Duration,
    counts: Duration,
}

/// What clients had under one balancer.
#[derive(Debug, Clone, Serialize)]
struct Truth {
    requests: usize,
    p50_ms: f64,
    p99_ms: f64,
    /// Requests by server.
    served: Vec<u64>,
    /// Connections broken when a server is taken out, and those open just before.
    pool_changed: u64,
    pool_changed_of: u64,
    /// The same when the balancer is replaced by one that knows nothing.
    balancer_replaced: u64,
    balancer_replaced_of: u64,
    refused: u64,
}

fn run(context: &Context) -> Result<Value> {
    let existing = Kind::of_word(&context.param::<String>("existing")?)?;
    existing.available()?;
    let runs: u64 = context.param("runs")?;
    let seconds = |name| Ok::<_, anyhow::Error>(Duration::from_secs_f64(context.param(name)?));
    let mut plan = Plan {
        existing,
        balance: context.param("balance")?,
        scheduler: context.param("scheduler")?,
        servers: context.param("servers")?,
        visits: Visits {
            target: (vip4(0), PORT).into(),
            rate: context.param("rate")?,
            requests: context.param("requests")?,
            work: Duration::from_secs_f64(context.param::<f64>("work_ms")? / 1e3),
            holders: context.param("holders")?,
            seed: context.seed,
        },
        warm_up: seconds("warm_up_s")?,
        counts: seconds("seconds")?,
    };
    let slow: usize = context.param("slow")?;
    ensure!(
        plan.servers >= 2 && slow <= plan.servers,
        "servers is 2 at least, and slow no more"
    );
    let mut bench = Bench::bare(context.sandbox, CLIENTS, plan.servers)?;
    let spare = bench.topology.add_balancer(context.sandbox)?;
    let factor: f64 = context.param("factor")?;
    let factors: Vec<f64> = (0..plan.servers)
        .map(|index| {
            if index < plan.servers - slow {
                1.0
            } else {
                factor
            }
        })
        .collect();
    let pool = ModelledServers::start_uneven(&bench.topology.servers, PORT, &factors)?;
    let keys = SharedKeys::with_cookies(&context.binary)?;
    let strict: bool = context.param("strict")?;
    let mut seeds = Vec::new();
    for seed in context.seed..context.seed + runs {
        plan.visits.seed = seed;
        let (forecast, today) = beside(context, (&bench, &spare), &plan, &pool)?;
        let causeway = with_causeway(context, (&bench, &keys), &plan, &pool)?;
        let row = Row::new(seed, &forecast, &today, &causeway)?;
        context.say(row.line());
        row.ensure_holds(strict)?;
        seeds.push(json!({
            "row": row, "today": today, "causeway": causeway, "forecast": forecast,
        }));
    }
    Ok(json!({ "seeds": seeds }))
}

/// The forecast, and what clients of the existing balancer have.
fn beside(
    context: &Context,
    (bench, spare): (&Bench, &Node),
    plan: &Plan,
    pool: &ModelledServers,
) -> Result<(Value, Truth)> {
    let node = &bench.topology.balancer;
    let mut existing = Existing::start(
        plan.existing,
        &plan.balance,
        (&bench.topology, spare),
        SocketAddrV4::new(vip4(0), PORT),
    )?;
    let clients = RunningVisits::start(&bench.client_namespaces(), &plan.visits);
    sleep(plan.warm_up);
    let (from, before) = (Instant::now(), served(pool));
    let shadow = node
        .netns
        .command(&context.binary)
        .args([
            "shadow",
            "-i",
            crate::topology::DEVICE,
            "-o",
            "json",
            "--for",
        ])
        .arg(format!("{}ms", plan.counts.as_millis()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run causeway shadow")?;
    sleep(plan.counts);
    let (upto, served) = (Instant::now(), since(pool, &before));
    let shadow = shadow.wait_with_output()?;
    ensure!(
        shadow.status.success(),
        "causeway shadow: {}",
        String::from_utf8_lossy(&shadow.stderr)
    );
    let forecast: Value = serde_json::from_slice(&shadow.stdout)?;
    let changes = [
        change(&clients.seen, || existing.take_out_last())?,
        change(&clients.seen, || existing.replace())?,
    ];
    let truth = Truth::of(clients, (from, upto), served, changes)?;
    existing.end()?;
    Ok((forecast, truth))
}

/// What Causeway's clients have, with cookies.
fn with_causeway(
    context: &Context,
    (bench, keys): (&Bench, &SharedKeys),
    plan: &Plan,
    pool: &ModelledServers,
) -> Result<Truth> {
    let vip = with_ids(bench.vip4(0, &plan.scheduler, ServerForwarding::Ipip));
    let agents: Vec<_> = (0..plan.servers)
        .map(|index| {
            let lines = keys.cookies_for(index, &[(vip.address, vip.port).into()]);
            bench.agent(&context.binary, index, &lines)
        })
        .collect::<Result<_>>()?;
    let mut settings = BalancerSettings {
        vips: vec![vip],
        head: vec![keys.balancer_lines()],
        ..BalancerSettings::default()
    };
    let mut balancer = bench.balancer(&context.binary, &settings)?;
    let clients = RunningVisits::start(&bench.client_namespaces(), &plan.visits);
    sleep(plan.warm_up);
    let (from, before) = (Instant::now(), served(pool));
    sleep(plan.counts);
    let (upto, served) = (Instant::now(), since(pool, &before));
    if let Some(last) = settings.vips[0].reals.last_mut() {
        last.drain = true;
    }
    let drained = change(&clients.seen, || balancer.apply(&settings).map(drop))?;
    let replaced = change(&clients.seen, || {
        balancer.terminate()?;
        balancer.detach()?;
        balancer = Balancer::start(&context.binary, &bench.topology.balancer, &settings)?;
        Ok(())
    })?;
    let truth = Truth::of(clients, (from, upto), served, [drained, replaced])?;
    balancer.end()?;
    drop(agents);
    Ok(truth)
}

/// Requests that each server has answered.
fn served(pool: &ModelledServers) -> Vec<u64> {
    pool.gauges().iter().map(|gauge| gauge.served()).collect()
}

fn since(pool: &ModelledServers, before: &[u64]) -> Vec<u64> {
    let each = served(pool).into_iter().zip(before);
    each.map(|(now, before)| now - before).collect()
}

/// Connections that a change breaks, and those there were.
fn change(seen: &Seen, change: impl FnOnce() -> Result<()>) -> Result<(u64, u64)> {
    let (broken, live) = (seen.broken(), seen.live());
    change()?;
    sleep(SETTLES);
    Ok((seen.broken() - broken, live))
}

impl Truth {
    fn of(
        clients: RunningVisits,
        (from, upto): (Instant, Instant),
        served: Vec<u64>,
        [changed, replaced]: [(u64, u64); 2],
    ) -> Result<Self> {
        let seen = clients.finish()?;
        let ms = seen.sent_in(from, upto);
        ensure!(!ms.is_empty(), "no request was answered");
        let quantile = |q: f64| ms[((ms.len() as f64 * q).ceil() as usize).clamp(1, ms.len()) - 1];
        Ok(Self {
            requests: ms.len(),
            p50_ms: quantile(0.5),
            p99_ms: quantile(0.99),
            served,
            pool_changed: changed.0,
            pool_changed_of: changed.1,
            balancer_replaced: replaced.0,
            balancer_replaced_of: replaced.1,
            refused: seen.refused(),
        })
    }
}

/// Forecast beside truth.
#[derive(Debug, Serialize)]
struct Row {
    seed: u64,
    quality: String,
    today: ForecastP99,
    causeway: ForecastP99,
    broken: Vec<ForecastBroken>,
    /// All within a tenth.
    holds: bool,
}

/// A p99 in milliseconds, forecast or measured by shadow and as clients had it.
#[derive(Debug, Serialize)]
struct ForecastP99 {
    shadow_ms: f64,
    clients_ms: f64,
    ratio: f64,
}

/// Broken connections: by shadow, and as clients had it.
#[derive(Debug, Serialize)]
struct ForecastBroken {
    change: &'static str,
    balancer: &'static str,
    shadow: f64,
    clients: u64,
    /// Difference, as a part of the connections there were.
    off: f64,
}

impl ForecastP99 {
    fn new(forecast: &Value, pointer: &str, clients_ms: f64) -> Result<Self> {
        let shadow_ms = number(forecast, pointer)?;
        Ok(Self {
            shadow_ms,
            clients_ms,
            ratio: shadow_ms / clients_ms,
        })
    }
}

fn number(forecast: &Value, pointer: &str) -> Result<f64> {
    let found = forecast.pointer(pointer).and_then(Value::as_f64);
    found.with_context(|| format!("causeway shadow does not tell {pointer}: {forecast}"))
}

impl Row {
    fn new(seed: u64, forecast: &Value, today: &Truth, causeway: &Truth) -> Result<Self> {
        let broken = |change, column, balancer, (clients, live): (u64, u64)| {
            let changes = forecast["broken"].as_array();
            let of = changes.and_then(|all| all.iter().find(|of| of["change"] == change));
            let shadow = number(of.unwrap_or(&Value::Null), column)?;
            Ok::<_, anyhow::Error>(ForecastBroken {
                change,
                balancer,
                shadow,
                clients,
                off: (shadow - clients as f64).abs() / live.max(1) as f64,
            })
        };
        let changed = |of: &Truth| (of.pool_changed, of.pool_changed_of);
        let replaced = |of: &Truth| (of.balancer_replaced, of.balancer_replaced_of);
        let mut row = Self {
            seed,
            quality: forecast["forecast"]["quality"].to_string().replace('"', ""),
            today: ForecastP99::new(forecast, "/forecast/today/p99_ms", today.p99_ms)?,
            causeway: ForecastP99::new(forecast, "/forecast/causeway/p99_ms", causeway.p99_ms)?,
            broken: vec![
                broken("pool_changed", "/today", "existing", changed(today))?,
                broken("pool_changed", "/cookies", "causeway", changed(causeway))?,
                broken("balancer_replaced", "/today", "existing", replaced(today))?,
                broken(
                    "balancer_replaced",
                    "/cookies",
                    "causeway",
                    replaced(causeway),
                )?,
            ],
            holds: false,
        };
        row.holds = (row.causeway.ratio - 1.0).abs() <= CLOSE
            && row.broken.iter().all(|of| of.off <= CLOSE);
        Ok(row)
    }

    /// How many connections break does not depend on the machine, as a p99 does.
    fn ensure_holds(&self, strict: bool) -> Result<()> {
        let broken = self.broken.iter().all(|of| of.off <= CLOSE);
        ensure!(broken, "another number was broken: {}", self.line());
        ensure!(self.holds || !strict, "p99 is off: {}", self.line());
        Ok(())
    }

    fn line(&self) -> String {
        let broken: Vec<String> = self
            .broken
            .iter()
            .map(|of| format!("{:.0}:{}", of.shadow, of.clients))
            .collect();
        format!(
            "seed {}: today {:.1} ms of {:.1}; with Causeway {:.1} ms forecast, {:.1} had ({:+.1} %, graded {}); broken {}",
            self.seed,
            self.today.shadow_ms,
            self.today.clients_ms,
            self.causeway.shadow_ms,
            self.causeway.clients_ms,
            100.0 * (self.causeway.ratio - 1.0),
            self.quality,
            broken.join(" "),
        )
    }
}

fn table(result: &Value) -> Option<String> {
    let mut text = String::from(
        "seed  p99 today  with Causeway: forecast, had  off     broken (forecast:had): pool today, with Causeway, balancer replaced today, with Causeway\n",
    );
    for row in result["seeds"].as_array()?.iter().map(|of| &of["row"]) {
        let ms = |pointer: &str| row.pointer(pointer).and_then(Value::as_f64);
        let broken: Option<Vec<String>> = row["broken"]
            .as_array()?
            .iter()
            .map(|of| Some(format!("{:.0}:{}", of["shadow"].as_f64()?, of["clients"])))
            .collect();
        text += &format!(
            "{:<4}  {:9.1}  {:23.1}, {:.1}  {:+.1} %  {}\n",
            row["seed"],
            ms("/today/clients_ms")?,
            ms("/causeway/shadow_ms")?,
            ms("/causeway/clients_ms")?,
            100.0 * (ms("/causeway/ratio")? - 1.0),
            broken?.join(", "),
        );
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forecast_that_does_not_hold_fails_the_run() {
        let truth = |p99_ms, [pool_changed, balancer_replaced]: [u64; 2]| Truth {
            requests: 100,
            p50_ms: 10.0,
            p99_ms,
            served: vec![50, 50],
            pool_changed,
            pool_changed_of: 300,
            balancer_replaced,
            balancer_replaced_of: 300,
            refused: 0,
        };
        let forecast = json!({
            "forecast": {
                "quality": "medium", "today": { "p99_ms": 100.0 }, "causeway": { "p99_ms": 80.0 },
            },
            "broken": [
                { "change": "pool_changed", "today": 0, "cookies": 0 },
                { "change": "balancer_replaced", "today": 300, "cookies": 0 },
            ],
        });
        let today = truth(100.0, [0, 300]);
        let ensure = |causeway: &Truth, strict| {
            let row = Row::new(1, &forecast, &today, causeway).expect("a row");
            row.ensure_holds(strict).is_ok()
        };
        let near = truth(82.0, [0, 0]);
        assert!(ensure(&near, true));
        let slow = truth(120.0, [0, 0]);
        assert!(ensure(&slow, false) && !ensure(&slow, true));
        assert!(!ensure(&truth(82.0, [0, 60]), false));
    }
}
