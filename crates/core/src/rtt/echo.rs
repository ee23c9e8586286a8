// SPDX-License-Identifier: Apache-2.0
//! ICMP echo messages, RFC 792 and RFC 4443 section 4.

/// Bytes of an echo message here: header and a payload of 56, as ping's.
pub const ECHO_LEN: usize = 64;

const ECHO_REQUEST4: u8 = 8;
const ECHO_REPLY4: u8 = 0;
const ECHO_REQUEST6: u8 = 128;
const ECHO_REPLY6: u8 = 129;

/// An echo request, with its checksum for IPv4. For IPv6 the kernel fills the
/// checksum in, because it covers the addresses.
pub fn request(ipv6: bool, id: u16, sequence: u16) -> [u8; ECHO_LEN] {
    let mut message = [0; ECHO_LEN];
    fill_request(ipv6, id, sequence, &mut message);
    message
}

/// The same of any length of 8 bytes and more.
pub fn fill_request(ipv6: bool, id: u16, sequence: u16, message: &mut [u8]) {
    message.fill(0);
    message[0] = if ipv6 { ECHO_REQUEST6 } else { ECHO_REQUEST4 };
    message[4..6].copy_from_slice(&id.to_be_bytes());
    message[6..8].copy_from_slice(&sequence.to_be_bytes());
    for (byte, value) in message[8..]
        .iter_mut()
        .zip((0..=u8::MAX).cycle().skip(0x10))
    {
        *byte = value;
    }
    if !ipv6 {
        let sum = checksum(message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The identifier and sequence number of an echo reply; `None` for all else.
/// A raw IPv4 socket gives the IP header too: it is skipped.
pub fn reply(ipv6: bool, mut bytes: &[u8]) -> Option<(u16, u16)> {
    if !ipv6 && bytes.first()? >> 4 == 4 {
        bytes = bytes.get(usize::from(bytes[0] & 15) * 4..)?;
    }
    let expected = if ipv6 { ECHO_REPLY6 } else { ECHO_REPLY4 };
    let [kind, 0, _, _, i0, i1, s0, s1, ..] = *bytes else {
        return None;
    };
    (kind == expected).then(|| (u16::from_be_bytes([i0, i1]), u16::from_be_bytes([s0, s1])))
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{IcmpEchoHeader, Icmpv4Slice, Icmpv4Type, Icmpv6Slice, Icmpv6Type};

    #[test]
    fn a_request_is_what_another_parser_reads() {
        let echo = IcmpEchoHeader { id: 0x1234, seq: 7 };
        let bytes = request(false, 0x1234, 7);
        let four = Icmpv4Slice::from_slice(&bytes).unwrap();
        assert_eq!(four.icmp_type(), Icmpv4Type::EchoRequest(echo));
        assert_eq!(
            checksum(&bytes),
            0,
            "a message with its checksum adds up to 0"
        );
        let bytes = request(true, 0x1234, 7);
        let six = Icmpv6Slice::from_slice(&bytes).unwrap();
        assert_eq!(six.icmp_type(), Icmpv6Type::EchoRequest(echo));
    }

    #[test]
    fn replies_are_told_from_all_else() {
        let mut bytes = request(false, 9, 10);
        assert_eq!(reply(false, &bytes), None, "a request");
        bytes[0] = ECHO_REPLY4;
        assert_eq!(reply(false, &bytes), Some((9, 10)));
        let mut with_ip = vec![0; 20];
        with_ip[0] = 0x45;
        with_ip.extend(bytes);
        assert_eq!(reply(false, &with_ip), Some((9, 10)));
        for len in 0..with_ip.len() {
            // Truncated anywhere: no panic, and no reply before its header's end.
            let found = reply(false, &with_ip[..len]);
            assert_eq!(found.is_some(), len >= 28);
        }
        let mut bytes = request(true, 9, 10);
        bytes[0] = ECHO_REPLY6;
        assert_eq!(reply(true, &bytes), Some((9, 10)));
        assert_eq!(reply(false, &bytes), None);
    }
}
