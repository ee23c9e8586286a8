// SPDX-License-Identifier: Apache-2.0
//! Reports: self-contained HTML pages with plots, no external request.

pub mod chart;
pub mod plot;
