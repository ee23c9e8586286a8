// SPDX-License-Identifier: Apache-2.0
//! Events in the order of their times; those of the same time in the order in which
//! they were added.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What is to happen, and when.
#[derive(Debug)]
pub struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    added: u64,
    now_ns: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at_ns: u64,
    number: u64,
    event: E,
}

impl<E> Entry<E> {
    fn key(&self) -> (u64, u64) {
        (self.at_ns, self.number)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::new(),
            added: 0,
            now_ns: 0,
        }
    }
}

impl<E> EventQueue<E> {
    /// The present: the time of the event that was taken last.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Adds an event. One for the past happens at once.
    pub fn at(&mut self, at_ns: u64, event: E) {
        self.added += 1;
        let entry = Entry {
            at_ns: at_ns.max(self.now_ns),
            number: self.added,
            event,
        };
        self.heap.push(Reverse(entry));
    }

    /// Adds an event `after_ns` from now.
    pub fn after(&mut self, after_ns: u64, event: E) {
        self.at(self.now_ns.saturating_add(after_ns), event);
    }

    /// The next event that comes before `end_ns`; the present moves to its time.
    pub fn next_before(&mut self, end_ns: u64) -> Option<E> {
        if self.heap.peek()?.0.at_ns >= end_ns {
            return None;
        }
        let Reverse(entry) = self.heap.pop()?;
        self.now_ns = entry.at_ns;
        Some(entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::EventQueue;

    #[test]
    fn events_come_by_time_then_by_order_of_adding() {
        let mut queue = EventQueue::default();
        queue.at(20, 'c');
        queue.at(10, 'a');
        queue.at(20, 'd');
        queue.at(10, 'b');
        let order: String = std::iter::from_fn(|| queue.next_before(21)).collect();
        assert_eq!(order, "abcd");
        assert_eq!(queue.now_ns(), 20);
    }

    #[test]
    fn the_past_is_now_and_the_end_is_left_out() {
        let mut queue = EventQueue::default();
        queue.at(10, 1);
        assert_eq!(queue.next_before(11), Some(1));
        queue.at(3, 2);
        queue.after(5, 3);
        assert_eq!(queue.next_before(15), Some(2));
        assert_eq!(queue.now_ns(), 10);
        assert_eq!(queue.next_before(15), None);
        assert_eq!(queue.next_before(16), Some(3));
    }
}
