// SPDX-License-Identifier: Apache-2.0
//! The benchmark runs, small: every case gets the packets it should and every
//! packet the right verdict. Needs root; fails without.

use causeway_bench::dataplane::{BenchPlan, Grows, GrowthPlan, growth, kept, run};

#[test]
fn every_case_has_its_verdict_and_its_rows() {
    let plan = BenchPlan::tiny();
    // As at a million flows, of which a full benchmark reaches half. `run` fails where what
    // measures has measured nothing.
    assert!(plan.rounds * plan.batches * plan.batch < plan.flows[1]);
    let rows = run(&plan, |_| ()).unwrap_or_else(|e| panic!("{e}"));
    let cases = [
        ("empty", "XDP_TX"),
        ("empty_cookie", "XDP_TX"),
        ("empty_cookie_syn", "XDP_TX"),
        ("empty_conn_slot", "XDP_TX"),
        ("empty_syn", "XDP_TX"),
        ("empty_udp", "XDP_TX"),
        ("empty_cid", "XDP_TX"),
        ("macswap", "XDP_TX"),
        ("min", "XDP_TX"),
        ("tcp_established", "established"),
        ("tcp_established_measured", "established"),
        ("tcp_established_sampled", "established"),
        ("tcp_cookie", "established"),
        ("tcp_cookie_measured", "established"),
        ("tcp_cookie_sampled", "established"),
        ("tcp_cookie_syn", "opened"),
        ("tcp_cookie_syn_measured", "opened"),
        ("tcp_cookie_syn_sampled", "opened"),
        ("gue_cookie", "established"),
        ("tcp_conn_slot", "established"),
        ("tcp_conn_slot_measured", "established"),
        ("tcp_conn_slot_sampled", "established"),
        ("tcp_syn", "opened"),
        ("tcp_syn_sampled", "opened"),
        ("tcp_syn_unmeasured", "opened"),
        ("udp", "established"),
        ("udp_sampled", "established"),
        ("udp_unmeasured", "established"),
        ("quic_cid", "established"),
        ("quic_cid_sampled", "established"),
        ("quic_cid_unmeasured", "established"),
        ("hash", "established"),
        ("hash_table", "established"),
        ("hash_table_syn", "opened"),
        ("daisy", "established"),
        ("floor_cookie", "XDP_TX"),
        ("floor_cookie_sampled", "XDP_TX"),
        ("floor_cookie_measured", "XDP_TX"),
        ("floor_gue", "XDP_TX"),
        ("floor_table", "XDP_TX"),
        ("floor_table_measured", "XDP_TX"),
        ("floor_slot", "XDP_TX"),
        ("floor_slot_measured", "XDP_TX"),
        ("floor_udp", "XDP_TX"),
        ("floor_udp_measured", "XDP_TX"),
        ("floor_syn", "XDP_TX"),
        ("floor_cid", "XDP_TX"),
        ("pick_hash", "opened"),
        ("pick_turn", "opened"),
        ("pick_two", "opened"),
    ];
    let expected: Vec<_> = plan
        .flows
        .iter()
        .flat_map(|&flows| cases.map(|(case, verdict)| (case, flows, verdict)))
        .collect();
    let got: Vec<_> = rows
        .iter()
        .map(|row| (row.case, row.flows, row.verdict))
        .collect();
    assert_eq!(got, expected);
    for row in &rows {
        assert_eq!(row.rounds, plan.rounds);
        let sampled = row.case.ends_with("_sampled");
        assert_eq!(row.one_in > 1, sampled, "{row:?}");
        assert!(row.gross_ns > 0.0, "{row:?}");
        assert!(
            !row.case.starts_with("empty") || row.net_ns == 0.0,
            "{row:?}"
        );
    }
}

#[test]
fn a_flow_table_holds_the_flows_that_it_is_made_for() {
    // Fewer than one in a million is lost (docs/design/data-plane.md); of these, none.
    let flows = 100_000;
    let kept = kept(flows).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((kept.at_first, kept.after_change), (flows, flows));
}

#[test]
fn each_thing_that_grows_has_its_points() {
    let plan = GrowthPlan::tiny();
    let rows = growth(&plan, |_, _| ()).unwrap_or_else(|e| panic!("{e}"));
    let all = [
        "min",
        "tcp_established",
        "tcp_established_measured",
        "tcp_cookie",
    ];
    let mut expected = Vec::new();
    for (grows, counts) in [
        (Grows::Flows, &plan.flows),
        (Grows::Vips, &plan.vips),
        (Grows::Reals, &plan.reals),
    ] {
        for &count in counts {
            // One real: cookies would name others.
            let cases = if (grows, count) == (Grows::Reals, 1) {
                &all[..3]
            } else {
                &all
            };
            expected.extend(cases.iter().map(|case| (grows, count, *case)));
        }
    }
    let got: Vec<_> = rows
        .iter()
        .map(|of| (of.grows, of.count, of.row.case))
        .collect();
    assert_eq!(got, expected);
}
