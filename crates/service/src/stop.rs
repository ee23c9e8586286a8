// SPDX-License-Identifier: Apache-2.0
//! Ending by Ctrl-C, `kill` or a terminal that is closed: the first ends the run and prints
//! what was measured, the second ends the program.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static STOPPED: AtomicBool = AtomicBool::new(false);

extern "C" fn stop(_: libc::c_int) {
    STOPPED.store(true, Ordering::Relaxed);
}

/// Catches SIGINT, SIGTERM and SIGHUP once each; the last not under `nohup`.
pub fn catch_signals() -> nix::Result<()> {
    let action = SigAction::new(
        SigHandler::Handler(stop),
        SaFlags::SA_RESETHAND,
        SigSet::empty(),
    );
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler does nothing but store to an atomic.
        let former = unsafe { sigaction(signal, &action) }?;
        if signal == Signal::SIGHUP && matches!(former.handler(), SigHandler::SigIgn) {
            // SAFETY: as it was.
            unsafe { sigaction(signal, &former) }?;
        }
    }
    Ok(())
}

/// Whether a signal has come.
pub fn stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}
