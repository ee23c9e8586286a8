// SPDX-License-Identifier: Apache-2.0
//! The result as a table with the targets beside it.

use std::fmt::Write as _;

use serde_json::Value;

use super::super::INTERFACE;

/// The table; what was not measured is left out.
pub fn of(result: &Value) -> String {
    let figures = &result[INTERFACE];
    let mut text = String::new();
    stolen(&mut text, &figures["stolen"]);
    for (key, title) in [
        ("short", "short connections"),
        ("rr", "request/response, 14 bytes"),
    ] {
        let Some(rows) = figures[key].as_array() else {
            continue;
        };
        let _ = writeln!(
            text,
            "{title}\n  {:>7}  {:>12} {:>12} {:>12} {:>12} {:>12}",
            "loss %", "plain p99", "MPTCP p99", "tunnel p50", "tunnel p99", "tunnel p99.9"
        );
        for row in rows {
            let cell = |name: &str| match row[name].as_f64() {
                Some(ms) => format!("{ms:9.2} ms"),
                None => "-".to_owned(),
            };
            let _ = writeln!(
                text,
                "  {:>7}  {:>12} {:>12} {:>12} {:>12} {:>12}",
                row["loss_pct"].to_string(),
                cell("plain_p99_ms"),
                cell("mptcp_p99_ms"),
                cell("causeway_p50_ms"),
                cell("causeway_p99_ms"),
                cell("causeway_p999_ms"),
            );
        }
        text.push('\n');
    }
    for (part, title) in FURTHER {
        if let Some(rows) = figures[part].as_array() {
            further(&mut text, title, rows);
        }
    }
    for (name, value, target) in verdicts(figures) {
        let _ = writeln!(text, "{name:<52} {value:>16}   {target}");
    }
    text
}

/// How far the machine's host was in the way.
fn stolen(text: &mut String, told: &Value) {
    let Some(parts) = told["parts"].as_object() else {
        return;
    };
    let _ = writeln!(
        text,
        "stolen CPU time, limit {} % of a round: {} of {} rounds played again, {} stay over it",
        told["limit_pct"], told["played_again"], told["rounds"], told["over_limit"]
    );
    let _ = writeln!(
        text,
        "  {:<12} {:>8} {:>13} {:>11} {:>9} {:>15}",
        "part", "rounds", "played again", "over limit", "stolen", "with discarded"
    );
    for (name, part) in parts {
        let count = |key: &str| part[key].to_string();
        let pct = |key: &str| format!("{:.2} %", part[key].as_f64().unwrap_or(f64::NAN));
        let _ = writeln!(
            text,
            "  {name:<12} {:>8} {:>13} {:>11} {:>9} {:>15}",
            count("rounds"),
            count("played_again"),
            count("over_limit"),
            pct("stolen_pct"),
            pct("stolen_pct_with_discarded"),
        );
    }
    text.push('\n');
}

/// Parts of one form: a row for each case, loss and load, columns for each carrier.
const FURTHER: [(&str, &str); 6] = [
    ("delay", "a path with delay or jitter"),
    ("place", "losses in one place or another"),
    ("elephant", "bulk beside requests"),
    ("congestion", "by TCP's congestion control"),
    ("redis", "Redis, GET of 100 bytes"),
    ("nothing", "a tunnel that does nothing, one path, all paths"),
];
/// Carriers in the order of their columns.
const COLUMNS: [&str; 6] = [
    "plain",
    "plain_bad",
    "mptcp",
    "do_nothing",
    "causeway_one_path",
    "causeway",
];

/// p50 and p99 of each carrier, or its rate.
fn further(text: &mut String, title: &str, rows: &[Value]) {
    let has = |row: &Value, carrier: &str| {
        ["p99_ms", "gbps"]
            .iter()
            .any(|name| row[format!("{carrier}_{name}")].is_f64())
    };
    let columns: Vec<&str> = COLUMNS
        .into_iter()
        .filter(|carrier| rows.iter().any(|row| has(row, carrier)))
        .collect();
    let _ = write!(
        text,
        "{title}: p50 / p99 in ms\n  {:<14} {:<6} {:>6}",
        "case", "load", "loss %"
    );
    for name in &columns {
        let _ = write!(text, "  {name:>18}");
    }
    text.push('\n');
    for row in rows {
        let word = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let _ = write!(
            text,
            "  {:<14} {:<6} {:>6}",
            word("case"),
            word("load"),
            row["loss_pct"].to_string()
        );
        for carrier in &columns {
            let number = |name: &str| row[format!("{carrier}_{name}")].as_f64();
            let cell = match (number("p50_ms"), number("p99_ms"), number("gbps")) {
                (Some(p50), Some(p99), _) => format!("{p50:.2} / {p99:.2}"),
                (_, _, Some(gbps)) => format!("{gbps:.3} Gbit/s"),
                _ => "-".to_owned(),
            };
            let _ = write!(text, "  {cell:>18}");
        }
        for (key, about) in [
            ("vnic_full", "refused by the ring"),
            ("device_drops", "dropped by the devices"),
        ] {
            if let Some(count) = row[key].as_u64() {
                let _ = write!(text, "  {count} {about}");
            }
        }
        if let Some(over) = row["over_limit"].as_u64().filter(|over| *over > 0) {
            let _ = write!(text, "  {over} over the limit of stolen time");
        }
        for carrier in &columns {
            if let Some(failed) = row[format!("{carrier}_failed")].as_u64()
                && failed > 0
            {
                let _ = write!(text, "  {carrier}: {failed} failed");
            }
        }
        text.push('\n');
    }
    text.push('\n');
}

/// Each figure that has a target, with the target and whether it is met.
fn verdicts(figures: &Value) -> Vec<(&'static str, String, String)> {
    let mut all = Vec::new();
    let mut add =
        |name, over: u64, value: Option<f64>, unit: &str, met: fn(f64) -> bool, target: &str| {
            let Some(value) = value else { return };
            let verdict = if met(value) { "met" } else { "missed" };
            let over = match over {
                0 => String::new(),
                over => format!(", {over} of its rounds over the limit of stolen time"),
            };
            all.push((
                name,
                format!("{value:.3} {unit}"),
                format!("{target}: {verdict}{over}"),
            ));
        };
    // Throughput and idle round trips share their rounds.
    let robbed = |part: &str| -> u64 {
        let parts = figures["stolen"]["parts"].as_object();
        let of = |name: &String| name.split(", ").any(|one| one == part);
        let parts = parts.into_iter().flatten().filter(|(name, _)| of(name));
        parts
            .filter_map(|(_, told)| told["over_limit"].as_u64())
            .sum()
    };
    let number = |pointer: &str| figures.pointer(pointer).and_then(Value::as_f64);
    let at_one = figures["short"]
        .as_array()
        .and_then(|rows| rows.iter().find(|row| row["loss_pct"] == 1.0));
    let tails = at_one.and_then(|row| row["blocks_over_limit"].as_u64());
    let tails = tails.unwrap_or(0);
    let short = |name: &str| at_one.and_then(|row| row[name].as_f64());
    add(
        "short connections, 1 % loss, p99",
        tails,
        short("causeway_p99_ms"),
        "ms",
        |v| v <= 5.0,
        "<= 5 ms",
    );
    add(
        "the same, p99.9",
        tails,
        short("causeway_p999_ms"),
        "ms",
        |v| v <= 10.0,
        "<= 10 ms",
    );
    let below = short("causeway_p99_ms")
        .zip(short("plain_p99_ms"))
        .map(|(tunnel, plain)| 100.0 * (1.0 - tunnel / plain));
    add(
        "the same, p99 below that of plain TCP by",
        tails,
        below,
        "%",
        |v| v >= 99.0,
        ">= 99 %",
    );
    add(
        "throughput kept at 1 % loss",
        robbed("kept"),
        number("/kept_pct/1"),
        "%",
        |v| v >= 98.0,
        ">= 98 %",
    );
    add(
        "throughput kept at 2 % loss",
        robbed("kept"),
        number("/kept_pct/2"),
        "%",
        |v| v >= 95.0,
        ">= 95 %",
    );
    add(
        "the same, CPU-bound, 1 % loss",
        robbed("cpu"),
        number("/cpu_bound_kept_pct"),
        "%",
        |v| v >= 90.0,
        ">= 90 %",
    );
    add(
        "flapping path, p99",
        robbed("flap"),
        number("/flap/p99_ms"),
        "ms",
        |v| v <= 5.0,
        "<= 5 ms",
    );
    add(
        "flapping path, timeouts of the guests' TCP",
        robbed("flap"),
        number("/flap/inner_rtos"),
        "",
        |v| v == 0.0,
        "0",
    );
    add(
        "sent again without loss",
        robbed("kept"),
        number("/retransmit_pct_no_loss"),
        "%",
        |v| v < 0.1,
        "< 0.1 %",
    );
    add(
        "arrived twice without loss",
        robbed("kept"),
        number("/duplicate_pct_no_loss"),
        "%",
        |v| v < 0.05,
        "< 0.05 %",
    );
    let gbps = |name: &str| number(&format!("/gbps/{name}"));
    add(
        "one flow, Gbit/s",
        robbed("gbps"),
        gbps("causeway"),
        "Gbit/s",
        |_| true,
        "measured",
    );
    // Within rounds: the machine's speed drifts from one to the next.
    let over = |name: &str| number(&format!("/gbps_over_by_round/{name}"));
    add(
        "the same over a packet per system call, by round",
        robbed("gbps"),
        over("packet_tunnel"),
        "x",
        |v| v >= 6.0,
        ">= 6 x",
    );
    add(
        "the same over a do-nothing tunnel, by round",
        robbed("gbps"),
        over("super_packet_tunnel"),
        "x",
        |v| v >= 0.95,
        ">= 0.95 x",
    );
    let medians = gbps("causeway").zip(gbps("super_packet_tunnel"));
    add(
        "the same, medians over all rounds",
        robbed("gbps"),
        medians.map(|(tunnel, plain)| tunnel / plain),
        "x",
        |_| true,
        "measured",
    );
    let idle = number("/idle_rr_p50_us/causeway").zip(number("/idle_rr_p50_us/plain_tunnel"));
    let idle = idle.map(|(tunnel, plain)| tunnel - plain);
    add(
        "idle round trip over a do-nothing tunnel, p50",
        robbed("idle"),
        idle,
        "us",
        |v| v <= 30.0,
        "<= 30 us",
    );
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn targets_are_judged() {
        let result = json!({ INTERFACE: {
            "short": [{ "loss_pct": 1.0, "plain_p99_ms": 1000.0, "causeway_p99_ms": 4.0, "causeway_p999_ms": 11.0 }],
            "gbps": { "causeway": 3.0, "packet_tunnel": 0.5, "super_packet_tunnel": 3.3 },
            "gbps_over_by_round": { "packet_tunnel": 5.9, "super_packet_tunnel": 0.96 },
            "stolen": { "limit_pct": 1.0, "rounds": 30, "played_again": 4, "over_limit": 2, "parts": {
                "gbps, idle": { "rounds": 9, "played_again": 3, "over_limit": 2, "stolen_pct": 0.7,
                    "stolen_pct_with_discarded": 4.25 },
                "tails": { "rounds": 21, "played_again": 1, "over_limit": 0, "stolen_pct": 0.1,
                    "stolen_pct_with_discarded": 0.2 },
            }},
        }});
        let text = of(&result);
        let line = |begin: &str| text.lines().find(|line| line.starts_with(begin)).unwrap();
        assert!(line("short connections, 1 %").ends_with("met"));
        assert!(line("the same, p99.9").ends_with("missed"));
        assert!(line("the same, p99 below").contains("99.600 %"));
        let over = ", 2 of its rounds over the limit of stolen time";
        let packet = line("the same over a packet").strip_suffix(over);
        assert!(packet.unwrap().ends_with("missed"));
        let nothing = line("the same over a do-nothing").strip_suffix(over);
        assert!(nothing.unwrap().ends_with("met"));
        assert!(line("the same, medians over all rounds").contains("0.909 x"));
        let stolen =
            "stolen CPU time, limit 1.0 % of a round: 4 of 30 rounds played again, 2 stay over it";
        assert!(text.starts_with(stolen), "{text}");
        assert!(
            line("  gbps, idle").ends_with("0.70 %          4.25 %"),
            "{text}"
        );
        assert!(!text.contains("flapping"));
    }
    #[test]
    fn further_parts_have_a_column_for_each_carrier() {
        let result = json!({ INTERFACE: { "delay": [
            { "case": "slow", "loss_pct": 1.0, "load": "rr", "plain_p50_ms": 0.5, "plain_p99_ms": 200.0,
              "causeway_p50_ms": 0.6, "causeway_p99_ms": 2.0, "causeway_failed": 3, "over_limit": 1 },
        ], "nothing": [{ "case": "x", "loss_pct": 0.0, "load": "bulk", "do_nothing_gbps": 0.25 }] }});
        let text = of(&result);
        assert!(text.contains("0.50 / 200.00"), "{text}");
        assert!(text.contains("causeway: 3 failed"), "{text}");
        assert!(text.contains("  1 over the limit of stolen time"), "{text}");
        assert!(text.contains("0.250 Gbit/s"), "{text}");
        assert!(!text.contains("mptcp"), "{text}");
    }
}
