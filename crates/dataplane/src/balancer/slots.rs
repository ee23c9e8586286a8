// SPDX-License-Identifier: Apache-2.0
//! What the numbered entries of a table hold, found by number and by key without a search.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;

use super::{Real, Vip, VipId};

/// What an entry is found by.
pub(super) trait Keyed: Copy {
    type Key: Eq + Hash;

    fn key(&self) -> Self::Key;
}

impl Keyed for Vip {
    type Key = Self;

    fn key(&self) -> Self {
        *self
    }
}

impl Keyed for Real {
    type Key = (VipId, IpAddr);

    fn key(&self) -> (VipId, IpAddr) {
        (self.vip, self.address)
    }
}

/// The entries in use.
#[derive(Debug)]
pub(super) struct Slots<T: Keyed> {
    values: Vec<Option<T>>,
    ids: HashMap<T::Key, u32>,
    /// Free ones below the last in use.
    holes: BTreeSet<u32>,
}

impl<T: Keyed> Default for Slots<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            ids: HashMap::new(),
            holes: BTreeSet::new(),
        }
    }
}

impl<T: Keyed> Slots<T> {
    pub(super) fn get(&self, id: u32) -> Option<T> {
        self.values.get(id as usize).copied().flatten()
    }

    pub(super) fn id(&self, key: &T::Key) -> Option<u32> {
        self.ids.get(key).copied()
    }

    /// All in use with their numbers, in the order of these.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, T)> + '_ {
        let slots = (0..).zip(&self.values);
        slots.filter_map(|(id, slot)| Some((id, (*slot)?)))
    }

    /// The lowest that is free, below `max`.
    pub(super) fn free(&self, max: u32) -> Option<u32> {
        let lowest = self.holes.first().copied();
        let id = lowest.unwrap_or(self.values.len() as u32);
        (id < max).then_some(id)
    }

    pub(super) fn put(&mut self, id: u32, value: T) {
        self.take(id);
        let end = self.values.len() as u32;
        if id >= end {
            self.holes.extend(end..id);
            self.values.resize(id as usize + 1, None);
        }
        self.holes.remove(&id);
        self.values[id as usize] = Some(value);
        self.ids.entry(value.key()).or_insert(id);
    }

    pub(super) fn take(&mut self, id: u32) -> Option<T> {
        let value = self.values.get_mut(id as usize)?.take()?;
        self.holes.insert(id);
        let key = value.key();
        if self.ids.get(&key) == Some(&id) {
            self.ids.remove(&key);
        }
        Some(value)
    }
}

impl<T: Keyed> FromIterator<(u32, T)> for Slots<T> {
    fn from_iter<I: IntoIterator<Item = (u32, T)>>(entries: I) -> Self {
        let mut slots = Self::default();
        for (id, value) in entries {
            slots.put(id, value);
        }
        slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Keyed for (char, u8) {
        type Key = char;

        fn key(&self) -> char {
            self.0
        }
    }

    #[test]
    fn numbers_are_given_out_lowest_first_and_follow_their_keys() {
        let mut slots: Slots<(char, u8)> = [(3, ('c', 1)), (1, ('b', 1))].into_iter().collect();
        assert_eq!((slots.id(&'c'), slots.id(&'x')), (Some(3), None));
        assert_eq!(slots.free(9), Some(0));
        for (id, key) in [(0, 'd'), (2, 'e'), (4, 'f')] {
            assert_eq!(slots.free(9), Some(id));
            slots.put(id, (key, 2));
        }
        assert_eq!((slots.free(5), slots.free(6)), (None, Some(5)));
        assert_eq!(slots.take(1), Some(('b', 1)));
        assert_eq!(
            (slots.get(1), slots.id(&'b'), slots.take(1)),
            (None, None, None)
        );
        assert_eq!(slots.free(9), Some(1));
        // A number that gets another value.
        slots.put(2, ('g', 3));
        assert_eq!((slots.id(&'e'), slots.id(&'g')), (None, Some(2)));
        let all: Vec<_> = slots.iter().map(|(id, (key, _))| (id, key)).collect();
        assert_eq!(all, [(0, 'd'), (2, 'g'), (3, 'c'), (4, 'f')]);
    }
}
