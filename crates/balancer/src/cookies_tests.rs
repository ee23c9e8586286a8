// SPDX-License-Identifier: Apache-2.0
//! Keys, formats and ids in the data plane as the configuration changes.

use std::fs;
use std::path::Path;

use super::fake::FakePlane;
use super::tests::Bench;
use super::{agreement, report};
use crate::config::{BalancerConfig, Beside, vip_from_json};

/// A configuration whose VIP has these reals, written as in a file.
fn config(keys: &Path, vip: &str, reals: &[&str]) -> String {
    format!(
        "[cookie]\nkeys = \"{}\"\nquarantine = \"10m\"\n[[vip]]\nname = \"web\"\n\
         address = \"192.0.2.1\"\nport = 80\n{vip}\nreal = [{}]\n",
        keys.display(),
        reals.join(", ")
    )
}

struct World {
    keys: tempfile::NamedTempFile,
    bench: Bench,
}

impl World {
    fn new(reals: &[&str]) -> Self {
        let keys = tempfile::NamedTempFile::new().unwrap();
        fs::write(
            keys.path(),
            format!("current = 0\nkey0 = \"{}\"\n", "5a".repeat(16)),
        )
        .unwrap();
        let plane = FakePlane::default();
        plane.state().now_s = 1_000_000;
        let bench = Bench::on(plane, &config(keys.path(), "", reals));
        Self { keys, bench }
    }

    fn reload(&mut self, vip: &str, reals: &[&str]) -> Result<(), String> {
        let text = config(self.keys.path(), vip, reals);
        let text = format!("interface = \"eth0\"\n{text}");
        let config = BalancerConfig::parse(Path::new("lb.toml"), &text).unwrap();
        self.bench.engine.reload(config).map_err(|e| e.to_string())
    }

    /// The ids of the real with this address.
    fn ids(&self, address: &str) -> Vec<u16> {
        let real = self.bench.plane.state().real(address);
        self.bench
            .engine
            .plane()
            .cookie_ids(0)
            .unwrap()
            .of_real(real)
    }
}

const A: &str = "{ address = \"10.0.0.1\" }";
const B: &str = "{ address = \"10.0.0.2\", id = 9 }";
const C_WITH_B_S_ID: &str = "{ address = \"10.0.0.3\", id = 9 }";

#[test]
fn reals_get_ids_and_keep_them() {
    let mut world = World::new(&[A, B]);
    let of_a = world.ids("10.0.0.1");
    assert_eq!((of_a.len(), world.ids("10.0.0.2")), (1, vec![9]));
    assert!(world.bench.plane.state().cookie_keys.is_some());
    world
        .reload("", &[B, A, "{ address = \"10.0.0.4\" }"])
        .unwrap();
    assert_eq!(world.ids("10.0.0.1"), of_a);
    // A new name is added; what connections carry stays.
    world
        .reload("", &["{ address = \"10.0.0.1\", id = 4 }", B])
        .unwrap();
    let both = world.ids("10.0.0.1");
    assert!(both.contains(&4) && both.contains(&of_a[0]), "{both:?}");
}

#[test]
fn an_id_rests_until_its_connections_have_given_up() {
    let mut world = World::new(&[A, B]);
    world.reload("", &[A]).unwrap();
    let error = world.reload("", &[A, C_WITH_B_S_ID]).unwrap_err();
    assert!(
        error.contains("vip web: id 9 of real 10.0.0.3 rests"),
        "{error}"
    );
    assert!(
        world.bench.plane.state().reals.len() == 1,
        "a refused change stays undone"
    );
    world.bench.plane.state().now_s += 601;
    world.reload("", &[A, C_WITH_B_S_ID]).unwrap();
    assert_eq!(world.ids("10.0.0.3"), [9]);
}

#[test]
fn a_refused_change_leaves_formats_and_ids() {
    let mut world = World::new(&[A, B]);
    world.reload("", &[A]).unwrap();
    let own = world.ids("10.0.0.1");
    let formats = |world: &World| world.bench.plane.state().cookie_formats.clone();
    let before = formats(&world);
    // It may have got more ids of its own, which no packet names yet.
    let is_as_before =
        |world: &World| formats(world) == before && world.ids("10.0.0.1").contains(&own[0]);
    for vip in [
        "cookie = \"none\"",
        "cookie_bits = 14",
        "cookie = \"timestamp-light\"",
    ] {
        // By an id that rests, which only the data plane knows of.
        if vip != "cookie = \"none\"" {
            world.reload(vip, &[A, C_WITH_B_S_ID]).unwrap_err();
            assert!(is_as_before(&world), "{vip}");
        }
        // By the data plane itself, late.
        world.bench.plane.state().refuse_rings = 1;
        let more = "{ address = \"10.0.0.4\", id = 5 }";
        let error = world.reload(vip, &[A, more]).unwrap_err();
        assert_eq!(error, "no memory for rings");
        assert!(is_as_before(&world), "{vip}");
    }
    // The id that rests does so still.
    let error = world.reload("", &[A, C_WITH_B_S_ID]).unwrap_err();
    assert!(error.contains("rests"), "{error}");
    // And what is not refused is done.
    world.reload("cookie = \"none\"", &[A]).unwrap();
    assert!(world.bench.plane.state().cookie_formats.is_empty());
}

#[test]
fn a_refused_change_leaves_quic_connection_ids() {
    let text = |length: u8, more: &str| {
        format!(
            "[[vip]]\naddress = \"192.0.2.1\"\nport = 443\nprotocol = \"udp\"\n\
             quic_cid = [{{ algorithm = \"plain\", server_id_length = {length} }}]\n\
             real = [{{ address = \"10.0.0.1\", id = 1 }}{more}]\n"
        )
    };
    let mut bench = Bench::new(&text(1, ""));
    let before = bench.plane.state().quic_ids.clone();
    bench.plane.state().refuse_rings = 1;
    let more = ", { address = \"10.0.0.2\", id = 2 }";
    let error = bench.engine.reload(super::tests::config(&text(2, more)));
    assert_eq!(error.unwrap_err().to_string(), "no memory for rings");
    assert!(bench.plane.state().quic_ids == before);
}

#[test]
fn an_id_of_another_real_is_refused() {
    let mut world = World::new(&[A, B]);
    let error = world.reload("", &[A, B, C_WITH_B_S_ID]).unwrap_err();
    assert!(error.contains("belongs to 10.0.0.2"), "{error}");
    assert!(world.reload("", &[A, B]).is_ok());
}

#[test]
fn keys_follow_their_file() {
    let mut world = World::new(&[A]);
    let before = world.bench.plane.state().cookie_keys;
    let text = format!(
        "current = 0\nkey0 = \"{}\"\nkey1 = \"{}\"\n",
        "5a".repeat(16),
        "5b".repeat(16)
    );
    fs::write(world.keys.path(), text).unwrap();
    world.reload("", &[A]).unwrap();
    let after = world.bench.plane.state().cookie_keys;
    assert_ne!(before, after);
    // A change that is refused takes the keys back.
    fs::write(
        world.keys.path(),
        format!("current = 0\nkey0 = \"{}\"\n", "5c".repeat(16)),
    )
    .unwrap();
    world.bench.plane.state().refuse_rings = 1;
    assert!(world.reload("", &[A, B]).is_err());
    assert_eq!(world.bench.plane.state().cookie_keys, after);
}

#[test]
fn a_vip_without_cookies_forgets_its_ids() {
    let mut world = World::new(&[A]);
    world.reload("cookie = \"none\"", &[A]).unwrap();
    assert!(world.bench.plane.state().cookie_formats.is_empty());
    assert!(world.ids("10.0.0.1").is_empty());
}

#[test]
fn a_vip_that_is_added_at_run_time_has_cookies_where_the_others_have() {
    let request = || serde_json::json!({ "address": "192.0.2.7", "port": 80, "real": [{ "address": "10.0.0.7" }] });
    let mut world = World::new(&[A]);
    let beside = Beside::of(world.bench.engine.config());
    let vip = vip_from_json(request(), beside).unwrap();
    world.bench.engine.add_vip(vip).unwrap();
    assert_eq!(world.bench.plane.state().cookie_formats.len(), 2);
    let real = world.bench.plane.state().real("10.0.0.7");
    let ids = world.bench.engine.plane().cookie_ids(1).unwrap();
    assert_eq!(ids.of_real(real).len(), 1);
    assert!(
        vip_from_json(request(), Beside::NOTHING)
            .unwrap()
            .cookie
            .is_none()
    );
}

/// A first tier's file with these second-tier balancers.
fn tier_file(reals: &str) -> String {
    format!(
        "[stateful]\nbalancers = 2\n[[vip]]\nname = \"web\"\n\
         address = \"192.0.2.1\"\nport = 80\ncookie = \"tier\"\nreal = [{reals}]\n"
    )
}

fn tier(reals: &str) -> BalancerConfig {
    let text = format!("interface = \"eth0\"\n{}", tier_file(reals));
    BalancerConfig::parse(Path::new("lb.toml"), &text).unwrap()
}

#[test]
fn a_second_tier_balancer_s_number_passes_to_its_successor_at_once() {
    let zero = "{ address = \"10.0.0.1\", id = 0 }";
    let one = |host: u8| format!("{zero}, {{ address = \"10.0.0.{host}\", id = 1 }}");
    let plane = FakePlane::default();
    let mut bench = Bench::on(plane, &tier_file(&one(2)));
    let ids = |bench: &Bench, host: u8| {
        let real = bench.plane.state().real(&format!("10.0.0.{host}"));
        bench.engine.plane().cookie_ids(0).unwrap().of_real(real)
    };
    assert_eq!((ids(&bench, 1), ids(&bench, 2)), (vec![0], vec![1]));
    bench.engine.reload(tier(&one(3))).unwrap();
    assert_eq!((ids(&bench, 1), ids(&bench, 3)), (vec![0], vec![1]));
    // A change that is refused gives it back.
    bench.plane.state().refuse_rings = 1;
    assert!(bench.engine.reload(tier(&one(4))).is_err());
    assert_eq!(ids(&bench, 3), [1]);
    bench.plane.state().refuse_rings = 0;
    let twice = "{ address = \"10.0.0.1\", id = 0 }, { address = \"10.0.0.3\", id = 0 }";
    let error = bench.engine.reload(tier(twice)).unwrap_err().to_string();
    assert!(
        error.contains("10.0.0.1 and 10.0.0.3 are both second-tier balancer 0"),
        "{error}"
    );
    assert_eq!((ids(&bench, 1), ids(&bench, 3)), (vec![0], vec![1]));
}

#[test]
fn the_report_shows_what_became_of_cookies() {
    let world = World::new(&[A, B]);
    let vips = report::vips_of(&world.bench.engine, 0..1, report::Listed::All).unwrap();
    let web = &vips[0];
    assert_eq!(
        (web.cookie.mode.as_str(), web.cookie.bits),
        ("timestamp", 16)
    );
    assert_eq!(web.reals[1].cookie_ids, [9]);
    let forged = web
        .cookie
        .results
        .iter()
        .find(|r| r.result == "forged")
        .unwrap();
    assert_eq!((forged.action.as_str(), forged.packets), ("drop", 1));
    let page = super::metrics::page(&world.bench.engine, true, world.bench.now).unwrap();
    let line = "causeway_cookie_packets_total{vip=\"web\",result=\"epoch0\"} 5";
    assert!(page.contains(line), "{page}");
}

/// The names of what two balancers do not have alike.
fn differs(one: &World, other: &World) -> Vec<String> {
    let of = |world: &World| agreement::agreement(&world.bench.engine).unwrap().items;
    let (one, other) = (of(one), of(other));
    let names = |items: &[causeway_api::fleet::AgreementItem]| {
        let names = items
            .iter()
            .map(|item| (item.what.clone(), item.vip.clone()));
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&one), names(&other));
    let pairs = one.into_iter().zip(other);
    let pairs = pairs.filter(|(one, other)| one.digest != other.digest);
    pairs.map(|(one, _)| one.what).collect()
}

#[test]
fn balancers_tell_whether_they_agree() {
    const C: &str = "{ address = \"10.0.0.3\", id = 3 }";
    let world = || World::new(&[C, B]);
    let one = world();
    assert_eq!(differs(&one, &world()), [""; 0]);
    // The order of a file is its own matter.
    assert_eq!(differs(&one, &World::new(&[B, C])), [""; 0]);
    let ids = World::new(&["{ address = \"10.0.0.3\", id = 4 }", B]);
    assert_eq!(differs(&one, &ids), ["server-ids"]);
    let drained = World::new(&["{ address = \"10.0.0.3\", id = 3, drain = true }", B]);
    assert_eq!(differs(&one, &drained), ["weights"]);
    // A change by hand shows at once, though digests are kept.
    let mut by_hand = world();
    for (weight, expected) in [(7, &["weights"][..]), (1, &[])] {
        let change = causeway_api::balancer::RealChange {
            weight: Some(weight),
            ..Default::default()
        };
        let engine = &mut by_hand.bench.engine;
        engine.change_real("web", "10.0.0.3", &change, 1).unwrap();
        assert_eq!(differs(&one, &by_hand), expected);
    }
    let mut keys = world();
    fs::write(
        keys.keys.path(),
        format!("current = 0\nkey0 = \"{}\"\n", "5b".repeat(16)),
    )
    .unwrap();
    keys.reload("", &[C, B]).unwrap();
    assert_eq!(differs(&one, &keys), ["cookie-keys"]);
    let mut format = world();
    format
        .reload("cookie = \"timestamp\"\ncookie_bits = 20", &[C, B])
        .unwrap();
    assert_eq!(differs(&one, &format), ["cookie-format"]);
    let hash = world();
    hash.bench.plane.state().hash_key = [1, 2];
    assert_eq!(differs(&one, &hash), ["hash-key"]);
}

/// Which of two keys is written by is known to agents.
#[test]
fn both_keys_count_whichever_is_current() {
    let text = |current: u32, keys: &[&str]| {
        let keys = keys.iter().enumerate();
        let keys = keys.map(|(epoch, key)| format!("key{epoch} = \"{}\"\n", key.repeat(16)));
        format!("current = {current}\n{}", keys.collect::<String>())
    };
    let with = |text: String| {
        let mut world = World::new(&[A, B]);
        fs::write(world.keys.path(), text).unwrap();
        world.reload("", &[A, B]).unwrap();
        world
    };
    let both = with(text(0, &["5a", "5b"]));
    assert_eq!(differs(&both, &with(text(1, &["5a", "5b"]))), [""; 0]);
    assert_eq!(differs(&both, &with(text(0, &["5a"]))), ["cookie-keys"]);
}
