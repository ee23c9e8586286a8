// SPDX-License-Identifier: Apache-2.0
//! From a configuration file's text to checked values.
//!
//! A file goes text -> raw keys ([`parse`]: serde, unknown keys refused with the nearest
//! known one) -> the daemon's own checks, which add what is wrong to [`Faults`] -> a value
//! that cannot be wrong. All faults are reported together, each with its line.

use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;

mod document;
mod error;
mod json;
mod keys;
mod migrate;
mod pieces;
mod renamed;
mod schema;
mod shared;
mod spanned;
mod tables;
pub mod units;
mod values;
mod words;

pub use document::{has_key, is_readable, parse, parse_prepared, parse_table, read_sound, text_at};
pub use error::{ConfigErrors, Fault, Faults};
pub use keys::*;
pub use migrate::{Migrated, migrate};
pub use pieces::{Pieces, digest_of};
pub use renamed::Renamed;
pub use schema::schema;
pub use shared::*;
pub use spanned::Spanned;
pub use values::*;
pub use words::{WordOf, Words, nearest, one_of, schema_of_words};

/// Reads a file. The error names the file and the way out.
pub fn read(path: &Path) -> Result<String, ConfigErrors> {
    let unreadable = |error: std::io::Error| {
        let message = match error.kind() {
            ErrorKind::NotFound => {
                "there is no such file; name yours, or begin with an example of packaging/etc (packages: /usr/share/doc/causeway-*/examples)"
                    .to_owned()
            }
            _ => format!("cannot be read: {error}"),
        };
        ConfigErrors::of_file(path, message)
    };
    let about = fs::metadata(path).map_err(unreadable)?;
    // What a shell hands over is open already: it does not wait for a writer that never comes.
    let is_handed = ["/dev/fd/", "/dev/stdin", "/proc/self/fd/"]
        .iter()
        .any(|place| path.starts_with(place));
    if !is_handed {
        ensure_file(&about).map_err(|message| ConfigErrors::of_file(path, message))?;
    }
    utf8(path, fs::read(path).map_err(unreadable)?)
        .map_err(|(line, message)| ConfigErrors::of_line(path, line, message))
}

/// The text of a file. The error is a line, and what is wrong there.
pub fn utf8(path: &Path, bytes: Vec<u8>) -> Result<String, (usize, String)> {
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let name = path.display();
        let message =
            format!("this is not UTF-8; of Latin 1, `iconv -f latin1 -t utf8 {name}` makes it");
        (line, message)
    })
}

/// Refuses what is no file of text: reading it fails, or never ends.
fn ensure_file(about: &Metadata) -> Result<(), String> {
    let kind = about.file_type();
    let what = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    Err(format!("is {what}; name a regular file"))
}

/// Reads a file that holds keys; one that every user can read is refused. The error is one
/// sentence without the file's name.
pub fn read_secrets(path: &Path) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let about = fs::metadata(path).map_err(unreadable)?;
    ensure_file(&about)?;
    if is_open_to_all(&about) {
        return Err(format!(
            "every user of this machine can read it; `chmod o= {}`",
            path.display()
        ));
    }
    fs::read_to_string(path).map_err(unreadable)
}

/// An error of reading a file; if there is no such file, with the sentence that says what makes it.
pub fn or_made_by(path: &Path, error: String, makes: &str) -> String {
    match path.try_exists() {
        Ok(false) => format!("{error}; {makes}"),
        _ => error,
    }
}

fn is_open_to_all(about: &Metadata) -> bool {
    about.permissions().mode() & 0o007 != 0
}

/// A sentence for a file that every user can read, and that has one of these secrets as text; each
/// is the end of a key's path, as `.store.password`.
pub fn open_secret(path: &Path, text: &str, secrets: &[&str]) -> Option<String> {
    let is_open = fs::metadata(path).is_ok_and(|about| is_open_to_all(&about));
    let key = document::with_text(text, secrets).filter(|_| is_open)?;
    let name = path.display();
    Some(format!(
        "{name}: `{}` stands in a file that every user of this machine can read; `chmod o= {name}`, or name a file that holds it",
        key.trim_start_matches('.')
    ))
}

/// `1 real`, `2 reals`.
pub fn plural(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}
