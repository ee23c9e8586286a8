// SPDX-License-Identifier: Apache-2.0
//! An array of the kernel in this process's memory.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use libbpf_rs::{MapCore as _, MapHandle};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::{DataPlaneError, Result};

/// What an array holds that the kernel may write to at any time.
///
/// # Safety
/// `#[repr(C)]`, its size 4 or a multiple of 8, and every field atomic, or one that is
/// never read.
pub(crate) unsafe trait Shared {}

// SAFETY: an atomic number.
unsafe impl Shared for AtomicU64 {}
// SAFETY: the same.
unsafe impl Shared for AtomicU32 {}

/// All entries of a BPF array made with `BPF_F_MMAPABLE`.
#[derive(Debug)]
pub(crate) struct Mapped<T> {
    start: NonNull<c_void>,
    entries: usize,
    entry: PhantomData<T>,
}

// SAFETY: the memory is the kernel's and outlives threads; entries are atomic.
unsafe impl<T: Shared> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T: Shared> Sync for Mapped<T> {}

impl<T: Shared> Mapped<T> {
    /// Maps the whole array; an error if its values have another size.
    pub(crate) fn new(map: &MapHandle) -> Result<Self> {
        let name = map.name().to_string_lossy().into_owned();
        let fail = |e: nix::Error| DataPlaneError::map("map into memory", &name, e);
        if map.value_size().next_multiple_of(8) as usize != size_of::<T>() {
            return Err(fail(nix::Error::EINVAL));
        }
        Self::parts(map)
    }

    /// The same by parts, of which a value is a whole number.
    pub(crate) fn parts(map: &MapHandle) -> Result<Self> {
        let name = map.name().to_string_lossy().into_owned();
        let fail = |e: nix::Error| DataPlaneError::map("map into memory", &name, e);
        let value = map.value_size().next_multiple_of(8) as usize;
        if !value.is_multiple_of(size_of::<T>()) {
            return Err(fail(nix::Error::EINVAL));
        }
        let entries = map.max_entries() as usize * (value / size_of::<T>());
        let bytes = NonZeroUsize::new(entries * size_of::<T>());
        let bytes = bytes.ok_or_else(|| fail(nix::Error::EINVAL))?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap(None, bytes, access, MapFlags::MAP_SHARED, map, 0) };
        Ok(Self {
            start: start.map_err(fail)?,
            entries,
            entry: PhantomData,
        })
    }
}

impl<T: Shared> Deref for Mapped<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping is page aligned and `entries` long; by the trait's
        // contract nothing is read that is not atomic.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.entries) }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which no slice outlives.
        let unmapped = unsafe { munmap(self.start, self.entries * size_of::<T>()) };
        debug_assert!(unmapped.is_ok());
    }
}
