// SPDX-License-Identifier: Apache-2.0
//! Which Service has which address, and which of its ports.
//!
//! What was given stands in the cluster itself: addresses in an annotation of the Service, ports
//! in its status. So all controllers read the same, and none takes from a Service what it has: those
//! with a status come first, then the older ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::cluster::Cluster;
use crate::objects::{ClusterService, Ingress, IngressPort, ObjectKey};
use crate::pool::AddressPool;

/// The annotation with a Service's addresses: what its author asks for, or else what was given.
pub const ADDRESSES: &str = "causeway.dev/addresses";
/// Keeps a deleted Service until no balancer of this controller has its VIPs.
pub const FINALIZER: &str = "causeway.dev/vips";

/// Which Services are served, and by which addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRules {
    /// `spec.loadBalancerClass` of those that are.
    pub class: String,
    /// Addresses that may be given.
    pub pool: AddressPool,
}

impl ClaimRules {
    /// Whether a Service is to be served.
    pub fn is_ours(&self, service: &ClusterService) -> bool {
        service.spec.kind == "LoadBalancer"
            && service.spec.load_balancer_class.as_ref() == Some(&self.class)
            && !service.metadata.is_going()
    }
}

/// Why something of a Service is not served.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    /// Whose it is.
    pub service: ObjectKey,
    /// One word, for the Event.
    pub reason: &'static str,
    /// What, why, and how to mend it.
    pub message: String,
}

/// TCP or UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    fn of(word: &str) -> Option<Self> {
        match word {
            "TCP" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            _ => None,
        }
    }

    /// The word of the balancer's file.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// A port of a Service at one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedPort {
    /// Its name in the Service.
    pub name: String,
    /// Its number.
    pub port: u16,
    /// Its protocol as the Service says it.
    pub protocol: String,
    /// As what it is served; else, why it is not.
    pub outcome: Result<Transport, &'static str>,
}

/// What a Service has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Its addresses, as the annotation is to name them.
    pub annotation: String,
    /// Whether annotation and finalizer are on the Service, so that all controllers know.
    pub is_recorded: bool,
    /// What becomes of its ports, by address; empty before they are recorded.
    pub ports: BTreeMap<IpAddr, Vec<ClaimedPort>>,
}

/// Who has what of an address.
#[derive(Debug, Default)]
struct AddressUse {
    namespace: String,
    ports: BTreeMap<(u16, Transport), ObjectKey>,
}

/// What each Service has, and what was refused; `reserved` addresses are those of the operator's own VIPs.
pub fn claims(
    cluster: &Cluster,
    rules: &ClaimRules,
    reserved: &BTreeSet<IpAddr>,
) -> (BTreeMap<ObjectKey, Claim>, Vec<Refusal>) {
    let mut services: Vec<(&ObjectKey, &ClusterService)> = cluster
        .services()
        .filter(|(_, service)| rules.is_ours(service))
        .collect();
    services.sort_by_key(|(key, service)| {
        let is_served = !service.status.load_balancer.ingress.is_empty();
        (!is_served, &service.metadata.creation_timestamp, *key)
    });
    let mut desk = Desk {
        rules,
        reserved,
        held: BTreeMap::new(),
        refusals: Vec::new(),
    };
    for (key, service) in &services {
        desk.claim_served(key, service);
    }
    let named: Vec<Vec<IpAddr>> = services
        .iter()
        .map(|(key, service)| desk.named(key, service))
        .collect();
    let mut claims = BTreeMap::new();
    for ((key, service), mut addresses) in services.iter().zip(named) {
        desk.give(key, service, &mut addresses);
        claims.insert((*key).clone(), claim(service, &addresses));
    }
    // What a Service has by its status, before what others would like to have.
    for has in [true, false] {
        for (key, service) in &services {
            if let Some(claim) = claims.get_mut(key) {
                desk.take_ports(key, service, claim, has);
            }
        }
    }
    for ((key, service), claim) in services
        .iter()
        .filter_map(|of| Some((of, claims.get(of.0)?)))
    {
        desk.tell_ports(key, service, claim);
    }
    (claims, desk.refusals)
}

/// Is behind what is given out.
struct Desk<'a> {
    rules: &'a ClaimRules,
    reserved: &'a BTreeSet<IpAddr>,
    held: BTreeMap<IpAddr, AddressUse>,
    refusals: Vec<Refusal>,
}

impl Desk<'_> {
    fn refuse(&mut self, service: &ObjectKey, reason: &'static str, message: String) {
        self.refusals.push(Refusal {
            service: service.clone(),
            reason,
            message,
        });
    }

    fn claim(&mut self, key: &ObjectKey, address: IpAddr) {
        let held = self.held.entry(address).or_default();
        held.namespace.clone_from(&key.namespace);
    }

    /// Holds the addresses of a Service's status for its namespace, before others say which they
    /// would like to have.
    fn claim_served(&mut self, key: &ObjectKey, service: &ClusterService) {
        let ingress = service.status.load_balancer.ingress.iter();
        for address in ingress.filter_map(|ingress| ingress.ip) {
            if self.may_have(key, address).is_ok() {
                self.claim(key, address);
            }
        }
    }

    /// The addresses that are named for a Service, as far as it may have them; its author's word
    /// comes before the one in its status.
    fn named(&mut self, key: &ObjectKey, service: &ClusterService) -> Vec<IpAddr> {
        let mut named = Vec::new();
        for word in words(service) {
            match word.parse() {
                Ok(address) => named.push((address, true)),
                Err(_) => self.refuse(
                    key,
                    "AddressRefused",
                    format!(
                        "`{word}` in {ADDRESSES} is not an address; write for example \"192.0.2.1\""
                    ),
                ),
            }
        }
        let of_spec: Option<IpAddr> = service.spec.load_balancer_ip.parse().ok();
        named.extend(of_spec.map(|address| (address, true)));
        let ingress = service.status.load_balancer.ingress.iter();
        named.extend(ingress.filter_map(|ingress| Some((ingress.ip?, false))));
        let mut may_have: Vec<IpAddr> = Vec::new();
        let mut settled: Vec<bool> = Vec::new();
        for (address, is_asked_for) in named {
            // One of each family; the first that is named is the one that is meant.
            if !families(service).contains(&address.is_ipv4())
                || settled.contains(&address.is_ipv4())
            {
                continue;
            }
            match self.may_have(key, address) {
                Ok(()) => {
                    self.claim(key, address);
                    may_have.push(address);
                    settled.push(address.is_ipv4());
                }
                Err(why) if is_asked_for => {
                    self.refuse(key, "AddressRefused", why);
                    settled.push(address.is_ipv4());
                }
                Err(_) => {}
            }
        }
        may_have
    }

    fn may_have(&self, key: &ObjectKey, address: IpAddr) -> Result<(), String> {
        let pool = &self.rules.pool;
        if !pool.contains(address) {
            return Err(format!(
                "{address} is not in the pool ({pool}); ask for another, or for none"
            ));
        }
        if self.reserved.contains(&address) {
            return Err(format!(
                "{address} is a VIP of the balancer's own file; ask for another, or for none"
            ));
        }
        match self.held.get(&address) {
            Some(held) if held.namespace != key.namespace => Err(format!(
                "{address} belongs to a Service of another namespace; ask for another, or for none"
            )),
            _ => Ok(()),
        }
    }

    /// Gives an address of each family for which none is named.
    fn give(&mut self, key: &ObjectKey, service: &ClusterService, addresses: &mut Vec<IpAddr>) {
        for ipv4 in families(service) {
            let asked = words(service).filter_map(|word| word.parse::<IpAddr>().ok());
            let asked = asked.chain(service.spec.load_balancer_ip.parse().ok());
            let is_asked_for = asked.into_iter().any(|of| of.is_ipv4() == ipv4);
            if is_asked_for || addresses.iter().any(|of| of.is_ipv4() == ipv4) {
                continue;
            }
            let taken: BTreeSet<IpAddr> = self.held.keys().chain(self.reserved).copied().collect();
            match self.rules.pool.first_free(ipv4, &taken) {
                Some(address) => {
                    self.claim(key, address);
                    addresses.push(address);
                }
                None => self.refuse(
                    key,
                    "NoFreeAddress",
                    format!(
                        "no {} address is free in the pool ({}); enlarge it, or delete a Service",
                        if ipv4 { "IPv4" } else { "IPv6" },
                        self.rules.pool
                    ),
                ),
            }
        }
    }

    /// Takes ports of a Service, if no other Service has them: those that its status has, or the others.
    fn take_ports(
        &mut self,
        key: &ObjectKey,
        service: &ClusterService,
        claim: &mut Claim,
        has: bool,
    ) {
        let ingress = &service.status.load_balancer.ingress;
        for (address, ports) in &mut claim.ports {
            let held = self.held.entry(*address).or_default();
            for of in ports {
                let Ok(transport) = of.outcome else { continue };
                if is_recorded(ingress, *address, of) != has {
                    continue;
                }
                let owner = held.ports.entry((of.port, transport));
                let owner = owner.or_insert_with(|| key.clone());
                if owner != key {
                    of.outcome = Err(IN_USE);
                }
            }
        }
    }

    fn tell_ports(&mut self, key: &ObjectKey, service: &ClusterService, claim: &Claim) {
        for port in &service.spec.ports {
            let (number, protocol) = (port.port, port.protocol.as_str());
            if Transport::of(protocol).is_none() {
                let message = format!(
                    "port {number}/{protocol} is not served: TCP and UDP are; take it out of this Service"
                );
                self.refuse(key, "ProtocolNotSupported", message);
            }
        }
        for (address, ports) in &claim.ports {
            for of in ports.iter().filter(|of| of.outcome == Err(IN_USE)) {
                let transport = Transport::of(&of.protocol);
                let held = self.held.get(address);
                let owner = held
                    .zip(transport)
                    .and_then(|(held, transport)| held.ports.get(&(of.port, transport)))
                    .map_or_else(String::new, ToString::to_string);
                let message = format!(
                    "port {}/{} of {address} is Service {owner}'s; use another port, or another address",
                    of.port, of.protocol
                );
                self.refuse(key, "PortInUse", message);
            }
        }
    }
}

/// Reasons in a status are words with a domain (KEP-1435).
const IN_USE: &str = "causeway.dev/PortInUse";
const NO_PROTOCOL: &str = "causeway.dev/ProtocolNotSupported";

fn is_recorded(ingress: &[Ingress], address: IpAddr, of: &ClaimedPort) -> bool {
    let is_it = |port: &IngressPort| {
        (port.port, &port.protocol, &port.error) == (of.port, &of.protocol, &None)
    };
    let mut of_address = ingress.iter().filter(|of| of.ip == Some(address));
    of_address.any(|ingress| ingress.ports.iter().any(is_it))
}

fn claim(service: &ClusterService, addresses: &[IpAddr]) -> Claim {
    let meta = &service.metadata;
    let known: Vec<&str> = words(service).collect();
    let named = |address: &IpAddr| known.iter().any(|word| word.parse() == Ok(*address));
    let new = addresses.iter().filter(|address| !named(address));
    let all = known.iter().map(ToString::to_string);
    let annotation: Vec<String> = all.chain(new.map(ToString::to_string)).collect();
    let annotation = annotation.join(",");
    let has_finalizer = meta.finalizers.iter().any(|of| of == FINALIZER);
    // One that has no address needs no record either.
    let is_recorded = addresses.iter().all(named) && (has_finalizer || addresses.is_empty());
    let ports = service.spec.ports.iter().map(|port| ClaimedPort {
        name: port.name.clone(),
        port: port.port,
        protocol: port.protocol.clone(),
        outcome: Transport::of(&port.protocol).ok_or(NO_PROTOCOL),
    });
    let ports: Vec<ClaimedPort> = ports.collect();
    let served = addresses.iter().filter(|_| is_recorded);
    Claim {
        annotation,
        is_recorded,
        ports: served.map(|address| (*address, ports.clone())).collect(),
    }
}

/// The addresses of the annotation, as they are written.
fn words(service: &ClusterService) -> impl Iterator<Item = &str> {
    let text = service.metadata.annotations.get(ADDRESSES);
    let words = text.into_iter().flat_map(|text| text.split(','));
    words.map(str::trim).filter(|word| !word.is_empty())
}

/// Whether IPv4, for each family of a Service.
fn families(service: &ClusterService) -> Vec<bool> {
    let families = &service.spec.ip_families;
    match families.is_empty() {
        true => vec![true],
        false => families.iter().map(|family| family != "IPv6").collect(),
    }
}
