// SPDX-License-Identifier: Apache-2.0
//! Estimates against what the recorded clients measured.

use std::collections::BTreeMap;

use crate::{EPOCH_NS, measure, stdout, testdata, unpacked};

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
