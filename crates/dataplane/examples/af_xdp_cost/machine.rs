// SPDX-License-Identifier: Apache-2.0
//! Links, CPUs and their time.

use std::io;
use std::net::SocketAddr;
use std::process::Command;

use causeway_netio::tunnel::{PathOptions, UdpPath};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use nix::unistd::Pid;

use crate::ends::PORT;

/// User and system time of this thread, in seconds.
pub fn thread_times() -> io::Result<[f64; 2]> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD)?;
    let seconds = |time: nix::sys::time::TimeVal| time.num_microseconds() as f64 / 1e6;
    Ok([seconds(usage.user_time()), seconds(usage.system_time())])
}

/// Seconds that the machine's CPUs were busy, interrupts included, stolen time not.
pub fn machine_time() -> io::Result<f64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let ticks: Vec<f64> = text
        .lines()
        .next()
        .into_iter()
        .flat_map(|line| {
            line.split_whitespace()
                .skip(1)
                .map_while(|n| n.parse().ok())
        })
        .collect();
    // user, nice, system, idle, iowait, irq, softirq; in hundredths.
    Ok([0, 1, 2, 5, 6]
        .iter()
        .filter_map(|i| ticks.get(*i))
        .sum::<f64>()
        / 100.0)
}

pub fn pin(cpu: usize) -> io::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &cpus)?)
}

pub fn run(words: &str) -> io::Result<()> {
    let mut words_of = words.split_whitespace();
    let status = Command::new(words_of.next().unwrap_or_default())
        .args(words_of)
        .status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("`{words}` failed"))),
    }
}

pub fn path(link: u8, end: u8) -> io::Result<UdpPath> {
    let at = |end| SocketAddr::from(([10, 9, link, end], PORT));
    let options = PathOptions {
        local: at(end),
        remote: at(3 - end),
        device: None,
        buffer_bytes: 8 << 20,
        merge: true,
    };
    UdpPath::open(&options).map_err(io::Error::other)
}

/// Addresses of one end of all links, in the calling thread's namespace.
pub fn set_up(end: u8) -> io::Result<()> {
    for link in 0..3 {
        let (device, other) = (format!("end{link}"), 3 - end);
        run(&format!("ip link set {device} up addrgenmode none"))?;
        run(&format!("ip addr add 10.9.{link}.{end}/24 dev {device}"))?;
        run(&format!(
            "ip neigh add 10.9.{link}.{other} lladdr 02:00:00:00:{link:02x}:{other:02x} dev {device} nud permanent"
        ))?;
    }
    Ok(())
}
