// SPDX-License-Identifier: Apache-2.0
//! Printing a run: table, CSV, JSON, netperf's selectors.

use std::fmt::Write as _;
use std::io::{self, Write};

use causeway_core::rtt::{LatencySummary, RttMethod, Selector, bucket_ms, decades};
use causeway_report::table::TextTable;
use serde_json::{Value, json};

use super::args::{ClientArgs, Output};
use super::observing::Unobserved;
use super::protocol::{MethodFigures, TcpFigures, TcpState};
use super::result::{End, Row, RttResult};
use super::streams::Ended;

/// Prints as the arguments ask.
pub(crate) fn print(args: &ClientArgs, outcome: &RttResult) -> io::Result<()> {
    let mut text = match (&args.keyval, &args.output) {
        (Some(selectors), _) => keyval(outcome, &selectors.0),
        (None, Output::Selected(selectors)) => selected(outcome, selectors, args.banner == 1),
        (None, Output::Csv) => csv(outcome, args.banner == 1),
        (None, Output::Json) => {
            serde_json::to_string_pretty(&to_json(outcome, args.explain))
                .map_err(io::Error::from)?
                + "\n"
        }
        (None, Output::Table) => table(outcome, args.explain),
    };
    if args.histogram {
        text += &histogram(outcome);
    }
    io::stdout().lock().write_all(text.as_bytes())
}

/// One interval of a method while it runs.
pub(crate) fn live(at_s: f64, method: RttMethod, summary: &LatencySummary) -> String {
    let us = |ns: f64| format!("{:.1}", ns / 1e3);
    format!(
        "{at_s:>7.1} s  {:<10} {:>8}  min {}  mean {}  p50 {}  p90 {}  p99 {}  max {} us",
        method.as_str(),
        summary.count,
        us(summary.min_ns as f64),
        us(summary.mean_ns),
        us(summary.p50_ns as f64),
        us(summary.p90_ns as f64),
        us(summary.p99_ns as f64),
        us(summary.max_ns as f64),
    )
}

fn command_line() -> String {
    let words: Vec<String> = std::env::args().collect();
    words.join(" ")
}

fn keyval(outcome: &RttResult, selectors: &[Selector]) -> String {
    let figures = outcome.figures(command_line());
    let lines = selectors
        .iter()
        .map(|s| format!("{}={}\n", s.name(), s.value(&figures)));
    lines.collect()
}

fn selected(outcome: &RttResult, selectors: &[Selector], banner: bool) -> String {
    let figures = outcome.figures(command_line());
    let join = |cells: Vec<String>| cells.join(",") + "\n";
    let mut text = String::new();
    if banner {
        text += &join(selectors.iter().map(|s| s.heading().to_owned()).collect());
    }
    // A value with a comma of its own is quoted, which netperf does not do: else
    // its reader counts columns wrongly.
    let cell = |s: &Selector| match s.value(&figures) {
        value if value.contains([',', '"']) => format!("\"{}\"", value.replace('"', "\"\"")),
        value => value,
    };
    text + &join(selectors.iter().map(cell).collect())
}

fn csv(outcome: &RttResult, banner: bool) -> String {
    let mut table = TextTable::new(&[
        "METHOD",
        "END",
        "COUNT",
        "MIN US",
        "MEAN US",
        "P50 US",
        "P90 US",
        "P99 US",
        "MAX US",
        "STDDEV US",
    ]);
    for row in outcome.rows() {
        let figures = MethodFigures::new(row.method, &row.summary);
        let mut cells = vec![
            row.method.to_string(),
            row.end.as_str().to_owned(),
            figures.count.to_string(),
        ];
        let us = [
            figures.min_us,
            figures.mean_us,
            figures.p50_us,
            figures.p90_us,
            figures.p99_us,
            figures.max_us,
            figures.stddev_us,
        ];
        cells.extend(us.map(|us| format!("{us:.3}")));
        table.push(cells);
    }
    let text = table.to_csv();
    match (banner, text.split_once('\n')) {
        (false, Some((_, rows))) => rows.to_owned(),
        _ => text,
    }
}

/// What one should know of a row's number.
fn note(row: &Row, outcome: &RttResult) -> String {
    match (row.method, row.end) {
        (RttMethod::Rr, _) => format!("{:.1} transactions/s", rate(outcome)),
        (RttMethod::Sampled, _) => {
            let ms = bucket_ms(row.summary.p50_ns);
            let n = match row.end {
                End::Client => outcome.conditions.sample,
                End::Server => outcome.conditions.server_sample,
            };
            format!("1 in {n}; in buckets of 1 ms the median is {ms} ms")
        }
        (RttMethod::Synack, End::Client) if outcome.knocks.is_some() => {
            "connect(): SYN to SYN+ACK, and this process awake".to_owned()
        }
        (method, End::Client) => method.meaning().to_owned(),
        (RttMethod::Synack, End::Server) => "SYN+ACK to our ACK: the kernels alone".to_owned(),
        (RttMethod::Causal, End::Server) => {
            "the same estimate from the requests as they arrive".to_owned()
        }
        (_, End::Server) => "the same at the server: its segments, acknowledged by us".to_owned(),
    }
}

fn rate(outcome: &RttResult) -> f64 {
    let count = outcome.summary(RttMethod::Rr).map_or(0, |s| s.count);
    count as f64 / (outcome.elapsed_ns as f64 / 1e9)
}

fn table(outcome: &RttResult, explain: bool) -> String {
    let c = &outcome.conditions;
    let mut text = format!(
        "{} to {} ({}) port {}, {} B requests, {} B responses, {} stream{}{}\n{}\n\n",
        c.transport,
        c.host,
        c.address,
        c.port,
        c.request_bytes,
        c.response_bytes,
        c.streams,
        if c.streams == 1 { "" } else { "s" },
        match c.connection_each {
            true => ", a connection for each request",
            false => "",
        },
        c.loop_text(),
    );
    let mut table = TextTable::new(&[
        "METHOD", "END", ">COUNT", ">MIN", ">MEAN", ">P50", ">P90", ">P99", ">MAX", ">STDDEV",
        "NOTE",
    ]);
    for row in outcome.rows() {
        let s = row.summary;
        let mut cells = vec![
            row.method.to_string(),
            row.end.as_str().to_owned(),
            s.count.to_string(),
        ];
        let ns = [
            s.min_ns as f64,
            s.mean_ns,
            s.p50_ns as f64,
            s.p90_ns as f64,
            s.p99_ns as f64,
            s.max_ns as f64,
            s.stddev_ns,
        ];
        cells.extend(ns.map(|ns| format!("{:.1}", ns / 1e3)));
        cells.push(note(&row, outcome));
        table.push(cells);
    }
    text += &table.to_text();
    text += "times in microseconds; clock: ";
    let _ = writeln!(text, "{} of {} us", c.clock, c.busy_us);
    text += &tcp_lines(outcome);
    text += &ping_lines(outcome);
    text += &knock_lines(outcome);
    text += &trouble(outcome);
    if explain {
        text.push('\n');
        for sentence in outcome.verdicts().1 {
            let _ = writeln!(text, "{sentence}");
        }
    }
    text
}

/// Requests that got no answer, or left late; packets that the sampler missed.
fn trouble(outcome: &RttResult) -> String {
    let mut text = String::new();
    if let Some(lost) = outcome.lost.filter(|l| *l != Unobserved::default()) {
        let _ = writeln!(
            text,
            "the sampler missed {} packets for lack of room and {} of connections beyond its bound",
            lost.records, lost.refused
        );
    }
    let Some(ended) = &outcome.ended else {
        return text;
    };
    if ended.timeouts > 0 {
        let _ = writeln!(text, "{} requests got no response in time", ended.timeouts);
    }
    if ended.late > 0 {
        let _ = writeln!(
            text,
            "{} requests left more than 0.1 ms after their time; their latency counts from it",
            ended.late
        );
    }
    text
}

/// The kernels' view, in the words of `ss -i`: of several streams ranges and sums.
fn tcp_lines(outcome: &RttResult) -> String {
    if outcome.latencies(RttMethod::Tcp).is_none() {
        return String::new();
    }
    let client = outcome.ended.as_ref().and_then(|e| e.tcp.as_ref());
    let congestion = outcome.ended.as_ref().and_then(|e| e.congestion.as_deref());
    let server = outcome.server.as_ref().and_then(|s| s.tcp.as_ref());
    let mut text = String::new();
    for (name, tcp, congestion) in [("client", client, congestion), ("server", server, None)] {
        if let Some(tcp) = tcp {
            let _ = writeln!(
                text,
                "{name}{}: {}{}",
                match tcp.streams {
                    1 => String::new(),
                    count if outcome.conditions.connection_each => format!(", {count} connections"),
                    count => format!(", {count} streams"),
                },
                congestion.map_or_else(String::new, |c| format!("{c} ")),
                ss(tcp)
            );
        }
    }
    text
}

fn ss(tcp: &TcpFigures) -> String {
    let ms = |us: f64| format!("{:.3}", us / 1e3);
    let (least, largest) = (&tcp.least, tcp.largest.as_ref().unwrap_or(&tcp.least));
    let range = |of: fn(&TcpState) -> u32, show: fn(u32) -> String| {
        let (from, to) = (show(of(least)), show(of(largest)));
        match from == to {
            true => from,
            false => format!("{from}..{to}"),
        }
    };
    let thousandths = |us: u32| format!("{:.3}", f64::from(us) / 1e3);
    let whole = |us: u32| format!("{:.0}", f64::from(us) / 1e3);
    format!(
        "rto:{} rtt:{}/{} ato:{} mss:{} cwnd:{} data_segs_out:{} delivered:{} retrans:0/{} bytes_retrans:{} dsack_dups:{} minrtt:{}",
        range(|of| of.rto_us, whole),
        range(|of| of.rtt_us, thousandths),
        range(|of| of.rttvar_us, thousandths),
        range(|of| of.ato_us, whole),
        range(|of| of.mss, |bytes| bytes.to_string()),
        range(|of| of.cwnd, |segments| segments.to_string()),
        tcp.data_segs_out,
        tcp.delivered,
        tcp.retrans,
        tcp.bytes_retrans,
        tcp.dsack_dups,
        ms(tcp.minrtt_us),
    )
}

/// ping's closing lines.
fn ping_lines(outcome: &RttResult) -> String {
    let Some(echoes) = outcome.echoes else {
        return String::new();
    };
    let lost = echoes.transmitted.saturating_sub(echoes.received);
    let percent = 100.0 * lost as f64 / (echoes.transmitted.max(1)) as f64;
    let percent = format!("{percent:.4}");
    let percent = percent.trim_end_matches('0').trim_end_matches('.');
    let mut text = format!(
        "--- {} ping statistics ---\n{} packets transmitted, {} received, {percent}% packet loss, time {}ms\n",
        outcome.conditions.host,
        echoes.transmitted,
        echoes.received,
        echoes.elapsed_ns / 1_000_000,
    );
    if let Some(s) = outcome.summary(RttMethod::Ping) {
        let ms = |ns: f64| format!("{:.3}", ns / 1e6);
        let _ = writeln!(
            text,
            "rtt min/avg/max/mdev = {}/{}/{}/{} ms",
            ms(s.min_ns as f64),
            ms(s.mean_ns),
            ms(s.max_ns as f64),
            ms(s.stddev_ns)
        );
    }
    if echoes.unsent > 0 {
        let _ = writeln!(text, "{} echo requests could not be sent", echoes.unsent);
    }
    text
}

fn knock_lines(outcome: &RttResult) -> String {
    let c = &outcome.conditions;
    outcome.knocks.map_or_else(String::new, |knocks| {
        format!(
            "{} connections to port {} of {} opened, {} refused, {} not answered\n",
            knocks.opened, c.port, c.host, knocks.refused, knocks.failed
        )
    })
}

/// netperf's histogram of verbosity 2.
fn histogram(outcome: &RttResult) -> String {
    let Some(latencies) = outcome.latencies(RttMethod::Rr) else {
        return String::new();
    };
    let mut text = "\nHistogram of request/response times\n".to_owned();
    let (rows, longer) = decades(latencies);
    for row in rows {
        let _ = write!(text, "{:<14}:", row.name);
        for count in row.buckets {
            let _ = write!(text, " {count:>4}:");
        }
        text.pop();
        text.push('\n');
    }
    let _ = writeln!(text, "{:<14}: {longer:>4}", ">100_SECS");
    let _ = writeln!(text, "HIST_TOTAL:      {:>4}", latencies.count());
    text
}

/// Everything, for programs.
pub(crate) fn to_json(outcome: &RttResult, explain: bool) -> Value {
    let rows: Vec<Value> = outcome.rows().iter().map(row_json).collect();
    let mut value = json!({
        "conditions": outcome.conditions,
        "elapsed_s": outcome.elapsed_ns as f64 / 1e9,
        "transaction_rate": rate(outcome),
        "methods": rows,
        "tcp": {
            "client": outcome.ended.as_ref().and_then(|e| e.tcp.as_ref()),
            "server": outcome.server.as_ref().and_then(|s| s.tcp.as_ref()),
            "congestion": outcome.ended.as_ref().and_then(|e| e.congestion.as_deref()),
        },
        "ping": outcome.echoes.map(|e| json!({
            "transmitted": e.transmitted, "received": e.received, "unsent": e.unsent,
            "elapsed_ms": e.elapsed_ns / 1_000_000,
        })),
        "connections": outcome.knocks.map(|k| json!({
            "opened": k.opened, "refused": k.refused, "failed": k.failed,
        })),
        "timeouts": outcome.ended.as_ref().map_or(0, |e| e.timeouts),
        "failed": outcome.ended.as_ref().map_or(0, Ended::failures),
        "late": outcome.ended.as_ref().map_or(0, |e| e.late),
        "server_app_p50_us": outcome.server.as_ref().and_then(|s| s.app_p50_ns).map(|ns| ns as f64 / 1e3),
        "server_transactions": outcome.server.as_ref().map(|s| s.transactions),
    });
    if explain {
        let (findings, sentences) = outcome.verdicts();
        let words: Vec<_> = findings.iter().map(|f| f.word()).collect();
        value["explain"] = json!({ "verdicts": words, "sentences": sentences });
    }
    value
}

fn row_json(row: &Row) -> Value {
    let mut value = json!(MethodFigures::new(row.method, &row.summary));
    value["end"] = json!(row.end);
    if row.method == RttMethod::Sampled {
        value["bucket_p50_ms"] = json!(bucket_ms(row.summary.p50_ns));
    }
    value
}

#[cfg(test)]
mod tests {
    use causeway_netio::rtt::TcpInfo;

    use super::*;

    #[test]
    fn streams_that_differ_are_told_by_ranges() {
        let stream = |rtt_us, snd_cwnd| TcpInfo {
            rtt_us,
            rto_us: 204_000,
            snd_mss: 1448,
            snd_cwnd,
            data_segs_out: 5,
            ..TcpInfo::default()
        };
        let told = |streams: &[TcpInfo]| {
            ss(&TcpFigures::sum(streams.iter().copied().map(TcpFigures::of)).unwrap())
        };
        let one = told(&[stream(70, 10)]);
        assert!(
            one.starts_with("rto:204 rtt:0.070/0.000 ato:0 mss:1448 cwnd:10 data_segs_out:5 "),
            "{one}"
        );
        // Neither the first nor the last is the slowest.
        let three = told(&[stream(70, 10), stream(900, 2), stream(80, 10)]);
        assert!(
            three.starts_with(
                "rto:204 rtt:0.070..0.900/0.000 ato:0 mss:1448 cwnd:2..10 data_segs_out:15 "
            ),
            "{three}"
        );
    }
}
