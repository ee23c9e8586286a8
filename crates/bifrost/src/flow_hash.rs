// SPDX-License-Identifier: Apache-2.0

//! Which packets must keep their order: those of one transport flow.

/// A number for the flow of an IP packet (without virtio header): addresses, protocol
/// and ports, or for fragments and other protocols what there is of these. Fragments
/// of a datagram share a number, its unfragmented neighbours have another. IP in IP (RFC
/// 2003, RFC 2473, RFC 4213) is told apart by the inner packet, too: between a balancer
/// and a server the outer one is the same for all. Not secret: a sender that chooses its
/// ports can make two flows share a number, which costs them order that they do not need.
pub fn flow_hash(packet: &[u8]) -> u64 {
    of(packet, 1).unwrap_or(0)
}

/// `depth`: IP packets within that may be looked into.
fn of(packet: &[u8], depth: u8) -> Option<u64> {
    match packet.first()? >> 4 {
        4 => v4(packet, depth),
        6 => v6(packet, depth),
        _ => None,
    }
}

fn v4(packet: &[u8], depth: u8) -> Option<u64> {
    let header = packet.first_chunk::<20>()?;
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    let transport = packet.get(usize::from(header[0] & 15) * 4..)?;
    let addresses = read(&header[12..20]);
    Some(mix(addresses, tail(header[9], fragment, transport, depth)))
}

fn v6(packet: &[u8], depth: u8) -> Option<u64> {
    let header = packet.first_chunk::<40>()?;
    let addresses = (8..40)
        .step_by(8)
        .fold(0, |hash, at| mix(hash, read(&header[at..at + 8])));
    // Behind extension headers the ports stay unseen: such flows are told apart by
    // their label (RFC 6437).
    let label = read(&[0, 0, 0, 0, 0, header[1] & 15, header[2], header[3]]);
    let tail = tail(header[6], false, &packet[40..], depth) ^ (label << 40);
    Some(mix(addresses, tail))
}

fn tail(protocol: u8, fragment: bool, transport: &[u8], depth: u8) -> u64 {
    let ports = match (protocol, fragment, transport.first_chunk::<4>()) {
        // TCP, UDP, DCCP, SCTP, UDP-Lite.
        (6 | 17 | 33 | 132 | 136, false, Some(ports)) => u32::from_be_bytes(*ports),
        // IPv4 and IPv6.
        (4 | 41, false, _) if depth > 0 => return of(transport, depth - 1).unwrap_or(0),
        _ => 0,
    };
    u64::from(protocol) << 32 | u64::from(ports)
}

fn read(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Folded multiplication, as in wyhash; the constants are odd with balanced bits.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x9e37_79b9_7f4a_7c15) * u128::from(b ^ 0xe703_7ed1_a0b4_28db);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp4(port: u16, fragment: u16) -> Vec<u8> {
        let mut packet = vec![
            0x45,
            0,
            0,
            40,
            0,
            0,
            (fragment >> 8) as u8,
            fragment as u8,
            64,
            6,
        ];
        packet.extend([0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend(port.to_be_bytes());
        packet.extend([0, 80]);
        packet.resize(40, 0);
        packet
    }

    #[test]
    fn a_flow_has_one_number_and_others_have_others() {
        assert_eq!(
            flow_hash(&tcp4(1, 0)),
            flow_hash(&tcp4(1, 0x4000)),
            "don't fragment"
        );
        assert_ne!(flow_hash(&tcp4(1, 0)), flow_hash(&tcp4(2, 0)));
        assert_eq!(
            flow_hash(&tcp4(1, 0x2000)),
            flow_hash(&tcp4(2, 0x0001)),
            "fragments"
        );
        assert_eq!(flow_hash(&[]), 0);
        assert_eq!(flow_hash(&[0x45; 10]), 0);
    }

    #[test]
    fn connections_within_one_tunnel_are_told_apart() {
        let ipip = |port, fragment| {
            let mut outer = tcp4(0, fragment)[..20].to_vec();
            outer[9] = 4;
            outer.extend(tcp4(port, 0));
            outer
        };
        assert_ne!(flow_hash(&ipip(1, 0)), flow_hash(&ipip(2, 0)));
        assert_eq!(flow_hash(&ipip(1, 0)), flow_hash(&ipip(1, 0x4000)));
        assert_ne!(
            flow_hash(&ipip(1, 0)),
            flow_hash(&tcp4(1, 0)),
            "the outer header counts"
        );
        assert_eq!(
            flow_hash(&ipip(1, 1)),
            flow_hash(&ipip(2, 1)),
            "fragments of the outer packet"
        );
        assert_eq!(
            flow_hash(&ipip(1, 0)[..30]),
            flow_hash(&ipip(2, 0)[..30]),
            "cut off"
        );
    }

    #[test]
    fn numbers_spread_over_few_buckets() {
        let mut buckets = [0u32; 64];
        for port in 0..6400 {
            buckets[(flow_hash(&tcp4(port, 0)) >> 58) as usize] += 1;
        }
        let (least, most) = (buckets.iter().min(), buckets.iter().max());
        assert!(least > Some(&50) && most < Some(&160), "{least:?} {most:?}");
    }
}
