// SPDX-License-Identifier: Apache-2.0
//! Katran has no file: what sets it up are command lines of its client (`-A -t VIP:PORT`, `-a -t
//! VIP:PORT -r REAL -w N`) and of its server (`-intf`, `-default_mac`). What the client lists is
//! read, too. The client's flags are Go's: one dash or two, the value behind a blank or `=`.

use std::net::{IpAddr, SocketAddr};

use crate::Unreadable;
use crate::draft::{Draft, Protocol, Real, Service, remark};
use crate::toml::quoted;
use crate::words::{endpoint, is_mac, words};

/// Flags of the client that have no value.
const SWITCHES: [&str; 18] = [
    "A", "E", "D", "a", "e", "d", "s", "sum", "lru", "icmp", "l", "unset", "del_hc", "list_hc",
    "list_mac", "C", "list_qm", "del_qm",
];

pub(crate) fn read(text: &str) -> Result<Draft, Unreadable> {
    let mut draft = Draft {
        origin: "Katran",
        ..Draft::default()
    };
    let mut found = false;
    let mut joined = String::new();
    let mut first = 0;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if joined.is_empty() {
            first = number;
        }
        // A command goes on behind a backslash.
        if let Some(line) = line.strip_suffix('\\') {
            joined += line;
            joined.push(' ');
            continue;
        }
        joined += line;
        // An apostrophe of the list is not a quote.
        let text = std::mem::take(&mut joined).replace("Vip's", "Vips");
        let words = words(&text, &['#']);
        if words.is_empty() {
            continue;
        }
        let line = Line {
            number: first,
            words: &words,
        };
        found |= line.read(&mut draft).map_err(|message| Unreadable {
            line: first,
            message,
        })?;
    }
    match found {
        true => Ok(draft),
        false => Err(Unreadable {
            line: 0,
            message: "there is nothing of Katran in it; give the command lines of its client (-A -t VIP:PORT, -a -t VIP:PORT -r REAL), or what `-l` lists".to_owned(),
        }),
    }
}

struct Line<'w> {
    number: usize,
    words: &'w [String],
}

impl Line<'_> {
    fn word(&self, at: usize) -> &str {
        self.words.get(at).map_or("", String::as_str)
    }

    /// `false`: it is of a shell, or of a log.
    fn read(&self, draft: &mut Draft) -> Result<bool, String> {
        match self.word(0) {
            "VIP:" => return self.listed_vip(draft).map(|()| true),
            "Vips" => {
                for flag in self.words.iter().skip(2) {
                    self.flag(draft, flag)?;
                }
                return Ok(true);
            }
            word if word.starts_with("->") => return self.listed_real(draft).map(|()| true),
            _ => {}
        }
        // What stands before the program (sudo, a directory), and the program itself.
        let is_program = |word: &str| {
            let name = word.rsplit('/').next().unwrap_or(word);
            name.starts_with("katran")
        };
        let at = self.words.iter().position(|word| is_program(word));
        // Under another name it is recognised by its arguments.
        let is_action =
            |word: &String| ["-A", "-E", "-D", "-a", "-e", "-d"].contains(&word.as_str());
        let is_told = self.words.iter().any(is_action)
            && self
                .words
                .iter()
                .any(|word| matches!(word.as_str(), "-t" | "-u"));
        let begins = match at {
            Some(at) => at + 1,
            None if is_told => self
                .words
                .iter()
                .position(|word| word.starts_with('-'))
                .unwrap_or(0),
            None => return Ok(false),
        };
        if at.is_some_and(|at| self.word(at).contains("server")) {
            return self.server(&self.words[begins..], draft).map(|()| true);
        }
        self.command(&self.words[begins..], draft).map(|()| true)
    }

    /// `VIP:  192.0.2.1 Port:  80 Protocol: tcp`.
    fn listed_vip(&self, draft: &mut Draft) -> Result<(), String> {
        let address: IpAddr = address(self.word(1))?;
        let port = self.word(3).parse();
        let port = port.map_err(|_| format!("`{}` is not a valid port", self.word(3)))?;
        let protocol = match self.word(5) {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            other => return Err(format!("`{other}` is not a valid protocol")),
        };
        draft
            .services
            .push(Service::new(self.number, address, port, protocol));
        Ok(())
    }

    /// `->10.0.0.1 weight: 1 flags: `, perhaps with a blank behind the arrow.
    fn listed_real(&self, draft: &mut Draft) -> Result<(), String> {
        let joined = self.word(0).trim_start_matches("->");
        let (of, at) = match joined.is_empty() {
            true => (self.word(1), 2),
            false => (joined, 1),
        };
        let mut real = Real::new(self.number, address(of)?, weight(self.word(at + 1))?);
        for flag in self.words.iter().skip(at + 3) {
            self.real_flag(&mut real, flag);
        }
        let service = draft.services.last_mut().ok_or("a real without a VIP")?;
        service.reals.push(real);
        Ok(())
    }

    fn real_flag(&self, real: &mut Real, flag: &str) {
        let what = format!("{flag} of real {}, left out", real.address);
        real.remarks
            .push(remark(self.number, what, "nothing here is like it"));
    }

    /// A flag of the VIP that was read last.
    fn flag(&self, draft: &mut Draft, flag: &str) -> Result<(), String> {
        let service = draft.services.last_mut().ok_or("flags without a VIP")?;
        self.flag_of(service, flag);
        Ok(())
    }

    fn flag_of(&self, service: &mut Service, flag: &str) {
        let line = self.number;
        match flag {
            "NO_SPORT" => service.settings.by_client = true,
            "NO_LRU" => service.settings.flow_table = false,
            "QUIC_VIP" => service.remark(
                line,
                "QUIC_VIP, left out",
                "connection ids that name the server are of another format: [[vip.quic_cid]] (docs/how-to/quic-ids.md)",
            ),
            "DPORT_HASH" => service.remark(
                line,
                "DPORT_HASH, left out",
                "a pick goes by the whole tuple; affinity = \"client\" goes by client",
            ),
            "SRC_ROUTING" => service.remark(
                line,
                "SRC_ROUTING, left out",
                "write the prefixes with their reals as `source` of the VIP",
            ),
            flag => service.remark(line, format!("{flag}, left out"), "nothing here is like it"),
        }
    }

    /// The server's own line: it names the interface and the next hop.
    fn server(&self, words: &[String], draft: &mut Draft) -> Result<(), String> {
        for (flag, value) in flags(words, &[]) {
            match flag {
                "intf" if value.is_empty() || value.contains('/') => {
                    return Err(format!("`{value}` is not a valid interface"));
                }
                "intf" => draft.interface = Some(value.to_owned()),
                "default_mac" => gateway(draft, value)?,
                "ipip_intf" | "ipip6_intf" | "hc_intf" | "hc_forwarding" | "healthchecker_prog" => {
                    draft.remark(
                        self.number,
                        format!("-{flag} {value}, left out"),
                        "health checks are the balancer's own: `health` of each VIP",
                    )
                }
                _ => draft.asides.push(format!(
                    "line {}: -{flag} is about Katran's own process.",
                    self.number
                )),
            }
        }
        Ok(())
    }

    fn command(&self, words: &[String], draft: &mut Draft) -> Result<(), String> {
        let mut at: Option<(SocketAddr, Protocol)> = None;
        let mut action = None;
        let mut real = None;
        let mut of_real = 1;
        let mut vip_flag = None;
        let mut real_flag = None;
        let mut unset = false;
        for (flag, value) in flags(words, &SWITCHES) {
            match flag {
                "A" | "E" | "D" | "a" | "e" | "d" => action = Some(flag),
                "t" | "u" => {
                    let place = endpoint(value).ok_or_else(|| {
                        format!("`{value}` is not a valid VIP; it is written as 192.0.2.1:80")
                    })?;
                    let protocol = match flag {
                        "t" => Protocol::Tcp,
                        _ => Protocol::Udp,
                    };
                    at = Some((place, protocol));
                }
                "r" => real = Some(address(value)?),
                "w" => of_real = weight(value)?,
                // `-f` before there was one for reals.
                "f" | "vf" => vip_flag = Some(value.to_owned()),
                "rf" => real_flag = Some(value.to_owned()).filter(|flag| !flag.is_empty()),
                "unset" => unset = true,
                "change_mac" => {
                    return gateway(draft, value);
                }
                "new_hc" => {
                    let what = format!("-new_hc {value}, left out");
                    let instead = "health checks are the balancer's own: `health` of each VIP";
                    draft.remark(self.number, what, instead);
                    return Ok(());
                }
                "quic_mapping" => {
                    let what = format!("-quic_mapping {value}, left out");
                    let instead =
                        "set `id` of the real, and [[vip.quic_cid]] (docs/how-to/quic-ids.md)";
                    draft.remark(self.number, what, instead);
                    return Ok(());
                }
                "server" | "somark" => {}
                // They show, or clear what a fresh balancer does not have.
                "s" | "sum" | "lru" | "icmp" | "l" | "list_hc" | "list_mac" | "list_qm" | "C"
                | "del_hc" | "del_qm" => return Ok(()),
                other => return Err(format!("`-{other}` is not a flag of Katran's client")),
            }
        }
        let action = action.ok_or("the command neither adds a VIP (-A) nor a real (-a)")?;
        let (at, protocol) = at.ok_or("the command names no VIP (-t, -u)")?;
        let is_it = |service: &Service| {
            (service.address, service.port, service.protocol) == (at.ip(), at.port(), protocol)
        };
        let place = draft.services.iter().position(is_it);
        if action == "A" && place.is_none() {
            let mut service = Service::new(self.number, at.ip(), at.port(), protocol);
            if let Some(flag) = vip_flag {
                self.flag_of(&mut service, &flag);
            }
            draft.services.push(service);
            return Ok(());
        }
        let none = || format!("there is no VIP {at} before");
        let place = place.ok_or_else(none)?;
        if action == "D" {
            draft.services.remove(place);
            return Ok(());
        }
        let service = &mut draft.services[place];
        if matches!(action, "A" | "E") {
            match vip_flag.as_deref() {
                Some("NO_SPORT") if unset => service.settings.by_client = false,
                Some("NO_LRU") if unset => service.settings.flow_table = true,
                Some(flag) if !unset => self.flag_of(service, flag),
                _ => {}
            }
            return Ok(());
        }
        let real = real.ok_or("the command names no real (-r)")?;
        // The last one holds, as it does in Katran.
        let former = service.reals.iter().position(|r| r.address == real);
        let real = match (action, former) {
            ("d", Some(former)) => {
                service.reals.remove(former);
                return Ok(());
            }
            ("d", None) => return Ok(()),
            (_, Some(former)) => &mut service.reals[former],
            (_, None) => {
                service.reals.push(Real::new(self.number, real, of_real));
                service.reals.last_mut().ok_or("no real")?
            }
        };
        real.weight = of_real;
        if let Some(flag) = real_flag {
            self.real_flag(real, &flag);
        }
        Ok(())
    }
}

/// The next hop of every packet.
fn gateway(draft: &mut Draft, mac: &str) -> Result<(), String> {
    if !is_mac(mac) {
        return Err(format!("`{mac}` is not a valid Ethernet address"));
    }
    draft.encap.retain(|(key, _)| *key != "gateway_mac");
    draft.encap.push(("gateway_mac", quoted(mac)));
    Ok(())
}

fn address(text: &str) -> Result<IpAddr, String> {
    let none = |_| format!("`{text}` is not a valid address");
    text.parse().map_err(none)
}

fn weight(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is not a valid weight"))
}

/// Flags with their values, as Go and gflags read them.
fn flags<'w>(words: &'w [String], switches: &[&str]) -> Vec<(&'w str, &'w str)> {
    let mut flags = Vec::new();
    let mut words = words.iter().map(String::as_str).peekable();
    while let Some(word) = words.next() {
        let Some(bare) = word.strip_prefix('-') else {
            continue;
        };
        let bare = bare.trim_start_matches('-');
        let (flag, joined) = match bare.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (bare, None),
        };
        let value = joined.or_else(|| match switches.contains(&flag) {
            true => None,
            // A value does not begin with a dash, but a flag of true or false may have none.
            false => words.next_if(|next| !next.starts_with('-')),
        });
        flags.push((flag, value.unwrap_or_default()));
    }
    flags
}
