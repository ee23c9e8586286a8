// SPDX-License-Identifier: Apache-2.0
//! Tells balancers of this server's load some times a second, for VIPs with
//! `load = "cpu"` or `"in-flight"`.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Instant;
use std::{fs, thread};

use causeway_core::select::report::{LoadReport, ServerLoad};
use causeway_io::{boot_id, in_flight, monotonic_ns};
use tracing::warn;

use crate::agent::Agent;
use crate::notices::open_socket;

/// Connections are counted for at most this part of the time: a server with very many is
/// asked more seldom, and told of as it was then.
const COUNTING_PART: u32 = 20;

/// Tells from now on, on a thread that ends with the process, if anybody is to be told.
pub fn start(agent: Arc<Agent>) -> std::io::Result<()> {
    if agent.load_plan().is_none() {
        return Ok(());
    }
    thread::Builder::new()
        .name("load".to_owned())
        .spawn(move || Teller::default().run(&agent))?;
    Ok(())
}

#[derive(Default)]
struct Teller {
    /// By whether it is for IPv6.
    sockets: BTreeMap<bool, UdpSocket>,
    cpu: CpuTimes,
    load: ServerLoad,
    /// When connections may be counted again.
    count_at: Option<Instant>,
    is_warned: bool,
}

impl Teller {
    fn run(mut self, agent: &Agent) {
        let boot = boot_id();
        let mut next = Instant::now();
        // A reload may change whom to tell, not whether.
        while let Some(plan) = agent.load_plan() {
            self.look(&plan.vips);
            agent.set_load(self.load);
            for &server in &plan.servers {
                let report = LoadReport {
                    server,
                    boot,
                    at_ns: monotonic_ns(),
                    load: self.load,
                };
                let datagram = report.encode(&plan.load.keys);
                for balancer in &plan.load.balancers {
                    self.send(&datagram, *balancer);
                }
            }
            next = (next + plan.load.interval).max(Instant::now());
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    fn look(&mut self, vips: &std::collections::BTreeSet<std::net::IpAddr>) {
        let busy = fs::read_to_string("/proc/stat")
            .ok()
            .and_then(|text| CpuTimes::parse(&text))
            .and_then(|now| std::mem::replace(&mut self.cpu, now).busy_milli(&now));
        self.load.cpu_milli = busy.unwrap_or(self.load.cpu_milli);
        let began = Instant::now();
        if self.count_at.is_some_and(|at| at > began) {
            return;
        }
        match in_flight(vips) {
            Ok(count) => self.load.in_flight = count,
            Err(error) if !self.is_warned => {
                self.is_warned = true;
                warn!("connections that wait cannot be counted, and are told as none: {error}");
            }
            Err(_) => {}
        }
        self.count_at = Some(began + began.elapsed() * COUNTING_PART);
    }

    /// A balancer that is not there takes this server for an average one.
    fn send(&mut self, datagram: &[u8], balancer: std::net::SocketAddr) {
        let ipv6 = balancer.is_ipv6();
        if !self.sockets.contains_key(&ipv6)
            && let Ok(socket) = open_socket(ipv6)
        {
            self.sockets.insert(ipv6, socket);
        }
        if let Some(socket) = self.sockets.get(&ipv6) {
            let _ = socket.send_to(datagram, balancer);
        }
    }
}

/// Ticks of all CPUs since the boot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct CpuTimes {
    busy: u64,
    all: u64,
}

impl CpuTimes {
    /// The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq,
    /// steal; what guests take is in user and nice.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let numbers = line.split_ascii_whitespace().take(8);
        let ticks: Vec<u64> = numbers.map_while(|n| n.parse().ok()).collect();
        let all = ticks.iter().sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Self {
            busy: all - idle,
            all,
        })
    }

    /// Busy share since `self`, thousandths; `None` if no tick has passed.
    fn busy_milli(self, now: &Self) -> Option<u32> {
        let all = now.all.saturating_sub(self.all);
        let busy = now.busy.saturating_sub(self.busy).min(all);
        (all > 0 && self.all > 0).then(|| (busy * 1000 / all) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_share_is_of_the_time_between_two_looks() {
        let at = |text: &str| CpuTimes::parse(text).expect("a line");
        let first = at("cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1 2 3\n");
        assert_eq!(
            first,
            CpuTimes {
                busy: 150,
                all: 1000
            }
        );
        let then = at("cpu  130 0 60 850 60 0 0 0 9 0\n");
        assert_eq!(first.busy_milli(&then), Some(400));
        assert_eq!(then.busy_milli(&then), None);
        assert_eq!(CpuTimes::default().busy_milli(&then), None);
        for text in ["", "cpu0 1 2 3 4 5", "cpu  1 2 x 4 5", "cpu  1 2 3"] {
            assert_eq!(CpuTimes::parse(text), None, "{text:?}");
        }
    }
}
