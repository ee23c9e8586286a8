// SPDX-License-Identifier: Apache-2.0
//! What people read: tables on a terminal, CSV, charts for pages. Text goes in, text comes
//! out; files and sockets are the caller's.

pub mod chart;
pub mod plot;
pub mod table;
