// SPDX-License-Identifier: Apache-2.0
//! `causeway cookie`: keys and their rotation, ids, and what agents need to know.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use causeway_api::balancer::{Stats, VipView};
use causeway_core::cookie::{CookieKey, KeyEpoch, Keys};
use causeway_report::table::{OutputFormat, TextTable};
use causeway_service::config::{read_keys, write_keys};
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
    /// Make a keys file; copy it to every balancer and server
    NewKeys {
        /// The file, which must not exist
        #[arg(default_value = KEYS)]
        file: PathBuf,
    },
    /// Replace a key in two steps: `--prepare`, distribute and reload; `--switch`, and again
    Rotate {
        #[command(flatten)]
        step: Step,
        /// The keys file
        #[arg(default_value = KEYS)]
        file: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Step {
    /// First: put a new key into the epoch that is not in use. Its former connections must be gone
    #[arg(long)]
    prepare: bool,
    /// Second, when every balancer has the new key: new connections get it
    #[arg(long)]
    switch: bool,
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
            Action::Rotate { step, file } => rotate(&file, step.prepare)?,
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
    for vip in &stats.vips {
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
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("cannot read /dev/urandom")?;
    Ok(CookieKey::from_bytes(bytes))
}

fn new_keys(file: &Path) -> anyhow::Result<()> {
    if file.exists() {
        bail!(
            "{} exists; connections carry cookies of its keys. `causeway cookie rotate` replaces them without a break",
            file.display()
        );
    }
    let keys = Keys::new(KeyEpoch::Zero, random_key()?, None);
    write_keys(file, &keys).with_context(|| format!("cannot write {}", file.display()))?;
    println!(
        "{}: a key for epoch 0; copy it to every balancer and server",
        file.display()
    );
    Ok(())
}

fn rotate(file: &Path, prepare: bool) -> anyhow::Result<()> {
    let keys = read_keys(file).map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))?;
    let (after, said) = if prepare {
        let other = keys.current().other().index();
        let said = format!(
            "epoch {other} has a new key. Copy the file to every balancer and server and reload them all (SIGHUP), then run `causeway cookie rotate --switch`"
        );
        (keys.prepare(random_key()?), said)
    } else {
        let after = keys.switch().with_context(|| {
            format!(
                "{} has no other key to switch to; run `causeway cookie rotate --prepare` first",
                file.display()
            )
        })?;
        let (new, old) = (after.current().index(), keys.current().index());
        let said = format!(
            "new connections get epoch {new}. Copy the file to every server and reload the agents; connections of epoch {old} go on, and before the next --prepare they must be gone: `causeway cookie show`, result epoch{old}"
        );
        (after, said)
    };
    write_keys(file, &after).with_context(|| format!("cannot write {}", file.display()))?;
    println!("{}: {said}", file.display());
    Ok(())
}
