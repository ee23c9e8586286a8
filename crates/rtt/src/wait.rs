// SPDX-License-Identifier: Apache-2.0
//! Waiting that ends with Ctrl-C.

use causeway_netio::rtt::clock;
use causeway_service::stop::stopped;

/// A long wait is cut into pieces of this length, to look for Ctrl-C.
const PIECE_NS: u64 = 100_000_000;

/// Waits until `at_ns` as [`clock::wait_until`] does; `None` if a signal came.
pub(crate) fn wait_until(at_ns: u64, busy_ns: u64) -> Option<u64> {
    loop {
        if stopped() {
            return None;
        }
        let now = clock::now_ns();
        if at_ns.saturating_sub(now) <= PIECE_NS + busy_ns {
            return Some(clock::wait_until(at_ns, busy_ns));
        }
        clock::sleep_until(now + PIECE_NS);
    }
}
