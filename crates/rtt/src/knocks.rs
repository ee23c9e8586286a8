// SPDX-License-Identifier: Apache-2.0
//! Handshakes with a host where nothing of ours runs, one a tick: TCP connections that are
//! opened, and closed at once.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use causeway_core::rtt::RttMethod;
use causeway_netio::rtt::clock;
use causeway_service::stop;

use super::echoes::Plan;
use super::records::Records;

/// Longest sleep without a look at whether all is done.
const LOOK_NS: u64 = 50_000_000;

/// What became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Knocks {
    /// Connections that were opened.
    pub opened: u64,
    /// Those that the host refused: it is there, and nothing listens at that port.
    pub refused: u64,
    /// Those that nothing answered in time, or that this host could not open.
    pub failed: u64,
}

/// Opens connections until the plan's end; the times of those that were opened go to `records`.
pub(crate) fn start(
    to: SocketAddr,
    timeout: Duration,
    plan: Plan,
    records: Arc<Records>,
) -> JoinHandle<Knocks> {
    thread::spawn(move || {
        clock::set_least_timer_slack();
        let mut knocks = Knocks::default();
        let mut due_ns = plan.start_ns;
        let ends = || plan.done.load(Ordering::Relaxed) || stop::stopped();
        while due_ns < plan.end_ns && !ends() {
            knock(to, timeout, &mut knocks, &records);
            due_ns = plan.after(due_ns, clock::now_ns());
            while clock::now_ns() < due_ns && !ends() {
                clock::sleep_until(due_ns.min(clock::now_ns() + LOOK_NS));
            }
        }
        knocks
    })
}

fn knock(to: SocketAddr, timeout: Duration, knocks: &mut Knocks, records: &Records) {
    let sent_ns = clock::now_ns();
    match TcpStream::connect_timeout(&to, timeout) {
        Ok(_) => {
            knocks.opened += 1;
            records.record(RttMethod::Synack, clock::now_ns() - sent_ns, 1);
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => knocks.refused += 1,
        Err(error) => {
            knocks.failed += 1;
            tracing::debug!("a connection could not be opened: {error}");
        }
    }
}
