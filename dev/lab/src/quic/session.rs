// SPDX-License-Identifier: Apache-2.0
//! One request after another on one QUIC connection, as [`crate::load::get`] has it
//! over TCP, by a client that may move meanwhile.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bytes::{Buf as _, Bytes};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, TransportConfig, VarInt};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::timeout;

use super::nat::Nat;
use super::socket::{fault_of, open_endpoint, wander};
use super::tls;
use crate::load::log::ConnectionFault;

type Sender = h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>;

/// How a connection's client changes its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressChanges {
    /// It stays.
    Never,
    /// It moves to another port by itself, this often (connection migration).
    Migrates(Duration),
    /// A NAT gives it another port, this often, without its knowledge.
    Rebound(Duration),
}

/// What all connections of a thread share.
#[derive(Clone)]
pub struct QuicClient {
    tls: Arc<QuicClientConfig>,
    idle: VarInt,
}

impl QuicClient {
    /// A client that trusts the lab's servers. Connections may be silent for `idle`.
    pub fn new(idle: Duration) -> Result<Self> {
        Ok(Self {
            tls: Arc::new(tls::client(&tls::identity()?.certificate)?),
            idle: VarInt::from_u32(idle.as_millis() as u32),
        })
    }

    /// For a connection whose client changes its address so.
    fn config(&self, moves: AddressChanges) -> ClientConfig {
        let mut transport = TransportConfig::default();
        transport.max_idle_timeout(Some(self.idle.into()));
        if let AddressChanges::Rebound(every) = moves {
            // A client that only waits must send something: the server learns the NAT's ports from
            // nothing else, and goes back to the former one where the answer to its challenge was
            // late or lost (RFC 9000, sections 9.3.2 and 10.1.2).
            transport.keep_alive_interval(Some(every / 4));
        }
        let mut config = ClientConfig::new(Arc::clone(&self.tls) as _);
        config.transport_config(Arc::new(transport));
        config
    }
}

/// A connection to a service. Dropped, it is closed.
pub struct QuicSession {
    connection: quinn::Connection,
    sender: Sender,
    moves: AddressChanges,
    nat: Option<AbortHandle>,
    /// The server that answered first: another one later is a fault.
    real: Option<String>,
    /// Longest wait for the next bytes.
    timeout: Duration,
}

impl QuicSession {
    /// Connects; `wait` is the longest wait for this and for every next byte.
    /// `moved` is called whenever the client has another address. To be called in a
    /// `LocalSet`.
    pub async fn open(
        client: &QuicClient,
        target: SocketAddr,
        wait: Duration,
        moves: AddressChanges,
        moved: impl FnMut() + 'static,
    ) -> Result<Self, ConnectionFault> {
        let (nat, moved) = match moves {
            AddressChanges::Rebound(every) => {
                let nat = Nat::open(target, every.as_millis() as u64, moved);
                (Some(nat.map_err(|_| ConnectionFault::SendFailed)?), None)
            }
            AddressChanges::Never | AddressChanges::Migrates(_) => (None, Some(moved)),
        };
        let to = nat.as_ref().map_or(target, |nat| nat.inside);
        let opened = Self::connect(client.config(moves), to, wait).await;
        let nat = nat.map(|nat| {
            if let Ok((_, connection, _)) = &opened {
                let _ = nat.connection.set(connection.clone());
            }
            nat.task
        });
        let (endpoint, connection, sender) = opened.inspect_err(|_| abort(nat.as_ref()))?;
        if let (AddressChanges::Migrates(every), Some(moved)) = (moves, moved) {
            let every_ms = every.as_millis() as u64;
            spawn_local(wander(endpoint, connection.clone(), to, every_ms, moved));
        }
        Ok(Self {
            connection,
            sender,
            moves,
            nat,
            real: None,
            timeout: wait,
        })
    }

    async fn connect(
        config: ClientConfig,
        to: SocketAddr,
        wait: Duration,
    ) -> Result<(quinn::Endpoint, quinn::Connection, Sender), ConnectionFault> {
        let endpoint = open_endpoint(to).map_err(|_| ConnectionFault::SendFailed)?;
        let connecting = endpoint
            .connect_with(config, to, tls::SERVER_NAME)
            .map_err(|_| ConnectionFault::SendFailed)?;
        let connection = match timeout(wait, connecting).await {
            Ok(result) => result.map_err(|e| fault_of(&e, ConnectionFault::ConnectTimeout))?,
            Err(_) => return Err(ConnectionFault::ConnectTimeout),
        };
        let transport = h3_quinn::Connection::new(connection.clone());
        let (mut driver, sender) = h3::client::builder()
            .send_grease(false)
            .build(transport)
            .await
            .map_err(|_| ConnectionFault::BadResponse)?;
        spawn_local(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
        Ok((endpoint, connection, sender))
    }

    /// Sends a request for `path` and waits for its whole answer.
    pub async fn get(&mut self, path: &str) -> Result<(), ConnectionFault> {
        let real = self.exchange(path).await?;
        match &self.real {
            Some(known) if *known != real => Err(ConnectionFault::WrongReal),
            Some(_) => Ok(()),
            None => {
                self.real = Some(real);
                Ok(())
            }
        }
    }

    async fn exchange(&mut self, path: &str) -> Result<String, ConnectionFault> {
        let uri = format!("https://{}{path}", tls::SERVER_NAME);
        let request = http::Request::get(uri).body(());
        let request = request.map_err(|_| ConnectionFault::SendFailed)?;
        let sent = self.sender.send_request(request).await;
        let mut stream = sent.map_err(|_| self.fault())?;
        stream.finish().await.map_err(|_| self.fault())?;
        let head = self.in_time(stream.recv_response()).await?;
        if head.status() != http::StatusCode::OK {
            return Err(ConnectionFault::BadResponse);
        }
        let header = |name| head.headers().get(name).and_then(|v| v.to_str().ok());
        let wanted = header("content-length").and_then(|v| v.parse::<usize>().ok());
        let mut length = 0;
        while let Some(piece) = self.in_time(stream.recv_data()).await? {
            length += piece.remaining();
        }
        match header("x-real") {
            Some(real) if wanted == Some(length) => Ok(real.to_owned()),
            _ => Err(ConnectionFault::BadResponse),
        }
    }

    async fn in_time<T, E>(
        &self,
        next: impl Future<Output = Result<T, E>>,
    ) -> Result<T, ConnectionFault> {
        match timeout(self.timeout, next).await {
            Ok(result) => result.map_err(|_| self.fault()),
            Err(_) => {
                let stats = self.connection.stats();
                tracing::warn!(
                    "no answer within {:?}, {:?}: {} of {} packets lost, sent {:?}, received {:?}",
                    self.timeout,
                    self.moves,
                    stats.path.lost_packets,
                    stats.path.sent_packets,
                    stats.frame_tx,
                    stats.frame_rx
                );
                Err(ConnectionFault::ResponseTimeout)
            }
        }
    }

    /// What ended the connection, or only this request.
    fn fault(&self) -> ConnectionFault {
        let reason = self.connection.close_reason();
        reason.map_or(ConnectionFault::BadResponse, |e| {
            fault_of(&e, ConnectionFault::ResponseTimeout)
        })
    }
}

fn abort(nat: Option<&AbortHandle>) {
    if let Some(nat) = nat {
        nat.abort();
    }
}

impl Drop for QuicSession {
    fn drop(&mut self) {
        let code = h3::error::Code::H3_NO_ERROR.value() as u32;
        self.connection.close(code.into(), b"");
        if let Some(nat) = self.nat.take() {
            // Closing words still have to get out.
            spawn_local(async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                nat.abort();
            });
        }
    }
}
