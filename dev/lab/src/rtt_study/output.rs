// SPDX-License-Identifier: Apache-2.0
//! Printing the study.

use super::judge::{Beyond, Lossy};
use causeway_report::table::TextTable;
use serde_json::{Value, json};

use super::Study;

/// One decimal; `-` for what was not measured.
pub(super) fn cell(value: Option<f64>) -> String {
    match value {
        Some(value) if value.is_finite() => format!("{value:.1}"),
        _ => "-".to_owned(),
    }
}

/// For people.
pub fn text(study: &Study) -> String {
    let mut text = String::new();
    let m = &study.measured;
    if !m.intervals.is_empty() {
        let mut table = TextTable::new(&[
            ">WAIT MS",
            ">RR P50 US",
            ">RR P99 US",
            ">CLIENT TCP US",
            ">SERVER TCP US",
            ">SAMPLED MS",
            ">PING P50 US",
            ">CAUSAL US",
        ]);
        for r in &m.intervals {
            table.push(vec![
                format!("{:.0}", r.wait_ms),
                cell(Some(r.rr_p50_us)),
                cell(Some(r.rr_p99_us)),
                cell(Some(r.client_tcp_rtt_us)),
                cell(Some(r.server_tcp_rtt_us)),
                cell(r.sampled_p50_ms),
                cell(r.ping_p50_us),
                cell(r.causal_us),
            ]);
        }
        text += &format!("Response/request interval\n{}\n", table.to_text());
    }
    for (title, rows) in [
        ("Beyond the stand-alone ACK timer", &m.beyond),
        ("Request sizes", &m.sizes),
    ] {
        if rows.is_empty() {
            continue;
        }
        let mut table = TextTable::new(&[
            ">WAIT MS",
            ">STREAMS",
            ">REQUEST B",
            ">RR P50 US",
            ">CLIENT TCP US",
            ">SERVER TCP US",
            ">SAMPLED MS",
            ">OF APPLICATION %",
            ">VALUES",
        ]);
        for r in rows {
            table.push(vec![
                format!("{:.0}", r.wait_ms),
                r.streams.to_string(),
                r.request_bytes.to_string(),
                cell(Some(r.rr_p50_us)),
                cell(Some(r.client_tcp_rtt_us)),
                cell(Some(r.server_tcp_rtt_us)),
                cell(r.sampled_p50_ms),
                format!("{:.0}", 100.0 * r.sampled_app_share),
                r.sampled_values.to_string(),
            ]);
        }
        text += &format!("{title}\n{}\n", table.to_text());
    }
    text += &lossy(&m.lossy);
    for v in &study.verdicts {
        let word = if v.agree { "agree" } else { "NOT    " };
        text += &format!(
            "{word:<6} {}: {}\n       {}\n",
            v.curve, v.expected, v.measured
        );
    }
    text
}

fn lossy(rows: &[Lossy]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = TextTable::new(&[
        "LOST",
        ">REQUEST B",
        ">RR P50 US",
        ">RR MAX MS",
        ">CLIENT TCP MAX MS",
        ">SAMPLED MAX MS",
        ">PING MAX MS",
        ">PING LOSS %",
        ">SENT AGAIN",
    ]);
    let ms = |us: f64| cell(Some(us / 1e3));
    for r in rows {
        table.push(vec![
            format!("{} % of {}", r.loss_pct, r.lost.as_str()),
            r.request_bytes.to_string(),
            cell(Some(r.rr_p50_us)),
            ms(r.rr_max_us),
            ms(r.client_tcp_rtt_max_us),
            cell(r.sampled_max_us.map(|us| us / 1e3)),
            cell(r.ping_max_us.map(|us| us / 1e3)),
            cell(Some(r.ping_loss_pct)),
            r.retransmitted.to_string(),
        ]);
    }
    format!("A path that loses packets\n{}\n", table.to_text())
}

/// A figure for JSON: what was not measured is null.
fn number(value: f64) -> Value {
    if value.is_finite() {
        json!(value)
    } else {
        Value::Null
    }
}

/// For programs: the study's results in the order of its parts.
pub fn to_json(study: &Study) -> Value {
    let intervals = study.measured.intervals.iter().map(|r| {
        json!({
            "wait_ms": r.wait_ms, "rr_p50_us": r.rr_p50_us, "rr_p99_us": r.rr_p99_us,
            "client_tcp_rtt_us": number(r.client_tcp_rtt_us),
            "server_tcp_rtt_us": number(r.server_tcp_rtt_us),
            "sampled_p50_ms": r.sampled_p50_ms, "ping_p50_us": r.ping_p50_us,
            "causal_us": r.causal_us, "client_sampled_p50_ms": r.client_sampled_p50_ms,
        })
    });
    let row = |r: &Beyond| {
        json!({
            "wait_ms": r.wait_ms, "streams": r.streams, "request_bytes": r.request_bytes,
            "rr_p50_us": number(r.rr_p50_us), "client_tcp_rtt_us": number(r.client_tcp_rtt_us),
            "server_tcp_rtt_us": number(r.server_tcp_rtt_us), "sampled_p50_ms": r.sampled_p50_ms,
            "sampled_app_share": r.sampled_app_share, "sampled_values": r.sampled_values,
        })
    };
    let lossy = study.measured.lossy.iter().map(|r| {
        json!({
            "lost": r.lost.as_str(), "request_bytes": r.request_bytes, "loss_pct": r.loss_pct, "rr_p50_us": r.rr_p50_us,
            "rr_max_us": r.rr_max_us, "client_tcp_rtt_max_us": r.client_tcp_rtt_max_us,
            "retransmitted": r.retransmitted, "sampled_max_us": r.sampled_max_us,
            "ping_loss_pct": r.ping_loss_pct, "ping_max_us": r.ping_max_us,
        })
    });
    let verdicts = study.verdicts.iter().map(|v| {
        json!({ "curve": v.curve, "expected": v.expected, "agree": v.agree, "measured": v.measured })
    });
    json!({
        "intervals": intervals.collect::<Vec<_>>(),
        "beyond": study.measured.beyond.iter().map(row).collect::<Vec<_>>(),
        "sizes": study.measured.sizes.iter().map(row).collect::<Vec<_>>(),
        "loss": lossy.collect::<Vec<_>>(),
        "verdicts": verdicts.collect::<Vec<_>>(),
        "settings": study.settings,
    })
}
