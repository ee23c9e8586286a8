// SPDX-License-Identifier: Apache-2.0
//! The VIPs that the balancer is to have, and their reals: the cluster's nodes.
//!
//! A packet goes to a node, whose agent takes the outer header off and whose kube-proxy hands it to
//! a pod; so reals are few, and their ids do not change when pods do.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::claims::{Claim, Refusal, Transport};
use crate::cluster::{Cluster, EndpointNodes};
use crate::objects::{ClusterNode, ClusterService, ObjectKey};

/// Nodes with this label get no packets from outside.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// The taint of a node that the cluster's autoscaler is about to delete.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";
/// Where kube-proxy says how many endpoints its node has for a Service, and whether the node can
/// be used at all.
const HEALTH_PATH: &str = "/healthz";

/// A VIP of the balancer's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedVip {
    /// Its name, which begins with the Service's.
    pub name: String,
    /// Whose it is.
    pub service: ObjectKey,
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Its protocol.
    pub protocol: Transport,
    /// Whether a client keeps its real from connection to connection.
    pub affinity: bool,
    /// What is asked on the nodes; `None`: nothing.
    pub health: Option<NodeProbe>,
    /// The nodes, and whether each drains.
    pub reals: BTreeMap<IpAddr, bool>,
}

/// How nodes are probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeProbe {
    /// Port on the node's own address.
    pub port: u16,
    /// Whether the answer says the node's weight.
    pub weight: bool,
}

impl NodeProbe {
    /// Path of the page that is asked for.
    pub const PATH: &'static str = HEALTH_PATH;
}

/// What holds for all VIPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRules {
    /// How long a node that is no longer wanted drains before it is removed.
    pub drain_ns: u64,
    /// Port on which kube-proxy says whether its node can be used.
    pub health_port: Option<u16>,
}

/// The reals that the balancer has, by VIP.
pub type InForce = BTreeMap<String, BTreeSet<IpAddr>>;

/// What the names of a Service's VIPs begin with.
pub fn name_prefix(service: &ObjectKey) -> String {
    format!("{service}:")
}

/// How a node stands, from the best on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Ready,
    /// It may be the cluster's fault, not its own.
    Unready,
    Leaving,
}

impl Standing {
    fn of(node: &ClusterNode) -> Self {
        let is_excluded = node.metadata.labels.contains_key(EXCLUDED);
        let is_to_be_deleted = node.spec.taints.iter().any(|of| of.key == TO_BE_DELETED);
        if is_excluded || is_to_be_deleted || node.metadata.is_going() {
            return Self::Leaving;
        }
        let mut conditions = node.status.conditions.iter();
        match conditions.any(|of| of.kind == "Ready" && of.status == "True") {
            true => Self::Ready,
            false => Self::Unready,
        }
    }
}

/// A node as a real.
struct Candidate<'a> {
    name: &'a str,
    address: IpAddr,
    standing: Standing,
}

/// Remembers since when nodes are no longer wanted.
#[derive(Debug, Default)]
pub struct Planner {
    gone_ns: BTreeMap<(String, IpAddr), u64>,
}

impl Planner {
    /// The VIPs that the balancer is to have from `now_ns` on, by name, when to ask again, and
    /// what was refused.
    pub fn plan(
        &mut self,
        now_ns: u64,
        cluster: &Cluster,
        claims: &BTreeMap<ObjectKey, Claim>,
        in_force: &InForce,
        rules: &NodeRules,
    ) -> (Vec<WantedVip>, Option<u64>, Vec<Refusal>) {
        let slices = cluster.slices();
        let mut vips = Vec::new();
        let mut refusals = Vec::new();
        for (key, claim) in claims {
            let Some(service) = cluster.service(key) else {
                continue;
            };
            for (address, ports) in &claim.ports {
                let of_family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
                let slices = slices.get(&(key.clone(), of_family));
                let slices = slices.map_or(&[][..], Vec::as_slice);
                let candidates = candidates(cluster, address.is_ipv4());
                for port in ports {
                    let Ok(protocol) = port.outcome else { continue };
                    let endpoints = EndpointNodes::of_port(slices, &port.name);
                    let wanted = wanted(service, &candidates, &endpoints);
                    let name = name(key, *address, port.port, protocol);
                    let known = in_force.get(&name);
                    let reals = self.reals(now_ns, &name, &wanted, &candidates, known, rules);
                    if reals.is_empty() {
                        refusals.push(Refusal {
                            service: key.clone(),
                            reason: "NoNode",
                            message: format!(
                                "no node has an address to which packets of {address} can be sent; add a node, or remove the label {EXCLUDED}"
                            ),
                        });
                        continue;
                    }
                    vips.push(WantedVip {
                        name,
                        service: key.clone(),
                        address: *address,
                        port: port.port,
                        protocol,
                        affinity: service.spec.session_affinity == "ClientIP",
                        health: probe(service, rules),
                        reals,
                    });
                }
            }
        }
        refusals.dedup();
        vips.sort_by(|a, b| a.name.cmp(&b.name));
        let is_wanted = |name: &String| vips.binary_search_by(|vip| vip.name.cmp(name)).is_ok();
        self.gone_ns.retain(|(name, address), _| {
            let known = in_force.get(name);
            is_wanted(name) && known.is_some_and(|known| known.contains(address))
        });
        let ends = self.gone_ns.values().map(|since| since + rules.drain_ns);
        (vips, ends.filter(|end| *end > now_ns).min(), refusals)
    }

    /// The reals of a VIP: those that are wanted, and for a time those that it has besides.
    fn reals(
        &mut self,
        now_ns: u64,
        name: &str,
        wanted: &BTreeSet<IpAddr>,
        candidates: &[Candidate<'_>],
        in_force: Option<&BTreeSet<IpAddr>>,
        rules: &NodeRules,
    ) -> BTreeMap<IpAddr, bool> {
        let mut reals: BTreeMap<IpAddr, bool> = BTreeMap::new();
        for address in in_force.into_iter().flatten() {
            let gone = (name.to_owned(), *address);
            if wanted.contains(address) {
                self.gone_ns.remove(&gone);
                continue;
            }
            let since_ns = *self.gone_ns.entry(gone).or_insert(now_ns);
            if now_ns.saturating_sub(since_ns) < rules.drain_ns {
                reals.insert(*address, true);
            }
        }
        reals.extend(wanted.iter().map(|address| (*address, false)));
        if reals.is_empty() {
            // A VIP has reals; these get nothing until one has an endpoint.
            let others = candidates
                .iter()
                .filter(|of| of.standing < Standing::Leaving);
            reals.extend(others.map(|of| (of.address, true)));
        }
        reals
    }
}

/// The nodes that can be reached from the balancer, at best in the VIP's own family.
fn candidates(cluster: &Cluster, ipv4: bool) -> Vec<Candidate<'_>> {
    let candidate = |node: &'_ ClusterNode| -> Option<IpAddr> {
        let addresses = node.status.addresses.iter();
        let internal = addresses.filter(|of| of.kind == "InternalIP");
        let mut parsed: Vec<IpAddr> = internal.filter_map(|of| of.address.parse().ok()).collect();
        parsed.sort_by_key(|address| address.is_ipv4() != ipv4);
        parsed.first().copied()
    };
    let nodes = cluster.nodes();
    nodes
        .filter_map(|node| {
            Some(Candidate {
                name: &node.metadata.name,
                address: candidate(node)?,
                standing: Standing::of(node),
            })
        })
        .collect()
}

/// Nodes that get new connections: the first of these kinds that there are any of.
fn wanted(
    service: &ClusterService,
    candidates: &[Candidate<'_>],
    endpoints: &EndpointNodes,
) -> BTreeSet<IpAddr> {
    let of = |standing: Standing, has: &dyn Fn(&str) -> bool| -> BTreeSet<IpAddr> {
        let nodes = candidates
            .iter()
            .filter(|of| of.standing <= standing && has(of.name));
        nodes.map(|of| of.address).collect()
    };
    let is_ready = |name: &str| endpoints.ready.contains(name);
    let is_leaving = |name: &str| endpoints.leaving.contains(name);
    let kinds = match is_local(service) {
        false => vec![
            of(Standing::Ready, &|_| true),
            of(Standing::Unready, &|_| true),
        ],
        // Endpoints that end serve when there are no others, as kube-proxy has it (KEP-1669).
        true => vec![
            of(Standing::Ready, &is_ready),
            of(Standing::Unready, &is_ready),
            of(Standing::Unready, &is_leaving),
        ],
    };
    let mut kinds = kinds.into_iter();
    kinds.find(|nodes| !nodes.is_empty()).unwrap_or_default()
}

fn is_local(service: &ClusterService) -> bool {
    service.spec.external_traffic_policy == "Local"
}

fn probe(service: &ClusterService, rules: &NodeRules) -> Option<NodeProbe> {
    let of_service = service.spec.health_check_node_port;
    match is_local(service) && of_service != 0 {
        true => Some(NodeProbe {
            port: of_service,
            weight: true,
        }),
        false => rules.health_port.map(|port| NodeProbe {
            port,
            weight: false,
        }),
    }
}

fn name(service: &ObjectKey, address: IpAddr, port: u16, protocol: Transport) -> String {
    let family = if address.is_ipv4() { "" } else { "/ipv6" };
    format!("{}{port}/{}{family}", name_prefix(service), protocol.word())
}
