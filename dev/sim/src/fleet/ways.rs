// SPDX-License-Identifier: Apache-2.0
//! The ways to keep a connection on its server. Rings, cookies, their keys and the ids of
//! servers are the product's; what others do is in `baselines`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use causeway_core::cookie::ids::{self, IdError, KnownId, Wanted};
use causeway_core::cookie::{self, CookieKey, CookieLayout, CookieMode, KeyEpoch, Keys, Tuple};
use causeway_core::select::{self, Loaded, RingMember, RingSize};

use super::baselines::{Anchor, Buckets, Circle, Lru, mixed};
use super::pool::{PoolUpdate, Servers};

/// What a packet shows a balancer.
#[derive(Debug, Clone, Copy, Default)]
pub struct ConnPacket {
    /// Of its tuple; no two connections share it.
    pub hash: u64,
    /// Its cookie or token.
    pub token: u32,
    /// Which balancer it comes to.
    pub balancer: u16,
    /// Whose connection it is: what servers and their agents know, and a balancer does not.
    pub on: u32,
}

/// A way to keep connections on their servers.
pub trait KeepingWay {
    /// The servers have changed.
    fn update(&mut self, servers: &Servers, update: PoolUpdate, now_s: u64) -> Result<(), IdError>;

    /// A first packet: the server that gets the connection.
    fn open(&mut self, packet: &mut ConnPacket, servers: &Servers) -> Option<u32>;

    /// The server that any other packet goes to.
    fn find(&mut self, packet: &ConnPacket) -> Option<u32>;

    /// The connection has ended.
    fn close(&mut self, _packet: &ConnPacket) {}

    /// What this balancer remembered is gone. Agents report the open connections to it.
    fn lose(&mut self, _balancer: u16, _open: &mut dyn Iterator<Item = ConnPacket>) {}

    /// 100 ms have passed.
    fn tick(&mut self, _servers: &Servers) {}

    /// The server's load has changed: whether packets go elsewhere from now on.
    fn follow(&mut self, _servers: &Servers, _server: u32) -> bool {
        false
    }

    /// New keys for cookies.
    fn rotate(&mut self) {}
}

/// Which way, with its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WayKind {
    /// A ring of equal shares, and nothing else.
    Hash,
    /// A circle with 100 points a server, and nothing else.
    Consistent,
    /// Maglev's ring, and nothing else.
    Maglev,
    /// Buckets that know the server before.
    DaisyChain,
    /// The same, and a server whose load exceeds the mean by this part gets no new buckets
    /// until it is below the mean.
    Dynamic(f64),
    /// Maglev's ring with a table of this many entries on each balancer.
    MaglevTable(usize),
    /// AnchorHash, all connections in such a table.
    AnchorTable(usize),
    /// AnchorHash, those in the table that the horizon could move, of which this is the size.
    Jet(usize, u32),
    /// A table without limit; picked by turns.
    Table,
    /// Cookies that name the server.
    Cookie(CookiePick),
    /// Tokens that name a slot of the balancer.
    Stateful,
}

/// The server that gets a connection which a cookie will keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CookiePick {
    /// The next.
    Turn,
    /// The less loaded of two.
    Two,
    /// The least loaded by a plan for 100 ms, as the daemon makes it.
    Plan,
    /// The least loaded at this very moment, as the paper has it.
    Least,
}

impl WayKind {
    /// In tables and JSON.
    pub fn name(self) -> String {
        match self {
            Self::Hash => "hash".to_owned(),
            Self::Consistent => "consistent-hash".to_owned(),
            Self::Maglev => "maglev".to_owned(),
            Self::DaisyChain => "daisy-chain".to_owned(),
            Self::Dynamic(threshold) => format!("daisy-chain-{:.0}%", 100.0 * threshold),
            Self::MaglevTable(_) => "maglev-table".to_owned(),
            Self::AnchorTable(_) => "anchor-table".to_owned(),
            Self::Jet(..) => "jet".to_owned(),
            Self::Table => "stateful-table".to_owned(),
            Self::Cookie(CookiePick::Turn) => "cookie".to_owned(),
            Self::Cookie(CookiePick::Two) => "cookie-p2c".to_owned(),
            Self::Cookie(CookiePick::Plan) => "cookie-least-loaded".to_owned(),
            Self::Cookie(CookiePick::Least) => "cookie-least-now".to_owned(),
            Self::Stateful => "cookie-stateful".to_owned(),
        }
    }

    /// The way at its start, for this many balancers.
    pub fn build(
        self,
        servers: &Servers,
        balancers: u16,
        active: u32,
        rest_s: u64,
    ) -> Result<Box<dyn KeepingWay>, IdError> {
        let tables = |entries| (0..balancers).map(|_| Lru::new(entries)).collect();
        Ok(match self {
            Self::Hash => Box::new(Hashed(Ring::new(select::uniform, servers))),
            Self::Consistent => Box::new(Hashed(Circle::new(servers.len()))),
            Self::Maglev => Box::new(Hashed(Ring::new(select::maglev, servers))),
            Self::DaisyChain => Box::new(Chained::new(servers, f64::INFINITY)),
            Self::Dynamic(threshold) => Box::new(Chained::new(servers, threshold)),
            Self::MaglevTable(entries) => Box::new(Tracked {
                ring: Ring::new(select::maglev, servers),
                all: true,
                tables: tables(entries),
            }),
            Self::AnchorTable(entries) => Box::new(Tracked {
                ring: Anchor::new(servers.len(), 0),
                all: true,
                tables: tables(entries),
            }),
            Self::Jet(entries, horizon) => Box::new(Tracked {
                ring: Anchor::new(servers.len(), horizon),
                all: false,
                tables: tables(entries),
            }),
            Self::Table => Box::new(Tracked {
                ring: Turns::new(servers),
                all: true,
                tables: tables(usize::MAX),
            }),
            Self::Cookie(pick) => Box::new(Cookies::new(servers, pick, rest_s)?),
            Self::Stateful => Box::new(Slots::new(servers, balancers, active)),
        })
    }
}

/// What gives a hash its server.
trait Hashing {
    fn update(&mut self, servers: &Servers, update: PoolUpdate);
    /// The server, and whether a server of the horizon would take the hash.
    fn at(&mut self, hash: u64) -> Option<(u32, bool)>;
}

/// A ring as the data plane indexes it.
struct Ring {
    build: fn(&[RingMember], RingSize) -> Vec<u32>,
    slots: Vec<u32>,
}

impl Ring {
    fn new(build: fn(&[RingMember], RingSize) -> Vec<u32>, servers: &Servers) -> Self {
        let slots = build(
            &servers.members(),
            RingSize::for_pool(servers.len() as usize),
        );
        Self { build, slots }
    }
}

impl Hashing for Ring {
    fn update(&mut self, servers: &Servers, _: PoolUpdate) {
        *self = Self::new(self.build, servers);
    }

    fn at(&mut self, hash: u64) -> Option<(u32, bool)> {
        let slot = hash.checked_rem(self.slots.len() as u64)?;
        Some((self.slots[slot as usize], false))
    }
}

impl Hashing for Circle {
    fn update(&mut self, _: &Servers, update: PoolUpdate) {
        Circle::update(self, update);
    }

    fn at(&mut self, hash: u64) -> Option<(u32, bool)> {
        Some((Circle::at(self, hash)?, false))
    }
}

impl Hashing for Anchor {
    fn update(&mut self, _: &Servers, update: PoolUpdate) {
        Anchor::update(self, update);
    }

    fn at(&mut self, hash: u64) -> Option<(u32, bool)> {
        Some(Anchor::at(self, hash))
    }
}

/// Turns, whatever the hash.
struct Turns {
    order: Vec<u32>,
    taken: u64,
}

impl Turns {
    fn new(servers: &Servers) -> Self {
        Self {
            order: select::equal_turns(&servers.members(), 1),
            taken: 0,
        }
    }

    fn next(&mut self) -> Option<u32> {
        let turn = self.taken.checked_rem(self.order.len() as u64)?;
        self.taken += 1;
        Some(self.order[turn as usize])
    }
}

impl Hashing for Turns {
    fn update(&mut self, servers: &Servers, _: PoolUpdate) {
        self.order = Self::new(servers).order;
    }

    fn at(&mut self, _: u64) -> Option<(u32, bool)> {
        Some((self.next()?, false))
    }
}

/// The hash alone.
struct Hashed<H>(H);

impl<H: Hashing> KeepingWay for Hashed<H> {
    fn update(&mut self, servers: &Servers, update: PoolUpdate, _: u64) -> Result<(), IdError> {
        self.0.update(servers, update);
        Ok(())
    }

    fn open(&mut self, packet: &mut ConnPacket, _: &Servers) -> Option<u32> {
        self.find(packet)
    }

    fn find(&mut self, packet: &ConnPacket) -> Option<u32> {
        self.0.at(packet.hash).map(|(server, _)| server)
    }
}

/// A table on each balancer, and the hash for what is not in it.
struct Tracked<H> {
    ring: H,
    /// Every connection is kept; else those that the horizon would move.
    all: bool,
    tables: Vec<Lru>,
}

impl<H: Hashing> KeepingWay for Tracked<H> {
    fn update(&mut self, servers: &Servers, update: PoolUpdate, _: u64) -> Result<(), IdError> {
        self.ring.update(servers, update);
        Ok(())
    }

    fn open(&mut self, packet: &mut ConnPacket, _: &Servers) -> Option<u32> {
        self.find(packet)
    }

    fn find(&mut self, packet: &ConnPacket) -> Option<u32> {
        let table = self.tables.get_mut(usize::from(packet.balancer))?;
        if let Some(server) = table.find(packet.hash) {
            return Some(server);
        }
        let (server, moves) = self.ring.at(packet.hash)?;
        if self.all || moves {
            table.insert(packet.hash, server);
        }
        Some(server)
    }

    fn close(&mut self, packet: &ConnPacket) {
        if let Some(table) = self.tables.get_mut(usize::from(packet.balancer)) {
            table.remove(packet.hash);
        }
    }

    fn lose(&mut self, balancer: u16, _: &mut dyn Iterator<Item = ConnPacket>) {
        if let Some(table) = self.tables.get_mut(usize::from(balancer)) {
            table.clear();
        }
    }
}

/// Connections a server has on the mean before loads are followed.
const FOLLOW_FROM: f64 = 10.0;

/// Buckets with a server before. The server that is asked knows its own connections and hands
/// on what it does not know, so that a packet finds its connection on either of the two.
struct Chained {
    buckets: Buckets,
    takes: Vec<bool>,
    threshold: f64,
}

impl Chained {
    fn new(servers: &Servers, threshold: f64) -> Self {
        Self {
            buckets: Buckets::new(servers.len()),
            takes: (0..servers.len()).map(|of| servers.is_up(of)).collect(),
            threshold,
        }
    }

    fn set(&mut self, server: u32, takes: bool) -> bool {
        let place = &mut self.takes[server as usize];
        if *place == takes {
            return false;
        }
        *place = takes;
        let update = match takes {
            true => PoolUpdate::Joined(server),
            false => PoolUpdate::Left(server),
        };
        self.buckets.update(update, &self.takes);
        true
    }
}

impl KeepingWay for Chained {
    fn update(&mut self, _: &Servers, update: PoolUpdate, _: u64) -> Result<(), IdError> {
        match update {
            PoolUpdate::Left(server) => self.set(server, false),
            PoolUpdate::Joined(server) => self.set(server, true),
        };
        Ok(())
    }

    fn open(&mut self, packet: &mut ConnPacket, _: &Servers) -> Option<u32> {
        let [now, _] = self.buckets.at(packet.hash);
        Some(now)
    }

    fn find(&mut self, packet: &ConnPacket) -> Option<u32> {
        let [now, before] = self.buckets.at(packet.hash);
        Some(if packet.on == before { before } else { now })
    }

    fn follow(&mut self, servers: &Servers, server: u32) -> bool {
        let mean = servers.mean_open();
        // With a few connections a server, one more is beyond any threshold.
        if self.threshold.is_infinite() || mean < FOLLOW_FROM {
            return false;
        }
        let load = |of: u32| f64::from(servers.open(of));
        let idle = (0..servers.len()).filter(|of| !self.takes[*of as usize]);
        let idle: Vec<u32> = idle
            .filter(|of| servers.is_up(*of) && load(*of) < mean)
            .collect();
        let mut changed = false;
        for server in idle {
            changed |= self.set(server, true);
        }
        if servers.is_up(server) && load(server) > mean * (1.0 + self.threshold) {
            changed |= self.set(server, false);
        }
        changed
    }
}

/// A connection's addresses, made up from its hash.
fn tuple(hash: u64) -> Tuple {
    let client = IpAddr::V4(Ipv4Addr::from_bits(hash as u32));
    let vip = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    Tuple::tcp(
        SocketAddr::new(client, (hash >> 32) as u16),
        SocketAddr::new(vip, 443),
    )
}

/// Cookies that name servers: the same on every balancer.
struct Cookies {
    pick: CookiePick,
    turns: Turns,
    plan: Vec<u32>,
    planned: usize,
    keys: Keys,
    rotations: u64,
    layout: CookieLayout,
    held: Vec<KnownId>,
    /// By id; stays while the id rests.
    routes: Vec<Option<u32>>,
    /// By server.
    ids: Vec<u16>,
    rest_s: u64,
}

/// How far ahead the daemon plans, in intervals' worth of connections or servers.
const PLAN_AHEAD: usize = 4;

impl Cookies {
    fn new(servers: &Servers, pick: CookiePick, rest_s: u64) -> Result<Self, IdError> {
        let key = CookieKey::from_words([1, 2]);
        let layout = CookieLayout::default_of(CookieMode::Timestamp);
        let mut cookies = Self {
            pick,
            turns: Turns::new(servers),
            plan: Vec::new(),
            planned: 0,
            keys: Keys::new(KeyEpoch::Zero, key, None),
            rotations: 0,
            layout,
            held: Vec::new(),
            routes: vec![None; usize::from(layout.ids())],
            ids: vec![0; servers.len() as usize],
            rest_s,
        };
        cookies.assign(servers, 0)?;
        Ok(cookies)
    }

    fn assign(&mut self, servers: &Servers, now_s: u64) -> Result<(), IdError> {
        // Servers that drain stay in the configuration, and keep their ids.
        let wanted: Vec<Wanted> = (0..servers.len())
            .map(|of| Wanted {
                address: servers.address(of),
                id: None,
            })
            .collect();
        let ids = ids::assign(&wanted, &self.held, self.layout.ids(), now_s, self.rest_s)?;
        for held in &mut self.held {
            let goes = !wanted.iter().any(|of| of.address == held.address);
            if goes && held.freed_s.is_none() {
                held.freed_s = Some(now_s);
            }
        }
        for ((of, wanted), &id) in (0..).zip(&wanted).zip(&ids) {
            self.held.retain(|held| held.id != id);
            self.held.push(KnownId {
                id,
                address: wanted.address,
                freed_s: None,
            });
            self.routes[usize::from(id)] = Some(of);
        }
        self.ids = ids;
        Ok(())
    }

    fn pick(&mut self, hash: u64, servers: &Servers) -> Option<u32> {
        match self.pick {
            CookiePick::Turn => self.turns.next(),
            CookiePick::Two => {
                // Two slots of the ring of turns, the less loaded, as pick_of_two() in
                // bpf/lb/admit.h has it.
                let slots = self.turns.order.len() as u64;
                let first = hash.checked_rem(slots)?;
                let mut second = (mixed(hash, 3)).checked_rem(slots - 1).unwrap_or(0);
                second += u64::from(second >= first && slots > 1);
                let [first, second] = [first, second].map(|at| self.turns.order[at as usize]);
                Some(match servers.open(first) < servers.open(second) + 1 {
                    true => first,
                    false => second,
                })
            }
            CookiePick::Plan if self.planned < self.plan.len() => {
                self.planned += 1;
                Some(self.plan[self.planned - 1])
            }
            CookiePick::Plan => self.turns.next(),
            CookiePick::Least => servers.working().min_by_key(|of| servers.open(*of)),
        }
    }
}

impl KeepingWay for Cookies {
    fn update(&mut self, servers: &Servers, _: PoolUpdate, now_s: u64) -> Result<(), IdError> {
        Hashing::update(&mut self.turns, servers, PoolUpdate::Left(0));
        self.tick(servers);
        self.assign(servers, now_s)
    }

    fn open(&mut self, packet: &mut ConnPacket, servers: &Servers) -> Option<u32> {
        let server = self.pick(packet.hash, servers)?;
        let epoch = self.keys.current();
        let key = self.keys.get(epoch)?;
        let id = self.ids[server as usize];
        packet.token = cookie::encode(&tuple(packet.hash), key, epoch, id, &self.layout);
        Some(server)
    }

    fn find(&mut self, packet: &ConnPacket) -> Option<u32> {
        let (_, id) = cookie::decode(&tuple(packet.hash), &self.keys, packet.token, &self.layout)?;
        self.routes[usize::from(id)]
    }

    fn tick(&mut self, servers: &Servers) {
        if self.pick != CookiePick::Plan {
            return;
        }
        let loaded: Vec<Loaded> = servers
            .members()
            .into_iter()
            .map(|member| Loaded {
                load: Some(f64::from(servers.open(member.id))),
                member,
            })
            .collect();
        let flows = loaded.len().max(self.planned);
        self.plan = select::least_loaded(&loaded, 1.0, PLAN_AHEAD * flows);
        self.planned = 0;
    }

    fn rotate(&mut self) {
        self.rotations += 1;
        let key = CookieKey::from_words([self.rotations, 3]);
        let current = self.keys.current();
        let before = self.keys.get(current).copied();
        self.keys = Keys::new(current.other(), key, before);
    }
}

/// Slots of a partition, of all second-tier balancers together (`CONN_TOKEN_BITS`).
const TOKENS: u32 = 1 << 15;
/// More second-tier balancers cannot be distinguished.
const TIERS_MAX: u16 = 16;

/// Tokens that name a slot: which second-tier balancer, then which slot of it. The tuple gives the
/// partition.
struct Slots {
    turns: Turns,
    tiers: u16,
    partitions: u32,
    /// By partition and token: whose slot it is.
    slots: Vec<Option<(u64, u32)>>,
    /// By partition and balancer.
    free: Vec<Vec<u32>>,
    /// For connections that found no slot.
    table: Lru,
}

impl Slots {
    fn new(servers: &Servers, balancers: u16, connections: u32) -> Self {
        let tiers = balancers.min(TIERS_MAX).next_power_of_two();
        // Twice as many as are expected at a time.
        let partitions = (2 * connections).div_ceil(TOKENS).max(1);
        let of_tier = TOKENS / u32::from(tiers);
        let free = (0..partitions * u32::from(tiers)).map(|place| {
            let first = place % u32::from(tiers) * of_tier;
            (first..first + of_tier).rev().collect()
        });
        Self {
            turns: Turns::new(servers),
            tiers,
            partitions,
            slots: vec![None; (partitions * TOKENS) as usize],
            free: free.collect(),
            table: Lru::new(usize::MAX),
        }
    }

    fn slot_of(&self, packet: &ConnPacket) -> usize {
        let partition = tuple(packet.hash).partition(1, self.partitions);
        (partition * TOKENS + packet.token % TOKENS) as usize
    }

    fn free_of(&mut self, packet: &ConnPacket, tier: u32) -> &mut Vec<u32> {
        let partition = tuple(packet.hash).partition(1, self.partitions);
        &mut self.free[(partition * u32::from(self.tiers) + tier) as usize]
    }

    fn tier(&self, token: u32) -> u32 {
        token % TOKENS / (TOKENS / u32::from(self.tiers))
    }
}

/// A token that names no slot.
const NO_TOKEN: u32 = u32::MAX;

impl KeepingWay for Slots {
    fn update(&mut self, servers: &Servers, update: PoolUpdate, _: u64) -> Result<(), IdError> {
        Hashing::update(&mut self.turns, servers, update);
        Ok(())
    }

    fn open(&mut self, packet: &mut ConnPacket, _: &Servers) -> Option<u32> {
        let server = self.turns.next()?;
        let tier = u32::from(packet.balancer % self.tiers);
        packet.token = self.free_of(packet, tier).pop().unwrap_or(NO_TOKEN);
        match packet.token {
            NO_TOKEN => self.table.insert(packet.hash, server),
            _ => {
                let place = self.slot_of(packet);
                self.slots[place] = Some((packet.hash, server));
            }
        }
        Some(server)
    }

    fn find(&mut self, packet: &ConnPacket) -> Option<u32> {
        if packet.token == NO_TOKEN {
            return self.table.find(packet.hash);
        }
        let (hash, server) = self.slots[self.slot_of(packet)]?;
        (hash == packet.hash).then_some(server)
    }

    fn close(&mut self, packet: &ConnPacket) {
        if packet.token == NO_TOKEN {
            return self.table.remove(packet.hash);
        }
        let (place, tier) = (self.slot_of(packet), self.tier(packet.token));
        if self.slots[place].take().is_some() {
            self.free_of(packet, tier).push(packet.token);
        }
    }

    fn lose(&mut self, balancer: u16, open: &mut dyn Iterator<Item = ConnPacket>) {
        let tier = u32::from(balancer % self.tiers);
        let of_tier = TOKENS / u32::from(self.tiers);
        for partition in self.slots.chunks_mut(TOKENS as usize) {
            let slots = partition.iter_mut().skip((tier * of_tier) as usize);
            slots.take(of_tier as usize).for_each(|slot| *slot = None);
        }
        for packet in open.filter(|packet| packet.token != NO_TOKEN) {
            if self.tier(packet.token) == tier {
                let place = self.slot_of(&packet);
                self.slots[place] = Some((packet.hash, packet.on));
            }
        }
    }
}
