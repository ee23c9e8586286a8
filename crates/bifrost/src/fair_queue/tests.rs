// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::send_buffer::SendBuffer;
use crate::types::Span;

const LONGEST: u32 = QUANTUM as u32;

/// A table that gives names of frames with their flow and length.
struct Table {
    frames: SendBuffer,
}

impl Table {
    fn new() -> Table {
        Table {
            frames: SendBuffer::new(16_384),
        }
    }

    fn frame(&mut self, flow: u16, len: u32) -> FrameRef {
        let span = Span {
            slot: 0,
            offset: 0,
            len,
        };
        self.frames.insert(0, span, flow, 1400, 64)
    }

    fn flow(&self, at: FrameRef) -> u16 {
        self.frames.get(at).unwrap().flow
    }

    fn len(&self, at: FrameRef) -> u32 {
        self.frames.get(at).unwrap().span.len
    }
}

/// The flows of `count` frames, in the order in which they are served.
fn served(pending: &mut FairQueue, table: &Table, count: usize) -> Vec<u16> {
    let mut flows = Vec::new();
    while flows.len() < count
        && let Some(at) = pending.front()
    {
        flows.push(table.flow(at));
        pending.pop(table.len(at));
    }
    flows
}

#[test]
fn a_request_goes_before_bulk_that_came_first() {
    let (mut pending, mut table) = (FairQueue::new(), Table::new());
    for _ in 0..12 {
        pending.push(1, table.frame(1, LONGEST / 3));
    }
    // Bulk has had a turn, and is in the midst of the next.
    assert_eq!(served(&mut pending, &table, 5), [1, 1, 1, 1, 1]);
    pending.push(2, table.frame(2, 100));
    assert_eq!(served(&mut pending, &table, 9), [2, 1, 1, 1, 1, 1, 1, 1]);
    assert!(pending.is_empty());
}

#[test]
fn requests_without_end_do_not_stop_bulk() {
    let (mut pending, mut table) = (FairQueue::new(), Table::new());
    for _ in 0..4 {
        pending.push(1, table.frame(1, LONGEST));
    }
    assert_eq!(served(&mut pending, &table, 1), [1]);
    // A flow that has one frame waiting whenever it is asked: its credit is used up in time.
    let mut bulk = 0;
    for _ in 0..4 * LONGEST / 1000 {
        if table_has(&mut pending, &table, 2).is_none() {
            pending.push(2, table.frame(2, 1000));
        }
        bulk += served(&mut pending, &table, 1)
            .iter()
            .filter(|flow| **flow == 1)
            .count();
    }
    assert_eq!(bulk, 3);
}

fn table_has(pending: &mut FairQueue, table: &Table, flow: u16) -> Option<FrameRef> {
    let mut all = pending.iter();
    all.find(|at| table.flow(*at) == flow)
}

#[test]
fn the_second_is_what_is_served_next() {
    for len in [LONGEST / 4, LONGEST / 2, LONGEST - 1, LONGEST] {
        for flows in [&[1, 1, 1, 1, 1][..], &[1, 1, 1, 1, 1, 2, 2, 3]] {
            let (mut pending, mut table) = (FairQueue::new(), Table::new());
            for flow in flows {
                pending.push(*flow, table.frame(*flow, len));
            }
            let mut second = pending.front();
            while let Some(at) = pending.front() {
                assert_eq!(second, Some(at), "{len} {flows:?}");
                second = pending.second(len);
                pending.pop(len);
            }
            assert_eq!(second, None);
        }
    }
}

#[test]
fn what_is_not_kept_is_not_counted() {
    let (mut pending, mut table) = (FairQueue::new(), Table::new());
    for flow in 0..8 {
        pending.push(flow, table.frame(flow, 1000));
    }
    pending.retain(|at| table.flow(at) % 2 == 1);
    assert_eq!(served(&mut pending, &table, 9), [1, 3, 5, 7]);
    assert!(pending.is_empty());
    pending.push(0, table.frame(0, 1000));
    pending.clear();
    assert!(pending.is_empty() && pending.front().is_none());
}

proptest! {
    /// Every frame is served once, those of a flow in their order, whatever comes in between.
    #[test]
    fn a_flow_keeps_its_order(steps in proptest::collection::vec((0u16..5, 50u32..LONGEST, any::<bool>()), 1..200)) {
        let (mut pending, mut table) = (FairQueue::new(), Table::new());
        let (mut waiting, mut count) = (BTreeMap::<u16, VecDeque<FrameRef>>::new(), 0);
        for (flow, len, serve) in steps {
            // Two of these share a queue.
            let flow = flow % 4 + 1024 * (flow / 4);
            let at = table.frame(flow, len);
            pending.push(flow, at);
            waiting.entry(flow).or_default().push_back(at);
            count += 1;
            if serve && let Some(at) = pending.front() {
                let first = waiting.get_mut(&table.flow(at)).and_then(VecDeque::pop_front);
                prop_assert_eq!(first, Some(at));
                pending.pop(table.len(at));
                count -= 1;
            }
        }
        prop_assert_eq!(pending.iter().count(), count);
        while let Some(at) = pending.front() {
            let first = waiting.get_mut(&table.flow(at)).and_then(VecDeque::pop_front);
            prop_assert_eq!(first, Some(at));
            pending.pop(table.len(at));
            count -= 1;
        }
        prop_assert_eq!((count, pending.is_empty()), (0, true));
    }

    /// Flows that always have something to send get the same number of bytes, but for two
    /// frames of the longest.
    #[test]
    fn flows_share_alike(lens in proptest::collection::vec(50u32..LONGEST, 2..6), turns in 50usize..300) {
        let (mut pending, mut table) = (FairQueue::new(), Table::new());
        for (flow, len) in (0u16..).zip(&lens) {
            pending.push(flow, table.frame(flow, *len));
        }
        let mut bytes = vec![0u64; lens.len()];
        for _ in 0..turns {
            let at = pending.front().unwrap();
            let (flow, len) = (table.flow(at), table.len(at));
            pending.pop(len);
            pending.push(flow, table.frame(flow, len));
            bytes[usize::from(flow)] += u64::from(len);
        }
        let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
        prop_assert!(most - least <= 2 * u64::from(LONGEST), "{:?}", bytes);
    }
}
