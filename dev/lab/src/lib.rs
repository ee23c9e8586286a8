// SPDX-License-Identifier: Apache-2.0
//! The laboratory: network namespaces, real servers, clients that log what
//! they measured, and scenarios built from them. Needs root; development only.
//!
//! Everything runs inside a [`sandbox::Sandbox`]: fresh mount, PID and network
//! namespaces that the kernel takes down whatever happens to us. Namespaces,
//! servers and cgroups ask for the sandbox as proof, so that nothing of the
//! lab can be built on the host by mistake.

pub mod accept_queue_server;
pub mod agent;
pub mod api;
pub mod background;
pub mod balancer;
pub mod cgroup;
pub mod chance;
pub mod clock;
pub mod cpu;
pub mod daemon;
pub mod impatient_clients;
pub mod link;
pub mod link_emulator;
pub mod load;
pub mod modelled_servers;
pub mod netns;
pub mod nginx;
pub mod outcome;
pub mod path;
pub mod quic;
pub mod record;
pub mod role;
pub mod rtt_study;
pub mod sandbox;
pub mod scenario;
pub mod series;
pub mod statistics;
pub mod syn_timeout;
pub mod timed_http_server;
pub mod topology;
