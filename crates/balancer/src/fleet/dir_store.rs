// SPDX-License-Identifier: Apache-2.0
//! A store in a directory, for balancers of one machine: no daemon, one clock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use causeway_api::Moment;
use causeway_service::{FileRights, random, replace_file};
use serde::{Deserialize, Serialize};

use super::store::{Held, Store, StoreError};

const BOOK: &str = "book.json";
const ACKS: &str = "acks";
const ALIVE: &str = "alive";
/// Counts changes.
const CHANGES: &str = "changes";
/// How long a change may go unseen.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A directory, whose files are replaced in one step, under a lock.
pub(crate) struct DirStore {
    dir: PathBuf,
    /// How the directory looked at the last reading.
    seen: Option<Look>,
}

/// Another one after each change: the count of changes, and the book's file, which a hand may have
/// replaced. Before Linux 6.13 two changes within a tick leave a directory the same time.
type Look = (Option<String>, (u64, i64, i64));

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BookFile {
    version: u64,
    book: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaseFile {
    /// Of the machine, whose clock starts again with each boot.
    boot: String,
    until_ns: u64,
}

impl DirStore {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir, seen: None }
    }

    fn failed(&self, error: &io::Error) -> StoreError {
        StoreError::Refused(format!("{}: {error}", self.dir.display()))
    }

    /// Does something while no other process does.
    fn locked<T>(&self, work: impl FnOnce() -> io::Result<T>) -> Result<T, StoreError> {
        let locked = || {
            for dir in [&self.dir, &self.dir.join(ACKS), &self.dir.join(ALIVE)] {
                DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            }
            let lock = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(self.dir.join("lock"))?;
            // Until it is dropped.
            lock.lock()?;
            work()
        };
        locked().map_err(|error| self.failed(&error))
    }

    /// Replaces one of its files under the lock, and counts that.
    fn change(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        replace(path, content)?;
        let path = self.dir.join(CHANGES);
        let changes = text_of(&path)?.and_then(|text| text.parse::<u64>().ok());
        let changes = changes.unwrap_or(0).wrapping_add(1);
        replace(&path, changes.to_string().as_bytes())
    }

    fn look(&self) -> io::Result<Look> {
        let book = match fs::metadata(self.dir.join(BOOK)) {
            Ok(about) => (about.ino(), about.mtime(), about.mtime_nsec()),
            Err(error) if error.kind() == ErrorKind::NotFound => (0, 0, 0),
            Err(error) => return Err(error),
        };
        Ok((text_of(&self.dir.join(CHANGES))?, book))
    }

    fn book(&self) -> io::Result<Option<BookFile>> {
        let Some(text) = text_of(&self.dir.join(BOOK))? else {
            return Ok(None);
        };
        let book = serde_json::from_str(&text)
            .map_err(|error| io::Error::other(format!("{BOOK} is damaged ({error})")))?;
        Ok(Some(book))
    }

    /// Different for each store, so that a removed one is distinguished from its successor.
    fn cluster(&self) -> io::Result<String> {
        let path = self.dir.join("id");
        match text_of(&path)? {
            Some(id) => Ok(id),
            None => {
                let id = format!("{:032x}", u128::from_be_bytes(random()?));
                replace(&path, id.as_bytes())?;
                Ok(id)
            }
        }
    }
}

impl Store for DirStore {
    fn read(&mut self) -> Result<Held, StoreError> {
        let (held, seen) = self.locked(|| {
            let book = self.book()?;
            let alive = texts_in(&self.dir.join(ALIVE))?;
            let (boot, now_ns) = (boot_id(), Moment::now().monotonic_ns);
            let lasts = |text: &String| {
                let lease = serde_json::from_str::<LeaseFile>(text).ok();
                lease.is_some_and(|lease| lease.boot == boot && now_ns < lease.until_ns)
            };
            let held = Held {
                cluster: self.cluster()?,
                book: book.map(|file| (file.version, file.book)),
                acks: texts_in(&self.dir.join(ACKS))?,
                alive: alive
                    .into_iter()
                    .filter(|(_, text)| lasts(text))
                    .map(|(member, _)| member)
                    .collect::<BTreeSet<_>>(),
            };
            Ok((held, self.look()?))
        })?;
        self.seen = Some(seen);
        Ok(held)
    }

    fn replace(&mut self, expected: Option<u64>, text: &str) -> Result<bool, StoreError> {
        self.locked(|| {
            let found = self.book()?.map(|file| file.version);
            if found != expected {
                return Ok(false);
            }
            let file = BookFile {
                version: found.unwrap_or(0) + 1,
                book: text.to_owned(),
            };
            self.change(&self.dir.join(BOOK), &serde_json::to_vec(&file)?)?;
            Ok(true)
        })
    }

    fn acknowledge(&mut self, member: &str, text: &str) -> Result<(), StoreError> {
        self.locked(|| self.change(&self.dir.join(ACKS).join(member), text.as_bytes()))
    }

    fn renew(&mut self, member: &str, ttl: Duration) -> Result<(), StoreError> {
        let lease = LeaseFile {
            boot: boot_id(),
            until_ns: Moment::now().monotonic_ns + ttl.as_nanos() as u64,
        };
        self.locked(|| {
            let text = serde_json::to_vec(&lease)?;
            self.change(&self.dir.join(ALIVE).join(member), &text)
        })
    }

    fn wait(&mut self, at_most: Duration) -> Result<bool, StoreError> {
        let until = Instant::now() + at_most;
        loop {
            let look = self.look().map_err(|error| self.failed(&error))?;
            let left = until.saturating_duration_since(Instant::now());
            let changed = self.seen.as_ref() != Some(&look);
            if changed || left.is_zero() {
                return Ok(changed);
            }
            thread::sleep(left.min(LOOK_EVERY));
        }
    }
}

/// Of the machine since it started: its monotonic clock counts from there.
pub(super) fn boot_id() -> String {
    format!("{:016x}", causeway_netio::boot_id())
}

fn text_of(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn texts_in(dir: &Path) -> io::Result<BTreeMap<String, String>> {
    let mut texts = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        // One that is being replaced has a name that no member has.
        if let Some(text) = text_of(&entry.path())?.filter(|_| !name.starts_with('.')) {
            texts.insert(name, text);
        }
    }
    Ok(texts)
}

/// Replaces a file in one step, under the lock.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_file_name(".new");
    replace_file(path, &new, content, FileRights::PRIVATE)
}
