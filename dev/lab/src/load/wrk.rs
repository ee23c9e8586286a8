// SPDX-License-Identifier: Apache-2.0
//! wrk, the independent second opinion on latency: other code, other clocks, no
//! pipelining (one request outstanding per connection).

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::netns::Netns;

/// What wrk reports.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WrkReport {
    /// Requests answered.
    pub requests: u64,
    /// Requests per second.
    pub rps: f64,
    /// Mean latency.
    pub mean_ms: f64,
    /// Median latency.
    pub p50_ms: f64,
    /// 90 % were as fast or faster.
    pub p90_ms: f64,
    /// 99 %.
    pub p99_ms: f64,
    /// connect, read, write errors and timeouts, summed.
    pub socket_errors: u64,
    /// Answers other than 2xx and 3xx.
    pub bad_status: u64,
}

pub fn run(client: &Netns, url: &str, connections: u32, seconds: u32) -> Result<WrkReport> {
    let output = client
        .command("wrk")
        .args(["-t1", "--latency", "--timeout", "10s"])
        .arg(format!("-c{connections}"))
        .arg(format!("-d{seconds}s"))
        .arg(url)
        .output()
        .context("cannot run wrk (Debian package wrk)")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("wrk: {text}{}", String::from_utf8_lossy(&output.stderr));
    }
    parse(&text).with_context(|| format!("wrk printed something unknown:\n{text}"))
}

fn parse(text: &str) -> Option<WrkReport> {
    let after = |prefix: &str| {
        text.lines()
            .find_map(|l| l.trim().strip_prefix(prefix))
            .map(str::trim)
    };
    let requests = text
        .lines()
        .find_map(|l| l.trim().split_once(" requests in "))?;
    let socket_errors = after("Socket errors:").map_or(0, |list| {
        list.split(|c: char| !c.is_ascii_digit())
            .filter_map(|n| n.parse::<u64>().ok())
            .sum()
    });
    Some(WrkReport {
        requests: requests.0.parse().ok()?,
        rps: after("Requests/sec:")?.parse().ok()?,
        // Not the headline of the distribution.
        mean_ms: text.lines().find_map(|line| {
            let words = line.trim().strip_prefix("Latency ")?;
            milliseconds(words.split_whitespace().next()?)
        })?,
        p50_ms: milliseconds(after("50%")?)?,
        p90_ms: milliseconds(after("90%")?)?,
        p99_ms: milliseconds(after("99%")?)?,
        socket_errors,
        bad_status: after("Non-2xx or 3xx responses:").map_or(Some(0), |n| n.parse().ok())?,
    })
}

/// `812.00us`, `6.10ms`, `1.02s`, `1.00m`.
fn milliseconds(text: &str) -> Option<f64> {
    let (number, factor) = [("us", 1e-3), ("ms", 1.0), ("s", 1e3), ("m", 6e4)]
        .iter()
        .find_map(|(unit, factor)| text.strip_suffix(unit).map(|n| (n, factor)))?;
    Some(number.parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_wrk_prints() {
        let text = "Running 2s test @ http://10.30.0.1/\n  1 threads and 8 connections\n  \
            Thread Stats   Avg      Stdev     Max   +/- Stdev\n    \
            Latency     6.12ms    1.00ms  20.00ms   90.00%\n    \
            Req/Sec     1.28k    10.00     1.30k    70.00%\n  Latency Distribution\n     \
            50%  812.00us\n     75%    6.15ms\n     90%    6.20ms\n     99%    1.02s \n  \
            2570 requests in 2.00s, 1.06MB read\n  \
            Socket errors: connect 0, read 3, write 0, timeout 2\n  \
            Non-2xx or 3xx responses: 7\n\
            Requests/sec:   1284.31\nTransfer/sec:    543.21KB\n";
        let report = parse(text).expect("parses");
        assert_eq!(
            (report.requests, report.socket_errors, report.bad_status),
            (2570, 5, 7)
        );
        assert!((report.mean_ms - 6.12).abs() < 1e-9);
        assert!((report.p50_ms - 0.812).abs() < 1e-9);
        assert!((report.p99_ms - 1020.0).abs() < 1e-9);
    }
}
