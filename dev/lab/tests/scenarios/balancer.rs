// SPDX-License-Identifier: Apache-2.0
//! The balancer under load, on servers that come, go and fail.

use serde_json::{Value, json};

use super::{number, run, run_until};

#[test]
fn direct_measures_the_lab_itself() {
    let report = run("direct", &["seconds=2", "slots=30"]);
    assert_eq!(number(&report, "/result/clients/broken_connections"), 0.0);
    assert!(number(&report, "/result/clients/requests") > 500.0);
    assert_eq!(number(&report, "/result/wrk/socket_errors"), 0.0);
}

/// Turns spread what a hash piles up.
#[test]
fn turns_complete_flows_sooner_than_a_hash() {
    let of = |report: &Value, scheduler: &str| {
        let mut runs = report["runs"].as_array().expect("runs").iter();
        let run = runs.find(|run| run["scheduler"] == scheduler);
        let run = run.expect(scheduler);
        assert_eq!(number(run, "/broken"), 0.0);
        assert_eq!(
            (&run["workload"], &run["servers"]),
            (&json!("uniform"), &json!(8))
        );
        (number(run, "/p99_ms"), number(run, "/load_variance"))
    };
    run_until(
        "fct",
        &[
            "schedulers=maglev,round-robin,p2c",
            "workloads=uniform",
            "servers=8",
            "seconds=4",
            "warm_up_s=1",
        ],
        |report| {
            let hash = of(report, "maglev");
            ["round-robin", "p2c"].iter().all(|scheduler| {
                let (p99, variance) = of(report, scheduler);
                p99 < hash.0 && variance < hash.1
            })
        },
    );
}

/// What a probe of the server's own address would not see, and what it would.
#[test]
fn servers_that_fail_leave_the_ring_and_return() {
    // A probe of 200 ms fails where nginx waits for a processor.
    let report = run("health", &["interval_ms=1000"]);
    assert_eq!(number(&report, "/result/clients/broken_connections"), 0.0);
    let reasons = &report["result"]["reasons"];
    let lost = |index: usize| reasons[index].as_str().unwrap_or_default().to_owned();
    assert!(lost(0).starts_with("no answer within"), "{reasons}");
    assert!(lost(1).starts_with("no answer within"), "{reasons}");
    assert!(lost(2).contains("refused"), "{reasons}");
    assert_eq!(lost(3), "status 200");
}

/// How long it takes, and with how many, is the command's to show.
#[test]
fn many_vips_are_loaded_and_changed() {
    let report = run("large", &["vips=20", "reals=5", "changes=2"]);
    for changed in ["by_request_s", "by_reload_s"] {
        let times = report["result"][changed].as_array().expect("times");
        assert_eq!(times.len(), 2);
    }
    assert!(number(&report, "/result/kernel_bytes") > 1e6);
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

/// What the rates are is the machine's.
#[test]
fn packets_come_through_the_balancer_on_one_cpu_and_on_all() {
    let report = run("packet-rate", &["rounds=1", "seconds=0.3"]);
    let rows = report["rows"].as_array().expect("rows");
    let cpus = causeway_lab::cpu::usable().expect("CPUs").len();
    assert_eq!(rows.len(), 3 * 2 * cpus.min(2), "ways, mixes, CPUs");
    for row in rows {
        assert!(row["packets_per_s"].as_f64() > Some(1000.0), "{row}");
    }
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
