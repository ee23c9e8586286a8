// SPDX-License-Identifier: Apache-2.0
//! What others do, to compare with: consistent hashing on a circle, AnchorHash, Beamer's buckets
//! and a table that evicts what was used least recently.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use super::pool::PoolUpdate;

/// A mixing function; its values for two seeds are independent.
pub(super) fn mixed(value: u64, seed: u64) -> u64 {
    let mut z = value ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Points of a server on the circle.
const POINTS: u64 = 100;

/// Consistent hashing (Karger et al., 1997): a key goes to the next point on a circle.
#[derive(Debug, Default)]
pub(super) struct Circle {
    points: BTreeMap<u64, u32>,
}

impl Circle {
    pub(super) fn new(servers: u32) -> Self {
        let mut circle = Self::default();
        (0..servers).for_each(|server| circle.update(PoolUpdate::Joined(server)));
        circle
    }

    pub(super) fn update(&mut self, update: PoolUpdate) {
        let (PoolUpdate::Left(server) | PoolUpdate::Joined(server)) = update;
        for point in 0..POINTS {
            let at = mixed(u64::from(server) * POINTS + point, 7);
            match update {
                PoolUpdate::Left(_) => self.points.remove(&at),
                PoolUpdate::Joined(_) => self.points.insert(at, server),
            };
        }
    }

    pub(super) fn at(&self, hash: u64) -> Option<u32> {
        let next = self.points.range(hash..).next();
        next.or_else(|| self.points.iter().next())
            .map(|(_, server)| *server)
    }
}

/// AnchorHash (Mendelson et al., 2020) with JET's horizon: which buckets come next is known,
/// and so is which keys will move then.
#[derive(Debug)]
pub(super) struct Anchor {
    /// Size of the working set right after the bucket was removed; 0: it works.
    removal: Vec<u32>,
    working: Vec<u32>,
    location: Vec<u32>,
    successor: Vec<u32>,
    removed: Vec<u32>,
    size: u32,
    horizon: u32,
    server_of: Vec<u32>,
    bucket_of: Vec<u32>,
}

impl Anchor {
    /// Twice as many buckets as servers, as in JET's run.
    pub(super) fn new(servers: u32, horizon: u32) -> Self {
        let all: Vec<u32> = (0..2 * servers).collect();
        let mut anchor = Self {
            removal: vec![0; all.len()],
            working: all.clone(),
            location: all.clone(),
            successor: all.clone(),
            removed: Vec::new(),
            size: 2 * servers,
            horizon,
            server_of: all,
            bucket_of: (0..servers).collect(),
        };
        (servers..2 * servers)
            .rev()
            .for_each(|bucket| anchor.remove(bucket));
        anchor
    }

    fn remove(&mut self, bucket: u32) {
        self.size -= 1;
        let last = self.working[self.size as usize];
        let place = self.location[bucket as usize];
        self.removal[bucket as usize] = self.size;
        self.working[place as usize] = last;
        self.location[last as usize] = place;
        self.successor[bucket as usize] = last;
        self.removed.push(bucket);
    }

    pub(super) fn update(&mut self, update: PoolUpdate) {
        match update {
            PoolUpdate::Left(server) => self.remove(self.bucket_of[server as usize]),
            PoolUpdate::Joined(server) => {
                let Some(bucket) = self.removed.pop() else {
                    return;
                };
                let moved = self.working[self.size as usize];
                self.removal[bucket as usize] = 0;
                self.location[moved as usize] = self.size;
                let place = self.location[bucket as usize];
                self.working[place as usize] = bucket;
                self.successor[bucket as usize] = bucket;
                self.size += 1;
                self.server_of[bucket as usize] = server;
                self.bucket_of[server as usize] = bucket;
            }
        }
    }

    /// The key's server, and whether a bucket of the horizon would take the key.
    pub(super) fn at(&self, hash: u64) -> (u32, bool) {
        let capacity = self.removal.len() as u64;
        let mut key = mixed(hash, capacity);
        let mut bucket = (key % capacity) as u32;
        let mut moves = false;
        while self.removal[bucket as usize] > 0 {
            let then = self.removal[bucket as usize];
            moves |= then < self.size + self.horizon;
            key = mixed(key, u64::from(bucket) + 1);
            bucket = (key % u64::from(then)) as u32;
            while self.removal[bucket as usize] >= then {
                bucket = self.successor[bucket as usize];
            }
        }
        (self.server_of[bucket as usize], moves)
    }
}

/// Buckets of Beamer (Olteanu et al., 2018): each has a server and remembers the one before,
/// which serves what the new one does not know. A bucket is its own server's, and another's,
/// always the same one, while that is away: no bucket moves that need not.
#[derive(Debug)]
pub(super) struct Buckets {
    /// Now, and before.
    servers: Vec<[u32; 2]>,
    count: u32,
}

/// A server has this many buckets.
const BUCKETS: u32 = 100;

impl Buckets {
    pub(super) fn new(servers: u32) -> Self {
        let own = |bucket| [bucket % servers; 2];
        Self {
            servers: (0..servers * BUCKETS).map(own).collect(),
            count: servers,
        }
    }

    /// How much a server wants a bucket: its own most.
    fn rank(bucket: u32, server: u32, count: u32) -> u64 {
        match bucket % count == server {
            true => u64::MAX,
            false => mixed(u64::from(bucket), u64::from(server) + 1),
        }
    }

    /// `takes` says which servers may have buckets, after the update.
    pub(super) fn update(&mut self, update: PoolUpdate, takes: &[bool]) {
        let count = self.count;
        for (bucket, [now, before]) in (0..).zip(&mut self.servers) {
            let rank = |server: &u32| Self::rank(bucket, *server, count);
            let next = match update {
                PoolUpdate::Left(server) if server == *now => {
                    let takers = (0..count).filter(|of| takes[*of as usize]);
                    takers.max_by_key(rank).unwrap_or(server)
                }
                PoolUpdate::Joined(server) if rank(&server) > rank(now) => server,
                _ => continue,
            };
            if next != *now {
                *before = *now;
                *now = next;
            }
        }
    }

    pub(super) fn at(&self, hash: u64) -> [u32; 2] {
        self.servers[(hash % self.servers.len() as u64) as usize]
    }
}

/// The keys are hashes already.
#[derive(Debug, Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

const NONE: u32 = u32::MAX;

/// A table of connections that evicts the one used least recently.
#[derive(Debug)]
pub(super) struct Lru {
    places: HashMap<u64, u32, BuildHasherDefault<Identity>>,
    entries: Vec<LruEntry>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    capacity: usize,
}

#[derive(Debug, Clone, Copy)]
struct LruEntry {
    key: u64,
    server: u32,
    newer: u32,
    older: u32,
}

impl Lru {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            places: HashMap::default(),
            entries: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            capacity: capacity.max(1),
        }
    }

    fn unlink(&mut self, place: u32) {
        let LruEntry { newer, older, .. } = self.entries[place as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.entries[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
    }

    fn link(&mut self, place: u32) {
        let before = std::mem::replace(&mut self.newest, place);
        self.entries[place as usize].newer = NONE;
        self.entries[place as usize].older = before;
        match before {
            NONE => self.oldest = place,
            before => self.entries[before as usize].newer = place,
        }
    }

    /// The key's server; the key is the one used most recently from now on.
    pub(super) fn find(&mut self, key: u64) -> Option<u32> {
        let place = *self.places.get(&key)?;
        self.unlink(place);
        self.link(place);
        Some(self.entries[place as usize].server)
    }

    /// A key that is not there yet.
    pub(super) fn insert(&mut self, key: u64, server: u32) {
        if self.places.len() == self.capacity {
            let oldest = self.entries[self.oldest as usize].key;
            self.remove(oldest);
        }
        let entry = LruEntry {
            key,
            server,
            newer: NONE,
            older: NONE,
        };
        let place = match self.free.pop() {
            Some(place) => {
                self.entries[place as usize] = entry;
                place
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.places.insert(key, place);
        self.link(place);
    }

    pub(super) fn remove(&mut self, key: u64) {
        if let Some(place) = self.places.remove(&key) {
            self.unlink(place);
            self.free.push(place);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.capacity);
    }
}
