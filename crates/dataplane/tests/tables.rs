// SPDX-License-Identifier: Apache-2.0
//! Random changes of VIPs, reals and rings, with restarts in between, against a
//! model of what the tables should hold.

mod sandbox;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use causeway_dataplane::{
    DataPlaneError, Forwarding, LoadBalancer, LoadBalancerOptions, Protocol, Real, RealId,
    TableLimits, Vip, VipId,
};
use libbpf_rs::{MapCore as _, MapHandle};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use sandbox::Sandbox;

const MAX_VIPS: u32 = 6;
const MAX_REALS: u32 = 10;

#[derive(Clone, Debug)]
enum Change {
    AddVip(Vip),
    RemoveVip(VipId),
    AddReal(Real),
    RemoveReal(RealId),
    SetForwarding(RealId, Forwarding),
    SetRing(VipId, Vec<RealId>),
    Restart,
}

fn forwarding() -> impl Strategy<Value = Forwarding> {
    prop_oneof![
        Just(Forwarding::Ipip),
        Just(Forwarding::Gue),
        any::<[u8; 6]>().prop_map(Forwarding::L2),
    ]
}

/// Few addresses, so that they meet.
fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0..3_u8).prop_map(|n| Ipv4Addr::new(192, 0, 2, n).into()),
        (0..3_u16).prop_map(|n| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n).into()),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let vip = (address(), 0..3_u16, any::<bool>()).prop_map(|(address, port, tcp)| Vip {
        address,
        port,
        protocol: if tcp { Protocol::Tcp } else { Protocol::Udp },
    });
    let real = (0..MAX_VIPS, address(), forwarding());
    let ring = prop::collection::vec(0..MAX_REALS, 0..12);
    prop_oneof![
        3 => vip.prop_map(Change::AddVip),
        1 => (0..MAX_VIPS).prop_map(Change::RemoveVip),
        4 => real.prop_map(|(vip, address, forwarding)| Change::AddReal(Real { vip, address, forwarding })),
        1 => (0..MAX_REALS).prop_map(Change::RemoveReal),
        1 => (0..MAX_REALS, forwarding()).prop_map(|(id, way)| Change::SetForwarding(id, way)),
        3 => (0..MAX_VIPS, ring).prop_map(|(vip, ring)| Change::SetRing(vip, ring)),
        1 => Just(Change::Restart),
    ]
}

/// What the tables should hold.
#[derive(Default)]
struct Model {
    vips: BTreeMap<VipId, Vip>,
    reals: BTreeMap<RealId, Real>,
    rings: BTreeMap<VipId, Vec<RealId>>,
}

fn lowest_free<T>(used: &BTreeMap<u32, T>, max: u32) -> Option<u32> {
    (0..max).find(|id| !used.contains_key(id))
}

impl Model {
    /// Makes a change; `None` where the tables must refuse it, else the new id.
    fn apply(&mut self, change: &Change) -> Option<u32> {
        match change {
            Change::AddVip(vip) => {
                if self.vips.values().any(|other| other == vip) {
                    return None;
                }
                let id = lowest_free(&self.vips, MAX_VIPS)?;
                self.vips.insert(id, *vip);
                Some(id)
            }
            Change::RemoveVip(id) => {
                self.vips.remove(id)?;
                self.rings.remove(id);
                self.reals.retain(|_, real| real.vip != *id);
                Some(*id)
            }
            Change::AddReal(real) => {
                self.vips.get(&real.vip)?;
                let id = lowest_free(&self.reals, MAX_REALS)?;
                self.reals.insert(id, *real);
                Some(id)
            }
            Change::RemoveReal(id) => self.reals.remove(id).map(|_| *id),
            Change::SetForwarding(id, way) => {
                self.reals.get_mut(id)?.forwarding = *way;
                Some(*id)
            }
            Change::SetRing(vip, ring) => {
                self.vips.get(vip)?;
                if !ring.iter().all(|id| self.reals.contains_key(id)) {
                    return None;
                }
                self.rings.insert(*vip, ring.clone());
                Some(*vip)
            }
            Change::Restart => Some(0),
        }
    }
}

fn apply(lb: &LoadBalancer, change: &Change) -> Result<u32, DataPlaneError> {
    match change {
        Change::AddVip(vip) => lb.add_vip(vip),
        Change::RemoveVip(id) => lb.remove_vip(*id).map(|()| *id),
        Change::AddReal(real) => lb.add_real(real),
        Change::RemoveReal(id) => lb.remove_real(*id).map(|()| *id),
        Change::SetForwarding(id, way) => lb.set_forwarding(*id, *way).map(|()| *id),
        Change::SetRing(vip, ring) => lb.set_ring(*vip, ring).map(|()| *vip),
        Change::Restart => Ok(0),
    }
}

fn options(pin_dir: PathBuf) -> LoadBalancerOptions {
    LoadBalancerOptions {
        flows_v4: 64,
        flows_v6: 64,
        limits: TableLimits {
            vips: MAX_VIPS,
            reals: MAX_REALS,
            ..TableLimits::default()
        },
        ..LoadBalancerOptions::new("lo", pin_dir)
    }
}

fn check(lb: &LoadBalancer, model: &Model) {
    let vips: Vec<_> = model.vips.iter().map(|(id, vip)| (*id, *vip)).collect();
    assert_eq!(lb.vips(), vips);
    let reals: Vec<_> = model.reals.iter().map(|(id, real)| (*id, *real)).collect();
    assert_eq!(lb.reals(), reals);
    let ids = |stats: Vec<(u32, _)>| stats.into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!(
        ids(lb.vip_stats().expect("counters")),
        vips.iter().map(|v| v.0).collect::<Vec<_>>()
    );
    for id in model.vips.keys() {
        let ring = model.rings.get(id).cloned().unwrap_or_default();
        assert_eq!(lb.ring(*id).expect("the ring"), ring);
    }
}

#[test]
fn tables_hold_what_the_changes_say_over_any_number_of_restarts() {
    Sandbox::run(|sandbox| {
        let mut runner = TestRunner::new(Config {
            cases: 24,
            failure_persistence: None,
            ..Config::default()
        });
        let case = Cell::new(0);
        let changes = prop::collection::vec(change(), 1..40);
        let result = runner.run(&changes, |changes| {
            case.set(case.get() + 1);
            let options = options(sandbox.pin_dir(&format!("lb{}", case.get())));
            let start = || LoadBalancer::start(&options).expect("a start").0;
            let (mut lb, mut model) = (Some(start()), Model::default());
            for change in &changes {
                if matches!(change, Change::Restart) {
                    drop(lb.take());
                    lb = Some(start());
                }
                let balancer = lb.as_ref().expect("a balancer");
                let (ours, theirs) = (apply(balancer, change), model.apply(change));
                assert_eq!(ours.ok(), theirs, "{change:?}");
                check(balancer, &model);
            }
            drop(lb);
            LoadBalancer::detach(&options.pin_dir).expect("a detach");
            Ok(())
        });
        if let Err(failure) = result {
            panic!("{failure}");
        }
    });
}

/// A kill between the steps of a VIP's removal leaves its address and its reals.
#[test]
fn a_start_finishes_the_removals_of_its_predecessor() {
    Sandbox::run(|sandbox| {
        let options = options(sandbox.pin_dir("lb"));
        let (lb, _) = LoadBalancer::start(&options).expect("a start");
        let vip = Vip {
            address: Ipv4Addr::new(192, 0, 2, 1).into(),
            port: 80,
            protocol: Protocol::Tcp,
        };
        let id = lb.add_vip(&vip).expect("a VIP");
        let real = Real {
            vip: id,
            address: Ipv4Addr::new(10, 0, 0, 1).into(),
            forwarding: Forwarding::Ipip,
        };
        lb.add_real(&real).expect("a real");
        drop(lb);
        let vips = MapHandle::from_pinned_path(options.pin_dir.join("vips")).expect("the map");
        let entries: Vec<_> = vips.keys().collect();
        assert_eq!(entries.len(), 2, "the VIP and its address");
        let first_step = entries.iter().find(|key| key[18] != 0).expect("the VIP");
        vips.delete(first_step)
            .expect("the first step of its removal");
        let (lb, _) = LoadBalancer::start(&options).expect("a start");
        assert_eq!((lb.vips(), lb.reals()), (vec![], vec![]));
        assert_eq!(vips.keys().count(), 0);
    });
}
