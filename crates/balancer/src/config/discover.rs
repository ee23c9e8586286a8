// SPDX-License-Identifier: Apache-2.0
//! Validation of a VIP's `discover`: the source of reals that the file does not name.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use axum::http::Uri;
use causeway_service::config::{
    Faults, Spanned, Words as _, absolute_path, number_within, text, time_within, within,
};
use serde_json::{Value, json};

use super::cookie::Beside;
use super::probe::{self, Authorities};
use super::raw::RawDiscover;
use super::words::RecordType;

/// Shorter ones would be a load of their own, longer ones no discovery.
const INTERVAL: [&str; 2] = ["1s", "1h"];
/// More in one VIP is a mistake, or a thing to say.
const REALS_MAX: usize = 4096;
const REALS_DEFAULT: usize = 100;
const DNS_PORT: u16 = 53;

/// Where a VIP's reals are discovered.
#[derive(Debug, Clone, PartialEq)]
pub struct Discover {
    /// Where reals are asked for.
    pub origin: RealsOrigin,
    /// How often, or how soon after a failure; an answer that comes with a lifetime is asked for
    /// again after that.
    pub interval: Duration,
    /// An answer with more is refused.
    pub max_reals: usize,
    /// Part of the VIP's reals that one answer may take away, of 1.
    pub max_removed: f64,
    /// How long a real that is no longer in the answers keeps its connections.
    pub drain: Duration,
}

impl Eq for Discover {}

/// The source of a VIP's reals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RealsOrigin {
    /// Name servers.
    Dns {
        /// The name.
        name: String,
        /// `a`, `aaaa` or `srv`.
        record: RecordType,
        /// The name server; without, those of the system.
        resolver: Option<SocketAddr>,
    },
    /// A file.
    File(PathBuf),
    /// An HTTP server.
    Http {
        /// The page.
        url: String,
        /// The authorities for its certificate, with `https`.
        tls: Option<Authorities>,
    },
}

pub(super) fn discover(
    raw: &Spanned<RawDiscover>,
    vip: Option<IpAddr>,
    beside: Beside,
    faults: &mut Faults<'_>,
) -> Option<Discover> {
    let place = raw.span();
    let raw = raw.as_ref();
    if beside.may_be_empty {
        faults.at(
            place,
            "`discover` stands in the file alone: what it reads and asks is its owner's to say",
        );
        return None;
    }
    let interval = time_within(raw.interval.as_ref(), "interval", INTERVAL, faults);
    let drain = time_within(raw.drain.as_ref(), "drain", ["0s", "168h"], faults);
    let max_reals = number_within(raw.max_reals.as_ref(), "max_reals", 1..=REALS_MAX, faults);
    let max_removed = raw.max_removed.as_ref().and_then(|value| {
        let part = within(*value.as_ref(), &(0.0..=1.0), "max_removed", "0", "1");
        part.map_err(|message| faults.at(value.span(), message))
            .ok()
    });
    others_unused(raw, faults);
    Some(Discover {
        origin: origin(raw, vip, place, faults)?,
        interval: interval.unwrap_or(Duration::from_secs(10)),
        max_reals: max_reals.unwrap_or(REALS_DEFAULT),
        max_removed: max_removed.unwrap_or(0.5),
        drain: drain.unwrap_or(Duration::from_secs(300)),
    })
}

fn origin(
    raw: &RawDiscover,
    vip: Option<IpAddr>,
    place: std::ops::Range<usize>,
    faults: &mut Faults<'_>,
) -> Option<RealsOrigin> {
    match (&raw.dns, &raw.file, &raw.http) {
        (Some(_), None, None) => {
            let default = match vip {
                Some(IpAddr::V6(_)) => RecordType::Aaaa,
                _ => RecordType::A,
            };
            let record = text(raw.record.as_ref(), faults, |word| {
                let record = RecordType::from_word(word)?;
                match record {
                    RecordType::A | RecordType::Aaaa | RecordType::Srv => Ok(record),
                    other => Err(format!(
                        "a record of type {other} names no server; use a, aaaa or srv"
                    )),
                }
            });
            Some(RealsOrigin::Dns {
                name: text(raw.dns.as_ref(), faults, probe::name)?,
                record: record.unwrap_or(default),
                resolver: text(raw.resolver.as_ref(), faults, resolver),
            })
        }
        (None, Some(_), None) => {
            let path = text(raw.file.as_ref(), faults, absolute_path);
            path.map(RealsOrigin::File)
        }
        (None, None, Some(_)) => {
            let url = text(raw.http.as_ref(), faults, url)?;
            let ca = text(raw.ca.as_ref(), faults, Authorities::read);
            let tls = match url.starts_with("https:") {
                true => ca.or_else(|| text_of_system(raw, faults)),
                false => None,
            };
            Some(RealsOrigin::Http { url, tls })
        }
        _ => {
            faults.at(
                place,
                "`discover` has one of `dns`, `file`, `http`; write for example discover = { dns = \"app.example.org\" }",
            );
            None
        }
    }
}

/// What the system trusts: answers must be authenticated here.
fn text_of_system(raw: &RawDiscover, faults: &mut Faults<'_>) -> Option<Authorities> {
    let place = raw.http.as_ref()?.span();
    Authorities::read("system")
        .map_err(|message| faults.at(place, message))
        .ok()
}

/// Keys that belong to another origin would have no effect.
fn others_unused(raw: &RawDiscover, faults: &mut Faults<'_>) {
    let of = |key: &Option<Spanned<String>>| key.as_ref().map(Spanned::span);
    let is_https = raw
        .http
        .as_ref()
        .is_some_and(|url| url.as_ref().starts_with("https:"));
    for (key, place, of_what, fits) in [
        ("record", of(&raw.record), "dns", raw.dns.is_some()),
        ("resolver", of(&raw.resolver), "dns", raw.dns.is_some()),
        (
            "ca",
            of(&raw.ca),
            "an `http` that begins with https:",
            is_https,
        ),
    ] {
        if let Some(place) = place.filter(|_| !fits) {
            faults.at(
                place,
                format!("`{key}` has no meaning without {of_what}; remove it"),
            );
        }
    }
}

fn resolver(text: &str) -> Result<SocketAddr, String> {
    let address = text
        .parse()
        .map(|address: IpAddr| (address, DNS_PORT).into());
    address.or_else(|_| text.parse()).map_err(|_| {
        format!(
            "`{text}` is not a valid name server; write its address, as in \"10.0.0.53\", or with a port"
        )
    })
}

fn url(text: &str) -> Result<String, String> {
    let uri: Option<Uri> = text.parse().ok();
    let scheme = uri.as_ref().and_then(Uri::scheme_str);
    let host = uri.as_ref().and_then(Uri::host);
    match matches!(scheme, Some("http" | "https")) && host.is_some_and(|host| !host.is_empty()) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "`{text}` is not the address of a page; write for example \"http://127.0.0.1:8080/reals\""
        )),
    }
}

/// The same as the file would have it.
pub(super) fn to_json(discover: &Discover) -> Value {
    let time = |time: Duration| format!("{}s", time.as_secs_f64());
    let mut value = json!({
        "interval": time(discover.interval),
        "max_reals": discover.max_reals,
        "max_removed": discover.max_removed,
        "drain": time(discover.drain),
    });
    match &discover.origin {
        RealsOrigin::Dns {
            name,
            record,
            resolver,
        } => {
            value["dns"] = json!(name);
            value["record"] = json!(record.to_string());
            if let Some(resolver) = resolver {
                value["resolver"] = json!(resolver.to_string());
            }
        }
        RealsOrigin::File(path) => value["file"] = json!(path),
        RealsOrigin::Http { url, tls } => {
            value["http"] = json!(url);
            if let Some(path) = tls.as_ref().and_then(Authorities::path) {
                value["ca"] = json!(path);
            }
        }
    }
    value
}
