// SPDX-License-Identifier: Apache-2.0
//! Files that daemons write.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Replaces a file in one step, by way of a new one in the same directory; it is on the disk then.
/// No other user may read it: it may hold keys.
pub fn replace_file(path: &Path, new: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(new, path)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}
