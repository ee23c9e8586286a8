// SPDX-License-Identifier: Apache-2.0
//! The file as it is written: every key optional, every value still text.

use causeway_service::api::RawApi;
use causeway_service::config::{
    CookieKind, CountValue, HttpValue, RawXdp, Spanned, Text, Time, TimeValue, WordOf,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::words::{AcceptQueuePolicy, RetrySchedule};

/// The file of `causeway agent`. A table of its own distinguishes it from a balancer's.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAgentFile {
    pub agent: Option<RawAgent>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAgent {
    pub interface: Text,
    #[serde(default)]
    pub addresses: Vec<Spanned<String>>,
    #[serde(default)]
    pub vips: Vec<Spanned<String>>,
    #[serde(default)]
    pub balancers: Vec<Spanned<String>>,
    pub pin_dir: Text,
    pub state_dir: Text,
    pub socket: Text,
    pub socket_group: Text,
    pub http: Option<Spanned<HttpValue>>,
    pub api: Option<RawApi>,
    pub gue_port: Option<Spanned<i64>>,
    #[serde(default)]
    pub xdp: RawXdp,
    pub cookie: Option<RawAgentCookie>,
    pub clients: Option<RawClients>,
    pub report: Option<RawAgentReport>,
    pub quic: Option<Spanned<RawAgentQuic>>,
    #[schemars(with = "Option<WordOf<AcceptQueuePolicy>>")]
    pub accept_queue: Text,
}

/// To whom an agent reports, and what.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAgentReport {
    #[serde(default)]
    pub to: Vec<Spanned<String>>,
    pub keys: Text,
    pub book: Option<bool>,
    pub connections: Option<bool>,
    pub client_latency: Option<bool>,
    pub load: Option<bool>,
    pub load_interval: Time,
}

/// Where QUIC programs of the server read what to issue connection ids by.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAgentQuic {
    pub file: Text,
    pub owner: Text,
}

/// What an agent measures of clients.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawClients {
    #[serde(default)]
    pub interfaces: Vec<Spanned<String>>,
    #[serde(default)]
    pub services: Vec<Spanned<String>>,
    pub others: Option<bool>,
    #[serde(default)]
    pub prefixes: Vec<Spanned<String>>,
    pub slot: Time,
    pub half_open: Option<Spanned<CountValue>>,
    pub connections: Option<Spanned<CountValue>>,
    pub learn: Option<bool>,
    pub history: Text,
    pub history_size: Option<Spanned<CountValue>>,
    pub backlog: Option<Spanned<Vec<i64>>>,
    pub backlog_period: Time,
    #[serde(default)]
    pub retry: Vec<Spanned<RawRetry>>,
    #[serde(default)]
    pub threshold: Vec<Spanned<RawThreshold>>,
}

/// Clients that behave alike.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRetry {
    #[schemars(with = "Option<WordOf<RetrySchedule>>")]
    pub schedule: Text,
    #[serde(default)]
    pub retries: Vec<Spanned<TimeValue>>,
    pub patience: Time,
    pub weight: Option<f64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawThreshold {
    pub name: Option<String>,
    pub service: Option<String>,
    pub clients: Text,
    pub statistic: Text,
    pub above: Time,
    pub below: Time,
    #[serde(rename = "for")]
    pub lasting: Time,
    pub window: Time,
    pub webhook: Text,
    #[serde(default)]
    pub exec: Vec<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAgentCookie {
    pub keys: Text,
    pub cgroup: Text,
    pub inner_mtu: Option<Spanned<i64>>,
    pub token_source: Text,
    pub token_source6: Text,
    #[serde(default)]
    pub vip: Vec<Spanned<RawAgentVip>>,
}

/// One VIP of a server, with the server's id in it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAgentVip {
    pub address: Text,
    pub port: Option<Spanned<i64>>,
    pub id: Option<Spanned<i64>>,
    #[schemars(with = "Option<WordOf<CookieKind>>")]
    pub cookie: Text,
    pub cookie_bits: Option<Spanned<i64>>,
    pub cookie_id_bits: Option<Spanned<i64>>,
}
