// SPDX-License-Identifier: Apache-2.0
//! Seeded traffic: closed-loop clients over TCP or datagrams, as a vantage point
//! sees them, and packets without any sense. The differential test of the BPF
//! program includes this file too.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use causeway_core::estimate::Packet;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// SplitMix64 (Steele, Lea, Flood, 2014).
pub(crate) struct Rng(pub u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 up to, not including, `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    pub(crate) fn within(&mut self, from: u64, end: u64) -> u64 {
        from + self.below(end - from)
    }

    pub(crate) fn permille(&mut self, share: u64) -> bool {
        self.below(1000) < share
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// How a server's time varies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Service {
    Constant,
    /// Between half and one and a half of the mean.
    Uniform,
    /// Mostly short, at times ten times as long.
    Heavy,
}

/// One client with one connection.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub tcp: bool,
    pub timestamps: bool,
    pub window: u64,
    pub service: Service,
    pub service_ns: u64,
    /// All requests of a burst take the same time.
    pub batch: bool,
    pub path_ns: u64,
    pub pages: u64,
    pub page_requests: u64,
    pub think_ns: u64,
    pub request_bytes: u32,
    pub response_bytes: u32,
    pub loss_permille: u64,
    pub reorder_permille: u64,
}

impl Client {
    /// Some client; windows from 1 to 16, latencies from 0.2 to 80 ms.
    pub(crate) fn random(rng: &mut Rng) -> Self {
        let tcp = rng.permille(600);
        Self {
            tcp,
            timestamps: tcp && rng.permille(700),
            window: rng.pick(&[1, 1, 2, 3, 4, 4, 6, 8, 12, 16]),
            service: rng.pick(&[Service::Constant, Service::Uniform, Service::Heavy]),
            service_ns: rng.pick(&[200, 1_000, 2_000, 5_000, 20_000, 80_000]) * US,
            batch: rng.permille(300),
            path_ns: rng.pick(&[30, 50, 200, 900, 5_000, 20_000]) * US,
            pages: rng.within(1, 8),
            page_requests: rng.within(10, 120),
            think_ns: rng.pick(&[0, 3, 30, 400]) * MS,
            request_bytes: rng.pick(&[80, 120, 400, 1200, 3000]),
            response_bytes: rng.pick(&[60, 900, 6_000, 40_000]),
            loss_permille: rng.pick(&[0, 0, 0, 10]),
            reorder_permille: rng.pick(&[0, 0, 0, 250]),
        }
    }

    /// What passes the vantage point, in order of time.
    pub(crate) fn packets(&self, rng: &mut Rng, start_ns: u64) -> Vec<Packet> {
        let mut run = Run::new(self, rng, start_ns);
        run.handshake();
        for _ in 0..self.pages {
            run.page();
        }
        run.finish()
    }

    fn service(&self, rng: &mut Rng) -> u64 {
        let mean = self.service_ns;
        match self.service {
            Service::Constant => mean,
            Service::Uniform => mean / 2 + rng.below(mean),
            Service::Heavy if rng.permille(50) => mean * 5 + rng.below(mean * 10),
            Service::Heavy => mean / 4 + rng.below(mean),
        }
    }
}

/// A connection in progress.
struct Run<'a> {
    client: &'a Client,
    rng: &'a mut Rng,
    now: u64,
    seq: u32,
    ack: u32,
    /// When the server sent what `ack` acknowledges.
    echo_ns: u64,
    packets: Vec<Packet>,
}

impl<'a> Run<'a> {
    fn new(client: &'a Client, rng: &'a mut Rng, start_ns: u64) -> Self {
        let seq = rng.next() as u32;
        Self {
            client,
            seq,
            ack: rng.next() as u32,
            rng,
            now: start_ns,
            echo_ns: start_ns,
            packets: Vec::new(),
        }
    }

    fn packet(&self, t_ns: u64, payload_len: u32) -> Packet {
        let tcp = self.client.tcp;
        let header = match (tcp, self.client.timestamps) {
            (true, true) => 52,
            (true, false) => 40,
            (false, _) => 28,
        };
        Packet {
            t_ns,
            ip_len: payload_len + header,
            payload_len,
            seq: if tcp { self.seq } else { 0 },
            ack: if tcp { self.ack } else { 0 },
            tsecr: if self.client.timestamps {
                (self.echo_ns / MS) as u32
            } else {
                0
            },
            tcp_flags: if tcp { Packet::ACK } else { 0 },
            has_ts: self.client.timestamps,
            proto: if tcp { Packet::TCP } else { Packet::UDP },
            opaque: false,
        }
    }

    fn handshake(&mut self) {
        if self.client.tcp {
            let syn = Packet {
                tcp_flags: Packet::SYN,
                ack: 0,
                tsecr: 0,
                ..self.packet(self.now, 0)
            };
            self.packets.push(syn);
            self.seq = self.seq.wrapping_add(1);
            self.now += self.client.path_ns;
            self.echo_ns = self.now - self.client.path_ns / 2;
            self.packets.push(self.packet(self.now, 0));
        }
        self.now += self.rng.within(10, 500) * US;
    }

    /// The client acknowledges `bytes` that the server sent at `sent_ns`.
    fn receive(&mut self, bytes: u32, sent_ns: u64) {
        self.ack = self.ack.wrapping_add(bytes);
        self.echo_ns = self.echo_ns.max(sent_ns);
    }

    fn page(&mut self) {
        let Client {
            window, path_ns, ..
        } = *self.client;
        let mut left = self.client.page_requests;
        // Arrivals of complete responses.
        let mut open = BinaryHeap::new();
        let first = window.min(left);
        left -= first;
        self.burst(first, &mut open);
        while let Some(Reverse(arrival)) = open.pop() {
            self.now = self.now.max(arrival);
            let mut done = 1;
            while open
                .peek()
                .is_some_and(|Reverse(next)| *next <= self.now + 5 * US)
            {
                open.pop();
                done += 1;
            }
            self.responses(done, self.now - path_ns / 2);
            let next = done.min(left);
            left -= next;
            self.burst(next, &mut open);
        }
        self.now += self.client.think_ns / 2 + self.rng.below(self.client.think_ns + 1);
    }

    /// ACKs while `count` responses come in; the last stretch is acknowledged by
    /// the next request, or by an ACK of its own where none follows at once.
    fn responses(&mut self, count: u64, sent_ns: u64) {
        let bytes = self.client.response_bytes;
        for _ in 0..count {
            if bytes > 3000 {
                let t_ns = self.now.saturating_sub(self.rng.below(40 * US));
                self.receive(bytes / 2, sent_ns);
                let size = self.rng.within(30, 50) as u32;
                let ack = if self.client.tcp { 0 } else { size };
                self.packets.push(self.packet(t_ns, ack));
                self.receive(bytes - bytes / 2, sent_ns);
            } else {
                self.receive(bytes, sent_ns);
            }
        }
        if self.rng.permille(500) {
            let size = self.rng.within(30, 50) as u32;
            let ack = if self.client.tcp { 0 } else { size };
            self.packets.push(self.packet(self.now, ack));
            self.now += self.rng.below(20 * US);
        }
    }

    /// Sends `count` requests back to back and plans their responses.
    fn burst(&mut self, count: u64, open: &mut BinaryHeap<Reverse<u64>>) {
        let shared = self.client.service(self.rng);
        let mut left = count;
        while left > 0 {
            // Datagrams often carry several small requests.
            let together = if self.client.tcp || self.client.request_bytes > 400 {
                1
            } else {
                1 + self.rng.below(left.min(3))
            };
            let delay = self.request(together as u32);
            for _ in 0..together {
                let service = if self.client.batch {
                    shared
                } else {
                    self.client.service(self.rng)
                };
                open.push(Reverse(self.now + delay + self.client.path_ns + service));
            }
            left -= together;
            self.now += self.rng.within(2, 12) * US;
        }
    }

    /// One request, or several in one datagram. Returns what its loss costs.
    fn request(&mut self, together: u32) -> u64 {
        const SEGMENT: u32 = 1448;
        let mut bytes = self.client.request_bytes * together + u32::from(!self.client.tcp) * 21;
        let mut delay = 0;
        let mut t_ns = self.now;
        while bytes > 0 {
            let len = bytes.min(SEGMENT);
            let mut packet = self.packet(t_ns, len);
            if self.rng.permille(self.client.loss_permille) {
                delay = 200 * MS;
                packet.t_ns += delay;
            } else if self.rng.permille(self.client.reorder_permille) {
                packet.t_ns += self.rng.within(100, 1000) * US;
            }
            self.packets.push(packet);
            if self.rng.permille(self.client.loss_permille) {
                // A needless retransmission.
                packet.t_ns += 3 * MS;
                self.packets.push(packet);
            }
            self.seq = self.seq.wrapping_add(len);
            bytes -= len;
            t_ns += self.rng.within(1, 4) * US;
        }
        self.now = t_ns;
        delay
    }

    fn finish(mut self) -> Vec<Packet> {
        if self.client.tcp {
            self.packets.push(Packet {
                tcp_flags: Packet::FIN | Packet::ACK,
                ..self.packet(self.now, 0)
            });
        }
        self.packets.sort_by_key(|packet| packet.t_ns);
        self.packets
    }
}

/// Packets of one flow without sense: every field jumps, time too.
pub(crate) fn nonsense(rng: &mut Rng, start_ns: u64, count: usize) -> Vec<Packet> {
    let mut t_ns = start_ns;
    let (mut seq, mut ack) = (rng.next() as u32, rng.next() as u32);
    let proto = rng.pick(&[Packet::TCP, Packet::UDP]);
    (0..count)
        .map(|_| {
            let step = rng.pick(&[
                0,
                1,
                30 * US,
                MS,
                70 * MS,
                300 * MS,
                3_000 * MS,
                130_000 * MS,
            ]);
            t_ns += rng.below(step + 1);
            if rng.permille(20) {
                t_ns -= rng.pick(&[1, MS, 1_000 * MS]);
            }
            let jump = rng.pick(&[0, 0, 1, 100, 1460, 70_000, 0x8000_0000]);
            ack = ack.wrapping_add(rng.below(jump + 1) as u32);
            seq = seq.wrapping_add(rng.pick(&[0, 0, 0, 100, 1460, 66_000]));
            let back = if rng.permille(200) {
                rng.below(3000) as u32
            } else {
                0
            };
            let payload_len = rng.pick(&[0, 0, 22, 59, 60, 61, 120, 240, 700, 1448]);
            let tcp = proto == Packet::TCP;
            let packet = Packet {
                t_ns,
                ip_len: payload_len + if tcp { 52 } else { 28 },
                payload_len,
                seq: if tcp { seq.wrapping_sub(back) } else { 0 },
                ack: if tcp { ack.wrapping_sub(back) } else { 0 },
                tsecr: if tcp {
                    (t_ns / MS) as u32 - rng.below(2000) as u32
                } else {
                    0
                },
                has_ts: tcp,
                tcp_flags: match (tcp, rng.below(100)) {
                    (false, _) => 0,
                    (true, 0) => Packet::SYN,
                    (true, 1) => Packet::FIN | Packet::ACK,
                    (true, 2) => Packet::RST,
                    (true, _) => Packet::ACK,
                },
                proto,
                opaque: false,
            };
            seq = seq.wrapping_add(payload_len);
            packet
        })
        .collect()
}
