// SPDX-License-Identifier: Apache-2.0
//! One client's attempt, event by event.

use proptest::prelude::*;

use super::MS;
use crate::certes::*;

fn outcomes(events: &[(u64, ConnectionEvent)]) -> Vec<TrackedEvent> {
    let mut tracker = Tracker::default();
    events
        .iter()
        .map(|&(at_ms, event)| tracker.step(event, at_ms * MS))
        .collect()
}

fn counts(events: &[(u64, ConnectionEvent)]) -> Vec<Count> {
    outcomes(events)
        .iter()
        .map(|outcome| outcome.count)
        .collect()
}

#[test]
fn a_connection_that_got_in_at_its_second_retry() {
    let all = outcomes(&[
        (1000, ConnectionEvent::Syn(7)),
        (4000, ConnectionEvent::Syn(7)),
        (10_000, ConnectionEvent::Syn(7)),
        (10_001, ConnectionEvent::SynAck),
        (10_051, ConnectionEvent::Ack),
        (10_300, ConnectionEvent::Data),
        (10_400, ConnectionEvent::Data),
        (10_450, ConnectionEvent::Ack),
        (10_500, ConnectionEvent::ClientFin(107)),
        (10_550, ConnectionEvent::ServerFin),
    ]);
    let accepted = all[3];
    assert_eq!(
        (accepted.count, accepted.at_ns, accepted.retry),
        (Count::Accepted, 10_000 * MS, 2)
    );
    assert_eq!(
        (all[4].count, all[4].rtt_ns, all[4].answers),
        (Count::Established, 50 * MS, 1)
    );
    let done = all[8];
    assert_eq!(done.count, Count::Completed);
    assert_eq!(done.conn_fail_ns, 9000 * MS);
    assert_eq!(
        done.syn_to_end_ns,
        400 * MS,
        "to the last data, not to the FIN"
    );
    assert_eq!((done.rtt_ns, done.accepted_ns), (50 * MS, 10_000 * MS));
    assert_eq!(done.at_ns, 10_475 * MS, "its FIN was on the way for 25 ms");
    assert_eq!(all[9].count, Count::Nothing, "only the first FIN counts");
}

/// A client has the last data one way after they were sent: the slot is that of its
/// end, not of the server's.
#[test]
fn an_end_counts_when_the_client_had_it() {
    let end = |more: &[(u64, ConnectionEvent)]| {
        let connected = [
            (0, ConnectionEvent::Syn(1)),
            (1, ConnectionEvent::SynAck),
            (101, ConnectionEvent::Ack),
        ];
        let all = outcomes(&[&connected[..], more].concat());
        let done = all.iter().find(|of| of.count == Count::Completed);
        done.map(|of| of.at_ns / MS)
    };
    let at_once = [
        (102, ConnectionEvent::Request),
        (200, ConnectionEvent::Data),
        (200, ConnectionEvent::ServerFin),
    ];
    assert_eq!(end(&at_once), Some(250));
    let by_the_client = [
        (200, ConnectionEvent::Data),
        (300, ConnectionEvent::ClientFin(9)),
    ];
    assert_eq!(end(&by_the_client), Some(250));
    let kept_open = [
        (200, ConnectionEvent::Data),
        (9000, ConnectionEvent::ClientFin(9)),
    ];
    assert_eq!(end(&kept_open), Some(8950));
}

#[test]
fn syns_of_an_answered_attempt_are_duplicates_and_another_number_is_another_attempt() {
    use Count::*;
    let events = [
        (0, ConnectionEvent::Syn(1)),
        (1, ConnectionEvent::SynAck),
        (1000, ConnectionEvent::Syn(1)),
        (1001, ConnectionEvent::SynAck),
        (1100, ConnectionEvent::Ack),
        (5000, ConnectionEvent::Syn(2)),
        (5001, ConnectionEvent::SynAck),
    ];
    assert_eq!(
        counts(&events),
        [
            Offered,
            Accepted,
            Duplicate,
            Nothing,
            Established,
            Offered,
            Accepted
        ]
    );
    assert_eq!(outcomes(&events)[4].answers, 2, "a round trip was lost");
    assert_eq!(outcomes(&events)[5].retry, 0);
}

#[test]
fn what_never_was_a_connection_is_abandoned() {
    use Count::*;
    assert_eq!(
        counts(&[
            (0, ConnectionEvent::Syn(1)),
            (5, ConnectionEvent::ClientReset(2))
        ]),
        [Offered, Abandoned]
    );
    assert_eq!(
        counts(&[
            (0, ConnectionEvent::Syn(1)),
            (1, ConnectionEvent::SynAck),
            (5, ConnectionEvent::ServerReset)
        ]),
        [Offered, Accepted, Abandoned]
    );
    assert_eq!(
        counts(&[
            (0, ConnectionEvent::Ack),
            (1, ConnectionEvent::Data),
            (2, ConnectionEvent::ServerFin),
            (3, ConnectionEvent::SynAck)
        ]),
        [Nothing; 4]
    );
}

#[test]
fn a_client_is_heard_of_once_after_its_first_syn() {
    let heard = |events: &[ConnectionEvent]| {
        let mut tracker = Tracker::default();
        let mut slot = Slot::default();
        for (at, event) in events.iter().enumerate() {
            let outcome = tracker.step(*event, at as u64 * MS);
            slot.count(&outcome);
            if outcome.heard {
                slot.count_heard(&outcome);
            }
        }
        (slot.silent(), slot.silent_answered())
    };
    assert_eq!(heard(&[ConnectionEvent::Syn(1)]), (1, 0));
    assert_eq!(
        heard(&[ConnectionEvent::Syn(1), ConnectionEvent::SynAck]),
        (1, 1)
    );
    assert_eq!(
        heard(&[
            ConnectionEvent::Syn(1),
            ConnectionEvent::SynAck,
            ConnectionEvent::Syn(1)
        ]),
        (0, 0)
    );
    assert_eq!(
        heard(&[
            ConnectionEvent::Syn(1),
            ConnectionEvent::SynAck,
            ConnectionEvent::Ack
        ]),
        (0, 0)
    );
    let retried = [
        ConnectionEvent::Syn(1),
        ConnectionEvent::Syn(1),
        ConnectionEvent::Syn(1),
        ConnectionEvent::SynAck,
        ConnectionEvent::Ack,
    ];
    assert_eq!(heard(&retried), (0, 0));
}

#[test]
fn a_connection_whose_final_ack_was_dropped_is_stalled() {
    use Count::*;
    let connected = [
        (0, ConnectionEvent::Syn(1)),
        (1000, ConnectionEvent::Syn(1)),
        (1001, ConnectionEvent::SynAck),
        (1002, ConnectionEvent::Ack),
    ];
    let after =
        |more: &[(u64, ConnectionEvent)]| outcomes(&[&connected[..], more].concat()).split_off(4);
    // The client sends FIN, and again, as it is not acknowledged.
    let left = after(&[
        (9000, ConnectionEvent::ClientFin(102)),
        (9200, ConnectionEvent::ClientFin(102)),
    ]);
    assert_eq!([left[0].count, left[1].count], [Nothing, Stalled]);
    assert_eq!(
        left[1].conn_fail_ns,
        9000 * MS,
        "from the first SYN to the first FIN"
    );
    assert_eq!(
        after(&[(5000, ConnectionEvent::ClientReset(102))])[0].count,
        Stalled
    );
    let reset = after(&[
        (1003, ConnectionEvent::Request),
        (5000, ConnectionEvent::ServerReset),
    ]);
    assert_eq!(reset[1].count, Stalled);
    // It was reset as it came (tcp_abort_on_overflow), before its client could ask.
    assert_eq!(
        after(&[(1003, ConnectionEvent::ServerReset)])[0].count,
        Stalled
    );
    // An ACK of the server's is enough to show that it knows the connection.
    let served = after(&[
        (1500, ConnectionEvent::Served),
        (5000, ConnectionEvent::ClientReset(102)),
    ]);
    assert_eq!(served[1].count, Completed);
}

#[test]
fn data_after_the_clients_fin_belongs_to_the_transaction() {
    let all = outcomes(&[
        (0, ConnectionEvent::Syn(1)),
        (1, ConnectionEvent::SynAck),
        (2, ConnectionEvent::Ack),
        (3, ConnectionEvent::ClientFin(102)),
        (4, ConnectionEvent::Served),
        (500, ConnectionEvent::Data),
        (501, ConnectionEvent::ServerFin),
    ]);
    assert_eq!(all[3].count, Count::Nothing);
    let done = all[6];
    assert_eq!(
        (done.count, done.syn_to_end_ns),
        (Count::Completed, 500 * MS)
    );
}

/// The network lost the end of an answer, which the server had sent with its FIN.
#[test]
fn data_that_is_sent_again_after_the_servers_fin_makes_the_answer_longer() {
    let answered = [
        (0, ConnectionEvent::Syn(1)),
        (1, ConnectionEvent::SynAck),
        (151, ConnectionEvent::Ack),
        (152, ConnectionEvent::Request),
        (300, ConnectionEvent::Data),
        (300, ConnectionEvent::ServerFin),
    ];
    let after = |more: &[(u64, ConnectionEvent)]| {
        let all = outcomes(&[&answered[..], more].concat());
        let mut slot = Slot::default();
        all.iter().for_each(|outcome| slot.count(outcome));
        assert_eq!(all[5].count, Count::Completed, "by its FIN");
        (slot.completed, slot.syn_to_end_ns / MS)
    };
    let again = [
        (600, ConnectionEvent::Data),
        (600, ConnectionEvent::ServerFin),
    ];
    assert_eq!(after(&again), (1, 600));
    let twice = [
        again[0],
        (1200, ConnectionEvent::Data),
        (1290, ConnectionEvent::ClientFin(9)),
    ];
    assert_eq!(after(&twice), (1, 1200));
    let gone = [
        again[0],
        (2601, ConnectionEvent::Data),
        (2700, ConnectionEvent::Data),
    ];
    assert_eq!(after(&gone), (1, 600), "nobody is there any more");
    let had_it = [
        (460, ConnectionEvent::ClientFin(9)),
        (600, ConnectionEvent::Data),
    ];
    assert_eq!(after(&had_it), (1, 300), "the client had closed");
    // Whose client had said that it sends no more: its last word does not come.
    let half_closed = outcomes(
        &[
            &answered[..4],
            &[(153, ConnectionEvent::ClientFin(9))],
            &answered[4..],
            &[(600, ConnectionEvent::Data)],
        ]
        .concat(),
    );
    let counts = [&half_closed[6], &half_closed[7]].map(|of| of.count);
    assert_eq!(counts, [Count::Completed, Count::Nothing]);
}

/// A RST answers the second SYN-ACK: the client had lost its patience before.
#[test]
fn an_attempt_that_is_answered_too_late_was_left_once() {
    use Count::*;
    let events = [
        (0, ConnectionEvent::Syn(1)),
        (1, ConnectionEvent::SynAck),
        (1001, ConnectionEvent::SynAck),
        (1011, ConnectionEvent::ClientReset(2)),
        (3001, ConnectionEvent::SynAck),
        (3011, ConnectionEvent::ClientReset(2)),
    ];
    assert_eq!(
        counts(&events),
        [Offered, Accepted, Nothing, Abandoned, Nothing, Nothing]
    );
}

#[test]
fn a_refused_syn_was_no_offer() {
    let all = outcomes(&[
        (0, ConnectionEvent::Syn(1)),
        (300, ConnectionEvent::ServerReset),
    ]);
    assert_eq!((all[1].count, all[1].at_ns), (Count::Refused, 0));
    let mut slot = Slot::default();
    all.iter().for_each(|outcome| slot.count(outcome));
    assert_eq!(
        (slot.offered, slot.first_offered, slot.dropped()),
        (0, 0, 0)
    );
}

/// What each transaction took, and how connections ended on which nothing was asked.
fn transactions(events: &[(u64, ConnectionEvent)]) -> Vec<(Count, u64)> {
    let connected = [
        (0, ConnectionEvent::Syn(1)),
        (1, ConnectionEvent::SynAck),
        (11, ConnectionEvent::Ack),
    ];
    let all = outcomes(&[&connected[..], events].concat()).split_off(3);
    let told = |of: &TrackedEvent| ![Count::Nothing, Count::Served].contains(&of.count);
    let told = all.into_iter().filter(told);
    told.map(|of| (of.count, (of.conn_fail_ns + of.syn_to_end_ns) / MS))
        .collect()
}

#[test]
fn a_transaction_ends_with_the_last_data_before_the_next_request() {
    use ConnectionEvent::*;
    let kept_alive = [
        (12, Request),
        (16, Data),
        (17, Data),
        (6012, Request),
        (6013, Served),
        (6014, Request),
        (6017, Data),
        (81_000, ServerFin),
    ];
    let found = transactions(&kept_alive);
    assert_eq!(found, [(Count::Completed, 17), (Count::Later, 5)]);
    // With a search for silence it counts soon, and not again when the connection ends.
    let looked = [
        (12, Request),
        (17, Data),
        (1500, Silence),
        (2100, Silence),
        (3100, Silence),
        (9000, ClientFin(90)),
        (9001, ServerFin),
    ];
    assert_eq!(transactions(&looked), [(Count::Completed, 17)]);
    // What the server says unasked belongs to nothing: that its connection ends, say.
    let goodbye = [
        (12, Request),
        (17, Data),
        (75_017, Data),
        (75_017, ServerFin),
    ];
    assert_eq!(transactions(&goodbye), [(Count::Completed, 17)]);
    // It spoke first.
    let greeted = [
        (17, Data),
        (3000, Request),
        (3004, Data),
        (3010, ClientFin(9)),
    ];
    let found = transactions(&greeted);
    assert_eq!(found, [(Count::Completed, 17), (Count::Later, 4)]);
}

/// Rows of what follows the SYN-ACK's acknowledgement, and of what is to be counted.
#[test]
fn a_short_packet_that_nothing_answers_is_no_transaction() {
    use ConnectionEvent::*;
    const TICKETS: ConnectionEvent = DataOf(510);
    // By an alert, GOAWAY, QUIT.
    const GOODBYE: ConnectionEvent = DataOf(24);
    let tls = [(12, Handshake), (15, Data), (26, Handshake)];
    let (first, second) = ((Count::Completed, 32), |ms| (Count::Later, ms));
    let asked = [(27, Request), (28, TICKETS), (32, Data)];
    for (name, events, expected) in [
        (
            "a window update, and the next request",
            &[
                (42, ShortRequest),
                (30_000, Request),
                (30_004, Data),
                (30_005, ServerFin),
            ][..],
            &[first, second(4)][..],
        ),
        (
            "the client's goodbye",
            &[(140, ShortRequest), (140, ClientFin(9)), (141, ServerFin)],
            &[first],
        ),
        (
            "the server answers with its own",
            &[
                (140, ShortRequest),
                (140, ClientFin(9)),
                (141, GOODBYE),
                (141, ServerFin),
            ],
            &[first],
        ),
        (
            "the client is gone by then",
            &[
                (140, ShortRequest),
                (140, ClientFin(9)),
                (141, GOODBYE),
                (151, ClientReset(9)),
            ],
            &[first],
        ),
        (
            "a reset behind it",
            &[(140, ShortRequest), (141, ClientReset(9))],
            &[first],
        ),
        (
            "a window update, and the server's goodbye",
            &[
                (42, ShortRequest),
                (75_042, DataOf(39)),
                (75_042, GOODBYE),
                (75_042, ServerFin),
            ],
            &[first],
        ),
        (
            "and its end follows later",
            &[
                (42, ShortRequest),
                (75_042, DataOf(39)),
                (78_000, Silence),
                (80_042, ServerFin),
            ],
            &[first],
        ),
        (
            "and without one",
            &[(42, ShortRequest), (75_042, ServerFin)],
            &[first],
        ),
        (
            "and another request meanwhile",
            &[
                (42, ShortRequest),
                (75_042, DataOf(39)),
                (75_043, Request),
                (75_050, Data),
                (75_051, ServerFin),
            ],
            &[first, second(7)],
        ),
        (
            "one with its client's end, and a long answer",
            &[
                (140, ShortRequest),
                (140, ClientFin(9)),
                (143, Data),
                (143, ServerFin),
            ],
            &[first, second(3)],
        ),
        (
            "a short one, answered as shortly",
            &[
                (140, ShortRequest),
                (143, GOODBYE),
                (150, ShortRequest),
                (152, GOODBYE),
                (160, ClientFin(9)),
            ],
            &[first, second(3), second(2)],
        ),
    ] {
        let found = transactions(&[&tls[..], &asked, events].concat());
        assert_eq!(found, expected, "{name}");
    }
    // In clear text a short answer may have taken its time.
    let slow = [
        (12, Request),
        (17, Data),
        (20, ShortRequest),
        (3020, DataOf(11)),
    ];
    for end in [
        &[
            (3021, ShortRequest),
            (3021, ClientFin(9)),
            (3021, ServerFin),
        ][..],
        &[(3021, ClientFin(9))],
        &[(5100, Silence), (9000, ServerFin)],
        &[(9000, ServerFin)],
    ] {
        let found = transactions(&[&slow[..], end].concat());
        assert_eq!(found, [(Count::Completed, 17), second(3000)], "{end:?}");
    }
    let quit = [
        (12, Request),
        (17, Data),
        (20, ShortRequest),
        (20, ClientFin(9)),
        (20, ServerFin),
    ];
    assert_eq!(transactions(&quit), [(Count::Completed, 17)]);
    // The first one of a connection was waited for from the SYN on, however short it is.
    let first = [(12, ShortRequest), (17, GOODBYE), (17, ServerFin)];
    assert_eq!(transactions(&first), [(Count::Completed, 17)]);
}

/// What a server took for each transaction of a connection, ms; `None`: it overlapped.
fn server_ms(events: &[(u64, ConnectionEvent)]) -> Vec<Option<u64>> {
    let connected = [
        (0, ConnectionEvent::Syn(1)),
        (1, ConnectionEvent::SynAck),
        (41, ConnectionEvent::Ack),
    ];
    let all = outcomes(&[&connected[..], events].concat());
    let all = all.iter().filter_map(|of| match of.server {
        ServerTime::None => None,
        ServerTime::Known(ns) => Some(Some(ns / MS)),
        ServerTime::Overlaps => Some(None),
    });
    all.collect()
}

#[test]
fn what_a_server_took_runs_from_the_request_to_its_last_data() {
    use ConnectionEvent::*;
    let asked = [
        // Neither the handshake nor the client's own time is the server's.
        (50, Handshake),
        (52, Data),
        (100, Request),
        (101, Request),
        (105, Data),
        (107, Data),
        // The network lost it.
        (140, DataAgain),
        (150, Request),
        (153, Data),
        // A window update; nothing answers it.
        (154, ShortRequest),
        (400, Request),
        (404, Data),
        // As short, and answered.
        (500, ShortRequest),
        (501, Data),
        (600, ClientFin(99)),
    ];
    assert_eq!(server_ms(&asked), [Some(7), Some(3), Some(4), Some(1)]);
    let silent = [(50, Request), (60, ServerFin)];
    assert_eq!(server_ms(&silent), [], "it did not answer");
    // Nor does a goodbye answer another.
    let left = [
        (50, Request),
        (57, Data),
        (90, ShortRequest),
        (90, ClientFin(99)),
        (91, DataOf(24)),
        (91, ServerFin),
    ];
    assert_eq!(server_ms(&left), [Some(7)]);
}

#[test]
fn what_overlaps_is_not_timed_from_then_on() {
    use ConnectionEvent::*;
    let asked = [
        (50, Request),
        (55, Data),
        (100, Request),
        (105, Data),
        (105, EarlyRequest),
        (110, Data),
        (200, Request),
        (205, Data),
        (300, ClientFin(99)),
    ];
    assert_eq!(server_ms(&asked), [Some(5), None, None, None]);
    // In the first one a server also says what was not asked for.
    let greeted = [
        (50, Request),
        (51, Data),
        (60, EarlyRequest),
        (64, Data),
        (99, ClientFin(9)),
    ];
    assert_eq!(server_ms(&greeted), [Some(1), Some(4)]);
    // Within TLS requests shorter than HTTP/1.1 has them, and a packet with several.
    for (tls, expected) in [(Handshake, [Some(5), None]), (Served, [Some(5), Some(4)])] {
        let streams = [
            (45, tls),
            (46, Data),
            (50, LongRequest),
            (55, Data),
            (60, ShortRequest),
            (64, Data),
            (99, ClientFin(9)),
        ];
        assert_eq!(server_ms(&streams), expected);
    }
    // A pipeline.
    let pipeline = [
        (50, HttpRequest),
        (51, HttpRequest),
        (55, Data),
        (60, HttpRequest),
        (64, Data),
        (99, ClientFin(9)),
    ];
    assert_eq!(server_ms(&pipeline), [None, None]);
    // A body that follows its head while the server is silent is not another request.
    let body = [
        (50, Request),
        (55, EarlyRequest),
        (60, Data),
        (99, ClientFin(9)),
    ];
    assert_eq!(server_ms(&body), [Some(10)]);
}

#[test]
fn a_connection_that_asked_nothing_is_unused_however_it_ends() {
    use ConnectionEvent::*;
    let unused = [(Count::Unused, 0)];
    for (name, events) in [
        (
            "check by FIN",
            &[(12, ClientFin(2)), (12, Served), (13, ServerFin)][..],
        ),
        ("check by RST", &[(12, ClientReset(2))]),
        (
            "FIN and RST",
            &[(12, ClientFin(2)), (12, Served), (13, ClientReset(3))],
        ),
        ("opened in advance", &[(60_000, ServerFin)]),
        ("the same, reset", &[(60_000, ServerReset)]),
        ("the same, with 408", &[(60_000, Data), (60_000, ServerFin)]),
        (
            "TLS in advance",
            &[
                (12, Handshake),
                (15, Data),
                (26, Handshake),
                (27, Data),
                (60_000, Data),
                (60_000, ServerFin),
            ],
        ),
        ("left alone", &[(12, ClientFin(2)), (300, ClientFin(2))]),
    ] {
        assert_eq!(transactions(events), unused, "{name}");
    }
}

#[test]
fn what_was_opened_in_advance_is_waited_for_from_the_request_on() {
    use ConnectionEvent::*;
    let used_late = [(10_000, Request), (10_005, Data), (10_010, ClientFin(9))];
    assert_eq!(transactions(&used_late), [(Count::Later, 5)]);
    let tls = [(12, Handshake), (15, Data), (26, Handshake), (27, Data)];
    let late = [(10_000, Request), (10_005, Data), (10_010, ClientFin(9))];
    assert_eq!(
        transactions(&[&tls[..], &late].concat()),
        [(Count::Later, 5)]
    );
    // Used at once, TLS is a part of it: tickets come before or behind the request.
    let at_once = [(28, Request), (33, Data), (50, ClientFin(9))];
    assert_eq!(
        transactions(&[&tls[..], &at_once].concat()),
        [(Count::Completed, 33)]
    );
    let tickets_later = [(26, Request), (27, Data), (33, Data), (50, ClientFin(9))];
    let found = transactions(&[&tls[..3], &tickets_later].concat());
    assert_eq!(found, [(Count::Completed, 33)]);
    let stalled = [(10_000, Request), (12_000, ServerReset)];
    let found = transactions(&stalled);
    assert_eq!(found, [(Count::Stalled, 2000)], "from the request on");
}

/// A client of TLS 1.3 asks behind its Finished, and the server's tickets leave before it has read
/// what is asked.
#[test]
fn tickets_are_no_answer_however_long_the_server_thinks() {
    use ConnectionEvent::*;
    const TICKETS: ConnectionEvent = DataOf(510);
    let tls = [(42, Handshake), (45, Data), (56, Handshake)];
    let after = |more: &[(u64, ConnectionEvent)]| transactions(&[&tls[..], more].concat());
    let slow = [
        (57, Request),
        (58, DataOf(255)),
        (58, DataOf(255)),
        (2100, Silence),
        (5033, DataOf(300)),
    ];
    let end = [(5040, ClientFin(9))];
    assert_eq!(
        after(&[&slow[..], &end].concat()),
        [(Count::Completed, 5033)]
    );
    assert_eq!(
        server_ms(&[&tls[..], &slow, &end].concat()),
        [Some(5033 - 57)]
    );
    // From then on a silence is an end, as it is behind more than tickets.
    let kept_alive = [(8000, Silence), (80_000, DataOf(24)), (80_000, ServerFin)];
    assert_eq!(
        after(&[&slow[..], &kept_alive].concat()),
        [(Count::Completed, 5033)]
    );
    let answered = [(57, Request), (58, TICKETS), (70, DataOf(300))];
    for more in [
        &[(2100, Silence), (5000, DataOf(300))][..],
        &[(5000, DataOf(300)), (5001, ServerFin)],
    ] {
        let found = after(&[&answered[..], more].concat());
        assert_eq!(found, [(Count::Completed, 70)]);
    }
    // So little may be tickets, and was the response: it ends with the goodbye, the next request or
    // the connection, and when it was sent.
    let short = [(57, Request), (70, DataOf(300)), (2100, Silence)];
    for (more, expected) in [
        (
            &[(75_000, DataOf(24)), (75_000, ServerFin)][..],
            &[(Count::Completed, 70)][..],
        ),
        (&[(75_000, ClientFin(9))], &[(Count::Completed, 70)]),
        (
            &[(9000, Request), (9007, DataOf(300)), (12_000, Silence)],
            &[(Count::Completed, 70), (Count::Later, 7)],
        ),
    ] {
        assert_eq!(after(&[&short[..], more].concat()), expected);
    }
    // What the network loses of the tickets is no response either.
    let lost = [
        (57, Request),
        (58, TICKETS),
        (2500, DataAgain),
        (5033, DataOf(300)),
    ];
    assert_eq!(
        after(&[&lost[..], &end].concat()),
        [(Count::Completed, 5033)]
    );
}

proptest! {
    /// Whatever comes in whatever order: at most as many accepted as offered,
    /// completed as established, and no time below zero.
    #[test]
    fn counters_stay_consistent(
        events in prop::collection::vec((0_u64..2000, 0_u8..13, 0_u32..3), 0..200)
    ) {
        let mut tracker = Tracker::default();
        let (mut now_ns, mut offered, mut accepted, mut established, mut completed) = (1, 0, 0, 0, 0);
        for (wait_ms, kind, isn) in events {
            now_ns += wait_ms * MS;
            let event = match kind {
                0 => ConnectionEvent::Syn(isn),
                1 => ConnectionEvent::SynAck,
                2 => ConnectionEvent::Ack,
                3 => ConnectionEvent::Served,
                4 => ConnectionEvent::Data,
                5 => ConnectionEvent::ClientFin(isn + 1 + isn % 2),
                6 => ConnectionEvent::ServerFin,
                7 => ConnectionEvent::ClientReset(isn + 1),
                8 => ConnectionEvent::ServerReset,
                9 => ConnectionEvent::Request,
                10 => ConnectionEvent::Handshake,
                11 => ConnectionEvent::DataOf(30 + 200 * isn),
                _ => ConnectionEvent::Silence,
            };
            let outcome = tracker.step(event, now_ns);
            // One way from now at most.
            prop_assert!(outcome.at_ns <= now_ns + 500 * MS);
            offered += u64::from(outcome.count == Count::Offered);
            accepted += u64::from(outcome.count == Count::Accepted);
            established += u64::from(outcome.count == Count::Established);
            let ended = [Count::Completed, Count::Stalled];
            completed += u64::from(ended.contains(&outcome.count));
            if [Count::Completed, Count::Later].contains(&outcome.count) {
                prop_assert!(outcome.syn_to_end_ns <= now_ns && outcome.conn_fail_ns <= outcome.accepted_ns);
            }
            prop_assert!(completed <= established && established <= accepted && accepted <= offered);
        }
    }
}
