// SPDX-License-Identifier: Apache-2.0
//! The way to the reals, and its next hops as the last look found them: the data plane sends past
//! the kernel, and would go on sending to a router that is gone.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use causeway_api::Moment;
use causeway_api::balancer::NextHopView;
use causeway_netio::{Gateway, Gateways, Mac, NextHop};
use causeway_service::config::plural;
use tracing::{info, warn};

use super::plane::{DataPlane, Found, Resolve, Route};
use crate::config::{BalancerConfig, MacAddress};

/// How long the default route's neighbour may take to answer when it is new.
pub(crate) const GATEWAY_TIMEOUT: Duration = Duration::from_secs(3);

/// A way to the reals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// What was wanted.
    pub route: Route,
    /// What was found for it.
    pub next_hop: NextHop,
}

/// The way in force, one that the next change may want, and what looks have found.
#[derive(Debug, Default)]
pub struct NextHops {
    /// `None` before the first configuration.
    way: Option<Way>,
    offered: Option<Way>,
    views: Vec<NextHopView>,
    /// Reals on the link itself.
    on_link: HashSet<IpAddr>,
}

impl NextHops {
    /// The way in force; `None` before the first configuration.
    pub(crate) fn way(&self) -> Option<&Way> {
        self.way.as_ref()
    }

    /// Whether the way for `route` is in force.
    pub(crate) fn has_way(&self, route: &Route) -> bool {
        self.way.as_ref().is_some_and(|way| way.route == *route)
    }

    /// Takes a way that was found while the engine was not locked.
    pub(crate) fn offer(&mut self, way: Way) {
        self.offered = Some(way);
    }

    /// The way for `config`, if it is another than that in force: the one that was offered, or what a
    /// look finds. Who resumes goes on with gateways that are silent: packets go to their addresses,
    /// `former`, already.
    pub(crate) fn find(
        &mut self,
        config: &BalancerConfig,
        resolver: &dyn Resolve,
        former: Option<[Mac; 2]>,
    ) -> anyhow::Result<Option<Way>> {
        let route = Route::of(config);
        if self.has_way(&route) {
            return Ok(None);
        }
        if let Some(way) = self.offered.take_if(|way| way.route == route) {
            return Ok(Some(way));
        }
        let reals = config.encapsulated_reals();
        let mut found = resolver.look(&route, &reals, GATEWAY_TIMEOUT)?;
        if let Some(former) = former.filter(|_| route.encapsulates) {
            found = found.or_former(former);
            found.silence.take_if(|_| former != [Mac::default(); 2]);
        }
        let next_hop = found.answering()?;
        Ok(Some(Way { route, next_hop }))
    }

    /// Takes the way that the data plane has from now on.
    pub(crate) fn set_way(&mut self, way: Way) {
        self.way = Some(way);
    }

    /// How they stood at the last look.
    pub fn views(&self) -> &[NextHopView] {
        &self.views
    }

    /// Whether a real is on the link itself, and its packets go to the gateway all the same.
    pub(crate) fn goes_by_gateway(&self, real: IpAddr) -> bool {
        self.on_link.contains(&real)
    }

    /// Takes what a look for `route` has found, unless the way is another by now. A gateway
    /// that is silent keeps its last address.
    pub(crate) fn take_look(
        &mut self,
        plane: &mut dyn DataPlane,
        route: &Route,
        reals: &[IpAddr],
        found: anyhow::Result<Found>,
        now: Moment,
    ) {
        let Some(way) = self.way.as_mut().filter(|way| way.route == *route) else {
            return;
        };
        let former = [way.next_hop.gateway_mac, way.next_hop.gateway6_mac];
        let (gateways, fault) = match found.map(|found| found.or_former(former)) {
            Ok(Found {
                next_hop,
                silence,
                gateways,
            }) => {
                if next_hop != way.next_hop {
                    if let Err(error) = plane.set_next_hop(&next_hop) {
                        warn!("the next hop has changed, and cannot be set: {error:#}");
                        return;
                    }
                    let [v4, v6] = [next_hop.gateway_mac, next_hop.gateway6_mac].map(MacAddress);
                    let mtu = next_hop.mtu;
                    info!("the next hop is now {v4} for IPv4, {v6} for IPv6, MTU {mtu}");
                    way.next_hop = next_hop;
                }
                (gateways, silence)
            }
            Err(error) => (Gateways::default(), Some(error)),
        };
        let fault = fault.map(|fault| format!("{fault:#}"));
        let way_hop = way.next_hop;
        let looked_for = route.encapsulates && route.encap.gateway_mac.is_none();
        let families = [
            ("ipv4", IpAddr::is_ipv4 as fn(&IpAddr) -> bool),
            ("ipv6", IpAddr::is_ipv6),
        ];
        let views = families.into_iter().filter_map(|(family, is_of)| {
            reals.iter().find(|real| is_of(real))?;
            let (own, other, mac, has_source) = match family {
                "ipv4" => {
                    let has_source = way_hop.source_v4.is_some();
                    (gateways.v4, gateways.v6, way_hop.gateway_mac, has_source)
                }
                _ => {
                    let has_source = way_hop.source_v6.is_some();
                    (gateways.v6, gateways.v4, way_hop.gateway6_mac, has_source)
                }
            };
            let state = match has_source {
                true => state(own, other, looked_for),
                false => "no_source",
            };
            let gateway = own.or(other);
            Some(NextHopView {
                family: family.to_owned(),
                state: state.to_owned(),
                gateway: gateway.map(|gateway| gateway.address.to_string()),
                mac: (mac != [0; 6]).then(|| MacAddress(mac).to_string()),
                other_routes: own.map_or(0, |own| own.others),
                on_link: gateways.on_link.iter().filter(|real| is_of(real)).count(),
                since_monotonic_ns: now.monotonic_ns,
            })
        });
        let mut views: Vec<NextHopView> = views.collect();
        for view in &mut views {
            let mut former = self.views.iter();
            let former = former.find(|former| former.family == view.family);
            if let Some(former) = former.filter(|former| former.state == view.state) {
                view.since_monotonic_ns = former.since_monotonic_ns;
            }
            tell(former, view, fault.as_deref());
        }
        self.views = views;
        self.on_link = gateways.on_link.into_iter().collect();
    }
}

fn state(own: Option<Gateway>, other: Option<Gateway>, looked_for: bool) -> &'static str {
    if !looked_for {
        return "configured";
    }
    let answers = |gateway: Gateway| gateway.mac.is_some();
    match (own.map(answers), other.map(answers)) {
        (Some(true), _) => "reachable",
        (Some(false), _) | (None, Some(false)) => "silent",
        (None, Some(true)) => "shared",
        (None, None) => "none",
    }
}

fn tell(former: Option<&NextHopView>, now: &NextHopView, fault: Option<&str>) {
    let family = &now.family;
    if former.is_none_or(|former| former.state != now.state) {
        match (now.is_up(), former) {
            (false, _) if now.state == "no_source" => warn!(
                "the next hop of {family} reals is of no use, as there is no source address, and their packets are dropped: give the interface one of global scope, or set `source` or `source6` of [encap]"
            ),
            (false, _) => warn!(
                "the next hop of {family} reals is {}, and their packets go to its last MAC address, {}{}",
                now.state,
                now.mac
                    .as_deref()
                    .unwrap_or("which is unknown, so they are dropped"),
                fault.map_or(String::new(), |fault| format!(": {fault}")),
            ),
            (true, Some(former)) => {
                let again = if former.is_up() { "" } else { " again" };
                info!("the next hop of {family} reals is {}{again}", now.state);
            }
            (true, None) => {}
        }
    }
    let on_link = |view: &NextHopView| view.on_link;
    if on_link(now) > 0 && former.map(on_link) != Some(on_link(now)) {
        info!(
            "this balancer's link has {}, whose packets go by the gateway {} all the same, which has to forward them back",
            plural(on_link(now), &format!("{family} real")),
            now.gateway.as_deref().unwrap_or("that others have")
        );
    }
    let others = |view: &NextHopView| view.other_routes;
    if others(now) > 0 && former.map(others) != Some(others(now)) {
        warn!(
            "the routes of {} are by other gateways than {}, which all packets go to",
            plural(others(now), &format!("{family} real")),
            now.gateway.as_deref().unwrap_or("that")
        );
    }
}
