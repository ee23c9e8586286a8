// SPDX-License-Identifier: Apache-2.0
//! What cookies and connection ids do to loads, timestamps and stacks.

use serde_json::Value;

use super::{alone, number, report, run};

/// Rates on a busy machine say nothing; what packets carry does. By cookie go all packets
/// to the server with the agent but SYNs, and none to the other one (the scenario's check). Two at
/// a time: their programs have the same names, and are not taken for one another.
#[test]
fn cookies_carry_the_load_of_the_agents_server_alone() {
    let _alone = alone();
    let run = || report("agent-cost", &["seconds=1", "rounds=1"]);
    let reports = std::thread::scope(|scope| {
        let beside = scope.spawn(run);
        [run(), beside.join().expect("a report")]
    });
    for report in reports {
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
