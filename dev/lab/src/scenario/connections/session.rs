// SPDX-License-Identifier: Apache-2.0
//! What the clients of a run speak, and how those of QUIC move.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::tally::Tally;
use crate::load::get;
use crate::load::log::ConnectionFault;
use crate::quic::session::{self as quic, AddressChanges};

/// Time between two moves of a client: several in the life of what a change can break.
const MOVES: Duration = Duration::from_millis(900);

/// A service, and how a client reaches it.
#[derive(Clone)]
pub(in crate::scenario) struct TargetService {
    target: SocketAddr,
    /// Over QUIC: what clients share, and how this one moves.
    quic: Option<(quic::QuicClient, AddressChanges)>,
}

impl TargetService {
    /// Every way to reach these addresses. Connections may be silent for `idle`.
    pub(in crate::scenario) fn all(
        targets: &[SocketAddr],
        quic: bool,
        idle: Duration,
    ) -> Result<Vec<Self>> {
        if !quic {
            let tcp = |&target: &SocketAddr| Self { target, quic: None };
            return Ok(targets.iter().map(tcp).collect());
        }
        let client = quic::QuicClient::new(idle)?;
        let moves = [
            AddressChanges::Migrates(MOVES),
            AddressChanges::Rebound(MOVES),
            AddressChanges::Never,
        ];
        let ways = moves.into_iter().flat_map(|moves| {
            let client = client.clone();
            targets.iter().map(move |&target| Self {
                target,
                quic: Some((client.clone(), moves)),
            })
        });
        Ok(ways.collect())
    }
}

/// A connection.
pub(in crate::scenario) enum ClientSession {
    Tcp(get::HttpSession),
    Quic(quic::QuicSession),
}

impl ClientSession {
    /// Connects; `wait` is the longest wait for this and for every next byte.
    pub(in crate::scenario) async fn open(
        service: &TargetService,
        wait: Duration,
        tally: &Arc<Tally>,
    ) -> Result<Self, ConnectionFault> {
        let Some((client, moves)) = &service.quic else {
            return get::HttpSession::open(service.target, wait)
                .await
                .map(Self::Tcp);
        };
        let tally = Arc::clone(tally);
        let moved = move || tally.moved();
        quic::QuicSession::open(client, service.target, wait, *moves, moved)
            .await
            .map(Self::Quic)
    }

    /// Sends a request for `path` and waits for its whole answer, which must come from
    /// the server of the one before.
    pub(in crate::scenario) async fn get(&mut self, path: &str) -> Result<(), ConnectionFault> {
        match self {
            Self::Tcp(session) => session.get(path).await.map(drop),
            Self::Quic(session) => session.get(path).await,
        }
    }
}
