// SPDX-License-Identifier: Apache-2.0
//! Namespaces and servers, the same for every way, and a run of one way in them.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::chain::Chain;
use super::plan::{Event, PccPlan};
use super::ways::{Memory, Way};
use crate::agent::AgentProcess;
use crate::balancer::{Balancer, BalancerSettings, RealEntry, VipEntry};
use crate::modelled_servers::ModelledServers;
use crate::quic::modelled_servers::QuicModelledServers;
use crate::sandbox::Sandbox;
use crate::scenario::bench::{self, PORT, QUIC_PORT};
use crate::scenario::connections::{RunningClients, SharedKeys, Tally, cid, server_id};
use crate::topology::{self, Shape, Topology};

/// Slots of stateful mode: four partitions.
const SLOTS: &str = "128Ki";
/// Where agents report.
const REPORTS_PORT: u16 = 9472;
/// Until when an empty stateful balancer has learnt from agents what is open
/// (docs/explanation/cookies.md).
const LEARNING: Duration = Duration::from_millis(2_500);

/// One laboratory; several may stand side by side.
pub(super) struct PccWorld {
    binary: PathBuf,
    topology: Topology,
    balancers: [topology::Node; 2],
    _servers: ModelledServers,
    keys: SharedKeys,
}

/// The servers and balancers of a moment, and what the configuration says beside.
#[derive(Debug, Clone, Copy)]
struct Pool {
    present: usize,
    drained: usize,
    /// Connection ids have had another key since the beginning.
    rotated: bool,
    /// An empty stateful balancer may learn from agents what is open.
    adopts: bool,
}

impl PccWorld {
    /// Builds it for `servers`; the names of its namespaces begin with `prefix`.
    pub(super) fn build(
        sandbox: Sandbox,
        binary: &Path,
        servers: usize,
        prefix: &str,
    ) -> Result<Self> {
        let shape = Shape {
            clients: 2,
            servers,
        };
        let mut topology = Topology::build_another(sandbox, shape, prefix)?;
        let second = topology.add_balancer(sandbox)?;
        topology.take_back_from_servers()?;
        Ok(Self {
            binary: binary.to_owned(),
            _servers: ModelledServers::start(&topology.servers, PORT)?,
            balancers: [topology.balancer.clone(), second],
            topology,
            keys: SharedKeys::new(binary)?,
        })
    }

    /// Runs the plan with one way to keep connections.
    pub(super) fn run(&self, plan: &PccPlan, way: &Way) -> Result<Value> {
        let result = self.try_run(plan, way);
        // The next way starts from nothing. What the run found is worth more than this.
        for server in &self.topology.servers {
            let pins = bench::pin_dir(server);
            let detached = server
                .netns
                .run(move || Ok(causeway_dataplane::Decapsulator::detach(&pins)?));
            if let Err(error) = detached {
                tracing::warn!("{} keeps its data plane: {error:#}", server.netns.name());
            }
        }
        result
    }

    fn try_run(&self, plan: &PccPlan, way: &Way) -> Result<Value> {
        let topology = &self.topology;
        if way.has_cookies() {
            self.keys.make_cookies()?;
        }
        let mut agents = self.agents(way)?;
        let quic = match way.is_quic() {
            true => Some(self.quic_servers(plan.silence())?),
            false => None,
        };
        let mut pool = Pool {
            present: plan.from,
            drained: 0,
            rotated: false,
            adopts: false,
        };
        let mut chain = match way.memory {
            Memory::Chain => Some(Chain::start(&topology.servers, SharedKeys::HASH_KEY, PORT)?),
            _ => None,
        };
        let mut chain_to = |pool: Pool| match &mut chain {
            Some(chain) => chain.change(|index| (pool.drained..pool.present).contains(&index)),
            None => Ok(()),
        };
        chain_to(pool)?;
        topology.route_vips(&self.balancers[0])?;
        let settings = |pool| self.settings(way, pool);
        let mut balancer = Balancer::start(&self.binary, &self.balancers[0], &settings(pool)?)?;
        let mut standby = match way.memory {
            Memory::SecondChance => Some(self.second_balancer(&settings(pool)?)?),
            _ => None,
        };
        let clients: Vec<_> = topology.clients.iter().map(|c| c.netns.clone()).collect();
        let tally = Arc::new(Tally::new());
        let running = RunningClients::start(&clients, &plan.load(way), &tally);
        let start = Instant::now();
        let mut restarted = 0;
        for (at, event) in plan.events() {
            sleep((start + plan.lasts.mul_f64(at)).saturating_duration_since(Instant::now()));
            match event {
                Event::Grow => pool.present += 1,
                Event::Drain => pool.drained += 1,
                Event::Swap => {
                    pool.adopts = way.memory == Memory::Slots && plan.adopt;
                    let overlap = match pool.adopts {
                        true => LEARNING,
                        false => Duration::ZERO,
                    };
                    let new = match standby.take() {
                        Some(standby) => standby,
                        None => self.second_balancer(&settings(pool)?)?,
                    };
                    balancer = self.swap(balancer, new, overlap)?;
                    continue;
                }
                Event::RestartAgents => {
                    let mut half = agents.iter_mut().skip(restarted % 2).step_by(2);
                    half.try_for_each(AgentProcess::restart)?;
                    restarted += 1;
                    continue;
                }
                Event::RotateKeys => {
                    if way.has_cookies() {
                        self.rotate_cookies(&balancer, &agents)?;
                    }
                    if let Some(quic) = &quic {
                        pool.rotated = true;
                        balancer.write_config(&settings(pool)?)?;
                        balancer.reload_now()?;
                        quic.rotate(|server| cid(1, server))?;
                    }
                    continue;
                }
            }
            // The chain is updated before the balancers: a moved bucket's packets may come at once.
            chain_to(pool)?;
            for balancer in standby.iter().chain([&balancer]) {
                balancer.apply(&settings(pool)?)?;
            }
        }
        running.finish()?;
        let stats = crate::api::stats(&balancer.socket())?;
        let places = match way.memory {
            Memory::Slots => slots_left(&balancer)?,
            _ => Value::Null,
        };
        balancer.end()?;
        let totals = tally.totals(plan.lasts);
        ensure!(totals.connections > 0, "no client has connected");
        let mut run = serde_json::to_value(&totals)?;
        run["name"] = json!(way.name);
        run["transport"] = json!(way.transport);
        run["verdicts_of_last_balancer"] = json!(crate::api::occurred(&stats.verdicts));
        if !places.is_null() {
            run["places_of_last_balancer"] = places;
        }
        if let Some(chain) = chain {
            run["packets_passed_on"] = json!(chain.chained()?);
        }
        if way.memory == Memory::SecondChance {
            let passed_on = agents.iter().map(|agent| agent.verdict("passed_on"));
            run["packets_passed_on"] = json!(passed_on.sum::<Result<u64>>()?);
        }
        Ok(run)
    }

    fn quic_servers(&self, silence: Duration) -> Result<QuicModelledServers> {
        QuicModelledServers::start(&self.topology.servers, QUIC_PORT, silence, |s| cid(0, s))
    }

    fn agents(&self, way: &Way) -> Result<Vec<AgentProcess>> {
        let servers = self.topology.servers.iter().enumerate();
        servers
            .map(|(index, server)| {
                let cookies = match way.has_cookies() {
                    true => self.cookies_of_agent(index),
                    false => String::new(),
                };
                let pins = bench::pin_dir(server);
                AgentProcess::start_with(&self.binary, server, &pins, &cookies)
            })
            .collect()
    }

    fn cookies_of_agent(&self, index: usize) -> String {
        let reports = self.balancers.each_ref().map(|balancer| {
            let address = balancer.ipv4;
            format!("{address}:{REPORTS_PORT}")
        });
        format!(
            "[agent.report]\nconnections = true\nto = {reports:?}\n{}",
            self.keys.cookies_of_agent(index)
        )
    }

    /// Gives cookies a new key in two steps, as docs/how-to/keep-connections.md has it: first all
    /// learn it, then it is used.
    fn rotate_cookies(&self, balancer: &Balancer, agents: &[AgentProcess]) -> Result<()> {
        for step in ["--prepare", "--switch"] {
            self.keys.rotate_cookies(step)?;
            balancer.reload_now()?;
            agents.iter().try_for_each(|agent| agent.reload_now())?;
        }
        Ok(())
    }

    fn second_balancer(&self, settings: &BalancerSettings) -> Result<Balancer> {
        Balancer::start(&self.binary, &self.balancers[1], settings)
    }

    /// Routes the VIPs to another balancer after `overlap`, and ends the former one.
    fn swap(&self, old: Balancer, new: Balancer, overlap: Duration) -> Result<Balancer> {
        sleep(overlap);
        self.topology.route_vips(&self.balancers[1])?;
        // What is under way to the old one is still sent on.
        sleep(Duration::from_millis(100));
        old.end()?;
        Ok(new)
    }

    fn settings(&self, way: &Way, pool: Pool) -> Result<BalancerSettings> {
        let mut keys: Vec<String> = way.keys.iter().map(|key| (*key).to_owned()).collect();
        if way.is_quic() {
            let configs = match pool.rotated {
                true => vec![self.keys.quic_cid(0)?, self.keys.quic_cid(1)?],
                false => vec![self.keys.quic_cid(0)?],
            };
            keys.push(format!("quic_cid = [{}]", configs.join(", ")));
        }
        let with_ids = way.has_cookies() || way.is_quic();
        let servers = || self.topology.servers.iter().take(pool.present).enumerate();
        let vip = |address: IpAddr| VipEntry {
            address,
            port: way.port(),
            protocol: way.protocol(),
            scheduler: way.scheduler.to_owned(),
            keys: keys.clone(),
            forwarding: way.forwarding(),
            reals: servers()
                .map(|(index, server)| RealEntry {
                    drain: index < pool.drained,
                    keys: match with_ids {
                        true => vec![format!("id = {}", server_id(index))],
                        false => Vec::new(),
                    },
                    ..RealEntry::of(server, address)
                })
                .collect(),
        };
        let mut head = vec![SharedKeys::hash_key_line()];
        if way.has_cookies() {
            head.push(self.keys.balancer_lines());
        }
        if way.memory == Memory::Slots {
            let adopt = if pool.adopts { 5 } else { 0 };
            head.push(format!(
                "[agent_reports]\nlisten = \"0.0.0.0:{REPORTS_PORT}\"\n\
                 [stateful]\nconnections = \"{SLOTS}\"\nlearn_period = \"{adopt}s\""
            ));
        }
        Ok(BalancerSettings {
            vips: vec![vip(topology::vip4(0).into()), vip(topology::vip6(0).into())],
            head,
            ..BalancerSettings::default()
        })
    }
}

/// Slots in use once all connections have ended, and what agents have reported. The last
/// ends may be on their way; ageing would take a minute.
fn slots_left(balancer: &Balancer) -> Result<Value> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let path = "/v1/connections?count=0&ms=1";
        let left: Value = crate::api::get(&balancer.socket(), path)?;
        if left["open"] == 0 || Instant::now() > deadline {
            return Ok(left);
        }
        sleep(Duration::from_millis(50));
    }
}
