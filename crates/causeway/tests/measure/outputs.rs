// SPDX-License-Identifier: Apache-2.0
//! Forms of the results, and when they come.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{measure, nobody_reads, stderr, stdout, testdata, unpacked};

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
    let output = Command::new(env!("CARGO_BIN_EXE_causeway"))
        .args(["measure", "-o", "csv", "--epoch", "1ms", "-r"])
        .arg(testdata("w4.pcap.zst"))
        .stdout(nobody_reads())
        .output()
        .unwrap();
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
    let manual = fs::read_to_string(root.join("docs/reference/measure.md")).unwrap();
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
