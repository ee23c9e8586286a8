// SPDX-License-Identifier: Apache-2.0
//! Schedulers at work on a data plane in memory.

use std::io::Write as _;

use causeway_core::agent_report::{AgentReport, Body, Boot, ReportKeys, ServerLoad};
use causeway_dataplane::{LoadTerms, Pick};
use serde_json::json;

use super::engine::EngineError;
use super::loads::small;
use super::tests::{Bench, WEB, report_keys};
use crate::config;

fn bench(scheduler: &str) -> Bench {
    Bench::new(&WEB.replace("\"latency\"", scheduler))
}

/// Sets what the kernel counts as open on each real, and lets an interval pass in
/// which `opened` more came to each.
fn interval(bench: &mut Bench, open: [i64; 4], opened: u64) {
    for (real, open) in open.into_iter().enumerate() {
        let mut state = bench.plane.state();
        state.loads.insert(real as u32, open);
        state.totals.entry(real as u32).or_default().conns_opened += opened;
    }
    bench.run(1, &[]);
}

fn slots(bench: &Bench) -> [usize; 4] {
    let ring = bench.plane.state().rings[&0].clone();
    [0, 1, 2, 3].map(|real| ring.iter().filter(|id| **id == real).count())
}

#[test]
fn round_robin_is_a_ring_of_turns() {
    let bench = bench("\"round-robin\"");
    assert_eq!(bench.plane.state().picking[&0].pick, Pick::Turn);
    assert!(!bench.plane.state().picking[&0].count_load);
    assert_eq!(slots(&bench), [1; 4]);
}

#[test]
fn weights_are_turns_and_a_draining_real_has_none() {
    let text = WEB
        .replace("\"latency\"", "\"weighted-round-robin\"")
        .replace("\"10.0.0.2\"", "\"10.0.0.2\", weight = 5")
        .replace("\"10.0.0.4\"", "\"10.0.0.4\", drain = true");
    assert_eq!(slots(&Bench::new(&text)), [1, 5, 1, 0]);
    let equal = text.replace("weighted-", "");
    assert_eq!(slots(&Bench::new(&equal)), [1, 1, 1, 0]);
}

#[test]
fn connections_are_counted_in_the_data_plane() {
    let mut bench = bench("\"p2c\"");
    let picking = bench.plane.state().picking[&0];
    assert_eq!((picking.pick, picking.count_load), (Pick::Two, true));
    let terms = LoadTerms {
        rise: 1,
        fall: 1,
        weight: 1,
    };
    assert!((0..4).all(|real| bench.plane.state().terms[&real] == terms));
    // The end of some was not seen: 900 s take all but 1/e. Below 0 is set right.
    let interval_part = 1.0 - (-0.1_f64 / 900.0).exp();
    bench.plane.state().loads.insert(0, 90_000);
    for _ in 0..100 {
        bench.plane.state().loads.insert(1, -2);
        bench.run(1, &[]);
    }
    let left = 90_000.0 * (1.0 - interval_part).powi(100);
    assert!((bench.plane.state().loads[&0] as f64 - left).abs() < 2.0);
    assert_eq!(bench.plane.state().loads[&1], 0);
}

/// A server with thousands of long ones would look as idle as one with none.
#[test]
fn loads_are_no_fewer_than_the_flow_table_holds() {
    let mut bench = bench("\"p2c\"");
    bench.plane.state().open = Some([(0, 2_000), (1, 3)].into());
    {
        let mut state = bench.plane.state();
        state.loads.extend([(0, 40), (1, 3), (2, 9)]);
    }
    bench.run(1, &[]);
    let loads = |bench: &Bench| [0, 1, 2].map(|real| bench.plane.state().loads[&real]);
    assert_eq!(loads(&bench), [2_000, 3, 0]);
    let real = bench.plane.state().real("10.0.0.1");
    assert_eq!(bench.engine.active(real), 2_000);
    // Those of the time of a look may have come behind it.
    bench
        .plane
        .state()
        .totals
        .entry(0)
        .or_default()
        .conns_opened += 100;
    bench.plane.state().loads.insert(0, 2_100);
    bench.run(1, &[]);
    assert_eq!(
        (loads(&bench)[0], bench.engine.active(real)),
        (2_100, 2_100)
    );
    // Of a VIP with cookies the table has some.
    bench.plane.state().open = Some([(0, 50)].into());
    bench.run(1, &[]);
    assert_eq!(loads(&bench)[0], 50);
    let some = |vip: &mut crate::config::VipConfig| {
        vip.flow_table = false;
        Ok(())
    };
    bench.engine.change_vip("web", some).unwrap();
    bench.plane.state().loads.insert(0, 700);
    bench.run(1, &[]);
    assert_eq!(loads(&bench)[0], 700);
}

#[test]
fn other_loads_are_written_with_the_part_of_a_flow() {
    let mut bench = bench("\"p2c\"\nload = \"bytes\"");
    for _ in 0..20 {
        for real in 0..4 {
            let mut state = bench.plane.state();
            let totals = state.totals.entry(real).or_default();
            totals.bytes += 1000 * u64::from(real);
            totals.conns_opened += 1;
        }
        bench.run(1, &[]);
    }
    let state = bench.plane.state();
    // 1000 bytes in 100 ms are 10,000 a second, in thousandths.
    for real in 0..4 {
        let expected = 10_000_000 * i64::from(real);
        assert!(
            (state.loads[&real] - expected).abs() < 1000,
            "{:?}",
            state.loads
        );
    }
    // 60,000 bytes a second over 80 connections, less a few that aged.
    let rise = state.terms[&0].rise;
    assert!((740_000..760_000).contains(&rise), "{rise}");
    assert_eq!(state.terms[&0].fall, 0);
}

/// What the cells hold then is thousandths of bytes, or lacks what has been opened meanwhile.
#[test]
fn a_vip_that_begins_to_count_begins_with_what_is_open() {
    const BYTES: &str = "\"p2c\"\nload = \"bytes\"";
    let open = |bench: &mut Bench, connections: u64| {
        for real in 0..4 {
            let mut state = bench.plane.state();
            let totals = state.totals.entry(real).or_default();
            totals.bytes += 1000;
            totals.conns_opened += connections;
        }
        bench.run(1, &[]);
    };
    let change = |bench: &mut Bench, change: serde_json::Value| {
        let changed = bench.engine.change_vip("web", |vip| {
            *vip = config::changed_vip(vip, &change).map_err(EngineError::Invalid)?;
            Ok(())
        });
        changed.unwrap();
    };
    let loads = |bench: &Bench| [0, 1, 2, 3].map(|real| bench.plane.state().loads[&real]);
    // By a change, and by a start.
    let mut other = bench(BYTES);
    open(&mut other, 20);
    assert!(loads(&other).iter().all(|load| *load > 1_000_000));
    change(&mut other, json!({ "load": "connections" }));
    assert_eq!(loads(&other), [20; 4]);
    let mut other = bench(BYTES);
    open(&mut other, 20);
    let text = WEB.replace("\"latency\"", "\"p2c\"");
    let successor = Bench::on(other.plane.clone(), &text);
    assert_eq!(loads(&successor), [20; 4]);
    // Behind a time in which nothing was counted, nothing is taken off either.
    let mut counted = bench("\"p2c\"");
    open(&mut counted, 20);
    let fall = |bench: &Bench| bench.plane.state().terms[&0].fall;
    assert_eq!(fall(&counted), 1);
    change(&mut counted, json!({ "scheduler": "maglev" }));
    assert_eq!(fall(&counted), 0);
    let cells = [(0, 7), (1, -3)];
    counted.plane.state().loads.extend(cells);
    open(&mut counted, 30);
    change(&mut counted, json!({ "scheduler": "least-loaded" }));
    assert_eq!(fall(&counted), 1);
    assert_eq!(loads(&counted), [50; 4]);
    // What is counted stays.
    counted.plane.state().loads.insert(2, 0);
    change(&mut counted, json!({ "scheduler": "p2c" }));
    assert_eq!(loads(&counted), [50, 50, 0, 50]);
}

#[test]
fn large_weights_keep_their_ratio_in_small_numbers() {
    assert_eq!(small(vec![65_535, 1, 0]), [65_535, 1, 0]);
    // As configured, times what servers say, times the parts of a slow start.
    let largest = 65_535 * 1_000 * 10;
    assert_eq!(
        small(vec![largest, largest / 2, 1, 0]),
        [65_535, 32_768, 1, 0]
    );
}

/// The data plane multiplies a load by a weight in 64 bits.
#[test]
fn no_product_of_load_and_weight_overflows() {
    let text = WEB
        .replace("\"latency\"", "\"p2c\"\nload = \"bytes\"")
        .replace("\"10.0.0.2\"", "\"10.0.0.2\", weight = 65535")
        .replace("\"10.0.0.3\"", "\"10.0.0.3\", weight = 30000");
    let mut bench = Bench::new(&text);
    for real in 0..4 {
        let mut state = bench.plane.state();
        state.totals.entry(real).or_default().bytes += u64::MAX / 4;
        drop(state);
        bench.run(1, &[]);
    }
    let state = bench.plane.state();
    for (real, terms) in &state.terms {
        let product = |terms: &LoadTerms| {
            (state.loads[real] + i64::from(terms.rise)).checked_mul(i64::from(terms.weight))
        };
        assert!(
            state.terms.values().all(|of| product(of).is_some()),
            "{terms:?}"
        );
    }
    let weights: Vec<u32> = (0..4).map(|real| state.terms[&real].weight).collect();
    assert!(weights[0] >= 1 && weights[1] == 65535, "{weights:?}");
    assert!((29_900..30_100).contains(&weights[2]), "{weights:?}");
}

/// A VIP that goes by what agents report.
fn told(scheduler: &str, load: &str) -> (Bench, ReportKeys) {
    let digits = "7".repeat(32);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    write!(
        file,
        "current = 0\nkey0 = \"{digits}\"\nreports0 = \"{digits}\"\n"
    )
    .unwrap();
    let clients = format!(
        "[agent_reports]\nlisten = \"127.0.0.1:9472\"\nkeys = \"{}\"\n",
        file.path().display()
    );
    let words = format!("\"{scheduler}\"\nload = \"{load}\"");
    let vip = WEB.replace("\"latency\"", &words);
    (Bench::new(&(clients + &vip)), report_keys(&digits))
}

/// Agents report this of the four reals; `None`: nothing.
fn tell(bench: &Bench, keys: &ReportKeys, loads: [Option<(u32, u32)>; 4]) {
    for (n, load) in (1..).zip(loads) {
        let Some((cpu_milli, in_flight)) = load else {
            continue;
        };
        let now_ns = bench.now.monotonic_ns;
        let report = AgentReport {
            sender: [10, 0, 0, n].into(),
            boot: Boot { time_s: 1, id: 1 },
            sequence: now_ns,
            bodies: vec![Body::Load(ServerLoad {
                cpu_milli,
                in_flight,
            })],
        };
        bench.hear(&report, keys);
    }
}

#[test]
fn agents_tell_of_loads_and_who_is_silent_counts_as_average() {
    let (mut bench, keys) = told("p2c", "in-flight");
    tell(
        &bench,
        &keys,
        [Some((0, 9)), Some((0, 0)), Some((0, 3)), None],
    );
    bench.run(1, &[]);
    let loads = |bench: &Bench| [0, 1, 2, 3].map(|real| bench.plane.state().loads[&real]);
    assert_eq!(loads(&bench), [9000, 0, 3000, 4000]);
    // A report holds for a second; then that server is an average one, too.
    for _ in 0..11 {
        tell(&bench, &keys, [Some((0, 6)), Some((0, 2)), None, None]);
        bench.run(1, &[]);
    }
    assert_eq!(loads(&bench), [6000, 2000, 4000, 4000]);
    // By another key it is none.
    let other = report_keys(&"8".repeat(32));
    tell(&bench, &other, [Some((0, 60)); 4]);
    bench.run(1, &[]);
    assert_eq!(loads(&bench), [6000, 2000, 4000, 4000]);
    assert_eq!(bench.engine.reports().counts()["forged"], 4);
}

#[test]
fn busy_servers_get_fewer_turns_and_no_herd_runs_to_the_idle_one() {
    let (mut bench, keys) = told("awrr", "cpu");
    let busy = [
        Some((800, 0)),
        Some((400, 0)),
        Some((400, 0)),
        Some((400, 0)),
    ];
    tell(&bench, &keys, busy);
    bench.run(1, &[]);
    let [first, others @ ..] = slots(&bench);
    assert!(
        others.iter().all(|slots| *slots > first),
        "{first} {others:?}"
    );
    let (mut bench, keys) = told("least-loaded", "cpu");
    for real in 0..4 {
        let mut state = bench.plane.state();
        state.totals.entry(real).or_default().conns_opened += 25;
    }
    let idle = [Some((0, 0)), Some((500, 0)), Some((500, 0)), Some((500, 0))];
    tell(&bench, &keys, idle);
    bench.run(1, &[]);
    // 1.5 CPUs over 100 connections: the idle one is as busy as the others after 33.
    let ring = bench.plane.state().rings[&0].clone();
    let first = ring.iter().position(|real| *real != 0);
    assert!(first.is_some_and(|at| (25..45).contains(&at)), "{first:?}");
}

#[test]
fn awrr_gives_the_idle_more_turns() {
    let mut bench = bench("\"awrr\"");
    assert_eq!(slots(&bench), [1; 4]);
    interval(&mut bench, [0, 0, 0, 40], 0);
    // 10 L / (0.5 x 0 + 0.5 L) = 20, and 10 / (0.5 x 4 + 0.5) = 4.
    assert_eq!(slots(&bench), [5, 5, 5, 1]);
    interval(&mut bench, [10; 4], 0);
    assert_eq!(slots(&bench), [1; 4]);
}

#[test]
fn least_loaded_plans_ahead_and_begins_with_the_idle() {
    let mut bench = bench("\"least-loaded\"");
    interval(&mut bench, [0, 8, 8, 8], 10);
    let ring = bench.plane.state().rings[&0].clone();
    assert_eq!(ring[..8], [0; 8]);
    assert_eq!(ring.len(), 4 * 40);
    assert_eq!(bench.plane.state().turns[&0], 0);
    // From where all are level, they take turns.
    let [first, others @ ..] = slots(&bench);
    assert!(others.iter().all(|slots| (36..=40).contains(slots)) && first >= 44);
    // Nothing came and nothing changed: the plan stays.
    interval(&mut bench, [0; 4], 0);
    interval(&mut bench, [0; 4], 0);
    let swaps = bench.plane.state().ring_swaps;
    interval(&mut bench, [0; 4], 0);
    assert_eq!(bench.plane.state().ring_swaps, swaps);
}

#[test]
fn a_scheduler_is_changed_live_and_a_refusal_leaves_it() {
    let mut bench = bench("\"maglev\"");
    let change = |bench: &mut Bench, change: serde_json::Value| {
        bench.engine.change_vip("web", |vip| {
            *vip = config::changed_vip(vip, &change).map_err(EngineError::Invalid)?;
            Ok(())
        })
    };
    change(
        &mut bench,
        json!({ "scheduler": "awrr", "load": "packets" }),
    )
    .unwrap();
    assert_eq!(bench.plane.state().picking[&0].pick, Pick::Turn);
    assert_eq!(slots(&bench), [1; 4]);
    bench.plane.state().refuse_rings = 1;
    assert!(change(&mut bench, json!({ "scheduler": "hash" })).is_err());
    assert_eq!(bench.plane.state().picking[&0].pick, Pick::Turn);
    assert_eq!(slots(&bench), [1; 4]);
    change(&mut bench, json!({ "scheduler": "latency" })).unwrap();
    assert_eq!(bench.plane.state().picking[&0].pick, Pick::Turn);
    assert!(bench.engine.pools()[0].follows_latency());
    change(
        &mut bench,
        json!({ "scheduler": "hash", "flow_table": false }),
    )
    .unwrap();
    assert!(!bench.plane.state().picking[&0].remember);
    for (refused, expected) in [
        (
            json!({ "scheduler": "p2c" }),
            "p2c does not, use maglev or hash",
        ),
        (
            json!({ "load": "bytes" }),
            "`load` has no meaning with scheduler = \"hash\"",
        ),
        (json!({ "scheduler": "p3c" }), "did you mean `p2c`?"),
    ] {
        let error = change(&mut bench, refused).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// All that come would go to a server that has just been started.
#[test]
fn one_that_is_new_does_not_get_all_new_connections() {
    const CHECK: &str =
        "\"least-loaded\"\nhealth = { interval = \"1s\", timeout = \"500ms\", fall = 1, rise = 1 }";
    for (scheduler, waits) in [("\"least-loaded\"", false), (CHECK, true)] {
        let mut bench = bench(scheduler);
        let add = |vip: &mut crate::config::VipConfig| {
            let mut real = vip.reals[0].clone();
            real.address = "10.0.0.5".parse().unwrap();
            vip.reals.push(real);
            Ok(())
        };
        for _ in 0..3 {
            interval(&mut bench, [1_000; 4], 100);
        }
        bench.engine.change_vip("web", add).unwrap();
        interval(&mut bench, [1_000; 4], 100);
        let share = |bench: &Bench| bench.plane.state().share(0, 4);
        if waits {
            assert_eq!(share(&bench), 0.0, "no probe has succeeded");
            bench.now.monotonic_ns += 1_000_000_000;
            let now_ns = bench.now.monotonic_ns;
            let (orders, _) = bench.engine.poll_health(now_ns);
            for order in orders {
                let outcome = Ok("connected".to_owned());
                let engine = &mut bench.engine;
                engine.health_outcome(now_ns, order.real, order.number, outcome);
            }
        }
        // As many as make up a tenth of what the others have.
        let mut got = 0.0;
        for _ in 0..20 {
            let mut state = bench.plane.state();
            state.loads.insert(4, got as i64);
            drop(state);
            interval(&mut bench, [1_000; 4], 100);
            got += 400.0 * share(&bench);
        }
        assert!((50.0..=150.0).contains(&got), "{scheduler}: {got}");
        assert!(share(&bench) < 0.2, "{scheduler}: {}", share(&bench));
    }
}
