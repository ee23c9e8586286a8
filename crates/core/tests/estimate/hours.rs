// SPDX-License-Identifier: Apache-2.0
//! Connections that are kept open over pauses of an hour. What an echoed timestamp is compared
//! with goes round after 73 minutes.

use causeway_core::estimate::{Packet, WindowChain};

const MS: u64 = 1_000_000;
const MINUTE: u64 = 60_000 * MS;
const START_NS: u64 = 1_700_000_000_123_456_789;

/// A client with one request at a time, each answered after 2 ms.
struct Client {
    chain: WindowChain,
    now_ns: u64,
    asked: u32,
    echo_ms: u32,
}

impl Client {
    fn send(&mut self, len: u32) -> Vec<f64> {
        let packet = Packet {
            t_ns: self.now_ns,
            ip_len: 52 + len,
            payload_len: len,
            seq: 1 + self.asked * 100,
            ack: 1 + self.asked * 1000,
            tsecr: self.echo_ms,
            tcp_flags: Packet::ACK,
            has_ts: true,
            proto: Packet::TCP,
            opaque: false,
        };
        let samples = self.chain.packet(&packet);
        samples.iter().filter_map(|of| of.mean_ns()).collect()
    }

    /// Asks, and acknowledges the answer 40 ms after it has come. The samples, ms.
    fn ask_and_pause(&mut self, pause_ns: u64) -> Vec<f64> {
        let samples = self.send(100);
        self.asked += 1;
        self.now_ns += 2 * MS;
        self.echo_ms = (self.now_ns / MS) as u32;
        self.now_ns += 40 * MS;
        self.send(0);
        self.now_ns += pause_ns - 40 * MS;
        samples.iter().map(|ns| ns / MS as f64).collect()
    }
}

#[test]
fn pauses_are_seen_behind_one_of_any_length() {
    for minutes in [10, 17, 19, 35, 40, 56, 60, 70, 72, 75, 130, 24 * 60] {
        let mut client = Client {
            chain: WindowChain::default(),
            now_ns: START_NS,
            asked: 0,
            echo_ms: (START_NS / MS) as u32,
        };
        client.send(0);
        client.now_ns += MS;
        for _ in 0..20 {
            client.ask_and_pause(300 * MS);
        }
        client.ask_and_pause(minutes * MINUTE);
        let mut seen = 0;
        for turn in 0..40 {
            for latency_ms in client.ask_and_pause((300 + turn % 7) * MS) {
                // With the delay of an acknowledgement at most.
                assert!(
                    (1.0..45.0).contains(&latency_ms),
                    "{latency_ms} ms in turn {turn} behind a pause of {minutes} minutes"
                );
                seen += 1;
            }
        }
        // All but the last turns, which nothing follows.
        assert!(seen >= 38, "{seen} behind a pause of {minutes} minutes");
    }
}
