// SPDX-License-Identifier: Apache-2.0
//! One user of the load generator and its connection.

use std::collections::VecDeque;
use std::net::TcpStream;

use rand::Rng;
use rand::rngs::StdRng;

use super::LoadConfig;
use super::log::LoggedResponse;
use super::page::{self, PageRun};
use super::protocol::Parser;

/// Random streams of a slot beside those of its pages.
const STREAM_PHASE: u64 = 1 << 40;

/// A request on the wire.
pub(super) struct Outstanding {
    pub object: usize,
    /// Body bytes that the answer must have.
    pub body: u64,
    /// Page and identifiers at the time of sending.
    pub response: LoggedResponse,
}

pub(super) struct Open {
    pub stream: TcpStream,
    /// Index into the log's connections.
    pub number: usize,
    pub connected: bool,
    /// No request is sent after this.
    pub retire_ns: u64,
    pub parser: Parser,
    pub outstanding: VecDeque<Outstanding>,
    /// Requests whose responses came in the last read and have set off none yet.
    pub arrived: VecDeque<u32>,
    /// When they came.
    pub arrived_ns: u64,
}

impl Open {
    /// The response that sets off a request for an object named by request
    /// `parent`: that one's, if it has just come, else one that made room.
    pub(super) fn trigger(&mut self, parent: Option<u32>) -> Option<u32> {
        let own = self.arrived.iter().position(|&id| Some(id) == parent);
        self.arrived.remove(own.unwrap_or(0))
    }
}

pub(super) struct Slot {
    pub number: usize,
    pub rng: StdRng,
    pub phase_ns: u64,
    pub next_page: u32,
    pub next_id: u32,
    pub run: Option<PageRun>,
    pub open: Option<Open>,
}

impl Slot {
    pub(super) fn new(config: &LoadConfig, number: usize) -> Self {
        let mut rng = page::rng(config.seed, number, STREAM_PHASE);
        let phase_ns = rng.random_range(0..config.page_interval_ms.max(1) * 1_000_000);
        Self {
            number,
            rng,
            phase_ns,
            next_page: 0,
            next_id: 0,
            run: None,
            open: None,
        }
    }

    /// When the timetable has the next page begin, counted from the start.
    pub(super) fn nominal_ns(&self, config: &LoadConfig) -> u64 {
        self.phase_ns + u64::from(self.next_page) * config.page_interval_ms * 1_000_000
    }
}
