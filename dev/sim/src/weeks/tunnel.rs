// SPDX-License-Identifier: Apache-2.0
//! The tunnel's transport: two ends that are idle, cut off from each other and busy, for
//! seconds to days.

use std::net::SocketAddr;

use causeway_bifrost::wire::CommonHeader;
use causeway_bifrost::{
    DeliveryVerdict, PathConfig, PathId, Span, Transmit, TransportConfig, TransportEngine,
    VNET_HEADER_LEN,
};
use rand::Rng as _;

use super::{BrokenProperty, HOUR, Life, MINUTE, MS, Machine, SECOND, US};

pub(super) const TUNNEL: Machine = Machine {
    name: "tunnel",
    wraps: "stamps in us (71.6 min), packet and frame numbers (begin 64 before 2^32)",
    planted: "one end's clock is a u32 of us",
    run: tunnel,
};

const SLOT: u32 = 7;
/// Of a u32 of microseconds.
const ROUND_NS: u64 = US << 32;
/// A datagram's way.
const WAY_NS: u64 = 100 * US;

fn peer() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 7000))
}

struct Ends {
    engines: [TransportEngine; 2],
    planted: bool,
    batch: Transmit,
}

impl Ends {
    fn new(planted: bool) -> Option<Self> {
        let engine = |instance| {
            let mut engine = TransportEngine::new(TransportConfig::default(), instance).ok()?;
            let path = PathConfig {
                peer: peer(),
                mtu: 1500,
            };
            engine.add_path(0, PathId(0), path).ok()?;
            Some(engine)
        };
        Some(Self {
            engines: [engine(1)?, engine(2)?],
            planted,
            batch: Transmit::default(),
        })
    }

    /// What an end takes for the time.
    fn clock_ns(&self, end: usize, now_ns: u64) -> u64 {
        match self.planted && end == 0 {
            true => now_ns % ROUND_NS,
            false => now_ns,
        }
    }

    /// What an end has to send now; payload is the least that passes for a packet.
    fn sent(&mut self, end: usize, now_ns: u64) -> Vec<Vec<u8>> {
        let (mut out, now_ns) = (Vec::new(), self.clock_ns(end, now_ns));
        while self.engines[end].poll_transmit(now_ns, &mut self.batch) {
            let mut headers = &self.batch.headers[..];
            for segment in &self.batch.datagrams {
                let (header, rest) = headers.split_at(segment.header_len.into());
                headers = rest;
                let mut datagram = header.to_vec();
                let len = header.len() + segment.payload.len as usize;
                datagram.resize(len + usize::from(segment.padding), 0);
                if segment.payload.len > 0 && segment.payload.offset == 0 {
                    datagram[header.len() + VNET_HEADER_LEN] = 0x45;
                    datagram[header.len() + VNET_HEADER_LEN + 3] = 20;
                }
                out.push(datagram);
            }
        }
        out
    }

    fn receive(&mut self, end: usize, now_ns: u64, datagrams: Vec<Vec<u8>>) {
        for mut bytes in datagrams {
            let Ok(header) = CommonHeader::parse(&bytes) else {
                continue;
            };
            let (segment, path) = (bytes.len(), PathId(header.path));
            let span = Span {
                slot: SLOT,
                offset: 0,
                len: bytes.len() as u32,
            };
            let now_ns = self.clock_ns(end, now_ns);
            self.engines[end].handle_datagrams(now_ns, path, peer(), (&mut bytes, segment), span);
        }
    }

    /// Lets time pass; while `cut` all datagrams are lost.
    fn live(&mut self, life: &mut Life, until_ns: u64, cut: bool) {
        while life.now_ns < until_ns {
            let from = [self.sent(0, life.now_ns), self.sent(1, life.now_ns)];
            let wait_ns = match from.iter().all(Vec::is_empty) {
                true => {
                    let due = [0, 1].map(|end| {
                        let now_ns = self.clock_ns(end, life.now_ns);
                        let due_ns = self.engines[end].poll_timeout()?;
                        Some(due_ns.saturating_sub(now_ns))
                    });
                    let wait_ns = due.into_iter().flatten().min().unwrap_or(u64::MAX);
                    wait_ns.max(US)
                }
                false => WAY_NS,
            };
            life.wait(wait_ns.min(until_ns - life.now_ns).max(1), ROUND_NS);
            let [from_a, from_b] = from;
            if !cut {
                self.receive(1, life.now_ns, from_a);
                self.receive(0, life.now_ns, from_b);
            }
            for end in [0, 1] {
                let now_ns = self.clock_ns(end, life.now_ns);
                self.engines[end].handle_timeout(now_ns);
            }
            life.steps += 1;
        }
    }

    /// Whether a frame comes through within 10 ms.
    fn passes(&mut self, life: &mut Life, from: usize) -> bool {
        let span = Span {
            slot: SLOT,
            offset: 0,
            len: 200,
        };
        let now_ns = self.clock_ns(from, life.now_ns);
        if self.engines[from].handle_frame(now_ns, span, 1).is_err() {
            return false;
        }
        self.live(life, life.now_ns + 10 * MS, false);
        let to = 1 - from;
        let now_ns = self.clock_ns(to, life.now_ns);
        let Some(token) = self.engines[to].poll_deliver().map(|of| of.token) else {
            return false;
        };
        self.engines[to].delivered(now_ns, token, DeliveryVerdict::Ok);
        true
    }
}

fn tunnel(life: &mut Life) -> Result<(), BrokenProperty> {
    life.begin_around(ROUND_NS);
    let Some(mut ends) = Ends::new(life.plan.planted) else {
        return life.holds(false, || "an engine does not begin".to_owned());
    };
    let until_ns = life.now_ns + SECOND;
    ends.live(life, until_ns, false);
    while life.lasts() {
        let (cut, length_ns) = match life.rng.random_range(0..8) {
            0 => (true, life.rng.random_range(36 * MINUTE..72 * MINUTE)),
            1 => (true, life.rng.random_range(SECOND..3 * HOUR)),
            2 => (false, 72 * MINUTE),
            3 => (false, life.rng.random_range(MINUTE..3 * HOUR)),
            _ => (false, life.rng.random_range(MS..MINUTE)),
        };
        let until_ns = life.now_ns + length_ns;
        ends.live(life, until_ns, cut);
        if cut {
            let until_ns = life.now_ns + 200 * MS;
            ends.live(life, until_ns, false);
        }
        for from in [0, 1] {
            let passes = ends.passes(life, from);
            life.holds(passes, || {
                let what = if cut { "a cut" } else { "rest" };
                format!("no frame passes behind {what} of {} s", length_ns / SECOND)
            })?;
        }
    }
    Ok(())
}
