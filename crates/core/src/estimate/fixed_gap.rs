// SPDX-License-Identifier: Apache-2.0
//! PIRATE's Algorithm 1.

use super::native::{self, FixedGapState};
use super::{Packet, Samples};

/// Parameters of Algorithm 1 (`struct fixed_gap_config`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedGapConfig {
    /// Pauses up to this are within a batch. Nanoseconds.
    pub delta_ns: u64,
    /// Pauses from this on are idleness or loss and give no sample. Nanoseconds.
    pub idle_ns: u64,
}

const _: () = assert!(size_of::<FixedGapConfig>() == 16);

impl Default for FixedGapConfig {
    /// 100 us, and the smallest retransmission timeout of Linux, 200 ms.
    fn default() -> Self {
        Self {
            delta_ns: 100_000,
            idle_ns: 200_000_000,
        }
    }
}

/// Algorithm 1 on one flow: a packet after a pause begins a batch, and the time
/// between two beginnings is a latency; `bpf/shared/fixed_gap.h`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedGap {
    config: FixedGapConfig,
    state: FixedGapState,
}

impl FixedGap {
    /// A flow without packets.
    pub fn new(config: FixedGapConfig) -> Self {
        Self {
            config,
            state: FixedGapState::default(),
        }
    }

    /// Takes the next packet of the flow.
    pub fn packet(&mut self, packet: &Packet) -> Samples {
        native::fixed_gap_packet(&mut self.state, &self.config, packet)
    }

    /// The state, as the kernel holds it.
    pub fn state(&self) -> &FixedGapState {
        &self.state
    }
}
