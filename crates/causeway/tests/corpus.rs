// SPDX-License-Identifier: Apache-2.0

//! The fuzz targets' entries for what daemons read (`fuzz/daemons.rs`), on the committed
//! corpus and on mutations of it: a fixed number, from fixed seeds, so that a failure
//! repeats. `make fuzz` looks for new inputs.

#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

#[path = "../../../fuzz/daemons.rs"]
mod entry;
#[path = "../../../fuzz/replay.rs"]
mod replay;

use replay::run;

/// Mutations of each input; each is read by three daemons.
const VARIANTS: u64 = 25;

#[test]
fn configurations() {
    run("config", VARIANTS, entry::config);
}

#[test]
fn requests() {
    run("request", VARIANTS, entry::request);
}

#[test]
fn keys() {
    run("keys", VARIANTS, entry::keys);
}
