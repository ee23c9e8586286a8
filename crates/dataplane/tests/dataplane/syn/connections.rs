// SPDX-License-Identifier: Apache-2.0
//! Connections and attempts, counter by counter.

use super::*;

#[test]
fn a_connection_from_dropped_syns_to_last_data_counter_by_counter() {
    a_connection_counter_by_counter(None);
}

/// Neither header says how long they are.
#[test]
fn segments_that_big_tcp_has_merged_count_as_any() {
    a_connection_counter_by_counter(Some(Merged::WithoutLength));
    a_connection_counter_by_counter(Some(Merged::WithOption));
}

fn a_connection_counter_by_counter(merged: Option<Merged>) {
    for tuple in clients() {
        let mut kernel = Kernel::new();
        kernel.merged = merged;
        let prefix = prefix_of(tuple);
        let mut client = Client {
            kernel: &mut kernel,
            tuple,
            isn: ISN,
            sent: 0,
            heard: 0,
        };
        client
            .says(0, SYN, b"")
            .says(1020, SYN, b"")
            .says(2045, SYN, b"")
            .hears(2046, SYN | ACK, b"")
            .says(2054, ACK, b"")
            .says(2055, ACK | PSH, b"GET /")
            .hears(2056, ACK, b"")
            .hears(2500, ACK | PSH, b"200 OK")
            .hears(2700, ACK | FIN, b"the rest")
            .says(2710, ACK | FIN, b"")
            .hears(2711, ACK, b"");
        let offered = |retry: usize| {
            let mut slot = SynSlot::default();
            slot.offered[retry] = 1;
            slot
        };
        let mut first = offered(0);
        first.heard = 1;
        let second = offered(1);
        let mut third = offered(2);
        (third.accepted[2], third.established, third.served) = (1, 1, 1);
        let done = SynSlot {
            completed: 1,
            conn_fail_ns: 2045 * MS,
            syn_to_end_ns: 655 * MS,
            rtt_ns: 8 * MS,
            timed: 1,
            server_ns: 645 * MS,
            ..SynSlot::default()
        };
        assert_eq!(kernel.slot(0, prefix, 0), first);
        assert_eq!(kernel.slot(0, prefix, 4), second);
        assert_eq!(kernel.slot(0, prefix, 8), third);
        assert_eq!(kernel.slot(0, prefix, 10), done);
        for slot in [1, 2, 3, 5, 6, 7, 9, 11] {
            assert_eq!(
                kernel.slot(0, prefix, slot),
                SynSlot::default(),
                "slot {slot}"
            );
        }
        assert_eq!(
            kernel.slot(0, 1 - prefix, 0),
            SynSlot::default(),
            "other clients"
        );
        let origin = SynOrigin {
            number: 50,
            category: prefix,
            slots_ago: 2,
        };
        let origins = &kernel.skel.maps.syn_origins;
        assert_eq!(read::<u64>(origins, Plain::as_bytes(&origin)), Some(1));
        let time = SynRetryTime {
            retry: 2,
            at_cs: 204,
        };
        let times = &kernel.skel.maps.syn_retry_times;
        assert_eq!(read::<u64>(times, Plain::as_bytes(&time)), Some(1));
        assert_eq!(kernel.entries(), (0, 0), "nothing is left of it");
    }
}

#[test]
fn what_is_not_ours_or_not_tcp_counts_nowhere() {
    let mut kernel = Kernel::new();
    let client = clients()[0];
    kernel.come(&arriving(&client.udp(b"syn")));
    kernel.come(&arriving(&client.tcp(Tcp::syn(ISN))[..30]));
    // Behind a tunnel header that was not taken off; TCP of which nothing is known; absurd flags.
    let inner = client.tcp(Tcp::syn(ISN));
    let outer = crate::frame::Ip::OUTER;
    kernel.come(&arriving(&outer.packet(client.src, client.dst, 4, &inner)));
    for flags in [ACK, ACK | FIN, RST, SYN | FIN, SYN | RST, 0] {
        let segment = Tcp {
            flags,
            seq: ISN,
            ..Tcp::default()
        };
        kernel.come(&arriving(&client.tcp(segment)));
    }
    for flags in [SYN, SYN | ACK, ACK, ACK | FIN, RST] {
        let segment = Tcp {
            flags,
            seq: ISN,
            ack: 3,
            ..Tcp::default()
        };
        kernel.go(&leaving(&client.reversed().tcp(segment)));
    }
    assert_eq!(kernel.entries(), (0, 0));
    for category in 0..4 {
        assert_eq!(
            kernel.slot(category / 2, category % 2, 0),
            SynSlot::default()
        );
    }
    // An interface that is not to be measured.
    let devices = &kernel.skel.maps.syn_devices;
    devices.delete(&LOOPBACK.to_ne_bytes()).expect("delete");
    kernel.at(0).come(&arriving(&client.tcp(Tcp::syn(ISN))));
    assert_eq!(kernel.entries(), (0, 0));
}

#[test]
fn an_acknowledgement_that_guesses_establishes_nothing() {
    let tuple = clients()[0];
    let mut kernel = Kernel::new();
    let mut client = Client {
        kernel: &mut kernel,
        tuple,
        isn: ISN,
        sent: 0,
        heard: 0,
    };
    client.says(0, SYN, b"").hears(1, SYN | ACK, b"");
    let guess = Tcp {
        flags: ACK,
        seq: ISN + 1,
        ack: SERVER_ISN - 5,
        ..Tcp::default()
    };
    kernel.at(2).come(&arriving(&tuple.tcp(guess)));
    assert_eq!(kernel.slot(0, 0, 0).established, 0);
    assert_eq!(kernel.entries(), (1, 0));
}

#[test]
fn another_service_is_another_category_and_a_tuple_used_again_another_attempt() {
    let mut kernel = Kernel::new();
    let tuple = Tuple::new("203.0.113.9", 4000, SERVICE4, 443);
    for isn in [ISN, 5] {
        let mut client = Client {
            kernel: &mut kernel,
            tuple,
            isn,
            sent: 0,
            heard: 0,
        };
        client
            .says(0, SYN, b"")
            .hears(1, SYN | ACK, b"")
            .says(2, SYN, b"")
            .says(3, ACK, b"")
            .says(4, SYN, b"");
    }
    let slot = kernel.slot(1, 1, 0);
    assert_eq!(
        (slot.offered[0], slot.accepted[0], slot.duplicates),
        (2, 2, 4)
    );
    assert_eq!(
        (slot.established, slot.heard, slot.heard_answered),
        (2, 2, 2)
    );
    assert_eq!(kernel.slot(0, 1, 0), SynSlot::default());
}

/// Its tuple comes again before the agent has judged it.
#[test]
fn an_attempt_whose_tuple_comes_again_is_kept_for_the_agent() {
    let mut kernel = Kernel::new();
    let attempt = |kernel: &mut Kernel, isn, ms| {
        Client {
            isn,
            ..client(kernel, 1)
        }
        .says(ms, SYN, b"");
    };
    let former = |kernel: &Kernel| -> Vec<(u64, u8, u8, u64)> {
        let map = &kernel.skel.maps.syn_former;
        let mut found: Vec<_> = map
            .keys()
            .map(|key| {
                let attempt = SynAttempt::from_bytes(&key).unwrap();
                let of = read::<SynEntry>(map, &key).unwrap().conn;
                assert_eq!(attempt.first_syn_ns, of.first_syn_ns);
                (of.first_syn_ns, of.retry, of.state, of.turn_ns)
            })
            .collect();
        found.sort_unstable();
        found
    };
    attempt(&mut kernel, 1, 0);
    attempt(&mut kernel, 1, 1020);
    attempt(&mut kernel, 2, 1900);
    const LEFT: u8 = 6;
    let start = 1900 * MS;
    let (_, _, _, begun) = *former(&kernel).first().expect("the first is kept");
    let first = begun - start;
    assert_eq!(former(&kernel), [(first, 1, LEFT, begun)]);
    // No client gives up so soon.
    attempt(&mut kernel, 3, 1950);
    assert_eq!(former(&kernel).len(), 1);
    // One whose first SYN was answered did not wait.
    Client {
        isn: 3,
        ..client(&mut kernel, 1)
    }
    .hears(1951, SYN | ACK, b"");
    attempt(&mut kernel, 4, 9000);
    assert_eq!(former(&kernel).len(), 1);
    // It comes and goes once more.
    attempt(&mut kernel, 5, 12_000);
    assert_eq!(former(&kernel).len(), 2);
}

#[test]
fn refused_abandoned_and_stalled_are_told_apart() {
    let mut kernel = Kernel::new();
    let connected: [(u64, u8); 3] = [(0, SYN), (1, SYN | ACK), (2, ACK)];
    let connect = |client: &mut Client<'_>| {
        for (ms, flags) in connected {
            match flags & (SYN | ACK) == (SYN | ACK) {
                true => client.hears(ms, flags, b""),
                false => client.says(ms, flags, b""),
            };
        }
    };
    client(&mut kernel, 1)
        .says(0, SYN, b"")
        .hears(1, RST | ACK, b"");
    client(&mut kernel, 2)
        .says(0, SYN, b"")
        .hears(1, SYN | ACK, b"")
        .says(2, RST, b"");
    let mut stalled = client(&mut kernel, 3);
    connect(&mut stalled);
    stalled
        .says(3, ACK | PSH, b"GET /")
        .hears(1020, SYN | ACK, b"");
    stalled
        .says(1500, ACK | FIN, b"")
        .says(1700, ACK | FIN, b"");
    let mut half_closed = client(&mut kernel, 4);
    connect(&mut half_closed);
    half_closed
        .says(3, ACK | FIN, b"GET /")
        .hears(4, ACK, b"")
        .hears(1600, ACK | FIN, b"200 OK");
    let slot = kernel.slot(0, 0, 0);
    assert_eq!((slot.offered[0], slot.accepted[0]), (3, 3));
    assert_eq!((slot.refused, slot.abandoned, slot.established), (1, 1, 2));
    let later = kernel.slot(0, 0, 6);
    assert_eq!((later.stalled, later.stalled_ns), (1, 1500 * MS));
    assert_eq!((later.completed, later.syn_to_end_ns), (1, 1600 * MS));
    assert_eq!(kernel.entries().1, 0);
}

/// The end of an answer is lost and retransmitted, with a FIN as before.
#[test]
fn what_is_sent_again_behind_a_fin_counts_once_and_lasts_longer() {
    let mut kernel = Kernel::new();
    let mut lossy = client(&mut kernel, 1);
    lossy
        .says(0, SYN, b"")
        .hears(1, SYN | ACK, b"")
        .says(101, ACK, b"")
        .says(102, ACK | PSH, b"GET /")
        .hears(1200, ACK | FIN, b"200 OK");
    assert_eq!(kernel.entries(), (0, 1), "its end may come again");
    let mut lossy = client(&mut kernel, 1);
    lossy
        .hears(1510, ACK | FIN, b"200 OK")
        .says(1610, ACK | FIN, b"")
        .hears(1611, ACK, b"");
    let first = kernel.slot(0, 0, 5);
    assert_eq!((first.completed, first.syn_to_end_ns), (1, 1200 * MS));
    let again = SynSlot {
        syn_to_end_ns: 310 * MS,
        ..SynSlot::default()
    };
    assert_eq!(kernel.slot(0, 0, 6), again);
    assert_eq!(kernel.entries(), (0, 0));
}

/// Two requests of 5 ms, 6 s apart, on one connection.
#[test]
fn each_request_of_a_kept_connection_is_a_transaction() {
    let mut kernel = Kernel::new();
    let mut kept = client(&mut kernel, 1);
    kept.says(0, SYN, b"")
        .hears(1, SYN | ACK, b"")
        .says(3, ACK, b"")
        .says(4, ACK | PSH, b"GET /")
        .hears(9, ACK | PSH, b"200 OK")
        .says(6004, ACK | PSH, b"GET /")
        .hears(6009, ACK | PSH, b"200 OK");
    // A retransmission is not another request.
    kept.sent -= 5;
    kept.says(6010, ACK | PSH, b"GET /");
    let first = SynSlot {
        completed: 1,
        syn_to_end_ns: 9 * MS,
        rtt_ns: 2 * MS,
        timed: 1,
        server_ns: 5 * MS,
        ..SynSlot::default()
    };
    assert_eq!(kernel.slot(0, 0, 24), first);
    for ms in [7000, 8100, 9000] {
        kernel.at(ms).look();
    }
    let second = SynSlot {
        later: 1,
        later_ns: 5 * MS,
        rtt_ns: 2 * MS,
        timed: 1,
        server_ns: 5 * MS,
        ..SynSlot::default()
    };
    assert_eq!(kernel.slot(0, 0, 32), second);
    let mut kept = client(&mut kernel, 1);
    kept.sent = 10;
    kept.hears(81_000, ACK | FIN, b"")
        .says(81_001, ACK | FIN, b"");
    assert_eq!(kernel.slot(0, 0, 36 + 64 * 4), SynSlot::default());
    assert_eq!(kernel.entries(), (0, 0));
    // 11 and 7 ms as the client felt them.
    let mut expected = SynResponses {
        sum_ns: 18 * MS,
        ..SynResponses::default()
    };
    (expected.count[4], expected.count[5]) = (1, 1);
    assert_eq!(kernel.responses(0, 0), expected);
}

#[test]
fn what_asks_nothing_is_unused_and_tls_is_opened_within_the_first_transaction() {
    const HELLO: &[u8] = &[22, 3, 1, 0, 200, 1];
    const FINISHED: &[u8] = &[20, 3, 3, 0, 1, 1];
    const RECORD: &[u8] = &[23, 3, 3, 0, 99, 7];
    let mut kernel = Kernel::new();
    let open = |kernel: &mut Kernel, port| {
        client(kernel, port)
            .says(0, SYN, b"")
            .hears(1, SYN | ACK, b"")
            .says(3, ACK, b"");
    };
    open(&mut kernel, 1);
    client(&mut kernel, 1)
        .says(4, ACK | FIN, b"")
        .hears(5, ACK | FIN, b"");
    open(&mut kernel, 2);
    client(&mut kernel, 2).says(4, RST | ACK, b"");
    open(&mut kernel, 3);
    client(&mut kernel, 3)
        .says(4, ACK | PSH, HELLO)
        .hears(5, ACK | PSH, HELLO)
        .says(7, ACK | PSH, FINISHED)
        .hears(200, ACK | FIN, b"");
    assert_eq!(kernel.slot(0, 0, 0).unused, 3);
    open(&mut kernel, 4);
    client(&mut kernel, 4)
        .says(4, ACK | PSH, HELLO)
        .hears(5, ACK | PSH, HELLO)
        .says(7, ACK | PSH, FINISHED)
        .says(8, ACK | PSH, RECORD)
        .hears(20, ACK | FIN, RECORD);
    let slot = kernel.slot(0, 0, 0);
    assert_eq!((slot.completed, slot.syn_to_end_ns), (1, 20 * MS));
}

#[test]
fn an_interim_response_ends_nothing_and_finished_with_a_request_asks() {
    let mut kernel = Kernel::new();
    client(&mut kernel, 1)
        .says(0, SYN, b"")
        .hears(1, SYN | ACK, b"")
        .says(3, ACK, b"")
        .says(4, ACK | PSH, &[b'h'; 120])
        .hears(5, ACK | PSH, b"HTTP/1.1 100 Continue\r\n\r\n")
        .says(8, ACK | PSH, &[b'b'; 900])
        .hears(14, ACK | PSH, b"HTTP/1.1 200 OK")
        .says(100, ACK | FIN, b"");
    let slot = kernel.slot(0, 0, 0);
    assert_eq!((slot.completed, slot.later), (1, 0));
    assert_eq!((slot.timed, slot.server_ns), (1, 10 * MS));
    let mut finished = vec![20, 3, 3, 0, 1, 1];
    finished.resize(300, 23);
    let mut kernel = Kernel::new();
    client(&mut kernel, 2)
        .says(0, SYN, b"")
        .hears(1, SYN | ACK, b"")
        .says(3, ACK, b"")
        .says(4, ACK | PSH, &[22, 3, 1, 0, 200, 1])
        .hears(5, ACK | PSH, &[22, 3, 3, 0, 99, 2])
        .says(7, ACK | PSH, &finished)
        .hears(20, ACK | PSH, &[23, 3, 3, 0, 99, 7])
        .says(90, ACK | FIN, b"");
    let slot = kernel.slot(0, 0, 0);
    assert_eq!((slot.timed, slot.server_ns), (1, 13 * MS));
}

/// Four streams: each answer sets off the next request while others are on their way.
#[test]
fn what_a_server_takes_is_not_told_of_requests_that_overlap() {
    let mut kernel = Kernel::new();
    let mut streams = client(&mut kernel, 1);
    streams
        .says(0, SYN, b"")
        .hears(1, SYN | ACK, b"")
        .says(3, ACK, b"")
        .says(4, ACK | PSH, &[b'q'; 200])
        .hears(9, ACK | PSH, b"one")
        .says(10, ACK | PSH, &[b'q'; 50])
        .hears(14, ACK | PSH, b"two");
    // It left before the third answer came.
    streams.hears(15, ACK | PSH, b"three").heard -= 5;
    streams.says(16, ACK | PSH, &[b'q'; 50]).heard += 5;
    streams
        .hears(19, ACK | PSH, b"four")
        .says(100, ACK | FIN, b"");
    let slot = kernel.slot(0, 0, 0);
    assert_eq!((slot.completed, slot.later), (1, 2));
    assert_eq!((slot.timed, slot.server_ns), (1, 5 * MS));
    assert_eq!(slot.overlapping, 2);
}

/// Of the services that are not counted apart only those count that answer, not those that a
/// firewall drops.
#[test]
fn a_port_counts_among_the_others_once_it_has_answered() {
    let mut kernel = Kernel::new();
    let tuple = Tuple::new("198.51.100.7", 4000, SERVICE4, 8080);
    let mut client = Client {
        kernel: &mut kernel,
        tuple,
        isn: ISN,
        sent: 0,
        heard: 0,
    };
    client.says(0, SYN, b"").says(100, SYN, b"");
    assert_eq!(client.kernel.entries(), (0, 0));
    client.hears(101, SYN | ACK, b"").says(102, ACK, b"");
    assert_eq!(client.kernel.slot(1, 0, 0), SynSlot::default());
    client.isn = 5;
    client.says(110, SYN, b"");
    assert_eq!(client.kernel.slot(1, 0, 0).offered[0], 1);
}
