// SPDX-License-Identifier: Apache-2.0
//! `/metrics` of the agent, for Prometheus.

use std::fmt;

use causeway_api::agent::{AgentStats, AgentStatus};
use causeway_service::metrics::{
    MetricsPage, build_info, config_in_force, counters, flag, gauge, packets,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::client_metrics::ClientsPage;

/// The page of an agent; what its clients felt has a prefix of its own.
pub(crate) fn agent_page(mut stats: AgentStats, status: AgentStatus) -> MetricsPage {
    let clients = stats.clients.take();
    let agent = Box::new(AgentPage { stats, status });
    match clients {
        None => MetricsPage::of([("causeway_agent", agent)]),
        Some(clients) => MetricsPage::of([
            ("causeway_agent", agent),
            ("causeway_clients", Box::new(ClientsPage(clients))),
        ]),
    }
}

#[derive(Debug)]
struct AgentPage {
    stats: AgentStats,
    status: AgentStatus,
}

impl Collector for AgentPage {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        packets(&self.stats.verdicts, &mut encoder)?;
        let help = "Segments of VIPs with cookies by what was done with their timestamps";
        let events = self.stats.cookies.iter();
        let events = events.map(|of| ([("event", of.event.as_str())], of.segments));
        counters(&mut encoder, "cookie_segments", help, None, events)?;
        let help = "Whether the program is pinned with its tables, and on an interface that is up";
        let held = flag(self.status.data_plane_error.is_none());
        gauge(&mut encoder, "data_plane_up", help, None, held)?;
        config_in_force(
            &mut encoder,
            self.status.last_reload_error.is_none(),
            self.status.state_error.is_none(),
        )?;
        build_info(&mut encoder)
    }
}
