// SPDX-License-Identifier: Apache-2.0
//! `/metrics` of the agent, in Prometheus' text format.

use std::fmt;

use causeway_api::agent::AgentStats;
use causeway_service::metrics::{build_info, packets, page};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::client_metrics::ClientsPage;

/// The page of an agent; what its clients felt has a prefix of its own.
pub(crate) fn agent_page(mut stats: AgentStats, is_held: bool) -> anyhow::Result<String> {
    let clients = stats.clients.take();
    let agent = Box::new(AgentPage { stats, is_held });
    Ok(match clients {
        None => page([("causeway_agent", agent)])?,
        Some(clients) => page([
            ("causeway_agent", agent),
            ("causeway_clients", Box::new(ClientsPage(clients))),
        ])?,
    })
}

#[derive(Debug)]
struct AgentPage {
    stats: AgentStats,
    /// Whether the data plane is on its interface and pinned.
    is_held: bool,
}

impl Collector for AgentPage {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        packets(&self.stats.verdicts, &mut encoder)?;
        let help = "Segments of VIPs with cookies by what was done with their timestamps";
        let mut family =
            encoder.encode_descriptor("cookie_segments", help, None, MetricType::Counter)?;
        for cookie in &self.stats.cookies {
            family
                .encode_family(&[("event", cookie.event.as_str())])?
                .encode_counter::<NoLabelSet, _, u64>(&cookie.segments, None)?;
        }
        let help = "Whether the program is on its interface, and pinned with its tables";
        encoder
            .encode_descriptor("data_plane_up", help, None, MetricType::Gauge)?
            .encode_gauge(&f64::from(u8::from(self.is_held)))?;
        build_info(&mut encoder)
    }
}
