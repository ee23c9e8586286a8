// SPDX-License-Identifier: Apache-2.0
#![no_main]

#[path = "../words.rs"]
#[allow(dead_code, reason = "each target runs one of the entries")]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::peers(data));
