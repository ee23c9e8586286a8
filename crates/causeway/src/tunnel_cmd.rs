// SPDX-License-Identifier: Apache-2.0
//! `causeway tunnel`: one end of a tunnel between hosts.

use std::path::PathBuf;
use std::process::ExitCode;

use causeway_api::tunnel::{PathView, TunnelStatus};
use causeway_report::table::{OutputFormat, TextTable};
use causeway_service::last_good::StartsByCopy as _;
use causeway_service::log;
use causeway_service::process::Process;
use causeway_tunnel::{TunnelConfig, run};
use hyper::Uri;

use crate::client::{Credentials, Target};
use crate::stats_cmd::View;
use crate::{reload_cmd, status};

/// Run one end of a multipath tunnel that repairs loss below the guests' TCP
///
/// Carries what is routed to its TUN device to the other end, over several paths at
/// once, until SIGTERM or SIGINT. SIGHUP reads the configuration and the keys again.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,

    /// Configuration file
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "/etc/causeway/causeway-tunnel.toml"
    )]
    config: PathBuf,
}

/// Where the tunnel listens.
#[derive(Debug, clap::Args)]
struct TunnelTarget {
    /// Unix socket of the tunnel
    #[arg(
        short,
        long,
        value_name = "PATH",
        default_value = "/run/causeway/tunnel.sock",
        env = "CAUSEWAY_TUNNEL_SOCKET"
    )]
    socket: PathBuf,
    /// Address of a tunnel's daemon on another host: https://HOST:PORT
    #[arg(long, value_name = "URL", env = "CAUSEWAY_TUNNEL_API")]
    api: Option<Uri>,
    #[command(flatten)]
    credentials: Credentials,
}

impl From<TunnelTarget> for Target {
    fn from(at: TunnelTarget) -> Self {
        Self::tunnel(at.socket).or_at(at.api, at.credentials)
    }
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Say whether a running tunnel carries; exit code 1 if something is wrong, 3 without an answer
    Status {
        #[command(flatten)]
        target: TunnelTarget,
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Show paths and counts of a running tunnel
    Stats {
        #[command(flatten)]
        target: TunnelTarget,
        #[command(flatten)]
        view: View,
    },
    /// Make a running tunnel read its file and keys again; fails if they are refused
    Reload {
        #[command(flatten)]
        target: TunnelTarget,
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
}

impl Args {
    /// Whether the command prints and ends.
    pub(crate) fn only_prints(&self) -> bool {
        self.action.is_some()
    }

    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Some(Action::Status { target, output }) => {
                return status::run(&target.into(), output, status::of_tunnel);
            }
            Some(Action::Stats { target, view }) => return stats(&target.into(), &view),
            Some(Action::Reload { target, output }) => {
                return reload_cmd::run(&target.into(), output);
            }
            None => {}
        }
        let process = Process::begin()?;
        match TunnelConfig::load_to_start(&self.config) {
            Ok(start) => run(process, self.config, start).map(|()| ExitCode::SUCCESS),
            Err(errors) => {
                log::failure(&errors.to_string());
                Ok(ExitCode::FAILURE)
            }
        }
    }
}

fn stats(target: &Target, view: &View) -> anyhow::Result<ExitCode> {
    view.show(|output, all| {
        let status: TunnelStatus = target.get("/v1/status")?;
        Ok(match output {
            OutputFormat::Table => text(&status, all),
            OutputFormat::Json => serde_json::to_string_pretty(&status)? + "\n",
            OutputFormat::Csv => paths(&status.paths).to_csv(),
        })
    })
}

fn text(status: &TunnelStatus, all: bool) -> String {
    let totals = &status.totals;
    let mut page = format!(
        "{}: {}, {}\n",
        status.device,
        match status.threads {
            1 => "1 thread".to_owned(),
            threads => format!("{threads} threads"),
        },
        match status.key {
            0 => "in clear".to_owned(),
            key => format!("sealed with key {key}"),
        }
    );
    for trouble in status::tunnel_troubles(status) {
        page += &format!("{}\n", trouble.text);
    }
    page += &format!("\n{}\n", paths(&status.paths).to_text());
    let mut counts = TextTable::new(&["COUNT", ">VALUE"]);
    for (name, value) in [
        ("frames from guests", totals.frames_in),
        ("frames to guests", totals.frames_out),
        ("chunks sent", totals.chunks_sent),
        ("chunks retransmitted", totals.chunks_retransmitted),
        ("chunks received", totals.chunks_received),
        ("frames out of order", totals.frames_reordered),
        ("frames skipped", totals.frames_skipped),
        ("ring to guests full", totals.vnic_full),
        ("refused by guests' kernel", totals.guest_refused),
        ("guests' device down or full", totals.guest_stuck),
        ("send errors", totals.send_errors),
        ("socket errors", totals.socket_errors),
        ("sessions", totals.sessions),
    ] {
        if all || value > 0 {
            counts.push(vec![name.to_owned(), value.to_string()]);
        }
    }
    for drops in &status.drops {
        if all || drops.count > 0 {
            let name = format!("dropped: {}", drops.reason);
            counts.push(vec![name, drops.count.to_string()]);
        }
    }
    page + &counts.to_text()
}

/// An RTT; empty until there is one.
fn known(rtt_us: f64) -> String {
    match rtt_us > 0.0 {
        true => format!("{rtt_us:.0}"),
        false => String::new(),
    }
}

fn paths(paths: &[PathView]) -> TextTable {
    let mut table = TextTable::new(&[
        "PATH",
        "STATE",
        "LOCAL",
        "REMOTE",
        ">MTU",
        ">RTT US",
        ">MIN US",
        ">SHARE",
        ">SENT",
        ">LOST",
        ">TIMEOUTS",
        ">SWITCHES",
        ">FAILURES",
    ]);
    for path in paths {
        let lost = path.lost_by_gap + path.lost_by_timeout + path.lost_by_failure;
        table.push(vec![
            path.id.to_string(),
            path.state.clone(),
            path.local.clone(),
            path.remote.clone(),
            path.mtu.to_string(),
            known(path.rtt_us),
            known(path.min_rtt_us),
            format!("{:.3}", path.share),
            path.sent_chunks.to_string(),
            lost.to_string(),
            path.timeouts.to_string(),
            path.switches.to_string(),
            path.failures.to_string(),
        ]);
    }
    table
}
