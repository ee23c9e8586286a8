// SPDX-License-Identifier: Apache-2.0
//! Typed views of BPF maps. A view checks key and value sizes once, when it is
//! made; after that the types do.

use std::collections::HashSet;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::{io, ptr};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};

use crate::abi::Plain;
use crate::error::{DataPlaneError, Result};

/// The C view of a batch call without flags.
fn batch_opts() -> libbpf_sys::bpf_map_batch_opts {
    libbpf_sys::bpf_map_batch_opts {
        sz: size_of::<libbpf_sys::bpf_map_batch_opts>() as _,
        ..Default::default()
    }
}

/// What the kernel compares when a map is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) kind: MapType,
    pub(crate) key: u32,
    pub(crate) value: u32,
    pub(crate) entries: u32,
}

impl Shape {
    /// What the kernel takes for such a map from the start on, where this many CPUs are possible
    /// (kernel/bpf/arraymap.c and hashtab.c).
    pub(crate) fn bytes(&self, cpus: u32) -> u64 {
        /// Links and hash of an element of a hash table.
        const ELEMENT: u64 = 48;
        const BUCKET: u64 = 16;
        let whole = |bytes: u32| u64::from(bytes).next_multiple_of(8);
        let entries = u64::from(self.entries);
        match self.kind {
            MapType::Array | MapType::ArrayOfMaps => entries * whole(self.value),
            // With a pointer to each entry's copies.
            MapType::PercpuArray => entries * (8 + u64::from(cpus) * whole(self.value)),
            // With an element to spare for each CPU.
            MapType::Hash | MapType::LruHash => {
                (entries + u64::from(cpus)) * (ELEMENT + whole(self.key) + whole(self.value))
                    + entries.next_power_of_two() * BUCKET
            }
            MapType::RingBuf => entries,
            // Those that grow with what is put in.
            _ => 0,
        }
    }

    pub(crate) fn of(map: &MapHandle) -> Self {
        Self {
            kind: map.map_type(),
            key: map.key_size(),
            value: map.value_size(),
            entries: map.max_entries(),
        }
    }
}

/// A counter among a program's global variables, which the kernel writes.
pub(crate) fn read_counter(counter: &u64) -> u64 {
    // SAFETY: a reference is valid for reads.
    unsafe { ptr::from_ref(counter).read_volatile() }
}

/// A map from `K` to `V`, one value for all CPUs.
#[derive(Debug)]
pub(crate) struct Table<K, V> {
    map: MapHandle,
    types: PhantomData<fn(K) -> V>,
}

impl<K: Plain, V: Plain> Table<K, V> {
    /// Wraps `map`; an error if its key or value has another size.
    pub(crate) fn new(map: MapHandle) -> Result<Self> {
        check_sizes::<K, V>(&map)?;
        Ok(Self {
            map,
            types: PhantomData,
        })
    }

    pub(crate) fn map(&self) -> &MapHandle {
        &self.map
    }

    pub(crate) fn get(&self, key: &K) -> Result<Option<V>> {
        let mut value = V::default();
        let found = self
            .map
            .lookup_into(key.as_bytes(), value.as_bytes_mut(), MapFlags::ANY)
            .map_err(|e| self.error("read", e))?;
        Ok(found.then_some(value))
    }

    /// The same for a value with a lock: all of it at one time. The lock reads as 0.
    pub(crate) fn get_locked(&self, key: &K) -> Result<Option<V>> {
        let mut value = V::default();
        let found = self
            .map
            .lookup_into(key.as_bytes(), value.as_bytes_mut(), MapFlags::LOCK)
            .map_err(|e| self.error("read", e))?;
        Ok(found.then_some(value))
    }

    pub(crate) fn put(&self, key: &K, value: &V) -> Result<()> {
        self.map
            .update(key.as_bytes(), value.as_bytes(), MapFlags::ANY)
            .map_err(|e| self.error("write", e))
    }

    /// Removes a key; `false` if it was not there.
    pub(crate) fn remove(&self, key: &K) -> Result<bool> {
        match self.map.delete(key.as_bytes()) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == libbpf_rs::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(self.error("remove from", e)),
        }
    }

    /// Makes `wanted` all that a hash table or trie holds. What stays is there throughout. What is new
    /// comes before what is old goes, where both have room.
    ///
    /// # Errors
    /// More than there is room for changes nothing; `what` says of what.
    pub(crate) fn replace(&self, what: &'static str, wanted: &[(K, V)]) -> Result<()> {
        self.check_capacity(what, wanted.len())?;
        let keys: HashSet<&[u8]> = wanted.iter().map(|(key, _)| key.as_bytes()).collect();
        let mut old = self.entries()?;
        old.retain(|(key, _)| !keys.contains(key.as_bytes()));
        let put = || {
            wanted
                .iter()
                .try_for_each(|(key, value)| self.put(key, value))
        };
        let both_fit = wanted.len() + old.len() <= self.max_entries() as usize;
        if both_fit {
            put()?;
        }
        for (key, _) in &old {
            self.remove(key)?;
        }
        match both_fit {
            true => Ok(()),
            false => put(),
        }
    }

    /// An error if so many have no room.
    pub(crate) fn check_capacity(&self, what: &'static str, count: usize) -> Result<()> {
        let (value, max) = (count as u64, self.max_entries().into());
        match value > max {
            true => Err(DataPlaneError::OutOfRange {
                what,
                value,
                min: 0,
                max,
            }),
            false => Ok(()),
        }
    }

    /// All pairs, in the map's order.
    pub(crate) fn entries(&self) -> Result<Vec<(K, V)>> {
        let mut entries = Vec::new();
        for key in self.map.keys() {
            let key = K::from_bytes(&key).ok_or_else(|| size_error(self.map_name()))?;
            if let Some(value) = self.get(&key)? {
                entries.push((key, value));
            }
        }
        Ok(entries)
    }

    /// All pairs of a hash table, some thousands in each system call. A table that
    /// changes meanwhile may give a pair twice or leave one out.
    pub(crate) fn entries_batched(&self) -> Result<Vec<(K, V)>> {
        let mut all = Vec::new();
        each_entry(&self.map, |key, value| {
            all.extend(K::from_bytes(key).zip(V::from_bytes(value)));
        })?;
        Ok(all)
    }

    pub(crate) fn max_entries(&self) -> u32 {
        self.map.max_entries()
    }

    fn map_name(&self) -> String {
        self.map.name().to_string_lossy().into_owned()
    }

    fn error(&self, doing: &'static str, error: libbpf_rs::Error) -> DataPlaneError {
        DataPlaneError::map(doing, &self.map_name(), io_error(&error))
    }
}

impl<V: Plain> Table<u32, V> {
    /// The first `count` values of an array, in one system call.
    pub(crate) fn first(&self, count: u32) -> Result<Vec<V>> {
        let mut values = vec![V::default(); count as usize];
        lookup_batch(&self.map, 0..count, values.as_mut_ptr().cast())?;
        Ok(values)
    }

    /// Sets several values of an array, in one system call.
    pub(crate) fn put_all(&self, keys: &[u32], values: &[V]) -> Result<()> {
        update_batch(&self.map, keys, values)
    }
}

/// An array with one value per CPU.
#[derive(Debug)]
pub(crate) struct PerCpu<V> {
    map: MapHandle,
    cpus: usize,
    value: PhantomData<V>,
}

impl<V: Plain> PerCpu<V> {
    /// Wraps `map`; an error if its value has another size, or one that the
    /// kernel would pad.
    pub(crate) fn new(map: MapHandle) -> Result<Self> {
        check_sizes::<u32, V>(&map)?;
        const {
            assert!(
                size_of::<V>().is_multiple_of(8),
                "the kernel pads per-CPU values"
            )
        };
        let cpus = libbpf_rs::num_possible_cpus()
            .map_err(|e| DataPlaneError::bpf("count the CPUs", io_error(&e)))?;
        Ok(Self {
            map,
            cpus,
            value: PhantomData,
        })
    }

    /// The first `count` entries folded over the CPUs, in one system call.
    pub(crate) fn first(&self, count: u32, add: impl Fn(&mut V, &V)) -> Result<Vec<V>> {
        self.range(0..count, add)
    }

    /// Entries in a row folded over the CPUs, in one system call.
    pub(crate) fn range(&self, range: Range<u32>, add: impl Fn(&mut V, &V)) -> Result<Vec<V>> {
        let mut values = vec![V::default(); range.len() * self.cpus];
        lookup_batch(&self.map, range, values.as_mut_ptr().cast())?;
        let fold = |cpus: &[V]| {
            cpus.iter().fold(V::default(), |mut sum, value| {
                add(&mut sum, value);
                sum
            })
        };
        Ok(values.chunks_exact(self.cpus).map(fold).collect())
    }

    /// Sets an entry to zero on every CPU.
    pub(crate) fn clear(&self, index: u32) -> Result<()> {
        let zeros = vec![vec![0; size_of::<V>()]; self.cpus];
        self.map
            .update_percpu(index.as_bytes(), &zeros, MapFlags::ANY)
            .map_err(|e| {
                DataPlaneError::map("clear", &self.map.name().to_string_lossy(), io_error(&e))
            })
    }

    pub(crate) fn max_entries(&self) -> u32 {
        self.map.max_entries()
    }
}

/// Gives keys and values of an array or a hash table, thousands in each system call. A table that
/// changes meanwhile may give some twice, or not at all.
pub(crate) fn each_entry(map: &MapHandle, mut take: impl FnMut(&[u8], &[u8])) -> Result<()> {
    // A hash table's bucket has to fit.
    let batch = map.max_entries().clamp(1, 4096);
    let (key_len, value_len) = (map.key_size() as usize, map.value_size() as usize);
    let mut keys = vec![0_u8; key_len * batch as usize];
    let mut values = vec![0_u8; value_len * batch as usize];
    // Where the kernel goes on: a bucket's number, or a key in older kernels.
    let mut place = vec![0_u8; key_len.max(size_of::<u32>())];
    let opts = batch_opts();
    let mut from = ptr::null_mut();
    loop {
        let mut done = batch;
        // SAFETY: `keys` and `values` have room for `done` elements of the map's sizes; `place`
        // has room for a key, and is read where the kernel wrote it in the call before.
        let ret = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                from,
                place.as_mut_ptr().cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &mut done,
                &opts,
            )
        };
        if ret < 0 && ret != -libc::ENOENT {
            let name = map.name().to_string_lossy().into_owned();
            return Err(DataPlaneError::map("read", &name, errno(ret)));
        }
        let pairs = keys.chunks(key_len).zip(values.chunks(value_len));
        pairs
            .take(done as usize)
            .for_each(|(key, value)| take(key, value));
        if ret < 0 {
            return Ok(());
        }
        from = place.as_mut_ptr().cast();
    }
}

/// Reads these entries of an array into `values`, which must have room for them, for each CPU if
/// the map is per CPU.
fn lookup_batch(map: &MapHandle, range: Range<u32>, values: *mut libc::c_void) -> Result<()> {
    let count = range.len() as u32;
    if count == 0 {
        return Ok(());
    }
    let mut keys = vec![0_u32; count as usize];
    // The kernel begins behind this one.
    let mut before = range.start.wrapping_sub(1);
    let from = match range.start {
        0 => ptr::null_mut(),
        _ => ptr::from_mut(&mut before).cast(),
    };
    let mut next = 0_u32;
    let mut done = count;
    let opts = batch_opts();
    // SAFETY: `keys` holds `count` keys and, by this function's contract, `values`
    // as many values; `before` and `next` are keys. The kernel writes no more than `done`.
    let ret = unsafe {
        libbpf_sys::bpf_map_lookup_batch(
            map.as_fd().as_raw_fd(),
            from,
            ptr::from_mut(&mut next).cast(),
            keys.as_mut_ptr().cast(),
            values,
            &mut done,
            &opts,
        )
    };
    // ENOENT says that the batch reached the array's end.
    if ret < 0 && ret != -libc::ENOENT || done != count {
        let name = map.name().to_string_lossy();
        return Err(DataPlaneError::map("read", &name, errno(ret)));
    }
    Ok(())
}

fn update_batch<V: Plain>(map: &MapHandle, keys: &[u32], values: &[V]) -> Result<()> {
    assert_eq!(keys.len(), values.len(), "a value for each key");
    if keys.is_empty() {
        return Ok(());
    }
    let mut done = keys.len() as u32;
    let opts = batch_opts();
    // SAFETY: both slices hold `done` elements of the sizes the map has.
    let ret = unsafe {
        libbpf_sys::bpf_map_update_batch(
            map.as_fd().as_raw_fd(),
            keys.as_ptr().cast(),
            values.as_ptr().cast(),
            &mut done,
            &opts,
        )
    };
    if ret < 0 {
        return Err(DataPlaneError::map(
            "write",
            &map.name().to_string_lossy(),
            errno(ret),
        ));
    }
    Ok(())
}

fn check_sizes<K, V>(map: &MapHandle) -> Result<()> {
    let fits =
        map.key_size() as usize == size_of::<K>() && map.value_size() as usize == size_of::<V>();
    let name = || map.name().to_string_lossy().into_owned();
    if fits {
        Ok(())
    } else {
        Err(size_error(name()))
    }
}

/// Only a mismatch between the object and `abi`, which a test excludes.
fn size_error(map: String) -> DataPlaneError {
    let cause = io::Error::new(io::ErrorKind::InvalidData, "keys or values of another size");
    DataPlaneError::map("use", &map, cause)
}

/// Waits until every program that runs now has ended: they run inside of RCU's read sides, and
/// membarrier(2) of all processes waits for those.
pub(crate) fn wait_for_programs() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: a system call with numbers alone.
    let ret = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if ret != 0 {
        // A kernel with nohz_full has none. A CPU of such a host is not taken away for longer.
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// The error of a libbpf call that returned `-errno`.
pub(crate) fn errno(ret: i32) -> io::Error {
    io::Error::from_raw_os_error(-ret)
}

/// libbpf-rs keeps errno in its message and kind only; we want an `io::Error`
/// without a chain.
pub(crate) fn io_error(error: &libbpf_rs::Error) -> io::Error {
    io::Error::other(format!("{error:#}"))
}
