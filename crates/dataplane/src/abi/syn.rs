// SPDX-License-Identifier: Apache-2.0
//! Accounting of connection attempts on a server.

use super::{FlowKey6, Plain, plain};

plain! {
    /// What one category of clients did in one slot of time.
    "syn_slot" SynSlot {
        /// Time / length of a slot.
        number: u64,
        /// Sums over the completed connections, nanoseconds.
        syn_to_end_ns: u64,
        /// SYN-ACK to ACK.
        rtt_ns: u64,
        /// First SYN to the one that was answered.
        conn_fail_ns: u64,
        /// Sum over the stalled: first SYN to end.
        stalled_ns: u64,
        /// Sum over the later transactions: request to end.
        later_ns: u64,
        /// Sum over the timed: request to the server's last data.
        server_ns: u64,
        /// SYNs by retry, from 0.
        offered: [u32; 16],
        /// Of those the ones that were answered.
        accepted: [u32; 16],
        /// SYNs answered with a RST; not in `offered`.
        refused: u32,
        /// SYNs that had been answered.
        duplicates: u32,
        /// Clients whose first ACK came.
        established: u32,
        /// Of those the ones that took more than one SYN-ACK.
        established_late: u32,
        /// Transactions that began with a SYN and ended.
        completed: u32,
        /// Connections that ended without ever being served.
        stalled: u32,
        /// Attempts that ended before their clients were connected.
        abandoned: u32,
        /// Of the first SYNs those whose client sent more.
        heard: u32,
        /// Of those the ones that had been answered.
        heard_answered: u32,
        /// Connections of which the server was first seen to know.
        served: u32,
        /// Of those the ones whose first SYN was answered.
        served_first: u32,
        /// Of the established.
        established_first: u32,
        /// Transactions that began with a request on an open connection and ended.
        later: u32,
        /// Connections on which nothing was asked.
        unused: u32,
        /// Transactions of which it is known what the server took.
        timed: u32,
        /// Those whose client had asked before it had its answers.
        overlapping: u32,
    }
    /// How long the transactions of a category took, since counting began.
    "syn_responses" SynResponses {
        /// By bucket, the last without bound.
        count: [u64; 16],
        /// Of all together, nanoseconds.
        sum_ns: u64,
    }
    /// The same behind its lock.
    "syn_slot_locked" SynSlotLocked {
        /// Not for user space.
        lock: u32,
        /// Zero.
        pad: u32,
        /// The counts.
        slot: SynSlot,
    }
    /// Connections completed in a slot by when their SYN was accepted.
    "syn_origin" SynOrigin {
        /// The slot of completion.
        number: u64,
        /// The category.
        category: u32,
        /// How many slots before its SYN was accepted.
        slots_ago: u32,
    }
    /// When a retry came that was answered.
    "syn_retry_time" SynRetryTime {
        /// Which retry, from 1.
        retry: u32,
        /// After the first SYN, hundredths of a second.
        at_cs: u32,
    }
    /// One connection attempt, see `bpf/shared/syn_track.h`.
    "syn_conn" SynConn {
        /// When its first SYN came.
        first_syn_ns: u64,
        /// When its last SYN came; the request, of a transaction that began with one.
        last_syn_ns: u64,
        /// When it was answered, or when its client said that it would send no more,
        /// or by a RST or another attempt's SYN that it was gone.
        turn_ns: u64,
        /// The server's last data; until then the last SYN since it was answered; 0: none.
        last_data_ns: u64,
        /// Sequence number of the SYN.
        isn: u32,
        /// First SYN-ACK to first ACK, microseconds.
        rtt_us: u32,
        /// 1: not answered so far.
        state: u8,
        /// SYNs after the first.
        retry: u8,
        /// SYN-ACKs before the client's ACK.
        answers: u8,
        /// Whether the server has sent more than SYN-ACKs.
        served: u8,
        /// `SYN_MARK_*`.
        marks: u32,
        /// The first request of its transaction; 0: none.
        asked_ns: u64,
        /// Sequence number behind the server's data.
        sent: u32,
        /// From that request to the last new data, microseconds; 0: none.
        took_us: u32,
    }
    /// An attempt or a connection in the kernel's tables.
    "syn_entry" SynEntry {
        /// What became of it.
        conn: SynConn,
        /// Of the latest SYN-ACK; once connected, behind the client's data.
        seq: u32,
        /// The category that it is counted in.
        category: u32,
    }
    /// An attempt: tuples come again.
    "syn_attempt" SynAttempt {
        /// Client to service.
        key: FlowKey6,
        /// When its first SYN came.
        first_syn_ns: u64,
    }
    /// Key of client prefixes.
    "syn_prefix" SynPrefix {
        /// Bits.
        length: u32,
        /// IPv4 as IPv4-mapped.
        addr: [u8; 16],
    }
}
