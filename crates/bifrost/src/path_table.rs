// SPDX-License-Identifier: Apache-2.0

//! The paths of a tunnel by their numbers, and what holds over all of them.

use crate::config::{PathConfig, TransportConfig, TransportConfigError};
use crate::path::{Path, PathNumbers};
use crate::types::PathId;

/// See the module.
#[derive(Debug)]
pub(crate) struct PathTable {
    paths: [Option<Path>; PathId::LIMIT],
    /// Where the numbers and counters of removed paths go on.
    numbers: [PathNumbers; PathId::LIMIT],
    /// Whether a timeout of a path is open until the peer is known to be awake.
    awaits_peer: bool,
}

impl PathTable {
    pub(crate) fn new() -> PathTable {
        PathTable {
            paths: [const { None }; PathId::LIMIT],
            numbers: [const { None }; PathId::LIMIT].map(|_: Option<()>| PathNumbers::new()),
            awaits_peer: false,
        }
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Path> {
        self.paths.get(index)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Path> {
        self.paths.get_mut(index)?.as_mut()
    }

    /// All paths with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Path)> {
        let paths = self.paths.iter().enumerate();
        paths.filter_map(|(index, path)| Some((index, path.as_ref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Path)> {
        let paths = self.paths.iter_mut().enumerate();
        paths.filter_map(|(index, path)| Some((index, path.as_mut()?)))
    }

    /// Those that carry traffic.
    pub(crate) fn alive(&self) -> impl Iterator<Item = (usize, &Path)> {
        self.iter().filter(|(_, path)| path.is_alive())
    }

    pub(crate) fn any_alive(&self) -> bool {
        self.alive().next().is_some()
    }

    /// Adds a path whose settings have been checked.
    ///
    /// # Errors
    /// Its number is taken.
    pub(crate) fn add(
        &mut self,
        now_ns: u64,
        id: PathId,
        path: PathConfig,
        config: &TransportConfig,
    ) -> Result<(), TransportConfigError> {
        let slot = &mut self.paths[id.index()];
        if slot.is_some() {
            return Err(TransportConfigError::PathTaken(id.0));
        }
        let numbers = &self.numbers[id.index()];
        *slot = Some(Path::new(now_ns, path, config, numbers));
        Ok(())
    }

    /// Removes a path that has been stopped.
    pub(crate) fn remove(&mut self, index: usize) {
        if let Some(path) = self.paths[index].take() {
            self.numbers[index] = path.numbers();
        }
    }

    /// A session begins on all paths.
    pub(crate) fn begin_session(&mut self, now_ns: u64, config: &TransportConfig) {
        self.awaits_peer = false;
        for (path, numbers) in self.paths.iter_mut().zip(&mut self.numbers) {
            *numbers = numbers.of_new_session();
            if let Some(path) = path {
                path.begin_session(now_ns, config);
            }
        }
    }

    /// A datagram of the peer was taken.
    pub(crate) fn on_peer_datagram(&mut self, now_ns: u64) {
        if self.awaits_peer {
            let paths = self.paths.iter_mut().flatten();
            self.awaits_peer =
                paths.fold(false, |waits, path| waits | path.on_peer_datagram(now_ns));
        }
    }

    /// A timeout of path `index` has all others probed. Those that carry nothing may have
    /// died unnoticed, and would be chosen next.
    pub(crate) fn probe_others(&mut self, now_ns: u64, index: usize) {
        self.awaits_peer = true;
        for (other, path) in self.iter_mut() {
            if path.is_alive() && other != index {
                path.request_probe(now_ns);
            }
        }
    }

    /// Whether path `index` is alive and loses all data, while the peer takes those that come on
    /// another one.
    pub(crate) fn loses_all(&self, index: usize) -> bool {
        let path = self.get(index).filter(|path| path.is_alive());
        path.is_some_and(|path| self.alive().any(|(_, other)| path.loses_all_beside(other)))
    }

    /// The largest chunk that every path lets through; 0 without paths.
    pub(crate) fn max_chunk(&self, sealed: bool) -> u16 {
        let fits = |(_, path): (usize, &Path)| path.config.max_chunk(path.mtu(), sealed);
        self.iter().map(fits).min().unwrap_or(0)
    }

    /// The smoothed RTT of the slowest living path.
    pub(crate) fn slowest_rtt_ns(&self) -> u64 {
        let rtts = self.alive().map(|(_, path)| path.smoothed_rtt_ns());
        rtts.max().unwrap_or(0)
    }

    /// The path that takes an acknowledgement of path `index`: the same, or if that is
    /// not alive, the fastest that is.
    pub(crate) fn carrier(&self, index: usize) -> Option<usize> {
        if self.get(index).is_some_and(Path::is_alive) {
            return Some(index);
        }
        let fastest = self.alive().min_by_key(|(_, path)| path.smoothed_rtt_ns());
        let own = || self.get(index).map(|_| index);
        fastest.map(|(index, _)| index).or_else(own)
    }
}
