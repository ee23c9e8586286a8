// SPDX-License-Identifier: Apache-2.0
//! Changes while the engine runs: what a refused one must leave alone, and what
//! an accepted one must not touch.

use super::fake::FakePlane;
use super::plane::DataPlane;
use super::tests::{Bench, WEB, config};
use crate::config::MacAddress;

const L2: &str = r#"
[[vip]]
name = "direct"
address = "192.0.2.1"
port = 80
forwarding = "l2"
real = [{ address = "10.0.0.1", mac = "02:00:00:00:00:11" }]
"#;

/// What the engine has learnt of `web`: each real's weight and epochs.
fn learnt(bench: &Bench) -> Vec<(f64, usize)> {
    let members = bench.engine.pools()[0].members();
    members
        .map(|(_, member)| (member.weight, member.history.len()))
        .collect()
}

fn second_vip(plane: &str) -> String {
    WEB.replace("\"web\"", "\"api\"")
        .replace("80", "81")
        .replace("10.0.0", plane)
}

/// A bench whose first real was found to be slow.
fn degraded(text: &str) -> Bench {
    let mut bench = Bench::new(text);
    bench.run(10, &[5.0; 4]);
    bench.run(20, &[100.0, 5.0, 5.0, 5.0]);
    assert!(bench.plane.state().share(0, 0) < 0.03);
    bench
}

#[test]
fn a_refused_change_keeps_what_was_learnt() {
    let text = format!("reconcile = false\n{WEB}");
    let mut bench = degraded(&text);
    let before = learnt(&bench);
    let reason = bench.engine.pools()[0].decision().cloned();
    let (rings, reals) = {
        let state = bench.plane.state();
        (state.rings.clone(), state.reals.clone())
    };
    // Room for two reals of four: the change fails half-way.
    bench.plane.state().max_reals = Some(6);
    let swaps = bench.plane.state().ring_swaps;
    let more = format!("{text}{}", second_vip("10.0.1"));
    let error = bench.engine.reload(config(&more)).unwrap_err();
    assert_eq!(error.to_string(), "the table of reals is full");
    assert_eq!(learnt(&bench), before);
    assert_eq!(bench.engine.pools()[0].decision().cloned(), reason);
    let state = bench.plane.state();
    assert!(state.rings == rings && state.reals == reals);
    assert_eq!((state.vips.len(), state.ring_swaps), (1, swaps));
}

#[test]
fn rings_that_are_refused_are_taken_back() {
    let mut bench = degraded(WEB);
    let before = (learnt(&bench), bench.plane.state().rings.clone());
    bench.plane.state().refuse_rings = 1;
    let text = WEB.replace("10.0.0.4", "10.0.0.5");
    let error = bench.engine.reload(config(&text)).unwrap_err();
    assert_eq!(error.to_string(), "no memory for rings");
    assert_eq!(learnt(&bench), before.0);
    assert!(bench.plane.state().rings == before.1);
    assert_eq!(bench.plane.state().reals.len(), 4);
    // Not even the way back works: the next interval tries it again.
    bench.plane.state().refuse_rings = 2;
    let error = bench.engine.reload(config(&text)).unwrap_err();
    let sentence = error.to_string();
    assert!(sentence.contains("could not be restored"), "{sentence}");
    assert_eq!(learnt(&bench), before.0);
    let swaps = bench.plane.state().ring_swaps;
    bench.run(1, &[100.0, 5.0, 5.0, 5.0]);
    assert_eq!(bench.plane.state().ring_swaps, swaps + 1);
    assert!(bench.plane.state().share(0, 0) < 0.03);
}

#[test]
fn a_vip_in_tunnels_gets_a_gateway_when_it_comes() {
    let mut bench = Bench::new(L2);
    assert_eq!(bench.plane.state().next_hop.unwrap().gateway_mac, [0; 6]);
    let vip = config(&second_vip("10.0.1")).vips.remove(0);
    bench.plane.state().gateway = None;
    let error = bench.engine.add_vip(vip.clone()).unwrap_err();
    assert_eq!(error.to_string(), "the gateway is silent");
    assert_eq!(bench.plane.state().vips.len(), 1);
    bench.plane.state().gateway = Some(MacAddress([2, 0, 0, 0, 0, 9]));
    bench.engine.add_vip(vip).unwrap();
    let mac = bench.plane.state().next_hop.unwrap().gateway_mac;
    assert_eq!(mac, [2, 0, 0, 0, 0, 9]);
}

#[test]
fn a_refused_change_leaves_the_next_hop() {
    let mut bench = Bench::new(L2);
    bench.plane.state().max_reals = Some(1);
    let vip = config(&second_vip("10.0.1")).vips.remove(0);
    bench.engine.add_vip(vip).unwrap_err();
    assert_eq!(bench.plane.state().next_hop.unwrap().gateway_mac, [0; 6]);
}

#[test]
fn the_gateway_is_followed_and_its_silence_borne() {
    let mut bench = Bench::new(WEB);
    let mac = |plane: &FakePlane| plane.state().next_hop.unwrap().gateway_mac[5];
    bench.run(1, &[5.0; 4]);
    bench.plane.state().gateway = None;
    bench.run(60, &[5.0; 4]);
    assert_eq!(mac(&bench.plane), 1);
    bench.plane.state().gateway = Some(MacAddress([2, 0, 0, 0, 0, 7]));
    bench.run(51, &[5.0; 4]);
    assert_eq!(mac(&bench.plane), 7);
    // A reload looks at once.
    bench.plane.state().gateway = Some(MacAddress([2, 0, 0, 0, 0, 8]));
    bench.engine.reload(config(WEB)).unwrap();
    bench.run(1, &[5.0; 4]);
    assert_eq!(mac(&bench.plane), 8);
}

#[test]
fn only_rings_that_change_are_swapped() {
    let text = format!("{WEB}{}", second_vip("10.0.1"));
    let mut bench = Bench::new(&text);
    let swaps = |bench: &Bench| bench.plane.state().ring_swaps;
    assert_eq!(swaps(&bench), 2);
    bench.engine.reload(config(&text)).unwrap();
    assert_eq!(swaps(&bench), 2);
    let set = |bench: &mut Bench, weight| {
        let change = |vip: &mut crate::config::VipConfig| {
            vip.reals[0].weight = weight;
            Ok(())
        };
        bench.engine.change_vip("api", change).unwrap();
    };
    set(&mut bench, 1000);
    assert_eq!(swaps(&bench), 3);
    // A change that is asked for is made, however small.
    set(&mut bench, 1001);
    assert_eq!(swaps(&bench), 4);
    bench
        .engine
        .reload(config(&text.replace("latency", "hash")))
        .unwrap();
    assert_eq!(swaps(&bench), 6);
}

#[test]
fn a_stranger_that_was_there_survives_a_refusal() {
    let mut plane = FakePlane::default();
    let stranger = causeway_dataplane::Vip {
        address: "192.0.2.9".parse().unwrap(),
        port: 9,
        protocol: causeway_dataplane::Protocol::Tcp,
    };
    let id = plane.set_vip(stranger).unwrap();
    let mut bench = Bench::on(plane, &format!("reconcile = false\n{WEB}"));
    bench.plane.state().max_reals = Some(6);
    // The stranger's address, and more reals than there is room for.
    let text = second_vip("10.0.1")
        .replace("192.0.2.1", "192.0.2.9")
        .replace("81", "9");
    bench
        .engine
        .add_vip(config(&text).vips.remove(0))
        .unwrap_err();
    let state = bench.plane.state();
    assert_eq!(state.vips.get(&id), Some(&stranger));
    assert_eq!(state.reals.len(), 4);
}
