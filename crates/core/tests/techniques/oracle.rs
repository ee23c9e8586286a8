// SPDX-License-Identifier: Apache-2.0
//! The matching techniques, as slow and plain as can be: they keep everything.

use std::collections::{HashMap, HashSet};

use causeway_core::estimate::{Packet, Segment, Side};

fn len(segment: &Segment) -> u32 {
    segment.packet.payload_len + u32::from(segment.packet.tcp_flags & Packet::SYN != 0)
}

/// Byte for byte: when each was sent last, how often, and whether it has been
/// acknowledged. An ACK is matched with the segment of the newest byte among those
/// that it acknowledges first, if every one of them was sent once. Bytes of a
/// segment that was retransmitted in part count as retransmitted.
pub(crate) fn seq_ack(side: Side, segments: &[Segment]) -> Vec<(u64, f64)> {
    // Ends and bytes of the segments with something new.
    let mut sent: Vec<(u64, Vec<u32>)> = Vec::new();
    let mut times: HashMap<u32, u32> = HashMap::new();
    let mut acked: HashSet<u32> = HashSet::new();
    let mut found = Vec::new();
    for segment in segments {
        let (seq, t_ns) = (segment.packet.seq, segment.packet.t_ns);
        if segment.from != side {
            let bytes: Vec<u32> = (0..len(segment)).map(|i| seq.wrapping_add(i)).collect();
            let last = bytes.last().copied();
            bytes
                .iter()
                .for_each(|byte| *times.entry(*byte).or_default() += 1);
            if last.is_some_and(|last| times[&last] == 1) {
                sent.push((t_ns, bytes));
            }
            continue;
        }
        let covered = |bytes: &[u32]| {
            let end = bytes[bytes.len() - 1].wrapping_add(1);
            segment.packet.ack.wrapping_sub(end) as i32 >= 0
        };
        let fresh: Vec<_> = sent
            .iter()
            .filter(|(_, bytes)| covered(bytes) && !acked.contains(&bytes[bytes.len() - 1]))
            .collect();
        let once = |bytes: &[u32]| bytes.iter().all(|byte| times[byte] == 1);
        if let Some((sent_ns, _)) = fresh.last()
            && fresh.iter().all(|(_, bytes)| once(bytes))
        {
            found.push((t_ns, (t_ns - sent_ns) as f64));
        }
        acked.extend(fresh.iter().map(|(_, bytes)| bytes[bytes.len() - 1]));
    }
    found
}

/// The first passing of each timestamp value on a segment that calls for an
/// answer, and the first of its echo, if no later value was echoed before.
pub(crate) fn timestamps(side: Side, segments: &[Segment]) -> Vec<(u64, f64)> {
    let mut first: HashMap<u32, (u64, bool)> = HashMap::new();
    let mut echoed: Option<u32> = None;
    let mut found = Vec::new();
    for segment in segments {
        let t_ns = segment.packet.t_ns;
        if segment.from != side {
            first
                .entry(segment.tsval)
                .or_insert((t_ns, len(segment) > 0));
            continue;
        }
        let tsecr = segment.packet.tsecr;
        if echoed.is_some_and(|newest| newest >= tsecr) {
            continue;
        }
        echoed = Some(tsecr);
        if let Some(&(sent_ns, true)) = first.get(&tsecr) {
            found.push((t_ns, (t_ns - sent_ns) as f64));
        }
    }
    found
}

/// Every segment with data, retransmitted or not, with the first ACK that covers it.
pub(crate) fn every_segment(side: Side, segments: &[Segment]) -> Vec<(u64, f64)> {
    let mut waiting: Vec<(u32, u64)> = Vec::new();
    let mut found = Vec::new();
    for segment in segments {
        let t_ns = segment.packet.t_ns;
        if segment.from != side {
            if len(segment) > 0 {
                waiting.push((segment.packet.seq.wrapping_add(len(segment)), t_ns));
            }
            continue;
        }
        let covered = |end: u32| segment.packet.ack.wrapping_sub(end) as i32 >= 0;
        let latencies: Vec<u64> = waiting
            .iter()
            .filter(|(end, _)| covered(*end))
            .map(|(_, sent_ns)| t_ns - sent_ns)
            .collect();
        waiting.retain(|(end, _)| !covered(*end));
        if !latencies.is_empty() {
            let mean = latencies.iter().sum::<u64>() as f64 / latencies.len() as f64;
            found.push((t_ns, mean));
        }
    }
    found
}
