// SPDX-License-Identifier: Apache-2.0
//! What a capture held, beside the results.

use std::fmt;

use causeway_core::capture::Totals;
use causeway_core::flow::FlowMeterCounts;
use causeway_core::wire::SkipCounts;

/// Counts of a whole capture. Its `Display` is the closing line.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// Of the file.
    pub totals: Totals,
    /// Packets that could not be read, by reason.
    pub skipped: SkipCounts,
    /// Packets that the filters left out.
    pub filtered: u64,
    /// Of the estimators.
    pub counts: FlowMeterCounts,
    /// Why reading ended before the end of the file.
    pub damage: Option<anyhow::Error>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = &self.counts;
        write!(
            f,
            "{} packets, {} measured",
            self.totals.packets, counts.from_clients
        )?;
        let flows = match counts.flows {
            1 => "flow",
            _ => "flows",
        };
        write!(f, " in {} {flows}", counts.flows)?;
        if counts.from_servers > 0 {
            write!(f, ", {} from servers", counts.from_servers)?;
        }
        if self.filtered > 0 {
            write!(f, ", {} filtered out", self.filtered)?;
        }
        if self.skipped.total() > 0 {
            let reasons = self
                .skipped
                .nonzero()
                .map(|(skip, count)| format!("{skip} {count}"));
            let reasons: Vec<_> = reasons.collect();
            write!(
                f,
                ", {} skipped ({})",
                self.skipped.total(),
                reasons.join(", ")
            )?;
        }
        if self.totals.backwards > 0 {
            write!(f, ", {} timestamps going backwards", self.totals.backwards)?;
        }
        if counts.evicted > 0 {
            write!(f, ", {} flows ended early by --max-flows", counts.evicted)?;
        }
        if self.totals.cut {
            f.write_str(", the last record is cut short")?;
        }
        Ok(())
    }
}
