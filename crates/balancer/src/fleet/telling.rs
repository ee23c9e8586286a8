// SPDX-License-Identifier: Apache-2.0
//! What agents are sent of the book, and the position that they have reached.
//!
//! A member sends what its own data plane follows, and gets every agent's reports itself: agents
//! report to all balancers. Nothing of it goes through the store.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use causeway_core::agent_report::{
    AgentFollows, AgentOrders, ReportKeys, ServiceCids, ServiceKey, key_mark,
};
use causeway_core::cookie::{CookieKey, CookieLayout, KeyEpoch};
use causeway_core::fleet::{AgentIds, CidPhases, FleetBook, KeyNumber, Position};
use serde::{Deserialize, Serialize};

use super::following::is_of_fleet;
use super::secrets::Secrets;
use crate::config::BalancerConfig;
use crate::next_hop::Way;

/// Where a balancer listens for agents, and the sources of its tunnels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentPaths {
    reports: BTreeSet<SocketAddr>,
    tunnels: BTreeSet<(IpAddr, u8)>,
}

/// What agents are sent.
#[derive(Debug, PartialEq)]
pub(crate) struct Telling {
    book: Arc<FleetBook>,
    keys: BTreeMap<KeyNumber, CookieKey>,
    services: BTreeMap<Arc<str>, (ServiceKey, Option<CookieLayout>)>,
    cids: BTreeMap<Arc<str>, ServiceCids>,
    paths: AgentPaths,
}

impl Telling {
    /// A book that the data plane follows, with what is not in it.
    pub(super) fn new(
        book: Arc<FleetBook>,
        secrets: &Secrets,
        file: &BalancerConfig,
        paths: AgentPaths,
    ) -> Self {
        let accepted = secrets
            .keys()
            .iter()
            .filter(|(number, _)| book.keys.accepts(**number));
        let vips = file.vips.iter().filter(|vip| is_of_fleet(vip));
        let service = |vip: &crate::config::VipConfig| {
            let key = (vip.address, vip.port, vip.protocol as u8);
            (vip.endpoint().into(), (key, vip.cookie))
        };
        let cids = |(vip, own): (&Arc<str>, &CidPhases)| {
            let configs = own.forms.iter().filter_map(|(of, form)| {
                let route = secrets.cid(vip, *form)?;
                Some((*of, *route.config()))
            });
            let cids = ServiceCids {
                issued: own.phases.issued,
                configs: configs.collect(),
            };
            (vip.clone(), cids)
        };
        Self {
            cids: book.cids.iter().map(cids).collect(),
            keys: accepted.map(|(number, key)| (*number, *key)).collect(),
            services: vips.map(|vip| service(vip)).collect(),
            paths,
            book,
        }
    }

    /// What one server gets of the book, by its ids in it. One without an id gets no secret: so a
    /// server that was stolen is shut out by removing it, and rotating.
    fn orders(&self, server: IpAddr, ids: &AgentIds, keys: &ReportKeys) -> AgentOrders {
        let service = |(vip, id): (&Arc<str>, &u16)| {
            let (service, layout) = self.services.get(vip)?;
            Some((*service, (*id, *layout)))
        };
        let cids = |vip: &Arc<str>| {
            let (service, _) = self.services.get(vip)?;
            Some((*service, self.cids.get(vip)?.clone()))
        };
        let is_real = !ids.is_empty();
        let secret = |epoch| keys.of_server(server, epoch).filter(|_| is_real);
        AgentOrders {
            position: self.book.position,
            issued: self.book.keys.issued,
            keys: match is_real {
                true => self.keys.clone(),
                false => BTreeMap::new(),
            },
            secrets: KeyEpoch::ALL.map(secret),
            services: ids.iter().filter_map(service).collect(),
            cids: ids.keys().filter_map(cids).collect(),
            balancers: self.paths.reports.clone(),
            tunnels: self.paths.tunnels.clone(),
        }
    }
}

/// What agents are sent, by server: each asks once a second, and there may be thousands.
#[derive(Debug)]
pub(crate) struct ToldAgents {
    telling: Telling,
    ids: HashMap<IpAddr, AgentIds>,
    /// Of orders, as far as they have been compared.
    digests: HashMap<IpAddr, u64>,
}

impl ToldAgents {
    pub(crate) fn new(telling: Telling) -> Self {
        Self {
            ids: telling.book.ids_of_agents(),
            telling,
            digests: HashMap::new(),
        }
    }

    /// Whether it is made of this.
    pub(crate) fn is_of(&self, telling: &Telling) -> bool {
        self.telling == *telling
    }

    /// Other keys are in force: what they are in is compared anew.
    pub(crate) fn forget_digests(&mut self) {
        self.digests.clear();
    }

    /// What a server lacks that goes by this; `None`: it is as far.
    pub(crate) fn lacks(
        &mut self,
        server: IpAddr,
        follows: Option<&AgentFollows>,
        keys: &ReportKeys,
    ) -> Option<AgentOrders> {
        let Self {
            telling,
            ids,
            digests,
        } = self;
        let nothing = AgentIds::new();
        let ids = ids.get(&server).unwrap_or(&nothing);
        let orders = || telling.orders(server, ids, keys);
        let position = telling.book.position;
        let mut digest = || *digests.entry(server).or_insert_with(|| orders().digest());
        let lacks = follows.is_none_or(|own| match own.position == position {
            true => own.digest != digest(),
            false => position.follows(own.position),
        });
        lacks.then(orders)
    }
}

/// The agents that have come to some book not later than this one, which is in the store, with the
/// keys that members have. What a server says beyond that is not believed: it could have the
/// fleet put its book back again and again.
pub(super) fn agents_at(
    follows: Vec<(IpAddr, AgentFollows)>,
    keys: &BTreeMap<KeyNumber, CookieKey>,
    found: Option<Position>,
) -> BTreeMap<IpAddr, Position> {
    let has = |(number, mark): (&KeyNumber, &u64)| {
        let own = keys.get(number);
        own.is_none_or(|key| key_mark(*number, key) == *mark)
    };
    let believed = |(server, of): (IpAddr, AgentFollows)| {
        let is_known = Some(of.position) <= found && of.keys.iter().all(has);
        is_known.then_some((server, of.position))
    };
    follows.into_iter().filter_map(believed).collect()
}

impl AgentPaths {
    /// A balancer's own, with this way in force. An address that stands for all says nothing to
    /// agents.
    pub(super) fn of(file: &BalancerConfig, way: Option<&Way>) -> Self {
        let reports = file.agent_reports.as_ref();
        let reports = reports.map(|reports| reports.listen);
        let next_hop = way.map(|way| &way.next_hop);
        let v4 = next_hop.and_then(|hop| hop.source_v4.as_ref());
        let v4 = v4.map(|own| {
            (
                IpAddr::V4(own.address),
                32_u8.saturating_sub(own.entropy_bits),
            )
        });
        let v6 = next_hop.and_then(|hop| hop.source_v6.as_ref());
        let v6 = v6.map(|own| {
            let bits = own.entropy_bits;
            (IpAddr::V6(own.address), 128_u8.saturating_sub(bits))
        });
        Self {
            reports: reports
                .into_iter()
                .filter(|at| !at.ip().is_unspecified())
                .collect(),
            tunnels: v4.into_iter().chain(v6).collect(),
        }
    }

    /// Those of another member besides.
    pub(super) fn add(&mut self, other: &Self) {
        self.reports.extend(&other.reports);
        self.tunnels.extend(&other.tunnels);
    }
}
