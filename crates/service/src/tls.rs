// SPDX-License-Identifier: Apache-2.0
//! TLS of the API: what its files make of a server, and of a client. It is rustls, as for
//! health probes and QUIC.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use hyper::header::HeaderValue;
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::read_secrets;

/// Where Debian keeps the certificates of the authorities that it trusts.
pub const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// What a server shows and asks for, from the texts of its files. The error is the faulty
/// file's, as a sentence without its name.
pub(crate) fn server(
    certificate: &str,
    key: &str,
    client_ca: Option<&str>,
) -> Result<ServerConfig, (Part, String)> {
    let chain = certificates(certificate).map_err(|error| (Part::Certificate, error))?;
    let key = private_key(key).map_err(|error| (Part::Key, error))?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| (Part::Certificate, error.to_string()))?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(text) => {
            let wrong = |error| (Part::ClientCa, error);
            let roots = Arc::new(authorities(text).map_err(wrong)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| wrong(error.to_string()))?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| {
        let other = "it is not the key of the certificate".to_owned();
        match error {
            rustls::Error::InconsistentKeys(_) => (Part::Key, other),
            error => (Part::Certificate, error.to_string()),
        }
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The file that is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Certificate,
    Key,
    ClientCa,
}

/// What a client trusts, and shows of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// Authorities in PEM; without, those of the system.
    pub ca: Option<PathBuf>,
    /// A certificate of its own and its key, for servers that ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// TLS on a connection to `host`, an address or a name.
pub async fn connect(
    stream: TcpStream,
    host: &str,
    files: &ClientFiles,
) -> anyhow::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned())
        .with_context(|| format!("`{host}` is not a valid name for TLS"))?;
    let config = Arc::new(client(files)?);
    let connected = TlsConnector::from(config).connect(name, stream).await;
    connected.map_err(|error| anyhow!("TLS with {host} failed: {error}"))
}

fn client(files: &ClientFiles) -> anyhow::Result<ClientConfig> {
    let of = |path: &Path| {
        let name = path.display().to_string();
        move |error: String| anyhow!("{name}: {error}")
    };
    let ca = files.ca.as_deref().unwrap_or(Path::new(SYSTEM_ROOTS));
    let text = std::fs::read_to_string(ca).map_err(|error| of(ca)(unreadable(&error)))?;
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(authorities(&text).map_err(of(ca))?);
    let mut config = match &files.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let text = std::fs::read_to_string(certificate);
            let text = text.map_err(|error| of(certificate)(unreadable(&error)))?;
            let chain = certificates(&text).map_err(of(certificate))?;
            let text = read_secrets(key).map_err(of(key))?;
            let secret = private_key(&text).map_err(of(key))?;
            builder
                .with_client_auth_cert(chain, secret)
                .map_err(|error| of(key)(error.to_string()))?
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // One request a connection: there is nothing to resume.
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn unreadable(error: &std::io::Error) -> String {
    format!("cannot be read: {error}")
}

fn certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let found = read.map_err(|error| format!("it is not a certificate in PEM: {error}"))?;
    match found.is_empty() {
        true => {
            Err("it holds no certificate; PEM begins with -----BEGIN CERTIFICATE-----".to_owned())
        }
        false => Ok(found),
    }
}

fn private_key(text: &str) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| {
        "it holds no private key without a passphrase; PEM begins with -----BEGIN PRIVATE KEY-----"
            .to_owned()
    })
}

/// The authorities in a text of PEM. The error is a sentence without the file.
pub fn authorities(text: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    // A bundle of the system may hold some that are not understood.
    match roots.add_parsable_certificates(certificates(text)?).0 {
        0 => Err("it holds no certificate of an authority".to_owned()),
        _ => Ok(roots),
    }
}

/// The token in a file, as it goes into the header `Authorization`.
pub fn bearer(file: &Path) -> anyhow::Result<HeaderValue> {
    let value = read_secrets(file).and_then(|text| {
        let value = HeaderValue::try_from(format!("Bearer {}", text.trim()));
        value.map_err(|_| "it holds no token, which is one line of ASCII".to_owned())
    });
    let mut value = value.map_err(|error| anyhow!("token file {}: {error}", file.display()))?;
    value.set_sensitive(true);
    Ok(value)
}
