// SPDX-License-Identifier: Apache-2.0
//! `causeway rtt --explain` on paths made for it: each has one fault, and the
//! verdict must name that one and no other.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Context, Param, Scenario, param};
use crate::path::{PORT, Path};

pub struct RttExplain;

/// One path and how it is measured.
struct Case {
    name: &'static str,
    /// Options of the server.
    serve: &'static [&'static str],
    /// Options of the client, besides length and format.
    client: &'static [&'static str],
    /// Packets lost each way, percent.
    loss_pct: f64,
    /// Echo replies are limited.
    icmp_limited: bool,
    /// Words that the verdicts must be.
    verdicts: &'static [&'static str],
}

const FINE: Case = Case {
    name: "fine",
    serve: &[],
    client: &["--ping-interval", "20ms"],
    loss_pct: 0.0,
    icmp_limited: false,
    verdicts: &["network-fine"],
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
        ..FINE
    },
    Case {
        name: "loss",
        loss_pct: 3.0,
        verdicts: &["loss"],
        ..FINE
    },
    Case {
        name: "ICMP rate limit",
        icmp_limited: true,
        verdicts: &["icmp-rate-limit"],
        ..FINE
    },
];

impl Scenario for RttExplain {
    fn name(&self) -> &'static str {
        "rtt-explain"
    }

    fn about(&self) -> &'static str {
        "causeway rtt --explain names the fault of paths made for it"
    }

    fn params(&self) -> &'static [Param] {
        const PARAMS: &[Param] = &[
            param("seconds", "4", "length of each run"),
            param("only", "", "run cases whose name holds this"),
            param("ipv6", "false", "over IPv6"),
        ];
        PARAMS
    }

    fn run(&self, context: &Context) -> Result<Value> {
        let only: String = context.param("only")?;
        let mut results = Vec::new();
        let path = Path::build(context.sandbox)?;
        for case in CASES.iter().filter(|case| case.name.contains(&only)) {
            let report = run_case(context, &path, case).with_context(|| case.name.to_owned())?;
            let said: Vec<&str> = report["explain"]["verdicts"]
                .as_array()
                .map(|words| words.iter().filter_map(Value::as_str).collect())
                .unwrap_or_default();
            let sentences = &report["explain"]["sentences"];
            context.say(format!("{}: {}", case.name, said.join(", ")));
            results.push(json!({
                "case": case.name, "expected": case.verdicts, "verdicts": said,
                "agree": said == case.verdicts, "sentences": sentences,
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
}

fn run_case(context: &Context, path: &Path, case: &Case) -> Result<Value> {
    let ipv6: bool = context.param("ipv6")?;
    // Echo replies are limited by no default; with these masks they are.
    let masks = if case.icmp_limited {
        ["6169", "0-255", "200"]
    } else {
        ["6168", "0-1,3-127", "1000"]
    };
    path.server.sysctl("net/ipv4/icmp_ratemask", masks[0])?;
    path.server.sysctl("net/ipv6/icmp/ratemask", masks[1])?;
    path.server.sysctl("net/ipv4/icmp_ratelimit", masks[2])?;
    path.server.sysctl("net/ipv6/icmp/ratelimit", masks[2])?;
    let _server = path.serve(&context.binary, case.serve)?;
    let _loss = (case.loss_pct > 0.0)
        .then(|| path.lose(case.loss_pct))
        .transpose()?;
    let seconds: String = context.param("seconds")?;
    let output = path
        .client
        .command(&context.binary)
        .args(["rtt", &Path::address(ipv6).to_string()])
        .args(["-p", &PORT.to_string(), "-x", "-o", "json", "-l", &seconds])
        .args(case.client)
        .output()
        .context("cannot run causeway rtt")?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "causeway rtt: {}", message.trim());
    serde_json::from_slice(&output.stdout).context("causeway rtt's JSON")
}
