// SPDX-License-Identifier: Apache-2.0
//! Discovered reals: what holds, what is held, and how they come into force.

use std::net::SocketAddr;
use std::time::Duration;

use causeway_api::balancer::DiscoveryView;
use serde_json::json;
use simple_dns::rdata::{A, RData, SRV};
use simple_dns::{CLASS, Name, Packet, PacketFlag, QTYPE, ResourceRecord, TYPE};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UdpSocket};

use super::*;
use crate::config::{BalancerConfig, SharedVip};
use crate::engine::Engine;
use crate::fake::FakePlane;
use crate::serve_tests::shared_by;
use crate::state_dir::KeptState;
use crate::tests::{Bench, START, WEB, config};

const SECOND: u64 = 1_000_000_000;
const FILE: &str = "discover = { file = \"/nowhere\", max_reals = 6, drain = \"60s\" }";

fn text(real: &str) -> String {
    let reals = &WEB[WEB.find("real =").expect("reals")..];
    WEB.replace(reals, &format!("{FILE}\n{real}\n"))
        .replace("\"latency\"", "\"maglev\"")
}

/// These reals of 10.0.0.0/24, as an answer has them.
fn reals(engine: &Engine, last: &[u8]) -> Vec<RealConfig> {
    let reals = last
        .iter()
        .map(|last| json!({ "address": format!("10.0.0.{last}") }));
    let vip = &engine.config().vips[0];
    config::reals_from_json(vip, reals.collect()).expect("reals")
}

fn at(s: u64) -> Moment {
    Moment {
        monotonic_ns: s * SECOND,
        realtime_ns: START.realtime_ns + s * SECOND,
    }
}

fn tell(bench: &mut Bench, at_s: u64, last: &[u8]) {
    let answer = Ok(reals(&bench.engine, last));
    let vip = bench.engine.config().vips[0].endpoint();
    bench
        .engine
        .handle_found(at(at_s), &vip, answer)
        .expect("in force");
}

/// The last octets of reals, and whether they drain.
fn in_force(bench: &Bench) -> Vec<(u8, bool)> {
    let reals = bench.engine.config().vips[0].reals.iter();
    let last = |real: &RealConfig| match real.address {
        std::net::IpAddr::V4(v4) => v4.octets()[3],
        std::net::IpAddr::V6(_) => 0,
    };
    reals.map(|real| (last(real), real.drain)).collect()
}

fn view(bench: &Bench) -> DiscoveryView {
    let vip = &bench.engine.config().vips[0];
    bench.engine.found.view(vip).expect("its reals are told of")
}

#[test]
fn reals_come_and_drain_before_they_go() {
    let mut bench = Bench::new(&text("real = [{ address = \"10.0.0.1\" }]"));
    tell(&mut bench, 1, &[1, 2, 3]);
    // The file's own weight holds, whatever discovery says of it.
    assert_eq!(in_force(&bench), [(1, false), (2, false), (3, false)]);
    tell(&mut bench, 10, &[1, 3, 4]);
    assert_eq!(
        in_force(&bench),
        [(1, false), (2, true), (3, false), (4, false)]
    );
    let told = view(&bench);
    assert_eq!(
        (told.found, told.draining, told.last_answer_ns),
        (3, 1, Some(at(10).realtime_ns))
    );
    assert!(bench.engine.expire_found(69 * SECOND).is_empty());
    assert_eq!(in_force(&bench).len(), 4);
    assert!(bench.engine.expire_found(70 * SECOND).is_empty());
    assert_eq!(in_force(&bench), [(1, false), (3, false), (4, false)]);
    // One that is in the answers again no longer drains.
    tell(&mut bench, 80, &[1, 3]);
    tell(&mut bench, 90, &[1, 3, 4]);
    assert!(bench.engine.expire_found(1000 * SECOND).is_empty());
    assert_eq!(in_force(&bench), [(1, false), (3, false), (4, false)]);
}

#[test]
fn what_takes_away_more_than_half_is_held() {
    let mut bench = Bench::new(&text(""));
    assert_eq!(in_force(&bench), [], "nothing is known yet");
    tell(&mut bench, 1, &[1, 2, 3, 4]);
    tell(&mut bench, 2, &[1, 9]);
    assert_eq!(in_force(&bench).len(), 4, "{:?}", in_force(&bench));
    assert_eq!(view(&bench).held, Some(3));
    // Another answer takes its place.
    tell(&mut bench, 3, &[1, 2]);
    assert_eq!(view(&bench).held, None);
    assert_eq!(
        in_force(&bench),
        [(1, false), (2, false), (3, true), (4, true)]
    );
    tell(&mut bench, 4, &[]);
    assert_eq!((view(&bench).held, in_force(&bench).len()), (Some(2), 4));
    bench.engine.accept_found(at(5), "web").unwrap();
    assert!(in_force(&bench).iter().all(|(_, drains)| *drains));
    let again = bench.engine.accept_found(at(5), "web").unwrap_err();
    assert_eq!(again.to_string(), "no answer is held for vip web");
}

/// An inventory that has lost its weights, or has cordoned every node.
#[test]
fn what_takes_the_weights_of_more_than_half_is_held() {
    let taken_away = [
        json!({ "weight": 0 }),
        json!({ "drain": true }),
        json!({ "maintenance": true }),
    ];
    for none in taken_away {
        let mut bench = Bench::new(&text(""));
        tell(&mut bench, 1, &[1, 2, 3, 4]);
        let answer = |bench: &mut Bench, at_s, without: &[u8]| {
            let listed = (1..=4).map(|last| {
                let mut real = json!({ "address": format!("10.0.0.{last}") });
                if without.contains(&last) {
                    let real = real.as_object_mut().unwrap();
                    real.extend(none.as_object().unwrap().clone());
                }
                real
            });
            let vip = &bench.engine.config().vips[0];
            let reals = config::reals_from_json(vip, listed.collect()).unwrap();
            let vip = vip.endpoint();
            bench
                .engine
                .handle_found(at(at_s), &vip, Ok(reals))
                .unwrap();
        };
        let taking = |bench: &Bench| {
            let members = bench.engine.pools()[0].members();
            members.filter(|(_, member)| member.weight > 0.0).count()
        };
        answer(&mut bench, 2, &[1, 2, 3, 4]);
        assert_eq!((view(&bench).held, taking(&bench)), (Some(4), 4), "{none}");
        answer(&mut bench, 3, &[1]);
        assert_eq!((view(&bench).held, taking(&bench)), (None, 3), "{none}");
        // One that takes none is none to lose.
        tell(&mut bench, 4, &[2, 3, 4]);
        assert_eq!((view(&bench).held, taking(&bench)), (None, 3), "{none}");
        answer(&mut bench, 5, &[1, 2, 3]);
        assert_eq!((view(&bench).held, taking(&bench)), (Some(2), 3), "{none}");
        bench.engine.accept_found(at(6), "web").unwrap();
        assert_eq!((view(&bench).held, taking(&bench)), (None, 1), "{none}");
    }
}

#[test]
fn a_failure_or_too_long_an_answer_changes_nothing() {
    let mut bench = Bench::new(&text(""));
    tell(&mut bench, 1, &[1, 2]);
    let vip = bench.engine.config().vips[0].endpoint();
    bench
        .engine
        .handle_found(at(2), &vip, Err("no answer".to_owned()))
        .unwrap();
    assert_eq!(
        (in_force(&bench).len(), view(&bench).error.as_deref()),
        (2, Some("no answer"))
    );
    tell(&mut bench, 3, &[1, 2, 3, 4, 5, 6, 7]);
    let error = view(&bench).error.expect("too many");
    assert_eq!(error, "the answer has 7 reals, more than max_reals = 6");
    assert_eq!(in_force(&bench).len(), 2);
    tell(&mut bench, 4, &[1, 2, 3, 4, 5, 6]);
    assert_eq!((in_force(&bench).len(), view(&bench).error), (6, None));
    // Of a VIP that is not there any more.
    bench
        .engine
        .handle_found(at(5), "192.0.2.9:1/tcp", Ok(Vec::new()))
        .unwrap();
}

#[test]
fn what_is_set_by_hand_stays_and_a_reload_keeps_what_was_found() {
    let mut bench = Bench::new(&text("real = [{ address = \"10.0.0.1\" }]"));
    tell(&mut bench, 1, &[2, 3]);
    let drain = serde_json::from_value(json!({ "drain": true })).unwrap();
    bench
        .engine
        .change_real("web", "10.0.0.2", &drain, 5)
        .unwrap();
    let add = |vip: &mut VipConfig| {
        let mut real = vip.reals[0].clone();
        real.address = "10.0.0.8".parse().unwrap();
        vip.reals.push(real);
        Ok(())
    };
    bench.engine.change_vip("web", add).unwrap();
    tell(&mut bench, 2, &[2, 3, 4]);
    let expected = [(1, false), (8, false), (2, true), (3, false), (4, false)];
    assert_eq!(in_force(&bench), expected);
    let other = config(&text(
        "real = [{ address = \"10.0.0.1\" }]\nslow_start = \"1s\"",
    ));
    let changes = bench.engine.difference(&other).changes;
    assert_eq!(
        changes.len(),
        2,
        "slow_start, and the real that was added by hand: {changes:?}"
    );
    bench.engine.reload(other).unwrap();
    assert_eq!(
        in_force(&bench),
        [(1, false), (2, true), (3, false), (4, false)]
    );
    assert_eq!(bench.engine.overrides().len(), 1);
    // Without its key they go as reals go that a file has no more.
    let without = text("real = [{ address = \"10.0.0.1\" }]").replace(FILE, "");
    bench.engine.reload(config(&without)).unwrap();
    assert_eq!(in_force(&bench), [(1, false)]);
    assert_eq!(bench.engine.kept().found, []);
}

fn set(bench: &mut Bench, real: &str, change: serde_json::Value) {
    let change = serde_json::from_value(change).unwrap();
    bench.engine.change_real("web", real, &change, 5).unwrap();
}

#[test]
fn what_is_set_by_hand_outlives_a_real_that_discovery_drops_and_lists_again() {
    let mut bench = Bench::new(&text(""));
    tell(&mut bench, 1, &[1, 2, 3]);
    set(&mut bench, "10.0.0.2", json!({ "weight": 5 }));
    set(&mut bench, "10.0.0.3", json!({ "drain": true }));
    // Discovery's drain is not the operator's.
    tell(&mut bench, 2, &[1, 2]);
    assert_eq!(in_force(&bench), [(1, false), (2, false), (3, true)]);
    tell(&mut bench, 3, &[1, 2, 3]);
    assert_eq!(in_force(&bench), [(1, false), (2, false), (3, true)]);
    // Nor is it gone with the real.
    tell(&mut bench, 10, &[1, 3]);
    assert!(bench.engine.expire_found(70 * SECOND).is_empty());
    assert_eq!(in_force(&bench), [(1, false), (3, true)]);
    assert_eq!(bench.engine.overrides().len(), 2);
    let kept = bench.engine.kept();
    let plane = Box::new(bench.plane.clone());
    bench.engine = Engine::succeed(plane, config(&text("")), kept, None, at(75)).unwrap();
    tell(&mut bench, 80, &[1, 2, 3]);
    let weights = |bench: &Bench| {
        let reals = bench.engine.config().vips[0].reals.iter();
        reals.map(|real| real.weight).collect::<Vec<_>>()
    };
    // As they came: the second is the last.
    assert_eq!(in_force(&bench), [(1, false), (3, true), (2, false)]);
    assert_eq!(weights(&bench), [1, 1, 5]);
    // One that discovery does not list drains, whatever else is undone.
    tell(&mut bench, 90, &[1, 2]);
    set(&mut bench, "10.0.0.3", json!({ "drain": false }));
    assert_eq!(in_force(&bench), [(1, false), (3, true), (2, false)]);
    assert_eq!(bench.engine.overrides().len(), 1);
    set(&mut bench, "10.0.0.3", json!({ "drain": true }));
    let dropped = bench.engine.drop_overrides(Some("web"), None).unwrap();
    assert_eq!(dropped.len(), 2);
    assert_eq!(in_force(&bench), [(1, false), (3, true), (2, false)]);
    tell(&mut bench, 95, &[1, 2, 3]);
    assert_eq!(in_force(&bench), [(1, false), (3, false), (2, false)]);
    assert_eq!(weights(&bench), [1, 1, 1]);
}

#[test]
fn an_answer_that_cannot_be_put_in_force_is_told_until_one_can() {
    let mut bench = Bench::new(&text("health = { interval = \"2s\" }"));
    tell(&mut bench, 1, &[1, 2]);
    let vip = bench.engine.config().vips[0].endpoint();
    let up = |bench: &Bench, up: &str| {
        let page = crate::metrics::page(&bench.engine, true, bench.now).unwrap();
        page.contains(&format!("causeway_discovery_up{{vip=\"web\"}} {up}"))
    };
    assert!(up(&bench, "1.0"));
    bench.plane.state().refuse_probes = true;
    for at_s in [2, 3] {
        let answer = Ok(reals(&bench.engine, &[1, 2, 3]));
        let refused = bench.engine.handle_found(at(at_s), &vip, answer);
        assert!(refused.is_err());
        let told = view(&bench);
        assert_eq!(
            (told.found, told.last_answer_ns),
            (2, Some(at(1).realtime_ns))
        );
        let error = told.error.expect("told");
        assert!(error.contains("clsact is refused"), "{error}");
        assert!(up(&bench, "0.0"));
    }
    bench.plane.state().refuse_probes = false;
    tell(&mut bench, 4, &[1, 2, 3]);
    assert_eq!((view(&bench).found, view(&bench).error), (3, None));
    assert!(up(&bench, "1.0"));
}

#[test]
fn reals_of_the_file_stay_until_the_first_answer() {
    let real = |last: u8| format!("{{ address = \"10.0.0.{last}\" }}");
    let named = text(&format!("real = [{}, {}]", real(1), real(2))).replace(FILE, "");
    let mut bench = Bench::new(&named);
    let before = bench.plane.state().share(0, 1);
    let asks = config(&text(""));
    assert!(
        bench
            .engine
            .difference(&asks)
            .changes
            .iter()
            .all(|change| !format!("{change:?}").contains("10.0.0."))
    );
    bench.engine.reload(asks).unwrap();
    assert_eq!(in_force(&bench), [(1, false), (2, false)]);
    assert_eq!(bench.plane.state().share(0, 1), before);
    // No answer is none that they are gone.
    bench.engine.reload(config(&text(""))).unwrap();
    assert_eq!(in_force(&bench), [(1, false), (2, false)]);
    tell(&mut bench, 1, &[2, 3]);
    assert_eq!(in_force(&bench), [(1, true), (2, false), (3, false)]);
}

#[test]
fn the_next_daemon_begins_with_the_reals_that_this_one_knew() {
    let mut bench = Bench::new(&text(""));
    tell(&mut bench, 1, &[1, 2, 3]);
    tell(&mut bench, 10, &[1, 2]);
    let kept = bench.engine.kept();
    let before = bench.plane.state().share(0, 1);
    let plane = Box::new(bench.plane.clone());
    bench.engine = Engine::succeed(plane, config(&text("")), kept, None, at(30)).unwrap();
    assert_eq!(in_force(&bench), [(1, false), (2, false), (3, true)]);
    assert_eq!(bench.plane.state().share(0, 1), before);
    assert!(bench.engine.expire_found(70 * SECOND).is_empty());
    assert_eq!(in_force(&bench), [(1, false), (2, false)]);
    // One whose file has no `discover` any more.
    let kept: KeptState = bench.engine.kept();
    let plane = Box::new(bench.plane.clone());
    let named = config(&text("real = [{ address = \"10.0.0.1\" }]").replace(FILE, ""));
    bench.engine = Engine::succeed(plane, named, kept, None, bench.now).unwrap();
    assert_eq!(in_force(&bench), [(1, false)]);
}

/// Within a daemon that clock is not asked.
#[test]
fn a_clock_that_was_set_between_daemons_lengthens_no_drain_beyond_one() {
    for (set_s, over_s) in [(0, 1070), (-86_400, 1090), (86_400, 1030)] {
        let mut bench = Bench::new(&text(""));
        tell(&mut bench, 1001, &[1, 2, 3]);
        tell(&mut bench, 1010, &[1, 2]);
        let kept = bench.engine.kept();
        let mut now = at(1030);
        now.realtime_ns = now.realtime_ns.wrapping_add_signed(set_s * SECOND as i64);
        let plane = Box::new(bench.plane.clone());
        bench.engine = Engine::succeed(plane, config(&text("")), kept, None, now).unwrap();
        assert!(bench.engine.expire_found(over_s * SECOND - 1).is_empty());
        assert_eq!(in_force(&bench).len(), 3, "{set_s}");
        assert!(bench.engine.expire_found(over_s * SECOND).is_empty());
        assert_eq!(in_force(&bench), [(1, false), (2, false)], "{set_s}");
    }
}

#[test]
fn a_vip_whose_reals_cannot_go_keeps_those_of_no_other() {
    let web = text("health = { interval = \"2s\" }");
    let other = web
        .replace("192.0.2.1", "192.0.2.2")
        .replace("\"web\"", "\"other\"");
    let mut bench = Bench::new(&[web, other].concat());
    let vips: Vec<String> = bench
        .engine
        .asked_for()
        .iter()
        .map(|vip| vip.endpoint())
        .collect();
    for (at_s, last) in [(1, &[1, 2, 3][..]), (2, &[1, 2][..])] {
        for vip in &vips {
            let answer = Ok(reals(&bench.engine, last));
            bench
                .engine
                .handle_found(at(at_s), vip, answer)
                .expect("in force");
        }
    }
    let counts = |bench: &Bench| {
        let vips = bench.engine.config().vips.iter();
        vips.map(|vip| vip.reals.len()).collect::<Vec<_>>()
    };
    bench.plane.state().refuse_probes = true;
    let mut errors = bench.engine.expire_found(62 * SECOND);
    errors.sort();
    assert_eq!(errors.len(), 2, "{errors:?}");
    for (vip, error) in vips.iter().zip(&errors) {
        assert!(error.starts_with(&format!("{vip}: ")), "{errors:?}");
    }
    assert_eq!(counts(&bench), [3, 3]);
    bench.plane.state().refuse_probes = false;
    assert!(bench.engine.expire_found(62 * SECOND).is_empty());
    assert_eq!(counts(&bench), [2, 2]);
}

#[test]
fn a_list_is_json_or_lines() {
    let expected = vec![
        json!({ "address": "10.0.0.1" }),
        json!({ "address": "10.0.0.2", "weight": 3 }),
    ];
    for text in [
        r#"["10.0.0.1", { "address": "10.0.0.2", "weight": 3 }]"#,
        r#" { "reals": [{ "address": "10.0.0.1" }, { "address": "10.0.0.2", "weight": 3 }], "age": 7 }"#,
        "# of the deployment\n10.0.0.1\n\n  10.0.0.2 3 # the large one\n",
    ] {
        assert_eq!(list(text).as_ref(), Ok(&expected), "{text}");
    }
    assert_eq!(list(""), Ok(Vec::new()));
    for (text, expected) in [
        ("[1, ", "it is not valid JSON: "),
        ("{ \"servers\": [] }", "it is not a list of reals"),
        ("10.0.0.1 heavy", "`10.0.0.1 heavy` is not a valid real"),
        ("10.0.0.1 1 2", "`10.0.0.1 1 2` is not a valid real"),
    ] {
        assert!(list(text).unwrap_err().starts_with(expected), "{text}");
    }
    let vip = &config(&text("")).vips[0];
    for (real, expected) in [
        (json!(7), "expected a table in { }"),
        (
            json!({ "address": "www.example.org" }),
            "is not a valid IP address",
        ),
        (
            json!({ "address": "10.0.0.1", "wieght": 1 }),
            "did you mean `weight`?",
        ),
    ] {
        let error = config::reals_from_json(vip, vec![real]).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

fn vip_with(discover: &str) -> SharedVip {
    config(&text("").replace(FILE, &format!("discover = {discover}")))
        .vips
        .remove(0)
}

async fn told(vip: &VipConfig) -> Result<Vec<(String, u32, String)>, String> {
    let discover = vip.discover.clone().expect("it asks");
    let answer = tokio::time::timeout(Duration::from_secs(20), ask(vip, &discover)).await;
    let (reals, _) = answer.expect("an answer")?;
    let reals = reals.into_iter();
    Ok(reals
        .map(|real| (real.address.to_string(), real.weight, real.role.to_string()))
        .collect())
}

#[tokio::test]
async fn a_file_is_read_whole_or_not_at_all() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("reals");
    let vip = vip_with(&format!("{{ file = \"{}\" }}", path.display()));
    assert!(told(&vip).await.unwrap_err().contains("cannot be read"));
    std::fs::write(&path, "10.0.0.1\n10.0.0.2 2\n").expect("write");
    let one = |last: u8, weight| (format!("10.0.0.{last}"), weight, "primary".to_owned());
    assert_eq!(told(&vip).await, Ok(vec![one(1, 1), one(2, 2)]));
    std::fs::write(&path, "10.0.0.1\n10.0.0.1\n").expect("write");
    assert!(told(&vip).await.unwrap_err().contains("is given twice"));
    std::fs::write(&path, "#".repeat(TEXT_MAX + 1)).expect("write");
    assert!(told(&vip).await.unwrap_err().contains("longer than 1 MiB"));
    let vip = vip_with("{ file = \"/dev/zero\" }");
    assert!(told(&vip).await.unwrap_err().contains("it is not a file"));
}

/// A server that answers each request with this.
async fn page(answer: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let place = listener.local_addr().expect("its address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1024];
            let length = stream.read(&mut request).await.unwrap_or(0);
            assert!(request[..length].starts_with(b"GET /reals?of=web HTTP/1.1\r\n"));
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    place
}

#[tokio::test]
async fn a_page_is_asked_for_reals() {
    let with = |status: &str, body: &str| {
        format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    for (answer, expected) in [
        (with("200 OK", "[\"10.0.0.1\"]"), Ok("10.0.0.1")),
        (with("200 OK", "<html>"), Err("is not a valid IP address")),
        (with("500 Oh", "[]"), Err("status 500")),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n[".to_owned(),
            Err("error"),
        ),
        (
            format!("HTTP/1.1 200 OK\r\n\r\n{}", " ".repeat(TEXT_MAX + 1)),
            Err("longer than"),
        ),
        ("SSH-2.0-x\r\n".to_owned(), Err("invalid HTTP")),
    ] {
        let place = page(answer).await;
        let vip = vip_with(&format!("{{ http = \"http://{place}/reals?of=web\" }}"));
        match (told(&vip).await, expected) {
            (Ok(reals), Ok(expected)) => assert_eq!(reals[0].0, expected),
            (Err(error), Err(expected)) => assert!(error.contains(expected), "{error}"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn an_answer_of_a_source_that_a_reload_has_replaced_is_not_taken() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let place = listener.local_addr().expect("its address");
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "10.0.0.2\n").expect("write");
    let by = |discover: &str| config(&text("").replace(FILE, &format!("discover = {discover}")));
    let of_page = by(&format!("{{ http = \"http://{place}/\" }}"));
    let of_file = by(&format!("{{ file = \"{}\" }}", file.path().display()));
    let shared = shared_by(&FakePlane::default(), of_page);
    let asking = tokio::spawn(run(Arc::clone(&shared)));
    let (mut page, _) = listener.accept().await.expect("it is asked");
    let request = page.read(&mut [0; 1024]).await;
    assert!(request.expect("a request") > 0);
    shared.engine().reload(of_file).expect("a reload");
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n[\"10.0.0.1\"]";
    page.write_all(answer.as_bytes()).await.expect("an answer");
    let found = || {
        let reals = shared.engine().config().vips[0].reals.clone();
        let addresses = reals.iter().map(|real| real.address.to_string());
        addresses.collect::<Vec<_>>()
    };
    let some = async {
        while found().is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let some = tokio::time::timeout(Duration::from_secs(60), some).await;
    some.expect("the file is read");
    assert_eq!(found(), ["10.0.0.2"]);
    asking.abort();
}

#[tokio::test]
async fn a_file_that_hangs_is_asked_for_again_once_its_thread_has_ended() {
    let time = Duration::from_millis(5);
    let of = |discover: &str| vip_with(discover).discover.clone().expect("it asks");
    let (done, mut told) = mpsc::unbounded_channel();
    let tell = move |answer: Option<Answer>, is_out: bool| {
        let failed = answer.map(|answer| answer.is_err());
        done.send((failed, is_out)).expect("it is heard");
    };
    let page = of("{ http = \"http://127.0.0.1:9/\" }");
    tell_in_time(std::future::pending(), time, &page, &tell).await;
    assert_eq!(told.recv().await, Some((Some(true), false)));
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let file = of("{ file = \"/nowhere\" }");
    let telling = tokio::spawn(async move {
        let hangs = async {
            ended.await.expect("an end");
            Ok((Vec::new(), None))
        };
        tell_in_time(hangs, time, &file, tell).await;
    });
    assert_eq!(told.recv().await, Some((Some(true), true)));
    sleep(time * 4).await;
    assert!(told.try_recv().is_err(), "it is out still");
    end.send(()).expect("it waits");
    assert_eq!(told.recv().await, Some((None, false)));
    telling.await.expect("it ends");
}

/// A name server: of UDP alone what is short, of TCP all.
async fn name_server() -> SocketAddr {
    let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let place = tcp.local_addr().expect("its address");
    let udp = UdpSocket::bind(place).await.expect("the same port");
    tokio::spawn(async move {
        let mut query = [0; 512];
        let mut lost = std::collections::HashSet::new();
        while let Ok((length, from)) = udp.recv_from(&mut query).await {
            let is_lossy = query[..length].windows(5).any(|name| name == b"lossy");
            if is_lossy && lost.insert([query[0], query[1]]) {
                continue;
            }
            // Another's first.
            let _ = udp.send_to(&[0xff; 12], from).await;
            let _ = udp.send_to(&reply(&query[..length], false), from).await;
        }
    });
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = tcp.accept().await {
            let length = stream.read_u16().await.expect("a length");
            let mut query = vec![0; length.into()];
            stream.read_exact(&mut query).await.expect("a query");
            let answer = reply(&query, true);
            stream.write_u16(answer.len() as u16).await.expect("answer");
            stream.write_all(&answer).await.expect("answer");
        }
    });
    place
}

fn reply(query: &[u8], by_tcp: bool) -> Vec<u8> {
    let query = Packet::parse(query).expect("a query");
    let question = &query.questions[0];
    let mut reply = Packet::new_reply(query.id());
    let name = question.qname.to_string();
    let mut add = |rdata: RData<'static>| {
        let name = Name::new_unchecked(name.as_str()).into_owned();
        reply
            .answers
            .push(ResourceRecord::new(name, CLASS::IN, 7, rdata));
    };
    let address = |last: u8| {
        RData::A(A {
            address: std::net::Ipv4Addr::new(10, 0, 0, last).into(),
        })
    };
    let service = |priority, weight, port, target| {
        RData::SRV(SRV {
            priority,
            weight,
            port,
            target: Name::new_unchecked(target),
        })
    };
    let opt = query.opt().cloned();
    match (question.qtype, name.as_str()) {
        // As Consul, which says nothing of those that it leaves out.
        (_, "consul.example") => match opt.is_some() {
            true => (1..=5).map(address).for_each(&mut add),
            false => (1..=3).map(address).for_each(&mut add),
        },
        (_, "old.example") if opt.is_some() => {
            *reply.rcode_mut() = simple_dns::RCODE::FormatError;
        }
        (_, "old.example") => add(address(1)),
        (QTYPE::TYPE(TYPE::A), "app.example") => [1, 2].map(address).into_iter().for_each(&mut add),
        (_, "lossy.example") => add(address(1)),
        (QTYPE::TYPE(TYPE::A), "one.example" | "uno.example") => add(address(11)),
        (QTYPE::TYPE(TYPE::A), "two.example") => {
            [12, 13].map(address).into_iter().for_each(&mut add)
        }
        (QTYPE::TYPE(TYPE::SRV), "_web._tcp.example") => {
            add(service(10, 5, 80, "one.example"));
            add(service(20, 0, 80, "two.example"));
        }
        // Two ports of a host that has two names, which is a backup besides.
        (QTYPE::TYPE(TYPE::SRV), "_twice._tcp.example") => {
            add(service(20, 9, 80, "one.example"));
            add(service(10, 5, 80, "one.example"));
            add(service(10, 6, 80, "uno.example"));
            add(service(20, 0, 80, "two.example"));
            add(service(20, 2, 80, "two.example"));
        }
        (QTYPE::TYPE(TYPE::SRV), "_other._tcp.example") => add(service(10, 5, 8080, "one.example")),
        (_, "many.example") if by_tcp => (1..=100).map(address).for_each(&mut add),
        (_, "many.example") => reply.set_flags(PacketFlag::TRUNCATION),
        _ => *reply.rcode_mut() = simple_dns::RCODE::ServerFailure,
    }
    reply.questions = query.questions.clone();
    if *reply.rcode_mut() != simple_dns::RCODE::FormatError {
        *reply.opt_mut() = opt;
    }
    reply.build_bytes_vec().expect("a reply")
}

#[tokio::test]
async fn name_servers_tell_addresses_and_services() {
    let server = name_server().await;
    let vip = |name: &str, more: &str| {
        vip_with(&format!(
            "{{ dns = \"{name}\", resolver = \"{server}\"{more} }}"
        ))
    };
    let real = |last: u8, weight, role: &str| (format!("10.0.0.{last}"), weight, role.to_owned());
    let primary = |last| real(last, 1, "primary");
    assert_eq!(
        told(&vip("app.example", "")).await,
        Ok(vec![primary(1), primary(2)])
    );
    let of_app = vip("app.example", "");
    let (_, after) = ask(&of_app, of_app.discover.as_ref().expect("it asks"))
        .await
        .expect("an answer");
    assert_eq!(
        after,
        Some(Duration::from_secs(7)),
        "as long as the records hold"
    );
    let srv = told(&vip("_web._tcp.example", ", record = \"srv\"")).await;
    let expected = [
        real(11, 5, "primary"),
        real(12, 1, "backup"),
        real(13, 1, "backup"),
    ];
    assert_eq!(srv, Ok(expected.to_vec()));
    let twice = told(&vip("_twice._tcp.example", ", record = \"srv\"")).await;
    let expected = [
        real(11, 11, "primary"),
        real(12, 3, "backup"),
        real(13, 3, "backup"),
    ];
    assert_eq!(twice, Ok(expected.to_vec()));
    // A datagram may get lost.
    let lossy = told(&vip("lossy.example", "")).await;
    assert_eq!(lossy, Ok(vec![primary(1)]));
    let other_port = told(&vip("_other._tcp.example", ", record = \"srv\"")).await;
    assert!(
        other_port
            .unwrap_err()
            .contains("serves at port 8080: ports are not rewritten")
    );
    assert_eq!(
        told(&vip("many.example", ""))
            .await
            .map(|reals| reals.len()),
        Ok(100)
    );
    assert!(
        told(&vip("down.example", ""))
            .await
            .unwrap_err()
            .contains("ServerFailure")
    );
}

#[tokio::test]
async fn name_servers_are_asked_for_answers_that_are_longer_than_512_octets() {
    let server = name_server().await;
    for (name, expected) in [("consul.example", 5), ("old.example", 1)] {
        let vip = vip_with(&format!("{{ dns = \"{name}\", resolver = \"{server}\" }}"));
        let found = told(&vip).await.map(|reals| reals.len());
        assert_eq!(found, Ok(expected), "{name}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_not_asked_again_for_each_target() {
    let dead = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
    let servers = vec![dead.local_addr().expect("its address"), name_server().await];
    let asked = tokio::spawn(async move {
        let mut query = [0; 512];
        let mut asked = 0;
        // It cannot answer, and says so: the test need not wait.
        while let Ok((_, from)) = dead.recv_from(&mut query).await {
            asked += 1;
            if &query[12..16] == b"\x03end" {
                break;
            }
            query[2] |= 0x80;
            query[3] = 2;
            let _ = dead.send_to(&query[..12], from).await;
        }
        asked
    });
    let vip = vip_with("{ dns = \"_web._tcp.example\", record = \"srv\" }");
    let record = crate::config::RecordType::Srv;
    let told = dns::ask_of(servers.clone(), "_web._tcp.example", record, &vip).await;
    assert_eq!(told.expect("an answer").0.len(), 3);
    let end = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
    let last = [&[0; 12][..], b"\x03end"].concat();
    end.send_to(&last, servers[0]).await.expect("sent");
    assert_eq!(asked.await.expect("a count"), 2);
}

#[test]
fn faults_say_how_to_mend_them() {
    for (discover, expected) in [
        (
            "{}",
            "`discover` has one of `dns`, `file`, `http`; write for example",
        ),
        (
            "{ dns = \"a\", file = \"/b\" }",
            "`discover` has one of `dns`, `file`, `http`",
        ),
        ("{ dns = \"a..b\" }", "`a..b` is not a valid DNS name"),
        (
            "{ dns = \"a\", record = \"txt\" }",
            "a record of type txt names no server",
        ),
        (
            "{ dns = \"a\", resolver = \"b\" }",
            "`b` is not a valid name server",
        ),
        ("{ file = \"b\" }", "`b` is not an absolute path"),
        (
            "{ file = \"/b\", record = \"a\" }",
            "`record` has no meaning without dns",
        ),
        (
            "{ http = \"ftp://x/\" }",
            "`ftp://x/` is not the address of a page",
        ),
        (
            "{ http = \"http://x/\", ca = \"system\" }",
            "`ca` has no meaning without an `http`",
        ),
        (
            "{ file = \"/b\", interval = \"1ms\" }",
            "interval must lie between 1s and 1h",
        ),
        (
            "{ file = \"/b\", max_reals = 0 }",
            "max_reals must lie between 1 and 4096",
        ),
        (
            "{ file = \"/b\", max_removed = 2.0 }",
            "max_removed must lie between 0 and 1",
        ),
    ] {
        let text = text("").replace(FILE, &format!("discover = {discover}"));
        let parsed = BalancerConfig::parse(
            Path::new("lb.toml"),
            &format!("interface = \"eth0\"\n{text}"),
        );
        let message = parsed.unwrap_err().faults[0].message.clone();
        assert!(message.starts_with(expected), "{message}");
    }
    let vip = json!({ "address": "192.0.2.1", "port": 80, "discover": { "file": "/etc/shadow" } });
    let engine = Bench::new(WEB).engine;
    let refused = config::vip_from_json(vip, config::Beside::of(engine.config())).unwrap_err();
    assert!(
        refused.starts_with("`discover` stands in the file alone"),
        "{refused}"
    );
}
