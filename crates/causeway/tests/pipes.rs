// SPDX-License-Identifier: Apache-2.0
//! Commands at one end of a pipe, and in an environment.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn a_reader_that_is_gone_ends_a_command_quietly() {
    for arguments in [
        "generate completions bash",
        "config check ../../packaging/etc/causeway.toml",
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_causeway"))
            .args(arguments.split(' '))
            .stdout(writer)
            .output()
            .expect("causeway runs");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments}: it printed nothing");
        // Notes are of what this machine lacks.
        let is_quiet = message.lines().all(|line| line.starts_with("note: "));
        assert!(is_quiet, "{arguments}: {message}");
    }
}

#[test]
fn a_token_that_there_is_no_room_for_leaves_the_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("tokens");
    let add = |name: &str, limit: &str| {
        // Without the signal, a write beyond the limit is an error, as on a full disk.
        let script = "trap '' XFSZ; exec prlimit --fsize=\"$1\" \"$2\" token \"$3\" --add \"$4\"";
        let binary = env!("CARGO_BIN_EXE_causeway");
        let added = Command::new("sh")
            .args(["-c", script, "sh", limit, binary, name])
            .arg(&file)
            .output();
        added.expect("sh runs").status.success()
    };
    let text = || std::fs::read_to_string(&file).expect("the tokens");
    assert!(add("alice", "unlimited"));
    let before = text();
    let limit = before.len() + 20;
    assert!(!add("bob", &limit.to_string()));
    assert_eq!(text(), before);
    assert!(add("bob", "unlimited"));
    assert_eq!(text().lines().count(), 2);
}

#[test]
fn what_the_environment_gives_is_not_said_to_be_required() {
    let output = Command::new(env!("CARGO_BIN_EXE_causeway"))
        .args(["real", "drain", "10.0.0.1"])
        .env("CAUSEWAY_SOCKET", "/run/x.sock")
        .output()
        .expect("causeway runs");
    let told = String::from_utf8_lossy(&output.stderr);
    let usage = "Usage: causeway real drain <VIP|--all> <REAL>\n";
    assert!(told.contains(usage), "{told}");
}

/// `tcpdump -w - | causeway measure -r -`, which gets the Ctrl-C, too.
#[test]
fn a_signal_is_the_end_of_a_capture_from_a_pipe() {
    let capture = File::open("../../testdata/measure/w1.pcap.zst").expect("a capture");
    let capture = zstd::decode_all(capture).expect("it is whole");
    for (signal, threads) in [(Signal::SIGINT, "2"), (Signal::SIGTERM, "0")] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_causeway"))
            .args(["measure", "-r", "-", "-o", "csv", "--threads", threads])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("causeway runs");
        let mut pipe = child.stdin.take().expect("its input");
        pipe.write_all(&capture).expect("it reads");
        let mut rows = BufReader::new(child.stdout.take().expect("its output"));
        // It measures, so that it has caught signals.
        let mut told = String::new();
        (0..2).for_each(|_| _ = rows.read_line(&mut told).expect("a line"));
        let id = Pid::from_raw(child.id() as i32);
        kill(id, signal).expect("the signal is sent");
        rows.read_to_string(&mut told).expect("rows");
        let output = child.wait_with_output().expect("it ends");
        drop(pipe);
        let closing = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{signal}: {closing}");
        let packets = closing.split(' ').next().expect("a word");
        assert!(packets.parse::<u32>().is_ok_and(|n| n > 800), "{closing}");
        assert!(told.lines().count() > 5, "{told}");
    }
}

/// `tcpdump -w - | causeway shadow -r -`.
#[test]
fn a_signal_brings_the_report_of_what_came_from_a_pipe() {
    let capture = File::open("../../testdata/measure/w1.pcap.zst").expect("a capture");
    let capture = zstd::decode_all(capture).expect("it is whole");
    let mut child = Command::new(env!("CARGO_BIN_EXE_causeway"))
        .args(["shadow", "-r", "-", "-o", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("causeway runs");
    let mut pipe = child.stdin.take().expect("its input");
    pipe.write_all(&capture).expect("it reads");
    let status = format!("/proc/{}/status", child.id());
    let catches = || {
        let status = std::fs::read_to_string(&status).expect("it runs");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.expect("signals").trim(), 16).expect("a mask");
        caught & (1 << (Signal::SIGINT as i32 - 1)) != 0
    };
    let began = Instant::now();
    while !catches() {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "it catches no signal"
        );
        thread::sleep(Duration::from_millis(10));
    }
    let id = Pid::from_raw(child.id() as i32);
    kill(id, Signal::SIGINT).expect("the signal is sent");
    let output = child.wait_with_output().expect("it ends");
    drop(pipe);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.starts_with('{'), "{told}");
}
