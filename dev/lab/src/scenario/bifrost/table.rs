// SPDX-License-Identifier: Apache-2.0
//! The result as a table with the targets beside it.

use std::fmt::Write as _;

use serde_json::Value;

use super::super::INTERFACE;

/// Parts with a row for each case, loss and load.
const PARTS: [(&str, &str); 8] = [
    ("short", "short connections"),
    ("rr", "request/response, 14 bytes"),
    ("delay", "a path with delay or jitter"),
    ("place", "losses in one place or another"),
    ("elephant", "bulk beside requests"),
    ("congestion", "by TCP's congestion control"),
    ("redis", "Redis, GET of 100 bytes"),
    ("nothing", "a tunnel that does nothing, one path, all paths"),
];
/// Carriers in the order of their columns.
const CARRIERS: [&str; 6] = [
    "plain",
    "plain_bad",
    "mptcp",
    "do_nothing",
    "causeway_one_path",
    "causeway",
];

/// The table; what was not measured is left out.
pub(super) fn of(result: &Value) -> String {
    let figures = &result[INTERFACE];
    let mut text = stolen(&figures["stolen"]);
    for (part, title) in PARTS {
        if let Some(rows) = figures[part].as_array() {
            text += &part_table(title, rows);
        }
    }
    text + &targets(figures)
}

/// How far the machine's host was in the way.
fn stolen(told: &Value) -> String {
    let Some(parts) = told["parts"].as_object() else {
        return String::new();
    };
    let mut text = format!(
        "stolen CPU time, limit {} % of a round: {} of {} rounds played again, {} stay over it\n",
        told["limit_pct"], told["played_again"], told["rounds"], told["over_limit"]
    );
    for (name, part) in parts {
        let pct = |key: &str| part[key].as_f64().unwrap_or(f64::NAN);
        let _ = writeln!(
            text,
            "  {name:<12} {} rounds, {} played again, {} over the limit, {:.2} % stolen, {:.2} % with discarded tries",
            part["rounds"],
            part["played_again"],
            part["over_limit"],
            pct("stolen_pct"),
            pct("stolen_pct_with_discarded"),
        );
    }
    text + "\n"
}

/// Percentiles of each carrier, or its rate.
fn part_table(title: &str, rows: &[Value]) -> String {
    let cell = |row: &Value, carrier: &str| {
        let number = |name: &str| row[format!("{carrier}_{name}")].as_f64();
        let tail = number("p999_ms").map_or(String::new(), |p999| format!(" / {p999:.2}"));
        match (number("p50_ms"), number("p99_ms"), number("gbps")) {
            (Some(p50), Some(p99), _) => Some(format!("{p50:.2} / {p99:.2}{tail}")),
            (_, _, Some(gbps)) => Some(format!("{gbps:.3} Gbit/s")),
            _ => None,
        }
    };
    let mut carriers = CARRIERS.to_vec();
    carriers.retain(|carrier| rows.iter().any(|row| cell(row, carrier).is_some()));
    let mut text = format!("{title}: p50 / p99 / p99.9 in ms\n");
    let _ = write!(text, "  {:<14} {:<6} {:>6}", "case", "load", "loss %");
    for name in &carriers {
        let _ = write!(text, "  {name:>22}");
    }
    text.push('\n');
    for row in rows {
        let field = |key: &str| row[key].as_str().unwrap_or_default();
        let (case, load, loss) = (field("case"), field("load"), row["loss_pct"].to_string());
        let _ = write!(text, "  {case:<14} {load:<6} {loss:>6}");
        for carrier in &carriers {
            let cell = cell(row, carrier).unwrap_or_else(|| "-".to_owned());
            let _ = write!(text, "  {cell:>22}");
        }
        for (key, about) in [
            ("vnic_full", "refused by the ring"),
            ("device_drops", "dropped by the devices"),
            ("over_limit", "over the limit of stolen time"),
            ("blocks_over_limit", "blocks over the limit of stolen time"),
            ("causeway_failed", "failed in the tunnel"),
            ("plain_failed", "failed without it"),
        ] {
            if let Some(count) = row[key].as_u64().filter(|count| *count > 0) {
                let _ = write!(text, "  {count} {about}");
            }
        }
        text.push('\n');
    }
    text + "\n"
}

/// What a figure is held to.
enum Bound {
    AtMost(f64),
    Below(f64),
    AtLeast(f64),
    None,
}

/// Each figure that has a target, with the target and whether it is met.
fn targets(figures: &Value) -> String {
    use Bound::{AtLeast, AtMost, Below};
    let number = |pointer: &str| figures.pointer(pointer).and_then(Value::as_f64);
    let at_one = figures["short"]
        .as_array()
        .and_then(|rows| rows.iter().find(|row| row["loss_pct"] == 1.0));
    let short = |name: &str| at_one.and_then(|row| row[name].as_f64());
    let reduction = short("causeway_p99_ms")
        .zip(short("plain_p99_ms"))
        .map(|(tunnel, plain)| 100.0 * (1.0 - tunnel / plain));
    // Within rounds: the machine's speed drifts from one to the next.
    let by_round = |name: &str| number(&format!("/gbps_over_by_round/{name}"));
    let (flow, nothing) = (
        number("/gbps/causeway"),
        number("/gbps/super_packet_tunnel"),
    );
    let medians = flow.zip(nothing).map(|(tunnel, plain)| tunnel / plain);
    let idle = number("/idle_rr_p50_us/causeway")
        .zip(number("/idle_rr_p50_us/plain_tunnel"))
        .map(|(tunnel, plain)| tunnel - plain);
    #[rustfmt::skip]
    let rows = [
        ("short connections, 1 % loss, p99", "tails", short("causeway_p99_ms"), "ms", AtMost(5.0)),
        ("the same, p99.9", "tails", short("causeway_p999_ms"), "ms", AtMost(10.0)),
        ("the same, p99 below that of plain TCP by", "tails", reduction, "%", AtLeast(99.0)),
        ("throughput kept at 1 % loss", "kept", number("/kept_pct/1"), "%", AtLeast(98.0)),
        ("throughput kept at 2 % loss", "kept", number("/kept_pct/2"), "%", AtLeast(95.0)),
        ("the same, CPU-bound, 1 % loss", "cpu", number("/cpu_bound_kept_pct"), "%", AtLeast(90.0)),
        ("flapping path, p99", "flap", number("/flap/p99_ms"), "ms", AtMost(5.0)),
        ("flapping path, timeouts of the guests' TCP", "flap", number("/flap/inner_rtos"), "", AtMost(0.0)),
        ("retransmitted without loss", "kept", number("/retransmit_pct_no_loss"), "%", Below(0.1)),
        ("duplicated without loss", "kept", number("/duplicate_pct_no_loss"), "%", Below(0.05)),
        ("one flow", "gbps", flow, "Gbit/s", Bound::None),
        ("the same over a packet per system call, by round", "gbps", by_round("packet_tunnel"), "x", AtLeast(6.0)),
        ("the same over a do-nothing tunnel, by round", "gbps", by_round("super_packet_tunnel"), "x", AtLeast(0.95)),
        ("the same, medians over all rounds", "gbps", medians, "x", Bound::None),
        ("idle round trip over a do-nothing tunnel, p50", "idle", idle, "us", AtMost(30.0)),
    ];
    let mut text = String::new();
    for (name, part, value, unit, bound) in rows {
        let Some(value) = value else { continue };
        let (sign, limit, met) = match bound {
            AtMost(limit) => ("<=", limit, value <= limit),
            Below(limit) => ("<", limit, value < limit),
            AtLeast(limit) => (">=", limit, value >= limit),
            Bound::None => ("", f64::NAN, true),
        };
        let verdict = match (sign, met) {
            ("", _) => "measured".to_owned(),
            (_, true) => format!("{sign} {limit} {unit}: met"),
            (_, false) => format!("{sign} {limit} {unit}: missed"),
        };
        let over = match rounds_over_limit(figures, part, at_one) {
            0 => String::new(),
            over => format!(", {over} of its rounds over the limit of stolen time"),
        };
        let value = format!("{value:.3} {unit}");
        let _ = writeln!(text, "{name:<52} {value:>16}   {verdict}{over}");
    }
    text
}

/// Rounds of a part in which the host took too much CPU time.
fn rounds_over_limit(figures: &Value, part: &str, short_at_one: Option<&Value>) -> u64 {
    if part == "tails" {
        let over = short_at_one.and_then(|row| row["blocks_over_limit"].as_u64());
        return over.unwrap_or(0);
    }
    // Throughput and idle round trips share their rounds.
    let parts = figures["stolen"]["parts"].as_object().into_iter().flatten();
    parts
        .filter(|(name, _)| name.split(", ").any(|one| one == part))
        .filter_map(|(_, told)| told["over_limit"].as_u64())
        .sum()
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
            line("  gbps, idle").ends_with("0.70 % stolen, 4.25 % with discarded tries"),
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
        assert!(text.contains("3 failed in the tunnel"), "{text}");
        assert!(text.contains("  1 over the limit of stolen time"), "{text}");
        assert!(text.contains("0.250 Gbit/s"), "{text}");
        assert!(!text.contains("mptcp"), "{text}");
    }
}
