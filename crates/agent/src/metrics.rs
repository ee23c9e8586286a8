// SPDX-License-Identifier: Apache-2.0
//! `/metrics` of the agent, in Prometheus' text format.

use std::fmt;

use causeway_api::agent::AgentStats;
use causeway_service::metrics::{build_info, packets};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::client_metrics::ClientsPage;

/// The page of an agent, whose metrics have a prefix of their own.
pub(crate) fn agent_page(stats: AgentStats) -> anyhow::Result<String> {
    let mut registry = Registry::with_prefix("causeway_agent");
    let clients = stats.clients.clone();
    registry.register_collector(Box::new(AgentPage(stats)));
    let mut page = String::new();
    text::encode(&mut page, &registry)?;
    if let Some(clients) = clients {
        let mut registry = Registry::with_prefix("causeway_clients");
        registry.register_collector(Box::new(ClientsPage(clients)));
        // One page has one end.
        page.truncate(page.trim_end().trim_end_matches("# EOF").len());
        text::encode(&mut page, &registry)?;
    }
    Ok(page)
}

#[derive(Debug)]
struct AgentPage(AgentStats);

impl Collector for AgentPage {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        packets(&self.0.verdicts, &mut encoder)?;
        let help = "Segments of VIPs with cookies by what was done with their timestamps";
        let mut family =
            encoder.encode_descriptor("cookie_segments", help, None, MetricType::Counter)?;
        for cookie in &self.0.cookies {
            family
                .encode_family(&[("event", cookie.event.as_str())])?
                .encode_counter::<NoLabelSet, _, u64>(&cookie.segments, None)?;
        }
        build_info(&mut encoder)
    }
}
