// SPDX-License-Identifier: Apache-2.0
//! What files and operators want of a fleet's VIPs and reals, and what of it is held.

use causeway_api::Moment;
use causeway_api::balancer::Status;
use causeway_api::fleet::{FleetPush, FleetRollback};

use serde_json::json;

use super::store_tests::in_time;
use super::tests::{Member, START, World};
use super::*;
use crate::engine::EngineError;
use crate::run::{copy_of, load};
use crate::shared::Shared;
use crate::state_dir::KeptState;

impl World {
    /// A push of a file with these reals.
    pub(super) fn push(
        &mut self,
        at: usize,
        reals: &[u8],
        confirmed: bool,
    ) -> Result<String, EngineError> {
        let config = self.config(at, reals);
        self.members[at].engine().reload_confirmed(config)?;
        let order = FleetPush {
            confirmed,
            dry_run: false,
        };
        let (fleet, engine) = self.members[at].daemon.as_mut().unwrap();
        fleet.push(&*engine, &order, START)
    }

    fn roll_back(
        &mut self,
        at: usize,
        revision: Option<u64>,
        confirmed: bool,
    ) -> Result<String, EngineError> {
        let order = FleetRollback {
            revision,
            confirmed,
            dry_run: false,
        };
        let (fleet, engine) = self.members[at].daemon.as_mut().unwrap();
        fleet.rollback(&*engine, &order, START)
    }

    fn all_pick(&self, reals: &[u8]) -> bool {
        self.members.iter().all(|member| member.picks() == reals)
    }

    fn held(&self, at: usize) -> Vec<String> {
        let held = self.members[at].view().held;
        held.iter().map(ToString::to_string).collect()
    }
}

const THREE_OF_FOUR: &str =
    "vip 192.0.2.1:80/tcp loses 3 reals (10.0.0.1, 10.0.0.2, 10.0.0.3) of 4";

#[test]
fn a_file_that_takes_away_too_much_is_refused_as_a_whole() {
    let mut world = World::new(2, &[1, 2, 3, 4]);
    let file = world.config(0, &[4, 5]);
    let refused = world.members[0].engine().reload(file.clone()).unwrap_err();
    let refused = refused.to_string();
    assert!(refused.contains(THREE_OF_FOUR), "{refused}");
    let difference = world.members[0].engine().difference(&file);
    assert_eq!(difference.refused, [refused]);
    world.settle();
    assert!(
        world.all_pick(&[1, 2, 3, 4]),
        "the fifth is not there either"
    );
    assert_eq!(world.held(0), [THREE_OF_FOUR]);
    assert!(world.held(1).is_empty());
    let page = crate::metrics::page(&world.members[0].engine(), true, START).unwrap();
    assert!(page.contains("causeway_fleet_held_reals 3.0"), "{page}");
    // What the book has a member drain by hand is not counted.
    let drain = causeway_api::balancer::RealChange {
        drain: Some(true),
        ..Default::default()
    };
    for real in ["10.0.0.1", "10.0.0.2"] {
        let mut engine = world.members[1].engine();
        engine.change_real("web", real, &drain, 7).unwrap();
    }
    world.settle();
    world.reload(0, &[4, 5]);
    world.settle();
    assert!(world.held(0).is_empty());
    assert!(world.all_pick(&[4, 5]));
    // A VIP is held, and with a share of all nothing is.
    let mut file = world.config(0, &[4, 5]);
    file.vips.clear();
    let refused = world.members[0].engine().reload(file).unwrap_err();
    let goes = "vip 192.0.2.1:80/tcp goes, with 2 reals (10.0.0.4, 10.0.0.5)";
    assert!(refused.to_string().contains(goes), "{refused}");
    let world = World::of(1, &[1, 2], "max_removed = 1.0", false);
    let mut file = world.config(0, &[1]);
    file.vips.clear();
    world.members[0].engine().reload(file).unwrap();
}

#[test]
fn of_two_files_that_take_away_half_each_one_is_held() {
    let mut world = World::new(2, &[1, 2, 3, 4]);
    world.reload(0, &[3, 4]);
    world.reload(1, &[1, 2]);
    world.settle();
    assert!(world.all_pick(&[3, 4]));
    assert_eq!(
        world.held(1),
        ["vip 192.0.2.1:80/tcp loses 2 reals (10.0.0.3, 10.0.0.4) of 2"]
    );
    assert_eq!(world.members[1].view().hold, None, "it follows the book");
    // It waits through a start, and a push has the fleet have that file.
    world.start(1, &[1, 2]);
    world.settle();
    assert_eq!(world.held(1).len(), 1);
    assert!(world.push(1, &[1, 2], false).is_err());
    world.push(1, &[1, 2], true).unwrap();
    world.settle();
    assert!(world.all_pick(&[1, 2]));
    assert!(world.held(1).is_empty());
}

/// A VIP beside the other, whose reals are discovered.
const FOUND: &str = "[[vip]]\nname = \"found\"\naddress = \"192.0.2.1\"\nport = 81\n\
    discover = { file = \"/nowhere\", drain = \"60s\" }\n";

impl World {
    /// What a member is told of the reals of the VIP `found`.
    fn answer(&self, at: usize, reals: &[u8]) {
        let mut engine = self.members[at].engine();
        let vip = engine.asked_for().remove(0);
        let real = |last: &u8| json!({ "address": format!("10.0.0.{last}") });
        let reals = crate::config::reals_from_json(&vip, reals.iter().map(real).collect());
        let found = engine.handle_found(START, &vip.endpoint(), reals);
        found.unwrap();
    }
}

#[test]
fn reals_that_a_restart_has_lost_are_not_gone_from_the_fleet() {
    let mut world = World::of(2, &[1], FOUND, false);
    for at in 0..2 {
        world.answer(at, &[5, 6, 7]);
        world.settle();
    }
    assert!(world.all_pick(&[1, 5, 6, 7]));
    let history = world.members[1].view().history;
    // Nothing of what was found is kept here.
    world.start(0, &[1]);
    world.settle();
    assert!(world.all_pick(&[1, 5, 6, 7]));
    // It is weighed against what was found before.
    world.answer(0, &[5]);
    world.settle();
    assert!(world.all_pick(&[1, 5, 6, 7]));
    let held = |world: &World| {
        let engine = world.members[0].engine();
        let vip = engine.asked_for().remove(0);
        engine.found.view(&vip).unwrap().held
    };
    assert_eq!(held(&world), Some(2));
    assert_eq!(world.members[1].view().history, history);
    // One that goes drains here, and then goes.
    world.answer(0, &[5, 6]);
    world.settle();
    assert_eq!(held(&world), None);
    assert_eq!(world.members[1].picks(), [1, 5, 6, 7]);
    let later_ns = START.monotonic_ns + 60_000_000_000;
    let left = world.members[0].engine().expire_found(later_ns);
    assert!(left.is_empty(), "{left:?}");
    world.settle();
    assert!(world.all_pick(&[1, 5, 6]));
}

#[test]
fn reals_of_a_file_that_are_discovered_from_now_on_stay_until_there_is_an_answer() {
    let file = FOUND.replace(
        "discover = { file = \"/nowhere\", drain = \"60s\" }",
        "real = [{ address = \"10.0.0.5\" }, { address = \"10.0.0.6\" }]",
    );
    let with = |vip: &str| -> &'static str {
        Box::leak(format!("max_removed = 1.0\n{vip}").into_boxed_str())
    };
    let mut world = World::of(2, &[1], with(&file), false);
    assert!(world.all_pick(&[1, 5, 6]));
    world.extra = with(FOUND);
    world.reload(0, &[1]);
    world.settle();
    assert!(world.all_pick(&[1, 5, 6]));
    world.answer(0, &[6, 7]);
    world.settle();
    assert!(world.all_pick(&[1, 6, 7]));
}

#[test]
fn a_reload_and_a_push_take_no_reals_away_that_are_discovered_from_now_on() {
    let file = FOUND.replace(
        "discover = { file = \"/nowhere\", drain = \"60s\" }",
        "real = [{ address = \"10.0.0.5\" }, { address = \"10.0.0.6\" }]",
    );
    let mut world = World::of(2, &[1], Box::leak(file.into_boxed_str()), false);
    assert!(world.all_pick(&[1, 5, 6]));
    world.extra = FOUND;
    world.reload(0, &[1]);
    let file = world.config(0, &[1]);
    let preview = world.members[0].engine().preview_push(&file).unwrap();
    assert!(preview.fleet.is_empty(), "{:?}", preview.fleet);
    world.push(0, &[1], true).unwrap();
    world.settle();
    assert!(world.all_pick(&[1, 5, 6]));
    assert!(world.held(0).is_empty());
    world.answer(0, &[6, 7]);
    world.settle();
    assert!(world.all_pick(&[1, 6, 7]));
}

#[test]
fn a_daemon_does_not_start_with_a_file_that_takes_away_too_much() {
    let world = World::new(1, &[1, 2, 3, 4]);
    let member = &world.members[0];
    let path = member.dir.path().join("lb.toml");
    let store = world.path();
    let write = |reals: &[u8]| {
        let text = member.text((&store, ""), reals);
        std::fs::write(&path, &text).unwrap();
        text
    };
    let copy = copy_of(&path, member.dir.path());
    copy.save(&write(&[1, 2, 3, 4])).unwrap();
    write(&[4]);
    let loaded = load(&path).unwrap();
    assert_eq!(loaded.reals(), 4, "as it was last in force");
    let why = loaded.refused().unwrap();
    assert!(why.contains(THREE_OF_FOUR), "{why}");
    // Two may go. And what is in force is no other than itself.
    write(&[3, 4]);
    let loaded = load(&path).unwrap();
    assert_eq!((loaded.reals(), loaded.refused()), (2, None));
    copy.save(&write(&[4])).unwrap();
    let loaded = load(&path).unwrap();
    assert_eq!((loaded.reals(), loaded.refused()), (1, None));
}

#[test]
fn one_that_has_left_takes_nothing_away_until_it_is_back() {
    let mut world = World::new(2, &[1, 2, 3]);
    let (fleet, engine) = world.members[1].daemon.as_mut().unwrap();
    fleet.leave(&*engine, START.monotonic_ns).unwrap();
    let refused = world.push(1, &[1], true).unwrap_err();
    assert!(refused.to_string().contains("causeway fleet join"));
    assert!(world.members[1].engine().reaches_fleet().is_err());
    world.reload(1, &[2]);
    let (fleet, engine) = world.members[1].daemon.as_mut().unwrap();
    fleet.join(&*engine).unwrap();
    world.settle();
    assert!(world.all_pick(&[1, 2, 3]));
    assert_eq!(world.held(1).len(), 1);
}

fn pushes_and_goes_back(etcd: bool) {
    let mut world = World::of(2, &[1, 2], "", etcd);
    let first = world.members[0].view().book.unwrap().revision;
    let said = world.push(0, &[1, 2, 3], false).unwrap();
    assert!(said.starts_with("fleet edge has this balancer's VIPs and reals by revision"));
    world.settle();
    assert!(world.all_pick(&[1, 2, 3]));
    assert_eq!(world.push(0, &[1, 2, 3], false).unwrap(), said);
    // Any member knows what was, and undoes it.
    let history = world.members[1].view().history;
    let (pushed, before) = (history[0].revision, history[1].revision);
    assert_eq!((history.len(), before), (2, first));
    assert_eq!(
        history[0].what,
        ["vip 192.0.2.1:80/tcp gets 1 real (10.0.0.3)"]
    );
    assert_eq!(history[0].by, "lb1");
    assert_eq!(history[0].at_s, START.realtime_ns / 1_000_000_000);
    assert!(history[1].what.is_empty());
    let said = world.roll_back(1, None, false).unwrap();
    assert!(
        said.starts_with(&format!(
            "fleet edge has the VIPs and reals of revision {first} by"
        )),
        "{said}"
    );
    world.settle();
    assert!(world.all_pick(&[1, 2]));
    assert_eq!(world.members[0].view().history[0].back_to, Some(first));
    // A file that still has it wants nothing before it is pushed again.
    world.reload(0, &[1, 2, 3]);
    world.settle();
    assert!(world.all_pick(&[1, 2]));
    world.push(0, &[1, 2, 3], false).unwrap();
    world.settle();
    assert!(world.all_pick(&[1, 2, 3]));
    // By number, and held as any other.
    world.push(0, &[3, 4, 5, 6], true).unwrap();
    world.settle();
    let refused = world.roll_back(0, Some(pushed), false).unwrap_err();
    assert!(refused.to_string().contains("loses 3 reals"), "{refused}");
    world.roll_back(0, Some(pushed), true).unwrap();
    world.settle();
    assert!(world.all_pick(&[1, 2, 3]));
    let unknown = world.roll_back(0, Some(1_000), true).unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "revision 1000 is not kept; `causeway fleet history` shows those that are"
    );
}

#[test]
fn a_push_is_a_revision_and_any_member_goes_back() {
    pushes_and_goes_back(false);
}

#[test]
fn a_push_is_a_revision_of_etcd_too() {
    pushes_and_goes_back(true);
}

#[test]
fn going_back_leaves_reals_that_are_discovered_as_they_are() {
    let mut world = World::of(2, &[1], FOUND, false);
    let answer = |world: &mut World, reals: &[u8]| {
        for at in 0..2 {
            world.answer(at, reals);
            world.settle();
        }
    };
    answer(&mut world, &[5, 6]);
    let before = world.members[0].view().history[0].revision;
    world.push(0, &[1, 2], false).unwrap();
    world.settle();
    answer(&mut world, &[6, 7]);
    let later_ns = START.monotonic_ns + 60_000_000_000;
    for at in 0..2 {
        let left = world.members[at].engine().expire_found(later_ns);
        assert!(left.is_empty(), "{left:?}");
        world.settle();
    }
    assert!(world.all_pick(&[1, 2, 6, 7]));
    let order = FleetRollback::default();
    let order = world.members[1].engine().numbered(order).unwrap();
    assert_eq!(order.revision, Some(before), "the last change of a file");
    world.roll_back(1, Some(before), false).unwrap();
    world.settle();
    assert!(world.all_pick(&[1, 6, 7]));
}

#[test]
fn a_vip_does_not_come_back_where_the_file_lacks_it() {
    let mut world = World::new(2, &[1]);
    let more = |world: &World, at: usize| {
        let mut config = world.config(at, &[1]);
        let mut vip = config.vips[0].clone();
        (vip.name, vip.port) = ("more".to_owned(), 81);
        config.vips.push(vip);
        config
    };
    for at in [0, 1] {
        let file = more(&world, at);
        world.members[at].engine().reload(file).unwrap();
        world.settle();
    }
    world.push(0, &[1], true).unwrap();
    world.settle();
    let refused = world.roll_back(0, None, false).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "vip 192.0.2.1:81/tcp of that revision is not in this balancer's file; add it and reload first"
    );
    let order = FleetRollback::default();
    let preview = world.members[1].engine().preview_rollback(&order).unwrap();
    assert_eq!(
        preview.fleet,
        ["vip 192.0.2.1:81/tcp is added, with 1 real (10.0.0.1)"]
    );
}

#[test]
fn orders_read_the_file_show_what_changes_and_wait_for_a_word() {
    let store = tempfile::tempdir().unwrap();
    let member = Member::new("lb1");
    let path = member.dir.path().join("lb.toml");
    let write = |reals: &[u8]| {
        let text = member.text((store.path(), ""), reals);
        std::fs::write(&path, &text).unwrap();
        BalancerConfig::of_balancer(&path, &text).unwrap()
    };
    let file = write(&[1, 2, 3, 4]);
    let config = file.fleet.clone().unwrap();
    let (fleet, membership) = Fleet::open(&file, &config, &[]).unwrap();
    let plane = Box::new(member.plane.clone());
    let engine = Engine::succeed(plane, file, KeptState::default(), Some(membership), START);
    let (orders, inbox) = FleetOrders::new();
    let status = Status {
        version: String::new(),
        interface: "eth0".to_owned(),
        mode: "native".to_owned(),
        took_over: false,
        pid: 7,
        started: Moment::default(),
        interval_ns: 0,
        config_file: path.display().to_string(),
        last_reload_error: None,
        last_good: false,
        unfinished: None,
        state_error: None,
        data_plane_error: None,
        held_vips: Vec::new(),
    };
    let shared = Shared::new(engine.unwrap(), status, path.clone()).with_fleet(Some(orders));
    let shared = Arc::new(shared);
    let no_book = shared.push(FleetPush::default()).unwrap_err();
    assert!(no_book.to_string().contains("causeway fleet found"));
    let runner = start(fleet, inbox, Arc::clone(&shared)).unwrap();
    shared.order(FleetOrder::Found).unwrap();
    let serves = || shared.engine().fleet.as_ref().unwrap().view.in_service;
    in_time(serves);

    write(&[4, 5]);
    let looks = FleetPush {
        dry_run: true,
        confirmed: false,
    };
    let preview = shared.push(looks).unwrap();
    assert_eq!(preview.held.len(), 1);
    assert_eq!(preview.held[0].to_string(), THREE_OF_FOUR);
    assert_eq!(
        preview.fleet,
        [
            "vip 192.0.2.1:80/tcp gets 1 real (10.0.0.5), loses 3 reals (10.0.0.1, 10.0.0.2, 10.0.0.3)"
        ]
    );
    assert_eq!(preview.done, None);
    let refused = shared.push(FleetPush::default()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!("{THREE_OF_FOUR}; `causeway fleet push --yes` confirms it")
    );
    assert!(shared.reload().is_err());
    assert_eq!(member.picks(), [1, 2, 3, 4]);
    let yes = FleetPush {
        confirmed: true,
        dry_run: false,
    };
    let pushed = shared.push(yes).unwrap();
    assert!(pushed.done.is_some());
    in_time(|| member.picks() == [4, 5]);
    let back = FleetRollback::default();
    shared.rollback(back).unwrap();
    in_time(|| member.picks() == [1, 2, 3, 4]);
    runner.stop();
}
