// SPDX-License-Identifier: Apache-2.0
//! What is wrong with a machine: from what was seen to findings, without asking anything more.

use std::net::IpAddr;

use causeway_balancer::config::{MacAddress, XdpMode};
use causeway_netio::Reach;
use causeway_service::config::plural;
use serde::Serialize;

use super::look::{Nic, Seen};
use super::wants::{Role, Wants};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// It does not work so.
    Fault,
    /// It works, and loses packets or time.
    Warning,
    /// Good to know.
    Note,
}

impl Level {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Fault => "fault",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// An interface, or `host`.
    pub(crate) place: String,
    /// The rule's name, which stays.
    pub(crate) rule: &'static str,
    /// What is wrong, and what comes of it.
    pub(crate) says: String,
    /// The command that fixes it.
    pub(crate) mend: String,
}

/// The oldest kernel that loads the programs.
const KERNEL_MIN: (u32, u32) = (6, 1);
/// The longest packets that clients send over Ethernet.
const CLIENTS_MTU: u32 = 1500;
/// Part of the connection table that is too full: in 100.
const CONNTRACK_FULL: u64 = 80;

/// A driver's conditions for native XDP, as its source has them.
struct DriverRule {
    driver: &'static str,
    /// Largest MTU where a frame lies in one buffer, with pages of 4 KiB; beyond, the driver
    /// has to give programs frames of several, which some do from some kernel on.
    mtu: u32,
    /// Whether each receiving queue needs a second sending one of the same number.
    doubles_queues: bool,
    /// Whether each CPU needs a sending queue of its own; else they share, with a lock.
    queue_per_cpu: bool,
    /// Whether a refusal says "not supported", so that `xdp.mode = "auto"` goes on in generic mode.
    falls_back: bool,
}

const fn driver(driver: &'static str, mtu: u32) -> DriverRule {
    DriverRule {
        driver,
        mtu,
        doubles_queues: false,
        queue_per_cpu: false,
        falls_back: false,
    }
}

const DRIVERS: &[DriverRule] = &[
    DriverRule {
        doubles_queues: true,
        ..driver("ena", 3498)
    },
    DriverRule {
        doubles_queues: true,
        falls_back: true,
        ..driver("gve", 2032)
    },
    DriverRule {
        queue_per_cpu: true,
        ..driver("virtio_net", 3506)
    },
    driver("mlx5_core", 3498),
    driver("i40e", 3046),
    driver("ice", 3046),
    driver("ixgbe", 3050),
];

fn rule_of(nic: &Nic) -> Option<&'static DriverRule> {
    DRIVERS.iter().find(|rule| rule.driver == nic.driver)
}

/// All that is wrong, worst first.
pub(crate) fn findings(wants: &Wants, seen: &Seen) -> Vec<Finding> {
    let mut rules = Rules {
        wants,
        seen,
        found: Vec::new(),
    };
    rules.host();
    for name in &seen.missing {
        rules.fault(
            name,
            "missing",
            format!("there is no interface {name} in this network namespace"),
            "ip -brief link".to_owned(),
        );
    }
    for nic in &seen.nics {
        rules.link(nic);
        if wants.xdp.is_some() {
            rules.xdp(nic);
            rules.offloads(nic);
            rules.queues(nic);
        }
        rules.reverse_path(nic);
    }
    rules.way();
    rules.macs();
    rules.mtu();
    rules.vips();
    rules.tunnel();
    let mut found = rules.found;
    found.sort_by_key(|finding| finding.level);
    found
}

struct Rules<'a> {
    wants: &'a Wants,
    seen: &'a Seen,
    found: Vec<Finding>,
}

impl Rules<'_> {
    fn add(&mut self, level: Level, place: &str, rule: &'static str, says: String, mend: String) {
        self.found.push(Finding {
            level,
            place: place.to_owned(),
            rule,
            says,
            mend,
        });
    }

    fn fault(&mut self, place: &str, rule: &'static str, says: String, mend: String) {
        self.add(Level::Fault, place, rule, says, mend);
    }

    fn warn(&mut self, place: &str, rule: &'static str, says: String, mend: String) {
        self.add(Level::Warning, place, rule, says, mend);
    }

    fn host(&mut self) {
        let (wants, host) = (self.wants, &self.seen.host);
        if host.version < KERNEL_MIN {
            self.fault(
                "host",
                "kernel",
                format!(
                    "Linux {} is older than 6.1, and refuses the programs",
                    host.kernel
                ),
                "apt install linux-image-amd64".to_owned(),
            );
        }
        if wants.role == Role::Tunnel {
            if !host.has_tun {
                let says = "there is no /dev/net/tun, so that no tunnel's device can be made";
                self.fault("host", "tun", says.to_owned(), "modprobe tun".to_owned());
            }
        } else {
            self.programs();
        }
        // At most 0 is without a bound.
        if let Some((count, most @ 1..)) = host.conntrack
            && wants.role != Role::Balancer
            && count * 100 >= most * CONNTRACK_FULL
        {
            self.warn(
                "host",
                "conntrack",
                format!("the kernel tracks {count} connections of at most {most}, and drops new ones beyond"),
                format!("sysctl -w net.netfilter.nf_conntrack_max={}", most * 4),
            );
        }
        for chain in &host.closed_chains {
            let says = match wants.role {
                // Programs run before the packet filter; probes' answers are known to it.
                Role::Balancer => continue,
                Role::Agent => format!(
                    "the chain {chain} drops what no rule accepts: what comes out of tunnels is for VIPs' ports"
                ),
                Role::Tunnel => format!(
                    "the chain {chain} drops what no rule accepts: paths come in on UDP ports"
                ),
            };
            self.add(
                Level::Note,
                "host",
                "packet-filter",
                says,
                format!("nft list chain {chain}"),
            );
        }
    }

    /// What BPF programs need.
    fn programs(&mut self) {
        let host = &self.seen.host;
        if !host.btf {
            self.fault(
                "host",
                "kernel",
                format!(
                    "Linux {} does not publish its types (BTF), which programs are loaded by",
                    host.kernel
                ),
                "apt install linux-image-amd64".to_owned(),
            );
        }
        if host.jit == Some(0) {
            self.warn(
                "host",
                "jit",
                "programs are interpreted, at several times the cost of a packet".to_owned(),
                "sysctl -w net.core.bpf_jit_enable=1".to_owned(),
            );
        }
        if let Some("confidentiality") = host.lockdown.as_deref() {
            self.fault(
                "host",
                "lockdown",
                "the kernel is locked down for confidentiality, and programs may not read packets' times".to_owned(),
                "sed -i 's/lockdown=confidentiality/lockdown=integrity/' /etc/default/grub && update-grub".to_owned(),
            );
        }
        if host.bpffs == Some(false) {
            let dir = self.wants.pin_dir.as_deref().unwrap_or("".as_ref());
            self.fault(
                "host",
                "bpffs",
                format!(
                    "{} is in no BPF file system, where the running data plane is pinned",
                    dir.display()
                ),
                "mount -t bpf bpf /sys/fs/bpf".to_owned(),
            );
        }
        if host.cgroup2 == Some(false) {
            self.fault(
                "host",
                "cgroup",
                "the services' control group is not of version 2, and cookies' hooks hang on one"
                    .to_owned(),
                "mount -t cgroup2 none /sys/fs/cgroup/unified".to_owned(),
            );
        }
        if self.wants.cookies && host.tcp_timestamps == Some(0) {
            self.fault(
                "host",
                "tcp-timestamps",
                "this server sends no TCP timestamps, which cookies are in".to_owned(),
                "sysctl -w net.ipv4.tcp_timestamps=1".to_owned(),
            );
        }
        if self.wants.role == Role::Balancer && self.wants.passes_unserved && host.ip_forward {
            self.warn(
                "host",
                "ip-forward",
                "this host routes, and unserved = \"pass\" gives it packets to VIPs' other ports: they go back and forth between it and its router".to_owned(),
                "sysctl -w net.ipv4.ip_forward=0".to_owned(),
            );
        }
    }

    fn link(&mut self, nic: &Nic) {
        let name = &nic.name;
        if !nic.up {
            let says = format!("{name} is turned off");
            self.fault(name, "down", says, format!("ip link set {name} up"));
        } else if !nic.carrier {
            self.fault(
                name,
                "no-carrier",
                format!("{name} has no link: no cable, or the far end is off"),
                format!("ethtool {name}"),
            );
        }
    }

    fn xdp(&mut self, nic: &Nic) {
        let name = &nic.name;
        let wanted = self.wants.interfaces.contains(name);
        if let Some(program) = nic.program.as_ref().filter(|_| wanted) {
            // The programs' names in bpf/.
            let own = match self.wants.role {
                Role::Agent => "causeway_server",
                _ => "causeway_lb",
            };
            if program.name != own {
                self.fault(
                    name,
                    "occupied",
                    format!(
                        "the XDP program {} (id {}) is on {name}, and there is room for one",
                        program.name, program.id
                    ),
                    format!("bpftool net show dev {name}; ip link set dev {name} xdp off"),
                );
            }
        }
        if let Some((controller, kind)) = nic.part_of.as_ref().filter(|_| wanted) {
            self.fault(
                name,
                "part",
                format!("{name} is part of the {kind} {controller}, which sees other ports' packets, too, and a program on {name} does not"),
                format!("interface = \"{controller}\" in the file; if it runs already: stop, unload --yes, start"),
            );
        }
        if let Some(bond) = &nic.bond {
            let fits = ["balance-rr", "active-backup", "balance-xor", "802.3ad"];
            if !fits.contains(&bond.mode.as_str()) || bond.hash == "vlan+srcmac" {
                self.slow(
                    name,
                    "bond-mode",
                    format!("a bond in mode {} with hash {} runs no native XDP", bond.mode, bond.hash),
                    format!("ip link set {name} down && ip link set {name} type bond mode 802.3ad xmit_hash_policy layer3+4 && ip link set {name} up"),
                );
            }
            if bond.slaves.is_empty() {
                self.fault(
                    name,
                    "bond-empty",
                    format!("the bond {name} has no interfaces"),
                    format!("ip link set eth0 down && ip link set eth0 master {name}"),
                );
            }
            return;
        }
        if let Some((below, id)) = nic.vlan.as_ref().filter(|_| wanted) {
            self.slow(
                name,
                "vlan",
                format!("{name} is VLAN {id} of {below}, and runs programs in generic mode alone; on {below} they see its tagged packets"),
                format!("interface = \"{below}\" in the file; if it runs already: stop, unload --yes, start"),
            );
        } else if nic.native_xdp == Some(false) {
            self.slow(
                name,
                "generic",
                format!("the driver of {name} runs no XDP programs: in generic mode each packet costs several times as much CPU"),
                format!("ethtool -i {name}"),
            );
        }
        // In generic mode the stack sends.
        let is_generic = match nic.program.as_ref() {
            Some(program) => !program.native,
            None => self.wants.xdp == Some(XdpMode::Generic),
        };
        if nic.kind.as_deref() == Some("veth") && !is_generic && nic.peer_program != Some(true) {
            // A balancer sends all that it forwards; an agent's program hands it to the kernel.
            let level = match self.wants.role {
                Role::Balancer => Level::Warning,
                _ => Level::Note,
            };
            self.add(
                level,
                name,
                "veth",
                format!("{name} is a veth: what a program in native mode sends is lost unless the far end runs an XDP program, too"),
                "xdp.mode = \"generic\" in the file; if it runs already: stop, unload --yes, start".to_owned(),
            );
        }
        self.driver(nic);
    }

    /// A fault where native mode is asked for, else a warning.
    fn slow(&mut self, place: &str, rule: &'static str, says: String, mend: String) {
        let level = match self.wants.xdp {
            Some(XdpMode::Native) => Level::Fault,
            Some(XdpMode::Generic) => Level::Note,
            _ => Level::Warning,
        };
        self.add(level, place, rule, says, mend);
    }

    fn driver(&mut self, nic: &Nic) {
        // One that runs a native program meets its driver's conditions.
        let runs = nic.program.as_ref().is_some_and(|program| program.native);
        let Some(rule) = rule_of(nic) else {
            return;
        };
        let (name, queues) = (&nic.name, nic.queues);
        if nic.mtu > rule.mtu && !runs && nic.fragments_xdp != Some(true) {
            let why = match nic.fragments_xdp {
                Some(_) => "it gives programs no frames of several buffers",
                None => {
                    "unless it gives programs frames of several buffers, which this kernel does not say"
                }
            };
            self.refused(
                nic,
                "driver-mtu",
                format!(
                    "{} refuses native XDP with an MTU of {}, above {}: {why}",
                    nic.driver, nic.mtu, rule.mtu
                ),
                format!("ip link set {name} mtu {}", rule.mtu),
            );
        }
        let (now, most) = match queues.combined_max {
            0 => (queues.tx.max(queues.rx), queues.tx_max),
            most => (queues.combined, most),
        };
        let half = (most / 2).max(1);
        if rule.doubles_queues && !runs && (2 * now > most || queues.rx != queues.tx) {
            let set = match queues.combined_max {
                0 => format!("rx {half} tx {half}"),
                _ => format!("combined {half}"),
            };
            self.refused(
 nic,
                "driver-queues",
                format!("{} refuses native XDP with {now} of {most} queues in use: it wants a second sending queue for each", nic.driver),
                format!("ethtool -L {name} {set}"),
            );
        }
        let cpus = self.seen.host.cpus;
        if rule.queue_per_cpu && now + cpus > most {
            let room = most.saturating_sub(cpus);
            self.warn(
                name,
                "driver-shared",
                format!("{} has {} for {now} in use and {cpus} CPUs, so that programs send under a lock", nic.driver, plural(most as usize, "queue pair")),
                match room {
                    0 => format!("virsh edit GUEST  # <driver name='vhost' queues='{}'/>", 2 * cpus),
                    room => format!("ethtool -L {name} combined {room}"),
                },
            );
        }
        let (ring, ring_max) = nic.tx_ring;
        if nic.driver == "ena" && ring < ring_max {
            self.warn(
                name,
                "driver-ring",
                format!("ena drops what a program sends when its ring of {ring} is full"),
                format!("ethtool -G {name} tx {ring_max}"),
            );
        }
    }

    /// A driver that has native XDP but refuses ends the start, unless it says that it has not.
    fn refused(&mut self, nic: &Nic, rule: &'static str, says: String, mend: String) {
        let falls_back = rule_of(nic).is_some_and(|rule| rule.falls_back);
        match self.wants.xdp {
            Some(XdpMode::Generic) => self.add(Level::Note, &nic.name, rule, says, mend),
            _ if falls_back => self.slow(&nic.name, rule, says, mend),
            _ => self.fault(&nic.name, rule, says, mend),
        }
    }

    fn offloads(&mut self, nic: &Nic) {
        let name = &nic.name;
        let has = |offload: &str| nic.offloads.iter().any(|on| on == offload);
        let runs = nic.program.is_some();
        if has("rx-lro") && !runs {
            self.refused(
 nic,
                "lro",
                format!("{name} joins segments (LRO): its driver refuses XDP, or hands out packets longer than the link carries"),
                format!("ethtool -K {name} lro off"),
            );
        }
        if has("rx-gro-hw") && !runs {
            let fixed = nic.fixed_offloads.iter().any(|fixed| fixed == "rx-gro-hw");
            let virtio = fixed && nic.driver == "virtio_net";
            self.slow(
                name,
                "gro-hw",
                format!("{name} joins segments in hardware (GRO-HW), and its driver runs no native XDP beside that"),
                match virtio {
                    true => "virsh edit GUEST  # <driver><guest csum='off' tso4='off' tso6='off' ecn='off' ufo='off'/></driver>".to_owned(),
                    false => format!("ethtool -K {name} rx-gro-hw off"),
                },
            );
        }
        if has("rx-vlan-hw-parse") && !nic.vlans.is_empty() {
            self.warn(
                name,
                "vlan-strip",
                format!("{name} takes VLAN tags off before programs run, and what comes for {} is sent on without one", nic.vlans.join(", ")),
                format!("ethtool -K {name} rxvlan off"),
            );
        }
    }

    fn queues(&mut self, nic: &Nic) {
        let (name, cpus, queues) = (&nic.name, self.seen.host.cpus, nic.queues);
        let software = nic.kind.is_some() || queues.receiving() == 0;
        if software || queues.receiving() >= cpus {
            return;
        }
        let mut most = queues.combined_max.max(queues.rx_max);
        if rule_of(nic).is_some_and(|rule| rule.doubles_queues) {
            most /= 2;
        }
        let could = most.min(cpus);
        let says = format!(
            "packets of {name} come in on {} of {cpus} CPUs, by as many queues",
            queues.receiving()
        );
        let kind = if queues.combined_max > 0 {
            "combined"
        } else {
            "rx"
        };
        if could > queues.receiving() {
            let mend = format!("ethtool -L {name} {kind} {could}");
            self.warn(name, "queues", says, mend);
        } else {
            let mend = format!("ethtool -l {name}");
            self.add(Level::Note, name, "queues", says, mend);
        }
    }

    fn reverse_path(&mut self, nic: &Nic) {
        let name = &nic.name;
        if nic.rp_filter != 1 || !self.wants.interfaces.contains(name) {
            return;
        }
        let mend = format!("sysctl -w net.ipv4.conf.{name}.rp_filter=2");
        let default = self.seen.default_device.as_deref();
        match self.wants.role {
            Role::Agent if default.is_some_and(|device| device != name) => self.fault(
                name,
                "rp-filter",
                format!("clients' packets come out of tunnels on {name}, and rp_filter drops those whose answers leave by {}", default.unwrap_or_default()),
                mend,
            ),
            Role::Balancer if self.wants.probes => {
                let other = self.seen.vips.iter().find(|vip| {
                    vip.address.is_ipv4() && vip.device.as_ref().is_some_and(|device| device != name)
                });
                if let Some(vip) = other {
                    self.fault(
                        name,
                        "rp-filter",
                        format!("answers to health probes come from {} on {name}, and rp_filter drops them: the route to it is by {}", vip.address, vip.device.as_deref().unwrap_or_default()),
                        mend,
                    );
                }
            }
            _ => {}
        }
    }

    fn way(&mut self) {
        for way in &self.seen.ways {
            let name = &way.interface;
            match &way.gateways {
                Err(error) => self.fault(
                    name,
                    "next-hop",
                    format!("the next hop cannot be found: {error}"),
                    "ip route".to_owned(),
                ),
                Ok(gateways) if gateways.is_empty() => self.fault(
                    name,
                    "next-hop",
                    format!("no route leads through a router on {name}, and encapsulated packets go to one"),
                    format!("ip route add default via ROUTER dev {name}"),
                ),
                Ok(gateways) => {
                    if let Some(real) = way.on_link.first() {
                        let router = gateways.iter().find(|one| one.0.is_ipv4() == real.is_ipv4());
                        let router = router.or(gateways.first()).map(|one| one.0.to_string());
                        let (count, router) = (way.on_link.len(), router.unwrap_or_default());
                        self.add(
                            Level::Note,
                            name,
                            "on-link",
                            format!("tunnels go to the router {router} also where the server is on this link, as {real}{}: it has to forward them back", match count {
                                1 => String::new(),
                                _ => format!(" and {} more", count - 1),
                            }),
                            "forwarding = \"l2\" with each server's mac in the file, if it does not".to_owned(),
                        );
                    }
                    // Without reals, either family's router is enough.
                    let enough = self.wants.reals.is_empty() && gateways.iter().any(|one| one.1);
                    let level = if enough { Level::Note } else { Level::Fault };
                    for (address, _) in gateways.iter().filter(|(_, answers)| !answers) {
                        self.add(
                            level,
                            name,
                            "next-hop",
                            format!("the router {address} on {name} does not answer with its MAC address"),
                            format!("ip neigh show {address} dev {name}; ping -c 3 {address}"),
                        );
                    }
                }
            }
        }
    }

    /// Whether servers that are reached by their MAC addresses have those.
    fn macs(&mut self) {
        for one in &self.seen.macs {
            let (name, real) = (&one.interface, one.real);
            match one.answers {
                None => self.add(
                    Level::Note,
                    name,
                    "real-silent",
                    format!("the server {real} does not answer with its MAC address on {name}, so that the file's cannot be compared"),
                    format!("ip neigh show {real} dev {name}; ping -c 3 {real}"),
                ),
                Some(answers) if answers != one.mac => {
                    let (answers, mac) = (MacAddress(answers), MacAddress(one.mac));
                    self.fault(
                        name,
                        "real-mac",
                        format!("the server {real} has the MAC address {answers}, and the file {mac}: its packets go elsewhere"),
                        format!("mac = \"{answers}\" for {real} in the file, then causeway reload"),
                    );
                }
                Some(_) => {}
            }
        }
    }

    /// Room for the outer header, on this link and on the way.
    fn mtu(&mut self) {
        let (wants, seen) = (self.wants, self.seen);
        for nic in seen
            .nics
            .iter()
            .filter(|nic| wants.interfaces.contains(&nic.name))
        {
            let name = &nic.name;
            if let Some(mtu) = wants.encap_mtu.filter(|mtu| u32::from(*mtu) > nic.mtu) {
                self.fault(
                    name,
                    "encap-mtu",
                    format!("encap.mtu = {mtu} is more than {name} carries, {}: longer packets are lost without a word", nic.mtu),
                    format!("ip link set {name} mtu {mtu}"),
                );
            }
            let whole = CLIENTS_MTU + u32::from(wants.overhead);
            if wants.role == Role::Balancer && wants.encapsulates() && nic.mtu < whole {
                self.add(
                    Level::Note,
                    name,
                    "outer-header",
                    format!("an outer header leaves {} of {name}'s {} bytes: clients' full packets are answered with \"packet too big\"", nic.mtu.saturating_sub(wants.overhead.into()), nic.mtu),
                    format!("ip link set {name} mtu {whole}"),
                );
            }
        }
        for one in &seen.reals {
            let place = wants.interfaces.first().map_or("host", String::as_str);
            // ping counts from behind the headers of IP and of the echo request.
            let headers = if one.real.is_ipv6() { 48 } else { 28 };
            match one.reach {
                Reach::Whole => {}
                Reach::Silent => self.add(
                    Level::Note,
                    place,
                    "path-mtu",
                    format!("{} answers no echo request, so that nothing is known of its path", one.real),
                    format!("ping -M do -s {} {}", one.tried.saturating_sub(headers), one.real),
                ),
                Reach::UpTo(bytes) => self.fault(
                    place,
                    "path-mtu",
                    format!("packets of more than {bytes} bytes are lost on the way to {}, and up to {} are sent", one.real, one.tried),
                    format!("encap.mtu = {bytes} in the balancer's file, then causeway reload"),
                ),
            }
        }
    }

    fn vips(&mut self) {
        if self.wants.lacks_vips {
            self.add(
                Level::Note,
                "host",
                "no-vips",
                "the file has no [[vip]]: the way to servers was not looked at".to_owned(),
                "causeway doctor -c FILE, with the file that `causeway status` names".to_owned(),
            );
        }
        for vip in &self.seen.vips {
            let address = vip.address;
            let whole = if address.is_ipv4() { 32 } else { 128 };
            match (self.wants.role, vip.held) {
                (Role::Balancer, true) => {
                    let serves = self.wants.passes_unserved;
                    let (on, mend) = match &vip.on {
                        Some((device, length)) => (
                            format!(" on {device}"),
                            format!("ip addr del {address}/{length} dev {device}"),
                        ),
                        // Of a route of type local.
                        None => (String::new(), format!("ip route get {address}")),
                    };
                    let says = match serves {
                        true => format!(
                            "this host holds the VIP {address}{on}, and answers its probes itself"
                        ),
                        false => format!(
                            "this host holds the VIP {address}{on}: it answers its probes itself, and what comes for it goes to reals or is dropped, SSH to this host included"
                        ),
                    };
                    if !serves || self.wants.probes {
                        self.fault("host", "vip-held", says, mend);
                    }
                }
                (Role::Agent, false) => self.fault(
                    "host",
                    "vip-missing",
                    format!(
                        "this server does not hold the VIP {address}, and drops what comes for it"
                    ),
                    format!("ip addr add {address}/{whole} dev lo"),
                ),
                _ => {}
            }
        }
        let v4 = self.seen.vips.iter().any(|vip| vip.address.is_ipv4());
        if self.wants.role == Role::Agent && v4 && self.seen.host.arp_ignore == 0 {
            self.warn(
                "host",
                "arp",
                "this server answers ARP requests for VIPs, and takes them from the balancers where they share a link".to_owned(),
                "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2".to_owned(),
            );
        }
    }

    fn tunnel(&mut self) {
        for (at, (device, peer, mtu)) in self.wants.paths.iter().enumerate() {
            let Some(device) = device else {
                self.fault(
                    "host",
                    "path-route",
                    format!("there is no route to the peer {peer}"),
                    format!("ip route get {peer}"),
                );
                continue;
            };
            let nic = self.seen.nics.iter().find(|nic| nic.name == *device);
            if let Some((nic, mtu)) = nic.zip(*mtu).filter(|(n, mtu)| u32::from(*mtu) > n.mtu) {
                self.fault(
                    device,
                    "path-mtu",
                    format!(
                        "the path to {peer} has mtu = {mtu}, and {device} carries {}",
                        nic.mtu
                    ),
                    format!("ip link set {device} mtu {mtu}"),
                );
            }
            let same = |other: &(Option<String>, IpAddr, Option<u16>)| {
                other.0.as_ref() == Some(device) && other.1 == *peer
            };
            if self.wants.paths[..at].iter().any(same) {
                self.add(
                    Level::Note,
                    device,
                    "path-shared",
                    format!("two paths go by {device} to {peer}: they are apart only where the network hashes ports"),
                    format!("ip route get {peer}"),
                );
            }
        }
    }
}
