// SPDX-License-Identifier: Apache-2.0
//! The verdicts, as words for programs and sentences for people.

use super::ack::Ack;

/// Which end acknowledges late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Ours.
    Client,
    /// The other.
    Server,
}

/// Where an application's time was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// After it has read a request, by its own clock.
    Working,
    /// Before it reads a request: the rest of the response time, which neither the
    /// network nor the application's own clock accounts for.
    Unread,
    /// Somewhere: the response time less the network's.
    Somewhere,
}

/// How losses were repaired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// By tail loss probes, or by what they made known.
    pub probes: u64,
    /// Retransmission timeouts that ended.
    pub timeouts: u64,
    /// Segments of fast retransmit.
    pub fast: u64,
}

/// Something that the numbers show.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Finding {
    /// ACKs wait: for data to ride on, or for the stand-alone ACK timer.
    DelayedAck {
        /// The side that waits.
        by: End,
        /// The round-trip time that the other end's kernel reports.
        tcp_ns: u64,
        /// What for.
        ack: Ack,
    },
    /// Requests leave in pieces, and the last waits for the ACK of those before.
    Nagle {
        /// How long.
        held_ns: u64,
        /// Segments sent.
        segments: u64,
        /// Segments that would have done.
        needed: u64,
    },
    /// The server's application takes its time.
    SlowApplication {
        /// Median.
        app_ns: u64,
        /// Where.
        taken: Taken,
    },
    /// For a while nothing came through.
    Outage {
        /// How long, by echoes.
        ns: u64,
        /// Echo requests without a reply.
        lost: u64,
        /// The slowest request.
        rr_max_ns: u64,
    },
    /// Segments were lost and retransmitted.
    Loss {
        /// How many were retransmitted.
        retransmitted: u64,
        /// Of how many.
        segments: u64,
        /// The slowest request.
        rr_max_ns: u64,
        /// The kernel's round-trip time, which does not see it.
        tcp_ns: u64,
        /// How, where the kernels say it.
        repaired: Option<Repaired>,
    },
    /// The last segments of requests or responses were lost, and tail loss probes repaired it.
    TailLoss {
        /// How losses were repaired.
        repaired: Repaired,
        /// The slowest request.
        rr_max_ns: u64,
        /// What it took beyond the median.
        cost_ns: u64,
    },
    /// ICMP is limited: its loss is not the path's.
    IcmpLimited {
        /// Echo requests without a reply.
        lost: u64,
        /// Of how many.
        sent: u64,
        /// Segments of TCP that the same path carried.
        segments: u64,
        /// How many of them were retransmitted.
        retransmitted: u64,
    },
    /// A queue fills.
    Bufferbloat {
        /// The least round-trip time seen.
        empty_ns: u64,
        /// With the queue as full as it often is.
        full_ns: u64,
    },
    /// Echo requests are lost, and TCP is too quiet to say whether it is the path.
    PingLoss {
        /// Echo requests without a reply.
        lost: u64,
        /// Of how many.
        sent: u64,
    },
    /// Requests are slower than ping and application together, and TCP has never been
    /// quicker: TCP takes another way, or something between holds it.
    OtherPath {
        /// TCP's least round-trip time.
        tcp_min_ns: u64,
        /// The median echo.
        ping_ns: u64,
    },
    /// Nothing wrong.
    Fine,
}

impl Finding {
    /// One word for programs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::DelayedAck { .. } => "delayed-ack",
            Self::Nagle { .. } => "nagle",
            Self::SlowApplication { .. } => "slow-application",
            Self::Outage { .. } => "outage",
            Self::Loss { .. } => "loss",
            Self::TailLoss { .. } => "tail-loss-probe",
            Self::IcmpLimited { .. } => "icmp-rate-limit",
            Self::Bufferbloat { .. } => "bufferbloat",
            Self::PingLoss { .. } => "ping-loss",
            Self::OtherPath { .. } => "other-path",
            Self::Fine => "network-fine",
        }
    }

    /// Whether the network itself is at fault.
    pub fn blames_network(&self) -> bool {
        matches!(
            self,
            Self::Outage { .. }
                | Self::Loss { .. }
                | Self::TailLoss { .. }
                | Self::Bufferbloat { .. }
                | Self::PingLoss { .. }
                | Self::OtherPath { .. }
        )
    }

    /// One sentence for people.
    pub fn sentence(&self) -> String {
        match *self {
            Self::DelayedAck { by, tcp_ns, ack } => delayed_ack(by, tcp_ns, ack),
            Self::Nagle {
                held_ns,
                segments,
                needed,
            } => format!(
                "Requests wait {} for that ACK: they left in {segments} segments where {needed} would do, and the rest of each waits until the first is acknowledged (Nagle's algorithm). Write a request at once, or set TCP_NODELAY.",
                time(held_ns)
            ),
            Self::SlowApplication { app_ns, taken } => slow_application(app_ns, taken),
            Self::Outage {
                ns,
                lost,
                rr_max_ns,
            } => format!(
                "For {} nothing came through: {lost} echoes were lost, and the slowest request took {}. Look for a link that was down, a route that changed or a failover.",
                time(ns),
                time(rr_max_ns)
            ),
            Self::Loss {
                retransmitted,
                segments,
                rr_max_ns,
                tcp_ns,
                repaired,
            } => format!(
                "Packets are lost: {retransmitted} of {segments} segments were sent again{}, and the slowest request took {}; TCP's RTT of {} does not show it, for it leaves retransmitted segments out.",
                repaired.map_or_else(String::new, |of| format!(
                    " (tail loss probes: {}, retransmission timeouts of 200 ms and more: {}, fast retransmit: {})",
                    of.probes, of.timeouts, of.fast
                )),
                time(rr_max_ns),
                time(tcp_ns)
            ),
            Self::TailLoss {
                repaired,
                rr_max_ns,
                cost_ns,
            } => tail_loss(repaired, rr_max_ns, cost_ns),
            Self::IcmpLimited {
                lost,
                sent,
                segments,
                retransmitted,
            } => format!(
                "ping lost {lost} of {sent}, yet TCP sent {retransmitted} of {segments} segments again on the same path: the loss is an ICMP rate limit, not the network's."
            ),
            Self::Bufferbloat { empty_ns, full_ns } => format!(
                "A queue on the path fills: the round trip takes {} at best, and {} and more for a tenth of the time or longer (bufferbloat). Look for a bulk transfer on the same bottleneck, and for a shaper or modem with a deep buffer.",
                time(empty_ns),
                time(full_ns)
            ),
            Self::PingLoss { lost, sent } => format!(
                "ping lost {lost} of {sent}, and TCP carried too little to say whether the path lost them or ICMP is limited: run for longer, or with a shorter wait."
            ),
            Self::OtherPath {
                tcp_min_ns,
                ping_ns,
            } => format!(
                "TCP's round trip was never below {}, ping's is {}: TCP goes another way than ICMP, or a proxy, firewall or shaper between holds it.",
                time(tcp_min_ns),
                time(ping_ns)
            ),
            Self::Fine => "The network is fine.".to_owned(),
        }
    }
}

fn delayed_ack(by: End, tcp_ns: u64, ack: Ack) -> String {
    let (reports, waits) = match by {
        End::Client => ("the server", "this end"),
        End::Server => ("this end", "the server"),
    };
    let why = match ack {
        Ack::Timer(system, ns) => format!(
            "{waits} acknowledges when its {} timer ends ({system})",
            time(ns)
        ),
        Ack::Rides => format!("the ACK rides on {waits}'s next data"),
        Ack::Either => {
            format!("the ACK waits for {waits}'s next data, or for its timer")
        }
    };
    format!(
        "The TCP RTT of {} that {reports} reports is delayed ACK, not the network: {why}.",
        time(tcp_ns)
    )
}

fn tail_loss(repaired: Repaired, rr_max_ns: u64, cost_ns: u64) -> String {
    let times = match repaired.probes {
        1 => "once".to_owned(),
        times => format!("{times} times"),
    };
    let others = match (repaired.timeouts, repaired.fast) {
        (0, 0) => {
            "neither a retransmission timeout nor fast retransmit had a part in it".to_owned()
        }
        (0, fast) => {
            format!("no retransmission timeout ended, and fast retransmit sent {fast} more")
        }
        (timeouts, fast) => format!(
            "beside it {timeouts} retransmission timeouts of 200 ms and more ended, of which that request may be one, and fast retransmit sent {fast}"
        ),
    };
    format!(
        "The last segment of a request or response was lost {times}, which nothing behind it shows, and TCP's tail loss probe repaired it: the slowest request took {}, {} more than the median; {others}.",
        time(rr_max_ns),
        time(cost_ns)
    )
}

fn slow_application(app_ns: u64, taken: Taken) -> String {
    let app = time(app_ns);
    match taken {
        Taken::Working => format!(
            "The server's application takes {app} a request (by its own clock); no network change will help."
        ),
        Taken::Unread => format!(
            "A request waits {app} at the server before the application reads it, as the network and the application's own clock do not account for that time: the application is busy with something else, or has no CPU."
        ),
        Taken::Somewhere => format!(
            "The server's application takes {app} a request (the response time less the network's); no network change will help."
        ),
    }
}

/// A time as people write it: 95 us, 1.52 ms, 39.1 ms, 3.2 s.
pub fn time(ns: u64) -> String {
    let us = ns as f64 / 1e3;
    match us {
        us if us < 100.0 => format!("{us:.1} us"),
        us if us < 1e3 => format!("{us:.0} us"),
        us if us < 1e4 => format!("{:.2} ms", us / 1e3),
        us if us < 1e6 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_well() {
        let texts = [950, 95_400, 152_000, 1_520_000, 39_100_000, 3_200_000_000].map(time);
        let expected = [
            "0.9 us", "95.4 us", "152 us", "1.52 ms", "39.1 ms", "3.20 s",
        ];
        assert_eq!(texts[1..], expected[1..]);
        assert!(texts[0] == "0.9 us" || texts[0] == "1.0 us", "{}", texts[0]);
    }
}
