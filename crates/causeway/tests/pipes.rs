// SPDX-License-Identifier: Apache-2.0
//! Commands at one end of a pipe, and in an environment.

use std::process::Command;

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
