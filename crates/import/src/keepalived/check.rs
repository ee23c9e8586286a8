// SPDX-License-Identifier: Apache-2.0
//! keepalived's checks of a real, as Causeway's of a VIP.

use super::Left;
use super::blocks::Block;
use crate::draft::Health;
use crate::words::{millis, plain_text};

/// Words that hold checks.
pub(super) const CHECKS: [&str; 11] = [
    "TCP_CHECK",
    "HTTP_GET",
    "SSL_GET",
    "SMTP_CHECK",
    "DNS_CHECK",
    "UDP_CHECK",
    "PING_CHECK",
    "MISC_CHECK",
    "FILE_CHECK",
    "BFD_CHECK",
    "POP3_CHECK",
];

/// What is asked of a name server.
const RECORDS: [&str; 7] = ["A", "AAAA", "MX", "NS", "SOA", "SRV", "TXT"];

/// Milliseconds of a word in seconds, which is how keepalived counts.
fn seconds(block: &Block, word: &str) -> Option<u64> {
    millis(block.child(word)?.word(1), "s")
}

/// The check, in the words of Causeway that are nearest; what has no equal is reported.
pub(super) fn health(server: &Block, real: &Block, check: &Block, left: &mut Left) -> Health {
    let probe = match check.word(0) {
        "TCP_CHECK" => "tcp",
        "HTTP_GET" => "http",
        "SSL_GET" => "https",
        "DNS_CHECK" => "dns",
        "PING_CHECK" => "icmp",
        kind => {
            let instead = match kind {
                "MISC_CHECK" | "FILE_CHECK" => {
                    "a script is of the whole VIP, and has the real's address in CAUSEWAY_REAL: write health = { probe = \"script\", command = [...] } for one that goes by that; a TCP connection is opened where this is the VIP's first check"
                }
                _ => "a TCP connection is opened where this is the VIP's first check",
            };
            left.out(check, kind, instead);
            "tcp"
        }
    };
    let of = |word: &str| {
        let place = [check, real, server]
            .into_iter()
            .find(|b| b.child(word).is_some());
        place.and_then(|block| block.child(word))
    };
    let retries = of("retry").and_then(|retry| retry.word(1).parse::<u32>().ok());
    // Connections are tried again once, everything else three times (keepalived.conf(5)).
    let retries = retries.unwrap_or(if probe == "tcp" { 1 } else { 3 });
    let interval = [check, real, server]
        .iter()
        .find_map(|block| seconds(block, "delay_loop"));
    let timeout = [check, real, server]
        .iter()
        .find_map(|block| seconds(block, "connect_timeout"));
    // A minute from check to check unless it says so, five seconds for each.
    let interval = interval.unwrap_or(60_000);
    let mut health = Health {
        probe,
        port: check
            .child("connect_port")
            .and_then(|port| port.word(1).parse().ok()),
        interval_ms: Some(interval),
        timeout_ms: Some(timeout.unwrap_or(5000).min(interval)),
        rise: Some(1),
        fall: Some(retries.saturating_add(1)),
        ..Health::default()
    };
    if let Some(delay) = of("delay_before_retry")
        && seconds_of(delay) != Some(interval)
    {
        left.out(
            delay,
            "another interval while a check fails",
            "probes come at `interval` always: choose it so that `fall` of them are soon enough",
        );
    }
    for word in ["connect_ip", "bindto", "bind_if", "fwmark"] {
        if let Some(child) = check.child(word) {
            left.out(
                child,
                &child.words.join(" "),
                "a probe goes to the real itself, from this host's own address",
            );
        }
    }
    match probe {
        "http" | "https" => pages(server, check, &mut health, left),
        "dns" => {
            let name = check.child("name").map(|name| name.word(1));
            health.name = name.filter(|name| *name != ".").map(str::to_owned);
            let kind = check.child("type").map_or("SOA", |kind| kind.word(1));
            match RECORDS.contains(&kind) {
                true => health.record = Some(kind.to_ascii_lowercase()),
                false => left.out(check, &format!("type {kind}"), "an address is asked for"),
            }
        }
        _ => {}
    }
    health
}

fn seconds_of(block: &Block) -> Option<u64> {
    millis(block.word(1), "s")
}

/// Pages that are asked for.
fn pages(server: &Block, check: &Block, health: &mut Health, left: &mut Left) {
    let mut urls = check.children.iter().filter(|child| child.word(0) == "url");
    let Some(url) = urls.next() else {
        return;
    };
    for other in urls {
        let path = other.child("path").map_or("", |path| path.word(1));
        left.out(
            other,
            &format!("a second url {path}"),
            "one page is asked for: let it answer for all",
        );
    }
    health.path = url.child("path").map(|path| path.word(1).to_owned());
    let host = url
        .child("virtualhost")
        .or(check.child("virtualhost"))
        .or(server.child("virtualhost"));
    health.host = host.map(|host| host.word(1).to_owned());
    let pattern = url.child("regex").map(|regex| regex.word(1));
    health.body = pattern.and_then(plain_text);
    for word in ["digest", "regex", "regex_no_match"] {
        if let Some(child) = url.child(word)
            && (word != "regex" || health.body.is_none())
        {
            left.out(child, word, "a page is searched for one text, `body`: let it answer with another status when it is wrong");
        }
    }
    health.status = match url.child("status_code") {
        Some(codes) => Some(codes.words[1..].join(" ")),
        // Any of 2xx, unless the page is compared.
        None => url.child("digest").is_none().then(|| "200-299".to_owned()),
    };
}
