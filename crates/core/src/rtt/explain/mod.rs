// SPDX-License-Identifier: Apache-2.0
//! What the numbers of one path say, as sentences: is it the network, the
//! application, or the way of measuring?
//!
//! One file a cause: [`loss`] of packets, a full [`queue`], an [`ack`] that waits,
//! the [`application`].

mod ack;
mod application;
mod evidence;
mod finding;
mod loss;
mod queue;
mod retransmits;
#[cfg(test)]
mod tests;

pub use ack::{ACK_TIMERS, Ack};
pub use evidence::{EchoHole, Evidence, Ping, TcpEvidence};
pub use finding::{End, Finding, Repaired, Taken, time};
pub use retransmits::Retransmits;

/// What the numbers show, the network's own faults first. Never empty.
pub fn explain(evidence: &Evidence) -> Vec<Finding> {
    let mut findings = Vec::new();
    let outage = loss::outage(evidence);
    findings.extend(outage);
    let loss = loss::loss(evidence, outage.is_some());
    findings.extend(loss);
    let tail = match outage {
        Some(_) => None,
        None => loss::tail(evidence),
    };
    findings.extend(tail);
    let queue = queue::bufferbloat(evidence);
    findings.extend(queue);
    if outage.is_none() {
        findings.extend(loss::icmp(evidence));
    }
    // Behind a full queue every round-trip time is long.
    if queue.is_none() {
        let nagle = ack::nagle(evidence);
        findings.extend(ack::delayed(
            evidence,
            nagle,
            loss.or(outage).or(tail).is_some(),
        ));
        findings.extend(nagle);
    }
    findings.extend(application::application(evidence, &findings));
    if findings.is_empty() {
        findings.push(Finding::Fine);
    }
    findings
}

/// A closing sentence: where the network stands apart from what was found.
pub fn closing(evidence: &Evidence, findings: &[Finding]) -> Option<String> {
    let network_ns = evidence.network_ns()?;
    if findings.iter().any(Finding::blames_network) {
        return None;
    }
    // What a request and its response took has the network's round trip in it.
    let requests_ns = evidence.rr.map(|rr| rr.p50_ns).filter(|ns| *ns > 0);
    Some(match requests_ns.filter(|ns| *ns < network_ns) {
        None => format!("The network's round trip is {}.", time(network_ns)),
        Some(ns) => format!(
            "A request takes {} at the median, so the network takes no more; ping took longer ({}).",
            time(ns),
            time(network_ns)
        ),
    })
}
