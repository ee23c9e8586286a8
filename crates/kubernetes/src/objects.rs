// SPDX-License-Identifier: Apache-2.0
//! What is read of a cluster's objects: the fields that decide something, and no others.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The label by which a slice names its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// A kind of object that can be listed and watched.
pub trait ObjectKind: DeserializeOwned + Send + 'static {
    /// Where the API server has all of them.
    const PATH: &'static str;

    /// What every object has.
    fn meta(&self) -> &ObjectMeta;
}

/// The name of an object in its cluster; objects of no namespace have an empty one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.is_empty() {
            true => f.write_str(&self.name),
            false => write!(f, "{}/{}", self.namespace, self.name),
        }
    }
}

/// What every object has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub resource_version: String,
    /// RFC 3339 in UTC: the order of the texts is that of the times.
    #[serde(deserialize_with = "or_default")]
    pub creation_timestamp: String,
    pub deletion_timestamp: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub finalizers: Vec<String>,
}

impl ObjectMeta {
    /// Its name in the cluster.
    pub fn key(&self) -> ObjectKey {
        ObjectKey {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }

    /// Whether it is being deleted.
    pub fn is_going(&self) -> bool {
        self.deletion_timestamp.is_some()
    }
}

/// A Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClusterService {
    pub metadata: ObjectMeta,
    pub spec: ServiceSpec,
    pub status: ServiceStatus,
}

impl ObjectKind for ClusterService {
    const PATH: &'static str = "/api/v1/services";

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// What a Service is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    #[serde(rename = "type")]
    pub kind: String,
    pub load_balancer_class: Option<String>,
    #[serde(rename = "loadBalancerIP")]
    pub load_balancer_ip: String,
    pub external_traffic_policy: String,
    pub health_check_node_port: u16,
    pub session_affinity: String,
    pub ip_families: Vec<String>,
    pub ports: Vec<ServicePort>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServicePort {
    /// Empty where there is no other.
    pub name: String,
    pub port: u16,
    pub protocol: String,
}

/// What has become of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    pub load_balancer: LoadBalancerStatus,
}

/// Where clients find it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    pub ingress: Vec<Ingress>,
}

/// An address of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ingress {
    pub ip: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_mode: Option<String>,
    #[serde(default)]
    pub ports: Vec<IngressPort>,
}

/// What became of a port at an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub struct IngressPort {
    pub port: u16,
    pub protocol: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Some of a Service's endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    pub metadata: ObjectMeta,
    pub address_type: String,
    #[serde(deserialize_with = "or_default")]
    pub endpoints: Vec<Endpoint>,
    #[serde(deserialize_with = "or_default")]
    pub ports: Vec<SlicePort>,
}

impl EndpointSlice {
    /// The Service that it is of.
    pub fn service(&self) -> Option<ObjectKey> {
        let name = self.metadata.labels.get(SERVICE_NAME)?;
        Some(ObjectKey {
            namespace: self.metadata.namespace.clone(),
            name: name.clone(),
        })
    }

    /// Whether its endpoints have the Service's port of this name: pods may lack one that others have.
    pub fn has_port(&self, name: &str) -> bool {
        self.ports.is_empty() || self.ports.iter().any(|port| port.name == name)
    }
}

/// A port that all endpoints of a slice have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SlicePort {
    /// That of the Service's port.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
}

impl ObjectKind for EndpointSlice {
    const PATH: &'static str = "/apis/discovery.k8s.io/v1/endpointslices";

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// A pod of a Service, usually.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    pub node_name: Option<String>,
    pub conditions: EndpointConditions,
}

/// How an endpoint stands. What is not said counts as the API has it: ready, and serving if
/// ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EndpointConditions {
    pub ready: Option<bool>,
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
}

impl EndpointConditions {
    /// Whether it takes new connections.
    pub fn is_ready(self) -> bool {
        self.ready.unwrap_or(true) && !self.terminating.unwrap_or(false)
    }

    /// Whether it ends, and still serves the connections that it has.
    pub fn is_leaving(self) -> bool {
        let serving = self.serving.or(self.ready).unwrap_or(true);
        serving && self.terminating.unwrap_or(false)
    }
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClusterNode {
    pub metadata: ObjectMeta,
    pub spec: NodeSpec,
    pub status: NodeStatus,
}

impl ObjectKind for ClusterNode {
    const PATH: &'static str = "/api/v1/nodes";

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// What a node is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    pub taints: Vec<Taint>,
}

/// What keeps pods off a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    pub key: String,
}

/// How a node stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    pub conditions: Vec<NodeCondition>,
    pub addresses: Vec<NodeAddress>,
}

/// One thing that is known of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
}

/// An address of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    #[serde(rename = "type")]
    pub kind: String,
    pub address: String,
}

/// What Go has no value for may be null: an empty list, and before Kubernetes 1.34 a time.
fn or_default<'de, D, T>(of: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(of)?.unwrap_or_default())
}
