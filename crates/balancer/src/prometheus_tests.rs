// SPDX-License-Identifier: Apache-2.0
//! What a real Prometheus makes of the metrics.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::api_tests::Daemon;
use super::serve_tests::address_of_its_own;
use super::tests::WEB;

struct Prometheus {
    process: Child,
    address: String,
    dir: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Prometheus {
    /// One that scrapes `target` each second and knows native histograms.
    fn start(target: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let rules = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../packaging/prometheus/causeway.rules.yml");
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\n\
             rule_files: [{}]\n\
             scrape_configs:\n  - job_name: causeway-lb\n    static_configs: [{{ targets: [\"{target}\"] }}]\n",
            rules.display()
        );
        std::fs::write(dir.path().join("prometheus.yml"), config).expect("a configuration");
        let address = address_of_its_own().to_string();
        let process = Command::new("prometheus")
            .arg("--enable-feature=native-histograms")
            .arg(format!("--web.listen-address={address}"))
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=tsdb"])
            .arg("--log.level=warn")
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("run prometheus, of Debian's package of that name");
        Self {
            process,
            address,
            dir,
        }
    }

    /// What its API says; nothing while it starts.
    fn get(&self, path: &str, arguments: &[&str]) -> Value {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--get", "--max-time", "20"]);
        for argument in arguments {
            curl.args(["--data-urlencode", argument]);
        }
        let said = curl.arg(format!("http://{}/api/v1/{path}", self.address));
        let said = said.output().expect("run curl").stdout;
        serde_json::from_slice::<Value>(&said).unwrap_or_default()["data"].take()
    }

    /// The value of a query that has one answer, once it has one.
    async fn ask(&self, query: &str) -> f64 {
        for _ in 0..600 {
            let said = self.get("query", &[&format!("query={query}")]);
            let value = &said["result"][0]["value"][1];
            let value = value.as_str().and_then(|value| value.parse().ok());
            if let Some(value) = value.filter(|value: &f64| value.is_finite()) {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        panic!("no answer to {query}, in {}", self.dir.path().display());
    }
}

/// Names and types of all families; a family without rows has none in Prometheus.
fn families(page: &str) -> BTreeSet<(String, String)> {
    let types = page.lines().filter_map(|l| l.strip_prefix("# TYPE "));
    let all = types.filter_map(|l| l.split_once(' '));
    let all = all.filter(|(name, _)| {
        let mut lines = page.lines();
        lines.any(|l| l.starts_with(&format!("{name}{{")) || l.starts_with(&format!("{name} ")))
            || page.contains(&format!("\n{name}_bucket{{"))
    });
    all.map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn its_native_histograms_tell_the_latencies_that_the_api_tells() {
    let daemon = Daemon::new(WEB);
    // A tenth is slow, over two powers of ten, and there is an interval for each of them.
    let traffic = || {
        for n in 0..40_u32 {
            let slow = if n % 10 == 9 { 20.0 } else { 1.0 };
            let latency_ms = slow * 1.05_f64.powi(n as i32);
            daemon.run(1, &[latency_ms; 4]);
        }
    };
    traffic();
    let listener = tokio::net::TcpListener::bind(address_of_its_own()).await;
    let listener = listener.expect("an address");
    let target = listener.local_addr().expect("an address").to_string();
    let router = daemon.router();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let prometheus = Prometheus::start(&target);

    let stats = daemon.get("/v1/stats").await;
    let latency = &stats["vips"][0]["reals"][0]["latency"];
    let near = |ours: f64, theirs: f64, what: &str| {
        // The width of an exponential bucket, which has the middle of ours in it.
        let apart = theirs / ours;
        assert!(
            (0.978..=1.022).contains(&apart),
            "{what}: {theirs} s, not {ours} s"
        );
    };
    let figures = [(0.5, "p50_us"), (0.9, "p90_us"), (0.99, "p99_us")];
    let series = "causeway_real_response_latency_seconds{real=\"10.0.0.1\"}";
    for (quantile, figure) in figures {
        let query = format!("histogram_quantile({quantile}, {series})");
        let ours = latency[figure].as_f64().expect("a latency") / 1e6;
        near(ours, prometheus.ask(&query).await, figure);
    }
    let page = daemon.get("/metrics").await;
    let page = page.as_str().expect("text");
    let name = "causeway_real_response_latency_seconds_count{vip=\"web\",real=\"10.0.0.1\"} ";
    let ours = page.lines().find_map(|line| line.strip_prefix(name));
    let theirs = prometheus.ask(&format!("histogram_count({series})")).await;
    assert_eq!(ours, Some(theirs.to_string().as_str()));

    // The rules of the package go by them, for there is nothing else.
    traffic();
    let rule = "vip_real:causeway_response_latency_seconds:p99_5m{real=\"10.0.0.1\"}";
    let same = format!("histogram_quantile(0.99, rate({series}[5m]))");
    // A scrape may have come between two of these intervals, and rules are evaluated once a second.
    let start = Instant::now();
    loop {
        let (theirs, same) = (prometheus.ask(rule).await, prometheus.ask(&same).await);
        if (0.978..=1.022).contains(&(theirs / same)) {
            break;
        }
        let waits = start.elapsed() < Duration::from_secs(60);
        assert!(waits, "{rule}: {theirs} s, not {same} s");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let none = "absent(causeway_real_response_latency_seconds_bucket)";
    assert_eq!(prometheus.ask(none).await, 1.0);

    // Nothing else is missing in this format.
    let page = families(page);
    assert!(page.len() > 40, "{page:?}");
    let told = prometheus.get("targets/metadata", &[]);
    let told: BTreeSet<_> = told
        .as_array()
        .expect("families")
        .iter()
        .map(|of| (&of["metric"], &of["type"]))
        .map(|(name, kind)| {
            (
                name.as_str().unwrap_or_default().to_owned(),
                kind.as_str().unwrap_or_default().to_owned(),
            )
        })
        .collect();
    let missing: Vec<_> = page.difference(&told).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
