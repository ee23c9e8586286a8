// SPDX-License-Identifier: Apache-2.0
//! The tunnel over several paths.

use serde_json::{Value, json};

use super::{number, run};

/// What must not stop a tunnel; the scenario fails where traffic does not go on.
#[test]
fn a_tunnel_outlives_losses_restarts_and_hostile_datagrams() {
    let report = run("bifrost-faults", &["seconds=1", "cut_s=1.5"]);
    for step in [
        "loss",
        "path_down",
        "restart",
        "cut",
        "rotation",
        "hostile",
        "paths",
        "end",
    ] {
        assert!(
            number(&report, &format!("/result/{step}/times/requests")) > 0.0,
            "{step}"
        );
    }
}

/// The evaluation in small: its form, and that traffic flows by every carrier. Times and
/// rates are the machine's.
#[test]
fn the_evaluation_of_tunnels_has_its_figures() {
    let report = run(
        "bifrost",
        &[
            "seconds=0.5",
            "bulk_s=0.5",
            "rounds=1",
            "kept_rounds=2",
            "flap_rounds=2",
            "rate=100",
            "loss_pct=0,1",
            "parts=tails,kept,flap,gbps,idle",
            "tail_rounds=2",
            // Whatever is stolen has its round played again, once.
            "stolen_max_pct=0",
            "replays=1",
            "replay_s=10",
        ],
    );
    for row in 0..2 {
        for name in [
            "plain_p99_ms",
            "mptcp_p99_ms",
            "causeway_p50_ms",
            "causeway_p999_ms",
        ] {
            assert!(number(&report, &format!("/short/{row}/{name}")) > 0.0);
            assert!(number(&report, &format!("/rr/{row}/{name}")) > 0.0);
        }
        assert_eq!(
            number(&report, &format!("/short/{row}/causeway_failed")),
            0.0
        );
        assert_eq!(number(&report, &format!("/rr/{row}/causeway_failed")), 0.0);
    }
    for pointer in [
        "/kept_pct/1",
        "/result/more/kept/standard_error_pct/1",
        "/flap/p99_ms",
        "/flap/rounds/1/p99_ms",
        "/gbps/causeway",
        "/gbps/super_packet_tunnel",
        "/gbps/packet_tunnel",
        "/idle_rr_p50_us/causeway",
        "/idle_rr_p50_us/plain_tunnel",
    ] {
        assert!(number(&report, pointer) > 0.0, "{pointer}");
    }
    // Blocks by load, loss and carrier, and rounds of the other parts.
    assert_eq!(report["stolen"]["rounds"], 2 * 2 * 3 * 2 + 2 + 2 + 1);
    let discarded = report["result"]["more"]["stolen"]["discarded"].as_array();
    let discarded = discarded.expect("tries that do not count");
    assert_eq!(report["stolen"]["tries_again"], discarded.len());
    assert_eq!(report["stolen"]["played_again"], discarded.len());
    // Far from the target, so that a busy machine does not fail it; goodput would not show
    // that everything goes twice.
    assert!(number(&report, "/retransmit_pct_no_loss") < 5.0);
}

/// A path with ten times the others' RTT, a ring of one frame in front of the guest, Redis,
/// each with losses: every request is answered, and the tail is no longer than plain TCP's,
/// which waits a second for each SYN that is lost.
#[test]
fn a_tunnel_answers_everything_where_paths_are_bad() {
    let report = run(
        "bifrost",
        &[
            "seconds=0.5",
            "rate=200",
            "loss_pct=5",
            "carriers=plain,causeway",
            "parts=delay,place,redis",
            "cases=slow,ring_1,get",
            "replay_s=20",
        ],
    );
    let rows = |part: &str| report[part].as_array().cloned().expect("rows");
    let all: Vec<Value> = ["delay", "place", "redis"]
        .into_iter()
        .flat_map(rows)
        .collect();
    let loads: Vec<_> = all.iter().map(|row| (&row["case"], &row["load"])).collect();
    assert_eq!(
        json!(loads),
        json!([
            ["slow", "short"],
            ["slow", "rr"],
            ["ring_1", "short"],
            ["ring_1", "rr"],
            ["get", "redis"],
        ])
    );
    for row in &all {
        assert_eq!(row["causeway_requests"], 100, "{row}");
        assert_eq!(row["causeway_failed"], 0, "{row}");
    }
    let slow = &all[0];
    for other in ["/plain_p99_ms", "/plain_bad_p99_ms"] {
        assert!(
            number(slow, "/causeway_p99_ms") <= number(slow, other),
            "{slow}"
        );
    }
    let refused = number(&all[2], "/vnic_full") + number(&all[3], "/vnic_full");
    assert_eq!(refused, 0.0, "the guest's kernel took all frames");
}
