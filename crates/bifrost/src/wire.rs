// SPDX-License-Identifier: Apache-2.0

//! The wire format: what is in a UDP datagram of the tunnel. All integers are
//! little-endian. `docs/design/bifrost.md` has the tables.
//!
//! Every datagram begins with a [`CommonHeader`] of twelve bytes. With a key, the headers
//! stay readable and are authenticated, what follows is encrypted, and a tag of
//! [`TAG_LEN`] bytes ends the datagram.

use crate::virtio::VNET_HEADER_LEN;

/// The version, in the upper half of the first byte.
pub const VERSION: u8 = 1;
/// Bytes of the common header.
pub const COMMON_HEADER_LEN: usize = 12;
/// Bytes of a data datagram's header.
pub const DATA_HEADER_LEN: usize = 28;
/// Bytes of an acknowledgement without flow reports.
pub const ACK_LEN: usize = 56;
/// Bytes of a flow report.
pub const REPORT_LEN: usize = 8;
/// Flow reports in an acknowledgement, at most.
pub const MAX_REPORTS: usize = 64;
/// Bytes of a probe without padding, and of a reply.
pub const PROBE_LEN: usize = 44;
/// Bytes of a probe that stay readable when the rest is sealed.
pub const PROBE_CLEAR_LEN: usize = 20;
/// Bytes of an AEAD tag (AES-256-GCM).
pub const TAG_LEN: usize = 16;
/// Chunks of a frame, at most.
pub const MAX_CHUNKS: usize = 64;
/// Chunks of a frame with several are at least this long, so that the first one holds
/// the virtio header and the IP header.
pub const MIN_CHUNK: u16 = 64;
/// Frames of a flow that may be under way: how far ahead of the frame whose turn it is the
/// receiver keeps frames.
pub(crate) const FLOW_WINDOW: u32 = 1024;
/// Packet numbers and flow sequences begin shortly before they wrap, so that the wrap
/// is met in each tunnel's first second and not after months.
pub const FIRST_NUMBER: u64 = 0xffff_ff00;
/// See [`FIRST_NUMBER`].
pub const FIRST_SEQUENCE: u32 = 0xffff_ffc0;

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// A chunk of a frame.
    Data = 1,
    /// An acknowledgement: what has arrived.
    Ack = 2,
    /// Asks whether the path works and who the peer is.
    Probe = 3,
    /// Answers a probe.
    Reply = 4,
}

/// The first twelve bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommonHeader {
    /// What follows.
    pub kind: PacketKind,
    /// The path that the datagram travels on.
    pub path: u8,
    /// The key's id, 0 for none.
    pub key: u8,
    /// Data: the chunk's index. Ack: the path that it speaks of.
    pub extra: u8,
    /// Data, Ack: the session. Probe, Reply: upper half of the number.
    pub epoch: u32,
    /// Data: the packet number. Ack, Probe, Reply: a number of their own. Lower half.
    pub number: u32,
}

/// A data header; `common.extra` is the chunk's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// The first twelve bytes.
    pub common: CommonHeader,
    /// Sender's clock in microseconds.
    pub stamp_us: u32,
    /// Place of the frame in its flow.
    pub sequence: u32,
    /// The flow.
    pub flow: u16,
    /// Bytes of each chunk of the frame but the last.
    pub size: u16,
    /// Bytes of the frame without its virtio header.
    pub len: u16,
    /// How far back in the flow lies the oldest frame that may still come, new or retransmitted.
    /// 65,535 also stands for more.
    pub behind: u16,
}

/// What a flow report says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowReportKind {
    /// The delivered watermark: all frames before `sequence` are delivered or skipped.
    Delivered = 1,
    /// A gap in front of the guest: frame `sequence` had arrived and the vNIC had no
    /// room for it. It is to be retransmitted.
    Gap = 2,
}

/// A flow report, in an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowReport {
    /// What it says.
    pub kind: FlowReportKind,
    /// Of which flow.
    pub flow: u16,
    /// Up to, or which.
    pub sequence: u32,
}

/// An acknowledgement; `common.extra` is the path whose chunks it speaks of. Reports
/// follow, as many as the datagram has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckHeader {
    /// The first twelve bytes.
    pub common: CommonHeader,
    /// The largest packet number received, lower half.
    pub largest: u32,
    /// Stamp of the newest chunk taken.
    pub echo_us: u32,
    /// Microseconds between that chunk's arrival and this acknowledgement.
    pub delay_us: u32,
    /// Bit `n` stands for packet number `largest - n`.
    pub bits: [u64; 4],
}

/// A probe or a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeHeader {
    /// The first twelve bytes.
    pub common: CommonHeader,
    /// The sender's instance.
    pub instance: u64,
    /// The receiver's instance as the sender knows it, 0 for none.
    pub peer: u64,
    /// Probe: the sender's clock in microseconds. Reply: that of the probe.
    pub stamp_us: u32,
    /// Bytes of the probe's IP packet: what the path has let through.
    pub size: u16,
    /// Whether the sender's device takes UDP datagrams merged.
    pub merges_udp: bool,
    /// What the sender of this can hold of frames whose turn has not come.
    pub credit: Credit,
}

/// How much an endpoint can hold of frames whose turn has not come: its peer has no more
/// under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// Chunks.
    pub chunks: u32,
    /// Their bytes, in units of 1024.
    pub kib: u32,
}

impl Credit {
    /// Before the peer has granted any.
    pub(crate) const UNLIMITED: Credit = Credit {
        chunks: u32::MAX,
        kib: u32::MAX,
    };

    /// No less than a frame, whatever the peer grants: a frame would wait for ever.
    pub(crate) fn at_least_a_frame(self) -> Credit {
        Credit {
            chunks: self.chunks.max(MAX_CHUNKS as u32),
            kib: self.kib.max(65),
        }
    }

    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.kib) * 1024
    }
}

/// The bit of a probe's byte 34; the others, and byte 35, are zero.
const MERGES_UDP: u8 = 1;

/// The datagram is not of this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a datagram of this version of the tunnel")]
pub struct Malformed;

/// The clock on the wire.
pub(crate) fn stamp_us(now_ns: u64) -> u32 {
    (now_ns / 1000) as u32
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The version of the wire format that a datagram is of, if it is another than this one's.
pub(crate) fn other_version(datagram: &[u8]) -> Option<u8> {
    let bytes = datagram.first_chunk::<COMMON_HEADER_LEN>()?;
    let version = bytes[0] >> 4;
    // There was none with this number: it is another program's.
    (version != VERSION && version != 0).then_some(version)
}

impl CommonHeader {
    /// # Errors
    /// Too short, of another version or kind.
    pub fn parse(datagram: &[u8]) -> Result<CommonHeader, Malformed> {
        let bytes = datagram
            .first_chunk::<COMMON_HEADER_LEN>()
            .ok_or(Malformed)?;
        if bytes[0] >> 4 != VERSION {
            return Err(Malformed);
        }
        let kind = match bytes[0] & 15 {
            1 => PacketKind::Data,
            2 => PacketKind::Ack,
            3 => PacketKind::Probe,
            4 => PacketKind::Reply,
            _ => return Err(Malformed),
        };
        Ok(CommonHeader {
            kind,
            path: bytes[1],
            key: bytes[2],
            extra: bytes[3],
            epoch: u32_at(bytes, 4),
            number: u32_at(bytes, 8),
        })
    }

    fn write(&self, out: &mut [u8]) {
        out[0] = VERSION << 4 | self.kind as u8;
        out[1] = self.path;
        out[2] = self.key;
        out[3] = self.extra;
        out[4..8].copy_from_slice(&self.epoch.to_le_bytes());
        out[8..12].copy_from_slice(&self.number.to_le_bytes());
    }
}

impl DataHeader {
    /// Reads the header behind `common`, which was parsed from the same bytes.
    ///
    /// # Errors
    /// Too short, or fields that contradict each other.
    pub fn parse(common: CommonHeader, datagram: &[u8]) -> Result<DataHeader, Malformed> {
        let bytes = datagram.first_chunk::<DATA_HEADER_LEN>().ok_or(Malformed)?;
        let data = DataHeader {
            common,
            stamp_us: u32_at(bytes, 12),
            sequence: u32_at(bytes, 16),
            flow: u16_at(bytes, 20),
            size: u16_at(bytes, 22),
            len: u16_at(bytes, 24),
            behind: u16_at(bytes, 26),
        };
        let chunks = data.chunks();
        let many = chunks > 1 && data.size < MIN_CHUNK;
        if data.size == 0 || many || chunks > MAX_CHUNKS || data.index() >= chunks {
            return Err(Malformed);
        }
        Ok(data)
    }

    /// Bytes of the frame, virtio header included.
    pub fn frame_len(&self) -> usize {
        usize::from(self.len) + VNET_HEADER_LEN
    }

    /// Chunks of the frame.
    pub fn chunks(&self) -> usize {
        self.frame_len().div_ceil(usize::from(self.size.max(1)))
    }

    /// Which of them this is.
    pub fn index(&self) -> usize {
        usize::from(self.common.extra)
    }

    /// Bytes that this chunk must have.
    pub fn chunk_len(&self) -> usize {
        let offset = self.index() * usize::from(self.size);
        (self.frame_len() - offset).min(usize::from(self.size))
    }

    /// Makes of a chunk's header that of another chunk of its frame, sent at the same time.
    pub(crate) fn renumber(header: &mut [u8; DATA_HEADER_LEN], index: u8, number: u32) {
        header[3] = index;
        header[8..12].copy_from_slice(&number.to_le_bytes());
    }

    /// Whether `header` is what [`DataHeader::renumber`] makes of `first`, for the chunk and the
    /// number that lie `nth` behind.
    pub(crate) fn follows(
        header: &[u8; DATA_HEADER_LEN],
        first: &[u8; DATA_HEADER_LEN],
        nth: u8,
    ) -> bool {
        header[..3] == first[..3]
            && header[4..8] == first[4..8]
            && header[12..] == first[12..]
            && Some(header[3]) == first[3].checked_add(nth)
            && u32_at(header, 8) == u32_at(first, 8).wrapping_add(nth.into())
    }

    /// The header's bytes.
    pub fn to_bytes(&self) -> [u8; DATA_HEADER_LEN] {
        let mut out = [0; DATA_HEADER_LEN];
        self.common.write(&mut out);
        out[12..16].copy_from_slice(&self.stamp_us.to_le_bytes());
        out[16..20].copy_from_slice(&self.sequence.to_le_bytes());
        out[20..22].copy_from_slice(&self.flow.to_le_bytes());
        out[22..24].copy_from_slice(&self.size.to_le_bytes());
        out[24..26].copy_from_slice(&self.len.to_le_bytes());
        out[26..28].copy_from_slice(&self.behind.to_le_bytes());
        out
    }
}

impl AckHeader {
    /// Reads the acknowledgement and gives the bytes of its reports, for [`reports`].
    /// Trailing bytes that are not a report make it malformed.
    ///
    /// # Errors
    /// Too short, too long, or a bitmap without its own largest number.
    pub fn parse(common: CommonHeader, datagram: &[u8]) -> Result<(AckHeader, &[u8]), Malformed> {
        let (bytes, rest) = datagram.split_first_chunk::<ACK_LEN>().ok_or(Malformed)?;
        if rest.len() % REPORT_LEN != 0 || rest.len() > MAX_REPORTS * REPORT_LEN {
            return Err(Malformed);
        }
        let ack = AckHeader {
            common,
            largest: u32_at(bytes, 12),
            echo_us: u32_at(bytes, 16),
            delay_us: u32_at(bytes, 20),
            bits: [24, 32, 40, 48].map(|at| u64_at(bytes, at)),
        };
        if ack.bits[0] & 1 == 0 {
            return Err(Malformed);
        }
        Ok((ack, rest))
    }

    /// Appends the acknowledgement, without reports, to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + ACK_LEN, 0);
        let bytes = &mut out[start..];
        self.common.write(bytes);
        bytes[12..16].copy_from_slice(&self.largest.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.echo_us.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.delay_us.to_le_bytes());
        for (word, at) in self.bits.iter().zip([24, 32, 40, 48]) {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
    }
}

impl FlowReport {
    /// Appends the report to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.flow.to_le_bytes());
        out.extend([self.kind as u8, 0]);
        out.extend(self.sequence.to_le_bytes());
    }
}

/// The reports behind an acknowledgement; those of unknown kind are passed over.
pub fn reports(bytes: &[u8]) -> impl Iterator<Item = FlowReport> {
    bytes.chunks_exact(REPORT_LEN).filter_map(|bytes| {
        let kind = match bytes[2] {
            1 => FlowReportKind::Delivered,
            2 => FlowReportKind::Gap,
            _ => return None,
        };
        Some(FlowReport {
            kind,
            flow: u16_at(bytes, 0),
            sequence: u32_at(bytes, 4),
        })
    })
}

impl ProbeHeader {
    /// Reads a probe or a reply; what follows is padding.
    ///
    /// # Errors
    /// Too short, or without an instance.
    pub fn parse(common: CommonHeader, datagram: &[u8]) -> Result<ProbeHeader, Malformed> {
        let bytes = datagram.first_chunk::<PROBE_LEN>().ok_or(Malformed)?;
        let probe = ProbeHeader {
            common,
            instance: u64_at(bytes, 12),
            peer: u64_at(bytes, 20),
            stamp_us: u32_at(bytes, 28),
            size: u16_at(bytes, 32),
            merges_udp: bytes[34] & MERGES_UDP != 0,
            credit: Credit {
                chunks: u32_at(bytes, 36),
                kib: u32_at(bytes, 40),
            },
        };
        if probe.instance == 0 {
            return Err(Malformed);
        }
        Ok(probe)
    }

    /// The sender's instance, which stays readable in a sealed probe.
    pub(crate) fn instance_of(datagram: &[u8]) -> Result<u64, Malformed> {
        let bytes = datagram.first_chunk::<PROBE_CLEAR_LEN>().ok_or(Malformed)?;
        Ok(u64_at(bytes, COMMON_HEADER_LEN))
    }

    /// Appends the probe or reply, without padding, to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + PROBE_LEN, 0);
        let bytes = &mut out[start..];
        self.common.write(bytes);
        bytes[12..20].copy_from_slice(&self.instance.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.peer.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.stamp_us.to_le_bytes());
        bytes[32..34].copy_from_slice(&self.size.to_le_bytes());
        bytes[34] = if self.merges_udp { MERGES_UDP } else { 0 };
        bytes[36..40].copy_from_slice(&self.credit.chunks.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.credit.kib.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(kind: PacketKind) -> CommonHeader {
        CommonHeader {
            kind,
            path: 2,
            key: 3,
            extra: 4,
            epoch: 0x0807_0605,
            number: 0x0c0b_0a09,
        }
    }

    const PREFIX: [u8; 11] = [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

    #[test]
    fn data_bytes() {
        let data = DataHeader {
            common: common(PacketKind::Data),
            stamp_us: 0x100f_0e0d,
            sequence: 0x1413_1211,
            flow: 0x1615,
            size: 0x0218,
            len: 0x0a19,
            behind: 0x1c1b,
        };
        let mut expected = vec![0x11];
        expected.extend(PREFIX);
        expected.extend([13, 14, 15, 16, 17, 18, 19, 20, 0x15, 0x16]);
        expected.extend([0x18, 2, 0x19, 10, 0x1b, 0x1c]);
        assert_eq!(data.to_bytes()[..], expected);
        assert_eq!(DataHeader::parse(data.common, &expected), Ok(data));
        // 2595 bytes in chunks of 536: the last, the fifth, has 451.
        assert_eq!((data.chunks(), data.chunk_len()), (5, 451));
    }

    #[test]
    fn ack_bytes() {
        let ack = AckHeader {
            common: common(PacketKind::Ack),
            largest: 1,
            echo_us: 2,
            delay_us: 3,
            bits: [5, 6, 7, 8],
        };
        let report = FlowReport {
            kind: FlowReportKind::Gap,
            flow: 0x0201,
            sequence: 0x0605_0403,
        };
        let mut expected = vec![0x12];
        expected.extend(PREFIX);
        expected.extend([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
        (5..9).for_each(|word| expected.extend([word, 0, 0, 0, 0, 0, 0, 0]));
        expected.extend([1, 2, 2, 0, 3, 4, 5, 6]);
        let mut written = Vec::new();
        ack.write(&mut written);
        report.write(&mut written);
        assert_eq!(written, expected);
        let (read, rest) = AckHeader::parse(ack.common, &written).unwrap();
        assert_eq!((read, reports(rest).collect()), (ack, vec![report]));
    }

    #[test]
    fn probe_bytes() {
        let probe = ProbeHeader {
            common: common(PacketKind::Probe),
            instance: 1,
            peer: 2,
            stamp_us: 3,
            size: 1500,
            merges_udp: true,
            credit: Credit {
                chunks: 0x0403_0201,
                kib: 0x0807_0605,
            },
        };
        let mut expected = vec![0x13];
        expected.extend(PREFIX);
        expected.extend([1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend([3, 0, 0, 0, 0xdc, 5, 1, 0]);
        expected.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        let mut written = Vec::new();
        probe.write(&mut written);
        assert_eq!(written, expected);
        assert_eq!(ProbeHeader::parse(probe.common, &written), Ok(probe));
        // The other bits are for later versions.
        written[34] = 0xfe;
        let other = ProbeHeader::parse(probe.common, &written);
        assert_eq!(other.map(|probe| probe.merges_udp), Ok(false));
    }

    #[test]
    fn contradictions_are_refused() {
        let data = |size: u16, len: u16, index: u8| {
            let header = DataHeader {
                common: CommonHeader {
                    extra: index,
                    ..common(PacketKind::Data)
                },
                stamp_us: 0,
                sequence: 0,
                flow: 0,
                size,
                len,
                behind: 0,
            };
            DataHeader::parse(header.common, &header.to_bytes()).is_ok()
        };
        assert!(data(1500, 1490, 0) && data(1025, 65_535, 63));
        assert!(!data(0, 100, 0), "chunks of nothing");
        assert!(!data(63, 100, 0), "chunks too small for the headers");
        assert!(!data(1500, 1490, 1), "index behind the frame");
        assert!(!data(1024, 65_535, 0), "more than 64 chunks");
        assert!(CommonHeader::parse(&[0x21; 12]).is_err(), "another version");
        assert_eq!(other_version(&[0x21; 12]), Some(2));
        assert_eq!(other_version(&[0x21; 11]), None, "too short");
        assert_eq!(other_version(&[0x11; 12]), None);
        assert_eq!(other_version(&[0x01; 12]), None);
        assert!(CommonHeader::parse(&[0x15; 12]).is_err(), "unknown kind");
        assert!(
            AckHeader::parse(common(PacketKind::Ack), &[1; ACK_LEN + 3]).is_err(),
            "half a report"
        );
        assert!(AckHeader::parse(common(PacketKind::Ack), &[1; ACK_LEN + REPORT_LEN]).is_ok());
        assert!(
            AckHeader::parse(common(PacketKind::Ack), &[2; ACK_LEN]).is_err(),
            "a largest number that has not arrived"
        );
    }
}
