// SPDX-License-Identifier: Apache-2.0
//! The watermark law in whole runs: servers of four workers with 5 ms of work a request, as
//! many users as connections, each with a request every 50 ms, hashing by the weights.

use causeway_core::control::{ControlParams, Law};
use causeway_sim::control::noise::Noise;
use causeway_sim::control::scenario::{
    Experiment, MS, S, ServerPick, ServerSpec, Trouble, TroubleKind,
};
use causeway_sim::control::world::{ControlOutcome, run};

const SEEDS: u64 = 10;
/// Server 0 is in trouble from here on, and until there.
const FROM_NS: u64 = 4 * S;
const TO_NS: u64 = 14 * S;

fn scenario(seed: u64, users: usize, seconds: f64) -> Experiment {
    let (workers, work_ns, pace_ns) = (4, 5 * MS, 50 * MS);
    let server = ServerSpec {
        weight: 1.0,
        capacity: workers as f64,
        workers,
    };
    Experiment {
        seed,
        seconds,
        warm_up_ns: 0,
        servers: vec![server; 4],
        load: users as f64 * work_ns as f64 / (pace_ns * 4 * workers as u64) as f64,
        users,
        outstanding: 1,
        objects: (1, 1),
        work_ns,
        max_age_ns: 2 * S,
        noise: Noise::NONE,
        control: Some((Law::Watermark, ControlParams::default())),
        pick: ServerPick::Hash,
        ..Experiment::default()
    }
}

fn troubled(kind: TroubleKind, scenario: Experiment) -> Experiment {
    let trouble = Trouble {
        server: Some(0),
        from_ns: FROM_NS,
        to_ns: TO_NS,
        period_ns: 0,
        kind,
    };
    Experiment {
        troubles: vec![trouble],
        ..scenario
    }
}

/// 99th percentiles with the law and by plain hashing, sums over the seeds.
fn p99s(of: impl Fn(u64) -> Experiment) -> (f64, f64) {
    let p99 = |scenario: &Experiment| run(scenario).latencies.quantile(0.99).unwrap_or(0) as f64;
    (1..=SEEDS).map(of).fold((0.0, 0.0), |(ours, plain), of| {
        (ours + p99(&of), plain + p99(&of.hashed()))
    })
}

/// How long after `from_ns` the weight of server 0 is first one that `is` so.
fn reached_ns(outcome: &ControlOutcome, from_ns: u64, is: impl Fn(f32) -> bool) -> Option<u64> {
    let mut after = outcome
        .weights
        .iter()
        .filter(|(at_ns, _)| *at_ns >= from_ns);
    let found = after.find(|(_, weights)| is(weights[0]));
    found.map(|(at_ns, _)| at_ns - from_ns)
}

#[test]
fn ten_times_slower_loses_nine_tenths_within_a_second_and_comes_back() {
    let mut came_back = 0;
    for seed in 1..=SEEDS {
        let outcome = run(&troubled(TroubleKind::Slow(10.0), scenario(seed, 64, 34.0)));
        let gone = reached_ns(&outcome, FROM_NS, |weight| weight <= 0.1);
        assert!(gone.is_some_and(|ns| ns <= S), "seed {seed}: {gone:?}");
        came_back += u32::from(reached_ns(&outcome, TO_NS, |weight| weight >= 0.9).is_some());
    }
    // A recovery shows in the trickle of connections, one in three seconds here;
    // now and then twenty seconds do not suffice.
    assert!(came_back >= 9, "{came_back} of 10");
}

#[test]
fn a_delayed_server_no_longer_shows_in_the_tail() {
    for delay_ns in [50 * MS, 200 * MS] {
        let (ours, plain) = p99s(|seed| Experiment {
            warm_up_ns: FROM_NS + 2 * S,
            ..troubled(TroubleKind::Delay(delay_ns), scenario(seed, 64, 14.0))
        });
        assert!(ours < 0.63 * plain, "{delay_ns}: {ours} against {plain}");
    }
}

#[test]
fn noise_alone_leaves_equal_weights_equal() {
    for users in [16, 64] {
        for seed in 1..=SEEDS {
            let outcome = run(&scenario(seed, users, 20.0));
            let all = outcome.weights.iter().flat_map(|(_, weights)| weights);
            let (count, far) = all.fold((0, 0), |(count, far), weight| {
                (count + 1, far + usize::from((weight - 1.0).abs() > 0.05))
            });
            assert!(
                far * 50 <= count,
                "{users} users, seed {seed}: {far} of {count}"
            );
        }
    }
}

#[test]
fn at_high_load_equal_servers_fare_no_worse_than_hashing() {
    let (ours, plain) = p99s(|seed| scenario(seed, 110, 20.0));
    assert!(ours <= 1.05 * plain, "{ours} against {plain}");
}
