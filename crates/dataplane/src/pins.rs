// SPDX-License-Identifier: Apache-2.0
//! The directory of a BPF file system in which one data plane is pinned.
//!
//! A start that cannot use the maps as they are pins its own in `next` beneath it, and `layout`
//! among them. Which of the two sets is in force the program on the interface tells, whenever a
//! process is killed: as soon as it is the one that is pinned as `next/program`, the new set takes
//! the old one's place, name by name. `layout` goes first: without it the rest only has to follow.
//! A start of the same layout that finds a killed one's program at work first copies what that
//! had not copied any more.
//!
//! Pins are what survives a restart: the maps, the link that holds the program on
//! the interface, and `layout`, a map that says which build's structs the others hold. A process
//! that works with the pins holds a lock on the directory; the kernel lets go of it when the
//! process ends, however it ends.

use std::fs::{self, File};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{io, thread};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::statfs::{self, BPF_FS_MAGIC};

use crate::abi::Plain as _;
use crate::carry::Rules;
use crate::error::{DataPlaneError, Result};
use crate::map::{Table, io_error};
use crate::xdp::{self, Link};

/// The layout of what the maps hold. Raise it whenever a struct in a pinned map changes, and
/// whenever bytes get another meaning: those get another name, too, as maps of other layouts are
/// read by the names of fields ([`crate::carry`]).
pub const LAYOUT: u32 = 16;

/// How the names of the pins of links begin by which cookies are written. They are none of `link_`, so
/// that builds that know filters alone remove them at their start: else both would write.
pub(crate) const HOOK_PIN: &str = "hook_";

/// The pin that holds [`LAYOUT`] and the kind of data plane.
const LAYOUT_PIN: &str = "layout";

/// Where a start pins what is to take the place of the pins.
const NEXT: &str = "next";

/// There, the program that belongs to them.
const PROGRAM_PIN: &str = "program";

/// In its place once all pins are being removed: what is left of them is not a data plane, as a
/// kill may have come in between.
const REMOVED: u32 = 0;

/// How long a start waits for a predecessor to die.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Which data plane a directory holds: pins of one are of no use to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    Balancer = 1,
    Decapsulator = 2,
    SynMeter = 3,
}

impl Kind {
    fn layout(self) -> u32 {
        (self as u32) << 16 | LAYOUT
    }
}

/// What distinguishes one kind of data plane from another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blueprint {
    pub(crate) kind: Kind,
    /// Name of the XDP program in the object.
    pub(crate) program: &'static str,
    /// Name of the link's pin.
    pub(crate) link: &'static str,
    /// What comes over from another layout.
    pub(crate) rules: &'static Rules,
}

impl Drop for PinDir {
    fn drop(&mut self) {
        if self.is_staged
            && let Err(error) = self.drop_next()
        {
            tracing::warn!("a start that was refused leaves pins: {error}");
        }
        if self.is_on_trial
            && let Err(error) = self.remove()
        {
            tracing::warn!("a start that was refused leaves pins: {error}");
        }
    }
}

/// Of which kind a data plane is, for people.
fn describe(layout: Option<u32>) -> &'static str {
    match layout.map(|layout| layout >> 16) {
        Some(1) => "a balancer",
        Some(2) => "an agent's decapsulation",
        Some(3) => "SYN accounting",
        _ => "something unknown",
    }
}

/// A locked pin directory.
#[derive(Debug)]
pub(crate) struct PinDir {
    path: PathBuf,
    lock: Flock<File>,
    /// Nothing was pinned in it when it was opened.
    is_new: bool,
    /// What is in it goes when this is dropped.
    is_on_trial: bool,
    /// The same of [`NEXT`].
    is_staged: bool,
    /// The program of [`NEXT`] is at work, and its maps have this build's layout.
    is_switched: bool,
    /// What is pinned is of another layout: its number.
    former: Option<u32>,
}

impl PinDir {
    /// Opens `path`, making it if need be, and locks it. Checks that what is pinned there is of this
    /// kind, and ends what a start began that was killed; `link` tells how far it was.
    pub(crate) fn open(path: &Path, kind: Kind, link: Option<&str>) -> Result<Self> {
        check_bpffs(path)?;
        let lock = loop {
            make(path)?;
            // A detach may have removed what we opened before we locked it.
            if let Some(lock) = lock(path, LOCK_TIMEOUT)? {
                break lock;
            }
        };
        let mut pins = Self::locked(path, lock);
        if let Some(link) = link {
            pins.settle(kind, link)?;
        }
        pins.check_layout(kind)?;
        pins.is_new = pins.entries()?.len() == 1;
        Ok(pins)
    }

    /// Opens and locks a directory to remove it; `None` if there is none.
    pub(crate) fn open_existing(path: &Path) -> Result<Option<Self>> {
        if !path.exists() {
            return Ok(None);
        }
        check_bpffs(path)?;
        Ok(lock(path, LOCK_TIMEOUT)?.map(|lock| Self::locked(path, lock)))
    }

    fn locked(path: &Path, lock: Flock<File>) -> Self {
        Self {
            path: path.to_owned(),
            lock,
            is_new: false,
            is_on_trial: false,
            is_staged: false,
            is_switched: false,
            former: None,
        }
    }

    /// The layout of what is pinned, if it is another one.
    pub(crate) fn former(&self) -> Option<u32> {
        self.former
    }

    /// Whether a start was killed between its program and its pins: both sets are there.
    pub(crate) fn is_switched(&self) -> bool {
        self.is_switched
    }

    /// The map of this name that the program at work uses.
    pub(crate) fn current_map(&self, name: &str) -> Result<Option<MapHandle>> {
        open_map(&self.current_pin(name), name)
    }

    /// Where that is pinned.
    pub(crate) fn current_pin(&self, name: &str) -> PathBuf {
        let next = self.next_pin(name);
        match self.is_switched && next.exists() {
            true => next,
            false => self.pin(name),
        }
    }

    /// Begins a set of pins that is to replace the one that is here.
    pub(crate) fn stage(&mut self, kind: Kind, program: BorrowedFd<'_>) -> Result<()> {
        self.drop_next()?;
        self.is_staged = true;
        make(&self.path.join(NEXT))?;
        // First: a set without it is one that only has to be moved.
        self.write_layout(kind, &self.next_pin(LAYOUT_PIN))?;
        xdp::pin_program(program, &self.next_pin(PROGRAM_PIN))
    }

    /// Where an object of the set that is being made is pinned.
    pub(crate) fn next_pin(&self, name: &str) -> PathBuf {
        self.path.join(NEXT).join(name)
    }

    /// Puts the new set in the place of the one that was here.
    pub(crate) fn commit(&mut self) -> Result<()> {
        (self.is_staged, self.is_switched, self.former) = (false, false, None);
        let next = self.path.join(NEXT);
        let moved = |pin: &Path| {
            let name = pin.file_name().unwrap_or_default();
            let moved = fs::rename(pin, self.path.join(name));
            moved.map_err(|e| dir_error("move", pin, e))
        };
        let layout = self.next_pin(LAYOUT_PIN);
        if layout.exists() {
            moved(&layout)?;
        }
        for pin in entries(&next)? {
            match pin == self.next_pin(PROGRAM_PIN) {
                true => fs::remove_file(&pin).map_err(|e| dir_error("remove", &pin, e))?,
                false => moved(&pin)?,
            }
        }
        fs::remove_dir(&next).map_err(|e| dir_error("remove", &next, e))
    }

    /// Removes pins that are none of these maps, nor of links: those that another build had.
    pub(crate) fn keep_only(&self, is_map: impl Fn(&str) -> bool) -> Result<()> {
        for pin in self.entries()? {
            let name = pin.file_name().unwrap_or_default().to_string_lossy();
            let is_link = name.starts_with("link_") || name.starts_with(HOOK_PIN);
            let is_ours = name == LAYOUT_PIN || is_link || is_map(&name);
            if !is_ours && !pin.is_dir() {
                fs::remove_file(&pin).map_err(|e| dir_error("remove", &pin, e))?;
            }
        }
        Ok(())
    }

    /// Ends what a start began that was killed: forwards if its program is at work, else back.
    fn settle(&mut self, kind: Kind, link: &str) -> Result<()> {
        if !self.path.join(NEXT).exists() {
            return Ok(());
        }
        if self.next_pin(LAYOUT_PIN).exists() {
            let running = Link::open(&self.pin(link))?;
            let running = running.map(|link| link.info()).transpose()?;
            let staged = xdp::pinned_program(&self.next_pin(PROGRAM_PIN))?;
            let Some(running) = running.filter(|link| Some(link.program) == staged) else {
                return self.drop_next();
            };
            let layout = open_map(&self.next_pin(LAYOUT_PIN), LAYOUT_PIN)?;
            let layout = layout.map(Table::<u32, u32>::new).transpose()?;
            let layout = layout.map(|map| map.get(&0)).transpose()?.flatten();
            // A link without an interface is soon forgotten, and with it which set is in force.
            if layout == Some(kind.layout()) && running.ifindex != 0 {
                self.is_switched = true;
                return Ok(());
            }
        }
        self.commit()
    }

    fn drop_next(&self) -> Result<()> {
        let next = self.path.join(NEXT);
        if !next.exists() {
            return Ok(());
        }
        // The layout last, as in `clear`: else the rest would be taken for the set in force.
        let layout = self.next_pin(LAYOUT_PIN);
        let mut pins = entries(&next)?;
        pins.sort_by_key(|pin| *pin == layout);
        for pin in pins {
            fs::remove_file(&pin).map_err(|e| dir_error("remove", &pin, e))?;
        }
        fs::remove_dir(&next).map_err(|e| dir_error("remove", &next, e))
    }

    /// Has what is pinned here from now on go with this, if nothing was there before, until
    /// [`keep`](Self::keep): a start that is refused leaves nothing.
    pub(crate) fn try_out(&mut self) {
        self.is_on_trial = self.is_new;
    }

    /// What is pinned stays.
    pub(crate) fn keep(&mut self) {
        self.is_on_trial = false;
    }

    /// Makes and locks the directory again if it is not there any more, or not the one that is
    /// locked. It does not wait for others.
    pub(crate) fn reopen(&mut self, kind: Kind) -> Result<()> {
        if still_there(&self.lock, &self.path) {
            return match self.map(LAYOUT_PIN)? {
                Some(_) => Ok(()),
                None => self.write_layout(kind, &self.pin(LAYOUT_PIN)),
            };
        }
        check_bpffs(&self.path)?;
        make(&self.path)?;
        let Some(lock) = lock(&self.path, Duration::ZERO)? else {
            return Err(dir_error(
                "lock",
                &self.path,
                io::ErrorKind::NotFound.into(),
            ));
        };
        let again = Self::locked(&self.path, lock);
        if !again.entries()?.is_empty() {
            return Err(DataPlaneError::OtherPins(again.path.clone()));
        }
        again.write_layout(kind, &again.pin(LAYOUT_PIN))?;
        *self = again;
        Ok(())
    }

    /// Removes a pin, if it is there.
    pub(crate) fn forget(&self, name: &str) -> Result<()> {
        let pin = self.pin(name);
        match fs::remove_file(&pin) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(dir_error("remove", &pin, e)),
            _ => Ok(()),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the object called `name` is pinned.
    pub(crate) fn pin(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The map pinned as `name`, if there is one.
    pub(crate) fn map(&self, name: &str) -> Result<Option<MapHandle>> {
        open_map(&self.pin(name), name)
    }

    /// Has the next start begin with nothing, whatever is still pinned by then.
    pub(crate) fn condemn(&self) -> Result<()> {
        for pin in [self.pin(LAYOUT_PIN), self.next_pin(LAYOUT_PIN)] {
            if let Some(map) = open_map(&pin, LAYOUT_PIN)? {
                Table::<u32, u32>::new(map)?.put(&0, &REMOVED)?;
            }
        }
        Ok(())
    }

    /// Removes all pins and the directory. Returns how many pins there were.
    pub(crate) fn remove(&self) -> Result<usize> {
        self.condemn()?;
        let pins = self.clear()?;
        fs::remove_dir(&self.path).map_err(|e| dir_error("remove", &self.path, e))?;
        Ok(pins)
    }

    /// Takes programs off now: a link that merely loses its pin goes some time later.
    fn detach_links(&self) -> Result<()> {
        let is_link = |pin: &PathBuf| {
            let name = pin.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("link_") || name.starts_with(HOOK_PIN))
        };
        for pin in self.entries()?.into_iter().filter(is_link) {
            if let Some(link) = Link::open(&pin)? {
                // One whose interface is gone has nothing to take off.
                let _ = link.detach();
            }
        }
        Ok(())
    }

    /// The layout goes last: it says what the others are.
    fn clear(&self) -> Result<usize> {
        self.drop_next()?;
        let layout = self.pin(LAYOUT_PIN);
        let mut pins = self.entries()?;
        pins.sort_by_key(|pin| *pin == layout);
        for pin in &pins {
            fs::remove_file(pin).map_err(|e| dir_error("remove", pin, e))?;
        }
        Ok(pins.len())
    }

    fn entries(&self) -> Result<Vec<PathBuf>> {
        entries(&self.path)
    }

    fn check_layout(&mut self, kind: Kind) -> Result<()> {
        let layout = self.pin(LAYOUT_PIN);
        let found = match self.map(LAYOUT_PIN)? {
            Some(map) => Table::<u32, u32>::new(map)?.get(&0)?,
            None if self.entries()?.is_empty() => return self.write_layout(kind, &layout),
            None => None,
        };
        match found {
            Some(found) if found == kind.layout() => Ok(()),
            Some(REMOVED) => {
                self.detach_links()?;
                self.clear()?;
                self.is_switched = false;
                self.write_layout(kind, &layout)
            }
            Some(found) if found >> 16 == kind as u32 => {
                self.former = Some(found & 0xffff);
                Ok(())
            }
            _ => Err(DataPlaneError::OtherKind {
                pin_dir: self.path.clone(),
                found: describe(found),
                ours: describe(Some(kind.layout())),
            }),
        }
    }

    fn write_layout(&self, kind: Kind, pin: &Path) -> Result<()> {
        let opts = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        let mut map = MapHandle::create(MapType::Array, Some("cw_layout"), 4, 4, 1, &opts)
            .map_err(|e| DataPlaneError::map("make", LAYOUT_PIN, io_error(&e)))?;
        // Written before it is pinned, so that no crash leaves a pin that lies.
        map.update(&[0; 4], kind.layout().as_bytes(), MapFlags::ANY)
            .map_err(|e| DataPlaneError::map("write", LAYOUT_PIN, io_error(&e)))?;
        map.pin(pin)
            .map_err(|e| DataPlaneError::map("pin", LAYOUT_PIN, io_error(&e)))
    }
}

fn open_map(pin: &Path, name: &str) -> Result<Option<MapHandle>> {
    if !pin.exists() {
        return Ok(None);
    }
    MapHandle::from_pinned_path(pin)
        .map(Some)
        .map_err(|e| DataPlaneError::map("open the pin of", name, io_error(&e)))
}

fn entries(path: &Path) -> Result<Vec<PathBuf>> {
    fs::read_dir(path)
        .and_then(|dir| dir.map(|entry| Ok(entry?.path())).collect())
        .map_err(|e| dir_error("read", path, e))
}

fn make(path: &Path) -> Result<()> {
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(path);
    made.map_err(|e| dir_error("make", path, e))
}

/// Takes the lock of `path`; `None` if the directory went away meanwhile.
fn lock(path: &Path, timeout: Duration) -> Result<Option<Flock<File>>> {
    let deadline = Instant::now() + timeout;
    loop {
        let dir = match File::open(path) {
            Ok(dir) => dir,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(dir_error("open", path, e)),
        };
        match Flock::lock(dir, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(still_there(&lock, path).then_some(lock)),
            Err((_, nix::Error::EWOULDBLOCK)) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(20));
            }
            Err((_, nix::Error::EWOULDBLOCK)) => return Err(DataPlaneError::Busy(path.to_owned())),
            Err((_, e)) => return Err(dir_error("lock", path, e.into())),
        }
    }
}

fn still_there(lock: &File, path: &Path) -> bool {
    let inode = |m: fs::Metadata| (m.dev(), m.ino());
    match (lock.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(now)) => inode(ours) == inode(now),
        _ => false,
    }
}

/// Checks that `path`, or the nearest ancestor that exists, is in a BPF file system.
fn check_bpffs(path: &Path) -> Result<()> {
    let existing = path.ancestors().find(|p| p.exists());
    let existing = existing.unwrap_or(Path::new("/"));
    let stat = statfs::statfs(existing).map_err(|e| dir_error("look at", existing, e.into()))?;
    if stat.filesystem_type() == BPF_FS_MAGIC {
        Ok(())
    } else {
        Err(DataPlaneError::NotBpffs(path.to_owned()))
    }
}

fn dir_error(doing: &'static str, path: &Path, cause: io::Error) -> DataPlaneError {
    DataPlaneError::PinDir {
        doing,
        path: path.to_owned(),
        cause,
    }
}
