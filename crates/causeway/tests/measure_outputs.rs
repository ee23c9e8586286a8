// SPDX-License-Identifier: Apache-2.0
//! What `causeway measure` gives beside plain rows: comparisons, percentiles,
//! groups, histogram logs, reports.

#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use tempfile::TempDir;

fn testdata(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("../../testdata/measure").join(name)
}

fn measure(file: &str, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_causeway"))
        .args(["measure", "-r"])
        .arg(testdata(file))
        .args(args)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn json(file: &str, args: &[&str]) -> Vec<serde_json::Value> {
    let args = [&["-o", "json"], args].concat();
    let text = stdout(&measure(file, &args));
    let rows = text.lines().map(|line| serde_json::from_str(line).unwrap());
    rows.collect()
}

/// Mean over all rows of each estimator, in ms.
fn means(rows: &[serde_json::Value]) -> BTreeMap<String, (f64, f64)> {
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for row in rows {
        let sum = sums
            .entry(row["estimator"].as_str().unwrap().to_owned())
            .or_default();
        let samples = row["samples"].as_f64().unwrap();
        sum.0 += row["estimate_us"].as_f64().unwrap() / 1e3 * samples;
        sum.1 += samples;
    }
    sums.values_mut().for_each(|sum| sum.0 /= sum.1);
    sums
}

/// Both directions of two connections, captured beside the server. It answers after
/// 1, 2, 4 or 8 ms, in up to six segments; the clients logged a mean of 4.05 ms, and
/// paused before three requests in ten.
#[test]
fn every_technique_measures_what_it_says() {
    let rows = json("both.pcap.zst", &["--estimator", "all", "--epoch", "1s"]);
    let means = means(&rows);
    let near = |name: &str, truth_ms: f64, tolerance_ms: f64| {
        let (mean_ms, samples) = means[name];
        let error = (mean_ms - truth_ms).abs();
        assert!(
            error <= tolerance_ms,
            "{name}: {mean_ms} ms from {samples} samples"
        );
    };
    near("window-chain", 4.05, 0.1);
    near("ts-echo", 4.05, 0.5);
    // No network to speak of: two namespaces of one machine.
    near("handshake", 0.0, 0.3);
    // Acknowledgements of requests ride on responses: the service time.
    near("seq-ack", 4.0, 0.4);
    near("timestamps", 4.0, 0.6);
    assert_eq!(means["handshake"].1, 2.0);
    assert!(means["seq-ack"].1 > 350.0 && means["sampled"].1 < means["seq-ack"].1);
    assert!(!means.contains_key("spin"), "TCP has no spin bit");
    // The client acknowledges at once most of the time, and late where it can wait.
    let args = [
        "--estimator",
        "seq-ack-client,timestamps-client",
        "--percentiles",
    ];
    for row in json(
        "both.pcap.zst",
        &[&args[..], &["--per", "server", "--epoch", "1h"]].concat(),
    ) {
        assert!(row["p50_us"].as_f64().unwrap() < 200.0, "{row}");
        assert!(row["p95_us"].as_f64().unwrap() > 5_000.0, "{row}");
    }
    for row in &rows {
        assert!(row["needs"] == "client to server" || row["needs"] == "both directions");
        assert!(row["measures"].as_str().unwrap().len() > 20);
        assert!(["low", "medium", "high"].contains(&row["quality"].as_str().unwrap()));
    }
}

/// Techniques of the request direction do not change when others stand beside them.
#[test]
fn a_comparison_leaves_the_estimators_as_they_are() {
    let alone = json("w4.pcap.zst", &["--estimator", "window-chain,modes"]);
    let beside = json("w4.pcap.zst", &["--compare", "--threads", "0"]);
    let only = |rows: &[serde_json::Value], name: &str| -> Vec<String> {
        let mine = rows.iter().filter(|row| row["estimator"] == name);
        mine.map(|row| {
            format!(
                "{} {} {}",
                row["epoch_start_ns"], row["estimate_us"], row["samples"]
            )
        })
        .collect()
    };
    for name in ["window-chain", "modes"] {
        assert_eq!(only(&alone, name), only(&beside, name), "{name}");
    }
}

#[test]
fn the_comparison_shows_every_estimator_and_what_it_means() {
    let text = stdout(&measure("both.pcap.zst", &["--compare", "--per", "server"]));
    let header = text.lines().next().unwrap();
    for word in ["SAMPLES", "P50", "P99.9", "QUALITY", "ESTIMATOR"] {
        assert!(header.contains(word), "{header}");
    }
    let line = |name: &str| {
        let mut lines = text
            .lines()
            .filter(|line| line.contains(&format!(" {name} ")));
        lines
            .next()
            .unwrap_or_else(|| panic!("{name} in\n{text}"))
            .to_owned()
    };
    assert!(line("window-chain").contains("high") && line("window-chain").contains('█'));
    assert!(text.contains("both directions") && text.contains("client to server"));
    // QUIC alone has it: no line for TCP, but its meaning.
    assert_eq!(
        text.matches("spin").count(),
        1 + text.matches("spin bit").count()
    );
}

#[test]
fn percentiles_come_where_samples_suffice() {
    let rows = json("w4.pcap.zst", &["--percentiles", "--per", "server"]);
    assert!(rows.len() > 5);
    for row in &rows {
        let samples = row["samples"].as_u64().unwrap();
        let value = |name: &str| row[name].as_f64();
        for (name, least) in [
            ("p50_us", 2),
            ("p90_us", 10),
            ("p95_us", 20),
            ("p99_us", 100),
        ] {
            assert_eq!(value(name).is_some(), samples >= least, "{name} {row}");
        }
        assert!(
            value("p50_us") <= value("p90_us") || value("p90_us").is_none(),
            "{row}"
        );
    }
    let csv = stdout(&measure("w4.pcap.zst", &["-o", "csv", "--percentiles"]));
    let header = csv.lines().next().unwrap();
    assert!(header.ends_with("samples,window,quality,p50_us,p90_us,p95_us,p99_us,p99_9_us"));
    let columns = header.split(',').count();
    assert!(csv.lines().all(|line| line.split(',').count() == columns));
}

#[test]
fn groups_add_up() {
    let total = |per: &[&str]| -> u64 {
        let rows = json("both.pcap.zst", &[&["--epoch", "10s"], per].concat());
        rows.iter()
            .map(|row| row["samples"].as_u64().unwrap())
            .sum()
    };
    let flows = total(&[]);
    for per in ["server", "prefix", "vip"] {
        // Halves of two flows may make one more.
        let grouped = total(&["--per", per]);
        assert!(
            grouped >= flows && grouped <= flows + 2,
            "{per}: {grouped} and {flows}"
        );
    }
    let rows = json(
        "both.pcap.zst",
        &["--per", "prefix", "--prefix-len", "16,32"],
    );
    assert_eq!(rows[0]["client_net"], "10.7.0.0/16");
    assert!(rows[0].get("dst").is_none());
    let rows = json("both.pcap.zst", &["--per", "vip"]);
    assert_eq!(
        (&rows[0]["dst"], rows[0].get("dport")),
        (&"10.7.0.2".into(), None)
    );
}

/// Reads an interval log: tags with their histograms.
fn intervals(log: &[u8]) -> Vec<(String, f64, Histogram<u64>)> {
    let mut found = Vec::new();
    let mut deserializer = Deserializer::new();
    for entry in IntervalLogIterator::new(log) {
        let LogEntry::Interval(interval) = entry.unwrap() else {
            continue;
        };
        use base64::Engine as _;
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(interval.encoded_histogram())
            .unwrap();
        let histogram = deserializer.deserialize(&mut &bytes[..]).unwrap();
        let tag = interval.tag().unwrap().as_str().to_owned();
        found.push((tag, interval.start_timestamp().as_secs_f64(), histogram));
    }
    found
}

/// Histograms of flows and epochs, added up, are the server's: a reader that keeps parts
/// loses nothing.
#[test]
fn merged_histograms_are_the_whole() {
    let log = |args: &[&str]| {
        let output = measure("both.pcap.zst", &[&["-o", "hdr"], args].concat());
        stdout(&output).into_bytes()
    };
    let parts = intervals(&log(&["--epoch", "200ms"]));
    let whole = intervals(&log(&["--epoch", "1h", "--per", "server"]));
    assert_eq!(whole.len(), 1);
    assert_eq!(whole[0].0, "tcp:10.7.0.2:8080");
    assert!(parts.len() > 10 && parts[0].0.starts_with("tcp:10.7.0.1:"));
    assert!(
        parts.windows(2).all(|pair| pair[0].1 <= pair[1].1),
        "in the order of time"
    );
    let mut merged = Histogram::<u64>::new(3).unwrap();
    parts
        .iter()
        .for_each(|(_, _, part)| merged.add(part).unwrap());
    // An epoch in which a flow has half a sample has no interval.
    assert!(merged.len().abs_diff(whole[0].2.len()) <= 2);
    for quantile in [0.1, 0.5, 0.9, 0.99] {
        let (a, b) = (
            merged.value_at_quantile(quantile),
            whole[0].2.value_at_quantile(quantile),
        );
        assert!(
            a.abs_diff(b) as f64 <= 0.01 * b as f64,
            "{quantile}: {a} and {b}"
        );
    }
}

#[test]
fn the_report_is_one_page_that_asks_nobody() {
    let dir = TempDir::new().unwrap();
    let page = dir.path().join("report.html");
    let args = ["--compare", "-o", "html", "--out", page.to_str().unwrap()];
    assert_eq!(stdout(&measure("both.pcap.zst", &args)), "");
    let page = fs::read_to_string(page).unwrap();
    for text in [
        "both.pcap.zst",
        "window-chain",
        "seq-ack-client",
        "10.7.0.2:8080",
        "<svg",
    ] {
        assert!(page.contains(text), "{text}");
    }
    for foreign in ["http:", "https:", "src=", "@import", "url("] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert!(page.contains("prefers-color-scheme:dark"));
}

#[test]
fn a_place_that_cannot_be_written_is_named_before_anything_is_read() {
    let output = measure(
        "both.pcap.zst",
        &["-o", "csv", "--out", "/proc/nowhere/x.csv"],
    );
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("cannot write /proc/nowhere/x.csv: No such file"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1);
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_holds_the_rows() {
    use parquet::file::reader::{FileReader, SerializedFileReader};

    let dir = TempDir::new().unwrap();
    let path = dir.path().join("rows.parquet");
    let args = [
        "--percentiles",
        "-o",
        "parquet",
        "--out",
        path.to_str().unwrap(),
    ];
    stdout(&measure("w4.pcap.zst", &args));
    let file = SerializedFileReader::new(fs::File::open(path).unwrap()).unwrap();
    let expected = json("w4.pcap.zst", &["--percentiles"]);
    let rows: Vec<_> = file
        .get_row_iter(None)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(rows.len(), expected.len());
    for (row, json) in rows.iter().zip(&expected) {
        let columns: BTreeMap<&String, String> = row
            .get_column_iter()
            .map(|(name, field)| (name, field.to_string()))
            .collect();
        for (name, text) in columns {
            // What JSON leaves out is null.
            let null = serde_json::Value::Null;
            let value: serde_json::Value = serde_json::from_str(&text).unwrap_or(null);
            match (value.as_f64(), json[name.as_str()].as_f64()) {
                (Some(a), Some(b)) => assert!((a - b).abs() <= 1e-9 * b, "{name}: {a} and {b}"),
                _ => assert_eq!(value, json[name.as_str()], "{name}"),
            }
        }
    }
}

#[cfg(not(feature = "parquet"))]
#[test]
fn a_build_without_parquet_says_so() {
    let output = measure("w1.pcap.zst", &["-o", "parquet"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("this build has no Parquet"), "{error}");
}
