// SPDX-License-Identifier: Apache-2.0
//! Who keeps connections while everything changes: the experiment of Barbette et al.,
//! NSDI 2020, figure 9, scaled to one machine and made harder.
//!
//! Under a load that rises and falls, the pool grows and then drains. Meanwhile the
//! balancer is swapped for one that knows nothing, keys rotate and agents restart.
//! Clients stream, send one request and go, or are silent for minutes in between.
//! Each way to keep connections gets the same load, one after another.

mod chain;
mod clients;
mod tally;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use self::chain::Chain;
use self::clients::{Load, Running};
use self::tally::Tally;
use super::bench::{self, PORT};
use super::{Context, Param, Scenario, param};
use crate::agent::Agent;
use crate::balancer::{Balancer, Forwarding, Protocol, Real, Settings, Vip};
use crate::farm::{self, Farm};
use crate::topology::{self, Shape, Topology};

pub struct PccScale;

/// A way to keep connections on their servers.
#[derive(Debug, Clone, Copy)]
struct Way {
    name: &'static str,
    transport: &'static str,
    scheduler: &'static str,
    /// Further keys of the VIPs.
    keys: &'static [&'static str],
    daisy_chain: bool,
    /// Whether agents write cookies, and their keys rotate.
    cookies: bool,
}

const WAYS: &[Way] = &[
    Way {
        name: "cookie",
        transport: "tcp",
        // The best spread, and the furthest from what a hash would find again.
        scheduler: "round-robin",
        keys: &["cookie = \"timestamp\""],
        daisy_chain: false,
        cookies: true,
    },
    Way {
        name: "hash",
        transport: "tcp",
        scheduler: "hash",
        keys: &["flow_table = false"],
        daisy_chain: false,
        cookies: false,
    },
    Way {
        name: "consistent-hash",
        transport: "tcp",
        scheduler: "maglev",
        keys: &["flow_table = false"],
        daisy_chain: false,
        cookies: false,
    },
    Way {
        name: "daisy-chain",
        transport: "tcp",
        scheduler: "maglev",
        keys: &["flow_table = false"],
        daisy_chain: true,
        cookies: false,
    },
    Way {
        name: "maglev-table",
        transport: "tcp",
        scheduler: "maglev",
        keys: &[],
        daisy_chain: false,
        cookies: false,
    },
];

/// The balancers share it, as they must.
const HASH_KEY: [u64; 2] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
/// When what happens, as parts of a run; the paper's pool follows its load.
const GROWTH: (f64, f64) = (0.08, 0.32);
const SWAP: f64 = 0.40;
const DRAIN: (f64, f64) = (0.48, 0.72);
const RESTARTS: [f64; 2] = [0.36, 0.78];
/// Once: a cookie tells two keys apart, so that who is silent over two rotations is lost.
const ROTATION: f64 = 0.56;
/// Long enough for a process to read its file again.
const RELOAD: Duration = Duration::from_millis(500);

impl Scenario for PccScale {
    fn name(&self) -> &'static str {
        "pcc-scale"
    }

    fn about(&self) -> &'static str {
        "the pool grows and drains, the balancer is swapped: which connections break"
    }

    fn params(&self) -> &'static [Param] {
        const PARAMS: &[Param] = &[
            param("names", "all", "ways to run, joined by commas"),
            param(
                "seconds",
                "160",
                "how long new connections come, for each name",
            ),
            param("from", "24", "servers at the start"),
            param("to", "31", "servers at the height of the load"),
            param("drain", "8", "servers that are drained after it"),
            param("low", "90", "lowest rate of new connections per second"),
            param("high", "150", "highest rate of new connections per second"),
            param("streams", "60", "clients that send a request every 250 ms"),
            param(
                "idlers",
                "80",
                "clients that are silent between two requests",
            ),
            param("idle_min_s", "70", "shortest of those silences"),
            param("idle_max_s", "140", "longest of those silences"),
        ];
        PARAMS
    }

    fn run(&self, context: &Context) -> Result<Value> {
        let plan = Plan::read(context)?;
        farm::check_limits(16_384)?;
        let mut topology = Topology::build(
            context.sandbox,
            Shape {
                clients: 2,
                servers: plan.to,
            },
        )?;
        let second = topology.add_balancer(context.sandbox)?;
        let directory = tempfile::Builder::new().prefix("pcc-").tempdir()?;
        let world = World {
            keys: directory.path().join("keys"),
            _directory: directory,
            _farm: Farm::start(&topology.servers, PORT)?,
            balancers: [topology.balancer.clone(), second],
            topology,
        };
        let mut runs = Vec::new();
        for way in plan.ways(context)? {
            let began = Instant::now();
            let run = world.run(context, &plan, way)?;
            context.say(format!(
                "{}: {} of {} connections broken, {} of {} requests, worst second {:.1} % ({:.0} s)",
                way.name,
                run["broken_connections"],
                run["connections"],
                run["broken_requests"],
                run["requests"],
                run["worst_second_broken_pct"].as_f64().unwrap_or_default(),
                began.elapsed().as_secs_f64(),
            ));
            runs.push(run);
        }
        Ok(json!({ "runs": runs }))
    }
}

/// The parameters, checked.
struct Plan {
    names: String,
    lasts: Duration,
    from: usize,
    to: usize,
    drain: usize,
    load: Load,
}

impl Plan {
    fn read(context: &Context) -> Result<Self> {
        let seconds = |name| Ok::<_, anyhow::Error>(Duration::from_secs_f64(context.param(name)?));
        let lasts = seconds("seconds")?;
        let plan = Self {
            names: context.param("names")?,
            lasts,
            from: context.param("from")?,
            to: context.param("to")?,
            drain: context.param("drain")?,
            load: Load {
                targets: [topology::vip4(0).into(), topology::vip6(0).into()]
                    .map(|address: IpAddr| (address, PORT).into())
                    .to_vec(),
                lasts,
                rates: (context.param("low")?, context.param("high")?),
                streams: context.param("streams")?,
                idlers: context.param("idlers")?,
                idle: (seconds("idle_min_s")?, seconds("idle_max_s")?),
                seed: context.seed,
            },
        };
        ensure!(
            0 < plan.from && plan.from <= plan.to && plan.drain < plan.to,
            "the pool must grow from `from` to `to`, and keep some when it drains"
        );
        ensure!(plan.lasts >= Duration::from_secs(5), "at least 5 seconds");
        ensure!(
            plan.load.idle.0 <= plan.load.idle.1 && plan.load.rates.0 > 0.0,
            "idle_min_s must not exceed idle_max_s, and rates must be above 0"
        );
        Ok(plan)
    }

    fn ways(&self, context: &Context) -> Result<Vec<&'static Way>> {
        if self.names == "all" {
            return Ok(WAYS.iter().collect());
        }
        let find = |name: &str| {
            let known: Vec<&str> = WAYS.iter().map(|way| way.name).collect();
            let way = WAYS.iter().find(|way| way.name == name.trim());
            way.with_context(|| format!("there is no {name:?}; choose of {}", known.join(", ")))
        };
        let ways = self.names.split(',').map(find).collect::<Result<_>>()?;
        context.say(format!("{}: {:?} each", self.names, self.lasts));
        Ok(ways)
    }

    /// What happens, in order: when, as part of the run.
    fn events(&self) -> Vec<(f64, Event)> {
        let spread = |(from, to): (f64, f64), count: usize, at: usize| {
            from + (to - from) * at as f64 / count.max(1) as f64
        };
        let grown = self.to - self.from;
        let mut events: Vec<(f64, Event)> = (0..grown)
            .map(|at| (spread(GROWTH, grown, at), Event::Grow))
            .chain((0..self.drain).map(|at| (spread(DRAIN, self.drain, at), Event::Drain)))
            .chain([(SWAP, Event::Swap)])
            .chain(RESTARTS.map(|at| (at, Event::RestartAgents)))
            .chain([(ROTATION, Event::RotateKeys)])
            .collect();
        events.sort_by(|a, b| a.0.total_cmp(&b.0));
        events
    }
}

/// What happens during a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// One more server.
    Grow,
    /// The first server that does not drain yet does.
    Drain,
    /// Another balancer, without any memory, takes over.
    Swap,
    /// Half of the agents are killed and started again.
    RestartAgents,
    /// Cookies get a new key.
    RotateKeys,
}

/// Namespaces and servers, the same for every way.
struct World {
    topology: Topology,
    balancers: [topology::Node; 2],
    _farm: Farm,
    /// Of cookies, for balancers and agents.
    keys: PathBuf,
    _directory: TempDir,
}

/// Who takes part at a moment.
#[derive(Debug, Clone, Copy)]
struct Pool {
    present: usize,
    drained: usize,
}

impl World {
    fn run(&self, context: &Context, plan: &Plan, way: &Way) -> Result<Value> {
        let topology = &self.topology;
        if way.cookies {
            self.causeway(context, &["cookie", "new-keys"])?;
        }
        let mut agents = self.agents(context, way)?;
        let mut pool = Pool {
            present: plan.from,
            drained: 0,
        };
        let mut chain = way
            .daisy_chain
            .then(|| Chain::start(&topology.servers, HASH_KEY, PORT))
            .transpose()?;
        let mut chain_to = |pool: Pool| match &mut chain {
            Some(chain) => chain.change(|index| (pool.drained..pool.present).contains(&index)),
            None => Ok(()),
        };
        chain_to(pool)?;
        topology.route_vips(&self.balancers[0])?;
        let settings = |pool| self.settings(way, pool);
        let mut balancer = Balancer::start(&context.binary, &self.balancers[0], &settings(pool))?;
        let clients: Vec<_> = topology.clients.iter().map(|c| c.netns.clone()).collect();
        let tally = Arc::new(Tally::new());
        let running = Running::start(&clients, &plan.load, &tally);
        let start = Instant::now();
        let mut restarted = 0;
        for (at, event) in plan.events() {
            sleep((start + plan.lasts.mul_f64(at)).saturating_duration_since(Instant::now()));
            match event {
                Event::Grow => pool.present += 1,
                Event::Drain => pool.drained += 1,
                Event::Swap => {
                    balancer = self.swap(context, balancer, &settings(pool))?;
                    continue;
                }
                Event::RestartAgents => {
                    let mut half = agents.iter_mut().skip(restarted % 2).step_by(2);
                    half.try_for_each(Agent::restart)?;
                    restarted += 1;
                    continue;
                }
                Event::RotateKeys => {
                    if way.cookies {
                        self.rotate(context, &balancer, &agents)?;
                    }
                    continue;
                }
            }
            // The chain knows first: a bucket's packets may come before it is told.
            chain_to(pool)?;
            balancer.apply(&settings(pool))?;
        }
        running.finish()?;
        let stats = crate::api::stats(&balancer.socket())?;
        balancer.terminate()?;
        balancer.detach()?;
        let totals = tally.totals();
        ensure!(totals.connections > 0, "no client has connected");
        let mut run = serde_json::to_value(&totals)?;
        run["name"] = json!(way.name);
        run["transport"] = json!(way.transport);
        run["verdicts_of_last_balancer"] = json!(stats.verdicts());
        if let Some(chain) = chain {
            run["packets_passed_on"] = json!(chain.chained()?);
        }
        Ok(run)
    }

    fn agents(&self, context: &Context, way: &Way) -> Result<Vec<Agent>> {
        let servers = self.topology.servers.iter().enumerate();
        servers
            .map(|(index, server)| {
                let cookies = match way.cookies {
                    true => self.cookies_of_agent(index),
                    false => String::new(),
                };
                let pins = bench::pin_dir(server);
                Agent::start_with(&context.binary, server, &pins, &cookies)
            })
            .collect()
    }

    fn cookies_of_agent(&self, index: usize) -> String {
        let vip = |address: IpAddr| {
            format!(
                "[[agent.cookie.vip]]\naddress = \"{address}\"\nport = {PORT}\nid = {}\n\
                 cookie = \"timestamp\"\n",
                cookie_id(index)
            )
        };
        format!(
            "[agent.cookie]\nkeys = \"{}\"\n{}{}",
            self.keys.display(),
            vip(topology::vip4(0).into()),
            vip(topology::vip6(0).into())
        )
    }

    /// Gives cookies a new key in two steps, as docs/cookies.md has it: first everybody
    /// learns it, then it is used.
    fn rotate(&self, context: &Context, balancer: &Balancer, agents: &[Agent]) -> Result<()> {
        for step in ["--prepare", "--switch"] {
            self.causeway(context, &["cookie", "rotate", step])?;
            balancer.reload()?;
            agents.iter().try_for_each(Agent::reload)?;
            sleep(RELOAD);
        }
        Ok(())
    }

    /// Runs a command on the key file.
    fn causeway(&self, context: &Context, arguments: &[&str]) -> Result<()> {
        let output = std::process::Command::new(&context.binary)
            .args(arguments)
            .arg(&self.keys)
            .output()?;
        ensure!(
            output.status.success(),
            "causeway {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Starts another balancer, routes the VIPs to it, and ends the former one.
    fn swap(&self, context: &Context, mut old: Balancer, settings: &Settings) -> Result<Balancer> {
        let new = Balancer::start(&context.binary, &self.balancers[1], settings)?;
        self.topology.route_vips(&self.balancers[1])?;
        // What is under way to the old one is still sent on.
        sleep(Duration::from_millis(100));
        old.terminate()?;
        old.detach()?;
        Ok(new)
    }

    fn settings(&self, way: &Way, pool: Pool) -> Settings {
        let servers = || self.topology.servers.iter().take(pool.present).enumerate();
        let vip = |address: IpAddr| Vip {
            address,
            port: PORT,
            protocol: Protocol::Tcp,
            scheduler: way.scheduler.to_owned(),
            keys: way.keys.iter().map(|key| (*key).to_owned()).collect(),
            forwarding: Forwarding::Ipip,
            reals: servers()
                .map(|(index, server)| Real {
                    drain: index < pool.drained,
                    keys: match way.cookies {
                        true => vec![format!("id = {}", cookie_id(index))],
                        false => Vec::new(),
                    },
                    ..Real::of(server, address)
                })
                .collect(),
        };
        let [first, second] = HASH_KEY.map(|word| format!("{:016x}", word.swap_bytes()));
        let mut head = vec![format!("hash_key = \"{first}{second}\"")];
        if way.cookies {
            head.push(format!("[cookie]\nkeys = \"{}\"", self.keys.display()));
        }
        Settings {
            vips: vec![vip(topology::vip4(0).into()), vip(topology::vip6(0).into())],
            head,
            ..Settings::default()
        }
    }
}

/// A server's id in cookies.
fn cookie_id(index: usize) -> usize {
    index + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (index, way) in WAYS.iter().enumerate() {
            assert!(WAYS[..index].iter().all(|other| other.name != way.name));
        }
    }
}
