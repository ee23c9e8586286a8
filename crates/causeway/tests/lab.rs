// SPDX-License-Identifier: Apache-2.0
//! The product on real traffic: each scenario of the lab, kept short. Needs
//! root, nginx and BPF; without them these tests fail.
#![cfg(feature = "lab")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// One scenario at a time: they measure time, and two cores are not much.
static MACHINE: Mutex<()> = Mutex::new(());

fn causeway() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_causeway"));
    command.stdin(Stdio::null());
    command
}

/// Runs a scenario and returns its whole report.
fn run(scenario: &str, params: &[&str]) -> Value {
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let file = tempfile::NamedTempFile::new().expect("result file");
    let mut command = causeway();
    command
        .args(["lab", "run", scenario, "--seed", "7", "--json"])
        .arg(file.path());
    for param in params {
        command.args(["--param", param]);
    }
    let output = command.output().expect("causeway runs");
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success(),
        "{scenario}: {}\n{messages}",
        output.status
    );
    println!("{messages}");
    let text = std::fs::read_to_string(file.path()).expect("result");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["scenario"], scenario);
    assert_eq!(report["seed"], 7);
    assert!(report["parameters"].is_object());
    report
}

fn number(report: &Value, pointer: &str) -> f64 {
    let value = report.pointer(pointer).and_then(Value::as_f64);
    value.unwrap_or_else(|| panic!("no number at {pointer}"))
}

#[test]
fn list_names_every_scenario() {
    let output = causeway()
        .args(["lab", "list"])
        .output()
        .expect("causeway runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let names: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split(' ').next())
        .collect();
    for name in [
        "accuracy",
        "paper",
        "control",
        "direct",
        "smoke",
        "takeover",
        "replace",
        "accuracy-web",
        "bifrost",
        "bifrost-faults",
        "bifrost-balancer",
        "degrade",
        "packet-cost",
        "agent-cost",
        "syn-flood",
        "cookie",
        "cookie-soak",
        "cookie-loss",
        "mptcp",
        "tiers",
        "quic-cid",
        "quic-smoke",
        "pcc-scale",
        "fct",
        "health",
        "rtt-explain",
        "rtt-peers",
        "certes",
        "certes-drops",
        "accept-queue",
        "client-latency",
    ] {
        assert!(names.contains(&name), "{name} is not in\n{text}");
    }
}

#[test]
fn unknown_words_fail_with_a_sentence() {
    for (arguments, expected) in [
        (&["nonsense"][..], "choose one of direct"),
        (&["direct", "--param", "nonsense=1"], "it has"),
        (&["direct", "--param", "slots=many"], "cannot be read"),
    ] {
        let output = causeway()
            .args(["lab", "run"])
            .args(arguments)
            .output()
            .expect("causeway runs");
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(expected), "{message}");
    }
}

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
    // A handshake that is under way when the balancer is swapped may be lost.
    assert!(broken("cookie-stateful") < 0.02, "{runs:?}");
    let stateful = runs.iter().find(|run| run["name"] == "cookie-stateful");
    let places = |key: &str| {
        stateful.map_or(-1.0, |run| {
            number(run, &format!("/places_of_last_balancer/{key}"))
        })
    };
    assert!(places("adopted") > 0.0 && places("ended") > 0.0, "{runs:?}");
    assert_eq!(places("open"), 0.0, "all ends were told: {runs:?}");
    let chain = runs.iter().find(|run| run["name"] == "daisy-chain");
    assert!(chain.is_some_and(|run| number(run, "/packets_passed_on") > 0.0));
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
    for case in ["measured", "unmeasured"] {
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

/// Estimate and truth come from one run, so a busy machine moves both.
#[test]
fn estimates_are_near_what_clients_measure() {
    let report = run("accuracy-web", &["seconds=6"]);
    let median = number(&report, "/result/error/median_pct");
    println!("median error {median} %");
    assert!(median < 5.0, "median error {median} %");
    assert!(number(&report, "/result/error/coverage") > 0.95);
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
            let epochs = real["epochs"].as_array().expect("epochs");
            epochs
                .last()
                .and_then(|e| e["weight"].as_f64())
                .expect("a weight")
        })
        .collect();
    let (slow, others) = weights.split_last().expect("servers");
    assert!(
        others.iter().all(|other| *other > 2.0 * slow),
        "the last server is eight times slower: weights {weights:?}"
    );
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

#[test]
fn the_agent_knows_what_clients_felt() {
    let runs = ["steady", "restart"];
    let chosen = format!("runs={}", runs.join(","));
    let report = run("certes", &[&chosen, "seconds=16", "warm_up_s=4"]);
    for (index, name) in runs.iter().enumerate() {
        let of = |key| number(&report, &format!("/runs/{index}/{key}"));
        assert_eq!(
            report.pointer(&format!("/runs/{index}/name")),
            Some(&json!(name))
        );
        assert!(of("syn_drop_pct") > 10.0, "the queue is too long: {report}");
        // Of the whole run, which has no edges, whoever was killed in the middle.
        let missing = of("all_exact_transactions") / of("all_transactions") - 1.0;
        assert!(missing.abs() < 0.01, "{report}");
        assert!(of("all_exact_error_pct").abs() < 2.0, "{report}");
        assert!(of("syn_to_end_error_pct") < -30.0, "{report}");
    }
}

/// The scenario compares every counter by itself.
#[test]
fn every_way_to_lose_an_attempt_is_counted() {
    run("certes-drops", &[]);
}

/// Ctrl-C ends a run at once, the way programs end by Ctrl-C, and nothing stays.
#[test]
fn interrupts_end_everything() {
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut child = causeway()
        .args(["lab", "run", "direct", "--param", "seconds=60"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("causeway runs");
    sleep(Duration::from_secs(2));
    assert!(
        child.try_wait().expect("wait").is_none(),
        "it ended by itself"
    );
    let start = Instant::now();
    let interrupt = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(interrupt.expect("kill").success());
    let status = child.wait().expect("wait");
    assert_eq!(status.signal(), Some(2), "{status}");
    assert!(start.elapsed() < Duration::from_secs(3));
}

/// The scenario compares both kinds of latency by itself.
#[test]
fn a_server_that_drops_syns_is_relieved_by_what_clients_feel() {
    let report = run("client-latency", &["seconds=6", "warm_up_s=6", "rate=420"]);
    let of = |run, key| number(&report, &format!("/runs/{run}/{key}"));
    assert!(of(1, "share") < of(0, "share"), "{report}");
    assert!(of(1, "felt_ms") < 0.5 * of(0, "felt_ms"), "{report}");
    assert!(of(1, "fallbacks_without_agent") > 0.0, "{report}");
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

#[test]
fn subflows_join_the_server_that_advertised_its_port() {
    let report = run("mptcp", &["connections=8"]);
    assert!(number(&report, "/result/advertised/joined") >= 8.0);
    assert_eq!(number(&report, "/result/advertised/lost"), 0.0);
    assert!(number(&report, "/result/scheduled/lost") > 0.0);
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

/// Both ways to encapsulate, over one path and through the tunnel, without loss and with.
/// The scenario fails where a request does, or where the tunnel carries what should go past
/// it, or nothing.
#[test]
fn a_tunnel_carries_a_balancers_packets_to_its_servers() {
    let report = run("bifrost-balancer", &["seconds=0.5", "rate=100"]);
    let runs = report["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 8);
    for run in runs {
        assert!(number(run, "/times/requests") >= 50.0, "{run}");
        let through = run["way"] == "tunnel";
        assert_eq!(number(run, "/frames_carried") > 100.0, through, "{run}");
    }
}

/// Figures of the paper in small: a curve of each kind, and a plot that can be opened.
#[test]
fn the_papers_figures_have_curves_and_plots() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = format!("out={}", dir.path().display());
    let report = run("paper", &["figures=5,10", "seconds=1", &out]);
    let figures = report["result"].as_array().expect("figures");
    let mut numbers: Vec<&str> = figures
        .iter()
        .filter_map(|f| f["number"].as_str())
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, ["10", "5a", "5b"]);
    for figure in figures {
        let curves = figure["curves"].as_array().expect("curves");
        assert!(curves.len() >= 3, "{figure}");
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
            "cases=slow,vnic_ring,get",
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
            ["vnic_ring", "short"],
            ["vnic_ring", "rr"],
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
    assert!(refused > 0.0, "the ring of one frame was never full");
}
