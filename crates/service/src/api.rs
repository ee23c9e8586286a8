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

use crate::config::{
    ConfigErrors, Faults, Spanned, Text, absolute_path, read_secrets, socket_address, text,
};
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
    #[serde(skip)]
    excuses_files: bool,
}

impl RawApi {
    /// What is wrong with the files is no fault: a daemon that starts does without them.
    pub fn excuse_files(&mut self) {
        self.excuses_files = true;
    }
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

/// A file by its name and what it held; nothing, where it could not be read.
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
    /// `None`: something is wrong with certificate, key or authorities, and each connection is refused.
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) tokens: Arc<Tokens>,
}

/// The files' digests distinguish them.
impl PartialEq for Material {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Material {}

impl ApiConfig {
    /// With its files as they are now, and what is wrong with them; what cannot be used stays as
    /// it was.
    pub(crate) fn again(&self) -> (Self, Vec<String>) {
        let path = |file: &SecretFile| Some(file.path.clone());
        let client_ca = self.client_ca.as_ref();
        let paths = Paths {
            certificate: path(&self.certificate),
            key: path(&self.key),
            client_ca: client_ca.and_then(path),
            tokens: path(&self.tokens),
        };
        let files = Files::read(&paths);
        let mut again = self.clone();
        if let (Some(certificate), Some(key), Some(tls)) = (files.certificate, files.key, files.tls)
        {
            again.certificate = certificate;
            again.key = key;
            again.client_ca = files.client_ca;
            again.material.tls = Some(tls);
        }
        if let (Some(file), Some(listed)) = (files.tokens, files.listed) {
            again.tokens = file;
            again.material.tokens = listed;
        }
        let faults = files.faults.into_iter();
        let sentence = |(part, message)| {
            let path = paths.of(part).unwrap_or(Path::new(""));
            format!("file {}: {message}", path.display())
        };
        (again, faults.map(sentence).collect())
    }
}

/// The names of the files, as far as they are known.
struct Paths {
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
    tokens: Option<PathBuf>,
}

impl Paths {
    fn of(&self, part: Part) -> Option<&Path> {
        let path = match part {
            Part::Certificate => &self.certificate,
            Part::Key => &self.key,
            Part::ClientCa => &self.client_ca,
            Part::Tokens => &self.tokens,
        };
        path.as_deref()
    }
}

/// The files as they are, and what is wrong with them, without their names.
struct Files {
    certificate: Option<SecretFile>,
    key: Option<SecretFile>,
    client_ca: Option<SecretFile>,
    tokens: Option<SecretFile>,
    tls: Option<Arc<ServerConfig>>,
    listed: Option<Arc<Tokens>>,
    faults: Vec<(Part, String)>,
    /// What clients would not like about the certificate.
    doubt: Option<String>,
}

impl Files {
    fn read(paths: &Paths) -> Self {
        let mut faults = Vec::new();
        let mut held = |part, read: fn(&Path) -> Result<String, String>| {
            let path = paths.of(part)?;
            let text = read(path).map_err(|message| faults.push((part, message)));
            let text = text.ok();
            let digest = sha256(text.as_deref().unwrap_or_default().as_bytes());
            let path = path.to_owned();
            Some((SecretFile { path, digest }, text))
        };
        let (certificate, chain) = held(Part::Certificate, read_open).unzip();
        let (key, secret) = held(Part::Key, read_secrets).unzip();
        let (client_ca, authorities) = held(Part::ClientCa, read_open).unzip();
        let (tokens, list) = held(Part::Tokens, tokens::read).unzip();
        let lacks_authorities = faults.iter().any(|(part, _)| *part == Part::ClientCa);
        let (chain, authorities) = (chain.flatten(), authorities.flatten());
        let tls = match (&chain, secret.flatten()) {
            (Some(chain), Some(secret)) if !lacks_authorities => {
                let tls = tls::server(chain, &secret, authorities.as_deref());
                tls.map_err(|fault| faults.push(fault)).ok()
            }
            _ => None,
        };
        let listed = list.flatten().and_then(|list| {
            let listed = Tokens::parse(&list);
            let listed = listed.map_err(|message| faults.push((Part::Tokens, message)));
            listed.ok()
        });
        Self {
            certificate,
            key,
            client_ca,
            tokens,
            tls: tls.map(Arc::new),
            listed: listed.map(Arc::new),
            faults,
            doubt: chain.as_deref().and_then(tls::doubt),
        }
    }
}

fn read_open(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}"))
}

/// Reads the table and its files; what is wrong is reported at the key that names the file.
/// Where `http` listens, `listen` may not.
pub fn api(
    raw: Option<&RawApi>,
    http: Option<SocketAddr>,
    faults: &mut Faults<'_>,
) -> Option<ApiConfig> {
    let raw = raw?;
    let mut named = |value: Option<&Spanned<String>>, key: &str, why: &str| {
        if value.is_none() {
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
    let paths = Paths {
        certificate: text(raw.certificate.as_ref(), faults, absolute_path),
        key: text(raw.key.as_ref(), faults, absolute_path),
        client_ca: text(raw.client_ca.as_ref(), faults, absolute_path),
        tokens: text(raw.tokens.as_ref(), faults, absolute_path),
    };
    let files = Files::read(&paths);
    if !raw.excuses_files {
        for (part, message) in files.faults {
            let place = match part {
                Part::Certificate => raw.certificate.as_ref(),
                Part::Key => raw.key.as_ref(),
                Part::ClientCa => raw.client_ca.as_ref(),
                Part::Tokens => raw.tokens.as_ref(),
            };
            if let Some(place) = place {
                faults.at(place.span(), format!("file {}: {message}", place.as_ref()));
            }
        }
        if let (Some(doubt), Some(path)) = (files.doubt, &paths.certificate) {
            warn!("file {}: {doubt}", path.display());
        }
    }
    Some(ApiConfig {
        material: Material {
            tls: files.tls,
            tokens: files.listed.unwrap_or_default(),
        },
        listen: listen?,
        certificate: files.certificate?,
        key: files.key?,
        client_ca: files.client_ca,
        tokens: files.tokens?,
    })
}

/// What a daemon says that has started without some of the files.
pub fn no_api_files(errors: &ConfigErrors) -> String {
    format!(
        "other hosts are not served as [api] says until its files are in order and a reload finds them so\n{errors}"
    )
}

/// Whether the kernel opens but one of them: an address for all takes every other's port.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let takes_all = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() != 0 && one.port() == other.port() && (takes_all || one.ip() == other.ip())
}
