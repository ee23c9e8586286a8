// SPDX-License-Identifier: Apache-2.0
//! `rtt-study`: the experiments of the RTT write-up as a scenario; the command
//! `causeway-lab rtt-study` is the same with pages and pictures.

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{Context, Scenario, param};
use crate::rtt_study;

pub(super) const RTT_STUDY: Scenario = Scenario {
    name: "rtt-study",
    about: "every method of measuring latency through the experiments that show what it measures",
    params: &[
        param(
            "seconds",
            "6",
            "length of a run at an interval up to the ACK timer, s",
        ),
        param("rounds", "2", "runs at each of these intervals"),
        param("parts", "intervals,beyond,sizes,loss", "parts to run"),
        param("ipv6", "false", "over IPv6"),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let seconds: u32 = context.param("seconds")?;
    let rounds: u32 = context.param("rounds")?;
    let ipv6: bool = context.param("ipv6")?;
    let parts: String = context.param("parts")?;
    let (seconds, rounds) = (seconds.to_string(), rounds.to_string());
    let mut words = vec![
        "rtt-study",
        "-l",
        &seconds,
        "--rounds",
        &rounds,
        "--parts",
        &parts,
    ];
    words.extend(ipv6.then_some("-6"));
    let args = rtt_study::StudyArgs::from_words(&words).context("parameters")?;
    let study = args.in_lab(context.sandbox, &context.binary)?;
    context.say(rtt_study::text(&study));
    Ok(rtt_study::to_json(&study))
}
