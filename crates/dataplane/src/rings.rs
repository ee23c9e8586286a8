// SPDX-License-Identifier: Apache-2.0
//! The rings of the VIPs: arrays of real ids inside an array of maps. A ring is
//! never changed in place; a new one is filled through `mmap` and swapped in.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::atomic::{AtomicU32, Ordering};

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
    /// also one that finds nothing: they are only made where there is a ring.
    pub(crate) fn swap(&self, rings: &[(u32, NewRing)]) -> Result<()> {
        let vips: Vec<u32> = rings.iter().map(|(vip, _)| *vip).collect();
        let maps: Vec<u32> = rings
            .iter()
            .map(|(_, ring)| ring.0.as_fd().as_raw_fd() as u32)
            .collect();
        if !vips.is_empty() {
            calls::count();
        }
        self.0.put_all(&vips, &maps)
    }

    /// Takes a VIP's ring away.
    pub(crate) fn clear(&self, vip: u32) -> Result<()> {
        calls::count();
        self.0.remove(&vip).map(drop)
    }

    /// The ring with this number, to stand in another table, too. Needs CAP_SYS_ADMIN.
    pub(crate) fn inner(&self, number: u32) -> Result<Option<NewRing>> {
        calls::count();
        let id = self.0.get(&number)?;
        let map = id.map(MapHandle::from_map_id).transpose();
        map.map(|map| map.map(NewRing))
            .map_err(|e| DataPlaneError::map("open", "ring", io_error(&e)))
    }

    /// A VIP's ring; empty if it has none. Needs CAP_SYS_ADMIN.
    pub(crate) fn read(&self, vip: u32) -> Result<Vec<u32>> {
        let Some(NewRing(map)) = self.inner(vip)? else {
            return Ok(Vec::new());
        };
        let slots = Mapped::<Slot>::new(&map)?;
        Ok(slots
            .iter()
            .map(|slot| slot.id.load(Ordering::Relaxed))
            .collect())
    }
}

/// How often this thread has asked the kernel for something about rings: tests hold it down.
pub(crate) mod calls {
    #[cfg(test)]
    use std::cell::Cell;

    #[cfg(test)]
    thread_local! {
        static CALLS: Cell<u32> = const { Cell::new(0) };
    }

    pub(super) fn count() {
        #[cfg(test)]
        CALLS.with(|calls| calls.set(calls.get() + 1));
    }

    /// Those since the last time.
    #[cfg(test)]
    pub(crate) fn take() -> u32 {
        CALLS.with(Cell::take)
    }
}
