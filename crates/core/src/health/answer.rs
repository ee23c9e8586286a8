// SPDX-License-Identifier: Apache-2.0
//! What servers answer to probes, as far as it is read: the first line of HTTP, the head of
//! a DNS message. A server may say anything, and for ever: the caller bounds what it keeps.

/// Head of a DNS message (RFC 1035, section 4.1.1).
const DNS_HEAD: usize = 12;
const DNS_RESPONSE: u8 = 0x80;
const DNS_RCODE: u8 = 0x0f;

/// The status of an HTTP answer that begins with these bytes.
pub fn http_status(head: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(head.split(|c| *c == b'\r' || *c == b'\n').next()?).ok()?;
    let (version, rest) = line.split_once(' ')?;
    let digits = rest.get(..3)?;
    match version.starts_with("HTTP/1.") && digits.bytes().all(|digit| digit.is_ascii_digit()) {
        true => digits.parse().ok(),
        false => None,
    }
}

/// The response code of a DNS answer to `id`; `None` if it is none.
pub fn dns_code(answer: &[u8], id: [u8; 2]) -> Option<u8> {
    let head = answer.get(..DNS_HEAD)?;
    (head[..2] == id && head[2] & DNS_RESPONSE != 0).then_some(head[3] & DNS_RCODE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_line_is_read_and_nothing_else() {
        assert_eq!(http_status(b"HTTP/1.1 204 No Content\r\nA: b"), Some(204));
        assert_eq!(http_status(b"HTTP/1.0 503\n"), Some(503));
        for bad in [
            &b""[..],
            b"HTTP/2 200",
            b"SSH-2.0-x",
            b"HTTP/1.1 2",
            b"HTTP/1.1 +20 OK",
            b"HTTP/1.1 \xff\xff\xff",
        ] {
            assert_eq!(http_status(bad), None);
        }
    }

    #[test]
    fn an_answer_is_to_its_question() {
        let answer = |id, flags| [id, 0x34, flags, 0x83, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(dns_code(&answer(0x12, 0x80), [0x12, 0x34]), Some(3));
        assert_eq!(dns_code(&answer(0x13, 0x80), [0x12, 0x34]), None);
        assert_eq!(dns_code(&answer(0x12, 0x00), [0x12, 0x34]), None);
        assert_eq!(dns_code(b"short", [0x12, 0x34]), None);
    }
}
