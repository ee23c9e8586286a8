// SPDX-License-Identifier: Apache-2.0
//! The file by which a server's agent gives its QUIC programs what to issue ids by, for each
//! service. The agent replaces it in one step; a program reads it again from time to time.
//!
//! ```json
//! {
//!   "version": 1,
//!   "services": [
//!     {
//!       "address": "192.0.2.1", "port": 443, "server_id": 300,
//!       "config": 0, "algorithm": "siphash", "server_id_length": 2, "nonce_length": 8,
//!       "key": "8f95f09245765f80256934e50c66207f"
//!     }
//!   ]
//! }
//! ```
//!
//! `algorithm` is `plain`, `siphash` or `aes`; a plain one has no `key`. Port 0 stands for all
//! ports of the address. Members that a program does not know are to be skipped.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

use crate::{Algorithm, CidConfig, CidKey, Issuer};

const VERSION: u32 = 1;

/// What a server issues the ids of its services by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CidFile {
    /// Each service at most once.
    pub services: Vec<CidService>,
}

/// What a server issues the ids of one service by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CidService {
    /// Where clients connect to: the VIP.
    pub address: IpAddr,
    /// 0: all ports of the address.
    pub port: u16,
    /// The server's id there.
    pub server_id: u32,
    /// The configuration.
    #[serde(flatten)]
    pub config: CidConfig,
}

/// Why a file says nothing.
#[derive(Debug, Error)]
pub enum CidFileError {
    /// The file cannot be read.
    #[error("{path}: {error}")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It is not of this form.
    #[error("{0} is not a file of connection ids: {1}")]
    Malformed(PathBuf, String),
    /// The service is not in it.
    #[error(
        "{path} has nothing for {service}; the agent writes it once the balancers have a quic_cid for that VIP and this server is one of its reals"
    )]
    NoService {
        /// Which file.
        path: PathBuf,
        /// Which service.
        service: SocketAddr,
    },
}

#[derive(Serialize, Deserialize)]
struct FileText {
    version: u32,
    services: Vec<CidService>,
}

/// A configuration as texts have it.
#[derive(Serialize, Deserialize)]
struct ConfigText {
    config: u8,
    algorithm: AlgorithmText,
    server_id_length: u8,
    nonce_length: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AlgorithmText {
    Plain,
    Siphash,
    Aes,
}

impl CidFile {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or is not one of these.
    pub fn load(path: &Path) -> Result<Self, CidFileError> {
        let text = fs::read_to_string(path).map_err(|error| CidFileError::Unreadable {
            path: path.to_owned(),
            error,
        })?;
        Self::of_text(&text).map_err(|why| CidFileError::Malformed(path.to_owned(), why))
    }

    fn of_text(text: &str) -> Result<Self, String> {
        let file: FileText = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if file.version != VERSION {
            let version = file.version;
            return Err(format!("it has version {version}, this reads {VERSION}"));
        }
        Ok(Self {
            services: file.services,
        })
    }

    /// The text of the file. It holds keys.
    pub fn to_text(&self) -> String {
        let file = FileText {
            version: VERSION,
            services: self.services.clone(),
        };
        let text = serde_json::to_string_pretty(&file);
        text.unwrap_or_else(|error| unreachable!("it is numbers and texts: {error}")) + "\n"
    }

    /// What ids of a service are issued by: that of its address and port, else of its address.
    pub fn service(&self, service: SocketAddr) -> Option<&CidService> {
        let of_port = |port| {
            let mut own = self.services.iter();
            own.find(|own| own.address == service.ip() && own.port == port)
        };
        of_port(service.port()).or_else(|| of_port(0))
    }
}

impl CidService {
    /// Issues its ids.
    ///
    /// # Errors
    /// When the server's id does not fit into the configuration's.
    pub fn issuer(&self) -> Result<Issuer, crate::EncodeError> {
        Issuer::new(&self.config, self.server_id)
    }
}

/// Follows what a file says of one service.
///
/// ```no_run
/// use std::path::Path;
/// use causeway_quic_lb::file::CidWatch;
///
/// let path = Path::new("/run/causeway/quic-ids.json");
/// let mut watch = CidWatch::new(path, "192.0.2.1:443".parse()?);
/// let mut issuer = watch.poll()?.ok_or("nothing to issue by")?;
/// // Each second from then on; with quinn, `generator.rotate(next)`:
/// if let Some(next) = watch.poll()? {
///     issuer = next;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CidWatch {
    path: PathBuf,
    service: SocketAddr,
    last: Option<CidService>,
}

impl CidWatch {
    /// Nothing is read yet.
    pub fn new(path: &Path, service: SocketAddr) -> Self {
        Self {
            path: path.to_owned(),
            service,
            last: None,
        }
    }

    /// Reads the file. What to issue by from now on; `None`: the same as before.
    ///
    /// # Errors
    /// When the file cannot be read, or has nothing for the service: go on as before.
    pub fn poll(&mut self) -> Result<Option<Issuer>, CidFileError> {
        let file = CidFile::load(&self.path)?;
        let own = file.service(self.service).copied();
        let own = own.ok_or_else(|| CidFileError::NoService {
            path: self.path.clone(),
            service: self.service,
        })?;
        if self.last == Some(own) {
            return Ok(None);
        }
        let malformed = |error: crate::EncodeError| {
            CidFileError::Malformed(self.path.clone(), error.to_string())
        };
        let issuer = own.issuer().map_err(malformed)?;
        self.last = Some(own);
        Ok(Some(issuer))
    }
}

impl Serialize for CidConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ConfigText::from(*self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for CidConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = ConfigText::deserialize(deserializer)?;
        Self::try_from(text).map_err(de::Error::custom)
    }
}

impl From<CidConfig> for ConfigText {
    fn from(config: CidConfig) -> Self {
        let (algorithm, key) = match config.algorithm() {
            Algorithm::Plain => (AlgorithmText::Plain, None),
            Algorithm::SipHash(key) => (AlgorithmText::Siphash, Some(key)),
            Algorithm::Aes128(key) => (AlgorithmText::Aes, Some(key)),
        };
        let hex = |key: CidKey| format!("{:032x}", u128::from_be_bytes(key.octets()));
        Self {
            config: config.number(),
            algorithm,
            server_id_length: config.server_id_len,
            nonce_length: config.nonce_len,
            key: key.map(hex),
        }
    }
}

impl TryFrom<ConfigText> for CidConfig {
    type Error = String;

    fn try_from(text: ConfigText) -> Result<Self, String> {
        let key = || -> Result<CidKey, String> {
            let key = text.key.as_deref().unwrap_or_default();
            key.parse().map_err(|error| format!("{error}"))
        };
        let algorithm = match text.algorithm {
            AlgorithmText::Plain => Algorithm::Plain,
            AlgorithmText::Siphash => Algorithm::SipHash(key()?),
            AlgorithmText::Aes => Algorithm::Aes128(key()?),
        };
        let (server_id, nonce) = (text.server_id_length, text.nonce_length);
        let config = Self::new(text.config, server_id, nonce, algorithm);
        config.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(port: u16, number: u8, algorithm: Algorithm) -> CidService {
        CidService {
            address: IpAddr::from([192, 0, 2, 1]),
            port,
            server_id: 300,
            config: CidConfig::new(number, 2, 8, algorithm).expect("valid"),
        }
    }

    fn key(byte: u8) -> CidKey {
        CidKey::new([byte; 16])
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let file = CidFile {
            services: vec![
                service(443, 0, Algorithm::SipHash(key(1))),
                service(0, 6, Algorithm::Plain),
                service(8443, 3, Algorithm::Aes128(key(2))),
            ],
        };
        let text = file.to_text();
        assert_eq!(CidFile::of_text(&text).as_ref(), Ok(&file));
        let more = text.replacen("\"port\"", "\"more\": [], \"port\"", 1);
        assert_eq!(CidFile::of_text(&more).as_ref(), Ok(&file));
        let of = |port| file.service(([192, 0, 2, 1], port).into());
        assert_eq!(of(443), file.services.first());
        assert_eq!(of(444), file.services.get(1));
        assert_eq!(file.service(([192, 0, 2, 2], 443).into()), None);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said() {
        let file = CidFile {
            services: vec![service(443, 0, Algorithm::SipHash(key(1)))],
        };
        for (from, to, expected) in [
            ("\"version\": 1", "\"version\": 2", "it has version 2"),
            ("siphash", "rot13", "unknown variant `rot13`"),
            ("\"key\": \"01", "\"key\": \"1", "32 hexadecimal digits"),
            ("_length\": 8", "_length\": 3", "at least four octets"),
            ("\"config\": 0", "\"config\": 7", "numbered from 0 to 6"),
        ] {
            let text = file.to_text();
            assert!(text.contains(from), "{text}");
            let error = CidFile::of_text(&text.replace(from, to)).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_watch_says_what_is_new() {
        let name = format!("causeway-cid-watch-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let at: SocketAddr = ([192, 0, 2, 1], 443).into();
        let mut watch = CidWatch::new(&path, at);
        assert!(matches!(watch.poll(), Err(CidFileError::Unreadable { .. })));
        let write = |services| fs::write(&path, CidFile { services }.to_text()).expect("written");
        write(vec![service(443, 0, Algorithm::SipHash(key(1)))]);
        let first = watch.poll().expect("read").expect("new");
        assert_eq!(first.config().number(), 0);
        assert!(watch.poll().expect("read").is_none());
        write(vec![service(443, 1, Algorithm::SipHash(key(2)))]);
        let next = watch.poll().expect("read").expect("new");
        assert_eq!(next.config().number(), 1);
        write(Vec::new());
        let error = watch.poll().expect_err("nothing").to_string();
        assert!(error.contains("nothing for 192.0.2.1:443"), "{error}");
        fs::remove_file(&path).expect("removed");
    }
}
