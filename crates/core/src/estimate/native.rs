// SPDX-License-Identifier: Apache-2.0
//! The C of `bpf/shared`, behind safe functions.
//!
//! The states are opaque here: only the C knows their fields. Each is a plain
//! array of words that starts as zero, so copying, comparing and dropping one
//! needs no C.

use super::{FixedGapConfig, Packet, Samples};

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

unsafe extern "C" {
    fn cw_window_chain_packet(s: *mut WindowChainState, p: *const Packet, out: *mut Samples);
    fn cw_window_chain_finish(s: *mut WindowChainState, out: *mut Samples);
    fn cw_fixed_gap_packet(
        s: *mut FixedGapState,
        config: *const FixedGapConfig,
        p: *const Packet,
        out: *mut Samples,
    );
}

pub(super) fn window_chain_packet(state: &mut WindowChainState, packet: &Packet) -> Samples {
    let mut out = Samples::default();
    // SAFETY: the pointers come from references to types of the C layout; the C
    // function touches nothing else and keeps none of them.
    unsafe { cw_window_chain_packet(state, packet, &mut out) };
    out
}

pub(super) fn window_chain_finish(state: &mut WindowChainState) -> Samples {
    let mut out = Samples::default();
    // SAFETY: as above.
    unsafe { cw_window_chain_finish(state, &mut out) };
    out
}

pub(super) fn fixed_gap_packet(
    state: &mut FixedGapState,
    config: &FixedGapConfig,
    packet: &Packet,
) -> Samples {
    let mut out = Samples::default();
    // SAFETY: as above.
    unsafe { cw_fixed_gap_packet(state, config, packet, &mut out) };
    out
}
