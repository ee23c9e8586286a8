// SPDX-License-Identifier: Apache-2.0
//! The servers of [`crate::modelled_servers`] over HTTP/3: many in one thread, each with its own
//! namespace, addresses, sockets and connection ids, on quinn.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use causeway_quic_lb::file::CidWatch;
use causeway_quic_lb::quinn::Generator;
use http::{Response, StatusCode};
use quinn::{Endpoint, EndpointConfig, TokioRuntime, TransportConfig, VarInt};
use tokio::time::{Instant, sleep, sleep_until};

use super::server::Cid;
use super::{serve, tls};
use crate::background::{Background, own_runtime};
use crate::modelled_servers::{self, ModelledRequest};
use crate::topology::Node;

/// Between two looks at the file of a server's agent.
const LOOK: Duration = Duration::from_millis(200);

type Resolver = h3::server::RequestResolver<h3_quinn::Connection, Bytes>;

/// Running servers; dropped, they end.
pub struct QuicModelledServers {
    /// Of each server, shared by its endpoints.
    generators: Vec<Generator>,
    _tasks: Background,
}

impl QuicModelledServers {
    /// Starts a server on each node, on `port` of all its addresses, whose ids are made
    /// by `cid` of its number. Servers name themselves by the node's IPv4 address.
    /// Connections may be silent for `idle`.
    pub fn start(
        nodes: &[Node],
        port: u16,
        idle: Duration,
        cid: impl Fn(usize) -> Cid,
    ) -> Result<Self> {
        let runtime = own_runtime()?;
        let server = server_config(idle)?;
        let mut generators = Vec::with_capacity(nodes.len());
        for (index, node) in nodes.iter().enumerate() {
            let generator = Generator::new(cid(index).issuer()?);
            for socket in sockets(node, port)? {
                let _inside = runtime.enter();
                let endpoint = endpoint(socket, &server, &generator)?;
                runtime.spawn(accept(endpoint, name(node)));
            }
            generators.push(generator);
        }
        Ok(Self {
            generators,
            _tasks: Background::run_tasks(runtime),
        })
    }

    /// The same, each with ids by the file that the agent on its server writes, once it has
    /// written it: for the VIP of IPv4 and for that of IPv6.
    pub fn start_by_files(
        nodes: &[Node],
        port: u16,
        idle: Duration,
        vips: [IpAddr; 2],
        files: impl Iterator<Item = PathBuf>,
    ) -> Result<Self> {
        let runtime = own_runtime()?;
        let server = server_config(idle)?;
        for (node, file) in nodes.iter().zip(files) {
            for (socket, vip) in sockets(node, port)?.into_iter().zip(vips) {
                let watch = CidWatch::new(&file, (vip, port).into());
                let (server, name) = (server.clone(), name(node));
                runtime.spawn(async move {
                    if let Err(error) = follow(watch, socket, &server, name).await {
                        eprintln!("a QUIC server of {vip} has ended: {error:#}");
                    }
                });
            }
        }
        Ok(Self {
            generators: Vec::new(),
            _tasks: Background::run_tasks(runtime),
        })
    }

    /// Issues ids by other configurations from now on.
    pub fn rotate(&self, cid: impl Fn(usize) -> Cid) -> Result<()> {
        for (index, generator) in self.generators.iter().enumerate() {
            generator.rotate(cid(index).issuer()?)?;
        }
        Ok(())
    }
}

fn name(node: &Node) -> Arc<str> {
    node.ipv4.to_string().into()
}

/// Of IPv4 and of IPv6.
fn sockets(node: &Node, port: u16) -> Result<[UdpSocket; 2]> {
    let socket = |address: IpAddr| {
        let address = SocketAddr::from((address, port));
        let listen = move || serve::listen(address).context("a server's socket");
        node.netns.run(listen)
    };
    Ok([
        socket(Ipv4Addr::UNSPECIFIED.into())?,
        socket(Ipv6Addr::UNSPECIFIED.into())?,
    ])
}

/// Serves with the ids that a file says, from when it says any.
async fn follow(
    mut watch: CidWatch,
    socket: UdpSocket,
    server: &quinn::ServerConfig,
    name: Arc<str>,
) -> Result<()> {
    let issuer = loop {
        if let Ok(Some(issuer)) = watch.poll() {
            break issuer;
        }
        sleep(LOOK).await;
    };
    let generator = Generator::new(issuer);
    tokio::spawn(accept(endpoint(socket, server, &generator)?, name));
    loop {
        sleep(LOOK).await;
        if let Ok(Some(next)) = watch.poll() {
            generator.rotate(next)?;
        }
    }
}

fn server_config(idle: Duration) -> Result<quinn::ServerConfig> {
    let identity = tls::identity()?;
    let tls = tls::server(Path::new(&identity.certificate), Path::new(&identity.key))?;
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(tls));
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(Some(VarInt::from_u32(idle.as_millis() as u32).into()));
    server.transport_config(Arc::new(transport));
    Ok(server)
}

fn endpoint(
    socket: UdpSocket,
    server: &quinn::ServerConfig,
    generator: &Generator,
) -> Result<Endpoint> {
    let mut ids = EndpointConfig::default();
    let generator = generator.clone();
    ids.cid_generator(move || Box::new(generator.clone()));
    let runtime = Arc::new(TokioRuntime);
    Ok(Endpoint::new(ids, Some(server.clone()), socket, runtime)?)
}

async fn accept(endpoint: Endpoint, name: Arc<str>) {
    while let Some(incoming) = endpoint.accept().await {
        let name = Arc::clone(&name);
        tokio::spawn(async move {
            // What fails is the client's to report.
            if let Ok(connection) = incoming.await {
                let _ = serve_connection(connection, name).await;
            }
        });
    }
}

async fn serve_connection(connection: quinn::Connection, name: Arc<str>) -> Result<()> {
    let mut http = h3::server::Connection::new(h3_quinn::Connection::new(connection)).await?;
    while let Some(request) = http.accept().await? {
        let name = Arc::clone(&name);
        tokio::spawn(async move {
            let _ = answer(request, &name).await;
        });
    }
    Ok(())
}

/// Answers `GET /s/SIZE/MS` as the servers over TCP do.
async fn answer(request: Resolver, name: &str) -> Result<()> {
    let (request, mut stream) = request.resolve_request().await?;
    let Some(ModelledRequest::Spread { size, over }) =
        modelled_servers::parse_path(request.uri().path())
    else {
        let missing = Response::builder().status(StatusCode::NOT_FOUND).body(())?;
        stream.send_response(missing).await?;
        return Ok(stream.finish().await?);
    };
    let head = Response::builder()
        .header("x-real", name)
        .header("content-length", size)
        .body(())?;
    stream.send_response(head).await?;
    let start = Instant::now();
    for (after, share) in modelled_servers::pieces(size, over) {
        sleep_until(start + after).await;
        stream.send_data(Bytes::from(vec![b'c'; share])).await?;
    }
    Ok(stream.finish().await?)
}
