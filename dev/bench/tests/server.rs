// SPDX-License-Identifier: Apache-2.0
//! The benchmark of a server's programs runs, small: every segment goes the way that its case
//! measures. Needs root; fails without.

use causeway_bench::server::{ServerPlan, run};

#[test]
fn every_segment_goes_the_way_of_its_case() {
    let plan = ServerPlan::tiny();
    let rows = run(&plan).unwrap_or_else(|e| panic!("{e}"));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut expected = Vec::new();
    for &connections in &plan.connections {
        for cpus in 1..=cpus.min(2) as u32 {
            expected.extend(["cookie_out", "cookie_in"].map(|case| (case, connections, cpus)));
        }
    }
    let handshake = [
        "clients_syn",
        "clients_syn_ack",
        "clients_ack",
        "floor_clients_syn",
        "floor_clients_syn_ack",
        "floor_clients_ack",
    ];
    expected.extend(handshake.map(|case| (case, 0, 1)));
    let got: Vec<_> = rows
        .iter()
        .map(|row| (row.case, row.connections, row.cpus))
        .collect();
    assert_eq!(got, expected);
    for row in &rows {
        assert_eq!(row.rounds, plan.rounds);
        assert!(row.gross_ns > 0.0, "{row:?}");
    }
}
