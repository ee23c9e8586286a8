// SPDX-License-Identifier: Apache-2.0
//! Causeway's own estimator.

use super::native::{self, WindowChainState};
use super::{Packet, Samples};

/// The window-chain estimator of one flow; `bpf/shared/window_chain.h`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowChain {
    state: WindowChainState,
}

impl WindowChain {
    /// Takes the next packet of the flow.
    pub fn packet(&mut self, packet: &Packet) -> Samples {
        native::window_chain_packet(&mut self.state, packet)
    }

    /// Ends the flow, and gives what its last bursts still say.
    pub fn finish(&mut self) -> Samples {
        native::window_chain_finish(&mut self.state)
    }

    /// The state, as the kernel holds it.
    pub fn state(&self) -> &WindowChainState {
        &self.state
    }
}
