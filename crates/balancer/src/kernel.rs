// SPDX-License-Identifier: Apache-2.0
//! The kernel's data plane behind [`DataPlane`].

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use causeway_core::control::Sampling;
use causeway_core::cookie::ids::KnownId;
use causeway_core::cookie::quic::CidRoute;
use causeway_core::cookie::{CookieLayout, Keys};
use causeway_core::hist::Histogram;
use causeway_dataplane::abi::{PacketsBytes, Verdict};
use causeway_dataplane::probe::ProbeEgress;
use causeway_dataplane::{
    CookieTotals, DataPlaneError, FlowIdle, FlowSweep, FlowTotals, LoadBalancer, LoadTerms,
    Picking, Real, RealId, RealStats, Repairs, SourceRing, Started, Vip, VipId, VipOptions,
    VipRings, possible_cpus,
};
use causeway_netio::{Gateways, Mac, NextHop, OuterSource};
use causeway_service::config::plural;
use causeway_service::random;
use tracing::{info, warn};

use super::next_hop::GATEWAY_TIMEOUT;
use super::plane::{CookiePlane, DataPlane, Draining, Found, Ids, Resolve, Route, SweptFlows};
use super::rings;
use super::slots::ConnectionSlots;
use crate::config::{BalancerConfig, GueChecksum, HashKey};

/// A loaded and attached data plane.
pub struct KernelPlane {
    pub(super) balancer: LoadBalancer,
    pin_dir: PathBuf,
    resolver: Arc<Resolver>,
    /// There once a VIP wants health probes.
    probes: Option<ProbeEgress>,
    sweep: FlowSweep,
    slots: Option<ConnectionSlots>,
}

impl KernelPlane {
    /// Loads the data plane, or takes over the running one.
    pub fn start(config: &BalancerConfig) -> anyhow::Result<(Self, Started)> {
        let mut resolver = Resolver {
            interface: config.interface.clone(),
            in_use: Mutex::default(),
        };
        // Before anything is attached: what cannot forward must not start. What runs does forward.
        if !LoadBalancer::is_running(&config.pin_dir)? {
            let reals = config.encapsulated_reals();
            resolver
                .look(&Route::of(config), &reals, GATEWAY_TIMEOUT)?
                .answering()?;
        }
        let (balancer, started) = LoadBalancer::start(&config.data_plane())?;
        resolver.in_use = Mutex::new(balancer.outer_sources()?);
        choose_hash_key(&balancer, config.hash_key)?;
        balancer.set_token_sources(
            config.stateful.token_source_v4,
            config.stateful.token_source_v6,
        )?;
        let plane = Self {
            sweep: balancer.flow_sweep()?,
            balancer,
            pin_dir: config.pin_dir.clone(),
            resolver: Arc::new(resolver),
            probes: None,
            slots: None,
        };
        Ok((plane, started))
    }

    /// The slots of stateful VIPs' connections, if there are any; see [`ConnectionSlots::new`].
    pub fn take_slots(&mut self, learning: Duration) -> anyhow::Result<Option<ConnectionSlots>> {
        let Some(table) = self.balancer.connections()? else {
            return Ok(None);
        };
        let directory = self.balancer.directory()?;
        let slots = ConnectionSlots::new(table, directory, learning);
        self.slots = Some(slots.clone());
        Ok(Some(slots))
    }
}

/// Reads the kernel's tables about one interface.
struct Resolver {
    interface: String,
    /// The outer sources that the data plane has.
    in_use: Mutex<Vec<IpAddr>>,
}

impl Resolver {
    fn in_use(&self) -> MutexGuard<'_, Vec<IpAddr>> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Resolve for Resolver {
    /// What the configuration says, the rest from the kernel's tables. A balancer
    /// that never encapsulates needs no gateway.
    fn look(&self, route: &Route, reals: &[IpAddr], timeout: Duration) -> anyhow::Result<Found> {
        let encap = &route.encap;
        let info = causeway_netio::interface_info(&self.interface)?;
        let mut gateways = Gateways::default();
        let mut silence = None;
        let macs = match encap.gateway_mac {
            Some(mac) => [mac.0; 2],
            None if !route.encapsulates => [[0; 6]; 2],
            None => {
                gateways = causeway_netio::find_gateways(&info, reals, timeout)?;
                let answering = gateways.answering(&self.interface, timeout);
                silence = answering.err().map(anyhow::Error::from);
                gateways.macs()
            }
        };
        let mut next_hop = info.next_hop(macs[0], macs[1], &self.in_use());
        next_hop.gue = causeway_netio::Gue {
            port: encap.gue_port,
            checksum_v4: encap.gue_checksum == GueChecksum::Full,
            checksum_v6: encap.gue_checksum != GueChecksum::Zero,
        };
        if let Some(mtu) = encap.mtu {
            next_hop.mtu = mtu;
        }
        if let Some((address, length)) = encap.source_v4 {
            next_hop.source_v4 = Some(OuterSource {
                address,
                entropy_bits: 32 - length,
            });
        }
        if let Some((address, length)) = encap.source_v6 {
            next_hop.source_v6 = Some(source_v6(address, length));
        }
        Ok(Found {
            next_hop,
            silence,
            gateways,
        })
    }
}

/// Without a key in the configuration the pinned maps keep theirs, or get one.
fn choose_hash_key(balancer: &LoadBalancer, wanted: Option<HashKey>) -> anyhow::Result<()> {
    let running = balancer.hash_key()?;
    let key = match wanted {
        Some(HashKey(key)) => key,
        None if running == [0; 2] => random_key()?,
        None => return Ok(()),
    };
    if key != running {
        balancer.set_hash_key(key)?;
    }
    Ok(())
}

/// A secret for the hash that picks reals, so that no client can aim at one. It
/// stays in the pinned maps.
fn random_key() -> anyhow::Result<[u64; 2]> {
    let whole = u128::from_ne_bytes(random()?);
    Ok([whole as u64, (whole >> 64) as u64])
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
        Ok(Ids {
            now_s: causeway_netio::monotonic_ns() / 1_000_000_000,
            held: ids
                .map(|id| {
                    let held = KnownId {
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

    fn hash_key(&self) -> anyhow::Result<HashKey> {
        Ok(HashKey(self.balancer.hash_key()?))
    }

    fn cookie_totals(&self) -> anyhow::Result<Vec<(VipId, CookieTotals)>> {
        Ok(self.balancer.cookie_counts()?)
    }
}

impl DataPlane for KernelPlane {
    fn resolver(&self) -> Arc<dyn Resolve> {
        Arc::clone(&self.resolver) as Arc<dyn Resolve>
    }

    fn gateways(&self) -> anyhow::Result<[Mac; 2]> {
        Ok(self.balancer.gateways()?)
    }

    fn set_next_hop(&mut self, next_hop: &NextHop) -> anyhow::Result<()> {
        self.balancer.set_next_hop(next_hop)?;
        let sources = next_hop.sources();
        let mut in_use = self.resolver.in_use();
        // Without a gateway nothing is encapsulated.
        if [next_hop.gateway_mac, next_hop.gateway6_mac] != [[0; 6]; 2] {
            tell_sources(&in_use, &sources);
        }
        *in_use = sources;
        Ok(())
    }

    fn vips(&self) -> anyhow::Result<Vec<(VipId, Vip)>> {
        Ok(self.balancer.vips())
    }

    fn vip_id(&self, vip: &Vip) -> Option<VipId> {
        self.balancer.vip_id(vip)
    }

    fn set_vip(&mut self, vip: Vip) -> anyhow::Result<VipId> {
        match self.balancer.vip_id(&vip) {
            Some(id) => Ok(id),
            None => Ok(self.balancer.add_vip(&vip)?),
        }
    }

    fn set_vip_options(&mut self, id: VipId, options: VipOptions) -> anyhow::Result<()> {
        Ok(self.balancer.set_vip_options(id, options)?)
    }

    fn remove_vip(&mut self, id: VipId) -> anyhow::Result<()> {
        Ok(self.balancer.remove_vip(id)?)
    }

    fn reals(&self) -> anyhow::Result<Vec<(RealId, Real)>> {
        Ok(self.balancer.reals())
    }

    fn real_at(&self, vip: VipId, address: IpAddr) -> Option<(RealId, Real)> {
        self.balancer.real_at(vip, address)
    }

    fn set_real(&mut self, real: Real) -> anyhow::Result<RealId> {
        match self.balancer.real_at(real.vip, real.address) {
            Some((id, other)) if other.forwarding == real.forwarding => Ok(id),
            Some((id, _)) => {
                self.balancer.set_forwarding(id, real.forwarding)?;
                Ok(id)
            }
            None => Ok(self.balancer.add_real(&real)?),
        }
    }

    fn remove_real(&mut self, id: RealId) -> anyhow::Result<()> {
        Ok(self.balancer.remove_real(id)?)
    }

    fn set_down(&mut self, down: &HashSet<RealId>) -> anyhow::Result<()> {
        Ok(self.balancer.set_down(down)?)
    }

    fn set_rings(&mut self, rings: &[VipRings]) -> anyhow::Result<()> {
        Ok(self.balancer.set_rings(rings)?)
    }

    fn set_sources(&mut self, vip: VipId, sources: &[SourceRing]) -> anyhow::Result<()> {
        Ok(self.balancer.set_sources(vip, sources)?)
    }

    fn source_picks(&self, vip: VipId) -> anyhow::Result<Vec<u64>> {
        Ok(self.balancer.source_picks(vip)?)
    }

    fn set_picking(&mut self, vip: VipId, picking: Picking) -> anyhow::Result<()> {
        Ok(self.balancer.set_picking(vip, picking)?)
    }

    fn set_turn(&mut self, vip: VipId, turn: u64) -> anyhow::Result<()> {
        Ok(self.balancer.set_turn(vip, turn)?)
    }

    fn load(&self, real: RealId) -> anyhow::Result<i64> {
        Ok(self.balancer.load(real)?)
    }

    fn set_load(&mut self, real: RealId, load: i64) -> anyhow::Result<()> {
        Ok(self.balancer.set_load(real, load)?)
    }

    fn add_load(&mut self, real: RealId, change: i64) -> anyhow::Result<()> {
        Ok(self.balancer.add_load(real, change)?)
    }

    fn load_terms(&self, real: RealId) -> anyhow::Result<LoadTerms> {
        Ok(self.balancer.load_terms(real)?)
    }

    fn set_load_terms(&mut self, real: RealId, terms: LoadTerms) -> anyhow::Result<()> {
        Ok(self.balancer.set_load_terms(real, terms)?)
    }

    fn sampling(&self, real: RealId) -> anyhow::Result<Sampling> {
        Ok(self.balancer.sampling(real)?)
    }

    fn set_sampling(&mut self, real: RealId, sampling: Sampling) -> anyhow::Result<()> {
        Ok(self.balancer.set_sampling(real, sampling)?)
    }

    fn set_vip_sampling(&mut self, vip: VipId, sampling: Sampling) -> anyhow::Result<()> {
        Ok(self.balancer.set_vip_sampling(vip, sampling)?)
    }

    fn mend(&mut self) -> anyhow::Result<Repairs> {
        let changes = self.balancer.mend();
        if let Some(probes) = &mut self.probes {
            probes.mend()?;
        }
        Ok(changes?)
    }

    fn is_attached(&self) -> anyhow::Result<bool> {
        Ok(self.balancer.is_attached()?)
    }

    fn prepare_probes(&mut self) -> anyhow::Result<()> {
        if self.probes.is_none() {
            self.probes = Some(ProbeEgress::start(
                &self.balancer,
                &self.resolver.interface,
            )?);
        }
        Ok(())
    }

    fn sweep_flows(&mut self, now_ns: u64, idle: &FlowIdle, draining: &[Draining]) -> SweptFlows {
        let now = Duration::from_nanos(now_ns);
        self.sweep.step(now, idle, draining);
        let mut unheard = self.sweep.take_unheard();
        let of_slots = self.slots.iter().flat_map(ConnectionSlots::take_unheard);
        for (real, connections) in of_slots {
            *unheard.entry(real).or_default() += connections;
        }
        SweptFlows {
            unheard,
            // What cannot be read now, the next round sees.
            open: self
                .sweep
                .take_open()
                .and_then(|open| self.balancer.open_of_reals(open).ok()),
        }
    }

    fn flow_totals(&self) -> FlowTotals {
        self.sweep.totals()
    }

    fn rings(&self, vips: &[VipId]) -> anyhow::Result<Vec<Vec<RealId>>> {
        Ok(self.balancer.rings(vips)?)
    }

    /// The age of the oldest pin: maps are pinned when they are made.
    fn age(&self) -> Duration {
        let pins = fs::read_dir(&self.pin_dir).into_iter().flatten().flatten();
        let made = pins.filter_map(|pin| pin.metadata().ok()?.modified().ok());
        let elapsed = made.min().map(|made| made.elapsed().ok());
        elapsed.map_or(Duration::ZERO, |elapsed| age(elapsed, uptime()))
    }

    fn verdicts(&self) -> anyhow::Result<Vec<(Verdict, PacketsBytes)>> {
        Ok(self.balancer.verdicts()?)
    }

    fn vip_totals(&self) -> anyhow::Result<Vec<(VipId, PacketsBytes)>> {
        Ok(self.balancer.vip_stats()?)
    }

    fn real_stats(&self, of: &[RealId]) -> anyhow::Result<Vec<(RealId, RealStats)>> {
        Ok(self.balancer.real_stats_of(of)?)
    }

    fn histogram(&self, id: RealId) -> anyhow::Result<Histogram> {
        Ok(self.balancer.real_histogram(id)?)
    }
}

/// Says which outer sources have changed: servers may take tunnels from the former ones alone.
fn tell_sources(former: &[IpAddr], now: &[IpAddr]) {
    for is_of in [IpAddr::is_ipv4 as fn(&IpAddr) -> bool, IpAddr::is_ipv6] {
        let of = |sources: &[IpAddr]| sources.iter().copied().find(is_of);
        match (of(former), of(now)) {
            (Some(former), Some(now)) if former != now => warn!(
                "the outer source address is now {now}, and was {former}: agents that list this balancer in `balancers` need the new one"
            ),
            (Some(former), None) => {
                warn!(
                    "the outer source address {former} is gone, and the interface has no other of its family"
                );
            }
            (None, Some(now)) => info!("the outer source address is {now}"),
            _ => {}
        }
    }
}

/// The time since pins were made, by a clock that may have been set since: no pin outlives a boot.
fn age(elapsed: Option<Duration>, uptime: Duration) -> Duration {
    elapsed.map_or(uptime, |elapsed| elapsed.min(uptime))
}

fn uptime() -> Duration {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = text.split(' ').next().and_then(|word| word.parse().ok());
    seconds.map_or(Duration::MAX, Duration::from_secs_f64)
}

/// The data plane fills at most the last 32 bits.
fn source_v6(address: Ipv6Addr, length: u8) -> OuterSource<Ipv6Addr> {
    OuterSource {
        address,
        entropy_bits: (128 - length).min(32),
    }
}

/// The kernel's memory that the data plane of a configuration takes on this machine: bytes, and one
/// line for people.
pub fn memory(config: &BalancerConfig) -> Result<(u64, String), DataPlaneError> {
    let cpus = possible_cpus()?;
    let memory = config.data_plane().memory(cpus)?;
    let rings = config
        .vips
        .iter()
        .map(|vip| rings::bytes_at_most(vip))
        .sum();
    let shown = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let sentence = format!(
        "{} MiB of the kernel's memory: flow table {}, connection slots {}, VIPs {}, cookies {}, reals {}, histograms {}, rings at most {}, other {} ({})",
        shown(memory.total() + rings),
        shown(memory.flows),
        shown(memory.connections),
        shown(memory.vips),
        shown(memory.cookies),
        shown(memory.reals),
        shown(memory.histograms),
        shown(rings),
        shown(memory.fixed),
        plural(cpus as usize, "possible CPU"),
    );
    Ok((memory.total() + rings, sentence))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that was set after a boot without one, or put back: else no connection would count
    /// that was opened before the start, or every one that ever was.
    #[test]
    fn pins_are_no_older_than_the_machine_has_run() {
        let uptime = Duration::from_secs(3_600);
        let years = Duration::from_secs(56 * 365 * 86_400);
        assert_eq!(age(Some(years), uptime), uptime);
        assert_eq!(age(None, uptime), uptime);
        let minute = Duration::from_secs(60);
        assert_eq!(age(Some(minute), uptime), minute);
        assert!(super::uptime() > Duration::ZERO && super::uptime() < years);
    }
}
