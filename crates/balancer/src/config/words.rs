// SPDX-License-Identifier: Apache-2.0
//! The words that a key may hold, each list in one place.

use causeway_core::control::Law;
use causeway_service::config::Words;
use causeway_service::words;

words! {
    /// What a controller takes for a real's latency.
    LatencySource, "latency", {
        /// What the server adds to the path's round trip, as the balancer measures it.
        Server = "server",
        /// From request to response, the path included, as the balancer measures it.
        Response = "response",
        /// Client latency, connection attempts included, as the reals' agents report it.
        Client = "client",
        /// What the server takes, from a request to the last byte of its response, as the reals'
        /// agents report it. It needs no timestamps, and cookies do not blur it.
        Agent = "agent",
    }
}

words! {
    /// What the end of a balancer's lease means to the others of its fleet.
    WhenAbsent, "absence", {
        /// They wait for it, and it goes on.
        Waits = "waits",
        /// It withdraws its routes, and they go on without it.
        StepsAside = "steps-aside",
    }
}

words! {
    /// What becomes of packets to a VIP's address that are for no VIP.
    Unserved, "unserved", {
        /// They are dropped.
        Drop = "drop",
        /// The kernel gets them: this host serves them itself.
        Pass = "pass",
    }
}

words! {
    /// How a new connection picks its real.
    Scheduler, "scheduler", {
        /// Weighted Maglev hashing with the configured weights.
        Maglev = "maglev",
        /// Uniform hashing; weights other than 0 count alike.
        Hash = "hash",
        /// One after another; weights other than 0 count alike.
        RoundRobin = "round-robin",
        /// One after another, each as often as its weight says.
        WeightedRoundRobin = "weighted-round-robin",
        /// Of two by chance, the one with less load for its weight.
        P2c = "p2c",
        /// The one with the least load for its weight.
        LeastLoaded = "least-loaded",
        /// Weighted round robin with weights that follow the load.
        Awrr = "awrr",
        /// In turns, each as often as its weight, which follows the measured latency.
        Latency = "latency",
    }
}

impl Scheduler {
    /// The scheduler of a word in a file. What IPVS and HAProxy call theirs is answered with the
    /// nearest one here, as `causeway import` takes it.
    pub fn of_file(word: &str) -> Result<Self, String> {
        let (whose, own) = match word {
            "rr" => ("IPVS", "round-robin"),
            "wrr" => ("IPVS", "weighted-round-robin"),
            "lc" | "wlc" | "sed" | "nq" => ("IPVS", "least-loaded"),
            "sh" | "mh" => ("IPVS", "maglev"),
            "twos" => ("IPVS", "p2c"),
            "roundrobin" | "static-rr" => ("HAProxy", "weighted-round-robin"),
            "leastconn" => ("HAProxy", "least-loaded"),
            "source" => ("HAProxy", "maglev"),
            "random" => ("HAProxy", "p2c"),
            _ => return Self::from_word(word),
        };
        Err(format!(
            "`{word}` is {whose}'s scheduler; its like here is `{own}`"
        ))
    }

    /// Whether picks depend on the reals' load.
    pub fn follows_load(self) -> bool {
        matches!(self, Self::P2c | Self::LeastLoaded | Self::Awrr)
    }

    /// Whether the kernel counts loads whatever they are made of: it picks by them itself.
    pub fn counts_load(self) -> bool {
        match self {
            Self::P2c => true,
            Self::Maglev | Self::Hash | Self::RoundRobin | Self::WeightedRoundRobin => false,
            Self::LeastLoaded | Self::Awrr | Self::Latency => false,
        }
    }

    /// Whether turns begin again with the ring.
    pub fn begins_anew(self) -> bool {
        match self {
            Self::LeastLoaded => true,
            Self::Maglev | Self::Hash | Self::RoundRobin | Self::WeightedRoundRobin => false,
            Self::P2c | Self::Awrr | Self::Latency => false,
        }
    }

    /// Whether the ring holds every real that was fit for it.
    pub fn ring_has_all(self) -> bool {
        match self {
            Self::LeastLoaded | Self::Awrr => false,
            Self::Maglev | Self::Hash | Self::RoundRobin | Self::WeightedRoundRobin => true,
            Self::P2c | Self::Latency => true,
        }
    }

    /// Whether rings are built from weights that a controller may move.
    pub fn follows_weights(self) -> bool {
        matches!(
            self,
            Self::Maglev | Self::WeightedRoundRobin | Self::Latency
        )
    }

    /// Whether a real's weight sets its share of new connections.
    pub fn has_weights(self) -> bool {
        !matches!(self, Self::Hash | Self::RoundRobin)
    }

    /// Whether another balancer, or this one without a memory, picks the same real
    /// for a flow as long as the pool is the same.
    pub fn is_hash(self) -> bool {
        matches!(self, Self::Maglev | Self::Hash)
    }
}

words! {
    /// What a real's load is.
    LoadSource, "load", {
        /// Connections open now.
        Connections = "connections",
        /// Packets per second to the real.
        Packets = "packets",
        /// Bytes per second to the real.
        Bytes = "bytes",
        /// Busy share of the server's CPUs, by its agent.
        Cpu = "cpu",
        /// Connections whose client waits for an answer, by the server's agent.
        InFlight = "in-flight",
    }
}

impl LatencySource {
    /// Whether agents report it.
    pub fn is_told(self) -> bool {
        matches!(self, Self::Client | Self::Agent)
    }
}

impl LoadSource {
    /// Whether agents report it.
    pub fn is_told(self) -> bool {
        matches!(self, Self::Cpu | Self::InFlight)
    }
}

words! {
    /// How a real's health is probed.
    HealthProbe, "probe", {
        /// By opening a connection.
        Tcp = "tcp",
        /// By asking for a page.
        Http = "http",
        /// By asking for a page within TLS.
        Https = "https",
        /// By asking the health service of gRPC.
        Grpc = "grpc",
        /// By asking it within TLS.
        Grpcs = "grpcs",
        /// By a `PING`.
        Redis = "redis",
        /// By coming in without a password.
        Postgres = "postgres",
        /// By asking for a name.
        Dns = "dns",
        /// By a handshake.
        Quic = "quic",
        /// By an echo of ICMP.
        Icmp = "icmp",
        /// By a program.
        Script = "script",
    }
}

words! {
    /// Where a health probe is sent.
    ProbeTo, "to", {
        /// To the VIP, through the data plane, as clients' packets are.
        Vip = "vip",
        /// To the real's own address, as other packets of this host.
        Real = "real",
    }
}

words! {
    /// What a DNS probe asks for.
    RecordType, "record", {
        /// An IPv4 address.
        A = "a",
        /// An IPv6 address.
        Aaaa = "aaaa",
        /// A mail server.
        Mx = "mx",
        /// The name's servers.
        Ns = "ns",
        /// The zone's head.
        Soa = "soa",
        /// A service's place.
        Srv = "srv",
        /// Text.
        Txt = "txt",
    }
}

impl RecordType {
    /// Its number (RFC 1035, section 3.2.2; RFC 3596; RFC 2782).
    pub fn code(self) -> u16 {
        match self {
            Self::A => 1,
            Self::Ns => 2,
            Self::Soa => 6,
            Self::Mx => 15,
            Self::Txt => 16,
            Self::Aaaa => 28,
            Self::Srv => 33,
        }
    }
}

/// Response codes by their names (RFC 1035, section 4.1.1).
pub(super) const RCODES: [(&str, u8); 6] = [
    ("noerror", 0),
    ("formerr", 1),
    ("servfail", 2),
    ("nxdomain", 3),
    ("notimp", 4),
    ("refused", 5),
];

words! {
    /// Whether a client's connections go to one real.
    Affinity, "affinity", {
        /// Each goes where the scheduler says.
        None = "none",
        /// They do, by the client's address, as long as the pool stays.
        Client = "client",
    }
}

words! {
    /// When a real gets new connections.
    RealRole, "role", {
        /// Always.
        Primary = "primary",
        /// When no primary one is healthy.
        Backup = "backup",
        /// When none at all is; it is not probed.
        Sorry = "sorry",
    }
}

impl RealRole {
    /// In the order in which they take over.
    pub(crate) const ORDER: [Self; 3] = [Self::Primary, Self::Backup, Self::Sorry];
}

words! {
    /// What becomes of announced routes when the process stops.
    OnStop, "stop", {
        /// They are withdrawn.
        Withdraw = "withdraw",
        /// They stay, as the data plane does.
        Keep = "keep",
    }
}

words! {
    /// How packets reach the real.
    ForwardingMode, "forwarding", {
        /// Encapsulated in an outer IP header.
        Ipip = "ipip",
        /// Encapsulated in UDP behind an outer IP header (GUE).
        Gue = "gue",
        /// By rewriting the Ethernet destination.
        L2 = "l2",
    }
}

words! {
    /// What becomes of IP fragments to a VIP.
    Fragments, "fragments policy", {
        /// Dropped and counted.
        Drop = "drop",
        /// Sent to the real of the client's address.
        Forward = "forward",
    }
}

words! {
    /// What becomes of clients whose own reals are all gone.
    Fallback, "fallback", {
        /// They go to the VIP's other reals.
        Pool = "pool",
        /// Their new flows are dropped.
        Drop = "drop",
    }
}

words! {
    /// How a server's id is hidden in QUIC connection ids.
    QuicAlgorithm, "algorithm of connection ids", {
        /// Not at all.
        Plain = "plain",
        /// Causeway's: four passes with SipHash.
        Siphash = "siphash",
        /// The draft's.
        Aes = "aes",
    }
}

words! {
    /// Whether GUE's UDP checksum is filled in.
    GueChecksum, "gue_checksum", {
        /// Over IPv6 alone.
        Auto = "auto",
        /// Never.
        Zero = "zero",
        /// Always.
        Full = "full",
    }
}

words! {
    /// What the controller does for a VIP.
    Control, "control", {
        /// Nothing.
        Off = "off",
        /// Computes and shows weights, does not set them.
        Observe = "observe",
        /// Moves weights by the watermark rule, as the paper has it.
        WatermarkPaper = "watermark-paper",
        /// Moves weights by the watermark rule with Causeway's additions.
        Watermark = "watermark",
        /// Moves weights in proportion to what each real can do.
        Equalise = "equalise",
    }
}

impl Control {
    /// The law that moves the weights, if one does.
    pub fn law(self) -> Option<Law> {
        match self {
            Self::Off | Self::Observe => None,
            Self::WatermarkPaper => Some(Law::WatermarkPaper),
            Self::Watermark => Some(Law::Watermark),
            Self::Equalise => Some(Law::Equalise),
        }
    }

    /// What has the controller act by a law.
    pub fn by(law: Law) -> Self {
        match law {
            Law::WatermarkPaper => Self::WatermarkPaper,
            Law::Watermark => Self::Watermark,
            Law::Equalise => Self::Equalise,
        }
    }
}

/// The laws by their words, for keys that name one without acting.
pub(super) const LAWS: [(&str, Law); 3] = [
    ("watermark-paper", Law::WatermarkPaper),
    ("watermark", Law::Watermark),
    ("equalise", Law::Equalise),
];
