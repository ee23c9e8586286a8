// SPDX-License-Identifier: Apache-2.0
//! The command line: one variant per command, one module per variant.
//!
//! A command's module owns its arguments (a `clap::Args` struct) and a
//! `run(self) -> anyhow::Result<ExitCode>`. A command that needs an async
//! runtime starts its own, so that the others do not pay for one.
//! Exit codes: 0 done, 1 failed, 2 wrong arguments (clap's own); of `status` also 3, no answer.

use std::process::ExitCode;

use causeway_service::log::LogFormat;
use clap::{ArgAction, CommandFactory, Parser, Subcommand};
use nix::sys::signal::{SigHandler, Signal, signal};

use crate::{
    agent_cmd, capture, config_cmd, conns_cmd, cookie_cmd, doctor, examples, explain_cmd,
    fleet_cmd, generate_cmd, import_cmd, ipvs, lb_cmd, override_cmd, reload_cmd, stats_cmd, status,
    token_cmd, top_cmd, trace_cmd, tunnel_cmd, version_cmd, vip_cmd, words_arg::value_of,
};

/// A layer-4 load balancer that measures its clients' latency.
#[derive(Debug, Parser)]
#[command(name = "causeway", version, propagate_version = true, after_help = examples::CAUSEWAY)]
pub(crate) struct Cli {
    /// Log more: once for debug, twice for trace (CAUSEWAY_LOG takes filters)
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,

    /// Log warnings and errors alone
    #[arg(long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,

    /// How to log: sentences, or a JSON object on each line
    #[arg(long, global = true, value_name = "FORMAT", env = "CAUSEWAY_LOG_FORMAT", default_value = "text", value_parser = value_of::<LogFormat>())]
    pub log_format: LogFormat,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(after_help = examples::LB)]
    Lb(lb_cmd::Args),
    #[command(after_help = examples::AGENT)]
    Agent(agent_cmd::Args),
    #[command(after_help = examples::TUNNEL)]
    Tunnel(tunnel_cmd::Args),
    #[command(after_help = examples::MEASURE)]
    Measure(Box<causeway_measure::MeasureArgs>),
    #[command(after_help = examples::SHADOW)]
    Shadow(Box<causeway_measure::ShadowArgs>),
    Rtt(Box<causeway_rtt::RttArgs>),
    #[command(after_help = examples::STATUS)]
    Status(status::Args),
    /// Show what a running balancer counts and measures
    #[command(after_help = examples::STATS)]
    Stats(stats_cmd::Args),
    /// Watch a running balancer: VIPs, reals, latencies and weights over time
    #[command(after_help = examples::TOP)]
    Top(top_cmd::Args),
    /// Say why a real has the weight that it has
    #[command(after_help = examples::EXPLAIN)]
    Explain(explain_cmd::Args),
    /// Look at and change the VIPs of a running balancer
    ///
    /// Changes last until the next reload or restart: the configuration file is what stays.
    #[command(after_help = examples::VIP)]
    Vip(Box<vip_cmd::VipArgs>),
    /// Look at and change the reals of a running balancer
    ///
    /// Drains, maintenance and weights hold until they are set back or dropped (`causeway
    /// override`); reals that are added or removed, until the next reload or restart.
    #[command(after_help = examples::REAL)]
    Real(vip_cmd::RealArgs),
    /// List and drop settings made by hand that override the file
    #[command(after_help = examples::OVERRIDE)]
    Override(override_cmd::Args),
    /// Make a running balancer read its file again; fails if the file is refused
    #[command(after_help = examples::RELOAD)]
    Reload(reload_cmd::Args),
    /// Look at the connections of stateful VIPs, and move one to another real
    #[command(after_help = examples::CONNS)]
    Conns(conns_cmd::Args),
    /// Run several balancers of the same VIPs as a fleet, and compare them
    #[command(after_help = examples::FLEET)]
    Fleet(fleet_cmd::Args),
    /// Keys and ids of cookies, which keep connections on their reals
    #[command(after_help = examples::COOKIE)]
    Cookie(cookie_cmd::Args),
    #[command(after_help = examples::TRACE)]
    Trace(Box<trace_cmd::Args>),
    #[command(after_help = examples::CAPTURE)]
    Capture(Box<capture::Args>),
    /// Work with configuration files
    #[command(after_help = examples::CONFIG)]
    Config(config_cmd::Args),
    #[command(after_help = examples::IPVS)]
    Ipvs(Box<ipvs::Args>),
    #[command(after_help = examples::IMPORT)]
    Import(import_cmd::Args),
    /// Make a token, with which another host may use the API
    #[command(after_help = examples::TOKEN)]
    Token(token_cmd::Args),
    /// Say which build this is, and which layout its data plane has
    #[command(after_help = examples::VERSION)]
    Version(version_cmd::Args),
    #[command(after_help = examples::DOCTOR)]
    Doctor(doctor::Args),
    /// Write shell completions and man pages
    #[command(after_help = examples::GENERATE)]
    Generate(generate_cmd::Args),
}

/// The error that a line gets without an environment: clap's usage has what the environment gives
/// among what must be given.
pub(crate) fn usual(
    error: clap::Error,
    line: impl IntoIterator<Item = std::ffi::OsString>,
) -> clap::Error {
    fn without_environment(command: clap::Command) -> clap::Command {
        command
            .mut_args(|argument| argument.env(None::<&'static str>))
            .mut_subcommands(without_environment)
    }
    let parsed = without_environment(Cli::command()).try_get_matches_from(line);
    parsed.err().unwrap_or(error)
}

impl Cli {
    /// Runs the chosen command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if self.command.only_prints() {
            end_with_reader();
        }
        match self.command {
            Command::Lb(args) => args.run(),
            Command::Agent(args) => args.run(),
            Command::Tunnel(args) => args.run(),
            Command::Status(args) => args.run(),
            Command::Stats(args) => args.run(),
            Command::Top(args) => args.run(),
            Command::Explain(args) => args.run(),
            Command::Vip(args) => args.run(),
            Command::Real(args) => args.run(),
            Command::Measure(args) => args.run(),
            Command::Shadow(args) => args.run(),
            Command::Rtt(args) => args.run(),
            Command::Override(args) => args.run(),
            Command::Fleet(args) => args.run(),
            Command::Reload(args) => args.run(),
            Command::Conns(args) => args.run(),
            Command::Cookie(args) => args.run(),
            Command::Trace(args) => args.run(),
            Command::Capture(args) => args.run(),
            Command::Config(args) => args.run(),
            Command::Ipvs(args) => args.run(),
            Command::Import(args) => args.run(),
            Command::Token(args) => args.run(),
            Command::Version(args) => args.run(),
            Command::Doctor(args) => args.run(),
            Command::Generate(args) => args.run(Self::command()),
        }
    }
}

impl Command {
    /// Whether the command prints and ends, unlike a daemon.
    fn only_prints(&self) -> bool {
        match self {
            Self::Lb(_) | Self::Measure(_) | Self::Shadow(_) | Self::Rtt(_) => false,
            // It takes its hands off the data plane first.
            Self::Capture(_) => false,
            Self::Trace(args) => !args.is_live(),
            Self::Agent(args) => args.only_prints(),
            Self::Tunnel(args) => args.only_prints(),
            Self::Top(_) => false,
            Self::Explain(_) => true,
            Self::Status(_) | Self::Stats(_) | Self::Vip(_) | Self::Real(_) => true,
            Self::Override(_) | Self::Reload(_) | Self::Conns(_) | Self::Fleet(_) => true,
            Self::Cookie(_)
            | Self::Config(_)
            | Self::Doctor(_)
            | Self::Import(_)
            | Self::Ipvs(_) => true,
            Self::Token(_) | Self::Version(_) | Self::Generate(_) => true,
        }
    }
}

/// A reader that goes away (`causeway stats | head`) ends the command quietly, as it
/// does with other Unix tools. Rust ignores SIGPIPE, and printing then panics.
fn end_with_reader() {
    // SAFETY: the default action runs no handler of ours.
    let restored = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
    debug_assert!(restored.is_ok(), "SIGPIPE is a signal that can be set");
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory, Parser};

    use super::Cli;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// What a command has behind its help.
    fn examples(command: &Command) -> Option<String> {
        command.get_after_help().map(ToString::to_string)
    }

    #[test]
    fn every_command_has_examples() {
        let cli = Cli::command();
        let visible = cli.get_subcommands().filter(|c| !c.is_hide_set());
        for command in visible.chain([&cli]) {
            let text = examples(command).unwrap_or_default();
            assert!(text.starts_with("Examples:\n"), "{}", command.get_name());
        }
    }

    fn check(command: &Command, checked: &mut usize) {
        let text = examples(command).unwrap_or_default().replace("\\\n", " ");
        for line in text.lines().skip(1) {
            let told = line.split('#').next().unwrap_or_default();
            let at = told.find("causeway ").unwrap_or_else(|| panic!("{line}"));
            let words = told[at..].split('|').next().unwrap_or_default();
            if let Err(error) = Cli::try_parse_from(words.split_whitespace()) {
                panic!("{line}: {error}");
            }
            *checked += 1;
        }
        command.get_subcommands().for_each(|c| check(c, checked));
    }

    #[test]
    fn what_is_wrong_with_a_line_is_told_with_its_mend() {
        for (line, expected) in [
            (
                "causeway measure",
                "<--read <FILE>|--interface <INTERFACE>>",
            ),
            (
                "causeway vip add 192.0.2.1 -r 10.0.0.1",
                "write for example 192.0.2.1:80",
            ),
            (
                "causeway real weight web 10.0.0.1 3.5",
                "weight 3.5 is not a whole number from 0 (no new connections) to 65535",
            ),
            (
                "causeway real weight web 10.0.0.1 -1",
                "weight -1 is not a whole number from 0",
            ),
            (
                "causeway real add web 10.0.0.1 --weight 70000",
                "weight 70000 is not a whole number",
            ),
            (
                "causeway vip add 192.0.2.1:80 -r 10.0.0.1=x",
                "weight x is not a whole number",
            ),
            ("causeway override drop", "drop <VIP|--all> [REAL]"),
            ("causeway real drain 10.0.0.1", "<VIP|--all>"),
            (
                "causeway trace 192.0.2.7 192.0.2.1:80",
                "not an address with a port",
            ),
            (
                "causeway conns move 192.0.2.7 192.0.2.1:80 10.0.0.1",
                "not an address with a port",
            ),
        ] {
            let error = Cli::try_parse_from(line.split(' ')).expect_err(line);
            assert!(error.to_string().contains(expected), "{line}: {error}");
        }
    }

    /// Every command with its path, but those that speak another program's flags.
    fn walk<'c>(command: &'c Command, path: &str, found: &mut Vec<(String, &'c Command)>) {
        let path = format!("{path} {}", command.get_name());
        let path = path.trim().to_owned();
        // tcpdump's, netperf's and ipvsadm's; and what packages call.
        let others = ["measure", "shadow", "rtt", "ipvs", "generate"];
        if others.contains(&command.get_name()) {
            return;
        }
        for sub in command.get_subcommands() {
            walk(sub, &path, found);
        }
        found.push((path, command));
    }

    fn commands(cli: &Command) -> Vec<(String, &Command)> {
        let mut found = Vec::new();
        walk(cli, "", &mut found);
        assert!(found.len() > 40, "{}", found.len());
        found
    }

    #[test]
    fn short_flags_mean_one_thing_everywhere() {
        let cli = Cli::command();
        let mut meanings = std::collections::BTreeMap::new();
        for (path, command) in commands(&cli) {
            for argument in command.get_arguments() {
                let (Some(short), Some(long)) = (argument.get_short(), argument.get_long()) else {
                    continue;
                };
                let (first, meaning) = meanings.entry(short).or_insert((path.clone(), long));
                assert_eq!(*meaning, long, "-{short} of `{first}` and of `{path}`");
            }
        }
        assert!(meanings.len() > 5, "{meanings:?}");
    }

    #[test]
    fn what_prints_data_prints_json() {
        // They write files, run until they are stopped, draw, or say what they did in a sentence.
        let without = [
            "causeway agent",
            "causeway agent join",
            "causeway agent threshold del",
            "causeway agent unload",
            "causeway config migrate",
            "causeway config schema",
            "causeway conns move",
            "causeway cookie agent",
            "causeway cookie new-keys",
            "causeway cookie rotate",
            "causeway cookie server-keys",
            "causeway fleet found",
            "causeway fleet join",
            "causeway fleet leave",
            "causeway fleet pass-by",
            "causeway fleet token",
            "causeway import",
            "causeway lb",
            "causeway lb unload",
            "causeway override drop",
            "causeway real add",
            "causeway real del",
            "causeway real drain",
            "causeway real maintenance",
            "causeway real weight",
            "causeway token",
            "causeway top",
            "causeway tunnel",
            "causeway vip accept",
            "causeway vip add",
            "causeway vip del",
            "causeway vip set",
        ];
        let cli = Cli::command();
        let mut lack = Vec::new();
        for (path, command) in commands(&cli) {
            let does = command.get_subcommands().next().is_none() || without.contains(&&*path);
            let output = command.get_arguments().find(|a| a.get_id() == "output");
            match output {
                Some(output) => {
                    assert_eq!(output.get_short(), Some('o'), "{path}");
                    let values = output.get_possible_values();
                    assert!(
                        values.iter().any(|value| value.get_name() == "json"),
                        "{path}"
                    );
                }
                None if does => lack.push(path),
                None => {}
            }
        }
        lack.sort();
        assert_eq!(lack, without);
    }

    #[test]
    fn a_length_of_time_to_go_on_is_called_for() {
        let cli = Cli::command();
        for (path, command) in commands(&cli) {
            for argument in command.get_arguments().filter(|a| !a.is_hide_set()) {
                let long = argument.get_long().unwrap_or_default();
                let former = ["duration", "length", "run", "last", "seconds", "time"];
                assert!(!former.contains(&long), "--{long} of `{path}`");
            }
        }
    }

    /// Shells complete what can be one of some words.
    #[test]
    fn words_are_complete_in_shells() {
        let cli = Cli::command();
        let mut words = 0;
        for (path, command) in commands(&cli) {
            for argument in command.get_arguments() {
                let long = argument.get_long().unwrap_or_default();
                let closed = [
                    "scheduler",
                    "load",
                    "control",
                    "latency",
                    "protocol",
                    "forwarding",
                    "fragments",
                    "cookie",
                    "role",
                    "packet",
                    "output",
                ];
                if closed.contains(&long) {
                    let values = argument.get_possible_values();
                    assert!(values.len() > 1, "--{long} of `{path}`");
                    words += 1;
                }
            }
        }
        assert!(words > 25, "{words}");
    }

    #[test]
    fn every_example_is_a_command_line() {
        let mut checked = 0;
        check(&Cli::command(), &mut checked);
        assert!(checked > 60, "{checked}");
    }
}
