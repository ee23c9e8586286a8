// SPDX-License-Identifier: Apache-2.0
//! `causeway cookie`: keys and their rotation, ids, and what agents need to know.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use causeway_api::balancer::{Stats, VipView};
use causeway_api::fleet::FleetView;
use causeway_core::cookie::CookieKey;
use causeway_report::table::{OutputFormat, TextTable};
use causeway_service::config::KeysFile;
use causeway_service::random;
use clap::Subcommand;

use crate::client::Target;
use crate::stats_cmd;

const KEYS: &str = "/etc/causeway/cookie.keys";

/// Arguments of `causeway cookie`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the VIPs with cookies, the ids of their reals and what became of packets
    Show {
        #[command(flatten)]
        target: Target,
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Print what the agent on a real needs to know: the [agent.cookie] part of its file
    Agent {
        #[command(flatten)]
        target: Target,
        /// Address of the real
        real: IpAddr,
        /// The keys file on the real's machine
        #[arg(long, default_value = KEYS)]
        keys: PathBuf,
    },
    /// Make the balancers' keys file
    NewKeys {
        /// The file, which must not exist
        #[arg(default_value = KEYS)]
        file: PathBuf,
    },
    /// Print a server's keys file, which holds keys of its own reports alone
    ServerKeys {
        /// The server's addresses, as balancers know it
        #[arg(required = true)]
        server: Vec<IpAddr>,
        /// The balancers' keys file
        #[arg(long, default_value = KEYS)]
        keys: PathBuf,
    },
    /// Replace the keys in three steps; after each, every balancer and server gets its file
    ///
    /// In a fleet, agents that follow the book get theirs from it; whether this balancer is of one is asked
    /// of the daemon, if it runs.
    Rotate {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        step: Step,
        /// The balancers' keys file
        #[arg(default_value = KEYS)]
        file: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Step {
    /// First: put new keys into the epoch that is not in use
    #[arg(long)]
    prepare: bool,
    /// Second, when all balancers and servers have the new keys: new connections get them
    #[arg(long)]
    switch: bool,
    /// Third, when the former epoch's connections are gone: delete its keys
    #[arg(long)]
    retire: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Show { target, output } => show(&target, output)?,
            Action::Agent { target, real, keys } => {
                print!("{}", agent_toml(&target.get("/v1/stats")?, real, &keys)?);
            }
            Action::NewKeys { file } => new_keys(&file)?,
            Action::ServerKeys { server, keys } => {
                let named = |error| anyhow::anyhow!("keys file {}: {error}", keys.display());
                let file = KeysFile::read(&keys).and_then(|file| file.for_server(&server));
                print!("{}", file.map_err(named)?.to_text());
            }
            Action::Rotate { target, step, file } => {
                let fleet = target.get_if_any::<FleetView>("/v1/fleet");
                rotate(&file, &step, matches!(fleet, Ok(Some(_))))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn show(target: &Target, output: OutputFormat) -> anyhow::Result<()> {
    let stats: Stats = target.get("/v1/stats")?;
    let with = |vip: &&VipView| vip.cookie.mode != "none";
    let vips: Vec<&VipView> = stats.vips.iter().filter(with).collect();
    if output == OutputFormat::Json {
        let views: Vec<_> = vips.iter().map(|vip| (&vip.name, &vip.cookie)).collect();
        println!("{}", serde_json::to_string_pretty(&views)?);
        return Ok(());
    }
    let mut ids = TextTable::new(&["VIP", "COOKIE", ">BITS", ">ID BITS", "REAL", "STATE", "IDS"]);
    for vip in vips {
        for real in &vip.reals {
            let numbers: Vec<String> = real.cookie_ids.iter().map(u16::to_string).collect();
            ids.push(vec![
                vip.name.clone(),
                vip.cookie.mode.clone(),
                vip.cookie.bits.to_string(),
                vip.cookie.id_bits.to_string(),
                real.address.clone(),
                real.state.clone(),
                numbers.join(" "),
            ]);
        }
    }
    let results = stats_cmd::cookies(&stats.vips, true);
    match output {
        OutputFormat::Csv => print!("{}", results.to_csv()),
        _ => print!("{}\n{}", ids.to_text(), results.to_text()),
    }
    Ok(())
}

/// The cookie part of an agent's file.
fn agent_toml(stats: &Stats, real: IpAddr, keys: &Path) -> anyhow::Result<String> {
    let mut text = format!("[agent.cookie]\nkeys = \"{}\"\n", keys.display());
    let mut entries = 0;
    // What QUIC servers issue ids by is another file.
    let with_timestamps = |vip: &&VipView| vip.cookie.mode.starts_with("timestamp");
    for vip in stats.vips.iter().filter(with_timestamps) {
        let is_real = |view: &&causeway_api::balancer::RealView| view.address == real.to_string();
        let Some(id) = vip
            .reals
            .iter()
            .find(is_real)
            .and_then(|real| real.cookie_ids.last())
        else {
            continue;
        };
        entries += 1;
        write!(
            text,
            "\n[[agent.cookie.vip]]       # {}\naddress = \"{}\"\nport = {}\nid = {id}\n\
             cookie = \"{}\"\ncookie_bits = {}\ncookie_id_bits = {}\n",
            vip.name, vip.address, vip.port, vip.cookie.mode, vip.cookie.bits, vip.cookie.id_bits
        )?;
    }
    if entries == 0 {
        bail!("no vip with cookies has a real {real}; `causeway cookie show` lists them");
    }
    Ok(text)
}

fn random_key() -> anyhow::Result<CookieKey> {
    Ok(CookieKey::from_bytes(random()?))
}

fn new_keys(file: &Path) -> anyhow::Result<()> {
    if file.exists() {
        bail!(
            "{} exists; connections carry cookies of its keys. `causeway cookie rotate` replaces them without a break",
            file.display()
        );
    }
    let keys = KeysFile::new(random_key()?, random_key()?);
    let written = keys.write(file);
    written.with_context(|| format!("cannot write {}", file.display()))?;
    println!(
        "{}: keys for epoch 0; copy it to every balancer, and to each server what `causeway cookie server-keys ADDRESS` prints",
        file.display()
    );
    Ok(())
}

fn rotate(file: &Path, step: &Step, in_fleet: bool) -> anyhow::Result<()> {
    let (spread, issued) = match in_fleet {
        true => (
            "Copy the file to every balancer of the fleet and reload them (agents that follow the book need no file)",
            " once `causeway fleet status` says that the new key is issued",
        ),
        false => (
            "Copy the file to every balancer, and what `causeway cookie server-keys` prints to each server; reload them all",
            "",
        ),
    };
    let refused = |error: String| anyhow::anyhow!("keys file {}: {error}", file.display());
    let keys = KeysFile::read(file).map_err(refused)?;
    let current = keys.cookies.current();
    let (current, other) = (current.index(), current.other().index());
    let (after, said) = if step.prepare {
        let random = [random_key()?, random_key()?, random_key()?];
        let after = keys.prepare(random);
        let said = format!(
            "epoch {other} has new keys. {spread}, then run `causeway cookie rotate --switch`{issued}"
        );
        (after, said)
    } else if step.switch {
        let said = format!(
            "new connections get epoch {other}. {spread}. Those of epoch {current} go on; when `causeway cookie show` counts no more packets of epoch{current}, run `causeway cookie rotate --retire`"
        );
        (keys.switch(), said)
    } else {
        let said = format!("epoch {other} has no keys any more. {spread}");
        (keys.retire(), said)
    };
    let written = after.map_err(refused)?.write(file);
    written.with_context(|| format!("cannot write {}", file.display()))?;
    println!("{}: {said}", file.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_told_of_vips_with_timestamps_alone() {
        let mut stats: Stats = serde_json::from_str(crate::stats_cmd::ANSWER).expect("an answer");
        let mut vip = stats.vips.remove(0);
        let real: IpAddr = vip.reals[0].address.parse().expect("an address");
        vip.reals[0].cookie_ids = vec![4, 7];
        stats.vips = ["timestamp", "quic", "tier", "none", "timestamp-light"]
            .map(|mode| {
                let mut vip = vip.clone();
                vip.name = format!("with {mode}");
                vip.cookie.mode = mode.to_owned();
                vip
            })
            .into();
        let told = agent_toml(&stats, real, Path::new("k")).expect("entries");
        let named: Vec<&str> = told
            .lines()
            .filter_map(|line| line.split_once("# with ").map(|(_, mode)| mode))
            .collect();
        assert_eq!(named, ["timestamp", "timestamp-light"]);
        assert!(told.contains("\nid = 7\n"), "{told}");
        stats.vips.retain(|vip| vip.cookie.mode == "quic");
        let said = agent_toml(&stats, real, Path::new("k")).expect_err("none");
        assert!(said.to_string().contains("no vip with cookies"), "{said}");
    }
}
