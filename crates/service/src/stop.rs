// SPDX-License-Identifier: Apache-2.0
//! Ending by Ctrl-C: the first ends the run and prints what was measured, the
//! second ends the program.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static STOPPED: AtomicBool = AtomicBool::new(false);

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
