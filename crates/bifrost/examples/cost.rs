// SPDX-License-Identifier: Apache-2.0

//! What the engine costs: two ends hand each other frames in memory, without sockets
//! and without loss, and each end's time is divided by the chunks. Prints one line for
//! each size of frame. Build it optimised.
#![allow(
    clippy::disallowed_methods,
    reason = "measures the engine; the engine reads no clock"
)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use causeway_bifrost::{
    Config, Engine, PathConfig, PathId, Refused, Release, Span, Transmit, Verdict,
};

const PATHS: u8 = 4;

fn address(path: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, path], 7000))
}

struct End {
    engine: Engine,
    batch: Transmit,
    spent: Duration,
    /// Datagrams of one batch on their way: path and bytes.
    out: Vec<(u8, Vec<u8>)>,
    free: Vec<Vec<u8>>,
}

impl End {
    fn new(instance: u64) -> End {
        let mut engine = Engine::new(Config::default(), instance).expect("defaults are valid");
        for path in 0..PATHS {
            let config = PathConfig {
                peer: address(path),
                mtu: 1500,
            };
            engine
                .add_path(0, PathId(path), config)
                .expect("the path is new");
        }
        End {
            engine,
            batch: Transmit::default(),
            spent: Duration::ZERO,
            out: Vec::new(),
            free: Vec::new(),
        }
    }

    fn timed<T>(&mut self, work: impl FnOnce(&mut Engine) -> T) -> T {
        let from = Instant::now();
        let value = work(&mut self.engine);
        self.spent += from.elapsed();
        value
    }

    /// Everything that is to be sent; only the engine's part is timed.
    fn transmit(&mut self, now_ns: u64) {
        let mut batch = std::mem::take(&mut self.batch);
        while self.timed(|engine| engine.poll_transmit(now_ns, &mut batch)) {
            let mut headers = &batch.headers[..];
            for segment in &batch.segments {
                let (header, rest) = headers.split_at(segment.header_len.into());
                headers = rest;
                let mut datagram = self.free.pop().unwrap_or_default();
                datagram.clear();
                datagram.extend_from_slice(header);
                let payload = segment.payload.len as usize + usize::from(segment.padding);
                let len = header.len() + payload;
                datagram.resize(len, 0);
                if segment.payload.len > 0 && segment.payload.offset == 0 {
                    // The least that passes for an IPv4 packet.
                    datagram[header.len() + 10] = 0x45;
                    datagram[header.len() + 13] = 20;
                }
                self.out.push((batch.path.0, datagram));
            }
        }
        self.batch = batch;
        while self
            .timed(Engine::poll_release)
            .is_some_and(|Release { .. }| true)
        {}
    }

    fn receive(&mut self, now_ns: u64, datagrams: &mut Vec<(u8, Vec<u8>)>) {
        let mut merged = merge(datagrams);
        let from = Instant::now();
        for (path, segment, bytes) in &mut merged {
            let span = Span {
                slot: 1,
                offset: 0,
                len: bytes.len() as u32,
            };
            let (path, peer) = (PathId(*path), address(*path));
            self.engine
                .handle_datagrams(now_ns, path, peer, (bytes, *segment), span);
        }
        while let Some(delivery) = self.engine.poll_deliver() {
            let token = delivery.token;
            self.engine.delivered(now_ns, token, Verdict::Ok);
        }
        self.spent += from.elapsed();
        self.free
            .extend(datagrams.drain(..).map(|(_, datagram)| datagram));
    }
}

/// As GRO does: datagrams of one path and one size, but for the last, lie in one buffer of at
/// most 64 KiB.
fn merge(datagrams: &[(u8, Vec<u8>)]) -> Vec<(u8, usize, Vec<u8>)> {
    let mut merged: Vec<(u8, usize, Vec<u8>)> = Vec::new();
    for (path, datagram) in datagrams {
        match merged.last_mut() {
            Some((last, segment, bytes))
                if last == path
                    && datagram.len() <= *segment
                    && bytes.len().is_multiple_of(*segment)
                    && bytes.len() + datagram.len() <= 65_507 =>
            {
                bytes.extend_from_slice(datagram);
            }
            _ => merged.push((*path, datagram.len(), datagram.clone())),
        }
    }
    merged
}

fn main() {
    let frames: u64 = std::env::args().nth(1).map_or(20_000, |count| {
        count.parse().expect("the argument is a number of frames")
    });
    let only: Option<u32> = std::env::args().nth(2).map(|len| {
        len.parse()
            .expect("the second argument is a frame's length in bytes")
    });
    let lengths = only.map_or(vec![100, 1500, 9000, 65_545], |len| vec![len]);
    for len in lengths {
        let mut ends = [End::new(1), End::new(2)];
        let mut now_ns = 1_000_000;
        let mut offered = 0;
        while ends[1].engine.metrics().frames_out < frames {
            now_ns += 50_000;
            for index in 0..2 {
                ends[index].timed(|engine| engine.handle_timeout(now_ns));
                let mut datagrams = std::mem::take(&mut ends[1 - index].out);
                ends[index].receive(now_ns, &mut datagrams);
                ends[1 - index]
                    .free
                    .extend(datagrams.into_iter().map(|(_, bytes)| bytes));
                while index == 0 && offered < frames && ends[0].engine.can_accept() {
                    let span = Span {
                        slot: 7,
                        offset: 0,
                        len,
                    };
                    let taken = ends[0].timed(|engine| engine.handle_frame(now_ns, span, offered));
                    offered += u64::from(taken.is_ok());
                }
                ends[index].transmit(now_ns);
            }
        }
        // Two probes of a path within a microsecond have the same answer.
        let refused = Refused::ALL
            .iter()
            .filter(|why| **why != Refused::Duplicate);
        let refused: u64 = refused
            .map(|why| ends[1].engine.metrics().refused(*why))
            .sum();
        assert_eq!(refused, 0, "datagrams are refused");
        let chunks = ends[0].engine.metrics().chunks_sent as f64;
        let [sender, receiver] = [0, 1].map(|end| ends[end].spent.as_nanos() as f64 / chunks);
        println!(
            "frames of {len:>5} bytes: {:>4.1} chunks a frame, sender {sender:>5.0} ns and receiver {receiver:>5.0} ns a chunk",
            chunks / frames as f64
        );
    }
}
