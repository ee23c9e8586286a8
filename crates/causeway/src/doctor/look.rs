// SPDX-License-Identifier: Apache-2.0
//! How the machine is: what the rules judge by.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use causeway_balancer::config::MacAddress;
use causeway_dataplane::{AttachedMode, XdpState};
use causeway_netio::{
    DriverInfo, Gateway, Interface, NetDevice, OnLink, OwnAddress, Reach, WORLD_V4,
    closed_input_chains, device_to, find_gateways, interface_info, on_link, own_addresses, reach,
};
use nix::sys::statfs::{BPF_FS_MAGIC, CGROUP2_SUPER_MAGIC, FsType, statfs};
use serde::Serialize;

use super::wants::Wants;

/// How long a gateway or a real has to answer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Reals whose way is tried at most: those of one pool share it.
const REALS_MAX: usize = 64;
/// As many at a time.
const AT_ONCE: usize = 16;

/// The host.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Host {
    pub(crate) kernel: String,
    #[serde(skip)]
    pub(crate) version: (u32, u32),
    pub(crate) cpus: u32,
    /// Whether the kernel publishes its types (BTF).
    pub(crate) btf: bool,
    /// `net.core.bpf_jit_enable`.
    pub(crate) jit: Option<u64>,
    /// `/sys/kernel/security/lockdown`.
    pub(crate) lockdown: Option<String>,
    pub(crate) ip_forward: bool,
    pub(crate) tcp_timestamps: Option<u64>,
    pub(crate) arp_ignore: u64,
    /// Connections that the kernel tracks, and as many as it can.
    pub(crate) conntrack: Option<(u64, u64)>,
    /// The packet filter's chains that drop what no rule accepts.
    pub(crate) closed_chains: Vec<String>,
    pub(crate) has_tun: bool,
    /// Whether the pins' directory is in a BPF file system.
    pub(crate) bpffs: Option<bool>,
    /// Whether the control group is one of version 2.
    pub(crate) cgroup2: Option<bool>,
}

/// A device.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Nic {
    pub(crate) name: String,
    pub(crate) driver: String,
    pub(crate) driver_version: String,
    pub(crate) kind: Option<String>,
    pub(crate) up: bool,
    pub(crate) carrier: bool,
    pub(crate) mtu: u32,
    pub(crate) queues: Queues,
    /// Descriptors of a sending queue: now, and at most.
    pub(crate) tx_ring: (u32, u32),
    /// Offloads that are on, of those that matter here.
    pub(crate) offloads: Vec<String>,
    /// Those of them that cannot be turned off.
    pub(crate) fixed_offloads: Vec<String>,
    /// Whether the driver runs XDP programs; `None`: the kernel does not say.
    pub(crate) native_xdp: Option<bool>,
    /// Whether it gives them frames that take several buffers; the same.
    pub(crate) fragments_xdp: Option<bool>,
    pub(crate) program: Option<Program>,
    pub(crate) bond: Option<Bond>,
    /// Whether a program runs on the far end of a veth, where that is in this namespace.
    pub(crate) peer_program: Option<bool>,
    /// The bond or bridge that it is part of, and what that is.
    pub(crate) part_of: Option<(String, String)>,
    /// The device below a VLAN, and its id.
    pub(crate) vlan: Option<(String, u16)>,
    pub(crate) vlans: Vec<String>,
    /// `rp_filter` in force: 1 is strict.
    pub(crate) rp_filter: u64,
}

/// Queues now and at most.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Queues {
    pub(crate) rx: u32,
    pub(crate) rx_max: u32,
    pub(crate) tx: u32,
    pub(crate) tx_max: u32,
    pub(crate) combined: u32,
    pub(crate) combined_max: u32,
}

impl Queues {
    /// Those that receive.
    pub(crate) fn receiving(self) -> u32 {
        self.rx + self.combined
    }
}

/// An XDP program.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Program {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) native: bool,
}

/// A bond.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Bond {
    pub(crate) mode: String,
    pub(crate) hash: String,
    pub(crate) slaves: Vec<String>,
}

/// The way of encapsulated packets.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Way {
    pub(crate) interface: String,
    /// Addresses of routers, and whether they answer; or why there are none.
    pub(crate) gateways: Result<Vec<(IpAddr, bool)>, String>,
    /// Reals on the interface's own link, which packets reach by way of the router.
    pub(crate) on_link: Vec<IpAddr>,
}

/// A server that is reached by its MAC address.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RealMac {
    pub(crate) interface: String,
    pub(crate) real: IpAddr,
    /// The file's.
    #[serde(serialize_with = "mac_in_words")]
    pub(crate) mac: [u8; 6],
    /// That of who answers for the server's address; none answers.
    #[serde(serialize_with = "some_mac_in_words")]
    pub(crate) answers: Option<[u8; 6]>,
}

/// A host that tunnels lead to.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RealReach {
    pub(crate) real: IpAddr,
    /// The largest packet that was tried.
    pub(crate) tried: u16,
    #[serde(serialize_with = "reach_in_words")]
    pub(crate) reach: Reach,
}

/// A VIP's address.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct VipAddress {
    pub(crate) address: IpAddr,
    /// Whether this host holds it.
    pub(crate) held: bool,
    /// The interface that has it, and the length of its prefix there.
    pub(crate) on: Option<(String, u8)>,
    /// The device of the route to it.
    pub(crate) device: Option<String>,
}

/// All that was seen for one daemon.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Seen {
    pub(crate) host: Host,
    /// The interfaces and the bonds' slaves, in the order of their names.
    pub(crate) nics: Vec<Nic>,
    /// Interfaces that are not there.
    pub(crate) missing: Vec<String>,
    pub(crate) ways: Vec<Way>,
    pub(crate) reals: Vec<RealReach>,
    pub(crate) macs: Vec<RealMac>,
    pub(crate) vips: Vec<VipAddress>,
    /// The device of the default route.
    pub(crate) default_device: Option<String>,
}

impl Seen {
    /// Looks at the machine for one daemon. Changes nothing, but has gateways asked for their
    /// MAC addresses and sends echo requests to reals.
    pub(crate) fn now(wants: &Wants, devices: &[NetDevice]) -> anyhow::Result<Self> {
        let name_of = |index: u32| {
            let mut all = devices.iter();
            all.find(|one| one.index == index)
                .map(|one| one.name.clone())
        };
        let mut seen = Self {
            host: host(wants),
            default_device: device_to(WORLD_V4.into())?.and_then(|(index, _)| name_of(index)),
            ..Self::default()
        };
        for name in &wants.interfaces {
            let Some(device) = devices.iter().find(|device| device.name == *name) else {
                seen.missing.push(name.clone());
                continue;
            };
            let nic = nic(device, devices, seen.host.version)?;
            let slaves = nic.bond.iter().flat_map(|bond| bond.slaves.clone());
            for slave in slaves.collect::<Vec<_>>() {
                let slave = devices.iter().find(|device| device.name == slave);
                seen.nics.extend(
                    slave
                        .map(|s| self::nic(s, devices, seen.host.version))
                        .transpose()?,
                );
            }
            if wants.encapsulates() && !wants.has_gateway && device.up {
                seen.ways.push(way(name, &wants.reals));
            }
            if device.up {
                seen.macs.extend(macs(name, wants));
            }
            seen.nics.push(nic);
        }
        let own = own_addresses()?;
        for &address in &wants.vips {
            let route = device_to(address)?;
            let on = own.iter().find(|own| own.address == address);
            seen.vips.push(VipAddress {
                address,
                held: route.is_some_and(|(_, own)| own),
                on: on.map(|own: &OwnAddress| (own.interface.clone(), own.prefix_len)),
                device: route.and_then(|(index, _)| name_of(index)),
            });
        }
        let mtu = seen.nics.iter().map(|nic| nic.mtu).min().unwrap_or(0);
        let mtu = wants
            .encap_mtu
            .unwrap_or(u16::try_from(mtu).unwrap_or(u16::MAX));
        seen.reals = reaches(&wants.reals, mtu);
        Ok(seen)
    }
}

fn host(wants: &Wants) -> Host {
    let kernel = text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = kernel
        .split(|c: char| !c.is_ascii_digit())
        .map(|n| n.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let count = number("/proc/sys/net/netfilter/nf_conntrack_count");
    let most = number("/proc/sys/net/netfilter/nf_conntrack_max");
    Host {
        version,
        kernel,
        cpus: thread::available_parallelism().map_or(1, |n| n.get() as u32),
        btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
        jit: number("/proc/sys/net/core/bpf_jit_enable"),
        lockdown: text("/sys/kernel/security/lockdown").and_then(|modes| {
            let (_, chosen) = modes.split_once('[')?;
            Some(chosen.split_once(']')?.0.to_owned())
        }),
        ip_forward: number("/proc/sys/net/ipv4/ip_forward").unwrap_or(0) != 0,
        tcp_timestamps: number("/proc/sys/net/ipv4/tcp_timestamps"),
        arp_ignore: number("/proc/sys/net/ipv4/conf/all/arp_ignore").unwrap_or(0),
        conntrack: count.zip(most),
        closed_chains: closed_input_chains().unwrap_or_default(),
        has_tun: Path::new("/dev/net/tun").exists(),
        bpffs: wants.pin_dir.as_ref().map(|dir| is_in(dir, BPF_FS_MAGIC)),
        cgroup2: wants
            .cgroup
            .as_ref()
            .map(|dir| is_in(dir, CGROUP2_SUPER_MAGIC)),
    }
}

/// Whether a directory, or the nearest one above it that exists, is in a file system of a kind.
pub(crate) fn is_in(dir: &Path, kind: FsType) -> bool {
    let exists = dir.ancestors().find_map(|dir: &Path| statfs(dir).ok());
    exists.is_some_and(|fs| fs.filesystem_type() == kind)
}

/// What a driver says that it can; `None` where the kernel does not ask it.
fn told(can: bool, kernel: (u32, u32)) -> Option<bool> {
    (can || kernel >= (6, 3)).then_some(can)
}

fn nic(device: &NetDevice, all: &[NetDevice], kernel: (u32, u32)) -> anyhow::Result<Nic> {
    let of = |index: u32| all.iter().find(|one| one.index == index);
    let name = &device.name;
    let driver = DriverInfo::of(name).with_context(|| format!("ask the driver of {name}"))?;
    let xdp = XdpState::of(&Interface {
        name: name.clone(),
        index: device.index,
    })?;
    let mut queues = Queues {
        rx: driver.rx_queues.now,
        rx_max: driver.rx_queues.max,
        tx: driver.tx_queues.now,
        tx_max: driver.tx_queues.max,
        combined: driver.combined_queues.now,
        combined_max: driver.combined_queues.max,
    };
    if queues.receiving() == 0 {
        (queues.rx, queues.tx) = device.queues;
    }
    let matters = ["rx-lro", "rx-gro-hw", "rx-vlan-hw-parse"];
    let on = matters.iter().filter_map(|name| {
        let offload = driver.offloads.get(*name).filter(|offload| offload.on)?;
        Some(((*name).to_owned(), offload.changeable))
    });
    let on: Vec<(String, bool)> = on.collect();
    let rp_filter = |of: &str| {
        let path = format!("/proc/sys/net/ipv4/conf/{of}/rp_filter");
        number(&path).unwrap_or(0)
    };
    let bond = device.bond_mode.as_ref().map(|mode| Bond {
        mode: mode.clone(),
        hash: device.bond_hash.clone().unwrap_or_default(),
        slaves: all
            .iter()
            .filter(|one| one.controller == Some(device.index))
            .map(|one| one.name.clone())
            .collect(),
    });
    // A veth has its far end for the device below; its number may be of another namespace.
    let peer = device
        .below
        .filter(|_| device.kind.as_deref() == Some("veth"));
    let peer = peer
        .and_then(of)
        .filter(|peer| peer.kind == device.kind && peer.below == Some(device.index));
    let peer_program = peer.map(|peer| {
        let state = XdpState::of(&Interface {
            name: peer.name.clone(),
            index: peer.index,
        });
        Ok::<_, anyhow::Error>(state?.program.is_some())
    });
    let vlans = all
        .iter()
        .filter(|one| one.below == Some(device.index) && one.vlan_id.is_some());
    Ok(Nic {
        name: name.clone(),
        driver_version: driver.version.clone(),
        kind: device.kind.clone(),
        up: device.up,
        carrier: device.carrier,
        mtu: device.mtu,
        queues,
        tx_ring: (driver.tx_ring.now, driver.tx_ring.max),
        offloads: on.iter().map(|(name, _)| name.clone()).collect(),
        fixed_offloads: on
            .iter()
            .filter(|(_, changeable)| !changeable)
            .map(|(name, _)| name.clone())
            .collect(),
        native_xdp: told(xdp.is_native, kernel),
        fragments_xdp: told(xdp.takes_fragments, kernel),
        program: xdp.program.map(|(id, name, mode)| Program {
            id,
            name,
            native: mode == AttachedMode::Native,
        }),
        bond,
        peer_program: peer_program.transpose()?,
        part_of: device.controller.and_then(of).map(|controller| {
            let kind = controller.kind.clone().unwrap_or_default();
            (controller.name.clone(), kind)
        }),
        vlan: device.vlan_id.map(|id| {
            let below = device.below.and_then(of);
            (below.map(|one| one.name.clone()).unwrap_or_default(), id)
        }),
        vlans: vlans.map(|one| one.name.clone()).collect(),
        rp_filter: rp_filter("all").max(rp_filter(name)),
        driver: driver.driver,
    })
}

fn way(interface: &str, reals: &[IpAddr]) -> Way {
    let found = interface_info(interface).and_then(|info| find_gateways(&info, reals, TIMEOUT));
    let on_link = match &found {
        Ok(found) => found.on_link.clone(),
        Err(_) => Vec::new(),
    };
    let gateways = found.map(|found| {
        let known = [found.v4, found.v6].into_iter().flatten();
        let known = known.map(|gateway: Gateway| (gateway.address, gateway.mac.is_some()));
        known.collect::<Vec<_>>()
    });
    Way {
        interface: interface.to_owned(),
        gateways: gateways.map_err(|error| error.to_string()),
        on_link,
    }
}

/// Who answers for the first servers that are reached by their MAC addresses.
fn macs(interface: &str, wants: &Wants) -> Vec<RealMac> {
    let Ok(info) = interface_info(interface) else {
        return Vec::new();
    };
    let tried: Vec<(IpAddr, [u8; 6])> = wants.by_mac.iter().copied().take(REALS_MAX).collect();
    let found = at_once(&tried, |&(real, mac)| {
        let answers = match on_link(&info, real, TIMEOUT) {
            Ok(OnLink::Answers(mac)) => Some(mac),
            Ok(OnLink::Silent) => None,
            Ok(OnLink::Elsewhere) | Err(_) => return None,
        };
        Some(RealMac {
            interface: interface.to_owned(),
            real,
            mac,
            answers,
        })
    });
    found.into_iter().flatten().collect()
}

/// How large packets may be on their way to each of the first reals.
fn reaches(reals: &[IpAddr], mtu: u16) -> Vec<RealReach> {
    let tried: Vec<IpAddr> = reals.iter().copied().take(REALS_MAX).collect();
    at_once(&tried, |&real| RealReach {
        real,
        tried: mtu,
        reach: reach(real, mtu, TIMEOUT).unwrap_or(Reach::Silent),
    })
}

/// Asks some at a time.
fn at_once<Q: Sync, A: Send>(questions: &[Q], ask: impl Fn(&Q) -> A + Sync) -> Vec<A> {
    let ask = &ask;
    let mut found = Vec::new();
    for few in questions.chunks(AT_ONCE) {
        found.extend(thread::scope(|scope| {
            let asked = few.iter().map(|one| scope.spawn(move || ask(one)));
            let asked: Vec<_> = asked.collect();
            let answers = asked.into_iter().filter_map(|one| one.join().ok());
            answers.collect::<Vec<_>>()
        }));
    }
    found
}

fn mac_in_words<S: serde::Serializer>(mac: &[u8; 6], out: S) -> Result<S::Ok, S::Error> {
    out.collect_str(&MacAddress(*mac))
}

fn some_mac_in_words<S: serde::Serializer>(
    mac: &Option<[u8; 6]>,
    out: S,
) -> Result<S::Ok, S::Error> {
    mac.map(|mac| MacAddress(mac).to_string()).serialize(out)
}

fn reach_in_words<S: serde::Serializer>(reach: &Reach, out: S) -> Result<S::Ok, S::Error> {
    match reach {
        Reach::Silent => out.serialize_str("silent"),
        Reach::Whole => out.serialize_str("whole"),
        Reach::UpTo(bytes) => out.serialize_u16(*bytes),
    }
}

fn text(path: &str) -> Option<String> {
    let text = fs::read_to_string(PathBuf::from(path)).ok()?;
    Some(text.trim().to_owned())
}

fn number(path: &str) -> Option<u64> {
    text(path)?.parse().ok()
}
