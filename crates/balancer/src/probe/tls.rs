// SPDX-License-Identifier: Apache-2.0
//! TLS of probes: HTTPS, gRPC, and the handshake of QUIC.
//!
//! No certificate is checked unless `ca` says by whom: who is asked is settled by its address,
//! and nothing that is sent is a secret. Servers of one service mostly have one certificate, so
//! that one that has expired takes all of them out at once, and helps no client.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

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

use super::any_address;
use crate::config::Authorities;
use crate::health::ProbeOrder;

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
fn client(alpn: &str, authorities: &Authorities) -> Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match authorities.verifier() {
        Some(verifier) => verifier,
        None => Arc::new(AnyCertificate(Arc::clone(&provider))),
    };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// TLS on a connection, by the name of `host`, which may have a port.
pub(crate) async fn wrap(
    stream: TcpStream,
    host: &str,
    alpn: &str,
    authorities: &Authorities,
) -> Result<TlsStream<TcpStream>> {
    let connector = TlsConnector::from(Arc::new(client(alpn, authorities)?));
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
    ServerName::try_from(name.to_owned())
        .with_context(|| format!("`{name}` is not a valid name for TLS"))
}

/// Completes a handshake, and closes the connection.
pub(super) async fn quic(
    order: &ProbeOrder,
    host: Option<&str>,
    alpn: &str,
    authorities: &Authorities,
) -> Result<String> {
    let socket = std::net::UdpSocket::bind(any_address(order))?;
    socket.set_nonblocking(true)?;
    aim_at(&socket, order.real)?;
    let runtime = Arc::new(quinn::TokioRuntime);
    let endpoint = quinn::Endpoint::new(quinn::EndpointConfig::default(), None, socket, runtime)?;
    let mut transport = quinn::TransportConfig::default();
    // A probe of the path's MTU would be longer than the tunnel may take.
    transport.mtu_discovery_config(None);
    let tls = QuicClientConfig::try_from(client(alpn, authorities)?)?;
    let mut config = quinn::ClientConfig::new(Arc::new(tls));
    config.transport_config(Arc::new(transport));
    let address = order.target.ip().to_string();
    let name = server_name(host.unwrap_or(&address))?;
    let connecting = endpoint.connect_with(config, order.target, &name.to_str())?;
    // The server gets the close, too; tasks of the connection see to that, for three times the
    // path's timeout, which is not part of the outcome.
    connecting.await?.close(0_u32.into(), b"");
    Ok("handshake complete".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

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
