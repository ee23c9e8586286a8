// SPDX-License-Identifier: Apache-2.0
//! Connections of this server that stateful balancers keep slots for: those that have
//! closed, and, for balancers that ask, those that are open and that open since.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use causeway_core::agent_report::ConnectionNotice;
use causeway_dataplane::{Changes, ConnTokens, TokenEvents, TokenOf};
use tracing::warn;

use crate::agent::Agent;

/// How long after its question a balancer gets reports of connections that open. It asks
/// every second for as long as it wants to know.
const LEARN_WINDOW: Duration = Duration::from_millis(2_500);

/// It stays on its thread.
pub(super) struct Connections<'a> {
    agent: &'a Agent,
    tokens: ConnTokens,
    events: TokenEvents,
    changes: Changes,
    /// Balancers that have asked, and when last.
    asked: BTreeMap<SocketAddr, Instant>,
}

impl<'a> Connections<'a> {
    /// Begins to listen for changes.
    pub(super) fn start(agent: &'a Agent, tokens: ConnTokens) -> causeway_dataplane::Result<Self> {
        Ok(Self {
            agent,
            events: tokens.events()?,
            tokens,
            changes: Changes::default(),
            asked: BTreeMap::new(),
        })
    }

    /// Waits for a change, at most so long.
    pub(super) fn wait(&mut self, timeout: Duration) {
        self.changes = self.events.wait(timeout);
    }

    /// Connections that have opened and those that have closed, as of the last wait.
    pub(super) fn take_changes(&mut self) -> (Vec<ConnectionNotice>, Vec<ConnectionNotice>) {
        let changes = std::mem::take(&mut self.changes);
        (self.notices(&changes.opened), self.notices(&changes.ended))
    }

    /// Balancers that get reports of connections that open.
    pub(super) fn learning(&mut self) -> Vec<SocketAddr> {
        self.asked.retain(|_, at| at.elapsed() < LEARN_WINDOW);
        self.asked.keys().copied().collect()
    }

    /// All that are open, for a balancer that has asked.
    pub(super) fn answer(&mut self, balancer: SocketAddr) -> Vec<ConnectionNotice> {
        self.asked.insert(balancer, Instant::now());
        match self.tokens.open() {
            Ok(open) => self.notices(&open),
            Err(error) => {
                warn!("cannot report open connections to {balancer}: {error}");
                Vec::new()
            }
        }
    }

    /// Those of VIPs that this agent no longer serves are left out.
    fn notices(&self, tokens: &[TokenOf]) -> Vec<ConnectionNotice> {
        let notice = |of: &TokenOf| {
            Some(ConnectionNotice {
                client: of.client,
                vip: of.vip,
                token: of.token,
                id: self.agent.id_in(of.vip)?,
            })
        };
        tokens.iter().filter_map(notice).collect()
    }
}
