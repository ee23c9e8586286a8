// SPDX-License-Identifier: Apache-2.0
//! Watches what keeps the data plane in the kernel: its interface may be recreated, and its
//! pins may go.

use tracing::{info, warn};

use super::engine::Engine;

impl Engine {
    /// Has the data plane repair what it can, and logs what it cannot.
    pub(super) fn mend(&mut self) {
        let fault = match self.plane.mend() {
            Ok(changes) => {
                if let Some(interface) = &changes.attached {
                    warn!(
                        "interface {} was removed and is there again: the program is attached, and packets are forwarded",
                        interface.name
                    );
                }
                if changes.pinned > 0 {
                    warn!(
                        "pins of the data plane were removed; {} of them are restored: without pins it would end with this process",
                        changes.pinned
                    );
                }
                None
            }
            Err(error) => Some(format!("{error:#}")),
        };
        if fault != self.hold_error {
            match &fault {
                Some(fault) => warn!("{fault}"),
                None => info!("the data plane is on its interface and pinned again"),
            }
            self.hold_error = fault;
        }
    }

    /// What is wrong with the data plane's hold in the kernel.
    pub(super) fn hold_error(&self) -> Option<&str> {
        self.hold_error.as_deref()
    }
}
