// SPDX-License-Identifier: Apache-2.0
//! `causeway measure` from the outside: whole files in, whole outputs out.

#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

mod accuracy;
mod files;
mod outputs;
mod selection;
mod shadow;
mod streams;
mod threads;

use std::fs;
use std::io::Write;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

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

/// An output whose reader has left. No pipe: a process that another test begins has its
/// reading end, too, for a moment.
fn nobody_reads() -> Stdio {
    let (reader, writer) = UnixStream::pair().unwrap();
    reader.shutdown(Shutdown::Both).unwrap();
    OwnedFd::from(writer).into()
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
