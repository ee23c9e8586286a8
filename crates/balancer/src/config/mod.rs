// SPDX-License-Identifier: Apache-2.0
//! The balancer's configuration: values that cannot be wrong.
//!
//! A file goes text -> [`raw`] (serde, unknown keys refused) -> [`validate`]
//! (everything that two keys can contradict each other in) -> [`BalancerConfig`].
//! What holds a `BalancerConfig` need not check anything again.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use causeway_core::control::{ControlParams, Law};
use causeway_core::cookie::quic::CidRoute;
use causeway_core::cookie::{CookieLayout, CookieMode};

use causeway_dataplane::{ConnLayout, LoadBalancerOptions};

use causeway_service::config::Pieces;

mod announce;
mod clients_of;
#[cfg(test)]
mod clients_of_tests;
mod control;
pub mod cookie;
#[cfg(test)]
mod cookie_tests;
mod difference;
#[cfg(test)]
mod difference_tests;
mod discover;
pub(crate) mod fleet;
#[cfg(test)]
mod forms_tests;
mod hash_key;
mod health;
mod json;
mod limits;
mod peers;
mod pools;
mod probe;
pub mod quic;
#[cfg(test)]
mod quic_tests;
mod raw;
mod reader;
#[cfg(test)]
mod reader_tests;
mod reports;
mod shared_vip;
mod stateful;
#[cfg(test)]
mod tests;
mod validate;
mod vip;
mod words;

pub use causeway_dataplane::{FlowIdle, Prefix, Protocol, TableLimits, TunnelEnds, XdpMode};
use causeway_service::api::{ApiConfig, RawApi};
use causeway_service::config::{
    ConfigErrors, Faults, Migrated, Renamed, SocketGroup, migrate, open_secret, plural, read,
};

pub use announce::Announce;
pub use clients_of::{FlowLimitConfig, Source};
pub use cookie::{Beside, Cookies};
pub use discover::{Discover, RealsOrigin};
pub use fleet::{EtcdConfig, FleetConfig, FleetStore};
pub use hash_key::HashKey;
pub use health::Health;
pub use json::{changed_vip, real_from_json, real_to_json, reals_from_json, vip_from_json};
pub use peers::PeersConfig;
pub use probe::{Authorities, ProbeConfig, StatusRanges};
pub use reader::ConfigReader;
pub use reports::AgentReportsConfig;
pub use shared_vip::SharedVip;
pub use stateful::Stateful;
pub use words::{
    Affinity, Control, Fallback, ForwardingMode, Fragments, GueChecksum, LatencySource, LoadSource,
    OnStop, ProbeTo, RealRole, RecordType, Scheduler, Unserved,
};

/// Keys that had other names.
const RENAMED: &Renamed = &[
    ("clients", "agent_reports"),
    ("clients.listen", "agent_reports.listen"),
    ("clients.keys", "agent_reports.keys"),
    ("stateful.listen", "agent_reports.listen"),
    ("stateful.adopt", "learn_period"),
    ("stateful.tiers", "balancers"),
    ("stateful.tier", "number"),
    ("stateful.word_source", "token_source"),
    ("stateful.word_source6", "token_source6"),
    ("flow_table.ended", "closed_idle"),
    ("control.take_max", "max_decrease"),
    ("control.gain_cap", "max_increase"),
    ("peers.key_file", "keys"),
    ("vip.need", "min_healthy"),
    ("vip.source.otherwise", "fallback"),
];

/// Everything `causeway lb` needs to know.
#[derive(Debug, Clone, PartialEq)]
pub struct BalancerConfig {
    /// Interface that the XDP program is attached to.
    pub interface: String,
    /// Directory on a bpffs that holds maps and link.
    pub pin_dir: PathBuf,
    /// Directory of what outlives the process beside the pins.
    pub state_dir: PathBuf,
    /// Unix socket of the API.
    pub socket: PathBuf,
    /// Whose members may use it.
    pub socket_group: Option<SocketGroup>,
    /// Loopback address of the read-only HTTP API, if any.
    pub http: Option<SocketAddr>,
    /// How other hosts are served, if they are.
    pub api: Option<ApiConfig>,
    /// Remove VIPs and reals that the pinned maps hold and the file does not name.
    pub reconcile: bool,
    /// Whether a file without VIPs is meant, though some are in force.
    pub allow_empty: bool,
    /// Key of the hash that picks reals; `None` keeps the running one, or makes one.
    pub hash_key: Option<HashKey>,
    /// What becomes of packets to a VIP's address that are for no VIP.
    pub unserved: Unserved,
    /// How to attach the XDP program.
    pub xdp_mode: XdpMode,
    /// Outer header of encapsulated packets.
    pub encap: Encap,
    /// Most IPv4 and IPv6 flows remembered.
    pub flows_v4: u32,
    /// See `flows_v4`.
    pub flows_v6: u32,
    /// How long the flow table keeps silent flows.
    pub flow_idle: FlowIdle,
    /// Slots for connections of stateful VIPs.
    pub stateful: Stateful,
    /// How many VIPs and reals the data plane can hold.
    pub limits: TableLimits,
    /// Own addresses where tunnels of a first tier end.
    pub tunnel_ends: TunnelEnds,
    /// Networks whose tunnels are opened there; empty without them.
    pub tunnel_sources: BTreeSet<Prefix>,
    /// Whether the data plane measures latency.
    pub measure: bool,
    /// Constants of the controller.
    pub control: ControlParams,
    /// The law that `control = "observe"` computes by.
    pub law: Law,
    /// Keys of cookies; `None`: no VIP has cookies.
    pub cookies: Option<Cookies>,
    /// How VIPs that are ready are announced to routers, if they are.
    pub announce: Option<Announce>,
    /// Where agents report; `None`: nowhere.
    pub agent_reports: Option<AgentReportsConfig>,
    /// The fleet that it is a member of; `None`: it goes by its file alone.
    pub fleet: Option<FleetConfig>,
    /// The balancers of the same VIPs; `None`: this one steers alone.
    pub peers: Option<PeersConfig>,
    /// How much history per real the daemon keeps.
    pub history: Duration,
    /// The virtual services, in the file's order.
    pub vips: Vec<SharedVip>,
}

/// The outer header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encap {
    /// Source of outer IPv4 headers; host bits of the prefix carry entropy.
    pub source_v4: Option<(Ipv4Addr, u8)>,
    /// Source of outer IPv6 headers; as `source_v4`.
    pub source_v6: Option<(Ipv6Addr, u8)>,
    /// Next hop; `None` resolves the default route's neighbour.
    pub gateway_mac: Option<MacAddress>,
    /// Largest packet, outer header included, that the path to the reals carries.
    pub mtu: Option<u16>,
    /// UDP port of the reals' tunnel ends, with forwarding `gue`.
    pub gue_port: u16,
    /// When the UDP checksum is filled in, with forwarding `gue`.
    pub gue_checksum: GueChecksum,
}

/// An Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A virtual service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VipConfig {
    /// Name for people; the address and port where the file gives none.
    pub name: String,
    /// Address that clients connect to.
    pub address: IpAddr,
    /// Port; 0 means every port.
    pub port: u16,
    /// Transport protocol.
    pub protocol: Protocol,
    /// How a new connection picks its real.
    pub scheduler: Scheduler,
    /// What the scheduler takes for a real's load, if it looks at loads.
    pub load: LoadSource,
    /// Whether connections are remembered. Without that, every packet goes by the ring.
    pub flow_table: bool,
    /// How packets reach the real.
    pub forwarding: ForwardingMode,
    /// What becomes of IP fragments.
    pub fragments: Fragments,
    /// Whether a client's connections go to one real.
    pub affinity: Affinity,
    /// Whether connections get slots of their own.
    pub stateful: bool,
    /// Whether segments that nothing remembers carry the slot's former owner to servers.
    pub second_chance: bool,
    /// Whether latency moves the weights.
    pub control: Control,
    /// What it takes for a real's latency.
    pub latency: LatencySource,
    /// 1 in 2^k connections is measured; `None`: as many as the controller asks for.
    pub sampling: Option<u8>,
    /// How its connections' cookies are made, if they have any.
    pub cookie: Option<CookieLayout>,
    /// How the reals' health is probed; not at all without it.
    pub health: Option<Health>,
    /// Reals that must be up for the service to be offered.
    pub min_healthy: usize,
    /// Time in which a real that returns gets its weight back; zero: at once.
    pub slow_start: Duration,
    /// How many new flows a client prefix may open.
    pub limit: Option<FlowLimitConfig>,
    /// Clients that have reals of their own.
    pub sources: Vec<Source>,
    /// How QUIC connection ids carry a server's id; empty: they do not.
    pub quic: Vec<CidRoute>,
    /// Where more reals are discovered.
    pub discover: Option<Discover>,
    /// The servers, in the file's order, then those that discovery found.
    pub reals: Vec<RealConfig>,
}

/// A server of a VIP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RealConfig {
    /// Address of the server.
    pub address: IpAddr,
    /// Configured weight, at most [`WEIGHT_MAX`]; 0 takes no new connections.
    pub weight: u32,
    /// Ethernet address; always there when the VIP forwards by `l2`.
    pub mac: Option<MacAddress>,
    /// When it gets new connections.
    pub role: RealRole,
    /// Takes no new connections, keeps those it has.
    pub drain: bool,
    /// Its id in cookies, if the file names one.
    pub id: Option<u16>,
    /// Is being worked on: as `drain`, and not probed.
    pub maintenance: bool,
    /// It was discovered, and is not in the file.
    pub found: bool,
    /// It was discovered and is no longer: it drains, whatever else is set.
    pub gone: bool,
}

impl VipConfig {
    /// What identifies it in the data plane.
    pub fn key(&self) -> causeway_dataplane::Vip {
        causeway_dataplane::Vip {
            address: self.address,
            port: self.port,
            protocol: self.protocol,
        }
    }

    /// Address, port and protocol in one word, which no change of names changes.
    pub fn endpoint(&self) -> String {
        let endpoint = causeway_service::config::endpoint(self.address, self.port);
        format!("{endpoint}/{}", self.protocol)
    }

    /// Whether a real is for some clients alone.
    pub fn is_reserved(&self, real: &RealConfig) -> bool {
        let mut exclusive = self.sources.iter().filter(|source| source.exclusive);
        exclusive.any(|source| source.reals.contains(&real.address))
    }

    /// Whether its reals are stateful balancers, which have the connections.
    pub fn is_first_tier(&self) -> bool {
        self.cookie
            .is_some_and(|cookie| cookie.mode() == CookieMode::Tier)
    }
}

impl RealConfig {
    /// Whether an operator wants it to get new connections.
    pub fn is_wanted(&self) -> bool {
        !self.drain && !self.maintenance
    }

    /// The weight that it is meant to have: none while it drains.
    pub(crate) fn configured_weight(&self) -> f64 {
        match self.is_wanted() {
            true => f64::from(self.weight),
            false => 0.0,
        }
    }

    /// Whether it is probed where its VIP is. One that serves when all others are down is asked
    /// nothing: it is there or not.
    pub(crate) fn is_probed(&self) -> bool {
        !self.maintenance && self.role != RealRole::Sorry
    }

    /// Whether it counts for what its VIP needs, when it is up.
    pub(crate) fn is_counted(&self) -> bool {
        self.is_wanted() && self.weight > 0 && self.role != RealRole::Sorry
    }
}

impl ForwardingMode {
    /// Whether packets get an outer header.
    pub fn encapsulates(self) -> bool {
        match self {
            Self::Ipip | Self::Gue => true,
            Self::L2 => false,
        }
    }

    /// Bytes that a tunnel to a real of that family puts in front of a packet.
    pub fn overhead(self, ipv6: bool) -> u16 {
        let outer = if ipv6 { 40 } else { 20 };
        match self {
            Self::Ipip => outer,
            Self::Gue => outer + 8,
            Self::L2 => 0,
        }
    }
}

/// The reals of these VIPs whose packets get an outer header, each once.
pub(crate) fn encapsulated_reals(vips: &[SharedVip]) -> Vec<IpAddr> {
    let vips = vips.iter().filter(|vip| vip.forwarding.encapsulates());
    let reals = vips.flat_map(|vip| vip.reals.iter().map(|real| real.address));
    let mut distinct: Vec<IpAddr> = reals.collect();
    distinct.sort_unstable();
    distinct.dedup();
    distinct
}

/// Largest configured weight.
pub const WEIGHT_MAX: u32 = 65_535;

impl BalancerConfig {
    /// Reads and validates a file. All faults are reported together.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        Self::of_balancer(path, &read(path)?)
    }

    /// Validates the text of a file, which may turn out to be of another daemon.
    pub fn of_balancer(path: &Path, text: &str) -> Result<Self, ConfigErrors> {
        ConfigReader::default().of_balancer(path, text)
    }

    /// Validates the text of a file; `path` only names it in messages.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigErrors> {
        ConfigReader::default().read(path, text)
    }

    /// The same at once, which takes much memory. All faults are reported together.
    pub fn read_whole(path: &Path, text: &str) -> Result<Self, ConfigErrors> {
        Self::read_with(path, text, |_| ())
    }

    /// The same, but that nothing is a fault of the files of `[api]`.
    pub(crate) fn without_api_files(path: &Path, text: &str) -> Result<Self, ConfigErrors> {
        Self::read_with(path, text, RawApi::excuse_files)
    }

    fn read_with(path: &Path, text: &str, of_api: fn(&mut RawApi)) -> Result<Self, ConfigErrors> {
        let prepare = pools::put_out;
        let check = |mut raw: raw::RawConfig, faults: &mut Faults<'_>| {
            raw.api.as_mut().into_iter().for_each(of_api);
            let config = validate::config(raw, Beside::NOTHING, faults)?;
            reports::check(&config, faults);
            Some(config)
        };
        causeway_service::config::parse_prepared(path, text, RENAMED, prepare, check)
    }

    /// A sentence where the file of a text shows its secrets to every user.
    pub fn open_secret(path: &Path, text: &str) -> Option<String> {
        // No VIP has one, and there may be many.
        let rest = Pieces::of(text, "vip").map(|pieces| pieces.rest);
        let text = rest.as_deref().unwrap_or(text);
        open_secret(path, text, &[".hash_key", ".store.password"])
    }

    /// The text of a file by the names that its keys have now.
    pub fn migrated(text: &str) -> Result<Migrated, String> {
        // What VIPs share has the same names.
        let of_vip = RENAMED.iter().filter_map(|(old, new)| {
            let key = old.strip_prefix("vip.")?;
            Some([
                (format!("defaults.{key}"), *new),
                (format!("pool.*.{key}"), *new),
            ])
        });
        let shared: Vec<(String, &str)> = of_vip.flatten().collect();
        let shared = shared.iter().map(|(old, new)| (old.as_str(), *new));
        migrate(
            text,
            RENAMED.iter().map(|(old, new)| (*old, *new)).chain(shared),
        )
    }

    /// The keys of a file as a JSON Schema.
    pub fn schema() -> String {
        causeway_service::config::schema::<raw::RawConfig>("Configuration of causeway lb")
    }

    /// Checks a text that stands beside a file.
    fn parse_request(text: &str, beside: Beside) -> Result<Self, ConfigErrors> {
        causeway_service::config::parse(Path::new("request"), text, &[], |raw, faults| {
            validate::config(raw, beside, faults)
        })
    }

    /// Why a reload does not take this in the place of `running`, if it does not, and what does.
    pub fn refused_by_reload(&self, running: &Self) -> Option<String> {
        let unload = self.needs_unload(running);
        let mut restart = self.needs_restart(running);
        restart.retain(|key| !unload.contains(key));
        let mut whys = Vec::new();
        if !unload.is_empty() {
            let former = match unload.contains(&"pin_dir") {
                true => " with the former pin_dir",
                false => "",
            };
            whys.push(format!(
                "a change of `{}` needs the data plane taken down, so that nothing is forwarded meanwhile, and a restart alone is refused: stop the daemon, `causeway lb unload --yes`{former}, start it",
                unload.join("`, `")
            ));
        }
        if !restart.is_empty() {
            whys.push(format!(
                "a change of `{}` needs a restart of the daemon; the data plane keeps forwarding meanwhile",
                restart.join("`, `")
            ));
        }
        (!whys.is_empty()).then(|| whys.join("; "))
    }

    /// Whether a VIP's packets get an outer header, and so need a gateway.
    pub fn encapsulates(&self) -> bool {
        let mut vips = self.vips.iter();
        vips.any(|vip| vip.forwarding.encapsulates())
    }

    /// The reals whose packets get an outer header, each once.
    pub fn encapsulated_reals(&self) -> Vec<IpAddr> {
        encapsulated_reals(&self.vips)
    }

    /// What the data plane is started with.
    pub fn data_plane(&self) -> LoadBalancerOptions {
        LoadBalancerOptions {
            xdp_mode: self.xdp_mode,
            flows_v4: self.flows_v4,
            flows_v6: self.flows_v6,
            limits: self.limits,
            measure: self.measure,
            conns: ConnLayout {
                connections: self.stateful.connections,
                tier_bits: self.stateful.balancers.trailing_zeros() as u8,
                tier: self.stateful.number as u8,
            },
            tunnel_ends: self.tunnel_ends,
            pass_unserved: self.unserved == Unserved::Pass,
            tunnel_sources: self.tunnel_sources.clone(),
            ..LoadBalancerOptions::new(&self.interface, &self.pin_dir)
        }
    }

    /// One line for people.
    pub fn summary(&self) -> String {
        let reals: usize = self.vips.iter().map(|vip| vip.reals.len()).sum();
        format!(
            "{} with {} on {}",
            plural(self.vips.len(), "VIP"),
            plural(reals, "real"),
            self.interface
        )
    }
}
