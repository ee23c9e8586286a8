// SPDX-License-Identifier: Apache-2.0
//! `causeway status`, `causeway agent status`, `causeway tunnel status`: whether a running daemon is
//! well, for people and for scripts. Each daemon has a file of what can be wrong with it.

mod agent;
mod balancer;
mod tunnel;

use std::process::ExitCode;
use std::time::Duration;

use causeway_api::Moment;
use causeway_report::table::{OutputFormat, TextTable};
use serde::Serialize;
use serde_json::{Value, json};

pub(crate) use self::agent::ask as of_agent;
pub(crate) use self::tunnel::{ask as of_tunnel, troubles as tunnel_troubles};
use crate::client::Target;
use crate::vip_cmd::print;

/// Without an answer: what init scripts end with where a program does not run.
const NO_ANSWER: u8 = 3;

/// Say whether a running balancer is well; exit code 1 if something is wrong
///
/// Prints what it serves, and a line for each thing that an operator should look at: a real or a VIP
/// that is down, a file that was refused, a next hop that is silent, a data plane that would not
/// outlive the daemon. What was drained by hand is no trouble, unless its VIP is then not ready. Ends
/// with 0 where there is none, with 1 where there is some, and with 3 where the daemon could not be asked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        run(&self.target, self.output, balancer::ask)
    }
}

/// How a daemon is.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Condition {
    #[serde(flatten)]
    daemon: Daemon,
    /// What it serves, in figures.
    #[serde(flatten)]
    figures: Value,
    /// The same as a sentence.
    #[serde(skip)]
    serves: String,
    troubles: Vec<Trouble>,
}

/// What runs, where and since when.
#[derive(Debug, PartialEq, Serialize)]
struct Daemon {
    daemon: &'static str,
    version: String,
    interface: String,
    /// None where no program is on the interface.
    mode: Option<String>,
    pid: u32,
    uptime_s: f64,
    config_file: String,
}

/// Something that an operator should look at.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Trouble {
    /// One word for programs; docs/reference/commands.md lists them.
    kind: &'static str,
    vip: Option<String>,
    real: Option<String>,
    /// What it is, and what mends it.
    pub text: String,
}

impl Trouble {
    fn new(kind: &'static str, text: impl Into<String>) -> Self {
        Self {
            kind,
            vip: None,
            real: None,
            text: text.into(),
        }
    }

    fn of_vip(kind: &'static str, vip: &str, text: String) -> Self {
        Self {
            vip: Some(vip.to_owned()),
            ..Self::new(kind, text)
        }
    }
}

/// Asks, and prints the answer.
pub(crate) fn run(
    target: &Target,
    output: OutputFormat,
    ask: impl Fn(&Target) -> anyhow::Result<Condition>,
) -> anyhow::Result<ExitCode> {
    let condition = match ask(target) {
        Ok(condition) => condition,
        Err(error) => {
            eprintln!("causeway: {error:#}");
            return Ok(ExitCode::from(NO_ANSWER));
        }
    };
    match output {
        OutputFormat::Table => print!("{}", condition.text()),
        output => print(output, &json!(condition), &condition.table())?,
    }
    Ok(match condition.troubles.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

impl Condition {
    fn text(&self) -> String {
        let mut lines = vec![self.daemon.text(), self.serves.clone()];
        let troubles = self.troubles.iter();
        lines.extend(troubles.map(|trouble| format!("trouble: {}", trouble.text)));
        if self.troubles.is_empty() {
            lines.push("all is well".to_owned());
        }
        lines.join("\n") + "\n"
    }

    fn table(&self) -> TextTable {
        let mut table = TextTable::new(&["kind", "vip", "real", "text"]);
        for trouble in &self.troubles {
            table.push(vec![
                trouble.kind.to_owned(),
                trouble.vip.clone().unwrap_or_default(),
                trouble.real.clone().unwrap_or_default(),
                trouble.text.clone(),
            ]);
        }
        table
    }
}

/// Why the file is not in force, if so; `reload` is the command that reads it again.
fn refused(
    file: &str,
    last_good: bool,
    last_reload_error: &Option<String>,
    reload: &str,
) -> Option<Trouble> {
    if last_good {
        let why = last_reload_error.iter();
        let why: String = why.map(|why| format!(": {why}")).collect();
        return Some(Trouble::new(
            "last_good",
            format!(
                "{file} was refused at the start, and the copy of the last good one is in force: correct it, then `{reload}`{why}"
            ),
        ));
    }
    let error = last_reload_error.as_ref()?;
    Some(Trouble::new(
        "reload_refused",
        format!("the last reload was refused, and what was before holds: {error}"),
    ))
}

/// A sentence of the daemon's own.
fn told(kind: &'static str, error: &Option<String>) -> Option<Trouble> {
    Some(Trouble::new(kind, error.as_ref()?))
}

fn mode(word: &str) -> Option<String> {
    (word != "none").then(|| word.to_owned())
}

fn seconds(started: Moment, now: Moment) -> f64 {
    now.monotonic_ns.saturating_sub(started.monotonic_ns) as f64 / 1e9
}

impl Daemon {
    fn text(&self) -> String {
        let mode = match (&self.mode, self.daemon) {
            (Some(mode), _) => format!(" in {mode} mode"),
            (None, "tunnel") => String::new(),
            (None, _) => " without XDP".to_owned(),
        };
        format!(
            "{} {} on {}{mode}, pid {}, runs for {} with {}",
            self.daemon,
            self.version,
            self.interface,
            self.pid,
            span(Duration::from_secs_f64(self.uptime_s)),
            self.config_file
        )
    }
}

/// Its two largest units.
fn span(of: Duration) -> String {
    let seconds = of.as_secs();
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let minutes = seconds / 60 % 60;
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}
