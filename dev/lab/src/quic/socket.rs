// SPDX-License-Identifier: Apache-2.0
//! A client's UDP sockets, and what the errors of a connection mean.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::{ConnectionError, Endpoint, EndpointConfig, TokioRuntime, TransportErrorCode};

use crate::load::log::ConnectionFault;

/// A socket on the address from which `target` is reached, on a fresh port.
pub(super) fn open_socket(target: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let probe = UdpSocket::bind(any)?;
    probe.connect(target)?;
    UdpSocket::bind((probe.local_addr()?.ip(), 0))
}

/// An endpoint for one connection to `target`, so that each has a port of its own.
pub(super) fn open_endpoint(target: SocketAddr) -> io::Result<Endpoint> {
    let socket = open_socket(target)?;
    Endpoint::new(
        EndpointConfig::default(),
        None,
        socket,
        Arc::new(TokioRuntime),
    )
}

/// Whether the handshake is confirmed for the client (RFC 9001, section 4.1.2).
pub(super) fn is_confirmed(connection: &quinn::Connection) -> bool {
    connection.stats().frame_rx.handshake_done > 0
}

/// Moves the endpoint to another port `every_ms` after the server has asked at the one before
/// whether the client is there (RFC 9000, section 9.3), until its connection ends: on a
/// machine that stands still a server could not follow otherwise.
pub(super) async fn wander(
    endpoint: Endpoint,
    connection: quinn::Connection,
    target: SocketAddr,
    every_ms: u64,
    mut moved: impl FnMut(),
) {
    let pause = || tokio::time::sleep(Duration::from_millis(every_ms));
    let followed = || connection.stats().frame_tx.path_response;
    let mut before = None;
    loop {
        tokio::select! {
            _ = connection.closed() => return,
            () = pause() => {}
        }
        // Before that a client must not move (RFC 9000, section 9).
        if !is_confirmed(&connection) || before.is_some_and(|before| before == followed()) {
            continue;
        }
        let answers = followed();
        // Without a socket to spare the connection stays where it is.
        if open_socket(target).and_then(|s| endpoint.rebind(s)).is_ok() {
            before = Some(answers);
            moved();
        }
    }
}

/// What broke a connection; `late` is what a timeout is called at that stage.
pub(super) fn fault_of(error: &ConnectionError, late: ConnectionFault) -> ConnectionFault {
    match error {
        ConnectionError::TimedOut => late,
        ConnectionError::Reset => ConnectionFault::Reset,
        ConnectionError::ConnectionClosed(close)
            if close.error_code == TransportErrorCode::CONNECTION_REFUSED =>
        {
            ConnectionFault::Refused
        }
        ConnectionError::TransportError(fault)
            if fault.code == TransportErrorCode::CONNECTION_ID_LIMIT_ERROR =>
        {
            ConnectionFault::IdLimit
        }
        ConnectionError::ConnectionClosed(_) | ConnectionError::ApplicationClosed(_) => {
            ConnectionFault::ShortRead
        }
        ConnectionError::VersionMismatch | ConnectionError::TransportError(_) => {
            ConnectionFault::BadResponse
        }
        ConnectionError::LocallyClosed | ConnectionError::CidsExhausted => {
            ConnectionFault::SendFailed
        }
    }
}
