// SPDX-License-Identifier: Apache-2.0
//! Members with engines over data planes in memory and a store in a directory, round by round.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use causeway_api::Moment;
use causeway_api::balancer::RealChange;
use causeway_api::fleet::FleetRollback;
use causeway_core::cookie::{CookieKey, KeyEpoch, Keys};
use tempfile::TempDir;

use super::store::Store;
use super::store_tests::{self, Etcd, in_time};
use super::*;
use crate::fake::FakePlane;
use crate::state_dir::KeptState;

pub(super) const QUARANTINE_NS: u64 = 600_000_000_000;
pub(super) const START: Moment = Moment {
    monotonic_ns: 1_000_000_000,
    realtime_ns: 1_700_000_000_000_000_000,
};

impl HasEngine for Mutex<Engine> {
    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.lock().unwrap()
    }
}

/// One balancer: what of it outlives the daemon, and the daemon.
pub(super) struct Member {
    name: String,
    pub(super) dir: TempDir,
    pub(super) plane: FakePlane,
    pub(super) daemon: Option<(Fleet, Mutex<Engine>)>,
}

/// A fleet, whose clock stands still unless a test moves it.
pub(super) struct World {
    store: TempDir,
    etcd: Option<Etcd>,
    pub(super) extra: &'static str,
    pub(super) members: Vec<Member>,
    now_ns: u64,
}

pub(super) fn keys_text(number: u64, prepared: bool, keys: [Option<char>; 2]) -> String {
    let line = |(epoch, key): (usize, Option<char>)| {
        let key = key.map(|digit| format!("key{epoch} = \"{}\"\n", digit.to_string().repeat(32)));
        key.unwrap_or_default()
    };
    let keys: String = keys.into_iter().enumerate().map(line).collect();
    let reports = format!(
        "reports0 = \"{}\"\nreports1 = \"{}\"\n",
        "8".repeat(32),
        "9".repeat(32)
    );
    format!(
        "current = {}\nnumber = {number}\nprepared = {prepared}\n{keys}{reports}",
        number & 1
    )
}

impl Member {
    pub(super) fn new(name: &str) -> Self {
        let member = Self {
            name: name.to_owned(),
            dir: tempfile::tempdir().unwrap(),
            plane: FakePlane::default(),
            daemon: None,
        };
        member.plane.state().now_s = 1_000_000;
        member.has_keys(&keys_text(2, false, [Some('5'), None]));
        member
    }

    pub(super) fn has_keys(&self, text: &str) {
        let path = self.dir.path().join("keys");
        fs::write(&path, text).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(path, mode).unwrap();
    }

    pub(super) fn text(&self, world: (&Path, &str), reals: &[u8]) -> String {
        let reals: Vec<String> = reals
            .iter()
            .map(|last| format!("{{ address = \"10.0.0.{last}\" }}"))
            .collect();
        format!(
            "interface = \"eth0\"\nstate_dir = \"{dir}\"\n\
             [cookie]\nkeys = \"{dir}/keys\"\nquarantine = \"10m\"\n\
             [fleet]\nname = \"edge\"\nmember = \"{}\"\nstore = {{ dir = \"{}\" }}\n{}\n\
             [[vip]]\nname = \"web\"\naddress = \"192.0.2.1\"\nport = 80\nreal = [{}]\n",
            self.name,
            world.0.display(),
            world.1,
            reals.join(", "),
            dir = self.dir.path().display(),
        )
    }

    fn config(&self, world: (&Path, &str), reals: &[u8]) -> BalancerConfig {
        let text = self.text(world, reals);
        BalancerConfig::parse(Path::new("lb.toml"), &text).unwrap()
    }

    pub(super) fn engine(&self) -> MutexGuard<'_, Engine> {
        self.daemon.as_ref().unwrap().1.lock().unwrap()
    }

    pub(super) fn view(&self) -> FleetView {
        self.engine().fleet.as_ref().unwrap().view.clone()
    }

    /// The reals that new connections get, by the last part of their addresses.
    pub(super) fn picks(&self) -> Vec<u8> {
        let state = self.plane.state();
        let mut picks: Vec<u8> = state
            .rings
            .values()
            .flatten()
            .map(|real| last_of(state.reals[real].address))
            .collect();
        picks.sort_unstable();
        picks.dedup();
        picks
    }

    /// The reals that cookies name, with their ids.
    pub(super) fn routes(&self) -> BTreeMap<u8, u16> {
        let state = self.plane.state();
        let held = state.cookie_ids.values();
        let held = held.filter(|(_, owner)| owner.is_some());
        held.map(|(held, _)| (last_of(held.address), held.id))
            .collect()
    }

    /// Numbers of the configurations by which connection ids are read.
    pub(super) fn quic_configs(&self) -> Vec<u8> {
        let state = self.plane.state();
        let routes = state.quic_ids.values().flatten();
        routes.map(|route| route.config().number()).collect()
    }

    fn keys(&self) -> Keys {
        self.plane.state().cookie_keys.unwrap()
    }

    fn has_key(&self, digit: char) -> bool {
        let key: CookieKey = digit.to_string().repeat(32).parse().unwrap();
        KeyEpoch::ALL
            .iter()
            .any(|epoch| self.keys().get(*epoch) == Some(&key))
    }
}

fn last_of(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(_) => 0,
    }
}

impl World {
    /// A fleet that has been founded by the first of this many members.
    pub(super) fn new(members: usize, reals: &[u8]) -> Self {
        Self::of(members, reals, "", false)
    }

    pub(super) fn of(members: usize, reals: &[u8], extra: &'static str, etcd: bool) -> Self {
        let mut world = Self {
            store: tempfile::tempdir().unwrap(),
            etcd: etcd.then(Etcd::start),
            extra,
            members: Vec::new(),
            now_ns: START.monotonic_ns,
        };
        for index in 0..members {
            world.members.push(Member::new(&format!("lb{}", index + 1)));
            world.start(index, reals);
        }
        let (fleet, engine) = world.members[0].daemon.as_mut().unwrap();
        fleet.found(&*engine).unwrap();
        world.settle();
        world
    }

    pub(super) fn path(&self) -> PathBuf {
        self.store.path().join("stores")
    }

    pub(super) fn config(&self, at: usize, reals: &[u8]) -> BalancerConfig {
        self.members[at].config((&self.path(), self.extra), reals)
    }

    pub(super) fn start(&mut self, at: usize, reals: &[u8]) {
        let file = self.config(at, reals);
        let member = &mut self.members[at];
        let by_hand = match member.daemon.take() {
            Some((_, engine)) => engine.lock().unwrap().kept().by_hand,
            None => Vec::new(),
        };
        let config = file.fleet.clone().unwrap();
        let store: Box<dyn Store> = match &self.etcd {
            Some(etcd) => Box::new(store_tests::store(&etcd.config(), "edge")),
            None => store::open(&config).unwrap(),
        };
        let dir = StateDir::new(member.dir.path(), Path::new("/pins"));
        let (fleet, membership) =
            Fleet::with(store, dir, &file, &config, &by_hand, self.now_ns).unwrap();
        let kept = KeptState {
            by_hand,
            ..KeptState::default()
        };
        let plane = Box::new(member.plane.clone());
        let engine = Engine::succeed(plane, file, kept, Some(membership), START);
        member.daemon = Some((fleet, Mutex::new(engine.unwrap())));
    }

    pub(super) fn reload(&self, at: usize, reals: &[u8]) {
        let config = self.config(at, reals);
        self.members[at].engine().reload(config).unwrap();
    }

    /// One member does all that it can.
    fn run(&mut self, at: usize) {
        let (fleet, engine) = self.members[at].daemon.as_mut().unwrap();
        for _ in 0..50 {
            if !fleet.round(&*engine, self.now_ns) {
                return;
            }
        }
        panic!("{} does not come to rest", self.members[at].name);
    }

    pub(super) fn settle(&mut self) {
        for _ in 0..6 {
            (0..self.members.len()).for_each(|at| self.run(at));
        }
    }

    /// All members get this keys file, and do what follows of it.
    fn rotate(&mut self, keys: &str) {
        for at in 0..self.members.len() {
            self.members[at].has_keys(keys);
            self.reload(at, &[1]);
        }
        self.settle();
    }

    /// The store loses everything.
    pub(super) fn wipe(&self) {
        fs::remove_dir_all(self.path()).unwrap();
    }

    pub(super) fn pass(&mut self, ns: u64) {
        self.now_ns += ns;
    }

    fn ack(&self, at: usize) -> PathBuf {
        let acks = self.path().join("edge/acks");
        acks.join(&self.members[at].name)
    }

    /// What a member has said, as if another balancer of its name had.
    fn ack_of_another(&self, at: usize) -> String {
        let text = fs::read_to_string(self.ack(at)).unwrap();
        let mut said: AckText = serde_json::from_str(&text).unwrap();
        said.balancer = "another".to_owned();
        serde_json::to_string(&said).unwrap()
    }

    /// A member's machine is booted; its lease lasts still.
    fn boot(&mut self, at: usize) {
        fs::write(self.ack(at), self.ack_of_another(at)).unwrap();
        let member = &mut self.members[at];
        let kept = member.dir.path().join("fleet.json");
        let text = fs::read_to_string(&kept).unwrap();
        fs::write(&kept, text.replace(&boot_id(), "another")).unwrap();
        member.plane = FakePlane::default();
        member.plane.state().now_s = 1_000_000;
        self.start(at, &[1]);
    }

    fn end_lease(&self, at: usize) {
        let alive = self.path().join("edge/alive");
        fs::remove_file(alive.join(&self.members[at].name)).unwrap();
    }

    fn is_held_for_a_namesake(&self, at: usize) -> bool {
        let hold = self.members[at].view().hold;
        hold.is_some_and(|hold| hold.starts_with("another balancer is called lb2"))
    }

    /// All are in service, and a change comes to each.
    fn goes_on(&mut self) {
        self.reload(0, &[1, 2]);
        self.settle();
        for member in &self.members {
            let view = member.view();
            assert!(view.hold.is_none() && view.in_service, "{view:?}");
            assert_eq!(member.engine().service(), Service::In);
            assert_eq!(member.picks(), [1, 2]);
        }
    }

    fn waits_for(&self, at: usize) -> Vec<String> {
        let waiting = self.members[at].view().waiting;
        waiting.into_iter().flat_map(|wait| wait.members).collect()
    }
}

#[test]
fn a_running_balancer_founds_a_fleet_as_it_is_and_others_take_its_ids() {
    let mut world = World::new(1, &[1, 2, 3]);
    let founded = world.members[0].routes();
    assert_eq!(founded.len(), 3);
    assert_eq!(world.members[0].picks(), [1, 2, 3]);
    // One that has other ids so far, as it had no fleet, and none that collide.
    world.members.push(Member::new("lb2"));
    world.start(1, &[3, 2, 1]);
    world.settle();
    assert_eq!(world.members[1].routes(), founded);
    for member in &world.members {
        let view = member.view();
        assert!(view.in_service && view.state == "serving", "{view:?}");
        assert_eq!((view.members.len(), view.waiting.len()), (2, 0));
        assert_eq!(view.book, view.applied);
        assert_eq!(member.engine().service(), Service::In);
    }
}

#[test]
fn nothing_is_done_before_a_fleet_is_founded() {
    let mut world = World {
        store: tempfile::tempdir().unwrap(),
        etcd: None,
        extra: "",
        members: vec![Member::new("lb1")],
        now_ns: START.monotonic_ns,
    };
    world.start(0, &[1, 2]);
    world.settle();
    let view = world.members[0].view();
    assert!(view.hold.unwrap().contains("causeway fleet found"));
    assert_eq!(view.state, "new");
    // It is as it was without a fleet, and so are its routes.
    assert_eq!(world.members[0].picks(), [1, 2]);
    assert_eq!(world.members[0].engine().service(), Service::AsBefore);
}

#[test]
fn a_real_is_picked_once_every_member_knows_it() {
    let mut world = World::new(2, &[1, 2]);
    world.reload(0, &[1, 2, 3]);
    (0..5).for_each(|_| world.run(0));
    let id = world.members[0].routes()[&3];
    assert_eq!(world.members[0].picks(), [1, 2], "lb2 does not know it");
    assert_eq!(world.waits_for(0), ["lb2"]);
    let page = crate::metrics::page(&world.members[0].engine(), true, START).unwrap();
    for line in [
        "causeway_fleet_store_up 1.0",
        "causeway_fleet_waiting{member=\"lb2\"} 1.0",
        "causeway_fleet_waiting{member=\"lb1\"} 0.0",
        "causeway_fleet_ids{phase=\"known\"} 1.0",
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
    world.run(1);
    assert_eq!(
        world.members[1].routes()[&3],
        id,
        "its file does not have it"
    );
    assert_eq!(world.members[1].picks(), [1, 2]);
    world.settle();
    for member in &world.members {
        assert_eq!(member.picks(), [1, 2, 3]);
        assert!(member.view().waiting.is_empty());
    }
    // What others have added is in no one's way.
    world.reload(1, &[1, 2, 3]);
    world.settle();
    assert_eq!(world.members[0].picks(), [1, 2, 3]);
}

#[test]
fn two_members_that_add_reals_at_once_never_give_one_id_twice() {
    let mut world = World::new(2, &[1]);
    let all: Vec<u8> = (1..=60).collect();
    world.reload(0, &all[..40]);
    world.reload(1, &[&all[..1], &all[40..]].concat());
    world.settle();
    let ids = world.members[0].routes();
    assert_eq!(ids.len(), 60);
    assert_eq!(ids.values().collect::<BTreeSet<_>>().len(), 60);
    assert_eq!(world.members[1].routes(), ids);
    assert_eq!(world.members[1].picks(), all);
}

#[test]
fn a_real_that_is_removed_is_routed_until_it_has_rested() {
    let mut world = World::new(2, &[1, 2]);
    let id = world.members[0].routes()[&2];
    world.reload(0, &[1]);
    assert_eq!(world.members[0].picks(), [1, 2], "the book has it still");
    world.run(0);
    assert_eq!(world.members[0].picks(), [1]);
    assert_eq!(world.members[1].picks(), [1, 2], "it has not read of it");
    world.settle();
    for member in &world.members {
        assert_eq!((member.picks(), member.routes()[&2]), (vec![1], id));
    }
    // A restart in between forgets nothing, though the file does not have it.
    world.start(0, &[1]);
    assert_eq!(world.members[0].routes()[&2], id);
    world.pass(QUARANTINE_NS * 99 / 100);
    world.settle();
    assert_eq!(world.members[1].routes()[&2], id);
    world.pass(QUARANTINE_NS / 20);
    world.settle();
    assert!(
        world
            .members
            .iter()
            .all(|member| !member.routes().contains_key(&2))
    );
    // Its id may be another's at once: the book has had it rest.
    let file = world.config(0, &[1]);
    let mut named = file.clone();
    named.vips[0].reals.push(crate::config::RealConfig {
        address: "10.0.0.9".parse().unwrap(),
        id: Some(id),
        ..file.vips[0].reals[0].clone()
    });
    world.members[0].engine().reload(named).unwrap();
    world.settle();
    assert_eq!(world.members[1].routes()[&9], id);
    assert_eq!(world.members[1].picks(), [1, 9]);
    // One that names an id that is taken waits, and says so.
    let mut file = world.config(0, &[1, 9, 8]);
    file.vips[0].reals[1].id = Some(id);
    file.vips[0].reals[2].id = Some(id);
    world.members[0].engine().file = file;
    world.settle();
    let waiting = world.members[1].view().waiting;
    assert_eq!(waiting.len(), 1);
    assert_eq!(
        waiting[0].what,
        "10.0.0.8 of 192.0.2.1:80/tcp gets an id, once one is free"
    );
}

#[test]
fn what_is_set_by_hand_reaches_all_and_holds_at_once_without_the_store() {
    let drain = |drain| RealChange {
        drain: Some(drain),
        ..RealChange::default()
    };
    let set = |world: &World, at: usize, change| {
        let mut engine = world.members[at].engine();
        engine.change_real("web", "10.0.0.2", &change, 7).unwrap();
    };
    let mut world = World::new(2, &[1, 2]);
    set(&world, 0, drain(true));
    assert_eq!(world.members[0].picks(), [1]);
    world.settle();
    assert_eq!(world.members[1].picks(), [1]);
    assert_eq!(world.members[1].engine().overrides().len(), 1);
    // Another sets it back, while the store is away.
    fs::rename(world.path(), world.store.path().join("away")).unwrap();
    fs::write(world.path(), "no directory").unwrap();
    set(&world, 1, drain(false));
    world.settle();
    assert_eq!(
        (world.members[1].picks(), world.members[0].picks()),
        (vec![1, 2], vec![1])
    );
    let view = world.members[1].view();
    assert!(view.store_error.is_some() && view.in_service, "{view:?}");
    // What was set meanwhile outlives the daemon.
    world.start(1, &[1, 2]);
    assert_eq!(world.members[1].picks(), [1, 2]);
    fs::remove_file(world.path()).unwrap();
    fs::rename(world.store.path().join("away"), world.path()).unwrap();
    world.settle();
    assert_eq!(world.members[0].picks(), [1, 2]);
    assert_eq!(world.members[0].view().store_error, None);
    let dropped = world.members[0].engine().drop_overrides(None, None);
    assert!(dropped.unwrap().is_empty(), "it is as the file has it");
    world.settle();
    assert!(world.members[1].engine().kept().by_hand.is_empty());
    // VIPs and reals come from the file, which is written to the book.
    let refused = world.members[0].engine().remove_vip("web").unwrap_err();
    assert!(refused.to_string().contains("change the file and reload"));
}

#[test]
fn what_changes_before_the_first_interval_is_dated_all_the_same() {
    let mut world = World::new(2, &[1, 2]);
    world.members[1].daemon = None;
    let drain = RealChange {
        drain: Some(true),
        ..RealChange::default()
    };
    {
        let mut engine = world.members[0].engine();
        engine.change_real("web", "10.0.0.2", &drain, 7).unwrap();
    }
    (0..5).for_each(|_| world.run(0));
    world.start(1, &[1, 2, 3]);
    world.settle();
    for member in &world.members {
        assert_eq!(member.engine().last_tick(), None);
        let overrides = member.engine().overrides();
        assert_eq!(overrides.len(), 1);
        assert!(overrides[0].since_ns > START.realtime_ns, "{overrides:?}");
        let history = member.view().history;
        assert_eq!(history.len(), 2);
        assert!(history[0].at_s > START.realtime_ns / 1_000_000_000);
    }
}

#[test]
fn what_is_dropped_without_the_store_stays_so_behind_a_restart() {
    let mut world = World::new(2, &[1, 2]);
    let drain = RealChange {
        drain: Some(true),
        ..RealChange::default()
    };
    {
        let mut engine = world.members[0].engine();
        engine.change_real("web", "10.0.0.2", &drain, 7).unwrap();
    }
    world.settle();
    fs::rename(world.path(), world.store.path().join("away")).unwrap();
    fs::write(world.path(), "no directory").unwrap();
    let dropped = world.members[1].engine().drop_overrides(None, None);
    assert_eq!(dropped.unwrap().len(), 1);
    world.settle();
    for _ in 0..2 {
        assert_eq!(world.members[1].picks(), [1, 2]);
        assert!(world.members[1].engine().overrides().is_empty());
        world.start(1, &[1, 2]);
    }
    fs::remove_file(world.path()).unwrap();
    fs::rename(world.store.path().join("away"), world.path()).unwrap();
    world.settle();
    assert_eq!(world.members[0].picks(), [1, 2]);
    for member in &world.members {
        assert_eq!(member.engine().kept().by_hand, []);
    }
}

/// A VIP without cookies beside the other, which the book does not have.
fn dns(reals: &[u8]) -> &'static str {
    let real = |last: &u8| format!("{{ address = \"10.0.0.{last}\" }}");
    let reals: Vec<String> = reals.iter().map(real).collect();
    let text = format!(
        "[[vip]]\nname = \"dns\"\naddress = \"192.0.2.1\"\nport = 53\nprotocol = \"udp\"\nreal = [{}]\n",
        reals.join(", ")
    );
    Box::leak(text.into_boxed_str())
}

#[test]
fn what_is_set_by_hand_holds_where_a_file_has_the_real_still_until_it_is_dropped() {
    let mut world = World::of(2, &[1], dns(&[2, 3]), false);
    let drain = RealChange {
        drain: Some(true),
        ..RealChange::default()
    };
    let set = |world: &World, real: &str| {
        let mut engine = world.members[0].engine();
        engine.change_real("dns", real, &drain, 7).unwrap();
    };
    set(&world, "10.0.0.3");
    world.settle();
    assert_eq!(world.members[1].picks(), [1, 2]);
    // It is drained to be removed, from one file after the other.
    world.extra = dns(&[2]);
    world.reload(0, &[1]);
    world.settle();
    assert_eq!(world.members[1].picks(), [1, 2]);
    let overrides = world.members[0].engine().overrides();
    assert_eq!(overrides.len(), 1);
    assert_eq!(
        (overrides[0].vip.as_str(), overrides[0].real.as_str()),
        ("dns", "10.0.0.3")
    );
    world.reload(1, &[1]);
    let dropped = world.members[0]
        .engine()
        .drop_overrides(Some("dns"), Some("10.0.0.3"));
    assert_eq!(dropped.unwrap(), overrides);
    world.settle();
    for member in &world.members {
        let engine = member.engine();
        let fleet = engine.fleet.as_ref().unwrap();
        assert!(fleet.following.as_ref().unwrap().book.by_hand.is_empty());
        assert!(engine.kept().by_hand.is_empty());
    }
    let unknown = world.members[0]
        .engine()
        .drop_overrides(Some("dns"), Some("10.0.0.3"));
    assert!(unknown.is_err());
}

#[test]
fn a_book_that_cannot_be_written_to_the_disk_is_not_acknowledged() {
    let mut world = World::new(2, &[1, 2]);
    // Where the file is written before it takes the former one's place.
    let new = world.members[1].dir.path().join("fleet.json.new");
    fs::create_dir(&new).unwrap();
    world.reload(0, &[1, 2, 3]);
    world.settle();
    let hold = world.members[1].view().hold.unwrap();
    assert!(
        hold.contains("fleet.json: cannot be written"),
        "it lasts: {hold}"
    );
    assert_eq!(world.waits_for(0), ["lb2"]);
    assert!(!world.members[1].routes().contains_key(&3));
    fs::remove_dir(&new).unwrap();
    world.settle();
    assert_eq!(world.members[1].view().hold, None);
    // It is on the disk for the next daemon.
    let id = world.members[1].routes()[&3];
    world.start(1, &[1, 2]);
    assert_eq!(world.members[1].routes()[&3], id);
    assert_eq!(world.members[1].picks(), [1, 2, 3]);
}

#[test]
fn what_of_the_file_is_in_the_book_is_written_to_the_disk_until_it_is_there() {
    let mut world = World::new(2, &[1, 2]);
    world.reload(0, &[1, 2, 3]);
    world.settle();
    // The book has it already, and is no other by that.
    let new = world.members[1].dir.path().join("fleet.json.new");
    fs::create_dir(&new).unwrap();
    world.reload(1, &[1, 2, 3]);
    world.settle();
    let hold = world.members[1].view().hold.unwrap();
    assert!(hold.contains("fleet.json: cannot be written"), "{hold}");
    fs::remove_dir(&new).unwrap();
    world.settle();
    assert_eq!(world.members[1].view().hold, None);
    // The next daemon knows that its file had it.
    world.start(1, &[1, 2]);
    world.settle();
    assert_eq!(world.members[0].picks(), [1, 2]);
}

#[test]
fn that_a_member_is_out_of_service_is_written_to_the_disk_until_it_is_there() {
    let mut world = World::of(1, &[1], "absence = \"steps-aside\"", false);
    let kept = world.members[0].dir.path().join("fleet.json");
    let is_in_service = || {
        let text = fs::read_to_string(&kept).unwrap();
        text.contains("\"in_service\":true")
    };
    assert!(is_in_service());
    let new = kept.with_file_name("fleet.json.new");
    fs::create_dir(&new).unwrap();
    fs::rename(world.path(), world.store.path().join("away")).unwrap();
    fs::write(world.path(), "no directory").unwrap();
    world.pass(600_000_000_000);
    world.run(0);
    assert_eq!(world.members[0].engine().service(), Service::Out);
    assert!(is_in_service(), "it cannot be written");
    fs::remove_dir(&new).unwrap();
    world.run(0);
    assert!(!is_in_service());
}

#[test]
fn keys_go_by_phases_and_only_with_the_secret() {
    let mut world = World::new(2, &[1]);
    world.members[0].has_keys(&keys_text(2, true, [Some('5'), Some('6')]));
    world.reload(0, &[1]);
    world.settle();
    assert!(world.members[0].has_key('6') && !world.members[1].has_key('6'));
    let hold = world.members[1].view().hold.unwrap();
    assert!(
        hold.starts_with("key 3 of cookies, which the book accepts, is not in"),
        "{hold}"
    );
    assert_eq!(world.waits_for(0), ["lb2"]);
    assert_eq!(world.members[0].view().key_issued, 2);
    // Another secret under that number is none.
    world.members[1].has_keys(&keys_text(2, true, [Some('5'), Some('7')]));
    world.reload(1, &[1]);
    world.settle();
    let hold = world.members[1].view().hold.unwrap();
    assert!(
        hold.starts_with("key 3 of cookies is another on lb1"),
        "{hold}"
    );
    assert!(!world.members[1].has_key('7'));
    // With it all go on, and servers may issue it.
    world.members[1].has_keys(&keys_text(2, true, [Some('5'), Some('6')]));
    world.reload(1, &[1]);
    world.settle();
    let view = world.members[1].view();
    assert_eq!(
        (view.key_issued, view.key_other, view.hold),
        (3, Some(2), None)
    );
    // A file that lacks the former key too early does not take it from any member.
    world.members[0].has_keys(&keys_text(3, false, [None, Some('6')]));
    world.reload(0, &[1]);
    world.settle();
    assert!(world.members[0].has_key('5') && world.members[1].has_key('5'));
    world.pass(QUARANTINE_NS * 2);
    world.settle();
    let view = world.members[1].view();
    assert_eq!((view.key_issued, view.key_other), (3, None));
    assert!(
        world
            .members
            .iter()
            .all(|member| member.has_key('6') && !member.has_key('5'))
    );
}

#[test]
fn a_wrong_key_under_a_number_in_use_comes_into_force_by_no_restart() {
    let mut world = World::new(2, &[1]);
    world.members[0].has_keys(&keys_text(2, false, [Some('7'), None]));
    world.reload(0, &[1]);
    for _ in 0..2 {
        world.settle();
        let hold = world.members[0].view().hold.unwrap();
        assert!(hold.starts_with("key 2 of cookies in "), "{hold}");
        assert!(hold.contains("is another than the one in use"), "{hold}");
        assert!(world.members[0].has_key('5') && !world.members[0].has_key('7'));
        world.start(0, &[1]);
        assert!(world.members[0].has_key('5') && !world.members[0].has_key('7'));
    }
    // It goes on with all else.
    world.reload(1, &[1, 2]);
    world.settle();
    for member in &world.members {
        assert_eq!(member.picks(), [1, 2]);
    }
    world.members[0].has_keys(&keys_text(2, false, [Some('5'), None]));
    world.reload(0, &[1, 2]);
    world.settle();
    assert_eq!(world.members[0].view().hold, None);
}

#[test]
fn keys_that_a_later_build_has_kept_are_not_read() {
    let world = World::new(1, &[1]);
    let dir = world.members[0].dir.path();
    let state = StateDir::new(dir, Path::new("/pins"));
    assert!(Secrets::load(&state, "edge").is_ok());
    let kept = dir.join("fleet-keys.json");
    let text = fs::read_to_string(&kept).unwrap();
    let later = text.replace("\"version\":1,", "\"version\":2,\"more\":true,");
    fs::write(&kept, later).unwrap();
    assert_eq!(
        Secrets::load(&state, "edge").unwrap_err(),
        "fleet-keys.json has version 2, this build reads 1"
    );
}

/// As a build left it that took the key of any file.
#[test]
fn a_member_with_another_key_under_a_number_in_use_says_so() {
    let mut world = World::new(2, &[1]);
    let kept = world.members[0].dir.path().join("fleet-keys.json");
    let text = fs::read_to_string(&kept).unwrap();
    fs::write(&kept, text.replace(&"5".repeat(32), &"7".repeat(32))).unwrap();
    world.members[0].has_keys(&keys_text(2, false, [Some('7'), None]));
    world.start(0, &[1]);
    world.settle();
    let hold = world.members[0].view().hold.unwrap();
    assert!(
        hold.starts_with("key 2 of cookies is another on lb2"),
        "{hold}"
    );
    // Others' word weighs more than what is in use here.
    world.members[0].has_keys(&keys_text(2, false, [Some('5'), None]));
    world.reload(0, &[1]);
    world.settle();
    for member in &world.members {
        assert!(member.has_key('5') && !member.has_key('7'));
        assert_eq!(member.view().hold, None);
    }
}

#[test]
fn what_a_stranger_said_of_its_keys_holds_nobody_up() {
    let mut world = World::new(2, &[1]);
    let said = AckText {
        cluster: fs::read_to_string(world.path().join("edge/id")).unwrap(),
        keys: [(2, "0".repeat(16))].into(),
        ..AckText::default()
    };
    let ack = world.path().join("edge/acks/lb9");
    fs::write(ack, serde_json::to_string(&said).unwrap()).unwrap();
    world.reload(0, &[1, 2]);
    world.settle();
    for member in &world.members {
        assert_eq!((member.view().hold, member.picks()), (None, vec![1, 2]));
    }
}

#[test]
fn keys_that_two_have_prepared_become_one_by_a_copy_of_the_file() {
    let mut world = World::new(2, &[1]);
    world.members[1].has_keys(&keys_text(2, true, [Some('5'), Some('7')]));
    world.reload(1, &[1]);
    world.settle();
    let copied = keys_text(2, true, [Some('5'), Some('6')]);
    world.members[0].has_keys(&copied);
    world.reload(0, &[1]);
    world.settle();
    let hold = world.members[0].view().hold.unwrap();
    assert!(
        hold.starts_with("key 3 of cookies is another on lb2"),
        "{hold}"
    );
    world.members[1].has_keys(&copied);
    world.reload(1, &[1]);
    world.settle();
    for member in &world.members {
        let view = member.view();
        assert_eq!((view.key_issued, view.hold), (3, None));
        assert!(member.has_key('6') && !member.has_key('7'));
    }
}

/// Each has said its own before the book accepts any.
#[test]
fn keys_that_three_have_prepared_become_one_by_a_copy_of_the_file() {
    for restarts in [false, true] {
        let mut world = World::new(3, &[1]);
        let prepared = |digit| keys_text(2, true, [Some('5'), Some(digit)]);
        for (at, digit) in ['6', '7', '8'].into_iter().enumerate() {
            world.members[at].has_keys(&prepared(digit));
            world.reload(at, &[1]);
            let text = fs::read_to_string(world.ack(at)).unwrap();
            let mut said: AckText = serde_json::from_str(&text).unwrap();
            let key = digit.to_string().repeat(32).parse().unwrap();
            said.keys.insert(3, key_digest(3, &key));
            fs::write(world.ack(at), serde_json::to_string(&said).unwrap()).unwrap();
        }
        world.settle();
        for member in &world.members {
            let hold = member.view().hold.unwrap();
            let says = "key 3 of cookies is another on lb";
            assert!(hold.starts_with(says), "{hold}");
        }
        for at in 1..3 {
            world.members[at].has_keys(&prepared('6'));
            match restarts {
                true => world.start(at, &[1]),
                false => world.reload(at, &[1]),
            }
            world.settle();
        }
        for member in &world.members {
            let view = member.view();
            assert_eq!((view.key_issued, view.hold), (3, None));
            assert!(member.has_key('6') && member.has_key('5'));
        }
    }
}

/// A member whose file is wrong holds alone.
#[test]
fn a_wrong_key_that_was_not_said_before_stops_no_other() {
    let mut world = World::new(2, &[1]);
    for (at, digit) in [(0, '6'), (1, '7')] {
        let text = keys_text(2, true, [Some('5'), Some(digit)]);
        world.members[at].has_keys(&text);
        world.reload(at, &[1]);
    }
    world.settle();
    assert_eq!(world.members[0].view().hold, None);
    assert!(world.members[1].view().hold.is_some());
}

#[test]
fn a_keys_file_that_is_far_ahead_moves_no_key() {
    let mut world = World::new(2, &[1]);
    world.members[0].has_keys(&keys_text(7, false, [None, Some('9')]));
    world.reload(0, &[1]);
    world.settle();
    let hold = world.members[0].view().hold.unwrap();
    assert!(
        hold.contains("has key 7 of cookies, and the fleet is at key 2"),
        "{hold}"
    );
    // By either member's file.
    world.reload(1, &[1, 2]);
    world.settle();
    world.reload(0, &[1, 3]);
    world.settle();
    for member in &world.members {
        let view = member.view();
        assert_eq!((view.key_issued, view.key_other), (2, None));
        assert_eq!(member.picks(), [1, 2, 3]);
        assert!(member.has_key('5') && view.waiting.is_empty(), "{view:?}");
    }
    // Two steps at once are made one after the other.
    for (at, reals) in [(0, [1, 3]), (1, [1, 2])] {
        world.members[at].has_keys(&keys_text(4, false, [Some('4'), Some('3')]));
        world.reload(at, &reals);
    }
    world.settle();
    for member in &world.members {
        let view = member.view();
        assert_eq!((view.key_issued, view.hold), (3, None));
    }
}

#[test]
fn a_restart_knows_where_a_real_is_that_rests_and_whose_mac_address_no_file_has() {
    let near = |reals: &[u8]| -> &'static str {
        let real = |last: &u8| {
            format!("{{ address = \"10.0.0.{last}\", mac = \"02:00:00:00:00:0{last}\" }}")
        };
        let reals: Vec<String> = reals.iter().map(real).collect();
        let text = format!(
            "[[vip]]\nname = \"near\"\naddress = \"192.0.2.1\"\nport = 81\nforwarding = \"l2\"\nreal = [{}]\n",
            reals.join(", ")
        );
        Box::leak(text.into_boxed_str())
    };
    let mut world = World::of(1, &[1], near(&[5, 6]), false);
    let id = world.members[0].routes()[&6];
    world.extra = near(&[5]);
    world.reload(0, &[1]);
    world.settle();
    world.start(0, &[1]);
    assert_eq!(world.members[0].routes()[&6], id);
    // Behind a boot nobody knows: it is left out, and the others are served.
    world.members[0].plane = FakePlane::default();
    world.members[0].plane.state().now_s = 1_000_000;
    world.start(0, &[1]);
    assert_eq!(world.members[0].picks(), [1, 5]);
    assert!(!world.members[0].routes().contains_key(&6));
}

#[test]
fn what_the_book_has_set_by_hand_holds_from_the_start_on() {
    let mut world = World::new(2, &[1, 2]);
    let drain = RealChange {
        drain: Some(true),
        ..RealChange::default()
    };
    let mut engine = world.members[0].engine();
    engine.change_real("web", "10.0.0.2", &drain, 7).unwrap();
    drop(engine);
    world.settle();
    // Its `state.json` is lost.
    world.members[1].daemon = None;
    world.start(1, &[1, 2]);
    assert_eq!(world.members[1].picks(), [1]);
    assert_eq!(world.members[1].engine().overrides().len(), 1);
}

#[test]
fn the_former_key_is_not_retired_before_the_file_says_so() {
    let mut world = World::new(1, &[1]);
    world.members[0].has_keys(&keys_text(2, true, [Some('5'), Some('6')]));
    world.reload(0, &[1]);
    world.settle();
    world.pass(QUARANTINE_NS * 2);
    world.settle();
    assert_eq!(world.members[0].view().key_other, Some(2));
    assert!(world.members[0].has_key('5'));
}

/// No file has that key any more, and connections may have it still.
#[test]
fn a_restart_keeps_the_former_key_until_it_has_rested() {
    let mut world = World::new(2, &[1]);
    world.rotate(&keys_text(2, true, [Some('5'), Some('6')]));
    let retired = keys_text(3, false, [None, Some('6')]);
    world.members[0].has_keys(&retired);
    world.reload(0, &[1]);
    world.settle();
    let view = world.members[0].view();
    assert_eq!((view.key_issued, view.key_other), (3, Some(2)));
    // One is restarted behind its reload, the other in the place of it.
    world.members[1].has_keys(&retired);
    for at in 0..2 {
        world.start(at, &[1]);
        assert!(world.members[at].has_key('6') && world.members[at].has_key('5'));
    }
    // One has lost its book besides, and goes by that of the store.
    world.members[1].daemon = None;
    fs::remove_file(world.members[1].dir.path().join("fleet.json")).unwrap();
    world.start(1, &[1]);
    assert!(world.members[1].has_key('6') && world.members[1].has_key('5'));
    // All go on meanwhile.
    world.reload(0, &[1, 2]);
    world.settle();
    for member in &world.members {
        let view = member.view();
        assert!(view.in_service && view.hold.is_none(), "{view:?}");
        assert_eq!((view.key_other, member.picks()), (Some(2), vec![1, 2]));
    }
    world.pass(QUARANTINE_NS * 2);
    world.settle();
    for member in &world.members {
        let view = member.view();
        assert_eq!((view.key_issued, view.key_other), (3, None));
        assert!(member.has_key('6') && !member.has_key('5'));
        let kept = fs::read_to_string(member.dir.path().join("fleet-keys.json")).unwrap();
        assert!(!kept.contains(&"5".repeat(32)), "nor on the disk");
    }
}

#[test]
fn a_member_whose_book_is_out_of_date_begins_with_the_book_of_the_store() {
    let mut world = World::new(2, &[1]);
    let kept = world.members[1].dir.path().join("fleet.json");
    let before = fs::read(&kept).unwrap();
    world.rotate(&keys_text(2, true, [Some('5'), Some('6')]));
    world.rotate(&keys_text(3, false, [None, Some('6')]));
    world.pass(QUARANTINE_NS * 2);
    world.settle();
    let view = world.members[0].view();
    assert_eq!((view.key_issued, view.key_other), (3, None));
    // As a build that kept no keys left it that was off all the time.
    world.members[1].daemon = None;
    fs::write(&kept, before).unwrap();
    fs::remove_file(kept.with_file_name("fleet-keys.json")).unwrap();
    world.start(1, &[1]);
    assert!(world.members[1].has_key('6') && !world.members[1].has_key('5'));
    world.settle();
    let view = world.members[1].view();
    assert!(view.in_service && view.hold.is_none(), "{view:?}");
}

#[test]
fn a_wiped_store_gets_its_book_back_and_a_stranger_s_is_not_taken() {
    let mut world = World::new(2, &[1, 2]);
    let before = (
        world.members[0].view().book.unwrap(),
        world.members[0].routes(),
    );
    let copy = fs::read(world.path().join("edge/book.json")).unwrap();
    fs::remove_dir_all(world.path()).unwrap();
    world.settle();
    let after = world.members[0].view().book.unwrap();
    assert!(after.generation > before.0.generation, "{after}");
    // One set back to a copy is as good as wiped.
    world.reload(0, &[1, 2, 3]);
    world.settle();
    fs::remove_dir_all(world.path()).unwrap();
    world.run(0);
    fs::write(world.path().join("edge/book.json"), copy).unwrap();
    world.settle();
    for member in &world.members {
        assert_eq!(member.picks(), [1, 2, 3]);
        assert!(member.view().in_service && member.view().waiting.is_empty());
        assert!(
            before
                .1
                .iter()
                .all(|(real, id)| member.routes()[real] == *id)
        );
    }
}

/// By the hash of its name the second founder is greater than the first.
#[test]
fn a_fleet_that_is_founded_anew_beside_one_that_serves_is_not_taken() {
    let mut world = World::new(2, &[1, 2]);
    let routes = world.members[0].routes();
    world.wipe();
    world.members.push(Member::new("lb3"));
    world.start(2, &[3]);
    world.run(2);
    let hold = world.members[2].view().hold.unwrap();
    assert!(hold.contains("if no balancer of this fleet runs"), "{hold}");
    let (fleet, engine) = world.members[2].daemon.as_mut().unwrap();
    fleet.found(&*engine).unwrap();
    world.run(2);
    assert!(world.members[2].view().in_service);
    // One that restarts without being in service does not take it either.
    let kept = world.members[1].dir.path().join("fleet.json");
    let text = fs::read_to_string(&kept).unwrap();
    fs::write(&kept, text.replace(&boot_id(), "another")).unwrap();
    world.start(1, &[1, 2]);
    world.run(1);
    let hold = world.members[1].view().hold.unwrap();
    assert!(hold.contains("founded anew on lb3"), "{hold}");
    assert_eq!(world.members[1].routes(), routes);
    world.run(0);
    let view = world.members[0].view();
    assert!(view.in_service, "{view:?}");
    assert_eq!(view.book.unwrap().generation, 1);
    world.settle();
    for member in &world.members {
        let view = member.view();
        assert!(view.in_service && view.waiting.is_empty(), "{view:?}");
        assert_eq!(
            (member.routes(), member.picks()),
            (routes.clone(), vec![1, 2])
        );
    }
}

#[test]
fn what_another_build_has_kept_is_not_gone_by() {
    let world = World::new(1, &[1]);
    let config = world.config(0, &[1]).fleet.unwrap();
    let dir = world.members[0].dir.path();
    let load = || Kept::load(&StateDir::new(dir, Path::new("/pins")), &config, &boot_id());
    assert!(load().unwrap().book.is_some());
    let kept = dir.join("fleet.json");
    let text = fs::read_to_string(&kept).unwrap();
    for (from, to, error) in [
        (
            "\"version\":2",
            "\"version\":1",
            "fleet.json has version 1, this build reads 2",
        ),
        (
            "\"format\":1",
            "\"format\":2",
            "fleet.json has a book of format 2, and this build reads 1",
        ),
    ] {
        fs::write(&kept, text.replace(from, to)).unwrap();
        assert_eq!(load(), Err(error.to_owned()));
    }
}

#[test]
fn a_store_that_was_set_back_waits_for_an_operator_where_nobody_serves() {
    let mut world = World::new(2, &[1, 2]);
    let book = world.path().join("edge/book.json");
    let copy = fs::read(&book).unwrap();
    world.reload(0, &[1, 2, 3]);
    world.settle();
    // All machines have lost power.
    for at in 0..2 {
        let kept = world.members[at].dir.path().join("fleet.json");
        let text = fs::read_to_string(&kept).unwrap();
        fs::write(&kept, text.replace(&boot_id(), "another")).unwrap();
        world.start(at, &[1, 2, 3]);
    }
    fs::write(&book, &copy).unwrap();
    world.settle();
    assert_eq!(fs::read(&book).unwrap(), copy);
    for member in &world.members {
        let hold = member.view().hold.unwrap();
        assert!(
            hold.starts_with("the store was set back: it has book"),
            "{hold}"
        );
        assert_eq!(member.engine().service(), Service::Out);
        assert_eq!(member.routes().len(), 3, "it forwards on");
    }
    let (fleet, engine) = world.members[1].daemon.as_mut().unwrap();
    let said = fleet.found(&*engine).unwrap();
    assert!(said.ends_with("of fleet edge is put back"), "{said}");
    world.settle();
    for member in &world.members {
        assert!(member.view().in_service && member.view().waiting.is_empty());
        assert_eq!(member.picks(), [1, 2, 3]);
    }
    let (fleet, engine) = world.members[0].daemon.as_mut().unwrap();
    assert!(fleet.found(&*engine).is_err(), "it is there");
}

#[test]
fn one_that_leaves_is_passed_by_and_comes_back() {
    let mut world = World::new(2, &[1, 2]);
    let now_ns = world.now_ns;
    let (fleet, engine) = world.members[1].daemon.as_mut().unwrap();
    fleet.leave(&*engine, now_ns).unwrap();
    // Routers are to prefer others, then to send nothing, and have the time for both.
    assert_eq!(world.members[1].engine().service(), Service::Leaving);
    world.pass(2_900_000_000);
    world.settle();
    assert_eq!(world.members[1].engine().service(), Service::Leaving);
    world.pass(200_000_000);
    world.settle();
    assert_eq!(world.members[1].engine().service(), Service::Out);
    assert_eq!(
        world.members[0].view().members.len(),
        2,
        "packets are under way"
    );
    world.pass(3_000_000_000);
    world.settle();
    assert_eq!(world.members[0].view().members.len(), 1);
    assert_eq!(world.members[1].view().state, "left");
    assert_eq!(
        world.members[1].routes(),
        world.members[0].routes(),
        "it forwards on"
    );
    // Nothing waits for it. What it has missed it learns before it serves again; that it has
    // left outlives its daemon.
    world.reload(0, &[1, 3]);
    world.settle();
    assert_eq!(world.members[0].picks(), [1, 3]);
    world.pass(QUARANTINE_NS * 2);
    world.settle();
    world.start(1, &[1, 2]);
    world.settle();
    assert_eq!(world.members[1].view().state, "left");
    let (fleet, engine) = world.members[1].daemon.as_mut().unwrap();
    fleet.join(&*engine).unwrap();
    world.settle();
    assert_eq!(world.members[1].view().state, "serving");
    assert_eq!(world.members[1].engine().service(), Service::In);
    assert_eq!(world.members[1].routes(), world.members[0].routes());
}

#[test]
fn one_that_leaves_and_starts_again_gives_routers_the_time_they_take() {
    let mut world = World::new(2, &[1, 2]);
    world.pass(3_600_000_000_000);
    let now_ns = world.now_ns;
    let (fleet, engine) = world.members[1].daemon.as_mut().unwrap();
    fleet.leave(&*engine, now_ns).unwrap();
    world.start(1, &[1, 2]);
    world.settle();
    assert_eq!(world.members[1].view().state, "left");
    assert_eq!(world.members[0].view().members.len(), 2);
    world.pass(6_000_000_000);
    world.settle();
    assert_eq!(
        world.members[0].view().members.len(),
        2,
        "packets are under way"
    );
    world.pass(100_000_000);
    world.settle();
    assert_eq!(world.members[0].view().members.len(), 1);
}

#[test]
fn one_whose_leaving_cannot_be_written_has_not_left() {
    let mut world = World::new(2, &[1]);
    let new = world.members[1].dir.path().join("fleet.json.new");
    fs::create_dir(&new).unwrap();
    let now_ns = world.now_ns;
    let leave = |world: &mut World| {
        let (fleet, engine) = world.members[1].daemon.as_mut().unwrap();
        fleet.leave(&*engine, now_ns)
    };
    let error = leave(&mut world).unwrap_err().to_string();
    assert!(error.contains("fleet.json: cannot be written"), "{error}");
    fs::remove_dir(&new).unwrap();
    world.reload(0, &[1, 2]);
    world.settle();
    let view = world.members[1].view();
    assert_eq!((view.state.as_str(), view.in_service), ("serving", true));
    assert_eq!(world.members[1].picks(), [1, 2], "it goes on");
    leave(&mut world).unwrap();
    assert_eq!(world.members[1].engine().service(), Service::Leaving);
    // Likewise where it cannot be written that it comes back.
    fs::create_dir(&new).unwrap();
    let (fleet, engine) = world.members[1].daemon.as_mut().unwrap();
    fleet.join(&*engine).unwrap_err();
    fs::remove_dir(&new).unwrap();
    world.settle();
    assert_eq!(world.members[1].view().state, "left");
    let (fleet, engine) = world.members[1].daemon.as_mut().unwrap();
    fleet.join(&*engine).unwrap();
    world.settle();
    assert_eq!(world.members[1].view().state, "serving");
}

/// Leases last by the machine's clock, which goes on.
const LONG_LEASE: &str = "lease = \"1h\"";

#[test]
fn a_second_balancer_of_one_name_holds() {
    let mut world = World::of(2, &[1], LONG_LEASE, false);
    world.members.push(Member::new("lb2"));
    world.start(2, &[1]);
    world.settle();
    world.reload(0, &[1, 2]);
    world.settle();
    let hold = world.members[2].view().hold.unwrap();
    assert!(hold.starts_with("another balancer is called lb2"), "{hold}");
    assert!(!world.members[2].view().in_service);
    for member in &world.members[..2] {
        let view = member.view();
        assert!(view.hold.is_none() && view.in_service, "{view:?}");
        assert_eq!(member.picks(), [1, 2]);
    }
    // The first one is known again when its daemon starts anew.
    world.start(1, &[1]);
    world.settle();
    assert_eq!(world.members[1].view().hold, None);
    assert!(world.members[2].view().hold.is_some());
}

/// They start at one instant, and neither sees the other before it speaks.
#[test]
fn two_balancers_of_one_name_that_speak_at_once_hold_both() {
    let mut world = World::of(2, &[1], LONG_LEASE, false);
    world.members.push(Member::new("lb2"));
    let first = fs::read(world.path().join("edge/acks/lb2")).unwrap();
    fs::remove_file(world.path().join("edge/acks/lb2")).unwrap();
    world.start(2, &[1]);
    world.run(2);
    let second = fs::read(world.path().join("edge/acks/lb2")).unwrap();
    assert_ne!(first, second);
    world.settle();
    for member in &world.members[1..] {
        let hold = member.view().hold.unwrap();
        assert!(hold.starts_with("another balancer is called lb2"), "{hold}");
    }
    assert_eq!(world.members[0].view().hold, None);
    // One goes, as under another name, and the other is restarted.
    world.members.pop();
    world.start(1, &[1]);
    world.end_lease(1);
    world.settle();
    world.goes_on();
}

#[test]
fn a_member_whose_machine_was_booted_waits_for_its_own_lease_at_most() {
    for is_soon in [false, true] {
        let mut world = World::of(2, &[1], LONG_LEASE, false);
        world.boot(1);
        if is_soon {
            world.settle();
            assert!(world.is_held_for_a_namesake(1));
            assert_eq!(world.members[1].engine().service(), Service::Out);
        }
        world.end_lease(1);
        world.settle();
        world.goes_on();
        // What it said by then is its own.
        world.start(1, &[1]);
        world.settle();
        world.goes_on();
    }
}

#[test]
fn machines_that_are_booted_one_after_the_other_all_come_back() {
    let mut world = World::of(3, &[1], LONG_LEASE, false);
    for at in [0, 1, 2, 0, 1, 2] {
        world.boot(at);
        world.end_lease(at);
        world.settle();
        let serve = |member: &Member| member.engine().service() == Service::In;
        assert!(world.members.iter().all(serve), "{at}");
    }
    world.goes_on();
}

#[test]
fn a_member_whose_state_dir_was_moved_waits_for_its_own_lease_at_most() {
    let mut world = World::of(2, &[1], LONG_LEASE, false);
    let new = tempfile::tempdir().unwrap();
    for name in ["keys", "fleet.json", "fleet-keys.json"] {
        fs::copy(
            world.members[1].dir.path().join(name),
            new.path().join(name),
        )
        .unwrap();
    }
    world.members[1].dir = new;
    world.start(1, &[1]);
    world.settle();
    assert!(world.is_held_for_a_namesake(1));
    world.end_lease(1);
    world.settle();
    world.goes_on();
}

#[test]
fn of_two_newcomers_of_one_name_the_first_to_speak_goes_on() {
    let mut world = World::of(1, &[1], LONG_LEASE, false);
    for at in [1, 2] {
        world.members.push(Member::new("lb2"));
        world.start(at, &[1]);
    }
    // It has looked, and found the name free.
    let now_ns = world.now_ns;
    let (fleet, engine) = world.members[2].daemon.as_mut().unwrap();
    assert!(fleet.round(&*engine, now_ns));
    world.run(1);
    world.settle();
    assert!(world.is_held_for_a_namesake(2));
    assert!(!world.members[2].view().in_service);
    world.members.pop();
    world.goes_on();
}

#[test]
fn one_that_comes_back_to_a_name_that_another_took_meanwhile_is_found() {
    let mut world = World::of(2, &[1], LONG_LEASE, false);
    world.members.push(Member::new("lb2"));
    world.end_lease(1);
    world.start(2, &[1]);
    for _ in 0..6 {
        world.run(2);
        world.run(0);
    }
    assert!(world.members[2].view().in_service);
    world.settle();
    assert!(world.is_held_for_a_namesake(1) && world.is_held_for_a_namesake(2));
    assert_eq!(world.members[0].view().hold, None);
}

#[test]
fn a_word_from_before_that_comes_back_holds_nobody() {
    let mut world = World::of(2, &[1], LONG_LEASE, false);
    let before = world.ack_of_another(1);
    let own = fs::read_to_string(world.ack(1)).unwrap();
    let own: AckText = serde_json::from_str(&own).unwrap();
    for _ in 0..4 {
        fs::write(world.ack(1), &before).unwrap();
        world.settle();
        let said = fs::read_to_string(world.ack(1)).unwrap();
        let said: AckText = serde_json::from_str(&said).unwrap();
        assert_eq!(said.balancer, own.balancer);
        assert_eq!(world.members[1].view().hold, None);
    }
    // Nor while it cannot be answered.
    let is_full = Arc::new(AtomicBool::new(true));
    let is_told = Arc::clone(&is_full);
    let fleet = &mut world.members[1].daemon.as_mut().unwrap().0;
    fleet.store = Box::new(Troubled {
        store: store::open(&fleet.config).unwrap(),
        before: Box::new(move |call| match call {
            "acknowledge" if is_told.load(Ordering::Relaxed) => {
                Err(StoreError::Refused("it is full".to_owned()))
            }
            _ => Ok(()),
        }),
    });
    fs::write(world.ack(1), &before).unwrap();
    world.settle();
    assert_eq!(world.members[1].view().hold.as_deref(), Some("it is full"));
    is_full.store(false, Ordering::Relaxed);
    world.settle();
    world.goes_on();
}

#[test]
fn a_dead_member_is_waited_for_until_an_operator_says_that_it_gets_no_packets() {
    let mut world = World::new(2, &[1]);
    world.reload(0, &[1, 2]);
    world.pass(3_600_000_000_000);
    (0..5).for_each(|_| world.run(0));
    assert_eq!(world.waits_for(0), ["lb2"]);
    let fleet = &mut world.members[0].daemon.as_mut().unwrap().0;
    assert!(fleet.pass_by("lb1").is_err(), "itself");
    assert!(fleet.pass_by("lb7").is_err());
    fleet.pass_by("lb2").unwrap();
    (0..5).for_each(|_| world.run(0));
    assert_eq!(world.members[0].picks(), [1, 2]);
    // It was wrong about lb2, which finds out, and comes back.
    world.run(1);
    world.settle();
    assert!(world.members[1].view().in_service);
    assert_eq!(world.members[1].picks(), [1, 2]);
}

#[test]
fn one_that_was_away_forgets_ids_that_are_others_now() {
    let mut world = World::new(2, &[1, 2]);
    let id = world.members[0].routes()[&2];
    let fleet = &mut world.members[0].daemon.as_mut().unwrap().0;
    fleet.pass_by("lb2").unwrap();
    world.run(0);
    world.reload(0, &[1]);
    world.run(0);
    world.pass(QUARANTINE_NS * 2);
    (0..3).for_each(|_| world.run(0));
    assert!(!world.members[0].routes().contains_key(&2));
    let mut file = world.config(0, &[1, 9]);
    file.vips[0].reals[1].id = Some(id);
    world.members[0].engine().reload(file).unwrap();
    (0..3).for_each(|_| world.run(0));
    assert_eq!(world.members[0].routes()[&9], id);
    assert_eq!(world.members[1].routes()[&2], id, "it has not heard");
    world.settle();
    assert_eq!(world.members[1].routes(), world.members[0].routes());
    assert!(world.members[1].view().in_service);
}

#[test]
fn where_members_step_aside_a_lost_store_withdraws() {
    let mut world = World::of(1, &[1], "absence = \"steps-aside\"", false);
    assert_eq!(world.members[0].engine().service(), Service::In);
    fs::rename(world.path(), world.store.path().join("away")).unwrap();
    fs::write(world.path(), "no directory").unwrap();
    world.pass(9_700_000_000);
    world.run(0);
    assert_eq!(
        world.members[0].engine().service(),
        Service::In,
        "its lease lasts"
    );
    // Also while the store is waited for.
    let at = |world: &World, later_ns: u64| {
        world.members[0]
            .engine()
            .service_at(world.now_ns + later_ns)
    };
    assert_eq!(
        [at(&world, 0), at(&world, 200_000_000)],
        [Service::In, Service::Out]
    );
    world.pass(200_000_000);
    world.run(0);
    assert_eq!(world.members[0].engine().service(), Service::Out);
    assert_eq!(world.members[0].picks(), [1], "and it forwards on");
    fs::remove_file(world.path()).unwrap();
    fs::rename(world.store.path().join("away"), world.path()).unwrap();
    world.settle();
    assert_eq!(world.members[0].engine().service(), Service::In);
}

#[test]
fn a_vip_comes_by_one_file_and_is_waited_for_where_the_file_lacks_it() {
    let second = |mut config: BalancerConfig| {
        let mut vip = config.vips[0].clone();
        (vip.name, vip.port) = ("more".to_owned(), 81);
        config.vips.push(vip);
        config
    };
    let mut world = World::new(2, &[1]);
    let file = second(world.config(0, &[1]));
    world.members[0].engine().reload(file).unwrap();
    world.settle();
    let hold = world.members[1].view().hold.unwrap();
    assert_eq!(
        hold,
        "vip 192.0.2.1:81/tcp of the book is not in this balancer's file; add it"
    );
    assert_eq!(world.waits_for(0), ["lb2"]);
    let file = second(world.config(1, &[1]));
    world.members[1].engine().reload(file).unwrap();
    world.settle();
    assert_eq!(world.members[0].plane.state().cookie_ids.len(), 2);
    assert!(
        world
            .members
            .iter()
            .all(|member| member.view().waiting.is_empty())
    );
    // It goes where the first file drops it, once that is confirmed.
    world.push(0, &[1], true).unwrap();
    world.settle();
    world.reload(1, &[1]);
    world.settle();
    assert!(
        world
            .members
            .iter()
            .all(|member| member.view().hold.is_none())
    );
    world.pass(QUARANTINE_NS * 2);
    world.settle();
    assert!(
        world
            .members
            .iter()
            .all(|member| member.view().ids.len() == 1)
    );
}

#[test]
fn after_a_loss_of_power_a_member_serves_only_once_it_has_changed_the_book() {
    let mut world = World::of(2, &[1], "max_removed = 1.0", false);
    let kept = world.members[1].dir.path().join("fleet.json");
    let text = fs::read_to_string(&kept).unwrap();
    world.start(1, &[1]);
    assert_eq!(
        world.members[1].engine().service(),
        Service::In,
        "the daemon alone"
    );
    fs::write(&kept, text.replace(&boot_id(), "another")).unwrap();
    world.start(1, &[1]);
    assert_eq!(world.members[1].engine().service(), Service::Out);
    let before = world.members[0].view().book.unwrap();
    world.settle();
    assert_eq!(world.members[1].engine().service(), Service::In);
    assert!(world.members[0].view().book.unwrap() > before);
    // One that has lost its file begins with the store's book, and not by its configuration.
    world.reload(0, &[2]);
    world.settle();
    let before = world.members[1].routes();
    assert_eq!(before.len(), 2, "one rests");
    fs::write(&kept, &text[..text.len() / 2]).unwrap();
    world.start(1, &[1]);
    assert_eq!(world.members[1].engine().service(), Service::Out);
    assert_eq!(world.members[1].routes(), before);
    world.settle();
    assert_eq!(world.members[1].engine().service(), Service::In);
}

#[test]
fn etcd_may_stop_be_wiped_and_come_back() {
    let mut world = World::of(2, &[1, 2], "", true);
    world.reload(0, &[1, 2, 3]);
    world.settle();
    assert_eq!(world.members[1].picks(), [1, 2, 3]);
    let before = world.members[0].view().book.unwrap();
    for wiped in [false, true] {
        world.etcd.as_mut().unwrap().stop();
        world.settle();
        for member in &world.members {
            let view = member.view();
            assert!(view.store_error.is_some() && view.in_service, "{view:?}");
            assert_eq!(member.picks(), [1, 2, 3]);
        }
        world.etcd.as_mut().unwrap().again(wiped);
        world.pass(5_000_000_000);
        in_time(|| {
            world.settle();
            world.members.iter().all(|member| {
                let view = member.view();
                view.store_error.is_none() && view.waiting.is_empty()
            })
        });
    }
    assert!(world.members[0].view().book.unwrap().generation > before.generation);
    world.reload(1, &[1, 2]);
    world.settle();
    assert_eq!(
        world.members[0].picks(),
        [1, 2, 3],
        "lb2's file never had it"
    );
    world.reload(0, &[1, 2]);
    world.settle();
    assert_eq!(world.members[1].picks(), [1, 2]);
}

#[test]
fn the_thread_hears_operators_and_reloads() {
    let store = tempfile::tempdir().unwrap();
    let member = Member::new("lb1");
    let file = member.config((store.path(), ""), &[1]);
    let config = file.fleet.clone().unwrap();
    let (fleet, membership) = Fleet::open(&file, &config, &[]).unwrap();
    let plane = Box::new(member.plane.clone());
    let engine = Engine::succeed(plane, file, KeptState::default(), Some(membership), START);
    let engine = Arc::new(Mutex::new(engine.unwrap()));
    let (orders, inbox) = FleetOrders::new();
    let runner = start(fleet, inbox, Arc::clone(&engine)).unwrap();
    assert!(orders.give(FleetOrder::Join).is_err());
    let said = orders.give(FleetOrder::Found).unwrap();
    assert_eq!(said, "fleet edge is founded with 1 ids, as they run here");
    assert!(orders.give(FleetOrder::Found).is_err());
    let view = || engine.lock().unwrap().fleet.as_ref().unwrap().view.clone();
    in_time(|| view().state == "serving");
    let file = member.config((store.path(), ""), &[1, 2]);
    engine.lock().unwrap().reload(file).unwrap();
    in_time(|| member.picks() == [1, 2]);
    assert!(orders.give(FleetOrder::PassBy("lb1".to_owned())).is_err());
    orders.give(FleetOrder::Leave).unwrap();
    assert_eq!(view().state, "left");
    runner.stop();
}

type BeforeCall = dyn Fn(&str) -> Result<(), StoreError> + Send;

/// A store, with what a test has it do before each call.
struct Troubled {
    store: Box<dyn Store>,
    before: Box<BeforeCall>,
}

impl Store for Troubled {
    fn read(&mut self) -> Result<Held, StoreError> {
        (self.before)("read")?;
        self.store.read()
    }

    fn replace(&mut self, expected: Option<u64>, text: &str) -> Result<bool, StoreError> {
        (self.before)("replace")?;
        self.store.replace(expected, text)
    }

    fn acknowledge(&mut self, member: &str, text: &str) -> Result<(), StoreError> {
        (self.before)("acknowledge")?;
        self.store.acknowledge(member, text)
    }

    fn renew(&mut self, member: &str, ttl: Duration) -> Result<(), StoreError> {
        (self.before)("renew")?;
        self.store.renew(member, ttl)
    }

    fn wait(&mut self, at_most: Duration) -> Result<bool, StoreError> {
        (self.before)("wait")?;
        self.store.wait(at_most)
    }
}

#[test]
fn a_member_whose_lease_is_not_renewed_reads_the_book_all_the_same() {
    let mut world = World::new(2, &[1]);
    let fleet = &mut world.members[1].daemon.as_mut().unwrap().0;
    fleet.store = Box::new(Troubled {
        store: store::open(&fleet.config).unwrap(),
        before: Box::new(|call| match call {
            "renew" => Err(StoreError::Refused("it is full".to_owned())),
            _ => Ok(()),
        }),
    });
    world.pass(5_000_000_000);
    world.reload(0, &[1, 2]);
    world.settle();
    let view = world.members[1].view();
    assert_eq!(view.store_error.as_deref(), Some("it is full"));
    assert_eq!(world.members[1].picks(), [1, 2]);
    assert!(view.in_service && view.waiting.is_empty(), "{view:?}");
}

#[test]
fn a_store_that_refuses_a_book_is_not_asked_again_at_once() {
    let mut world = World::new(1, &[1]);
    let fleet = &mut world.members[0].daemon.as_mut().unwrap().0;
    fleet.store = Box::new(Troubled {
        store: store::open(&fleet.config).unwrap(),
        before: Box::new(|call| match call {
            "replace" => Err(StoreError::Refused("it is full".to_owned())),
            _ => Ok(()),
        }),
    });
    world.reload(0, &[1, 2]);
    let now_ns = world.now_ns;
    let (fleet, engine) = world.members[0].daemon.as_mut().unwrap();
    assert!(!fleet.round(&*engine, now_ns), "not at once");
    assert_eq!(world.members[0].view().hold.as_deref(), Some("it is full"));
    assert_eq!(world.members[0].picks(), [1]);
}

#[test]
fn an_order_that_was_given_up_is_never_carried_out() {
    let store = tempfile::tempdir().unwrap();
    let member = Member::new("lb1");
    let file = member.config((store.path(), ""), &[1]);
    let config = file.fleet.clone().unwrap();
    let gate = Arc::new(Mutex::new(()));
    let hangs = Arc::new(AtomicBool::new(false));
    let (its_gate, it_hangs) = (Arc::clone(&gate), Arc::clone(&hangs));
    let troubled = Troubled {
        store: store::open(&config).unwrap(),
        before: Box::new(move |call| {
            if call == "read" && its_gate.try_lock().is_err() {
                it_hangs.store(true, Ordering::Relaxed);
                drop(its_gate.lock().unwrap());
            }
            Ok(())
        }),
    };
    let dir = StateDir::new(&file.state_dir, &file.pin_dir);
    let (fleet, membership) = Fleet::with(Box::new(troubled), dir, &file, &config, &[], 0).unwrap();
    let plane = Box::new(member.plane.clone());
    let engine = Engine::succeed(plane, file, KeptState::default(), Some(membership), START);
    let engine = Arc::new(Mutex::new(engine.unwrap()));
    let (orders, inbox) = FleetOrders::new();
    let runner = start(fleet, inbox, Arc::clone(&engine)).unwrap();
    orders.give(FleetOrder::Found).unwrap();
    let view = || engine.lock().unwrap().fleet.as_ref().unwrap().view.clone();
    in_time(|| view().state == "serving");
    let hung = gate.lock().unwrap();
    in_time(|| hangs.load(Ordering::Relaxed));
    let given = orders.give_for(Duration::from_millis(10), FleetOrder::Leave);
    assert_eq!(
        given.unwrap_err().to_string(),
        "the fleet's store does not answer, and this order is dropped; `causeway fleet status` says why, give it again then"
    );
    drop(hung);
    // Whoever has left could come back.
    let later = orders.give(FleetOrder::Join).unwrap_err();
    assert!(later.to_string().contains("has not left"), "{later}");
    assert_eq!(view().state, "serving");
    runner.stop();
}

#[test]
fn an_order_that_was_begun_may_still_be_carried_out() {
    let (orders, inbox) = FleetOrders::new();
    let answer = std::thread::scope(|scope| {
        let given = scope.spawn(|| orders.give(FleetOrder::Leave));
        let (order, answer) = inbox.recv().unwrap().begin().unwrap();
        assert_eq!(order, FleetOrder::Leave);
        drop(answer);
        given.join().unwrap()
    });
    let error = answer.unwrap_err().to_string();
    assert!(error.contains("may still be carried out"), "{error}");
}

#[test]
fn a_rollback_that_is_given_twice_goes_back_once() {
    let mut world = World::new(1, &[1]);
    for reals in [&[1, 2][..], &[1, 2, 3]] {
        world.reload(0, reals);
        world.settle();
    }
    let (mut fleet, engine) = world.members[0].daemon.take().unwrap();
    let (orders, inbox) = FleetOrders::new();
    let shared = Arc::into_inner(crate::serve_tests::shared(&FakePlane::default())).unwrap();
    let shared = shared.with_fleet(Some(orders));
    *shared.engine() = engine.into_inner().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| shared.rollback(FleetRollback::default()).unwrap());
        }
        let given = [(); 2].map(|()| inbox.recv().unwrap().begin().unwrap());
        for (order, answer) in given {
            let FleetOrder::Rollback(order) = order else {
                panic!("{order:?}");
            };
            let said = fleet.rollback(&shared, &order, START);
            answer.send(said).unwrap();
        }
    });
    while fleet.round(&shared, world.now_ns) {}
    assert_eq!(world.members[0].picks(), [1, 2]);
}
