// SPDX-License-Identifier: Apache-2.0
//! Single rules by hand. All orders of events are tried in `dev/sim`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use causeway_quic_lb::{Algorithm, CidConfig, CidKey};

use super::*;

const WEB: &str = "192.0.2.1:443/tcp";

fn real(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn vip(reals: impl IntoIterator<Item = u8>) -> FleetVip {
    let wanted = FleetVipReal {
        id: None,
        agent: false,
    };
    FleetVip {
        ids: 64,
        cid: None,
        reals: reals.into_iter().map(|last| (real(last), wanted)).collect(),
    }
}

/// An operator wants a VIP to be so, and has seen what that takes away.
fn wants(name: &str, vip: Option<FleetVip>) -> FleetEvent {
    FleetEvent::Change(change(name, vip, MayRemove::Confirmed))
}

fn change(name: &str, vip: Option<FleetVip>, may_remove: MayRemove) -> FleetChange {
    FleetChange {
        vips: [(name.into(), vip)].into(),
        may_remove,
        at_s: 0,
        back_to: None,
    }
}

/// A store and balancers that carry out their orders at once.
struct Small {
    stored: Stored,
    members: Vec<FleetMember>,
    said: Vec<Hold>,
}

impl Small {
    fn new(absence: Absence, members: u64) -> Self {
        let book = FleetBook::new(absence, 1, 1);
        let member = |name| FleetMember::start(name, 1, None, false).0;
        let mut small = Self {
            stored: Stored {
                book: Some(Arc::new(book)),
                ..Stored::default()
            },
            members: (1..=members).map(member).collect(),
            said: Vec::new(),
        };
        small.settle();
        small
    }

    fn tell(&mut self, at: usize, event: FleetEvent) {
        let name = at as u64 + 1;
        for action in self.members[at].handle(event) {
            match action {
                FleetAction::Apply(book) => self.tell(at, FleetEvent::Applied(book.position)),
                FleetAction::Acknowledge(position) => {
                    self.stored.acks.members.insert(name, position);
                }
                FleetAction::Propose(expected, book) => {
                    let found = self.stored.book.as_ref().map(|book| book.position);
                    if found == expected {
                        self.stored.book = Some(book.clone());
                        self.tell(at, FleetEvent::Accepted(book));
                    }
                }
                FleetAction::Say(hold) => self.said.push(hold),
                FleetAction::Keep(_) | FleetAction::EnterService | FleetAction::LeaveService => {}
            }
        }
    }

    fn read(&mut self, at: usize) {
        self.tell(at, FleetEvent::Read(self.stored.clone()));
    }

    fn settle(&mut self) {
        for _ in 0..20 {
            (0..self.members.len()).for_each(|at| self.read(at));
        }
    }

    fn book(&self) -> &FleetBook {
        self.stored.book.as_ref().expect("a book")
    }

    fn phases(&self) -> BTreeMap<IpAddr, IdPhase> {
        let ids = self.book().of_vip(WEB);
        ids.map(|(_, record)| (record.real, record.phase)).collect()
    }
}

#[test]
fn balancers_join_and_reals_that_collide_by_address_get_ids_of_their_own() {
    let mut small = Small::new(Absence::Waits, 3);
    assert!(small.members.iter().all(FleetMember::in_service));
    small.tell(0, wants(WEB, Some(vip(1..=60))));
    small.settle();
    // Of 64 ids: by addresses alone nearly all would collide. The key of the map is the id.
    assert_eq!(small.book().of_vip(WEB).count(), 60);
    let phases = small.phases();
    assert_eq!(phases.len(), 60);
    assert!(phases.values().all(|phase| *phase == IdPhase::Live));
    // More reals than ids: what there is stays, and the rest waits.
    let before: Vec<_> = small
        .book()
        .of_vip(WEB)
        .map(|(id, record)| (id, record.real))
        .collect();
    small.tell(0, wants(WEB, Some(vip(1..=70))));
    small.settle();
    let after: BTreeMap<_, _> = small
        .book()
        .of_vip(WEB)
        .map(|(id, record)| (id, record.real))
        .collect();
    assert_eq!(after.len(), 64);
    assert!(before.iter().all(|(id, real)| after.get(id) == Some(real)));
}

#[test]
fn one_that_lags_holds_a_new_real_up_and_is_named() {
    let mut small = Small::new(Absence::Waits, 2);
    small.tell(0, wants(WEB, Some(vip([7]))));
    (0..20).for_each(|_| small.read(0));
    assert_eq!(small.phases(), [(real(7), IdPhase::Known)].into());
    assert_eq!(
        small.members[0].book().map(|book| book.picks(WEB).count()),
        Some(0)
    );
    let (_, known) = small.book().of_vip(WEB).next().expect("an id");
    let missing = small.stored.acks.missing(small.book(), known.since);
    assert_eq!(missing, (vec![2], vec![]));
    // Its lease may be over: no member goes on without it before it is said to be gone.
    small.tell(1, FleetEvent::LeaseOver);
    assert!(small.members[1].in_service(), "it goes on with what it has");
    (0..20).for_each(|_| small.read(0));
    assert_eq!(small.phases(), [(real(7), IdPhase::Known)].into());
    let since = small.book().members[&2].since;
    small.tell(0, FleetEvent::Gone { member: 2, since });
    small.read(0);
    assert_eq!(small.phases(), [(real(7), IdPhase::Live)].into());
    assert_eq!(small.book().serving().collect::<Vec<_>>(), [1]);
}

#[test]
fn a_newcomer_takes_the_place_of_the_last_that_served_once_that_is_said_to_be_gone() {
    let mut small = Small::new(Absence::Waits, 1);
    let (newcomer, _) = FleetMember::start(2, 1, None, false);
    small.members.push(newcomer);
    (0..5).for_each(|_| small.read(1));
    assert!(
        !small.members[1].in_service(),
        "the first may know nothing of it"
    );
    let since = small.book().members[&1].since;
    small.tell(1, FleetEvent::Gone { member: 1, since });
    (0..5).for_each(|_| small.read(1));
    assert!(small.members[1].in_service());
    assert_eq!(small.book().serving().collect::<Vec<_>>(), [2]);
}

#[test]
fn a_removed_real_leaves_rests_and_may_come_back_with_its_id() {
    let mut small = Small::new(Absence::Waits, 2);
    small.tell(0, wants(WEB, Some(vip([7]))));
    small.settle();
    let id = small.book().of_vip(WEB).next().map(|(id, _)| id);
    small.tell(0, wants(WEB, Some(vip([]))));
    (0..5).for_each(|_| small.read(0));
    assert_eq!(
        small.phases(),
        [(real(7), IdPhase::Leaving)].into(),
        "the other may pick it"
    );
    small.settle();
    assert_eq!(small.phases(), [(real(7), IdPhase::Resting)].into());
    assert_eq!(small.book().route(WEB, id.expect("an id")), Some(real(7)));
    small.tell(0, wants(WEB, Some(vip([7]))));
    small.settle();
    assert_eq!(small.phases(), [(real(7), IdPhase::Live)].into());
    assert_eq!(small.book().of_vip(WEB).next().map(|(id, _)| id), id);

    small.tell(0, wants(WEB, None));
    small.settle();
    let rests = small.members[1].evidence().rests.clone();
    assert_eq!(rests.len(), 1);
    for rest in rests.into_keys() {
        small.tell(1, FleetEvent::Rested(rest));
    }
    small.settle();
    assert!(small.phases().is_empty());
}

#[test]
fn what_is_set_by_hand_is_in_the_book_and_outlives_balancers() {
    let mut small = Small::new(Absence::Waits, 2);
    small.tell(0, wants(WEB, Some(vip([7, 8]))));
    small.settle();
    let drained = HandState {
        drain: Some(true),
        ..HandState::default()
    };
    small.tell(1, FleetEvent::ByHand(WEB.into(), real(7), drained));
    small.settle();
    small.members[0] = FleetMember::start(1, 1, None, true).0;
    small.settle();
    let picks = |small: &Small, at: usize| -> Vec<IpAddr> {
        let book = small.members[at].book().expect("a book");
        book.picks(WEB).map(|(_, real)| real).collect()
    };
    assert_eq!(picks(&small, 0), [real(8)]);
    assert_eq!(picks(&small, 1), [real(8)]);
    small.tell(
        0,
        FleetEvent::ByHand(WEB.into(), real(7), HandState::default()),
    );
    small.settle();
    assert_eq!(picks(&small, 1).len(), 2);
    assert!(small.book().by_hand.is_empty());
}

#[test]
fn what_is_set_by_hand_for_a_real_that_rests_is_forgotten_with_its_id() {
    let mut small = Small::new(Absence::Waits, 2);
    small.tell(0, wants(WEB, Some(vip([7, 8]))));
    small.settle();
    small.tell(0, wants(WEB, Some(vip([8]))));
    small.settle();
    let drained = HandState {
        drain: Some(true),
        ..HandState::default()
    };
    for last in [7, 8] {
        small.tell(0, FleetEvent::ByHand(WEB.into(), real(last), drained));
        small.settle();
    }
    assert_eq!(small.book().by_hand.len(), 2);
    small.rest();
    assert_eq!(small.phases().len(), 1);
    let left: Vec<_> = small.book().by_hand.keys().map(|(_, real)| *real).collect();
    assert_eq!(left, [real(8)]);
}

#[test]
fn where_members_step_aside_the_end_of_a_lease_withdraws_and_a_change_brings_back() {
    let mut small = Small::new(Absence::StepsAside, 2);
    let since = small.book().members[&2].since;
    let left = small.members[1].handle(FleetEvent::LeaseOver);
    assert_eq!(left, [FleetAction::LeaveService]);
    small.read(1);
    assert!(small.members[1].in_service());
    assert!(small.book().members[&2].since > since);
    // What was seen of its absence before counts no more.
    small.tell(0, FleetEvent::Gone { member: 2, since });
    small.settle();
    assert_eq!(small.book().serving().collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_wiped_store_is_filled_by_who_serves_and_by_nobody_else() {
    let mut small = Small::new(Absence::Waits, 2);
    small.tell(0, wants(WEB, Some(vip([7]))));
    small.settle();
    let before = small.book().position;
    small.stored = Stored::default();
    let kept = small.members[1].book().cloned();
    small.members[1] = FleetMember::start(2, 1, kept, false).0;
    small.read(1);
    assert_eq!(small.said, [Hold::StoreEmpty]);
    small.read(0);
    assert!(small.book().position > before);
    assert!(
        !small.book().position.covers(before),
        "nobody has acknowledged it"
    );
    small.settle();
    assert_eq!(small.phases(), [(real(7), IdPhase::Live)].into());
    assert!(small.members.iter().all(FleetMember::in_service));
}

#[test]
fn a_store_that_was_set_back_is_not_followed_by_who_does_not_serve() {
    let mut small = Small::new(Absence::Waits, 2);
    let copy = small.stored.clone();
    small.tell(0, wants(WEB, Some(vip([7]))));
    small.settle();
    let before = small.book().position;
    // All machines have lost power, and the store comes back from its backup.
    for at in 0..2 {
        let kept = small.members[at].book().cloned();
        small.members[at] = FleetMember::start(at as u64 + 1, 1, kept, false).0;
    }
    small.stored = copy.clone();
    let older = small.book().position;
    small.settle();
    assert_eq!(small.stored, copy);
    assert!(
        small
            .said
            .iter()
            .all(|hold| *hold == Hold::StoreOlder(older))
    );
    let has = |member: &FleetMember| member.book().map(|book| book.position);
    assert!(small.members.iter().all(|one| has(one) == Some(before)));
    // A newcomer may follow it: it knows of no other.
    let newcomer = FleetMember::start(3, 1, None, false).0;
    assert!(!newcomer.has_lost(&small.stored));
    small.tell(1, FleetEvent::PutBack(small.stored.clone()));
    assert!(!small.book().position.covers(before));
    small.settle();
    assert_eq!(small.phases(), [(real(7), IdPhase::Live)].into());
    assert!(small.members.iter().all(FleetMember::in_service));
    // Another book at the same place is another, and who serves has its own in its place.
    let mut other = FleetBook::clone(small.book());
    other.wanted_key += 1;
    small.stored.book = Some(Arc::new(other));
    let at = small.book().position;
    small.read(0);
    assert!(small.book().position.generation > at.generation);
    small.settle();
    assert_eq!(small.book().wanted_key, 1);
    // One that others followed further is no newer.
    let at = small.book().position;
    small.members[1] = FleetMember::start(2, 1, small.members[1].book().cloned(), false).0;
    small.stored.acks.members.insert(1, at.next());
    small.read(1);
    assert_eq!(small.said.pop(), Some(Hold::StoreOlder(at)));
}

#[test]
fn a_fleet_that_is_founded_anew_is_no_successor_of_the_one_that_serves() {
    let mut small = Small::new(Absence::Waits, 2);
    small.tell(0, wants(WEB, Some(vip([7]))));
    small.settle();
    let before = small.book().position;
    let mut agent = FleetAgent::new(real(7));
    assert!(agent.handle_book(small.book().of_agent(real(7))));
    // By a newcomer at a store that was wiped, which none that serves has reached yet.
    let stranger = FleetBook::new(Absence::Waits, 1, 9);
    assert!(!agent.handle_book(stranger.of_agent(real(7))));
    small.stored = Stored {
        book: Some(Arc::new(stranger.clone())),
        ..Stored::default()
    };
    let kept = small.members[1].book().cloned();
    small.members[1] = FleetMember::start(2, 1, kept, false).0;
    small.read(1);
    assert_eq!(small.said, [Hold::StoreOlder(stranger.position)]);
    small.read(0);
    assert!(small.book().position.follows(before));
    assert!(small.book().position.follows(stranger.position));
    small.settle();
    assert_eq!(small.phases(), [(real(7), IdPhase::Live)].into());
    assert!(small.members.iter().all(FleetMember::in_service));
    assert!(agent.handle_book(small.book().of_agent(real(7))));
}

#[test]
fn a_book_that_could_not_be_kept_is_kept_before_it_is_applied() {
    let mut small = Small::new(Absence::Waits, 2);
    small.tell(0, wants(WEB, Some(vip([7]))));
    let read = FleetEvent::Read(small.stored.clone());
    let book = small.stored.book.clone().expect("a book");
    let actions = [FleetAction::Keep(book.clone()), FleetAction::Apply(book)];
    assert_eq!(small.members[1].handle(read.clone()), actions);
    // The disk was full, and it reads again.
    assert_eq!(small.members[1].handle(read), actions);
}

#[test]
fn a_book_of_a_later_format_changes_nothing() {
    let mut small = Small::new(Absence::Waits, 1);
    let mut later = FleetBook::clone(small.book());
    later.format = 2;
    later.position = later.position.next();
    small.stored.book = Some(Arc::new(later));
    let before = small.members[0].clone();
    small.read(0);
    assert_eq!(small.members[0], before);
    assert_eq!(small.said, [Hold::Format(2)]);
}

#[test]
fn an_agent_does_not_go_back_to_a_former_key() {
    let mut book = FleetBook::new(Absence::Waits, 1, 1);
    let mut agent = FleetAgent::new(real(7));
    assert_eq!(agent.cookie(WEB), None);
    let record = IdRecord {
        real: real(7),
        phase: IdPhase::Live,
        since: book.position,
        agent: true,
    };
    book.ids.insert((WEB.into(), 5), record);
    let prepared = KeyPhases {
        issued: 1,
        other: Some(2),
        since: book.position,
    };
    let switched = KeyPhases {
        issued: 2,
        other: Some(1),
        ..prepared
    };
    book.keys = switched;
    assert!(agent.handle_book(book.of_agent(real(7))));
    assert!(
        !agent.handle_book(book.of_agent(real(7))),
        "it has heard it"
    );
    assert_eq!(agent.cookie(WEB), Some((5, 2)));
    // Put back by one that had not read of the switch.
    book.keys = prepared;
    assert!(agent.handle_book(book.restored(None, 3).of_agent(real(7))));
    assert_eq!(agent.cookie(WEB), Some((5, 2)));
}

#[test]
fn one_walk_gives_the_ids_that_each_agent_is_told() {
    let mut book = FleetBook::new(Absence::Waits, 1, 1);
    let record = |last| IdRecord {
        real: real(last),
        phase: IdPhase::Live,
        since: book.position,
        agent: true,
    };
    let ids = [(WEB, 5, 7), (WEB, 6, 8), (H3, 5, 7), (WEB, 9, 7)];
    let ids = ids.map(|(vip, id, last)| ((vip.into(), id), record(last)));
    book.ids = ids.into();
    let of_agents = book.ids_of_agents();
    assert_eq!(of_agents.len(), 2);
    for last in [7, 8, 9] {
        let ids = of_agents.get(&real(last)).cloned();
        assert_eq!(ids.unwrap_or_default(), book.of_agent(real(last)).ids);
    }
}

/// A configuration of connection ids with a key that this byte distinguishes.
fn cid(number: u8, key: u8) -> CidForm {
    let key = Algorithm::SipHash(CidKey::new([key; 16]));
    CidForm::of(&CidConfig::new(number, 2, 8, key).expect("valid"))
}

const H3: &str = "192.0.2.1:443/udp";

fn h3(form: CidForm) -> FleetEvent {
    let vip = FleetVip {
        cid: Some(form),
        ..vip([7])
    };
    wants(H3, Some(vip))
}

impl Small {
    fn cids(&self) -> (Option<CidForm>, Option<CidForm>, bool) {
        let own = &self.book().cids[H3];
        (own.issued(), own.other(), own.accepts_files())
    }

    /// What rests has done so for long enough, for the first balancer.
    fn rest(&mut self) {
        for rest in self.members[0].evidence().rests.clone().into_keys() {
            self.tell(0, FleetEvent::Rested(rest));
        }
        self.settle();
    }
}

#[test]
fn configurations_of_connection_ids_are_accepted_issued_and_retired() {
    let mut small = Small::new(Absence::Waits, 2);
    small.tell(0, h3(cid(0, 1)));
    small.settle();
    // What servers issue by from before the book had any is accepted until it has rested.
    assert_eq!(small.cids(), (Some(cid(0, 1)), None, true));
    small.rest();
    assert_eq!(small.cids(), (Some(cid(0, 1)), None, false));
    // A balancer that lags holds the next one back.
    small.tell(0, h3(cid(1, 2)));
    (0..9).for_each(|_| small.read(0));
    assert_eq!(small.cids(), (Some(cid(0, 1)), Some(cid(1, 2)), false));
    small.settle();
    assert_eq!(small.cids(), (Some(cid(1, 2)), Some(cid(0, 1)), false));
    small.rest();
    assert_eq!(small.cids(), (Some(cid(1, 2)), None, false));
    // Its number is free again, that of the one in use is not.
    small.tell(0, h3(cid(1, 3)));
    small.settle();
    assert_eq!(small.cids(), (Some(cid(1, 2)), None, false));
    small.tell(0, h3(cid(0, 3)));
    small.settle();
    assert_eq!(small.cids(), (Some(cid(0, 3)), Some(cid(1, 2)), false));
    small.tell(0, wants(H3, None));
    small.settle();
    small.rest();
    assert!(small.book().cids.is_empty(), "{:?}", small.book());
}

#[test]
fn a_book_is_of_a_later_format_once_all_read_it() {
    let mut small = Small::new(Absence::Waits, 2);
    for at in [1, 2] {
        assert_eq!(small.book().format, 1);
        let kept = small.stored.book.clone();
        small.members[at as usize - 1] = FleetMember::start(at, 2, kept, true).0;
        small.settle();
    }
    assert_eq!(small.book().format, 2);
}

#[test]
fn a_token_is_given_once_whoever_is_asked_and_not_after_a_loss_of_the_store() {
    let mut small = Small::new(Absence::Waits, 2);
    let token = JoinToken {
        servers: [real(7)].into(),
        epoch: 0,
        until_s: 100,
        used_by: None,
    };
    small.tell(0, FleetEvent::Token(5, token.clone()));
    small.tell(0, FleetEvent::Token(6, token));
    small.settle();
    // Both balancers are shown it at once, by two agents.
    let claims = [[1; 32], [2; 32]].map(|by| FleetEvent::Claim(5, by));
    let proposed = small.members[1].handle(claims[1].clone());
    small.tell(0, claims[0].clone());
    for action in proposed {
        if let FleetAction::Propose(expected, _) = action {
            assert_ne!(
                expected,
                Some(small.book().position),
                "the store refuses it"
            );
        }
    }
    small.settle();
    small.tell(1, claims[1].clone());
    assert_eq!(small.book().tokens[&5].used_by, Some([1; 32]));
    small.tell(0, FleetEvent::Claim(9, [1; 32]));
    small.tell(0, FleetEvent::TokenOver(5));
    assert_eq!(small.book().tokens.len(), 1);
    small.stored = Stored::default();
    small.settle();
    assert!(
        small.book().tokens.is_empty(),
        "one may be from before its use"
    );
}

const HALF: MayRemove = MayRemove::Part(500);

#[test]
fn what_takes_away_too_much_is_held_as_a_whole_until_it_is_confirmed() {
    let mut small = Small::new(Absence::Waits, 2);
    small.tell(0, wants(WEB, Some(vip(1..=4))));
    small.settle();
    let before = small.book().position;
    // Three of four, though a fifth comes.
    let fewer = || change(WEB, Some(vip([4, 5])), HALF);
    small.tell(0, FleetEvent::Change(fewer()));
    let held = small.said.pop();
    let removal = Removal {
        vip: WEB.into(),
        whole: false,
        reals: [1, 2, 3].map(real).into(),
        of: 4,
    };
    assert_eq!(held, Some(Hold::Removes(vec![removal])));
    assert_eq!(small.book().position, before);
    // Half may go, and of what that leaves half again, whoever asks.
    small.tell(0, FleetEvent::Change(change(WEB, Some(vip([1, 2])), HALF)));
    small.settle();
    small.tell(1, FleetEvent::Change(change(WEB, Some(vip([])), HALF)));
    assert_eq!(small.said.len(), 1);
    assert_eq!(small.book().vips[WEB], vip([1, 2]));
    // A VIP is held, however small.
    small.tell(1, FleetEvent::Change(change(WEB, None, HALF)));
    assert_eq!(small.said.len(), 2);
    // What an operator has drained before is not counted.
    let drained = HandState {
        drain: Some(true),
        ..HandState::default()
    };
    for last in [1, 2] {
        small.tell(0, FleetEvent::ByHand(WEB.into(), real(last), drained));
        small.settle();
    }
    small.tell(1, FleetEvent::Change(change(WEB, None, HALF)));
    assert_eq!(small.said.len(), 2);
    assert!(small.book().vips.is_empty());
    assert!(small.book().by_hand.is_empty(), "it is of nothing");
    small.tell(1, wants(WEB, Some(vip([1]))));
    small.tell(1, wants(WEB, None));
    assert!(small.book().vips.is_empty());
    let any = MayRemove::Part(1000);
    small.tell(1, wants(WEB, Some(vip([1]))));
    small.tell(1, FleetEvent::Change(change(WEB, None, any)));
    assert!(small.book().vips.is_empty(), "nothing is held there");
}

#[test]
fn past_changes_are_undone_one_by_one_and_ids_and_configurations_stay() {
    let mut small = Small::new(Absence::Waits, 2);
    let mut states = vec![small.book().vips.clone()];
    let larger = |reals: &[u8]| FleetVip {
        ids: 128,
        ..vip(reals.iter().copied())
    };
    let wishes = [
        (WEB, Some(vip([1, 2]))),
        (H3, Some(vip([7]))),
        (WEB, Some(larger(&[1, 3]))),
        (H3, None),
        (WEB, Some(larger(&[]))),
    ];
    for (name, vip) in wishes {
        small.tell(1, wants(name, vip));
        states.push(small.book().vips.clone());
        small.settle();
    }
    small.tell(1, wants(WEB, Some(larger(&[]))));
    let past = small.book().past_changes();
    assert_eq!(past.len(), 6, "what changes nothing is none");
    for (step, after) in past.iter().zip(states.iter().rev()) {
        let reals = |of: &BTreeMap<Arc<str>, FleetVip>| -> Vec<(Arc<str>, Vec<IpAddr>)> {
            let vips = of.iter();
            vips.map(|(name, vip)| (name.clone(), vip.reals.keys().copied().collect()))
                .collect()
        };
        assert_eq!(reals(&step.after), reals(after));
    }
    assert!(
        past.iter()
            .all(|step| step.change.by == 2 || step.change.before.is_empty())
    );
    let ids = past.last().map(|step| step.after.len());
    assert_eq!(ids, Some(0));
    assert_eq!(past[2].before[WEB].ids, 128, "ids go forward");
    // Back to before the last.
    let target = past[0].before.clone();
    let revision = past[1].change.revision;
    let back = FleetChange {
        vips: small.book().change_to(&target),
        back_to: Some(revision),
        ..change(WEB, None, HALF)
    };
    small.tell(0, FleetEvent::Change(back));
    assert_eq!(small.book().vips, target);
    let last = small.book().past_changes().remove(0);
    assert_eq!((last.change.back_to, last.after), (Some(revision), target));
    // It is bounded, and survives a loss of the store.
    for last in 0..100 {
        small.tell(0, wants(WEB, Some(vip([last]))));
    }
    small.settle();
    small.stored = Stored::default();
    small.settle();
    let past = small.book().past_changes();
    assert_eq!(past.len(), 32);
    assert_eq!(past[31].before, past[31].after);
    assert_eq!(
        past[31].after[WEB]
            .reals
            .keys()
            .copied()
            .collect::<Vec<_>>(),
        [real(68)]
    );
}
