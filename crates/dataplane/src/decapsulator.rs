// SPDX-License-Identifier: Apache-2.0
//! The server's side: an XDP program that removes the outer headers of packets to the
//! server's own tunnel addresses, and, where VIPs have cookies, the programs that
//! write and restore them.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use causeway_core::cookie::{CookieLayout, Keys};
use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};

use crate::abi::{self, CookieFormat, PacketsBytes, Prefix, ServerCookie, ServerVerdict};
use crate::balancer::Vip;
use crate::carry::{How, Rule, Rules};
use crate::conn_tokens::ConnTokens;
use crate::cookie_hooks::{self, CookieFilters, CookieHooks};
use crate::error::{DataPlaneError, Result};
use crate::flow_table;
use crate::map::{PerCpu, Table};
use crate::pins::{Blueprint, Kind};
use crate::plane::{self, Detached, Plane, Started, Startup};
use crate::skel::server::ServerSkelBuilder;
use crate::tunnel_sources::TunnelSources;
use crate::upkeep::Repairs;
use crate::xdp_mode::XdpMode;

const BLUEPRINT: Blueprint = Blueprint {
    kind: Kind::Decapsulator,
    program: "causeway_server",
    link: "link_server",
    rules: &RULES,
};

/// What servers keep of connections. Networks, keys, VIPs and addresses are the configuration's, and
/// stand in their maps until that is applied.
const RULES: Rules = Rules {
    maps: &[
        // What sockets keep is to be reached from them alone.
        Rule {
            stake: "the clocks of open connections with cookies are learnt anew, from the next segment of each",
            ..Rule::of("cookie_sockets", How::Kept)
        },
        Rule {
            with: Some("timestamp_clocks"),
            ..Rule::of("timestamp_cache", How::Kept)
        },
        Rule {
            with: Some("timestamp_cache"),
            ..Rule::of("timestamp_clocks", How::Kept)
        },
        Rule::of("token_events", How::Anew),
        Rule {
            needs: &["saddr_be", "daddr_be", "sport_be", "dport_be", "proto"],
            stake: "stateful connections that are opening now get no token: they go by the balancer's flow table",
            ..Rule::of("conn_tokens", How::Entries)
        },
        Rule {
            needs: &["saddr_be", "daddr_be", "sport_be", "dport_be", "proto"],
            stake: "balancers are not told of the ends of open stateful connections: their slots are free after `idle`",
            ..Rule::of("held_tokens", How::Entries)
        },
        Rule::of("mirror_ctl", How::Anew),
        Rule::of("mirror_pending", How::Anew),
        Rule::of("mirror_counts", How::Anew),
        Rule::of("mirror_share", How::Anew),
        Rule::of("mirror_ring", How::Anew),
    ],
    whole: &[],
    apart: |_| Ok(()),
};

const OWN_ADDRESSES: &str = "the number of VIPs' addresses and addresses of this server";
const COOKIE_VIPS: &str = "the number of VIPs with cookies";

/// How to start a decapsulator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecapsulatorOptions {
    /// The interface where tunnel packets arrive.
    pub interface: String,
    /// Where maps and link are pinned: a directory of its own in a BPF file system.
    pub pin_dir: PathBuf,
    /// How the program is to run.
    pub xdp_mode: XdpMode,
    /// UDP port where GUE arrives.
    pub gue_port: u16,
    /// Where cookies are written and restored; `None`: nowhere.
    pub cookies: Option<CookieHooks>,
    /// Networks of 16 bits that stateful balancers send tokens from, in bare IP tunnels.
    pub token_sources: (Option<Ipv4Addr>, Option<Ipv6Addr>),
    /// Longest IP packet that the tunnels carry, with cookies alone: SYN-ACKs ask
    /// clients for segments that fit. `None`: they are left as they are.
    pub inner_mtu: Option<u16>,
}

/// A decapsulator that is loaded, pinned and attached. It stays when this value is
/// dropped.
#[derive(Debug)]
pub struct Decapsulator {
    plane: Plane,
    own_addresses: Table<abi::Address, u32>,
    sources: TunnelSources,
    verdicts: PerCpu<PacketsBytes>,
    cookie_keys: Table<u32, abi::CookieKeys>,
    cookie_vips: Table<abi::VipKey, abi::ServerVip>,
    cookie_events: PerCpu<u64>,
    tokens: ConnTokens,
    filters: Option<CookieFilters>,
}

impl Decapsulator {
    /// Starts a decapsulator, or takes over the one pinned in `options.pin_dir`. A
    /// new one has no addresses and lets everything pass; with addresses it opens tunnels
    /// once it knows whose.
    pub fn start(options: &DecapsulatorOptions) -> Result<(Self, Started)> {
        let mut startup = Startup::begin(
            BLUEPRINT,
            &options.interface,
            &options.pin_dir,
            options.xdp_mode,
        )?;
        let failed = |cause| DataPlaneError::Load {
            program: BLUEPRINT.program,
            cause,
        };
        let mut object = MaybeUninit::uninit();
        let mut skel = ServerSkelBuilder::default()
            .open(&mut object)
            .map_err(failed)?;
        if let Some(settings) = skel.maps.rodata_data.as_deref_mut() {
            settings.cfg_gue_port = options.gue_port;
            settings.cfg_netns_cookie = cookie_hooks::netns_cookie()?;
            let (v4, v6) = options.token_sources;
            settings.cfg_token4_be = v4.map_or(0, |v4| u32::from_ne_bytes(v4.octets()));
            settings.cfg_token6_be = v6.map_or([0; 4], words_be);
            settings.cfg_inner_mtu = options.inner_mtu.unwrap_or(0);
            settings.cfg_name_seed = flow_table::new_seed();
        }
        startup.prepare(skel.open_object_mut(), &[])?;
        let skel = skel.load().map_err(failed)?;
        let filters = match &options.cookies {
            Some(hooks) => {
                startup.furnish(skel.object())?;
                let (interface, pins) = startup.interface_and_pins();
                Some(CookieFilters::attach(
                    hooks,
                    skel.object(),
                    interface,
                    pins,
                )?)
            }
            None => {
                // Those of an agent that had cookies would write on, by keys that are not renewed.
                let (interface, pins) = startup.interface_and_pins();
                cookie_hooks::detach(pins, interface.index)?;
                pins.forget(cookie_hooks::LINK)?;
                None
            }
        };
        let (mut plane, started) = startup.attach(skel.object())?;
        let decapsulator = Self {
            own_addresses: Table::new(plane.take_map("own_addresses")?)?,
            sources: TunnelSources::new(&mut plane)?,
            verdicts: PerCpu::new(plane.take_map("verdicts")?)?,
            cookie_keys: Table::new(plane.take_map("cookie_keys")?)?,
            cookie_vips: Table::new(plane.take_map("cookie_vips")?)?,
            cookie_events: PerCpu::new(plane.take_map("cookie_events")?)?,
            tokens: ConnTokens::new(
                plane.take_map("held_tokens")?,
                plane.take_map("token_events")?,
            )?,
            filters,
            plane,
        };
        Ok((decapsulator, started))
    }

    /// Takes the decapsulator pinned in `pin_dir` down. It is not an error if nothing is there.
    pub fn detach(pin_dir: &Path) -> Result<Detached> {
        plane::detach_with(pin_dir, BLUEPRINT.link, cookie_hooks::detach)
    }

    /// Takes down the decapsulator that is pinned in `pin_dir` and wanted no more; whether there
    /// was one at work. Pins of another kind are left alone.
    pub fn retire(pin_dir: &Path) -> Result<bool> {
        match pin_dir.join(BLUEPRINT.link).exists() {
            true => Self::detach(pin_dir).map(|detached| detached.was_attached),
            false => Ok(false),
        }
    }

    /// As [`LoadBalancer::mend`](crate::LoadBalancer::mend), the filters for cookies among it.
    ///
    /// # Errors
    /// What cannot be put right; the rest goes on.
    pub fn mend(&self) -> Result<Repairs> {
        let changes = self.plane.mend();
        let filters = self.filters.as_ref().map(CookieFilters::mend);
        // Behind the plane's pins, which bring the directory back.
        let pinned = self.filters.as_ref().map(CookieFilters::mend_pin);
        let changes = changes?;
        Ok(Repairs {
            filters: filters.transpose()?.unwrap_or(0),
            pinned: changes.pinned + pinned.transpose()?.unwrap_or(0),
            ..changes
        })
    }

    /// The connections that stateful balancers keep in places. Without
    /// [`Decapsulator::sees_opening`] there are none.
    pub fn tokens(&self) -> Result<ConnTokens> {
        self.tokens.another()
    }

    /// Whether connections with cookies are seen while they open; without a control
    /// group they are by their first segment, which late starters may miss.
    pub fn sees_opening(&self) -> bool {
        self.filters
            .as_ref()
            .is_some_and(CookieFilters::sees_opening)
    }

    /// Sets the keys of cookies. Connections keep the cookie that they began with.
    pub fn set_cookie_keys(&self, keys: Option<&Keys>) -> Result<()> {
        self.cookie_keys.put(&0, &abi::CookieKeys::from(keys))
    }

    /// Sets the VIPs whose connections get cookies, with this server's id in each.
    pub fn set_cookie_vips(&self, vips: &BTreeMap<Vip, (u16, CookieLayout)>) -> Result<()> {
        self.cookie_vips.replace(COOKIE_VIPS, &cookie_entries(vips))
    }

    /// What was done with the timestamps of VIPs with cookies.
    pub fn cookie_events(&self) -> Result<Vec<(ServerCookie, u64)>> {
        let count = ServerCookie::ALL.len() as u32;
        let counters = self.cookie_events.first(count, |sum, cpu| *sum += cpu)?;
        Ok(ServerCookie::ALL.into_iter().zip(counters).collect())
    }

    /// The tunnel addresses of this server.
    pub fn addresses(&self) -> Result<BTreeSet<IpAddr>> {
        let entries = self.own_addresses.entries()?.into_iter();
        let ends = entries.filter(|(_, uses)| uses & abi::ADDRESS_TUNNEL_END != 0);
        Ok(ends
            .map(|(key, _)| abi::addr_from_bytes(key.bytes))
            .collect())
    }

    /// Opens tunnels from these networks alone: the balancers'.
    pub fn set_tunnel_sources(&self, networks: &BTreeSet<Prefix>) -> Result<()> {
        self.sources.set(networks)
    }

    /// Sets the tunnel addresses, by which the balancer knows this server, and the VIPs
    /// that it serves: a tunnel to another address goes by untouched, and what one holds
    /// for another address is dropped. Packets for those that stay are decapsulated
    /// throughout.
    pub fn set_addresses(&self, ends: &BTreeSet<IpAddr>, vips: &BTreeSet<IpAddr>) -> Result<()> {
        self.own_addresses
            .replace(OWN_ADDRESSES, &address_entries(ends, vips))
    }

    /// An error if there is no room for so many networks, addresses and VIPs with cookies: what sets
    /// them one after the other would be half done.
    pub fn check_capacity(
        &self,
        networks: usize,
        addresses: usize,
        cookie_vips: usize,
    ) -> Result<()> {
        self.sources.check_capacity(networks)?;
        self.own_addresses
            .check_capacity(OWN_ADDRESSES, addresses)?;
        self.cookie_vips.check_capacity(COOKIE_VIPS, cookie_vips)
    }

    /// Adds to what is in force and takes nothing away, as a successor does that lacks a part of what
    /// its predecessor went by. Keys are set where there are none.
    pub fn add(
        &self,
        networks: &BTreeSet<Prefix>,
        ends: &BTreeSet<IpAddr>,
        vips: &BTreeSet<IpAddr>,
        keys: Option<&Keys>,
        cookie_vips: &BTreeMap<Vip, (u16, CookieLayout)>,
    ) -> Result<()> {
        self.sources.add(networks)?;
        for (key, uses) in address_entries(ends, vips) {
            let present = self.own_addresses.get(&key)?.unwrap_or(0);
            self.own_addresses.put(&key, &(present | uses))?;
        }
        let present = self.cookie_keys.get(&0)?;
        if present.is_none_or(|keys| keys == abi::CookieKeys::default()) {
            self.set_cookie_keys(keys)?;
        }
        let cookie_vips = cookie_entries(cookie_vips);
        let mut entries = cookie_vips.iter();
        entries.try_for_each(|(key, value)| self.cookie_vips.put(key, value))
    }

    /// What became of all packets.
    pub fn verdicts(&self) -> Result<Vec<(ServerVerdict, PacketsBytes)>> {
        let count = ServerVerdict::ALL.len() as u32;
        let counters = self.verdicts.first(count, PacketsBytes::add)?;
        Ok(ServerVerdict::ALL.into_iter().zip(counters).collect())
    }
}

fn cookie_entries(vips: &BTreeMap<Vip, (u16, CookieLayout)>) -> Vec<(abi::VipKey, abi::ServerVip)> {
    let entry = |(vip, (id, format)): (&Vip, &(u16, CookieLayout))| {
        let value = abi::ServerVip {
            id: (*id).into(),
            cookie: CookieFormat::from(format),
        };
        (vip.key(), value)
    };
    vips.iter().map(entry).collect()
}

/// Each address with what it is used for.
fn address_entries(ends: &BTreeSet<IpAddr>, vips: &BTreeSet<IpAddr>) -> Vec<(abi::Address, u32)> {
    let entry = |address: &IpAddr| {
        let uses = [(ends, abi::ADDRESS_TUNNEL_END), (vips, abi::ADDRESS_VIP)];
        let uses = uses.iter().filter(|(set, _)| set.contains(address));
        (key(*address), uses.fold(0, |all, (_, one)| all | one))
    };
    vips.union(ends).map(entry).collect()
}

/// An address as four words that lie in memory as it does.
fn words_be(address: Ipv6Addr) -> [u32; 4] {
    let octets = address.octets();
    std::array::from_fn(|word| {
        let at = 4 * word;
        u32::from_ne_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
    })
}

fn key(address: IpAddr) -> abi::Address {
    abi::Address {
        bytes: abi::addr_bytes(address),
    }
}
