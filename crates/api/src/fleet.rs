// SPDX-License-Identifier: Apache-2.0
//! What balancers of the same VIPs share: their fleet, and each other's measurements.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::balancer::Change;

/// Answer of `GET /v1/agreement`: what must be equal on all balancers of the same VIPs, as
/// digests from which keys cannot be computed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Agreement {
    /// What this balancer has, by `what` and `vip`.
    pub items: Vec<AgreementItem>,
}

/// Something that must be equal on balancers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct AgreementItem {
    /// `hash-key`, `cookie-keys`, `cookie-format`, `connection-ids`, `server-ids` or `weights`.
    pub what: String,
    /// Address, port and protocol of the VIP; none where it is of the balancer.
    pub vip: Option<String>,
    /// 16 hexadecimal digits: where they are the same, the balancers have the same.
    pub digest: String,
}

/// Answer of `GET /v1/fleet`: the state of the fleet, as this balancer sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetView {
    /// The fleet's name.
    pub fleet: String,
    /// This balancer's name in it.
    pub member: String,
    /// Where the book is.
    pub store: String,
    /// Why the store cannot be read, or written.
    pub store_error: Option<String>,
    /// Why this balancer does not apply the book.
    pub hold: Option<String>,
    /// `new` (the fleet does not know it), `joining`, `serving` or `left`.
    pub state: String,
    /// Whether routers may send packets to it.
    pub in_service: bool,
    /// The last good book.
    pub book: Option<FleetPosition>,
    /// The book that the data plane follows.
    pub applied: Option<FleetPosition>,
    /// `waits` or `steps-aside`: what happens when a lease ends.
    pub absence: String,
    /// The key of cookies that servers issue, by its number.
    pub key_issued: u64,
    /// The key that is accepted beside it: the next one, or the former one.
    pub key_other: Option<u64>,
    /// All members.
    pub members: Vec<FleetMemberView>,
    /// Servers whose agents are waited for, or get the book unasked.
    #[serde(default)]
    pub agents: Vec<FleetAgentView>,
    /// All ids in use or at rest.
    pub ids: Vec<FleetIdView>,
    /// Configurations of QUIC's connection ids, by VIP.
    #[serde(default)]
    pub quic_cids: Vec<FleetCidView>,
    /// Tokens by which agents of new servers join, used ones included until they are over.
    #[serde(default)]
    pub tokens: Vec<FleetTokenView>,
    /// What became of datagrams of agents that join, by name, at this balancer.
    #[serde(default)]
    pub joins: BTreeMap<String, u64>,
    /// Changes that are not complete, and the members that they wait for.
    pub waiting: Vec<FleetWait>,
    /// What this balancer's file would take away, and is held until an operator confirms it.
    #[serde(default)]
    pub held: Vec<FleetRemoval>,
    /// The last changes of VIPs and reals, newest first.
    #[serde(default)]
    pub history: Vec<FleetRevision>,
}

/// What a change takes away from a VIP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetRemoval {
    /// Address, port and protocol of the VIP.
    pub vip: String,
    /// Whether it goes as a whole.
    pub whole: bool,
    /// Reals that go, without those that are drained by hand.
    pub reals: Vec<String>,
    /// Of how many.
    pub of: usize,
}

impl std::fmt::Display for FleetRemoval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let reals = named_reals(&self.reals);
        match self.whole {
            true => write!(f, "vip {} goes, with {reals}", self.vip),
            false => write!(f, "vip {} loses {reals} of {}", self.vip, self.of),
        }
    }
}

/// Reals, for people: how many, and the first of them.
pub fn named_reals(reals: &[String]) -> String {
    const NAMED: usize = 3;
    let more = match reals.len() > NAMED {
        true => ", ...",
        false => "",
    };
    let plural = match reals.len() {
        1 => "",
        _ => "s",
    };
    let first = &reals[..reals.len().min(NAMED)];
    match first.is_empty() {
        true => "no reals".to_owned(),
        false => format!("{} real{plural} ({}{more})", reals.len(), first.join(", ")),
    }
}

/// What a change made of the fleet's VIPs and reals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetRevision {
    /// The book's revision that came of it.
    pub revision: u64,
    /// When, by the clock of the balancer that proposed it: seconds since 1970.
    pub at_s: u64,
    /// Name of that balancer.
    pub by: String,
    /// The revision that it put back, if any.
    pub back_to: Option<u64>,
    /// What it changed, a VIP each; empty for the oldest that is kept.
    pub what: Vec<String>,
}

/// Body of `POST /v1/fleet/push`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FleetPush {
    /// Whether what it takes away is confirmed.
    pub confirmed: bool,
    /// Whether it is only to say what would change.
    pub dry_run: bool,
}

/// Body of `POST /v1/fleet/rollback`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FleetRollback {
    /// The revision to put back; without, the one before the last change.
    pub revision: Option<u64>,
    /// Whether what it takes away is confirmed.
    pub confirmed: bool,
    /// Whether it is only to say what would change.
    pub dry_run: bool,
}

/// Answer of `POST /v1/fleet/push` and `POST /v1/fleet/rollback`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FleetPushed {
    /// What changes on this balancer by its file.
    pub changes: Vec<Change>,
    /// What changes for the whole fleet, a VIP each.
    pub fleet: Vec<String>,
    /// What of it has to be confirmed.
    pub held: Vec<FleetRemoval>,
    /// What was done; none if it was only to say what would change.
    pub done: Option<String>,
}

/// Which book it is: later is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct FleetPosition {
    /// How often the book has been put back into a store that had lost it.
    pub generation: u32,
    /// Counts changes.
    pub revision: u64,
}

impl std::fmt::Display for FleetPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{}.{}", self.generation, self.revision))
    }
}

/// The configurations of a VIP's connection ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetCidView {
    /// Address, port and protocol.
    pub vip: String,
    /// Number of the configuration by which servers issue connection ids; none: by their files.
    pub issued: Option<u8>,
    /// Number of that which is accepted beside it: the next one, or the former one.
    pub other: Option<u8>,
    /// Whether those that are in files alone are accepted, too.
    pub by_files: bool,
}

/// The agent of a server of a fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetAgentView {
    /// The server's address.
    pub server: String,
    /// The book that it follows, as last reported to this balancer.
    pub acknowledged: Option<FleetPosition>,
}

/// A member of a fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetMemberView {
    /// Its name.
    pub name: String,
    /// `joining` or `serving`.
    pub phase: String,
    /// Whether its lease lasts: its daemon runs, and reaches the store.
    pub alive: bool,
    /// The book that its data plane follows, as it has said.
    pub acknowledged: Option<FleetPosition>,
}

/// An id of a VIP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetIdView {
    /// Address, port and protocol of the VIP.
    pub vip: String,
    /// The id.
    pub id: u16,
    /// Address of the real.
    pub real: String,
    /// `known`, `live`, `leaving` or `resting`.
    pub phase: String,
}

/// A change that is not complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetWait {
    /// What is to happen.
    pub what: String,
    /// Names of the members that it waits for; none where it waits for time to pass.
    pub members: Vec<String>,
    /// Addresses of the servers whose agents it waits for.
    #[serde(default)]
    pub agents: Vec<String>,
}

/// A token by which the agent of a new server joins, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetTokenView {
    /// Addresses of the server.
    pub servers: Vec<String>,
    /// When it expires, seconds since 1970.
    pub until_s: u64,
    /// Whether it has been used.
    pub is_used: bool,
}

/// Body of `POST /v1/fleet/token`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FleetTokenOrder {
    /// Addresses of one server, as balancers know it.
    #[schema(value_type = Vec<String>)]
    pub servers: Vec<IpAddr>,
    /// How long the token lasts, seconds.
    pub lifetime_s: u64,
}

/// Body of `POST /v1/fleet/pass-by`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PassBy {
    /// Name of a member that gets no packets.
    pub member: String,
}

/// Answer of `GET /v1/peers`: the state of the exchange with balancers of the same VIPs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PeersView {
    /// The address by which the others know this balancer; none without `[peers]`.
    pub own: Option<String>,
    /// The others.
    pub members: Vec<PeerView>,
    /// What became of datagrams, by name, those of unknown senders included.
    pub results: BTreeMap<String, u64>,
    /// Measurements of reals that this balancer lacks.
    pub unknown_reals: u64,
    /// Measurements that waited for a later round, because there were too many.
    pub put_off: u64,
    /// Datagrams that the kernel did not send.
    pub unsent: u64,
}

/// The state of the exchange with one balancer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PeerView {
    /// Its `peers.listen`.
    pub address: String,
    /// Whether its measurements count: its last datagram is at most a second old.
    pub live: bool,
    /// How long ago its last datagram came.
    pub heard_s: Option<f64>,
    /// Datagrams to it.
    pub sent: u64,
    /// Datagrams of it that were used.
    pub received: u64,
    /// Those that were dropped, by the reason's name.
    pub dropped: BTreeMap<String, u64>,
    /// Reals for which it sends measurements and that this balancer has, too.
    pub reals: usize,
    /// How far the weights of a real are apart there and here at most, as a part of the
    /// configured weight.
    pub weights_apart: Option<f64>,
    /// Which real that is: the VIP's name, and its address.
    pub farthest_real: Option<String>,
}
