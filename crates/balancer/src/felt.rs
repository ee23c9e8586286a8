// SPDX-License-Identifier: Apache-2.0
//! What agents say of their clients, for VIPs with `latency = "client"`.
//!
//! A server that drops SYNs answers those that it takes as fast as ever: by the packets
//! that a balancer sees, it is a fast one. Its agent knows better (docs/clients.md).

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use causeway_api::Moment;
use causeway_api::balancer::ReportCounts;
use causeway_core::certes::report::{Felt, Newest, REPORT_MAX, Report};
use causeway_core::control::Reading;
use causeway_core::cookie::Keys;
use causeway_core::select::report::{self as load, LoadReport, ServerLoad};
use tracing::{info, warn};

use super::pool::{Latency, Pool, configured};
use crate::config::{Control, LatencySource};

/// Servers that are remembered: more than a balancer has reals. Whoever has the key could
/// name others without end.
const SERVERS_MAX: usize = 65_536;
/// Pause after an error, so that a lasting one does not keep a core busy.
const PAUSE: Duration = Duration::from_millis(100);

/// The newest reports; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Reports(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    keys: Option<Keys>,
    servers: HashMap<IpAddr, Newest>,
    loads: HashMap<IpAddr, load::Newest>,
    counts: ReportCounts,
}

impl Reports {
    /// Believes those that are signed with these keys from now on; nobody without.
    pub fn set_keys(&self, keys: Option<Keys>) {
        self.inner().keys = keys;
    }

    /// Takes a datagram in that came at `now_ns`.
    pub fn hear(&self, datagram: &[u8], now_ns: u64) {
        let mut inner = self.inner();
        let Some(keys) = inner.keys else {
            inner.counts.refused += 1;
            return;
        };
        if let Some(report) = LoadReport::decode(datagram, &keys) {
            inner.take_load(report, now_ns);
        } else if let Some(report) = Report::decode(datagram, &keys) {
            inner.take(report, now_ns);
        } else {
            inner.counts.refused += 1;
        }
    }

    /// A server's load, if its agent has told of it within the last second.
    pub fn load_of(&self, server: IpAddr, now_ns: u64) -> Option<ServerLoad> {
        self.inner().loads.get(&server)?.load(now_ns)
    }

    /// What clients of a service at this server felt in the last second, if that is known.
    pub fn of(&self, server: IpAddr, (address, port): (IpAddr, u16), now_ns: u64) -> Option<Felt> {
        let inner = self.inner();
        let newest = inner.servers.get(&server)?;
        newest.is_fresh(now_ns).then(|| newest.of(address, port))?
    }

    /// How long ago a server was heard of last.
    pub fn age_ns(&self, server: IpAddr, now_ns: u64) -> Option<u64> {
        let inner = self.inner();
        inner
            .servers
            .get(&server)
            .map(|newest| newest.age_ns(now_ns))
    }

    /// What became of reports.
    pub fn counts(&self) -> ReportCounts {
        self.inner().counts
    }

    /// Whole after every statement.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn take_load(&mut self, report: LoadReport, now_ns: u64) {
        let taken = match self.loads.get_mut(&report.server) {
            Some(newest) => newest.take(report, now_ns),
            None => {
                if self.loads.len() >= SERVERS_MAX {
                    self.loads.retain(|_, newest| newest.is_fresh(now_ns));
                }
                let room = self.loads.len() < SERVERS_MAX;
                if room {
                    let newest = load::Newest::new(report, now_ns);
                    self.loads.insert(report.server, newest);
                }
                room
            }
        };
        match taken {
            true => self.counts.taken += 1,
            false => self.counts.old += 1,
        }
    }

    fn take(&mut self, report: Report, now_ns: u64) {
        if let Some(newest) = self.servers.get_mut(&report.server) {
            match newest.take(report, now_ns) {
                true => self.counts.taken += 1,
                false => self.counts.old += 1,
            }
            return;
        }
        if self.servers.len() >= SERVERS_MAX {
            self.servers.retain(|_, newest| newest.is_fresh(now_ns));
        }
        if self.servers.len() >= SERVERS_MAX {
            self.counts.refused += 1;
            return;
        }
        let server = report.server;
        self.servers.insert(server, Newest::new(report, now_ns));
        self.counts.taken += 1;
    }
}

/// Puts what clients felt in the place of responses' latency, where the VIP wants that and
/// agents of all reals that get new connections tell. A report holds until the next one
/// and is spread over the intervals meanwhile. Where one is silent, all go by responses:
/// what its clients feel cannot be compared with what others' servers take.
pub fn go_by_clients(
    pool: &mut Pool,
    reports: &Reports,
    now_ns: u64,
    interval_ns: u64,
    readings: &mut [Reading],
) {
    if pool.vip().latency != LatencySource::Client || pool.vip().control == Control::Off {
        let before = pool.latency();
        pool.set_latency(
            Latency {
                by_clients: false,
                ..before
            },
            now_ns,
        );
        return;
    }
    let service = (pool.vip().address, pool.vip().port);
    let felt: Vec<Option<Felt>> = pool
        .members()
        .map(|(real, _)| reports.of(real.address, service, now_ns))
        .collect();
    let needed = pool
        .members()
        .map(|(real, member)| member.fit && configured(real) > 0.0);
    let silent = needed
        .zip(&felt)
        .position(|(needed, felt)| needed && felt.is_none());
    let before = pool.latency();
    let by_clients = silent.is_none();
    if by_clients != before.by_clients {
        let name = &pool.vip().name;
        match silent.and_then(|index| pool.vip().reals.get(index)) {
            None => info!("{name}: goes by what clients feel"),
            Some(real) => warn!(
                "{name}: goes by responses' latency, because no agent tells of {}'s clients",
                real.address
            ),
        }
    }
    let fallbacks = before.fallbacks + u64::from(!by_clients);
    pool.set_latency(
        Latency {
            by_clients,
            fallbacks,
        },
        now_ns,
    );
    if !by_clients {
        return;
    }
    // After a pause the last second is all that is known.
    let share = (interval_ns as f64 / 1e9).min(1.0);
    for (((_, member), felt), reading) in pool.members_mut().zip(&felt).zip(readings) {
        let felt = felt.as_ref().filter(|felt| felt.transactions_milli > 0);
        let (count, mean_ns) = felt.map_or((0.0, 0.0), |felt| {
            let count = felt.transactions_milli as f64 / 1e3;
            (count, felt.response_ns as f64 / count)
        });
        let halves = 2.0 * count * share + member.felt_rest;
        member.felt_rest = halves.fract();
        reading.latency_count2 = halves as u64;
        reading.latency_sum2_ns = (halves.trunc() * mean_ns) as u64;
    }
}

/// The socket where reports arrive.
pub struct Ear {
    socket: UdpSocket,
}

impl Ear {
    /// Takes the address.
    ///
    /// # Errors
    /// If it is not this machine's, or taken.
    pub fn bind(address: SocketAddr) -> anyhow::Result<Self> {
        let socket = UdpSocket::bind(address)
            .with_context(|| format!("cannot listen for agents on {address} (clients.listen)"))?;
        Ok(Self { socket })
    }

    /// Listens from now on, on a thread that ends with the process.
    pub fn serve(self, reports: Reports) -> std::io::Result<()> {
        thread::Builder::new()
            .name("clients".to_owned())
            .spawn(move || self.run(&reports))?;
        Ok(())
    }

    fn run(&self, reports: &Reports) {
        // One byte more than the longest: a longer datagram is seen to be one.
        let mut buffer = [0; REPORT_MAX + 1];
        loop {
            match self.socket.recv_from(&mut buffer) {
                Ok((length, _)) => reports.hear(&buffer[..length], Moment::now().monotonic_ns),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    warn!("reports of agents: {error}");
                    thread::sleep(PAUSE);
                }
            }
        }
    }
}
