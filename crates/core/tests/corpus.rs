// SPDX-License-Identifier: Apache-2.0

//! The fuzz targets' entries on the committed corpus (`fuzz/corpus`), and on
//! mutations of it: a fixed number, from fixed seeds, so that a failure repeats.
//! `make fuzz` looks for new inputs.

#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

#[path = "../../../fuzz/entry.rs"]
mod entry;
#[path = "../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../fuzz/words.rs"]
mod words;

use replay::run;

/// Mutations of each input.
const VARIANTS: u64 = 60;

#[test]
fn captures() {
    run("capture", VARIANTS, entry::capture);
}

#[test]
fn frames() {
    run("frame", VARIANTS, entry::frame);
}

#[test]
fn filters() {
    run("filter", VARIANTS, entry::filter);
}

#[test]
fn reports() {
    run("report", VARIANTS, words::report);
}

#[test]
fn peers() {
    run("peers", VARIANTS, words::peers);
}

#[test]
fn answers() {
    run("answer", VARIANTS, words::answer);
}
