// SPDX-License-Identifier: Apache-2.0
//! The reals' health in the engine, on a clock of the test's own.

use std::time::Duration;

use causeway_core::health::HealthState;
use causeway_dataplane::RealId;

use super::engine::Engine;
use super::interval::UDP_DOWN;
use super::report;
use super::state_dir::{Down, KeptState};
use super::tests::{Bench, MS, WEB, config};

const CHECK: &str =
    "min_healthy = 3\nhealth = { interval = \"1s\", timeout = \"500ms\", rise = 2, fall = 2 }";

fn text(scheduler: &str) -> String {
    WEB.replace(
        "scheduler = \"latency\"",
        &format!("scheduler = \"{scheduler}\"\n{CHECK}"),
    )
}

/// Lets this many probes of each real go out; those to `failing` fail, those to `silent` get no
/// answer.
fn probes(bench: &mut Bench, count: usize, failing: &[RealId], silent: &[RealId]) {
    for _ in 0..count * 20 {
        bench.now.monotonic_ns += 50 * MS;
        let now_ns = bench.now.monotonic_ns;
        let (orders, next_ns) = bench.engine.poll_health(now_ns);
        assert!(next_ns > now_ns && next_ns <= now_ns + 1000 * MS);
        for order in orders {
            assert_eq!(order.target, "192.0.2.1:80".parse().unwrap());
            let outcome = match failing.contains(&order.real) {
                true => Err("refused".to_owned()),
                false => Ok("connected".to_owned()),
            };
            if !silent.contains(&order.real) {
                let (real, number) = (order.real, order.number);
                bench.engine.health_outcome(now_ns, real, number, outcome);
            }
        }
    }
}

fn states(bench: &Bench) -> [HealthState; 4] {
    [0, 1, 2, 3].map(|real| bench.engine.check(real).unwrap().state())
}

fn shares(bench: &Bench) -> [f64; 4] {
    [0, 1, 2, 3].map(|real| (bench.plane.state().share(0, real) * 100.0).round() / 100.0)
}

/// Between a start, or a reload, and what the prober asks next.
#[test]
fn reals_that_are_yet_to_be_probed_are_unknown() {
    let bench = Bench::new(&text("maglev"));
    let vips = report::vips_of(&bench.engine, 0..1, report::Listed::All).unwrap();
    for real in &vips[0].reals {
        let health = real.health.as_ref().unwrap();
        assert_eq!((&*health.state, health.succeeded), ("unknown", 0));
    }
}

/// With many reals each outcome would look at all of them.
#[test]
fn an_outcome_that_changes_nothing_has_no_pool_looked_at() {
    let other = text("maglev")
        .replace("192.0.2.1", "192.0.2.2")
        .replace("\"web\"", "\"other\"");
    let mut bench = Bench::new(&[text("maglev"), other].concat());
    let mut rounds = |fails: bool| {
        let before = bench.plane.state().downs_set;
        let mut polls = 0;
        for _ in 0..3 * 20 {
            bench.now.monotonic_ns += 50 * MS;
            let now_ns = bench.now.monotonic_ns;
            let (orders, _) = bench.engine.poll_health(now_ns);
            polls += 1;
            for order in orders {
                let outcome = match fails && order.real == 5 {
                    true => Err("refused".to_owned()),
                    false => Ok("connected".to_owned()),
                };
                bench
                    .engine
                    .health_outcome(now_ns, order.real, order.number, outcome);
            }
        }
        let state = bench.plane.state();
        (state.downs_set - before - polls, state.share(1, 5) > 0.0)
    };
    // Reals that are found to be up change no ring.
    assert_eq!(rounds(false), (0, true));
    assert_eq!(rounds(true), (1, false));
    assert_eq!(rounds(false), (1, true));
}

/// What loads are compared with.
fn weights(bench: &Bench) -> [u32; 4] {
    let state = bench.plane.state();
    [0, 1, 2, 3].map(|real| state.terms[&real].weight)
}

fn up(bench: &Bench) -> usize {
    bench.engine.reals_up(&bench.engine.pools()[0])
}

#[test]
fn a_real_that_fails_leaves_the_ring_and_returns() {
    let mut bench = Bench::new(&text("maglev"));
    assert_eq!(bench.plane.state().probes_prepared, 1);
    assert_eq!(up(&bench), 0, "nobody has been probed yet");
    probes(&mut bench, 1, &[], &[]);
    assert_eq!((states(&bench), up(&bench)), ([HealthState::Unknown; 4], 0));
    assert_eq!(shares(&bench), [0.25; 4], "who is not known takes part");
    probes(&mut bench, 1, &[], &[]);
    assert_eq!((states(&bench), up(&bench)), ([HealthState::Up; 4], 4));
    // One refuses, one says nothing at all.
    probes(&mut bench, 3, &[1], &[2]);
    assert_eq!(
        states(&bench),
        [
            HealthState::Up,
            HealthState::Down,
            HealthState::Down,
            HealthState::Up
        ]
    );
    assert_eq!(shares(&bench), [0.5, 0.0, 0.0, 0.5]);
    assert_eq!(bench.engine.check(1).unwrap().reason(), "refused");
    assert_eq!(
        bench.engine.check(2).unwrap().reason(),
        "no answer within 500 ms"
    );
    assert_eq!(up(&bench), 2);
    probes(&mut bench, 2, &[], &[]);
    assert_eq!(shares(&bench), [0.45, 0.05, 0.05, 0.45]);
    bench.run(300, &[]);
    assert_eq!(shares(&bench), [0.25; 4]);
}

/// Every tenth of the time another tenth of the weight, and never more than that.
#[test]
fn a_real_that_returns_gets_its_weight_back_in_tenths() {
    for scheduler in ["maglev", "weighted-round-robin", "latency"] {
        let mut bench = Bench::new(&text(scheduler));
        bench.run(20, &[5.0; 4]);
        probes(&mut bench, 3, &[0], &[]);
        assert_eq!(shares(&bench)[0], 0.0);
        probes(&mut bench, 2, &[], &[]);
        let share = |bench: &Bench| bench.plane.state().share(0, 0);
        let of_tenths = |tenths: f64| tenths / (30.0 + tenths);
        for tenth in 1..=10 {
            let expected = of_tenths(f64::from(tenth));
            let found = share(&bench);
            assert!(
                (found - expected).abs() < 0.01,
                "{scheduler}: {tenth}: {found}"
            );
            let left_s = bench.engine.pools()[0].members().next().unwrap().1.warms_ns as f64 / 1e9;
            assert!(
                (left_s - 3.0 * f64::from(11 - tenth)).abs() < 0.01,
                "{left_s}"
            );
            bench.run(30, &[5.0; 4]);
        }
        assert!((share(&bench) - 0.25).abs() < 0.01, "{scheduler}");
    }
}

#[test]
fn loads_are_compared_with_the_weight_that_a_real_has_so_far() {
    let mut bench = Bench::new(&text("p2c"));
    assert_eq!(weights(&bench), [1; 4]);
    probes(&mut bench, 3, &[0], &[]);
    probes(&mut bench, 2, &[], &[]);
    assert_eq!(weights(&bench), [1, 10, 10, 10]);
    bench.run(150, &[]);
    assert_eq!(weights(&bench), [6, 10, 10, 10]);
    bench.run(150, &[]);
    assert_eq!(weights(&bench), [1; 4]);
}

/// The one that never left would have most of the load for half a minute.
#[test]
fn if_most_return_they_have_their_weight_at_once() {
    let mut bench = Bench::new(&text("maglev"));
    probes(&mut bench, 3, &[0, 1, 2], &[]);
    assert_eq!(shares(&bench), [0.0, 0.0, 0.0, 1.0]);
    probes(&mut bench, 2, &[], &[]);
    assert_eq!(shares(&bench), [0.25; 4]);
}

#[test]
fn who_has_the_whole_weight_as_most_return_keeps_it() {
    let mut bench = Bench::new(&text("maglev"));
    probes(&mut bench, 3, &[0, 1, 2], &[]);
    // One of two is not most of them, two of three are.
    probes(&mut bench, 2, &[1, 2], &[]);
    assert_eq!(shares(&bench), [0.09, 0.0, 0.0, 0.91]);
    bench.run(130, &[]);
    probes(&mut bench, 2, &[2], &[]);
    let weights = |bench: &Bench| {
        let members = bench.engine.pools[0].members();
        members.map(|(_, member)| member.weight).collect::<Vec<_>>()
    };
    assert_eq!(weights(&bench), [1.0, 1.0, 0.0, 1.0]);
    for second in 0..40 {
        if second == 10 {
            let other = text("maglev").replace("min_healthy = 3", "min_healthy = 2");
            bench.engine.reload(config(&other)).unwrap();
        }
        bench.run(10, &[]);
        assert_eq!(weights(&bench), [1.0, 1.0, 0.0, 1.0], "{second} s");
    }
    // The next return is one of one.
    probes(&mut bench, 3, &[1, 2], &[]);
    probes(&mut bench, 2, &[2], &[]);
    assert_eq!(weights(&bench), [1.0, 0.1, 0.0, 1.0]);
}

#[test]
fn without_slow_start_a_real_returns_at_once() {
    let at_once = text("maglev").replace("min_healthy = 3", "min_healthy = 3\nslow_start = \"0s\"");
    let mut bench = Bench::new(&at_once);
    probes(&mut bench, 3, &[0], &[]);
    assert_eq!(shares(&bench)[0], 0.0);
    probes(&mut bench, 2, &[], &[]);
    assert_eq!(shares(&bench), [0.25; 4]);
}

#[test]
fn reals_stay_as_they_are_while_this_host_cannot_probe() {
    let mut bench = Bench::new(&text("maglev"));
    probes(&mut bench, 3, &[1], &[]);
    let before = (states(&bench), shares(&bench));
    let amiss = |bench: &Bench| {
        let vips = report::vips_of(&bench.engine, 0..1, report::Listed::Amiss).unwrap();
        vips[0].reals.len()
    };
    assert_eq!(amiss(&bench), 1, "the one that is down");
    for _ in 0..200 {
        bench.now.monotonic_ns += 50 * MS;
        let (orders, _) = bench.engine.poll_health(bench.now.monotonic_ns);
        for order in orders {
            let number = order.number;
            bench.engine.probe_unsent(order.real, number, "no port");
        }
    }
    assert_eq!((states(&bench), shares(&bench)), before);
    for real in [0, 1] {
        let reason = bench.engine.check(real).unwrap().reason();
        assert_eq!(reason, "this host could not send it: no port");
    }
    assert_eq!(amiss(&bench), 4, "`causeway status` is to tell of them");
    probes(&mut bench, 3, &[], &[]);
    assert_eq!((states(&bench), amiss(&bench)), ([HealthState::Up; 4], 0));
}

/// A successor over the same data plane.
fn restart(bench: &mut Bench, text: &str, kept: KeptState) {
    let plane = Box::new(bench.plane.clone());
    bench.engine = Engine::succeed(plane, config(text), kept, None, bench.now).unwrap();
}

#[test]
fn who_was_down_is_down_after_a_restart_until_probes_succeed() {
    for (scheduler, by_ring) in [
        ("maglev", true),
        ("latency", true),
        ("round-robin", true),
        ("p2c", true),
        ("least-loaded", false),
        ("awrr", false),
    ] {
        let mut bench = Bench::new(&text(scheduler));
        probes(&mut bench, 3, &[2], &[]);
        assert_eq!(states(&bench)[2], HealthState::Down);
        // The ring shows it, but for rings that leave out reals with much load.
        let kept = match by_ring {
            true => KeptState::default(),
            false => bench.engine.kept(),
        };
        let more = text(scheduler).replace(
            "{ address = \"10.0.0.4\" }",
            "{ address = \"10.0.0.4\" }, { address = \"10.0.0.5\" }",
        );
        restart(&mut bench, &more, kept);
        let vips = report::vips_of(&bench.engine, 0..1, report::Listed::All).unwrap();
        let told = vips[0]
            .reals
            .iter()
            .map(|real| &*real.health.as_ref().unwrap().state);
        let told: Vec<_> = told.collect();
        assert_eq!(
            told,
            ["unknown", "unknown", "down", "unknown", "unknown"],
            "{scheduler}"
        );
        assert_eq!(shares(&bench)[2], 0.0, "{scheduler}");
        probes(&mut bench, 1, &[], &[]);
        assert_eq!(states(&bench)[2], HealthState::Down, "{scheduler}");
        assert_eq!(shares(&bench)[2], 0.0, "{scheduler}");
        let check = |real| bench.engine.check(real).unwrap();
        assert_eq!(check(4).state(), HealthState::Unknown, "it is new");
        assert!(bench.plane.state().share(0, 4) > 0.0, "{scheduler}");
        probes(&mut bench, 1, &[], &[]);
        assert_eq!(states(&bench)[2], HealthState::Up, "{scheduler}");
        assert!(shares(&bench)[2] > 0.0, "{scheduler}");
    }
}

/// The state is written before the first probe: a crash behind that would have it forgotten.
#[test]
fn who_was_down_stays_so_in_what_is_kept_before_it_is_probed() {
    let text = text("least-loaded");
    let mut bench = Bench::new(&text);
    probes(&mut bench, 3, &[2], &[]);
    let kept = bench.engine.kept();
    assert_eq!(kept.down.len(), 1);
    restart(&mut bench, &text, kept.clone());
    assert_eq!(bench.engine.kept().down, kept.down);
    probes(&mut bench, 2, &[], &[]);
    assert!(bench.engine.kept().down.is_empty());
}

#[test]
fn a_restart_takes_nobody_for_down_of_whom_nothing_is_known() {
    // All were down, so that all were tried.
    let mut bench = Bench::new(&text("maglev"));
    probes(&mut bench, 3, &[0, 1, 2, 3], &[]);
    restart(&mut bench, &text("maglev"), KeptState::default());
    probes(&mut bench, 1, &[], &[]);
    assert_eq!(
        (states(&bench), shares(&bench)),
        ([HealthState::Unknown; 4], [0.25; 4])
    );
    // Without probes it would never come back.
    let mut bench = Bench::new(&text("maglev"));
    probes(&mut bench, 3, &[1], &[]);
    let kept = bench.engine.kept();
    restart(&mut bench, &text("maglev").replace(CHECK, ""), kept);
    assert_eq!(shares(&bench), [0.25; 4]);
}

#[test]
fn if_all_fail_all_are_tried() {
    let mut bench = Bench::new(&text("round-robin"));
    probes(&mut bench, 2, &[0, 1, 2], &[]);
    assert_eq!(shares(&bench), [0.0, 0.0, 0.0, 1.0]);
    probes(&mut bench, 2, &[0, 1, 2, 3], &[]);
    assert_eq!((shares(&bench), up(&bench)), ([0.25; 4], 0));
    probes(&mut bench, 2, &[0, 1, 2], &[]);
    assert_eq!(shares(&bench), [0.0, 0.0, 0.0, 1.0]);
}

/// The reals that an interval has UDP flows leave.
fn left_by_flows(bench: &mut Bench) -> Vec<RealId> {
    let left = left_after(bench).into_iter();
    left.map(|(real, _)| real).collect()
}

/// The same, and after what time.
fn left_after(bench: &mut Bench) -> Vec<(RealId, Option<Duration>)> {
    bench.run(1, &[]);
    let state = bench.plane.state();
    state.swept.last().unwrap().1.clone()
}

#[test]
fn udp_flows_are_to_leave_a_real_that_is_down_while_another_is_up() {
    let mut bench = Bench::new(&text("maglev"));
    assert!(
        left_by_flows(&mut bench).is_empty(),
        "who is not known takes part"
    );
    probes(&mut bench, 3, &[1, 2], &[]);
    assert_eq!(left_by_flows(&mut bench), [1, 2]);
    probes(&mut bench, 3, &[0, 1, 2, 3], &[]);
    assert!(left_by_flows(&mut bench).is_empty(), "all are tried");
    probes(&mut bench, 3, &[0, 1, 2], &[]);
    assert_eq!(left_by_flows(&mut bench), [0, 1, 2]);
    let drain = |vip: &mut crate::config::VipConfig| {
        vip.reals[3].drain = true;
        Ok(())
    };
    bench.engine.change_vip("web", drain).unwrap();
    assert_eq!(
        left_by_flows(&mut bench),
        [3],
        "the one that is up takes none"
    );
    probes(&mut bench, 3, &[1], &[]);
    assert_eq!(
        left_after(&mut bench),
        [(1, Some(UDP_DOWN)), (3, None)],
        "a drain without `udp_drain` lasts as long as its flows"
    );
    let sooner = text("maglev") + "\n[flow_table]\nudp_drain = \"3s\"";
    bench.engine.reload(config(&sooner)).unwrap();
    let after = Some(Duration::from_secs(3));
    assert_eq!(left_after(&mut bench), [(1, after)]);
}

#[test]
fn a_real_that_is_for_some_clients_alone_takes_no_flows_of_those_that_are_down() {
    let source =
        "source = [{ from = [\"10.1.0.0/16\"], reals = [\"10.0.0.4\"], exclusive = true }]";
    let mut bench = Bench::new(&(text("maglev") + source));
    probes(&mut bench, 3, &[0, 1, 2], &[]);
    assert!(left_by_flows(&mut bench).is_empty());
    probes(&mut bench, 3, &[0, 1], &[]);
    assert_eq!(left_by_flows(&mut bench), [0, 1]);
}

#[test]
fn a_real_that_has_the_id_of_one_that_is_gone_has_a_check_of_its_own() {
    let mut bench = Bench::new(&text("maglev"));
    probes(&mut bench, 3, &[3], &[]);
    assert_eq!(states(&bench)[3], HealthState::Down);
    // A probe of the former one is out.
    bench.now.monotonic_ns += 1000 * MS;
    let now_ns = bench.now.monotonic_ns;
    let of_fourth = |orders: Vec<super::health::ProbeOrder>| {
        let mut orders = orders.into_iter();
        orders.find(|order| order.real == 3).expect("a probe")
    };
    let former = of_fourth(bench.engine.poll_health(now_ns).0);
    bench.give_last_id_to_another();
    bench.engine.apply_health();
    assert_eq!(state_of(&bench, 3), "waiting");
    let first = of_fourth(bench.engine.poll_health(now_ns).0);
    let mut answer = |number: u64| {
        let outcome = Ok("connected".to_owned());
        bench.engine.health_outcome(now_ns, 3, number, outcome);
        state_of(&bench, 3)
    };
    assert_eq!(answer(former.number), "waiting");
    assert_eq!(answer(first.number), "active");
}

#[test]
fn health_outlives_a_reload_and_ends_with_its_key() {
    let mut bench = Bench::new(&text("maglev"));
    probes(&mut bench, 3, &[3], &[]);
    assert_eq!(states(&bench)[3], HealthState::Down);
    let heavier = text("maglev").replace("\"10.0.0.1\"", "\"10.0.0.1\", weight = 2");
    bench.engine.reload(config(&heavier)).unwrap();
    assert_eq!(states(&bench)[3], HealthState::Down);
    assert_eq!(shares(&bench), [0.5, 0.25, 0.25, 0.0]);
    bench
        .engine
        .reload(config(&heavier.replace(CHECK, "")))
        .unwrap();
    bench.now.monotonic_ns += MS;
    let (orders, _) = bench.engine.poll_health(bench.now.monotonic_ns);
    assert!(orders.is_empty() && bench.engine.check(3).is_none());
    assert_eq!(shares(&bench), [0.49, 0.24, 0.24, 0.02]);
    bench.run(300, &[]);
    assert_eq!(shares(&bench), [0.4, 0.2, 0.2, 0.2]);
}

#[test]
fn who_is_under_maintenance_is_not_probed() {
    let mut bench = Bench::new(&text("maglev"));
    probes(&mut bench, 2, &[], &[]);
    let maintenance = |on| {
        move |vip: &mut crate::config::VipConfig| {
            vip.reals[1].maintenance = on;
            Ok(())
        }
    };
    bench.engine.change_vip("web", maintenance(true)).unwrap();
    probes(&mut bench, 3, &[1], &[]);
    assert!(bench.engine.check(1).is_none());
    assert_eq!((up(&bench), shares(&bench)[1]), (3, 0.0));
    bench.engine.change_vip("web", maintenance(false)).unwrap();
    assert_eq!(shares(&bench)[1], 0.0);
    probes(&mut bench, 1, &[], &[]);
    assert_eq!(shares(&bench)[1], 0.03);
    // A change of something else leaves it where it is.
    bench.run(150, &[]);
    let drain = |vip: &mut crate::config::VipConfig| {
        vip.reals[3].weight = 2;
        Ok(())
    };
    bench.engine.change_vip("web", drain).unwrap();
    assert_eq!(shares(&bench)[1], 0.13);
    bench.run(150, &[]);
    assert_eq!(shares(&bench), [0.2, 0.2, 0.2, 0.4]);
    probes(&mut bench, 2, &[], &[]);
    assert_eq!(up(&bench), 4);
}

#[test]
fn the_controller_gives_a_real_that_is_down_nothing() {
    let mut bench = Bench::new(&text("latency"));
    bench.run(5, &[5.0; 4]);
    probes(&mut bench, 3, &[0], &[]);
    assert_eq!(shares(&bench)[0], 0.0);
    bench.run(5, &[5.0; 4]);
    assert_eq!(shares(&bench)[0], 0.0);
    let decision = bench.engine.pools()[0].decision().unwrap();
    assert_eq!(decision.reals[0].reason.word(), "drained");
    probes(&mut bench, 2, &[], &[]);
    bench.run(300, &[5.0; 4]);
    assert!(shares(&bench)[0] > 0.2, "{:?}", shares(&bench));
}

#[test]
fn least_loaded_and_awrr_leave_out_who_is_down() {
    for scheduler in ["least-loaded", "awrr"] {
        let mut bench = Bench::new(&text(scheduler));
        probes(&mut bench, 3, &[2], &[]);
        bench
            .plane
            .state()
            .totals
            .entry(0)
            .or_default()
            .conns_opened += 10;
        bench.run(1, &[]);
        let shares = shares(&bench);
        assert!(
            shares[2] == 0.0 && shares[1] > 0.3,
            "{scheduler}: {shares:?}"
        );
    }
}

fn with_roles(roles: [&str; 4]) -> String {
    let mut text = text("maglev").replace("min_healthy = 3", "min_healthy = 1");
    for (at, role) in roles.into_iter().enumerate() {
        let address = format!("\"10.0.0.{}\"", at + 1);
        text = text.replace(&address, &format!("{address}, role = \"{role}\""));
    }
    text
}

#[test]
fn backups_serve_when_no_primary_does_and_a_sorry_server_when_none() {
    let roles = with_roles(["primary", "primary", "backup", "sorry"]);
    let mut bench = Bench::new(&roles);
    let standby = |bench: &Bench| -> Vec<bool> {
        let members = bench.engine.pools()[0].members();
        members.map(|(_, member)| member.standby).collect()
    };
    assert_eq!(
        shares(&bench),
        [0.5, 0.5, 0.0, 0.0],
        "from the first ring on"
    );
    assert_eq!(standby(&bench), [false, false, true, true]);
    probes(&mut bench, 3, &[0], &[]);
    assert!(
        bench.engine.check(3).is_none(),
        "a sorry server is not probed"
    );
    assert_eq!((shares(&bench), up(&bench)), ([0.0, 1.0, 0.0, 0.0], 2));
    probes(&mut bench, 3, &[0, 1], &[]);
    assert_eq!((shares(&bench), up(&bench)), ([0.0, 0.0, 1.0, 0.0], 1));
    assert_eq!(standby(&bench), [false, false, false, true]);
    probes(&mut bench, 3, &[0, 1, 2], &[]);
    assert_eq!((shares(&bench), up(&bench)), ([0.0, 0.0, 0.0, 1.0], 0));
    // The one that returns has all, and at once: there is no other.
    probes(&mut bench, 3, &[0, 2], &[]);
    assert_eq!(shares(&bench), [0.0, 1.0, 0.0, 0.0]);
    // An operator who drains all primaries wants the backups to serve.
    probes(&mut bench, 3, &[], &[]);
    let drain = |vip: &mut crate::config::VipConfig| {
        (vip.reals[0].drain, vip.reals[1].maintenance) = (true, true);
        Ok(())
    };
    bench.engine.change_vip("web", drain).unwrap();
    assert_eq!(shares(&bench), [0.0, 0.0, 1.0, 0.0]);
}

#[test]
fn without_a_sorry_server_all_primaries_are_tried_and_no_backup() {
    let roles = with_roles(["primary", "primary", "backup", "backup"]);
    let mut bench = Bench::new(&roles);
    probes(&mut bench, 3, &[0, 1, 2, 3], &[]);
    assert_eq!((shares(&bench), up(&bench)), ([0.5, 0.5, 0.0, 0.0], 0));
}

#[test]
fn a_restart_knows_who_was_down_and_who_waited() {
    let roles = with_roles(["primary", "primary", "backup", "sorry"]);
    for (failing, shares_before) in [
        (&[0][..], [0.0, 1.0, 0.0, 0.0]),
        (&[0, 1], [0.0, 0.0, 1.0, 0.0]),
        (&[0, 1, 2], [0.0, 0.0, 0.0, 1.0]),
    ] {
        let mut bench = Bench::new(&roles);
        probes(&mut bench, 3, failing, &[]);
        assert_eq!(shares(&bench), shares_before);
        restart(&mut bench, &roles, KeptState::default());
        assert_eq!(shares(&bench), shares_before);
        probes(&mut bench, 1, failing, &[]);
        assert_eq!(shares(&bench), shares_before);
        for real in 0..3 {
            let state = bench.engine.check(real).unwrap().state();
            assert_eq!(
                state == HealthState::Down,
                failing.contains(&real),
                "{real}"
            );
        }
    }
}

#[test]
fn a_controller_follows_latency_among_those_that_serve() {
    let roles = with_roles(["primary", "primary", "backup", "backup"]).replace("maglev", "latency");
    let mut bench = Bench::new(&roles);
    bench.run(5, &[5.0; 4]);
    assert_eq!(shares(&bench), [0.5, 0.5, 0.0, 0.0]);
    restart(&mut bench, &roles, KeptState::default());
    assert_eq!(shares(&bench), [0.5, 0.5, 0.0, 0.0]);
    probes(&mut bench, 3, &[0, 1], &[]);
    bench.run(5, &[5.0; 4]);
    assert_eq!(shares(&bench), [0.0, 0.0, 0.5, 0.5]);
}

#[test]
fn a_vip_has_someone_who_does_not_wait() {
    let roles = with_roles(["backup", "backup", "sorry", "backup"]);
    let text = format!("interface = \"eth0\"\n{roles}");
    let parsed = crate::config::BalancerConfig::parse(std::path::Path::new("lb.toml"), &text);
    let faults = parsed.unwrap_err().faults;
    assert!(
        faults[0]
            .message
            .contains("none but backup and sorry servers")
    );
    // A VIP with a sorry server is there when all others are down.
    let roles = with_roles(["primary", "primary", "primary", "sorry"]);
    let without = config(&roles.replace("min_healthy = 1\n", ""));
    assert_eq!(without.vips[0].min_healthy, 0);
}

/// A VIP whose reals say which weights they should have.
fn taking_weights(scheduler: &str) -> String {
    text(scheduler).replace(
        "health = {",
        "health = { probe = \"http\", to = \"real\", port = 30256, take_weight = true,",
    )
}

#[test]
fn loads_are_compared_with_the_weights_that_reals_say() {
    let mut bench = Bench::new(&taking_weights("p2c"));
    assert_eq!(weights(&bench), [1; 4]);
    for (real, told) in [(0, Some(5)), (1, Some(3)), (2, Some(2)), (3, Some(0))] {
        bench.engine.handle_weight(real, told);
    }
    assert_eq!(shares(&bench), [0.5, 0.3, 0.2, 0.0]);
    assert_eq!(weights(&bench), [5, 3, 2, 0]);
    bench.engine.handle_weight(0, None);
    assert_eq!(weights(&bench), [1, 3, 2, 0]);
}

/// 65,535 times 1000 is 15 times what the ring's unit has room for.
#[test]
fn the_highest_weights_that_reals_are_given_and_say_are_told_apart() {
    for scheduler in ["maglev", "weighted-round-robin"] {
        let heavy = taking_weights(scheduler).replace("\" }", "\", weight = 65535 }");
        let mut bench = Bench::new(&heavy);
        assert_eq!(shares(&bench), [0.25; 4], "{scheduler}");
        for (real, told) in [(0, 1000), (1, 600), (2, 300), (3, 100)] {
            bench.engine.handle_weight(real, Some(told));
        }
        assert_eq!(shares(&bench), [0.5, 0.3, 0.15, 0.05], "{scheduler}");
    }
}

#[test]
fn reals_have_the_weights_that_they_say() {
    for scheduler in ["maglev", "latency"] {
        let takes = taking_weights(scheduler);
        let mut bench = Bench::new(&takes);
        bench.now.monotonic_ns += 1000 * MS;
        let (orders, _) = bench.engine.poll_health(bench.now.monotonic_ns);
        let targets: Vec<String> = orders.iter().map(|of| of.target.to_string()).collect();
        assert_eq!(targets[0], "10.0.0.1:30256", "the node's own address");
        for (real, told) in [(0, Some(5)), (1, Some(3)), (2, Some(2)), (3, Some(0))] {
            bench.engine.handle_weight(real, told);
        }
        assert_eq!(shares(&bench), [0.5, 0.3, 0.2, 0.0], "{scheduler}");
        let state = |bench: &Bench| {
            let view = super::report::vips_of(&bench.engine, 0..1, super::report::Listed::All)
                .unwrap()
                .swap_remove(0);
            let real = &view.reals[3];
            (real.state.clone(), real.health.as_ref().unwrap().weight)
        };
        assert_eq!(state(&bench), ("active".to_owned(), Some(0)));
        // A reload knows what was said.
        let more = takes.replace("min_healthy = 3", "min_healthy = 2");
        bench.engine.reload(config(&more)).unwrap();
        assert_eq!(shares(&bench), [0.5, 0.3, 0.2, 0.0], "{scheduler}");
        for (real, told) in [(0, Some(0)), (1, Some(0)), (2, Some(0))] {
            bench.engine.handle_weight(real, told);
        }
        assert_eq!(shares(&bench), [0.25; 4], "{scheduler}: somebody has to");
        bench.engine.handle_weight(0, None);
        assert_eq!(shares(&bench), [1.0, 0.0, 0.0, 0.0], "{scheduler}");
        bench.engine.reload(config(&text(scheduler))).unwrap();
        assert_eq!(shares(&bench), [0.25; 4], "{scheduler}: nobody is asked");
    }
}

/// What a weight in force is to be compared with: of a real that says 30, 30 times the configured one.
#[test]
fn the_weight_that_a_real_is_meant_to_have_is_told() {
    let meant = |bench: &Bench| {
        let views = report::vips_of(&bench.engine, 0..1, report::Listed::All).unwrap();
        let reals = views[0].reals.iter();
        reals
            .map(|real| (real.weight, real.meant_weight))
            .collect::<Vec<_>>()
    };
    let mut bench = Bench::new(&taking_weights("latency"));
    for (real, told) in [(0, 30), (1, 3), (2, 0)] {
        bench.engine.handle_weight(real, Some(told));
    }
    // Of one that was not asked yet nothing is known; one that says nothing says 1.
    assert_eq!(meant(&bench)[3], (1, 11.0));
    bench.engine.handle_weight(3, None);
    assert_eq!(meant(&bench), [(1, 30.0), (1, 3.0), (1, 0.0), (1, 1.0)]);
    // What latency does to the weight in force is no part of it.
    let mut bench = Bench::new(&text("latency"));
    bench.run(100, &[50.0, 5.0, 5.0, 5.0]);
    assert!(shares(&bench)[0] < 0.1);
    assert_eq!(meant(&bench), [(1, 1.0); 4]);
    probes(&mut bench, 3, &[0], &[]);
    assert_eq!(meant(&bench)[0], (1, 0.0), "it is down");
    probes(&mut bench, 2, &[], &[]);
    assert_eq!(meant(&bench)[0], (1, 0.1), "it has just returned");
}

/// Else each start would send all clients to the server that answers first.
#[test]
fn what_reals_say_holds_until_each_has_said_it_again() {
    for scheduler in ["maglev", "latency", "p2c"] {
        let near = |bench: &Bench, wanted: [f64; 4]| {
            let (found, total) = match scheduler {
                "p2c" => {
                    let weights = weights(bench).map(f64::from);
                    (weights, weights.iter().sum::<f64>())
                }
                _ => (shares(bench), 1.0),
            };
            for (found, wanted) in found.iter().zip(wanted) {
                let found = found / total;
                assert!(
                    (found - wanted).abs() < 0.02,
                    "{scheduler}: {found} {wanted}"
                );
            }
        };
        let takes = taking_weights(scheduler);
        let mut bench = Bench::new(&takes);
        for real in 0..4 {
            bench.engine.handle_weight(real, Some(100));
            near(&bench, [0.25; 4]);
        }
        restart(&mut bench, &takes, KeptState::default());
        bench.engine.handle_weight(0, Some(100));
        near(&bench, [0.25; 4]);
        // One of them is small.
        for (real, told) in [(3, 10), (1, 100), (2, 100)] {
            bench.engine.handle_weight(real, Some(told));
        }
        let uneven = [100.0 / 310.0, 100.0 / 310.0, 100.0 / 310.0, 10.0 / 310.0];
        near(&bench, uneven);
        bench.run(3, &[5.0; 4]);
        restart(&mut bench, &takes, KeptState::default());
        if scheduler != "p2c" {
            near(&bench, uneven);
            for (real, told) in [(3, 10), (1, 100), (0, 100), (2, 100)] {
                bench.engine.handle_weight(real, Some(told));
                near(&bench, uneven);
            }
            bench.run(3, &[5.0; 4]);
            near(&bench, uneven);
        }
    }
}

/// It is out of the ring by its own word.
#[test]
fn a_real_that_said_0_is_not_down_after_a_restart() {
    for scheduler in ["maglev", "latency"] {
        let takes = taking_weights(scheduler);
        let mut bench = Bench::new(&takes);
        bench.engine.handle_weight(3, Some(0));
        assert_eq!(shares(&bench)[3], 0.0);
        let down = Down {
            vip: bench.engine.config().vips[0].endpoint(),
            real: "10.0.0.2".parse().unwrap(),
        };
        let kept = KeptState {
            down: vec![down],
            ..KeptState::default()
        };
        restart(&mut bench, &takes, kept);
        bench.now.monotonic_ns += 1000 * MS;
        let now_ns = bench.now.monotonic_ns;
        let (orders, _) = bench.engine.poll_health(now_ns);
        let [unknown, down] = [HealthState::Unknown, HealthState::Down];
        assert_eq!(states(&bench), [unknown, down, unknown, unknown]);
        // It gets nothing before it has said what it wants.
        assert_eq!(shares(&bench), [0.5, 0.0, 0.5, 0.0], "{scheduler}");
        let order = orders.iter().find(|order| order.real == 3);
        let number = order.expect("a probe").number;
        bench.engine.handle_weight(3, Some(0));
        bench
            .engine
            .health_outcome(now_ns, 3, number, Ok("200".to_owned()));
        assert_eq!(shares(&bench), [0.5, 0.0, 0.5, 0.0], "{scheduler}");
        bench.engine.handle_weight(3, Some(1));
        assert!(shares(&bench)[3] > 0.3, "{scheduler}");
    }
}

/// A VIP with one more real than the four of [`WEB`].
fn with_fifth(text: &str) -> String {
    text.replace(
        "{ address = \"10.0.0.4\" },",
        "{ address = \"10.0.0.4\" }, { address = \"10.0.0.5\" },",
    )
}

fn share_of(bench: &Bench, real: RealId) -> f64 {
    bench.plane.state().share(0, real)
}

fn state_of(bench: &Bench, real: usize) -> &'static str {
    let (config, member) = bench.engine.pools()[0].members().nth(real).unwrap();
    super::pool::state(config, member).word()
}

#[test]
fn a_real_that_is_added_waits_for_its_first_probe() {
    for scheduler in ["maglev", "latency", "weighted-round-robin", "p2c"] {
        let mut bench = Bench::new(&text(scheduler));
        probes(&mut bench, 3, &[], &[]);
        bench
            .engine
            .reload(config(&with_fifth(&text(scheduler))))
            .unwrap();
        assert_eq!((share_of(&bench, 4), state_of(&bench, 4)), (0.0, "waiting"));
        // Whatever comes before its first probe is sent.
        bench.engine.apply_health();
        assert_eq!(share_of(&bench, 4), 0.0);
        let explained = super::explain::explain(&bench.engine, "web", "10.0.0.5").expect("a real");
        assert_eq!(explained.state, "waits for its first probe");
        // At once, and one that succeeds is enough.
        bench.now.monotonic_ns += 50 * MS;
        let now_ns = bench.now.monotonic_ns;
        let (orders, _) = bench.engine.poll_health(now_ns);
        let order = orders
            .iter()
            .find(|order| order.real == 4)
            .expect("a probe");
        assert_eq!(share_of(&bench, 4), 0.0, "{scheduler}");
        bench
            .engine
            .health_outcome(now_ns, 4, order.number, Ok("connected".to_owned()));
        assert!(share_of(&bench, 4) > 0.15, "{scheduler}");
        assert_eq!(state_of(&bench, 4), "active");
    }
}

#[test]
fn a_real_that_is_added_dead_never_gets_a_connection() {
    let mut bench = Bench::new(&text("maglev"));
    probes(&mut bench, 3, &[], &[]);
    bench
        .engine
        .reload(config(&with_fifth(&text("maglev"))))
        .unwrap();
    for _ in 0..4 {
        probes(&mut bench, 1, &[], &[4]);
        assert_eq!(share_of(&bench, 4), 0.0);
    }
    assert_eq!(state_of(&bench, 4), "down");
    // The next change does not let it in.
    let heavier = with_fifth(&text("maglev")).replace("10.0.0.1\"", "10.0.0.1\", weight = 2");
    bench.engine.reload(config(&heavier)).unwrap();
    assert_eq!((share_of(&bench, 4), state_of(&bench, 4)), (0.0, "down"));
}

#[test]
fn nobody_waits_where_nothing_else_takes_connections() {
    // At a start, and where all others are down.
    let mut bench = Bench::new(&with_fifth(&text("maglev")));
    assert!(share_of(&bench, 4) > 0.15);
    bench.engine.reload(config(&text("maglev"))).unwrap();
    probes(&mut bench, 3, &[0, 1, 2, 3], &[]);
    bench
        .engine
        .reload(config(&with_fifth(&text("maglev"))))
        .unwrap();
    assert_eq!((share_of(&bench, 4), state_of(&bench, 4)), (1.0, "active"));
    // Nor where nothing is probed.
    let mut bench = Bench::new(WEB);
    bench.engine.reload(config(&with_fifth(WEB))).unwrap();
    assert!(share_of(&bench, 4) > 0.15);
}

#[test]
fn a_real_that_was_not_probed_while_it_was_worked_on_waits() {
    let worked_on = text("maglev").replace("10.0.0.4\"", "10.0.0.4\", maintenance = true");
    let mut bench = Bench::new(&worked_on);
    probes(&mut bench, 3, &[], &[]);
    bench.engine.reload(config(&text("maglev"))).unwrap();
    assert_eq!((share_of(&bench, 3), state_of(&bench, 3)), (0.0, "waiting"));
    probes(&mut bench, 1, &[], &[]);
    assert_eq!(state_of(&bench, 3), "active");
    assert!(share_of(&bench, 3) > 0.0);
}

#[test]
fn a_daemon_that_takes_over_has_the_reals_wait_that_its_file_adds() {
    let mut bench = Bench::new(&text("maglev"));
    probes(&mut bench, 3, &[], &[]);
    let plane = bench.plane.clone();
    let file = config(&with_fifth(&text("maglev")));
    let engine = Engine::succeed(Box::new(plane), file, KeptState::default(), None, bench.now);
    bench.engine = engine.unwrap();
    assert_eq!((share_of(&bench, 4), state_of(&bench, 4)), (0.0, "waiting"));
    assert!(share_of(&bench, 0) > 0.2);
    probes(&mut bench, 1, &[], &[]);
    assert!(share_of(&bench, 4) > 0.15);
}

/// The reals that no SYN stays on, also none that is sent again.
fn led_away_from(bench: &mut Bench) -> Vec<RealId> {
    bench.engine.poll_health(bench.now.monotonic_ns);
    let mut down: Vec<RealId> = bench.plane.state().down.iter().copied().collect();
    down.sort_unstable();
    down
}

#[test]
fn no_syn_stays_on_a_real_that_is_down_while_others_serve() {
    let mut bench = Bench::new(&text("maglev"));
    probes(&mut bench, 3, &[1], &[]);
    assert_eq!(led_away_from(&mut bench), [1]);
    probes(&mut bench, 2, &[], &[]);
    assert!(led_away_from(&mut bench).is_empty(), "it is back");
    probes(&mut bench, 3, &[0, 1, 2, 3], &[]);
    assert!(led_away_from(&mut bench).is_empty(), "all are tried");
    probes(&mut bench, 2, &[0, 1, 2], &[]);
    assert_eq!(led_away_from(&mut bench), [0, 1, 2]);
    // The only one that is up drains: its clients' SYNs stay on it, and the others are tried.
    let drain = |on| {
        move |vip: &mut crate::config::VipConfig| {
            vip.reals[3].drain = on;
            Ok(())
        }
    };
    bench.engine.change_vip("web", drain(true)).unwrap();
    assert!(led_away_from(&mut bench).is_empty());
    bench.engine.change_vip("web", drain(false)).unwrap();
    assert_eq!(led_away_from(&mut bench), [0, 1, 2]);
}

#[test]
fn syns_leave_primaries_that_are_down_for_a_backup() {
    let roles = with_roles(["primary", "primary", "backup", "backup"]);
    let mut bench = Bench::new(&roles);
    probes(&mut bench, 3, &[0, 1], &[]);
    assert_eq!(led_away_from(&mut bench), [0, 1]);
    probes(&mut bench, 3, &[0, 1, 2, 3], &[]);
    assert!(led_away_from(&mut bench).is_empty());
}

#[test]
fn a_restart_knows_which_reals_keep_no_syn_and_forgets_those_that_nobody_probes() {
    let mut bench = Bench::new(&text("maglev"));
    probes(&mut bench, 3, &[1], &[]);
    restart(&mut bench, &text("maglev"), KeptState::default());
    assert_eq!(led_away_from(&mut bench), [1]);
    restart(
        &mut bench,
        &text("maglev").replace(CHECK, ""),
        KeptState::default(),
    );
    assert!(led_away_from(&mut bench).is_empty());
}
