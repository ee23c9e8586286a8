// SPDX-License-Identifier: Apache-2.0
//! Four servers with quotas, clients, a balancer; one run of them.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use causeway_api::balancer::{EpochView, History};
use causeway_sim::control::trace;
use serde::Serialize;

use super::{Plan, Way};
use crate::api;
use crate::balancer::{Balancer, BalancerSettings, ServerForwarding};
use crate::cgroup::Cgroup;
use crate::clock;
use crate::cpu::CpuMeter;
use crate::load::log::Log;
use crate::load::page::PageShape;
use crate::load::{LoadConfig, RunningLoad, report};
use crate::scenario::Context;
use crate::scenario::bench::Bench;

/// Servers of the pool.
pub(super) const SERVERS: usize = 4;
/// Period of the quotas: with longer ones a server stands still for most of it.
const PERIOD: Duration = Duration::from_millis(10);
/// How long a load goes on behind the requests that count, its servers as slow as before: until
/// those have their answers.
const TAIL_S: f64 = 3.0;
/// Load and length of the run that finds out what a request costs.
const TRIAL_S: f64 = 3.0;
const TRIAL_PAGE_MS: u64 = 2_000;

/// What is changed while a run is under way, at times from its start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    pub at_s: f64,
    /// Which server; `None`: all.
    pub server: Option<usize>,
    /// Its requests take this many times their work; 0 answers at once.
    pub factor: f64,
}

/// What makes a run, but for the way that is compared.
struct Course<'a> {
    /// CPU time asked for in a second.
    work: f64,
    /// Requests that are sent later do not count.
    seconds: f64,
    seed: u64,
    /// Share of a CPU of each server in each second; the last one stays.
    capacities: Vec<Vec<f64>>,
    changes: &'a [Change],
}

/// One run as the clients measured it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ClientLatency {
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub requests: u64,
    /// Those of them that were out when quotas ended: they would have taken longer.
    pub cut_short: u64,
    pub broken: u64,
    /// Share of the machine that was busy.
    pub cpu: f64,
}

/// One run with what the balancer did.
pub(super) struct ControlRun {
    pub client_latency: ClientLatency,
    pub start_ns: u64,
    /// When the changes were made, CLOCK_MONOTONIC.
    pub changed_ns: Vec<u64>,
    /// The epochs of each server.
    pub epochs: Vec<Vec<EpochView>>,
}

pub(super) struct ControlWorld {
    bench: Bench,
    cgroups: Vec<Cgroup>,
    balancer: Balancer,
    /// CPU time of a request with all that nginx adds, in seconds.
    request_cpu_s: f64,
    runs: u64,
}

impl ControlWorld {
    pub(super) fn build(context: &Context, plan: &Plan) -> Result<Self> {
        let bench = Bench::build(context.sandbox, 2, SERVERS)?;
        let mut cgroups = Vec::new();
        for server in &bench.servers {
            server.set_burning(true)?;
            let cgroup = Cgroup::create(context.sandbox)?;
            server.join(&cgroup)?;
            cgroups.push(cgroup);
        }
        let mut vip = bench.vip4(0, "maglev", ServerForwarding::Ipip);
        vip.keys.push("name = \"web\"".to_owned());
        let settings = BalancerSettings {
            vips: vec![vip],
            ..BalancerSettings::default()
        };
        let balancer = bench.balancer(&PathBuf::from(&context.binary), &settings)?;
        let mut world = Self {
            bench,
            cgroups,
            balancer,
            request_cpu_s: plan.work_us / 1e6,
            runs: 0,
        };
        world.request_cpu_s = world.trial(plan)?;
        context.say(format!(
            "a request of {:.0} us takes {:.0} us of a server's CPU",
            plan.work_us,
            world.request_cpu_us()
        ));
        Ok(world)
    }

    pub(super) fn request_cpu_us(&self) -> f64 {
        self.request_cpu_s * 1e6
    }

    /// Ends the balancer and takes its data plane down.
    pub(super) fn end(self) -> Result<()> {
        self.balancer.end()
    }

    /// What a request costs a server, measured without quotas at a light load.
    fn trial(&self, plan: &Plan) -> Result<f64> {
        let before: Duration = self.bench.servers.iter().map(|s| s.cpu_time()).sum();
        let load = self.load(plan, TRIAL_PAGE_MS, TRIAL_S, plan.seed);
        let log = self.bench.load(&load)?.finish()?;
        let after: Duration = self.bench.servers.iter().map(|s| s.cpu_time()).sum();
        let requests = report::summary(&log, log.start_ns, log.end_ns).requests;
        ensure!(requests > 0, "the trial run had no answer");
        Ok((after - before).as_secs_f64() / requests as f64)
    }

    fn load(&self, plan: &Plan, page_interval_ms: u64, seconds: f64, seed: u64) -> LoadConfig {
        let address = crate::topology::vip4(0);
        LoadConfig {
            duration_ms: (seconds * 1e3) as u64,
            slots: plan.users,
            outstanding: 4,
            max_age_ms: plan.max_age_ms,
            page_interval_ms,
            page: PageShape {
                objects: (4, 12),
                fanout: 4,
                size_median: 1_500.0,
                size_sigma: 0.5,
                size_max: 8_192,
                service_median_us: plan.work_us * 0.9,
                service_sigma: 0.46,
                service_min_us: 50,
                ..PageShape::default()
            },
            ..LoadConfig::new((address, super::super::bench::PORT).into(), seed)
        }
    }

    /// A run of the comparison: capacities follow the trace `trace`, and what the clients
    /// ask for comes from the seed `pages`.
    pub(super) fn compared(
        &mut self,
        plan: &Plan,
        way: Way,
        load: f64,
        trace: u64,
        pages: u64,
    ) -> Result<ClientLatency> {
        let capacities: Vec<Vec<f64>> = (0..SERVERS)
            .map(|server| {
                let seconds = (plan.seconds + TAIL_S).ceil() as usize + 1;
                let shares = trace::cpu(trace, server, seconds);
                shares
                    .into_iter()
                    .map(|share| share * plan.capacity)
                    .collect()
            })
            .collect();
        let mean = plan.capacity * trace::mean() * SERVERS as f64;
        let course = Course {
            work: load * mean,
            seconds: plan.seconds,
            seed: pages,
            capacities,
            changes: &[],
        };
        Ok(self.run(plan, way, &course)?.client_latency)
    }

    /// A run with steady capacities and what is changed in it.
    pub(super) fn steady(
        &mut self,
        plan: &Plan,
        way: Way,
        load: f64,
        seconds: f64,
        changes: &[Change],
    ) -> Result<ControlRun> {
        let capacity = plan.capacity * trace::mean();
        let course = Course {
            work: load * capacity * SERVERS as f64,
            seconds,
            seed: plan.seed * 31 + self.runs,
            capacities: vec![vec![capacity]; SERVERS],
            changes,
        };
        self.run(plan, way, &course)
    }

    fn run(&mut self, plan: &Plan, way: Way, course: &Course<'_>) -> Result<ControlRun> {
        self.runs += 1;
        self.take(plan, way)?;
        let load = self.load(plan, 1, course.seconds + TAIL_S, course.seed);
        let page_s = plan.users as f64 * load.page.mean_objects() * self.request_cpu_s;
        let load = LoadConfig {
            page_interval_ms: ((page_s / course.work * 1e3) as u64).max(1),
            ..load
        };
        self.set_quotas(&course.capacities, 0)?;
        let cpu = CpuMeter::start()?;
        let running = self.bench.load(&load)?;
        let start_ns = running.start_ns();
        let changed_ns = self.watch(&running, course)?;
        let cpu = cpu.share()?;
        let lifted_ns = clock::monotonic_ns();
        // What still waits is no longer of interest: it must not wait for long.
        for cgroup in &self.cgroups {
            cgroup.set_cpu(None, PERIOD)?;
        }
        for server in &self.bench.servers {
            server.set_factor(1.0)?;
        }
        let log = running.finish()?;
        let at = |second: f64| start_ns + (second * 1e9) as u64;
        let counted = at(plan.warm_up_s)..at(course.seconds);
        Ok(ControlRun {
            client_latency: client_latency(&log, counted, lifted_ns, cpu),
            start_ns,
            changed_ns,
            epochs: self.epochs(start_ns)?,
        })
    }

    /// Has the balancer begin with a way from nothing: what was learnt in the last run is gone.
    fn take(&self, plan: &Plan, way: Way) -> Result<()> {
        let set = |arguments: &[&str]| {
            let mut all = vec!["vip", "set", "web"];
            all.extend(arguments);
            self.balancer.cli(&all).map(drop)
        };
        set(&["--scheduler", "maglev"])?;
        match way {
            Way::Maglev => Ok(()),
            // By hash, as all that the paper compares.
            Way::Paper => set(&["--control", "watermark-paper"]),
            Way::Causeway => set(&["--scheduler", &plan.scheduler, "--control", &plan.law]),
        }
    }

    fn set_quotas(&self, capacities: &[Vec<f64>], second: usize) -> Result<()> {
        for (cgroup, capacity) in self.cgroups.iter().zip(capacities) {
            let share = capacity.get(second).or(capacity.last());
            cgroup.set_cpu(share.copied(), PERIOD)?;
        }
        Ok(())
    }

    /// Follows the trace and makes the changes until the load ends.
    fn watch(&self, running: &RunningLoad, course: &Course<'_>) -> Result<Vec<u64>> {
        let (mut second, mut done) = (0, Vec::new());
        while running.is_active() {
            let now = clock::monotonic_ns();
            let at_s = now.saturating_sub(running.start_ns()) as f64 / 1e9;
            if at_s as usize > second {
                second = at_s as usize;
                if course.capacities.iter().any(|capacity| capacity.len() > 1) {
                    self.set_quotas(&course.capacities, second)?;
                }
            }
            if let Some(change) = course.changes.get(done.len()).filter(|c| at_s >= c.at_s) {
                for (index, server) in self.bench.servers.iter().enumerate() {
                    if change.server.is_none_or(|which| which == index) {
                        server.set_factor(change.factor)?;
                    }
                }
                done.push(clock::monotonic_ns());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(done)
    }

    fn epochs(&self, from_ns: u64) -> Result<Vec<Vec<EpochView>>> {
        let history: History = api::history_since(&self.balancer.socket(), from_ns)?;
        let of = |name: &String| {
            let series = history.series.iter().find(|series| series.real == *name);
            Ok(series
                .with_context(|| format!("no history of {name}"))?
                .epochs
                .clone())
        };
        self.bench.real_names4().iter().map(of).collect()
    }
}

/// Of the requests that were sent in a window, in a run whose quotas ended at `lifted_ns`.
fn client_latency(log: &Log, counted: Range<u64>, lifted_ns: u64, cpu: f64) -> ClientLatency {
    let summary = report::summary(log, counted.start, counted.end);
    let out = log
        .responses
        .iter()
        .filter(|r| counted.contains(&r.send_ns) && r.last_ns > lifted_ns);
    ClientLatency {
        p50_ms: summary.p50_ms,
        p99_ms: summary.p99_ms,
        requests: summary.requests,
        cut_short: out.count() as u64,
        broken: summary.broken_connections,
        cpu,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::log::LoggedResponse;

    #[test]
    fn what_is_sent_behind_the_window_does_not_count_and_what_quotas_let_go_is_told() {
        let response = |send_ns: u64, latency_ms: u64| LoggedResponse {
            connection: 0,
            page: 0,
            id: 0,
            parent: None,
            intended_ns: send_ns,
            send_ns,
            last_ns: send_ns + latency_ms * 1_000_000,
            size: 1,
            real: 0,
            srtt_us: 0,
        };
        let second = 1_000_000_000;
        let log = Log {
            responses: vec![
                response(second, 700),
                response(8 * second - 1, 900),
                // In the tail: the end of quotas answers it at once.
                response(10 * second, 1),
            ],
            ..Log::default()
        };
        let of = |lifted_ns| client_latency(&log, second..8 * second, lifted_ns, 0.5);
        let whole = of(11 * second);
        assert_eq!((whole.requests, whole.cut_short), (2, 0));
        assert!(whole.p50_ms > 699.0, "{whole:?}");
        assert_eq!(of(8 * second).cut_short, 1);
    }
}
