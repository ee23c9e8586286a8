// SPDX-License-Identifier: Apache-2.0
//! What is known of the cluster: its Services, their endpoints by node, its nodes.

use std::collections::{BTreeMap, BTreeSet};

use crate::objects::{ClusterNode, ClusterService, EndpointSlice, ObjectKey, ObjectKind};

/// What a watch has told.
#[derive(Debug)]
pub enum WatchEvent<K> {
    /// All that there are.
    All(Vec<K>),
    /// One is new or another than before.
    Put(Box<K>),
    /// One is gone.
    Gone(ObjectKey),
}

/// All objects of a kind; `None` before they have been listed.
#[derive(Debug)]
struct Objects<K>(Option<BTreeMap<ObjectKey, K>>);

impl<K> Default for Objects<K> {
    fn default() -> Self {
        Self(None)
    }
}

impl<K: ObjectKind> Objects<K> {
    fn handle(&mut self, heard: WatchEvent<K>) {
        let mut known = self.0.take().unwrap_or_default();
        match heard {
            WatchEvent::All(all) => {
                known = all.into_iter().map(|of| (of.meta().key(), of)).collect();
            }
            WatchEvent::Put(of) => {
                known.insert(of.meta().key(), *of);
            }
            WatchEvent::Gone(key) => {
                known.remove(&key);
            }
        }
        self.0 = Some(known);
    }

    fn get(&self, key: &ObjectKey) -> Option<&K> {
        self.0.as_ref()?.get(key)
    }

    fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &K)> {
        self.0.iter().flatten()
    }
}

/// Where endpoints of a Service's port are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointNodes {
    /// Nodes with one that takes new connections.
    pub ready: BTreeSet<String>,
    /// Nodes with one that ends and still serves.
    pub leaving: BTreeSet<String>,
}

impl EndpointNodes {
    /// Those of the port of this name in a Service's slices.
    pub fn of_port(slices: &[&EndpointSlice], port: &str) -> Self {
        let mut nodes = Self::default();
        let slices = slices.iter().filter(|slice| slice.has_port(port));
        for endpoint in slices.flat_map(|slice| &slice.endpoints) {
            let Some(node) = &endpoint.node_name else {
                continue;
            };
            if endpoint.conditions.is_ready() {
                nodes.ready.insert(node.clone());
            } else if endpoint.conditions.is_leaving() {
                nodes.leaving.insert(node.clone());
            }
        }
        nodes
    }
}

/// The objects of a cluster that matter here.
#[derive(Debug, Default)]
pub struct Cluster {
    services: Objects<ClusterService>,
    slices: Objects<EndpointSlice>,
    nodes: Objects<ClusterNode>,
}

impl Cluster {
    /// Takes what was told of Services.
    pub fn handle_services(&mut self, heard: WatchEvent<ClusterService>) {
        self.services.handle(heard);
    }

    /// Takes what was told of endpoints.
    pub fn handle_slices(&mut self, heard: WatchEvent<EndpointSlice>) {
        self.slices.handle(heard);
    }

    /// Takes what was told of nodes.
    pub fn handle_nodes(&mut self, heard: WatchEvent<ClusterNode>) {
        self.nodes.handle(heard);
    }

    /// Whether all kinds have been listed: before that, nothing follows from what is missing.
    pub fn is_known(&self) -> bool {
        self.services.0.is_some() && self.slices.0.is_some() && self.nodes.0.is_some()
    }

    /// Every Service.
    pub fn services(&self) -> impl Iterator<Item = (&ObjectKey, &ClusterService)> {
        self.services.iter()
    }

    /// A Service.
    pub fn service(&self, key: &ObjectKey) -> Option<&ClusterService> {
        self.services.get(key)
    }

    /// Every node.
    pub fn nodes(&self) -> impl Iterator<Item = &ClusterNode> {
        self.nodes.iter().map(|(_, node)| node)
    }

    /// A slice.
    pub fn slice(&self, key: &ObjectKey) -> Option<&EndpointSlice> {
        self.slices.get(key)
    }

    /// A node.
    pub fn node(&self, key: &ObjectKey) -> Option<&ClusterNode> {
        self.nodes.get(key)
    }

    /// The slices of each Service, by the family of their addresses (`IPv4`, `IPv6`).
    pub fn slices(&self) -> BTreeMap<(ObjectKey, &str), Vec<&EndpointSlice>> {
        let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (_, slice) in self.slices.iter() {
            if let Some(service) = slice.service() {
                let of = (service, slice.address_type.as_str());
                found.entry(of).or_default().push(slice);
            }
        }
        found
    }
}
