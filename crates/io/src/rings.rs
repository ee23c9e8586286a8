// SPDX-License-Identifier: Apache-2.0
//! The rings of the VIPs: arrays of real ids inside an array of maps. A ring is
//! never changed in place; a new one is filled through `mmap` and swapped in.

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::ptr::NonNull;

use libbpf_rs::{MapCore as _, MapHandle, MapType};
use nix::sys::mman::{MapFlags as MmapFlags, ProtFlags, mmap, munmap};

use crate::error::{Error, Result};
use crate::map::{Table, io_error};

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
            .map_err(|e| Error::map("make", "ring", io_error(&e)))?;
        let mut view = View::new(&map)?;
        for (slot, id) in view.slots_mut().iter_mut().zip(ids) {
            slot.id = *id;
        }
        Ok(Self(map))
    }
}

/// An entry of an array of u32, as the kernel lays it out.
#[derive(Clone, Copy)]
#[repr(C)]
struct Slot {
    id: u32,
    pad: u32,
}

/// A ring's memory.
struct View {
    start: NonNull<c_void>,
    slots: usize,
}

impl View {
    fn new(map: &MapHandle) -> Result<Self> {
        let slots = map.max_entries() as usize;
        let fail = |e: nix::Error| Error::map("map into memory", "ring", e);
        let bytes = NonZeroUsize::new(slots * size_of::<Slot>());
        let bytes = bytes.ok_or_else(|| fail(nix::Error::EINVAL))?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap(None, bytes, access, MmapFlags::MAP_SHARED, map, 0) };
        Ok(Self {
            start: start.map_err(fail)?,
            slots,
        })
    }

    fn slots(&self) -> &[Slot] {
        // SAFETY: the mapping is page aligned and `slots` entries long. Nobody
        // writes to a ring once it has been filled.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.slots) }
    }

    fn slots_mut(&mut self) -> &mut [Slot] {
        // SAFETY: as above; only the maker of a ring, before anybody else knows of
        // it, asks for this.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.slots) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which no slice outlives.
        let unmapped = unsafe { munmap(self.start, self.slots * size_of::<Slot>()) };
        debug_assert!(unmapped.is_ok());
    }
}

/// All rings, by VIP id.
#[derive(Debug)]
pub(crate) struct Rings(Table<u32, u32>);

impl Rings {
    pub(crate) fn new(map: MapHandle) -> Result<Self> {
        Table::new(map).map(Self)
    }

    /// Swaps rings in, all of them in one system call: each such call waits until
    /// no program can still see the old ones.
    pub(crate) fn swap(&self, rings: &[(u32, NewRing)]) -> Result<()> {
        let vips: Vec<u32> = rings.iter().map(|(vip, _)| *vip).collect();
        let maps: Vec<u32> = rings
            .iter()
            .map(|(_, ring)| ring.0.as_fd().as_raw_fd() as u32)
            .collect();
        self.0.put_all(&vips, &maps)
    }

    /// Takes a VIP's ring away.
    pub(crate) fn clear(&self, vip: u32) -> Result<()> {
        self.0.remove(&vip).map(drop)
    }

    /// A VIP's ring; empty if it has none. Needs CAP_SYS_ADMIN.
    pub(crate) fn read(&self, vip: u32) -> Result<Vec<u32>> {
        let Some(id) = self.0.get(&vip)? else {
            return Ok(Vec::new());
        };
        let map =
            MapHandle::from_map_id(id).map_err(|e| Error::map("open", "ring", io_error(&e)))?;
        Ok(View::new(&map)?
            .slots()
            .iter()
            .map(|slot| slot.id)
            .collect())
    }
}
