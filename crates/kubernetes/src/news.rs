// SPDX-License-Identifier: Apache-2.0
//! What the watches tell. Most of it is about pods and Services of others, and a step of the controller asks
//! the balancer for all that it has: so each is asked whether it matters.

use crate::actions::has_ours;
use crate::claims::ClaimRules;
use crate::cluster::{Cluster, WatchEvent};
use crate::objects::{ClusterNode, ClusterService, EndpointSlice, ObjectKind as _};

/// What a watch has told.
#[derive(Debug)]
pub(crate) enum News {
    Services(WatchEvent<ClusterService>),
    Slices(WatchEvent<EndpointSlice>),
    Nodes(WatchEvent<ClusterNode>),
}

impl News {
    /// Whether something may be to be done now, and not only at the next look.
    pub(crate) fn matters(&self, cluster: &Cluster, rules: &ClaimRules) -> bool {
        let is_ours = |of: &ClusterService| rules.is_ours(of) || has_ours(&of.metadata);
        let of_ours = |of: &EndpointSlice| {
            let service = of.service();
            let service = service.as_ref().and_then(|key| cluster.service(key));
            service.is_some_and(is_ours)
        };
        match self {
            Self::Services(WatchEvent::All(_))
            | Self::Slices(WatchEvent::All(_))
            | Self::Nodes(WatchEvent::All(_) | WatchEvent::Gone(_)) => true,
            Self::Services(WatchEvent::Put(of)) => {
                let before = cluster.service(&of.meta().key());
                is_ours(of) || before.is_some_and(is_ours)
            }
            Self::Services(WatchEvent::Gone(key)) => cluster.service(key).is_some_and(is_ours),
            Self::Slices(WatchEvent::Put(of)) => match cluster.slice(&of.meta().key()) {
                None => of_ours(of),
                Some(before) => (of_ours(of) || of_ours(before)) && !is_same_slice(of, before),
            },
            Self::Slices(WatchEvent::Gone(key)) => cluster.slice(key).is_some_and(of_ours),
            Self::Nodes(WatchEvent::Put(of)) => {
                let before = cluster.node(&of.meta().key());
                before.is_none_or(|before| !is_same_node(of, before))
            }
        }
    }

    /// Has the cluster take it.
    pub(crate) fn tell(self, cluster: &mut Cluster) {
        match self {
            Self::Services(of) => cluster.handle_services(of),
            Self::Slices(of) => cluster.handle_slices(of),
            Self::Nodes(of) => cluster.handle_nodes(of),
        }
    }
}

/// Whether two say the same of what decides something; an object changes by its version alone, too.
fn is_same_slice(one: &EndpointSlice, other: &EndpointSlice) -> bool {
    one.service() == other.service()
        && one.address_type == other.address_type
        && one.endpoints == other.endpoints
        && one.ports == other.ports
}

fn is_same_node(one: &ClusterNode, other: &ClusterNode) -> bool {
    one.metadata.labels == other.metadata.labels
        && one.metadata.is_going() == other.metadata.is_going()
        && one.spec == other.spec
        && one.status == other.status
}
