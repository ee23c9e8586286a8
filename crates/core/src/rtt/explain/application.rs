// SPDX-License-Identifier: Apache-2.0
//! Time that the server's application takes, or lets pass.

use super::evidence::Evidence;
use super::finding::{Finding, Taken};

/// By the application's own clock, and by what is left of the response time. `found`
/// holds what may explain a part of it.
pub(super) fn application(evidence: &Evidence, found: &[Finding]) -> Vec<Finding> {
    let Some(rr) = evidence.rr else {
        return Vec::new();
    };
    let held_ns = found.iter().find_map(|finding| match finding {
        Finding::Nagle { held_ns, .. } => Some(*held_ns),
        _ => None,
    });
    let queue = found
        .iter()
        .any(|finding| matches!(finding, Finding::Bufferbloat { .. }));
    let Some(app_ns) = evidence.server_app_ns else {
        return somewhere(evidence, held_ns.is_some() || queue);
    };
    let mut findings = Vec::new();
    let rest_ns = rr.p50_ns.saturating_sub(held_ns.unwrap_or(0));
    if evidence.worth(app_ns) && app_ns * 2 > rest_ns {
        findings.push(Finding::SlowApplication {
            app_ns,
            taken: Taken::Working,
        });
    }
    if held_ns.is_none() && !queue && evidence.one_segment {
        findings.extend(unread(evidence, app_ns));
    }
    findings
}

/// Time that neither the network nor the application's clock accounts for, and that is
/// more than either.
fn unread(evidence: &Evidence, app_ns: u64) -> Option<Finding> {
    let waits_ns = evidence.unexplained_ns()?;
    if !evidence.worth(waits_ns) || waits_ns < app_ns {
        return None;
    }
    let tcp_min_ns = evidence.client.map_or(0, |tcp| tcp.min_rtt_ns);
    if tcp_min_ns > waits_ns / 2 {
        return Some(Finding::OtherPath {
            tcp_min_ns,
            ping_ns: evidence.network_ns()?,
        });
    }
    Some(Finding::SlowApplication {
        app_ns: waits_ns,
        taken: Taken::Unread,
    })
}

/// A server that does not report its time.
fn somewhere(evidence: &Evidence, explained: bool) -> Vec<Finding> {
    let (Some(rr), Some(network_ns)) = (evidence.rr, evidence.network_ns()) else {
        return Vec::new();
    };
    let app_ns = rr.p50_ns.saturating_sub(network_ns);
    let slow = !explained && evidence.worth(app_ns);
    let finding = Finding::SlowApplication {
        app_ns,
        taken: Taken::Somewhere,
    };
    slow.then_some(finding).into_iter().collect()
}
