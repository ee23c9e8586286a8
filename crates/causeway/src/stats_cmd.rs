// SPDX-License-Identifier: Apache-2.0
//! `causeway stats`: what the balancer counts and measures.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use causeway_api::agent::ClientsView;
use causeway_api::balancer::{FlowTableView, LatencyView, RealState, RealView, Stats, VipView};
use causeway_api::{VerdictView, haproxy};
use causeway_report::table::{OutputFormat, TextTable, ms, weight};
use causeway_service::config::units;

use crate::client::Target;
use crate::clients_table;

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
    /// Print VIPs and reals in the columns of HAProxy's statistics, for programs that read those
    #[arg(long, conflicts_with_all = ["clients", "output", "all"])]
    haproxy: bool,
    #[command(flatten)]
    view: View,
}

/// How counters are shown.
#[derive(Debug, clap::Args)]
pub(crate) struct View {
    /// How to print; csv holds a balancer's reals, a tunnel's paths
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,

    /// Show all counters, also those that are zero, and all columns
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
            return clients(&Target::agent(self.agent), &self.view);
        }
        self.view.show(|output, all| {
            let stats: Stats = self.target.get("/v1/stats")?;
            Ok(match output {
                _ if self.haproxy => haproxy::csv(&stats),
                OutputFormat::Table => table(&stats, all),
                OutputFormat::Json => serde_json::to_string_pretty(&stats)? + "\n",
                OutputFormat::Csv => reals(&stats.vips, true).to_csv(),
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

/// Client latency, of a running agent.
pub(crate) fn clients(target: &Target, view: &View) -> anyhow::Result<ExitCode> {
    view.show(|output, all| {
        let clients: ClientsView = target.get("/v1/clients")?;
        Ok(match output {
            OutputFormat::Table => clients_table::text(&clients, all),
            OutputFormat::Json => serde_json::to_string_pretty(&clients)? + "\n",
            OutputFormat::Csv => clients_table::table(&clients).to_csv(),
        })
    })
}

/// Verdicts, VIPs and reals, one table each; cookies where there are some.
pub(crate) fn table(stats: &Stats, all: bool) -> String {
    let mut tables = vec![
        verdicts(&stats.verdicts, all).to_text(),
        flow_table(&stats.flow_table).to_text(),
        vips(&stats.vips).to_text(),
        reals(&stats.vips, all).to_text(),
    ];
    let ended = stats.flow_table.ended();
    if all || ended.iter().any(|(_, flows)| *flows > 0) {
        tables.insert(2, ended_flows(ended, all).to_text());
    }
    if stats.vips.iter().any(|vip| !vip.sources.is_empty()) {
        tables.push(sources(&stats.vips).to_text());
    }
    if stats.vips.iter().any(|vip| !vip.cookie.results.is_empty()) {
        tables.push(cookies(&stats.vips, all).to_text());
    }
    tables.join("\n")
}

/// How full the flow table is.
fn flow_table(view: &FlowTableView) -> TextTable {
    let mut table = TextTable::new(&["FLOW TABLE", ">FLOWS", ">PCT"]);
    let capacity = view.capacity();
    let percent = 100.0 * view.flows as f64 / capacity.max(1) as f64;
    for (what, flows, percent) in [
        ("capacity", capacity, String::new()),
        ("in use", view.flows, format!("{percent:.1}")),
    ] {
        table.push(vec![what.to_owned(), flows.to_string(), percent]);
    }
    table
}

/// Why flows ended; reasons that never were only if `all`.
fn ended_flows(ended: [(&str, u64); 4], all: bool) -> TextTable {
    let mut table = TextTable::new(&["ENDED SINCE THE START", ">FLOWS"]);
    for (why, flows) in ended {
        if all || flows > 0 {
            table.push(vec![why.to_owned(), flows.to_string()]);
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

/// Where clients find a VIP.
pub(crate) fn address(vip: &VipView) -> String {
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
fn reason(real: &RealView, text: &str) -> String {
    match (RealState::of(&real.state), &real.health) {
        (Some(RealState::Down), Some(health)) => health.reason.clone(),
        (Some(RealState::Waiting), Some(health)) => {
            format!("waits for its first probe; {}", health.reason)
        }
        _ => match real.slow_start_s {
            Some(left_s) => format!("slow start, {left_s:.0} s left; {text}"),
            None => text.to_owned(),
        },
    }
}

/// Which part of connections is measured.
pub(crate) fn sampled(one_in: u32) -> String {
    match one_in {
        0 | 1 => "all".to_owned(),
        one_in => format!("1/{one_in}"),
    }
}

/// How far to trust what is shown of a real's latency.
pub(crate) fn quality(of: &LatencyView) -> String {
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

type Cell = fn(&VipView, &RealView) -> String;

/// Columns of reals, and where they are shown: in narrow tables, in wide ones, or in both.
const COLUMNS: [(&str, bool, bool, Cell); 20] = [
    ("VIP", true, true, |vip, _| vip.name.clone()),
    ("REAL", true, true, |_, real| real.address.clone()),
    ("STATE", true, true, |_, real| real.state.clone()),
    ("HEALTH", false, true, |_, real| {
        let health = real.health.as_ref();
        health.map_or_else(String::new, |health| health.state.clone())
    }),
    (">WEIGHT", true, true, |_, real| real.weight.to_string()),
    (">EFFECTIVE", true, true, |_, real| {
        weight(real.effective_weight)
    }),
    (">PACKETS", false, true, |_, real| real.packets.to_string()),
    (">OPENED", false, true, |_, real| {
        real.connections_opened.to_string()
    }),
    (">ACTIVE", true, true, |_, real| {
        real.connections_active.to_string()
    }),
    (">REQUESTS", false, true, |_, real| {
        real.requests.to_string()
    }),
    (">SAMPLED", false, true, |_, real| {
        sampled(real.latency.one_in)
    }),
    (">MEAN MS", true, true, |_, real| ms(real.latency.mean_us)),
    (">SERVER MS", false, true, |_, real| {
        ms(real.latency.server_us)
    }),
    (">P50 MS", false, true, |_, real| ms(real.latency.p50_us)),
    (">P90 MS", false, true, |_, real| ms(real.latency.p90_us)),
    (">P99 MS", true, true, |_, real| ms(real.latency.p99_us)),
    ("QUALITY", false, true, |_, real| quality(&real.latency)),
    (">LOW PCT", false, true, |_, real| low_pct(&real.latency)),
    ("REASON", true, false, |_, real| {
        let is_off = real.reason == "off";
        reason(
            real,
            if is_off {
                "no controller"
            } else {
                &real.reason
            },
        )
    }),
    ("REASON", false, true, |_, real| {
        reason(real, &real.reason_text)
    }),
];

/// One row per real; without `all` of a width that terminals have.
pub(crate) fn reals(vips: &[VipView], all: bool) -> TextTable {
    let columns = COLUMNS
        .iter()
        .filter(|(_, narrow, wide, _)| if all { *wide } else { *narrow });
    let titles: Vec<&str> = columns.clone().map(|(title, ..)| *title).collect();
    let mut table = TextTable::new(&titles);
    for vip in vips {
        for real in &vip.reals {
            let cells = columns.clone().map(|(.., cell)| cell(vip, real));
            table.push(cells.collect());
        }
    }
    table
}

/// What a daemon answers, as the balancer's tests hold it.
#[cfg(test)]
pub(crate) const ANSWER: &str = include_str!("../../balancer/testdata/stats.json");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_stats_is_this() {
        let stats: Stats = serde_json::from_str(ANSWER).unwrap();
        let expected = include_str!("../testdata/stats.txt");
        let shown = table(&stats, false);
        assert_eq!(shown, expected, "\n{shown}");
        let widest = shown.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(90), "{widest:?}");
        let csv = reals(&stats.vips, true).to_csv();
        assert!(csv.starts_with("vip,real,state,health,weight,effective,packets,opened,active,requests,sampled,mean_ms,server_ms,p50_ms,p90_ms,p99_ms,quality,low_pct,reason\nweb,10.0.0.1,active,,1,0.020,"));
    }

    #[test]
    fn a_real_that_gets_nothing_says_what_its_probe_saw() {
        let stats: Stats = serde_json::from_str(ANSWER).unwrap();
        let mut real = stats.vips[0].reals[0].clone();
        real.health = serde_json::from_value(serde_json::json!({
            "state": "unknown", "since_monotonic_ns": 0, "reason": "refused",
            "succeeded": 0, "failed": 1,
        }))
        .unwrap();
        for (state, expected) in [
            ("active", "law"),
            ("waiting", "waits for its first probe; refused"),
            ("down", "refused"),
        ] {
            state.clone_into(&mut real.state);
            assert_eq!(reason(&real, "law"), expected);
        }
    }
}
