// SPDX-License-Identifier: Apache-2.0
//! `causeway import` as a process: what goes where, and what its exit code says. What is
//! carried over is tested in `causeway-import`.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

fn import(arguments: &str, text: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_causeway"))
        .arg("import")
        .args(arguments.split(' '))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("causeway runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    // One that refuses its file does not read this.
    let _ = stdin.write_all(text.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

const RULES: &str = "-A -t 192.0.2.1:80 -s wlc\n-a -t 192.0.2.1:80 -r 10.0.0.1:80 -i -w 1\n";

#[test]
fn everything_carried_over_ends_with_0_and_a_file_that_passes_the_check() {
    let output = import("ipvsadm --interface eth7", RULES);
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty());
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("lb.toml");
    std::fs::write(&file, &output.stdout).expect("write");
    let check = Command::new(env!("CARGO_BIN_EXE_causeway"))
        .args(["config", "check"])
        .arg(&file)
        .output()
        .expect("causeway runs");
    let said = String::from_utf8_lossy(&check.stdout);
    assert!(said.contains("ok: 1 VIP with 1 real on eth7"), "{said}");
}

#[test]
fn what_is_left_out_is_told_on_standard_error_and_ends_with_1() {
    let output = import("ipvsadm", &RULES.replace("wlc", "wlc -p 60"));
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        told.starts_with("standard input: line 1: persistent 60, left out: "),
        "{told}"
    );
    let file = String::from_utf8_lossy(&output.stdout);
    assert!(file.contains("# line 1: persistent 60") && file.contains("[[vip]]"));
}

#[test]
fn what_cannot_be_read_ends_with_2_and_writes_nothing() {
    for arguments in [
        "ipvsadm",
        "keepalived",
        "katran",
        "haproxy-tcp",
        "ipvsadm /nowhere",
    ] {
        let output = import(arguments, "%\n");
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(output.stdout.is_empty(), "{arguments}");
        assert!(!output.stderr.is_empty(), "{arguments}");
    }
}

#[test]
fn a_file_of_another_encoding_is_told_with_the_way_out() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), b"# one\n# caf\xe9\n").expect("written");
    let output = import(&format!("keepalived {}", file.path().display()), "");
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr);
    let expected = ": line 2: this is not UTF-8; of Latin 1, `iconv -f latin1 -t utf8 ";
    assert!(told.contains(expected), "{told}");
}

/// An interface's name that a file cannot have, from the command line.
#[test]
fn what_the_check_refuses_is_told() {
    let output = import("ipvsadm --interface a/b", RULES);
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("is not a valid interface name"), "{told}");
}
