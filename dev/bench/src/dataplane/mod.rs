// SPDX-License-Identifier: Apache-2.0
//! What the balancer's program costs per packet, beside programs that do less.
//!
//! A batch is one BPF_PROG_TEST_RUN of many repeats; before each one `bench_shot`
//! (bpf/reference.bpf.c) restores the packet and writes the next flow's into it, so
//! that nothing is encapsulated twice and no flow is hot by accident. Flows come in
//! another order than they were inserted. A round runs every case once, each time
//! starting with another one; a round's figure is the 5 % trimmed mean of its
//! batches, and net is gross minus the empty program on packets of the same kind in
//! the same round. Medians over the rounds are given. Every batch's verdict is
//! checked, and that a program which measures has measured.

mod baselines;
mod fixture;
mod floors;
mod growth;
mod instrument;
mod kept;
mod picks;
mod statistics;

use std::mem::MaybeUninit;

use causeway_core::control::{ConnectionSampler, ControlParams, Controller, Law, SampledInterval};
use causeway_dataplane::abi::{REAL_GUE, Verdict};
use libbpf_rs::OpenObject;
use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, sched_setaffinity, unshare};
use nix::unistd::Pid;
use serde::{Serialize, Serializer};
use thiserror::Error;

use baselines::Baselines;
use fixture::{Balancer, Counter};
pub(crate) use fixture::{PORT, VIP, failed};
use floors::Floors;
pub use growth::{Grows, GrowthPlan, GrowthRow, growth};
use instrument::{Instrument, shuffled};
pub use kept::{Kept, kept};
pub use statistics::statistics_floor;

/// A benchmark that could not be run, or did not run what it should.
#[derive(Debug, Error)]
pub enum BenchError {
    /// The kernel or libbpf refused something.
    #[error("{doing}: {cause:#} (the benchmark needs root and BPF)")]
    Bpf {
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        cause: libbpf_rs::Error,
    },
    /// No network namespace of its own.
    #[error("making a network namespace: {0} (the benchmark needs root)")]
    Namespace(nix::errno::Errno),
    /// The packet maker could not be put on the namespace's loopback, or the kernel's
    /// statistics not switched on.
    #[error("setting up the benchmark: {cause}")]
    Attach {
        /// Why not.
        cause: causeway_dataplane::DataPlaneError,
    },
    /// The balancer's object has changed under the benchmark.
    #[error("lb.bpf.o has no map {0}")]
    NoMap(&'static str),
    /// The thread that measures has panicked.
    #[error("the benchmark panicked")]
    Panicked,
    /// The slots of connections could not be kept.
    #[error("keeping slots of connections: {cause}")]
    ConnSlots {
        /// Why not.
        cause: causeway_dataplane::DataPlaneError,
    },
    /// Packets took another way than the case measures.
    #[error("{case} at {flows} flows: {counted} of {shots} packets were {verdict}")]
    WrongVerdict {
        /// The case.
        case: &'static str,
        /// Its number of flows.
        flows: u32,
        /// Packets with the right verdict.
        counted: u64,
        /// Packets sent.
        shots: u64,
        /// The right verdict.
        verdict: &'static str,
    },
    /// A case that measures has other latencies than its connections give.
    #[error(
        "{case} at {flows} flows measured {latencies} latencies, and {least} to {most} are due"
    )]
    WronglyMeasured {
        /// The case.
        case: &'static str,
        /// Its number of flows.
        flows: u32,
        /// Latencies of the packets that count.
        latencies: u64,
        /// How many there must be.
        least: u64,
        /// How many there may be.
        most: u64,
    },
}

/// How much to measure.
#[derive(Clone, Debug)]
pub struct BenchPlan {
    /// Numbers of flows, each up to 1,000,000.
    pub flows: Vec<u32>,
    /// Rounds for each number of flows.
    pub rounds: u32,
    /// Batches of a case in a round.
    pub batches: u32,
    /// Packets in a batch.
    pub batch: u32,
}

impl BenchPlan {
    /// What is quoted: about a minute.
    pub fn full() -> Self {
        Self {
            flows: vec![1, 10_000, 1_000_000],
            rounds: 9,
            batches: 60,
            batch: 1000,
        }
    }

    /// Enough to see that everything runs: a few seconds.
    pub fn tiny() -> Self {
        Self {
            flows: vec![1, 5000],
            rounds: 2,
            batches: 4,
            batch: 500,
        }
    }
}

/// One case at one number of flows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The case's name.
    pub case: &'static str,
    /// Distinct flows that its packets, and the table, are of.
    pub flows: u32,
    /// Time of one packet with its preparation, ns.
    #[serde(serialize_with = "tenths")]
    pub gross_ns: f64,
    /// The same without what the empty program takes, ns.
    #[serde(serialize_with = "tenths")]
    pub net_ns: f64,
    /// Rounds that the medians are of.
    pub rounds: u32,
    /// What happened to every packet.
    pub verdict: &'static str,
    /// What the times are of.
    pub unit: &'static str,
    /// 1 in this many connections is measured; 0: none.
    pub one_in: u32,
}

/// Which packets `bench_shot` writes; `enum shot_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shot {
    Tcp = 0,
    Syn = 1,
    Udp = 2,
    Token = 3,
    Open = 4,
    Cookie = 5,
    CookieSyn = 6,
    Cid = 7,
    End = 8,
}

impl Shot {
    /// Name of the empty program's case on packets of this kind.
    fn empty(self) -> &'static str {
        match self {
            Self::Tcp | Self::Open | Self::End => "empty",
            Self::Syn => "empty_syn",
            Self::Udp => "empty_udp",
            Self::Token => "empty_conn_slot",
            Self::Cookie => "empty_cookie",
            Self::CookieSyn => "empty_cookie_syn",
            Self::Cid => "empty_cid",
        }
    }

    /// Whether each packet opens a connection.
    fn opens(self) -> bool {
        matches!(self, Self::Syn | Self::CookieSyn | Self::Open)
    }
}

/// Where `bench_shot` stands in a case's sequence of packets.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    position: u32,
    pass: u32,
    syns: u32,
}

/// A program, the packets that it gets, and what must become of them.
struct Case<'a> {
    name: &'static str,
    shot: Shot,
    program: i32,
    /// The program that counts, and the verdict; reference programs only give XDP_TX.
    verdict: Option<(&'a dyn Counter, Verdict)>,
    balancer: Option<&'a Balancer<'a>>,
    place: Place,
    rounds_ns: Vec<f64>,
    one_in: u32,
}

impl<'a> Case<'a> {
    fn new(name: &'static str, shot: Shot, program: i32) -> Self {
        Self {
            name,
            shot,
            program,
            verdict: None,
            balancer: None,
            place: Place::default(),
            rounds_ns: Vec::new(),
            one_in: 0,
        }
    }

    /// The same, whose SYNs are none that a case on the same tables has sent: those would be
    /// known there.
    fn with_other_syns(mut self) -> Self {
        self.place.syns = 1 << 31;
        self
    }

    /// The same, which measures 1 in this many connections.
    fn measuring(self, one_in: u32) -> Self {
        Self { one_in, ..self }
    }

    fn of(name: &'static str, shot: Shot, balancer: &'a Balancer<'a>, verdict: Verdict) -> Self {
        Self {
            verdict: Some((balancer, verdict)),
            balancer: Some(balancer),
            ..Self::new(name, shot, balancer.program())
        }
    }

    /// The empty program on packets of this kind.
    fn empty(shot: Shot, instrument: &Instrument<'_>) -> Self {
        Self::new(shot.empty(), shot, instrument.empty())
    }

    fn baseline(
        name: &'static str,
        shot: Shot,
        program: i32,
        baselines: &'a Baselines<'a>,
        verdict: Verdict,
    ) -> Self {
        Self {
            verdict: Some((baselines, verdict)),
            ..Self::new(name, shot, program)
        }
    }

    /// Brings the connections that are measured to where each request makes a latency known: only
    /// their first packet has been sent, in another order.
    fn warm_up(
        &mut self,
        instrument: &mut Instrument<'_>,
        plan: &BenchPlan,
        flows: u32,
    ) -> Result<(), BenchError> {
        if self.one_in == 0 || self.shot.opens() {
            return Ok(());
        }
        let reached = flows.min(plan.rounds * plan.batches * plan.batch);
        self.place.pass = 1;
        instrument.select(self.program)?;
        instrument.batch(self.shot, reached, &mut self.place, WARM_PASSES * reached)?;
        Ok(())
    }

    /// Half samples of latency so far, if there must be some.
    fn latencies(&self, flows: u32) -> Result<Option<u64>, BenchError> {
        let due = self.due(flows, 0).is_some();
        let balancer = self.balancer.filter(|_| due);
        balancer.map(Balancer::latencies).transpose()
    }

    /// Fewest and most half samples that so many packets give, where that is known: datagrams do
    /// not say which of them are requests, and of a few connections none may be a measured one.
    fn due(&self, flows: u32, packets: u64) -> Option<(u64, u64)> {
        let requests = matches!(self.shot, Shot::Tcp | Shot::Token | Shot::Cookie);
        let some = self.one_in == 1 || self.one_in > 1 && flows >= SAMPLED_FLOWS;
        // Half of the packets are requests, and of each a whole latency becomes known.
        let due = packets / u64::from(self.one_in.max(1));
        (requests && some).then_some(match self.one_in {
            1 => (due / 4, u64::MAX),
            _ => (due / 3, due * 3),
        })
    }

    /// Holds what became known, in half samples, against what is due.
    fn ensure_measured(&self, flows: u32, packets: u64, got: u64) -> Result<(), BenchError> {
        match self.due(flows, packets) {
            Some((least, most)) if !(least..=most).contains(&got) => {
                Err(BenchError::WronglyMeasured {
                    case: self.name,
                    flows,
                    latencies: got / 2,
                    least: least / 2,
                    most: most / 2,
                })
            }
            _ => Ok(()),
        }
    }

    /// One round of this case.
    fn round(
        &mut self,
        instrument: &mut Instrument<'_>,
        plan: &BenchPlan,
        flows: u32,
    ) -> Result<(), BenchError> {
        let before = self.counted()?;
        instrument.select(self.program)?;
        let mut batches_ns = Vec::with_capacity(plan.batches as usize);
        let mut transmitted = true;
        for _ in 0..plan.batches {
            let batch = instrument.batch(self.shot, flows, &mut self.place, plan.batch)?;
            transmitted &= batch.transmitted;
            batches_ns.push(batch.packet_ns);
        }
        let shots = u64::from(plan.batches) * u64::from(plan.batch);
        let counted = match self.counted()? {
            Some(after) => after - before.unwrap_or(0),
            None => {
                if transmitted {
                    shots
                } else {
                    0
                }
            }
        };
        if counted != shots {
            return Err(BenchError::WrongVerdict {
                case: self.name,
                flows,
                counted,
                shots,
                verdict: self.verdict_word(),
            });
        }
        self.rounds_ns.push(trimmed_mean(&mut batches_ns));
        Ok(())
    }

    fn counted(&self) -> Result<Option<u64>, BenchError> {
        self.verdict
            .map(|(counter, verdict)| counter.count(verdict))
            .transpose()
    }

    fn verdict_word(&self) -> &'static str {
        self.verdict
            .map_or("XDP_TX", |(_, verdict)| verdict.as_str())
    }
}

/// Runs the plan; `progress` is called with each number of flows before it is measured.
pub fn run(plan: &BenchPlan, progress: impl FnMut(u32) + Send) -> Result<Vec<Row>, BenchError> {
    let mut progress = progress;
    alone(|| {
        let mut rows = Vec::new();
        for &flows in &plan.flows {
            progress(flows);
            rows.extend(run_level(plan, flows)?);
            rows.extend(picks::run(plan, flows)?);
        }
        Ok(rows)
    })
}

/// Does the work in a thread with a network namespace of its own.
pub(crate) fn alone<T: Send>(
    work: impl FnOnce() -> Result<T, BenchError> + Send,
) -> Result<T, BenchError> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).map_err(BenchError::Namespace)?;
            work()
        });
        thread.join().unwrap_or(Err(BenchError::Panicked))
    })
}

/// All cases at one number of flows.
fn run_level(plan: &BenchPlan, flows: u32) -> Result<Vec<Row>, BenchError> {
    let mut storage: [MaybeUninit<OpenObject>; 23] = [const { MaybeUninit::uninit() }; 23];
    let [
        instrument,
        measured,
        plain,
        syn,
        udp,
        slot_measured,
        slot,
        cookie,
        cookie_measured,
        cookie_syn_measured,
        gue,
        cid,
        baselines,
        sampled,
        syn_sampled,
        udp_sampled,
        slot_sampled,
        cookie_sampled,
        cid_sampled,
        syn_unmeasured,
        udp_unmeasured,
        cid_unmeasured,
        floors,
    ] = &mut storage;
    let mut instrument = Instrument::load(instrument)?;
    let measured = Balancer::load(measured)?;
    let plain = Balancer::unmeasured(plain, &measured)?;
    let syn = Balancer::load(syn)?;
    let udp = Balancer::load(udp)?;
    let slot_measured = Balancer::stateful(slot_measured, flows)?;
    let slot = Balancer::unmeasured(slot, &slot_measured)?;
    let cookie = Balancer::with_cookies(cookie, false, 0)?;
    let cookie_measured = Balancer::with_cookies(cookie_measured, true, 0)?;
    let cookie_syn_measured = Balancer::with_cookies(cookie_syn_measured, true, 0)?;
    let gue = Balancer::with_cookies(gue, false, REAL_GUE)?;
    let cid = Balancer::with_cids(cid)?;
    let baselines = Baselines::load(baselines, &cookie)?;
    let rate = controllers_rate();
    let floors = Floors::load(floors, 1 << rate)?;
    let sampled = Balancer::load(sampled)?.measuring(rate)?;
    let syn_sampled = Balancer::load(syn_sampled)?.measuring(rate)?;
    let udp_sampled = Balancer::load(udp_sampled)?.measuring(rate)?;
    let slot_sampled = Balancer::stateful(slot_sampled, flows)?.measuring(rate)?;
    let cookie_sampled = Balancer::with_cookies(cookie_sampled, true, 0)?.measuring(rate)?;
    let cid_sampled = Balancer::with_cids(cid_sampled)?.measuring(rate)?;
    let syn_unmeasured = Balancer::unmeasured(syn_unmeasured, &syn)?;
    let udp_unmeasured = Balancer::unmeasured(udp_unmeasured, &udp)?;
    let cid_unmeasured = Balancer::unmeasured(cid_unmeasured, &cid)?;

    // Fill in one order, measure in another.
    let order: Vec<u32> = (0..flows).collect();
    instrument.set_clients(&order, &[])?;
    for (program, shot) in [
        (instrument.min_fill(), Shot::Tcp),
        (baselines.table_fill(), Shot::Tcp),
        (measured.program(), Shot::Tcp),
        (syn.program(), Shot::Tcp),
        (udp.program(), Shot::Udp),
        (cookie_measured.program(), Shot::Cookie),
        (cookie_syn_measured.program(), Shot::Cookie),
        (cid.program(), Shot::Cid),
        (sampled.program(), Shot::Tcp),
        (syn_sampled.program(), Shot::Tcp),
        (udp_sampled.program(), Shot::Udp),
        (cookie_sampled.program(), Shot::Cookie),
        (cid_sampled.program(), Shot::Cid),
    ] {
        instrument.fill(program, shot, flows)?;
    }
    // The same connections in the same order and on one CPU, as each gives out slots of its own: the
    // same tokens, or no packet would be of a known one.
    let own = sched_getaffinity(Pid::from_raw(0)).map_err(BenchError::Namespace)?;
    let mut cpus = 0..CpuSet::count();
    crate::server::stay_on(
        cpus.find(|&cpu| own.is_set(cpu).unwrap_or(false))
            .unwrap_or(0),
    )?;
    let tokens = slot_measured.open_all(&mut instrument, flows)?;
    slot_sampled.open_all(&mut instrument, flows)?;
    sched_setaffinity(Pid::from_raw(0), &own).map_err(BenchError::Namespace)?;
    instrument.set_clients(&shuffled(flows, 0x5eed), &tokens)?;

    let established = Verdict::Established;
    let shots = [
        Shot::Tcp,
        Shot::Cookie,
        Shot::CookieSyn,
        Shot::Token,
        Shot::Syn,
        Shot::Udp,
        Shot::Cid,
    ];
    let mut cases = Vec::from(shots.map(|shot| Case::empty(shot, &instrument)));
    cases.extend([
        Case::new("macswap", Shot::Tcp, instrument.macswap()),
        Case::new("min", Shot::Tcp, instrument.min()),
        Case::of("tcp_established", Shot::Tcp, &plain, established),
        Case::of(
            "tcp_established_measured",
            Shot::Tcp,
            &measured,
            established,
        )
        .measuring(1),
        Case::of("tcp_established_sampled", Shot::Tcp, &sampled, established).measuring(1 << rate),
        Case::of("tcp_cookie", Shot::Cookie, &cookie, established),
        Case::of(
            "tcp_cookie_measured",
            Shot::Cookie,
            &cookie_measured,
            established,
        )
        .measuring(1),
        Case::of(
            "tcp_cookie_sampled",
            Shot::Cookie,
            &cookie_sampled,
            established,
        )
        .measuring(1 << rate),
        Case::of("tcp_cookie_syn", Shot::CookieSyn, &cookie, Verdict::Opened),
        Case::of(
            "tcp_cookie_syn_measured",
            Shot::CookieSyn,
            &cookie_syn_measured,
            Verdict::Opened,
        )
        .measuring(1),
        Case::of(
            "tcp_cookie_syn_sampled",
            Shot::CookieSyn,
            &cookie_sampled,
            Verdict::Opened,
        )
        .measuring(1 << rate),
        Case::of("gue_cookie", Shot::Cookie, &gue, established),
        Case::of("tcp_conn_slot", Shot::Token, &slot, established),
        Case::of(
            "tcp_conn_slot_measured",
            Shot::Token,
            &slot_measured,
            established,
        )
        .measuring(1),
        Case::of(
            "tcp_conn_slot_sampled",
            Shot::Token,
            &slot_sampled,
            established,
        )
        .measuring(1 << rate),
        Case::of("tcp_syn", Shot::Syn, &syn, Verdict::Opened).measuring(1),
        Case::of("tcp_syn_sampled", Shot::Syn, &syn_sampled, Verdict::Opened).measuring(1 << rate),
        Case::of(
            "tcp_syn_unmeasured",
            Shot::Syn,
            &syn_unmeasured,
            Verdict::Opened,
        )
        .with_other_syns(),
        Case::of("udp", Shot::Udp, &udp, established).measuring(1),
        Case::of("udp_sampled", Shot::Udp, &udp_sampled, established).measuring(1 << rate),
        Case::of("udp_unmeasured", Shot::Udp, &udp_unmeasured, established),
        Case::of("quic_cid", Shot::Cid, &cid, established).measuring(1),
        Case::of("quic_cid_sampled", Shot::Cid, &cid_sampled, established).measuring(1 << rate),
        Case::of(
            "quic_cid_unmeasured",
            Shot::Cid,
            &cid_unmeasured,
            established,
        ),
        Case::baseline("hash", Shot::Tcp, baselines.hash(), &baselines, established),
        Case::baseline(
            "hash_table",
            Shot::Tcp,
            baselines.table(),
            &baselines,
            established,
        ),
        Case::baseline(
            "hash_table_syn",
            Shot::Syn,
            baselines.table_syn(),
            &baselines,
            Verdict::Opened,
        ),
        Case::baseline(
            "daisy",
            Shot::Tcp,
            baselines.daisy(),
            &baselines,
            established,
        ),
    ]);
    cases.extend(floors.cases());
    measure(&mut cases, &mut instrument, plan, flows)
}

/// From how many connections on about one in so many is measured.
const SAMPLED_FLOWS: u32 = 1000;

/// Packets of each client between the one that opened its connection and the first that counts:
/// requests and ACKs by turns, and a request's latency is known at the second one behind it.
const WARM_PASSES: u32 = 5;

/// All rounds of the cases, by turns. Among them is the empty program on each kind of packet.
fn measure(
    cases: &mut [Case<'_>],
    instrument: &mut Instrument<'_>,
    plan: &BenchPlan,
    flows: u32,
) -> Result<Vec<Row>, BenchError> {
    let count = cases.len();
    for case in cases.iter_mut() {
        case.warm_up(instrument, plan, flows)?;
    }
    let latencies = |cases: &[Case<'_>]| cases.iter().map(|case| case.latencies(flows)).collect();
    let before: Vec<Option<u64>> = latencies(cases)?;
    for round in 0..plan.rounds as usize {
        for index in 0..count {
            cases[(round + index) % count].round(instrument, plan, flows)?;
        }
    }
    let after: Result<Vec<_>, _> = latencies(cases);
    let packets = u64::from(plan.rounds * plan.batches * plan.batch);
    for (case, (before, after)) in cases.iter().zip(before.into_iter().zip(after?)) {
        if let Some((before, after)) = before.zip(after) {
            case.ensure_measured(flows, packets, after - before)?;
        }
    }
    let empty_ns = |shot| {
        let is_empty = |case: &&Case<'_>| case.shot == shot && case.program == instrument.empty();
        cases
            .iter()
            .find(is_empty)
            .map_or(&[][..], |c| &c.rounds_ns)
    };
    let rows = cases
        .iter()
        .map(|case| row(case, empty_ns(case.shot), flows));
    Ok(rows.collect())
}

fn row(case: &Case<'_>, empty_ns: &[f64], flows: u32) -> Row {
    let mut net_ns: Vec<f64> = case
        .rounds_ns
        .iter()
        .zip(empty_ns)
        .map(|(gross, empty)| gross - empty)
        .collect();
    Row {
        case: case.name,
        flows,
        gross_ns: median(&mut case.rounds_ns.clone()),
        net_ns: median(&mut net_ns),
        rounds: case.rounds_ns.len() as u32,
        verdict: case.verdict_word(),
        unit: "ns/packet",
        one_in: case.one_in,
    }
}

/// Packets that one CPU forwards a second at 200 ns each, and the reals that share them.
const PACKETS_PER_SECOND: u64 = 5_000_000;
/// A request, acknowledgements of the response, the end of a connection now and then.
const PACKETS_PER_REQUEST: u64 = 4;

/// The k of 1 in 2^k connections that the controller chooses for each of a hundred busy reals.
fn controllers_rate() -> u8 {
    let params = ControlParams::default();
    let intervals_per_second = 1_000_000_000 / params.interval_ns;
    let requests =
        PACKETS_PER_SECOND / PACKETS_PER_REQUEST / intervals_per_second / u64::from(fixture::REALS);
    let wanted = Controller::new(Law::default(), params.clone()).samples_wanted();
    let mut sampler = ConnectionSampler::default();
    for interval in 1..100 {
        let seen = requests >> sampler.sampling().opening;
        let counted = SampledInterval {
            requests,
            requests_seen: seen,
            weight_halves: 2 * seen,
        };
        sampler.follow(interval * params.interval_ns, &counted, wanted);
    }
    sampler.sampling().opening
}

/// The mean without the lowest and the highest 5 %; 0 of nothing.
pub(crate) fn trimmed_mean(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let cut = values.len() / 20;
    let kept = &values[cut..values.len() - cut];
    kept.iter().sum::<f64>() / kept.len().max(1) as f64
}

/// Writes nanoseconds to a tenth.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
pub(crate) fn tenths<S: Serializer>(ns: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((ns * 10.0).round() / 10.0)
}

/// The middle value, or the mean of the two in the middle; 0 of nothing.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        len if len % 2 == 1 => values[len / 2],
        len => (values[len / 2 - 1] + values[len / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trimming_takes_a_twentieth_at_each_end() {
        let mut values: Vec<f64> = (0..40).map(f64::from).collect();
        values[39] = 1e9;
        assert_eq!(
            trimmed_mean(&mut values),
            (2..38).sum::<i32>() as f64 / 36.0
        );
        assert_eq!(trimmed_mean(&mut []), 0.0);
    }

    #[test]
    fn a_case_that_measures_has_the_latencies_of_its_connections() {
        let held = |shot, one_in, flows, got| {
            let case = Case::new("case", shot, 0).measuring(one_in);
            case.ensure_measured(flows, 16_000, got).is_ok()
        };
        // None, too few, and those of all connections for those of one in sixteen.
        for (got, right) in [(0, false), (300, false), (1000, true), (16_000, false)] {
            assert_eq!(held(Shot::Cookie, 16, 5000, got), right, "{got}");
        }
        assert!(!held(Shot::Tcp, 1, 1, 0) && held(Shot::Tcp, 1, 1, 16_000));
        // One connection need not be one that is measured.
        assert!(held(Shot::Cookie, 16, 1, 0));
        // Nothing is measured, and datagrams do not say what they are.
        assert!(held(Shot::Tcp, 0, 5000, 0) && held(Shot::Udp, 16, 5000, 0));
    }

    #[test]
    fn medians() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
