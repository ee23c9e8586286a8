// SPDX-License-Identifier: Apache-2.0
//! haproxy.cfg: sections of lines, of which proxies in `mode tcp` are carried over. HAProxy ends
//! connections and opens others; what it does to their contents has no equal here.

mod proxy;
mod server;

use std::collections::HashMap;

use crate::draft::{Draft, Protocol, Service, remark};
use crate::words::words;
use crate::{ImportContext, Remark, Unreadable};
use proxy::Proxy;

/// Where a section begins.
const SECTIONS: [&str; 21] = [
    "global",
    "defaults",
    "frontend",
    "backend",
    "listen",
    "userlist",
    "peers",
    "mailers",
    "resolvers",
    "cache",
    "program",
    "http-errors",
    "ring",
    "log-forward",
    "fcgi-app",
    "traces",
    "crt-store",
    "acme",
    "log-profile",
    "healthcheck",
    "crypto",
];

/// A section with its lines.
struct Section {
    line: usize,
    words: Vec<String>,
    lines: Vec<(usize, Vec<String>)>,
}

impl Section {
    fn kind(&self) -> &str {
        &self.words[0]
    }

    fn name(&self) -> &str {
        self.words.get(1).map_or("", String::as_str)
    }
}

fn sections(text: &str, remarks: &mut Vec<Remark>) -> Result<Vec<Section>, Unreadable> {
    let mut sections: Vec<Section> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let (line, words) = (index + 1, words(line, &['#']));
        let Some(first) = words.first() else { continue };
        // HAProxy decides by them what it reads; the end of a condition is told at its begin.
        if first.starts_with('.') {
            if first != ".endif" {
                let what = format!("{}, left out", words.join(" "));
                let instead = "conditions are not looked at, and what depends on them is read: remove from the file what does not hold";
                remarks.push(remark(line, what, instead));
            }
            continue;
        }
        if SECTIONS.contains(&first.as_str()) {
            sections.push(Section {
                line,
                words,
                lines: Vec::new(),
            });
            continue;
        }
        let section = sections.last_mut().ok_or_else(|| Unreadable {
            line,
            message: format!("`{first}` stands in no section; give haproxy.cfg"),
        })?;
        section.lines.push((line, words));
    }
    match sections.is_empty() {
        false => Ok(sections),
        true => Err(Unreadable {
            line: 0,
            message: "there is no section in it; give haproxy.cfg".to_owned(),
        }),
    }
}

pub(crate) fn read(text: &str, beside: &ImportContext) -> Result<Draft, Unreadable> {
    let mut draft = Draft {
        origin: "HAProxy",
        ..Draft::default()
    };
    let sections = sections(text, &mut draft.remarks)?;
    // Sections of defaults by their names; the last one before a proxy holds where it names none.
    let mut named: HashMap<String, Proxy> = HashMap::new();
    let mut defaults = Proxy::default();
    let mut proxies = Vec::new();
    for section in &sections {
        let base = match section.words.iter().position(|word| word == "from") {
            Some(at) => section.words.get(at + 1).and_then(|name| named.get(name)),
            None => None,
        };
        match section.kind() {
            "global" => draft.asides.push(format!(
                "line {}: global is about HAProxy's own process.",
                section.line
            )),
            "defaults" => {
                let mut fresh = base.cloned().unwrap_or_default();
                fresh.take(section);
                draft.remarks.append(&mut fresh.remarks);
                named.insert(section.name().to_owned(), fresh.clone());
                defaults = fresh;
            }
            "frontend" | "backend" | "listen" => {
                let mut proxy = base.unwrap_or(&defaults).fresh(section);
                proxy.take(section);
                proxies.push(proxy);
            }
            kind => {
                let what = format!("{kind} {}, left out", section.name());
                draft.remark(section.line, what, "nothing here is like it");
            }
        }
    }
    let backends: HashMap<&str, &Proxy> = proxies
        .iter()
        .filter(|proxy| proxy.kind != "frontend")
        .map(|proxy| (proxy.name.as_str(), proxy))
        .collect();
    for proxy in proxies.iter().filter(|proxy| proxy.kind != "backend") {
        services(proxy, &backends, &mut draft, beside);
    }
    let used = |backend: &&Proxy| {
        let by = |proxy: &Proxy| {
            proxy
                .backend
                .as_ref()
                .is_some_and(|(_, name)| *name == backend.name)
        };
        backend.kind == "backend" && !proxies.iter().any(by)
    };
    for backend in proxies.iter().filter(used) {
        draft.remark(
            backend.line,
            format!("backend {}, left out", backend.name),
            "no frontend of the file sends everything there",
        );
    }
    if proxies.is_empty() && draft.remarks.is_empty() {
        return Err(Unreadable {
            line: 0,
            message: "there is neither a frontend nor a listen in it; give haproxy.cfg".to_owned(),
        });
    }
    Ok(draft)
}

/// Which proxies serve nothing, or cannot be balanced by packets.
fn refused(proxy: &Proxy) -> Option<(usize, String, &'static str)> {
    if let Some(line) = proxy.disabled {
        let what = format!("{} {} is disabled, left out", proxy.kind, proxy.name);
        return Some((line, what, "write the VIP when it is to serve"));
    }
    let (line, mode) = proxy.mode.as_ref()?;
    (mode != "tcp").then(|| {
        let what = format!("{} {} has mode {mode}, left out", proxy.kind, proxy.name);
        (
            *line,
            what,
            "requests are not looked at: keep this proxy, and balance connections to it",
        )
    })
}

/// A service for each address and port that the proxy is bound to.
fn services(
    proxy: &Proxy,
    backends: &HashMap<&str, &Proxy>,
    draft: &mut Draft,
    beside: &ImportContext,
) {
    if let Some((line, what, instead)) = refused(proxy) {
        draft.remark(line, what, instead);
        return;
    }
    let mut pool = proxy;
    let mut remarks: Vec<Remark> = proxy.remarks.clone();
    if let Some((line, name)) = &proxy.backend {
        let Some(backend) = backends.get(name.as_str()) else {
            let what = format!("{} {}, left out: backend {name}", proxy.kind, proxy.name);
            draft.remark(*line, what, "there is no backend of this name");
            return;
        };
        if let Some((line, what, instead)) = refused(backend) {
            draft.remark(line, what, instead);
            return;
        }
        pool = backend;
        if proxy.kind == "frontend" {
            remarks.extend(backend.remarks.iter().cloned());
        }
    } else if proxy.kind == "frontend" {
        let what = format!("frontend {}, left out", proxy.name);
        draft.remark(proxy.line, what, "it has no default_backend");
        return;
    }
    let mut remarks = Some(remarks);
    for bind in &proxy.binds {
        let addresses = match bind.addresses(beside) {
            Ok(addresses) => addresses,
            Err((what, instead)) => {
                draft.remark(bind.line, what, instead);
                continue;
            }
        };
        for (address, port) in addresses {
            let mut service = Service::new(bind.line, address, port, Protocol::Tcp);
            service.name = Some(proxy.name.clone());
            service.pool = Some(pool.name.clone());
            // Once, at the first VIP of the proxy.
            service.remarks = remarks.take().unwrap_or_default();
            service.remarks.extend(bind.remarks.iter().cloned());
            pool.fill(&mut service);
            draft.services.push(service);
        }
    }
    if let Some(left) = remarks {
        draft.remarks.extend(left);
    }
    if proxy.binds.is_empty() {
        draft.remarks.push(remark(
            proxy.line,
            format!("{} {}, left out", proxy.kind, proxy.name),
            "it has no `bind`",
        ));
    }
}
