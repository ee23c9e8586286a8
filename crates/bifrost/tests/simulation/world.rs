// SPDX-License-Identifier: Apache-2.0

//! The clock, the links, and what happens when.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use causeway_bifrost::{PathConfig, PathId, TransportConfig, TransportEngine};

use super::host::{Content, Host, frame};
use super::link::Link;
use super::plan::{Fault, Plan};

/// Where a path's datagrams come from; the same at both ends.
pub(super) fn address(path: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, path as u8)), 7000)
}

enum Happening {
    Offer(usize),
    Fault(usize),
    Arrive {
        host: usize,
        path: usize,
        datagram: Vec<u8>,
    },
    Wake(usize),
}

/// See the module.
pub(super) struct World {
    pub hosts: [Host; 2],
    pub links: Vec<[Link; 2]>,
    pub now_ns: u64,
    pub paths: usize,
    configs: [TransportConfig; 2],
    instances: u64,
    agenda: BinaryHeap<Reverse<(u64, usize)>>,
    /// What the entries of the agenda mean, by their number.
    happenings: Vec<Option<Happening>>,
    rng: Pcg64Mcg,
    /// The guests' counters, by host and flow.
    numbers: BTreeMap<(usize, u32), u32>,
    /// Of each flow, the last frame that was offered once the faults had ended.
    pub closing: BTreeMap<(usize, u32), u32>,
    /// Datagrams of the session, kept for an attacker to replay.
    overheard: Vec<(usize, usize, Vec<u8>)>,
    pub steps: u64,
}

/// More than any plan needs: an engine that asks to be woken without end.
const MAX_STEPS: u64 = 2_000_000;

impl World {
    pub(super) fn new(plan: &Plan) -> World {
        let mut rng = Pcg64Mcg::seed_from_u64(plan.seed ^ 0x5eed);
        let instances: u64 = rng.random();
        let host = |side: u64| {
            let mut engine =
                TransportEngine::new(plan.config.clone(), instances.wrapping_add(side + 1))
                    .expect("plans have valid settings");
            add_paths(&mut engine, plan.start_ns, plan);
            Host::new(engine, plan)
        };
        let links = plan.links.iter().map(|pair| pair.map(Link::new)).collect();
        let mut world = World {
            hosts: [host(0), host(1)],
            links,
            now_ns: plan.start_ns,
            paths: plan.links.len(),
            configs: [plan.config.clone(), plan.config.clone()],
            instances: instances.wrapping_add(100),
            agenda: BinaryHeap::new(),
            happenings: Vec::new(),
            rng,
            numbers: BTreeMap::new(),
            closing: BTreeMap::new(),
            overheard: Vec::new(),
            steps: 0,
        };
        for (index, offer) in plan.offers.iter().enumerate() {
            world.plan(plan.start_ns + offer.at_ns, Happening::Offer(index));
        }
        for (index, (at_ns, _)) in plan.faults.iter().enumerate() {
            world.plan(plan.start_ns + at_ns, Happening::Fault(index));
        }
        for host in 0..2 {
            world.wake(host, plan.start_ns);
        }
        world
    }

    fn plan(&mut self, at_ns: u64, what: Happening) {
        self.agenda.push(Reverse((at_ns, self.happenings.len())));
        self.happenings.push(Some(what));
    }

    /// Plans a wake-up, unless an earlier one is planned.
    fn wake(&mut self, host: usize, at_ns: u64) {
        let at_ns = at_ns
            .max(self.hosts[host].stalled_until_ns)
            .max(self.now_ns);
        if at_ns < self.hosts[host].wake_ns {
            self.hosts[host].wake_ns = at_ns;
            self.plan(at_ns, Happening::Wake(host));
        }
    }

    pub(super) fn play(&mut self, plan: &Plan) -> Result<(), String> {
        let end_ns = plan.start_ns + plan.end_ns;
        while let Some(Reverse((at_ns, number))) = self.agenda.pop() {
            if at_ns > end_ns {
                break;
            }
            self.now_ns = at_ns;
            self.steps += 1;
            if self.steps > MAX_STEPS {
                return Err("an engine wants to be woken without end".into());
            }
            let Some(what) = self.happenings[number].take() else {
                continue;
            };
            match what {
                Happening::Offer(index) => self.offer(plan, index),
                Happening::Fault(index) => self.fault(plan, &plan.faults[index].1),
                Happening::Arrive {
                    host,
                    path,
                    datagram,
                } => {
                    self.hosts[host].receive(path, datagram);
                    self.wake(host, at_ns);
                }
                Happening::Wake(host) => self.work(host, at_ns)?,
            }
        }
        Ok(())
    }

    fn offer(&mut self, plan: &Plan, index: usize) {
        let offer = &plan.offers[index];
        let number = self.numbers.entry((offer.host, offer.flow)).or_default();
        let content = Content {
            flow: offer.flow,
            number: *number,
            sent_ns: self.now_ns,
        };
        *number += 1;
        if offer.at_ns >= plan.quiet_ns {
            self.closing
                .insert((offer.host, offer.flow), content.number);
        }
        self.hosts[offer.host].offer(frame(content, offer.len));
        self.wake(offer.host, self.now_ns);
    }

    fn work(&mut self, host: usize, at_ns: u64) -> Result<(), String> {
        if self.hosts[host].wake_ns != at_ns {
            return Ok(()); // A later wake-up that an earlier one has replaced.
        }
        if at_ns < self.hosts[host].stalled_until_ns {
            self.hosts[host].wake_ns = u64::MAX;
            self.wake(host, at_ns);
            return Ok(());
        }
        self.hosts[host].wake_ns = u64::MAX;
        let mut sent = Vec::new();
        self.hosts[host].work(at_ns, |path, datagram| sent.push((path, datagram)))?;
        for (path, datagram) in sent {
            self.carry(host, path, datagram);
        }
        if let Some(next_ns) = self.hosts[host].engine.poll_timeout() {
            // A reply may ask for a probe at once; more would be an endless loop.
            let again = &mut self.hosts[host].wakes_in_place;
            *again = if next_ns <= at_ns { *again + 1 } else { 0 };
            if *again > 3 {
                return Err(format!(
                    "at {at_ns} the next timeout is {next_ns}, which is past"
                ));
            }
            self.wake(host, next_ns);
        }
        Ok(())
    }

    fn carry(&mut self, host: usize, path: usize, datagram: Vec<u8>) {
        let link = &mut self.links[path][host];
        let arrivals = link.carry(self.now_ns, &datagram, &mut self.rng);
        if self.overheard.len() < 64 {
            self.overheard.push((host, path, datagram.clone()));
        }
        let host = 1 - host;
        for at_ns in arrivals.into_iter().flatten() {
            let datagram = datagram.clone();
            self.plan(
                at_ns,
                Happening::Arrive {
                    host,
                    path,
                    datagram,
                },
            );
        }
    }

    fn fault(&mut self, plan: &Plan, fault: &Fault) {
        let now_ns = self.now_ns;
        match fault {
            Fault::Link(path, side, settings) => self.links[*path][*side].settings = *settings,
            Fault::Stall(host, ns) => self.hosts[*host].stalled_until_ns = now_ns + ns,
            Fault::Restart(host) => {
                self.instances += 1;
                let mut engine = TransportEngine::new(self.configs[*host].clone(), self.instances)
                    .expect("plans have valid settings");
                add_paths(&mut engine, now_ns, plan);
                self.hosts[*host].restart(engine, plan.links.len());
            }
            Fault::Mtu(host, path, mtu) => {
                self.hosts[*host]
                    .engine
                    .set_path_mtu(now_ns, PathId(*path as u8), *mtu);
            }
            Fault::Remove(host, path) => {
                self.hosts[*host]
                    .engine
                    .remove_path(now_ns, PathId(*path as u8));
            }
            Fault::Add(host, path) => {
                let config = path_config(*path);
                let added = self.hosts[*host]
                    .engine
                    .add_path(now_ns, PathId(*path as u8), config);
                added.expect("the plan has removed it before");
            }
            Fault::TransportConfig(host, config) => {
                self.configs[*host] = (**config).clone();
                let changed = self.hosts[*host]
                    .engine
                    .reconfigure(now_ns, (**config).clone());
                changed.expect("plans have valid settings");
            }
            Fault::Attacker(count) => self.attacker(*count),
        }
        for host in 0..2 {
            self.wake(host, now_ns);
        }
    }

    /// Datagrams of an attacker who has overheard some: as they were, changed, cut, sent
    /// back, or made up. Without keys the attacker is not on the path and does not know the
    /// epoch, so a right one is taken out.
    fn attacker(&mut self, count: u32) {
        let sealed = self.configs[0].keys.send.is_some();
        for _ in 0..count {
            let rng = &mut self.rng;
            let heard = (!self.overheard.is_empty() && rng.random_bool(0.8))
                .then(|| self.overheard[rng.random_range(0..self.overheard.len())].clone());
            let (from, path, mut datagram) = heard.unwrap_or_else(|| {
                let noise = (0..rng.random_range(0..200))
                    .map(|_| rng.random())
                    .collect();
                (
                    rng.random_range(0..2),
                    rng.random_range(0..self.paths),
                    noise,
                )
            });
            let mut host = 1 - from;
            match rng.random_range(0..4) {
                0 if !datagram.is_empty() => datagram.truncate(rng.random_range(0..datagram.len())),
                1 => {
                    let len = datagram.len();
                    for _ in 0..rng.random_range(1..4) {
                        let flip = 1u8 << rng.random_range(0..8);
                        if let Some(byte) = datagram.get_mut(rng.random_range(0..len.max(1))) {
                            *byte ^= flip;
                        }
                    }
                }
                2 => host = from,
                _ => {}
            }
            if !sealed && datagram.len() >= 8 {
                for byte in &mut datagram[4..8] {
                    *byte = rng.random();
                }
                // Probes are believed by the instance that they name.
                datagram[0] = datagram[0] & 0xf0 | rng.random_range(1..3);
            }
            self.hosts[host].receive(path, datagram);
        }
    }
}

fn path_config(path: usize) -> PathConfig {
    PathConfig {
        peer: address(path),
        mtu: 1500,
    }
}

fn add_paths(engine: &mut TransportEngine, now_ns: u64, plan: &Plan) {
    for path in 0..plan.links.len() {
        let added = engine.add_path(now_ns, PathId(path as u8), path_config(path));
        added.expect("paths have different numbers");
    }
}
