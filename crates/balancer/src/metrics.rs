// SPDX-License-Identifier: Apache-2.0
//! `/metrics`: what the engine knows, for Prometheus.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use causeway_api::Moment;
use causeway_api::balancer::{DiscoveryView, RealView, Stats, VipView};
use causeway_api::fleet::{Agreement, FleetPosition, FleetView, PeersView};
use causeway_core::hist::Histogram;
use causeway_dataplane::RealStats;
use causeway_service::metrics::{
    LatencyRow, MetricsPage, build_info, config_in_force, counters, flag, gauge, gauges, latencies,
    packets,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;

use super::engine::{Engine, Reloads};
use super::report::Listed;
use super::{agreement, report};

/// Bounds of the latency histogram: 2^k and 1.5 * 2^k ns from 65 us to 26 s.
/// They are bounds of the data plane's buckets too, so that counts are exact.
const POWERS: RangeInclusive<u32> = 16..=34;

/// With more reals the page has none of them: that would be millions of series.
pub(crate) const REALS_MAX: usize = 20_000;

/// The page that a Prometheus server scrapes.
#[derive(Debug)]
pub(crate) struct Page {
    /// Whether it is of one VIP alone.
    of_vip: bool,
    /// Reals that are left out.
    left_out: usize,
    stats: Stats,
    /// One per real, in the order of `stats`.
    histograms: Vec<Latencies>,
    reloads: Reloads,
    announce_up: Option<bool>,
    state_kept: bool,
    is_attached: bool,
    /// When each was made.
    overrides: Vec<u64>,
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
    all: LatencyRow,
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
            all: LatencyRow::of(
                all.sum_halves_ns as f64 / 2e9,
                histogram.buckets(),
                POWERS,
                Histogram::LINEAR,
            ),
        }
    }
}

/// Of a metric: name and value.
type Label<'a> = (&'static str, &'a str);

impl Page {
    /// What the engine knows, or of the VIP at this place alone.
    pub(crate) fn of(
        engine: &Engine,
        vip: Option<usize>,
        state_kept: bool,
        at: Moment,
    ) -> anyhow::Result<Self> {
        let with_reals = vip.is_some() || engine.reals <= REALS_MAX;
        let listed = if with_reals {
            Listed::All
        } else {
            Listed::None
        };
        let places = vip.map_or(0..engine.pools().len(), |at| at..at + 1);
        let stats = Stats {
            vips: report::vips_of(engine, places, listed)?,
            ..report::stats_without_vips(engine, at, None)?
        };
        let histograms = stats
            .vips
            .iter()
            .flat_map(|vip| &vip.reals)
            .map(|real| Latencies::of(engine, real))
            .collect();
        let agreement = match vip {
            Some(_) => Agreement::default(),
            None => agreement::agreement(engine)?,
        };
        Ok(Self {
            of_vip: vip.is_some(),
            left_out: if with_reals { 0 } else { engine.reals },
            stats,
            histograms,
            reloads: engine.reloads(),
            announce_up: engine.announce_up(),
            state_kept,
            is_attached: engine.attachment().error().is_none(),
            overrides: engine.overrides().iter().map(|of| of.since_ns).collect(),
            agreement,
            fleet: engine.fleet.as_ref().map(|fleet| fleet.view.clone()),
            peers: engine.peers_view(at.monotonic_ns),
        })
    }

    /// As it is scraped.
    pub(crate) fn scraped(self) -> MetricsPage {
        MetricsPage::of([("causeway", Box::new(self))])
    }

    /// The VIPs with their labels.
    fn vips(&self) -> impl Iterator<Item = (&VipView, [Label<'_>; 1])> {
        let vips = self.stats.vips.iter();
        vips.map(|vip| (vip, [("vip", vip.name.as_str())]))
    }

    /// The reals with their labels.
    fn reals(&self) -> impl Iterator<Item = (&RealView, [Label<'_>; 2])> {
        self.vips().flat_map(|(vip, [name])| {
            let reals = vip.reals.iter();
            reals.map(move |real| (real, [name, ("real", real.address.as_str())]))
        })
    }

    fn config(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        config_in_force(encoder, self.reloads.successful, self.state_kept)?;
        let of_daemon = [
            (
                "config_last_reload_success_timestamp",
                "When the configuration in force was taken, since 1970",
                Some(Unit::Seconds),
                self.reloads.success_ns as f64 / 1e9,
            ),
            (
                "data_plane_up",
                "Whether the program is pinned with its tables, and on an interface that is up",
                None,
                flag(self.is_attached),
            ),
        ];
        for (name, help, unit, value) in of_daemon {
            gauge(encoder, name, help, unit.as_ref(), value)?;
        }
        let help = "Whether the next hop of a family of reals answers, or needs not be asked, and there is an outer source";
        let hops = self.stats.next_hop.iter();
        let hops = hops.map(|hop| ([("family", hop.family.as_str())], flag(hop.is_up())));
        gauges(encoder, "next_hop_up", help, None, hops)
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
            let rows = self.vips().map(|(vip, labels)| (labels, value(vip)));
            counters(encoder, name, help, unit.as_ref(), rows)?;
        }
        Ok(())
    }

    fn agent_reports(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Reports of agents, by what became of them";
        let results = self.stats.agent_reports.iter();
        let results = results.map(|(result, count)| ([("result", result.as_str())], *count));
        counters(encoder, "agent_reports", help, None, results)
    }

    /// Zeros too, so that the first of them is a rise.
    fn cookies(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Packets of a VIP with cookies by what their cookies said";
        let rows = self.vips().flat_map(|(vip, [name])| {
            let results = vip.cookie.results.iter();
            results.map(move |of| ([name, ("result", of.result.as_str())], of.packets))
        });
        counters(encoder, "cookie_packets", help, None, rows)
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
            let rows = self.reals().map(|(real, labels)| (labels, value(real)));
            counters(encoder, name, help, unit.as_ref(), rows)?;
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
                |of| flag(of.error.is_none() && of.last_answer_ns.is_some()),
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
            let rows = self.vips();
            let rows =
                rows.filter_map(|(vip, labels)| Some((labels, value(vip.discovery.as_ref()?))));
            gauges(encoder, name, help, unit.as_ref(), rows)?;
        }
        Ok(())
    }

    fn real_gauges(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let reals = self.reals();
        let reals = reals.map(|(real, labels)| (labels, real.connections_active as f64));
        let help = "Estimate of a real's open connections";
        gauges(encoder, "real_connections", help, None, reals)?;
        let reals = self.reals().map(|(real, labels)| {
            let one_in = real.latency.one_in.max(1);
            (labels, f64::from(one_in).recip())
        });
        let help = "Part of a real's connections whose latency is measured";
        gauges(encoder, "real_sampling_ratio", help, None, reals)?;
        let weights = self.reals().flat_map(|(real, [vip, address])| {
            let kinds = [
                ("configured", f64::from(real.weight)),
                ("meant", real.meant_weight),
                ("effective", real.effective_weight),
                ("wanted", real.wanted_weight),
            ];
            kinds.map(|(kind, weight)| ([vip, address, ("kind", kind)], weight))
        });
        let help = "Weight of a real: configured, meant (by role, health, slow start and its own word), \
                    effective (in force), wanted by the controller";
        gauges(encoder, "real_weight", help, None, weights)?;
        let reasons = self
            .reals()
            .map(|(real, [vip, address])| ([vip, address, ("reason", real.reason.as_str())], 1.0));
        let help = "1 for the reason of the controller's last decision";
        gauges(encoder, "real_control_state", help, None, reasons)
    }

    fn sources(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "New flows of clients that have reals of their own";
        let rows = self.vips().flat_map(|(vip, [name])| {
            let sources = vip.sources.iter();
            // The first is its name: no other has it, and a source may have thousands.
            sources.filter_map(move |source| {
                let first = source.from.first()?;
                Some(([name, ("from", first.as_str())], source.picked))
            })
        });
        counters(encoder, "vip_source_flows", help, None, rows)
    }

    fn overrides(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Settings of reals that were made by hand, and hold in the place of the file's";
        gauge(
            encoder,
            "overrides",
            help,
            None,
            self.overrides.len() as f64,
        )?;
        let Some(oldest_ns) = self.overrides.iter().min() else {
            return Ok(());
        };
        let help = "When the oldest of them was made, since 1970";
        let (seconds, oldest_s) = (Some(&Unit::Seconds), *oldest_ns as f64 / 1e9);
        gauge(
            encoder,
            "overrides_oldest_timestamp",
            help,
            seconds,
            oldest_s,
        )
    }

    fn flow_table(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let table = &self.stats.flow_table;
        let help = "Slots of the flow table";
        gauge(encoder, "flow_table_slots", help, None, table.slots as f64)?;
        let help = "Flows in it, by the last whole look";
        gauge(encoder, "flow_table_flows", help, None, table.flows as f64)?;
        let help = "Flows that were ended by the time since their last packet";
        let ended = table.ended().into_iter();
        let ended = ended.map(|(reason, flows)| ([("reason", reason)], flows));
        counters(encoder, "flow_table_ended", help, None, ended)
    }

    fn agreement(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let items = self.agreement.items.iter().map(|item| {
            let labels = [
                ("what", item.what.as_str()),
                ("vip", item.vip.as_deref().unwrap_or_default()),
                ("digest", item.digest.as_str()),
            ];
            (labels, 1.0)
        });
        let help = "Digest of what balancers of the same VIPs must have alike";
        gauges(encoder, "agreement_info", help, None, items)
    }

    fn peers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.peers.own.is_none() {
            return Ok(());
        }
        let members = || {
            let members = self.peers.members.iter();
            members.map(|of| (of, [("member", of.address.as_str())]))
        };
        let help = "1 for a balancer of the same VIPs whose last datagram is at most a second old";
        let live = members().map(|(of, labels)| (labels, flag(of.live)));
        gauges(encoder, "peer_up", help, None, live)?;
        let help = "How far the weights of a real are apart there and here at most, as a part of the configured weight";
        let apart = members().filter_map(|(of, labels)| Some((labels, of.weights_apart?)));
        gauges(encoder, "peer_weights_apart_ratio", help, None, apart)?;
        let help = "Datagrams to a balancer of the same VIPs";
        let sent = members().map(|(of, labels)| (labels, of.sent));
        counters(encoder, "peer_sent", help, None, sent)?;
        let help = "Datagrams of balancers of the same VIPs, by what became of them";
        let results = self.peers.results.iter();
        let results = results.map(|(result, count)| ([("result", result.as_str())], *count));
        counters(encoder, "peer_datagrams", help, None, results)?;
        let help = "Shares and datagrams of the exchange that were left out";
        let reasons = [
            ("unknown_real", self.peers.unknown_reals),
            ("put_off", self.peers.put_off),
            ("unsent", self.peers.unsent),
        ];
        let reasons = reasons.map(|(reason, count)| ([("reason", reason)], count));
        counters(encoder, "peer_left_out", help, None, reasons)
    }

    fn health_of_vips(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let ready = self.vips().map(|(vip, labels)| (labels, flag(vip.ready)));
        let help = "1 if as many reals are up as the VIP needs";
        gauges(encoder, "vip_ready", help, None, ready)?;
        let undecided = self.vips().map(|(vip, labels)| {
            let at_best = vip.reals_up + vip.reals_unknown;
            (labels, flag(!vip.ready && at_best >= vip.min_healthy))
        });
        let help = "1 if the VIP is ready should those reals be up that no probe has judged yet";
        gauges(encoder, "vip_undecided", help, None, undecided)?;
        let announced = self.vips();
        let announced = announced.map(|(vip, labels)| (labels, flag(vip.announced)));
        let help = "1 if the VIP's address is announced to routers";
        gauges(encoder, "vip_announced", help, None, announced)
    }

    fn health(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let probed = || {
            let reals = self.reals();
            reals.filter_map(|(real, labels)| Some((real.health.as_ref()?, labels)))
        };
        let up = probed().map(|(health, labels)| (labels, flag(health.state == "up")));
        let help = "1 if the probes of a real say up; of those that are probed";
        gauges(encoder, "real_up", help, None, up)?;
        let active = self.reals();
        let active = active.map(|(real, labels)| (labels, flag(real.state == "active")));
        let help = "1 if a real gets new connections: not down, waiting, in maintenance, draining or on standby";
        gauges(encoder, "real_active", help, None, active)?;
        let states = self
            .reals()
            .map(|(real, [vip, address])| ([vip, address, ("state", real.state.as_str())], 1.0));
        let help = "1 for whether a real gets new connections, or why not: active, standby, waiting, down, drain or maintenance";
        gauges(encoder, "real_state", help, None, states)?;
        let states = probed().map(|(health, [vip, address])| {
            ([vip, address, ("state", health.state.as_str())], 1.0)
        });
        let help = "1 for what the probes of a real say: unknown, up or down";
        gauges(encoder, "real_health", help, None, states)?;
        let probes = probed().flat_map(|(health, [vip, address])| {
            let outcomes = [("success", health.succeeded), ("failure", health.failed)];
            outcomes.map(|(outcome, count)| ([vip, address, ("outcome", outcome)], count))
        });
        let help = "Health probes of a real by outcome";
        counters(encoder, "real_probes", help, None, probes)
    }

    fn latency(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let rows = self.reals().zip(&self.histograms);
        let rows = rows.map(|((_, labels), of)| (labels, &of.all));
        let help = "Response latency of a real, at its clients";
        latencies(encoder, "real_response_latency", help, rows)?;
        self.latency_parts(encoder)
    }

    fn latency_parts(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let reals = || self.reals().zip(&self.histograms);
        let server = reals().map(|((_, labels), of)| (labels, of.server_s));
        let help = "What a real added to responses with a known path, sum";
        let seconds = Some(&Unit::Seconds);
        counters(encoder, "real_server_latency", help, seconds, server)?;
        let path = reals().map(|((_, labels), of)| (labels, of.path_s));
        let help = "Round trips of the paths of these responses, sum";
        counters(encoder, "real_path_latency", help, seconds, path)?;
        let known = reals().map(|((_, labels), of)| (labels, of.path_known));
        let help = "Responses with a known path";
        counters(encoder, "real_path_known", help, None, known)
    }
}

fn of_fleet(fleet: &FleetView, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let revision = |of: Option<FleetPosition>| of.map_or(0.0, |of| of.revision as f64);
    let waiting_agents: BTreeSet<&String> =
        fleet.waiting.iter().flat_map(|of| &of.agents).collect();
    let of_member = [
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
            "fleet_held_reals",
            "Reals that this member's file would take away from the fleet, and that wait for confirmation",
            fleet.held.iter().map(|of| of.reals.len()).sum::<usize>() as f64,
        ),
        (
            "fleet_in_service",
            "Whether routers may send packets to this member",
            flag(fleet.in_service),
        ),
        (
            "fleet_left",
            "Whether this member has left the fleet, and announces nothing",
            flag(fleet.state == "left"),
        ),
        (
            "fleet_waiting_agents",
            "Servers whose agents changes of the fleet's book wait for",
            waiting_agents.len() as f64,
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
    for (name, help, value) in of_member {
        gauge(encoder, name, help, None, value)?;
    }
    let members = || {
        let members = fleet.members.iter();
        members.map(|member| (member, [("member", member.name.as_str())]))
    };
    let help = "Whether the lease of a member of the fleet lasts";
    let alive = members().map(|(member, labels)| (labels, flag(member.alive)));
    gauges(encoder, "fleet_member_alive", help, None, alive)?;
    let help = "Changes of the fleet's book that wait for a member";
    let waiting = members().map(|(member, labels)| {
        let waits = fleet.waiting.iter();
        let waits = waits.filter(|wait| wait.members.contains(&member.name));
        (labels, waits.count() as f64)
    });
    gauges(encoder, "fleet_waiting", help, None, waiting)?;
    let help = "Datagrams of agents that join the fleet by a token, by what became of them";
    let joins = fleet.joins.iter();
    let joins = joins.map(|(result, count)| ([("result", result.as_str())], *count));
    counters(encoder, "fleet_joins", help, None, joins)?;
    let help = "Ids of reals in the fleet's book by how far they have come";
    let phases = ["known", "live", "leaving", "resting"].map(|phase| {
        let ids = fleet.ids.iter().filter(|id| id.phase == phase);
        ([("phase", phase)], ids.count() as f64)
    });
    gauges(encoder, "fleet_ids", help, None, phases)
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.vip_counters(&mut encoder)?;
        self.cookies(&mut encoder)?;
        self.sources(&mut encoder)?;
        self.discovery(&mut encoder)?;
        self.health_of_vips(&mut encoder)?;
        // A family without a row would seem to say that there are no reals.
        if self.left_out == 0 {
            self.real_counters(&mut encoder)?;
            self.real_gauges(&mut encoder)?;
            self.health(&mut encoder)?;
            self.latency(&mut encoder)?;
        }
        if self.of_vip {
            return Ok(());
        }
        let help = "Reals whose metrics are left out, for there are too many: /metrics?vip=NAME has those of a VIP";
        let left_out = self.left_out as f64;
        gauge(&mut encoder, "metrics_reals_left_out", help, None, left_out)?;
        let help = "Control intervals in which all VIPs with traffic are looked at, each once";
        let turns = self.stats.control_turns as f64;
        gauge(&mut encoder, "control_turns", help, None, turns)?;
        packets(&self.stats.verdicts, &mut encoder)?;
        self.config(&mut encoder)?;
        self.overrides(&mut encoder)?;
        self.flow_table(&mut encoder)?;
        self.agent_reports(&mut encoder)?;
        if let Some(up) = self.announce_up {
            let help = "1 if BIRD took the last change; with [announce]";
            gauge(&mut encoder, "announce_up", help, None, flag(up))?;
        }
        self.agreement(&mut encoder)?;
        if let Some(fleet) = &self.fleet {
            of_fleet(fleet, &mut encoder)?;
        }
        self.peers(&mut encoder)?;
        build_info(&mut encoder)
    }
}

#[cfg(test)]
pub(crate) fn page(engine: &Engine, state_kept: bool, at: Moment) -> anyhow::Result<String> {
    Ok(Page::of(engine, None, state_kept, at)?.scraped().text()?)
}
