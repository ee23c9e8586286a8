// SPDX-License-Identifier: Apache-2.0
//! Tables that are full or used again, and what a packet costs.

use super::*;

#[test]
fn a_slot_is_emptied_when_its_place_in_the_ring_is_taken_again() {
    let mut kernel = Kernel::new();
    let round = u64::from(RING);
    let mut port = 1000;
    let mut syn = |kernel: &mut Kernel, ms: u64| {
        port += 1;
        let tuple = Tuple::new("198.51.100.7", port, SERVICE4, 80);
        kernel.at(ms).come(&arriving(&tuple.tcp(Tcp::syn(ISN))));
    };
    syn(&mut kernel, 0);
    syn(&mut kernel, round * SLOT_MS + 10);
    syn(&mut kernel, round * SLOT_MS + 20);
    assert_eq!(kernel.slot(0, 0, 0), SynSlot::default());
    assert_eq!(kernel.slot(0, 0, round).offered[0], 2);
    // One that was on its way for a whole round comes too late to be counted.
    syn(&mut kernel, 30);
    assert_eq!(kernel.slot(0, 0, round).offered[0], 2);
}

/// A table full of SYNs of nobody: connections go on being measured, and so is who
/// connects at once.
#[test]
fn a_flood_fills_the_table_of_attempts_and_leaves_connections_alone() {
    let mut kernel = Kernel::with_room(256);
    let open = |kernel: &mut Kernel, port: u16, ms: u64| {
        let tuple = Tuple::new("198.51.100.7", port, SERVICE4, 80);
        let mut client = Client {
            kernel,
            tuple,
            isn: ISN,
            sent: 0,
        };
        client
            .says(ms, SYN, b"")
            .hears(ms, SYN | ACK, b"")
            .says(ms, ACK, b"");
    };
    open(&mut kernel, 1, 0);
    for flood in 0..2000_u32 {
        let source = IpAddr::from([203, 0, (flood >> 8) as u8, flood as u8]);
        let tuple = Tuple {
            src: source,
            ..Tuple::new("0.0.0.0", 9, SERVICE4, 80)
        };
        kernel.at(10).come(&arriving(&tuple.tcp(Tcp::syn(flood))));
        if flood % 100 == 0 {
            open(&mut kernel, 100 + flood as u16, 20);
        }
    }
    let (half_open, connections) = kernel.entries();
    assert!(half_open <= 256, "{half_open}");
    assert_eq!(connections, 21);
    for port in std::iter::once(1).chain((0..20).map(|n| 100 + 100 * n)) {
        let tuple = Tuple::new("198.51.100.7", port, SERVICE4, 80);
        let mut client = Client {
            kernel: &mut kernel,
            tuple,
            isn: ISN,
            sent: 0,
        };
        client
            .hears(400, ACK | PSH, b"200 OK")
            .says(450, ACK | FIN, b"");
    }
    assert_eq!(kernel.slot(0, 0, 1).completed, 21);
    assert_eq!(
        kernel.slot(0, 1, 0).offered[0],
        2000,
        "every SYN is counted"
    );
}

/// What a packet costs, printed for docs/status.md: the programs write nothing to the
/// packet, so that it can be run again and again. The kernel's own part of such a run is
/// in it, and so is the clock.
#[test]
fn cost_of_a_packet() {
    const RUNS: u32 = 100_000;
    let mut kernel = Kernel::with(1024, CLOCK_KTIME);
    let mut client = client(&mut kernel, 1);
    client
        .says(0, SYN, b"")
        .hears(1, SYN | ACK, b"")
        .says(2, ACK, b"");
    let tuple = client.tuple;
    let segment = |flags, payload| Tcp {
        flags,
        seq: ISN.wrapping_add(1),
        ack: ISN.wrapping_add(1),
        options: &[],
        payload,
    };
    let request = arriving(&tuple.tcp(segment(ACK | PSH, b"GET /")));
    let answer = leaving(&tuple.reversed().tcp(segment(ACK | PSH, &[b'c'; 1400])));
    let duplicate = arriving(&tuple.tcp(Tcp::syn(ISN)));
    let other = arriving(&tuple.udp(b"no TCP"));
    let programs = &kernel.skel.progs;
    for (what, program, frame) in [
        ("nothing of ours", &programs.causeway_syn_in, &other),
        (
            "a request of a connection",
            &programs.causeway_syn_in,
            &request,
        ),
        ("an answer", &programs.causeway_syn_out, &answer),
        (
            "a SYN that had been answered",
            &programs.causeway_syn_in,
            &duplicate,
        ),
    ] {
        let mut times: Vec<u128> = (0..5)
            .map(|_| {
                let run = program.test_run(ProgramInput {
                    data_in: Some(frame),
                    repeat: RUNS,
                    ..Default::default()
                });
                run.expect("BPF_PROG_TEST_RUN").duration.as_nanos()
            })
            .collect();
        times.sort_unstable();
        println!("{what}: {} ns", times[2]);
        assert!(times[2] < 5000, "{what}: {} ns", times[2]);
    }
}

/// Segments that a driver tagged or left in pages are read like others: the tag is in
/// the buffer's metadata, so that a frame with one in its bytes is nobody's.
#[test]
fn entries_have_the_size_that_documents_state() {
    assert_eq!(size_of::<SynEntry>(), 56);
    assert_eq!(size_of::<SynSlotLocked>(), 224);
    let mut kernel = Kernel::new();
    let tagged = ethernet(
        crate::frame::OWN,
        crate::frame::ROUTER,
        &[(0x8100, 5)],
        &clients()[0].tcp(Tcp::syn(ISN)),
    );
    kernel.at(0).come(&tagged);
    let flags = MapFlags::ANY;
    assert!(
        kernel
            .skel
            .maps
            .syn_half_open
            .lookup(&[0; 40], flags)
            .expect("lookup")
            .is_none()
    );
}
