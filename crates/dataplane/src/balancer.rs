// SPDX-License-Identifier: Apache-2.0
//! The balancer's data plane: its life and its tables.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use causeway_netio::{Mac, NextHop};
use libbpf_rs::MapHandle;
use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};

use self::slots::Slots;
use crate::abi::Prefix;
use crate::error::{DataPlaneError, Result};
use crate::map::{PerCpu, Table, io_error};
use crate::mapped::Mapped;
use crate::pins::{Blueprint, Kind};
use crate::plane::{self, Detached, Plane, Started, Startup};
use crate::rings::{NewRing, Rings};
use crate::skel::lb::LbSkelBuilder;
use crate::tunnel_sources::TunnelSources;
use crate::upkeep::Repairs;
use crate::xdp::Link;
use crate::xdp_mode::XdpMode;
use crate::{abi, flow_table};

mod carried;
mod conns;
mod cookies;
mod directory;
mod former;
mod limits;
mod loads;
mod next_hop;
mod reals;
mod slots;
mod sources;
mod stats;
mod sweep;
mod trace;
mod vips;

pub use conns::{ConnLayout, ConnTable, ConnTimeouts, Connection, Learned, Swept};
pub use cookies::{CookieId, CookieTotals};
pub use directory::{Directory, SlotRoute};
pub use limits::{TableLimits, TableMemory, possible_cpus, ring_bytes};
pub use loads::LoadTerms;
pub use reals::{Forwarding, Real, RealId};
pub use sources::SourceRing;
pub use stats::{LatencySums, RealStats};
pub use sweep::{FlowIdle, FlowSweep, FlowTotals, OpenFlows};
pub use trace::{Traced, destination_of, trace};
pub use vips::{FlowLimit, Inventory, Pick, Picking, Protocol, Vip, VipId, VipOptions, VipRings};

const BLUEPRINT: Blueprint = Blueprint {
    kind: Kind::Balancer,
    program: "causeway_lb",
    link: "link_lb",
    rules: &carried::RULES,
};

/// How to start a balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadBalancerOptions {
    /// The interface where clients' packets arrive and from which they leave.
    pub interface: String,
    /// Where maps and link are pinned: a directory of its own in a BPF file system.
    pub pin_dir: PathBuf,
    /// How the program is to run.
    pub xdp_mode: XdpMode,
    /// IPv4 flows that the table holds.
    pub flows_v4: u32,
    /// IPv6 flows that the table holds.
    pub flows_v6: u32,
    /// How many VIPs and reals there can be.
    pub limits: TableLimits,
    /// Whether latency is measured.
    pub measure: bool,
    /// Slots for connections of stateful VIPs.
    pub conns: ConnLayout,
    /// Own addresses where tunnels of first-tier balancers end.
    pub tunnel_ends: TunnelEnds,
    /// Networks whose tunnels are opened there: the first tier's.
    pub tunnel_sources: BTreeSet<Prefix>,
    /// What is for a VIP's address and for no VIP goes to the kernel, as if it were for
    /// another address.
    pub pass_unserved: bool,
}

/// Own addresses of a second-tier balancer, where what a first tier sends is taken out
/// of its tunnel: IP in IP, or GUE to the port that [`NextHop`] has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelEnds {
    /// Over IPv4.
    pub v4: Option<Ipv4Addr>,
    /// Over IPv6.
    pub v6: Option<Ipv6Addr>,
}

impl TunnelEnds {
    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.v4.is_none() && self.v6.is_none()
    }

    /// Whether tunnels end at this address.
    pub fn contains(self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => self.v4 == Some(v4),
            IpAddr::V6(v6) => self.v6 == Some(v6),
        }
    }
}

impl LoadBalancerOptions {
    /// The defaults: 1,048,576 IPv4 and 262,144 IPv6 flows, 1,024 VIPs, 4,096
    /// reals, measuring.
    pub fn new(interface: impl Into<String>, pin_dir: impl Into<PathBuf>) -> Self {
        Self {
            interface: interface.into(),
            pin_dir: pin_dir.into(),
            xdp_mode: XdpMode::Auto,
            flows_v4: 1 << 20,
            flows_v6: 1 << 18,
            limits: TableLimits::default(),
            measure: true,
            conns: ConnLayout::default(),
            tunnel_ends: TunnelEnds::default(),
            tunnel_sources: BTreeSet::new(),
            pass_unserved: false,
        }
    }

    fn check(&self) -> Result<()> {
        let ranges = [
            ("flow_table.ipv4", self.flows_v4, 1 << 28),
            ("flow_table.ipv6", self.flows_v6, 1 << 28),
            ("limits.vips", self.limits.vips, TableLimits::VIPS_MAX),
            ("limits.reals", self.limits.reals, TableLimits::REALS_MAX),
            (
                "limits.histograms",
                self.limits.histograms,
                TableLimits::REALS_MAX,
            ),
            (
                "limits.cookie_vips",
                self.limits.cookie_vips,
                TableLimits::VIPS_MAX,
            ),
            (
                "stateful.connections",
                self.conns.connections.max(1),
                1 << 24,
            ),
            ("stateful.tier_bits", u32::from(self.conns.tier_bits) + 1, 5),
        ];
        match ranges
            .into_iter()
            .find(|&(_, value, max)| value == 0 || value > max)
        {
            None => Ok(()),
            Some((what, value, max)) => Err(DataPlaneError::OutOfRange {
                what,
                value: value.into(),
                min: 1,
                max: max.into(),
            }),
        }
    }
}

/// A balancer that is loaded, pinned and attached.
///
/// The pinned maps are the truth: ids of VIPs and reals, rings and counters are
/// those of the balancer that was taken over, and stay when this value is dropped.
/// Methods take `&self` and may be called from any thread; changes are serialised.
#[derive(Debug)]
pub struct LoadBalancer {
    plane: Plane,
    vips: Table<abi::VipKey, abi::VipValue>,
    reals: Table<u32, abi::RealValue>,
    rings: Rings,
    turns: Table<u32, abi::Turns>,
    loads: Mapped<loads::Cell>,
    cookies: cookies::Cookies,
    sources: sources::Sources,
    tunnel_sources: TunnelSources,
    limits: Table<u32, abi::VipLimit>,
    ctl: Table<u32, abi::Ctl>,
    verdicts: PerCpu<abi::PacketsBytes>,
    vip_stats: PerCpu<abi::PacketsBytes>,
    real_stats: PerCpu<abi::RealStats>,
    real_hist: MapHandle,
    /// Buckets and flows, of IPv4 and of IPv6.
    flow_maps: [[MapHandle; 2]; 2],
    conns: MapHandle,
    conn_free_slots: MapHandle,
    conn_layout: ConnLayout,
    /// What the tables hold, so that readers need not scan them.
    registry: Mutex<Registry>,
}

/// The VIPs and reals in use, by id.
#[derive(Debug, Default)]
struct Registry {
    vips: Slots<Vip>,
    reals: Slots<Real>,
    /// The reals that no SYN stays on.
    down: HashSet<RealId>,
    /// The VIPs with cookies.
    cookies: BTreeMap<VipId, cookies::Block>,
    /// The VIPs without flows in the table.
    forgetful: BTreeSet<VipId>,
    /// The VIPs with reals for some clients.
    sources: BTreeMap<VipId, Vec<sources::Group>>,
    /// The VIPs whose servers are sent the former owners of slots.
    owners: BTreeMap<VipId, former::Owners>,
}

impl LoadBalancer {
    /// Starts a balancer, or takes over the one pinned in `options.pin_dir`
    /// without losing a packet or a flow. On an error whatever ran goes on.
    pub fn start(options: &LoadBalancerOptions) -> Result<(Self, Started)> {
        options.check()?;
        let mut startup = Startup::begin(
            BLUEPRINT,
            &options.interface,
            &options.pin_dir,
            options.xdp_mode,
        )?;
        let own_mac = startup.interface_and_pins().0.mac();
        let own_mac =
            own_mac.map_err(|_| DataPlaneError::NoInterface(options.interface.clone()))?;
        let failed = |cause| DataPlaneError::Load {
            program: BLUEPRINT.program,
            cause,
        };
        let mut object = MaybeUninit::uninit();
        let mut skel = LbSkelBuilder::default().open(&mut object).map_err(failed)?;
        if let Some(settings) = skel.maps.rodata_data.as_deref_mut() {
            settings.cfg_measure = options.measure;
            settings.cfg_conn_partitions = options.conns.partitions();
            settings.cfg_tier_bits = options.conns.tier_bits.into();
            settings.cfg_tier = options.conns.tier.into();
            settings.cfg_tunnel_end = !options.tunnel_ends.is_empty();
            settings.cfg_source_rings = options.limits.vips;
            settings.cfg_plain_rings = options.limits.vips + abi::SOURCE_GROUPS;
            settings.cfg_former_rings = 2 * (options.limits.vips + abi::SOURCE_GROUPS);
        }
        flow_table::set_size(&mut skel, options.flows_v4, options.flows_v6).map_err(failed)?;
        let sizes = limits::sizes(options, possible_cpus()?);
        startup.prepare(skel.open_object_mut(), &sizes)?;
        let skel = skel.load().map_err(failed)?;
        startup.furnish(skel.object())?;
        let ctl = MapHandle::try_from(&skel.maps.ctl);
        let ctl = ctl.map_err(|e| DataPlaneError::map("open", "ctl", io_error(&e)))?;
        set_own_mac(&Table::new(ctl)?, own_mac)?;
        let (plane, started) = startup.attach(skel.object())?;
        let balancer = Self::new(plane, options.conns)?;
        balancer.tunnel_sources.set(&options.tunnel_sources)?;
        balancer.store(options)?;
        Ok((balancer, started))
    }

    /// Whether the balancer pinned in `pin_dir` is on an interface.
    pub fn is_running(pin_dir: &Path) -> Result<bool> {
        let link = Link::open(&pin_dir.join(BLUEPRINT.link))?;
        let info = link.map(|link| link.info()).transpose()?;
        Ok(info.is_some_and(|info| info.ifindex != 0))
    }

    /// Takes the balancer pinned in `pin_dir` down: program, maps and pins. Nothing
    /// there is no error.
    pub fn detach(pin_dir: &Path) -> Result<Detached> {
        plane::detach(pin_dir, BLUEPRINT.link)
    }

    fn new(mut plane: Plane, conn_layout: ConnLayout) -> Result<Self> {
        let balancer = Self {
            vips: Table::new(plane.take_map("vips")?)?,
            reals: Table::new(plane.take_map("reals")?)?,
            rings: Rings::new(plane.take_map("rings")?)?,
            turns: Table::new(plane.take_map("turns")?)?,
            loads: Mapped::new(&plane.take_map("real_loads")?)?,
            cookies: cookies::Cookies::new(&mut plane)?,
            sources: sources::Sources::new(&mut plane)?,
            tunnel_sources: TunnelSources::new(&mut plane)?,
            limits: Table::new(plane.take_map("vip_limits")?)?,
            ctl: Table::new(plane.take_map("ctl")?)?,
            verdicts: PerCpu::new(plane.take_map("verdicts")?)?,
            vip_stats: PerCpu::new(plane.take_map("vip_stats")?)?,
            real_stats: PerCpu::new(plane.take_map("real_stats")?)?,
            real_hist: plane.take_map("real_hist")?,
            flow_maps: [
                [plane.take_map("buckets4")?, plane.take_map("flows4")?],
                [plane.take_map("buckets6")?, plane.take_map("flows6")?],
            ],
            conns: plane.take_map("conn_slots")?,
            conn_free_slots: plane.take_map("conn_free_slots")?,
            conn_layout,
            plane,
            registry: Mutex::default(),
        };
        let (vips, forgetful) = balancer.read_vips()?;
        let (reals, down) = balancer.read_reals()?;
        let mut registry = Registry {
            cookies: balancer.read_cookies(&vips)?,
            forgetful,
            sources: balancer.read_sources()?,
            owners: balancer.read_owners()?,
            vips,
            reals,
            down,
        };
        balancer.finish_removals(&mut registry)?;
        balancer.choose_table_seed()?;
        // A predecessor of another layout may not have known it.
        balancer.set_vip_first(&registry)?;
        *balancer.registry() = registry;
        Ok(balancer)
    }

    /// Ends what a predecessor began: a VIP is removed in several steps, and a kill
    /// may have come between them.
    fn finish_removals(&self, registry: &mut Registry) -> Result<()> {
        let mut gone = BTreeSet::new();
        for (id, real) in registry.reals.iter().collect::<Vec<_>>() {
            if registry.vip(real.vip).is_err() {
                gone.insert(real.vip);
                self.retire(registry, id)?;
            }
        }
        for vip in gone {
            self.rings.clear(vip)?;
            self.rings.clear(self.plain_ring(vip))?;
            self.rings.clear(self.former_ring(vip))?;
        }
        let sources: Vec<VipId> = registry.sources.keys().copied().collect();
        for id in sources
            .into_iter()
            .filter(|id| registry.vip(*id).is_err())
            .collect::<Vec<_>>()
        {
            self.forget_sources(registry, id)?;
        }
        self.remove_bare_addresses(registry)
    }

    /// Flows keep their slots as long as the seed does: only a new table gets one.
    fn choose_table_seed(&self) -> Result<()> {
        let mut ctl = self.ctl.get(&0)?.unwrap_or_default();
        if ctl.table_seed == 0 {
            ctl.table_seed = flow_table::new_seed();
            self.ctl.put(&0, &ctl)?;
        }
        Ok(())
    }

    /// Sets the networks whose last 16 bits carry the tokens of connections, with SYNs
    /// that are sent in bare IP.
    pub fn set_token_sources(&self, v4: Option<Ipv4Addr>, v6: Option<Ipv6Addr>) -> Result<()> {
        let _changing = self.registry();
        let mut ctl = self.ctl.get(&0)?.unwrap_or_default();
        ctl.token4_be = v4.map_or([0; 4], |v4| v4.octets());
        ctl.token6_be = v6.map_or([0; 16], |v6| v6.octets());
        self.ctl.put(&0, &ctl)
    }

    /// Writes the options into the program's tables.
    fn store(&self, options: &LoadBalancerOptions) -> Result<()> {
        let _changing = self.registry();
        let ends = options.tunnel_ends;
        let mut ctl = self.ctl.get(&0)?.unwrap_or_default();
        ctl.pass_unserved = options.pass_unserved.into();
        ctl.tunnel4_be = ends.v4.map_or([0; 4], |v4| v4.octets());
        ctl.tunnel6_be = ends.v6.map_or([0; 16], |v6| v6.octets());
        self.ctl.put(&0, &ctl)
    }

    /// The slots of stateful VIPs' connections; `None` without any. The
    /// caller hands slots to the CPUs ([`ConnTable::top_up`]); there must be one such caller
    /// only.
    pub fn connections(&self) -> Result<Option<ConnTable>> {
        if self.conn_layout.partitions() == 0 {
            return Ok(None);
        }
        ConnTable::new(&self.conns, &self.conn_free_slots, self.conn_layout).map(Some)
    }

    /// What ages the flow table. There must be one only, and it wants to be called often
    /// ([`FlowSweep::step`]).
    pub fn flow_sweep(&self) -> Result<FlowSweep> {
        let [v4, v6] = self.flow_maps.each_ref().map(|maps| maps.each_ref());
        FlowSweep::new(v4, v6)
    }

    /// Sends a connection's packets to another real from now on: to a scrubber, say.
    /// The old real's end of the connection is lost by that. `false` if its slot is
    /// another connection's by now.
    pub fn reroute(
        &self,
        table: &ConnTable,
        connection: &Connection,
        real: RealId,
    ) -> Result<bool> {
        let registry = self.registry();
        registry.real(real)?;
        let value = self.reals.get(&real)?.unwrap_or_default();
        Ok(table.reroute(connection, real, value.r#gen))
    }

    /// Id of the link that holds the program: the same as long as the balancer
    /// stays on its interface.
    pub fn link_id(&self) -> Result<u32> {
        self.plane.link_id()
    }

    /// Looks whether the program is still on its interface and everything still pinned, and
    /// puts right what can be: an interface that is there again gets the program, and what is
    /// not pinned any more is pinned again. To be called now and then.
    ///
    /// # Errors
    /// What cannot be put right; the rest goes on.
    pub fn mend(&self) -> Result<Repairs> {
        self.plane.mend()
    }

    /// Whether the program is on an interface of this network namespace, also on one that has
    /// another name now.
    pub fn is_attached(&self) -> Result<bool> {
        self.plane.is_attached()
    }

    /// Sets where encapsulated packets go. Until then they are dropped and counted
    /// as `no_next_hop`.
    pub fn set_next_hop(&self, next_hop: &NextHop) -> Result<()> {
        let _changing = self.registry();
        let mut ctl = self.ctl.get(&0)?.unwrap_or_default();
        next_hop::store_next_hop(next_hop, &mut ctl);
        self.ctl.put(&0, &ctl)
    }

    /// The MAC addresses that encapsulated packets go to, by IPv4 and by IPv6; a predecessor's
    /// until a next hop is set, zeros without one.
    pub fn gateways(&self) -> Result<[Mac; 2]> {
        let ctl = self.ctl.get(&0)?.unwrap_or_default();
        Ok([ctl.gateway_mac, ctl.gateway6_mac])
    }

    /// The outer sources in use; a predecessor's until a next hop is set.
    pub fn outer_sources(&self) -> Result<Vec<IpAddr>> {
        let ctl = self.ctl.get(&0)?.unwrap_or_default();
        Ok(next_hop::sources(&ctl))
    }

    /// The key of the hash that picks a slot of a ring; zero until it is set.
    pub fn hash_key(&self) -> Result<[u64; 2]> {
        Ok(self.ctl.get(&0)?.unwrap_or_default().hash_key)
    }

    /// Sets the key of the hash that picks a slot of a ring. Balancers that share
    /// VIPs share it; it should be secret, so that no client can aim at a server.
    pub fn set_hash_key(&self, key: [u64; 2]) -> Result<()> {
        let _changing = self.registry();
        let mut ctl = self.ctl.get(&0)?.unwrap_or_default();
        ctl.hash_key = key;
        self.ctl.put(&0, &ctl)
    }

    /// The maps that health probes are sent by, see [`crate::probe`].
    pub(crate) fn probe_maps(&self) -> (&MapHandle, &MapHandle) {
        (self.reals.map(), self.ctl.map())
    }

    /// The registry is plain data that is whole after every statement, so a panic
    /// elsewhere does not spoil it.
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Before a program is at work: frames to a real's MAC address leave without a next hop, and tables of
/// a former layout may have had no place for this.
fn set_own_mac(ctl: &Table<u32, abi::Ctl>, own_mac: Mac) -> Result<()> {
    let mut of_ctl = ctl.get(&0)?.unwrap_or_default();
    if of_ctl.own_mac == own_mac {
        return Ok(());
    }
    of_ctl.own_mac = own_mac;
    ctl.put(&0, &of_ctl)
}
