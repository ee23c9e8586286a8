// SPDX-License-Identifier: Apache-2.0
//! Connections of every kind, opened before a flood and open through it.

use std::time::Duration;

use anyhow::Result;

use super::World;
use super::floods::{COOKIES, QUIC, STATEFUL, TABLE};
use crate::load::log::Log;
use crate::load::{LoadConfig, RunningLoad};
use crate::quic::client::QuicClientOptions;
use crate::quic::{self, Stack};
use crate::scenario::bench::{PORT, QUIC_PORT};

/// The client whose kernel writes no timestamps.
pub(super) const PLAIN: usize = 1;
/// All connections are open after this.
pub(super) const WARM_UP: Duration = Duration::from_millis(1500);

/// Loads by what remembers their connections.
pub(super) struct Live(Vec<(&'static str, RunningLoad)>);

/// Users of each kind.
pub(super) fn slots(world: &World<'_>) -> Result<usize> {
    world.context.param("slots")
}

impl Live {
    /// Begins to open them; they last until [`Self::finish`].
    pub(super) fn start(world: &World<'_>) -> Result<Self> {
        let kinds = [
            ("cookies", COOKIES, 0),
            ("table", TABLE, PLAIN),
            ("stateful", STATEFUL, 0),
            ("quic", QUIC, 2),
        ];
        let namespaces = world.bench.client_namespaces();
        let start = |(name, vip, client): (&'static str, usize, usize)| {
            let port = if vip == QUIC { QUIC_PORT } else { PORT };
            let config = LoadConfig {
                duration_ms: 3_600_000,
                slots: slots(world)?,
                // None opens again under the flood.
                max_age_ms: 3_600_000,
                ..LoadConfig::new((world.plan.vip(vip), port).into(), world.context.seed)
            };
            let clients = std::slice::from_ref(&namespaces[client]);
            let options = QuicClientOptions::default();
            let load = match vip {
                QUIC => quic::load(Stack::Quinn, clients, &config, &options)?,
                _ => crate::load::start(clients, &config)?,
            };
            Ok((name, load))
        };
        Ok(Self(kinds.into_iter().map(start).collect::<Result<_>>()?))
    }

    /// Answers of each kind so far.
    pub(super) fn answers(&self) -> Vec<u64> {
        let all = self.0.iter();
        all.map(|(_, load)| load.progress().requests()).collect()
    }

    /// Ends them: what the clients saw.
    pub(super) fn finish(mut self) -> Result<Vec<(&'static str, Log)>> {
        self.0.iter_mut().for_each(|(_, load)| load.stop());
        let loads = self.0.into_iter();
        loads
            .map(|(name, load)| Ok((name, load.finish()?)))
            .collect()
    }
}
