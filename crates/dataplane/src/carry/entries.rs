// SPDX-License-Identifier: Apache-2.0
//! Maps entry by entry, under the same keys.

use std::collections::HashMap;

use libbpf_rs::{ErrorKind, MapCore as _, MapFlags, MapHandle, MapType};

use super::{Follower, Source};
use crate::error::{DataPlaneError, Result};
use crate::map::{each_entry, io_error};

fn failed(doing: &'static str, map: &MapHandle, e: &libbpf_rs::Error) -> DataPlaneError {
    DataPlaneError::map(doing, &map.name().to_string_lossy(), io_error(e))
}

/// All keys and values of an array or a hash table, in the order in which the kernel gives them.
/// Tables that change meanwhile may give some twice, or not at all.
pub(crate) fn read(map: &MapHandle) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    if map.map_type() == MapType::LpmTrie {
        let value = |key: &[u8]| map.lookup(key, MapFlags::ANY);
        let pairs = map
            .keys()
            .map(|key| Ok(value(&key)?.map(|value| (key, value))));
        return pairs
            .filter_map(Result::transpose)
            .collect::<Result<_, libbpf_rs::Error>>()
            .map_err(|e| failed("read", map, &e));
    }
    let mut all = Vec::new();
    each_entry(map, |key, value| all.push((key.to_vec(), value.to_vec())))?;
    Ok(all)
}

/// Copies a map; behind the first time, what has changed since and what the new program has
/// left alone.
pub(super) struct EntryFollower {
    source: Source,
    new: MapHandle,
    /// By old key: the old value, and what was written for it.
    copied: HashMap<Vec<u8>, (Vec<u8>, Vec<u8>)>,
    is_array: bool,
    /// What is copied first replaces what is there.
    overwrites: bool,
    last_cut_off: Option<u32>,
}

impl EntryFollower {
    pub(super) fn new(source: Source, new: MapHandle, overwrites: bool) -> Self {
        Self {
            is_array: source.map.map_type() == MapType::Array,
            source,
            new,
            copied: HashMap::new(),
            overwrites,
            last_cut_off: None,
        }
    }

    /// The last entry that is not zero and has no place in the new array.
    pub(super) fn last_cut_off(&self) -> Option<u32> {
        self.last_cut_off
    }

    /// Whether the new map has this for the key; arrays have zeros in the beginning.
    fn holds(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        let held = self.new.lookup(key, MapFlags::ANY);
        let held = held.map_err(|e| failed("read", &self.new, &e))?;
        Ok(held.is_some_and(|held| held == value))
    }
}

impl Follower for EntryFollower {
    fn follow(&mut self, _is_at_rest: bool) -> Result<()> {
        let mut gone = std::mem::take(&mut self.copied);
        let mut copied = HashMap::new();
        for (key, old) in read(&self.source.map)? {
            let to = self.source.key.apply(&key);
            let is_zero = self.is_array && old.iter().all(|byte| *byte == 0);
            let number = u32::from_ne_bytes(index(&key));
            if self.is_array && number >= self.new.max_entries() {
                self.last_cut_off = self.last_cut_off.max((!is_zero).then_some(number));
                continue;
            }
            let before = gone.remove(&key);
            if before.as_ref().is_some_and(|(value, _)| *value == old) {
                copied.extend(before.map(|before| (key, before)));
                continue;
            }
            let value = self.source.value.apply(&old);
            let result = match &before {
                Some((_, written)) if self.holds(&to, written)? => {
                    self.new.update(&to, &value, MapFlags::ANY)
                }
                Some(_) => Ok(()),
                None if is_zero => continue,
                None if self.is_array => match self.holds(&to, &vec![0; value.len()])? {
                    true => self.new.update(&to, &value, MapFlags::ANY),
                    false => Ok(()),
                },
                None if self.overwrites => self.new.update(&to, &value, MapFlags::ANY),
                None => match self.new.update(&to, &value, MapFlags::NO_EXIST) {
                    Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
                    done => done,
                },
            };
            result.map_err(|e| failed("write", &self.new, &e))?;
            copied.insert(key, (old, value));
        }
        self.copied = copied;
        for (key, (_, written)) in gone {
            let to = self.source.key.apply(&key);
            if !self.is_array && self.holds(&to, &written)? {
                match self.new.delete(&to) {
                    Err(e) if e.kind() != ErrorKind::NotFound => {
                        return Err(failed("remove from", &self.new, &e));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn index(key: &[u8]) -> [u8; 4] {
    key.try_into().unwrap_or([u8::MAX; 4])
}

/// Copies counters of each CPU, once: what comes in between is not counted.
pub(super) fn copy_counters(source: &Source, new: &MapHandle) -> Result<()> {
    for index in 0..source.map.max_entries().min(new.max_entries()) {
        let key = index.to_ne_bytes();
        let values = source.map.lookup_percpu(&key, MapFlags::ANY);
        let values = values.map_err(|e| failed("read", &source.map, &e))?;
        let values = values.unwrap_or_default();
        if values.iter().flatten().all(|byte| *byte == 0) {
            continue;
        }
        let values: Vec<Vec<u8>> = values.iter().map(|of| source.value.apply(of)).collect();
        new.update_percpu(&key, &values, MapFlags::ANY)
            .map_err(|e| failed("write", new, &e))?;
    }
    Ok(())
}
