// SPDX-License-Identifier: Apache-2.0
//! What one configuration changes in another, key by key, for people and programs.

use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::net::IpAddr;
use std::path::Path;

use causeway_api::balancer::{Change, ChangeKind};
use causeway_core::control::ControlParams;
use causeway_core::cookie::CookieLayout;
use causeway_dataplane::{FlowIdle, Prefix, TunnelEnds};
use causeway_service::api::{ApiConfig, SecretFile};

use super::control::CONSTANTS;
use super::words::LAWS;
use super::{
    AgentReportsConfig, Announce, BalancerConfig, Cookies, Encap, PeersConfig, RealConfig,
    Stateful, TableLimits, VipConfig, XdpMode, clients_of, discover, health,
};

impl BalancerConfig {
    /// What changes with `self` in the place of `former`: keys outside of VIPs, then each VIP with
    /// its reals. VIPs are identified by address, port and protocol.
    pub fn changes(&self, former: &Self) -> Vec<Change> {
        let mut changes = Changes::default();
        changes.file(former, self);
        let key = |vip: &VipConfig| (vip.address, vip.port, vip.protocol);
        let new: HashMap<_, _> = self.vips.iter().map(|vip| (key(vip), vip)).collect();
        let old: HashMap<_, _> = former.vips.iter().map(|vip| (key(vip), vip)).collect();
        for vip in &former.vips {
            changes.vip = Some(vip.name.clone());
            match new.get(&key(vip)) {
                Some(to) if *to == vip => {}
                Some(to) => changes.of_vip(vip, to),
                None => changes.whole(ChangeKind::Removed, about(vip)),
            }
        }
        for vip in self.vips.iter().filter(|vip| !old.contains_key(&key(vip))) {
            changes.vip = Some(vip.name.clone());
            changes.whole(ChangeKind::Added, about(vip));
        }
        let (restart, unload) = (self.needs_restart(former), self.needs_unload(former));
        for change in changes.found.iter_mut().filter(|of| of.vip.is_none()) {
            change.needs_restart = restart.iter().any(|key| is_in(change, key));
            change.needs_unload = unload.iter().any(|key| is_in(change, key));
        }
        changes.found
    }

    /// The keys that differ from `running` and cannot change while the daemon runs.
    pub fn needs_restart(&self, running: &Self) -> Vec<&'static str> {
        let mut changes = Changes::default();
        changes.file(running, self);
        let differs = |key: &&str| changes.found.iter().any(|change| is_in(change, key));
        RESTART.into_iter().filter(differs).collect()
    }

    /// Those of [`Self::needs_restart`] that a start refuses, too, as long as the data plane runs as
    /// it was.
    pub fn needs_unload(&self, running: &Self) -> Vec<&'static str> {
        let mut keys = self.needs_restart(running);
        // Auto takes what runs.
        let takes = self.xdp_mode == XdpMode::Auto;
        keys.retain(|key| UNLOAD.contains(key) && !(takes && *key == "xdp.mode"));
        keys
    }
}

/// Keys, and whole tables, that cannot change while the daemon runs.
const RESTART: [&str; 19] = [
    "interface",
    "pin_dir",
    "state_dir",
    "socket",
    "http",
    "api.listen",
    "hash_key",
    "unserved",
    "xdp.mode",
    "flow_table.ipv4",
    "flow_table.ipv6",
    "stateful",
    "limits",
    "encap.tunnel_ends",
    "encap.tunnel_sources",
    "measure",
    "fleet",
    "agent_reports.listen",
    "peers.listen",
];
/// Of these, those that cannot change while the data plane runs.
const UNLOAD: [&str; 3] = ["interface", "pin_dir", "xdp.mode"];

/// Whether it is a change of this key, or of one in this table.
fn is_in(change: &Change, key: &str) -> bool {
    let rest = change.key.as_deref().and_then(|of| of.strip_prefix(key));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn about(vip: &VipConfig) -> String {
    let reals = causeway_service::config::plural(vip.reals.len(), "real");
    format!("{} with {reals}", vip.endpoint())
}

/// Compares two values field by field: by which method, under which key, shown how. Every field is
/// named here, so that the compiler refuses a new one that is not compared.
macro_rules! compare {
    ($changes:ident, $from:expr, $to:expr, $of:ident {
        $($field:ident: $how:ident $($key:literal)? $(($show:expr))?,)*
    } except [$($other:ident),*]) => {
        let $of { $($field,)* $($other: _,)* } = $from;
        $($changes.$how($($key,)? $field, &$to.$field $(, $show)?);)*
    };
}

/// Gathers changes at a place.
#[derive(Default)]
struct Changes {
    vip: Option<String>,
    real: Option<String>,
    found: Vec<Change>,
}

impl Changes {
    fn push(
        &mut self,
        change: ChangeKind,
        key: Option<&str>,
        from: Option<String>,
        to: Option<String>,
    ) {
        self.found.push(Change {
            change,
            vip: self.vip.clone(),
            real: self.real.clone(),
            key: key.map(str::to_owned),
            from,
            to,
            needs_restart: false,
            needs_unload: false,
        });
    }

    /// A VIP or a real that comes or goes.
    fn whole(&mut self, change: ChangeKind, about: String) {
        match change {
            ChangeKind::Removed => self.push(change, None, Some(about), None),
            _ => self.push(change, None, None, Some(about)),
        }
    }

    fn key<T: PartialEq>(&mut self, key: &str, from: &T, to: &T, show: impl Fn(&T) -> String) {
        if from != to {
            self.push(
                ChangeKind::Changed,
                Some(key),
                Some(show(from)),
                Some(show(to)),
            );
        }
    }

    fn plain<T: PartialEq + Display>(&mut self, key: &str, from: &T, to: &T) {
        self.key(key, from, to, T::to_string);
    }

    /// Durations are written with their units by `Debug`.
    fn debug<T: PartialEq + Debug>(&mut self, key: &str, from: &T, to: &T) {
        self.key(key, from, to, |value| format!("{value:?}"));
    }

    /// What may not be there.
    fn option<T: PartialEq>(
        &mut self,
        key: &str,
        from: &Option<T>,
        to: &Option<T>,
        show: impl Fn(&T) -> String,
    ) {
        self.key(key, from, to, |value| {
            value.as_ref().map_or_else(|| "none".to_owned(), &show)
        });
    }

    /// A secret: that it is another one, and no more.
    fn secret<T: PartialEq>(&mut self, key: &str, from: &T, to: &T) {
        if from != to {
            self.push(ChangeKind::Changed, Some(key), None, None);
        }
    }

    fn file(&mut self, from: &BalancerConfig, to: &BalancerConfig) {
        let path = |path: &std::path::PathBuf| shown_path(path);
        compare!(self, from, to, BalancerConfig {
            interface: plain "interface",
            pin_dir: key "pin_dir" (path),
            state_dir: key "state_dir" (path),
            socket: key "socket" (path),
            socket_group: option "socket_group" (|group| group.name.clone()),
            http: option "http" (ToString::to_string),
            api: api,
            reconcile: plain "reconcile",
            allow_empty: plain "reload.allow_empty",
            hash_key: secret "hash_key",
            unserved: plain "unserved",
            xdp_mode: key "xdp.mode" (|mode| word(&XdpMode::WORDS, mode)),
            encap: encap,
            tunnel_ends: key "encap.tunnel_ends" (ends),
            tunnel_sources: key "encap.tunnel_sources" (|of| list(of.iter().map(prefix))),
            flows_v4: plain "flow_table.ipv4",
            flows_v6: plain "flow_table.ipv6",
            flow_idle: flow_idle,
            stateful: stateful,
            limits: limits,
            measure: plain "measure.enabled",
            control: control,
            law: key "control.law" (|law| word(&LAWS, law)),
            cookies: cookies,
            announce: announce,
            agent_reports: agent_reports,
            fleet: option "fleet" (ToString::to_string),
            peers: peers,
            history: debug "history.length",
        } except [vips]);
    }

    fn api(&mut self, from: &Option<ApiConfig>, to: &Option<ApiConfig>) {
        let (from, to) = (from.as_ref(), to.as_ref());
        let listen = |api: Option<&ApiConfig>| api.map(|api| api.listen);
        self.option(
            "api.listen",
            &listen(from),
            &listen(to),
            ToString::to_string,
        );
        // The file's name, or what it holds.
        type File = fn(&ApiConfig) -> Option<&SecretFile>;
        let files: [(&str, File); 4] = [
            ("api.certificate", |api| Some(&api.certificate)),
            ("api.key", |api| Some(&api.key)),
            ("api.client_ca", |api| api.client_ca.as_ref()),
            ("api.tokens", |api| Some(&api.tokens)),
        ];
        for (key, file) in files {
            self.secret(key, &from.and_then(file), &to.and_then(file));
        }
    }

    fn encap(&mut self, from: &Encap, to: &Encap) {
        compare!(self, from, to, Encap {
            source_v4: option "encap.source" (|(a, n)| format!("{a}/{n}")),
            source_v6: option "encap.source6" (|(a, n)| format!("{a}/{n}")),
            gateway_mac: option "encap.gateway_mac" (ToString::to_string),
            mtu: option "encap.mtu" (ToString::to_string),
            gue_port: plain "encap.gue_port",
            gue_checksum: plain "encap.gue_checksum",
        } except []);
    }

    fn flow_idle(&mut self, from: &FlowIdle, to: &FlowIdle) {
        compare!(self, from, to, FlowIdle {
            udp: debug "flow_table.udp_idle",
            ended: debug "flow_table.closed_idle",
            tcp: debug "flow_table.tcp_idle",
            udp_drain: option "flow_table.udp_drain" (|time| format!("{time:?}")),
        } except []);
    }

    fn stateful(&mut self, from: &Stateful, to: &Stateful) {
        compare!(self, from, to, Stateful {
            connections: plain "stateful.connections",
            token_source_v4: option "stateful.token_source" (|a| format!("{a}/16")),
            token_source_v6: option "stateful.token_source6" (|a| format!("{a}/112")),
            balancers: plain "stateful.balancers",
            number: plain "stateful.number",
            idle: debug "stateful.idle",
            learn_period: debug "stateful.learn_period",
        } except []);
    }

    fn limits(&mut self, from: &TableLimits, to: &TableLimits) {
        compare!(self, from, to, TableLimits {
            vips: plain "limits.vips",
            reals: plain "limits.reals",
            histograms: plain "limits.histograms",
            cookie_vips: plain "limits.cookie_vips",
        } except []);
    }

    fn control(&mut self, from: &ControlParams, to: &ControlParams) {
        let interval = |ns: &u64| format!("{:?}", std::time::Duration::from_nanos(*ns));
        let key = "control.interval";
        self.key(key, &from.interval_ns, &to.interval_ns, interval);
        for constant in CONSTANTS {
            let key = format!("control.{}", constant.key);
            self.plain(&key, &(constant.get)(from), &(constant.get)(to));
        }
        let key = "control.regress_after";
        self.plain(key, &from.regress_after, &to.regress_after);
        self.plain("control.min_samples", &from.min_samples, &to.min_samples);
    }

    fn cookies(&mut self, from: &Option<Cookies>, to: &Option<Cookies>) {
        let file = |of: &Option<Cookies>| of.as_ref().map(|of| shown_path(&of.file));
        self.option("cookie.keys", &file(from), &file(to), String::clone);
        let (Some(from), Some(to)) = (from, to) else {
            return;
        };
        compare!(self, from, to, Cookies {
            keys: secret "the keys in cookie.keys",
            quarantine: debug "cookie.quarantine",
        } except [file]);
    }

    fn announce(&mut self, from: &Option<Announce>, to: &Option<Announce>) {
        let bird = |of: &Option<Announce>| of.as_ref().map(|of| shown_path(&of.bird));
        self.option("announce.bird", &bird(from), &bird(to), String::clone);
        let (Some(from), Some(to)) = (from, to) else {
            return;
        };
        compare!(self, from, to, Announce {
            configure: key "announce.configure" (|words| words.join(" ")),
            delay: debug "announce.delay",
            on_stop: plain "announce.on_stop",
        } except [bird]);
    }

    fn agent_reports(
        &mut self,
        from: &Option<AgentReportsConfig>,
        to: &Option<AgentReportsConfig>,
    ) {
        let listen = |of: &Option<AgentReportsConfig>| of.as_ref().map(|of| of.listen);
        let key = "agent_reports.listen";
        self.option(key, &listen(from), &listen(to), ToString::to_string);
        let (Some(from), Some(to)) = (from, to) else {
            return;
        };
        compare!(self, from, to, AgentReportsConfig {
            keys: secret "the keys in agent_reports.keys",
        } except [listen]);
    }

    fn peers(&mut self, from: &Option<PeersConfig>, to: &Option<PeersConfig>) {
        let listen = |of: &Option<PeersConfig>| of.as_ref().map(|of| of.listen);
        let key = "peers.listen";
        self.option(key, &listen(from), &listen(to), ToString::to_string);
        let (Some(from), Some(to)) = (from, to) else {
            return;
        };
        let names = |of: &Vec<_>| list(of.iter().map(ToString::to_string));
        compare!(self, from, to, PeersConfig {
            keys: secret "the keys in peers.keys",
            members: key "peers.members" (names),
        } except [listen]);
    }

    fn of_vip(&mut self, from: &VipConfig, to: &VipConfig) {
        let auto = || "auto".to_owned();
        compare!(self, from, to, VipConfig {
            name: plain "name",
            scheduler: plain "scheduler",
            load: plain "load",
            flow_table: plain "flow_table",
            forwarding: plain "forwarding",
            fragments: plain "fragments",
            affinity: plain "affinity",
            stateful: plain "stateful",
            second_chance: plain "second_chance",
            control: plain "control",
            latency: plain "latency",
            sampling: key "sampling" (|k| k.map_or_else(auto, |k| format!("1/{}", 1_u32 << k))),
            cookie: option "cookie" (cookie_shown),
            health: option "health" (|health| health::to_json(health).to_string()),
            min_healthy: plain "min_healthy",
            slow_start: debug "slow_start",
            limit: option "limit" (|limit| clients_of::limit_to_json(limit).to_string()),
            sources: key "source" (|sources| {
                let sources = sources.iter().map(clients_of::source_to_json);
                sources.collect::<serde_json::Value>().to_string()
            }),
            quic: secret "quic_cid",
            discover: option "discover" (|discover| discover::to_json(discover).to_string()),
        } except [address, port, protocol, reals]);
        let reals = &from.reals;
        let new: HashMap<IpAddr, &RealConfig> =
            to.reals.iter().map(|real| (real.address, real)).collect();
        for real in reals {
            self.real = Some(real.address.to_string());
            match new.get(&real.address) {
                Some(to) => self.of_real(real, to),
                None => self.whole(ChangeKind::Removed, format!("weight {}", real.weight)),
            }
        }
        let known = |real: &&RealConfig| reals.iter().any(|known| known.address == real.address);
        for real in to.reals.iter().filter(|real| !known(real)) {
            self.real = Some(real.address.to_string());
            self.whole(ChangeKind::Added, format!("weight {}", real.weight));
        }
        self.real = None;
    }

    fn of_real(&mut self, from: &RealConfig, to: &RealConfig) {
        compare!(self, from, to, RealConfig {
            weight: plain "weight",
            mac: option "mac" (ToString::to_string),
            role: plain "role",
            drain: plain "drain",
            id: option "id" (ToString::to_string),
            maintenance: plain "maintenance",
        } except [address, found, gone]);
    }
}

fn shown_path(path: &Path) -> String {
    path.display().to_string()
}

fn word<T: PartialEq>(words: &[(&'static str, T)], value: &T) -> String {
    let mut words = words.iter();
    let found = words.find(|(_, known)| known == value);
    found
        .map(|(word, _)| (*word).to_owned())
        .unwrap_or_default()
}

fn list(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.collect();
    match words.is_empty() {
        true => "none".to_owned(),
        false => words.join(", "),
    }
}

fn prefix((address, length): &Prefix) -> String {
    format!("{address}/{length}")
}

fn ends(ends: &TunnelEnds) -> String {
    let v4 = ends.v4.iter().map(ToString::to_string);
    list(v4.chain(ends.v6.iter().map(ToString::to_string)))
}

fn cookie_shown(cookie: &CookieLayout) -> String {
    format!(
        "{:?}, {} bits, {} of them for the id",
        cookie.mode(),
        cookie.bits(),
        cookie.id_bits()
    )
    .to_lowercase()
}
