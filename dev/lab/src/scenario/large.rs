// SPDX-License-Identifier: Apache-2.0
//! `causeway lb` with as many VIPs and reals as it is meant for: how long it takes to load them and
//! to change one, and what it takes of memory.

use std::net::Ipv4Addr;
use std::time::Instant;

use anyhow::{Context as _, Result};
use causeway_balancer::BalancerConfig;
use causeway_balancer::kernel::memory;
use serde_json::{Value, json};

use super::bench::{Bench, PORT};
use super::daemon_process::DaemonProcess;
use super::{Context, Scenario, param};
use crate::balancer::{Balancer, BalancerSettings, RealEntry, ServerForwarding, VipEntry};

pub(super) const LARGE: Scenario = Scenario {
    name: "large",
    about: "causeway lb with many VIPs and reals: time to load and to change them, memory",
    params: &[
        param("vips", "10000", "how many VIPs"),
        param("reals", "100", "reals of each"),
        param("changes", "5", "changes of each kind"),
    ],
    run,
    table: |_| None,
};

/// VIPs and reals are nobody's: no packet is sent to them.
const VIPS: u32 = u32::from_be_bytes([10, 64, 0, 0]);
const REALS: u32 = u32::from_be_bytes([10, 128, 0, 0]);

/// Histograms of a million reals alone would take 3.3 GiB.
const HISTOGRAMS: u32 = 4096;

/// The most that is meant: seconds to load, seconds for a change, bytes.
const LOADED_S: f64 = 60.0;
const CHANGED_S: f64 = 1.0;
const BYTES: u64 = 4 << 30;

fn run(context: &Context) -> Result<Value> {
    let (vips, reals): (u32, u32) = (context.param("vips")?, context.param("reals")?);
    let changes: u32 = context.param("changes")?;
    let bench = Bench::bare(context.sandbox, 1, 1)?;
    let mut settings = settings(&bench, vips, reals);
    let began = Instant::now();
    let balancer = bench.balancer(&context.binary, &settings)?;
    let loaded_s = began.elapsed().as_secs_f64();
    context.say(format!("loaded in {loaded_s:.1} s"));
    let mut rss = vec![rss_bytes(&balancer)?];
    let changed = |n: u32| (n * (vips / changes.max(1))) as usize % vips.max(1) as usize;
    let mut by_request_s = Vec::new();
    for index in (0..changes).map(changed) {
        let vip = &settings.vips[index];
        let (name, real) = (format!("{}:{PORT}/tcp", vip.address), &vip.reals[0].address);
        let began = Instant::now();
        balancer.cli(&["real", "weight", &name, &real.to_string(), "77"])?;
        by_request_s.push(began.elapsed().as_secs_f64());
    }
    rss.push(rss_bytes(&balancer)?);
    let mut by_reload_s = Vec::new();
    for index in (0..changes).map(changed) {
        settings.vips[index].reals[0].weight += 1;
        balancer.write_config(&settings)?;
        let began = Instant::now();
        balancer.run(&[
            "reload",
            "--socket",
            &balancer.socket().display().to_string(),
        ])?;
        by_reload_s.push(began.elapsed().as_secs_f64());
        rss.push(rss_bytes(&balancer)?);
    }
    let file = balancer.config_file();
    let config = BalancerConfig::parse(&file, &std::fs::read_to_string(&file)?)?;
    let (kernel, _) = memory(&config)?;
    balancer.end()?;
    let most = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
    let (request_s, reload_s) = (most(&by_request_s), most(&by_reload_s));
    let daemon = rss.iter().copied().max().unwrap_or_default();
    context.say(format!(
        "a change: {request_s:.2} s by request, {reload_s:.2} s by reload; {daemon} and the kernel's {kernel} bytes"
    ));
    Ok(json!({
        "loaded_s": loaded_s, "by_request_s": by_request_s, "by_reload_s": by_reload_s,
        "daemon_bytes": rss, "kernel_bytes": kernel,
        "holds": {
            "loaded": loaded_s <= LOADED_S,
            "changed": request_s <= CHANGED_S && reload_s <= CHANGED_S,
            "memory": daemon + kernel <= BYTES,
        },
    }))
}

fn rss_bytes(balancer: &Balancer) -> Result<u64> {
    let pid = balancer.pid().context("the balancer does not run")?;
    Ok(DaemonProcess::of(pid)?.rss_kib * 1024)
}

fn settings(bench: &Bench, vips: u32, reals: u32) -> BalancerSettings {
    let pattern = bench.vip4(0, "maglev", ServerForwarding::Ipip);
    let all = vips * reals;
    let vip = |n: u32| {
        let real = |index| RealEntry {
            address: Ipv4Addr::from(REALS + n * reals + index).into(),
            ..pattern.reals[0].clone()
        };
        VipEntry {
            address: Ipv4Addr::from(VIPS + n).into(),
            reals: (0..reals).map(real).collect(),
            ..pattern.clone()
        }
    };
    BalancerSettings {
        head: vec![format!(
            "[limits]\nvips = {vips}\nreals = {all}\nhistograms = {}",
            all.min(HISTOGRAMS)
        )],
        vips: (0..vips).map(vip).collect(),
        ..BalancerSettings::default()
    }
}
