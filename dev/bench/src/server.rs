// SPDX-License-Identifier: Apache-2.0
//! What a server's traffic control programs cost per segment: cookies out and in of open
//! connections, and the accounting of SYNs for a connection that opens.
//!
//! A batch is one BPF_PROG_TEST_RUN of many repeats, whose every segment is another
//! connection's (bpf/segments.bpf.c). Net is gross minus a program that does nothing, of the
//! same round; medians over the rounds are given. On a server both ways are mostly on two
//! CPUs, so they are also run at once, each on a CPU of its own, on the same connections.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Barrier;

use causeway_dataplane::abi::{Plain as _, ServerCookie, VipKey, addr_bytes};
use causeway_dataplane::skel::server::{ServerSkel, ServerSkelBuilder};
use causeway_dataplane::skel::syn::{SynSkel, SynSkelBuilder};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, OpenObject, ProgramInput, ProgramMut};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::Serialize;

use crate::dataplane::{BenchError, alone, failed, median, tenths, trimmed_mean};
use crate::skel::segments::{SegmentsSkel, SegmentsSkelBuilder};

/// A frame as long as what is written into it, with a type that the kernel knows.
const FRAME: [u8; 130] = {
    let mut frame = [0; 130];
    frame[12] = 8;
    frame
};
/// TC_ACT_UNSPEC.
const GO_ON: u32 = u32::MAX;
/// Slots of time of the accounting of SYNs, as an agent has them.
const SYN_SLOTS: u32 = 512;
/// The interface of BPF_PROG_TEST_RUN.
const LOOPBACK: u32 = 1;

/// How much to measure.
#[derive(Clone, Debug)]
pub struct ServerPlan {
    /// Numbers of open connections, each up to 20,000.
    pub connections: Vec<u32>,
    /// Rounds for each.
    pub rounds: u32,
    /// Batches of a case in a round.
    pub batches: u32,
    /// Segments in a batch, at most what 4,000 passes make.
    pub batch: u32,
}

impl ServerPlan {
    /// What is quoted: seconds.
    pub fn full() -> Self {
        Self {
            connections: vec![1, 32, 10_000],
            rounds: 21,
            batches: 10,
            batch: 4000,
        }
    }

    /// Enough to see that everything runs.
    pub fn tiny() -> Self {
        Self {
            connections: vec![1, 32],
            rounds: 2,
            batches: 2,
            batch: 200,
        }
    }
}

/// One case at one number of connections.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServerRow {
    /// The case's name.
    pub case: &'static str,
    /// Connections that its segments are of; 0: each of a new one.
    pub connections: u32,
    /// CPUs at work on them, one for each way.
    pub cpus: u32,
    /// Time of one segment with its preparation, ns.
    #[serde(serialize_with = "tenths")]
    pub gross_ns: f64,
    /// The same without what a program that does nothing takes, ns.
    #[serde(serialize_with = "tenths")]
    pub net_ns: f64,
    /// Rounds that the medians are of.
    pub rounds: u32,
    /// What the times are of.
    pub unit: &'static str,
}

/// Which segments `bench_segment` writes; `enum segment_kind`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Out = 0,
    In = 1,
    Syn = 2,
    SynAck = 3,
    Ack = 4,
}

/// Times of a case and of nothing, by round.
#[derive(Default)]
struct Times {
    gross_ns: Vec<f64>,
    empty_ns: Vec<f64>,
}

impl Times {
    fn row(mut self, case: &'static str, connections: u32, cpus: u32) -> ServerRow {
        let pairs = self.gross_ns.iter().zip(&self.empty_ns);
        let mut net_ns: Vec<f64> = pairs.map(|(gross, empty)| gross - empty).collect();
        ServerRow {
            case,
            connections,
            cpus,
            net_ns: median(&mut net_ns),
            gross_ns: median(&mut self.gross_ns),
            rounds: self.empty_ns.len() as u32,
            unit: "ns/segment",
        }
    }
}

/// The programs of `bpf/segments.bpf.c`.
struct Segments<'o> {
    skel: SegmentsSkel<'o>,
}

impl<'o> Segments<'o> {
    /// With the lines of this server.
    fn load(
        storage: &'o mut MaybeUninit<OpenObject>,
        server: &ServerSkel<'_>,
    ) -> Result<Self, BenchError> {
        let mut open = SegmentsSkelBuilder::default()
            .open(storage)
            .map_err(failed("opening segments.bpf.o"))?;
        let theirs = &server.maps;
        for (map, theirs) in [
            (&mut open.maps.timestamp_cache, &theirs.timestamp_cache),
            (&mut open.maps.timestamp_clocks, &theirs.timestamp_clocks),
        ] {
            map.reuse_fd(theirs.as_fd())
                .map_err(failed("sharing a map"))?;
        }
        let skel = open.load().map_err(failed("loading segments.bpf.o"))?;
        Ok(Self { skel })
    }

    /// The least that the accounting of SYNs does.
    fn clients_floor(&self) -> i32 {
        self.skel.progs.floor_clients.as_fd().as_raw_fd()
    }

    fn nothing(&self) -> i32 {
        self.skel.progs.bench_pass.as_fd().as_raw_fd()
    }

    /// Gives this many connections their clocks, as they were at first.
    fn lend(&mut self, connections: u32) -> Result<(), BenchError> {
        let mut listed = 0;
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            (bss.segments.connections, bss.segments.position) = (connections, 0);
            listed = bss.segments.listed;
        }
        // Some candidates share a line with others.
        let tries = if listed < connections {
            2 * connections
        } else {
            connections
        };
        test_run(&self.skel.progs.bench_lend, tries)?;
        let bss = self.skel.maps.bss_data.as_deref();
        let lent = bss.map_or(0, |bss| bss.segments.position);
        check("lending clocks", connections, lent.into(), connections)
    }

    /// Nanoseconds a segment through `program`.
    fn batch(
        &mut self,
        program: i32,
        kind: Kind,
        connections: u32,
        count: u32,
    ) -> Result<f64, BenchError> {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            let segments = &mut bss.segments;
            (segments.kind, segments.connections) = (kind as u32, connections);
            (segments.position, segments.pass) = (0, 0);
        }
        let under_test = &self.skel.maps.under_test;
        under_test
            .update(&0u32.to_ne_bytes(), &program.to_ne_bytes(), MapFlags::ANY)
            .map_err(failed("selecting the program under test"))?;
        test_run(&self.skel.progs.bench_segment, count)
    }

    /// New tuples so far, which the next ones come behind.
    fn opened(&mut self) -> Option<&mut u32> {
        let bss = self.skel.maps.bss_data.as_deref_mut();
        bss.map(|bss| &mut bss.segments.opened)
    }
}

/// Mean nanoseconds of a run.
fn test_run(program: &ProgramMut<'_>, count: u32) -> Result<f64, BenchError> {
    let run = program
        .test_run(ProgramInput {
            data_in: Some(&FRAME),
            repeat: count,
            ..Default::default()
        })
        .map_err(failed("BPF_PROG_TEST_RUN"))?;
    check("segments", 0, u64::from(run.return_value), GO_ON)?;
    Ok(run.duration.as_nanos() as f64)
}

/// All of a case's segments went the way that it measures.
fn check(case: &'static str, flows: u32, counted: u64, shots: u32) -> Result<(), BenchError> {
    if counted == u64::from(shots) {
        return Ok(());
    }
    Err(BenchError::WrongVerdict {
        case,
        flows,
        counted,
        shots: shots.into(),
        verdict: "as they should be",
    })
}

pub fn run(plan: &ServerPlan) -> Result<Vec<ServerRow>, BenchError> {
    alone(|| {
        let mut rows = Vec::new();
        for &connections in &plan.connections {
            rows.extend(cookies(plan, connections)?);
        }
        rows.extend(opening(plan)?);
        Ok(rows)
    })
}

/// Cookies out and in, on one CPU and at once on two.
fn cookies(plan: &ServerPlan, connections: u32) -> Result<Vec<ServerRow>, BenchError> {
    let mut storage = [const { MaybeUninit::uninit() }; 3];
    let [server, of_out, of_in] = &mut storage;
    let server = ServerSkelBuilder::default()
        .open(server)
        .and_then(|open| open.load())
        .map_err(failed("loading server.bpf.o"))?;
    let mut ways = [
        Segments::load(of_out, &server)?,
        Segments::load(of_in, &server)?,
    ];
    let programs = [
        server.progs.causeway_cookie_out.as_fd().as_raw_fd(),
        server.progs.causeway_cookie_in.as_fd().as_raw_fd(),
    ];
    let count = plan.batch.max(connections);
    let mut rows = Vec::new();

    for (way, (name, kind, event)) in WAYS.into_iter().enumerate() {
        let mut times = Times::default();
        for _ in 0..plan.rounds {
            let (mut gross, mut empty) = (Vec::new(), Vec::new());
            for _ in 0..plan.batches {
                ways[way].lend(connections)?;
                let before = events(&server, event)?;
                gross.push(ways[way].batch(programs[way], kind, connections, count)?);
                check(name, connections, events(&server, event)? - before, count)?;
                let nothing = ways[way].nothing();
                empty.push(ways[way].batch(nothing, kind, connections, count)?);
            }
            times.gross_ns.push(trimmed_mean(&mut gross));
            times.empty_ns.push(trimmed_mean(&mut empty));
        }
        rows.push(times.row(name, connections, 1));
    }

    let Some(cpus) = two_cpus()? else {
        return Ok(rows);
    };
    let mut times = [Times::default(), Times::default()];
    for _ in 0..plan.rounds {
        let (mut gross, mut empty) = (Vec::new(), Vec::new());
        for _ in 0..plan.batches {
            ways.iter_mut().try_for_each(|way| way.lend(connections))?;
            let before = both_events(&server)?;
            gross.push(at_once(&mut ways, programs, cpus, connections, count)?);
            for ((name, ..), (before, after)) in WAYS
                .into_iter()
                .zip(before.into_iter().zip(both_events(&server)?))
            {
                check(name, connections, after - before, count)?;
            }
            let nothing = [ways[0].nothing(), ways[1].nothing()];
            empty.push(at_once(&mut ways, nothing, cpus, connections, count)?);
        }
        for (way, times) in times.iter_mut().enumerate() {
            let mean = |of: &[[f64; 2]]| trimmed_mean(&mut column(of, way));
            times.gross_ns.push(mean(&gross));
            times.empty_ns.push(mean(&empty));
        }
    }
    let both = WAYS.into_iter().zip(times);
    rows.extend(both.map(|((name, ..), times)| times.row(name, connections, 2)));
    Ok(rows)
}

const WAYS: [(&str, Kind, ServerCookie); 2] = [
    ("cookie_out", Kind::Out, ServerCookie::Stamped),
    ("cookie_in", Kind::In, ServerCookie::RestoredQuickly),
];

fn column(of: &[[f64; 2]], way: usize) -> Vec<f64> {
    of.iter().map(|both| both[way]).collect()
}

/// A batch of each way at the same time, each on its CPU.
fn at_once(
    ways: &mut [Segments<'_>; 2],
    programs: [i32; 2],
    cpus: [usize; 2],
    connections: u32,
    count: u32,
) -> Result<[f64; 2], BenchError> {
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        let runs: Vec<_> = ways
            .iter_mut()
            .enumerate()
            .map(|(at, way)| {
                let start = &start;
                let (program, cpu) = (programs[at], cpus[at]);
                scope.spawn(move || {
                    let stays = stay_on(cpu);
                    start.wait();
                    stays?;
                    way.batch(program, WAYS[at].1, connections, count)
                })
            })
            .collect();
        let mut took = [0.0; 2];
        for (took, run) in took.iter_mut().zip(runs) {
            *took = run.join().unwrap_or(Err(BenchError::Panicked))?;
        }
        Ok(took)
    })
}

/// Two CPUs of this thread's, if it has two.
fn two_cpus() -> Result<Option<[usize; 2]>, BenchError> {
    let own = sched_getaffinity(Pid::from_raw(0)).map_err(BenchError::Namespace)?;
    let mut cpus = (0..CpuSet::count()).filter(|&cpu| own.is_set(cpu).unwrap_or(false));
    Ok(cpus.next().zip(cpus.next()).map(|(a, b)| [a, b]))
}

pub(crate) fn stay_on(cpu: usize) -> Result<(), BenchError> {
    let mut set = CpuSet::new();
    set.set(cpu)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .map_err(BenchError::Namespace)
}

/// How often the server's programs have counted this, on all CPUs.
fn events(server: &ServerSkel<'_>, event: ServerCookie) -> Result<u64, BenchError> {
    let cpus = server
        .maps
        .cookie_events
        .lookup_percpu(&(event as u32).to_ne_bytes(), MapFlags::ANY)
        .map_err(failed("reading the counters"))?;
    let counters = cpus.iter().flatten();
    Ok(counters
        .filter_map(|cpu| Some(u64::from_ne_bytes(cpu.get(..8)?.try_into().ok()?)))
        .sum())
}

/// The same of what each way is to count.
fn both_events(server: &ServerSkel<'_>) -> Result<[u64; 2], BenchError> {
    let [(_, _, out), (_, _, r#in)] = WAYS;
    Ok([events(server, out)?, events(server, r#in)?])
}

/// The accounting of SYNs: whole handshakes, each of a new tuple.
fn opening(plan: &ServerPlan) -> Result<Vec<ServerRow>, BenchError> {
    let mut storage = [const { MaybeUninit::uninit() }; 3];
    let [server, segments, syn] = &mut storage;
    let server = ServerSkelBuilder::default()
        .open(server)
        .and_then(|open| open.load())
        .map_err(failed("loading server.bpf.o"))?;
    let mut segments = Segments::load(segments, &server)?;
    let syn = accounting(syn)?;
    let (comes, goes) = (
        syn.progs.causeway_syn_in.as_fd().as_raw_fd(),
        syn.progs.causeway_syn_out.as_fd().as_raw_fd(),
    );
    let (floor, nothing) = (segments.clients_floor(), segments.nothing());
    let cases = [
        ("clients_syn", Kind::Syn, comes),
        ("clients_syn_ack", Kind::SynAck, goes),
        ("clients_ack", Kind::Ack, comes),
        ("floor_clients_syn", Kind::Syn, floor),
        ("floor_clients_syn_ack", Kind::SynAck, floor),
        ("floor_clients_ack", Kind::Ack, floor),
    ];
    // So few that the tables have room for all: nothing has to make way.
    let count = plan
        .batch
        .min(syn.maps.syn_connections.max_entries() / 2 / plan.rounds);
    let mut times = cases.map(|_| Times::default());
    for _ in 0..plan.rounds {
        let first = segments.opened().map_or(0, |opened| *opened);
        for (times, (_, kind, program)) in times.iter_mut().zip(cases) {
            for (program, took) in [
                (program, &mut times.gross_ns),
                (nothing, &mut times.empty_ns),
            ] {
                if let Some(opened) = segments.opened() {
                    *opened = first;
                }
                took.push(segments.batch(program, kind, 0, count)?);
            }
        }
    }
    let established = syn.maps.syn_connections.keys().count() as u64;
    check("clients_ack", 0, established, plan.rounds * count)?;
    let kept = segments.skel.maps.floor_connections.keys().count() as u64;
    check("floor_clients_ack", 0, kept, plan.rounds * count)?;
    let rows = cases.into_iter().zip(times);
    Ok(rows
        .map(|((name, ..), times)| times.row(name, 0, 1))
        .collect())
}

/// With one service, the segments' own.
fn accounting(storage: &mut MaybeUninit<OpenObject>) -> Result<SynSkel<'_>, BenchError> {
    let setting = || failed("setting up syn.bpf.o");
    let mut open = SynSkelBuilder::default()
        .open(storage)
        .map_err(failed("opening syn.bpf.o"))?;
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        rodata.cfg_ring = SYN_SLOTS;
    }
    open.maps
        .syn_slots
        .set_max_entries(SYN_SLOTS)
        .map_err(setting())?;
    let skel = open.load().map_err(failed("loading syn.bpf.o"))?;
    let service = VipKey {
        addr: addr_bytes(crate::dataplane::VIP.into()),
        port_be: crate::dataplane::PORT.to_be_bytes(),
        proto: 6,
        kind: 0,
    };
    let zero = 0u32.to_ne_bytes();
    skel.maps
        .syn_services
        .update(service.as_bytes(), &zero, MapFlags::ANY)
        .and_then(|()| {
            let loopback = LOOPBACK.to_ne_bytes();
            skel.maps
                .syn_devices
                .update(&loopback, &zero, MapFlags::ANY)
        })
        .map_err(setting())?;
    Ok(skel)
}
