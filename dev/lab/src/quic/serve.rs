// SPDX-License-Identifier: Apache-2.0
//! The server process on quinn and h3: one thread, one endpoint per IP version.

use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use causeway_quic_lb::quinn::Generator;
use http::{Response, StatusCode};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt,
};
use quinn::{Connection, Endpoint, EndpointConfig, TokioRuntime};
use tokio::sync::Mutex;
use tokio::task::{LocalSet, spawn_local};

use super::server::{Cid, Order, ServerConfig};
use super::{clock as precise, tls};
use crate::background::own_runtime;
use crate::{clock, role};

/// The word of this role.
pub const ROLE: &str = "quic-server";
/// Ids are replaced after this long, so that a rotation reaches old connections.
const CID_LIFETIME: Duration = Duration::from_secs(2);
/// Largest body.
const MAX_BODY: usize = 1 << 20;

type RequestStream = h3::server::RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;
type Resolver = h3::server::RequestResolver<h3_quinn::Connection, Bytes>;

/// What all connections share.
struct Shared {
    config: ServerConfig,
    factor: Cell<f64>,
    /// Of both endpoints, if the server's ids carry its own.
    generator: Option<Generator>,
    filler: Bytes,
}

/// What the requests of one connection share.
struct Line {
    shared: Rc<Shared>,
    /// [`Order::Seq`]: held by the request that is served.
    turn: Mutex<()>,
    /// [`Order::Batch`]: when those that wait now are done.
    batch_ns: RefCell<u64>,
}

/// Runs the server until its input ends.
pub fn play() -> Result<()> {
    let mut commands = role::commands();
    let first = commands.blocking_recv().context("no configuration")?;
    let config: ServerConfig = serde_json::from_str(&first).context("configuration")?;
    let runtime = own_runtime()?;
    LocalSet::new().block_on(&runtime, async move {
        let shared = Rc::new(Shared {
            filler: b"causeway".repeat(MAX_BODY / 8).into(),
            factor: Cell::new(1.0),
            generator: generator(&config)?,
            config,
        });
        for endpoint in endpoints(&shared)? {
            spawn_local(accept(endpoint, shared.clone()));
        }
        role::answer("ready")?;
        while let Some(command) = commands.recv().await {
            match obey(&shared, &command) {
                Ok(()) => role::answer("ok")?,
                Err(e) => role::answer(&format!("error: {e:#}"))?,
            }
        }
        Ok(())
    })
}

fn obey(shared: &Shared, command: &str) -> Result<()> {
    match command.split_once(' ') {
        Some(("factor", value)) => shared.factor.set(value.parse().context("factor")?),
        Some(("rotate", cid)) => {
            let cid: Cid = serde_json::from_str(cid)?;
            let generator = shared.generator.as_ref().context("ids are random here")?;
            generator.rotate(cid.issuer()?)?;
        }
        _ => bail!("unknown command {command:?}"),
    }
    Ok(())
}

fn generator(config: &ServerConfig) -> Result<Option<Generator>> {
    let issuer = config.cid.as_ref().map(Cid::issuer).transpose()?;
    Ok(issuer.map(|issuer| Generator::new(issuer).with_lifetime(CID_LIFETIME)))
}

fn endpoints(shared: &Shared) -> Result<Vec<Endpoint>> {
    let config = &shared.config;
    let tls = tls::server(Path::new(&config.certificate), Path::new(&config.key))?;
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(tls));
    let mut transport = quinn::TransportConfig::default();
    transport.max_concurrent_bidi_streams(256u32.into());
    server.transport_config(Arc::new(transport));
    [
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, config.port)),
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, config.port)),
    ]
    .into_iter()
    .map(|address| {
        let socket = listen(address).with_context(|| format!("cannot listen on {address}"))?;
        let mut ids = EndpointConfig::default();
        // A client that resumes a session may clear the bit at any server of the VIP (RFC 9287,
        // section 3.1), and quic-go drops such packets.
        ids.grease_quic_bit(false);
        if let Some(generator) = shared.generator.clone() {
            ids.cid_generator(move || Box::new(generator.clone()));
        }
        let endpoint = Endpoint::new(ids, Some(server.clone()), socket, Arc::new(TokioRuntime))?;
        Ok(endpoint)
    })
    .collect()
}

/// A socket for one family alone, so that both can have the port.
pub(super) fn listen(address: SocketAddr) -> Result<UdpSocket> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let fd: OwnedFd = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    if address.is_ipv6() {
        setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
    }
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
    Ok(UdpSocket::from(fd))
}

async fn accept(endpoint: Endpoint, shared: Rc<Shared>) {
    while let Some(incoming) = endpoint.accept().await {
        let shared = shared.clone();
        spawn_local(async move {
            // A handshake that fails is the client's to report.
            if let Ok(connection) = incoming.await {
                let _ = serve(connection, shared).await;
            }
        });
    }
}

async fn serve(connection: Connection, shared: Rc<Shared>) -> Result<()> {
    let line = Rc::new(Line {
        shared,
        turn: Mutex::new(()),
        batch_ns: RefCell::new(0),
    });
    let mut http = h3::server::Connection::new(h3_quinn::Connection::new(connection)).await?;
    while let Some(request) = http.accept().await? {
        let line = line.clone();
        spawn_local(async move {
            // The client logs an answer that does not come.
            let _ = line.answer(request).await;
        });
    }
    Ok(())
}

impl Line {
    async fn answer(&self, request: Resolver) -> Result<()> {
        let (request, mut stream) = request.resolve_request().await?;
        let Some((size, service_us)) = parse(request.uri().path()) else {
            return self.send(&mut stream, StatusCode::NOT_FOUND, 0).await;
        };
        let service_ns = (service_us as f64 * self.shared.factor.get() * 1000.0) as u64;
        self.serve(service_ns).await?;
        self.send(&mut stream, StatusCode::OK, size).await
    }

    /// Waits as long as the service takes.
    async fn serve(&self, service_ns: u64) -> Result<()> {
        let now = clock::monotonic_ns();
        match self.shared.config.order {
            Order::Par => precise::sleep_until(now + service_ns).await?,
            Order::Batch => {
                let done_ns = {
                    let mut batch_ns = self.batch_ns.borrow_mut();
                    if *batch_ns <= now {
                        *batch_ns = now + service_ns;
                    }
                    *batch_ns
                };
                precise::sleep_until(done_ns).await?;
            }
            Order::Seq => {
                let _turn = self.turn.lock().await;
                precise::sleep_until(clock::monotonic_ns() + service_ns).await?;
            }
        }
        Ok(())
    }

    async fn send(
        &self,
        stream: &mut RequestStream,
        status: StatusCode,
        size: usize,
    ) -> Result<()> {
        let head = Response::builder()
            .status(status)
            .header("x-real", &self.shared.config.real)
            .header("content-length", size)
            .body(())?;
        stream.send_response(head).await?;
        if size > 0 {
            stream.send_data(self.shared.filler.slice(..size)).await?;
        }
        Ok(stream.finish().await?)
    }
}

/// Size in bytes and service time in microseconds of `/r/SIZE/SERVICE_US`.
fn parse(path: &str) -> Option<(usize, u64)> {
    let (size, service_us) = path.strip_prefix("/r/")?.split_once('/')?;
    let size: usize = size.parse().ok()?;
    Some((size.min(MAX_BODY), service_us.parse().ok()?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn paths_ask_for_size_and_service() {
        assert_eq!(super::parse("/r/100/20000"), Some((100, 20_000)));
        assert_eq!(super::parse("/r/9999999/1"), Some((super::MAX_BODY, 1)));
        for bad in ["/", "/r/", "/r/1", "/r/x/1", "/r/1/-1", "/q/1/1"] {
            assert_eq!(super::parse(bad), None, "{bad}");
        }
    }
}
