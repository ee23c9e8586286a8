// SPDX-License-Identifier: Apache-2.0
//! The words that a key of the agent's file may hold.

use causeway_service::words;

words! {
    /// What an agent does about listeners' accept queues.
    AcceptQueuePolicy, "accept_queue", {
        /// Looks on.
        Observe = "observe",
        /// Sets their limits by client latency.
        Manage = "manage",
    }
}

words! {
    /// When clients send SYNs again.
    RetrySchedule, "schedule", {
        /// Linux 6.5 and newer.
        Linux = "linux",
        /// 1 s, doubled: older Linux, recent Windows.
        Rfc6298 = "rfc6298",
        /// 3 s, doubled.
        Rfc1122 = "rfc1122",
        /// BSD and macOS.
        Bsd = "bsd",
    }
}
