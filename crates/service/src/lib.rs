// SPDX-License-Identifier: Apache-2.0
//! What the daemons of Causeway share: the process around each (signals, sockets, systemd's
//! notifications), the reading of configuration files with all faults reported at once, the
//! answers and metrics that every API has. It knows what a daemon is, and not what any one
//! of them does; it calls nothing of the data plane.

pub mod access;
pub mod api;
pub mod config;
pub mod exchange;
mod files;
pub mod http;
pub mod last_good;
mod linger;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod notify;
pub mod privileges;
pub mod process;
mod random;
pub mod seal;
pub mod stop;
pub mod tls;
pub mod tokens;

pub use files::{FileRights, beside, keep_file, parse_version, replace_beside, replace_file};
pub use random::random;
