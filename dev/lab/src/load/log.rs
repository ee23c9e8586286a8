// SPDX-License-Identifier: Apache-2.0
//! What the clients saw. Times are CLOCK_MONOTONIC nanoseconds, the clock of
//! `bpf_ktime_get_ns`; `wall_offset_ns` makes wall time of them.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use anyhow::{Context as _, Result};
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

    /// What [`Log::write_csv`] has written, in wall time: the connections that had responses, of
    /// which it knows the ends alone.
    ///
    /// # Errors
    /// A row that has not these fields, with its line.
    pub fn read_csv(text: &str) -> Result<Self> {
        let mut log = Self::default();
        let mut numbers = HashMap::new();
        for (line, row) in (1..).zip(text.lines()).skip(1) {
            let read = log.read_row(row, &mut numbers);
            read.with_context(|| format!("line {line}: {row:?} is not a response"))?;
        }
        log.start_ns = log.responses.iter().map(|r| r.send_ns).min().unwrap_or(0);
        log.end_ns = log.responses.iter().map(|r| r.last_ns).max().unwrap_or(0);
        log.sort();
        Ok(log)
    }

    fn read_row(&mut self, row: &str, numbers: &mut HashMap<u32, u32>) -> Result<()> {
        let mut fields = row.split(',');
        let end = |fields: &mut std::str::Split<'_, char>| -> Result<SocketAddr> {
            Ok(SocketAddr::new(
                field::<IpAddr>(fields)?,
                field::<u16>(fields)?,
            ))
        };
        let proto = field(&mut fields)?;
        let (local, remote) = (end(&mut fields)?, end(&mut fields)?);
        let number = field(&mut fields)?;
        let connection = *numbers.entry(number).or_insert_with(|| {
            self.connections.push(LoggedConnection {
                proto,
                slot: 0,
                local,
                remote,
                open_ns: 0,
                connected_ns: 0,
                close_ns: 0,
                real: None,
                fault: None,
                lost: 0,
            });
            self.connections.len() as u32 - 1
        });
        let (page, id) = (field(&mut fields)?, field(&mut fields)?);
        let parent = field::<i64>(&mut fields)?;
        let send_ns = field(&mut fields)?;
        let (last_ns, size) = (field(&mut fields)?, field(&mut fields)?);
        let real = self.real(fields.next().context("too few fields")?);
        self.responses.push(LoggedResponse {
            connection,
            page,
            id,
            parent: u32::try_from(parent).ok(),
            intended_ns: send_ns,
            send_ns,
            last_ns,
            size,
            real,
            srtt_us: 0,
        });
        Ok(())
    }
}

fn field<T: FromStr>(fields: &mut std::str::Split<'_, char>) -> Result<T> {
    let text = fields.next().context("too few fields")?;
    text.parse()
        .ok()
        .with_context(|| format!("{text:?} cannot be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let text = "proto,src,sport,dst,dport,conn,page,id,parent,send_ns,last_ns,size,real\n\
                    6,10.50.0.2,59360,10.51.0.2,80,1,0,0,-1,1000,3000,512,web\n\
                    17,fd00::2,59376,fd00::1,80,7,0,1,0,2000,4000,1024,web\n";
        let log = Log::read_csv(text).expect("two responses");
        assert_eq!((log.connections.len(), log.responses.len()), (2, 2));
        let last = &log.responses[1];
        assert_eq!((last.connection, last.parent), (1, Some(0)));
        assert_eq!(last.latency_ns(), 2000);
        let mut written = Vec::new();
        log.write_csv(&mut written).expect("memory has no errors");
        // Connections are counted anew.
        let again = text.replace(",80,1,", ",80,0,").replace(",80,7,", ",80,1,");
        assert_eq!(String::from_utf8(written).expect("text"), again);

        let short = "head\n6,10.50.0.2,59360\n";
        let error = format!("{:#}", Log::read_csv(short).expect_err("too few fields"));
        assert!(
            error.contains("line 2") && error.contains("too few"),
            "{error}"
        );
    }
}
