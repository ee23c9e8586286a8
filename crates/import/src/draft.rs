// SPDX-License-Identifier: Apache-2.0
//! What was read, in Causeway's words, before it is written: services are changed so that they fit
//! the grammar, and what several have in common is written once.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};

use crate::toml::{comment, duration, is_bare, quoted};
use crate::{ImportContext, Imported, Remark};

/// What a configuration holds unless it says more.
const VIPS_MAX: usize = 1024;
const REALS_MAX: usize = 4096;
/// Bounds of the grammar.
const NAME_MAX: usize = 200;
/// Room for a port and a number behind a name.
const NAME_SUFFIX_MAX: usize = 10;
const WORD_MAX: usize = 120;
const WEIGHT_MAX: u32 = 65_535;
const ROWS_MAX: u32 = 100;
const INTERVAL_MS: std::ops::RangeInclusive<u64> = 100..=3_600_000;
const SLOW_START_MAX_MS: u64 = 3_600_000;

/// A configuration of another, as far as it has been read.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    /// The program that it is of.
    pub(crate) origin: &'static str,
    pub(crate) interface: Option<String>,
    /// Keys of `[encap]`, with their values as written.
    pub(crate) encap: Vec<(&'static str, String)>,
    pub(crate) services: Vec<Service>,
    /// Of no service that is written.
    pub(crate) remarks: Vec<Remark>,
    /// Settings of the other program itself, which need no equal.
    pub(crate) asides: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum Protocol {
    #[default]
    Tcp,
    Udp,
}

impl Protocol {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// A VIP to be.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    pub(crate) line: usize,
    pub(crate) name: Option<String>,
    /// What its pool is called, if it shares one.
    pub(crate) pool: Option<String>,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) protocol: Protocol,
    pub(crate) settings: Settings,
    pub(crate) reals: Vec<Real>,
    pub(crate) remarks: Vec<Remark>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) scheduler: &'static str,
    /// All connections of a client go to one real.
    pub(crate) by_client: bool,
    pub(crate) forwarding: &'static str,
    pub(crate) flow_table: bool,
    pub(crate) min_healthy: Option<u64>,
    pub(crate) slow_start_ms: Option<u64>,
    pub(crate) health: Option<Health>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            scheduler: "maglev",
            by_client: false,
            forwarding: "ipip",
            flow_table: true,
            min_healthy: None,
            slow_start_ms: None,
            health: None,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Health {
    pub(crate) probe: &'static str,
    pub(crate) port: Option<u16>,
    pub(crate) interval_ms: Option<u64>,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) rise: Option<u32>,
    pub(crate) fall: Option<u32>,
    pub(crate) path: Option<String>,
    pub(crate) host: Option<String>,
    /// Numbers and ranges, with blanks between.
    pub(crate) status: Option<String>,
    pub(crate) body: Option<String>,
    pub(crate) ca: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) record: Option<String>,
}

impl Health {
    pub(crate) fn tcp() -> Self {
        Self {
            probe: "tcp",
            ..Self::default()
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Real {
    pub(crate) line: usize,
    pub(crate) address: IpAddr,
    pub(crate) weight: u32,
    pub(crate) maintenance: bool,
    /// `backup` or `sorry`, of one that waits for others to fail.
    pub(crate) role: Option<&'static str>,
    pub(crate) mac: Option<String>,
    /// What the other file calls it.
    pub(crate) called: Option<String>,
    pub(crate) remarks: Vec<Remark>,
}

impl Real {
    pub(crate) fn new(line: usize, address: IpAddr, weight: u32) -> Self {
        Self {
            line,
            address,
            weight,
            maintenance: false,
            role: None,
            mac: None,
            called: None,
            remarks: Vec::new(),
        }
    }

    pub(crate) fn remark(&mut self, what: impl Into<String>, instead: impl Into<String>) {
        self.remarks.push(remark(self.line, what, instead));
    }

    fn settings(&self) -> (IpAddr, u32, bool, Option<&'static str>, &Option<String>) {
        (
            self.address,
            self.weight,
            self.maintenance,
            self.role,
            &self.mac,
        )
    }

    fn written(&self) -> String {
        let mut text = String::new();
        for remark in &self.remarks {
            text += &format!("  {}", comment(&remark.to_string()));
        }
        let mut keys = format!("address = {}", quoted(&self.address.to_string()));
        if let Some(mac) = &self.mac {
            keys += &format!(", mac = {}", quoted(mac));
        }
        if self.weight != 1 {
            keys += &format!(", weight = {}", self.weight);
        }
        if let Some(role) = self.role {
            keys += &format!(", role = {}", quoted(role));
        }
        if self.maintenance {
            keys += ", maintenance = true";
        }
        text += &format!("  {{ {keys} }},");
        match &self.called {
            Some(name) => text + " " + &comment(name),
            None => text + "\n",
        }
    }
}

pub(crate) fn remark(line: usize, what: impl Into<String>, instead: impl Into<String>) -> Remark {
    Remark {
        line,
        what: what.into(),
        instead: instead.into(),
    }
}

impl Service {
    pub(crate) fn new(line: usize, address: IpAddr, port: u16, protocol: Protocol) -> Self {
        Self {
            line,
            name: None,
            pool: None,
            address: address.to_canonical(),
            port,
            protocol,
            settings: Settings::default(),
            reals: Vec::new(),
            remarks: Vec::new(),
        }
    }

    pub(crate) fn remark(
        &mut self,
        line: usize,
        what: impl Into<String>,
        instead: impl Into<String>,
    ) {
        self.remarks.push(remark(line, what, instead));
    }

    /// What people call it.
    fn endpoint(&self) -> String {
        let (address, port) = (self.address, self.port);
        match address {
            IpAddr::V4(_) => format!("{address}:{port}"),
            IpAddr::V6(_) => format!("[{address}]:{port}"),
        }
    }

    /// A server that answers on `port`, where the VIP's own is the only one that packets have.
    pub(crate) fn check_port(&self, real: &mut Real, port: u16) {
        if port == self.port {
            return;
        }
        real.maintenance = true;
        let own = match self.port {
            0 => "the ports that clients connect to".to_owned(),
            port => format!("port {port}"),
        };
        real.remark(
            format!("the server has port {port}, in maintenance until it has the VIP's"),
            format!("ports are not rewritten: let it listen on {own}, then remove `maintenance`"),
        );
    }

    /// Makes it fit the grammar; what has to go is reported. `false`: it cannot be a VIP.
    fn mend(&mut self) -> bool {
        if self.address.is_unspecified() || self.address.is_multicast() {
            let what = format!("{} is not the address of a single VIP", self.address);
            self.remark(self.line, what, "give the VIP's own (--address)");
            return false;
        }
        if let Some(name) = self.name.take_if(|name| !is_vip_name(name)) {
            let what = format!("name {name}, left out");
            let most = NAME_MAX - NAME_SUFFIX_MAX;
            let instead = format!("name it by up to {most} of letters, digits and ._:-@/");
            self.remark(self.line, what, instead);
        }
        let mut seen = HashSet::new();
        for mut real in std::mem::take(&mut self.reals) {
            if real.address.is_unspecified() || real.address.is_multicast() {
                let what = format!("real {} is no single server, left out", real.address);
                let instead = "give the server's own address";
                self.remarks.push(remark(real.line, what, instead));
                self.remarks.append(&mut real.remarks);
            } else if real.address == self.address {
                let what = format!("real {} is the VIP itself, left out", real.address);
                let instead = "the balancer serves no VIP; run the server on another host";
                self.remarks.push(remark(real.line, what, instead));
                self.remarks.append(&mut real.remarks);
            } else if !seen.insert(real.address) {
                let what = format!("real {} stands here twice, left out", real.address);
                let instead = "a real has one port, the VIP's, and one weight";
                self.remarks.push(remark(real.line, what, instead));
                self.remarks.append(&mut real.remarks);
            } else {
                if real.weight > WEIGHT_MAX {
                    let what = format!("weight {}, written as {WEIGHT_MAX}", real.weight);
                    real.remark(what, "divide all weights of the VIP alike");
                    real.weight = WEIGHT_MAX;
                }
                self.reals.push(real);
            }
        }
        // With no real of an earlier role they serve.
        if self.reals.iter().all(|real| real.role.is_some()) {
            let has_backups = self.reals.iter().any(|real| real.role == Some("backup"));
            let first = if has_backups { "backup" } else { "sorry" };
            for real in self
                .reals
                .iter_mut()
                .filter(|real| real.role == Some(first))
            {
                real.role = None;
                let what = format!("{first} server with none before it, written as primary");
                real.remark(what, "a VIP has reals that do not wait for others");
            }
        }
        if self.reals.is_empty() {
            let what = format!("service {} has no reals, left out", self.endpoint());
            self.remark(self.line, what, "add it when it has one");
            return false;
        }
        let counted = self.reals.iter().filter(|real| real.role != Some("sorry"));
        let reals = counted.count() as u64;
        if let Some(need) = self.settings.min_healthy.filter(|need| *need > reals) {
            let what = format!("{need} reals needed of {reals}");
            self.remark(
                self.line,
                what,
                "set `min_healthy` to what the VIP cannot do without",
            );
            self.settings.min_healthy = Some(reals);
        }
        if let Some(ms) = &mut self.settings.slow_start_ms {
            *ms = (*ms).min(SLOW_START_MAX_MS);
        }
        self.mend_health();
        true
    }

    fn mend_health(&mut self) {
        let Some(mut health) = self.settings.health.take() else {
            return;
        };
        let fits = match health.probe {
            "dns" | "icmp" => true,
            "quic" => self.protocol == Protocol::Udp,
            _ => self.protocol == Protocol::Tcp,
        };
        if !fits {
            let what = format!(
                "probe \"{}\" of a service by {}, left out",
                health.probe,
                self.protocol.word()
            );
            self.remark(
                self.line,
                what,
                "use tcp, http or https for TCP, quic for UDP, dns or icmp for both",
            );
            return;
        }
        // No port is 0, and an echo request has none.
        let has_port = health.probe != "icmp";
        health.port = health.port.filter(|port| has_port && *port > 0);
        if self.port == 0 && health.port.is_none() && has_port {
            let what = "a health check of a VIP of every port, left out";
            self.remark(
                self.line,
                what,
                "give `health` with the `port` that it may ask",
            );
            return;
        }
        let mut told = Vec::new();
        if let Some(ms) = &mut health.interval_ms {
            let fit = (*ms).clamp(*INTERVAL_MS.start(), *INTERVAL_MS.end());
            if fit != *ms {
                told.push(format!("an interval of {ms} ms, written as {fit} ms"));
                *ms = fit;
            }
        }
        // A timeout is at most the interval, of which 2 s is the default.
        let interval = health.interval_ms.unwrap_or(2000);
        if let Some(ms) = &mut health.timeout_ms {
            let fit = (*ms).clamp(*INTERVAL_MS.start(), interval);
            if fit != *ms {
                told.push(format!("a timeout of {ms} ms, written as {fit} ms"));
                *ms = fit;
            }
        }
        for (rows, word) in [(&mut health.rise, "rise"), (&mut health.fall, "fall")] {
            let fit = rows.map(|rows| rows.clamp(1, ROWS_MAX));
            if fit != *rows {
                told.push(format!(
                    "{word} {}, written as {}",
                    rows.unwrap_or(0),
                    fit.unwrap_or(0)
                ));
                *rows = fit;
            }
        }
        let is_path = |path: &String| {
            let fits = |byte: u8| byte.is_ascii_graphic() && !b"<>`\"".contains(&byte);
            path.starts_with('/') && path.bytes().all(fits)
        };
        if let Some(path) = health.path.take_if(|path| !is_path(path)) {
            told.push(format!("path `{path}`, written as /"));
        }
        let wrong = |statuses: &mut String| !are_statuses(statuses);
        if let Some(status) = health.status.take_if(wrong) {
            told.push(format!("status {status}, written as 200"));
        }
        for (key, value, fits) in [
            ("host", &mut health.host, is_host as fn(&str) -> bool),
            ("ca", &mut health.ca, is_authority),
            ("user", &mut health.user, is_short),
            ("name", &mut health.name, is_dns_name),
        ] {
            if let Some(value) = value.take_if(|value| !fits(value)) {
                told.push(format!("{key} `{value}`, left out"));
            }
        }
        for what in told {
            self.remark(self.line, what, "see `health` in the reference");
        }
        self.settings.health = Some(health);
    }

    /// What a pool may hold: all but where the service is.
    fn shared(&self) -> String {
        let mut text = self.settings.written();
        text += "real = [\n";
        for real in &self.reals {
            text += &real.written();
        }
        text + "]\n"
    }

    fn is_alike(&self, other: &Self) -> bool {
        let alike = |(a, b): (&Real, &Real)| a.settings() == b.settings();
        self.settings == other.settings
            && self.protocol == other.protocol
            && self.reals.len() == other.reals.len()
            && self.reals.iter().zip(&other.reals).all(alike)
    }
}

impl Settings {
    fn written(&self) -> String {
        let default = Self::default();
        let mut text = String::new();
        let mut key = |name: &str, value: String| text += &format!("{name} = {value}\n");
        if self.scheduler != default.scheduler {
            key("scheduler", quoted(self.scheduler));
        }
        if self.by_client {
            key("affinity", quoted("client"));
        }
        if self.forwarding != default.forwarding {
            key("forwarding", quoted(self.forwarding));
        }
        if !self.flow_table {
            key("flow_table", "false".to_owned());
        }
        if let Some(need) = self.min_healthy.filter(|need| *need != 1) {
            key("min_healthy", need.to_string());
        }
        if let Some(ms) = self.slow_start_ms {
            key("slow_start", duration(ms));
        }
        if let Some(health) = &self.health {
            key("health", health.written());
        }
        text
    }
}

impl Health {
    fn written(&self) -> String {
        let text = |text: &Option<String>| text.as_deref().map(quoted);
        let time = |ms: Option<u64>| ms.map(duration);
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        let keys = [
            ("probe", Some(quoted(self.probe))),
            ("port", number(self.port.map(u32::from))),
            ("interval", time(self.interval_ms)),
            ("timeout", time(self.timeout_ms)),
            ("rise", number(self.rise)),
            ("fall", number(self.fall)),
            ("path", text(&self.path)),
            ("host", text(&self.host)),
            (
                "status",
                self.status
                    .as_ref()
                    .map(|status| match status.parse::<u16>() {
                        Ok(number) => number.to_string(),
                        Err(_) => quoted(status),
                    }),
            ),
            ("body", text(&self.body)),
            ("ca", text(&self.ca)),
            ("user", text(&self.user)),
            ("name", text(&self.name)),
            ("record", text(&self.record)),
        ];
        let keys = keys
            .into_iter()
            .filter_map(|(key, value)| Some(format!("{key} = {}", value?)));
        format!("{{ {} }}", keys.collect::<Vec<_>>().join(", "))
    }
}

/// Whether these are numbers and ranges of HTTP's statuses.
fn are_statuses(text: &str) -> bool {
    let is_status = |word: &str| word.parse().is_ok_and(|n: u16| (100..=599).contains(&n));
    let mut ranges = text
        .split(' ')
        .map(|word| word.split_once('-').unwrap_or((word, word)));
    ranges.all(|(low, high)| is_status(low) && is_status(high) && low <= high)
}

fn is_vip_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._:-@/".contains(c);
    (1..=NAME_MAX - NAME_SUFFIX_MAX).contains(&text.len()) && text.chars().all(is_plain)
}

/// A name or an address, and perhaps a port.
fn is_host(text: &str) -> bool {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !text.ends_with(']') => (name, Some(port)),
        _ => (text, None),
    };
    let in_brackets = name.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
    let is_name = match in_brackets {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            !name.is_empty() && name.bytes().all(fits)
        }
    };
    is_name && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

/// Where certificates of authorities are: HAProxy alone knows where a relative path begins.
fn is_authority(text: &str) -> bool {
    text == "system" || text.starts_with('/')
}

fn is_short(text: &str) -> bool {
    (1..=WORD_MAX).contains(&text.len()) && !text.contains('\0')
}

/// A name in the DNS (RFC 1035, section 2.3.4).
fn is_dns_name(text: &str) -> bool {
    let bare = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(|byte| byte.is_ascii_graphic())
    };
    bare.is_empty() || bare.len() <= 253 && bare.split('.').all(is_label)
}

/// Services that are written as one `[[vip]]`: ports of one address.
struct Vip<'s> {
    services: Vec<&'s Service>,
    pool: Option<String>,
}

impl Draft {
    pub(crate) fn remark(
        &mut self,
        line: usize,
        what: impl Into<String>,
        instead: impl Into<String>,
    ) {
        self.remarks.push(remark(line, what, instead));
    }

    /// Writes it.
    pub(crate) fn finish(mut self, beside: &ImportContext) -> Imported {
        self.mend();
        let toml = self.written(beside);
        let of_services = self.services.iter().flat_map(|service| {
            let of_reals = service.reals.iter().flat_map(|real| &real.remarks);
            service.remarks.iter().chain(of_reals)
        });
        let mut remarks: Vec<Remark> = self.remarks.iter().chain(of_services).cloned().collect();
        // What is said of a shared pool is said once.
        remarks.sort_by_key(|remark| remark.line);
        let mut told = HashSet::new();
        remarks.retain(|remark| told.insert(remark.to_string()));
        Imported {
            toml,
            remarks,
            vips: self.services.len(),
        }
    }

    fn mend(&mut self) {
        let mut seen = HashMap::new();
        for mut service in std::mem::take(&mut self.services) {
            let place = (service.address, service.port, service.protocol);
            if let Some(first) = seen.get(&place) {
                let what = format!("service {} again, left out", service.endpoint());
                let instead = format!("the first is on line {first}; put both together there");
                self.remark(service.line, what, instead);
                continue;
            }
            if !service.mend() {
                self.remarks.append(&mut service.remarks);
                continue;
            }
            seen.insert(place, service.line);
            self.services.push(service);
        }
        self.name();
    }

    /// Names distinguish VIPs: a name that several have gets their ports, and a number.
    fn name(&mut self) {
        let mut uses: HashMap<String, usize> = HashMap::new();
        for name in self.services.iter().filter_map(|s| s.name.clone()) {
            *uses.entry(name).or_default() += 1;
        }
        let mut taken: HashSet<String> = HashSet::new();
        for service in &mut self.services {
            let Some(name) = &service.name else { continue };
            let several = uses.get(name).is_some_and(|uses| *uses > 1);
            let base = match several {
                true => format!("{name}-{}", service.port),
                false => name.clone(),
            };
            let mut own = base.clone();
            for number in 2.. {
                if taken.insert(own.clone()) {
                    break;
                }
                own = format!("{base}-{number}");
            }
            service.name = Some(own);
        }
    }

    fn written(&self, beside: &ImportContext) -> String {
        let mut text = comment(&format!(
            "Written by `causeway import` from a configuration of {}.",
            self.origin
        ));
        for line in [
            "Before it serves: each server holds the VIPs on `lo` and takes the outer header off",
            "(`causeway agent`), and routers send the VIPs here. Look it over: `causeway config check",
            "FILE` says what is wrong, comments below what is missing.",
        ] {
            text += &comment(line);
        }
        for aside in &self.asides {
            text += &comment(aside);
        }
        for remark in &self.remarks {
            text += &comment(&remark.to_string());
        }
        let interface = self.interface.as_ref().unwrap_or(&beside.interface);
        text += &format!("\ninterface = {}\n", quoted(interface));
        if !self.encap.is_empty() {
            text += "\n[encap]\n";
        }
        for (key, value) in &self.encap {
            text += &format!("{key} = {value}\n");
        }
        text += &self.limits();
        let vips = self.vips();
        let mut pools = HashSet::new();
        for vip in &vips {
            let first = vip.services[0];
            if let Some(pool) = vip.pool.as_ref().filter(|pool| pools.insert(pool.as_str())) {
                text += &format!("\n[pool.{pool}]\n{}", first.shared());
            }
        }
        for vip in &vips {
            text += &vip.written();
        }
        text
    }

    /// Tables hold this many of each from the start.
    fn limits(&self) -> String {
        let vips = self.services.len();
        let reals: usize = self.services.iter().map(|s| s.reals.len()).sum();
        // While a change is made, what goes and what comes both count.
        let room = |count: usize| (count + count / 2).next_power_of_two();
        let mut text = String::new();
        for (key, count, most) in [("vips", vips, VIPS_MAX), ("reals", reals, REALS_MAX)] {
            if count > most {
                text += &format!("{key} = {}\n", room(count));
            }
        }
        match text.is_empty() {
            true => text,
            false => format!("\n[limits]\n{text}"),
        }
    }

    /// Services alike share a pool; those of one address are one VIP with several ports.
    fn vips(&self) -> Vec<Vip<'_>> {
        let mut groups: Vec<Vec<&Service>> = Vec::new();
        for service in &self.services {
            match groups.iter_mut().find(|group| group[0].is_alike(service)) {
                Some(group) => group.push(service),
                None => groups.push(vec![service]),
            }
        }
        let mut names = HashSet::new();
        let mut vips = Vec::new();
        for group in groups {
            let mut of_group: Vec<Vip<'_>> = Vec::new();
            for service in group {
                let fits = |vip: &&mut Vip<'_>| {
                    let first = vip.services[0];
                    first.address == service.address && base(first) == base(service)
                };
                match of_group.iter_mut().find(fits) {
                    Some(vip) => vip.services.push(service),
                    None => of_group.push(Vip {
                        services: vec![service],
                        pool: None,
                    }),
                }
            }
            if of_group.len() > 1 {
                let name = pool_name(of_group[0].services[0], &mut names);
                for vip in &mut of_group {
                    vip.pool = Some(name.clone());
                }
            }
            vips.extend(of_group);
        }
        vips
    }
}

/// What a name is without the port behind it, which a list of ports puts there again.
fn base(service: &Service) -> Option<&str> {
    let name = service.name.as_deref()?;
    Some(
        name.strip_suffix(&format!("-{}", service.port))
            .unwrap_or(name),
    )
}

fn pool_name(service: &Service, taken: &mut HashSet<String>) -> String {
    let called = service.pool.as_deref().or(base(service));
    let called = called.filter(|name| is_bare(name)).unwrap_or("servers");
    let mut name = called.to_owned();
    for number in 2.. {
        if taken.insert(name.clone()) {
            break;
        }
        name = format!("{called}-{number}");
    }
    name
}

impl Vip<'_> {
    fn written(&self) -> String {
        let first = self.services[0];
        let mut text = "\n".to_owned();
        let mut told = HashSet::new();
        let of_services = self.services.iter().flat_map(|service| &service.remarks);
        let mut remarks: Vec<&Remark> = of_services.collect();
        remarks.sort_by_key(|remark| remark.line);
        for remark in remarks {
            let line = comment(&remark.to_string());
            if told.insert(line.clone()) {
                text += &line;
            }
        }
        text += "[[vip]]\n";
        let name = match self.services.len() {
            1 => first.name.as_deref(),
            _ => base(first),
        };
        if let Some(name) = name {
            text += &format!("name = {}\n", quoted(name));
        }
        text += &format!("address = {}\n", quoted(&first.address.to_string()));
        let ports: Vec<String> = self.services.iter().map(|s| s.port.to_string()).collect();
        text += &match ports.as_slice() {
            [port] => format!("port = {port}\n"),
            ports => format!("port = [{}]\n", ports.join(", ")),
        };
        if first.protocol == Protocol::Udp {
            text += "protocol = \"udp\"\n";
        }
        text + &match &self.pool {
            Some(pool) => format!("pool = {}\n", quoted(pool)),
            None => first.shared(),
        }
    }
}
