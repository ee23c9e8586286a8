// SPDX-License-Identifier: Apache-2.0
//! A path that loses packets: which method sees the retransmission.

use super::{ExpectedCurve, Lossy, Lost};

pub(super) fn judge(rows: &[Lossy]) -> Vec<ExpectedCurve> {
    let of = |lost| {
        rows.iter()
            .filter(move |r| r.lost == lost)
            .collect::<Vec<_>>()
    };
    let mut verdicts = Vec::new();
    let requests = of(Lost::Requests);
    if !requests.is_empty() {
        verdicts.extend(lost_requests(&requests));
    }
    let responses = of(Lost::Responses);
    if !responses.is_empty() {
        verdicts.push(lost_responses(&responses));
    }
    verdicts
}

fn show(rows: &[&Lossy], of: impl Fn(&Lossy) -> f64) -> String {
    let cell = |r: &&Lossy| format!("{} B: {:.2}", r.request_bytes, of(r));
    rows.iter().map(cell).collect::<Vec<_>>().join(", ")
}

fn lost_requests(rows: &[&Lossy]) -> [ExpectedCurve; 4] {
    let sampled = |r: &Lossy| r.sampled_max_us.unwrap_or(f64::NAN);
    let ping = |r: &Lossy| r.ping_max_us.unwrap_or(f64::NAN);
    let again = |r: &&Lossy| format!("{} B: {}", r.request_bytes, r.retransmitted);
    [
        ExpectedCurve {
            curve: "rr under loss",
            expected: "the slowest requests contain the retransmission (5 times the median and more)",
            measured: format!(
                "slowest, ms: {}; segments sent again: {}",
                show(rows, |r| r.rr_max_us / 1e3),
                rows.iter().map(again).collect::<Vec<_>>().join(", ")
            ),
            agree: rows
                .iter()
                .all(|r| r.retransmitted > 0 && r.rr_max_us > 5.0 * r.rr_p50_us),
        },
        ExpectedCurve {
            curve: "client tcp rtt under loss",
            expected: "does not reflect it: a segment sent again gives no RTT (largest reading below half the slowest request)",
            measured: format!(
                "largest reading, ms: {}",
                show(rows, |r| r.client_tcp_rtt_max_us / 1e3)
            ),
            agree: rows
                .iter()
                .all(|r| r.client_tcp_rtt_max_us < r.rr_max_us / 2.0),
        },
        ExpectedCurve {
            curve: "sampled under loss",
            expected: "may contain it: a sampler cannot tell which copy was acknowledged (some value above the largest TCP reading)",
            measured: format!("largest value, ms: {}", show(rows, |r| sampled(r) / 1e3)),
            agree: rows.iter().any(|r| sampled(r) > r.client_tcp_rtt_max_us),
        },
        ExpectedCurve {
            curve: "ping under loss",
            expected: "shows loss as loss, never as time (slowest echo below half the slowest request)",
            measured: format!(
                "lost: {} %; slowest echo, ms: {}",
                show(rows, |r| r.ping_loss_pct),
                show(rows, |r| ping(r) / 1e3)
            ),
            agree: rows.iter().any(|r| r.ping_loss_pct > 0.0)
                && rows.iter().all(|r| ping(r) < r.rr_max_us / 2.0),
        },
    ]
}

/// The client's segments arrive and are not retransmitted; their ACKs are lost, and the
/// next one comes with the server's retransmission. Karn's rule (RFC 6298, section 3)
/// excludes retransmitted segments, not ACKs that come late.
fn lost_responses(rows: &[&Lossy]) -> ExpectedCurve {
    ExpectedCurve {
        curve: "client tcp rtt where responses are lost",
        expected: "not the write-up's: the ACK comes with the other end's retransmission and counts (largest reading above 10 times the median request)",
        measured: format!(
            "largest reading, ms: {}; median request, us: {}",
            show(rows, |r| r.client_tcp_rtt_max_us / 1e3),
            show(rows, |r| r.rr_p50_us)
        ),
        agree: rows
            .iter()
            .all(|r| r.client_tcp_rtt_max_us > 10.0 * r.rr_p50_us),
    }
}
