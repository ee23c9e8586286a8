// SPDX-License-Identifier: Apache-2.0
//! What is measured of responses, and what follows from it.

use serde_json::Value;

use super::{number, run, run_until};

/// Estimate and truth come from one run. The truth is the clients' own log, which says when a
/// client ran, so that where CPU is short single epochs differ either way: the whole run is held
/// closely, an epoch to what no estimator that fails would reach. `accuracy` measures epochs.
#[test]
fn estimates_are_near_what_clients_measure() {
    let report = run("accuracy-web", &["seconds=6"]);
    let error = |key| number(&report, &format!("/result/error/{key}"));
    let (bias, median) = (error("bias_pct"), error("median_pct"));
    let busy = number(&report, "/result/machine_cpu_share");
    println!("bias {bias} %, median error {median} %, machine {busy} busy");
    assert!(bias.abs() < 5.0, "bias {bias} %");
    assert!(
        median < 10.0,
        "median error {median} %, machine {busy} busy"
    );
    assert!(number(&report, "/result/error/coverage") > 0.95);
}

/// Every kind of timestamps, slow ones of the server too, and a delayed path, by two clients that are there anyway: rows
/// have their truths, from packets, and the product's figures beside them.
#[test]
fn everyday_clients_have_truths_and_estimates() {
    let small = ["clients=wrk,curl", "paths=20", "seconds=1", "ticks=1,10"];
    let all = |report: &Value| {
        let rows = |key: &str| report[key].as_array().expect("rows").clone();
        [rows("rows"), rows("slow_clock_rows")].concat()
    };
    let of = |report: &Value, source: &str| {
        let all = all(report).into_iter();
        let rows = all.filter(|row| row["source"] == source);
        rows.collect::<Vec<_>>()
    };
    // Without timestamps a pause cannot be distinguished from a response: such rows may be graded
    // low. So may one of a client that was slow to ask again, where CPU is short.
    let near = |report: &Value, timestamps: &str| {
        let rows = of(report, "request-side").into_iter();
        let mut covered = rows
            .filter(|row| row["timestamps"] == timestamps && row["tick_ms"] == 1)
            .filter(|row| number(row, "/coverage_pct") > 50.0)
            .peekable();
        covered.peek().is_some() && covered.all(|row| number(&row, "/median_error_pct") < 25.0)
    };
    // A row is a second long.
    let report = run_until("everyday", &small, |report| {
        let by_agent = of(report, "agent").iter().all(|row| {
            number(row, "/coverage_pct") > 90.0 && number(row, "/median_error_pct") < 10.0
        });
        by_agent && near(report, "on") && near(report, "cookie")
    });
    let slow = report["slow_clock_rows"].as_array().expect("rows");
    assert!(slow.iter().all(|row| row["tick_ms"] == 10), "{report}");
    let (rows, by_agent) = (of(&report, "request-side"), of(&report, "agent"));
    assert_eq!((rows.len(), by_agent.len()), (8, 8), "{report}");
    for row in &by_agent {
        // The path is in neither, but in the truth of the same run from requests. One request of
        // thirty may end behind the recording.
        let same = |of: &&Value| {
            let keys = ["client", "timestamps", "tick_ms"];
            keys.iter().all(|&key| of[key] == row[key])
        };
        let with_path = rows.iter().find(same).expect("a row of each source");
        let (truth, with_path) = (number(row, "/truth_us"), number(with_path, "/truth_us"));
        assert!(truth + 15_000.0 < with_path, "{row} {with_path}");
    }
    // Clients see no less than the packets do, but for one request of one row that its client did
    // not stay to see the end of, where the machine stood still.
    let unseen_us = |row: &Value| {
        let slower = 0.9 * number(row, "/truth_us") - number(row, "/client_us");
        slower * number(row, "/requests")
    };
    let unseen: Vec<f64> = rows.iter().map(unseen_us).collect();
    assert!(
        unseen.iter().filter(|&&us| us > 0.0).count() <= 1,
        "{report}"
    );
    assert!(unseen.iter().all(|&us| us < 1e6), "{report}");
    for row in &rows {
        assert_eq!(row["path_ms"], 20);
        // The path is in the truth.
        assert!(number(row, "/truth_us") > 20_000.0, "{row}");
        assert!(number(row, "/requests") >= 3.0, "{row}");
        let coverage = number(row, "/coverage_pct");
        assert!((0.0..=100.0).contains(&coverage), "{row}");
        if coverage > 0.0 {
            assert!(number(row, "/estimate_us") > 20_000.0, "{row}");
        }
    }
    assert!(
        report["grades"]["high_within_10_pct"].is_number(),
        "{report}"
    );
    // Nothing need be graded medium.
    assert!(report["grades"].get("medium_within_25_pct").is_some());
    let targets = &report["targets"];
    for kind in ["on", "cookie"] {
        assert_eq!(targets["easy"][kind]["one_in_flight"]["of"], 2, "{report}");
    }
    assert_eq!(targets["hard"]["graded"]["of"], 2, "{report}");
}

#[test]
fn the_latency_scheduler_leaves_the_slow_server() {
    let report = run("degrade", &["run_s=16", "degrade_at_s=5"]);
    let summary = |p: &str| number(&report, &format!("/result/summary/{p}"));
    assert_eq!(summary("baseline/broken_connections"), 0.0);
    assert_eq!(summary("latency_aware/broken_connections"), 0.0);
    println!("p99 fell by {} %", summary("p99_reduction_pct"));
    let reals = report.pointer("/result/outcome/latency_aware/reals");
    let reals = reals.and_then(Value::as_array).expect("reals");
    let weights: Vec<f64> = reals
        .iter()
        .map(|real| {
            let epochs = real["epochs"].as_array().expect("epochs").iter();
            // Of the last seconds: a single one may be of a standstill.
            let last = epochs.rev().filter_map(|e| e["weight"].as_f64()).take(6);
            let last: Vec<f64> = last.collect();
            assert!(!last.is_empty(), "a weight");
            last.iter().sum::<f64>() / last.len() as f64
        })
        .collect();
    let (slow, others) = weights.split_last().expect("servers");
    assert!(
        others.iter().all(|other| *other > 2.0 * slow),
        "the last server is eight times slower: weights {weights:?}"
    );
}

/// The evaluation of the controller in small, without what happens to single servers: the
/// keys that outside programs read. The figures are the machine's.
#[test]
fn the_evaluation_of_the_controller_has_its_figures() {
    let small = ["loads=45", "traces=1", "rounds=1", "seconds=4", "extras=0"];
    let report = run("control", &small);
    let load = &report["loads"][0];
    assert_eq!(number(load, "/load"), 0.45);
    for way in ["maglev", "paper", "causeway"] {
        assert!(number(load, &format!("/{way}_p99_ms/0")) > 0.0, "{load}");
    }
    assert_eq!(number(load, "/broken_connections"), 0.0);
    let ratio = number(&report, "/worst_p99_ratio");
    let cut = number(&report, "/p99_reduction_pct_mean");
    assert!((cut - 100.0 * (1.0 - ratio)).abs() < 1e-6, "{report}");
    // One run has no spread, and no server became slow.
    for key in ["spread_ratio", "reaction_ms", "noise_weight_deviation_pct"] {
        assert!(
            report.get(key).is_some_and(Value::is_null),
            "{key}: {report}"
        );
    }
}

/// Figures of the paper in small: a curve of each kind, and a plot that can be opened.
#[test]
fn the_papers_figures_have_curves_and_plots() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = format!("out={}", dir.path().display());
    let report = run("paper", &["figures=2,5,6,10", "seconds=1", &out]);
    let figures = report["result"].as_array().expect("figures");
    let mut numbers: Vec<&str> = figures
        .iter()
        .filter_map(|f| f["number"].as_str())
        .collect();
    numbers.sort_unstable();
    let expected = ["1", "10", "2", "5a", "5b", "6a", "6b", "6c", "6d"];
    assert_eq!(numbers, expected);
    for figure in figures {
        let curves = figure["curves"].as_array().expect("curves");
        assert!(curves.len() >= 3 || figure["number"] == "2", "{figure}");
        let rates = match figure["number"].as_str() {
            Some("6c") => 5,
            Some("6d") => 4,
            _ => 0,
        };
        for curve in curves {
            let points = curve["points"].as_array().map_or(0, Vec::len);
            assert_eq!(points, rates, "{figure}");
        }
        for curve in curves {
            let at = |share| number(curve, share);
            assert!(0.0 < at("/p10") && at("/p10") <= at("/p50"), "{figure}");
            assert!(
                at("/p50") <= at("/p90") && at("/p90") <= at("/p99"),
                "{figure}"
            );
        }
    }
    let plots = std::fs::read_dir(dir.path()).expect("plots");
    let plots: Vec<_> = plots.map(|entry| entry.expect("a plot").path()).collect();
    assert_eq!(plots.len(), figures.len(), "{plots:?}");
    for plot in plots {
        let text = std::fs::read_to_string(&plot).expect("a plot");
        assert!(
            text.starts_with("<svg") && text.trim_end().ends_with("</svg>"),
            "{plot:?}"
        );
    }
}

/// Algorithm 2's parameters on a recording that the accuracy matrix has kept: every workload has
/// its best setting, and each parameter its plot.
#[test]
fn algorithm_2_has_its_best_setting_and_what_each_parameter_does() {
    let dir = tempfile::tempdir().expect("a directory");
    let keep = format!("keep={}", dir.path().display());
    run("accuracy", &["workloads=w1", "seconds=1", &keep]);
    let recordings = format!("recordings={}", dir.path().display());
    let out = format!("out={}/plots", dir.path().display());
    let report = run("modes", &[&recordings, &out]);
    let swept = &report["result"];
    assert_eq!(swept["workloads"].as_array().map(Vec::len), Some(1));
    assert_eq!(swept["workloads"][0]["name"], "w1");
    let error = |of: &str| number(swept, &format!("/workloads/0/{of}/median_pct"));
    let published = error("best_published");
    assert!(published <= error("as_published"), "{swept}");
    assert!(
        error("best") <= published.min(error("as_shipped")),
        "{swept}"
    );
    // Of one workload the best is the best over all.
    assert_eq!(published, number(swept, "/workloads/0/one_published_pct"));
    let plots = std::fs::read_dir(dir.path().join("plots")).expect("plots");
    let drawn = swept["sensitivity"].as_array().expect("sensitivity");
    assert_eq!((plots.count(), drawn.len()), (6, 6));
    for of in drawn {
        assert!(
            of["means"]
                .as_array()
                .is_some_and(|points| points.len() >= 4),
            "{of}"
        );
    }
}

/// Paths with one fault each, and one with none. The scenario fails where a verdict is
/// wrong; here all of its cases must have been run.
#[test]
fn explain_names_the_fault_of_every_path() {
    let report = run("rtt-explain", &["seconds=1.5"]);
    let cases = report.pointer("/result/cases").and_then(Value::as_array);
    let cases = cases.expect("cases");
    let named: Vec<&str> = cases
        .iter()
        .flat_map(|case| case["verdicts"].as_array().expect("verdicts"))
        .filter_map(Value::as_str)
        .collect();
    for verdict in [
        "network-fine",
        "delayed-ack",
        "nagle",
        "slow-application",
        "loss",
        "tail-loss-probe",
        "icmp-rate-limit",
        "bufferbloat",
    ] {
        assert!(
            named.contains(&verdict),
            "no path shows {verdict}: {report}"
        );
    }
    assert!(cases.iter().all(|case| case["agree"] == true), "{report}");
}

/// Which is faster is for a quiet machine to say: here, that each program runs and is read,
/// and that what is compared is what was run.
#[test]
fn peers_of_rtt_are_run_and_read() {
    for (transport, peers) in [
        (
            "tcp",
            &["ping_pong_c", "sockperf", "causeway_again", "qperf"][..],
        ),
        ("udp", &["sockperf", "causeway_again", "qperf"]),
    ] {
        let wanted = format!("transport={transport}");
        let report = run("rtt-peers", &["rounds=1", "seconds=1", &wanted]);
        let result = &report["result"];
        let runs = report["runs"].as_object().expect("runs");
        assert_eq!(runs.len(), 1 + peers.len(), "{result}");
        for peer in ["causeway"].iter().chain(peers) {
            let run = &runs[*peer][0];
            assert!(number(run, "/mean_us") > 0.0 && number(run, "/rate") > 0.0);
            // qperf reports a mean alone.
            let tells = run["p50_us"].is_number();
            assert_eq!(tells, *peer != "qperf", "{run}");
            assert!(!tells || number(run, "/p50_us") <= number(run, "/p99_us"));
        }
        for peer in peers {
            let against = format!("/{peer}/ours_against_it/mean_us/median");
            assert!(result.pointer(&against).is_some_and(Value::is_number));
        }
        assert!(number(result, "/sampler/not_sampled_ns") > 0.0);
    }
}

/// How the curves lie is for a quiet machine to say: here, that every method measures at each
/// interval, that packets are lost where they are to be, and that each curve is judged.
#[test]
fn the_study_measures_by_every_method_and_judges_each_curve() {
    let parts = "parts=intervals,sizes,loss";
    let report = run("rtt-study", &["seconds=1", "rounds=1", parts]);
    let rows = |part: &str| {
        let rows = report["result"][part].as_array();
        rows.unwrap_or_else(|| panic!("no {part}: {report}"))
            .clone()
    };
    let intervals = rows("intervals");
    assert_eq!(intervals.len(), 10, "{report}");
    for row in &intervals {
        for method in ["rr_p50", "client_tcp_rtt", "server_tcp_rtt", "ping_p50"] {
            assert!(number(row, &format!("/{method}_us")) > 0.0, "{row}");
        }
    }
    let bytes = rows("sizes").into_iter();
    let bytes: Vec<f64> = bytes.map(|row| number(&row, "/request_bytes")).collect();
    assert_eq!(bytes, [1.0, 1409.0, 2818.0]);
    let lossy = rows("loss");
    let lost: Vec<&Value> = lossy.iter().map(|row| &row["lost"]).collect();
    assert_eq!(lost, ["requests", "requests", "responses"]);
    for row in &lossy {
        assert!(number(row, "/retransmitted") > 0.0, "{row}");
    }
    let verdicts = rows("verdicts");
    assert_eq!(verdicts.len(), 15, "{report}");
    assert!(verdicts.iter().all(|of| of["agree"].is_boolean()));
}
