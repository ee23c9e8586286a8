// SPDX-License-Identifier: Apache-2.0
//! Man pages: what clap knows of each command, and the sections that it does not write.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use clap::{Arg, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

/// Exit codes of all commands, unless [`OWN_EXITS`] has others.
pub(crate) const EXITS: [(u8, &str); 3] = [(0, "done"), (1, "failed"), (2, "wrong arguments")];

/// Exit codes of commands that say more by them.
const OWN_EXITS: &[(&str, &[(u8, &str)])] = &[
    (
        "causeway status",
        &[
            (0, "all is well"),
            (1, "something is wrong"),
            (3, "no daemon answers"),
        ],
    ),
    (
        "causeway agent status",
        &[
            (0, "all is well"),
            (1, "something is wrong"),
            (3, "no daemon answers"),
        ],
    ),
    (
        "causeway tunnel status",
        &[
            (0, "it carries"),
            (1, "something is wrong"),
            (3, "no daemon answers"),
        ],
    ),
    (
        "causeway config check",
        &[
            (0, "no error; notes may stand on standard error"),
            (1, "the file has an error"),
        ],
    ),
    (
        "causeway config diff",
        &[
            (0, "no change"),
            (1, "changes"),
            (2, "it would be refused, or the daemon cannot be asked"),
        ],
    ),
    (
        "causeway config migrate",
        &[(
            1,
            "something is left to do by hand, or the file has an error",
        )],
    ),
    (
        "causeway import",
        &[
            (0, "everything was carried over"),
            (1, "something was not"),
            (2, "the file cannot be read, or wrong arguments"),
        ],
    ),
    (
        "causeway doctor",
        &[(0, "nothing stands in the way"), (1, "something does")],
    ),
    (
        "causeway real drain",
        &[
            (0, "done; with --wait: no connection is open"),
            (1, "failed; with --wait: the time is over first"),
        ],
    ),
    (
        "causeway reload",
        &[(0, "the file is in force"), (1, "the file was refused")],
    ),
    (
        "causeway fleet diff",
        &[(0, "they are alike"), (1, "they differ")],
    ),
    (
        "causeway fleet push",
        &[(1, "what it removes has to be confirmed by --yes, or failed")],
    ),
    (
        "causeway ipvs",
        &[(2, "a flag that has no equal, or wrong arguments")],
    ),
];

/// Variables of all commands that are no option's.
pub(crate) const ENVIRONMENT: [(&str, &str); 1] = [(
    "CAUSEWAY_LOG",
    "what is logged, as filters of tracing: info, causeway_balancer=debug",
)];

/// Writes a man page for every command that is not hidden.
pub(crate) fn write_pages(command: Command, dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let source = format!("causeway {}", command.get_version().unwrap_or_default());
    write_with_parts(&command, None, &source, dir)
}

fn write_with_parts(
    command: &Command,
    above: Option<&str>,
    source: &str,
    dir: &Path,
) -> io::Result<()> {
    let name = page_of(command);
    for part in parts(command) {
        write_with_parts(part, Some(name), source, dir)?;
    }
    let mut file = File::create(dir.join(format!("{name}.1")))?;
    page(command, above, source, &mut file)?;
    file.flush()
}

/// What stands in SEE ALSO and names the file: `causeway-real-drain`.
fn page_of(command: &Command) -> &str {
    let name = command.get_display_name();
    name.unwrap_or_else(|| command.get_name())
}

fn parts(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|part| !part.is_hide_set())
}

fn page(
    command: &Command,
    above: Option<&str>,
    source: &str,
    to: &mut dyn Write,
) -> io::Result<()> {
    let man = Man::new(command.clone()).source(source).manual("Causeway");
    man.render_title(to)?;
    man.render_name_section(to)?;
    synopsis(command).to_writer(to)?;
    man.render_description_section(to)?;
    if shown(command).next().is_some() {
        man.render_options_section(to)?;
    }
    if parts(command).next().is_some() {
        man.render_subcommands_section(to)?;
    }
    let mut roff = Roff::new();
    examples(command, &mut roff);
    let full = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let codes = exits(full);
    let codes: Vec<_> = codes
        .iter()
        .map(|(code, means)| (code.to_string(), (*means).to_owned()))
        .collect();
    list("EXIT STATUS", &codes, &mut roff);
    list("ENVIRONMENT", &environment(command), &mut roff);
    list("FILES", &files(command), &mut roff);
    let others: Vec<&str> = above
        .into_iter()
        .chain(parts(command).map(page_of))
        .collect();
    if !others.is_empty() {
        roff.control("SH", ["SEE ALSO"]);
        let mut line = Vec::new();
        for (at, other) in others.iter().enumerate() {
            line.push(roman(if at == 0 { "" } else { ", " }));
            line.push(bold(*other));
            line.push(roman("(1)"));
        }
        roff.text(line);
    }
    roff.to_writer(to)
}

/// Arguments that a reader needs to know of.
fn shown(command: &Command) -> impl Iterator<Item = &Arg> {
    command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set())
}

/// The command with its options, their values, and what stands behind them.
fn synopsis(command: &Command) -> Roff {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut line = vec![bold(name)];
    // One of several, which one has to be given.
    let groups = command.get_groups().filter(|group| group.is_required_set());
    let groups: Vec<Vec<&Arg>> = groups
        .map(|group| {
            let of_group = |argument: &&Arg| group.get_args().any(|id| id == argument.get_id());
            shown(command).filter(of_group).collect()
        })
        .collect();
    let alone: Vec<&Arg> = shown(command)
        .filter(|argument| {
            let id = argument.get_id();
            !groups.iter().flatten().any(|member| member.get_id() == id)
        })
        .collect();
    let (behind, options): (Vec<&Arg>, Vec<&Arg>) = alone
        .into_iter()
        .partition(|argument| argument.is_positional());
    for option in options {
        enclosed(option, &mut line);
    }
    for group in groups.iter().filter(|group| !group.is_empty()) {
        line.push(roman(" {"));
        for (at, argument) in group.iter().enumerate() {
            line.push(roman(if at == 0 { "" } else { " | " }));
            written(argument, &mut line);
        }
        line.push(roman("}"));
    }
    for argument in behind {
        enclosed(argument, &mut line);
    }
    if parts(command).next().is_some() {
        let is_required = command.is_subcommand_required_set();
        let (open, close) = if is_required { (" ", "") } else { (" [", "]") };
        line.extend([roman(open), italic("COMMAND"), roman(close)]);
    }
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    roff.text(line);
    roff
}

/// In brackets what may be left away.
fn enclosed(argument: &Arg, line: &mut Vec<Inline>) {
    let (open, close) = match argument.is_required_set() {
        true => (" ", ""),
        false => (" [", "]"),
    };
    line.push(roman(open));
    written(argument, line);
    line.push(roman(close));
}

/// `-c|--config FILE`, `VIP`, `FILE...`.
fn written(argument: &Arg, line: &mut Vec<Inline>) {
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let names: Vec<String> = [short, long].into_iter().flatten().collect();
    line.push(bold(names.join("|")));
    if argument.get_action().takes_values() {
        let values = match argument.get_value_names() {
            Some(values) => values.join(" "),
            None => argument.get_id().as_str().to_uppercase(),
        };
        line.push(roman(if names.is_empty() { "" } else { " " }));
        line.push(italic(values));
    }
    let several = argument
        .get_num_args()
        .is_some_and(|many| many.max_values() > 1);
    let repeated = matches!(
        argument.get_action(),
        clap::ArgAction::Append | clap::ArgAction::Count
    );
    if several || repeated {
        line.push(roman("..."));
    }
}

/// What stands behind a command's help, its lines as they are.
fn examples(command: &Command, roff: &mut Roff) {
    let Some(text) = command.get_after_help().map(ToString::to_string) else {
        return;
    };
    roff.control("SH", ["EXAMPLES"]);
    roff.control("nf", []);
    for line in text.lines().filter(|line| *line != "Examples:") {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}

fn exits(command: &str) -> Vec<(u8, &'static str)> {
    let own = OWN_EXITS.iter().find(|(of, _)| *of == command);
    let own = own.map_or(&[][..], |(_, codes)| codes);
    let mut codes = own.to_vec();
    let is_own = |code: u8| own.iter().any(|(other, _)| *other == code);
    codes.extend(EXITS.iter().filter(|(code, _)| !is_own(*code)));
    codes.sort_unstable();
    codes
}

/// The variables that stand for options, and those of all commands.
pub(crate) fn environment(command: &Command) -> Vec<(String, String)> {
    let of_options = shown(command).filter_map(|argument| {
        let name = argument.get_env()?.to_str()?.to_owned();
        Some((name, format!("the same as --{}", argument.get_long()?)))
    });
    let of_all = ENVIRONMENT.iter();
    let of_all = of_all.map(|(name, means)| ((*name).to_owned(), (*means).to_owned()));
    of_options.chain(of_all).collect()
}

/// The files that are meant where none is named.
fn files(command: &Command) -> Vec<(String, String)> {
    let named = shown(command).filter_map(|argument| {
        let file = argument.get_default_values().first()?.to_str()?;
        let what = match argument.get_long() {
            Some(long) => format!("unless --{long} names another"),
            None => format!("unless another {} is named", argument.get_id()),
        };
        file.starts_with('/').then(|| (file.to_owned(), what))
    });
    named.collect()
}

fn list(title: &str, rows: &[(String, String)], roff: &mut Roff) {
    if rows.is_empty() {
        return;
    }
    roff.control("SH", [title]);
    for (term, means) in rows {
        roff.control("TP", []);
        roff.text([bold(term.as_str())]);
        roff.text([roman(means.as_str())]);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    const COMMANDS: &str = include_str!("../../../docs/reference/commands.md");

    fn built() -> Command {
        let mut command = Cli::command();
        command.build();
        command
    }

    fn walk<'c>(command: &'c Command, visit: &mut impl FnMut(&'c Command)) {
        visit(command);
        parts(command).for_each(|part| walk(part, visit));
    }

    #[test]
    fn every_variable_is_in_the_reference() {
        let command = built();
        let mut variables = BTreeSet::new();
        walk(&command, &mut |one| {
            variables.extend(environment(one).into_iter().map(|(name, _)| name));
        });
        assert!(variables.len() > 7, "{variables:?}");
        for name in variables {
            assert!(COMMANDS.contains(&format!("`{name}`")), "{name}");
        }
    }

    #[test]
    fn exit_codes_are_of_commands_and_in_the_reference() {
        let command = built();
        let mut names = BTreeSet::new();
        walk(&command, &mut |one| {
            names.extend(one.get_bin_name().map(str::to_owned));
        });
        for (name, codes) in OWN_EXITS {
            assert!(names.contains(*name), "{name}");
            assert!(exits(name).len() >= codes.len());
        }
        let common = EXITS.map(|(code, means)| format!("{code} {means}"));
        assert!(COMMANDS.contains(&format!("Exit codes: {}", common.join(", "))));
    }

    #[test]
    fn a_page_has_what_it_is_opened_for() {
        let dir = tempfile::tempdir().unwrap();
        write_pages(Cli::command(), dir.path()).unwrap();
        let read = |page: &str| {
            let text = fs::read_to_string(dir.path().join(page)).expect(page);
            // Without roff's fonts and its hyphens.
            text.replace("\\fB", "")
                .replace("\\fI", "")
                .replace("\\fR", "")
                .replace("\\-", "-")
        };
        for (page, expected) in [
            ("causeway.1", ".SH EXAMPLES\n.nf\n"),
            ("causeway-measure.1", ".SH EXAMPLES\n.nf\n"),
            ("causeway-rtt-serve.1", ".SH EXAMPLES\n.nf\n"),
            ("causeway-lb.1", "causeway lb [-c|--config FILE]"),
            ("causeway-real-drain.1", "[--timeout TIME]"),
            ("causeway-real-drain.1", " {VIP | --all} REAL"),
            ("causeway-measure.1", "{-r|--read FILE"),
            ("causeway-status.1", ".TP\n3\nno daemon answers\n"),
            ("causeway-status.1", ".TP\n2\nwrong arguments\n"),
            (
                "causeway-status.1",
                ".TP\nCAUSEWAY_SOCKET\nthe same as --socket\n",
            ),
            ("causeway-agent-status.1", ".TP\nCAUSEWAY_AGENT_SOCKET\n"),
            ("causeway-lb.1", ".TP\nCAUSEWAY_LOG\n"),
            (
                "causeway-lb.1",
                ".SH FILES\n.TP\n/etc/causeway/causeway.toml\nunless --config names another\n",
            ),
            (
                "causeway-real-drain.1",
                ".SH \"SEE ALSO\"\ncauseway-real(1)\n",
            ),
            ("causeway-generate.1", "causeway-generate-man(1)"),
        ] {
            let text = read(page);
            assert!(text.contains(expected), "{expected} in {page}:\n{text}");
        }
        for file in fs::read_dir(dir.path()).unwrap() {
            let file = file.unwrap().path();
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            let text = read(&name);
            for section in [
                "NAME",
                "SYNOPSIS",
                "DESCRIPTION",
                "\"EXIT STATUS\"",
                "ENVIRONMENT",
            ] {
                assert_eq!(
                    text.matches(&format!(".SH {section}\n")).count(),
                    1,
                    "{name}"
                );
            }
            assert!(text.contains(" \"causeway 0."), "{text}");
        }
    }
}
