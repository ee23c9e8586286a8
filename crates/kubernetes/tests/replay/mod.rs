// SPDX-License-Identifier: Apache-2.0
//! Servers for tests: one that replays what a kube-apiserver answered, and one that stands for
//! the daemon.

pub(crate) mod api_server;
pub(crate) mod daemon;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::path::Path;

use serde_json::Value;

/// A recorded answer.
pub(crate) fn recorded(name: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded");
    fs::read_to_string(dir.join(name)).expect("a recorded answer")
}

/// The version that the bookmark of a recorded watch names.
pub(crate) fn bookmark(kind: &str) -> String {
    let lines = recorded(&format!("{kind}-watch.jsonl"));
    let mut lines = lines.lines().map(parse);
    let bookmark = lines.find(|line| line["type"] == "BOOKMARK");
    let version = bookmark.expect("a bookmark")["object"]["metadata"]["resourceVersion"].clone();
    version.as_str().expect("a version").to_owned()
}

pub(crate) fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// A request as it comes.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) body: String,
}

/// Reads a request.
pub(crate) fn receive(stream: impl Read) -> Option<Asked> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    Some(Asked {
        method,
        path: path.to_owned(),
        query: pairs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
        body: String::from_utf8(body).ok()?,
    })
}

/// Answers one.
pub(crate) fn answer(mut stream: impl Write, status: u16, body: &str) {
    // Who does not wait for it has gone.
    let _ = write!(
        stream,
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
}
