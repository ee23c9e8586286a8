// SPDX-License-Identifier: Apache-2.0
//! Log lines, on standard error, so that standard output stays data.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use nix::sys::stat::fstat;
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

use crate::words;

words! {
    /// How log lines are written.
    LogFormat, "log format", {
        /// Sentences for people.
        Text = "text",
        /// A JSON object on each line, with time, level, message and fields.
        Json = "json",
    }
}

/// Logs a fault when it begins or changes, as a sentence that holds it at `{}`, and that it is over;
/// the first argument is the place of the fault that there was before.
#[macro_export]
macro_rules! log_fault {
    ($last:expr, $fault:expr, $began:literal, $over:literal) => {{
        let fault: Option<String> = $fault;
        let last: &mut Option<String> = &mut $last;
        if fault != *last {
            match &fault {
                Some(fault) => tracing::warn!($began, fault),
                None => tracing::info!($over),
            }
            *last = fault;
        }
    }};
}

/// The format in use, for what is said when all ends.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Begins to log: `verbose` is how often `-v` was given; `quiet` leaves warnings and errors. journald gets
/// the level as a priority, so that `journalctl -p warning` finds what is wrong, and in text no time, as it
/// has its own.
pub fn init(verbose: u8, quiet: bool, format: LogFormat) {
    let default = match verbose {
        _ if quiet => "warn",
        0 => "info",
        1 => "debug",
        _ => "trace",
    };
    let filter =
        EnvFilter::try_from_env("CAUSEWAY_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let _ = FORMAT.set(format);
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false);
    match (format, is_journal()) {
        (LogFormat::Text, true) => lines
            .with_ansi(false)
            .without_time()
            .with_writer(Journal)
            .init(),
        (LogFormat::Text, false) => lines
            .with_ansi(io::stderr().is_terminal())
            .with_writer(io::stderr)
            .init(),
        (LogFormat::Json, true) => lines.event_format(Json).with_writer(Journal).init(),
        (LogFormat::Json, false) => lines.event_format(Json).with_writer(io::stderr).init(),
    }
}

/// Prints why a command or a daemon ends, which is an error to journald too.
pub fn failure(text: &str) {
    let text = match FORMAT.get() {
        Some(LogFormat::Json) => json(Level::ERROR, vec![("message", text.into())]),
        _ => text.to_owned(),
    };
    let text = format!("{text}\n");
    let text = match is_journal() {
        true => marked(3, text.as_bytes()),
        false => text.into_bytes(),
    };
    // The exit code says it as well.
    let _ = io::stderr().write_all(&text);
}

/// An event as one JSON object.
struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        writeln!(writer, "{}", json(*event.metadata().level(), fields.0))
    }
}

/// A line: time and level, then the message and the other fields.
fn json(level: Level, fields: Vec<(&'static str, Value)>) -> String {
    let mut time = String::new();
    // It writes to memory.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let level = level.as_str().to_ascii_lowercase();
    let first = [("time", time.into()), ("level", level.into())];
    let all = first.into_iter().chain(fields);
    // One after the other, so that all lines begin alike.
    let all = all.map(|(name, value)| format!("{}:{value}", Value::from(name)));
    format!("{{{}}}", all.collect::<Vec<_>>().join(","))
}

/// The fields of an event; what is said is `message`.
#[derive(Default)]
struct Fields(Vec<(&'static str, Value)>);

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        self.0.push((field.name(), value));
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }
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

    #[test]
    fn an_event_is_an_object_on_a_line() {
        #[derive(Clone, Default)]
        struct Kept(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
        impl Write for Kept {
            fn write(&mut self, text: &[u8]) -> io::Result<usize> {
                self.0.lock().expect("no panic").extend(text);
                Ok(text.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let kept = Kept::default();
        let writer = kept.clone();
        let lines = tracing_subscriber::fmt().event_format(Json);
        let lines = lines.with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(lines, || {
            let who = "uid 0";
            tracing::warn!(%who, result = 404_u16, ratio = 0.5, held = true, "not\nchanged");
        });
        let text = kept.0.lock().expect("no panic").clone();
        let text = String::from_utf8(text).expect("text");
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        let mut line: Value = serde_json::from_str(&text).expect("JSON");
        let time = line["time"].take();
        let time = time.as_str().expect("a time");
        assert!(
            time.starts_with("20") && time.ends_with('Z') && time.contains('T'),
            "{time}"
        );
        let rest = serde_json::json!({ "time": null, "level": "warn", "message": "not\nchanged",
            "who": "uid 0", "result": 404, "ratio": 0.5, "held": true });
        assert_eq!(line, rest);
    }
}
