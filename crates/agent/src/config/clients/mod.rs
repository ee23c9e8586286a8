// SPDX-License-Identifier: Apache-2.0
//! `[agent.clients]`: what an agent measures of its server's clients.

mod retry;
#[cfg(test)]
mod tests;
mod threshold;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use causeway_core::certes::{CertesError as ModelError, FastModel, Mix, RetryClass};
use causeway_service::config::{
    self, CountValue, Faults, Spanned, Text, Words as _, count_within, text, time_within,
};

use super::raw::RawClients;
use super::words::AcceptQueuePolicy;
pub(crate) use threshold::WINDOW_MAX;
pub use threshold::{Statistic, Threshold};

/// Slots: shorter ones split what belongs together (Certes, figure 9).
const SLOT: [&str; 2] = ["20ms", "3s"];
/// Entries of the kernel's tables.
const ENTRIES: [&str; 2] = ["256", "16Mi"];
/// Categories: each has a ring of slots in the kernel and models in the agent.
const CATEGORIES_MAX: usize = 256;

/// What to measure of clients, and what to do about it.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientsConfig {
    /// Where clients' packets come and go.
    pub interfaces: Vec<String>,
    /// Services that are told apart: what to call them, address (`None`: any) and port
    /// (0: any).
    pub services: Vec<(String, Option<IpAddr>, u16)>,
    /// Whether all other services are measured too, as one.
    pub others: bool,
    /// Groups of clients that are told apart.
    pub prefixes: Vec<(IpAddr, u8)>,
    /// Length of a slot.
    pub slot: Duration,
    /// Room for attempts that are not connected.
    pub half_open: u32,
    /// Room for connections.
    pub connections: u32,
    /// Clients, with all retries that their stacks can make.
    pub classes: Vec<RetryClass>,
    /// Whether weights and patience follow what is seen.
    pub learn: bool,
    /// Where the history is kept, and how many bytes of it; `None`: nowhere.
    pub history: Option<(PathBuf, u64)>,
    /// When to notify.
    pub thresholds: Vec<Threshold>,
    /// What is done about listeners' queues.
    pub accept_queue: AcceptQueuePolicy,
    /// Limits within which a managed queue is kept.
    pub backlog: RangeInclusive<u32>,
    /// How long a limit is tried.
    pub backlog_period: Duration,
}

impl ClientsConfig {
    /// The mix of clients before anything is learned.
    pub fn mix(&self) -> Result<Mix, ModelError> {
        Mix::new(self.classes.clone())
    }
}

pub(super) fn clients(
    raw: &RawClients,
    interface: Option<&str>,
    accept_queue: &Text,
    faults: &mut Faults<'_>,
) -> Option<ClientsConfig> {
    let slot = time_within(raw.slot.as_ref(), "slot", SLOT, faults);
    let slot = slot.unwrap_or(Duration::from_millis(250));
    let classes = retry::classes(&raw.retry, faults);
    let mix = Mix::new(classes.clone());
    let model = mix.and_then(|mix| FastModel::new(slot.as_secs_f64(), mix, 0.0));
    if let Err(error) = model {
        match &raw.slot {
            Some(slot) => faults.at(slot.span(), error.to_string()),
            None => faults.file(format!("[agent.clients]: {error}")),
        }
    }
    let interfaces = match raw.interfaces.is_empty() {
        true => vec![interface?.to_owned()],
        false => {
            let named = raw.interfaces.iter();
            named
                .filter_map(|name| config::interface(Some(name), "clients'", faults))
                .collect()
        }
    };
    let backlog_period = raw.backlog_period.as_ref();
    let backlog_period = time_within(backlog_period, "backlog_period", ["1s", "10m"], faults);
    let mut config = ClientsConfig {
        interfaces,
        services: named(&raw.services, faults, service),
        others: raw.others.unwrap_or(true),
        prefixes: named(&raw.prefixes, faults, config::network),
        slot,
        half_open: entries(raw.half_open.as_ref(), 64 << 10, faults),
        connections: entries(raw.connections.as_ref(), 128 << 10, faults),
        classes,
        learn: raw.learn.unwrap_or(true),
        history: history(raw, faults),
        thresholds: Vec::new(),
        accept_queue: text(accept_queue.as_ref(), faults, AcceptQueuePolicy::from_word)
            .unwrap_or(AcceptQueuePolicy::Observe),
        backlog: backlog(raw, faults),
        backlog_period: backlog_period.unwrap_or(Duration::from_secs(10)),
    };
    check(&config, faults);
    config.thresholds = threshold::thresholds(&raw.threshold, &config, faults);
    Some(config)
}

/// What depends on several keys.
fn check(config: &ClientsConfig, faults: &mut Faults<'_>) {
    let services = config.services.len() + usize::from(config.others);
    let categories = config.interfaces.len() * services * (config.prefixes.len() + 1);
    if services == 0 {
        faults.file("[agent.clients] measures nothing: name `services`, or leave `others` true");
    }
    if categories > CATEGORIES_MAX {
        faults.file(format!(
            "[agent.clients] makes {categories} categories of its interfaces, services and prefixes; there is room for {CATEGORIES_MAX}"
        ));
    }
}

/// Parses each of a list; what is given twice is a fault.
fn named<T: PartialEq>(
    raw: &[Spanned<String>],
    faults: &mut Faults<'_>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Vec<T> {
    let mut found = Vec::new();
    for spanned in raw {
        let Some(value) = text(Some(spanned), faults, &parse) else {
            continue;
        };
        if found.contains(&value) {
            faults.at(
                spanned.span(),
                format!("{} is given twice", spanned.as_ref()),
            );
        }
        found.push(value);
    }
    found
}

/// `ADDRESS:PORT`, with `*` for any address and 0 for any port.
fn service(text: &str) -> Result<(String, Option<IpAddr>, u16), String> {
    let wrong = || {
        format!(
            "`{text}` is not a valid service; write for example 192.0.2.1:80, [2001:db8::1]:443 or *:8080"
        )
    };
    let (address, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let bare = address
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let address = match (address, bare) {
        ("*", _) => None,
        (_, Some(v6)) => Some(IpAddr::V6(v6.parse().map_err(|_| wrong())?)),
        (v4, None) => Some(IpAddr::V4(v4.parse().map_err(|_| wrong())?)),
    };
    let port: u16 = port.parse().map_err(|_| wrong())?;
    match address.is_none() && port == 0 {
        true => Err(format!(
            "`{text}` is every service: that is what `others` measures"
        )),
        false => Ok((text.to_owned(), address, port)),
    }
}

fn entries(value: Option<&Spanned<CountValue>>, default: u32, faults: &mut Faults<'_>) -> u32 {
    let entries = count_within(value, "a table's size", ENTRIES, faults);
    entries.map_or(default, |count| count as u32)
}

fn history(raw: &RawClients, faults: &mut Faults<'_>) -> Option<(PathBuf, u64)> {
    let size = raw.history_size.as_ref();
    let size = count_within(size, "history_size", ["64Ki", "1048576Mi"], faults);
    let size = size.unwrap_or(64 << 20);
    match raw.history.as_ref().map(|text| text.as_ref().as_str()) {
        Some("") => None,
        _ => {
            let default = "/var/lib/causeway/clients.history";
            Some((
                config::directory(raw.history.as_ref(), default, faults),
                size,
            ))
        }
    }
}

fn backlog(raw: &RawClients, faults: &mut Faults<'_>) -> RangeInclusive<u32> {
    let default = 16..=4096;
    let Some(spanned) = &raw.backlog else {
        return default;
    };
    match spanned.as_ref().as_slice() {
        [low, high] if (1..=65_535).contains(low) && low <= high && *high <= 65_535 => {
            *low as u32..=*high as u32
        }
        _ => {
            faults.at(
                spanned.span(),
                "backlog is a least and a largest limit from 1 to 65535, for example backlog = [16, 4096]",
            );
            default
        }
    }
}
