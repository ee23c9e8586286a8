// SPDX-License-Identifier: Apache-2.0
//! The daemon's state and everything that changes it.
//!
//! One `Engine` sits behind a mutex. The control loop calls [`Engine::tick`]
//! once per interval; the API and signals call the rest. It does no I/O of its
//! own but through the [`DataPlane`], and takes the time as an argument.
//!
//! What has a state of its own is a type of its own, in a file that does not know the engine: the
//! way and its next hops, the attachment, what was found, what is set by hand, turns and rounds,
//! peers. What changes several of them at once, or the data plane with them, is the engine's.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use causeway_api::Moment;
use causeway_api::balancer::{Change, Difference, DropStep, Move, Override, RealChange};
use causeway_api::fleet::PeersView;
use causeway_core::health::{Check, HealthState, Silence};
use causeway_dataplane::{RealId, Vip};
use causeway_netio::OwnAddress;
use causeway_service::config::plural;
use tracing::info;

use super::agent_reports::AgentReports;
use super::attachment::Attachment;
use super::by_hand::{ByHand, find_real, put};
pub use super::error::EngineError;
use super::fleet::{self, Membership};
use super::found::{FoundByVip, FoundChange, FoundReals};
use super::next_hop::{NextHops, Way};
use super::peers::PeerSteering;
use super::plane::{DataPlane, Found, Route};
use super::pool::Pool;
use super::real_counters::{CountersOfReals, RealCounters};
use super::state_dir::{Down, KeptState, SetByHand};
use super::timeline::DropSteps;
use super::vips_on_host::VipsOnHost;
use super::visits::{Round, Turns};
use crate::config::{
    BalancerConfig, Control, Discover, Fragments, RealConfig, SharedVip, VipConfig, WEIGHT_MAX,
};

/// VIPs that an error names.
const NAMED_MAX: usize = 20;
/// The most lines in the log of what one reload has changed.
const CHANGES_LOGGED: usize = 1000;

/// The balancer's state.
pub struct Engine {
    pub(super) plane: Box<dyn DataPlane>,
    pub(super) config: BalancerConfig,
    /// What the file said when it was read last.
    pub(super) file: BalancerConfig,
    /// What operators have set in the place of that.
    pub(super) by_hand: ByHand,
    /// Its fleet, if it is a member of one.
    pub(super) fleet: Option<Membership>,
    /// Reals that discovery found.
    pub(super) found: FoundByVip,
    /// Reals that a former daemon found to be down.
    pub(super) former_down: HashSet<Down>,
    pub(super) pools: Vec<Pool>,
    pub(super) counters: CountersOfReals,
    /// Health of the reals that are probed.
    pub(super) checks: HashMap<RealId, Check>,
    /// Reals whose checks begin down, because a former daemon had them out of the ring.
    pub(super) begin_down: HashSet<RealId>,
    /// What clients of probed reals say, where it is asked for.
    pub(super) silences: HashMap<RealId, Silence>,
    pub(super) next_hops: NextHops,
    vips_on_host: VipsOnHost,
    attachment: Attachment,
    /// What the last change has left to do, and why it is not done.
    pub(super) unfinished: Option<String>,
    /// VIPs and reals that are to be removed from the data plane.
    pub(super) gone: HashSet<Vip>,
    pub(super) gone_reals: HashSet<RealId>,
    /// Whether there may be others in it that are to be removed.
    pub(super) may_hold_others: bool,
    /// How many reals there are.
    pub(super) reals: usize,
    pub(super) turns: Turns,
    /// What agents have reported.
    pub(super) reports: AgentReports,
    /// What the balancers of the same VIPs report.
    pub(super) peers: PeerSteering,
    /// Settles who begins in rings of turns, for balancers not to begin alike.
    pub(super) seed: u64,
    /// VIP addresses that are announced to routers.
    announced: BTreeSet<IpAddr>,
    /// Whether the routers took the last announcement; `None`: without `[announce]`.
    announce_up: Option<bool>,
    /// Whether the file was taken when it was read last, and when one was.
    reloads: Reloads,
    pub(super) moves: VecDeque<Move>,
    /// What was dropped.
    pub(super) drops: DropSteps,
    /// Rings that intervals have set, and the slots of these.
    pub(super) rings_set: (u64, u64),
    pub(super) last_tick: Option<Moment>,
    /// How many looks at the flow table have ended, and the connections that the last one has found
    /// open, by real.
    pub(super) open_flows: (u64, HashMap<RealId, u64>),
    pub(super) round: Round,
}

/// What became of the file when it was read.
#[derive(Debug, Clone, Copy)]
pub struct Reloads {
    /// Whether what it says is in force.
    pub successful: bool,
    /// When what is in force was taken, nanoseconds since 1970.
    pub success_ns: u64,
}

impl Engine {
    /// Takes a loaded data plane and makes it follow `config`. Weights that a
    /// former daemon found out are read off its rings, and who was out of them.
    pub fn start(
        plane: Box<dyn DataPlane>,
        config: BalancerConfig,
        now: Moment,
    ) -> anyhow::Result<Self> {
        Self::succeed(plane, config, KeptState::default(), None, now)
    }

    /// The same with what a former daemon kept, of its fleet, too.
    pub(crate) fn succeed(
        plane: Box<dyn DataPlane>,
        file: BalancerConfig,
        kept: KeptState,
        mut fleet: Option<Membership>,
        now: Moment,
    ) -> anyhow::Result<Self> {
        let found = match &mut fleet {
            Some(fleet) => fleet.with_told(kept.found),
            None => kept.found,
        };
        let found = FoundByVip::resume(&file, found, now);
        let file = found.over(file);
        let mut engine = Self {
            plane,
            config: file.clone(),
            file,
            by_hand: ByHand::new(kept.by_hand),
            fleet,
            found,
            former_down: kept.down.into_iter().collect(),
            begin_down: HashSet::new(),
            reloads: Reloads {
                successful: true,
                success_ns: now.realtime_ns,
            },
            pools: Vec::new(),
            counters: CountersOfReals::default(),
            checks: HashMap::new(),
            seed: now.realtime_ns,
            announced: BTreeSet::new(),
            announce_up: None,
            silences: HashMap::new(),
            moves: VecDeque::new(),
            drops: DropSteps::default(),
            rings_set: (0, 0),
            next_hops: NextHops::default(),
            vips_on_host: VipsOnHost::default(),
            attachment: Attachment::default(),
            gone: HashSet::new(),
            gone_reals: HashSet::new(),
            may_hold_others: true,
            reals: 0,
            turns: Turns::default(),
            unfinished: None,
            reports: AgentReports::default(),
            peers: PeerSteering::default(),
            last_tick: None,
            open_flows: (0, HashMap::new()),
            round: Round::default(),
        };
        // A member's are in the book, and what has still to be written there.
        engine.by_hand = engine.by_hand_of_fleet();
        let (config, by_hand) = engine.in_force(&engine.file, &engine.by_hand)?;
        engine.by_hand.tell_gone(&engine.file, &by_hand);
        (engine.config, engine.by_hand) = (config.clone(), by_hand);
        engine.sync(config, Some(now.monotonic_ns))?;
        engine.former_down.clear();
        Ok(engine)
    }

    /// The configuration in force, changes at run time included.
    pub fn config(&self) -> &BalancerConfig {
        &self.config
    }

    /// What the last change has left to do, and why it is not done.
    pub fn unfinished(&self) -> Option<&str> {
        self.unfinished.as_deref()
    }

    /// What became of the file when it was read last.
    pub fn reloads(&self) -> Reloads {
        self.reloads
    }

    /// Notes that the file was taken, at this moment, or refused.
    pub fn note_reload(&mut self, taken_ns: Option<u64>) {
        self.reloads = Reloads {
            successful: taken_ns.is_some(),
            success_ns: taken_ns.unwrap_or(self.reloads.success_ns),
        };
    }

    /// The data plane, to read counters.
    pub fn plane(&self) -> &dyn DataPlane {
        self.plane.as_ref()
    }

    /// The VIPs at work, in the configuration's order.
    pub fn pools(&self) -> &[Pool] {
        &self.pools
    }

    /// The way to the reals, and its next hops by the last look.
    pub fn next_hops(&self) -> &NextHops {
        &self.next_hops
    }

    /// Takes a way that was found while the engine was not locked.
    pub fn offer(&mut self, way: Way) {
        self.next_hops.offer(way);
    }

    /// Takes what a look for `route` has found, unless the way is another by now.
    pub(super) fn take_look(
        &mut self,
        route: &Route,
        reals: &[IpAddr],
        found: anyhow::Result<Found>,
        now: Moment,
    ) {
        let plane = self.plane.as_mut();
        self.next_hops.take_look(plane, route, reals, found, now);
    }

    /// The VIPs that are addresses of this host, by the last look.
    pub fn vips_on_host(&self) -> &VipsOnHost {
        &self.vips_on_host
    }

    /// Takes the addresses that this host has.
    pub(super) fn take_own_addresses(&mut self, own: &[OwnAddress]) {
        self.vips_on_host.take_addresses(&self.config, own);
    }

    /// How the data plane was attached at the last look.
    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// Looks how it is attached, and has it repair what it can.
    pub(super) fn mend(&mut self) {
        let announces = self.config.announce.is_some();
        self.attachment.mend(self.plane.as_mut(), announces);
    }

    /// Whether this VIP address is announced to routers.
    pub fn is_announced(&self, address: IpAddr) -> bool {
        self.announced.contains(&address)
    }

    /// Whether routers took the last announcement; `None`: without `[announce]`.
    pub fn announce_up(&self) -> Option<bool> {
        self.announce_up
    }

    /// Takes whether they did.
    pub fn set_announce_up(&mut self, up: Option<bool>) {
        self.announce_up = up;
    }

    /// Takes the VIP addresses that are announced to routers.
    pub fn set_announced(&mut self, announced: BTreeSet<IpAddr>) {
        self.announced = announced;
    }

    /// CLOCK_MONOTONIC when CLOCK_REALTIME was `realtime_ns`, by how they stood
    /// at the last interval: the latter may have been set since.
    pub fn monotonic(&self, realtime_ns: u64) -> u64 {
        let Some(last) = self.last_tick else {
            return 0;
        };
        match last.realtime_ns.checked_sub(realtime_ns) {
            Some(ago) => last.monotonic_ns.saturating_sub(ago),
            None => last
                .monotonic_ns
                .saturating_add(realtime_ns - last.realtime_ns),
        }
    }

    pub fn counters(&self, id: RealId) -> Option<&RealCounters> {
        self.counters.get(id)
    }

    /// Estimate of a real's open connections.
    pub fn active(&self, id: RealId) -> u64 {
        let now_ns = self.last_tick.map_or(0, |now| now.monotonic_ns);
        self.counters(id)
            .map_or(0, |counters| counters.active(now_ns))
    }

    /// Has a turn look at as many reals as half an interval is enough for, after one that `took` so
    /// long.
    pub(super) fn bound_turns(&mut self, took: Duration) {
        self.turns.bound(self.config.control.interval_ns, took);
    }

    /// In how many intervals all VIPs that are looked at are, each once.
    pub fn control_turns(&self) -> usize {
        self.turns.of_round()
    }

    /// Rings set at the end of intervals since the start, and the slots written for them.
    pub fn rings_set(&self) -> (u64, u64) {
        self.rings_set
    }

    /// When the last interval ended.
    pub fn last_tick(&self) -> Option<Moment> {
        self.last_tick
    }

    /// What changes are dated by, nanoseconds since 1970: when the last interval ended, and before
    /// the first one now.
    pub fn realtime_ns(&self) -> u64 {
        self.last_tick.unwrap_or_else(Moment::now).realtime_ns
    }

    /// What agents have reported, to add to.
    pub fn reports(&self) -> &AgentReports {
        &self.reports
    }

    /// What the balancers of the same VIPs report.
    pub fn peers(&self) -> &PeerSteering {
        &self.peers
    }

    /// How the exchange with them stands.
    pub fn peers_view(&self, now_ns: u64) -> PeersView {
        self.peers.view(&self.pools, now_ns)
    }

    /// What was dropped in the steps that ended after `since_ns`.
    pub fn drops(&self, since_ns: u64) -> Vec<DropStep> {
        self.drops.views(since_ns)
    }

    /// Recent changes of weight, oldest first.
    pub fn moves(&self) -> impl Iterator<Item = &Move> {
        self.moves.iter()
    }

    /// Replaces the configuration as a whole, or leaves everything as it was.
    /// Counters, flows, and the measurements of reals that stay are kept, and what is set
    /// by hand.
    pub fn reload(&mut self, config: BalancerConfig) -> Result<(), EngineError> {
        let held = self.held_of(&config);
        self.set_held(held.clone());
        self.tell_fleet();
        self.leaves_a_vip(&config)?;
        match held.is_empty() {
            true => self.reload_confirmed(config),
            false => Err(fleet::refusal(&held)),
        }
    }

    /// The same, whatever it takes away from a fleet: an operator has seen that.
    pub fn reload_confirmed(&mut self, config: BalancerConfig) -> Result<(), EngineError> {
        self.check_file(&config)?;
        let found = self.found.with_former(&config, &self.file);
        let mut config = found.over(config);
        SharedVip::share(&mut config.vips, &self.file.vips);
        let (in_force, by_hand) = self.in_force(&config, &self.by_hand)?;
        let changes = in_force.changes(&self.config);
        self.replace(in_force)?;
        log_changes(&changes);
        self.by_hand.tell_gone(&config, &by_hand);
        (self.file, self.by_hand, self.found) = (config, by_hand, found);
        self.found.keep_asked_for(&self.file);
        self.set_held(Vec::new());
        Ok(())
    }

    /// Refuses what a reload would refuse, as far as that can be known without a change.
    pub fn check_reload(&self, config: &BalancerConfig) -> Result<(), EngineError> {
        self.check_file(config)?;
        self.leaves_a_vip(config)?;
        let held = self.held_of(config);
        match held.is_empty() {
            true => Ok(()),
            false => Err(fleet::refusal(&held)),
        }
    }

    /// Refuses a file that has lost its VIPs, as one that was cut short or made of an empty template.
    /// A fleet holds that by `max_removed`.
    fn leaves_a_vip(&self, config: &BalancerConfig) -> Result<(), EngineError> {
        let serves = self.config.vips.len();
        let loses = config.vips.is_empty() && !self.file.vips.is_empty() && serves > 0;
        if !loses || config.allow_empty || self.file.fleet.is_some() {
            return Ok(());
        }
        Err(EngineError::Conflict(format!(
            "the file has no [[vip]], and {} would go: if that is meant, set allow_empty = true under [reload]",
            plural(serves, "VIP"),
        )))
    }

    /// The same without what has only to be confirmed.
    pub fn check_file(&self, config: &BalancerConfig) -> Result<(), EngineError> {
        if let Some(why) = config.refused_by_reload(&self.config) {
            return Err(EngineError::Conflict(why));
        }
        Ok(self.check_ids(&self.in_force(config, &self.by_hand)?.0)?)
    }

    /// What a reload would change in what is in force.
    pub fn difference(&self, config: &BalancerConfig) -> Difference {
        let found = self.found.with_former(config, &self.file);
        let with_found = found.over(config.clone());
        let in_force = self.in_force(&with_found, &self.by_hand);
        Difference {
            changes: in_force.map_or_else(|_| Vec::new(), |(of, _)| of.changes(&self.config)),
            refused: self
                .check_reload(config)
                .err()
                .iter()
                .map(ToString::to_string)
                .collect(),
        }
    }

    pub(super) fn replace(&mut self, config: BalancerConfig) -> Result<(), EngineError> {
        Ok(self.sync(config, None)?)
    }

    /// Adds a VIP at run time; it lasts until the next reload or restart.
    pub fn add_vip(&mut self, vip: impl Into<SharedVip>) -> Result<(), EngineError> {
        let vip = vip.into();
        self.goes_by_itself()?;
        let taken = |other: &SharedVip| other.name == vip.name || other.key() == vip.key();
        if let Some(other) = self.config.vips.iter().find(|other| taken(other)) {
            return Err(EngineError::Conflict(format!(
                "vip {} exists already; remove it first, or change its reals",
                other.name
            )));
        }
        let forwards = |other: &&SharedVip| {
            let of = (other.address, other.protocol, other.fragments);
            of == (vip.address, vip.protocol, Fragments::Forward)
        };
        if vip.fragments == Fragments::Forward
            && let Some(other) = self.config.vips.iter().find(forwards)
        {
            return Err(EngineError::Conflict(format!(
                "vip {} takes the {} fragments of {}, which one vip of an address and protocol may; leave fragments = \"forward\" out",
                other.name, vip.protocol, vip.address
            )));
        }
        self.can_control(&vip)?;
        let mut config = self.config.clone();
        config.vips.push(vip.clone());
        self.replace(config)?;
        self.by_hand.forget_added(&vip, |_| false);
        Ok(())
    }

    fn can_control(&self, vip: &VipConfig) -> Result<(), EngineError> {
        if vip.latency.is_told() && self.config.agent_reports.is_none() {
            return Err(EngineError::Conflict(format!(
                "latency = \"{}\" needs reports of agents, and this daemon does not listen for them; add [agent_reports] with `listen` to its file and restart",
                vip.latency
            )));
        }
        match vip.control != Control::Off && !self.config.measure {
            false => Ok(()),
            true => Err(EngineError::Conflict(
                "the controller needs measured latency, and this daemon runs without it; set enabled = true under [measure] and restart".to_owned(),
            )),
        }
    }

    /// Removes a VIP until the next reload or restart.
    pub fn remove_vip(&mut self, name: &str) -> Result<(), EngineError> {
        self.goes_by_itself()?;
        let index = self.find_vip(name)?;
        let mut config = self.config.clone();
        config.vips.remove(index);
        self.replace(config)
    }

    /// Changes a VIP or its reals until the next reload or restart.
    pub fn change_vip(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut VipConfig) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        self.goes_by_itself()?;
        let index = self.find_vip(name)?;
        let mut config = self.config.clone();
        let before = config.vips[index].clone();
        change(&mut config.vips[index])?;
        let vip = config.vips[index].clone();
        self.can_control(&vip)?;
        self.replace(config)?;
        let had = |address: IpAddr| before.reals.iter().any(|real| real.address == address);
        self.by_hand.forget_added(&vip, had);
        Ok(())
    }

    /// Changes a real, for as long as it differs from the file.
    pub fn change_real(
        &mut self,
        vip: &str,
        real: &str,
        change: &RealChange,
        now_ns: u64,
    ) -> Result<(), EngineError> {
        let vip = self.find_vip(vip)?;
        let real = find_real(&self.config.vips[vip], real)?;
        self.change_reals(&[(vip, real)], change, now_ns)
    }

    /// Where a server is: the index of each VIP that has it, and that of its real there.
    pub(super) fn members_at(&self, server: &str) -> Result<Vec<(usize, usize)>, EngineError> {
        let address: Option<IpAddr> = server.parse().ok();
        let vips = self.config.vips.iter().enumerate();
        let places = vips.filter_map(|(at, vip)| {
            let mut reals = vip.reals.iter();
            Some((at, reals.position(|real| Some(real.address) == address)?))
        });
        let places: Vec<_> = places.collect();
        match places.is_empty() {
            true => Err(EngineError::NotFound(format!(
                "no vip has a real `{server}`"
            ))),
            false => Ok(places),
        }
    }

    /// The same for all these reals, or for none.
    pub(super) fn change_reals(
        &mut self,
        places: &[(usize, usize)],
        change: &RealChange,
        now_ns: u64,
    ) -> Result<(), EngineError> {
        if let Some(weight) = change.weight.filter(|weight| *weight > WEIGHT_MAX) {
            return Err(EngineError::Invalid(format!(
                "weight {weight} is out of range; use 0 (no new connections) to {WEIGHT_MAX}"
            )));
        }
        let changed = places.iter().map(|(vip, real)| {
            let vip = &self.config.vips[*vip];
            (vip.endpoint(), vip.reals[*real].address)
        });
        let changed: Vec<(String, IpAddr)> = changed.collect();
        if self.follows_book() {
            let states = changed.into_iter().map(|(vip, real)| {
                let set = self.by_hand.with(&vip, real, change);
                ((vip.as_str().into(), real), set)
            });
            let states: Vec<_> = states.collect();
            return self.want_by_hand(states);
        }
        let mut config = self.config.clone();
        for (vip, real) in places {
            put(&mut config.vips[*vip].reals[*real], change);
        }
        self.replace(config)?;
        for (vip, real) in changed {
            self.by_hand.set(vip, real, change, now_ns);
        }
        (_, self.by_hand) = self.by_hand.over(&self.file);
        Ok(())
    }

    /// What is set by hand and differs from the file.
    pub fn overrides(&self) -> Vec<Override> {
        self.by_hand.overrides(&self.file)
    }

    /// Has the file's settings hold again: for one real, for the reals of one VIP, or for
    /// all. Gives what was dropped.
    pub fn drop_overrides(
        &mut self,
        vip: Option<&str>,
        real: Option<&str>,
    ) -> Result<Vec<Override>, EngineError> {
        let vip = vip.map(|vip| self.find_vip(vip)).transpose()?;
        let vip = vip.map(|index| &self.config.vips[index]);
        let real = match (vip, real) {
            (Some(vip), Some(real)) => {
                let address = real.parse().ok();
                let set = address.and_then(|address| self.by_hand.of(&vip.endpoint(), address));
                Some(match set {
                    Some(set) => set.real,
                    None => vip.reals[find_real(vip, real)?].address,
                })
            }
            (None, Some(_)) => {
                return Err(EngineError::Invalid(
                    "a real is named without its vip".to_owned(),
                ));
            }
            (_, None) => None,
        };
        let vip = vip.map(|vip| vip.endpoint());
        let is_meant = |set: &SetByHand| {
            vip.as_ref().is_none_or(|vip| *vip == set.vip)
                && real.is_none_or(|real| real == set.real)
        };
        let (dropped, left) = self.by_hand.part(is_meant);
        if self.follows_book() {
            let before = self.overrides();
            let of = |set: &SetByHand| ((set.vip.as_str().into(), set.real), RealChange::default());
            self.want_by_hand(dropped.sets().iter().map(of))?;
            let after = self.overrides();
            let gone = |set: &Override| !after.contains(set);
            return Ok(before.into_iter().filter(gone).collect());
        }
        let mut config = self.config.clone();
        dropped.undo(&self.file, &mut config);
        let before = self.overrides();
        self.replace(config)?;
        self.by_hand = left;
        let after = self.overrides();
        Ok(before
            .into_iter()
            .filter(|set| !after.contains(set))
            .collect())
    }

    /// What the next daemon is to know.
    pub fn kept(&self) -> KeptState {
        KeptState {
            by_hand: [self.by_hand.sets(), &self.dropped_by_hand()].concat(),
            down: down_reals(&self.pools, &self.checks, &self.begin_down),
            found: self.found.kept(),
        }
    }

    /// The VIPs whose reals are asked for, as the file has them.
    pub fn asked_for(&self) -> Vec<SharedVip> {
        let vips = self.file.vips.iter();
        vips.filter(|vip| vip.discover.is_some()).cloned().collect()
    }

    /// Takes an answer about the reals of a VIP, by its address, port and protocol. Like changes by
    /// the API it leaves what is set by hand as it is.
    pub fn handle_found(
        &mut self,
        now: Moment,
        vip: &str,
        answer: Result<Vec<RealConfig>, String>,
    ) -> Result<(), EngineError> {
        let before = self.found.of(vip).cloned().unwrap_or_default();
        let outcome = self.change_found(vip, |found, rules, named| {
            found.handle_answer(now, answer, rules, named)
        });
        let mut vips = self.file.vips.iter();
        if let Some(of) = vips.find(|of| of.endpoint() == vip) {
            let refused = outcome.as_ref().err().map(ToString::to_string);
            self.found.tell(&of.name, vip, &before, refused);
        }
        outcome
    }

    /// Takes the answer that is held for a VIP.
    pub fn accept_found(&mut self, now: Moment, vip: &str) -> Result<(), EngineError> {
        let vip = &self.config.vips[self.find_vip(vip)?];
        let (name, endpoint) = (vip.name.clone(), vip.endpoint());
        let held = self.found.of(&endpoint).and_then(FoundReals::held);
        if held.is_none() {
            return Err(EngineError::Conflict(format!(
                "no answer is held for vip {name}"
            )));
        }
        self.change_found(&endpoint, |found, _, _| found.accept(now) == Some(true))
    }

    /// Lets reals go whose time is over at `now_ns`, CLOCK_MONOTONIC; and why those of some VIPs
    /// stay.
    pub fn expire_found(&mut self, now_ns: u64) -> Vec<String> {
        let vips = self.found.vips().into_iter();
        let expire = |vip: String| {
            let expired =
                self.change_found(&vip, |found, rules, _| found.handle_timeout(now_ns, rules));
            expired.err().map(|error| format!("{vip}: {error}"))
        };
        vips.filter_map(expire).collect()
    }

    /// Changes what was found of a VIP, and brings it into force; or leaves all as it was.
    fn change_found(
        &mut self,
        vip: &str,
        change: impl FnOnce(&mut FoundReals, &Discover, usize) -> bool,
    ) -> Result<(), EngineError> {
        let Some(change) = self.found.change(&self.file, vip, change) else {
            return Ok(());
        };
        match self.take_found(&change) {
            Ok(by_hand) => {
                (self.file, self.by_hand) = (change.file, by_hand);
                self.tell_fleet();
                Ok(())
            }
            Err(error) => {
                self.found.take_back(change);
                Err(error)
            }
        }
    }

    /// Puts such a change in force; what is set by hand then.
    fn take_found(&mut self, change: &FoundChange) -> Result<ByHand, EngineError> {
        let (over, by_hand) = self.in_force(&change.file, &self.by_hand)?;
        // A fleet's API adds and removes nothing.
        let config = match self.fleet {
            Some(_) => over,
            None => change.within(self.config.clone(), &over),
        };
        self.replace(config)?;
        Ok(by_hand)
    }

    /// The VIP at work of this name, or of this `address:port[/protocol]`.
    pub fn pool(&self, vip: &str) -> Result<&Pool, EngineError> {
        let at = self.find_vip(vip)?;
        let name = &self.config.vips[at].name;
        let pool = self.pools.get(at);
        pool.ok_or_else(|| EngineError::NotFound(format!("vip {name} is not at work")))
    }

    /// Index of the VIP of this name, or of this `address:port[/protocol]`.
    pub fn find_vip(&self, name: &str) -> Result<usize, EngineError> {
        let vips = &self.config.vips;
        let by_name = vips.iter().position(|vip| vip.name == name);
        let by_address = || {
            vips.iter().position(|vip| {
                let endpoint = causeway_service::config::endpoint(vip.address, vip.port);
                endpoint == name || vip.endpoint() == name
            })
        };
        by_name.or_else(by_address).ok_or_else(|| {
            let named = vips.iter().take(NAMED_MAX).map(|vip| vip.name.as_str());
            let named: Vec<&str> = named.collect();
            EngineError::NotFound(match vips.len() {
                0 => format!("there is no vip `{name}`; this balancer has none"),
                all if all > NAMED_MAX => format!(
                    "there is no vip `{name}`; this balancer has {} and {} more",
                    named.join(", "),
                    all - NAMED_MAX
                ),
                _ => format!(
                    "there is no vip `{name}`; this balancer has {}",
                    named.join(", ")
                ),
            })
        })
    }
}

/// Says what a reload has changed.
fn log_changes(changes: &[Change]) {
    for change in changes.iter().take(CHANGES_LOGGED) {
        info!("{change}");
    }
    let rest = changes.len().saturating_sub(CHANGES_LOGGED);
    if rest > 0 {
        info!("and {} more", plural(rest, "change"));
    }
}

/// The reals that their checks find to be down, and those whose checks are to begin so.
fn down_reals(
    pools: &[Pool],
    checks: &HashMap<RealId, Check>,
    begin_down: &HashSet<RealId>,
) -> Vec<Down> {
    let is_down = |id: RealId| match checks.get(&id) {
        Some(check) => check.state() == HealthState::Down,
        None => begin_down.contains(&id),
    };
    let probed = pools.iter().filter(|pool| pool.vip().health.is_some());
    let members = probed.flat_map(|pool| {
        let vip = pool.vip();
        pool.members()
            .map(move |(real, member)| (vip, real, member))
    });
    members
        .filter(|(_, _, member)| is_down(member.id))
        .map(|(vip, real, _)| Down {
            vip: vip.endpoint(),
            real: real.address,
        })
        .collect()
}
