// SPDX-License-Identifier: Apache-2.0
//! The configuration of `causeway tunnel`, one end of a tunnel.

mod keys;
mod raw;
mod words;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use causeway_bifrost::{PathId, Rto, TransportConfig, TunnelKeys};
use causeway_service::api::{self, ApiConfig, RawApi};
use causeway_service::config::{
    self, ConfigErrors, CountValue, Faults, SocketGroup, Spanned, Time, Words, number_within,
    plural, prefix_length, read, text, time_within, units,
};
use causeway_service::last_good::{CopyName, STATE_DIR, StartsByCopy};

use self::raw::{RawEngine, RawFile, RawPath, RawTunnel};
pub use self::words::{PollMode, TunnelSchedule};

/// Port of the HTTP API: those of balancer and agent may be in use on the machine.
const HTTP_PORT: u16 = 9473;
/// Threads: each has a socket on every path, and a port of its own at both ends.
const THREADS_MAX: usize = 64;
/// Frames that the ring in front of the guest takes.
const VNIC_QUEUE: usize = 1024;

/// Keys that a file of an earlier version may have.
const RENAMED: &config::Renamed = &[
    ("tunnel.engine.delta", "switch_gain"),
    ("tunnel.engine.hold", "reorder_timeout"),
    ("tunnel.engine.give_up", "frame_lifetime"),
    ("tunnel.engine.give_up_tries", "max_transmissions"),
];

/// Everything that one end of a tunnel needs to know.
#[derive(Debug, Clone, PartialEq)]
pub struct TunnelConfig {
    /// Name of the TUN device.
    pub device: String,
    /// File of the network namespace that it stands in; `None`: the tunnel's own.
    pub netns: Option<PathBuf>,
    /// Its MTU: what the guests' packets may have at most.
    pub mtu: u32,
    /// Packets that may wait in it for the tunnel; `None`: as the kernel has it.
    pub queue: Option<u32>,
    pub addresses: Vec<(IpAddr, u8)>,
    /// Whether it stays when the tunnel ends.
    pub persist: bool,
    /// Threads, each with a queue of the device and a socket on every path.
    pub threads: usize,
    /// How threads wait.
    pub poll: PollMode,
    /// Directory of what outlives the process: the last good file.
    pub state_dir: PathBuf,
    /// Unix socket of the API.
    pub socket: PathBuf,
    /// Whose members may use it.
    pub socket_group: Option<SocketGroup>,
    /// Loopback address of the read-only HTTP API, if any.
    pub http: Option<SocketAddr>,
    /// How other hosts are served, if they are.
    pub api: Option<ApiConfig>,
    /// What the engine does: how paths are chosen and losses repaired. It has no keys where the
    /// file says that datagrams travel in clear.
    pub engine: TransportConfig,
    /// Frames that the ring in front of the guest takes.
    pub vnic_queue: usize,
    /// The paths by their ids; never empty.
    pub paths: BTreeMap<u8, TunnelPathConfig>,
}

/// One path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelPathConfig {
    /// Address and port here, of the first thread; further threads have the next ports.
    pub local: SocketAddr,
    /// Address and port there.
    pub remote: SocketAddr,
    /// Device that packets go out of; `None`: as routes say.
    pub device: Option<String>,
    /// Largest IP packet; `None`: the MTU that the kernel knows.
    pub mtu: Option<u16>,
}

impl TunnelPathConfig {
    /// Whether the other can go on with this one's sockets, which may get another remote address.
    pub fn has_socket_of(&self, other: &Self) -> bool {
        (self.local, &self.device) == (other.local, &other.device)
    }
}

impl TunnelConfig {
    /// The text of a file by the names that its keys have now.
    pub fn migrated(text: &str) -> Result<config::Migrated, String> {
        config::migrate(text, RENAMED.iter().copied())
    }

    /// The keys of a file as a JSON Schema.
    pub fn schema() -> String {
        config::schema::<raw::RawFile>("Configuration of causeway tunnel")
    }

    /// Reads and validates a file. All faults are reported together.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        Self::parse(path, &read(path)?)
    }

    /// Validates the text of a file; `path` only names it in messages.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigErrors> {
        Self::parse_with(path, text, |_| ())
    }

    /// The first key that differs from `running` and cannot change while the tunnel
    /// runs.
    pub fn needs_restart(&self, running: &Self) -> Option<&'static str> {
        let same = [
            ("device", self.device == running.device),
            ("netns", self.netns == running.netns),
            ("mtu", self.mtu == running.mtu),
            ("queue", self.queue == running.queue),
            ("addresses", self.addresses == running.addresses),
            ("persist", self.persist == running.persist),
            ("threads", self.threads == running.threads),
            ("state_dir", self.state_dir == running.state_dir),
            ("socket", self.socket == running.socket),
            ("http", self.http == running.http),
            ("api.listen", self.serves_at() == running.serves_at()),
            // Both ends would have to change in the same instant.
            ("keys", self.is_sealed() == running.is_sealed()),
        ];
        same.iter().find(|(_, same)| !same).map(|(key, _)| *key)
    }

    fn serves_at(&self) -> Option<SocketAddr> {
        self.api.as_ref().map(|api| api.listen)
    }

    fn is_sealed(&self) -> bool {
        self.engine.keys.send.is_some()
    }

    /// One line for people.
    pub fn summary(&self) -> String {
        let sealed = match self.is_sealed() {
            true => "sealed",
            false => "in clear",
        };
        format!(
            "{} with {} and {}, {sealed}",
            self.device,
            plural(self.paths.len(), "path"),
            plural(self.threads, "thread"),
        )
    }
}

impl StartsByCopy for TunnelConfig {
    const COPY: CopyName = CopyName {
        name: "tunnel-last-good.toml",
        key: &["tunnel", "state_dir"],
    };

    fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    fn parse_with(path: &Path, text: &str, of_api: fn(&mut RawApi)) -> Result<Self, ConfigErrors> {
        let kind = ("tunnel", "a tunnel's");
        config::parse_table(path, text, kind, RENAMED, |file: RawFile, faults| {
            let mut raw = file.tunnel?;
            raw.api.as_mut().into_iter().for_each(of_api);
            config(&raw, faults)
        })
    }
}

/// Whether a file is a tunnel's.
pub fn is_tunnels(text: &str) -> bool {
    config::has_key(text, "tunnel")
}

fn config(raw: &RawTunnel, faults: &mut Faults<'_>) -> Option<TunnelConfig> {
    if raw.device.is_none() {
        faults.file("`device` is missing; name the TUN device that guests are routed to, for example device = \"cw0\"");
    }
    let device = text(raw.device.as_ref(), faults, device_name);
    let addresses = raw
        .addresses
        .iter()
        .filter_map(|address| text(Some(address), faults, prefix))
        .collect();
    let threads = number_within(raw.threads.as_ref(), "threads", 1..=THREADS_MAX, faults);
    let threads = threads.unwrap_or(1);
    let queue = number_within(raw.queue.as_ref(), "queue", 1..=65_536, faults);
    let netns = text(raw.netns.as_ref(), faults, config::absolute_path);
    if raw.keys.is_none() {
        faults.file(
            "`keys` is missing; name the file with the keys of both ends, for example keys = \"/etc/causeway/tunnel.keys\", or write keys = \"none\" to send everything in clear",
        );
    }
    let keys = text(raw.keys.as_ref(), faults, |path| {
        if path == "none" {
            return Ok(TunnelKeys::default());
        }
        let file = config::absolute_path(path)?;
        keys::read(&file).map_err(|error| {
            let error = config::or_made_by(&file, error, keys::MAKES_FILE);
            format!("keys file {path}: {error}")
        })
    });
    let http = config::http(raw.http.as_ref(), HTTP_PORT, faults);
    let vnic_queue = raw.engine.vnic_queue.as_ref();
    let vnic_queue = number_within(vnic_queue, "vnic_queue", 1..=65_536, faults);
    Some(TunnelConfig {
        netns,
        mtu: number_within(raw.mtu.as_ref(), "mtu", 1280..=65_535, faults).unwrap_or(1500),
        queue,
        addresses,
        persist: raw.persist.unwrap_or(false),
        threads,
        poll: text(raw.poll.as_ref(), faults, PollMode::from_word).unwrap_or(PollMode::Sleep),
        state_dir: config::directory(raw.state_dir.as_ref(), STATE_DIR, faults),
        socket: config::directory(raw.socket.as_ref(), "/run/causeway/tunnel.sock", faults),
        socket_group: config::socket_group(raw.socket_group.as_ref(), faults),
        http,
        api: api::api(raw.api.as_ref(), http, faults),
        engine: TransportConfig {
            keys: keys.unwrap_or_default(),
            ..engine(&raw.engine, faults)
        },
        vnic_queue: vnic_queue.unwrap_or(VNIC_QUEUE),
        paths: paths(&raw.path, threads, faults)?,
        device: device?,
    })
}

fn engine(raw: &RawEngine, faults: &mut Faults<'_>) -> TransportConfig {
    let default = TransportConfig::default();
    let mut ns = |value: &Time, what, range| {
        let time = time_within(value.as_ref(), what, range, faults);
        time.map(|time| time.as_nanos() as u64)
    };
    let switch_gain_ns = ns(&raw.switch_gain, "switch_gain", ["0ns", "1s"]);
    let queue_target_ns = ns(&raw.queue_target, "queue_target", ["10µs", "1s"]);
    let read_ahead_ns = ns(&raw.read_ahead, "read_ahead", ["0ns", "1s"]);
    let reorder_timeout_ns = ns(&raw.reorder_timeout, "reorder_timeout", ["100µs", "1s"]);
    let frame_lifetime_ns = ns(&raw.frame_lifetime, "frame_lifetime", ["1ms", "10s"]);
    let rto = text(raw.rto.as_ref(), faults, |word| {
        if word == "adaptive" {
            return Ok(Rto::Adaptive);
        }
        let wrong = || {
            format!(
                "rto = \"{word}\" is neither \"adaptive\" nor a time from 100us to 1s, such as \"4ms\""
            )
        };
        let time = units::duration(word).map_err(|_| wrong())?;
        match (Duration::from_micros(100)..=Duration::from_secs(1)).contains(&time) {
            true => Ok(Rto::Fixed(time.as_nanos() as u64)),
            false => Err(wrong()),
        }
    });
    let schedule = text(raw.schedule.as_ref(), faults, TunnelSchedule::from_word);
    let group = group(raw.group.as_ref(), default.group_bytes, faults);
    let tries = raw.max_transmissions.as_ref();
    let max_transmissions = number_within(tries, "max_transmissions", 1..=u8::MAX, faults);
    TransportConfig {
        schedule: schedule.map_or(default.schedule, Into::into),
        group_bytes: group,
        switch_gain_ns: switch_gain_ns.unwrap_or(default.switch_gain_ns),
        rto: rto.unwrap_or(default.rto),
        queue_target_ns: queue_target_ns.unwrap_or(default.queue_target_ns),
        read_ahead_ns: read_ahead_ns.unwrap_or(default.read_ahead_ns),
        reorder_timeout_ns: reorder_timeout_ns.unwrap_or(default.reorder_timeout_ns),
        frame_lifetime_ns: frame_lifetime_ns.unwrap_or(default.frame_lifetime_ns),
        max_transmissions: max_transmissions.unwrap_or(default.max_transmissions),
        ..default
    }
}

fn group(value: Option<&Spanned<CountValue>>, default: u32, faults: &mut Faults<'_>) -> u32 {
    let Some(spanned) = value else {
        return default;
    };
    let parsed = config::count(spanned.as_ref()).ok();
    let bytes = parsed.filter(|bytes| (1..=1 << 30).contains(bytes));
    match bytes {
        Some(bytes) => bytes as u32,
        None => {
            faults.at(
                spanned.span(),
                "group is a number of bytes from 1 to 1 GiB; write for example \"64Ki\"",
            );
            default
        }
    }
}

fn paths(
    raw: &[Spanned<RawPath>],
    threads: usize,
    faults: &mut Faults<'_>,
) -> Option<BTreeMap<u8, TunnelPathConfig>> {
    if raw.is_empty() {
        faults.file(
            "there is no [[tunnel.path]]; a tunnel needs one at least, with id, local and remote",
        );
    }
    let mut paths: BTreeMap<u8, TunnelPathConfig> = BTreeMap::new();
    let mut complete = !raw.is_empty();
    for spanned in raw {
        let Some((id, path)) = path(spanned, threads, faults) else {
            complete = false;
            continue;
        };
        let overlaps = |other: &TunnelPathConfig| {
            let distance = other.local.port().abs_diff(path.local.port());
            other.local.ip() == path.local.ip() && usize::from(distance) < threads
        };
        if let Some((other, _)) = paths.iter().find(|(_, other)| overlaps(other)) {
            faults.at(
                spanned.span(),
                format!(
                    "path {id} and path {other} share local ports: each takes {}, from its own on",
                    plural(threads, "port")
                ),
            );
        }
        if paths.insert(id, path).is_some() {
            faults.at(spanned.span(), format!("path {id} is given twice"));
        }
    }
    complete.then_some(paths)
}

fn path(
    spanned: &Spanned<RawPath>,
    threads: usize,
    faults: &mut Faults<'_>,
) -> Option<(u8, TunnelPathConfig)> {
    let raw = spanned.as_ref();
    for (key, missing) in [
        ("id", raw.id.is_none()),
        ("local", raw.local.is_none()),
        ("remote", raw.remote.is_none()),
    ] {
        if missing {
            let mend = "a path has id = 0, local = \"ADDRESS:PORT\" and remote = \"ADDRESS:PORT\"";
            faults.at(spanned.span(), format!("the path has no `{key}`; {mend}"));
        }
    }
    let last = PathId::LIMIT as u8 - 1;
    let id = number_within(raw.id.as_ref(), "id", 0..=last, faults);
    let end = |value: Option<&Spanned<String>>, faults: &mut Faults<'_>| {
        text(value, faults, |text| endpoint(text, threads))
    };
    let local = end(raw.local.as_ref(), faults);
    let remote = end(raw.remote.as_ref(), faults);
    let device = text(raw.device.as_ref(), faults, device_name);
    let mtu = number_within(raw.mtu.as_ref(), "mtu", 1280..=u16::MAX, faults);
    let path = TunnelPathConfig {
        local: local?,
        remote: remote?,
        device,
        mtu,
    };
    if path.local.is_ipv4() != path.remote.is_ipv4() {
        faults.at(
            spanned.span(),
            format!(
                "local {} and remote {} are not of one family",
                path.local, path.remote
            ),
        );
    }
    Some((id?, path))
}

/// An address with a port that leaves room for those of all threads.
fn endpoint(text: &str, threads: usize) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| {
        format!("`{text}` is not an address with a port; write for example 192.0.2.1:7000 or [2001:db8::1]:7000")
    })?;
    if address.ip().is_unspecified() || address.ip().is_multicast() {
        return Err(format!(
            "`{text}` is not a single address; a path needs one at each end"
        ));
    }
    let last = usize::from(address.port()) + threads - 1;
    match address.port() > 0 && last <= usize::from(u16::MAX) {
        true => Ok(address),
        false => Err(format!(
            "`{text}`: the threads take ports from {} to {last}, which must lie between 1 and 65535",
            address.port()
        )),
    }
}

fn device_name(name: &str) -> Result<String, String> {
    let fits = (1..=15).contains(&name.len());
    match fits && !name.contains(|c: char| c == '/' || c.is_whitespace() || c == '%') {
        true => Ok(name.to_owned()),
        false => Err(format!(
            "`{name}` is not a valid device name; it must have 1 to 15 characters without `/`, `%` and blanks"
        )),
    }
}

fn prefix(text: &str) -> Result<(IpAddr, u8), String> {
    let parsed = text.split_once('/').and_then(|(address, length)| {
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = prefix_length(length, most)?;
        Some((address, length))
    });
    parsed.ok_or_else(|| {
        format!("`{text}` is not an address with a prefix length; write for example 10.5.0.1/24")
    })
}

#[cfg(test)]
mod tests;
