// SPDX-License-Identifier: Apache-2.0
//! A balancer of a fleet.

use std::net::IpAddr;
use std::sync::Arc;

use super::steps::{Changer, advance};
use super::{
    Absence, Acknowledged, FleetBook, FleetChange, FleetEvidence, FleetRest, HandState, JoinKey,
    JoinToken, KeyNumber, MemberPhase, Position, Removal, TokenId,
};
use crate::control::merge::BalancerId;

/// What a store held at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stored {
    /// The book; `None`: the store has none. A store that is another than the one the book was
    /// last read from, or was set back to a copy, has none: etcd shows it by its cluster's id.
    pub book: Option<Arc<FleetBook>>,
    /// How far every member has come.
    pub acks: Acknowledged,
}

/// What happens to a balancer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FleetEvent {
    /// It has read the store, while its lease was held.
    Read(Stored),
    /// Its data plane follows this book from now on.
    Applied(Position),
    /// The store has taken the book that it had proposed.
    Accepted(Arc<FleetBook>),
    /// The time of [`LeaseTerms::held_until`](super::LeaseTerms::held_until) is over.
    LeaseOver,
    /// Another balancer gets no packets any more, and will not before it has come back by a change
    /// of the book: its lease is over and the time of
    /// [`LeaseTerms::gone_from`](super::LeaseTerms::gone_from), where members step aside;
    /// otherwise an operator says so.
    Gone {
        /// Which.
        member: BalancerId,
        /// Where it had come into service, as the book says.
        since: Position,
    },
    /// Something that this balancer watches ([`FleetMember::evidence`]) has rested for long
    /// enough since it began to watch.
    Rested(FleetRest),
    /// An operator wants VIPs to be so.
    Change(FleetChange),
    /// An operator wants cookies to come to this key.
    Key(KeyNumber),
    /// An operator sets this by hand for a real of a VIP.
    ByHand(Arc<str>, IpAddr, HandState),
    /// An operator makes a token by which an agent joins.
    Token(TokenId, JoinToken),
    /// An agent has shown a token.
    Claim(TokenId, JoinKey),
    /// A token has expired.
    TokenOver(TokenId),
    /// An operator has it put its book into a store that [has lost](FleetMember::has_lost) it.
    PutBack(Stored),
}

/// What a balancer is to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FleetAction {
    /// Keep the book on disk, for the next start. Before all that follows.
    Keep(Arc<FleetBook>),
    /// Have the data plane follow it: routes of all its ids, picks of [`FleetBook::picks`], its
    /// keys. Then [`FleetEvent::Applied`]; a balancer that cannot, says so and stays as it is.
    Apply(Arc<FleetBook>),
    /// Write to the store that the data plane follows this.
    Acknowledge(Position),
    /// Have the store replace the book at this position, or none, by this one, if that is still
    /// the one that it has. Then [`FleetEvent::Accepted`], or read again.
    Propose(Option<Position>, Arc<FleetBook>),
    /// Announce routes.
    EnterService,
    /// Withdraw routes at once.
    LeaveService,
    /// Say why nothing goes on.
    Say(Hold),
}

/// Why a balancer keeps what it has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Hold {
    /// The store has no book, and this balancer may not put its own back.
    StoreEmpty,
    /// Its book, at this position, does not come of the one that this balancer or another followed:
    /// it was set back to a copy, or founded anew. Connections may live of what the other has, so
    /// this balancer does not follow it; nor may it put its own back.
    StoreOlder(Position),
    /// The book is of a format that this build does not read.
    Format(u16),
    /// A change takes this away, and an operator has not confirmed it: nothing of it is proposed.
    Removes(Vec<Removal>),
}

/// A balancer as its fleet sees it. It keeps the last good book, whatever becomes of the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FleetMember {
    name: BalancerId,
    reads: u16,
    book: Option<Arc<FleetBook>>,
    applied: Option<Position>,
    in_service: bool,
    /// Where the change stands by which it comes into service.
    entering: Option<Position>,
    has_lease: bool,
    evidence: FleetEvidence,
}

impl FleetMember {
    /// One that starts: with the book that was kept, and whether routers may send to its data
    /// plane, which outlives the daemon.
    pub fn start(
        name: BalancerId,
        reads: u16,
        kept: Option<Arc<FleetBook>>,
        in_service: bool,
    ) -> (Self, Vec<FleetAction>) {
        let book = kept.filter(|book| book.format <= reads);
        let apply = book.iter().cloned().map(FleetAction::Apply).collect();
        let member = Self {
            name,
            reads,
            book,
            applied: None,
            in_service,
            entering: None,
            has_lease: false,
            evidence: FleetEvidence::default(),
        };
        (member, apply)
    }

    /// The last good book.
    pub fn book(&self) -> Option<&Arc<FleetBook>> {
        self.book.as_ref()
    }

    /// The book that the data plane follows.
    pub fn follows(&self) -> Option<Position> {
        self.applied
    }

    /// Whether routers may send to it.
    pub fn in_service(&self) -> bool {
        self.in_service
    }

    /// Whether it may be in service soon.
    pub fn enters(&self) -> bool {
        self.entering.is_some()
    }

    /// What it knows beside the store.
    pub fn evidence(&self) -> &FleetEvidence {
        &self.evidence
    }

    /// Takes in what happened; gives what is to be done.
    pub fn handle(&mut self, event: FleetEvent) -> Vec<FleetAction> {
        match event {
            FleetEvent::Read(stored) => self.read(stored),
            FleetEvent::Applied(position) => self.applied(position),
            FleetEvent::Accepted(book) => self.accepted(book),
            FleetEvent::LeaseOver => self.lease_over(),
            FleetEvent::Gone { member, since } => {
                self.evidence.gone.insert(member, since);
                Vec::new()
            }
            FleetEvent::Rested(rest) => {
                if let Some(over) = self.evidence.rests.get_mut(&rest) {
                    *over = true;
                }
                Vec::new()
            }
            FleetEvent::Change(change) => self.change_vips(change),
            FleetEvent::Key(key) => self.change(|book| {
                book.wanted_key = book.wanted_key.max(key);
            }),
            FleetEvent::ByHand(vip, real, set) => {
                self.change(|book| match set == HandState::default() {
                    true => drop(book.by_hand.remove(&(vip, real))),
                    false => drop(book.by_hand.insert((vip, real), set)),
                })
            }
            FleetEvent::Token(id, token) => self.change(|book| {
                book.tokens.insert(id, token);
            }),
            FleetEvent::Claim(id, by) => self.change(|book| book.claim(id, by)),
            FleetEvent::TokenOver(id) => self.change(|book| drop(book.tokens.remove(&id))),
            FleetEvent::PutBack(stored) => match self.has_lost(&stored) {
                true => self.put_back(&stored),
                false => Vec::new(),
            },
        }
    }

    /// Whether a store has lost the last good book: it has none, a copy from before, from which
    /// others may have gone on to where this balancer is, or one that was founded anew.
    pub fn has_lost(&self, stored: &Stored) -> bool {
        let Some(own) = &self.book else { return false };
        match &stored.book {
            None => true,
            Some(found) if found.position == own.position => {
                found != own || Some(found.position) < stored.acks.furthest()
            }
            Some(found) => !found.position.follows(own.position),
        }
    }

    fn put_back(&self, stored: &Stored) -> Vec<FleetAction> {
        let Some(book) = &self.book else {
            return Vec::new();
        };
        let found = stored.book.as_ref().map(|book| book.position);
        let known = found.max(stored.acks.furthest());
        let restored = book.restored(known, self.name);
        vec![FleetAction::Propose(found, Arc::new(restored))]
    }

    fn read(&mut self, stored: Stored) -> Vec<FleetAction> {
        self.has_lease = true;
        let own = self.book.as_ref().map(|book| book.position);
        let found = stored.book.as_ref().map(|book| book.position);
        // What is served must not be forgotten. All that serve know each id and key in use, so
        // any of them may put its book back, and none that does not serve.
        let lost = self.has_lost(&stored);
        if self.in_service && lost {
            return self.put_back(&stored);
        }
        let Some(book) = stored.book else {
            return vec![FleetAction::Say(Hold::StoreEmpty)];
        };
        if lost {
            return vec![FleetAction::Say(Hold::StoreOlder(book.position))];
        }
        if book.format > self.reads {
            return vec![FleetAction::Say(Hold::Format(book.format))];
        }
        if own != found {
            return self.take(book);
        }
        if self.applied != found {
            // It may not be on disk either.
            return vec![FleetAction::Keep(book.clone()), FleetAction::Apply(book)];
        }
        let mut actions = Vec::new();
        if self.in_service && !self.serves_by(&book) {
            self.in_service = false;
            actions.push(FleetAction::LeaveService);
        }
        if stored.acks.members.get(&self.name) != Some(&book.position) {
            actions.push(FleetAction::Acknowledge(book.position));
        }
        self.evidence.watch(&book, &stored.acks);
        let changer = Changer {
            name: self.name,
            reads: self.reads,
            in_service: self.in_service,
        };
        if let Some(next) = advance(&book, changer, &stored.acks, &self.evidence) {
            actions.push(FleetAction::Propose(Some(book.position), Arc::new(next)));
        }
        actions
    }

    fn take(&mut self, book: Arc<FleetBook>) -> Vec<FleetAction> {
        self.book = Some(book.clone());
        self.applied = None;
        vec![FleetAction::Keep(book.clone()), FleetAction::Apply(book)]
    }

    fn applied(&mut self, position: Position) -> Vec<FleetAction> {
        let Some(book) = self.book.clone() else {
            return Vec::new();
        };
        if book.position != position {
            return Vec::new();
        }
        self.applied = Some(position);
        let mut actions = vec![FleetAction::Acknowledge(position)];
        if let Some(since) = self.entering.take() {
            let record = book.members.get(&self.name);
            if record.is_some_and(|record| record.since == since) {
                self.in_service = true;
                actions.push(FleetAction::EnterService);
            }
        }
        actions
    }

    fn accepted(&mut self, book: Arc<FleetBook>) -> Vec<FleetAction> {
        let record = book.members.get(&self.name);
        let comes_in = record.is_some_and(|record| {
            record.phase == MemberPhase::Serving && record.since == book.position
        });
        if comes_in && !self.in_service && self.has_lease {
            self.entering = Some(book.position);
        }
        self.take(book)
    }

    fn lease_over(&mut self) -> Vec<FleetAction> {
        self.has_lease = false;
        self.entering = None;
        let book = self.book.as_ref();
        let goes_on = book.is_some_and(|book| book.absence == Absence::Waits);
        if goes_on || !self.in_service {
            return Vec::new();
        }
        self.in_service = false;
        vec![FleetAction::LeaveService]
    }

    /// Proposes what an operator wants, if this balancer has come to the newest book that it knows
    /// of; the store refuses it otherwise.
    fn change(&self, change: impl FnOnce(&mut FleetBook)) -> Vec<FleetAction> {
        let Some(book) = &self.book else {
            return Vec::new();
        };
        let mut next = FleetBook::clone(book);
        change(&mut next);
        if next == **book {
            return Vec::new();
        }
        next.position = book.position.next();
        vec![FleetAction::Propose(Some(book.position), Arc::new(next))]
    }

    fn change_vips(&self, change: FleetChange) -> Vec<FleetAction> {
        let book = self.book.as_ref();
        let held = book.map(|book| book.removals(&change.vips, change.may_remove));
        match held.filter(|held| !held.is_empty()) {
            Some(held) => vec![FleetAction::Say(Hold::Removes(held))],
            None => self.change(|book| book.take_change(change, self.name)),
        }
    }

    fn serves_by(&self, book: &FleetBook) -> bool {
        let record = book.members.get(&self.name);
        record.is_some_and(|record| record.phase == MemberPhase::Serving)
    }
}
