// SPDX-License-Identifier: Apache-2.0
//! What one flow needs of an estimator, without what all flows have in common.

use std::mem::MaybeUninit;

use super::native::{self, FixedGapState, ModesState, WindowChainState};
use super::{Method, Packet, Samples};

/// The state of any estimator for one flow. An [`Estimator`](super::Estimator)
/// keeps its parameters with it; with a million flows they are better kept once,
/// so every call here takes the [`Method`] that the state was made for. With
/// another one it does nothing.
///
/// The legal order of calls is that of [`Estimator`](super::Estimator). `None`
/// stands for no sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// See [`WindowChain`](super::WindowChain).
    WindowChain(WindowChainState),
    /// See [`FixedGap`](super::FixedGap).
    FixedGap(FixedGapState),
    /// See [`Modes`](super::Modes).
    Modes(ModesState),
}

impl State {
    /// A flow without packets.
    pub fn new(method: &Method) -> Self {
        match method {
            Method::WindowChain => Self::WindowChain(WindowChainState::default()),
            Method::FixedGap(_) => Self::FixedGap(FixedGapState::default()),
            Method::Modes(_) => Self::Modes(ModesState::default()),
        }
    }

    /// Takes the next packet of the flow. What becomes known stands in `out`.
    #[inline]
    pub fn packet<'a>(
        &mut self,
        method: &Method,
        packet: &Packet,
        out: &'a mut MaybeUninit<Samples>,
    ) -> Option<&'a Samples> {
        match (self, method) {
            (Self::WindowChain(state), _) => native::window_chain_step(state, packet, out),
            (Self::FixedGap(state), Method::FixedGap(config)) => {
                native::fixed_gap_step(state, config, packet, out)
            }
            (Self::Modes(state), Method::Modes(config)) => {
                native::modes_packet(state, config, packet);
                None
            }
            _ => None,
        }
    }

    /// Ends an epoch.
    #[inline]
    pub fn end_epoch(&mut self, method: &Method) -> Option<Samples> {
        match (self, method) {
            (Self::Modes(state), Method::Modes(config)) => {
                some(native::modes_end_epoch(state, config))
            }
            _ => None,
        }
    }

    /// Ends the flow, and with it the epoch.
    pub fn finish(&mut self, method: &Method) -> Option<Samples> {
        match self {
            Self::WindowChain(state) => some(native::window_chain_finish(state)),
            Self::FixedGap(_) | Self::Modes(_) => self.end_epoch(method),
        }
    }
}

fn some(samples: Samples) -> Option<Samples> {
    samples.iter().next().is_some().then_some(samples)
}
