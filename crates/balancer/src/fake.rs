// SPDX-License-Identifier: Apache-2.0
//! A data plane in memory, for tests: keeps what is written to it, and counts what a
//! test writes into it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::bail;
use causeway_core::control::Sampling;
use causeway_core::cookie::ids::KnownId;
use causeway_core::cookie::{CookieLayout, Keys, quic};
use causeway_core::hist::Histogram;
use causeway_dataplane::abi::{CookieResult, PacketsBytes, Verdict};
use causeway_dataplane::{
    CookieTotals, FlowIdle, FlowTotals, LoadTerms, Picking, Real, RealId, RealStats, Repairs,
    SourceRing, Vip, VipId, VipOptions, VipRings,
};
use causeway_netio::{Gateway, Gateways, Mac, NextHop, OuterSource};

use super::plane::{CookiePlane, DataPlane, Draining, Found, Ids, Resolve, Route, SweptFlows};
use crate::config::{HashKey, MacAddress};

/// What the fake holds; tests read and write it while the engine runs.
#[derive(Default)]
pub(crate) struct State {
    pub next_hop: Option<NextHop>,
    pub hash_key: [u64; 2],
    /// The gateway that is found; without one, it does not answer.
    pub gateway: Option<MacAddress>,
    /// That of IPv6, if it has one.
    pub gateway6: Option<causeway_netio::Gateway>,
    /// The interface's addresses.
    pub outer_sources: (Option<Ipv4Addr>, Option<Ipv6Addr>),
    pub vips: BTreeMap<VipId, Vip>,
    pub reals: BTreeMap<RealId, Real>,
    /// Those that no SYN stays on.
    pub down: HashSet<RealId>,
    /// How often these were set.
    pub downs_set: usize,
    pub rings: BTreeMap<VipId, Vec<RealId>>,
    /// Those of configured weights.
    pub plain_rings: BTreeMap<VipId, Vec<RealId>>,
    pub options: BTreeMap<VipId, VipOptions>,
    pub picking: BTreeMap<VipId, Picking>,
    pub turns: BTreeMap<VipId, u64>,
    /// How often the sending of probes was prepared.
    pub probes_prepared: usize,
    pub loads: BTreeMap<RealId, i64>,
    pub terms: BTreeMap<RealId, LoadTerms>,
    pub totals: BTreeMap<RealId, RealStats>,
    /// Which connections of reals and of VIPs are measured.
    pub sampling: BTreeMap<RealId, Sampling>,
    pub vip_sampling: BTreeMap<VipId, Sampling>,
    pub histograms: BTreeMap<RealId, Histogram>,
    /// Rings set since the start.
    pub ring_swaps: usize,
    /// Whether the next reading of totals panics.
    pub panic: bool,
    /// Packets to each VIP; `None`: those to its reals.
    pub vip_packets: Option<u64>,
    /// VIPs whose options have been set.
    pub vips_set: usize,
    /// Reals whose totals have been read.
    pub reals_read: usize,
    /// Whether the next reading of totals fails.
    pub unreadable: bool,
    /// How long the data plane has counted.
    pub age: Duration,
    /// Reals that are on the link itself.
    pub on_link: Vec<IpAddr>,
    /// Who asks the gateway next says so, and waits for its answer.
    pub gateway_held: Option<(Sender<()>, Receiver<()>)>,
    /// Sets of rings that are refused from now on.
    pub refuse_rings: usize,
    /// What is wrong with its hold in the kernel.
    pub hold_fault: Option<String>,
    /// Whether its program is on no interface.
    pub is_lost: bool,
    /// Whether the sending of probes cannot be prepared.
    pub refuse_probes: bool,
    /// Removals of reals that fail from now on.
    pub refuse_removals: usize,
    /// Most reals; more are refused.
    pub max_reals: Option<usize>,
    /// Rings of client prefixes.
    pub sources: BTreeMap<VipId, Vec<SourceRing>>,
    /// When flows were swept, and which reals they were to leave, after what time.
    pub swept: Vec<(u64, Vec<Draining>)>,
    /// Connections that the next sweep finds ended without a packet.
    pub unheard: HashMap<RealId, u64>,
    /// Those that each sweep finds open in the flow table; `None`: it has not been looked at whole.
    pub open: Option<HashMap<RealId, u64>>,
    pub cookie_keys: Option<Keys>,
    /// VIPs with QUIC connection ids.
    pub quic_ids: BTreeMap<VipId, Vec<quic::CidRoute>>,
    pub cookie_formats: BTreeMap<VipId, CookieLayout>,
    /// Ids of reals, those that rest among them.
    pub cookie_ids: BTreeMap<(VipId, u16), (KnownId, Option<RealId>)>,
    /// What the data plane's clock says, seconds.
    pub now_s: u64,
}

impl State {
    pub(crate) fn real(&self, address: &str) -> RealId {
        let wanted: std::net::IpAddr = address.parse().unwrap();
        let found = self.reals.iter().find(|(_, real)| real.address == wanted);
        *found.expect("a real").0
    }

    /// Part of a VIP's ring that points at a real.
    pub(crate) fn share(&self, vip: VipId, real: RealId) -> f64 {
        let ring = &self.rings[&vip];
        ring.iter().filter(|id| **id == real).count() as f64 / ring.len() as f64
    }

    /// Adds responses of one latency, with as many requests, of clients next door.
    pub(crate) fn respond(&mut self, real: RealId, latency_ms: f64, samples: u64) {
        self.respond_over(real, 0.0, latency_ms, samples);
    }

    /// The same over a path whose round trip is known.
    pub(crate) fn respond_over(
        &mut self,
        real: RealId,
        path_ms: f64,
        server_ms: f64,
        samples: u64,
    ) {
        self.respond_unseen(real, path_ms + server_ms, samples);
        let totals = self.totals.entry(real).or_default();
        totals.good.server_sum_halves_ns += 2 * (server_ms * 1e6) as u64 * samples;
        totals.good.path_sum_halves_ns += 2 * (path_ms * 1e6) as u64 * samples;
        totals.good.path_weight_halves += 2 * samples;
    }

    /// The same over a path, of connections whose latencies are all off alike.
    pub(crate) fn respond_low(&mut self, real: RealId, path_ms: f64, server_ms: f64, samples: u64) {
        let totals = self.totals.entry(real).or_default();
        let before = std::mem::take(&mut totals.good);
        self.respond_over(real, path_ms, server_ms, samples);
        let totals = self.totals.entry(real).or_default();
        let low = std::mem::replace(&mut totals.good, before);
        totals.low.add(&low);
    }

    /// The same of connections whose handshakes were not seen.
    pub(crate) fn respond_unseen(&mut self, real: RealId, latency_ms: f64, samples: u64) {
        let ns = (latency_ms * 1e6) as u64;
        let totals = self.totals.entry(real).or_default();
        totals.good.sum_halves_ns += 2 * ns * samples;
        totals.good.weight_halves += 2 * samples;
        totals.requests += samples;
        totals.requests_seen += samples;
        totals.packets += 2 * samples;
        totals.bytes += 200 * samples;
        let histogram = self.histograms.entry(real).or_default();
        histogram.record_n(ns, samples);
    }
}

/// A handle; clones share the state.
#[derive(Clone)]
pub(crate) struct FakePlane(Arc<Mutex<State>>);

impl Default for FakePlane {
    fn default() -> Self {
        let state = State {
            gateway: Some(MacAddress([2, 0, 0, 0, 0, 1])),
            vip_packets: Some(40),
            ..State::default()
        };
        Self(Arc::new(Mutex::new(state)))
    }
}

impl Resolve for FakePlane {
    fn look(&self, route: &Route, _: &[IpAddr], _: Duration) -> anyhow::Result<Found> {
        let held = self.state().gateway_held.take();
        if let Some((asked, answer)) = held {
            let _ = asked.send(());
            let _ = answer.recv_timeout(Duration::from_secs(30));
        }
        let mut gateways = Gateways::default();
        let macs = match route.encap.gateway_mac {
            Some(mac) => [mac.0; 2],
            None if !route.encapsulates => [[0; 6]; 2],
            None => {
                gateways.v4 = Some(Gateway {
                    address: [10, 0, 0, 254].into(),
                    mac: self.state().gateway.map(|mac| mac.0),
                    others: 0,
                });
                gateways.v6 = self.state().gateway6;
                gateways.on_link.clone_from(&self.state().on_link);
                gateways.macs()
            }
        };
        let silent = gateways.v4.is_some() && macs == [[0; 6]; 2];
        let sources = self.state().outer_sources;
        let next_hop = NextHop {
            mac: [2; 6],
            gateway_mac: macs[0],
            gateway6_mac: macs[1],
            mtu: route.encap.mtu.unwrap_or(1500),
            source_v4: sources.0.map(OuterSource::whole),
            source_v6: sources.1.map(OuterSource::whole),
            gue: causeway_netio::Gue::default(),
        };
        Ok(Found {
            next_hop,
            silence: silent.then(|| anyhow::anyhow!("the gateway is silent")),
            gateways,
        })
    }
}

impl FakePlane {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

fn free_id<V>(map: &BTreeMap<u32, V>) -> u32 {
    (0..).find(|id| !map.contains_key(id)).unwrap()
}

impl CookiePlane for FakePlane {
    fn set_cookie_keys(&mut self, keys: Option<&Keys>) -> anyhow::Result<()> {
        self.state().cookie_keys = keys.copied();
        Ok(())
    }

    fn set_cookie_format(
        &mut self,
        vip: VipId,
        format: Option<&CookieLayout>,
    ) -> anyhow::Result<()> {
        let mut state = self.state();
        match format {
            Some(format) => drop(state.cookie_formats.insert(vip, *format)),
            None => {
                state.cookie_formats.remove(&vip);
                state.cookie_ids.retain(|(of, _), _| *of != vip);
            }
        }
        Ok(())
    }

    fn set_quic_ids(&mut self, vip: VipId, routes: &[quic::CidRoute]) -> anyhow::Result<()> {
        self.state().quic_ids.insert(vip, routes.to_vec());
        Ok(())
    }

    fn cookie_ids(&self, vip: VipId) -> anyhow::Result<Ids> {
        let state = self.state();
        let ids = state.cookie_ids.iter().filter(|((of, _), _)| *of == vip);
        Ok(Ids {
            now_s: state.now_s,
            held: ids.map(|(_, held)| *held).collect(),
        })
    }

    fn set_cookie_id(&mut self, vip: VipId, id: u16, real: RealId) -> anyhow::Result<()> {
        let mut state = self.state();
        assert!(
            state.cookie_formats.contains_key(&vip) || state.quic_ids.contains_key(&vip),
            "a VIP without cookies"
        );
        let address = state.reals[&real].address;
        let held = KnownId {
            id,
            address,
            freed_s: None,
        };
        state.cookie_ids.insert((vip, id), (held, Some(real)));
        Ok(())
    }

    fn hash_key(&self) -> anyhow::Result<HashKey> {
        Ok(HashKey(self.state().hash_key))
    }

    fn cookie_totals(&self) -> anyhow::Result<Vec<(VipId, CookieTotals)>> {
        let state = self.state();
        let totals = vec![(CookieResult::Epoch0, 5), (CookieResult::Forged, 1)];
        let vips = state.cookie_formats.keys();
        Ok(vips.map(|vip| (*vip, totals.clone())).collect())
    }
}

impl DataPlane for FakePlane {
    fn resolver(&self) -> Arc<dyn Resolve> {
        Arc::new(self.clone())
    }

    fn gateways(&self) -> anyhow::Result<[Mac; 2]> {
        let hop = self.state().next_hop;
        Ok(hop.map_or_else(Default::default, |hop| [hop.gateway_mac, hop.gateway6_mac]))
    }

    fn set_next_hop(&mut self, next_hop: &NextHop) -> anyhow::Result<()> {
        self.state().next_hop = Some(*next_hop);
        Ok(())
    }

    fn vips(&self) -> anyhow::Result<Vec<(VipId, Vip)>> {
        Ok(self
            .state()
            .vips
            .iter()
            .map(|(id, vip)| (*id, *vip))
            .collect())
    }

    fn vip_id(&self, vip: &Vip) -> Option<VipId> {
        let state = self.state();
        let found = state.vips.iter().find(|(_, known)| *known == vip);
        found.map(|(id, _)| *id)
    }

    fn set_vip(&mut self, vip: Vip) -> anyhow::Result<VipId> {
        let mut state = self.state();
        if let Some((id, _)) = state.vips.iter().find(|(_, known)| **known == vip) {
            return Ok(*id);
        }
        let id = free_id(&state.vips);
        state.vips.insert(id, vip);
        Ok(id)
    }

    fn set_vip_options(&mut self, id: VipId, options: VipOptions) -> anyhow::Result<()> {
        let mut state = self.state();
        state.options.insert(id, options);
        state.vips_set += 1;
        Ok(())
    }

    fn remove_vip(&mut self, id: VipId) -> anyhow::Result<()> {
        let mut state = self.state();
        state.rings.remove(&id);
        state.plain_rings.remove(&id);
        state.reals.retain(|_, real| real.vip != id);
        match state.vips.remove(&id) {
            Some(_) => Ok(()),
            None => bail!("no such vip"),
        }
    }

    fn reals(&self) -> anyhow::Result<Vec<(RealId, Real)>> {
        Ok(self
            .state()
            .reals
            .iter()
            .map(|(id, real)| (*id, *real))
            .collect())
    }

    fn real_at(&self, vip: VipId, address: IpAddr) -> Option<(RealId, Real)> {
        let state = self.state();
        let is_it = |real: &Real| real.vip == vip && real.address == address;
        let found = state.reals.iter().find(|(_, real)| is_it(real));
        found.map(|(id, real)| (*id, *real))
    }

    fn set_real(&mut self, real: Real) -> anyhow::Result<RealId> {
        let mut state = self.state();
        let same = |known: &Real| known.vip == real.vip && known.address == real.address;
        if let Some((id, known)) = state.reals.iter_mut().find(|(_, known)| same(known)) {
            known.forwarding = real.forwarding;
            return Ok(*id);
        }
        if state.max_reals.is_some_and(|max| state.reals.len() >= max) {
            bail!("the table of reals is full");
        }
        let id = free_id(&state.reals);
        state.reals.insert(id, real);
        state.totals.insert(id, RealStats::default());
        // Another may have had the id.
        state.loads.remove(&id);
        state.terms.remove(&id);
        Ok(id)
    }

    fn remove_real(&mut self, id: RealId) -> anyhow::Result<()> {
        let mut state = self.state();
        let mut rings = state.rings.values().chain(state.plain_rings.values());
        let in_use = rings.any(|ring| ring.contains(&id));
        assert!(!in_use, "real {id} is still in a ring");
        if state.refuse_removals > 0 {
            state.refuse_removals -= 1;
            bail!("no memory");
        }
        state.totals.remove(&id);
        let now_s = state.now_s;
        for (held, owner) in state.cookie_ids.values_mut() {
            if owner.take_if(|owner| *owner == id).is_some() {
                held.freed_s = Some(now_s);
            }
        }
        state
            .reals
            .remove(&id)
            .map(|_| ())
            .ok_or_else(|| anyhow::anyhow!("no such real"))
    }

    fn set_down(&mut self, down: &HashSet<RealId>) -> anyhow::Result<()> {
        let mut state = self.state();
        state.down.clone_from(down);
        state.downs_set += 1;
        Ok(())
    }

    fn set_rings(&mut self, rings: &[VipRings]) -> anyhow::Result<()> {
        let mut state = self.state();
        if state.refuse_rings > 0 {
            state.refuse_rings -= 1;
            bail!("no memory for rings");
        }
        for VipRings { vip, ring, plain } in rings {
            assert!(state.vips.contains_key(vip));
            let mut ids = ring.iter().chain(plain.iter().flatten());
            assert!(ids.all(|id| state.reals.contains_key(id)));
            state.rings.insert(*vip, ring.clone());
            if let Some(plain) = plain {
                state.plain_rings.insert(*vip, plain.clone());
            }
            state.ring_swaps += 1;
        }
        Ok(())
    }

    fn set_sources(&mut self, vip: VipId, sources: &[SourceRing]) -> anyhow::Result<()> {
        self.state().sources.insert(vip, sources.to_vec());
        Ok(())
    }

    fn source_picks(&self, vip: VipId) -> anyhow::Result<Vec<u64>> {
        let state = self.state();
        Ok(vec![5; state.sources.get(&vip).map_or(0, Vec::len)])
    }

    fn set_picking(&mut self, vip: VipId, picking: Picking) -> anyhow::Result<()> {
        let mut state = self.state();
        assert!(state.vips.contains_key(&vip));
        state.picking.insert(vip, picking);
        Ok(())
    }

    fn set_turn(&mut self, vip: VipId, turn: u64) -> anyhow::Result<()> {
        self.state().turns.insert(vip, turn);
        Ok(())
    }

    fn load(&self, real: RealId) -> anyhow::Result<i64> {
        Ok(self.state().loads.get(&real).copied().unwrap_or(0))
    }

    fn set_load(&mut self, real: RealId, load: i64) -> anyhow::Result<()> {
        self.state().loads.insert(real, load);
        Ok(())
    }

    fn add_load(&mut self, real: RealId, change: i64) -> anyhow::Result<()> {
        *self.state().loads.entry(real).or_default() += change;
        Ok(())
    }

    fn load_terms(&self, real: RealId) -> anyhow::Result<LoadTerms> {
        Ok(self.state().terms.get(&real).copied().unwrap_or_default())
    }

    fn set_load_terms(&mut self, real: RealId, terms: LoadTerms) -> anyhow::Result<()> {
        self.state().terms.insert(real, terms);
        Ok(())
    }

    fn sampling(&self, real: RealId) -> anyhow::Result<Sampling> {
        Ok(self
            .state()
            .sampling
            .get(&real)
            .copied()
            .unwrap_or_default())
    }

    fn set_sampling(&mut self, real: RealId, sampling: Sampling) -> anyhow::Result<()> {
        self.state().sampling.insert(real, sampling);
        Ok(())
    }

    fn set_vip_sampling(&mut self, vip: VipId, sampling: Sampling) -> anyhow::Result<()> {
        self.state().vip_sampling.insert(vip, sampling);
        Ok(())
    }

    fn mend(&mut self) -> anyhow::Result<Repairs> {
        match &self.state().hold_fault {
            Some(fault) => bail!("{fault}"),
            None => Ok(Repairs::default()),
        }
    }

    fn is_attached(&self) -> anyhow::Result<bool> {
        Ok(!self.state().is_lost)
    }

    fn prepare_probes(&mut self) -> anyhow::Result<()> {
        if self.state().refuse_probes {
            bail!("clsact is refused");
        }
        self.state().probes_prepared += 1;
        Ok(())
    }

    fn rings(&self, vips: &[VipId]) -> anyhow::Result<Vec<Vec<RealId>>> {
        let state = self.state();
        let ring = |vip| state.rings.get(vip).cloned().unwrap_or_default();
        Ok(vips.iter().map(ring).collect())
    }

    fn age(&self) -> Duration {
        self.state().age
    }

    fn sweep_flows(&mut self, now_ns: u64, _idle: &FlowIdle, draining: &[Draining]) -> SweptFlows {
        let mut state = self.state();
        state.swept.push((now_ns, draining.to_vec()));
        SweptFlows {
            unheard: std::mem::take(&mut state.unheard),
            open: state.open.clone(),
        }
    }

    fn flow_totals(&self) -> FlowTotals {
        FlowTotals {
            slots: 1024,
            flows: 7,
            udp_idle: 3,
            ..FlowTotals::default()
        }
    }

    fn verdicts(&self) -> anyhow::Result<Vec<(Verdict, PacketsBytes)>> {
        let verdicts = [
            (Verdict::Established, 1000),
            (Verdict::NotVip, 7),
            (Verdict::NoReal, 0),
        ];
        let counter = |packets| PacketsBytes {
            packets,
            bytes: 100 * packets,
        };
        Ok(verdicts
            .map(|(verdict, packets)| (verdict, counter(packets)))
            .to_vec())
    }

    fn vip_totals(&self) -> anyhow::Result<Vec<(VipId, PacketsBytes)>> {
        let state = self.state();
        let counter = PacketsBytes {
            packets: state.vip_packets.unwrap_or(0),
            bytes: 4000,
        };
        let mut totals: BTreeMap<VipId, PacketsBytes> =
            state.vips.keys().map(|id| (*id, counter)).collect();
        for (id, of_real) in &state.totals {
            let vip = state.reals.get(id).map(|real| real.vip);
            let total = vip.and_then(|vip| totals.get_mut(&vip));
            if let (Some(total), None) = (total, state.vip_packets) {
                total.packets += of_real.packets;
            }
        }
        Ok(totals.into_iter().collect())
    }

    fn real_stats(&self, of: &[RealId]) -> anyhow::Result<Vec<(RealId, RealStats)>> {
        let panic = std::mem::take(&mut self.state().panic);
        assert!(!panic, "a test wants this panic");
        if std::mem::take(&mut self.state().unreadable) {
            bail!("totals cannot be read");
        }
        let mut state = self.state();
        state.reals_read += of.len();
        let totals = of.iter().map(|id| Some((*id, *state.totals.get(id)?)));
        Ok(totals.flatten().collect())
    }

    fn histogram(&self, id: RealId) -> anyhow::Result<Histogram> {
        Ok(self
            .state()
            .histograms
            .get(&id)
            .cloned()
            .unwrap_or_default())
    }
}
