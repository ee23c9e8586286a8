// SPDX-License-Identifier: Apache-2.0
//! Reads HTTP/1.1 responses with a Content-Length from a stream of bytes.

/// Longest head that is accepted.
const MAX_HEAD: usize = 8192;

/// A response that has arrived in full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Body bytes.
    pub size: u64,
    /// Value of `X-Real`; empty if there was none.
    pub real: String,
}

/// The stream cannot be read as HTTP; the connection is of no more use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MalformedResponse;

/// Takes bytes as they come, in pieces of any size.
#[derive(Debug, Default)]
pub struct ResponseParser {
    head: Vec<u8>,
    body: Option<(Response, u64)>,
}

impl ResponseParser {
    /// Takes bytes from the front of `input` up to the end of one response.
    /// Returns that response if its last byte was among them; call again until
    /// `input` is empty.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<Response>, MalformedResponse> {
        if self.body.is_none() {
            let Some(head_len) = self.take_head(input)? else {
                return Ok(None);
            };
            let response = parse_head(&self.head[..head_len])?;
            self.head.clear();
            let size = response.size;
            self.body = Some((response, size));
        }
        let Some((response, missing)) = self.body.as_mut() else {
            return Ok(None);
        };
        let taken = (*missing).min(input.len() as u64);
        *input = &input[taken as usize..];
        *missing -= taken;
        if *missing > 0 {
            return Ok(None);
        }
        let response = std::mem::replace(
            response,
            Response {
                status: 0,
                size: 0,
                real: String::new(),
            },
        );
        self.body = None;
        Ok(Some(response))
    }

    /// Whether the stream stands between two responses.
    pub fn is_idle(&self) -> bool {
        self.head.is_empty() && self.body.is_none()
    }

    /// Moves bytes into `head` until it ends with an empty line.
    fn take_head(&mut self, input: &mut &[u8]) -> Result<Option<usize>, MalformedResponse> {
        let before = self.head.len();
        let room = (MAX_HEAD - before).min(input.len());
        self.head.extend_from_slice(&input[..room]);
        // The end may straddle what was there before.
        let from = before.saturating_sub(3);
        match self.head[from..].windows(4).position(|w| w == b"\r\n\r\n") {
            Some(at) => {
                let end = from + at + 4;
                *input = &input[end - before..];
                self.head.truncate(end);
                Ok(Some(end))
            }
            None if self.head.len() >= MAX_HEAD => Err(MalformedResponse),
            None => {
                *input = &input[room..];
                Ok(None)
            }
        }
    }
}

fn parse_head(head: &[u8]) -> Result<Response, MalformedResponse> {
    let text = std::str::from_utf8(head).map_err(|_| MalformedResponse)?;
    let mut lines = text.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.strip_prefix("HTTP/1.1 "))
        .and_then(|rest| rest.get(..3)?.parse().ok())
        .ok_or(MalformedResponse)?;
    let mut size = None;
    let mut real = String::new();
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            size = Some(value.parse().map_err(|_| MalformedResponse)?);
        } else if name.eq_ignore_ascii_case("x-real") {
            value.clone_into(&mut real);
        }
    }
    Ok(Response {
        status,
        size: size.ok_or(MalformedResponse)?,
        real,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-Real: s1\r\n\r\nabc\
        HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";

    fn read_in_pieces(of: usize) -> Vec<Response> {
        let mut parser = ResponseParser::default();
        let mut responses = Vec::new();
        for piece in TWO.chunks(of) {
            let mut rest = piece;
            while !rest.is_empty() {
                responses.extend(parser.feed(&mut rest).expect("well-formed"));
            }
        }
        assert!(parser.is_idle());
        responses
    }

    #[test]
    fn any_split_gives_the_same_responses() {
        let expected = vec![
            Response {
                status: 200,
                size: 3,
                real: "s1".into(),
            },
            Response {
                status: 404,
                size: 0,
                real: String::new(),
            },
        ];
        for of in 1..=TWO.len() {
            assert_eq!(read_in_pieces(of), expected, "pieces of {of}");
        }
    }

    #[test]
    fn nonsense_is_malformed() {
        for bytes in [
            &b"HTTP/2 200\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\n\r\n",
            &[b'x'; 10_000],
        ] {
            let mut rest = bytes;
            assert_eq!(
                ResponseParser::default().feed(&mut rest),
                Err(MalformedResponse)
            );
        }
    }
}
