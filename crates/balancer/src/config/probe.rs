// SPDX-License-Identifier: Apache-2.0
//! What a health probe does, and what it takes for an answer: the keys of `health` that belong
//! to one kind of probe.

use std::fmt;
use std::fs;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use causeway_service::config::{Faults, Spanned, Words as _, one_of, text};
use causeway_service::tls::{SYSTEM_ROOTS, authorities};
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::ring;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::cookie::Beside;
use super::raw::RawHealth;
use super::words::{HealthProbe, RCODES, RecordType};

const STATUS: RangeInclusive<u16> = 100..=599;
/// Longest name in the DNS (RFC 1035, section 2.3.4), and longest label.
const NAME_MAX: usize = 253;
const LABEL_MAX: usize = 63;
/// What a probe looks for, or gives for a name: more would be no word any more.
const WORD_MAX: usize = 120;
/// A bundle of all authorities has 220 KB.
const CA_MAX: u64 = 4 << 20;

/// What a probe does, and what it takes for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeConfig {
    /// Opens a connection.
    Tcp,
    /// Asks for a page.
    Http {
        /// Within TLS.
        tls: Option<Authorities>,
        /// Path of the request.
        path: String,
        /// `Host` of the request; the VIP's address if not given.
        host: Option<String>,
        /// Those that are right.
        status: StatusRanges,
        /// What the page has to contain, within its first 64 KiB.
        body: Option<String>,
    },
    /// Asks the health service of gRPC.
    Grpc {
        /// Within TLS.
        tls: Option<Authorities>,
        /// `:authority` of the request; the VIP's address if not given.
        host: Option<String>,
        /// Whose state; empty: the server's own.
        service: String,
    },
    /// Sends `PING`.
    Redis,
    /// Asks to come in, and leaves when a password is asked for.
    Postgres {
        /// As whom.
        user: String,
    },
    /// Asks for a name's record.
    Dns {
        /// The name.
        name: String,
        /// What of it.
        record: RecordType,
        /// Response codes that are right.
        rcodes: Vec<u8>,
    },
    /// Completes a QUIC handshake.
    Quic {
        /// Name of the server; the VIP's address if not given.
        host: Option<String>,
        /// The application's protocol.
        alpn: String,
        /// The authorities for the certificate.
        tls: Authorities,
    },
    /// Sends an echo request.
    Icmp,
    /// Runs a program, which says by its exit status.
    Script {
        /// Its file and its arguments.
        command: Vec<String>,
    },
}

/// The authorities that may sign a server's certificate.
#[derive(Clone, Default)]
pub struct Authorities {
    /// The file as it was named, what it held, and what checks by that; without it certificates are not checked.
    of: Option<(PathBuf, Arc<str>, Arc<WebPkiServerVerifier>)>,
}

impl Authorities {
    /// What checks certificates, if they are checked.
    pub fn verifier(&self) -> Option<Arc<WebPkiServerVerifier>> {
        self.of
            .as_ref()
            .map(|(_, _, verifier)| Arc::clone(verifier))
    }

    /// The file.
    pub(super) fn path(&self) -> Option<&Path> {
        self.of.as_ref().map(|(path, ..)| path.as_path())
    }

    /// Reads a file: it may be anything that root can open.
    pub(super) fn read(name: &str) -> Result<Self, String> {
        let path = match name {
            "system" => Path::new(SYSTEM_ROOTS),
            name => Path::new(name),
        };
        if !path.is_absolute() {
            return Err(format!(
                "`{name}` is not an absolute path; write for example \"{SYSTEM_ROOTS}\", or \"system\" for that"
            ));
        }
        let of_file = |error: String| format!("file {}: {error}", path.display());
        let about =
            fs::metadata(path).map_err(|error| of_file(format!("cannot be read: {error}")))?;
        if !about.is_file() || about.len() > CA_MAX {
            return Err(of_file("it is not a file of certificates".to_owned()));
        }
        let text = fs::read_to_string(path)
            .map_err(|error| of_file(format!("cannot be read: {error}")))?;
        let roots = Arc::new(authorities(&text).map_err(of_file)?);
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
        let verifier = verifier.map_err(|error| of_file(error.to_string()))?;
        Ok(Self {
            of: Some((path.to_owned(), text.into(), verifier)),
        })
    }
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.of.as_ref().map(|(path, ..)| path).fmt(f)
    }
}

impl PartialEq for Authorities {
    fn eq(&self, other: &Self) -> bool {
        let held = |of: &Self| {
            of.of
                .as_ref()
                .map(|(path, text, _)| (path.clone(), Arc::clone(text)))
        };
        held(self) == held(other)
    }
}

impl Eq for Authorities {}

/// Statuses of HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusRanges(Vec<RangeInclusive<u16>>);

impl StatusRanges {
    /// Whether a status is one of them.
    pub fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|range| range.contains(&status))
    }
}

impl FromStr for StatusRanges {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is not a valid status; use 100 to 599, as in 200, \"200-299\" or \"200 204 301-308\""
            )
        };
        let status = |word: &str| {
            let status = word.parse().ok().filter(|status| STATUS.contains(status));
            status.ok_or_else(wrong)
        };
        let range = |word: &str| {
            let (low, high) = word.split_once('-').unwrap_or((word, word));
            let range = status(low)?..=status(high)?;
            if range.is_empty() {
                Err(wrong())
            } else {
                Ok(range)
            }
        };
        let ranges: Vec<_> = words(text).map(range).collect::<Result<_, _>>()?;
        if ranges.is_empty() {
            Err(wrong())
        } else {
            Ok(Self(ranges))
        }
    }
}

impl fmt::Display for StatusRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, range) in self.0.iter().enumerate() {
            let blank = if at == 0 { "" } else { " " };
            match range.start() == range.end() {
                true => write!(f, "{blank}{}", range.start())?,
                false => write!(f, "{blank}{}-{}", range.start(), range.end())?,
            }
        }
        Ok(())
    }
}

/// A status, or text with several.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "not a status; write for example 200, or \"200-299\""
)]
pub(super) enum StatusValue {
    One(i64),
    Several(String),
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split([' ', ',']).filter(|word| !word.is_empty())
}

/// The keys of `kind`.
pub(super) fn probe(
    raw: &RawHealth,
    kind: HealthProbe,
    place: std::ops::Range<usize>,
    beside: Beside,
    faults: &mut Faults<'_>,
) -> Option<ProbeConfig> {
    others_unused(raw, kind, faults);
    let ca = text(raw.ca.as_ref(), faults, Authorities::read).unwrap_or_default();
    let tls = |within: HealthProbe| (kind == within).then(|| ca.clone());
    Some(match kind {
        HealthProbe::Tcp => ProbeConfig::Tcp,
        HealthProbe::Http | HealthProbe::Https => ProbeConfig::Http {
            tls: tls(HealthProbe::Https),
            path: text(raw.path.as_ref(), faults, path).unwrap_or_else(|| "/".to_owned()),
            host: text(raw.host.as_ref(), faults, host),
            status: status(raw.status.as_ref(), faults),
            body: text(raw.body.as_ref(), faults, |word| short(word, "body")),
        },
        HealthProbe::Grpc | HealthProbe::Grpcs => ProbeConfig::Grpc {
            tls: tls(HealthProbe::Grpcs),
            host: text(raw.host.as_ref(), faults, host),
            service: text(raw.service.as_ref(), faults, |word| short(word, "service"))
                .unwrap_or_default(),
        },
        HealthProbe::Redis => ProbeConfig::Redis,
        HealthProbe::Postgres => ProbeConfig::Postgres {
            user: text(raw.user.as_ref(), faults, |word| short(word, "user"))
                .unwrap_or_else(|| "causeway".to_owned()),
        },
        HealthProbe::Dns => ProbeConfig::Dns {
            name: text(raw.name.as_ref(), faults, name).unwrap_or_else(|| ".".to_owned()),
            record: text(raw.record.as_ref(), faults, RecordType::from_word)
                .unwrap_or(RecordType::A),
            rcodes: text(raw.rcode.as_ref(), faults, rcodes).unwrap_or_else(|| vec![0, 3]),
        },
        HealthProbe::Quic => ProbeConfig::Quic {
            host: text(raw.host.as_ref(), faults, host),
            alpn: text(raw.alpn.as_ref(), faults, alpn).unwrap_or_else(|| "h3".to_owned()),
            tls: ca,
        },
        HealthProbe::Icmp => ProbeConfig::Icmp,
        HealthProbe::Script => ProbeConfig::Script {
            command: command(raw, place, beside, faults)?,
        },
    })
}

/// Keys that belong to another kind of probe would have no effect.
fn others_unused(raw: &RawHealth, kind: HealthProbe, faults: &mut Faults<'_>) {
    use HealthProbe::{Dns, Grpc, Grpcs, Http, Https, Icmp, Postgres, Quic, Redis, Script, Tcp};
    let of = |key: &Option<Spanned<String>>| key.as_ref().map(Spanned::span);
    let keys: [(&str, Option<_>, &[HealthProbe]); 12] = [
        ("path", of(&raw.path), &[Http, Https]),
        ("host", of(&raw.host), &[Http, Https, Grpc, Grpcs, Quic]),
        (
            "status",
            raw.status.as_ref().map(Spanned::span),
            &[Http, Https],
        ),
        ("body", of(&raw.body), &[Http, Https]),
        ("ca", of(&raw.ca), &[Https, Grpcs, Quic]),
        ("service", of(&raw.service), &[Grpc, Grpcs]),
        ("user", of(&raw.user), &[Postgres]),
        ("name", of(&raw.name), &[Dns]),
        ("record", of(&raw.record), &[Dns]),
        ("rcode", of(&raw.rcode), &[Dns]),
        ("alpn", of(&raw.alpn), &[Quic]),
        (
            "to",
            of(&raw.to),
            &[Tcp, Http, Https, Grpc, Grpcs, Redis, Postgres],
        ),
    ];
    let take_weight = raw.take_weight.as_ref().map(Spanned::span);
    let command = raw.command.as_ref().map(Spanned::span);
    let port = raw
        .port
        .as_ref()
        .map(Spanned::span)
        .filter(|_| kind == Icmp);
    let more: [(&str, Option<_>, &[HealthProbe]); 3] = [
        ("command", command, &[Script]),
        ("port", port, &[]),
        ("take_weight", take_weight, &[Http, Https]),
    ];
    for (key, place, kinds) in keys.into_iter().chain(more) {
        if let Some(place) = place.filter(|_| !kinds.contains(&kind)) {
            faults.at(
                place,
                format!("`{key}` has no meaning with probe = \"{kind}\"; remove it"),
            );
        }
    }
}

fn status(raw: Option<&Spanned<StatusValue>>, faults: &mut Faults<'_>) -> StatusRanges {
    let default = StatusRanges(vec![200..=200]);
    let Some(raw) = raw else { return default };
    let parsed = match raw.as_ref() {
        StatusValue::One(status) => status.to_string().parse(),
        StatusValue::Several(text) => text.parse(),
    };
    parsed.unwrap_or_else(|message| {
        faults.at(raw.span(), message);
        default
    })
}

fn rcodes(text: &str) -> Result<Vec<u8>, String> {
    let codes: Vec<u8> = words(text)
        .map(|word| one_of("rcode", &RCODES, &word.to_ascii_lowercase()))
        .collect::<Result<_, _>>()?;
    match codes.is_empty() {
        false => Ok(codes),
        true => Err("no rcode is right; write for example \"noerror nxdomain\"".to_owned()),
    }
}

/// Root runs it: so no other user may be able to change it.
fn command(
    raw: &RawHealth,
    place: std::ops::Range<usize>,
    beside: Beside,
    faults: &mut Faults<'_>,
) -> Option<Vec<String>> {
    let Some(command) = raw
        .command
        .as_ref()
        .filter(|words| !words.as_ref().is_empty())
    else {
        faults.at(
            place,
            "probe = \"script\" has no `command`; add for example command = [\"/usr/local/lib/check\", \"--fast\"]",
        );
        return None;
    };
    if beside.may_be_empty {
        faults.at(
            command.span(),
            "a script stands in the file alone: who may change VIPs may not run programs; add the VIP there",
        );
        return None;
    }
    let words = command.as_ref();
    let file = &words[0];
    let fault = match fs::metadata(file) {
        _ if !file.starts_with('/') => "is not an absolute path".to_owned(),
        Err(error) => format!("cannot be run: {error}"),
        Ok(about) if !about.is_file() || about.mode() & 0o111 == 0 => {
            "is not an executable file; make it executable".to_owned()
        }
        Ok(about) if about.uid() != 0 || about.mode() & 0o022 != 0 => {
            "must be owned by root, which runs it, and writable by no one else".to_owned()
        }
        Ok(_) => return Some(words.clone()),
    };
    faults.at(command.span(), format!("`{file}` {fault}"));
    None
}

fn short(text: &str, key: &str) -> Result<String, String> {
    match (1..=WORD_MAX).contains(&text.len()) && !text.contains('\0') {
        true => Ok(text.to_owned()),
        false => Err(format!("`{key}` has 1 to {WORD_MAX} octets")),
    }
}

/// Identifications of protocols have 1 to 255 bytes (RFC 7301, section 3.1).
fn alpn(text: &str) -> Result<String, String> {
    match (1..=255).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_graphic()) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "`{text}` is not a valid ALPN protocol; write for example \"h3\""
        )),
    }
}

fn path(text: &str) -> Result<String, String> {
    let is_path = text.starts_with('/') && text.parse::<axum::http::Uri>().is_ok();
    match is_path {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "`{text}` is not a valid path; write for example \"/health\""
        )),
    }
}

fn host(text: &str) -> Result<String, String> {
    match !text.is_empty() && text.parse::<axum::http::uri::Authority>().is_ok() {
        true => Ok(text.to_owned()),
        false => Err(format!("`{text}` is not a valid host name")),
    }
}

pub(super) fn name(text: &str) -> Result<String, String> {
    let bare = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        (1..=LABEL_MAX).contains(&label.len()) && label.bytes().all(|c| c.is_ascii_graphic())
    };
    match bare.is_empty() || bare.len() <= NAME_MAX && bare.split('.').all(is_label) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "`{text}` is not a valid DNS name; write for example \"example.org\""
        )),
    }
}

impl ProbeConfig {
    /// Its keys as the file would have them.
    pub(super) fn to_json(&self) -> Value {
        let within = |tls: bool, plain: &str| format!("{plain}{}", if tls { "s" } else { "" });
        let (mut value, host, ca) = match self {
            Self::Tcp => (json!({ "probe": "tcp" }), None, None),
            Self::Http {
                tls,
                path,
                host,
                status,
                body,
            } => {
                let mut value = json!({ "probe": within(tls.is_some(), "http"), "path": path });
                value["status"] = match status.to_string() {
                    text if text.len() == 3 => json!(text.parse::<u16>().unwrap_or_default()),
                    text => json!(text),
                };
                if let Some(body) = body {
                    value["body"] = json!(body);
                }
                (value, host.as_ref(), tls.as_ref())
            }
            Self::Grpc { tls, host, service } => {
                let mut value = json!({ "probe": within(tls.is_some(), "grpc") });
                if !service.is_empty() {
                    value["service"] = json!(service);
                }
                (value, host.as_ref(), tls.as_ref())
            }
            Self::Redis => (json!({ "probe": "redis" }), None, None),
            Self::Postgres { user } => (json!({ "probe": "postgres", "user": user }), None, None),
            Self::Dns {
                name,
                record,
                rcodes,
            } => {
                let named = RCODES.iter().filter(|(_, code)| rcodes.contains(code));
                let names: Vec<&str> = named.map(|(name, _)| *name).collect();
                let value = json!({
                    "probe": "dns", "name": name, "record": record.to_string(),
                    "rcode": names.join(" "),
                });
                (value, None, None)
            }
            Self::Quic { host, alpn, tls } => (
                json!({ "probe": "quic", "alpn": alpn }),
                host.as_ref(),
                Some(tls),
            ),
            Self::Icmp => (json!({ "probe": "icmp" }), None, None),
            Self::Script { command } => {
                (json!({ "probe": "script", "command": command }), None, None)
            }
        };
        if let Some(host) = host {
            value["host"] = json!(host);
        }
        if let Some(path) = ca.and_then(Authorities::path) {
            value["ca"] = json!(path);
        }
        value
    }
}
