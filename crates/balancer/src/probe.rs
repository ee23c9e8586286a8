// SPDX-License-Identifier: Apache-2.0
//! Sends health probes: ordinary sockets to the VIP, whose packets the data plane sends
//! to one real.

use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use causeway_api::Moment;
use causeway_dataplane::probe::aim_at;
use causeway_dataplane::{DataPlaneError, RealId};
use nix::errno::Errno;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::engine::Engine;
use super::health::ProbeOrder;
use super::shared::Shared;
use crate::config::{ProbeConfig, ProbeTo};

mod databases;
mod dns;
mod http;
mod icmp;
mod script;
#[cfg(test)]
mod tests;
pub(crate) mod tls;

/// Longest sleep: how late a new configuration is noticed.
const NAP: Duration = Duration::from_millis(100);
/// Shortest sleep: with thousands of reals some probe is always due, and a look at all takes long.
const PAUSE: Duration = Duration::from_millis(5);
/// How often the log has that probes cannot be sent, at most: what is wrong is wrong for all reals.
const WARN_EVERY_NS: u64 = 60_000_000_000;

type Outcome = anyhow::Result<Seen>;

/// What a probe that succeeded saw.
#[derive(Debug)]
struct Seen {
    /// For people.
    reason: String,
    /// The weight that the real says it should have.
    weight: Option<u32>,
}

/// Of which real, by which probe.
type Answered = (RealId, u64, Outcome);

/// Probes for as long as it is polled; it ends by a panic alone.
pub(crate) async fn run(shared: Arc<Shared>) {
    let (done, outcomes) = mpsc::unbounded_channel();
    let mut desk = Desk {
        shared,
        outcomes,
        warned_ns: None,
    };
    loop {
        let Some((back, (orders, now_ns, next_ns))) = desk.at_work(Desk::poll).await else {
            return;
        };
        desk = back;
        for order in orders {
            let done = done.clone();
            tokio::spawn(async move {
                let left = order.deadline_ns.saturating_sub(now_ns);
                // Without an outcome the check itself ends the probe at its deadline.
                if let Ok(outcome) = timeout(Duration::from_nanos(left), send(&order)).await {
                    let _ = done.send((order.real, order.number, outcome));
                }
            });
        }
        // No outcome has a probe due sooner than its deadline was.
        let nap = Duration::from_nanos(next_ns.saturating_sub(now_ns));
        let mut nap = pin!(sleep(nap.clamp(PAUSE, NAP)));
        loop {
            tokio::select! {
                () = &mut nap => break,
                Some(answered) = desk.outcomes.recv() => {
                    let taken = desk.at_work(|desk| desk.take(answered)).await;
                    let Some((back, ())) = taken else { return };
                    desk = back;
                }
            }
        }
    }
}

/// Where probes begin and end, by the engine.
struct Desk {
    shared: Arc<Shared>,
    outcomes: UnboundedReceiver<Answered>,
    warned_ns: Option<u64>,
}

impl Desk {
    /// Does what waits for the engine where it takes no thread from the probes that are out: they
    /// would end at their deadlines. `None` if it has panicked.
    async fn at_work<T: Send + 'static>(
        mut self,
        work: impl FnOnce(&mut Self) -> T + Send + 'static,
    ) -> Option<(Self, T)> {
        let done = tokio::task::spawn_blocking(move || {
            let done = work(&mut self);
            (self, done)
        });
        done.await.ok()
    }

    /// What is to be sent, the time that it is, and when there is more to do.
    fn poll(&mut self) -> (Vec<ProbeOrder>, u64, u64) {
        let shared = Arc::clone(&self.shared);
        let mut engine = shared.engine();
        let now_ns = Moment::now().monotonic_ns;
        // What has come in counts before what is overdue: who waited for the engine was late,
        // not the real.
        self.take_waiting(&mut engine);
        let (orders, next_ns) = engine.poll_health(now_ns);
        (orders, now_ns, next_ns)
    }

    /// Takes this outcome, and those that came meanwhile.
    fn take(&mut self, answered: Answered) {
        let shared = Arc::clone(&self.shared);
        let mut engine = shared.engine();
        self.take_one(&mut engine, answered);
        self.take_waiting(&mut engine);
    }

    fn take_waiting(&mut self, engine: &mut Engine) {
        while let Ok(answered) = self.outcomes.try_recv() {
            self.take_one(engine, answered);
        }
    }

    fn take_one(&mut self, engine: &mut Engine, (real, number, outcome): Answered) {
        let now_ns = Moment::now().monotonic_ns;
        let outcome = match outcome {
            Err(error) if is_of_this_host(&error) => {
                let reason = format!("{error:#}");
                let is_due = |warned| now_ns.saturating_sub(warned) >= WARN_EVERY_NS;
                if self.warned_ns.is_none_or(is_due) {
                    warn!(
                        "a health probe could not be sent, and its real stays as it is: {reason}"
                    );
                    self.warned_ns = Some(now_ns);
                }
                return engine.probe_unsent(real, number, &reason);
            }
            outcome => outcome.map_err(|error| format!("{error:#}")),
        };
        if let Ok(seen) = &outcome {
            engine.handle_weight(real, seen.weight);
        }
        engine.health_outcome(now_ns, real, number, outcome.map(|seen| seen.reason));
    }
}

/// Whether a probe has failed by what this host lacks: ports, descriptors, memory, a right. No
/// packet of a server or a router has these errors come up.
fn is_of_this_host(error: &anyhow::Error) -> bool {
    let errno = |error: &(dyn Error + 'static)| {
        let cause = match error.downcast_ref::<DataPlaneError>() {
            Some(DataPlaneError::Bpf { cause, .. }) => Some(cause),
            _ => error.downcast_ref::<io::Error>(),
        };
        let code = cause.and_then(io::Error::raw_os_error);
        code.map(Errno::from_raw)
    };
    error.chain().filter_map(errno).any(|errno| {
        matches!(
            errno,
            Errno::EADDRINUSE
                | Errno::EADDRNOTAVAIL
                | Errno::EAGAIN
                | Errno::EMFILE
                | Errno::ENFILE
                | Errno::ENOBUFS
                | Errno::ENOMEM
                | Errno::EPERM
        )
    })
}

async fn send(order: &ProbeOrder) -> Outcome {
    let name = |host: &Option<String>| host.clone().unwrap_or_else(|| order.target.to_string());
    let mut weight = None;
    let outcome = match &order.probe {
        ProbeConfig::Tcp => connect(order).await.map(|_| "connected".to_owned()),
        ProbeConfig::Http {
            tls,
            path,
            host,
            status,
            body,
        } => {
            let page = http::Page {
                path,
                host: &name(host),
                status,
                body: body.as_deref(),
            };
            http::page(order, tls.as_ref(), &page, &mut weight).await
        }
        ProbeConfig::Grpc { tls, host, service } => {
            http::grpc(order, tls.as_ref(), &name(host), service).await
        }
        ProbeConfig::Redis => databases::redis(order).await,
        ProbeConfig::Postgres { user } => databases::postgres(order, user).await,
        ProbeConfig::Dns {
            name,
            record,
            rcodes,
        } => dns::ask(order, name, *record, rcodes).await,
        ProbeConfig::Quic { host, alpn, tls } => tls::quic(order, host.as_deref(), alpn, tls).await,
        ProbeConfig::Icmp => icmp::echo(order).await,
        ProbeConfig::Script { command } => script::run(order, command).await,
    };
    outcome.map(|reason| Seen { reason, weight })
}

async fn connect(order: &ProbeOrder) -> anyhow::Result<TcpStream> {
    let socket = match order.target {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    if order.to == ProbeTo::Vip {
        aim_at(&socket, order.real)?;
    }
    // It ends by a reset. Closed in order, it would keep a port for a minute, and all reals of a VIP
    // share the ports: the mark is not part of a connection's tuple. The answer is in by then.
    socket.set_zero_linger()?;
    // The reason is the kernel's word alone: refused, unreachable.
    Ok(socket.connect(order.target).await?)
}

/// Any address of the target's family, and any port.
fn any_address(order: &ProbeOrder) -> SocketAddr {
    match order.target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}
