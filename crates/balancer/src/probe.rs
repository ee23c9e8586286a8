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
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::warn;

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

/// Probes for as long as it is polled; it never ends by itself.
pub(crate) async fn run(shared: Arc<Shared>) {
    let (done, mut outcomes) = mpsc::unbounded_channel();
    let mut warned_ns = None;
    loop {
        // What has come in counts before what is overdue: the task that waited for the
        // engine was late, not the real.
        while let Ok((real, number, outcome)) = outcomes.try_recv() {
            take(&shared, &mut warned_ns, real, number, outcome);
        }
        let now_ns = Moment::now().monotonic_ns;
        let (orders, next_ns) = shared.engine().poll_health(now_ns);
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
                Some((real, number, outcome)) = outcomes.recv() => {
                    take(&shared, &mut warned_ns, real, number, outcome);
                }
            }
        }
    }
}

fn take(shared: &Shared, warned_ns: &mut Option<u64>, real: RealId, number: u64, outcome: Outcome) {
    let now_ns = Moment::now().monotonic_ns;
    let outcome = match outcome {
        Err(error) if is_of_this_host(&error) => {
            let reason = format!("{error:#}");
            if warned_ns.is_none_or(|warned| now_ns.saturating_sub(warned) >= WARN_EVERY_NS) {
                warn!("a health probe could not be sent, and its real stays as it is: {reason}");
                *warned_ns = Some(now_ns);
            }
            return shared.engine().probe_unsent(real, number, &reason);
        }
        outcome => outcome.map_err(|error| format!("{error:#}")),
    };
    let mut engine = shared.engine();
    if let Ok(seen) = &outcome {
        engine.handle_weight(real, seen.weight);
    }
    engine.health_outcome(now_ns, real, number, outcome.map(|seen| seen.reason));
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
