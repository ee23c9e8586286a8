// SPDX-License-Identifier: Apache-2.0
//! The accept queues of the services' listeners: shown, and where the configuration
//! says so, managed by client latency.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use causeway_api::agent::QueueView;
use causeway_core::certes::{ClientRule, Estimate, Trial};
use causeway_netio::listener::{self, Listening};
use causeway_service::log_fault;
use tracing::info;

use crate::config::{AcceptQueuePolicy, ClientsConfig};

/// How often listeners are looked for: services come and go, and duplicates of their
/// sockets must not outlive them.
const LOOK_EVERY_S: u64 = 5;

/// Its name, address (`None`: any) and port (0: any).
type Service = (String, Option<IpAddr>, u16);

/// The listeners of the configured services.
pub(super) struct Queues {
    services: Vec<Service>,
    mode: AcceptQueuePolicy,
    limits: RangeInclusive<u32>,
    period_s: u64,
    begun_s: Option<u64>,
    looked_s: u64,
    services_state: HashMap<String, Managed>,
    shown: Vec<QueueView>,
    failed: Option<String>,
}

struct Managed {
    rule: Option<ClientRule>,
    trial: Trial,
    offered: f64,
    dropped: f64,
}

/// What a service's clients did in one second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Second {
    pub estimate: Estimate,
    pub offered: u64,
    pub accepted: u64,
}

impl Queues {
    /// For the services of the configuration; the others' listeners are left alone.
    pub(super) fn new(config: &ClientsConfig) -> Self {
        Self {
            services: config.services.clone(),
            mode: config.accept_queue,
            limits: config.backlog.clone(),
            period_s: period_s(config),
            begun_s: None,
            looked_s: 0,
            services_state: HashMap::new(),
            shown: Vec::new(),
            failed: None,
        }
    }

    /// Goes by another configuration of the same services. Within other limits a rule begins anew.
    pub(super) fn set(&mut self, config: &ClientsConfig) {
        if self.limits != config.backlog {
            let states = self.services_state.values_mut();
            states.for_each(|state| state.rule = None);
        }
        self.mode = config.accept_queue;
        self.limits = config.backlog.clone();
        self.period_s = period_s(config);
    }

    /// The queues as they were last seen.
    pub(super) fn view(&self) -> Vec<QueueView> {
        self.shown.clone()
    }

    /// Once a second, with what clients of each service did in the last one.
    pub(super) fn step(&mut self, second: u64, seconds: &HashMap<&str, Second>) {
        for (service, of) in seconds {
            let state = self.services_state.entry((*service).to_owned());
            let state = state.or_insert_with(Managed::new);
            state.add(of);
        }
        let begun_s = *self.begun_s.get_or_insert(second);
        let over = second >= begun_s + self.period_s;
        if over || second >= self.looked_s + LOOK_EVERY_S {
            self.looked_s = second;
            let manage = over && self.mode == AcceptQueuePolicy::Manage;
            let outcome = self.look(manage);
            log_fault!(
                self.failed,
                outcome.err().map(|error| error.to_string()),
                "accept queues cannot be seen to: {}",
                "accept queues are seen to again"
            );
        }
        if over {
            self.begun_s = Some(second);
        }
    }

    /// Listeners come and go: the trouble of one is not the others'.
    fn look(&mut self, manage: bool) -> std::io::Result<()> {
        let mut all = listener::listening()?;
        all.retain(|of| owner(&self.services, of.address).is_some());
        let mut trouble = None;
        if manage {
            let services = 0..self.services.len();
            trouble = services.filter_map(|at| self.manage(at, &all).err()).last();
        }
        let shown = all.iter().map(|of| QueueView {
            address: of.address.to_string(),
            length: of.queue.length,
            limit: of.queue.limit,
            mode: self.mode.to_string(),
        });
        self.shown = shown.collect();
        trouble.map_or(Ok(()), Err)
    }

    /// One limit for all listeners of a service.
    fn manage(&mut self, number: usize, all: &[Listening]) -> std::io::Result<()> {
        let ours = |address| owner(&self.services, address) == Some(number);
        let Some(first) = all.iter().find(|of| ours(of.address)) else {
            return Ok(());
        };
        let service = self.services[number].0.as_str();
        let in_force = first.queue.limit;
        let limits = self.limits.clone();
        let state = self
            .services_state
            .entry(service.to_owned())
            .or_insert_with(Managed::new);
        let rule = state.rule.get_or_insert_with(|| ClientRule::new(limits));
        let trial = Trial {
            dropped: if state.offered > 0.0 {
                state.dropped / state.offered
            } else {
                0.0
            },
            ..state.trial
        };
        let limit = rule.step(in_force, trial);
        (state.trial, state.offered, state.dropped) = (Trial::default(), 0.0, 0.0);
        let Some(limit) = limit else { return Ok(()) };
        // Of those that end meanwhile nothing is left to set.
        for listener in listener::find(ours)? {
            listener.set_limit(limit)?;
        }
        info!("accept queue of {service}: {in_force} to {limit} connections");
        Ok(())
    }
}

fn period_s(config: &ClientsConfig) -> u64 {
    config.backlog_period.as_secs().max(1)
}

/// The service that a listener belongs to. One that listens on any address may serve
/// several: the first of them manages it, since it has one queue.
fn owner(services: &[Service], listener: SocketAddr) -> Option<usize> {
    let any = listener.ip().is_unspecified();
    services.iter().position(|(_, address, port)| {
        (*port == 0 || *port == listener.port())
            && address.is_none_or(|address| any || listener.ip().to_canonical() == address)
    })
}

impl Managed {
    fn new() -> Self {
        Self {
            rule: None,
            trial: Trial::default(),
            offered: 0.0,
            dropped: 0.0,
        }
    }

    fn add(&mut self, of: &Second) {
        let transactions = of.estimate.transactions();
        self.trial.transactions += transactions;
        self.trial.response_s += of.estimate.mean_s().unwrap_or(0.0) * transactions;
        self.trial.served_s += of.estimate.syn_to_end_s;
        self.trial.completed += of.estimate.completed;
        self.offered += of.offered as f64;
        self.dropped += of.offered.saturating_sub(of.accepted) as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_any_address_belongs_to_the_first_of_its_services() {
        let service = |address: Option<&str>, port| {
            let address = address.map(|text| text.parse().unwrap());
            (format!("{address:?} {port}"), address, port)
        };
        let services = [
            service(Some("192.0.2.1"), 80),
            service(Some("192.0.2.2"), 80),
            service(Some("192.0.2.2"), 0),
            service(None, 443),
        ];
        for (listener, expected) in [
            ("0.0.0.0:80", Some(0)),
            ("[::]:80", Some(0)),
            ("192.0.2.2:80", Some(1)),
            ("[::ffff:192.0.2.2]:80", Some(1)),
            ("192.0.2.2:8080", Some(2)),
            // The third service has every port of its address.
            ("0.0.0.0:443", Some(2)),
            ("192.0.2.3:443", Some(3)),
            ("192.0.2.3:80", None),
        ] {
            let found = owner(&services, listener.parse().unwrap());
            assert_eq!(found, expected, "{listener}");
        }
    }
}
