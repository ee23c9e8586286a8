// SPDX-License-Identifier: Apache-2.0
//! PIRATE's Algorithm 2.

use super::native::{self, ModesState};
use super::{Packet, Samples};

/// Which mode is taken for the gap between batches (`enum modes_ibg`).
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModesIbg {
    /// The largest one: the paper's choice.
    Largest = 0,
    /// The one that holds the most time. Where latency varies, the largest mode
    /// is often a single gap, and the estimate divides by its count of 1.
    #[default]
    MostTime = 1,
}

/// Parameters of Algorithm 2 and the proportional mode sum
/// (`struct modes_config`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModesConfig {
    /// A gap this close to a mode belongs to it. Nanoseconds.
    pub epsilon_ns: u64,
    /// The same as a share of the mode's edge, in thousandths; the larger of the
    /// two counts.
    pub epsilon_permille: u32,
    /// Modes kept, 1 to [`ModesConfig::MAX_MODES`].
    pub modes: u32,
    /// TCP: modes from here on are retransmission timeouts or idleness.
    /// Nanoseconds.
    pub tcp_timeout_ns: u64,
    /// The same for other protocols: probe timeouts. Nanoseconds.
    pub other_timeout_ns: u64,
    /// Which mode is the gap between batches.
    pub ibg: ModesIbg,
    /// Only modes with a gap after a packet shorter than this can be that mode:
    /// clients that need not wait send full packets. IP length; 0: any mode.
    pub mtu: u32,
}

const _: () = assert!(size_of::<ModesConfig>() == 40);

impl ModesConfig {
    /// Most modes that a flow can keep.
    pub const MAX_MODES: u32 = 10;

    /// As the paper has it: absolute epsilon, the largest mode. It gives no value
    /// for epsilon.
    pub fn paper(epsilon_ns: u64) -> Self {
        Self {
            epsilon_ns,
            epsilon_permille: 0,
            ibg: ModesIbg::Largest,
            ..Self::default()
        }
    }
}

impl Default for ModesConfig {
    /// Ten modes, epsilon a quarter of a mode's edge, the mode with the most
    /// time. Timeouts are 200 ms: Linux's smallest RTO (RFC 6298 has 1 s) and,
    /// for QUIC, well above the probe timeout of a short path and below the 999
    /// ms of RFC 9002 before there is a sample.
    fn default() -> Self {
        Self {
            epsilon_ns: 0,
            epsilon_permille: 250,
            modes: Self::MAX_MODES,
            tcp_timeout_ns: 200_000_000,
            other_timeout_ns: 200_000_000,
            ibg: ModesIbg::MostTime,
            mtu: 1500,
        }
    }
}

/// Algorithm 2 on one flow; `bpf/shared/modes.h`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modes {
    config: ModesConfig,
    state: ModesState,
}

impl Modes {
    /// A flow without packets.
    pub fn new(config: ModesConfig) -> Self {
        Self {
            config,
            state: ModesState::default(),
        }
    }

    /// Takes the next packet of the flow.
    pub fn packet(&mut self, packet: &Packet) {
        native::modes_packet(&mut self.state, &self.config, packet);
    }

    /// Ends the epoch: its latency, once for each gap between batches.
    pub fn end_epoch(&mut self) -> Samples {
        native::modes_end_epoch(&mut self.state, &self.config)
    }

    /// Gaps that found no mode since the flow began.
    pub fn discarded(&self) -> u32 {
        native::modes_discarded(&self.state)
    }

    /// The state, as the kernel holds it.
    pub fn state(&self) -> &ModesState {
        &self.state
    }
}
