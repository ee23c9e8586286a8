// SPDX-License-Identifier: Apache-2.0
//! Metric families that every daemon has.

use std::fmt;

use causeway_api::VerdictView;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// Packets and bytes by the data plane's verdict.
pub fn packets(verdicts: &[VerdictView], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    type Value = fn(&VerdictView) -> u64;
    let families: [(&str, &str, Option<Unit>, Value); 2] = [
        (
            "packets",
            "Packets by the data plane's verdict",
            None,
            |verdict| verdict.packets,
        ),
        (
            "packet",
            "Bytes of frames by the data plane's verdict",
            Some(Unit::Bytes),
            |verdict| verdict.bytes,
        ),
    ];
    for (name, help, unit, value) in families {
        let mut family =
            encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        for verdict in verdicts {
            let labels = [
                ("verdict", verdict.verdict.as_str()),
                ("action", verdict.action.as_str()),
            ];
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&value(verdict), None)?;
        }
    }
    Ok(())
}

/// The version that runs.
pub fn build_info(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut build = encoder.encode_descriptor(
        "build_info",
        "Version of the daemon",
        None,
        MetricType::Gauge,
    )?;
    build
        .encode_family(&[("version", env!("CARGO_PKG_VERSION"))])?
        .encode_gauge(&1.0)
}
