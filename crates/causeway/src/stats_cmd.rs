// SPDX-License-Identifier: Apache-2.0
//! `causeway stats`: what the balancer counts and measures.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use causeway_api::VerdictView;
use causeway_api::balancer::{FlowTableView, LatencyView, RealView, Stats, VipView};
use causeway_report::table::{OutputFormat, TextTable, ms, weight};
use causeway_service::config::units;

use crate::agent_cmd;
use crate::client::Target;

/// Arguments of `causeway stats`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Show client latency instead, as the agent of this server measures it
    #[arg(long)]
    clients: bool,
    /// With --clients: Unix socket of the agent
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/run/causeway/agent.sock",
        env = "CAUSEWAY_AGENT_SOCKET"
    )]
    agent: PathBuf,
    #[command(flatten)]
    view: View,
}

/// How counters are shown.
#[derive(Debug, clap::Args)]
pub(crate) struct View {
    /// How to print; csv holds a balancer's reals, a tunnel's paths
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,

    /// Show all counters, also those that are zero
    #[arg(short, long)]
    all: bool,

    /// Print again after this long, until stopped
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "1s", value_parser = units::duration)]
    watch: Option<Duration>,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if self.clients {
            return agent_cmd::clients(&Target::agent(self.agent), &self.view);
        }
        self.view.show(|output, all| {
            let stats: Stats = self.target.get("/v1/stats")?;
            Ok(match output {
                OutputFormat::Table => table(&stats, all),
                OutputFormat::Json => serde_json::to_string_pretty(&stats)? + "\n",
                OutputFormat::Csv => reals(&stats.vips).to_csv(),
            })
        })
    }
}

impl View {
    /// Prints what `read(format, all)` gives, once or until stopped.
    pub(crate) fn show(
        &self,
        read: impl Fn(OutputFormat, bool) -> anyhow::Result<String>,
    ) -> anyhow::Result<ExitCode> {
        let mut answered = false;
        loop {
            let text = match (read(self.output, self.all), self.watch) {
                (Ok(text), _) => text,
                // It was there, and may be again.
                (Err(error), Some(interval)) if answered => {
                    eprintln!("causeway: {error:#}");
                    thread::sleep(interval);
                    continue;
                }
                (Err(error), _) => return Err(error),
            };
            answered = true;
            let mut out = std::io::stdout().lock();
            if self.watch.is_some() && self.output == OutputFormat::Table && out.is_terminal() {
                // Home, then clear to the end: no flicker.
                out.write_all(b"\x1b[H\x1b[J")?;
            }
            out.write_all(text.as_bytes())?;
            out.flush()?;
            match self.watch {
                Some(interval) => thread::sleep(interval),
                None => return Ok(ExitCode::SUCCESS),
            }
        }
    }
}

/// Verdicts, VIPs and reals, one table each; cookies where there are some.
pub(crate) fn table(stats: &Stats, all: bool) -> String {
    let mut tables = vec![
        verdicts(&stats.verdicts, all).to_text(),
        flow_table(&stats.flow_table, all).to_text(),
        vips(&stats.vips).to_text(),
        reals(&stats.vips).to_text(),
    ];
    if stats.vips.iter().any(|vip| !vip.sources.is_empty()) {
        tables.push(sources(&stats.vips).to_text());
    }
    if stats.vips.iter().any(|vip| !vip.cookie.results.is_empty()) {
        tables.push(cookies(&stats.vips, all).to_text());
    }
    tables.join("\n")
}

/// How full the flow table is, and why flows ended; reasons that never were only if `all`.
fn flow_table(view: &FlowTableView, all: bool) -> TextTable {
    let mut table = TextTable::new(&["FLOW TABLE", ">FLOWS"]);
    let rows = [("slots", view.slots), ("in use", view.flows)];
    for (what, flows) in rows.into_iter().chain(view.ended()) {
        if all || flows > 0 {
            table.push(vec![what.to_owned(), flows.to_string()]);
        }
    }
    table
}

/// One row per group of clients that has reals of its own.
fn sources(vips: &[VipView]) -> TextTable {
    let mut table = TextTable::new(&["VIP", "CLIENTS", "REALS", "OTHERWISE", ">PICKED"]);
    for vip in vips {
        for source in &vip.sources {
            table.push(vec![
                vip.name.clone(),
                source.from.join(" "),
                source.reals.join(" "),
                source.fallback.clone(),
                source.picked.to_string(),
            ]);
        }
    }
    table
}

/// One row per VIP and result of its cookies; those that never happened only if `all`.
pub(crate) fn cookies(vips: &[VipView], all: bool) -> TextTable {
    let mut table = TextTable::new(&["VIP", "COOKIE", "ACTION", ">PACKETS"]);
    for vip in vips {
        for result in &vip.cookie.results {
            if all || result.packets > 0 {
                table.push(vec![
                    vip.name.clone(),
                    result.result.clone(),
                    result.action.clone(),
                    result.packets.to_string(),
                ]);
            }
        }
    }
    table
}

/// One row per verdict; those that never happened only if `all`.
pub(crate) fn verdicts(verdicts: &[VerdictView], all: bool) -> TextTable {
    let mut table = TextTable::new(&["VERDICT", "ACTION", ">PACKETS", ">BYTES"]);
    for verdict in verdicts {
        if all || verdict.packets > 0 {
            table.push(vec![
                verdict.verdict.clone(),
                verdict.action.clone(),
                verdict.packets.to_string(),
                verdict.bytes.to_string(),
            ]);
        }
    }
    table
}

/// One row per VIP.
pub(crate) fn vips(vips: &[VipView]) -> TextTable {
    let mut table = TextTable::new(&[
        "VIP",
        "ADDRESS",
        "PROTOCOL",
        "SCHEDULER",
        "FORWARDING",
        "CONTROL",
        ">REALS",
        ">PACKETS",
        ">BYTES",
    ]);
    for vip in vips {
        table.push(vec![
            vip.name.clone(),
            address(vip),
            vip.protocol.clone(),
            vip.scheduler.clone(),
            vip.forwarding.clone(),
            vip.control.clone(),
            vip.reals.len().to_string(),
            vip.packets.to_string(),
            vip.bytes.to_string(),
        ]);
    }
    table
}

fn address(vip: &VipView) -> String {
    let port = match vip.port {
        0 => "*".to_owned(),
        port => port.to_string(),
    };
    match vip.address.contains(':') {
        true => format!("[{}]:{port}", vip.address),
        false => format!("{}:{port}", vip.address),
    }
}

/// Why the real is as it is: its health first, if that keeps it out.
fn reason(real: &RealView) -> String {
    match real.health.as_ref().filter(|_| real.state == "down") {
        Some(health) => health.reason.clone(),
        None => match real.slow_start_s {
            Some(left_s) => format!("slow start, {left_s:.0} s left; {}", real.reason_text),
            None => real.reason_text.clone(),
        },
    }
}

/// What its probes say, if there are any.
fn health(real: &RealView) -> &str {
    real.health.as_ref().map_or("", |health| &health.state)
}

/// Which part of connections is measured.
pub(crate) fn sampled(one_in: u32) -> String {
    match one_in {
        0 | 1 => "all".to_owned(),
        one_in => format!("1/{one_in}"),
    }
}

/// How far to trust what is shown of a real's latency.
pub(crate) fn grade(of: &LatencyView) -> String {
    match of.quality.as_str() {
        "" => "none".to_owned(),
        word => word.to_owned(),
    }
}

/// Of its samples the part graded low, which are in all that is shown.
fn low_pct(of: &LatencyView) -> String {
    match of.samples {
        0 => String::new(),
        samples => format!("{:.0}", 100.0 * of.low as f64 / samples as f64),
    }
}

/// One row per real.
pub(crate) fn reals(vips: &[VipView]) -> TextTable {
    let mut table = TextTable::new(&[
        "VIP",
        "REAL",
        "STATE",
        "HEALTH",
        ">WEIGHT",
        ">EFFECTIVE",
        ">PACKETS",
        ">OPENED",
        ">ACTIVE",
        ">REQUESTS",
        ">SAMPLED",
        ">MEAN MS",
        ">SERVER MS",
        ">P50 MS",
        ">P90 MS",
        ">P99 MS",
        "GRADE",
        ">LOW PCT",
        "REASON",
    ]);
    for vip in vips {
        for real in &vip.reals {
            table.push(row(vip, real));
        }
    }
    table
}

fn row(vip: &VipView, real: &RealView) -> Vec<String> {
    vec![
        vip.name.clone(),
        real.address.clone(),
        real.state.clone(),
        health(real).to_owned(),
        real.weight.to_string(),
        weight(real.effective_weight),
        real.packets.to_string(),
        real.connections_opened.to_string(),
        real.connections_active.to_string(),
        real.requests.to_string(),
        sampled(real.latency.one_in),
        ms(real.latency.mean_us),
        ms(real.latency.server_us),
        ms(real.latency.p50_us),
        ms(real.latency.p90_us),
        ms(real.latency.p99_us),
        grade(&real.latency),
        low_pct(&real.latency),
        reason(real),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a daemon answers, as the balancer's tests hold it.
    const STATS: &str = include_str!("../../balancer/testdata/stats.json");

    #[test]
    fn the_table_of_stats_is_this() {
        let stats: Stats = serde_json::from_str(STATS).unwrap();
        let expected = include_str!("../testdata/stats.txt");
        let shown = table(&stats, false);
        assert_eq!(shown, expected, "\n{shown}");
        let csv = reals(&stats.vips).to_csv();
        assert!(csv.starts_with("vip,real,state,health,weight,effective,packets,opened,active,requests,sampled,mean_ms,server_ms,p50_ms,p90_ms,p99_ms,grade,low_pct,reason\nweb,10.0.0.1,active,,1,0.020,"));
    }
}
