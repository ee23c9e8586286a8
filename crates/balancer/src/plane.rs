// SPDX-License-Identifier: Apache-2.0
//! What the daemon needs of a data plane.
//!
//! The engine is written against [`DataPlane`], so that its tests run without
//! a kernel; `kernel.rs` puts the real one behind it. Both speak the types of `causeway_dataplane`.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use causeway_core::control::Sampling;
use causeway_core::cookie::ids::KnownId;
use causeway_core::cookie::quic::CidRoute;
use causeway_core::cookie::{CookieLayout, Keys};
use causeway_core::hist::Histogram;
use causeway_dataplane::abi::{PacketsBytes, Verdict};
use causeway_dataplane::{
    CookieTotals, FlowIdle, FlowTotals, LoadTerms, Picking, Real, RealId, RealStats, Repairs,
    SourceRing, Vip, VipId, VipOptions, VipRings,
};
use causeway_netio::{Gateways, Mac, NextHop};

use crate::config::{BalancerConfig, Encap, HashKey};

/// Finds the next hop in the kernel's tables.
pub trait Resolve: Send + Sync {
    /// Looks where `route` leads for these reals, with a wait of at most `timeout` for gateways
    /// whose MAC addresses are not known.
    fn look(&self, route: &Route, reals: &[IpAddr], timeout: Duration) -> anyhow::Result<Found>;
}

/// What a look at the way to the reals has found.
#[derive(Debug)]
pub struct Found {
    /// The next hop, with zeros for the MAC address of a gateway that is silent.
    pub next_hop: NextHop,
    /// Why none of those that are needed answers.
    pub silence: Option<anyhow::Error>,
    /// The gateways; none where the configuration has the MAC address, or none is needed.
    pub gateways: Gateways,
}

impl Found {
    /// The next hop, if a gateway answers or none is needed.
    pub fn answering(self) -> anyhow::Result<NextHop> {
        self.silence.map_or(Ok(self.next_hop), Err)
    }

    /// The same where packets went to `former` until now: a gateway that is silent keeps its
    /// address, of IPv4 and of IPv6.
    pub fn or_former(mut self, former: [Mac; 2]) -> Self {
        let hop = &mut self.next_hop;
        for (mac, former) in [&mut hop.gateway_mac, &mut hop.gateway6_mac]
            .into_iter()
            .zip(former)
        {
            if *mac == Mac::default() {
                *mac = former;
            }
        }
        self
    }
}

/// What a configuration wants of the way to the reals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The outer header, and the next hop if it is given.
    pub encap: Encap,
    /// Whether packets are encapsulated at all, and so need a gateway.
    pub encapsulates: bool,
}

impl Route {
    /// What `config` wants.
    pub fn of(config: &BalancerConfig) -> Self {
        Self {
            encap: config.encap.clone(),
            encapsulates: config.encapsulates(),
        }
    }
}

/// A real that UDP flows are to leave, and after what time, if at all.
pub(crate) type Draining = (RealId, Option<Duration>);

/// The ids of one VIP in the data plane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ids {
    /// When they were read, CLOCK_MONOTONIC in seconds.
    pub now_s: u64,
    /// Each id with the real that has it, if it has not been taken away.
    pub held: Vec<(KnownId, Option<RealId>)>,
}

impl Ids {
    /// Those that a real has, in their order.
    pub(crate) fn of_real(&self, real: RealId) -> Vec<u16> {
        let held = self.held.iter().filter(|(_, owner)| *owner == Some(real));
        held.map(|(held, _)| held.id).collect()
    }
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
    /// The key of the hash that picks reals.
    fn hash_key(&self) -> anyhow::Result<HashKey>;
    /// What became of cookies, by VIP.
    fn cookie_totals(&self) -> anyhow::Result<Vec<(VipId, CookieTotals)>>;
}

/// A loaded data plane. Errors are sentences for the operator.
pub trait DataPlane: CookiePlane + Send {
    /// What finds next hops for it, without a need to hold it.
    fn resolver(&self) -> Arc<dyn Resolve>;
    /// The MAC addresses that encapsulated packets go to, those of a predecessor until others are
    /// set; zeros: none.
    fn gateways(&self) -> anyhow::Result<[Mac; 2]>;
    /// Sets where encapsulated packets go, and the outer header.
    fn set_next_hop(&mut self, next_hop: &NextHop) -> anyhow::Result<()>;
    /// Every VIP that the data plane knows.
    fn vips(&self) -> anyhow::Result<Vec<(VipId, Vip)>>;
    /// The number of a VIP that is there.
    fn vip_id(&self, vip: &Vip) -> Option<VipId>;
    /// Adds a VIP, or finds it. A new one has no ring and drops its packets.
    fn set_vip(&mut self, vip: Vip) -> anyhow::Result<VipId>;
    /// Sets what a VIP has besides its ring.
    fn set_vip_options(&mut self, id: VipId, options: VipOptions) -> anyhow::Result<()>;
    /// Removes a VIP with its reals; its packets go to the kernel from now on.
    fn remove_vip(&mut self, id: VipId) -> anyhow::Result<()>;
    /// Every real that the data plane knows.
    fn reals(&self) -> anyhow::Result<Vec<(RealId, Real)>>;
    /// The real of a VIP at this address, if it is there.
    fn real_at(&self, vip: VipId, address: IpAddr) -> Option<(RealId, Real)>;
    /// Adds a real, or finds it and has packets reach it in this way.
    fn set_real(&mut self, real: Real) -> anyhow::Result<RealId>;
    /// Removes a real, which must not be in a ring; its flows are picked again.
    fn remove_real(&mut self, id: RealId) -> anyhow::Result<()>;
    /// Sets which reals are down while others of their VIPs serve: no SYN stays on these, and on
    /// all others. A repeated call does nothing.
    fn set_down(&mut self, down: &HashSet<RealId>) -> anyhow::Result<()>;
    /// Replaces the rings of VIPs; each at once, none of them empty for a moment.
    /// A VIP with an empty ring takes no new connections.
    fn set_rings(&mut self, rings: &[VipRings]) -> anyhow::Result<()>;
    /// Gives client prefixes of a VIP rings of their own: these and no others.
    fn set_sources(&mut self, vip: VipId, sources: &[SourceRing]) -> anyhow::Result<()>;
    /// New flows that went by each of them, in their order.
    fn source_picks(&self, vip: VipId) -> anyhow::Result<Vec<u64>>;
    /// Sets how a VIP gives new flows to its reals; any ring works with any of them.
    fn set_picking(&mut self, vip: VipId, picking: Picking) -> anyhow::Result<()>;
    /// Has the next new flow of a VIP that picks by turns take this slot.
    fn set_turn(&mut self, vip: VipId, turn: u64) -> anyhow::Result<()>;
    /// A real's load, with what flows have added and taken off since it was set.
    fn load(&self, real: RealId) -> anyhow::Result<i64>;
    fn set_load(&mut self, real: RealId, load: i64) -> anyhow::Result<()>;
    /// Adds to a real's load, beside what flows do.
    fn add_load(&mut self, real: RealId, change: i64) -> anyhow::Result<()>;
    /// What one flow means for a real's load; nothing before it was set.
    fn load_terms(&self, real: RealId) -> anyhow::Result<LoadTerms>;
    /// Sets what one flow means for a real's load.
    fn set_load_terms(&mut self, real: RealId, terms: LoadTerms) -> anyhow::Result<()>;
    /// Which of a real's connections are measured.
    fn sampling(&self, real: RealId) -> anyhow::Result<Sampling>;
    /// Sets which of a real's connections are measured.
    fn set_sampling(&mut self, real: RealId, sampling: Sampling) -> anyhow::Result<()>;
    /// Sets which connections of a VIP are measured at any of its reals; a repeated call does
    /// nothing.
    fn set_vip_sampling(&mut self, vip: VipId, sampling: Sampling) -> anyhow::Result<()>;
    /// Checks that the kernel still holds the data plane as it should, and repairs what can be.
    fn mend(&mut self) -> anyhow::Result<Repairs>;
    /// Whether its program is on an interface.
    fn is_attached(&self) -> anyhow::Result<bool>;
    /// Prepares the sending of health probes; may be called again.
    fn prepare_probes(&mut self) -> anyhow::Result<()>;
    /// Ends flows that have been silent for long: a share of them, for the time since the
    /// last call. `draining` are the reals that UDP flows are to leave, and after what time.
    fn sweep_flows(&mut self, now_ns: u64, idle: &FlowIdle, draining: &[Draining]) -> SweptFlows;
    /// What the flow table holds, and what became of flows.
    fn flow_totals(&self) -> FlowTotals;
    /// The rings of these VIPs; empty where there is none.
    fn rings(&self, vips: &[VipId]) -> anyhow::Result<Vec<Vec<RealId>>>;
    /// How long it has counted, the time of former daemons included.
    fn age(&self) -> Duration;
    /// Totals of every exit, in the data plane's order.
    fn verdicts(&self) -> anyhow::Result<Vec<(Verdict, PacketsBytes)>>;
    /// Totals of all VIPs, sorted by their numbers.
    fn vip_totals(&self) -> anyhow::Result<Vec<(VipId, PacketsBytes)>>;
    /// Totals of these reals.
    fn real_stats(&self, of: &[RealId]) -> anyhow::Result<Vec<(RealId, RealStats)>>;
    /// Latency histogram of a real since its slot was made.
    fn histogram(&self, id: RealId) -> anyhow::Result<Histogram>;
}

/// What a sweep has found, by real.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SweptFlows {
    /// Connections that have ended by silence: no packet has ended them.
    pub unheard: HashMap<RealId, u64>,
    /// Connections that the flow table holds open, where a look at all of it has ended.
    pub open: Option<HashMap<RealId, u64>>,
}
