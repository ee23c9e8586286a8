// SPDX-License-Identifier: Apache-2.0
//! Beyond the stand-alone ACK timer.

use super::{Beyond, ExpectedCurve, IMMEDIATE_MS, ms, wait};

/// Intervals beyond the timer, two-segment requests.
pub(super) fn judge(rows: &[Beyond]) -> Vec<ExpectedCurve> {
    let list = |of: &dyn Fn(&Beyond) -> f64| {
        let cells = rows
            .iter()
            .map(|r| format!("{}: {}", wait(r.wait_ms), ms(of(r))));
        cells.collect::<Vec<_>>().join(", ")
    };
    let sampled = |r: &Beyond| r.sampled_p50_ms.unwrap_or(f64::NAN);
    let near = |r: &&Beyond| r.wait_ms <= 1000.0;
    let far = |r: &&Beyond| r.wait_ms >= 3000.0;
    let follows = |r: &Beyond| (sampled(r) / r.wait_ms - 1.0).abs() <= 0.3;
    vec![
        ExpectedCurve {
            curve: "tcp rtt beyond the timer",
            expected: "flat at both ends, whatever the interval (below a quarter of the timer)",
            measured: format!(
                "ms, by pause: client {}; server {}",
                list(&|r| r.client_tcp_rtt_us / 1e3),
                list(&|r| r.server_tcp_rtt_us / 1e3)
            ),
            agree: rows
                .iter()
                .all(|r| r.client_tcp_rtt_us.max(r.server_tcp_rtt_us) / 1e3 < IMMEDIATE_MS),
        },
        ExpectedCurve {
            curve: "sampled beyond the timer",
            expected: "follows the application's time up to about 1000 ms (within 30 %)",
            measured: format!("ms, by pause: {}", list(&sampled)),
            agree: rows.iter().any(|r| near(&r)) && rows.iter().filter(near).all(follows),
        },
        ExpectedCurve {
            curve: "sampled near 3000 ms",
            expected: "has departed from the application's time (below half of it)",
            measured: format!("ms, by pause: {}", list(&sampled)),
            agree: rows.iter().any(|r| far(&r))
                && rows
                    .iter()
                    .filter(far)
                    .all(|r| sampled(r) < r.wait_ms / 2.0),
        },
    ]
}

/// One interval, requests of more and more segments.
pub(super) fn sizes(rows: &[Beyond]) -> ExpectedCurve {
    let cells = rows.iter().map(|r| {
        format!(
            "{} B: {:.0} % of {}",
            r.request_bytes,
            100.0 * r.sampled_app_share,
            r.sampled_values
        )
    });
    // Neighbours may be within chance of each other; the ends may not.
    let (first, last) = (rows[0], rows[rows.len() - 1]);
    let steps = rows
        .windows(2)
        .all(|pair| pair[1].sampled_app_share > pair[0].sampled_app_share - 0.1);
    ExpectedCurve {
        curve: "sampled by request size",
        expected: "the more data segments to a bare ACK, the more of its values are the application's time",
        measured: cells.collect::<Vec<_>>().join(", "),
        agree: steps && last.sampled_app_share > first.sampled_app_share,
    }
}
