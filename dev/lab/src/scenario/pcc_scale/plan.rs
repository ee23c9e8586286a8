// SPDX-License-Identifier: Apache-2.0
//! What a run is made of: its load, and what happens when.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::ways::{WAYS, Way};
use crate::scenario::Context;
use crate::scenario::connections::ConnectionLoad;
use crate::topology;

/// When what happens, as parts of a run; the paper's pool follows its load.
const GROWTH: (f64, f64) = (0.08, 0.32);
const SWAP: f64 = 0.40;
const DRAIN: (f64, f64) = (0.48, 0.72);
const RESTARTS: [f64; 2] = [0.36, 0.78];
/// Once: a cookie distinguishes two keys, so that a connection that is silent over two rotations is
/// lost.
const ROTATION: f64 = 0.56;

/// Clients of QUIC open this part of the connections: each costs two handshakes with
/// cryptography and a socket of its own, on the cores that the balancer needs.
const QUIC_SHARE: f64 = 1.0 / 3.0;

/// The parameters, checked.
#[derive(Debug, Clone)]
pub(super) struct PccPlan {
    pub lasts: Duration,
    pub from: usize,
    pub to: usize,
    pub drain: usize,
    /// Whether a stateful balancer may learn from agents before it takes over.
    pub adopt: bool,
    load: ConnectionLoad,
}

/// What happens during a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// One more server.
    Grow,
    /// The first server that does not drain yet does.
    Drain,
    /// Another balancer, without any memory, takes over.
    Swap,
    /// Half of the agents are killed and started again.
    RestartAgents,
    /// Cookies and connection ids get a new key.
    RotateKeys,
}

impl PccPlan {
    pub(super) fn read(context: &Context) -> Result<Self> {
        let seconds = |name| Ok::<_, anyhow::Error>(Duration::from_secs_f64(context.param(name)?));
        let lasts = seconds("seconds")?;
        let plan = Self {
            lasts,
            from: context.param("from")?,
            to: context.param("to")?,
            drain: context.param("drain")?,
            adopt: context.param("adopt")?,
            load: ConnectionLoad {
                targets: Vec::new(),
                quic: false,
                lasts,
                rates: (context.param("low")?, context.param("high")?),
                streams: context.param("streams")?,
                idlers: context.param("idlers")?,
                idle: (seconds("idle_min_s")?, seconds("idle_max_s")?),
                seed: context.seed,
            },
        };
        ensure!(
            0 < plan.from && plan.from <= plan.to && plan.drain < plan.to,
            "the pool must grow from `from` to `to`, and keep some when it drains"
        );
        ensure!(plan.lasts >= Duration::from_secs(5), "at least 5 seconds");
        ensure!(
            plan.load.idle.0 <= plan.load.idle.1 && plan.load.rates.0 > 0.0,
            "idle_min_s must not exceed idle_max_s, and rates must be above 0"
        );
        Ok(plan)
    }

    /// The load on the services of a way.
    pub(super) fn load(&self, way: &Way) -> ConnectionLoad {
        let (low, high) = self.load.rates;
        ConnectionLoad {
            targets: [topology::vip4(0).into(), topology::vip6(0).into()]
                .map(|address: IpAddr| (address, way.port()).into())
                .to_vec(),
            quic: way.is_quic(),
            rates: match way.is_quic() {
                true => (low * QUIC_SHARE, high * QUIC_SHARE),
                false => (low, high),
            },
            ..self.load.clone()
        }
    }

    /// How long a connection may be silent.
    pub(super) fn silence(&self) -> Duration {
        self.load.idle.1 + self.lasts
    }

    /// What happens, in order: when, as part of the run.
    pub(super) fn events(&self) -> Vec<(f64, Event)> {
        let spread = |(from, to): (f64, f64), count: usize, at: usize| {
            from + (to - from) * at as f64 / count.max(1) as f64
        };
        let grown = self.to - self.from;
        let mut events: Vec<(f64, Event)> = (0..grown)
            .map(|at| (spread(GROWTH, grown, at), Event::Grow))
            .chain((0..self.drain).map(|at| (spread(DRAIN, self.drain, at), Event::Drain)))
            .chain([(SWAP, Event::Swap)])
            .chain(RESTARTS.map(|at| (at, Event::RestartAgents)))
            .chain([(ROTATION, Event::RotateKeys)])
            .collect();
        events.sort_by(|a, b| a.0.total_cmp(&b.0));
        events
    }
}

/// The ways of these names, or all.
pub(super) fn ways(names: &str) -> Result<Vec<&'static Way>> {
    if names == "all" {
        return Ok(WAYS.iter().collect());
    }
    let find = |name: &str| {
        let known: Vec<&str> = WAYS.iter().map(|way| way.name).collect();
        let way = WAYS.iter().find(|way| way.name == name.trim());
        way.with_context(|| format!("there is no {name:?}; choose of {}", known.join(", ")))
    };
    names.split(',').map(find).collect()
}
