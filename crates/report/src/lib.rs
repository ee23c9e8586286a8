// SPDX-License-Identifier: Apache-2.0
//! What people read: tables on a terminal, CSV, charts and the frame of HTML pages.
//! Values go in, text comes out; files and sockets are the caller's.

pub mod chart;
pub mod page;
pub mod table;
