// SPDX-License-Identifier: Apache-2.0
//! The process's heap.

/// Gives memory that is free back to the system: to read a file with a million reals takes a
/// gigabyte for some seconds, which the C library keeps otherwise.
pub fn give_back_memory() {
    // SAFETY: it takes no pointer, and may be called at any time.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
