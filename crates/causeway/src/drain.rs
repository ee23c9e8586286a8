// SPDX-License-Identifier: Apache-2.0
//! `causeway real drain --wait`: waits until a real has no connection any more.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::net::IpAddr;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use causeway_api::balancer::{RealView, VipReal, VipView};

use crate::client::{Target, server_path, vip_path};

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Where the flow table does not have all connections, as with cookies, the balancer knows none that is
/// older than some minutes: a real is empty once no packet has come to it for so long, besides.
const QUIET: Duration = Duration::from_secs(10);
/// How often a line is printed if standard error is not a terminal.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Ends with 0 once no connection of `real` is open, in `vip` or in all VIPs, with 1 if some still are after
/// `timeout`; messages call it `reals`.
pub(crate) fn wait(
    target: &Target,
    vip: Option<&str>,
    real: &str,
    reals: &str,
    timeout: Duration,
) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    let mut progress = Progress::default();
    let mut quiet = Quiet::default();
    loop {
        let seen = look(target, vip, real)?;
        let waited = began.elapsed();
        let since = quiet.since(seen.unsure_packets, waited);
        let quiet_for = QUIET.min(timeout);
        let is_quiet = since.is_none_or(|since| waited >= since + quiet_for);
        if seen.open == 0 && is_quiet {
            progress.end();
            let quiet = since.map_or(String::new(), |_| {
                format!(
                    ", as far as is known: no packet came for {} s",
                    quiet_for.as_secs()
                )
            });
            println!("empty: {reals} has no open connection{quiet}");
            return Ok(ExitCode::SUCCESS);
        }
        if waited >= timeout {
            progress.end();
            let what = match seen.open {
                0 => "packets of connections that are not known still come".to_owned(),
                open => format!("{open} still open"),
            };
            eprintln!(
                "causeway: {what} after {} s; it goes on draining",
                waited.as_secs()
            );
            return Ok(ExitCode::FAILURE);
        }
        progress.tell(seen.open, waited);
        thread::sleep(LOOK_EVERY.min(timeout - waited));
    }
}

/// What is seen of a real in the VIPs that it drains in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Connections that are open, by the balancer's estimate.
    open: u64,
    /// Packets to it, where that does not know all; `None`: it does.
    unsure_packets: Option<u64>,
}

impl Seen {
    fn of<'a>(reals: impl IntoIterator<Item = &'a RealView>) -> Self {
        let add = |seen: Self, real: &RealView| {
            let is_unsure = real.connections_estimated && real.packets > 0;
            let packets = is_unsure.then_some(real.packets);
            Self {
                open: seen.open + real.connections_active,
                unsure_packets: match (seen.unsure_packets, packets) {
                    (Some(before), Some(more)) => Some(before + more),
                    (before, more) => before.or(more),
                },
            }
        };
        reals.into_iter().fold(Self::default(), add)
    }
}

/// Since when no packet has come.
#[derive(Default)]
struct Quiet {
    last: Option<(u64, Duration)>,
}

impl Quiet {
    fn since(&mut self, packets: Option<u64>, now: Duration) -> Option<Duration> {
        let packets = packets?;
        let is_same = self.last.filter(|(before, _)| *before == packets);
        let (_, since) = is_same.unwrap_or((packets, now));
        self.last = Some((packets, since));
        Some(since)
    }
}

fn look(target: &Target, vip: Option<&str>, real: &str) -> anyhow::Result<Seen> {
    let Some(vip) = vip else {
        let reals: Vec<VipReal> = target.get(&server_path(real))?;
        return Ok(Seen::of(reals.iter().map(|of| &of.real)));
    };
    let view: VipView = target.get(&vip_path(vip))?;
    let address = real.parse::<IpAddr>();
    let is_it = |view: &&RealView| view.address == real || view.address.parse() == address;
    let found = view.reals.iter().find(is_it);
    let found = found.with_context(|| format!("{real} is no longer a real of {vip}"))?;
    Ok(Seen::of([found]))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_tell_of_connections_that_are_not_known() {
        let seconds = Duration::from_secs;
        let mut quiet = Quiet::default();
        assert_eq!(quiet.since(Some(7), seconds(1)), Some(seconds(1)));
        assert_eq!(quiet.since(Some(7), seconds(5)), Some(seconds(1)));
        assert_eq!(quiet.since(Some(8), seconds(9)), Some(seconds(9)));
        assert_eq!(quiet.since(Some(8), seconds(30)), Some(seconds(9)));
        // The flow table has all connections.
        assert_eq!(Quiet::default().since(None, seconds(1)), None);
    }
}
