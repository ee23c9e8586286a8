// SPDX-License-Identifier: Apache-2.0
//! The words that a key of the tunnel's file may hold.

use causeway_service::words;

words! {
    /// How a tunnel's flow gets its path.
    TunnelSchedule, "schedule", {
        /// The lowest expected completion.
        Completion = "completion",
        /// The lowest smoothed RTT.
        LowestRtt = "lowest-rtt",
        /// Frame by frame.
        Spray = "spray",
    }
}

impl From<TunnelSchedule> for causeway_bifrost::Schedule {
    fn from(schedule: TunnelSchedule) -> Self {
        match schedule {
            TunnelSchedule::Completion => Self::Completion,
            TunnelSchedule::LowestRtt => Self::LowestRtt,
            TunnelSchedule::Spray => Self::Spray,
        }
    }
}

words! {
    /// What a tunnel's thread does when nothing is left to do.
    PollMode, "poll mode", {
        /// Sleep until something comes.
        Sleep = "sleep",
        /// Look again and again for a while, then sleep.
        Spin = "spin",
    }
}
