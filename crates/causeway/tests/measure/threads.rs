// SPDX-License-Identifier: Apache-2.0
//! Any number of threads gives what one gives, and all of them end.

use std::fs;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::{measure_stdin, nobody_reads, stderr, stdout, unpacked};

/// A recording, from `flows` ports at once, `passes` times: each time two seconds later and from
/// other ports.
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

/// The reader of the rows goes away: all threads end.
#[test]
fn a_reader_that_leaves_ends_all_threads() {
    let (many, _) = repeated(20, 4);
    let path = TempDir::new().unwrap();
    let path = path.path().join("many.pcap");
    fs::write(&path, many).unwrap();
    for threads in ["0", "1", "4"] {
        let status = Command::new(env!("CARGO_BIN_EXE_causeway"))
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
            .stdout(nobody_reads())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "{threads} threads");
    }
}

/// `--max-flows` bounds the table, too, whichever thread had its flows.
#[test]
fn a_table_has_no_more_flows_than_are_held() {
    let (many, _) = repeated(100, 4);
    for threads in ["0", "1", "8"] {
        let output = measure_stdin(&many, &["--max-flows", "100", "--threads", threads]);
        assert!(output.status.success(), "{}", stderr(&output));
        // With its head and the line of the others.
        let lines = stdout(&output).lines().count();
        assert!((90..=102).contains(&lines), "{threads} threads: {lines}");
        assert!(stdout(&output).contains("(others)"), "{threads} threads");
        // As many for each estimator.
        let three = ["--estimator", "window-chain,fixed-gap,modes"];
        let args = [&["--max-flows", "1000", "--threads", threads], &three[..]].concat();
        let all = stdout(&measure_stdin(&many, &args)).lines().count();
        assert!(all > 600, "{threads} threads: {all}");
    }
}
