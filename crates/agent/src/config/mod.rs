// SPDX-License-Identifier: Apache-2.0
//! The configuration of `causeway agent`, which serves one server.

mod clients;
mod quic;
mod raw;
mod report;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use causeway_core::agent_report::ReportKeys;
use causeway_core::cookie::CookieLayout;
use causeway_dataplane::{Prefix, Protocol, Vip, XdpMode};
use causeway_service::api::{self, ApiConfig, RawApi};
use causeway_service::config::{
    self, ConfigErrors, CookieKind, Faults, KeysFile, Renamed, SocketGroup, Spanned, cookie_kind,
    plural, read, text, token_source_v4, token_source_v6, vip_address,
};
use causeway_service::last_good::{CopyName, STATE_DIR, StartsByCopy};

pub(crate) use self::clients::WINDOW_MAX;
pub use self::clients::{ClientsConfig, Statistic, Threshold};
pub use self::quic::QuicIdsConfig;
use self::raw::{RawAgent, RawAgentCookie, RawAgentFile, RawAgentVip};
pub use self::report::AgentReportConfig;
pub use self::words::AcceptQueuePolicy;

/// Port of the agent's HTTP API: that of the balancer is free for one beside it.
const HTTP_PORT: u16 = 9471;
/// Room in the data plane's table.
const ADDRESSES_MAX: usize = 256;

/// The same of VIPs.
const VIPS_MAX: usize = 1024;
/// The same of networks that tunnels are opened from, less those of tokens.
const BALANCERS_MAX: usize = 1000;
const VIPS_MISSING: &str = "what a tunnel holds is let in for VIPs alone: name those that this server serves, for example vips = [\"192.0.2.1\"]";
const BALANCERS_MISSING: &str = "tunnels are opened from balancers alone: name the addresses or networks that theirs come from, `encap.source` and the interface's own there, for example balancers = [\"10.0.0.254\"]";

/// Keys that had other names.
const RENAMED: &Renamed = &[
    ("agent.cookie.balancers", "agent.report.to"),
    ("agent.clients.balancers", "agent.report.to"),
    ("agent.clients.keys", "agent.report.keys"),
    ("agent.load", "agent.report.load"),
    ("agent.load.balancers", "agent.report.to"),
    ("agent.load.interval", "agent.report.load_interval"),
    ("agent.load.keys", "agent.report.keys"),
    ("agent.cookie.word_source", "token_source"),
    ("agent.cookie.word_source6", "token_source6"),
];

/// Everything `causeway agent` needs to know.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentConfig {
    /// Interface where the balancers' packets arrive.
    pub interface: String,
    /// This server's addresses as balancers know it; empty where clients alone are measured.
    pub addresses: BTreeSet<IpAddr>,
    /// The VIPs that this server serves; the kernel must hold them.
    pub vips: BTreeSet<IpAddr>,
    /// Networks whose tunnels are opened: the balancers'.
    pub balancers: BTreeSet<Prefix>,
    /// Directory on a bpffs that holds maps and link.
    pub pin_dir: PathBuf,
    /// Directory of what outlives the process: the last good file, and the last good book.
    pub state_dir: PathBuf,
    /// Unix socket of the API.
    pub socket: PathBuf,
    /// Whose members may use it.
    pub socket_group: Option<SocketGroup>,
    /// Loopback address of the read-only HTTP API, if any.
    pub http: Option<SocketAddr>,
    /// How other hosts are served, if they are.
    pub api: Option<ApiConfig>,
    /// How to attach the XDP program.
    pub xdp_mode: XdpMode,
    /// UDP port where GUE arrives.
    pub gue_port: u16,
    /// Cookies of the VIPs; `None`: none are written.
    pub cookies: Option<AgentCookies>,
    /// What is measured of clients; `None`: nothing.
    pub clients: Option<ClientsConfig>,
    /// To whom it reports, and what; `None`: nothing.
    pub report: Option<AgentReportConfig>,
    /// Where QUIC programs read what to issue connection ids by.
    pub quic: QuicIdsConfig,
}

/// What a server needs to know to write cookies.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentCookies {
    /// The keys file.
    pub file: PathBuf,
    /// What it holds.
    pub keys: KeysFile,
    /// A control group that the services run in; `None`: the root.
    pub cgroup: Option<PathBuf>,
    /// By VIP, this server's id and how cookies are made.
    pub vips: BTreeMap<Vip, (u16, CookieLayout)>,
    /// Source of IP-in-IP headers whose last 16 bits are a connection's token.
    pub token_source_v4: Option<Ipv4Addr>,
    /// The same over IPv6.
    pub token_source_v6: Option<Ipv6Addr>,
    /// Longest IP packet that the tunnels carry.
    pub inner_mtu: Option<u16>,
}

impl AgentConfig {
    /// The keys of a file as a JSON Schema.
    pub fn schema() -> String {
        config::schema::<raw::RawAgentFile>("Configuration of causeway agent")
    }

    /// Reads and validates a file. All faults are reported together.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        Self::parse(path, &read(path)?)
    }

    /// Validates the text of a file; `path` only names it in messages.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigErrors> {
        Self::parse_with(path, text, |_| ())
    }

    /// The text of a file by the names that its keys have now.
    pub fn migrated(text: &str) -> Result<config::Migrated, String> {
        config::migrate(text, RENAMED.iter().copied())
    }

    /// The first key that differs from `running` and cannot change while the
    /// agent runs.
    pub fn needs_restart(&self, running: &Self) -> Option<&'static str> {
        // What the kernel counts by, and how much it sets aside for it.
        let clients = |same: fn(&ClientsConfig, &ClientsConfig) -> bool| {
            let both = self.clients.as_ref().zip(running.clients.as_ref());
            both.is_none_or(|(wanted, running)| same(wanted, running))
        };
        let same = [
            ("interface", self.interface == running.interface),
            ("pin_dir", self.pin_dir == running.pin_dir),
            ("state_dir", self.state_dir == running.state_dir),
            ("socket", self.socket == running.socket),
            ("http", self.http == running.http),
            ("api.listen", self.serves_at() == running.serves_at()),
            ("xdp.mode", self.xdp_mode == running.xdp_mode),
            ("gue_port", self.gue_port == running.gue_port),
            (
                "cookie",
                self.cookies.is_some() == running.cookies.is_some(),
            ),
            ("cookie.cgroup", self.cgroup() == running.cgroup()),
            (
                "clients",
                self.clients.is_some() == running.clients.is_some(),
            ),
            (
                "clients.interfaces",
                clients(|a, b| a.interfaces == b.interfaces),
            ),
            ("clients.services", clients(|a, b| a.services == b.services)),
            ("clients.others", clients(|a, b| a.others == b.others)),
            ("clients.prefixes", clients(|a, b| a.prefixes == b.prefixes)),
            ("clients.slot", clients(|a, b| a.slot == b.slot)),
            (
                "clients.half_open",
                clients(|a, b| a.half_open == b.half_open),
            ),
            (
                "clients.connections",
                clients(|a, b| a.connections == b.connections),
            ),
            ("report", self.reported() == running.reported()),
            (
                "cookie.token_source",
                self.token_sources() == running.token_sources(),
            ),
            ("cookie.inner_mtu", self.inner_mtu() == running.inner_mtu()),
            ("addresses", self.decapsulates() == running.decapsulates()),
        ];
        same.iter().find(|(_, same)| !same).map(|(key, _)| *key)
    }

    /// Whether a start refuses another value of this key, too, as long as the data plane runs.
    pub fn needs_unload(key: &str) -> bool {
        matches!(key, "interface" | "pin_dir" | "xdp.mode")
    }

    /// Whether packets come here by tunnels, or carry cookies; else clients alone are measured,
    /// which needs no XDP program.
    pub fn decapsulates(&self) -> bool {
        self.clients.is_none() || self.cookies.is_some() || !self.addresses.is_empty()
    }

    /// Networks that bare IP tunnels with tokens come from.
    pub fn token_sources(&self) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
        let cookies = self.cookies.as_ref();
        cookies.map_or((None, None), |c| (c.token_source_v4, c.token_source_v6))
    }

    /// All networks that tunnels are opened from.
    pub fn tunnel_sources(&self) -> BTreeSet<Prefix> {
        let (v4, v6) = self.token_sources();
        let tokens = [
            v4.map(|v4| (IpAddr::V4(v4), 16)),
            v6.map(|v6| (IpAddr::V6(v6), 112)),
        ];
        let tokens = tokens.into_iter().flatten();
        tokens.chain(self.balancers.iter().copied()).collect()
    }

    /// The VIPs that tunnels may hold packets for.
    pub fn tunnelled_vips(&self) -> BTreeSet<IpAddr> {
        let cookies = self.cookies.iter().flat_map(|cookies| cookies.vips.keys());
        let vips = cookies.map(|vip| vip.address);
        vips.chain(self.vips.iter().copied()).collect()
    }

    /// Longest IP packet that the tunnels carry, if SYN-ACKs are to say so.
    pub fn inner_mtu(&self) -> Option<u16> {
        self.cookies.as_ref()?.inner_mtu
    }

    /// Whether it follows the fleet's book, which balancers send.
    pub fn follows_book(&self) -> bool {
        self.report.as_ref().is_some_and(|report| report.book)
    }

    fn reported(&self) -> Option<[bool; 4]> {
        self.report.as_ref().map(AgentReportConfig::features)
    }

    fn cgroup(&self) -> Option<&Path> {
        self.cookies.as_ref()?.cgroup.as_deref()
    }

    /// Whether this server holds what would let it speak for every other.
    pub fn has_balancers_keys(&self) -> bool {
        let cookies = self.cookies.as_ref();
        let cookies = cookies.and_then(|cookies| cookies.keys.reports.as_ref());
        let report = self.report.as_ref().map(|report| &report.keys);
        let mut all = cookies.into_iter().chain(report);
        all.any(ReportKeys::are_the_balancers)
    }

    fn serves_at(&self) -> Option<SocketAddr> {
        self.api.as_ref().map(|api| api.listen)
    }

    /// One line for people.
    pub fn summary(&self) -> String {
        let what = match self.addresses.len() {
            1 => "1 tunnel address".to_owned(),
            count => format!("{count} tunnel addresses"),
        };
        let cookies = match &self.cookies {
            Some(cookies) => format!(", {} of them with cookies,", cookies.vips.len()),
            None => String::new(),
        };
        format!(
            "{what} and {}{cookies} on {}",
            plural(self.vips.len(), "VIP"),
            self.interface
        )
    }
}

impl StartsByCopy for AgentConfig {
    const COPY: CopyName = CopyName {
        name: "agent-last-good.toml",
        key: &["agent", "state_dir"],
    };

    fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    fn parse_with(path: &Path, text: &str, of_api: fn(&mut RawApi)) -> Result<Self, ConfigErrors> {
        let kind = ("agent", "an agent's");
        config::parse_table(path, text, kind, RENAMED, |file: RawAgentFile, faults| {
            let mut raw = file.agent?;
            raw.api.as_mut().into_iter().for_each(of_api);
            config(&raw, faults)
        })
    }
}

/// Whether a file is an agent's and not a balancer's.
pub fn is_agents(text: &str) -> bool {
    config::has_key(text, "agent")
}

fn config(raw: &RawAgent, faults: &mut Faults<'_>) -> Option<AgentConfig> {
    let interface = config::interface(raw.interface.as_ref(), "the balancers'", faults);
    let cookies: Option<Option<AgentCookies>> = raw.cookie.as_ref().map(|raw| cookies(raw, faults));
    let clients = match &raw.clients {
        Some(clients) => {
            let interface = interface.as_deref();
            clients::clients(clients, interface, &raw.accept_queue, faults)
        }
        None => {
            if let Some(mode) = &raw.accept_queue {
                faults.at(
                    mode.span(),
                    "`accept_queue` goes by client latency; add [agent.clients], which measures it",
                );
            }
            None
        }
    };
    let tunnels = raw.cookie.is_none() && raw.clients.is_none();
    let addresses = addresses(&raw.addresses, !tunnels, faults);
    if let Some(surplus) = raw.vips.get(VIPS_MAX) {
        faults.at(surplus.span(), format!("there is room for {VIPS_MAX} VIPs"));
    }
    let vips = addresses_of(&raw.vips, faults);
    let balancers = balancers(&raw.balancers, faults);
    let follows_book = raw.report.as_ref().is_some_and(|of| of.book == Some(true));
    let given = raw.cookie.as_ref().and_then(|cookie| cookie.vip.first());
    if let Some(vip) = given.filter(|_| follows_book) {
        faults.at(
            vip.span(),
            "with [agent.report] book = true ids come from the fleet's book; remove the [[agent.cookie.vip]]",
        );
    }
    if !raw.addresses.is_empty() && !follows_book {
        for (key, is_missing, remedy) in [
            ("vips", raw.vips.is_empty(), VIPS_MISSING),
            ("balancers", raw.balancers.is_empty(), BALANCERS_MISSING),
        ] {
            if is_missing {
                faults.file(format!("`{key}` is missing; {remedy}"));
            }
        }
    }
    for address in &raw.vips {
        let parsed = address.as_ref().parse::<IpAddr>();
        if parsed.is_ok_and(|parsed| addresses.contains(&parsed)) {
            faults.at(
                address.span(),
                format!(
                    "vip {} is among `addresses` too; those are the server's own",
                    address.as_ref()
                ),
            );
        }
    }
    let mode = config::text(raw.xdp.mode.as_ref(), faults, |word| {
        config::one_of("XDP mode", &XdpMode::WORDS, word)
    });
    let sources = report::Sources {
        addresses: &addresses,
        vips: &vips,
        cookies: cookies.as_ref().and_then(Option::as_ref),
        clients: clients.as_ref(),
    };
    // What is missing because of a fault elsewhere is not a fault here.
    let is_whole = raw.cookie.is_none() == sources.cookies.is_none()
        && raw.clients.is_none() == clients.is_none();
    let report = raw.report.as_ref().filter(|_| is_whole);
    let report = report.map(|raw| report::report(raw, &sources, faults));
    let http = config::http(raw.http.as_ref(), HTTP_PORT, faults);
    let socket = config::directory(raw.socket.as_ref(), "/run/causeway/agent.sock", faults);
    let quic = quic::quic_ids(raw.quic.as_ref(), &socket, follows_book, faults);
    Some(AgentConfig {
        report: match report {
            None => None,
            Some(report) => Some(report?),
        },
        interface: interface?,
        addresses,
        vips,
        balancers,
        pin_dir: config::directory(raw.pin_dir.as_ref(), "/sys/fs/bpf/causeway-agent", faults),
        state_dir: config::directory(raw.state_dir.as_ref(), STATE_DIR, faults),
        quic,
        socket,
        socket_group: config::socket_group(raw.socket_group.as_ref(), faults),
        http,
        api: api::api(raw.api.as_ref(), http, faults),
        xdp_mode: mode.unwrap_or(XdpMode::Auto),
        gue_port: config::gue_port(raw.gue_port.as_ref(), faults),
        cookies: match cookies {
            None => None,
            Some(cookies) => Some(cookies?),
        },
        clients: match raw.clients {
            None => None,
            Some(_) => Some(clients?),
        },
    })
}

/// A server that is reached by `l2` alone, or by no balancer at all, has no tunnels, but
/// may have cookies or be measured.
fn addresses(
    raw: &[Spanned<String>],
    has_other_work: bool,
    faults: &mut Faults<'_>,
) -> BTreeSet<IpAddr> {
    if raw.is_empty() && !has_other_work {
        faults.file("`addresses` is missing; name the addresses that balancers know this server by, for example addresses = [\"10.0.0.1\"]");
    }
    if let Some(surplus) = raw.get(ADDRESSES_MAX) {
        faults.at(
            surplus.span(),
            format!("there is room for {ADDRESSES_MAX} addresses"),
        );
    }
    addresses_of(raw, faults)
}

/// Networks, or single addresses.
fn balancers(raw: &[Spanned<String>], faults: &mut Faults<'_>) -> BTreeSet<Prefix> {
    if let Some(surplus) = raw.get(BALANCERS_MAX) {
        faults.at(
            surplus.span(),
            format!("there is room for {BALANCERS_MAX} networks"),
        );
    }
    let read = |place| text(Some(place), faults, config::address_or_network);
    raw.iter().filter_map(read).collect()
}

fn cookies(raw: &RawAgentCookie, faults: &mut Faults<'_>) -> Option<AgentCookies> {
    if raw.keys.is_none() {
        faults.file("`keys` is missing under [agent.cookie]; name this server's keys file, which `causeway cookie server-keys` on a balancer makes");
    }
    let keys = config::keys_of(raw.keys.as_ref(), config::SERVERS_KEYS, faults);
    let cgroup = text(raw.cgroup.as_ref(), faults, config::absolute_path);
    let mut vips = BTreeMap::new();
    for spanned in &raw.vip {
        if let Some((vip, value)) = cookie_vip(spanned, faults)
            && vips.insert(vip, value).is_some()
        {
            faults.at(spanned.span(), format!("vip {vip} is given twice"));
        }
    }
    let (file, keys) = keys?;
    Some(AgentCookies {
        file,
        keys,
        cgroup,
        vips,
        token_source_v4: text(raw.token_source.as_ref(), faults, token_source_v4),
        token_source_v6: text(raw.token_source6.as_ref(), faults, token_source_v6),
        inner_mtu: inner_mtu(raw.inner_mtu.as_ref(), faults),
    })
}

fn inner_mtu(value: Option<&Spanned<i64>>, faults: &mut Faults<'_>) -> Option<u16> {
    let fits = |mtu: &u16| (1280..=9216).contains(mtu);
    config::number(value, fits, faults, |_| {
        "inner_mtu must lie between 1280 and 9216; it is the path's MTU less the outer header, 20 to 48 bytes".to_owned()
    })
}

fn cookie_vip(
    spanned: &Spanned<RawAgentVip>,
    faults: &mut Faults<'_>,
) -> Option<(Vip, (u16, CookieLayout))> {
    let raw = spanned.as_ref();
    let hint = "`causeway cookie agent ADDRESS` on the balancer prints the whole entry";
    for (key, missing) in [
        ("address", raw.address.is_none()),
        ("port", raw.port.is_none()),
        ("id", raw.id.is_none()),
    ] {
        if missing {
            faults.at(spanned.span(), format!("the vip has no `{key}`; {hint}"));
        }
    }
    let address = text(raw.address.as_ref(), faults, vip_address);
    let kind = text(raw.cookie.as_ref(), faults, cookie_kind);
    let kind = kind.unwrap_or(CookieKind::Timestamp);
    if kind == CookieKind::None {
        faults.at(
            spanned.span(),
            "a vip with cookie = \"none\" needs no entry here; remove it",
        );
        return None;
    }
    if kind == CookieKind::Tier {
        faults.at(
            spanned.span(),
            "cookie = \"tier\" is a first-tier balancer's; a server writes what the second tier has, say \"timestamp\"",
        );
        return None;
    }
    let format = config::cookie_format(
        kind,
        raw.cookie_bits.as_ref(),
        raw.cookie_id_bits.as_ref(),
        faults,
    );
    let id = config::cookie_id(raw.id.as_ref(), format.as_ref(), faults);
    let port = config::vip_port(raw.port.as_ref()?, faults);
    let vip = Vip {
        address: address?,
        port: port?,
        protocol: Protocol::Tcp,
    };
    Some((vip, (id?, format?)))
}

fn addresses_of(raw: &[Spanned<String>], faults: &mut Faults<'_>) -> BTreeSet<IpAddr> {
    let mut found = BTreeSet::new();
    for spanned in raw {
        let Some(address) = config::text(Some(spanned), faults, vip_address) else {
            continue;
        };
        if !found.insert(address) {
            faults.at(spanned.span(), format!("{address} is given twice"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[agent]
interface = "eth0"
addresses = ["10.0.0.1", "2001:db8::1"]
vips = ["192.0.2.1"]
balancers = ["10.0.0.254", "10.9.0.0/16"]
[agent.xdp]
mode = "generic"
"#;

    fn parse(text: &str) -> Result<AgentConfig, ConfigErrors> {
        AgentConfig::parse(Path::new("agent.toml"), text)
    }

    #[test]
    fn a_good_file_gives_its_values() {
        let config = parse(GOOD).unwrap();
        assert_eq!(config.summary(), "2 tunnel addresses and 1 VIP on eth0");
        assert_eq!(config.xdp_mode, XdpMode::Generic);
        assert_eq!(config.pin_dir, Path::new("/sys/fs/bpf/causeway-agent"));
        assert_eq!(config.http, Some("127.0.0.1:9471".parse().unwrap()));
        assert_eq!(config.needs_restart(&config), None);
        let balancers = [("10.0.0.254", 32), ("10.9.0.0", 16)];
        let balancers = balancers.map(|(address, bits)| (address.parse().unwrap(), bits));
        assert_eq!(config.tunnel_sources(), balancers.into());
    }

    #[test]
    fn each_fault_is_one_sentence_with_its_place() {
        for (from, to, expected) in [
            (
                "interface = \"eth0\"",
                "",
                "agent.toml: `interface` is missing; name the interface that the balancers' packets enter by, for example interface = \"eth0\"",
            ),
            (
                "addresses = [\"10.0.0.1\", \"2001:db8::1\"]",
                "",
                "agent.toml: `addresses` is missing; name the addresses that balancers know this server by, for example addresses = [\"10.0.0.1\"]",
            ),
            (
                "vips = [\"192.0.2.1\"]",
                "",
                "agent.toml: `vips` is missing; what a tunnel holds is let in for VIPs alone: name those that this server serves, for example vips = [\"192.0.2.1\"]",
            ),
            (
                "balancers = [\"10.0.0.254\", \"10.9.0.0/16\"]",
                "",
                "agent.toml: `balancers` is missing; tunnels are opened from balancers alone: name the addresses or networks that theirs come from, `encap.source` and the interface's own there, for example balancers = [\"10.0.0.254\"]",
            ),
            (
                "10.9.0.0/16",
                "10.9.0.1/16",
                "agent.toml:6: `10.9.0.1/16` has bits behind its length; set them to zero",
            ),
            (
                "addresses =",
                "adresses =",
                "agent.toml:4: unknown key `adresses`; did you mean `addresses`?",
            ),
            (
                "10.0.0.1",
                "10.0.0",
                "agent.toml:4: `10.0.0` is not a valid IP address; write for example 192.0.2.1 or 2001:db8::1",
            ),
            (
                "2001:db8::1",
                "10.0.0.1",
                "agent.toml:4: 10.0.0.1 is given twice",
            ),
            (
                "192.0.2.1",
                "10.0.0.1",
                "agent.toml:5: vip 10.0.0.1 is among `addresses` too; those are the server's own",
            ),
            (
                "generic",
                "genric",
                "agent.toml:8: unknown XDP mode `genric`; did you mean `generic`?",
            ),
        ] {
            let errors = parse(&GOOD.replacen(from, to, 1)).expect_err(to);
            let text = errors.to_string();
            assert!(text.lines().any(|line| line == expected), "{text}");
        }
        assert_eq!(
            parse("").unwrap_err().to_string(),
            "agent.toml: `[agent]` is missing; an agent's file has all its keys in that table"
        );
    }

    #[test]
    fn the_example_is_valid_and_its_comments_name_the_defaults() {
        let example = include_str!("../../../../packaging/etc/agent.toml");
        let uncommented: Vec<&str> = example
            .lines()
            .map(|line| line.strip_prefix("#: ").unwrap_or(line))
            .collect();
        assert_ne!(uncommented.join("\n"), example);
        assert_eq!(parse(&uncommented.join("\n")), parse(example));
        assert!(parse(example).is_ok());
    }

    #[test]
    fn the_two_kinds_of_file_are_told_apart() {
        assert!(is_agents(GOOD));
        assert!(!is_agents("interface = \"eth0\"\n"));
        assert!(!is_agents("[agent"));
    }

    #[test]
    fn an_agent_knows_its_ids() {
        let keys = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            keys.path(),
            "current = 0\nkey0 = \"000102030405060708090a0b0c0d0e0f\"\n",
        )
        .unwrap();
        let agent = |entry: &str| {
            let text = format!(
                "[agent]\ninterface = \"eth0\"\nvips = [\"192.0.2.1\"]\n[agent.cookie]\n\
                 keys = \"{}\"\n[[agent.cookie.vip]]\n{entry}\n",
                keys.path().display()
            );
            AgentConfig::parse(Path::new("agent.toml"), &text).map_err(|e| e.to_string())
        };
        let config = agent("address = \"192.0.2.1\"\nport = 80\nid = 7\ncookie_bits = 14").unwrap();
        let cookies = config.cookies.unwrap();
        let (vip, (id, format)) = cookies.vips.first_key_value().unwrap();
        assert_eq!(vip.to_string(), "192.0.2.1:80/tcp");
        assert_eq!((*id, format.bits()), (7, 14));
        for (entry, expected) in [
            ("address = \"192.0.2.1\"\nport = 80", "the vip has no `id`"),
            ("address = \"192.0.2.1\"\nid = 7", "the vip has no `port`"),
            (
                "address = \"192.0.2.1\"\nport = 80\nid = 1024",
                "id 1024 is out of range",
            ),
            (
                "address = \"192.0.2.1\"\nport = 80\nid = 1\ncookie = \"none\"",
                "needs no entry",
            ),
        ] {
            let error = agent(entry).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
