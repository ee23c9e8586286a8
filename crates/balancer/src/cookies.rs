// SPDX-License-Identifier: Apache-2.0
//! Cookies in the daemon: which VIPs have them, with which keys, and which real has
//! which id. The data plane's maps are the truth about ids; this reads them, has
//! `core` decide, and writes what is new.

use anyhow::{Context as _, bail};
use causeway_api::balancer::{CookieResultView, CookieView};
use causeway_core::cookie::CookieLayout;
use causeway_core::cookie::ids::{self, KnownId, Wanted};
use causeway_dataplane::{CookieTotals, RealId, VipId};

use super::engine::Engine;
use super::plane::Ids;
use super::pool::Pool;
use crate::config::{BalancerConfig, SharedVip, VipConfig, cookie, quic};

impl Engine {
    /// Gives the data plane the keys of `config`.
    pub(super) fn stage_cookie_keys(&mut self, config: &BalancerConfig) -> anyhow::Result<()> {
        let keys = config.cookies.as_ref().map(|cookies| &cookies.keys.cookies);
        self.plane.set_cookie_keys(keys)
    }

    /// Gives a VIP's reals, which have these numbers in the data plane, their ids. To
    /// be called before a ring sends a SYN to one of them.
    pub(super) fn stage_cookies(
        &mut self,
        config: &BalancerConfig,
        vip: &VipConfig,
        vip_id: VipId,
        reals: &[RealId],
    ) -> anyhow::Result<()> {
        match (&vip.cookie, vip.quic.is_empty()) {
            (Some(format), true) => self.plane.set_cookie_format(vip_id, Some(format))?,
            // Those that it has are taken away once nothing can refuse the change any more:
            // its ids would be forgotten.
            (None, true) => return Ok(()),
            (_, false) => self.plane.set_quic_ids(vip_id, &vip.quic)?,
        }
        if vip.is_first_tier() {
            return self.stage_numbers(vip, vip_id, reals);
        }
        let ids = self.choose_ids(config, vip, Some(vip_id))?;
        for (id, real) in ids.into_iter().zip(reals) {
            self.plane.set_cookie_id(vip_id, id, *real)?;
        }
        Ok(())
    }

    /// The numbers of second-tier balancers. They do not rest: a balancer that takes
    /// another's place takes its number and its connections at once.
    fn stage_numbers(
        &mut self,
        vip: &VipConfig,
        id: VipId,
        reals: &[RealId],
    ) -> anyhow::Result<()> {
        for (number, real) in second_tier(vip)?.into_iter().zip(reals) {
            self.plane.set_cookie_id(id, number, *real)?;
        }
        Ok(())
    }

    /// Refuses what no id can be given to, before anything is touched.
    pub(super) fn check_ids(&self, config: &BalancerConfig) -> anyhow::Result<()> {
        let unchanged = self.unchanged(config);
        let has_ids = |vip: &&SharedVip| vip.cookie.is_some() || !vip.quic.is_empty();
        let with_ids = config.vips.iter().filter(has_ids);
        let mut with_ids = with_ids.filter(|vip| !unchanged.contains(&vip.key()));
        with_ids.try_for_each(|vip| match vip.is_first_tier() {
            true => second_tier(vip).map(drop),
            false => {
                let known = self.plane.vip_id(&vip.key());
                self.choose_ids(config, vip, known).map(drop)
            }
        })
    }

    /// An id for each real of a VIP, which has this number if it is there already.
    fn choose_ids(
        &self,
        config: &BalancerConfig,
        vip: &VipConfig,
        vip_id: Option<VipId>,
    ) -> anyhow::Result<Vec<u16>> {
        let ids = match &vip.cookie {
            Some(format) if vip.quic.is_empty() => format.ids(),
            _ => quic::ids(&vip.quic),
        };
        let known = vip_id.map(|id| self.plane.cookie_ids(id)).transpose()?;
        let known = known.unwrap_or_default();
        let held: Vec<KnownId> = known.held.iter().map(|(held, _)| *held).collect();
        let wanted: Vec<Wanted> = vip
            .reals
            .iter()
            .map(|real| Wanted {
                address: real.address,
                id: real.id,
            })
            .collect();
        let rest = config.cookies.as_ref().map(|cookies| cookies.quarantine);
        // In a fleet the book has ids rest, and they are in no configuration after that.
        let rest_s = match self.follows_book() {
            true => 0,
            false => rest.unwrap_or(cookie::QUARANTINE).as_secs(),
        };
        ids::assign(&wanted, &held, ids, known.now_s, rest_s)
            .with_context(|| format!("vip {}", vip.name))
    }

    /// Takes cookies away from VIPs that are to have none any more.
    pub(super) fn end_cookies(&mut self) -> anyhow::Result<()> {
        let without = |pool: &&Pool| pool.vip().cookie.is_none() && pool.vip().quic.is_empty();
        let mut without = self.pools.iter().filter(without);
        without.try_for_each(|pool| self.plane.set_cookie_format(pool.id(), None))
    }

    /// Gives VIPs the cookies or connection ids in force, and their reals the ids that they
    /// had before a change that was refused.
    pub(super) fn restore_cookies(&mut self, before: &[(VipId, Ids)]) -> anyhow::Result<()> {
        for (id, ids) in before {
            let Some(pool) = self.pools.iter().find(|pool| pool.id() == *id) else {
                continue;
            };
            let vip = pool.vip();
            match vip.quic.is_empty() {
                true => self.plane.set_cookie_format(*id, vip.cookie.as_ref())?,
                false => self.plane.set_quic_ids(*id, &vip.quic)?,
            }
            for (held, real) in &ids.held {
                if let Some(real) = real {
                    self.plane.set_cookie_id(*id, held.id, *real)?;
                }
            }
        }
        Ok(())
    }
}

/// The numbers of a VIP's reals, which are second-tier balancers.
fn second_tier(vip: &VipConfig) -> anyhow::Result<Vec<u16>> {
    let mut numbers = Vec::with_capacity(vip.reals.len());
    for real in &vip.reals {
        let number = real.id.with_context(|| {
            format!(
                "vip {}: real {} is a second-tier balancer and needs its number, `id`",
                vip.name, real.address
            )
        })?;
        if let Some(other) = numbers.iter().position(|other| *other == number) {
            bail!(
                "vip {}: reals {} and {} are both second-tier balancer {number}; give one of them another id",
                vip.name,
                vip.reals[other].address,
                real.address
            );
        }
        numbers.push(number);
    }
    Ok(numbers)
}

/// What `causeway stats` and the API show of a VIP's cookies.
pub(crate) fn view(vip: &VipConfig, totals: Option<&CookieTotals>) -> CookieView {
    let format = vip.cookie.as_ref();
    CookieView {
        mode: match vip.quic.is_empty() {
            true => cookie::word(format).to_owned(),
            false => "quic".to_owned(),
        },
        bits: format.map_or(0, CookieLayout::bits),
        id_bits: format.map_or(0, CookieLayout::id_bits),
        results: totals
            .into_iter()
            .flatten()
            .map(|(result, packets)| CookieResultView {
                result: result.as_str().to_owned(),
                action: result.action().as_str().to_owned(),
                packets: *packets,
            })
            .collect(),
    }
}
