// SPDX-License-Identifier: Apache-2.0
//! What clients lose before they are connected.

use serde_json::json;

use super::{number, run};

#[test]
fn the_agent_knows_what_clients_felt() {
    let runs = ["ports", "restart"];
    let chosen = format!("runs={}", runs.join(","));
    let report = run("certes", &[&chosen, "seconds=16", "warm_up_s=4"]);
    for (index, name) in runs.iter().enumerate() {
        let of = |key| number(&report, &format!("/runs/{index}/{key}"));
        assert_eq!(
            report.pointer(&format!("/runs/{index}/name")),
            Some(&json!(name))
        );
        assert!(of("syn_drop_pct") > 10.0, "the queue is too long: {report}");
        // Of the whole run, which has no edges, also of clients that were killed in the middle.
        let missing = of("all_exact_transactions") / of("all_transactions") - 1.0;
        assert!(missing.abs() < 0.01, "{report}");
        assert!(of("all_exact_error_pct").abs() < 2.0, "{report}");
        assert!(of("syn_to_end_error_pct") < -30.0, "{report}");
    }
}

/// Test D of the paper, a sixteenth of it.
#[test]
fn the_distribution_of_a_workload_of_table_two_is_what_clients_log() {
    let short = [
        "workloads=table2",
        "runs=D",
        "size=16",
        "seconds=12",
        "warm_up_s=10",
    ];
    let report = run("certes", &short);
    let row = &report["runs"][0];
    let of = |key| number(row, key);
    assert!(of("/syn_drop_pct") > 10.0, "the queue is too long: {row}");
    let missing = of("/all_exact_transactions") / of("/all_transactions") - 1.0;
    assert!(missing.abs() < 0.01, "{row}");
    let percentiles = row["percentiles"].as_array().expect("percentiles");
    assert_eq!(percentiles.len(), 3, "{row}");
    for percentile in percentiles {
        assert_eq!(percentile["within"], true, "{row}");
    }
}

/// The scenario compares every counter by itself.
#[test]
fn every_way_to_lose_an_attempt_is_counted() {
    run("certes-drops", &[]);
}

/// The scenario compares each client with what the agent says of it.
#[test]
fn clients_that_everybody_has_are_what_the_agent_says() {
    run("clients-everybody", &[]);
}

/// The scenario itself compares what clients feel.
#[test]
fn a_server_that_drops_syns_is_relieved_by_what_clients_feel() {
    let report = run("client-latency", &["seconds=6", "warm_up_s=6", "rate=420"]);
    let of = |run, key| number(&report, &format!("/runs/{run}/{key}"));
    assert!(of(1, "share") < 1.0 / 6.0, "{report}");
    assert!(of(1, "felt_ms") < of(0, "felt_ms"), "{report}");
    assert!(of(1, "fallbacks_without_agent") > 0.0, "{report}");
}

/// Far too short for a rule to settle: both servers are asked, and both limits move as their
/// rules say, within their bounds.
#[test]
fn two_rules_steer_accept_queues_side_by_side() {
    let short = ["seconds=8", "warm_up_s=4", "period_s=2", "patience_s=3"];
    let report = run("accept-queue", &short);
    let pair = &report["result"]["seeds"][0];
    let limits = pair["limits"].as_array().expect("limits");
    assert_eq!(limits.len(), 5, "one a period, but at the end: {limits:?}");
    for key in ["by_clients", "by_queueing"] {
        let of: Vec<f64> = limits
            .iter()
            .map(|l| number(l, &format!("/{key}")))
            .collect();
        assert!(of.iter().all(|l| (16.0..=2048.0).contains(l)), "{of:?}");
        assert!(of.iter().any(|limit| *limit != 128.0), "{key}: {of:?}");
    }
    for (index, name) in ["by-clients-0", "by-queueing-0"].iter().enumerate() {
        let of = |key: &str| number(pair, &format!("/runs/{index}/{key}"));
        assert_eq!(pair["runs"][index]["name"], *name);
        assert!(of("transactions") > 100.0, "{pair}");
        // No client is faster than its server.
        assert!(of("syn_to_end_error_pct") < 0.0, "{pair}");
    }
}
