// SPDX-License-Identifier: Apache-2.0
//! Rows of the accuracy matrix, short: recorder, line, servers and judge do what
//! they say. How good the estimates are is for long runs to show. Needs root.

use anyhow::{Context, Result, ensure};
use causeway_lab::sandbox::{self, Sandbox};
use causeway_lab::scenario::{self, Request};
use serde_json::Value;

fn run(sandbox: Sandbox, workloads: &str, seconds: &str) -> Result<Vec<Value>> {
    let request = Request {
        name: "accuracy".into(),
        seed: 1,
        params: vec![
            ("workloads".into(), workloads.into()),
            ("seconds".into(), seconds.into()),
        ],
        // The engine under test is linked in.
        binary: "/proc/self/exe".into(),
        progress: Box::new(|message| println!("{message}")),
    };
    let report = scenario::execute(sandbox, request)?;
    let rows = report.result.as_array().context("no rows")?;
    Ok(rows.clone())
}

fn figure(row: &Value, part: &str, name: &str) -> Result<f64> {
    let judgement = row.get("judgement").context("judgement")?;
    let part = if part.is_empty() {
        judgement
    } else {
        judgement.get(part).context("part")?
    };
    let value = part.get(name).and_then(Value::as_f64);
    value.with_context(|| format!("no figure {name}"))
}

#[test]
fn one_outstanding_request_is_measured_over_a_lossy_line_and_a_plain_one() {
    let test = "one_outstanding_request_is_measured_over_a_lossy_line_and_a_plain_one";
    sandbox::run_test(test, |sandbox| {
        let rows = run(sandbox, "w1,w1_loss1", "3")?;
        let [plain, lossy] = &rows[..] else {
            anyhow::bail!("{} rows", rows.len());
        };
        for row in [plain, lossy] {
            let responses = figure(row, "", "responses")?;
            ensure!(responses > 100.0, "{responses} responses");
            // Nothing of what passes the vantage point is missed: at least one
            // packet for each request.
            ensure!(figure(row, "", "packets")? >= figure(row, "", "responses")?);
            let answered = figure(row, "window_chain", "answered_pct")?;
            ensure!(
                answered > 90.0,
                "{answered} % of the epochs have an estimate"
            );
            // Of single responses: where CPU is short an epoch has few, and one that was lost is
            // most of its time.
            let median = figure(row, "by_response", "median_pct")?;
            ensure!(median.abs() < 10.0, "median error {median} %");
        }
        // A client that waits for the CPU before it asks again is in both.
        let [median, floor] = ["window_chain", "floor"].map(|of| figure(plain, of, "median_pct"));
        let (median, floor) = (median?, floor?);
        ensure!(
            median < floor + 10.0,
            "median error {median} %, of the clients' own times {floor} %"
        );
        ensure!(figure(plain, "", "lost")? == 0.0);
        let lost = figure(lossy, "", "lost")?;
        ensure!(lost > 0.0, "nothing was lost");
        Ok(())
    });
}

#[test]
fn stores_are_filled_and_pipelines_answered() {
    sandbox::run_test("stores_are_filled_and_pipelines_answered", |sandbox| {
        for row in run(sandbox, "memcached_w1,redis_p4,memcached_w4_offload", "0.5")? {
            let responses = figure(&row, "", "responses")?;
            ensure!(responses > 100.0, "{responses} responses");
            ensure!(figure(&row, "floor", "answered_pct")? > 90.0);
        }
        Ok(())
    });
}
