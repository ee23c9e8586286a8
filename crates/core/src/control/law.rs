// SPDX-License-Identifier: Apache-2.0
//! Which law turns latencies into weights.

use std::fmt;

use super::ControlParams;

/// A law of the [`Controller`](super::Controller). All of them keep its rules of
/// safety; docs/explanation/steering.md compares them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Law {
    /// The watermark rule as PIRATE's paper has it (section 4): every interval
    /// stands for itself, and stable latencies lead all weights back.
    WatermarkPaper,
    /// The watermark rule over smoothed latencies, which acts on what is
    /// significant and does not give load back to a real that is still slow.
    Watermark,
    /// Weights in proportion to what each real can do, by its latency and its rate of
    /// answers.
    #[default]
    Equalise,
}

impl Law {
    /// Every law.
    pub const ALL: [Self; 3] = [Self::WatermarkPaper, Self::Watermark, Self::Equalise];

    /// Its word in configuration, log and API.
    pub fn word(self) -> &'static str {
        match self {
            Self::WatermarkPaper => "watermark-paper",
            Self::Watermark => "watermark",
            Self::Equalise => "equalise",
        }
    }

    /// The constants as the law uses them.
    pub(super) fn tune(self, params: &ControlParams) -> ControlParams {
        match self {
            // "Average latencies" and freshness of the last interval, without a margin.
            Self::WatermarkPaper => ControlParams {
                smoothing: 1.0,
                confidence: 0.0,
                ..params.clone()
            },
            Self::Watermark => params.clone(),
            // What is asked for is a capacity: no real takes more than that, and there is no
            // herd to hold back.
            Self::Equalise => ControlParams {
                confidence: params.margin,
                max_increase: 3.0 * params.max_increase,
                ..params.clone()
            },
        }
    }
}

impl fmt::Display for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}
