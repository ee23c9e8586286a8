// SPDX-License-Identifier: Apache-2.0
//! netperf's output selectors: the words of its omni tests, with its headings.
//! Scripts that read netperf's `-o` and `-k` read these.

use std::str::FromStr;

use thiserror::Error;

use super::LatencySummary;

/// What the selectors choose from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// `rr`, all streams together; zero where nothing was measured.
    pub latency: LatencySummary,
    /// Time that data flowed.
    pub elapsed_s: f64,
    /// `TCP` or `UDP`.
    pub protocol: &'static str,
    /// `-B`.
    pub brand: String,
    /// The command line.
    pub command_line: String,
    /// Bytes of a request.
    pub request_bytes: u32,
    /// Bytes of a response.
    pub response_bytes: u32,
    /// Requests between two waits.
    pub burst: u32,
    /// The wait between bursts, microseconds.
    pub wait_us: u64,
    /// Connections.
    pub streams: u32,
    /// Source and destination.
    pub source: String,
    /// See `source`.
    pub destination: String,
    /// The server's port.
    pub port: u16,
    /// Segments retransmitted by this end, by the other.
    pub local_retrans: Option<u64>,
    /// See `local_retrans`.
    pub remote_retrans: Option<u64>,
    /// Name of the congestion control of this end.
    pub congestion_control: String,
    /// The largest segment, bytes.
    pub mss: Option<u32>,
}

impl Figures {
    /// Transactions per second.
    pub fn rate(&self) -> f64 {
        match self.elapsed_s > 0.0 {
            true => self.latency.count as f64 / self.elapsed_s,
            false => 0.0,
        }
    }

    /// Mean time of a transaction from the rate alone, microseconds: the wait
    /// between transactions is part of it.
    fn rt_latency_us(&self) -> f64 {
        match self.latency.count {
            0 => 0.0,
            count => self.elapsed_s * 1e6 * f64::from(self.streams) / count as f64,
        }
    }
}

/// A word that is not an output selector.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not an output selector; choose from {names}, or all", names = Selector::names())]
pub struct UnknownSelector(pub String);

macro_rules! selectors {
    ($($variant:ident $name:literal $heading:literal $value:expr,)*) => {
        /// An output selector.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Selector {
            $(#[doc = $heading] $variant,)*
        }

        impl Selector {
            /// All of them, in the order of `-k all`.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The word.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// The heading of its column.
            pub fn heading(self) -> &'static str {
                match self {
                    $(Self::$variant => $heading,)*
                }
            }

            /// Its value as text.
            pub fn value(self, figures: &Figures) -> String {
                match self {
                    $(Self::$variant => {
                        let value: fn(&Figures) -> String = $value;
                        value(figures)
                    })*
                }
            }
        }
    };
}

/// Whole microseconds, as netperf prints them.
fn us(ns: u64) -> String {
    (ns / 1_000).to_string()
}

fn us2(ns: f64) -> String {
    format!("{:.2}", ns / 1e3)
}

fn or_minus_one(value: Option<u64>) -> String {
    value.map_or_else(|| "-1".to_owned(), |value| value.to_string())
}

selectors! {
    ElapsedTime "ELAPSED_TIME" "Elapsed Time (sec)" |f| format!("{:.2}", f.elapsed_s),
    Throughput "THROUGHPUT" "Throughput" |f| format!("{:.2}", f.rate()),
    ThroughputUnits "THROUGHPUT_UNITS" "Throughput Units" |_| "Trans/s".to_owned(),
    TransactionRate "TRANSACTION_RATE" "Transaction Rate Tran/s" |f| format!("{:.3}", f.rate()),
    RtLatency "RT_LATENCY" "Round Trip Latency usec/tran" |f| format!("{:.3}", f.rt_latency_us()),
    MinLatency "MIN_LATENCY" "Minimum Latency Microseconds" |f| us(f.latency.min_ns),
    MaxLatency "MAX_LATENCY" "Maximum Latency Microseconds" |f| us(f.latency.max_ns),
    P50Latency "P50_LATENCY" "50th Percentile Latency Microseconds" |f| us(f.latency.p50_ns),
    P90Latency "P90_LATENCY" "90th Percentile Latency Microseconds" |f| us(f.latency.p90_ns),
    P99Latency "P99_LATENCY" "99th Percentile Latency Microseconds" |f| us(f.latency.p99_ns),
    MeanLatency "MEAN_LATENCY" "Mean Latency Microseconds" |f| us2(f.latency.mean_ns),
    StddevLatency "STDDEV_LATENCY" "Stddev Latency Microseconds" |f| us2(f.latency.stddev_ns),
    Protocol "PROTOCOL" "Protocol" |f| f.protocol.to_owned(),
    RequestSize "REQUEST_SIZE" "Request Size Bytes" |f| f.request_bytes.to_string(),
    ResponseSize "RESPONSE_SIZE" "Response Size Bytes" |f| f.response_bytes.to_string(),
    LocalIntervalUsecs "LOCAL_INTERVAL_USECS" "Local Interval Usecs" |f| f.wait_us.to_string(),
    LocalIntervalBurst "LOCAL_INTERVAL_BURST" "Local Interval Burst" |f| f.burst.to_string(),
    SourceAddr "SOURCE_ADDR" "Source Address" |f| f.source.clone(),
    DestAddr "DEST_ADDR" "Destination Address" |f| f.destination.clone(),
    DestPort "DEST_PORT" "Destination Port" |f| f.port.to_string(),
    LocalCongestion "LOCAL_CONG_CONTROL" "Local Congestion Control Algorithm" |f| f.congestion_control.clone(),
    LocalRetrans "LOCAL_TRANSPORT_RETRANS" "Local Transport Retransmissions" |f| or_minus_one(f.local_retrans),
    RemoteRetrans "REMOTE_TRANSPORT_RETRANS" "Remote Transport Retransmissions" |f| or_minus_one(f.remote_retrans),
    TransportMss "TRANSPORT_MSS" "Transport MSS bytes" |f| or_minus_one(f.mss.map(u64::from)),
    ResultBrand "RESULT_BRAND" "Result Tag" |f| f.brand.clone(),
    CommandLine "COMMAND_LINE" "Command Line" |f| f.command_line.clone(),
}

impl Selector {
    /// The words, separated by commas.
    fn names() -> String {
        let names: Vec<_> = Self::ALL.iter().map(|s| s.name()).collect();
        names.join(", ")
    }

    /// Reads a list as netperf takes it: words separated by commas, in any case;
    /// `all` stands for all.
    ///
    /// # Errors
    /// The first word that is not a selector.
    pub fn list(text: &str) -> Result<Vec<Self>, UnknownSelector> {
        if text.trim().eq_ignore_ascii_case("all") {
            return Ok(Self::ALL.to_vec());
        }
        text.split(',').map(|word| word.trim().parse()).collect()
    }
}

impl FromStr for Selector {
    type Err = UnknownSelector;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL
            .iter()
            .find(|s| s.name().eq_ignore_ascii_case(word));
        found
            .copied()
            .ok_or_else(|| UnknownSelector(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_write_ups_list_is_read_and_printed() {
        // The command line of "A Brief Look at Round Trip Time", section Setup.
        let text = "result_brand,MIN_LATENCY,MEAN_LATENCY,P50_LATENCY,P90_LATENCY,P99_LATENCY";
        let figures = Figures {
            latency: LatencySummary {
                count: 1000,
                min_ns: 60_200,
                mean_ns: 101_420.0,
                p50_ns: 95_900,
                p90_ns: 133_000,
                p99_ns: 197_000,
                max_ns: 1_000_000,
                stddev_ns: 22_500.0,
            },
            elapsed_s: 0.5,
            streams: 1,
            brand: "1670259360,-1".into(),
            ..Figures::default()
        };
        let list = Selector::list(text).unwrap();
        let values: Vec<_> = list.iter().map(|s| s.value(&figures)).collect();
        assert_eq!(
            values,
            ["1670259360,-1", "60", "101.42", "95", "133", "197"]
        );
        assert_eq!(Selector::TransactionRate.value(&figures), "2000.000");
        assert_eq!(Selector::RtLatency.value(&figures), "500.000");
        assert_eq!(Selector::LocalRetrans.value(&figures), "-1");
    }

    #[test]
    fn names_are_unique_and_unknown_ones_are_named() {
        for (i, selector) in Selector::ALL.iter().enumerate() {
            assert!(
                Selector::ALL[..i]
                    .iter()
                    .all(|s| s.name() != selector.name())
            );
            assert_eq!(selector.name().parse(), Ok(*selector));
        }
        assert_eq!(Selector::list("all").unwrap().len(), Selector::ALL.len());
        let error = Selector::list("MIN_LATENCY,P95_LATENCY").unwrap_err();
        let said = error.to_string();
        assert!(
            said.starts_with("\"P95_LATENCY\" is not an output selector; choose from ELAPSED_TIME")
        );
    }

    #[test]
    fn nothing_measured_divides_by_nothing() {
        for selector in Selector::ALL {
            assert!(!selector.value(&Figures::default()).contains("NaN"));
        }
    }
}
