// SPDX-License-Identifier: Apache-2.0
//! What servers answer to probes, as far as it is read: the head of a DNS message, a line of
//! Redis, an error of PostgreSQL, a message of gRPC, an echo of ICMP. A server may say anything,
//! and for ever: the caller bounds what it keeps.

/// Head of a DNS message (RFC 1035, section 4.1.1).
const DNS_HEAD: usize = 12;
const DNS_RESPONSE: u8 = 0x80;
const DNS_RCODE: u8 = 0x0f;

/// The response code of a DNS answer to `id`; `None` if it is none.
pub fn dns_code(answer: &[u8], id: [u8; 2]) -> Option<u8> {
    let head = answer.get(..DNS_HEAD)?;
    (head[..2] == id && head[2] & DNS_RESPONSE != 0).then_some(head[3] & DNS_RCODE)
}

/// Whether a line, without its end, is what a Redis that serves answers to `PING`. One that
/// wants a password first serves, too: probes have none.
pub fn redis_serves(line: &[u8]) -> bool {
    line == b"+PONG" || line.starts_with(b"-NOAUTH ")
}

/// Highest weight that a server can say it should have.
const WEIGHT_MAX: u32 = 1000;

/// The weight in a header of HTTP: a whole number, at most 1000. What is none says nothing.
pub fn endpoint_weight(value: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(value).ok()?.trim();
    let is_number = (1..=10).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_digit());
    let weight: u64 = is_number.then(|| text.parse().ok())??;
    Some(weight.min(WEIGHT_MAX.into()) as u32)
}

/// What PostgreSQL says of an error: SQLSTATE, and the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresError {
    /// Five letters and digits.
    pub code: String,
    /// For people.
    pub message: String,
}

impl PostgresError {
    /// Reads the fields of an ErrorResponse (PostgreSQL, section 55.7): a letter and a text
    /// that ends with a zero, each. `None` without a code.
    pub fn parse(fields: &[u8]) -> Option<Self> {
        let field = |kind: u8| {
            let mut texts = fields.split(|octet| *octet == 0);
            let text = texts.find(|text| text.first() == Some(&kind))?;
            Some(String::from_utf8_lossy(&text[1..]).into_owned())
        };
        let code = field(b'C').filter(|code| code.len() == 5)?;
        Some(Self {
            code,
            message: field(b'M').unwrap_or_default(),
        })
    }

    /// Whether the server would serve a client that may come in: it begins or ends (class 57P),
    /// has no room (53), is broken (58, F0, XX), or only knows neither the user nor the way in.
    pub fn is_about_the_server(&self) -> bool {
        ["57P", "53", "58", "F0", "XX"]
            .iter()
            .any(|class| self.code.starts_with(class))
    }
}

/// Length of the head of a gRPC message: whether it is compressed, and its length.
const GRPC_HEAD: usize = 5;
const SERVING: u64 = 1;

/// A HealthCheckRequest of grpc.health.v1 as a message of gRPC; `service` is shorter than 128
/// octets.
pub fn grpc_request(service: &str) -> Vec<u8> {
    let length = match service.len() {
        0 => 0,
        length => length as u8 + 2,
    };
    let mut message = vec![0, 0, 0, 0, length];
    if length > 0 {
        // Field 1, with a length before it.
        message.extend([0x0a, length - 2]);
        message.extend(service.as_bytes());
    }
    message
}

/// Whether a HealthCheckResponse says SERVING; `Err` has what it says instead.
pub fn grpc_serves(message: &[u8]) -> Result<(), &'static str> {
    const NONE: &str = "the answer is not a message of grpc.health.v1";
    let (head, body) = message.split_at_checked(GRPC_HEAD).ok_or(NONE)?;
    if head[0] != 0 || head[1..] != (body.len() as u32).to_be_bytes() {
        return Err(NONE);
    }
    // A field that is not there is 0.
    let (mut status, mut rest) = (0, body);
    while !rest.is_empty() {
        let (field, after) = field(rest).ok_or(NONE)?;
        if let Some(value) = field {
            status = value;
        }
        rest = after;
    }
    match status {
        SERVING => Ok(()),
        0 => Err("the service's state is unknown"),
        2 => Err("the service is not serving"),
        3 => Err("the service is not known"),
        _ => Err(NONE),
    }
}

/// Takes a field of protocol buffers: the value of field 1 if it is one by number, and what
/// follows.
fn field(octets: &[u8]) -> Option<(Option<u64>, &[u8])> {
    let (tag, rest) = varint(octets)?;
    match tag & 7 {
        0 => {
            let (value, rest) = varint(rest)?;
            Some(((tag >> 3 == 1).then_some(value), rest))
        }
        1 => Some((None, rest.get(8..)?)),
        2 => {
            let (length, rest) = varint(rest)?;
            Some((None, rest.get(usize::try_from(length).ok()?..)?))
        }
        5 => Some((None, rest.get(4..)?)),
        _ => None,
    }
}

fn varint(octets: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (at, octet) in octets.iter().take(10).enumerate() {
        value |= u64::from(octet & 0x7f).checked_shl(7 * at as u32)?;
        if octet & 0x80 == 0 {
            return Some((value, &octets[at + 1..]));
        }
    }
    None
}

/// One echo of ICMP (RFC 792) or ICMPv6 (RFC 4443, section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo {
    /// Of ICMPv6.
    pub ipv6: bool,
    /// Whose it is.
    pub id: u16,
    /// Which it is.
    pub sequence: u16,
}

/// What an echo carries: enough to see whose it is in a capture.
const ECHO_DATA: &[u8; 8] = b"causeway";

impl Echo {
    /// The request. Its checksum is for the kernel to fill in with ICMPv6.
    pub fn request(self) -> [u8; 16] {
        let mut packet = [0; 16];
        packet[0] = if self.ipv6 { 128 } else { 8 };
        packet[4..6].copy_from_slice(&self.id.to_be_bytes());
        packet[6..8].copy_from_slice(&self.sequence.to_be_bytes());
        packet[8..].copy_from_slice(ECHO_DATA);
        if !self.ipv6 {
            let words = packet.chunks_exact(2);
            let sum: u32 = words
                .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
                .sum();
            let folded = (sum & 0xffff) + (sum >> 16);
            packet[2..4].copy_from_slice(&(!(folded as u16)).to_be_bytes());
        }
        packet
    }

    /// Whether what a raw socket has received is the reply: with an IP header before it in
    /// IPv4, without in IPv6.
    pub fn is_replied_by(self, received: &[u8]) -> bool {
        let header = match (self.ipv6, received.first()) {
            (true, _) => 0,
            (false, Some(first)) => usize::from(first & 0x0f) * 4,
            (false, None) => return false,
        };
        let request = self.request();
        received.get(header..).is_some_and(|reply| {
            reply.len() >= request.len()
                && reply[0] == if self.ipv6 { 129 } else { 0 }
                && reply[1] == 0
                && reply[4..16] == request[4..]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_to_its_question() {
        let answer = |id, flags| [id, 0x34, flags, 0x83, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(dns_code(&answer(0x12, 0x80), [0x12, 0x34]), Some(3));
        assert_eq!(dns_code(&answer(0x13, 0x80), [0x12, 0x34]), None);
        assert_eq!(dns_code(&answer(0x12, 0x00), [0x12, 0x34]), None);
        assert_eq!(dns_code(b"short", [0x12, 0x34]), None);
    }

    #[test]
    fn a_weight_is_a_whole_number_within_bounds() {
        for (value, weight) in [
            (&b"0"[..], Some(0)),
            (b" 12 ", Some(12)),
            (b"9999999999", Some(1000)),
            (b"", None),
            (b"-1", None),
            (b"+1", None),
            (b"1.5", None),
            (b"99999999999", None),
            (b"\xff", None),
        ] {
            assert_eq!(endpoint_weight(value), weight, "{value:?}");
        }
    }

    #[test]
    fn redis_serves_with_a_password_but_not_while_it_loads() {
        for (line, serves) in [
            (&b"+PONG"[..], true),
            (b"-NOAUTH Authentication required.", true),
            (b"-LOADING Redis is loading the dataset in memory", false),
            (b"-MASTERDOWN Link with MASTER is down", false),
            (b"+PONGS", false),
            (b"", false),
        ] {
            assert_eq!(redis_serves(line), serves, "{line:?}");
        }
    }

    #[test]
    fn errors_of_postgresql_are_of_the_server_or_of_the_user() {
        let starting = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0";
        let error = PostgresError::parse(starting).unwrap();
        assert_eq!(
            (error.code.as_str(), error.message.as_str()),
            ("57P03", "the database system is starting up")
        );
        assert!(error.is_about_the_server());
        let unknown = PostgresError::parse(b"C28000\0Mno pg_hba.conf entry\0\0").unwrap();
        assert!(!unknown.is_about_the_server());
        for bad in [&b""[..], b"C\0", b"C570000\0", b"Mno code\0", b"\xff\xff"] {
            assert_eq!(PostgresError::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_health_message_is_read_as_protocol_buffers_are() {
        assert_eq!(grpc_request(""), [0; 5]);
        assert_eq!(grpc_request("a.B"), b"\0\0\0\0\x05\x0a\x03a.B");
        assert_eq!(grpc_serves(b"\0\0\0\0\x02\x08\x01"), Ok(()));
        // Another field before, and a number that is longer than it must be.
        let more = b"\0\0\0\0\x07\x12\x02ab\x08\x81\0";
        assert_eq!(grpc_serves(more), Ok(()));
        for (message, expected) in [
            (&b"\0\0\0\0\0"[..], "the service's state is unknown"),
            (b"\0\0\0\0\x02\x08\x02", "the service is not serving"),
            (b"\0\0\0\0\x02\x08\x03", "the service is not known"),
        ] {
            assert_eq!(grpc_serves(message), Err(expected));
        }
        for bad in [
            &b""[..],
            b"\0\0\0\0",
            b"\x01\0\0\0\x02\x08\x01",
            b"\0\0\0\0\x03\x08\x01",
            b"\0\xff\xff\xff\xff\x08\x01",
            b"\0\0\0\0\x01\x08",
            b"\0\0\0\0\x02\x08\x09",
            b"\0\0\0\0\x03\x12\xff\x01",
            b"\0\0\0\0\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        ] {
            let error = grpc_serves(bad).unwrap_err();
            assert!(
                error.ends_with("not a message of grpc.health.v1"),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn an_echo_comes_back_with_its_data() {
        let echo = Echo {
            ipv6: false,
            id: 0x1234,
            sequence: 7,
        };
        let request = echo.request();
        assert_eq!(request[..8], [8, 0, 0x45, 0xff, 0x12, 0x34, 0, 7]);
        let mut reply = vec![0x45; 20];
        reply.extend(request);
        assert!(!echo.is_replied_by(&reply), "the request itself");
        reply[20] = 0;
        assert!(echo.is_replied_by(&reply));
        let other = Echo {
            sequence: 8,
            ..echo
        };
        assert!(!other.is_replied_by(&reply));
        assert!(!echo.is_replied_by(&reply[..30]) && !echo.is_replied_by(&[]));
        assert!(!echo.is_replied_by(&[0x4f; 40]));
        let echo = Echo { ipv6: true, ..echo };
        let mut reply = echo.request();
        assert!(!echo.is_replied_by(&reply));
        reply[0] = 129;
        assert!(echo.is_replied_by(&reply));
    }
}
