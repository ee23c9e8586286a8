// SPDX-License-Identifier: Apache-2.0
//! Cookies in the daemon: which VIPs have them, with which keys, and which real has
//! which id. The data plane's maps are the truth about ids; this reads them, has
//! `core` decide, and writes what is new.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use causeway_api::balancer::{CookieResultView, CookieView};
use causeway_core::cookie::ids::{self, Held, Wanted};
use causeway_core::cookie::quic::CidRoute;
use causeway_core::cookie::{CookieLayout, Keys};
use causeway_dataplane::{CookieTotals, RealId, VipId};

use super::engine::Engine;
use super::kernel::KernelPlane;
use crate::config::{BalancerConfig, VipConfig, cookie, quic};

/// The ids of one VIP in the data plane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ids {
    /// Seconds since 1970 when they were read.
    pub now_s: u64,
    /// Each id with the real that has it, if it has not been taken away.
    pub held: Vec<(Held, Option<RealId>)>,
}

/// What a data plane can do with cookies.
pub trait CookiePlane {
    /// Sets the keys; without any, no cookie is valid.
    fn set_cookie_keys(&mut self, keys: Option<&Keys>) -> anyhow::Result<()>;
    /// Sets how a VIP's cookies are made; `None`: it has none.
    fn set_cookie_format(
        &mut self,
        vip: VipId,
        format: Option<&CookieLayout>,
    ) -> anyhow::Result<()>;
    /// Has a VIP's packets routed by their QUIC connection ids.
    fn set_quic_ids(&mut self, vip: VipId, routes: &[CidRoute]) -> anyhow::Result<()>;
    /// The ids that reals of a VIP have or had.
    fn cookie_ids(&self, vip: VipId) -> anyhow::Result<Ids>;
    /// Gives a real an id; it keeps those that it has.
    fn set_cookie_id(&mut self, vip: VipId, id: u16, real: RealId) -> anyhow::Result<()>;
    /// What became of cookies, by VIP.
    fn cookie_totals(&self) -> anyhow::Result<Vec<(VipId, CookieTotals)>>;
}

impl CookiePlane for KernelPlane {
    fn set_cookie_keys(&mut self, keys: Option<&Keys>) -> anyhow::Result<()> {
        Ok(self.balancer.set_cookie_keys(keys)?)
    }

    fn set_cookie_format(
        &mut self,
        vip: VipId,
        format: Option<&CookieLayout>,
    ) -> anyhow::Result<()> {
        Ok(self.balancer.set_cookies(vip, format)?)
    }

    fn set_quic_ids(&mut self, vip: VipId, routes: &[CidRoute]) -> anyhow::Result<()> {
        Ok(self.balancer.set_quic_ids(vip, routes)?)
    }

    fn cookie_ids(&self, vip: VipId) -> anyhow::Result<Ids> {
        let ids = self.balancer.cookie_ids(vip)?.into_iter();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Ids {
            now_s: now.unwrap_or(Duration::ZERO).as_secs(),
            held: ids
                .map(|id| {
                    let held = Held {
                        id: id.id,
                        address: id.address,
                        freed_s: (id.freed_s != 0).then_some(id.freed_s.into()),
                    };
                    (held, id.real)
                })
                .collect(),
        })
    }

    fn set_cookie_id(&mut self, vip: VipId, id: u16, real: RealId) -> anyhow::Result<()> {
        Ok(self.balancer.set_cookie_id(vip, id, real)?)
    }

    fn cookie_totals(&self) -> anyhow::Result<Vec<(VipId, CookieTotals)>> {
        Ok(self.balancer.cookie_counts()?)
    }
}

impl Engine {
    /// Gives the data plane the keys of `config`.
    pub(super) fn stage_cookie_keys(&mut self, config: &BalancerConfig) -> anyhow::Result<()> {
        let keys = config.cookies.as_ref().map(|cookies| &cookies.keys);
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
        let ids = if vip.quic.is_empty() {
            self.plane.set_cookie_format(vip_id, vip.cookie.as_ref())?;
            match &vip.cookie {
                Some(format) => format.ids(),
                None => return Ok(()),
            }
        } else {
            self.plane.set_quic_ids(vip_id, &vip.quic)?;
            quic::ids(&vip.quic)
        };
        if vip.is_first_tier() {
            return self.stage_numbers(vip, vip_id, reals);
        }
        let known = self.plane.cookie_ids(vip_id)?;
        let held: Vec<Held> = known.held.iter().map(|(held, _)| *held).collect();
        let wanted: Vec<Wanted> = vip
            .reals
            .iter()
            .map(|real| Wanted {
                address: real.address,
                id: real.id,
            })
            .collect();
        let rest = config.cookies.as_ref().map(|cookies| cookies.quarantine);
        let rest_s = rest.unwrap_or(cookie::QUARANTINE).as_secs();
        let ids = ids::assign(&wanted, &held, ids, known.now_s, rest_s)
            .with_context(|| format!("vip {}", vip.name))?;
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
        for (index, (real, real_id)) in vip.reals.iter().zip(reals).enumerate() {
            let number = real.id.with_context(|| {
                format!(
                    "vip {}: real {} is a second-tier balancer and needs its number, `id`",
                    vip.name, real.address
                )
            })?;
            let mut before = vip.reals[..index].iter();
            if let Some(other) = before.find(|other| other.id == real.id) {
                bail!(
                    "vip {}: reals {} and {} are both second-tier balancer {number}; give one of them another id",
                    vip.name,
                    other.address,
                    real.address
                );
            }
            self.plane.set_cookie_id(id, number, *real_id)?;
        }
        Ok(())
    }

    /// Numbers that a refused change has given away are their owners' again.
    pub(super) fn restore_numbers(&mut self) -> anyhow::Result<()> {
        for pool in self.pools.iter().filter(|pool| pool.vip().is_first_tier()) {
            for (real, member) in pool.members() {
                if let Some(number) = real.id {
                    self.plane.set_cookie_id(pool.id(), number, member.id)?;
                }
            }
        }
        Ok(())
    }
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

/// The ids that a real has, in their order.
pub(crate) fn ids_of(ids: &Ids, real: RealId) -> Vec<u16> {
    let held = ids.held.iter().filter(|(_, owner)| *owner == Some(real));
    held.map(|(held, _)| held.id).collect()
}
