// SPDX-License-Identifier: Apache-2.0
//! Files that are replaced in one step, and what daemons keep in them.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Who may open a file.
#[derive(Debug, Clone, Copy)]
pub struct FileRights {
    /// Its permissions.
    pub mode: u32,
    /// Its user and group, if not those of this process.
    pub owner: Option<(u32, u32)>,
}

impl FileRights {
    /// This process's user alone: the file may hold keys.
    pub const PRIVATE: Self = Self {
        mode: 0o600,
        owner: None,
    };
}

/// Replaces a file in one step, by way of `new` in the same directory; it is on the disk then.
/// At no time may anyone open its text whom its rights do not allow to.
pub fn replace_file(path: &Path, new: &Path, content: &[u8], rights: FileRights) -> io::Result<()> {
    // One that an earlier attempt left may have other permissions, and be open.
    match fs::remove_file(new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(FileRights::PRIVATE.mode)
        .open(new)?;
    if let Some((user, group)) = rights.owner {
        fchown(&file, Some(user), Some(group))?;
    }
    if rights.mode != FileRights::PRIVATE.mode {
        file.set_permissions(Permissions::from_mode(rights.mode))?;
    }
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(new, path)?;
    let dir = match path.parent() {
        Some(dir) if dir.as_os_str().is_empty() => Path::new("."),
        Some(dir) => dir,
        None => Path::new("/"),
    };
    File::open(dir)?.sync_all()
}

/// The same by way of a file with `.new` behind its name.
pub fn replace_beside(path: &Path, content: &[u8], rights: FileRights) -> io::Result<()> {
    replace_file(path, &beside(path, ".new"), content, rights)
}

/// Replaces a file of state in one step, for this process's user alone, as is its directory where
/// that has to be made.
pub fn keep_file(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    }
    replace_beside(path, content, FileRights::PRIVATE)
}

/// What a file of JSON with a `version` holds, if that is the one which this build reads. The error
/// goes behind the file's name.
pub fn parse_version<T: DeserializeOwned>(text: &str, reads: u32) -> Result<T, String> {
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    let damaged = |error: serde_json::Error| format!("is damaged ({error})");
    let Head { version } = serde_json::from_str(text).map_err(damaged)?;
    if version != reads {
        return Err(format!("has version {version}, this build reads {reads}"));
    }
    serde_json::from_str(text).map_err(damaged)
}

/// The name of a file with something behind it.
pub fn beside(file: &Path, behind: &str) -> PathBuf {
    let mut name: OsString = file.into();
    name.push(behind);
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_an_earlier_attempt_left_opens_no_file_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let (path, new) = (dir.path().join("x"), dir.path().join("x.new"));
        fs::write(&new, "half").unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644)).unwrap();
        replace_beside(&path, b"secret", FileRights::PRIVATE).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"secret");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{mode:o}");
        assert!(!new.exists());
    }
}
