// SPDX-License-Identifier: Apache-2.0
//! TLS of the API: what its files make of a server, and of a client. It is rustls, as for
//! health probes and QUIC.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use hyper::header::HeaderValue;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::{plural, read_secrets};

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

/// The file of `[api]` that is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Certificate,
    Key,
    ClientCa,
    Tokens,
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
    connected.map_err(|error| {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        let why = inner.and_then(|inner| refused(inner, host, files.ca.as_deref()));
        anyhow!(
            "TLS with {host} failed: {}",
            why.unwrap_or_else(|| error.to_string())
        )
    })
}

/// Why the server's certificate does not do, and what does; `None`: it is something else.
fn refused(error: &rustls::Error, host: &str, ca: Option<&Path>) -> Option<String> {
    let rustls::Error::InvalidCertificate(fault) = error else {
        return None;
    };
    match fault {
        // An authority that was made anew has its old name and another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => Some(match ca {
            Some(ca) => format!(
                "its certificate is signed by none of the authorities in {}",
                ca.display()
            ),
            None => "its certificate is signed by none of the system's authorities; name its own with --ca FILE".to_owned(),
        }),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            Some(format!(
                "its certificate is for other names and addresses; connect to one of these, or make one with subjectAltName for {host}"
            ))
        }
        fault if is_of_authority(fault) => Some(format!("it {OF_AUTHORITY}")),
        _ => None,
    }
}

/// What is wrong with a server that has an authority's certificate.
const OF_AUTHORITY: &str = "has an authority's certificate as its own, which clients refuse; make one with basicConstraints=CA:FALSE (docs/how-to/serve-other-hosts.md)";

/// rustls has no variant for it.
fn is_of_authority(fault: &CertificateError) -> bool {
    format!("{fault:?}").contains("CaUsedAsEndEntity")
}

/// What clients would not like about the certificate of a server, without its name.
pub(crate) fn doubt(certificate: &str) -> Option<String> {
    let chain = certificates(certificate).ok()?;
    let leaf = chain.first()?;
    let mut roots = RootCertStore::empty();
    roots.add(leaf.clone()).ok()?;
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
    // Which name it is for is the clients' to say.
    let name = ServerName::from(std::net::IpAddr::from([127, 0, 0, 1]));
    let verified =
        verifier
            .build()
            .ok()?
            .verify_server_cert(leaf, &chain[1..], &name, &[], UnixTime::now());
    match verified {
        Err(rustls::Error::InvalidCertificate(fault)) if is_of_authority(&fault) => {
            Some(format!("the server {OF_AUTHORITY}"))
        }
        Err(rustls::Error::InvalidCertificate(fault)) => out_of_time(&fault),
        _ => None,
    }
}

/// Of a certificate that holds no more, or not yet by this machine's clock.
fn out_of_time(fault: &CertificateError) -> Option<String> {
    let hours = |from: &UnixTime, to: &UnixTime| {
        let passed_s = to.as_secs().saturating_sub(from.as_secs());
        plural((passed_s / 3600) as usize, "hour")
    };
    match fault {
        CertificateError::ExpiredContext { time, not_after } => Some(format!(
            "the certificate expired {} ago, and clients refuse it; replace it and its key, and reload",
            hours(not_after, time)
        )),
        CertificateError::NotValidYetContext { time, not_before } => Some(format!(
            "the certificate holds in {} only, and clients refuse it until then; look at this machine's clock",
            hours(time, not_before)
        )),
        _ => None,
    }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rcgen::{BasicConstraints, CertificateParams, CertifiedKey, IsCa, Issuer, KeyPair};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    fn made(is_ca: bool, name: &str) -> CertifiedKey<KeyPair> {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        if is_ca {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        let signing_key = KeyPair::generate().expect("a key");
        let cert = params.self_signed(&signing_key).expect("a certificate");
        CertifiedKey { cert, signing_key }
    }

    #[test]
    fn an_authoritys_certificate_is_doubted() {
        assert_eq!(doubt(&made(false, "a").cert.pem()), None);
        let doubt = doubt(&made(true, "a").cert.pem()).expect("a sentence");
        assert!(doubt.contains("make one with basicConstraints=CA:FALSE"));
    }

    #[test]
    fn a_certificate_out_of_its_time_is_doubted() {
        for (from, to, expected) in [
            (2020, 2021, "the certificate expired "),
            (2999, 3000, "the certificate holds in "),
        ] {
            let mut params = CertificateParams::new(["a".to_owned()]).expect("a name");
            params.not_before = rcgen::date_time_ymd(from, 1, 1);
            params.not_after = rcgen::date_time_ymd(to, 1, 1);
            let key = KeyPair::generate().expect("a key");
            let own = params.self_signed(&key).expect("a certificate");
            let authority = KeyPair::generate().expect("a key");
            let issuer = Issuer::new(CertificateParams::default(), authority);
            let of_authority = params.signed_by(&key, &issuer).expect("a certificate");
            for certificate in [own, of_authority] {
                let doubt = doubt(&certificate.pem()).expect("a sentence");
                assert!(doubt.starts_with(expected), "{doubt}");
            }
        }
    }

    #[tokio::test]
    async fn a_client_says_why_it_refuses_a_certificate() {
        let dir = tempfile::tempdir().expect("a directory");
        let ca = dir.path().join("ca.pem");
        for (of, known, expected) in [
            (
                made(true, "127.0.0.1"),
                None,
                "it has an authority's certificate as its own, which clients refuse; make one with basicConstraints=CA:FALSE (docs/how-to/serve-other-hosts.md)".to_owned(),
            ),
            (
                made(false, "127.0.0.1"),
                Some(made(false, "b")),
                format!(
                    "its certificate is signed by none of the authorities in {}",
                    ca.display()
                ),
            ),
            (
                made(false, "127.0.0.2"),
                None,
                "its certificate is for other names and addresses; connect to one of these, or make one with subjectAltName for 127.0.0.1".to_owned(),
            ),
        ] {
            let known = known.as_ref().unwrap_or(&of);
            std::fs::write(&ca, known.cert.pem()).expect("write");
            let key = of.signing_key.serialize_pem();
            let server = server(&of.cert.pem(), &key, None).expect("a server");
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("an address");
            let served = tokio::spawn(async move {
                let (stream, _) = listener.accept().await.expect("a client");
                TlsAcceptor::from(Arc::new(server)).accept(stream).await.is_ok()
            });
            let files = ClientFiles {
                ca: Some(ca.clone()),
                identity: None,
            };
            let stream = TcpStream::connect(address).await.expect("a connection");
            let error = connect(stream, "127.0.0.1", &files).await.expect_err("refused");
            assert_eq!(
                error.to_string(),
                format!("TLS with 127.0.0.1 failed: {expected}")
            );
            assert!(!served.await.expect("the server"));
        }
    }
}
