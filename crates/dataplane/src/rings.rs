// SPDX-License-Identifier: Apache-2.0
//! The rings of the VIPs: arrays of real ids inside an array of maps. A ring is
//! never changed in place; a new one is filled through `mmap` and swapped in.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use libbpf_rs::{MapHandle, MapType};

use crate::error::{DataPlaneError, Result};
use crate::map::{Table, io_error};
use crate::mapped::{Mapped, Shared};

/// A ring that the kernel has, but that no VIP uses yet.
#[derive(Debug)]
pub(crate) struct NewRing(MapHandle);

impl NewRing {
    /// Makes a ring of `ids`, which must not be empty.
    pub(crate) fn fill(ids: &[u32]) -> Result<Self> {
        let opts = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            map_flags: libbpf_sys::BPF_F_INNER_MAP | libbpf_sys::BPF_F_MMAPABLE,
            ..Default::default()
        };
        let slots = ids.len() as u32;
        let map = MapHandle::create(MapType::Array, Some("cw_ring"), 4, 4, slots, &opts)
            .map_err(|e| DataPlaneError::map("make", "ring", io_error(&e)))?;
        for (slot, id) in Mapped::<Slot>::new(&map)?.iter().zip(ids) {
            slot.id.store(*id, Ordering::Relaxed);
        }
        Ok(Self(map))
    }
}

/// An entry of an array of u32, as the kernel lays it out.
#[repr(C)]
struct Slot {
    id: AtomicU32,
    _pad: u32,
}

// SAFETY: the padding is not read.
unsafe impl Shared for Slot {}

/// All rings, by VIP id.
#[derive(Debug)]
pub(crate) struct Rings(Table<u32, u32>);

impl Rings {
    pub(crate) fn new(map: MapHandle) -> Result<Self> {
        Table::new(map).map(Self)
    }

    /// Swaps rings in, all of them in one system call. Such a call waits until no program can
    /// still see the old ones: from Linux 6.8 on once, and if it changes something. Before, each
    /// ring waits for itself (on Debian's 6.1 some 18 ms), and so does each lookup and removal,
    /// also one that finds nothing: they are only made where there is a ring, and many by several
    /// threads.
    pub(crate) fn swap(&self, rings: &[(u32, NewRing)]) -> Result<()> {
        if !rings.is_empty() {
            calls::count(1);
        }
        let swap = |rings: &[(u32, NewRing)]| {
            let of = |(vip, ring): &(u32, NewRing)| (*vip, ring.0.as_fd().as_raw_fd() as u32);
            let (vips, maps): (Vec<u32>, Vec<u32>) = rings.iter().map(of).unzip();
            self.0.put_all(&vips, &maps)
        };
        wait_together(rings, swap).map(drop)
    }

    /// Takes a VIP's ring away.
    pub(crate) fn clear(&self, vip: u32) -> Result<()> {
        calls::count(1);
        self.0.remove(&vip).map(drop)
    }

    /// The rings with these numbers, to stand in another table, too. Needs CAP_SYS_ADMIN.
    pub(crate) fn inner(&self, numbers: &[u32]) -> Result<Vec<Option<NewRing>>> {
        calls::count(numbers.len() as u32);
        let open = |number: &u32| {
            let id = self.0.get(number)?;
            let map = id.map(MapHandle::from_map_id).transpose();
            map.map(|map| map.map(NewRing))
                .map_err(|e| DataPlaneError::map("open", "ring", io_error(&e)))
        };
        let rings = wait_together(numbers, |numbers| {
            numbers.iter().map(open).collect::<Result<Vec<_>>>()
        })?;
        Ok(rings.into_iter().flatten().collect())
    }

    /// The rings of VIPs; empty for one that has none. Needs CAP_SYS_ADMIN.
    pub(crate) fn read(&self, vips: &[u32]) -> Result<Vec<Vec<u32>>> {
        let rings = self.inner(vips)?.into_iter();
        let read = |ring: Option<NewRing>| match ring {
            Some(NewRing(map)) => {
                let slots = Mapped::<Slot>::new(&map)?;
                let ids = slots.iter().map(|slot| slot.id.load(Ordering::Relaxed));
                Ok(ids.collect())
            }
            None => Ok(Vec::new()),
        };
        rings.map(read).collect()
    }
}

/// Threads whose waits end together.
const TOGETHER: usize = 32;

/// Does it for all items, by several threads where the kernel waits for programs at each item.
fn wait_together<T: Sync, R: Send>(
    items: &[T],
    each: impl Fn(&[T]) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    static AT_EACH: LazyLock<bool> = LazyLock::new(|| {
        let uname = nix::sys::utsname::uname().ok();
        uname.is_some_and(|uname| is_before_6_8(&uname.release().to_string_lossy()))
    });
    let part = match *AT_EACH {
        true => items.len().div_ceil(TOGETHER).max(1),
        false => items.len().max(1),
    };
    if items.len() <= part {
        return Ok(vec![each(items)?]);
    }
    let each = &each;
    thread::scope(|scope| {
        let begin = |part| {
            let thread = thread::Builder::new().spawn_scoped(scope, move || each(part));
            // Where no thread is to be had, the part waits for itself.
            thread.map_err(|_| each(part))
        };
        let threads: Vec<_> = items.chunks(part).map(begin).collect();
        let end = |thread: std::result::Result<thread::ScopedJoinHandle<'_, _>, _>| match thread {
            Ok(thread) => thread.join(),
            Err(result) => Ok(result),
        };
        let results = threads.into_iter().map(end);
        results
            .map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}

fn is_before_6_8(release: &str) -> bool {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) else {
        return false;
    };
    (major, minor) < (6_u32, 8_u32)
}

/// How often this thread has asked the kernel for something about rings: tests hold it down.
pub(crate) mod calls {
    #[cfg(test)]
    use std::cell::Cell;

    #[cfg(test)]
    thread_local! {
        static CALLS: Cell<u32> = const { Cell::new(0) };
    }

    pub(super) fn count(_more: u32) {
        #[cfg(test)]
        CALLS.with(|calls| calls.set(calls.get() + _more));
    }

    /// Those since the last time.
    #[cfg(test)]
    pub(crate) fn take() -> u32 {
        CALLS.with(Cell::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_wait_at_each_ring_are_known_by_their_release() {
        let before = ["5.15.0-91-generic", "6.1.0-28-cloud-amd64", "6.7.12"];
        assert_eq!(before.map(is_before_6_8), [true; 3]);
        let since = ["6.8.0-31-generic", "6.12.48+deb13-amd64", "7.0", "unknown"];
        assert_eq!(since.map(is_before_6_8), [false; 4]);
    }
}
