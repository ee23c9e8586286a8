// SPDX-License-Identifier: Apache-2.0
//! The matrix as text.

use std::fmt::Write as _;

use serde_json::Value;

/// The table of a result, or `None` where it does not look like one.
pub(super) fn render(result: &Value) -> Option<String> {
    let rows = result.as_array()?;
    let mut text = format!(
        "{:<21} {:>6} {:>7} {:>6} {:>7} {:>6} {:>7} {:>7} {:>6}  {:<34} {}\n",
        "workload",
        "floor",
        "median",
        "w10",
        "p10",
        "p90",
        "resp.",
        "opaque",
        "worst",
        "target",
        "verdict"
    );
    for row in rows {
        let found = row.get("judgement")?;
        let figure = |part: &str, name: &str| found.get(part)?.get(name)?.as_f64();
        let main = |name: &str| figure("window_chain", name);
        writeln!(
            text,
            "{:<21} {:>6.2} {:>7.2} {:>6.1} {:>7.2} {:>6.2} {:>7.2} {:>7.2} {:>6.2}  {:<34} {}",
            row.get("workload")?.get("name")?.as_str()?,
            figure("floor", "median_pct")?,
            main("median_pct")?,
            main("within10_pct")?,
            main("p10_pct")?,
            main("p90_pct")?,
            figure("by_response", "median_pct")?,
            figure("opaque", "median_pct")?,
            main("worst_flow_pct")?,
            target(row.get("workload")?.get("target")?),
            match row.get("verdict")?.as_str()? {
                "none" => "",
                word => word,
            },
        )
        .ok()?;
    }
    text.push_str(
        "\nErrors in percent, by epochs of 200 ms. floor: median of what the clients' own \
         request-to-triggered-request\ntimes give; median, w10 (epochs within 10 %), p10, p90: \
         window-chain; resp.: signed median over all responses;\nopaque: without transport \
         headers; worst: the worst single flow's median.\n",
    );
    Some(text)
}

fn target(target: &Value) -> String {
    let figure = |name: &str| target.get(name).and_then(Value::as_f64);
    let parts = [
        figure("median_pct").map(|v| format!("median <= {v}")),
        figure("within10_pct").map(|v| format!("w10 >= {v}")),
        figure("signed_pct").map(|v| format!("resp. <= {v}, tails in 10")),
        figure("worst_flow_pct").map(|v| format!("worst <= {v}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
