// SPDX-License-Identifier: Apache-2.0
//! One certificate for all QUIC servers of a lab, and clients that trust it alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The name in the certificate.
pub const SERVER_NAME: &str = "lab.causeway";
/// HTTP/3's protocol word.
const ALPN: &[u8] = b"h3";

/// Where certificate and key lie.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Certificate, PEM.
    pub certificate: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
}

/// The lab's certificate, made by the first call. It lies in the sandbox's scratch
/// space and goes with it.
pub fn identity() -> Result<&'static Identity> {
    static IDENTITY: OnceLock<Result<Identity, String>> = OnceLock::new();
    let made = IDENTITY.get_or_init(|| make().map_err(|e| format!("{e:#}")));
    made.as_ref().map_err(|e| anyhow::anyhow!("{e}"))
}

fn make() -> Result<Identity> {
    let made = rcgen::generate_simple_self_signed([SERVER_NAME.to_owned()])
        .context("cannot make a certificate")?;
    let directory = tempfile::Builder::new().prefix("quic-").tempdir()?.keep();
    let identity = Identity {
        certificate: directory.join("cert.pem"),
        key: directory.join("key.pem"),
    };
    fs::write(&identity.certificate, made.cert.pem())?;
    fs::write(&identity.key, made.signing_key.serialize_pem())?;
    Ok(identity)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// TLS of a server, with early data.
pub fn server(certificate: &Path, key: &Path) -> Result<QuicServerConfig> {
    let chain = vec![CertificateDer::from_pem_file(certificate).context("certificate")?];
    let key = PrivateKeyDer::from_pem_file(key).context("private key")?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.max_early_data_size = u32::MAX;
    Ok(QuicServerConfig::try_from(config)?)
}

/// TLS of a client that trusts the lab's certificate.
pub fn client(certificate: &Path) -> Result<QuicClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate).context("certificate")?)?;
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.enable_early_data = true;
    Ok(QuicClientConfig::try_from(config)?)
}
