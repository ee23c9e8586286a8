// SPDX-License-Identifier: Apache-2.0
//! From a configuration file's text to checked values.
//!
//! A file goes text -> raw keys ([`parse`]: serde, unknown keys refused with the nearest
//! known one) -> the daemon's own checks, which add what is wrong to [`Faults`] -> a value
//! that cannot be wrong. All faults are reported together, each with its line.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

mod api;
mod document;
mod error;
mod json;
mod keys;
mod migrate;
mod renamed;
mod schema;
mod shared;
mod spanned;
mod tables;
pub mod units;
mod values;
mod words;

pub(crate) use api::Material;
pub use api::{ApiConfig, RawApi, SecretFile, api};
pub use document::{has_key, is_readable, parse, parse_prepared, parse_table, top_level_text};
pub use error::{ConfigErrors, Fault, Faults};
pub use keys::*;
pub use migrate::{Migrated, migrate};
pub use renamed::Renamed;
pub use schema::schema;
pub use shared::*;
pub use spanned::Spanned;
pub use values::*;
pub use words::{WordOf, Words, nearest, one_of, schema_of_words};

/// Reads a file. The error names the file and the way out.
pub fn read(path: &Path) -> Result<String, ConfigErrors> {
    std::fs::read_to_string(path).map_err(|error| {
        let message = match error.kind() {
            ErrorKind::NotFound => {
                "there is no such file; name yours, or begin with an example of packaging/etc (packages: /usr/share/doc/causeway-*/examples)"
                    .to_owned()
            }
            _ => format!("cannot be read: {error}"),
        };
        ConfigErrors::of_file(path, message)
    })
}

/// Reads a file that holds keys; one that every user can read is refused. The error is one
/// sentence without the file's name.
pub fn read_secrets(path: &Path) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let about = std::fs::metadata(path).map_err(unreadable)?;
    if about.permissions().mode() & 0o007 != 0 {
        return Err("every user of this machine can read it; `chmod o= FILE`".to_owned());
    }
    std::fs::read_to_string(path).map_err(unreadable)
}

/// `1 real`, `2 reals`.
pub fn plural(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}
