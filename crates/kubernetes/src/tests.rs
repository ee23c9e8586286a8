// SPDX-License-Identifier: Apache-2.0
//! From a cluster's objects to VIPs and to what is written to it, on a clock of the test's own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::actions::{ClusterChange, Situation, Told};
use crate::claims::{ADDRESSES, ClaimRules, FINALIZER, Refusal, claims};
use crate::cluster::{Cluster, WatchEvent};
use crate::news::News;
use crate::objects::{ClusterNode, Ingress, ObjectKey, ObjectKind, ObjectMeta};
use crate::pool::AddressRange;
use crate::wanted::{InForce, NodeProbe, NodeRules, Planner, WantedVip};

const SECOND: u64 = 1_000_000_000;
const CLASS: &str = "causeway.dev/lb";

/// A cluster, and a balancer that takes what it is given.
struct World {
    cluster: Cluster,
    rules: ClaimRules,
    nodes: NodeRules,
    planner: Planner,
    told: Told,
    in_force: InForce,
    reserved: BTreeSet<IpAddr>,
    refused: BTreeSet<ObjectKey>,
    now_ns: u64,
}

/// What one look brings.
struct Look {
    vips: Vec<WantedVip>,
    refusals: Vec<Refusal>,
    actions: Vec<(ObjectKey, ClusterChange)>,
    next_ns: Option<u64>,
}

fn read<K: ObjectKind>(value: Value) -> WatchEvent<K> {
    WatchEvent::Put(Box::new(serde_json::from_value(value).unwrap()))
}

fn key(name: &str) -> ObjectKey {
    let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
    ObjectKey {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

impl World {
    fn new(pool: &[&str]) -> Self {
        let ranges: Vec<AddressRange> = pool.iter().map(|of| of.parse().unwrap()).collect();
        let mut cluster = Cluster::default();
        cluster.handle_services(WatchEvent::All(vec![]));
        cluster.handle_slices(WatchEvent::All(vec![]));
        cluster.handle_nodes(WatchEvent::All(vec![]));
        let mut world = Self {
            cluster,
            rules: ClaimRules {
                class: CLASS.to_owned(),
                pool: ranges.into(),
            },
            nodes: NodeRules {
                drain_ns: 300 * SECOND,
                health_port: Some(10256),
            },
            planner: Planner::default(),
            told: Told::default(),
            in_force: InForce::new(),
            reserved: BTreeSet::new(),
            refused: BTreeSet::new(),
            now_ns: 1000 * SECOND,
        };
        for (name, address) in [("n1", "10.0.0.1"), ("n2", "10.0.0.2")] {
            world.node(name, &[address], json!({}), "True");
        }
        world
    }

    fn node(&mut self, name: &str, addresses: &[&str], more: Value, ready: &str) {
        let addresses: Vec<Value> = addresses
            .iter()
            .map(|of| json!({ "type": "InternalIP", "address": of }))
            .collect();
        let mut node = json!({
            "metadata": { "name": name },
            "status": {
                "addresses": addresses,
                "conditions": [{ "type": "Ready", "status": ready }],
            },
        });
        for (key, value) in more.as_object().unwrap() {
            match key.as_str() {
                "taints" => node["spec"]["taints"] = value.clone(),
                other => node["metadata"][other] = value.clone(),
            }
        }
        self.cluster.handle_nodes(read(node));
    }

    /// A Service that was made at `second`.
    fn service(&mut self, name: &str, second: u32, spec: Value) {
        let of = key(name);
        let mut service = json!({
            "metadata": {
                "name": of.name, "namespace": of.namespace, "uid": format!("uid-{name}"),
                "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
            },
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": CLASS, "ipFamilies": ["IPv4"],
                "externalTrafficPolicy": "Cluster", "sessionAffinity": "None",
                "ports": [{ "port": 80, "protocol": "TCP" }],
            },
        });
        for (key, value) in spec.as_object().unwrap() {
            match key.as_str() {
                "annotations" | "deletionTimestamp" => service["metadata"][key] = value.clone(),
                _ => service["spec"][key] = value.clone(),
            }
        }
        if let Some(known) = self.cluster.service(&of) {
            // What the controller wrote stays.
            service["metadata"]["finalizers"] = json!(known.metadata.finalizers);
            let mut annotations = json!(known.metadata.annotations);
            for (key, value) in spec["annotations"].as_object().into_iter().flatten() {
                annotations[key] = value.clone();
            }
            service["metadata"]["annotations"] = annotations;
            service["status"]["loadBalancer"]["ingress"] =
                json!(known.status.load_balancer.ingress);
        }
        self.cluster.handle_services(read(service));
    }

    fn endpoints(&mut self, service: &str, family: &str, endpoints: &[(&str, &str)]) {
        let of = key(service);
        let conditions = |word: &str| match word {
            "ready" => json!({ "ready": true, "serving": true, "terminating": false }),
            "leaving" => json!({ "ready": false, "serving": true, "terminating": true }),
            "starting" => json!({ "ready": false, "serving": false, "terminating": false }),
            other => panic!("{other}"),
        };
        let endpoints: Vec<Value> = endpoints
            .iter()
            .map(|(node, word)| json!({ "nodeName": node, "conditions": conditions(word) }))
            .collect();
        self.cluster.handle_slices(read(json!({
            "metadata": {
                "name": format!("{}-{family}", of.name), "namespace": of.namespace,
                "labels": { "kubernetes.io/service-name": of.name },
            },
            "addressType": family,
            "endpoints": endpoints,
        })));
    }

    /// One look; the balancer takes it if `takes`.
    fn look(&mut self, takes: bool) -> Look {
        let (claims, mut refusals) = claims(&self.cluster, &self.rules, &self.reserved);
        let (mut vips, next_ns, more) = self.planner.plan(
            self.now_ns,
            &self.cluster,
            &claims,
            &self.in_force,
            &self.nodes,
        );
        refusals.extend(more);
        vips.retain(|vip| !self.refused.contains(&vip.service));
        if takes {
            self.in_force = vips
                .iter()
                .map(|vip| (vip.name.clone(), vip.reals.keys().copied().collect()))
                .collect();
        }
        let situation = Situation {
            cluster: &self.cluster,
            rules: &self.rules,
            claims: &claims,
            vips: &vips,
            in_force: &self.in_force,
            refusals: &refusals,
            refused: &self.refused,
        };
        let actions = situation.actions(self.now_ns, &mut self.told);
        Look {
            vips,
            refusals,
            actions,
            next_ns,
        }
    }

    /// Looks until nothing is to be written, and writes.
    fn settle(&mut self) -> Look {
        let mut events = Vec::new();
        for _ in 0..10 {
            let mut look = self.look(true);
            let (told, written): (Vec<_>, Vec<_>) = look
                .actions
                .drain(..)
                .partition(|(_, action)| matches!(action, ClusterChange::Tell { .. }));
            for (key, event) in told {
                let service = self.cluster.service(&key).unwrap();
                let meta = &service.metadata;
                self.told.handle_written(self.now_ns, meta, &event);
                events.push((key, event));
            }
            if written.is_empty() {
                look.actions = events;
                return look;
            }
            for (key, action) in written {
                self.write(&key, action);
            }
        }
        panic!("never settles");
    }

    /// What the API server would do.
    fn write(&mut self, key: &ObjectKey, action: ClusterChange) {
        let mut service = self.cluster.service(key).unwrap().clone();
        match action {
            ClusterChange::Claim {
                addresses,
                finalizers,
            } => {
                service
                    .metadata
                    .annotations
                    .insert(ADDRESSES.into(), addresses);
                service.metadata.finalizers = finalizers;
            }
            ClusterChange::Release { finalizers } => {
                service.metadata.finalizers = finalizers;
                if service.metadata.is_going() && service.metadata.finalizers.is_empty() {
                    self.cluster.handle_services(WatchEvent::Gone(key.clone()));
                    return;
                }
            }
            ClusterChange::Status(ingress) => service.status.load_balancer.ingress = ingress,
            ClusterChange::Tell { .. } => {}
        }
        self.cluster
            .handle_services(WatchEvent::Put(Box::new(service)));
    }

    fn ingress(&self, name: &str) -> Vec<Ingress> {
        let service = self.cluster.service(&key(name)).unwrap();
        service.status.load_balancer.ingress.clone()
    }

    fn addresses(&self, name: &str) -> Vec<String> {
        let ingress = self.ingress(name);
        let addresses = ingress.iter().filter_map(|of| of.ip);
        addresses.map(|ip| ip.to_string()).collect()
    }
}

/// The reals of a VIP in a line; those that drain in brackets.
fn reals(look: &Look, name: &str) -> String {
    let vip = look.vips.iter().find(|vip| vip.name == name);
    let Some(vip) = vip else {
        return "no vip".to_owned();
    };
    let words: Vec<String> = vip
        .reals
        .iter()
        .map(|(address, drains)| match drains {
            true => format!("({address})"),
            false => address.to_string(),
        })
        .collect();
    words.join(" ")
}

fn events(look: &Look) -> Vec<String> {
    let tell = |(key, action): &(ObjectKey, ClusterChange)| match action {
        ClusterChange::Tell { reason, message } => Some(format!("{key} {reason}: {message}")),
        _ => None,
    };
    look.actions.iter().filter_map(tell).collect()
}

#[test]
fn a_service_gets_an_address_then_a_vip_then_a_status() {
    let mut world = World::new(&["192.0.2.8/30"]);
    world.service("web", 1, json!({}));
    let look = world.look(true);
    assert_eq!(look.vips, [], "no VIP before all controllers can know it");
    let claim = ClusterChange::Claim {
        addresses: "192.0.2.8".into(),
        finalizers: vec![FINALIZER.into()],
    };
    assert_eq!(look.actions, [(key("web"), claim.clone())]);
    world.write(&key("web"), claim);
    // The balancer does not have it yet: nothing is promised.
    let look = world.look(false);
    assert_eq!(reals(&look, "default/web:80/tcp"), "10.0.0.1 10.0.0.2");
    assert_eq!(look.actions, []);
    let look = world.look(true);
    let status = json!([{ "ip": "192.0.2.8", "ipMode": "VIP",
        "ports": [{ "port": 80, "protocol": "TCP" }] }]);
    match &look.actions[..] {
        [(_, ClusterChange::Status(ingress))] => assert_eq!(json!(ingress), status),
        other => panic!("{other:?}"),
    }
    world.settle();
    assert_eq!(world.addresses("web"), ["192.0.2.8"]);
    assert_eq!(world.settle().actions, [], "and then there is peace");
}

#[test]
fn a_deleted_service_stays_until_its_vip_is_gone() {
    let mut world = World::new(&["192.0.2.8/30"]);
    world.service("web", 1, json!({}));
    world.settle();
    world.service(
        "web",
        1,
        json!({ "deletionTimestamp": "2026-01-01T00:01:00Z" }),
    );
    let look = world.look(false);
    assert_eq!(
        (look.vips.len(), look.actions.len()),
        (0, 0),
        "the balancer has it still"
    );
    let look = world.look(true);
    let release = ClusterChange::Release { finalizers: vec![] };
    assert_eq!(look.actions, [(key("web"), release)]);
    world.settle();
    assert_eq!(world.cluster.service(&key("web")), None);
    // One of another class now is let go, with its status.
    world.service("api", 2, json!({}));
    world.settle();
    assert_eq!(world.addresses("api"), ["192.0.2.8"], "free again");
    world.service(
        "api",
        2,
        json!({ "type": "NodePort", "loadBalancerClass": null }),
    );
    world.settle();
    let api = world.cluster.service(&key("api")).unwrap();
    assert!(api.metadata.finalizers.is_empty() && world.ingress("api").is_empty());
}

#[test]
fn ports_protocols_and_families_are_vips_of_their_own() {
    let mut world = World::new(&["192.0.2.8/30", "2001:db8::/126"]);
    world.node("n1", &["10.0.0.1", "fd00::1"], json!({}), "True");
    world.service(
        "web",
        1,
        json!({
            "ipFamilies": ["IPv4", "IPv6"],
            "sessionAffinity": "ClientIP",
            "ports": [
                { "port": 443, "protocol": "TCP" },
                { "port": 443, "protocol": "UDP" },
                { "port": 132, "protocol": "SCTP" },
            ],
        }),
    );
    let look = world.settle();
    let names: Vec<&str> = look.vips.iter().map(|vip| vip.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "default/web:443/tcp",
            "default/web:443/tcp/ipv6",
            "default/web:443/udp",
            "default/web:443/udp/ipv6"
        ]
    );
    assert!(look.vips.iter().all(|vip| vip.affinity));
    // A node without an address of the family is sent its packets by the other one.
    assert_eq!(reals(&look, "default/web:443/tcp"), "10.0.0.1 10.0.0.2");
    assert_eq!(reals(&look, "default/web:443/udp/ipv6"), "10.0.0.2 fd00::1");
    assert_eq!(world.addresses("web"), ["192.0.2.8", "2001:db8::"]);
    assert_eq!(
        events(&look),
        [
            "default/web ProtocolNotSupported: port 132/SCTP is not served: TCP and UDP are; take it out of this Service"
        ]
    );
    let errors: Vec<Option<String>> = world.ingress("web")[0]
        .ports
        .iter()
        .map(|port| port.error.clone())
        .collect();
    let error = Some("causeway.dev/ProtocolNotSupported".to_owned());
    assert_eq!(errors, [None, None, error]);
}

#[test]
fn addresses_are_asked_for_and_refused_with_reason() {
    let mut world = World::new(&["192.0.2.8/31"]);
    world.reserved.insert(ip("192.0.2.9"));
    let ask = |address: &str| json!({ "annotations": { ADDRESSES: address } });
    world.service("a", 1, ask("203.0.113.1"));
    world.service("b", 2, ask("192.0.2.9"));
    world.service("c", 3, ask("web"));
    world.service("d", 4, json!({ "loadBalancerIP": "192.0.2.8" }));
    world.service("e", 5, json!({}));
    world.service("other/f", 6, ask("192.0.2.8"));
    let look = world.settle();
    let mut events = events(&look);
    events.sort();
    assert_eq!(
        events,
        [
            "default/a AddressRefused: 203.0.113.1 is not in the pool (192.0.2.8-192.0.2.9); ask for another, or for none",
            "default/b AddressRefused: 192.0.2.9 is a VIP of the balancer's own file; ask for another, or for none",
            "default/c AddressRefused: `web` in causeway.dev/addresses is not an address; write for example \"192.0.2.1\"",
            "default/c NoFreeAddress: no IPv4 address is free in the pool (192.0.2.8-192.0.2.9); enlarge it, or delete a Service",
            "default/e NoFreeAddress: no IPv4 address is free in the pool (192.0.2.8-192.0.2.9); enlarge it, or delete a Service",
            "other/f AddressRefused: 192.0.2.8 belongs to a Service of another namespace; ask for another, or for none",
        ]
    );
    assert_eq!(world.addresses("d"), ["192.0.2.8"]);
    assert_eq!(
        look.vips.len(),
        1,
        "those that cannot be served do not hinder others"
    );
    // Told once, and again while it lasts.
    assert_eq!(world.look(true).actions, []);
    world.now_ns += 1800 * SECOND;
    assert_eq!(world.look(true).actions.len(), 6);
    // Until it has been told.
    assert_eq!(world.look(true).actions.len(), 6);
    world.settle();
    assert_eq!(world.look(true).actions, []);
}

#[test]
fn an_older_service_does_not_take_the_address_that_one_of_another_namespace_is_served_at() {
    let mut world = World::new(&["192.0.2.8/30"]);
    let at = |address: &str| json!({ "annotations": { ADDRESSES: address } });
    world.service("a/young", 2, json!({}));
    world.service("b/old", 1, at("192.0.2.9"));
    world.settle();
    assert_eq!(world.addresses("a/young"), ["192.0.2.8"]);
    assert_eq!(world.addresses("b/old"), ["192.0.2.9"]);
    world.service("b/old", 1, at("192.0.2.8"));
    let look = world.settle();
    assert_eq!(world.addresses("a/young"), ["192.0.2.8"]);
    assert_eq!(world.addresses("b/old"), [""; 0]);
    assert_eq!(
        events(&look),
        [
            "b/old AddressRefused: 192.0.2.8 belongs to a Service of another namespace; ask for another, or for none"
        ]
    );
    // It is free once the younger has moved.
    world.service("a/young", 2, at("192.0.2.10"));
    world.settle();
    assert_eq!(world.addresses("a/young"), ["192.0.2.10"]);
    assert_eq!(world.addresses("b/old"), ["192.0.2.8"]);
}

#[test]
fn services_of_a_namespace_share_an_address_port_by_port_and_none_takes_anothers() {
    let mut world = World::new(&["192.0.2.8/30"]);
    let ports = |ports: &[u16]| -> Value {
        let ports = ports.iter();
        ports
            .map(|port| json!({ "port": port, "protocol": "TCP" }))
            .collect()
    };
    let at = json!({ ADDRESSES: "192.0.2.10" });
    world.service(
        "young",
        2,
        json!({ "annotations": at, "ports": ports(&[80, 443]) }),
    );
    world.settle();
    // An older one comes to the same address: what is served stays where it is.
    world.service(
        "old",
        1,
        json!({ "annotations": at, "ports": ports(&[80, 8080]) }),
    );
    let look = world.settle();
    let owners: Vec<(u16, &str)> = look
        .vips
        .iter()
        .map(|vip| (vip.port, vip.service.name.as_str()))
        .collect();
    assert_eq!(owners, [(8080, "old"), (443, "young"), (80, "young")]);
    let in_use = "default/old PortInUse: port 80/TCP of 192.0.2.10 is Service default/young's; use another port, or another address";
    assert_eq!(events(&look), [in_use]);
    let errors: Vec<bool> = world.ingress("old")[0]
        .ports
        .iter()
        .map(|port| port.error.is_some())
        .collect();
    assert_eq!(errors, [true, false]);
    // A new port of the younger does not take the older's either, though both have a status.
    world.service(
        "young",
        2,
        json!({ "annotations": at, "ports": ports(&[443, 8080]) }),
    );
    let look = world.settle();
    let owners: Vec<(u16, &str)> = look
        .vips
        .iter()
        .map(|vip| (vip.port, vip.service.name.as_str()))
        .collect();
    assert_eq!(owners, [(80, "old"), (8080, "old"), (443, "young")]);
}

#[test]
fn nodes_drain_and_are_removed_later() {
    let mut world = World::new(&["192.0.2.8/30"]);
    world.node("n3", &["10.0.0.3"], json!({}), "True");
    world.service("web", 1, json!({}));
    let vip = "default/web:80/tcp";
    assert_eq!(reals(&world.settle(), vip), "10.0.0.1 10.0.0.2 10.0.0.3");
    let label =
        json!({ "labels": { "node.kubernetes.io/exclude-from-external-load-balancers": "" } });
    world.node("n1", &["10.0.0.1"], label, "True");
    world.node("n2", &["10.0.0.2"], json!({}), "Unknown");
    let look = world.settle();
    assert_eq!(reals(&look, vip), "(10.0.0.1) (10.0.0.2) 10.0.0.3");
    assert_eq!(look.next_ns, Some(world.now_ns + 300 * SECOND));
    // One returns in time.
    world.now_ns += 200 * SECOND;
    world.node("n2", &["10.0.0.2"], json!({}), "True");
    assert_eq!(reals(&world.settle(), vip), "(10.0.0.1) 10.0.0.2 10.0.0.3");
    let taint =
        json!({ "taints": [{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }] });
    world.node("n3", &["10.0.0.3"], taint, "True");
    world.now_ns += 99 * SECOND;
    assert_eq!(
        reals(&world.settle(), vip),
        "(10.0.0.1) 10.0.0.2 (10.0.0.3)"
    );
    world.now_ns += SECOND;
    assert_eq!(reals(&world.settle(), vip), "10.0.0.2 (10.0.0.3)");
    // One that is deleted drains as well.
    world.cluster.handle_nodes(WatchEvent::Gone(ObjectKey {
        namespace: String::new(),
        name: "n2".into(),
    }));
    world.node("n4", &["10.0.0.4"], json!({}), "True");
    assert_eq!(
        reals(&world.settle(), vip),
        "(10.0.0.2) (10.0.0.3) 10.0.0.4"
    );
    // What was never in force does not drain.
    world.node("n5", &["10.0.0.5"], json!({}), "True");
    world.look(false);
    world.node("n5", &["10.0.0.5"], json!({}), "False");
    assert_eq!(
        reals(&world.settle(), vip),
        "(10.0.0.2) (10.0.0.3) 10.0.0.4"
    );
}

#[test]
fn if_no_node_is_ready_the_cluster_may_be_at_fault() {
    let mut world = World::new(&["192.0.2.8/30"]);
    world.service("web", 1, json!({}));
    world.settle();
    for name in ["n1", "n2"] {
        let address = format!("10.0.0.{}", &name[1..]);
        world.node(name, &[&address], json!({}), "Unknown");
    }
    assert_eq!(
        reals(&world.settle(), "default/web:80/tcp"),
        "10.0.0.1 10.0.0.2"
    );
}

#[test]
fn with_the_local_policy_nodes_with_endpoints_are_the_reals() {
    let mut world = World::new(&["192.0.2.8/30"]);
    world.node("n3", &["10.0.0.3"], json!({}), "True");
    let vip = "default/web:80/tcp";
    let local = json!({ "externalTrafficPolicy": "Local", "healthCheckNodePort": 30256 });
    world.service("web", 1, local);
    // None yet: the VIP is there, and no node gets packets.
    let look = world.settle();
    assert_eq!(reals(&look, vip), "(10.0.0.1) (10.0.0.2) (10.0.0.3)");
    let probe = NodeProbe {
        port: 30256,
        weight: true,
    };
    assert_eq!(look.vips[0].health, Some(probe));
    world.endpoints(
        "web",
        "IPv4",
        &[
            ("n1", "ready"),
            ("n1", "starting"),
            ("n2", "ready"),
            ("n3", "starting"),
        ],
    );
    assert_eq!(reals(&world.settle(), vip), "10.0.0.1 10.0.0.2 (10.0.0.3)");
    world.now_ns += 300 * SECOND;
    assert_eq!(reals(&world.settle(), vip), "10.0.0.1 10.0.0.2");
    // A pod ends: its node drains, for as long as it is given.
    world.endpoints("web", "IPv4", &[("n1", "leaving"), ("n2", "ready")]);
    assert_eq!(reals(&world.settle(), vip), "(10.0.0.1) 10.0.0.2");
    // The last one ends, too: those that still serve are better than none.
    world.endpoints("web", "IPv4", &[("n1", "leaving"), ("n2", "leaving")]);
    assert_eq!(reals(&world.settle(), vip), "10.0.0.1 10.0.0.2");
    world.endpoints("web", "IPv4", &[("n3", "ready")]);
    assert_eq!(
        reals(&world.settle(), vip),
        "(10.0.0.1) (10.0.0.2) 10.0.0.3"
    );
    // Those of the other family are not for this VIP.
    world.endpoints("web", "IPv6", &[("n1", "ready")]);
    assert_eq!(
        reals(&world.settle(), vip),
        "(10.0.0.1) (10.0.0.2) 10.0.0.3"
    );
}

#[test]
fn without_the_local_policy_nodes_are_asked_for_themselves() {
    let mut world = World::new(&["192.0.2.8/30"]);
    world.service("web", 1, json!({}));
    let probe = NodeProbe {
        port: 10256,
        weight: false,
    };
    assert_eq!(world.settle().vips[0].health, Some(probe));
    world.nodes.health_port = None;
    assert_eq!(world.settle().vips[0].health, None);
}

#[test]
fn without_any_node_there_is_no_vip_and_an_event() {
    let mut world = World::new(&["192.0.2.8/30"]);
    world.cluster.handle_nodes(WatchEvent::All(vec![]));
    world.service(
        "web",
        1,
        json!({ "ports": [{ "port": 80, "protocol": "TCP" }, { "port": 81, "protocol": "TCP" }] }),
    );
    let look = world.settle();
    assert_eq!(look.vips, []);
    let [refusal] = &look.refusals[..] else {
        panic!("{:?}", look.refusals)
    };
    assert_eq!(refusal.reason, "NoNode");
    assert_eq!(world.addresses("web"), [""; 0]);
}

#[test]
fn what_the_balancer_refuses_is_not_promised() {
    let mut world = World::new(&["192.0.2.8/30"]);
    world.service("web", 1, json!({}));
    world.settle();
    world.refused.insert(key("web"));
    world.settle();
    assert_eq!(world.addresses("web"), [""; 0]);
    world.refused.clear();
    world.settle();
    assert_eq!(world.addresses("web"), ["192.0.2.8"], "it has kept it");
}

#[test]
fn an_address_stays_though_the_annotation_was_lost_or_others_are_older() {
    let mut world = World::new(&["192.0.2.8/30"]);
    world.service("b", 5, json!({}));
    world.settle();
    let mut service = world.cluster.service(&key("b")).unwrap().clone();
    service.metadata.annotations = BTreeMap::new();
    world
        .cluster
        .handle_services(WatchEvent::Put(Box::new(service)));
    world.service("a", 1, json!({}));
    world.settle();
    assert_eq!(
        (world.addresses("b"), world.addresses("a")),
        (vec!["192.0.2.8".to_owned()], vec!["192.0.2.9".to_owned()])
    );
    // A second family is added to the first.
    world.rules.pool = vec![
        "192.0.2.8/30".parse().unwrap(),
        "2001:db8::/126".parse().unwrap(),
    ]
    .into();
    world.service("b", 5, json!({ "ipFamilies": ["IPv4", "IPv6"] }));
    world.settle();
    assert_eq!(world.addresses("b"), ["192.0.2.8", "2001:db8::"]);
}

#[test]
fn a_port_is_served_by_nodes_whose_endpoints_have_it() {
    let mut world = World::new(&["192.0.2.8/30"]);
    let port = |name: &str, port: u16| json!({ "name": name, "port": port, "protocol": "TCP" });
    world.service(
        "web",
        1,
        json!({ "externalTrafficPolicy": "Local", "ports": [port("a", 80), port("b", 81)] }),
    );
    // A rollout adds `b`: pods that lack it are in a slice of their own.
    for (name, node, ports) in [
        ("web-1", "n1", json!([port("a", 8080)])),
        ("web-2", "n2", json!([port("a", 8080), port("b", 8081)])),
    ] {
        world.cluster.handle_slices(read(json!({
            "metadata": {
                "name": name, "namespace": "default",
                "labels": { "kubernetes.io/service-name": "web" },
            },
            "addressType": "IPv4",
            "endpoints": [{ "nodeName": node, "conditions": { "ready": true } }],
            "ports": ports,
        })));
    }
    let look = world.settle();
    assert_eq!(reals(&look, "default/web:80/tcp"), "10.0.0.1 10.0.0.2");
    assert_eq!(reals(&look, "default/web:81/tcp"), "10.0.0.2");
}

#[test]
fn an_api_server_that_does_not_keep_the_mode_is_left_in_peace() {
    let mut world = World::new(&["192.0.2.8/30"]);
    world.service("web", 1, json!({}));
    world.settle();
    let mut service = world.cluster.service(&key("web")).unwrap().clone();
    for ingress in &mut service.status.load_balancer.ingress {
        assert_eq!(ingress.ip_mode.take().as_deref(), Some("VIP"));
    }
    world
        .cluster
        .handle_services(WatchEvent::Put(Box::new(service.clone())));
    assert_eq!(world.look(true).actions, []);
    // Another mode is not what was written.
    service.status.load_balancer.ingress[0].ip_mode = Some("Proxy".to_owned());
    world
        .cluster
        .handle_services(WatchEvent::Put(Box::new(service)));
    assert_eq!(world.look(true).actions.len(), 1);
}

#[test]
fn a_time_that_is_null_is_none() {
    let meta = json!({ "name": "web", "creationTimestamp": null });
    let meta: ObjectMeta = serde_json::from_value(meta).unwrap();
    assert_eq!(
        (meta.name.as_str(), meta.creation_timestamp.as_str()),
        ("web", "")
    );
}

#[test]
fn what_changes_nothing_here_is_no_matter() {
    let mut world = World::new(&["192.0.2.8/30"]);
    world.service("web", 1, json!({}));
    world.service("other", 2, json!({ "loadBalancerClass": "example.org/lb" }));
    for service in ["web", "other"] {
        world.endpoints(service, "IPv4", &[("n1", "ready")]);
    }
    let slice = |service: &str, name: &str, version: &str, node: &str| {
        News::Slices(read(json!({
            "metadata": {
                "name": name, "namespace": "default", "resourceVersion": version,
                "labels": { "kubernetes.io/service-name": service },
            },
            "addressType": "IPv4",
            "endpoints": [{
                "nodeName": node,
                "conditions": { "ready": true, "serving": true, "terminating": false },
            }],
        })))
    };
    let gone = |name: &str| News::Slices(WatchEvent::Gone(key(name)));
    let service = |name: &str, change: fn(&mut crate::objects::ClusterService)| {
        let mut service = world.cluster.service(&key(name)).unwrap().clone();
        change(&mut service);
        News::Services(WatchEvent::Put(Box::new(service)))
    };
    let node = |change: fn(&mut ClusterNode)| {
        let of = ObjectKey {
            namespace: String::new(),
            name: "n1".to_owned(),
        };
        let mut node = world.cluster.node(&of).unwrap().clone();
        node.metadata.resource_version = "7".to_owned();
        change(&mut node);
        News::Nodes(WatchEvent::Put(Box::new(node)))
    };
    for (what, news, matters) in [
        (
            "another's pods",
            slice("other", "other-IPv4", "7", "n2"),
            false,
        ),
        (
            "another's new pods",
            slice("other", "other-2", "7", "n2"),
            false,
        ),
        (
            "pods of a Service that is not known",
            slice("later", "later-1", "7", "n2"),
            false,
        ),
        ("another's last pods", gone("other-IPv4"), false),
        (
            "a slice's version",
            slice("web", "web-IPv4", "7", "n1"),
            false,
        ),
        ("pods", slice("web", "web-IPv4", "7", "n2"), true),
        ("new pods", slice("web", "web-2", "7", "n2"), true),
        (
            "pods that are another's now",
            slice("other", "web-IPv4", "7", "n1"),
            true,
        ),
        ("the last pods", gone("web-IPv4"), true),
        ("all pods", News::Slices(WatchEvent::All(vec![])), true),
        ("another Service", service("other", |_| ()), false),
        ("a Service", service("web", |_| ()), true),
        (
            "a Service that is another's now",
            service("web", |of| of.spec.load_balancer_class = None),
            true,
        ),
        (
            "another's Service that still has the finalizer",
            service("other", |of| {
                of.metadata.finalizers = vec![FINALIZER.to_owned()]
            }),
            true,
        ),
        (
            "another's end",
            News::Services(WatchEvent::Gone(key("other"))),
            false,
        ),
        (
            "a Service's end",
            News::Services(WatchEvent::Gone(key("web"))),
            true,
        ),
        ("a node's version", node(|_| ()), false),
        (
            "a node that is not ready",
            node(|of| of.status.conditions.clear()),
            true,
        ),
        (
            "a node's end",
            News::Nodes(WatchEvent::Gone(key("n1"))),
            true,
        ),
    ] {
        assert_eq!(
            news.matters(&world.cluster, &world.rules),
            matters,
            "{what}"
        );
    }
}
