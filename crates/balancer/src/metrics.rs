// SPDX-License-Identifier: Apache-2.0
//! `/metrics`: what the engine knows, in Prometheus' text format.

use std::fmt;

use causeway_api::Moment;
use causeway_api::balancer::{
    Agreement, DiscoveryView, FleetPosition, FleetView, PeerView, PeersView, RealView, Stats,
    VipView,
};
use causeway_core::hist::Histogram;
use causeway_dataplane::RealStats;
use causeway_service::metrics::{self, build_info, packets};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::engine::{Engine, Reloads};
use super::{agreement, report};

/// Bounds of the latency histogram: 2^k and 1.5 * 2^k ns from 65 us to 26 s.
/// They are bounds of the data plane's buckets too, so that counts are exact.
const FIRST_POWER: u32 = 16;
const LAST_POWER: u32 = 34;

/// The page that a Prometheus server scrapes.
pub(crate) fn page(engine: &Engine, state_kept: bool, at: Moment) -> anyhow::Result<String> {
    let stats = report::stats(engine, at)?;
    let histograms = stats
        .vips
        .iter()
        .flat_map(|vip| &vip.reals)
        .map(|real| Latencies::of(engine, real))
        .collect();
    let reloads = engine.reloads();
    let agreement = agreement::agreement(engine)?;
    let fleet = engine.fleet.as_ref().map(|fleet| fleet.view.clone());
    let page = Page {
        stats,
        histograms,
        reloads,
        announce_up: engine.announce_up(),
        state_kept,
        is_held: engine.hold_error().is_none(),
        agreement,
        fleet,
        peers: engine.peers_view(at.monotonic_ns),
    };
    Ok(metrics::page([("causeway", Box::new(page))])?)
}

#[derive(Debug)]
struct Page {
    stats: Stats,
    /// One per real, in the order of `stats`.
    histograms: Vec<Latencies>,
    reloads: Reloads,
    announce_up: Option<bool>,
    state_kept: bool,
    is_held: bool,
    agreement: Agreement,
    fleet: Option<FleetView>,
    peers: PeersView,
}

/// One real's histogram, ready to be written.
#[derive(Debug)]
struct Latencies {
    server_s: f64,
    path_s: f64,
    path_known: u64,
    sum_s: f64,
    count: u64,
    buckets: Vec<(f64, u64)>,
}

impl Latencies {
    fn of(engine: &Engine, real: &RealView) -> Self {
        let counters = engine.counters(real.id);
        let empty = Histogram::new();
        let histogram = counters.map_or(&empty, |counters| counters.histogram());
        // The sum is read every interval, the histogram every second: each only
        // grows, and their quotient is off by what came in between.
        let totals = counters.map_or_else(RealStats::default, |counters| *counters.totals());
        let all = totals.latencies();
        Self {
            server_s: all.server_sum_halves_ns as f64 / 2e9,
            path_s: all.path_sum_halves_ns as f64 / 2e9,
            path_known: all.path_weight_halves / 2,
            sum_s: all.sum_halves_ns as f64 / 2e9,
            count: histogram.count(),
            buckets: coarse(histogram),
        }
    }
}

/// Counts between neighbouring bounds, not cumulative.
fn coarse(histogram: &Histogram) -> Vec<(f64, u64)> {
    let bounds: Vec<u64> = (FIRST_POWER..=LAST_POWER)
        .flat_map(|power| [1 << power, 3 << (power - 1)])
        .collect();
    let mut buckets: Vec<(f64, u64)> = bounds.iter().map(|ns| (*ns as f64 / 1e9, 0)).collect();
    buckets.push((f64::INFINITY, 0));
    for bucket in histogram.buckets() {
        let index = bounds.partition_point(|bound| *bound < bucket.to_ns);
        buckets[index].1 += bucket.count;
    }
    buckets
}

impl Page {
    fn reals(&self) -> impl Iterator<Item = (&VipView, &RealView)> {
        let vips = self.stats.vips.iter();
        vips.flat_map(|vip| vip.reals.iter().map(move |real| (vip, real)))
    }

    fn config(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let gauges = [
            (
                "config_last_reload_successful",
                "Whether what the file said when it was read last is in force",
                None,
                f64::from(u8::from(self.reloads.successful)),
            ),
            (
                "config_last_reload_success_timestamp",
                "When the configuration in force was taken, since 1970",
                Some(Unit::Seconds),
                self.reloads.success_ns as f64 / 1e9,
            ),
            (
                "data_plane_up",
                "Whether the program is on its interface, and pinned with its tables",
                None,
                f64::from(u8::from(self.is_held)),
            ),
            (
                "state_kept",
                "Whether what is to outlive the daemon is on the disk",
                None,
                f64::from(u8::from(self.state_kept)),
            ),
        ];
        for (name, help, unit, value) in gauges {
            encoder
                .encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?
                .encode_gauge(&value)?;
        }
        let help = "Whether the next hop of a family of reals answers, or needs not be asked";
        let mut family = encoder.encode_descriptor("next_hop_up", help, None, MetricType::Gauge)?;
        for hop in &self.stats.next_hop {
            family
                .encode_family(&[("family", hop.family.as_str())])?
                .encode_gauge(&f64::from(u8::from(hop.is_up())))?;
        }
        Ok(())
    }

    fn vip_counters(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type Value = fn(&VipView) -> u64;
        let families: [(&str, &str, Option<Unit>, Value); 4] = [
            ("vip_packets", "Packets to a VIP", None, |vip| vip.packets),
            (
                "vip",
                "Bytes of frames to a VIP",
                Some(Unit::Bytes),
                |vip| vip.bytes,
            ),
            (
                "vip_latency_fallback_intervals",
                "Intervals steered by another latency than configured, for want of agents' reports or known paths",
                None,
                |vip| vip.latency_fallbacks,
            ),
            (
                "vip_low_grade_intervals",
                "Intervals steered by latencies graded low, for want of better ones",
                None,
                |vip| vip.low_grade_intervals,
            ),
        ];
        for (name, help, unit, value) in families {
            let mut family =
                encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
            for vip in &self.stats.vips {
                family
                    .encode_family(&[("vip", vip.name.as_str())])?
                    .encode_counter::<NoLabelSet, _, u64>(&value(vip), None)?;
            }
        }
        Ok(())
    }

    fn agent_reports(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Reports of agents, by what became of them";
        let mut family =
            encoder.encode_descriptor("agent_reports", help, None, MetricType::Counter)?;
        for (result, count) in &self.stats.agent_reports {
            family
                .encode_family(&[("result", result.as_str())])?
                .encode_counter::<NoLabelSet, _, u64>(count, None)?;
        }
        Ok(())
    }

    /// Zeros too, so that the first of them is a rise.
    fn cookies(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Packets of a VIP with cookies by what their cookies said";
        let mut family =
            encoder.encode_descriptor("cookie_packets", help, None, MetricType::Counter)?;
        for vip in &self.stats.vips {
            for result in &vip.cookie.results {
                let labels = [
                    ("vip", vip.name.as_str()),
                    ("result", result.result.as_str()),
                ];
                family
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, _, u64>(&result.packets, None)?;
            }
        }
        Ok(())
    }

    fn real_counters(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type Value = fn(&RealView) -> u64;
        let families: [(&str, &str, Option<Unit>, Value); 7] = [
            ("real_packets", "Packets to a real", None, |real| {
                real.packets
            }),
            (
                "real",
                "Bytes of frames to a real",
                Some(Unit::Bytes),
                |real| real.bytes,
            ),
            (
                "real_connections_opened",
                "Connections that picked a real",
                None,
                |real| real.connections_opened,
            ),
            (
                "real_connections_closed",
                "Connections of a real that the client closed or reset",
                None,
                |real| real.connections_closed,
            ),
            ("real_requests", "Requests to a real", None, |real| {
                real.requests
            }),
            (
                "real_latency_bounds",
                "Latencies that are upper bounds, and in no sum",
                None,
                |real| real.latency_bounds,
            ),
            (
                "real_latency_low",
                "Of the response latencies those graded low, because all of their connection are off alike",
                None,
                |real| real.latency_low,
            ),
        ];
        for (name, help, unit, value) in families {
            let mut family =
                encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
            for (vip, real) in self.reals() {
                family
                    .encode_family(&labels(vip, real))?
                    .encode_counter::<NoLabelSet, _, u64>(&value(real), None)?;
            }
        }
        Ok(())
    }

    /// The state of the reals that are discovered.
    fn discovery(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type Value = fn(&DiscoveryView) -> f64;
        let families: [(&str, &str, Option<Unit>, Value); 4] = [
            (
                "discovery_up",
                "Whether the last question for a VIP's reals was answered",
                None,
                |of| f64::from(u8::from(of.error.is_none() && of.last_answer_ns.is_some())),
            ),
            (
                "discovery_last_answer_timestamp",
                "When it was, since 1970; 0 before the first",
                Some(Unit::Seconds),
                |of| of.last_answer_ns.unwrap_or(0) as f64 / 1e9,
            ),
            (
                "discovery_held_reals",
                "Reals that an answer would take away that is held",
                None,
                |of| of.held.unwrap_or(0) as f64,
            ),
            (
                "discovery_reals",
                "Reals of a VIP that were discovered",
                None,
                |of| of.found as f64,
            ),
        ];
        for (name, help, unit, value) in families {
            let mut family =
                encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
            for vip in &self.stats.vips {
                if let Some(of) = &vip.discovery {
                    family
                        .encode_family(&[("vip", vip.name.as_str())])?
                        .encode_gauge(&value(of))?;
                }
            }
        }
        Ok(())
    }

    fn real_gauges(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = encoder.encode_descriptor(
            "real_connections",
            "Estimate of a real's open connections",
            None,
            MetricType::Gauge,
        )?;
        for (vip, real) in self.reals() {
            let value = real.connections_active as f64;
            family
                .encode_family(&labels(vip, real))?
                .encode_gauge(&value)?;
        }
        let mut family = encoder.encode_descriptor(
            "real_sampling_ratio",
            "Part of a real's connections whose latency is measured",
            None,
            MetricType::Gauge,
        )?;
        for (vip, real) in self.reals() {
            family
                .encode_family(&labels(vip, real))?
                .encode_gauge(&f64::from(real.latency.one_in.max(1)).recip())?;
        }
        let mut family = encoder.encode_descriptor(
            "real_weight",
            "Weight of a real: configured, effective (in force), wanted by the controller",
            None,
            MetricType::Gauge,
        )?;
        for (vip, real) in self.reals() {
            for (kind, value) in [
                ("configured", f64::from(real.weight)),
                ("effective", real.effective_weight),
                ("wanted", real.wanted_weight),
            ] {
                let [vip, real] = labels(vip, real);
                family
                    .encode_family(&[vip, real, ("kind", kind)])?
                    .encode_gauge(&value)?;
            }
        }
        let mut family = encoder.encode_descriptor(
            "real_control_state",
            "1 for the reason of the controller's last decision",
            None,
            MetricType::Gauge,
        )?;
        for (vip, real) in self.reals() {
            let [vip, address] = labels(vip, real);
            family
                .encode_family(&[vip, address, ("reason", real.reason.as_str())])?
                .encode_gauge(&1.0)?;
        }
        Ok(())
    }

    fn sources(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "New flows of clients that have reals of their own";
        let mut family =
            encoder.encode_descriptor("vip_source_flows", help, None, MetricType::Counter)?;
        for vip in &self.stats.vips {
            for source in &vip.sources {
                let from = source.from.join(",");
                family
                    .encode_family(&[("vip", vip.name.as_str()), ("from", from.as_str())])?
                    .encode_counter::<NoLabelSet, _, u64>(&source.picked, None)?;
            }
        }
        Ok(())
    }

    fn flow_table(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let table = &self.stats.flow_table;
        let gauges = [
            ("flow_table_slots", "Slots of the flow table", table.slots),
            (
                "flow_table_flows",
                "Flows in it, by the last whole look",
                table.flows,
            ),
        ];
        for (name, help, value) in gauges {
            encoder
                .encode_descriptor(name, help, None, MetricType::Gauge)?
                .encode_gauge(&(value as f64))?;
        }
        let help = "Flows that were ended by the time since their last packet";
        let mut family =
            encoder.encode_descriptor("flow_table_ended", help, None, MetricType::Counter)?;
        for (reason, flows) in table.ended() {
            family
                .encode_family(&[("reason", reason)])?
                .encode_counter::<NoLabelSet, _, u64>(&flows, None)?;
        }
        Ok(())
    }

    fn agreement(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = encoder.encode_descriptor(
            "agreement_info",
            "Digest of what balancers of the same VIPs must have alike",
            None,
            MetricType::Gauge,
        )?;
        for item in &self.agreement.items {
            let labels = [
                ("what", item.what.as_str()),
                ("vip", item.vip.as_deref().unwrap_or_default()),
                ("digest", item.digest.as_str()),
            ];
            family.encode_family(&labels)?.encode_gauge(&1.0)?;
        }
        Ok(())
    }

    fn peers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.peers.own.is_none() {
            return Ok(());
        }
        type Value = fn(&PeerView) -> Option<f64>;
        let gauges: [(&str, &str, Value); 2] = [
            (
                "peer_up",
                "1 for a balancer of the same VIPs whose last datagram is at most a second old",
                |of| Some(f64::from(u8::from(of.live))),
            ),
            (
                "peer_weights_apart_ratio",
                "How far the weights of a real are apart there and here at most, as a part of the configured weight",
                |of| of.weights_apart,
            ),
        ];
        for (name, help, value) in gauges {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for member in &self.peers.members {
                if let Some(value) = value(member) {
                    family
                        .encode_family(&[("member", member.address.as_str())])?
                        .encode_gauge(&value)?;
                }
            }
        }
        let help = "Datagrams to a balancer of the same VIPs";
        let mut family = encoder.encode_descriptor("peer_sent", help, None, MetricType::Counter)?;
        for member in &self.peers.members {
            family
                .encode_family(&[("member", member.address.as_str())])?
                .encode_counter::<NoLabelSet, _, u64>(&member.sent, None)?;
        }
        let help = "Datagrams of balancers of the same VIPs, by what became of them";
        let mut family =
            encoder.encode_descriptor("peer_datagrams", help, None, MetricType::Counter)?;
        for (result, count) in &self.peers.results {
            family
                .encode_family(&[("result", result.as_str())])?
                .encode_counter::<NoLabelSet, _, u64>(count, None)?;
        }
        let help = "Shares and datagrams of the exchange that were left out";
        let mut family =
            encoder.encode_descriptor("peer_left_out", help, None, MetricType::Counter)?;
        for (reason, count) in [
            ("unknown_real", self.peers.unknown_reals),
            ("put_off", self.peers.put_off),
            ("unsent", self.peers.unsent),
        ] {
            family
                .encode_family(&[("reason", reason)])?
                .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        Ok(())
    }

    fn health(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type Holds = fn(&VipView) -> bool;
        let states: [(&str, &str, Holds); 2] = [
            (
                "vip_ready",
                "1 if as many reals are up as the VIP needs",
                |vip| vip.ready,
            ),
            (
                "vip_announced",
                "1 if the VIP's address is announced to routers",
                |vip| vip.announced,
            ),
        ];
        for (name, help, holds) in states {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for vip in &self.stats.vips {
                family
                    .encode_family(&[("vip", vip.name.as_str())])?
                    .encode_gauge(&f64::from(u8::from(holds(vip))))?;
            }
        }
        type Of = fn(&RealView) -> Option<bool>;
        let of_reals: [(&str, &str, Of); 2] = [
            (
                "real_up",
                "1 if the probes of a real say up; of those that are probed",
                |real| Some(real.health.as_ref()?.state == "up"),
            ),
            (
                "real_active",
                "1 if a real gets new connections: not down, in maintenance, draining or on standby",
                |real| Some(real.state == "active"),
            ),
        ];
        for (name, help, holds) in of_reals {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (vip, real) in self.reals() {
                if let Some(holds) = holds(real) {
                    family
                        .encode_family(&labels(vip, real))?
                        .encode_gauge(&f64::from(u8::from(holds)))?;
                }
            }
        }
        if let Some(up) = self.announce_up {
            let help = "1 if BIRD took the last change; with [announce]";
            encoder
                .encode_descriptor("announce_up", help, None, MetricType::Gauge)?
                .encode_gauge(&f64::from(u8::from(up)))?;
        }
        let mut family = encoder.encode_descriptor(
            "real_health",
            "1 for what the probes of a real say: unknown, up or down",
            None,
            MetricType::Gauge,
        )?;
        for (vip, real) in self.reals() {
            if let Some(health) = &real.health {
                let [vip, address] = labels(vip, real);
                family
                    .encode_family(&[vip, address, ("state", health.state.as_str())])?
                    .encode_gauge(&1.0)?;
            }
        }
        let mut family = encoder.encode_descriptor(
            "real_probes",
            "Health probes of a real by outcome",
            None,
            MetricType::Counter,
        )?;
        for (vip, real) in self.reals() {
            let Some(health) = &real.health else { continue };
            for (outcome, count) in [("success", health.succeeded), ("failure", health.failed)] {
                let [vip, address] = labels(vip, real);
                family
                    .encode_family(&[vip, address, ("outcome", outcome)])?
                    .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
        Ok(())
    }

    fn latency(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = encoder.encode_descriptor(
            "real_response_latency",
            "Response latency of a real, at its clients",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for ((vip, real), latencies) in self.reals().zip(&self.histograms) {
            family
                .encode_family(&labels(vip, real))?
                .encode_histogram::<NoLabelSet>(
                    latencies.sum_s,
                    latencies.count,
                    &latencies.buckets,
                    None,
                )?;
        }
        self.latency_parts(encoder)
    }

    fn latency_parts(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let parts = [
            (
                "real_server_latency",
                "What a real added to responses with a known path, sum",
            ),
            (
                "real_path_latency",
                "Round trips of the paths of these responses, sum",
            ),
        ];
        for (part, (name, help)) in parts.into_iter().enumerate() {
            let mut family =
                encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Counter)?;
            for ((vip, real), latencies) in self.reals().zip(&self.histograms) {
                let seconds = [latencies.server_s, latencies.path_s][part];
                family
                    .encode_family(&labels(vip, real))?
                    .encode_counter::<NoLabelSet, _, u64>(&seconds, None)?;
            }
        }
        let help = "Responses with a known path";
        let mut family =
            encoder.encode_descriptor("real_path_known", help, None, MetricType::Counter)?;
        for ((vip, real), latencies) in self.reals().zip(&self.histograms) {
            family
                .encode_family(&labels(vip, real))?
                .encode_counter::<NoLabelSet, _, u64>(&latencies.path_known, None)?;
        }
        Ok(())
    }
}

fn labels<'a>(vip: &'a VipView, real: &'a RealView) -> [(&'static str, &'a str); 2] {
    [("vip", &vip.name), ("real", &real.address)]
}

fn of_fleet(fleet: &FleetView, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let flag = |holds: bool| f64::from(u8::from(holds));
    let revision = |of: Option<FleetPosition>| of.map_or(0.0, |of| of.revision as f64);
    let gauges = [
        (
            "fleet_store_up",
            "Whether the fleet's store could be read and written at the last look",
            flag(fleet.store_error.is_none()),
        ),
        (
            "fleet_held",
            "Whether this member cannot follow the fleet's book, or has none",
            flag(fleet.hold.is_some()),
        ),
        (
            "fleet_in_service",
            "Whether routers may send packets to this member",
            flag(fleet.in_service),
        ),
        (
            "fleet_book_generation",
            "How often the fleet's book has been put back into a store that had lost it",
            fleet.book.map_or(0.0, |book| f64::from(book.generation)),
        ),
        (
            "fleet_book_revision",
            "Revision of the last good book of the fleet",
            revision(fleet.book),
        ),
        (
            "fleet_applied_revision",
            "Revision of the book that the data plane follows",
            revision(fleet.applied),
        ),
        (
            "fleet_key_issued",
            "Number of the key of cookies that servers may write by",
            fleet.key_issued as f64,
        ),
    ];
    for (name, help, value) in gauges {
        encoder
            .encode_descriptor(name, help, None, MetricType::Gauge)?
            .encode_gauge(&value)?;
    }
    let help = "Whether the lease of a member of the fleet lasts";
    let mut family =
        encoder.encode_descriptor("fleet_member_alive", help, None, MetricType::Gauge)?;
    for member in &fleet.members {
        family
            .encode_family(&[("member", member.name.as_str())])?
            .encode_gauge(&flag(member.alive))?;
    }
    let help = "Changes of the fleet's book that wait for a member";
    let mut family = encoder.encode_descriptor("fleet_waiting", help, None, MetricType::Gauge)?;
    for member in &fleet.members {
        let waits = fleet.waiting.iter();
        let waits = waits.filter(|wait| wait.members.contains(&member.name));
        family
            .encode_family(&[("member", member.name.as_str())])?
            .encode_gauge(&(waits.count() as f64))?;
    }
    let help = "Datagrams of agents that join the fleet by a token, by what became of them";
    let mut family = encoder.encode_descriptor("fleet_joins", help, None, MetricType::Counter)?;
    for (result, count) in &fleet.joins {
        family
            .encode_family(&[("result", result.as_str())])?
            .encode_counter::<NoLabelSet, _, u64>(count, None)?;
    }
    let help = "Ids of reals in the fleet's book by how far they have come";
    let mut family = encoder.encode_descriptor("fleet_ids", help, None, MetricType::Gauge)?;
    for phase in ["known", "live", "leaving", "resting"] {
        let ids = fleet.ids.iter().filter(|id| id.phase == phase);
        family
            .encode_family(&[("phase", phase)])?
            .encode_gauge(&(ids.count() as f64))?;
    }
    Ok(())
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        packets(&self.stats.verdicts, &mut encoder)?;
        self.config(&mut encoder)?;
        self.flow_table(&mut encoder)?;
        self.vip_counters(&mut encoder)?;
        self.agent_reports(&mut encoder)?;
        self.cookies(&mut encoder)?;
        self.sources(&mut encoder)?;
        self.real_counters(&mut encoder)?;
        self.real_gauges(&mut encoder)?;
        self.discovery(&mut encoder)?;
        self.health(&mut encoder)?;
        self.agreement(&mut encoder)?;
        if let Some(fleet) = &self.fleet {
            of_fleet(fleet, &mut encoder)?;
        }
        self.peers(&mut encoder)?;
        self.latency(&mut encoder)?;
        build_info(&mut encoder)
    }
}
