// SPDX-License-Identifier: Apache-2.0
//! `causeway explain`: why does this real have this weight?

use std::fmt::Write as _;
use std::process::ExitCode;

use causeway_api::balancer::{DecisionView, Explanation, LatencyView, VipView};
use causeway_report::table::{OutputFormat, TextTable, ms, weight};
use causeway_service::config::plural;
use causeway_service::exchange::segment;

use crate::client::Target;
use crate::stats_cmd::quality;

/// Arguments of `causeway explain`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The VIP: its name, or address:port
    vip: String,
    /// The real's address; without it, a short answer for each real
    real: Option<String>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let explain = |real: &str| -> anyhow::Result<Explanation> {
            let (vip, real) = (segment(&self.vip), segment(real));
            let path = format!("/v1/vips/{vip}/reals/{real}/decisions");
            self.target.get(&path)
        };
        let Some(real) = &self.real else {
            let vip: VipView = self
                .target
                .get(&format!("/v1/vips/{}", segment(&self.vip)))?;
            let reals = vip.reals.iter().map(|real| explain(&real.address));
            let all: Vec<Explanation> = reals.collect::<anyhow::Result<_>>()?;
            match self.output {
                OutputFormat::Table => all.iter().for_each(|one| println!("{}", short(one))),
                OutputFormat::Json => println!("{}", serde_json::to_string_pretty(&all)?),
                OutputFormat::Csv => anyhow::bail!("csv holds the decisions on one real: name it"),
            }
            return Ok(ExitCode::SUCCESS);
        };
        let explanation = explain(real)?;
        match self.output {
            OutputFormat::Table => print!("{}", text(&explanation)),
            OutputFormat::Csv => print!("{}", table(&explanation.decisions).to_csv()),
            OutputFormat::Json => println!("{}", serde_json::to_string_pretty(&explanation)?),
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What it has, and why.
fn short(of: &Explanation) -> String {
    let head = format!(
        "{} of {}: weight {} of {} configured, {}, {} open",
        of.real,
        of.vip,
        weight(of.effective_weight),
        of.weight,
        of.state,
        plural(of.connections_active as usize, "connection")
    );
    let why = match (&of.law, of.decisions.last()) {
        (Some(law), Some(last)) => sentence(of, law, last),
        (Some(law), None) => format!("law {law}: no interval yet"),
        (None, _) => format!(
            "no controller (control = \"off\"): scheduler {} goes by the configured weight",
            of.scheduler
        ),
    };
    format!("{head}\n{why}\n")
}

fn text(of: &Explanation) -> String {
    let mut text = short(of);
    if !of.decisions.is_empty() {
        text.push('\n');
    }
    if let Some(parts) = parts(&of.measured) {
        let _ = writeln!(text, "{parts}\n");
    }
    if let Some(grades) = grades(of) {
        let _ = writeln!(text, "{grades}\n");
    }
    if of.latency == "client" {
        let heard = match of.report_age_s {
            Some(s) => format!("{s:.1} s ago"),
            None => "never".to_owned(),
        };
        let _ = writeln!(
            text,
            "steered by client latency: its agent reported {heard}; {} intervals of the vip were steered by another latency, without reports\n",
            of.latency_fallbacks
        );
    }
    if !of.decisions.is_empty() {
        text.push_str(&table(&of.decisions).to_text());
    }
    text
}

/// What its responses take, and of that the path and the server.
fn parts(of: &LatencyView) -> Option<String> {
    let mean_ms = of.mean_us? / 1e3;
    let sampled = match of.one_in {
        0 | 1 => String::new(),
        one_in => format!(" by 1 in {one_in} connections"),
    };
    let grade = quality(of);
    let known_pct = 100.0 * of.path_samples as f64 / of.samples.max(1) as f64;
    Some(match (of.server_us, of.path_us) {
        (Some(server_us), Some(path_us)) => format!(
            "responses of the last 10 s took {mean_ms:.2} ms{sampled}, graded {grade}; of {known_pct:.0} % the path is known: it took {:.2} ms, the server {:.2} ms",
            path_us / 1e3,
            server_us / 1e3
        ),
        _ => format!(
            "responses of the last 10 s took {mean_ms:.2} ms{sampled}, graded {grade}, over paths that are not known"
        ),
    })
}

/// How many of its latencies say little about it, if there are any.
fn grades(of: &Explanation) -> Option<String> {
    let low_pct = 100.0 * of.measured.low as f64 / of.measured.samples.max(1) as f64;
    let counts = match of.takes_low {
        true => "they count, because hardly any others of the vip come",
        false => "they do not count",
    };
    (of.measured.low > 0).then(|| {
        format!(
            "{low_pct:.0} % of them are graded low, all of their connection off alike: {counts}"
        )
    })
}

fn sentence(of: &Explanation, law: &str, last: &DecisionView) -> String {
    let latency = match (last.latency_us, last.error_pct) {
        (Some(us), Some(error)) => format!(
            "{:.2} ms{} by some {:.0} samples (standard error {error:.0} %), the fastest real has {} ms",
            us / 1e3,
            match last.latency_kind.as_str() {
                "client" => " for its clients",
                "server" => " at the server",
                _ => "",
            },
            last.samples,
            ms(last.lowest_us)
        ),
        _ => "no latency known".to_owned(),
    };
    let acts = match of.control.as_str() {
        "observe" => "computed, not set",
        _ => "in force",
    };
    format!("law {law} ({acts}): {}; {latency}", last.reason_text)
}

fn table(decisions: &[DecisionView]) -> TextTable {
    let mut table = TextTable::new(&[
        ">AGO S",
        ">INTERVALS",
        ">BEFORE",
        ">AFTER",
        ">LATENCY MS",
        ">LOWEST MS",
        ">SAMPLES",
        ">ERROR PCT",
        ">FRESHNESS",
        "REASON",
    ]);
    let newest = decisions.last().map_or(0, |last| last.last.monotonic_ns);
    for one in decisions.iter().rev() {
        let ago_ns = newest.saturating_sub(one.last.monotonic_ns);
        table.push(vec![
            format!("{:.1}", ago_ns as f64 / 1e9),
            one.intervals.to_string(),
            weight(one.before),
            weight(one.after),
            ms(one.latency_us),
            ms(one.lowest_us),
            format!("{:.0}", one.samples),
            one.error_pct
                .map_or("-".to_owned(), |pct| format!("{pct:.0}")),
            format!("{:.2}", one.freshness),
            one.reason_text.clone(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use causeway_api::Moment;

    use super::*;

    #[test]
    fn it_says_why_with_figures() {
        let at = |s: u64| Moment {
            realtime_ns: s * 1_000_000_000,
            monotonic_ns: s * 1_000_000_000,
        };
        let decision = |s, after, reason: &str| DecisionView {
            first: at(s),
            last: at(s),
            intervals: 1,
            law: "equalise".into(),
            before: 1.0,
            after,
            latency_us: Some(50_000.0),
            latency_kind: "client".into(),
            lowest_us: Some(5_000.0),
            samples: 38.0,
            error_pct: Some(16.6),
            freshness: 0.5,
            reason: "above".into(),
            reason_text: reason.into(),
            observed: false,
        };
        let explanation = Explanation {
            vip: "web".into(),
            real: "10.0.0.1".into(),
            scheduler: "latency".into(),
            control: "equalise".into(),
            law: Some("equalise".into()),
            weight: 1,
            effective_weight: 0.02,
            state: "active".into(),
            connections_active: 3,
            latency: "client".into(),
            latency_fallbacks: 7,
            takes_low: false,
            report_age_s: Some(0.4),
            measured: LatencyView {
                mean_us: Some(54_000.0),
                samples: 50,
                server_us: Some(4_000.0),
                path_us: Some(50_000.0),
                path_samples: 40,
                low: 5,
                quality: "medium".into(),
                ..LatencyView::default()
            },
            decisions: vec![
                decision(1, 0.7, "gave weight"),
                decision(3, 0.02, "slow, held at the floor"),
            ],
        };
        let text = text(&explanation);
        assert!(text.starts_with(
            "10.0.0.1 of web: weight 0.020 of 1 configured, active, 3 connections open\n"
        ));
        assert!(text.contains("its agent reported 0.4 s ago; 7 intervals"));
        assert!(text.contains("law equalise (in force): slow, held at the floor; 50.00 ms for its clients by some 38 samples (standard error 17 %), the fastest real has 5.00 ms"));
        assert!(text.contains(
            "took 54.00 ms, graded medium; of 80 % the path is known: it took 50.00 ms, the server 4.00 ms"
        ));
        assert!(text.contains(
            "10 % of them are graded low, all of their connection off alike: they do not count"
        ));
        let one = Explanation {
            connections_active: 1,
            ..explanation.clone()
        };
        assert!(super::text(&one).contains("active, 1 connection open\n"));
        let takes_low = Explanation {
            takes_low: true,
            ..explanation
        };
        assert!(super::text(&takes_low).contains("off alike: they count, because"));
        let csv = table(&takes_low.decisions).to_csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert!(lines[0].starts_with("ago_s,") && lines[0].contains(",error_pct,"));
        assert!(lines[2].starts_with("2.0,1,") && lines[2].contains(",17,"));
    }
}
