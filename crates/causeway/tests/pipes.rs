// SPDX-License-Identifier: Apache-2.0
//! Commands at one end of a pipe.

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
