// SPDX-License-Identifier: Apache-2.0
//! What is to be written to the cluster: what a Service is given, its status once the balancer has
//! its VIPs, and what is refused. Written by the one controller that leads.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::claims::{Claim, ClaimRules, FINALIZER, Refusal};
use crate::cluster::Cluster;
use crate::objects::{Ingress, IngressPort, ObjectKey, ObjectMeta};
use crate::wanted::{InForce, WantedVip, name_prefix};

/// How often a refusal is told again that lasts: the API server forgets Events after an hour.
const AGAIN_NS: u64 = 30 * 60 * 1_000_000_000;
/// What the balancer says no to, in a status.
const REFUSED: &str = "causeway.dev/Refused";
/// How an address is reached: packets keep it as their destination.
const VIP: &str = "VIP";

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterChange {
    /// Writes a Service's addresses and the finalizer onto it.
    Claim {
        /// The addresses' annotation.
        addresses: String,
        /// The finalizers, with ours.
        finalizers: Vec<String>,
    },
    /// Writes where clients find it.
    Status(Vec<Ingress>),
    /// Lets it go.
    Release {
        /// The finalizers, without ours.
        finalizers: Vec<String>,
    },
    /// Tells its author.
    Tell {
        /// The Event's reason.
        reason: &'static str,
        /// A sentence.
        message: String,
    },
}

impl fmt::Display for ClusterChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim { addresses, .. } => write!(f, "gets {addresses}"),
            Self::Status(ingress) if ingress.is_empty() => f.write_str("is not served"),
            Self::Status(ingress) => {
                let addresses = ingress.iter().filter_map(|ingress| ingress.ip);
                let addresses: Vec<String> = addresses.map(|ip| ip.to_string()).collect();
                write!(f, "is served at {}", addresses.join(", "))
            }
            Self::Release { .. } => f.write_str("is let go"),
            Self::Tell { message, .. } => f.write_str(message),
        }
    }
}

/// What was told, and when.
#[derive(Debug, Default)]
pub struct Told(BTreeMap<(String, Refusal), u64>);

impl Told {
    /// Notes that a change has been written, if it was to tell a Service's author.
    pub fn handle_written(&mut self, now_ns: u64, service: &ObjectMeta, change: &ClusterChange) {
        if let ClusterChange::Tell { reason, message } = change {
            let refusal = Refusal {
                service: service.key(),
                reason,
                message: message.clone(),
            };
            self.0.insert((service.uid.clone(), refusal), now_ns);
        }
    }
}

/// What there is to write.
#[derive(Debug)]
pub struct Situation<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// Whom to serve.
    pub rules: &'a ClaimRules,
    /// What each Service has.
    pub claims: &'a BTreeMap<ObjectKey, Claim>,
    /// The VIPs that the balancer is to have.
    pub vips: &'a [WantedVip],
    /// Those that it has.
    pub in_force: &'a InForce,
    /// All that was refused.
    pub refusals: &'a [Refusal],
    /// Services whose VIPs the balancer refused, so that it has none of them.
    pub refused: &'a BTreeSet<ObjectKey>,
}

impl Situation<'_> {
    /// What to write at `now_ns`.
    pub fn actions(&self, now_ns: u64, told: &mut Told) -> Vec<(ObjectKey, ClusterChange)> {
        let mut actions = Vec::new();
        for (key, service) in self.cluster.services() {
            let meta = &service.metadata;
            match self.claims.get(key) {
                Some(claim) if !claim.is_recorded => {
                    let mut finalizers = meta.finalizers.clone();
                    if !has_ours(meta) {
                        finalizers.push(FINALIZER.to_owned());
                    }
                    let addresses = claim.annotation.clone();
                    actions.push((
                        key.clone(),
                        ClusterChange::Claim {
                            addresses,
                            finalizers,
                        },
                    ));
                }
                Some(claim) => {
                    let status = self.ingress(key, claim);
                    let known = &service.status.load_balancer.ingress;
                    if let Some(status) = status.filter(|status| !is_same(status, known)) {
                        actions.push((key.clone(), ClusterChange::Status(status)));
                    }
                }
                None if has_ours(meta) && !self.has_any(key) => {
                    let known = &service.status.load_balancer.ingress;
                    let mut ours = known.iter().filter_map(|ingress| ingress.ip);
                    // One that is another's now says itself where clients find it.
                    if !meta.is_going() && ours.any(|ip| self.rules.pool.contains(ip)) {
                        actions.push((key.clone(), ClusterChange::Status(Vec::new())));
                        continue;
                    }
                    let finalizers = meta.finalizers.iter();
                    let finalizers = finalizers.filter(|of| *of != FINALIZER).cloned().collect();
                    actions.push((key.clone(), ClusterChange::Release { finalizers }));
                }
                None => {}
            }
        }
        actions.extend(self.tell(now_ns, told));
        actions
    }

    /// Whether the balancer has any VIP of a Service.
    fn has_any(&self, service: &ObjectKey) -> bool {
        let prefix = name_prefix(service);
        let mut from = self.in_force.range(prefix.clone()..);
        from.next()
            .is_some_and(|(name, _)| name.starts_with(&prefix))
    }

    /// Where clients find a Service; `None` as long as the balancer has not taken all of it.
    fn ingress(&self, key: &ObjectKey, claim: &Claim) -> Option<Vec<Ingress>> {
        let is_refused = self.refused.contains(key);
        let mut found = Vec::new();
        for (address, ports) in &claim.ports {
            let mut told = Vec::new();
            for of in ports {
                let error = match of.outcome {
                    Err(why) => Some(why),
                    Ok(_) if is_refused => Some(REFUSED),
                    Ok(transport) => {
                        let is_it = |vip: &&WantedVip| {
                            (&vip.service, vip.address, vip.port, vip.protocol)
                                == (key, *address, of.port, transport)
                        };
                        let vip = self.vips.iter().find(is_it);
                        if !vip.is_some_and(|vip| self.in_force.contains_key(&vip.name)) {
                            return None;
                        }
                        None
                    }
                };
                told.push(IngressPort {
                    port: of.port,
                    protocol: of.protocol.clone(),
                    error: error.map(str::to_owned),
                });
            }
            if told.iter().any(|port| port.error.is_none()) {
                found.push(Ingress {
                    ip: Some(*address),
                    ip_mode: Some(VIP.to_owned()),
                    ports: told,
                });
            }
        }
        Some(found)
    }

    /// Refusals that are new, or were told long ago. Those of `told` that have ended are forgotten.
    fn tell(&self, now_ns: u64, told: &mut Told) -> Vec<(ObjectKey, ClusterChange)> {
        let mut current = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let mut actions = Vec::new();
        for refusal in self.refusals {
            let Some(service) = self.cluster.service(&refusal.service) else {
                continue;
            };
            let of = (service.metadata.uid.clone(), refusal.clone());
            let before = told.0.get(&of).copied();
            let is_due = before.is_none_or(|ns| now_ns.saturating_sub(ns) >= AGAIN_NS);
            current.extend(before.map(|ns| (of.clone(), ns)));
            if seen.insert(of) && is_due {
                let (reason, message) = (refusal.reason, refusal.message.clone());
                actions.push((
                    refusal.service.clone(),
                    ClusterChange::Tell { reason, message },
                ));
            }
        }
        told.0 = current;
        actions
    }
}

/// Whether a Service has our finalizer.
pub(crate) fn has_ours(meta: &ObjectMeta) -> bool {
    meta.finalizers.iter().any(|of| of == FINALIZER)
}

/// Whether two say the same: ports have no order, and `VIP` is what a missing mode means. Before
/// Kubernetes 1.30 API servers do not keep it.
fn is_same(one: &[Ingress], other: &[Ingress]) -> bool {
    let sorted = |of: &[Ingress]| {
        let mut of = of.to_vec();
        for ingress in &mut of {
            ingress.ports.sort();
            ingress.ip_mode.get_or_insert_with(|| VIP.to_owned());
        }
        of.sort_by_key(|ingress| ingress.ip);
        of
    };
    sorted(one) == sorted(other)
}
