// SPDX-License-Identifier: Apache-2.0
//! Connections that stay on their server, whatever changes or attacks. What breaks is counted,
//! so that these run beside each other.

use serde_json::Value;

use super::{count, number};

#[test]
fn smoke_reaches_every_server_every_way() {
    count("smoke", &[]);
}

#[test]
fn takeover_breaks_nothing() {
    let report = count("takeover", &["up_ms=200", "down_ms=100"]);
    assert_eq!(number(&report, "/result/took_over_messages"), 10.0);
    assert!(
        number(&report, "/result/clients/requests") > 100.0,
        "{report}"
    );
    assert_eq!(number(&report, "/result/clients/broken_connections"), 0.0);
}

#[test]
fn replacing_servers_breaks_nothing() {
    let report = count("replace", &["step_ms=2000"]);
    assert_eq!(number(&report, "/result/clients/broken_connections"), 0.0);
}

/// Crashes, joins, an upgrade, a balancer that lags while servers come and keys rotate: none
/// of it breaks a connection whose packets name their server (the scenario's check).
#[test]
fn a_fleet_keeps_connections_whatever_happens_to_a_balancer() {
    let report = count("fleet", &["seconds=20", "low=10", "high=20"]);
    let clients = report["clients"].as_array().expect("clients");
    for kind in ["timestamps", "plain", "quic"] {
        let of_kind = clients.iter().find(|clients| clients["kind"] == kind);
        let of_kind = of_kind.expect(kind);
        assert!(number(of_kind, "/connections") > 50.0, "{of_kind}");
        assert!(kind == "plain" || number(of_kind, "/broken_connections") == 0.0);
    }
    let events = report["events"].as_array().expect("events");
    let waited = events
        .iter()
        .filter(|event| event["event"] == "what waited");
    assert!(waited.count() >= 2, "{events:?}");
}

const SMALL_ATTACK: [&str; 4] = ["seconds=0.5", "rate=20000", "slots=4", "flows=131072"];

/// A flood that pushes nothing out, one whose packets a cookie's check refuses, and rubbish from
/// servers and API clients. What breaks, is evicted or ends without a name fails the scenario.
#[test]
fn attacks_break_no_connection() {
    let floods = "floods=forged-cookies+icmp-too-big+collisions";
    let report = count("attack", &[&SMALL_ATTACK[..], &[floods]].concat());
    let rows = report["floods"].as_array().expect("floods");
    assert_eq!(rows.len(), 3, "{report}");
    for row in rows {
        assert!(row["sent"].as_u64() > Some(1000), "{row}");
        assert_eq!(row["broken_connections"], 0, "{row}");
        assert_eq!(
            row["clients"].as_object().map(|kinds| kinds.len()),
            Some(4),
            "{row}"
        );
    }
    assert_eq!(number(&report, "/hostile/held_connections"), 648.0);
}

/// By IPv6, and what is sent on ends behind the balancer: packets of each flood in IPIP, and in GUE
/// with and without private data.
#[test]
fn attacks_by_ipv6_break_no_connection() {
    let floods = "floods=syn+fragments+icmp-unreachable+replay-client";
    let params = ["family=6", "hostile=false", floods];
    let report = count("attack", &[&SMALL_ATTACK[..], &params].concat());
    let rows = report["floods"].as_array().expect("floods");
    assert_eq!(rows.len(), 4, "{report}");
    for row in rows {
        assert_eq!(row["broken_connections"], 0, "{row}");
        let (sent, ended) = (row["sent"].as_u64(), row["ended_behind"].as_u64());
        assert!(sent > Some(1000), "{row}");
        match row["flood"] == "fragments" {
            true => assert_eq!(ended, Some(0), "{row}"),
            false => assert!(ended > sent.map(|sent| sent * 9 / 10), "{row}"),
        }
    }
}

#[test]
fn the_attack_finds_a_table_that_is_too_small() {
    let report = count("attack", &["planted=evict-live", "seconds=1", "rate=60000"]);
    assert_eq!(report["planted_found"], "evict-live");
}

/// A slice of it: some kills of each deed, and some troubles. What breaks, is lost or left over
/// fails the scenario.
#[test]
fn the_worst_night_breaks_no_connection() {
    let troubles = "troubles=disk full+pins deleted+interface made anew+two daemons, one interface";
    let report = count("night", &["kills=1", troubles]);
    let rows = report["kills"].as_array().expect("kills");
    assert_eq!(rows.len(), 8, "{report}");
    let killed = rows.iter().filter_map(|row| row["killed"].as_u64());
    assert!(killed.sum::<u64>() > 6, "{report}");
    let troubles = report["troubles"].as_array().expect("troubles");
    assert_eq!(troubles.len(), 4, "{report}");
}

#[test]
fn the_night_finds_state_that_is_torn() {
    let params = [
        "planted=torn-state",
        "kills=2",
        "deeds=takeover",
        "troubles=none",
    ];
    let report = count("night", &params);
    assert_eq!(report["planted_found"], "torn-state");
}

/// A short run of figure 9: with cookies no connection breaks, whatever changes. Without
/// them they do when the pool changes, and the more the less the hash is consistent.
#[test]
fn cookies_alone_keep_every_connection() {
    let report = count(
        "pcc-scale",
        &[
            "names=all",
            "seconds=5",
            "from=4",
            "to=6",
            "drain=2",
            "low=30",
            "high=50",
            "streams=30",
            "idlers=10",
            "idle_min_s=2",
            "idle_max_s=4",
        ],
    );
    let runs = report["runs"].as_array().expect("runs");
    // The QUIC clients ask less often.
    let kind = |name: &str| match name {
        "quic-cid" => ("quic", 150.0),
        _ => ("tcp", 300.0),
    };
    let broken = |name: &str| {
        let run = runs.iter().find(|run| run["name"] == name).expect(name);
        let (transport, requests) = kind(name);
        assert_eq!(run["transport"], transport);
        assert!(number(run, "/requests") > requests, "{run}");
        assert!(number(run, "/worst_second_broken_pct") <= 100.0);
        number(run, "/broken_connections") / number(run, "/connections")
    };
    // The more connections are opened between two changes, the smaller the share that breaks; of
    // streams there are always as many.
    let streams = |name: &str| {
        let run = runs.iter().find(|run| run["name"] == name).expect(name);
        number(run, "/kinds/stream/broken")
    };
    assert_eq!(broken("cookie"), 0.0, "{runs:?}");
    assert_eq!(broken("quic-cid"), 0.0, "{runs:?}");
    assert!(streams("hash") > 15.0, "{runs:?}");
    assert!(streams("consistent-hash") < streams("hash"), "{runs:?}");
    assert!(
        streams("daisy-chain") < streams("consistent-hash"),
        "{runs:?}"
    );
    assert!(streams("maglev-table") < streams("hash"), "{runs:?}");
    // What was on its way between two balancers' reloads may be reset: some packets, however many
    // connections there are.
    assert!(
        broken("second-chance") < broken("maglev-table").max(0.02),
        "{runs:?}"
    );
    // A handshake that is under way when the balancer is swapped may be lost.
    assert!(broken("cookie-stateful") < 0.02, "{runs:?}");
    let stateful = runs.iter().find(|run| run["name"] == "cookie-stateful");
    let stateful = stateful.expect("cookie-stateful");
    let places = |key: &str| number(stateful, &format!("/places_of_last_balancer/{key}"));
    assert!(places("learned") > 0.0 && places("ended") > 0.0, "{runs:?}");
    // All ends were told, but at most of what broke.
    let lost = number(stateful, "/broken_connections");
    assert!(places("open") <= lost, "{runs:?}");
    for name in ["daisy-chain", "second-chance"] {
        let chain = runs.iter().find(|run| run["name"] == name);
        assert!(chain.is_some_and(|run| number(run, "/packets_passed_on") > 0.0));
    }
}

/// Without the run beside it, which waits for connections to give up. Clients and NATs
/// move often enough for a stack that follows its clients only a few times to fail.
#[test]
fn quic_connections_survive_moves_and_changes() {
    let report = count("quic-cid", &["step_ms=1200", "slots=6", "beside=false"]);
    let result = |pointer: &str| number(&report, &format!("/runs/0/{pointer}"));
    assert_eq!(result("broken_connections"), 0.0);
    assert!(result("client_moves") > 60.0 && result("requests") > 100.0);
    assert!(result("cookie_results/cid") > 100.0);
}

#[test]
fn two_tiers_keep_connections_while_both_are_replaced() {
    let report = count("tiers", &["connections=4"]);
    assert_eq!(number(&report, "/result/steps/all"), 40.0);
}

#[test]
fn cookies_keep_connections_whatever_changes() {
    let report = count("cookie", &["connections=4"]);
    let steps = report.pointer("/result/steps").and_then(Value::as_object);
    assert!(steps.is_some_and(|steps| steps.len() > 15));
    assert_eq!(number(&report, "/result/kernels/paws_estab"), 0.0);
    assert_eq!(number(&report, "/result/kernels/tsecr_rejected"), 0.0);
}

#[test]
fn subflows_join_the_server_that_advertised_its_port() {
    let report = count("mptcp", &["connections=8"]);
    assert!(number(&report, "/result/advertised/joined") >= 8.0);
    assert_eq!(number(&report, "/result/advertised/lost"), 0.0);
    assert!(number(&report, "/result/scheduled/lost") > 0.0);
}

/// Idleness, a stream and an outage longer than the ring of PAWS, which 20 bits make 4 s
/// short. What breaks fails the scenario; how long anything stalled is the machine's.
#[test]
fn what_waits_for_longer_than_the_ring_goes_on() {
    let report = count(
        "cookie-soak",
        &[
            "bits=20",
            "idle_s=5,7",
            "stream_s=9",
            "silent_s=6",
            "outage_s=5",
            "strict=false",
        ],
    );
    let trials = report.pointer("/result/trials").and_then(Value::as_array);
    let trials = trials.expect("trials");
    let what: Vec<&str> = trials.iter().filter_map(|t| t["what"].as_str()).collect();
    let idle = ["idle"; 6];
    assert_eq!(what[..6], idle, "two lengths, three kinds of keepalive");
    assert_eq!(what[6..], ["stream", "server-first", "outage"]);
    assert_eq!(number(&report, "/result/kernels"), 0.0, "PAWS: {report}");
}

/// A queue that overflows, without cookies and with them. How often is chance: that the
/// kernels reject nothing is the scenario's check.
#[test]
fn transfers_lose_and_arrive_with_cookies_and_without() {
    let report = count("cookie-loss", &["rounds=2", "megabytes=5"]);
    let transfers = report
        .pointer("/result/transfers")
        .and_then(Value::as_array);
    let transfers = transfers.expect("transfers");
    let modes: Vec<&str> = transfers
        .iter()
        .filter_map(|transfer| transfer["mode"].as_str())
        .collect();
    assert_eq!(modes, ["none", "timestamp", "none", "timestamp"]);
    let of = |transfer, figure: &str| number(transfer, &format!("/figures/{figure}"));
    let again: f64 = transfers.iter().map(|t| of(t, "RetransSegs")).sum();
    assert!(again > 0.0, "the queue is too long: {transfers:?}");
    for transfer in transfers {
        assert!(
            of(transfer, "mbit_s") > 0.0 && of(transfer, "srtt_ms") > 0.0,
            "{transfer}"
        );
    }
}

/// Both ways to encapsulate, over one path and through the tunnel, without loss and with.
/// The scenario fails where a request does, or where the tunnel carries what should go past
/// it, or nothing.
#[test]
fn a_tunnel_carries_a_balancers_packets_to_its_servers() {
    let report = count("bifrost-balancer", &["seconds=0.5", "rate=100"]);
    let runs = report["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 8);
    for run in runs {
        assert!(number(run, "/times/requests") >= 50.0, "{run}");
        let through = run["way"] == "tunnel";
        assert_eq!(number(run, "/frames_carried") > 100.0, through, "{run}");
    }
}
