// SPDX-License-Identifier: Apache-2.0
//! What a daemon's process holds: where it grows, something leaks.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;
use std::ptr::null;

use anyhow::{Context as _, Result};
use libbpf_sys as bpf;
use serde::Serialize;

/// A look at a process.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct DaemonProcess {
    pub rss_kib: u64,
    pub descriptors: usize,
    pub maps: usize,
    pub maps_bytes: u64,
    /// What its maps hold that have entries by key: memory that is set aside tells nothing of these.
    pub entries: usize,
}

impl DaemonProcess {
    /// Of a process that runs.
    pub(super) fn of(pid: u32) -> Result<Self> {
        let root = Path::new("/proc").join(pid.to_string());
        let status = std::fs::read_to_string(root.join("status"))?;
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let rss_kib = rss.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        let (mut descriptors, mut maps, mut maps_bytes) = (0, 0, 0);
        let mut keyed = BTreeMap::new();
        for entry in std::fs::read_dir(root.join("fdinfo"))? {
            descriptors += 1;
            // It may have been closed meanwhile.
            let text = std::fs::read_to_string(entry?.path()).unwrap_or_default();
            let number = |name: &str| {
                let value = text.lines().find_map(|line| line.strip_prefix(name));
                value.and_then(|rest| rest.trim().parse::<u64>().ok())
            };
            let (Some(kind), Some(bytes)) = (number("map_type:"), number("memlock:")) else {
                continue;
            };
            maps += 1;
            maps_bytes += bytes;
            // Several descriptors may be of one map.
            if let (true, Some(id), Some(key)) = (
                has_keys(kind as u32),
                number("map_id:"),
                number("key_size:"),
            ) {
                keyed.insert(id as u32, key as usize);
            }
        }
        let entries = keyed.into_iter().map(|(id, key)| entries_of(id, key));
        Ok(Self {
            rss_kib: rss_kib.context("no VmRSS")?,
            descriptors,
            maps,
            maps_bytes,
            entries: entries.sum::<Result<usize>>()?,
        })
    }
}

/// Whether a map of this type has the entries that were put in; others have all there can be.
fn has_keys(kind: bpf::bpf_map_type) -> bool {
    [
        bpf::BPF_MAP_TYPE_HASH,
        bpf::BPF_MAP_TYPE_PERCPU_HASH,
        bpf::BPF_MAP_TYPE_LRU_HASH,
        bpf::BPF_MAP_TYPE_LRU_PERCPU_HASH,
        bpf::BPF_MAP_TYPE_HASH_OF_MAPS,
        bpf::BPF_MAP_TYPE_LPM_TRIE,
    ]
    .contains(&kind)
}

/// How many entries a map has.
fn entries_of(id: u32, key_size: usize) -> Result<usize> {
    // SAFETY: the call takes a number; what it returns is looked at.
    let fd = unsafe { bpf::bpf_map_get_fd_by_id(id) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd)).context("open a map");
    }
    // SAFETY: a new descriptor that no other code owns.
    let map = unsafe { OwnedFd::from_raw_fd(fd) };
    let (mut key, mut count) = (vec![0_u8; key_size], 0);
    loop {
        let after = if count == 0 { null() } else { key.as_ptr() };
        let mut next = vec![0_u8; key_size];
        // SAFETY: both keys are as long as the map's, and outlive the call.
        let end = unsafe {
            bpf::bpf_map_get_next_key(map.as_raw_fd(), after.cast(), next.as_mut_ptr().cast())
        };
        match end {
            0 => (key, count) = (next, count + 1),
            _ if end == -libc::ENOENT => return Ok(count),
            _ => return Err(io::Error::from_raw_os_error(-end)).context("read a map's keys"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_the_entries_of_its_maps() {
        // SAFETY: a map without options, of keys and values of four octets.
        let fd = unsafe {
            bpf::bpf_map_create(bpf::BPF_MAP_TYPE_HASH, c"entries".as_ptr(), 4, 4, 8, null())
        };
        assert!(fd >= 0, "a map");
        // SAFETY: a new descriptor that no other code owns.
        let map = unsafe { OwnedFd::from_raw_fd(fd) };
        let info = format!("/proc/self/fdinfo/{}", map.as_raw_fd());
        let info = std::fs::read_to_string(info).expect("the kernel's view of it");
        let id = info.lines().find_map(|line| line.strip_prefix("map_id:"));
        let id = id
            .and_then(|id| id.trim().parse().ok())
            .expect("its number");
        assert_eq!(entries_of(id, 4).expect("a look"), 0);
        for key in [1_u32, 0, 2] {
            let key = (&raw const key).cast();
            // SAFETY: key and value are as long as the map's, and outlive the call.
            let put = unsafe { bpf::bpf_map_update_elem(map.as_raw_fd(), key, key, 0) };
            assert_eq!(put, 0);
        }
        assert_eq!(entries_of(id, 4).expect("a look"), 3);
        // Other tests may have maps, too.
        let held = DaemonProcess::of(std::process::id()).expect("a look");
        assert!(held.maps >= 1 && held.entries >= 3, "{held:?}");
    }
}
