// SPDX-License-Identifier: Apache-2.0
//! What people read: tables on a terminal, CSV, charts and the frame of HTML pages.
//! Values go in, text comes out; files and sockets are the caller's.
//!
//! [`table`] is text, CSV or JSON, [`chart`] draws SVG, [`page`] is the HTML around both. It knows no
//! real and no flow, and no other crate of Causeway: what a number means, the caller says.

pub mod chart;
pub mod page;
pub mod table;
