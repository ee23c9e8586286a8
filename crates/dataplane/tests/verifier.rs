// SPDX-License-Identifier: Apache-2.0
//! What the programs cost the kernel's verifier, against bpf/verifier.csv: a jump
//! means slower loads, and in the end a program that no kernel takes. Counts differ
//! between kernels; those without a row only have to stay far from the limit. Needs
//! root; fails without.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use causeway_dataplane::skel::lb::LbSkelBuilder;
use causeway_dataplane::skel::meter::MeterSkelBuilder;
use causeway_dataplane::skel::rtt::RttSkelBuilder;
use causeway_dataplane::skel::server::ServerSkelBuilder;
use causeway_dataplane::skel::syn::SynSkelBuilder;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

/// kernel,program,instructions
const COMMITTED: &str = include_str!("../../../bpf/verifier.csv");
/// The verifier gives up at a million.
const LIMIT: u32 = 350_000;
const TOLERANCE_PCT: u32 = 15;
const LOAD_TIME: Duration = Duration::from_secs(1);

/// `major.minor` of the running kernel.
fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("kernel release");
    release.split('.').take(2).collect::<Vec<_>>().join(".")
}

/// Time that this thread has had a CPU, the kernel's work for it included: on a busy
/// machine the clock on the wall says little.
fn cpu_time() -> Duration {
    let now = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID
        .now()
        .expect("thread CPU clock");
    Duration::from(now)
}

/// Whether an emulator runs this (scripts/old-kernel): its times mean nothing.
fn is_emulated() -> bool {
    std::fs::read_to_string("/proc/cpuinfo")
        .expect("cpuinfo")
        .contains("QEMU TCG")
}

fn verified_instructions(program: BorrowedFd<'_>) -> u32 {
    // SAFETY: all fields are integers, for which zero is a value.
    let mut info: libbpf_sys::bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as u32;
    // SAFETY: `info` is writable for `len` bytes, as the kernel is told.
    let status = unsafe {
        libbpf_sys::bpf_obj_get_info_by_fd(program.as_raw_fd(), (&raw mut info).cast(), &mut len)
    };
    assert_eq!(status, 0, "bpf_obj_get_info_by_fd");
    info.verified_insns
}

/// Instructions and the time that loading took, with tables of little size.
fn lb(measure: bool) -> (u32, Duration) {
    let mut storage = MaybeUninit::uninit();
    let mut open = LbSkelBuilder::default().open(&mut storage).expect("open");
    open.maps
        .rodata_data
        .as_deref_mut()
        .expect("rodata")
        .cfg_measure = measure;
    causeway_dataplane::flow_table::set_size(&mut open, 1024, 1024).expect("size");
    let start = cpu_time();
    let skel = open
        .load()
        .unwrap_or_else(|e| panic!("loading needs root and BPF: {e}"));
    (
        verified_instructions(skel.progs.causeway_lb.as_fd()),
        cpu_time() - start,
    )
}

/// The server's programs: decapsulation, and cookies out, in and at opening. They are
/// loaded together; the time is that of all.
fn server() -> [(u32, Duration); 4] {
    let mut storage = MaybeUninit::uninit();
    let open = ServerSkelBuilder::default()
        .open(&mut storage)
        .expect("open");
    let start = cpu_time();
    let skel = open
        .load()
        .unwrap_or_else(|e| panic!("loading needs root and BPF: {e}"));
    let took = cpu_time() - start;
    let programs = [
        &skel.progs.causeway_server,
        &skel.progs.causeway_cookie_out,
        &skel.progs.causeway_cookie_in,
        &skel.progs.causeway_cookie_open,
    ];
    programs.map(|program| (verified_instructions(program.as_fd()), took))
}

/// SYN accounting: in, out, and who looks for silence.
fn syn() -> [(u32, Duration); 3] {
    let mut storage = MaybeUninit::uninit();
    let open = SynSkelBuilder::default().open(&mut storage).expect("open");
    let start = cpu_time();
    let skel = open
        .load()
        .unwrap_or_else(|e| panic!("loading needs root and BPF: {e}"));
    let took = cpu_time() - start;
    let programs = [
        &skel.progs.causeway_syn_in,
        &skel.progs.causeway_syn_out,
        &skel.progs.causeway_syn_silence,
    ];
    programs.map(|program| (verified_instructions(program.as_fd()), took))
}

/// The sampler, both ways together.
fn rtt() -> (u32, Duration) {
    let mut storage = MaybeUninit::uninit();
    let mut open = RttSkelBuilder::default().open(&mut storage).expect("open");
    let rodata = open.maps.rodata_data.as_deref_mut().expect("rodata");
    rodata.cfg_threshold = u32::MAX / 16;
    rodata.cfg_follow = true;
    let start = cpu_time();
    let skel = open
        .load()
        .unwrap_or_else(|e| panic!("loading needs root and BPF: {e}"));
    let both = [
        skel.progs.causeway_rtt_out.as_fd(),
        skel.progs.causeway_rtt_in.as_fd(),
    ];
    (
        both.map(verified_instructions).iter().sum(),
        cpu_time() - start,
    )
}

/// The meter at TC ingress with all that it can do.
fn meter_tc() -> (u32, Duration) {
    let mut storage = MaybeUninit::uninit();
    let mut open = MeterSkelBuilder::default()
        .open(&mut storage)
        .expect("open");
    open.progs.causeway_meter.set_autoload(false);
    open.progs.causeway_meter_tc.set_autoload(true);
    let rodata = open.maps.rodata_data.as_deref_mut().expect("rodata");
    rodata.cfg_also_gap = true;
    rodata.cfg_also_modes = true;
    rodata.cfg_histograms = true;
    rodata.cfg_client_nets = true;
    let start = cpu_time();
    let skel = open
        .load()
        .unwrap_or_else(|e| panic!("loading needs root and BPF: {e}"));
    (
        verified_instructions(skel.progs.causeway_meter_tc.as_fd()),
        cpu_time() - start,
    )
}

/// The meter with one estimator, see `enum meter_method`.
fn meter(method: u32) -> (u32, Duration) {
    let mut storage = MaybeUninit::uninit();
    let mut open = MeterSkelBuilder::default()
        .open(&mut storage)
        .expect("open");
    open.maps
        .rodata_data
        .as_deref_mut()
        .expect("rodata")
        .cfg_method = method;
    let start = cpu_time();
    let skel = open
        .load()
        .unwrap_or_else(|e| panic!("loading needs root and BPF: {e}"));
    (
        verified_instructions(skel.progs.causeway_meter.as_fd()),
        cpu_time() - start,
    )
}

#[test]
fn programs_cost_the_verifier_what_is_committed() {
    let kernel = kernel();
    let [server, cookie_out, cookie_in, cookie_open] = server();
    let [syn_in, syn_out, syn_silence] = syn();
    let measured = [
        ("lb", lb(true)),
        ("lb without measurement", lb(false)),
        ("meter window-chain", meter(0)),
        ("meter fixed-gap", meter(1)),
        ("meter modes", meter(2)),
        ("meter tc with everything", meter_tc()),
        ("rtt", rtt()),
        ("server", server),
        ("server cookies out", cookie_out),
        ("server cookies in", cookie_in),
        ("server cookies open", cookie_open),
        ("syn in", syn_in),
        ("syn out", syn_out),
        ("syn silence", syn_silence),
    ];
    let lines: Vec<String> = measured
        .iter()
        .map(|(program, (count, _))| format!("{kernel},{program},{count}"))
        .collect();
    let current = lines.join("\n");
    println!("{current}");
    for (program, (count, took)) in measured {
        assert!(count < LIMIT, "{program}: {count} instructions");
        assert!(
            took < LOAD_TIME || is_emulated(),
            "{program}: loading took {took:?}"
        );
        let row = COMMITTED
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{kernel},{program},")));
        let Some(row) = row else { continue };
        let committed: u32 = row.parse().expect("a number in bpf/verifier.csv");
        let allowed = u64::from(committed) * (100 + u64::from(TOLERANCE_PCT)) / 100;
        assert!(
            u64::from(count) <= allowed,
            "{program}: {count} instructions, bpf/verifier.csv has {committed}; if that is meant, it should say:\n{current}"
        );
    }
}
