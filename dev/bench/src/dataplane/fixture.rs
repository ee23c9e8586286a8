// SPDX-License-Identifier: Apache-2.0
//! Balancers that a benchmark runs, with one VIP and a hundred reals.

use std::io;
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, AsRawFd as _};

use causeway_core::cookie::quic::CidRoute;
use causeway_core::cookie::{CookieLayout, CookieMode, KeyEpoch, Keys};
use causeway_dataplane::abi::{
    COOKIE_QUIC, CookieFormat, CookieKeys, CookieSlot, Ctl, PacketsBytes, Plain, QuicLbConfig,
    REAL_PRESENT, RealStats, RealValue, SamplingValue, VIP_FIRST_TCP, VIP_FIRST_UDP, VIP_FORGET,
    VIP_STATEFUL, Verdict, VipKey, VipValue, addr_bytes,
};
use causeway_dataplane::skel::lb::{LbSkel, LbSkelBuilder, OpenLbSkel};
use causeway_dataplane::{ConnLayout, ConnTable, flow_table};
use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{Map, MapCore, MapFlags, MapHandle, MapType, OpenObject};

use super::instrument::{Instrument, cid_config, client_number, cookie_id, cookie_key};
use super::{BenchError, Place, Shot};

/// VIP of `bpf/reference.bpf.c`.
pub(crate) const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
pub(crate) const PORT: u16 = 443;
pub(super) const REALS: u32 = 100;
const RING: u32 = 65_537;
/// `SOURCE_GROUPS` of bpf/shared/abi.h.
const SOURCE_GROUPS: u32 = 256;
/// IPv4 flows of a flow table that is used: the default.
const FLOWS: u32 = 1 << 20;
/// Of one that is not.
const FEW_FLOWS: u32 = 1024;

pub(crate) fn failed(doing: &'static str) -> impl Fn(libbpf_rs::Error) -> BenchError {
    move |cause| BenchError::Bpf { doing, cause }
}

/// How much a balancer has to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// IPv4 flows that its table is made for.
    pub(super) flows: u32,
    /// VIPs, each for TCP and UDP, address after address.
    pub(super) vips: u32,
    /// Reals, which all VIPs share.
    pub(super) reals: u32,
}

impl Default for Size {
    fn default() -> Self {
        Self {
            flows: FLOWS,
            vips: 1,
            reals: REALS,
        }
    }
}

impl Size {
    fn of_table(flows: u32) -> Self {
        Self {
            flows,
            ..Self::default()
        }
    }

    /// The VIP of client number `index`.
    pub(super) fn vip_of(self, index: u32) -> u32 {
        index % self.vips
    }

    /// Makes room where the defaults have too little.
    fn set(self, open: &mut OpenLbSkel<'_>) -> libbpf_rs::Result<()> {
        flow_table::set_size(open, self.flows, FEW_FLOWS)?;
        let (vips, reals) = (self.vips, self.reals);
        let maps = &mut open.maps;
        if vips > maps.vip_stats.max_entries() {
            maps.vips.set_max_entries(3 * vips)?;
            for by_vip in [
                &mut maps.vip_stats,
                &mut maps.vip_limits,
                &mut maps.turns,
                &mut maps.cookie_counts,
            ] {
                by_vip.set_max_entries(vips)?;
            }
            maps.rings.set_max_entries(2 * (vips + SOURCE_GROUPS))?;
            if let Some(rodata) = maps.rodata_data.as_deref_mut() {
                rodata.cfg_source_rings = vips;
                rodata.cfg_plain_rings = vips + SOURCE_GROUPS;
            }
        }
        if reals > maps.reals.max_entries() {
            for by_real in [
                &mut maps.reals,
                &mut maps.real_stats,
                &mut maps.real_hist,
                &mut maps.real_loads,
            ] {
                by_real.set_max_entries(reals)?;
            }
        }
        Ok(())
    }
}

pub(super) fn vip_address(vip: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(VIP) + vip)
}

/// A balancer of some size.
pub(super) struct Balancer<'o> {
    skel: LbSkel<'o>,
    size: Size,
}

impl<'o> Balancer<'o> {
    /// With a flow table of the default size for IPv4, measuring.
    pub(super) fn load(storage: &'o mut MaybeUninit<OpenObject>) -> Result<Self, BenchError> {
        Self::sized(storage, Size::default())
    }

    /// With a flow table for this many IPv4 flows.
    pub(super) fn with_table(
        storage: &'o mut MaybeUninit<OpenObject>,
        flows: u32,
    ) -> Result<Self, BenchError> {
        Self::sized(storage, Size::of_table(flows))
    }

    /// Of this size, measuring.
    pub(super) fn sized(
        storage: &'o mut MaybeUninit<OpenObject>,
        size: Size,
    ) -> Result<Self, BenchError> {
        Self::start(storage, size, |_| Ok(()))
    }

    /// With a place for every flow, and a small flow table: measuring.
    pub(super) fn stateful(
        storage: &'o mut MaybeUninit<OpenObject>,
        flows: u32,
    ) -> Result<Self, BenchError> {
        let layout = slots_for(flows);
        let cpus = libbpf_rs::num_possible_cpus().map_err(failed("counting the CPUs"))? as u32;
        let balancer = Self::start(storage, Size::of_table(FEW_FLOWS), |open| {
            if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
                rodata.cfg_conn_partitions = layout.partitions();
            }
            let places = layout.partitions() * layout.partition_size();
            open.maps.conn_slots.set_max_entries(places)?;
            open.maps
                .conn_free_slots
                .set_max_entries(layout.partitions() * cpus)
        })?;
        balancer
            .change_vips(|vip| vip.flags |= VIP_STATEFUL)
            .map_err(failed("configuring the balancer"))?;
        Ok(balancer)
    }

    /// The same balancer, its tables included, that does not measure.
    pub(super) fn unmeasured(
        storage: &'o mut MaybeUninit<OpenObject>,
        other: &Balancer<'_>,
    ) -> Result<Self, BenchError> {
        let mut open = LbSkelBuilder::default()
            .open(storage)
            .map_err(failed("opening lb.bpf.o"))?;
        let theirs = other.skel.maps.rodata_data;
        if let (Some(ours), Some(theirs)) = (open.maps.rodata_data.as_deref_mut(), theirs) {
            *ours = *theirs;
            ours.cfg_measure = false;
        }
        for mut map in open.open_object_mut().maps_mut() {
            let object = other.skel.object();
            let same = object.maps().find(|theirs| theirs.name() == map.name());
            // .rodata and .bss are the program's own; their names have a dot.
            if let Some(same) = same.filter(|same| !same.name().to_string_lossy().contains('.')) {
                map.reuse_fd(same.as_fd())
                    .map_err(failed("sharing a map"))?;
            }
        }
        let skel = open.load().map_err(failed("loading lb.bpf.o"))?;
        let size = other.size;
        Ok(Self { skel, size })
    }

    /// With cookies of the default format; reals have the flags `forwarding` besides.
    /// Without measurement nothing is remembered.
    pub(super) fn with_cookies(
        storage: &'o mut MaybeUninit<OpenObject>,
        measure: bool,
        forwarding: u8,
    ) -> Result<Self, BenchError> {
        let flows = if measure { FLOWS } else { FEW_FLOWS };
        Self::with_cookies_sized(storage, measure, forwarding, Size::of_table(flows))
    }

    /// The same of some size.
    pub(super) fn with_cookies_sized(
        storage: &'o mut MaybeUninit<OpenObject>,
        measure: bool,
        forwarding: u8,
        size: Size,
    ) -> Result<Self, BenchError> {
        let balancer = Self::start(storage, size, |open| {
            if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
                rodata.cfg_measure = measure;
            }
            Ok(())
        })?;
        balancer
            .give_cookies()
            .and_then(|()| balancer.change_reals(|real| real.flags |= forwarding))
            .map_err(failed("configuring the balancer"))?;
        Ok(balancer)
    }

    /// The same, which measures 1 in 2^`k` of the connections that open from now on.
    pub(super) fn measuring(self, k: u8) -> Result<Self, BenchError> {
        let sampling = SamplingValue {
            opening: k,
            least: k,
            most: k,
        };
        self.change_reals(|real| real.sampling = sampling)
            .and_then(|()| self.change_vips(|vip| vip.sampling = sampling))
            .map_err(failed("configuring the balancer"))?;
        Ok(self)
    }

    /// With QUIC connection ids of the default kind.
    pub(super) fn with_cids(storage: &'o mut MaybeUninit<OpenObject>) -> Result<Self, BenchError> {
        let balancer = Self::load(storage)?;
        balancer
            .give_cids()
            .map_err(failed("configuring the balancer"))?;
        Ok(balancer)
    }

    fn start(
        storage: &'o mut MaybeUninit<OpenObject>,
        size: Size,
        set: impl FnOnce(&mut OpenLbSkel<'_>) -> libbpf_rs::Result<()>,
    ) -> Result<Self, BenchError> {
        let mut open = LbSkelBuilder::default()
            .open(storage)
            .map_err(failed("opening lb.bpf.o"))?;
        size.set(&mut open)
            .and_then(|()| set(&mut open))
            .map_err(failed("sizing the tables"))?;
        let skel = open.load().map_err(failed("loading lb.bpf.o"))?;
        let balancer = Self { skel, size };
        balancer
            .configure(&new_ring(size.reals)?)
            .map_err(failed("configuring the balancer"))?;
        Ok(balancer)
    }

    /// Opens every client's connection; the token that each server was sent.
    pub(super) fn open_all(
        &self,
        instrument: &mut Instrument<'_>,
        flows: u32,
    ) -> Result<Vec<u16>, BenchError> {
        let layout = slots_for(flows);
        let mut table = ConnTable::new(
            &MapHandle::try_from(&self.skel.maps.conn_slots).map_err(failed("opening a map"))?,
            &MapHandle::try_from(&self.skel.maps.conn_free_slots)
                .map_err(failed("opening a map"))?,
            layout,
        )
        .map_err(|cause| BenchError::ConnSlots { cause })?;
        table.top_up();
        instrument.select(self.program())?;
        let mut place = Place::default();
        let mut left = flows;
        while left > 0 {
            let count = left.min(OPEN_AT_ONCE);
            instrument.batch(Shot::Open, flows, &mut place, count)?;
            table.top_up();
            left -= count;
        }
        let mut tokens = vec![0; flows as usize];
        let mut opened = 0;
        for connection in table.connections() {
            let number = client_number(connection.client).map_or(usize::MAX, |n| n as usize);
            if let Some(token) = tokens.get_mut(number) {
                *token = (connection.slot % layout.partition_size()) as u16;
                opened += 1;
            }
        }
        if opened < flows {
            return Err(BenchError::WrongVerdict {
                case: "opening connections in places",
                flows,
                counted: opened.into(),
                shots: flows.into(),
                verdict: "opened",
            });
        }
        Ok(tokens)
    }

    fn give_cookies(&self) -> libbpf_rs::Result<()> {
        let (maps, zero) = (&self.skel.maps, 0u32.to_ne_bytes());
        self.give_ids(VIP_FIRST_TCP)?;
        let keys = Keys::new(KeyEpoch::Zero, cookie_key(), None);
        let keys = CookieKeys::from(Some(&keys));
        maps.cookie_keys
            .update(&zero, keys.as_bytes(), MapFlags::ANY)?;
        let format = CookieLayout::default_of(CookieMode::Timestamp);
        self.change_vips(|vip| vip.cookie = CookieFormat::from(&format))
    }

    fn give_cids(&self) -> libbpf_rs::Result<()> {
        self.give_ids(VIP_FIRST_UDP)?;
        let route = CidRoute::new(&cid_config()).map_err(|e| io::Error::other(e.to_string()))?;
        let config = QuicLbConfig::from(&route);
        let configs = &self.skel.maps.quic_configs;
        configs.update(&0u32.to_ne_bytes(), config.as_bytes(), MapFlags::ANY)?;
        self.change_vips(|vip| vip.cookie.mode = COOKIE_QUIC)
    }

    /// Has packets of these protocols look their VIP up first.
    fn set_vip_first(&self, vip_first: u8) -> libbpf_rs::Result<()> {
        let (ctl, zero) = (&self.skel.maps.ctl, 0u32.to_ne_bytes());
        let old = ctl.lookup(&zero, MapFlags::ANY)?.unwrap_or_default();
        let value = Ctl {
            vip_first,
            ..Ctl::from_bytes(&old).unwrap_or_default()
        };
        ctl.update(&zero, value.as_bytes(), MapFlags::ANY)
    }

    /// Each real's id; packets of these protocols are asked for one.
    fn give_ids(&self, vip_first: u8) -> libbpf_rs::Result<()> {
        self.set_vip_first(vip_first)?;
        let maps = &self.skel.maps;
        for real in 0..REALS {
            let slot = CookieSlot {
                real: real + 1,
                ..CookieSlot::default()
            };
            let id = u32::from(cookie_id(real));
            maps.cookie_slots
                .update(&id.to_ne_bytes(), slot.as_bytes(), MapFlags::ANY)?;
        }
        Ok(())
    }

    fn change_reals(&self, change: impl Fn(&mut RealValue)) -> libbpf_rs::Result<()> {
        let reals = &self.skel.maps.reals;
        for id in 0..REALS {
            let value = reals.lookup(&id.to_ne_bytes(), MapFlags::ANY)?;
            let mut real = RealValue::from_bytes(&value.unwrap_or_default()).unwrap_or_default();
            change(&mut real);
            reals.update(&id.to_ne_bytes(), real.as_bytes(), MapFlags::ANY)?;
        }
        Ok(())
    }

    fn change_vips(&self, change: impl Fn(&mut VipValue)) -> libbpf_rs::Result<()> {
        let vips = &self.skel.maps.vips;
        // A change moves an entry within the map, where a walk would meet it again.
        let keys: Vec<Vec<u8>> = vips.keys().collect();
        for key in keys {
            let value = vips.lookup(&key, MapFlags::ANY)?.unwrap_or_default();
            let mut vip = VipValue::from_bytes(&value).unwrap_or_default();
            change(&mut vip);
            vips.update(&key, vip.as_bytes(), MapFlags::ANY)?;
        }
        Ok(())
    }

    fn configure(&self, ring: &MapHandle) -> libbpf_rs::Result<()> {
        let maps = &self.skel.maps;
        let ctl = Ctl {
            gateway_mac: [2, 0, 0, 0, 0, 1],
            own_mac: [2, 0, 0, 0, 0, 2],
            outer4_be: [10, 9, 0, 1],
            hash_key: [1, 2],
            table_seed: 3,
            ..Ctl::default()
        };
        maps.ctl
            .update(&0u32.to_ne_bytes(), ctl.as_bytes(), MapFlags::ANY)?;
        for id in 0..self.size.reals {
            let addr = addr_bytes(Ipv4Addr::from(0x0a01_0000 + id).into());
            let real = RealValue {
                flags: REAL_PRESENT,
                family: 4,
                addr,
                ..RealValue::default()
            };
            maps.reals
                .update(&id.to_ne_bytes(), real.as_bytes(), MapFlags::ANY)?;
        }
        let ring = ring.as_fd().as_raw_fd();
        // At once: each change of such a map waits for all CPUs.
        let vips = self.size.vips;
        let keys: Vec<u8> = (0..vips).flat_map(u32::to_ne_bytes).collect();
        let rings = ring.to_ne_bytes().repeat(vips as usize);
        maps.rings
            .update_batch(&keys, &rings, vips, MapFlags::ANY, MapFlags::ANY)?;
        self.write_vips(VipValue {
            ring_size: RING,
            ..VipValue::default()
        })
    }

    /// Sets how the VIPs pick, and their flags.
    pub(super) fn set_vips(&self, pick: u8, flags: u32) -> Result<(), BenchError> {
        let vip = VipValue {
            ring_size: RING,
            flags,
            pick,
            ..VipValue::default()
        };
        if flags & VIP_FORGET != 0 {
            self.set_vip_first(VIP_FIRST_TCP | VIP_FIRST_UDP)
                .map_err(failed("setting the VIPs"))?;
        }
        self.write_vips(vip).map_err(failed("setting the VIPs"))
    }

    fn write_vips(&self, vip: VipValue) -> libbpf_rs::Result<()> {
        for id in 0..self.size.vips {
            let vip = VipValue { id, ..vip };
            for proto in [6, 17] {
                let key = VipKey {
                    addr: addr_bytes(vip_address(id).into()),
                    port_be: PORT.to_be_bytes(),
                    proto,
                    kind: 0,
                };
                let vips = &self.skel.maps.vips;
                vips.update(key.as_bytes(), vip.as_bytes(), MapFlags::ANY)?;
            }
        }
        Ok(())
    }

    pub(super) fn program(&self) -> i32 {
        self.skel.progs.causeway_lb.as_fd().as_raw_fd()
    }

    /// Half samples of latency that it has taken, of all reals.
    pub(super) fn latencies(&self) -> Result<u64, BenchError> {
        let stats = &self.skel.maps.real_stats;
        let mut sum = RealStats::default();
        for id in 0..self.size.reals {
            let cpus = stats
                .lookup_percpu(&id.to_ne_bytes(), MapFlags::ANY)
                .map_err(failed("reading the reals' counters"))?;
            let cpus = cpus.iter().flatten();
            cpus.filter_map(|cpu| RealStats::from_bytes(cpu))
                .for_each(|cpu| sum.add(&cpu));
        }
        Ok(sum.latencies().weight_halves)
    }

    /// One of its maps.
    pub(super) fn map(&self, name: &'static str) -> Result<Map<'_>, BenchError> {
        let object = self.skel.object();
        let found = object.maps().find(|map| map.name() == name);
        found.ok_or(BenchError::NoMap(name))
    }

    pub(super) fn ctl(&self) -> Result<Ctl, BenchError> {
        let value = self
            .skel
            .maps
            .ctl
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let value = value.map_err(failed("reading the settings"))?;
        Ok(Ctl::from_bytes(&value.unwrap_or_default()).unwrap_or_default())
    }
}

/// What counts its packets by verdict.
pub(super) trait Counter {
    /// Packets that had this verdict, on all CPUs.
    fn count(&self, verdict: Verdict) -> Result<u64, BenchError>;
}

impl Counter for Balancer<'_> {
    fn count(&self, verdict: Verdict) -> Result<u64, BenchError> {
        packets(&self.skel.maps.verdicts, verdict)
    }
}

/// Sum over all CPUs of an entry of `verdicts`.
pub(super) fn packets(verdicts: &impl MapCore, verdict: Verdict) -> Result<u64, BenchError> {
    let cpus = verdicts
        .lookup_percpu(&(verdict as u32).to_ne_bytes(), MapFlags::ANY)
        .map_err(failed("reading the verdicts"))?;
    let counters = cpus
        .iter()
        .flatten()
        .filter_map(|cpu| PacketsBytes::from_bytes(cpu));
    Ok(counters.map(|counter| counter.packets).sum())
}

/// SYNs between two fillings of the CPUs' rings of free slots: few, as an unused ring
/// holds few.
const OPEN_AT_ONCE: u32 = 16;

/// Half as many places again as flows: a few partitions have more flows than others.
fn slots_for(flows: u32) -> ConnLayout {
    ConnLayout {
        connections: flows + flows / 2,
        ..ConnLayout::default()
    }
}

/// All reals in turn.
fn new_ring(reals: u32) -> Result<MapHandle, BenchError> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        map_flags: libbpf_sys::BPF_F_INNER_MAP | libbpf_sys::BPF_F_MMAPABLE,
        ..Default::default()
    };
    let ring = MapHandle::create(MapType::Array, Some("ring"), 4, 4, RING, &options)
        .map_err(failed("making a ring"))?;
    let keys: Vec<u8> = (0..RING).flat_map(u32::to_ne_bytes).collect();
    let values: Vec<u8> = (0..RING)
        .flat_map(|slot| (slot % reals).to_ne_bytes())
        .collect();
    ring.update_batch(&keys, &values, RING, MapFlags::ANY, MapFlags::ANY)
        .map_err(failed("filling a ring"))?;
    Ok(ring)
}
