// SPDX-License-Identifier: Apache-2.0
//! `[api]`: the API for other hosts, with TLS and tokens.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use schemars::JsonSchema;
use serde::Deserialize;
use tracing::warn;

use super::error::Faults;
use super::spanned::Spanned;
use super::values::{Text, text};
use super::{read_secrets, socket_address};
use crate::tls::{self, Part};
use crate::tokens::{self, Digest, Tokens, sha256};

/// The table as it is written.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawApi {
    pub listen: Text,
    pub certificate: Text,
    pub key: Text,
    pub client_ca: Text,
    pub tokens: Text,
}

/// Where and how other hosts are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiConfig {
    /// Address of the listener.
    pub listen: SocketAddr,
    /// Chain of the server, in PEM.
    pub certificate: SecretFile,
    /// Its private key.
    pub key: SecretFile,
    /// Authorities of clients' certificates; without, clients need none.
    pub client_ca: Option<SecretFile>,
    /// Tokens, with the role of each.
    pub tokens: SecretFile,
    pub(crate) material: Material,
}

/// A file by its name and what it held.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretFile {
    path: PathBuf,
    digest: Digest,
}

impl fmt::Debug for SecretFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

/// What the files hold.
#[derive(Debug, Clone)]
pub(crate) struct Material {
    pub(crate) tls: Arc<ServerConfig>,
    pub(crate) tokens: Arc<Tokens>,
}

/// The files' digests distinguish them.
impl PartialEq for Material {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Material {}

type Place<'a> = Option<&'a Spanned<String>>;

/// Reads the table and its files; what is wrong is reported at the key that names the file.
/// Where `http` listens, `listen` may not.
pub fn api(
    raw: Option<&RawApi>,
    http: Option<SocketAddr>,
    faults: &mut Faults<'_>,
) -> Option<ApiConfig> {
    let raw = raw?;
    let mut named = |place: Place<'_>, key: &str, why: &str| {
        if place.is_none() {
            faults.file(format!("`api.{key}` is missing; {why}"));
        }
    };
    named(
        raw.listen.as_ref(),
        "listen",
        "name the address to serve other hosts on, for example listen = \"192.0.2.5:9470\"; on the machine itself the Unix socket and `http` serve without [api]",
    );
    named(
        raw.certificate.as_ref(),
        "certificate",
        "other hosts are served by TLS alone: name the file of the server's certificate, in PEM",
    );
    named(
        raw.key.as_ref(),
        "key",
        "name the file of the certificate's private key, in PEM",
    );
    named(
        raw.tokens.as_ref(),
        "tokens",
        "who may do what stands in a file; `causeway token NAME --role viewer --add FILE` makes one",
    );
    let listen = text(raw.listen.as_ref(), faults, |word| {
        let listen = socket_address(word)?;
        match http.filter(|http| overlap(listen, *http)) {
            None => Ok(listen),
            Some(http) => Err(format!(
                "{listen} takes the port of `http`, {http}, and one of them could not be opened; give it another port, or write http = false"
            )),
        }
    });
    let certificate = file(raw.certificate.as_ref(), faults, |path| {
        std::fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}"))
    });
    let key = file(raw.key.as_ref(), faults, read_secrets);
    let client_ca = file(raw.client_ca.as_ref(), faults, |path| {
        std::fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}"))
    });
    let tokens = file(raw.tokens.as_ref(), faults, tokens::read);
    let parsed = tokens.as_ref().map(|(_, text)| Tokens::parse(text));
    let parsed = parsed.and_then(|parsed| {
        parsed
            .map_err(|message| fault(raw.tokens.as_ref(), &message, faults))
            .ok()
    });
    if raw.client_ca.is_some() && client_ca.is_none() {
        return None;
    }
    let ((certificate, chain), (key, secret)) = (certificate?, key?);
    let authorities = client_ca.as_ref().map(|(_, text)| text.as_str());
    let tls = tls::server(&chain, &secret, authorities);
    let tls = tls.map_err(|(part, message)| {
        let place = match part {
            Part::Certificate => raw.certificate.as_ref(),
            Part::Key => raw.key.as_ref(),
            Part::ClientCa => raw.client_ca.as_ref(),
        };
        fault(place, &message, faults);
    });
    if let Some(doubt) = tls::doubt(&chain) {
        warn!("file {}: {doubt}", certificate.path.display());
    }
    Some(ApiConfig {
        material: Material {
            tls: Arc::new(tls.ok()?),
            tokens: Arc::new(parsed?),
        },
        listen: listen?,
        certificate,
        key,
        client_ca: client_ca.map(|(file, _)| file),
        tokens: tokens?.0,
    })
}

/// Whether the kernel opens but one of them: an address for all takes every other's port.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let takes_all = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() != 0 && one.port() == other.port() && (takes_all || one.ip() == other.ip())
}

/// Reads a file of the table.
fn file(
    place: Place<'_>,
    faults: &mut Faults<'_>,
    read: impl FnOnce(&Path) -> Result<String, String>,
) -> Option<(SecretFile, String)> {
    text(place, faults, |name| {
        let path = PathBuf::from(name);
        if !path.is_absolute() {
            return Err(format!(
                "`{name}` is not an absolute path; begin it with `/`"
            ));
        }
        let text = read(&path).map_err(|message| format!("file {name}: {message}"))?;
        let digest = sha256(text.as_bytes());
        Ok((SecretFile { path, digest }, text))
    })
}

/// A fault of what a named file holds.
fn fault(place: Place<'_>, message: &str, faults: &mut Faults<'_>) {
    if let Some(place) = place {
        faults.at(place.span(), format!("file {}: {message}", place.as_ref()));
    }
}
