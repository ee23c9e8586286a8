// SPDX-License-Identifier: Apache-2.0
//! How many packets per second `causeway measure` reads, on one core and with the threads
//! that it takes by itself. Beside the time by the clock stands that of the processors,
//! which a busy machine lengthens less.
//!
//! `cargo bench --bench reader` writes captures of some million packets, runs
//! the program on them, and tcptrace and tshark beside it on the same file in the
//! same rounds where they are installed. Under `cargo test` the captures are small
//! and the figures mean nothing: it only proves that this still runs.
//!
//! tcptrace runs twice: plain, and with the RTT statistics that it is used for
//! (`-l -r`). tshark follows each TCP stream (`tcp.analysis`). All get `-n` where
//! they would look up names, write to /dev/null, and find the file in the page
//! cache. Most captures hold the request direction alone, in which neither finds a
//! round trip: what is compared is reading, following flows and keeping score. One holds
//! both directions, as most files that tcptrace is given do; there it finds round trips,
//! and our estimators know that a server's packet is none of theirs.
//!
//! A capture is a recorded flow, or some, repeated for many client addresses at once:
//! each of its packets comes once from every client, so that the table and the
//! estimators never find the flow they need in the nearest cache by luck. Every
//! repetition has new client ports, and with them new flows: the same sequence
//! numbers once more would be duplicates, which cost less.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use causeway_bench::product;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike as _};
use serde::Serialize;
use tempfile::TempDir;

/// Offset of the IPv4 source address in a record: record, Ethernet, IP header. The
/// destination's follows.
const SOURCE: usize = 16 + 14 + 12;
/// Offset of the source port, behind an IPv4 header without options. The destination's
/// follows.
const SOURCE_PORT: usize = 16 + 14 + 20;
/// Ports of clients, from here on, this many.
const FIRST_PORT: u16 = 40_000;
const PORTS: u32 = 20_000;
/// Packets of the file that tshark reads; all would take it minutes.
const TSHARK_PACKETS: usize = 200_000;
/// Length of the recording, in seconds.
const SPAN_S: u32 = 2;

struct Workload {
    name: &'static str,
    recording: &'static str,
    flows: usize,
}

const WORKLOADS: [Workload; 6] = [
    Workload {
        name: "http",
        recording: "w4.pcap.zst",
        flows: 100,
    },
    Workload {
        name: "http",
        recording: "w4.pcap.zst",
        flows: 10_000,
    },
    Workload {
        name: "http",
        recording: "w4.pcap.zst",
        flows: 100_000,
    },
    Workload {
        name: "http, both directions",
        recording: "both.pcap.zst",
        flows: 100,
    },
    Workload {
        name: "http, both directions",
        recording: "both.pcap.zst",
        flows: 10_000,
    },
    Workload {
        name: "http3",
        recording: "h3.pcap.zst",
        flows: 100,
    },
];

#[derive(Serialize)]
struct Result {
    case: String,
    flows: usize,
    packets: usize,
    mpkt_per_s: f64,
    /// Of all its threads, the kernel's part included.
    cpu_ns_per_packet: f64,
    rounds: usize,
    command: String,
}

/// Where the figures come from.
#[derive(Serialize)]
struct Report {
    date: String,
    machine: String,
    cores: usize,
    kernel: String,
    commit: String,
    tcptrace: String,
    tshark: String,
    results: Vec<Result>,
}

impl Report {
    fn new(results: Vec<Result>) -> Self {
        let machine = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = machine
            .lines()
            .find_map(|line| line.strip_prefix("model name\t: "));
        let version = |program: &str, args: &[&str], word: &str| {
            let text = said(program, args);
            let line = text.lines().find(|line| line.contains(word));
            line.unwrap_or("not installed").to_owned()
        };
        Self {
            date: said("date", &["-I"]),
            machine: model.unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get()),
            kernel: said("uname", &["-r"]),
            commit: said("git", &["describe", "--always", "--dirty"]),
            tcptrace: version("tcptrace", &["-version"], "ersion"),
            tshark: version("tshark", &["--version"], "TShark"),
            results,
        }
    }
}

/// What a program prints, on either stream.
fn said(program: &str, args: &[&str]) -> String {
    let Ok(output) = Command::new(program).args(args).output() else {
        return String::new();
    };
    let bytes = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

fn main() {
    let full = std::env::args().any(|arg| arg == "--bench");
    let (packets, rounds) = if full { (5_000_000, 5) } else { (20_000, 1) };
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for captures");
    let mut results = Vec::new();
    println!(
        "{:<46} {:>7} {:>10} {:>9} {:>9}",
        "CASE", "FLOWS", "PACKETS", "MPKT/S", "CPU NS"
    );
    for workload in &WORKLOADS {
        let capture = dir.path().join("capture.pcap");
        let packets = write_capture(workload, packets, &capture).expect("a capture");
        for result in measure(workload, &capture, packets, rounds) {
            println!(
                "{:<46} {:>7} {:>10} {:>9.2} {:>9.1}",
                result.case,
                result.flows,
                result.packets,
                result.mpkt_per_s,
                result.cpu_ns_per_packet
            );
            results.push(result);
        }
    }
    if full {
        let out = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/out");
        std::fs::create_dir_all(&out).expect("bench/out");
        let json = serde_json::to_vec_pretty(&Report::new(results)).expect("JSON");
        std::fs::write(out.join("reader.json"), json).expect("bench/out/reader.json");
    }
}

/// Runs every program in turn, several times, and gives the median of each.
fn measure(workload: &Workload, capture: &Path, packets: usize, rounds: usize) -> Vec<Result> {
    let all = "window-chain,fixed-gap,modes";
    let mut commands = vec![
        (
            "window-chain, one thread",
            causeway(capture, "window-chain", Some(0)),
        ),
        (
            "all three estimators, one thread",
            causeway(capture, all, Some(0)),
        ),
        (
            "window-chain, two threads",
            causeway(capture, "window-chain", Some(1)),
        ),
        (
            "all three estimators, two threads",
            causeway(capture, all, Some(1)),
        ),
        (
            "all three estimators, default threads",
            causeway(capture, all, None),
        ),
    ];
    // With UDP they have no figures.
    let peers = workload.name != "http3";
    if peers && installed("tcptrace") {
        commands.push(("tcptrace", peer("tcptrace", &["-n"], capture)));
        commands.push((
            "tcptrace with RTTs",
            peer("tcptrace", &["-n", "-l", "-r"], capture),
        ));
    }
    let fast = commands.len();
    if peers && workload.flows <= 100 && installed("tshark") {
        let analysis = "io,stat,0,AVG(tcp.analysis.ack_rtt)tcp.analysis.ack_rtt";
        let count = TSHARK_PACKETS.min(packets).to_string();
        let args = ["-n", "-q", "-c", &count, "-z", analysis, "-r"];
        commands.push(("tshark, tcp.analysis", peer("tshark", &args, capture)));
    }
    let mut times = vec![Vec::new(); commands.len()];
    for round in 0..rounds {
        // tshark takes longest by far: once is enough.
        let count = if round == 0 { commands.len() } else { fast };
        for ((_, command), times) in commands.iter_mut().zip(&mut times).take(count) {
            times.push(time(command));
        }
    }
    let median = |times: &[Spent], part: fn(&Spent) -> Duration| {
        let mut times: Vec<_> = times.iter().map(part).collect();
        times.sort();
        times[times.len() / 2].as_secs_f64()
    };
    commands
        .iter()
        .zip(times)
        .map(|((name, command), times)| {
            let packets = match command.get_program() == "tshark" {
                true => TSHARK_PACKETS.min(packets),
                false => packets,
            };
            Result {
                case: format!("{}, {name}", workload.name),
                flows: workload.flows,
                packets,
                rounds: times.len(),
                mpkt_per_s: packets as f64 / median(&times, |spent| spent.clock) / 1e6,
                cpu_ns_per_packet: median(&times, |spent| spent.cpu) / packets as f64 * 1e9,
                command: words(command),
            }
        })
        .collect()
}

/// Without a number of workers, as many as it takes by itself.
fn causeway(capture: &Path, estimators: &str, workers: Option<usize>) -> Command {
    let mut command = Command::new(product::find(None).expect("the product's binary"));
    command.args(["measure", "-o", "csv", "--estimator", estimators]);
    if let Some(workers) = workers {
        command.arg("--threads").arg(workers.to_string());
    }
    command.arg("-r").arg(capture);
    command
}

fn peer(program: &str, args: &[&str], capture: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(args).arg(capture);
    command
}

/// The command without the paths of this machine.
fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let word = |word: &std::ffi::OsStr| match Path::new(word).file_name() {
        Some(name) => name.to_string_lossy().into_owned(),
        None => word.to_string_lossy().into_owned(),
    };
    words.map(word).collect::<Vec<_>>().join(" ")
}

/// What a run took.
#[derive(Clone)]
struct Spent {
    clock: Duration,
    cpu: Duration,
}

fn time(command: &mut Command) -> Spent {
    let (before, started) = (cpu(), Instant::now());
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    let clock = started.elapsed();
    assert!(
        status.expect("the program starts").success(),
        "{command:?} failed"
    );
    let cpu = cpu().saturating_sub(before);
    Spent { clock, cpu }
}

/// Processor time of all programs that ran to their end.
fn cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("getrusage");
    let time = |time: TimeVal| Duration::from_micros(time.num_microseconds() as u64);
    time(usage.user_time()) + time(usage.system_time())
}

fn installed(program: &str) -> bool {
    let run = Command::new(program)
        .arg("-v")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    run.is_ok()
}

/// Writes about `packets` packets and says how many there are.
fn write_capture(workload: &Workload, packets: usize, path: &Path) -> std::io::Result<usize> {
    let base = zstd::decode_all(File::open(testdata(workload.recording))?)?;
    let (header, records) = base.split_at(24);
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    out.write_all(header)?;
    let mut written = 0;
    // Of the recording; at most two.
    let mut clients = Vec::new();
    for repetition in 0.. {
        for record in split(records) {
            let mut record = record.to_vec();
            let seconds = word(&record, 0) + repetition * SPAN_S;
            record[..4].copy_from_slice(&seconds.to_le_bytes());
            let (address, port) = client(&record);
            let known = half(&record, port);
            let nth = clients.iter().position(|&port| port == known);
            let nth = nth.unwrap_or_else(|| {
                clients.push(known);
                clients.len() - 1
            });
            let offset = (repetition * 2 + nth as u32) % PORTS;
            record[port..port + 2].copy_from_slice(&(FIRST_PORT + offset as u16).to_be_bytes());
            for flow in 0..workload.flows as u32 {
                // 10.0.0.0/8, whatever the recording had.
                record[address..address + 4].copy_from_slice(&(0x0a00_0001 + flow).to_be_bytes());
                out.write_all(&record)?;
            }
            written += workload.flows;
            if written >= packets {
                out.flush()?;
                return Ok(written);
            }
        }
    }
    Ok(written)
}

/// The records of a little-endian pcap, each with its header.
fn split(records: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = records;
    std::iter::from_fn(move || {
        let (record, after) = rest.split_at_checked(16 + word(rest.get(..16)?, 8) as usize)?;
        rest = after;
        Some(record)
    })
}

/// Offsets of the client's address and port: it is the side with the higher port.
fn client(record: &[u8]) -> (usize, usize) {
    match half(record, SOURCE_PORT) > half(record, SOURCE_PORT + 2) {
        true => (SOURCE, SOURCE_PORT),
        false => (SOURCE + 4, SOURCE_PORT + 2),
    }
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../testdata/measure")
        .join(name)
}
