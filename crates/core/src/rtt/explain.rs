// SPDX-License-Identifier: Apache-2.0
//! What the numbers of one path say, as sentences: is it the network, the
//! application, or the way of measuring?

use super::Summary;

/// Stand-alone ("delayed") ACK timers. Linux: TCP_DELACK_MIN (include/net/tcp.h).
/// Windows: 200 ms in older versions, 10, 40 or 50 ms in later ones by profile
/// ("A Brief Look at Round Trip Time", section How RTTs Are Measured).
pub const ACK_TIMERS: [(&str, u64); 5] = [
    ("Linux", 40 * MS),
    ("Windows", 50 * MS),
    ("Windows", 200 * MS),
    ("Windows", 10 * MS),
    ("Windows", 40 * MS),
];

const MS: u64 = 1_000_000;
/// Less is noise of schedulers, not a cause worth a name.
const WORTH_NS: u64 = MS;
/// A queue shorter than this hurts nobody.
const QUEUE_NS: u64 = 5 * MS;
/// Fewer lost echoes than this are chance.
const LOST_PINGS: u64 = 3;

/// ICMP echo.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ping {
    /// Requests sent.
    pub sent: u64,
    /// Round-trip times of those answered.
    pub rtt: Summary,
}

/// What one end's kernel says of its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tcp {
    /// Readings of the smoothed round-trip time.
    pub rtt: Summary,
    /// The least round-trip time that the kernel has seen.
    pub min_rtt_ns: u64,
    /// Segments with data sent.
    pub segments: u64,
    /// Segments sent again.
    pub retransmitted: u64,
}

/// Everything known about a path.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Request to response.
    pub rr: Option<Summary>,
    /// Time between a response and the next request; `None` in an open loop.
    pub wait_ns: Option<u64>,
    /// Requests without a response in time.
    pub timeouts: u64,
    /// ICMP echo, if it was tried.
    pub ping: Option<Ping>,
    /// This end's kernel: its segments are requests, acknowledged by the server.
    pub client: Option<Tcp>,
    /// The server's kernel: its segments are responses, acknowledged by us.
    pub server: Option<Tcp>,
    /// Time the server's application itself took, by its own clock: median.
    pub server_app_ns: Option<u64>,
}

/// Which end acknowledges late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Ours.
    Client,
    /// The other.
    Server,
}

/// Something that the numbers show.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Finding {
    /// ACKs wait: for data to ride on, or for the stand-alone ACK timer.
    DelayedAck {
        /// Who waits.
        by: End,
        /// The round-trip time that the other end's kernel reports.
        tcp_ns: u64,
        /// Whose timer it matches; `None` where the ACK rides on data that comes
        /// before the timer.
        timer: Option<(&'static str, u64)>,
        /// Requests are held up too (Nagle's algorithm waits for the ACK).
        held_up: bool,
    },
    /// The server's application takes its time.
    SlowApplication {
        /// Its median.
        app_ns: u64,
        /// By its own clock, not by subtraction.
        measured: bool,
    },
    /// Segments were lost and sent again.
    Loss {
        /// How many were sent again.
        retransmitted: u64,
        /// Of how many.
        segments: u64,
        /// The slowest request.
        rr_max_ns: u64,
        /// The kernel's round-trip time, which does not see it.
        tcp_ns: u64,
    },
    /// ICMP is limited: its loss is not the path's.
    IcmpLimited {
        /// Echo requests without a reply.
        lost: u64,
        /// Of how many.
        sent: u64,
        /// Segments of TCP that the same path carried.
        segments: u64,
        /// Of which so many were sent again.
        retransmitted: u64,
    },
    /// A queue fills.
    Bufferbloat {
        /// Round-trip time with the queue empty.
        empty_ns: u64,
        /// With the queue as full as it usually is.
        full_ns: u64,
    },
    /// Echo requests are lost, and TCP is too quiet to say whether it is the path.
    PingLoss {
        /// Echo requests without a reply.
        lost: u64,
        /// Of how many.
        sent: u64,
    },
    /// Nothing wrong.
    Fine,
}

impl Finding {
    /// One word for programs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::DelayedAck { .. } => "delayed-ack",
            Self::SlowApplication { .. } => "slow-application",
            Self::Loss { .. } => "loss",
            Self::IcmpLimited { .. } => "icmp-rate-limit",
            Self::Bufferbloat { .. } => "bufferbloat",
            Self::PingLoss { .. } => "ping-loss",
            Self::Fine => "network-fine",
        }
    }

    /// Whether the network itself is at fault.
    pub fn blames_network(&self) -> bool {
        matches!(
            self,
            Self::Loss { .. } | Self::Bufferbloat { .. } | Self::PingLoss { .. }
        )
    }

    /// One sentence for people.
    pub fn sentence(&self) -> String {
        match *self {
            Self::DelayedAck {
                by,
                tcp_ns,
                timer,
                held_up,
            } => delayed_ack(by, tcp_ns, timer, held_up),
            Self::SlowApplication { app_ns, measured } => {
                let how = if measured {
                    "by its own clock"
                } else {
                    "the response time less the network's"
                };
                format!(
                    "The server's application takes {} a request ({how}); no network change will help.",
                    time(app_ns)
                )
            }
            Self::Loss {
                retransmitted,
                segments,
                rr_max_ns,
                tcp_ns,
            } => format!(
                "Packets are lost: {retransmitted} of {segments} segments were sent again, and the slowest request took {}; TCP's RTT of {} does not show it, for it leaves retransmitted segments out.",
                time(rr_max_ns),
                time(tcp_ns)
            ),
            Self::IcmpLimited {
                lost,
                sent,
                segments,
                retransmitted,
            } => format!(
                "ping lost {lost} of {sent}, yet TCP sent {retransmitted} of {segments} segments again on the same path: the loss is an ICMP rate limit, not the network's."
            ),
            Self::Bufferbloat { empty_ns, full_ns } => format!(
                "A queue on the path fills: the round trip takes {} when it is empty and {} as it usually is (bufferbloat). Look for a bulk transfer on the same bottleneck, and for a shaper or modem with a deep buffer.",
                time(empty_ns),
                time(full_ns)
            ),
            Self::PingLoss { lost, sent } => format!(
                "ping lost {lost} of {sent}, and TCP carried too little to tell whether the path lost them or ICMP is limited: run for longer, or with a shorter wait."
            ),
            Self::Fine => "The network is fine.".to_owned(),
        }
    }
}

fn delayed_ack(by: End, tcp_ns: u64, timer: Option<(&'static str, u64)>, held_up: bool) -> String {
    let (reports, waits) = match by {
        End::Client => ("the server", "this end"),
        End::Server => ("this end", "the server"),
    };
    let why = match timer {
        Some((system, ns)) => {
            format!(
                "{waits} acknowledges when its {} timer ends ({system})",
                time(ns)
            )
        }
        None => format!("the ACK rides on {waits}'s next data"),
    };
    let effect = if held_up {
        " Requests in several small writes wait for that ACK (Nagle's algorithm): set TCP_NODELAY, or write a request at once."
    } else {
        " No request waits for it."
    };
    format!(
        "The TCP RTT of {} that {reports} reports is delayed ACK: {why}.{effect}",
        time(tcp_ns)
    )
}

/// The round-trip time of the network itself, nanoseconds: the median echo, or
/// without one the least of what TCP has seen at either end.
pub fn network_ns(evidence: &Evidence) -> Option<u64> {
    let ping = evidence.ping.filter(|p| p.rtt.count > 0);
    if let Some(ping) = ping {
        return Some(ping.rtt.p50_ns);
    }
    let ends = [evidence.client, evidence.server];
    let least = ends.iter().flatten().map(|tcp| tcp.min_rtt_ns);
    least
        .chain(evidence.rr.map(|rr| rr.min_ns))
        .filter(|ns| *ns > 0)
        .min()
}

/// What the numbers show, the network's own faults first. Never empty.
pub fn explain(evidence: &Evidence) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(loss(evidence));
    let queue = bufferbloat(evidence);
    findings.extend(queue);
    findings.extend(icmp(evidence));
    findings.extend(delayed(evidence, queue));
    findings.extend(application(evidence, &findings));
    if findings.is_empty() {
        findings.push(Finding::Fine);
    }
    findings
}

/// A closing sentence: where the network stands apart from what was found.
pub fn closing(evidence: &Evidence, findings: &[Finding]) -> Option<String> {
    let network_ns = network_ns(evidence)?;
    let blamed = findings.iter().any(Finding::blames_network);
    (!blamed).then(|| format!("The network's round trip is {}.", time(network_ns)))
}

fn loss(evidence: &Evidence) -> Option<Finding> {
    let ends = [evidence.client?, evidence.server.unwrap_or_default()];
    let retransmitted: u64 = ends.iter().map(|tcp| tcp.retransmitted).sum();
    let segments: u64 = ends.iter().map(|tcp| tcp.segments).sum();
    let rr = evidence.rr?;
    // One in a thousand is what an idle machine's tail-loss probes come to.
    let enough = retransmitted > 0 && retransmitted * 1000 >= segments;
    (enough || evidence.timeouts > 0).then_some(Finding::Loss {
        retransmitted,
        segments,
        rr_max_ns: rr.max_ns,
        tcp_ns: ends[0].rtt.p50_ns,
    })
}

fn bufferbloat(evidence: &Evidence) -> Option<Finding> {
    let ping = evidence.ping.filter(|p| p.rtt.count >= 10)?.rtt;
    let (empty_ns, full_ns) = (ping.min_ns, ping.p50_ns.max(quarter(&ping)));
    let queue_ns = full_ns.saturating_sub(empty_ns);
    // Requests must feel it too: else only ICMP is slow.
    let felt = evidence
        .rr
        .is_none_or(|rr| rr.p90_ns > empty_ns + queue_ns / 2);
    (queue_ns > QUEUE_NS.max(3 * empty_ns) && felt)
        .then_some(Finding::Bufferbloat { empty_ns, full_ns })
}

/// What a tenth of the echoes exceed, if they are many: a queue that fills now and
/// then.
fn quarter(ping: &Summary) -> u64 {
    if ping.count >= 50 { ping.p90_ns } else { 0 }
}

fn icmp(evidence: &Evidence) -> Option<Finding> {
    let ping = evidence.ping?;
    let lost = ping.sent.saturating_sub(ping.rtt.count);
    if lost < LOST_PINGS || lost * 50 < ping.sent {
        return None;
    }
    let ends = [evidence.client, evidence.server];
    let sum = |of: fn(&Tcp) -> u64| ends.iter().flatten().map(of).sum::<u64>();
    let (segments, retransmitted) = (sum(|t| t.segments), sum(|t| t.retransmitted));
    let share = lost as f64 / ping.sent as f64;
    // Had the path lost as many of TCP's segments, this many would have been lost.
    let expected = share * segments as f64;
    if (retransmitted as f64) < expected / 10.0 && expected >= 10.0 {
        return Some(Finding::IcmpLimited {
            lost,
            sent: ping.sent,
            segments,
            retransmitted,
        });
    }
    (retransmitted == 0).then_some(Finding::PingLoss {
        lost,
        sent: ping.sent,
    })
}

/// TCP's round-trip time far above the network's, at one end or the other.
fn delayed(evidence: &Evidence, queue: Option<Finding>) -> Vec<Finding> {
    let Some(network_ns) = network_ns(evidence) else {
        return Vec::new();
    };
    if queue.is_some() {
        return Vec::new();
    }
    let mut found = Vec::new();
    // Our segments, acknowledged by the server.
    if let Some(tcp) = evidence.client {
        let app_ns = evidence.server_app_ns.unwrap_or(0);
        let beyond = tcp.rtt.p50_ns.saturating_sub(network_ns);
        let timer = timer(beyond);
        // An ACK that rides on the response shows the application, which has a
        // finding of its own, unless the timer ends first.
        let rides = near(beyond, app_ns);
        if worth(beyond, network_ns) && (timer.is_some() && !rides) {
            let held_up = evidence.rr.is_some_and(|rr| {
                rr.p50_ns > beyond / 2 && app_ns < beyond / 2 && evidence.server_app_ns.is_some()
            });
            found.push(Finding::DelayedAck {
                by: End::Server,
                tcp_ns: tcp.rtt.p50_ns,
                timer,
                held_up,
            });
        }
    }
    // The server's segments, acknowledged by us.
    if let Some(tcp) = evidence.server {
        let beyond = tcp.rtt.p50_ns.saturating_sub(network_ns);
        let rides = evidence
            .wait_ns
            .is_some_and(|wait_ns| near(beyond, wait_ns));
        let timer = timer(beyond);
        if worth(beyond, network_ns) && (rides || timer.is_some()) {
            found.push(Finding::DelayedAck {
                by: End::Client,
                tcp_ns: tcp.rtt.p50_ns,
                timer: if rides { None } else { timer },
                held_up: false,
            });
        }
    }
    found
}

fn application(evidence: &Evidence, so_far: &[Finding]) -> Option<Finding> {
    let rr = evidence.rr?;
    if let Some(app_ns) = evidence.server_app_ns {
        let large = worth(app_ns, network_ns(evidence).unwrap_or(0));
        return (large && app_ns * 2 > rr.p50_ns).then_some(Finding::SlowApplication {
            app_ns,
            measured: true,
        });
    }
    let network_ns = network_ns(evidence)?;
    let explained = so_far.iter().any(|finding| {
        matches!(
            finding,
            Finding::Bufferbloat { .. } | Finding::DelayedAck { held_up: true, .. }
        )
    });
    let app_ns = rr.p50_ns.saturating_sub(network_ns);
    (!explained && worth(app_ns, network_ns)).then_some(Finding::SlowApplication {
        app_ns,
        measured: false,
    })
}

/// Whether a time beside the network's is large enough to need a name.
fn worth(ns: u64, network_ns: u64) -> bool {
    ns > WORTH_NS.max(2 * network_ns)
}

/// Within a tenth, or 2 ms: timers are in jiffies of up to 4 ms, and readings are
/// smoothed.
fn near(ns: u64, other_ns: u64) -> bool {
    other_ns > 0 && ns.abs_diff(other_ns) <= (other_ns / 10).max(2 * MS)
}

/// The timer that ends about then; of several, the nearest.
fn timer(ns: u64) -> Option<(&'static str, u64)> {
    let close = |&(_, timer_ns): &(&str, u64)| near(ns, timer_ns + 2 * MS);
    ACK_TIMERS
        .into_iter()
        .filter(close)
        .min_by_key(|(_, timer_ns)| ns.abs_diff(*timer_ns))
}

/// A time as people write it: 95 us, 1.52 ms, 39.1 ms, 3.2 s.
pub fn time(ns: u64) -> String {
    let us = ns as f64 / 1e3;
    match us {
        us if us < 100.0 => format!("{us:.1} us"),
        us if us < 1e3 => format!("{us:.0} us"),
        us if us < 1e4 => format!("{:.2} ms", us / 1e3),
        us if us < 1e6 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    /// `n` values around `ns`.
    fn around(n: u64, ns: u64) -> Summary {
        Summary {
            count: n,
            min_ns: ns * 4 / 5,
            mean_ns: ns as f64,
            p50_ns: ns,
            p90_ns: ns * 5 / 4,
            p99_ns: ns * 2,
            max_ns: ns * 4,
            stddev_ns: ns as f64 / 10.0,
        }
    }

    fn tcp(ns: u64) -> Tcp {
        Tcp {
            rtt: around(100, ns),
            min_rtt_ns: 60 * US,
            segments: 5_000,
            retransmitted: 0,
        }
    }

    /// A network of 0.1 ms, everybody quick.
    fn fine() -> Evidence {
        Evidence {
            rr: Some(around(5_000, 150 * US)),
            wait_ns: Some(0),
            ping: Some(Ping {
                sent: 100,
                rtt: around(100, 100 * US),
            }),
            client: Some(tcp(120 * US)),
            server: Some(tcp(120 * US)),
            server_app_ns: Some(5 * US),
            ..Evidence::default()
        }
    }

    fn words(evidence: &Evidence) -> Vec<&'static str> {
        explain(evidence).iter().map(Finding::word).collect()
    }

    #[test]
    fn a_fine_network_is_called_so() {
        assert_eq!(words(&fine()), ["network-fine"]);
        let findings = explain(&fine());
        let closing = closing(&fine(), &findings).unwrap();
        assert_eq!(closing, "The network's round trip is 100 us.");
    }

    #[test]
    fn nothing_measured_blames_nobody() {
        assert_eq!(words(&Evidence::default()), ["network-fine"]);
        assert_eq!(closing(&Evidence::default(), &[]), None);
    }

    #[test]
    fn the_servers_tcp_rtt_is_our_wait_until_the_timer() {
        let mut evidence = fine();
        evidence.wait_ns = Some(38 * MS);
        evidence.server = Some(tcp(38 * MS));
        let findings = explain(&evidence);
        assert_eq!(words(&evidence), ["delayed-ack"]);
        let said = findings[0].sentence();
        assert!(
            said.contains("38.0 ms that the server reports is delayed ACK"),
            "{said}"
        );
        assert!(said.contains("rides on this end's next data"), "{said}");
        evidence.wait_ns = Some(39 * MS);
        evidence.server = Some(tcp(41 * MS));
        assert_eq!(words(&evidence), ["delayed-ack"]);
    }

    #[test]
    fn timers_are_known_by_their_length() {
        for (ns, expected) in [
            (40 * MS, Some(("Linux", 40 * MS))),
            (43 * MS, Some(("Linux", 40 * MS))),
            (51 * MS, Some(("Windows", 50 * MS))),
            (203 * MS, Some(("Windows", 200 * MS))),
            (10 * MS, Some(("Windows", 10 * MS))),
            (25 * MS, None),
            (100 * MS, None),
        ] {
            assert_eq!(timer(ns), expected, "{ns}");
        }
    }

    #[test]
    fn a_slow_server_beyond_the_timer_shows_twice() {
        let mut evidence = fine();
        evidence.rr = Some(around(50, 120 * MS));
        evidence.client = Some(tcp(41 * MS));
        evidence.server_app_ns = Some(120 * MS);
        assert_eq!(words(&evidence), ["delayed-ack", "slow-application"]);
        // Before the timer the ACK rides on the response: one cause, one finding.
        evidence.rr = Some(around(50, 20 * MS));
        evidence.client = Some(tcp(20 * MS));
        evidence.server_app_ns = Some(20 * MS);
        assert_eq!(words(&evidence), ["slow-application"]);
        // A server that does not tell its time.
        evidence.server_app_ns = None;
        assert_eq!(words(&evidence), ["slow-application"]);
    }

    #[test]
    fn small_writes_that_wait_for_an_ack_are_held_up() {
        let mut evidence = fine();
        evidence.rr = Some(around(100, 41 * MS));
        evidence.client = Some(tcp(40 * MS));
        let findings = explain(&evidence);
        assert!(
            matches!(
                findings[..],
                [Finding::DelayedAck {
                    by: End::Server,
                    held_up: true,
                    ..
                }]
            ),
            "{findings:?}"
        );
        assert!(findings[0].sentence().contains("TCP_NODELAY"));
    }

    #[test]
    fn loss_is_seen_by_requests_and_not_by_tcps_rtt() {
        let mut evidence = fine();
        let client = Tcp {
            retransmitted: 100,
            ..tcp(120 * US)
        };
        evidence.client = Some(client);
        evidence.ping = Some(Ping {
            sent: 102,
            rtt: around(100, 100 * US),
        });
        assert_eq!(words(&evidence), ["loss"]);
        // A single tail-loss probe in five thousand segments is not.
        evidence.client = Some(Tcp {
            retransmitted: 1,
            ..client
        });
        assert_eq!(words(&evidence), ["network-fine"]);
    }

    #[test]
    fn lost_echoes_with_clean_tcp_are_a_rate_limit() {
        let mut evidence = fine();
        evidence.ping = Some(Ping {
            sent: 100,
            rtt: around(20, 100 * US),
        });
        assert_eq!(words(&evidence), ["icmp-rate-limit"]);
        // Too little TCP to tell.
        for end in [&mut evidence.client, &mut evidence.server] {
            *end = Some(Tcp {
                segments: 4,
                ..tcp(120 * US)
            });
        }
        assert_eq!(words(&evidence), ["ping-loss"]);
        // TCP lost as much: the path does.
        evidence.client = Some(Tcp {
            retransmitted: 4_000,
            ..tcp(120 * US)
        });
        assert_eq!(words(&evidence), ["loss"]);
    }

    #[test]
    fn a_queue_is_seen_by_echo_and_requests_alike() {
        let mut evidence = fine();
        let full = Summary {
            min_ns: 200 * US,
            ..around(100, 80 * MS)
        };
        evidence.ping = Some(Ping {
            sent: 100,
            rtt: full,
        });
        evidence.rr = Some(full);
        evidence.client = Some(tcp(80 * MS));
        evidence.server_app_ns = Some(5 * US);
        assert_eq!(words(&evidence), ["bufferbloat"]);
        assert_eq!(closing(&evidence, &explain(&evidence)), None);
        // Echo alone is slow: not a queue.
        evidence.rr = fine().rr;
        evidence.client = fine().client;
        assert!(!words(&evidence).contains(&"bufferbloat"));
    }

    #[test]
    fn times_read_well() {
        let texts = [950, 95_400, 152_000, 1_520_000, 39_100_000, 3_200_000_000].map(time);
        let expected = [
            "0.9 us", "95.4 us", "152 us", "1.52 ms", "39.1 ms", "3.20 s",
        ];
        assert_eq!(texts[1..], expected[1..]);
        assert!(texts[0] == "0.9 us" || texts[0] == "1.0 us", "{}", texts[0]);
    }
}
