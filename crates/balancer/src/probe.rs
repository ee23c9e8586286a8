// SPDX-License-Identifier: Apache-2.0
//! Sends health probes: ordinary sockets to the VIP, whose packets the data plane sends
//! to one real.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use causeway_api::Moment;
use causeway_core::health::{dns_code, http_status};
use causeway_dataplane::probe::aim_at;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::api::Shared;
use super::health::ProbeOrder;
use crate::config::ProbeConfig;

mod tls;

/// Longest sleep: how late a new configuration is noticed.
const NAP: Duration = Duration::from_millis(100);
/// Enough of an HTTP answer to see its status, and of a DNS answer its head.
const HEAD: usize = 512;
const DNS_RECURSION_DESIRED: u8 = 0x01;
const DNS_NXDOMAIN: u8 = 3;

type Outcome = Result<String, String>;

/// Probes for as long as it is polled; it never ends by itself.
pub(crate) async fn run(shared: Arc<Shared>) {
    let (done, mut outcomes) = mpsc::unbounded_channel();
    loop {
        // What has come in counts before what is overdue: whoever waited for the engine
        // was late, not the real.
        while let Ok((real, number, outcome)) = outcomes.try_recv() {
            let now_ns = Moment::now().monotonic_ns;
            shared
                .engine()
                .health_outcome(now_ns, real, number, outcome);
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
        let nap = Duration::from_nanos(next_ns.saturating_sub(now_ns)).min(NAP);
        tokio::select! {
            () = sleep(nap) => {}
            Some((real, number, outcome)) = outcomes.recv() => {
                let now_ns = Moment::now().monotonic_ns;
                shared.engine().health_outcome(now_ns, real, number, outcome);
            }
        }
    }
}

async fn send(order: &ProbeOrder) -> Outcome {
    let outcome = match &order.probe {
        ProbeConfig::Tcp => connect(order).await.map(|_| "connected".to_owned()),
        ProbeConfig::Http {
            tls,
            path,
            host,
            status,
        } => {
            let name = host.clone().unwrap_or_else(|| order.target.to_string());
            http(order, *tls, path, &name, *status).await
        }
        ProbeConfig::Quic { host, alpn } => tls::quic(order, host.as_deref(), alpn).await,
        ProbeConfig::Dns { name } => dns(order, name).await,
    };
    outcome.map_err(|error| format!("{error:#}"))
}

async fn connect(order: &ProbeOrder) -> anyhow::Result<TcpStream> {
    let socket = match order.target {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    aim_at(&socket, order.real)?;
    // The reason is the kernel's word alone: refused, unreachable.
    Ok(socket.connect(order.target).await?)
}

async fn http(
    order: &ProbeOrder,
    tls: bool,
    path: &str,
    host: &str,
    status: u16,
) -> anyhow::Result<String> {
    let stream = connect(order).await?;
    match tls {
        true => get(tls::wrap(stream, host).await?, path, host, status).await,
        false => get(stream, path, host, status).await,
    }
}

/// Asks for a page, and looks at the answer's status.
async fn get(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    path: &str,
    host: &str,
    status: u16,
) -> anyhow::Result<String> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: causeway\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut head = Vec::with_capacity(HEAD);
    while !head.contains(&b'\n') && head.len() < HEAD {
        if stream.read_buf(&mut head).await? == 0 {
            break;
        }
    }
    let got = http_status(&head).context("the answer is not HTTP")?;
    anyhow::ensure!(got == status, "status {got} instead of {status}");
    Ok(format!("status {got}"))
}

async fn dns(order: &ProbeOrder, name: &str) -> anyhow::Result<String> {
    let any: SocketAddr = match order.target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    aim_at(&socket, order.real)?;
    socket.connect(order.target).await?;
    // The port, new for each probe, is what tells answers apart; the id is a second word.
    let id = (order.number as u16).to_be_bytes();
    socket.send(&dns_query(id, name)).await?;
    let mut answer = [0; HEAD];
    loop {
        let length = socket.recv(&mut answer).await?;
        if let Some(code) = dns_code(&answer[..length], id) {
            anyhow::ensure!(
                code == 0 || code == DNS_NXDOMAIN,
                "the answer is code {code}"
            );
            return Ok("answered".to_owned());
        }
    }
}

/// A question for a name's IPv4 address.
fn dns_query(id: [u8; 2], name: &str) -> Vec<u8> {
    let mut query = vec![
        id[0],
        id[1],
        DNS_RECURSION_DESIRED,
        0,
        0,
        1,
        0,
        0,
        0,
        0,
        0,
        0,
    ];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    // The root; type A, class IN.
    query.extend([0, 0, 1, 0, 1]);
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_what_rfc_1035_says() {
        assert_eq!(
            dns_query([0x12, 0x34], "a.example."),
            b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x07example\x00\x00\x01\x00\x01"
        );
        assert_eq!(dns_query([0, 0], ".").len(), 12 + 5);
    }
}
