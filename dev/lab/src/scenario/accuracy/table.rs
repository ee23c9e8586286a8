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
        // Null: there is none to tell.
        let figure = |part: &str, name: &str, digits: usize| {
            let value = found.get(part)?.get(name)?;
            let shown = value.as_f64().map(|of| format!("{of:.digits$}"));
            Some(shown.unwrap_or_else(|| "-".to_owned()))
        };
        let main = |name: &str| figure("window_chain", name, 2);
        writeln!(
            text,
            "{:<21} {:>6} {:>7} {:>6} {:>7} {:>6} {:>7} {:>7} {:>6}  {:<34} {}",
            row.get("workload")?.get("name")?.as_str()?,
            figure("floor", "median_pct", 2)?,
            main("median_pct")?,
            figure("window_chain", "within10_pct", 1)?,
            main("p10_pct")?,
            main("p90_pct")?,
            figure("by_response", "median_pct", 2)?,
            figure("opaque", "median_pct", 2)?,
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
         headers; worst: the worst single flow's median; -: nothing was estimated, or of worst: \
         not of every flow.\n",
    );
    text += &grades(rows)?;
    Some(text)
}

/// How good the estimates of each grade are over all rows.
fn grades(rows: &[Value]) -> Option<String> {
    // By place: low, medium, high.
    let mut sums: Vec<(String, u64, f64)> = Vec::new();
    for row in rows {
        let grades = row.get("judgement")?.get("grades")?.as_array()?;
        for (place, grade) in grades.iter().enumerate() {
            let epochs = grade.get("epochs")?.as_u64()?;
            let within = grade.get("within10_pct")?.as_f64()? / 100.0 * epochs as f64;
            match sums.get_mut(place) {
                Some(sum) => (sum.1, sum.2) = (sum.1 + epochs, sum.2 + within),
                None => sums.push((grade.get("quality")?.as_str()?.to_owned(), epochs, within)),
            }
        }
    }
    let parts: Vec<String> = sums
        .iter()
        .map(|(quality, epochs, within)| {
            let share = (*epochs > 0).then(|| within * 100.0 / *epochs as f64);
            let share = share.map_or("-".to_owned(), |of| format!("{of:.1} %"));
            format!("{quality} {share} of {epochs}")
        })
        .collect();
    Some(format!(
        "Epochs within 10 % by grade, over all rows: {}.\n",
        parts.join(", ")
    ))
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_is_a_dash_and_grades_are_of_all_rows() {
        let errors = json!({
            "median_pct": null, "within10_pct": 0.0, "p10_pct": null, "p90_pct": null,
            "worst_flow_pct": null,
        });
        let row = |epochs: u64, within: f64| {
            let grade = |quality: &str, epochs: u64| json!({ "quality": quality, "epochs": epochs, "within10_pct": within });
            json!({
                "workload": { "name": "web", "target": {} },
                "judgement": {
                    "floor": errors, "window_chain": errors, "by_response": errors, "opaque": errors,
                    "grades": [grade("low", 0), grade("medium", 0), grade("high", epochs)],
                },
                "verdict": "none",
            })
        };
        let text = render(&json!([row(10, 100.0), row(30, 50.0)])).expect("a table");
        assert!(
            text.lines()
                .any(|line| line.starts_with("web") && line.contains(" - "))
        );
        assert!(
            text.ends_with("low - of 0, medium - of 0, high 62.5 % of 40.\n"),
            "{text}"
        );
    }
}
