// SPDX-License-Identifier: Apache-2.0
//! Writes to the cluster: the lease by which one controller leads, and what it then says.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use causeway_api::Moment;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::actions::ClusterChange;
use crate::api_server::{ApiError, ApiServer};
use crate::claims::ADDRESSES;
use crate::clock;
use crate::election::{Election, LeaseSpec, RENEW_NS};
use crate::objects::{ClusterService, ObjectKey, ObjectMeta};

/// Who speaks, in Events.
const COMPONENT: &str = "causeway-kubernetes";

/// A lease as it is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Lease {
    metadata: ObjectMeta,
    spec: LeaseSpec,
}

/// For how long the balancer may not have followed the cluster before another controller is to lead:
/// what a balancer lacks has no status.
const FOLLOWS_NS: u64 = 30_000_000_000;
/// How often a controller that may not lead looks whether it may.
const LOOK: Duration = Duration::from_secs(1);

/// Whether this controller leads, and whether it may. All times are CLOCK_MONOTONIC.
#[derive(Debug, Default)]
pub(crate) struct Leads {
    /// Until when it leads; the past: it does not.
    until_ns: AtomicU64,
    /// When the balancer was last found to follow the cluster; 0: never.
    followed_ns: AtomicU64,
}

impl Leads {
    pub(crate) fn now(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns.load(Ordering::Relaxed)
    }

    /// Notes that the balancer follows the cluster.
    pub(crate) fn note_followed(&self, now_ns: u64) {
        self.followed_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Whether the lease is for this controller to take or to renew.
    fn may_lead(&self, now_ns: u64) -> bool {
        let followed_ns = self.followed_ns.load(Ordering::Relaxed);
        followed_ns > 0 && now_ns.saturating_sub(followed_ns) < FOLLOWS_NS
    }
}

/// Takes part in the election for as long as it is polled.
pub(crate) async fn take_part(server: &ApiServer, lease: &ObjectKey, me: &str, leads: &Leads) {
    let mut election = Election::new(me.to_owned());
    let (mut led, mut told) = (false, false);
    loop {
        let may_lead = leads.may_lead(Moment::now().monotonic_ns);
        if may_lead {
            match renew(server, lease, &mut election).await {
                Ok(()) => told = false,
                // Another was first.
                Err(error) if error.is(409) => {}
                Err(error) => {
                    if !told {
                        warn!("the lease {lease} cannot be held: {error}; tries again");
                    }
                    told = true;
                }
            }
        }
        leads
            .until_ns
            .store(election.leads_until(), Ordering::Relaxed);
        let leads_now = leads.now(Moment::now().monotonic_ns);
        if led != leads_now {
            led = leads_now;
            match led {
                true => info!("leads as {me}, by the lease {lease}"),
                false => info!("does not lead any more"),
            }
        }
        sleep(match may_lead {
            true => Duration::from_nanos(RENEW_NS),
            false => LOOK,
        })
        .await;
    }
}

async fn renew(
    server: &ApiServer,
    lease: &ObjectKey,
    election: &mut Election,
) -> Result<(), ApiError> {
    let all = format!(
        "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
        lease.namespace
    );
    let path = format!("{all}/{}", lease.name);
    let known: Option<Lease> = match server.get(&path).await {
        Ok(lease) => Some(lease),
        Err(error) if error.is(404) => None,
        Err(error) => return Err(error),
    };
    let now = Moment::now();
    let spec = known.as_ref().map(|lease| &lease.spec);
    let time = clock::micro_time(now.realtime_ns);
    let Some(next) = election.handle_lease(now.monotonic_ns, spec, time) else {
        return Ok(());
    };
    let mut body = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "namespace": lease.namespace, "name": lease.name },
        "spec": next,
    });
    match known {
        // A version that was changed meanwhile is a conflict: one of two gets it.
        Some(known) => {
            body["metadata"]["resourceVersion"] = json!(known.metadata.resource_version);
            server.put(&path, &body).await?;
        }
        None => server.post(&all, &body).await?,
    }
    election.handle_written(now.monotonic_ns);
    Ok(())
}

/// Writes one change to a Service, as it is known.
pub(crate) async fn say(
    server: &ApiServer,
    me: &str,
    service: &ClusterService,
    action: &ClusterChange,
) -> Result<(), ApiError> {
    let meta = &service.metadata;
    let path = format!(
        "/api/v1/namespaces/{}/services/{}",
        meta.namespace, meta.name
    );
    // Of another version, another decision may follow.
    let mut body = json!({ "metadata": { "resourceVersion": meta.resource_version } });
    match action {
        ClusterChange::Claim {
            addresses,
            finalizers,
        } => {
            body["metadata"]["annotations"] = json!({ ADDRESSES: addresses });
            body["metadata"]["finalizers"] = json!(finalizers);
            server.patch(&path, &body).await
        }
        ClusterChange::Release { finalizers } => {
            body["metadata"]["finalizers"] = json!(finalizers);
            server.patch(&path, &body).await
        }
        ClusterChange::Status(ingress) => {
            body["status"] = json!({ "loadBalancer": { "ingress": ingress } });
            server.patch(&format!("{path}/status"), &body).await
        }
        ClusterChange::Tell { reason, message } => tell(server, me, meta, reason, message).await,
    }
}

/// One Event for one thing, however often it is told.
async fn tell(
    server: &ApiServer,
    me: &str,
    meta: &ObjectMeta,
    reason: &str,
    message: &str,
) -> Result<(), ApiError> {
    let mut hash = DefaultHasher::new();
    (&meta.uid, reason, message).hash(&mut hash);
    let all = format!("/api/v1/namespaces/{}/events", meta.namespace);
    let name = format!("{}.{:016x}", meta.name, hash.finish());
    let time = clock::time(Moment::now().realtime_ns);
    let event: Value = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "namespace": meta.namespace, "name": name },
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Service",
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
        },
        "type": "Warning",
        "reason": reason,
        "message": message,
        "source": { "component": COMPONENT, "host": me },
        "reportingComponent": COMPONENT,
        "reportingInstance": me,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    });
    match server.post(&all, &event).await {
        Err(error) if error.is(409) => {
            let again = json!({ "lastTimestamp": time });
            server.patch(&format!("{all}/{name}"), &again).await
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_whose_balancer_does_not_follow_leaves_the_lease_to_others() {
        let leads = Leads::default();
        assert!(!leads.may_lead(1), "not before the first good step");
        leads.note_followed(7);
        assert!(leads.may_lead(7));
        assert!(leads.may_lead(7 + FOLLOWS_NS - 1));
        assert!(!leads.may_lead(7 + FOLLOWS_NS));
    }
}
