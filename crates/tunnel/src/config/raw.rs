// SPDX-License-Identifier: Apache-2.0
//! The file of `causeway tunnel` as it is written.

use causeway_service::api::RawApi;
use causeway_service::config::{CountValue, HttpValue, Spanned, Time, WordOf};
use schemars::JsonSchema;
use serde::Deserialize;

use super::words::{PollMode, TunnelSchedule};

type Text = Option<Spanned<String>>;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFile {
    pub tunnel: Option<RawTunnel>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTunnel {
    pub device: Text,
    pub netns: Text,
    pub mtu: Option<Spanned<i64>>,
    pub queue: Option<Spanned<i64>>,
    #[serde(default)]
    pub addresses: Vec<Spanned<String>>,
    pub persist: Option<bool>,
    pub threads: Option<Spanned<i64>>,
    #[schemars(with = "Option<WordOf<PollMode>>")]
    pub poll: Text,
    pub keys: Text,
    pub state_dir: Text,
    pub socket: Text,
    pub socket_group: Text,
    pub http: Option<Spanned<HttpValue>>,
    pub api: Option<RawApi>,
    #[serde(default)]
    pub engine: RawEngine,
    #[serde(default)]
    pub path: Vec<Spanned<RawPath>>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawEngine {
    #[schemars(with = "Option<WordOf<TunnelSchedule>>")]
    pub schedule: Text,
    pub group: Option<Spanned<CountValue>>,
    pub switch_gain: Time,
    pub rto: Time,
    pub queue_target: Time,
    pub read_ahead: Time,
    pub reorder_timeout: Time,
    pub frame_lifetime: Time,
    pub max_transmissions: Option<Spanned<i64>>,
    pub vnic_queue: Option<Spanned<i64>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPath {
    pub id: Option<Spanned<i64>>,
    pub local: Text,
    pub remote: Text,
    pub device: Text,
    pub mtu: Option<Spanned<i64>>,
}
