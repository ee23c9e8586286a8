// SPDX-License-Identifier: Apache-2.0
//! `causeway tunnel`: one end of a tunnel between hosts.

use std::path::PathBuf;
use std::process::ExitCode;

use causeway_api::tunnel::{PathView, TunnelStatus};
use causeway_report::table::{OutputFormat, TextTable};
use causeway_service::process::Process;
use causeway_tunnel::{TunnelConfig, run};
use hyper::Uri;

use crate::client::{Credentials, Target};
use crate::stats_cmd::View;

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

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show paths and counts of a running tunnel
    Status {
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
        #[command(flatten)]
        view: View,
    },
}

impl Args {
    /// Whether the command prints and ends.
    pub(crate) fn only_prints(&self) -> bool {
        self.action.is_some()
    }

    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(Action::Status {
            socket,
            api,
            credentials,
            view,
        }) = self.action
        {
            return status(&Target::tunnel(socket).or_at(api, credentials), &view);
        }
        let process = Process::begin()?;
        match TunnelConfig::load(&self.config) {
            Ok(config) => run(process, self.config, config).map(|()| ExitCode::SUCCESS),
            Err(errors) => {
                eprintln!("{errors}");
                Ok(ExitCode::FAILURE)
            }
        }
    }
}

fn status(target: &Target, view: &View) -> anyhow::Result<ExitCode> {
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
    if let Some(trouble) = trouble(totals.sessions, &status.paths) {
        page += &format!("{trouble}\n");
    }
    if let Some(error) = &status.last_reload_error {
        page += &format!("the last reload was refused: {error}\n");
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

/// Why nothing is carried, if nothing is.
fn trouble(sessions: u64, paths: &[PathView]) -> Option<&'static str> {
    let carries = |path: &PathView| ["alive", "partly"].contains(&path.state.as_str());
    match (sessions, paths.iter().any(carries)) {
        (_, true) => None,
        (0, false) => Some(
            "the other end has not answered yet: is it started, with these paths, keys and as many threads, and do firewalls let UDP pass?",
        ),
        (_, false) => Some("no path is alive: nothing is carried until the other end answers"),
    }
}

fn paths(paths: &[PathView]) -> TextTable {
    let mut table = TextTable::new(&[
        "PATH",
        "STATE",
        "LOCAL",
        "REMOTE",
        ">MTU",
        ">RTT_US",
        ">MIN_US",
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
            format!("{:.0}", path.rtt_us),
            format!("{:.0}", path.min_rtt_us),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_that_carries_nothing_says_so() {
        let path = |state: &str| PathView {
            state: state.to_owned(),
            ..PathView::default()
        };
        let told = |sessions, states: [&str; 2]| trouble(sessions, &states.map(path));
        assert!(told(0, ["probing", "probing"]).is_some_and(|t| t.contains("not answered yet")));
        assert!(told(1, ["dead", "down"]).is_some_and(|t| t.contains("no path is alive")));
        assert_eq!(told(1, ["dead", "alive"]), None);
        assert_eq!(told(1, ["partly", "dead"]), None);
    }
}
