// SPDX-License-Identifier: Apache-2.0
//! Client latency with SYNs dropped, as clients and as their server have it: real clients, real queues, the
//! agent's two estimators beside what the server and its application see.

mod drops;
mod everybody;
mod net;
mod runs;
mod score;

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use causeway_report::chart::{Chart, Scale, Series};
use serde_json::{Value, json};

use super::{Context, Scenario, param};
pub(super) use drops::CERTES_DROPS;
pub(super) use everybody::CLIENTS_EVERYBODY;
pub(super) use net::Net;
pub(super) use runs::{CertesRun, RunningCertes, steady};
use runs::{matrix, table_two};
pub(super) use score::Score;

pub(super) const CERTES: Scenario = Scenario {
    name: "certes",
    about: "client response time with SYNs dropped: client latency against what the agent says",
    params: &[
        param(
            "workloads",
            "own",
            "own, or table2: the sixteen of the paper's table II with clients of Linux",
        ),
        param(
            "size",
            "4",
            "divides clients, workers and accept queues of table II by 1 to 16",
        ),
        param("runs", "all", "names of runs, by commas, or all"),
        param("seconds", "45", "length that counts of each run"),
        param("warm_up_s", "12", "what is left out before"),
        param(
            "scale",
            "1",
            "divides all times of clients and servers, SYN timeouts among them, by 1 to 12",
        ),
        param(
            "beside",
            "12",
            "how many run at a time, each in namespaces of its own",
        ),
        param(
            "svg",
            "",
            "write the distribution of the first run's response times to FILE",
        ),
    ],
    run,
    table,
};

fn run(context: &Context) -> Result<Value> {
    let wanted: String = context.param("runs")?;
    let names: Vec<&str> = wanted.split(',').collect();
    let size: usize = context.param("size")?;
    ensure!((1..=16).contains(&size), "the size is 1 to 16");
    let all = match context.param::<String>("workloads")?.as_str() {
        "own" => matrix(),
        "table2" => table_two(size),
        other => bail!("the workloads are own or table2, not {other:?}"),
    };
    for name in names.iter().filter(|name| **name != "all") {
        ensure!(
            all.iter().any(|run| run.name == *name),
            "there is no run {name:?}; there are {}",
            all.iter()
                .map(|run| run.name.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        );
    }
    let chosen = all
        .into_iter()
        .filter(|run| wanted == "all" || names.contains(&run.name.as_str()));
    let scale: u32 = context.param("scale")?;
    ensure!((1..=12).contains(&scale), "the scale is 1 to 12");
    let chosen: Vec<CertesRun> = chosen.map(|run| run.scaled(scale)).collect();
    let mut rows = Vec::new();
    for some in chosen.chunks(context.param::<usize>("beside")?.max(1)) {
        rows.extend(side_by_side(context, some)?);
    }
    let svg: String = context.param("svg")?;
    if let Some(first) = rows.first().filter(|_| !svg.is_empty()) {
        std::fs::write(&svg, distribution(first)).with_context(|| format!("writing {svg}"))?;
    }
    Ok(json!({ "runs": rows }))
}

fn table(result: &Value) -> Option<String> {
    let rows = result["runs"].as_array()?;
    let mut text = format!(
        "{:12}{:>9}{:>8}{:>8}{:>9}{:>8}{:>8}{:>9}{:>8}{:>8}{:>8}\n",
        "RUN",
        "TRUTH s",
        "CONN/s",
        "DROP %",
        "GAVE %",
        "EXACT",
        "MODEL",
        "SYN-END",
        "APP",
        "E/sec",
        "M/sec"
    );
    for row in rows {
        let of = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        text += &format!(
            "{:12}{:>9.3}{:>8.1}{:>8.1}{:>9.1}{:>+8.2}{:>+8.2}{:>+9.1}{:>+8.1}{:>8.2}{:>8.2}\n",
            row["name"].as_str()?,
            of("truth_mean_s"),
            of("rate_per_s"),
            of("syn_drop_pct"),
            of("gave_up_pct"),
            of("exact_error_pct"),
            of("model_error_pct"),
            of("syn_to_end_error_pct"),
            of("application_error_pct"),
            of("exact_mae_pct"),
            of("model_mae_pct"),
        );
    }
    text += &format!("\n{:12}", "RUN");
    for percent in ["P50", "P90", "P99"] {
        text += &format!("{:>9}{:>9}{:>9}", format!("{percent} s"), "AGENT", "BUCKET");
    }
    text += "\n";
    for row in rows {
        let percentiles = row["percentiles"].as_array()?;
        text += &format!("{:12}", row["name"].as_str()?);
        for of in percentiles {
            for key in ["truth_s", "agent_s", "bucket_s"] {
                text += &format!("{:>9.3}", of[key].as_f64().unwrap_or(f64::INFINITY));
            }
        }
        text += "\n";
    }
    Some(text)
}

/// Figure 17 of a run.
fn distribution(of: &Score) -> String {
    let [truth, agent] = of.cumulated.clone();
    Chart::new(
        format!(
            "Response times of {}: share of clients that waited no longer",
            of.name
        ),
        (Scale::Log, "seconds"),
        (Scale::Share, ""),
        vec![
            Series::new("agent's histogram, at its bounds", agent),
            Series::new("clients' own log", truth),
        ],
    )
    .file()
}

/// Runs at a time, in namespaces of their own; one row each.
fn side_by_side(context: &Context, runs: &[CertesRun]) -> Result<Vec<Score>> {
    let warm_up = Duration::from_secs(context.param("warm_up_s")?);
    let counts = Duration::from_secs(context.param("seconds")?);
    let mut begun: Vec<_> = runs
        .iter()
        .map(|run| {
            let net = Net::build(context.sandbox, run, context.seed)?;
            run.start(&context.binary, net, warm_up + counts, context.seed)
        })
        .collect::<Result<_>>()?;
    context.say(format!(
        "{} for {} s",
        runs.iter()
            .map(|run| run.name.as_str())
            .collect::<Vec<_>>()
            .join(", "),
        (warm_up + counts).as_secs()
    ));
    std::thread::sleep(warm_up + counts / 2);
    begun.iter_mut().try_for_each(RunningCertes::trouble)?;
    // Now, not when the runs end one after another: records have to be left to make.
    std::thread::sleep(counts / 4);
    begun.iter().try_for_each(RunningCertes::trouble_again)?;
    let mut scores = Vec::new();
    for run in begun {
        let score = run.finish(warm_up, counts)?;
        context.say(score.sentence());
        scores.push(score);
    }
    Ok(scores)
}
