// SPDX-License-Identifier: Apache-2.0
//! The words of the command line: what may be chosen.

use causeway_dataplane::Attach;
use clap::ValueEnum;

/// What an estimate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Per {
    /// Client address and port, server address and port.
    Flow,
    /// Server address and port.
    Server,
    /// Network of the clients (--prefix-len), whatever the server.
    Prefix,
    /// Address of the service, over all its ports.
    Vip,
}

/// Every way of measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EstimatorName {
    /// Response latency; follows each outstanding request (Causeway's own). Sees: client to server
    WindowChain,
    /// Response latency with one request outstanding: time between batches (PIRATE, Algorithm 1). Sees: client to server
    FixedGap,
    /// Response latency, from the modes of the gaps between packets (PIRATE, Algorithm 2). Sees: client to server
    Modes,
    /// Network round trip at a TCP connection's opening: SYN to the client's next packet. Sees: client to server
    Handshake,
    /// Response latency without the client's own pauses, to about 1 ms, by the server's TCP timestamps as clients echo them. Sees: client to server
    TsEcho,
    /// QUIC round trip with the application's pauses, by the spin bit. Sees: client to server
    Spin,
    /// TCP round trip from here to the server and back, data to its ACK: with delayed ACKs, or the service time where the ACK rides on the response. Sees: both directions
    SeqAck,
    /// The same from here to the client and back. Sees: both directions
    SeqAckClient,
    /// TCP round trip from here to the server and back by timestamps, as pping does. Sees: both directions
    Timestamps,
    /// The same from here to the client and back. Sees: both directions
    TimestampsClient,
    /// As seq-ack with one packet in --sample-one-in used in each direction, as clouds' flow metrics do. Sees: both directions
    Sampled,
    /// As seq-ack-client, sampled so. Sees: both directions
    SampledClient,
    /// All of them.
    All,
}

/// Which mode separates batches of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IbgName {
    /// The one that holds the most time.
    MostTime,
    /// The longest one, as in the paper.
    Largest,
}

/// How much of a packet to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HeadersName {
    /// Acknowledgements and timestamps of TCP too.
    Clear,
    /// Sizes and times alone, as for IPsec or WireGuard.
    Opaque,
}

/// Where the meter runs in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AttachName {
    /// As XDP, or at TC ingress where another XDP program is on the interface.
    Auto,
    /// As XDP or not at all.
    Xdp,
    /// At TC ingress, behind XDP and offloads.
    Tc,
}

impl From<AttachName> for Attach {
    fn from(name: AttachName) -> Self {
        match name {
            AttachName::Auto => Self::Auto,
            AttachName::Xdp => Self::Xdp,
            AttachName::Tc => Self::Tc,
        }
    }
}

/// How results look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// One line for each flow or group, over the whole input.
    Table,
    /// One line for each epoch, with a header line.
    Csv,
    /// One JSON object per line for each epoch.
    Json,
    /// An HdrHistogram interval log (V2, compressed; values in ns): an interval for each epoch, a tag for each flow or group.
    Hdr,
    /// One row for each epoch, columns as in CSV; to a file (--out), in builds with the feature `parquet`.
    Parquet,
    /// A report with plots, one self-contained page, over the whole input.
    Html,
}

impl Format {
    /// Whether results are rows, one for each epoch; else they come at the end.
    pub(crate) fn is_rows(self) -> bool {
        !matches!(self, Self::Table | Self::Html)
    }
}
