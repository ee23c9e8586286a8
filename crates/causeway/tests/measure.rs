// SPDX-License-Identifier: Apache-2.0
//! `causeway measure` from the outside: whole files in, whole outputs out.

#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const EPOCH_NS: u64 = 100_000_000;
const HEADER: &str = "proto,src,sport,dst,dport,epoch_start_ns,estimate_us,samples,window,quality";

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../testdata/measure")
        .join(name)
}

fn unpacked(name: &str) -> Vec<u8> {
    zstd::decode_all(fs::File::open(testdata(name)).unwrap()).unwrap()
}

fn measure(file: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_causeway"));
    command
        .arg("measure")
        .arg("-r")
        .arg(file)
        .args(args)
        .output()
        .unwrap()
}

fn measure_stdin(bytes: &[u8], args: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_causeway"))
        .args(["measure", "-r", "-"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // A faulty file may not be read to its end.
        scope.spawn(move || _ = stdin.write_all(bytes));
        child.wait_with_output().unwrap()
    })
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// The records of a little-endian nanosecond pcap: time, wire length, bytes.
fn records(pcap: &[u8]) -> Vec<(u64, u32, &[u8])> {
    let word = |at: usize| u32::from_le_bytes(pcap[at..at + 4].try_into().unwrap());
    let (mut at, mut records) = (24, Vec::new());
    while at < pcap.len() {
        let time_ns = u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4));
        let end = at + 16 + word(at + 8) as usize;
        records.push((time_ns, word(at + 12), &pcap[at + 16..end]));
        at = end;
    }
    records
}

/// The same packets as a big-endian pcapng file.
fn pcapng(pcap: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut block = |kind: u32, body: &[u8]| {
        let len = (body.len().next_multiple_of(4) + 12) as u32;
        out.extend(kind.to_be_bytes());
        out.extend(len.to_be_bytes());
        out.extend(body);
        out.resize(out.len().next_multiple_of(4), 0);
        out.extend(len.to_be_bytes());
    };
    let section = [
        &0x1a2b_3c4d_u32.to_be_bytes()[..],
        &[0, 1, 0, 0],
        &[0xff; 8],
    ]
    .concat();
    block(0x0a0d_0d0a, &section);
    block(
        1,
        &[0, 1, 0, 0, 0, 0, 0, 128, 0, 9, 0, 1, 9, 0, 0, 0, 0, 0, 0, 0],
    );
    for (time_ns, wire_len, data) in records(pcap) {
        let mut body = vec![0; 4];
        body.extend(time_ns.to_be_bytes());
        body.extend((data.len() as u32).to_be_bytes());
        body.extend(wire_len.to_be_bytes());
        body.extend(data);
        block(6, &body);
    }
    out
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    flate2::read::GzEncoder::new(bytes, flate2::Compression::fast())
        .read_to_end(&mut out)
        .unwrap();
    out
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let options = lzma_rust2::XzOptions::with_preset(1);
    let mut out = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

fn lz4(bytes: &[u8]) -> Vec<u8> {
    let mut out = lz4_flex::frame::FrameEncoder::new(Vec::new());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

#[test]
fn a_damaged_compression_is_an_error_with_and_without_threads() {
    let pcap = unpacked("w1.pcap.zst");
    for mut bytes in [
        gzip(&pcap),
        zstd::encode_all(&pcap[..], 1).unwrap(),
        xz(&pcap),
        lz4(&pcap),
    ] {
        bytes.truncate(bytes.len() / 2);
        for threads in ["0", "2"] {
            let output = measure_stdin(&bytes, &["-o", "csv", "--threads", threads]);
            assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
            assert!(
                stderr(&output).starts_with("causeway: -: "),
                "{}",
                stderr(&output)
            );
        }
    }
}

#[test]
fn every_container_and_number_of_threads_gives_the_same() {
    let dir = TempDir::new().unwrap();
    let pcap = unpacked("w4.pcap.zst");
    let args = ["-o", "csv", "--epoch", "200ms"];
    let expected = measure(&testdata("w4.pcap.zst"), &args);
    assert!(expected.status.success(), "{}", stderr(&expected));
    assert!(stdout(&expected).starts_with(HEADER));
    assert!(stdout(&expected).lines().count() > 8);

    let ng = pcapng(&pcap);
    let zst = |bytes: &[u8]| zstd::encode_all(bytes, 1).unwrap();
    let files = [
        ("plain", pcap.clone()),
        ("gz", gzip(&pcap)),
        ("ng", ng.clone()),
        ("ng.zst", zst(&ng)),
        ("ng.gz", gzip(&ng)),
        ("xz", xz(&pcap)),
        ("lz4", lz4(&pcap)),
    ];
    for (name, bytes) in &files {
        // No suffix: the content tells the format.
        let path = dir.path().join(name.replace('.', "_"));
        fs::write(&path, bytes).unwrap();
        assert_eq!(stdout(&measure(&path, &args)), stdout(&expected), "{name}");
        assert_eq!(
            stdout(&measure_stdin(bytes, &args)),
            stdout(&expected),
            "{name} on stdin"
        );
    }
    for threads in ["0", "1", "3"] {
        let args = [&args[..], &["--threads", threads]].concat();
        let output = measure(&testdata("w4.pcap.zst"), &args);
        assert_eq!(stdout(&output), stdout(&expected), "{threads} threads");
        assert_eq!(stderr(&output), stderr(&expected), "{threads} threads");
    }
}

/// A recording, from so many ports at once, so many times: each time two seconds later and
/// from other ports.
fn repeated(flows: u16, passes: u16) -> (Vec<u8>, usize) {
    const SOURCE_PORT: usize = 16 + 14 + 20;
    let pcap = unpacked("w4.pcap.zst");
    let (mut many, mut packets) = (pcap[..24].to_vec(), 0);
    for pass in 0..passes {
        let mut rest = &pcap[24..];
        while let Some(head) = rest.first_chunk::<16>() {
            let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
            let (record, after) = rest.split_at(16 + word(8) as usize);
            rest = after;
            let seconds = word(0) + 2 * u32::from(pass);
            for flow in 0..flows {
                let port = 40_000 + 100 * pass + flow;
                let start = many.len();
                many.extend(record);
                many[start..start + 4].copy_from_slice(&seconds.to_le_bytes());
                let at = start + SOURCE_PORT;
                many[at..at + 2].copy_from_slice(&port.to_be_bytes());
                packets += 1;
            }
        }
    }
    (many, packets)
}

/// So many packets that every share reports its rows several times: they come in the
/// order of one thread all the same, and so do those of the flows that end with the file.
/// With one flow at a time one share has all the work.
#[test]
fn rows_of_many_rounds_keep_their_order() {
    for (flows, passes) in [(60, 2), (1, 80)] {
        let (many, packets) = repeated(flows, passes);
        assert!(packets > 3 * 16 * 2048);
        let output = |threads, estimators| {
            let args = ["-o", "csv", "--threads", threads, "--estimator", estimators];
            let output = measure_stdin(&many, &args);
            assert!(output.status.success(), "{}", stderr(&output));
            (stdout(&output).to_owned(), stderr(&output).to_owned())
        };
        for estimators in ["window-chain", "window-chain,fixed-gap,modes", "all"] {
            let alone = output("0", estimators);
            assert!(alone.0.lines().count() > usize::from(flows * passes) * 2);
            for threads in ["1", "2", "3", "8"] {
                let several = output(threads, estimators);
                assert!(
                    several == alone,
                    "{flows} flows, {estimators}, {threads} threads"
                );
            }
        }
    }
}

/// Who reads the rows goes away: all threads end.
#[test]
fn a_reader_that_leaves_ends_all_threads() {
    let (many, _) = repeated(20, 4);
    let path = TempDir::new().unwrap();
    let path = path.path().join("many.pcap");
    fs::write(&path, many).unwrap();
    for threads in ["0", "1", "4"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_causeway"))
            .args([
                "measure",
                "-o",
                "csv",
                "--epoch",
                "10us",
                "--threads",
                threads,
                "-r",
            ])
            .arg(&path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        assert!(child.wait().unwrap().success(), "{threads} threads");
    }
}

/// Mean latency by epoch, from lines of send and last-byte time.
fn truth(name: &str) -> BTreeMap<u64, f64> {
    let csv = String::from_utf8(unpacked(name)).unwrap();
    let mut sums: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for line in csv.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let (send_ns, last_ns): (u64, u64) =
            (fields[5].parse().unwrap(), fields[6].parse().unwrap());
        let sum = sums.entry(last_ns / EPOCH_NS * EPOCH_NS).or_default();
        sum.0 += (last_ns - send_ns) as f64 / 1e3;
        sum.1 += 1.0;
    }
    sums.into_iter()
        .map(|(epoch, (sum, count))| (epoch, sum / count))
        .collect()
}

/// Median of the absolute relative error, and the share of epochs answered.
fn score(name: &str, args: &[&str]) -> (f64, f64) {
    let args = [&["-o", "csv", "--epoch", "100ms"], args].concat();
    let output = measure(&testdata(&format!("{name}.pcap.zst")), &args);
    let truth = truth(&format!("{name}.truth.csv.zst"));
    let mut errors = Vec::new();
    for line in stdout(&output).lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let (epoch, estimate): (u64, f64) =
            (fields[5].parse().unwrap(), fields[6].parse().unwrap());
        assert!(fields[7].parse::<u64>().unwrap() > 0);
        if let Some(truth) = truth.get(&epoch) {
            errors.push((estimate - truth).abs() / truth);
        }
    }
    errors.sort_by(f64::total_cmp);
    (
        errors[errors.len() / 2],
        errors.len() as f64 / truth.len() as f64,
    )
}

#[test]
fn estimates_are_near_what_the_client_measured() {
    for (name, args, limit) in [
        ("w1", &[][..], 0.002),
        ("w1", &["--estimator", "fixed-gap"], 0.003),
        ("w1", &["--estimator", "modes"], 0.05),
        ("w1", &["--headers", "opaque"], 0.003),
        ("w4", &[], 0.012),
        ("w4", &["--headers", "opaque"], 0.05),
        ("h3", &[], 0.04),
    ] {
        let (error, coverage) = score(name, args);
        println!("{name} {args:?}: median error {error:.4}, coverage {coverage:.2}");
        assert!(error <= limit, "{name} {args:?}: median error {error}");
        assert!(coverage >= 0.9, "{name} {args:?}: coverage {coverage}");
    }
}

/// The last line of standard error of a run that failed, without the file's name.
fn complaint(bytes: &[u8]) -> String {
    let output = measure_stdin(bytes, &["-o", "csv"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let line = stderr(&output)
        .lines()
        .last()
        .unwrap_or_default()
        .to_owned();
    line.strip_prefix("causeway: -: ")
        .unwrap_or(&line)
        .to_owned()
}

#[test]
fn a_bad_file_is_one_clear_sentence() {
    let pcap = unpacked("w1.pcap.zst");
    let not_capture = "not a capture file: it starts neither like pcap nor like pcapng";
    assert_eq!(complaint(b""), "the input is empty");
    assert_eq!(complaint(b"<!doctype html>"), not_capture);
    assert_eq!(complaint(&gzip(b"<!doctype html>")), not_capture);
    assert_eq!(
        complaint(&pcap[..10]),
        "the capture file is cut within its header"
    );

    let mut bluetooth = pcap.clone();
    bluetooth[20] = 187;
    assert_eq!(
        complaint(&bluetooth),
        "link type 187 is not supported (tcpdump.org/linktypes.html names it; Ethernet, Linux cooked, raw IP, loopback, PPP and some more are)"
    );

    // What came before the damage is still measured.
    let mut damaged = pcap.clone();
    let half = damaged_record(&pcap);
    damaged[half + 8..half + 12].fill(0xff);
    let output = measure_stdin(&damaged, &["-o", "csv"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).lines().count() > 3);
    assert!(stderr(&output).ends_with(&format!(
        "causeway: -: the capture file is damaged at byte {half}: a record claims more than 16 MiB\n"
    )));

    let compressed = gzip(&pcap);
    let output = measure_stdin(&compressed[..compressed.len() / 2], &["-o", "csv"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}

/// The offset of a record half-way through the file.
fn damaged_record(pcap: &[u8]) -> usize {
    let records = records(pcap);
    24 + records[..records.len() / 2]
        .iter()
        .map(|(_, _, data)| 16 + data.len())
        .sum::<usize>()
}

#[test]
fn a_cut_file_is_measured_and_said_to_be_cut() {
    let pcap = unpacked("w1.pcap.zst");
    let output = measure_stdin(&pcap[..pcap.len() - 7], &["-o", "csv"]);
    assert!(output.status.success());
    assert!(stderr(&output).contains("the last record is cut short"));
    assert!(stdout(&output).lines().count() > 5);
}

#[test]
fn a_missing_file_and_a_directory_are_named() {
    let dir = TempDir::new().unwrap();
    let missing = dir.path().join("none.pcap");
    let output = measure(&missing, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output),
        format!(
            "causeway: {}: No such file or directory (os error 2)\n",
            missing.display()
        )
    );
    let output = measure(dir.path(), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("is a directory"));
}

#[test]
fn skipped_packets_are_counted_by_reason() {
    let mut pcap = unpacked("w1.pcap.zst");
    let count = records(&pcap).len();
    let arp = [&[0xff; 12][..], &[0x08, 0x06], &[0; 28]].concat();
    let icmp = {
        let mut packet = records(&pcap)[0].2.to_vec();
        packet[14 + 9] = 1;
        packet
    };
    for packet in [&arp, &icmp, &arp] {
        pcap.extend([0; 8]);
        pcap.extend((packet.len() as u32).to_le_bytes());
        pcap.extend((packet.len() as u32).to_le_bytes());
        pcap.extend(packet);
    }
    let output = measure_stdin(&pcap, &["-o", "csv"]);
    assert!(output.status.success());
    let expected = format!(
        "{} packets, {count} measured in 1 flows, 3 skipped (not_ip 2, protocol 1), \
         1 timestamps going backwards\n",
        count + 3
    );
    assert_eq!(stderr(&output), expected);
}

#[test]
fn filters_and_directions_choose_the_packets() {
    let file = testdata("w4.pcap.zst");
    let all = stdout(&measure(&file, &["-o", "csv"])).to_owned();
    for args in [
        ["--port", "8080"],
        ["--host", "10.9.0.0/16"],
        ["--client-net", "10.9.1.0/24"],
    ] {
        let args = [&["-o", "csv"][..], &args].concat();
        assert_eq!(stdout(&measure(&file, &args)), all, "{args:?}");
    }
    for args in [
        ["--port", "81"],
        ["--host", "192.0.2.1"],
        ["--client-net", "10.9.2.2"],
    ] {
        let args = [&["-o", "csv"][..], &args].concat();
        let output = measure(&file, &args);
        assert!(output.status.success());
        assert_eq!(stdout(&output), format!("{HEADER}\n"), "{args:?}");
    }
    let wrong = measure(&file, &["--client-net", "10.9.2.2"]);
    assert!(stderr(&wrong).contains("every packet seems to come from a server"));
    assert_eq!(measure(&file, &["--epoch", "200"]).status.code(), Some(2));
}

#[test]
fn json_lines_and_server_rows_say_the_same_as_csv() {
    let file = testdata("w4.pcap.zst");
    let csv = measure(&file, &["-o", "csv", "--per", "server"]);
    let json = measure(&file, &["-o", "json", "--per", "server"]);
    assert!(
        stdout(&csv)
            .starts_with("proto,dst,dport,epoch_start_ns,estimate_us,samples,window,quality\n")
    );
    let from_json: Vec<String> = stdout(&json)
        .lines()
        .map(|line| {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            format!(
                "{},{},{},{},{:.3},{},{},{}",
                row["proto"],
                row["dst"].as_str().unwrap(),
                row["dport"],
                row["epoch_start_ns"],
                row["estimate_us"].as_f64().unwrap(),
                row["samples"],
                row["window"]
                    .as_u64()
                    .map_or(String::new(), |w| w.to_string()),
                row["quality"].as_str().unwrap()
            )
        })
        .collect();
    assert_eq!(from_json, stdout(&csv).lines().skip(1).collect::<Vec<_>>());
}

#[test]
fn several_estimators_stand_side_by_side() {
    let file = testdata("w1.pcap.zst");
    let together = measure(
        &file,
        &["-o", "csv", "--estimator", "window-chain,fixed-gap,modes"],
    );
    for name in ["window-chain", "fixed-gap", "modes"] {
        let alone = measure(&file, &["-o", "csv", "--estimator", name]);
        let column = format!(",{name},");
        let mine: Vec<String> = stdout(&together)
            .lines()
            .filter(|line| line.contains(&column))
            .map(|line| line.replacen(&column, ",", 1))
            .collect();
        assert_eq!(
            mine,
            stdout(&alone).lines().skip(1).collect::<Vec<_>>(),
            "{name}"
        );
    }
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_causeway"))
        .args(["measure", "-o", "csv", "--epoch", "1ms", "-r"])
        .arg(testdata("w4.pcap.zst"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
}

/// Rows of an endless input come while it runs, not at its end.
#[test]
fn rows_of_a_pipe_come_as_they_are_complete() {
    let pcap = unpacked("w4.pcap.zst");
    let mut child = Command::new(env!("CARGO_BIN_EXE_causeway"))
        .args(["measure", "-r", "-", "-o", "csv", "--threads", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let (first, rest) = pcap.split_at(pcap.len() / 2);
    stdin.write_all(first).unwrap();
    let mut seen = Vec::new();
    let mut stdout = child.stdout.take().unwrap();
    while seen.iter().filter(|&&byte| byte == b'\n').count() < 3 {
        let mut buffer = [0; 4096];
        let count = stdout.read(&mut buffer).unwrap();
        assert!(count > 0, "the program ended early");
        seen.extend(&buffer[..count]);
    }
    stdin.write_all(rest).unwrap();
    drop(stdin);
    stdout.read_to_end(&mut seen).unwrap();
    child.wait().unwrap();
    let whole = measure(&testdata("w4.pcap.zst"), &["-o", "csv"]);
    assert_eq!(seen, whole.stdout);
}

/// Every command of the manual, with the output that it shows.
#[test]
fn the_manual_shows_what_the_program_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let manual = fs::read_to_string(root.join("docs/measure.md")).unwrap();
    let mut examples = 0;
    for block in manual.split("```console\n$ causeway ").skip(1) {
        let (example, _) = block.split_once("```").unwrap();
        let (command, expected) = example.split_once('\n').unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_causeway"))
            .current_dir(&root)
            .args(command.split(' '))
            .output()
            .unwrap();
        assert_eq!(stdout(&output), expected, "{command}");
        examples += 1;
    }
    assert!(examples >= 4, "{examples} examples");
}

#[test]
fn tcpdumps_words_select_packets() {
    let w4 = testdata("w4.pcap.zst");
    let all = measure(&w4, &["-o", "csv"]);
    for words in [
        &["tcp dst port 8080"][..],
        &["tcp", "dst", "port", "8080", "and", "net", "10.9.0.0/16"],
    ] {
        let output = measure(&w4, &[&["-o", "csv"], words].concat());
        assert_eq!(stdout(&output), stdout(&all), "{words:?}");
    }
    let none = measure(&w4, &["-o", "csv", "udp or ip6"]);
    assert!(none.status.success());
    assert_eq!(stdout(&none).lines().count(), 1);
    assert!(stderr(&none).contains(" filtered out"), "{}", stderr(&none));
    // A part of the packets, by any number of threads: what --port selects.
    let mut both = unpacked("w4.pcap.zst");
    both.extend_from_slice(&unpacked("h3.pcap.zst")[24..]);
    let by_port = measure_stdin(&both, &["-o", "csv", "--port", "8080"]);
    assert_eq!(stdout(&by_port), stdout(&all));
    for threads in ["0", "1", "3"] {
        let output = measure_stdin(&both, &["-o", "csv", "--threads", threads, "port 8080"]);
        assert_eq!(stdout(&output), stdout(&by_port), "{threads} threads");
    }

    let wrong = measure(&w4, &["tcp dst and 8080"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(
        stderr(&wrong).contains("the filter expression `tcp dst and 8080` is refused"),
        "{}",
        stderr(&wrong)
    );
    assert_eq!(stderr(&wrong).lines().count(), 1);
}
