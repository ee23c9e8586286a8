// SPDX-License-Identifier: Apache-2.0
//! Changes while the engine runs: what a refused one must leave alone, and what
//! an accepted one must not touch.

use super::engine::Engine;
use std::time::Duration;

use causeway_netio::Gateway;

use super::fake::FakePlane;
use super::plane::{DataPlane, Resolve, Route};
use super::run::{copy_of, load};
use super::tests::{Bench, START, WEB, config};
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
        .map(|(_, member)| (member.weight, member.past().history.len()))
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

/// What is set by hand, in a line each.
fn by_hand(engine: &Engine) -> Vec<String> {
    let overrides = engine.overrides().into_iter();
    overrides
        .map(|o| format!("{} {} {}: {} not {}", o.vip, o.real, o.key, o.value, o.file))
        .collect()
}

fn set(engine: &mut Engine, real: &str, change: &str) {
    let change = serde_json::from_str(change).unwrap();
    engine.change_real("web", real, &change, 7).unwrap();
}

#[test]
fn a_file_that_has_lost_its_vips_is_refused() {
    let mut bench = Bench::new(WEB);
    let empty = config("");
    let error = bench.engine.reload(empty.clone()).unwrap_err().to_string();
    assert!(
        error.contains("the file has no [[vip]], and 1 VIP would go"),
        "{error}"
    );
    assert_eq!(bench.plane.state().vips.len(), 1);
    assert_eq!(bench.engine.difference(&empty).refused, [error]);
    // By hand it may go; then the file has nothing left to lose.
    bench.engine.remove_vip("web").unwrap();
    bench.engine.reload(empty).unwrap();
    bench.engine.reload(config(WEB)).unwrap();
}

#[test]
fn a_file_that_means_to_have_no_vips_is_taken() {
    let mut bench = Bench::new(WEB);
    let meant = config("[reload]\nallow_empty = true\n");
    bench.engine.check_reload(&meant).unwrap();
    bench.engine.reload(meant).unwrap();
    assert_eq!(bench.plane.state().vips.len(), 0);
    // A start takes it, too.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lb.toml");
    let state_dir = dir.path().display();
    let text = |rest: &str| format!("interface = \"eth0\"\nstate_dir = \"{state_dir}\"\n{rest}");
    copy_of(&file, dir.path()).save(&text(WEB)).unwrap();
    let refused = |rest: &str| {
        std::fs::write(&file, text(rest)).unwrap();
        load(&file).unwrap().refused()
    };
    let why = refused("").unwrap();
    assert!(why.contains("set allow_empty = true"), "{why}");
    assert_eq!(refused("[reload]\nallow_empty = true\n"), None);
}

#[test]
fn a_vip_whose_reals_all_have_weight_0_is_not_ready() {
    let mut bench = Bench::new(WEB);
    let up = |bench: &Bench| bench.engine.reals_up(&bench.engine.pools()[0]);
    assert_eq!(up(&bench), 4);
    for real in ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"] {
        set(&mut bench.engine, real, r#"{ "weight": 0 }"#);
    }
    assert_eq!(up(&bench), 0);
    set(&mut bench.engine, "10.0.0.4", r#"{ "weight": 1 }"#);
    assert_eq!(up(&bench), 1);
}

#[test]
fn what_is_set_by_hand_outlives_reload_and_restart_until_it_is_dropped() {
    let mut bench = Bench::new(WEB);
    set(&mut bench.engine, "10.0.0.1", r#"{ "drain": true }"#);
    set(
        &mut bench.engine,
        "10.0.0.2",
        r#"{ "weight": 5, "maintenance": true }"#,
    );
    set(
        &mut bench.engine,
        "10.0.0.3",
        r#"{ "drain": false, "weight": 1 }"#,
    );
    let all = [
        "web 10.0.0.1 drain: true not false",
        "web 10.0.0.2 weight: 5 not 1",
        "web 10.0.0.2 maintenance: true not false",
    ];
    assert_eq!(by_hand(&bench.engine), all);
    let is_out = |bench: &Bench| bench.plane.state().share(0, 0) == 0.0;
    // Another name and other reals; the hand's word stands.
    let renamed = WEB
        .replace("\"web\"", "\"www\"")
        .replace("10.0.0.4", "10.0.0.5");
    bench.engine.reload(config(&renamed)).unwrap();
    assert!(is_out(&bench) && by_hand(&bench.engine).len() == 3);
    bench.engine.reload(config(WEB)).unwrap();
    let plane = Box::new(bench.plane.clone());
    bench.engine = Engine::succeed(plane, config(WEB), bench.engine.kept(), None, START).unwrap();
    assert!(is_out(&bench));
    assert_eq!(by_hand(&bench.engine), all);
    assert_eq!(bench.engine.config().vips[0].reals[1].weight, 5);
    // What the file says, too, is set by hand no more.
    let weight = WEB.replace("\"10.0.0.2\"", "\"10.0.0.2\", weight = 5");
    bench.engine.reload(config(&weight)).unwrap();
    assert_eq!(by_hand(&bench.engine), [all[0], all[2]]);
    // Nor what is set back; and a drop gives the file's settings back.
    set(&mut bench.engine, "10.0.0.2", r#"{ "maintenance": false }"#);
    assert_eq!(by_hand(&bench.engine), [all[0]]);
    let dropped = bench.engine.drop_overrides(Some("web"), Some("10.0.0.1"));
    assert_eq!(dropped.unwrap().len(), 1);
    assert!(!is_out(&bench) && bench.engine.kept().by_hand.is_empty());
}

#[test]
fn what_is_set_by_hand_goes_with_its_real_and_a_refused_reload_leaves_it() {
    let mut bench = Bench::new(WEB);
    set(&mut bench.engine, "10.0.0.4", r#"{ "drain": true }"#);
    let without = WEB.replace(", { address = \"10.0.0.4\" }", "");
    bench.plane.state().refuse_rings = 1;
    bench.engine.reload(config(&without)).unwrap_err();
    assert_eq!(by_hand(&bench.engine).len(), 1);
    bench.engine.reload(config(&without)).unwrap();
    assert!(by_hand(&bench.engine).is_empty());
    bench.engine.reload(config(WEB)).unwrap();
    assert!(by_hand(&bench.engine).is_empty());
    let refused = bench.engine.drop_overrides(Some("web"), Some("10.0.0.9"));
    let sentence = refused.unwrap_err().to_string();
    assert!(sentence.contains("has no real `10.0.0.9`"), "{sentence}");
}

/// Else the next reload would drain it, without a request.
#[test]
fn a_real_that_is_added_again_is_as_the_request_says() {
    let mut bench = Bench::new(WEB);
    for real in ["10.0.0.1", "10.0.0.4"] {
        set(&mut bench.engine, real, r#"{ "drain": true }"#);
    }
    let is_in = |bench: &Bench| {
        let state = bench.plane.state();
        state.share(0, state.real("10.0.0.4")) > 0.0
    };
    assert!(!is_in(&bench));
    let remove = |vip: &mut crate::config::VipConfig| {
        vip.reals.pop();
        Ok(())
    };
    let real = config(WEB).vips[0].reals[3].clone();
    let add = |vip: &mut crate::config::VipConfig| {
        vip.reals.push(real);
        Ok(())
    };
    bench.engine.change_vip("web", remove).unwrap();
    // The file may bring it back.
    assert_eq!(by_hand(&bench.engine).len(), 2);
    bench.engine.change_vip("web", add).unwrap();
    let other = "web 10.0.0.1 drain: true not false";
    assert_eq!(by_hand(&bench.engine), [other]);
    assert!(is_in(&bench));
    bench.engine.reload(config(WEB)).unwrap();
    assert!(is_in(&bench));
    assert_eq!(by_hand(&bench.engine), [other]);
    // All reals of a VIP that is added again are.
    bench.engine.remove_vip("web").unwrap();
    let vip = config(WEB).vips.remove(0);
    bench.engine.add_vip(vip).unwrap();
    assert!(by_hand(&bench.engine).is_empty());
}

#[test]
fn a_change_whose_probes_cannot_be_sent_is_refused_before_it_is_in_force() {
    let mut bench = Bench::new(WEB);
    bench.plane.state().refuse_probes = true;
    let probed = WEB.replace("port = 80", "port = 80\nhealth = { probe = \"tcp\" }");
    let error = bench.engine.reload(config(&probed)).unwrap_err();
    assert_eq!(error.to_string(), "clsact is refused");
    assert!(bench.engine.config().vips[0].health.is_none());
    bench.plane.state().refuse_probes = false;
    bench.engine.reload(config(&probed)).unwrap();
}

#[test]
fn what_a_change_in_force_leaves_undone_is_told_and_done_later() {
    let mut bench = Bench::new(WEB);
    bench.plane.state().refuse_removals = 2;
    let fewer = WEB.replace(", { address = \"10.0.0.4\" }", "");
    bench.engine.reload(config(&fewer)).unwrap();
    let told = bench.engine.unfinished().map(str::to_owned);
    assert_eq!(
        told.as_deref(),
        Some("what was removed is still there: no memory")
    );
    bench.run(1, &[5.0; 3]);
    assert!(bench.engine.unfinished().is_some());
    assert_eq!(bench.plane.state().reals.len(), 4);
    bench.run(1, &[5.0; 3]);
    assert!(bench.engine.unfinished().is_none());
    assert_eq!(bench.plane.state().reals.len(), 3);
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
fn explain_says_who_drained_a_real() {
    let text = WEB.replace("10.0.0.2\"", "10.0.0.2\", drain = true");
    let mut bench = Bench::new(&text);
    let mut change = |real: &str, change: &str| {
        let change = serde_json::from_str(change).unwrap();
        let now_ns = causeway_api::Moment::now().realtime_ns;
        let engine = &mut bench.engine;
        engine.change_real("web", real, &change, now_ns).unwrap();
    };
    change("10.0.0.1", r#"{ "drain": true }"#);
    change("10.0.0.3", r#"{ "maintenance": true }"#);
    let state = |real| {
        let explained = super::explain::explain(&bench.engine, "web", real);
        explained.unwrap().state
    };
    let none = "takes no new connections: ";
    let by_hand = "by hand (a command, or the API) ";
    let drained = state("10.0.0.1");
    assert!(
        drained.starts_with(&format!("{none}drains {by_hand}")) && drained.ends_with(" s ago"),
        "{drained}"
    );
    assert_eq!(state("10.0.0.2"), format!("{none}drains by the file"));
    let worked_on = state("10.0.0.3");
    let expected = format!("{none}is under maintenance {by_hand}");
    assert!(worked_on.starts_with(&expected), "{worked_on}");
    assert_eq!(state("10.0.0.4"), "active");
}

/// One look at the next hops.
fn look(bench: &mut Bench) {
    let route = Route::of(bench.engine.config());
    let reals = bench.engine.config().encapsulated_reals();
    let found = bench.plane.look(&route, &reals, Duration::ZERO);
    bench.now.monotonic_ns += 1;
    bench.engine.take_look(&route, &reals, found, bench.now);
}

/// A bench whose interface has an address of each family.
fn addressed(text: &str) -> Bench {
    let bench = Bench::new(text);
    let v6 = "fd00::fd".parse().unwrap();
    bench.plane.state().outer_sources = (Some([10, 0, 0, 253].into()), Some(v6));
    bench
}

/// Family and state of each next hop.
fn next_hops(bench: &Bench) -> Vec<String> {
    let views = bench.engine.next_hops().views().iter();
    views
        .map(|view| format!("{} {}", view.family, view.state))
        .collect()
}

#[test]
fn the_gateway_is_followed_and_its_silence_borne_and_told() {
    let mut bench = addressed(WEB);
    let mac = |bench: &Bench| bench.plane.state().next_hop.unwrap().gateway_mac[5];
    look(&mut bench);
    assert_eq!(next_hops(&bench), ["ipv4 reachable"]);
    bench.plane.state().gateway = None;
    look(&mut bench);
    let since = bench.now.monotonic_ns;
    look(&mut bench);
    assert_eq!(
        (mac(&bench), next_hops(&bench)),
        (1, vec!["ipv4 silent".to_owned()])
    );
    assert_eq!(
        bench.engine.next_hops().views()[0].since_monotonic_ns,
        since
    );
    let page = super::metrics::page(&bench.engine, true, bench.now).unwrap();
    assert!(
        page.contains("causeway_next_hop_up{family=\"ipv4\"} 0.0"),
        "{page}"
    );
    bench.plane.state().gateway = Some(MacAddress([2, 0, 0, 0, 0, 7]));
    look(&mut bench);
    assert_eq!(
        (mac(&bench), next_hops(&bench)),
        (7, vec!["ipv4 reachable".to_owned()])
    );
    let page = super::metrics::page(&bench.engine, true, bench.now).unwrap();
    assert!(
        page.contains("causeway_next_hop_up{family=\"ipv4\"} 1.0"),
        "{page}"
    );
}

#[test]
fn who_takes_over_goes_on_with_gateways_that_are_silent() {
    let text = WEB.replace("10.0.0.4", "fd00::4");
    let plane = FakePlane::default();
    let answer = |v4: Option<u8>, v6: Option<u8>| {
        let mac = |last| [2, 0, 0, 0, 0, last];
        let mut state = plane.state();
        state.gateway = v4.map(|last| MacAddress(mac(last)));
        state.gateway6 = Some(Gateway {
            address: "fe80::1".parse().unwrap(),
            mac: v6.map(mac),
            others: 0,
        });
    };
    let start = || {
        Engine::start(Box::new(plane.clone()), config(&text), START)?;
        anyhow::Ok(plane.gateways()?.map(|mac| mac[5]))
    };
    answer(None, None);
    assert_eq!(start().unwrap_err().to_string(), "the gateway is silent");
    answer(Some(4), Some(6));
    assert_eq!(start().unwrap(), [4, 6]);
    answer(None, None);
    assert_eq!(start().unwrap(), [4, 6]);
    answer(Some(5), None);
    assert_eq!(start().unwrap(), [5, 6]);
}

#[test]
fn reals_on_the_link_are_told_to_go_by_the_gateway() {
    let mut bench = Bench::new(WEB);
    bench.plane.state().on_link = vec![[10, 0, 0, 2].into()];
    look(&mut bench);
    assert_eq!(bench.engine.next_hops().views()[0].on_link, 1);
    let views = super::report::vips_of(&bench.engine, 0..1, super::report::Listed::All).unwrap();
    let on_link = views[0].reals.iter().filter(|real| real.on_link);
    let on_link: Vec<&str> = on_link.map(|real| real.address.as_str()).collect();
    assert_eq!(on_link, ["10.0.0.2"]);
}

#[test]
fn each_family_has_its_own_next_hop() {
    let text = WEB.replace("10.0.0.4", "fd00::4");
    let mut bench = addressed(&text);
    let macs = |bench: &Bench| {
        let hop = bench.plane.state().next_hop.unwrap();
        (hop.gateway_mac[5], hop.gateway6_mac[5])
    };
    look(&mut bench);
    assert_eq!(
        (macs(&bench), next_hops(&bench)[1].as_str()),
        ((1, 1), "ipv6 shared")
    );
    let gateway = |mac| Gateway {
        address: "fe80::1".parse().unwrap(),
        mac,
        others: 0,
    };
    bench.plane.state().gateway6 = Some(gateway(Some([2, 0, 0, 0, 0, 6])));
    look(&mut bench);
    assert_eq!(
        (macs(&bench), next_hops(&bench)[1].as_str()),
        ((1, 6), "ipv6 reachable")
    );
    // Silence of one is not the other's, and no reason to go by the other.
    bench.plane.state().gateway6 = Some(gateway(None));
    look(&mut bench);
    assert_eq!(macs(&bench), (1, 6));
    assert_eq!(next_hops(&bench), ["ipv4 reachable", "ipv6 silent"]);
}

#[test]
fn a_family_without_a_source_is_not_up() {
    let mut bench = addressed(&WEB.replace("10.0.0.4", "fd00::4"));
    look(&mut bench);
    assert_eq!(next_hops(&bench), ["ipv4 reachable", "ipv6 shared"]);
    let v6 = bench.plane.state().outer_sources.1.take();
    look(&mut bench);
    assert_eq!(next_hops(&bench), ["ipv4 reachable", "ipv6 no_source"]);
    let page = super::metrics::page(&bench.engine, true, bench.now).unwrap();
    assert!(
        page.contains("causeway_next_hop_up{family=\"ipv6\"} 0.0"),
        "{page}"
    );
    // That the gateway is silent is the lesser trouble.
    bench.plane.state().gateway = None;
    look(&mut bench);
    assert_eq!(next_hops(&bench), ["ipv4 silent", "ipv6 no_source"]);
    bench.plane.state().gateway = Some(MacAddress([2, 0, 0, 0, 0, 1]));
    bench.plane.state().outer_sources.1 = v6;
    look(&mut bench);
    assert_eq!(next_hops(&bench), ["ipv4 reachable", "ipv6 shared"]);
}

#[test]
fn only_rings_that_change_are_swapped() {
    let text = format!("{WEB}{}", second_vip("10.0.1"));
    let mut bench = Bench::new(&text);
    let swaps = |bench: &Bench| bench.plane.state().ring_swaps;
    assert_eq!(swaps(&bench), 2);
    bench.engine.reload(config(&text)).unwrap();
    assert_eq!(swaps(&bench), 2);
    let weigh = |bench: &mut Bench, weight| {
        let change = |vip: &mut crate::config::VipConfig| {
            vip.reals[0].weight = weight;
            Ok(())
        };
        bench.engine.change_vip("api", change).unwrap();
    };
    weigh(&mut bench, 1000);
    assert_eq!(swaps(&bench), 3);
    // A change that is asked for is made, however small.
    weigh(&mut bench, 1001);
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
