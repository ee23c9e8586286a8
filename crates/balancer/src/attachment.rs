// SPDX-License-Identifier: Apache-2.0
//! Watches what keeps the data plane in the kernel: its interface may be recreated, and its
//! pins may go.

use causeway_service::log_fault;
use tracing::warn;

use super::plane::DataPlane;

/// Looks, every two seconds, that find no program before its loss counts: an interface that is made
/// anew gets it at the next.
const LOST_AFTER: u32 = 2;

/// How the data plane was attached to its interface, and pinned, at the last look.
#[derive(Debug, Default)]
pub struct Attachment {
    error: Option<String>,
    /// Looks in succession that have found its program on no interface.
    looks_lost: u32,
}

impl Attachment {
    /// Has the data plane repair what it can, and logs what it cannot. `announces`: the log says, too,
    /// what a lost program means for VIPs that are announced.
    pub(crate) fn mend(&mut self, plane: &mut dyn DataPlane, announces: bool) {
        let fault = match plane.mend() {
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
                self.looks_lost = 0;
                None
            }
            Err(error) => {
                // What the kernel does not say is as it was.
                match plane.is_attached() {
                    Ok(true) => self.looks_lost = 0,
                    Ok(false) => self.looks_lost = self.looks_lost.saturating_add(1),
                    Err(_) => {}
                }
                let withdrawn = match self.has_lost_program() && announces {
                    true => "; no VIP is announced until the program is attached",
                    false => "",
                };
                Some(format!("{error:#}{withdrawn}"))
            }
        };
        log_fault!(
            self.error,
            fault,
            "{}",
            "the data plane is on its interface and pinned again"
        );
    }

    /// What is wrong with it.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Whether the program has been on no interface for some seconds: who announces VIPs then has
    /// their packets lost.
    pub(crate) fn has_lost_program(&self) -> bool {
        self.looks_lost >= LOST_AFTER
    }
}
