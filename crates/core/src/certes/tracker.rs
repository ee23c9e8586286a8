// SPDX-License-Identifier: Apache-2.0
//! The exact tracker of one connection attempt: `bpf/shared/syn_track.h`.

/// State of one attempt; what the kernel keeps for each connection.
#[repr(transparent)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracker([u64; 8]);

/// What the server's interface saw of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// A SYN of the client with this sequence number.
    Syn(u32),
    /// A SYN-ACK of the server.
    SynAck,
    /// A segment of the client with ACK, without SYN and RST.
    Ack,
    /// A segment of the server without payload, SYN and RST.
    Served,
    /// A full segment of the server's data that is sent for the first time.
    Data,
    /// The same with so many bytes.
    DataOf(u32),
    /// A retransmitted one.
    DataAgain,
    /// The client's FIN, with the sequence number behind its data; one with ACK is an
    /// [`Ack`](Self::Ack) first.
    ClientFin(u32),
    /// The server's FIN.
    ServerFin,
    /// The client's RST, with its sequence number.
    ClientReset(u32),
    /// The server's RST.
    ServerReset,
    /// Payload of the client that comes for the first time, and acknowledges all data of the
    /// server.
    Request,
    /// The same, and some data of the server were still on their way when it left.
    EarlyRequest,
    /// As `Request`, so short that it may ask for nothing.
    ShortRequest,
    /// As `Request`, so long that of HTTP/2 it is several.
    LongRequest,
    /// As `Request`, of HTTP/1.1 in clear text by its method.
    HttpRequest,
    /// The same; it belongs to a handshake of TLS.
    Handshake,
    /// No packet: a search for answers that are over.
    Silence,
}

/// What an event counts as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Count {
    /// Nothing.
    #[default]
    Nothing,
    /// A SYN that had not been answered.
    Offered,
    /// The first answer to a SYN: counts in the slot of that SYN.
    Accepted,
    /// A SYN that had been answered.
    Duplicate,
    /// The client's first ACK.
    Established,
    /// The end of a transaction that began with a SYN.
    Completed,
    /// The attempt ended before the client was connected.
    Abandoned,
    /// The end of a connection that the client had, and the server never served: its
    /// final ACK was dropped.
    Stalled,
    /// A SYN was no offer after all: a RST answered it. Counts in the slot of that SYN.
    Refused,
    /// The server sent data again of a connection that it had ended.
    Resent,
    /// The server was first seen to know of the connection.
    Served,
    /// The end of a transaction that began with a request on an open connection.
    Later,
    /// The end of a connection on which nothing was asked.
    Unused,
}

/// What came of an event. Times are nanoseconds of the caller's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrackedEvent {
    /// What it counts as.
    pub count: Count,
    /// It belongs to the slot of this time.
    pub at_ns: u64,
    /// SYNs of the attempt after the first, at most 15.
    pub retry: u8,
    /// Established: SYN-ACKs until the client's ACK; more than 1 if a round trip was
    /// lost.
    pub answers: u8,
    /// When the attempt's first SYN came.
    pub first_syn_ns: u64,
    /// Whether this is the client's first packet after its first SYN.
    pub heard: bool,
    /// Completed: when the SYN that was answered came.
    pub accepted_ns: u64,
    /// Accepted and completed: first SYN to that SYN. Stalled: first SYN to the end.
    pub conn_fail_ns: u64,
    /// Completed and later: that SYN, or the request, to the server's last data. Resent: what
    /// is to be added.
    pub syn_to_end_ns: u64,
    /// Established, completed and later: SYN-ACK to ACK.
    pub rtt_ns: u64,
    /// Completed and later: what the server took.
    pub server: ServerTime,
}

/// What a server took for a transaction, from its first request to the server's last data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerTime {
    /// It did not answer.
    #[default]
    None,
    /// So many nanoseconds.
    Known(u64),
    /// It is unknown: the client had asked before it had its answers.
    Overlaps,
}

/// `struct syn_outcome`.
#[repr(C)]
#[derive(Default)]
struct RawOutcome {
    at_ns: u64,
    accepted_ns: u64,
    conn_fail_ns: u64,
    syn_to_end_ns: u64,
    rtt_ns: u64,
    first_syn_ns: u64,
    server_ns: u64,
    count: u8,
    retry: u8,
    answers: u8,
    heard: u8,
    timed: u8,
    pad: [u8; 3],
}

unsafe extern "C" {
    fn causeway_syn_track(c: *mut Tracker, event: u32, seq: u32, now_ns: u64, out: *mut RawOutcome);
}

impl Tracker {
    /// Bytes of state for each connection.
    pub const BYTES: usize = size_of::<Self>();

    /// Takes an event in. Times must not go back.
    pub fn step(&mut self, event: ConnectionEvent, now_ns: u64) -> TrackedEvent {
        // The number behind what the server has sent is in the last word's lower half.
        let sent = self.0[7] as u32;
        let (code, seq) = match event {
            ConnectionEvent::Syn(isn) => (0, isn),
            ConnectionEvent::SynAck => (1, 0),
            ConnectionEvent::Ack => (2, 0),
            ConnectionEvent::Served => (3, sent),
            ConnectionEvent::Data => (4, sent.wrapping_add(1448)),
            ConnectionEvent::DataOf(bytes) => (4, sent.wrapping_add(bytes)),
            ConnectionEvent::DataAgain => (4, sent),
            ConnectionEvent::ClientFin(seq) => (5, seq),
            ConnectionEvent::ServerFin => (6, 0),
            ConnectionEvent::ClientReset(seq) => (7, seq),
            ConnectionEvent::ServerReset => (8, 0),
            ConnectionEvent::Request => (9, sent),
            ConnectionEvent::EarlyRequest => (9, sent.wrapping_sub(1)),
            ConnectionEvent::Handshake => (10, sent),
            ConnectionEvent::Silence => (11, 0),
            ConnectionEvent::ShortRequest => (12, sent),
            ConnectionEvent::LongRequest => (13, sent),
            ConnectionEvent::HttpRequest => (14, sent),
        };
        let mut raw = RawOutcome::default();
        // SAFETY: both pointers come from references to types of the C layout; the
        // C function touches nothing else and keeps neither.
        unsafe { causeway_syn_track(self, code, seq, now_ns, &mut raw) };
        TrackedEvent {
            count: match raw.count {
                1 => Count::Offered,
                2 => Count::Accepted,
                3 => Count::Duplicate,
                4 => Count::Established,
                5 => Count::Completed,
                6 => Count::Abandoned,
                7 => Count::Stalled,
                8 => Count::Refused,
                9 => Count::Resent,
                10 => Count::Served,
                11 => Count::Later,
                12 => Count::Unused,
                _ => Count::Nothing,
            },
            at_ns: raw.at_ns,
            retry: raw.retry,
            answers: raw.answers,
            first_syn_ns: raw.first_syn_ns,
            heard: raw.heard != 0,
            accepted_ns: raw.accepted_ns,
            conn_fail_ns: raw.conn_fail_ns,
            syn_to_end_ns: raw.syn_to_end_ns,
            rtt_ns: raw.rtt_ns,
            server: match raw.timed {
                1 => ServerTime::Known(raw.server_ns),
                2 => ServerTime::Overlaps,
                _ => ServerTime::None,
            },
        }
    }
}
