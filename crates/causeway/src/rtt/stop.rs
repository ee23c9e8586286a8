// SPDX-License-Identifier: Apache-2.0
//! Ending by Ctrl-C: the first ends the run and prints what was measured, the
//! second ends the program.

use std::sync::atomic::{AtomicBool, Ordering};

use causeway_io::rtt::clock;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static STOPPED: AtomicBool = AtomicBool::new(false);

/// A long wait is cut into pieces of this length, to look for Ctrl-C.
const PIECE_NS: u64 = 100_000_000;

extern "C" fn stop(_: libc::c_int) {
    STOPPED.store(true, Ordering::Relaxed);
}

/// Catches SIGINT and SIGTERM once each.
pub fn catch_signals() -> nix::Result<()> {
    let action = SigAction::new(
        SigHandler::Handler(stop),
        SaFlags::SA_RESETHAND,
        SigSet::empty(),
    );
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: the handler does nothing but store to an atomic.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(())
}

/// Whether a signal has come.
pub fn stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}

/// Waits until `at_ns` as [`clock::wait_until`] does; `None` if a signal came.
pub fn wait_until(at_ns: u64, busy_ns: u64) -> Option<u64> {
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
