// SPDX-License-Identifier: Apache-2.0
//! Log lines, on standard error, so that standard output stays data.

use std::io::{self, IsTerminal, Write};

use nix::sys::stat::fstat;
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Begins to log: `verbose` is how often `-v` was given. journald gets the level as a priority, so that
/// `journalctl -p warning` finds what is wrong, and no time, as it has its own.
pub fn init(verbose: u8) {
    let default = match verbose {
        0 => "info",
        1 => "debug",
        _ => "trace",
    };
    let filter =
        EnvFilter::try_from_env("CAUSEWAY_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false);
    match is_journal() {
        true => lines
            .with_ansi(false)
            .without_time()
            .with_writer(Journal)
            .init(),
        false => lines
            .with_ansi(io::stderr().is_terminal())
            .with_writer(io::stderr)
            .init(),
    }
}

/// Prints why a command or a daemon ends, which is an error to journald too.
pub fn failure(text: &str) {
    let text = format!("{text}\n");
    let text = match is_journal() {
        true => marked(3, text.as_bytes()),
        false => text.into_bytes(),
    };
    // The exit code says it as well.
    let _ = io::stderr().write_all(&text);
}

/// Whether standard error leads to journald: systemd.exec(5), `$JOURNAL_STREAM`.
fn is_journal() -> bool {
    let (Ok(stream), Ok(own)) = (std::env::var("JOURNAL_STREAM"), fstat(io::stderr())) else {
        return false;
    };
    stream == format!("{}:{}", own.st_dev, own.st_ino)
}

/// journald, on standard error.
struct Journal;

impl<'a> MakeWriter<'a> for Journal {
    type Writer = JournalLine;

    fn make_writer(&'a self) -> JournalLine {
        JournalLine { priority: 6 }
    }

    fn make_writer_for(&'a self, about: &Metadata<'_>) -> JournalLine {
        let priority = match *about.level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        JournalLine { priority }
    }
}

/// What is logged at once, with the priorities of syslog(3).
struct JournalLine {
    priority: u8,
}

impl Write for JournalLine {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(&marked(self.priority, text))?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Each line with its priority in front, as sd-daemon(3) has it.
fn marked(priority: u8, text: &[u8]) -> Vec<u8> {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    lines
        .flat_map(|line| [format!("<{priority}>").as_bytes(), line].concat())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_its_priority() {
        assert_eq!(
            marked(4, b"lb.toml: refused\nline 2\n"),
            b"<4>lb.toml: refused\n<4>line 2\n"
        );
        assert_eq!(marked(6, b""), b"");
    }
}
