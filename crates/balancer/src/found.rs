// SPDX-License-Identifier: Apache-2.0
//! Reals that the file does not name: the answers about them, and which of these holds.
//!
//! A real that is no longer in the answers drains, and is removed when its time is over. An
//! answer that removes too much at once is held until an operator accepts it, or another comes.
//! The last answers are kept for the next daemon, which could not distinguish an empty pool from
//! one that it has not asked for yet.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use causeway_api::Moment;
use causeway_api::balancer::DiscoveryView;
use tracing::{info, warn};

use crate::config::{
    self, BalancerConfig, Discover, RealConfig, RealsOrigin, SharedVip, VipConfig,
};
use crate::state_dir::KeptReal;

/// A real that was discovered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundReal {
    /// As the answer had it.
    pub(crate) real: RealConfig,
    /// When it was no longer in the answers. It drains by the monotonic clock, as the other may be
    /// set; the next daemon, maybe after a boot, knows the other alone.
    pub(crate) gone: Option<Moment>,
}

/// The reals of one VIP.
#[derive(Debug, Clone, Default)]
pub(crate) struct FoundReals {
    reals: Vec<FoundReal>,
    held: Option<Vec<RealConfig>>,
    error: Option<String>,
    last_ns: Option<u64>,
}

impl FoundReals {
    /// What a former daemon knew.
    pub(crate) fn kept(reals: Vec<FoundReal>) -> Self {
        Self {
            reals,
            ..Self::default()
        }
    }

    /// All of them.
    pub(crate) fn reals(&self) -> &[FoundReal] {
        &self.reals
    }

    /// As the configuration is to have them, beside `named`, which the file has.
    pub(crate) fn configs(&self, named: &[RealConfig]) -> Vec<RealConfig> {
        let is_named = |address: IpAddr| named.iter().any(|real| real.address == address);
        let found = self
            .reals
            .iter()
            .filter(|found| !is_named(found.real.address));
        found
            .map(|found| RealConfig {
                gone: found.gone.is_some(),
                ..found.real.clone()
            })
            .collect()
    }

    /// Reals that an answer that is held would take away.
    pub(crate) fn held(&self) -> Option<usize> {
        let held = self.held.as_ref()?;
        Some(self.taking().filter(|found| !takes(held, found)).count())
    }

    /// Why the last answer was none, or is not in force.
    pub(crate) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// When an answer was taken or held last, nanoseconds since 1970.
    pub(crate) fn last_ns(&self) -> Option<u64> {
        self.last_ns
    }

    fn present(&self) -> impl Iterator<Item = &FoundReal> {
        self.reals.iter().filter(|found| found.gone.is_none())
    }

    /// Those that take connections.
    fn taking(&self) -> impl Iterator<Item = &FoundReal> {
        self.present()
            .filter(|found| found.real.configured_weight() > 0.0)
    }

    /// Takes an answer at `now`, for a VIP that has `named` reals in the file; whether reals
    /// have changed by it. A failure changes none.
    pub(crate) fn handle_answer(
        &mut self,
        now: Moment,
        answer: Result<Vec<RealConfig>, String>,
        rules: &Discover,
        named: usize,
    ) -> bool {
        let most = rules.max_reals;
        let answer = answer.and_then(|reals| match reals.len() <= most {
            true => Ok(reals),
            false => Err(format!(
                "the answer has {} reals, more than max_reals = {most}",
                reals.len()
            )),
        });
        let reals = match answer {
            Ok(reals) => reals,
            Err(error) => {
                self.error = Some(error);
                return false;
            }
        };
        (self.error, self.last_ns) = (None, Some(now.realtime_ns));
        // A real without a weight is as good as none.
        let taking = self.taking().count();
        let removed = self.taking().filter(|found| !takes(&reals, found)).count();
        if removed as f64 > rules.max_removed * (taking + named) as f64 {
            self.held = Some(reals);
            return false;
        }
        self.take(now, reals)
    }

    /// Takes the answer that is held; `None` if none is.
    pub(crate) fn accept(&mut self, now: Moment) -> Option<bool> {
        let held = self.held.take()?;
        Some(self.take(now, held))
    }

    /// Notes why the last answer, a good one, is not in force.
    pub(crate) fn refuse(&mut self, error: String) {
        self.error = Some(error);
    }

    fn take(&mut self, now: Moment, reals: Vec<RealConfig>) -> bool {
        let before = self.reals.clone();
        self.held = None;
        for found in &mut self.reals {
            if !has(&reals, found) {
                found.gone.get_or_insert(now);
            }
        }
        for real in reals {
            let known = |found: &&mut FoundReal| found.real.address == real.address;
            match self.reals.iter_mut().find(known) {
                Some(found) => {
                    *found = FoundReal { real, gone: None };
                }
                None => self.reals.push(FoundReal { real, gone: None }),
            }
        }
        self.reals != before
    }

    /// Lets reals go whose time is over at `now_ns`, CLOCK_MONOTONIC; whether there were some.
    pub(crate) fn handle_timeout(&mut self, now_ns: u64, rules: &Discover) -> bool {
        let before = self.reals.len();
        let drain_ns = u64::try_from(rules.drain.as_nanos()).unwrap_or(u64::MAX);
        self.reals.retain(|found| {
            let over = |gone: Moment| now_ns.saturating_sub(gone.monotonic_ns) >= drain_ns;
            !found.gone.is_some_and(over)
        });
        self.reals.len() != before
    }
}

/// What was found of all VIPs, by their address, port and protocol.
#[derive(Debug, Clone, Default)]
pub(crate) struct FoundByVip(HashMap<String, FoundReals>);

/// A file whose VIP number `at` has other reals, as they were found.
#[derive(Debug)]
pub(crate) struct FoundChange {
    pub(crate) file: BalancerConfig,
    pub(crate) at: usize,
    before: FoundReals,
}

impl FoundByVip {
    /// What a former daemon knew, of the VIPs that the file still has asked for.
    pub(crate) fn resume(file: &BalancerConfig, kept: Vec<KeptReal>, now: Moment) -> Self {
        let mut by_vip: HashMap<String, Vec<FoundReal>> = HashMap::new();
        for kept in kept {
            let mut vips = file.vips.iter();
            let is_it = |vip: &&SharedVip| vip.endpoint() == kept.vip;
            let Some(vip) = vips.find(is_it) else {
                continue;
            };
            let Some(rules) = &vip.discover else {
                continue;
            };
            let drain_ns = u64::try_from(rules.drain.as_nanos()).unwrap_or(u64::MAX);
            // The clock may have been set since: a drain began neither in time to come nor longer ago
            // than it lasts.
            let gone =
                |since_ns: u64| now.before(now.realtime_ns.saturating_sub(since_ns).min(drain_ns));
            match config::reals_from_json(vip, vec![kept.real]) {
                Ok(reals) => by_vip
                    .entry(kept.vip)
                    .or_default()
                    .extend(reals.into_iter().map(|real| FoundReal {
                        real,
                        gone: kept.gone_ns.map(gone),
                    })),
                Err(error) => warn!(
                    "{}: a real that was found before is left out: {error}",
                    vip.name
                ),
            }
        }
        let found = by_vip.into_iter();
        let found = found.map(|(vip, reals)| (vip, FoundReals::kept(reals)));
        Self(found.collect())
    }

    /// What is known of the VIPs of a new file: reals that the file before had of a VIP which asks for
    /// them from now on stay until the first answer.
    pub(crate) fn with_former(&self, file: &BalancerConfig, former: &BalancerConfig) -> Self {
        let mut all = self.clone();
        let asks = |vip: &&SharedVip| vip.discover.is_some() && file.fleet.is_none();
        for vip in file.vips.iter().filter(asks) {
            let endpoint = vip.endpoint();
            let before = former.vips.iter().find(|of| of.endpoint() == endpoint);
            let Some(before) = before.filter(|of| of.discover.is_none()) else {
                continue;
            };
            let reals = before.reals.iter().map(|real| FoundReal {
                real: RealConfig {
                    found: true,
                    ..real.clone()
                },
                gone: None,
            });
            all.0
                .entry(endpoint)
                .or_insert_with(|| FoundReals::kept(reals.collect()));
        }
        all
    }

    /// Puts it into a file's configuration.
    pub(crate) fn over(&self, mut file: BalancerConfig) -> BalancerConfig {
        for vip in file.vips.iter_mut().filter(|vip| vip.discover.is_some()) {
            let found = self.of(&vip.endpoint());
            put(vip, found);
        }
        file
    }

    /// What was found of a VIP.
    pub(crate) fn of(&self, vip: &str) -> Option<&FoundReals> {
        self.0.get(vip)
    }

    /// The VIPs of which something is known.
    pub(crate) fn vips(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// Forgets the VIPs that the file does not have asked for.
    pub(crate) fn keep_asked_for(&mut self, file: &BalancerConfig) {
        let vips = file.vips.iter().filter(|vip| vip.discover.is_some());
        let asked: HashSet<String> = vips.map(|vip| vip.endpoint()).collect();
        self.0.retain(|vip, _| asked.contains(vip));
    }

    /// Changes what was found of a VIP of the file. If its reals are others by that, they are to be
    /// put in force, or taken back.
    pub(crate) fn change(
        &mut self,
        file: &BalancerConfig,
        vip: &str,
        change: impl FnOnce(&mut FoundReals, &Discover, usize) -> bool,
    ) -> Option<FoundChange> {
        let at = file.vips.iter().position(|of| of.endpoint() == vip)?;
        let of_file = &file.vips[at];
        let rules = of_file.discover.as_ref()?;
        let named = of_file.reals.iter().filter(|real| !real.found).count();
        let found = self.0.entry(vip.to_owned()).or_default();
        let before = found.clone();
        if !change(found, rules, named) {
            return None;
        }
        let mut file = file.clone();
        put(&mut file.vips[at], Some(found));
        Some(FoundChange { file, at, before })
    }

    /// Takes a change back that could not be put in force.
    pub(crate) fn take_back(&mut self, change: FoundChange) {
        let vip = change.file.vips[change.at].endpoint();
        self.0.insert(vip, change.before);
    }

    /// Tells what an answer has come to, of a VIP of this name whose reals were found to be `before`,
    /// and notes why it could not be put in force.
    pub(crate) fn tell(
        &mut self,
        name: &str,
        vip: &str,
        before: &FoundReals,
        refused: Option<String>,
    ) {
        let Some(found) = self.0.get_mut(vip) else {
            return;
        };
        if let Some(error) = refused {
            found.refuse(format!("the answer cannot be put in force: {error}"));
        }
        if found.error() != before.error() {
            match found.error() {
                Some(error) => warn!("{name}: its reals stay as they are: {error}"),
                None => info!("{name}: there are answers about its reals again"),
            }
        }
        if let Some(removed) = found.held().filter(|_| before.held() != found.held()) {
            warn!(
                "{name}: an answer that takes away {removed} reals is held: `causeway vip accept` takes it"
            );
        }
    }

    /// What is to be kept for the next daemon.
    pub(crate) fn kept(&self) -> Vec<KeptReal> {
        let found = self.0.iter();
        let kept = found.flat_map(|(vip, found)| {
            found.reals().iter().map(move |found| KeptReal {
                vip: vip.clone(),
                real: config::real_to_json(&found.real),
                gone_ns: found.gone.map(|gone| gone.realtime_ns),
            })
        });
        let mut kept: Vec<KeptReal> = kept.collect();
        kept.sort_by(|a, b| a.vip.cmp(&b.vip));
        kept
    }

    /// How the reals of a VIP stand, if they are discovered.
    pub(crate) fn view(&self, vip: &VipConfig) -> Option<DiscoveryView> {
        let discover = vip.discover.as_ref()?;
        let found = self.of(&vip.endpoint()).cloned().unwrap_or_default();
        let gone = found.reals().iter().filter(|found| found.gone.is_some());
        let draining = gone.count();
        Some(DiscoveryView {
            origin: origin(discover),
            found: found.reals().len() - draining,
            draining,
            last_answer_ns: found.last_ns(),
            error: found.error().map(str::to_owned),
            held: found.held(),
        })
    }
}

impl FoundChange {
    /// What is to be in force: what is, with the reals that `over` has found for the VIP. What the
    /// API has added to the file's, or removed of them, stays so.
    pub(crate) fn within(
        &self,
        mut config: BalancerConfig,
        over: &BalancerConfig,
    ) -> BalancerConfig {
        let endpoint = self.file.vips[self.at].endpoint();
        let mut vips = config.vips.iter_mut();
        if let Some(in_force) = vips.find(|of| of.endpoint() == endpoint) {
            in_force.reals.retain(|real| !real.found);
            let known: Vec<_> = in_force.reals.iter().map(|real| real.address).collect();
            let found = over.vips[self.at].reals.iter();
            let found = found.filter(|real| real.found && !known.contains(&real.address));
            in_force.reals.extend(found.cloned());
        }
        config
    }
}

/// Gives a VIP the reals that were found in the place of those it had.
fn put(vip: &mut VipConfig, found: Option<&FoundReals>) {
    vip.reals.retain(|real| !real.found);
    let found = found.map(|found| found.configs(&vip.reals));
    vip.reals.extend(found.unwrap_or_default());
}

/// Where a VIP's reals are asked for.
pub(crate) fn origin(discover: &Discover) -> String {
    match &discover.origin {
        RealsOrigin::Dns { name, record, .. } => format!("dns {record} {name}"),
        RealsOrigin::File(path) => format!("file {}", path.display()),
        RealsOrigin::Http { url, .. } => url.clone(),
    }
}

fn has(reals: &[RealConfig], found: &FoundReal) -> bool {
    reals.iter().any(|real| real.address == found.real.address)
}

/// Whether it has the real, and lets it take connections.
fn takes(reals: &[RealConfig], found: &FoundReal) -> bool {
    let is_it = |real: &&RealConfig| real.address == found.real.address;
    reals
        .iter()
        .find(is_it)
        .is_some_and(|real| real.configured_weight() > 0.0)
}
