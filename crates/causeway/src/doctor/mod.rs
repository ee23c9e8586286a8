// SPDX-License-Identifier: Apache-2.0
//! `causeway doctor`: what on this machine stands in a daemon's way, with the command that fixes
//! it. It changes nothing.

mod look;
mod rules;
#[cfg(test)]
mod rules_tests;
mod wants;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{bail, ensure};
use causeway_netio::net_devices;
use causeway_report::table::{OutputFormat, TextTable};
use serde_json::{Value, json};

pub(crate) use self::look::is_in;
use self::look::{Nic, Seen};
use self::rules::{Finding, Level, findings};
use self::wants::{Role, Wants};

/// Where daemons look for their files.
const FILES: [&str; 3] = [
    "/etc/causeway/causeway.toml",
    "/etc/causeway/agent.toml",
    "/etc/causeway/causeway-tunnel.toml",
];

/// Check this machine for a daemon, and name the command that fixes each finding
///
/// Looks at the kernel, the interfaces and the way to the servers for the daemons whose files are
/// in /etc/causeway. Asks routers for their MAC addresses and sends servers echo requests, and
/// changes nothing. Ends with 1 if there is a fault or a warning.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Interfaces to check, instead of those in the files
    interfaces: Vec<String>,
    /// A balancer's, an agent's or a tunnel's file, instead of those in /etc/causeway
    #[arg(short, long, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// Daemon that the interfaces are for, if no file says so
    #[arg(long, value_enum, default_value_t, conflicts_with = "config")]
    role: Role,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut looks = Vec::new();
        for (file, wants) in self.wants()? {
            let devices = net_devices()?;
            let mut wants = wants;
            wants.route_paths(|index| {
                let mut all = devices.iter();
                all.find(|one| one.index == index)
                    .map(|one| one.name.clone())
            });
            if !self.interfaces.is_empty() {
                wants.interfaces = self.interfaces.iter().cloned().collect();
            }
            let seen = Seen::now(&wants, &devices)?;
            looks.push(Look {
                found: findings(&wants, &seen),
                file,
                wants,
                seen,
            });
        }
        match self.output {
            OutputFormat::Table => looks.iter().for_each(|look| print!("{}", look.text())),
            OutputFormat::Json => {
                let looks: Vec<Value> = looks.iter().map(Look::json).collect();
                println!("{}", serde_json::to_string_pretty(&looks)?);
            }
            OutputFormat::Csv => print!("{}", table(&looks).to_csv()),
        }
        let mut found = looks.iter().flat_map(|look| &look.found);
        Ok(match found.any(|finding| finding.level != Level::Note) {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        })
    }

    /// What is wanted, by file.
    fn wants(&self) -> anyhow::Result<Vec<(Option<PathBuf>, Wants)>> {
        let given = !self.config.is_empty();
        let files: Vec<PathBuf> = match given {
            true => self.config.clone(),
            false if self.interfaces.is_empty() => {
                let all = FILES.map(PathBuf::from).into_iter();
                all.filter(|file| file.exists()).collect()
            }
            false => Vec::new(),
        };
        if files.is_empty() {
            ensure!(
                !self.interfaces.is_empty(),
                "there is no file in /etc/causeway: name interfaces, as in `causeway doctor eth0`, or a file with -c"
            );
            return Ok(vec![(None, Wants::bare(self.role))]);
        }
        let read = |file: PathBuf| match Wants::of_file(&file) {
            Ok(wants) => Ok((Some(file), wants)),
            Err(errors) => bail!("{errors}"),
        };
        files.into_iter().map(read).collect()
    }
}

/// What was seen for one daemon, and what is wrong.
struct Look {
    file: Option<PathBuf>,
    wants: Wants,
    seen: Seen,
    found: Vec<Finding>,
}

impl Look {
    fn json(&self) -> Value {
        json!({
            "role": self.wants.role,
            "file": self.file,
            "seen": self.seen,
            "findings": self.found,
        })
    }

    fn text(&self) -> String {
        let host = &self.seen.host;
        let role = match self.wants.role {
            Role::Balancer => "balancer",
            Role::Agent => "agent",
            Role::Tunnel => "tunnel",
        };
        let file = self.file.as_deref().unwrap_or_else(|| Path::new("no file"));
        let mut text = format!(
            "{role} ({}), Linux {}, {} CPUs\n",
            file.display(),
            host.kernel,
            host.cpus
        );
        for nic in &self.seen.nics {
            text.push_str(&format!("{}\n", line(nic, &self.wants)));
        }
        for way in &self.seen.ways {
            for (address, answers) in way.gateways.iter().flatten() {
                let state = if *answers { "answers" } else { "is silent" };
                text.push_str(&format!("{}: next hop {address} {state}\n", way.interface));
            }
        }
        for finding in &self.found {
            let Finding {
                level,
                place,
                says,
                mend,
                ..
            } = finding;
            text.push_str(&format!(
                "\n{}: {place}: {says}\n    {mend}\n",
                level.as_str()
            ));
        }
        if self.found.is_empty() {
            text.push_str("nothing stands in the way\n");
        }
        text.push('\n');
        text
    }
}

/// A device in a line.
fn line(nic: &Nic, wants: &Wants) -> String {
    let queues = nic.queues;
    let counts = [
        (queues.combined, "combined"),
        (queues.rx, "rx"),
        (queues.tx, "tx"),
    ];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    let xdp = match (&nic.program, nic.native_xdp) {
        (Some(program), _) => {
            let mode = if program.native { "native" } else { "generic" };
            format!("runs {} ({mode})", program.name)
        }
        (None, Some(true)) => "native XDP".to_owned(),
        (None, Some(false)) => "generic XDP alone".to_owned(),
        (None, None) => "XDP as the driver has it".to_owned(),
    };
    let mut parts = vec![
        format!("driver {} {}", or_none(&nic.driver), nic.driver_version)
            .trim_end()
            .to_owned(),
        xdp,
        format!("queues {}", or_none(&counts.join(" + "))),
        format!("MTU {}", nic.mtu),
    ];
    if wants.encapsulates() {
        let left = nic.mtu.saturating_sub(wants.overhead.into());
        parts.push(format!("{left} behind the outer header"));
    }
    if !nic.offloads.is_empty() {
        parts.push(nic.offloads.join(" "));
    }
    if let Some(bond) = &nic.bond {
        parts.push(format!(
            "bond {} {} of {}",
            bond.mode,
            bond.hash,
            bond.slaves.join(" ")
        ));
    }
    if let Some((below, id)) = &nic.vlan {
        parts.push(format!("VLAN {id} of {below}"));
    }
    format!("{}: {}", nic.name, parts.join(", "))
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "unknown" } else { text }
}

fn table(looks: &[Look]) -> TextTable {
    let mut table = TextTable::new(&["level", "place", "rule", "says", "mend"]);
    for finding in looks.iter().flat_map(|look| &look.found) {
        let Finding {
            level,
            place,
            rule,
            says,
            mend,
        } = finding;
        table.push(vec![
            level.as_str().to_owned(),
            place.clone(),
            (*rule).to_owned(),
            says.clone(),
            mend.clone(),
        ]);
    }
    table
}
