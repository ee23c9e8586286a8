// SPDX-License-Identifier: Apache-2.0
//! The packet dropper loses the same packets for the same seed. Needs root; fails without.

#[path = "../../../crates/dataplane/tests/sandbox/mod.rs"]
mod sandbox;

use std::net::UdpSocket;

use causeway_bench::loss::{LossInjector, LossRule, TcDirection};

use sandbox::{Sandbox, wait_for};

#[test]
fn the_same_packets_are_lost_again() {
    Sandbox::run(|_| {
        let lost = |seed| {
            let rule = LossRule {
                share: 0.1,
                seed,
                ..LossRule::default()
            };
            let injector = LossInjector::attach("lo", TcDirection::In, rule).expect("attach");
            let socket = |port: u16, peer: u16| {
                let socket = UdpSocket::bind(("127.0.0.1", port)).expect("bind");
                socket.connect(("127.0.0.1", peer)).expect("connect");
                socket.set_nonblocking(true).expect("nonblocking");
                socket
            };
            let (a, b) = (socket(7000, 7001), socket(7001, 7000));
            let mut arrived = Vec::new();
            let mut buffer = [0; 16];
            let mut take = || {
                while let Ok(length) = b.recv(&mut buffer) {
                    arrived.push(buffer[..length].to_vec());
                }
                arrived.len()
            };
            for number in 0..2000_u32 {
                a.send(&number.to_le_bytes()).expect("send");
                take();
            }
            // The kernel may leave the last ones for later.
            wait_for("every packet", || {
                let counts = injector.counts();
                counts.packets == 2000 && counts.lost as usize + take() == 2000
            });
            arrived
        };
        let (first, again, other) = (lost(1), lost(1), lost(2));
        assert!((1700..1900).contains(&first.len()), "{}", first.len());
        assert_eq!(first, again);
        assert_ne!(first, other);
    });
}
