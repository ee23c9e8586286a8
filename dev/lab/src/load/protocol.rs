// SPDX-License-Identifier: Apache-2.0
//! What the load generator speaks: how a request is written, how a response is
//! read.

use std::io::Write;

use serde::{Deserialize, Serialize};

use super::http::{MalformedResponse, Response, ResponseParser};
use super::page::Object;

/// Longest line of a response to memcached's or Redis's protocol.
const MAX_LINE: usize = 512;

/// A protocol of requests and responses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AppProtocol {
    /// HTTP/1.1: `GET /r/SIZE/SERVICE_US`.
    #[default]
    Http,
    /// memcached's text protocol: `get` and `set` of a key for each size.
    Memcached,
    /// Redis's RESP2: `GET` and `SET` of a key for each size.
    Redis,
}

impl AppProtocol {
    /// Writes the request for an object.
    pub fn request(self, object: &Object, out: &mut Vec<u8>) {
        let (size, us) = (object.size, object.service_us);
        // Writing to a vector cannot fail.
        let _ = match (self, object.store) {
            (Self::Http, _) => write!(out, "GET /r/{size}/{us} HTTP/1.1\r\nHost: causeway\r\n\r\n"),
            (Self::Memcached, false) => write!(out, "get k{size}\r\n"),
            (Self::Memcached, true) => write!(out, "set k{size} 0 0 {size}\r\n"),
            (Self::Redis, false) => {
                let key = format!("k{size}");
                write!(out, "*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len())
            }
            (Self::Redis, true) => {
                let key = format!("k{size}");
                let length = key.len();
                write!(out, "*3\r\n$3\r\nSET\r\n${length}\r\n{key}\r\n${size}\r\n")
            }
        };
        if object.store && self != Self::Http {
            out.resize(out.len() + size as usize, b'x');
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Body bytes that the response to an object's request must have.
    pub fn body(self, object: &Object) -> u64 {
        match self {
            Self::Http => object.size.into(),
            _ if object.store => 0,
            _ => object.size.into(),
        }
    }

    /// A parser for one connection.
    pub fn parser(self) -> Parser {
        match self {
            Self::Http => Parser::Http(ResponseParser::default()),
            Self::Memcached => Parser::Lines(LineParser::new(Store::Memcached)),
            Self::Redis => Parser::Lines(LineParser::new(Store::Redis)),
        }
    }
}

/// Reads the responses of one connection.
#[derive(Debug)]
pub enum Parser {
    /// HTTP/1.1.
    Http(ResponseParser),
    /// A line, then perhaps a value of the length that the line states.
    Lines(LineParser),
}

impl Parser {
    /// As [`ResponseParser::feed`].
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<Response>, MalformedResponse> {
        match self {
            Self::Http(parser) => parser.feed(input),
            Self::Lines(parser) => parser.feed(input),
        }
    }

    /// Whether the stream stands between two responses.
    pub fn is_idle(&self) -> bool {
        match self {
            Self::Http(parser) => parser.is_idle(),
            Self::Lines(parser) => parser.line.is_empty() && parser.body.is_none(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Store {
    Memcached,
    Redis,
}

/// What follows a line.
enum Line {
    /// Nothing: the response is complete.
    Done,
    /// A value with this many bytes.
    Value(u64),
}

impl Store {
    fn name(self) -> &'static str {
        match self {
            Self::Memcached => "memcached",
            Self::Redis => "redis",
        }
    }

    /// What stands between a value's last byte and the next response.
    fn trailer(self) -> u64 {
        match self {
            Self::Memcached => b"\r\nEND\r\n".len() as u64,
            Self::Redis => b"\r\n".len() as u64,
        }
    }

    fn line(self, line: &str) -> Result<Line, MalformedResponse> {
        let value = match self {
            Self::Memcached if line == "STORED" => return Ok(Line::Done),
            Self::Memcached => line
                .strip_prefix("VALUE ")
                .and_then(|rest| rest.split(' ').nth(2)),
            Self::Redis if line == "+OK" => return Ok(Line::Done),
            Self::Redis => line.strip_prefix('$'),
        };
        let size = value
            .and_then(|v| v.parse().ok())
            .ok_or(MalformedResponse)?;
        Ok(Line::Value(size))
    }
}

/// A parser of memcached's and Redis's responses.
#[derive(Debug)]
pub struct LineParser {
    store: Store,
    line: Vec<u8>,
    /// Size of the value and bytes that are still to come, trailer included.
    body: Option<(u64, u64)>,
}

impl LineParser {
    fn new(store: Store) -> Self {
        Self {
            store,
            line: Vec::new(),
            body: None,
        }
    }

    fn feed(&mut self, input: &mut &[u8]) -> Result<Option<Response>, MalformedResponse> {
        if self.body.is_none() {
            let Some(line) = self.take_line(input)? else {
                return Ok(None);
            };
            match self.store.line(&line)? {
                Line::Done => return Ok(Some(self.response(0))),
                Line::Value(size) => self.body = Some((size, size + self.store.trailer())),
            }
        }
        let Some((size, missing)) = self.body.as_mut() else {
            return Ok(None);
        };
        let taken = (*missing).min(input.len() as u64);
        *input = &input[taken as usize..];
        *missing -= taken;
        if *missing > 0 {
            return Ok(None);
        }
        let size = *size;
        self.body = None;
        Ok(Some(self.response(size)))
    }

    fn response(&self, size: u64) -> Response {
        Response {
            status: 200,
            size,
            real: self.store.name().to_owned(),
        }
    }

    /// The next line without its end; `None` until it has come in full.
    fn take_line(&mut self, input: &mut &[u8]) -> Result<Option<String>, MalformedResponse> {
        let end = input.iter().position(|&b| b == b'\n');
        let taken = end.map_or(input.len(), |at| at + 1);
        self.line.extend_from_slice(&input[..taken]);
        *input = &input[taken..];
        if self.line.len() > MAX_LINE {
            return Err(MalformedResponse);
        }
        if end.is_none() {
            return Ok(None);
        }
        let line = std::mem::take(&mut self.line);
        let text = line.strip_suffix(b"\r\n").ok_or(MalformedResponse)?;
        let text = std::str::from_utf8(text).map_err(|_| MalformedResponse)?;
        Ok(Some(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(protocol: AppProtocol, bytes: &[u8], pieces: usize) -> Vec<u64> {
        let mut parser = protocol.parser();
        let mut sizes = Vec::new();
        for piece in bytes.chunks(pieces) {
            let mut rest = piece;
            while !rest.is_empty() {
                let response = parser.feed(&mut rest).expect("well-formed");
                sizes.extend(response.map(|r| r.size));
            }
        }
        assert!(parser.is_idle());
        sizes
    }

    #[test]
    fn values_and_stores_in_any_pieces() {
        let memcached = b"VALUE k512 0 3\r\nabc\r\nEND\r\nSTORED\r\nVALUE k5 0 0\r\n\r\nEND\r\n";
        let redis = b"$3\r\na\r\n\r\n+OK\r\n$0\r\n\r\n";
        for pieces in 1..=memcached.len() {
            assert_eq!(sizes(AppProtocol::Memcached, memcached, pieces), [3, 0, 0]);
            assert_eq!(sizes(AppProtocol::Redis, redis, pieces), [3, 0, 0]);
        }
    }

    #[test]
    fn errors_of_the_server_are_malformed() {
        for (protocol, bytes) in [
            (AppProtocol::Memcached, &b"END\r\n"[..]),
            (AppProtocol::Memcached, b"SERVER_ERROR out of memory\r\n"),
            (AppProtocol::Redis, b"$-1\r\n"),
            (AppProtocol::Redis, b"-ERR unknown\r\n"),
            (AppProtocol::Redis, &[b'x'; 600]),
        ] {
            assert_eq!(protocol.parser().feed(&mut &*bytes), Err(MalformedResponse));
        }
    }
}
