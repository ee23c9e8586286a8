// SPDX-License-Identifier: Apache-2.0
//! Connections come and go, servers and balancers leave and return, and every packet is asked
//! where it would go.

use causeway_core::cookie::ids::IdError;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rand_distr::{Binomial, Distribution as _, Exp};
use rand_pcg::Pcg64Mcg;

use super::pool::{PoolUpdate, Servers};
use super::ways::{ConnPacket, KeepingWay, WayKind};
use super::workload::{DOWNTIME_S, DURATION_S, SIZE_KB};
use crate::queue::EventQueue;

const S: f64 = 1e9;
/// Between two looks at the balance.
const SAMPLE_S: f64 = 1.0;
/// The interval in which the daemon plans.
const TICK_S: f64 = 0.1;
/// How long a balancer is away.
const AWAY_S: f64 = 30.0;
/// Packets of a kilobyte.
const PACKETS_PER_KB: f64 = 10.0;

/// What happens to the connections of a server that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// It serves those it has, and gets no new ones.
    Drains,
    /// They end with it, and could not have been kept: they are not counted as broken.
    Dies,
}

/// Which connections are asked about at a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// All that are open: a connection breaks that ever belongs to another server (Cheetah,
    /// section 2.1).
    Open,
    /// Those that have sent a packet since the change before, in random order (JET).
    Sending,
}

/// A run.
#[derive(Debug, Clone, Copy)]
pub struct FleetRun {
    /// How connections are kept on servers.
    pub way: WayKind,
    /// Services.
    pub vips: u32,
    /// Servers of each.
    pub servers: u32,
    /// Connections at a time, of all services.
    pub active: u32,
    /// Servers that leave, of each service. Those that return are not counted.
    pub removals_per_min: f64,
    /// What that means to their connections.
    pub leaving: Leaving,
    /// Which connections are asked about.
    pub asked: Asked,
    /// Every server that comes is a new one, with an address of its own.
    pub renewed: bool,
    /// How long an id rests.
    pub rest_s: u64,
    /// Begins with as many connections as it is to have; else with none.
    pub steady: bool,
    /// Balancers behind a router that spreads by hash.
    pub balancers: u16,
    /// One of them leaves this often, and returns empty 30 s later; 0: never.
    pub balancer_every_s: f64,
    /// Keys of cookies are replaced this often; 0: never.
    pub rotate_every_s: f64,
    /// Virtual length.
    pub seconds: f64,
    /// Source of all chance.
    pub seed: u64,
}

impl FleetRun {
    /// Cheetah's figure 2: 468 servers, half of the updates removals, half returns.
    pub fn cheetah(way: WayKind, active: u32, updates_per_min: f64, seconds: f64) -> Self {
        Self {
            way,
            vips: 1,
            servers: 468,
            active,
            removals_per_min: updates_per_min / 2.0,
            leaving: Leaving::Drains,
            asked: Asked::Open,
            renewed: false,
            rest_s: 900,
            steady: true,
            balancers: 1,
            balancer_every_s: 0.0,
            rotate_every_s: 0.0,
            seconds,
            seed: 1,
        }
    }

    /// The published run of JET's simulation, with another number of connections.
    pub fn jet(way: WayKind, active: u32, seed: u64) -> Self {
        Self {
            removals_per_min: 10.0,
            leaving: Leaving::Dies,
            asked: Asked::Sending,
            steady: false,
            seed,
            ..Self::cheetah(way, active, 0.0, 1000.0)
        }
    }
}

/// What came of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FleetFigures {
    /// Connections, those at the start included.
    pub connections: u64,
    /// Of them, asked about while another server would have got their packets.
    pub broken: u64,
    /// How much more than the mean the fullest server had, on the mean over time.
    pub imbalance: f64,
    /// The same at the end.
    pub imbalance_at_end: f64,
    /// The same by packets, on the mean over time.
    pub packet_imbalance: f64,
    /// Updates of a service's servers.
    pub updates: u64,
    /// Events of all kinds, and questions where a packet would go.
    pub events: u64,
    /// Those questions.
    pub asked: u64,
    /// When a server got no id; the run ends there.
    pub refused_at_s: Option<f64>,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Arrive,
    Depart { vip: u32, place: u32, serial: u32 },
    Remove { vip: u32 },
    Return { vip: u32, server: u32 },
    BalancerLeaves,
    BalancerReturns { number: u16 },
    Rotate,
    Sample,
    Tick,
}

#[derive(Debug, Clone, Copy)]
struct Connection {
    packet: ConnPacket,
    /// Packets that it has still to send.
    left: u32,
    /// Told apart from another that had the same place before; 0: the place is free.
    serial: u32,
    rate: f32,
    broken: bool,
    ends_ns: u64,
    asked_ns: u64,
}

/// A service, its servers and its connections.
struct Service {
    servers: Servers,
    way: Box<dyn KeepingWay>,
    connections: Vec<Connection>,
    free: Vec<u32>,
}

pub fn run(of: &FleetRun) -> FleetFigures {
    let mut world = match World::new(of) {
        Ok(world) => world,
        Err(_) => return FleetFigures::refused(0.0),
    };
    world.begin();
    let end_ns = (of.seconds * S) as u64;
    while let Some(event) = world.queue.next_before(end_ns) {
        world.figures.events += 1;
        if world.handle(event).is_err() {
            return FleetFigures::refused(world.queue.now_ns() as f64 / S);
        }
    }
    world.finish();
    world.figures
}

impl FleetFigures {
    fn refused(at_s: f64) -> Self {
        Self {
            refused_at_s: Some(at_s),
            ..Self::default()
        }
    }
}

struct World<'a> {
    of: &'a FleetRun,
    rng: Pcg64Mcg,
    queue: EventQueue<Event>,
    services: Vec<Service>,
    /// Balancers that are there, as the router spreads over them.
    hops: Vec<u16>,
    serial: u32,
    samples: u32,
    figures: FleetFigures,
}

impl<'a> World<'a> {
    fn new(of: &'a FleetRun) -> Result<Self, IdError> {
        let service = |_| {
            let servers = Servers::new(of.servers);
            let way = of
                .way
                .build(&servers, of.balancers, of.active / of.vips, of.rest_s)?;
            Ok(Service {
                servers,
                way,
                connections: Vec::new(),
                free: Vec::new(),
            })
        };
        Ok(Self {
            of,
            rng: Pcg64Mcg::seed_from_u64(of.seed),
            queue: EventQueue::default(),
            services: (0..of.vips).map(service).collect::<Result<_, _>>()?,
            hops: (0..of.balancers).collect(),
            serial: 0,
            samples: 0,
            figures: FleetFigures::default(),
        })
    }

    fn after(&mut self, seconds: f64, event: Event) {
        self.queue.after((seconds * S) as u64, event);
    }

    /// After a random time, so that this happens at this rate.
    fn at_rate(&mut self, per_s: f64, event: Event) {
        if let Ok(gap) = Exp::new(per_s)
            && per_s > 0.0
        {
            let seconds = gap.sample(&mut self.rng);
            self.after(seconds, event);
        }
    }

    fn begin(&mut self) {
        if self.of.steady {
            for _ in 0..self.of.active {
                let seconds = DURATION_S.draw_rest(&mut self.rng);
                self.open(seconds);
            }
        }
        self.at_rate(self.arrivals(), Event::Arrive);
        for vip in 0..self.of.vips {
            self.at_rate(self.removals(), Event::Remove { vip });
        }
        let every = [
            (self.of.balancer_every_s, Event::BalancerLeaves),
            (self.of.rotate_every_s, Event::Rotate),
            (SAMPLE_S, Event::Sample),
            (TICK_S, Event::Tick),
        ];
        for (seconds, event) in every.into_iter().filter(|(seconds, _)| *seconds > 0.0) {
            self.after(seconds, event);
        }
    }

    fn arrivals(&self) -> f64 {
        f64::from(self.of.active) / DURATION_S.mean()
    }

    fn removals(&self) -> f64 {
        self.of.removals_per_min / 60.0
    }

    fn handle(&mut self, event: Event) -> Result<(), IdError> {
        match event {
            Event::Arrive => {
                let seconds = DURATION_S.draw(&mut self.rng);
                self.open(seconds);
                self.at_rate(self.arrivals(), Event::Arrive);
            }
            Event::Depart { vip, place, serial } => self.depart(vip, place, serial),
            Event::Remove { vip } => {
                self.remove(vip)?;
                self.at_rate(self.removals(), event);
            }
            Event::Return { vip, server } => {
                if self.of.renewed {
                    self.services[vip as usize].servers.renew(server);
                }
                self.update(vip, PoolUpdate::Joined(server))?;
            }
            Event::BalancerLeaves => {
                let place = self.rng.random_range(0..self.hops.len());
                let number = self.hops.remove(place);
                self.spread();
                self.after(AWAY_S, Event::BalancerReturns { number });
                self.after(self.of.balancer_every_s, event);
            }
            Event::BalancerReturns { number } => {
                let place = self.hops.partition_point(|hop| *hop < number);
                self.hops.insert(place, number);
                for service in &mut self.services {
                    let open = service.connections.iter().filter(|of| of.serial > 0);
                    service.way.lose(number, &mut open.map(|of| of.packet));
                }
                self.spread();
            }
            Event::Rotate => {
                self.services.iter_mut().for_each(|of| of.way.rotate());
                (0..self.services.len()).for_each(|vip| self.ask(vip));
                self.after(self.of.rotate_every_s, event);
            }
            Event::Sample => {
                self.sample();
                self.after(SAMPLE_S, event);
            }
            Event::Tick => {
                for service in &mut self.services {
                    service.way.tick(&service.servers);
                }
                self.after(TICK_S, event);
            }
        }
        Ok(())
    }

    /// A connection that ends after this many seconds.
    fn open(&mut self, seconds: f64) {
        let hash: u64 = self.rng.random();
        let kb = SIZE_KB.draw(&mut self.rng);
        let left = (PACKETS_PER_KB * kb) as u32 + 1;
        let vip = self.rng.random_range(0..self.of.vips);
        let now_ns = self.queue.now_ns();
        let ends_ns = now_ns + (seconds * S) as u64;
        self.serial += 1;
        let mut packet = ConnPacket {
            hash,
            balancer: hop(hash, &self.hops),
            ..ConnPacket::default()
        };
        self.figures.connections += 1;
        let service = &mut self.services[vip as usize];
        let Some(server) = service.way.open(&mut packet, &service.servers) else {
            self.figures.broken += 1;
            return;
        };
        packet.on = server;
        let rate = (f64::from(left) / seconds.max(1e-3)) as f32;
        service.servers.opened(server, f64::from(rate));
        let connection = Connection {
            packet,
            left,
            serial: self.serial,
            rate,
            broken: false,
            ends_ns,
            asked_ns: now_ns,
        };
        let place = match service.free.pop() {
            Some(place) => {
                service.connections[place as usize] = connection;
                place
            }
            None => {
                service.connections.push(connection);
                (service.connections.len() - 1) as u32
            }
        };
        let serial = self.serial;
        self.queue.at(ends_ns, Event::Depart { vip, place, serial });
        self.follow(vip, server);
    }

    /// Its last packet is asked about as well.
    fn depart(&mut self, vip: u32, place: u32, serial: u32) {
        let service = &mut self.services[vip as usize];
        let connection = &mut service.connections[place as usize];
        if connection.serial != serial {
            return;
        }
        self.figures.asked += 1;
        if !connection.broken && !is_kept(service.way.as_mut(), connection) {
            self.figures.broken += 1;
        }
        service.way.close(&connection.packet);
        let server = connection.packet.on;
        service.end(place);
        self.follow(vip, server);
    }

    fn follow(&mut self, vip: u32, server: u32) {
        let service = &mut self.services[vip as usize];
        if service.way.follow(&service.servers, server) {
            self.ask(vip as usize);
        }
    }

    fn remove(&mut self, vip: u32) -> Result<(), IdError> {
        let service = &mut self.services[vip as usize];
        if service.servers.ups() < 2 {
            return Ok(());
        }
        let nth = self.rng.random_range(0..service.servers.ups());
        let Some(server) = service.servers.working().nth(nth) else {
            return Ok(());
        };
        if self.of.leaving == Leaving::Dies {
            for place in 0..service.connections.len() as u32 {
                let connection = service.connections[place as usize];
                if connection.serial > 0 && connection.packet.on == server {
                    service.end(place);
                }
            }
        }
        let seconds = DOWNTIME_S.draw(&mut self.rng);
        self.after(seconds, Event::Return { vip, server });
        self.update(vip, PoolUpdate::Left(server))
    }

    fn update(&mut self, vip: u32, update: PoolUpdate) -> Result<(), IdError> {
        self.figures.updates += 1;
        let now_s = self.queue.now_ns() / S as u64;
        let service = &mut self.services[vip as usize];
        service.servers.update(update);
        service.way.update(&service.servers, update, now_s)?;
        self.ask(vip as usize);
        Ok(())
    }

    /// Where would the packets of a service's connections go now?
    fn ask(&mut self, vip: usize) {
        let now_ns = self.queue.now_ns();
        let service = &mut self.services[vip];
        let mut asked: Vec<u32> = Vec::new();
        if self.of.asked == Asked::Sending {
            let places = (0..).zip(&mut service.connections);
            for (place, connection) in places.filter(|(_, of)| of.serial > 0) {
                if connection.sends(now_ns, &mut self.rng) {
                    asked.push(place);
                }
            }
            asked.shuffle(&mut self.rng);
        } else {
            asked.extend(
                (0..)
                    .zip(&service.connections)
                    .filter_map(|(place, of)| (of.serial > 0).then_some(place)),
            );
        }
        self.figures.asked += asked.len() as u64;
        for place in asked {
            let connection = &mut service.connections[place as usize];
            if !is_kept(service.way.as_mut(), connection) && !connection.broken {
                connection.broken = true;
                self.figures.broken += 1;
            }
        }
    }

    /// The router spreads over other balancers.
    fn spread(&mut self) {
        for vip in 0..self.services.len() {
            for connection in &mut self.services[vip].connections {
                connection.packet.balancer = hop(connection.packet.hash, &self.hops);
            }
            self.ask(vip);
        }
    }

    fn sample(&mut self) {
        let services = self.services.len() as f64;
        for service in &self.services {
            self.figures.imbalance += service.servers.imbalance() / services;
            self.figures.packet_imbalance += service.servers.packet_imbalance() / services;
        }
        self.samples += 1;
    }

    fn finish(&mut self) {
        let samples = f64::from(self.samples.max(1));
        self.figures.imbalance /= samples;
        self.figures.packet_imbalance /= samples;
        let imbalances = self.services.iter().map(|of| of.servers.imbalance());
        self.figures.imbalance_at_end = imbalances.sum::<f64>() / self.services.len() as f64;
    }
}

/// Which balancer a router sends a flow to: equal parts of the hash's range (RFC 2992).
fn hop(hash: u64, hops: &[u16]) -> u16 {
    let place = (u128::from(hash.rotate_left(32)) * hops.len() as u128) >> 64;
    hops.get(place as usize).copied().unwrap_or(0)
}

fn is_kept(way: &mut dyn KeepingWay, connection: &Connection) -> bool {
    way.find(&connection.packet) == Some(connection.packet.on)
}

impl Connection {
    /// Whether it has sent a packet since it was asked about; packets lie anywhere in its life.
    fn sends(&mut self, now_ns: u64, rng: &mut Pcg64Mcg) -> bool {
        let passed = (now_ns - self.asked_ns) as f64;
        let whole = (self.ends_ns.max(now_ns) - self.asked_ns) as f64;
        if passed <= 0.0 || whole <= 0.0 {
            return false;
        }
        let sent = Binomial::new(u64::from(self.left), passed / whole);
        let sent = sent.map_or(0, |of| of.sample(rng)) as u32;
        self.left -= sent;
        self.asked_ns = now_ns;
        sent > 0
    }
}

impl Service {
    /// The connection is no more; its place is free.
    fn end(&mut self, place: u32) {
        let connection = &mut self.connections[place as usize];
        self.servers
            .closed(connection.packet.on, f64::from(connection.rate));
        connection.serial = 0;
        self.free.push(place);
    }
}
