// SPDX-License-Identifier: Apache-2.0

//! Whether to read frames beyond what windows let through. A request would else wait in the
//! TUN behind all that bulk flows have put there: in the engine flows take turns. Bulk alone
//! stays in the TUN, as what waits leaves the cache.

use crate::config::{Limits, TransportConfig};
use crate::wire::FLOW_WINDOW;

/// A flow is bulk with a frame of several chunks, or with this much under way.
const BULK_BYTES: u32 = 65_536;
/// A flow with no more than this under way has little to send.
const LITTLE_BYTES: u32 = 16_384;
/// A flow with little to send stands beside bulk when it sends within this time after some.
const BESIDE_NS: u64 = 20_000_000;
/// Both are then expected to go on for this long.
const MIXED_NS: u64 = 10_000_000_000;
/// No more frames than this wait for a window: half of what a flow may have.
const MAX_FRAMES: usize = FLOW_WINDOW as usize / 2;

/// Notes which kinds of flows send.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadAhead {
    /// The flow that had bulk last, and when it had it.
    bulk: Option<(u16, u64)>,
    /// Until then other flows are expected beside it.
    mixed_until_ns: u64,
}

impl ReadAhead {
    /// A frame of a flow was read, which has `held` bytes under way with it.
    pub(crate) fn on_frame(&mut self, now_ns: u64, flow: u16, chunks: u8, held: u32) {
        if chunks > 1 || held > BULK_BYTES {
            self.bulk = Some((flow, now_ns));
        } else if let Some((bulk, at_ns)) = self.bulk
            && flow != bulk
            && held <= LITTLE_BYTES
            && now_ns < at_ns + BESIDE_NS
        {
            self.mixed_until_ns = now_ns + MIXED_NS;
        }
    }

    /// Bytes to read ahead while `frames` wait; `sends_in` says what the paths send in a time.
    pub(crate) fn bytes(
        &self,
        now_ns: u64,
        frames: usize,
        config: &TransportConfig,
        sends_in: impl FnOnce(u64) -> u64,
    ) -> u64 {
        if now_ns >= self.mixed_until_ns || frames >= MAX_FRAMES {
            return 0;
        }
        // What waits for long is abandoned.
        let ahead_ns = config.read_ahead_ns.min(config.frame_lifetime_ns / 4);
        let Limits { flow_bytes, .. } = config.limits;
        sends_in(ahead_ns).min(flow_bytes / 2)
    }
}
