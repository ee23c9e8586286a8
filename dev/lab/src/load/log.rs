// SPDX-License-Identifier: Apache-2.0
//! What the clients saw. Times are CLOCK_MONOTONIC nanoseconds, the clock of
//! `bpf_ktime_get_ns`; `wall_offset_ns` makes wall time of them.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Why a connection was of no more use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionFault {
    /// The SYN was answered by a reset.
    Refused,
    /// No answer to the SYN in time.
    ConnectTimeout,
    /// The network had no way there.
    Unreachable,
    /// Reset while open.
    Reset,
    /// Closed by the server while requests were outstanding.
    ShortRead,
    /// Closed by the server while idle.
    ServerClosed,
    /// No complete answer in time.
    ResponseTimeout,
    /// Not HTTP, not status 200, or another body length than asked for.
    BadResponse,
    /// An answer came from another server than the one before it.
    WrongReal,
    /// The request could not be written.
    SendFailed,
    /// A QUIC server issued more connection ids than its client takes. What says so is
    /// authenticated: no packet that goes astray can be the cause. quinn 0.11 does so where
    /// an id that expires is retired by its client in the same moment.
    IdLimit,
}

impl ConnectionFault {
    /// The word used in JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::ConnectTimeout => "connect_timeout",
            Self::Unreachable => "unreachable",
            Self::Reset => "reset",
            Self::ShortRead => "short_read",
            Self::ServerClosed => "server_closed",
            Self::ResponseTimeout => "response_timeout",
            Self::BadResponse => "bad_response",
            Self::WrongReal => "wrong_real",
            Self::SendFailed => "send_failed",
            Self::IdLimit => "id_limit",
        }
    }
}

/// One connection, from the call of connect(2) on.
#[derive(Debug, Clone)]
pub struct LoggedConnection {
    /// Number of the transport protocol: 6 or 17.
    pub proto: u8,
    /// Which user.
    pub slot: u32,
    /// The client's address and port.
    pub local: SocketAddr,
    /// The VIP and port.
    pub remote: SocketAddr,
    /// connect(2) called.
    pub open_ns: u64,
    /// The handshake was done; 0 if it never was.
    pub connected_ns: u64,
    /// Closed by the client, or found broken.
    pub close_ns: u64,
    /// Index into [`Log::reals`] of the server that answered; `None` before the
    /// first answer.
    pub real: Option<u16>,
    /// What broke it.
    pub fault: Option<ConnectionFault>,
    /// Requests that were outstanding then.
    pub lost: u32,
}

/// One response.
#[derive(Debug, Clone, Copy)]
pub struct LoggedResponse {
    /// Index into [`Log::connections`].
    pub connection: u32,
    /// Number of the page within its slot.
    pub page: u32,
    /// Request number, unique within its slot.
    pub id: u32,
    /// Request whose response set this one off: it named the object, or made
    /// room for one more request.
    pub parent: Option<u32>,
    /// When it could have been sent, had the client been infinitely fast.
    pub intended_ns: u64,
    /// Just before write(2).
    pub send_ns: u64,
    /// Just after the read(2) that gave the last byte.
    pub last_ns: u64,
    /// Body bytes.
    pub size: u32,
    /// Index into [`Log::reals`].
    pub real: u16,
    /// Smoothed round-trip time of the client's TCP then, where asked for; else 0.
    pub srtt_us: u32,
}

impl LoggedResponse {
    /// From sending to the last byte.
    pub fn latency_ns(&self) -> u64 {
        self.last_ns - self.send_ns
    }
}

/// What the load generator itself used.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Cost {
    /// CPU time of all client threads.
    pub cpu_ns: u64,
    /// Returns from epoll.
    pub wakeups: u64,
}

/// Everything, of all client threads.
#[derive(Debug, Default)]
pub struct Log {
    /// Servers by name, in order of appearance.
    pub reals: Vec<String>,
    /// All connections.
    pub connections: Vec<LoggedConnection>,
    /// All responses, by `last_ns` once the load has finished.
    pub responses: Vec<LoggedResponse>,
    /// The generator's own cost.
    pub cost: Cost,
    /// When the load began and when pages stopped to begin.
    pub start_ns: u64,
    /// See `start_ns`.
    pub end_ns: u64,
    /// Wall time minus CLOCK_MONOTONIC.
    pub wall_offset_ns: i64,
    /// How often connections moved to another port of their client.
    pub migrations: u64,
}

impl Log {
    /// Index of a server, added if new.
    pub fn real(&mut self, name: &str) -> u16 {
        let index = self
            .reals
            .iter()
            .position(|r| r == name)
            .unwrap_or_else(|| {
                self.reals.push(name.to_owned());
                self.reals.len() - 1
            });
        index as u16
    }

    /// Broken connections by reason.
    pub fn faults(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        for fault in self.connections.iter().filter_map(|c| c.fault) {
            *counts.entry(fault.name()).or_default() += 1;
        }
        counts
    }

    /// Takes another thread's log in.
    pub fn append(&mut self, mut other: Self) {
        let reals: Vec<u16> = other.reals.iter().map(|name| self.real(name)).collect();
        let base = self.connections.len() as u32;
        for connection in &mut other.connections {
            connection.real = connection.real.map(|r| reals[r as usize]);
        }
        for response in &mut other.responses {
            response.connection += base;
            response.real = reals[response.real as usize];
        }
        self.connections.append(&mut other.connections);
        self.responses.append(&mut other.responses);
        self.cost.cpu_ns += other.cost.cpu_ns;
        self.cost.wakeups += other.cost.wakeups;
        self.wall_offset_ns = other.wall_offset_ns;
        self.migrations += other.migrations;
    }

    /// Puts responses in order of their last byte.
    pub fn sort(&mut self) {
        self.responses.sort_by_key(|r| (r.last_ns, r.send_ns));
    }

    /// One row per response, in wall time.
    pub fn write_csv(&self, mut out: impl Write) -> io::Result<()> {
        writeln!(
            out,
            "proto,src,sport,dst,dport,conn,page,id,parent,send_ns,last_ns,size,real"
        )?;
        let wall = |ns: u64| ns as i64 + self.wall_offset_ns;
        for r in &self.responses {
            let c = &self.connections[r.connection as usize];
            writeln!(
                out,
                "{},{},{},{},{},{},{},{},{},{},{},{},{}",
                c.proto,
                c.local.ip(),
                c.local.port(),
                c.remote.ip(),
                c.remote.port(),
                r.connection,
                r.page,
                r.id,
                r.parent.map_or(-1, i64::from),
                wall(r.send_ns),
                wall(r.last_ns),
                r.size,
                self.reals[r.real as usize],
            )?;
        }
        Ok(())
    }
}
