// SPDX-License-Identifier: Apache-2.0
//! Where the product's binary is: the process under test.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// The binary that was named, else the one beside this program (or, for a test, beside the
/// folder of tests).
///
/// # Errors
/// When there is none, with the command that builds it.
pub fn find(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = named {
        return path
            .canonicalize()
            .with_context(|| format!("no binary under test at {}", path.display()));
    }
    let own = env::current_exe().context("own path")?;
    let found = own
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join("causeway"))
        .find(|path| path.is_file());
    match found {
        Some(path) => Ok(path),
        None => bail!(
            "there is no binary under test beside {}; build one with `cargo build --package causeway` in the same profile, or name it with --binary",
            own.display()
        ),
    }
}
