// SPDX-License-Identifier: Apache-2.0
//! When requests began and their responses ended, by the packets of both directions at the
//! client's interface.
//!
//! A connection takes turns. A request begins with the client's first payload since the
//! server's last; its response ends with the last payload before the next request begins or
//! the recording ends. What is sent again counts once, when it was first seen. Requests that
//! are sent together (a pipeline) are one turn. Two things are not turns of their own: of
//! TLS 1.3 the handshake, so that the first request begins behind the client's Finished;
//! and an interim response (100 Continue), which ends nothing.

use std::collections::HashMap;

use anyhow::{Context, Result};
use causeway_core::capture::{Poll, Reader};

/// One response, by wall time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Response {
    /// Its last byte.
    pub(super) end_ns: u64,
    /// Since the first byte of its request.
    pub(super) latency_us: f64,
}

/// The responses in a recording of raw IPv4 packets, of connections to `port`.
pub(super) fn responses(pcap: &[u8], port: u16, tls: bool) -> Result<Vec<Response>> {
    let mut turns = Turns {
        port,
        tls,
        connections: HashMap::new(),
        found: Vec::new(),
    };
    let mut reader = Reader::default();
    reader.feed(pcap);
    reader.finish();
    while let Poll::Packet(packet) = reader.poll()? {
        let time_ns = packet.time_ns.context("a packet without a time")?;
        if let Some(segment) = Segment::of(packet.data) {
            turns.take(time_ns, &segment);
        }
    }
    Ok(turns.finish())
}

/// The same with all latencies shifted, so that this is their mean.
pub(super) fn with_mean(mut responses: Vec<Response>, mean_us: f64) -> Vec<Response> {
    let of_packets = super::mean(responses.iter().map(|r| r.latency_us)).unwrap_or(mean_us);
    for response in &mut responses {
        response.latency_us += mean_us - of_packets;
    }
    responses
}

/// A TCP segment with payload, or a SYN.
struct Segment<'a> {
    ports: (u16, u16),
    syn: bool,
    seq: u32,
    /// Bytes of payload on the wire.
    len: u32,
    /// As much of it as was recorded.
    payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// `None`: the packet is not TCP over IPv4, or has neither payload nor SYN.
    fn of(packet: &'a [u8]) -> Option<Self> {
        let half = |at: usize| Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?));
        let tcp = usize::from(packet.first()? & 0xf) * 4;
        match packet.get(9)? {
            // On the way from a balancer.
            4 => return Self::of(packet.get(tcp..)?),
            6 => {}
            _ => return None,
        }
        let seq = packet.get(tcp + 4..tcp + 8)?;
        let data = tcp + usize::from(packet.get(tcp + 12)? >> 4) * 4;
        let len = u32::from(half(2)?).checked_sub(data as u32)?;
        let syn = packet.get(tcp + 13)? & 2 != 0;
        (len > 0 || syn).then_some(Self {
            ports: (half(tcp)?, half(tcp + 2)?),
            syn,
            seq: u32::from_be_bytes(seq.try_into().ok()?),
            len,
            payload: packet.get(data..).unwrap_or_default(),
        })
    }
}

#[derive(Default)]
struct Connection {
    /// Behind the last byte seen, by direction.
    next: [Option<u32>; 2],
    begun_ns: Option<u64>,
    ended_ns: Option<u64>,
    secured: bool,
}

impl Connection {
    fn is_new(&mut self, direction: usize, segment: &Segment<'_>) -> bool {
        let end = segment.seq.wrapping_add(segment.len);
        let next = &mut self.next[direction];
        let new = next.is_none_or(|next| (end.wrapping_sub(next) as i32) > 0);
        if new {
            *next = Some(end);
        }
        new
    }

    fn close(&mut self) -> Option<Response> {
        let (begun_ns, end_ns) = (self.begun_ns?, self.ended_ns?);
        (self.begun_ns, self.ended_ns) = (None, None);
        Some(Response {
            end_ns,
            latency_us: end_ns.saturating_sub(begun_ns) as f64 / 1000.0,
        })
    }
}

struct Turns {
    port: u16,
    tls: bool,
    /// By the client's port.
    connections: HashMap<u16, Connection>,
    found: Vec<Response>,
}

impl Turns {
    fn take(&mut self, time_ns: u64, segment: &Segment<'_>) {
        let from_client = segment.ports.1 == self.port;
        let client = match from_client {
            true => segment.ports.0,
            false => segment.ports.1,
        };
        let connection = self.connections.entry(client).or_default();
        if segment.syn {
            // Ports come again. What the connection before left open has no response.
            if from_client {
                self.found.extend(connection.close());
                *connection = Connection::default();
            }
            return;
        }
        if !connection.is_new(usize::from(from_client), segment) {
            return;
        }
        if !from_client {
            if connection.begun_ns.is_some() && !segment.payload.starts_with(b"HTTP/1.1 100") {
                connection.ended_ns = Some(time_ns);
            }
            return;
        }
        if self.tls && !connection.secured {
            connection.secured = is_finished(segment.payload);
            if !asks_behind_finished(segment) {
                return;
            }
        }
        if connection.ended_ns.is_some() {
            self.found.extend(connection.close());
        }
        connection.begun_ns.get_or_insert(time_ns);
    }

    fn finish(mut self) -> Vec<Response> {
        let last = self.connections.values_mut();
        self.found.extend(last.filter_map(Connection::close));
        self.found.sort_by_key(|response| response.end_ns);
        self.found
    }
}

/// A record of TLS that says ChangeCipherSpec: RFC 8446, appendix D.4.
const CHANGE_CIPHER_SPEC: [u8; 6] = [0x14, 3, 3, 0, 1, 1];

/// Whether the client's handshake ends here: Finished comes behind a ChangeCipherSpec,
/// which every client sends for the sake of middleboxes.
fn is_finished(payload: &[u8]) -> bool {
    payload.starts_with(&CHANGE_CIPHER_SPEC)
}

/// Whether more than Finished is in the segment that holds it.
fn asks_behind_finished(segment: &Segment<'_>) -> bool {
    let finished = segment.payload.strip_prefix(&CHANGE_CIPHER_SPEC);
    let length = finished.and_then(|record| record.get(3..5)?.try_into().ok());
    let handshake = CHANGE_CIPHER_SPEC.len() as u32 + 5;
    length.is_some_and(|bytes| segment.len > handshake + u32::from(u16::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Segments of one connection: time in us, whether the client sends, where its payload
    /// begins, the payload; a SYN has none.
    fn turns(tls: bool, segments: &[(u64, bool, u32, &[u8])]) -> Vec<f64> {
        let mut turns = Turns {
            port: 80,
            tls,
            connections: HashMap::new(),
            found: Vec::new(),
        };
        for &(at_us, up, seq, payload) in segments {
            turns.take(
                at_us * 1000,
                &Segment {
                    ports: if up { (4000, 80) } else { (80, 4000) },
                    syn: payload.is_empty(),
                    seq,
                    len: payload.len() as u32,
                    payload,
                },
            );
        }
        turns.finish().iter().map(|r| r.latency_us).collect()
    }

    #[test]
    fn a_turn_is_from_the_first_byte_to_the_last() {
        let found = turns(
            false,
            &[
                (0, true, 1, b"GET"),
                (1, true, 4, b" /"),
                (5, false, 9, b"ab"),
                (7, false, 11, b"cd"),
                // Sent again: neither an end nor a beginning.
                (90, false, 9, b"ab"),
                (95, true, 4, b" /"),
                (100, true, 6, b"GET"),
                (130, false, 13, b"ef"),
            ],
        );
        assert_eq!(found, [7.0, 30.0]);
    }

    /// A client's farewell has no response, not even that of the next connection, whose
    /// sequence numbers have nothing to do with those before.
    #[test]
    fn a_port_that_comes_again_is_another_connection() {
        let found = turns(
            false,
            &[
                (0, true, 1, b"GET"),
                (5, false, 1, b"ab"),
                (6, true, 4, b"bye"),
                (50, true, 4_000_000_000, b""),
                (60, true, 4_000_000_001, b"GET"),
                (70, false, 3_900_000_000, b"ab"),
            ],
        );
        assert_eq!(found, [5.0, 10.0]);
    }

    #[test]
    fn an_interim_response_ends_nothing() {
        let found = turns(
            false,
            &[
                (0, true, 1, b"POST"),
                (5, false, 1, b"HTTP/1.1 100 Continue\r\n\r\n"),
                (6, true, 5, b"body"),
                (20, false, 26, b"HTTP/1.1 200 OK\r\n"),
            ],
        );
        assert_eq!(found, [20.0]);
    }

    /// A Finished of three bytes, then a request in the same segment or in one of its own.
    #[test]
    fn a_handshake_is_no_request() {
        let finished = [0x14, 3, 3, 0, 1, 1, 0x17, 3, 3, 0, 3, 1, 2, 3];
        let with_request = [&finished[..], &[0x17, 3, 3, 0, 1, 9]].concat();
        let alone = turns(
            true,
            &[
                (0, true, 1, &[0x16, 3, 1]),
                (4, false, 1, &[0x16]),
                (5, true, 4, &finished),
                (6, false, 2, &[0x17]),
                (10, true, 18, &[0x17]),
                (15, false, 3, &[0x17]),
            ],
        );
        assert_eq!(alone, [5.0]);
        let together = turns(
            true,
            &[
                (0, true, 1, &[0x16, 3, 1]),
                (4, false, 1, &[0x16]),
                (5, true, 4, &with_request),
                (6, false, 2, &[0x17]),
                (17, false, 3, &[0x17]),
            ],
        );
        assert_eq!(together, [12.0]);
    }
}
