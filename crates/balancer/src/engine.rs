// SPDX-License-Identifier: Apache-2.0
//! The daemon's state and everything that changes it.
//!
//! One `Engine` sits behind a mutex. The control loop calls [`Engine::tick`]
//! once per interval; the API and signals call the rest. It does no I/O of its
//! own but through the [`DataPlane`], and takes the time as an argument.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use causeway_api::Moment;
use causeway_api::balancer::{Change, Difference, DropStep, HeldVip, Move, NextHopView};
use causeway_core::health::{Check, Silence};
use causeway_dataplane::{RealId, Vip};
use causeway_service::config::plural;
use tracing::info;

use super::agent_reports::AgentReports;
use super::discovery::FoundReals;
use super::fleet::{self, Membership};
use super::interval::Round;
use super::peers::PeerSteering;
use super::plane::{DataPlane, Route};
use super::pool::Pool;
use super::real_counters::{CountersOfReals, RealCounters};
use super::state_dir::{Down, KeptState, SetByHand};
use super::sync::Way;
use super::timeline::DropSteps;
use super::visits::{FEW, Turns};
use super::{by_hand, discovery};
use crate::config::{BalancerConfig, Control, Fragments, SharedVip, VipConfig};

/// How long the default route's neighbour may take to answer when it is new.
pub const GATEWAY_TIMEOUT: Duration = Duration::from_secs(3);
/// VIPs that an error names.
const NAMED_MAX: usize = 20;
/// The most lines in the log of what one reload has changed.
const CHANGES_LOGGED: usize = 1000;

/// Why a request was refused.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No such VIP or real.
    #[error("{0}")]
    NotFound(String),
    /// The state does not allow it.
    #[error("{0}")]
    Conflict(String),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The data plane failed. The message has all causes, so that they are no `source`.
    #[error("{0:#}")]
    Plane(anyhow::Error),
}

impl EngineError {
    /// With what was done all the same.
    pub(super) fn with_note(self, note: &str) -> Self {
        let with = |text: String| format!("{text}; {note}");
        match self {
            Self::NotFound(text) => Self::NotFound(with(text)),
            Self::Conflict(text) => Self::Conflict(with(text)),
            Self::Invalid(text) => Self::Invalid(with(text)),
            Self::Plane(error) => Self::Plane(error),
        }
    }
}

impl From<anyhow::Error> for EngineError {
    fn from(error: anyhow::Error) -> Self {
        Self::Plane(error)
    }
}

/// The balancer's state.
pub struct Engine {
    pub(super) plane: Box<dyn DataPlane>,
    pub(super) config: BalancerConfig,
    /// What the file said when it was read last.
    pub(super) file: BalancerConfig,
    /// What operators have set in the place of that.
    pub(super) by_hand: Vec<SetByHand>,
    /// Its fleet, if it is a member of one.
    pub(super) fleet: Option<Membership>,
    /// Reals that discovery found, by the VIP's address, port and protocol.
    pub(super) found: HashMap<String, FoundReals>,
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
    /// `None` before the first configuration.
    pub(super) way: Option<Way>,
    /// How the next hops stood at the last look.
    pub(super) next_hops: Vec<NextHopView>,
    /// Reals on the link itself, by the last look.
    pub(super) on_link: HashSet<IpAddr>,
    /// VIPs that this host holds, where that does harm.
    pub(super) held_vips: Vec<HeldVip>,
    /// What is wrong with the data plane's hold in the kernel.
    pub(super) hold_error: Option<String>,
    /// Looks in succession that have found its program on no interface.
    pub(super) looks_lost: u32,
    /// A way that the next change may want.
    pub(super) offered: Option<Way>,
    /// What the last change has left to do, and why it is not done.
    pub(super) unfinished: Option<String>,
    /// VIPs and reals that are to be removed from the data plane.
    pub(super) gone: HashSet<Vip>,
    pub(super) gone_reals: HashSet<RealId>,
    /// Whether there may be others in it that are to be removed.
    pub(super) may_hold_others: bool,
    /// How many reals there are, and up to how many all are looked at in each interval.
    pub(super) reals: usize,
    pub(crate) few: usize,
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
    pub(super) held_flows: (u64, HashMap<RealId, u64>),
    pub(super) last_histograms_ns: u64,
    pub(super) last_window_ns: u64,
    /// What each turn of this round does beside its looks.
    pub(super) round: Round,
    /// When a step of the timelines ended; `None` before the first began.
    pub(super) last_step_ns: Option<u64>,
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
        let found = discovery::resume(&file, found, now);
        let file = discovery::over(file, &found);
        let mut engine = Self {
            plane,
            config: file.clone(),
            file,
            by_hand: kept.by_hand,
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
            way: None,
            next_hops: Vec::new(),
            on_link: HashSet::new(),
            held_vips: Vec::new(),
            hold_error: None,
            looks_lost: 0,
            offered: None,
            gone: HashSet::new(),
            gone_reals: HashSet::new(),
            may_hold_others: true,
            reals: 0,
            few: FEW,
            turns: Turns::default(),
            unfinished: None,
            reports: AgentReports::default(),
            peers: PeerSteering::default(),
            last_tick: None,
            held_flows: (0, HashMap::new()),
            last_histograms_ns: 0,
            last_window_ns: 0,
            round: Round::default(),
            last_step_ns: None,
        };
        // A member's are in the book, and what has still to be written there.
        engine.by_hand = engine.by_hand_of_fleet();
        let (config, by_hand) = engine.in_force(&engine.file, &engine.by_hand)?;
        by_hand::tell_gone(&engine.file, &engine.by_hand, &by_hand);
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

    /// Whether the way for `route` is in force.
    pub fn has_way(&self, route: &Route) -> bool {
        self.way.as_ref().is_some_and(|way| way.route == *route)
    }

    /// Takes a way that was found while the engine was not locked.
    pub fn offer(&mut self, way: Way) {
        self.offered = Some(way);
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

    /// Rings set at the end of intervals since the start, and the slots written for them.
    pub fn rings_set(&self) -> (u64, u64) {
        self.rings_set
    }

    /// When the last interval ended.
    pub fn last_tick(&self) -> Option<Moment> {
        self.last_tick
    }

    /// What agents have reported, to add to.
    pub fn reports(&self) -> &AgentReports {
        &self.reports
    }

    /// What the balancers of the same VIPs report.
    pub fn peers(&self) -> &PeerSteering {
        &self.peers
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
        let found = discovery::with_former(&config, &self.file, &self.found);
        let mut config = discovery::over(config, &found);
        SharedVip::share(&mut config.vips, &self.file.vips);
        let (in_force, by_hand) = self.in_force(&config, &self.by_hand)?;
        let changes = in_force.changes(&self.config);
        self.replace(in_force)?;
        log_changes(&changes);
        by_hand::tell_gone(&config, &self.by_hand, &by_hand);
        (self.file, self.by_hand, self.found) = (config, by_hand, found);
        let asked: HashSet<String> = self.asked_for().iter().map(|vip| vip.endpoint()).collect();
        self.found.retain(|vip, _| asked.contains(vip));
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
        let found = discovery::with_former(config, &self.file, &self.found);
        let with_found = discovery::over(config.clone(), &found);
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
        config.vips.push(vip);
        self.replace(config)
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
        change(&mut config.vips[index])?;
        self.can_control(&config.vips[index])?;
        self.replace(config)
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
