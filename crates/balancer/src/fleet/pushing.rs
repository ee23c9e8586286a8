// SPDX-License-Identifier: Apache-2.0
//! What files and operators want of a fleet's VIPs and reals: by a change of a file, by a push of
//! a whole file, by going back; and what of it is held until an operator confirms it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use causeway_api::Moment;
use causeway_api::fleet::{
    FleetPush, FleetPushed, FleetRemoval, FleetRevision, FleetRollback, named_reals,
};
use causeway_core::fleet::{
    ChangedVips, FleetAction, FleetBook, FleetChange, FleetEvent, FleetVip, Hold, MayRemove,
    PastStep, Removal,
};
use serde_json::json;
use tracing::{info, warn};

use super::dir_store::boot_id;
use super::following::{Following, Vips, vips_of};
use super::kept::Kept;
use super::view::LEFT;
use super::{Fleet, HasEngine};
use crate::config::{BalancerConfig, SharedVip};
use crate::engine::{Engine, EngineError};
use crate::found::FoundReals;
use crate::state_dir::{KeptReal, StateDir};

/// How often an order is proposed again, if the book has changed meanwhile.
const TRIES: usize = 5;

/// What has changed in a file since it was last written to the book. What the file had then and
/// the book lacks has been removed by another since, and stays so, whatever changes of it.
pub(super) fn changes_of_file(told: &Vips, own: &Vips, book: &FleetBook) -> ChangedVips {
    let mut changes = ChangedVips::new();
    let names: BTreeSet<&Arc<str>> = told.keys().chain(own.keys()).collect();
    for name in names {
        let (before, now) = (told.get(name), own.get(name));
        if before == now {
            continue;
        }
        let Some(now) = now else {
            changes.insert(name.clone(), None);
            continue;
        };
        let there = book.vips.get(name);
        if before.is_some() && there.is_none() {
            continue;
        }
        let nothing = FleetVip::default();
        let before = before.unwrap_or(&nothing);
        let mut vip = there.cloned().unwrap_or_default();
        vip.ids = now.ids;
        // Where no file has told the book of any, the first that does so holds.
        if before.cid != now.cid && (before.cid.is_some() || vip.cid.is_none()) {
            vip.cid = now.cid;
        }
        let goes = |real: &&IpAddr| !now.reals.contains_key(*real);
        for real in before.reals.keys().filter(goes) {
            vip.reals.remove(real);
        }
        for (real, wanted) in &now.reals {
            let known = before.reals.get(real);
            let is_there = vip.reals.contains_key(real);
            if known != Some(wanted) && (known.is_none() || is_there) {
                vip.reals.insert(*real, *wanted);
            }
        }
        changes.insert(name.clone(), Some(vip));
    }
    changes
}

/// Gives the VIPs about whose reals there is no answer yet those that they had before: what has not
/// been asked for is not gone.
pub(super) fn keep_unasked(vips: &mut Vips, unasked: &[Arc<str>], before: &Vips) {
    for name in unasked {
        if let (Some(vip), Some(before)) = (vips.get_mut(name), before.get(name)) {
            for (real, wanted) in &before.reals {
                vip.reals.entry(*real).or_insert(*wanted);
            }
        }
    }
}

/// What the fleet is to have by a file as a whole.
fn of_whole_file(file: &BalancerConfig, unasked: &[Arc<str>], book: &FleetBook) -> Vips {
    let own = vips_of(file);
    let mut vips = own.clone();
    keep_unasked(&mut vips, unasked, &book.vips);
    forward_only(vips, &own, book)
}

/// The same VIPs with the configurations of connection ids that the book has, or else the file's,
/// `own`: they go by changes of files alone, and never back.
fn forward_only(mut vips: Vips, own: &Vips, book: &FleetBook) -> Vips {
    for (name, vip) in &mut vips {
        let (held, own) = (book.vips.get(name), own.get(name));
        let cid = |of: Option<&FleetVip>| of.and_then(|vip| vip.cid);
        vip.cid = cid(held).or(cid(own));
        if let Some(own) = own.filter(|_| held.is_none()) {
            vip.ids = own.ids;
        }
    }
    vips
}

/// What the fleet had at a revision, or before the last change, with the number of that revision.
/// Reals of VIPs that the file has discovered stay: no answer that is as the last would correct them.
fn of_revision(
    book: &FleetBook,
    revision: Option<u64>,
    file: &BalancerConfig,
) -> Result<(u64, Vips), EngineError> {
    let steps = book.past_changes();
    let asked = asked_for(file);
    // Going back changes nothing of what discovery has done alone.
    let is_another = |step: &PastStep<'_>| {
        let mut vips = step.change.before.keys();
        vips.any(|vip| {
            let stays = step.before.contains_key(vip) && step.after.contains_key(vip);
            !stays || !asked.contains(vip)
        })
    };
    let at = match revision {
        Some(revision) => steps
            .iter()
            .position(|step| step.change.revision == revision),
        None => Some(steps.iter().position(is_another).map_or(1, |at| at + 1)),
    };
    match at.and_then(|at| steps.get(at)) {
        Some(step) => {
            let mut vips = forward_only(step.after.clone(), &vips_of(file), book);
            for (name, vip) in &mut vips {
                if let Some(held) = book.vips.get(name).filter(|_| asked.contains(name)) {
                    vip.reals.clone_from(&held.reals);
                }
            }
            Ok((step.change.revision, vips))
        }
        None => Err(EngineError::NotFound(match revision {
            Some(revision) => format!(
                "revision {revision} is not kept; `causeway fleet history` shows those that are"
            ),
            None => "the fleet's book has no past change".to_owned(),
        })),
    }
}

/// What a change makes of VIPs, each in words.
fn lines(before: &Vips, after: &Vips) -> Vec<String> {
    let names: BTreeSet<&Arc<str>> = before.keys().chain(after.keys()).collect();
    let reals = |of: Option<&FleetVip>, beside: Option<&FleetVip>| {
        let all = of.into_iter().flat_map(|vip| vip.reals.keys());
        let there = |real: &&IpAddr| beside.is_some_and(|vip| vip.reals.contains_key(*real));
        let reals: Vec<String> = all
            .filter(|real| !there(real))
            .map(ToString::to_string)
            .collect();
        reals
    };
    let line = |name: &Arc<str>| {
        let (former, next) = (before.get(name), after.get(name));
        if former == next {
            return None;
        }
        let (gone, come) = (reals(former, next), reals(next, former));
        let what = match (former, next) {
            (None, _) => format!("is added, with {}", named_reals(&come)),
            (_, None) => format!("is removed, with {}", named_reals(&gone)),
            (Some(_), Some(_)) => {
                let parts = [("gets", come), ("loses", gone)].into_iter();
                let parts = parts.filter(|(_, reals)| !reals.is_empty());
                let parts: Vec<String> = parts
                    .map(|(verb, reals)| format!("{verb} {}", named_reals(&reals)))
                    .collect();
                match parts.is_empty() {
                    true => "gets other ids or agents".to_owned(),
                    false => parts.join(", "),
                }
            }
        };
        Some(format!("vip {name} {what}"))
    };
    names.into_iter().filter_map(line).collect()
}

fn removal(of: &Removal) -> FleetRemoval {
    FleetRemoval {
        vip: of.vip.to_string(),
        whole: of.whole,
        reals: of.reals.iter().map(IpAddr::to_string).collect(),
        of: of.of,
    }
}

pub(super) fn removals(of: &[Removal]) -> Vec<FleetRemoval> {
    of.iter().map(removal).collect()
}

/// Why a change is held.
fn held_text(held: &[Removal]) -> String {
    let parts: Vec<String> = removals(held).iter().map(ToString::to_string).collect();
    format!(
        "held, as it takes away more than `max_removed` of [fleet] allows: {}",
        parts.join("; ")
    )
}

/// Why nothing of an order comes to be.
pub(super) fn held_order(held: &[Removal]) -> String {
    format!("{}; the same with `--yes` confirms it", held_text(held))
}

fn asked_for(file: &BalancerConfig) -> BTreeSet<Arc<str>> {
    let vips = file.vips.iter().filter(|vip| vip.discover.is_some());
    vips.map(|vip| vip.endpoint().into()).collect()
}

/// What the file of a daemon that starts takes away that has to be confirmed.
pub(crate) fn held_at_start(file: &BalancerConfig) -> Vec<Removal> {
    let Some(config) = &file.fleet else {
        return Vec::new();
    };
    let dir = StateDir::new(&file.state_dir, &file.pin_dir);
    let kept = Kept::load(&dir, config, &boot_id());
    let Ok(Kept {
        book: Some(book),
        file: Some(told),
        left: false,
        ..
    }) = kept
    else {
        return Vec::new();
    };
    let own = vips_of(file);
    let mut changes = changes_of_file(&told, &own, &book.book);
    // What was discovered is not in the file.
    let asked = asked_for(file);
    changes.retain(|vip, _| !asked.contains(vip));
    book.book.removals(&changes, config.may_remove())
}

/// Why such a file is refused.
pub(crate) fn refusal(held: &[Removal]) -> EngineError {
    EngineError::Conflict(format!(
        "{}; nothing of the file is in force before `causeway fleet push --yes` confirms it",
        held_text(held)
    ))
}

impl Engine {
    fn book_in_force(&self) -> Option<&FleetBook> {
        let fleet = self.fleet.as_ref();
        let following = fleet.and_then(|fleet| fleet.following.as_ref());
        following.map(|following| &*following.book)
    }

    /// What a file takes away from the fleet, by what it has other than the one in force, that has
    /// to be confirmed. That of a member that has left takes away nothing before it is back.
    pub(crate) fn held_of(&self, file: &BalancerConfig) -> Vec<Removal> {
        let (Some(book), Some(fleet)) = (self.book_in_force(), &self.file.fleet) else {
            return Vec::new();
        };
        if self.has_left_fleet() {
            return Vec::new();
        }
        let file = self.found.over(file.clone());
        let (told, own) = (vips_of(&self.file), vips_of(&file));
        let mut changes = changes_of_file(&told, &own, book);
        // They lose no real by it.
        let unasked = self.unasked(&file);
        changes.retain(|vip, _| !unasked.contains(vip));
        book.removals(&changes, fleet.may_remove())
    }

    /// The VIPs of a file about whose reals this daemon has had no answer yet.
    pub(super) fn unasked(&self, file: &BalancerConfig) -> Vec<Arc<str>> {
        let is_answered = |vip: &Arc<str>| {
            let found = self.found.of(vip);
            found.and_then(FoundReals::last_ns).is_some()
        };
        let asked = asked_for(file).into_iter();
        asked.filter(|vip| !is_answered(vip)).collect()
    }

    /// Takes what is held of the file that was read last, to be shown.
    pub(crate) fn set_held(&mut self, held: Vec<Removal>) {
        if let Some(fleet) = &mut self.fleet {
            fleet.held = held;
        }
    }

    fn has_left_fleet(&self) -> bool {
        let fleet = self.fleet.as_ref();
        fleet.is_some_and(|fleet| fleet.view.state == LEFT)
    }

    /// Refuses a change that would come into force here and not in the fleet.
    pub(crate) fn reaches_fleet(&self) -> Result<(), EngineError> {
        if self.has_left_fleet() {
            return Err(has_left());
        }
        let fleet = self.fleet.as_ref();
        match fleet.and_then(|fleet| fleet.view.store_error.as_ref()) {
            None => Ok(()),
            Some(error) => Err(EngineError::Conflict(format!(
                "the fleet's store cannot be used, and nothing is changed: {error}"
            ))),
        }
    }

    fn preview(&self, target: &Vips, book: &FleetBook) -> FleetPushed {
        let may_remove = self.file.fleet.as_ref().map(|fleet| fleet.may_remove());
        let may_remove = may_remove.unwrap_or(MayRemove::Confirmed);
        FleetPushed {
            fleet: lines(&book.vips, target),
            held: removals(&book.removals(&book.change_to(target), may_remove)),
            ..FleetPushed::default()
        }
    }

    fn book_to_change(&self) -> Result<&FleetBook, EngineError> {
        if self.fleet.is_none() {
            return Err(no_fleet());
        }
        self.book_in_force().ok_or_else(no_book)
    }

    /// What a push of a file would change.
    pub(crate) fn preview_push(&self, file: &BalancerConfig) -> Result<FleetPushed, EngineError> {
        let book = self.book_to_change()?;
        self.check_file(file)?;
        let with_found = self.found.over(file.clone());
        let target = of_whole_file(&with_found, &self.unasked(file), book);
        Ok(FleetPushed {
            changes: self.difference(file).changes,
            ..self.preview(&target, book)
        })
    }

    /// An order with the number of its revision: the one before the last is another after each change.
    pub(crate) fn numbered(&self, order: FleetRollback) -> Result<FleetRollback, EngineError> {
        let (at, _) = of_revision(self.book_to_change()?, order.revision, &self.file)?;
        Ok(FleetRollback {
            revision: Some(at),
            ..order
        })
    }

    /// What going back to a revision would change.
    pub(crate) fn preview_rollback(
        &self,
        order: &FleetRollback,
    ) -> Result<FleetPushed, EngineError> {
        let book = self.book_to_change()?;
        let (_, target) = of_revision(book, order.revision, &self.file)?;
        self.can_serve(&book.change_to(&target))?;
        Ok(self.preview(&target, book))
    }

    /// Refuses VIPs of which this balancer's file has too little.
    fn can_serve(&self, change: &ChangedVips) -> Result<(), EngineError> {
        let configured = |of: &BalancerConfig, name: &str| -> Option<SharedVip> {
            let mut vips = of.vips.iter();
            vips.find(|vip| vip.endpoint() == name).cloned()
        };
        for (name, vip) in change {
            let Some(vip) = vip else { continue };
            let Some(own) = configured(&self.file, name) else {
                return Err(EngineError::Conflict(format!(
                    "vip {name} of that revision is not in this balancer's file; add it and reload first"
                )));
            };
            if own.forwarding.encapsulates() {
                continue;
            }
            let running = configured(&self.config, name);
            let known = own
                .reals
                .iter()
                .chain(running.iter().flat_map(|vip| &vip.reals));
            let known: BTreeSet<IpAddr> = known
                .filter(|real| real.mac.is_some())
                .map(|real| real.address)
                .collect();
            if let Some(real) = vip.reals.keys().find(|real| !known.contains(*real)) {
                return Err(EngineError::Conflict(format!(
                    "real {real} of vip {name} of that revision has no MAC address in this balancer's file; add it and reload first"
                )));
            }
        }
        Ok(())
    }
}

/// What a request about a fleet gets from a balancer that is in none.
pub(crate) fn no_fleet() -> EngineError {
    EngineError::NotFound(
        "this balancer is of no fleet; [fleet] in its file makes it a member".to_owned(),
    )
}

fn has_left() -> EngineError {
    EngineError::Conflict(
        "this balancer has left its fleet; `causeway fleet join` brings it back".to_owned(),
    )
}

fn no_book() -> EngineError {
    EngineError::Conflict(
        "the fleet has no book to change; found it first, by `causeway fleet found`".to_owned(),
    )
}

impl Fleet {
    /// Has the fleet have what this balancer's file has, and nothing else.
    pub(super) fn push(
        &mut self,
        engines: &impl HasEngine,
        order: &FleetPush,
        now: Moment,
    ) -> Result<String, EngineError> {
        let target = |book: &FleetBook, engine: &Engine| {
            let unasked = engine.unasked(&engine.file);
            Ok((None, of_whole_file(&engine.file, &unasked, book)))
        };
        self.bring(engines, target, order.confirmed, now)
    }

    /// Has the fleet have what it had.
    pub(super) fn rollback(
        &mut self,
        engines: &impl HasEngine,
        order: &FleetRollback,
        now: Moment,
    ) -> Result<String, EngineError> {
        // The one before the last is another once this is the last.
        let mut revision = order.revision;
        if revision.is_none() {
            let book = self.member.book().ok_or_else(no_book)?;
            revision = Some(of_revision(book, None, &engines.engine().file)?.0);
        }
        let target = |book: &FleetBook, engine: &Engine| {
            let (revision, target) = of_revision(book, revision, &engine.file)?;
            engine.can_serve(&book.change_to(&target))?;
            Ok((Some(revision), target))
        };
        self.bring(engines, target, order.confirmed, now)
    }

    fn bring(
        &mut self,
        engines: &impl HasEngine,
        target: impl Fn(&FleetBook, &Engine) -> Result<(Option<u64>, Vips), EngineError>,
        confirmed: bool,
        now: Moment,
    ) -> Result<String, EngineError> {
        if self.kept.left {
            return Err(has_left());
        }
        for _ in 0..TRIES {
            let book = self.member.book().cloned().ok_or_else(no_book)?;
            let (back_to, target) = target(&book, &engines.engine())?;
            let vips = book.change_to(&target);
            if vips.is_empty() {
                return Ok(self.brought(engines, &book, back_to));
            }
            let may_remove = match confirmed {
                true => MayRemove::Confirmed,
                false => self.config.may_remove(),
            };
            let change = FleetChange {
                vips,
                may_remove,
                at_s: now.realtime_ns / 1_000_000_000,
                back_to,
            };
            let actions = self.member.handle(FleetEvent::Change(change));
            self.perform(engines, actions)
                .map_err(EngineError::Conflict)?;
            let next = self.member.book().cloned();
            if let Some(next) = next.filter(|next| next.change_to(&target).is_empty()) {
                return Ok(self.brought(engines, &next, back_to));
            }
            // Another has changed the book meanwhile.
            self.round(engines, now.monotonic_ns);
        }
        Err(EngineError::Conflict(
            "the store has not taken it; `causeway fleet status` says why, try again then"
                .to_owned(),
        ))
    }

    fn brought(&self, engines: &impl HasEngine, book: &FleetBook, back_to: Option<u64>) -> String {
        self.show(engines);
        let last = book.history.last().map(|last| last.revision);
        let revision = last.unwrap_or(book.position.revision);
        let what = match back_to {
            Some(former) => format!("the VIPs and reals of revision {former}"),
            None => "this balancer's VIPs and reals".to_owned(),
        };
        format!(
            "fleet {} has {what} by revision {revision}",
            self.config.name
        )
    }

    /// What this balancer's file wants of VIPs and reals. Discovery holds its answers itself, by
    /// `max_removed` of the VIP.
    pub(super) fn wants_of_file(
        &self,
        told: &Vips,
        own: &Vips,
        book: &FleetBook,
        engines: &impl HasEngine,
    ) -> Vec<FleetEvent> {
        let (asked, now_ns) = {
            let engine = engines.engine();
            (asked_for(&engine.file), engine.realtime_ns())
        };
        let (found, named): (ChangedVips, ChangedVips) = changes_of_file(told, own, book)
            .into_iter()
            .partition(|(vip, _)| asked.contains(vip));
        let event = |(vips, may_remove): (ChangedVips, MayRemove)| {
            FleetEvent::Change(FleetChange {
                vips,
                may_remove,
                at_s: now_ns / 1_000_000_000,
                back_to: None,
            })
        };
        let all = [
            (found, MayRemove::Confirmed),
            (named, self.config.may_remove()),
        ];
        all.into_iter().map(event).collect()
    }

    /// The reals that discovery had found, as far as the fleet was told of them and has them: the
    /// file that keeps what was found may be lost, and they would be gone from all members.
    pub(super) fn told_found(
        &self,
        file: &BalancerConfig,
        following: Option<&Following>,
    ) -> Vec<KeptReal> {
        let (Some(told), Some(following)) = (&self.kept.file, following) else {
            return Vec::new();
        };
        let asked = file.vips.iter().filter(|vip| vip.discover.is_some());
        let found = asked.flat_map(|vip| {
            let endpoint = vip.endpoint();
            let (told, there) = (
                told.get(endpoint.as_str()),
                following.book.vips.get(endpoint.as_str()),
            );
            let is_named = |real: &IpAddr| vip.reals.iter().any(|named| named.address == *real);
            let is_there = |real: &IpAddr| there.is_some_and(|vip| vip.reals.contains_key(real));
            let reals = told.into_iter().flat_map(|vip| vip.reals.keys());
            let found = reals.filter(|real| !is_named(real) && is_there(real));
            let found = found.map(|real| KeptReal {
                vip: endpoint.clone(),
                real: json!({ "address": real.to_string() }),
                gone_ns: None,
            });
            found.collect::<Vec<_>>()
        });
        found.collect()
    }

    /// Notes what of the file is held though the file is in force: others have changed the book
    /// since.
    pub(super) fn hold_removals(&mut self, held: Vec<Removal>) {
        if held != self.held {
            match held.is_empty() {
                true => info!("nothing of this balancer's file is held from the fleet any more"),
                false => warn!(
                    "a change of this balancer's file is {}; the fleet has nothing of it before `causeway fleet push --yes` confirms it",
                    held_text(&held)
                ),
            }
        }
        self.held = held;
    }

    /// The past changes, for people, newest first.
    pub(super) fn revisions(&self, book: &FleetBook) -> Vec<FleetRevision> {
        let steps = book.past_changes();
        let revision = |step: &PastStep<'_>| FleetRevision {
            revision: step.change.revision,
            at_s: step.change.at_s,
            by: self.read.name_of(step.change.by),
            back_to: step.change.back_to,
            what: lines(&step.before, &step.after),
        };
        steps.iter().map(revision).collect()
    }
}

/// What an event of a file came to: what is held of it, or what is to be done.
pub(super) fn held_in(actions: &[FleetAction]) -> Option<&[Removal]> {
    match actions {
        [FleetAction::Say(Hold::Removes(held))] => Some(held),
        _ => None,
    }
}
