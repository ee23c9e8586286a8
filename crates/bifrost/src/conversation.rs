// SPDX-License-Identifier: Apache-2.0

//! Conversations: who the peer is, and what ends and begins when it is another.

use crate::engine::{Control, Engine};
use crate::flow::mix;
use crate::path::Numbers;
use crate::refused::Refused;
use crate::seal::Sealer;
use crate::types::Event;
use crate::wire::Room;

/// Former instances of the peer that are remembered, so that their recorded probes do
/// not bring them back.
const FORMER: usize = 8;

impl Engine {
    /// Whether `instance` is one that the peer had before.
    pub(crate) fn is_former(&self, instance: u64) -> bool {
        self.former.contains(&instance)
    }

    /// Whether an instance that answers a probe of `probe_ns` follows the peer's present
    /// one. That one lived when the conversation began, and instances of an endpoint
    /// follow one another: who answers what was sent since then is later. An answer to an
    /// earlier probe may come from either; it may have been overtaken on another path.
    pub(crate) fn is_later(&self, probe_ns: u64) -> bool {
        self.peer.is_none() || probe_ns / 1000 >= self.begun_ns / 1000
    }

    /// The peer has proved to be `instance`, which it was not until now: everything
    /// begins anew.
    pub(crate) fn begin_conversation(&mut self, now_ns: u64, instance: u64) {
        self.begun_ns = now_ns;
        self.peer_room = Room::MOST;
        self.doubts = false;
        let restarted = self.peer.replace(instance);
        if let Some(old) = restarted {
            if self.former.len() == FORMER {
                self.former.pop_front();
            }
            self.former.push_back(old);
        }
        self.send_epoch = epoch(self.instance, instance);
        self.receive_epoch = epoch(instance, self.instance);
        self.sealer = Some(Sealer::new(&self.config.keys, self.instance, instance));
        self.metrics
            .refused
            .add(Refused::PeerRestart, self.frames.held.into());
        let released = &mut self.released;
        self.frames.clear(|release| released.push(release));
        self.reorder.clear(|release| released.push(release));
        self.verdict = None;
        self.pending.clear();
        self.pending_bytes = 0;
        self.again.clear();
        self.lingering.clear();
        self.control
            .retain(|control| !matches!(control, Control::Ack(_)));
        for (path, numbers) in self.paths.iter_mut().zip(&mut self.numbers) {
            *numbers = Numbers {
                probe: numbers.probe,
                ..Numbers::new()
            };
            if let Some(path) = path {
                path.begin(now_ns, &self.config);
            }
        }
        self.metrics.conversations += 1;
        self.event(if restarted.is_some() {
            Event::PeerRestarted
        } else {
            Event::PeerUp
        });
    }
}

/// Names a conversation in one direction.
fn epoch(from: u64, to: u64) -> u32 {
    (mix(from, to.rotate_left(17)) >> 32) as u32
}
