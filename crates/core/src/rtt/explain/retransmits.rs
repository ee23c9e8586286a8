// SPDX-License-Identifier: Apache-2.0
//! How segments came to be sent again, by the counters of a kernel (`nstat`).
//!
//! A loss in the middle shows by what arrives behind it, and fast retransmit repairs it within a
//! round trip. Behind the last segment nothing arrives: a timer has to end. That is first the one
//! of the tail loss probe (RFC 8985, section 7): two round-trip times, and with one segment in
//! flight the time that its ACK may be delayed, for which Linux takes 200 ms
//! (`tcp_schedule_loss_probe()`), but never later than the retransmission timeout. The probe is
//! the last segment again. If more than that was lost, its ACK shows it, and a fast recovery
//! sends the rest. The retransmission timeout, of 200 ms at least, comes where a probe is lost, too,
//! or none may be sent.

use serde::{Deserialize, Serialize};

/// Counters of a host (a network namespace), or their differences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retransmits {
    /// `RetransSegs`: segments sent again, for whatever reason.
    pub retrans_segs: u64,
    /// `TCPLossProbes`: tail loss probes. Where there is data to send they are that, else the
    /// last segment again.
    pub loss_probes: u64,
    /// `TCPLossProbeRecovery`: probes that repaired a loss alone. Counted when what was sent
    /// behind them is acknowledged, and no D-SACK has come that calls them needless.
    pub loss_probe_recovery: u64,
    /// `TCPTimeouts`: retransmission timeouts, also those of SYNs.
    pub timeouts: u64,
    /// `TCPFastRetrans`: segments sent again in fast recovery.
    pub fast_retrans: u64,
    /// `TCPSlowStartRetrans`: segments sent again behind the one of a timeout.
    pub slow_start_retrans: u64,
    /// `TCPSackRecovery`: fast recoveries.
    pub sack_recovery: u64,
    /// `TCPSynRetrans`: SYNs and SYN+ACKs sent again.
    pub syn_retrans: u64,
}

impl Retransmits {
    /// Reads `/proc/net/snmp` and `/proc/net/netstat`: lines of names, each followed by one of
    /// values. A counter that the kernel does not have is 0.
    pub fn parse(snmp: &str, netstat: &str) -> Self {
        let of = |text: &str, group: &str, name: &str| {
            let mut lines = text.lines().filter_map(|line| line.strip_prefix(group));
            let (names, values) = (lines.next()?, lines.next()?);
            let mut both = names.split_whitespace().zip(values.split_whitespace());
            both.find(|(known, _)| *known == name)?.1.parse().ok()
        };
        let extended = |name| of(netstat, "TcpExt:", name).unwrap_or(0);
        Self {
            retrans_segs: of(snmp, "Tcp:", "RetransSegs").unwrap_or(0),
            loss_probes: extended("TCPLossProbes"),
            loss_probe_recovery: extended("TCPLossProbeRecovery"),
            timeouts: extended("TCPTimeouts"),
            fast_retrans: extended("TCPFastRetrans"),
            slow_start_retrans: extended("TCPSlowStartRetrans"),
            sack_recovery: extended("TCPSackRecovery"),
            syn_retrans: extended("TCPSynRetrans"),
        }
    }

    /// What was counted since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let since = |of: fn(&Self) -> u64| of(self).saturating_sub(of(before));
        Self {
            retrans_segs: since(|of| of.retrans_segs),
            loss_probes: since(|of| of.loss_probes),
            loss_probe_recovery: since(|of| of.loss_probe_recovery),
            timeouts: since(|of| of.timeouts),
            fast_retrans: since(|of| of.fast_retrans),
            slow_start_retrans: since(|of| of.slow_start_retrans),
            sack_recovery: since(|of| of.sack_recovery),
            syn_retrans: since(|of| of.syn_retrans),
        }
    }

    /// Losses that a probe repaired, or made known; `duplicates` were sent again needlessly.
    ///
    /// Beside those that the kernel counts as repaired by the probe alone these are probes that
    /// were a segment again, as nothing else accounts for it, that were no duplicates, and that
    /// a fast recovery followed.
    pub fn by_probe(&self, duplicates: u64) -> u64 {
        let others = self.timeouts + self.fast_retrans + self.slow_start_retrans + self.syn_retrans;
        let again = self.retrans_segs.saturating_sub(others);
        let further = again
            .min(self.loss_probes)
            .saturating_sub(self.loss_probe_recovery + duplicates);
        self.loss_probe_recovery + further.min(self.sack_recovery)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        let snmp = "Ip: Forwarding DefaultTTL\nIp: 1 64\n\
                    Tcp: RtoAlgorithm OutSegs RetransSegs\nTcp: 1 900 7\n";
        let netstat = "TcpExt: TCPTimeouts TCPLossProbes TCPLossProbeRecovery TCPSynRetrans\n\
                       TcpExt: 2 4 3 1\nIpExt: InOctets\nIpExt: 5\n";
        let read = Retransmits::parse(snmp, netstat);
        let expected = Retransmits {
            retrans_segs: 7,
            timeouts: 2,
            loss_probes: 4,
            loss_probe_recovery: 3,
            syn_retrans: 1,
            ..Retransmits::default()
        };
        assert_eq!(read, expected);
        assert_eq!(read.since(&read), Retransmits::default());
        assert_eq!(
            Retransmits::parse("", "TcpExt: a b\n"),
            Retransmits::default()
        );
    }

    #[test]
    fn a_probe_counts_once_however_its_loss_was_repaired() {
        let alone = Retransmits {
            retrans_segs: 1,
            loss_probes: 1,
            loss_probe_recovery: 1,
            ..Retransmits::default()
        };
        assert_eq!(alone.by_probe(0), 1);
        // The last two segments: the probe is the one, a fast recovery sends the other.
        let two = Retransmits {
            retrans_segs: 2,
            loss_probes: 1,
            fast_retrans: 1,
            sack_recovery: 1,
            ..Retransmits::default()
        };
        assert_eq!(two.by_probe(0), 1);
        // Nothing was lost but an ACK.
        let needless = Retransmits {
            retrans_segs: 1,
            loss_probes: 1,
            ..Retransmits::default()
        };
        assert_eq!(needless.by_probe(1), 0);
        // Probes of new data, beside a fast recovery of their own.
        let new_data = Retransmits {
            retrans_segs: 3,
            loss_probes: 2,
            fast_retrans: 3,
            sack_recovery: 1,
            ..Retransmits::default()
        };
        assert_eq!(new_data.by_probe(0), 0);
        // A timeout, and a SYN that was lost.
        let timeouts = Retransmits {
            retrans_segs: 2,
            timeouts: 2,
            syn_retrans: 1,
            ..Retransmits::default()
        };
        assert_eq!(timeouts.by_probe(0), 0);
    }
}
