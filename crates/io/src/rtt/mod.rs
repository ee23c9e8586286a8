// SPDX-License-Identifier: Apache-2.0
//! The system calls behind `causeway rtt`: clocks and timers, request/response
//! channels, tcp_info, ICMP echo, and the packet sampler.

mod channel;
pub mod clock;
mod ping;
mod sampler;
mod tcp_info;

pub use channel::{Channel, Exchange, connect, read_exactly, set_timeouts};
pub use ping::{PingError, Pinger};
pub use sampler::{Sampler, SamplerCost, SamplerOptions, interface_of, sampler_cost};
pub use tcp_info::TcpInfo;
