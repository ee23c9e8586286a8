// SPDX-License-Identifier: Apache-2.0
//! A packet and why it went where it went, as a line of text or of JSON.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use causeway_core::wire::{IpDatagram, LinkType, TcpFlags, TransportHeader, parse};
use causeway_dataplane::MirroredPacket;
use causeway_dataplane::abi::Action;
use serde::Serialize;

use super::plane::Plane;

/// What there is to say of a packet.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    /// When it came, nanoseconds since the Unix epoch.
    time_ns: u64,
    /// Source of the innermost packet, with its port.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    /// Destination, as above.
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    /// What it is: protocol and flags.
    #[serde(skip_serializing_if = "Option::is_none")]
    packet: Option<String>,
    /// Bytes of the frame.
    bytes: u32,
    /// The VIP's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    vip: Option<String>,
    /// What the data plane did.
    verdict: &'static str,
    /// And why.
    meaning: &'static str,
    /// What XDP did.
    action: &'static str,
    /// What its cookie said.
    #[serde(skip_serializing_if = "Option::is_none")]
    cookie: Option<&'static str>,
    /// And what that means.
    #[serde(skip_serializing_if = "Option::is_none")]
    cookie_meaning: Option<&'static str>,
    /// Where it was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    sent_to: Option<IpAddr>,
    /// Number of the real, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    real_id: Option<u32>,
    /// Bytes of the frame as it left.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_after: Option<u32>,
}

impl Line {
    /// `None` for a verdict of another build.
    pub(super) fn new(plane: &Plane, mirrored: &MirroredPacket, time_ns: u64) -> Option<Self> {
        let outcome = plane.outcome(mirrored.verdict)?;
        let before = &mirrored.before;
        let inner = parse(LinkType::Ethernet, &before.data, before.len).ok();
        let sent = plane
            .sent_to(mirrored)
            .filter(|_| outcome.action == Action::Tx);
        let ends = |of: fn(&IpDatagram) -> (IpAddr, u16)| {
            let (address, port) = of(inner.as_ref()?);
            Some(match port {
                0 => address.to_string(),
                port => SocketAddr::new(address, port).to_string(),
            })
        };
        Some(Self {
            time_ns,
            from: ends(|it| (it.src, it.transport.ports().0)),
            to: ends(|it| (it.dst, it.transport.ports().1)),
            packet: inner.as_ref().map(|it| kind(&it.transport)),
            bytes: before.len,
            vip: mirrored.vip.map(|id| plane.vip_name(id)),
            verdict: outcome.verdict,
            meaning: outcome.meaning,
            action: outcome.action.as_str(),
            cookie: mirrored.result.map(|result| result.as_str()),
            cookie_meaning: mirrored.result.map(|result| result.meaning()),
            sent_to: sent.map(|(_, address)| address),
            real_id: sent.and_then(|(real, _)| real),
            bytes_after: mirrored.after.as_ref().map(|after| after.len),
        })
    }

    /// A line for people; time of day in UTC.
    pub(super) fn text(&self) -> String {
        let mut text = clock(self.time_ns);
        // Writing to a String does not fail.
        if let (Some(from), Some(to)) = (&self.from, &self.to) {
            let _ = write!(text, " {from} > {to}");
        }
        if let Some(packet) = &self.packet {
            let _ = write!(text, " {packet}");
        }
        let _ = write!(text, " {} bytes", self.bytes);
        if let Some(vip) = &self.vip {
            let _ = write!(text, ", vip {vip}");
        }
        let _ = write!(text, ": {}", self.verdict);
        match (self.sent_to, self.real_id) {
            (Some(address), Some(_)) => {
                let _ = write!(text, " -> real {address}");
            }
            (Some(address), None) => {
                let _ = write!(text, " -> {address}");
            }
            (None, _) => {
                let _ = write!(text, " ({})", self.action);
            }
        }
        if let Some(bytes) = self.bytes_after {
            let _ = write!(text, ", {bytes} bytes");
        }
        text
    }

    /// Why: the verdict's meaning, and the cookie's.
    pub(super) fn reasons(&self) -> String {
        match (self.cookie, self.cookie_meaning) {
            (Some(cookie), Some(meaning)) => {
                format!("{}; cookie {cookie}: {meaning}", self.meaning)
            }
            _ => self.meaning.to_owned(),
        }
    }

    /// The packet comment of a capture file: all of it, in one line.
    pub(super) fn comment(&self) -> String {
        let mut text = format!("verdict={} action={}", self.verdict, self.action);
        if let Some(vip) = &self.vip {
            let _ = write!(text, " vip={vip}");
        }
        if let (Some(address), Some(id)) = (self.sent_to, self.real_id) {
            let _ = write!(text, " real={address} real_id={id}");
        }
        if let Some(cookie) = self.cookie {
            let _ = write!(text, " cookie={cookie}");
        }
        let _ = write!(text, " ({})", self.reasons());
        text
    }
}

fn kind(transport: &TransportHeader) -> String {
    match transport {
        TransportHeader::Tcp { flags, .. } => format!("tcp [{}]", flag_letters(*flags)),
        TransportHeader::Udp { .. } => "udp".to_owned(),
        TransportHeader::Icmp { kind, code, .. } => format!("icmp type {kind} code {code}"),
        TransportHeader::Other { protocol, .. } => format!("protocol {protocol}"),
    }
}

/// As tcpdump has them.
fn flag_letters(flags: TcpFlags) -> String {
    const PSH: u8 = 0x08;
    let letters = [
        (TcpFlags::SYN, 'S'),
        (TcpFlags::FIN, 'F'),
        (TcpFlags::RST, 'R'),
        (PSH, 'P'),
        (TcpFlags::ACK, '.'),
    ];
    let set = letters.iter().filter(|(bit, _)| flags.0 & bit != 0);
    set.map(|(_, letter)| letter).collect()
}

/// Time of day, UTC, with microseconds.
fn clock(time_ns: u64) -> String {
    let (seconds, ns) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000);
    let day = seconds % 86_400;
    let (hour, minute, second) = (day / 3600, day / 60 % 60, day % 60);
    format!("{hour:02}:{minute:02}:{second:02}.{:06}", ns / 1000)
}

#[cfg(test)]
mod tests {
    use causeway_dataplane::abi::{CookieResult, Verdict};

    use super::super::plane::tests::{balancer, frame, mirrored};
    use super::*;

    const NOON_NS: u64 = (12 * 3600 + 62) * 1_000_000_000 + 345_678_901;

    #[test]
    fn a_line_says_where_and_why() {
        let mut packet = mirrored(Some(frame(1, [10, 0, 0, 1])));
        packet.result = Some(CookieResult::Syn);
        let line = Line::new(&balancer(), &packet, NOON_NS).unwrap();
        assert_eq!(
            line.text(),
            "12:01:02.345678 198.51.100.7:4000 > 192.0.2.1:80 tcp [S] 54 bytes, vip web: opened -> real 10.0.0.1, 54 bytes"
        );
        assert_eq!(
            line.comment(),
            "verdict=opened action=tx vip=web real=10.0.0.1 real_id=7 cookie=syn (a new connection (SYN): a real was picked; cookie syn: a SYN with timestamps: a real was picked)"
        );
        let json = serde_json::to_value(&line).unwrap();
        assert_eq!(json["sent_to"], "10.0.0.1");
        assert_eq!(json["time_ns"], NOON_NS);
        assert_eq!(json["cookie"], "syn");
    }

    #[test]
    fn a_packet_that_goes_nowhere_says_so() {
        let mut packet = mirrored(None);
        packet.verdict = Verdict::NoReal as u8;
        packet.before.data.truncate(20);
        let line = Line::new(&balancer(), &packet, 0).unwrap();
        assert_eq!(
            line.text(),
            "00:00:00.000000 54 bytes, vip web: no_real (drop)"
        );
        assert_eq!(line.reasons(), "the VIP has no usable real");
        packet.verdict = 63;
        assert!(Line::new(&balancer(), &packet, 0).is_none());
    }
}
