// SPDX-License-Identifier: Apache-2.0
//! Connections that stay on their server, by cookies and connection ids.

use serde_json::Value;

use super::{number, run};

/// A short run of figure 9: with cookies no connection breaks, whatever changes. Without
/// them they do when the pool changes, and the more the less the hash is consistent.
#[test]
fn cookies_alone_keep_every_connection() {
    let report = run(
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
    assert_eq!(broken("cookie"), 0.0, "{runs:?}");
    assert_eq!(broken("quic-cid"), 0.0, "{runs:?}");
    assert!(broken("hash") > 0.1, "{runs:?}");
    assert!(broken("consistent-hash") < broken("hash"), "{runs:?}");
    assert!(
        broken("daisy-chain") < broken("consistent-hash"),
        "{runs:?}"
    );
    assert!(broken("maglev-table") < broken("hash"), "{runs:?}");
    // What was on its way between two balancers' reloads may be reset.
    assert!(broken("second-chance") < 0.02, "{runs:?}");
    // A handshake that is under way when the balancer is swapped may be lost.
    assert!(broken("cookie-stateful") < 0.02, "{runs:?}");
    let stateful = runs.iter().find(|run| run["name"] == "cookie-stateful");
    let places = |key: &str| {
        stateful.map_or(-1.0, |run| {
            number(run, &format!("/places_of_last_balancer/{key}"))
        })
    };
    assert!(places("learned") > 0.0 && places("ended") > 0.0, "{runs:?}");
    assert_eq!(places("open"), 0.0, "all ends were told: {runs:?}");
    for name in ["daisy-chain", "second-chance"] {
        let chain = runs.iter().find(|run| run["name"] == name);
        assert!(chain.is_some_and(|run| number(run, "/packets_passed_on") > 0.0));
    }
}

/// Without the run beside it, which waits for connections to give up. Clients and NATs
/// move often enough for a stack that follows its clients only a few times to fail.
#[test]
fn quic_connections_survive_moves_and_changes() {
    let report = run("quic-cid", &["step_ms=1200", "slots=6", "beside=false"]);
    let result = |pointer: &str| number(&report, &format!("/runs/0/{pointer}"));
    assert_eq!(result("broken_connections"), 0.0);
    assert!(result("client_moves") > 60.0 && result("requests") > 100.0);
    assert!(result("cookie_results/cid") > 100.0);
}

/// Rates on a busy machine say nothing; what packets carry does. By cookie go all packets
/// to the server with the agent but SYNs, and none to the other one (the scenario's check).
#[test]
fn cookies_carry_the_load_of_the_agents_server_alone() {
    let report = run("agent-cost", &["seconds=1", "rounds=1"]);
    let result = |key: &str| number(&report, &format!("/result/{key}"));
    for side in ["programs", "programs_first"] {
        // Two loads go to it, of which one was counted.
        let index = usize::from(side == "programs");
        let by_cookie = result(&format!("packets_by_cookie/{index}"));
        let inwards = result(&format!("{side}/in/segments"));
        assert!(inwards > 100.0 && by_cookie > inwards, "{report}");
    }
    assert!(result("rate_ratio") > 0.0);
}

#[test]
fn two_tiers_keep_connections_while_both_are_replaced() {
    let report = run("tiers", &["connections=4"]);
    assert_eq!(number(&report, "/result/steps/all"), 40.0);
}

#[test]
fn cookies_keep_connections_whatever_changes() {
    let report = run("cookie", &["connections=4"]);
    let steps = report.pointer("/result/steps").and_then(Value::as_object);
    assert!(steps.is_some_and(|steps| steps.len() > 15));
    assert_eq!(number(&report, "/result/kernels/paws_estab"), 0.0);
    assert_eq!(number(&report, "/result/kernels/tsecr_rejected"), 0.0);
}

/// The scenario judges: clients' kernels reject no more than without cookies. With 20 bits
/// the clock steps four times as often.
#[test]
fn paws_rejects_no_more_than_without_cookies() {
    let report = run("cookie-uploads", &["bits=20", "pairs=24"]);
    let rows = report.pointer("/result/rows").and_then(Value::as_array);
    let transfers = rows
        .expect("rows")
        .iter()
        .map(|row| number(row, "/transfers"));
    assert_eq!(transfers.sum::<f64>(), 168.0);
    assert!(number(&report, "/result/chance") > 1e-3);
}

#[test]
fn subflows_join_the_server_that_advertised_its_port() {
    let report = run("mptcp", &["connections=8"]);
    assert!(number(&report, "/result/advertised/joined") >= 8.0);
    assert_eq!(number(&report, "/result/advertised/lost"), 0.0);
    assert!(number(&report, "/result/scheduled/lost") > 0.0);
}

/// Idleness, a stream and an outage longer than the ring of PAWS, which 20 bits make 4 s
/// short. How long anything stalled is the machine's.
#[test]
fn what_waits_for_longer_than_the_ring_goes_on() {
    let report = run(
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
    for trial in trials {
        assert_eq!(trial["broken"], false, "{trial}");
    }
    assert_eq!(number(&report, "/result/kernels"), 0.0, "PAWS: {report}");
}

/// A queue that overflows, without cookies and with them. How often is chance: that the
/// kernels reject nothing is the scenario's check.
#[test]
fn transfers_lose_and_arrive_with_cookies_and_without() {
    let report = run("cookie-loss", &["rounds=2", "megabytes=5"]);
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

/// Each stack of clients with each of servers. The scenario fails where a connection
/// breaks, or a server is asked nothing, which with 32 connections over three servers does
/// not happen by chance.
#[test]
fn http3_loads_reach_every_server_between_all_stacks() {
    let report = run("quic-smoke", &["seconds=1", "slots=32"]);
    let loads = report.pointer("/result/loads").and_then(Value::as_array);
    let loads = loads.expect("loads");
    let pairs: Vec<(&str, &str)> = loads
        .iter()
        .filter_map(|load| Some((load["client"].as_str()?, load["server"].as_str()?)))
        .collect();
    let (a, b) = ("quinn", "quic-go");
    assert_eq!(pairs, [(a, a), (b, a), (a, b), (b, b)]);
    for load in loads {
        assert!(number(load, "/clients/requests") > 8.0, "{load}");
        let same = load["client"] == load["server"];
        let ipv4 = load["vip"].as_str().is_some_and(|vip| vip.contains('.'));
        assert_eq!(ipv4, same, "{load}");
    }
}
