// SPDX-License-Identifier: Apache-2.0
//! How busy the reals are, where the data plane and user space meet: the table is
//! mapped into memory, and both sides change it by atomic additions.

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use libbpf_rs::MapCore as _;
use nix::sys::mman::{MapFlags as MmapFlags, ProtFlags, mmap, munmap};

use super::*;

/// What one flow means for its real's load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadTerms {
    /// Added by a new flow.
    pub rise: u32,
    /// Taken off by a flow's end.
    pub fall: u32,
    /// Relative capacity; 0 counts as 1.
    pub weight: u32,
}

/// `struct real_load`, shared with the kernel.
#[repr(C)]
struct Cell {
    load: AtomicI64,
    rise: AtomicU32,
    fall: AtomicU32,
    weight: AtomicU32,
    pad: [u32; 3],
}

const _: () = {
    assert!(size_of::<Cell>() == size_of::<abi::RealLoad>());
    assert!(std::mem::offset_of!(Cell, rise) == std::mem::offset_of!(abi::RealLoad, rise));
    assert!(std::mem::offset_of!(Cell, fall) == std::mem::offset_of!(abi::RealLoad, fall));
    assert!(std::mem::offset_of!(Cell, weight) == std::mem::offset_of!(abi::RealLoad, weight));
};

/// The table of loads, by real.
#[derive(Debug)]
pub(crate) struct Loads {
    start: NonNull<c_void>,
    entries: usize,
    /// Keeps the map alive as long as its memory is used.
    _map: MapHandle,
}

// SAFETY: the memory is only reached through atomics.
unsafe impl Send for Loads {}
// SAFETY: as above.
unsafe impl Sync for Loads {}

impl Loads {
    pub(crate) fn new(map: MapHandle) -> Result<Self> {
        let entries = map.max_entries() as usize;
        let fail = |e: nix::Error| DataPlaneError::map("map into memory", "real_loads", e);
        if map.value_size() as usize != size_of::<Cell>() {
            return Err(fail(nix::Error::EINVAL));
        }
        let bytes = NonZeroUsize::new(entries * size_of::<Cell>());
        let bytes = bytes.ok_or_else(|| fail(nix::Error::EINVAL))?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap(None, bytes, access, MmapFlags::MAP_SHARED, &map, 0) };
        Ok(Self {
            start: start.map_err(fail)?,
            entries,
            _map: map,
        })
    }

    fn cells(&self) -> &[Cell] {
        // SAFETY: the mapping is page aligned and `entries` values long; every bit
        // pattern is a value, and both sides change it by atomics alone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.entries) }
    }

    pub(crate) fn clear(&self, id: RealId) {
        let Some(cell) = self.cells().get(id as usize) else {
            return;
        };
        for part in [&cell.rise, &cell.fall, &cell.weight] {
            part.store(0, Ordering::Relaxed);
        }
        cell.load.store(0, Ordering::Relaxed);
    }
}

impl Drop for Loads {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which no slice outlives.
        let unmapped = unsafe { munmap(self.start, self.entries * size_of::<Cell>()) };
        debug_assert!(unmapped.is_ok());
    }
}

impl LoadBalancer {
    fn load_cell(&self, id: RealId) -> Result<&Cell> {
        self.book().real(id)?;
        let cell = self.loads.cells().get(id as usize);
        cell.ok_or(DataPlaneError::UnknownReal(id))
    }

    /// A real's load. It may be below 0 for a moment: a flow that began before loads
    /// were counted may end.
    pub fn load(&self, id: RealId) -> Result<i64> {
        Ok(self.load_cell(id)?.load.load(Ordering::Relaxed))
    }

    /// Sets a real's load.
    pub fn set_load(&self, id: RealId, load: i64) -> Result<()> {
        self.load_cell(id)?.load.store(load, Ordering::Relaxed);
        Ok(())
    }

    /// Adds to a real's load, beside the data plane: neither loses what the other adds.
    pub fn add_load(&self, id: RealId, change: i64) -> Result<()> {
        self.load_cell(id)?
            .load
            .fetch_add(change, Ordering::Relaxed);
        Ok(())
    }

    /// Sets what one flow means for a real's load.
    pub fn set_load_terms(&self, id: RealId, terms: LoadTerms) -> Result<()> {
        let cell = self.load_cell(id)?;
        cell.rise.store(terms.rise, Ordering::Relaxed);
        cell.fall.store(terms.fall, Ordering::Relaxed);
        cell.weight.store(terms.weight, Ordering::Relaxed);
        Ok(())
    }
}
