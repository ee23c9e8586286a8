// SPDX-License-Identifier: Apache-2.0

//! Events for the caller.

use std::collections::VecDeque;

use crate::types::PathId;

/// Events that wait for the caller, at most; beyond, the oldest are dropped.
const MAX_EVENTS: usize = 256;

/// A change that an operator wants to know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelEvent {
    /// The peer has answered: the tunnel can carry traffic.
    PeerUp,
    /// The peer answers as another instance: it was restarted. What was under way is
    /// dropped, both directions begin again.
    PeerRestarted,
    /// Whether the peer's device takes UDP datagrams merged. What is merged for one that does not
    /// is lost there.
    PeerMergesUdp(bool),
    /// The peer's address sends datagrams of this version of the wire format, which is not this
    /// one's. Told once until a session begins.
    PeerVersion(u8),
    /// This end has an earlier state of its memory, as from a snapshot of its machine. What was
    /// under way is dropped, both directions begin again.
    SetBack,
    /// The path carries traffic.
    PathAlive(PathId),
    /// The path has stopped answering, or loses all data; what was in flight moves to the others.
    PathDead(PathId),
    /// The path answers probes and loses all data: it is dead for a while.
    PathLosesData(PathId),
    /// The path lets through datagrams of this size in bytes, IP header included.
    PathMtu(PathId, u16),
}

/// Events that the caller has not polled yet.
#[derive(Debug, Default)]
pub(crate) struct EventQueue(VecDeque<TunnelEvent>);

impl EventQueue {
    pub(crate) fn push(&mut self, event: TunnelEvent) {
        if self.0.len() == MAX_EVENTS {
            self.0.pop_front();
        }
        self.0.push_back(event);
    }

    pub(crate) fn pop(&mut self) -> Option<TunnelEvent> {
        self.0.pop_front()
    }
}
