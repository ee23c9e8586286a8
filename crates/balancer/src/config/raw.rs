// SPDX-License-Identifier: Apache-2.0
//! The file as it is written: every key optional, every value still text.
//!
//! Nothing outside `config` sees these types. They exist so that an unknown
//! key is refused by serde and every other fault can name its line.

use std::collections::BTreeMap;

use causeway_dataplane::Protocol;
use causeway_service::api::RawApi;
use causeway_service::config::{
    CookieKind, CountValue, HttpValue, RawXdp, SecretValue, Spanned, Text, Time, WordOf,
    schema_of_words,
};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;

use super::peers::RawPeers;
use super::probe::StatusValue;
use super::words::*;

pub(super) type Number = Option<Spanned<f64>>;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    pub interface: Text,
    pub pin_dir: Text,
    pub state_dir: Text,
    pub socket: Text,
    pub socket_group: Text,
    pub http: Option<Spanned<HttpValue>>,
    pub api: Option<RawApi>,
    pub reconcile: Option<bool>,
    #[serde(default)]
    pub reload: RawReload,
    pub hash_key: Option<Spanned<SecretValue>>,
    #[schemars(with = "Option<WordOf<Unserved>>")]
    pub unserved: Text,
    #[serde(default)]
    pub xdp: RawXdp,
    #[serde(default)]
    pub encap: RawEncap,
    #[serde(default)]
    pub flow_table: RawFlowTable,
    #[serde(default)]
    pub stateful: RawStateful,
    #[serde(default)]
    pub limits: RawLimits,
    #[serde(default)]
    pub measure: RawMeasure,
    #[serde(default)]
    pub control: RawControl,
    #[serde(default)]
    pub cookie: RawCookie,
    pub agent_reports: Option<RawReports>,
    pub fleet: Option<RawFleet>,
    pub peers: Option<RawPeers>,
    #[serde(default)]
    pub announce: RawAnnounce,
    #[serde(default)]
    pub history: RawHistory,
    /// What holds for every VIP that does not say otherwise.
    #[allow(dead_code, reason = "`pools` puts it into the VIPs before")]
    pub defaults: Option<RawVip>,
    /// What the VIPs that name a pool have in common: their reals, above all.
    #[allow(dead_code, reason = "`pools` puts them into the VIPs before")]
    #[serde(default)]
    pub pool: BTreeMap<String, RawVip>,
    #[serde(default)]
    pub vip: Vec<Spanned<RawVip>>,
}

/// What is meant where a reload or a start takes something away.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawReload {
    pub allow_empty: Option<bool>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawEncap {
    pub source: Text,
    pub source6: Text,
    pub gateway_mac: Text,
    pub mtu: Option<Spanned<i64>>,
    pub gue_port: Option<Spanned<i64>>,
    #[schemars(with = "Option<WordOf<GueChecksum>>")]
    pub gue_checksum: Text,
    #[serde(default)]
    pub tunnel_ends: Vec<Spanned<String>>,
    #[serde(default)]
    pub tunnel_sources: Vec<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFlowTable {
    pub ipv4: Option<Spanned<CountValue>>,
    pub ipv6: Option<Spanned<CountValue>>,
    pub udp_idle: Time,
    pub closed_idle: Time,
    pub tcp_idle: Time,
    pub udp_drain: Time,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawStateful {
    pub connections: Option<Spanned<CountValue>>,
    pub token_source: Text,
    pub token_source6: Text,
    pub balancers: Option<Spanned<i64>>,
    pub number: Option<Spanned<i64>>,
    pub idle: Time,
    pub learn_period: Time,
}

/// How many of each there can be.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLimits {
    pub vips: Option<Spanned<CountValue>>,
    pub reals: Option<Spanned<CountValue>>,
    pub histograms: Option<Spanned<CountValue>>,
    pub cookie_vips: Option<Spanned<CountValue>>,
}

/// The fleet that a balancer is a member of.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFleet {
    pub name: Text,
    pub member: Text,
    pub store: Option<Spanned<RawFleetStore>>,
    #[schemars(with = "Option<WordOf<WhenAbsent>>")]
    pub absence: Text,
    pub lease: Time,
    pub settle: Time,
    pub agents: Option<bool>,
    pub max_removed: Number,
}

/// Where its book is.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFleetStore {
    pub dir: Text,
    pub etcd: Option<Vec<Spanned<String>>>,
    pub prefix: Text,
    pub user: Text,
    pub password: Option<Spanned<SecretValue>>,
    pub ca: Text,
    pub certificate: Text,
    pub key: Text,
}

/// Where agents report.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawReports {
    pub listen: Text,
    pub keys: Text,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAnnounce {
    pub bird: Text,
    pub configure: Option<Vec<String>>,
    pub delay: Time,
    #[schemars(with = "Option<WordOf<OnStop>>")]
    pub on_stop: Text,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMeasure {
    pub enabled: Option<bool>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawControl {
    pub interval: Time,
    #[serde(default)]
    #[schemars(schema_with = "laws")]
    pub law: Text,
    pub alpha_high: Number,
    pub alpha_low: Number,
    pub step: Number,
    pub max_decrease: Number,
    pub max_increase: Number,
    pub floor: Number,
    pub cap: Number,
    pub regress_after: Option<Spanned<i64>>,
    pub regress_rate: Number,
    pub smoothing: Number,
    pub min_samples: Option<Spanned<i64>>,
    pub confidence: Number,
    pub burst: Number,
    pub tolerance: Number,
    pub margin: Number,
    pub return_rate: Number,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCookie {
    pub keys: Text,
    pub quarantine: Time,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHistory {
    pub length: Time,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawVip {
    pub name: Text,
    pub address: Text,
    #[schemars(with = "Option<Ports>")]
    pub port: Option<Spanned<i64>>,
    #[serde(default)]
    #[schemars(schema_with = "protocols")]
    pub protocol: Text,
    #[allow(dead_code, reason = "`pools` puts it into the VIP before")]
    pub pool: Text,
    #[schemars(with = "Option<WordOf<Scheduler>>")]
    pub scheduler: Text,
    #[schemars(with = "Option<WordOf<LoadSource>>")]
    pub load: Text,
    pub flow_table: Option<Spanned<bool>>,
    #[schemars(with = "Option<WordOf<ForwardingMode>>")]
    pub forwarding: Text,
    #[schemars(with = "Option<WordOf<Fragments>>")]
    pub fragments: Text,
    #[schemars(with = "Option<WordOf<Affinity>>")]
    pub affinity: Text,
    pub stateful: Option<Spanned<bool>>,
    pub second_chance: Option<Spanned<bool>>,
    #[schemars(with = "Option<WordOf<Control>>")]
    pub control: Text,
    #[schemars(with = "Option<WordOf<LatencySource>>")]
    pub latency: Text,
    pub sampling: Text,
    #[schemars(with = "Option<WordOf<CookieKind>>")]
    pub cookie: Text,
    pub cookie_bits: Option<Spanned<i64>>,
    pub cookie_id_bits: Option<Spanned<i64>>,
    pub health: Option<Spanned<RawHealth>>,
    pub min_healthy: Option<Spanned<i64>>,
    pub slow_start: Time,
    pub limit: Option<Spanned<RawLimit>>,
    #[serde(default)]
    pub source: Vec<Spanned<RawSource>>,
    #[serde(default)]
    pub quic_cid: Vec<Spanned<RawQuicCid>>,
    pub discover: Option<Spanned<RawDiscover>>,
    #[serde(default)]
    pub real: Vec<Spanned<RawReal>>,
}

/// VIPs alone.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawVips {
    pub vip: Vec<Spanned<RawVip>>,
}

impl RawVip {
    /// Whether to check it is to look at the machine, too, which may have changed the next time:
    /// at certificates, keys, a program.
    pub(super) fn looks_at_files(&self) -> bool {
        let health = self.health.as_ref().map(Spanned::as_ref);
        health.is_some_and(|health| health.ca.is_some() || health.command.is_some())
            || self.discover.is_some()
            || !self.quic_cid.is_empty()
    }
}

/// Where reals are discovered.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDiscover {
    pub dns: Text,
    #[schemars(with = "Option<WordOf<RecordType>>")]
    pub record: Text,
    pub resolver: Text,
    pub file: Text,
    pub http: Text,
    pub ca: Text,
    pub interval: Time,
    pub max_reals: Option<Spanned<i64>>,
    pub max_removed: Number,
    pub drain: Time,
}

/// How many new flows a client prefix may open.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLimit {
    pub rate: Number,
    pub burst: Option<Spanned<i64>>,
    pub prefix4: Option<Spanned<i64>>,
    pub prefix6: Option<Spanned<i64>>,
}

/// Clients that have reals of their own.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSource {
    #[serde(default)]
    pub from: Vec<Spanned<String>>,
    #[serde(default)]
    pub reals: Vec<Spanned<String>>,
    #[schemars(with = "Option<WordOf<Fallback>>")]
    pub fallback: Text,
    pub exclusive: Option<bool>,
}

/// One configuration of QUIC connection ids.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawQuicCid {
    pub config: Option<Spanned<i64>>,
    #[schemars(with = "Option<WordOf<QuicAlgorithm>>")]
    pub algorithm: Text,
    /// `{ file = "/path" }`, `{ env = "NAME" }`, or the name of the file.
    pub key: Option<Spanned<SecretValue>>,
    pub server_id_length: Option<Spanned<i64>>,
    pub nonce_length: Option<Spanned<i64>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHealth {
    #[schemars(with = "Option<WordOf<HealthProbe>>")]
    pub probe: Text,
    pub port: Option<Spanned<i64>>,
    pub interval: Time,
    pub timeout: Time,
    pub rise: Option<Spanned<i64>>,
    pub fall: Option<Spanned<i64>>,
    pub path: Text,
    pub host: Text,
    pub status: Option<Spanned<StatusValue>>,
    pub body: Text,
    pub ca: Text,
    pub service: Text,
    pub user: Text,
    pub name: Text,
    #[schemars(with = "Option<WordOf<RecordType>>")]
    pub record: Text,
    pub rcode: Text,
    pub alpn: Text,
    pub command: Option<Spanned<Vec<String>>>,
    pub passive: Option<Spanned<bool>>,
    #[schemars(with = "Option<WordOf<ProbeTo>>")]
    pub to: Text,
    pub take_weight: Option<Spanned<bool>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawReal {
    pub address: Text,
    pub weight: Option<Spanned<i64>>,
    pub mac: Text,
    #[schemars(with = "Option<WordOf<RealRole>>")]
    pub role: Text,
    pub drain: Option<bool>,
    pub id: Option<Spanned<i64>>,
    pub maintenance: Option<bool>,
}

/// A port or a list of them: a VIP each.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
#[allow(dead_code, reason = "a schema")]
enum Ports {
    One(u16),
    Several(Vec<u16>),
}

fn laws(_: &mut SchemaGenerator) -> Schema {
    schema_of_words(&LAWS)
}

fn protocols(_: &mut SchemaGenerator) -> Schema {
    schema_of_words(&Protocol::WORDS)
}
