// SPDX-License-Identifier: Apache-2.0
//! `causeway rtt --explain` on paths made for it: each has one fault, and the
//! verdict must name that one and no other.

use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use causeway_bench::loss::LostRun;
use serde_json::{Value, json};

use super::{Context, Scenario, param};
use crate::background::{KilledOnDrop, output_of};
use crate::path::{MTU, PORT, Path};

/// One path and how it is measured.
struct Case {
    name: &'static str,
    /// Options of the server.
    serve: &'static [&'static str],
    /// Options of the client, besides length and format.
    client: &'static [&'static str],
    /// Packets lost each way, percent.
    loss_pct: f64,
    /// The last segments of one response that are lost, once.
    lost_tail: u64,
    /// Echo replies are limited.
    icmp_limited: bool,
    /// Uploads that share a bottleneck of 10 Mbit/s with a queue of 256 KiB: options
    /// of the client that makes them.
    bulk: &'static [&'static str],
    /// Words that the verdicts must be.
    verdicts: &'static [&'static str],
    /// A word that may stand before them.
    perhaps: &'static str,
}

/// On a busy machine this end reads late, and its ACKs wait for that.
const LATE: &str = "delayed-ack";

const FINE: Case = Case {
    name: "fine",
    serve: &[],
    client: &[],
    loss_pct: 0.0,
    lost_tail: 0,
    icmp_limited: false,
    bulk: &[],
    verdicts: &["network-fine"],
    perhaps: "",
};

const CASES: &[Case] = &[
    FINE,
    Case {
        name: "delayed ACK by our wait",
        client: &["-w", "30m"],
        verdicts: &["delayed-ack"],
        ..FINE
    },
    Case {
        name: "slow application",
        serve: &["--service", "20ms"],
        verdicts: &["slow-application"],
        perhaps: LATE,
        ..FINE
    },
    Case {
        name: "delayed ACK by our wait beside a slow application",
        serve: &["--service", "20ms"],
        client: &["-w", "30m"],
        verdicts: &["delayed-ack", "slow-application"],
        ..FINE
    },
    Case {
        // The server's ACK timer ends before the application reads.
        name: "delayed ACK by a server too busy to read",
        serve: &["--service", "60ms", "--unread"],
        verdicts: &["delayed-ack", "slow-application"],
        perhaps: LATE,
        ..FINE
    },
    Case {
        name: "requests held by Nagle",
        client: &["--split", "-r", "2,1"],
        verdicts: &["delayed-ack", "nagle"],
        perhaps: LATE,
        ..FINE
    },
    Case {
        name: "requests held by Nagle before a slow application",
        serve: &["--service", "20ms"],
        client: &["--split", "-r", "2,1"],
        verdicts: &["delayed-ack", "nagle", "slow-application"],
        perhaps: LATE,
        ..FINE
    },
    Case {
        name: "loss",
        // A request of one segment is its own tail.
        loss_pct: 3.0,
        verdicts: &["loss", "tail-loss-probe"],
        ..FINE
    },
    Case {
        // Alone in flight, it is waited for as long as for a late ACK.
        name: "a response's last segment lost once",
        client: &["-r", RESPONSES],
        lost_tail: 1,
        verdicts: &["tail-loss-probe"],
        ..FINE
    },
    Case {
        // The probe brings the last one; its ACK shows that the other is missing.
        name: "a response's last two segments lost once",
        client: &["-r", RESPONSES],
        lost_tail: 2,
        verdicts: &["tail-loss-probe"],
        ..FINE
    },
    Case {
        name: "ICMP rate limit",
        icmp_limited: true,
        verdicts: &["icmp-rate-limit"],
        ..FINE
    },
    Case {
        // 200 kB are 160 ms of queue, then a pause of 300 ms.
        name: "bufferbloat that comes and goes",
        client: &["-w", "5m"],
        bulk: &["-r", "200000,1", "-w", "300m"],
        verdicts: &["bufferbloat"],
        perhaps: "loss",
        ..FINE
    },
    Case {
        name: "bufferbloat that stays",
        client: &["-w", "5m"],
        bulk: &["-r", "1000000,1"],
        verdicts: &["bufferbloat"],
        // The queue overflows, and may do so on us.
        perhaps: "loss",
        ..FINE
    },
];

/// Bytes of responses of three segments, for `-r`.
const RESPONSES: &str = "1,3000";
/// How many responses come whole before one that does not.
const WHOLE: u64 = 100;

const TRIES: usize = 3;

pub(super) const RTT_EXPLAIN: Scenario = Scenario {
    name: "rtt-explain",
    about: "causeway rtt --explain names the fault of paths made for it",
    params: &[
        param("seconds", "4", "length of each run"),
        param(
            "only",
            "",
            "run cases whose name holds one of these words, apart by commas",
        ),
        param("ipv6", "false", "over IPv6"),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let only: String = context.param("only")?;
    let mut results = Vec::new();
    let path = Path::build(context.sandbox)?;
    let wanted = |case: &&Case| only.split(',').any(|word| case.name.contains(word));
    for case in CASES.iter().filter(wanted) {
        let mut report = Value::Null;
        // A machine that stood still looks like a fault. What is wrong is so each time.
        for _ in 0..TRIES {
            report = run_case(context, &path, case).with_context(|| case.name.to_owned())?;
            if case.agrees(&said_in(&report)) {
                break;
            }
        }
        let said = said_in(&report);
        let sentences = &report["explain"]["sentences"];
        context.say(format!("{}: {}", case.name, said.join(", ")));
        results.push(json!({
            "case": case.name, "expected": case.verdicts, "verdicts": said,
            "agree": case.agrees(&said), "sentences": sentences,
            "methods": report["methods"], "ping": report["ping"], "tcp": report["tcp"],
        }));
    }
    ensure!(!results.is_empty(), "no case's name holds {only:?}");
    let wrong = results.iter().filter(|r| r["agree"] == false);
    let wrong: Vec<String> = wrong
        .map(|r| format!("{}: {} {}", r["case"], r["verdicts"], r["sentences"]))
        .collect();
    ensure!(wrong.is_empty(), "verdicts differ: {}", wrong.join("; "));
    Ok(json!({ "cases": results }))
}

fn said_in(report: &Value) -> Vec<&str> {
    let words = report["explain"]["verdicts"].as_array();
    let words = words.into_iter().flatten();
    words.filter_map(Value::as_str).collect()
}

impl Case {
    fn agrees(&self, said: &[&str]) -> bool {
        said == self.verdicts
            || matches!(said, [first, rest @ ..] if *first == self.perhaps && rest == self.verdicts)
    }
}

fn run_case(context: &Context, path: &Path, case: &Case) -> Result<Value> {
    let ipv6: bool = context.param("ipv6")?;
    limit_icmp(path, case.icmp_limited)?;
    let _server = path.serve(&context.binary, case.serve, None)?;
    let _loss = (case.loss_pct > 0.0)
        .then(|| path.lose(case.loss_pct, context.seed))
        .transpose()?;
    let _tail = (case.lost_tail > 0)
        .then(|| path.lose_run(Path::SERVER, tail(case.lost_tail, ipv6)))
        .transpose()?;
    let seconds: f64 = context.param("seconds")?;
    let _bulk = match case.bulk {
        [] => None,
        options => Some(bulk(context, path, options, seconds)?),
    };
    let mut client = path.client.command(&context.binary);
    client
        .args(["rtt", &Path::address(ipv6).to_string()])
        .args(["-p", &PORT.to_string(), "-x", "-o", "json"])
        .args(["-l", &seconds.to_string(), "--ping-interval", "20ms"])
        .args(case.client);
    serde_json::from_str(&output_of(&mut client)?).context("causeway rtt's JSON")
}

/// The last segments of one of the [`RESPONSES`].
fn tail(segments: u64, ipv6: bool) -> LostRun {
    const ETHERNET: u64 = 14;
    // TCP's with timestamps.
    let headers = 32 + if ipv6 { 40 } else { 20 };
    let mss = u64::from(MTU) - headers;
    let (payload, after) = match segments {
        1 => (3000 - 2 * mss, WHOLE),
        // The second of each response's two that are full.
        _ => (mss, 2 * WHOLE + 1),
    };
    LostRun {
        first_len: ETHERNET + headers + payload,
        after,
        packets: segments,
    }
}

/// Echo replies are limited by no default; with these masks they are.
fn limit_icmp(path: &Path, limited: bool) -> Result<()> {
    let [v4, v6, interval_ms] = if limited {
        ["6169", "0-255", "200"]
    } else {
        ["6168", "0-1,3-127", "1000"]
    };
    path.server.sysctl("net/ipv4/icmp_ratemask", v4)?;
    path.server.sysctl("net/ipv6/icmp/ratemask", v6)?;
    path.server.sysctl("net/ipv4/icmp_ratelimit", interval_ms)?;
    path.server.sysctl("net/ipv6/icmp/ratelimit", interval_ms)
}

/// Uploads through a bottleneck; dropped, both end.
struct Bulk<'a> {
    _client: KilledOnDrop,
    path: &'a Path,
}

fn bulk<'a>(context: &Context, path: &'a Path, options: &[&str], seconds: f64) -> Result<Bulk<'a>> {
    path.throttle(10, 256 << 10)?;
    let ipv6: bool = context.param("ipv6")?;
    // Cubic fills a queue until it loses; BBR, where it is the default, does not.
    let client = path
        .client
        .command(&context.binary)
        .args(["rtt", &Path::address(ipv6).to_string()])
        .args(["-p", &PORT.to_string(), "-m", "rr", "--congestion", "cubic"])
        .args(["-l", &(seconds + 10.0).to_string()])
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start the bulk transfer")?;
    let bulk = Bulk {
        _client: KilledOnDrop(client),
        path,
    };
    sleep(Duration::from_secs(1));
    Ok(bulk)
}

impl Drop for Bulk<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.path.unthrottle() {
            tracing::warn!("{error:#}");
        }
    }
}
