// SPDX-License-Identifier: Apache-2.0

//! Paths come, go, and become narrower.

use crate::config::{ConfigError, MIN_MTU, PathConfig};
use crate::cut::cut;
use crate::engine::{Engine, SWEEP_NS};
use crate::metrics::PathState;
use crate::path::Path;
use crate::refused::Refused;
use crate::types::{Event, PathId};

impl Engine {
    /// Adds a path; it is probed at once, and used when it answers.
    ///
    /// # Errors
    /// The number is out of range or taken, or the MTU is too small.
    pub fn add_path(
        &mut self,
        now_ns: u64,
        id: PathId,
        path: PathConfig,
    ) -> Result<(), ConfigError> {
        path.check(id)?;
        let place = &mut self.paths[id.index()];
        if place.is_some() {
            return Err(ConfigError::PathTaken(id.0));
        }
        *place = Some(Path::new(
            now_ns,
            path,
            &self.config,
            &self.numbers[id.index()],
        ));
        self.note_chunk_room(now_ns);
        Ok(())
    }

    /// Removes a path; what is in flight on it is sent again on others. Does nothing
    /// to a path that does not exist.
    pub fn remove_path(&mut self, now_ns: u64, id: PathId) {
        let Some(place) = self.paths.get_mut(id.index()) else {
            return;
        };
        if place.is_none() {
            return;
        }
        self.stop_path(now_ns, id.index(), PathState::Down);
        if let Some(path) = self.paths[id.index()].take() {
            self.numbers[id.index()] = path.numbers();
        }
        self.note_chunk_room(now_ns);
    }

    /// The path's link went down or came up. Down: as a dead path, without probes. Up:
    /// it is probed, and used when it answers.
    pub fn set_path_link(&mut self, now_ns: u64, id: PathId, up: bool) {
        let Some(Some(path)) = self.paths.get_mut(id.index()) else {
            return;
        };
        let down = path.state == PathState::Down;
        if up && down {
            path.become_state(now_ns, PathState::Probing);
        } else if !up && !down {
            self.stop_path(now_ns, id.index(), PathState::Down);
        }
    }

    /// The path's MTU is known to have changed (`EMSGSIZE`, `IP_MTU`), in bytes with IP
    /// header; raised to 1280 if smaller, lowered to the path's setting if larger. Frames
    /// that were cut larger are cut anew. The engine finds out itself, more slowly, where
    /// nobody tells, and when it has become larger again.
    pub fn set_path_mtu(&mut self, now_ns: u64, id: PathId, mtu: u16) {
        if let Some(Some(path)) = self.paths.get_mut(id.index()) {
            let mtu = mtu.clamp(MIN_MTU, path.config.mtu);
            if path.set_mtu(now_ns, mtu) {
                self.event(Event::PathMtu(id, mtu));
                self.note_chunk_room(now_ns);
            }
        }
    }

    /// Takes a path out of use; what is in flight on it goes elsewhere.
    pub(crate) fn stop_path(&mut self, now_ns: u64, index: usize, state: PathState) {
        let Some(path) = &mut self.paths[index] else {
            return;
        };
        let was_alive = path.is_alive();
        path.become_state(now_ns, state);
        path.sending.lose_all(&mut self.lost);
        path.stats.lost_by_death += self.lost.len() as u64;
        if was_alive {
            path.stats.deaths += 1;
            self.event(Event::PathDead(PathId(index as u8)));
        }
        self.queue_lost(now_ns, index);
    }

    /// Recomputes what every path lets through, and cuts frames anew that are too
    /// large for it.
    pub(crate) fn note_chunk_room(&mut self, now_ns: u64) {
        let sealed = self.config.keys.sealed();
        let room = |path: &Path| path.config.chunk_room(path.mtu, sealed);
        let before = self.chunk_room;
        self.chunk_room = self.paths.iter().flatten().map(room).min().unwrap_or(0);
        if self.chunk_room > 0 && self.chunk_room < before {
            self.recut(now_ns);
        }
    }

    fn recut(&mut self, now_ns: u64) {
        let mut anew = Vec::new();
        for at in self.frames.all() {
            let Some(frame) = self.frames.get(at) else {
                continue;
            };
            if frame.size <= self.chunk_room {
                continue;
            }
            match cut(frame.span.len, self.chunk_room) {
                Some((size, chunks)) => {
                    if let Some(at) = self.frames.recut(at, size, chunks) {
                        anew.push(at);
                    }
                }
                None => self.drop_frame(at, Refused::FrameLong),
            }
        }
        let frames = &self.frames;
        self.again.retain(|again| frames.get(again.frame).is_some());
        self.pending.retain(|at| frames.get(at).is_some());
        for at in anew.into_iter().rev() {
            if let Some(frame) = self.frames.get_mut(at) {
                frame.begun = 0;
                self.pending.push_front(frame.flow, at);
            }
        }
        self.pending_bytes = self.pending.iter().map(|at| self.unsent(at)).sum();
        self.sweep_ns = now_ns + SWEEP_NS;
    }
}
