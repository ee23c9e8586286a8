// SPDX-License-Identifier: Apache-2.0
//! What may be read: containers and compressions, and what is said of damage.

use std::fs;
use std::io::{Read, Write};

use tempfile::TempDir;

use crate::{HEADER, measure, measure_stdin, records, stderr, stdout, testdata, unpacked};

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
    // Several blocks of every compression: of one that is cut there may be nothing.
    let once = unpacked("w1.pcap.zst");
    let mut pcap = once.clone();
    (0..60).for_each(|_| pcap.extend(&once[24..]));
    for mut bytes in [
        gzip(&pcap),
        zstd::encode_all(&pcap[..], 1).unwrap(),
        xz(&pcap),
        lz4(&pcap),
    ] {
        bytes.truncate(bytes.len() - 20);
        for threads in ["0", "2"] {
            let output = measure_stdin(&bytes, &["-o", "csv", "--threads", threads]);
            assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
            assert!(
                stderr(&output).contains("\ncauseway: -: "),
                "{}",
                stderr(&output)
            );
            // What came before the damage is measured, as that of a plain file is.
            assert!(stdout(&output).lines().count() > 1, "{}", stderr(&output));
            assert!(
                stderr(&output).contains(" measured in "),
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
    fn zst(bytes: &[u8]) -> Vec<u8> {
        zstd::encode_all(bytes, 1).unwrap()
    }
    // As two programs have written it, or one that was told to flush.
    let halves = pcap.split_at(pcap.len() / 2);
    let twice = |pack: fn(&[u8]) -> Vec<u8>| [pack(halves.0), pack(halves.1)].concat();
    let files = [
        ("plain", pcap.clone()),
        ("gz", gzip(&pcap)),
        ("ng", ng.clone()),
        ("ng.zst", zst(&ng)),
        ("ng.gz", gzip(&ng)),
        ("xz", xz(&pcap)),
        ("lz4", lz4(&pcap)),
        ("gz.twice", twice(gzip)),
        ("zst.twice", twice(zst)),
        ("xz.twice", twice(xz)),
        ("lz4.twice", twice(lz4)),
    ];
    for (name, bytes) in &files {
        // No suffix: the content gives the format.
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
fn results_do_not_take_the_captures_place() {
    let dir = TempDir::new().unwrap();
    let (path, link) = (dir.path().join("x.pcap"), dir.path().join("y.pcap"));
    let pcap = unpacked("w4.pcap.zst");
    fs::write(&path, &pcap).unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for out in [&path, &link] {
        let output = measure(&path, &["-o", "csv", "--out", out.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains("is the capture itself"));
        assert!(fs::read(&path).unwrap() == pcap);
    }
}

/// As tcpdump has packets that pass a bridge and its ports, or come to a balancer and leave it.
#[test]
fn packets_that_passed_twice_are_of_one() {
    let pcap = unpacked("both.pcap.zst");
    let mut copied = pcap[..24].to_vec();
    let mut at = 24;
    for (_, _, data) in records(&pcap) {
        let record = &pcap[at..at + 16 + data.len()];
        copied.extend([record, record].concat());
        at += record.len();
    }
    let estimators =
        "window-chain,handshake,ts-echo,seq-ack,seq-ack-client,timestamps,timestamps-client";
    let args = ["-o", "csv", "--estimator", estimators];
    let (once, twice) = (measure_stdin(&pcap, &args), measure_stdin(&copied, &args));
    assert!(stdout(&once).contains(",handshake,"));
    assert_eq!(stdout(&twice), stdout(&once));
}
