// SPDX-License-Identifier: Apache-2.0
//! What happens to a fleet, and when.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::scenario::Context;

/// What happens at a time of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// One more server.
    Grow,
    /// The first server that still takes connections drains.
    Shrink,
    /// Half of the agents are killed and started again.
    RestartAgents,
    /// A balancer's machine is cut off and its daemons die.
    Crash(usize),
    /// A machine that had crashed or left comes back, without memory.
    Join(usize),
    /// The balancer's configuration reaches it no longer.
    Lag(usize),
    /// It reaches it again.
    CatchUp(usize),
    /// Its routes are withdrawn while it forwards on; then it leaves.
    Leave(usize),
    /// Its daemon is replaced by another build.
    Upgrade(usize),
    /// Its daemon is killed and started again; its data plane works on.
    Kill(usize),
    /// Cookies and connection ids get a new key.
    RotateKeys,
    /// All daemons read their files at once.
    ReloadAll,
    /// The store is killed.
    StopStore,
    /// It is back.
    StartStore,
    /// It is back, and has lost everything.
    StartEmptyStore,
}

/// When what happens, as parts of a run. Balancer 1 lags for an eighth of it, over the
/// growth and the rotation: those must wait for it. It is cut off from the store, too.
const EVENTS: &[(f64, Event)] = &[
    (0.06, Event::Grow),
    (0.12, Event::RestartAgents),
    (0.16, Event::Crash(0)),
    (0.19, Event::StopStore),
    (0.24, Event::StartStore),
    (0.26, Event::Join(0)),
    (0.32, Event::Lag(1)),
    (0.34, Event::Grow),
    (0.38, Event::RotateKeys),
    (0.45, Event::CatchUp(1)),
    (0.50, Event::Leave(2)),
    (0.58, Event::Join(2)),
    (0.63, Event::Upgrade(3)),
    (0.68, Event::Shrink),
    (0.69, Event::StopStore),
    (0.71, Event::StartEmptyStore),
    (0.72, Event::ReloadAll),
    (0.76, Event::Kill(1)),
    (0.82, Event::RestartAgents),
    (0.86, Event::Crash(3)),
    (0.94, Event::Join(3)),
];

/// The parameters, checked.
pub(super) struct FleetPlan {
    pub lasts: Duration,
    pub servers: usize,
    /// New connections per second of clients with timestamps, lowest and highest.
    pub rates: (f64, f64),
}

/// How many servers come during a run.
const GROWTH: usize = 2;

impl FleetPlan {
    pub(super) fn read(context: &Context) -> Result<Self> {
        let plan = Self {
            lasts: Duration::from_secs_f64(context.param("seconds")?),
            servers: context.param("servers")?,
            rates: (context.param("low")?, context.param("high")?),
        };
        ensure!(plan.lasts >= Duration::from_secs(10), "at least 10 seconds");
        ensure!(
            plan.servers > 1 && plan.rates.0 > 0.0,
            "at least two servers, and rates above 0"
        );
        Ok(plan)
    }

    /// Servers at its end.
    pub(super) fn servers_at_most(&self) -> usize {
        self.servers + GROWTH
    }

    /// What happens, in order, and when.
    pub(super) fn events(&self) -> impl Iterator<Item = (Duration, Event)> {
        EVENTS
            .iter()
            .map(|&(at, event)| (self.lasts.mul_f64(at), event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_back_was_away_and_servers_suffice() {
        let mut away = [false; 4];
        let mut late = [false; 4];
        let mut before = 0.0;
        let mut runs = true;
        for &(at, event) in EVENTS {
            assert!(before < at && at < 1.0);
            before = at;
            match event {
                Event::Crash(i) | Event::Leave(i) => {
                    assert!(!std::mem::replace(&mut away[i], true));
                }
                Event::Join(i) => assert!(std::mem::replace(&mut away[i], false)),
                Event::Lag(i) => assert!(!std::mem::replace(&mut late[i], true)),
                Event::CatchUp(i) => assert!(std::mem::replace(&mut late[i], false)),
                Event::StopStore => assert!(std::mem::replace(&mut runs, false)),
                Event::StartStore | Event::StartEmptyStore => {
                    assert!(!std::mem::replace(&mut runs, true));
                }
                Event::Upgrade(i) | Event::Kill(i) => assert!(!away[i]),
                _ => (),
            }
            assert!(away.iter().filter(|away| **away).count() < 2);
        }
        assert_eq!((away, late), ([false; 4], [false; 4]));
        let grown = EVENTS.iter().filter(|(_, event)| *event == Event::Grow);
        assert_eq!(grown.count(), GROWTH);
    }
}
