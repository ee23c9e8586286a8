// SPDX-License-Identifier: Apache-2.0
use super::super::LatencySummary;
use super::ack::timer;
use super::evidence::MS;
use super::*;

const US: u64 = 1_000;

/// `n` values around `ns`.
fn around(n: u64, ns: u64) -> LatencySummary {
    LatencySummary {
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

fn tcp(ns: u64) -> TcpEvidence {
    TcpEvidence {
        rtt: around(100, ns),
        min_rtt_ns: 60 * US,
        segments: 5_000,
        retransmitted: 0,
        duplicates: 0,
        retransmits: None,
    }
}

/// A network of 0.1 ms, all hosts quick.
fn fine() -> Evidence {
    Evidence {
        rr: Some(around(5_000, 150 * US)),
        wait_ns: Some(0),
        one_segment: true,
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
fn a_ping_that_is_slower_than_requests_is_not_the_networks_time() {
    let mut evidence = fine();
    evidence.rr = Some(around(5_000, 11_200));
    evidence.ping = Some(Ping {
        sent: 100,
        rtt: around(100, 58_400),
    });
    let closing = closing(&evidence, &explain(&evidence)).unwrap();
    assert_eq!(
        closing,
        format!(
            "A request takes {} at the median, so the network takes no more; ping took longer ({}).",
            time(11_200),
            time(58_400)
        )
    );
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
    // A server that does not report its time.
    evidence.server_app_ns = None;
    assert_eq!(words(&evidence), ["slow-application"]);
}

/// After thirty requests the smoothed RTT has not yet come up to what it measures.
#[test]
fn a_short_run_does_not_turn_riding_acks_into_late_ones() {
    let mut evidence = fine();
    evidence.wait_ns = Some(30 * MS);
    evidence.rr = Some(around(30, 20_200 * US));
    evidence.server_app_ns = Some(20_100 * US);
    evidence.client = Some(tcp(17_800 * US));
    evidence.server = Some(tcp(25_900 * US));
    assert_eq!(words(&evidence), ["delayed-ack", "slow-application"]);
    let said = explain(&evidence)[0].sentence();
    assert!(said.contains("rides on this end's next data"), "{said}");
}

/// As `causeway rtt serve --service 60ms --unread` shows: the kernel's timer ends before
/// the application reads, and its own clock starts when it has read.
#[test]
fn requests_left_unread_are_the_applications() {
    let mut evidence = fine();
    evidence.rr = Some(around(50, 60 * MS));
    evidence.client = Some(tcp(40 * MS));
    assert_eq!(words(&evidence), ["delayed-ack", "slow-application"]);
    let said = explain(&evidence)[1].sentence();
    assert!(
        said.contains("waits 59.9 ms at the server before"),
        "{said}"
    );
    // Large ones take their time to move, however fast they are read.
    evidence.one_segment = false;
    assert_eq!(words(&evidence), ["delayed-ack"]);
    evidence.one_segment = true;
    // Below the timer the ACK comes with the response.
    evidence.rr = Some(around(50, 20 * MS));
    evidence.client = Some(tcp(20 * MS));
    assert_eq!(words(&evidence), ["slow-application"]);
}

#[test]
fn a_tcp_that_was_never_quick_goes_another_way_than_ping() {
    let mut evidence = fine();
    let far = TcpEvidence {
        min_rtt_ns: 19 * MS,
        ..tcp(20 * MS)
    };
    evidence.rr = Some(around(500, 20 * MS));
    evidence.client = Some(far);
    evidence.server = Some(far);
    assert_eq!(words(&evidence), ["other-path"]);
    let findings = explain(&evidence);
    let said = findings[0].sentence();
    assert!(
        said.contains("never below 19.0 ms, ping's is 100 us"),
        "{said}"
    );
    assert_eq!(closing(&evidence, &findings), None);
}

/// Figures of `causeway rtt --split -r 2,1` in the lab: of two segments a request one
/// waits for the timer, and the smoothed RTT is half of it.
fn split() -> Evidence {
    Evidence {
        rr: Some(around(91, 44 * MS)),
        request_segments: Some(92),
        client: Some(TcpEvidence {
            segments: 183,
            ..tcp(20_500 * US)
        }),
        ..fine()
    }
}

#[test]
fn small_writes_that_wait_for_an_ack_are_held_up() {
    let findings = explain(&split());
    assert_eq!(words(&split()), ["delayed-ack", "nagle"]);
    assert!(
        matches!(
            findings[0],
            Finding::DelayedAck {
                by: End::Server,
                ack: Ack::Timer("Linux", _),
                ..
            }
        ),
        "{findings:?}"
    );
    let said = findings[1].sentence();
    assert!(said.contains("wait 43.9 ms for that ACK"), "{said}");
    assert!(said.contains("183 segments where 92 would do"), "{said}");
    assert!(said.contains("TCP_NODELAY"), "{said}");
}

#[test]
fn held_requests_of_a_slow_application_show_both() {
    let mut evidence = split();
    evidence.rr = Some(around(62, 64 * MS));
    evidence.server_app_ns = Some(20 * MS);
    // The smoothed RTT happens to be the application's time: it is not.
    assert_eq!(
        words(&evidence),
        ["delayed-ack", "nagle", "slow-application"]
    );
    // Small writes without a response to wait for.
    evidence.rr = Some(around(66, 60 * MS));
    evidence.server_app_ns = Some(60 * MS);
    evidence.client = Some(TcpEvidence {
        segments: 133,
        ..tcp(32 * US)
    });
    assert_eq!(words(&evidence), ["slow-application"]);
}

#[test]
fn loss_is_seen_by_requests_and_not_by_tcps_rtt() {
    let mut evidence = fine();
    let client = TcpEvidence {
        retransmitted: 100,
        ..tcp(120 * US)
    };
    evidence.client = Some(client);
    evidence.ping = Some(Ping {
        sent: 102,
        rtt: around(100, 100 * US),
    });
    assert_eq!(words(&evidence), ["loss"]);
    // The ACK of a response was lost: late, but by no delayed-ACK timer.
    evidence.server = Some(tcp(1_210 * US));
    assert_eq!(words(&evidence), ["loss"]);
    // A request was lost that would have carried the ACK: the timer of 40 ms ended, and
    // the server's smoothed RTT shows it whole or, soon after, in part.
    for ns in [38_400 * US, 12 * MS, 13_500 * US] {
        evidence.server = Some(tcp(ns));
        assert_eq!(words(&evidence), ["loss"], "{ns}");
    }
    // An application that pauses for longer than the timer delays ACKs, with loss and without.
    evidence.wait_ns = Some(100 * MS);
    evidence.server = Some(tcp(41 * MS));
    assert_eq!(words(&evidence), ["loss", "delayed-ack"]);
    evidence.wait_ns = Some(0);
    evidence.server = fine().server;
    // A single tail-loss probe in five thousand segments is not.
    evidence.client = Some(TcpEvidence {
        retransmitted: 1,
        ..client
    });
    assert_eq!(words(&evidence), ["network-fine"]);
}

/// One of ten thousand segments is no loss worth a name, but a request of 200 ms is.
#[test]
fn a_tail_loss_probe_is_told_from_a_timeout_and_from_fast_retransmit() {
    let lost = |retransmits: Retransmits, duplicates: u64| {
        let mut evidence = fine();
        evidence.rr = Some(LatencySummary {
            max_ns: 204 * MS,
            ..around(5_000, 150 * US)
        });
        evidence.client = Some(TcpEvidence {
            retransmits: Some(Retransmits::default()),
            ..tcp(120 * US)
        });
        evidence.server = Some(TcpEvidence {
            retransmitted: retransmits.retrans_segs - duplicates,
            duplicates,
            retransmits: Some(retransmits),
            ..tcp(120 * US)
        });
        evidence
    };
    let probe = Retransmits {
        retrans_segs: 1,
        loss_probes: 1,
        loss_probe_recovery: 1,
        ..Retransmits::default()
    };
    let evidence = lost(probe, 0);
    assert_eq!(words(&evidence), ["tail-loss-probe"]);
    let findings = explain(&evidence);
    let said = findings[0].sentence();
    for part in ["lost once", "took 204.0 ms, 203.", "neither a"] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(closing(&evidence, &findings), None);
    // The last two segments: a fast recovery sent the other.
    let two = Retransmits {
        retrans_segs: 2,
        loss_probe_recovery: 0,
        fast_retrans: 1,
        sack_recovery: 1,
        ..probe
    };
    let said = explain(&lost(two, 0))[0].sentence();
    assert!(said.contains("fast retransmit sent 1 more"), "{said}");
    // Its ACK was late, and nothing lost.
    let needless = Retransmits {
        loss_probe_recovery: 0,
        ..probe
    };
    assert_eq!(words(&lost(needless, 1)), ["network-fine"]);
    // As many by the timeout, and by fast retransmit: not by a probe.
    let timeouts = Retransmits {
        retrans_segs: 100,
        timeouts: 100,
        ..Retransmits::default()
    };
    let fast = Retransmits {
        retrans_segs: 100,
        fast_retrans: 100,
        sack_recovery: 90,
        ..Retransmits::default()
    };
    for (retransmits, part) in [
        (
            timeouts,
            "probes: 0, retransmission timeouts of 200 ms and more: 100",
        ),
        (fast, "200 ms and more: 0, fast retransmit: 100"),
    ] {
        let evidence = lost(retransmits, 0);
        assert_eq!(words(&evidence), ["loss"]);
        let said = explain(&evidence)[0].sentence();
        assert!(said.contains(part), "{said}");
    }
    // Both: the slowest request may be either's.
    let both = Retransmits {
        retrans_segs: 101,
        timeouts: 100,
        ..probe
    };
    assert_eq!(words(&lost(both, 0)), ["loss", "tail-loss-probe"]);
    // A server that shares its counters with others, or is older, does not know.
    let mut unknown = lost(probe, 0);
    unknown.server = Some(TcpEvidence {
        retransmitted: 1,
        ..tcp(120 * US)
    });
    assert_eq!(words(&unknown), ["network-fine"]);
}

#[test]
fn lost_echoes_with_clean_tcp_are_a_rate_limit() {
    let mut evidence = fine();
    evidence.ping = Some(Ping {
        sent: 100,
        rtt: around(20, 100 * US),
    });
    assert_eq!(words(&evidence), ["icmp-rate-limit"]);
    // Too little TCP to say.
    for end in [&mut evidence.client, &mut evidence.server] {
        *end = Some(TcpEvidence {
            segments: 4,
            ..tcp(120 * US)
        });
    }
    assert_eq!(words(&evidence), ["ping-loss"]);
    // TCP lost as much: the path does.
    evidence.client = Some(TcpEvidence {
        retransmitted: 4_000,
        ..tcp(120 * US)
    });
    assert_eq!(words(&evidence), ["loss"]);
}

/// A link that is down for 3 s of 10: a closed loop sends nothing meanwhile.
#[test]
fn an_outage_is_no_rate_limit() {
    let mut evidence = fine();
    evidence.rr = Some(LatencySummary {
        max_ns: 3_000 * MS,
        ..around(7_000, MS)
    });
    evidence.client = Some(TcpEvidence {
        segments: 7_004,
        retransmitted: 4,
        ..tcp(MS)
    });
    evidence.ping = Some(Ping {
        sent: 100,
        rtt: around(70, MS),
    });
    evidence.echo_hole = EchoHole {
        lost: 30,
        ns: 3_100 * MS,
    };
    assert_eq!(words(&evidence), ["outage"]);
    let findings = explain(&evidence);
    let said = findings[0].sentence();
    assert!(said.contains("For 3.10 s nothing came through"), "{said}");
    assert_eq!(closing(&evidence, &findings), None);
    // The connection was given up, and the next one has lost nothing.
    evidence.timeouts = 1;
    evidence.client = Some(tcp(MS));
    assert_eq!(words(&evidence), ["outage"]);
    evidence.timeouts = 0;
    // ICMP alone is held up, while requests go on.
    evidence.rr = Some(around(7_000, MS));
    evidence.client = Some(TcpEvidence {
        retransmitted: 1,
        ..tcp(MS)
    });
    assert_eq!(words(&evidence), ["icmp-rate-limit"]);
    // Echoes lost one by one are no hole, however slow a request was.
    evidence.rr = Some(LatencySummary {
        max_ns: 3_000 * MS,
        ..around(7_000, MS)
    });
    evidence.echo_hole = EchoHole {
        lost: 4,
        ns: 500 * MS,
    };
    assert_eq!(words(&evidence), ["icmp-rate-limit"]);
}

#[test]
fn a_queue_is_seen_by_echo_and_requests_alike() {
    let mut evidence = fine();
    let full = LatencySummary {
        min_ns: 200 * US,
        ..around(100, 80 * MS)
    };
    evidence.ping = Some(Ping {
        sent: 100,
        rtt: full,
    });
    evidence.rr = Some(full);
    evidence.rr_tenth_ns = Some(90 * MS);
    evidence.client = Some(tcp(80 * MS));
    assert_eq!(words(&evidence), ["bufferbloat"]);
    assert_eq!(closing(&evidence, &explain(&evidence)), None);
    // Echo alone is slow: not a queue.
    evidence.rr = fine().rr;
    evidence.rr_tenth_ns = Some(200 * US);
    evidence.client = fine().client;
    assert!(!words(&evidence).contains(&"bufferbloat"));
}

/// A bulk transfer that comes and goes, as seen in the lab: the median request met no
/// queue, nor did the 90th percentile, but a tenth of the time did.
#[test]
fn a_queue_that_comes_and_goes_is_found_though_most_requests_miss_it() {
    let mut evidence = fine();
    evidence.rr = Some(LatencySummary {
        mean_ns: 3.2e6,
        p50_ns: 81 * US,
        p90_ns: 143 * US,
        p99_ns: 91 * MS,
        ..around(486, 81 * US)
    });
    evidence.rr_tenth_ns = Some(91 * MS);
    evidence.ping = Some(Ping {
        sent: 200,
        rtt: LatencySummary {
            p50_ns: 76 * US,
            p90_ns: 89 * MS,
            ..around(200, 76 * US)
        },
    });
    assert_eq!(words(&evidence), ["bufferbloat"]);
}

#[test]
fn a_queue_that_never_empties_is_told_by_its_swing() {
    let standing = |min_ms: u64, p90_ms: u64| {
        let rtt = LatencySummary {
            min_ns: min_ms * MS,
            p90_ns: p90_ms * MS,
            ..around(300, 160 * MS)
        };
        let min_rtt_ns = min_ms * MS;
        let end = TcpEvidence {
            min_rtt_ns,
            ..tcp(160 * MS)
        };
        let evidence = Evidence {
            rr: Some(rtt),
            rr_tenth_ns: Some(p90_ms * MS),
            ping: Some(Ping { sent: 300, rtt }),
            client: Some(end),
            server: Some(end),
            ..fine()
        };
        words(&evidence)
    };
    assert_eq!(standing(112, 201), ["bufferbloat"]);
    // A long path that swings a little.
    assert_eq!(standing(150, 175), ["network-fine"]);
}
