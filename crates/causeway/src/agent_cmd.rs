// SPDX-License-Identifier: Apache-2.0
//! `causeway agent`: the agent of a server behind a balancer.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use causeway_agent::clients::{history, view};
use causeway_agent::{AgentConfig, join, run, unload};
use causeway_api::agent::{AgentStats, HistoryRow};
use causeway_report::table::{OutputFormat, TextTable};
use causeway_service::config::{ConfigErrors, units};
use causeway_service::last_good::StartsByCopy as _;
use causeway_service::log;
use causeway_service::process::Process;

use crate::client::{AgentTarget, Target};
use crate::stats_cmd::{self, View};
use crate::{clients_table, reload_cmd, status, threshold_cmd};

/// Run the agent of a server: decapsulation, cookies, reports to balancers
///
/// Takes the outer header off the balancers' packets, in XDP, until SIGTERM or SIGINT; the
/// data plane works on without the process. SIGHUP reads the configuration again.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,

    #[command(flatten)]
    file: ConfigFile,
}

#[derive(Debug, clap::Args)]
struct ConfigFile {
    /// Configuration file
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "/etc/causeway/agent.toml"
    )]
    config: PathBuf,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Say whether a running agent is well; exit code 1 if something is wrong, 3 without an answer
    Status {
        #[command(flatten)]
        target: AgentTarget,
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Show what a running agent counts
    Stats {
        #[command(flatten)]
        target: AgentTarget,
        /// Show client latency instead
        #[arg(long)]
        clients: bool,
        #[command(flatten)]
        view: View,
    },
    /// Make a running agent read its file again; fails if the file is refused
    Reload {
        #[command(flatten)]
        target: AgentTarget,
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Get this server's keys file from a balancer of a fleet, by a token that is good once
    ///
    /// `causeway fleet token` on a balancer makes the token. The agent then needs `book = true`.
    Join {
        /// Where a balancer listens for agents
        #[arg(value_name = "ADDRESS:PORT")]
        balancer: SocketAddr,
        /// The token; `-` reads it from standard input
        token: String,
        /// The address by which balancers know this server, if it has several
        #[arg(long, value_name = "ADDRESS")]
        from: Option<IpAddr>,
        /// The keys file, which must not exist
        #[arg(long, value_name = "FILE", default_value = "/etc/causeway/cookie.keys")]
        keys: PathBuf,
    },
    /// Take the data plane down: packets of tunnels go to the kernel again
    ///
    /// After the agent was stopped. A stop, a restart or an upgrade needs none of that.
    Unload {
        #[command(flatten)]
        file: ConfigFile,
        /// Confirm that tunnels are no longer to end here
        #[arg(long)]
        yes: bool,
    },
    /// Be told when clients wait too long: thresholds of a running agent
    ///
    /// Those of its file stand in [[agent.clients.threshold]]; those that are added end with the agent.
    Threshold {
        #[command(subcommand)]
        action: threshold_cmd::ThresholdAction,
    },
    /// Print what a history of clients holds, one row for each second and category
    History {
        /// The history: `history` under [agent.clients]
        #[arg(default_value = "/var/lib/causeway/clients.history")]
        file: PathBuf,
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
        /// Only the last part of it
        #[arg(long = "for", value_name = "TIME", value_parser = units::duration)]
        span: Option<Duration>,
    },
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Some(Action::Status { target, output }) => {
                return status::run(&target.into(), output, status::of_agent);
            }
            Some(Action::Stats {
                target,
                clients: of_clients,
                view,
            }) => {
                let target = target.into();
                return match of_clients {
                    false => stats(&target, &view),
                    true => stats_cmd::clients(&target, &view),
                };
            }
            Some(Action::Reload { target, output }) => {
                return reload_cmd::run(&target.into(), output);
            }
            Some(Action::Join {
                balancer,
                mut token,
                from,
                keys,
            }) => {
                if token == "-" {
                    token.clear();
                    std::io::stdin().read_line(&mut token)?;
                }
                println!("{}", join(balancer, from, &token, &keys)?);
                return Ok(ExitCode::SUCCESS);
            }
            Some(Action::Unload { file, yes }) => {
                let start = match AgentConfig::load_to_start(&file.config) {
                    Ok(start) => start,
                    Err(errors) => return Ok(refused(&errors)),
                };
                start.log_refusal(&file.config);
                if !yes {
                    bail!(
                        "this takes {} down; say --yes if that is meant",
                        start.config.summary()
                    );
                }
                unload(&file.config, &start.config)?;
                return Ok(ExitCode::SUCCESS);
            }
            Some(Action::Threshold { action }) => return action.run(),
            Some(Action::History { file, output, span }) => {
                let last = span.map(|span| span.as_secs());
                print!("{}", history_text(&file, output, last)?);
                return Ok(ExitCode::SUCCESS);
            }
            None => {}
        }
        let process = Process::begin()?;
        let config = match AgentConfig::load_to_start(&self.file.config) {
            Ok(config) => config,
            Err(errors) => return Ok(refused(&errors)),
        };
        run(process, self.file.config, config)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Whether the command prints and ends.
    pub(crate) fn only_prints(&self) -> bool {
        self.action.is_some()
    }
}

fn refused(errors: &ConfigErrors) -> ExitCode {
    log::failure(&errors.to_string());
    ExitCode::FAILURE
}

fn stats(target: &Target, view: &View) -> anyhow::Result<ExitCode> {
    view.show(|output, all| {
        let stats: AgentStats = target.get("/v1/stats")?;
        Ok(match output {
            OutputFormat::Table => [
                stats_cmd::verdicts(&stats.verdicts, all).to_text(),
                cookies(&stats, all),
                books(&stats),
            ]
            .concat(),
            OutputFormat::Json => serde_json::to_string_pretty(&stats)? + "\n",
            OutputFormat::Csv => stats_cmd::verdicts(&stats.verdicts, all).to_csv(),
        })
    })
}

fn history_text(file: &Path, output: OutputFormat, last: Option<u64>) -> anyhow::Result<String> {
    let mut records = history::read(file)?;
    if let (Some(last), Some(newest)) = (last, records.last()) {
        let (boot, from) = (newest.boot, newest.second.saturating_sub(last));
        records.retain(|record| record.boot == boot && record.second > from);
    }
    let rows: Vec<HistoryRow> = records.iter().map(view::history_row).collect();
    Ok(match output {
        OutputFormat::Json => serde_json::to_string_pretty(&rows)? + "\n",
        OutputFormat::Table => clients_table::history(&rows).to_text(),
        OutputFormat::Csv => clients_table::history(&rows).to_csv(),
    })
}

/// One row per id; nothing for a server that follows no book.
fn books(stats: &AgentStats) -> String {
    let mut table = TextTable::new(&["SERVER", "BOOK", "KEY", "VIP", ">ID"]);
    for book in &stats.books {
        let row = |vip: &str, id: String| {
            vec![
                book.server.clone(),
                book.position.to_string(),
                book.key_issued.to_string(),
                vip.to_owned(),
                id,
            ]
        };
        if book.ids.is_empty() {
            table.push(row("", String::new()));
        }
        for own in &book.ids {
            table.push(row(&own.vip, own.id.to_string()));
        }
    }
    match stats.books.is_empty() {
        true => String::new(),
        false => format!("\n{}", table.to_text()),
    }
}

/// One row per kind of event; nothing for a server without cookies.
fn cookies(stats: &AgentStats, all: bool) -> String {
    let mut table = TextTable::new(&["COOKIES", ">SEGMENTS"]);
    for event in &stats.cookies {
        if all || event.segments > 0 {
            table.push(vec![event.event.clone(), event.segments.to_string()]);
        }
    }
    match stats.cookies.is_empty() {
        true => String::new(),
        false => format!("\n{}", table.to_text()),
    }
}
