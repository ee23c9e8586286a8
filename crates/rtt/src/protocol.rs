// SPDX-License-Identifier: Apache-2.0
//! What client and server of `causeway rtt` say to each other.
//!
//! One TCP port. A connection begins with one line: `{...}` opens a session (the
//! control connection), `rr TOKEN` joins one as a stream of requests. The server
//! answers with one line each time. `crr TOKEN` stands before a single request, and the
//! response is all that follows. A session ends with its control connection.

use std::io::{self, ErrorKind, Read, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use causeway_core::rtt::explain::Retransmits;
use causeway_core::rtt::{LatencySummary, RttMethod};
use causeway_netio::rtt::{TcpInfo, retransmits};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2DeflateSerializer};
use serde::{Deserialize, Serialize};

/// The protocol's version: both ends must have the same.
pub(crate) const VERSION: u32 = 1;
/// Where the server listens by default.
pub const PORT: u16 = 9472;
/// The longest line that either end reads: a report with its histograms.
pub(crate) const LINE_MAX: usize = 1 << 20;
/// The longest line that a server reads.
pub(crate) const REQUEST_LINE_MAX: usize = 1 << 10;
/// Bytes of the line before a request that has a connection of its own.
pub(crate) const CRR_LINE: u64 = 21;
/// Bytes of the largest request and response.
pub(crate) const SIZE_MAX: u32 = 1 << 20;

/// First line of a control connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// [`VERSION`].
    pub causeway_rtt: u32,
    /// Bytes of a request.
    pub request: u32,
    /// Bytes of a response.
    pub response: u32,
    /// The client's UDP ports, one for each stream; empty for TCP.
    #[serde(default)]
    pub udp_ports: Vec<u16>,
}

/// The server's answer to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// What TCP streams begin with.
    #[serde(default)]
    pub token: String,
    /// The server's UDP ports, in the order of the client's.
    #[serde(default)]
    pub udp_ports: Vec<u16>,
    /// The server's kernel.
    #[serde(default)]
    pub kernel: String,
    /// 1 in this many packets is sampled there; 0: none.
    #[serde(default)]
    pub sample: u32,
    /// Whether it knows connections of a single request (`crr TOKEN`).
    #[serde(default)]
    pub crr: bool,
    /// Why not; then all else is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Later lines of a control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ask {
    /// What the server has measured so far.
    Report,
}

/// The server's side of the measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerReport {
    /// Transactions answered.
    pub transactions: u64,
    /// The kernel's view of its streams.
    pub tcp: Option<TcpFigures>,
    /// Time from a request's last byte received to the response's send(): median,
    /// by the server's clock.
    pub app_p50_ns: Option<u64>,
    /// By method, what the server measured itself.
    pub methods: Vec<MethodFigures>,
    /// The values again, as HdrHistograms (V2 deflated, base64), for logs.
    pub histograms: Vec<(MethodWord, String)>,
}

/// A method by its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodWord(pub RttMethod);

impl Serialize for MethodWord {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.as_str())
    }
}

impl<'de> Deserialize<'de> for MethodWord {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        let found = RttMethod::ALL.into_iter().find(|m| m.as_str() == word);
        found
            .map(MethodWord)
            .ok_or_else(|| serde::de::Error::custom(format!("unknown method {word:?}")))
    }
}

/// One method's figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MethodFigures {
    /// Which.
    pub method: MethodWord,
    /// How many values.
    pub count: u64,
    /// The least, microseconds; so are the others.
    pub min_us: f64,
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// The largest.
    pub max_us: f64,
    /// Standard deviation.
    pub stddev_us: f64,
}

impl MethodFigures {
    /// The figures of a summary.
    pub fn new(method: RttMethod, summary: &LatencySummary) -> Self {
        let us = |ns: u64| ns as f64 / 1e3;
        Self {
            method: MethodWord(method),
            count: summary.count,
            min_us: us(summary.min_ns),
            mean_us: summary.mean_ns / 1e3,
            p50_us: us(summary.p50_ns),
            p90_us: us(summary.p90_ns),
            p99_us: us(summary.p99_ns),
            max_us: us(summary.max_ns),
            stddev_us: summary.stddev_ns / 1e3,
        }
    }

    /// Back to nanoseconds.
    pub fn summary(&self) -> LatencySummary {
        let ns = |us: f64| (us * 1e3).round() as u64;
        LatencySummary {
            count: self.count,
            min_ns: ns(self.min_us),
            mean_ns: self.mean_us * 1e3,
            p50_ns: ns(self.p50_us),
            p90_ns: ns(self.p90_us),
            p99_ns: ns(self.p99_us),
            max_ns: ns(self.max_us),
            stddev_ns: self.stddev_us * 1e3,
        }
    }
}

/// The kernel's view of all streams of one end. Names are those of `ss -i`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TcpFigures {
    /// How many they are.
    #[serde(default = "one")]
    pub streams: u32,
    /// Their state at the end of the run: of each figure the least.
    #[serde(flatten)]
    pub least: TcpState,
    /// Of each figure the largest; `None` for one stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub largest: Option<TcpState>,
    /// Least round-trip time of any stream, microseconds; 0: not known.
    pub minrtt_us: f64,
    /// Segments with data sent, all streams.
    pub data_segs_out: u64,
    /// Of these the retransmitted ones.
    pub retrans: u64,
    /// Segments with data that arrived at the other end.
    pub delivered: u64,
    /// Bytes retransmitted.
    pub bytes_retrans: u64,
    /// Duplicates that the other end reported (spurious retransmissions).
    pub dsack_dups: u64,
    /// How segments came to be sent again; `None` where not these streams alone have done so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retransmits: Option<Retransmits>,
}

/// What the kernel has of each stream, and no sum says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpState {
    /// Smoothed round-trip time, microseconds.
    pub rtt_us: u32,
    /// Its mean deviation.
    pub rttvar_us: u32,
    /// Retransmission timeout, microseconds.
    pub rto_us: u32,
    /// Delayed-ACK timeout, microseconds.
    pub ato_us: u32,
    /// Largest segment, bytes.
    pub mss: u32,
    /// Congestion window, segments.
    pub cwnd: u32,
}

impl TcpState {
    fn by(self, other: Self, of: fn(u32, u32) -> u32) -> Self {
        Self {
            rtt_us: of(self.rtt_us, other.rtt_us),
            rttvar_us: of(self.rttvar_us, other.rttvar_us),
            rto_us: of(self.rto_us, other.rto_us),
            ato_us: of(self.ato_us, other.ato_us),
            mss: of(self.mss, other.mss),
            cwnd: of(self.cwnd, other.cwnd),
        }
    }
}

fn one() -> u32 {
    1
}

impl TcpFigures {
    /// Those of one stream.
    pub(crate) fn of(stream: TcpInfo) -> Self {
        Self {
            streams: 1,
            least: TcpState {
                rtt_us: stream.rtt_us,
                rttvar_us: stream.rttvar_us,
                rto_us: stream.rto_us,
                ato_us: stream.ato_us,
                mss: stream.snd_mss,
                cwnd: stream.snd_cwnd,
            },
            largest: None,
            minrtt_us: stream.min_rtt_ns as f64 / 1e3,
            data_segs_out: stream.data_segs_out.into(),
            retrans: stream.total_retrans.into(),
            delivered: stream.delivered.into(),
            bytes_retrans: stream.bytes_retrans,
            dsack_dups: stream.dsack_dups.into(),
            retransmits: None,
        }
    }

    /// All of them together; `None` without any.
    pub(crate) fn sum(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        all.into_iter().reduce(Self::and)
    }

    /// Both together.
    fn and(self, other: Self) -> Self {
        let minrtt_us = match (self.minrtt_us, other.minrtt_us) {
            (known, 0.0) | (0.0, known) => known,
            (a, b) => a.min(b),
        };
        let largest = [&self, &other].map(|of| of.largest.unwrap_or(of.least));
        Self {
            streams: self.streams + other.streams,
            least: self.least.by(other.least, u32::min),
            largest: Some(largest[0].by(largest[1], u32::max)),
            minrtt_us,
            data_segs_out: self.data_segs_out + other.data_segs_out,
            retrans: self.retrans + other.retrans,
            delivered: self.delivered + other.delivered,
            bytes_retrans: self.bytes_retrans + other.bytes_retrans,
            dsack_dups: self.dsack_dups + other.dsack_dups,
            retransmits: None,
        }
    }

    /// With what the host has counted since `before`, if that was these streams alone.
    pub(crate) fn repaired(mut self, before: Option<Retransmits>) -> Self {
        let counted = before.and_then(|before| Some(retransmits().ok()?.since(&before)));
        self.retransmits = counted.filter(|counted| counted.retrans_segs == self.retrans);
        self
    }
}

/// A histogram as text.
pub(crate) fn encode(histogram: &Histogram<u64>) -> Option<String> {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new()
        .serialize(histogram, &mut bytes)
        .ok()?;
    Some(STANDARD.encode(bytes))
}

/// The histogram of such a text; `None` where it is none.
pub(crate) fn decode(text: &str) -> Option<Histogram<u64>> {
    let bytes = STANDARD.decode(text).ok()?;
    Deserializer::new().deserialize(&mut &bytes[..]).ok()
}

/// Reads a line of at most `max` bytes, byte by byte: what follows it may belong to
/// another reader. Without its end; `None` where the peer closed before it began.
pub(crate) fn read_line(from: &mut impl Read, max: usize) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        match from.read(&mut byte) {
            Ok(0) if line.is_empty() => return Ok(None),
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) if byte[0] == b'\n' => break,
            Ok(_) if line.len() >= max => {
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    format!("a line of more than {max} bytes"),
                ));
            }
            Ok(_) => line.push(byte[0]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    String::from_utf8(line)
        .map(Some)
        .map_err(|_| io::Error::new(ErrorKind::InvalidData, "a line that is not text"))
}

/// Writes a message as one line.
pub(crate) fn write_line(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_string(message)?;
    line.push('\n');
    to.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use causeway_core::rtt::RttLatencies;

    use super::*;

    #[test]
    fn lines_end_where_they_end_and_have_a_bound() {
        let mut bytes = &b"one\ntwo"[..];
        assert_eq!(read_line(&mut bytes, 10).unwrap().as_deref(), Some("one"));
        assert!(read_line(&mut bytes, 10).is_err(), "cut off");
        assert_eq!(read_line(&mut &b""[..], 10).unwrap(), None);
        assert!(read_line(&mut &b"12345678901\n"[..], 10).is_err());
        assert!(read_line(&mut &b"\xff\xfe\n"[..], 10).is_err());
    }

    #[test]
    fn histograms_travel() {
        let mut latencies = RttLatencies::new();
        (1..1000).for_each(|i| latencies.record(i * 1_700));
        let text = encode(latencies.histogram()).unwrap();
        assert!(text.len() < LINE_MAX / 8, "{}", text.len());
        assert_eq!(&decode(&text).unwrap(), latencies.histogram());
        assert!(decode("AAAA").is_none() && decode("!").is_none());
    }

    #[test]
    fn figures_travel_without_loss() {
        let mut latencies = RttLatencies::new();
        (1..100).for_each(|i| latencies.record(i * 12_345));
        let summary = latencies.summary().unwrap();
        let measured = MethodFigures::new(RttMethod::Rr, &summary);
        let text = serde_json::to_string(&measured).unwrap();
        let back: MethodFigures = serde_json::from_str(&text).unwrap();
        assert_eq!(back, measured);
        assert_eq!(back.summary().p99_ns, summary.p99_ns);
    }
}
