// SPDX-License-Identifier: Apache-2.0
//! A proxy of HAProxy: what `defaults`, `frontend`, `backend` and `listen` say.

use std::net::IpAddr;

use super::Section;
use super::server::{Check, Server};
use crate::draft::{Service, remark};
use crate::ipvs::ONE_REAL_A_CLIENT;
use crate::words::{millis, ports};
use crate::{ImportContext, Remark};

/// Words of the proxy's own work, which needs no equal where packets are forwarded: logs, times
/// of connections that it holds itself, its queue.
const OWN: [&str; 19] = [
    "log",
    "log-format",
    "log-tag",
    "error-log-format",
    "unique-id-format",
    "maxconn",
    "backlog",
    "fullconn",
    "retries",
    "description",
    "id",
    "stats",
    "persist",
    "no",
    "clitcpka-intvl",
    "srvtcpka-intvl",
    "grace",
    "errorfile",
    "monitor-net",
];

/// Options of the same kind.
const OWN_OPTIONS: [&str; 16] = [
    "tcplog",
    "dontlognull",
    "dontlog-normal",
    "log-separate-errors",
    "log-health-checks",
    "logasap",
    "redispatch",
    "tcpka",
    "clitcpka",
    "srvtcpka",
    "splice-auto",
    "splice-request",
    "splice-response",
    "contstats",
    "socket-stats",
    "abortonclose",
];

/// Options for HTTP, which stand in `defaults` of proxies in mode tcp without effect.
const HTTP_OPTIONS: [&str; 8] = [
    "httplog",
    "forwardfor",
    "http-server-close",
    "http-keep-alive",
    "httpclose",
    "forceclose",
    "http-use-htx",
    "originalto",
];

/// An address that clients connect to.
#[derive(Debug, Clone)]
pub(super) struct Bind {
    pub(super) line: usize,
    text: String,
    /// Whether TLS ends here.
    tls: bool,
    pub(super) remarks: Vec<Remark>,
}

type Refusal = (String, String);

impl Bind {
    fn of(line: usize, words: &[String]) -> Vec<Self> {
        let tls = words.iter().skip(1).any(|word| word == "ssl");
        let mut remarks = Vec::new();
        for word in words.iter().skip(1) {
            if matches!(word.as_str(), "accept-proxy" | "accept-netscaler-cip") {
                remarks.push(remark(
                    line,
                    format!("{word}, left out"),
                    "clients' addresses are in the packets themselves",
                ));
            }
        }
        let addresses = words.first().map_or("", String::as_str).split(',');
        let of = |text: &str| Self {
            line,
            text: text.to_owned(),
            tls,
            remarks: remarks.clone(),
        };
        addresses.map(of).collect()
    }

    /// Every address and port of it; else what is wrong, and the remedy.
    pub(super) fn addresses(&self, beside: &ImportContext) -> Result<Vec<(IpAddr, u16)>, Refusal> {
        let what = format!("bind {}, left out", self.text);
        if self.tls {
            let instead = "TLS ends at the servers: give them the certificate";
            return Err((what, instead.to_owned()));
        }
        let text = self
            .text
            .trim_start_matches("ipv4@")
            .trim_start_matches("ipv6@");
        let Some((address, range)) = text.rsplit_once(':') else {
            return Err((what, "write it as ADDRESS:PORT".to_owned()));
        };
        let address = address.trim_start_matches('[').trim_end_matches(']');
        let address = match address {
            "" | "*" | "0.0.0.0" | "::" => beside.any_address.ok_or_else(|| {
                let instead = "say which address the VIP has, by --address";
                (what.clone(), instead.to_owned())
            })?,
            address => address
                .parse()
                .map_err(|_| (what.clone(), "write the address as a number".to_owned()))?,
        };
        let ports = ports(range).ok_or((what, "write the port as a number".to_owned()))?;
        Ok(ports.map(|port| (address, port)).collect())
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Proxy {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) mode: Option<(usize, String)>,
    /// The line that turns it off.
    pub(super) disabled: Option<usize>,
    pub(super) binds: Vec<Bind>,
    /// Where its connections go, if not to its own servers.
    pub(super) backend: Option<(usize, String)>,
    pub(super) remarks: Vec<Remark>,
    balance: Option<(usize, Vec<String>)>,
    check: Check,
    all_backups: bool,
    /// `default-server`, and each `server` behind it.
    default_server: Vec<String>,
    servers: Vec<Server>,
}

impl Proxy {
    /// A proxy of its own with these defaults.
    pub(super) fn fresh(&self, section: &Section) -> Self {
        Self {
            kind: section.kind().to_owned(),
            name: section.name().to_owned(),
            line: section.line,
            ..self.clone()
        }
    }

    pub(super) fn take(&mut self, section: &Section) {
        for (line, words) in &section.lines {
            self.take_line(*line, words);
        }
    }

    fn left_out(&mut self, line: usize, words: &[String], instead: &str) {
        let what = format!("{}, left out", words.join(" "));
        self.remarks.push(remark(line, what, instead));
    }

    fn take_line(&mut self, line: usize, words: &[String]) {
        let word = |at: usize| words.get(at).map_or("", String::as_str);
        match word(0) {
            "mode" => self.mode = Some((line, word(1).to_owned())),
            "bind" => self.binds.extend(Bind::of(line, &words[1..])),
            "default_backend" => self.backend = Some((line, word(1).to_owned())),
            "balance" => self.balance = Some((line, words[1..].to_vec())),
            "default-server" => self.default_server.extend_from_slice(&words[1..]),
            "server" => match Server::of(line, &self.default_server, words) {
                Ok(server) => self.servers.push(server),
                Err(remark) => self.remarks.push(*remark),
            },
            "server-template" => self.left_out(
                line,
                words,
                "write each server with its address",
            ),
            "disabled" => self.disabled = Some(line),
            "enabled" => self.disabled = None,
            "timeout" => match (word(1), millis(word(2), "ms")) {
                ("check", timeout) => self.check.timeout_ms = timeout,
                ("connect", timeout) => self.check.connect_ms = timeout,
                _ => {}
            },
            "option" => self.option(line, words),
            "no" if (word(1), word(2)) == ("option", "allbackups") => self.all_backups = false,
            "http-check" | "tcp-check" => self.check.line(line, words, &mut self.remarks),
            "use_backend" => self.left_out(
                line,
                words,
                "what a connection says is not looked at: give each backend a VIP of its own",
            ),
            "use-server" => self.left_out(
                line,
                words,
                "client prefixes can have reals of their own: `source` of the VIP",
            ),
            "acl" | "tcp-request" | "tcp-response" => self.left_out(
                line,
                words,
                "packets are not looked into: filter before the balancer, or on the servers; new flows of a client are bounded by `limit`",
            ),
            "stick-table" | "stick" => self.left_out(line, words, ONE_REAL_A_CLIENT),
            "source" => self.left_out(line, words, "servers see the clients' own addresses"),
            "email-alert" => self.left_out(
                line,
                words,
                "alert by Prometheus (docs/how-to/alert-with-prometheus.md)",
            ),
            // It says how `source` hashes; Maglev is consistent.
            "hash-type" | "hash-balance-factor" => {}
            word if OWN.contains(&word) => {}
            word if word.starts_with("http-") || word.starts_with("errorloc") => {}
            _ => self.left_out(line, words, "nothing here is like it"),
        }
    }

    fn option(&mut self, line: usize, words: &[String]) {
        let word = words.get(1).map_or("", String::as_str);
        match word {
            "httpchk" => self.check.http(line, &words[2..]),
            "tcp-check" => self.check.tcp(),
            "redis-check" => self.check.database("redis", None),
            "pgsql-check" => self.check.database("postgres", words.get(3)),
            "ssl-hello-chk" | "mysql-check" | "smtpchk" | "ldap-check" | "spop-check" => {
                self.check.tcp();
                self.left_out(line, words, "a TCP connection is opened");
            }
            "external-check" => self.left_out(
                line,
                words,
                "write health = { probe = \"script\", command = [...] }: the script gets the real's address in CAUSEWAY_REAL",
            ),
            // All of them serve at a time.
            "allbackups" => self.all_backups = true,
            "transparent" => self.left_out(line, words, "servers see the clients' own addresses"),
            word if OWN_OPTIONS.contains(&word) || HTTP_OPTIONS.contains(&word) => {}
            word if word.starts_with("http-") => {}
            _ => self.left_out(line, words, "nothing here is like it"),
        }
    }

    /// Puts servers, balance and check into a service.
    pub(super) fn fill(&self, service: &mut Service) {
        let (line, words) = self.balance.clone().unwrap_or((self.line, Vec::new()));
        let word = words.first().map_or("roundrobin", String::as_str);
        let mut told = None;
        service.settings.scheduler = match word {
            "roundrobin" | "static-rr" => "weighted-round-robin",
            "leastconn" => "least-loaded",
            "source" => {
                service.settings.by_client = true;
                "maglev"
            }
            // Of this many by chance, the one with fewer connections; two by default.
            random if random == "random" || random == "random(2)" => "p2c",
            random if random.starts_with("random") => {
                told = Some("p2c compares two");
                "p2c"
            }
            "first" => {
                told = Some("no scheduler fills one real before the next");
                "weighted-round-robin"
            }
            _ => {
                told = Some("requests are not looked at; maglev goes by connection");
                "maglev"
            }
        };
        if let Some(instead) = told {
            service.remark(line, format!("balance {}", words.join(" ")), instead);
        }
        let mut backups = self.servers.iter().filter(|server| server.backup);
        if let Some(second) = backups.nth(1).filter(|_| !self.all_backups) {
            let what = "a second backup, which would wait for the first";
            service.remark(second.line, what, "all backups serve when no primary does");
        }
        for server in &self.servers {
            let real = server.real(service);
            service.reals.push(real);
        }
        self.slow_start(service);
        self.check.fill(&self.servers, service);
    }

    /// The VIP's: the longest of its servers.
    fn slow_start(&self, service: &mut Service) {
        let times: Vec<Option<u64>> = self.servers.iter().map(|s| s.slow_start_ms).collect();
        let longest = times.iter().flatten().max().copied();
        if longest.is_some() && times.iter().any(|time| *time != longest) {
            let line = self.servers.first().map_or(self.line, |server| server.line);
            service.remark(
                line,
                "slowstart of some servers, written for all",
                "slow_start is the VIP's",
            );
        }
        service.settings.slow_start_ms = longest;
    }
}
