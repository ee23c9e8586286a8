// SPDX-License-Identifier: Apache-2.0
use super::*;

/// The write-up's own table, with its charts read off by eye.
fn write_up() -> Measured {
    let waits: [f64; 10] = [-1.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 39.0, 40.0, 41.0];
    let p50 = [
        95.0, 141.0, 153.0, 146.0, 149.0, 162.0, 186.0, 190.0, 189.0, 186.0,
    ];
    let p99 = [
        197.0, 277.0, 293.0, 299.0, 300.0, 324.0, 342.0, 352.0, 353.0, 334.0,
    ];
    let intervals = waits
        .iter()
        .zip(p50.iter().zip(p99))
        .map(|(&wait_ms, (&p50, p99))| {
            let server_ms = if wait_ms > 40.0 {
                0.2
            } else {
                wait_ms.max(0.1)
            };
            Interval {
                wait_ms,
                rr_p50_us: p50,
                rr_p99_us: p99,
                client_tcp_rtt_us: 150.0,
                server_tcp_rtt_us: server_ms * 1e3,
                sampled_p50_ms: Some(causeway_core::rtt::bucket_ms((server_ms * 1e6) as u64)),
                client_sampled_p50_ms: Some(0.5),
                ping_p50_us: Some(120.0),
                // The write-up knows no such estimate; here it is what rr is.
                causal_us: Some(p50),
            }
        });
    let beyond = [100.0, 300.0, 500.0, 1000.0, 3000.0, 5000.0].map(|wait_ms| Beyond {
        wait_ms,
        streams: wait_ms as u32 / 10,
        request_bytes: 1409,
        rr_p50_us: 200.0,
        client_tcp_rtt_us: 150.0,
        server_tcp_rtt_us: 150.0,
        sampled_p50_ms: Some(if wait_ms > 2000.0 { 5.0 } else { wait_ms + 0.5 }),
        sampled_app_share: 0.67,
        sampled_values: 100,
    });
    let sizes = [(1, 0.5), (1409, 0.67), (2818, 0.75)].map(|(request_bytes, share)| Beyond {
        request_bytes,
        sampled_app_share: share,
        ..beyond[0]
    });
    Measured {
        intervals: intervals.collect(),
        beyond: beyond.to_vec(),
        sizes: sizes.to_vec(),
        lossy: vec![
            Lossy {
                request_bytes: 1,
                loss_pct: 2.0,
                rr_p50_us: 150.0,
                rr_max_us: 210_000.0,
                client_tcp_rtt_max_us: 900.0,
                retransmitted: 12,
                sampled_max_us: Some(203_000.0),
                ping_loss_pct: 3.0,
                ping_max_us: Some(800.0),
                ..Lossy::default()
            },
            Lossy {
                lost: Lost::Responses,
                request_bytes: 1,
                rr_p50_us: 150.0,
                client_tcp_rtt_max_us: 30_000.0,
                ..Lossy::default()
            },
        ],
    }
}

fn disagreeing(measured: &Measured) -> Vec<&'static str> {
    let verdicts = judge(measured);
    assert!(verdicts.iter().all(|v| !v.measured.is_empty()));
    verdicts
        .iter()
        .filter(|v| !v.agree)
        .map(|v| v.curve)
        .collect()
}

#[test]
fn the_write_up_agrees_with_itself() {
    assert_eq!(judge(&write_up()).len(), 18);
    assert_eq!(disagreeing(&write_up()), [""; 0]);
    assert!(judge(&Measured::default()).is_empty());
}

#[test]
fn each_wrong_shape_is_called_wrong() {
    type Spoil = fn(&mut Measured);
    let cases: [(&str, Spoil); 12] = [
        ("server tcp rtt", |m| {
            m.intervals[5].server_tcp_rtt_us = 300.0
        }),
        ("server tcp rtt past the timer", |m| {
            m.intervals[9].server_tcp_rtt_us = 40_000.0
        }),
        ("client tcp rtt", |m| {
            m.intervals[6].client_tcp_rtt_us = 32_000.0
        }),
        ("rr p50", |m| m.intervals[7].rr_p50_us = 1_000.0),
        ("rr against server tcp rtt", |m| {
            m.intervals[6].rr_p50_us = 32_000.0;
            m.intervals[6].causal_us = Some(32_000.0);
        }),
        ("sampled at the server", |m| {
            m.intervals[6].sampled_p50_ms = Some(0.5)
        }),
        ("sampled at the client", |m| {
            m.intervals[6].client_sampled_p50_ms = None
        }),
        ("ping p50", |m| m.intervals[6].ping_p50_us = None),
        ("causal", |m| m.intervals[6].causal_us = Some(32_000.0)),
        ("tcp rtt beyond the timer", |m| {
            m.beyond[1].client_tcp_rtt_us = 40_000.0
        }),
        ("sampled beyond the timer", |m| {
            m.beyond[0].sampled_p50_ms = Some(0.5)
        }),
        ("sampled near 3000 ms", |m| {
            m.beyond[4].sampled_p50_ms = Some(3_000.5)
        }),
    ];
    for (curve, spoil) in cases {
        let mut measured = write_up();
        spoil(&mut measured);
        assert_eq!(disagreeing(&measured), [curve]);
    }
    let mut measured = write_up();
    measured.sizes.reverse();
    assert_eq!(disagreeing(&measured), ["sampled by request size"]);
    measured = write_up();
    measured.lossy[0].client_tcp_rtt_max_us = 205_000.0;
    let wrong = disagreeing(&measured);
    assert_eq!(wrong, ["client tcp rtt under loss", "sampled under loss"]);
    measured = write_up();
    measured.lossy[1].client_tcp_rtt_max_us = 200.0;
    let wrong = disagreeing(&measured);
    assert_eq!(wrong, ["client tcp rtt where responses are lost"]);
    measured = write_up();
    measured.intervals[7].rr_p50_us = 90.0;
    assert_eq!(disagreeing(&measured), ["rr p50"], "it must rise");
    measured = write_up();
    measured.intervals[9].sampled_p50_ms = Some(41.5);
    assert_eq!(disagreeing(&measured), [""; 0], "the next request");
    measured.intervals[9].sampled_p50_ms = Some(20.5);
    assert_eq!(disagreeing(&measured), ["sampled at the server"]);
    measured = write_up();
    measured.lossy[0].retransmitted = 0;
    assert_eq!(disagreeing(&measured), ["rr under loss"]);
}

#[test]
fn the_calmer_of_two_runs_has_the_lesser_median() {
    let run = |rr_p50_us| Interval {
        rr_p50_us,
        ..Interval::default()
    };
    assert!(run(30.0).calmer_than(&run(60.0)));
    assert!(!run(60.0).calmer_than(&run(30.0)));
    assert!(!run(30.0).calmer_than(&run(30.0)));
    // Nothing measured is not calm.
    assert!(!run(0.0).calmer_than(&run(60.0)) && run(60.0).calmer_than(&run(0.0)));
}
