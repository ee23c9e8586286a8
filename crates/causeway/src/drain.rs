// SPDX-License-Identifier: Apache-2.0
//! `causeway real drain --wait`: waits until a real has no connection any more.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::net::IpAddr;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use causeway_api::balancer::{RealView, VipReal, VipView};

use crate::client::Target;
use crate::vip_cmd::{Which, server_path, vip_path};

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often a line is printed if standard error is not a terminal.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Ends with 0 once no connection is open, with 1 if some still are after `timeout`.
pub(crate) fn wait(
    target: &Target,
    which: &Which,
    reals: &str,
    timeout: Duration,
) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    let mut progress = Progress::default();
    loop {
        let open = open(target, which)?;
        let waited = began.elapsed();
        if open == 0 {
            progress.end();
            println!("empty: {reals} has no open connection");
            return Ok(ExitCode::SUCCESS);
        }
        if waited >= timeout {
            progress.end();
            eprintln!(
                "causeway: {open} still open after {} s; it goes on draining",
                waited.as_secs()
            );
            return Ok(ExitCode::FAILURE);
        }
        progress.tell(open, waited);
        thread::sleep(LOOK_EVERY.min(timeout - waited));
    }
}

/// Connections that are open, by the balancer's estimate.
fn open(target: &Target, which: &Which) -> anyhow::Result<u64> {
    let real = &which.real;
    let Some(vip) = &which.vip else {
        let reals: Vec<VipReal> = target.get(&server_path(real))?;
        return Ok(reals.iter().map(|of| of.real.connections_active).sum());
    };
    let view: VipView = target.get(&vip_path(vip))?;
    let address = real.parse::<IpAddr>();
    let is_it = |view: &&RealView| view.address == *real || view.address.parse() == address;
    let found = view.reals.iter().find(is_it);
    let found = found.with_context(|| format!("{real} is no longer a real of {vip}"))?;
    Ok(found.connections_active)
}

/// How far it is: one line that changes, or one every few seconds for a log.
#[derive(Default)]
struct Progress {
    at_first: Option<u64>,
    told: Option<Duration>,
    on_line: bool,
}

impl Progress {
    fn tell(&mut self, open: u64, waited: Duration) {
        let at_first = *self.at_first.get_or_insert(open);
        let line = format!("{open} open of {at_first}, {} s", waited.as_secs());
        if stderr().is_terminal() {
            eprint!("\r\x1b[K{line}");
            // What cannot be shown is not waited for.
            let _ = stderr().flush();
            self.on_line = true;
        } else if self.told.is_none_or(|told| waited >= told + TELL_EVERY) {
            eprintln!("{line}");
            self.told = Some(waited);
        }
    }

    fn end(&self) {
        if self.on_line {
            eprint!("\r\x1b[K");
        }
    }
}
