// SPDX-License-Identifier: Apache-2.0
//! What the kernel counts of segments that it sends again.

use std::{fs, io};

use causeway_core::rtt::explain::Retransmits;

/// The counters of this thread's network namespace.
///
/// # Errors
/// `/proc` is not there.
pub fn retransmits() -> io::Result<Retransmits> {
    let snmp = fs::read_to_string("/proc/thread-self/net/snmp")?;
    let netstat = fs::read_to_string("/proc/thread-self/net/netstat")?;
    Ok(Retransmits::parse(&snmp, &netstat))
}
