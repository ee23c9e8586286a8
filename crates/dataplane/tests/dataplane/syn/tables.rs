// SPDX-License-Identifier: Apache-2.0
//! Tables that are full or used again.

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

/// A table full of SYNs of a flood: connections go on being measured, and so is who
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
            heard: 0,
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
            heard: 0,
        };
        client
            .says(30, ACK | PSH, b"GET /")
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

/// Segments that a driver tagged or left in pages are read like others: the tag is in
/// the buffer's metadata, so that a frame with one in its bytes is not counted.
#[test]
fn entries_have_the_size_that_documents_state() {
    assert_eq!(size_of::<SynEntry>(), 72);
    assert_eq!(size_of::<SynSlotLocked>(), 256);
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
