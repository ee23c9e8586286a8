// SPDX-License-Identifier: Apache-2.0
//! A fleet around the rules: a store, balancers with a disk and a data plane, agents, and every
//! connection that there can be.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use causeway_core::control::merge::BalancerId;
use causeway_core::fleet::{
    Absence, Acknowledged, CidForm, CidPhases, FleetAction, FleetAgent, FleetBook, FleetEvent,
    FleetMember, FleetRest, FleetVip, FleetVipReal, IdPhase, IdRecord, KeyNumber, KeyPhases,
    MayRemove, MemberPhase, MemberRecord, Position, Stored,
};

use super::connections::Connections;
use super::{Budget, FleetRules, Planted, QuicBegins};

pub(super) const VIP: &str = "v";
/// The real that connections are on from the beginning, and the one that comes.
pub(super) const OLD_REAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
pub(super) const NEW_REAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
/// The newest format of the book that this build reads; the version before reads one less.
pub(super) const READS: u16 = 2;

/// A move of one of the machines.
#[derive(Clone, Copy, Debug)]
pub struct RulesStep {
    who: char,
    what: &'static str,
    whom: char,
}

impl fmt::Display for RulesStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [self.who.to_string(), self.what.into(), self.whom.into()];
        f.write_str(parts.join(" ").trim())
    }
}

/// The step of a balancer, about another.
pub(super) fn step(at: usize, what: &'static str, whom: Option<usize>) -> RulesStep {
    RulesStep {
        who: letter(at),
        what,
        whom: whom.map_or(' ', letter),
    }
}

fn letter(at: usize) -> char {
    char::from(b'A' + at as u8)
}

fn name(at: usize) -> BalancerId {
    at as BalancerId + 1
}

/// Whether a second founder's book it is, which none of the fleet may follow.
pub(super) fn is_anew(book: &FleetBook) -> bool {
    let of = book.position.generation;
    of.count == 0 && of.by != name(0)
}

/// The whole fleet at an instant.
#[derive(Clone, Hash)]
pub struct RulesWorld {
    pub(super) store_is_up: bool,
    pub(super) store: Stored,
    /// A copy of the store, to which it may be set back.
    pub(super) copy: Option<Stored>,
    pub(super) members: Vec<Balancer>,
    pub(super) agents: Vec<FleetAgent>,
    pub(super) connections: Connections,
    pub(super) budget: Budget,
    pub(super) pushed: Vec<bool>,
    /// Bits of the agents that a token has been given to.
    pub(super) given: u8,
    /// Whether an operator has confirmed that the last real goes.
    pub(super) confirmed: bool,
}

/// A balancer and what outlives its daemon.
#[derive(Clone, Hash)]
pub(super) struct Balancer {
    pub(super) daemon: Option<FleetMember>,
    reads: u16,
    file: Option<Arc<FleetBook>>,
    pub(super) plane: Option<Arc<FleetBook>>,
    /// Whether routers send to it.
    pub(super) in_service: bool,
    pub(super) reaches_store: bool,
    acknowledges: Option<Position>,
    proposes: Option<(Option<Position>, Arc<FleetBook>)>,
    lease_is_over: bool,
    /// Whether it has founded the fleet anew, and serves by that: clients of its own, whose connections
    /// break once it follows the others.
    pub(super) is_apart: bool,
}

impl Balancer {
    /// Whether no proposal of its is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.proposes.is_none()
    }

    /// Whether routers send clients of the fleet to it.
    pub(super) fn serves(&self) -> bool {
        self.in_service && !self.is_apart
    }

    /// With a way to the store, and of this build if versions come and go: of two that stay beside
    /// each other all has to come of it, too.
    pub(super) fn make_well(&mut self, rules: &FleetRules) {
        if self.reads != READS && rules.budget.versions > 0 {
            self.daemon = None;
            self.acknowledges = None;
            self.reads = READS;
        }
        self.reaches_store = true;
        self.proposes = None;
    }
}

impl RulesWorld {
    /// All serve, and the old real has id 0.
    pub(super) fn begin(rules: &FleetRules) -> Self {
        let mut book = FleetBook::new(rules.absence, 1, name(0));
        let since = book.position;
        for at in 0..rules.members {
            let record = MemberRecord {
                phase: MemberPhase::Serving,
                since,
                reads: rules.reads_at_first(at),
            };
            book.members.insert(name(at), record);
        }
        if rules.joins {
            book.members.remove(&name(rules.members - 1));
        }
        book.format = match rules.old_version {
            true => READS - 1,
            false => READS,
        };
        let reals = match rules.drops() {
            true => &[OLD_REAL, NEW_REAL][..],
            false => &[OLD_REAL],
        };
        for (id, real) in (0..).zip(reals) {
            let record = IdRecord {
                real: *real,
                phase: IdPhase::Live,
                since,
                agent: true,
            };
            book.ids.insert((Arc::from(VIP), id), record);
        }
        book.vips
            .insert(Arc::from(VIP), vip(rules.ids, reals, None));
        if rules.quic == QuicBegins::InTheBook {
            let phases = KeyPhases {
                issued: 1,
                other: None,
                since,
            };
            let first = rules.cid(1);
            let cids = CidPhases {
                phases,
                forms: [(1, first)].into(),
            };
            book.cids.insert(Arc::from(VIP), cids);
            if let Some(vip) = book.vips.get_mut(VIP) {
                vip.cid = Some(first);
            }
        }
        let book = Arc::new(book);
        let mut agents = vec![FleetAgent::new(OLD_REAL)];
        agents[0].handle_book(book.of_agent(OLD_REAL));
        if rules.has_new_real() {
            agents.push(FleetAgent::new(NEW_REAL));
        }
        if rules.drops() {
            agents[1].handle_book(book.of_agent(NEW_REAL));
        }
        let members = (0..rules.members).map(|at| {
            let knows = book.members.contains_key(&name(at));
            let kept = knows.then(|| book.clone());
            let reads = rules.reads_at_first(at);
            let (mut daemon, _) = FleetMember::start(name(at), reads, kept.clone(), knows);
            if knows {
                daemon.handle(FleetEvent::Applied(since));
            }
            Balancer {
                daemon: Some(daemon),
                reads,
                file: kept.clone(),
                plane: kept,
                in_service: knows,
                reaches_store: true,
                acknowledges: None,
                proposes: None,
                lease_is_over: false,
                is_apart: false,
            }
        });
        let members: Vec<Balancer> = members.collect();
        let acks = Acknowledged {
            members: book.serving().map(|name| (name, since)).collect(),
            agents: reals.iter().map(|real| (*real, since)).collect(),
        };
        let store = Stored {
            book: Some(book),
            acks,
        };
        let store = match rules.founds {
            true => Stored::default(),
            false => store,
        };
        let mut world = Self {
            store_is_up: true,
            copy: (rules.budget.rewinds > 0).then(|| store.clone()),
            store,
            members,
            agents,
            connections: Connections::default(),
            budget: rules.budget,
            pushed: vec![false; rules.wishes.len()],
            given: 0,
            confirmed: false,
        };
        world.open(rules);
        world
    }

    /// Every next move.
    pub(super) fn moves(&self, rules: &FleetRules) -> Vec<(RulesStep, Self)> {
        let mut moves = Vec::new();
        let mut put = |step: RulesStep, mut next: Self| {
            next.open(rules);
            moves.push((step, next));
        };
        for at in 0..self.members.len() {
            self.daemon_moves(rules, at, &mut put);
            self.fate_moves(rules, at, &mut put);
            self.knowledge_moves(rules, at, &mut put);
            self.join_moves(rules, at, &mut put);
        }
        self.agent_moves(&mut put);
        self.store_moves(&mut put);
        moves
    }

    pub(super) fn reaches(&self, at: usize) -> bool {
        self.store_is_up && self.members[at].reaches_store
    }

    fn daemon_moves(&self, rules: &FleetRules, at: usize, put: &mut impl FnMut(RulesStep, Self)) {
        let member = &self.members[at];
        if !self.reaches(at) {
            return;
        }
        if member.proposes.is_some() {
            let mut next = self.clone();
            next.proposal_arrives(rules, at);
            put(step(at, "has its proposal arrive", None), next);
        }
        if let Some(position) = member.acknowledges {
            let mut next = self.clone();
            next.acknowledge(at, position);
            put(step(at, "has its acknowledgement arrive", None), next);
        }
        if member.daemon.is_none() {
            return;
        }
        if member.proposes.is_none() {
            let mut next = self.clone();
            next.read(rules, at);
            put(step(at, "reads the store", None), next);
            if self.budget.unwritten > 0 {
                let mut next = self.clone();
                let mut actions = next.heard(rules, at);
                let is_keep = |action: &FleetAction| matches!(action, FleetAction::Keep(_));
                if let Some(keep) = actions.iter().position(is_keep) {
                    next.budget.unwritten -= 1;
                    actions.truncate(keep);
                    next.act(rules, at, actions);
                    put(step(at, "reads the store and cannot keep it", None), next);
                }
            }
            let book = member.daemon.as_ref().and_then(FleetMember::book);
            if rules.founds && book.is_none() && self.store.book.is_none() {
                let mut next = self.clone();
                next.found(rules, at);
                put(step(at, "founds the fleet anew", None), next);
            }
            for (which, wish) in rules.wishes.iter().enumerate() {
                let may_remove = match rules.planted {
                    // Each file had two, and drops one of them.
                    Planted::WeighsByItsFile => MayRemove::Confirmed,
                    _ => MayRemove::Part(500),
                };
                let push = book.and_then(|book| rules.push(*wish, book, may_remove));
                if let Some(push) = push.filter(|_| !self.pushed[which]) {
                    let mut next = self.clone();
                    next.push(rules, at, which, push);
                    put(step(at, "is told what the operator wants", None), next);
                }
            }
        }
        if self.budget.crashes > 0 {
            // Between the file and the data plane.
            let mut next = self.clone();
            next.budget.crashes -= 1;
            let actions = next.heard(rules, at);
            for action in actions {
                if let FleetAction::Keep(book) = action {
                    next.members[at].file = Some(book);
                }
            }
            next.crash(at);
            put(
                step(at, "reads the store, keeps it and crashes", None),
                next,
            );
        }
    }

    /// What becomes of a balancer.
    fn fate_moves(&self, rules: &FleetRules, at: usize, put: &mut impl FnMut(RulesStep, Self)) {
        let member = &self.members[at];
        let with = |change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            change(&mut next);
            next
        };
        if member.daemon.is_some() && self.budget.crashes > 0 {
            let next = with(&|next| {
                next.budget.crashes -= 1;
                next.crash(at);
            });
            put(step(at, "crashes", None), next);
        }
        if self.budget.reboots > 0 {
            let next = with(&|next| {
                next.budget.reboots -= 1;
                next.crash(at);
                next.members[at].plane = None;
                next.members[at].in_service = false;
                next.connections.forget_table(at);
            });
            put(step(at, "loses power", None), next);
        }
        if member.daemon.is_none() {
            put(
                step(at, "starts", None),
                with(&|next| next.start(rules, at)),
            );
            if self.budget.files > 0 && member.file.is_some() {
                let next = with(&|next| {
                    next.budget.files -= 1;
                    next.members[at].file = None;
                    next.start(rules, at);
                });
                put(step(at, "starts without its file", None), next);
            }
            if rules.old_version && self.budget.versions > 0 {
                let next = with(&|next| {
                    next.budget.versions -= 1;
                    let reads = &mut next.members[at].reads;
                    *reads = if *reads == READS { READS - 1 } else { READS };
                    next.start(rules, at);
                });
                put(step(at, "starts in the other version", None), next);
            }
        }
        if member.reaches_store && self.budget.cuts > 0 {
            let next = with(&|next| {
                next.budget.cuts -= 1;
                next.members[at].reaches_store = false;
            });
            put(step(at, "is cut off from the store", None), next);
        }
        if !member.reaches_store {
            let next = with(&|next| next.members[at].reaches_store = true);
            put(step(at, "reaches the store again", None), next);
        }
        let may_lapse = !self.reaches(at) || member.daemon.is_none();
        if rules.absence == Absence::StepsAside
            && may_lapse
            && !member.lease_is_over
            && self.budget.lapses > 0
        {
            let next = with(&|next| {
                next.budget.lapses -= 1;
                next.lapse(rules, at);
            });
            put(step(at, "comes to the end of its lease", None), next);
        }
    }

    /// What a balancer comes to know without the store.
    fn knowledge_moves(
        &self,
        rules: &FleetRules,
        at: usize,
        put: &mut impl FnMut(RulesStep, Self),
    ) {
        let Some(daemon) = &self.members[at].daemon else {
            return;
        };
        let Some(book) = daemon.book() else { return };
        for whom in (0..self.members.len()).filter(|whom| *whom != at) {
            let Some(record) = book.members.get(&name(whom)) else {
                continue;
            };
            let since = record.since;
            if daemon.evidence().gone.contains_key(&name(whom)) || !self.is_gone(rules, whom) {
                continue;
            }
            let mut next = self.clone();
            if rules.absence == Absence::Waits {
                if self.budget.words == 0 {
                    continue;
                }
                next.budget.words -= 1;
            }
            let member = name(whom);
            next.tell(at, FleetEvent::Gone { member, since });
            put(step(at, "learns of the absence of", Some(whom)), next);
        }
        for (rest, over) in &daemon.evidence().rests {
            if !over {
                let mut next = self.clone();
                next.rested(rules, at, rest);
                let what = match rest {
                    FleetRest::Id { .. } => "has watched an id rest",
                    FleetRest::Key { .. } => "has watched a key rest",
                    FleetRest::Cid { .. } => "has watched a configuration rest",
                };
                put(step(at, what, None), next);
            }
        }
    }

    /// What clocks, watchdogs and operators vouch for.
    fn is_gone(&self, rules: &FleetRules, whom: usize) -> bool {
        let member = &self.members[whom];
        let is_out = !member.in_service && !member.daemon.as_ref().is_some_and(|it| it.enters());
        match rules.absence {
            _ if rules.planted == Planted::LeaseEndsEarly => !self.reaches(whom),
            Absence::StepsAside => member.lease_is_over && is_out,
            Absence::Waits => member.daemon.is_none() && is_out,
        }
    }

    /// Where a step of an agent changes neither its cookies nor what others wait for, it is not
    /// made: what comes of it comes without it, too.
    fn agent_moves(&self, put: &mut impl FnMut(RulesStep, Self)) {
        for (which, agent) in self.agents.iter().enumerate() {
            let who = char::from(b'x' + which as u8);
            for (at, member) in self.members.iter().enumerate() {
                let book = member.daemon.as_ref().and_then(FleetMember::book);
                let Some(book) = book else { continue };
                let mut next = self.clone();
                next.agents[which].handle_book(book.of_agent(agent.real()));
                if self.agent_matters(agent.position(), agent)
                    != self.agent_matters(Some(book.position), &next.agents[which])
                {
                    let what = "hears the book of";
                    let whom = letter(at);
                    put(RulesStep { who, what, whom }, next);
                }
            }
            let speaks = |at: usize| self.reaches(at) && self.members[at].daemon.is_some();
            if (0..self.members.len()).any(speaks) {
                let said = self.store.acks.agents.get(&agent.real()).copied();
                let mut next = self.clone();
                if next.agent_acknowledges(agent)
                    && self.agent_matters(said, agent)
                        != self.agent_matters(agent.position(), agent)
                {
                    let what = "has its acknowledgement arrive";
                    put(
                        RulesStep {
                            who,
                            what,
                            whom: ' ',
                        },
                        next,
                    );
                }
            }
        }
    }

    /// What an agent writes, and which steps need not wait for it.
    fn agent_matters(
        &self,
        position: Option<Position>,
        agent: &FleetAgent,
    ) -> (Option<(u16, KeyNumber)>, Option<KeyNumber>, bool, bool) {
        let covers = |since: Position| position.is_some_and(|at| at.covers(since));
        let book = self.store.book.as_ref();
        let own = book.and_then(|book| {
            let mut of_vip = book.of_vip(VIP);
            of_vip.find(|(_, record)| record.real == agent.real())
        });
        let own = own.is_some_and(|(_, record)| covers(record.since));
        let rotates = book.filter(|book| book.wanted_key > 1);
        let keys = rotates.is_some_and(|book| covers(book.keys.since));
        let cids = book.and_then(|book| book.cids.get(VIP));
        let cids = cids.is_some_and(|own| covers(own.phases.since));
        (agent.cookie(VIP), agent.issued_cid(VIP), own, keys || cids)
    }

    fn store_moves(&self, put: &mut impl FnMut(RulesStep, Self)) {
        let store = |what| RulesStep {
            who: ' ',
            what,
            whom: ' ',
        };
        let mut next = self.clone();
        next.store_is_up = !self.store_is_up;
        if !self.store_is_up {
            put(store("the store is back"), next);
        } else if self.budget.outages > 0 {
            next.budget.outages -= 1;
            put(store("the store is lost"), next);
        }
        if self.budget.wipes > 0 {
            let mut next = self.clone();
            next.budget.wipes -= 1;
            next.store = Stored::default();
            put(store("the store is wiped"), next);
        }
        if let Some(copy) = self.copy.clone().filter(|copy| *copy != self.store) {
            let mut next = self.clone();
            next.budget.rewinds -= 1;
            next.copy = None;
            next.store = copy;
            put(store("the store is set back"), next);
        }
    }

    /// What runs there has another id than with the others.
    fn found(&mut self, rules: &FleetRules, at: usize) {
        let mut book = FleetBook::new(rules.absence, 1, name(at));
        book.format = READS;
        let record = IdRecord {
            real: OLD_REAL,
            phase: IdPhase::Live,
            since: book.position,
            agent: true,
        };
        book.ids.insert((Arc::from(VIP), rules.ids - 1), record);
        book.vips
            .insert(Arc::from(VIP), vip(rules.ids, &[OLD_REAL], None));
        self.members[at].is_apart = true;
        self.act(rules, at, vec![FleetAction::Propose(None, Arc::new(book))]);
    }

    pub(super) fn crash(&mut self, at: usize) {
        let member = &mut self.members[at];
        member.daemon = None;
        member.acknowledges = None;
    }

    pub(super) fn start(&mut self, rules: &FleetRules, at: usize) {
        let member = &mut self.members[at];
        let in_service = member.in_service
            || (rules.planted == Planted::ServesFromItsFile && member.file.is_some());
        member.in_service = in_service;
        let kept = member.file.clone();
        let (daemon, actions) = FleetMember::start(name(at), member.reads, kept, in_service);
        member.daemon = Some(daemon);
        self.act(rules, at, actions);
    }

    fn lapse(&mut self, rules: &FleetRules, at: usize) {
        let member = &mut self.members[at];
        member.lease_is_over = true;
        match &mut member.daemon {
            Some(daemon) => {
                let actions = daemon.handle(FleetEvent::LeaseOver);
                self.act(rules, at, actions);
            }
            // What watches the daemon withdraws.
            None => member.in_service = false,
        }
    }

    /// What the daemon makes of the store.
    fn heard(&mut self, rules: &FleetRules, at: usize) -> Vec<FleetAction> {
        let mut stored = self.store.clone();
        rules.distort(self.members[at].reads, &mut stored);
        let member = &mut self.members[at];
        member.lease_is_over = false;
        if let Some(daemon) = &mut member.daemon
            && rules.planted == Planted::TakesWhatIsOlder
            && !daemon.in_service()
            && stored.book.is_some()
            && daemon.has_lost(&stored)
        {
            *daemon = FleetMember::start(name(at), member.reads, None, false).0;
        }
        if let Some(daemon) = &mut member.daemon
            && rules.planted == Planted::TakesAnotherFounders
            && daemon.in_service()
            && stored.book.as_deref().is_some_and(is_anew)
            && daemon.has_lost(&stored)
        {
            *daemon = FleetMember::start(name(at), member.reads, None, true).0;
        }
        match &mut member.daemon {
            // Where it acknowledges before it applies, it applies here.
            Some(daemon) if rules.planted == Planted::AcknowledgesBeforeItApplies => {
                member.plane = daemon.book().cloned();
                daemon.handle(FleetEvent::Read(stored))
            }
            Some(daemon) => daemon.handle(FleetEvent::Read(stored)),
            None => Vec::new(),
        }
    }

    pub(super) fn read(&mut self, rules: &FleetRules, at: usize) {
        let daemon = self.members[at].daemon.as_ref();
        let has_read = daemon.and_then(FleetMember::book) == self.store.book.as_ref();
        let mut actions = self.heard(rules, at);
        match rules.planted {
            Planted::PutsBackWhatIsStale if self.store.book.is_none() => {
                actions = self.tell(at, FleetEvent::PutBack(self.store.clone()));
            }
            Planted::DoesNotKeepAgain if has_read => {
                actions.retain(|action| !matches!(action, FleetAction::Keep(_)));
            }
            Planted::DoesNotRepeatItself => {
                actions.retain(|action| !matches!(action, FleetAction::Acknowledge(_)));
            }
            _ => {}
        }
        self.act(rules, at, actions);
    }

    pub(super) fn tell(&mut self, at: usize, event: FleetEvent) -> Vec<FleetAction> {
        let daemon = &mut self.members[at].daemon;
        daemon
            .as_mut()
            .map(|it| it.handle(event))
            .unwrap_or_default()
    }

    pub(super) fn push(&mut self, rules: &FleetRules, at: usize, which: usize, push: FleetEvent) {
        self.pushed[which] = true;
        let actions = self.tell(at, push);
        self.act(rules, at, actions);
    }

    pub(super) fn act(&mut self, rules: &FleetRules, at: usize, actions: Vec<FleetAction>) {
        for action in actions {
            match action {
                FleetAction::Keep(book) => self.members[at].file = Some(book),
                FleetAction::Apply(book) => {
                    let position = book.position;
                    if rules.planted != Planted::AcknowledgesBeforeItApplies {
                        self.members[at].plane = Some(book);
                    }
                    let mut then = self.tell(at, FleetEvent::Applied(position));
                    if !rules.delays {
                        then.retain(|action| !matches!(action, FleetAction::Acknowledge(_)));
                    }
                    self.act(rules, at, then);
                }
                // It is lost as well as late where it is not modelled to take time: a balancer that
                // reads says again what the store does not have.
                FleetAction::Acknowledge(position) if rules.delays => {
                    self.members[at].acknowledges = Some(position);
                }
                FleetAction::Acknowledge(position) if self.reaches(at) => {
                    self.acknowledge(at, position);
                }
                FleetAction::Acknowledge(_) => {}
                FleetAction::Propose(expected, mut book) => {
                    if rules.planted == Planted::PutsBackTokens {
                        self.put_back_tokens(at, &mut book);
                    }
                    self.members[at].proposes = Some((expected, book));
                    if !rules.delays {
                        self.proposal_arrives(rules, at);
                    }
                }
                FleetAction::EnterService => {
                    let member = &mut self.members[at];
                    member.in_service = true;
                    let plane = member.plane.as_ref().map(|book| book.position.generation);
                    member.is_apart &= plane.is_some_and(|of| (of.count, of.by) == (0, name(at)));
                }
                FleetAction::LeaveService => self.members[at].in_service = false,
                FleetAction::Say(_) => {}
            }
        }
    }

    fn proposal_arrives(&mut self, rules: &FleetRules, at: usize) {
        let Some((expected, book)) = self.members[at].proposes.take() else {
            return;
        };
        let found = self.store.book.as_ref().map(|book| book.position);
        if self.reaches(at)
            && (found == expected || rules.planted == Planted::WritesWithoutComparing)
        {
            self.store.book = Some(book.clone());
            let actions = self.tell(at, FleetEvent::Accepted(book));
            self.act(rules, at, actions);
        }
    }

    pub(super) fn acknowledge(&mut self, at: usize, position: Position) {
        self.members[at].acknowledges = None;
        self.store.acks.members.insert(name(at), position);
    }

    pub(super) fn arrive(&mut self, rules: &FleetRules, at: usize) {
        if let Some(position) = self.members[at].acknowledges {
            self.acknowledge(at, position);
        }
        self.proposal_arrives(rules, at);
    }

    /// Whether that is news.
    fn agent_acknowledges(&mut self, agent: &FleetAgent) -> bool {
        let Some(position) = agent.position() else {
            return false;
        };
        self.store.acks.agents.insert(agent.real(), position) != Some(position)
    }

    /// Agents receive all, and their reports arrive.
    pub(super) fn agents_catch_up(&mut self) {
        for which in 0..self.agents.len() {
            for member in &self.members {
                if let Some(book) = member.daemon.as_ref().and_then(FleetMember::book) {
                    let orders = book.of_agent(self.agents[which].real());
                    self.agents[which].handle_book(orders);
                }
            }
            let agent = self.agents[which].clone();
            self.agent_acknowledges(&agent);
        }
    }
}

pub(super) fn vip(ids: u16, reals: &[IpAddr], cid: Option<CidForm>) -> FleetVip {
    let real = FleetVipReal {
        id: None,
        agent: true,
    };
    FleetVip {
        ids,
        cid,
        reals: reals.iter().map(|address| (*address, real)).collect(),
    }
}
