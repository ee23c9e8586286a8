// SPDX-License-Identifier: Apache-2.0
//! `server` lines of HAProxy, and the checks of a proxy's servers.

use std::net::IpAddr;

use crate::Remark;
use crate::draft::{Health, Real, Service, remark};
use crate::words::{millis, plain_text};

/// Words without a value that need no equal: how the proxy itself deals with a server.
const OWN: [&str; 9] = [
    "no-ssl",
    "no-send-proxy",
    "no-verifyhost",
    "non-stick",
    "tfo",
    "no-tfo",
    "no-ssl-reuse",
    "no-tls-tickets",
    "stick",
];

/// What redis answers by `+PONG`.
const PING: &str = "tcp-check send PING\\r\\n";

/// The same with a value.
const OWN_OF: [&str; 19] = [
    "guid",
    "id",
    "idle-ping",
    "init-addr",
    "maxqueue",
    "minconn",
    "pool-max-conn",
    "pool-purge-delay",
    "pool-low-conn",
    "pool-conn-name",
    "proxy-v2-options",
    "resolve-net",
    "resolve-opts",
    "resolve-prefer",
    "cookie",
    "log-bufsize",
    "log-proto",
    "max-reuse",
    "tcp-ut",
];

/// Others with a value, which is no word of the server's.
const UNLIKE_OF: [&str; 19] = [
    "agent-addr",
    "agent-inter",
    "agent-port",
    "agent-send",
    "cc",
    "check-pool-conn-name",
    "check-proto",
    "hash-key",
    "init-state",
    "interface",
    "ktls",
    "namespace",
    "proto",
    "redir",
    "shard",
    "socks4",
    "tcp-md5sig",
    "usesrc",
    "ws",
];

/// A server, with what the file says of it.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) line: usize,
    pub(super) slow_start_ms: Option<u64>,
    name: String,
    address: IpAddr,
    port: Option<u16>,
    weight: u32,
    disabled: bool,
    pub(super) backup: bool,
    check: bool,
    check_tls: bool,
    check_port: Option<u16>,
    /// The authorities for the server's certificate, if it is checked.
    ca: Option<String>,
    interval_ms: Option<u64>,
    rise: Option<u32>,
    fall: Option<u32>,
    remarks: Vec<Remark>,
}

impl Server {
    /// `server NAME ADDRESS[:PORT] ...`, behind the words of `default-server`.
    pub(super) fn of(
        line: usize,
        defaults: &[String],
        words: &[String],
    ) -> Result<Self, Box<Remark>> {
        let word = |at: usize| words.get(at).map_or("", String::as_str);
        let (name, place) = (word(1), word(2));
        let place = place
            .trim_start_matches("ipv4@")
            .trim_start_matches("ipv6@");
        let (address, port) = match place.rsplit_once(':') {
            // An IPv6 address has a port only behind brackets, or behind its last colon, which
            // HAProxy takes for one.
            Some((address, port)) if !place.ends_with(']') => (address, port),
            _ => (place, ""),
        };
        let address = address.trim_start_matches('[').trim_end_matches(']');
        let Ok(address) = address.parse() else {
            let what = format!("server {name} {place}, left out");
            return Err(Box::new(remark(
                line,
                what,
                "a real is an address: write it as a number",
            )));
        };
        let mut server = Self {
            line,
            slow_start_ms: None,
            name: name.to_owned(),
            address,
            port: None,
            weight: 1,
            disabled: false,
            backup: false,
            check: false,
            check_tls: false,
            check_port: None,
            ca: None,
            interval_ms: None,
            rise: None,
            fall: None,
            remarks: Vec::new(),
        };
        match port.parse() {
            Ok(number) if !port.starts_with('+') => server.port = Some(number),
            // It has the port that the client used; a sign is of what is added to that.
            _ if matches!(port, "" | "+0" | "-0") => {}
            _ => server.left_out(port, "ports are not rewritten: the server gets the VIP's"),
        }
        let rest = words.get(3..).unwrap_or_default();
        server.take(defaults);
        server.take(rest);
        Ok(server)
    }

    fn left_out(&mut self, word: &str, instead: &str) {
        let what = format!("{word} of server {}, left out", self.name);
        self.remarks.push(remark(self.line, what, instead));
    }

    fn take(&mut self, words: &[String]) {
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let mut value = || words.next().unwrap_or_default();
            match word {
                "check" => self.check = true,
                "no-check" => self.check = false,
                "check-ssl" => self.check_tls = true,
                "no-check-ssl" => self.check_tls = false,
                "inter" => self.interval_ms = millis(value(), "ms"),
                "rise" => self.rise = value().parse().ok(),
                "fall" => self.fall = value().parse().ok(),
                "weight" => self.weight = value().parse().unwrap_or(1),
                "slowstart" => self.slow_start_ms = millis(value(), "ms"),
                "port" => self.check_port = value().parse().ok(),
                "disabled" => self.disabled = true,
                "enabled" => self.disabled = false,
                "backup" => self.backup = true,
                "no-backup" => self.backup = false,
                "maxconn" => {
                    let maxconn = value();
                    if maxconn != "0" {
                        self.left_out(
                            &format!("maxconn {maxconn}"),
                            "reals have no bound of connections: use scheduler = \"least-loaded\", and weights as large as servers",
                        );
                    }
                }
                "send-proxy" | "send-proxy-v2" | "send-proxy-v2-ssl" | "send-proxy-v2-ssl-cn" | "check-send-proxy" => self.left_out(
                    word,
                    "clients' addresses are in the packets themselves: turn PROXY off on the server",
                ),
                "ssl" => self.left_out(
                    word,
                    "packets are not looked into: clients speak TLS with the server",
                ),
                "on-marked-down" | "on-marked-up" => {
                    let what = format!("{word} {}", value());
                    self.left_out(
                        &what,
                        "open connections of a real that is down go on as long as they can",
                    );
                }
                "fastinter" | "downinter" => {
                    let what = format!("{word} {}", value());
                    self.left_out(
                        &what,
                        "probes come at `interval` always: choose it so that `fall` of them are soon enough",
                    );
                }
                "observe" | "on-error" | "error-limit" => {
                    let what = format!("{word} {}", value());
                    self.left_out(
                        &what,
                        "probes decide; passive = true in `health` also counts clients that connect and then send nothing",
                    );
                }
                "addr" => {
                    let what = format!("addr {}", value());
                    self.left_out(&what, "a probe goes to the real itself");
                }
                "track" => {
                    let what = format!("track {}", value());
                    self.left_out(&what, "each VIP probes its own reals");
                }
                "source" => {
                    let what = format!("source {}", value());
                    self.left_out(&what, "servers see the clients' own addresses");
                }
                // What belongs to TLS with the server, which `ssl` has reported.
                "ca-file" => {
                    self.ca = Some(match value() {
                        "@system-ca" => "system".to_owned(),
                        file => file.to_owned(),
                    });
                }
                "verify" => {
                    if value() == "none" {
                        self.ca = None;
                    }
                }
                "crt" | "sni" | "alpn" | "check-sni" | "check-alpn"
                | "verifyhost" | "ciphers" | "ciphersuites" | "ssl-min-ver" | "ssl-max-ver"
                | "crl-file" | "npn" | "curves" | "sigalgs" | "client-sigalgs" => drop(value()),
                "resolvers" => drop(value()),
                word if OWN.contains(&word) => {}
                word if OWN_OF.contains(&word) => drop(value()),
                word if UNLIKE_OF.contains(&word) || word.starts_with("set-proxy-v2-tlv-fmt") => {
                    let what = format!("{word} {}", value());
                    self.left_out(&what, "nothing here is like it");
                }
                word => self.left_out(word, "nothing here is like it"),
            }
        }
    }

    pub(super) fn real(&self, service: &Service) -> Real {
        let mut real = Real::new(self.line, self.address, self.weight);
        real.called = Some(self.name.clone());
        real.maintenance = self.disabled;
        real.role = self.backup.then_some("backup");
        real.remarks.clone_from(&self.remarks);
        if let Some(port) = self.port {
            service.check_port(&mut real, port);
        }
        real
    }
}

/// How a proxy asks its servers.
#[derive(Debug, Clone, Default)]
pub(super) struct Check {
    pub(super) timeout_ms: Option<u64>,
    pub(super) connect_ms: Option<u64>,
    /// The line, where pages are asked for.
    page: Option<Page>,
    /// A database: its probe, and as whom it is asked.
    database: Option<(&'static str, Option<String>)>,
}

#[derive(Debug, Clone)]
struct Page {
    line: usize,
    method: String,
    path: String,
    host: Option<String>,
    status: Option<String>,
    body: Option<String>,
    remarks: Vec<Remark>,
}

impl Page {
    /// A header of the request.
    fn header(&mut self, line: usize, name: &str, value: &str) {
        if name.eq_ignore_ascii_case("host") {
            // Where a `\r` or `\n` begins, the next header does.
            let end = value.find(|c: char| c == '\\' || c.is_whitespace());
            let host = &value[..end.unwrap_or(value.len())];
            self.host = (!host.is_empty()).then(|| host.to_owned());
        } else if !name.eq_ignore_ascii_case("connection") {
            let what = format!("header {name} of a check, left out");
            let instead = "of its headers only `host` can be chosen";
            self.remarks.push(remark(line, what, instead));
        }
    }
}

impl Check {
    pub(super) fn tcp(&mut self) {
        (self.page, self.database) = (None, None);
    }

    /// `option redis-check`, `option pgsql-check user NAME`.
    pub(super) fn database(&mut self, probe: &'static str, user: Option<&String>) {
        self.page = None;
        self.database = Some((probe, user.cloned()));
    }

    /// `option httpchk [METHOD] [URI] [VERSION [HEADERS]]`; one word is the URI.
    pub(super) fn http(&mut self, line: usize, words: &[String]) {
        let word = |at: usize| words.get(at).cloned();
        let (method, path) = match words.len() {
            0 => (None, None),
            1 => (None, word(0)),
            _ => (word(0), word(1)),
        };
        let mut page = Page {
            line,
            method: method.unwrap_or_else(|| "OPTIONS".to_owned()),
            path: path.unwrap_or_else(|| "/".to_owned()),
            host: None,
            status: None,
            body: None,
            remarks: Vec::new(),
        };
        let version = words.get(2..).unwrap_or_default().join(" ");
        for header in version.split("\\n").skip(1) {
            if let Some((name, value)) = header.split_once(':') {
                page.header(line, name.trim(), value.trim());
            }
        }
        self.page = Some(page);
        self.database = None;
    }

    /// `http-check ...`, `tcp-check ...`.
    pub(super) fn line(&mut self, line: usize, words: &[String], remarks: &mut Vec<Remark>) {
        let left = |instead: &str| remark(line, format!("{}, left out", words.join(" ")), instead);
        let word = |at: usize| words.get(at).map_or("", String::as_str);
        if word(0) == "tcp-check" {
            let ping = remarks
                .iter()
                .position(|remark| remark.what.starts_with(PING));
            match (word(1), word(2), ping) {
                ("connect", "", _) => {}
                // What `option redis-check` does, said line by line.
                ("expect", "string", Some(ping)) if word(3) == "+PONG" => {
                    remarks.remove(ping);
                    self.database("redis", None);
                }
                _ => remarks.push(left("a connection is opened, and nothing said")),
            }
            return;
        }
        let Some(page) = &mut self.page else {
            remarks.push(left("it has no meaning without `option httpchk`"));
            return;
        };
        let after = |of: &str| {
            let at = words.iter().position(|word| word == of)?;
            words.get(at + 1)
        };
        match word(1) {
            "send" => {
                if let Some(method) = after("meth") {
                    page.method.clone_from(method);
                }
                if let Some(uri) = after("uri") {
                    page.path.clone_from(uri);
                }
                for header in words.windows(3).filter(|w| w[0] == "hdr") {
                    page.header(line, &header[1], &header[2]);
                }
            }
            "expect" => {
                let negated = words.iter().any(|word| word == "!");
                let string = after("string").filter(|_| !negated);
                let pattern = after("rstring").filter(|_| !negated);
                let body = string.or(pattern).and_then(|text| plain_text(text));
                match (after("status").filter(|_| !negated), body) {
                    (Some(status), _) => page.status = Some(status.replace(',', " ")),
                    (None, Some(body)) => page.body = Some(body),
                    (None, None) => page.remarks.push(left(
                        "a page has one of some statuses, and is searched for one text, `body`",
                    )),
                }
            }
            _ => page
                .remarks
                .push(left("a GET is sent, and one status expected")),
        }
    }

    /// The check of the VIP: that of the servers that are checked.
    pub(super) fn fill(&self, servers: &[Server], service: &mut Service) {
        let times = |server: &Server| {
            (
                server.check_port,
                server.check_tls,
                server.ca.clone(),
                server.interval_ms,
                server.rise,
                server.fall,
            )
        };
        let Some(first) = servers.iter().find(|server| server.check) else {
            return;
        };
        for server in servers {
            if !server.check || times(server) != times(first) {
                let what = match server.check {
                    false => format!(
                        "server {} without a check, checked as the others",
                        server.name
                    ),
                    true => format!("another check of server {}, left out", server.name),
                };
                service.remark(server.line, what, "a VIP's reals are all probed alike");
            }
        }
        let interval = first.interval_ms.unwrap_or(2000);
        let asks = self.page.is_some() || self.database.is_some();
        // `timeout check` is of the answer, and has `timeout connect` hold for the connection;
        // without it the interval is for both.
        let timeout = match self.timeout_ms {
            None => interval,
            Some(answer) if asks => answer,
            Some(_) => self.connect_ms.map_or(interval, |ms| ms.min(interval)),
        };
        let mut health = Health {
            port: first.check_port,
            interval_ms: first.interval_ms,
            timeout_ms: Some(timeout),
            rise: first.rise,
            fall: first.fall,
            ..Health::tcp()
        };
        if let Some(page) = &self.page {
            health.probe = if first.check_tls { "https" } else { "http" };
            health.path = Some(page.path.clone());
            health.host.clone_from(&page.host);
            // 2xx and 3xx unless it says.
            let status = page.status.clone();
            health.status = Some(status.unwrap_or_else(|| "200-399".to_owned()));
            health.body.clone_from(&page.body);
            health.ca = first.ca.clone().filter(|_| first.check_tls);
            service.remarks.extend(page.remarks.iter().cloned());
            if page.method != "GET" {
                let what = format!("a check by {}, written as GET", page.method);
                service.remark(page.line, what, "pages are asked for by GET");
            }
        } else if let Some((probe, user)) = &self.database {
            health.probe = probe;
            health.user.clone_from(user);
        } else if first.check_tls {
            let what = "check-ssl without a page, written as tcp";
            service.remark(first.line, what, "a TCP connection is opened");
        }
        service.settings.health = Some(health);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::words;

    #[test]
    fn a_ping_of_redis_is_its_probe() {
        let read = |lines: &[&str]| {
            let (mut check, mut remarks) = (Check::default(), Vec::new());
            for (line, text) in lines.iter().enumerate() {
                check.line(line, &words(text, &['#']), &mut remarks);
            }
            let told: Vec<String> = remarks.into_iter().map(|remark| remark.what).collect();
            (check.database.map(|(probe, _)| probe), told)
        };
        assert_eq!(
            read(&[
                r"tcp-check connect",
                r"tcp-check send PING\r\n",
                r"tcp-check expect string +PONG",
            ]),
            (Some("redis"), vec![])
        );
        assert_eq!(
            read(&[
                r"tcp-check send STATS\r\n",
                r"tcp-check expect string +PONG"
            ]),
            (
                None,
                vec![
                    r"tcp-check send STATS\r\n, left out".to_owned(),
                    "tcp-check expect string +PONG, left out".to_owned(),
                ]
            )
        );
    }
}
