// SPDX-License-Identifier: Apache-2.0
//! Captures that come bit by bit: what a pipe gives, and when.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::{HEADER, measure, measure_stdin, stderr, stdout};

const SECOND_NS: u64 = 1_000_000_000;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// A little-endian pcap of Ethernet with times in nanoseconds.
fn header() -> Vec<u8> {
    let words = [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 65_535, 1];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A segment of the client with this port. Times are since an hour of 2001.
fn segment(time_ns: u64, port: u16, flags: u8, seq: u32, ack: u32, payload: u16) -> Vec<u8> {
    let ip_len = 40 + payload;
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0]);
    frame.extend(ip_len.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend(port.to_be_bytes());
    frame.extend(80_u16.to_be_bytes());
    frame.extend(seq.to_be_bytes());
    frame.extend(ack.to_be_bytes());
    frame.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    frame.resize(14 + usize::from(ip_len), 0);
    let len = frame.len() as u32;
    let seconds = 1_000_000_000 + (time_ns / SECOND_NS) as u32;
    let head = [seconds, (time_ns % SECOND_NS) as u32, len, len];
    let head = head.iter().flat_map(|word| word.to_le_bytes());
    head.chain(frame).collect()
}

/// A connection of some requests that take 3 ms each, which its client closes or leaves.
fn connection(at_ns: u64, port: u16, requests: u32, closes: bool) -> Vec<(u64, Vec<u8>)> {
    let mut packets = Vec::new();
    let mut add = |ms: u64, flags, seq, ack, payload| {
        let time_ns = at_ns + ms * 1_000_000;
        packets.push((time_ns, segment(time_ns, port, flags, seq, ack, payload)));
    };
    add(0, SYN, 0, 0, 0);
    add(1, ACK, 1, 1, 0);
    for n in 0..requests {
        let at_ms = 1 + 3 * u64::from(n);
        add(at_ms, ACK, 1 + 100 * n, 1 + 500 * n, 100);
    }
    let (end_ms, seq, ack) = (
        1 + 3 * u64::from(requests),
        1 + 100 * requests,
        1 + 500 * requests,
    );
    add(end_ms, ACK, seq, ack, 0);
    if closes {
        add(end_ms, ACK | FIN, seq, ack, 0);
    }
    packets
}

/// Ten minutes with one connection all the time, and a short one each second.
fn ten_minutes(closes: bool) -> Vec<u8> {
    let mut packets = connection(0, 30_000, 200_000, true);
    for second in 0..600 {
        let at_ns = u64::from(second) * SECOND_NS + 50_000_000;
        packets.extend(connection(at_ns, 40_000 + second, 2, closes));
    }
    packets.sort_by_key(|(time_ns, _)| *time_ns);
    let records = packets.into_iter().flat_map(|(_, record)| record);
    header().into_iter().chain(records).collect()
}

#[test]
fn a_closed_connection_has_its_row_while_the_pipe_is_open() {
    for threads in ["0", "2"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_causeway"))
            .args(["measure", "-r", "-", "-o", "csv", "--threads", threads])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(&header()).unwrap();
        for (_, record) in connection(0, 40_000, 2, true) {
            pipe.write_all(&record).unwrap();
        }
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (tell, told) = mpsc::channel();
        let reading = thread::spawn(move || lines.for_each(|line| _ = tell.send(line.unwrap())));
        let line = || told.recv_timeout(Duration::from_secs(20));
        let first = [line(), line()];
        drop(pipe);
        assert!(child.wait().unwrap().success());
        reading.join().unwrap();
        let [Ok(head), Ok(row)] = first else {
            panic!("{threads} threads: {first:?}")
        };
        assert_eq!(head, HEADER);
        assert!(row.starts_with("6,10.0.0.1,40000,10.0.0.2,80,"), "{row}");
        assert_eq!(told.try_iter().count(), 0, "a row came twice");
    }
}

#[test]
fn groups_from_a_pipe_are_those_of_the_file() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("ten.pcap");
    for closes in [true, false] {
        let pcap = ten_minutes(closes);
        std::fs::write(&path, &pcap).unwrap();
        for format in ["csv", "hdr"] {
            let args = ["-o", format, "--per", "server", "--epoch", "1s"];
            let expected = measure(&path, &args);
            assert!(expected.status.success(), "{}", stderr(&expected));
            assert!(stdout(&expected).lines().count() > 600);
            // A file has an end, whoever opens it.
            let same = Command::new(env!("CARGO_BIN_EXE_causeway"))
                .args(["measure", "-r", "-"])
                .args(args)
                .stdin(File::open(&path).unwrap())
                .output()
                .unwrap();
            assert!(
                stdout(&same) == stdout(&expected),
                "{format}, a file on stdin"
            );
            // What is left open has its rows at the end of a pipe, and too late for its groups.
            if closes {
                let piped = measure_stdin(&pcap, &args);
                assert!(stdout(&piped) == stdout(&expected), "{format}, a pipe");
            }
        }
    }
}
