// SPDX-License-Identifier: Apache-2.0
//! Files with secrets, which are replaced in one step.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Result, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, fchown};
use std::path::Path;

/// Replaces a file by one that its owner alone can read; the owner is this process's user, or the
/// user and group that are given. Its directory is made if it is missing.
pub(crate) fn replace(path: &Path, bytes: &[u8], owner: Option<(u32, u32)>) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    fs::create_dir_all(dir)?;
    // One that an earlier attempt left may have other permissions.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    if let Some((user, group)) = owner {
        fchown(&file, Some(user), Some(group))?;
    }
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(dir)?.sync_all()
}
