// SPDX-License-Identifier: Apache-2.0
//! The balancer under load, on servers that come, go and fail.

use serde_json::json;

use super::{number, run};

#[test]
fn direct_measures_the_lab_itself() {
    let report = run("direct", &["seconds=2", "slots=30"]);
    assert_eq!(number(&report, "/result/clients/broken_connections"), 0.0);
    assert!(number(&report, "/result/clients/requests") > 500.0);
    assert_eq!(number(&report, "/result/wrk/socket_errors"), 0.0);
}

#[test]
fn smoke_reaches_every_server_every_way() {
    run("smoke", &[]);
}

#[test]
fn takeover_breaks_nothing() {
    let report = run("takeover", &["up_ms=200", "down_ms=100"]);
    assert_eq!(number(&report, "/result/kills"), 10.0);
    assert_eq!(number(&report, "/result/clients/broken_connections"), 0.0);
}

#[test]
fn replacing_servers_breaks_nothing() {
    let report = run("replace", &["step_ms=2000"]);
    assert_eq!(number(&report, "/result/clients/broken_connections"), 0.0);
}

/// Turns spread what a hash piles up: that holds on a busy machine too, because only
/// the modelled servers' queues differ.
#[test]
fn turns_complete_flows_sooner_than_a_hash() {
    let report = run(
        "fct",
        &[
            "schedulers=maglev,round-robin,p2c",
            "workloads=uniform",
            "servers=8",
            "seconds=4",
            "warm_up_s=1",
        ],
    );
    let runs = report["runs"].as_array().expect("runs");
    let of = |scheduler: &str| {
        let run = runs.iter().find(|run| run["scheduler"] == scheduler);
        let run = run.expect(scheduler);
        assert_eq!(number(run, "/broken"), 0.0);
        assert_eq!(
            (&run["workload"], &run["servers"]),
            (&json!("uniform"), &json!(8))
        );
        (number(run, "/p99_ms"), number(run, "/load_variance"))
    };
    let hash = of("maglev");
    for scheduler in ["round-robin", "p2c"] {
        let (p99, variance) = of(scheduler);
        assert!(
            p99 < hash.0 && variance < hash.1,
            "{scheduler}: {p99} ms, {variance}; {hash:?}"
        );
    }
}

/// Crashes, joins, an upgrade, a balancer that lags while servers come and keys rotate: none
/// of it breaks a connection whose packets name their server (the scenario's check).
#[test]
fn a_fleet_keeps_connections_whatever_happens_to_a_balancer() {
    let report = run("fleet", &["seconds=20", "low=10", "high=20"]);
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

/// What a probe of the server's own address would not see, and what it would.
#[test]
fn servers_that_fail_leave_the_ring_and_return() {
    let report = run("health", &[]);
    assert_eq!(number(&report, "/result/clients/broken_connections"), 0.0);
    let reasons = &report["result"]["reasons"];
    let lost = |index: usize| reasons[index].as_str().unwrap_or_default().to_owned();
    assert!(lost(0).starts_with("no answer within"), "{reasons}");
    assert!(lost(1).starts_with("no answer within"), "{reasons}");
    assert!(lost(2).contains("refused"), "{reasons}");
    assert_eq!(lost(3), "status 200");
}

/// Times on a busy machine say nothing. That the kernel ran the program once for each packet
/// that a verdict counts, and that there are samples of latency only with measurement, is
/// the scenario's to check; here, that there was something to check.
#[test]
fn every_live_packet_is_counted_once_measured_or_not() {
    let report = run("packet-cost", &["seconds=1"]);
    for case in ["measured", "measured_8th", "measured_64th", "unmeasured"] {
        let of = |key: &str| number(&report, &format!("/result/{case}/{key}"));
        assert_eq!(of("clients/broken_connections"), 0.0);
        assert!(of("counted") > 500.0 && of("counted") > of("clients/requests"));
        assert!(of("ns_per_packet") > 0.0);
    }
    let samples = |case: &str| number(&report, &format!("/result/{case}/samples"));
    assert_eq!(samples("unmeasured"), 0.0);
    // Several requests are outstanding: nearly each answer sets off another packet.
    let answers = number(&report, "/result/measured/clients/requests");
    assert!(samples("measured") > 0.3 * answers, "{report}");
}

#[test]
fn a_syn_flood_breaks_no_connection() {
    let report = run("syn-flood", &["seconds=1", "rate=20000"]);
    let runs = report["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 3, "a table, cookies, places");
    for run in runs {
        assert_eq!(run["under_flood"]["broken_connections"], 0, "{run}");
        assert!(run["syns_sent"].as_u64() > Some(1000), "{run}");
    }
}

/// A flood that pushes nothing out, one whose packets a cookie's check refuses, and rubbish from
/// servers and API clients. What breaks, is evicted or ends without a name fails the scenario.
#[test]
fn attacks_break_no_connection() {
    let floods = "floods=forged-cookies+icmp-too-big+collisions";
    let report = run("attack", &["seconds=0.5", "rate=20000", "slots=4", floods]);
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

#[test]
fn the_attack_finds_a_table_that_is_too_small() {
    let report = run("attack", &["planted=evict-live", "seconds=1", "rate=60000"]);
    assert_eq!(report["planted_found"], "evict-live");
}

/// A slice of it: some kills of each deed, and some troubles. What breaks, is lost or left over
/// fails the scenario.
#[test]
fn the_worst_night_breaks_no_connection() {
    let troubles = "troubles=disk full+pins deleted+interface made anew+two daemons, one interface";
    let report = run("night", &["kills=1", troubles]);
    let rows = report["kills"].as_array().expect("kills");
    assert_eq!(rows.len(), 8, "{report}");
    let killed = rows.iter().filter_map(|row| row["killed"].as_u64());
    assert!(killed.sum::<u64>() > 4, "{report}");
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
    let report = run("night", &params);
    assert_eq!(report["planted_found"], "torn-state");
}
