// SPDX-License-Identifier: Apache-2.0
//! Probes with TLS: HTTPS, and the handshake of QUIC.
//!
//! No certificate is checked: who is asked is settled by its address, and nothing that
//! is sent is a secret. Servers of one service mostly have one certificate, so that one
//! that has expired would take all of them out at once, and help no client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result};
use causeway_dataplane::probe::aim_at;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::ProbeOrder;

/// Holds for any certificate; the server has to have its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A client that speaks `alpn`; each handshake is a whole one, as a new client's.
fn client(alpn: &str) -> Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// TLS on a connection, by the name of `host`, which may have a port.
pub(super) async fn wrap(stream: TcpStream, host: &str) -> Result<TlsStream<TcpStream>> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    let config = match CONFIG.get() {
        Some(config) => config,
        None => {
            let config = Arc::new(client("http/1.1")?);
            CONFIG.get_or_init(|| config)
        }
    };
    let connector = TlsConnector::from(Arc::clone(config));
    let connected = connector.connect(server_name(host)?, stream).await;
    connected.context("no TLS")
}

/// What a certificate would be for: an address, or a name without its port.
fn server_name(host: &str) -> Result<ServerName<'static>> {
    let address = host
        .parse::<SocketAddr>()
        .map(|target| target.ip())
        .or_else(|_| host.trim_matches(['[', ']']).parse::<IpAddr>());
    if let Ok(address) = address {
        return Ok(ServerName::from(address));
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    ServerName::try_from(name.to_owned()).with_context(|| format!("`{name}` is no name for TLS"))
}

/// Completes a handshake, and closes the connection.
pub(super) async fn quic(order: &ProbeOrder, host: Option<&str>, alpn: &str) -> Result<String> {
    let any: SocketAddr = match order.target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = std::net::UdpSocket::bind(any)?;
    socket.set_nonblocking(true)?;
    aim_at(&socket, order.real)?;
    let runtime = Arc::new(quinn::TokioRuntime);
    let endpoint = quinn::Endpoint::new(quinn::EndpointConfig::default(), None, socket, runtime)?;
    let mut transport = quinn::TransportConfig::default();
    // A probe of the path's MTU would be longer than the tunnel may take.
    transport.mtu_discovery_config(None);
    let tls = QuicClientConfig::try_from(client(alpn)?)?;
    let mut config = quinn::ClientConfig::new(Arc::new(tls));
    config.transport_config(Arc::new(transport));
    let address = order.target.ip().to_string();
    let name = server_name(host.unwrap_or(&address))?;
    let connecting = endpoint.connect_with(config, order.target, &name.to_str())?;
    // The server hears of the end, too; its own tasks see to that, for three times the
    // path's timeout, which is no part of the outcome.
    connecting.await?.close(0_u32.into(), b"");
    Ok("handshake complete".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quinn::crypto::rustls::QuicServerConfig;
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_rustls::TlsAcceptor;

    use super::super::{Outcome, send};
    use super::*;
    use crate::config::ProbeConfig;

    /// A server's TLS by a certificate for another name, which nobody has signed.
    fn server(alpn: &str) -> ServerConfig {
        let made = rcgen::generate_simple_self_signed(["other.example".to_owned()]);
        let made = made.expect("a certificate");
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .expect("a certificate with its key");
        config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
        config
    }

    /// The mark of probes means nothing on loopback.
    async fn probe(target: SocketAddr, probe: ProbeConfig) -> Outcome {
        let order = ProbeOrder {
            real: 1,
            number: 1,
            deadline_ns: 0,
            target,
            probe,
        };
        let patience = Duration::from_secs(20);
        let outcome = tokio::time::timeout(patience, send(&order)).await;
        outcome.expect("an outcome")
    }

    fn https(status: u16) -> ProbeConfig {
        ProbeConfig::Http {
            tls: true,
            path: "/up".to_owned(),
            host: Some("a.example:8443".to_owned()),
            status,
        }
    }

    #[tokio::test]
    async fn https_asks_within_tls() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let target = listener.local_addr().expect("its address");
        let acceptor = TlsAcceptor::from(Arc::new(server("http/1.1")));
        let serve = tokio::spawn(async move {
            let mut names = Vec::new();
            for _ in 0..2 {
                let (stream, _) = listener.accept().await.expect("a client");
                let mut stream = acceptor.accept(stream).await.expect("TLS");
                names.push(stream.get_ref().1.server_name().map(str::to_owned));
                let mut request = [0; 18];
                stream.read_exact(&mut request).await.expect("a request");
                assert_eq!(&request, b"GET /up HTTP/1.1\r\n");
                stream
                    .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
                    .await
                    .expect("answer");
                stream.shutdown().await.expect("close");
            }
            // The last one speaks in clear.
            let (mut stream, _) = listener.accept().await.expect("a client");
            stream
                .write_all(b"HTTP/1.1 200 OK\r\n\r\n")
                .await
                .expect("answer");
            names
        });
        assert_eq!(probe(target, https(204)).await, Ok("status 204".to_owned()));
        let wrong = probe(target, https(200)).await;
        assert_eq!(wrong, Err("status 204 instead of 200".to_owned()));
        let clear = probe(target, https(200)).await.unwrap_err();
        assert!(clear.starts_with("no TLS: "), "{clear}");
        let names = serve.await.expect("the server");
        assert_eq!(
            names,
            [Some("a.example".to_owned()), Some("a.example".to_owned())]
        );
    }

    #[tokio::test]
    async fn quic_completes_a_handshake() {
        let tls = QuicServerConfig::try_from(server("h3")).expect("TLS 1.3");
        let config = quinn::ServerConfig::with_crypto(Arc::new(tls));
        let address = (Ipv4Addr::LOCALHOST, 0).into();
        let endpoint = quinn::Endpoint::server(config, address).expect("a server");
        let target = endpoint.local_addr().expect("its address");
        let (closed, mut ended) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                let closed = closed.clone();
                tokio::spawn(async move {
                    if let Ok(connection) = incoming.await {
                        closed.send(connection.closed().await)
                    } else {
                        Ok(())
                    }
                });
            }
        });
        let quic = |host: Option<&str>, alpn: &str| ProbeConfig::Quic {
            host: host.map(str::to_owned),
            alpn: alpn.to_owned(),
        };
        for host in [None, Some("a.example:8443")] {
            let done = probe(target, quic(host, "h3")).await;
            assert_eq!(done, Ok("handshake complete".to_owned()));
            // The server is told, though nobody waits for that here.
            let reason = ended.recv().await.expect("the end of the connection");
            assert!(
                matches!(reason, quinn::ConnectionError::ApplicationClosed(_)),
                "{reason}"
            );
        }
        let refused = probe(target, quic(None, "h9")).await;
        assert!(refused.unwrap_err().contains("protocol"));
    }

    #[test]
    fn names_are_without_their_port() {
        let name = |host: &str| server_name(host).map(|name| name.to_str().into_owned());
        assert_eq!(name("a.example:8443").unwrap(), "a.example");
        assert_eq!(name("192.0.2.1:443").unwrap(), "192.0.2.1");
        assert_eq!(name("[2001:db8::1]:443").unwrap(), "2001:db8::1");
        assert_eq!(name("2001:db8::1").unwrap(), "2001:db8::1");
        assert!(name("a b").is_err());
    }
}
