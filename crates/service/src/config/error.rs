// SPDX-License-Identifier: Apache-2.0
//! Faults of a configuration file, each with its place.

use std::fmt;
use std::path::{Path, PathBuf};

/// At most this many faults are listed; the rest is one count.
const SHOWN_MAX: usize = 20;

/// One fault: where it is, what is wrong and how to correct it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Line in the file, from 1; `None` when the file as a whole is meant.
    pub line: Option<usize>,
    /// One sentence.
    pub message: String,
}

/// Every fault found in a file, in the order of its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The file that was read.
    pub file: PathBuf,
    /// At least one fault.
    pub faults: Vec<Fault>,
    /// Keys or types were wrong, so that no value was looked at.
    pub values_unchecked: bool,
}

impl ConfigErrors {
    /// A fault of a file as a whole.
    pub fn of_file(file: &Path, message: String) -> Self {
        Self {
            file: file.to_owned(),
            faults: vec![Fault {
                line: None,
                message,
            }],
            values_unchecked: false,
        }
    }

    /// A fault at a line.
    pub fn of_line(file: &Path, line: usize, message: String) -> Self {
        let mut errors = Self::of_file(file, message);
        errors.faults[0].line = Some(line);
        errors
    }

    /// The same with a sentence in front.
    pub fn beginning_with(mut self, message: &str) -> Self {
        let first = Fault {
            line: None,
            message: message.to_owned(),
        };
        self.faults.insert(0, first);
        self
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().take(SHOWN_MAX).enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            match fault.line {
                Some(line) => write!(f, "{}:{line}: {}", self.file.display(), fault.message)?,
                None => write!(f, "{}: {}", self.file.display(), fault.message)?,
            }
        }
        let file = self.file.display();
        if let Some(more @ 1..) = self.faults.len().checked_sub(SHOWN_MAX) {
            write!(f, "\n{file}: and {more} more faults")?;
        }
        match self.values_unchecked {
            true => write!(f, "\n{file}: the values were not checked; mend these first"),
            false => Ok(()),
        }
    }
}

impl std::error::Error for ConfigErrors {}

/// Gathers faults while a file is checked, so that one run shows them all.
pub struct Faults<'a> {
    text: &'a str,
    /// Where lines end: a file may have a million.
    ends: Vec<usize>,
    found: Vec<Fault>,
    values_unchecked: bool,
}

impl<'a> Faults<'a> {
    pub fn new(text: &'a str) -> Self {
        let ends = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n');
        Self {
            text,
            ends: ends.map(|(at, _)| at).collect(),
            found: Vec::new(),
            values_unchecked: false,
        }
    }

    /// Says that what is found is not all.
    pub(super) fn leave_values(&mut self) {
        self.values_unchecked = true;
    }

    /// Records a fault at a byte range of the text.
    pub fn at(&mut self, span: std::ops::Range<usize>, message: impl Into<String>) {
        let line = self.line(&span);
        self.found.push(Fault {
            line: Some(line),
            message: message.into(),
        });
    }

    /// Records a fault of the file as a whole.
    pub fn file(&mut self, message: impl Into<String>) {
        self.found.push(Fault {
            line: None,
            message: message.into(),
        });
    }

    /// What to write instead, where the value of a line is a text without its quotes, or a word for
    /// true or false. The value is not repeated: it may be a secret.
    pub(super) fn remedy(&self, span: &std::ops::Range<usize>) -> Option<&'static str> {
        let line = self.text.lines().nth(self.line(span) - 1)?;
        let (_, value) = line.split_once('=')?;
        let value = value.split('#').next().unwrap_or_default().trim();
        if value.is_empty() {
            return Some("the key has no value");
        }
        let is_word = |c: char| c.is_ascii_alphanumeric() || "._:/-".contains(c);
        if !value.chars().all(is_word) || is_of_toml(value) {
            return None;
        }
        match value.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "false" | "no" | "off" => {
                Some("write `true` or `false`, in small letters")
            }
            // The parser says what is wrong with a number.
            digits if digits.chars().all(|c| c.is_ascii_digit() || c == '_') => None,
            _ => Some("write the text of this value in quotes"),
        }
    }

    /// The line, from 1, at which a byte range begins.
    pub fn line(&self, span: &std::ops::Range<usize>) -> usize {
        1 + self.ends.partition_point(|&end| end < span.start)
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    pub fn into_errors(mut self, file: &Path) -> ConfigErrors {
        self.found.sort_by_key(|fault| fault.line);
        // What is written once and holds in several places.
        self.found.dedup();
        ConfigErrors {
            file: file.to_owned(),
            faults: self.found,
            values_unchecked: self.values_unchecked,
        }
    }
}

/// Whether TOML has a value that is written so.
fn is_of_toml(value: &str) -> bool {
    toml::from_str::<toml::Table>(&format!("x = {value}")).is_ok()
}
