// SPDX-License-Identifier: Apache-2.0
//! What operators set by hand for single reals: drains, maintenance, weights. It overrides the
//! file, through reloads and restarts, until it is undone, dropped, or the same as the file.

use std::net::IpAddr;

use causeway_api::balancer::{Override, RealChange};
use serde_json::{Value, json};
use tracing::info;

use super::error::EngineError;
use super::state_dir::SetByHand;
use crate::config::{BalancerConfig, RealConfig, VipConfig};

/// All that is set by hand; at most once for a real.
#[derive(Debug, Clone, Default)]
pub(crate) struct ByHand(Vec<SetByHand>);

impl ByHand {
    /// Of these, as they were kept.
    pub(crate) fn new(sets: Vec<SetByHand>) -> Self {
        Self(sets)
    }

    /// Each of them.
    pub(crate) fn sets(&self) -> &[SetByHand] {
        &self.0
    }

    /// What is set for a real, which need not be in force.
    pub(crate) fn of(&self, vip: &str, real: IpAddr) -> Option<&SetByHand> {
        let mut sets = self.0.iter();
        sets.find(|set| set.vip == vip && set.real == real)
    }

    /// What would be set for a real after a change.
    pub(crate) fn with(&self, vip: &str, real: IpAddr, change: &RealChange) -> RealChange {
        let set = self.of(vip, real);
        let mut set = set.map_or_else(RealChange::default, |set| set.set.clone());
        merge(&mut set, change);
        set
    }

    /// Takes a change of a real.
    pub(crate) fn set(&mut self, vip: String, real: IpAddr, change: &RealChange, now_ns: u64) {
        let is_it = |set: &SetByHand| set.vip == vip && set.real == real;
        let at = match self.0.iter().position(is_it) {
            Some(at) => at,
            None => {
                self.0.push(SetByHand {
                    vip,
                    real,
                    set: RealChange::default(),
                    since_ns: now_ns,
                });
                self.0.len() - 1
            }
        };
        let set = &mut self.0[at];
        set.since_ns = now_ns;
        merge(&mut set.set, change);
    }

    /// A file with it, and what of it still differs from the file.
    pub(crate) fn over(&self, file: &BalancerConfig) -> (BalancerConfig, Self) {
        let mut config = file.clone();
        let mut left = Vec::new();
        for set in &self.0 {
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
        (config, Self(left))
    }

    /// Logs what was set for reals that are no longer in the file, where it is not `left`.
    pub(crate) fn tell_gone(&self, file: &BalancerConfig, left: &Self) {
        let is_left = |set: &SetByHand| left.of(&set.vip, set.real).is_some();
        let gone = |set: &&SetByHand| indices_of(file, set).is_none() && !is_left(set);
        for set in self.0.iter().filter(gone) {
            info!(
                "{} {} is gone: what was set by hand is dropped",
                set.vip, set.real
            );
        }
    }

    /// What of it differs from the file.
    pub(crate) fn overrides(&self, file: &BalancerConfig) -> Vec<Override> {
        let rows = self.0.iter().flat_map(|set| {
            let mut vips = file.vips.iter();
            let own = vips.find(|vip| vip.endpoint() == set.vip);
            let name = own.map_or(&set.vip, |own| &own.name);
            // A fleet's book has it, too, of a real that this file lacks and another has.
            let mut reals = own.into_iter().flat_map(|own| &own.reals);
            let real = reals.find(|real| real.address == set.real);
            let (weight, drain, maintenance) = real.map_or((1, false, false), |real| {
                (real.weight, real.drain, real.maintenance)
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

    /// What is meant, and what is not.
    pub(crate) fn part(&self, is_meant: impl Fn(&SetByHand) -> bool) -> (Self, Self) {
        let (meant, others) = self.0.iter().cloned().partition(is_meant);
        (Self(meant), Self(others))
    }

    /// Drops what is set for reals of a VIP that a request has added: those that it had not. The
    /// request is the newer word.
    pub(crate) fn forget_added(&mut self, vip: &VipConfig, had: impl Fn(IpAddr) -> bool) {
        let endpoint = vip.endpoint();
        let is_added = |set: &SetByHand| {
            let mut reals = vip.reals.iter();
            set.vip == endpoint && !had(set.real) && reals.any(|real| real.address == set.real)
        };
        self.0.retain(|set| !is_added(set));
    }

    /// Has the file's settings hold again in `config` for the reals that it is of.
    pub(crate) fn undo(&self, file: &BalancerConfig, config: &mut BalancerConfig) {
        for set in &self.0 {
            let in_file = indices_of(file, set).map(|(vip, real)| &file.vips[vip].reals[real]);
            if let (Some(in_file), Some((vip, real))) = (in_file, indices_of(config, set)) {
                let real = &mut config.vips[vip].reals[real];
                (real.weight, real.drain) = (in_file.weight, in_file.drain || in_file.gone);
                real.maintenance = in_file.maintenance;
            }
        }
    }
}

/// Whether a VIP, by its address, port and protocol, has reals that the file does not name.
fn discovers(file: &BalancerConfig, vip: &str) -> bool {
    let mut vips = file.vips.iter();
    vips.any(|of| of.discover.is_some() && of.endpoint() == vip)
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
