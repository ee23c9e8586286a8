// SPDX-License-Identifier: Apache-2.0

//! How much of its paths the engine fills, in virtual time: bulk flows with a fixed number
//! of frames under way, over lines with a rate and a short queue, at several losses. What
//! TCP and the machine add to it is not in here. `fill KEY=VALUE...`; keys and defaults are
//! in `main`.
#![allow(
    clippy::disallowed_methods,
    reason = "the engine is under test here, not under these rules"
)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;

use causeway_bifrost::{Config, Engine, PathConfig, PathId, Span, Transmit, Verdict};
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

/// Bytes of Ethernet, IP and UDP headers around a datagram.
const HEADERS: u64 = 14 + 20 + 8;

#[derive(Clone, Copy)]
struct Shape {
    paths: usize,
    /// Bytes a second.
    rate: f64,
    queue: u64,
    delay_ns: u64,
    flows: u64,
    /// Of each flow, under way.
    frames: usize,
    frame: u32,
    /// An end looks at what has come this long after it came, at most.
    turn_ns: u64,
    end_ns: u64,
    seed: u64,
}

/// One direction of a path.
#[derive(Clone, Copy, Default)]
struct Line {
    free_ns: u64,
    bytes: u64,
    overflowed: u64,
    lost: u64,
}

struct End {
    engine: Engine,
    batch: Transmit,
    inbox: Vec<(usize, Vec<u8>)>,
    wake_ns: u64,
    /// Flows with something to send.
    ready: VecDeque<u64>,
    delivered: u64,
}

enum Event {
    Arrive(usize, usize, Vec<u8>),
    Wake(usize),
    /// The flow's sender hears that a frame has been delivered.
    Heard(u64),
}

struct World {
    shape: Shape,
    loss: f64,
    ends: [End; 2],
    lines: Vec<[Line; 2]>,
    agenda: BinaryHeap<Reverse<(u64, usize)>>,
    events: Vec<Option<Event>>,
    rng: Pcg64Mcg,
}

fn address(path: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, path as u8], 7000))
}

impl World {
    fn new(shape: Shape, loss: f64) -> World {
        let end = |instance| {
            let mut engine = Engine::new(Config::default(), instance).expect("defaults are valid");
            for path in 0..shape.paths {
                let config = PathConfig {
                    peer: address(path),
                    mtu: 1500,
                };
                engine
                    .add_path(0, PathId(path as u8), config)
                    .expect("the path is new");
            }
            End {
                engine,
                batch: Transmit::default(),
                inbox: Vec::new(),
                wake_ns: u64::MAX,
                ready: VecDeque::new(),
                delivered: 0,
            }
        };
        let mut world = World {
            shape,
            loss,
            ends: [end(1), end(2)],
            lines: vec![[Line::default(); 2]; shape.paths],
            agenda: BinaryHeap::new(),
            events: Vec::new(),
            rng: Pcg64Mcg::seed_from_u64(shape.seed),
        };
        for _ in 0..shape.frames {
            world.ends[0].ready.extend(0..shape.flows);
        }
        world.wake(0, 1_000_000);
        world.wake(1, 1_000_000);
        world
    }

    fn plan(&mut self, at_ns: u64, event: Event) {
        self.agenda.push(Reverse((at_ns, self.events.len())));
        self.events.push(Some(event));
    }

    fn wake(&mut self, end: usize, at_ns: u64) {
        if at_ns < self.ends[end].wake_ns {
            self.ends[end].wake_ns = at_ns;
            self.plan(at_ns, Event::Wake(end));
        }
    }

    fn run(&mut self) {
        while let Some(Reverse((now_ns, number))) = self.agenda.pop()
            && now_ns < self.shape.end_ns
        {
            match self.events[number].take() {
                Some(Event::Arrive(end, path, datagram)) => {
                    self.ends[end].inbox.push((path, datagram));
                    let turn = self.rng.random_range(0..=self.shape.turn_ns);
                    self.wake(end, now_ns + turn);
                }
                Some(Event::Heard(flow)) => {
                    self.ends[0].ready.push_back(flow);
                    self.wake(0, now_ns);
                }
                Some(Event::Wake(end)) if self.ends[end].wake_ns == now_ns => {
                    self.ends[end].wake_ns = u64::MAX;
                    self.turn(end, now_ns);
                }
                _ => {}
            }
        }
    }

    fn turn(&mut self, index: usize, now_ns: u64) {
        let end = &mut self.ends[index];
        for (path, mut datagram) in end.inbox.drain(..) {
            let span = Span {
                slot: 1,
                offset: 0,
                len: datagram.len() as u32,
            };
            let id = PathId(path as u8);
            // What is refused is counted there.
            let _ = end
                .engine
                .handle_datagram(now_ns, id, address(path), &mut datagram, span);
        }
        end.engine.handle_timeout(now_ns);
        let mut heard = Vec::new();
        while let Some(delivery) = end.engine.poll_deliver() {
            let (token, flow) = (delivery.token, delivery.flow);
            end.delivered += u64::from(delivery.len);
            heard.push(u64::from(flow));
            end.engine.delivered(now_ns, token, Verdict::Ok);
        }
        while end.engine.can_accept()
            && let Some(flow) = end.ready.pop_front()
        {
            let span = Span {
                slot: 7,
                offset: 0,
                len: self.shape.frame,
            };
            if end.engine.handle_frame(now_ns, span, flow).is_err() {
                end.ready.push_front(flow);
                break;
            }
        }
        let mut batch = std::mem::take(&mut self.ends[index].batch);
        while self.ends[index].engine.poll_transmit(now_ns, &mut batch) {
            self.carry(index, now_ns, &batch);
        }
        let end = &mut self.ends[index];
        end.batch = batch;
        while end.engine.poll_release().is_some() {}
        while end.engine.poll_event().is_some() {}
        let next_ns = end.engine.poll_timeout();
        // TCP's own acknowledgement takes its time, too.
        let back_ns = self.shape.delay_ns + self.shape.turn_ns;
        for flow in heard {
            self.plan(now_ns + back_ns, Event::Heard(flow));
        }
        if let Some(next_ns) = next_ns {
            self.wake(index, next_ns.max(now_ns + 1));
        }
    }

    fn carry(&mut self, from: usize, now_ns: u64, batch: &Transmit) {
        let mut headers = &batch.headers[..];
        let path = usize::from(batch.path.0);
        for segment in &batch.segments {
            let (header, rest) = headers.split_at(segment.header_len.into());
            headers = rest;
            let mut datagram = header.to_vec();
            let len = header.len() + segment.payload.len as usize;
            datagram.resize(len + usize::from(segment.padding), 0);
            if segment.payload.len > 0 && segment.payload.offset == 0 {
                // The least that passes for an IPv4 packet.
                datagram[header.len() + 10] = 0x45;
                datagram[header.len() + 13] = 20;
            }
            let (rate, queue) = (self.shape.rate, self.shape.queue);
            let line = &mut self.lines[path][from];
            let len = datagram.len() as u64 + HEADERS;
            let waiting = line.free_ns.saturating_sub(now_ns) as f64 * rate / 1e9;
            if waiting as u64 + len > queue {
                line.overflowed += 1;
                continue;
            }
            line.free_ns = line.free_ns.max(now_ns) + (len as f64 * 1e9 / rate) as u64;
            line.bytes += len;
            let at_ns = line.free_ns + self.shape.delay_ns;
            if self.loss > 0.0 && self.rng.random_bool(self.loss) {
                line.lost += 1;
                continue;
            }
            self.plan(at_ns, Event::Arrive(1 - from, path, datagram));
        }
    }
}

fn main() {
    let value = |name: &str, default: f64| {
        let found = std::env::args().skip(1).find_map(|argument| {
            let (key, value) = argument.split_once('=')?;
            (key == name).then(|| value.parse().expect("a number"))
        });
        found.unwrap_or(default)
    };
    let rate = value("mbit", 250.0) * 125_000.0;
    let seconds = value("seconds", 2.0);
    let shape = |seed| Shape {
        paths: value("paths", 4.0) as usize,
        rate,
        queue: (rate * value("queue_ms", 4.0) / 1e3) as u64,
        delay_ns: (value("delay_us", 30.0) * 1e3) as u64,
        flows: value("flows", 4.0) as u64,
        frames: value("frames", 8.0) as usize,
        frame: value("bytes", 55_000.0) as u32,
        turn_ns: (value("turn_us", 50.0) * 1e3) as u64,
        end_ns: (seconds * 1e9) as u64,
        seed,
    };
    let seeds = value("seeds", 3.0) as u64;
    for loss in [0.0, 0.01, 0.02] {
        let (mut goodput, mut busy, mut resent, mut overflowed) = (0.0, 0.0, 0.0, 0);
        for seed in 0..seeds {
            let shape = shape(seed);
            let mut world = World::new(shape, loss);
            world.run();
            let line = shape.rate * shape.paths as f64 * seconds;
            let metrics = world.ends[0].engine.metrics();
            goodput += world.ends[1].delivered as f64 / line / seeds as f64;
            let carried: u64 = world.lines.iter().map(|pair| pair[0].bytes).sum();
            busy += carried as f64 / line / seeds as f64;
            resent += metrics.chunks_resent as f64 / metrics.chunks_sent as f64 / seeds as f64;
            overflowed += world
                .lines
                .iter()
                .map(|pair| pair[0].overflowed)
                .sum::<u64>();
            if seed == 0 && value("paths_told", 0.0) > 0.0 {
                for path in 0..shape.paths {
                    let at = world.ends[0].engine.path_metrics(PathId(path as u8));
                    let Some(at) = at else { continue };
                    println!(
                        "  path {path}: window {} B, srtt {} us, lowest {} us, moves {}, sent {}, timeouts {}, gaps {}, spurious {}",
                        at.window_bytes,
                        at.srtt_ns / 1000,
                        at.min_rtt_ns / 1000,
                        at.moves,
                        at.sent_chunks,
                        at.timeouts,
                        at.lost_by_gap,
                        at.spurious
                    );
                }
            }
        }
        println!(
            "{:>4.1} % loss: {:5.1} % of the lines delivered, {:5.1} % busy, {:.3} % sent again, {overflowed} overflowed",
            100.0 * loss,
            100.0 * goodput,
            100.0 * busy,
            100.0 * resent
        );
    }
}
