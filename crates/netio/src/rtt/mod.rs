// SPDX-License-Identifier: Apache-2.0
//! The system calls behind `causeway rtt`: clocks and timers, request/response
//! channels, tcp_info, counters of retransmission and ICMP echo.

mod channel;
pub mod clock;
mod ping;
mod retransmits;
mod tcp_info;

pub use channel::{Channel, Exchange, connect, keep_alive, read_exactly, set_timeouts};
pub use ping::{PingError, Pinger};
pub use retransmits::retransmits;
pub use tcp_info::TcpInfo;
