// SPDX-License-Identifier: Apache-2.0
//! What operators set by hand for single reals: drains, maintenance, weights. It overrides the
//! file, through reloads and restarts, until it is undone, dropped, or the same as the file.

use std::net::IpAddr;

use causeway_api::balancer::{Override, RealChange};
use serde_json::{Value, json};
use tracing::info;

use super::engine::{Engine, EngineError};
use super::health::down_reals;
use super::state_dir::{KeptState, SetByHand};
use crate::config::{BalancerConfig, RealConfig, VipConfig, WEIGHT_MAX};

impl Engine {
    /// Changes a real, for as long as it differs from the file.
    pub fn change_real(
        &mut self,
        vip: &str,
        real: &str,
        change: &RealChange,
        now_ns: u64,
    ) -> Result<(), EngineError> {
        let vip = self.find_vip(vip)?;
        let real = find_real(&self.config.vips[vip], real)?;
        self.change_reals(&[(vip, real)], change, now_ns)
    }

    /// Where a server is: the index of each VIP that has it, and that of its real there.
    pub(super) fn places_of(&self, server: &str) -> Result<Vec<(usize, usize)>, EngineError> {
        let address: Option<IpAddr> = server.parse().ok();
        let vips = self.config.vips.iter().enumerate();
        let places = vips.filter_map(|(at, vip)| {
            let mut reals = vip.reals.iter();
            Some((at, reals.position(|real| Some(real.address) == address)?))
        });
        let places: Vec<_> = places.collect();
        match places.is_empty() {
            true => Err(EngineError::NotFound(format!(
                "no vip has a real `{server}`"
            ))),
            false => Ok(places),
        }
    }

    /// The same for all these reals, or for none.
    pub(super) fn change_reals(
        &mut self,
        places: &[(usize, usize)],
        change: &RealChange,
        now_ns: u64,
    ) -> Result<(), EngineError> {
        if let Some(weight) = change.weight.filter(|weight| *weight > WEIGHT_MAX) {
            return Err(EngineError::Invalid(format!(
                "weight {weight} is out of range; use 0 (no new connections) to {WEIGHT_MAX}"
            )));
        }
        let changed = places.iter().map(|(vip, real)| {
            let vip = &self.config.vips[*vip];
            (vip.endpoint(), vip.reals[*real].address)
        });
        let changed: Vec<(String, IpAddr)> = changed.collect();
        if self.follows_book() {
            let states = changed.into_iter().map(|(vip, real)| {
                let mut sets = self.by_hand.iter();
                let set = sets.find(|set| set.vip == vip && set.real == real);
                let mut set = set.map_or_else(RealChange::default, |set| set.set.clone());
                merge(&mut set, change);
                ((vip.as_str().into(), real), set)
            });
            let states: Vec<_> = states.collect();
            return self.want_by_hand(states);
        }
        let mut config = self.config.clone();
        for (vip, real) in places {
            put(&mut config.vips[*vip].reals[*real], change);
        }
        self.replace(config)?;
        for (vip, real) in changed {
            let is_it = |set: &SetByHand| set.vip == vip && set.real == real;
            let at = match self.by_hand.iter().position(is_it) {
                Some(at) => at,
                None => {
                    self.by_hand.push(SetByHand {
                        vip,
                        real,
                        set: RealChange::default(),
                        since_ns: now_ns,
                    });
                    self.by_hand.len() - 1
                }
            };
            let set = &mut self.by_hand[at];
            set.since_ns = now_ns;
            merge(&mut set.set, change);
        }
        (_, self.by_hand) = over(&self.file, &self.by_hand);
        Ok(())
    }

    /// What is set by hand and differs from the file.
    pub fn overrides(&self) -> Vec<Override> {
        let rows = self.by_hand.iter().flat_map(|set| {
            let mut vips = self.file.vips.iter();
            let own = vips.find(|vip| vip.endpoint() == set.vip);
            let name = own.map_or(&set.vip, |own| &own.name);
            // A fleet's book has it, too, of a real that this file lacks and another has.
            let mut reals = own.into_iter().flat_map(|own| &own.reals);
            let file = reals.find(|real| real.address == set.real);
            let (weight, drain, maintenance) = file.map_or((1, false, false), |file| {
                (file.weight, file.drain, file.maintenance)
            });
            let row = |key: &str, value: Option<Value>, file: Value| {
                value.filter(|value| *value != file).map(|value| Override {
                    vip: name.clone(),
                    real: set.real.to_string(),
                    key: key.to_owned(),
                    value,
                    file,
                    since_ns: set.since_ns,
                })
            };
            [
                row("weight", set.set.weight.map(Value::from), json!(weight)),
                row("drain", set.set.drain.map(Value::from), json!(drain)),
                row(
                    "maintenance",
                    set.set.maintenance.map(Value::from),
                    json!(maintenance),
                ),
            ]
        });
        rows.flatten().collect()
    }

    /// Has the file's settings hold again: for one real, for the reals of one VIP, or for
    /// all. Gives what was dropped.
    pub fn drop_overrides(
        &mut self,
        vip: Option<&str>,
        real: Option<&str>,
    ) -> Result<Vec<Override>, EngineError> {
        let vip = vip.map(|vip| self.find_vip(vip)).transpose()?;
        let vip = vip.map(|index| &self.config.vips[index]);
        let real = match (vip, real) {
            (Some(vip), Some(real)) => Some(match self.set_of(vip, real) {
                Some(set) => set.real,
                None => vip.reals[find_real(vip, real)?].address,
            }),
            (None, Some(_)) => {
                return Err(EngineError::Invalid(
                    "a real is named without its vip".to_owned(),
                ));
            }
            (_, None) => None,
        };
        let vip = vip.map(|vip| vip.endpoint());
        let is_meant = |set: &SetByHand| {
            vip.as_ref().is_none_or(|vip| *vip == set.vip)
                && real.is_none_or(|real| real == set.real)
        };
        let (dropped, left): (Vec<_>, Vec<_>) = self.by_hand.iter().cloned().partition(is_meant);
        if self.follows_book() {
            let before = self.overrides();
            let of = |set: &SetByHand| ((set.vip.as_str().into(), set.real), RealChange::default());
            self.want_by_hand(dropped.iter().map(of))?;
            let after = self.overrides();
            let gone = |set: &Override| !after.contains(set);
            return Ok(before.into_iter().filter(gone).collect());
        }
        let mut config = self.config.clone();
        for set in &dropped {
            let file =
                indices_of(&self.file, set).map(|(vip, real)| &self.file.vips[vip].reals[real]);
            if let (Some(file), Some((vip, real))) = (file, indices_of(&config, set)) {
                let real = &mut config.vips[vip].reals[real];
                (real.weight, real.drain) = (file.weight, file.drain || file.gone);
                real.maintenance = file.maintenance;
            }
        }
        let before = self.overrides();
        self.replace(config)?;
        self.by_hand = left;
        let after = self.overrides();
        Ok(before
            .into_iter()
            .filter(|set| !after.contains(set))
            .collect())
    }

    /// What is set by hand for a real, which need not be in force.
    fn set_of(&self, vip: &VipConfig, real: &str) -> Option<&SetByHand> {
        let (vip, real): (_, IpAddr) = (vip.endpoint(), real.parse().ok()?);
        let mut sets = self.by_hand.iter();
        sets.find(|set| set.vip == vip && set.real == real)
    }

    /// What the next daemon is to know.
    pub fn kept(&self) -> KeptState {
        KeptState {
            by_hand: [self.by_hand.clone(), self.dropped_by_hand()].concat(),
            down: down_reals(&self.pools, &self.checks),
            found: self.kept_found(),
        }
    }
}

/// A file with what is set by hand, and what of that still differs from the file.
pub(super) fn over(
    file: &BalancerConfig,
    by_hand: &[SetByHand],
) -> (BalancerConfig, Vec<SetByHand>) {
    let mut config = file.clone();
    let mut left = Vec::new();
    for set in by_hand {
        let Some((vip, real)) = indices_of(file, set) else {
            // It may be found again.
            if set.set != RealChange::default() && discovers(file, &set.vip) {
                left.push(set.clone());
            }
            continue;
        };
        let said = &file.vips[vip].reals[real];
        let mut set = set.clone();
        set.set.weight = set.set.weight.filter(|weight| *weight != said.weight);
        set.set.drain = set.set.drain.filter(|drain| *drain != said.drain);
        let differs = |maintenance: &bool| *maintenance != said.maintenance;
        set.set.maintenance = set.set.maintenance.filter(differs);
        if set.set != RealChange::default() {
            put(&mut config.vips[vip].reals[real], &set.set);
            left.push(set);
        }
    }
    for vip in &mut config.vips {
        if vip.reals.iter().any(|real| real.gone && !real.drain) {
            vip.reals
                .iter_mut()
                .for_each(|real| real.drain |= real.gone);
        }
    }
    (config, left)
}

/// Whether a VIP, by its address, port and protocol, has reals that the file does not name.
fn discovers(file: &BalancerConfig, vip: &str) -> bool {
    let mut vips = file.vips.iter();
    vips.any(|of| of.discover.is_some() && of.endpoint() == vip)
}

/// Logs what was set by hand for reals that are no longer in the file, where it is not `left`.
pub(super) fn tell_gone(file: &BalancerConfig, by_hand: &[SetByHand], left: &[SetByHand]) {
    let is_left = |set: &SetByHand| {
        let mut left = left.iter();
        left.any(|of| of.vip == set.vip && of.real == set.real)
    };
    let gone = |set: &&SetByHand| indices_of(file, set).is_none() && !is_left(set);
    for set in by_hand.iter().filter(gone) {
        info!(
            "{} {} is gone: what was set by hand is dropped",
            set.vip, set.real
        );
    }
}

/// Adds what a change sets to what is set.
fn merge(set: &mut RealChange, change: &RealChange) {
    set.weight = change.weight.or(set.weight);
    set.drain = change.drain.or(set.drain);
    set.maintenance = change.maintenance.or(set.maintenance);
}

pub(super) fn put(real: &mut RealConfig, change: &RealChange) {
    real.weight = change.weight.unwrap_or(real.weight);
    real.drain = change.drain.unwrap_or(real.drain) || real.gone;
    real.maintenance = change.maintenance.unwrap_or(real.maintenance);
}

/// Indices of the VIP and of the real that were meant.
fn indices_of(config: &BalancerConfig, set: &SetByHand) -> Option<(usize, usize)> {
    let mut vips = config.vips.iter();
    let vip = vips.position(|vip| vip.endpoint() == set.vip)?;
    let mut reals = config.vips[vip].reals.iter();
    Some((vip, reals.position(|real| real.address == set.real)?))
}

/// Index of the real with this address.
pub(super) fn find_real(vip: &VipConfig, text: &str) -> Result<usize, EngineError> {
    let address: Option<IpAddr> = text.parse().ok();
    let found = vip
        .reals
        .iter()
        .position(|real| Some(real.address) == address);
    found.ok_or_else(|| {
        let known: Vec<String> = vip
            .reals
            .iter()
            .map(|real| real.address.to_string())
            .collect();
        EngineError::NotFound(format!(
            "vip {} has no real `{text}`; it has {}",
            vip.name,
            known.join(", ")
        ))
    })
}
