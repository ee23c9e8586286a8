// SPDX-License-Identifier: Apache-2.0
//! The C of `bpf/shared`, behind safe functions.
//!
//! The states are opaque here: only the C knows their fields. Each is a plain
//! array of words that starts as zero, so copying, comparing and dropping one
//! needs no C.

use std::mem::MaybeUninit;

use super::{FixedGapConfig, ModesConfig, Packet, Samples};

/// Declares a state as words of the size that the C header asserts.
macro_rules! state {
    ($(#[$doc:meta])* $name:ident, $bytes:literal) => {
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name([u64; $bytes / 8]);

        impl Default for $name {
            fn default() -> Self {
                Self([0; $bytes / 8])
            }
        }

        impl $name {
            /// Bytes that one flow needs.
            pub const BYTES: usize = $bytes;

            /// The state as it lies in memory, in the kernel's map too.
            pub fn to_bytes(&self) -> [u8; $bytes] {
                let mut bytes = [0; $bytes];
                for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.0) {
                    chunk.copy_from_slice(&word.to_ne_bytes());
                }
                bytes
            }
        }
    };
}

state!(
    /// State of [`super::WindowChain`]: `struct wc_state`.
    WindowChainState,
    128
);
state!(
    /// State of [`super::FixedGap`]: `struct fixed_gap_state`.
    FixedGapState,
    16
);
state!(
    /// State of [`super::Modes`]: `struct modes_state`.
    ModesState,
    176
);

unsafe extern "C" {
    // The two steps answer whether there is a sample in `out`.
    fn causeway_window_chain_packet(
        s: *mut WindowChainState,
        p: *const Packet,
        out: *mut Samples,
    ) -> bool;
    // Answers which of the first two have a sample, which their `out` then holds: bits 0
    // and 1.
    fn causeway_three_packet(
        s: *mut ThreeStates,
        config: *const ThreeConfigs,
        p: *const Packet,
        out: *mut [MaybeUninit<Samples>; 2],
    ) -> u32;
    fn causeway_window_chain_finish(s: *mut WindowChainState, out: *mut Samples);
    fn causeway_fixed_gap_packet(
        s: *mut FixedGapState,
        config: *const FixedGapConfig,
        p: *const Packet,
        out: *mut Samples,
    ) -> bool;
    fn causeway_modes_packet(s: *mut ModesState, config: *const ModesConfig, p: *const Packet);
    fn causeway_modes_end_epoch(s: *mut ModesState, config: *const ModesConfig, out: *mut Samples);
    fn causeway_modes_discarded(s: *const ModesState) -> u32;
}

pub(super) fn window_chain_packet(state: &mut WindowChainState, packet: &Packet) -> Samples {
    let mut out = Samples::default();
    // SAFETY: the pointers come from references to types of the C layout; the C
    // function touches nothing else and keeps none of them.
    unsafe { causeway_window_chain_packet(state, packet, &mut out) };
    out
}

/// [`window_chain_packet`] into `out`; `None` where nothing became known.
#[inline]
pub(super) fn window_chain_step<'a>(
    state: &mut WindowChainState,
    packet: &Packet,
    out: &'a mut MaybeUninit<Samples>,
) -> Option<&'a Samples> {
    // SAFETY: as above; a step writes all of `out`.
    unsafe {
        causeway_window_chain_packet(state, packet, out.as_mut_ptr()).then(|| out.assume_init_ref())
    }
}

/// The states of all three estimators of a flow: `struct three_states`.
#[repr(C)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ThreeStates {
    pub(super) chain: WindowChainState,
    pub(super) gap: FixedGapState,
    pub(super) modes: ModesState,
}

const _: () = assert!(size_of::<ThreeStates>() == 320);

/// Their parameters: `struct three_configs`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ThreeConfigs {
    pub(super) gap: FixedGapConfig,
    pub(super) modes: ModesConfig,
}

/// The steps of all three into `out`; `None` where nothing became known. `modes` never
/// knows anything before its epoch ends.
#[inline]
pub(super) fn three_step<'a>(
    states: &mut ThreeStates,
    configs: &ThreeConfigs,
    packet: &Packet,
    out: &'a mut [MaybeUninit<Samples>; 2],
) -> [Option<&'a Samples>; 2] {
    // SAFETY: as above; a step writes all of an element of `out` before it says that it
    // has a sample.
    unsafe {
        let found = causeway_three_packet(states, configs, packet, out);
        [
            (found & 1 != 0).then(|| out[0].assume_init_ref()),
            (found & 2 != 0).then(|| out[1].assume_init_ref()),
        ]
    }
}

pub(super) fn window_chain_finish(state: &mut WindowChainState) -> Samples {
    let mut out = Samples::default();
    // SAFETY: as above.
    unsafe { causeway_window_chain_finish(state, &mut out) };
    out
}

pub(super) fn fixed_gap_packet(
    state: &mut FixedGapState,
    config: &FixedGapConfig,
    packet: &Packet,
) -> Samples {
    let mut out = Samples::default();
    // SAFETY: as above.
    unsafe { causeway_fixed_gap_packet(state, config, packet, &mut out) };
    out
}

/// [`fixed_gap_packet`] into `out`; `None` where nothing became known.
#[inline]
pub(super) fn fixed_gap_step<'a>(
    state: &mut FixedGapState,
    config: &FixedGapConfig,
    packet: &Packet,
    out: &'a mut MaybeUninit<Samples>,
) -> Option<&'a Samples> {
    // SAFETY: as above; a step writes all of `out`.
    unsafe {
        causeway_fixed_gap_packet(state, config, packet, out.as_mut_ptr())
            .then(|| out.assume_init_ref())
    }
}

#[inline]
pub(super) fn modes_packet(state: &mut ModesState, config: &ModesConfig, packet: &Packet) {
    // SAFETY: as above.
    unsafe { causeway_modes_packet(state, config, packet) };
}

pub(super) fn modes_end_epoch(state: &mut ModesState, config: &ModesConfig) -> Samples {
    let mut out = Samples::default();
    // SAFETY: as above.
    unsafe { causeway_modes_end_epoch(state, config, &mut out) };
    out
}

pub(super) fn modes_discarded(state: &ModesState) -> u32 {
    // SAFETY: as above.
    unsafe { causeway_modes_discarded(state) }
}
