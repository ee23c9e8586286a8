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

/// Words of a check that are taken here, or change nothing.
const TAKEN: [&str; 9] = [
    "connect_port",
    "enable_sni",
    "fast_recovery",
    "http_protocol",
    "log_all_failures",
    "name",
    "nb_get_retry",
    "type",
    "url",
];

/// Words of a `url` that say how its `regex` is meant.
const CHANGES_REGEX: [&str; 4] = [
    "regex_no_match",
    "regex_options",
    "regex_min_offset",
    "regex_max_offset",
];

/// Milliseconds of a line in seconds, which is how keepalived counts.
fn seconds(line: &Block) -> Option<u64> {
    millis(line.word(1), "s")
}

/// The check, in the words of Causeway that are nearest; what has no equal is reported.
pub(super) fn health(server: &Block, real: &Block, check: &Block, left: &mut Left) -> Health {
    let kind = check.word(0);
    let probe = match kind {
        "TCP_CHECK" => Some("tcp"),
        "HTTP_GET" => Some("http"),
        "SSL_GET" => Some("https"),
        "DNS_CHECK" => Some("dns"),
        "PING_CHECK" => Some("icmp"),
        _ => {
            let instead = match kind {
                "MISC_CHECK" | "FILE_CHECK" => {
                    "a script is of the whole VIP, and has the real's address in CAUSEWAY_REAL: write health = { probe = \"script\", command = [...] } for one that goes by that; a TCP connection is opened where this is the VIP's first check"
                }
                _ => "a TCP connection is opened where this is the VIP's first check",
            };
            left.out(check, kind, instead);
            None
        }
    };
    let of = |word: &str| {
        let mut blocks = [check, real, server].into_iter();
        blocks.find_map(|block| block.child(word))
    };
    // A minute from check to check unless it says so, five seconds for each.
    let interval = of("delay_loop").and_then(seconds).unwrap_or(60_000);
    let timeout = of("connect_timeout").and_then(seconds).unwrap_or(5000);
    // How often one that fails is tried again, and after how long (keepalived.conf(5)).
    let (retries, delay) = match kind {
        "HTTP_GET" | "SSL_GET" => (1, 3000),
        "DNS_CHECK" => (3, interval),
        "MISC_CHECK" | "FILE_CHECK" | "BFD_CHECK" => (0, 1000),
        _ => (1, 1000),
    };
    let retry = check.child("nb_get_retry").or(of("retry"));
    let retries = retry
        .and_then(|retry| retry.word(1).parse::<u32>().ok())
        .unwrap_or(retries);
    let delay_line = of("delay_before_retry");
    let delay = delay_line.and_then(seconds).unwrap_or(delay);
    if retries > 0 && delay != interval {
        left.out(
            delay_line.unwrap_or(check),
            &format!("another interval while a check fails ({delay} ms)"),
            "probes come at `interval` always: choose it so that `fall` of them are soon enough",
        );
    }
    let mut health = Health {
        probe: probe.unwrap_or("tcp"),
        port: check
            .child("connect_port")
            .and_then(|port| port.word(1).parse().ok()),
        interval_ms: Some(interval),
        timeout_ms: Some(timeout),
        rise: Some(1),
        fall: Some(retries.saturating_add(1)),
        ..Health::default()
    };
    for child in &check.children {
        match child.word(0) {
            "connect_ip" | "bindto" | "bind_if" | "bind_port" | "fwmark" => left.line(
                child,
                "a probe goes to the real itself, from this host's own address",
            ),
            word if TAKEN.contains(&word) => {}
            // With the check as a whole.
            _ if probe.is_none() => {}
            _ => super::unlike(child, left),
        }
    }
    match probe {
        Some("http" | "https") => pages([real, server], check, &mut health, left),
        Some("dns") => {
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

/// Pages that are asked for.
fn pages(around: [&Block; 2], check: &Block, health: &mut Health, left: &mut Left) {
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
    let mut blocks = [url, check].into_iter().chain(around);
    let host = blocks.find_map(|block| block.child("virtualhost"));
    health.host = host.map(|host| host.word(1).to_owned());
    // One of these makes another text right, or a right one wrong.
    let is_plain = CHANGES_REGEX.iter().all(|word| url.child(word).is_none());
    let pattern = url.child("regex").filter(|_| is_plain);
    health.body = pattern.and_then(|regex| plain_text(regex.word(1)));
    for child in &url.children {
        match child.word(0) {
            // How much memory a pattern may take.
            "path" | "status_code" | "virtualhost" | "regex_stack" => {}
            "regex" if health.body.is_some() => {}
            word if matches!(word, "digest" | "regex") || CHANGES_REGEX.contains(&word) => left.line(
                child,
                "a page is searched for one text as it stands, `body`: let it answer with another status when it is wrong",
            ),
            _ => super::unlike(child, left),
        }
    }
    // Any of 2xx unless it says.
    let codes = url
        .child("status_code")
        .map(|codes| codes.words[1..].join(" "));
    health.status = Some(codes.unwrap_or_else(|| "200-299".to_owned()));
}
