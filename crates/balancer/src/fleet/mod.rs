// SPDX-License-Identifier: Apache-2.0
//! What makes a balancer a member of a fleet: the rules of `core`, with a store, a clock, a disk
//! and the engine around them.
//!
//! [`Fleet::round`] is all that it does again and again: renew the lease, read the store, pass it
//! to the rules, do what they say. It takes the time as an argument; [`start`] has it called, on a
//! thread of its own, as a store may be slow. The engine is held only while it follows a book.

#[cfg(test)]
mod agent_tests;
mod book_text;
mod dir_store;
mod etcd_store;
mod following;
mod joining;
mod kept;
mod namesake;
mod orders;
#[cfg(test)]
mod push_tests;
mod pushing;
mod reading;
mod runner;
mod secrets;
mod store;
#[cfg(test)]
mod store_tests;
mod telling;
mod tenure;
#[cfg(test)]
mod tests;
mod view;
mod watched;

use std::net::IpAddr;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use causeway_api::Moment;
use causeway_api::fleet::FleetView;
use causeway_core::agent_report::AgentFollows;
use causeway_core::control::merge::BalancerId;
use causeway_core::fleet::{
    Absence, FleetAction, FleetBook, FleetEvent, FleetMember, FleetRest, Hold, KeyNumber, Position,
    Removal, Stored,
};
use causeway_service::log_fault;
use tracing::{info, warn};

use self::book_text::{AckText, READS};
use self::dir_store::boot_id;
use self::kept::Kept;
use self::namesake::Namesake;
use self::pushing::{held_in, held_order, keep_unasked, removals};
use self::reading::{Reading, id_of, key_digest};
use self::secrets::{Secrets, keeps_former_cid};
use self::store::{Held, Store, StoreError};
use self::telling::agents_at;
use self::tenure::Tenure;
use self::watched::Watched;
use crate::config::{BalancerConfig, FleetConfig, cookie};
use crate::engine::Engine;
use crate::state_dir::{SetByHand, StateDir};

pub(crate) use self::following::{Following, Membership, Service};
pub(crate) use self::pushing::{held_at_start, no_fleet, refusal};
pub(crate) use self::runner::{FleetInbox, FleetOrder, FleetOrders, start};
pub(crate) use self::telling::{AgentPaths, Telling, ToldAgents};

/// Who has the engine.
pub(crate) trait HasEngine {
    /// Holds it.
    fn engine(&self) -> MutexGuard<'_, Engine>;
}

/// The number of a fleet's first key, if there are no cookies.
const NO_KEY: KeyNumber = 2;
/// Proposals in a row before the member waits for a moment.
const ROUNDS_MAX: usize = 100;

/// A member of a fleet.
pub(crate) struct Fleet {
    config: FleetConfig,
    id: BalancerId,
    boot: String,
    dir: StateDir,
    store: Box<dyn Store>,
    member: FleetMember,
    kept: Kept,
    /// Whether the disk lacks what is kept: to be written again.
    is_unsaved: bool,
    /// The last reading of the store.
    read: Reading,
    /// What the rules did last that is to be followed by another reading at once.
    progress: bool,
    tenure: Tenure,
    watched: Watched,
    /// What the book has by number or mark alone.
    secrets: Secrets,
    /// The same as it is on the disk.
    kept_secrets: Secrets,
    /// Where this member listens for agents.
    paths: AgentPaths,
    /// What it has said of itself last.
    said: Option<AckText>,
    namesake: Namesake,
    faults: Faults,
    /// What the file takes away that waits for an operator's word.
    held: Vec<Removal>,
}

/// What is wrong, for people: each is logged when it begins and when it ends.
#[derive(Debug, Default)]
struct Faults {
    store: Option<String>,
    hold: Option<String>,
}

impl Faults {
    fn store(&mut self, fault: Option<String>) {
        log_fault!(
            self.store,
            fault,
            "the fleet's store cannot be used, and the last good book holds: {}",
            "the fleet's store can be used again"
        );
    }

    fn hold(&mut self, fault: Option<String>) {
        log_fault!(
            self.hold,
            fault,
            "this member of the fleet keeps what it has: {}",
            "this member of the fleet goes on"
        );
    }
}

impl Fleet {
    /// A member with what it kept, and what the engine is to begin with.
    pub(crate) fn open(
        file: &BalancerConfig,
        config: &FleetConfig,
        by_hand: &[SetByHand],
    ) -> anyhow::Result<(Self, Membership)> {
        let dir = StateDir::new(&file.state_dir, &file.pin_dir);
        let store = store::open(config)?;
        let now_ns = Moment::now().monotonic_ns;
        Self::with(store, dir, file, config, by_hand, now_ns).map_err(anyhow::Error::msg)
    }

    fn with(
        store: Box<dyn Store>,
        dir: StateDir,
        file: &BalancerConfig,
        config: &FleetConfig,
        by_hand: &[SetByHand],
        now_ns: u64,
    ) -> Result<(Self, Membership), String> {
        let boot = boot_id();
        let kept = Kept::load(&dir, config, &boot).unwrap_or_else(|fault| {
            warn!("what this member of the fleet kept is lost, and it reads the store: {fault}");
            Kept::nothing()
        });
        let secrets = Secrets::load(&dir, &config.name).unwrap_or_else(|fault| {
            warn!("the keys that this member of the fleet kept are lost: {fault}");
            Secrets::default()
        });
        let book = kept.book.as_ref().map(|kept| kept.book.clone());
        let waits = book
            .as_ref()
            .is_some_and(|book| book.absence == Absence::Waits);
        // Whether the lease outlived the former daemon is not known.
        let in_service = kept.in_service && !kept.left && waits;
        let id = id_of(&config.member);
        let (member, _) = FleetMember::start(id, READS, book.clone(), in_service);
        let names = kept.book.iter().map(|kept| kept.names.clone());
        let mut fleet = Self {
            id,
            dir,
            store,
            member,
            read: Reading::before(names.flatten().collect()),
            progress: false,
            // When it left, only the former daemon knew: routers get the whole time again.
            tenure: Tenure::new(config.terms(), kept.left.then_some(now_ns)),
            watched: Watched::new(config.terms()),
            secrets: secrets.clone(),
            kept_secrets: secrets,
            paths: AgentPaths::default(),
            said: None,
            namesake: Namesake::new(&boot, &file.state_dir),
            boot,
            faults: Faults::default(),
            held: Vec::new(),
            kept,
            is_unsaved: false,
            config: config.clone(),
        };
        let own = fleet.member.book().map(Arc::as_ref);
        let in_use = fleet.secrets.kept_in_use(own);
        fleet.secrets.take(file, own, &in_use, &fleet.read);
        // The data plane follows it before any packet goes by the file alone.
        let following =
            match book {
                Some(book) => {
                    match fleet.following(&book, file) {
                        Ok(following) => {
                            // What is to be written about it is written at the first reading.
                            fleet.member.handle(FleetEvent::Applied(book.position));
                            Some(following)
                        }
                        // It may be long out of date, as that of a balancer that was off.
                        Err(fault) => {
                            let newer = fleet.book_of_store(file);
                            let newer = newer.filter(|of| of.book.position.follows(book.position));
                            Some(newer.ok_or_else(|| {
                                format!("the last good book of the fleet: {fault}")
                            })?)
                        }
                    }
                }
                None => fleet.book_of_store(file),
            };
        // What was set by hand while the store was away has still to be written.
        let mut membership = Membership {
            service: fleet.service(),
            ..Membership::default()
        };
        for set in by_hand {
            let of: following::RealKey = (set.vip.as_str().into(), set.real);
            let state = following::state_of(&set.set);
            let told = following.as_ref().and_then(|own| own.book.by_hand.get(&of));
            if following.is_some() && told.copied().unwrap_or_default() != state {
                membership.wants.insert(of, state);
            }
        }
        membership.found = fleet.told_found(file, following.as_ref());
        membership.following = following;
        membership.view = fleet.view();
        Ok((fleet, membership))
    }

    /// What a member that has lost its file is to begin with.
    fn book_of_store(&mut self, file: &BalancerConfig) -> Option<Following> {
        let held = self.store.read().ok()?;
        self.read.take(&held, &self.config.member);
        let book = self.read.book(&held).ok().flatten()?;
        let known = book.members.contains_key(&self.id);
        let following = self.following(&book, file).ok().filter(|_| known)?;
        self.kept.is_new = false;
        Some(following)
    }

    /// Renews the lease, reads the store, and does what is due. Says whether there is more to do
    /// at once.
    pub(crate) fn round(&mut self, engines: &impl HasEngine, now_ns: u64) -> bool {
        self.progress = false;
        // Agents' reports are taken before the store is read: they are sent no later book.
        let agents = {
            let engine = engines.engine();
            let following = engine.fleet.as_ref().and_then(|own| own.following.as_ref());
            let in_use = following.map(Following::keys_in_use).unwrap_or_default();
            let book = self.member.book().map(Arc::as_ref);
            self.secrets.take(&engine.file, book, &in_use, &self.read);
            self.paths = AgentPaths::of(&engine.file, engine.next_hops().way());
            engine.reports().follows()
        };
        let kept = self.keep_secrets().and_then(|()| self.keep_again());
        // A member that has not acknowledged anything leaves the lease, too, to the one that has its name.
        let takes_lease = self.kept.left || self.namesake.is_free(self.said.is_some());
        let renewed = match takes_lease {
            false => Ok(()),
            true => self.tenure.renew(now_ns, || {
                self.store.renew(&self.config.member, self.config.lease)
            }),
        };
        let steps_aside = self.steps_aside_ns();
        if let Some(fleet) = &mut engines.engine().fleet {
            fleet.steps_aside_ns = steps_aside;
        }
        // One that is full takes no lease, and has the book still.
        let outcome = match &renewed {
            Err(away @ StoreError::Away(_)) => Err(away.clone()),
            _ => self.store.read(),
        };
        match outcome {
            Ok(held) => {
                let fault = renewed.err();
                self.faults.store(fault.map(|fault| fault.to_string()));
                self.read.take(&held, &self.config.member);
                match kept {
                    _ if self.kept.left => {}
                    Ok(()) => self.tell_rules(engines, &held, agents, now_ns),
                    Err(fault) => self.faults.hold(Some(fault)),
                }
                self.tell_left(now_ns);
            }
            Err(error) => self.faults.store(Some(error.to_string())),
        }
        if !self.tenure.is_held(now_ns) {
            let actions = self.member.handle(FleetEvent::LeaseOver);
            if let Err(fault) = self.perform(engines, actions) {
                self.faults.hold(Some(fault));
            }
        }
        // With or without the store.
        self.tenure.settle(now_ns);
        self.show(engines);
        self.progress
    }

    fn tell_rules(
        &mut self,
        engines: &impl HasEngine,
        held: &Held,
        agents: Vec<(IpAddr, AgentFollows)>,
        now_ns: u64,
    ) {
        if let Err(fault) = self.see_namesake() {
            return self.faults.hold(Some(fault));
        }
        let book = match self.read.book(held) {
            Ok(book) => book,
            Err(fault) => return self.faults.hold(Some(fault)),
        };
        if !self.tenure.is_held(now_ns) {
            return;
        }
        self.read.found = book.as_ref().map(|book| book.position);
        if let Some(book) = &book {
            let (own, read) = (self.id, &self.read);
            for event in self.watched.see_members(own, book, read, now_ns) {
                self.member.handle(event);
            }
        }
        self.read.acks.agents = agents_at(agents, self.secrets.keys(), self.read.found);
        let stored = Stored {
            book,
            acks: self.read.acks.clone(),
        };
        let actions = self.member.handle(FleetEvent::Read(stored));
        let mut outcome = self.perform(engines, actions);
        self.see_rests(engines, now_ns);
        let current = self.member.book().map(|book| book.position);
        let settled = current.is_some()
            && current == self.read.found
            && self.member.follows() == current
            && !self.progress;
        if settled {
            outcome = outcome.and_then(|()| self.follow_keys(engines));
            outcome = outcome.and_then(|()| self.propose_wants(engines));
            if outcome.is_ok() && self.said != Some(self.to_say(current, None)) {
                outcome = self.acknowledge(current, None);
            }
            outcome = outcome.and_then(|()| self.see_keys_of_file(engines));
        }
        if outcome.is_err() {
            outcome = self.correct_keys_said().and(outcome);
        }
        self.faults.hold(outcome.err());
    }

    /// Others may hold because of what stands there, and it because of them.
    fn correct_keys_said(&mut self) -> Result<(), String> {
        let position = self.read.acks.members.get(&self.id).copied();
        let now = self.to_say(position, None).keys;
        let mut stand = self.read.own.keys.iter();
        match stand.all(|(number, key)| now.get(number) == Some(key)) {
            true => Ok(()),
            false => self.acknowledge(position, None),
        }
    }

    fn see_namesake(&mut self) -> Result<(), String> {
        let has_spoken = self.said.is_some();
        let was_free = self.namesake.is_free(has_spoken);
        let is_alive = self.read.alive.contains(&self.id);
        if self.namesake.see(&self.read.own, is_alive, has_spoken) {
            self.acknowledge(self.member.follows(), None)?;
        }
        // Its lease is taken at once.
        self.progress |= !was_free && self.namesake.is_free(has_spoken);
        match self.namesake.is_there(has_spoken) {
            false => Ok(()),
            true => Err(format!(
                "another balancer is called {}, and the fleet takes both for one: give one of them another name ([fleet] member), and restart both. Right after a boot it may be this one's lease from before, and ends with that",
                self.config.member
            )),
        }
    }

    /// Has the data plane go by the keys that files have now under the numbers of its book.
    fn follow_keys(&mut self, engines: &impl HasEngine) -> Result<(), String> {
        let Some(book) = self.member.book().cloned() else {
            return Ok(());
        };
        let differs = {
            let engine = engines.engine();
            let following = engine.fleet.as_ref().and_then(|own| own.following.as_ref());
            let wanted = self.secrets.keys_of(&book, &engine.file, &self.read)?;
            following.is_some_and(|own| own.keys != wanted)
        };
        match differs {
            true => self.apply(engines, &book),
            false => Ok(()),
        }
    }

    fn see_keys_of_file(&self, engines: &impl HasEngine) -> Result<(), String> {
        let book = self.member.book();
        let fault = book.and_then(|book| self.secrets.fault(book, &engines.engine().file));
        fault.map_or(Ok(()), Err)
    }

    /// Passes what has rested for long enough to the rules.
    fn see_rests(&mut self, engines: &impl HasEngine, now_ns: u64) {
        let rests = self.member.evidence().rests.clone();
        let engine = engines.engine();
        let file = &engine.file;
        let cookies = file.cookies.as_ref();
        let rest = cookies.map_or(cookie::QUARANTINE, |cookies| cookies.quarantine);
        let book = self.member.book().cloned();
        let other = book.as_ref().and_then(|book| book.keys.other);
        let has = |number| cookies.is_some_and(|own| own.keys.numbered().any(|(n, _)| n == number));
        // By its file an operator says that connections of what was there before are gone.
        let may_end = |what: &FleetRest| match what {
            FleetRest::Id { .. } => true,
            FleetRest::Key { .. } => other.is_none_or(|other| !has(other)),
            FleetRest::Cid { vip, .. } => {
                let mut book = book.iter();
                !book.any(|book| keeps_former_cid(file, book, vip))
            }
        };
        let rest_ns = rest.as_nanos() as u64;
        for event in self.watched.see_rests(&rests, rest_ns, may_end, now_ns) {
            self.member.handle(event);
            self.progress = true;
        }
    }

    /// Does what the rules say, in its order. The first fault ends it: the rules say it again.
    fn perform(
        &mut self,
        engines: &impl HasEngine,
        actions: Vec<FleetAction>,
    ) -> Result<(), String> {
        for action in actions {
            match action {
                FleetAction::Keep(book) => {
                    let stored = Some(self.read.stored(book));
                    if self.kept.book != stored {
                        let book = stored;
                        self.keep_as(Kept {
                            book,
                            ..self.kept.clone()
                        })?;
                    }
                }
                FleetAction::Apply(book) => {
                    self.apply(engines, &book)?;
                    let next = self.member.handle(FleetEvent::Applied(book.position));
                    self.perform(engines, next)?;
                }
                FleetAction::Acknowledge(position) => self.acknowledge(Some(position), None)?,
                FleetAction::Propose(expected, book) => self.propose(engines, expected, &book)?,
                FleetAction::EnterService => {
                    (self.kept.in_service, self.kept.is_new) = (true, false);
                    self.keep()?;
                    info!("this balancer is in service of fleet {}", self.config.name);
                    set_service(engines, self.service());
                }
                FleetAction::LeaveService => {
                    // Announcements end whether this can be written or not.
                    set_service(engines, Service::Out);
                    self.kept.in_service = false;
                    warn!(
                        "this balancer is out of service of fleet {}",
                        self.config.name
                    );
                    self.keep()?;
                }
                FleetAction::Say(Hold::StoreEmpty) => {
                    return Err(match self.member.book() {
                        None => "the store has no book; if no balancer of this fleet runs yet, found it on one, by `causeway fleet found`; otherwise one that is in service puts its own back, as soon as it reaches the store".to_owned(),
                        Some(_) => "the store has lost the book, and this balancer is not in service, so may not know all of it; one that is puts its own back, or an operator by `causeway fleet found`".to_owned(),
                    });
                }
                FleetAction::Say(Hold::StoreOlder(found)) => {
                    let own = self.member.book().map(|book| book.position);
                    let is_anew = own.is_some_and(|own| {
                        let (own, found) = (own.generation, found.generation);
                        own.count == found.count && own.by != found.by
                    });
                    let own = own.map(|own| view::position(own).to_string());
                    if is_anew {
                        return Err(format!(
                            "the store has book {} of a fleet that was founded anew on {}, or put back there, and this balancer, which has {} of another, is not in service; one that is puts its own back, or an operator by `causeway fleet found` on the one with the newest; to go on with the new fleet, remove fleet.json from state_dir and restart",
                            view::position(found),
                            self.read.name_of(found.generation.by),
                            own.unwrap_or_default()
                        ));
                    }
                    return Err(format!(
                        "the store was set back: it has book {}, and this balancer, which has {}, is not in service, so may not know all that came after; one that is puts its own back, or an operator by `causeway fleet found` on the one with the newest",
                        view::position(found),
                        own.unwrap_or_default()
                    ));
                }
                FleetAction::Say(Hold::Format(format)) => {
                    return Err(format!(
                        "the book is of format {format}, which this build does not read"
                    ));
                }
                FleetAction::Say(Hold::Removes(held)) => return Err(held_order(&held)),
            }
        }
        Ok(())
    }

    /// What it has come to, which holds here whether it can be written or not.
    fn keep(&mut self) -> Result<(), String> {
        let saved = self.kept.save(&self.dir, &self.config, &self.boot);
        self.is_unsaved = saved.is_err();
        saved
    }

    fn keep_again(&mut self) -> Result<(), String> {
        match self.is_unsaved {
            true => self.keep(),
            false => Ok(()),
        }
    }

    /// What is not on the disk holds neither here.
    fn keep_as(&mut self, kept: Kept) -> Result<(), String> {
        kept.save(&self.dir, &self.config, &self.boot)?;
        (self.kept, self.is_unsaved) = (kept, false);
        Ok(())
    }

    /// A file may lose them before the book accepts them no more, and a restart come in between.
    fn keep_secrets(&mut self) -> Result<(), String> {
        if self.kept_secrets != self.secrets {
            self.secrets.save(&self.dir, &self.config.name)?;
            self.kept_secrets = self.secrets.clone();
        }
        Ok(())
    }

    fn apply(&mut self, engines: &impl HasEngine, book: &Arc<FleetBook>) -> Result<(), String> {
        let mut engine = engines.engine();
        let own = following::vips_of(&engine.file);
        let told = self.kept.file.as_ref();
        let is_removed = |vip: &Arc<str>| told.is_some_and(|told| told.contains_key(vip));
        let mut missing = book.vips.keys();
        if let Some(vip) = missing.find(|vip| !own.contains_key(*vip) && !is_removed(vip)) {
            return Err(format!(
                "vip {vip} of the book is not in this balancer's file; add it"
            ));
        }
        let following = self.following(book, &engine.file)?;
        engine.follow(following).map_err(|error| error.to_string())
    }

    /// What this member has to say of itself, beside the book.
    fn to_say(&self, position: Option<Position>, left: Option<Position>) -> AckText {
        let keys = self.secrets.keys().iter();
        AckText {
            cluster: self.read.cluster.clone(),
            balancer: self.namesake.own().to_owned(),
            heard: self.namesake.heard().clone(),
            position,
            keys: keys
                .map(|(number, key)| (*number, key_digest(*number, key)))
                .collect(),
            left,
            paths: self.paths.clone(),
        }
    }

    fn acknowledge(
        &mut self,
        position: Option<Position>,
        left: Option<Position>,
    ) -> Result<(), String> {
        let said = self.to_say(position, left);
        let text = serde_json::to_string(&said).map_err(|error| error.to_string())?;
        let written = self.store.acknowledge(&self.config.member, &text);
        written.map_err(|error| error.to_string())?;
        self.said = Some(said);
        if let Some(position) = position {
            self.read.acks.members.insert(self.id, position);
        }
        Ok(())
    }

    fn propose(
        &mut self,
        engines: &impl HasEngine,
        expected: Option<Position>,
        book: &Arc<FleetBook>,
    ) -> Result<(), String> {
        if expected != self.read.found {
            // It is of a reading before the last.
            self.progress = true;
            return Ok(());
        }
        let stored = self.read.stored(book.clone());
        let replaced = self.store.replace(self.read.version, &stored.to_text()?);
        let replaced = replaced.map_err(|error| error.to_string())?;
        // A store that refuses is not asked again at once.
        self.progress = true;
        if replaced {
            if book.position.generation.count > expected.map_or(0, |old| old.generation.count) {
                warn!(
                    "the fleet's store had lost the book, and this balancer has put its own back"
                );
            }
            self.read.found = Some(book.position);
            let next = self.member.handle(FleetEvent::Accepted(book.clone()));
            self.perform(engines, next)?;
        }
        Ok(())
    }

    /// Proposes what operators have had this balancer want: changes of its file, keys, and what
    /// is set by hand. One proposal at a time; what the book has is wanted no more.
    fn propose_wants(&mut self, engines: &impl HasEngine) -> Result<(), String> {
        let Some(book) = self.member.book().cloned() else {
            return Ok(());
        };
        let (mut own, by_hand, unasked) = {
            let engine = engines.engine();
            let wants = engine.fleet.as_ref().map(|fleet| fleet.wants.clone());
            (
                following::vips_of(&engine.file),
                wants.unwrap_or_default(),
                engine.unasked(&engine.file),
            )
        };
        let told = match &self.kept.file {
            Some(told) => told.clone(),
            // A newcomer's file adds VIPs and changes none.
            None => own
                .iter()
                .filter(|(vip, _)| book.vips.contains_key(*vip))
                .map(|(vip, own)| (vip.clone(), own.clone()))
                .collect(),
        };
        keep_unasked(&mut own, &unasked, &told);
        let mut events = self.wants_of_file(&told, &own, &book, engines);
        events.push(FleetEvent::Key(self.secrets.wanted_key(&book)));
        let states = by_hand.iter();
        events
            .extend(states.map(|((vip, real), set)| FleetEvent::ByHand(vip.clone(), *real, *set)));
        events.extend(self.token_events(&book, engines));
        let mut held = Vec::new();
        for event in events {
            let actions = self.member.handle(event);
            match held_in(&actions) {
                Some(removals) => held.extend_from_slice(removals),
                None if actions.is_empty() => {}
                None => return self.perform(engines, actions),
            }
        }
        self.hold_removals(held);
        // All of it is in the book, but for what is held.
        if self.held.is_empty() && self.kept.file.as_ref() != Some(&own) {
            let file = Some(own);
            self.keep_as(Kept {
                file,
                ..self.kept.clone()
            })?;
        }
        if let Some(fleet) = &mut engines.engine().fleet {
            fleet.wants.retain(|of, set| by_hand.get(of) != Some(set));
        }
        Ok(())
    }

    /// What the data plane is to have of a book.
    fn following(&self, book: &Arc<FleetBook>, file: &BalancerConfig) -> Result<Following, String> {
        Ok(Following {
            book: book.clone(),
            keys: self.secrets.keys_of(book, file, &self.read)?,
            cids: self.secrets.cids_of(book, file)?,
        })
    }

    /// Whether VIPs may be announced to routers.
    fn service(&self) -> Service {
        let is_new = self.kept.is_new && !self.kept.left;
        self.tenure.service(self.member.in_service(), is_new)
    }

    fn show(&self, engines: &impl HasEngine) {
        let (service, steps_aside) = (self.service(), self.steps_aside_ns());
        let view = self.view();
        let mut engine = engines.engine();
        // Of a file that is refused, or else of the one that is in force.
        let refused = engine.fleet.as_ref().map(|fleet| removals(&fleet.held));
        let refused = refused.filter(|refused| !refused.is_empty());
        let view = FleetView {
            joins: engine.reports().join_counts(),
            held: refused.unwrap_or(view.held),
            ..view
        };
        if let Some(telling) = self.telling(&engine) {
            engine.reports().set_telling(telling);
            let file = engine.file.cookies.as_ref().map(|cookies| &cookies.keys);
            if let Some(book) = self.member.book() {
                engine.reports().set_tokens(&book.tokens, file);
            }
        }
        if let Some(fleet) = &mut engine.fleet {
            fleet.view = view;
            fleet.service = service;
            fleet.steps_aside_ns = steps_aside;
        }
    }

    /// When it steps aside, if nothing renews its lease.
    fn steps_aside_ns(&self) -> Option<u64> {
        let book = self.member.book()?;
        let steps_aside = book.absence == Absence::StepsAside && self.member.in_service();
        steps_aside.then_some(self.tenure.held_until_ns())
    }

    /// What agents are sent: nothing new while the data plane follows no whole book.
    fn telling(&self, engine: &Engine) -> Option<Telling> {
        let book = self.member.book()?;
        let follows = self.member.follows() == Some(book.position);
        let paths = self.read.agent_paths(book, &self.paths);
        let tells = follows && engine.file.agent_reports.is_some();
        tells.then(|| Telling::new(book.clone(), &self.secrets, &engine.file, paths))
    }

    /// Waits until something may have changed.
    fn wait(&mut self, at_most: Duration) -> bool {
        match self.store.wait(at_most) {
            Ok(changed) => changed,
            // The next round says.
            Err(_) => {
                std::thread::sleep(at_most);
                true
            }
        }
    }
}

/// Has the engine announce its VIPs accordingly.
fn set_service(engines: &impl HasEngine, service: Service) {
    if let Some(fleet) = &mut engines.engine().fleet {
        fleet.service = service;
    }
}
