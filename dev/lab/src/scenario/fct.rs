// SPDX-License-Identifier: Apache-2.0
//! Flow completion time by scheduler: figures 6 to 8 of Barbette et al., NSDI 2020,
//! scaled to one machine.
//!
//! Every request is a connection of its own and comes by chance (Poisson), whatever
//! the servers do. A server works on one request at a time; the work is modelled, not
//! burnt (see [`crate::modelled_servers`]), so that this machine's few cores are not what is
//! measured. Work is the same for all (`uniform`), or a tenth of the requests take
//! 500 ms and the others half a millisecond (`bimodal`). Both come to the same load.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use causeway_dataplane::Protocol;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::bench::{self, PORT};
use super::{Context, Scenario, param};
use crate::background::{joined, own_runtime};
use crate::balancer::{Balancer, BalancerSettings, RealEntry, ServerForwarding, VipEntry};
use crate::chance::exponential;
use crate::cpu::CpuMeter;
use crate::load::get::HttpSession;
use crate::modelled_servers::{self, ModelledServers};
use crate::statistics::quantile;
use crate::topology::{self, Shape, Topology};

/// Bytes of an answer, as in the paper.
const SIZE: u32 = 8_000;
/// Work of the tenth of requests that take long, and of the others.
const LONG: Duration = Duration::from_millis(500);
const SHORT: Duration = Duration::from_micros(500);
const LONG_SHARE: f64 = 0.1;
/// A queue that takes longer is not one to measure.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two looks at what the servers are doing.
const SAMPLE: Duration = Duration::from_millis(50);
/// Namespaces of clients: one has some 28,000 ports, each of use once a minute.
const CLIENTS: usize = 4;

pub(super) const FCT: Scenario = Scenario {
    name: "fct",
    about: "flow completion time and spread of load by scheduler, pool and workload",
    params: &[
        param(
            "schedulers",
            "hash,maglev,round-robin,p2c,awrr,least-loaded",
            "joined by commas",
        ),
        param("workloads", "uniform,bimodal", "joined by commas"),
        param("servers", "16,32,64", "sizes of the pool, joined by commas"),
        param("load", "0.6", "part of the time that a server works"),
        param("work_ms", "50", "work of a uniform request"),
        param("seconds", "10", "measured time of a run"),
        param("warm_up_s", "2", "time before it"),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let plan = Plan::read(context)?;
    modelled_servers::raise_fd_limit(16_384)?;
    let most = plan.servers.iter().copied().max().unwrap_or(0);
    let shape = Shape {
        clients: CLIENTS,
        servers: most,
    };
    let topology = Topology::build(context.sandbox, shape)?;
    topology.servers.iter().try_for_each(bench::decapsulate)?;
    let pool = ModelledServers::start(&topology.servers, PORT)?;
    let mut runs = Vec::new();
    for &servers in &plan.servers {
        let settings = settings(&topology, servers);
        let balancer = Balancer::start(&context.binary, &topology.balancer, &settings)?;
        for workload in &plan.workloads {
            for scheduler in &plan.schedulers {
                // Changed while it runs, as an operator would.
                balancer.cli(&["vip", "set", "web", "--scheduler", scheduler])?;
                let run = one(&plan, &topology, &pool, *workload, scheduler, servers)?;
                context.say(format!(
                    "{servers} servers, {:<8} {scheduler:<13} p50 {:7.1} ms  p99 {:7.1} ms  variance {:6.2}",
                    workload.name(), run.p50_ms, run.p99_ms, run.load_variance
                ));
                runs.push(run);
            }
        }
        balancer.end()?;
    }
    Ok(json!({ "gains": gains(&runs), "runs": runs }))
}

/// What requests cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Workload {
    Uniform(Duration),
    Bimodal,
}

impl Workload {
    fn name(self) -> &'static str {
        match self {
            Self::Uniform(_) => "uniform",
            Self::Bimodal => "bimodal",
        }
    }

    fn draw(self, rng: &mut StdRng) -> Duration {
        match self {
            Self::Uniform(work) => work,
            Self::Bimodal if rng.random_bool(LONG_SHARE) => LONG,
            Self::Bimodal => SHORT,
        }
    }

    fn mean(self) -> Duration {
        match self {
            Self::Uniform(work) => work,
            Self::Bimodal => LONG.mul_f64(LONG_SHARE) + SHORT.mul_f64(1.0 - LONG_SHARE),
        }
    }
}

/// The parameters, checked.
struct Plan {
    schedulers: Vec<String>,
    workloads: Vec<Workload>,
    servers: Vec<usize>,
    load: f64,
    measured: Duration,
    warm_up: Duration,
    seed: u64,
}

impl Plan {
    fn read(context: &Context) -> Result<Self> {
        let words = |name| -> Result<Vec<String>> {
            let text: String = context.param(name)?;
            Ok(text.split(',').map(|word| word.trim().to_owned()).collect())
        };
        let seconds = |name| Ok::<_, anyhow::Error>(Duration::from_secs_f64(context.param(name)?));
        let work = Duration::from_secs_f64(context.param::<f64>("work_ms")? / 1e3);
        let workload = |word: &String| match word.as_str() {
            "uniform" => Ok(Workload::Uniform(work)),
            "bimodal" => Ok(Workload::Bimodal),
            _ => bail!("there is no workload {word:?}; choose of uniform, bimodal"),
        };
        let size = |word: &String| {
            let size = word.parse().ok().filter(|size| (1..=200).contains(size));
            size.with_context(|| format!("servers = {word:?} is not a number from 1 to 200"))
        };
        let plan = Self {
            schedulers: words("schedulers")?,
            workloads: words("workloads")?
                .iter()
                .map(workload)
                .collect::<Result<_>>()?,
            servers: words("servers")?.iter().map(size).collect::<Result<_>>()?,
            load: context.param("load")?,
            measured: seconds("seconds")?,
            warm_up: seconds("warm_up_s")?,
            seed: context.seed,
        };
        ensure!(
            plan.load > 0.0 && plan.load < 1.0,
            "load lies between 0 and 1: a server that has more to do than time never catches up"
        );
        Ok(plan)
    }
}

/// One run, in the words of the JSON.
#[derive(Debug, Clone, Serialize)]
struct Run {
    scheduler: String,
    workload: &'static str,
    servers: usize,
    load: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// Variance over the servers of the requests that each has, mean over time.
    load_variance: f64,
    requests: usize,
    broken: usize,
    /// Part of this machine's CPU time that was used.
    cpu: f64,
}

fn settings(topology: &Topology, servers: usize) -> BalancerSettings {
    let address = topology::vip4(0).into();
    let servers = topology.servers.iter().take(servers);
    let vip = VipEntry {
        address,
        port: PORT,
        protocol: Protocol::Tcp,
        scheduler: "maglev".to_owned(),
        keys: vec!["name = \"web\"".to_owned()],
        forwarding: ServerForwarding::Ipip,
        reals: servers
            .map(|server| RealEntry::of(server, address))
            .collect(),
    };
    BalancerSettings {
        vips: vec![vip],
        ..BalancerSettings::default()
    }
}

fn one(
    plan: &Plan,
    topology: &Topology,
    pool: &ModelledServers,
    workload: Workload,
    scheduler: &str,
    servers: usize,
) -> Result<Run> {
    let lasts = plan.warm_up + plan.measured;
    let rate = plan.load * servers as f64 / workload.mean().as_secs_f64();
    let target: SocketAddr = (topology::vip4(0), PORT).into();
    let cpu = CpuMeter::start()?;
    let start = std::time::Instant::now();
    let clients: Vec<JoinHandle<Result<Times>>> = (0..)
        .zip(&topology.clients)
        .map(|(index, client)| {
            let source = Source {
                target,
                workload,
                rate: rate / CLIENTS as f64,
                warm_up: plan.warm_up,
                lasts,
                seed: plan.seed.wrapping_mul(1_000_003) + index,
            };
            client.netns.thread(move || {
                let runtime = own_runtime()?;
                Ok(runtime.block_on(source.run()))
            })
        })
        .collect();
    let mut variances = Vec::new();
    while start.elapsed() < lasts {
        std::thread::sleep(SAMPLE);
        if start.elapsed() >= plan.warm_up {
            let gauges = pool.gauges().iter().take(servers);
            let loads: Vec<f64> = gauges.map(|gauge| f64::from(gauge.in_flight())).collect();
            variances.push(variance(&loads));
        }
    }
    let cpu = cpu.share()?;
    let mut times = Times::default();
    for client in clients {
        times.add(joined(client)?);
    }
    ensure!(!times.ms.is_empty(), "no request was answered");
    Ok(Run {
        scheduler: scheduler.to_owned(),
        workload: workload.name(),
        servers,
        load: plan.load,
        p50_ms: quantile(&times.ms, 0.50),
        p99_ms: quantile(&times.ms, 0.99),
        load_variance: variances.iter().sum::<f64>() / variances.len().max(1) as f64,
        requests: times.ms.len(),
        broken: times.broken,
        cpu,
    })
}

fn variance(values: &[f64]) -> f64 {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count
}

/// Completion times, from before connect(2) to the last byte.
#[derive(Debug, Default)]
struct Times {
    ms: Vec<f64>,
    broken: usize,
}

impl Times {
    fn add(&mut self, other: Self) {
        self.ms.extend(other.ms);
        self.broken += other.broken;
    }
}

/// The requests of one namespace.
struct Source {
    target: SocketAddr,
    workload: Workload,
    /// Requests per second.
    rate: f64,
    warm_up: Duration,
    lasts: Duration,
    seed: u64,
}

impl Source {
    async fn run(self) -> Times {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let times = Arc::new(Mutex::new(Times::default()));
        let lock = |times: &Mutex<Times>| {
            let mut guard = times.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *guard)
        };
        let (start, mut at) = (Instant::now(), Duration::ZERO);
        let mut requests = JoinSet::new();
        loop {
            let gap = exponential(&mut rng) / self.rate;
            at += Duration::from_secs_f64(gap);
            if at >= self.lasts {
                break;
            }
            let path = modelled_servers::queued(SIZE, self.workload.draw(&mut rng));
            sleep_until(start + at).await;
            let counts = at >= self.warm_up;
            let (target, times) = (self.target, Arc::clone(&times));
            requests.spawn(async move {
                let begin = Instant::now();
                let answer = async {
                    HttpSession::open(target, RESPONSE_TIMEOUT)
                        .await?
                        .get(&path)
                        .await
                };
                let answered = answer.await.is_ok();
                let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
                match answered {
                    true if counts => times.ms.push(begin.elapsed().as_secs_f64() * 1e3),
                    true => {}
                    false => times.broken += 1,
                }
            });
            while requests.try_join_next().is_some() {}
        }
        while requests.join_next().await.is_some() {}
        lock(&times)
    }
}

/// How far below the best hash each scheduler's p99 is, for each pool and workload.
fn gains(runs: &[Run]) -> Vec<Value> {
    let is_hash = |run: &Run| matches!(run.scheduler.as_str(), "hash" | "maglev");
    let same = |a: &Run, b: &Run| a.workload == b.workload && a.servers == b.servers;
    let others = runs.iter().filter(|run| !is_hash(run));
    others
        .filter_map(|run| {
            let hashes = runs.iter().filter(|hash| is_hash(hash) && same(hash, run));
            let best = hashes.min_by(|a, b| a.p99_ms.total_cmp(&b.p99_ms))?;
            Some(json!({
                "scheduler": run.scheduler, "workload": run.workload, "servers": run.servers,
                "best_hash": best.scheduler, "times_lower_p99": best.p99_ms / run.p99_ms,
                "times_lower_variance": best.load_variance / run.load_variance,
            }))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_workloads_have_the_same_mean() {
        let mean = Workload::Bimodal.mean();
        assert_eq!(mean, Duration::from_micros(50_450));
        let mut rng = StdRng::seed_from_u64(1);
        let draws = (0..20_000).map(|_| Workload::Bimodal.draw(&mut rng));
        let sum: Duration = draws.sum();
        assert!((sum.as_secs_f64() / 20_000.0 / mean.as_secs_f64() - 1.0).abs() < 0.05);
    }

    #[test]
    fn gains_are_against_the_best_hash_of_the_same_kind() {
        let run = |scheduler: &str, servers, p99_ms| Run {
            scheduler: scheduler.to_owned(),
            workload: "uniform",
            servers,
            load: 0.6,
            p50_ms: 1.0,
            p99_ms,
            load_variance: p99_ms,
            requests: 1,
            broken: 0,
            cpu: 0.0,
        };
        let runs = [
            run("hash", 16, 300.0),
            run("maglev", 16, 200.0),
            run("maglev", 32, 10.0),
            run("p2c", 16, 50.0),
        ];
        let gains = gains(&runs);
        assert_eq!(gains.len(), 1);
        assert_eq!(gains[0]["times_lower_p99"], 4.0);
        assert_eq!(gains[0]["best_hash"], "maglev");
        assert_eq!(variance(&[1.0, 3.0]), 1.0);
    }
}
