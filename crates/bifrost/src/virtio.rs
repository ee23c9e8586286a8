// SPDX-License-Identifier: Apache-2.0

//! What must hold of a frame from the network before it is written to a TUN: the
//! kernel trusts the writer of a virtio header to a degree that a peer does not
//! deserve. After struct virtio_net_hdr (VIRTIO 1.2, section 5.1.6) and the checks of
//! Linux's include/linux/virtio_net.h, which are not relied on.

/// Bytes of `struct virtio_net_hdr` in front of each packet.
pub const VNET_HEADER_LEN: usize = 10;

/// The shortest frame: virtio header and IPv4 header.
pub(crate) const MIN_FRAME_LEN: usize = VNET_HEADER_LEN + 20;
/// The longest frame.
pub(crate) const MAX_FRAME_LEN: u32 = VNET_HEADER_LEN as u32 + 65_535;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_UDP: u8 = 3;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// As many as 64 KiB make at the smallest MSS that Linux segments to: TCP_MIN_MSS (88) without 40
/// of options. A few may be shorter: GRO merges segments of any size.
const MAX_TCP_SEGMENTS: usize = 65_535_usize.div_ceil(48);
/// UDP_MAX_SEGMENTS of Linux since 6.10; 64 before.
const MAX_UDP_SEGMENTS: usize = 128;
/// Of what segments are not made, at least.
const TCP_HEADER_LEN: usize = 20;
const UDP_HEADER_LEN: usize = 8;

/// Whether a frame of `len` bytes that begins with `head` may be written.
pub(crate) fn is_safe(head: &[u8], len: usize) -> bool {
    let Some((header, packet)) = head.split_first_chunk::<VNET_HEADER_LEN>() else {
        return false;
    };
    let word = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let (flags, gso) = (header[0], header[1]);
    let (header_len, gso_size) = (word(2), word(4));
    let packet_len = len - VNET_HEADER_LEN;
    let Some(ip) = Ip::parse(packet, packet_len) else {
        return false;
    };
    if flags & !(NEEDS_CSUM | DATA_VALID) != 0 {
        return false;
    }
    if flags & NEEDS_CSUM != 0 {
        let (start, offset) = (usize::from(word(6)), usize::from(word(8)));
        if start < ip.header_len || start + offset + 2 > packet_len {
            return false;
        }
    }
    let segments = |transport_header: usize| {
        let payload = (packet_len - ip.header_len).saturating_sub(transport_header);
        payload.div_ceil(gso_size.into())
    };
    match gso & !GSO_ECN {
        GSO_NONE => gso == GSO_NONE,
        kind @ (GSO_TCPV4 | GSO_TCPV6) => {
            ip.v4 == (kind == GSO_TCPV4)
                && ip.protocol_may_be(6)
                && gso_size > 0
                && gso_size != u16::MAX
                && segments(TCP_HEADER_LEN) <= MAX_TCP_SEGMENTS
                && usize::from(header_len) <= packet_len
        }
        GSO_UDP_L4 => {
            gso & GSO_ECN == 0
                && ip.protocol_may_be(17)
                && gso_size > 0
                && gso_size != u16::MAX
                && segments(UDP_HEADER_LEN) <= MAX_UDP_SEGMENTS
                && usize::from(header_len) <= packet_len
        }
        // UDP fragmentation offload: not among what `causeway tunnel` asks a TUN for.
        GSO_UDP => false,
        _ => false,
    }
}

struct Ip {
    v4: bool,
    header_len: usize,
    protocol: u8,
}

impl Ip {
    fn parse(packet: &[u8], packet_len: usize) -> Option<Ip> {
        let (v4, header_len, total, protocol) = match packet.first()? >> 4 {
            4 => {
                let header = packet.first_chunk::<20>()?;
                let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
                (true, usize::from(header[0] & 15) * 4, total, header[9])
            }
            6 => {
                let header = packet.first_chunk::<40>()?;
                let total = 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
                (false, 40, total, header[6])
            }
            _ => return None,
        };
        let fits = (20..=total).contains(&header_len) && total <= packet_len;
        fits.then_some(Ip {
            v4,
            header_len,
            protocol,
        })
    }

    /// IPv6 may have extension headers in front of the transport header.
    fn protocol_may_be(&self, protocol: u8) -> bool {
        self.protocol == protocol || (!self.v4 && matches!(self.protocol, 0 | 43 | 44 | 51 | 60))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(header: [u8; 10], protocol: u8, payload: usize) -> Vec<u8> {
        let total = 20 + payload;
        let mut frame = header.to_vec();
        frame.extend([
            0x45,
            0,
            (total >> 8) as u8,
            total as u8,
            0,
            0,
            0,
            0,
            64,
            protocol,
        ]);
        frame.resize(10 + total, 0);
        frame
    }

    #[test]
    fn what_a_tun_gives_is_safe() {
        let plain = frame([0; 10], 17, 8);
        assert!(is_safe(&plain, plain.len()));
        let tso = frame([1, GSO_TCPV4, 40, 0, 0xa8, 5, 20, 0, 16, 0], 6, 20_000);
        assert!(is_safe(&tso[..100], tso.len()));
        let ecn = frame(
            [1, GSO_TCPV4 | GSO_ECN, 40, 0, 0xa8, 5, 20, 0, 16, 0],
            6,
            20_000,
        );
        assert!(is_safe(&ecn, ecn.len()));
        // Two segments of 20 bytes with timestamps, as GRO merges them.
        let small = frame([1, GSO_TCPV4, 52, 0, 20, 0, 20, 0, 16, 0], 6, 32 + 40);
        assert!(is_safe(&small, small.len()));
        // The longest packet at the smallest MSS.
        let most = frame([1, GSO_TCPV4, 40, 0, 48, 0, 20, 0, 16, 0], 6, 65_515);
        assert!(is_safe(&most, most.len()));
        let uso = frame([1, GSO_UDP_L4, 28, 0, 0xb0, 4, 20, 0, 6, 0], 17, 12_008);
        assert!(is_safe(&uso, uso.len()));
        // 128 segments of 500 bytes, as many as Linux takes, and a byte more.
        for (payload, safe) in [(64_000, true), (64_001, false)] {
            let header = [1, GSO_UDP_L4, 28, 0, 0xf4, 1, 20, 0, 6, 0];
            let most = frame(header, 17, 8 + payload);
            assert_eq!(is_safe(&most, most.len()), safe, "{payload}");
        }
    }

    #[test]
    fn what_would_mislead_the_kernel_is_not() {
        let cases: &[([u8; 10], u8, &str)] = &[
            ([4, 0, 0, 0, 0, 0, 0, 0, 0, 0], 6, "unknown flag"),
            ([0, 9, 0, 0, 1, 0, 0, 0, 0, 0], 6, "unknown gso type"),
            ([0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0], 6, "ECN without gso"),
            (
                [1, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0],
                6,
                "checksum starts behind the packet",
            ),
            (
                [1, 0, 0, 0, 0, 0, 20, 0, 0xff, 0x7f],
                6,
                "checksum lies behind the packet",
            ),
            (
                [1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                6,
                "checksum in the IP header",
            ),
            ([1, 1, 40, 0, 0, 0, 20, 0, 16, 0], 6, "segments of nothing"),
            ([1, 1, 40, 0, 1, 0, 20, 0, 16, 0], 6, "3980 segments"),
            ([1, 1, 40, 0, 0xff, 0xff, 20, 0, 16, 0], 6, "GSO_BY_FRAGS"),
            (
                [1, 1, 0xff, 0xff, 0xa8, 5, 20, 0, 16, 0],
                6,
                "header longer than the packet",
            ),
            ([1, 4, 40, 0, 0xa8, 5, 20, 0, 16, 0], 6, "TCPv6 on IPv4"),
            (
                [1, 1, 40, 0, 0xa8, 5, 20, 0, 16, 0],
                17,
                "TCP segments of UDP",
            ),
            ([1, 5, 28, 0, 1, 0, 20, 0, 6, 0], 17, "4000 datagrams"),
            ([1, 3, 28, 0, 0xa8, 5, 20, 0, 6, 0], 17, "UFO"),
        ];
        for (header, protocol, why) in cases {
            let bad = frame(*header, *protocol, 4000);
            assert!(!is_safe(&bad, bad.len()), "{why}");
        }
        let mut bad = frame([0; 10], 6, 100);
        bad[10] = 0x25;
        assert!(!is_safe(&bad, bad.len()), "IP version 2");
        bad[10] = 0x44;
        assert!(!is_safe(&bad, bad.len()), "IPv4 header of 16 bytes");
        bad[10] = 0x45;
        assert!(
            !is_safe(&bad, bad.len() - 1),
            "IPv4 length beyond the frame"
        );
        assert!(!is_safe(&bad[..15], bad.len()), "cut off");
    }
}
