// SPDX-License-Identifier: Apache-2.0
//! What every latency number means: the logic behind `causeway rtt`, without
//! clocks and sockets.
//!
//! - [`RttLatencies`]: a histogram of constant size, with exact ends and mean;
//!   [`decades`] prints it as netperf does, ten buckets a decade.
//! - [`Pace`]: when the next request is due, closed loop or open.
//! - [`Selector`]: netperf's output selectors.
//! - [`RttObserver`]: what can be seen from packets at one interface: sampled
//!   pairs, handshake, TCP timestamps, and Causeway's own estimate.
//! - [`explain`]: verdicts for people; [`study`]: what shape each curve should
//!   have, and whether it has.

mod decades;
pub mod echo;
pub mod explain;
mod latencies;
mod observe;
mod pace;
mod pairs;
mod selectors;

pub use decades::{DECADES, Decade, decades};
pub use latencies::{LatencySummary, RttLatencies};
pub use observe::{Flow, RttObserver, Seen, Value};
pub use pace::{Due, Limit, Pace, Pacing};
pub use pairs::{Pairs, bucket_ms};
pub use selectors::{Figures, Selector, UnknownSelector};

/// One way of measuring latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RttMethod {
    /// From just before a request is sent, or its own connection is opened, to just after the
    /// last byte of its response is received: what the application waits for.
    Rr,
    /// The part of [`RttMethod::Rr`] until the request's own connection is open.
    Connect,
    /// The kernel's own round-trip time of the connection (tcp_info).
    Tcp,
    /// Data and ACK both met by a sampler of 1 in N packets.
    Sampled,
    /// ICMP echo.
    Ping,
    /// SYN to SYN+ACK.
    Synack,
    /// TCP timestamp to its echo.
    Timestamps,
    /// Causeway's estimate from the packets of one direction.
    Causal,
}

impl RttMethod {
    /// All of them, in the order of tables.
    pub const ALL: [Self; 8] = [
        Self::Rr,
        Self::Connect,
        Self::Tcp,
        Self::Sampled,
        Self::Ping,
        Self::Synack,
        Self::Timestamps,
        Self::Causal,
    ];

    /// The word on the command line and in results.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rr => "rr",
            Self::Connect => "connect",
            Self::Tcp => "tcp",
            Self::Sampled => "sampled",
            Self::Ping => "ping",
            Self::Synack => "synack",
            Self::Timestamps => "timestamps",
            Self::Causal => "causal",
        }
    }

    /// What it times, for people.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Rr => {
                "send() of a request (tcp-crr: connect()) to recv() of the response's last byte"
            }
            Self::Connect => "connect(): SYN to SYN+ACK, and this process awake; a part of rr",
            Self::Tcp => {
                "segment sent to ACK received, smoothed (tcp_info); the ACK may be delayed"
            }
            Self::Sampled => "data segment to its ACK, where 1-in-N sampling met both",
            Self::Ping => "ICMP echo: no application, no ACK timer",
            Self::Synack => "SYN to SYN+ACK: the kernels alone",
            Self::Timestamps => "TCP timestamp to its echo, as pping",
            Self::Causal => "Causeway's estimate from the requests' direction alone",
        }
    }
}

impl std::fmt::Display for RttMethod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}
