// SPDX-License-Identifier: Apache-2.0
//! `causeway config`: look at a configuration without touching the machine.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use causeway_agent::AgentConfig;
use causeway_api::balancer::{Change, ChangeKind, Difference, Status};
use causeway_balancer::kernel::memory;
use causeway_balancer::{BalancerConfig, vips_on_host};
use causeway_netio::own_addresses;
use causeway_report::table::{OutputFormat, TextTable};
use causeway_service::config::{ConfigErrors, has_key, is_readable, read};
use causeway_service::{FileRights, beside, replace_beside};
use causeway_tunnel::TunnelConfig;
use clap::Subcommand;
use hyper::Uri;
use nix::sys::statfs::BPF_FS_MAGIC;
use serde_json::{Value, json};

use crate::client::{Credentials, Target};
use crate::doctor::is_in;
use crate::vip_cmd::print;

/// Arguments of `causeway config`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Check a balancer's, an agent's or a tunnel's file; each error is one line with its place and
    /// remedy
    Check {
        /// The file to check; `-` is standard input
        #[arg(default_value = "/etc/causeway/causeway.toml")]
        file: PathBuf,
        /// Also ask the balancer that runs at the file's socket whether it would take it at a
        /// reload; done in any case if that runs with this file
        #[arg(long)]
        running: bool,
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Show what a reload of a balancer's file would change in the running one, or compare two
    /// files
    ///
    /// Exit code 0: no change; 1: changes; 2: the new file, or a change, would be refused, or the
    /// daemon cannot be asked.
    Diff {
        /// The new file; with two files, first the old one, then the new one
        #[arg(num_args = 1..=2, default_value = "/etc/causeway/causeway.toml")]
        files: Vec<PathBuf>,
        /// Unix socket of the daemon, if it is not the file's
        #[arg(short, long, value_name = "PATH", env = "CAUSEWAY_SOCKET")]
        socket: Option<PathBuf>,
        /// Address of a balancer on another host: https://HOST:PORT
        #[arg(long, value_name = "URL", env = "CAUSEWAY_API")]
        api: Option<Uri>,
        #[command(flatten)]
        credentials: Box<Credentials>,
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Give the keys of an old file their new names; comments and order stay
    ///
    /// Prints the file to standard output, and what was done to standard error. Exit code 1:
    /// something is left to do by hand, or the check of the replaced file finds an error.
    Migrate {
        /// The file
        #[arg(default_value = "/etc/causeway/causeway.toml")]
        file: PathBuf,
        /// Replace the file, whose former text goes to FILE.old
        #[arg(long)]
        write: bool,
    },
    /// Write the JSON Schema of a daemon's file to standard output; editors complete and check by it
    Schema {
        /// Whose
        #[arg(default_value = "balancer")]
        daemon: Daemon,
    },
}

/// The daemons that have a file and an API.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Daemon {
    Balancer,
    Agent,
    Tunnel,
}

impl Daemon {
    fn schema(self) -> String {
        match self {
            Self::Balancer => BalancerConfig::schema(),
            Self::Agent => AgentConfig::schema(),
            Self::Tunnel => TunnelConfig::schema(),
        }
    }
}

impl Args {
    /// Runs the command; a faulty file gives exit code 1.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Check {
                file,
                running,
                output,
            } => {
                let file = match file.as_os_str() == "-" {
                    true => PathBuf::from("/dev/stdin"),
                    false => file,
                };
                return tell_check(&file, running, output);
            }
            Action::Diff {
                files,
                socket,
                api,
                credentials,
                output,
            } => {
                let at = |socket| Target::balancer(socket).or_at(api, *credentials);
                return diff(&files, socket, at, output);
            }
            Action::Migrate { file, write } => return migrate(&file, write),
            Action::Schema { daemon } => print!("{}", daemon.schema()),
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Gives a file's keys their new names.
fn migrate(file: &Path, write: bool) -> anyhow::Result<ExitCode> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    anyhow::ensure!(
        !text.trim_start().starts_with('{'),
        "{} is JSON, which has no comments to keep: `causeway config check` names the new keys",
        file.display()
    );
    let migrated = if has_key(&text, "tunnel") {
        TunnelConfig::migrated(&text)
    } else if has_key(&text, "agent") {
        AgentConfig::migrated(&text)
    } else {
        BalancerConfig::migrated(&text)
    };
    let migrated = migrated.map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))?;
    for done in &migrated.done {
        eprintln!("{done} now");
    }
    for left in &migrated.left {
        eprintln!("left: {left}");
    }
    match (write, migrated.done.is_empty()) {
        (true, true) if migrated.left.is_empty() => {
            eprintln!("{}: no key has another name now", file.display());
        }
        (true, true) => {}
        (true, false) => replace(file, &text, &migrated.text)?,
        (false, _) => print!("{}", migrated.text),
    }
    let faults = match write {
        true => check(file).err().map(|errors| errors.to_string()),
        false => None,
    };
    if let Some(faults) = &faults {
        eprintln!("{faults}");
    }
    let is_well = faults.is_none() && migrated.left.is_empty();
    Ok(ExitCode::from(u8::from(!is_well)))
}

/// Replaces a file in one step, and keeps its former text beside it.
fn replace(file: &Path, former: &str, text: &str) -> anyhow::Result<()> {
    let rights = FileRights {
        mode: fs::metadata(file)?.mode() & 0o7777,
        owner: None,
    };
    for (path, text) in [(&beside(file, ".old"), former), (&file.to_owned(), text)] {
        replace_beside(path, text.as_bytes(), rights)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Says whether a file is well, or each of its faults.
fn tell_check(file: &Path, running: bool, output: OutputFormat) -> anyhow::Result<ExitCode> {
    let mut table = TextTable::new(&["file", "ok", "told"]);
    let mut row = |ok: bool, told: String| {
        table.push(vec![file.display().to_string(), ok.to_string(), told]);
    };
    let Checked {
        text,
        summary,
        notes,
        mut warnings,
        balancers,
    } = match check(file) {
        Ok(checked) => checked,
        Err(errors) if output == OutputFormat::Table => {
            eprintln!("{errors}");
            return Ok(ExitCode::FAILURE);
        }
        Err(errors) => {
            for line in errors.to_string().lines() {
                row(false, line.to_owned());
            }
            print(output, &refusal(&errors), &table)?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let vips = balancers.as_ref().map(|config| config.vips.len());
    let reals = balancers.as_ref().map(|config| {
        let reals = config.vips.iter().map(|vip| vip.reals.len());
        reals.sum::<usize>()
    });
    let (memory, is_taken) = match balancers {
        Some(config) => {
            let memory = memory(&config);
            let addresses: BTreeSet<IpAddr> = config.vips.iter().map(|vip| vip.address).collect();
            let taken = match ask(file, &text, config.socket, running) {
                Err(error) if output != OutputFormat::Table => {
                    let told = format!("{error:#}");
                    row(false, told.clone());
                    let errors = ConfigErrors::of_file(file, told);
                    print(output, &refusal(&errors), &table)?;
                    return Ok(ExitCode::FAILURE);
                }
                taken => taken?,
            };
            // What runs may be in another network namespace.
            let held = taken.iter().flat_map(|status| &status.held_vips);
            let held = held.filter(|held| addresses.contains(&held.address));
            warnings.extend(held.map(|held| held.text.clone()));
            warnings.sort_unstable();
            warnings.dedup();
            (Some(memory?), taken.is_some())
        }
        None => (None, false),
    };
    if output == OutputFormat::Table {
        for warning in &warnings {
            eprintln!("warning: {warning}");
        }
        for note in &notes {
            eprintln!("note: {note}");
        }
        println!("{}: ok: {summary}", file.display());
        if let Some((_, memory)) = memory {
            println!("{memory}");
        }
        if is_taken {
            println!("the running balancer would take it by a reload");
        }
        return Ok(ExitCode::SUCCESS);
    }
    row(true, summary.clone());
    for told in warnings.iter().chain(&notes) {
        row(true, told.clone());
    }
    let (memory_bytes, memory) = memory.unzip();
    let value = json!({
        "file": file,
        "ok": true,
        "summary": summary,
        "vips": vips,
        "reals": reals,
        "memory": memory,
        "memory_bytes": memory_bytes,
        "warnings": warnings,
        "notes": notes,
    });
    print(output, &value, &table)?;
    Ok(ExitCode::SUCCESS)
}

/// A refused file, for programs.
fn refusal(errors: &ConfigErrors) -> Value {
    let faults = errors.faults.iter();
    let faults = faults.map(|fault| json!({ "line": fault.line, "text": fault.message }));
    json!({
        "file": errors.file,
        "ok": false,
        "values_unchecked": errors.values_unchecked,
        "faults": faults.collect::<Vec<_>>(),
    })
}

/// Exit code if a change would be refused, or the two cannot be compared: as diff(1) has it.
const REFUSED: u8 = 2;

fn diff(
    files: &[PathBuf],
    socket: Option<PathBuf>,
    at: impl FnOnce(PathBuf) -> Target,
    output: OutputFormat,
) -> anyhow::Result<ExitCode> {
    match difference(files, socket, at) {
        Ok(difference) => {
            // As diff(1): nothing of the same.
            if !(difference.changes.is_empty() && matches!(output, OutputFormat::Table)) {
                print(
                    output,
                    &json!(difference),
                    &changes_table(&difference.changes),
                )?;
            }
            difference
                .refused
                .iter()
                .for_each(|sentence| eprintln!("refused: {sentence}"));
            Ok(
                match (difference.refused.is_empty(), difference.changes.is_empty()) {
                    (false, _) => ExitCode::from(REFUSED),
                    (true, false) => ExitCode::FAILURE,
                    (true, true) => ExitCode::SUCCESS,
                },
            )
        }
        Err(error) => {
            eprintln!("{error:#}");
            Ok(ExitCode::from(REFUSED))
        }
    }
}

fn difference(
    files: &[PathBuf],
    socket: Option<PathBuf>,
    at: impl FnOnce(PathBuf) -> Target,
) -> anyhow::Result<Difference> {
    if let [former, new] = files {
        let new = BalancerConfig::load(new)?;
        let former = BalancerConfig::load(former)?;
        let refused = new.refused_by_reload(&former);
        return Ok(Difference {
            changes: new.changes(&former),
            refused: refused.into_iter().collect(),
        });
    }
    let file = &files[0];
    let text = read(file)?;
    let config = BalancerConfig::of_balancer(file, &text)?;
    at(socket.unwrap_or(config.socket)).post("/v1/diff", &text)
}

/// A line for each change, as people read a difference.
pub(crate) fn changes_table(changes: &[Change]) -> TextTable {
    let mut table = TextTable::new(&["change", "vip", "real", "key", "from", "to", "needs"]);
    for change in changes {
        let kind = match change.change {
            ChangeKind::Added => "+",
            ChangeKind::Removed => "-",
            ChangeKind::Changed => "~",
        };
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let needs = match (change.needs_unload, change.needs_restart) {
            (true, _) => "unload",
            (false, true) => "restart",
            (false, false) => "",
        };
        table.push(vec![
            kind.to_owned(),
            text(&change.vip),
            text(&change.real),
            text(&change.key),
            text(&change.from),
            text(&change.to),
            needs.to_owned(),
        ]);
    }
    table
}

/// Asks the balancer at `socket`, if it runs with this file or must be asked, whether it would
/// take it; gives its status then.
fn ask(file: &Path, text: &str, socket: PathBuf, running: bool) -> anyhow::Result<Option<Status>> {
    let target = Target::balancer(socket);
    let status = target.get::<Status>("/v1/status");
    let same = |status: &Status| {
        let own = file.canonicalize();
        own.is_ok_and(|own| {
            Path::new(&status.config_file)
                .canonicalize()
                .is_ok_and(|f| f == own)
        })
    };
    match (status, running) {
        (Err(error), true) => Err(error),
        (Err(_), false) => Ok(None),
        (Ok(status), false) if !same(&status) => Ok(None),
        (Ok(status), _) => {
            let taken = target.post::<String>("/v1/check", text);
            let refused = || format!("{}: the running balancer would refuse it", file.display());
            taken.map(|_| Some(status)).with_context(refused)
        }
    }
}

/// A file without a fault.
#[derive(Debug)]
struct Checked {
    text: String,
    /// What it holds, in one line.
    summary: String,
    /// What this machine lacks for it, or shows of it.
    notes: Vec<String>,
    /// What would do harm on this machine.
    warnings: Vec<String>,
    /// A balancer's.
    balancers: Option<BalancerConfig>,
}

/// Reads and validates a file of any kind. A balancer's may have a million lines, and is read once.
fn check(path: &Path) -> Result<Checked, ConfigErrors> {
    let text = read(path)?;
    let errors = match BalancerConfig::parse(path, &text) {
        Ok(config) => {
            let mut notes = missing(path, &config.interface, Some(&config.pin_dir));
            notes.extend(BalancerConfig::open_secret(path, &text));
            let fleet = config.fleet.as_ref();
            notes.extend(fleet.and_then(|fleet| fleet.clear_password()));
            // What cannot be asked is not told; the file may be another machine's.
            let own = own_addresses().unwrap_or_default();
            let held = vips_on_host(&config, &own).into_iter();
            return Ok(Checked {
                summary: config.summary(),
                notes,
                warnings: held.map(|held| held.text).collect(),
                balancers: Some(config),
                text,
            });
        }
        Err(errors) => errors,
    };
    let other = |summary, notes| Checked {
        text: text.clone(),
        summary,
        notes,
        warnings: Vec::new(),
        balancers: None,
    };
    if causeway_tunnel::config::is_tunnels(&text) {
        let config = TunnelConfig::parse(path, &text)?;
        return Ok(other(config.summary(), Vec::new()));
    }
    if causeway_agent::config::is_agents(&text) {
        let config = AgentConfig::parse(path, &text)?;
        let pins = config.decapsulates().then_some(config.pin_dir.as_path());
        let notes = missing(path, &config.interface, pins);
        return Ok(other(config.summary(), notes));
    }
    let balancers = ["interface", "vip"];
    let is_balancers = balancers.iter().any(|key| has_key(&text, key));
    match is_balancers || !is_readable(&text) {
        true => Err(errors),
        false => Err(errors.beginning_with(
            "taken for a balancer's file, as it has neither `[agent]` nor `[tunnel]`",
        )),
    }
}

/// What the daemon of a file would not find on this machine; the file may be another's.
fn missing(path: &Path, interface: &str, pin_dir: Option<&Path>) -> Vec<String> {
    let mut lacks = Vec::new();
    if !Path::new("/sys/class/net").join(interface).exists() {
        lacks.push(format!("there is no interface {interface} here"));
    }
    if let Some(dir) = pin_dir.filter(|dir| !is_in(dir, BPF_FS_MAGIC)) {
        let dir = dir.display();
        lacks.push(format!("pin_dir {dir} is in no BPF file system here"));
    }
    let name = path.display();
    let told = |lack| format!("{name}: {lack}; `causeway doctor -c {name}` checks the machine");
    lacks.into_iter().map(told).collect()
}

/// Whether a file is an agent's. One that cannot be read is not: the daemon that loads it says why.
pub(crate) fn is_agents_file(path: &Path) -> bool {
    read(path).is_ok_and(|text| causeway_agent::config::is_agents(&text))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn lines<C: std::fmt::Debug>(parsed: Result<C, ConfigErrors>) -> Vec<String> {
        let errors = parsed.unwrap_err().to_string();
        errors.lines().map(str::to_owned).collect()
    }

    #[test]
    fn an_old_file_becomes_a_new_one_in_its_place() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("lb.toml");
        let old = "interface = \"eth0\"\n[defaults]\nneed = 1\n\n# The site.\n[[vip]]\naddress = \"192.0.2.1\"\nport = 80\n\
                   real = [{ address = \"10.0.0.1\" }]\n";
        fs::write(&file, old).expect("write");
        for _ in 0..2 {
            let code = migrate(&file, true).expect("a file");
            assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS));
            let text = fs::read_to_string(&file).expect("a file");
            assert_eq!(text, old.replace("need", "min_healthy"));
            let former = fs::read_to_string(dir.path().join("lb.toml.old")).expect("a file");
            assert_eq!(former, old);
        }
        fs::write(&file, "{ \"interface\": \"eth0\" }").expect("write");
        assert!(
            migrate(&file, false)
                .unwrap_err()
                .to_string()
                .contains("is JSON")
        );
    }

    #[test]
    fn a_former_copy_that_is_open_to_all_never_holds_the_new_text() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("lb.toml");
        fs::write(&file, "former = \"secret\"").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("its mode");
        for left in ["lb.toml.old", "lb.toml.new"] {
            fs::write(dir.path().join(left), "").expect("written");
        }
        let old = dir.path().join("lb.toml.old");
        let mut open = fs::File::open(&old).expect("open to all");
        replace(&file, "former = \"secret\"", "new = \"secret\"").expect("replaced");
        let mut seen = String::new();
        open.read_to_string(&mut seen).expect("read");
        assert_eq!(seen, "");
        for (path, text) in [(&old, "former = \"secret\""), (&file, "new = \"secret\"")] {
            assert_eq!(fs::read_to_string(path).expect("a file"), text);
            let mode = fs::metadata(path).expect("a file").permissions().mode();
            assert_eq!(mode & 0o777, 0o640, "{}", path.display());
        }
    }

    #[test]
    fn all_unknown_keys_and_wrong_types_of_a_balancers_file_are_told_at_once() {
        let text = "interfaec = \"eth0\"\nxyz = 1\n[contrl]\ninterval = \"1s\"\n\
                    [[vip]]\nadress = \"198.51.100.10\"\nport = \"443\"\n\
                    [[vip.real]]\naddress = 7\nwieght = 3\n[vip.health]\nprob = \"tcp\"\n";
        let told = lines(BalancerConfig::parse("lb.toml".as_ref(), text));
        assert_eq!(
            told,
            [
                "lb.toml:1: unknown key `interfaec`; did you mean `interface`?",
                "lb.toml:2: unknown key `xyz`; known here are interface, pin_dir, state_dir, socket, socket_group, http, api, reconcile, reload, hash_key, unserved, xdp, encap, flow_table, stateful, limits, measure, control, cookie, agent_reports, fleet, peers, announce, history, defaults, pool, vip",
                "lb.toml:3: unknown key `contrl`; did you mean `control`?",
                "lb.toml:6: unknown key `adress`; did you mean `address`?",
                "lb.toml:7: invalid type: string \"443\", expected a whole number",
                "lb.toml:9: invalid type: integer `7`, expected a string",
                "lb.toml:10: unknown key `wieght`; did you mean `weight`?",
                "lb.toml:12: unknown key `prob`; did you mean `probe`?",
                "lb.toml: the values were not checked; mend these first",
            ]
        );
    }

    #[test]
    fn a_key_of_another_table_is_reported_with_its_table() {
        let text = "health = { probe = \"tcp\" }\nweight = 2\nvips = 5\nkeys = \"/keys\"\n\
                    [xdp]\ninterface = \"eth0\"\n[[vip]]\n[[vip.real]]\nprobe = \"tcp\"\n";
        let told = lines(BalancerConfig::parse("lb.toml".as_ref(), text));
        assert_eq!(
            told,
            [
                "lb.toml:1: unknown key `health` here; it belongs to `[[vip]]`, `[defaults]` or `[pool.NAME]`",
                "lb.toml:2: unknown key `weight` here; it belongs to `[[defaults.real]]`, `[[vip.real]]` or `[[pool.NAME.real]]`",
                "lb.toml:3: unknown key `vips` here; did you mean `vip`? `vips` belongs to `[limits]`",
                "lb.toml:4: unknown key `keys` here; it belongs to `[agent_reports]`, `[cookie]` or `[peers]`",
                "lb.toml:6: unknown key `interface` here; it belongs to the top level of the file, above all tables",
                "lb.toml:9: unknown key `probe` here; it belongs to `[defaults.health]`, `[vip.health]` or `[pool.NAME.health]`",
                "lb.toml: the values were not checked; mend these first",
            ]
        );
        // A key of several tables is found in each, once.
        let told = lines(TunnelConfig::parse(
            "tunnel.toml".as_ref(),
            "[tunnel]\n[tunnel.engine]\nmtu = 1500\n",
        ));
        assert_eq!(
            told,
            [
                "tunnel.toml:3: unknown key `mtu` here; it belongs to `[tunnel]` or `[[tunnel.path]]`",
                "tunnel.toml: the values were not checked; mend these first",
            ]
        );
    }

    #[test]
    fn wrong_types_are_told_in_words_of_the_file() {
        let text =
            "interface = \"eth0\"\nhttp = 9470\n[flow_table]\nipv4 = 1.5\n[vip]\nport = 80\n";
        let told = lines(BalancerConfig::parse("lb.toml".as_ref(), text));
        assert_eq!(
            told,
            [
                "lb.toml:2: neither an address nor false; write for example \"127.0.0.1:9470\"",
                "lb.toml:4: not a count; write a whole number, or for example \"64Ki\"",
                "lb.toml:5: there may be several of these tables: write the name in two pairs of brackets, as in [[vip]]",
                "lb.toml: the values were not checked; mend these first",
            ]
        );
    }

    #[test]
    fn all_unknown_keys_of_an_agents_file_are_told_at_once() {
        let text = "[agent]\ninterfac = \"eth0\"\nadresses = []\n[agent.cooky]\n";
        let told = lines(AgentConfig::parse("agent.toml".as_ref(), text));
        assert_eq!(
            told,
            [
                "agent.toml:2: unknown key `interfac`; did you mean `interface`?",
                "agent.toml:3: unknown key `adresses`; did you mean `addresses`?",
                "agent.toml:4: unknown key `cooky`; did you mean `cookie`?",
                "agent.toml: the values were not checked; mend these first",
            ]
        );
    }

    #[test]
    fn all_unknown_keys_of_a_tunnels_file_are_told_at_once() {
        let text = "[tunnel]\ndevise = \"cw0\"\naddresses = [\"10.5.0.1/24\", 5]\n\
                    tunnel.path = 1\n[tunnel.engin]\nrto = 4\n[[tunnels]]\n";
        let told = lines(TunnelConfig::parse("tunnel.toml".as_ref(), text));
        assert_eq!(
            told,
            [
                "tunnel.toml:2: unknown key `devise`; did you mean `device`?",
                "tunnel.toml:3: invalid type: integer `5`, expected a string",
                "tunnel.toml:4: unknown key `tunnel` here; it belongs to the top level of the file",
                "tunnel.toml:5: unknown key `engin`; did you mean `engine`?",
                "tunnel.toml:7: unknown key `tunnels`; did you mean `tunnel`?",
                "tunnel.toml: the values were not checked; mend these first",
            ]
        );
    }

    #[test]
    fn a_key_that_had_another_name_is_told_its_new_one() {
        let text = "[tunnel]\ndevice = \"cw0\"\nhold = \"1ms\"\n[tunnel.engine]\n\
                    hold = \"25ms\"\ndelta = \"1ms\"\ngive_up = \"1s\"\ngive_up_tries = 3\n";
        let told = lines(TunnelConfig::parse("tunnel.toml".as_ref(), text));
        assert_eq!(
            told,
            [
                "tunnel.toml:3: unknown key `hold`; known here are device, netns, mtu, queue, addresses, persist, threads, poll, keys, state_dir, socket, socket_group, http, api, engine, path",
                "tunnel.toml:5: `hold` is called `reorder_timeout` now",
                "tunnel.toml:6: `delta` is called `switch_gain` now",
                "tunnel.toml:7: `give_up` is called `frame_lifetime` now",
                "tunnel.toml:8: `give_up_tries` is called `max_transmissions` now",
                "tunnel.toml: the values were not checked; mend these first",
            ]
        );
    }

    #[test]
    fn a_file_of_another_kind_is_told_to_be_one() {
        let told = lines(TunnelConfig::parse(
            "x.toml".as_ref(),
            "device = \"cw0\"\n[[path]]\nid = 0\n",
        ));
        assert_eq!(
            told,
            ["x.toml: `[tunnel]` is missing; a tunnel's file has all its keys in that table"]
        );
        let told = lines(BalancerConfig::parse(
            "x.toml".as_ref(),
            "[xdp]\nmod = 1\nabc = 2\n",
        ));
        assert_eq!(
            told,
            [
                "x.toml:2: unknown key `mod`; did you mean `mode`?",
                "x.toml:3: unknown key `abc`; the only key here is mode",
                "x.toml: the values were not checked; mend these first",
            ]
        );
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.toml");
        for (text, by_lb, by_check) in [
            (
                "[tunnel]\n",
                "this is a tunnel's file; start it with `causeway tunnel -c FILE`",
                "`device` is missing",
            ),
            (
                "[agent]\n",
                "this is an agent's file; start it with `causeway agent -c FILE`",
                "`interface` is missing",
            ),
            (
                "device = \"cw0\"\n",
                "unknown key `device`",
                "taken for a balancer's file, as it has neither `[agent]` nor `[tunnel]`",
            ),
        ] {
            std::fs::write(&file, text).unwrap();
            let told = BalancerConfig::load(&file).unwrap_err().to_string();
            assert!(told.contains(by_lb), "{told}");
            let told = check(&file).unwrap_err().to_string();
            assert!(told.contains(by_check), "{told}");
        }
    }

    #[test]
    fn what_a_machine_lacks_is_noted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lb.toml");
        let name = file.display();
        let doctor = format!("`causeway doctor -c {name}` checks the machine");
        let pins = format!("pin_dir = \"{}\"\n", dir.path().display());
        let vip =
            "[[vip]]\naddress = \"192.0.2.1\"\nport = 80\nreal = [{ address = \"10.0.0.1\" }]\n";
        fs::write(&file, format!("interface = \"eth99\"\n{pins}{vip}")).unwrap();
        assert_eq!(
            check(&file).unwrap().notes,
            [
                format!("{name}: there is no interface eth99 here; {doctor}"),
                format!(
                    "{name}: pin_dir {} is in no BPF file system here; {doctor}",
                    dir.path().display()
                ),
            ]
        );
        let agents = format!(
            "[agent]\ninterface = \"lo\"\n{pins}balancers = [\"10.0.0.254\"]\nvips = [\"192.0.2.1\"]\naddresses = [\"10.0.0.1\"]\n"
        );
        fs::write(&file, agents).unwrap();
        assert_eq!(check(&file).unwrap().notes.len(), 1);
    }

    #[test]
    fn a_vip_of_this_machine_is_a_warning_and_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lb.toml");
        // Every machine has it.
        let vip =
            "[[vip]]\naddress = \"127.0.0.1\"\nport = 80\nreal = [{ address = \"10.0.0.1\" }]\n";
        fs::write(&file, format!("interface = \"eth0\"\n{vip}")).unwrap();
        let warnings = check(&file).unwrap().warnings;
        assert!(
            warnings[0].starts_with("this host holds the VIP 127.0.0.1 on lo: ")
                && warnings[0].ends_with("`ip addr del 127.0.0.1/8 dev lo`"),
            "{warnings:?}"
        );
    }

    #[test]
    fn what_is_no_file_of_text_is_told_to_be_none() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let latin = dir.path().join("latin.toml");
        fs::write(&latin, b"interface = \"eth0\"\n# d\xe9j\xe0\n").unwrap();
        for (file, expected) in [
            (
                pipe.as_path(),
                ": is a named pipe; name a regular file".to_owned(),
            ),
            (
                dir.path(),
                ": is a directory; name a regular file".to_owned(),
            ),
            (
                latin.as_path(),
                format!(
                    ":2: this is not UTF-8; of Latin 1, `iconv -f latin1 -t utf8 {}` makes it",
                    latin.display()
                ),
            ),
        ] {
            let told = check(file).unwrap_err().to_string();
            assert_eq!(told, format!("{}{expected}", file.display()));
        }
    }

    #[test]
    fn a_text_full_of_faults_ends() {
        let text: String = (0..5_000).map(|n| format!("k{n} = {n}\n")).collect();
        let told = lines(BalancerConfig::parse("lb.toml".as_ref(), &text));
        assert_eq!(
            told[told.len() - 2..],
            [
                "lb.toml: and 80 more faults",
                "lb.toml: the values were not checked; mend these first",
            ]
        );
    }

    #[test]
    fn old_keys_of_a_balancers_file_are_told_with_their_new_names() {
        let text = "[clients]\nlisten = \"10.0.0.254:9472\"\nkeys = \"/keys\"\n\
                    [stateful]\nlisten = \"10.0.0.254:9472\"\n";
        assert_eq!(
            lines(BalancerConfig::parse("lb.toml".as_ref(), text)),
            [
                "lb.toml:2: `clients.listen` is called `agent_reports.listen` now",
                "lb.toml:3: `clients.keys` is called `agent_reports.keys` now",
                "lb.toml:5: `stateful.listen` is called `agent_reports.listen` now",
                "lb.toml: the values were not checked; mend these first",
            ]
        );
        assert_eq!(
            lines(BalancerConfig::parse("lb.toml".as_ref(), "[clients]\n")),
            [
                "lb.toml:1: `clients` is called `agent_reports` now",
                "lb.toml: the values were not checked; mend these first",
            ]
        );
    }

    #[test]
    fn old_keys_of_an_agents_file_are_told_with_their_new_names() {
        let text = "[agent.cookie]\nbalancers = []\n[agent.clients]\nbalancers = []\n\
                    keys = \"/keys\"\n[agent.load]\nbalancers = []\ninterval = \"1s\"\n\
                    keys = \"/keys\"\n";
        assert_eq!(
            lines(AgentConfig::parse("agent.toml".as_ref(), text)),
            [
                "agent.toml:2: `agent.cookie.balancers` is called `agent.report.to` now",
                "agent.toml:4: `agent.clients.balancers` is called `agent.report.to` now",
                "agent.toml:5: `agent.clients.keys` is called `agent.report.keys` now",
                "agent.toml:7: `agent.load.balancers` is called `agent.report.to` now",
                "agent.toml:8: `agent.load.interval` is called `agent.report.load_interval` now",
                "agent.toml:9: `agent.load.keys` is called `agent.report.keys` now",
                "agent.toml: the values were not checked; mend these first",
            ]
        );
    }
}
