// SPDX-License-Identifier: Apache-2.0
//! Rules as `ipvsadm-save -n` writes them and `ipvsadm -R` reads them, and the list of
//! `ipvsadm -Ln`.

use std::net::SocketAddr;

use crate::draft::{Draft, Protocol, Service};
use crate::ipvs::{self, Method, Server};
use crate::words::{endpoint, words};
use crate::{ImportContext, Unreadable};

/// A service before its scheduler and reals are put in.
struct Found {
    service: Service,
    line: usize,
    scheduler: String,
    flags: Vec<String>,
    servers: Vec<Server>,
}

struct Rules<'b> {
    draft: Draft,
    beside: &'b ImportContext,
    found: Vec<Found>,
    /// Services of the kinds that have no equal: their reals are left out with them.
    unlike: Vec<String>,
    gue_port: Option<u16>,
}

pub(crate) fn read(text: &str, beside: &ImportContext) -> Result<Draft, Unreadable> {
    let mut rules = Rules {
        draft: Draft {
            origin: "IPVS",
            ..Draft::default()
        },
        beside,
        found: Vec::new(),
        unlike: Vec::new(),
        gue_port: None,
    };
    let mut list = None;
    for (index, line) in text.lines().enumerate() {
        let (number, words) = (index + 1, words(line, &['#']));
        let refused = |message: String| Unreadable {
            line: number,
            message,
        };
        let Some(first) = words.first() else { continue };
        match first.as_str() {
            "IP" => {}
            "Prot" => list = Some(List::default()),
            "->" if words.get(1).is_some_and(|w| w.starts_with("RemoteAddress")) => {
                if words.get(2).is_none_or(|word| word != "Forward")
                    || words.get(4).is_none_or(|word| word != "ActiveConn")
                {
                    return Err(refused(
                        "this list has no weights; take the one of `ipvsadm -Ln`, without --stats, --rate or --thresholds".to_owned(),
                    ));
                }
            }
            _ => match &mut list {
                Some(list) => list.line(&mut rules, number, &words),
                None => rules.rule(number, &words),
            }
            .map_err(refused)?,
        }
    }
    if rules.found.is_empty() && rules.draft.remarks.is_empty() {
        return Err(Unreadable {
            line: 0,
            message:
                "there is no service in it; give what `ipvsadm-save -n` or `ipvsadm -Ln` prints"
                    .to_owned(),
        });
    }
    Ok(rules.finish())
}

fn numeric(text: &str) -> Result<SocketAddr, String> {
    endpoint(text).ok_or_else(|| {
        format!("`{text}` is not an address with a port; have ipvsadm print numbers (-n)")
    })
}

/// The list, whose reals are below their services.
#[derive(Default)]
struct List {
    /// Whether the last service has no equal.
    left_out: bool,
}

impl List {
    fn line(&mut self, rules: &mut Rules<'_>, line: usize, words: &[String]) -> Result<(), String> {
        let word = |at: usize| words.get(at).map_or("", String::as_str);
        if word(0) == "->" {
            if self.left_out {
                return Ok(());
            }
            let found = rules.found.last_mut().ok_or("a real without a service")?;
            let real = numeric(word(1))?;
            let mut server = Server::new(line, real.ip(), real.port());
            server.method = match word(2) {
                "Masq" => Method::Masquerade,
                "Route" | "Local" => Method::Direct,
                "Tunnel" => Method::Ipip,
                other => return Err(format!("`{other}` is not a valid forwarding method")),
            };
            server.real.weight = word(3)
                .parse()
                .map_err(|_| format!("`{}` is not a valid weight", word(3)))?;
            found.servers.push(server);
            return Ok(());
        }
        let protocol = match word(0) {
            "TCP" => Protocol::Tcp,
            "UDP" => Protocol::Udp,
            kind @ ("FWM" | "SCTP") => {
                self.left_out = true;
                rules.left_out(line, &format!("{kind} {}", word(1)));
                return Ok(());
            }
            other => return Err(format!("`{other}` begins neither a service nor a real")),
        };
        self.left_out = false;
        let found = rules.service(line, numeric(word(1))?, protocol);
        found.scheduler = word(2).to_owned();
        let mut rest = words.iter().skip(3);
        while let Some(word) = rest.next() {
            let mut next = || rest.next().cloned().unwrap_or_default();
            match word.as_str() {
                "persistent" => {
                    let what = format!("persistent {}", next());
                    ipvs::persistence(&mut found.service, line, what);
                }
                "mask" => drop(next()),
                "pe" => {
                    let what = format!("persistence engine {}", next());
                    ipvs::persistence(&mut found.service, line, what);
                }
                "ops" => one_packet(&mut found.service, line),
                flags => {
                    let flags = flags.trim_matches(['(', ')']).split(',');
                    found.flags.extend(flags.map(str::to_owned));
                }
            }
        }
        Ok(())
    }
}

fn one_packet(service: &mut Service, line: usize) {
    service.remark(
        line,
        "one packet, one pick (ops), left out",
        "flows stay on their real; scheduler = \"maglev\" with flow_table = false keeps no state",
    );
}

/// What the words of a rule say.
#[derive(Default)]
struct Rule {
    adds_service: Option<bool>,
    at: Option<String>,
    protocol: Protocol,
    /// A service of a kind that has no equal.
    unlike: Option<String>,
    scheduler: Option<String>,
    flags: Vec<String>,
    persistent: Option<String>,
    ops: bool,
    real: Option<String>,
    method: Method,
    weight: u32,
    thresholds: [u32; 2],
    gue_port: Option<u16>,
}

impl Rule {
    fn read(words: &[String]) -> Result<Self, String> {
        let mut words = words.iter().map(String::as_str).peekable();
        // A script has the program before each.
        words.next_if(|word| *word == "ipvsadm" || word.ends_with("/ipvsadm"));
        let mut rule = Self {
            weight: 1,
            ..Self::default()
        };
        while let Some(word) = words.next() {
            let (word, joined) = match word.split_once('=') {
                Some((word, value)) if word.starts_with("--") => (word, Some(value)),
                _ => (word, None),
            };
            let mut value = || {
                joined
                    .or_else(|| words.next())
                    .ok_or_else(|| format!("`{word}` is given without a value"))
            };
            let number = |text: &str| {
                let number = text.parse::<u32>();
                number.map_err(|_| format!("`{text}` is not a number"))
            };
            match word {
                "-A" | "--add-service" => rule.adds_service = Some(true),
                "-a" | "--add-server" => rule.adds_service = Some(false),
                "-t" | "--tcp-service" => rule.at = Some(value()?.to_owned()),
                "-u" | "--udp-service" => {
                    rule.protocol = Protocol::Udp;
                    rule.at = Some(value()?.to_owned());
                }
                "-f" | "--fwmark-service" => rule.unlike = Some(format!("FWM {}", value()?)),
                "--sctp-service" => rule.unlike = Some(format!("SCTP {}", value()?)),
                "-6" | "--ipv6" => {}
                "-s" | "--scheduler" => rule.scheduler = Some(value()?.to_owned()),
                "-b" | "--sched-flags" => {
                    rule.flags.extend(value()?.split(',').map(str::to_owned));
                }
                "-p" | "--persistent" => {
                    // Its value may be left out: 300 s.
                    let next = joined.or_else(|| words.next_if(|next| !next.starts_with('-')));
                    rule.persistent = Some(format!("persistent {}", next.unwrap_or("300")));
                }
                "-M" | "--netmask" => drop(value()?),
                "--pe" => rule.persistent = Some(format!("persistence engine {}", value()?)),
                "-O" | "-o" | "--ops" => rule.ops = true,
                "-r" | "--real-server" => rule.real = Some(value()?.to_owned()),
                "-g" | "--gatewaying" => rule.method = Method::Direct,
                "-i" | "--ipip" => rule.method = Method::Ipip,
                "-m" | "--masquerading" => rule.method = Method::Masquerade,
                "-w" | "--weight" => rule.weight = number(value()?)?,
                "-x" | "--u-threshold" => rule.thresholds[0] = number(value()?)?,
                "-y" | "--l-threshold" => rule.thresholds[1] = number(value()?)?,
                "--tun-type" => {
                    rule.method = match value()? {
                        "ipip" => Method::Ipip,
                        "gue" => Method::Gue,
                        "gre" => Method::Gre,
                        other => return Err(format!("`{other}` is not a valid type of tunnel")),
                    };
                }
                "--tun-port" => {
                    rule.gue_port = u16::try_from(number(value()?)?)
                        .ok()
                        .filter(|port| *port > 0)
                }
                "--tun-nocsum" | "--tun-csum" | "--tun-remcsum" => {}
                other => {
                    return Err(format!(
                        "`{other}` is none of ipvsadm's words that set up a service (-A) or a real (-a)"
                    ));
                }
            }
        }
        Ok(rule)
    }
}

impl Rules<'_> {
    fn service(&mut self, line: usize, at: SocketAddr, protocol: Protocol) -> &mut Found {
        self.found.push(Found {
            service: Service::new(line, at.ip(), at.port(), protocol),
            line,
            scheduler: "wlc".to_owned(),
            flags: Vec::new(),
            servers: Vec::new(),
        });
        self.found.last_mut().expect("it was pushed just now")
    }

    fn left_out(&mut self, line: usize, service: &str) {
        let instead = match service.starts_with("FWM") {
            true => {
                "no service goes by firewall mark: write a VIP for each address and port (port = 0 takes every port)"
            }
            false => "only TCP and UDP are balanced",
        };
        self.draft.remark(
            line,
            format!("service {service}, left out with its reals"),
            instead,
        );
    }

    /// A rule: `-A -t 192.0.2.1:80 -s wlc`.
    fn rule(&mut self, line: usize, words: &[String]) -> Result<(), String> {
        let rule = Rule::read(words)?;
        let adds_service = rule
            .adds_service
            .ok_or("the rule has neither -A nor -a; give what `ipvsadm-save -n` prints")?;
        if let Some(unlike) = rule.unlike {
            if adds_service {
                self.left_out(line, &unlike);
                self.unlike.push(unlike);
            } else if !self.unlike.contains(&unlike) {
                return Err(format!("there is no service {unlike} before its real"));
            }
            return Ok(());
        }
        let at = numeric(&rule.at.ok_or("the rule names no service (-t, -u)")?)?;
        if adds_service {
            let found = self.service(line, at, rule.protocol);
            found.flags = rule.flags;
            if let Some(scheduler) = rule.scheduler {
                found.scheduler = scheduler;
            }
            if let Some(what) = rule.persistent {
                ipvs::persistence(&mut found.service, line, what);
            }
            if rule.ops {
                one_packet(&mut found.service, line);
            }
            return Ok(());
        }
        let real = rule.real.ok_or("the rule names no real (-r)")?;
        let real = match real.parse() {
            // Without a port it has the service's.
            Ok(address) => SocketAddr::new(address, at.port()),
            Err(_) => numeric(&real)?,
        };
        if rule.method == Method::Gue {
            self.gue_port = rule.gue_port.or(self.gue_port);
        }
        let of_service = |found: &&mut Found| {
            let of = &found.service;
            (of.address, of.port, of.protocol) == (at.ip(), at.port(), rule.protocol)
        };
        let found = self.found.iter_mut().find(of_service);
        let found = found.ok_or_else(|| format!("there is no service {at} before its real"))?;
        let mut server = Server::new(line, real.ip(), real.port());
        server.method = rule.method;
        server.real.weight = rule.weight;
        server.threshold("upper threshold", rule.thresholds[0]);
        server.threshold("lower threshold", rule.thresholds[1]);
        found.servers.push(server);
        Ok(())
    }

    fn finish(mut self) -> Draft {
        if let Some(port) = self.gue_port {
            self.draft.encap.push(("gue_port", port.to_string()));
        }
        for mut found in self.found {
            ipvs::take_servers(&mut found.service, found.servers, self.beside);
            ipvs::scheduler(
                &mut found.service,
                found.line,
                &found.scheduler,
                &found.flags,
            );
            self.draft.services.push(found.service);
        }
        self.draft
    }
}
