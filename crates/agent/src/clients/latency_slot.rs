// SPDX-License-Identifier: Apache-2.0
//! The way of services' latencies to the task that reports them.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use causeway_core::agent_report::{ServerTimes, ServiceLatency};
use causeway_core::certes::Estimate;

/// What clients of services waited for in the last second, until it is taken; clones
/// share it.
#[derive(Debug, Clone, Default)]
pub struct LatencySlot(Arc<Mutex<Option<Vec<ServiceLatency>>>>);

impl LatencySlot {
    /// Puts a second in the place of the one before.
    pub fn set(&self, services: Vec<ServiceLatency>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(services);
    }

    /// The last second, if it was not taken.
    pub fn take(&self) -> Option<Vec<ServiceLatency>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A service's part of a report.
pub(super) fn service(address: Option<IpAddr>, port: u16, of: &Estimate) -> ServiceLatency {
    let transactions = of.transactions();
    ServiceLatency {
        address,
        port,
        transactions_milli: (transactions * 1e3).round() as u64,
        response_ns: (of.mean_s().unwrap_or(0.0) * transactions * 1e9).round() as u64,
        server: Some(ServerTimes {
            timed_milli: (of.timed * 1e3).round() as u64,
            sum_ns: (of.timed_s * 1e9).round() as u64,
            overlapping_milli: (of.overlapping * 1e3).round() as u64,
        }),
    }
}
