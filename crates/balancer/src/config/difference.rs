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
use causeway_service::config::{ApiConfig, SecretFile};

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
        for change in &mut changes.found {
            let key = change.key.as_deref().filter(|_| change.vip.is_none());
            let is_part = |whole: &&str| {
                let rest = key.and_then(|key| key.strip_prefix(*whole));
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            change.needs_restart = restart.iter().any(is_part);
            change.needs_unload = unload.iter().any(is_part);
        }
        changes.found
    }
}

fn about(vip: &VipConfig) -> String {
    let reals = causeway_service::config::plural(vip.reals.len(), "real");
    format!("{} with {reals}", vip.endpoint())
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

    // Every field is named below, or in `CONSTANTS`: a key that is added to the file is missed by
    // the compiler.

    fn file(&mut self, from: &BalancerConfig, to: &BalancerConfig) {
        let BalancerConfig {
            interface,
            pin_dir,
            state_dir,
            socket,
            socket_group,
            http,
            api,
            reconcile,
            allow_empty,
            hash_key,
            unserved,
            xdp_mode,
            encap,
            flows_v4,
            flows_v6,
            flow_idle,
            stateful,
            limits,
            tunnel_ends,
            tunnel_sources,
            measure,
            control,
            law,
            cookies,
            announce,
            agent_reports,
            fleet,
            peers,
            history,
            vips: _,
        } = from;
        let path = |path: &std::path::PathBuf| path.display().to_string();
        self.plain("interface", interface, &to.interface);
        self.key("pin_dir", pin_dir, &to.pin_dir, path);
        self.key("state_dir", state_dir, &to.state_dir, path);
        self.key("socket", socket, &to.socket, path);
        self.option("socket_group", socket_group, &to.socket_group, |group| {
            group.name.clone()
        });
        self.option("http", http, &to.http, ToString::to_string);
        self.api(api.as_ref(), to.api.as_ref());
        self.plain("reconcile", reconcile, &to.reconcile);
        self.plain("reload.allow_empty", allow_empty, &to.allow_empty);
        self.secret("hash_key", hash_key, &to.hash_key);
        self.plain("unserved", unserved, &to.unserved);
        self.key("xdp.mode", xdp_mode, &to.xdp_mode, |mode| {
            word(&XdpMode::WORDS, mode)
        });
        self.encap(encap, &to.encap);
        self.key("encap.tunnel_ends", tunnel_ends, &to.tunnel_ends, ends);
        self.key(
            "encap.tunnel_sources",
            tunnel_sources,
            &to.tunnel_sources,
            |sources| list(sources.iter().map(prefix)),
        );
        self.plain("flow_table.ipv4", flows_v4, &to.flows_v4);
        self.plain("flow_table.ipv6", flows_v6, &to.flows_v6);
        self.flow_idle(flow_idle, &to.flow_idle);
        self.stateful(stateful, &to.stateful);
        self.limits(limits, &to.limits);
        self.plain("measure.enabled", measure, &to.measure);
        self.control(control, &to.control);
        self.key("control.law", law, &to.law, |law| word(&LAWS, law));
        self.cookies(cookies.as_ref(), to.cookies.as_ref());
        self.announce(announce.as_ref(), to.announce.as_ref());
        self.agent_reports(agent_reports.as_ref(), to.agent_reports.as_ref());
        self.option("fleet", fleet, &to.fleet, ToString::to_string);
        self.peers(peers.as_ref(), to.peers.as_ref());
        self.debug("history.length", history, &to.history);
    }

    fn api(&mut self, from: Option<&ApiConfig>, to: Option<&ApiConfig>) {
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
        let Encap {
            source_v4,
            source_v6,
            gateway_mac,
            mtu,
            gue_port,
            gue_checksum,
        } = from;
        self.option("encap.source", source_v4, &to.source_v4, |(a, n)| {
            format!("{a}/{n}")
        });
        self.option("encap.source6", source_v6, &to.source_v6, |(a, n)| {
            format!("{a}/{n}")
        });
        self.option(
            "encap.gateway_mac",
            gateway_mac,
            &to.gateway_mac,
            ToString::to_string,
        );
        self.option("encap.mtu", mtu, &to.mtu, ToString::to_string);
        self.plain("encap.gue_port", gue_port, &to.gue_port);
        self.plain("encap.gue_checksum", gue_checksum, &to.gue_checksum);
    }

    fn flow_idle(&mut self, from: &FlowIdle, to: &FlowIdle) {
        let FlowIdle {
            udp,
            ended,
            tcp,
            udp_drain,
        } = from;
        self.debug("flow_table.udp_idle", udp, &to.udp);
        self.debug("flow_table.closed_idle", ended, &to.ended);
        self.debug("flow_table.tcp_idle", tcp, &to.tcp);
        self.option("flow_table.udp_drain", udp_drain, &to.udp_drain, |time| {
            format!("{time:?}")
        });
    }

    fn stateful(&mut self, from: &Stateful, to: &Stateful) {
        let Stateful {
            connections,
            token_source_v4,
            token_source_v6,
            balancers,
            number,
            idle,
            learn_period,
        } = from;
        self.plain("stateful.connections", connections, &to.connections);
        self.option(
            "stateful.token_source",
            token_source_v4,
            &to.token_source_v4,
            |a| format!("{a}/16"),
        );
        self.option(
            "stateful.token_source6",
            token_source_v6,
            &to.token_source_v6,
            |a| format!("{a}/112"),
        );
        self.plain("stateful.balancers", balancers, &to.balancers);
        self.plain("stateful.number", number, &to.number);
        self.debug("stateful.idle", idle, &to.idle);
        self.debug("stateful.learn_period", learn_period, &to.learn_period);
    }

    fn limits(&mut self, from: &TableLimits, to: &TableLimits) {
        let TableLimits {
            vips,
            reals,
            histograms,
            cookie_vips,
        } = from;
        self.plain("limits.vips", vips, &to.vips);
        self.plain("limits.reals", reals, &to.reals);
        self.plain("limits.histograms", histograms, &to.histograms);
        self.plain("limits.cookie_vips", cookie_vips, &to.cookie_vips);
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

    fn cookies(&mut self, from: Option<&Cookies>, to: Option<&Cookies>) {
        let file = |cookies: Option<&Cookies>| cookies.map(|cookies| shown_path(&cookies.file));
        self.option("cookie.keys", &file(from), &file(to), String::clone);
        let (
            Some(Cookies {
                file: _,
                keys,
                quarantine,
            }),
            Some(to),
        ) = (from, to)
        else {
            return;
        };
        self.secret("the keys in cookie.keys", keys, &to.keys);
        self.debug("cookie.quarantine", quarantine, &to.quarantine);
    }

    fn announce(&mut self, from: Option<&Announce>, to: Option<&Announce>) {
        let bird =
            |announce: Option<&Announce>| announce.map(|announce| shown_path(&announce.bird));
        self.option("announce.bird", &bird(from), &bird(to), String::clone);
        let (
            Some(Announce {
                bird: _,
                configure,
                delay,
                on_stop,
            }),
            Some(to),
        ) = (from, to)
        else {
            return;
        };
        self.key("announce.configure", configure, &to.configure, |words| {
            words.join(" ")
        });
        self.debug("announce.delay", delay, &to.delay);
        self.plain("announce.on_stop", on_stop, &to.on_stop);
    }

    fn agent_reports(
        &mut self,
        from: Option<&AgentReportsConfig>,
        to: Option<&AgentReportsConfig>,
    ) {
        let listen = |reports: Option<&AgentReportsConfig>| reports.map(|reports| reports.listen);
        self.option(
            "agent_reports.listen",
            &listen(from),
            &listen(to),
            ToString::to_string,
        );
        let (Some(AgentReportsConfig { listen: _, keys }), Some(to)) = (from, to) else {
            return;
        };
        self.secret("the keys in agent_reports.keys", keys, &to.keys);
    }

    fn peers(&mut self, from: Option<&PeersConfig>, to: Option<&PeersConfig>) {
        let listen = |peers: Option<&PeersConfig>| peers.map(|peers| peers.listen);
        self.option(
            "peers.listen",
            &listen(from),
            &listen(to),
            ToString::to_string,
        );
        let (
            Some(PeersConfig {
                listen: _,
                keys,
                members,
            }),
            Some(to),
        ) = (from, to)
        else {
            return;
        };
        self.secret("the keys in peers.keys", keys, &to.keys);
        self.key("peers.members", members, &to.members, |members| {
            list(members.iter().map(ToString::to_string))
        });
    }

    fn of_vip(&mut self, from: &VipConfig, to: &VipConfig) {
        let VipConfig {
            name,
            address: _,
            port: _,
            protocol: _,
            scheduler,
            load,
            flow_table,
            forwarding,
            fragments,
            affinity,
            stateful,
            second_chance,
            control,
            latency,
            sampling,
            cookie,
            health,
            min_healthy,
            slow_start,
            limit,
            sources,
            quic,
            discover,
            reals,
        } = from;
        self.plain("name", name, &to.name);
        self.plain("scheduler", scheduler, &to.scheduler);
        self.plain("load", load, &to.load);
        self.plain("flow_table", flow_table, &to.flow_table);
        self.plain("forwarding", forwarding, &to.forwarding);
        self.plain("fragments", fragments, &to.fragments);
        self.plain("affinity", affinity, &to.affinity);
        self.plain("stateful", stateful, &to.stateful);
        self.plain("second_chance", second_chance, &to.second_chance);
        self.plain("control", control, &to.control);
        self.plain("latency", latency, &to.latency);
        self.key("sampling", sampling, &to.sampling, |k| {
            k.map_or_else(|| "auto".to_owned(), |k| format!("1/{}", 1_u32 << k))
        });
        self.option("cookie", cookie, &to.cookie, cookie_shown);
        self.option("health", health, &to.health, |health| {
            health::to_json(health).to_string()
        });
        self.plain("min_healthy", min_healthy, &to.min_healthy);
        self.debug("slow_start", slow_start, &to.slow_start);
        self.option("limit", limit, &to.limit, |limit| {
            clients_of::limit_to_json(limit).to_string()
        });
        self.key("source", sources, &to.sources, |sources| {
            let sources = sources.iter().map(clients_of::source_to_json);
            sources.collect::<serde_json::Value>().to_string()
        });
        self.secret("quic_cid", quic, &to.quic);
        self.option("discover", discover, &to.discover, |discover| {
            discover::to_json(discover).to_string()
        });
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
        let RealConfig {
            address: _,
            weight,
            mac,
            role,
            drain,
            id,
            maintenance,
            found: _,
            gone: _,
        } = from;
        self.plain("weight", weight, &to.weight);
        self.option("mac", mac, &to.mac, ToString::to_string);
        self.plain("role", role, &to.role);
        self.plain("drain", drain, &to.drain);
        self.option("id", id, &to.id, ToString::to_string);
        self.plain("maintenance", maintenance, &to.maintenance);
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
