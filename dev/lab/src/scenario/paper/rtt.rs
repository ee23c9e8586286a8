// SPDX-License-Identifier: Apache-2.0
//! What recordings of TCP hold besides requests: round-trip times by both directions, as tcptrace
//! prints them (a data segment to the ACK that covers it) and the handshake's, and gaps.

use std::collections::HashMap;

use anyhow::Result;
use causeway_core::capture::{Poll, Reader};
use causeway_core::flow::FlowKey;
use causeway_core::wire::{self, TransportHeader};

/// Round-trip times of one flow, by the time of the ACK in ns.
#[derive(Debug, Default)]
pub(super) struct RoundTrips {
    /// Data of the client's to its ACK, as the vantage point sees both: time, ns.
    pub acked: Vec<(u64, u64)>,
    /// SYN to the client's first ACK.
    pub handshake_ns: Option<u64>,
    syn_ns: Option<u64>,
    /// Ends and times of segments that wait for their ACK.
    waiting: Vec<(u32, u64)>,
    highest: Option<u32>,
}

fn after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

/// All flows of a recording, client first; clients are those that sent a SYN.
pub(super) fn round_trips(pcap: &[u8]) -> Result<HashMap<FlowKey, RoundTrips>> {
    let mut flows = HashMap::new();
    each(pcap, |key, transport, time_ns| {
        take(&mut flows, key, transport, time_ns);
    })?;
    Ok(flows)
}

/// Nanoseconds between packets with payload that follow each other in a flow.
pub(super) fn gaps(pcap: &[u8]) -> Result<Vec<u64>> {
    let (mut last, mut gaps) = (HashMap::new(), Vec::new());
    each(pcap, |key, transport, time_ns| {
        if let TransportHeader::Tcp { payload_len, .. } = transport
            && *payload_len > 0
        {
            let before = last.insert(key, time_ns);
            gaps.extend(before.map(|before| time_ns.saturating_sub(before)));
        }
    })?;
    Ok(gaps)
}

fn each(pcap: &[u8], mut packet: impl FnMut(FlowKey, &TransportHeader, u64)) -> Result<()> {
    let mut reader = Reader::default();
    reader.feed(pcap);
    reader.finish();
    while let Poll::Packet(found) = reader.poll()? {
        let (Some(time_ns), Some(link)) = (found.time_ns, found.link) else {
            continue;
        };
        if let Ok(datagram) = wire::parse(link, found.data, found.wire_len) {
            packet(FlowKey::of(&datagram), &datagram.transport, time_ns);
        }
    }
    Ok(())
}

fn take(
    flows: &mut HashMap<FlowKey, RoundTrips>,
    key: FlowKey,
    transport: &TransportHeader,
    time_ns: u64,
) {
    let &TransportHeader::Tcp {
        seq,
        ack,
        flags,
        payload_len,
        ..
    } = transport
    else {
        return;
    };
    if flags.opens() {
        let flow = flows.entry(key).or_default();
        flow.syn_ns = Some(time_ns);
    } else if let Some(flow) = flows.get_mut(&key) {
        if flow.handshake_ns.is_none() {
            flow.handshake_ns = flow.syn_ns.map(|syn_ns| time_ns - syn_ns);
        }
        let end = seq.wrapping_add(payload_len);
        // Karn's rule: what was sent before is not timed.
        if payload_len > 0 && flow.highest.is_none_or(|highest| after(end, highest)) {
            flow.highest = Some(end);
            flow.waiting.push((end, time_ns));
        }
    } else if let Some(flow) = flows.get_mut(&key.reversed()) {
        let covered = flow.waiting.iter().take_while(|(end, _)| !after(*end, ack));
        let count = covered.count();
        // As tcptrace: the last segment that an ACK covers.
        if let Some((_, sent_ns)) = flow.waiting.drain(..count).next_back() {
            flow.acked.push((time_ns, time_ns - sent_ns));
        }
    }
}
