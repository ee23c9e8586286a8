//! All of Causeway's logic that needs no I/O: no clock, no socket, no thread,
//! no ambient randomness. Everything takes `now`, bytes and a seed, and gives
//! back values, so that the kernel, the pcap reader, the simulator and the
//! tests run the same code.

#![warn(missing_docs)]

pub mod agent_report;
pub mod ages;
pub mod announce;
pub mod capture;
pub mod certes;
pub mod control;
pub mod cookie;
pub mod envelope;
pub mod estimate;
pub mod filter;
pub mod fleet;
pub mod flow;
pub mod flow_spot;
pub mod health;
pub mod hist;
pub mod limit;
pub mod peer;
pub mod rtt;
pub mod select;
pub mod wire;
